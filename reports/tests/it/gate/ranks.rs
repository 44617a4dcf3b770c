//! Intervals: tables of the literature, hand-computed cases, coverage by simulation.

use super::fake::Noise;
use proptest::prelude::*;
use zbench_reports::gate::random::Random;
use zbench_reports::gate::ranks::*;
use zbench_test_tiers as tiers;

/// Critical values of Wilcoxon's signed-rank test, two-sided, as printed in textbooks.
#[test]
fn signed_rank_tables() {
    for (count, alpha, cut) in
        [(6, 0.05, Some(0)), (10, 0.05, Some(8)), (10, 0.01, Some(3)), (20, 0.05, Some(52)), (25, 0.01, Some(68))]
    {
        assert_eq!(signed_rank_cut(count, alpha), cut, "{count} at {alpha}");
    }
    // P(T = 0) is 1/32 for five differences, so 1/16 is the least two-sided level.
    assert_eq!(signed_rank_cut(5, 1.0 / 16.0), Some(0));
    assert_eq!(signed_rank_cut(5, 0.0624), None);
    assert_eq!(signed_rank_cut(0, 0.5), None);
}

/// Critical values of Mann and Whitney's U, two-sided.
#[test]
fn rank_sum_tables() {
    for (m, n, alpha, cut) in [
        (5, 5, 0.05, Some(2)),
        (10, 10, 0.05, Some(23)),
        (10, 10, 0.01, Some(16)),
        (3, 20, 0.05, Some(8)),
        (20, 3, 0.05, Some(8)),
        (2, 5, 0.05, None),
    ] {
        assert_eq!(rank_sum_cut(m, n, alpha), cut, "{m} and {n} at {alpha}");
    }
}

/// Where counting ends the approximation begins. It must not take off more than counting would, which would promise too
/// much, and not less than 98.5 % of it, which would be needlessly wide. The cut of n differences grows about as n²/4, so
/// the counted cuts below the border continue over it with a constant second difference.
#[test]
fn the_approximation_continues_the_counting() {
    for alpha in [0.05, 0.01, 0.002] {
        let cut = |count: usize| signed_rank_cut(count, alpha).expect("enough") as f64;
        let (a, b, c) = (cut(EXACT - 8), cut(EXACT - 4), cut(EXACT));
        let continued = c + (c - b) + (c - 2.0 * b + a);
        let approximated = cut(EXACT + 4);
        // The cuts are whole numbers: two roundings each.
        assert!(approximated <= continued + 4.0, "{alpha}: {approximated} {continued}");
        assert!(approximated >= 0.985 * continued, "{alpha}: {approximated} {continued}");
        let half = EXACT / 2;
        let counted = rank_sum_cut(half, half, alpha).expect("enough") as f64;
        let approximated = rank_sum_cut(half, half + 1, alpha).expect("enough") as f64;
        // One value more adds about a fiftieth.
        assert!(approximated <= counted * 1.03 && approximated >= counted, "{alpha}: {counted} {approximated}");
    }
}

#[test]
fn by_hand() {
    // Walsh averages of 1, 2, 6: 1, 1.5, 3.5, 2, 4, 6. Sorted 1, 1.5, 2, 3.5, 4, 6; P(T <= 0) is 1/8.
    let shift = paired(&[1.0, 2.0, 6.0], 0.25).unwrap();
    assert_eq!((shift.low, shift.mid, shift.high), (1.0, 2.75, 6.0));
    // P(T <= 1) is 2/8: one comes off at either end.
    let shift = paired(&[1.0, 2.0, 6.0], 0.5).unwrap();
    assert_eq!((shift.low, shift.mid, shift.high), (1.5, 2.75, 4.0));
    // Too few for the confidence: no limits.
    let shift = paired(&[1.0, 2.0, 6.0], 0.01).unwrap();
    assert_eq!((shift.low, shift.high), (f64::NEG_INFINITY, f64::INFINITY));
    // Differences of 10, 20 from 1, 2: 9, 19, 8, 18.
    let shift = unpaired(&[1.0, 2.0], &[10.0, 20.0], 1.0 / 3.0).unwrap();
    assert_eq!((shift.low, shift.mid, shift.high), (8.0, 13.5, 19.0));
    assert_eq!(paired(&[], 0.1), None);
    assert_eq!(unpaired(&[], &[1.0], 0.1), None);
    let shift = Shift { low: -3.0, mid: -2.0, high: -1.0 };
    assert_eq!(shift.distance_of_zero(), 1.0);
    assert_eq!(shift.widened(1.5).distance_of_zero(), 0.0);
}

#[test]
fn normal_quantiles() {
    for (chance, value) in [(0.5, 0.0), (0.975, 1.959964), (0.995, 2.575829), (0.9999, 3.719016), (0.00135, -2.999977)]
    {
        assert!((normal_quantile(chance) - value).abs() < 1e-5, "{chance}");
    }
}

/// Clopper and Pearson's limits: the closed forms at the ends, and a textbook value.
#[test]
fn binomial() {
    let (low, high) = binomial_limits(0, 200, 0.95);
    assert!(low == 0.0 && (high - (1.0 - 0.025f64.powf(1.0 / 200.0))).abs() < 1e-9);
    let (low, high) = binomial_limits(200, 200, 0.95);
    assert!(high == 1.0 && (low - 0.025f64.powf(1.0 / 200.0)).abs() < 1e-9);
    let (low, high) = binomial_limits(10, 20, 0.95);
    assert!((low - 0.27196).abs() < 1e-4 && (high - 0.72804).abs() < 1e-4, "{low} {high}");
}

/// Coverage over 2,000 samples each: at 90 % the share that misses the truth is at most 10 % plus three standard errors
/// (2 %), whatever the noise; and at normal noise not under 6 %, which would be needlessly wide.
#[test]
fn intervals_cover_the_truth() {
    for noise in Noise::ALL {
        let mut random = Random::new(7);
        let (mut misses, mut misses_of_two) = (0, 0);
        for _ in 0..2000 {
            // A difference of two draws is symmetric whatever the shape of one.
            let differences: Vec<f64> =
                (0..12).map(|_| 0.4 + noise.draw(&mut random) - noise.draw(&mut random)).collect();
            let shift = paired(&differences, 0.1).unwrap();
            misses += usize::from(shift.low > 0.4 || shift.high < 0.4);
            let a: Vec<f64> = (0..7).map(|_| noise.draw(&mut random)).collect();
            let b: Vec<f64> = (0..9).map(|_| 0.4 + noise.draw(&mut random)).collect();
            let shift = unpaired(&a, &b, 0.1).unwrap();
            misses_of_two += usize::from(shift.low > 0.4 || shift.high < 0.4);
        }
        for misses in [misses, misses_of_two] {
            let share = f64::from(misses as u32) / 2000.0;
            assert!(share <= 0.12, "{noise:?}: {share}");
            assert!(noise != Noise::Normal || share >= 0.06, "{noise:?}: {share}");
        }
    }
}

proptest! {
    #[test]
    fn intervals_move_and_turn_with_the_data(values in proptest::collection::vec(-1e3f64..1e3, 1..40), by in -1e3f64..1e3) {
        let shift = paired(&values, 0.05).unwrap();
        prop_assert!(shift.low <= shift.mid && shift.mid <= shift.high);
        let moved: Vec<f64> = values.iter().map(|v| v + by).collect();
        let moved = paired(&moved, 0.05).unwrap();
        prop_assert!((moved.mid - shift.mid - by).abs() < 1e-9);
        let turned: Vec<f64> = values.iter().map(|v| -v).collect();
        let turned = paired(&turned, 0.05).unwrap();
        prop_assert!((turned.mid + shift.mid).abs() < 1e-9);
        prop_assert_eq!(turned.low, -shift.high);
        // Less confidence is never a wider interval.
        let less = paired(&values, 0.2).unwrap();
        prop_assert!(less.low >= shift.low && less.high <= shift.high);
    }

    /// What one wild value can do: the interval of the others with one fewer taken off holds it.
    #[test]
    fn a_wild_value_cannot_carry_the_estimate_away(values in proptest::collection::vec(-1.0f64..1.0, 8..30), wild in 1e3f64..1e9) {
        let mut spoiled = values.clone();
        spoiled.push(wild);
        let shift = paired(&spoiled, 0.05).unwrap();
        prop_assert!(shift.mid <= 1.0 && shift.low <= 1.0);
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(tiers::cases("gate::ranks::binomial_limits_hold_the_share", [24, 48, 256])))]

    #[test]
    fn binomial_limits_hold_the_share(hits in 0usize..300, more in 0usize..300) {
        let count = hits + more;
        prop_assume!(count > 0);
        let (low, high) = binomial_limits(hits, count, 0.95);
        let share = hits as f64 / count as f64;
        prop_assert!((0.0..=1.0).contains(&low) && (0.0..=1.0).contains(&high));
        prop_assert!(low <= share + 1e-12 && share <= high + 1e-12);
    }
}
