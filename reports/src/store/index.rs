//! The index: a file `records.index` beside the records, with which they are listed and found without being read.
//!
//! Its first line is [`HEAD`]. Each later line is a [`Line`] in JSON: a value that records share, what is known of one line of the
//! records, or the end of an addition. What follows the last end whose check fits does not count, so a process that is killed while it
//! adds leaves nothing wrong. The index is believed while the records have the length and the time of modification that its last end
//! states. Otherwise every line of the records is compared with its hash: where all fit, only what follows them is read and added;
//! where one does not, the index is made again. It can be removed at any time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::contents::{Line as Parsed, Unreadable, id_of, is_json, parse_line, tags_of, warnings};
use super::entry::{IndexEntry, Place, short};
use super::{lock, nofollow, regular_or_absent};
use crate::record::{Record, Remark};

/// Name of the index inside a notebook's directory.
pub const INDEX: &str = "records.index";
/// The first line of an index of this version. An index of another version is made again.
const HEAD: &str = "{\"zbench_index\":1}\n";
/// Bytes of records that are read as fast as an index of them; fewer have none.
const SMALL: u64 = 1 << 20;
/// So many bytes are read and written at a time.
const AT_ONCE: usize = 1 << 20;
/// Fewer bytes than this has each line of an index, so that a foreign file does not fill the memory.
const LONGEST: u64 = 16 << 20;

/// Everything in a notebook in short, in the order in which it was written.
#[derive(Debug, Clone, Default)]
pub struct Index {
    /// An entry for each record.
    pub records: Vec<IndexEntry>,
    /// The remarks, without their texts.
    pub(super) remarks: Vec<(Remark, Place)>,
    /// Whole lines that could not be read.
    pub unreadable: Vec<Unreadable>,
    /// Bytes of a last line that was cut off in the middle of a write; 0 when there is none.
    pub torn_bytes: u64,
    /// Bytes of all whole lines.
    pub(super) end: u64,
}

impl Index {
    /// Warnings for the reader: one sentence for each unreadable or torn line.
    pub fn warnings(&self) -> Vec<String> {
        warnings(&self.unreadable, self.torn_bytes)
    }

    /// The tags of every record that has tags, in alphabetical order.
    pub fn tags(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        tags_of(self.remarks())
    }

    /// The remarks, without their texts.
    pub fn remarks(&self) -> impl Iterator<Item = &Remark> {
        self.remarks.iter().map(|(remark, _)| remark)
    }
}

/// A line of the file, after the first.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Line {
    /// A configuration or an environment. They are numbered from 0 in the order in which they stand here.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
    /// Length of a line of the records, its line end included.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// The first 16 digits of its BLAKE3 hash.
    #[serde(skip_serializing_if = "String::is_empty")]
    blake3: String,
    /// The content of the line, one of the next three; a blank line has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<IndexEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remark: Option<Remark>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unreadable: bool,
    /// Number of the record's configuration among the values.
    #[serde(skip_serializing_if = "Option::is_none")]
    cell: Option<usize>,
    /// Number of its environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    environment: Option<usize>,
    /// The end of an addition.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<End>,
}

/// The end of an addition.
#[derive(Debug, Default, Serialize, Deserialize)]
struct End {
    /// Length of the indexed part of the records in bytes.
    length: u64,
    /// Time of modification of the records at that moment: seconds since 1970, and nanoseconds.
    modified: (i64, i64),
    /// The first 32 digits of the BLAKE3 hash of all of the index before this line.
    check: String,
}

/// Length and time of modification of the file of records.
type Seen = (u64, (i64, i64));

/// The index in the memory of this process.
#[derive(Debug, Default)]
pub(super) struct Cache {
    index: Arc<Index>,
    /// Bytes and hash of each whole line of the records.
    lines: Vec<(u64, u64)>,
    /// Lines that could not be read when the file was written: this version may say something else of them.
    unread: Vec<(usize, Place)>,
    values: Vec<Arc<Value>>,
    /// Numbers of the first values by their hash, and how many those are.
    numbers: (HashMap<blake3::Hash, usize>, usize),
    /// The records when they were read last.
    seen: Option<Seen>,
    /// True if the last entry is of a line without its end.
    is_loose: bool,
    /// Hash and length of the part of the file that has been read or written.
    hasher: blake3::Hasher,
    length: u64,
    /// True if there are more entries in memory than in the file.
    is_ahead: bool,
    /// The file cannot be used, and is left as it is.
    gave_up: bool,
}

impl Cache {
    /// Brings the index up to date and returns it. The caller holds a lock on the records. `is_ours`: this process added all lines
    /// since the last call, under the same lock.
    ///
    /// # Errors
    /// The records cannot be read. Without the index all is done in memory.
    pub(super) fn catch_up(&mut self, directory: &Path, records: &File, is_ours: bool) -> io::Result<Arc<Index>> {
        let now = seen(records)?;
        if self.seen != Some(now) {
            let opened = if now.0 < SMALL || self.gave_up { None } else { open(&directory.join(INDEX)).ok() };
            let locked = opened.as_ref().and_then(|(file, may_write)| {
                let how: fn(&File) -> io::Result<()> = if *may_write { File::lock } else { File::lock_shared };
                Some((lock(file, how).ok()?, file, *may_write))
            });
            self.read(locked.as_ref().map(|(_, file, may_write)| (*file, *may_write)), records, now, is_ours)?;
        }
        Ok(self.index.clone())
    }

    fn read(&mut self, file: Option<(&File, bool)>, records: &File, now: Seen, is_ours: bool) -> io::Result<()> {
        self.drop_loose();
        let before = self.length;
        if let Some((file, may_write)) = file {
            if self.is_ahead && may_write {
                *self = Cache::default();
            }
            if !self.is_ahead && self.load(file).is_err() {
                *self = Cache { gave_up: true, ..Cache::default() };
            }
        }
        let is_as_it_was = self.length == before && (before > 0 || self.is_ahead);
        let is_believed = self.seen == Some(now) || (is_ours && is_as_it_was) || self.fits(records, now.0)?;
        if !is_believed || !self.name_unreadable(records)? {
            *self = Cache { gave_up: self.gave_up, ..Cache::default() };
        }
        if self.seen != Some(now) {
            let file = file.filter(|(_, may_write)| *may_write && !self.gave_up).map(|(file, _)| file);
            self.extend(file, records, now)?;
        }
        Ok(())
    }

    /// Forgets a last line that has no end, as it may have grown.
    fn drop_loose(&mut self) {
        let index = Arc::make_mut(&mut self.index);
        index.torn_bytes = 0;
        if std::mem::take(&mut self.is_loose) {
            let end = index.end;
            if index.records.pop_if(|record| record.place.at == end).is_none()
                && index.remarks.pop_if(|(_, place)| place.at == end).is_none()
            {
                index.unreadable.pop();
            }
        }
    }

    /// Reads what was added to the file.
    fn load(&mut self, mut file: &File) -> io::Result<()> {
        let (length, before) = (file.metadata()?.len(), self.length);
        if length >= before {
            file.seek(SeekFrom::Start(before))?;
            let mut reader = BufReader::with_capacity(AT_ONCE, file);
            while self.load_addition(&mut reader)? {}
        }
        // Another file was put in its place.
        if before > 0 && self.length == before && length != before {
            *self = Cache::default();
            return self.load(file);
        }
        Ok(())
    }

    /// Reads up to the next end. False where there is none that fits; then nothing has changed.
    fn load_addition(&mut self, reader: &mut impl BufRead) -> io::Result<bool> {
        let index = &self.index;
        let held = (index.records.len(), index.remarks.len(), index.end);
        let others = (self.lines.len(), self.unread.len(), self.values.len());
        if self.take_addition(reader)?.is_some() {
            return Ok(true);
        }
        let index = Arc::make_mut(&mut self.index);
        index.records.truncate(held.0);
        index.remarks.truncate(held.1);
        index.end = held.2;
        self.lines.truncate(others.0);
        self.unread.truncate(others.1);
        self.values.truncate(others.2);
        Ok(false)
    }

    fn take_addition(&mut self, reader: &mut impl BufRead) -> io::Result<Option<()>> {
        let (mut hasher, mut length) = (self.hasher.clone(), self.length);
        let mut text = Vec::new();
        loop {
            text.clear();
            if reader.take(LONGEST).read_until(b'\n', &mut text)? == 0 || text.last() != Some(&b'\n') {
                return Ok(None);
            }
            let is_head = length == 0;
            let line = if is_head { None } else { serde_json::from_slice::<Line>(&text).ok() };
            let check = hasher.finalize();
            hasher.update(&text);
            length += text.len() as u64;
            match line {
                None if is_head && text == HEAD.as_bytes() => {}
                Some(Line { end: Some(end), .. }) => {
                    let fits = check.to_hex()[..32] == end.check && end.length == self.index.end;
                    return Ok(fits.then(|| {
                        (self.hasher, self.length) = (hasher, length);
                        self.seen = Some((end.length, end.modified));
                    }));
                }
                line => {
                    if line.and_then(|line| self.take(line)).is_none() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    fn take(&mut self, line: Line) -> Option<()> {
        if let Some(value) = line.value {
            self.values.push(Arc::new(compact(value)));
            return Some(());
        }
        let index = Arc::make_mut(&mut self.index);
        let place = Place { at: index.end, bytes: line.bytes?, hash: u64::from_str_radix(&line.blake3, 16).ok()? };
        index.end = index.end.checked_add(place.bytes)?;
        self.lines.push((place.bytes, place.hash));
        if let Some(record) = line.record {
            let value = |number: Option<usize>| self.values.get(number?).cloned();
            let (cell, environment) = (value(line.cell)?, value(line.environment)?);
            index.records.push(IndexEntry { cell, environment, place, ..record });
        } else if let Some(remark) = line.remark {
            index.remarks.push((remark, place));
        } else if line.unreadable {
            self.unread.push((self.lines.len(), place));
        }
        Some(())
    }

    /// Compares the hash of every known line with the records.
    fn fits(&self, mut records: &File, length: u64) -> io::Result<bool> {
        if self.index.end > length {
            return Ok(false);
        }
        records.rewind()?;
        let mut reader = BufReader::with_capacity(AT_ONCE, records);
        for (bytes, hash) in &self.lines {
            let mut hasher = blake3::Hasher::new();
            let mut left = *bytes;
            while left > 0 {
                let held = reader.fill_buf()?;
                let part = held.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                if part == 0 {
                    return Ok(false);
                }
                hasher.update(&held[..part]);
                reader.consume(part);
                left -= part as u64;
            }
            if beginning(&hasher.finalize()) != *hash {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads again the lines that could not be read. False where one of them can be read, or is not there.
    fn name_unreadable(&mut self, records: &File) -> io::Result<bool> {
        for (line, place) in std::mem::take(&mut self.unread) {
            let Some(text) = line_at(records, place)? else { return Ok(false) };
            let Err(reason) = parse_line(&text) else { return Ok(false) };
            Arc::make_mut(&mut self.index).unreadable.push(Unreadable { line, reason, id: id_of(&text) });
        }
        Ok(true)
    }

    /// Reads the lines of the records that are not known, and writes them into the file.
    fn extend(&mut self, file: Option<&File>, mut records: &File, now: Seen) -> io::Result<()> {
        records.seek(SeekFrom::Start(self.index.end))?;
        let mut reader = BufReader::with_capacity(AT_ONCE, records);
        let mut sink = file.map(|file| Sink::new(file, self.hasher.clone(), self.length));
        self.is_ahead |= sink.is_none();
        let mut text = Vec::new();
        loop {
            text.clear();
            if reader.read_until(b'\n', &mut text)? == 0 {
                break;
            }
            let is_whole = text.last() == Some(&b'\n');
            let hash = beginning(&blake3::hash(&text));
            let place = Place { at: self.index.end, bytes: text.len() as u64, hash };
            let mut line = Line { bytes: Some(place.bytes), blake3: format!("{hash:016x}"), ..Line::default() };
            let is_blank = text.iter().all(u8::is_ascii_whitespace);
            let parsed = if is_blank { None } else { Some(parse_line(&text)) };
            if !is_whole && matches!(parsed, Some(Err(_))) && !is_json(&text) {
                Arc::make_mut(&mut self.index).torn_bytes = place.bytes;
                break;
            }
            let mut entry = None;
            match parsed {
                Some(Ok(Parsed::Record(record))) => {
                    // A last line without its end is not written into the index yet.
                    let sink = sink.as_mut().filter(|_| is_whole);
                    entry = Some(self.shared(*record, place, &mut line, sink));
                }
                Some(Ok(Parsed::Remark(remark))) => line.remark = Some(short(remark)),
                Some(Err(reason)) => {
                    line.unreadable = true;
                    let unreadable = Unreadable { line: self.lines.len() + 1, reason, id: id_of(&text) };
                    Arc::make_mut(&mut self.index).unreadable.push(unreadable);
                }
                None => {}
            }
            line.record = entry;
            if let Some(sink) = sink.as_mut().filter(|_| is_whole) {
                sink.line(&line);
            }
            let index = Arc::make_mut(&mut self.index);
            index.records.extend(line.record);
            index.remarks.extend(line.remark.map(|remark| (remark, place)));
            match is_whole {
                true => {
                    index.end += place.bytes;
                    self.lines.push((place.bytes, place.hash));
                }
                false => self.is_loose = !is_blank,
            }
        }
        self.seen = Some(now);
        // Behind a torn line no end can have the length of the file, so one without an addition would say nothing new.
        let is_torn = now.0 != self.index.end;
        if let Some(sink) = sink.filter(|sink| !(is_torn && sink.is_empty())) {
            match sink.finish(self.index.end, now.1) {
                Ok(written) => (self.hasher, self.length) = written,
                Err(_) => (self.gave_up, self.is_ahead) = (true, true),
            }
        }
        Ok(())
    }

    /// A record in short, with the settings that it shares with others.
    fn shared(&mut self, mut record: Record, place: Place, line: &mut Line, mut sink: Option<&mut Sink>) -> IndexEntry {
        let entry = IndexEntry::without_settings(&record);
        let cell = std::mem::take(&mut record.cell);
        let environment = Value::Object(crate::environment::of_place(&record.environment));
        let mut of = |value| {
            let number = self.number(value, sink.as_deref_mut());
            (Some(number), self.values[number].clone())
        };
        let ((cell_number, cell), (environment_number, environment)) = (of(cell), of(environment));
        (line.cell, line.environment) = (cell_number, environment_number);
        IndexEntry { cell, environment, place, ..entry }
    }

    /// The number of a value. A new one is added.
    fn number(&mut self, value: Value, sink: Option<&mut Sink>) -> usize {
        let (numbers, hashed) = &mut self.numbers;
        for (number, value) in self.values.iter().enumerate().skip(*hashed) {
            numbers.entry(hash_of(value).0).or_insert(number);
        }
        let (hash, text) = hash_of(&value);
        let next = self.values.len();
        let number = *numbers.entry(hash).or_insert(next);
        if number == next {
            self.values.push(Arc::new(compact(value)));
            if let Some(sink) = sink {
                sink.text(&[b"{\"value\":", &text[..], b"}\n"].concat());
            }
        }
        *hashed = self.values.len();
        number
    }
}

/// An addition to the file.
struct Sink<'f> {
    file: &'f File,
    hasher: blake3::Hasher,
    /// Length of the file before the addition.
    begin: u64,
    length: u64,
    buffer: Vec<u8>,
    result: io::Result<()>,
}

impl<'f> Sink<'f> {
    fn new(file: &'f File, hasher: blake3::Hasher, length: u64) -> Self {
        // What is behind it has no end that fits.
        let result = file.set_len(length);
        let mut sink = Sink { file, hasher, begin: length, length, buffer: Vec::new(), result };
        if length == 0 {
            sink.text(HEAD.as_bytes());
        }
        sink
    }

    /// Whether nothing was added.
    fn is_empty(&self) -> bool {
        self.begin == self.length && self.buffer.is_empty()
    }

    fn line(&mut self, line: &Line) {
        match serde_json::to_vec(line) {
            Ok(mut text) => {
                text.push(b'\n');
                self.text(&text);
            }
            Err(error) => self.result = Err(error.into()),
        }
    }

    fn text(&mut self, text: &[u8]) {
        if text.len() as u64 >= LONGEST {
            self.result = Err(io::ErrorKind::FileTooLarge.into());
        }
        self.hasher.update(text);
        self.buffer.extend_from_slice(text);
        if self.buffer.len() >= AT_ONCE {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.result.is_ok() {
            self.result = self.file.write_all_at(&self.buffer, self.length);
        }
        self.length += self.buffer.len() as u64;
        self.buffer.clear();
    }

    /// Writes the end, and returns hash and length of the file.
    fn finish(mut self, length: u64, modified: (i64, i64)) -> io::Result<(blake3::Hasher, u64)> {
        let check = self.hasher.finalize().to_hex()[..32].to_string();
        self.line(&Line { end: Some(End { length, modified, check }), ..Line::default() });
        self.flush();
        if let Err(error) = self.result {
            // What was written has no end, so this only spares room.
            let _ = self.file.set_len(self.begin);
            return Err(error);
        }
        Ok((self.hasher, self.length))
    }
}

/// Opens the file, and makes it where it may be made. Whether it may be written.
fn open(path: &Path) -> io::Result<(File, bool)> {
    regular_or_absent(path)?;
    match nofollow::open(path, OpenOptions::new().read(true).write(true).create(true)) {
        Ok(file) => Ok((file, true)),
        Err(_) => nofollow::open(path, OpenOptions::new().read(true)).map(|file| (file, false)),
    }
}

fn seen(records: &File) -> io::Result<Seen> {
    let metadata = records.metadata()?;
    Ok((metadata.len(), (metadata.mtime(), metadata.mtime_nsec())))
}

fn hash_of(value: &Value) -> (blake3::Hash, Vec<u8>) {
    let text = serde_json::to_vec(value).unwrap_or_default();
    (blake3::hash(&text), text)
}

/// The value without the room that a parser leaves in it, which is more than half: a notebook may have thousands of configurations.
fn compact(value: Value) -> Value {
    match value {
        Value::Object(table) => {
            let mut exact = Map::with_capacity(table.len());
            exact.extend(table.into_iter().map(|(key, value)| (key, compact(value))));
            Value::Object(exact)
        }
        Value::Array(list) => Value::Array(list.into_iter().map(compact).collect::<Vec<_>>().into_boxed_slice().into()),
        other => other,
    }
}

/// The first 16 digits of a hash, as a number.
fn beginning(hash: &blake3::Hash) -> u64 {
    hash.as_bytes().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The line at this place, if it is the one that was there when the place was noted.
pub(super) fn line_at(records: &File, place: Place) -> io::Result<Option<Vec<u8>>> {
    let end = place.at.checked_add(place.bytes);
    if end.is_none_or(|end| seen(records).is_ok_and(|(length, _)| end > length)) {
        return Ok(None);
    }
    let mut text = vec![0; place.bytes as usize];
    records.read_exact_at(&mut text, place.at)?;
    Ok((beginning(&blake3::hash(&text)) == place.hash).then_some(text))
}
