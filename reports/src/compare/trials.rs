//! The timed steps of a trial, without warm-up.

use serde::Serialize;

use super::Options;
use crate::record::Record;
use crate::warm_up::{self, WarmUpFinding};

/// A trial with the timed steps after warm-up.
#[derive(Debug)]
pub struct Trial<'a> {
    /// Its record.
    pub record: &'a Record,
    /// Tokens and milliseconds of each timed step after warm-up.
    pub steps: Vec<(f64, f64)>,
    /// Milliseconds of all timed steps, in order.
    pub all_ms: Vec<f64>,
    /// Where they become steady.
    pub steady: WarmUpFinding,
    keeps_all: bool,
}

/// What a trial's timed steps show of warm-up.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WarmUp {
    /// `a` or `b`.
    pub side: &'static str,
    /// Id of the record.
    pub record: String,
    /// How many timed steps it has.
    pub timed_steps: usize,
    /// `from_the_start`, `after`, `never` (no steady part was found), `too_short` (to tell).
    pub steady: &'static str,
    /// How many timed steps warm-up takes; 0 unless `after`.
    pub warm_up_steps: usize,
    /// How many of them are discarded here.
    pub discarded: usize,
    /// Tokens per second of the steps that are left.
    pub tokens_per_second: Option<f64>,
    /// Tokens per second of all timed steps.
    pub tokens_per_second_of_all_steps: Option<f64>,
}

/// The trials of these records.
pub fn of<'a>(records: &[&'a Record], options: Options) -> Vec<Trial<'a>> {
    records.iter().map(|record| Trial::new(record, options.all_steps)).collect()
}

impl<'a> Trial<'a> {
    /// A trial; its warm-up is discarded unless all steps are kept.
    pub fn new(record: &'a Record, keeps_all: bool) -> Self {
        let all: Vec<(f64, f64)> = record.timed_steps().map(|step| (step.tokens as f64, step.ms)).collect();
        let all_ms: Vec<f64> = all.iter().map(|step| step.1).collect();
        let steady = warm_up::find(&all_ms);
        let discarded = if keeps_all { 0 } else { steady.discarded() };
        Self { record, steps: all[discarded..].to_vec(), all_ms, steady, keeps_all }
    }

    /// How many timed steps are discarded.
    pub fn discarded(&self) -> usize {
        if self.keeps_all { 0 } else { self.steady.discarded() }
    }
}

/// Tokens per second of some steps; not finite where there are none.
pub fn rate(steps: &[(f64, f64)]) -> f64 {
    let (tokens, ms) = steps.iter().fold((0.0, 0.0), |sum, step| (sum.0 + step.0, sum.1 + step.1));
    tokens / ms * 1000.0
}

/// A row for each trial that has timed steps.
pub fn warm_up<'t>(trials: &'t [Trial], side: &'static str) -> impl Iterator<Item = WarmUp> + 't {
    let finite = |value: f64| Some(value).filter(|value| value.is_finite());
    trials.iter().filter(|trial| !trial.all_ms.is_empty()).map(move |trial| WarmUp {
        side,
        record: trial.record.id.clone(),
        timed_steps: trial.all_ms.len(),
        steady: trial.steady.name(),
        warm_up_steps: trial.steady.discarded(),
        discarded: trial.discarded(),
        tokens_per_second: finite(rate(&trial.steps)),
        tokens_per_second_of_all_steps: finite(rate(&Trial::new(trial.record, true).steps)),
    })
}
