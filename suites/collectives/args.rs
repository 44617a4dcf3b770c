//! The flags: nccl-tests' under their names, and ours beside them.

use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use zbench_config::units;

/// `zbench allreduce`.
#[derive(Args, Clone, Debug)]
pub struct AllreduceArgs {
    /// What to test: all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter, all_to_all, sendrecv,
    /// pairs (every pair of ranks), or all (everything but pairs); several with commas [default: all_reduce]
    #[arg(long, value_name = "NAME")]
    pub collective: Option<String>,
    /// What moves the bytes: local (ranks are threads), shm, tcp, mpi, device (ranks are threads that share a GPU), nccl (a
    /// GPU each) [default: local; under a launcher shm on one host, else tcp]
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
    /// Ranks; default what a launcher or -t and -g say, else 2
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Ranks are processes of their own, over shm unless --backend tcp or nccl
    #[arg(long)]
    pub processes: bool,
    /// Buffers of successive iterations: other memory each time, or always the same
    #[arg(long, value_enum, default_value = "rotate")]
    pub buffers: BufferUse,
    /// Start every iteration with a barrier; its time is that of the slowest rank, and the time shown is the median
    #[arg(long)]
    pub per_iteration: bool,
    /// Write the fitted latency and bandwidth into a machine profile (default machines/HOST.toml beside configs)
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = path)]
    pub save: Option<PathBuf>,
    /// Look for a slow rank or link: every pair, then halves
    #[arg(long)]
    pub bisect: bool,
    /// Compare with published figures of a machine, by its name; `list` shows the names
    #[arg(long, value_name = "MACHINE")]
    pub expect: Option<String>,
    /// auto (the backend chooses by size), or composed over any backend: hierarchical, q8, q4 (all_reduce, all_gather,
    /// reduce_scatter in two levels, or quantised as in ZeRO++)
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub algorithm: String,
    /// Threads of a rank's kernels; default the cores shared out. Not with device and nccl
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Ranks of a node, for --algorithm and emulated links
    #[arg(long, value_name = "N")]
    pub ranks_per_node: Option<usize>,
    /// Let the system move ranks between cores; else each has its own where there are enough
    #[arg(long)]
    pub no_bind: bool,
    /// Emulated bandwidth between nodes, as 12.5GB/s
    #[arg(long, value_name = "RATE", value_parser = bandwidth)]
    pub link_bandwidth: Option<f64>,
    /// Emulated latency between nodes, as 20us
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub link_latency: Option<f64>,
    /// Another seed, other data
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// nccl-tests' flags.
    #[command(flatten)]
    pub nccl: NcclArgs,
}

/// The flags of nccl-tests.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Flags of nccl-tests")]
pub struct NcclArgs {
    /// Smallest size; K, M and G are powers of 1024
    #[arg(short = 'b', long = "minbytes", alias = "min-bytes", value_parser = size, default_value = "8", value_name = "SIZE")]
    pub min_bytes: u64,
    /// Largest size [default: 128M, or -b if larger]
    #[arg(short = 'e', long = "maxbytes", alias = "max-bytes", value_parser = size, value_name = "SIZE")]
    pub max_bytes: Option<u64>,
    /// Difference of sizes, instead of -f
    #[arg(short = 'i', long = "stepbytes", alias = "step-bytes", value_parser = size, value_name = "SIZE")]
    pub step_bytes: Option<u64>,
    /// Factor between sizes [default: 2, unless -i is given]
    #[arg(short = 'f', long = "stepfactor", alias = "step-factor", value_name = "N")]
    pub step_factor: Option<u64>,
    /// Timed iterations
    #[arg(short = 'n', long = "iters", default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub iters: u32,
    /// Iterations before the timed ones
    #[arg(short = 'w', long = "warmup_iters", alias = "warmup-iters", default_value_t = 1, value_name = "N")]
    pub warmup_iters: u32,
    /// Calls of an iteration
    #[arg(short = 'm', long = "agg_iters", alias = "agg-iters", default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub agg_iters: u32,
    /// Rounds over all sizes; 0 goes on until Ctrl-C
    #[arg(short = 'N', long = "run_cycles", alias = "run-cycles", default_value_t = 1, value_name = "N")]
    pub run_cycles: u32,
    /// Time of the ranks: 0 rank 0's, 1 mean, 2 least, 3 largest
    #[arg(short = 'a', long = "average", default_value_t = 1, value_name = "0..3", value_parser = clap::value_parser!(u32).range(0..=3))]
    pub average: u32,
    /// Reduction: sum, prod, max, min, avg, or all
    #[arg(short = 'o', long = "op", default_value = "sum", value_name = "OP")]
    pub op: String,
    /// Type: int8, int32, half, float, double, bfloat16, or all
    #[arg(short = 'd', long = "datatype", default_value = "float", value_name = "TYPE")]
    pub datatype: String,
    /// Root; -1 for every rank in turn
    #[arg(short = 'r', long = "root", default_value_t = 0, value_name = "RANK", allow_negative_numbers = true)]
    pub root: i64,
    /// Rounds of the data check; 0 for none
    #[arg(short = 'c', long = "check", default_value_t = 1, value_name = "N")]
    pub check: u32,
    /// Time every iteration by itself, as --per-iteration
    #[arg(short = 'I', long = "per_iter_timing", default_value_t = 0, value_name = "0/1", value_parser = clap::value_parser!(u32).range(0..=1))]
    pub per_iter_timing: u32,
    /// Leading iterations that the summary of -I leaves out
    #[arg(short = 'K', long = "per_iter_skip", alias = "per-iter-skip", default_value_t = 0, value_name = "N")]
    pub per_iter_skip: u32,
    /// 1 wait and barrier after each call, 2 wait alone (of interest on a GPU: elsewhere calls return when done), 3 both after
    /// each iteration, the barrier not timed
    #[arg(short = 'z', long = "blocking", default_value_t = 0, value_name = "0..3", value_parser = clap::value_parser!(u32).range(0..=3))]
    pub blocking: u32,
    /// First column of each side is CPU time of the rank's thread
    #[arg(short = 'C', long = "report_cputime", alias = "report-cputime", default_value_t = 0, value_name = "0/1")]
    pub cpu_time: u32,
    /// Time of day of each row
    #[arg(
        short = 'S',
        long = "report_timestamps",
        alias = "report-timestamps",
        default_value_t = 0,
        value_name = "0/1"
    )]
    pub timestamps: u32,
    /// Write nccl-tests' JSON into this file too; an existing one is kept, and a number added to the name
    #[arg(short = 'J', long = "output_file", alias = "output-file", value_name = "FILE")]
    pub output_file: Option<PathBuf>,
    /// Longest wait of a rank for others, in seconds or as 90s
    #[arg(short = 'T', long = "timeout", value_parser = wait, default_value = "300s", value_name = "TIME")]
    pub timeout: Duration,
    /// Report memory
    #[arg(short = 'M', long = "memory", default_value_t = 0, value_name = "0/1")]
    pub memory: u32,
    /// Index of the first element in its buffer
    #[arg(short = 'u', long = "unalign", default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub unalign: u32,
    /// Ranks are -t times -g, where no launcher and no --ranks say
    #[arg(short = 't', long = "nthreads", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub nthreads: Option<u32>,
    /// As -t
    #[arg(short = 'g', long = "ngpus", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ngpus: Option<u32>,
    /// No meaning here: ranks always start together
    #[arg(short = 'p', long = "parallel_init", value_name = "0/1")]
    pub parallel_init: Option<String>,
    /// No meaning here: streams
    #[arg(short = 'y', long = "stream_null", value_name = "0/1")]
    pub stream_null: Option<String>,
    /// No meaning here: CUDA graphs
    #[arg(short = 'G', long = "cudagraph", value_name = "N")]
    pub cudagraph: Option<String>,
    /// No meaning here: registration of buffers
    #[arg(short = 'R', long = "local_register", value_name = "0..2")]
    pub local_register: Option<String>,
    /// No meaning here: blocks of a GPU
    #[arg(short = 'x', long = "cta_policy", value_name = "0..2")]
    pub cta_policy: Option<String>,
    /// No meaning here: kernels of the device API
    #[arg(short = 'D', long = "device_implementation", value_name = "N")]
    pub device_implementation: Option<String>,
    /// No meaning here: blocks of a GPU
    #[arg(short = 'V', long = "device_cta_count", value_name = "N")]
    pub device_cta_count: Option<String>,
}

/// What memory successive iterations use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BufferUse {
    /// Other memory each time.
    Rotate,
    /// The same.
    Hot,
}

impl NcclArgs {
    /// Flags that were given though they have no meaning here: flag, what it is about.
    pub fn ignored(&self) -> Vec<(&'static str, &'static str)> {
        let all = [
            (&self.parallel_init, "-p", "parallel init"),
            (&self.stream_null, "-y", "null stream"),
            (&self.cudagraph, "-G", "CUDA graphs"),
            (&self.local_register, "-R", "registration of buffers"),
            (&self.cta_policy, "-x", "CTA policy"),
            (&self.device_implementation, "-D", "device implementation"),
            (&self.device_cta_count, "-V", "device CTA count"),
        ];
        let given = |value: &Option<String>| value.as_deref().is_some_and(|value| value != "0");
        all.into_iter().filter(|(value, ..)| given(value)).map(|(_, flag, what)| (flag, what)).collect()
    }
}

/// A path; none is empty, which clap's own refuses.
fn path(text: &str) -> Result<PathBuf, std::convert::Infallible> {
    Ok(text.into())
}

/// A size as nccl-tests reads it: a number, perhaps with a fraction, and K, M or G for powers of 1024.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size; write a number of bytes, or one with K, M or G, as 64M");
    let text = text.trim();
    let (digits, factor) = match text.chars().last().map(|last| last.to_ascii_uppercase()) {
        Some('K') => (&text[..text.len() - 1], 1u64 << 10),
        Some('M') => (&text[..text.len() - 1], 1 << 20),
        Some('G') => (&text[..text.len() - 1], 1 << 30),
        // The units of configurations are understood as well.
        Some('B') => return units::bytes(text).ok_or_else(wrong),
        _ => (text, 1),
    };
    let number: f64 = digits.trim().parse().map_err(|_| wrong())?;
    let bytes = number * factor as f64;
    // 2^50: beyond any memory, and no sum of sizes overflows.
    if (0.0..=(1u64 << 50) as f64).contains(&bytes) { Ok(bytes as u64) } else { Err(wrong()) }
}

fn bandwidth(text: &str) -> Result<f64, String> {
    let rate = units::rate(text).filter(|rate| *rate > 0.0);
    rate.ok_or_else(|| format!("`{text}` is no bandwidth; write it as 12.5GB/s or 100Gbit/s"))
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = units::seconds(text).filter(|seconds| *seconds <= 10.0);
    seconds.ok_or_else(|| format!("`{text}` is no latency of at most 10s; write it as 20us"))
}

fn wait(text: &str) -> Result<Duration, String> {
    units::duration(text).map_err(|advice| format!("`{text}` is no time to wait; {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two() {
        let read = ["8", "1K", "1.5m", "2G", " 64M ", "0", "1KiB", "1kB"].map(|text| size(text).unwrap());
        assert_eq!(read, [8, 1024, 1572864, 2 << 30, 64 << 20, 0, 1024, 1000]);
        for wrong in ["", "K", "-1", "1T", "nan", "1e30G", "8 bits"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
