//! Error rates of the whole procedure at default settings, on machines that are made up.

use super::fake::{Machine, Noise, question, rules};
use zbench_reports::gate::procedure::judge;
use zbench_reports::gate::replay::{Measured, PoolPair, Replay, promises, replay};
use zbench_reports::gate::{Bench, Opponent, Side, Verdict};
use zbench_test_tiers as tiers;

const RUNS: u32 = 400;

/// Verdicts on tokens per second over many gates, each on a machine of its own.
fn verdicts(gates: u32, make: impl Fn(u64) -> Machine) -> (Vec<Verdict>, f64) {
    let rules = rules();
    let mut pairs = 0;
    let verdicts = (0..u64::from(gates))
        .map(|seed| {
            let mut machine = make(1000 + seed);
            let report = judge(&question(&rules, Opponent::Live, seed), &mut machine);
            assert!(machine.clock <= rules.time_budget, "it took {} s", machine.clock);
            pairs += report.rows[0].used;
            report.rows[0].verdict
        })
        .collect();
    (verdicts, pairs as f64 / f64::from(gates))
}

fn share(verdicts: &[Verdict], of: &[Verdict]) -> f64 {
    verdicts.iter().filter(|verdict| of.contains(verdict)).count() as f64 / verdicts.len() as f64
}

const ALARMS: [Verdict; 2] = [Verdict::Regression, Verdict::Improvement];

/// A machine for each seed.
type Machines = Box<dyn Fn(u64) -> Machine>;

/// Machines whose trials stray by 1 to 2 % in ways that differ: as wide as a small CI runner's.
fn machines() -> Vec<(&'static str, Machines)> {
    let of = |noise, width| move |seed| Machine::new(seed, noise, width);
    vec![
        ("normal", Box::new(of(Noise::Normal, 0.02))),
        ("heavy tails", Box::new(of(Noise::HeavyTails, 0.01))),
        ("skewed", Box::new(of(Noise::Skewed, 0.02))),
        ("wild", Box::new(of(Noise::Wild, 0.01))),
        ("remembers", Box::new(|seed| Machine { memory: 0.8, ..Machine::new(seed, Noise::Normal, 0.02) })),
        (
            "drifts by 30 % a minute",
            Box::new(|seed| Machine { drift: 0.005, ..Machine::new(seed, Noise::Normal, 0.02) }),
        ),
    ]
}

/// Of 400 gates at most 2 % alarm: by the binomial distribution, a true rate of 0.75 % exceeds that in one test of 500.
#[test]
fn the_same_program_raises_no_alarm() {
    for (name, make) in tiers::some("gate::simulation::the_same_program_raises_no_alarm", machines(), [2, 6]) {
        let (verdicts, _) = verdicts(RUNS, make);
        assert!(share(&verdicts, &ALARMS) <= 0.02, "{name}: {}", share(&verdicts, &ALARMS));
        assert!(share(&verdicts, &[Verdict::Pass]) >= 0.95, "{name}: {}", share(&verdicts, &[Verdict::Pass]));
    }
}

/// 5 % slower: caught in at least 95 %, and passed never.
#[test]
fn five_percent_is_caught_and_never_passed() {
    for (name, make) in tiers::some("gate::simulation::five_percent_is_caught_and_never_passed", machines(), [2, 6]) {
        let (verdicts, _) = verdicts(RUNS, |seed| Machine { factor: 1.05, ..make(seed) });
        assert!(
            share(&verdicts, &[Verdict::Regression]) >= 0.95,
            "{name}: {}",
            share(&verdicts, &[Verdict::Regression])
        );
        assert_eq!(share(&verdicts, &[Verdict::Pass, Verdict::Improvement]), 0.0, "{name}");
    }
}

/// At the edge of the band each wrong word has at most half of the error budget of 2 %: 1 %, and with three standard
/// errors of 400 gates 2.5 %.
#[test]
fn at_the_edge_of_the_band_both_errors_are_rare() {
    for (name, make) in
        tiers::some("gate::simulation::at_the_edge_of_the_band_both_errors_are_rare", machines(), [1, 2])
    {
        let (verdicts, _) = verdicts(RUNS, |seed| Machine { factor: 1.025, ..make(seed) });
        for verdict in [Verdict::Pass, Verdict::Regression] {
            assert!(share(&verdicts, &[verdict]) <= 0.025, "{name}: {verdict:?} {}", share(&verdicts, &[verdict]));
        }
    }
}

/// Noise that no two minutes get under: nothing is said, in either direction.
#[test]
fn a_machine_that_is_too_noisy_is_inconclusive() {
    for factor in tiers::some("gate::simulation::a_machine_that_is_too_noisy_is_inconclusive", [1.0, 1.05], [1, 2]) {
        let gates = tiers::cases("gates on a machine that is too noisy", [200, 200, RUNS]);
        let (verdicts, _) = verdicts(gates, |seed| Machine { factor, ..Machine::new(seed, Noise::Normal, 0.2) });
        assert!(share(&verdicts, &[Verdict::Inconclusive]) >= 0.98, "{factor}");
    }
}

/// A pool of made-up samples, replayed: as many alarms and misses as gates on fresh samples have, and the true factor is
/// found in the pool.
#[test]
fn replays_of_a_pool() {
    let mut machine = Machine::new(5, Noise::HeavyTails, 0.01);
    let mut slow = Machine { factor: 1.06, ..Machine::new(6, Noise::Normal, 0.01) };
    let pool = |machine: &mut Machine, arm: &str| {
        let mut trial = |side| machine.trial(side).expect("a trial");
        let pair = |_| PoolPair { arm: arm.into(), a_first: true, a: trial(Side::Baseline), b: trial(Side::Candidate) };
        Measured::Trials((0..400).map(pair).collect())
    };
    let (same, slow) = (pool(&mut machine, "aa"), pool(&mut slow, "slow"));
    let rules = rules();
    let of = |what, factor, pool: &Measured| {
        replay(&rules, pool, &Replay { what, factor, is_aa: true, runs: 200, seed: 1 }).expect("a pool")
    };
    let rates = [of("same", 1.0, &same), of("5 %", 1.05, &same)];
    assert_eq!(rates[0].verdicts.iter().map(|rate| rate.count).sum::<usize>(), 200);
    assert!(rates[0].alarms.count <= 4 && rates[0].count(Verdict::Pass) >= 190, "{:?}", rates[0]);
    assert!(rates[1].count(Verdict::Regression) >= 190 && rates[1].count(Verdict::Pass) == 0, "{:?}", rates[1]);
    assert!(rates[1].most_seconds <= rules.time_budget);
    // As many gates have nothing in common as 400 pairs suffice for.
    assert!((rates[0].independent - 400.0 / rates[0].mean_pairs).abs() < 1e-9, "{:?}", rates[0]);
    assert!(rates[0].alarms.high >= 1.0 - 0.025f64.powf(rates[0].independent.floor().recip()) - 1e-9);
    assert!(promises(&rules, &rates).iter().all(|promise| promise.kept));
    let factor = slow.true_factor(&rules).expect("a factor");
    assert!(
        factor.low.unwrap() <= 1.06 && factor.high.unwrap() >= 1.06 && (factor.mid - 1.06).abs() < 0.005,
        "{factor:?}"
    );
    let slower = replay(&rules, &slow, &Replay { what: "slower", factor: 1.0, is_aa: false, runs: 200, seed: 1 });
    assert!(slower.expect("a pool").count(Verdict::Regression) >= 190);
    // The same seed, the same replays.
    assert_eq!(of("same", 1.0, &same), rates[0]);
    let nothing = Measured::Trials(Vec::new());
    assert_eq!(replay(&rules, &nothing, &Replay { what: "", factor: 1.0, is_aa: true, runs: 1, seed: 1 }), None);
}
