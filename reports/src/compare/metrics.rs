//! Calculates the metrics of a pair: values, ratio, interval and verdict.

use serde::Serialize;
use serde_json::Value;

use super::metric::{Better, Metric, Verdict};
use super::trials::{Trial, rate};
use crate::evidence;
use crate::record::{Record, Verdict as ParityVerdict};
use crate::stats;
use crate::turns_analysis::TurnsAnalysis;

/// The losses of A compared with those of B.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Losses {
    /// The worst verdict of A's trials about parity with their reference.
    pub a: ParityVerdict,
    /// The worst of B's.
    pub b: ParityVerdict,
    /// Steps for which both sides state a loss.
    pub steps: usize,
    /// Whether all losses are bitwise equal.
    pub identical: bool,
    /// The largest difference of a step's loss, relative to A's.
    pub max_relative_difference: Option<f64>,
    /// Why they were not compared.
    pub reason: Option<String>,
}

/// Where a metric's values come from.
enum Source {
    /// Steps of each trial, which are resampled: (work, ms) of each step, and the statistic of them.
    Steps(fn(&Trial) -> Vec<(f64, f64)>, fn(&[(f64, f64)]) -> f64),
    /// One measured number of each trial.
    PerTrial,
    /// One counted number of each trial.
    Counted(fn(&Record) -> Option<f64>),
}

struct Definition {
    name: &'static str,
    unit: &'static str,
    better: Better,
    source: Source,
}

impl Definition {
    fn blank(&self) -> Metric {
        Metric::new(self.name, self.unit, self.better)
    }
}

const fn timed(name: &'static str, of_steps: fn(&[(f64, f64)]) -> f64) -> Definition {
    Definition { name, unit: "ms", better: Better::Lower, source: Source::Steps(|trial| trial.steps.clone(), of_steps) }
}

const SPEED: Definition = Definition {
    name: "tokens_per_second",
    unit: "tokens/s",
    better: Better::Higher,
    source: Source::Steps(|trial| trial.steps.clone(), rate),
};

const DEFINITIONS: [Definition; 8] = [
    SPEED,
    timed("step_ms_p50", |steps| nearest_rank(steps, 0.5)),
    timed("step_ms_p90", |steps| nearest_rank(steps, 0.9)),
    timed("step_ms_p99", |steps| nearest_rank(steps, 0.99)),
    Definition { name: "mfu", unit: "fraction", better: Better::Higher, source: Source::Steps(work_of_steps, mfu) },
    Definition { name: "exposed_communication_ms", unit: "ms", better: Better::Lower, source: Source::PerTrial },
    Definition {
        name: "peak_memory_bytes",
        unit: "bytes",
        better: Better::Lower,
        source: Source::Counted(peak_memory),
    },
    Definition { name: "wire_bytes", unit: "bytes", better: Better::Lower, source: Source::Counted(wire_bytes) },
];

/// The nearest-rank percentile, which records use: the smallest value that at least this share of the steps does not exceed.
fn nearest_rank(steps: &[(f64, f64)], share: f64) -> f64 {
    let mut ms: Vec<f64> = steps.iter().map(|step| step.1).collect();
    let place = (share * ms.len() as f64).ceil() as usize;
    let Some(last) = ms.len().checked_sub(1) else { return f64::NAN };
    *ms.select_nth_unstable_by(place.saturating_sub(1).min(last), f64::total_cmp).1
}

/// (MFU x mean ms, ms) of each step. A trial states the MFU of the mean of all its timed steps; the MFU of some steps follows from
/// their mean.
fn work_of_steps(trial: &Trial) -> Vec<(f64, f64)> {
    let (Some(mfu), Some(mean)) = (trial.record.metrics.number("mfu"), stats::mean(&trial.all_ms)) else {
        return Vec::new();
    };
    trial.steps.iter().map(|step| (mfu * mean, step.1)).collect()
}

fn mfu(steps: &[(f64, f64)]) -> f64 {
    let (work, ms) = steps.iter().fold((0.0, 0.0), |sum, step| (sum.0 + step.0, sum.1 + step.1));
    work / ms
}

fn peak_memory(record: &Record) -> Option<f64> {
    let total = record.memory.total.as_ref().and_then(|total| total.peak_bytes);
    total.map(|bytes| bytes as f64).or(record.metrics.number("peak_memory_bytes"))
}

fn wire_bytes(record: &Record) -> Option<f64> {
    let is_stated = !record.communication.is_empty() || record.ranks.len() == 1;
    Some(record.wire_bytes()).filter(|bytes| is_stated && bytes.is_finite())
}

/// All metrics that either side states, in the order of the table.
pub fn all(a: &[Trial], b: &[Trial], losses: &Losses) -> Vec<Metric> {
    let mut metrics: Vec<Metric> = DEFINITIONS.iter().map(|definition| metric(definition, a, b, losses)).collect();
    metrics.retain(|metric| metric.a.is_some() || metric.b.is_some());
    metrics.extend(of_the_suite(a, b));
    metrics
}

/// Replaces the speed from trials with the speed from turns in common rounds.
pub fn by_turns(metrics: &mut [Metric], turned: &TurnsAnalysis, a: &str, b: &str) {
    let metric = metrics.iter_mut().find(|metric| metric.name == SPEED.name);
    let pair = turned.pair(a, b).filter(|pair| pair.rounds > 0);
    let (Some(metric), Some(pair)) = (metric.filter(|metric| metric.reason.is_none()), pair) else { return };
    (metric.a, metric.b) = (turned.speed(a).or(metric.a), turned.speed(b).or(metric.b));
    metric.ratio = pair.ratio;
    (metric.low, metric.high, metric.interval) = (pair.low, pair.high, Some("turns"));
    metric.verdict = match pair.verdict {
        evidence::Verdict::Faster => Verdict::BBetter,
        evidence::Verdict::Slower => Verdict::BWorse,
        evidence::Verdict::Equal => Verdict::Equal,
        evidence::Verdict::Undecided => Verdict::Undecided,
    };
    metric.words = metric.by_turns_in_words(&pair, turned.equal());
}

/// What records of other suites than train are compared by: rates of kernels, bandwidths and latencies of collectives, times of
/// a checkpoint, rates of links.
fn of_the_suite(a: &[Trial], b: &[Trial]) -> Vec<Metric> {
    let Some(first) = a.first().map(|trial| trial.record) else { return Vec::new() };
    let suite = first.setting("suite").and_then(Value::as_str).unwrap_or_default();
    let kind = |name: &str| match (suite, name) {
        ("gemm" | "attention", name) if name.ends_with("gflops") && name != "ceiling_gflops" => {
            Some(("GFLOP/s", Better::Higher))
        }
        ("collectives", name) if name.ends_with("_gb_s") => Some(("GB/s", Better::Higher)),
        ("collectives", name) if name.ends_with("_us") => Some(("us", Better::Lower)),
        ("io", name) if name.ends_with("_gb_s") && !name.starts_with("fio_") => Some(("GB/s", Better::Higher)),
        ("checkpoint", "save_ms" | "async_stall_ms" | "load_ms" | "reshard_ms") => Some(("ms", Better::Lower)),
        _ => None,
    };
    let named = first.metrics.names().filter_map(|name| Some((name, kind(name)?)));
    named.map(|(name, (unit, better))| per_trial(Metric::new(name, unit, better), a, b)).collect()
}

/// The main metric of a pair: tokens per second, or that of its suite. In records of `attention` the flash kernel stands before the
/// naive one, in those of `collectives` the largest size before the average of all.
pub fn main_metric(metrics: &[Metric]) -> Option<&Metric> {
    let is_of_suite = |metric: &&Metric| {
        metric.name == "save_ms"
            || metric.name.ends_with("gflops")
            || metric.name.ends_with("_busbw_gb_s")
            || ["write_gb_s", "to_device_gb_s"].iter().any(|name| metric.name.ends_with(name))
    };
    metrics.iter().find(|metric| metric.name == SPEED.name).or_else(|| metrics.iter().find(is_of_suite))
}

/// Tokens per second with all steps kept.
pub fn speed_of_all_steps(a: &[&Record], b: &[&Record], losses: &Losses) -> Metric {
    let all = |records: &[&'_ Record]| -> Vec<Vec<(f64, f64)>> {
        records.iter().map(|record| Trial::new(record, true).steps).collect()
    };
    let metric = from_steps(SPEED.blank(), &all(a), &all(b), rate);
    guarded(metric, losses)
}

fn metric(definition: &Definition, a: &[Trial], b: &[Trial], losses: &Losses) -> Metric {
    let metric = definition.blank();
    let metric = match &definition.source {
        Source::Steps(of_trial, statistic) => {
            let steps = |trials: &[Trial]| -> Vec<Vec<(f64, f64)>> { trials.iter().map(of_trial).collect() };
            let (steps_a, steps_b) = (steps(a), steps(b));
            // Records without steps state the number itself.
            if steps_a.iter().chain(&steps_b).all(|steps| !steps.is_empty()) {
                from_steps(metric, &steps_a, &steps_b, statistic)
            } else {
                per_trial(metric, a, b)
            }
        }
        Source::PerTrial => per_trial(metric, a, b),
        Source::Counted(value) => {
            let values =
                |trials: &[Trial]| -> Vec<f64> { trials.iter().filter_map(|trial| value(trial.record)).collect() };
            return counted(metric, &values(a), &values(b));
        }
    };
    guarded(metric, losses)
}

/// A metric from the numbers that records state.
fn per_trial(metric: Metric, a: &[Trial], b: &[Trial]) -> Metric {
    let stated = |trials: &[Trial]| -> Vec<f64> {
        trials.iter().filter_map(|trial| trial.record.metrics.number(&metric.name)).collect()
    };
    let (a, b) = (stated(a), stated(b));
    timed_metric(metric, &a, &b)
}

fn from_steps(
    metric: Metric,
    a: &[Vec<(f64, f64)>],
    b: &[Vec<(f64, f64)>],
    statistic: impl Fn(&[(f64, f64)]) -> f64,
) -> Metric {
    let holds = if a.iter().chain(b).any(|steps| steps.len() > 1) { "trials_and_steps" } else { "trials" };
    let values = |side: &[Vec<(f64, f64)>]| -> Vec<f64> { side.iter().map(|steps| statistic(steps)).collect() };
    let found = stats::ratio(a, b, &statistic);
    judged(metric, &values(a), &values(b), found, holds)
}

fn timed_metric(metric: Metric, a: &[f64], b: &[f64]) -> Metric {
    let one_each = |values: &[f64]| -> Vec<Vec<f64>> { values.iter().map(|value| vec![*value]).collect() };
    let found = stats::ratio(&one_each(a), &one_each(b), |value| value[0]);
    judged(metric, a, b, found, "trials")
}

/// A metric with a verdict from its interval.
fn judged(mut metric: Metric, a: &[f64], b: &[f64], found: Option<stats::Ratio>, holds: &'static str) -> Metric {
    (metric.a, metric.b) = (finite_median(a), finite_median(b));
    // A trial that states 0 has no logarithm. Without it, the ratio would be of other trials than those that are shown.
    let complete = found.filter(|found| found.trials == (a.len(), b.len()));
    let Some(found) = complete else {
        let zero = |values: &[f64]| values.contains(&0.0);
        metric.reason = Some(match (metric.a, metric.b) {
            (None, None) => "neither side states it".into(),
            (None, _) => "A does not state it".into(),
            (_, None) => "B does not state it".into(),
            _ if zero(a) || zero(b) => "a trial states 0, and 0 has no ratio".into(),
            _ => "a trial states no positive number".into(),
        });
        metric.words = metric.in_words((a.len(), b.len()));
        return metric;
    };
    (metric.a, metric.b) = (Some(found.a), Some(found.b));
    if !found.has_too_few_trials() {
        metric.ratio = Some(found.ratio.mid);
        (metric.low, metric.high, metric.interval) = (Some(found.ratio.low), Some(found.ratio.high), Some(holds));
    }
    let above = found.ratio.low > 1.0;
    metric.verdict = if found.has_too_few_trials() {
        Verdict::TooFewTrials
    } else if !above && found.ratio.high >= 1.0 {
        Verdict::NoDifference
    } else if above == (metric.better == Better::Higher) {
        Verdict::BBetter
    } else {
        Verdict::BWorse
    };
    metric.words = metric.in_words(found.trials);
    metric
}

/// A counted number is exact if all trials of each side agree; otherwise it is treated as a measured one.
fn counted(mut metric: Metric, a: &[f64], b: &[f64]) -> Metric {
    let agree = |values: &[f64]| values.windows(2).all(|pair| pair[0] == pair[1]);
    let (Some(&of_a), Some(&of_b), true) = (a.first(), b.first(), agree(a) && agree(b)) else {
        return timed_metric(metric, a, b);
    };
    (metric.a, metric.b) = (finite_median(a), finite_median(b));
    metric.interval = Some("counted");
    metric.ratio = Some(of_b / of_a).filter(|ratio| ratio.is_finite() && *ratio > 0.0);
    metric.verdict = match of_b.total_cmp(&of_a) {
        std::cmp::Ordering::Equal => Verdict::Same,
        order if (order == std::cmp::Ordering::Greater) == (metric.better == Better::Higher) => Verdict::BBetter,
        _ => Verdict::BWorse,
    };
    metric.words = metric.in_words((a.len(), b.len()));
    metric
}

fn finite_median(values: &[f64]) -> Option<f64> {
    stats::median(values).filter(|value| value.is_finite())
}

/// A cell that fails loss parity has no valid speed.
fn guarded(mut metric: Metric, losses: &Losses) -> Metric {
    let failed = |verdict: ParityVerdict| verdict == ParityVerdict::Failed;
    let who = match (failed(losses.a), failed(losses.b)) {
        (false, false) => return metric,
        (true, false) => "A fails",
        (false, true) => "B fails",
        (true, true) => "A and B fail",
    };
    metric.verdict = Verdict::NotComparable;
    metric.reason = Some(format!("{who} loss parity: how fast it is, is no result"));
    metric.words = metric.in_words((0, 0));
    metric
}

/// Compares the losses of the last used trials, step by step.
pub fn losses(a: &[&Record], b: &[&Record]) -> Losses {
    let worst = |records: &[&Record]| {
        let severity = |verdict: &ParityVerdict| match verdict {
            ParityVerdict::Reference => 0,
            ParityVerdict::Identical => 1,
            ParityVerdict::WithinTolerance => 2,
            ParityVerdict::None => 3,
            ParityVerdict::Failed => 4,
        };
        records.iter().map(|record| record.parity.verdict).max_by_key(severity).unwrap_or_default()
    };
    let of = |records: &[&Record]| -> Vec<f64> {
        records.last().map(|record| record.steps.iter().map(|step| step.loss).collect()).unwrap_or_default()
    };
    let (of_a, of_b) = (of(a), of(b));
    let mut losses =
        Losses { a: worst(a), b: worst(b), steps: 0, identical: false, max_relative_difference: None, reason: None };
    if of_a.is_empty() || of_b.is_empty() {
        losses.reason = Some("a side has no steps".into());
    } else if of_a.len() != of_b.len() {
        losses.reason = Some(format!("A has {} steps and B {}", of_a.len(), of_b.len()));
    } else if of_a.iter().chain(&of_b).any(|loss| !loss.is_finite()) {
        losses.reason = Some("a loss is not finite".into());
    } else {
        losses.steps = of_a.len();
        losses.identical = of_a.iter().zip(&of_b).all(|(a, b)| a.to_bits() == b.to_bits());
        let difference =
            |(a, b): (&f64, &f64)| if a == b { 0.0 } else { (a - b).abs() / a.abs().max(f64::MIN_POSITIVE) };
        let largest = of_a.iter().zip(&of_b).map(difference).fold(0.0, f64::max);
        losses.max_relative_difference = Some(largest).filter(|largest| largest.is_finite());
    }
    losses
}
