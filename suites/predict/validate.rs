//! `plan --validate DIR`: published results beside what is predicted for them.

use std::path::Path;
use zbench_estimate::published::score::Fits;
use zbench_estimate::published::{self, validate::Kind};
use zbench_reports::estimate_report::{Family, FitsOrNot, PublishedRow, Unexpressed, Validation};

/// Predicts every row of the CSV files of a folder.
///
/// # Errors
/// The folder or a file in it cannot be read, or there is no file of published results.
pub fn validate(folder: &Path) -> Result<Validation, published::validate::FolderError> {
    let found = published::validate::folder(folder)?;
    let row = |outcome: &published::score::Outcome| PublishedRow {
        id: outcome.id.clone(),
        family: outcome.family.clone(),
        quantity: outcome.quantity.clone(),
        unit: outcome.unit.clone(),
        bound: outcome.bound.clone(),
        published: outcome.published,
        predicted: outcome.predicted,
        scored: outcome.scored,
        reason: outcome.reason.clone(),
    };
    let mut validation = Validation { folder: folder.display().to_string(), ..Validation::default() };
    let every: Vec<&published::score::Outcome> = found.iter().flat_map(|(_, outcomes)| outcomes).collect();
    let kinds = found.iter().map(|(kind, outcomes)| (kind.name(), Fits::of(outcomes)));
    for (kind, of) in kinds.chain([("all", Fits::of(every))]).filter(|(_, of)| of.runs() > 0) {
        let Fits { fitted, false_alarms, found, missed } = of;
        validation.fits.push(FitsOrNot { kind: kind.into(), fitted, false_alarms, found, missed });
    }
    for (kind, outcomes) in &found {
        validation.rows.extend(outcomes.iter().map(row));
        families(&mut validation.families, *kind, outcomes);
        shares(&mut validation.shares, *kind, outcomes);
        unexpressed(&mut validation.unexpressed, outcomes);
    }
    validation.unexpressed.sort_by(|a, b| b.rows.cmp(&a.rows).then(a.reason.cmp(&b.reason)));
    Ok(validation)
}

fn families(list: &mut Vec<Family>, kind: Kind, outcomes: &[published::score::Outcome]) {
    let mut names: Vec<&str> = outcomes.iter().map(|outcome| outcome.family.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let of = |name: &str, score: published::score::Score| Family {
        kind: kind.name().into(),
        name: name.into(),
        rows: score.rows,
        expressed: score.expressed,
        scored: score.scored,
        median: (score.scored > 0).then_some(score.median),
        p90: (score.scored > 0).then_some(score.p90),
    };
    for name in &names {
        let those = outcomes.iter().filter(|outcome| outcome.family == *name);
        list.push(of(name, published::score::score(those)));
    }
    list.push(of("all", published::score::score(outcomes)));
}

fn shares(list: &mut Vec<(String, usize, usize)>, kind: Kind, outcomes: &[published::score::Outcome]) {
    let (right, of) = published::validate::directions_right(outcomes);
    if kind == Kind::Throughput && of > 0 {
        list.push((format!("{}: which of two is faster", kind.name()), right, of));
    }
}

fn unexpressed(list: &mut Vec<Unexpressed>, outcomes: &[published::score::Outcome]) {
    for outcome in outcomes.iter().filter(|outcome| outcome.predicted.is_none()) {
        match list.iter_mut().find(|entry| entry.reason == outcome.reason) {
            Some(entry) => entry.rows += 1,
            None => list.push(Unexpressed { reason: outcome.reason.clone(), rows: 1, example: outcome.id.clone() }),
        }
    }
}
