//! Writing one safetensors file, whole or not at all.

use super::{CheckpointError, Result};
use crate::checkpoint::tensor_files::{METADATA, Outline, TensorFiles};
use std::collections::BTreeSet;
use std::path::Path;
use zbench_kernels::DType;

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
    let name = path.file_name().and_then(|name| name.to_str());
    let (Some(dir), Some(name)) = (path.parent(), name) else {
        return Err(refuse("the path does not name a file".into()));
    };
    let named = tensors.iter().map(|(name, shape, _)| (name.clone(), shape.clone()));
    let mut file = TensorFiles::create_hidden(dir, vec![Outline::new(name, named, dtype)])?;
    tensors.iter().try_for_each(|(.., values)| file.take(values))?;
    file.finish()?;
    Ok(())
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
