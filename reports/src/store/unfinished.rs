//! Turns of processes that still run: a file below `turns/` keeps them until the records of these processes are in the notebook.
//!
//! The file has a line for each record as it stands before its first turn, and a line for each block of turns, synced before the next
//! block begins. Its owner holds a lock on it. Where the owner died, [`Notebook::recover`] makes records of what is there.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Notebook, StoreError, append_error, line_of};
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

impl Notebook {
    /// Begins a file for turns of these records, which have none yet.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn unfinished(&self, name: &str, records: &[Record]) -> Result<Unfinished, StoreError> {
        let folder = self.directory.join(TURNS);
        let path = folder.join(format!("{name}.jsonl"));
        let failed = |source| append_error(&path, source, String::new());
        fs::create_dir_all(&folder).map_err(failed)?;
        let file = OpenOptions::new().append(true).create_new(true).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) => return Err(failed(io::ErrorKind::WouldBlock.into())),
        }
        let mut lines = Vec::new();
        for record in records {
            lines.extend(line_of(&record.id, record)?);
        }
        let mut unfinished = Unfinished { file, path };
        unfinished.write(&lines)?;
        // The names are durable once their folders are synced; some systems cannot.
        for folder in [&folder, &self.directory] {
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
        }
        Ok(unfinished)
    }

    /// Adds records of what dead processes had measured, where the notebook does not have them, and removes their files. Returns how
    /// many were added.
    ///
    /// # Errors
    /// The notebook cannot be written; the files stay.
    pub fn recover(&self) -> Result<usize, StoreError> {
        let folder = self.directory.join(TURNS);
        let mut added = 0;
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
                continue;
            }
            let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { continue };
            // Somebody is measuring.
            if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                continue;
            }
            let Some(records) = records_of(&file) else { continue };
            added += self.merge(&records, &[])?.added;
            remove(&path);
        }
        Ok(added)
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

/// A file that stays is read again, and its records are there already. The folder goes with the last file.
fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = path.parent().map(fs::remove_dir);
}

/// The records that had turns, as of processes that were interrupted. A last line that was cut off is left out.
fn records_of(mut file: &File) -> Option<Vec<Record>> {
    let mut text = Vec::new();
    file.read_to_end(&mut text).ok()?;
    let mut records: Vec<Record> = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        if let Ok(Block { of, rows }) = serde_json::from_slice(line) {
            let turns = records.iter_mut().find(|record| record.id == of).and_then(|record| record.turns.as_mut());
            turns.into_iter().for_each(|turns| turns.rows.extend_from_slice(&rows));
        } else if let Ok(record) = serde_json::from_slice(line) {
            records.push(record);
        }
    }
    records.retain(|record| record.turns.as_ref().is_some_and(|turns| !turns.rows.is_empty()));
    Some(records)
}
