//! The keys of [model] that describe a model of Hugging Face.

use std::path::Path;
use toml::Value as Toml;
use zbench_config::kind::hint;
use zbench_config::{ConfigError, keys as ours};
use zbench_engine::config::Model;
use zbench_engine::hf::{self, PartialModel};

/// The keys of [model] that make this model, fewest first: those whose absence changes nothing are left out.
///
/// # Errors
/// Its blocks differ from the family's, and only `model.path` reads such.
pub fn settings(model: &Model) -> Result<Vec<(&'static str, Toml)>, String> {
    let plain = Model { weights: None, save: None, ..model.clone() };
    let mut partial = PartialModel::from(&plain);
    partial.form = None;
    let table = toml::Table::try_from(&partial).map_err(|error| format!("cannot be written as TOML: {error}"))?;
    let made = |table: &toml::Table| {
        Toml::Table(table.clone()).try_into::<PartialModel>().ok().and_then(|partial| partial.resolve("model").ok())
    };
    if made(&table).is_none_or(|made| made != plain) {
        return Err(format!(
            "{:?} has blocks here that differ from the family's usual ones (biases, norms or their order), which [model] has no keys \
             for; name the folder instead, with weights in it: --set model.path=FOLDER",
            model.family
        ));
    }
    const CORE: [&str; 6] =
        ["family", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"];
    let mut kept = table.clone();
    for name in table.keys().filter(|name| !CORE.contains(&name.as_str())) {
        let value = kept.remove(name);
        if made(&kept).is_none_or(|made| made != plain)
            && let Some(value) = value
        {
            kept.insert(name.clone(), value);
        }
    }
    let key = |name: &str| ours::find(&format!("model.{name}")).map(|key| key.name);
    Ok(kept.into_iter().filter_map(|(name, value)| Some((key(&name)?, value))).collect())
}

/// The settings that `--model` stands for: a preset, or a folder with config.json. Of a folder without weights the sizes are read.
///
/// # Errors
/// There is neither such a preset nor such a folder, or its config.json is refused.
pub fn named(given: &str, folder: &Path) -> Result<Vec<(&'static str, Toml)>, ConfigError> {
    if hf::preset(given).is_ok() {
        return Ok(vec![("model.preset", Toml::String(given.into()))]);
    }
    let about = |message: String| ConfigError::about(format!("--model {given}"), message);
    let path = Path::new(given);
    let file = if path.is_dir() { path.join("config.json") } else { path.to_path_buf() };
    let text = zbench_engine::files::named_text(&file).map_err(|error| {
        let names: Vec<&str> = hf::preset_names().collect();
        about(format!(
            "there is no such preset{}, and {} cannot be read: {error}; name a folder with config.json, or one of {}",
            hint(given, &names),
            file.display(),
            names.join(", ")
        ))
    })?;
    let has_weights = path.is_dir()
        && std::fs::read_dir(path).is_ok_and(|entries| {
            entries.flatten().any(|entry| entry.path().extension().is_some_and(|ending| ending == "safetensors"))
        });
    if has_weights {
        // The configuration's paths start at its own folder.
        let here = folder.as_os_str().is_empty() || folder == Path::new(".");
        let path =
            if here { path.to_path_buf() } else { std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()) };
        return Ok(vec![("model.path", Toml::String(path.display().to_string()))]);
    }
    let model = hf::model_from_hf(&text, &file.display().to_string()).map_err(|error| about(error.to_string()))?;
    settings(&model).map_err(about)
}
