//! The ceilings of the machine, measured: how many floating-point operations per second the cores do on registers alone,
//! and how many bytes per second they move.

#![allow(unsafe_code, reason = "loops of instructions that the CPU was asked for")]

mod memory;

use crate::DType;
use crate::cpu::matmul::path::Path;
use crate::threads::affinity::keep_to;
pub use memory::{MemoryRates, memory};
use std::time::{Duration, Instant};

/// A thread's rate is that of its best stretch of this length, so that a moment lost to another process is no loss of
/// the ceiling.
const STRETCH: Duration = Duration::from_micros(500);

/// Floating-point operations per second of `threads` cores in `dtype`, measured for about `seconds`: every thread runs
/// a loop of multiply-adds on registers, and the rates of the threads are added. `None` where it cannot be stated: a
/// CPU without vector instructions that we have a loop for, a type that no kernel computes in, no threads or fewer than
/// asked for, or a time that is not positive.
///
/// bf16 is the rate of the AMX tiles where the CPU has them, else of dot products of pairs where it has those and they are
/// faster. Where it has neither, and for f16, it is the rate of f32, because those kernels widen to f32.
pub fn measure(threads: usize, dtype: DType, seconds: f64) -> Option<f64> {
    measure_on(&[], threads, dtype, seconds)
}

/// The same with threads on these cores, the calling thread in place of the first; where the system refuses a core, or none is given,
/// the thread runs where the calling one may.
pub fn measure_on(cores: &[usize], threads: usize, dtype: DType, seconds: f64) -> Option<f64> {
    let burst = machine::burst(dtype)?;
    if threads == 0 || !(seconds > 0.0 && seconds.is_finite()) {
        return None;
    }
    let time = Duration::try_from_secs_f64(seconds).ok()?;
    std::thread::scope(|scope| {
        let start = |thread: usize| {
            let rate = move || {
                let _ = cores.get(thread).map(|core| keep_to(*core));
                best_rate(burst, time)
            };
            std::thread::Builder::new().spawn_scoped(scope, rate).ok()
        };
        let others: Vec<_> = (1..threads).map(start).collect();
        let own = best_rate(burst, time);
        others.into_iter().try_fold(own, |sum, other| Some(sum + other?.join().ok()?))
    })
}

/// Instruction sets that we have code for and this CPU has, slowest first: `portable`, `avx2`, `avx512`, `avx512-bf16`
/// (before `avx512` where it is slower), `amx-bf16`.
pub fn describe() -> Vec<&'static str> {
    Path::available().into_iter().map(Path::name).collect()
}

/// The rate of this thread, from the best stretch.
fn best_rate(burst: fn() -> u64, time: Duration) -> f64 {
    let begin = Instant::now();
    let mut best = 0.0f64;
    loop {
        let (start, mut done) = (Instant::now(), 0);
        while start.elapsed() < STRETCH {
            done += burst();
        }
        best = best.max(done as f64 / start.elapsed().as_secs_f64());
        if begin.elapsed() >= time {
            return best;
        }
    }
}

/// No loop of ours is known to reach the ceiling of another architecture.
#[cfg(not(target_arch = "x86_64"))]
mod machine {
    pub(super) fn burst(_: crate::DType) -> Option<fn() -> u64> {
        None
    }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use crate::DType;
    use crate::cpu::level::Level;
    use crate::cpu::matmul::amx::CONFIG;
    use crate::cpu::matmul::path::Path;
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// Rounds of a burst, some 10 microseconds.
    pub(super) const ROUNDS: u64 = 2048;

    /// A stretch of multiply-adds in `dtype`, which says how many operations it did.
    pub(super) fn burst(dtype: DType) -> Option<fn() -> u64> {
        match dtype {
            DType::Bf16 => match Path::detect() {
                // SAFETY: `detect` found the feature and asked for its use.
                Path::Amx => Some(|| unsafe { amx_burst() }),
                // SAFETY: as above.
                Path::Avx512Bf16 => Some(|| unsafe { avx512_bf16_burst() }),
                Path::Portable | Path::Avx2 | Path::Avx512 => burst(DType::F32),
            },
            DType::F32 | DType::F16 => match Level::detect() {
                // SAFETY: `detect` found the features.
                Level::Avx512 => Some(|| unsafe { avx512_burst() }),
                // SAFETY: as above.
                Level::Avx2 => Some(|| unsafe { avx2_burst() }),
                Level::Portable => None,
            },
            DType::F64 | DType::U32 | DType::I32 | DType::I8 => None,
        }
    }

    /// Twelve independent sums hide the latency of four cycles at two multiply-adds per cycle.
    #[target_feature(enable = "avx512f")]
    fn avx512_burst() -> u64 {
        let (a, b) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(1e-3)));
        let mut sums = [b; 12];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, a, b);
            }
        }
        black_box(sums);
        ROUNDS * 12 * 16 * 2
    }

    /// As [`avx512_burst`] with dot products of pairs, whose latency is longer.
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn avx512_bf16_burst() -> u64 {
        // SAFETY: two vector types of one size, of which any bits are values.
        let pair: __m512bh = unsafe { std::mem::transmute(_mm512_set1_epi32(black_box(0x3f00_3f01))) };
        let mut sums = [_mm512_set1_ps(black_box(1e-3)); 16];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, pair, pair);
            }
        }
        black_box(sums);
        ROUNDS * 16 * 32 * 2
    }

    /// As [`avx512_burst`] with registers of half the width.
    #[target_feature(enable = "avx2,fma")]
    fn avx2_burst() -> u64 {
        let (a, b) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(1e-3)));
        let mut sums = [b; 12];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, a, b);
            }
        }
        black_box(sums);
        ROUNDS * 12 * 8 * 2
    }

    /// Four accumulator tiles hide the latency of 52 cycles at one product of tiles in 16 cycles.
    ///
    /// # Safety
    /// The CPU has AMX bf16 and the process may use it ([`has_amx`]).
    pub(super) unsafe fn amx_burst() -> u64 {
        // SAFETY: AMX may be used; tiles are configured before and released after, and zero times zero stays zero.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
                "2:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {rounds}",
                "jnz 2b",
                "tilerelease",
                config = in(reg) &raw const CONFIG,
                rounds = inout(reg) ROUNDS => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
        // A product of tiles is 16 x 16 sums of 32 products.
        ROUNDS * 4 * 16 * 16 * 32 * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_stated_only_where_it_can_be() {
        assert_eq!(measure(0, DType::F32, 0.01), None);
        assert_eq!(measure(1, DType::F32, 0.0), None);
        assert_eq!(measure(1, DType::F32, f64::NAN), None);
        assert_eq!(measure(1, DType::F64, 0.01), None);
        assert_eq!(measure(1, DType::U32, 0.01), None);
        let has_loop = describe().len() > 1;
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let rate = measure(1, dtype, 0.002);
            assert_eq!(rate.is_some(), has_loop, "{dtype}");
            assert!(rate.is_none_or(|rate| rate > 1e8 && rate < 1e15), "{dtype}: {rate:?}");
        }
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[test]
    fn a_burst_of_tiles_counts_what_it_does() {
        use super::machine::{ROUNDS, amx_burst};
        use zbench_kernels_testing::amx::{Engine, install, state};
        let (engine, before) = (install(), state().dots);
        // SAFETY: AMX is there, if only by the emulator.
        let operations = unsafe { amx_burst() };
        assert_eq!(operations, ROUNDS * 4 * 16 * 16 * 32 * 2);
        if engine == Engine::Emulator {
            // It refuses products of tiles that are not configured in full, and counts the others.
            assert_eq!((state().dots - before) * 16 * 16 * 32 * 2, operations);
            assert!(!state().configured, "tiles are given back");
        }
    }
}
