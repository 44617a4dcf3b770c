//! The stages of a pipeline: what each keeps, and when it does what.

use super::{Bytes, Extra};
use serde::{Deserialize, Serialize};

/// One stage. All of its ranks do the same.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// From 0.
    pub stage: u64,
    /// Activations of the stage's largest rank.
    #[serde(default)]
    pub activations: Bytes,
    /// The passes of the stage's first rank in their order, in the mean over the timed steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<StagePass>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A pass, written as an array: kind, micro-batch, and the milliseconds since the first stage began at which it begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StagePass(pub PassKind, pub u64, pub f64, pub f64);

/// The kinds of passes, by the letters that PyTorch's schedules use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PassKind {
    /// Forward.
    #[serde(rename = "F")]
    Forward,
    /// Backward, recomputation included.
    #[serde(rename = "B")]
    Backward,
    /// The part of backward that the stage before waits for.
    #[serde(rename = "I")]
    BackwardInput,
    /// The rest of it: the gradients of weights.
    #[serde(rename = "W")]
    BackwardWeight,
}

impl PassKind {
    /// All of them, in the order of legends.
    pub const ALL: [Self; 4] = [Self::Forward, Self::Backward, Self::BackwardInput, Self::BackwardWeight];

    /// The name in a legend.
    pub fn words(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::BackwardInput => "backward, input",
            Self::BackwardWeight => "backward, weights",
        }
    }
}
