//! The models that come with zbench.

use super::HfError;

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../configs/models/", $name, ".toml")))),*]
    };
}

/// In the binary, so that it needs no files beside it.
const PRESETS: &[(&str, &str)] = presets![
    "llama-tiny",
    "llama-32m",
    "llama-50m",
    "gpt2",
    "gpt2-medium",
    "qwen2-0.5b",
    "qwen2.5-0.5b",
    "bloom-560m",
    "qwen3-0.6b",
    "gpt2-large",
    "llama3.2-1b",
    "qwen2-1.5b",
    "qwen2.5-1.5b",
    "gpt2-xl",
    "qwen3-1.7b",
    "gemma-2b",
    "qwen2.5-3b",
    "llama3.2-3b",
    "qwen3-4b",
    "mpt-7b",
    "llama2-7b",
    "falcon-7b",
    "bloom-7b1",
    "mistral-7b",
    "mistral-7b-v0.3",
    "qwen2-7b",
    "qwen2.5-7b",
    "llama3-8b",
    "llama3.1-8b",
    "qwen3-8b",
    "gemma-7b",
    "llama2-13b",
    "qwen3-14b",
    "qwen2.5-14b",
    "mpt-30b",
    "qwen3-30b-a3b",
    "qwen3-32b",
    "qwen2.5-32b",
    "falcon-40b",
    "mixtral-8x7b",
    "llama2-70b",
    "llama3-70b",
    "llama3.1-70b",
    "qwen2-72b",
    "qwen2.5-72b",
    "mixtral-8x22b",
    "bloom-176b",
    "falcon-180b",
    "qwen3-235b-a22b",
    "llama3.1-405b",
];

/// The TOML text of a preset: keys of [`PartialModel`] at its top level.
pub fn preset(name: &str) -> Result<&'static str, HfError> {
    let found = PRESETS.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| HfError::UnknownPreset { name: name.into() })
}

/// The presets, smallest first.
pub fn preset_names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}
