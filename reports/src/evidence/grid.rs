//! Any number of cells that take turns.

use super::claims::Claims;
use super::pair::{Evidence, Weights};
use super::process::{LARGEST, Method, Scored};
use super::robust::{deviation, median};
use super::{Comparison, Rules, Turn, Verdict};

/// Cells that take turns. May be asked after every round.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    rules: Rules,
    /// Of each cell: cells of one group race against each other.
    groups: Vec<usize>,
    rounds: Vec<Round>,
    /// Of each cell: its value in each round so far that it had a counted turn in.
    history: Vec<Vec<f64>>,
    /// The median of each history: how slow the cell is against the others; none before its first turn.
    level: Vec<Option<f64>>,
    /// The last turns of the round before, less the level of their cells, and the generation they are of.
    before: Vec<f64>,
    generation: u32,
    scale: f64,
}

/// A complete round.
#[derive(Debug, Clone, PartialEq)]
struct Round {
    generation: u32,
    /// The value of each cell with a counted turn.
    values: Vec<Option<f64>>,
    /// What counts as one unit of a difference between two values.
    scale: f64,
}

/// How many turns before and after a turn are its neighbours.
const NEIGHBOURS: usize = 3;
/// Scale of differences before there are enough rounds to take it from.
const FIRST_SCALE: f64 = 0.12;
/// The least scale.
const LEAST_SCALE: f64 = 0.02;
/// Rounds from which the scale is taken.
const ENOUGH: usize = 3;

impl Grid {
    /// Cells of one group, without a turn yet.
    pub fn new(cells: usize, rules: Rules) -> Self {
        Self::of_groups(vec![0; cells], rules)
    }

    /// Cells without a turn yet, each with its group. All cells are compared; those of one group race against each other.
    pub fn of_groups(groups: Vec<usize>, rules: Rules) -> Self {
        let cells = groups.len();
        Self {
            rules,
            groups,
            rounds: Vec::new(),
            history: vec![Vec::new(); cells],
            level: vec![None; cells],
            before: Vec::new(),
            generation: 0,
            scale: FIRST_SCALE,
        }
    }

    /// Changes the least difference that may be claimed, a logarithm: see [`super::least_difference`].
    pub fn set_least(&mut self, least: f64) {
        self.rules.least = least;
    }

    /// How many cells there are.
    pub fn cells(&self) -> usize {
        self.history.len()
    }

    /// Rounds so far that counted.
    pub fn rounds(&self) -> usize {
        self.rounds.len()
    }

    /// Adds a complete round: a turn of each active cell. Turns may come in any order, they are sorted by `order`; rounds are
    /// to be added in the order of time. Turns that are not counted, whose time is not above 0 and finite, or of cells that
    /// the grid does not have are left out.
    pub fn round(&mut self, turns: &[Turn]) {
        let mut turns: Vec<&Turn> = turns
            .iter()
            .filter(|turn| turn.counted && turn.seconds_per_token.is_finite() && turn.seconds_per_token > 0.0)
            .filter(|turn| turn.cell < self.cells())
            .collect();
        turns.sort_by_key(|turn| turn.order);
        let Some(first) = turns.first() else { return };
        if first.generation != self.generation {
            // Processes were started in between: the turns before are no neighbours in time.
            self.generation = first.generation;
            self.before.clear();
        }
        let times: Vec<f64> = turns.iter().map(|turn| turn.seconds_per_token.ln()).collect();
        let values = self.values(&turns, &times);
        let residual = |(turn, value): (&&Turn, &f64)| Some(value - self.level[turn.cell]?);
        let residuals: Vec<f64> = turns.iter().zip(&values).filter_map(residual).collect();
        let mut scale = self.scale;
        if self.rounds.len() >= ENOUGH {
            scale = scale.max(deviation(&residuals) * std::f64::consts::SQRT_2);
        }
        let mut of_cells = vec![None; self.cells()];
        for (turn, &value) in turns.iter().zip(&values) {
            of_cells[turn.cell] = Some(value);
            self.history[turn.cell].push(value);
        }
        self.rounds.push(Round { generation: first.generation, values: of_cells, scale });
        for turn in &turns {
            self.level[turn.cell] = Some(median(&mut self.history[turn.cell].clone()));
        }
        self.rescale();
        let rest: Vec<f64> =
            turns.iter().zip(&times).map(|(turn, time)| time - self.level[turn.cell].unwrap_or(0.0)).collect();
        self.before.extend(rest);
        let surplus = self.before.len().saturating_sub(NEIGHBOURS);
        self.before.drain(..surplus);
    }

    /// Of each turn: its time less the machine's speed then, as its neighbours in time show it.
    fn values(&self, turns: &[&Turn], times: &[f64]) -> Vec<f64> {
        // Without a level (a cell's first turn) it is taken to be of the median speed.
        let middle = median(&mut times.to_vec());
        if turns.iter().all(|turn| self.level[turn.cell].is_none()) {
            return times.iter().map(|time| time - middle).collect();
        }
        let mut all = self.before.clone();
        all.extend(turns.iter().zip(times).map(|(turn, time)| time - self.level[turn.cell].unwrap_or(0.0)));
        let before = self.before.len();
        let value = |place: usize| {
            let at = before + place;
            let from = at.saturating_sub(NEIGHBOURS);
            let to = (at + 1 + NEIGHBOURS).min(all.len());
            let mut neighbours: Vec<f64> = all[from..at].iter().chain(&all[at + 1..to]).copied().collect();
            if neighbours.is_empty() { times[place] - middle } else { times[place] - median(&mut neighbours) }
        };
        (0..turns.len()).map(value).collect()
    }

    /// Takes the scale from all cells' distances from their own level.
    fn rescale(&mut self) {
        if self.rounds.len() < ENOUGH {
            return;
        }
        let mut distances: Vec<f64> = Vec::new();
        for (history, level) in self.history.iter().zip(&self.level) {
            let level = level.unwrap_or(0.0);
            distances.extend(history.iter().skip(1).map(|value| (value - level).abs()));
        }
        let rounds = self.rounds.len() as f64;
        let lost = (rounds / (rounds - 1.0)).sqrt();
        self.scale = LEAST_SCALE.max(1.4826 * median(&mut distances) * std::f64::consts::SQRT_2 * lost);
    }

    fn data(&self, a: usize, b: usize) -> (Vec<Scored>, Vec<u32>) {
        // The first round gives the levels, and no evidence.
        let rounds = self.rounds.iter().skip(1).filter_map(|round| {
            let difference = (round.values[b]? - round.values[a]?).clamp(-LARGEST, LARGEST);
            Some((Scored { difference, scale: round.scale }, round.generation))
        });
        rounds.unzip()
    }

    fn with<T>(&self, a: usize, b: usize, answer: impl FnOnce(&Evidence) -> T) -> T {
        let (rounds, generations) = self.data(a, b);
        answer(&Evidence { rules: &self.rules, method: Method::Grid, rounds: &rounds, generations: &generations })
    }

    /// Cell b against cell a, by these two alone.
    pub fn pair(&self, a: usize, b: usize) -> Comparison {
        self.with(a, b, |evidence| evidence.comparison())
    }

    /// What may be claimed of all cells together.
    pub fn claims(&self) -> Claims {
        let cells = self.cells();
        let mut evidence = vec![f64::NEG_INFINITY; cells * cells];
        for a in 0..cells {
            for b in a + 1..cells {
                let (faster, slower) = self.with(a, b, |data| data.claimable());
                evidence[a * cells + b] = faster;
                evidence[b * cells + a] = slower;
            }
        }
        Claims::new(cells, self.rules.alpha, |a, b| evidence[a * cells + b])
    }

    /// Which cells are worth another turn: of each group those not shown to be slower than another of it. Once it is decided how these
    /// compare with each other, the cells of the group's open pairs. None where no pair is open.
    pub fn racing(&self) -> Vec<bool> {
        let open = self.open();
        if open.is_empty() {
            return vec![false; self.cells()];
        }
        let claims = self.claims();
        let ahead = |cell: usize| {
            let beats = |other: usize| self.groups[other] == self.groups[cell] && claims.is_faster(cell, other);
            !(0..self.cells()).any(beats)
        };
        let first: Vec<bool> = (0..self.cells()).map(ahead).collect();
        // No pair of those that lead is open: one is the fastest, or they are equal.
        let is_won = |group: usize| !open.iter().any(|&(a, b)| self.groups[a] == group && first[a] && first[b]);
        let races = |cell: usize| match is_won(self.groups[cell]) {
            true => open.iter().any(|&(a, b)| a == cell || b == cell),
            false => first[cell],
        };
        (0..self.cells()).map(races).collect()
    }

    /// How many pairs there are within groups.
    pub fn pairs(&self) -> usize {
        let of = |a: usize| self.groups[a + 1..].iter().filter(|&&group| group == self.groups[a]).count();
        (0..self.cells()).map(of).sum()
    }

    /// The pairs within groups whose own verdict is still open.
    pub fn open(&self) -> Vec<(usize, usize)> {
        let mut open = self.undecided();
        open.retain(|&(a, b)| self.groups[a] == self.groups[b]);
        open
    }

    /// The pairs (a < b) whose own verdict is still open, those nearest to a verdict first.
    pub fn undecided(&self) -> Vec<(usize, usize)> {
        let needed = self.rules.needed().ln();
        let for_equality = self.rules.needed_for_equality().ln();
        let mut open = Vec::new();
        for a in 0..self.cells() {
            for b in a + 1..self.cells() {
                let (verdict, weights) = self.with(a, b, |evidence| (evidence.verdict(), evidence.weights()));
                if verdict == Verdict::Undecided {
                    let Weights { faster, slower, equal } = weights;
                    open.push((faster.max(slower) / needed, equal / for_equality, a, b));
                }
            }
        }
        let nearness = |pair: &(f64, f64, usize, usize)| pair.0.max(pair.1);
        open.sort_by(|one, other| nearness(other).total_cmp(&nearness(one)));
        open.into_iter().map(|(_, _, a, b)| (a, b)).collect()
    }
}
