//! What the disk of a folder does by itself: a file for each rank, in transfers of 4 MiB, past the page cache.

use crate::calibrate::disk::{Disk, once};
use std::path::Path;

/// Files without names, filled; or why there are none.
pub struct Raw(Result<Vec<Disk>, String>);

impl Raw {
    /// Makes files of so many bytes together.
    pub fn open(folder: &Path, files: usize, bytes: u64) -> Raw {
        let each = (bytes / files.max(1) as u64).max(1);
        // The flag is another command's.
        let own = |reason: String| reason.replace("; name another folder with --disk", "");
        Raw((0..files.max(1)).map(|_| Disk::open(folder, each).map_err(own)).collect())
    }

    /// Why there is no rate; empty where there is.
    pub fn trouble(&self) -> String {
        self.0.as_ref().err().cloned().unwrap_or_default()
    }

    /// Writes and syncs all of it: bytes and seconds.
    pub fn write(&self) -> Result<Option<(u64, f64)>, String> {
        self.0.as_ref().map_or(Ok(None), |disks| once(disks, true).map(Some))
    }

    /// Reads all of it: bytes and seconds.
    pub fn read(&self) -> Result<Option<(u64, f64)>, String> {
        self.0.as_ref().map_or(Ok(None), |disks| once(disks, false).map(Some))
    }
}

/// 10^9 bytes per second of several passes together.
pub fn gb_s(passes: &[Option<(u64, f64)>]) -> Option<f64> {
    let (bytes, seconds) = passes.iter().flatten().fold((0, 0.0), |sum, pass| (sum.0 + pass.0, sum.1 + pass.1));
    (seconds > 0.0).then(|| bytes as f64 / seconds / 1e9)
}
