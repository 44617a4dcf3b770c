//! How often the procedure errs and how soon it decides, as docs/statistics.md says, by simulation.

use super::machine::{Machine, STEP, USUAL, Weather};
use zbench_reports::evidence::{Pair, Rules, Verdict};
use zbench_test_tiers as tiers;

/// What a start of processes takes, in seconds for each cell.
const START: f64 = 0.5;

/// One comparison of two cells, B slower than A by `difference`, asked after every eighth round.
#[derive(Debug, Clone, Copy, Default)]
struct MeasurementSummary {
    /// Seconds after which "slower", "faster" and "equal" were first said.
    slower: Option<f64>,
    faster: Option<f64>,
    equal: Option<f64>,
}

fn compare(
    seed: u64,
    weather: Weather,
    difference: f64,
    budget: f64,
    generations: u32,
    rules: Rules,
) -> MeasurementSummary {
    let mut machine = Machine::new(seed, weather);
    let mut pair = Pair::new(rules);
    let mut course = MeasurementSummary::default();
    for generation in 0..generations {
        machine.wait(2.0 * START);
        let (a, b) = (machine.start(), machine.start() + difference);
        let end = budget * f64::from(generation + 1) / f64::from(generations);
        while machine.seconds + 2.0 * STEP <= end {
            let b_first = machine.chance.coin();
            let first = machine.step(if b_first { b } else { a });
            let second = machine.step(if b_first { a } else { b });
            pair.push(generation, if b_first { first - second } else { second - first });
            if pair.rounds().is_multiple_of(8) {
                let said = match pair.verdict() {
                    Verdict::Slower => &mut course.slower,
                    Verdict::Faster => &mut course.faster,
                    Verdict::Equal => &mut course.equal,
                    Verdict::Undecided => continue,
                };
                said.get_or_insert(machine.seconds);
            }
        }
    }
    course
}

/// How often, in percent, B is called slower, faster and equal.
fn rates(runs: usize, weather: Weather, difference: f64, generations: u32) -> (f64, f64, f64) {
    let courses: Vec<MeasurementSummary> = (0..runs as u64)
        .map(|seed| compare(7 + 1_000_003 * seed, weather, difference, 60.0, generations, Rules::default()))
        .collect();
    let share = |of: fn(&MeasurementSummary) -> Option<f64>| {
        courses.iter().filter(|course| of(course).is_some()).count() as f64 / runs as f64 * 100.0
    };
    let (slower, faster, equal) =
        (share(|course| course.slower), share(|course| course.faster), share(|course| course.equal));
    let mut seconds: Vec<f64> = courses.iter().filter_map(|course| course.slower).collect();
    seconds.sort_by(f64::total_cmp);
    // Shown where the test's output is: docs/statistics.md has these figures.
    println!(
        "{runs} pairs, B {difference} slower, processes differ by {}, {generations} generations: {slower:.2} % slower, \
         {faster:.2} % faster, {equal:.2} % equal; slower after {:.0} s (median of those)",
        weather.instance,
        seconds.get(seconds.len() / 2).unwrap_or(&f64::NAN)
    );
    (slower, faster, equal)
}

/// Three standard errors of a share of 2 %, in percent.
fn margin(runs: usize) -> f64 {
    3.0 * (0.02 * 0.98 / runs as f64).sqrt() * 100.0
}

/// At most 2 % of pairs of the same program are told apart, whatever their processes differ by (up to the 1 % that the rules
/// assume) and in how many generations.
#[test]
fn the_same_program_is_seldom_told_apart_from_itself() {
    let runs = tiers::cases("pairs of the same program", [50, 100, 800]) as usize;
    let all = [(0.005, 3), (0.0, 2), (0.01, 3), (0.01, 6)];
    for (instance, generations) in tiers::some("kinds of processes of one program", all, [1, 2]) {
        let (slower, faster, _) = rates(runs, Weather { instance, ..USUAL }, 0.0, generations);
        let either = slower + faster;
        assert!(
            either <= 2.0 + margin(runs),
            "instances of {instance}, {generations} generations: {either} % of {runs}"
        );
    }
}

/// 5 % is found within a minute in nine of ten comparisons where processes differ by up to half a percent, and never the wrong way
/// round more often than chance allows.
#[test]
fn five_percent_are_found_within_a_minute() {
    let runs = tiers::cases("pairs that differ by 5 %", [50, 100, 1000]) as usize;
    for generations in tiers::some("generations of processes 5 % apart", [3, 6], [1, 2]) {
        let (slower, faster, equal) = rates(runs, Weather { instance: 0.005, ..USUAL }, 0.05, generations);
        assert!(slower >= 90.0, "{generations} generations: found in {slower} %");
        assert!(faster <= margin(runs) && equal <= 2.0 + margin(runs), "{faster} % faster, {equal} % equal");
    }
}
