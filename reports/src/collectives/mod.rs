//! What the interconnect test measures, and its output formats: nccl-tests' table ([`table`]), nccl-tests' JSON ([`v3`]),
//! Markdown and CSV ([`document`]). All are pure functions of the measured values.

mod comparison;
pub mod document;
mod figure;
mod iterations;
mod pairs;
pub mod table;
pub mod v3;

pub use comparison::comparison;
pub use iterations::Iterations;
pub use pairs::{PairKind, Pairs, Suspect};

use crate::record::{Record, null_is_nan};
use serde::{Deserialize, Serialize};

/// A run of the test: its ranks, how it was measured, and the results.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Version of zbench.
    pub version: String,
    /// Its settings.
    pub settings: Settings,
    /// One for each rank.
    pub devices: Vec<Device>,
    /// One for each collective, in the order measured.
    pub sections: Vec<Section>,
    /// Bandwidth between every two ranks, if requested.
    pub pairs: Option<Pairs>,
    /// Errors in words.
    pub errors: Vec<String>,
    /// The words of the command line.
    pub args: Vec<String>,
    /// `NAME=value` of the environment variables that matter.
    pub env: Vec<String>,
    /// When it began, `YYYY-MM-DD HH:MM:SS` of local time.
    pub start_time: String,
    /// When it ended.
    pub end_time: String,
    /// The version number of NCCL where it is the backend.
    pub nccl_version: Option<u32>,
}

/// The settings of a run, by nccl-tests' names where it has them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The backend that moves the bytes.
    pub backend: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Ranks of a group, where the ranks were split into groups that measure at the same time.
    pub group_ranks: usize,
    /// Number of hosts.
    pub hosts: usize,
    /// What the ranks are and what started them: threads of one process, processes, a launcher.
    pub formed: String,
    /// The requested algorithm; `auto` leaves the choice to the backend.
    pub algorithm: String,
    /// Emulated links, in words.
    pub link: Option<String>,
    /// Threads of a rank's kernels.
    pub threads_per_rank: usize,
    /// `-t`: ranks of a process.
    pub nthreads: usize,
    /// `-g`: GPUs of a thread.
    pub ngpus: usize,
    /// Smallest size in bytes.
    pub minimum_bytes: u64,
    /// Largest size in bytes that memory holds.
    pub maximum_bytes: u64,
    /// Factor between sizes; 1 where they grow by `step_bytes`.
    pub step_factor: u64,
    /// Difference between sizes.
    pub step_bytes: u64,
    /// Warm-up iterations.
    pub warmup_iters: u32,
    /// Timed iterations.
    pub iterations: u32,
    /// Calls in one iteration.
    pub aggregated_iterations: u32,
    /// Rounds of the data check; 0 for none.
    pub validation: u32,
    /// `-z`: what ranks wait for after each call.
    pub blocking: u32,
    /// Whether iterations were timed one by one.
    pub per_iteration: bool,
    /// `-K`: iterations left out of the summary.
    pub per_iteration_skip: u32,
    /// Index of the first element in its buffer.
    pub unalign: usize,
    /// Whether the first column of each side is CPU time.
    pub cpu_time: bool,
    /// Whether rows have the time of day.
    pub timestamps: bool,
    /// How the times of ranks and iterations are combined, in words.
    pub timing: String,
    /// Which buffers successive iterations use, in words.
    pub buffers: String,
    /// The requested largest size, if memory does not hold it.
    pub reduced_from: Option<u64>,
    /// `NCCL_TESTS_MIN_BW`: the expected average bus bandwidth.
    pub minimum_bandwidth: Option<f64>,
}

/// A rank and the device on which it runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its global rank.
    pub rank: usize,
    /// Its group.
    pub group: usize,
    /// Its process id.
    pub pid: u32,
    /// Its host's name.
    pub hostname: String,
    /// Its device's number on the host.
    pub device: usize,
    /// Bus id of the device; `cpu` for cores.
    pub device_hex: String,
    /// Name of the device.
    pub device_info: String,
}

/// The rows of one collective and their fits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// Name of the collective.
    pub collective: String,
    /// The rows, in the order measured.
    pub rows: Vec<Row>,
    /// Latency and bandwidth that explain the times, for each type, reduction and placement with enough sizes.
    pub fits: Vec<Fit>,
    /// Remarks.
    pub notes: Vec<String>,
}

/// One row of nccl-tests' table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Bytes as nccl-tests counts them: the larger of what a rank sends and receives.
    pub size: u64,
    /// Elements as nccl-tests counts them: those of a rank's part where the collective has parts.
    pub count: u64,
    /// The data type by nccl-tests' name.
    #[serde(rename = "type")]
    pub dtype: String,
    /// The reduction, or `none`.
    pub redop: String,
    /// The root, or -1.
    pub root: i64,
    /// Results with separate buffers; absent where the backend has no such call.
    pub out_of_place: Option<Side>,
    /// Results with one buffer.
    pub in_place: Option<Side>,
    /// The algorithm that was used.
    pub algorithm: String,
    /// Bytes of one call on the wire, of the rank with most. NaN where a library moves them and does not report them.
    #[serde(deserialize_with = "null_is_nan")]
    pub wire_bytes_rank: f64,
    /// Bytes of one call on the wire, mean over all ordered pairs of ranks.
    #[serde(deserialize_with = "null_is_nan")]
    pub wire_bytes_link: f64,
    /// Timed iterations.
    pub iterations: u32,
    /// When it was measured.
    pub timestamp: String,
}

/// The results of a row, in place or out of place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Microseconds of a call.
    pub time_us: f64,
    /// Microseconds of CPU time of a call, if requested.
    pub cpu_us: Option<f64>,
    /// Size over time, 10^9 bytes per second.
    pub algbw: f64,
    /// `algbw` times the collective's factor.
    pub busbw: f64,
    /// Number of wrong elements; absent where they were not checked.
    pub wrong: Option<u64>,
    /// The first wrong element.
    pub first_wrong: Option<Wrong>,
    /// Times of single iterations.
    pub iterations: Option<Iterations>,
}

/// A wrong element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wrong {
    /// The rank that received it.
    pub rank: usize,
    /// That rank's host.
    pub host: String,
    /// Its index in what the rank received.
    pub offset: u64,
    /// The expected value.
    pub expected: f64,
    /// The value that was found; absent if it is not finite.
    pub found: Option<f64>,
}

/// `time = latency + size / bandwidth`, piecewise over sizes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// What it is a fit of, as `float sum in place`.
    pub of: String,
    /// Type, by nccl-tests' name.
    pub dtype: String,
    /// Reduction, or `none`.
    pub redop: String,
    /// Whether it is a fit of the in-place results.
    pub in_place: bool,
    /// Bus bandwidth over algorithm bandwidth.
    pub factor: f64,
    /// Ranges of sizes, ascending.
    pub segments: Vec<Segment>,
}

/// One range of sizes of a fit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// The smallest fitted size.
    pub from_bytes: u64,
    /// The largest fitted size.
    pub to_bytes: u64,
    /// Time at size 0.
    pub latency_us: f64,
    /// Algorithm bandwidth in the limit of large sizes; absent where time does not grow with size.
    pub bandwidth_gb_s: Option<f64>,
    /// Number of fitted sizes.
    pub points: usize,
    /// Median relative error of the fitted times.
    pub median_error: f64,
    /// Largest relative error of the fitted times.
    pub worst_error: f64,
}

impl Segment {
    /// The fitted time in microseconds.
    pub fn time_us(&self, size: f64) -> f64 {
        self.latency_us + self.bandwidth_gb_s.map_or(0.0, |rate| size / (rate * 1e3))
    }
}

impl Row {
    /// The sides that exist, out of place first.
    pub fn sides(&self) -> impl Iterator<Item = &Side> {
        self.out_of_place.iter().chain(&self.in_place)
    }

    /// Number of wrong elements on both sides; absent where they were not checked.
    pub fn wrong(&self) -> Option<u64> {
        self.sides().filter_map(|side| side.wrong).reduce(|sum, count| sum + count)
    }
}

impl Section {
    /// The section of a record, if it has one that can be read.
    pub(crate) fn of(record: &Record) -> Option<Section> {
        Section::deserialize(record.extra.get("section")?).ok()
    }

    /// Sides with wrong data, which nccl-tests calls out-of-bounds values.
    pub fn out_of_bounds(&self) -> usize {
        self.rows.iter().flat_map(Row::sides).filter(|side| side.wrong.is_some_and(|count| count > 0)).count()
    }

    /// Mean bus bandwidth of all sides; absent without rows.
    pub fn average_busbw(&self) -> Option<f64> {
        average_busbw(&self.rows)
    }
}

fn average_busbw<'r>(rows: impl IntoIterator<Item = &'r Row>) -> Option<f64> {
    crate::stats::mean(&rows.into_iter().flat_map(Row::sides).map(|side| side.busbw).collect::<Vec<_>>())
}

impl Run {
    /// As [`Section::out_of_bounds`], over all collectives.
    pub fn out_of_bounds(&self) -> usize {
        self.sections.iter().map(Section::out_of_bounds).sum()
    }

    /// As [`Section::average_busbw`], over all collectives.
    pub fn average_busbw(&self) -> Option<f64> {
        average_busbw(self.sections.iter().flat_map(|section| &section.rows))
    }
}
