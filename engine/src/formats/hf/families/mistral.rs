//! Mistral: Llama with a sliding window in every block, or, where `layer_types` makes it transformers' Ministral, in those that
//! it names.

use super::{Family, llama, qwen2, sizes};
use crate::formats::hf::PartialModel;
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
        let window = Some(model.sliding_window.unwrap_or(4096)).filter(|window| *window > 0);
        model.max_window_layers = read.first_windowed(model.num_hidden_layers.unwrap_or(32), window)?;
        Ok(())
    },
    write: |model| {
        let mut own = json!({"sliding_window": model.sliding_window});
        if model.max_window_layers > 0 {
            own["layer_types"] = json!(qwen2::layer_types(model));
        }
        llama::with(model, own)
    },
    ..llama::FAMILY
};
