//! Collectives whose values travel as small integers with a scale per block: qwZ and qgZ of ZeRO++.

use super::super::{CommError, Communicator, ReduceOp, Result};
use super::Levels;
use zbench_kernels::{
    Arena, Buffer, Category, DType, Kernels, Op, Quantize, QuantizeBlocks, View, ViewMut, no_scratch,
};

/// Elements that share a scale where nothing else is said: 4 bytes of scale to 256 of int8 add 1.6 %.
pub const BLOCK: usize = 256;

/// qwZ: `recv` = all ranks' `send` in rank order, each as its blocks' integers stand for it, this rank's own too, so that all
/// ranks have the same values. `send` and `recv` are f32, bf16 or f16, of one type.
///
/// Every element is off by at most half its block's scale, largest magnitude / 127 (int8) or / 7 (int4), and the rounding of
/// the type.
///
/// # Errors
/// As the kernels and the all-gather.
pub fn quantised_all_gather(
    comm: &dyn Communicator,
    kernels: &dyn Kernels,
    arena: &Arena,
    quantize: &Quantize,
    send: View<'_>,
    recv: ViewMut<'_>,
) -> Result<()> {
    Packed::new(kernels, arena, quantize, send)?.all_gather(comm, kernels, arena, recv)
}

/// qgZ: `recv` = (`recv` +) this rank's part of the sum over all ranks' `send`. Each rank gives every rank of its node the parts
/// for that place in all nodes, quantised; they are summed in f32, quantised again and given to their nodes, and summed there. A
/// level of one rank is left out, with its quantisation.
///
/// Every element is off by at most half the scale of its block at each of the ranks, and half the scale of its block in each
/// node's sum.
///
/// # Errors
/// As the kernels and the all-to-all; [`CommError::Invalid`] for what is no sum or average of floats.
pub fn quantised_reduce_scatter(
    levels: &Levels<'_>,
    quantize: &Quantize,
    op: ReduceOp,
    send: View<'_>,
    recv: ViewMut<'_>,
    accumulate: bool,
) -> Result<()> {
    let sum = reduced(levels, quantize, op, send)?;
    Ok(levels.kernels.reduce(ReduceOp::Sum, &[sum.view()], accumulate, recv)?)
}

/// This rank's part of the sum (or the average), in f32.
pub(super) fn reduced(levels: &Levels<'_>, quantize: &Quantize, op: ReduceOp, send: View<'_>) -> Result<Buffer> {
    let floats = matches!(send.dtype(), DType::F32 | DType::Bf16 | DType::F16);
    if !floats || !matches!(op, ReduceOp::Sum | ReduceOp::Avg) {
        let reason = format!("{op} of {} does not travel quantised; sums of f32, bf16 and f16 do", send.dtype());
        return Err(CommError::Invalid { operation: "reduce_scatter", reason });
    }
    let (inner, outer) = (levels.inner.size(), levels.outer.size());
    let part = send.len() / levels.size();
    // Inside the node: place `i` gets, for every node `o`, the part of rank `o * inner + i`.
    let of_rank = |rank: usize| send.slice(rank * part..(rank + 1) * part);
    let mut sums = levels.scratch("reduce_scatter", DType::F32, outer * part)?;
    if inner > 1 {
        let order = (0..inner).flat_map(|place| (0..outer).map(move |node| node * inner + place));
        let own = Packed::of_parts(levels.kernels, levels.arena, quantize, part, order.map(of_rank))?;
        let theirs = own.all_to_all(levels.inner, levels.arena)?;
        for place in 0..inner {
            for node in 0..outer {
                let sum = sums.slice_mut(node * part..(node + 1) * part);
                theirs.unpack(levels.kernels, place * outer + node, sum, place > 0)?;
            }
        }
    } else {
        levels.kernels.reduce(ReduceOp::Sum, &[send], false, sums.view_mut())?;
    }
    if outer > 1 {
        let parts = (0..outer).map(|node| sums.slice(node * part..(node + 1) * part));
        let own = Packed::of_parts(levels.kernels, levels.arena, quantize, part, parts)?;
        let theirs = own.all_to_all(levels.outer, levels.arena)?;
        let mut sum = levels.scratch("reduce_scatter", DType::F32, part)?;
        for node in 0..outer {
            theirs.unpack(levels.kernels, node, sum.view_mut(), node > 0)?;
        }
        sums = sum;
    }
    if op == ReduceOp::Avg {
        levels.kernels.scale(1.0 / levels.size() as f64, sums.view_mut())?;
    }
    Ok(sums)
}

/// `buffer` = the sum over all ranks: qgZ, then qwZ of the sums. The length is a multiple of the ranks.
pub(super) fn all_reduce(
    levels: &Levels<'_>,
    world: &dyn Communicator,
    quantize: &Quantize,
    op: ReduceOp,
    buffer: ViewMut<'_>,
) -> Result<()> {
    let sum = reduced(levels, quantize, op, buffer.as_view())?;
    Packed::new(levels.kernels, levels.arena, quantize, sum.view())?.all_gather(
        world,
        levels.kernels,
        levels.arena,
        buffer,
    )
}

/// Parts of equal length as integers and scales. Blocks do not reach over the end of a part.
pub(super) struct Packed {
    quantize: Quantize,
    /// Elements of a part.
    part: usize,
    values: Buffer,
    scales: Buffer,
}

impl Packed {
    pub fn new(kernels: &dyn Kernels, arena: &Arena, quantize: &Quantize, part: View<'_>) -> Result<Packed> {
        Packed::of_parts(kernels, arena, quantize, part.len(), std::iter::once(part))
    }

    /// Several, in this order.
    fn of_parts<'v>(
        kernels: &dyn Kernels,
        arena: &Arena,
        quantize: &Quantize,
        part: usize,
        parts: impl Iterator<Item = View<'v>> + Clone,
    ) -> Result<Packed> {
        let mut packed = Packed::empty(arena, quantize, part, parts.clone().count())?;
        let (values, scales) = (quantize.values_len(part), quantize.scales_len(part));
        for (number, part) in parts.enumerate() {
            let of_part = packed.values.slice_mut(number * values..(number + 1) * values);
            let its_scales = packed.scales.slice_mut(number * scales..(number + 1) * scales);
            let op = QuantizeBlocks { by: *quantize, len: part.len(), dtype: part.dtype(), accumulate: false };
            kernels.run(&Op::Quantize(op), &[part], &mut [of_part, its_scales], no_scratch())?;
        }
        Ok(packed)
    }

    fn empty(arena: &Arena, quantize: &Quantize, part: usize, parts: usize) -> Result<Packed> {
        let full = |error: zbench_kernels::OutOfMemory| CommError::Invalid {
            operation: "quantize",
            reason: error.to_string(),
        };
        let alloc = |dtype, len| arena.alloc(Category::Communication, dtype, len).map_err(full);
        let values = alloc(DType::I8, parts * quantize.values_len(part))?;
        let scales = alloc(DType::F32, parts * quantize.scales_len(part))?;
        Ok(Packed { quantize: *quantize, part, values, scales })
    }

    /// `sum` = (`sum` +) what part `number` stands for.
    fn unpack(&self, kernels: &dyn Kernels, number: usize, sum: ViewMut<'_>, accumulate: bool) -> Result<()> {
        let (values, scales) = (self.quantize.values_len(self.part), self.quantize.scales_len(self.part));
        let values = self.values.slice(number * values..(number + 1) * values);
        let scales = self.scales.slice(number * scales..(number + 1) * scales);
        let op = QuantizeBlocks { by: self.quantize, len: sum.len(), dtype: sum.dtype(), accumulate };
        Ok(kernels.run(&Op::Dequantize(op), &[values, scales], &mut [sum], no_scratch())?)
    }

    /// All ranks' parts, unpacked into `recv`.
    pub fn all_gather(
        &self,
        comm: &dyn Communicator,
        kernels: &dyn Kernels,
        arena: &Arena,
        mut recv: ViewMut<'_>,
    ) -> Result<()> {
        let mut all = Packed::empty(arena, &self.quantize, self.part, comm.size())?;
        comm.all_gather(self.values.view(), all.values.view_mut())?;
        comm.all_gather(self.scales.view(), all.scales.view_mut())?;
        for rank in 0..comm.size() {
            let part = recv.slice_mut(rank * self.part..(rank + 1) * self.part);
            all.unpack(kernels, rank, part, false)?;
        }
        Ok(())
    }

    /// What the members of `comm` have for this rank, in their order; the parts here are for them in the same order.
    fn all_to_all(&self, comm: &dyn Communicator, arena: &Arena) -> Result<Packed> {
        let parts = if self.part == 0 { 0 } else { self.values.len() / self.quantize.values_len(self.part) };
        let mut theirs = Packed::empty(arena, &self.quantize, self.part, parts)?;
        comm.all_to_all(self.values.view(), theirs.values.view_mut())?;
        comm.all_to_all(self.scales.view(), theirs.scales.view_mut())?;
        Ok(theirs)
    }
}
