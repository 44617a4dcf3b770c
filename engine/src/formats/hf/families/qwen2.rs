//! Qwen2 and 2.5: Llama with biases on queries, keys and values, and windows from one block on.

use super::{Family, llama, sizes};
use crate::config::{Form, Linear, Model};
use crate::formats::hf::reader::Reader;
use crate::formats::hf::{HfError, PartialModel};
use serde_json::{Value, json};

pub(super) const FAMILY: Family = Family {
    model_type: "qwen2",
    architecture: "Qwen2ForCausalLM",
    block_class: "Qwen2DecoderLayer",
    presets: presets![
        "qwen2-0.5b" 494_032_768, "qwen2.5-0.5b" 494_032_768, "qwen2-1.5b" 1_543_714_304,
        "qwen2.5-1.5b" 1_543_714_304, "qwen2.5-3b" 3_085_938_688, "qwen2-7b" 7_615_616_512,
        "qwen2.5-7b" 7_615_616_512, "qwen2.5-14b" 14_770_033_664, "qwen2.5-32b" 32_763_876_352,
        "qwen2-72b" 72_706_203_648, "qwen2.5-72b" 72_706_203_648,
    ],
    defaults: || PartialModel { num_key_value_heads: Some(32), ..sizes([4096, 22016, 32, 32, 151_936, 32768], 1e-6) },
    form: || Form { qkv_bias: true, ..Form::default() },
    read: |read, model, _| read_windows(read, model),
    write: |model| llama::with(model, windows(model)),
    ia3_targets: &[Linear::QProj, Linear::VProj, Linear::DownProj],
    ..llama::FAMILY
};

/// Windows from block `max_window_layers` on, if they are used at all.
pub(super) fn read_windows(read: &Reader<'_>, model: &mut PartialModel) -> Result<(), HfError> {
    let mut window = None;
    let from = read.count("max_window_layers")?.unwrap_or(28);
    if read.flag("use_sliding_window", false)? {
        window = read.window("sliding_window")?.or(Some(4096)).filter(|window| *window > 0);
    }
    let from = read.first_windowed(model.num_hidden_layers.unwrap_or(32), window)?.unwrap_or(from);
    model.sliding_window = Some(window.unwrap_or(0));
    model.max_window_layers = window.map(|_| from);
    Ok(())
}

pub(super) fn windows(model: &Model) -> Value {
    let windowed = model.sliding_window.is_some();
    json!({
        "use_sliding_window": windowed,
        "sliding_window": model.sliding_window,
        "max_window_layers": if windowed { model.max_window_layers } else { model.num_hidden_layers },
        "layer_types": layer_types(model),
    })
}

pub(super) fn layer_types(model: &Model) -> Vec<&'static str> {
    let kind = |index| if model.window(index).is_some() { "sliding_attention" } else { "full_attention" };
    (0..model.num_hidden_layers).map(kind).collect()
}
