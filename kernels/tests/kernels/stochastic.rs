//! AdamW with stochastic rounding. Its update is made exact (betas and eps of zero, gradients of ±1, a rate of few bits), so
//! that every device rounds the same value and must come to the same bits.

use crate::harness::*;
use zbench_kernels::{AdamW, DType, Kernels, Rounding};
use zbench_kernels_testing::{ByName, Reference};

const RATE: f64 = 3.0 / 16384.0;
/// More than a block of the CUDA kernels takes at a time, and a rest.
const LEN: usize = 2563;
const CUTS: [usize; 6] = [1, 2, 3, 500, 513, LEN - 1];

fn op(dtype: DType, len: usize, seed: u64, first: u64, step: u64) -> AdamW {
    AdamW {
        len,
        lr: RATE,
        beta1: 0.0,
        beta2: 0.0,
        eps: 0.0,
        weight_decay: 0.0,
        step,
        grad_scale: 1.0,
        clip: 1.0,
        parameters: dtype,
        gradients: DType::F32,
        moments: DType::F32,
        rounding: Rounding::Stochastic { seed, first },
        copy: None,
    }
}

fn devices() -> impl Iterator<Item = &'static dyn Kernels> {
    CPUS.iter().map(|cpu| cpu as &dyn Kernels).chain(CUDAS.iter().map(|cuda| cuda as &dyn Kernels))
}

fn weights(dtype: DType) -> Vec<f64> {
    Tensor::normal(dtype, LEN, 1).values()
}

/// Alternating, so that weights move both ways.
fn sign(index: usize) -> f64 {
    if index.is_multiple_of(2) { 1.0 } else { -1.0 }
}

/// Elements `from..` of the weights after the update.
fn updated(kernels: &dyn Kernels, dtype: DType, from: usize, len: usize, seed: u64, step: u64) -> Tensor {
    let mut p = Tensor::of(dtype, &weights(dtype)[from..from + len]);
    let (mut m, mut v) = (Tensor::filled(DType::F32, len, 0.0), Tensor::filled(DType::F32, len, 0.0));
    let signs: Vec<f64> = (from..from + len).map(sign).collect();
    let op = op(dtype, len, seed, from as u64, step);
    kernels.adamw(&op, p.view_mut(), m.view_mut(), v.view_mut(), Tensor::of(DType::F32, &signs).view(), None).unwrap();
    p
}

#[test]
fn every_device_and_number_of_threads_draws_the_same_bits() {
    for dtype in [DType::Bf16, DType::F16] {
        let exact = updated(&Reference, dtype, 0, LEN, 3, 1).values();
        for kernels in devices() {
            assert_eq!(updated(kernels, dtype, 0, LEN, 3, 1).values(), exact, "{dtype}, {}", kernels.name());
        }
        // Wherever a part begins, an element has its own draw.
        for (kernels, cut) in [&CPUS[1] as &dyn Kernels, &CUDAS[0]].into_iter().flat_map(|k| CUTS.map(|cut| (k, cut))) {
            let mut parts = updated(kernels, dtype, 0, cut, 3, 1).values();
            parts.extend(updated(kernels, dtype, cut, LEN - cut, 3, 1).values());
            assert_eq!(parts, exact, "{dtype} cut at {cut}, {}", kernels.name());
        }
        for (seed, step) in [(4, 1), (3, 2), (3, 1 + (1 << 32))] {
            assert_ne!(
                updated(&CPUS[0], dtype, 0, LEN, seed, step).values(),
                exact,
                "{dtype}: seed {seed}, step {step}"
            );
        }
    }
}

/// Halves that have no leading one, which the draws move by less than the distance between them.
#[test]
fn subnormal_halves_are_drawn_alike() {
    let (unit, len) = (2f64.powi(-24), 1401);
    let values: Vec<f64> = (0..len).map(|i| (f64::from(i) - 700.0) * unit).collect();
    let after = |kernels: &dyn Kernels| {
        let mut p = Tensor::of(DType::F16, &values);
        let (mut m, mut v) = (Tensor::filled(DType::F32, p.len, 0.0), Tensor::filled(DType::F32, p.len, 0.0));
        let signs = Tensor::of(DType::F32, &(0..p.len).map(sign).collect::<Vec<_>>());
        let op = AdamW { lr: 3.0 * 2f64.powi(-30), ..op(DType::F16, p.len, 3, 17, 5) };
        kernels.adamw(&op, p.view_mut(), m.view_mut(), v.view_mut(), signs.view(), None).unwrap();
        p.values()
    };
    let wanted = after(&Reference);
    // 3 of 64 move, give or take five standard deviations.
    let moved = values.iter().zip(&wanted).filter(|(before, after)| before != after).count();
    assert!((26..106).contains(&moved), "{moved}");
    devices().for_each(|kernels| assert_eq!(after(kernels), wanted, "{}", kernels.name()));
}

/// Over 400 draws of 2563 weights the errors add up to less than five of their standard deviations; rounding to nearest
/// would fail this by far, since three thousandths of a unit are lost every time.
#[test]
fn updates_below_half_a_unit_are_kept_in_the_mean() {
    for dtype in [DType::Bf16, DType::F16] {
        let before = weights(dtype);
        let (mut error, mut variance, mut nearest) = (0.0, 0.0, 0.0);
        for step in 1..=400 {
            let after = updated(&CPUS[0], dtype, 0, LEN, 3, step).values();
            for (index, (after, before)) in after.iter().zip(&before).enumerate() {
                // One sign for all, so that errors of one kind do not cancel.
                let (wanted, sign) = (before - RATE * sign(index), sign(index));
                error += (after - wanted) * sign;
                variance += (after - wanted).powi(2);
                nearest += (Tensor::of(dtype, &[wanted]).values()[0] - wanted) * sign;
            }
        }
        let most = 5.0 * f64::sqrt(variance);
        assert!(error.abs() <= most, "{dtype}: errors add up to {error}, at most {most}");
        assert!(nearest.abs() > most, "{dtype}: rounding to nearest errs by {nearest}, and would pass as well");
    }
}

#[test]
fn a_type_that_needs_no_rounding_is_refused() {
    let f32s = [&CPUS[0] as &dyn Kernels, &CUDAS[0], &Reference].map(|kernels| (kernels, DType::F32));
    for (kernels, dtype) in f32s.into_iter().chain([(&Reference as &dyn Kernels, DType::F64)]) {
        let [mut p, mut m, mut v] = [dtype, DType::F32, DType::F32].map(|dtype| Tensor::filled(dtype, 4, 1.0));
        let grads = Tensor::normal(DType::F32, 4, 2);
        let result =
            kernels.adamw(&op(dtype, 4, 0, 0, 1), p.view_mut(), m.view_mut(), v.view_mut(), grads.view(), None);
        let message = result.unwrap_err().to_string();
        assert!(message.contains("stochastic") && message.contains("bf16 or f16"), "{message}");
    }
}
