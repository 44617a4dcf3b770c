//! The files of a Hugging Face model folder: their names, the index of the weights, and `config.json` in the keys that transformers 4
//! and 5 both read.

use super::family_of;
use crate::config::Model;
use serde_json::{Map, Value, json};
use zbench_kernels::DType;

/// Keys of the `config.json` that a model was read from which are handed on: they are no part of the model, but of its
/// tokenizer, and transformers' defaults for them may lie outside the vocabulary.
const HANDED_ON: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];

/// The name of file `part` (from 0) of a model's `count` files of weights.
pub(crate) fn weights_file(part: usize, count: usize) -> String {
    match count {
        1 => "model.safetensors".into(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", part + 1),
    }
}

/// The text of `model.safetensors.index.json`: which file holds which tensor.
pub(crate) fn weights_index(total_bytes: u64, map: Map<String, Value>) -> String {
    format!("{:#}\n", json!({"metadata": {"total_size": total_bytes}, "weight_map": map}))
}

/// The text of a model's `config.json`, with what is handed on from that of the weights it started from.
pub(crate) fn config_text(model: &Model, dtype: DType) -> String {
    let source = model.weights.as_ref().and_then(|dir| crate::formats::files::text(&dir.join("config.json")).ok());
    config_json(model, dtype, source.as_deref())
}

/// The text of `config.json` for a model whose weights are stored as `dtype`. `source` is the text of the one that it was
/// read from, if there was one.
pub fn config_json(model: &Model, dtype: DType, source: Option<&str>) -> String {
    let mut config = Map::new();
    let stored = match dtype {
        DType::Bf16 => "bfloat16",
        DType::F16 => "float16",
        _ => "float32",
    };
    let family = family_of(model);
    let mut put = |table: Value| {
        if let Value::Object(table) = table {
            config.extend(table);
        }
    };
    put(json!({
        "architectures": [family.architecture],
        "model_type": model.family,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tie_word_embeddings,
        "initializer_range": model.initializer_range,
        "use_cache": true,
        "torch_dtype": stored,
    }));
    put((family.write)(model));
    if let Some(Value::Object(source)) = source.and_then(|text| serde_json::from_str(text).ok()) {
        put(source.into_iter().filter(|(key, _)| HANDED_ON.contains(&key.as_str())).collect());
    }
    if family.has_padding {
        put(json!({"pad_token_id": model.pad_token_id}));
    }
    let text = serde_json::to_string_pretty(&Value::Object(config));
    text.expect("a value of strings and numbers is JSON") + "\n"
}
