//! When a measurement ends early: on Ctrl-C, or at its time limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Is told which part of a trial is being measured now, how many have been, and of how many.
pub type Parts = Arc<dyn Fn(&str, usize, usize) + Send + Sync>;

/// When a measurement ends early, and whom it tells how far it is.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    /// Set by Ctrl-C.
    pub stop: &'a AtomicBool,
    /// The time limit of a trial.
    pub deadline: Instant,
    /// Nobody, where it is absent.
    pub parts: Option<&'a Parts>,
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
