//! GPT-2: LayerNorm, biases everywhere, learned positions, and matrices stored transposed (its Conv1D).

use super::{Family, Qkv, TensorNames, llama, sizes};
use crate::config::{Form, Linear, Mlp, NormKind, Positions};
use crate::formats::hf::PartialModel;
use crate::formats::hf::reader::{
    CAUSAL, NO_DROPOUT, PLAIN_WEIGHTS, is_false, is_gelu_of_either_form, is_true, is_zero, only,
};
use serde_json::json;

pub(super) const FAMILY: Family = Family {
    model_type: "gpt2",
    architecture: "GPT2LMHeadModel",
    block_class: "GPT2Block",
    presets: presets![
        "gpt2" 124_439_808, "gpt2-medium" 354_823_168, "gpt2-large" 774_030_080, "gpt2-xl" 1_557_611_200,
    ],
    keys: &[
        &[
            ("n_embd", "hidden_size"),
            ("hidden_size", "hidden_size"),
            ("n_inner", "intermediate_size"),
            ("n_layer", "num_hidden_layers"),
            ("num_hidden_layers", "num_hidden_layers"),
            ("n_head", "num_attention_heads"),
            ("num_attention_heads", "num_attention_heads"),
            ("n_positions", "max_position_embeddings"),
            ("max_position_embeddings", "max_position_embeddings"),
        ],
        COMMON_KEYS,
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
    defaults: || PartialModel { tie_word_embeddings: Some(true), ..sizes([768, 0, 12, 12, 50257, 1024], 1e-5) },
    form: || Form {
        norm: NormKind::Layer,
        norm_bias: true,
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        positions: Positions::Learned,
        mlp: Mlp::GeluTanh,
        ..Form::default()
    },
    read: |read, _, form| {
        if read.config.get("activation_function").is_some_and(|name| name == "gelu") {
            form.mlp = Mlp::Gelu;
        }
        Ok(())
    },
    write: |model| {
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
    },
    has_padding: false,
    has_grouped_heads: false,
    tensors: |_| &TENSORS,
    transposed: true,
    narrow_outputs: true,
    lora_targets: &Linear::QKV,
    ia3_targets: &[Linear::QProj, Linear::KProj, Linear::VProj, Linear::DownProj],
    ..llama::FAMILY
};

/// Keys that GPT-2 shares with Falcon, BLOOM and MPT.
pub(super) const COMMON_KEYS: &[(&str, &str)] = &[
    ("vocab_size", "vocab_size"),
    ("layer_norm_epsilon", "rms_norm_eps"),
    ("tie_word_embeddings", "tie_word_embeddings"),
    ("initializer_range", "initializer_range"),
];

const TENSORS: TensorNames = TensorNames {
    embedding: "transformer.wte",
    positions: "transformer.wpe",
    blocks: "transformer.h",
    attention_norm: "ln_1",
    qkv: Qkv::Concatenated("attn.c_attn"),
    o: "attn.c_proj",
    mlp_norm: "ln_2",
    up: "mlp.c_fc",
    down: "mlp.c_proj",
    norm: "transformer.ln_f",
    ..llama::TENSORS
};
