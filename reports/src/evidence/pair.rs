//! Two cells.

use std::collections::BTreeMap;

use super::generations::{self, Part};
use super::process::{LARGEST, Method, Scored, above, lower_limit};
use super::robust::{deviation, hodges_lehmann};
use super::{Comparison, Rules, Verdict};

/// Two cells, A and B, compared by the difference within each round. May be asked after every round.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    rules: Rules,
    differences: Vec<f64>,
    rounds: Vec<Scored>,
    generations: Vec<u32>,
}

/// The scale of the first rounds, before there are enough to take it from.
const FIRST_SCALE: f64 = 0.08;
/// How many rounds have it.
const FIRST_ROUNDS: usize = 4;
/// The least scale: what clocks and equal values could make of it.
const LEAST_SCALE: f64 = 0.004;

impl Pair {
    /// Two cells without a round yet.
    pub fn new(rules: Rules) -> Self {
        Self { rules, differences: Vec::new(), rounds: Vec::new(), generations: Vec::new() }
    }

    /// Adds a round: y(B) - y(A), where y is the logarithm of the seconds per token of a turn. Rounds are to be added in the
    /// order of time, since the scale of each comes from those before it. A difference that is not finite is ignored.
    pub fn push(&mut self, generation: u32, difference: f64) {
        if !difference.is_finite() {
            return;
        }
        let difference = difference.clamp(-LARGEST, LARGEST);
        let scale = match self.differences.len() {
            0..FIRST_ROUNDS => FIRST_SCALE,
            _ => deviation(&self.differences).max(LEAST_SCALE),
        };
        self.differences.push(difference);
        self.rounds.push(Scored { difference, scale });
        self.generations.push(generation);
    }

    /// Changes the least difference that may be claimed, a logarithm: see [`super::least_difference`].
    pub fn set_least(&mut self, least: f64) {
        self.rules.least = least;
    }

    /// Rounds so far.
    pub fn rounds(&self) -> usize {
        self.rounds.len()
    }

    /// Whether the rounds show that the differences lie above a limit, with the evidence that a claim needs: the lower limit by
    /// rounds is then at least this. It takes less time than to find that limit.
    pub fn is_above(&self, limit: f64) -> bool {
        above(Method::Signs, &self.rounds, limit) >= self.rules.needed().ln()
    }

    /// The same below a limit.
    pub fn is_below(&self, limit: f64) -> bool {
        above(Method::Signs, &mirrored(&self.rounds), -limit) >= self.rules.needed().ln()
    }

    /// B against A, as far as the rounds so far say.
    pub fn comparison(&self) -> Comparison {
        self.evidence().comparison()
    }

    /// The verdict alone, which takes less time than all of [`Pair::comparison`].
    pub fn verdict(&self) -> Verdict {
        self.evidence().verdict()
    }

    fn evidence(&self) -> Evidence<'_> {
        Evidence { rules: &self.rules, method: Method::Signs, rounds: &self.rounds, generations: &self.generations }
    }
}

/// The rounds with A and B exchanged.
fn mirrored(rounds: &[Scored]) -> Vec<Scored> {
    rounds.iter().map(|round| Scored { difference: -round.difference, ..*round }).collect()
}

/// The data of one pair of cells, of a [`Pair`] or of two cells of a [`super::Grid`].
pub struct Evidence<'a> {
    pub rules: &'a Rules,
    pub method: Method,
    pub rounds: &'a [Scored],
    /// The generation of each round.
    pub generations: &'a [u32],
}

/// Logarithms of the evidence of a pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    pub faster: f64,
    pub slower: f64,
    pub equal: f64,
}

impl Evidence<'_> {
    /// The evidence of the rounds.
    pub fn weights(&self) -> Weights {
        let mirrored = mirrored(self.rounds);
        let Rules { least, equal, .. } = *self.rules;
        let not_slower = above(self.method, &mirrored, -equal);
        Weights {
            faster: above(self.method, &mirrored, least),
            slower: above(self.method, self.rounds, least),
            equal: above(self.method, self.rounds, -equal).min(not_slower),
        }
    }

    /// The differences of each generation.
    fn by_generation(&self) -> BTreeMap<u32, Vec<f64>> {
        let mut differences: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for (generation, round) in self.generations.iter().zip(self.rounds) {
            differences.entry(*generation).or_default().push(round.difference);
        }
        differences
    }

    /// The mean over generations, and the half width of its interval.
    fn between(&self) -> Option<(f64, f64)> {
        let part =
            |differences: &Vec<f64>| Part { estimate: hodges_lehmann(differences), weight: differences.len() as f64 };
        let parts: Vec<Part> = self.by_generation().values().map(part).collect();
        generations::interval(self.rules, &parts, self.rules.instance_sd * std::f64::consts::SQRT_2)
    }

    fn judge(&self, weights: &Weights, between: Option<(f64, f64)>) -> Verdict {
        let Some((mean, half)) = between else {
            return Verdict::Undecided;
        };
        let needed = self.rules.needed().ln();
        let Rules { least, equal, .. } = *self.rules;
        if weights.faster >= needed && mean + half < -least {
            Verdict::Faster
        } else if weights.slower >= needed && mean - half > least {
            Verdict::Slower
        } else if weights.equal >= self.rules.needed_for_equality().ln() && mean.abs() + half < equal {
            Verdict::Equal
        } else {
            Verdict::Undecided
        }
    }

    /// The verdict, by rounds and generations together.
    pub fn verdict(&self) -> Verdict {
        let weights = self.weights();
        let needed = self.rules.needed_for_equality().ln();
        if weights.faster.max(weights.slower).max(weights.equal) < needed {
            return Verdict::Undecided;
        }
        self.judge(&weights, self.between())
    }

    /// Logarithms of the evidence that B is faster and that it is slower, minus infinity where the generations do not agree: a
    /// smaller e-value is an e-value, too.
    pub fn claimable(&self) -> (f64, f64) {
        let Weights { faster, slower, .. } = self.weights();
        let least = self.rules.least;
        match self.between() {
            Some((mean, half)) if mean + half < -least => (faster, f64::NEG_INFINITY),
            Some((mean, half)) if mean - half > least => (f64::NEG_INFINITY, slower),
            _ => (f64::NEG_INFINITY, f64::NEG_INFINITY),
        }
    }

    /// The whole comparison.
    pub fn comparison(&self) -> Comparison {
        let weights = self.weights();
        let between = self.between();
        let differences: Vec<f64> = self.rounds.iter().map(|round| round.difference).collect();
        let middle = (!differences.is_empty()).then(|| hodges_lehmann(&differences));
        let needed = self.rules.needed().ln();
        let low = lower_limit(self.method, self.rounds, needed);
        let high = lower_limit(self.method, &mirrored(self.rounds), needed).map(|limit| -limit);
        let rounds = low.zip(high);
        let processes = between.map(|(mean, half)| (mean - half, mean + half));
        // A longer time is a lower speed: the limits change places.
        let ratios = |(low, high): (f64, f64)| ((-high).exp(), (-low).exp());
        let both = rounds
            .zip(processes)
            .zip(middle)
            .map(|((one, other), middle)| ratios((one.0.min(other.0).min(middle), one.1.max(other.1).max(middle))));
        let evidence = |logarithm: f64| logarithm.exp().min(1e300);
        Comparison {
            verdict: self.judge(&weights, between),
            ratio: middle.map(|middle| (-middle).exp()),
            low: both.map(|limits| limits.0),
            high: both.map(|limits| limits.1),
            rounds: self.rounds.len(),
            generations: self.by_generation().len(),
            least: self.rules.least,
            e_faster: evidence(weights.faster),
            e_slower: evidence(weights.slower),
            e_equal: evidence(weights.equal),
            by_rounds: rounds.map(ratios),
            by_generations: processes.map(ratios),
        }
    }
}
