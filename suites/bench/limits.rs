//! What ends a measurement early.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What ends a measurement early.
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
    /// Somebody asked.
    #[error("stopped by Ctrl-C")]
    Asked,
    /// The time limit.
    #[error("took longer than its time limit; raise --timeout, or measure less")]
    Late,
}

impl Limits<'_> {
    /// Whether to go on.
    ///
    /// # Errors
    /// Not, and why.
    pub fn check(&self) -> Result<(), Stopped> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Stopped::Asked);
        }
        if Instant::now() >= self.deadline { Err(Stopped::Late) } else { Ok(()) }
    }
}
