//! What the suites beside training have in common: a [`BenchSpec`] describes a measurement, a [`BenchResult`] holds its results,
//! and [`Bench`] is the [`Suite`](zbench_runner::Suite) that runs all of them.

pub mod args;
mod limits;
pub(crate) mod process;
pub(crate) mod record;
mod scratch;
mod suite;

pub use limits::{Limits, Parts, Stopped};
pub use record::{seen, watched};
pub use scratch::{Scratch, private_folder};
pub use suite::{Bench, BenchCell};

use serde_json::Value;
use std::path::Path;
use zbench_kernels::{ArenaError, KernelError, OutOfMemory};
use zbench_reports::bench::{Ceiling, Timing};
use zbench_reports::record::Record;
use zbench_runner::protocol::Ended;

/// Why a measurement has no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The buffers do not fit in memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// No arena could be made.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// A kernel returned an error.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// It ended early.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// There is no such GPU.
    #[error("hardware.device = \"cuda\": {0}")]
    Device(String),
    /// The system started fewer threads than requested.
    #[error("the system gave {given} of {wanted} threads; ask for fewer")]
    Threads {
        /// Threads requested.
        wanted: usize,
        /// Threads started.
        given: usize,
    },
    /// A kernel panicked, which is a bug.
    #[error("the kernel panicked: {0}; this is a bug")]
    Panicked(String),
    /// The child process that measured ended without a result.
    #[error("{}", .0.reason)]
    Ended(Ended),
    /// Steps of training did not run.
    #[error("{0}")]
    Step(String),
    /// Not enough memory is free at this moment.
    #[error("takes {needed}, and {available} of memory are free now; end other programs, or ask for less")]
    Busy {
        /// Memory needed.
        needed: String,
        /// Memory free.
        available: String,
    },
}

impl From<Ended> for BenchError {
    fn from(ended: Ended) -> BenchError {
        BenchError::Ended(ended)
    }
}

/// A measurement, with everything that its result depends on.
pub trait BenchSpec: Send + Sync {
    /// As JSON, equal for equal measurements. It names its suite.
    fn plain(&self) -> Value;
    /// The key of its records.
    fn key(&self) -> String {
        zbench_config::grid::plain_key(&self.plain())
    }
    /// A short name for a reader.
    fn label(&self) -> String;
    /// Bytes of memory needed at least; `None` if the number overflows.
    fn needs(&self) -> Option<u64>;
    /// The setting that asks for a GPU, as written in the configuration; `None` if no GPU is needed.
    fn asks_for_gpu(&self) -> Option<String> {
        None
    }
    /// Measures. Files are created in `folder` and removed afterwards. Wrong data is a result and not an error.
    fn measure(&self, limits: &Limits<'_>, folder: &Path) -> Result<BenchResult, BenchError>;
}

/// The measurements of one combination of settings, and a remark for the reader.
pub type Specs = (Vec<Box<dyn BenchSpec>>, Option<String>);

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BenchResult {
    /// One for each kernel and pass.
    pub timings: Vec<Timing>,
    /// The highest rate that the device reaches.
    pub ceiling: Ceiling,
    /// Remarks for the reader.
    pub notes: Vec<String>,
    /// The record of the child process that measured; its results are copied.
    pub record: Option<Box<Record>>,
    /// The first wrong result, in words.
    pub wrong: Option<String>,
    /// Further numbers, or the reason why one is absent.
    pub metrics: Vec<(String, Result<f64, String>)>,
    /// The data behind the metrics: a section of the record, with its name.
    pub section: Option<(String, Value)>,
}
