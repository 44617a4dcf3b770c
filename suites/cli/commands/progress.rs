//! How far it is, on standard error: a bar on a terminal; elsewhere a line for each finished cell, and one now and then while a cell
//! takes long; lines of steps for a run. Nothing but whole lines is written where there is no terminal.

mod life;
mod trainer;

use crate::Global;
use indicatif::{ProgressBar, ProgressStyle};
use life::Life;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trainer::Trainer;
use zbench_host::logging::is_on_stderr;
use zbench_host::terminal::Stream;
use zbench_predict::planned::{Planned, gib};
use zbench_reports::record::{Record, Status, Step};
use zbench_reports::render::printable;
use zbench_runner::Observe;
use zbench_runner::protocol::LifecycleEvent;
use zbench_suites::bench::Parts;

/// Progress on standard error.
pub struct Progress {
    shared: Shared,
    /// Thread that ticks while a cell is silent. It ends when the channel closes.
    watch: Option<(Sender<()>, JoinHandle<()>)>,
    /// Formats the lines of steps, if they are printed.
    trainer: Option<Trainer>,
    label: String,
    waits: bool,
    turns_said: Option<Instant>,
}

/// State that is shared with the ticking thread.
#[derive(Clone)]
struct Shared {
    bar: Option<ProgressBar>,
    quiet: bool,
    life: Arc<Mutex<Life>>,
    began: Instant,
}

/// Time between ticks.
const LOOK: Duration = Duration::from_secs(1);

impl Shared {
    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self, text: &str) {
        // The lock is held during the write, so that the ticking thread does not print at the same time.
        let mut life = self.life();
        life.spoke(self.began.elapsed());
        match &self.bar {
            Some(bar) => bar.println(printable(text)),
            // Nobody who reads it may be left; the run goes on.
            None if !self.quiet => zbench_host::say!("{text}"),
            None => {}
        }
    }

    /// Updates the bar, or prints a line if it is time for one.
    fn tick(&self) {
        let mut life = self.life();
        let now = self.began.elapsed();
        match &self.bar {
            Some(bar) => {
                let words = life.words(now);
                // Between trials, and while cells take turns, what was said last stays.
                if !words.is_empty() {
                    bar.set_message(shown(words));
                }
            }
            None => life.tick(now).into_iter().for_each(|line| zbench_host::say!("{line}")),
        }
    }
}

impl Progress {
    /// `log_every`: steps between lines of steps, as `zbench run` prints them.
    pub fn new(global: &Global, log_every: Option<u64>) -> Progress {
        let every = log_every.or((global.verbose > 0).then_some(1)).filter(|_| !global.quiet);
        let trainer = every.map(Trainer::new);
        let bar = (!global.quiet && trainer.is_none() && !is_on_stderr() && Stream::Err.is_live())
            .then(|| ProgressBar::new(0).with_style(style(TEMPLATE)));
        let shared = Shared { bar, quiet: global.quiet, life: Arc::default(), began: Instant::now() };
        let watch = (!global.quiet).then(|| watch(shared.clone())).flatten();
        Progress { shared, watch, trainer, label: String::new(), waits: false, turns_said: None }
    }

    /// Ends the progress before something else is printed.
    pub fn clear(&mut self) {
        if let Some((end, thread)) = self.watch.take() {
            drop(end);
            // The thread does not panic. If it did, nothing could be done about it here.
            let _ = thread.join();
        }
        if let Some(bar) = &self.shared.bar {
            bar.finish_and_clear();
        }
    }

    fn line(&self, text: &str) {
        self.shared.line(text);
    }

    /// What shows the part of a trial that is measured now.
    pub fn parts(&self) -> Parts {
        let shared = self.shared.clone();
        Arc::new(move |what, done, all| shared.life().part(what, done, all))
    }

    /// A trial begins, after `done` of `all`; one of another suite than training has no steps.
    pub fn trial_begins(&mut self, label: String, steps: u64, done: usize, all: usize) {
        self.label = label;
        let now = self.shared.began.elapsed();
        self.shared.life().begin(now, self.label.clone(), steps, done, all);
        if let Some(bar) = &self.shared.bar {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            bar.set_message(shown(self.shared.life().words(now)));
        }
    }

    /// The trial has ended, and this is its line.
    pub fn trial_ends(&mut self, line: &str) {
        self.shared.life().end();
        self.line(line);
    }
}

/// Ticks every second until the channel closes. `None` if no thread can be started.
fn watch(shared: Shared) -> Option<(Sender<()>, JoinHandle<()>)> {
    let (end, ended) = mpsc::channel();
    let looks = move || {
        while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            shared.tick();
        }
    };
    let thread = std::thread::Builder::new().name("progress".into()).spawn(looks).ok()?;
    Some((end, thread))
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Removes control characters: labels hold values of files.
fn shown(words: String) -> String {
    printable(&words).into_owned()
}

/// Time between lines about turns where there is no terminal.
const TURNS_LINE: Duration = Duration::from_secs(10);
const TURNS_TEMPLATE: &str = "[{elapsed_precise}] {bar:24} {percent}% {wide_msg}";

/// The style of a template, which is a constant.
pub(super) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
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
        let steps = planned.cell().map_or(0, trainer::steps);
        self.trial_begins(format!("{} trial {trial}", name(planned)), steps, done, all);
        if let Some(header) = self.trainer.as_mut().and_then(|trainer| trainer.begin(planned)) {
            self.line(&header);
        }
    }

    fn step(&mut self, step: &Step) {
        self.shared.life().step(step.step, step.loss);
        if let Some(bar) = &self.shared.bar {
            bar.set_message(shown(self.shared.life().words(self.shared.began.elapsed())));
        }
        if let Some(line) = self.trainer.as_mut().and_then(|trainer| trainer.step(step)) {
            self.line(&line);
        }
    }

    fn lifecycle(&mut self, event: &LifecycleEvent) {
        if let Some(line) = self.trainer.as_mut().and_then(|trainer| trainer.lifecycle(event)) {
            self.line(&line);
        }
    }

    fn turns(&mut self, words: &str, share: f64) {
        const PARTS: f64 = 1000.0;
        if let Some(bar) = &self.shared.bar {
            bar.set_style(style(TURNS_TEMPLATE));
            bar.set_length(PARTS as u64);
            bar.set_position((share * PARTS) as u64);
            bar.set_message(shown(words.to_string()));
        } else if self.turns_said.is_none_or(|said| said.elapsed() >= TURNS_LINE) {
            self.turns_said = Some(Instant::now());
            self.line(words);
        }
    }

    fn warn(&mut self, words: &str) {
        self.line(words);
    }

    fn stopping(&mut self) {
        self.line("stops after this step, with a checkpoint; Ctrl-C again ends it at once, without");
    }

    fn end(&mut self, record: &Record) {
        let number = |metric: &str| record.metrics.number(metric);
        let what = match (record.outcome.status, number("tokens_per_second"), number("peak_memory_bytes")) {
            (Status::Measured, Some(rate), Some(peak)) => {
                format!("{rate:.0} tokens/s, {} a rank{}", gib(peak as u64), flagged(record))
            }
            (Status::Measured, ..) => "measured".into(),
            (status, ..) => format!("{}: {}", status.words(), record.outcome.reason),
        };
        let (held, learned) = self.trainer.as_mut().map_or((None, None), |trainer| trainer.end(record));
        held.into_iter().for_each(|line| self.line(&line));
        self.trial_ends(&format!("{}  {}  {what}", &record.id, self.label));
        learned.into_iter().for_each(|line| self.line(&line));
    }
}

/// The flags of a measured trial that does not count.
fn flagged(record: &Record) -> String {
    let flags: Vec<&str> = record.excluding_flags().collect();
    if flags.is_empty() { String::new() } else { format!("; not valid: {}", flags.join(", ")) }
}

fn name(planned: &Planned) -> String {
    if planned.grid.label.is_empty() { planned.grid.key.clone() } else { planned.grid.label.clone() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_template_parses() {
        assert!(indicatif::ProgressStyle::with_template(super::TEMPLATE).is_ok());
        assert!(indicatif::ProgressStyle::with_template(super::TURNS_TEMPLATE).is_ok());
    }
}
