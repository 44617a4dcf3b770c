//! `[memory]`: what is kept, recomputed, limited, and where it lives.

use super::{MemoryTier, is_default};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What is kept, recomputed, limited.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// What forward keeps for backward.
    pub checkpointing: Checkpointing,
    /// The attention kernel.
    pub attention: AttentionKind,
    /// Bytes a rank's arena may hold; absent = what the machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Keep weights in the form that products read, from their first product in a step to the update.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prepack: bool,
    /// Whether tensor ranks share the block inputs that checkpointing keeps (ZeRO-R, Rajbhandari et al. (2020), section 6.1).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partition_activations: bool,
    /// Where the optimizer's state lives.
    #[serde(default, skip_serializing_if = "is_default")]
    pub offload_optimizer: MemoryTier,
    /// Where each rank's part of the weights lives.
    #[serde(default, skip_serializing_if = "is_default")]
    pub offload_parameters: MemoryTier,
    /// Where what forward keeps for backward lives.
    #[serde(default, skip_serializing_if = "is_default")]
    pub offload_activations: MemoryTier,
    /// The folder of what lives on a disk; absent = the system's folder for temporary files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_path: Option<PathBuf>,
    /// Layers whose state is on its way from its tier before it is needed.
    #[serde(default = "offload_prefetch", skip_serializing_if = "is_offload_prefetch")]
    pub offload_prefetch: usize,
}

/// The usual [`Memory::offload_prefetch`].
pub const OFFLOAD_PREFETCH: usize = 1;

fn offload_prefetch() -> usize {
    OFFLOAD_PREFETCH
}

fn is_offload_prefetch(layers: &usize) -> bool {
    *layers == OFFLOAD_PREFETCH
}

impl Default for Memory {
    /// All lives on the device, backward finds everything, attention is flash.
    fn default() -> Memory {
        Memory {
            checkpointing: Checkpointing::None,
            attention: AttentionKind::Flash,
            capacity: None,
            prepack: false,
            partition_activations: false,
            offload_optimizer: MemoryTier::Device,
            offload_parameters: MemoryTier::Device,
            offload_activations: MemoryTier::Device,
            offload_path: None,
            offload_prefetch: OFFLOAD_PREFETCH,
        }
    }
}

impl Memory {
    /// Whether something lives elsewhere than on the device.
    pub fn offloads(&self) -> bool {
        [self.offload_optimizer, self.offload_parameters, self.offload_activations] != [MemoryTier::Device; 3]
    }

    /// The folder of what lives on a disk, if something does.
    pub fn offload_folder(&self) -> Option<PathBuf> {
        let tiers = [self.offload_optimizer, self.offload_parameters, self.offload_activations];
        let folder = || self.offload_path.clone().unwrap_or_else(std::env::temp_dir);
        tiers.contains(&MemoryTier::Disk).then(folder)
    }
}

/// What forward keeps for backward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Checkpointing {
    /// Everything backward reads.
    None,
    /// Each block's input; the block is recomputed.
    Full,
    /// All but what costs no matrix product to recompute: the norms and the gated activation.
    Selective,
    /// The input of every k-th block; k blocks are recomputed at a time.
    Every(usize),
    /// `Every(k)` with k the square root of the number of blocks, rounded up.
    Sqrt,
    /// Everything while [`Memory::capacity`] holds it; then tensor by tensor what costs least to make again.
    Evict,
    /// The named tensors of each block (and its input).
    Keep(Vec<SavedTensor>),
}

/// The tensors of a block that forward may keep, in the order it makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SavedTensor {
    /// The normalised input of attention.
    AttentionNorm,
    /// Queries, keys and values after the rotation.
    Qkv,
    /// The attention's output, and its log-sum-exp or probabilities.
    Attention,
    /// The residual stream between attention and MLP.
    Residual,
    /// The normalised input of the MLP.
    MlpNorm,
    /// Gate and up projections.
    GateUp,
    /// Their gated product.
    Activation,
}

impl SavedTensor {
    /// All of them, in the order forward makes them.
    pub const ALL: [SavedTensor; 7] = [
        SavedTensor::AttentionNorm,
        SavedTensor::Qkv,
        SavedTensor::Attention,
        SavedTensor::Residual,
        SavedTensor::MlpNorm,
        SavedTensor::GateUp,
        SavedTensor::Activation,
    ];
}

/// The attention kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttentionKind {
    /// Tiled, online softmax, backward by recomputation: memory linear in the sequence.
    Flash,
    /// Stores the probabilities: memory quadratic in the sequence.
    Naive,
}
