//! What happened between the steps of a run, in its record.

use crate::protocol::{LifecycleEvent, Resumed};
use zbench_engine::observe::outcome::{Evaluated, Saved};
use zbench_reports::record::{Record, Step};
use zbench_reports::units;

/// Adds it to a record that has the steps of this run: those of the run that it went on from go before them.
pub fn add(record: &mut Record, events: Vec<LifecycleEvent>) {
    let mut evaluations: Vec<Evaluated> = Vec::new();
    let mut checkpoints: Vec<Saved> = Vec::new();
    for happened in events {
        match happened {
            LifecycleEvent::Evaluated(evaluated) => evaluations.push(evaluated),
            LifecycleEvent::Saved(saved) => checkpoints.push(saved),
            LifecycleEvent::Resumed(from) => {
                evaluations.splice(0..0, from.evaluations.iter().copied());
                resumed(record, from);
            }
            LifecycleEvent::Peak(_) => {}
        }
    }
    evaluated(record, &evaluations);
    if !checkpoints.is_empty() {
        record.extra.insert("checkpoints".into(), serde_json::to_value(checkpoints).unwrap_or_default());
    }
}

fn resumed(record: &mut Record, from: Resumed) {
    let Resumed { step, dir, bytes, ms, steps, changed, .. } = from;
    let text = dir.display();
    record.extra.insert(
        "resumed".into(),
        serde_json::json!({ "step": step, "dir": dir, "bytes": bytes, "ms": ms, "steps": steps.len(), "changed": changed }),
    );
    let mut note = format!("Continued from step {step}, from the checkpoint {text}.");
    if !steps.is_empty() {
        let count = units::plural(steps.len(), "step", "steps");
        note += &format!(" The {count} before are listed as the checkpoint has them, and do not count for timings.");
    }
    if !changed.is_empty() {
        note += &format!(" Until then settings were others: {}.", units::list(&changed));
    }
    record.notes.push(note);
    let before: Vec<Step> = steps.into_iter().map(|step| Step { timed: false, ..step }).collect();
    if let Some(first) = before.first() {
        // The metric is of the run, not of the part that this process has seen.
        record.state("loss_first", first.loss);
    }
    record.steps.splice(0..0, before);
}

/// The evaluations, and their last and best loss.
fn evaluated(record: &mut Record, evaluations: &[Evaluated]) {
    let Some(last) = evaluations.last() else { return };
    let best = evaluations.iter().map(|evaluated| evaluated.loss).fold(f64::INFINITY, f64::min);
    record.state("eval_loss_last", last.loss);
    record.state("eval_loss_best", best);
    record.extra.insert("evaluations".into(), serde_json::to_value(evaluations).unwrap_or_default());
}
