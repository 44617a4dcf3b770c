//! The lines of a run that is watched: a header, a line for each step and for what happens between steps, a summary.

use std::collections::VecDeque;
use zbench_engine::config::{Cell, Evaluation};
use zbench_predict::planned::Planned;
use zbench_reports::record::{Record, Status, Step};
use zbench_reports::{stats, units};
use zbench_runner::protocol::LifecycleEvent;

/// Steps whose median time says how long the others take.
const RECENT: usize = 20;

/// Makes the lines of one trial after the other.
#[derive(Debug, Default)]
pub struct Trainer {
    /// A line for each step whose number is a multiple of this, and for the first and the last.
    every: u64,
    /// All steps.
    last: u64,
    evaluation: Option<Evaluation>,
    /// Steps from one checkpoint to the next; 0 = none but at the end.
    saves_every: u64,
    /// Of rank 0, so far.
    peak: Option<u64>,
    recent: VecDeque<f64>,
    evaluation_ms: f64,
    stall_ms: f64,
    /// The line of the last step, where it was not wanted.
    held: Option<String>,
    evaluations: Vec<(u64, f64)>,
    checkpoints: usize,
}

impl Trainer {
    /// `every`: steps from one line to the next.
    pub fn new(every: u64) -> Trainer {
        Trainer { every: every.max(1), ..Trainer::default() }
    }

    /// A trial begins.
    pub fn begin(&mut self, planned: &Planned) -> Option<String> {
        *self = Trainer::new(self.every);
        let cell = planned.cell()?;
        self.last = steps(cell);
        self.evaluation = cell.evaluation();
        self.saves_every = cell.checkpoint.as_ref().map_or(0, |saving| saving.every);
        Some(header(planned, cell))
    }

    /// A step has ended; its line, if it has one.
    pub fn step(&mut self, step: &Step) -> Option<String> {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(step.ms);
        let line = self.line(step);
        let shown = step.step.is_multiple_of(self.every) || self.recent.len() == 1 || step.step == self.last;
        self.held = (!shown).then(|| line.clone());
        shown.then_some(line)
    }

    fn line(&self, step: &Step) -> String {
        let rate = step.tokens as f64 / (step.ms / 1e3);
        let untimed = if step.timed { "" } else { "  (untimed)" };
        let scale = step.loss_scale().map(|scale| format!("  loss scale {scale}")).unwrap_or_default();
        let norm = if step.is_skipped() { "overflows, skipped".into() } else { format!("{:.4}", step.grad_norm) };
        let peak = self.peak.map(|bytes| format!("  {}", units::memory(bytes as f64))).unwrap_or_default();
        let left = self.left(step.step).map(|seconds| format!("  eta {}", clock(seconds))).unwrap_or_default();
        format!(
            "step {:>4}/{}  loss {:.6}  grad_norm {norm}  lr {:.3e}{scale}  {:.1} ms  {rate:.0} tokens/s{peak}{left}{untimed}",
            step.step, self.last, step.loss, step.lr, step.ms
        )
    }

    /// Seconds to the end: the median of the last steps for each that is left, the last evaluation's time for each of those, the
    /// last checkpoint's stall likewise. Nothing at the end.
    fn left(&self, step: u64) -> Option<f64> {
        let steps = self.last.checked_sub(step).filter(|steps| *steps > 0)?;
        let times: Vec<f64> = self.recent.iter().copied().collect();
        let median = stats::median(&times)?;
        let multiples = |every: u64| self.last.checked_div(every).unwrap_or(0) - step.checked_div(every).unwrap_or(0);
        let last_too = |every: u64| u64::from(!self.last.is_multiple_of(every));
        let evaluations = self.evaluation.map_or(0, |e| multiples(e.every) + last_too(e.every));
        let saves = if self.saves_every > 0 { multiples(self.saves_every) } else { 0 };
        let ms = steps as f64 * median + evaluations as f64 * self.evaluation_ms + saves as f64 * self.stall_ms;
        Some(ms / 1e3)
    }

    /// Something has happened between steps; its line, if it has one.
    pub fn lifecycle(&mut self, event: &LifecycleEvent) -> Option<String> {
        match event {
            LifecycleEvent::Peak(bytes) => {
                self.peak = self.peak.max(Some(*bytes));
                None
            }
            LifecycleEvent::Evaluated(evaluated) => {
                self.evaluation_ms = evaluated.ms;
                self.evaluations.push((evaluated.step, evaluated.loss));
                Some(format!(
                    "eval {:>4}/{}  loss {:.6}  over {} held-out tokens  {:.1} ms",
                    evaluated.step,
                    self.last,
                    evaluated.loss,
                    units::count(evaluated.tokens),
                    evaluated.ms
                ))
            }
            LifecycleEvent::Saved(saved) => {
                self.stall_ms = saved.stall_ms;
                self.checkpoints += 1;
                Some(format!(
                    "save {:>4}/{}  {} in {} ({}), training stood still for {}  {}",
                    saved.step,
                    self.last,
                    units::traffic(saved.bytes as f64),
                    units::duration(saved.ms / 1e3),
                    rate(saved.bytes, saved.ms),
                    units::duration(saved.stall_ms / 1e3),
                    saved.dir.display()
                ))
            }
            LifecycleEvent::Resumed(from) => {
                self.evaluations = from.evaluations.iter().map(|done| (done.step, done.loss)).collect();
                Some(format!(
                    "goes on from step {}/{}  {} read in {} ({})  {}",
                    from.step,
                    self.last,
                    units::traffic(from.bytes as f64),
                    units::duration(from.ms / 1e3),
                    rate(from.bytes, from.ms),
                    from.dir.display()
                ))
            }
        }
    }

    /// The trial has ended: the line of its last step where it was held back, and a summary of what was learned.
    pub fn end(&mut self, record: &Record) -> (Option<String>, Option<String>) {
        let held = self.held.take();
        let (Some(first), Some(last)) = (record.steps.first(), record.steps.last()) else { return (held, None) };
        let count = units::plural(record.steps.len(), "step", "steps");
        let mut text = format!("loss {:.4} to {:.4} in {count}", first.loss, last.loss);
        let best = self.evaluations.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        if let (Some((_, loss)), Some((step, best))) = (self.evaluations.last(), best) {
            text += &format!("; held-out loss {loss:.4}, its best {best:.4} after step {step}");
        }
        if self.checkpoints > 0 {
            text += &format!("; {} written", units::plural(self.checkpoints, "checkpoint", "checkpoints"));
        }
        let peak = record.memory.total.as_ref().and_then(|total| Some((total.peak_bytes?, total.predicted_bytes?)));
        if let (Some((peak, planned)), Status::Measured) = (peak, record.outcome.status) {
            let (peak, planned) = (units::memory(peak as f64), units::memory(planned as f64));
            text += &format!("; peak {peak} a rank, planned {planned}");
        }
        (held, Some(text))
    }
}

/// What is trained, how, and what that is planned to take.
fn header(planned: &Planned, cell: &Cell) -> String {
    let mut parts = Vec::new();
    if let Some(estimate) = &planned.estimate {
        let all = units::count(estimate.parameters);
        parts.push(match estimate.trainable_parameters == estimate.parameters {
            true => format!("{} with {all} parameters", cell.model.family),
            false => {
                let trained = units::count(estimate.trainable_parameters);
                format!("{} with {all} parameters, of which {trained} train", cell.model.family)
            }
        });
    }
    let ranks = units::plural(cell.parallel.ranks, "rank", "ranks");
    parts.push(format!("{} on {ranks} ({})", cell.parallel.strategy.name(), cell.parallel.backend.name()));
    parts.push(format!("compute in {}", cell.precision.compute));
    let steps = units::count(steps(cell));
    parts.push(match cell.train.untimed_steps {
        0 => format!("{steps} steps"),
        untimed => format!("{steps} steps, the first {untimed} untimed"),
    });
    if let Some(footprint) = &planned.footprint {
        parts.push(format!("planned peak {} a rank", units::memory(footprint.total as f64)));
    }
    parts.join("; ")
}

/// Timed and untimed.
pub(super) fn steps(cell: &Cell) -> u64 {
    (cell.train.steps + cell.train.untimed_steps) as u64
}

fn rate(bytes: u64, ms: f64) -> String {
    format!("{}/s", units::traffic(bytes as f64 / (ms / 1e3)))
}

/// A length of time as one reads it off a clock: `12s`, `3m05s`, `2h10m`, `3d04h`.
pub(super) fn clock(seconds: f64) -> String {
    let all = seconds.round().clamp(0.0, 1e9) as u64;
    let (days, hours, minutes, seconds) = (all / 86_400, all / 3_600 % 24, all / 60 % 60, all % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{seconds:02}s"),
        (0, _, _) => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_engine::observe::outcome::Evaluated;

    fn step(number: u64, ms: f64) -> Step {
        let (loss, grad_norm, lr, tokens) = (3.25, 0.5, 1e-3, 500);
        Step { step: number, timed: number > 1, loss, grad_norm, lr, ms, tokens, extra: Default::default() }
    }

    fn trainer(every: u64, last: u64) -> Trainer {
        Trainer { last, ..Trainer::new(every) }
    }

    #[test]
    fn a_line_says_where_the_run_is() {
        let mut trainer = trainer(1, 100);
        assert_eq!(trainer.lifecycle(&LifecycleEvent::Peak(3 << 19)), None);
        assert_eq!(trainer.lifecycle(&LifecycleEvent::Peak(1 << 20)), None, "another rank takes less");
        let wanted = "step    1/100  loss 3.250000  grad_norm 0.5000  lr 1.000e-3  250.0 ms  2000 tokens/s  1.50 MiB  eta 25s  \
                      (untimed)";
        assert_eq!(trainer.step(&step(1, 250.0)).unwrap(), wanted);
        let line = trainer.step(&step(100, 250.0)).unwrap();
        assert!(line.ends_with("1.50 MiB"), "nothing is left at the end: {line}");
        let evaluated = Evaluated { step: 50, loss: 2.5, tokens: 4096, ms: 12.5 };
        let line = trainer.lifecycle(&LifecycleEvent::Evaluated(evaluated)).unwrap();
        assert_eq!(line, "eval   50/100  loss 2.500000  over 4,096 held-out tokens  12.5 ms");
    }

    #[test]
    fn few_lines_hold_the_last_one_back() {
        let mut trainer = trainer(10, 35);
        let shown: Vec<u64> = (1..=35).filter(|number| trainer.step(&step(*number, 1.0)).is_some()).collect();
        assert_eq!(shown, [1, 10, 20, 30, 35]);
        assert!(trainer.step(&step(34, 1.0)).is_none() && trainer.held.is_some());
    }

    /// One slow step among many moves nothing; evaluations and stalls that are left count.
    #[test]
    fn what_is_left_is_told_by_the_median() {
        let mut trainer = trainer(1, 120);
        (1..=19).for_each(|number| drop(trainer.step(&step(number, 100.0))));
        assert_eq!(trainer.left(20), Some(10.0));
        let _ = trainer.step(&step(20, 60_000.0));
        assert_eq!(trainer.left(20), Some(10.0));
        trainer.evaluation = Some(Evaluation { every: 50, batches: 1, share: 0.1 });
        trainer.evaluation_ms = 2000.0;
        // After steps 50, 100 and 120.
        assert_eq!(trainer.left(20), Some(16.0));
        (trainer.saves_every, trainer.stall_ms) = (40, 500.0);
        assert_eq!(trainer.left(20), Some(17.5));
        assert_eq!(trainer.left(120), None);
    }

    #[test]
    fn clocks_read_well() {
        for (seconds, text) in
            [(0.2, "0s"), (59.4, "59s"), (185.0, "3m05s"), (7800.0, "2h10m"), (274_000.0, "3d04h"), (f64::NAN, "0s")]
        {
            assert_eq!(clock(seconds), text);
        }
    }
}
