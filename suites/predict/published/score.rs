//! What became of published results: predictions beside what was measured, and how far they are apart.

use std::collections::BTreeMap;

/// A result's outcome, in the result's unit and convention.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The result.
    pub id: String,
    /// Its family.
    pub family: String,
    /// What it is of.
    pub kind: Kind,
    /// What was measured.
    pub quantity: String,
    /// In which unit.
    pub unit: String,
    /// Of which kind the bound is; empty = a plain value.
    pub bound: String,
    /// What was published.
    pub published: Option<f64>,
    /// What is predicted; none where the cell cannot be priced.
    pub predicted: Option<f64>,
    /// Whether it counts.
    pub scored: bool,
    /// Why nothing is predicted, or why it does not count.
    pub reason: String,
    /// Whether the run was within its memory, and whether it is predicted to be, where that is known.
    pub fits: Option<(bool, bool)>,
    /// Whether 20 bytes for each parameter of a rank are within its memory: a rule of thumb to compare with.
    pub fits_twenty_bytes: Option<bool>,
}

impl Outcome {
    /// Predicted over published, less one.
    pub fn error(&self) -> Option<f64> {
        match (self.published, self.predicted) {
            (Some(published), Some(predicted)) if published != 0.0 => Some(predicted / published - 1.0),
            _ => None,
        }
    }
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

/// A quantile by linear interpolation; 0 for nothing.
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return 0.0 };
    let place = share.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    values[low] + (values[high] - values[low]) * (place - low as f64)
}

/// The score of some outcomes.
pub fn score<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Score {
    let mut score = Score::default();
    let mut errors = Vec::new();
    for outcome in outcomes {
        score.rows += 1;
        score.expressed += usize::from(outcome.predicted.is_some());
        if !outcome.scored {
            continue;
        }
        if let Some(error) = outcome.error() {
            score.scored += 1;
            errors.push(error.abs());
        }
    }
    score.median = quantile(&mut errors, 0.5);
    score.p90 = quantile(&mut errors, 0.9);
    score
}

/// What is predicted of runs that fitted and of runs that were out of memory. As most published runs fitted, the share that is
/// right says little by itself: [`Fits::always_right`] is that of whoever says of every run that it fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fits {
    /// Fitted, and predicted to.
    pub fitted: usize,
    /// Fitted, and predicted to be out of memory.
    pub false_alarms: usize,
    /// Were out of memory, and predicted to be.
    pub found: usize,
    /// Were out of memory, and predicted to fit.
    pub missed: usize,
}

impl Fits {
    /// Of the outcomes that state it.
    pub fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Fits {
        let mut all = Fits::default();
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

    /// Runs.
    pub fn runs(&self) -> usize {
        self.fitted + self.false_alarms + self.found + self.missed
    }

    /// Those predicted right.
    pub fn right(&self) -> usize {
        self.fitted + self.found
    }

    /// Those that a prediction of "fits" for every run has right.
    pub fn always_right(&self) -> usize {
        self.fitted + self.false_alarms
    }

    /// Share of the runs that were out of memory that are predicted to be.
    pub fn recall(&self) -> Option<f64> {
        share(self.found, self.found + self.missed)
    }

    /// Share of the runs predicted to be out of memory that were.
    pub fn precision(&self) -> Option<f64> {
        share(self.found, self.found + self.false_alarms)
    }
}

fn share(part: usize, of: usize) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

/// Ratios of published to predicted values by family, as logarithms of speeds or sizes.
#[derive(Clone, Debug, Default)]
pub struct Residuals(BTreeMap<String, Vec<f64>>);

impl Residuals {
    /// Of the scored outcomes; a time of a step is one over a speed.
    pub fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Residuals {
        let mut families: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for outcome in outcomes.into_iter().filter(|outcome| outcome.scored) {
            let (Some(published), Some(predicted)) = (outcome.published, outcome.predicted) else { continue };
            let log = (published / predicted).ln();
            let log = if outcome.quantity == "step_time_s" { -log } else { log };
            if log.is_finite() {
                families.entry(outcome.family.clone()).or_default().push(log);
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
    for outcome in outcomes.into_iter().filter(|outcome| outcome.scored) {
        groups.entry((&outcome.family, &outcome.quantity)).or_default().push(outcome);
    }
    let (mut right, mut all) = (0, 0);
    for group in groups.into_values() {
        let step = group.len().div_ceil(PAIRED).max(1);
        let rows: Vec<&Outcome> = group.into_iter().step_by(step).collect();
        for (a, b) in rows.iter().enumerate().flat_map(|(i, a)| rows[i + 1..].iter().map(move |b| (a, b))) {
            let (Some(x), Some(y), Some(p), Some(q)) = (a.published, b.published, a.predicted, b.predicted) else {
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
