//! The part of a record that a gate keeps: enough for every metric, small enough to store hundreds.

use super::metric::{self, Figure, Kind, Metric};
use crate::ordered_map::{NumberMap, OrderedMap};
use crate::record::{LOAD_FLAGS, Record, Source, Status};
use serde::{Deserialize, Serialize};

/// Which side a trial is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// What is compared with.
    Baseline,
    /// What is judged.
    Candidate,
}

impl Side {
    /// `baseline` or `candidate`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Candidate => "candidate",
        }
    }
}

/// One trial of one side.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// How it ended.
    pub status: Status,
    /// Why, where it was not measured.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Who found that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Validity flags, those that only label left out: its times do not count when it has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
    /// When it began.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub started: String,
    /// Wall time of the whole trial, starting and ending its process included.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seconds: f64,
    /// Times of the timed steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub step_ms: Vec<f64>,
    /// Mean tokens of a timed step.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub step_tokens: f64,
    /// The metrics, and `wire_bytes`.
    #[serde(default)]
    pub values: NumberMap,
    /// Why a metric has no value.
    #[serde(default, skip_serializing_if = "OrderedMap::is_empty")]
    pub unstated: OrderedMap<String>,
    /// The loss of every step; null where it was not finite. Empty where it is that of the trial before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<Option<f64>>,
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

impl Trial {
    /// What a record says. `seconds` is what it took, 0 where that is not known.
    pub fn of(record: &Record, seconds: f64) -> Self {
        let timed: Vec<_> = record.timed_steps().collect();
        let tokens: u64 = timed.iter().map(|step| step.tokens).sum();
        let metrics = metric::METRICS.iter();
        let mut values: NumberMap =
            metrics.filter_map(|metric| Some((metric.name, Some(record.metrics.number(metric.name)?)))).collect();
        if record.is_measured() && !record.steps.is_empty() {
            values.set("wire_bytes", record.wire_bytes());
        }
        let unstated = record.unstated.iter().filter(|(name, _)| metric::find(name).is_some());
        Self {
            status: record.outcome.status,
            reason: record.outcome.reason.clone(),
            source: record.outcome.source,
            flags: record.excluding_flags().map(str::to_string).collect(),
            started: record.started.clone(),
            seconds,
            step_ms: timed.iter().map(|step| step.ms).collect(),
            step_tokens: if timed.is_empty() { 0.0 } else { tokens as f64 / timed.len() as f64 },
            values,
            unstated: unstated.map(|(name, reason)| (name, reason.clone())).collect(),
            losses: record.steps.iter().map(|step| Some(step.loss).filter(|loss| loss.is_finite())).collect(),
        }
    }

    /// A trial that did not come to a record.
    pub fn ended(status: Status, reason: impl Into<String>, seconds: f64) -> Self {
        Self { status, reason: reason.into(), seconds, ..Self::default() }
    }

    /// The value of a metric, or why there is none. Tokens per second are those of the figure where the trial has steps.
    pub fn value(&self, metric: &Metric, figure: Figure) -> Result<f64, String> {
        let of_steps = (metric.name == "tokens_per_second" && figure != Figure::Mean)
            .then(|| figure.of(&self.step_ms).map(|ms| self.step_tokens / (ms / 1e3)))
            .flatten();
        let value = of_steps.or_else(|| self.values.number(metric.name));
        let reason = || self.unstated.get(metric.name).cloned();
        let value = value.ok_or_else(|| reason().unwrap_or_else(|| "the record has no such metric".into()))?;
        if metric.kind == Kind::Noisy && (value <= 0.0 || !value.is_finite()) {
            return Err(format!("its value is {value}, of which there is no ratio"));
        }
        Ok(value)
    }

    /// Whether a flag says that other processes used the cores.
    pub fn has_load(&self) -> bool {
        self.flags.iter().any(|flag| LOAD_FLAGS.contains(&flag.as_str()))
    }

    /// The same without the flags that other processes cause, so that it counts beside them.
    pub fn allowing_load(mut self) -> Self {
        self.flags.retain(|flag| !LOAD_FLAGS.contains(&flag.as_str()));
        self
    }

    /// Whether it ran to its end.
    pub fn is_measured(&self) -> bool {
        self.status == Status::Measured
    }

    /// Whether its times count.
    pub fn is_clean(&self) -> bool {
        self.is_measured() && self.flags.is_empty()
    }
}

/// Drops losses that are those of the trial before, and digits of times that no clock has: for trials that are stored.
pub fn compact(trials: &mut [Trial]) {
    let mut last: Vec<Option<f64>> = Vec::new();
    for trial in trials {
        if trial.losses == last {
            trial.losses.clear();
        } else {
            last.clone_from(&trial.losses);
        }
        trial.step_ms.iter_mut().for_each(|ms| *ms = (*ms * 1e3).round() / 1e3);
        trial.seconds = (trial.seconds * 1e3).round() / 1e3;
    }
}
