//! Turns of processes that still run. A file below `turns/` keeps them until the records of these processes are in the notebook.
//!
//! The file has a line for each record before its first turn, and a line for each block of turns, which is synced before the next
//! block begins. The owner holds a lock on the file. If the owner died, [`Notebook::recover`] makes records from the file.
//! A file with a line that cannot be read is kept under the name `X.damaged`.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::claim::{is_at, open_locked};
use super::contents::{Line, is_json, parse_line};
use super::{Notebook, StoreError, append_error, line_of, nofollow};
use crate::record::{Record, TurnRow};

/// Folder of these files inside a notebook's directory.
const TURNS: &str = "turns";

/// The file of one generation of processes.
#[derive(Debug)]
pub struct Unfinished {
    file: File,
    path: PathBuf,
}

/// Turns of one record.
#[derive(Serialize, Deserialize)]
struct Block {
    of: String,
    rows: Vec<TurnRow>,
}

/// The result of recovering the files of dead processes.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The number of records that were added.
    pub added: usize,
    /// A sentence for each file that could not be recovered completely; such a file is kept.
    pub warnings: Vec<String>,
}

impl Notebook {
    /// Begins a file for turns of these records, which have none yet. The file gets its name once it is locked and has the records, so
    /// that no process finds it without its owner.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn unfinished(&self, name: &str, records: &[Record]) -> Result<Unfinished, StoreError> {
        let folder = self.directory.join(TURNS);
        let begun = folder.join(format!(".{name}.tmp"));
        let failed = |source| append_error(&begun, source, String::new());
        let mut lines = Vec::new();
        for record in records {
            lines.extend(line_of(&record.id, record)?);
        }
        let opened = open_locked(&folder, &begun, OFlags::RDWR | OFlags::APPEND).map_err(failed)?;
        let Some(file) = opened else { return Err(failed(io::ErrorKind::WouldBlock.into())) };
        let mut unfinished = Unfinished { file, path: begun.clone() };
        let written = unfinished.file.set_len(0).map_err(failed).and_then(|()| unfinished.write(&lines));
        // A file of this name that a dead owner left is not changed.
        let path = free(&folder, name, ".jsonl");
        if let Err(error) = written.and_then(|()| fs::rename(&begun, &path).map_err(failed)) {
            remove(&begun);
            return Err(error);
        }
        unfinished.path = path;
        // The names are durable once their folders are synced; some systems cannot sync folders.
        for folder in [&folder, &self.directory] {
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
        }
        Ok(unfinished)
    }

    /// Adds the records that dead processes measured and that the notebook does not have, and removes their files. A file with a line
    /// that cannot be read is kept under another name. On a system without locks all files stay.
    ///
    /// # Errors
    /// The notebook cannot be written; the files stay.
    pub fn recover(&self) -> Result<Recovered, StoreError> {
        let folder = self.directory.join(TURNS);
        let mut recovered = Recovered::default();
        if let Err(error) = nofollow::refuse_link(&folder) {
            recovered.warnings.push(format!("nothing was taken in: {error}"));
            return Ok(recovered);
        }
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_turns = path.extension().is_some_and(|extension| extension == "jsonl");
            if !is_turns || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
                continue;
            }
            let mut stays = |error: io::Error| {
                let advice = "nothing of it was taken in, and it stays as it is";
                recovered.warnings.push(format!("{} cannot be used: {error}; {advice}", path.display()));
            };
            let file = match nofollow::open_in(&folder, &path, OFlags::RDWR) {
                Ok(file) => file,
                // Its owner has just removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    stays(error);
                    continue;
                }
            };
            match file.try_lock() {
                Ok(()) if !is_at(&file, &path) => continue,
                Ok(()) => {}
                // The owner is still measuring.
                Err(TryLockError::WouldBlock) => continue,
                // It is unknown whether the owner lives.
                Err(TryLockError::Error(error)) => {
                    stays(error);
                    continue;
                }
            }
            let (records, mut damage) = match records_of(&file) {
                Ok(read) => read,
                Err(error) => {
                    stays(error);
                    continue;
                }
            };
            let merged = self.merge(&records, &[])?;
            recovered.added += merged.added;
            // The merge does not compare the turns of records.
            if merged.added < records.len()
                && let Some(id) = self.less_than(&records)?
            {
                damage.get_or_insert(format!("it has turns of record {id} that are not in the notebook"));
            }
            match damage {
                None => remove(&path),
                Some(reason) => recovered.warnings.push(set_aside(&path, &reason)),
            }
        }
        Ok(recovered)
    }

    /// The id of a record that has fewer turns in the notebook than here.
    fn less_than(&self, records: &[Record]) -> Result<Option<String>, StoreError> {
        let index = self.index()?;
        let count = |record: &Record| record.turns.as_ref().map_or(0, |turns| turns.rows.len());
        for record in records {
            let known = index.records.iter().find(|known| known.id == record.id);
            let known = known.map(|known| self.record(known)).transpose()?;
            if known.as_ref().map_or(0, count) < count(record) {
                return Ok(Some(record.id.clone()));
            }
        }
        Ok(None)
    }
}

impl Unfinished {
    /// Adds turns, each list with the id of its record. When this returns `Ok`, they are on disk.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add<'a>(&mut self, blocks: impl Iterator<Item = (&'a str, Vec<TurnRow>)>) -> Result<(), StoreError> {
        let mut lines = Vec::new();
        for (of, rows) in blocks {
            lines.extend(line_of(of, &Block { of: of.into(), rows })?);
        }
        self.write(&lines)
    }

    /// Removes the file, once the notebook has its records.
    pub fn remove(self) {
        remove(&self.path);
    }

    fn write(&mut self, lines: &[u8]) -> Result<(), StoreError> {
        let written = self.file.write_all(lines).and_then(|()| self.file.sync_data());
        written.map_err(|source| append_error(&self.path, source, String::new()))
    }
}

/// Removes a file. If that fails, the file is read again, and the notebook already has its records. The folder is removed with the
/// last file.
fn remove(path: &Path) {
    let Some(folder) = path.parent() else { return };
    let _ = nofollow::remove_in(folder, path);
    let _ = fs::remove_dir(folder);
}

/// A name in the folder that no file has.
fn free(folder: &Path, name: &str, ending: &str) -> PathBuf {
    let first = folder.join(format!("{name}{ending}"));
    let others = (2u32..).map(|number| folder.join(format!("{name}-{number}{ending}")));
    let is_free = |path: &PathBuf| fs::symlink_metadata(path).is_err();
    std::iter::once(first.clone()).chain(others).find(is_free).unwrap_or(first)
}

/// Keeps a file that could not be recovered completely, under a name that is never read again. Returns the warning.
fn set_aside(path: &Path, reason: &str) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = free(path.parent().unwrap_or(path), &name, ".damaged");
    let kept = match fs::rename(path, &aside) {
        Ok(()) => format!("the file is kept as {}; repair that line and name the file {name} again", aside.display()),
        Err(error) => format!("the file stays, since it cannot be renamed ({error})"),
    };
    format!(
        "{} could not be taken in whole: {reason}; all other turns of it are in the notebook, and {kept}",
        path.display()
    )
}

/// The records with turns of interrupted processes, and the reason for the first line that could not be read. A last line that was
/// cut off is ignored.
fn records_of(mut file: &File) -> io::Result<(Vec<Record>, Option<String>)> {
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let mut records: Vec<Record> = Vec::new();
    let mut damage = None;
    for (place, line) in text.split_inclusive(|&byte| byte == b'\n').enumerate() {
        if let Err(reason) = take(line, &mut records)
            && (line.ends_with(b"\n") || is_json(line))
        {
            damage.get_or_insert(format!("line {}: {reason}", place + 1));
        }
    }
    records.retain(|record| record.turns.as_ref().is_some_and(|turns| !turns.rows.is_empty()));
    Ok((records, damage))
}

/// Reads a line into the records; else the reason why it cannot be read.
fn take(line: &[u8], records: &mut Vec<Record>) -> Result<(), String> {
    if let Ok(Block { of, rows }) = serde_json::from_slice(line) {
        let record = records.iter_mut().find(|record| record.id == of);
        let turns = record.and_then(|record| record.turns.as_mut());
        turns.ok_or_else(|| format!("no line before has the record {of}, of which its turns are"))?.rows.extend(rows);
        return Ok(());
    }
    match parse_line(line)? {
        Line::Record(record) => records.push(*record),
        Line::Remark(_) => return Err("it is a remark, and neither a record nor turns".into()),
    }
    Ok(())
}
