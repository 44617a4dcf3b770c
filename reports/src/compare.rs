//! Two sets of records side by side: what differs, by how much and how surely, and what explains it.
//!
//! [`compare`] is a pure function of the records of two [`Side`]s. It gathers their valid trials into cells, pairs
//! the cells ([`pairing`]), and makes of each pair a [`Pair`]: numbers that can be written as JSON, and that
//! [`document`] turns into words and tables. Every claim follows from an interval; see docs/compare.md.

mod cells;
pub mod document;
mod explain;
pub mod measured;
mod metric;
mod metrics;
mod pairing;
mod screen;
mod tables;
mod trials;
mod words;

use std::collections::HashSet;

use serde::Serialize;

use crate::document::Entry;
use crate::environment::{self, Aspect, Difference, differences_of_sets};
use crate::record::Record;
use crate::turns_analysis::TurnsAnalysis;
use crate::units;
use cells::Cell;
use pairing::Found;

pub use explain::{BytesChange, CommunicationChange, Explanation, FlopsChange, SpanChange};
pub use metric::{Better, Metric, Verdict};
pub use metrics::Losses;
pub use pairing::{PairedBy, Unpaired};
pub use screen::short;
pub use trials::WarmUp;

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Side<'a> {
    /// Its selector, as the user typed it.
    pub selector: String,
    /// The records that the selector selects.
    pub records: Vec<&'a Record>,
}

/// What is compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Use trials with validity flags too.
    pub include_flagged: bool,
    /// Keep the steps of warm-up that were found among the timed ones.
    pub all_steps: bool,
}

/// Everything that can be said about two sides.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The first side, in numbers.
    pub a: Summary,
    /// The second side.
    pub b: Summary,
    /// The options of the comparison.
    pub options: Options,
    /// Differences between the environments of all used trials, hardware first.
    pub environment: Vec<Difference>,
    /// Settings that differ in every pair by the same values.
    pub configuration: Vec<Difference>,
    /// The pairs, in the order of A's cells.
    pub pairs: Vec<Pair>,
    /// Cells without a partner, or without a valid trial.
    pub unpaired: Vec<Unpaired>,
    /// How many records are on both sides.
    pub on_both_sides: usize,
}

/// How many of a side's records are used.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Its selector.
    pub selector: String,
    /// How many records there are.
    pub records: usize,
    /// How many cells.
    pub cells: usize,
    /// How many trials are used.
    pub used: usize,
    /// Trials that are not used, with the reason.
    pub left_out: Vec<LeftOut>,
}

/// A record that is not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Its id.
    pub record: String,
    /// Why.
    pub reason: String,
}

/// One side of a pair.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PairSide {
    /// The selector of the side.
    pub selector: String,
    /// The cell's key.
    pub key: String,
    /// The cell's name among the cells of its side.
    pub label: String,
    /// Ids of the trials that are used.
    pub records: Vec<String>,
    /// Trials that are not used.
    pub left_out: Vec<LeftOut>,
}

/// Two cells beside each other. Written as JSON, this is a line of `compare --format json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair {
    /// Always `pair`.
    pub kind: &'static str,
    /// The name of the pair: the settings in which it differs from the other pairs.
    pub pair: String,
    /// How the two cells were paired.
    pub paired_by: PairedBy,
    /// The first.
    pub a: PairSide,
    /// The second.
    pub b: PairSide,
    /// Differences of their environments.
    pub environment: Vec<Difference>,
    /// Differences of their settings.
    pub configuration: Vec<Difference>,
    /// The metrics.
    pub metrics: Vec<Metric>,
    /// The comparison of their losses.
    pub losses: Losses,
    /// Where the change of the step comes from.
    pub explanation: Explanation,
    /// Warm-up found in the steps of each trial, and the steps that were discarded.
    pub warm_up: Vec<WarmUp>,
    /// Tokens per second with all steps kept, where some were discarded.
    pub tokens_per_second_of_all_steps: Option<Metric>,
    /// Remarks that a reader must know.
    pub notes: Vec<String>,
}

impl Pair {
    /// The metric of that name.
    pub fn metric(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    /// The metric by which many pairs are compared: tokens per second, or the main one of the suite.
    pub fn main_metric(&self) -> Option<&Metric> {
        metrics::main_metric(&self.metrics)
    }

    /// How much the main metric changes either way, as a logarithm; 0 where there is no ratio.
    fn speed_change(&self) -> f64 {
        let ratio = self.main_metric().and_then(|speed| speed.ratio);
        ratio.filter(|ratio| *ratio > 0.0).map_or(0.0, |ratio| ratio.ln().abs())
    }
}

/// The unit of the main metrics; empty where the pairs have several, or none.
fn main_unit(pairs: &[Pair]) -> &'static str {
    let mut units = pairs.iter().filter_map(Pair::main_metric).map(|metric| metric.unit);
    let first = units.next().unwrap_or_default();
    if units.all(|unit| unit == first) { first } else { "" }
}

/// A value of a main metric in a column of this unit.
fn main_value(metric: Option<&Metric>, of: fn(&Metric) -> Option<f64>, unit: &str) -> Entry {
    let Some(metric) = metric else { return Entry::nothing() };
    Entry::maybe(of(metric), |value| if unit.is_empty() { metric.with_unit(value) } else { units::number(value) })
}

/// Compares B with A.
pub fn compare(a: &Side, b: &Side, options: Options) -> Comparison {
    let (cells_a, cells_b) = (cells::gather(&a.records, options), cells::gather(&b.records, options));
    let pairing = pairing::pair(&cells_a, &cells_b);
    let all = [used(&cells_a), used(&cells_b)].concat();
    let turned = TurnsAnalysis::new(&all, |_| true, |_| 0);
    let pairs = on_all_cores(&pairing.pairs, |found| pair(a, b, found, options, turned.as_ref()));
    let ids: HashSet<&str> = a.records.iter().map(|record| record.id.as_str()).collect();
    Comparison {
        a: summary(a, &cells_a),
        b: summary(b, &cells_b),
        options,
        environment: differences_of_sets(&used(&cells_a), &used(&cells_b)),
        configuration: in_every_pair(&pairs),
        unpaired: pairing.unpaired,
        pairs,
        on_both_sides: b.records.iter().filter(|record| ids.contains(record.id.as_str())).count(),
    }
}

/// Calls `of` on each item, on all cores, since a comparison may have thousands of intervals. The results are in order.
fn on_all_cores<T: Sync, R: Send>(items: &[T], of: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let share = items.len().div_ceil(cores).max(FEWEST_FOR_A_CORE);
    if items.len() <= share {
        return items.iter().map(of).collect();
    }
    let of = &of;
    in_parts(items, share, |part| part.iter().map(of).collect())
}

/// Calls `of` on parts of so many items, each on a thread of its own; a part for which no thread starts runs here. The results are
/// in order.
pub(crate) fn in_parts<T: Sync, R: Send>(items: &[T], share: usize, of: impl Fn(&[T]) -> Vec<R> + Sync) -> Vec<R> {
    let of = &of;
    std::thread::scope(|scope| {
        let start = |part| (part, std::thread::Builder::new().spawn_scoped(scope, move || of(part)));
        let parts: Vec<_> = items.chunks(share).map(start).collect();
        let whole = |(part, thread): (_, std::io::Result<std::thread::ScopedJoinHandle<Vec<R>>>)| match thread {
            // A panic in a worker is one of this function.
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => of(part),
        };
        parts.into_iter().flat_map(whole).collect()
    })
}

/// Fewer pairs are not worth a thread.
const FEWEST_FOR_A_CORE: usize = 64;

fn used<'a>(cells: &[Cell<'a>]) -> Vec<&'a Record> {
    cells.iter().flat_map(|cell| cell.used.iter().copied()).collect()
}

fn summary(side: &Side, cells: &[Cell]) -> Summary {
    Summary {
        selector: side.selector.clone(),
        records: side.records.len(),
        cells: cells.len(),
        used: used(cells).len(),
        left_out: cells.iter().flat_map(|cell| cell.left_out.iter().cloned()).collect(),
    }
}

fn pair(a: &Side, b: &Side, found: &Found, options: Options, turned: Option<&TurnsAnalysis>) -> Pair {
    let side = |side: &Side, cell: &Cell| PairSide {
        selector: side.selector.clone(),
        key: cell.key.to_string(),
        label: cell.label.clone(),
        records: cell.used.iter().map(|record| record.id.clone()).collect(),
        left_out: cell.left_out.clone(),
    };
    let (trials_a, trials_b) = (trials::of(&found.a.used, options), trials::of(&found.b.used, options));
    let losses = metrics::losses(&found.a.used, &found.b.used);
    let mut metrics = metrics::all(&trials_a, &trials_b, &losses);
    if let Some(turned) = turned.filter(|_| found.a.key != found.b.key) {
        metrics::by_turns(&mut metrics, turned, found.a.key, found.b.key);
    }
    let discards = trials_a.iter().chain(&trials_b).any(|trial| trial.discarded() > 0);
    Pair {
        kind: "pair",
        pair: found.label.clone(),
        paired_by: found.by,
        a: side(a, found.a),
        b: side(b, found.b),
        environment: differences_of_sets(&found.a.used, &found.b.used),
        configuration: settings(found.a, found.b),
        explanation: explain::explain(&found.a.used, &found.b.used),
        warm_up: trials::warm_up(&trials_a, "a").chain(trials::warm_up(&trials_b, "b")).collect(),
        tokens_per_second_of_all_steps: discards
            .then(|| metrics::speed_of_all_steps(&found.a.used, &found.b.used, &losses)),
        notes: notes(found, &metrics),
        metrics,
        losses,
    }
}

/// What a reader must know about a pair before using its numbers.
fn notes(found: &Found, metrics: &[Metric]) -> Vec<String> {
    let mut notes = Vec::new();
    let flags = |cell: &Cell| -> Vec<String> {
        let flagged = cell.used.iter().filter(|record| record.excluding_flags().next().is_some());
        let mut flags: Vec<String> = flagged.flat_map(|record| record.excluding_flags().map(str::to_string)).collect();
        flags.sort_unstable();
        flags.dedup();
        flags
    };
    for (name, cell) in [("A", found.a), ("B", found.b)] {
        let flags = flags(cell);
        if !flags.is_empty() {
            notes.push(format!("Flagged trials of {name} are used, as asked: {}.", units::list(&flags)));
        }
    }
    if found.a.used.iter().any(|record| found.b.used.iter().any(|other| other.id == record.id)) {
        notes.push("A record stands on both sides: in so far it is compared with itself.".into());
    }
    if found.by == PairedBy::Configuration && found.a.key != found.b.key && settings(found.a, found.b).is_empty() {
        notes.push("The settings are equal and the keys are not: a file that they name has changed.".into());
    }
    if metrics.iter().any(|metric| metric.verdict == Verdict::TooFewTrials) {
        notes.push(
            "With one trial on a side nothing says how runs differ: values stand side by side without an interval."
                .into(),
        );
    }
    notes
}

/// Differences of two cells' settings.
fn settings(a: &Cell, b: &Cell) -> Vec<Difference> {
    if a.settings() == b.settings() {
        return Vec::new();
    }
    let map = |cell: &Cell| cell.settings().as_object().cloned().unwrap_or_default();
    let found = environment::differences(&map(a), &map(b)).into_iter();
    found.map(|found| Difference { aspect: Aspect::Setting, ..found }).collect()
}

/// The differences of the first pair that all others share.
fn in_every_pair(pairs: &[Pair]) -> Vec<Difference> {
    let Some((first, rest)) = pairs.split_first() else { return Vec::new() };
    let shared = |found: &&Difference| rest.iter().all(|pair| pair.configuration.contains(found));
    first.configuration.iter().filter(shared).cloned().collect()
}
