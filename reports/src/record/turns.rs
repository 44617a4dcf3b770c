//! The turns that the processes of a cell took with those of other cells.

use serde::{Deserialize, Deserializer, Serialize};

use super::Extra;
use super::others::OtherProgram;
use super::parts::{nan, null_is_nan};

/// The turns of one cell in one generation of processes, or why there are none. Records of schema 1 have none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Turns {
    /// Name of the experiment; cells of one experiment are compared.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub experiment: String,
    /// Which cells of the experiment were resident together; each batch has the reference.
    #[serde(default)]
    pub batch: u32,
    /// Seed of the order of turns.
    #[serde(default)]
    pub seed: u64,
    /// Which processes ran, 1 for the first of each cell.
    #[serde(default)]
    pub generation: u32,
    /// Whether this is a second set of processes of the reference, which shows how two runs of one program differ. It has no rank.
    #[serde(default)]
    pub twin: bool,
    /// The cell that all others are compared with.
    #[serde(default)]
    pub reference: bool,
    /// Why the experiment ended: `decided`, `budget`, `interrupted`, `alone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// The share of speed below which cells are called equal, where it was stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equal: Option<f64>,
    /// Budget of wall time of the experiment, including the start of processes, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<f64>,
    /// Wall time of the whole generation, from the start of its processes to their end, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Seconds of the generation in which other processes used the cores; they take nothing of the budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<f64>,
    /// Other programs that used most of the cores then, the busiest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub busy: Vec<OtherProgram>,
    /// The turns, in the order of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<TurnRow>,
    /// In place of rows: why the cell was measured by trials and not by turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnRow {
    /// The round, in which each active cell has one turn; counted over all generations of a batch.
    pub round: u32,
    /// The place within the round, in the order of time.
    #[serde(default)]
    pub order: u32,
    /// When it began, seconds since the generation did.
    #[serde(default = "nan", deserialize_with = "null_is_nan")]
    pub at: f64,
    /// Tokens of all its steps together.
    #[serde(default)]
    pub tokens: u64,
    /// Wall time of each step, of the slowest rank, milliseconds.
    #[serde(default, deserialize_with = "nulls_are_nan")]
    pub ms: Vec<f64>,
    /// The share of the cores that other programs used meanwhile.
    #[serde(default, deserialize_with = "null_is_nan")]
    pub others: f64,
    /// The share of the cores that the hypervisor gave to others.
    #[serde(default, deserialize_with = "null_is_nan")]
    pub stolen: f64,
    /// How fast the machine was in the round: the median over its turns of their speed against the median of their cell in this batch
    /// until then. It is an explanation and decides nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<f64>,
    /// False where the round is discarded: other processes used the cores, or the user interrupted it.
    #[serde(default = "yes")]
    pub counted: bool,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

impl Turns {
    /// Wall time of the generation: the stated one, or else until the end of the last turn.
    pub fn wall_seconds(&self) -> f64 {
        let ends = self.rows.iter().map(|row| row.at + row.seconds()).filter(|end| end.is_finite());
        self.seconds
            .filter(|seconds| seconds.is_finite() && *seconds >= 0.0)
            .unwrap_or_else(|| ends.fold(0.0, f64::max))
    }
}

fn nulls_are_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    let numbers = Vec::<Option<f64>>::deserialize(deserializer)?;
    Ok(numbers.into_iter().map(|number| number.unwrap_or(f64::NAN)).collect())
}

fn yes() -> bool {
    true
}

impl TurnRow {
    /// The time of all its steps, seconds.
    pub fn seconds(&self) -> f64 {
        self.ms.iter().sum::<f64>() / 1e3
    }

    /// The time of a token; not finite, or 0, where the turn says nothing.
    pub fn seconds_per_token(&self) -> f64 {
        self.seconds() / self.tokens as f64
    }
}
