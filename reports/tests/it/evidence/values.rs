//! Values worked out by hand, and what must hold of any numbers.

use zbench_reports::evidence::{
    Claims, Comparison, Grid, Pair, Rules, Turn, Verdict, effect, frontier, least_difference,
};
use zbench_reports::gate::random::Random;

fn pair(rules: Rules, differences: &[f64]) -> Pair {
    let mut pair = Pair::new(rules);
    differences.iter().enumerate().for_each(|(place, difference)| pair.push(place as u32 / 8, *difference));
    pair
}

/// Differences around a value, by chance.
fn around(seed: u64, middle: f64, count: usize) -> Vec<f64> {
    let mut chance = Random::new(seed);
    (0..count).map(|_| middle + 0.04 * (chance.uniform() - 0.5)).collect()
}

/// The evidence of the first round: z = (d - least) / 0.08, and E = sum of w exp(l z) / cosh(l z), weights and lambdas of
/// docs/statistics.md.
#[test]
fn evidence_of_one_round_is_what_the_formula_says() {
    let rules = Rules { least: 0.0, ..Rules::default() };
    let z: f64 = 0.04 / 0.08;
    let e: f64 = [(0.15, 0.4), (0.35, 0.35), (0.8, 0.25)]
        .iter()
        .map(|(l, w): &(f64, f64)| w * (l * z).exp() / (l * z).cosh())
        .sum();
    let found = pair(rules, &[0.04]).comparison();
    assert!((found.e_slower - e).abs() < 1e-9, "{} for {e}", found.e_slower);
    assert_eq!((found.rounds, found.generations, found.verdict), (1, 1, Verdict::Undecided));
    assert!((found.ratio.unwrap() - (-0.04f64).exp()).abs() < 1e-12);
}

#[test]
fn to_exchange_the_sides_mirrors_everything() {
    for (seed, middle) in [(1, 0.05), (2, 0.0), (3, -0.12)] {
        let differences = around(seed, middle, 60);
        let there = pair(Rules::default(), &differences).comparison();
        let back = pair(Rules::default(), &differences.iter().map(|d| -d).collect::<Vec<f64>>()).comparison();
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(1.0);
        let mirrored = match back.verdict {
            Verdict::Faster => Verdict::Slower,
            Verdict::Slower => Verdict::Faster,
            other => other,
        };
        assert_eq!(there.verdict, mirrored);
        assert!(close(there.ratio.unwrap(), 1.0 / back.ratio.unwrap()));
        assert!(close(there.low.unwrap(), 1.0 / back.high.unwrap()));
        assert!(close(there.e_faster, back.e_slower));
    }
}

#[test]
fn a_clear_difference_is_claimed_and_its_interval_holds_it() {
    let found = pair(Rules::default(), &around(4, 0.08, 80)).comparison();
    assert_eq!(found.verdict, Verdict::Slower);
    let truth = (-0.08f64).exp();
    assert!(found.low.unwrap() < truth && truth < found.high.unwrap(), "{found:?}");
    let same = pair(Rules::default(), &around(5, 0.0, 160)).comparison();
    assert_eq!(same.verdict, Verdict::Equal, "{same:?}");
}

#[test]
fn no_numbers_break_it() {
    for differences in
        [&[][..], &[0.0], &[0.0; 40], &[1e300; 9], &[f64::NAN; 5], &[f64::INFINITY, 0.1, -0.2], &[-700.0, 700.0]]
    {
        let Comparison { ratio, low, high, e_faster, e_slower, .. } = pair(Rules::default(), differences).comparison();
        assert!(!e_faster.is_nan() && !e_slower.is_nan(), "{differences:?}");
        assert!([ratio, low, high].into_iter().flatten().all(|value| !value.is_nan()), "{differences:?}");
        assert_eq!(low.is_some(), high.is_some());
    }
    assert_eq!(Grid::new(0, Rules::default()).rounds(), 0);
}

/// m = 6 directed claims of three cells at 2 %: one claim needs 300, two need 150 each.
#[test]
fn claims_are_those_of_e_bh() {
    let with = |first: f64, second: f64| {
        Claims::new(3, 0.02, move |a, b| match (a, b) {
            (0, 1) => first.ln(),
            (0, 2) => second.ln(),
            _ => 0.0,
        })
    };
    let count = |claims: &Claims| (0..9).filter(|pair| claims.is_faster(pair / 3, pair % 3)).count();
    assert_eq!(count(&with(299.0, 1.0)), 0);
    let one = with(301.0, 149.0);
    assert!(one.is_faster(0, 1) && !one.is_faster(0, 2) && count(&one) == 1);
    let two = with(151.0, 151.0);
    let ranks: Vec<(usize, usize)> = (0..3).map(|cell| two.rank(cell, 0..3)).collect();
    assert_eq!((count(&two), ranks), (2, vec![(3, 3), (1, 2), (1, 2)]));
}

/// Two cells share a letter exactly when they are not shown to differ.
#[test]
fn letters_say_what_differs() {
    let mut chance = Random::new(9);
    for _ in 0..200 {
        let cells = 2 + chance.below(7);
        let values: Vec<f64> = (0..cells * cells).map(|_| if chance.below(3) == 0 { 40.0 } else { 0.0 }).collect();
        let claims = Claims::new(cells, 0.02, |a, b| if a < b { values[a * cells + b] } else { 0.0 });
        let mut order: Vec<usize> = (0..cells).collect();
        chance.shuffle(&mut order);
        let letters = claims.letters(&order);
        for a in 0..cells {
            for b in 0..a {
                let shares = letters[a].iter().any(|letter| letters[b].contains(letter));
                assert_eq!(shares, !claims.differ(a, b), "{a} and {b} of {cells}");
            }
        }
    }
    assert_eq!(Claims::label(&[0, 1, 25]), "abz");
}

#[test]
fn twins_raise_what_may_be_claimed() {
    let rules = Rules::default();
    assert_eq!(least_difference(&rules, &pair(rules, &around(6, 0.0, 100)).comparison()), rules.least);
    let apart = pair(rules, &around(7, 0.1, 100)).comparison();
    let far = apart.low.unwrap().ln().abs();
    assert!((least_difference(&rules, &apart) - far).abs() < 1e-12 && far > 0.1);
}

/// Twelve cells, one of them 10 % faster and one 10 % slower, on a machine whose speed falls by half on the way.
#[test]
fn a_grid_finds_the_fastest_while_the_machine_wanders() {
    let mut chance = Random::new(11);
    let mut grid = Grid::new(12, Rules::default());
    let slow = |cell: usize| match cell {
        0 => -0.10,
        11 => 0.10,
        _ => 0.0,
    };
    for round in 0..60u32 {
        let mut order: Vec<usize> = (0..12).collect();
        chance.shuffle(&mut order);
        let machine = 0.7 * f64::from(round) / 60.0;
        let turn = |(place, cell): (usize, &usize)| Turn {
            cell: *cell,
            generation: round / 20,
            round,
            order: place as u32,
            seconds_per_token: (machine + slow(*cell)).exp() * 1e-3,
            counted: true,
        };
        let turns: Vec<Turn> = order.iter().enumerate().map(turn).collect();
        let noisy: Vec<Turn> = turns
            .into_iter()
            .map(|turn| Turn {
                seconds_per_token: turn.seconds_per_token * (0.04 * (chance.uniform() - 0.5)).exp(),
                ..turn
            })
            .collect();
        grid.round(&noisy);
    }
    let claims = grid.claims();
    assert_eq!((claims.rank(0, 0..12), claims.rank(11, 0..12)), ((1, 1), (12, 12)));
    assert!((1..11).all(|a| (1..a).all(|b| !claims.differ(a, b))), "equal cells are not told apart");
    let ratio = grid.pair(11, 0).ratio.unwrap();
    assert!((ratio - 0.2f64.exp()).abs() < 0.02, "{ratio}");
    let effect = effect(&Rules::default(), &[grid.pair(1, 0), grid.pair(2, 0), grid.pair(3, 0)], 0.01).unwrap();
    assert!(effect.low < 0.1f64.exp() && 0.1f64.exp() < effect.high && effect.pairs == 3, "{effect:?}");
}

#[test]
fn the_frontier_leaves_out_what_is_slower_and_larger() {
    // Speed and cost: the third is slower and larger than the first, the second slower and smaller.
    let points: [(f64, f64); 4] = [(10.0, 5.0), (8.0, 3.0), (8.0, 6.0), (7.0, f64::NAN)];
    let verdict = |a: usize, b: usize| match points[b].0.total_cmp(&points[a].0) {
        std::cmp::Ordering::Greater => Verdict::Faster,
        std::cmp::Ordering::Less => Verdict::Slower,
        std::cmp::Ordering::Equal => Verdict::Undecided,
    };
    assert_eq!(frontier(&points, verdict), [0, 1]);
    assert_eq!(frontier(&points, |_, _| Verdict::Undecided), [0, 1, 2], "nothing is left out for lack of data");
}

/// Turns of cells of these speeds, in rounds whose order is a rotation, with a little noise.
fn turned(evidence: &mut Grid, speeds: &[f64], rounds: u32) {
    let mut chance = Random::new(9);
    for round in 0..rounds {
        let turn = |place: usize| {
            let cell = (place + round as usize) % speeds.len();
            let seconds_per_token = (1.0 + 0.02 * chance.uniform()) / speeds[cell];
            Turn { cell, generation: round / 10, round, order: place as u32, seconds_per_token, counted: true }
        };
        let turns: Vec<Turn> = (0..speeds.len()).map(turn).collect();
        evidence.round(&turns);
    }
}

#[test]
fn cells_race_against_those_of_their_group_alone() {
    // Cells 3 and 4 are slower than all others, and equal; they are a group of their own, as adapters are beside full fine-tunes.
    let (speeds, groups) = ([1.0, 1.005, 0.6, 0.2, 0.2], vec![0, 0, 0, 1, 1]);
    let rules = Rules { equal: 0.001, ..Rules::default() };
    let mut alone = Grid::new(5, rules);
    turned(&mut alone, &speeds, 40);
    assert_eq!(alone.racing(), [true, true, false, false, false]);
    assert_eq!(alone.pairs(), 10);
    let mut apart = Grid::of_groups(groups, rules);
    turned(&mut apart, &speeds, 40);
    assert_eq!(apart.racing(), [true, true, false, true, true]);
    assert_eq!(apart.pairs(), 4);
    assert_eq!(apart.open(), [(0, 1), (3, 4)], "a pair of two groups is not waited for");
    // Where all pairs of all groups are decided nobody races, whatever is open between groups.
    let mut decided = Grid::of_groups(vec![0, 0, 1], rules);
    turned(&mut decided, &[1.0, 0.5, 1.0], 40);
    assert_eq!((decided.open(), decided.racing()), (vec![], vec![false; 3]));
    assert_eq!(decided.undecided(), [(0, 2)]);
    // A single cell of a group is first of it, and needs no more turns than its pairs do.
    let mut single = Grid::of_groups(vec![0, 0, 1], rules);
    turned(&mut single, &[1.0, 1.0, 0.5], 40);
    assert_eq!(single.racing(), [true, true, false]);
}

/// Two cells that lead and are equal need no more turns: those whose pairs are open get them.
#[test]
fn once_the_leaders_are_equal_open_pairs_have_the_turns() {
    let rules = Rules { equal: 0.02, ..Rules::default() };
    let mut grid = Grid::new(4, rules);
    // The last two differ by more than the least difference and by less than what is called equal.
    turned(&mut grid, &[1.0, 1.0, 0.6, 0.6 * 0.985], 60);
    assert_eq!(grid.open(), [(2, 3)]);
    assert_eq!(grid.racing(), [false, false, true, true]);
}
