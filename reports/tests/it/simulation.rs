//! Whether intervals cover, claims err and differences are found as often as docs/statistics.md says, by simulation.
//!
//! Every tolerance was written before its result: the nominal share, less one percent that the method may lack, less three
//! standard errors of the simulation itself.

use super::samples::{Dice, World, three_errors};
use zbench_reports::stats::{median, percentile, rate, ratio};
use zbench_test_tiers as tiers;

const WORLDS: [World; 2] = [World::Plain(0.02, 0.03), World::Heavy];
const STEPS: usize = 8;

fn average(steps: &[f64]) -> f64 {
    steps.iter().sum::<f64>() / steps.len() as f64
}

fn share(experiments: usize, mut experiment: impl FnMut() -> bool) -> f64 {
    (0..experiments).filter(|_| experiment()).count() as f64 / experiments as f64
}

/// How often the interval of B/A leaves out the truth where B is A, and where B takes a third longer.
#[test]
fn the_ratio_of_equals_is_seldom_called_different() {
    for world in WORLDS {
        for trials in tiers::some("simulation (trials of equals)", [3, 2, 5, 10, 20], [2, 3]) {
            let experiments = 600;
            let mut dice = Dice(trials as u64 * 1_000_000_007);
            let wrong = share(experiments, || {
                let (a, b) = (world.side(&mut dice, 100.0, trials, STEPS), world.side(&mut dice, 100.0, trials, STEPS));
                let found = ratio(&a, &b, average).unwrap().ratio;
                found.high < 1.0 || found.low > 1.0
            });
            println!("A/A {world:?} {trials} trials: {wrong}");
            assert!(wrong <= 0.06 + three_errors(0.05, experiments), "{world:?}, {trials} trials: {wrong}");
        }
    }
}

#[test]
fn the_ratio_interval_covers_a_true_ratio() {
    for (statistic, of_trial) in
        [("mean", average as fn(&[f64]) -> f64), ("p90", |steps| percentile(steps, 90.0).unwrap())]
    {
        for world in WORLDS {
            let sizes = [(3, 12), (2, 2), (3, 3), (5, 5), (10, 10), (20, 20)];
            for (of_a, of_b) in tiers::some("simulation (trials of a true ratio)", sizes, [1, 3]) {
                let experiments = 300;
                let mut dice = Dice(of_a as u64 * 7_000_000_007);
                let covered = share(experiments, || {
                    let (a, b) = (world.side(&mut dice, 100.0, of_a, STEPS), world.side(&mut dice, 133.0, of_b, STEPS));
                    let found = ratio(&a, &b, of_trial).unwrap().ratio;
                    found.low <= 1.33 && 1.33 <= found.high
                });
                println!("ratio {statistic} {world:?} {of_a} and {of_b} trials: {covered}");
                let least = 0.94 - three_errors(0.95, experiments);
                assert!(covered >= least, "{statistic}, {world:?}, {of_a} and {of_b} trials: {covered}");
            }
        }
    }
}

/// The truth is the median over trials of the rate of a trial, read from 20,001 trials.
#[test]
fn the_interval_of_one_cell_covers_the_median_trial() {
    for world in WORLDS {
        let mut dice = Dice(99);
        let stated: Vec<f64> = (0..20_001).map(|_| 1.0 / average(&world.trial(&mut dice, 100.0, STEPS))).collect();
        let truth = median(&stated).unwrap();
        for trials in [2, 3, 5, 10, 20] {
            let experiments = 250;
            let mut dice = Dice(trials as u64 * 3_000_000_019);
            let covered = share(experiments, || {
                let trials = world.side(&mut dice, 100.0, trials, STEPS);
                let steps = |times: &Vec<f64>| times.iter().map(|ms| (1.0, *ms)).collect();
                let interval = rate(&trials.iter().map(steps).collect::<Vec<_>>()).unwrap();
                interval.low <= truth && truth <= interval.high
            });
            println!("one cell {world:?} {trials} trials: {covered}");
            let least = 0.94 - three_errors(0.95, experiments);
            assert!(covered >= least, "{world:?}, {trials} trials: {covered}");
        }
    }
}

/// A step that takes 5 % longer is seen most of the time where trials spread little or are many.
#[test]
fn five_percent_are_found() {
    for (trials, spread, least) in [(3, 0.01, 0.8), (5, 0.02, 0.7), (10, 0.02, 0.8), (20, 0.02, 0.95)] {
        let world = World::Plain(spread, spread);
        let experiments = 250;
        let mut dice = Dice(trials as u64 * 5_000_000_029);
        let mut backwards = 0;
        let found = share(experiments, || {
            let (a, b) = (world.side(&mut dice, 100.0, trials, STEPS), world.side(&mut dice, 105.0, trials, STEPS));
            let found = ratio(&a, &b, average).unwrap().ratio;
            backwards += usize::from(found.high < 1.0);
            found.low > 1.0
        });
        println!("power {trials} trials, spread {spread}: {found}, backwards {backwards}");
        assert!(found >= least - three_errors(least, experiments), "{trials} trials: {found}");
        assert!(backwards == 0, "{trials} trials: called faster {backwards} times");
    }
}
