//! Ranks that train, save and load. All of a measurement's ranks are threads of this process.

use super::memory;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zbench_config::shard_spec::ShardSpec;
use zbench_engine::checkpoint::training::{Digest, StateError, step_dir};
use zbench_engine::compute::error::StepError;
use zbench_engine::compute::hardware;
use zbench_engine::config::{Cell, Resume, Saving};
use zbench_engine::observe::outcome::{Cause, Failure, Saved};
use zbench_engine::plan::Plan;
use zbench_engine::run::launch_ranks::{kernels, with_ranks};
use zbench_engine::run::rank::Rank;
use zbench_engine::run::saver::Saver;
use zbench_kernels::OutOfMemory;
use zbench_reports::bench::checkpoint::{AsyncSave, Load, Save};
use zbench_reports::stats;

/// Why a measurement was not made.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("{1}: {0}")]
    Memory(OutOfMemory, String),
    #[error("{0}")]
    Failed(String),
}

type Result<T> = std::result::Result<T, SessionError>;

/// Runs all ranks of a cell.
fn ranks<T: Send>(
    cell: &Cell,
    what: &str,
    work: impl Fn(&mut Rank<'_>) -> std::result::Result<T, StepError> + Sync,
) -> Result<Vec<T>> {
    let failed = |reason: String| SessionError::Failed(format!("{what}: {reason}"));
    let planner = hardware::planner(cell).map_err(|error| failed(error.to_string()))?;
    let plan = Plan::new(cell, &*planner).map_err(|error| failed(error.to_string()))?;
    let kernels = kernels(cell, &zbench_host::devices::machine).map_err(|error| failed(error.to_string()))?;
    with_ranks(cell, &plan, kernels, work).map_err(|Failure { cause, .. }| match cause {
        Cause::OutOfMemory { rank, error } => SessionError::Memory(error, format!("{what}, rank {rank}")),
        other => failed(other.to_string()),
    })
}

fn step_error(error: StateError) -> StepError {
    match error {
        StateError::Step(error) => error,
        other => StepError::Input(other.to_string()),
    }
}

/// The cell, saving there and nowhere else.
fn saving(cell: &Cell, dir: &Path, asynchronous: bool) -> Cell {
    let mut cell = cell.clone();
    if let Some(saving) = cell.checkpoint.take() {
        let here = Saving { dir: dir.into(), every: 0, keep: 0, asynchronous, resume: Resume::Never, ..*saving };
        cell.checkpoint = Some(Box::new(here));
    }
    cell
}

/// The cell, going on from that checkpoint with that sharding.
fn loading(cell: &Cell, spec: ShardSpec, from: &Path, dir: &Path, cores: usize) -> Cell {
    let mut cell = spec.apply(&saving(cell, dir, false), cores);
    if let Some(saving) = &mut cell.checkpoint {
        saving.resume = Resume::From(from.into());
    }
    cell
}

fn saver_of(rank: &mut Rank<'_>) -> std::result::Result<Saver, StepError> {
    let absent = || StepError::Input("the cell has no checkpoints; a bug".into());
    Saver::new(rank).map_err(step_error)?.ok_or_else(absent)
}

/// What a rank that has trained for a while takes for a step, in milliseconds.
fn trained(rank: &mut Rank<'_>, saver: &mut Saver, cell: &Cell) -> std::result::Result<f64, StepError> {
    let mut ms = Vec::with_capacity(cell.train.steps);
    for step in 0..cell.train.untimed_steps + cell.train.steps {
        let begin = Instant::now();
        saver.step(rank, &mut |_, _| Ok(None)).map_err(step_error)?;
        if step >= cell.train.untimed_steps {
            ms.push(begin.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(stats::median(&ms).unwrap_or(0.0))
}

pub struct Written<S> {
    /// What it took.
    pub save: S,
    pub step_ms: f64,
    /// What is in it.
    pub digest: Digest,
    pub dir: std::path::PathBuf,
}

/// Trains, then saves while training waits.
pub fn save(cell: &Cell, dir: &Path) -> Result<Written<Save>> {
    let cell = saving(cell, dir, false);
    let written = ranks(&cell, "a save", |rank| {
        let mut saver = saver_of(rank)?;
        let step_ms = trained(rank, &mut saver, &cell)?;
        // All ranks meet in it.
        let digest = rank.executor.digest().map_err(step_error)?;
        let watch = (rank.number() == 0).then(memory::begin);
        let begin = Instant::now();
        let saved = saver.save(rank).map_err(step_error)?;
        let ms = begin.elapsed().as_secs_f64() * 1e3;
        let (Some(watch), Some(saved)) = (watch, saved.last()) else { return Ok(None) };
        let peak = memory::end(&watch).map(|seen| seen.peak - seen.before);
        let &Saved { bytes, stall_ms, copied_bytes, .. } = saved;
        let save = Save { bytes, ms, stall_ms, copied_bytes, peak_bytes: peak };
        Ok(Some(Written { save, step_ms, digest, dir: saved.dir.clone() }))
    });
    first(written?)
}

/// Trains, then saves while training goes on.
pub fn save_async(cell: &Cell, dir: &Path) -> Result<Written<AsyncSave>> {
    let cell = saving(cell, dir, true);
    let gate = Gate::default();
    let written = ranks(&cell, "a save while training goes on", |rank| {
        let mut saver = saver_of(rank)?;
        let step_ms = trained(rank, &mut saver, &cell)?;
        let digest = rank.executor.digest().map_err(step_error)?;
        let speaks = rank.number() == 0;
        let opener = speaks.then(|| Opener(&gate));
        let watch = speaks.then(memory::begin);
        let begin = Instant::now();
        let mut saved = saver.save(rank).map_err(step_error)?.pop();
        let mut steps = 0;
        loop {
            if let Some(opener) = &opener {
                opener.tell(steps, saved.is_none());
            }
            if !gate.goes_on(steps) {
                break;
            }
            let done = saver.step(rank, &mut |_, _| Ok(None)).map_err(step_error)?;
            (saved, steps) = (done.into_iter().next_back(), steps + 1);
        }
        let elapsed = begin.elapsed().as_secs_f64() * 1e3;
        let (Some(watch), Some(saved)) = (watch, saved) else { return Ok(None) };
        let peak = memory::end(&watch).map(|seen| seen.peak - seen.before);
        let excess_ms = elapsed - steps as f64 * step_ms;
        let Saved { ms, stall_ms, copied_bytes, dir, .. } = saved;
        let save = AsyncSave { ms, stall_ms, excess_ms, steps, step_ms, copied_bytes, peak_bytes: peak };
        Ok(Some(Written { save, step_ms, digest, dir }))
    });
    first(written?)
}

/// What rank 0 has.
fn first<T>(all: Vec<Option<T>>) -> Result<T> {
    let absent = || SessionError::Failed("rank 0 was told of no checkpoint; a bug".into());
    all.into_iter().next().flatten().ok_or_else(absent)
}

/// Loads a checkpoint with another sharding, which also writes it into the folder `again`, if there is one. The checkpoint written.
pub fn load(
    cell: &Cell,
    spec: ShardSpec,
    from: &Written<()>,
    unused: &Path,
    again: Option<&Path>,
    cores: usize,
) -> Result<(Load, Option<std::path::PathBuf>)> {
    let cell = loading(cell, spec, &from.dir, again.unwrap_or(unused), cores);
    let watch = memory::begin();
    let resident = Mutex::new(None);
    let loaded = ranks(&cell, &format!("a load as {spec}"), |rank| {
        // All ranks meet in it: then all have loaded.
        let digest = rank.executor.digest().map_err(step_error)?;
        if rank.number() == 0 {
            *lock(&resident) = memory::end(&watch);
        }
        let (bytes, ms) = rank.resumed().map_or((0, 0.0), |resumed| (resumed.bytes, resumed.ms));
        if again.is_some() {
            let mut saver = saver_of(rank)?;
            saver.forget();
            saver.save(rank).map_err(step_error)?;
        }
        Ok((bytes, ms, digest, rank.position().steps))
    });
    let loaded = loaded?;
    let steps = loaded.first().map_or(0, |rank| rank.3);
    let load = Load {
        by: spec.to_string(),
        ms: loaded.iter().map(|rank| rank.1).fold(0.0, f64::max),
        bytes: loaded.iter().map(|rank| rank.0).sum(),
        peak_bytes: lock(&resident).map(|seen| seen.peak - seen.after),
        equal: loaded.iter().all(|rank| rank.2 == from.digest),
    };
    Ok((load, again.map(|again| step_dir(again, steps))))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How the ranks agree to end after the same step, without a collective that would be part of it: rank 0 says before each
/// step whether it is made.
#[derive(Default)]
struct Gate {
    /// Steps that may be made, and whether there will be more.
    open: Mutex<(u64, bool)>,
    changed: Condvar,
}

/// Rank 0's; when it is gone nobody waits for it.
struct Opener<'a>(&'a Gate);

impl Opener<'_> {
    fn tell(&self, step: u64, goes_on: bool) {
        *lock(&self.0.open) = if goes_on { (step + 1, false) } else { (step, true) };
        self.0.changed.notify_all();
    }
}

impl Drop for Opener<'_> {
    fn drop(&mut self) {
        lock(&self.0.open).1 = true;
        self.0.changed.notify_all();
    }
}

impl Gate {
    fn goes_on(&self, step: u64) -> bool {
        let mut open = lock(&self.open);
        while open.0 <= step && !open.1 {
            open = self.changed.wait_timeout(open, Duration::from_secs(1)).unwrap_or_else(PoisonError::into_inner).0;
        }
        open.0 > step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_make_as_many_steps_as_the_first_says_and_nobody_waits_for_one_that_is_gone() {
        for fails_at in [None, Some(2)] {
            let gate = Gate::default();
            let steps: Vec<u64> = std::thread::scope(|scope| {
                let others: Vec<_> = (0..3)
                    .map(|_| scope.spawn(|| (0..).find(|step| !gate.goes_on(*step)).unwrap_or_default()))
                    .collect();
                let opener = Opener(&gate);
                for step in 0..=5 {
                    if fails_at == Some(step) {
                        break;
                    }
                    opener.tell(step, step < 5);
                    std::thread::sleep(Duration::from_millis(2));
                }
                drop(opener);
                others.into_iter().map(|other| other.join().unwrap()).collect()
            });
            assert_eq!(steps, [fails_at.unwrap_or(5); 3]);
        }
    }
}
