//! `config.json`, as transformers 4 and 5 write it.

use super::families::{Family, family, unknown};
use super::reader::{Reader, WHOLE_HEADS};
use super::{HfError, PartialModel, PartialRope};
use crate::config::Model;
use serde_json::{Map, Value};

/// Keys of `rope_scaling` and `rope_parameters` that are read.
const ROPE_KEYS: [(&str, &str); 7] = [
    ("rope_type", "rope_type"),
    ("type", "rope_type"),
    ("rope_theta", "rope_theta"),
    ("factor", "factor"),
    ("low_freq_factor", "low_freq_factor"),
    ("high_freq_factor", "high_freq_factor"),
    ("original_max_position_embeddings", "original_max_position_embeddings"),
];

/// Reads a `config.json`; `file` names it in errors. The result is validated, and its `weights` are absent.
///
/// # Errors
/// Text that is no JSON object, a key of the wrong type, sizes that cannot be, and whatever would change the
/// mathematics and is not implemented (every such key is listed).
pub fn model_from_hf(json: &str, file: &str) -> Result<Model, HfError> {
    read_model(json, file, false)
}

/// [`model_from_hf`] of a model that is to be trained without the dropout that its `config.json` states.
pub fn model_from_hf_without_dropout(json: &str, file: &str) -> Result<Model, HfError> {
    read_model(json, file, true)
}

fn read_model(json: &str, file: &str, without_dropout: bool) -> Result<Model, HfError> {
    let bad_json = |reason: String| HfError::Json { what: file.into(), reason };
    let value: Value = serde_json::from_str(json).map_err(|error| bad_json(error.to_string()))?;
    let Value::Object(config) = value else {
        return Err(bad_json("it is not an object of keys".into()));
    };
    let family = known_family(&config, file)?;
    let reader = Reader { config: &config, file, without_dropout };
    refuse_unsupported(&reader, family)?;
    let mut partial: PartialModel = read_keys(&family.keys.concat(), &config, "", file)?;
    partial.family = Some(family.model_type.into());
    partial.rope_scaling = rope(&config, file)?;
    if family.has_padding {
        reader.padding(&mut partial)?;
    }
    let mut form = (family.form)();
    (family.read)(&reader, &mut partial, &mut form)?;
    partial.form = Some(form);
    partial.resolve(file)
}

fn known_family(config: &Map<String, Value>, file: &str) -> Result<&'static Family, HfError> {
    match config.get("model_type") {
        Some(Value::String(name)) => family(name).ok_or_else(|| unknown(&format!("{name:?}"), file)),
        Some(other) => Err(unknown(&other.to_string(), file)),
        None => {
            let guess = if config.contains_key("n_embd") { ("GPT-2", "gpt2") } else { ("Llama", "llama") };
            let message = format!("is missing; if the model is a {}, state \"{}\"", guess.0, guess.1);
            Err(HfError::field(file, "model_type", message))
        }
    }
}

fn refuse_unsupported(reader: &Reader<'_>, family: &Family) -> Result<(), HfError> {
    let config = reader.config;
    let mut missing = reader.missing(config, "", family.restricted);
    if let Some(value) = config.get("architectures").filter(|value| !value.is_null()) {
        // A model saved without its head names the base class. Early conversions of Llama wrote LLaMAForCausalLM.
        let whole = family.architecture;
        let base = whole.trim_end_matches("ForCausalLM").trim_end_matches("LMHeadModel").to_string() + "Model";
        let named = |name: &Value| {
            name.as_str().is_some_and(|name| [whole, &base].iter().any(|known| name.eq_ignore_ascii_case(known)))
        };
        if !value.as_array().is_some_and(|names| names.is_empty() || names.iter().any(named)) {
            missing.push(format!("architectures {value} (zbench has {:?})", family.architecture));
        }
    }
    for name in ["rope_scaling", "rope_parameters"] {
        let Some(Value::Object(table)) = config.get(name) else { continue };
        // Without a scaling, transformers 5 ignores the key in these families. With one it computes too few frequencies and fails.
        let kind = table.get("rope_type").or(table.get("type"));
        if kind.is_some_and(|kind| kind != "default") {
            missing.extend(reader.missing(table, &format!("{name}."), &[WHOLE_HEADS]));
            missing.extend(reader.missing(config, "", &[WHOLE_HEADS]));
        }
        // Transformers 5 writes one table per kind of layer for models that have several.
        if let Some((kind, _)) = table.iter().find(|(_, value)| value.is_object()) {
            missing.push(format!("{name}.{kind}, a rotary embedding per kind of layer (zbench has one)"));
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(reader.unsupported(missing)) }
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
        let read: PartialRope = read_keys(&ROPE_KEYS, table, &format!("{name}."), file)?;
        if found.as_ref().is_some_and(|other| *other != read) {
            return Err(HfError::field(file, name, "differs from rope_scaling; keep one of the two"));
        }
        found = Some(read);
    }
    Ok(found)
}

/// Deserialises the keys of `config` that `known` names, one at a time first, so that an error names its key. Of several
/// that stand for one of ours the first that is there counts.
fn read_keys<T: serde::de::DeserializeOwned>(
    known: &[(&str, &str)],
    config: &Map<String, Value>,
    prefix: &str,
    file: &str,
) -> Result<T, HfError> {
    let read = |table: Map<String, Value>, key: &str| {
        serde_json::from_value::<T>(Value::Object(table))
            .map_err(|error| HfError::field(file, &format!("{prefix}{key}"), in_plain_words(&error.to_string())))
    };
    let mut all = Map::new();
    for (theirs, ours) in known {
        let Some(value) = config.get(*theirs) else { continue };
        read(Map::from_iter([(ours.to_string(), value.clone())]), theirs)?;
        if all.get(*ours).is_none_or(Value::is_null) {
            all.insert(ours.to_string(), value.clone());
        }
    }
    read(all, "")
}

/// What serde says, without the names of Rust's types.
fn in_plain_words(error: &str) -> String {
    error.replace("expected usize", "expected a whole number from 0").replace("expected f64", "expected a number")
}
