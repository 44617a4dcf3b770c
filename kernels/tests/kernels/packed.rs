//! Matrices in few bits: what is stored, what comes back, and that the cores do what the reference does. Against
//! bitsandbytes' own numbers: engine/tests/training/quantised.rs.

use crate::carried::all;
use crate::harness::*;
use proptest::prelude::*;
use zbench_kernels::*;
use zbench_kernels_testing::{ByName, Reference};
use zbench_test_tiers as tiers;

const PACKINGS: [Packing; 3] = [Packing::Nf4, Packing::Nf4Double, Packing::Int8];

fn everything() -> impl Iterator<Item = &'static dyn Kernels> {
    static REFERENCE: Reference = Reference;
    std::iter::once(&REFERENCE as &dyn Kernels).chain(all())
}

/// Codes and scales; what lies behind them must stay.
fn pack(kernels: &dyn Kernels, matrix: &Packed, x: &Tensor) -> (Vec<i8>, Vec<f32>) {
    let (codes_len, scales_len) = (matrix.codes_len(x.len), matrix.blocks());
    let (mut codes, mut scales) = (vec![0x55i8; codes_len + GUARD], vec![1234.5f32; scales_len + GUARD]);
    kernels.pack(matrix, x.view(), ViewMut::of(&mut codes), ViewMut::of(&mut scales)).unwrap();
    assert!(codes.drain(codes_len..).all(|x| x == 0x55), "{matrix:?}");
    assert!(scales.drain(scales_len..).all(|x| x == 1234.5), "{matrix:?}");
    (codes, scales)
}

/// A matrix's record, as words so that its floats are aligned.
fn record(matrix: &Packed, codes: &[i8], scales: &[f32]) -> Tensor {
    let fields = matrix.fields();
    let mut bytes = vec![0i8; fields.bytes];
    bytes[fields.codes].copy_from_slice(codes);
    let floats = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes().map(|b| b as i8)).collect::<Vec<_>>();
    if matrix.packing == Packing::Nf4Double {
        let double = DoubleScales::of(scales);
        bytes[fields.scales].copy_from_slice(&double.codes.iter().map(|c| *c as i8).collect::<Vec<_>>());
        bytes[fields.second].copy_from_slice(&floats(&[double.second, vec![double.offset]].concat()));
    } else {
        bytes[fields.scales].copy_from_slice(&floats(scales));
    }
    Tensor::exactly(&bytes)
}

fn unpack(kernels: &dyn Kernels, matrix: &Packed, record: &Tensor, dtype: DType) -> Tensor {
    let mut back = output(dtype, matrix.len());
    kernels.unpack(&Unpack { matrix: *matrix, dtype }, record.view(), back.view_mut()).unwrap();
    assert!(back.values()[matrix.len()..].iter().all(|x| *x == 77.0), "{matrix:?} wrote past the end");
    Tensor::of(dtype, &back.values()[..matrix.len()])
}

/// The largest magnitude of each element's block.
fn largest(matrix: &Packed, x: &[f64]) -> Vec<f64> {
    let of_block = |block: &[f64]| vec![block.iter().fold(0.0, |most: f64, x| most.max(x.abs())); block.len()];
    x.chunks(matrix.block()).flat_map(of_block).collect()
}

fn check(packing: Packing, rows: usize, cols: usize, dtype: DType, seed: u64) {
    let matrix = Packed { packing, rows, cols };
    let x = Tensor::normal(dtype, rows * cols, seed);
    let case = format!("{matrix:?} of {dtype}");
    let stored: Vec<_> = everything().map(|kernels| pack(kernels, &matrix, &x)).collect();
    for other in &stored {
        assert_eq!(other, &stored[0], "{case}: codes depend on the device");
    }
    let record = record(&matrix, &stored[0].0, &stored[0].1);
    // The widest gap of the table, half; a step of int8, half; the scales' own: half the widest gap of their table, of
    // the largest distance of a scale from the mean, itself below the largest scale.
    let values = x.values();
    let scales = largest(&matrix, &values);
    let most = values.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    let step = if packing == Packing::Int8 { 0.5 / 127.0 } else { 0.152 };
    let of_scale = if packing == Packing::Nf4Double { 0.0071 * most } else { 0.0 };
    for to in FLOATS {
        let wanted = unpack(&Reference, &matrix, &record, to);
        for kernels in everything() {
            let got = unpack(kernels, &matrix, &record, to);
            if to == DType::F32 {
                assert_eq!(got.bits(), wanted.bits(), "{case}: the same roundings");
            }
            assert_close(&format!("{case} to {to}"), &got, &wanted.values());
            for (i, (x, back)) in values.iter().zip(got.values()).enumerate() {
                let bound = scales[i] * (step + 2f64.powi(-8) + 1e-6) + of_scale;
                assert!((x - back).abs() <= bound, "{case} to {to}: {x} came back as {back}");
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn every_device_stores_the_same_and_gives_it_back(
        packing in 0usize..3, rows in 1usize..90, cols in 1usize..400, dtype in 0usize..3, seed: u64,
    ) {
        check(PACKINGS[packing], rows, cols, FLOATS[dtype], seed);
    }
}

#[test]
fn the_smallest_and_those_at_the_edges_of_blocks() {
    const SHAPES: [(usize, usize); 9] =
        [(1, 1), (1, 2), (1, 63), (1, 64), (1, 65), (64, 256), (65, 256), (257, 129), (3, 16384)];
    for [shape, packing] in tiers::combinations("packed::edges_of_blocks", [SHAPES.len(), PACKINGS.len()]) {
        let (rows, cols) = SHAPES[shape];
        check(PACKINGS[packing], rows, cols, DType::F32, rows as u64 * 7 + cols as u64);
    }
}

/// A matrix that is packed piece by piece is the one that is packed at once.
#[test]
fn pieces_of_whole_blocks_pack_alike() {
    let matrix = Packed { packing: Packing::Nf4, rows: 7, cols: 901 };
    let x = Tensor::normal(DType::F32, matrix.len(), 3);
    let (codes, scales) = pack(&CPUS[1], &matrix, &x);
    let (mut by_piece, mut their_scales) = (Vec::new(), Vec::new());
    for start in (0..matrix.len()).step_by(5 * NF4_BLOCK) {
        let piece = x.view().slice(start..(start + 5 * NF4_BLOCK).min(matrix.len()));
        let (mut codes, mut scales) = (vec![0i8; piece.len().div_ceil(2)], vec![0f32; piece.len().div_ceil(NF4_BLOCK)]);
        CPUS[2].pack(&matrix, piece, ViewMut::of(&mut codes), ViewMut::of(&mut scales)).unwrap();
        by_piece.extend(codes);
        their_scales.extend(scales);
    }
    assert_eq!((by_piece, their_scales), (codes, scales));
}

/// Operands that begin anywhere they may.
#[test]
fn it_is_the_same_wherever_operands_begin() {
    for packing in PACKINGS {
        for (cols, dtype) in [72, 129].into_iter().flat_map(|cols| FLOATS.map(|dtype| (cols, dtype))) {
            let matrix = Packed { packing, rows: 17, cols };
            let (len, x) = (matrix.len(), Tensor::normal(dtype, matrix.len() + 5, 6));
            for shift in [0, 1, 4] {
                let (of_codes, of_scales) = (shift..shift + matrix.codes_len(len), shift..shift + matrix.blocks());
                let by = |kernels: &dyn Kernels| {
                    let (mut codes, mut scales) = (vec![9i8; of_codes.end + 8], vec![9f32; of_scales.end + 8]);
                    let c = ViewMut::of(&mut codes).into_slice(of_codes.clone());
                    let s = ViewMut::of(&mut scales).into_slice(of_scales.clone());
                    kernels.pack(&matrix, x.view().slice(shift..shift + len), c, s).unwrap();
                    let mut back = Tensor::filled(dtype, len + 8, 0.25);
                    let to = back.view_mut().into_slice(shift..shift + len);
                    // Its floats want a multiple of four.
                    let record = record(&matrix, &codes[of_codes.clone()], &scales[of_scales.clone()]);
                    let bytes = [&vec![0i8; 4 * shift][..], record.view().as_slice::<i8>().unwrap()].concat();
                    let shifted = Tensor::exactly(&bytes);
                    let unpack = Unpack { matrix, dtype };
                    kernels.unpack(&unpack, shifted.view().slice(4 * shift..shifted.len), to).unwrap();
                    (codes, scales, back.bits())
                };
                let wanted = by(&CPUS[0]);
                for cuda in CUDAS.iter() {
                    assert_eq!(by(cuda), wanted, "{matrix:?} of {dtype}, shifted by {shift}");
                }
            }
        }
    }
}

#[test]
fn entries_come_back_as_they_are_and_ties_go_down() {
    let matrix = Packed { packing: Packing::Nf4, rows: 1, cols: 64 };
    let middles = NF4.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    let x: Vec<f32> = NF4.into_iter().chain(middles).map(|x| x * 4.0).chain([0.0; 33]).collect();
    for kernels in everything() {
        let (codes, scales) = pack(kernels, &matrix, &Tensor::exactly(&x));
        let nibble = |i: usize| codes[i / 2] as u8 >> (4 * (1 - i % 2)) & 15;
        assert_eq!(scales, [4.0]);
        assert!((0..16).all(|i| usize::from(nibble(i)) == i), "{codes:?}");
        assert!((0..15).all(|i| usize::from(nibble(16 + i)) == i), "ties: {codes:?}");
        assert!((31..64).all(|i| nibble(i) == 7));
        let back = unpack(kernels, &matrix, &record(&matrix, &codes, &scales), DType::F32).values();
        assert!(back.iter().zip(&x).take(16).all(|(back, x)| *back == f64::from(*x)));
    }
}

#[test]
fn what_is_not_finite_comes_back_as_nan_in_its_block() {
    for (packing, bad) in
        PACKINGS.into_iter().flat_map(|p| [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(|x| (p, x)))
    {
        let matrix = Packed { packing, rows: 4, cols: 128 };
        let mut x: Vec<f32> = Tensor::normal(DType::F32, matrix.len(), 4).view().as_slice().unwrap().to_vec();
        x[200] = bad;
        for kernels in everything() {
            let (codes, scales) = pack(kernels, &matrix, &Tensor::exactly(&x));
            let back = unpack(kernels, &matrix, &record(&matrix, &codes, &scales), DType::Bf16).values();
            for (i, back) in back.iter().enumerate() {
                // Their mean has no value where one of the scales has none.
                let hit = packing == Packing::Nf4Double || i / matrix.block() == 200 / matrix.block();
                assert_eq!(back.is_nan(), hit, "{matrix:?}, {bad}: element {i} came back as {back}");
            }
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_named() {
    for kernels in everything() {
        let matrix = Packed { packing: Packing::Nf4Double, rows: 3, cols: 43 };
        let x = Tensor::normal(DType::F32, matrix.len(), 1);
        let pack = |x: &Tensor, codes: usize, scales: usize| {
            let (mut codes, mut scales) = (vec![0i8; codes], vec![0f32; scales]);
            kernels.pack(&matrix, x.view(), ViewMut::of(&mut codes), ViewMut::of(&mut scales)).unwrap_err()
        };
        let shape = |op, operand, wanted, given| KernelError::Shape { op, operand, wanted, given };
        assert_eq!(pack(&x, 64, 3), shape("pack", "codes", 65, 64));
        assert_eq!(pack(&x, 65, 2), shape("pack", "scales", 3, 2));
        let wrong = Tensor::filled(DType::F64, 9, 1.0);
        assert!(matches!(pack(&wrong, 65, 3), KernelError::Unsupported { op: "pack", dtype: DType::F64, .. }));
        let bytes = Tensor::exactly(&vec![0i8; 320]);
        let unpack = |matrix: Packed, dtype: DType, from: usize, to: usize| {
            let mut dst = Tensor::filled(dtype, to, 0.0);
            let record = bytes.view().slice(from..bytes.len);
            kernels.unpack(&Unpack { matrix, dtype }, record, dst.view_mut())
        };
        assert_eq!(unpack(matrix, DType::F32, 65, 129).unwrap_err(), shape("unpack", "record", 256, 255));
        assert_eq!(unpack(matrix, DType::F32, 0, 128).unwrap_err(), shape("unpack", "dst", 129, 128));
        assert!(matches!(unpack(matrix, DType::F32, 1, 129), Err(KernelError::Invalid { op: "reinterpret", .. })));
        assert!(unpack(matrix, DType::F32, 64, 129).is_ok());
        assert!(matches!(unpack(matrix, DType::F64, 0, 129), Err(KernelError::Unsupported { op: "unpack", .. })));
        let absurd = Packed { rows: usize::MAX, ..matrix };
        assert!(matches!(unpack(absurd, DType::F32, 0, 129), Err(KernelError::Invalid { op: "unpack", .. })));
    }
}
