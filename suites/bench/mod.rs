//! What the suites beside training have in common: a [`BenchSpec`] says what to measure, a [`BenchResult`] what came of it, and
//! [`Bench`] is the [`Suite`](zbench_runner::Suite) of all of them.

pub mod args;
mod limits;
pub(crate) mod record;
mod scratch;
mod suite;

pub use limits::{Limits, Stopped};
pub use record::{seen, watched};
pub use scratch::Scratch;
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

/// One measurement, with everything that its result depends on.
pub trait BenchSpec: Send + Sync {
    /// As plain data: equal for equal measurements. It names its suite.
    fn plain(&self) -> Value;
    /// The key of its records.
    fn key(&self) -> String {
        zbench_config::grid::plain_key(&self.plain())
    }
    /// For a reader.
    fn label(&self) -> String;
    /// Bytes of memory at least; absent where that is more than a number holds.
    fn needs(&self) -> Option<u64>;
    /// What of the configuration asks for a GPU, as it is written there; absent where none is needed.
    fn asks_for_gpu(&self) -> Option<String> {
        None
    }
    /// Measures; files that this needs are made in `folder` and removed again.
    ///
    /// # Errors
    /// As [`BenchError`] says. Wrong data is a result.
    fn measure(&self, limits: &Limits<'_>, folder: &Path) -> Result<BenchResult, BenchError>;
}

/// Specifications of one combination of settings, and a remark for the reader.
pub type Specs = (Vec<Box<dyn BenchSpec>>, Option<String>);

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BenchResult {
    /// Of each kernel and pass.
    pub timings: Vec<Timing>,
    /// What the cores can do.
    pub ceiling: Ceiling,
    /// Remarks for the reader.
    pub notes: Vec<String>,
    /// The record of the process that measured, whose results are taken over.
    pub record: Option<Box<Record>>,
    /// What is wrong with a result.
    pub wrong: Option<String>,
    /// Numbers beside those of the timings, or why they cannot be stated.
    pub metrics: Vec<(String, Result<f64, String>)>,
    /// Everything behind them: a part of the record, with its name.
    pub section: Option<(String, serde_json::Value)>,
}
