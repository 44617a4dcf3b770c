//! Rates of drives in a machine profile, from a notebook's records of `zbench io`: the table `[drives]`.

use super::{ProfileError, merge};
use crate::kind::number;
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use toml::Value;
use zbench_kernels::disk::Options;
use zbench_reports::bench::io;
use zbench_reports::record::Record;
use zbench_reports::units;

/// What one file on a drive was read and written with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriveRates {
    /// The folder in which the file was.
    pub folder: PathBuf,
    /// When the newest of the rates was measured.
    pub measured: String,
    /// By bytes of a transfer, in rising order.
    pub rates: Vec<DriveRate>,
}

/// The rates of transfers of one size, bytes per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriveRate {
    /// Bytes of a transfer.
    pub bytes: u64,
    /// From the drive.
    pub read: f64,
    /// To the drive.
    pub write: f64,
}

impl fmt::Display for DriveRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the drive of {} ({}):", self.folder.display(), self.measured)?;
        for (index, DriveRate { bytes, read, write }) in self.rates.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let [read, write] = [read, write].map(|rate| units::number(rate / 1e9));
            write!(f, "{comma} {read} GB/s read and {write} written by {}", units::memory(*bytes as f64))?;
        }
        Ok(())
    }
}

/// A record of a file, as far as rates follow from it.
struct Row {
    folder: PathBuf,
    measured: String,
    /// How unlike training's transfers these were: through the page cache, by threads, by depth. The least counts.
    unlike: (bool, bool, u64),
    rate: DriveRate,
}

/// The rates of every folder that `zbench io` has measured on this host, newest first: of each size the newest record among those
/// that are most like training's transfers. Folders in memory have none.
pub fn of_records(records: &[Record], host: &str) -> Vec<DriveRates> {
    let is_here = |record: &&Record| record.environment.get("host").and_then(|host| host.as_str()) == Some(host);
    let mut rows: Vec<Row> = records.iter().filter(is_here).filter_map(row).collect();
    // A stable order by likeness: in each class the newest comes first.
    rows.sort_by(|a, b| b.measured.cmp(&a.measured));
    rows.sort_by_key(|row| row.unlike);
    let mut all: Vec<DriveRates> = Vec::new();
    let mut best: Vec<(PathBuf, (bool, bool, u64))> = Vec::new();
    for Row { folder, measured, unlike, rate } in rows {
        let place = all.iter().position(|of| of.folder == folder).unwrap_or_else(|| {
            best.push((folder.clone(), unlike));
            all.push(DriveRates { folder: folder.clone(), ..DriveRates::default() });
            all.len() - 1
        });
        let of = &mut all[place];
        if best[place].1 == unlike && of.rates.iter().all(|known| known.bytes != rate.bytes) {
            of.measured = measured.max(std::mem::take(&mut of.measured));
            of.rates.push(rate);
        }
    }
    all.iter_mut().for_each(|of| of.rates.sort_by_key(|rate| rate.bytes));
    all.sort_by(|a, b| b.measured.cmp(&a.measured));
    all
}

fn row(record: &Record) -> Option<Row> {
    // What another program disturbed is no rate.
    let found = io::measured(record).filter(|_| record.is_measured() && record.validity.is_empty())?;
    if found.folder.is_empty() || found.is_memory {
        return None;
    }
    let rate = |direction: &str| {
        let of = found.passes.iter().filter(|pass| pass.direction == direction);
        // Tensors lie one behind the other in a rank's file.
        let pass = of.min_by_key(|pass| pass.pattern != io::PATTERNS[0])?;
        Some(1e9 * pass.gb_s()).filter(|rate| rate.is_finite() && *rate > 0.0)
    };
    let whole = |key: &str| record.setting(key).and_then(serde_json::Value::as_u64);
    let (bytes, depth) = (whole("io.size").filter(|bytes| *bytes > 0)?, whole("io.depth")?);
    let usual = Options::default().depth as u64;
    Some(Row {
        folder: std::path::absolute(&found.folder).unwrap_or_else(|_| found.folder.clone().into()),
        measured: record.started.clone(),
        unlike: (!found.direct, found.engine != "io_uring", depth.abs_diff(usual)),
        rate: DriveRate { bytes, read: rate("read")?, write: rate("write")? },
    })
}

/// Writes the rates into a profile, in the place of all earlier ones.
///
/// # Errors
/// As [`ProfileError`] says; the file is then as it was.
pub fn save(path: &Path, drives: &[DriveRates]) -> Result<(), ProfileError> {
    let quoted = |text: &str| Value::from(text).to_string();
    let mut text = String::from("[drives]\nmeasured = [\n");
    for DriveRates { folder, measured, rates } in drives {
        let folder = quoted(&folder.to_string_lossy());
        let _ = writeln!(text, "    {{ folder = {folder}, newest = {}, rates = [", quoted(measured));
        for DriveRate { bytes, read, write } in rates {
            let _ = writeln!(text, "        {{ bytes = {bytes}, read = {read:?}, write = {write:?} }},");
        }
        text.push_str("    ] },\n");
    }
    text.push_str("]\n");
    merge(path, "zbench calibrate", "cpu", "drives", &|heading| heading == "[drives]", &text)
}

/// The rates that a profile's `drives` holds.
///
/// # Errors
/// What is not as [`save`] writes it, in words.
pub fn of_value(value: &Value) -> Result<Vec<DriveRates>, String> {
    let rate = |value: &Value| {
        let positive = |key: &str| value.get(key).and_then(number).filter(|rate| rate.is_finite() && *rate > 0.0);
        let bytes =
            value.get("bytes")?.as_integer().and_then(|bytes| u64::try_from(bytes).ok()).filter(|of| *of > 0)?;
        Some(DriveRate { bytes, read: positive("read")?, write: positive("write")? })
    };
    let one = |value: &Value| {
        let text = |key: &str| value.get(key).and_then(Value::as_str);
        let rates: Option<Vec<DriveRate>> = value.get("rates")?.as_array()?.iter().map(rate).collect();
        Some(DriveRates { folder: text("folder")?.into(), measured: text("newest")?.into(), rates: rates? })
    };
    let all = value.get("measured").and_then(Value::as_array).and_then(|all| all.iter().map(one).collect());
    all.ok_or_else(|| {
        "drives is not as `zbench calibrate --from-notebook` writes it; run that again, or remove [drives]".to_string()
    })
}

#[cfg(test)]
mod tests;
