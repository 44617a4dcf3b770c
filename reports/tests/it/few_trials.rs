//! A cell with fewer valid trials must never look more certain than one with more.

use proptest::collection::vec;
use proptest::prelude::*;
use zbench_reports::Record;
use zbench_reports::document::Document;
use zbench_reports::grid_report::comparison;
use zbench_reports::record::*;

use super::comparison::{column, table, text};
use super::grid;

/// Trials of one cell: the times of each one's timed steps, ms.
fn cell(spec: usize, trials: &[Vec<f64>]) -> Vec<Record> {
    let specs = grid::specs();
    let trial = |(number, times): (usize, &Vec<f64>)| {
        let mut record = grid::trial(&specs[spec], 1);
        record.id = format!("{spec}-{number}-id-of-the-trial");
        record.trial = number as u32 + 1;
        let like = record.steps[1].clone();
        record.steps = times.iter().map(|ms| Step { ms: *ms, ..like.clone() }).collect();
        record
    };
    trials.iter().enumerate().map(trial).collect()
}

/// What the report prints of its only cell: how far the interval reaches above the median, if there is one.
fn half(document: &Document) -> Option<f64> {
    let table = table(document, "cells").unwrap();
    let of = |title: &str| {
        let place = table.columns.iter().position(|column| column.title == title).unwrap();
        table.rows[0][place].value.as_f64()
    };
    Some(of("high")? - of("tokens/s")?)
}

fn is_ranked(document: &Document) -> bool {
    column(document, "cells", "place")[0] != "-"
}

fn without(trials: &[Vec<f64>], place: usize) -> Vec<Vec<f64>> {
    let mut rest = trials.to_vec();
    rest.remove(place);
    rest
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Removing a trial never narrows what is printed: of a single trial no interval is printed at all, and otherwise the
    /// mean of the squared half widths over all trials that could be removed is not below that of all trials. (For one
    /// removal alone no interval that follows the spread of the trials can promise that: docs/statistics.md.)
    #[test]
    fn removing_a_trial_never_narrows_an_interval(
        trials in vec((1.0..1000.0f64, vec(0.5..2.0f64, 1..6)), 2..12),
        alike in any::<bool>(),
    ) {
        // Trials that differ much, and trials that differ by their steps alone.
        let times = |(ms, steps): &(f64, Vec<f64>)| -> Vec<f64> {
            steps.iter().map(|share| share * if alike { 100.0 } else { *ms }).collect()
        };
        let trials: Vec<Vec<f64>> = trials.iter().map(times).collect();
        let all = comparison(&cell(0, &trials), None);
        let of_all = half(&all).expect("two trials have an interval");
        prop_assert!(is_ranked(&all));
        let mut squares = 0.0;
        for place in 0..trials.len() {
            let rest = comparison(&cell(0, &without(&trials, place)), None);
            match half(&rest) {
                Some(half) => squares += half * half / trials.len() as f64,
                None => {
                    prop_assert_eq!(trials.len(), 2);
                    prop_assert!(!is_ranked(&rest));
                    squares = f64::INFINITY;
                }
            }
        }
        prop_assert!(squares >= of_all * of_all * (1.0 - 1e-9), "{} of all, {} without one", of_all, squares.sqrt());
    }

    /// With the same spread, fewer trials have the wider interval, whatever the rates are.
    #[test]
    fn fewer_trials_of_the_same_spread_are_less_certain(
        few in vec(-1.0..1.0f64, 2..10), more in vec(-1.0..1.0f64, 1..10), spread in 0.001..0.2f64,
    ) {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let deviation = |values: &[f64]| {
            let mean = mean(values);
            (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
        };
        let more = [&few[..], &more[..]].concat();
        prop_assume!(deviation(&few) > 1e-3 && deviation(&more) > 1e-3);
        // Steps of 2048 tokens: rates of 20,480 tokens/s and deviations of the share that is asked for. None of at most 18
        // values is further than 17/sqrt(18) deviations from their mean, so no rate is negative.
        let half_of = |values: &[f64]| {
            let rate = |value: &f64| 20_480.0 * (1.0 + spread / 4.0 * (value - mean(values)) / deviation(values));
            let times: Vec<Vec<f64>> = values.iter().map(|value| vec![2048.0 / rate(value) * 1e3]).collect();
            half(&comparison(&cell(0, &times), None)).unwrap()
        };
        prop_assert!(half_of(&few) > half_of(&more));
    }
}

/// Four trials, of which some are flagged.
fn flagged(count: usize) -> Vec<Record> {
    let mut records = cell(0, &[vec![100.0, 101.0], vec![102.0, 101.0], vec![99.0, 103.0], vec![100.0, 104.0]]);
    records.iter_mut().take(count).for_each(|record| record.validity.push("busy_machine".into()));
    records
}

#[test]
fn one_valid_trial_is_neither_ranked_nor_compared() {
    // Slower cells of three trials each, so that the lone one would be "the fastest".
    let mut records = flagged(3);
    let slow = [vec![200.0, 201.0], vec![202.0, 201.0], vec![204.0, 201.0]];
    records.extend(cell(1, &slow));
    records.extend(cell(3, &[vec![300.0, 301.0], vec![302.0, 301.0], vec![304.0, 301.0]]));
    let document = comparison(&records, None);
    let said = text(&document);
    let labels = column(&document, "cells", "cell");
    let lone = labels.iter().position(|label| label == "ddp, checkpointing=none").unwrap();
    assert_eq!(column(&document, "cells", "place")[lone], "-");
    for title in ["95 % interval", "low", "high"] {
        assert_eq!(column(&document, "cells", title)[lone], "-", "{title}");
    }
    let why = "one valid trial only: how trials differ is unknown";
    assert_eq!(column(&document, "cells", "not ranked for")[lone], why);
    assert!(said.contains("is the fastest of 2 ranked cells"), "{said}");
    assert!(!said.contains("ddp, checkpointing=none is the fastest"), "{said}");
    assert!(said.contains("1 of 3 measured cells has only one valid trial and is not ranked"), "{said}");
    assert!(said.contains("--trials 2 or more"), "{said}");
    // Nothing is compared with it, and it with nothing.
    assert!(column(&document, "cells", "× reference").iter().all(|ratio| ratio == "-"), "{said}");
    assert!(!said.contains("memory.checkpointing = full instead of none: peak memory -25 %, tokens/s"), "{said}");

    // With one more it is ranked, and less certain than with all four.
    let (two, four) = (comparison(&flagged(2), None), comparison(&flagged(0), None));
    assert!(is_ranked(&two) && is_ranked(&four));
    assert!(half(&two).unwrap() > half(&four).unwrap());
}

/// By hand: rates 10, 20 and 30 have median 20 and variance 100, so the half width is 4.3027 sqrt(pi / 2 x 100 / 3); two of
/// them, 10 and 20, have 12.7062 sqrt(50 / 2), which reaches below 0.
#[test]
fn intervals_by_hand() {
    let one = |rates: &[f64]| rates.iter().map(|rate| vec![(*rate, 1.0)]).collect::<Vec<_>>();
    let near = |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 1e-5, "{found} and not {wanted}");
    let three = zbench_reports::stats::rate(&one(&[10.0, 20.0, 30.0])).unwrap();
    assert_eq!((three.low, three.mid), (0.0, 20.0));
    near(three.high, 20.0 + 4.302_65 * (std::f64::consts::FRAC_PI_2 * 100.0 / 3.0).sqrt());
    let two = zbench_reports::stats::rate(&one(&[10.0, 20.0])).unwrap();
    near(two.high, 15.0 + 12.706_2 * 5.0);
    // Trials that agree, of steps that do not: two steps of one token, 1 and 3 s. The rate is a half, the shares of the time
    // are a quarter and three quarters, and its variance 1/4 x (1/16 + 1/16) x 2 = 1/16.
    let steps = vec![vec![(1.0, 1.0), (1.0, 3.0)]; 2];
    near(zbench_reports::stats::rate(&steps).unwrap().high, 0.5 + 12.706_2 * (1.0f64 / 32.0).sqrt());
}
