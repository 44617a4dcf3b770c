//! When the state of a run is written, and by whom: every rank its part, on a thread; rank 0 makes of the parts a
//! checkpoint when all ranks are known to have written theirs.

use crate::checkpoint::training::{
    Folder, Identity, Index, RankFiles, Result, Resumable, StateError, file_names, full, part_dir, read_json, shard,
    spawn, write_json,
};
use crate::compute::error::StepError;
use crate::config::{SaveLayout, Saving};
use crate::observe::outcome::{Evaluated, History, Saved, Step};
use crate::run::rank::Rank;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::{debug, info};

const HISTORY: &str = "steps.json";

pub struct Saver {
    saving: Saving,
    /// Rank 0 alone has it.
    folder: Option<Arc<Folder>>,
    identity: Identity,
    frozen: Option<u64>,
    under_way: Option<UnderWay>,
    /// A checkpoint was begun, and the ranks have not synchronized at its end yet.
    begun: bool,
    /// Rank 0's: what the run has done so far, before it was resumed too.
    history: History,
    /// The step of the last checkpoint, or of what the run went on from.
    last: Option<u64>,
}

/// What is done between a step and its checkpoint, such as an evaluation.
pub type After<'a> = dyn FnMut(&mut Rank<'_>, &Step) -> Result<Option<Evaluated>, StepError> + 'a;

struct UnderWay {
    index: Index,
    begin: Instant,
    /// Time in which this rank could not train.
    stall: Duration,
    copied: Arc<AtomicU64>,
    /// The thread that writes this rank's part; `None` once the part is on the disk.
    part: Option<JoinHandle<Result<u64>>>,
    /// Rank 0's thread that completes the checkpoint, once all parts are on the disk.
    commit: Option<JoinHandle<Result<(PathBuf, u64)>>>,
}

impl Saver {
    /// For a cell with checkpoints; rank 0 takes the folder. A collective call.
    ///
    /// # Errors
    /// The folder cannot be written, or the run goes on from a checkpoint of other weights.
    pub fn new(rank: &mut Rank<'_>) -> Result<Option<Saver>> {
        let Some(saving) = rank.inputs.cell.checkpoint.as_deref().cloned() else { return Ok(None) };
        // Only what lies in this folder is this run's own past.
        let own = |from: &&Resumable| from.dir.parent() == Some(saving.dir.as_path());
        let resumed = rank.inputs.resume.map(|from| from.index.position.steps);
        let past = rank.inputs.resume.filter(own).map(|from| from.index.position.steps);
        let folder = if rank.number() == 0 { Some(Arc::new(Folder::take(&saving.dir, past)?)) } else { None };
        // Nobody writes before rank 0 has cleared the folder, and nobody trains on from another checkpoint than the others.
        let marks = rank.executor.of_all(&[rank.inputs.resume.map_or(0, Resumable::mark)])?;
        if marks.iter().any(|mark| *mark != marks[0]) {
            let reason = "ranks found different ones: another run was still writing there; start again";
            return Err(StateError::NotOne { path: saving.dir, reason: reason.into() });
        }
        let history = rank.inputs.resume.filter(|_| folder.is_some()).map(|from| from.history.clone());
        let history = history.unwrap_or_default();
        let identity = Identity::new(rank.inputs.cell, &rank.inputs.plan.layout);
        let frozen = rank.executor.frozen_digest()?;
        if let Some(from) = rank.inputs.resume
            && from.index.frozen != frozen
        {
            let reason = "the weights that do not train are others (model.path, train.seed, precision or lora.base)";
            return Err(StateError::OtherModel { dir: from.dir.clone(), reason: reason.into() });
        }
        Ok(Some(Saver { saving, folder, identity, frozen, under_way: None, begun: false, history, last: resumed }))
    }

    /// A step of training, then `after` (an evaluation, say), and a checkpoint of both where one is due.
    /// All ranks call it.
    ///
    /// # Errors
    /// The step or what is behind it failed, or a checkpoint was not written.
    pub fn step(&mut self, rank: &mut Rank<'_>, after: &mut After<'_>) -> Result<Vec<Saved>> {
        rank.executor.local_flags.written = self.has_written()?;
        let step = rank.step()?;
        let all_written = rank.executor.global_flags.written;
        let evaluated = after(rank, &step)?;
        if self.folder.is_some() {
            self.history.steps.push(step);
        }
        self.evaluated(evaluated);
        let mut saved = Vec::new();
        if all_written {
            self.begin_commit()?;
        }
        if let Some(UnderWay { commit: Some(commit), .. }) = &self.under_way
            && commit.is_finished()
        {
            saved.extend(self.end_commit(rank)?);
        }
        if self.saving.every > 0 && rank.executor.progress.steps.is_multiple_of(self.saving.every) {
            saved.extend(self.save(rank)?);
        }
        Ok(saved)
    }

    /// Takes an evaluation into the run's history.
    pub fn evaluated(&mut self, evaluated: Option<Evaluated>) {
        if self.folder.is_some() {
            self.history.evaluations.extend(evaluated);
        }
    }

    /// Whether this rank's part of the checkpoint under way is on the disk; told to the others in every step.
    fn has_written(&mut self) -> Result<bool> {
        let Some(under_way) = &mut self.under_way else { return Ok(false) };
        // A rank 0 that commits is past that, and the others have nothing under way then.
        if under_way.commit.is_some() || under_way.part.as_ref().is_some_and(|part| !part.is_finished()) {
            return Ok(false);
        }
        under_way.join_part()?;
        Ok(true)
    }

    /// A checkpoint of now, unless there is one; if it is not to be written while training goes on, it is complete when this
    /// returns. A collective call.
    ///
    /// # Errors
    /// It was not written; those that were there before are as they were.
    pub fn save(&mut self, rank: &mut Rank<'_>) -> Result<Vec<Saved>> {
        let mut saved = self.finish(rank)?;
        if self.last == Some(rank.executor.progress.steps) {
            return Ok(saved);
        }
        self.start(rank)?;
        if !self.saving.asynchronous {
            saved.extend(self.finish(rank)?);
        }
        Ok(saved)
    }

    /// Waits until the checkpoint under way is complete, on all ranks. A collective call.
    ///
    /// # Errors
    /// As [`Saver::save`].
    pub fn finish(&mut self, rank: &mut Rank<'_>) -> Result<Vec<Saved>> {
        if !std::mem::take(&mut self.begun) {
            return Ok(Vec::new());
        }
        let waited = Instant::now();
        if let Some(under_way) = &mut self.under_way {
            under_way.join_part()?;
        }
        rank.executor.optimizer.recall()?;
        // A rank that could not write its part does not come here, and says why.
        meet(rank)?;
        if self.under_way.as_ref().is_some_and(|under_way| under_way.commit.is_none()) {
            self.begin_commit()?;
        }
        let mut saved = self.end_commit(rank)?;
        meet(rank)?;
        if let Some(saved) = &mut saved {
            saved.stall_ms += waited.elapsed().as_secs_f64() * 1e3;
        }
        Ok(saved.into_iter().collect())
    }

    /// The next [`Saver::save`] writes, though there may be a checkpoint of this step.
    pub fn forget(&mut self) {
        self.last = None;
    }

    fn start(&mut self, rank: &mut Rank<'_>) -> Result<()> {
        let begin = Instant::now();
        debug!(target: "zbench::checkpoint", step = rank.executor.progress.steps, dir = %self.saving.dir.display(), "saving starts");
        let cell = rank.inputs.cell;
        let mut index = Index::new(cell, rank.position(), self.identity.clone(), self.frozen);
        index.ranks = (0..rank.executor.state.mesh().world()).map(|rank| (file_names(rank).1, 0)).collect();
        let dir = part_dir(&self.saving.dir, rank.executor.progress.steps);
        let place = (dir, rank.number(), self.saving.direct);
        rank.executor.stall = Duration::ZERO;
        let (copied, part) = match self.saving.layout {
            SaveLayout::Sharded => shard::start(&mut rank.executor, place)?,
            SaveLayout::Full => full::start(&mut rank.executor, place)?,
        };
        (self.last, self.begun) = (Some(rank.executor.progress.steps), true);
        let stall = begin.elapsed();
        self.under_way = Some(UnderWay { index, begin, stall, copied, part: Some(part), commit: None });
        Ok(())
    }

    /// Rank 0 puts the parts together, on a thread; the others are done.
    fn begin_commit(&mut self) -> Result<()> {
        let Some(under_way) = &mut self.under_way else { return Ok(()) };
        let Some(folder) = self.folder.clone() else {
            self.under_way = None;
            return Ok(());
        };
        let (mut index, dir, keep) = (under_way.index.clone(), self.saving.dir.clone(), self.saving.keep);
        // Steps that were done while it was written are no part of it.
        let mut history = self.history.clone();
        history.end_at(index.position.steps);
        under_way.commit = Some(spawn(move || {
            let part = part_dir(&dir, index.position.steps);
            let mut bytes = 0;
            for (name, sum) in &mut index.ranks {
                let path = part.join(&*name);
                if !path.exists() {
                    let reason = "this rank wrote it and rank 0 does not see it: checkpoint.dir must be a folder that all \
                                  hosts share";
                    return Err(StateError::NotOne { path, reason: reason.into() });
                }
                let (files, found) = read_json::<RankFiles>(&path)?;
                *sum = found;
                // Of a file that several ranks write, one of them has the first transfer.
                bytes += files.files.iter().filter(|file| file.first == 0).map(|file| file.bytes).sum::<u64>();
            }
            index.history = Some((HISTORY.into(), write_json(&part.join(HISTORY), &history)?));
            let path = folder.commit(&index)?;
            folder.prune(keep)?;
            Ok((path, bytes))
        })?);
        Ok(())
    }

    /// What rank 0 reports of the complete checkpoint.
    fn end_commit(&mut self, rank: &mut Rank<'_>) -> Result<Option<Saved>> {
        let Some(mut under_way) = self.under_way.take() else { return Ok(None) };
        let Some((dir, bytes)) = under_way.join_commit()? else { return Ok(None) };
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let seconds = under_way.begin.elapsed().as_secs_f64();
        info!(target: "zbench::checkpoint", dir = %dir.display(), bytes, seconds, "checkpoint is saved");
        Ok(Some(Saved {
            step: under_way.index.position.steps,
            dir,
            bytes,
            ms: ms(under_way.begin.elapsed()),
            stall_ms: ms(under_way.stall + std::mem::take(&mut rank.executor.stall)),
            copied_bytes: under_way.copied.load(Ordering::Relaxed),
        }))
    }
}

impl Drop for Saver {
    /// A run that fails leaves no half of a checkpoint that takes room; what is still being written goes with its file.
    fn drop(&mut self) {
        let (Some(under_way), Some(_)) = (&mut self.under_way, &self.folder) else { return };
        // Why they fail has been said, or is of no interest any more.
        let committed = under_way.join_part().and_then(|()| under_way.join_commit());
        if !matches!(committed, Ok(Some(_))) {
            let _ = std::fs::remove_dir_all(part_dir(&self.saving.dir, under_way.index.position.steps));
        }
    }
}

impl UnderWay {
    fn join_part(&mut self) -> Result<()> {
        self.part.take().map_or(Ok(()), |part| joined(part).map(|_| ()))
    }

    fn join_commit(&mut self) -> Result<Option<(PathBuf, u64)>> {
        self.commit.take().map(joined).transpose()
    }
}

fn joined<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    let panicked = |_| StateError::Step(StepError::Bug("a thread that writes checkpoints has panicked"));
    thread.join().unwrap_or_else(|panic| Err(panicked(panic)))
}

/// Waits for all ranks; not counted as traffic of training.
fn meet(rank: &Rank<'_>) -> Result<()> {
    Ok(rank.executor.context.comms.world().unmetered().barrier().map_err(StepError::from)?)
}
