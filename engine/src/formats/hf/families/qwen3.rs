//! Qwen3: Qwen2 with norms of query and key heads, and biases only if `attention_bias` asks for them.

use super::{Family, llama, qwen2, sizes};
use crate::config::Form;
use crate::formats::hf::PartialModel;
use serde_json::json;

pub(super) const FAMILY: Family = Family {
    model_type: "qwen3",
    architecture: "Qwen3ForCausalLM",
    block_class: "Qwen3DecoderLayer",
    presets: presets![
        "qwen3-0.6b" 596_049_920, "qwen3-1.7b" 1_720_574_976, "qwen3-4b" 4_022_468_096, "qwen3-8b" 8_190_735_360,
        "qwen3-14b" 14_768_307_200, "qwen3-32b" 32_762_123_264,
    ],
    defaults: || PartialModel {
        num_key_value_heads: Some(32),
        head_dim: Some(128),
        ..sizes([4096, 22016, 32, 32, 151_936, 32768], 1e-6)
    },
    form: || Form { qk_norm: true, ..Form::default() },
    read: |read, model, form| {
        qwen2::read_windows(read, model)?;
        read.attention_bias(form)
    },
    write: |model| {
        let mut own = qwen2::windows(model);
        own["attention_bias"] = json!(model.form.qkv_bias);
        llama::with(model, own)
    },
    ..qwen2::FAMILY
};
