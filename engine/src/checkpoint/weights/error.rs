//! What can be wrong with weights on disk.

use crate::checkpoint::tensor_files::WriteError;
use std::path::{Path, PathBuf};

/// Why a checkpoint cannot be used. Every message names the file, and the tensor where there is one.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{}: cannot {doing}: {source}", .path.display())]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{}: no weights to load: {reason}", .dir.display())]
    NoWeights { dir: PathBuf, reason: String },
    #[error("{}: not a whole safetensors file: {reason}; fetch or write it again", .file.display())]
    Header { file: PathBuf, reason: String },
    #[error("{}: tensor {tensor}: {reason}; fetch or write the file again", .file.display())]
    Entry { file: PathBuf, tensor: String, reason: String },
    #[error("{}: not an index of shards: {reason}; fetch or write it again", .file.display())]
    Index { file: PathBuf, reason: String },
    #[error("{}: names files that are not there: {}; fetch them, or remove the index if another file holds the weights",
        .index.display(), listed(.absent))]
    AbsentShards { index: PathBuf, absent: Vec<String> },
    #[error("{}: says that {tensor} is in {}, which does not hold it; fetch both again",
        .index.display(), .file.display())]
    AbsentTensor { index: PathBuf, tensor: String, file: PathBuf },
    #[error("{}: the weights are not those of the model{}{}{}; do config and weights belong together?", .dir.display(),
        part("missing", .missing), part("wrong", .wrong), part("unexpected", .unexpected))]
    Mismatch { dir: PathBuf, missing: Vec<String>, wrong: Vec<String>, unexpected: Vec<String> },
    #[error("{}: tensor {tensor}: {reason}", .dir.display())]
    Read { dir: PathBuf, tensor: String, reason: String },
    #[error("{}: these weights cannot be written: {reason}", .path.display())]
    Write { path: PathBuf, reason: String },
}

impl CheckpointError {
    pub(super) fn io(doing: &'static str, path: &Path, source: std::io::Error) -> CheckpointError {
        CheckpointError::Io { doing, path: path.into(), source }
    }
}

impl From<WriteError> for CheckpointError {
    fn from(WriteError { path, source }: WriteError) -> CheckpointError {
        CheckpointError::Io { doing: "write", path, source }
    }
}

/// The first few names, and how many more there are.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 6;
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown} and {} more", names.len() - SHOWN) } else { shown }
}

fn part(title: &str, names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; {title} ({}): {}", names.len(), listed(names)) }
}
