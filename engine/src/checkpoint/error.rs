//! What can be wrong with weights on disk.

use std::path::{Path, PathBuf};

/// Why a checkpoint cannot be used. Every message names the file, and the tensor where there is one.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system refused.
    #[error("{}: cannot {doing}: {source}", .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On which path.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// The folder is none, or holds no weights.
    #[error("{}: no weights to load: {reason}", .dir.display())]
    NoWeights {
        dir: PathBuf,
        /// What is there instead.
        reason: String,
    },
    /// A file's header cannot be believed.
    #[error("{}: not a whole safetensors file: {reason}; fetch or write it again", .file.display())]
    Header {
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A tensor's entry in a header cannot be believed.
    #[error("{}: tensor {tensor}: {reason}; fetch or write the file again", .file.display())]
    Entry {
        file: PathBuf,
        tensor: String,
        /// What is wrong.
        reason: String,
    },
    /// The index is not one.
    #[error("{}: not an index of shards: {reason}; fetch or write it again", .file.display())]
    Index {
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The index names files that are not there.
    #[error("{}: names files that are not there: {}; fetch them, or remove the index if another file holds the weights",
        .index.display(), listed(.absent))]
    AbsentShards { index: PathBuf, absent: Vec<String> },
    /// The index puts a tensor into a file that does not hold it.
    #[error("{}: says that {tensor} is in {}, which does not hold it; fetch both again",
        .index.display(), .file.display())]
    AbsentTensor { index: PathBuf, tensor: String, file: PathBuf },
    /// The tensors are not those of the model.
    #[error("{}: the weights are not those of the model{}{}{}; do config and weights belong together?", .dir.display(),
        part("missing", .missing), part("wrong", .wrong), part("unexpected", .unexpected))]
    Mismatch {
        dir: PathBuf,
        /// Names of the model that the files lack.
        missing: Vec<String>,
        /// Name, what is there, what should be.
        wrong: Vec<String>,
        /// Names in the files that the model lacks.
        unexpected: Vec<String>,
    },
    /// A slice that cannot be read.
    #[error("{}: tensor {tensor}: {reason}", .dir.display())]
    Read {
        dir: PathBuf,
        tensor: String,
        /// What is wrong.
        reason: String,
    },
    /// Tensors that cannot be written.
    #[error("{}: these weights cannot be written: {reason}", .path.display())]
    Write {
        /// The file that was to be.
        path: PathBuf,
        /// What is wrong, and with which tensor.
        reason: String,
    },
}

impl CheckpointError {
    pub(super) fn io(doing: &'static str, path: &Path, source: std::io::Error) -> CheckpointError {
        CheckpointError::Io { doing, path: path.into(), source }
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
