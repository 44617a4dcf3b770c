//! The notebook on disk: a directory with a file `records.jsonl`, that only grows, and an index of it, `records.index`.
//!
//! Each line is a record or a remark. An append takes an advisory lock on the file, writes one whole line, and returns
//! only after the file is synced; if the write fails midway (a full disk), the part that was written is cut off again.
//! A process killed in the middle of a write leaves a last line without its end: reading reports it, and the next append
//! moves it to `records.torn` before it adds its own line. Lines that cannot be read (a newer schema, a damaged disk)
//! stay where they are and are listed with the reason.

mod claim;
mod contents;
mod entry;
mod error;
mod index;
mod merge;
pub mod nofollow;
mod tail;
mod unfinished;

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tracing::info;

pub use self::claim::Claim;
pub use self::contents::{Contents, Unreadable, tags_of};
use self::contents::{Line, is_json, parse_line, read_lines};
pub use self::entry::IndexEntry;
pub use self::error::StoreError;
use self::index::{Cache, line_at};
pub use self::index::{INDEX, Index};
pub use self::merge::Merged;
pub use self::tail::Tail;
pub use self::unfinished::{Recovered, Unfinished};
use crate::record::{Record, Remark};

/// Name of the file of records inside a notebook's directory.
pub const RECORDS: &str = "records.jsonl";
/// Name of the file that keeps what was cut off from torn lines.
pub const TORN: &str = "records.torn";

/// A notebook's directory. Holds no file open: several processes may use the same notebook.
#[derive(Debug, Clone)]
pub struct Notebook {
    directory: PathBuf,
    /// Its lock is taken after that on the file of records, never before.
    cache: Arc<Mutex<Cache>>,
}

impl Notebook {
    /// Opens the notebook in a directory, making the directory if it is absent.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let directory = directory.into();
        fs::create_dir_all(&directory).map_err(|source| StoreError::Open { path: directory.clone(), source })?;
        Ok(Self { directory, cache: Arc::default() })
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file of records.
    pub fn path(&self) -> PathBuf {
        self.directory.join(RECORDS)
    }

    /// Reads everything, which a large notebook has too much of: the memory is ten times the file's size and more.
    /// An absent file is an empty notebook.
    pub fn read(&self) -> Result<Contents, StoreError> {
        let Some(file) = open_if_there(&self.path())? else { return Ok(Contents::default()) };
        let _lock = lock(&file, File::lock_shared).map_err(|source| self.read_error(source))?;
        read_lines(BufReader::new(&file)).map_err(|source| self.read_error(source))
    }

    /// The records; see [`Notebook::index`] for less of each.
    pub fn records(&self) -> Result<Vec<Record>, StoreError> {
        Ok(self.read()?.records)
    }

    /// Everything in short, read from the index and from what has been added since. An absent file is an empty notebook.
    ///
    /// # Errors
    /// The records cannot be read.
    pub fn index(&self) -> Result<Arc<Index>, StoreError> {
        let Some(file) = open_if_there(&self.path())? else { return Ok(Arc::default()) };
        let _lock = lock(&file, File::lock_shared).map_err(|source| self.read_error(source))?;
        let index = self.cache().catch_up(&self.directory, &file, false);
        index.map_err(|source| self.read_error(source))
    }

    /// The whole records of these, read one after another. An error: the file cannot be read, or does not have the record any more.
    pub fn each<'s>(
        &self,
        wanted: impl IntoIterator<Item = &'s IndexEntry>,
    ) -> impl Iterator<Item = Result<Record, StoreError>> {
        let mut file = None;
        wanted.into_iter().map(move |entry| {
            let gone = || StoreError::NotFound { prefix: entry.id.clone(), count: 0, path: self.path() };
            if file.is_none() {
                file = open_if_there(&self.path())?;
            }
            let file = file.as_ref().ok_or_else(gone)?;
            match self.record_at(file, entry)? {
                Some(record) => Ok(record),
                None => self.search(file, &entry.id)?.ok_or_else(gone),
            }
        })
    }

    fn record_at(&self, file: &File, entry: &IndexEntry) -> Result<Option<Record>, StoreError> {
        let line = line_at(file, entry.place).map_err(|source| self.read_error(source))?;
        Ok(match line.as_deref().map(parse_line) {
            Some(Ok(Line::Record(record))) if record.id == entry.id => Some(*record),
            _ => None,
        })
    }

    /// The newest record of this id, where the index led to another line: it is made again. The lock on the file may be held.
    fn search(&self, file: &File, id: &str) -> Result<Option<Record>, StoreError> {
        self.forget();
        let index = self.cache().catch_up(&self.directory, file, false);
        let index = index.map_err(|source| self.read_error(source))?;
        let entry = index.records.iter().rfind(|record| record.id == id);
        entry.map_or(Ok(None), |entry| self.record_at(file, entry))
    }

    /// The whole records of these.
    ///
    /// # Errors
    /// As of [`Notebook::each`].
    pub fn whole<'s>(&self, wanted: impl IntoIterator<Item = &'s IndexEntry>) -> Result<Vec<Record>, StoreError> {
        self.each(wanted).collect()
    }

    /// The whole record.
    ///
    /// # Errors
    /// As of [`Notebook::each`].
    pub fn record(&self, entry: &IndexEntry) -> Result<Record, StoreError> {
        Ok(self.whole([entry])?.remove(0))
    }

    /// The remarks on the records whose ids hold.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn remarks_on(&self, index: &Index, is_on: impl Fn(&str) -> bool) -> Result<Vec<Remark>, StoreError> {
        let Some(file) = open_if_there(&self.path())? else { return Ok(Vec::new()) };
        let mut remarks = Vec::new();
        for (_, place) in index.remarks.iter().filter(|(remark, _)| is_on(&remark.note_for)) {
            let line = line_at(&file, *place).map_err(|source| self.read_error(source))?;
            match line.as_deref().map(parse_line) {
                Some(Ok(Line::Remark(remark))) => remarks.push(remark),
                _ => {
                    self.forget();
                    let contents = self.read()?;
                    return Ok(contents.remarks.into_iter().filter(|remark| is_on(&remark.note_for)).collect());
                }
            }
        }
        Ok(remarks)
    }

    /// Makes the next look read all records, as the index does not belong to them.
    fn forget(&self) {
        let _ = fs::remove_file(self.directory.join(INDEX));
        *self.cache() = Cache::default();
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_error(&self, source: io::Error) -> StoreError {
        StoreError::Read { path: self.path(), source }
    }

    /// The record with this id, or the only one whose id begins with it.
    ///
    /// # Errors
    /// There is none, or there are several, or this version cannot read it.
    pub fn find(&self, prefix: &str) -> Result<Record, StoreError> {
        self.record(self.find_in(&*self.index()?, prefix)?)
    }

    /// The index entry that [`Notebook::find`] reads.
    ///
    /// # Errors
    /// As of [`Notebook::find`].
    pub fn find_in<'i>(&self, index: &'i Index, prefix: &str) -> Result<&'i IndexEntry, StoreError> {
        let Index { records, unreadable, .. } = index;
        if let Some(exact) = records.iter().rfind(|record| record.id == prefix) {
            return Ok(exact);
        }
        let matching: Vec<&IndexEntry> = records.iter().filter(|record| record.id.starts_with(prefix)).collect();
        match matching[..] {
            [only] if !prefix.is_empty() => Ok(only),
            [] => match unreadable.iter().find(|line| !prefix.is_empty() && line.id_begins(prefix)) {
                Some(line) => Err(StoreError::Unreadable {
                    id: line.id.clone().unwrap_or_default(),
                    line: line.line,
                    reason: line.reason.clone(),
                    path: self.path(),
                }),
                None => Err(StoreError::NotFound { prefix: prefix.into(), count: records.len(), path: self.path() }),
            },
            _ => {
                let ids = matching.into_iter().map(|record| record.id.clone()).collect();
                Err(StoreError::Ambiguous { prefix: prefix.into(), ids })
            }
        }
    }

    /// Adds a record. When this returns `Ok`, the record is on disk.
    pub fn append(&self, record: &Record) -> Result<(), StoreError> {
        self.append_line(&record.id, record)?;
        let (Record { id, key, trial, .. }, status) = (record, record.outcome.status.words());
        info!(target: "zbench::runner", id, cell = key, trial, status, "record is appended");
        Ok(())
    }

    /// Adds a remark.
    pub fn note(&self, remark: &Remark) -> Result<(), StoreError> {
        self.append_line(&remark.note_for, remark)
    }

    /// Makes sure that records can be added, before anything is measured for them.
    pub fn check_writable(&self) -> Result<(), StoreError> {
        let open = || nofollow::open(&self.path(), OpenOptions::new().append(true).create(true));
        let opened = regular_or_absent(&self.path()).and_then(|()| open());
        opened.map(drop).map_err(|source| StoreError::ReadOnly { path: self.directory.clone(), source })
    }

    fn append_line(&self, id: &str, value: &impl Serialize) -> Result<(), StoreError> {
        let line = line_of(id, value)?;
        self.append_lines(|_| Ok((line, ())))
    }

    /// Adds whole lines that may depend on what the file holds; nobody else writes in between. All of them, or none.
    fn append_lines<T>(&self, lines: impl FnOnce(&Index) -> Result<(Vec<u8>, T), StoreError>) -> Result<T, StoreError> {
        let path = self.path();
        let is_new = !path.exists();
        let open = || nofollow::open(&path, OpenOptions::new().read(true).append(true).create(true));
        let file = regular_or_absent(&path)
            .and_then(|()| open())
            .map_err(|source| append_error(&path, source, String::new()))?;
        let lock = lock(&file, File::lock).map_err(|source| append_error(&path, source, String::new()))?;
        let here = self.cache().catch_up(&self.directory, &file, false);
        let (lines, result) = lines(&*here.map_err(|source| self.read_error(source))?)?;
        let start = self.set_torn_line_aside(&file).map_err(|source| append_error(&path, source, String::new()))?;
        if let Err(source) = (&file).write_all(&lines).and_then(|()| file.sync_data()) {
            let damage = match file.set_len(start).and_then(|()| file.sync_data()) {
                Ok(()) => String::new(),
                Err(undo) => {
                    format!("; the part that was written could not be cut off again ({undo}), it is skipped when read")
                }
            };
            return Err(append_error(&path, source, damage));
        }
        // The lines are on disk: if this fails, the next one who looks finds them.
        let _ = self.cache().catch_up(&self.directory, &file, true);
        drop(lock);
        if is_new {
            // The name of a new file is only durable once its directory is synced; some systems cannot, and the
            // record itself is already on disk then.
            let _ = File::open(&self.directory).and_then(|directory| directory.sync_all());
        }
        Ok(result)
    }

    /// Makes the file end with a whole line and returns its length. A last line that is whole JSON only lacks
    /// its line end, and gets it; anything else is copied to `records.torn`, then cut off.
    fn set_torn_line_aside(&self, mut file: &File) -> io::Result<u64> {
        let length = file.seek(SeekFrom::End(0))?;
        let whole = end_of_last_line(file, length)?;
        if whole == length {
            return Ok(length);
        }
        file.seek(SeekFrom::Start(whole))?;
        let mut torn = Vec::new();
        file.take(length - whole).read_to_end(&mut torn)?;
        if is_json(&torn) {
            file.write_all(b"\n")?;
            return Ok(length + 1);
        }
        torn.push(b'\n');
        let path = self.directory.join(TORN);
        regular_or_absent(&path)?;
        let mut aside = nofollow::open(&path, OpenOptions::new().append(true).create(true))?;
        aside.write_all(&torn)?;
        aside.sync_data()?;
        file.set_len(whole)?;
        Ok(whole)
    }
}

/// Refuses what is not a regular file, asked before opening: opening a pipe would wait for whoever is at its other end.
fn regular(path: &Path) -> io::Result<()> {
    nofollow::refuse_link(path)?;
    match fs::metadata(path)?.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// Opens a notebook's file for reading; nothing where it is absent.
fn open_if_there(path: &Path) -> Result<Option<File>, StoreError> {
    match regular(path).and_then(|()| nofollow::open(path, OpenOptions::new().read(true))) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StoreError::Read { path: path.to_path_buf(), source }),
    }
}

fn regular_or_absent(path: &Path) -> io::Result<()> {
    regular(path).or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// serde_json escapes line ends inside strings, so a record is always one line.
fn line_of(id: &str, value: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    let mut line = serde_json::to_vec(value).map_err(|source| StoreError::Encode { id: id.to_string(), source })?;
    line.push(b'\n');
    Ok(line)
}

fn append_error(path: &Path, source: io::Error, damage: String) -> StoreError {
    let path = path.to_path_buf();
    let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::FileTooLarge];
    if full.contains(&source.kind()) && damage.is_empty() {
        StoreError::Full { path, source }
    } else {
        StoreError::Append { path, source, damage }
    }
}

/// Holds an advisory lock until dropped.
struct Lock<'a>(&'a File);

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        // Closing the file releases the lock too, so a failure here changes nothing.
        let _ = self.0.unlock();
    }
}

/// Waits for the lock. A file system without locks is used without: a line is still written by one call.
fn lock(file: &File, how: impl Fn(&File) -> io::Result<()>) -> io::Result<Lock<'_>> {
    loop {
        match how(file) {
            Ok(()) => return Ok(Lock(file)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(Lock(file)),
            Err(error) => return Err(error),
        }
    }
}

/// Offset after the last line end, found by reading backwards in blocks.
fn end_of_last_line(mut file: &File, length: u64) -> io::Result<u64> {
    const BLOCK: u64 = 64 << 10;
    let mut end = length;
    let mut block = vec![0u8; BLOCK as usize];
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        let part = &mut block[..(end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        if let Some(place) = part.iter().rposition(|&byte| byte == b'\n') {
            return Ok(start + place as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}
