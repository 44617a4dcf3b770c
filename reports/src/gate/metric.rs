//! What a gate may watch: the metrics, how they are read from a trial, and which way is worse.

use crate::stats;

/// How two sides are compared on a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It varies from trial to trial: ratios with an interval, against a band.
    Noisy,
    /// It is the same in every trial: numbers against each other, with a tolerance.
    Exact,
    /// The losses of all steps.
    Losses,
}

/// A metric that rules may name.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name in rules and records.
    pub name: &'static str,
    /// How it is compared.
    pub kind: Kind,
    /// Whether more of it is better.
    pub more_is_better: bool,
}

const fn noisy(name: &'static str, more_is_better: bool) -> Metric {
    Metric { name, kind: Kind::Noisy, more_is_better }
}

const fn exact(name: &'static str) -> Metric {
    Metric { name, kind: Kind::Exact, more_is_better: false }
}

/// All of them.
pub const METRICS: &[Metric] = &[
    noisy("tokens_per_second", true),
    noisy("step_ms_p50", false),
    noisy("step_ms_p90", false),
    noisy("step_ms_p99", false),
    noisy("step_ms_mean", false),
    noisy("tflops_per_rank", true),
    noisy("mfu", true),
    noisy("all_reduce_busbw_gb_s", true),
    noisy("all_gather_busbw_gb_s", true),
    noisy("reduce_scatter_busbw_gb_s", true),
    noisy("broadcast_busbw_gb_s", true),
    noisy("reduce_busbw_gb_s", true),
    noisy("gather_busbw_gb_s", true),
    noisy("scatter_busbw_gb_s", true),
    noisy("all_to_all_busbw_gb_s", true),
    noisy("sendrecv_busbw_gb_s", true),
    noisy("average_busbw_gb_s", true),
    noisy("algbw_gb_s", true),
    noisy("latency_us", false),
    noisy("exposed_communication_ms", false),
    noisy("peak_rss_bytes", false),
    exact("peak_memory_bytes"),
    exact("wire_bytes"),
    Metric { name: "loss", kind: Kind::Losses, more_is_better: false },
];

/// The metric of that name.
pub fn find(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// How the steps of a trial become its speed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Figure {
    /// The median of its timed steps.
    #[default]
    Median,
    /// Their lower quartile: the steps that nobody disturbed.
    LowerQuartile,
    /// Their mean, which is the record's own number.
    Mean,
}

impl Figure {
    /// All of them with the name in rules.
    pub const ALL: [(&'static str, Self); 3] =
        [("median", Self::Median), ("lower_quartile", Self::LowerQuartile), ("mean", Self::Mean)];

    /// The name in rules.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, figure)| *figure == self).map_or("", |(name, _)| name)
    }

    /// The figure of a trial's steps; `None` of no steps.
    pub fn of(self, step_ms: &[f64]) -> Option<f64> {
        match self {
            Self::Median => stats::median(step_ms),
            Self::LowerQuartile => stats::percentile(step_ms, 25.0),
            Self::Mean => stats::mean(step_ms),
        }
    }
}

impl Metric {
    /// The logarithm of what it costs: of the time, or of one over the rate. A difference of 0.01 is about 1 %.
    pub fn log_cost(&self, value: f64) -> f64 {
        if self.more_is_better { -value.ln() } else { value.ln() }
    }
}
