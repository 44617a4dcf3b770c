//! What explains the change of a step: time by span, communication, memory, operations.

use indexmap::IndexMap;
use serde::Serialize;

use crate::record::{Category, Communication, Record};
use crate::stats::{self, Interval};

/// What changed between two cells, and how much of the step's change each span accounts for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The mean step: the mean over trials of the mean of all timed steps. `None` where a side has no timed steps.
    pub step: Option<SpanChange>,
    /// Spans, the largest change first; the last is `unexplained`, and together they are the step's change.
    pub spans: Vec<SpanChange>,
    /// B's times were multiplied by this factor since its steps have another number of tokens; `None` if the numbers are equal.
    pub per_tokens_of_a: Option<f64>,
    /// Collectives whose calls, bytes or times changed.
    pub communication: Vec<CommunicationChange>,
    /// Memory categories whose peak changed.
    pub memory: Vec<BytesChange>,
    /// FLOPs of a step that changed, by convention or term.
    pub flops: Vec<FlopsChange>,
}

/// A time of the step in A and in B, ms.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpanChange {
    /// Name of the span.
    pub span: String,
    /// Mean over A's trials.
    pub a_ms: f64,
    /// Mean over B's trials.
    pub b_ms: f64,
    /// The difference.
    pub change_ms: f64,
    /// Lower limit of its 95 % interval (Welch, over trials); `None` with one trial on a side.
    pub low_ms: Option<f64>,
    /// Upper limit.
    pub high_ms: Option<f64>,
    /// Its share of the step's change; `None` where no change of the step is shown.
    pub share: Option<f64>,
}

/// One collective on one axis, per step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CommunicationChange {
    /// Mesh axis.
    pub axis: String,
    /// Collective.
    pub kind: String,
    /// Calls in A and B; 0 where a side has none.
    pub calls: [f64; 2],
    /// Bytes on the wire of the largest rank.
    pub wire_bytes: [f64; 2],
    /// Time inside, ms; null where it is not known.
    pub ms: [Option<f64>; 2],
    /// The exposed part, ms.
    pub exposed_ms: [Option<f64>; 2],
}

/// A memory category's peak.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BytesChange {
    /// Category.
    pub category: &'static str,
    /// In A, bytes.
    pub a_bytes: u64,
    /// In B, bytes.
    pub b_bytes: u64,
}

/// Operations of a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FlopsChange {
    /// Convention, or `ledger: ` and a term.
    pub what: String,
    /// In A.
    pub a: f64,
    /// In B.
    pub b: f64,
}

/// Explains the change from A to B.
pub fn explain(a: &[&Record], b: &[&Record]) -> Explanation {
    let scale = match (tokens_of_step(a), tokens_of_step(b)) {
        (Some(of_a), Some(of_b)) if of_a != of_b => Some(of_a / of_b),
        _ => None,
    };
    let factor = scale.unwrap_or(1.0);
    let step_of = |records: &[&Record], factor: f64| -> Vec<f64> {
        let mean = |record: &&Record| stats::mean(&record.timed_steps().map(|step| step.ms).collect::<Vec<_>>());
        records.iter().filter_map(mean).map(|ms| ms * factor).collect()
    };
    let step = change("step", &step_of(a, 1.0), &step_of(b, factor));
    Explanation {
        spans: spans(a, b, factor, step.as_ref()),
        step,
        per_tokens_of_a: scale,
        communication: communication(a, b),
        memory: memory(a, b),
        flops: flops(a, b),
    }
}

impl SpanChange {
    /// Whether the interval leaves out 0: without an interval nothing is shown.
    pub fn is_shown(&self) -> bool {
        self.low_ms.zip(self.high_ms).is_some_and(|(low, high)| low > 0.0 || high < 0.0)
    }
}

fn tokens_of_step(records: &[&Record]) -> Option<f64> {
    let tokens: Vec<f64> =
        records.iter().flat_map(|record| record.timed_steps()).map(|step| step.tokens as f64).collect();
    stats::mean(&tokens).filter(|mean| *mean > 0.0)
}

fn change(span: &str, a: &[f64], b: &[f64]) -> Option<SpanChange> {
    let (a_ms, b_ms) = (stats::mean(a)?, stats::mean(b)?);
    let interval: Option<Interval> = stats::difference(a, b);
    let change_ms = b_ms - a_ms;
    let (low_ms, high_ms) = (interval.map(|interval| interval.low), interval.map(|interval| interval.high));
    let is_number = a_ms.is_finite() && b_ms.is_finite() && change_ms.is_finite();
    is_number.then(|| SpanChange { span: span.to_string(), a_ms, b_ms, change_ms, low_ms, high_ms, share: None })
}

fn spans(a: &[&Record], b: &[&Record], factor: f64, step: Option<&SpanChange>) -> Vec<SpanChange> {
    let mut names: Vec<&str> = Vec::new();
    for name in a.iter().chain(b).flat_map(|record| record.time.names()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let has_spans = |records: &[&Record]| records.iter().all(|record| !record.time.is_empty());
    if names.is_empty() || !has_spans(a) || !has_spans(b) {
        return Vec::new();
    }
    let values = |records: &[&Record], name: &str, factor: f64| -> Vec<f64> {
        // A span that a trial does not have took no time in it.
        records.iter().map(|record| record.time.number(name).unwrap_or(0.0) * factor).collect()
    };
    let mut spans: Vec<SpanChange> =
        names.iter().filter_map(|name| change(name, &values(a, name, 1.0), &values(b, name, factor))).collect();
    spans.retain(|span| span.a_ms != 0.0 || span.b_ms != 0.0);
    spans.sort_by(|a, b| b.change_ms.abs().total_cmp(&a.change_ms.abs()));
    let Some(step) = step else { return spans };
    let sum = |value: fn(&SpanChange) -> f64| spans.iter().map(value).sum::<f64>();
    // What is left of rounding is nothing.
    let rest = |whole: f64, parts: f64| {
        if (whole - parts).abs() <= 1e-9 * step.a_ms.max(step.b_ms) { 0.0 } else { whole - parts }
    };
    let (a_ms, b_ms) = (rest(step.a_ms, sum(|span| span.a_ms)), rest(step.b_ms, sum(|span| span.b_ms)));
    let change_ms = rest(step.change_ms, sum(|span| span.change_ms));
    let rest = SpanChange { span: UNEXPLAINED.into(), a_ms, b_ms, change_ms, low_ms: None, high_ms: None, share: None };
    spans.push(rest);
    if step.is_shown() || (step.low_ms.is_none() && step.change_ms != 0.0) {
        for span in &mut spans {
            span.share = Some(span.change_ms / step.change_ms).filter(|share| share.is_finite());
        }
    }
    spans
}

/// The row of the time that no span accounts for.
pub const UNEXPLAINED: &str = "unexplained";

/// Collectives by axis and kind, means over the trials.
fn communication(a: &[&Record], b: &[&Record]) -> Vec<CommunicationChange> {
    let mut entries: IndexMap<(&str, &str), [Vec<&Communication>; 2]> = IndexMap::new();
    for (side, records) in [a, b].into_iter().enumerate() {
        for entry in records.iter().flat_map(|record| &record.communication) {
            entries.entry((&entry.axis, &entry.kind)).or_default()[side].push(entry);
        }
    }
    let mut changes = Vec::new();
    for (name, [entries_a, entries_b]) in &entries {
        let finite = |entries: &[&Communication], value: fn(&Communication) -> f64| -> Vec<f64> {
            entries.iter().map(|entry| value(entry)).filter(|value| value.is_finite()).collect()
        };
        let counts = |value: fn(&Communication) -> f64| {
            [entries_a, entries_b].map(|entries| stats::mean(&finite(entries, value)).unwrap_or(0.0))
        };
        let times = |value: fn(&Communication) -> f64| {
            [entries_a, entries_b].map(|entries| stats::mean(&finite(entries, value)))
        };
        let has_changed = |value: fn(&Communication) -> f64| {
            change("", &finite(entries_a, value), &finite(entries_b, value)).is_some_and(|change| change.is_shown())
        };
        let (calls, mut wire_bytes) = (counts(|entry| entry.calls), counts(|entry| entry.wire_bytes));
        for (bytes, records) in wire_bytes.iter_mut().zip([a, b]) {
            // What is planned is not compared with what was measured.
            if records.iter().any(|record| record.wire_is_planned()) {
                *bytes = f64::NAN;
            }
        }
        if calls[0] != calls[1]
            || (wire_bytes[0] - wire_bytes[1]).abs() > 0.0
            || has_changed(|entry| entry.ms)
            || has_changed(|entry| entry.exposed_ms)
        {
            changes.push(CommunicationChange {
                axis: name.0.to_string(),
                kind: name.1.to_string(),
                calls,
                wire_bytes,
                ms: times(|entry| entry.ms),
                exposed_ms: times(|entry| entry.exposed_ms),
            });
        }
    }
    changes
}

fn memory(a: &[&Record], b: &[&Record]) -> Vec<BytesChange> {
    let peak = |records: &[&Record], category: Category| {
        records.iter().filter_map(|record| record.memory.get(category)?.peak_bytes).max()
    };
    let change = |category: Category| {
        let (a_bytes, b_bytes) = (peak(a, category)?, peak(b, category)?);
        (a_bytes != b_bytes).then_some(BytesChange { category: category.name(), a_bytes, b_bytes })
    };
    let mut changes: Vec<BytesChange> = Category::ALL.into_iter().filter_map(change).collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.a_bytes.abs_diff(change.b_bytes)));
    changes
}

fn flops(a: &[&Record], b: &[&Record]) -> Vec<FlopsChange> {
    let stated = |records: &[&Record]| -> Vec<(String, f64)> {
        let Some(record) = records.last() else { return Vec::new() };
        let conventions =
            record.flops.conventions.iter().filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)));
        let terms = record.flops.ledger.iter().map(|term| (format!("ledger: {}", term.term), term.flops));
        conventions.chain(terms).filter(|(_, flops)| flops.is_finite()).collect()
    };
    let (of_a, of_b) = (stated(a), stated(b));
    if of_a.is_empty() || of_b.is_empty() {
        return Vec::new();
    }
    let value =
        |stated: &[(String, f64)], name: &str| stated.iter().find(|(other, _)| other == name).map(|(_, flops)| *flops);
    let only_b = of_b.iter().filter(|(name, _)| value(&of_a, name).is_none());
    let names = of_a.iter().chain(only_b).map(|(name, _)| name);
    let change = |name: &String| FlopsChange {
        what: name.clone(),
        a: value(&of_a, name).unwrap_or(0.0),
        b: value(&of_b, name).unwrap_or(0.0),
    };
    names.map(change).filter(|change| change.a != change.b).collect()
}
