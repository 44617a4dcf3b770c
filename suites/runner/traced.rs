//! What tracing has cost a run, in its record.

use zbench_engine::observe::trace::{StepTrace, What};
use zbench_reports::record::Record;

/// Sums over what was traced of a run.
#[derive(Clone, Debug, Default)]
pub struct Traced {
    ranks: usize,
    steps: u64,
    step_ns: u64,
    cost_ns: u64,
}

impl Traced {
    pub(super) fn add(&mut self, traced: &StepTrace) {
        if traced.what == What::Step && !traced.broken {
            self.ranks = self.ranks.max(traced.rank + 1);
            self.steps += 1;
            self.step_ns += traced.ns;
            self.cost_ns += traced.cost_ns;
        }
    }

    /// States it, where anything was traced.
    pub(super) fn note(&self, record: &mut Record) {
        if self.steps == 0 {
            return;
        }
        let steps = self.steps as f64;
        let cost = self.cost_ns as f64 / 1e6 / steps;
        let share = self.cost_ns as f64 / self.step_ns as f64;
        let of = self.steps / self.ranks.max(1) as u64;
        let trace = serde_json::json!({
            "steps": of, "recording_ms_per_step": cost, "recording_share": share,
        });
        record.extra.insert("trace".into(), trace);
        record.notes.push(format!(
            "Traced: {of} steps. Writing down what was done took about {cost:.3} ms of a step ({:.2} %), reckoned from what an \
             entry takes; compare speeds with runs that are traced as well.",
            share * 100.0
        ));
    }
}
