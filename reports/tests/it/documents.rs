//! Estimates, the list and a single record.

use proptest::prelude::*;
use zbench_reports::document::Document;
use zbench_reports::estimate_report::{self, Candidate, EstimateRow, Searched, searched, what_if};
use zbench_reports::notebook_report::{List, show};
use zbench_reports::record::*;
use zbench_reports::render::{html, markdown};
use zbench_reports::screen::Room;
use zbench_reports::{Index, IndexEntry, OrderedMap, Remark};

use super::{any, grid};

const GIB: u64 = 1 << 30;

fn row(label: &str, total: u64, capacity: u64) -> EstimateRow {
    EstimateRow {
        label: label.into(),
        key: "0123456789abcdef".into(),
        status: if total > capacity { "skipped" } else { "planned" }.into(),
        memory: [("parameters", total / 2), ("optimizer", total / 2)].into_iter().collect::<OrderedMap<u64>>(),
        total_bytes: Some(total),
        capacity_bytes: Some(capacity),
        fits: Some(total <= capacity),
        wire_bytes: Some(3e9),
        model_flops: Some(2.5e15),
        ..EstimateRow::default()
    }
}

fn estimates(rows: &[EstimateRow]) -> Document {
    estimate_report::estimates(rows, Room::SCREEN, &[])
}

fn text(document: &Document) -> String {
    markdown::render(document)
}

#[test]
fn the_screen_of_estimates_keeps_to_its_lines_and_counts_what_it_leaves_out() {
    let next = [("PLAN", "what to do next ".repeat(12))];
    for strategies in [1, 2, 6, 9, 40] {
        for cells in [strategies, 200] {
            let label = |at: usize| format!("s{}, accumulation={at}", at % strategies);
            let mut rows: Vec<EstimateRow> = (0..cells).map(|at| row(&label(at), 150 * GIB, 80 * GIB)).collect();
            rows.extend((0..30).map(|at| row(&format!("fits{at}"), 70 * GIB, 80 * GIB)));
            for (lines, width) in [(25, 120), (40, 120), (40, 80), (25, 80)] {
                let document = estimate_report::estimates(&rows, Room { lines, width }, &next);
                let said = super::screen::short_at(document, width);
                assert!(said.lines().count() <= lines, "{lines}:\n{said}");
                assert!(said.contains("fits0") && said.contains("PLAN"), "{said}");
                let named = (0..strategies).filter(|at| said.contains(&format!(" s{at} cell"))).count();
                let left = strategies - named;
                let counted = said.contains(&format!("DOES NOT FIT cells of {left} other strateg"));
                assert!(named > 0 && (left == 0) != counted, "{left} left out:\n{said}");
            }
        }
    }
}

#[test]
fn cells_of_one_strategy_that_do_not_fit_are_one_group() {
    let rows: Vec<EstimateRow> =
        (1..=9).map(|at| row(&format!("accumulation={at}"), (80 + at) * GIB, 80 * GIB)).collect();
    let said = super::screen::short(estimates(&rows));
    assert!(said.contains("DOES NOT FIT all 9 cells need 81.0 GiB to 89.0 GiB of 80.0 GiB"), "{said}");
    assert_eq!(said.matches("DOES NOT FIT").count(), 1, "{said}");
}

#[test]
fn estimates_say_what_fits_and_what_would() {
    let mut rows = vec![row("fsdp", 70 * GIB, 80 * GIB), row("hsdp", 150 * GIB, 80 * GIB)];
    rows[1].reason = "optimizer alone takes 90 GiB.".into();
    rows[1].advice = "parallel.strategy = \"fsdp\" (70 GiB)".into();
    rows.push(EstimateRow { label: "unknown".into(), proxy: true, ..EstimateRow::default() });
    let said = text(&estimates(&rows));
    assert!(
        said.contains("Of 3 cells, 1 fits, 1 does not fit and 1 cannot be judged because no memory is predicted"),
        "{said}"
    );
    let unlimited = [1, 2].map(|gib| EstimateRow { capacity_bytes: None, fits: None, ..row("ddp", gib * GIB, 0) });
    let said_of_them = text(&estimates(&unlimited));
    let why = "Of 2 cells, 2 cannot be judged because no memory capacity is stated. Nothing was run.";
    assert!(said_of_them.contains(why), "{said_of_them}");
    assert!(said.contains("Nothing was run. PROXY: 1 scaled-down stand-in is marked"), "{said}");
    assert!(said.contains("no, 70.0 GiB too much") && said.contains("yes, 10.0 GiB to spare"), "{said}");
    assert!(said.contains("takes 90 GiB. Cheapest change: parallel.strategy"), "{said}");
    assert!(said.contains("| unknown \\[proxy\\] |"), "{said}");
    assert!(said.contains("| fsdp | 35.0 GiB | 35.0 GiB | 70.0 GiB |"), "{said}");
    assert!(text(&estimates(&[])).contains("no cells"));
}

/// Rows with a time: 10 s of a million tokens, `slower` times as long.
fn timed(label: &str, total: u64, slower: f64) -> EstimateRow {
    EstimateRow {
        step_ms: Some(1e4 * slower),
        tokens_per_second: Some(1e5 / slower),
        mfu: Some(0.5 / slower),
        time_source: "simulated".into(),
        ..row(label, total * GIB, 80 * GIB)
    }
}

/// What is the same in all labels is left out, and what tells two cells apart never is, at any width.
#[test]
fn the_one_table_of_estimates_names_every_cell_apart() {
    let label = |at: usize| {
        let every = ["zero1", "zero2", "zero3", "fsdp", "hsdp"][at % 5];
        format!("{every}, preset=bf16-mixed, checkpointing=selective, micro_batch={}, offload_optimizer=none", at / 5)
    };
    let rows: Vec<EstimateRow> = (0..200).map(|at| timed(&label(at), 40, 1.0 + at as f64 / 100.0)).collect();
    for width in [80, 120] {
        let document = estimate_report::estimates(&rows, Room::wide(width), &[("NEXT", "zbench grid x.toml".into())]);
        let said = super::screen::short_at(document, width);
        assert!(said.contains(" zero1, micro_batch=0 ") && !said.contains("bf16-mixed"), "{said}");
        assert!(
            said.contains(" more of 200 that fit or may") && said.contains("NEXT     zbench grid x.toml"),
            "{said}"
        );
        let change = ["network.rate=800Gb/s".to_string()];
        let said = super::screen::short_at(what_if(&rows, &rows, &change, Room::wide(width)), width);
        assert!(said.starts_with("WHAT IF  The machine with network.rate=800Gb/s."), "{said}");
    }
}

/// Cells without a limit and without a speed have no columns of either, and one line says why.
#[test]
fn estimates_without_a_speed_say_why_once() {
    let of = |at: u64| EstimateRow {
        capacity_bytes: None,
        fits: None,
        time_source: "this machine has no profile; run `zbench calibrate`".into(),
        ..row(&format!("ddp, accumulation={at}"), at * GIB, 0)
    };
    let said = super::screen::short(estimates(&[3, 1, 2].map(of)));
    assert_eq!(said.matches("zbench calibrate").count(), 1, "{said}");
    let lines: Vec<&str> = said.lines().skip_while(|line| !line.starts_with(" cell")).collect();
    assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["cell", "peak", "wire/step"], "{said}");
    assert!(lines[1].contains("accumulation=1  1.00 GiB") && !said.contains("no limit known"), "{said}");
}

/// The page of estimates answers first, then has two plots and one table; the rest is folded away.
#[test]
fn the_page_of_estimates_answers_first() {
    let mut rows = vec![timed("a", 60, 1.1), timed("b", 150, 0.8), timed("c", 70, 1.0), timed("d", 20, 1.25)];
    // Alike in memory and in speed.
    rows.push(timed("e", 20, 1.25));
    rows[0].advice = "half of it".into();
    let document = estimates(&rows);
    let names: Vec<&str> = document.figures().map(|figure| figure.name.as_str()).collect();
    assert_eq!(names[..2], ["plan-memory", "plan-speed"]);
    let page = html::render(&document);
    let places: Vec<usize> =
        ["<dt>ANSWER", "figure-plan-memory", "figure-plan-speed", "aria-label=\"screen\"", "<details"]
            .iter()
            .map(|part| page.find(part).unwrap_or_else(|| panic!("{part}")))
            .collect();
    assert!(places.is_sorted(), "{places:?}");
    assert!(
        page.contains("d and 1 like it") && page.contains(">capacity<"),
        "equal cells are one, and the limit is drawn"
    );
    assert!(page.matches("<details").count() >= 2 && page.contains("Reasons and advice"));
}

/// One table, a short line to go on with, and nothing of three hundred letters.
#[test]
fn a_search_answers_in_one_table() {
    let candidate = |tensor: u64, micro: u64, speed: f64, gib: u64| Candidate {
        settings: [
            ("hardware.software", "megatron-core".to_string()),
            ("parallel.strategy", if micro > 2 { "zero1" } else { "fsdp" }.to_string()),
            ("parallel.tensor", tensor.to_string()),
            ("parallel.pipeline", "1".to_string()),
            ("train.micro_batch", micro.to_string()),
            ("memory.checkpointing", if micro > 1 { "full" } else { "none" }.to_string()),
        ]
        .into_iter()
        .collect(),
        step_ms: 1e6 / speed,
        tokens_per_second: speed,
        mfu: speed / 1e5,
        memory_bytes: gib * GIB,
        tokens_per_second_band: Some([0.8 * speed, 1.2 * speed]),
        ..Candidate::default()
    };
    let best: Vec<Candidate> =
        (0..10).map(|at| candidate(1 << (at % 3), 1 + at, 5e4 - 1e3 * at as f64, 70 - at)).collect();
    let found = Searched {
        capacity_bytes: 80 * GIB,
        limit_bytes: 76 * GIB,
        headroom: 0.05,
        ranks: 64,
        priced: 3_000,
        fitting: 900,
        impossible: [("pipeline does not divide the blocks".to_string(), 7)].into_iter().collect(),
        pareto: vec![best[0].clone(), candidate(8, 1, 1e4, 20)],
        best,
        runner_up: "The runner-up is slower.".into(),
        ..Searched::default()
    };
    let next = [("NEXT", "zbench plan x.toml --set parallel.tensor=2".to_string())];
    for width in [80, 120] {
        let document = searched(&found, Room::wide(width), &next);
        let said = super::screen::short_at(document, width);
        assert!(said.starts_with("ANSWER   The fastest: fsdp"), "{said}");
        assert_eq!(said.lines().filter(|line| line.starts_with(" cell")).count(), 1, "{said}");
        assert!(said.contains("889 more fit") && said.contains("7: pipeline does not divide"), "{said}");
        assert!(said.contains("zbench plan x.toml --set") && !said.contains("--set hardware.software"), "{said}");
    }
    let all = text(&searched(&found, Room::SCREEN, &next));
    assert!(all.contains("--set hardware.software=megatron-core --set parallel.strategy=fsdp"), "{all}");
}

#[test]
fn estimates_answer_which_is_the_fastest_that_fits() {
    let rows = [timed("a", 60, 1.1), timed("b", 150, 0.8), timed("c", 70, 1.0), timed("d", 20, 1.25)];
    let said = text(&estimates(&rows));
    let wanted = "Predicted to be the fastest that fits: c, 10.0 s a step, 100,000 tokens/s, MFU 50.0 %, 70.0 GiB a rank. Behind it: a \
                  (9.1 % slower, 60.0 GiB a rank) and d (20.0 % slower, 20.0 GiB a rank). With more memory b would be 25.0 % faster, 150 GiB a rank.";
    assert!(said.contains(wanted), "{said}");
    assert!(said.contains("Every time is simulated.") && !said.contains("| by |"), "{said}");
    // One cell is no choice; where nothing fits nothing is the fastest.
    assert!(!text(&estimates(&rows[..1])).contains("fastest that fits"));
    assert!(!text(&estimates(&[timed("b", 150, 0.8), timed("e", 151, 1.0)])).contains("fastest that fits"));
}

#[test]
fn a_terminal_has_no_pages_of_details_and_files_have_all_of_them() {
    use zbench_reports::render::terminal;
    let rows: Vec<EstimateRow> = (0..50).map(|i| timed(&format!("cell{i}"), 60 + i, 1.0 + i as f64 / 100.0)).collect();
    let document = estimates(&rows);
    let shown = terminal::render(&document, terminal::Terminal { width: 160, color: false });
    assert!(shown.contains("50 rows: --format markdown, csv or html has them"), "{shown}");
    assert!(shown.contains("cell49"), "the cells themselves are there");
    let all = text(&document);
    let memory = all.split("Predicted memory by category").nth(1).unwrap();
    assert!((0..50).all(|i| memory.contains(&format!("| cell{i} |"))), "{memory}");
}

#[test]
fn estimates_are_read_back_from_json() {
    let row = row("fsdp", 70 * GIB, 80 * GIB);
    assert_eq!(serde_json::from_str::<EstimateRow>(&serde_json::to_string(&row).unwrap()).unwrap(), row);
}

fn list(records: &[Record]) -> Document {
    let entries: Vec<IndexEntry> = records.iter().map(IndexEntry::of).collect();
    List::new(&entries.iter().collect::<Vec<_>>(), &Index::default(), None).document()
}

#[test]
fn the_list_has_a_row_for_each_record() {
    let records = grid::records();
    let document = list(&records);
    let rows = &document.tables().next().unwrap().rows;
    assert_eq!(rows.len(), records.len());
    assert_eq!(rows[0][0].value, records[0].id.as_str());
    assert!(text(&document).contains("23 records."));
    assert!(text(&list(&[])).contains("The notebook is empty"));
}

#[test]
fn a_record_is_shown_with_its_remarks_and_reasons() {
    let mut record = grid::trial(&grid::specs()[3], 2);
    let remarks =
        [Remark::new(&record.id, "the fan was off", "2026-01-02T00:00:00Z"), Remark::new("other", "not this", "")];
    for step in 6..60 {
        let last = record.steps[5].clone();
        record.steps.push(Step { step, ..last });
    }
    let said = text(&show(&record, &remarks));
    assert!(said.contains("- 2026-01-02T00:00:00Z: the fan was off") && !said.contains("not this"), "{said}");
    assert!(said.contains("| hfu | - | the recompute policy is not known |"), "{said}");
    assert!(said.contains("| parameters | 100 MiB | 100 MiB | 100 MiB |"), "{said}");
    assert!(said.contains("59 timed steps: median 126 ms"), "{said}");
    assert!(said.contains("The first and last 20 of 60"), "{said}");
    assert!(said.contains("zbench repro zero3n12-id-of-the-trial"), "{said}");
    assert!(said.contains("\"checkpointing\": \"none\""), "{said}");
}

#[test]
fn a_record_that_ended_early_says_why() {
    let record = grid::ended("zero1", Status::OutOfMemory, Source::Plan, "needs 640 MiB of 512 MiB");
    let said = text(&show(&record, &[]));
    assert!(said.contains("out of memory: needs 640 MiB of 512 MiB"), "{said}");
    assert!(said.contains("| outcome | out_of_memory (found by plan) |"), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_record_is_shown(record in any::record(), remark in any::text()) {
        let remarks = [Remark::new(&record.id, remark, "now")];
        text(&show(&record, &remarks));
        let document = list(std::slice::from_ref(&record));
        prop_assert_eq!(document.tables().next().unwrap().rows.len(), 1);
    }
}
