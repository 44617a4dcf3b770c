//! What can be dropped of what forward keeps, one tensor at a time, and what each is made from.

use super::{Block, Saved, SavedTensor};
use crate::action::Kept;

/// Places in a block: its input, the tensors of [`SavedTensor::ALL`], and in lists of what is made its output.
pub const INPUT: usize = 0;
pub const OUTPUT: usize = 1 + SavedTensor::ALL.len();

/// The place of a tensor.
pub const fn of(tensor: SavedTensor) -> usize {
    1 + tensor as usize
}

/// Places as a set of bits.
pub fn places_of(kept: Kept) -> u16 {
    match kept {
        Kept::All => (1 << OUTPUT) - 1,
        Kept::Input => 1 << INPUT,
        Kept::Tensor(tensor) => 1 << of(tensor),
    }
}

/// What is at a place of a block that is kept.
pub fn kept_at(place: usize) -> Kept {
    tensor_at(place).map_or(Kept::Input, Kept::Tensor)
}

/// The tensor at a place; none at [`INPUT`] and [`OUTPUT`].
pub fn tensor_at(place: usize) -> Option<SavedTensor> {
    SavedTensor::ALL.get(place.checked_sub(1)?).copied()
}

impl Saved {
    /// Drops a tensor with what is kept beside it, or the input for `None`.
    pub fn evict(&mut self, tensor: Option<SavedTensor>) {
        match tensor {
            None => self.input = None,
            Some(SavedTensor::AttentionNorm) => self.attention_norm = None,
            Some(SavedTensor::Qkv) => self.qkv = None,
            Some(SavedTensor::Attention) => (self.attention, self.cross) = (None, None),
            Some(SavedTensor::Residual) => self.residual = None,
            Some(SavedTensor::MlpNorm) => self.mlp_norm = None,
            Some(SavedTensor::GateUp) => self.gate_up = None,
            Some(SavedTensor::Activation) => self.activation = None,
        }
    }

    /// The places of what is there, as a set of bits.
    pub fn places(&self) -> u16 {
        let there = [
            self.input.is_some(),
            self.attention_norm.is_some(),
            self.qkv.is_some(),
            self.attention.is_some(),
            self.residual.is_some(),
            self.mlp_norm.is_some(),
            self.gate_up.is_some(),
            self.activation.is_some(),
        ];
        there.iter().enumerate().map(|(place, there)| u16::from(*there) << place).sum()
    }
}

impl Block {
    /// By place: the places of what `recompute` makes it from, as a set of bits.
    pub fn sources(&self) -> [u16; OUTPUT + 1] {
        use SavedTensor::*;
        let (parallel, own_norm) = (self.dims.parallel, self.mlp_norm.is_some());
        let bits = |places: &[usize]| places.iter().map(|place| 1 << place).sum();
        let mut sources = [0; OUTPUT + 1];
        let mut set = |place: usize, places: &[usize]| sources[place] = bits(places);
        set(of(AttentionNorm), &[INPUT]);
        set(of(Qkv), &[of(AttentionNorm)]);
        set(of(Attention), &[of(Qkv)]);
        set(of(Residual), &[INPUT, of(Attention)]);
        set(of(MlpNorm), &[if parallel { INPUT } else { of(Residual) }]);
        set(of(GateUp), &[if own_norm { of(MlpNorm) } else { of(AttentionNorm) }]);
        set(of(Activation), &[of(GateUp)]);
        // Side by side with the MLP what attention adds is not kept.
        match parallel {
            true => set(OUTPUT, &[INPUT, of(Attention), of(Activation)]),
            false => set(OUTPUT, &[of(Residual), of(Activation)]),
        }
        sources
    }
}
