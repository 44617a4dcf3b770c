//! The flags of `zbench calibrate`.

use clap::Args;
use std::path::PathBuf;
use zbench_config::units;

/// `zbench calibrate`.
#[derive(Args, Clone, Debug)]
pub struct CalibrateArgs {
    /// What to measure: the processor, its memory and a disk, or a GPU
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = ["cpu", "cuda"])]
    pub device: String,
    /// With --device cuda: which GPU, by the driver's number [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1023))]
    pub gpu: Option<u32>,
    /// With --device cuda: rows and columns of its products [default: 8192; on the processor 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=65536))]
    pub side: Option<u32>,
    /// Numbers of threads, several with commas [default: 1, 2, 4, … and all cores]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Vec<u32>,
    /// Rounds over everything; a spread needs three
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(3..=100))]
    pub rounds: u32,
    /// Time of each matrix rate and each pass over the disk [default: 0.2]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Bytes of each of three arrays, as 256MiB [default: four times the last cache, 64MiB at least]; with --device cuda of each
    /// of two [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub memory: Option<u64>,
    /// Folder on the disk to measure [default: the notebook's]
    #[arg(long, value_name = "DIR")]
    pub disk: Option<PathBuf>,
    /// Size of the file that is written and read there, and goes away again [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = bytes, conflicts_with = "no_disk")]
    pub disk_size: Option<u64>,
    /// Leave the disk out
    #[arg(long, conflicts_with = "disk")]
    pub no_disk: bool,
    /// Rounds over the small training cells in which operations are timed [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub operation_rounds: Option<u32>,
    /// Leave the times of operations out
    #[arg(long)]
    pub no_operations: bool,
    /// Measure nothing: correct the profile's predicted times by what the notebook's records of this machine took, and take in the
    /// rates of drives that its records of `zbench io` hold
    #[arg(long)]
    pub from_notebook: bool,
    /// The machine profile [default: machines/HOST.toml beside configs; of a GPU machines/HOST-GPU.toml]
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Measure and judge, and write no profile
    #[arg(long, conflicts_with = "save")]
    pub no_save: bool,
}

/// `--seconds` where it is not given.
pub const SECONDS: f64 = 0.2;
/// `--disk-size` where it is not given.
pub const DISK_SIZE: u64 = 256 << 20;
/// `--operation-rounds` where it is not given.
pub const OPERATION_ROUNDS: u32 = 2;

impl CalibrateArgs {
    /// A flag that was given and says nothing of the device that is measured.
    pub fn of_another_device(&self) -> Option<&'static str> {
        let of_cpu = [
            ("--threads", !self.threads.is_empty()),
            ("--seconds", self.seconds.is_some()),
            ("--disk", self.disk.is_some()),
            ("--disk-size", self.disk_size.is_some()),
            ("--no-disk", self.no_disk),
            ("--operation-rounds", self.operation_rounds.is_some()),
            ("--no-operations", self.no_operations),
            ("--from-notebook", self.from_notebook),
        ];
        let of_cuda = [("--gpu", self.gpu.is_some()), ("--side", self.side.is_some())];
        let others = if self.device == "cuda" { &of_cpu[..] } else { &of_cuda };
        others.iter().find(|(_, is_given)| *is_given).map(|(flag, _)| *flag)
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = units::seconds(text).filter(|seconds| *seconds > 0.0 && *seconds <= 60.0);
    seconds.ok_or_else(|| format!("`{text}` is no time above 0 and up to 60 seconds; write it as 0.2"))
}

fn bytes(text: &str) -> Result<u64, String> {
    let bytes = units::bytes(text).filter(|bytes| (1 << 12..=1 << 50).contains(bytes));
    bytes.ok_or_else(|| format!("`{text}` is no size from 4KiB to 1024TiB; write it as 256MiB"))
}
