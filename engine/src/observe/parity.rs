//! How far the losses and gradient norms of two correct runs may be apart that compute the same in another way: another
//! strategy, another attention kernel, other recomputation. docs/mixed-precision.md ("Parity") derives the numbers.
//!
//! Before the first update two runs differ by their roundings alone. Every update moves a weight by about the learning rate,
//! and where rounding turned the sign of a small gradient, by as much in the other direction. So what may differ grows with
//! the sum of the learning rates of the updates so far.

use crate::config::Precision;
use zbench_kernels::DType;

/// What may differ, relative, in one type.
struct Bounds {
    /// Of the loss before the first update, for each unit of learning rate after it, and at most.
    loss: [f64; 3],
    /// Of the gradient norm before the first update, and for each unit of learning rate after it.
    norm: [f64; 2],
}

/// Three times the largest differences that were measured, or more; for bf16 and f16 each is a power of two times the unit
/// roundoff.
const fn bounds(dtype: DType) -> Bounds {
    match dtype {
        DType::F64 => Bounds { loss: [1e-9, 0.0, 1e-9], norm: [1e-9, 1e-3] },
        DType::F16 => low(1.0 / 2048.0, 5e-3),
        DType::Bf16 => low(1.0 / 256.0, 2e-2),
        _ => Bounds { loss: [1e-5, 0.0, 1e-5], norm: [1e-6, 0.1] },
    }
}

const fn low(roundoff: f64, most: f64) -> Bounds {
    Bounds { loss: [roundoff / 4.0, 128.0 * roundoff, most], norm: [roundoff, 4096.0 * roundoff] }
}

/// One step of a run, as far as it is compared.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// The step's number, from 1.
    pub step: u64,
    /// The loss before the update.
    pub loss: f64,
    /// The gradient norm before clipping.
    pub norm: f64,
    pub lr: f64,
    /// Nothing was updated: gradients overflowed.
    pub skipped: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    pub loss: f64,
    pub norm: f64,
    /// What the loss and the norm of the last step that was compared may differ by.
    pub allowed: [f64; 2],
    /// The first step that is further apart than it may be, in words.
    pub outside: Option<String>,
}

/// Compares a run with a reference, step by step; nothing where they are not of the same steps or a loss is not finite.
///
/// Where one run skipped a step and the other did not, a gradient lay at the edge of what the type holds. From then on one
/// is an update behind, so that step's loss is the last that is compared.
pub fn compare(precision: &Precision, run: &[Point], reference: &[Point]) -> Option<Compared> {
    let (first, _) = (run.first()?, reference.first()?);
    if run.len() != reference.len() {
        return None;
    }
    // Where a run was resumed, as if its first rate had held before.
    let before = first.lr.abs() * first.step.saturating_sub(1) as f64;
    let mut rates = if before.is_finite() { before } else { 0.0 };
    let mut all = Compared { loss: 0.0, norm: 0.0, allowed: [0.0; 2], outside: None };
    let mut apart = false;
    for (a, b) in run.iter().zip(reference) {
        if a.step != b.step || !a.loss.is_finite() || !b.loss.is_finite() {
            return None;
        }
        if apart {
            continue;
        }
        let (loss, [for_loss, for_norm]) = (relative(a.loss, b.loss), allowed(precision, rates));
        all.allowed = [for_loss, for_norm];
        all.loss = all.loss.max(loss);
        let mut judge = |what: &str, value: f64, allowed: f64| {
            if value > allowed && all.outside.is_none() {
                let step = a.step;
                all.outside =
                    Some(format!("the {what} of step {step} differs by {value:.2e} of it, {allowed:.2e} is allowed"));
            }
        };
        judge("loss", loss, for_loss);
        apart = a.skipped != b.skipped;
        if a.skipped || b.skipped {
            continue;
        }
        if !a.norm.is_finite() || !b.norm.is_finite() {
            return None;
        }
        let norm = relative(a.norm, b.norm);
        judge("gradient norm", norm, for_norm);
        all.norm = all.norm.max(norm);
        // A rate that is not stated allows nothing more.
        rates += if a.lr.is_finite() { a.lr.abs() } else { 0.0 };
    }
    Some(all)
}

/// What a loss and a gradient norm may differ by after updates whose learning rates sum up to `rates`: the bounds of the
/// type that rounds most among compute, accumulated and travelling gradients.
fn allowed(precision: &Precision, rates: f64) -> [f64; 2] {
    let of = |dtype| {
        let Bounds { loss: [first, each, most], norm: [norm, each_norm] } = bounds(dtype);
        [(first + each * rates).min(most), norm + each_norm * rates]
    };
    let types =
        [precision.compute, precision.gradients, precision.reduce, precision.parameters, precision.optimizer].map(of);
    types.into_iter().fold([0.0, 0.0], |[a, b], [loss, norm]| [a.max(loss), b.max(norm)])
}

fn relative(a: f64, b: f64) -> f64 {
    if a == b { 0.0 } else { (a - b).abs() / b.abs().max(f64::MIN_POSITIVE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(losses: &[f64]) -> Vec<Point> {
        let point =
            |(i, loss): (usize, &f64)| Point { step: i as u64 + 1, loss: *loss, norm: 2.0, lr: 1e-3, skipped: false };
        losses.iter().enumerate().map(point).collect()
    }

    fn outside(run: &[Point], reference: &[Point]) -> Option<String> {
        compare(&Precision::mixed(DType::Bf16), run, reference).unwrap().outside
    }

    #[test]
    fn what_is_allowed_grows_with_the_updates_and_ends_at_the_most() {
        let bf16 = Precision::mixed(DType::Bf16);
        let mut before = [0.0, 0.0];
        for rates in [0.0, 1e-4, 1e-3, 1e-2, 1.0] {
            let now = allowed(&bf16, rates);
            assert!(now[0] > before[0] && now[1] > before[1], "{rates}: {now:?} after {before:?}");
            before = now;
        }
        assert_eq!(before[0], 2e-2);
        assert_eq!(allowed(&Precision::F32, 1.0)[0], 1e-5);
        assert!(allowed(&Precision::mixed(DType::F16), 0.01)[0] < allowed(&bf16, 0.01)[0]);
        // The widest of the three counts.
        assert_eq!(allowed(&Precision { reduce: DType::Bf16, ..Precision::F32 }, 0.1), allowed(&bf16, 0.1));
    }

    #[test]
    fn a_difference_counts_where_it_is_too_early() {
        let reference = points(&[5.0, 4.9, 4.8]);
        assert_eq!(outside(&reference, &reference), None);
        // 0.0015 of the loss: too much before the first update, and little after two.
        let early = outside(&points(&[5.0075, 4.9, 4.8]), &reference).unwrap();
        assert!(early.starts_with("the loss of step 1 differs by 1.50e-3"), "{early}");
        assert_eq!(outside(&points(&[5.0, 4.9, 4.8072]), &reference), None);
        let mut doubled = reference.clone();
        doubled[0].norm = 4.0;
        let norm = outside(&doubled, &reference).unwrap();
        assert!(norm.starts_with("the gradient norm of step 1 differs by 1.00e0"), "{norm}");
        assert_eq!(compare(&Precision::F32, &reference[..2], &reference), None);
        assert_eq!(compare(&Precision::F32, &points(&[5.0, f64::NAN, 4.8]), &reference), None);
        assert_eq!(compare(&Precision::F32, &[], &[]), None);
    }

    #[test]
    fn runs_are_compared_until_one_is_an_update_behind() {
        let reference = points(&[5.0, 4.9, 4.8]);
        let mut behind = points(&[5.0, 4.9, 4.9]);
        (behind[1].skipped, behind[1].norm) = (true, f64::INFINITY);
        assert_eq!(outside(&behind, &reference), None);
        let mut both = reference.clone();
        (both[1].skipped, both[1].norm) = (true, f64::INFINITY);
        assert_eq!(outside(&both, &both), None);
        // What was wrong before stays wrong.
        behind[0].loss = 5.1;
        assert!(outside(&behind, &reference).is_some());
    }
}
