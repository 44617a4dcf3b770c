//! The sections that name other files: machine profiles, models, data.

use super::{Context, Refusal, Values};
use crate::config::keys;
use crate::config::kind::number;
use crate::config::units;
use std::path::{Path, PathBuf};
use toml::Value;
use zbench_engine::config::{Data, Model, TokenType};
use zbench_engine::hf::{self, HfError, PartialModel};

/// A machine to plan for.
pub(super) struct Profile {
    pub name: String,
    pub device: String,
    pub memory: Option<u64>,
}

/// Reads machines/NAME.toml beside the configuration.
pub(super) fn profile(values: &Values, context: &Context) -> Result<Option<Profile>, Refusal> {
    let Some(name) = values.given_text("hardware.profile") else { return Ok(None) };
    let refuse = |message: String| values.refuse("hardware.profile", &[], message);
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
        return Err(refuse(format!("\"{name}\" is no name of a profile; write letters, digits and dashes")));
    }
    let path = context.folder.join("machines").join(format!("{name}.toml"));
    let text = std::fs::read_to_string(&path).map_err(|error| {
        refuse(format!("\"{name}\": {} cannot be read: {error}; name a file of that folder", path.display()))
    })?;
    let bad = |what: &str| refuse(format!("\"{name}\": {}: {what}", path.display()));
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| bad(error.message()))?;
    let known = ["device", "memory", "about", "collectives", "ceilings", "operations", "corrections"];
    if let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(bad(&format!("unknown key {key}; a profile has device, memory, about, collectives and ceilings")));
    }
    // Written by `zbench allreduce --save`, for what prices time.
    if table.get("collectives").is_some_and(|fits| !fits.is_table()) {
        return Err(bad("collectives must be a table, as zbench allreduce --save writes it"));
    }
    if let Some(Err(wrong)) = table.get("ceilings").map(crate::calibrate::profile::of_value) {
        return Err(bad(&wrong));
    }
    if let Some(Err(wrong)) = table.get("operations").map(crate::calibrate::times::of_value) {
        return Err(bad(&wrong));
    }
    let device = match table.get("device").and_then(Value::as_str) {
        Some(device @ ("cpu" | "cuda")) => device.to_string(),
        _ => return Err(bad("device must be \"cpu\" or \"cuda\"")),
    };
    let memory = match table.get("memory") {
        None => None,
        Some(value) => Some(byte_size(value).ok_or_else(|| bad("memory must be a size such as \"80GiB\""))?),
    };
    Ok(Some(Profile { name, device, memory }))
}

pub(super) fn byte_size(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => units::bytes(text),
        other => number(other).and_then(|x| units::bytes(&x.to_string())),
    }
}

pub(super) fn seconds(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) => units::seconds(text),
        other => number(other),
    }
}

/// The model of a preset or a folder, with the keys of [model] over it.
pub(super) fn model(values: &Values, context: &Context) -> Result<Model, Refusal> {
    let keys: Vec<&'static str> = values.settings.keys().copied().filter(|key| key.starts_with("model.")).collect();
    let foreign = |key: &str, error: HfError| {
        let (key, message) = match error {
            HfError::Field { what, field, reason } if what == "model" => (format!("model.{field}"), reason),
            other => (key.to_string(), other.to_string()),
        };
        // The field may be a default; the nearest key that the file has is then the place to look.
        let known = keys::find(&key).map_or("model.rope_scaling", |key| key.name);
        Refusal { key: key.clone(), ..values.refuse(known, &keys, message) }
    };
    let (preset, path) = (values.given_text("model.preset"), values.given_text("model.path"));
    let preset = if keys.iter().all(|key| ["model.save", "model.dropout"].contains(key)) {
        Some("llama-32m".into())
    } else {
        preset
    };
    let (mut base, mut weights) = (PartialModel::default(), None);
    match (preset, path) {
        (Some(_), Some(_)) => {
            let message = "stands beside model.preset; keep one of them";
            return Err(values.refuse("model.path", &keys, message));
        }
        (Some(name), None) => {
            let text = hf::preset(&name).map_err(|error| {
                let HfError::UnknownPreset { .. } = &error else { return foreign("model.preset", error) };
                let names: Vec<&str> = hf::preset_names().collect();
                values.refuse(
                    "model.preset",
                    &[],
                    format!("there is no preset \"{name}\"; there are {}", names.join(", ")),
                )
            })?;
            base = toml::from_str(text).map_err(|error| values.refuse("model.preset", &[], error.to_string()))?;
        }
        (None, Some(path)) => {
            let folder = absolute(&context.folder.join(path));
            let file = folder.join("config.json");
            let json = std::fs::read_to_string(&file).map_err(|error| {
                let message = format!("{} cannot be read: {error}; name a folder with config.json", file.display());
                values.refuse("model.path", &[], message)
            })?;
            let read = match values.given("model.dropout") {
                Some(_) => hf::model_from_hf_without_dropout,
                None => hf::model_from_hf,
            };
            let model = read(&json, &file.display().to_string()).map_err(|e| foreign("model.path", e))?;
            base = PartialModel::from(&model);
            weights = Some(folder);
        }
        (None, None) => {}
    }
    let mut stated = toml::Table::new();
    for key in keys.iter().filter(|key| !["model.preset", "model.path", "model.save", "model.dropout"].contains(key)) {
        if let Some(value) = values.given(key) {
            stated.insert(key.trim_start_matches("model.").into(), value.clone());
        }
    }
    let stated: PartialModel = Value::Table(stated)
        .try_into()
        .map_err(|e: toml::de::Error| values.refuse("model.rope_scaling", &keys, e.message()))?;
    let mut model = stated.or(base).resolve("model").map_err(|error| foreign("model.family", error))?;
    model.weights = weights;
    model.save = values.given_text("model.save").map(|path| absolute(&context.folder.join(path)));
    Ok(model)
}

/// Where tokens come from; a key that has no effect is refused.
pub(super) fn data(values: &Values, context: &Context) -> Result<Data, Refusal> {
    let source = values.text("data.source");
    let unused = |key: &str| {
        let message = format!("has no effect when data.source is \"{source}\"; leave it out, or change data.source");
        values.refuse(key, &["data.source"], message)
    };
    let path = |key: &str| -> Result<PathBuf, Refusal> {
        let given = values.given_text(key);
        let text = given.ok_or_else(|| {
            values.refuse(key, &["data.source"], format!("is missing; data.source = \"{source}\" needs a file"))
        })?;
        Ok(absolute(&context.folder.join(text)))
    };
    let given = |key: &str| values.given(key).is_some();
    // In a grid over sources the keys of the other sources have to stand somewhere.
    let varies = values.settings.get("data.source").is_some_and(|source| source.from_grid);
    let useless: &[&str] = match source.as_str() {
        "text" => &["data.dtype"],
        "tokens" => &["data.tokenizer"],
        _ => &["data.path", "data.dtype", "data.tokenizer"],
    };
    if let Some(key) = useless.iter().find(|key| given(key)).filter(|_| !varies) {
        return Err(unused(key));
    }
    Ok(match source.as_str() {
        "text" => Data::Text { path: path("data.path")?, tokenizer: path("data.tokenizer")? },
        "tokens" => {
            let dtype = if values.text("data.dtype") == "u16" { TokenType::U16 } else { TokenType::U32 };
            Data::Tokens { path: path("data.path")?, dtype }
        }
        _ => Data::Synthetic {},
    })
}

/// From the root and without `.` parts: one name for a file, which a record can be repeated with from any directory. A
/// record is text, so where the current directory's name is none the path stays relative.
pub(super) fn absolute(path: &Path) -> PathBuf {
    let tidy = || path.components().filter(|part| !matches!(part, std::path::Component::CurDir)).collect();
    std::path::absolute(path).ok().filter(|path| path.to_str().is_some()).unwrap_or_else(tidy)
}
