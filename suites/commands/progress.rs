//! How far it is, on standard error: a bar on a terminal, a line for each finished cell elsewhere; lines of steps for a run.

mod trainer;

use crate::cli::Global;
use crate::runner::Observe;
use crate::runner::plan::{Planned, gib};
use crate::runner::protocol::Between;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use trainer::Trainer;
use zbench_reports::record::{Record, Status, Step};

/// Tells on standard error.
pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    /// Makes the lines of steps, where there are some.
    trainer: Option<Trainer>,
    label: String,
    total_steps: usize,
    waits: bool,
}

impl Progress {
    /// `log_every`: lines of steps, as `zbench run` has them, so many steps apart.
    pub fn new(global: &Global, log_every: Option<u64>) -> Progress {
        let every = log_every.or(global.verbose.then_some(1)).filter(|_| !global.quiet);
        let trainer = every.map(Trainer::new);
        let bar = (!global.quiet && trainer.is_none() && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(0);
            // The template is a constant that a test of this module parses.
            if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
                bar.set_style(style);
            }
            bar
        });
        Progress { bar, quiet: global.quiet, trainer, label: String::new(), total_steps: 0, waits: false }
    }

    /// Before something else is printed.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            // Nobody who reads it may be left; the run goes on.
            None if !self.quiet => drop(writeln!(std::io::stderr(), "{text}")),
            None => {}
        }
    }
}

const TEMPLATE: &str = "[{elapsed_precise}] {bar:24} {pos}/{len} {wide_msg}";

impl Observe for Progress {
    fn set_aside(&mut self, count: usize, reason: &str) {
        let records = zbench_reports::units::plural(count, "record of these trials is", "records of these trials are");
        self.line(&format!(
            "{records} of {reason}: not counted, the trials are measured here; --any-environment counts them"
        ));
    }

    fn wait(&mut self) {
        if !std::mem::replace(&mut self.waits, true) {
            self.line("another zbench on this notebook is measuring what is left; waiting for it");
        }
    }

    fn begin(&mut self, planned: &Planned, trial: u32, done: usize, all: usize) {
        self.label = format!("{} trial {trial}", name(planned));
        self.total_steps = planned.cell().map_or(0, |cell| cell.train.steps + cell.train.untimed_steps);
        if let Some(bar) = &self.bar {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            bar.set_message(self.label.clone());
        }
        if let Some(header) = self.trainer.as_mut().and_then(|trainer| trainer.begin(planned)) {
            self.line(&header);
        }
    }

    fn step(&mut self, step: &Step) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{} step {}/{} loss {:.4}", self.label, step.step, self.total_steps, step.loss));
        }
        if let Some(line) = self.trainer.as_mut().and_then(|trainer| trainer.step(step)) {
            self.line(&line);
        }
    }

    fn between(&mut self, between: &Between) {
        if let Some(line) = self.trainer.as_mut().and_then(|trainer| trainer.between(between)) {
            self.line(&line);
        }
    }

    fn stopping(&mut self) {
        self.line("stops after this step, with a checkpoint; Ctrl-C again ends it at once, without");
    }

    fn end(&mut self, record: &Record) {
        let number = |metric: &str| record.metrics.number(metric);
        let what = match (record.outcome.status, number("tokens_per_second"), number("peak_memory_bytes")) {
            (Status::Measured, Some(rate), Some(peak)) => format!("{rate:.0} tokens/s, {} a rank", gib(peak as u64)),
            (Status::Measured, ..) => "measured".into(),
            (status, ..) => format!("{}: {}", status.words(), record.outcome.reason),
        };
        let (held, learned) = self.trainer.as_mut().map_or((None, None), |trainer| trainer.end(record));
        held.into_iter().for_each(|line| self.line(&line));
        self.line(&format!("{}  {}  {what}", &record.id, self.label));
        learned.into_iter().for_each(|line| self.line(&line));
    }
}

fn name(planned: &Planned) -> String {
    if planned.grid.label.is_empty() { planned.grid.key.clone() } else { planned.grid.label.clone() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_template_parses() {
        assert!(indicatif::ProgressStyle::with_template(super::TEMPLATE).is_ok());
    }
}
