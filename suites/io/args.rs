//! The flags of `zbench io`.

use crate::bench::args::RunFlags;
use clap::Args;
use std::path::PathBuf;

/// `zbench io`.
#[derive(Args, Clone, Debug)]
pub struct IoArgs {
    /// A configuration with suite = "io": measures what the notebook does not hold yet, as `zbench grid FILE` does
    pub file: Option<PathBuf>,
    /// Folder on the disk that is measured; nothing is left there [default: the notebook's]
    #[arg(long, value_name = "DIR", conflicts_with = "file")]
    pub dir: Option<String>,
    /// all, disk, device: a file, or copies from host memory to a device and back [default: all]
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    pub link: Option<String>,
    /// Bytes of a tensor, several with commas, as 64KiB,1MiB,16MiB [default: 1MiB]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', conflicts_with = "file")]
    pub size: Vec<String>,
    /// Requests that the system has at a time, of up to 1 MiB each, several with commas [default: 1,8]
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "file")]
    pub depth: Vec<String>,
    /// auto, io_uring, threads; several with commas [default: io_uring,threads]
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "file")]
    pub engine: Vec<String>,
    /// Past the page cache (O_DIRECT), through it, or both [default: true,false]
    #[arg(long, value_name = "BOOL", value_delimiter = ',', conflicts_with = "file")]
    pub direct: Vec<String>,
    /// sequential, random, both [default: both]
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    pub pattern: Option<String>,
    /// Bytes of the file [default: 256MiB]
    #[arg(long, value_name = "SIZE", conflicts_with = "file")]
    pub file_size: Option<String>,
    /// Time of each pass [default: 0.5]
    #[arg(long, value_name = "SECONDS", conflicts_with = "file")]
    pub seconds: Option<String>,
    /// cpu, cuda: where copies from host memory go [default: cpu]
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    pub device: Option<String>,
    /// Do not measure the same with fio
    #[arg(long, conflicts_with = "file")]
    pub no_fio: bool,
    /// What every suite has.
    #[command(flatten)]
    pub run: RunFlags,
}
