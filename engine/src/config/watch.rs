//! What is looked at while a run trains, beside the loss of its steps.

use serde::{Deserialize, Serialize};

/// What is looked at while a run trains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// The loss on data that is not trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<Evaluation>,
    /// When a run that gets worse is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divergence: Option<Divergence>,
}

/// The loss on data that is not trained on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// Steps from one evaluation to the next; there is one before the first step and after the last, too.
    pub every: u64,
    /// Micro-batches of each rank in one; they are the same every time.
    pub batches: usize,
    /// Share of the source's sequences that is held out; a generator has others to draw.
    pub share: f64,
}

/// When a run that gets worse is ended, as diverged.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Divergence {
    /// The loss is this many times the smallest so far …
    pub factor: f64,
    /// … in so many steps one after the other.
    pub steps: u64,
}
