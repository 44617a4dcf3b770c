//! The ratio of two sides: cases by hand, and what holds for any numbers.

use super::any::number;
use proptest::collection::vec;
use proptest::prelude::*;
use zbench_reports::stats::*;

fn average(steps: &[f64]) -> f64 {
    steps.iter().sum::<f64>() / steps.len() as f64
}

fn near(found: f64, wanted: f64) -> bool {
    (found - wanted).abs() <= 1e-3 * wanted.abs()
}

/// Tables of the t distribution, two-sided 95 %.
#[test]
fn students_t_is_that_of_the_tables() {
    for (degrees, wanted) in [
        (1.0, 12.7062),
        (2.0, 4.3027),
        (3.0, 3.1824),
        (4.0, 2.7764),
        (10.0, 2.2281),
        (30.0, 2.0423),
        (120.0, 1.9799),
        (1e6, 1.95997),
        (1e9, 1.95996),
    ] {
        let found = student_t(degrees);
        assert!((found - wanted).abs() < 6e-5, "{degrees}: {found}");
    }
    // Between whole numbers it falls between its neighbours.
    assert!(student_t(1.0) > student_t(1.5) && student_t(1.5) > student_t(2.0));
    assert_eq!(student_t(0.0), f64::INFINITY);
    assert!(student_t(f64::NAN).is_nan());
}

/// Welch by hand: means 10 and 20, variances 1 and 4 of 3 values each: error^2 = 1/3 + 4/3, degrees
/// (5/3)^2 / ((1/3)^2/2 + (4/3)^2/2) = 50/17.
#[test]
fn welchs_interval_by_hand() {
    let found = difference(&[9.0, 10.0, 11.0], &[18.0, 20.0, 22.0]).unwrap();
    let half = student_t(50.0 / 17.0) * (5.0f64 / 3.0).sqrt();
    assert_eq!(found.mid, 10.0);
    assert!(near(found.high - 10.0, half) && near(10.0 - found.low, half), "{found:?}");
    assert_eq!(difference(&[1.0], &[2.0, 3.0]), None);
    assert_eq!(difference(&[1.0, f64::INFINITY], &[2.0, 3.0]), None);
    assert_eq!(difference(&[2.0, 2.0], &[3.0, 3.0]), Some(Interval { low: 1.0, mid: 1.0, high: 1.0 }));
}

#[test]
fn ratios_by_hand() {
    let one = |values: &[f64]| values.iter().map(|value| vec![*value]).collect::<Vec<_>>();
    // Two trials each: 100 and 121, twice that. Logarithms 4.605 and 4.796, variance 0.01817; both sides alike, so
    // the degrees are 2 and the half width is 4.303 x sqrt(0.01817 / 2 x 2) = 0.580.
    let found = ratio(&one(&[100.0, 121.0]), &one(&[200.0, 242.0]), average).unwrap();
    assert_eq!((found.a, found.b, found.ratio.mid, found.trials), (110.5, 221.0, 2.0, (2, 2)));
    let half = 4.302_65 * (1.21f64.ln().powi(2) / 2.0).sqrt();
    assert!(near(found.ratio.high, 2.0 * half.exp()) && near(found.ratio.low, 2.0 * (-half).exp()), "{found:?}");
    // Constant numbers: no width.
    let found = ratio(&one(&[5.0, 5.0]), &one(&[10.0, 10.0, 10.0]), average).unwrap();
    assert_eq!(found.ratio, Interval { low: found.ratio.mid, mid: found.ratio.mid, high: found.ratio.mid });
    assert!(near(found.ratio.mid, 2.0));
    // One trial on a side, of however many steps: a number without limits.
    for (a, b) in
        [(one(&[4.0]), one(&[5.0])), (vec![vec![3.0, 5.0]], one(&[5.0, 5.0])), (one(&[4.0, 4.0]), vec![vec![5.0; 9]])]
    {
        let found = ratio(&a, &b, average).unwrap();
        assert!(found.has_too_few_trials() && !found.ratio.is_bounded() && near(found.ratio.mid, 1.25), "{found:?}");
    }
    // What has no logarithm is left out.
    assert_eq!(ratio(&one(&[0.0, 4.0, f64::NAN, -1.0]), &one(&[5.0]), average).unwrap().trials, (1, 1));
    assert_eq!(ratio(&one(&[0.0]), &one(&[5.0]), average), None);
    assert_eq!(ratio::<f64>(&[], &one(&[5.0]), average), None);
    assert_eq!(ratio(&[vec![]], &one(&[5.0]), average), None);
}

fn side() -> impl Strategy<Value = Vec<Vec<f64>>> {
    vec(vec(0.1..1e4f64, 1..6), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_multiple_of_a_side_has_that_ratio(a in side(), factor in 0.01..100.0f64) {
        let b: Vec<Vec<f64>> = a.iter().map(|steps| steps.iter().map(|step| factor * step).collect()).collect();
        let found = ratio(&a, &b, average).unwrap().ratio;
        prop_assert!((found.mid / factor - 1.0).abs() < 1e-12, "{found:?}");
        prop_assert!(found.low <= found.mid && found.mid <= found.high);
        // A change of unit on both sides changes nothing.
        let unit = |side: &[Vec<f64>]| -> Vec<Vec<f64>> { side.iter().map(|steps| steps.iter().map(|step| 1024.0 * step).collect()).collect() };
        let scaled = ratio(&unit(&a), &unit(&b), average).unwrap().ratio;
        prop_assert!((scaled.mid / found.mid - 1.0).abs() < 1e-9);
        prop_assert_eq!(scaled.is_bounded(), a.len() > 1);
        if a.len() > 1 {
            prop_assert!((scaled.low / found.low - 1.0).abs() < 1e-9 && (scaled.high / found.high - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn exchanging_the_sides_inverts_the_ratio(a in side(), b in side()) {
        let (there, back) = (ratio(&a, &b, average).unwrap(), ratio(&b, &a, average).unwrap());
        prop_assert!((there.ratio.mid * back.ratio.mid - 1.0).abs() < 1e-12);
        prop_assert_eq!(there.ratio.is_bounded(), a.len().min(b.len()) > 1);
        if there.ratio.is_bounded() {
            prop_assert!((there.ratio.low * back.ratio.high - 1.0).abs() < 1e-9, "{there:?} {back:?}");
            prop_assert!((there.ratio.high * back.ratio.low - 1.0).abs() < 1e-9, "{there:?} {back:?}");
        }
        prop_assert_eq!((there.a, there.b, there.trials), (back.b, back.a, (back.trials.1, back.trials.0)));
    }

    #[test]
    fn the_order_of_trials_does_not_matter(a in side(), b in side(), turn in 0usize..12) {
        let mut turned = a.clone();
        let count = turned.len();
        turned.rotate_left(turn % count);
        turned.reverse();
        prop_assert_eq!(ratio(&a, &b, average), ratio(&turned, &b, average));
    }

    #[test]
    fn any_numbers_have_a_ratio_or_none(a in vec(vec(number(), 0..5), 0..5), b in vec(vec(number(), 0..5), 0..5)) {
        if let Some(found) = ratio(&a, &b, average) {
            let Interval { low, mid, high } = found.ratio;
            prop_assert!(low.is_finite() && mid.is_finite() && low >= 0.0, "{found:?}");
            prop_assert_eq!(high.is_finite(), !found.has_too_few_trials(), "{:?}", found);
            prop_assert!(low <= mid && mid <= high, "{found:?}");
        }
        let flat = |side: &[Vec<f64>]| side.concat();
        if let Some(found) = difference(&flat(&a), &flat(&b)) {
            prop_assert!(found.low.is_finite() && found.low <= found.mid && found.mid <= found.high);
        }
    }

    #[test]
    fn t_falls_with_the_degrees(degrees in 0.05..1e6f64, more in 1.0..3.0f64) {
        let (few, many) = (student_t(degrees), student_t(degrees * more));
        prop_assert!(few.is_finite() && few >= many * (1.0 - 1e-9) && many > 1.9, "{few} {many}");
    }
}
