//! What became of published results: predictions beside what was measured, and how far they are apart.

use std::collections::BTreeMap;
use zbench_reports::estimate_report::{FitsOrNot, PublishedRow};
use zbench_reports::stats::percentile;

/// A result's outcome, in the result's unit and convention.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What was published and what is predicted.
    pub row: PublishedRow,
    /// What it is of.
    pub kind: Kind,
    /// Whether the device is of the usual generations, whose speeds have a band of their own.
    pub usual: bool,
    /// Whether the run was within its memory, and whether it is predicted to be, where that is known.
    pub fits: Option<(bool, bool)>,
    /// Whether 20 bytes for each parameter of a rank are within its memory: a rule of thumb to compare with.
    pub fits_twenty_bytes: Option<bool>,
}

/// What results are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Memory of a rank.
    Memory,
    /// Speed of training.
    Speed,
    /// Speed of a collective.
    Collectives,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Memory, Kind::Speed, Kind::Collectives];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Speed => "speed",
            Kind::Collectives => "collectives",
        }
    }
}

/// How far predictions are apart from what was published.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Rows.
    pub rows: usize,
    /// Of which something is predicted.
    pub expressed: usize,
    /// Which count.
    pub scored: usize,
    /// Median of the absolute error, as a share.
    pub median: f64,
    /// 90th percentile of it.
    pub p90: f64,
}

/// The score of some outcomes.
pub fn score<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Score {
    let mut score = Score::default();
    let mut errors = Vec::new();
    for outcome in outcomes {
        score.rows += 1;
        score.expressed += usize::from(outcome.row.predicted.is_some());
        if !outcome.row.scored {
            continue;
        }
        if let Some(error) = outcome.row.error() {
            score.scored += 1;
            errors.push(error.abs());
        }
    }
    score.median = percentile(&errors, 50.0).unwrap_or_default();
    score.p90 = percentile(&errors, 90.0).unwrap_or_default();
    score
}

/// What a predictor, named `by`, says of runs that are known to have fitted or to have been out of memory.
pub fn fits<'a>(by: &str, outcomes: impl IntoIterator<Item = &'a Outcome>) -> FitsOrNot {
    let mut all = FitsOrNot { by: by.into(), ..FitsOrNot::default() };
    for (did_fit, is_to) in outcomes.into_iter().filter_map(|outcome| outcome.fits) {
        *match (did_fit, is_to) {
            (true, true) => &mut all.fitted,
            (true, false) => &mut all.false_alarms,
            (false, false) => &mut all.found,
            (false, true) => &mut all.missed,
        } += 1;
    }
    all
}

/// Ratios of published to predicted values by family, as logarithms of speeds or sizes.
#[derive(Clone, Debug, Default)]
pub struct Residuals(BTreeMap<String, Vec<f64>>);

impl Residuals {
    /// Of the scored outcomes; a time of a step is one over a speed.
    pub fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Residuals {
        let mut families: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for outcome in outcomes.into_iter().filter(|outcome| outcome.row.scored) {
            let (Some(published), Some(predicted)) = (outcome.row.published, outcome.row.predicted) else { continue };
            let log = (published / predicted).ln();
            let log = if outcome.row.quantity == "step_time_s" { -log } else { log };
            if log.is_finite() {
                families.entry(outcome.row.family.clone()).or_default().push(log);
            }
        }
        Residuals(families)
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Families.
    pub fn families(&self) -> usize {
        self.0.len()
    }

    /// The factors between which this share of the rows lies, as much left out below as above; each family counts once.
    pub fn band(&self, share: f64) -> Option<(f64, f64)> {
        let mut weighted: Vec<(f64, f64)> =
            self.0.values().flat_map(|logs| logs.iter().map(|log| (*log, 1.0 / logs.len() as f64))).collect();
        weighted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let edge = |share: f64| {
            let (mut below, wanted) = (0.0, share * self.families() as f64);
            let reaches = |(_, weight): &&(f64, f64)| {
                below += weight;
                below >= wanted - 1e-9
            };
            weighted.iter().find(reaches).or(weighted.last()).map(|(log, _)| log.exp())
        };
        edge((1.0 - share) / 2.0).zip(edge((1.0 + share) / 2.0))
    }

    /// Share of the rows between two factors, each family counted once.
    pub fn held(&self, low: f64, high: f64) -> f64 {
        let of = |logs: &Vec<f64>| held(logs, low, high);
        self.0.values().map(of).sum::<f64>() / self.families().max(1) as f64
    }

    /// Mean share of a family's rows in the band of all others; none where there is one family.
    pub fn left_out(&self, share: f64) -> Option<f64> {
        let mut sum = 0.0;
        for (family, logs) in &self.0 {
            let others = self.0.iter().filter(|(other, _)| *other != family).map(|(k, v)| (k.clone(), v.clone()));
            let (low, high) = Residuals(others.collect()).band(share)?;
            sum += held(logs, low, high);
        }
        (self.families() > 0).then(|| sum / self.families() as f64)
    }
}

fn held(logs: &[f64], low: f64, high: f64) -> f64 {
    let within = |log: &&f64| (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(&log.exp());
    logs.iter().filter(within).count() as f64 / logs.len().max(1) as f64
}

/// Rows of a family that are paired each with each; of more, so many are taken evenly.
const PAIRED: usize = 1000;

/// Of all pairs of scored rows of one family and quantity whose published values are more than 5 % apart: those that are
/// predicted the same way round, and all.
pub fn directions_right<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> (usize, usize) {
    let mut groups: BTreeMap<(&str, &str), Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes.into_iter().filter(|outcome| outcome.row.scored) {
        groups.entry((&outcome.row.family, &outcome.row.quantity)).or_default().push(outcome);
    }
    let (mut right, mut all) = (0, 0);
    for group in groups.into_values() {
        let step = group.len().div_ceil(PAIRED).max(1);
        let rows: Vec<&Outcome> = group.into_iter().step_by(step).collect();
        for (a, b) in rows.iter().enumerate().flat_map(|(i, a)| rows[i + 1..].iter().map(move |b| (a, b))) {
            let (Some(x), Some(y), Some(p), Some(q)) =
                (a.row.published, b.row.published, a.row.predicted, b.row.predicted)
            else {
                continue;
            };
            if x.max(y) / x.min(y) > 1.05 {
                all += 1;
                right += usize::from((x > y) == (p > q));
            }
        }
    }
    (right, all)
}
