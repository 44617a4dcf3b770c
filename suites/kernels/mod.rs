//! The suites `gemm` and `attention`: kernels by themselves, over shapes, types and threads, against the ceiling of the
//! cores. A configuration or flags ([`flags`]) become [`cells`](resolve::expand), each with a question; [`run`] asks the
//! questions that the notebook has no answer to, one record each.

pub mod args;
pub mod attention;
pub mod ceiling;
pub mod clock;
pub mod flags;
pub mod gemm;
pub mod model;
pub mod numbers;
mod oracle;
pub mod record;
pub mod resolve;
pub mod run;
#[cfg(test)]
mod tests;

use crate::checkpoint::CheckpointCell;
use clock::{Limits, Stopped};
use serde::{Deserialize, Serialize};
use std::path::Path;
use zbench_kernels::{ArenaError, KernelError, OutOfMemory};
use zbench_reports::bench::{Ceiling, Timing};
use zbench_runner::protocol::Ended;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The buffers do not fit.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// No memory to begin with.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// A kernel refused.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Somebody stopped it, or its time is over.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// There is no such GPU.
    #[error("hardware.device = \"cuda\": {0}")]
    Device(String),
    /// Fewer threads than asked for.
    #[error("the system gave {given} of {wanted} threads; ask for fewer")]
    Threads {
        /// Asked for.
        wanted: usize,
        /// There are.
        given: usize,
    },
    /// A kernel did not come back: a defect of ours.
    #[error("the kernel panicked: {0}; this is a bug")]
    Panicked(String),
    /// A process of its own ended otherwise.
    #[error("{}", .0.reason)]
    Ended(Ended),
    /// Not enough memory at this moment.
    #[error("takes {needed}, and {available} of memory are free now; end other programs, or ask for less")]
    Busy {
        /// What it takes.
        needed: String,
        /// What there is.
        available: String,
    },
}

impl From<Ended> for BenchError {
    fn from(ended: Ended) -> BenchError {
        BenchError::Ended(ended)
    }
}

/// What is asked of a kernel, with everything that its answer depends on.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// A matrix product.
    Gemm(gemm::GemmCell),
    /// Attention.
    Attention(attention::AttentionCell),
    /// Training checkpoints.
    Checkpoint(Box<CheckpointCell>),
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Of each kernel and pass.
    pub timings: Vec<Timing>,
    /// What the cores can do.
    pub ceiling: Ceiling,
    /// Remarks for the reader.
    pub notes: Vec<String>,
    /// What is wrong with a result.
    pub wrong: Option<String>,
    /// Numbers beside those of the timings, or why they cannot be stated.
    pub metrics: Vec<(String, Result<f64, String>)>,
    /// Everything behind them: a part of the record, with its name.
    pub section: Option<(String, serde_json::Value)>,
}

/// How a kernel is timed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Method {
    /// Samples are taken for this long.
    pub seconds: f64,
    /// And there are this many at least.
    pub iterations: u64,
    /// Calls before them, for this long.
    pub warmup: f64,
}

/// What computes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// `cpu`, or `cuda`.
    pub device: String,
    /// Threads that share an operation.
    pub threads_per_rank: usize,
}

impl Device {
    /// For a reader.
    pub fn label(&self) -> String {
        match (self.device.as_str(), self.threads_per_rank) {
            ("cuda", _) => "GPU".into(),
            (_, 1) => "1 thread".into(),
            (_, threads) => format!("{threads} threads"),
        }
    }
}

impl Question {
    /// As plain data: equal for equal questions.
    pub fn cell(&self) -> serde_json::Value {
        let value = match self {
            Question::Gemm(cell) => serde_json::to_value(cell),
            Question::Attention(cell) => serde_json::to_value(cell),
            Question::Checkpoint(cell) => Ok(cell.plain()),
        };
        value.unwrap_or_default()
    }

    /// From plain data; absent where this version does not know it.
    pub fn of_cell(cell: &serde_json::Value) -> Option<Question> {
        let read = match cell.get("suite").and_then(serde_json::Value::as_str)? {
            "gemm" => serde_json::from_value(cell.clone()).map(Question::Gemm),
            "attention" => serde_json::from_value(cell.clone()).map(Question::Attention),
            "checkpoint" => return CheckpointCell::of_plain(cell).map(|cell| Question::Checkpoint(Box::new(cell))),
            _ => return None,
        };
        // A record may be edited; what cannot be computed is no question.
        read.ok().filter(|question| question.needs().is_some())
    }

    /// Whether a GPU computes.
    pub fn is_on_cuda(&self) -> bool {
        match self {
            Question::Gemm(cell) => cell.hardware.device == "cuda",
            Question::Attention(cell) => cell.hardware.device == "cuda",
            Question::Checkpoint(_) => false,
        }
    }

    /// The hash of the cell.
    pub fn key(&self) -> String {
        blake3::hash(zbench_config::grid::canonical(&self.cell()).as_bytes()).to_hex()[..16].to_string()
    }

    /// For a reader.
    pub fn label(&self) -> String {
        match self {
            Question::Gemm(cell) => cell.label(),
            Question::Attention(cell) => cell.label(),
            Question::Checkpoint(cell) => cell.label(),
        }
    }

    /// Bytes of the smallest set of buffers, scratch included; absent where that is more than a number holds.
    pub fn needs(&self) -> Option<u64> {
        match self {
            Question::Gemm(cell) => cell.needs(),
            Question::Attention(cell) => cell.needs(),
            Question::Checkpoint(cell) => cell.needs(),
        }
    }

    /// Measures; files that this needs are made in `folder` and removed again.
    ///
    /// # Errors
    /// As [`BenchError`] says. A wrong result is an answer.
    pub fn ask(&self, limits: &Limits<'_>, folder: &Path) -> Result<Answer, BenchError> {
        match self {
            Question::Gemm(cell) => gemm::measure(cell, limits),
            Question::Attention(cell) => attention::measure(cell, limits),
            Question::Checkpoint(cell) => crate::checkpoint::ask(cell, limits, folder),
        }
    }
}
