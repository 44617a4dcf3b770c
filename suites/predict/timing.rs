//! The predicted time of a step.

use crate::band::Band;
use zbench_engine::observe::outcome::PipelineTime;
use zbench_reports::OrderedMap;

/// The time of a step, and what follows from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timing {
    /// Milliseconds.
    pub step_ms: f64,
    /// Its parts, milliseconds.
    pub spans: OrderedMap<f64>,
    /// Where the engine's stages are simulated.
    pub pipeline: Option<PipelineTime>,
    /// Of all ranks.
    pub tokens_per_second: f64,
    /// FLOPs of a step and rank that the model needs.
    pub model_flops_per_rank: f64,
    /// Those that are executed.
    pub hardware_flops_per_rank: f64,
    /// Dense FLOP/s of a device in the type of its products, where it is known.
    pub peak: Option<f64>,
    /// What it rests on.
    pub source: String,
    /// Error to be expected, as a share, where records say one.
    pub error: Option<f64>,
    /// How far speeds that were predicted like this one were off, where published results say it.
    pub band: Option<Band>,
    /// Traits of the job that no published speed has, as the end of a sentence; empty if none is missing.
    pub lacks: String,
    /// What the cell leaves open and how its time is priced, in a sentence without its stop; else empty.
    pub assumed: String,
}
