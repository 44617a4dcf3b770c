//! The flags of `zbench checkpoint`.

use crate::bench::args::RunFlags;
use clap::Args;
use std::path::PathBuf;

/// `zbench checkpoint`.
#[derive(Args, Clone, Debug)]
pub struct CheckpointArgs {
    /// A configuration with suite = "checkpoint": measures what the notebook does not hold yet, as `zbench grid FILE` does
    pub file: Option<PathBuf>,
    /// What trains: a preset, a folder with config.json, or that file [default: llama-32m]
    #[arg(long, value_name = "PRESET|DIR", conflicts_with = "file")]
    pub model: Option<String>,
    /// Ranks that write, several with commas [default: 4]
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "file")]
    pub ranks: Vec<String>,
    /// Strategies that write, several with commas [default: zero3]
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "file")]
    pub strategy: Vec<String>,
    /// sharded, full; several with commas [default: sharded]
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "file")]
    pub layout: Vec<String>,
    /// Who loads beside those that wrote, as ddp:1,hsdp:4/2 [default: ddp:1, and hsdp on as many ranks]
    #[arg(long, value_name = "STRATEGY:RANKS", value_delimiter = ',', conflicts_with = "file")]
    pub load_as: Vec<String>,
    /// Folder on the disk that is measured; what is made there is removed again [default: the notebook's]
    #[arg(long, value_name = "DIR", conflicts_with = "file")]
    pub dir: Option<String>,
    /// Measurements in one trial [default: 3]
    #[arg(long, value_name = "N", conflicts_with = "file")]
    pub repeats: Option<String>,
    /// Tokens of a sequence: how long a step takes beside a save [default: 64]
    #[arg(long, value_name = "N", conflicts_with = "file")]
    pub seq_len: Option<String>,
    /// Types, as bf16-mixed [default: f32]
    #[arg(long, value_name = "PRESET", conflicts_with = "file")]
    pub precision: Option<String>,
    /// Do not save while training goes on
    #[arg(long, conflicts_with = "file")]
    pub no_async: bool,
    /// Through the page cache instead of past it
    #[arg(long, conflicts_with = "file")]
    pub buffered: bool,
    /// What every suite has.
    #[command(flatten)]
    pub run: RunFlags,
}
