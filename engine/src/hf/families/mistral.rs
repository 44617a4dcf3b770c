//! Mistral: Llama with a sliding window in every block.

use super::{Family, llama, sizes};
use crate::hf::PartialModel;
use serde_json::json;

pub(super) const FAMILY: Family = Family {
    model_type: "mistral",
    architecture: "MistralForCausalLM",
    block_class: "MistralDecoderLayer",
    presets: presets!["mistral-7b" 7_241_732_096, "mistral-7b-v0.3" 7_248_023_552],
    defaults: || PartialModel {
        num_key_value_heads: Some(8),
        sliding_window: Some(4096),
        ..sizes([4096, 14336, 32, 32, 32000, 131_072], 1e-6)
    },
    read: |read, model, _| {
        // Null is "none"; absent is the default.
        model.sliding_window = read.window("sliding_window")?;
        Ok(())
    },
    write: |model| llama::with(model, json!({"sliding_window": model.sliding_window})),
    ..llama::FAMILY
};
