//! `--trace FILE`: what every rank did and when, as a timeline that Perfetto and Chrome's tracing page open. Its form is
//! Chrome's trace event format; docs/trace.md says what stands where.

mod file;
mod lanes;
mod measured;
mod predicted;

pub use file::TraceFile;

use crate::Observe;
use crate::protocol::LifecycleEvent;
use lanes::Names;
use serde_json::json;
use std::path::Path;
use zbench_engine::observe::trace::StepTrace;
use zbench_predict::planned::Planned;
use zbench_reports::record::{Record, Step};

/// Every trial has numbers of processes to itself: its ranks from here on …
const PER_TRIAL: u64 = 100_000;
/// … and its prediction behind them.
const PREDICTED: u64 = PER_TRIAL - 1;

/// Writes the trials of a command into one file.
pub struct Timelines {
    file: TraceFile,
    /// So many steps of each trial.
    steps: u64,
    /// Trials that have begun.
    begun: u64,
    under_way: Option<measured::Trial>,
    /// An arrow's number.
    arrows: u64,
    /// Why the last cell without a prediction has none.
    why: Option<String>,
}

impl Timelines {
    /// Makes the file, so that a place where none can be is told before anything runs.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path, steps: u64, command: &str) -> std::io::Result<Timelines> {
        let file = TraceFile::create(path, command)?;
        Ok(Timelines { file, steps, begun: 0, under_way: None, arrows: 0, why: None })
    }

    /// Steps of each trial that are to be traced.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The timelines of steps that are not run.
    pub fn predicted(&mut self, cells: &[Planned]) {
        for planned in cells {
            let base = self.next();
            let name = format!("predicted · {}", name(planned));
            match predicted::of(planned) {
                Ok(line) => {
                    self.file.add(&lanes::process(base + PREDICTED, &name, base));
                    self.file.add(&line.lanes(base + PREDICTED));
                    let names = Names::of(planned);
                    self.file.add(&line.events(base + PREDICTED, self.file.begins(), 1, &names));
                    let ms = line.step_ns() as f64 / 1e6;
                    self.file.note(json!({ "cell": name, "predicted_step_ms": ms, "predicted_from": line.source() }));
                }
                Err(reason) => {
                    self.file.note(json!({ "cell": name, "not_predicted": reason }));
                    self.why = Some(reason);
                }
            }
        }
        self.file.keep();
    }

    /// Brings everything to the disk; what could not be written, once.
    pub fn complaint(&mut self) -> Option<String> {
        if let Some(trial) = self.under_way.take() {
            self.file.note(trial.unfinished());
        }
        self.file.keep();
        let nothing =
            || "--trace: nothing was run or predicted, so that there is no timeline; the file is as it was".to_string();
        self.file.complaint().or_else(|| self.file.is_empty().then(nothing))
    }

    fn next(&mut self) -> u64 {
        self.begun += 1;
        self.begun * PER_TRIAL
    }
}

/// What varies in the grid; of a cell by itself its strategy.
fn name(planned: &Planned) -> String {
    match (planned.cell(), planned.grid.strategy()) {
        (Some(cell), Some(strategy)) if planned.grid.label.is_empty() => {
            format!("{strategy} of {} ranks", cell.parallel.ranks)
        }
        _ => planned.grid.label.clone(),
    }
}

impl Observe for Timelines {
    fn begin(&mut self, planned: &Planned, trial: u32, _done: usize, _all: usize) {
        let base = self.next();
        self.under_way = Some(measured::Trial::new(planned, format!("{} trial {trial}", name(planned)), base));
    }

    fn lifecycle(&mut self, event: &LifecycleEvent) {
        if let (Some(trial), LifecycleEvent::Saved(saved)) = (&self.under_way, event) {
            self.file.add(&[trial.saved(saved)]);
        }
    }

    fn traced(&mut self, traced: &StepTrace) {
        if let Some(trial) = &mut self.under_way {
            let events = trial.events(traced, &mut self.arrows);
            self.file.add(&events);
            self.file.keep_soon();
        }
    }

    fn end(&mut self, record: &Record) {
        if let Some(trial) = self.under_way.take() {
            self.file.add(&trial.labels(record));
            self.file.note(trial.summary(record));
            self.file.keep();
        }
    }
}

/// Tells two who want to know.
pub struct Both<'a>(pub &'a mut dyn Observe, pub &'a mut dyn Observe);

impl Observe for Both<'_> {
    fn set_aside(&mut self, count: usize, reason: &str) {
        self.0.set_aside(count, reason);
        self.1.set_aside(count, reason);
    }

    fn wait(&mut self) {
        self.0.wait();
        self.1.wait();
    }

    fn begin(&mut self, cell: &Planned, trial: u32, done: usize, all: usize) {
        self.0.begin(cell, trial, done, all);
        self.1.begin(cell, trial, done, all);
    }

    fn step(&mut self, step: &Step) {
        self.0.step(step);
        self.1.step(step);
    }

    fn lifecycle(&mut self, event: &LifecycleEvent) {
        self.0.lifecycle(event);
        self.1.lifecycle(event);
    }

    fn traced(&mut self, traced: &StepTrace) {
        self.0.traced(traced);
        self.1.traced(traced);
    }

    fn stopping(&mut self) {
        self.0.stopping();
        self.1.stopping();
    }

    fn end(&mut self, record: &Record) {
        self.0.end(record);
        self.1.end(record);
    }
}
