//! When a measurement ends early: on Ctrl-C, or at its time limit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// When a measurement ends early.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Set by Ctrl-C.
    pub stop: &'a AtomicBool,
    /// The time limit of a trial.
    pub deadline: Instant,
}

/// A measurement that ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// Ctrl-C was pressed.
    #[error("stopped by Ctrl-C")]
    Interrupted,
    /// The time limit has passed.
    #[error("took longer than its time limit; raise --timeout, or measure less")]
    TimedOut,
}

impl Limits<'_> {
    /// # Errors
    /// The measurement has to end now, and why.
    pub fn check(&self) -> Result<(), Stopped> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Stopped::Interrupted);
        }
        if Instant::now() >= self.deadline { Err(Stopped::TimedOut) } else { Ok(()) }
    }
}
