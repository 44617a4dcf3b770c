//! The flags of `zbench calibrate`.

use crate::config::units;
use clap::Args;
use std::path::PathBuf;

/// `zbench calibrate`.
#[derive(Args, Clone, Debug)]
pub struct CalibrateArgs {
    /// Numbers of threads, several with commas [default: 1, 2, 4, … and all cores]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Vec<u32>,
    /// Rounds over everything; a spread needs three
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(3..=100))]
    pub rounds: u32,
    /// Time of each matrix rate and each pass over the disk
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2, value_parser = seconds)]
    pub seconds: f64,
    /// Bytes of each of three arrays, as 256MiB [default: four times the last cache, 64MiB at least]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub memory: Option<u64>,
    /// Folder on the disk to measure [default: the notebook's]
    #[arg(long, value_name = "DIR")]
    pub disk: Option<PathBuf>,
    /// Size of the file that is written and read there, and goes away again
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = bytes, conflicts_with = "no_disk")]
    pub disk_size: u64,
    /// Leave the disk out
    #[arg(long, conflicts_with = "disk")]
    pub no_disk: bool,
    /// Rounds over the small training cells in which operations are timed
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub operation_rounds: u32,
    /// Leave the times of operations out
    #[arg(long)]
    pub no_operations: bool,
    /// Measure nothing: correct the profile's predicted times by what the notebook's records of this machine took
    #[arg(long)]
    pub from_notebook: bool,
    /// The machine profile [default: machines/HOST.toml beside configs]
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Measure and judge, and write no profile
    #[arg(long, conflicts_with = "save")]
    pub no_save: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let wrong = || format!("`{text}` is no time above 0 and up to 60 seconds; write it as 0.2");
    let seconds = text.parse().ok().or_else(|| units::seconds(text)).ok_or_else(wrong)?;
    if seconds > 0.0 && seconds <= 60.0 { Ok(seconds) } else { Err(wrong()) }
}

fn bytes(text: &str) -> Result<u64, String> {
    let bytes = units::bytes(text).filter(|bytes| (1 << 12..=1 << 50).contains(bytes));
    bytes.ok_or_else(|| format!("`{text}` is no size from 4KiB to 1024TiB; write it as 256MiB"))
}
