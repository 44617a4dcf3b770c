//! Warm-up is found where it is, and not where there is none.

use super::samples::{Dice, three_errors};
use proptest::prelude::*;
use zbench_reports::warm_up::{FEWEST, WarmUpFinding, find};

/// Noise of this deviation (relative), each step resembling the one before by `alike`.
fn noise(dice: &mut Dice, steps: usize, deviation: f64, alike: f64) -> Vec<f64> {
    let mut last = dice.normal();
    let fresh = (1.0 - alike * alike).sqrt();
    (0..steps)
        .map(|_| {
            last = alike * last + fresh * dice.normal();
            deviation * last
        })
        .collect()
}

fn times(noise: &[f64], level: impl Fn(usize) -> f64) -> Vec<f64> {
    noise.iter().enumerate().map(|(step, noise)| level(step) * noise.exp()).collect()
}

fn share(experiments: usize, mut experiment: impl FnMut() -> bool) -> f64 {
    (0..experiments).filter(|_| experiment()).count() as f64 / experiments as f64
}

/// Steps are discarded from steady runs at most 2 times in 100, 5 where neighbours are alike; and such a run is called
/// never steady as seldom.
#[test]
fn steady_noise_is_left_alone() {
    for (alike, most) in [(0.0, 0.02), (0.5, 0.05)] {
        for steps in [12, 20, 50, 200, 800] {
            let experiments = if steps > 100 { 200 } else { 1000 };
            let mut dice = Dice(steps as u64 * 11_000_003);
            let (mut discarded, mut never) = (0, 0);
            for _ in 0..experiments {
                match find(&times(&noise(&mut dice, steps, 0.05, alike), |_| 100.0)) {
                    WarmUpFinding::After(_) => discarded += 1,
                    WarmUpFinding::Never => never += 1,
                    _ => {}
                }
            }
            println!("alike {alike}, {steps} steps: discards {discarded}, never {never} of {experiments}");
            let most = (most + three_errors(most, experiments)) * experiments as f64;
            assert!(f64::from(discarded) <= most, "{steps} steps, alike {alike}: {discarded} of {experiments}");
            assert!(f64::from(never) <= most, "{steps} steps, alike {alike}: never {never} of {experiments}");
        }
    }
}

/// Lognormal tails and one step in twenty up to three times as long: no warm-up either.
#[test]
fn outliers_are_no_warm_up() {
    for steps in [12, 20, 50, 200] {
        let experiments = 400;
        let mut dice = Dice(steps as u64 * 13_000_027);
        let discarded = share(experiments, || {
            let mut series = times(&noise(&mut dice, steps, 0.1, 0.0), |_| 100.0);
            for time in &mut series {
                if dice.uniform() < 0.05 {
                    *time *= 1.5 + 1.5 * dice.uniform();
                }
            }
            find(&series).discarded() > 0
        });
        println!("outliers, {steps} steps: {discarded}");
        assert!(discarded <= 0.03 + three_errors(0.03, experiments), "{steps} steps: {discarded}");
    }
    let mut first = vec![100.0; 40];
    (first[0], first[1]) = (900.0, 300.0);
    assert_eq!(
        find(&first),
        WarmUpFinding::FromTheStart,
        "two slow steps at the start are too few to be told from outliers"
    );
}

/// A fifth slower for the first quarter of the steps, with 2 % of noise: found in 95 of 100, to within two steps.
#[test]
fn a_step_is_found_where_it_is() {
    for (steps, alike) in [(20, 0.0), (40, 0.0), (40, 0.5), (200, 0.0), (200, 0.5)] {
        let experiments = 300;
        let mut dice = Dice(steps as u64 * 17_000_023);
        let found = share(experiments, || {
            let series =
                times(&noise(&mut dice, steps, 0.02, alike), |step| if step < steps / 4 { 120.0 } else { 100.0 });
            find(&series).discarded().abs_diff(steps / 4) <= 2
        });
        println!("step of {steps} alike {alike}: {found}");
        assert!(found >= 0.95 - three_errors(0.95, experiments), "{steps} steps, alike {alike}: {found}");
    }
}

/// Twice as slow at first and e-fold closer every five steps: what is kept is within 5 % of the truth, and no more is
/// discarded than three times what it takes to come within 2 %.
#[test]
fn an_exponential_warm_up_is_cut_where_it_has_gone() {
    for steps in [60, 200] {
        let experiments = 300;
        let mut dice = Dice(steps as u64 * 19_000_013);
        let found = share(experiments, || {
            let level = |step: usize| 100.0 * (1.0 + (-(step as f64) / 5.0).exp());
            let series = times(&noise(&mut dice, steps, 0.02, 0.0), level);
            let discarded = find(&series).discarded();
            (10..=60).contains(&discarded) && level(discarded) < 115.0 && {
                let kept = &series[discarded..];
                (kept.iter().sum::<f64>() / kept.len() as f64 - 100.0).abs() < 5.0
            }
        });
        println!("exponential, {steps} steps: {found}");
        assert!(found >= 0.95 - three_errors(0.95, experiments), "{steps} steps: {found}");
    }
}

/// A drift has no steady part, and nothing is discarded from it. Nor is a burst in the middle or a change near the end
/// warm-up.
#[test]
fn drifts_bursts_and_late_changes_are_no_warm_up() {
    let experiments = 200;
    for (name, level) in [
        ("drift", (|step| 100.0 + step as f64) as fn(usize) -> f64),
        ("late change", |step| if step < 70 { 100.0 } else { 130.0 }),
        ("burst", |step| if (50..60).contains(&step) { 150.0 } else { 100.0 }),
    ] {
        let mut dice = Dice(23_000_009);
        let discarded = share(experiments, || find(&times(&noise(&mut dice, 100, 0.02, 0.0), level)).discarded() > 0);
        println!("{name}: {discarded}");
        assert!(discarded <= 0.02 + three_errors(0.02, experiments), "{name}: {discarded}");
    }
    let drift: Vec<f64> = (0..100).map(|step| 100.0 + f64::from(step)).collect();
    assert_eq!(find(&drift), WarmUpFinding::Never);
}

#[test]
fn cases_that_a_reader_can_check() {
    let level = |counts: &[(usize, f64)]| -> Vec<f64> {
        let values = counts.iter().flat_map(|(count, value)| std::iter::repeat_n(*value, *count));
        // A percent up and down, so that there is noise.
        values.enumerate().map(|(step, value)| value * if step % 2 == 0 { 1.01 } else { 0.99 }).collect()
    };
    assert_eq!(find(&level(&[(30, 10.0)])), WarmUpFinding::FromTheStart);
    assert_eq!(find(&level(&[(6, 15.0), (24, 10.0)])), WarmUpFinding::After(6));
    assert_eq!(find(&level(&[(6, 7.0), (24, 10.0)])), WarmUpFinding::After(6), "faster at first is not steady either");
    assert_eq!(find(&level(&[(4, 30.0), (4, 15.0), (24, 10.0)])), WarmUpFinding::After(8));
    assert_eq!(find(&level(&[(20, 15.0), (10, 10.0)])), WarmUpFinding::Never, "more than half");
    assert_eq!(find(&level(&[(6, 10.1), (24, 10.0)])), WarmUpFinding::FromTheStart, "one percent does no harm");
    assert_eq!(find(&[10.0; 40]), WarmUpFinding::FromTheStart);
    assert_eq!(find(&[]), WarmUpFinding::TooShort);
    assert_eq!(find(&level(&[(FEWEST - 1, 10.0)])), WarmUpFinding::TooShort);
    assert_eq!(find(&[f64::NAN; 40]), WarmUpFinding::TooShort);
}

/// Long runs are averaged first; the answer is then to within a block.
#[test]
fn long_runs_are_judged_too() {
    let mut dice = Dice(5);
    let series = times(&noise(&mut dice, 20_000, 0.02, 0.0), |step| if step < 3000 { 120.0 } else { 100.0 });
    let discarded = find(&series).discarded();
    assert!(discarded.abs_diff(3000) <= 3 * 20_000usize.div_ceil(512), "{discarded}");
}

/// Two segmentations of these cost the same, and rounding differs between seconds and milliseconds.
#[test]
fn the_unit_of_times_does_not_matter_where_two_answers_are_as_good() {
    let values = [373_919.4, 1e6, 1.0, 1.0, 1.0, 1.0, 1e-3, 1e6, 1e6, 618_058.3, 1e-3, 1.0];
    let jitter = |at: usize| 1.0 + (at * 7919 % 101) as f64 / 1e4;
    let times =
        |unit: f64| values.iter().enumerate().map(|(at, value)| jitter(at) * value * unit).collect::<Vec<f64>>();
    let found = find(&times(1.0));
    for unit in 2..40 {
        assert_eq!(find(&times(f64::from(unit))), found, "times {unit}");
    }
}

proptest! {
    #[test]
    fn never_more_than_half_and_no_panic(values in proptest::collection::vec(super::any::number(), 0..80), scale in 1u32..40) {
        let discarded = find(&values).discarded();
        prop_assert!(2 * discarded <= values.len());
        // Times are never equal. Where most are, the noise and with it the penalty of a segment is 0, and rounding decides.
        let jitter = |at: usize| 1.0 + (at * 7919 % 101) as f64 / 1e4;
        let time = |(at, value): (usize, &f64)| jitter(at) * if value.is_finite() { value.abs().clamp(1e-3, 1e6) } else { 1.0 };
        let positive: Vec<f64> = values.iter().enumerate().map(time).collect();
        let found = find(&positive);
        prop_assert!(2 * found.discarded() <= positive.len());
        // A factor adds a constant to the logarithms: seconds or milliseconds are the same run.
        let scaled: Vec<f64> = positive.iter().map(|value| value * f64::from(scale)).collect();
        prop_assert_eq!(find(&scaled), found);
    }
}
