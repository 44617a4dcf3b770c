//! Runs the cells of any [`Suite`] and keeps a record of each trial: by trials ([`Runner::run`]) or, training cells, by turns
//! ([`Runner::take_turns`]). A training cell is a process of its own ([`child`], [`cell`]); so is each of its ranks where they
//! do not share one ([`processes`], [`mpirun`], [`launched`], [`rank`]).

pub mod by_turns;
pub mod cell;
pub mod child;
pub mod child_process;
mod execution;
pub mod folders;
pub mod gpu_info;
mod header;
pub mod launched;
mod lifecycle;
pub mod loading;
mod logged;
pub mod merge;
pub mod mpirun;
pub mod parity;
pub mod processes;
pub mod protocol;
pub mod rank;
pub mod record;
pub mod rescue;
mod schedule;
mod suite;
pub mod trace;
mod traced;
mod train;
mod trial_queue;
pub mod turns;
pub mod validity;

pub use execution::{Execute, Execution, Stopped};
pub use header::Header;
pub use schedule::{Runner, Summary};
pub use suite::{Observe, Suite, SuiteCell, Trial};
pub use train::{Train, is_next, written};
pub use trial_queue::Trials;

/// Seconds of each measurement of the peak: long enough for the clock to settle, short beside a cell. A debug build, whose figures mean
/// nothing, takes less.
pub const PEAK_SECONDS: f64 = if cfg!(debug_assertions) { 0.01 } else { 0.1 };
