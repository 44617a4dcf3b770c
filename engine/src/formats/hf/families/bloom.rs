//! BLOOM: GPT-2's block with ALiBi and a norm behind the embedding.

use super::{Family, Qkv, TensorNames, gpt2, llama, sizes};
use crate::config::{Form, Positions};
use crate::formats::hf::PartialModel;
use crate::formats::hf::reader::{CAUSAL, DROPOUT, HIDDEN_DROPOUT, PLAIN_WEIGHTS, is_false, only};
use serde_json::json;

pub(super) const FAMILY: Family = Family {
    model_type: "bloom",
    architecture: "BloomForCausalLM",
    block_class: "BloomBlock",
    presets: presets![
        "bloom-560m" 559_214_592, "bloom-7b1" 7_069_016_064, "bloom-176b" 176_247_271_424,
    ],
    keys: &[
        &[
            ("hidden_size", "hidden_size"),
            ("n_embed", "hidden_size"),
            ("n_layer", "num_hidden_layers"),
            ("num_hidden_layers", "num_hidden_layers"),
            ("n_head", "num_attention_heads"),
            ("num_attention_heads", "num_attention_heads"),
        ],
        gpt2::COMMON_KEYS,
    ],
    restricted: &[
        only("apply_residual_connection_post_layernorm", is_false, "residuals around the norms"),
        DROPOUT,
        HIDDEN_DROPOUT,
        CAUSAL,
        PLAIN_WEIGHTS,
    ],
    defaults: || PartialModel { tie_word_embeddings: Some(true), ..sizes([64, 0, 2, 8, 250_880, 2048], 1e-5) },
    form: || Form { positions: Positions::Alibi, embedding_norm: true, ..(gpt2::FAMILY.form)() },
    read: |_, _, _| Ok(()),
    write: |model| {
        json!({
            "hidden_size": model.hidden_size,
            "n_layer": model.num_hidden_layers,
            "n_head": model.num_attention_heads,
            "layer_norm_epsilon": model.rms_norm_eps,
            "apply_residual_connection_post_layernorm": false,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        })
    },
    tensors: |_| &TENSORS,
    transposed: false,
    narrow_outputs: false,
    ..gpt2::FAMILY
};

pub(super) const TENSORS: TensorNames = TensorNames {
    embedding: "transformer.word_embeddings",
    embedding_norm: "transformer.word_embeddings_layernorm",
    blocks: "transformer.h",
    qkv: Qkv::Interleaved("self_attention.query_key_value"),
    o: "self_attention.dense",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    norm: "transformer.ln_f",
    ..llama::TENSORS
};
