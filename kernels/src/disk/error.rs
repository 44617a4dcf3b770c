//! What can go wrong between memory and a file.

use super::Engine;
use std::path::PathBuf;

/// Why a file could not be made, or a transfer was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// There is no file to be made in the folder.
    #[error("could not make a file in {}: {source}; {help}", .folder.display())]
    Create { folder: PathBuf, source: std::io::Error, help: &'static str },
    /// What was asked for is not to be had here.
    #[error("{} cannot be transferred by {engine}: {reason}; leave the choice open, or take another", .folder.display())]
    Engine { folder: PathBuf, engine: Engine, reason: String },
    /// The page cache cannot be gone around here.
    #[error(
        "{} cannot be transferred without the page cache (O_DIRECT): {reason}; leave the choice open, or take a folder on another \
         file system",
        .folder.display()
    )]
    Direct { folder: PathBuf, reason: String },
    /// The file system has less room than is needed.
    #[error(
        "{} has no room for {needed} bytes: {free} bytes are free{}; free some, or take a folder on another file system",
        .folder.display(),
        if *.is_quota { " but for a quota, which allows fewer" } else { "" }
    )]
    Full { folder: PathBuf, needed: u64, free: u64, is_quota: bool },
    /// The process or the file system allows no file of this size.
    #[error(
        "a file in {} cannot have {needed} bytes, {} are allowed; {help}",
        .folder.display(),
        .limit.map_or("fewer".into(), |limit| limit.to_string())
    )]
    Limit { folder: PathBuf, needed: u64, limit: Option<u64>, help: &'static str },
    /// A buffer or a place that a disk does not transfer.
    #[error("{what} is {value} bytes, which is no multiple of {page}; allocate it in pages (Arena::alloc_pages)", page = crate::PAGE_BYTES)]
    Unaligned { what: &'static str, value: u64 },
    /// The buffer is not in host memory.
    #[error("only buffers in host memory are transferred; copy the elements (upload, download)")]
    NotOnHost,
    /// The system refused or broke off a transfer.
    #[error(
        "could not {} {bytes} bytes {} {} (at byte {offset}): {source}{}",
        if *.is_write { "write" } else { "read" },
        if *.is_write { "to a file in" } else { "from a file in" },
        .folder.display(),
        help(source)
    )]
    Transfer { folder: PathBuf, is_write: bool, offset: u64, bytes: u64, source: std::io::Error },
    /// The engine itself has failed; nothing is transferred any more.
    #[error("transfers of a file in {} have ended, as {engine} failed: {reason}", .folder.display())]
    Broken { folder: PathBuf, engine: Engine, reason: String },
}

/// What to do about an error of the system.
fn help(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => "; free room there, or take a folder on another file system",
        Some(libc::EIO) => "; the disk may be failing, see the kernel's log (dmesg)",
        Some(libc::EFBIG) => "; a limit on file sizes (ulimit -f) may be set",
        Some(libc::EINVAL) => "; take a folder on another file system, or go through the page cache",
        _ => "",
    }
}

/// What to do about a folder in which no file can be made.
pub(super) fn create_help(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOENT) => "make the folder first",
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => "make it writable, or take another folder",
        Some(libc::ENOTDIR) => "name a folder",
        Some(libc::ENOSPC | libc::EDQUOT) => "free room there, or take a folder on another file system",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
        _ => "take another folder",
    }
}
