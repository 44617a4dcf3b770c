//! Halves to floats and back by the instructions for it: several times as fast as [`crate::numerics::round`]'s arithmetic, whose
//! bits they give for every number. Tails go through a vector of their own, so that an element's bits, those of a NaN
//! too, do not depend on where it lies.

#![allow(unsafe_code, reason = "vector instructions that the CPU was asked for")]

use super::level::Level;
use crate::numerics::round::Float32;
use half::f16;

/// `into = from`; exact.
pub(super) fn widen(level: Level, from: &[f16], into: &mut [f32]) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `available` found the features.
        Level::Avx512 => unsafe { machine::widen16(from, into) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2 => unsafe { machine::widen8(from, into) },
        Level::Portable => into.iter_mut().zip(from).for_each(|(to, from)| *to = from.widen()),
    }
}

/// `into = from`, each the nearest, ties to even.
pub(super) fn narrow(level: Level, from: &[f32], into: &mut [f16]) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `available` found the features.
        Level::Avx512 => unsafe { machine::narrow16(from, into) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2 => unsafe { machine::narrow8(from, into) },
        Level::Portable => into.iter_mut().zip(from).for_each(|(to, from)| *to = f16::narrow(*from)),
    }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use half::f16;
    use std::arch::x86_64::*;

    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

    /// A loop of `$vector` over whole vectors of `$n`, and over the rest padded to one. A macro, since a closure with
    /// these instructions would not be inlined into a function without them.
    macro_rules! conversion {
        ($name:ident, $features:literal, $n:literal, $a:ty => $b:ty, |$from:ident, $into:ident| $vector:expr) => {
            #[target_feature(enable = $features)]
            pub(super) fn $name(from: &[$a], into: &mut [$b]) {
                let len = from.len().min(into.len());
                let (whole, rest) = from[..len].as_chunks::<$n>();
                let (targets, last) = into[..len].as_chunks_mut::<$n>();
                for (from, into) in whole.iter().zip(targets) {
                    let ($from, $into) = (from.as_ptr(), into.as_mut_ptr());
                    // SAFETY: both arrays are as long as the vector that is read and the one that is written.
                    unsafe { $vector };
                }
                let (mut source, mut target) = ([<$a>::default(); $n], [<$b>::default(); $n]);
                source[..rest.len()].copy_from_slice(rest);
                let ($from, $into) = (source.as_ptr(), target.as_mut_ptr());
                // SAFETY: as above.
                unsafe { $vector };
                last.copy_from_slice(&target[..rest.len()]);
            }
        };
    }

    conversion!(widen16, "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,bmi2", 16, f16 => f32, |from, into| {
        _mm512_storeu_ps(into, _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())))
    });
    conversion!(narrow16, "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,bmi2", 16, f32 => f16, |from, into| {
        _mm256_storeu_si256(into.cast(), _mm512_cvtps_ph::<NEAREST>(_mm512_loadu_ps(from)))
    });
    conversion!(widen8, "avx2,fma,bmi2,f16c", 8, f16 => f32, |from, into| {
        _mm256_storeu_ps(into, _mm256_cvtph_ps(_mm_loadu_si128(from.cast())))
    });
    conversion!(narrow8, "avx2,fma,bmi2,f16c", 8, f32 => f16, |from, into| {
        _mm_storeu_si128(into.cast(), _mm256_cvtps_ph::<NEAREST>(_mm256_loadu_ps(from)))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_and_arithmetic_give_the_same_bits() {
        let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        // Every half, both neighbours in f32, the middle of two halves and its neighbours: 2^13 floats lie between halves.
        let nudges = [0i32, 1, -1, 0xfff, 0x1000, 0x1001];
        let floats: Vec<f32> = halves
            .iter()
            .flat_map(|half| nudges.map(|nudge| f32::from_bits(half.widen().to_bits().wrapping_add_signed(nudge))))
            .chain([f32::MAX, f32::MIN_POSITIVE, 1e-45, 65_519.996, 65_520.0, -1e-8])
            .collect();
        for level in Level::available() {
            // From every place in a vector.
            for start in 0..17 {
                let mut wide = vec![0.0; halves.len() - start];
                widen(level, &halves[start..], &mut wide);
                for (half, wide) in halves[start..].iter().zip(&wide) {
                    let same = wide.to_bits() == half.widen().to_bits();
                    assert!(same || half.is_nan() && wide.is_nan(), "{level:?}: {half:?} became {wide}");
                }
                let mut narrowed = vec![f16::ZERO; floats.len() - start];
                narrow(level, &floats[start..], &mut narrowed);
                for (float, half) in floats[start..].iter().zip(&narrowed) {
                    let same = half.to_bits() == f16::narrow(*float).to_bits();
                    assert!(same || half.is_nan() && float.is_nan(), "{level:?}: {float} became {half:?}");
                }
            }
        }
    }
}
