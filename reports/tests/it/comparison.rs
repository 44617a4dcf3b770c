//! The comparison of a synthetic grid: the whole text, and the rules behind it one by one.

use std::path::Path;

use proptest::prelude::*;
use serde_json::json;
use zbench_reports::compare::{Options, Side, compare};
use zbench_reports::document::{Block, Document, Table};
use zbench_reports::grid_report::comparison;
use zbench_reports::record::*;
use zbench_reports::render::{markdown, terminal};

use super::screen::short;
use super::{any, grid};

pub fn table<'a>(document: &'a Document, name: &str) -> Option<&'a Table> {
    document.tables().find(|table| table.name == name)
}

pub fn column(document: &Document, name: &str, title: &str) -> Vec<String> {
    let table = table(document, name).unwrap();
    let place = table.columns.iter().position(|column| column.title == title).unwrap();
    table.rows.iter().map(|row| row[place].text.clone()).collect()
}

pub fn text(document: &Document) -> String {
    markdown::render(document)
}

/// Set ZBENCH_BLESS=1 to write what is expected anew; the difference then shows in the commit.
pub fn expect(file: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expected").join(file);
    if std::env::var_os("ZBENCH_BLESS").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    for (number, (expected, found)) in expected.lines().zip(found.lines()).enumerate() {
        assert_eq!(found, expected, "{file}, line {}", number + 1);
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "{file}");
}

#[test]
fn the_whole_report_is_as_expected() {
    let document = comparison(&grid::records(), Some("Which strategy is fastest within 512 MiB?"));
    expect("comparison.md", &markdown::render(&document));
    for width in [80, 150] {
        let shown = terminal::render(&document, terminal::Terminal { width, color: false });
        assert!(shown.lines().all(|line| line.chars().count() <= usize::from(width)), "{shown}");
        expect(&format!("comparison-{width}.txt"), &shown);
    }
}

/// A cell that cannot be is what was written for it, and states no kernels.
#[test]
fn what_a_skipped_cell_lacks_is_no_difference() {
    let mut all = grid::records();
    for record in &mut all {
        let strategy = record.cell["parallel"]["strategy"].clone();
        match record.outcome.status {
            Status::Measured => drop(record.environment.insert("kernels".into(), "avx2".into())),
            Status::Skipped => record.cell = json!({ "parallel": { "ranks": 4, "strategy": strategy } }),
            _ => {}
        }
    }
    let said = text(&comparison(&all, None)) + &short(comparison(&all, None));
    for wrong in ["do not agree in", "records differ in", "hidden_size", "seq_len"] {
        assert!(!said.contains(wrong), "{wrong}: {said}");
    }
    assert!(said.contains("| kernels | avx2 |"), "{said}");
    let of = |strategies: &[&str]| -> Vec<Record> {
        let is = |record: &&Record| strategies.iter().any(|name| record.cell["parallel"]["strategy"] == *name);
        all.iter().filter(is).cloned().collect()
    };
    // Of each side one cell is skipped.
    let (mut a, mut b) = (of(&["ddp", "zero1"]), of(&["zero3", "zero1"]));
    for (side, seq_len) in [(&mut a, 128), (&mut b, 256)] {
        side.iter_mut()
            .filter(|record| record.is_measured())
            .for_each(|record| record.cell["train"]["seq_len"] = seq_len.into());
    }
    let [a, b] = [&a, &b].map(|side| Side { selector: "side".into(), records: side.iter().collect() });
    assert_eq!(compare(&a, &b, Options::default()).pairs.len(), 3);
}

#[test]
fn ties_are_said_in_words_and_in_ranks() {
    let document = comparison(&grid::records(), None);
    let labels = column(&document, "cells", "cell");
    let ranks = column(&document, "cells", "place");
    assert_eq!(labels[0], "ddp, accumulation=4, checkpointing=none");
    assert_eq!(labels[1], "zero3, accumulation=4, checkpointing=none");
    assert_eq!(ranks, ["1=", "1=", "3", "4=", "4=", "6"]);
    assert!(text(&document).contains("2 of 6 ranked cells may be the fastest"));
    assert!(text(&document).contains("their 95 % intervals overlap"));
}

#[test]
fn two_of_two_are_both() {
    let specs = grid::specs();
    let records: Vec<Record> =
        [2, 5].iter().flat_map(|&at| (1..=3).map(move |n| (at, n))).map(|(at, n)| grid::trial(&specs[at], n)).collect();
    let said = text(&comparison(&records, None));
    assert!(said.contains("Both ranked cells may be the fastest: "), "{said}");
    assert!(said.contains("equal to the byte in both cells that state both."), "{said}");
    assert!(!said.to_lowercase().contains("all 2 "), "{said}");
}

#[test]
fn a_single_winner_is_named_with_the_next() {
    let mut specs = grid::specs();
    specs[2].ms = [60.0, 61.0, 62.0];
    let records: Vec<Record> = specs.iter().flat_map(|spec| (1..=3).map(|number| grid::trial(spec, number))).collect();
    let said = text(&comparison(&records, None));
    assert!(said.contains("ddp, accumulation=4, checkpointing=none is the fastest of 6 ranked cells"), "{said}");
    assert!(said.contains("The next is zero3, accumulation=4, checkpointing=none"), "{said}");
}

#[test]
fn a_cell_that_fails_parity_is_shown_apart_and_not_ranked() {
    let document = comparison(&grid::records(), None);
    assert!(!column(&document, "cells", "cell").iter().any(|label| label.starts_with("zero2")));
    assert_eq!(column(&document, "failed parity", "cell"), ["zero2, accumulation=4, checkpointing=none"]);
    assert!(text(&document).contains("1 fails and is not ranked (zero2, accumulation=4, checkpointing=none)"));
    assert!(text(&document).contains("~~40,157~~"), "its speed is struck out");
}

#[test]
fn ratios_are_against_the_reference_of_the_same_accumulation() {
    let document = comparison(&grid::records(), None);
    let labels = column(&document, "cells", "cell");
    let ratios = column(&document, "cells", "× reference");
    let of = |label: &str| ratios[labels.iter().position(|other| other == label).unwrap()].as_str();
    assert_eq!(of("zero3, accumulation=4, checkpointing=none"), "0.99"); // 91 / 92
    assert_eq!(of("zero3, accumulation=1, checkpointing=none"), "0.83"); // 101 / 121
    assert_eq!(of("ddp, accumulation=1, checkpointing=none"), "1.00");
}

#[test]
fn what_was_not_measured_is_listed_with_its_reason() {
    let document = comparison(&grid::records(), None);
    assert_eq!(column(&document, "not measured", "outcome"), ["out_of_memory", "skipped"]);
    assert_eq!(column(&document, "not measured", "found by"), ["arena", "host"]);
    let memory = column(&document, "memory", "all together");
    assert!(memory.contains(&"plan 640 MiB".to_string()), "the plan of a cell that did not run is shown");
}

#[test]
fn effects_are_taken_from_pairs_that_differ_in_nothing_else() {
    let said = text(&comparison(&grid::records(), None));
    // ddp 101 -> 131 ms and 400 -> 300 MiB; zero3 121 -> 151 ms and 200 -> 100 MiB.
    assert!(
        said.contains(
            "memory.checkpointing = full instead of none: peak memory -50 % to -25 %, tokens/s -23 % to -20 % \
             (2 pairs of cells, all else equal)."
        ),
        "{said}"
    );
    assert!(
        said.contains(
            "zero3: 13,563 to 22,261 tokens/s (0.83 to 0.99 × ddp); peak memory 100 MiB to 200 MiB (0.33 to 0.50 × ddp); "
        ),
        "{said}"
    );
}

#[test]
fn validity_flags_keep_a_trial_or_a_cell_out() {
    let mut records = grid::records();
    let is_ddp4 = |record: &Record| record.key.starts_with("ddpnone4");
    records
        .iter_mut()
        .filter(|record| is_ddp4(record) && record.trial == 2)
        .for_each(|record| record.validity.push("throttled".into()));
    let document = comparison(&records, None);
    let place =
        column(&document, "cells", "cell").iter().position(|label| label.starts_with("ddp, accumulation=4")).unwrap();
    assert_eq!(column(&document, "cells", "trials")[place], "2 of 3");
    assert_eq!(column(&document, "flagged trials", "flags"), ["throttled"]);
    assert_eq!(column(&document, "flagged trials", "trials"), ["2"]);
    assert_eq!(column(&document, "flagged trials", "so"), ["set aside"]);
    let said = text(&document);
    assert!(said.contains("rest on 20 of 21 measured trials; 1 was set aside: the processor was slowed for heat (throttled) in 1 trial."), "{said}");

    records.iter_mut().filter(|record| is_ddp4(record)).for_each(|record| record.validity = vec!["throttled".into()]);
    let document = comparison(&records, None);
    let place =
        column(&document, "cells", "cell").iter().position(|label| label.starts_with("ddp, accumulation=4")).unwrap();
    assert_eq!(column(&document, "cells", "place")[place], "-");
    assert_eq!(column(&document, "cells", "not ranked for")[place], "throttled");
    let said = text(&document);
    assert!(said.contains("1 of 7 measured cells has no valid trial and cannot be ranked: the processor was slowed for heat (throttled)."), "{said}");
    assert_eq!(column(&document, "flagged trials", "so"), ["cell not ranked"]);
}

#[test]
fn stand_ins_and_emulated_links_are_marked_everywhere() {
    let mut records = grid::records();
    for record in &mut records {
        record.cell["proxy"] = true.into();
        record.validity.push(label_flags::PROXY.into());
        record.cell["link"] = serde_json::json!({"node": {"bandwidth": 12.5e9, "latency": 20e-6}});
        record.cell["parallel"]["ranks_per_node"] = 2.into();
    }
    let document = comparison(&records, None);
    for name in ["cells", "failed parity", "not measured", "memory", "time", "communication", "repeat"] {
        for label in column(&document, name, "cell") {
            assert!(label.ends_with("[proxy, emulated link]"), "{name}: {label}");
        }
    }
    assert_eq!(column(&document, "cells", "place")[0], "1=", "the flag is a label and no reason to leave a cell out");
    let said = text(&document);
    assert!(said.contains("PROXY: all 9 cells are scaled-down stand-ins of the target; speeds"), "{said}");
    assert!(said.contains("EMULATED LINK: 9 of 9 cells ran over"), "{said}");
    assert!(said.contains("12.5 GB/s and 20.0 us each way between nodes of 2 ranks"), "{said}");
    assert!(!said.contains("Ranks are over all cells"), "all cells have one link");
    let key = records[0].key.clone();
    for record in records.iter_mut().filter(|record| record.key == key) {
        record.cell["link"] = serde_json::Value::Null;
    }
    for record in records.iter_mut().filter(|record| record.key == key) {
        record.cell["proxy"] = serde_json::Value::Null;
        record.validity.retain(|flag| flag != label_flags::PROXY);
    }
    let said = text(&comparison(&records, None));
    assert!(said.contains("Ranks are over all cells"), "{said}");
    assert!(
        said.contains("8 of 9 cells are scaled-down stand-ins of the target, marked \\[proxy\\]; speeds"),
        "{said}"
    );
}

#[test]
fn cells_of_an_emulated_pace_are_ranked_among_themselves() {
    let mut records = grid::records();
    let ranked = |records: &[Record]| {
        let document = comparison(records, None);
        let of = |name: &str| column(&document, "cells", name);
        of("cell").into_iter().zip(of("place")).collect::<Vec<_>>()
    };
    let before = ranked(&records);
    let fastest = before[0].0.clone();
    assert_eq!(
        before.iter().filter(|(_, place)| place.trim_end_matches('=') == "1").count(),
        1 + usize::from(before[1].1 == "1=")
    );
    // The fastest now is so because somebody said how long it takes.
    let strategy = |record: &Record| {
        record.setting("parallel.strategy").and_then(|name| name.as_str()).unwrap_or_default().to_string()
    };
    let key = records
        .iter()
        .find(|record| fastest.starts_with(&strategy(record)) && record.is_measured())
        .unwrap()
        .key
        .clone();
    for record in records.iter_mut().filter(|record| record.key == key) {
        record.cell["pace"] = serde_json::json!({"forward": 0.004, "backward": 0.008});
        record.validity.push(label_flags::EMULATED_PACE.into());
    }
    let after = ranked(&records);
    let at = after.iter().position(|(label, _)| label.ends_with("[emulated pace]")).unwrap();
    assert_eq!(after[at].1, "1", "alone of its pace");
    assert!(at > 0 && after[0].1.starts_with('1'), "{after:?}");
    assert!(after[..at].iter().all(|(_, place)| place != "-"), "before it come all that are ranked: {after:?}");
    let said = text(&comparison(&records, None));
    assert!(said.contains("EMULATED PACE: in 1 of 9 cells"), "{said}");
    assert!(said.contains("forward 4.00 ms and backward 8.00 ms"), "{said}");
    assert!(!said.contains("EMULATED LINK"), "{said}");
}

#[test]
fn every_row_can_be_repeated() {
    let records = grid::records();
    let document = comparison(&records, None);
    let table = table(&document, "repeat").unwrap();
    let place = table.columns.iter().position(|column| column.title == "records").unwrap();
    let listed: Vec<&str> = table.rows.iter().flat_map(|row| row[place].value.as_str().unwrap().split(' ')).collect();
    assert_eq!(listed.len(), records.len());
    assert!(records.iter().all(|record| listed.contains(&record.id.as_str())));
}

#[test]
fn little_or_nothing_is_reported_as_such() {
    assert!(text(&comparison(&[], Some("why?"))).contains("There are no records to compare."));
    let lone = [grid::trial(&grid::specs()[0], 1)];
    let said = text(&comparison(&lone, None));
    assert!(said.contains("No cell is ranked") && said.contains("one valid trial"), "{said}");
    let both = [1, 2].map(|number| grid::trial(&grid::specs()[0], number));
    let said = text(&comparison(&both, None));
    assert!(
        said.contains("One cell is ranked, so there is nothing to compare it with: ddp at 20,279 tokens/s."),
        "{said}"
    );
    let none = [grid::ended("zero1", Status::Skipped, Source::Host, "no GPU")];
    let said = text(&comparison(&none, None));
    assert!(said.contains("No cell is ranked") && said.contains("1 of 1 cell was not measured: 1 skipped"), "{said}");
    assert!(said.contains("Loss parity: nothing was measured."), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the records hold: no panic, and every record is named.
    #[test]
    fn no_record_is_ever_missing(records in proptest::collection::vec(any::record(), 0..6)) {
        let document = comparison(&records, Some("|?"));
        let named: String = document.blocks.iter().filter_map(|block| match block {
            Block::Table(table) if table.name == "repeat" => Some(table),
            _ => None,
        }).flat_map(|table| &table.rows).map(|row| format!("{} ", row[2].value.as_str().unwrap())).collect();
        for record in &records {
            prop_assert!(named.contains(&record.id));
        }
    }
}
