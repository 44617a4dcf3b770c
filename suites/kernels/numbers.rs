//! Elements as f64, places to look at, and random buffers.

use crate::bench::BenchError;
use half::{bf16, f16};
use zbench_kernels::numerics::philox;
use zbench_kernels::{Arena, Buffer, Category, DType, Kernels, Normal, Op, View, no_scratch};

/// The elements of a view as f64. A type that no kernel computes in has none.
pub fn floats(view: View<'_>) -> Vec<f64> {
    let all = match view.dtype() {
        DType::F32 => view.as_slice::<f32>().map(|x| x.iter().map(|x| f64::from(*x)).collect()),
        DType::Bf16 => view.as_slice::<bf16>().map(|x| x.iter().map(|x| x.to_f64()).collect()),
        DType::F16 => view.as_slice::<f16>().map(|x| x.iter().map(|x| x.to_f64()).collect()),
        _ => view.as_slice::<f64>().map(<[f64]>::to_vec),
    };
    all.unwrap_or_default()
}

/// One element as f64; no number where no kernel computes in the type.
pub fn float(view: View<'_>, place: usize) -> f64 {
    match view.dtype() {
        DType::F32 => view.as_slice::<f32>().map(|x| f64::from(x[place])),
        DType::Bf16 => view.as_slice::<bf16>().map(|x| x[place].to_f64()),
        DType::F16 => view.as_slice::<f16>().map(|x| x[place].to_f64()),
        _ => view.as_slice::<f64>().map(|x| x[place]),
    }
    .unwrap_or(f64::NAN)
}

/// Half a unit in the last place of a type, as a share of the number.
pub fn half_ulp(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 2f64.powi(-53),
        DType::Bf16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-24),
    }
}

/// Up to `count` different numbers below `len`: the first, the last, and others by chance, always the same.
pub fn places(len: usize, count: usize, seed: u64) -> Vec<usize> {
    if len <= count {
        return (0..len).collect();
    }
    let draws = (0..count as u64).map(|i| {
        let [a, b, ..] = philox::words(seed, philox::RandomStream::Dropout, i);
        (((u128::from(a) << 32 | u128::from(b)) * len as u128) >> 64) as usize
    });
    let mut all: Vec<usize> = [0, len - 1].into_iter().chain(draws).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// A buffer of standard normal deviates.
pub fn random(
    arena: &Arena,
    kernels: &dyn Kernels,
    category: Category,
    dtype: DType,
    len: usize,
    seed: u64,
) -> Result<Buffer, BenchError> {
    let mut buffer = arena.alloc(category, dtype, len)?;
    let normal = Normal { len, std: 1.0, seed, first: 0, dtype };
    kernels.run(&Op::Normal(normal), &[], &mut [buffer.view_mut()], no_scratch())?;
    Ok(buffer)
}

/// A copy on the host of what lies on a device; nothing of what lies on the host already.
pub fn copied(kernels: &dyn Kernels, buffer: &Buffer) -> Result<Option<Buffer>, BenchError> {
    if kernels.is_host() {
        return Ok(None);
    }
    let arena = Arena::host(None)?;
    let mut copy = arena.alloc(buffer.category(), buffer.dtype(), buffer.len())?;
    kernels.download(buffer.view(), copy.view_mut())?;
    Ok(Some(copy))
}

/// The buffer itself if it is on the host, else a copy there.
pub fn on_host(kernels: &dyn Kernels, buffer: Buffer) -> Result<Buffer, BenchError> {
    Ok(copied(kernels, &buffer)?.unwrap_or(buffer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_inside_different_and_reach_both_ends() {
        assert_eq!(places(0, 5, 1), [0usize; 0]);
        assert_eq!(places(3, 5, 1), [0, 1, 2]);
        for len in [7, 1000, usize::MAX] {
            let found = places(len, 6, 3);
            assert!(found.windows(2).all(|pair| pair[0] < pair[1]) && found.len() >= 4, "{found:?}");
            assert_eq!((found[0], found[found.len() - 1]), (0, len - 1));
        }
    }

    #[test]
    fn types_are_widened_exactly() {
        assert_eq!(floats(View::of(&[1.5f32, -2.0])), [1.5, -2.0]);
        assert_eq!(floats(View::of(&[bf16::from_f32(1.5)])), [1.5]);
        assert_eq!(float(View::of(&[f16::from_f32(0.25), f16::from_f32(3.0)]), 1), 3.0);
    }
}
