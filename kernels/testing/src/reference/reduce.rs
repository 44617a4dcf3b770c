//! Reductions of several buffers, in f64 and in i64.

use super::values::{read, write};
use zbench_kernels::{DType, Element, ReduceOp, Result, View, ViewMut};

/// Pairs, pairs of pairs and so on, the odd one carried up.
fn tree<T: Copy>(mut level: Vec<Vec<T>>, join: impl Fn(T, T) -> T) -> Vec<T> {
    while level.len() > 1 {
        let pair = |pair: &[Vec<T>]| match pair {
            [a, b] => a.iter().zip(b).map(|(a, b)| join(*a, *b)).collect(),
            _ => pair[0].clone(),
        };
        level = level.chunks(2).map(pair).collect();
    }
    // One source or more, so one result is left.
    level.swap_remove(0)
}

pub(super) fn floats(op: ReduceOp, sources: &[View], accumulate: bool, mut dst: ViewMut) -> Result<()> {
    let values = sources.iter().map(|source| read(source, source.len())).collect();
    let mut total = match op {
        ReduceOp::Sum | ReduceOp::Avg => tree(values, |a, b| a + b),
        ReduceOp::Prod => tree(values, |a, b| a * b),
        ReduceOp::Min => tree(values, f64::min),
        ReduceOp::Max => tree(values, f64::max),
    };
    if op == ReduceOp::Avg {
        total.iter_mut().for_each(|x| *x *= 1.0 / sources.len() as f64);
    }
    if accumulate {
        total = tree(vec![read(&dst.as_view(), dst.len()), total], |a, b| a + b);
    }
    write(&mut dst, &total)
}

pub(super) fn integers(op: ReduceOp, sources: &[View], mut dst: ViewMut) -> Result<()> {
    fn all<T: Element>(view: &View, to: impl Fn(T) -> i64) -> Result<Vec<i64>> {
        Ok(view.as_slice::<T>()?.iter().map(|x| to(*x)).collect())
    }
    fn put<T: Element>(view: &mut ViewMut, values: &[i64], to: impl Fn(i64) -> T) -> Result<()> {
        view.as_slice_mut::<T>()?.iter_mut().zip(values).for_each(|(slot, value)| *slot = to(*value));
        Ok(())
    }
    let dtype = dst.dtype();
    let read = |view: &View| match dtype {
        DType::I8 => all(view, |x: i8| i64::from(x)),
        DType::I32 => all(view, |x: i32| i64::from(x)),
        _ => all(view, |x: u32| i64::from(x)),
    };
    let values = sources.iter().map(read).collect::<Result<Vec<_>>>()?;
    let count = sources.len() as i64;
    let mut total = match op {
        ReduceOp::Sum | ReduceOp::Avg => tree(values, i64::wrapping_add),
        ReduceOp::Prod => tree(values, i64::wrapping_mul),
        ReduceOp::Min => tree(values, i64::min),
        ReduceOp::Max => tree(values, i64::max),
    };
    if op == ReduceOp::Avg {
        total.iter_mut().for_each(|x| *x /= count);
    }
    match dtype {
        DType::I8 => put(&mut dst, &total, |x| x as i8),
        DType::I32 => put(&mut dst, &total, |x| x as i32),
        _ => put(&mut dst, &total, |x| x as u32),
    }
}
