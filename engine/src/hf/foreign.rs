//! `config.json`, as transformers 4 and 5 write it.

use super::{HfError, PartialModel, PartialRope};
use crate::config::Model;
use serde_json::{Map, Value};

/// Keys of `config.json` that are keys of [`PartialModel`] too.
const KEYS: [&str; 12] = [
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "tie_word_embeddings",
    "initializer_range",
];

/// Keys of `rope_scaling` and `rope_parameters` that are read.
const ROPE_KEYS: [&str; 6] =
    ["rope_type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"];

/// A key that changes the mathematics unless absent, null, or of a value that `harmless` accepts.
struct Restricted {
    key: &'static str,
    harmless: fn(&Value) -> bool,
    have: &'static str,
}

const RESTRICTED: [Restricted; 8] = [
    Restricted { key: "hidden_act", harmless: is_silu, have: "\"silu\"" },
    Restricted { key: "attention_bias", harmless: is_false, have: "linear layers without bias" },
    Restricted { key: "mlp_bias", harmless: is_false, have: "linear layers without bias" },
    Restricted { key: "attention_dropout", harmless: is_zero, have: "no dropout outside adapters" },
    Restricted { key: "partial_rotary_factor", harmless: is_one, have: "rotation of the whole head" },
    Restricted { key: "is_causal", harmless: is_true, have: "causal attention" },
    Restricted { key: "quantization_config", harmless: Value::is_null, have: "plain f32, bf16 and f16 weights" },
    Restricted { key: "architectures", harmless: is_causal_lm, have: "\"LlamaForCausalLM\"" },
];

fn is_silu(value: &Value) -> bool {
    // Transformers knows one function under both names.
    matches!(value.as_str(), Some("silu" | "swish"))
}

fn is_false(value: &Value) -> bool {
    value == false
}

fn is_true(value: &Value) -> bool {
    value == true
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn is_causal_lm(value: &Value) -> bool {
    // Early conversions wrote LLaMAForCausalLM.
    let named = |name: &Value| name.as_str().is_some_and(|name| name.eq_ignore_ascii_case("LlamaForCausalLM"));
    value.as_array().is_some_and(|names| names.is_empty() || names.iter().any(named))
}

/// Reads a `config.json`; `file` names it in errors. The result is validated, and its `weights` are absent.
///
/// # Errors
/// Text that is no JSON object, a key of the wrong type, sizes that cannot be, and whatever would change the
/// mathematics and is not implemented (every such key is listed).
pub fn model_from_hf(json: &str, file: &str) -> Result<Model, HfError> {
    let bad_json = |reason: String| HfError::Json { what: file.into(), reason };
    let value: Value = serde_json::from_str(json).map_err(|error| bad_json(error.to_string()))?;
    let Value::Object(config) = value else {
        return Err(bad_json("it is not an object of keys".into()));
    };
    refuse_unsupported(&config, file)?;
    let known = KEYS.iter().filter_map(|key| Some((*key, config.get(*key)?)));
    let mut partial: PartialModel = read_keys(known, "", file)?;
    partial.rope_scaling = rope(&config, file)?;
    partial.resolve(file)
}

fn refuse_unsupported(config: &Map<String, Value>, file: &str) -> Result<(), HfError> {
    let mut missing = Vec::new();
    match config.get("model_type") {
        Some(Value::String(family)) if family == "llama" => {}
        Some(other) => missing.push(format!("model_type {other} (zbench has \"llama\")")),
        None => {
            return Err(HfError::field(file, "model_type", "is missing; if the model is a Llama, state \"llama\""));
        }
    }
    for Restricted { key, harmless, have } in &RESTRICTED {
        if let Some(value) = config.get(*key).filter(|value| !value.is_null() && !harmless(value)) {
            missing.push(format!("{key} {value} (zbench has {have})"));
        }
    }
    for name in ["rope_scaling", "rope_parameters"] {
        let Some(Value::Object(table)) = config.get(name) else { continue };
        if let Some(value) = table.get("partial_rotary_factor").filter(|value| !value.is_null() && !is_one(value)) {
            missing.push(format!("{name}.partial_rotary_factor {value} (zbench has rotation of the whole head)"));
        }
        // Transformers 5 writes one table per kind of layer for models that have several.
        if let Some((kind, _)) = table.iter().find(|(_, value)| value.is_object()) {
            missing.push(format!("{name}.{kind}, a rotary embedding per kind of layer (zbench has one)"));
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(HfError::Unsupported { what: file.into(), missing }) }
}

/// The table under either name; both may stand there if they say the same.
fn rope(config: &Map<String, Value>, file: &str) -> Result<Option<PartialRope>, HfError> {
    let mut found: Option<PartialRope> = None;
    for name in ["rope_scaling", "rope_parameters"] {
        let table = match config.get(name) {
            None | Some(Value::Null) => continue,
            Some(Value::Object(table)) => table,
            Some(_) => return Err(HfError::field(file, name, "is not a table of keys; write null or a table")),
        };
        let mut known: Vec<_> = ROPE_KEYS.iter().filter_map(|key| Some((*key, table.get(*key)?))).collect();
        if let (None, Some(kind)) = (table.get("rope_type"), table.get("type")) {
            known.push(("rope_type", kind));
        }
        let read: PartialRope = read_keys(known.into_iter(), &format!("{name}."), file)?;
        if found.as_ref().is_some_and(|other| *other != read) {
            return Err(HfError::field(file, name, "differs from rope_scaling; keep one of the two"));
        }
        found = Some(read);
    }
    Ok(found)
}

/// Deserialises the given keys, one at a time first, so that an error names its key.
fn read_keys<'a, T: serde::de::DeserializeOwned>(
    keys: impl Iterator<Item = (&'a str, &'a Value)>,
    prefix: &str,
    file: &str,
) -> Result<T, HfError> {
    let read = |table: Map<String, Value>, key: &str| {
        serde_json::from_value::<T>(Value::Object(table))
            .map_err(|error| HfError::field(file, &format!("{prefix}{key}"), error.to_string()))
    };
    let mut all = Map::new();
    for (key, value) in keys {
        read(Map::from_iter([(key.to_string(), value.clone())]), key)?;
        all.insert(key.to_string(), value.clone());
    }
    read(all, "")
}
