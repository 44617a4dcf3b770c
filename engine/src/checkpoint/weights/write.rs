//! Writing one safetensors file, whole or not at all.

use super::elements::{encode, stored_type};
use super::header::{LENGTH_BYTES, MAX_HEADER_BYTES, METADATA};
use super::{CheckpointError, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use zbench_kernels::DType;

const BUFFER_BYTES: usize = 1 << 20;

/// Writes tensors (name, shape, row-major elements) as `dtype`, rounded to nearest even, into one file.
///
/// The file appears whole or not at all: it is written beside its place, flushed to the disk, and renamed; a file that
/// was there before is replaced only then. Tensors lie in the order given.
///
/// # Errors
/// A name used twice or reserved, elements that do not fill their shape, or a disk that refuses (full, read-only); what
/// was written beside is removed then.
pub fn write_safetensors(path: &Path, tensors: &[(String, Vec<usize>, &[f32])], dtype: DType) -> Result<()> {
    let refuse = |reason| CheckpointError::Write { path: path.into(), reason };
    if !matches!(dtype, DType::F32 | DType::Bf16 | DType::F16) {
        return Err(refuse(format!("{dtype} was asked for; f32, bf16 and f16 are there")));
    }
    check(tensors).map_err(refuse)?;
    let shapes = tensors.iter().map(|(name, shape, _)| (name.clone(), &shape[..], dtype));
    // transformers refuses files that do not say which framework's layout they follow.
    let header = header_bytes("pt", shapes, LENGTH_BYTES as usize);
    if header.len() as u64 - LENGTH_BYTES > MAX_HEADER_BYTES {
        let reason = format!("the header would take {} bytes; the format allows {MAX_HEADER_BYTES}", header.len());
        return Err(refuse(reason));
    }
    let (file, beside) = create_beside(path).map_err(|source| CheckpointError::io("write beside", path, source))?;
    let written = fill(file, &header, tensors, dtype)
        .and_then(|()| std::fs::rename(&beside, path))
        .and_then(|()| flush_folder(path));
    written.map_err(|source| {
        // Best effort: the disk that refused the write may refuse this too.
        let _ = std::fs::remove_file(&beside);
        CheckpointError::io("write", path, source)
    })
}

/// Refuses names that are used twice or reserved, and elements that do not fill their shape.
fn check(tensors: &[(String, Vec<usize>, &[f32])]) -> std::result::Result<(), String> {
    let mut taken = BTreeSet::from([METADATA]);
    for (name, shape, data) in tensors {
        let elements = shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
        if elements != Some(data.len()) {
            return Err(format!("{name}: {} elements were given for the shape {shape:?}", data.len()));
        }
        if !taken.insert(name) {
            return Err(format!("{name}: its name is taken"));
        }
    }
    Ok(())
}

/// The header of a safetensors file with these tensors (name, shape, type), one behind the other: its length and JSON,
/// padded with spaces so that the data begin at a multiple of so many bytes. `format` goes into the metadata.
pub(crate) fn header_bytes<'a>(
    format: &str,
    tensors: impl Iterator<Item = (String, &'a [usize], DType)>,
    multiple: usize,
) -> Vec<u8> {
    let mut entries = Map::new();
    entries.insert(METADATA.into(), json!({"format": format}));
    let mut begin = 0;
    for (name, shape, dtype) in tensors {
        let end = begin + (shape.iter().product::<usize>() * dtype.size()) as u64;
        let entry = json!({"dtype": stored_type(dtype), "shape": shape, "data_offsets": [begin, end]});
        entries.insert(name, entry);
        begin = end;
    }
    let length = LENGTH_BYTES as usize;
    let mut json = Value::Object(entries).to_string().into_bytes();
    json.resize((json.len() + length).next_multiple_of(multiple) - length, b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    header
}

/// A new file in the same folder, under a name that nothing else uses.
fn create_beside(path: &Path) -> std::io::Result<(File, PathBuf)> {
    let invalid = || std::io::Error::new(std::io::ErrorKind::InvalidInput, "the path does not name a file");
    let name = path.file_name().ok_or_else(invalid)?;
    let mut attempt = 0;
    loop {
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}-{attempt}.part", std::process::id()));
        let beside = path.with_file_name(hidden);
        match OpenOptions::new().write(true).create_new(true).open(&beside) {
            Ok(file) => return Ok((file, beside)),
            // Another thread's, or left by a killed process that had this number.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

fn fill(mut file: File, header: &[u8], tensors: &[(String, Vec<usize>, &[f32])], dtype: DType) -> std::io::Result<()> {
    file.write_all(header)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    for (_, _, data) in tensors {
        for part in data.chunks(BUFFER_BYTES / dtype.size()) {
            let bytes = &mut buffer[..part.len() * dtype.size()];
            encode(dtype, part, bytes);
            file.write_all(bytes)?;
        }
    }
    file.sync_all()
}

/// Flushes the folder of a file: a rename is durable only then.
fn flush_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}
