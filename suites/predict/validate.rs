//! `plan --validate DIR`: published results beside what is predicted for them.

use crate::band::{Group, PUBLISHED};
use crate::published::calibrate::{self, Judged, Residual};
use crate::published::score::{Kind, Outcome, Score, directions_right, fits, score};
use crate::published::{self, FolderError};
use std::path::Path;
use zbench_engine::planner::Planner;
use zbench_reports::estimate_report::{BandScore, Family, KindScore, Unexpressed, Validation};
use zbench_reports::stats::{median, percentile};

/// Predicts every published result of a folder.
///
/// # Errors
/// The folder or a file in it cannot be read, or there are no published results.
pub fn validate(folder: &Path) -> Result<Validation, FolderError> {
    let planner = Planner::default();
    let outcomes: Vec<Outcome> = published::read(folder)?.iter().map(|row| row.outcome(&planner)).collect();
    let mut validation = Validation { folder: folder.display().to_string(), ..Validation::default() };
    let always: Vec<Outcome> = decided_by(&outcomes, |_| Some(true));
    let twenty: Vec<Outcome> = decided_by(&outcomes, |outcome| outcome.fits_twenty_bytes);
    let predictors = [("zbench", &outcomes), ("always fits", &always), ("20 bytes a parameter", &twenty)];
    validation.fits = predictors.into_iter().map(|(by, outcomes)| fits(by, outcomes)).collect();
    validation.fits.retain(|of| of.runs() > 0);
    for kind in Kind::ALL {
        let of: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.kind == kind).collect();
        if of.is_empty() {
            continue;
        }
        validation.kinds.extend(of_kind(kind, &of));
        families(&mut validation.families, kind.name(), &of);
        if kind == Kind::Speed {
            let (right, all) = directions_right(of);
            validation.shares.extend((all > 0).then(|| ("which of two is faster".to_string(), right, all)));
        }
    }
    validation.bands = bands(&outcomes);
    unexpressed(&mut validation.unexpressed, &outcomes);
    validation.rows = outcomes.into_iter().map(|outcome| outcome.row).collect();
    Ok(validation)
}

/// The same runs with the decision of a rule.
fn decided_by(outcomes: &[Outcome], rule: impl Fn(&Outcome) -> Option<bool>) -> Vec<Outcome> {
    let decided = |outcome: &Outcome| {
        let (did, _) = outcome.fits?;
        Some(Outcome { fits: Some((did, rule(outcome)?)), ..outcome.clone() })
    };
    outcomes.iter().filter_map(decided).collect()
}

/// Errors of the outcomes of a kind; `None` where none of them is scored.
fn of_kind(kind: Kind, outcomes: &[&Outcome]) -> Option<KindScore> {
    let all = score(outcomes.iter().copied());
    let mut names: Vec<&str> =
        outcomes.iter().filter(|one| one.row.scored).map(|one| one.row.family.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let of = |name: &&str| score(outcomes.iter().filter(|outcome| outcome.row.family == **name).copied()).median;
    let medians: Vec<f64> = names.iter().map(of).collect();
    (all.scored > 0).then(|| KindScore {
        kind: kind.name().into(),
        scored: all.scored,
        median: all.median,
        p90: all.p90,
        families: names.len(),
        family_median: median(&medians).unwrap_or_default(),
        family_p90: percentile(&medians, 90.0).unwrap_or_default(),
    })
}

/// The bands that the results give, by kind and by group, and what they and those of `plan` hold.
fn bands(outcomes: &[Outcome]) -> Vec<BandScore> {
    let residuals: Vec<Residual> = outcomes.iter().filter_map(Residual::of).collect();
    let all: Vec<&Residual> = residuals.iter().collect();
    let bands = calibrate::bands(&all);
    let of_plan = calibrate::judged(all.iter().copied(), &PUBLISHED);
    let mut list = Vec::new();
    for kind in Kind::ALL {
        let left_out = calibrate::left_out(&all, kind);
        let mut row = |of: &str, group: Option<Group>| {
            let is_in = |row: &&Judged| row.group.kind() == kind && group.is_none_or(|group| row.group == group);
            let held = |rows: &[Judged]| calibrate::held(&rows.iter().filter(is_in).cloned().collect::<Vec<_>>());
            let Some((in_plan, _)) = held(&of_plan) else { return };
            let ends = |is_like| {
                let band = bands.band(group?, is_like);
                (band.high.is_finite() && band.high > 1.0).then_some((band.low, band.high))
            };
            list.push(BandScore {
                of: of.into(),
                like: ends(true),
                unlike: ends(false),
                left_out: held(&left_out).map(|(share, _)| share),
                width: held(&left_out).map(|(_, width)| width),
                in_plan,
            });
        };
        match kind {
            Kind::Memory => row(kind.name(), Some(Group::Memory)),
            Kind::Collectives => row(kind.name(), Some(Group::Collectives)),
            Kind::Speed => {
                row(kind.name(), None);
                row("speed, V100 to H200", Some(Group::Speed));
                row("speed, other devices", Some(Group::SpeedElsewhere));
            }
        }
    }
    list
}

fn families(list: &mut Vec<Family>, kind: &str, outcomes: &[&Outcome]) {
    let mut names: Vec<&str> = outcomes.iter().map(|outcome| outcome.row.family.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let of = |name: &str, score: Score| Family {
        kind: kind.into(),
        name: name.into(),
        rows: score.rows,
        expressed: score.expressed,
        scored: score.scored,
        median: (score.scored > 0).then_some(score.median),
        p90: (score.scored > 0).then_some(score.p90),
    };
    for name in &names {
        let those = outcomes.iter().filter(|outcome| outcome.row.family == *name).copied();
        list.push(of(name, score(those)));
    }
    list.push(of("all rows", score(outcomes.iter().copied())));
}

fn unexpressed(list: &mut Vec<Unexpressed>, outcomes: &[Outcome]) {
    for outcome in outcomes.iter().filter(|outcome| outcome.row.predicted.is_none()) {
        match list.iter_mut().find(|entry| entry.reason == outcome.row.reason) {
            Some(entry) => entry.rows += 1,
            None => {
                list.push(Unexpressed { reason: outcome.row.reason.clone(), rows: 1, example: outcome.row.id.clone() })
            }
        }
    }
    list.sort_by(|a, b| b.rows.cmp(&a.rows).then(a.reason.cmp(&b.reason)));
}
