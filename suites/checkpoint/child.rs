//! Inside a trial's process: trains, saves, loads, and says what was measured.

use super::raw::{Raw, gb_s};
use super::sessions::{self, SessionError, Written};
use super::{CheckpointCell, Job};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};
use zbench_config::shard_spec::ShardSpec;
use zbench_engine::planner::Planner;
use zbench_reports::bench::checkpoint::{Measured, Repeat};

/// Exit status of a process that could not even begin.
const BROKEN: u8 = 70;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Report {
    Measured(Box<Measured>),
    /// What is measured now, after so many of all parts.
    Part {
        what: String,
        done: usize,
        all: usize,
    },
    /// None, and why; whether an arena was full.
    Failed {
        reason: String,
        out_of_memory: bool,
    },
}

/// The whole life of a trial's process; its exit status.
pub fn main() -> u8 {
    let job: Job = match zbench_runner::child_process::read_job(&mut std::io::stdin()) {
        Ok(job) => job,
        Err(reason) => {
            zbench_host::say!("{reason}");
            return BROKEN;
        }
    };
    let Some(cell) = CheckpointCell::of_plain(&job.cell) else {
        zbench_host::say!("the job holds no cell of suite checkpoint");
        return BROKEN;
    };
    let report = match measure(&cell, &job.folder, job.cores) {
        Ok(measured) => Report::Measured(Box::new(measured)),
        Err(error) => {
            let out_of_memory = matches!(error, SessionError::Memory(..));
            Report::Failed { reason: error.to_string(), out_of_memory }
        }
    };
    if say(&report) { 0 } else { BROKEN }
}

/// Whether it could be said.
fn say(report: &Report) -> bool {
    serde_json::to_string(report).is_ok_and(|line| writeln!(std::io::stdout(), "{line}").is_ok())
}

/// What is measured one after the other, each said as it begins.
struct Parts {
    done: usize,
    all: usize,
}

impl Parts {
    fn of(CheckpointCell { cell, load_as, repeats }: &CheckpointCell) -> Parts {
        let is_async = cell.checkpoint.as_deref().is_some_and(|saving| saving.asynchronous);
        // The rate of the disk thrice, a save, a load; and back to the own sharding from another.
        let of_repeat = 5 + usize::from(is_async) + load_as.len() + usize::from(!load_as.is_empty());
        Parts { done: 0, all: 1 + repeats * of_repeat }
    }

    fn begin(&mut self, what: impl ToString) {
        say(&Report::Part { what: what.to_string(), done: self.done, all: self.all });
        self.done += 1;
    }
}

fn failed(reason: impl ToString) -> SessionError {
    SessionError::Failed(reason.to_string())
}

fn measure(of: &CheckpointCell, folder: &Path, cores: usize) -> Result<Measured, SessionError> {
    let CheckpointCell { cell, repeats, .. } = of;
    let saving = cell.checkpoint.as_deref().ok_or_else(|| failed("the cell has no checkpoints; a bug"))?;
    let estimate = zbench_predict::planned::estimate(&Planner::default(), cell).map_err(failed)?;
    let mut measured = Measured {
        folder: folder.display().to_string(),
        parameters: estimate.trainable_parameters,
        ..Measured::default()
    };
    // The size of the disk's files is that of a checkpoint, which the first one tells; it also makes all that follow alike.
    let first = folder.join("first");
    let mut parts = Parts::of(of);
    parts.begin("the first save, which tells the size");
    let bytes = sessions::save(cell, &first)?.save.bytes;
    remove(&first)?;
    let raw = Raw::open(folder, cell.parallel.ranks, bytes);
    for number in 0..*repeats {
        let place = folder.join(number.to_string());
        measured.repeats.push(repeat(of, &mut parts, &raw, &place, cores)?);
        remove(&place)?;
    }
    debug_assert_eq!(parts.done, parts.all, "all parts were said");
    measured.no_disk = raw.trouble();
    measured.direct = saving.direct && measured.no_disk.is_empty();
    Ok(measured)
}

fn remove(folder: &Path) -> Result<(), SessionError> {
    std::fs::remove_dir_all(folder).map_err(|error| failed(format!("{} cannot be removed: {error}", folder.display())))
}

/// One measurement of everything.
fn repeat(
    of: &CheckpointCell,
    parts: &mut Parts,
    raw: &Raw,
    place: &Path,
    cores: usize,
) -> Result<Repeat, SessionError> {
    let CheckpointCell { cell, load_as, .. } = of;
    let goes_on = cell.checkpoint.as_deref().is_some_and(|saving| saving.asynchronous);
    parts.begin("the disk's rate of writing");
    let before = raw.write().map_err(failed)?;
    parts.begin("a save");
    let sync = sessions::save(cell, &place.join("sync"))?;
    parts.begin("the disk's rate of writing");
    let after = raw.write().map_err(failed)?;
    let mut asynchronous = None;
    let (save, step_ms) = (sync.save, sync.step_ms);
    let mut newest = Written { save: (), step_ms, digest: sync.digest, dir: sync.dir };
    if goes_on {
        parts.begin("a save while training goes on");
        let written = sessions::save_async(cell, &place.join("async"))?;
        asynchronous = Some(written.save);
        // What is loaded below is what was written while training went on.
        remove(&place.join("sync"))?;
        newest = Written { save: (), step_ms, digest: written.digest, dir: written.dir };
    }
    parts.begin("the disk's rate of reading");
    let disk_read = raw.read().map_err(failed)?;
    let unused = place.join("unused");
    let own = ShardSpec::of(cell);
    parts.begin(format!("a load as {own}"));
    let (load, _) = sessions::load(cell, own, &newest, &unused, None, cores)?;
    let mut reshard = Vec::new();
    let mut back: Option<PathBuf> = None;
    for (index, spec) in load_as.iter().enumerate() {
        let again = place.join("again");
        let again = (index + 1 == load_as.len()).then_some(again.as_path());
        parts.begin(format!("a load as {spec}"));
        let (load, written) = sessions::load(cell, *spec, &newest, &unused, again, cores)?;
        reshard.push(load);
        back = written;
    }
    if let Some(dir) = back {
        let written = Written { save: (), step_ms, digest: newest.digest, dir };
        parts.begin(format!("a load as {own} again"));
        let (mut load, _) = sessions::load(cell, own, &written, &unused, None, cores)?;
        load.by = format!("{own} again");
        reshard.push(load);
    }
    Ok(Repeat {
        disk_write_gb_s: gb_s(&[before, after]),
        disk_read_gb_s: gb_s(&[disk_read]),
        step_ms,
        save,
        asynchronous,
        load,
        reshard,
    })
}
