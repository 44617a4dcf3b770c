//! Intervals and ties on data whose truth is known.

use proptest::prelude::*;
use zbench_reports::stats::*;

#[test]
fn percentiles_interpolate() {
    let values = [40.0, 10.0, 30.0, 20.0];
    assert_eq!(percentile(&values, 0.0), Some(10.0));
    assert_eq!(percentile(&values, 50.0), Some(25.0));
    assert_eq!(percentile(&values, 90.0), Some(37.0));
    assert_eq!(percentile(&values, 100.0), Some(40.0));
    assert_eq!(percentile(&values, 400.0), Some(40.0));
    assert_eq!((median(&[]), mean(&[])), (None, None));
    assert_eq!(median(&[7.0]), Some(7.0));
    assert_eq!(mean(&values), Some(25.0));
}

#[test]
fn variation_is_relative_to_the_mean() {
    // Deviations -1, 0, 1: sample standard deviation 1.
    assert_eq!(coefficient_of_variation(&[9.0, 10.0, 11.0]), Some(0.1));
    assert_eq!(coefficient_of_variation(&[9.0]), None);
    assert_eq!(coefficient_of_variation(&[-1.0, 1.0]), None);
}

/// Uniform in [0, 1) from a counter: a hash of its own, so that test data do not share the generator under test.
fn uniform(counter: &mut u64) -> f64 {
    *counter += 1;
    let mut bits = counter.wrapping_mul(0xd6e8_feb8_6659_fd93);
    for _ in 0..3 {
        bits ^= bits >> 32;
        bits = bits.wrapping_mul(0xd6e8_feb8_6659_fd93);
    }
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Sum of twelve uniforms less six: mean 0, variance 1, close to normal.
fn normal(counter: &mut u64) -> f64 {
    (0..12).map(|_| uniform(counter)).sum::<f64>() - 6.0
}

/// Trials of steps that take so many seconds each, for one unit of work.
fn seconds(trials: &[Vec<f64>]) -> Vec<Vec<(f64, f64)>> {
    trials.iter().map(|steps| steps.iter().map(|second| (1.0, *second)).collect()).collect()
}

fn coverage(trials: usize, experiments: usize) -> f64 {
    let mut counter = 0;
    let covered = (0..experiments).filter(|_| {
        let data: Vec<Vec<f64>> = (0..trials)
            .map(|_| {
                let of_trial = 100.0 + 2.0 * normal(&mut counter);
                (0..6).map(|_| of_trial + normal(&mut counter)).collect()
            })
            .collect();
        let interval = rate(&seconds(&data)).unwrap();
        interval.low <= 0.01 && 0.01 <= interval.high
    });
    covered.count() as f64 / experiments as f64
}

/// The true median is 1 in 100 s. The interval should hold it in about 95 of 100 experiments; the bounds leave room for 120
/// experiments (standard error 2 %) and for more coverage than is promised.
#[test]
fn intervals_cover_the_truth_as_often_as_they_say() {
    let many = coverage(15, 120);
    assert!((0.88..=1.0).contains(&many), "{many}");
    // Three trials: standard error 1.5 % for 200 experiments.
    let three = coverage(3, 200);
    assert!((0.92..=1.0).contains(&three), "{three}");
}

#[test]
fn intervals_shrink_with_more_trials_and_repeat_exactly() {
    let mut counter = 0;
    let mut data = |trials: usize| -> Vec<Vec<f64>> {
        (0..trials).map(|_| (0..5).map(|_| 50.0 + normal(&mut counter)).collect()).collect()
    };
    let (few, many) = (data(4), data(64));
    let (wide, narrow) = (rate(&seconds(&few)).unwrap(), rate(&seconds(&many)).unwrap());
    assert!(narrow.high - narrow.low < wide.high - wide.low);
    assert_eq!(rate(&seconds(&few)).unwrap(), wide);
}

#[test]
fn degenerate_data_give_degenerate_intervals() {
    assert_eq!(rate(&[]), None);
    // Nothing, no number, no work and no time are no rates.
    assert_eq!(rate(&[vec![], vec![(1.0, f64::NAN)], vec![(0.0, 1.0)], vec![(1.0, 0.0)]]), None);
    // One trial has no upper limit, however many steps it has.
    let alone = rate(&seconds(&[vec![0.5; 9]])).unwrap();
    assert_eq!(alone, Interval { low: 0.0, mid: 2.0, high: f64::INFINITY });
    assert!(!alone.is_bounded());
    let constant = rate(&seconds(&[vec![0.5; 4], vec![0.5; 4]])).unwrap();
    assert_eq!(constant, Interval { low: 2.0, mid: 2.0, high: 2.0 });
}

fn interval(low: f64, mid: f64, high: f64) -> Interval {
    Interval { low, mid, high }
}

fn labels(cells: &[Interval]) -> Vec<String> {
    places(cells).iter().map(Place::label).collect()
}

#[test]
fn cells_tie_with_the_best_of_their_group() {
    assert_eq!(labels(&[]), Vec::<String>::new());
    assert_eq!(labels(&[interval(1.0, 2.0, 3.0)]), ["1"]);
    // 10 and 9 overlap, 8 overlaps 9 but not 10: it opens the next group.
    assert_eq!(
        labels(&[interval(7.5, 8.0, 9.0), interval(9.5, 10.0, 11.0), interval(8.5, 9.0, 9.6)]),
        ["3", "1=", "1="]
    );
    // A wide interval reaches the best past a narrow one.
    assert_eq!(
        labels(&[interval(9.5, 10.0, 11.0), interval(8.9, 9.0, 9.1), interval(5.0, 8.0, 10.0)]),
        ["1=", "3", "1="]
    );
    // Touching limits overlap.
    assert_eq!(labels(&[interval(2.0, 2.0, 2.0), interval(1.0, 1.5, 2.0)]), ["1=", "1="]);
}

proptest! {
    #[test]
    fn ranks_are_consistent(cells in proptest::collection::vec((0.0..100.0f64, 0.0..20.0f64, 0.0..20.0f64), 1..20)) {
        let cells: Vec<Interval> = cells.into_iter().map(|(mid, below, above)| interval(mid - below, mid, mid + above)).collect();
        let places = places(&cells);
        let best = (0..cells.len()).max_by(|&a, &b| cells[a].mid.total_cmp(&cells[b].mid)).unwrap();
        prop_assert_eq!(places[best].rank, 1);
        // The rule as it is documented: of the cells not in a better group, those that overlap the best form the next.
        for rank in places.iter().map(|place| place.rank) {
            let rest: Vec<usize> = (0..cells.len()).filter(|&cell| places[cell].rank >= rank).collect();
            let best = *rest.iter().max_by(|&&a, &&b| cells[a].mid.total_cmp(&cells[b].mid)).unwrap();
            for cell in rest {
                prop_assert_eq!(places[cell].rank == rank, cells[cell].overlaps(&cells[best]));
            }
        }
        for (cell, place) in cells.iter().zip(&places) {
            prop_assert_eq!(place.rank == 1, cell.overlaps(&cells[best]));
            let before = places.iter().filter(|other| other.rank < place.rank).count();
            prop_assert_eq!(place.rank, before + 1);
            let same = places.iter().filter(|other| other.rank == place.rank).count();
            prop_assert_eq!(place.tied, same > 1);
        }
    }

    #[test]
    fn intervals_hold_their_middle_and_follow_the_unit(
        trials in proptest::collection::vec(proptest::collection::vec(1e-3..1e6f64, 1..6), 1..14), turn in 0usize..14
    ) {
        let interval = rate(&seconds(&trials)).unwrap();
        prop_assert!(0.0 <= interval.low && interval.low <= interval.mid && interval.mid <= interval.high);
        prop_assert_eq!(interval.is_bounded(), trials.len() > 1);
        // The middle is the median of the rates, and lies within the data.
        let rates: Vec<f64> = trials.iter().map(|steps| steps.len() as f64 / steps.iter().sum::<f64>()).collect();
        prop_assert!((interval.mid / median(&rates).unwrap() - 1.0).abs() < 1e-12);
        // Another unit of time, and another order of trials.
        let mut other: Vec<Vec<f64>> = trials.iter().map(|steps| steps.iter().map(|step| step / 1024.0).collect()).collect();
        let count = other.len();
        other.rotate_left(turn % count);
        let other = rate(&seconds(&other)).unwrap();
        for (a, b) in [(interval.low, other.low), (interval.mid, other.mid), (interval.high, other.high)] {
            prop_assert!(a * 1024.0 == b || (a * 1024.0 - b).abs() <= 1e-9 * b.max(interval.mid * 1024.0), "{} {}", a, b);
        }
    }

    #[test]
    fn any_numbers_are_summarised_without_panic(values in proptest::collection::vec(any::<f64>(), 0..8), percent in any::<f64>()) {
        let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let _ = (percentile(&finite, if percent.is_nan() { 50.0 } else { percent }), coefficient_of_variation(&finite));
        let steps: Vec<(f64, f64)> = values.iter().zip(values.iter().rev()).map(|(a, b)| (*a, *b)).collect();
        let _ = rate(&[steps.clone(), steps]);
    }
}
