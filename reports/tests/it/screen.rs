//! What `grid`, `report`, `run` and `compare` print unless asked for more: at most 40 lines of 120 columns, the answer first.

use proptest::prelude::*;
use zbench_reports::Record;
use zbench_reports::compare::{self, Options, Side, compare};
use zbench_reports::document::Document;
use zbench_reports::grid_report::{comparison, comparison_in};
use zbench_reports::notebook_report::run;
use zbench_reports::record::others::OtherProgram;
use zbench_reports::record::*;
use zbench_reports::render::terminal;
use zbench_reports::screen::{MOST_LINES, Part, Room};
use zbench_reports::units;
use zbench_test_tiers as tiers;

use crate::part::part;

use super::comparison::expect;
use super::turns::{How, cell, ended, records, trials};
use super::{any, grid};

const FEW: How = How { cells: 2, generations: 3, rounds: 20, noise: 0.03 };
const USUAL: How = How { cells: 31, generations: 3, rounds: 8, noise: 0.05 };
const MANY: How = How { cells: 200, generations: 2, rounds: 3, noise: 0.05 };

pub fn short(document: Document) -> String {
    terminal::render(&document.short(), terminal::Terminal { width: 120, color: false })
}

/// The short form on a terminal of so many columns, which is checked for what holds of every screen: its lines and columns, and that
/// no two rows of a table have one name, nor lose a letter of it.
pub fn short_at(document: Document, width: u16) -> String {
    let document = document.short();
    let text = terminal::render(&document, terminal::Terminal { width, color: false });
    assert!(text.lines().count() <= MOST_LINES, "{} lines:\n{text}", text.lines().count());
    assert!(text.lines().all(|line| line.chars().count() <= usize::from(width)), "{text}");
    let tables = document.screen.iter().flat_map(|screen| &screen.parts).filter_map(|part| match part {
        Part::Table(table) => Some(table),
        Part::Said { .. } => None,
    });
    for table in tables {
        let Some(at) = table.columns.iter().position(|column| column.title == "cell") else { continue };
        let mut names: Vec<&str> = table.rows.iter().map(|row| row[at].text.as_str()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{text}");
        // They may be wrapped, and lose nothing by it.
        let is_whole = |name: &&str| name.split_whitespace().all(|word| text.contains(word));
        assert!(names.iter().all(is_whole), "{text}");
    }
    text
}

fn run_document(record: &Record) -> Document {
    run(record, Room::SCREEN)
}

/// The screen of these records, which is checked on a narrow terminal, too.
fn screen(records: &[Record]) -> String {
    let of = |width| short_at(comparison_in(records, Some("Which is fastest?"), Room::wide(width)), width);
    let [_, usual] = [of(80), of(120)].map(|text| {
        assert!(text.starts_with("ANSWER") && !text.contains("tied"), "{text}");
        text
    });
    usual
}

/// Every outcome that a cell can have, of some of these cells.
fn with_outcomes(mut records: Vec<Record>, from: usize) -> Vec<Record> {
    let gone = from..from + 40;
    let number = |record: &Record| record.key[..3].parse::<usize>().unwrap();
    records.retain(|record| !gone.contains(&number(record)));
    for cell in gone {
        let (status, source, reason) = match cell % 5 {
            0 => (Status::OutOfMemory, Some(Source::Plan), format!("ddp needs {cell} GiB of 16 GiB")),
            1 => (Status::Skipped, Some(Source::Host), "needs 8 GPUs, this machine has none".to_string()),
            2 => (Status::Failed, None, format!("rank {cell} stalled {}", "in a long story ".repeat(30))),
            3 => (Status::TimedOut, Some(Source::Host), format!("took longer than the time limit of {cell} s")),
            _ => (Status::Diverged, None, "the loss of step 3 is not finite".to_string()),
        };
        records.push(ended(cell, status, source, &reason));
    }
    for record in records.iter_mut().filter(|record| record.is_measured()) {
        match record.key[..3].parse::<usize>().unwrap() {
            5 => (record.parity.verdict, record.parity.max_loss_difference) = (Verdict::Failed, Some(0.25)),
            6 => record.validity.push("throttled".into()),
            _ => {}
        }
    }
    records
}

#[test]
fn why_it_ended_is_said_of_the_newest_generation_of_each_batch() {
    let stopped = |first: &str, second: &str, last: &str, batch: u32| {
        let mut all = records(FEW);
        for turns in all.iter_mut().filter_map(|record| record.turns.as_mut()) {
            let word = [first, second, last][turns.generation as usize - 1];
            turns.stopped = Some(word.into());
            turns.batch = if turns.generation == 3 { batch } else { 0 };
        }
        part(&screen(&all), "SPENT")
    };
    let text = stopped("interrupted", "budget", "decided", 0);
    assert!(text.ends_with(". It ended when all was decided."), "{text}");
    assert!(!text.contains("budget") && !text.contains("interrupted"), "{text}");
    let text = stopped("budget", "budget", "interrupted", 0);
    assert!(text.ends_with(". It was interrupted; the same command goes on."), "{text}");
    assert!(!text.contains("batches"), "{text}");
    // Two batches, each with its newest: sentences of their own.
    let text = stopped("budget", "decided", "budget", 1);
    assert!(text.ends_with(". It ended when all was decided. The budget ended it."), "{text}");
    assert!(text.contains("2 batches that share the reference"), "{text}");
}

#[test]
fn a_round_that_the_user_stopped_is_not_blamed_on_others() {
    let mut all = records(FEW);
    for turns in all.iter_mut().filter_map(|record| record.turns.as_mut()) {
        turns.stopped = Some("interrupted".into());
        // The last round has the turn of one cell.
        let cut = turns.rows.last_mut().filter(|row| row.round == 60);
        cut.into_iter().for_each(|row| row.counted = false);
    }
    // Without this, rounds 7, 14 and so on are discarded: 8 of 60.
    let text = part(&screen(&all), "SPENT");
    assert!(text.contains("51 rounds, 8 more left out, since others used the cores, 1 unfinished"), "{text}");
}

#[test]
fn grids_of_any_size_fit_by_trials_and_by_turns() {
    for how in tiers::some("screen (sizes of grids)", [FEW, USUAL, MANY], [2, 2]) {
        screen(&records(how));
        screen(&trials(how.cells));
        let last = how.cells;
        for measured in [records(how), trials(how.cells)] {
            let text = screen(&with_outcomes(measured, last));
            for label in ["OUT OF MEMORY", "FAILED", "SKIPPED"] {
                assert!(text.contains(label), "{label} in\n{text}");
            }
        }
        let none: Vec<Record> =
            (0..how.cells).map(|at| ended(at, Status::Skipped, Some(Source::Host), "needs 8 GPUs")).collect();
        let text = screen(&none);
        assert!(part(&text, "ANSWER").contains("Nothing was measured"), "{text}");
        assert!(text.lines().count() <= 25, "{text}");
    }
}

#[test]
fn the_screen_of_turns_is_as_expected() {
    expect("screen-turns.txt", &screen(&with_outcomes(records(USUAL), 25)));
    expect("screen-trials.txt", &screen(&grid::records()));
}

#[test]
fn the_answer_is_whole_where_other_words_can_be_cut() {
    let all = [(USUAL, None), (USUAL, Some(25)), (MANY, Some(160))];
    for (how, last) in tiers::some("screen (answers of grids)", all, [2, 3]) {
        let measured = records(how);
        let measured = if let Some(last) = last { with_outcomes(measured, last) } else { measured };
        let text = screen(&measured);
        let answer = part(&text, "ANSWER");
        assert!(answer.contains("pairs decided") && answer.ends_with("to be false."), "{text}");
    }
}

#[test]
fn the_fastest_by_turns_is_named_with_its_lead_and_the_limits_hold_the_truth() {
    let text = screen(&records(FEW));
    let answer = part(&text, "ANSWER");
    // zero1 takes 8 % longer than ddp.
    assert!(answer.contains("ddp is the fastest: ") && answer.contains("faster than the next, zero1"), "{answer}");
    assert!(text.contains("reference") && text.contains(" 0.9"), "{text}");
    assert!(
        part(&text, "SPENT").contains("52 rounds, 8 more left out, since others used the cores, 3 generations"),
        "{text}"
    );
    assert!(part(&text, "SPENT").contains("seed 7"), "{text}");
}

#[test]
fn too_few_turns_decide_nothing_and_are_not_called_equal() {
    let text = screen(&records(How { rounds: 2, generations: 1, ..FEW }));
    let answer = part(&text, "ANSWER");
    assert!(answer.contains("Undecided which is the fastest: 2 of 2 may be"), "{answer}");
    assert!(!text.contains("equal within"), "{text}");
    assert!(part(&text, "OPEN").contains("1 pair"), "{text}");
}

#[test]
fn a_run_that_ended_as_all_was_decided_is_not_told_to_take_a_larger_budget() {
    let open = |stopped: &str| {
        let mut records = with_outcomes(records(USUAL), 25);
        records.iter_mut().filter_map(|record| record.turns.as_mut()).for_each(|turns| {
            turns.stopped = Some(stopped.into());
        });
        part(&screen(&records), "OPEN")
    };
    let text = open("decided");
    assert!(text.contains("pairs") && !text.contains("should decide"), "{text}");
    assert!(text.ends_with("A larger --budget measures nothing: use a smaller --decide, or --fresh."), "{text}");
    let text = open("budget");
    assert!(text.contains("the same command with --budget"), "{text}");
}

#[test]
fn cells_of_one_speed_are_called_equal_where_the_turns_show_it() {
    let mut records = records(How { rounds: 60, noise: 0.02, ..FEW });
    for row in records
        .iter_mut()
        .filter(|record| record.key.starts_with("001"))
        .flat_map(|record| &mut record.turns.as_mut().unwrap().rows)
    {
        row.ms[0] /= super::turns::true_ms(1) / super::turns::true_ms(0);
    }
    let answer = part(&screen(&records), "ANSWER");
    assert!(answer.contains("2 cells are the fastest and equal within 5 %: "), "{answer}");
}

#[test]
fn trials_beside_turns_and_the_twin_have_no_rank() {
    let mut all = records(FEW);
    all.extend((1..=3).map(|trial| cell(9, trial)));
    let text = screen(&all);
    assert!(part(&text, "NOT RANKED").contains("measured by trials, and not by turns"), "{text}");
    assert!(part(&text, "MACHINE").contains("The reference against its twin: "), "{text}");
    assert!(!text.contains("twin1"), "{text}");
    let document = comparison(&all, None);
    let listed = super::comparison::column(&document, "repeat", "records").join(" ");
    assert!(listed.contains("twin1"), "every record can be repeated: {listed}");
}

#[test]
fn where_nothing_counts_the_answer_names_who_used_the_cores() {
    let mut all = records(FEW);
    for turns in all.iter_mut().filter_map(|record| record.turns.as_mut()) {
        turns.rows.iter_mut().for_each(|row| (row.others, row.counted) = (0.9, false));
        let busy = [("python3", 7, 1.5), ("cc1", 30, 0.25)];
        turns.busy = busy
            .map(|(name, process, cores)| OtherProgram { name: name.into(), process, processes: 1, cores })
            .to_vec();
    }
    let text = screen(&all);
    let answer = part(&text, "ANSWER");
    let who = "python3 (process 7, 150.0 % of a core) and cc1 (process 30, 25.0 % of a core)";
    assert!(answer.contains(" Nothing was measured: other processes used 90.0 % of the cores"), "{answer}");
    assert!(answer.contains(who) && answer.contains("--allow-load"), "{answer}");
    // What does not count has no speed: the column has nothing but dashes.
    let document = comparison(&all, None);
    let speeds = super::comparison::column(&document, "cells", "tokens/s");
    assert!(speeds.iter().all(|speed| speed == units::NOTHING), "{speeds:?}");
    // Where some rounds count, the discarded ones are named beside them.
    let rows = &mut all[0].turns.as_mut().unwrap().rows;
    rows.iter_mut().for_each(|row| row.counted = true);
    let text = screen(&all);
    assert!(!text.contains("Nothing was measured") && part(&text, "SPENT").contains("python3 (process 7"), "{text}");
}

#[test]
fn effects_need_a_reference_that_is_bounded_against_its_twin() {
    let how = How { cells: 14, generations: 2, rounds: 1, noise: 0.3 };
    let effects = part(&screen(&records(how)), "EFFECTS");
    assert!(effects.contains(" none is stated: the rounds do not bound"), "{effects}");
    let effects = part(&screen(&records(How { rounds: 20, noise: 0.03, ..how })), "EFFECTS");
    assert!(effects.contains("checkpointing none to full -"), "{effects}");
}

#[test]
fn an_interrupted_experiment_says_so() {
    let mut records = records(USUAL);
    records.retain(|record| record.trial == 1);
    records.iter_mut().for_each(|record| record.turns.as_mut().unwrap().stopped = Some("interrupted".into()));
    let text = screen(&records);
    assert!(part(&text, "SPENT").contains("It was interrupted"), "{text}");
}

#[test]
fn turns_of_a_flagged_record_do_not_count() {
    let mut records = records(FEW);
    records
        .iter_mut()
        .filter(|record| record.key.starts_with("001"))
        .for_each(|record| record.validity.push("swapped".into()));
    let text = screen(&records);
    assert!(part(&text, "ANSWER").contains("One cell took turns"), "{text}");
    assert!(part(&text, "FLAGGED").contains("the machine was swapping (swapped) in 3"), "{text}");
}

#[test]
fn the_whole_document_has_every_cell_of_turns_with_its_limits() {
    let document = comparison(&records(USUAL), None);
    let ranks = super::comparison::column(&document, "cells", "place");
    assert_eq!(ranks.len(), 31);
    let limits = super::comparison::column(&document, "cells", "98 % interval of it");
    assert!(limits.iter().filter(|text| text.contains('–')).count() >= 29, "{limits:?}");
    assert!(document.figures().next().is_some_and(|figure| figure.name == "answer"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the records hold: no panic, and it fits.
    #[test]
    fn any_records_fit(records in proptest::collection::vec(any::record(), 0..8)) {
        let text = short(comparison(&records, None));
        prop_assert!(text.lines().count() <= MOST_LINES, "{}", text);
    }
}

#[test]
fn a_run_fits_whatever_became_of_it() {
    let mut run = cell(3, 1);
    run.notes = (0..40).map(|number| format!("A remark of some length, number {number}.")).collect();
    for axis in 0..30 {
        run.communication.push(Communication { axis: format!("axis-{axis}"), ..run.communication[0].clone() });
    }
    let text = short(run_document(&run));
    assert!(
        text.starts_with("ANSWER   synthetic: ") && text.contains("tokens/s") && text.contains("zbench show 0031"),
        "{text}"
    );
    expect("screen-run.txt", &short(run_document(&cell(3, 1))));
    let ended = short(run_document(&ended(3, Status::Failed, None, "rank 1 stalled")));
    assert!(ended.starts_with("ANSWER   synthetic failed: rank 1 stalled"), "{ended}");
    for text in [text, ended] {
        assert!(text.lines().count() <= MOST_LINES && text.lines().all(|line| line.chars().count() <= 120), "{text}");
    }
}

#[test]
fn two_selections_fit_by_trials_and_by_turns() {
    let of = |records: &[Record], strategy: &str| -> Vec<Record> {
        records.iter().filter(|record| record.cell["parallel"]["strategy"] == strategy).cloned().collect()
    };
    for cells in [FEW.cells, USUAL.cells, MANY.cells] {
        for records in [records(How { cells, ..USUAL }), trials(cells)] {
            let (a, b) = (of(&records, "ddp"), of(&records, "zero1"));
            let side = |records: &'static str, of: &[Record]| (records, of.to_vec());
            let (a, b) = (side("parallel.strategy=ddp", &a), side("parallel.strategy=zero1", &b));
            let sides = [&a, &b].map(|(name, of)| Side { selector: name.to_string(), records: of.iter().collect() });
            let comparison = compare(&sides[0], &sides[1], Options::default());
            short_at(compare::short(&comparison, Room::wide(80)), 80);
            let text = short(compare::short(&comparison, Room::SCREEN));
            assert!(
                text.lines().count() <= MOST_LINES && text.lines().all(|line| line.chars().count() <= 120),
                "{text}"
            );
            assert!(text.starts_with("ANSWER"), "{text}");
        }
    }
}

#[test]
fn cells_that_took_turns_are_compared_by_them() {
    let records = records(FEW);
    let of = |key: &str| -> Vec<&Record> { records.iter().filter(|record| record.key.starts_with(key)).collect() };
    let side = |selector: &str, records| Side { selector: selector.into(), records };
    let comparison = compare(&side("ddp", of("000")), &side("zero1", of("001")), Options::default());
    let speed = comparison.pairs[0].metric("tokens_per_second").unwrap();
    assert_eq!((speed.interval, speed.verdict), (Some("turns"), compare::Verdict::BWorse));
    assert!(speed.low.unwrap() < 1.0 / 1.08 && speed.high.unwrap() > 1.0 / 1.08, "{speed:?}");
    assert!(speed.words.contains(" slower (") && speed.words.ends_with(" rounds"), "{}", speed.words);
    assert_eq!(comparison.a.used, 3, "the twin is left out");
}
