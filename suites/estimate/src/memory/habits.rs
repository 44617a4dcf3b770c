//! What of a framework's memory applies to a job.

use super::Stage;
use crate::job::{Job, Kind, Loss, Place};

/// What a framework keeps beside the model in a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Habits {
    /// Bytes of libraries' workspaces that the allocator hands out.
    pub workspace: f64,
    /// Bytes that the allocator holds over what it handed out, as a share of what is not state: blocks that do not fit again.
    pub slack: f64,
    /// Bytes on the device that no allocator knows: context, communication library.
    pub context: f64,
    /// Bytes per logit at the loss: its 16-bit result, the f32 copy, what log-softmax keeps, gradients.
    pub logit: f64,
    /// Bytes per element that a norm keeps beside its input.
    pub norm: f64,
    /// Copies of the MLP's width that its activation keeps beside its input (gate and up of a gated one).
    pub activation: f64,
    /// The ends of the model stay gathered over a step.
    pub root: bool,
    /// Gathered units at once.
    pub units: f64,
    /// Parameters that stay gathered, where single matrices are and not blocks: those that are used again soon.
    pub live: Option<f64>,
    /// Weights stay gathered and gradients whole from a step's first micro-batch to its last.
    pub stages: bool,
    /// Bytes per parameter of a rank's own share during the update, beside what is kept.
    pub update: f64,
    /// Parameters that are updated at once.
    pub update_group: f64,
    /// Gradients are given back after the update, and made anew in backward.
    pub late_gradients: bool,
    /// Copies of all gradients in buckets, where replicas reduce them (PyTorch's DDP).
    pub copied: f64,
    /// Tensors as wide as the residual stream that a pipeline keeps per micro-batch in flight, beside those of blocks.
    pub piped: f64,
    /// Bytes of buckets in which gradients are reduced and weights are gathered.
    pub buckets: f64,
}

/// Those of a job's framework.
pub fn habits(job: &Job) -> Habits {
    let of = &job.framework.memory;
    let model = &job.model;
    let fused = job.loss != Loss::Logits;
    let offloaded = job.offload.optimizer != Place::Device;
    let sharded = job.sharding.optimizer > 1 || job.sharding.parameters > 1 || offloaded;
    let grouped = model.experts.as_ref().is_some_and(|experts| experts.top > 1);
    let loss = |whole: f64, with_fused: Option<f64>| with_fused.filter(|_| fused).unwrap_or(whole);
    let shared = of.logit.tensor_parallel.filter(|_| job.degrees.tensor > 1);
    let logit = shared.unwrap_or(if fused { of.logit.fused } else { of.logit.whole });
    let plain = if matches!(model.kind, Kind::Decoder) { of.activation.gelu } else { of.activation.relu };
    Habits {
        workspace: of.workspace + if grouped { of.grouped_workspace } else { 0.0 },
        slack: of.slack,
        context: of.context,
        logit: logit + of.logit.compute_copies * job.precision.compute.bytes(),
        norm: loss(if model.norm_bias { of.norm.layer } else { of.norm.rms }, of.norm.fused_loss),
        activation: loss(if model.gated { of.activation.gated } else { plain }, of.activation.fused_loss),
        root: of.gathered.ends,
        units: of.gathered.units,
        stages: of.gathered.stages && job.degrees.pipeline > 1 && job.sharding.parameters > 1,
        live: Some(of.gathered.live_parameters).filter(|live| *live > 0.0),
        update: if sharded { of.update.sharded } else { of.update.whole },
        update_group: match of.update.group {
            group if job.sharding.parameters > 1 && group > 0.0 => group,
            _ => f64::INFINITY,
        },
        late_gradients: of.late_gradients,
        copied: of.gradient_copies,
        piped: if job.degrees.pipeline > 1 { of.pipeline_tensors } else { 0.0 },
        buckets: if sharded { of.buckets } else { 0.0 },
    }
}

impl Habits {
    /// Bytes that the allocator holds at a stage's peak.
    pub fn reserved(&self, stage: &Stage) -> f64 {
        let peak = stage.peak();
        peak + self.slack * (peak - stage.after_step).max(0.0)
    }
}
