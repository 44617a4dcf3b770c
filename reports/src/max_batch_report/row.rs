//! One search of a grid: what its records or its estimate say about the largest value.

use std::collections::HashSet;

use crate::estimate::EstimateRow;
use crate::gather::{distinct, grouped};
use crate::grid::Grid;
use crate::label::{self, STRATEGY, last_part};
use crate::max_batch::{Next, Of, Role, Search};
use crate::record::{Record, Status};
use crate::stats::Interval;

/// The largest value of one combination, and the evidence for it.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// Its label, by the keys in which the searches of the grid differ.
    pub label: String,
    /// The search; its value is the largest that ran, if any did.
    pub search: Search,
    /// Measured peak of a rank at the value.
    pub measured: Option<u64>,
    /// Measured tokens per second.
    pub speed: Option<Interval>,
    /// Predicted tokens per second.
    pub predicted_speed: Option<f64>,
    /// How the cell of the value ended, or what is planned for it.
    pub status: String,
    /// A larger value that fits by its plan and did not when it was run, with the reason.
    pub refuted_plan: Option<(u64, String)>,
    /// The record of the limit.
    pub record: Option<String>,
}

impl Row {
    /// The value of an axis.
    pub fn axis(&self, path: &str) -> Option<&str> {
        self.search.axes.get(path).map(String::as_str)
    }

    /// The next value, if it ended with this status.
    pub fn next_with(&self, status: Status) -> Option<&Next> {
        self.search.next.as_ref().filter(|next| next.outcome.as_deref() == Some(status.name()))
    }

    /// Whether the searched range is the limit, and not memory.
    pub fn is_open(&self) -> bool {
        self.search.value.is_some() && self.search.next.is_none()
    }

    /// Whether memory might hold more: the range ends, or the next value is no configuration.
    pub fn is_at_least(&self) -> bool {
        self.is_open() || (self.search.value.is_some() && self.next_with(Status::Skipped).is_some())
    }

    /// Whether another search differs in the strategy alone.
    fn is_alike(&self, other: &Row) -> bool {
        let covers = |a: &Row, b: &Row| {
            a.search.axes.iter().all(|(path, value)| path == STRATEGY || b.axis(path) == Some(value.as_str()))
        };
        self.search.key == other.search.key && covers(self, other) && covers(other, self)
    }

    /// The search of ddp that differs in the strategy alone.
    pub fn reference<'r>(&self, rows: &'r [Row]) -> Option<&'r Row> {
        rows.iter().find(|other| other.axis(STRATEGY) == Some("ddp") && self.is_alike(other))
    }
}

/// The records that only show that a next value does not fit, where the record of their limit is there as well: they are reported
/// with it and nowhere else.
pub(crate) fn is_shown_apart<'r>(records: &[&'r Record]) -> HashSet<&'r str> {
    let searches: Vec<(&Record, Search)> =
        records.iter().filter_map(|record| Some((*record, Search::of(record)?))).collect();
    let limits: HashSet<&str> = searches
        .iter()
        .filter(|(_, search)| search.role == Role::Limit)
        .map(|(_, search)| search.combination.as_str())
        .collect();
    let is_next = |search: &Search| search.role == Role::Next && limits.contains(search.combination.as_str());
    searches.iter().filter(|(_, search)| is_next(search)).map(|(record, _)| record.id.as_str()).collect()
}

/// The searches of records in the order in which they first occur.
pub(crate) fn rows(records: &[&Record], grid: &Grid) -> Vec<Row> {
    let searches = records.iter().filter_map(|record| Some((*record, Search::of(record)?)));
    // The same combination searched up to another value is another question.
    let name = |search: &Search| (search.combination.clone(), search.multiple, search.key.clone());
    let searches = grouped(searches.map(|(record, search)| (name(&search), (record, search))));
    let mut rows: Vec<Row> = searches.iter().filter_map(|(_, records)| row(records, grid)).collect();
    set_labels(&mut rows);
    rows
}

fn row(records: &[(&Record, Search)], grid: &Grid) -> Option<Row> {
    let is_limit = |(_, search): &&(&Record, Search)| search.role == Role::Limit;
    let limits = || records.iter().filter(is_limit);
    let value = |search: &Search| search.value.unwrap_or(0);
    // The largest that ran; where nothing did, what was planned last.
    let ran = limits().filter(|(record, _)| record.is_measured()).max_by_key(|(_, search)| value(search));
    let (record, search) = ran.or_else(|| limits().next_back())?;
    let mut search = search.clone();
    let above = |(_, other): &&(&Record, Search)| value(other) > value(&search);
    let is_refused = |(record, _): &&(&Record, Search)| record.outcome.status == Status::OutOfMemory;
    let refuted = ran.and_then(|_| limits().filter(is_refused).filter(above).min_by_key(|(_, other)| value(other)));
    let refuted_plan = refuted.map(|(record, other)| (value(other), record.outcome.reason.clone()));
    if let Some((value, reason)) = &refuted_plan {
        search.of = Of::Run;
        search.next = Some(Next {
            value: *value,
            bytes: refuted.and_then(|(_, other)| other.bytes),
            outcome: Some(Status::OutOfMemory.name().into()),
            reason: reason.clone(),
        });
    }
    // The record of the next value says what became of it.
    let tried = search.next.as_ref().and_then(|next| {
        let is_it = |(_, other): &&(&Record, Search)| other.role == Role::Next && other.value == Some(next.value);
        records.iter().rev().find(is_it)
    });
    if let (Some(next), Some((record, _))) = (&mut search.next, tried) {
        next.outcome = Some(record.outcome.status.name().into());
        next.reason.clone_from(&record.outcome.reason);
    }
    if search.value.is_some() && ran.is_none() && record.outcome.status == Status::OutOfMemory {
        // Whatever was run did not fit, down to this.
        search.next = search.value.map(|value| Next {
            value,
            bytes: search.bytes,
            outcome: Some(Status::OutOfMemory.name().into()),
            reason: record.outcome.reason.clone(),
        });
        (search.value, search.reason) = (None, record.outcome.reason.clone());
    }
    let cell = grid.cells.iter().find(|cell| cell.key == record.key).filter(|_| ran.is_some());
    let estimate: Option<EstimateRow> = serde_json::from_value(record.estimate.clone()).ok();
    Some(Row {
        measured: cell.and_then(|cell| cell.peak_bytes()),
        speed: cell.and_then(|cell| cell.speed),
        predicted_speed: estimate.and_then(|estimate| estimate.tokens_per_second),
        status: record.outcome.status.words().into(),
        refuted_plan,
        record: Some(record.id.clone()),
        search,
        label: String::new(),
    })
}

/// The searches of estimates, in their order.
pub(super) fn rows_of_estimates(estimates: &[EstimateRow]) -> Vec<Row> {
    let row = |estimate: &EstimateRow| {
        Some(Row {
            search: estimate.search.clone()?,
            predicted_speed: estimate.tokens_per_second,
            status: estimate.status.clone(),
            ..Row::default()
        })
    };
    let mut rows: Vec<Row> = estimates.iter().filter_map(row).collect();
    set_labels(&mut rows);
    rows
}

/// Labels each row by the strategy and the keys in which the rows differ.
fn set_labels(rows: &mut [Row]) {
    let paths = distinct(rows.iter().flat_map(|row| row.search.axes.names()).map(str::to_string));
    let differs = |path: &str| rows.windows(2).any(|pair| pair[0].axis(path) != pair[1].axis(path));
    let is_shared = |path: &str| paths.iter().filter(|other| last_part(other) == last_part(path)).count() > 1;
    let named = |path: &&String| *path != STRATEGY && differs(path);
    let names: Vec<(&str, &str)> =
        paths.iter().filter(named).map(|path| (path.as_str(), label::name(path, is_shared(path)))).collect();
    for row in rows {
        let own = names.iter().filter_map(|(path, name)| Some(format!("{name}={}", row.axis(path)?)));
        let parts: Vec<String> = row.axis(STRATEGY).map(str::to_string).into_iter().chain(own).collect();
        row.label = parts.join(", ");
    }
}
