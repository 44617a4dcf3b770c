//! Falcon: LayerNorm, rotary positions, attention and MLP side by side. The new decoder (40B, 180B) has two norms and groups
//! of heads; the old one has one norm, and one key head or as many as there are queries.

use super::{Family, TensorNames, bloom, gpt2, sizes};
use crate::config::{Form, Mlp, NormKind, Order};
use crate::formats::hf::reader::{CAUSAL, DROPOUT, HIDDEN_DROPOUT, PLAIN_WEIGHTS, Reader, is_false, only};
use crate::formats::hf::{HfError, PartialModel};
use serde_json::{Value, json};

pub(super) const FAMILY: Family = Family {
    model_type: "falcon",
    architecture: "FalconForCausalLM",
    block_class: "FalconDecoderLayer",
    presets: presets![
        "falcon-7b" 6_921_720_704, "falcon-40b" 41_303_293_952, "falcon-180b" 178_557_088_768,
    ],
    keys: &[
        &[
            ("hidden_size", "hidden_size"),
            ("ffn_hidden_size", "intermediate_size"),
            ("num_hidden_layers", "num_hidden_layers"),
            ("n_layer", "num_hidden_layers"),
            ("num_attention_heads", "num_attention_heads"),
            ("n_head", "num_attention_heads"),
            ("max_position_embeddings", "max_position_embeddings"),
            ("rope_theta", "rope_theta"),
        ],
        gpt2::COMMON_KEYS,
    ],
    restricted: &[
        only("activation", |value| value == "gelu", "\"gelu\""),
        only("alibi", is_false, "Falcon with rotary positions; its ALiBi is rounded to bf16"),
        DROPOUT,
        HIDDEN_DROPOUT,
        CAUSAL,
        PLAIN_WEIGHTS,
    ],
    defaults: || PartialModel {
        tie_word_embeddings: Some(true),
        num_key_value_heads: Some(1),
        ..sizes([4544, 0, 32, 71, 65024, 2048], 1e-5)
    },
    form: || Form { norm: NormKind::Layer, norm_bias: true, mlp: Mlp::Gelu, order: Order::Parallel, ..Form::default() },
    read,
    write: |model| {
        let order = model.form.order;
        let old_heads = [1, model.num_attention_heads].contains(&model.num_key_value_heads);
        json!({
            "hidden_size": model.hidden_size,
            "ffn_hidden_size": model.intermediate_size,
            "num_hidden_layers": model.num_hidden_layers,
            "num_attention_heads": model.num_attention_heads,
            "num_kv_heads": model.num_key_value_heads,
            "max_position_embeddings": model.max_position_embeddings,
            "layer_norm_epsilon": model.rms_norm_eps,
            "rope_theta": model.rope_theta,
            "rope_scaling": model.rope_scaling,
            "activation": "gelu",
            "alibi": false,
            "bias": model.form.qkv_bias,
            "multi_query": model.num_key_value_heads == 1,
            "new_decoder_architecture": !old_heads || order == Order::ParallelTwoNorms,
            "num_ln_in_parallel_attn": match order {
                Order::Sequential => Value::Null,
                Order::Parallel => json!(1),
                Order::ParallelTwoNorms => json!(2),
            },
            "parallel_attn": order != Order::Sequential,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        })
    },
    has_grouped_heads: true,
    tensors: |form| if form.order == Order::ParallelTwoNorms { &TWO_NORMS } else { &bloom::TENSORS },
    ..bloom::FAMILY
};

const TWO_NORMS: TensorNames = TensorNames { attention_norm: "ln_attn", mlp_norm: "ln_mlp", ..bloom::TENSORS };

fn read(read: &Reader<'_>, model: &mut PartialModel, form: &mut Form) -> Result<(), HfError> {
    let new = read.flag("new_decoder_architecture", false)?;
    let parallel = read.flag("parallel_attn", true)?;
    let bias = read.flag("bias", false)?;
    (form.qkv_bias, form.output_bias, form.mlp_bias) = (bias, bias, bias);
    let norms = read.count("num_ln_in_parallel_attn")?.unwrap_or(if new { 2 } else { 1 });
    form.order = match (parallel, norms) {
        (false, _) if new => {
            let missing = "parallel_attn false (zbench has the new decoder with it true)".into();
            return Err(read.unsupported(vec![missing]));
        }
        (false, _) => Order::Sequential,
        (true, 1) => Order::Parallel,
        (true, 2) if new => Order::ParallelTwoNorms,
        (true, other) => {
            let have = "1 norm, or 2 in the new decoder";
            return Err(read.unsupported(vec![format!("num_ln_in_parallel_attn {other} (zbench has {have})")]));
        }
    };
    let (heads, stated) = (model.num_attention_heads.unwrap_or(71), read.count("num_kv_heads")?);
    model.num_key_value_heads = Some(match read.flag("multi_query", true)? {
        _ if new => stated.unwrap_or(heads),
        true => 1,
        false => heads,
    });
    Ok(())
}
