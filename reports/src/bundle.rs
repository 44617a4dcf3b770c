//! Records of a notebook in one file that another machine can take: a manifest, the records, the remarks on them.
//!
//! The file is text, one JSON object a line. The first line is the manifest: how many records and remarks follow, in how
//! many bytes, and the blake3 hash of those bytes. So a file that was cut off, damaged or changed is told from a whole one
//! before anything of it is used.

mod redaction;

use std::collections::BTreeSet;
use std::io::{BufRead, Read};

use serde::{Deserialize, Serialize};

pub use self::redaction::Redaction;
use crate::record::{Record, Remark, SCHEMA};

/// Version of the file's form that is written here, and the newest that is read.
pub const FORM: u32 = 1;
/// A manifest is a line of some hundred bytes.
const MOST_MANIFEST: u64 = 64 << 10;

/// The first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the file's form; that there is this key says what the file is.
    pub zbench_bundle: u32,
    /// The largest schema of its records.
    pub schema: u32,
    /// Version of the program that wrote it.
    pub zbench: String,
    /// When it was written, RFC 3339.
    pub created: String,
    /// What was taken out: `secrets`, `hosts`.
    pub redacted: Vec<String>,
    /// The records' lines.
    pub records: Part,
    /// The remarks' lines, after them.
    pub remarks: Part,
}

/// Some of the lines after the manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Lines.
    pub count: u64,
    /// Bytes, line ends included.
    pub bytes: u64,
    /// Hash of these bytes.
    pub blake3: String,
}

/// What a bundle holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Bundle {
    /// Its first line.
    pub manifest: Manifest,
    /// The records.
    pub records: Vec<Record>,
    /// The remarks.
    pub remarks: Vec<Remark>,
}

/// Why a bundle cannot be written or taken.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A value without a JSON form.
    #[error("{what} has no JSON form: {source}")]
    Encode {
        /// Which.
        what: String,
        /// The reason.
        source: serde_json::Error,
    },
    /// The system's reason.
    #[error("the bundle cannot be read: {0}")]
    Read(#[from] std::io::Error),
    /// The first line is none of a bundle's.
    #[error("this is no bundle of zbench: {reason}; `zbench export --bundle FILE` writes one")]
    NotABundle {
        /// What is wrong with the first line.
        reason: String,
    },
    /// Written by a newer version.
    #[error("the bundle was written by a newer zbench ({what} {found}, this one reads up to {known}); update zbench")]
    Newer {
        /// `form` or `schema`.
        what: &'static str,
        /// The version found.
        found: u64,
        /// The newest that is read here.
        known: u64,
    },
    /// The file ends too early.
    #[error(
        "the bundle is cut off: its {part} should have {expected} bytes, and {found} are there; copy the file again"
    )]
    CutOff {
        /// `records` or `remarks`.
        part: &'static str,
        /// Bytes that the manifest states.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// Other bytes than those that were written.
    #[error(
        "the bundle's {part} are not those that were written: their hash is {found}, the manifest says {expected}; copy the file again"
    )]
    Changed {
        /// `records` or `remarks`.
        part: &'static str,
        /// The manifest's.
        expected: String,
        /// That of the bytes.
        found: String,
    },
    /// The bytes are those that were written, and are nothing that a notebook can hold.
    #[error("line {line} of the bundle is refused: {reason}")]
    Line {
        /// Line of the file, from 1.
        line: u64,
        /// Why.
        reason: String,
    },
}

/// Writes a bundle; what `redaction` says is taken out of it.
///
/// # Errors
/// A record without a JSON form.
pub fn write(
    records: &[Record],
    remarks: &[Remark],
    redaction: &Redaction,
    zbench: &str,
    created: &str,
) -> Result<Vec<u8>, BundleError> {
    let redaction = redaction.knowing(records);
    let record_lines: Vec<serde_json::Value> = records
        .iter()
        .map(|record| encoded(record, &record.id).map(|value| redaction.record(value)))
        .collect::<Result<_, _>>()?;
    let remark_lines: Vec<serde_json::Value> = remarks
        .iter()
        .map(|remark| encoded(remark, &remark.note_for).map(|value| redaction.remark(value)))
        .collect::<Result<_, _>>()?;
    let (record_bytes, remark_bytes) = (lines(&record_lines), lines(&remark_lines));
    let manifest = Manifest {
        zbench_bundle: FORM,
        schema: records.iter().map(|record| record.schema).max().unwrap_or(SCHEMA),
        zbench: zbench.into(),
        created: created.into(),
        redacted: redaction.names(),
        records: Part::of(&record_bytes, records.len()),
        remarks: Part::of(&remark_bytes, remarks.len()),
    };
    let mut bytes = lines(&[encoded(&manifest, "the manifest")?]);
    bytes.extend(record_bytes);
    bytes.extend(remark_bytes);
    Ok(bytes)
}

fn encoded(value: &impl Serialize, what: &str) -> Result<serde_json::Value, BundleError> {
    serde_json::to_value(value).map_err(|source| BundleError::Encode { what: what.to_string(), source })
}

fn lines(values: &[serde_json::Value]) -> Vec<u8> {
    values.iter().flat_map(|value| format!("{value}\n").into_bytes()).collect()
}

impl Part {
    fn of(bytes: &[u8], count: usize) -> Part {
        Part { count: count as u64, bytes: bytes.len() as u64, blake3: blake3::hash(bytes).to_hex().to_string() }
    }

    /// The lines of this part, if they are those that were written.
    fn read(&self, part: &'static str, reader: &mut impl BufRead) -> Result<Vec<u8>, BundleError> {
        let mut bytes = Vec::new();
        // Grows with what is really there, whatever the manifest claims.
        reader.take(self.bytes).read_to_end(&mut bytes)?;
        let found = bytes.len() as u64;
        if found < self.bytes {
            return Err(BundleError::CutOff { part, expected: self.bytes, found });
        }
        let hash = blake3::hash(&bytes).to_hex().to_string();
        if hash != self.blake3 {
            return Err(BundleError::Changed { part, expected: self.blake3.clone(), found: hash });
        }
        Ok(bytes)
    }
}

/// Reads a bundle and checks all of it before anything is handed out.
///
/// # Errors
/// See [`BundleError`]. No input makes it panic.
pub fn read(mut reader: impl BufRead) -> Result<Bundle, BundleError> {
    let manifest = manifest(&mut reader)?;
    let record_bytes = manifest.records.read("records", &mut reader)?;
    let remark_bytes = manifest.remarks.read("remarks", &mut reader)?;
    let mut rest = [0u8; 1];
    if reader.read(&mut rest)? > 0 {
        let line = manifest.records.count.saturating_add(manifest.remarks.count).saturating_add(2);
        return Err(BundleError::Line { line, reason: "something follows what the manifest names".into() });
    }
    let records: Vec<Record> = parsed(&record_bytes, &manifest.records, 2)?;
    let remarks: Vec<Remark> = parsed(&remark_bytes, &manifest.remarks, manifest.records.count.saturating_add(2))?;
    let mut ids = BTreeSet::new();
    for (place, record) in records.iter().enumerate() {
        let refused = |reason: String| BundleError::Line { line: place as u64 + 2, reason };
        check_schema(record.schema.into())?;
        if record.id.is_empty() || record.key.is_empty() {
            return Err(refused("the record has no id or no key".into()));
        }
        if !ids.insert(&record.id) {
            return Err(refused(format!("the id {} stands there twice", record.id)));
        }
    }
    remarks.iter().try_for_each(|remark| check_schema(remark.schema.into()))?;
    Ok(Bundle { manifest, records, remarks })
}

fn check_schema(found: u64) -> Result<(), BundleError> {
    let known = u64::from(SCHEMA);
    if found > known { Err(BundleError::Newer { what: "schema", found, known }) } else { Ok(()) }
}

fn manifest(reader: &mut impl BufRead) -> Result<Manifest, BundleError> {
    let mut line = Vec::new();
    reader.take(MOST_MANIFEST).read_until(b'\n', &mut line)?;
    let not = |reason: String| BundleError::NotABundle { reason };
    let value: serde_json::Value =
        serde_json::from_slice(&line).map_err(|error| not(format!("its first line is no JSON object ({error})")))?;
    // Looked at before the rest, of which a newer version may have made something else.
    match value.get("zbench_bundle").map(serde_json::Value::as_u64) {
        None => return Err(not("its first line is no manifest".into())),
        Some(Some(found)) if found > FORM.into() => {
            return Err(BundleError::Newer { what: "form", found, known: FORM.into() });
        }
        Some(_) => {}
    }
    value.get("schema").and_then(serde_json::Value::as_u64).map_or(Ok(()), check_schema)?;
    if line.last() != Some(&b'\n') {
        return Err(not("its first line has no end".into()));
    }
    serde_json::from_value(value).map_err(|error| not(format!("its manifest is not one: {error}")))
}

fn parsed<T: for<'de> Deserialize<'de>>(bytes: &[u8], part: &Part, first: u64) -> Result<Vec<T>, BundleError> {
    let mut values = Vec::new();
    let mut line = first;
    for text in bytes.split_inclusive(|byte| *byte == b'\n') {
        let refused = |reason: String| BundleError::Line { line, reason };
        let value = serde_json::from_slice(text).map_err(|error| refused(error.to_string()))?;
        values.push(value);
        line = line.saturating_add(1);
    }
    if values.len() as u64 != part.count {
        let reason = format!("the manifest names {} lines, {} are there", part.count, values.len());
        return Err(BundleError::Line { line, reason });
    }
    Ok(values)
}
