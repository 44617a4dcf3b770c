//! The folder of a run's checkpoints. `step-00000010` is complete, on the disk and never changed again; what is being
//! written, or taken away, is `.step-00000010.part`, which nobody reads. One run writes there at a time.

use super::error::{Result, StateError};
use super::index::{Index, Position};
use super::json::{INDEX, read_index, write_json};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::File;
use std::path::{Path, PathBuf};

const PREFIX: &str = "step-";
const LOCK: &str = ".lock";

/// The folder of the checkpoint after so many steps.
pub fn step_dir(dir: &Path, step: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{step:08}"))
}

pub(crate) fn part_dir(dir: &Path, step: u64) -> PathBuf {
    dir.join(format!(".{PREFIX}{step:08}.part"))
}

/// The checkpoints in a folder, oldest first; none where there is no such folder.
///
/// # Errors
/// The folder cannot be read.
pub fn checkpoints(dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(StateError::io("read", dir, source)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|source| StateError::io("read", dir, source))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let step = name
            .strip_prefix(PREFIX)
            .filter(|digits| digits.len() >= 8 && digits.bytes().all(|byte| byte.is_ascii_digit()));
        if let Some(step) = step.and_then(|digits| digits.parse().ok()).filter(|_| path.is_dir()) {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Where the run stood that wrote a checkpoint.
///
/// # Errors
/// It is none, or its index cannot be read.
pub fn position_in(checkpoint: &Path) -> Result<Position> {
    Ok(read_index(checkpoint)?.position)
}

/// The newest checkpoint in a folder, and after how many steps it was written.
///
/// # Errors
/// The folder or the newest checkpoint's index cannot be read.
pub fn newest(dir: &Path) -> Result<Option<(u64, PathBuf)>> {
    let Some((_, path)) = checkpoints(dir)?.pop() else { return Ok(None) };
    Ok(Some((read_index(&path)?.position.steps, path)))
}

/// A folder that this run alone writes into; given back when dropped, by the system if the process dies.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    _lock: File,
}

impl Folder {
    /// Takes the folder, which is made if it is not there, for a run that goes on after `resumed` steps of its own, or starts anew. What
    /// killed runs were writing is removed; checkpoints that this run has not come to are set aside.
    pub fn take(dir: &Path, resumed: Option<u64>) -> Result<Folder> {
        let failed = |source| StateError::io("write", dir, source);
        std::fs::create_dir_all(dir).map_err(failed)?;
        let path = dir.join(LOCK);
        if path.exists() {
            crate::formats::files::regular(&path).map_err(|source| StateError::io("write", &path, source))?;
        }
        let lock = File::create(&path).map_err(|source| StateError::io("write", &path, source))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(StateError::Busy { dir: dir.into() }),
            // The file system has no locks, so other runs cannot be warned.
            Err(std::fs::TryLockError::Error(_)) => {}
        }
        for entry in std::fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with(&format!(".{PREFIX}")) && name.ends_with(".part") && path.is_dir() {
                std::fs::remove_dir_all(&path).map_err(|source| StateError::io("remove", &path, source))?;
            }
        }
        // A folder that cannot be written is reported now and not after an hour of training.
        let trial = dir.join(".trial.part");
        std::fs::create_dir(&trial).and_then(|()| std::fs::remove_dir(&trial)).map_err(failed)?;
        let folder = Folder { dir: dir.into(), _lock: lock };
        folder.set_aside(resumed)?;
        Ok(folder)
    }

    /// Moves checkpoints of steps that this run has yet to come to into a folder of their own: the newest in the folder shall
    /// be this run's.
    fn set_aside(&self, resumed: Option<u64>) -> Result<()> {
        let later: Vec<_> =
            checkpoints(&self.dir)?.into_iter().filter(|(step, _)| resumed.is_none_or(|at| *step > at)).collect();
        if later.is_empty() {
            return Ok(());
        }
        let taken = |number: &u32| !self.dir.join(format!("earlier-{number}")).exists();
        let aside = (1..).find(taken).map(|number| self.dir.join(format!("earlier-{number}"))).unwrap_or_default();
        std::fs::create_dir(&aside).map_err(|source| StateError::io("write", &aside, source))?;
        for (_, path) in later {
            let to = aside.join(path.file_name().unwrap_or_default());
            std::fs::rename(&path, &to).map_err(|source| StateError::io("move", &path, source))?;
        }
        sync(&self.dir)
    }

    /// Makes what all ranks have written into the part's folder a checkpoint: the index, then the name. Before the rename
    /// there is none, after it all of it is on the disk.
    pub fn commit(&self, index: &Index) -> Result<PathBuf> {
        let step = index.position.steps;
        let (part, path) = (part_dir(&self.dir, step), step_dir(&self.dir, step));
        write_json(&part.join(INDEX), index)?;
        sync(&part)?;
        let renamed = match std::fs::rename(&part, &path) {
            // A run that went back to an earlier step writes this step again: the new checkpoint replaces the old one at once.
            Err(error)
                if [std::io::ErrorKind::DirectoryNotEmpty, std::io::ErrorKind::AlreadyExists]
                    .contains(&error.kind()) =>
            {
                renameat_with(CWD, &part, CWD, &path, RenameFlags::EXCHANGE).map_err(std::io::Error::from)
            }
            other => other,
        };
        renamed.map_err(|source| StateError::io("name", &path, source))?;
        sync(&self.dir)?;
        remove(&part)?;
        Ok(path)
    }

    /// Removes all but the newest `keep` checkpoints; 0 keeps all.
    pub fn prune(&self, keep: usize) -> Result<()> {
        let all = checkpoints(&self.dir)?;
        let old = if keep == 0 { 0 } else { all.len().saturating_sub(keep) };
        for (step, path) in all.into_iter().take(old) {
            // A folder that is not a checkpoint of this program is left alone.
            if !path.join(INDEX).is_file() {
                continue;
            }
            // It is renamed before it is removed, so that a partly removed folder is never read as a checkpoint.
            let part = part_dir(&self.dir, step);
            std::fs::rename(&path, &part).map_err(|source| StateError::io("remove", &path, source))?;
            remove(&part)?;
        }
        Ok(())
    }
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|source| StateError::io("remove", path, source)),
    }
}

/// Flushes a folder. A new name in it is durable only after that.
pub(crate) fn sync(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|source| StateError::io("write", dir, source))
}
