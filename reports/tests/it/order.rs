//! Predicted orders beside records of turns whose true speeds are known: ddp is the fastest, and each strategy after it takes 8 % of
//! ddp's time longer than the one before.

use zbench_reports::Record;
use zbench_reports::order_report::{Held, Order, PredictedWay};
use zbench_reports::screen::Room;

use super::screen::short_at;
use super::turns::{How, records, true_ms};

const SURE: How = How { cells: 3, generations: 4, rounds: 60, noise: 0.02 };

/// Predictions of so many milliseconds for the cells in order.
fn ways(records: &[Record], ms: &[f64]) -> Vec<PredictedWay> {
    let key = |cell: usize| {
        let start = format!("{cell:03}-");
        records.iter().find(|record| record.key.starts_with(&start)).map_or(start.clone(), |record| record.key.clone())
    };
    let way = |(cell, ms): (usize, &f64)| PredictedWay {
        name: format!("way {cell}"),
        key: key(cell),
        step_ms: *ms,
        tokens_per_second: 2.048e6 / ms,
    };
    ms.iter().enumerate().map(way).collect()
}

#[test]
fn an_order_that_holds_is_said_to_hold_with_its_ratios() {
    let records = records(SURE);
    let order = Order::of(ways(&records, &[50.0, 60.0, 70.0]), &records, "");
    assert_eq!((order.held, order.reversed, order.tau), (3, 0, Some(1.0)));
    assert!(order.pairs.iter().all(|pair| pair.held == Held::Held));
    let first = &order.pairs[0];
    // Measured 8 % apart, within 2 %; predicted 20 %.
    assert!((first.predicted - 1.2).abs() < 1e-9);
    assert!((first.measured.unwrap() - true_ms(1) / true_ms(0)).abs() < 0.02, "{first:?}");
    assert_eq!(order.ways.iter().map(|way| way.place).collect::<Vec<_>>(), [Some(1), Some(2), Some(3)]);
    let ratio = order.ways[0].step_ratio.unwrap();
    assert!((ratio - order.ways[0].measured_step_ms.unwrap() / 50.0).abs() < 1e-9);
    assert!(order.verdict().starts_with("The order held in all 3 decided of 3 pairs"), "{}", order.verdict());
}

#[test]
fn reversed_pairs_are_counted_and_named() {
    let records = records(SURE);
    // The first two the other way round.
    let order = Order::of(ways(&records, &[60.0, 50.0, 70.0]), &records, "");
    assert_eq!((order.held, order.reversed), (2, 1));
    assert!((order.tau.unwrap() - 1.0 / 3.0).abs() < 1e-9);
    assert_eq!(order.ways[0].predicted.name, "way 1", "the fastest prediction is first");
    let said = short_at(order.document(Room::wide(120)), 120);
    assert!(said.contains("is reversed in 1 (Kendall's tau 0.33)"), "{said}");
    assert!(said.contains("REVERSED way 1 was predicted 1.200 times as fast as way 0 and is 0.9"), "{said}");
}

#[test]
fn pairs_that_the_evidence_does_not_decide_count_for_neither() {
    let records = records(How { generations: 1, rounds: 2, ..SURE });
    let order = Order::of(ways(&records, &[50.0, 60.0, 70.0]), &records, "");
    assert_eq!((order.held, order.reversed, order.tau), (0, 0, None));
    assert!(order.pairs.iter().all(|pair| pair.held == Held::Undecided), "{:?}", order.pairs);
    assert!(order.verdict().starts_with("The evidence decides none of 3 pairs"), "{}", order.verdict());
}

/// Ways that were measured and may not be ranked are not called unmeasured.
#[test]
fn ways_without_a_place_say_why() {
    let mut records = records(SURE);
    records.iter_mut().for_each(|record| record.validity.push("busy_machine".into()));
    let order = Order::of(ways(&records, &[50.0, 60.0, 70.0]), &records, "");
    assert!(
        order.verdict().starts_with("3 ways were measured, and fewer than two of them have a place"),
        "{}",
        order.verdict()
    );
    let why: Vec<&str> = order.ways.iter().map(|way| way.why_not.as_str()).collect();
    assert!(why.iter().all(|why| why.contains("busy_machine")), "{why:?}");
}

#[test]
fn stand_ins_and_ways_without_records_have_no_ratio() {
    let records = records(SURE);
    let mut all = ways(&records, &[50.0, 60.0, 70.0]);
    all.push(PredictedWay { name: "way 9".into(), key: "absent".into(), step_ms: 80.0, tokens_per_second: 1.0 });
    let order = Order::of(all, &records, "PROXY: other cells.");
    assert!(order.ways.iter().all(|way| way.step_ratio.is_none()));
    assert_eq!((order.pairs.len(), order.ways[3].place, order.ways[3].why_not.as_str()), (3, None, "it has no record"));
    let said = short_at(order.document(Room::wide(120)), 120);
    assert!(said.contains("STAND-INS PROXY: other cells."), "{said}");
    let none = Order::of(ways(&[], &[50.0, 60.0]), &[], "");
    assert!(none.pairs.is_empty() && none.verdict().starts_with("Fewer than two ways were measured"));
}
