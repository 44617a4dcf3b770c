//! Reductions against oracles of their own, for every type, operation, length and number of sources.

use crate::carried::all;
use crate::harness::*;
use half::{bf16, f16};
use zbench_kernels::numerics::philox;
use zbench_kernels::{DType, KernelError, Kernels, ReduceOp, View};
use zbench_kernels_testing::Reference;
use zbench_test_tiers as tiers;

/// Around vectors, chunks, and what is worth another thread.
const LENGTHS: [usize; 9] = [0, 1, 7, 64, 513, 1000, 1537, 8193, 16_500];
const INTEGERS: [DType; 3] = [DType::I32, DType::I8, DType::U32];
const ALL_FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::Bf16, DType::F16];

/// Pairs, pairs of pairs and so on, the odd one carried up.
fn tree<T: Copy>(sources: &[T], join: impl Fn(T, T) -> T) -> T {
    let mut level = sources.to_vec();
    while level.len() > 1 {
        level = level.chunks(2).map(|pair| pair.iter().copied().reduce(&join).unwrap()).collect();
    }
    level[0]
}

fn views(sources: &[Tensor]) -> Vec<View<'_>> {
    sources.iter().map(Tensor::view).collect()
}

/// Where columns of the sources' values meet.
fn column<T: Copy>(sources: &[Vec<T>], i: usize) -> Vec<T> {
    sources.iter().map(|source| source[i]).collect()
}

/// What floats are joined to in f32, as the contract says it.
fn join_f32(op: ReduceOp, terms: &[f32]) -> f32 {
    match op {
        ReduceOp::Sum => tree(terms, |a, b| a + b),
        ReduceOp::Prod => tree(terms, |a, b| a * b),
        ReduceOp::Min => tree(terms, f32::min),
        ReduceOp::Max => tree(terms, f32::max),
        ReduceOp::Avg => tree(terms, |a, b| a + b) * (1.0 / terms.len() as f32),
    }
}

fn join_f64(op: ReduceOp, terms: &[f64]) -> f64 {
    match op {
        ReduceOp::Sum => tree(terms, |a, b| a + b),
        ReduceOp::Prod => tree(terms, |a, b| a * b),
        ReduceOp::Min => tree(terms, f64::min),
        ReduceOp::Max => tree(terms, f64::max),
        ReduceOp::Avg => tree(terms, |a, b| a + b) * (1.0 / terms.len() as f64),
    }
}

fn accumulates(op: ReduceOp) -> bool {
    matches!(op, ReduceOp::Sum | ReduceOp::Avg)
}

#[test]
fn floats_are_the_documented_tree_to_the_bit() {
    for dtype in FLOATS {
        for count in 1..=9 {
            for (case, len) in LENGTHS.into_iter().enumerate() {
                // Every third, so that all lengths meet all counts of some type and the test stays short.
                if (case + count) % 3 != 0 && count != 2 {
                    continue;
                }
                let sources: Vec<Tensor> = (0..count).map(|s| Tensor::normal(dtype, len, s as u64)).collect();
                let start = Tensor::normal(dtype, len, 99);
                let values: Vec<Vec<f64>> = sources.iter().map(Tensor::values).collect();
                for op in ReduceOp::ALL {
                    for accumulate in [false, true] {
                        if accumulate && !accumulates(op) {
                            continue;
                        }
                        let old = start.values();
                        let want = |i: usize| {
                            let terms: Vec<f32> = column(&values, i).iter().map(|x| *x as f32).collect();
                            let joined = join_f32(op, &terms);
                            f64::from(if accumulate { old[i] as f32 + joined } else { joined })
                        };
                        let want = Tensor::of(dtype, &(0..len).map(want).collect::<Vec<_>>());
                        for device in all() {
                            let mut got = guarded(start.clone());
                            device.reduce(op, &views(&sources), accumulate, got.view_mut().into_slice(0..len)).unwrap();
                            let case = format!("{op} of {count} {dtype}, {len}, {}", device.name());
                            assert_eq!(got.bits()[..len], want.bits(), "{case}");
                            assert!(got.values()[len..].iter().all(|x| *x == 77.0), "{case} wrote past the end");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn more_sources_than_any_machine_has_ranks_keep_the_tree() {
    // More than a block of the CUDA kernels takes at a time, and a rest.
    let len = 2100;
    for count in [10, 11, 12, 13, 15, 16, 17, 19, 27, 28, 29, 31, 33, 64, 100, 256, 257, 300] {
        let sources: Vec<Tensor> = (0..count).map(|s| Tensor::normal(DType::F32, len, s)).collect();
        let values: Vec<Vec<f64>> = sources.iter().map(Tensor::values).collect();
        let term = |i: usize| column(&values, i).iter().map(|x| *x as f32).collect::<Vec<f32>>();
        let want: Vec<f64> = (0..len).map(|i| f64::from(join_f32(ReduceOp::Sum, &term(i)))).collect();
        let want = Tensor::of(DType::F32, &want);
        for device in [&CPUS[1] as &dyn Kernels, &CUDAS[0], &CUDAS[1]] {
            let mut got = Tensor::filled(DType::F32, len, f64::NAN);
            device.reduce(ReduceOp::Sum, &views(&sources), false, got.view_mut()).unwrap();
            assert_eq!(got.bits(), want.bits(), "{count} sources, {}", device.name());
        }
    }
}

/// Sources and destination of different float types: f32 in between, or f64 when any is.
#[test]
fn float_types_mix() {
    let len = 1111;
    for (number, to) in ALL_FLOATS.into_iter().enumerate() {
        for count in 1..=9 {
            // All four types, or the three that are joined in f32.
            let kinds = if count % 2 == 0 { &ALL_FLOATS[..] } else { &FLOATS[..] };
            let from = |s: usize| kinds[(number + s) % kinds.len()];
            let sources: Vec<Tensor> = (0..count).map(|s| Tensor::normal(from(s), len, s as u64)).collect();
            let double = to == DType::F64 || sources.iter().any(|source| source.dtype == DType::F64);
            let values: Vec<Vec<f64>> = sources.iter().map(Tensor::values).collect();
            for op in ReduceOp::ALL {
                let want = |i: usize| {
                    let terms = column(&values, i);
                    let narrow: Vec<f32> = terms.iter().map(|x| *x as f32).collect();
                    if double { join_f64(op, &terms) } else { f64::from(join_f32(op, &narrow)) }
                };
                let want = Tensor::of(to, &(0..len).map(want).collect::<Vec<_>>());
                for device in all() {
                    let mut got = Tensor::filled(to, len, f64::NAN);
                    device.reduce(op, &views(&sources), false, got.view_mut()).unwrap();
                    assert_eq!(got.bits(), want.bits(), "{op} of {count} to {to}, {}", device.name());
                    let old = Tensor::normal(to, len, 55);
                    if accumulates(op) {
                        let mut both = old.clone();
                        device.reduce(op, &views(&sources), true, both.view_mut()).unwrap();
                        let mut exact = old.exact();
                        Reference.reduce(op, &views(&sources), true, exact.view_mut()).unwrap();
                        assert_close(&format!("{op} of {count}, added to {to}"), &both, &exact.values());
                    }
                }
            }
        }
    }
}

#[test]
fn the_reference_is_the_tree_in_f64() {
    let len = 300;
    for dtype in ALL_FLOATS {
        for count in 1..=9 {
            let sources: Vec<Tensor> = (0..count).map(|s| Tensor::normal(dtype, len, s as u64)).collect();
            let values: Vec<Vec<f64>> = sources.iter().map(Tensor::values).collect();
            for op in ReduceOp::ALL {
                let want: Vec<f64> = (0..len).map(|i| join_f64(op, &column(&values, i))).collect();
                let mut got = Tensor::filled(dtype, len, f64::NAN);
                Reference.reduce(op, &views(&sources), false, got.view_mut()).unwrap();
                assert_eq!(got.bits(), Tensor::of(dtype, &want).bits(), "{op} of {count} {dtype}");
                let mut cores = Tensor::filled(dtype, len, f64::NAN);
                CPUS[1].reduce(op, &views(&sources), false, cores.view_mut()).unwrap();
                assert_close(&format!("{op} of {count} {dtype}"), &cores, &want);
            }
        }
    }
}

/// Elements over the whole range of the type, and its ends.
fn random_integers(dtype: DType, len: usize, seed: u64) -> (Tensor, Vec<i64>) {
    let word = |i: usize| philox::words(seed, philox::RandomStream::Dropout, i as u64 / 4)[i % 4];
    let ends = |i: usize| [i32::MIN as u32, i32::MAX as u32, 0, u32::MAX][word(i) as usize / 16 % 4];
    let words: Vec<u32> = (0..len).map(|i| if word(i) % 16 == 0 { ends(i) } else { word(i) }).collect();
    match dtype {
        DType::I32 => {
            let values: Vec<i32> = words.iter().map(|x| *x as i32).collect();
            (Tensor::exactly(&values), values.iter().map(|x| i64::from(*x)).collect())
        }
        DType::I8 => {
            let values: Vec<i8> = words.iter().map(|x| (*x >> 24) as i8).collect();
            (Tensor::exactly(&values), values.iter().map(|x| i64::from(*x)).collect())
        }
        _ => (Tensor::exactly(&words), words.iter().map(|x| i64::from(*x)).collect()),
    }
}

/// The low bits, as [`Tensor::bits`] gives them.
fn cut(dtype: DType, value: i64) -> u64 {
    value as u64 & if dtype.size() == 1 { 0xff } else { 0xffff_ffff }
}

#[test]
fn integers_are_exact_and_wrap() {
    for dtype in INTEGERS {
        for count in tiers::some("reduce::integers_are_exact_and_wrap (summands)", 1..=9usize, [3, 9]) {
            for len in LENGTHS {
                let made: Vec<_> = (0..count).map(|s| random_integers(dtype, len, s as u64 + 7)).collect();
                let (sources, values): (Vec<Tensor>, Vec<Vec<i64>>) = made.into_iter().unzip();
                for op in ReduceOp::ALL {
                    let want = |i: usize| {
                        let terms = column(&values, i);
                        let result = match op {
                            ReduceOp::Sum => terms.iter().sum(),
                            ReduceOp::Prod => terms.iter().fold(1, |a: i64, b| a.wrapping_mul(*b)),
                            ReduceOp::Min => *terms.iter().min().unwrap(),
                            ReduceOp::Max => *terms.iter().max().unwrap(),
                            ReduceOp::Avg => terms.iter().sum::<i64>() / count as i64,
                        };
                        cut(dtype, result)
                    };
                    let want: Vec<u64> = (0..len).map(want).collect();
                    let other = random_integers(dtype, len, 1000).0;
                    for kernels in all().chain([&Reference as &dyn Kernels]) {
                        let mut got = other.clone();
                        kernels.reduce(op, &views(&sources), false, got.view_mut()).unwrap();
                        assert_eq!(got.bits(), want, "{op} of {count} {dtype}, {len}, {}", kernels.name());
                    }
                }
            }
        }
    }
}

#[test]
fn a_number_wins_over_a_nan_and_nothing_over_two() {
    let nan = f32::NAN;
    let (a, b) = ([nan, 1.0, nan, -0.0, f32::INFINITY], [2.0, nan, nan, -1.0, 3.0]);
    // So long that vectors and tails both see it.
    let repeat = |x: [f32; 5]| Tensor::exactly(&x.iter().cycle().take(103).copied().collect::<Vec<_>>());
    for (op, want) in
        [(ReduceOp::Min, [2.0, 1.0, nan, -1.0, 3.0]), (ReduceOp::Max, [2.0, 1.0, nan, 0.0, f32::INFINITY])]
    {
        for kernels in all().chain([&Reference as &dyn Kernels]) {
            let mut got = Tensor::filled(DType::F32, 103, 5.0);
            kernels.reduce(op, &[repeat(a).view(), repeat(b).view()], false, got.view_mut()).unwrap();
            for (i, got) in got.view().as_slice::<f32>().unwrap().iter().enumerate() {
                let want = want[i % 5];
                assert!(*got == want || got.is_nan() && want.is_nan(), "{op}: {got}, not {want}, {}", kernels.name());
            }
        }
    }
}

/// A sum that no half holds is rounded after the division, not before.
#[test]
fn an_average_is_rounded_once() {
    let halves = Tensor::exactly(&[f16::from_f32(60_000.0); 33]);
    let brains = Tensor::exactly(&[bf16::from_f32(3.0e38); 33]);
    for device in all() {
        let mut got = Tensor::filled(DType::F16, 33, 0.0);
        device.reduce(ReduceOp::Avg, &[halves.view(); 4], false, got.view_mut()).unwrap();
        assert_eq!(got.bits(), halves.bits());
        let mut got = Tensor::filled(DType::F32, 33, 0.0);
        device.reduce(ReduceOp::Avg, &[brains.view(); 3], false, got.view_mut()).unwrap();
        assert!(got.values().iter().all(|x| *x == f64::INFINITY), "the sum is kept in f32");
        let mut got = Tensor::filled(DType::F64, 33, 0.0);
        device.reduce(ReduceOp::Avg, &[brains.view(); 3], false, got.view_mut()).unwrap();
        assert!(got.values().iter().all(|x| (*x / 3.0e38 - 1.0).abs() < 1e-2), "the sum is kept in f64");
    }
}

/// Sources and results that begin anywhere.
#[test]
fn an_element_is_the_same_wherever_its_buffers_begin() {
    let len = 4500;
    for dtype in FLOATS {
        for count in [2, 5, 30] {
            let sources: Vec<Tensor> = (0..count).map(|s| Tensor::normal(dtype, len, s)).collect();
            let mut whole = Tensor::filled(dtype, len, 0.5);
            CPUS[0].reduce(ReduceOp::Avg, &views(&sources), true, whole.view_mut()).unwrap();
            for device in CUDAS.iter() {
                for (start, size) in [(0, len), (1, len - 1), (8, 2048), (3, 2100), (16, 4400)] {
                    let parts: Vec<View> = sources.iter().map(|s| s.view().slice(start..start + size)).collect();
                    let mut got = Tensor::filled(dtype, len, 0.5);
                    device.reduce(ReduceOp::Avg, &parts, true, got.view_mut().into_slice(start..start + size)).unwrap();
                    let (got, whole) = (got.bits(), whole.bits());
                    assert_eq!(got[start..start + size], whole[start..start + size], "{count} {dtype} at {start}");
                }
            }
        }
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    for kernels in [&CPUS[1] as &dyn Kernels, &CUDAS[0], &Reference] {
        let (floats, ints, bytes) =
            (Tensor::normal(DType::F32, 4, 1), Tensor::exactly(&[1i32; 4]), Tensor::exactly(&[1i8; 4]));
        for (from, to) in [(&floats, &ints), (&ints, &floats), (&bytes, &ints), (&ints, &bytes)] {
            let mut dst = to.clone();
            let error = kernels.reduce(ReduceOp::Sum, &[to.view(), from.view()], false, dst.view_mut()).unwrap_err();
            assert_eq!(error, KernelError::DType { wanted: to.dtype, given: from.dtype });
        }
        for (tensor, op) in
            [(&floats, ReduceOp::Prod), (&floats, ReduceOp::Min), (&floats, ReduceOp::Max), (&ints, ReduceOp::Sum)]
        {
            let mut dst = tensor.clone();
            let error = kernels.reduce(op, &[tensor.view()], true, dst.view_mut()).unwrap_err();
            assert!(
                matches!(&error, KernelError::Invalid { op: "reduce", reason } if reason.contains(op.name())),
                "{error}"
            );
            assert_eq!(dst.bits(), tensor.bits());
        }
    }
}
