//! The JSON files of a checkpoint: read and written with a checksum of their own.

use super::error::{Result, StateError};
use super::index::{FORMAT, Index, Position, VERSION};
use crate::formats::files::is_plain_name;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file that makes a folder a checkpoint.
pub(crate) const INDEX: &str = "index.json";

/// Writes JSON whose checksum stands in it: on the first line the checksum, on the second what it is of. The file is on the
/// disk when this returns. Returns the checksum.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<u32> {
    let failed = |source| StateError::io("write", path, source);
    let text = serde_json::to_string(value).map_err(|error| failed(error.into()))?;
    let sum = crc32fast::hash(text.as_bytes());
    let mut file = File::create(path).map_err(failed)?;
    file.write_all(enclosed(sum, &text).as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    Ok(sum)
}

fn enclosed(sum: u32, text: &str) -> String {
    format!("{{\"crc32\": {sum}, \"of\":\n{text}\n}}\n")
}

/// Reads what `write_json` wrote, and its checksum.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<(T, u32)> {
    const MOST_BYTES: u64 = 4 << 30;
    let failed = |source| StateError::io("read", path, source);
    // This is checked before opening, because opening a pipe would wait for its writer.
    let found = std::fs::metadata(path).map_err(failed)?;
    if !found.is_file() {
        return Err(StateError::damaged(path, "it is not a regular file"));
    }
    let bytes = found.len();
    if bytes > MOST_BYTES {
        return Err(StateError::damaged(path, format!("it has {bytes} bytes")));
    }
    let text = std::fs::read(path).map_err(failed)?;
    let text = String::from_utf8(text).map_err(|_| StateError::damaged(path, "it is no text"))?;
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    let stated = head.strip_prefix("{\"crc32\": ").and_then(|rest| rest.strip_suffix(", \"of\":"));
    let (Some(stated), Some(of)) = (stated.and_then(|sum| sum.parse::<u32>().ok()), lines.next()) else {
        return Err(StateError::damaged(path, "it does not begin with its checksum, or is cut off"));
    };
    if crc32fast::hash(of.as_bytes()) != stated || text != enclosed(stated, of) {
        return Err(StateError::damaged(path, "its content is not what its checksum is of"));
    }
    let value = serde_json::from_str(of).map_err(|error| StateError::damaged(path, error.to_string()))?;
    Ok((value, stated))
}

/// Reads the index of a checkpoint of this version.
pub(crate) fn read_index(dir: &Path) -> Result<Index> {
    let path: PathBuf = dir.join(INDEX);
    if !path.exists() {
        let reason = match dir.metadata() {
            Ok(found) if found.is_dir() => format!("it holds no {INDEX}"),
            Ok(_) => "it is a file".into(),
            Err(_) => "there is no such folder".into(),
        };
        return Err(StateError::NotOne { path: dir.into(), reason });
    }
    let (value, _): (Value, u32) = read_json(&path)?;
    if value.get("format").and_then(Value::as_str) != Some(FORMAT) {
        return Err(StateError::NotOne { path, reason: format!("it is no index of {FORMAT}") });
    }
    match value.get("version").and_then(Value::as_u64) {
        Some(VERSION) => {}
        Some(found) => return Err(StateError::OtherVersion { path, found, known: VERSION }),
        None => return Err(StateError::damaged(&path, "it states no version")),
    }
    let index: Index = serde_json::from_value(value).map_err(|error| StateError::damaged(&path, error.to_string()))?;
    let Position { steps, updates, samples, .. } = index.position;
    if updates > steps || steps.max(samples) >= 1 << 53 {
        let reason = format!("{steps} steps, {updates} updates and {samples} sequences cannot be");
        return Err(StateError::damaged(&path, reason));
    }
    let names = index.ranks.iter().chain(&index.history).map(|(name, _)| name.as_str());
    plain_names(&path, names)?;
    Ok(index)
}

/// Refuses names that lead out of the checkpoint's folder.
pub(crate) fn plain_names<'a>(path: &Path, mut names: impl Iterator<Item = &'a str>) -> Result<()> {
    match names.find(|name| !is_plain_name(name)) {
        Some(name) => {
            Err(StateError::damaged(path, format!("it names {name:?}, which is not the plain name of a file")))
        }
        None => Ok(()),
    }
}
