//! Which cell is faster, by the turns that cells took: numbers in, verdicts out.
//!
//! Cells take turns on one machine. [`Pair`] compares two cells by the differences within each round, [`Grid`] any number
//! of cells by their distance from neighbouring turns. Both can be asked after every round: the evidence consists of
//! e-values, which stay valid however often they are looked at. docs/statistics.md has the estimand, the assumptions, the
//! formulas and the error rates measured.
//!
//! All values on the logarithmic scale are differences y(B) - y(A) of y = ln(seconds per token): below 0 where B is faster.

mod claims;
mod effect;
mod frontier;
mod generations;
mod grid;
mod pair;
mod process;
mod robust;

use serde::{Deserialize, Serialize};

pub use claims::Claims;
pub use effect::{Effect, effect};
pub use frontier::frontier;
pub use grid::Grid;
pub use pair::Pair;

/// One turn of one cell: so many steps in a row while all other cells waited.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// The cell, counted from 0.
    pub cell: usize,
    /// Which processes ran: 0 for the first of each cell, 1 after all were started anew, and so on.
    pub generation: u32,
    /// The round, in which each active cell has one turn.
    pub round: u32,
    /// The place within the round, from 0, in the order of time.
    pub order: u32,
    /// Time of the turn per token. A value that is not above 0 and finite is not counted.
    pub seconds_per_token: f64,
    /// False where the turn is left out, for a reason that does not depend on its time: a foreign load on the cores.
    pub counted: bool,
}

/// What may be claimed, and how sure it has to be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    /// The least difference that may be claimed, as a logarithm of the ratio. A/A twins raise it ([`least_difference`]).
    pub least: f64,
    /// Cells that differ by less than this logarithm are called equal.
    pub equal: f64,
    /// The probability that a false difference is claimed, both directions together.
    pub alpha: f64,
    /// What is assumed of how two processes of the same program differ for their whole life: the standard deviation of the
    /// logarithm of their speed. It counts as much as [`Rules::PRIOR`] observed degrees of freedom.
    pub instance_sd: f64,
}

impl Rules {
    /// The weight of `instance_sd` against observed differences between generations, in degrees of freedom.
    pub const PRIOR: f64 = 3.0;

    /// The evidence (e-value) at which a difference is claimed: one divided by half of alpha.
    pub fn needed(&self) -> f64 {
        2.0 / self.alpha
    }

    /// The evidence needed against each of the two limits before two cells are called equal: one divided by alpha.
    pub fn needed_for_equality(&self) -> f64 {
        1.0 / self.alpha
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self { least: 0.01, equal: 0.05, alpha: 0.02, instance_sd: 0.01 }
    }
}

/// What is known of B against A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// B is faster by more than the least difference.
    Faster,
    /// B is slower by more than the least difference.
    Slower,
    /// The two differ by less than `Rules::equal`.
    Equal,
    /// The data do not say. Never to be read as equal.
    Undecided,
}

/// B against A.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The verdict of these two cells alone. Among many cells, [`Claims`] says what may be claimed together.
    pub verdict: Verdict,
    /// Speed of B divided by speed of A; none without a round.
    pub ratio: Option<f64>,
    /// Lower limit of the ratio; none while the rounds do not bound it. With the default alpha the limits hold at all
    /// times together with a probability of 98 %.
    pub low: Option<f64>,
    /// Upper limit of the ratio, present exactly when `low` is.
    pub high: Option<f64>,
    /// Rounds with a counted turn of both.
    pub rounds: usize,
    /// Generations of processes that these rounds are of.
    pub generations: usize,
    /// The least difference that could be claimed, as a logarithm: `Rules::least`, or more where twins differ.
    pub least: f64,
    /// Evidence (e-value) that B is faster by more than `least`, as far as the rounds say. At most 1e300.
    pub e_faster: f64,
    /// Evidence that B is slower by more than `least`.
    pub e_slower: f64,
    /// Evidence that the two differ by less than `Rules::equal`: the smaller of that against either limit.
    pub e_equal: f64,
    /// Limits of the ratio by the rounds alone, as if processes of one program did not differ.
    pub by_rounds: Option<(f64, f64)>,
    /// Limits of the ratio by how the generations of processes differ. The verdict needs both; `low` and `high` cover both.
    pub by_generations: Option<(f64, f64)>,
}

/// The least difference that may be claimed once the reference was compared with its twin, a second set of processes of the
/// same cell. If the interval of their ratio leaves out 1, what the twins differ by is an error of the method here, so that
/// the least difference rises to the far end of the interval. It never falls.
pub fn least_difference(rules: &Rules, twin: &Comparison) -> f64 {
    let excludes_one = twin.low.is_some_and(|low| low > 1.0) || twin.high.is_some_and(|high| high < 1.0);
    rules.least.max(stray(twin).filter(|_| excludes_one).unwrap_or(0.0))
}

/// How far the same cell may stray from itself by the comparison of the reference with its twin: the far end of their interval,
/// a logarithm. None while their rounds do not bound it.
pub fn stray(twin: &Comparison) -> Option<f64> {
    Some(twin.low?.ln().abs().max(twin.high?.ln().abs()))
}
