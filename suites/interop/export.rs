//! A cell as a configuration of another program: what its settings became there, and which have no place.

mod accelerate;
mod base;
mod deepspeed;
mod paths;
mod torchtitan;
mod view;

use super::Row;
use serde_json::Value;
use view::View;
use zbench_config::ConfigError;

pub use base::{Base, onto};
pub(crate) use torchtitan::NEVER;

/// Whose configurations are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// DeepSpeed's JSON
    #[value(name = "deepspeed")]
    DeepSpeed,
    /// accelerate's YAML
    Accelerate,
    /// torchtitan's TOML, of its release 0.2.2
    Torchtitan,
}

impl Target {
    /// As people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Target::DeepSpeed => "DeepSpeed",
            Target::Accelerate => "accelerate",
            Target::Torchtitan => "torchtitan",
        }
    }
}

/// FSDP moves weights and optimizer to the host together, and no activations.
const FSDP_HOMES: [(&str, &str); 3] = [
    ("memory.offload_optimizer", "none|host"),
    ("memory.offload_parameters", "=memory.offload_optimizer"),
    ("memory.offload_activations", "none"),
];

impl Target {
    /// Values of a way to split the work that the program's file can say: one of several that `|` divides, or that of another key
    /// behind `=`. Keys that are not here are free.
    pub fn ways(self) -> Vec<(&'static str, &'static str)> {
        match self {
            // It has stages in the model's code alone, and ranks of a sequence exchange heads there.
            Target::DeepSpeed => {
                vec![("parallel.pipeline", "1"), ("parallel.context", "1"), ("parallel.sequence", "1")]
            }
            Target::Accelerate => {
                let one = [("parallel.pipeline", "1"), ("parallel.expert", "1"), ("parallel.sequence", "1")];
                [&one[..], &[("memory.checkpointing", "none|full")], &FSDP_HOMES].concat()
            }
            Target::Torchtitan => {
                let policies = ("memory.checkpointing", "none|selective|full");
                [&[("parallel.sequence", "=parallel.tensor"), policies][..], &FSDP_HOMES].concat()
            }
        }
    }
}

/// A file, and a row for each setting of the cell.
#[derive(Clone, Debug)]
pub struct Exported {
    /// The file.
    pub text: String,
    /// What became of each setting.
    pub rows: Vec<Row>,
    /// What a reader must know beside the rows.
    pub notes: Vec<String>,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A cell that cannot be written for a program at all.
    #[error("{0}")]
    Cannot(String),
    /// The file that it was to be put onto.
    #[error(transparent)]
    Base(#[from] ConfigError),
}

/// Writes a cell, as records have it; `name` is said in the file.
///
/// # Errors
/// The cell has no training in it, or a strategy of which the program has not even the like.
pub fn export(cell: &Value, name: &str, target: Target) -> Result<Exported, ExportError> {
    write(cell, name, target, Like::Any)
}

/// How accelerate's file is to say it, where there are several ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Like {
    /// The plainest.
    Any,
    /// All that is split is left to DeepSpeed.
    DeepSpeed,
    /// By the keys of FSDP's version 2.
    Fsdp2,
}

fn write(cell: &Value, name: &str, target: Target, like: Like) -> Result<Exported, ExportError> {
    let mut view = View::new(cell);
    if view.text("parallel.strategy").is_empty() || view.count("train.micro_batch").is_none() {
        return Err(ExportError::Cannot(
            "it is no training cell, and has no strategy and batch; name a record or a configuration of suite train"
                .into(),
        ));
    }
    let text = match target {
        Target::DeepSpeed => deepspeed::write(&mut view),
        Target::Accelerate => accelerate::write(&mut view, name, like)?,
        Target::Torchtitan => torchtitan::write(&mut view, name),
    };
    Ok(view.finish(text, target.name()))
}
