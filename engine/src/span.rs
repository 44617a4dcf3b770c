//! The parts that a step's time is booked under.

use crate::actions::Action;
use serde::{Deserialize, Serialize};

/// The parts of a step's time; they add up to the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Span {
    /// Layers forward, the head's loss included.
    Forward,
    Backward,
    /// Forward repeated for backward.
    Recompute,
    /// Waiting for weights to be gathered.
    ExposedGather,
    /// Waiting for gradients to be reduced.
    ExposedReduce,
    /// Waiting for the loss and the norm to be agreed on.
    ExposedAgree,
    Optimizer,
    /// Moving state between device, host and disk.
    Offload,
    Data,
    Other,
}

impl Span {
    /// All of them, in the order of reports.
    pub const ALL: [Span; 10] = [
        Span::Forward,
        Span::Backward,
        Span::Recompute,
        Span::ExposedGather,
        Span::ExposedReduce,
        Span::ExposedAgree,
        Span::Optimizer,
        Span::Offload,
        Span::Data,
        Span::Other,
    ];

    /// The name in records.
    pub const fn name(self) -> &'static str {
        match self {
            Span::Forward => "forward",
            Span::Backward => "backward",
            Span::Recompute => "recompute",
            Span::ExposedGather => "exposed_gather",
            Span::ExposedReduce => "exposed_reduce",
            Span::ExposedAgree => "exposed_agree",
            Span::Optimizer => "optimizer",
            Span::Offload => "offload",
            Span::Data => "data",
            Span::Other => "other",
        }
    }
}

/// Who is told what the time of a step goes to.
pub trait Spans {
    /// What follows is this.
    fn enter(&mut self, span: Span);

    /// What follows belongs to this action, from the next span on.
    fn during(&mut self, action: Option<Action>);
}

/// Nobody: for dry runs.
impl Spans for () {
    fn enter(&mut self, _: Span) {}

    fn during(&mut self, _: Option<Action>) {}
}
