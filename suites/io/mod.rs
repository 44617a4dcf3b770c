//! The suite `io`: what the links that offload uses move. A file, written and read as a rank's offloaded state is, and copies
//! between host and device.

pub mod args;
mod copies;
mod disk;
mod fio;
pub mod flags;
pub(crate) mod resolve;

use crate::bench::{BenchError, BenchResult, BenchSpec, Limits};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};
use zbench_kernels::disk::PIECE_BYTES;
use zbench_reports::bench::io;
use zbench_reports::units;

/// Transfers of tensors between memory and a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DiskCell {
    suite: String,
    io: DiskLink,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct DiskLink {
    /// `disk`.
    link: String,
    /// `sequential`, `random` or `both`.
    pattern: String,
    /// Bytes of a tensor.
    size: u64,
    /// Requests that the system has at a time.
    depth: usize,
    /// `auto`, `io_uring` or `threads`.
    engine: String,
    /// Absent: where the file system can.
    direct: Option<bool>,
    /// Bytes of the file.
    file: u64,
    /// Seconds of a pass.
    seconds: f64,
    /// Whether fio measures beside it.
    fio: bool,
    /// The folder; empty where it is the notebook's.
    dir: PathBuf,
}

/// Copies of tensors between host and device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CopyCell {
    suite: String,
    io: DeviceLink,
    hardware: Hardware,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct DeviceLink {
    /// `device`.
    link: String,
    /// Bytes of a tensor.
    size: u64,
    /// Seconds of a pass.
    seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Hardware {
    /// `cpu` or `cuda`.
    device: String,
}

impl DiskLink {
    /// Tensors that are transferred at a time, so that the system always has `depth` requests.
    fn at_a_time(&self) -> usize {
        let pieces = usize::try_from(self.size.div_ceil(PIECE_BYTES)).unwrap_or(usize::MAX);
        match pieces {
            0 | 1 => self.depth,
            // One more, of which pieces are there while the last of another are under way.
            _ => self.depth.div_ceil(pieces) + 1,
        }
    }

    /// Tensors in the file.
    fn slots(&self) -> usize {
        usize::try_from(self.file / self.size.max(1)).unwrap_or(usize::MAX)
    }

    /// The directions in which each pattern is measured.
    fn passes(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let patterns = io::PATTERNS.into_iter().filter(|pattern| ["both", pattern].contains(&self.pattern.as_str()));
        patterns.flat_map(|pattern| io::DIRECTIONS.map(|direction| (pattern, direction)))
    }

    /// Whether it can be measured anywhere: somebody may have edited a record.
    fn is_possible(&self) -> bool {
        self.size > 0
            && self.size.is_multiple_of(zbench_kernels::PAGE_BYTES)
            && (1..=zbench_kernels::disk::MOST_DEPTH).contains(&self.depth)
            && self.slots() >= self.at_a_time()
            && is_duration(self.seconds)
            && ENGINES.contains(&self.engine.as_str())
            && self.passes().next().is_some()
    }
}

/// What `io.engine` may be.
const ENGINES: [&str; 3] = ["auto", "io_uring", "threads"];

/// Whether a pass can last so long: a record may say anything.
fn is_duration(seconds: f64) -> bool {
    seconds > 0.0 && seconds <= 86_400.0
}

impl BenchSpec for DiskCell {
    fn plain(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn label(&self) -> String {
        let DiskLink { size, depth, engine, direct, pattern, .. } = &self.io;
        io::disk_label(*size, *depth as u64, engine, *direct, pattern)
    }

    fn needs(&self) -> Option<u64> {
        self.io.is_possible().then(|| self.io.size.checked_mul(self.io.at_a_time() as u64)).flatten()
    }

    fn measure(&self, limits: &Limits<'_>, folder: &Path) -> Result<BenchResult, BenchError> {
        disk::measure(&self.io, limits, folder)
    }
}

impl BenchSpec for CopyCell {
    fn plain(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn label(&self) -> String {
        io::copy_label(self.io.size, &self.hardware.device)
    }

    /// Bytes of a tensor on both sides.
    fn needs(&self) -> Option<u64> {
        let DeviceLink { size, seconds, .. } = self.io;
        (size > 0 && size.is_multiple_of(zbench_kernels::PAGE_BYTES) && is_duration(seconds))
            .then(|| size.checked_mul(2))
            .flatten()
    }

    fn asks_for_gpu(&self) -> Option<String> {
        (self.hardware.device == "cuda").then(|| "hardware.device = \"cuda\"".into())
    }

    fn measure(&self, limits: &Limits<'_>, _folder: &Path) -> Result<BenchResult, BenchError> {
        copies::measure(self, limits)
    }
}

/// The specification that a record's cell holds.
pub(crate) fn of_plain(cell: &Value) -> Option<Box<dyn BenchSpec>> {
    match cell.pointer("/io/link")?.as_str()? {
        "disk" => {
            serde_json::from_value::<DiskCell>(cell.clone()).ok().map(|cell| -> Box<dyn BenchSpec> { Box::new(cell) })
        }
        "device" => {
            serde_json::from_value::<CopyCell>(cell.clone()).ok().map(|cell| -> Box<dyn BenchSpec> { Box::new(cell) })
        }
        _ => None,
    }
}

/// What was measured, as metrics and as a section of the record.
fn result(measured: &io::Measured) -> BenchResult {
    let mut result = BenchResult::default();
    for pass in &measured.passes {
        result.metrics.push((pass.metric(), Ok(pass.gb_s())));
        match (pass.fio_gb_s, measured.no_fio.is_empty()) {
            (Some(rate), _) => result.metrics.push((format!("fio_{}", pass.metric()), Ok(rate))),
            (None, false) => result.metrics.push((format!("fio_{}", pass.metric()), Err(measured.no_fio.clone()))),
            (None, true) => {}
        }
    }
    if measured.is_memory {
        let folder = &measured.folder;
        result.notes.push(format!("{folder} is in memory (tmpfs): these are rates of memory and not of a disk."));
    }
    result.notes.extend(measured.why.iter().map(|why| format!("Transfers were made {why}.")));
    if !measured.direct && measured.device.is_empty() {
        result.notes.push("Transfers went through the page cache: reads may have come from memory.".into());
    }
    result.section = serde_json::to_value(measured).ok().map(|section| ("io".into(), section));
    result
}

/// Bytes in words, for errors.
fn bytes(bytes: u64) -> String {
    units::memory(bytes as f64)
}
