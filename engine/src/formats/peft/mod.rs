//! Adapters as PEFT keeps them: a folder with `adapter_config.json` and `adapter_model.safetensors`.
//!
//! The config is a foreign file, as a model's `config.json` is: keys that do not change the mathematics are ignored, and
//! whatever would change it and is not implemented here is refused by name. A key that is not known may say anything; it
//! is refused unless its value is null, false, zero or empty.

mod read;
mod targets;
mod write;

pub use read::{parse_config, read_config};
pub use targets::{all_linear, default_feedforward, default_targets, find_targets, target_names};
pub use write::config_json;

use std::path::PathBuf;

pub const WEIGHTS: &str = "adapter_model.safetensors";
pub const CONFIG: &str = "adapter_config.json";

/// What PEFT calls a tensor of ours.
pub fn tensor_name(name: &str) -> String {
    format!("base_model.model.{name}")
}

/// Why a folder of adapters cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeftError {
    #[error("{}: cannot be read: {reason}; name a folder with {CONFIG} and {WEIGHTS}", .file.display())]
    Io { file: PathBuf, reason: String },
    #[error("{what}: not an {CONFIG}: {reason}; fetch the file again")]
    Json { what: String, reason: String },
    #[error("{what}: {field}: {reason}")]
    Field { what: String, field: String, reason: String },
    #[error("{what}: these adapters need what zbench does not have: {}", .missing.join("; "))]
    Unsupported {
        what: String,
        /// Each key with its value, and what is there instead.
        missing: Vec<String>,
    },
}
