//! The runner's suite of all measurements beside training.

use super::{BenchError, BenchSpec, Limits, Parts, Stopped, record};
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zbench_host::devices;
use zbench_predict::planned::Decision;
use zbench_reports::record::{Outcome, Record, Source, Status};
use zbench_runner::record::{emulated_device, fallbacks};
use zbench_runner::{Observe, Suite, SuiteCell, Trial};

/// A cell of these suites: what to measure, or why it cannot be measured here.
#[derive(Clone)]
pub struct BenchCell {
    /// Hash of the specification, or of the settings if there is none.
    pub key: String,
    /// A short name for a reader.
    pub label: String,
    /// As JSON.
    pub plain: Value,
    /// Whether it runs.
    pub decision: Decision,
    /// The measurement, if the settings describe one.
    pub spec: Option<Arc<dyn BenchSpec>>,
}

impl BenchCell {
    /// A cell that runs.
    pub fn new(spec: Box<dyn BenchSpec>) -> BenchCell {
        let (key, plain) = (spec.key(), spec.plain());
        BenchCell { key, label: spec.label(), plain, decision: Decision::Run, spec: Some(spec.into()) }
    }
}

impl SuiteCell for BenchCell {
    fn key(&self) -> &str {
        &self.key
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn plain(&self) -> Value {
        self.plain.clone()
    }

    fn decision(&self) -> &Decision {
        &self.decision
    }
}

/// Measures one cell at a time.
pub struct Bench {
    /// Set by Ctrl-C.
    pub stop: Arc<AtomicBool>,
    /// Time limit of a trial.
    pub timeout: Duration,
    /// Folder for the files of measurements.
    pub folder: PathBuf,
    /// Is told how far a trial is.
    pub parts: Parts,
}

impl Suite for Bench {
    type Cell = BenchCell;

    fn measure(
        &mut self,
        trial: &Trial<'_, BenchCell>,
        record: &mut Record,
        _observe: &mut dyn Observe<BenchCell>,
    ) -> Result<bool, Option<zbench_runner::Stopped>> {
        if self.is_stopped() {
            return Err(None);
        }
        let Some(spec) = &trial.cell.spec else {
            record.outcome = Outcome::ended(Status::Failed, "the cell has no specification", None);
            return Ok(false);
        };
        let limits = Limits { stop: &self.stop, deadline: Instant::now() + self.timeout, parts: Some(&self.parts) };
        let asks_for_gpu = spec.asks_for_gpu().is_some();
        let on_gpu = asks_for_gpu && !devices::on_host();
        // A kernel that panics fails its cell, not the others.
        let measure = || catch_unwind(AssertUnwindSafe(|| spec.measure(&limits, &self.folder)));
        let (result, sampled) = record::watched(usize::from(on_gpu), measure);
        let result = result.unwrap_or_else(|panic| {
            let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(BenchError::Panicked(words.unwrap_or("without words").into()))
        });
        match result {
            Ok(result) => record::fill(record, &result),
            Err(BenchError::Stopped(Stopped::Interrupted)) => return Err(None),
            Err(error) => {
                let (status, source) = match &error {
                    BenchError::Stopped(Stopped::TimedOut) => (Status::TimedOut, Some(Source::Host)),
                    BenchError::Memory(_) => (Status::OutOfMemory, Some(Source::Arena)),
                    BenchError::Busy { .. } => (Status::OutOfMemory, Some(Source::Host)),
                    BenchError::Ended(ended) => (ended.status, ended.source),
                    _ => (Status::Failed, None),
                };
                record.outcome = Outcome::ended(status, error.to_string(), source);
            }
        }
        record::seen(record, &sampled);
        if let (true, Some(gpu)) = (asks_for_gpu, devices::gpu(0)) {
            let all: Vec<String> = gpu.take_fallbacks().iter().map(devices::fallback).collect();
            if !all.is_empty() {
                record.extra.insert("gpu".into(), serde_json::json!({ "fallbacks": all }));
            }
            fallbacks(record, &all);
        }
        if asks_for_gpu && devices::on_host() {
            emulated_device(record);
        }
        Ok(false)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
