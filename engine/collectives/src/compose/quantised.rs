//! Collectives whose values travel as small integers with a scale per block: qwZ and qgZ of ZeRO++.

use super::Composed;
use crate::{CommError, Communicator, ReduceOp, Result};
use zbench_kernels::{Buffer, DType, Op, Quantize, QuantizeBlocks, View, ViewMut, no_scratch};

/// Elements that share a scale where nothing else is said: 4 bytes of scale to 256 of int8 add 1.6 %.
pub const BLOCK: usize = 256;

/// qgZ: this rank's part of the sum (or the average) over all ranks' `send`, in f32. Each rank gives every rank of its node
/// the parts for that place in all nodes, quantised; they are summed in f32, quantised again and given to their nodes, and
/// summed there. A level of one rank is left out, with its quantisation.
///
/// Every element is off by at most half the scale of its block at each of the ranks, and half the scale of its block in each
/// node's sum.
///
/// # Errors
/// As the kernels and the all-to-all; [`CommError::Invalid`] for what is no sum or average of floats.
pub(super) fn reduced(composed: &Composed, quantize: &Quantize, op: ReduceOp, send: View<'_>) -> Result<Buffer> {
    let floats = matches!(send.dtype(), DType::F32 | DType::Bf16 | DType::F16);
    if !floats || !matches!(op, ReduceOp::Sum | ReduceOp::Avg) {
        let reason = format!("{op} of {} does not travel quantised; sums of f32, bf16 and f16 do", send.dtype());
        return Err(CommError::Invalid { operation: "reduce_scatter", reason });
    }
    let (inner, outer) = (composed.inner.size(), composed.outer.size());
    let part = send.len() / composed.size();
    // Inside the node: place `i` gets, for every node `o`, the part of rank `o * inner + i`.
    let of_rank = |rank: usize| send.slice(rank * part..(rank + 1) * part);
    let mut sums = composed.scratch("reduce_scatter", DType::F32, outer * part)?;
    if inner > 1 {
        let order = (0..inner).flat_map(|place| (0..outer).map(move |node| node * inner + place));
        let own = Packed::of_parts(composed, quantize, part, order.map(of_rank))?;
        let theirs = own.all_to_all(&*composed.inner)?;
        for place in 0..inner {
            for node in 0..outer {
                let sum = sums.slice_mut(node * part..(node + 1) * part);
                theirs.unpack(place * outer + node, sum, place > 0)?;
            }
        }
    } else {
        composed.kernels.reduce(ReduceOp::Sum, &[send], false, sums.view_mut())?;
    }
    if outer > 1 {
        let parts = (0..outer).map(|node| sums.slice(node * part..(node + 1) * part));
        let own = Packed::of_parts(composed, quantize, part, parts)?;
        let theirs = own.all_to_all(&*composed.outer)?;
        let mut sum = composed.scratch("reduce_scatter", DType::F32, part)?;
        for node in 0..outer {
            theirs.unpack(node, sum.view_mut(), node > 0)?;
        }
        sums = sum;
    }
    if op == ReduceOp::Avg {
        composed.kernels.scale(1.0 / composed.size() as f64, sums.view_mut())?;
    }
    Ok(sums)
}

/// Parts of equal length as integers and scales. Blocks do not reach over the end of a part.
pub(super) struct Packed<'c> {
    composed: &'c Composed,
    quantize: Quantize,
    part: usize,
    values: Buffer,
    scales: Buffer,
}

impl<'c> Packed<'c> {
    pub fn new(composed: &'c Composed, quantize: &Quantize, part: View<'_>) -> Result<Packed<'c>> {
        Packed::of_parts(composed, quantize, part.len(), std::iter::once(part))
    }

    /// Several, in this order.
    fn of_parts<'v>(
        composed: &'c Composed,
        quantize: &Quantize,
        part: usize,
        parts: impl Iterator<Item = View<'v>> + Clone,
    ) -> Result<Packed<'c>> {
        let mut packed = Packed::empty(composed, quantize, part, parts.clone().count())?;
        let (values, scales) = (quantize.values_len(part), quantize.scales_len(part));
        for (number, part) in parts.enumerate() {
            let of_part = packed.values.slice_mut(number * values..(number + 1) * values);
            let its_scales = packed.scales.slice_mut(number * scales..(number + 1) * scales);
            let op = QuantizeBlocks { by: *quantize, len: part.len(), dtype: part.dtype(), accumulate: false };
            composed.kernels.run(&Op::Quantize(op), &[part], &mut [of_part, its_scales], no_scratch())?;
        }
        Ok(packed)
    }

    fn empty(composed: &'c Composed, quantize: &Quantize, part: usize, parts: usize) -> Result<Packed<'c>> {
        let values = composed.scratch("quantize", DType::I8, parts * quantize.values_len(part))?;
        let scales = composed.scratch("quantize", DType::F32, parts * quantize.scales_len(part))?;
        Ok(Packed { composed, quantize: *quantize, part, values, scales })
    }

    /// `sum` = (`sum` +) what part `number` stands for.
    fn unpack(&self, number: usize, sum: ViewMut<'_>, accumulate: bool) -> Result<()> {
        let (values, scales) = (self.quantize.values_len(self.part), self.quantize.scales_len(self.part));
        let values = self.values.slice(number * values..(number + 1) * values);
        let scales = self.scales.slice(number * scales..(number + 1) * scales);
        let op = QuantizeBlocks { by: self.quantize, len: sum.len(), dtype: sum.dtype(), accumulate };
        Ok(self.composed.kernels.run(&Op::Dequantize(op), &[values, scales], &mut [sum], no_scratch())?)
    }

    /// qwZ: `recv` = all ranks' parts in rank order, each as its blocks' integers stand for it, this rank's own too, so that
    /// all ranks have the same values. `recv` is f32, bf16 or f16, as the part was.
    ///
    /// Every element is off by at most half its block's scale, largest magnitude / 127 (int8) or / 7 (int4), and the rounding
    /// of the type.
    pub fn all_gather(&self, mut recv: ViewMut<'_>) -> Result<()> {
        let world = &self.composed.world;
        let mut all = Packed::empty(self.composed, &self.quantize, self.part, world.size())?;
        world.all_gather(self.values.view(), all.values.view_mut())?;
        world.all_gather(self.scales.view(), all.scales.view_mut())?;
        for rank in 0..world.size() {
            all.unpack(rank, recv.slice_mut(rank * self.part..(rank + 1) * self.part), false)?;
        }
        Ok(())
    }

    /// What the members of `comm` have for this rank, in their order; the parts here are for them in the same order.
    fn all_to_all(&self, comm: &dyn Communicator) -> Result<Packed<'c>> {
        let parts = if self.part == 0 { 0 } else { self.values.len() / self.quantize.values_len(self.part) };
        let mut theirs = Packed::empty(self.composed, &self.quantize, self.part, parts)?;
        comm.all_to_all(self.values.view(), theirs.values.view_mut())?;
        comm.all_to_all(self.scales.view(), theirs.scales.view_mut())?;
        Ok(theirs)
    }
}
