//! The flags of `zbench gemm` and `zbench attention`.

use crate::bench::args::RunFlags;
use clap::Args;
use std::path::PathBuf;

/// `zbench gemm`.
#[derive(Args, Clone, Debug)]
pub struct GemmArgs {
    /// A configuration with suite = "gemm": measures what the notebook does not hold yet, as `zbench grid FILE` does
    pub file: Option<PathBuf>,
    /// Products, several with commas: rows and columns of C, length of the sums [default: 256 to 2048 cubed, or --model's]
    #[arg(long, value_name = "MxNxK", value_delimiter = ',', conflicts_with_all = ["file", "model"])]
    pub shape: Vec<String>,
    /// Every distinct product of a model's training step: a preset, a folder with config.json, or that file
    #[arg(long, value_name = "PRESET|DIR", conflicts_with = "file")]
    pub model: Option<String>,
    /// Tokens of a sequence of that step [default: 512]
    #[arg(long, value_name = "N", requires = "model")]
    pub seq_len: Option<String>,
    /// Sequences of a micro-batch of that step [default: 1]
    #[arg(long, value_name = "N", requires = "model")]
    pub micro_batch: Option<String>,
    /// Run that step and show every kernel of it, attention and passes too, against what the peak and memory allow
    #[arg(long, requires = "model", conflicts_with_all = [
        "buffers", "seconds", "iters", "warmup", "trials", "fresh", "any_environment", "dry_run", "max_cells",
    ])]
    pub bound: bool,
    /// Type of A and B: f32, bf16, f16; several with commas [default: f32,bf16]
    #[arg(long, value_name = "TYPE", value_delimiter = ',', conflicts_with = "file")]
    pub dtype: Vec<String>,
    /// Type of C [default: that of A and B]
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["file", "model"])]
    pub output: Option<String>,
    /// How A and B are stored: nn, nt, tn, tt; several with commas [default: nt]
    #[arg(long, value_name = "LAYOUT", value_delimiter = ',', conflicts_with_all = ["file", "model"])]
    pub layout: Vec<String>,
    /// Add the product to C
    #[arg(long, conflicts_with_all = ["file", "model"])]
    pub accumulate: bool,
    /// Buffers of successive calls: rotate (other memory each time, more than the caches hold) or hot [default: rotate]
    #[arg(long, value_name = "HOW", conflicts_with = "file")]
    pub buffers: Option<String>,
    /// What both suites have.
    #[command(flatten)]
    pub common: Common,
}

/// `zbench attention`.
#[derive(Args, Clone, Debug)]
pub struct AttentionArgs {
    /// A configuration with suite = "attention": measures what the notebook does not hold yet, as `zbench grid FILE` does
    pub file: Option<PathBuf>,
    /// Sequences [default: 1]
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "file")]
    pub batch: Vec<String>,
    /// Query heads [default: 8]
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "file")]
    pub heads: Vec<String>,
    /// Key and value heads [default: as --heads]
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "file")]
    pub kv_heads: Vec<String>,
    /// Elements of a head [default: 64]
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "file")]
    pub head_dim: Vec<String>,
    /// Tokens of a sequence, several with commas [default: 512,1024,2048]
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "file")]
    pub seq_len: Vec<String>,
    /// Tokens that one sees, itself the last [default: 0, all before it]
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "file")]
    pub window: Vec<String>,
    /// Type: f32, bf16, f16; several with commas [default: f32,bf16]
    #[arg(long, value_name = "TYPE", value_delimiter = ',', conflicts_with = "file")]
    pub dtype: Vec<String>,
    /// What is timed: forward, backward, both [default: both]
    #[arg(long, value_name = "PASS", conflicts_with = "file")]
    pub pass: Option<String>,
    /// flash, naive, both, flash-hopper (beside flash, on Hopper GPUs) [default: both]
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    pub kernel: Option<String>,
    /// What both suites have.
    #[command(flatten)]
    pub common: Common,
}

/// Flags of both.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// What computes: cpu, cuda (the first GPU), or both with a comma [default: cpu]
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "file")]
    pub device: Vec<String>,
    /// Threads that share an operation, several with commas [default: all cores]
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "file")]
    pub threads: Vec<String>,
    /// Samples are taken for this long [default: 0.5]
    #[arg(long, value_name = "SECONDS", conflicts_with = "file")]
    pub seconds: Option<String>,
    /// And there are at least as many [default: 10]
    #[arg(long, value_name = "N", conflicts_with = "file")]
    pub iters: Option<String>,
    /// Calls before them, for this long [default: 0.1]
    #[arg(long, value_name = "SECONDS", conflicts_with = "file")]
    pub warmup: Option<String>,
    /// What every suite has.
    #[command(flatten)]
    pub run: RunFlags,
}
