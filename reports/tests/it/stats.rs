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

fn average(steps: &[f64]) -> f64 {
    steps.iter().sum::<f64>() / steps.len() as f64
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
        let interval = bootstrap(&data, average).unwrap();
        interval.low <= 100.0 && 100.0 <= interval.high
    });
    covered.count() as f64 / experiments as f64
}

/// The true median is 100. With 15 trials the interval should hold it in about 95 of 100 experiments; the bounds leave
/// room for 120 experiments (standard error 2 %) and for what the percentile bootstrap is known to miss.
#[test]
fn intervals_cover_the_truth_as_often_as_they_say() {
    let many = coverage(15, 120);
    assert!((0.88..=1.0).contains(&many), "{many}");
    // Three trials: Student's interval covers 95 % of the time (standard error 1.5 % for 200 experiments), and taking the
    // percentile interval in only adds to it.
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
    let (wide, narrow) = (bootstrap(&few, average).unwrap(), bootstrap(&many, average).unwrap());
    assert!(narrow.high - narrow.low < wide.high - wide.low);
    assert_eq!(bootstrap(&few, average).unwrap(), wide);
}

#[test]
fn degenerate_data_give_degenerate_intervals() {
    assert_eq!(bootstrap::<f64>(&[], average), None);
    assert_eq!(bootstrap(&[vec![], vec![f64::NAN]], average), None);
    assert_eq!(bootstrap(&[vec![3.0]], average), Some(Interval { low: 3.0, mid: 3.0, high: 3.0 }));
    let constant = bootstrap(&[vec![0.1; 5], vec![0.1; 5]], |steps| steps[0]).unwrap();
    assert_eq!((constant.low, constant.high), (0.1, 0.1));
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
    fn intervals_hold_their_middle_and_stay_within_the_data(
        trials in proptest::collection::vec(proptest::collection::vec(-1e6..1e6f64, 1..6), 1..14)
    ) {
        let interval = bootstrap(&trials, average).unwrap();
        prop_assert!(interval.low <= interval.mid && interval.mid <= interval.high);
        // Student's interval of few trials may leave the data; that of one or of many may not.
        if (2..=9).contains(&trials.len()) {
            return Ok(());
        }
        let all: Vec<f64> = trials.concat();
        let (least, most) = (percentile(&all, 0.0).unwrap(), percentile(&all, 100.0).unwrap());
        // An average of equal numbers may be off by rounding.
        prop_assert!(interval.low >= least - 1e-6 && interval.high <= most + 1e-6);
    }

    #[test]
    fn any_numbers_are_summarised_without_panic(values in proptest::collection::vec(any::<f64>(), 0..8), percent in any::<f64>()) {
        let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let _ = (percentile(&finite, if percent.is_nan() { 50.0 } else { percent }), coefficient_of_variation(&finite));
        let _ = bootstrap(std::slice::from_ref(&values), average);
    }
}
