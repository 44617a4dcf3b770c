//! The largest value of a search, from records: what is said where the next was refused, ran, or was not to be.

use serde_json::json;
use zbench_reports::estimate_report::{EstimateRow, estimates};
use zbench_reports::grid_report::comparison;
use zbench_reports::max_batch::{Next, Of, Role, Search};
use zbench_reports::record::*;
use zbench_reports::render::{csv, html, markdown};
use zbench_reports::screen::Room;
use zbench_reports::{Document, Record};

use super::comparison::{column, table};

const MIB: u64 = 1 << 20;

fn search(strategy: &str, checkpointing: &str, value: u64, next: Option<u64>) -> Search {
    let axes = [("parallel.strategy", strategy), ("memory.checkpointing", checkpointing), ("train.lr", "0.1")];
    Search {
        key: "train.micro_batch".into(),
        value: Some(value),
        next: next.map(|value| Next { value, bytes: Some(70 * MIB), ..Next::default() }),
        capacity: Some(64 * MIB),
        bytes: Some(63 * MIB),
        smallest: 1,
        most: 100,
        multiple: 1,
        combination: format!("{strategy} {checkpointing}"),
        axes: axes.into_iter().map(|(path, value)| (path, value.to_string())).collect(),
        global_batch: Some(4 * value),
        ..Search::default()
    }
}

fn cell(search: &Search) -> serde_json::Value {
    json!({
        "parallel": {"strategy": search.axes.get("parallel.strategy"), "ranks": 4},
        "train": {"micro_batch": search.value, "accumulation": 1, "seq_len": 64, "lr": 0.1},
        "memory": {"checkpointing": search.axes.get("memory.checkpointing"), "capacity": 64 * MIB},
    })
}

/// A measured trial of 100 tokens a millisecond and sequence of the micro-batch.
/// Another trial of it.
fn second(search: &Search, rate: f64) -> Record {
    let first = measured(search, rate);
    Record { id: format!("{}-2", first.id), trial: 2, ..first }
}

fn measured(search: &Search, rate: f64) -> Record {
    let key = format!("{}-{:?}-key-of-the-cell", search.combination, search.value);
    let mut record = Record::new(format!("{key}-measured-trial"), key, "limit", Outcome::measured());
    (record.cell, record.trial) = (cell(search), 1);
    for step in 0..4 {
        record.steps.push(Step {
            step,
            timed: true,
            loss: 5.0,
            grad_norm: 1.0,
            lr: 0.1,
            ms: 10.0 + 0.001 * step as f64,
            tokens: (rate / 100.0) as u64,
            extra: Default::default(),
        });
    }
    record.state("tokens_per_second", rate);
    let bytes = Bytes { predicted_bytes: search.bytes, peak_bytes: search.bytes, ..Bytes::default() };
    record.memory.total = Some(bytes);
    search.put(&mut record);
    record
}

/// The trial of a value that the arena, or the host, refused.
fn refused(search: &Search, source: Source) -> Record {
    let mut record = measured(search, 100.0);
    record.id = format!("{} {:?} refused", record.key, search.role);
    record.outcome = Outcome::ended(Status::OutOfMemory, "activations asked for 9 MiB with 60 in use", Some(source));
    record.steps.clear();
    record.metrics = Default::default();
    record
}

fn next_of(limit: &Search) -> Search {
    let value = limit.next.as_ref().map(|next| next.value);
    Search { value, role: Role::Next, next: None, bytes: Some(70 * MIB), ..limit.clone() }
}

fn words(records: &[Record]) -> (Document, String) {
    let document = comparison(records, Some("How much fits?"));
    let text = markdown::render(&document).replace('\\', "");
    (document, text)
}

#[test]
fn the_limits_are_told_with_what_they_are_worth() {
    let (ddp, zero2) = (search("ddp", "none", 5, Some(6)), search("zero2", "none", 16, Some(17)));
    let records = [
        measured(&ddp, 10_000.0),
        measured(&zero2, 14_000.0),
        refused(&next_of(&ddp), Source::Arena),
        refused(&next_of(&zero2), Source::Arena),
        second(&ddp, 10_000.0),
        second(&zero2, 14_000.0),
    ];
    // One trial of each is compared with nothing.
    let (document, text) = words(&records[..4]);
    assert!(text.contains("zero2 fits 3.20 times the micro_batch of ddp (16 against 5)."), "{text}");
    assert!(!text.contains("times the tokens per second"), "{text}");
    assert_eq!(column(&document, "largest micro_batch", "× ddp: tokens/s"), ["-", "-"]);
    let (document, text) = words(&records);
    for part in [
        "## Largest micro_batch",
        "The largest micro_batch that fits the 64.0 MiB of a rank: ddp 5; zero2 16. The next value was run and was out of \
         memory in both searches.",
        "zero2 fits 3.20 times the micro_batch of ddp (16 against 5) and trains 1.40 times the tokens per second at it.",
        "but train.micro_batch, which the search found",
        "the global batch grows",
    ] {
        assert!(text.to_lowercase().contains(&part.to_lowercase()), "{part}\n\n{text}");
    }
    let name = "largest micro_batch";
    assert_eq!(column(&document, name, name), ["5", "16"]);
    assert_eq!(column(&document, name, "next"), ["6", "17"]);
    assert_eq!(column(&document, name, "and"), ["out of memory when run", "out of memory when run"]);
    assert_eq!(column(&document, name, "× ddp: micro_batch"), ["1.00", "3.20"]);
    assert_eq!(column(&document, name, "× ddp: tokens/s"), ["1.00", "1.40"]);
    assert_eq!(column(&document, name, "global batch"), ["20", "64"]);
    // Those that were to be refused are no cells of the grid.
    assert!(text.contains("Every cell of these records was measured; none was skipped."), "{text}");
    assert_eq!(table(&document, "cells").unwrap().rows.len(), 2);
    // Where the limit is not there they are.
    let (_, alone) = words(&records[2..4]);
    assert!(alone.contains("out of memory") && !alone.contains("Every cell of these records was measured"), "{alone}");
    assert!(csv::render(&document).contains("largest micro_batch"));
    assert!(html::render(&document).contains("Largest micro_batch"));
}

#[test]
fn checkpointing_is_compared_within_itself() {
    let limits = [
        search("ddp", "none", 5, Some(6)),
        search("ddp", "full", 20, Some(21)),
        search("zero2", "none", 10, Some(11)),
        search("zero2", "full", 80, None),
    ];
    let records: Vec<Record> = limits.iter().map(|limit| measured(limit, 1_000.0)).collect();
    let (document, text) = words(&records);
    let name = "largest micro_batch";
    assert_eq!(column(&document, name, "× ddp: micro_batch"), ["1.00", "1.00", "2.00", "4.00"]);
    assert_eq!(column(&document, name, name)[3], "80 or more");
    assert!(text.contains("zero2, checkpointing=full fits at least 4.00 times"), "{text}");
    assert!(text.contains("does not fit by the plan in 3 of 4 searches"), "{text}");
    assert!(text.contains("In 1 of 4 searches everything that was to be tried fits"), "{text}");
    // The axes of the grid name the cells, and not what was found.
    let labels = column(&document, "cells", "cell");
    assert!(
        labels.iter().all(|label| label.contains("checkpointing=") && !label.contains("micro_batch")),
        "{labels:?}"
    );
}

#[test]
fn a_limit_that_fell_short_and_one_that_was_passed() {
    let planned = search("zero2", "none", 16, Some(17));
    let by_run = Search { of: Of::Run, ..search("zero2", "none", 12, Some(13)) };
    let steps = [refused(&planned, Source::Host), refused(&search("zero2", "none", 13, Some(14)), Source::Host)];
    let records = [steps.to_vec(), vec![measured(&by_run, 1_000.0)]].concat();
    let (document, text) = words(&records);
    assert_eq!(column(&document, "largest micro_batch", "largest micro_batch"), ["12"]);
    assert_eq!(column(&document, "largest micro_batch", "next"), ["13"]);
    assert_eq!(column(&document, "largest micro_batch", "found by"), ["run"]);
    assert!(text.contains("zero2: micro_batch = 13 fits by its plan and was out of memory all the same"), "{text}");

    let records = [measured(&planned, 1_000.0), measured(&next_of(&planned), 1_000.0)];
    let (_, text) = words(&records);
    assert!(text.contains("micro_batch = 17 ran although its plan does not fit"), "{text}");

    // Nothing ran, down to the smallest.
    let (document, text) = words(&steps);
    assert_eq!(column(&document, "largest micro_batch", "largest micro_batch"), ["none"]);
    assert!(text.contains("zero2 none"), "{text}");
}

#[test]
fn estimates_have_the_table_too() {
    let row = |search: Search, rate: f64| EstimateRow {
        label: "x".into(),
        status: "skipped".into(),
        tokens_per_second: Some(rate),
        search: Some(search),
        ..EstimateRow::default()
    };
    let none = Search {
        value: None,
        next: None,
        bytes: Some(90 * MIB),
        reason: "takes 90 MiB of a rank, which has 64 MiB".into(),
        ..search("ddp", "none", 1, None)
    };
    let refused = Next {
        value: 65,
        outcome: Some("skipped".into()),
        reason: "longer than max_position_embeddings".into(),
        ..Next::default()
    };
    let stopped = Search { next: Some(refused), ..search("zero3", "none", 64, None) };
    let rows = [row(none, 1.0), row(search("zero2", "none", 8, Some(9)), 2_000.0), row(stopped, 3_000.0)];
    let document = estimates(&rows, Room::SCREEN, &[]);
    let text = markdown::render(&document).replace('\\', "");
    for part in [
        "ddp none; zero2 8; zero3 64.",
        "The next value does not fit by the plan in 1 of 2 searches and is no configuration in 1 of 2 searches.",
        "zero2 fits a micro_batch of 8; ddp does not fit at all.",
        "ddp: even micro_batch = 1 takes 90.0 MiB: takes 90 MiB of a rank, which has 64 MiB.",
        "zero3: micro_batch = 65 was not tried: longer than max_position_embeddings.",
    ] {
        assert!(text.contains(part), "{part}\n\n{text}");
    }
    // It survives the JSON of a row.
    let json = serde_json::to_string(&rows[1]).unwrap();
    assert_eq!(serde_json::from_str::<EstimateRow>(&json).unwrap(), rows[1]);
    assert!(!serde_json::to_string(&EstimateRow::default()).unwrap().contains("search"));
}

/// Where the model's positions end both, memory was not asked, and nothing is said of it.
#[test]
fn what_no_configuration_has_is_said_once() {
    let stop = |strategy: &str| {
        let next = Next { value: 65, outcome: Some("skipped".into()), reason: "too long".into(), ..Next::default() };
        let search = Search { next: Some(next), ..search(strategy, "none", 64, None) };
        EstimateRow { search: Some(search), ..EstimateRow::default() }
    };
    let text = |rows: &[EstimateRow]| markdown::render(&estimates(rows, Room::SCREEN, &[])).replace('\\', "");
    let both = text(&[stop("ddp"), stop("zero2")]);
    assert!(both.contains("In both searches: micro_batch = 65 was not tried: too long."), "{both}");
    assert!(!both.contains("times the micro_batch"), "{both}");
    let ddp = EstimateRow { search: Some(search("ddp", "none", 16, Some(17))), ..EstimateRow::default() };
    let one = text(&[ddp, stop("zero2")]);
    assert!(one.contains("zero2 fits at least 4.00 times the micro_batch of ddp (64 against 16)."), "{one}");
}

/// What another version, or a person, wrote under the key is no reason to fall.
#[test]
fn a_search_that_is_none_is_passed_over() {
    let mut record = measured(&search("ddp", "none", 5, Some(6)), 1_000.0);
    for odd in [json!(5), json!({"key": 1}), json!({"value": -1}), json!(null)] {
        record.extra.insert("search".into(), odd);
        let (_, text) = words(std::slice::from_ref(&record));
        assert!(!text.contains("Largest"), "{text}");
    }
    record.extra.insert("search".into(), json!({"key": "", "value": 0}));
    let _ = words(std::slice::from_ref(&record));
}
