use crate::round::{Float32, to_odd};
use crate::{DType, Result, View, ViewMut};
use half::{bf16, f16};

/// The first `len` elements as f64; exact.
pub(super) fn read(view: &View, len: usize) -> Vec<f64> {
    fn all<T: crate::Element>(view: &View, to: impl Fn(T) -> f64) -> Result<Vec<f64>> {
        Ok(view.as_slice::<T>()?.iter().map(|x| to(*x)).collect())
    }
    let view = view.slice(0..len);
    let values = match view.dtype() {
        DType::F64 => all(&view, |x: f64| x),
        DType::F32 => all(&view, |x: f32| f64::from(x)),
        DType::Bf16 => all(&view, |x: bf16| f64::from(x.widen())),
        DType::F16 => all(&view, |x: f16| f64::from(x.widen())),
        DType::U32 => all(&view, |x: u32| f64::from(x)),
        DType::I32 => all(&view, |x: i32| f64::from(x)),
        DType::I8 => all(&view, |x: i8| f64::from(x)),
    };
    // Each arm asks for the type that the view has.
    values.unwrap_or_default()
}

/// Writes the first elements, each rounded once to the nearest of the view's type.
pub(super) fn write(view: &mut ViewMut, values: &[f64]) -> Result<()> {
    fn all<T: crate::Element>(view: &mut ViewMut, values: &[f64], to: impl Fn(f64) -> T) -> Result<()> {
        let slots = view.as_slice_mut::<T>()?;
        slots.iter_mut().zip(values).for_each(|(slot, value)| *slot = to(*value));
        Ok(())
    }
    match view.dtype() {
        DType::F64 => all(view, values, |x| x),
        DType::F32 => all(view, values, |x| x as f32),
        DType::Bf16 => all(view, values, |x| bf16::narrow(to_odd(x))),
        DType::F16 => all(view, values, |x| f16::narrow(to_odd(x))),
        DType::U32 => all(view, values, |x| x as u32),
        DType::I32 => all(view, values, |x| x as i32),
        DType::I8 => all(view, values, |x| x as i8),
    }
}
