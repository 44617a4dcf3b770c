//! A grid by turns: all its cells are resident and take turns, generation after generation, and every process leaves a record.

mod batches;
mod conduct;
mod past;

use crate::schedule::LOOK_AGAIN;
use crate::turns::resident::Program;
use crate::turns::{Ending, Experiment, Participant, Settings, TurnsError};
use crate::{Runner, Summary, Train, logged, parity};
use batches::{Earlier, batches, sizes};
use conduct::{Batch, GridPolicy};
use past::Past;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zbench_engine::config::{Backend, Cell, DeviceKind};
use zbench_predict::planned::{Decision, Planned, gib};
use zbench_reports::record::Record;
use zbench_reports::units::plural;
use zbench_reports::{Index, IndexEntry, StoreError};

/// How a grid is measured by turns.
#[derive(Clone, Debug)]
pub struct ByTurns {
    /// This program.
    pub program: PathBuf,
    /// Wall time of the whole experiment, over all commands that go on with it, without discarded rounds. These prolong a command
    /// by as much again as it has left, at most.
    pub budget: Duration,
    /// Differences below this share are called equal.
    pub equal: f64,
    /// Decides every order; from the clock unless given.
    pub seed: u64,
    /// Limit of one turn.
    pub timeout: Duration,
    /// Rounds count however much other processes use the cores.
    pub allow_load: bool,
    /// Set when the user wants to stop.
    pub stop: Arc<AtomicBool>,
    /// Whatever the notebook holds, a new experiment begins.
    pub fresh: bool,
    /// Bytes of memory that can be had.
    pub available: u64,
}

/// Why the experiment could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ByTurnsError {
    /// The notebook cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The budget is too small.
    #[error(transparent)]
    Turns(#[from] TurnsError),
    /// A cell is too large to be resident beside the reference and its twin.
    #[error("{0}; measure by trials: --trials N")]
    TooLarge(String),
}

/// Why these cells cannot take turns, if they cannot.
pub fn why_not(cells: &[Planned], available: u64) -> Option<String> {
    let running: Vec<&Cell> = running(cells).filter_map(|index| cells[index].cell()).collect();
    if running.len() < 2 {
        return Some("fewer than two cells run here, so there is nothing to compare".into());
    }
    let reason = running.iter().find_map(|cell| match cell {
        cell if cell.hardware.device == DeviceKind::Cuda || cell.parallel.backend == Backend::Nccl => {
            Some("cells on a GPU do not share its memory".into())
        }
        cell if cell.checkpoint.is_some()
            || cell.model.save.is_some()
            || cell.lora.save.is_some()
            || cell.lora.merge.is_some() =>
        {
            Some("cells that write checkpoints or weights do not train on behind their last step".into())
        }
        _ => None,
    });
    reason.or_else(|| in_batches(cells, reference_of(cells)?, available, Earlier::default()).err())
}

/// The batches of a grid, or why there can be none.
fn in_batches(
    cells: &[Planned],
    reference: usize,
    available: u64,
    earlier: Earlier,
) -> Result<Vec<Vec<usize>>, String> {
    batches(&sizes(cells), reference, available, earlier).map_err(|(index, bytes)| {
        format!(
            "the reference, its twin and the cell {} take {} together while they are resident, which is more than {:.0} % of the {} of \
             memory that are available",
            cells[index].grid.label,
            gib(bytes),
            100.0 * batches::MOST_MEMORY,
            gib(available)
        )
    })
}

fn running(cells: &[Planned]) -> impl Iterator<Item = usize> {
    (0..cells.len()).filter(|index| cells[*index].decision == Decision::Run)
}

/// The cell that all others are compared with, of the cells that run: the first ddp cell, or the first.
pub fn reference_of(cells: &[Planned]) -> Option<usize> {
    let is_reference = |index: &usize| cells[*index].cell().is_some_and(parity::is_reference);
    running(cells).find(is_reference).or_else(|| running(cells).next())
}

/// Names the experiment of these cells: the same command finds it again.
fn name_of(cells: &[Planned]) -> String {
    let keys: Vec<&str> = running(cells).map(|index| cells[index].grid.key.as_str()).collect();
    blake3::hash(keys.join(" ").as_bytes()).to_hex()[..12].to_string()
}

impl Runner<'_, Train<'_>> {
    /// Measures a grid by turns, going on where an earlier command on the same notebook was stopped.
    ///
    /// # Errors
    /// The notebook cannot be read or written, or the budget is too small; what was appended before stays.
    pub fn take_turns(&mut self, cells: &[Planned], how: &ByTurns) -> Result<Summary, ByTurnsError> {
        let Some(reference) = reference_of(cells) else { return Ok(Summary::default()) };
        logged::grid_begins(&self.header, cells.len(), "turns");
        let name = name_of(cells);
        let _claim = loop {
            if let Some(claim) = self.notebook.claim(&name, 0)? {
                break claim;
            }
            if how.stop.load(Ordering::Relaxed) {
                return Ok(Summary { interrupted: true, ..Summary::default() });
            }
            self.observe.wait();
            std::thread::sleep(LOOK_AGAIN);
        };
        self.notebook.check_writable()?;
        let recovered = self.notebook.recover()?;
        let index = self.notebook.index()?;
        let skipped = self.record_skipped(cells, &index)?;
        let here = (!self.header.any_environment).then(|| self.header.environment.clone());
        let is_ours = |record: &&IndexEntry| {
            record.experiment.as_ref().is_some_and(|experiment| experiment.starts_with(&name))
                && here.as_ref().is_none_or(|here| record.why_not_the_same(here).is_none())
        };
        let newest = index.records.iter().rfind(is_ours).filter(|_| !how.fresh);
        let experiment = match newest.and_then(|record| record.experiment.clone()) {
            Some(experiment) => experiment,
            None => format!("{name}-{}", jiff::Timestamp::now().as_millisecond()),
        };
        let of_experiment = |record: &&IndexEntry| record.experiment.as_ref() == Some(&experiment);
        let earlier = self.notebook.whole(index.records.iter().filter(of_experiment).filter(is_ours))?;
        drop(index);
        let mut summary = self.go_on(cells, reference, how, experiment, earlier)?;
        summary.said.splice(0..0, recovered.warnings);
        if recovered.added > 0 {
            let records = plural(recovered.added, "record was made of turns", "records were made of turns");
            summary
                .said
                .insert(0, format!("{records} that a zbench on this notebook had measured before it was killed"));
        }
        logged::grid_ends(&summary);
        Ok(Summary { records: in_order(cells, [skipped, summary.records].concat()), ..summary })
    }

    /// Records of cells that do not run; those that the notebook has already, where nothing has changed.
    fn record_skipped(&mut self, cells: &[Planned], known: &Index) -> Result<Vec<Record>, StoreError> {
        let mut records = Vec::new();
        for planned in cells {
            let Decision::Record { status, reason, .. } = &planned.decision else { continue };
            let is_it = |record: &&IndexEntry| {
                record.key == planned.grid.key && record.status == *status && record.reason == *reason
            };
            if let Some(record) = known.records.iter().rfind(is_it) {
                records.push(self.notebook.record(record)?);
                continue;
            }
            self.observe.begin(planned, 1, 0, cells.len());
            // What is not executed cannot be stopped.
            let Ok((record, _)) = self.trial(planned, 1, cells, &[], &[]) else { continue };
            self.notebook.append(&record)?;
            self.observe.end(&record);
            records.push(record);
        }
        Ok(records)
    }

    fn go_on(
        &mut self,
        cells: &[Planned],
        reference: usize,
        how: &ByTurns,
        experiment: String,
        earlier: Vec<Record>,
    ) -> Result<Summary, ByTurnsError> {
        let of_earlier = Earlier::of(&earlier, cells, reference);
        let batches = in_batches(cells, reference, how.available, of_earlier).map_err(ByTurnsError::TooLarge)?;
        let share = how.budget / (batches.len() as u32).max(1);
        let mut summary = Summary { records: earlier, ..Summary::default() };
        let (mut measured, mut all_decided) = (false, true);
        for (number, batch) in batches.iter().enumerate() {
            let past = Past::of(&summary.records, number);
            if past.is_decided(how.equal) {
                continue;
            }
            let left = share.saturating_sub(past.seconds);
            let earlier = std::mem::take(&mut summary.records);
            let of_batch = Batch { cells, batch, number, experiment: &experiment, share, left };
            let mut conduct = GridPolicy::new(self, of_batch, how, &past, &earlier);
            let is_open = conduct.wanted().contains(&true);
            all_decided &= !is_open;
            let Some(generations) = past.generations_in(left, share, how.budget).filter(|_| is_open) else {
                summary.records = earlier;
                continue;
            };
            let players: Vec<Participant> = conduct
                .players
                .iter()
                .filter_map(|player| Some(player_of(cells[*player].cell()?, &earlier, &cells[*player])))
                .collect();
            let settings = Settings {
                budget: left,
                generations,
                // Orders of its own, also where the seed is given: the coins of an experiment are tossed once each.
                seed: how.seed.wrapping_add(number as u64).wrapping_add(u64::from(past.generations) << 32),
                discard: 0,
                timeout: how.timeout,
                allow_load: how.allow_load,
                extra: left,
            };
            let run = Experiment { program: how.program.clone(), players: &players, settings, stop: how.stop.clone() };
            let ended = run.run(&mut conduct);
            let (made, failed) = (std::mem::take(&mut conduct.records), conduct.failed.take());
            if let Some(error) = conduct.unkept.take() {
                summary.said.push(format!("turns were not on disk until their processes had ended: {error}"));
            }
            summary.appended += made.len();
            summary.records = [earlier, made].concat();
            if let Some(error) = failed {
                return Err(error.into());
            }
            match ended {
                // Of an experiment that is there already, the rest of the time is too short for more.
                Err(TurnsError::TooShort { .. }) if past.generations > 0 => continue,
                // Each batch has its share of the budget.
                Err(TurnsError::TooShort { start, round, advice, .. }) => {
                    let (budget, advice) = (how.budget.as_secs_f64(), advice * batches.len() as f64);
                    return Err(TurnsError::TooShort { budget, start, round, advice }.into());
                }
                Ok(ended) => summary.interrupted = ended == Ending::Interrupted,
            }
            measured = true;
            if summary.interrupted {
                break;
            }
        }
        if !measured {
            summary.said.push(nothing_left(how, all_decided));
        }
        Ok(summary)
    }
}

/// Why nothing was measured, and what would measure more.
fn nothing_left(how: &ByTurns, all_decided: bool) -> String {
    let budget = how.budget.as_secs_f64();
    match all_decided {
        true => format!(
            "nothing was measured: all that --decide {}% asks is decided by the turns in the notebook; a smaller --decide goes on, \
             --fresh measures everything again",
            (1e4 * how.equal).round() / 1e2
        ),
        false => format!(
            "nothing was measured: the turns in the notebook have taken the --budget of {budget:.0} s; a larger one (--budget {:.0}s) goes \
             on, --fresh measures everything again",
            (2.0 * budget).ceil()
        ),
    }
}

/// A cell with all steps of its configuration, unless the notebook has a whole run of it.
fn player_of(cell: &Cell, earlier: &[Record], planned: &Planned) -> Participant {
    let (warmup, all) = (cell.train.untimed_steps, cell.train.untimed_steps + cell.train.steps);
    let is_whole = |record: &Record| record.key == planned.grid.key && record.steps.len() == all;
    let steps = if earlier.iter().any(is_whole) { 0 } else { all };
    Participant { program: Program::Cell(Box::new(cell.clone())), warmup, steps }
}

fn in_order(cells: &[Planned], mut records: Vec<Record>) -> Vec<Record> {
    let place = |record: &Record| cells.iter().position(|cell| cell.grid.key == record.key).unwrap_or(usize::MAX);
    records.sort_by_key(|record| (place(record), record.trial));
    records
}
