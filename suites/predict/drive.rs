//! The drive of offloaded state: what a transfer takes while the ranks of a host use it, from records of `zbench io` or measured
//! here as ranks use it.

mod measure;

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use zbench_config::profile::drives::DriveRates;
use zbench_engine::config::MemoryTier;
use zbench_engine::observe::outcome::Transfer;
use zbench_engine::planner::clock::DiskTime;
use zbench_engine::planner::curves::{
    Curves, DISK_READ, DISK_READ_ALONE, DISK_WRITE, DISK_WRITE_ALONE, NoCurve, Point,
};
use zbench_reports::units;

/// What a drive gives to each of the ranks of a host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drive {
    /// Seconds of a transfer of so many bytes.
    curves: Curves,
    /// Ranks that use it at the same time.
    ranks: usize,
    /// Where the figures are from.
    source: String,
}

impl Drive {
    /// By rates of one file, which so many ranks share.
    ///
    /// # Errors
    /// They have none of a direction.
    pub fn shared(rates: &DriveRates, ranks: usize) -> Result<Drive, String> {
        let mut curves = Curves::default();
        for rate in &rates.rates {
            for (class, of) in [(DISK_READ, rate.read), (DISK_WRITE, rate.write)] {
                let seconds = ranks as f64 * rate.bytes as f64 / of;
                curves.add(class, Point { sizes: vec![rate.bytes as f64], seconds });
            }
        }
        let way = units::plural(ranks, "rank", "ranks");
        let source =
            format!("records of zbench io of {} ({}), shared by {way}", rates.folder.display(), rates.measured);
        Drive { curves, ranks, source }.checked()
    }

    fn checked(self) -> Result<Drive, String> {
        let has = |class| self.curves.seconds_of_bytes(class, 1).is_ok();
        if has(DISK_READ) && has(DISK_WRITE) { Ok(self) } else { Err(format!("{} have no rates", self.source)) }
    }

    /// The time of a transfer. One alone takes no longer where that was not measured.
    ///
    /// # Errors
    /// Nothing was measured of its direction.
    pub fn time(&self, to: MemoryTier, bytes: u64) -> Result<DiskTime, NoCurve> {
        let (class, class_alone) =
            if to == MemoryTier::Disk { (DISK_WRITE, DISK_WRITE_ALONE) } else { (DISK_READ, DISK_READ_ALONE) };
        let busy = self.curves.seconds_of_bytes(class, bytes)?;
        let alone = self.curves.seconds_of_bytes(class_alone, bytes).unwrap_or(0.0);
        Ok(DiskTime { busy, alone: alone.max(busy) })
    }

    /// Bytes per second of all ranks together, for the mix of reads and writes that a rank's moves are. Nothing where none is of a
    /// disk.
    pub fn ceiling(&self, moves: &[Transfer]) -> Option<f64> {
        let is_of_disk = |of: &&Transfer| [of.from, of.to].contains(&MemoryTier::Disk) && of.moves > 0.0;
        let (mut bytes, mut seconds) = (0.0, 0.0);
        for of in moves.iter().filter(is_of_disk) {
            seconds += of.moves * self.time(of.to, (of.bytes / of.moves) as u64).ok()?.busy;
            bytes += of.bytes;
        }
        (seconds > 0.0).then(|| self.ranks as f64 * bytes / seconds)
    }

    /// Where the figures are from, in words.
    pub fn source(&self) -> &str {
        &self.source
    }
}

/// Those rates of a profile or notebook that are of the file system in which a folder lies.
pub fn of_folder<'r>(rates: &'r [DriveRates], folder: &Path) -> Option<&'r DriveRates> {
    let device = |folder: &Path| std::fs::metadata(folder).ok().map(|found| found.dev());
    let here = device(folder)?;
    rates
        .iter()
        .find(|rates| rates.folder == folder)
        .or_else(|| rates.iter().find(|of| device(&of.folder) == Some(here)))
}

type Known = HashMap<(PathBuf, usize), Result<Arc<Drive>, String>>;

/// What this process has measured, by folder and ranks.
static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// The drive as so many ranks use a folder on it at once, measured by this process once for each of both.
///
/// # Errors
/// Why it could not be measured, in words.
pub fn measured(folder: &Path, ranks: usize) -> Result<Arc<Drive>, String> {
    // Who asks meanwhile waits: two measurements at once would measure each other.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let of = known.entry((folder.into(), ranks)).or_insert_with(|| {
        let failed =
            |reason| format!("memory.offload_path: the drive of {} cannot be measured: {reason}", folder.display());
        measure::measure(folder, ranks).map(Arc::new).map_err(failed)
    });
    of.clone()
}

/// The same where it has been measured already.
///
/// # Errors
/// It was not, with what to do, or could not be.
pub fn known(folder: &Path, ranks: usize) -> Result<Arc<Drive>, String> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let not_measured = || {
        let folder = folder.display();
        format!(
            "the profile has no rates of the drive of {folder}; run `zbench io --dir {folder}` and `zbench calibrate --from-notebook`"
        )
    };
    known.get(&(folder.into(), ranks)).cloned().unwrap_or_else(|| Err(not_measured()))
}

#[cfg(test)]
mod tests;
