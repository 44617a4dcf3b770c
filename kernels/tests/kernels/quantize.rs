//! Block quantisation: what it may lose, what it stores, and that the cores store what the reference does.

use crate::carried::all;
use crate::harness::*;
use zbench_kernels::{DType, KernelError, Kernels, QuantFormat, Quantize, View, ViewMut};
use zbench_kernels_testing::{ByName, Reference};
use zbench_test_tiers as tiers;

const LENGTHS: [usize; 9] = [0, 1, 2, 7, 255, 513, 2049, 8193, 20_001];
const BLOCKS: [usize; 8] = [1, 3, 16, 33, 256, 777, 2048, usize::MAX];

fn ops() -> impl Iterator<Item = Quantize> {
    let formats = [QuantFormat::Int8, QuantFormat::Int4].into_iter();
    formats.flat_map(|format| BLOCKS.into_iter().map(move |block| Quantize { format, block }))
}

/// Values and scales, each with room behind that must stay as it is.
#[derive(Clone, Debug, PartialEq)]
struct Stored {
    values: Vec<i8>,
    scales: Vec<f32>,
}

const UNTOUCHED: (i8, f32) = (0x55, 1234.5);

impl Stored {
    fn by(kernels: &dyn Kernels, op: &Quantize, src: &Tensor) -> Stored {
        let mut values = vec![UNTOUCHED.0; op.values_len(src.len) + GUARD];
        let mut scales = vec![UNTOUCHED.1; op.scales_len(src.len) + GUARD];
        kernels.quantize(op, src.view(), ViewMut::of(&mut values), ViewMut::of(&mut scales)).unwrap();
        assert!(values.drain(op.values_len(src.len)..).all(|x| x == UNTOUCHED.0), "{op:?} of {}", src.len);
        assert!(scales.drain(op.scales_len(src.len)..).all(|x| x == UNTOUCHED.1), "{op:?} of {}", src.len);
        Stored { values, scales }
    }

    /// With the scales' bits, so that NaNs compare.
    fn bits(&self) -> (&[i8], Vec<u32>) {
        (&self.values, self.scales.iter().map(|x| x.to_bits()).collect())
    }

    fn back(&self, kernels: &dyn Kernels, op: &Quantize, dst: &mut Tensor, accumulate: bool) {
        kernels.dequantize(op, View::of(&self.values), View::of(&self.scales), dst.view_mut(), accumulate).unwrap();
    }

    /// The integer of an element, as the format describes it.
    fn value(&self, format: QuantFormat, i: usize) -> i32 {
        match format {
            QuantFormat::Int8 => i32::from(self.values[i]),
            QuantFormat::Int4 => {
                let nibble = (self.values[i / 2] as u8 >> (4 * (i % 2))) & 15;
                i32::from(nibble) - if nibble >= 8 { 16 } else { 0 }
            }
        }
    }
}

/// What a type's rounding may add: half a unit in the last place, or of the smallest number.
fn rounding(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::Bf16 => x.abs() * 2f64.powi(-8),
        DType::F16 => x.abs() * 2f64.powi(-11) + 2f64.powi(-25),
        _ => x.abs() * 2f64.powi(-24),
    }
}

#[test]
fn an_element_loses_half_a_scale_at_most_and_the_cores_store_what_the_reference_does() {
    for op in ops() {
        for (number, len) in LENGTHS.into_iter().enumerate() {
            let dtype = FLOATS[(number + op.block % 3) % 3];
            let src = Tensor::normal(dtype, len, 3 + number as u64);
            let case = format!("{op:?} of {len} {dtype}");
            let stored = Stored::by(&Reference, &op, &src);
            for device in all() {
                assert_eq!(Stored::by(device, &op, &src).bits(), stored.bits(), "{case}, {}", device.name());
            }
            let x = src.values();
            // The quotient is rounded to f32 before it is rounded to an integer: 127 units in the last place of 1, twice.
            let slack = 2f64.powi(-15);
            let limit = op.format.limit();
            for (block, scale) in x.chunks(op.block).zip(&stored.scales) {
                let largest = block.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
                assert_eq!(*scale, (largest / f64::from(limit)) as f32, "{case}");
            }
            for (i, x) in x.iter().enumerate() {
                let (scale, value) = (f64::from(stored.scales[i / op.block]), stored.value(op.format, i));
                assert!(value.abs() <= limit, "{case}: {value}");
                let lost = (x - f64::from(value) * scale).abs();
                assert!(lost <= scale * (0.5 + slack), "{case}: {x} became {value} times {scale}");
            }
            for to in FLOATS {
                let mut back = output(to, len);
                let kept = back.len - GUARD;
                for device in all() {
                    let stored_at = back.view_mut().into_slice(0..kept);
                    device
                        .dequantize(&op, View::of(&stored.values), View::of(&stored.scales), stored_at, false)
                        .unwrap();
                    for (i, (back, x)) in back.values().iter().zip(&x).enumerate() {
                        let bound = f64::from(stored.scales[i / op.block]) * (0.5 + slack) + rounding(to, *back) * 2.0;
                        assert!(
                            (back - x).abs() <= bound,
                            "{case} to {to}: {x} came back as {back}, {}",
                            device.name()
                        );
                    }
                    assert!(back.values()[kept..].iter().all(|x| *x == 77.0), "{case} to {to} wrote past the end");
                }
            }
        }
    }
}

#[test]
fn dequantising_is_the_product_and_may_add() {
    for op in ops() {
        for [len, dtype] in tiers::combinations("quantize::dequantising_is_the_product", [LENGTHS.len(), FLOATS.len()])
        {
            let (len, dtype) = (LENGTHS[len], FLOATS[dtype]);
            let stored = Stored::by(&CPUS[0], &op, &Tensor::normal(DType::F32, len, 8));
            for accumulate in [false, true] {
                let start = Tensor::normal(dtype, len, 9);
                let (mut reference, mut first) = (start.clone(), None);
                stored.back(&Reference, &op, &mut reference, accumulate);
                let old = start.values();
                let want = |i: usize| {
                    let product = f64::from(stored.value(op.format, i)) * f64::from(stored.scales[i / op.block]);
                    product + if accumulate { old[i] } else { 0.0 }
                };
                let want: Vec<f64> = (0..len).map(want).collect();
                let case = format!("{op:?} to {len} {dtype}, accumulate {accumulate}");
                assert_eq!(reference.bits(), Tensor::of(dtype, &want).bits(), "{case}");
                for device in all() {
                    let mut got = start.clone();
                    stored.back(device, &op, &mut got, accumulate);
                    assert_close(&case, &got, &want);
                    if dtype == DType::F32 && !accumulate {
                        assert_eq!(got.bits(), reference.bits(), "{case}: one product, rounded once");
                    }
                    assert_eq!(&got.bits(), first.get_or_insert(got.bits()), "{case}: depends on the device");
                }
            }
        }
    }
}

#[test]
fn ties_go_to_even_and_the_low_nibble_comes_first() {
    for kernels in all().chain([&Reference as &dyn Kernels]) {
        let x = Tensor::exactly(&[127.0f32, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0, 126.49, 126.51]);
        let stored = Stored::by(kernels, &Quantize { format: QuantFormat::Int8, block: 16 }, &x);
        assert_eq!((stored.scales[0], &stored.values[..]), (1.0, &[127, 0, 2, 2, 0, -2, -127, 126, 127][..]));
        let x = Tensor::exactly(&[7.0f32, -1.0, 2.5, 3.5, -7.0]);
        let stored = Stored::by(kernels, &Quantize { format: QuantFormat::Int4, block: 16 }, &x);
        assert_eq!((stored.scales[0], &stored.values[..]), (1.0, &[0xf7u8 as i8, 0x42, 0x09][..]));
    }
}

#[test]
fn zeros_and_the_smallest_have_no_scale_the_largest_do_not_overflow() {
    for format in [QuantFormat::Int8, QuantFormat::Int4] {
        let op = Quantize { format, block: 5 };
        let blocks =
            [[0.0, -0.0, 0.0, 0.0, 0.0], [1e-45, -1e-44, 0.0, 1e-40, 1e-38], [f32::MAX, -f32::MAX, 1.0, 0.0, 1e38]];
        let x = Tensor::exactly(&blocks.concat());
        for kernels in all().chain([&Reference as &dyn Kernels]) {
            let stored = Stored::by(kernels, &op, &x);
            assert_eq!((stored.scales[0], stored.scales[1]), (0.0, 0.0));
            assert!((0..10).all(|i| stored.value(format, i) == 0));
            assert_eq!((stored.value(format, 10), stored.value(format, 11)), (format.limit(), -format.limit()));
            let mut back = Tensor::filled(DType::F32, 15, f64::NAN);
            stored.back(kernels, &op, &mut back, false);
            let back = back.values();
            assert!(back[..10].iter().all(|x| *x == 0.0) && back[10..].iter().all(|x| x.is_finite()), "{back:?}");
        }
    }
}

#[test]
fn what_is_not_finite_makes_its_block_a_nan_and_no_other() {
    for (op, bad) in ops().flat_map(|op| [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(|bad| (op, bad))) {
        let mut x: Vec<f32> = Tensor::normal(DType::F32, 1000, 4).view().as_slice().unwrap().to_vec();
        x[519] = bad;
        for kernels in all().chain([&Reference as &dyn Kernels]) {
            let stored = Stored::by(kernels, &op, &Tensor::exactly(&x));
            let mut back = Tensor::filled(DType::Bf16, 1000, 0.0);
            stored.back(kernels, &op, &mut back, false);
            for (i, back) in back.values().into_iter().enumerate() {
                let hit = i / op.block == 519 / op.block;
                assert_eq!(back.is_nan(), hit, "{op:?}: element {i} came back as {back}");
                assert!(!hit || stored.value(op.format, i) == 0);
            }
        }
    }
}

/// Operands that begin anywhere, and results beside which nothing changes.
#[test]
fn it_is_the_same_wherever_operands_begin() {
    for op in ops().filter(|op| [3, 16, 256, 777].contains(&op.block)) {
        for dtype in FLOATS {
            let src = Tensor::normal(dtype, 3001, 5);
            for (start, shift) in [(0, 1), (1, 0), (8, 4), (16, 16), (5, 3)] {
                let part = src.view().slice(start..src.len);
                let (values_len, scales_len) = (op.values_len(part.len()), op.scales_len(part.len()));
                let (at_values, at_scales) = (shift..shift + values_len, shift..shift + scales_len);
                let by = |kernels: &dyn Kernels| {
                    let (mut values, mut scales) =
                        (vec![9i8; values_len + 2 * shift], vec![9f32; scales_len + 2 * shift]);
                    let v = ViewMut::of(&mut values).into_slice(at_values.clone());
                    kernels.quantize(&op, part, v, ViewMut::of(&mut scales).into_slice(at_scales.clone())).unwrap();
                    let mut back = Tensor::filled(dtype, part.len() + 2 * shift, 0.25);
                    let to = back.view_mut().into_slice(shift..shift + part.len());
                    let (v, s) =
                        (View::of(&values).slice(at_values.clone()), View::of(&scales).slice(at_scales.clone()));
                    kernels.dequantize(&op, v, s, to, true).unwrap();
                    (values, scales, back.bits())
                };
                let wanted = by(&CPUS[0]);
                for cuda in CUDAS.iter() {
                    assert_eq!(by(cuda), wanted, "{op:?} of {dtype} from {start}, to {shift}");
                }
            }
        }
    }
}

/// A scale of very many elements is found by many blocks of threads.
#[test]
fn long_blocks_have_the_scales_of_the_cores() {
    let src = Tensor::normal(DType::Bf16, 70_000, 2);
    for block in [4096, 4104, 9000, 33_333, usize::MAX] {
        for format in [QuantFormat::Int8, QuantFormat::Int4] {
            let op = Quantize { format, block };
            let wanted = Stored::by(&CPUS[0], &op, &src);
            CUDAS.iter().for_each(|cuda| assert_eq!(Stored::by(cuda, &op, &src).bits(), wanted.bits(), "{op:?}"));
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_named() {
    for kernels in [&CPUS[1] as &dyn Kernels, &CUDAS[0], &Reference] {
        let run = |op: Quantize, src: &Tensor, values: usize, scales: usize| {
            let (mut v, mut s, mut back) = (vec![0i8; values], vec![0f32; scales], src.clone());
            let there = kernels.quantize(&op, src.view(), ViewMut::of(&mut v), ViewMut::of(&mut s));
            let and_back = kernels.dequantize(&op, View::of(&v), View::of(&s), back.view_mut(), false);
            [(there, "quantize"), (and_back, "dequantize")].map(|(result, name)| (result.unwrap_err(), name))
        };
        let op = Quantize { format: QuantFormat::Int4, block: 4 };
        let x = Tensor::normal(DType::F16, 9, 1);
        for (error, name) in run(op, &x, 4, 3) {
            assert_eq!(error, KernelError::Shape { op: name, operand: "values", wanted: 5, given: 4 });
        }
        for (error, name) in run(op, &x, 5, 2) {
            assert_eq!(error, KernelError::Shape { op: name, operand: "scales", wanted: 3, given: 2 });
        }
        for (error, name) in run(Quantize { block: 0, ..op }, &x, 9, 9) {
            assert!(matches!(&error, KernelError::Invalid { op, reason } if *op == name && reason.contains("block")));
        }
        for wrong in [DType::F64, DType::I8] {
            let x = if wrong == DType::I8 { Tensor::exactly(&[1i8; 9]) } else { Tensor::filled(wrong, 9, 1.0) };
            for (error, name) in run(op, &x, 9, 9) {
                assert!(matches!(error, KernelError::Unsupported { op, dtype, .. } if op == name && dtype == wrong));
            }
        }
        let mut scales = [0f32; 9];
        let error = kernels.quantize(&op, x.view(), ViewMut::of(&mut [0u32; 9]), ViewMut::of(&mut scales)).unwrap_err();
        assert_eq!(error, KernelError::DType { wanted: DType::I8, given: DType::U32 });
    }
    let lens = |format, block, len| {
        let op = Quantize { format, block };
        (op.values_len(len), op.scales_len(len))
    };
    assert_eq!(lens(QuantFormat::Int8, 4, 9), (9, 3));
    assert_eq!(lens(QuantFormat::Int4, 4, 9), (5, 3));
    assert_eq!(lens(QuantFormat::Int4, 0, 9), (5, 0));
    assert_eq!(lens(QuantFormat::Int4, usize::MAX, usize::MAX), (usize::MAX / 2 + 1, 1));
}
