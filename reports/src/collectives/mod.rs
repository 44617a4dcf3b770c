//! What the interconnect test measures, and its forms: nccl-tests' table ([`table`]), nccl-tests' JSON ([`v3`]),
//! Markdown and CSV ([`document`]). Pure functions of the measured values; nothing here measures or prints.

mod comparison;
pub mod document;
mod iterations;
mod pairs;
pub mod table;
pub mod v3;

pub use comparison::comparison;
pub use iterations::Iterations;
pub use pairs::{PairKind, Pairs, Suspect};

use crate::record::null_is_nan;
use serde::{Deserialize, Serialize};

/// A run of the test: the ranks that took part, how it was measured, and what came out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Version of zbench.
    pub version: String,
    /// How it was measured.
    pub settings: Settings,
    /// One for each rank.
    pub devices: Vec<Device>,
    /// One for each collective, in the order measured.
    pub sections: Vec<Section>,
    /// Bandwidth between every two ranks, if it was asked for.
    pub pairs: Option<Pairs>,
    /// What went wrong, for a reader.
    pub errors: Vec<String>,
    /// The words of the command line.
    pub args: Vec<String>,
    /// `NAME=value` of the environment that has a say.
    pub env: Vec<String>,
    /// When it began and ended, `YYYY-MM-DD HH:MM:SS` of local time.
    pub start_time: String,
    /// See `start_time`.
    pub end_time: String,
    /// NCCL's own version number where NCCL moves the bytes.
    pub nccl_version: Option<u32>,
}

/// How a run is measured, by nccl-tests' names where it has them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// What moves the bytes.
    pub backend: String,
    /// Ranks of the world.
    pub ranks: usize,
    /// Ranks of a group, where the world was split into groups that measure at the same time.
    pub group_ranks: usize,
    /// Hosts they are on.
    pub hosts: usize,
    /// How ranks came about: threads of one process, processes, which launcher.
    pub formed: String,
    /// The algorithm asked for; `auto` leaves it to the backend.
    pub algorithm: String,
    /// Emulated links, in words.
    pub link: Option<String>,
    /// Threads of a rank's kernels.
    pub threads_per_rank: usize,
    /// `-t`: ranks of a process.
    pub nthreads: usize,
    /// `-g`.
    pub ngpus: usize,
    /// Smallest size in bytes.
    pub minimum_bytes: u64,
    /// Largest size in bytes, after memory had its say.
    pub maximum_bytes: u64,
    /// Factor between sizes; 1 when they grow by `step_bytes`.
    pub step_factor: u64,
    /// Difference of sizes.
    pub step_bytes: u64,
    /// Iterations before the timed ones.
    pub warmup_iters: u32,
    /// Timed iterations.
    pub iterations: u32,
    /// Calls of an iteration.
    pub aggregated_iterations: u32,
    /// Rounds of the data check; 0 for none.
    pub validation: u32,
    /// `-z`.
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
    /// How times of ranks and iterations become one, in words.
    pub timing: String,
    /// What buffers successive iterations use, in words.
    pub buffers: String,
    /// What largest size memory would not hold, if one was asked for.
    pub reduced_from: Option<u64>,
    /// `NCCL_TESTS_MIN_BW`: the average bus bandwidth that is expected.
    pub minimum_bandwidth: Option<f64>,
}

/// A rank, where it runs and on what.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its number in the world.
    pub rank: usize,
    /// The group it measures in.
    pub group: usize,
    /// Its process.
    pub pid: u32,
    /// Its host's name.
    pub hostname: String,
    /// Its number on its host.
    pub device: usize,
    /// Bus id of the device; `cpu` for cores.
    pub device_hex: String,
    /// Name of the device.
    pub device_info: String,
}

/// The rows of one collective and what follows from them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// Name of the collective.
    pub collective: String,
    /// In the order measured.
    pub rows: Vec<Row>,
    /// Latency and bandwidth that explain the times, for each type, reduction and placement with sizes enough.
    pub fits: Vec<Fit>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Bytes by nccl-tests' meaning: the larger of what a rank gives and gets.
    pub size: u64,
    /// Elements by nccl-tests' meaning: of a rank's part where the collective has parts.
    pub count: u64,
    /// The type by nccl-tests' name.
    #[serde(rename = "type")]
    pub dtype: String,
    /// The reduction, or `none`.
    pub redop: String,
    /// The root, or -1.
    pub root: i64,
    /// With separate buffers; absent where the backend has no such call.
    pub out_of_place: Option<Side>,
    /// With one buffer.
    pub in_place: Option<Side>,
    /// The algorithm that carried it.
    pub algorithm: String,
    /// Bytes that one call put on the wire: the rank with most. NaN where a library moves them and does not tell.
    #[serde(deserialize_with = "null_is_nan")]
    pub wire_bytes_rank: f64,
    /// The same, mean of all ordered pairs of ranks.
    #[serde(deserialize_with = "null_is_nan")]
    pub wire_bytes_link: f64,
    /// Timed iterations.
    pub iterations: u32,
    /// When it was measured.
    pub timestamp: String,
}

/// One half of a row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Microseconds of a call.
    pub time_us: f64,
    /// Microseconds of CPU time of a call, where it was asked for.
    pub cpu_us: Option<f64>,
    /// Size over time, 10^9 bytes per second.
    pub algbw: f64,
    /// The same times the collective's factor.
    pub busbw: f64,
    /// Elements that were not as they should; absent when nobody looked.
    pub wrong: Option<u64>,
    /// Where the first of them was.
    pub first_wrong: Option<Wrong>,
    /// Times of single iterations.
    pub iterations: Option<Iterations>,
}

/// An element that is not as it should be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wrong {
    /// The rank that received it.
    pub rank: usize,
    /// That rank's host.
    pub host: String,
    /// Its index in what the rank received.
    pub offset: u64,
    /// What it should be.
    pub expected: f64,
    /// What it is; absent when that is no finite number.
    pub found: Option<f64>,
}

/// `time = latency + size / bandwidth`, piecewise over sizes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// `float sum in place`.
    pub of: String,
    /// Type, by nccl-tests' name.
    pub dtype: String,
    /// Reduction, or `none`.
    pub redop: String,
    /// Whether it is of the in-place side.
    pub in_place: bool,
    /// bus bandwidth over algorithm bandwidth.
    pub factor: f64,
    /// Ranges of sizes, ascending.
    pub segments: Vec<Segment>,
}

/// One line of a fit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Smallest size it was fitted to.
    pub from_bytes: u64,
    /// Largest size it was fitted to.
    pub to_bytes: u64,
    /// Time at size 0.
    pub latency_us: f64,
    /// Algorithm bandwidth at endless size; absent where time does not grow with size.
    pub bandwidth_gb_s: Option<f64>,
    /// Sizes it was fitted to.
    pub points: usize,
    /// Median relative distance between the line and the times.
    pub median_error: f64,
    /// The largest one.
    pub worst_error: f64,
}

impl Segment {
    /// Microseconds that the line says.
    pub fn time_us(&self, size: f64) -> f64 {
        self.latency_us + self.bandwidth_gb_s.map_or(0.0, |rate| size / (rate * 1e3))
    }
}

impl Row {
    /// Both sides that there are, out of place first.
    pub fn sides(&self) -> impl Iterator<Item = &Side> {
        self.out_of_place.iter().chain(&self.in_place)
    }

    /// Elements that were wrong on either side; absent when nobody looked.
    pub fn wrong(&self) -> Option<u64> {
        let counts: Vec<u64> = self.sides().filter_map(|side| side.wrong).collect();
        (!counts.is_empty()).then(|| counts.iter().sum())
    }
}

impl Section {
    /// Sides with wrong data, which nccl-tests calls out-of-bounds values.
    pub fn out_of_bounds(&self) -> usize {
        self.rows.iter().flat_map(Row::sides).filter(|side| side.wrong.is_some_and(|count| count > 0)).count()
    }

    /// Mean bus bandwidth of all sides; absent without rows.
    pub fn average_busbw(&self) -> Option<f64> {
        let all: Vec<f64> = self.rows.iter().flat_map(Row::sides).map(|side| side.busbw).collect();
        crate::stats::mean(&all)
    }
}

impl Run {
    /// As [`Section::out_of_bounds`], over all collectives.
    pub fn out_of_bounds(&self) -> usize {
        self.sections.iter().map(Section::out_of_bounds).sum()
    }

    /// As [`Section::average_busbw`], over all collectives.
    pub fn average_busbw(&self) -> Option<f64> {
        let sides = self.sections.iter().flat_map(|section| &section.rows).flat_map(Row::sides);
        let all: Vec<f64> = sides.map(|side| side.busbw).collect();
        crate::stats::mean(&all)
    }
}
