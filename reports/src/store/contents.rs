//! The lines of a notebook's file.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead};

use serde::Deserialize;

use super::{RECORDS, TORN};
use crate::record::{ADDED, REMOVED, Record, Remark, SCHEMA};

/// A line of the file that could not be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Unreadable {
    /// Line of the file, from 1.
    pub line: usize,
    /// The reason.
    pub reason: String,
    /// The id in the line, where it is JSON with an id.
    pub id: Option<String>,
}

impl Unreadable {
    pub(super) fn id_begins(&self, prefix: &str) -> bool {
        self.id.as_ref().is_some_and(|id| id.starts_with(prefix))
    }
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
    /// Warnings for the reader: one sentence for each unreadable or torn line.
    pub fn warnings(&self) -> Vec<String> {
        warnings(&self.unreadable, self.torn_bytes)
    }

    /// The records of a cell, in the order in which they were written.
    pub fn of_key<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Record> {
        self.records.iter().filter(move |record| record.key == key)
    }

    /// The tags of every record that has tags, in alphabetical order.
    pub fn tags(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        tags_of(&self.remarks)
    }

    /// The remarks on a record.
    pub fn remarks_on<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a Remark> {
        self.remarks.iter().filter(move |remark| remark.note_for == id)
    }
}

pub(super) fn warnings(unreadable: &[Unreadable], torn_bytes: u64) -> Vec<String> {
    let left_out = |of: &Unreadable| format!("line {} of {RECORDS} is left out: {}", of.line, of.reason);
    let mut warnings: Vec<String> = unreadable.iter().map(left_out).collect();
    if torn_bytes > 0 {
        warnings.push(format!(
            "the last line of {RECORDS} was cut off in the middle of a write ({torn_bytes} bytes); the record before it is \
             whole, and the next append moves the rest to {TORN}"
        ));
    }
    warnings
}

/// The tags of every record that has tags, in alphabetical order.
pub fn tags_of<'a>(remarks: impl IntoIterator<Item = &'a Remark>) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut tags: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for remark in remarks {
        let of = tags.entry(&remark.note_for).or_default();
        of.extend(remark.tags(ADDED));
        of.retain(|tag| !remark.tags(REMOVED).any(|removed| removed == *tag));
    }
    tags.retain(|_, of| !of.is_empty());
    tags
}

/// A line that could be read.
pub(super) enum Line {
    Record(Box<Record>),
    Remark(Remark),
}

/// The keys that decide how a line is read.
#[derive(Deserialize)]
struct Head {
    schema: Option<u64>,
    note_for: Option<serde::de::IgnoredAny>,
}

pub(super) fn parse_line(line: &[u8]) -> Result<Line, String> {
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

pub(super) fn id_of(line: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        id: String,
    }
    serde_json::from_slice::<Named>(line).ok().map(|named| named.id)
}

pub(super) fn is_json(line: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok()
}

pub(super) fn read_lines(mut reader: impl BufRead) -> io::Result<Contents> {
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
            Err(reason) if is_whole || is_json(&line) => {
                contents.unreadable.push(Unreadable { line: number, reason, id: id_of(&line) });
            }
            Err(_) => contents.torn_bytes = line.len() as u64,
        }
    }
    Ok(contents)
}
