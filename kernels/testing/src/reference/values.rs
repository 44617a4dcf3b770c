use half::{bf16, f16};
use zbench_kernels::internals::to_odd;
use zbench_kernels::{DType, Element, Result, View, ViewMut};

/// The first `len` elements as f64; exact.
pub(super) fn read(view: &View, len: usize) -> Vec<f64> {
    fn all<T: Element>(view: &View, to: impl Fn(T) -> f64) -> Result<Vec<f64>> {
        Ok(view.as_slice::<T>()?.iter().map(|x| to(*x)).collect())
    }
    let view = view.slice(0..len);
    let values = match view.dtype() {
        DType::F64 => all(&view, |x: f64| x),
        DType::F32 => all(&view, |x: f32| f64::from(x)),
        DType::Bf16 => all(&view, |x: bf16| x.to_f64()),
        DType::F16 => all(&view, |x: f16| x.to_f64()),
        DType::U32 => all(&view, |x: u32| f64::from(x)),
        DType::I32 => all(&view, |x: i32| f64::from(x)),
        DType::I8 => all(&view, |x: i8| f64::from(x)),
    };
    // Each arm asks for the type that the view has.
    values.unwrap_or_default()
}

/// Writes the first elements, each rounded once to the nearest of the view's type.
pub(super) fn write(view: &mut ViewMut, values: &[f64]) -> Result<()> {
    fn all<T: Element>(view: &mut ViewMut, values: &[f64], to: impl Fn(f64) -> T) -> Result<()> {
        let slots = view.as_slice_mut::<T>()?;
        slots.iter_mut().zip(values).for_each(|(slot, value)| *slot = to(*value));
        Ok(())
    }
    match view.dtype() {
        DType::F64 => all(view, values, |x| x),
        DType::F32 => all(view, values, |x| x as f32),
        DType::Bf16 => all(view, values, |x| bf16::from_f32(to_odd(x))),
        DType::F16 => all(view, values, |x| f16::from_f32(to_odd(x))),
        DType::U32 => all(view, values, |x| x as u32),
        DType::I32 => all(view, values, |x| x as i32),
        DType::I8 => all(view, values, |x| x as i8),
    }
}

/// One of the two neighbours of `value` in a 16-bit type: the one farther from zero if the fraction of the way to it and
/// `word / 2^32` make one or more.
pub(super) fn drawn(dtype: DType, value: f64, word: u32) -> f64 {
    let of_bits = |bits: u16| match dtype {
        DType::F16 => f16::from_bits(bits).to_f64(),
        _ => bf16::from_bits(bits).to_f64(),
    };
    let near = match dtype {
        DType::F16 => f16::from_f32(to_odd(value)).to_bits(),
        _ => bf16::from_f32(to_odd(value)).to_bits(),
    };
    if !value.is_finite() || of_bits(near) == value {
        return value;
    }
    // Bits grow with the magnitude.
    let low = if of_bits(near).abs() > value.abs() { near - 1 } else { near };
    let (below, above) = (of_bits(low), of_bits(low + 1));
    let fraction = (value - below) / (above - below);
    if fraction + f64::from(word) / 4_294_967_296.0 >= 1.0 { above } else { below }
}
