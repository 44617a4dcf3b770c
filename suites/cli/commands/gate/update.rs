//! `gate --update`: a baseline file with its provenance, from fresh trials or from records.

use super::{Job, output};
use crate::commands::{print_document, print_json};
use anyhow::{Context, Result, bail};
use zbench_host::environment::binary_hash;
use zbench_host::exit;
use zbench_reports::gate::baseline::{Baseline, BaselineCell, Provenance};
use zbench_reports::gate::procedure::judge_records;
use zbench_reports::gate::{GATE_SCHEMA, Opponent, Side, Trial, document};
use zbench_reports::record::others::{self, OtherProgram};
use zbench_suites::gate::baseline::{self, Stored};
use zbench_suites::gate::cells::Target;

/// Trials of each cell: as many as a gate's first looks have, so that the baseline is not the weaker side.
const TRIALS: usize = 24;

pub fn update(job: &mut Job) -> Result<u8> {
    let arguments = job.arguments;
    let path = arguments.baseline.as_ref().context("--update writes a baseline file; name it with --baseline FILE")?;
    if path.is_dir() {
        bail!("--baseline {}: a notebook is written by run and grid; name a file", path.display());
    }
    let old = path.exists().then(|| baseline::read(path, "baseline")).transpose();
    let old = old.unwrap_or_else(|error| {
        zbench_host::say!("warning: the baseline there is cannot be compared with: {}", crate::in_words(&error));
        None
    });
    let (cells, busy) = match &arguments.candidate {
        Some(records) => (of_records(job, &baseline::read(records, "candidate")?)?, Vec::new()),
        None => match measured(job)? {
            Some(measured) => measured,
            None => {
                zbench_host::say!("stopped; {} is as it was", path.display());
                return Ok(exit::INTERRUPTED);
            }
        },
    };
    // A baseline made of records is compared with records: fewer trials than a gate measures are enough.
    let least = if arguments.candidate.is_some() { 3 } else { job.rules.min_pairs };
    for cell in &cells {
        let counted: Vec<Trial> = cell.trials.iter().map(|trial| allowed(trial, arguments.allow_load)).collect();
        if let Some(why) = baseline::unfit(&counted, least) {
            let why = format!("{} is as it was: the cell {} makes no baseline: {why}", path.display(), cell.label);
            if !counted.iter().any(Trial::has_load) {
                bail!("{why}");
            }
            let who = if busy.is_empty() { String::new() } else { format!(" ({})", others::names(&busy)) };
            zbench_host::say!(
                "{why}; other processes used the cores{who}: stop them and run it again, give it more time with --time-budget, or count \
                 these trials, too, with --allow-load"
            );
            return Ok(exit::NOT_MEASURED);
        }
    }
    let new = Baseline { gate_baseline: GATE_SCHEMA, provenance: provenance(job), cells };
    show(job, old.as_ref(), &new)?;
    baseline::write(path, &new.text()?)?;
    let trials: usize = new.cells.iter().map(|cell| cell.trials.len()).sum();
    zbench_host::say!(
        "{} has {trials} trials of {} now",
        path.display(),
        zbench_reports::units::plural(new.cells.len(), "cell", "cells")
    );
    Ok(exit::SUCCESS)
}

fn provenance(job: &Job) -> Provenance {
    let commit = job.environment.get("commit").and_then(|commit| commit.as_str()).map(str::to_string);
    let hash = binary_hash(&job.file.path).map_or(String::new(), |hash| format!(" (blake3 {hash})"));
    Provenance {
        written: job.started.to_string(),
        command: crate::commands::command_line(),
        commit,
        program: binary_hash(&job.program),
        rules: format!("{}{hash}", job.file.path.display()),
        extra: Default::default(),
    }
}

/// The records of the cells that the rules name.
fn of_records(job: &Job, stored: &Stored) -> Result<Vec<BaselineCell>> {
    let Some(targets) = job.targets(&[])? else { return Ok(stored.cells.clone()) };
    targets
        .iter()
        .map(|target| zbench_suites::gate::refuse::same_key(stored, &target.key, &target.cell).cloned())
        .collect()
}

/// A trial as it counts: beside other processes only where that is asked for. The baseline's file keeps its flags.
fn allowed(trial: &Trial, allow_load: bool) -> Trial {
    let trial = trial.clone();
    if allow_load { trial.allowing_load() } else { trial }
}

/// Measures new trials, and names the programs that kept some from counting; `None` if stopped.
fn measured(job: &Job) -> Result<Option<(Vec<BaselineCell>, Vec<OtherProgram>)>> {
    let targets = job.targets(&[])?.with_context(|| job.no_config("--update"))?;
    let progress = output::Progress::new(job.global);
    let tell = |words: &str| progress.tell(words);
    let budget = job.rules.time_budget / targets.len() as f64;
    let (mut cells, mut busy) = (Vec::new(), Vec::new());
    for target in &targets {
        let arm = job.arm(target, &job.program);
        let mut programs = job.programs(arm.clone(), arm, &target.key, None, &tell);
        let Some(trials) = trials_of(target, &mut programs, budget, job.rules.min_pairs, &tell) else {
            return Ok(None);
        };
        busy.extend(programs.others.programs());
        cells.push(BaselineCell {
            key: target.key.clone(),
            label: target.label.clone(),
            cell: target.cell.clone(),
            environment: job.environment.clone(),
            trials,
        });
    }
    progress.clear();
    Ok(Some((cells, busy)))
}

/// Whether a baseline wants another trial after so many, of which `counted` count: until enough count or the budget ends. The least
/// that a gate needs are tried in any case.
fn wants_more(tried: usize, counted: usize, least: usize, seconds: f64, budget: f64) -> bool {
    tried < least || counted < TRIALS && seconds < budget
}

/// Trials of one cell after a first that does not count.
fn trials_of(
    target: &Target,
    programs: &mut zbench_suites::gate::measure::Programs,
    budget: f64,
    least: usize,
    tell: &dyn Fn(&str),
) -> Option<Vec<Trial>> {
    let begun = std::time::Instant::now();
    let mut trials: Vec<Trial> = Vec::new();
    programs.measure(Side::Candidate)?;
    let mut counted = 0;
    while wants_more(trials.len(), counted, least, begun.elapsed().as_secs_f64(), budget) {
        tell(&format!("{}: trial {} for the baseline, {counted} count", target.label, trials.len() + 1));
        let (trial, _) = programs.measure(Side::Candidate)?;
        counted += usize::from(allowed(&trial, programs.allow_load).is_clean());
        let is_measured = trial.is_measured();
        trials.push(trial);
        if !is_measured {
            break;
        }
    }
    Some(trials)
}

/// Prints the new trials beside those of the old file.
fn show(job: &mut Job, old: Option<&Stored>, new: &Baseline) -> Result<()> {
    let Some(old) = old else { return Ok(()) };
    let mut reports = Vec::new();
    for cell in &new.cells {
        let Some(before) = old.cell(&cell.key) else {
            job.notes.push(format!("The cell {} ({}) is new in the baseline.", cell.label, cell.key));
            continue;
        };
        let target = Target {
            key: cell.key.clone(),
            label: cell.label.clone(),
            cell: cell.cell.clone(),
            arguments: Vec::new(),
            seed: None,
        };
        let question = job.question(&target, Opponent::Stored(before.trials.clone()), 0, new.cells.len());
        let report = judge_records(&question, cell.trials.clone());
        reports.push(report);
    }
    for gone in old.cells.iter().filter(|cell| new.cells.iter().all(|other| other.key != cell.key)) {
        job.notes.push(format!("The cell {} ({}) is no longer in the baseline.", gone.label, gone.key));
    }
    let sides = (old.words.clone(), "the new baseline".into());
    let report = job.report(reports, sides, "the old baseline beside the new one", "");
    match job.global.format {
        crate::Format::Json => print_json(&document::json_lines(&report)?),
        _ => print_document(job.global, &document::document(&report)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_that_do_not_count_do_not_end_a_baseline_before_its_budget() {
        let more = |tried, counted, seconds| wants_more(tried, counted, 10, seconds, 180.0);
        assert!(more(TRIALS, 3, 28.0), "most did not count, and there is time");
        assert!(!more(TRIALS, TRIALS, 28.0) && !more(200, 3, 180.0));
        assert!(more(9, 0, 400.0), "slow trials are tried as often as a gate needs");
    }
}
