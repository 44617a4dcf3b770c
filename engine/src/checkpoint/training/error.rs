//! Why the state of a run was not written or read.

use crate::checkpoint::tensor_files::WriteError;
use std::path::{Path, PathBuf};

pub type Result<T, E = StateError> = std::result::Result<T, E>;

/// Why the state of a run was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("{}: cannot {doing} this training checkpoint: {source}{}", .path.display(), advice(.source, .doing))]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{}: is no training checkpoint: {reason}; name a folder step-… that holds index.json", .path.display())]
    NotOne { path: PathBuf, reason: String },
    #[error("{}: was written in version {found} of the format, and this zbench reads {known}; use the zbench that wrote it \
             (version 1: commit 1282bac3)", .path.display())]
    OtherVersion { path: PathBuf, found: u64, known: u64 },
    #[error("{}: is damaged: {reason}; go on from another checkpoint with checkpoint.resume = \"…/step-…\", or start anew \
             with checkpoint.resume = \"never\"", .path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("{}: files are missing: {}; copy the whole folder again, or go on from another checkpoint", .dir.display(),
        .absent.join(", "))]
    Absent { dir: PathBuf, absent: Vec<String> },
    #[error("{}: is a checkpoint of another model: {reason}; name another checkpoint.dir, or write checkpoint.resume = \
             \"never\"", .dir.display())]
    OtherModel { dir: PathBuf, reason: String },
    #[error("{}: was written with train.delayed_update = 1 and holds gradients that are still to be applied; write \
             train.delayed_update = 1, or checkpoint.resume = \"never\"", .dir.display())]
    Delayed { dir: PathBuf },
    #[error("{}: its learning rates have train.lr_steps = \"{was}\"; write that to go on with the same, or checkpoint.resume = \
             \"never\"", .dir.display())]
    CourseSteps { dir: PathBuf, was: &'static str },
    #[error("{}: another run writes its checkpoints there; wait for it, or name another checkpoint.dir", .dir.display())]
    Busy { dir: PathBuf },
    #[error(transparent)]
    Step(#[from] crate::compute::error::StepError),
}

impl StateError {
    pub(crate) fn io(doing: &'static str, path: &Path, source: std::io::Error) -> StateError {
        StateError::Io { doing, path: path.into(), source }
    }

    pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> StateError {
        StateError::Damaged { path: path.into(), reason: reason.into() }
    }
}

impl From<WriteError> for StateError {
    fn from(WriteError { path, source }: WriteError) -> StateError {
        StateError::Io { doing: "write", path, source }
    }
}

fn advice(source: &std::io::Error, doing: &str) -> &'static str {
    use std::io::ErrorKind::{
        AlreadyExists, NotADirectory, NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
    };
    match source.kind() {
        StorageFull | QuotaExceeded => "; make room, lower checkpoint.keep, or name another checkpoint.dir",
        PermissionDenied if doing == "read" => "; name a checkpoint that may be read",
        AlreadyExists | NotADirectory => "; name a folder",
        PermissionDenied | ReadOnlyFilesystem => "; name a checkpoint.dir that may be written",
        NotFound => "; is the folder there, and may folders be made in it?",
        _ => "",
    }
}
