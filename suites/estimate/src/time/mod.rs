//! The time of a step: units of the model priced by the roofline, collectives by their links, and both put on a compute
//! queue and communication queues in the order in which the stack issues them. Ranks that do the same are priced once.

mod block;
mod data;
mod plan;
mod queue;
mod stages;
mod update;

use crate::collective::Collective;
use crate::job::Job;
use crate::machine::Machine;
use crate::tuning::Tuning;

#[cfg(test)]
mod tests;

/// What a step takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Time {
    /// Seconds.
    pub step: f64,
    /// Where they go, on the busiest rank; they add up to `step`.
    pub spans: Vec<Span>,
    /// What a rank sends.
    pub traffic: Vec<Traffic>,
    /// FLOPs of the model and of a step, all ranks: products once forward and twice backward, attention as far as its
    /// mask goes.
    pub model_flops: f64,
    /// The same with what is computed again.
    pub hardware_flops: f64,
    /// Tokens per second and device (of encoder and decoder together).
    pub tokens_per_second_per_device: f64,
}

impl Time {
    /// Seconds of a span; 0 where it has none.
    pub fn span(&self, kind: SpanKind) -> f64 {
        self.spans.iter().filter(|span| span.kind == kind).map(|span| span.seconds).sum()
    }
}

/// A part of the step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Which.
    pub kind: SpanKind,
    /// How long.
    pub seconds: f64,
}

/// Parts of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpanKind {
    /// Compute of forward.
    Forward,
    /// Compute of backward.
    Backward,
    /// What backward makes again.
    Recompute,
    /// Communication that compute waits for, by axis.
    Exposed(Axis),
    /// Stages that wait for others.
    Bubble,
    /// The optimizer on the device.
    Optimizer,
    /// Waiting for the host's memory, its update, or NVMe.
    Offload,
    /// Data, logging, stragglers.
    Other,
}

impl SpanKind {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            SpanKind::Forward => "forward",
            SpanKind::Backward => "backward",
            SpanKind::Recompute => "recompute",
            SpanKind::Exposed(Axis::Data) => "exposed data",
            SpanKind::Exposed(Axis::Tensor) => "exposed tensor",
            SpanKind::Exposed(Axis::Pipeline) => "exposed pipeline",
            SpanKind::Exposed(Axis::Context) => "exposed context",
            SpanKind::Exposed(Axis::Expert) => "exposed expert",
            SpanKind::Bubble => "bubble",
            SpanKind::Optimizer => "optimizer",
            SpanKind::Offload => "offload",
            SpanKind::Other => "other",
        }
    }
}

/// An axis of parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Replicas and shards.
    Data,
    /// Shares of matrices.
    Tensor,
    /// Stages.
    Pipeline,
    /// Shares of sequences.
    Context,
    /// Experts.
    Expert,
}

impl Axis {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Axis::Data => "data",
            Axis::Tensor => "tensor",
            Axis::Pipeline => "pipeline",
            Axis::Context => "context",
            Axis::Expert => "expert",
        }
    }
}

/// Collectives of one kind along one axis, of one rank and step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Along which axis.
    pub axis: Axis,
    /// Which.
    pub kind: Collective,
    /// How often.
    pub calls: f64,
    /// Bytes of all calls' payloads (as nccl-tests counts).
    pub payload: f64,
    /// Bytes that the rank sends.
    pub wire: f64,
}

/// The time of a job's step on a machine.
pub fn time(job: &Job, machine: &Machine) -> Time {
    time_with(job, machine, &Tuning::DEFAULT)
}

/// The same with other constants.
pub fn time_with(job: &Job, machine: &Machine, tuning: &Tuning) -> Time {
    plan::step(job, machine, tuning)
}
