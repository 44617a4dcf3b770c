//! Estimates, the list and a single record.

use proptest::prelude::*;
use zbench_reports::document::Document;
use zbench_reports::estimate_report::{EstimateRow, estimates, screen};
use zbench_reports::notebook_report::{list, show};
use zbench_reports::record::*;
use zbench_reports::render::markdown;
use zbench_reports::{Named, Remark};

use super::{any, grid};

const GIB: u64 = 1 << 30;

fn row(label: &str, total: u64, capacity: u64) -> EstimateRow {
    EstimateRow {
        label: label.into(),
        key: "0123456789abcdef".into(),
        status: if total > capacity { "skipped" } else { "planned" }.into(),
        memory: [("parameters", total / 2), ("optimizer", total / 2)].into_iter().collect::<Named<u64>>(),
        total_bytes: Some(total),
        capacity_bytes: Some(capacity),
        fits: Some(total <= capacity),
        wire_bytes: Some(3e9),
        model_flops: Some(2.5e15),
        ..EstimateRow::default()
    }
}

fn text(document: &Document) -> String {
    markdown::render(document)
}

#[test]
fn the_screen_of_estimates_keeps_to_its_lines_and_counts_what_it_leaves_out() {
    let next = vec!["PLAN    what to do next ".repeat(12)];
    for strategies in [1, 2, 6, 9, 40] {
        for cells in [strategies, 200] {
            let label = |at: usize| format!("strategy=s{} accumulation={at}", at % strategies);
            let mut rows: Vec<EstimateRow> = (0..cells).map(|at| row(&label(at), 150 * GIB, 80 * GIB)).collect();
            rows.extend((0..30).map(|at| row(&format!("strategy=fits{at}"), 70 * GIB, 80 * GIB)));
            for lines in [25, 40] {
                let said = super::screen::short(screen(&rows, lines, &next));
                assert!(said.lines().count() <= lines, "{lines}:\n{said}");
                assert!(said.contains("fits0") && said.contains("PLAN"), "{said}");
                let named = (0..strategies).filter(|at| said.contains(&format!("DOES NOT FIT s{at}:"))).count();
                let left = strategies - named;
                let counted = said.contains(&format!("DOES NOT FIT: cells of {left} other strateg"));
                assert!(named > 0 && (left == 0) != counted, "{left} left out:\n{said}");
            }
        }
    }
}

#[test]
fn cells_of_one_strategy_that_do_not_fit_are_one_group() {
    let rows: Vec<EstimateRow> =
        (1..=9).map(|at| row(&format!("accumulation={at}"), (80 + at) * GIB, 80 * GIB)).collect();
    let said = super::screen::short(screen(&rows, 25, &[]));
    assert!(said.contains("DOES NOT FIT: all 9 cells need 81.0 GiB to 89.0 GiB of 80.0 GiB"), "{said}");
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
