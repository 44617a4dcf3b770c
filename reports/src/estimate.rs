//! The predictions for one cell before it runs: memory, time and traffic.

use serde::{Deserialize, Serialize};

use crate::gather::distinct;
use crate::max_batch::Search;
use crate::ordered_map::OrderedMap;
use crate::phrase::range;
use crate::units;

/// The estimate of one cell, per rank and step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EstimateRow {
    /// The cell's label, by the keys in which the grid's cells differ.
    pub label: String,
    /// Hash of the configuration.
    pub key: String,
    /// `planned`, `measured` (the notebook has it), or a record's status as `skipped`.
    pub status: String,
    /// Why it is skipped; else empty.
    #[serde(default)]
    pub reason: String,
    /// Predicted peak bytes of the largest rank by category, in the order of tables.
    #[serde(default)]
    pub memory: OrderedMap<u64>,
    /// Predicted bytes of the largest rank by category at the moment of its peak; they add up to `total_bytes`.
    #[serde(default)]
    pub at_peak: OrderedMap<u64>,
    /// Predicted peak over all categories; at most the sum of `memory`, as peaks need not coincide.
    #[serde(default)]
    pub total_bytes: Option<u64>,
    /// The memory that a rank may use; `None` where nothing limits it.
    #[serde(default)]
    pub capacity_bytes: Option<u64>,
    /// Whether it fits; `None` where that is unknown.
    #[serde(default)]
    pub fits: Option<bool>,
    /// Whether it fits and the upper end of the peak's band does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    /// The cheapest change that makes it fit, in words; empty if there is none.
    #[serde(default)]
    pub advice: String,
    /// Predicted bytes on the wire per step, of the largest rank.
    #[serde(default)]
    pub wire_bytes: Option<f64>,
    /// Model FLOPs of one step over all ranks, in the default convention.
    #[serde(default)]
    pub model_flops: Option<f64>,
    /// Whether it is a scaled-down stand-in of the target.
    #[serde(default)]
    pub proxy: bool,
    /// Predicted time of a step, milliseconds; `None` where none is predicted.
    #[serde(default)]
    pub step_ms: Option<f64>,
    /// Its parts, which add up to it, milliseconds.
    #[serde(default)]
    pub time: OrderedMap<f64>,
    /// Predicted time from the first forward to the last backward, milliseconds; `None` without stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline_ms: Option<f64>,
    /// Share of that time, over all ranks, that is neither forward nor backward nor recomputation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bubble: Option<f64>,
    /// Expected relative error of `step_ms`, where records give one: 0.1 is a tenth either way.
    #[serde(default)]
    pub step_error: Option<f64>,
    /// Where the time comes from, or why there is none.
    #[serde(default)]
    pub time_source: String,
    /// Tokens per second of all ranks.
    #[serde(default)]
    pub tokens_per_second: Option<f64>,
    /// Tokens per second of one rank.
    #[serde(default)]
    pub tokens_per_second_per_rank: Option<f64>,
    /// Model FLOPs per second and rank, 10^12.
    #[serde(default)]
    pub tflops_per_rank: Option<f64>,
    /// Model FLOPs as a share of the device's dense peak.
    #[serde(default)]
    pub mfu: Option<f64>,
    /// The same, recomputed FLOPs included.
    #[serde(default)]
    pub hfu: Option<f64>,
    /// Collectives of a step by axis and kind, of the largest rank.
    #[serde(default)]
    pub traffic: Vec<EstimateTraffic>,
    /// The pipeline stage whose peak is in `memory`, from 0, and the number of stages.
    #[serde(default)]
    pub peak_stage: Option<[u64; 2]>,
    /// Bytes in host memory, per node.
    #[serde(default)]
    pub host_bytes: Option<u64>,
    /// Bytes on disk, per node.
    #[serde(default)]
    pub disk_bytes: Option<u64>,
    /// Bytes of host memory that a node has, where the profile states it.
    #[serde(default)]
    pub host_capacity_bytes: Option<u64>,
    /// `plan`: what the engine will allocate, to the byte; `priced`: the result of the estimator.
    #[serde(default)]
    pub memory_source: String,
    /// The program whose memory and time are predicted, as `hardware.software` names it.
    #[serde(default)]
    pub software: String,
    /// Peak bytes of a device by what programs report: `allocated`, `reserved`, `device`, and `after_step`, between steps; `load` while weights
    /// are read, and `load_host` of a node's host meanwhile. Of the stage that holds most. Empty on the CPU.
    #[serde(default, skip_serializing_if = "OrderedMap::is_empty")]
    pub memory_figures: OrderedMap<f64>,
    /// The same of the last pipeline stage.
    #[serde(default, skip_serializing_if = "OrderedMap::is_empty")]
    pub memory_last_stage: OrderedMap<f64>,
    /// FLOPs per second and rank, 10^12, by the names of the ways to count them (`published.convention`). Empty on the CPU.
    #[serde(default, skip_serializing_if = "OrderedMap::is_empty")]
    pub tflops_by_convention: OrderedMap<f64>,
    /// Ends of the band around `total_bytes`; `None` where it is known to the byte, or its error is unknown.
    #[serde(default)]
    pub total_bytes_band: Option<[u64; 2]>,
    /// Ends of the band around `step_ms`.
    #[serde(default)]
    pub step_ms_band: Option<[f64; 2]>,
    /// Ends of the band around `tokens_per_second`.
    #[serde(default)]
    pub tokens_per_second_band: Option<[f64; 2]>,
    /// Where the bands come from and what they contain; empty without bands.
    #[serde(default)]
    pub band_source: String,
    /// Names of the model, machine and so on; `None` if the combination is no cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
    /// True if adapters are trained and the other weights are frozen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_adapter: bool,
    /// Cautions about the speed, as sentences without their stops.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cautions: Vec<String>,
    /// Sentence that names what no published result has of the cell; empty if nothing is missing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub not_compared: String,
    /// What the cell leaves open and how it is priced, as sentences without their stops.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<String>,
    /// What a search of the grid found of the cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<Search>,
}

/// Names of a prediction, for the first line of a plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// The model, as the file names it.
    pub model: String,
    /// The machine's profile, or `this machine`.
    pub machine: String,
    /// Tokens of a step, all ranks together.
    pub step_tokens: u64,
    /// Preset of the number types and the keys that override it.
    pub precision: String,
    /// The program, as `hardware.software` names it.
    pub software: String,
}

impl Subject {
    /// Sentence with the names of all subjects, and how many of all cells no published result is like; `None` without subjects.
    pub fn words<'s>(subjects: impl Iterator<Item = &'s Subject> + Clone, unlike: usize, all: usize) -> Option<String> {
        let named = |of: fn(&Subject) -> &String, several: &str| {
            let names: Vec<String> = distinct(subjects.clone().map(of).cloned());
            if names.len() > MOST_NAMES { format!("{} {several}", names.len()) } else { units::list(&names) }
        };
        let tokens = range(subjects.clone().map(|of| of.step_tokens as f64), |tokens| units::count(tokens as u64))?;
        let like = match unlike {
            0 => String::new(),
            unlike if unlike == all => "Like no published result: ".into(),
            1 => format!("1 of {all} cells is like no published result: "),
            unlike => format!("{unlike} of {all} cells are like no published result: "),
        };
        Some(format!(
            "{like}{} on {}, {tokens} tokens a step, {}, {}.",
            named(|of| &of.model, "models"),
            named(|of| &of.machine, "machines"),
            named(|of| &of.precision, "precisions"),
            named(|of| &of.software, "programs")
        ))
    }
}

/// Names of one kind that are written out at most.
const MOST_NAMES: usize = 2;

/// Collectives of one kind on one axis, per step and rank.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EstimateTraffic {
    /// The mesh axis.
    pub axis: String,
    /// `all_reduce`, `all_gather`, …
    pub kind: String,
    /// Number of calls.
    pub calls: f64,
    /// Bytes of the buffers.
    pub payload_bytes: f64,
    /// Bytes that the rank sends and receives.
    pub wire_bytes: f64,
}

impl EstimateRow {
    /// Bytes by which a node's host memory is too small.
    pub(crate) fn host_excess(&self) -> u64 {
        self.host_bytes.zip(self.host_capacity_bytes).map_or(0, |(host, capacity)| host.saturating_sub(capacity))
    }

    /// Bytes of each category at the peak, or the categories' own peaks where that is unknown.
    pub(crate) fn categories(&self) -> &OrderedMap<u64> {
        if self.at_peak.is_empty() { &self.memory } else { &self.at_peak }
    }

    /// Milliseconds of a span, 0 where it has none.
    pub(crate) fn span_ms(&self, name: &str) -> f64 {
        self.time.get(name).copied().unwrap_or(0.0)
    }

    /// `70 to 85 GiB`: the band around the predicted peak.
    pub fn memory_band(&self) -> Option<String> {
        let [low, high] = self.total_bytes_band?.map(|bytes| units::memory(bytes as f64));
        Some(format!("{low} to {high}"))
    }

    /// `3.2 s to 4.9 s`: the band around the predicted step.
    pub fn step_band(&self) -> Option<String> {
        let [low, high] = self.step_ms_band?.map(|ms| units::duration(ms / 1e3));
        Some(format!("{low} to {high}"))
    }

    /// The label, marked if it is a scaled-down stand-in.
    pub(crate) fn marked_label(&self) -> String {
        let mark = if self.proxy && !self.label.contains("[proxy]") { " [proxy]" } else { "" };
        format!("{}{mark}", self.label)
    }
}
