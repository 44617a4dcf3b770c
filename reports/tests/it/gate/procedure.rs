//! The procedure on a fake bench with a fake clock: every verdict, every way to end, the documents made of them.

use super::fake::{Machine, Noise, question, rule, rules, trial};
use proptest::prelude::*;
use zbench_reports::gate::procedure::{judge, judge_records};
use zbench_reports::gate::report::Class;
use zbench_reports::gate::verdict::{POLICY, exit_code, worst};
use zbench_reports::gate::{
    Bench, Bound, CellReport, Opponent, Rules, Side, Trial, Verdict, annotations, document, junit, replay,
};
use zbench_reports::gate::{GATE_SCHEMA, Report};
use zbench_reports::record::{Source, Status};
use zbench_reports::render::markdown;

/// A quiet machine: 0.5 % noise.
fn quiet(seed: u64) -> Machine {
    Machine::new(seed, Noise::Normal, 0.005)
}

fn live(machine: &mut Machine, rules: &Rules) -> CellReport {
    judge(&question(rules, Opponent::Live, 1), machine)
}

fn verdict(report: &CellReport, metric: &str) -> Verdict {
    let row = report.rows.iter().find(|row| row.metric == metric);
    row.unwrap_or_else(|| panic!("no row of {metric}")).verdict
}

#[test]
fn looks_and_error_budget() {
    let rules = rules();
    assert_eq!(rules.looks(), [10, 15, 23, 35, 53, 80, 120]);
    // 2 % over these 7 looks, the one at the end of the first set's time, and 2 rows; without reruns that one is the last.
    assert!((rules.alpha(2) - 0.02 / 16.0).abs() < 1e-15);
    assert!((Rules { confirm: 0, ..rules.clone() }.alpha(2) - 0.02 / 14.0).abs() < 1e-15);
    // The first look of one row can say something: of ten differences all may lie on one side by chance once in 1,024.
    assert!(rules.alpha(1) > 2.0 / 1024.0);
    assert_eq!(Rules { min_pairs: 1, max_pairs: 4, ..rules.clone() }.looks(), [1, 2, 3, 4]);
    assert_eq!(Rules { min_pairs: 9, max_pairs: 3, ..rules }.looks(), [9]);
}

#[test]
fn the_same_program_passes_soon_and_every_metric_has_its_row() {
    let (rules, mut machine) = (rules(), quiet(1));
    let report = live(&mut machine, &rules);
    for metric in ["tokens_per_second", "peak_memory_bytes", "wire_bytes", "loss"] {
        assert_eq!(verdict(&report, metric), Verdict::Pass, "{metric}");
    }
    assert_eq!(report.rows.len(), 4);
    let row = &report.rows[0];
    assert!(row.used >= 10 && row.used <= 23 && row.reruns == 0, "{row:?}");
    let ratio = row.ratio.expect("a ratio");
    assert!(ratio.low.unwrap() < ratio.mid && ratio.mid < ratio.high.unwrap());
    // As many of one side as of the other, and time by the fake clock alone.
    assert_eq!(machine.count[0], machine.count[1]);
    assert_eq!(report.seconds, machine.clock);
}

#[test]
fn a_slow_down_is_confirmed_by_a_second_set() {
    let (rules, mut machine) = (rules(), Machine { factor: 1.06, ..quiet(2) });
    let report = live(&mut machine, &rules);
    let row = &report.rows[0];
    assert_eq!((row.verdict, row.reruns, row.sets.len()), (Verdict::Regression, 1, 2));
    assert!(row.words.contains("1 rerun"), "{}", row.words);
    // Tokens per second fall to 1/1.06 of what they were.
    assert!((row.ratio.unwrap().mid - 1.0 / 1.06).abs() < 0.005);
    let mut machine = Machine { factor: 1.0 / 1.06, ..quiet(3) };
    assert_eq!(live(&mut machine, &rules).rows[0].verdict, Verdict::Improvement);
    // Without reruns one set is enough.
    let rules = Rules { confirm: 0, ..rules };
    let report = live(&mut Machine { factor: 1.06, ..quiet(4) }, &rules);
    assert_eq!((report.rows[0].verdict, report.rows[0].reruns), (Verdict::Regression, 0));
}

#[test]
fn a_slow_down_that_does_not_come_again_is_no_regression() {
    let rules = rules();
    let mut machine = quiet(5);
    // As many trials of the candidate as the first look has are slow, those after them are not.
    machine.then = Box::new(|side, count, trial| {
        Some(if side == Side::Candidate && count <= 10 { replay::slowed(&trial, 1.1) } else { trial })
    });
    let report = live(&mut machine, &rules);
    let row = &report.rows[0];
    assert_eq!(
        (row.verdict, row.sets[0].verdict, row.sets[1].verdict),
        (Verdict::Inconclusive, Verdict::Regression, Verdict::Pass)
    );
    assert!(row.words.contains("regression in the first set and pass in the rerun"), "{}", row.words);
}

#[test]
fn the_end_of_the_budget_is_inconclusive_and_is_kept() {
    let rules = Rules { time_budget: 30.0, ..rules() };
    // On the edge of the band, where no number of pairs decides.
    let mut machine = Machine { factor: 1.025, ..Machine::new(6, Noise::Normal, 0.03) };
    let report = live(&mut machine, &rules);
    assert_eq!(verdict(&report, "tokens_per_second"), Verdict::Inconclusive);
    // Nothing needs a rerun, so that all of it is used but for what no pair fits into.
    assert!(machine.clock <= 30.0 && machine.clock > 28.0, "{}", machine.clock);
    assert_eq!(report.rows[0].sets.len(), 1);
    // A regression without time for the rerun is none.
    let rules = Rules { time_budget: 10.0, ..rules };
    let report = live(&mut Machine { factor: 1.5, trial_seconds: 0.3, ..quiet(7) }, &rules);
    let row = &report.rows[0];
    assert!(row.sets.len() == 2 || row.verdict != Verdict::Regression, "{row:?}");
}

/// What was open at the end of the first set's time is decided behind it, and a change that is found there is confirmed in the time
/// that is left. The looks stay those of the error budget.
#[test]
fn an_open_metric_has_the_whole_budget() {
    // 20 pairs fit into half of the budget: the noise leaves the same program open there, in most gates.
    let rules = Rules { time_budget: 40.0, ..rules() };
    let (mut behind, mut confirmed) = (0, 0);
    for seed in 0..40 {
        let mut machine = Machine::new(100 + seed, Noise::Normal, 0.022);
        let report = live(&mut machine, &rules);
        assert!(machine.clock <= 40.0, "{}", machine.clock);
        let row = &report.rows[0];
        behind += usize::from(row.verdict == Verdict::Pass && row.used > 20);
        let mut machine = Machine { factor: 1.06, ..Machine::new(200 + seed, Noise::Normal, 0.022) };
        let row = &live(&mut machine, &rules).rows[0];
        assert!(machine.clock <= 40.0, "{}", machine.clock);
        // What no rerun confirms is no regression.
        assert!(row.verdict != Verdict::Regression || row.sets.len() == 2, "{row:?}");
        confirmed += usize::from(row.verdict == Verdict::Regression);
    }
    assert!(behind >= 10, "{behind} of 40 passed behind the first half");
    assert!(confirmed >= 10, "{confirmed} of 40 were confirmed");
}

#[test]
fn too_few_pairs_or_none_are_not_measured() {
    let rules = Rules { time_budget: 6.0, ..rules() };
    let report = live(&mut quiet(8), &rules);
    let row = &report.rows[0];
    assert_eq!((row.verdict, row.used), (Verdict::NotMeasured, 6), "{row:?}");
    assert!(row.words.contains("at least 10 are needed"), "{}", row.words);
    // The metric is absent from every trial, and its reason is told.
    let mut machine = quiet(9);
    let rules = Rules { metrics: vec![rule("all_reduce_busbw_gb_s")], ..super::fake::rules() };
    machine.then = Box::new(|_, _, mut trial| {
        trial.unstated.insert("all_reduce_busbw_gb_s", "one rank moves nothing".to_string());
        Some(trial)
    });
    let report = live(&mut machine, &rules);
    assert_eq!(report.rows[0].verdict, Verdict::NotMeasured);
    assert!(report.rows[0].words.contains("one rank moves nothing"), "{}", report.rows[0].words);
}

#[test]
fn flagged_trials_are_left_out_with_their_pairs_and_counted() {
    let rules = rules();
    let mut machine = quiet(10);
    // Every third trial of the candidate is throttled, and three times as slow.
    machine.then = Box::new(|side, count, mut trial| {
        if side == Side::Candidate && count % 3 == 0 {
            trial = replay::slowed(&trial, 3.0);
            trial.flags.push("throttled".into());
        }
        Some(trial)
    });
    let report = live(&mut machine, &rules);
    assert_eq!(verdict(&report, "tokens_per_second"), Verdict::Pass);
    let [left] = &report.left_out[..] else { panic!("{:?}", report.left_out) };
    assert_eq!((left.side.as_str(), left.why.as_str()), ("candidate", "throttled"));
    assert_eq!(left.count + report.rows[0].used, report.candidate_trials);
    // Bytes and losses of a throttled trial count.
    assert_eq!(verdict(&report, "loss"), Verdict::Pass);
    // All of them flagged: nothing was measured, however many there are.
    let mut machine = quiet(11);
    machine.then = Box::new(|_, _, mut trial| {
        trial.flags.push("swap_used".into());
        Some(trial)
    });
    let report = live(&mut machine, &rules);
    assert_eq!(verdict(&report, "tokens_per_second"), Verdict::NotMeasured);
    assert!(report.rows[0].words.contains("counts"), "{}", report.rows[0].words);
}

/// Runs with a candidate that always ends otherwise, and a baseline that may.
fn ending(base: Option<Status>, now: Option<Status>) -> CellReport {
    let mut machine = quiet(12);
    machine.then = Box::new(move |side, _, trial| {
        let status = if side == Side::Baseline { base } else { now };
        Some(match status {
            None => trial,
            Some(status) => Trial { source: Some(Source::Arena), ..Trial::ended(status, "a reason", 0.1) },
        })
    });
    live(&mut machine, &rules())
}

#[test]
fn a_change_of_fit_is_a_class_of_its_own() {
    let report = ending(None, Some(Status::OutOfMemory));
    let [row] = &report.rows[..] else { panic!("{:?}", report.rows) };
    assert_eq!((row.class, row.verdict, row.metric.as_str()), (Class::Fit, Verdict::Regression, "fit"));
    assert!(row.words.contains("a reason"));
    // It was repeated before it was believed.
    assert_eq!(report.left_out[0].count, 1);
    let report = ending(Some(Status::OutOfMemory), None);
    let [row] = &report.rows[..] else { panic!("{:?}", report.rows) };
    assert_eq!((row.class, row.verdict), (Class::Fit, Verdict::Improvement));
    // On both sides: no change, and nothing measured beside.
    let report = ending(Some(Status::OutOfMemory), Some(Status::OutOfMemory));
    assert_eq!((report.rows[0].class, report.rows[0].verdict), (Class::Fit, Verdict::Pass));
    assert!(report.rows[1..].iter().all(|row| row.verdict == Verdict::NotMeasured));
    assert_eq!(report.rows.len(), 5);
}

#[test]
fn one_trial_out_of_memory_is_no_change_of_fit() {
    let mut machine = quiet(13);
    machine.then = Box::new(|side, count, trial| {
        Some(if side == Side::Candidate && count == 2 { Trial::ended(Status::OutOfMemory, "once", 0.1) } else { trial })
    });
    let report = live(&mut machine, &rules());
    assert_eq!(verdict(&report, "tokens_per_second"), Verdict::Pass);
    assert_eq!((report.left_out[0].why.as_str(), report.left_out[0].count), ("out of memory", 1));
}

#[test]
fn failures_are_neither_passes_nor_regressions() {
    for status in [Status::Failed, Status::TimedOut, Status::Diverged] {
        for (base, now, side) in [(None, Some(status), "candidate"), (Some(status), None, "baseline")] {
            let report = ending(base, now);
            assert_eq!((report.rows[0].class, report.rows[0].verdict), (Class::Run, Verdict::Failed));
            assert!(report.rows[0].words.contains(side), "{}", report.rows[0].words);
        }
    }
    let report = ending(None, Some(Status::Skipped));
    assert_eq!(report.rows[0].verdict, Verdict::NotMeasured);
    // What is skipped is not tried twice.
    assert!(report.left_out.is_empty());
}

#[test]
fn stopping_keeps_what_was_measured() {
    let mut machine = Machine { factor: 1.025, ..Machine::new(14, Noise::Normal, 0.03) };
    machine.then = Box::new(|side, count, trial| (side == Side::Baseline || count <= 20).then_some(trial));
    let report = live(&mut machine, &rules());
    assert!(report.interrupted);
    assert_eq!(report.rows[0].verdict, Verdict::Inconclusive);
    assert!(report.rows[0].used >= 19 && report.rows[0].words.contains("stopped"), "{:?}", report.rows[0]);
    // Before anything: not measured.
    let mut machine = quiet(15);
    machine.then = Box::new(|_, _, _| None);
    let report = live(&mut machine, &rules());
    assert!(report.interrupted && report.rows.iter().all(|row| row.verdict == Verdict::NotMeasured));
}

#[test]
fn exact_metrics_to_the_byte_and_to_the_bit() {
    let mut machine = quiet(16);
    machine.then = Box::new(|side, _, mut trial| {
        if side == Side::Candidate {
            trial.values.set("peak_memory_bytes", 4097.0);
            trial.values.set("wire_bytes", 1000.0);
            trial.losses[1] = Some(5.25 + f64::EPSILON * 4.0);
        }
        Some(trial)
    });
    let report = live(&mut machine, &rules());
    assert_eq!(verdict(&report, "peak_memory_bytes"), Verdict::Regression);
    assert_eq!(verdict(&report, "wire_bytes"), Verdict::Improvement);
    assert_eq!(verdict(&report, "loss"), Verdict::Regression);
    let mut rules = rules();
    for rule in &mut rules.metrics {
        match &mut rule.bound {
            Bound::Tolerance { more, less } => (*more, *less) = (0.001, 0.03),
            Bound::Losses(tolerance) => *tolerance = 1e-12,
            Bound::Band { .. } => {}
        }
    }
    let mut again = quiet(16);
    again.then = machine.then;
    let report = live(&mut again, &rules);
    assert!(report.rows.iter().all(|row| row.verdict == Verdict::Pass), "{:?}", report.rows);
}

#[test]
fn losses_that_are_not_there_or_not_finite() {
    let of = |losses: Vec<Option<f64>>| {
        let mut machine = quiet(17);
        machine.then = Box::new(move |side, _, mut trial| {
            if side == Side::Candidate {
                trial.losses.clone_from(&losses);
            }
            Some(trial)
        });
        let rules = Rules { metrics: vec![rule("loss")], ..rules() };
        let report = live(&mut machine, &rules);
        // Nothing noisy: two pairs say it all.
        assert_eq!(machine.count, [2, 2]);
        report.rows[0].verdict
    };
    assert_eq!(of(vec![Some(5.5), Some(5.25)]), Verdict::Pass);
    assert_eq!(of(vec![Some(5.5), None]), Verdict::Regression);
    assert_eq!(of(vec![Some(5.5)]), Verdict::Regression);
    assert_eq!(of(Vec::new()), Verdict::NotMeasured);
}

fn stored(count: usize, ms: f64, seed: u64) -> Vec<Trial> {
    let mut machine = quiet(seed);
    (0..count).map(|_| replay::slowed(&machine.trial(Side::Baseline).expect("a trial"), ms / 10.0)).collect()
}

#[test]
fn fresh_trials_beside_stored_ones() {
    let rules = rules();
    let of = |base: Vec<Trial>, factor: f64| {
        let mut machine = Machine { factor, ..quiet(18) };
        let report = judge(&question(&rules, Opponent::Stored(base), 1), &mut machine);
        assert_eq!(machine.count[0], 0, "the baseline is not measured");
        (report.rows[0].verdict, report)
    };
    assert_eq!(of(stored(24, 10.0, 19), 1.0).0, Verdict::Pass);
    assert_eq!(of(stored(24, 10.0, 19), 1.08).0, Verdict::Regression);
    assert_eq!(of(stored(24, 10.0, 19), 0.9).0, Verdict::Improvement);
    let (verdict, report) = of(stored(2, 10.0, 19), 1.0);
    assert_eq!(verdict, Verdict::NotMeasured);
    assert!(report.rows[0].words.contains("2 usable trials"), "{}", report.rows[0].words);
    // The baseline's halves are 10 % apart: the machine drifts by that much, and the interval is widened by it.
    let drifting: Vec<Trial> = [stored(12, 10.0, 20), stored(12, 11.0, 21)].concat();
    let (verdict, report) = of(drifting, 1.0);
    assert_eq!(verdict, Verdict::Inconclusive, "{:?}", report.rows[0]);
    assert!(report.rows[0].noise_floor.unwrap() > 0.08);
    // The baseline did not fit.
    let out = vec![Trial::ended(Status::OutOfMemory, "too big", 0.0)];
    let (verdict, report) = of(out.clone(), 1.0);
    assert_eq!((verdict, report.rows[0].class), (Verdict::Improvement, Class::Fit));
    assert_eq!(report.candidate_trials, 0);
    // Nor does the candidate.
    let report = judge_records(&question(&rules, Opponent::Stored(out.clone()), 1), out);
    assert_eq!((report.rows[0].class, report.rows[0].verdict), (Class::Fit, Verdict::Pass));
}

#[test]
fn records_beside_records() {
    let rules = rules();
    let of = |base: Vec<Trial>, now: Vec<Trial>| {
        let report = judge_records(&question(&rules, Opponent::Stored(base), 1), now);
        assert!(!report.rows.is_empty());
        (report.rows[0].verdict, report)
    };
    assert_eq!(of(stored(10, 10.0, 22), stored(10, 10.0, 23)).0, Verdict::Pass);
    let (verdict, report) = of(stored(10, 10.0, 22), stored(10, 10.8, 23));
    assert_eq!((verdict, report.rows[0].reruns), (Verdict::Regression, 0));
    assert_eq!(of(stored(10, 10.0, 22), stored(10, 9.0, 23)).0, Verdict::Improvement);
    // Three against three cannot reject anything at 98 %.
    assert_eq!(of(stored(3, 10.0, 22), stored(3, 20.0, 23)).0, Verdict::Inconclusive);
    assert_eq!(of(stored(10, 10.0, 22), stored(2, 10.0, 23)).0, Verdict::NotMeasured);
    assert_eq!(of(stored(10, 10.0, 22), Vec::new()).0, Verdict::NotMeasured);
    let out = vec![Trial::ended(Status::OutOfMemory, "too big", 0.0)];
    let (verdict, report) = of(stored(10, 10.0, 22), out.clone());
    assert_eq!((verdict, report.rows[0].class), (Verdict::Regression, Class::Fit));
    let (verdict, report) = of(out, stored(10, 10.0, 22));
    assert_eq!((verdict, report.rows.len(), report.rows[0].class), (Verdict::Improvement, 1, Class::Fit));
}

#[test]
fn exit_codes() {
    use Verdict::*;
    let usual = [Regression, Inconclusive, NotMeasured];
    for (verdicts, fail_on, code) in [
        (&[Pass, Pass][..], &usual[..], 0),
        (&[Pass, Improvement], &usual, 0),
        (&[Pass, Improvement], &[Regression, Improvement], 2),
        (&[Pass, Regression, Inconclusive], &usual, 2),
        (&[Pass, Inconclusive], &usual, 3),
        (&[Pass, Inconclusive], &[Regression], 0),
        (&[Pass, Inconclusive, NotMeasured], &usual, 4),
        (&[Pass, NotMeasured], &[Regression], 0),
        // A gate of which nothing was measured never passes, whatever its policy.
        (&[NotMeasured, NotMeasured], &[], 4),
        (&[], &[], 4),
        (&[Regression], &[], 0),
        (&[Regression, Failed, NotMeasured], &usual, 5),
        (&[Failed], &[], 5),
    ] {
        assert_eq!(exit_code(verdicts, fail_on), code, "{verdicts:?} {fail_on:?}");
    }
    assert_eq!(worst([Pass, NotMeasured, Improvement, Inconclusive]), NotMeasured);
    assert_eq!(worst([NotMeasured, Regression]), Regression);
    assert_eq!(worst([]), NotMeasured);
    assert!(POLICY.iter().all(|verdict| Verdict::policy(verdict.name()) == Some(*verdict)));
    assert_eq!(Verdict::policy("pass"), None);
}

/// A report of these cells; the budget is 120 s.
pub(super) fn report(cells: Vec<CellReport>, fail_on: &[Verdict]) -> Report {
    let verdicts: Vec<Verdict> = cells.iter().flat_map(|cell| cell.rows.iter().map(|row| row.verdict)).collect();
    Report {
        schema: GATE_SCHEMA,
        rules: "rules.toml".into(),
        baseline: "a <b> & \"c\"".into(),
        candidate: "100 %, new\nline".into(),
        how: "pairs".into(),
        verdict: worst(verdicts.iter().copied()),
        exit_code: exit_code(&verdicts, fail_on),
        fail_on: fail_on.to_vec(),
        confidence: 0.98,
        time_budget_seconds: 120.0,
        seconds: 3.5,
        seed: 1,
        figure: "the median".into(),
        interrupted: false,
        cells,
        notes: vec!["a note".into()],
        environment: Default::default(),
        next: String::new(),
        command: "zbench gate rules.toml".into(),
        started: "2026-01-01T00:00:00Z".into(),
    }
}

#[test]
fn documents_say_what_was_compared() {
    let mut machine = Machine { factor: 1.08, ..quiet(24) };
    let cell = live(&mut machine, &rules());
    let out = ending(None, Some(Status::Failed));
    let report = report(vec![cell, out], &[Verdict::Regression]);
    assert_eq!((report.verdict, report.exit_code), (Verdict::Failed, 5));
    let text = markdown::render(&document::document(&report));
    for words in [
        "regression",
        "tokens_per_second",
        "noise floor",
        "1 rerun",
        "zbench gate rules.toml",
        "seed 1",
        "left out",
        "98.0 %",
    ] {
        assert!(text.contains(words), "{words} is not in:\n{text}");
    }
    let lines = document::json_lines(&report).expect("JSON");
    let rows: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(rows.len(), report.rows().count() + 1);
    assert_eq!(rows[0]["verdict"], "regression");
    assert_eq!(rows[rows.len() - 1]["verdict"], "failed");
    assert_eq!(rows[rows.len() - 1]["exit_code"], 5);
    let back: Report = serde_json::from_value(rows[rows.len() - 1].clone()).expect("it reads itself");
    assert_eq!(back.cells.len(), 2);
}

#[test]
fn junit_is_read_back_with_the_same_counts() {
    let mut machine = Machine { factor: 1.08, ..quiet(25) };
    let cells = vec![live(&mut machine, &rules()), ending(None, Some(Status::Failed))];
    let report = report(cells, &[Verdict::Regression]);
    let xml = junit::junit(&report).expect("XML");
    let back = quick_junit::Report::deserialize_from_str(&xml).unwrap_or_else(|error| panic!("{error}\n{xml}"));
    assert_eq!(back.test_suites.len(), 2);
    let cases: usize = back.test_suites.iter().map(|suite| suite.test_cases.len()).sum();
    assert_eq!(cases, report.rows().count());
    // The cases of a cell add up to its time, as tools that count again expect.
    for (suite, cell) in back.test_suites.iter().zip(&report.cells) {
        let sum: f64 = suite.test_cases.iter().filter_map(|case| Some(case.time?.as_secs_f64())).sum();
        assert!(cell.seconds > 0.0 && (sum - cell.seconds).abs() < 0.01, "{sum} of {} s\n{xml}", cell.seconds);
    }
    // The regression fails; the failed cell is an error; its metrics, not measured and let pass, are skipped.
    assert_eq!((back.failures, back.errors), (1, 1));
    let is_skipped = |case: &&quick_junit::TestCase| matches!(case.status, quick_junit::TestCaseStatus::Skipped { .. });
    assert_eq!(back.test_suites[1].test_cases.iter().filter(is_skipped).count(), 4);
    assert!(xml.contains("a &lt;b&gt; &amp;"), "{xml}");
}

#[test]
fn annotations_are_one_line_each() {
    let mut machine = Machine { factor: 1.08, ..quiet(26) };
    let mut cell = live(&mut machine, &rules());
    cell.rows[1].verdict = Verdict::Inconclusive;
    cell.rows[1].words = "50 % of\r\nit: a,b".into();
    cell.rows[2].verdict = Verdict::Improvement;
    let text = annotations::annotations(&report(vec![cell], &[Verdict::Regression]));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].starts_with("::error title=gate%3A tokens_per_second::tokens_per_second: regression"), "{text}");
    assert!(lines[1].starts_with("::warning ") && lines[1].contains("50 %25 of%0D%0Ait: a,b"), "{text}");
    assert!(lines[2].starts_with("::notice "), "{text}");
    assert!(lines[3].starts_with("::error title=gate%3A regression::"), "{text}");
}

proptest! {
    /// Whatever trials say, there is a row for everything, no pass without samples, and the budget is kept to one pair.
    #[test]
    fn no_trial_makes_it_panic_or_pass_unseen(
        seed in 0u64..1000,
        plan in proptest::collection::vec(0u8..12, 1..60),
        budget in 0.0f64..40.0,
        confirm in 0usize..3,
        stored_count in proptest::option::of(0usize..12),
    ) {
        let rules = Rules { time_budget: budget, confirm, ..rules() };
        let mut machine = quiet(seed);
        let mut next = 0;
        machine.then = Box::new(move |_, _, mut trial| {
            next += 1;
            match plan[next % plan.len()] {
                0 => return None,
                1 => return Some(Trial::ended(Status::OutOfMemory, "x", 0.1)),
                2 => return Some(Trial::ended(Status::Failed, "x", 0.1)),
                3 => trial.flags.push("throttled".into()),
                4 => trial.step_ms.clear(),
                5 => { trial.values.set("tokens_per_second", 0.0); trial.step_ms.clear() }
                6 => trial.step_ms = vec![f64::INFINITY],
                7 => trial.losses.clear(),
                _ => {}
            }
            Some(trial)
        });
        let opponent = stored_count.map_or(Opponent::Live, |count| Opponent::Stored(vec![trial(10.0); count]));
        let report = judge(&question(&rules, opponent, seed), &mut machine);
        prop_assert!(!report.rows.is_empty());
        for row in &report.rows {
            let is_seen = row.class == Class::Fit || row.used > 0;
            prop_assert!(!matches!(row.verdict, Verdict::Pass | Verdict::Improvement | Verdict::Regression) || is_seen, "{:?}", row);
            if row.class == Class::Noisy && row.verdict == Verdict::Pass {
                prop_assert!(row.used >= rules.min_pairs);
            }
        }
        // A pair that was begun is ended, and repeats of a trial that was not measured are part of it.
        let pair = 2.0 * machine.trial_seconds * (1 + confirm) as f64;
        prop_assert!(machine.clock <= budget + 2.0 * pair * (1 + confirm) as f64, "{} of {budget}", machine.clock);
    }
}
