//! What is noted of a run: times, traces, results.

pub mod meter;
pub mod outcome;
pub mod parity;
pub(crate) mod pass_times;
pub mod trace;
