//! What a gate says to do next, and that it is on the first screen.

use super::fake::{Machine, Noise, question, rules};
use super::procedure::report;
use zbench_reports::gate::document;
use zbench_reports::gate::next::{how, next};
use zbench_reports::gate::procedure::judge;
use zbench_reports::render::cut::{cut, height};
use zbench_reports::screen::Room;

use zbench_reports::gate::report::{OfTurns, Ratio};
use zbench_reports::gate::{CellReport, Opponent, Report, Rules, Verdict};
use zbench_reports::record::others::OtherProgram;
use zbench_reports::render::markdown;

fn judged(rules: &Rules, mut machine: Machine) -> CellReport {
    judge(&question(rules, Opponent::Live, 1), &mut machine)
}

/// A report whose speed came out like this.
fn with(change: impl Fn(&mut CellReport)) -> Report {
    let mut cell = judged(&rules(), Machine::new(1, Noise::Normal, 0.005));
    change(&mut cell);
    report(vec![cell], &[Verdict::Regression])
}

fn speed(verdict: Verdict, low: f64, mid: f64, high: f64) -> impl Fn(&mut CellReport) {
    move |cell| {
        let row = &mut cell.rows[0];
        row.verdict = verdict;
        row.ratio = Some(Ratio { low: Some(low), mid, high: Some(high) });
        row.sets.iter_mut().for_each(|set| set.verdict = verdict);
    }
}

#[test]
fn a_pass_needs_no_next_step() {
    let report = with(|_| ());
    assert_eq!((report.verdict, next(&report, "explain")), (Verdict::Pass, String::new()));
}

/// The budget of these reports is 120 s. The middle is 0.99, 1.46 % above the lower edge of 1/1.025; half of the interval is twice
/// that, so that four times the time makes it fit.
#[test]
fn an_open_interval_says_which_budget_would_decide_it() {
    let room: f64 = 0.99f64.ln() + 1.025f64.ln();
    let limits = |half: f64| (0.99 * (-half).exp(), 0.99 * half.exp());
    let (low, high) = limits(2.0 * room);
    let words = next(&with(speed(Verdict::Inconclusive, low, 0.99, high)), "");
    assert!(words.starts_with("tokens_per_second: the ratio may lie from 0.96"), "{words}");
    assert!(words.contains("`--time-budget 8min`") || words.contains("`--time-budget 9min`"), "{words}");
    // On the edge no time decides.
    let words = next(&with(speed(Verdict::Inconclusive, 0.96, 0.9757, 0.99)), "");
    assert!(words.contains("change slower or faster of [metrics.tokens_per_second] in rules.toml"), "{words}");
    // A band that is much narrower than the interval is not what is wrong.
    let words = next(&with(speed(Verdict::Inconclusive, 0.53, 1.02, 1.97)), "");
    assert!(words.contains("too noisy") && !words.contains("change slower"), "{words}");
    // Under load the time is not what is missing.
    let loaded = with(|cell| {
        speed(Verdict::Inconclusive, low, 0.99, high)(cell);
        cell.rows[0].turns = Some(OfTurns { rounds: 10, generations: 2, slower: 5, discarded: 30 });
    });
    let words = next(&loaded, "");
    assert!(words.contains("30 of 40 rounds") && words.contains("`--allow-load`"), "{words}");
}

#[test]
fn trials_beside_other_processes_are_told_with_their_names_and_have_no_infinite_interval() {
    let mut machine = Machine::new(2, Noise::Normal, 0.005);
    let mut count = 0;
    machine.then = Box::new(move |_, _, mut trial| {
        count += 1;
        trial.flags.extend((count > 6).then(|| "busy_machine".to_string()));
        Some(trial)
    });
    let mut cell = judged(&rules(), machine);
    cell.busy = vec![OtherProgram { name: "cc1".into(), process: 7, processes: 3, cores: 1.5 }];
    let report = report(vec![cell], &[]);
    let words = next(&report, "");
    assert!(
        words.contains("other processes used the cores in ") && words.contains(" trials (cc1 (process 7 and 2 more"),
        "{words}"
    );
    assert!(words.contains("count these trials, too, with `--allow-load`"), "{words}");
    let text = markdown::render(&document::document(&report));
    assert!(text.contains("(no interval)") && !text.contains("inf]"), "{text}");
}

#[test]
fn each_other_verdict_has_its_step() {
    let regression = with(speed(Verdict::Regression, 0.93, 0.95, 0.96));
    assert_eq!(
        next(&regression, "`zbench compare a b` tells why"),
        "tokens_per_second: `zbench compare a b` tells why"
    );
    let few = with(|cell| {
        cell.rows[0].verdict = Verdict::NotMeasured;
        cell.rows[0].words = "there are 3 valid pairs, and at least 10 are needed".into();
    });
    let words = next(&few, "");
    assert!(words.contains("at least 10 are needed") && words.contains("`--time-budget 4min`"), "{words}");
    let mut machine = Machine::new(2, Noise::Normal, 0.005);
    machine.then = Box::new(|_, _, mut trial| {
        trial.flags.push("throttled".into());
        Some(trial)
    });
    let words = next(&report(vec![judged(&rules(), machine)], &[]), "");
    assert!(words.contains("most trials did not count"), "{words}");
    let stopped = Report { interrupted: true, ..regression };
    assert!(next(&stopped, "").contains("run the same command again"));
}

/// However many cells and metrics there are, the next step is on the first screen.
#[test]
fn the_next_step_is_on_the_first_screen() {
    for cells in [1, 2, 12] {
        let of = |place: usize| {
            let mut cell = judged(&rules(), Machine { factor: 1.08, ..Machine::new(3, Noise::Normal, 0.005) });
            cell.cell = format!("cell {place}");
            cell
        };
        let mut report = report((0..cells).map(of).collect(), &[Verdict::Regression]);
        report.next = next(&report, "compare them");
        let screen = cut(&document::document(&report), Room::SCREEN, "MORE");
        assert!(height(&screen, Room::SCREEN.width) <= Room::SCREEN.lines);
        let text = markdown::render(&screen);
        let place = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words} is not in\n{text}"));
        assert!(place("NEXT    tokens_per_second: compare them") > 0, "{cells} cells");
    }
}

/// The candidate's figure of turns is marked, and the words say what was done.
#[test]
fn figures_of_turns_are_called_paired() {
    let paired = with(|cell| {
        cell.rows[0].turns = Some(OfTurns { rounds: 90, generations: 4, slower: 41, discarded: 0 });
    });
    let text = markdown::render(&document::document(&paired));
    assert!(text.contains("tokens/s (paired)") && text.contains("times the ratio of neighbouring turns"), "{text}");
    assert!(how(&paired.cells, "programs").starts_with("tokens_per_second by turns of both programs"));
    let plain = with(|_| ());
    assert!(!markdown::render(&document::document(&plain)).contains("paired"));
    assert_eq!(how(&plain.cells, "programs"), "pairs of trials of both programs in one job, in random order");
}
