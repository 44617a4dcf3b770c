//! How far it is, on standard error: a bar on a terminal, a line for each finished cell elsewhere.

use crate::cli::Global;
use crate::runner::Observe;
use crate::runner::plan::{Planned, gib};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use zbench_reports::record::{Record, Status, Step};

/// Tells on standard error.
pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    steps: bool,
    label: String,
    total_steps: usize,
    waits: bool,
}

impl Progress {
    /// `steps`: a line for each step, as `zbench run` has.
    pub fn new(global: &Global, steps: bool) -> Progress {
        let steps = (steps || global.verbose) && !global.quiet;
        let bar = (!global.quiet && !steps && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(0);
            // The template is a constant that a test of this module parses.
            if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
                bar.set_style(style);
            }
            bar
        });
        Progress { bar, quiet: global.quiet, steps, label: String::new(), total_steps: 0, waits: false }
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
    }

    fn step(&mut self, step: &Step) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{} step {}/{} loss {:.4}", self.label, step.step, self.total_steps, step.loss));
        }
        if self.steps {
            let rate = step.tokens as f64 / (step.ms / 1e3);
            let untimed = if step.timed { "" } else { "  (untimed)" };
            let scale = step.loss_scale().map(|scale| format!("  loss scale {scale}")).unwrap_or_default();
            let norm = if step.is_skipped() { "overflows, skipped".into() } else { format!("{:.4}", step.grad_norm) };
            self.line(&format!(
                "step {:>4}/{}  loss {:.6}  grad_norm {norm}  lr {:.3e}{scale}  {:.1} ms  {rate:.0} tokens/s{untimed}",
                step.step, self.total_steps, step.loss, step.lr, step.ms
            ));
        }
    }

    fn end(&mut self, record: &Record) {
        let number = |metric: &str| record.metrics.number(metric);
        let what = match (record.outcome.status, number("tokens_per_second"), number("peak_memory_bytes")) {
            (Status::Measured, Some(rate), Some(peak)) => format!("{rate:.0} tokens/s, {} a rank", gib(peak as u64)),
            (Status::Measured, ..) => "measured".into(),
            (status, ..) => format!("{}: {}", status.words(), record.outcome.reason),
        };
        self.line(&format!("{}  {}  {what}", &record.id, self.label));
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
