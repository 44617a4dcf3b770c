//! Writing one safetensors file, whole or not at all.

use super::header::{LENGTH_BYTES, MAX_HEADER_BYTES, METADATA};
use super::{CheckpointError, Result, StoredType};
use serde_json::{Map, Value, json};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use zbench_kernels::DType;

/// Written at a time.
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
    let encoding = Encoding::of(dtype).ok_or_else(|| {
        let reason = format!("{dtype} was asked for; f32, bf16 and f16 are there");
        CheckpointError::Write { path: path.into(), reason }
    })?;
    let header = header(path, tensors, &encoding)?;
    let (file, beside) = create_beside(path).map_err(|source| CheckpointError::io("write beside", path, source))?;
    let written = fill(file, &header, tensors, &encoding)
        .and_then(|()| std::fs::rename(&beside, path))
        .and_then(|()| flush_folder(path));
    written.map_err(|source| {
        // Best effort: the disk that refused the write may refuse this too.
        let _ = std::fs::remove_file(&beside);
        CheckpointError::io("write", path, source)
    })
}

/// Appends elements' bytes.
type Append = fn(&[f32], &mut Vec<u8>);

/// How an element is stored.
struct Encoding {
    stored: StoredType,
    width: usize,
    append: Append,
}

impl Encoding {
    fn of(dtype: DType) -> Option<Encoding> {
        let (stored, append): (_, Append) = match dtype {
            DType::F32 => (StoredType::F32, |values, to| to.extend(values.iter().flat_map(|v| v.to_le_bytes()))),
            DType::Bf16 => (StoredType::BF16, |values, to| {
                to.extend(values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()));
            }),
            DType::F16 => (StoredType::F16, |values, to| {
                to.extend(values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()));
            }),
            DType::F64 | DType::U32 | DType::I32 | DType::I8 => return None,
        };
        Some(Encoding { stored, width: dtype.size(), append })
    }
}

/// Length and JSON, padded so that data begin at a multiple of eight.
fn header(path: &Path, tensors: &[(String, Vec<usize>, &[f32])], encoding: &Encoding) -> Result<Vec<u8>> {
    let mut entries = Map::new();
    // transformers refuses files that do not say which framework's layout they follow.
    entries.insert(METADATA.into(), json!({"format": "pt"}));
    let mut begin = 0usize;
    for (name, shape, data) in tensors {
        let refuse = |reason: String| CheckpointError::Write { path: path.into(), reason: format!("{name}: {reason}") };
        let elements = shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
        if elements != Some(data.len()) {
            return Err(refuse(format!("{} elements were given for the shape {shape:?}", data.len())));
        }
        // A slice's bytes fit in isize, and no dtype is wider than f32.
        let end = begin.checked_add(data.len() * encoding.width).ok_or_else(|| refuse("sizes overflow".into()))?;
        let entry = json!({"dtype": encoding.stored, "shape": shape, "data_offsets": [begin, end]});
        if entries.insert(name.clone(), entry).is_some() {
            return Err(refuse("its name is taken".into()));
        }
        begin = end;
    }
    let header = header_bytes(entries, LENGTH_BYTES as usize);
    if header.len() as u64 - LENGTH_BYTES > MAX_HEADER_BYTES {
        let reason = format!("the header would take {} bytes; the format allows {MAX_HEADER_BYTES}", header.len());
        return Err(CheckpointError::Write { path: path.into(), reason });
    }
    Ok(header)
}

/// Length and JSON of a safetensors header, filled up with spaces so that the data begin at a multiple of so many bytes.
pub(crate) fn header_bytes(entries: Map<String, Value>, multiple: usize) -> Vec<u8> {
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

fn fill(
    mut file: File,
    header: &[u8],
    tensors: &[(String, Vec<usize>, &[f32])],
    encoding: &Encoding,
) -> std::io::Result<()> {
    file.write_all(header)?;
    let mut bytes = Vec::with_capacity(BUFFER_BYTES);
    for (_, _, data) in tensors {
        for part in data.chunks(BUFFER_BYTES / encoding.width) {
            bytes.clear();
            (encoding.append)(part, &mut bytes);
            file.write_all(&bytes)?;
        }
    }
    file.sync_all()
}

/// A rename lasts once the folder is on the disk.
fn flush_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}
