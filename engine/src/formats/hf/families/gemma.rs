//! Gemma: Llama with a gated GELU, norms stored less one, and embeddings scaled by the root of the width.

use super::{Family, llama, sizes};
use crate::config::{Form, Linear, Mlp};
use crate::formats::hf::PartialModel;
use crate::formats::hf::reader::{
    CAUSAL, DROPOUT, PLAIN_WEIGHTS, is_false, is_gelu_of_either_form, is_gelu_tanh, only,
};
use serde_json::json;

pub(super) const FAMILY: Family = Family {
    model_type: "gemma",
    architecture: "GemmaForCausalLM",
    block_class: "GemmaDecoderLayer",
    presets: presets!["gemma-2b" 2_506_172_416, "gemma-7b" 8_537_680_896],
    restricted: &[
        // The released files say "gelu" and mean its tanh form, as transformers knows.
        only("hidden_act", is_gelu_of_either_form, "\"gelu_pytorch_tanh\""),
        only("hidden_activation", is_gelu_tanh, "\"gelu_pytorch_tanh\""),
        only("use_bidirectional_attention", is_false, "causal attention"),
        DROPOUT,
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
    form: || Form { norm_less_one: true, mlp: Mlp::GegluTanh, embedding_scale: true, ..Form::default() },
    read: |read, _, form| read.attention_bias(form),
    write: |model| {
        let own = json!({
            "attention_bias": model.form.qkv_bias,
            "hidden_activation": llama::activation(model),
        });
        llama::with(model, own)
    },
    ia3_targets: &[Linear::QProj, Linear::VProj, Linear::DownProj],
    ..llama::FAMILY
};
