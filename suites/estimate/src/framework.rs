//! Framework profiles: TOML files that say what a training program keeps in memory beside the model, and how it drives a
//! device, each figure with its source. Those under configs/frameworks are compiled in. docs/frameworks.md describes every key.

use crate::catalogue::{Catalogue, ProfileError};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

mod read;
#[cfg(test)]
mod tests;

pub use read::{KEYS, STRATEGIES};

/// What a profile says.
#[derive(Clone, PartialEq)]
pub struct Framework {
    /// Its name: the file's, without the ending.
    pub name: String,
    /// What the file says of itself.
    pub about: String,
    /// Strategies that it has, by their names in `parallel.strategy`.
    pub strategies: Vec<String>,
    /// Ranks can be numbered with stages inside of replicas (`parallel.placement`).
    pub stages_inside: bool,
    /// It has the schedule ZB-H1.
    pub zero_bubble: bool,
    /// Attention kernels that a run which names none may have: `naive`, `flash1`, `flash2` or `flash3`. The first is priced.
    pub attention: Vec<String>,
    /// What it keeps in which type where a run says "bf16", in words.
    pub bf16: String,
    /// The rule (`flops-NAME`) by which it counts FLOPs, where it states any.
    pub flops: Option<String>,
    /// What it keeps in memory.
    pub memory: Memory,
    /// How it drives a device.
    pub drive: Drive,
    /// Where each figure comes from, by its place in the file: `memory.logit.whole`.
    pub sources: BTreeMap<String, String>,
}

/// What a framework keeps in memory beside the model. [`crate::memory::habits`] says what of it applies to a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Bytes of libraries' workspaces that the allocator hands out.
    pub workspace: f64,
    /// More of them, in bytes, where a token goes to two experts or more (grouped products).
    pub grouped_workspace: f64,
    /// Bytes that the allocator holds over what it handed out, as a share of what is not state.
    pub slack: f64,
    /// Bytes on the device that no allocator knows: context, communication library.
    pub context: f64,
    /// Gradients are given back after the update, and allocated anew in backward.
    pub late_gradients: bool,
    /// Copies of all gradients in buckets, where replicas reduce whole gradients.
    pub gradient_copies: f64,
    /// Tensors as wide as the residual stream that a pipeline keeps per micro-batch in flight, beside those of blocks.
    pub pipeline_tensors: f64,
    /// Bytes of buckets, where anything is sharded or the optimizer is offloaded.
    pub buckets: f64,
    /// Products of frozen weights in few bits keep their input for backward.
    pub quantised_inputs: bool,
    /// Experts are quantised with the rest of a frozen base; else they keep the parameters' type.
    pub quantised_experts: bool,
    /// Who reads a checkpoint's weights, and how much of them.
    pub loading: Loading,
    /// Bytes per logit at the loss.
    pub logit: Logit,
    /// Bytes per element that a norm keeps beside its input.
    pub norm: Norm,
    /// Copies of the MLP's width that an activation keeps beside the inputs of the product after it and of its own.
    pub activation: Activation,
    /// Weights where they are read, beside those at home.
    pub gathered: Gathered,
    /// What the update makes beside the state.
    pub update: Update,
}

/// Bytes per logit at the loss: its 16-bit result, the f32 copy, what log-softmax keeps, gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logit {
    /// Of a loss over whole logits.
    pub whole: f64,
    /// Of a fused or chunked loss.
    pub fused: f64,
    /// Of any loss that tensor ranks share; `None` = as without them.
    pub tensor_parallel: Option<f64>,
    /// Tensors in the compute type, whose bytes come on top.
    pub compute_copies: f64,
}

/// Bytes per element that a norm keeps beside its input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Without a bias.
    pub rms: f64,
    /// With one.
    pub layer: f64,
    /// Either, in models with a fused or chunked loss; `None` = as with whole logits.
    pub fused_loss: Option<f64>,
}

/// Copies of the MLP's width that an activation keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activation {
    /// A gated one, beside gate and up.
    pub gated: f64,
    /// GELU, which decoders without a gate have, beside its input.
    pub gelu: f64,
    /// ReLU, which encoder-decoders without a gate have, beside its input.
    pub relu: f64,
    /// Any, in models with a fused or chunked loss; `None` = as with whole logits.
    pub fused_loss: Option<f64>,
}

/// Gathered weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gathered {
    /// Embedding and head stay gathered over a step.
    pub ends: bool,
    /// Blocks that are gathered at once.
    pub units: f64,
    /// Parameters that stay gathered, where single matrices are gathered and not blocks; 0 = blocks are.
    pub live_parameters: f64,
    /// Where there are stages, weights stay gathered and gradients whole from a step's first micro-batch to its last.
    pub stages: bool,
}

/// Gradients of the own share in f32 during the update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Bytes per parameter of the own share where optimizer state is whole.
    pub whole: f64,
    /// The same where anything is sharded or the optimizer is offloaded.
    pub sharded: f64,
    /// Parameters that are updated at once where weights are sharded; 0 = all.
    pub group: f64,
}

/// Who reads a checkpoint's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loading {
    /// Each rank reads what it keeps.
    Sliced,
    /// Rank 0 reads everything and sends it on.
    Broadcast,
    /// Each rank reads everything into its host's memory.
    Everywhere,
}

/// How far element-wise work is fused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fusion {
    /// Each operation is a kernel.
    Eager,
    /// Hand-written kernels for norms, activations and dropout with residual.
    Fused,
    /// A compiler, or kernels written for this model.
    Compiled,
}

/// How a framework drives a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drive {
    /// Element-wise work.
    pub fusion: Fusion,
    /// GELU is one kernel.
    pub fused_gelu: bool,
    /// Weights in f32 mean autocast, not casts of shards.
    pub autocast: bool,
    /// Gradients of weights are added up in f32 by the product itself.
    pub fused_accumulation: bool,
    /// Passes that the optimizer makes over its state against one fused pass.
    pub optimizer_passes: f64,
    /// Bytes per parameter and gather (and as many per reduction) that are copied between parameters and the buffers of
    /// collectives.
    pub copy_bytes: f64,
    /// Rate of attention of the first generation against that of its benchmarks.
    pub flash1_rate: f64,
    /// Context ranks share causal attention evenly; else the last of them sees all keys and the others wait for it.
    pub balanced_ring: bool,
    /// Queries, keys and values have one adapter together, and so have gate and up.
    pub fused_adapters: bool,
    /// Experts' products are kernels over all experts; else each expert's are kernels of their own.
    pub grouped_experts: bool,
    /// Seconds that a gather of one expert's matrix holds up the host, where single matrices are gathered.
    pub gather_wait: f64,
    /// Bytes per second of state that a core updates, where each of several ranks of a host has one core for an update there; 0 = a
    /// rank has its share of the host.
    pub host_core: f64,
    /// Bytes per parameter that an update on the host moves in its memory on top of one pass over gradient, state and weight.
    pub host_bytes: f64,
    /// Collectives of the data axis run beside compute at all.
    pub overlap_data: bool,
    /// Whole gradients are reduced while backward runs.
    pub overlap_reduce: bool,
    /// Weights that the optimizer's shards have updated are gathered while forward runs.
    pub overlap_gather: bool,
    /// Sends between stages hide behind compute.
    pub overlap_sends: bool,
    /// Share of tensor parallel collectives that hides behind products.
    pub overlap_tensor: f64,
    /// As many units are gathered ahead as a run says; else one.
    pub prefetch: bool,
    /// Share of the data axis's collectives that compute waits for although there is compute to hide them.
    pub exposed: f64,
    /// Share of the network's rate that gathers and reductions of sharded weights reach between nodes.
    pub network: f64,
    /// Replicas of shard groups sum gradients up once a step, and not behind every backward.
    pub replicas_once: bool,
}

/// Texts of the profiles that are compiled in.
macro_rules! texts {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../../configs/frameworks/", $name, ".toml")))),*]
    };
}

const FRAMEWORKS: Catalogue = Catalogue {
    of: "framework",
    texts: texts! {
        "zbench" "megatron-lm" "megatron-deepspeed" "megatron-core" "deepspeed"
        "fsdp1" "fsdp1-compiled" "fsdp2" "fsdp2-compiled" "torch" "torch-compiled"
    },
};

type Read = Result<Arc<Framework>, ProfileError>;

static BUILTIN: LazyLock<Vec<(&'static str, Read)>> = LazyLock::new(|| {
    FRAMEWORKS.texts.iter().map(|(name, text)| (*name, Framework::read(name, text).map(Arc::new))).collect()
});

/// Names of the profiles that are compiled in.
pub fn names() -> impl Iterator<Item = &'static str> {
    FRAMEWORKS.names()
}

/// A profile that is compiled in.
///
/// # Errors
/// There is none of that name: the error lists those there are.
pub fn framework(name: &str) -> Result<Arc<Framework>, ProfileError> {
    match BUILTIN.iter().find(|(known, _)| *known == name) {
        Some((_, framework)) => framework.clone(),
        None => Err(FRAMEWORKS.unknown(name)),
    }
}

/// This project's engine.
pub fn zbench() -> Arc<Framework> {
    framework("zbench").expect("a test reads every profile that is compiled in")
}

/// Its name, so that a job prints without all sources.
impl std::fmt::Debug for Framework {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl Framework {
    /// Whether it has a strategy, by its name in `parallel.strategy`.
    pub fn has(&self, strategy: &str) -> bool {
        self.strategies.iter().any(|own| own == strategy)
    }
}
