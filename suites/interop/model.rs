//! The model that `--model` names.

use std::path::Path;
use toml::Value as Toml;
use zbench_config::ConfigError;
use zbench_config::foreign::{self, Described};
use zbench_config::kind::hint;
use zbench_engine::formats::hf;

/// Settings, and what was assumed for them.
#[derive(Debug, Default)]
pub struct Named {
    /// Keys of [model] and, of quantised weights, of [lora].
    pub settings: Vec<(&'static str, Toml)>,
    /// What was assumed, in sentences without their points.
    pub assumed: Vec<String>,
}

/// The settings that `--model` stands for: a preset, a folder with config.json, or such a file. Of a folder without weights the
/// sizes are read.
///
/// # Errors
/// There is neither such a preset nor such a folder, or its config.json is refused.
pub fn named(given: &str, folder: &Path) -> Result<Named, ConfigError> {
    let of = |key: &'static str, value: String| Named { settings: vec![(key, value.into())], assumed: Vec::new() };
    if hf::preset(given).is_ok() {
        return Ok(of("model.preset", given.into()));
    }
    let about = |message: String| ConfigError::about(format!("--model {given}"), message);
    let path = Path::new(given);
    let file = if path.is_dir() { path.join("config.json") } else { path.to_path_buf() };
    let text = zbench_engine::formats::files::named_text(&file).map_err(|error| {
        let names: Vec<&str> = hf::preset_names().collect();
        about(format!(
            "there is no such preset{}, and {} cannot be read: {error}; name a folder with config.json, or one of {}",
            hint(given, &names),
            file.display(),
            names.join(", ")
        ))
    })?;
    if path.is_dir() && foreign::has_weights(path) {
        // The configuration's paths start at its own folder.
        let here = folder.as_os_str().is_empty() || folder == Path::new(".");
        let path =
            if here { path.to_path_buf() } else { std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()) };
        return Ok(of("model.path", path.display().to_string()));
    }
    let source = file.display().to_string();
    let Described { settings, assumed, .. } =
        super::huggingface::described(&source, &super::json_tree(&source, &text)?)?;
    Ok(Named { settings, assumed })
}
