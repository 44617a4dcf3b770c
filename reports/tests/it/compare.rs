//! Two sides by hand: numbers a reader can check, the whole text, and rules one by one.

use proptest::prelude::*;
use serde_json::json;
use zbench_reports::Record;
use zbench_reports::compare::document::{PAIRS_IN_FULL, document};
use zbench_reports::compare::{Comparison, Metric, Options, PairedBy, Side, Verdict, compare, short};
use zbench_reports::record::*;
use zbench_reports::render::{markdown, terminal};
use zbench_reports::screen::Room;

use super::comparison::{column, expect};
use super::{any, grid};

fn side<'a>(selector: &str, records: &'a [Record]) -> Side<'a> {
    Side { selector: selector.into(), records: records.iter().collect() }
}

fn of_strategy(strategy: &str) -> Vec<Record> {
    let is = |record: &Record| record.setting("parallel.strategy") == Some(&json!(strategy));
    grid::records().into_iter().filter(is).collect()
}

/// Trials of one cell whose steps take these times.
fn cell(strategy: &'static str, ms: [f64; 3]) -> Vec<Record> {
    let spec = grid::Spec { strategy, ms, ..grid::specs().swap_remove(0) };
    (1..=3).map(|number| grid::trial(&spec, number)).collect()
}

fn compared(a: Vec<Record>, b: Vec<Record>) -> Comparison {
    compare(&side("before", &a), &side("after", &b), Options::default())
}

fn text(comparison: &Comparison) -> String {
    markdown::render(&document(comparison, PAIRS_IN_FULL))
}

fn metric<'c>(comparison: &'c Comparison, name: &str) -> &'c Metric {
    comparison.pairs[0].metric(name).unwrap()
}

/// The cells ddp and zero3 of the synthetic grid, with one flagged trial, another commit and a warm-up.
fn story() -> Comparison {
    let mut a = of_strategy("ddp");
    a[0].validity.push("busy_machine".into());
    let mut b = story_b();
    for record in &mut b {
        record.environment["os"] = "Linux 2".into();
        record.environment.insert("commit".into(), "fedcba987654".into());
    }
    compare(&side("parallel.strategy=ddp", &a), &side("parallel.strategy=zero3", &b), Options::default())
}

#[test]
fn the_whole_comparison_is_as_expected() {
    let several = document(&story(), PAIRS_IN_FULL);
    expect("compare.md", &markdown::render(&several));
    let shown = terminal::render(&several, terminal::Terminal { width: 120, color: false });
    assert!(shown.lines().all(|line| line.chars().count() <= 120), "{shown}");
    expect("compare-120.txt", &shown);
    let one = compared(cell("ddp", [100.0, 101.0, 102.0]), cell("ddp", [88.0, 89.0, 90.0]));
    expect("compare-one.md", &text(&one));
    let lines: Vec<String> = story().pairs.iter().map(|pair| serde_json::to_string_pretty(pair).unwrap()).collect();
    expect("compare.json", &(lines.join("\n") + "\n"));
}

#[test]
fn a_clear_difference_is_claimed_with_its_interval() {
    let comparison = compared(cell("ddp", [100.0, 101.0, 102.0]), cell("ddp", [50.0, 50.5, 51.0]));
    let speed = metric(&comparison, "tokens_per_second");
    assert_eq!(speed.verdict, Verdict::BBetter);
    assert!((speed.ratio.unwrap() - 2.0).abs() < 1e-12, "{speed:?}");
    assert!(speed.low.unwrap() > 1.9 && speed.high.unwrap() < 2.1, "{speed:?}");
    assert!(speed.words.starts_with("B is faster: 2.00 times A's ("), "{}", speed.words);
    let p50 = metric(&comparison, "step_ms_p50");
    assert!(
        p50.verdict == Verdict::BBetter && p50.words.starts_with("B's median step is 50 % shorter (4"),
        "{}",
        p50.words
    );
    assert_eq!(metric(&comparison, "peak_memory_bytes").verdict, Verdict::Same);
    assert_eq!(metric(&comparison, "mfu").verdict, Verdict::BBetter);
    assert_eq!(comparison.pairs[0].paired_by, PairedBy::Key);
    assert!(comparison.pairs[0].losses.identical);
}

#[test]
fn nothing_is_claimed_that_the_trials_do_not_show() {
    let comparison = compared(cell("ddp", [100.0, 110.0, 120.0]), cell("ddp", [101.0, 108.0, 117.0]));
    let speed = metric(&comparison, "tokens_per_second");
    assert_eq!(speed.verdict, Verdict::NoDifference);
    assert!(speed.words.starts_with("no difference shown: the interval -"), "{}", speed.words);
    assert!(speed.words.contains("% is not excluded"), "{}", speed.words);
    assert!(text(&comparison).contains("so that there is nothing to explain"), "{}", text(&comparison));
    let comparison = compared(cell("ddp", [10.0, 110.0, 1200.0]), cell("ddp", [10.0, 100.0, 1100.0]));
    let words = &metric(&comparison, "tokens_per_second").words;
    assert!(words.contains(" times holds 1; the trials exclude next to nothing"), "{words}");
    // One trial on a side, and twice as fast: still nothing.
    let comparison = compared(cell("ddp", [100.0; 3]), cell("ddp", [50.0; 3]).drain(..1).collect());
    let speed = metric(&comparison, "tokens_per_second");
    assert_eq!((speed.verdict, speed.interval), (Verdict::TooFewTrials, None));
    assert_eq!((speed.ratio, speed.low, speed.high), (None, None, None));
    assert!(speed.words.starts_with("too few trials to say (3 and 1;"), "{}", speed.words);
    assert!(text(&comparison).contains("With one trial on a side nothing says how runs differ"));
    // What is counted needs no second trial.
    assert_eq!(metric(&comparison, "wire_bytes").interval, Some("counted"));
}

#[test]
fn the_speed_of_a_cell_that_fails_parity_is_no_result() {
    let comparison =
        compare(&side("a", &of_strategy("zero3")[2..]), &side("b", &of_strategy("zero2")), Options::default());
    let pair = comparison.pairs.iter().find(|pair| pair.b.label.contains("zero2")).unwrap();
    let speed = pair.metric("tokens_per_second").unwrap();
    assert_eq!(speed.verdict, Verdict::NotComparable);
    assert!(speed.words.contains("B fails loss parity"), "{}", speed.words);
    assert!(speed.ratio.is_some(), "the numbers are shown all the same");
    assert_eq!(pair.metric("peak_memory_bytes").unwrap().verdict, Verdict::BWorse);
    assert!(text(&comparison).contains("B FAILS loss parity with its reference"));
}

#[test]
fn flagged_and_unmeasured_trials_are_left_out_and_counted() {
    let mut a = cell("ddp", [100.0, 101.0, 102.0]);
    a[1].validity.push("swap_used".into());
    a.push(grid::ended("ddp", Status::TimedOut, Source::Host, "too long"));
    a[3].key = a[0].key.clone();
    a[3].id = "late".into();
    let b = cell("ddp", [100.0, 101.0, 102.0]);
    let comparison = compared(a.clone(), b.clone());
    assert_eq!((comparison.a.used, comparison.a.left_out.len()), (2, 2));
    let said = text(&comparison);
    assert!(said.contains("1 left out: flagged swap_used") && said.contains("1 left out: timed out (late)"), "{said}");
    assert!(said.contains("--include-flagged"), "{said}");
    assert!(said.contains("A record stands on both sides"), "the trials are the same records: {said}");
    let options = Options { include_flagged: true, ..Options::default() };
    let comparison = compare(&side("a", &a), &side("b", &b), options);
    assert_eq!(comparison.a.used, 3);
    assert!(text(&comparison).contains("Flagged trials of A are used, as asked: swap_used."));
    // None is left: the pair is named, with the reason.
    let mut none = cell("ddp", [1.0; 3]);
    none.iter_mut().for_each(|record| record.validity.push("swap_used".into()));
    let comparison = compared(none, cell("ddp", [1.0; 3]));
    assert!(comparison.pairs.is_empty());
    assert_eq!(comparison.unpaired[0].side, "both");
    assert!(text(&comparison).contains("A has no valid trial (flagged swap_used)"), "{}", text(&comparison));
}

/// Rounds under foreign load are discarded; where all are, no number of the record counts anywhere.
#[test]
fn records_whose_turns_are_all_discarded_are_flagged_and_left_out() {
    let how = super::turns::How { cells: 2, generations: 3, rounds: 6, noise: 0.01 };
    let mut all = super::turns::records(how);
    all.retain(|record| !record.is_twin());
    for (place, record) in all.iter_mut().enumerate() {
        let turns = record.turns.as_mut().unwrap();
        let last = turns.rows.last().unwrap().round;
        // The second generation is under foreign load; of the third the user interrupted the only round.
        match place / 2 {
            1 => turns.rows.iter_mut().for_each(|row| (row.counted, row.others) = (false, 0.5)),
            2 => {
                turns.rows.retain(|row| row.round == last);
                turns.rows.iter_mut().for_each(|row| row.counted = false);
                turns.stopped = Some("interrupted".into());
            }
            _ => {}
        }
        record.flag_discarded_turns();
    }
    let flags: Vec<&[String]> = all.iter().map(|record| &record.validity[..]).collect();
    let (none, busy): (&[String], &[String]) = (&[], &["busy_machine".into()]);
    assert_eq!(flags, [none, none, busy, busy, none, none]);
    let (a, b) = all.into_iter().partition(|record| record.key.starts_with("000"));
    assert!(text(&compared(a, b)).contains("3 records of 1 cell, 2 trials used; 1 left out: flagged busy_machine"));
}

#[test]
fn strategies_are_paired_by_the_other_axes() {
    let comparison = compared(of_strategy("ddp"), of_strategy("zero3"));
    let names: Vec<&str> = comparison.pairs.iter().map(|pair| pair.pair.as_str()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    for pair in &comparison.pairs {
        assert_eq!(pair.paired_by, PairedBy::Configuration);
        assert_eq!(pair.configuration.len(), 1, "{:?}", pair.configuration);
        assert_eq!(pair.configuration[0].path, "parallel.strategy");
    }
    assert_eq!(comparison.configuration[0].path, "parallel.strategy");
    assert!(comparison.unpaired.is_empty());
}

#[test]
fn same_cells_are_paired_by_key_and_the_rest_is_named() {
    let all = |commit: &str| {
        let mut records = grid::records();
        records.iter_mut().for_each(|record| {
            record.environment.insert("commit".into(), commit.into());
            record.id = format!("{commit}{}", record.id);
        });
        records
    };
    let (a, mut b) = (all("aaa"), all("bbb"));
    b.retain(|record| !record.key.starts_with("zero3full"));
    let comparison = compared(a, b);
    assert_eq!(comparison.pairs.len(), 6);
    assert!(comparison.pairs.iter().all(|pair| pair.paired_by == PairedBy::Key && pair.configuration.is_empty()));
    let alone = comparison.unpaired.iter().find(|cell| cell.side == "a").unwrap();
    assert!(alone.label.starts_with("zero3") && alone.reason.contains("no cell of B"), "{alone:?}");
    let ended = comparison.unpaired.iter().filter(|cell| cell.side == "both").count();
    assert_eq!(ended, 2, "out of memory and skipped on both sides: {:?}", comparison.unpaired);
    assert_eq!(comparison.environment.iter().map(|one| one.path.as_str()).collect::<Vec<_>>(), ["commit"]);
}

#[test]
fn what_fits_several_is_not_guessed() {
    let mut b = of_strategy("zero3");
    b.extend(of_strategy("zero2"));
    let comparison = compared(of_strategy("ddp"), b);
    // Of accumulation 4 without checkpointing B has zero3 and zero2.
    assert_eq!(comparison.pairs.len(), 2);
    let reasons: Vec<&str> = comparison.unpaired.iter().map(|cell| cell.reason.as_str()).collect();
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    assert!(
        reasons
            .iter()
            .all(|reason| reason.contains("1 (accumulation=4") && reason.contains("2 (zero3, accumulation=4")),
        "{reasons:?}"
    );
}

#[test]
fn spans_add_up_to_the_change_and_say_what_explains_it() {
    let (mut a, mut b) = (cell("ddp", [100.0, 101.0, 102.0]), cell("ddp", [100.0, 101.0, 102.0]));
    for record in &mut b {
        // The gather takes 20 ms longer, and so does the step; 2 ms more of the step are nowhere.
        record.steps.iter_mut().for_each(|step| step.ms += 22.0);
        let gather = record.time.number("exposed_gather").unwrap();
        record.time.set("exposed_gather", gather + 20.0);
        record.communication[0].calls = 4.0;
        record.memory.set(Category::Activations, Bytes { peak_bytes: Some(1 << 20), ..Bytes::default() });
        record.flops.set("hardware", 2e9);
    }
    for record in &mut a {
        record.flops.set("hardware", 1e9);
    }
    let comparison = compared(a, b);
    let explanation = &comparison.pairs[0].explanation;
    let step = explanation.step.as_ref().unwrap();
    assert!((step.change_ms - 22.0).abs() < 1e-9, "{step:?}");
    let sum: f64 = explanation.spans.iter().map(|span| span.change_ms).sum();
    assert!((sum - step.change_ms).abs() < 1e-9);
    let of = |name: &str| explanation.spans.iter().find(|span| span.span == name).unwrap();
    assert!((of("exposed_gather").share.unwrap() - 20.0 / 22.0).abs() < 1e-9);
    assert!((of("unexplained").share.unwrap() - 2.0 / 22.0).abs() < 1e-9);
    assert_eq!(of("forward").change_ms, 0.0);
    let said = text(&comparison);
    assert!(said.contains("B's mean step is 22.0 ms longer than A's"), "{said}");
    assert!(said.contains("Of that: exposed_gather +20.0 ms (91 %); unexplained +2.00 ms (9 %)."), "{said}");
    assert!(said.contains("all_gather on data goes from 2 to 4 calls"), "{said}");
    assert!(said.contains("activations -99.0 MiB"), "{said}");
    assert!(said.contains("| hardware | 1.00 GFLOP | 2.00 GFLOP |"), "{said}");
}

#[test]
fn steps_of_other_sizes_are_compared_per_token() {
    let (a, mut b) = (cell("ddp", [100.0, 101.0, 102.0]), cell("ddp", [400.0, 404.0, 408.0]));
    b.iter_mut().flat_map(|record| &mut record.steps).for_each(|step| step.tokens *= 4);
    let comparison = compared(a, b);
    assert_eq!(metric(&comparison, "tokens_per_second").verdict, Verdict::NoDifference);
    let explanation = &comparison.pairs[0].explanation;
    assert_eq!(explanation.per_tokens_of_a, Some(0.25));
    assert!(explanation.step.as_ref().unwrap().change_ms.abs() < 1e-9);
    assert!(text(&comparison).contains("B's steps have 4.00 times the tokens"), "{}", text(&comparison));
}

#[test]
fn warm_up_is_discarded_shown_and_kept_on_request() {
    let comparison = story();
    let pair = comparison.pairs.iter().find(|pair| pair.b.key.starts_with("zero3none1")).unwrap();
    let of_b: Vec<_> = pair.warm_up.iter().filter(|trial| trial.side == "b").collect();
    assert!(of_b.iter().all(|trial| trial.discarded == 4 && trial.timed_steps == 29), "{of_b:?}");
    assert!(of_b.iter().all(|trial| trial.tokens_per_second > trial.tokens_per_second_of_all_steps));
    let all = pair.tokens_per_second_of_all_steps.as_ref().unwrap();
    assert!(all.ratio < pair.metric("tokens_per_second").unwrap().ratio);
    let b = of_b.len();
    let options = Options { all_steps: true, ..Options::default() };
    let (a, records) = (of_strategy("ddp"), story_b());
    let kept = compare(&side("a", &a), &side("b", &records), options);
    let pair = kept.pairs.iter().find(|pair| pair.b.key.starts_with("zero3none1")).unwrap();
    assert_eq!(pair.warm_up.iter().filter(|trial| trial.warm_up_steps == 4 && trial.discarded == 0).count(), b);
    assert!(text(&kept).contains("all steps are kept, as asked"));
}

/// The report of a grid discards nothing, and warns.
#[test]
fn a_grids_report_warns_of_warm_up() {
    let warns = |records: &[Record]| markdown::render(&zbench_reports::grid_report::comparison(records, None));
    let said = warns(&story_b());
    assert!(
        said.contains("In 3 of 9 measured trials warm-up seems to last into the timed steps, to timed step 4"),
        "{said}"
    );
    assert!(!warns(&of_strategy("zero3")).contains("warm-up"));
}

fn story_b() -> Vec<Record> {
    let mut b = of_strategy("zero3");
    for record in b.iter_mut().filter(|record| record.key.starts_with("zero3none1")) {
        let last = record.steps[5].clone();
        record.steps.extend((6..30u64).map(|step| Step { step, ..last.clone() }));
        record.steps[1..5].iter_mut().for_each(|step| step.ms *= 1.5);
    }
    b
}

#[test]
fn nothing_is_compared_with_nothing() {
    let comparison = compared(Vec::new(), cell("ddp", [1.0; 3]));
    assert!(comparison.pairs.is_empty());
    assert!(text(&comparison).contains("No two cells can be compared"));
    assert!(text(&compared(Vec::new(), Vec::new())).contains("No two cells can be compared"));
}

/// Exchanging the sides exchanges the claims.
#[test]
fn the_other_way_round_says_the_opposite() {
    let (a, b) = (of_strategy("ddp"), of_strategy("zero3"));
    let (there, back) = (compared(a.clone(), b.clone()), compared(b, a));
    assert_eq!(there.pairs.len(), back.pairs.len());
    for pair in &there.pairs {
        let other = back.pairs.iter().find(|other| other.a.key == pair.b.key).unwrap();
        for (one, two) in pair.metrics.iter().zip(&other.metrics) {
            let opposite = match one.verdict {
                Verdict::BBetter => Verdict::BWorse,
                Verdict::BWorse => Verdict::BBetter,
                same => same,
            };
            assert_eq!(two.verdict, opposite, "{}", one.name);
            if let (Some(low), Some(high)) = (one.low, two.high) {
                assert!((low * high - 1.0).abs() < 1e-9, "{}: {low} and {high}", one.name);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the records hold: no panic, no number that is none, and every cell is in a pair or named as unpaired.
    #[test]
    fn any_records_are_compared(a in proptest::collection::vec(any::record(), 0..5), b in proptest::collection::vec(any::record(), 0..5), include_flagged: bool, all_steps: bool) {
        let comparison = compare(&side("a", &a), &side("b", &b), Options { include_flagged, all_steps });
        let shown = markdown::render(&document(&comparison, 3));
        prop_assert!(!shown.contains("NaN"), "{shown}");
        for pair in &comparison.pairs {
            let line = serde_json::to_string(pair).unwrap();
            prop_assert!(!line.contains('\n'));
        }
        for (records, own) in [(&a, "a"), (&b, "b")] {
            for record in records.iter() {
                let is_paired = comparison.pairs.iter().any(|pair| (if own == "a" { &pair.a.key } else { &pair.b.key }) == &record.key);
                let is_named = comparison.unpaired.iter().any(|cell| (cell.side == own || cell.side == "both") && cell.records.contains(&record.id));
                prop_assert!(is_paired || is_named, "{} of {own}", record.id);
            }
        }
    }
}

/// Three trials of two cells of a suite; each trial states the metric.
fn of_suite(suite: &str, metric: &str, values: [f64; 2]) -> Vec<Record> {
    let trial = |cell: usize, number: u32| {
        let key = format!("{suite}{cell}-key-of-the-cell");
        let mut record = Record::new(format!("{key}-{number}-{:.0}", values[cell]), key, suite, Outcome::measured());
        record.trial = number;
        record.cell = json!({"suite": suite, "size": cell});
        record.state(metric, values[cell] * (1.0 + f64::from(number) * 1e-3));
        record
    };
    (0..2)
        .flat_map(|cell| (1..=3).map(move |number| (cell, number)))
        .map(|(cell, number)| trial(cell, number))
        .collect()
}

#[test]
fn pairs_of_other_suites_are_compared_by_their_main_metric() {
    for (suite, name, unit, faster) in [
        ("gemm", "gflops", "GFLOP/s", "higher"),
        ("attention", "flash_forward_gflops", "GFLOP/s", "higher"),
        ("collectives", "all_gather_busbw_gb_s", "GB/s", "higher"),
        ("checkpoint", "save_ms", "ms", "lower"),
    ] {
        let [first, second] = if faster == "higher" { [120.0, 100.0] } else { [80.0, 300.0] };
        let found = compared(of_suite(suite, name, [100.0, 200.0]), of_suite(suite, name, [first, second]));
        let full = document(&found, PAIRS_IN_FULL);
        let text = markdown::render(&full);
        assert!(text.contains("Of 2 pairs, B is faster in 1 and slower in 1."), "{text}");
        assert!(text.contains(&format!("B's {name} is 20 % {faster} (")), "{text}");
        assert!(text.contains(&format!("{name}, B/A: ")), "{text}");
        assert!(text.contains(&format!("the interval is of B/A of {name}, over trials.")), "{text}");
        assert_eq!(column(&full, "pairs", "metric"), [name; 2]);
        assert_eq!(column(&full, "pairs", "verdict"), ["faster", "slower"]);
        assert_eq!(column(&full, "pairs", &format!("A {unit}")), ["100", "200"]);
        let screen =
            terminal::render(&short(&found, Room::SCREEN).short(), terminal::Terminal { width: 120, color: false });
        assert!(screen.contains(&format!("A {unit}")) && screen.contains("slower"), "{screen}");
    }
}

#[test]
fn pairs_of_several_suites_name_the_metric_of_each() {
    let both = |gemm, save| [of_suite("gemm", "gflops", gemm), of_suite("checkpoint", "save_ms", save)].concat();
    let found = compared(both([100.0, 200.0], [10.0, 20.0]), both([150.0, 300.0], [5.0, 10.0]));
    let full = document(&found, PAIRS_IN_FULL);
    assert_eq!(column(&full, "pairs", "metric"), ["gflops", "gflops", "save_ms", "save_ms"]);
    assert!(
        text(&found).contains("gflops, B/A: 1.500") && text(&found).contains("save_ms, B/A: 0.500"),
        "{}",
        text(&found)
    );
    assert_eq!(column(&full, "pairs", "A")[0], "100 GFLOP/s");
}

#[test]
fn pairs_without_a_main_metric_state_no_speed() {
    let records = || of_suite("calibrate", "gflops_of_the_machine", [1.0, 2.0]);
    let text = text(&compared(records(), records()));
    assert!(text.contains("Of 2 pairs, B is faster in 0 and slower in 0; no speed is stated in 2."), "{text}");
}
