//! The first weights of matrices that are kept in few bits. A rank fills the bytes it owns, wherever they begin and end
//! in a record: it reads the elements behind them in pieces of whole blocks, and all elements where it owns scales.

use super::{Filler, PIECE};
use crate::compute::error::Result;
use crate::mesh::within;
use crate::model::{Tensor, Unit};
use std::ops::Range;
use zbench_kernels::{DType, DoubleScales, Op, Pack, Packed, Packing, View, ViewMut, no_scratch};

/// Writes bytes `owned` of a tensor's record.
pub(super) fn put(
    filler: &Filler<'_>,
    unit: &Unit,
    tensor: &Tensor,
    matrix: Packed,
    owned: Range<usize>,
    dst: ViewMut<'_>,
) -> Result<()> {
    if dst.is_on_host() {
        return fill(filler, unit, tensor, Owned { matrix, range: owned, bytes: dst.into_slice_mut()? });
    }
    let mut bytes = vec![0i8; dst.len()];
    let _held = filler.account.holds::<i8>(bytes.len());
    fill(filler, unit, tensor, Owned { matrix, range: owned, bytes: &mut bytes })?;
    Ok(filler.res.kernels.upload(View::of(&bytes), dst)?)
}

fn fill(filler: &Filler<'_>, unit: &Unit, tensor: &Tensor, mut record: Owned<'_>) -> Result<()> {
    let matrix = record.matrix;
    let fields = matrix.fields();
    let codes = record.cut(&fields.codes);
    let scaled = !record.cut(&(fields.scales.start..fields.second.end)).is_empty();
    let block = matrix.block().max(1);
    let elements = match scaled {
        true => 0..matrix.len(),
        false => {
            let own = matrix.elements(within(&codes, &fields.codes));
            own.start / block * block..own.end.next_multiple_of(block).min(matrix.len())
        }
    };
    let piece = (PIECE / block).max(1) * block;
    let mut values = vec![0f32; piece.min(elements.len())];
    let mut bytes = vec![0i8; matrix.codes_len(values.len())];
    let mut scales = vec![0f32; values.len().div_ceil(block)];
    let mut all = Vec::with_capacity(if scaled { matrix.blocks() } else { 0 });
    let account = filler.account;
    let _held = (account.holds::<f32>(values.len() + scales.len() + all.capacity()), account.holds::<i8>(bytes.len()));
    for start in elements.clone().step_by(piece) {
        let piece = start..(start + piece).min(elements.end);
        let values = &mut values[..piece.len()];
        // Padding is zero.
        values.fill(0.0);
        filler.tensor(unit, tensor, piece.clone(), ViewMut::of(values))?;
        let op = Op::Pack(Pack { matrix, len: values.len(), dtype: DType::F32 });
        let mut writes = [ViewMut::of(&mut bytes[..]), ViewMut::of(&mut scales[..])];
        filler.res.kernels.run(&op, &[View::of(values)], &mut writes, no_scratch())?;
        let at = fields.codes.start + matrix.codes_len(piece.start);
        record.put(at, bytes[..matrix.codes_len(piece.len())].iter().copied());
        if scaled {
            all.extend_from_slice(&scales[..piece.len().div_ceil(block)]);
        }
    }
    if !scaled {
        return Ok(());
    }
    if matrix.packing != Packing::Nf4Double {
        record.put(fields.scales.start, floats(&all));
        return Ok(());
    }
    let double = DoubleScales::of(&all);
    record.put(fields.scales.start, double.codes.iter().map(|code| *code as i8));
    record.put(fields.second.start, floats(&double.second).chain(floats(&[double.offset])));
    Ok(())
}

struct Owned<'a> {
    matrix: Packed,
    range: Range<usize>,
    bytes: &'a mut [i8],
}

impl Owned<'_> {
    fn cut(&self, field: &Range<usize>) -> Range<usize> {
        let start = field.start.max(self.range.start);
        start..field.end.min(self.range.end).max(start)
    }

    /// Writes what is owned of bytes that begin at `at` of the record.
    fn put(&mut self, at: usize, bytes: impl Iterator<Item = i8>) {
        let (skipped, first) = (self.range.start.saturating_sub(at), at.saturating_sub(self.range.start));
        let slots = self.bytes.iter_mut().skip(first);
        slots.zip(bytes.skip(skipped)).for_each(|(slot, byte)| *slot = byte);
    }
}

fn floats(values: &[f32]) -> impl Iterator<Item = i8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).map(|byte| byte as i8)
}
