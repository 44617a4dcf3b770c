//! Claims on trials among several processes that use one notebook.
//!
//! A claim is a file below `claims/` on which its owner holds a lock. The system releases the lock when the owner ends, however it
//! ends. So the claim of a dead process is void, and no process has to find out whether the owner lives.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tracing::{debug, trace};

use super::{Notebook, StoreError, nofollow};

/// Folder of the claims inside a notebook's directory.
const CLAIMS: &str = "claims";
/// So often opening a file may fail because another process removes it; that process made progress each time.
const TRIES: usize = 1000;

/// Errors of a folder that another process removes meanwhile.
const GONE: [io::ErrorKind; 2] = [io::ErrorKind::NotFound, io::ErrorKind::AlreadyExists];

/// The right of this process to measure a trial, until the claim is dropped.
#[derive(Debug)]
pub struct Claim {
    file: File,
    path: PathBuf,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // The name goes first and the lock second, so that a process that opens the name later makes a new file. The folder is
        // removed with the last claim.
        let Some(folder) = self.path.parent() else { return };
        let _ = nofollow::remove_in(folder, &self.path);
        let _ = self.file.unlock();
        let _ = fs::remove_dir(folder);
    }
}

impl Notebook {
    /// Claims a trial; `None` where another process has it. On a file system without locks every process gets every claim.
    ///
    /// # Errors
    /// The notebook cannot be written.
    pub fn claim(&self, key: &str, trial: u32) -> Result<Option<Claim>, StoreError> {
        let folder = self.directory.join(CLAIMS);
        let is_plain = |c: &char| c.is_ascii_alphanumeric();
        let path = folder.join(format!("{}-{trial}", key.chars().filter(is_plain).take(64).collect::<String>()));
        let failed = |source: io::Error| StoreError::ReadOnly { path: self.directory.clone(), source };
        let Some(file) = open_locked(&folder, &path, OFlags::RDWR).map_err(failed)? else {
            trace!(target: "zbench::runner", cell = key, trial, "claim is left to another process, which has it");
            return Ok(None);
        };
        // The process id is for people; only the lock counts.
        let _ = file.set_len(0).and_then(|()| writeln!(&file, "{}", std::process::id()));
        debug!(target: "zbench::runner", cell = key, trial, "claim is taken");
        Ok(Some(Claim { file, path }))
    }
}

/// Opens a file with a lock on it, and creates it and its folder where they are missing; `None` where another process holds the
/// lock. On a file system without locks every process gets the file.
pub(super) fn open_locked(folder: &Path, path: &Path, flags: OFlags) -> io::Result<Option<File>> {
    for _ in 0..TRIES {
        let opened = fs::create_dir_all(folder).and_then(|()| nofollow::open_in(folder, path, flags | OFlags::CREATE));
        let file = match opened {
            Ok(file) => file,
            // Another process removed the folder with its last file: after it was made here, or while it was found to be there.
            Err(error) if GONE.contains(&error.kind()) && !is_blocked(folder) => continue,
            Err(error) => return Err(error),
        };
        match file.try_lock() {
            Ok(()) if !is_at(&file, path) => continue,
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => return Ok(Some(file)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::other(format!("{} vanishes as often as it is made", path.display())))
}

/// Whether something that is no folder has the folder's name.
fn is_blocked(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|metadata| !metadata.is_dir())
}

/// Whether the open file is still the one of that name: its last owner may have removed it before we had the lock.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let place = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(ours), Ok(named)) => place(ours) == place(named),
        _ => false,
    }
}
