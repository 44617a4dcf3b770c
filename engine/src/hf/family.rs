//! What `config.json` says in each family: the names of its keys, transformers' defaults, and which form of block follows.

use super::reader::{Reader, falcon, mpt};
use super::{HfError, PartialModel, experts};
use crate::config::{Form, Mlp, NormKind, Order, Positions};
use serde_json::Value;

/// One `model_type`.
pub(super) struct Family {
    pub model_type: &'static str,
    /// The class that transformers opens it with.
    pub architecture: &'static str,
    /// Their keys and ours; of several that stand for one of ours the first that is there counts.
    pub keys: &'static [(&'static str, &'static str)],
    /// Keys that change the mathematics unless absent, null or harmless.
    pub restricted: &'static [Restricted],
    /// Transformers' defaults.
    pub defaults: fn() -> PartialModel,
    /// What the other keys say of the block.
    pub read: fn(&Reader<'_>, &mut PartialModel) -> Result<Form, HfError>,
}

/// A key that changes the mathematics unless its value is harmless.
pub(super) struct Restricted {
    pub key: &'static str,
    pub harmless: fn(&Value) -> bool,
    pub have: &'static str,
}

pub(super) const fn only(key: &'static str, harmless: fn(&Value) -> bool, have: &'static str) -> Restricted {
    Restricted { key, harmless, have }
}

fn is_silu(value: &Value) -> bool {
    // Transformers knows one function under both names.
    matches!(value.as_str(), Some("silu" | "swish"))
}

fn is_gelu_tanh(value: &Value) -> bool {
    matches!(value.as_str(), Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_accurate"))
}

fn is_gelu_of_either_form(value: &Value) -> bool {
    is_gelu_tanh(value) || value == "gelu"
}

fn is_gelu(value: &Value) -> bool {
    value == "gelu"
}

pub(super) fn is_false(value: &Value) -> bool {
    value == false
}

pub(super) fn is_true(value: &Value) -> bool {
    value == true
}

pub(super) fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

pub(super) fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

/// The one ratio that transformers' model of MPT computes with.
fn is_four(value: &Value) -> bool {
    value.as_f64() == Some(4.0)
}

pub(super) const NO_DROPOUT: &str = "no dropout outside adapters; model.dropout = 0.0 trains without it";
pub(super) const CAUSAL: Restricted = only("is_causal", is_true, "causal attention");
pub(super) const PLAIN_WEIGHTS: Restricted =
    only("quantization_config", Value::is_null, "plain f32, bf16 and f16 weights");
pub(super) const DROPOUT: Restricted = only("attention_dropout", is_zero, NO_DROPOUT);
const HIDDEN_DROPOUT: Restricted = only("hidden_dropout", is_zero, NO_DROPOUT);
pub(super) const SILU: Restricted = only("hidden_act", is_silu, "\"silu\"");
pub(super) const WHOLE_HEADS: Restricted = only("partial_rotary_factor", is_one, "rotation of the whole head");

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

const COMMON: [(&str, &str); 4] = [
    ("vocab_size", "vocab_size"),
    ("layer_norm_epsilon", "rms_norm_eps"),
    ("tie_word_embeddings", "tie_word_embeddings"),
    ("initializer_range", "initializer_range"),
];

/// All families.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        model_type: "llama",
        architecture: "LlamaForCausalLM",
        keys: KEYS,
        restricted: &[SILU, DROPOUT, WHOLE_HEADS, CAUSAL, PLAIN_WEIGHTS],
        defaults: || sizes([4096, 11008, 32, 32, 32000, 2048], 1e-6),
        read: |read, model| {
            read.padding(model)?;
            let bias = read.flag("attention_bias", false)?;
            let mlp_bias = read.flag("mlp_bias", false)?;
            Ok(Form { qkv_bias: bias, output_bias: bias, mlp_bias, ..Form::default() })
        },
    },
    Family {
        model_type: "mistral",
        architecture: "MistralForCausalLM",
        keys: KEYS,
        restricted: &[SILU, DROPOUT, WHOLE_HEADS, CAUSAL, PLAIN_WEIGHTS],
        defaults: || PartialModel {
            num_key_value_heads: Some(8),
            sliding_window: Some(4096),
            ..sizes([4096, 14336, 32, 32, 32000, 131_072], 1e-6)
        },
        read: |read, model| {
            read.padding(model)?;
            // Null is "none"; absent is the default.
            model.sliding_window = read.window("sliding_window")?;
            Ok(Form::default())
        },
    },
    Family {
        model_type: "qwen2",
        architecture: "Qwen2ForCausalLM",
        keys: KEYS,
        restricted: &[SILU, DROPOUT, WHOLE_HEADS, CAUSAL, PLAIN_WEIGHTS],
        defaults: || PartialModel {
            num_key_value_heads: Some(32),
            ..sizes([4096, 22016, 32, 32, 151_936, 32768], 1e-6)
        },
        read: |read, model| {
            read.padding(model)?;
            read.some_windows(model)?;
            Ok(Form { qkv_bias: true, ..Form::default() })
        },
    },
    Family {
        model_type: "qwen3",
        architecture: "Qwen3ForCausalLM",
        keys: KEYS,
        restricted: &[SILU, DROPOUT, WHOLE_HEADS, CAUSAL, PLAIN_WEIGHTS],
        defaults: || PartialModel {
            num_key_value_heads: Some(32),
            head_dim: Some(128),
            ..sizes([4096, 22016, 32, 32, 151_936, 32768], 1e-6)
        },
        read: |read, model| {
            read.padding(model)?;
            read.some_windows(model)?;
            let bias = read.flag("attention_bias", false)?;
            Ok(Form { qkv_bias: bias, output_bias: bias, qk_norm: true, ..Form::default() })
        },
    },
    experts::MIXTRAL,
    experts::QWEN3_MOE,
    Family {
        model_type: "gemma",
        architecture: "GemmaForCausalLM",
        keys: KEYS,
        restricted: &[
            // The released files say "gelu" and mean its tanh form, as transformers knows.
            only("hidden_act", is_gelu_of_either_form, "\"gelu_pytorch_tanh\""),
            only("hidden_activation", is_gelu_tanh, "\"gelu_pytorch_tanh\""),
            only("use_bidirectional_attention", is_false, "causal attention"),
            DROPOUT,
            WHOLE_HEADS,
            CAUSAL,
            PLAIN_WEIGHTS,
        ],
        defaults: || PartialModel {
            num_key_value_heads: Some(16),
            head_dim: Some(256),
            tie_word_embeddings: Some(true),
            pad_token_id: Some(0),
            ..sizes([3072, 24576, 28, 16, 256_000, 8192], 1e-6)
        },
        read: |read, model| {
            read.padding(model)?;
            let bias = read.flag("attention_bias", false)?;
            Ok(Form { qkv_bias: bias, output_bias: bias, ..GEMMA })
        },
    },
    Family {
        model_type: "gpt2",
        architecture: "GPT2LMHeadModel",
        keys: &[
            ("n_embd", "hidden_size"),
            ("hidden_size", "hidden_size"),
            ("n_inner", "intermediate_size"),
            ("n_layer", "num_hidden_layers"),
            ("num_hidden_layers", "num_hidden_layers"),
            ("n_head", "num_attention_heads"),
            ("num_attention_heads", "num_attention_heads"),
            ("n_positions", "max_position_embeddings"),
            ("max_position_embeddings", "max_position_embeddings"),
            COMMON[0],
            COMMON[1],
            COMMON[2],
            COMMON[3],
        ],
        restricted: &[
            only("activation_function", is_gelu_of_either_form, "\"gelu_new\" and \"gelu\""),
            only("attn_pdrop", is_zero, NO_DROPOUT),
            only("resid_pdrop", is_zero, NO_DROPOUT),
            only("embd_pdrop", is_zero, NO_DROPOUT),
            only("scale_attn_weights", is_true, "scores divided by the root of the head's size"),
            only("scale_attn_by_inverse_layer_idx", is_false, "the same scale in every block"),
            only("add_cross_attention", is_false, "decoders alone"),
            CAUSAL,
            PLAIN_WEIGHTS,
        ],
        defaults: || PartialModel {
            tie_word_embeddings: Some(true),
            intermediate_size: None,
            ..sizes([768, 0, 12, 12, 50257, 1024], 1e-5)
        },
        read: |read, _| {
            let exact = read.config.get("activation_function").is_some_and(|name| name == "gelu");
            Ok(Form { mlp: if exact { Mlp::Gelu } else { Mlp::GeluTanh }, ..GPT2 })
        },
    },
    Family {
        model_type: "falcon",
        architecture: "FalconForCausalLM",
        keys: &[
            ("hidden_size", "hidden_size"),
            ("ffn_hidden_size", "intermediate_size"),
            ("num_hidden_layers", "num_hidden_layers"),
            ("n_layer", "num_hidden_layers"),
            ("num_attention_heads", "num_attention_heads"),
            ("n_head", "num_attention_heads"),
            ("max_position_embeddings", "max_position_embeddings"),
            ("rope_theta", "rope_theta"),
            COMMON[0],
            COMMON[1],
            COMMON[2],
            COMMON[3],
        ],
        restricted: &[
            only("activation", is_gelu, "\"gelu\""),
            only("alibi", is_false, "Falcon with rotary positions; its ALiBi is rounded to bf16"),
            DROPOUT,
            HIDDEN_DROPOUT,
            CAUSAL,
            PLAIN_WEIGHTS,
        ],
        defaults: || PartialModel {
            tie_word_embeddings: Some(true),
            num_key_value_heads: Some(1),
            intermediate_size: None,
            ..sizes([4544, 0, 32, 71, 65024, 2048], 1e-5)
        },
        read: falcon,
    },
    Family {
        model_type: "bloom",
        architecture: "BloomForCausalLM",
        keys: &[
            ("hidden_size", "hidden_size"),
            ("n_embed", "hidden_size"),
            ("n_layer", "num_hidden_layers"),
            ("num_hidden_layers", "num_hidden_layers"),
            ("n_head", "num_attention_heads"),
            ("num_attention_heads", "num_attention_heads"),
            COMMON[0],
            COMMON[1],
            COMMON[2],
            COMMON[3],
        ],
        restricted: &[
            only("apply_residual_connection_post_layernorm", is_false, "residuals around the norms"),
            DROPOUT,
            HIDDEN_DROPOUT,
            CAUSAL,
            PLAIN_WEIGHTS,
        ],
        defaults: || PartialModel {
            tie_word_embeddings: Some(true),
            intermediate_size: None,
            ..sizes([64, 0, 2, 8, 250_880, 2048], 1e-5)
        },
        read: |_, _| Ok(BLOOM),
    },
    Family {
        model_type: "mpt",
        architecture: "MptForCausalLM",
        keys: &[
            ("d_model", "hidden_size"),
            ("hidden_size", "hidden_size"),
            ("n_layers", "num_hidden_layers"),
            ("num_hidden_layers", "num_hidden_layers"),
            ("n_heads", "num_attention_heads"),
            ("num_attention_heads", "num_attention_heads"),
            ("max_seq_len", "max_position_embeddings"),
            COMMON[0],
            COMMON[1],
            COMMON[2],
            COMMON[3],
        ],
        restricted: &[
            only("no_bias", is_true, "MPT without biases"),
            only("expansion_ratio", is_four, "an MLP of four times the width"),
            only("logit_scale", Value::is_null, "logits as they are"),
            only("emb_pdrop", is_zero, NO_DROPOUT),
            only("resid_pdrop", is_zero, NO_DROPOUT),
            CAUSAL,
            PLAIN_WEIGHTS,
        ],
        defaults: || PartialModel {
            tie_word_embeddings: Some(true),
            intermediate_size: None,
            ..sizes([2048, 0, 24, 16, 50368, 2048], 1e-5)
        },
        read: mpt,
    },
];

const LAYER: Form = Form {
    norm: NormKind::Layer,
    norm_bias: true,
    norm_less_one: false,
    qkv_bias: true,
    output_bias: true,
    mlp_bias: true,
    qk_norm: false,
    positions: Positions::Learned,
    mlp: Mlp::GeluTanh,
    order: Order::Sequential,
    embedding_norm: false,
    embedding_scale: false,
};
const GPT2: Form = LAYER;
const BLOOM: Form = Form { positions: Positions::Alibi, embedding_norm: true, ..LAYER };
const UNBIASED: Form = Form { qkv_bias: false, output_bias: false, mlp_bias: false, mlp: Mlp::Gelu, ..LAYER };
pub(super) const FALCON: Form = Form { positions: Positions::Rotary, order: Order::Parallel, ..UNBIASED };
pub(super) const MPT: Form = Form { positions: Positions::Alibi, norm_bias: false, ..UNBIASED };
const GEMMA: Form = Form {
    norm: NormKind::Rms,
    norm_bias: false,
    norm_less_one: true,
    positions: Positions::Rotary,
    mlp: Mlp::GegluTanh,
    embedding_scale: true,
    ..UNBIASED
};

/// A family by its name.
pub(super) fn family(model_type: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.model_type == model_type)
}

/// What a family reads of its config.json.
pub struct ConfigKeys {
    /// Their keys and ours: sizes and numbers.
    pub keys: &'static [(&'static str, &'static str)],
    /// Keys that must have the value that the engine computes with, or be absent.
    pub fixed: Vec<&'static str>,
}

/// What the family of this `model_type` reads; `None` where there is none.
pub fn config_keys(model_type: &str) -> Option<ConfigKeys> {
    let family = family(model_type)?;
    Some(ConfigKeys { keys: family.keys, fixed: family.restricted.iter().map(|only| only.key).collect() })
}

/// The `model_type` of every family.
pub fn family_names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.model_type)
}

/// The names, for messages.
pub(super) fn names() -> String {
    let quoted: Vec<String> = FAMILIES.iter().map(|family| format!("{:?}", family.model_type)).collect();
    quoted.join(", ")
}

/// Defaults that are all sizes: hidden, MLP (0: four times the hidden size), blocks, heads, vocabulary, positions.
pub(super) fn sizes([hidden, wide, layers, heads, vocab, positions]: [usize; 6], eps: f64) -> PartialModel {
    PartialModel {
        hidden_size: Some(hidden),
        intermediate_size: (wide > 0).then_some(wide),
        num_hidden_layers: Some(layers),
        num_attention_heads: Some(heads),
        vocab_size: Some(vocab),
        max_position_embeddings: Some(positions),
        rms_norm_eps: Some(eps),
        ..PartialModel::default()
    }
}

/// The form of a family whose keys say nothing else.
pub(super) fn usual_form(model_type: &str) -> Form {
    match model_type {
        "qwen2" => Form { qkv_bias: true, ..Form::default() },
        "qwen3" | "qwen3_moe" => Form { qk_norm: true, ..Form::default() },
        "gemma" => GEMMA,
        "gpt2" => GPT2,
        "falcon" => FALCON,
        "bloom" => BLOOM,
        "mpt" => MPT,
        _ => Form::default(),
    }
}
