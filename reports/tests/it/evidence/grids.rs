//! How often a grid makes false claims, as docs/statistics.md says, by simulation: half of its evidence is approximate
//! (the sizes of differences, clipped), so that no theorem bounds this.

use super::machine::{Machine, USUAL, Weather};
use zbench_reports::evidence::{Claims, Grid, Pair, Rules, Turn, least_difference};
use zbench_test_tiers as tiers;

/// Seconds that a start of processes takes for each cell, two at a time.
const START: f64 = 0.25;
/// Seconds of a grid, and generations of its processes, as of the quickstart.
const BUDGET: f64 = 120.0;
const GENERATIONS: u32 = 3;
/// Cells leave after every so many rounds.
const RACING: u32 = 4;

/// What a grid claims at its end. `slow` has a logarithm for each cell; the last player is a twin of the first cell. From half of
/// the budget on those that are shown to be slower than another take no more turns.
fn claims_of(seed: u64, weather: Weather, slow: &[f64]) -> Claims {
    let cells = slow.len();
    let mut machine = Machine::new(seed, weather);
    let (mut grid, mut twin) = (Grid::new(cells, Rules::default()), Pair::new(Rules::default()));
    let mut active = vec![true; cells + 1];
    let mut round = 0;
    for generation in 1..=GENERATIONS {
        let playing = active.iter().filter(|active| **active).count();
        machine.wait(START * playing as f64);
        let own: Vec<f64> = (0..=cells).map(|player| machine.start() + slow.get(player).unwrap_or(&slow[0])).collect();
        let end = BUDGET * f64::from(generation) / f64::from(GENERATIONS);
        while machine.seconds < end {
            let mut order: Vec<usize> = (0..=cells).filter(|player| active[*player]).collect();
            machine.chance.shuffle(&mut order);
            round += 1;
            let mut turns = Vec::with_capacity(order.len());
            for (place, player) in order.iter().enumerate() {
                let seconds_per_token = machine.step(own[*player]).exp();
                let order = place as u32;
                turns.push(Turn { cell: *player, generation, round, order, seconds_per_token, counted: true });
            }
            let time =
                |cell: usize| turns.iter().find(|turn| turn.cell == cell).map(|turn| turn.seconds_per_token.ln());
            if let (Some(reference), Some(other)) = (time(0), time(cells)) {
                twin.push(generation, other - reference);
            }
            turns.retain(|turn| turn.cell < cells);
            grid.round(&turns);
            // A grid on the machine looks after each round; fewer looks take less time here.
            if machine.seconds >= BUDGET / 2.0 && round % RACING == 0 {
                grid.set_least(least_difference(&Rules::default(), &twin.comparison()));
                let racing = grid.racing();
                if !racing.contains(&true) {
                    return grid.claims();
                }
                // The reference and its twin take part to the end.
                active = (0..=cells).map(|player| player == 0 || player == cells || racing[player]).collect();
            }
        }
    }
    grid.claims()
}

/// The mean share of false claims among the claims of a grid, and the mean number of claims. Where all cells are equal the first
/// is the share of grids with any claim.
fn false_share(grids: u64, weather: Weather, slow: &[f64]) -> (f64, f64) {
    let (mut share, mut count) = (0.0, 0);
    for seed in 0..grids {
        let claims = claims_of(11 + 1_000_003 * seed, weather, slow);
        let pairs = (0..slow.len()).flat_map(|a| (0..slow.len()).map(move |b| (a, b)));
        let made: Vec<(usize, usize)> = pairs.filter(|(a, b)| a != b && claims.is_faster(*a, *b)).collect();
        let wrong = made.iter().filter(|(a, b)| slow[*b] >= slow[*a]).count();
        share += wrong as f64 / made.len().max(1) as f64;
        count += made.len();
    }
    (share / grids as f64, count as f64 / grids as f64)
}

/// Machines that differ in what the approximation depends on: the tails of a step, and how far processes differ.
fn weathers() -> Vec<(&'static str, Weather)> {
    vec![
        ("heavy tails, processes alike", USUAL),
        ("heavy tails, processes differ by 1 %", Weather { instance: 0.01, ..USUAL }),
        ("light tails, processes alike", Weather { tails: false, ..USUAL }),
        ("light tails, processes differ by 1 %", Weather { tails: false, instance: 0.01, ..USUAL }),
    ]
}

/// At most 2 % and three standard errors of as many grids: a share with mean p varies by at most p (1 - p).
fn most(grids: u64) -> f64 {
    0.02 + 3.0 * (0.02 * 0.98 / grids as f64).sqrt()
}

/// Checks each machine, and says what was found where the test's output is shown.
fn check(what: &str, grids: u64, slow: &[f64]) {
    if grids == 0 {
        return;
    }
    for (name, weather) in weathers() {
        let (share, claims) = false_share(grids, weather, slow);
        println!("{what}, {name}: {:.2} % of {grids} grids, {claims:.1} claims in the mean", 100.0 * share);
        assert!(share <= most(grids), "{what}, {name}: {share} of {grids} grids");
    }
}

#[test]
fn twelve_equal_cells_are_seldom_told_apart() {
    let grids = u64::from(tiers::cases("grids of 12 equal cells", [2, 8, 200]));
    check("12 equal cells", grids, &[0.0; 12]);
}

#[test]
fn thirty_one_equal_cells_are_seldom_told_apart() {
    let grids = u64::from(tiers::cases("grids of 31 equal cells", [0, 2, 100]));
    check("31 equal cells", grids, &[0.0; 31]);
}

/// Four levels, 6 % apart, of three cells each; and of 31 cells as many as go on each.
#[test]
fn few_claims_of_a_mixed_grid_are_false() {
    let level = |cell: usize| 0.06 * (cell % 4) as f64;
    let grids = u64::from(tiers::cases("grids of 12 cells on four levels", [1, 2, 100]));
    check("12 cells on four levels", grids, &std::array::from_fn::<f64, 12, _>(level));
    let grids = u64::from(tiers::cases("grids of 31 cells on four levels", [0, 1, 40]));
    check("31 cells on four levels", grids, &std::array::from_fn::<f64, 31, _>(level));
}
