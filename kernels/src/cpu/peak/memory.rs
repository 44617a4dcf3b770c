//! The ceiling of the memory, measured: bytes per second that cores read, copy and combine in streams.

#![allow(unsafe_code, reason = "vector loads and stores past the cache")]

use crate::cpu::level::{LANES, Level, fold};
use crate::memory::copy;
use crate::numerics::philox;
use crate::threads::pool::Pool;
use crate::{Arena, Buffer, Category, DType, View, ViewMut};
use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Rounds of which the fastest counts, so that a moment lost to another process is no loss of the ceiling.
const ROUNDS: usize = 5;

/// A round goes over the arrays until it has seen this much of one, so that waking the threads takes no part of it.
const ROUND_BYTES: usize = 32 << 20;

/// Floats of a cache line.
const LINE: usize = 16;

/// Bytes per second, all threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryRates {
    /// A sum over one array: bytes read.
    pub read: f64,
    /// One value into one array: bytes written.
    pub write: f64,
    /// One array to another: bytes read and bytes written.
    pub copy: f64,
    /// `a = b + s * c`, the triad of the STREAM benchmark: bytes of the two arrays read and of the one written.
    pub triad: f64,
}

/// One thread's part of the three arrays.
struct Part<'a> {
    a: &'a mut [f32],
    b: &'a mut [f32],
    c: &'a mut [f32],
}

/// Rates of `threads` cores on three arrays of `bytes` each, of which every thread has an equal part that it alone uses.
/// Several times the last cache is the size to ask for where memory is meant; a smaller one measures a cache. Data are
/// random, and the best of five rounds counts, from waking the first thread to the end of the last.
///
/// Write, copy and triad write with non-temporal stores where the CPU has AVX2 or AVX-512: memory is not read before it is
/// written, and what is counted is what moves. Without such stores the written lines are also read, and not counted.
///
/// `None` where it cannot be stated: no threads or fewer than asked for, less than a line of 64 bytes for each, or more
/// memory than the machine has.
pub fn memory(threads: usize, bytes: usize) -> Option<MemoryRates> {
    let len = (bytes / 4).checked_div(threads)? / LINE * LINE;
    if len == 0 {
        return None;
    }
    let arena = Arena::host(None).ok()?;
    let alloc = || arena.alloc(Category::Workspace, DType::F32, len * threads).ok();
    let mut arrays = [alloc()?, alloc()?, alloc()?];
    let pool = Pool::new(threads);
    if pool.threads() != threads {
        return None;
    }
    let level = Level::detect();
    let parts = split(&mut arrays, len);
    let each = |work: &(dyn Fn(usize, &mut Part) + Sync)| {
        pool.run(|index| work(index, &mut parts[index].lock().unwrap_or_else(PoisonError::into_inner)));
    };
    // Every thread is the first to touch its own part, so that the part lies near it.
    each(&|index, part| {
        for (array, slice) in [&mut *part.a, &mut *part.b, &mut *part.c].into_iter().enumerate() {
            fill(slice, (index * 3 + array) as u64);
        }
    });
    let passes = (ROUND_BYTES / (len * 4 * threads)).max(1);
    // `moved` counts an array once for each time it is read or written.
    let best = |moved: usize, work: &(dyn Fn(&mut Part) + Sync)| {
        let round = || {
            let start = Instant::now();
            each(&|_, part| (0..passes).for_each(|_| work(part)));
            start.elapsed().as_secs_f64().max(1e-9)
        };
        let shortest = (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min);
        (moved * passes * len * 4 * threads) as f64 / shortest
    };
    Some(MemoryRates {
        read: best(1, &|part| {
            black_box(sum(level, black_box(part.a)));
        }),
        write: best(1, &|part| write(level, part.a, black_box(0.5))),
        // Both have the part's length and type.
        copy: best(2, &|part| copy::stream(View::of(part.b), ViewMut::of(part.a)).unwrap_or_default()),
        triad: best(3, &|part| triad(level, part)),
    })
}

/// The arrays' elements, `len` for each thread.
fn split(arrays: &mut [Buffer; 3], len: usize) -> Vec<Mutex<Part<'_>>> {
    let [a, b, c] = arrays.each_mut().map(|array| array.view_mut().into_slice_mut::<f32>().unwrap_or_default());
    let parts = a.chunks_exact_mut(len).zip(b.chunks_exact_mut(len)).zip(c.chunks_exact_mut(len));
    parts.map(|((a, b), c)| Mutex::new(Part { a, b, c })).collect()
}

/// Random numbers in [0, 1).
fn fill(slice: &mut [f32], seed: u64) {
    for (block, four) in slice.chunks_mut(4).enumerate() {
        let words = philox::words(seed, philox::RandomStream::Normal, block as u64);
        four.iter_mut().zip(words).for_each(|(x, word)| *x = (word >> 8) as f32 * 2f32.powi(-24));
    }
}

fn sum(level: Level, x: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    level.run(
        #[inline(always)]
        |_| {
            fold(
                &mut lanes,
                x,
                #[inline(always)]
                |sum, x| sum + x,
            )
        },
    );
    lanes
}

/// `a = value`.
fn write(level: Level, a: &mut [f32], value: f32) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `detect` found these features, and the slice begins at a line and has a multiple of one.
        Level::Avx512 => unsafe { machine::write_avx512(a, value) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2 => unsafe { machine::write_avx2(a, value) },
        Level::Portable => a.fill(value),
    }
}

/// `a = b + 3 c`.
fn triad(level: Level, part: &mut Part) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `detect` found these features, and the three slices are of one length, a multiple of a line, the first
        // aligned to one.
        Level::Avx512 => unsafe { machine::avx512(part) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2 => unsafe { machine::avx2(part) },
        Level::Portable => {
            part.a.iter_mut().zip(&*part.b).zip(&*part.c).for_each(|((a, b), c)| *a = b + 3.0 * c);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::{LINE, Part};
    use std::arch::x86_64::*;

    /// # Safety
    /// The CPU has AVX-512; the slice begins at a line and has a multiple of one.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn write_avx512(a: &mut [f32], value: f32) {
        let value = _mm512_set1_ps(value);
        for line in a.chunks_exact_mut(LINE) {
            // SAFETY: a line of 16 floats, aligned as the caller says.
            unsafe { _mm512_stream_ps(line.as_mut_ptr(), value) };
        }
        _mm_sfence();
    }

    /// # Safety
    /// As [`write_avx512`] of AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn write_avx2(a: &mut [f32], value: f32) {
        let value = _mm256_set1_ps(value);
        for half in a.chunks_exact_mut(LINE / 2) {
            // SAFETY: as above, of half a line.
            unsafe { _mm256_stream_ps(half.as_mut_ptr(), value) };
        }
        _mm_sfence();
    }

    /// # Safety
    /// The CPU has AVX-512; the slices have one length, a multiple of a line; the first is aligned to a line.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(part: &mut Part) {
        let (a, b, c) = (part.a.as_mut_ptr(), part.b.as_ptr(), part.c.as_ptr());
        let three = _mm512_set1_ps(3.0);
        for i in (0..part.a.len()).step_by(LINE) {
            // SAFETY: inside the slices, and aligned, as the caller says.
            unsafe {
                let sum = _mm512_fmadd_ps(_mm512_loadu_ps(c.add(i)), three, _mm512_loadu_ps(b.add(i)));
                _mm512_stream_ps(a.add(i), sum);
            }
        }
        _mm_sfence();
    }

    /// # Safety
    /// As [`avx512`] of AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2(part: &mut Part) {
        let (a, b, c) = (part.a.as_mut_ptr(), part.b.as_ptr(), part.c.as_ptr());
        let three = _mm256_set1_ps(3.0);
        for i in (0..part.a.len()).step_by(LINE / 2) {
            // SAFETY: as above.
            unsafe {
                let sum = _mm256_fmadd_ps(_mm256_loadu_ps(c.add(i)), three, _mm256_loadu_ps(b.add(i)));
                _mm256_stream_ps(a.add(i), sum);
            }
        }
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_stated_where_they_can_be() {
        for (threads, bytes) in [(1, 1 << 20), (2, 300_000), (3, 192)] {
            let rates = memory(threads, bytes).unwrap();
            for rate in [rates.read, rates.copy, rates.triad] {
                assert!(rate.is_finite() && rate > 0.0, "{rates:?}");
            }
        }
        assert_eq!((memory(0, 1 << 20), memory(2, 127), memory(1, 0)), (None, None, None));
        assert_eq!(memory(1, usize::MAX), None);
    }

    #[test]
    fn every_write_writes_all() {
        for level in Level::available() {
            let arena = Arena::host(None).unwrap();
            let mut array = arena.alloc(Category::Workspace, DType::F32, 4 * LINE).unwrap();
            let slice = array.view_mut().into_slice_mut::<f32>().unwrap();
            slice.fill(-1.0);
            write(level, &mut slice[LINE..3 * LINE], 0.5);
            let written = |i: usize| (LINE..3 * LINE).contains(&i);
            let is_right = |(i, x): (usize, &f32)| *x == if written(i) { 0.5 } else { -1.0 };
            assert!(slice.iter().enumerate().all(is_right), "{level:?}");
        }
    }

    #[test]
    fn every_triad_is_the_stated_one() {
        for level in Level::available() {
            let arena = Arena::host(None).unwrap();
            let len = 3 * LINE;
            let mut arrays = [(); 3].map(|()| arena.alloc(Category::Workspace, DType::F32, 2 * len).unwrap());
            for part in split(&mut arrays, len) {
                let mut part = part.into_inner().unwrap();
                fill(part.b, 1);
                fill(part.c, 2);
                triad(level, &mut part);
                for ((a, b), c) in part.a.iter().zip(&*part.b).zip(&*part.c) {
                    // One rounding of the product and one of the sum, of numbers up to 3 and 4.
                    assert!((a - (b + 3.0 * c)).abs() <= 1e-6, "{level:?}");
                }
            }
        }
    }
}
