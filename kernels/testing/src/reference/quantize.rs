//! Block quantisation, an element at a time.

use super::values::{read, write};
use zbench_kernels::{QuantFormat, Quantize, Result, View, ViewMut};

pub(super) fn quantize(op: &Quantize, src: View, mut values: ViewMut, mut scales: ViewMut) -> Result<()> {
    let x = read(&src, src.len());
    let (values, scales) = (values.as_slice_mut::<i8>()?, scales.as_slice_mut::<f32>()?);
    values[..op.values_len(x.len())].fill(0);
    for (number, block) in x.chunks(op.block).enumerate() {
        // A NaN or an infinity is above every number.
        let largest =
            block.iter().fold(0.0, |most: f64, x| if x.is_finite() { most.max(x.abs()) } else { f64::INFINITY });
        let scale = op.scale(largest as f32);
        scales[number] = scale;
        let inverse = f64::from((1.0 / f64::from(scale)) as f32);
        for (i, x) in block.iter().enumerate() {
            // Rounded to f32 first, as the operation says; the product of two of them is exact here.
            let quotient = f64::from((x * inverse) as f32).round_ties_even();
            let limit = f64::from(op.format.limit());
            let value = if scale > 0.0 { quotient.clamp(-limit, limit) as i8 } else { 0 };
            let element = number * op.block + i;
            match op.format {
                QuantFormat::Int8 => values[element] = value,
                QuantFormat::Int4 => values[element / 2] |= (value & 15) << (4 * (element % 2)),
            }
        }
    }
    Ok(())
}

pub(super) fn dequantize(op: &Quantize, values: View, scales: View, mut dst: ViewMut, accumulate: bool) -> Result<()> {
    let (values, scales) = (values.as_slice::<i8>()?, scales.as_slice::<f32>()?);
    let old = read(&dst.as_view(), dst.len());
    let value = |element: usize| match (op.format, element % 2) {
        (QuantFormat::Int8, _) => values[element],
        (QuantFormat::Int4, 0) => (values[element / 2] << 4) >> 4,
        (QuantFormat::Int4, _) => values[element / 2] >> 4,
    };
    let new = |(element, old): (usize, &f64)| {
        let product = f64::from(value(element)) * f64::from(scales[element / op.block]);
        if accumulate { old + product } else { product }
    };
    let new: Vec<f64> = old.iter().enumerate().map(new).collect();
    write(&mut dst, &new)
}
