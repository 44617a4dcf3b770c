//! The report of a gate as data: a row for each metric of each cell, and the whole.

use super::metric::{Figure, Kind};
use super::ranks::Shift;
use super::rules::{Bound, Rule};
use super::verdict::Verdict;
use crate::record::others::OtherProgram;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A ratio with its limits; limits that are not finite are null.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Lower limit.
    pub low: Option<f64>,
    /// The ratio.
    pub mid: f64,
    /// Upper limit.
    pub high: Option<f64>,
}

/// The subject of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A number that varies: speed, bandwidth, resident memory.
    Noisy,
    /// A number that does not: bytes.
    Exact,
    /// The losses.
    Losses,
    /// Whether the cell fits into memory.
    Fit,
    /// Whether the cell runs at all.
    #[default]
    Run,
}

impl From<Kind> for Class {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Noisy => Self::Noisy,
            Kind::Exact => Self::Exact,
            Kind::Losses => Self::Losses,
        }
    }
}

/// One set of samples and its verdict on the metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetRow {
    /// Its verdict by itself.
    pub verdict: Verdict,
    /// Pairs, or trials of the candidate, that counted.
    pub used: usize,
    /// Candidate to baseline.
    pub ratio: Option<Ratio>,
}

/// One metric of one cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The cell, in words.
    pub cell: String,
    /// Its key.
    pub key: String,
    /// Name of the metric; `fit` and `run` for what keeps a cell from being measured.
    pub metric: String,
    /// The subject of the row.
    pub class: Class,
    /// The verdict.
    pub verdict: Verdict,
    /// Median of the baseline's trials.
    pub baseline: Option<f64>,
    /// Median of the candidate's.
    pub candidate: Option<f64>,
    /// Candidate to baseline, with the interval of the set that decided.
    pub ratio: Option<Ratio>,
    /// The ratios that pass; absent for losses.
    pub band: Option<Ratio>,
    /// Pairs, or trials of the candidate, that counted, in all sets.
    pub used: usize,
    /// Sets of samples after the first.
    pub reruns: usize,
    /// Each set.
    pub sets: Vec<SetRow>,
    /// How far the ratio of the baseline to itself strays here, as a share.
    pub noise_floor: Option<f64>,
    /// By how much the interval was widened because of it, as a share.
    pub widened: f64,
    /// The verdict in words.
    pub words: String,
    /// Present where the metric was compared by turns: the candidate's figure is then the baseline's times the ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<OfTurns>,
}

/// The rounds behind a row that was compared by turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfTurns {
    /// Rounds that counted.
    pub rounds: usize,
    /// Generations of processes that they are of.
    pub generations: usize,
    /// Rounds in which the candidate was slower.
    pub slower: usize,
    /// Rounds that were discarded, since other processes used the cores.
    pub discarded: usize,
}

/// How many trials did not count, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// `baseline` or `candidate`.
    pub side: String,
    /// A validity flag, or how they ended.
    pub why: String,
    /// How many.
    pub count: usize,
}

/// The result for one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellReport {
    /// The cell, in words.
    pub cell: String,
    /// Its key.
    pub key: String,
    /// A row for each metric.
    pub rows: Vec<Row>,
    /// Trials that did not count.
    pub left_out: Vec<LeftOut>,
    /// Other programs that used the cores in trials and rounds that did not count, the busiest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub busy: Vec<OtherProgram>,
    /// Trials of the baseline that were looked at.
    pub baseline_trials: usize,
    /// Trials of the candidate.
    pub candidate_trials: usize,
    /// Time that it took.
    pub seconds: f64,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
}

/// The whole of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this object.
    pub schema: u32,
    /// The rules' file.
    pub rules: String,
    /// The baseline, in words.
    pub baseline: String,
    /// The candidate, in words.
    pub candidate: String,
    /// How they were measured, in words.
    pub how: String,
    /// The worst verdict of all rows.
    pub verdict: Verdict,
    /// The exit code that the policy makes of it.
    pub exit_code: u8,
    /// Verdicts that fail.
    pub fail_on: Vec<Verdict>,
    /// The confidence over all looks and metrics.
    pub confidence: f64,
    /// Seconds that it was allowed to take.
    pub time_budget_seconds: f64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Decides the order of the sides: the same seed gives the same order.
    pub seed: u64,
    /// How the steps of a trial became its speed.
    pub figure: String,
    /// The cells.
    pub cells: Vec<CellReport>,
    /// Further remarks for the reader.
    pub notes: Vec<String>,
    /// Machine and program of the candidate.
    pub environment: Map<String, Value>,
    /// What to do next, by the verdict; empty where there is nothing to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub next: String,
    /// Repeats it.
    pub command: String,
    /// When it began, RFC 3339.
    pub started: String,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
}

/// Version of [`Report`] and of the baseline file.
pub const GATE_SCHEMA: u32 = 1;

impl Report {
    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.cells.iter().flat_map(|cell| &cell.rows)
    }

    /// The verdict in words. One that was stopped has none: what it did not measure might have another.
    pub fn headline(&self) -> &'static str {
        if self.interrupted { "stopped" } else { self.verdict.words() }
    }
}

impl Ratio {
    /// Of a shift of logarithms of costs: rates are the other way round.
    pub fn of(shift: &Shift, more_is_better: bool) -> Self {
        let finite = |value: f64| Some(value).filter(|value| value.is_finite() && *value > 0.0);
        let (low, mid, high) = (finite(shift.low.exp()), shift.mid.exp(), finite(shift.high.exp()));
        if more_is_better {
            Self { low: high.map(f64::recip), mid: mid.recip(), high: low.map(f64::recip) }
        } else {
            Self { low, mid, high }
        }
    }

    /// The ratios that pass.
    pub fn band(rule: &Rule) -> Option<Self> {
        let (low, high) = match rule.bound {
            Bound::Band { slower, faster } if rule.metric.more_is_better => (1.0 / (1.0 + slower), 1.0 + faster),
            Bound::Band { slower, faster } => (1.0 / (1.0 + faster), 1.0 + slower),
            Bound::Tolerance { more, less } => (1.0 - less, 1.0 + more),
            Bound::Losses(_) => return None,
        };
        Some(Self { low: Some(low), mid: 1.0, high: Some(high) })
    }
}

impl CellReport {
    /// A cell that the gate did not come to.
    pub fn not_begun(cell: &str, key: &str) -> Self {
        let words = "it was stopped before this cell began";
        Self {
            cell: cell.into(),
            key: key.into(),
            rows: vec![Row::of_cell(cell, key, Class::Run, Verdict::NotMeasured, words)],
            left_out: Vec::new(),
            busy: Vec::new(),
            baseline_trials: 0,
            candidate_trials: 0,
            seconds: 0.0,
            interrupted: true,
        }
    }
}

impl Row {
    /// A row about the cell itself: `fit` or `run`.
    pub fn of_cell(cell: &str, key: &str, class: Class, verdict: Verdict, words: impl Into<String>) -> Self {
        let metric = if class == Class::Fit { "fit" } else { "run" };
        Self { class, verdict, words: words.into(), ..Self::blank(cell, key, metric) }
    }

    /// A row without a result yet.
    pub fn blank(cell: &str, key: &str, metric: &str) -> Self {
        Self { cell: cell.into(), key: key.into(), metric: metric.into(), ..Self::default() }
    }
}

/// The figure in words, for reports.
pub fn figure_words(figure: Figure) -> &'static str {
    match figure {
        Figure::Median => "the median of its timed steps",
        Figure::LowerQuartile => "the lower quartile of its timed steps",
        Figure::Mean => "the mean of its timed steps",
    }
}
