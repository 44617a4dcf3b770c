//! What became of one execution of a training cell, and who can execute one.

use crate::protocol::{End, Ended, Event, LifecycleEvent, ProgressEvent};
use crate::traced::Traced;
use std::path::PathBuf;
use std::time::Duration;
use zbench_engine::config::Cell;
use zbench_reports::record::{Source, Status, Step};

/// What became of one execution.
#[derive(Clone, Debug, Default)]
pub struct Execution {
    /// Steps that ended.
    pub steps: Vec<Step>,
    /// What happened between them.
    pub lifecycle: Vec<LifecycleEvent>,
    /// How it ended; absent when it was stopped because the user asked.
    pub end: Option<End>,
    /// Nothing can run after it.
    pub last: bool,
    /// What tracing took, where it was traced.
    pub traced: Traced,
}

impl Execution {
    /// Takes in what a cell says of its course, and passes it on.
    pub fn take(&mut self, event: &Event, tell: &mut dyn FnMut(ProgressEvent<'_>)) {
        match event {
            Event::Step(step) => {
                tell(ProgressEvent::Step(step));
                self.steps.push(step.clone());
            }
            Event::LifecycleEvent(event) => {
                tell(ProgressEvent::LifecycleEvent(event));
                // It grows, and the end has the last of it.
                if !matches!(event, LifecycleEvent::Peak(_)) {
                    self.lifecycle.push(event.clone());
                }
            }
            Event::Traced(traced) => {
                self.traced.add(traced);
                tell(ProgressEvent::Traced(traced));
            }
            Event::Ready | Event::Met | Event::End(_) | Event::Rank(_) => {}
        }
    }

    /// With the end that the cell said; without, where it was stopped before its own.
    pub(crate) fn with(mut self, end: End) -> Execution {
        let is_whole = !end.stopped || end.failure.is_some();
        self.close(end);
        self.end = self.end.filter(|_| is_whole);
        self
    }

    /// Takes in the end, of a run that was stopped too.
    pub fn close(&mut self, mut end: End) {
        let said = std::mem::take(&mut end.steps);
        if !said.is_empty() {
            self.steps = said;
        }
        self.end = Some(end);
    }

    /// With this failure as its end.
    pub fn ended(self, failure: Ended) -> Execution {
        self.with(End { failure: Some(failure), ..End::default() })
    }

    /// It took longer than its time limit.
    pub fn timed_out(self, limit: Duration) -> Execution {
        let reason = format!(
            "took longer than the time limit of {} s, after {} steps; raise --timeout, or lower train.steps",
            limit.as_secs_f64(),
            self.steps.len()
        );
        self.ended(Ended { status: Status::TimedOut, reason, source: Some(Source::Host) })
    }

    /// It did not begin, for this reason.
    pub fn failed(reason: String) -> Execution {
        Execution::default().ended(Ended { status: Status::Failed, reason, source: None })
    }

    /// Where it stopped, and what there is to go on from.
    pub(crate) fn stopped(&self, cell: &Cell) -> Stopped {
        let saved = self.lifecycle.iter().rev().find_map(|event| match event {
            LifecycleEvent::Saved(saved) => Some(saved.dir.clone()),
            _ => None,
        });
        let before = self.lifecycle.iter().find_map(|event| match event {
            LifecycleEvent::Resumed(resumed) => Some(resumed.step),
            _ => None,
        });
        let step = self.steps.last().map(|step| step.step).or(before).unwrap_or(0);
        Stopped { step, of: (cell.train.untimed_steps + cell.train.steps) as u64, saved }
    }
}

/// A trial that was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Steps done.
    pub step: u64,
    /// All its steps.
    pub of: u64,
    /// The newest checkpoint that it wrote.
    pub saved: Option<PathBuf>,
}

/// Something that can run a cell.
pub trait Execute {
    /// Runs it to its end, telling of each step and of what happens between them.
    fn execute(&mut self, cell: &Cell, tell: &mut dyn FnMut(ProgressEvent<'_>)) -> Execution;
    /// Whether the user wants to stop, asked while nothing is executed.
    fn is_stopped(&self) -> bool {
        false
    }
}
