//! Host memory and time of loading weights: the table of cells that load weights.

use crate::document::{Entry, Table};
use crate::gather::grouped;
use crate::grid::{Cell, Grid};
use crate::record::Rank;
use crate::units;
use serde_json::Value;

/// One row for each measured cell and group of ranks: rank 0, which may read for all, and the others of each host.
pub fn table(grid: &Grid) -> Option<Table> {
    let rows: Vec<Row> = grid.measured().flat_map(Row::of).collect();
    let mut table = Table::of("loading", &rows);
    table.words("loading", |row| {
        row.cell.record().setting("model.loading").and_then(Value::as_str).unwrap_or("sliced").to_string()
    });
    table.words("ranks", Row::numbers);
    table.memory("before", |row| Some(row.most.before));
    table.memory("consumed", |row| Some(row.most.consumed));
    table.memory("peak", |row| Some(row.most.peak));
    table.memory("total peak", |row| Some(row.most.total_peak));
    table.memory("host", |row| Some(row.host));
    table.memory("read", |row| Some(row.read()));
    table.memory("received", |row| Some(row.received()));
    table.numbers("seconds", "s", |row| Entry::number(row.seconds(), units::number(row.seconds())));
    let rate = |row: &Row| (row.seconds() > 0.0).then(|| (row.read() + row.received()) as f64 / row.seconds() / 1e9);
    table.numbers("GB/s", "GB/s", |row| Entry::maybe(rate(row), units::number));
    table.words("counted by", |row| row.most.source);
    table.words("cell", |row| &row.cell.label);
    table
        .build()
        .caption(
            "Host memory around the loading of weights, of the rank of the group that needed most: before it began, how much more \
             when it had ended (consumed) and at its most in between (peak), and all of it then (total peak); host is the sum of \
             total peaks over the ranks of the group's host. Counted by process: resident memory, shared memory that the rank has \
             touched included; by account, where ranks are threads of one process: what the loader holds beside the weights at \
             home that it has filled, of which there is none before. Bytes read and received are the group's together, seconds \
             its slowest rank's, and GB/s the one over the other.",
        )
        .non_empty()
}

/// The loading of one rank.
#[derive(Clone, Copy)]
struct Loading<'r> {
    rank: u64,
    host: &'r str,
    before: u64,
    consumed: u64,
    peak: u64,
    total_peak: u64,
    read: u64,
    received: u64,
    ms: f64,
    source: &'r str,
}

impl<'r> Loading<'r> {
    fn of(rank: &'r Rank) -> Option<Loading<'r>> {
        let loading = rank.extra.get("loading").filter(|loading| loading.is_object())?;
        let bytes = |key: &str| loading.get(key).and_then(Value::as_u64);
        Some(Loading {
            rank: rank.rank,
            host: &rank.host,
            before: bytes("before_bytes")?,
            consumed: bytes("consumed_bytes")?,
            peak: bytes("peak_bytes")?,
            total_peak: bytes("total_peak_bytes")?,
            read: bytes("read_bytes")?,
            received: bytes("received_bytes").unwrap_or(0),
            ms: loading.get("ms").and_then(Value::as_f64)?,
            source: loading.get("source").and_then(Value::as_str)?,
        })
    }
}

/// The loading of a group of ranks: rank 0 alone, or the others of a host.
struct Row<'r> {
    cell: &'r Cell<'r>,
    group: Vec<Loading<'r>>,
    /// The rank with the highest peak.
    most: Loading<'r>,
    /// Sum of the total peaks of all ranks on the host.
    host: u64,
}

impl<'r> Row<'r> {
    fn of(cell: &'r Cell<'r>) -> Vec<Row<'r>> {
        let ranks: Vec<Loading> = cell.record().ranks.iter().filter_map(Loading::of).collect();
        let groups = grouped(ranks.iter().map(|rank| ((rank.rank == 0, rank.host), *rank)));
        let row = |((_, host), group): ((bool, &str), Vec<Loading<'r>>)| {
            let host = ranks.iter().filter(|rank| rank.host == host).map(|rank| rank.total_peak).sum();
            Some(Row { cell, most: *group.iter().max_by_key(|rank| rank.peak)?, group, host })
        };
        groups.into_iter().filter_map(row).collect()
    }

    /// The numbers of its ranks: `0`, `1 to 3` or `1, 3, 5`.
    fn numbers(&self) -> String {
        let (first, last) = (self.group[0].rank, self.group[self.group.len() - 1].rank);
        let is_run = self.group.iter().zip(first..).all(|(rank, number)| rank.rank == number);
        match self.group.len() {
            1 => first.to_string(),
            _ if is_run => format!("{first} to {last}"),
            _ => self.group.iter().map(|rank| rank.rank.to_string()).collect::<Vec<_>>().join(", "),
        }
    }

    fn read(&self) -> u64 {
        self.group.iter().map(|rank| rank.read).sum()
    }

    fn received(&self) -> u64 {
        self.group.iter().map(|rank| rank.received).sum()
    }

    fn seconds(&self) -> f64 {
        self.group.iter().map(|rank| rank.ms).fold(0.0, f64::max) / 1e3
    }
}
