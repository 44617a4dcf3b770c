//! The file of a trace. It is whole JSON whenever a step has been written, so that whatever ends the program leaves one that
//! opens.

use super::lanes::now_ns;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A trace on the disk.
#[derive(Debug)]
pub struct TraceFile {
    file: File,
    path: PathBuf,
    /// When it was begun, in nanoseconds since 1970: the zero of its times.
    begins: u64,
    command: String,
    /// Where the next event goes; behind it stands what closes the file.
    end: u64,
    is_empty: bool,
    /// Events that are not on the disk yet.
    waiting: Vec<u8>,
    /// What stands beside the events.
    notes: Vec<Value>,
    /// Why nothing is written any more.
    failed: Option<String>,
    /// When it was last brought to the disk.
    kept: Instant,
    /// What was there before is gone.
    is_begun: bool,
}

/// So much is written at once, …
const ENOUGH: usize = 1 << 20;
/// … or less after so long.
const SOON: Duration = Duration::from_secs(1);

const HEAD: &[u8] = b"{\"traceEvents\":[\n";

impl TraceFile {
    /// Makes the file. A trace that is there stays as it is until there is something to write.
    ///
    /// # Errors
    /// It cannot be made or written, or holds something else than a trace.
    pub fn create(path: &Path, command: &str) -> std::io::Result<TraceFile> {
        refuse_others(path)?;
        let file = File::options().write(true).create(true).truncate(false).open(path)?;
        let is_new = file.metadata()?.len() == 0;
        let mut trace = TraceFile {
            file,
            path: path.to_path_buf(),
            begins: now_ns(),
            command: command.to_string(),
            end: HEAD.len() as u64,
            is_empty: true,
            waiting: Vec::new(),
            notes: Vec::new(),
            failed: None,
            kept: Instant::now(),
            is_begun: false,
        };
        if is_new {
            trace.write()?;
        }
        Ok(trace)
    }

    /// The zero of its times, in nanoseconds since 1970.
    pub fn begins(&self) -> u64 {
        self.begins
    }

    /// Adds events, times of which are nanoseconds since 1970 under `at` and nanoseconds under `lasts`. What is too short for
    /// the form's clock is left out; collectives are not, as they are counted.
    pub fn add(&mut self, events: &[Value]) {
        for event in events {
            let mut event = event.clone();
            if let Value::Object(fields) = &mut event {
                let mut take = |name: &str| fields.remove(name).as_ref().and_then(Value::as_u64);
                let (at, lasts) = (take("at"), take("lasts"));
                if let Some(at) = at {
                    let from = eighths(at, self.begins);
                    fields.insert("ts".into(), (from as f64 / 8.0).into());
                    if let Some(lasts) = lasts {
                        let eighths = eighths(at.saturating_add(lasts), self.begins) - from;
                        if eighths == 0 && event["cat"] != "collective" {
                            continue;
                        }
                        event["dur"] = (eighths as f64 / 8.0).into();
                    }
                }
            }
            self.waiting.extend_from_slice(if std::mem::take(&mut self.is_empty) { b"" } else { b",\n" });
            // A value writes itself without fail into memory.
            let _ = serde_json::to_writer(&mut self.waiting, &event);
        }
    }

    /// Adds something to what stands beside the events.
    pub fn note(&mut self, note: Value) {
        self.notes.push(note);
    }

    /// As [`TraceFile::keep`], once enough has come together.
    pub fn keep_soon(&mut self) {
        if self.waiting.len() >= ENOUGH || self.kept.elapsed() >= SOON {
            self.keep();
        }
    }

    /// Brings what was added to the disk.
    pub fn keep(&mut self) {
        self.kept = Instant::now();
        if self.failed.is_some() {
            self.waiting.clear();
            return;
        }
        if self.waiting.is_empty() && self.notes.is_empty() {
            return;
        }
        if let Err(error) = self.write() {
            self.failed = Some(format!(
                "the trace {} is cut off: {error}; what was measured is in the notebook",
                self.path.display()
            ));
            self.waiting.clear();
            // What was there before is whole again if so much can be written.
            let _ = self.file.set_len(self.end).and_then(|()| self.write());
        }
    }

    /// Why nothing is written any more; it is said once.
    pub fn complaint(&mut self) -> Option<String> {
        let failed = self.failed.as_mut()?;
        (!failed.is_empty()).then(|| std::mem::take(failed))
    }

    /// Whether there was nothing to write.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    fn write(&mut self) -> std::io::Result<()> {
        if !self.is_begun {
            self.file.set_len(0)?;
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(HEAD)?;
            self.is_begun = true;
        }
        let beside = json!({
            "zbench": env!("CARGO_PKG_VERSION"),
            "command": self.command,
            "begins_unix_ns": self.begins.to_string(),
            "cells": self.notes,
        });
        let tail = format!("\n],\n\"displayTimeUnit\":\"ms\",\n\"otherData\":{beside}}}\n");
        let mut bytes = std::mem::take(&mut self.waiting);
        let events = bytes.len() as u64;
        bytes.extend_from_slice(tail.as_bytes());
        self.file.seek(SeekFrom::Start(self.end))?;
        self.file.write_all(&bytes)?;
        self.end += events;
        // What closed the file before may have been longer, with nothing new in between.
        self.file.set_len(self.end + tail.len() as u64)
    }
}

/// A trace may be written over; a configuration that was named by mistake is not.
fn refuse_others(path: &Path) -> std::io::Result<()> {
    let Ok(there) = std::fs::metadata(path) else { return Ok(()) };
    if !there.is_file() {
        return Err(std::io::Error::other("it is no file; name one"));
    }
    if there.len() == 0 {
        return Ok(());
    }
    let mut head = vec![0; HEAD.len()];
    match File::open(path)?.read_exact(&mut head) {
        Ok(()) if head == HEAD => Ok(()),
        _ => Err(std::io::Error::other("it is there and is no trace; name another, or remove it")),
    }
}

/// A moment in eighths of a microsecond. Readers add times as floating-point numbers or cut them to whole nanoseconds, and one
/// nanosecond is enough for slices that follow each other to cross; an eighth is exact in both.
fn eighths(at: u64, zero: u64) -> i64 {
    // A host's clock may be behind ours.
    ((i128::from(at) - i128::from(zero)) * 8 + 500).div_euclid(1000) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_whole_after_every_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let read = || serde_json::from_slice::<Value>(&std::fs::read(&path).unwrap()).unwrap();
        let mut trace = TraceFile::create(&path, "zbench run x.toml").unwrap();
        assert_eq!(read()["traceEvents"], json!([]));
        for step in 1..4u64 {
            trace.add(&[json!({ "ph": "X", "at": trace.begins() + 1530 * step, "lasts": 200, "name": "é\"\n" })]);
            trace.note(json!({ "step": step }));
            trace.keep();
            let whole = read();
            let events = whole["traceEvents"].as_array().unwrap();
            assert_eq!(events.len() as u64, step);
            // 1.53, 3.06 and 4.59 us and 0.2 more are next to these eighths.
            let (from, until) = [(1.5, 1.75), (3.0, 3.25), (4.625, 4.75)][step as usize - 1];
            let event = &events[step as usize - 1];
            assert_eq!((&event["ts"], &event["dur"]), (&json!(from), &json!(until - from)));
            assert_eq!(whole["otherData"]["cells"].as_array().unwrap().len() as u64, step);
        }
        assert_eq!(trace.complaint(), None);
    }

    #[test]
    fn a_file_that_takes_no_more_is_said_once_and_ends_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let mut trace = TraceFile::create(&path, "").unwrap();
        let whole = std::fs::read(&path).unwrap();
        trace.file = File::open(&path).unwrap();
        trace.add(&[json!({ "ph": "i" })]);
        trace.keep();
        assert!(trace.complaint().unwrap().contains("cut off"));
        assert_eq!(trace.complaint(), None);
        trace.add(&[json!({ "ph": "i" })]);
        trace.keep();
        assert!(trace.waiting.is_empty(), "nothing is kept for a file that takes no more");
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }

    #[test]
    fn a_trace_is_written_over_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let mut first = TraceFile::create(&path, "first").unwrap();
        first.add(&[json!({ "ph": "i" })]);
        first.keep();
        let whole = std::fs::read(&path).unwrap();
        let mut second = TraceFile::create(&path, "second").unwrap();
        second.keep();
        assert_eq!(std::fs::read(&path).unwrap(), whole, "what has nothing to say takes nothing away");
        second.add(&[json!({ "ph": "i" }), json!({ "ph": "i" })]);
        second.keep();
        let read = serde_json::from_slice::<Value>(&std::fs::read(&path).unwrap()).unwrap();
        assert!(read["traceEvents"].as_array().unwrap().len() == 2 && read["otherData"]["command"] == "second");
        assert!(TraceFile::create(folder.path(), "").unwrap_err().to_string().contains("no file"));
        std::fs::write(&path, "[train]\nsteps = 3 # a configuration of some length\n").unwrap();
        assert!(TraceFile::create(&path, "").unwrap_err().to_string().contains("no trace"));
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("[train]"));
        std::fs::write(&path, "{}").unwrap();
        assert!(TraceFile::create(&path, "").is_err());
    }
}
