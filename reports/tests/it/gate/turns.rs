//! Gates by turns: on a bench that is made up, and replayed from a pool.

use super::fake::{Machine, Noise, question, rule, trial};
use crate::it::evidence::machine::{self, STEP, USUAL, Weather};
use zbench_reports::gate::procedure::judge;
use zbench_reports::gate::ranks::binomial_limits;
use zbench_reports::gate::replay::{Measured, Rates, Replay, promises, replay};
use zbench_reports::gate::turns::{Round, Score, Turns, generations};
use zbench_reports::gate::{Bench, CellReport, Opponent, Rules, Side, Trial, Verdict};
use zbench_test_tiers as tiers;

/// Speed alone.
fn rules() -> Rules {
    Rules { metrics: vec![rule("tokens_per_second")], ..super::fake::rules() }
}

/// Seconds of a start of both sides.
const START: f64 = 1.0;

/// So many generations of a machine, each of as many seconds; the candidate takes `factor` times as long.
fn rounds(seed: u64, weather: Weather, count: u32, seconds: f64, factor: f64) -> Vec<Vec<Round>> {
    let mut machine = machine::Machine::new(seed, weather);
    let mut number = 0;
    let generation = |generation: u32| {
        let end = machine.seconds + seconds;
        machine.wait(START);
        let (base, now) = (machine.start(), machine.start() + factor.ln());
        let mut rounds: Vec<Round> = Vec::new();
        while machine.seconds < end {
            let baseline_first = machine.chance.coin();
            let first = machine.step(if baseline_first { base } else { now }).exp();
            let second = machine.step(if baseline_first { now } else { base }).exp();
            let (a, b) = if baseline_first { (first, second) } else { (second, first) };
            number += 1;
            rounds.push(Round {
                round: number,
                generation,
                counted: true,
                baseline_first,
                baseline_seconds_per_token: 1e-4 * a,
                candidate_seconds_per_token: 1e-4 * b,
                others: 0.0,
                seconds: 2.0 * STEP + if rounds.is_empty() { START } else { 0.0 },
                looked: number % 4 == 0,
            });
        }
        rounds
    };
    (1..=count).map(generation).collect()
}

fn pool(seed: u64, count: u32, factor: f64) -> Measured {
    let weather = Weather { instance: 0.005, ..USUAL };
    let generations = rounds(seed, weather, count, 6.0, factor);
    Measured::Turns { trials: Box::new([trial(10.0), trial(10.0)]), generations }
}

fn replayed(measured: &Measured, factor: f64, is_aa: bool, runs: usize) -> Rates {
    replay(&rules(), measured, &Replay { what: "it", factor, is_aa, runs, seed: 3 }).expect("a pool")
}

/// Written before the result: alarms at most 2 % and three standard errors of the gates; 5 % is found in 90 % and never passes.
#[test]
fn a_pool_of_turns_is_replayed_as_a_gate_decides() {
    let measured = pool(21, 80, 1.0);
    let gates = tiers::cases("replays of a pool", [60, 200, 200]) as usize;
    let is_most = |count: usize| count * 10 >= gates * 9;
    let same = replayed(&measured, 1.0, true, gates);
    assert_eq!(same.verdicts.iter().map(|rate| rate.count).sum::<usize>(), gates);
    assert!(same.alarms.share <= 0.02 + 3.0 * (0.02f64 * 0.98 / gates as f64).sqrt(), "{same:?}");
    assert!(is_most(same.count(Verdict::Pass)), "{same:?}");
    let slow = replayed(&measured, 1.05, true, gates);
    assert!(is_most(slow.count(Verdict::Regression)) && slow.count(Verdict::Pass) == 0, "{slow:?}");
    assert!(slow.most_seconds <= rules().time_budget);
    // What really is slower is found, and by how much.
    let slower = pool(22, 40, 1.06);
    let factor = slower.true_factor(&rules()).expect("a factor");
    assert!(factor.low.unwrap() <= 1.06 && factor.high.unwrap() >= 1.06, "{factor:?}");
    let found = replayed(&slower, 1.0, false, gates);
    assert!(is_most(found.count(Verdict::Regression)) && found.wrong_per_minute < 0.2, "{found:?}");
    // The same seed, the same replays.
    assert_eq!(replayed(&measured, 1.0, true, gates), same);
    assert!(promises(&rules(), &[same]).iter().any(|promise| promise.what.contains("alarms")));
}

/// A pool holds as many independent gates as its generations suffice for, and more replays do not narrow the limits.
#[test]
fn limits_are_those_of_the_gates_that_a_pool_holds() {
    let measured = pool(23, 40, 1.0);
    let (few, many) = (replayed(&measured, 1.0, true, 25), replayed(&measured, 1.0, true, 100));
    for rates in [&few, &many] {
        // A gate takes two generations at least.
        assert!(rates.independent <= 20.0 && rates.independent >= 40.0 / 30.0, "{}", rates.independent);
        let all = rates.independent.floor() as usize;
        let hits = (rates.alarms.share * all as f64).ceil() as usize;
        assert_eq!(rates.alarms.high, binomial_limits(hits, all, 0.95).1);
        assert!(rates.alarms.high > 0.1, "{} from 40 generations", rates.alarms.high);
    }
    let minutes = many.mean_seconds / 60.0;
    let decided =
        1.0 - many.verdicts.iter().filter(|rate| rate.what == "inconclusive").map(|rate| rate.share).sum::<f64>();
    assert!((many.decided_per_minute - decided / minutes).abs() < 1e-9);
    assert!((many.wrong_per_minute - many.alarms.share / minutes).abs() < 1e-9);
}

/// No generation comes twice in a gate: where a pool is too small to decide anything its end is the gate's.
#[test]
fn no_generation_is_taken_twice() {
    let measured = pool(24, 2, 1.0);
    let rates = replayed(&measured, 1.0, true, 20);
    assert_eq!((rates.wrapped, rates.mean_pairs), (20, measured.pairs() as f64), "{rates:?}");
    // The trials before: a first of each side, and two pairs.
    assert!((rates.mean_seconds - measured.seconds() - 3.0).abs() < 1e-9, "{rates:?}");
    assert_eq!((rates.independent, rates.decided_per_minute), (1.0, 0.0));
}

/// Rounds under foreign load take their time and say nothing.
#[test]
fn rounds_that_do_not_count_are_no_evidence() {
    let Measured::Turns { trials, mut generations } = pool(25, 40, 1.3) else { panic!("turns") };
    generations.iter_mut().flatten().for_each(|round| round.counted = false);
    let measured = Measured::Turns { trials, generations };
    assert_eq!(measured.left_out(), measured.pairs());
    let rates = replayed(&measured, 1.0, false, 5);
    assert_eq!(rates.count(Verdict::NotMeasured), 5);
    assert!(rates.mean_seconds > 0.9 * rules().time_budget, "{rates:?}");
}

/// A bench whose sides take turns.
struct Resident {
    trials: Machine,
    rounds: Vec<Vec<Round>>,
    asked: Option<f64>,
}

impl Bench for Resident {
    fn trial(&mut self, side: Side) -> Option<Trial> {
        self.trials.trial(side)
    }

    fn takes_turns(&self) -> bool {
        true
    }

    fn turns(&mut self, alpha: f64, seconds: f64, is_decided: &dyn Fn(&Score) -> bool) -> Result<Turns, String> {
        self.asked = Some(seconds);
        let mut score = Score::new(alpha);
        for round in self.rounds.iter().flatten() {
            self.trials.clock += round.seconds;
            score.push(round);
            if round.looked && is_decided(&score) {
                break;
            }
        }
        if score.comparison().rounds == 0 {
            return Err("no round fits".into());
        }
        Ok(score.turns(false))
    }

    fn seconds(&mut self) -> f64 {
        self.trials.seconds()
    }
}

fn by_turns(rules: &Rules, trials: Machine, factor: f64) -> (CellReport, Resident) {
    let weather = Weather { instance: 0.005, ..USUAL };
    let mut bench = Resident { trials, rounds: rounds(31, weather, 30, 6.0, factor), asked: None };
    (judge(&question(rules, Opponent::Live, 1), &mut bench), bench)
}

#[test]
fn both_figures_of_a_row_are_paired() {
    let (report, _) = by_turns(&super::fake::rules(), Machine::new(1, Noise::Normal, 0.005), 1.06);
    let row = &report.rows[0];
    assert_eq!((row.metric.as_str(), row.verdict), ("tokens_per_second", Verdict::Regression), "{row:?}");
    let (ratio, turns) = (row.ratio.expect("a ratio"), row.turns.expect("turns"));
    assert!(ratio.low.unwrap() <= 1.0 / 1.06 && 1.0 / 1.06 <= ratio.high.unwrap(), "{ratio:?}");
    assert!((row.candidate.unwrap() / row.baseline.unwrap() - ratio.mid).abs() < 1e-12);
    assert!(turns.rounds == row.used && turns.slower > turns.rounds / 2 && turns.generations >= 2, "{turns:?}");
    // Trials say the rest.
    assert!(report.rows[1..].iter().all(|row| row.verdict == Verdict::Pass && row.turns.is_none()));
}

/// Where trials, too, have something noisy to tell, they leave half of the time to the turns.
#[test]
fn trials_leave_time_for_turns() {
    let metrics = ["tokens_per_second", "step_ms_p50"].map(rule).to_vec();
    let rules = Rules { metrics, ..super::fake::rules() };
    // On the edge of the band and noisy: no number of pairs decides.
    let trials = Machine { factor: 1.025, ..Machine::new(2, Noise::Normal, 0.05) };
    let (report, bench) = by_turns(&rules, trials, 1.0);
    let left = bench.asked.expect("turns were taken");
    assert!((0.48..=0.52).contains(&(left / rules.time_budget)), "{left} s of {} s", rules.time_budget);
    assert_eq!(report.rows[0].verdict, Verdict::Pass, "{:?}", report.rows[0]);
    assert_eq!(report.rows[1].verdict, Verdict::Inconclusive);
    // Nothing noisy but the speed: the turns have all the time that two pairs of trials leave.
    let (_, bench) = by_turns(&super::fake::rules(), Machine::new(3, Noise::Normal, 0.005), 1.0);
    assert_eq!(bench.asked, Some(super::fake::rules().time_budget - 4.0 * 0.5));
}

/// Where no turns could be taken the row says why, and is no pass.
#[test]
fn turns_that_cannot_be_taken_are_not_measured() {
    let trials = Machine::new(4, Noise::Normal, 0.005);
    let mut bench = Resident { trials, rounds: Vec::new(), asked: None };
    let rules = super::fake::rules();
    let report = judge(&question(&rules, Opponent::Live, 1), &mut bench);
    let row = &report.rows[0];
    assert_eq!((row.verdict, row.words.as_str(), row.baseline), (Verdict::NotMeasured, "no round fits", None));
    assert!(report.rows[1..].iter().all(|row| row.verdict == Verdict::Pass));
}

#[test]
fn a_time_is_divided_into_generations() {
    assert_eq!([0.0, 10.0, 13.0, 60.0, 180.0].map(generations), [2, 2, 2, 10, 30]);
}
