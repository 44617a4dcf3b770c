//! Error rates of the whole procedure at default settings, on machines that are made up.

use super::fake::{Machine, Noise, question, rules};
use zbench_reports::gate::procedure::judge;
use zbench_reports::gate::{Opponent, Verdict};

const RUNS: usize = 400;

/// Verdicts on tokens per second over many gates, each on a machine of its own.
fn verdicts(make: impl Fn(u64) -> Machine) -> (Vec<Verdict>, f64) {
    let rules = rules();
    let mut pairs = 0;
    let verdicts = (0..RUNS as u64)
        .map(|seed| {
            let mut machine = make(1000 + seed);
            let report = judge(&question(&rules, Opponent::Live, seed), &mut machine);
            assert!(machine.clock <= rules.time_budget, "it took {} s", machine.clock);
            pairs += report.rows[0].used;
            report.rows[0].verdict
        })
        .collect();
    (verdicts, pairs as f64 / RUNS as f64)
}

fn share(verdicts: &[Verdict], of: &[Verdict]) -> f64 {
    verdicts.iter().filter(|verdict| of.contains(verdict)).count() as f64 / verdicts.len() as f64
}

const ALARMS: [Verdict; 2] = [Verdict::Regression, Verdict::Improvement];

#[test]
#[ignore = "prints a table"]
fn table() {
    for (name, noise, width, memory, drift) in [
        ("normal 1 %", Noise::Normal, 0.01, 0.0, 0.0),
        ("normal 2 %", Noise::Normal, 0.02, 0.0, 0.0),
        ("normal 3 %", Noise::Normal, 0.03, 0.0, 0.0),
        ("tails 1 %", Noise::HeavyTails, 0.01, 0.0, 0.0),
        ("tails 2 %", Noise::HeavyTails, 0.02, 0.0, 0.0),
        ("skewed 2 %", Noise::Skewed, 0.02, 0.0, 0.0),
        ("wild 1 %", Noise::Wild, 0.01, 0.0, 0.0),
        ("memory 2 %", Noise::Normal, 0.02, 0.8, 0.0),
        ("drift 2 %", Noise::Normal, 0.02, 0.0, 0.005),
    ] {
        for factor in [1.0, 1.02, 1.025, 1.03, 1.05, 1.10] {
            let (v, pairs) = verdicts(|seed| Machine { memory, drift, factor, ..Machine::new(seed, noise, width) });
            println!(
                "{name:12} {factor:5} pass {:.3} regr {:.3} impr {:.3} inc {:.3} pairs {pairs:.1}",
                share(&v, &[Verdict::Pass]),
                share(&v, &[Verdict::Regression]),
                share(&v, &[Verdict::Improvement]),
                share(&v, &[Verdict::Inconclusive])
            );
        }
    }
    let _ = ALARMS;
}
