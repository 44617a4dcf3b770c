//! How often an effect over matched pairs is stated where there is none, by simulation.

use super::machine::{Machine, USUAL, Weather};
use zbench_reports::evidence::{Comparison, Grid, Pair, Rules, Turn, effect, stray};
use zbench_test_tiers as tiers;

/// Pairs of cells that a factor sets apart.
const PAIRS: usize = 2;
const GENERATIONS: u32 = 2;

/// Which effects of a factor that changes the time by `change`, a logarithm, are stated: faster, slower.
fn stated(seed: u64, weather: Weather, rounds: u32, change: f64) -> (bool, bool) {
    let (cells, rules) = (2 * PAIRS, Rules::default());
    let mut machine = Machine::new(seed, weather);
    let (mut grid, mut twin) = (Grid::new(cells, rules), Pair::new(rules));
    for generation in 1..=GENERATIONS {
        // The second half of the cells have the factor; the last player is the twin of the first cell.
        let of_player = |player: usize| if (PAIRS..cells).contains(&player) { change } else { 0.0 };
        let own: Vec<f64> = (0..=cells).map(|player| machine.start() + of_player(player)).collect();
        for round in 0..rounds / GENERATIONS {
            let mut order: Vec<usize> = (0..=cells).collect();
            machine.chance.shuffle(&mut order);
            let round = generation * rounds + round;
            let turn = |(place, player): (usize, &usize)| {
                let (order, seconds_per_token) = (place as u32, machine.step(own[*player]).exp());
                Turn { cell: *player, generation, round, order, seconds_per_token, counted: true }
            };
            let mut turns: Vec<Turn> = order.iter().enumerate().map(turn).collect();
            let time =
                |cell: usize| turns.iter().find(|turn| turn.cell == cell).map(|turn| turn.seconds_per_token.ln());
            if let (Some(reference), Some(other)) = (time(0), time(cells)) {
                twin.push(generation, other - reference);
            }
            turns.retain(|turn| turn.cell < cells);
            grid.round(&turns);
        }
    }
    let pairs: Vec<Comparison> = (0..PAIRS).map(|cell| grid.pair(cell, PAIRS + cell)).collect();
    let found = stray(&twin.comparison()).and_then(|stray| effect(&rules, &pairs, stray));
    found.map_or((false, false), |effect| (effect.low > 1.0, effect.high < 1.0))
}

#[test]
fn an_effect_is_seldom_stated_where_there_is_none() {
    let grids = u64::from(tiers::cases("grids of a factor without effect", [100, 300, 1000]));
    // As of a machine whose cores others use: turns that vary by half, and few of them.
    let loaded = Weather { noise: 0.5, instance: 0.02, ..USUAL };
    for (name, weather, rounds) in [("loaded", loaded, 4), ("loaded", loaded, 24), ("usual", USUAL, 24)] {
        let wrong =
            (0..grids).filter(|seed| stated(11 + 1_000_003 * seed, weather, rounds, 0.0) != (false, false)).count();
        let share = wrong as f64 / grids as f64;
        println!("{name}, {rounds} rounds: {:.2} % of {grids} grids state an effect that there is not", 100.0 * share);
        assert!(share <= 0.02 + 3.0 * (0.02 * 0.98 / grids as f64).sqrt(), "{name}, {rounds} rounds: {share}");
    }
}

#[test]
fn an_effect_is_found_where_there_is_one() {
    let grids = u64::from(tiers::cases("grids of a factor with an effect", [30, 60, 200]));
    let found = (0..grids).filter(|seed| stated(7 + 1_000_003 * seed, USUAL, 40, 0.2) == (false, true)).count();
    println!("20 % slower by 40 rounds: found in {found} of {grids} grids");
    assert!(found as f64 >= 0.9 * grids as f64, "{found} of {grids}");
}
