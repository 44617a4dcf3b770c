//! What became of published results: predictions beside what was measured, and how far they are apart.

pub use crate::band::Kind;

use crate::band::Group;
use crate::likeness::Traits;
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
    /// Group and traits that decide the band of the prediction; `None` if it has no band.
    pub banded: Option<(Group, Traits)>,
    /// Whether the run was within its memory, and whether it is predicted to be, where that is known.
    pub fits: Option<(bool, bool)>,
    /// Whether 20 bytes for each parameter of a rank are within its memory: a rule of thumb to compare with.
    pub fits_twenty_bytes: Option<bool>,
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
