//! What the software keeps beside the model, by generation. Constants are few: each has its source, or the rows that it
//! was fitted on.

use super::Stage;
use crate::job::{Job, Kind, Loss, Place, Stack};

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
    /// Parameters that stay gathered, where single matrices are and not blocks: those that are used again soon.
    pub live: Option<f64>,
    /// Bytes per parameter of a rank's own share during the update, beside what is kept.
    pub update: f64,
    /// Gradients are given back after the update, and made anew in backward.
    pub late_gradients: bool,
    /// Copies of all gradients in buckets, where replicas reduce them (PyTorch's DDP).
    pub copied: f64,
    /// Tensors as wide as the residual stream that a pipeline keeps per micro-batch in flight, beside those of blocks.
    pub piped: f64,
    /// Bytes of buckets in which gradients are reduced and weights are gathered.
    pub buckets: f64,
}

/// Those of a job's software.
pub fn habits(job: &Job) -> Habits {
    let fused = job.loss != Loss::Logits;
    let offloaded = job.offload.optimizer != Place::Device;
    let sharded = job.sharding.optimizer > 1 || job.sharding.parameters > 1 || offloaded;
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
        live: None,
        update: 0.0,
        piped: 0.0,
        late_gradients: false,
        copied: 0.0,
        buckets: 0.0,
    };
    // Transformer Engine's grouped products of several experts run on four streams, each with cuBLAS's 32 MiB.
    let grouped = job.model.experts.as_ref().is_some_and(|experts| experts.top > 1);
    let core = Habits { workspace: core.workspace + if grouped { 128.0 * MIB } else { 0.0 }, ..core };
    let rms = !job.model.norm_bias;
    let written_out = Habits {
        // RMS norms cast to f32 and back; layer norms are one kernel.
        norm: if rms { 6.0 } else { 2.0 },
        gate_apart: true,
        // GELU by tanh, written out; an encoder-decoder's ReLU keeps its result alone.
        plain_apart: if matches!(job.model.kind, Kind::Decoder) { 3.0 } else { 0.0 },
        ..core
    };
    match job.stack {
        Stack::MegatronCore | Stack::MegatronLm => core,
        // DeepSpeed: buckets of 5e8 elements for reduction, its overlap and gathers (runtime/zero/config.py); ZeRO-1 and 2 make
        // gradients of the own share again in f32 for the update (runtime/zero/stage_1_and_2.py). Its pipeline keeps a
        // stage's input and output per micro-batch (runtime/pipe/engine.py); that this comes to three tensors, and a
        // context of 2 GiB, was fitted on bigscience_a100's fit half.
        Stack::MegatronDeepspeed => Habits {
            buckets: if sharded { 5e8 * 2.0 * 4.0 } else { 0.0 },
            slack: 0.1,
            update: 4.0,
            live: Some(1e9),
            context: 2048.0 * MIB,
            piped: if job.degrees.pipeline > 1 { 3.0 } else { 0.0 },
            ..core
        },
        // What follows runs transformers' models in most published rows: norms and activations written out, logits of 16
        // bits, in f32, shifted, and their softmax and gradients (models' `forward` of 2022 to 2024).
        Stack::Deepspeed => Habits {
            buckets: if sharded { 5e8 * 2.0 * 2.0 } else { 0.0 },
            update: if sharded { 4.0 } else { 0.0 },
            // `stage3_max_live_parameters`.
            live: Some(1e9),
            logit: 18.0,
            ..written_out
        },
        // FSDP allocates gathered weights and gradients on streams of their own, whose memory tensors do not reuse.
        // LLM Foundry's models have fused losses, norms and activations, as their authors' trainers have.
        Stack::Fsdp1 | Stack::Fsdp1Compiled if fused => Habits { logit: 4.0, root: true, slack: 0.12, ..core },
        Stack::Fsdp1 | Stack::Fsdp1Compiled => {
            Habits { logit: 18.0, root: true, slack: 0.12, plain_apart: 0.0, ..written_out }
        }
        // torchtitan: eager loss of 16-bit logits, f32, log-softmax, two gradients; the compiled loss keeps two of 16 bits.
        // Over tensor ranks the loss is a distributed tensor's, never compiled, with two more in f32 (`loss_parallel`).
        Stack::Fsdp2 | Stack::Fsdp2Compiled if job.degrees.tensor > 1 => {
            let of = if job.stack == Stack::Fsdp2 { written_out } else { core };
            Habits { logit: 18.0, root: true, ..of }
        }
        Stack::Fsdp2 => Habits { logit: 14.0, root: true, ..written_out },
        Stack::Fsdp2Compiled => Habits { logit: if fused { 4.0 } else { 12.0 }, root: true, ..core },
        Stack::Torch => Habits { logit: 14.0, late_gradients: true, copied: 1.0, ..written_out },
        Stack::TorchCompiled => Habits { logit: 6.0, late_gradients: true, copied: 1.0, ..core },
        // The engine hands out every byte itself; logits and their gradient stand in the compute type.
        Stack::Zbench => {
            let logit = 2.0 * job.precision.compute.bytes();
            Habits { workspace: 0.0, slack: 0.0, context: 0.0, logit, ..core }
        }
    }
}

impl Habits {
    /// Bytes that the allocator holds at a stage's peak.
    pub fn reserved(&self, stage: &Stage) -> f64 {
        let peak = stage.peak();
        peak + self.slack * (peak - stage.after_step).max(0.0)
    }
}
