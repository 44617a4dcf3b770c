//! Checksums of weights and moments that do not depend on how they are split: a sum over elements, each mixed with its
//! tensor and its place in it. Equal sums are equal tensors, whatever ranks, strategy and file layout held them.

use super::error::Result;
use super::index::StateKind;
use crate::checkpoint::overlap;
use crate::compute::error::StepError;
use crate::exec::Executor;
use crate::mesh::within;
use crate::model::{FlatKind, Part};
use std::ops::Range;
use zbench_kernels::{View, ViewMut};

/// Elements that are converted to f32 at a time.
const AT_ONCE: usize = 1 << 16;

/// Checksums of the trainable tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Of the weights, in the widest type there is of them.
    pub weights: u64,
    pub exp_avg: u64,
    pub exp_avg_sq: u64,
    /// Of gradients whose update is delayed; 0 without.
    pub delayed_gradient: u64,
}

impl Executor<'_> {
    /// Checksums of the trainable tensors, the same on all ranks. A collective call.
    pub fn digest(&mut self) -> Result<Digest> {
        let mut own = [0; StateKind::COUNT];
        for role in StateKind::all(self.delayed.is_some()) {
            own[*role as usize] = self.sum(FlatKind::Trainable, *role)?;
        }
        let [weights, exp_avg, exp_avg_sq, delayed_gradient] = self.over_ranks(own)?;
        Ok(Digest { weights, exp_avg, exp_avg_sq, delayed_gradient })
    }

    /// The checksum of the frozen tensors; `None` if every tensor trains. A collective call.
    pub(crate) fn frozen_digest(&mut self) -> Result<Option<u64>> {
        let is_there = |part: FlatKind| self.state.shards.iter().any(|unit| unit[part as usize].is_some());
        if !is_there(FlatKind::Frozen) && !is_there(FlatKind::Quantised) {
            return Ok(None);
        }
        let [frozen, quantised] =
            [FlatKind::Frozen, FlatKind::Quantised].map(|part| self.sum(part, StateKind::Weights));
        let own = frozen?.wrapping_add(quantised?);
        let [sum] = self.over_ranks([own])?;
        Ok(Some(sum))
    }

    /// The checksum of this rank's part of every unit in the world-wide split.
    fn sum(&mut self, part: FlatKind, role: StateKind) -> Result<u64> {
        let mut sum = 0u64;
        let (units, copy) = (0..self.state.shards.len(), self.state.copy);
        for unit in units.filter(|unit| copy != Some(*unit)) {
            let Executor { context, state, params, optimizer, .. } = self;
            let Some(flat_shard) = &state.shards[unit][part as usize] else { continue };
            let res = context.resources();
            params.open(res, unit)?;
            optimizer.open(res, unit)?;
            let Some((held, view)) = role.held(state, params, optimizer, unit, part) else { continue };
            for tensor in context.stage_plan.layout.units[unit].tensors_of(part) {
                let place = tensor.place.range();
                let Some(cut) = overlap(&place, &flat_shard.norm_shard) else { continue };
                if !tensor.is_counted(&state.place) {
                    continue;
                }
                let seed = crc32fast::hash(tensor.name.as_bytes());
                let (own, cut) = (view.slice(within(&cut, &held)), within(&cut, &place));
                if tensor.packed.is_some() {
                    // Of what is kept in few bits each rank has a record of its own.
                    sum = sum.wrapping_add(of_elements(&*context.kernels, seed, cut, own)?);
                    continue;
                }
                for Part { ours, whole, len } in tensor.parts(&state.place, cut.clone()) {
                    let elements = own.slice(within(&(ours..ours + len), &cut));
                    sum = sum.wrapping_add(of_elements(&*context.kernels, seed, whole..whole + len, elements)?);
                }
            }
            params.close(res, unit, false)?;
            optimizer.close(res, unit, false)?;
        }
        Ok(sum)
    }

    fn over_ranks<const N: usize>(&self, own: [u64; N]) -> Result<[u64; N]> {
        let halves: Vec<u32> = own.iter().flat_map(|sum| [*sum as u32, (*sum >> 32) as u32]).collect();
        let mut sums = [0u64; N];
        for rank in self.of_all(&halves)?.chunks_exact(2 * N) {
            for (sum, half) in sums.iter_mut().zip(rank.as_chunks::<2>().0) {
                *sum = sum.wrapping_add(u64::from(half[0]) | u64::from(half[1]) << 32);
            }
        }
        Ok(sums)
    }

    /// Gathers the numbers of all ranks in rank order. This is not counted as traffic of training.
    pub(crate) fn of_all(&self, own: &[u32]) -> Result<Vec<u32>> {
        let comm = self.context.comms.world().unmetered();
        let mut all = vec![0u32; own.len() * comm.size()];
        comm.all_gather(View::of(own), ViewMut::of(&mut all)).map_err(StepError::from)?;
        Ok(all)
    }
}

fn of_elements(kernels: &dyn zbench_kernels::Kernels, seed: u32, range: Range<usize>, view: View<'_>) -> Result<u64> {
    if view.dtype() == zbench_kernels::DType::I8 {
        let mut held = vec![0i8; view.len()];
        kernels.download(view, ViewMut::of(&mut held)).map_err(StepError::from)?;
        return Ok(mixed(seed, range.start, held.iter().map(|byte| u32::from(*byte as u8))));
    }
    let mut sum = 0u64;
    let mut wide = vec![0f32; AT_ONCE.min(range.len())];
    for start in (0..range.len()).step_by(AT_ONCE) {
        let len = AT_ONCE.min(range.len() - start);
        let values = &mut wide[..len];
        kernels.cast(view.slice(start..start + len), ViewMut::of(values)).map_err(StepError::from)?;
        sum = sum.wrapping_add(mixed(seed, range.start + start, values.iter().map(|value| value.to_bits())));
    }
    Ok(sum)
}

fn mixed(seed: u32, first: usize, bits: impl Iterator<Item = u32>) -> u64 {
    let seed = u64::from(seed).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    bits.enumerate().fold(0, |sum, (i, bits)| {
        let place = ((first + i) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut x = seed ^ place ^ u64::from(bits).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
        x = (x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        sum.wrapping_add(x ^ x >> 32)
    })
}
