//! `config.json` of a model, in the keys that transformers 4 and 5 both read.

use super::family::family;
use super::validate::pads;
use crate::config::{Mlp, Model, Order, RopeScaling};
use serde_json::{Map, Value, json};
use zbench_kernels::DType;

/// Keys of the `config.json` that a model was read from which are handed on: they are no part of the model, but of its
/// tokenizer, and transformers' defaults for them may lie outside the vocabulary.
const HANDED_ON: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];

/// The text of `config.json` for a model whose weights are stored as `dtype`. `source` is the text of the one that it was
/// read from, if there was one.
pub fn config_json(model: &Model, dtype: DType, source: Option<&str>) -> String {
    let mut config = Map::new();
    let stored = match dtype {
        DType::Bf16 => "bfloat16",
        DType::F16 => "float16",
        _ => "float32",
    };
    let architecture = family(&model.family).map_or("LlamaForCausalLM", |family| family.architecture);
    let mut put = |table: Value| {
        if let Value::Object(table) = table {
            config.extend(table);
        }
    };
    put(json!({
        "architectures": [architecture],
        "model_type": model.family,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tie_word_embeddings,
        "initializer_range": model.initializer_range,
        "use_cache": true,
        "torch_dtype": stored,
    }));
    match model.family.as_str() {
        "gpt2" => put(gpt2(model)),
        "falcon" => put(falcon(model)),
        "bloom" => put(bloom(model)),
        "mpt" => put(mpt(model)),
        _ => put(llama(model)),
    }
    if let Some(Value::Object(source)) = source.and_then(|text| serde_json::from_str(text).ok()) {
        put(source.into_iter().filter(|(key, _)| HANDED_ON.contains(&key.as_str())).collect());
    }
    if pads(&model.family) {
        put(json!({"pad_token_id": model.pad_token_id}));
    }
    let text = serde_json::to_string_pretty(&Value::Object(config));
    text.expect("a value of strings and numbers is JSON") + "\n"
}

/// Llama and what is named as it is.
fn llama(model: &Model) -> Value {
    let form = model.form;
    let act = if form.mlp == Mlp::Swiglu { "silu" } else { "gelu_pytorch_tanh" };
    let mut table = json!({
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.max_position_embeddings,
        "rms_norm_eps": model.rms_norm_eps,
        "rope_theta": model.rope_theta,
        "rope_scaling": rope_scaling(model),
        "hidden_act": act,
        "attention_dropout": 0.0,
    });
    match model.family.as_str() {
        "llama" => {
            table["attention_bias"] = json!(form.qkv_bias);
            table["mlp_bias"] = json!(form.mlp_bias);
        }
        "mistral" => table["sliding_window"] = json!(model.sliding_window),
        "mixtral" | "qwen3_moe" => experts(model, &mut table),
        "gemma" => {
            table["attention_bias"] = json!(form.qkv_bias);
            table["hidden_activation"] = json!(act);
        }
        _ => {
            let windowed = model.sliding_window.is_some();
            let kind = |index| if model.window(index).is_some() { "sliding_attention" } else { "full_attention" };
            table["use_sliding_window"] = json!(windowed);
            table["sliding_window"] = json!(model.sliding_window);
            table["max_window_layers"] =
                json!(if windowed { model.max_window_layers } else { model.num_hidden_layers });
            table["layer_types"] = (0..model.num_hidden_layers).map(kind).collect();
            if model.family == "qwen3" {
                table["attention_bias"] = json!(form.qkv_bias);
            }
        }
    }
    table
}

/// What families with experts have beside Llama's keys.
fn experts(model: &Model, table: &mut Value) {
    table["sliding_window"] = json!(model.sliding_window);
    table["output_router_logits"] = json!(false);
    let experts = model.experts.as_ref();
    table["num_experts_per_tok"] = json!(experts.map_or(1, |experts| experts.num_experts_per_tok));
    let count = json!(experts.map_or(0, |experts| experts.num_experts));
    if model.family == "mixtral" {
        table["num_local_experts"] = count;
        table["router_jitter_noise"] = json!(0.0);
        return;
    }
    table["num_experts"] = count;
    table["use_sliding_window"] = json!(model.sliding_window.is_some());
    table["attention_bias"] = json!(model.form.qkv_bias);
    if let Some(experts) = experts {
        table["moe_intermediate_size"] = json!(experts.moe_intermediate_size);
        table["norm_topk_prob"] = json!(experts.norm_topk_prob);
        table["decoder_sparse_step"] = json!(experts.decoder_sparse_step);
        table["mlp_only_layers"] = json!(experts.mlp_only_layers);
    }
}

fn rope_scaling(model: &Model) -> Value {
    match model.rope_scaling {
        None => Value::Null,
        Some(RopeScaling::Linear { factor }) => json!({"rope_type": "linear", "factor": factor}),
        Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings }) => {
            json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_max_position_embeddings,
            })
        }
    }
}

fn gpt2(model: &Model) -> Value {
    json!({
        "n_embd": model.hidden_size,
        "n_inner": model.intermediate_size,
        "n_layer": model.num_hidden_layers,
        "n_head": model.num_attention_heads,
        "n_positions": model.max_position_embeddings,
        "layer_norm_epsilon": model.rms_norm_eps,
        "activation_function": if model.form.mlp == Mlp::Gelu { "gelu" } else { "gelu_new" },
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    })
}

fn falcon(model: &Model) -> Value {
    let order = model.form.order;
    // The old decoder has one key head or as many as there are queries; only the new one has norms or heads in between.
    let old = [1, model.num_attention_heads].contains(&model.num_key_value_heads) && order != Order::ParallelTwoNorms;
    json!({
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_kv_heads": model.num_key_value_heads,
        "max_position_embeddings": model.max_position_embeddings,
        "layer_norm_epsilon": model.rms_norm_eps,
        "rope_theta": model.rope_theta,
        "rope_scaling": rope_scaling(model),
        "activation": "gelu",
        "alibi": false,
        "bias": model.form.qkv_bias,
        "multi_query": model.num_key_value_heads == 1,
        "new_decoder_architecture": !old,
        "num_ln_in_parallel_attn": match order {
            Order::Sequential => Value::Null,
            Order::Parallel => json!(1),
            Order::ParallelTwoNorms => json!(2),
        },
        "parallel_attn": order != Order::Sequential,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    })
}

fn bloom(model: &Model) -> Value {
    json!({
        "hidden_size": model.hidden_size,
        "n_layer": model.num_hidden_layers,
        "n_head": model.num_attention_heads,
        "layer_norm_epsilon": model.rms_norm_eps,
        "apply_residual_connection_post_layernorm": false,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    })
}

fn mpt(model: &Model) -> Value {
    json!({
        "d_model": model.hidden_size,
        "n_layers": model.num_hidden_layers,
        "n_heads": model.num_attention_heads,
        "max_seq_len": model.max_position_embeddings,
        "layer_norm_epsilon": model.rms_norm_eps,
        "expansion_ratio": 4,
        "no_bias": true,
        "attn_config": {"alibi": true, "alibi_bias_max": 8, "attn_pdrop": 0, "attn_type": "multihead_attention"},
        "emb_pdrop": 0.0,
        "resid_pdrop": 0.0,
    })
}
