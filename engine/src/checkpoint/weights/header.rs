//! A safetensors header: eight bytes of length, JSON, then data. Read and checked without touching the data.

use super::{CheckpointError, Result, TensorInfo};
use crate::checkpoint::tensor_files::{LENGTH_BYTES, MAX_HEADER_BYTES, METADATA};
use safetensors::tensor::TensorInfo as Stored;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tracing::debug;

/// Opens a file, which is number `index` of its checkpoint, and checks its header against its length.
pub(super) fn open(path: &Path, index: usize) -> Result<(File, BTreeMap<String, TensorInfo>)> {
    let io = |source| CheckpointError::io("open", path, source);
    // Asked before opening: opening a pipe would wait for its writer.
    let found = std::fs::metadata(path).map_err(io)?;
    if !found.is_file() {
        return Err(bad(path, "it is not a regular file"));
    }
    let file = File::open(path).map_err(io)?;
    let file_bytes = file.metadata().map_err(io)?.len();
    let header = read_header(&file, path, file_bytes)?;
    let data_begin = LENGTH_BYTES + header.len() as u64;
    let tensors = parse(&header, path)?;
    let tensors = place(tensors, path, index, data_begin..file_bytes)?;
    debug!(target: "zbench::loading", file = %path.display(), bytes = file_bytes, tensors = tensors.len(), "file is opened");
    Ok((file, tensors))
}

fn bad(path: &Path, reason: impl Into<String>) -> CheckpointError {
    CheckpointError::Header { file: path.into(), reason: reason.into() }
}

fn read_header(file: &File, path: &Path, file_bytes: u64) -> Result<Vec<u8>> {
    let io = |source| CheckpointError::io("read the header", path, source);
    if file_bytes < LENGTH_BYTES {
        return Err(bad(path, format!("it has {file_bytes} bytes, less than the {LENGTH_BYTES} of a header's length")));
    }
    let mut length = [0; LENGTH_BYTES as usize];
    file.read_exact_at(&mut length, 0).map_err(io)?;
    if &length == b"version " {
        return Err(bad(path, "it is the pointer of a Git LFS file (run git lfs pull)"));
    }
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(bad(path, format!("it claims a header of {length} bytes; the format allows {MAX_HEADER_BYTES}")));
    }
    if LENGTH_BYTES + length > file_bytes {
        let reason = format!("it claims a header of {length} bytes and has {file_bytes} bytes in all: truncated");
        return Err(bad(path, reason));
    }
    let mut header = vec![0; length as usize];
    file.read_exact_at(&mut header, LENGTH_BYTES).map_err(io)?;
    Ok(header)
}

/// Names and entries as the JSON states them.
fn parse(header: &[u8], path: &Path) -> Result<Vec<(String, Stored)>> {
    let object: Map<String, Value> =
        serde_json::from_slice(header).map_err(|error| bad(path, format!("its header is not JSON: {error}")))?;
    let mut tensors = Vec::with_capacity(object.len());
    for (name, value) in object {
        if name == METADATA {
            if !value.as_object().is_some_and(|map| map.values().all(Value::is_string)) {
                return Err(bad(path, format!("its {METADATA} is not a map of strings")));
            }
            continue;
        }
        match serde_json::from_value(value) {
            Ok(stored) => tensors.push((name, stored)),
            Err(error) => {
                let reason = format!("its entry cannot be read: {error}");
                return Err(CheckpointError::Entry { file: path.into(), tensor: name, reason });
            }
        }
    }
    Ok(tensors)
}

/// Checks that the tensors cover the data exactly: each as long as its shape says, no gap, no overlap, nothing left.
fn place(
    mut tensors: Vec<(String, Stored)>,
    path: &Path,
    index: usize,
    data: Range<u64>,
) -> Result<BTreeMap<String, TensorInfo>> {
    let data_bytes = data.end - data.start;
    let mut placed = BTreeMap::new();
    let mut covered = 0u64;
    tensors.sort_by_key(|(_, stored)| stored.data_offsets);
    for (name, stored) in tensors {
        let refuse = |reason: String| CheckpointError::Entry { file: path.into(), tensor: name.clone(), reason };
        let (begin, end) = (stored.data_offsets.0 as u64, stored.data_offsets.1 as u64);
        if end < begin {
            return Err(refuse(format!("its data ends ({end}) before it begins ({begin})")));
        }
        let bytes = bytes_of(&stored).ok_or_else(|| {
            let Stored { dtype, shape, .. } = &stored;
            refuse(format!("{shape:?} of {dtype:?} is no whole number of bytes that fits in 64 bits"))
        })?;
        if bytes != end - begin {
            let Stored { dtype, shape, .. } = &stored;
            return Err(refuse(format!("{shape:?} of {dtype:?} is {bytes} bytes, and its data has {}", end - begin)));
        }
        if end > data_bytes {
            let reason = format!("its data ends at byte {end} and the file's data at {data_bytes}: truncated");
            return Err(refuse(reason));
        }
        if begin < covered {
            return Err(refuse(format!("its data begins at byte {begin}, inside another tensor's, to {covered}")));
        }
        if begin > covered {
            return Err(refuse(format!("bytes {covered} to {begin} in front of its data belong to no tensor")));
        }
        covered = end;
        let Stored { dtype, shape, .. } = stored;
        placed.insert(name, TensorInfo { dtype, shape, file: path.into(), index, begin: data.start + begin });
    }
    if covered != data_bytes {
        let extra = data_bytes - covered;
        return Err(bad(path, format!("{extra} bytes after its last tensor belong to no tensor")));
    }
    Ok(placed)
}

fn bytes_of(stored: &Stored) -> Option<u64> {
    let elements = stored.shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size))?;
    let bits = elements.checked_mul(stored.dtype.bitsize())?;
    bits.is_multiple_of(8).then_some(bits as u64 / 8)
}
