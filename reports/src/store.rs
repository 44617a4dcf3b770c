//! The notebook on disk: a directory with one file, `records.jsonl`, that only grows.
//!
//! Each line is a record or a remark. An append takes an advisory lock on the file, writes one whole line, and returns
//! only after the file is synced; if the write fails midway (a full disk), the part that was written is cut off again.
//! A process killed in the middle of a write leaves a last line without its end: reading reports it, and the next append
//! moves it to `records.torn` before it adds its own line. Lines that cannot be read (a newer schema, a damaged disk)
//! stay where they are and are listed with the reason.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::record::{Record, Remark, SCHEMA};

/// Name of the file of records inside a notebook's directory.
pub const RECORDS: &str = "records.jsonl";
/// Name of the file that keeps what was cut off from torn lines.
pub const TORN: &str = "records.torn";

/// What can go wrong with a notebook.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory cannot be made or is not one.
    #[error("the notebook {path} cannot be opened: {source}; name a directory that you may write to (--notebook DIR)", path = path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file exists and cannot be read.
    #[error("the notebook's file {path} cannot be read: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// No room for the line; what was there before is untouched.
    #[error("no room for the record in {path}: {source}; free some space and run the same command again, earlier records are safe", path = path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The line could not be written; what was there before is untouched unless `damage` says otherwise.
    #[error("the record could not be added to {path}: {source}{damage}", path = path.display())]
    Append {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
        /// Empty, or what could not be undone.
        damage: String,
    },
    /// A value without a JSON form.
    #[error("the record {id} has no JSON form: {source}")]
    Encode {
        /// Id of the record.
        id: String,
        /// The reason.
        source: serde_json::Error,
    },
    /// No record's id begins like this.
    #[error("no record has an id that begins with `{prefix}`; `zbench list` shows the {count} records of {path}", path = path.display())]
    NotFound {
        /// What was looked for.
        prefix: String,
        /// How many records there are.
        count: usize,
        /// The file.
        path: PathBuf,
    },
    /// Several ids begin like this.
    #[error("`{prefix}` stands for {count} records ({ids}); give more of the id", count = ids.len(), ids = first_few(ids))]
    Ambiguous {
        /// What was looked for.
        prefix: String,
        /// The ids that begin with it.
        ids: Vec<String>,
    },
}

fn first_few(ids: &[String]) -> String {
    let shown: Vec<&str> = ids.iter().take(4).map(String::as_str).collect();
    let more = if ids.len() > shown.len() { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// A line that is in the file and could not be read.
#[derive(Debug, Clone, PartialEq)]
pub struct Unreadable {
    /// Line of the file, from 1.
    pub line: usize,
    /// Why, for a reader.
    pub reason: String,
}

/// Everything in a notebook, in the order in which it was written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Contents {
    /// The records.
    pub records: Vec<Record>,
    /// The remarks.
    pub remarks: Vec<Remark>,
    /// Whole lines that could not be read.
    pub unreadable: Vec<Unreadable>,
    /// Bytes of a last line that was cut off in the middle of a write; 0 when there is none.
    pub torn_bytes: u64,
}

impl Contents {
    /// What a reader of the notebook should be told: one sentence for each unreadable or torn line.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self
            .unreadable
            .iter()
            .map(|unreadable| format!("line {} of {RECORDS} is left out: {}", unreadable.line, unreadable.reason))
            .collect();
        if self.torn_bytes > 0 {
            warnings.push(format!(
                "the last line of {RECORDS} was cut off in the middle of a write ({} bytes); the record before it is \
                 whole, and the next append moves the rest to {TORN}",
                self.torn_bytes
            ));
        }
        warnings
    }

    /// The records of a cell, in the order in which they were written.
    pub fn of_key<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Record> {
        self.records.iter().filter(move |record| record.key == key)
    }

    /// The remarks on a record.
    pub fn remarks_on<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a Remark> {
        self.remarks.iter().filter(move |remark| remark.note_for == id)
    }
}

/// A notebook's directory. Holds no file open: several processes may use the same notebook.
#[derive(Debug, Clone)]
pub struct Notebook {
    directory: PathBuf,
}

impl Notebook {
    /// Opens the notebook in a directory, making the directory if it is absent.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let directory = directory.into();
        fs::create_dir_all(&directory).map_err(|source| StoreError::Open { path: directory.clone(), source })?;
        Ok(Self { directory })
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file of records.
    pub fn path(&self) -> PathBuf {
        self.directory.join(RECORDS)
    }

    /// Reads everything. An absent file is an empty notebook.
    pub fn read(&self) -> Result<Contents, StoreError> {
        let path = self.path();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contents::default()),
            Err(source) => return Err(StoreError::Read { path, source }),
        };
        let _lock = lock(&file, File::lock_shared).map_err(|source| StoreError::Read { path: path.clone(), source })?;
        read_lines(BufReader::new(&file)).map_err(|source| StoreError::Read { path, source })
    }

    /// The records; see [`Notebook::read`] for remarks and warnings.
    pub fn records(&self) -> Result<Vec<Record>, StoreError> {
        Ok(self.read()?.records)
    }

    /// The record with this id, or the only one whose id begins with it.
    pub fn find(&self, prefix: &str) -> Result<Record, StoreError> {
        let records = self.records()?;
        let count = records.len();
        if let Some(exact) = records.iter().rev().find(|record| record.id == prefix) {
            return Ok(exact.clone());
        }
        let mut matching: Vec<Record> = records.into_iter().filter(|record| record.id.starts_with(prefix)).collect();
        match matching.len() {
            1 if !prefix.is_empty() => Ok(matching.swap_remove(0)),
            0 => Err(StoreError::NotFound { prefix: prefix.into(), count, path: self.path() }),
            _ => {
                let ids = matching.into_iter().map(|record| record.id).collect();
                Err(StoreError::Ambiguous { prefix: prefix.into(), ids })
            }
        }
    }

    /// Adds a record. When this returns `Ok`, the record is on disk.
    pub fn append(&self, record: &Record) -> Result<(), StoreError> {
        self.append_line(&record.id, record)
    }

    /// Adds a remark.
    pub fn note(&self, remark: &Remark) -> Result<(), StoreError> {
        self.append_line(&remark.note_for, remark)
    }

    fn append_line(&self, id: &str, value: &impl Serialize) -> Result<(), StoreError> {
        // serde_json escapes line ends inside strings, so a record is always one line.
        let mut line = serde_json::to_vec(value).map_err(|source| StoreError::Encode { id: id.to_string(), source })?;
        line.push(b'\n');

        let path = self.path();
        let is_new = !path.exists();
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(&path)
            .map_err(|source| append_error(&path, source, String::new()))?;
        let lock = lock(&file, File::lock).map_err(|source| append_error(&path, source, String::new()))?;
        let start = self.set_torn_line_aside(&file).map_err(|source| append_error(&path, source, String::new()))?;
        if let Err(source) = (&file).write_all(&line).and_then(|()| file.sync_data()) {
            let damage = match file.set_len(start).and_then(|()| file.sync_data()) {
                Ok(()) => String::new(),
                Err(undo) => {
                    format!("; the part that was written could not be cut off again ({undo}), it is skipped when read")
                }
            };
            return Err(append_error(&path, source, damage));
        }
        drop(lock);
        if is_new {
            // The name of a new file is only durable once its directory is synced; some systems cannot, and the
            // record itself is already on disk then.
            let _ = File::open(&self.directory).and_then(|directory| directory.sync_all());
        }
        Ok(())
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
        let mut aside = OpenOptions::new().append(true).create(true).open(self.directory.join(TORN))?;
        aside.write_all(&torn)?;
        aside.sync_data()?;
        file.set_len(whole)?;
        Ok(whole)
    }
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

enum Line {
    Record(Box<Record>),
    Remark(Remark),
}

/// What decides how the rest of a line is read.
#[derive(Deserialize)]
struct Head {
    schema: Option<u64>,
    note_for: Option<serde::de::IgnoredAny>,
}

fn parse_line(line: &[u8]) -> Result<Line, String> {
    let head: Head = serde_json::from_slice(line).map_err(|error| format!("it is not a record: {error}"))?;
    match head.schema {
        None => return Err("it states no schema".into()),
        Some(schema) if schema > u64::from(SCHEMA) => {
            return Err(format!("it was written by a newer zbench (schema {schema}, this one reads up to {SCHEMA})"));
        }
        Some(_) => {}
    }
    let bad = |error: serde_json::Error| format!("it is not a record of schema {SCHEMA}: {error}");
    if head.note_for.is_some() {
        return serde_json::from_slice(line).map(Line::Remark).map_err(bad);
    }
    serde_json::from_slice(line).map(|record| Line::Record(Box::new(record))).map_err(bad)
}

fn is_json(line: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok()
}

fn read_lines(mut reader: impl BufRead) -> io::Result<Contents> {
    let mut contents = Contents::default();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let is_whole = line.last() == Some(&b'\n');
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match parse_line(&line) {
            Ok(Line::Record(record)) => contents.records.push(*record),
            Ok(Line::Remark(remark)) => contents.remarks.push(remark),
            Err(reason) if is_whole || is_json(&line) => contents.unreadable.push(Unreadable { line: number, reason }),
            Err(_) => contents.torn_bytes = line.len() as u64,
        }
    }
    Ok(contents)
}
