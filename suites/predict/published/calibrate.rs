//! Conformal calibration of bands from published results (formula and sources: docs/estimator.md, "Bands").

use super::score::Outcome;
use crate::band::{Bands, Group, Kind, SHARE, Spread};
use crate::likeness::{ADAPTERS, Compared, Traits};
use std::collections::{BTreeMap, BTreeSet};
use zbench_reports::stats::median;

/// Error of a scored result.
#[derive(Clone, Debug)]
pub struct Residual {
    group: Group,
    family: String,
    /// ln(published / predicted) of a size or a speed.
    log: f64,
    traits: Traits,
}

impl Residual {
    /// Error of an outcome; `None` if it is not scored or has no band. A time of a step counts as its reciprocal, a speed.
    pub fn of(outcome: &Outcome) -> Option<Residual> {
        let (group, traits) = outcome.banded.clone().filter(|_| outcome.row.scored)?;
        let log = (outcome.row.published? / outcome.row.predicted?).ln();
        let log = if outcome.row.quantity == "step_time_s" { -log } else { log };
        log.is_finite().then(|| Residual { group, family: outcome.row.family.clone(), log, traits })
    }
}

/// Comparison of a result with its band.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged<'r> {
    /// Group of the band.
    pub group: Group,
    /// Family of the result.
    pub family: &'r str,
    /// True if the result lies in the band.
    pub is_in: bool,
    /// Width of the band as a share of the prediction.
    pub width: f64,
}

/// Mean share of a family's results that lie in their bands, and the median width of the bands of all results; `None` of none.
pub fn held(rows: &[Judged]) -> Option<(f64, f64)> {
    let counts = counts(rows.iter().map(|row| row.family));
    let weight = |row: &Judged| 1.0 / counts[row.family] as f64;
    let inside: f64 = rows.iter().filter(|row| row.is_in).map(weight).sum();
    let widths: Vec<f64> = rows.iter().map(|row| row.width).collect();
    Some((inside / counts.len() as f64, median(&widths)?))
}

/// The bands that results give, with what they hold of families left out. Where there are too few families for a band, it has no
/// end.
pub fn bands(rows: &[&Residual]) -> Bands {
    let mut bands = reaches(rows);
    let adapters = rows.iter().filter(|row| row.group.kind() == Kind::Speed && row.traits.parts.contains(&ADAPTERS));
    bands.adapters = adapters.map(|row| (-row.log).exp()).fold(1.0, f64::max);
    for kind in Kind::ALL {
        let left_out = left_out(rows, kind);
        for group in Group::ALL.into_iter().filter(|group| group.kind() == kind) {
            let of_group: Vec<Judged> = left_out.iter().filter(|row| row.group == group).cloned().collect();
            if let (Some(spread), Some((share, _))) = (bands.groups.get_mut(group.name()), held(&of_group)) {
                spread.left_out = share;
            }
        }
    }
    bands
}

/// Compares each result of a kind with the band from all families but its own; without results where those are too few.
pub fn left_out<'r>(rows: &[&'r Residual], kind: Kind) -> Vec<Judged<'r>> {
    let own: Vec<&Residual> = rows.iter().copied().filter(|row| row.group.kind() == kind).collect();
    let families: BTreeSet<&str> = own.iter().map(|row| row.family.as_str()).collect();
    let mut list = Vec::new();
    for family in families {
        let is_own = |row: &Residual| row.group.kind() == kind && row.family == family;
        let others: Vec<&Residual> = rows.iter().copied().filter(|row| !is_own(row)).collect();
        let bands = reaches(&others);
        list.extend(judged(own.iter().copied().filter(|row| row.family == family), &bands));
    }
    list
}

/// Compares results with bands, without those whose band has no end.
pub fn judged<'r>(rows: impl IntoIterator<Item = &'r Residual>, bands: &Bands) -> Vec<Judged<'r>> {
    let of = |row: &'r Residual| {
        let (band, _) = bands.of(row.group, &row.traits);
        let ratio = row.log.exp();
        let is_in = band.low * (1.0 - 1e-9) <= ratio && ratio <= band.high * (1.0 + 1e-9);
        Judged { group: row.group, family: &row.family, is_in, width: band.high - band.low }
    };
    rows.into_iter().map(of).filter(|row| row.width.is_finite() && row.width > 0.0).collect()
}

/// Bands without the coverage of families left out.
fn reaches(rows: &[&Residual]) -> Bands {
    let mut bands = Bands::default();
    for row in rows {
        bands.compared.entry(row.group.kind().name().into()).or_default().add(&row.traits);
    }
    // Scores, in scales of the other families, and weights, which add up to 1 for each family.
    let mut like: Vec<(f64, f64)> = Vec::new();
    let mut unlike: Vec<(f64, f64)> = Vec::new();
    for group in Group::ALL {
        let of_group: Vec<&Residual> = rows.iter().copied().filter(|row| row.group == group).collect();
        let counts = counts(of_group.iter().map(|row| row.family.as_str()));
        if counts.is_empty() {
            continue;
        }
        let spread =
            Spread { spread: spread_of(&of_group), rows: of_group.len(), families: counts.len(), left_out: 0.0 };
        bands.groups.insert(group.name().into(), spread);
        for (family, count) in counts.iter().filter(|_| counts.len() > 2) {
            let others: Vec<&Residual> = of_group.iter().copied().filter(|row| row.family != *family).collect();
            let others_spread = spread_of(&others).max(f64::MIN_POSITIVE);
            let mut compared = Compared::default();
            let of_others = rows.iter().filter(|row| row.group.kind() == group.kind() && row.family != *family);
            of_others.for_each(|row| compared.add(&row.traits));
            for row in of_group.iter().filter(|row| row.family == *family) {
                let class = if compared.lacks(&row.traits).is_empty() { &mut like } else { &mut unlike };
                class.push((row.log.abs() / others_spread, 1.0 / *count as f64));
            }
        }
    }
    bands.like = conformal(like);
    // A job unlike all results never has the narrower band.
    bands.unlike = conformal(unlike).max(bands.like);
    bands
}

/// [`SHARE`] quantile of |ln(published / predicted)|, each family counted once.
fn spread_of(rows: &[&Residual]) -> f64 {
    let counts = counts(rows.iter().map(|row| row.family.as_str()));
    let points = rows.iter().map(|row| (row.log.abs(), 1.0 / counts[row.family.as_str()] as f64)).collect();
    quantile(points, SHARE * counts.len() as f64)
}

/// [`SHARE`] quantile of scores, with one more family whose score is infinite.
fn conformal(points: Vec<(f64, f64)>) -> f64 {
    let families: f64 = points.iter().map(|(_, weight)| weight).sum();
    quantile(points, SHARE * (families + 1.0))
}

/// Smallest value with at least `mass` of weight at or below it; infinite if the whole weight is less.
fn quantile(mut points: Vec<(f64, f64)>, mass: f64) -> f64 {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut below = 0.0;
    let reaches = |(_, weight): &(f64, f64)| {
        below += weight;
        below >= mass - 1e-9
    };
    points.iter().copied().find(reaches).map_or(f64::INFINITY, |(value, _)| value)
}

fn counts<'r>(families: impl Iterator<Item = &'r str>) -> BTreeMap<&'r str, usize> {
    let mut counts = BTreeMap::new();
    families.for_each(|family| *counts.entry(family).or_default() += 1);
    counts
}
