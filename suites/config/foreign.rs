//! A `config.json` of Hugging Face as keys of [model], whether the engine trains it or not: a plan needs a model's sizes alone.
//!
//! What of the file the engine does not have stands in `model.left_out`, by which a run refuses the model and a plan does not.

mod sizes;

use crate::keys;
use serde_json::{Map, Value as Json};
use std::path::Path;
use toml::Value;
use zbench_engine::config::{Form, Model};
use zbench_engine::formats::hf;
use zbench_engine::formats::hf::{HfError, PartialModel};

/// A model's keys of [model], and how they came of its file.
#[derive(Debug)]
pub struct Described {
    /// The keys, fewest: those whose absence changes nothing are left out.
    pub settings: Vec<(&'static str, Value)>,
    /// The model, where the engine has its family.
    pub model: Option<Model>,
    /// Keys of the file that were read, and the names in [model] of what they became.
    pub read: Vec<(String, String)>,
    /// Keys of the file that stand for what the engine does not have.
    pub left_out: Vec<String>,
    /// What was assumed of the model, in sentences without their points.
    pub assumed: Vec<String>,
    /// The table of the file that describes the language model, where it is not the file itself.
    pub table: Option<&'static str>,
}

/// The key of what a plan takes without and a run refuses.
pub const LEFT_OUT: &str = "model.left_out";

/// Keys whose values are sizes of matrices: without them the model would be another one.
const OF_SIZES: [&str; 3] = ["model_type", "architectures", "add_cross_attention"];

/// Describes a model by its `config.json`; `file` names it in errors. Dropout is left out, as by `model.dropout = 0.0`.
///
/// # Errors
/// A key of the wrong type, sizes that cannot be, a family whose sizes are unknown here, parts that no key of [model] has.
pub fn describe(config: &Map<String, Json>, file: &str) -> Result<Described, HfError> {
    let mut config = config.clone();
    let (mut left_out, mut assumed) = (Vec::new(), Vec::new());
    let table = language_model(&mut config, &mut left_out, &mut assumed);

    let quantised = quantised(&mut config, file, &mut assumed)?;
    let name = config.get("model_type").and_then(Json::as_str).unwrap_or_default().to_string();
    let dropped: Vec<&str> =
        config.iter().filter(|(key, value)| has_dropout(&name, key, value)).map(|(key, _)| key.as_str()).collect();
    if !dropped.is_empty() {
        assumed.push(format!("dropout ({}) is left out, as model.dropout = 0.0 does", dropped.join(", ")));
    }
    let known = hf::config_keys(&name).is_some();
    let mut described = match sizes::of(&name).filter(|_| !known) {
        Some(kind) => sizes::describe(kind, &config, file)?,
        None => trained(config, file, &mut left_out, &mut assumed)?,
    };
    described.assumed.splice(0..0, assumed);
    let keys = left_out.iter().flat_map(|text| text.split(", ")).map(key_of);
    let both = |key: &str| {
        if key == "rope_type" { vec!["rope_scaling".into(), "rope_parameters".into()] } else { vec![key.into()] }
    };
    described.left_out = keys.flat_map(both).collect();
    if !left_out.is_empty() {
        described.settings.push((LEFT_OUT, left_out.into()));
    }
    described.settings.extend(quantised);
    described.table = table;
    // A plan multiplies sizes, which the keys bound.
    for (key, value) in &described.settings {
        let of_key = keys::find(key).map_or(Ok(()), |known| known.kind.check(value));
        of_key.map_err(|reason| HfError::Field { what: file.into(), field: key.to_string(), reason })?;
    }
    Ok(described)
}

/// A model of a family that the engine has.
fn trained(
    mut config: Map<String, Json>,
    file: &str,
    left_out: &mut Vec<String>,
    assumed: &mut Vec<String>,
) -> Result<Described, HfError> {
    if let Some(missing) = sizes::without_sizes(&config) {
        return Err(HfError::Unsupported { what: file.into(), missing: vec![missing] });
    }
    let model = loop {
        let read = hf::model_from_hf_without_dropout(&Json::Object(config.clone()).to_string(), file);
        let missing = match read {
            Err(HfError::Unsupported { missing, .. }) => missing,
            other => break other?,
        };
        let family = config.get("model_type").and_then(Json::as_str).unwrap_or_default();
        if missing.iter().any(|one| key_of(one) == "model_type") {
            return Err(sizes::unknown(family, &config, file));
        }
        let kept: Vec<String> = missing.iter().filter(|one| !take_out(&mut config, key_of(one))).cloned().collect();
        if !kept.is_empty() {
            return Err(HfError::Unsupported { what: file.into(), missing: kept });
        }
        // What stands there instead is said of runs.
        for text in missing.iter().map(|one| one.split(" (zbench has").next().unwrap_or(one)) {
            assumed.push(format!("{text} is left out, as no size depends on it; such a model is priced and not run"));
            left_out.push(text.to_string());
        }
    };
    let read = hf::config_keys(&model.family).map(|known| known.keys).unwrap_or_default();
    Ok(Described {
        settings: settings(&model).map_err(|reason| HfError::Field {
            what: file.into(),
            field: "model_type".into(),
            reason,
        })?,
        model: Some(model),
        read: read.into_iter().map(|(theirs, ours)| (theirs.to_string(), ours.to_string())).collect(),
        left_out: Vec::new(),
        assumed: Vec::new(),
        table: None,
    })
}

/// The key that a line of what is missing begins with.
fn key_of(missing: &str) -> &str {
    missing.split([' ', ',']).next().unwrap_or_default()
}

/// Takes a key out of the file, where the model is as large without it.
fn take_out(config: &mut Map<String, Json>, key: &str) -> bool {
    if key == "rope_type" {
        // The base frequency stays where transformers 5 has it.
        for name in ["rope_scaling", "rope_parameters"] {
            if let Some(table) = config.get_mut(name).and_then(Json::as_object_mut) {
                table.retain(|name, _| name == "rope_theta");
            }
        }
        return true;
    }
    match key.split_once('.') {
        _ if OF_SIZES.contains(&key) => false,
        Some((table, key)) => {
            config.get_mut(table).and_then(Json::as_object_mut).is_some_and(|table| table.remove(key).is_some())
        }
        None => config.remove(key).is_some(),
    }
}

/// Puts the table of the language model in the place of a file that describes other parts, too.
fn language_model(
    config: &mut Map<String, Json>,
    left_out: &mut Vec<String>,
    assumed: &mut Vec<String>,
) -> Option<&'static str> {
    const TABLE: &str = "text_config";
    const STORED: &str = "quantization_config";
    let outer = config.get("model_type").and_then(Json::as_str).unwrap_or_default().to_string();
    if hf::config_keys(&outer).is_some() {
        return None;
    }
    let others = config.iter().filter(|(key, value)| key.ends_with("_config") && value.is_object());
    let others: Vec<&str> = others.map(|(key, _)| key.as_str()).filter(|key| ![TABLE, STORED].contains(key)).collect();
    if !others.is_empty() {
        assumed.push(format!("the language model of {outer} is priced, and {} is not", others.join(", ")));
        left_out.push(others.join(", "));
    }
    let mut inner = config.get(TABLE)?.as_object()?.clone();
    for key in ["tie_word_embeddings", STORED] {
        if let Some(value) = config.get(key).filter(|_| !inner.contains_key(key)) {
            inner.insert(key.into(), value.clone());
        }
    }
    *config = inner;
    Some(TABLE)
}

/// Whether a key is of dropout that causal language models of a family read; `summary_first_dropout` and `classifier_dropout` are of
/// other heads.
pub fn has_dropout(family: &str, name: &str, value: &Json) -> bool {
    const KEYS: [&str; 11] = [
        "attention_dropout",
        "hidden_dropout",
        "attn_pdrop",
        "embd_pdrop",
        "resid_pdrop",
        "emb_pdrop",
        "embedding_dropout",
        "residual_dropout",
        "dropout_rate",
        "dropout",
        "attn_config",
    ];
    let value = if name == "attn_config" { value.get("attn_pdrop") } else { Some(value) };
    let is_read = hf::config_keys(family).is_none_or(|known| name == "attn_config" || known.fixed.contains(&name));
    is_read && KEYS.contains(&name) && value.is_some_and(|value| !value.is_null() && value.as_f64() != Some(0.0))
}

/// Whether a folder holds weights.
pub fn has_weights(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|entries| {
        entries.flatten().any(|entry| entry.path().extension().is_some_and(|ending| ending == "safetensors"))
    })
}

/// Frozen weights in few bits, which adapters train on.
fn quantised(
    config: &mut Map<String, Json>,
    file: &str,
    assumed: &mut Vec<String>,
) -> Result<Vec<(&'static str, Value)>, HfError> {
    const KEY: &str = "quantization_config";
    let Some(Json::Object(table)) = config.remove(KEY) else { return Ok(Vec::new()) };
    let is = |key: &str| table.get(key).and_then(Json::as_bool) == Some(true);
    let usual = if is("load_in_4bit") || is("load_in_8bit") { "bitsandbytes" } else { "absent" };
    let method = table.get("quant_method").and_then(Json::as_str).unwrap_or(usual);
    let base = match method {
        "bitsandbytes" if is("load_in_4bit") => "nf4",
        "bitsandbytes" if is("load_in_8bit") => "int8",
        "bitsandbytes" => return Ok(Vec::new()),
        // Published in these and trained as what they were before.
        "fp8" | "mxfp4" | "fbgemm_fp8" => {
            assumed.push(format!(
                "{KEY} ({method}) is how the weights are stored; they are priced as precision.parameters has them"
            ));
            return Ok(Vec::new());
        }
        other => {
            let missing = vec![format!("{KEY}.quant_method {other:?} (zbench has bitsandbytes, by lora.base)")];
            return Err(HfError::Unsupported { what: file.into(), missing });
        }
    };
    assumed.push(format!(
        "weights of {KEY} are frozen, so adapters of {OF_RANK}, PEFT's default, train beside them; --set lora.rank=N states another"
    ));
    let mut settings = vec![("lora.rank", Value::Integer(RANK)), ("lora.base", base.into())];
    if base == "nf4" {
        settings.push(("lora.double_quant", is("bnb_4bit_use_double_quant").into()));
        let kind = table.get("bnb_4bit_quant_type").and_then(Json::as_str).unwrap_or("fp4");
        if kind != base {
            assumed.push(format!("bnb_4bit_quant_type {kind:?} is priced as \"nf4\", which is as large"));
        }
    }
    Ok(settings)
}

/// `r` of PEFT's LoraConfig.
const RANK: i64 = 8;

/// How a sentence on that rank names it.
const OF_RANK: &str = "lora.rank = 8";

/// Whether a sentence of what was assumed is on the rank of adapters, which a stated `lora.rank` makes untrue.
pub(crate) fn is_of_rank(assumed: &str) -> bool {
    assumed.contains(OF_RANK)
}

/// The keys of [model] that make this model, fewest: those whose absence changes nothing are left out.
///
/// # Errors
/// No keys make it; the text says so.
fn settings(model: &Model) -> Result<Vec<(&'static str, Value)>, String> {
    let plain = Model { weights: None, save: None, ..model.clone() };
    let table = toml::Table::try_from(PartialModel::from(&plain))
        .map_err(|error| format!("cannot be written as TOML: {error}"))?;
    let is_made = |table: &toml::Table| {
        let made = Value::Table(table.clone()).try_into::<PartialModel>().ok();
        made.and_then(|partial| partial.resolve("model").ok()).is_some_and(|made| made == plain)
    };
    if !is_made(&table) {
        return Err(format!("makes a {:?} that no keys of [model] describe", model.family));
    }
    const CORE: [&str; 6] =
        ["family", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"];
    let mut kept = table.clone();
    for name in table.keys().filter(|name| !CORE.contains(&name.as_str())) {
        let value = kept.remove(name);
        if let Some(value) = value.filter(|_| !is_made(&kept)) {
            kept.insert(name.clone(), value);
        }
    }
    if let Some(Value::Table(form)) = kept.get_mut("form") {
        let usual = toml::Table::try_from(Form::default()).unwrap_or_default();
        form.retain(|name, value| usual.get(name) != Some(value));
    }
    let key = |name: &str| keys::find(&format!("model.{name}")).map(|key| key.name);
    Ok(kept.into_iter().filter_map(|(name, value)| Some((key(&name)?, value))).collect())
}
