//! What the software keeps beside the model, by generation. Constants are few: each has its source, or the rows that it
//! was fitted on.

use super::Stage;
use crate::job::{Job, Loss, Peft, Stack};

/// Mebibyte.
const MIB: f64 = 1_048_576.0;

/// A generation of software.
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
    /// A gated MLP keeps the activation beside gate and up.
    pub gate_apart: bool,
    /// Copies of the MLP's width that a plain activation keeps beside its input (GELU written out).
    pub plain_apart: f64,
    /// The ends of the model stay gathered over a step.
    pub root: bool,
    /// Gathered units at once.
    pub units: f64,
    /// Bytes per parameter of a rank's own share during the update, beside what is kept.
    pub update: f64,
    /// Bytes of buckets in which gradients are reduced and weights are gathered.
    pub buckets: f64,
}

/// Those of a job's software.
pub fn habits(job: &Job) -> Habits {
    let fused = job.loss != Loss::Logits;
    let adapters = job.peft != Peft::None;
    let sharded = job.sharding.optimizer > 1 || job.sharding.parameters > 1;
    // Megatron-Core with Transformer Engine. Norms keep their output (the product reads it); the loss casts logits to f32
    // and works in place (core/tensor_parallel/cross_entropy.py), its jit-fused form does not. Workspaces: cuBLAS and
    // Transformer Engine.
    let core = Habits {
        workspace: 102.0 * MIB,
        slack: 0.06,
        context: 1500.0 * MIB,
        logit: if fused { 10.0 } else { 6.0 },
        norm: 2.0,
        gate_apart: false,
        plain_apart: 0.0,
        root: false,
        units: 2.0,
        update: 0.0,
        buckets: 0.0,
    };
    match job.stack {
        Stack::MegatronCore | Stack::MegatronLm => core,
        // DeepSpeed: buckets of 5e8 elements (conventions.md 4); ZeRO-1 and 2 make gradients of the own share again in f32
        // for the update (runtime/zero/stage_1_and_2.py).
        Stack::MegatronDeepspeed | Stack::Deepspeed => Habits {
            buckets: if sharded { 5e8 * 2.0 * 2.0 } else { 0.0 },
            update: if sharded { 4.0 } else { 0.0 },
            context: 2000.0 * MIB,
            logit: if job.stack == Stack::Deepspeed { 10.0 } else { 6.0 },
            plain_apart: if job.stack == Stack::Deepspeed { 3.0 } else { 0.0 },
            norm: if job.stack == Stack::Deepspeed { 4.0 } else { 2.0 },
            ..core
        },
        Stack::Fsdp2 => Habits { logit: 12.0, norm: 6.0, gate_apart: true, root: true, ..core },
        Stack::Fsdp2Compiled => Habits { logit: if fused { 4.0 } else { 12.0 }, root: true, ..core },
        Stack::Fsdp1 => Habits { logit: 12.0, norm: 4.0, gate_apart: true, root: !adapters, ..core },
        Stack::Torch => Habits { logit: 12.0, norm: 6.0, gate_apart: true, plain_apart: 3.0, ..core },
        Stack::TorchCompiled => Habits { logit: 6.0, ..core },
        Stack::Zbench => Habits { workspace: 0.0, slack: 0.0, context: 0.0, ..core },
    }
}

impl Habits {
    /// Bytes that the allocator holds at a stage's peak.
    pub fn reserved(&self, stage: &Stage) -> f64 {
        let peak = stage.peak();
        peak + self.slack * (peak - stage.after_step).max(0.0)
    }
}
