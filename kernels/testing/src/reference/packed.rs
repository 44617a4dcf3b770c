//! Frozen matrices to few bits and back, an element at a time.

use super::values::{read, write};
use zbench_kernels::internals::{INT8_STEP, int8_inverse};
use zbench_kernels::{DOUBLE_BLOCK, DType, DYNAMIC, NF4, NF4_BLOCK, Packed, Packing, Result, Unpack, View, ViewMut};

pub(super) fn pack(matrix: &Packed, src: View, mut codes: ViewMut, mut scales: ViewMut) -> Result<()> {
    let x = read(&src, src.len());
    let (codes, scales) = (codes.as_slice_mut::<i8>()?, scales.as_slice_mut::<f32>()?);
    if matrix.packing == Packing::Int8 {
        rows(&x, matrix.cols.max(1), codes, scales);
        return Ok(());
    }
    codes[..x.len().div_ceil(2)].fill(0);
    for (number, block) in x.chunks(NF4_BLOCK).enumerate() {
        let scale = scale(block);
        scales[number] = scale as f32;
        let inverse = (1.0 / if scale < f64::from(1e-38f32) { f64::from(1e-38f32) } else { scale }) as f32;
        for (i, x) in block.iter().enumerate() {
            let value = f64::from((x * f64::from(inverse)) as f32);
            let below = |i: usize| f64::from((NF4[i] + NF4[i + 1]) / 2.0) < value;
            let code = (0..15).filter(|i| below(*i)).count() as u8;
            let element = number * NF4_BLOCK + i;
            codes[element / 2] |= (code << (4 * (1 - element % 2))) as i8;
        }
    }
    Ok(())
}

fn rows(x: &[f64], cols: usize, codes: &mut [i8], scales: &mut [f32]) {
    for (number, row) in x.chunks(cols).enumerate() {
        let scale = scale(row);
        scales[number] = scale as f32;
        let inverse = int8_inverse(scale as f32);
        for (i, x) in row.iter().enumerate() {
            // The product in f32, as the packing says.
            let product = (x * f64::from(inverse)) as f32;
            codes[number * cols + i] = product.round_ties_even() as i8;
        }
    }
}

/// The largest magnitude; NaN where something is not finite.
fn scale(block: &[f64]) -> f64 {
    let finite = block.iter().all(|x| x.is_finite());
    if finite { block.iter().fold(0.0, |most: f64, x| most.max(x.abs())) } else { f64::NAN }
}

pub(super) fn unpack(op: &Unpack, record: View, mut dst: ViewMut) -> Result<()> {
    let (matrix, fields) = (op.matrix, op.matrix.fields());
    let codes: &[i8] = record.slice(fields.codes).as_slice()?;
    let floats = |range| -> Result<&[f32]> { record.slice(range).reinterpret(DType::F32)?.as_slice() };
    let scales: Vec<f32> = match matrix.packing {
        Packing::Nf4 | Packing::Int8 => floats(fields.scales)?.to_vec(),
        Packing::Nf4Double => {
            let (coded, second) = (record.slice(fields.scales).as_slice::<i8>()?, floats(fields.second)?);
            let entry = |code: i8| DYNAMIC[usize::from(code as u8)];
            let of = |(i, code): (usize, &i8)| entry(*code) * second[i / DOUBLE_BLOCK] + second[second.len() - 1];
            coded.iter().enumerate().map(of).collect()
        }
    };
    let value = |i: usize| {
        let scale = scales[i / matrix.block()];
        match matrix.packing {
            Packing::Int8 => f64::from(f32::from(codes[i]) * scale) * f64::from(INT8_STEP),
            // The first of two has the high half of their byte.
            _ => f64::from(NF4[usize::from(codes[i / 2] as u8 >> (4 * (1 - i % 2)) & 15)]) * f64::from(scale),
        }
    };
    let values: Vec<f64> = (0..matrix.len()).map(value).collect();
    write(&mut dst, &values)
}
