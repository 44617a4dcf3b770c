//! Llama, which most later families resemble.

use super::{Family, Qkv, TensorNames, sizes};
use crate::config::{Form, Linear, Mlp, Model};
use crate::formats::hf::reader::{CAUSAL, DROPOUT, PLAIN_WEIGHTS, SILU};
use serde_json::{Value, json};

pub(super) const FAMILY: Family = Family {
    model_type: "llama",
    architecture: "LlamaForCausalLM",
    block_class: "LlamaDecoderLayer",
    presets: presets![
        "llama-tiny" 1_000_576, "llama-32m" 31_597_056, "llama-50m" 49_003_008, "llama3.2-1b" 1_235_814_400,
        "llama3.2-3b" 3_212_749_824, "llama2-7b" 6_738_415_616, "llama3-8b" 8_030_261_248,
        "llama3.1-8b" 8_030_261_248, "llama2-13b" 13_015_864_320, "llama2-70b" 68_976_648_192,
        "llama3-70b" 70_553_706_496, "llama3.1-70b" 70_553_706_496, "llama3.1-405b" 405_853_388_800,
    ],
    keys: &[KEYS],
    restricted: &[SILU, DROPOUT, CAUSAL, PLAIN_WEIGHTS],
    defaults: || sizes([4096, 11008, 32, 32, 32000, 2048], 1e-6),
    form: Form::default,
    read: |read, _, form| {
        read.attention_bias(form)?;
        form.mlp_bias = read.flag("mlp_bias", false)?;
        Ok(())
    },
    write: |model| with(model, json!({"attention_bias": model.form.qkv_bias, "mlp_bias": model.form.mlp_bias})),
    check_experts: |_| Ok(()),
    has_padding: true,
    has_grouped_heads: true,
    tensors: |_| &TENSORS,
    transposed: false,
    narrow_outputs: false,
    rounded_weights: true,
    lora_targets: &[Linear::QProj, Linear::VProj],
    ia3_targets: &[Linear::KProj, Linear::VProj, Linear::DownProj],
};

/// Keys whose name is ours too.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("hidden_size", "hidden_size"),
    ("intermediate_size", "intermediate_size"),
    ("num_hidden_layers", "num_hidden_layers"),
    ("num_attention_heads", "num_attention_heads"),
    ("num_key_value_heads", "num_key_value_heads"),
    ("head_dim", "head_dim"),
    ("vocab_size", "vocab_size"),
    ("max_position_embeddings", "max_position_embeddings"),
    ("rms_norm_eps", "rms_norm_eps"),
    ("rope_theta", "rope_theta"),
    ("tie_word_embeddings", "tie_word_embeddings"),
    ("initializer_range", "initializer_range"),
];

pub(super) const TENSORS: TensorNames = TensorNames {
    embedding: "model.embed_tokens",
    positions: "model.embed_positions",
    embedding_norm: "model.embed_layernorm",
    blocks: "model.layers",
    attention_norm: "input_layernorm",
    qkv: Qkv::Separate(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    o: "self_attn.o_proj",
    q_norm: "self_attn.q_norm",
    k_norm: "self_attn.k_norm",
    mlp_norm: "post_attention_layernorm",
    gate: "mlp.gate_proj",
    up: "mlp.up_proj",
    down: "mlp.down_proj",
    router: "mlp.gate",
    experts: "mlp.experts",
    expert_gate: "gate_proj",
    expert_up: "up_proj",
    expert_down: "down_proj",
    norm: "model.norm",
    head: "lm_head",
};

/// The keys of families that are named as Llama is, and `own` behind them.
pub(super) fn with(model: &Model, own: Value) -> Value {
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
        "rope_scaling": model.rope_scaling,
        "hidden_act": activation(model),
        "attention_dropout": 0.0,
    });
    if let (Value::Object(table), Value::Object(own)) = (&mut table, own) {
        table.extend(own);
    }
    table
}

/// Transformers' name of the gate's activation.
pub(super) fn activation(model: &Model) -> &'static str {
    if model.form.mlp == Mlp::Swiglu { "silu" } else { "gelu_pytorch_tanh" }
}
