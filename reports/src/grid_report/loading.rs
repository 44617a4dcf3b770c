//! What loading the weights took of host memory and time: the table of cells that load weights.

use crate::document::{Column, Entry, Table};
use crate::grid::{Cell, Grid};
use crate::record::Rank;
use crate::units;
use serde_json::Value;

/// One row for each measured cell and group of ranks: rank 0, which may read for all, and the others of each host.
pub fn table(grid: &Grid) -> Option<Table> {
    let columns = vec![
        Column::words("loading"),
        Column::words("ranks"),
        Column::numbers("before", "bytes"),
        Column::numbers("consumed", "bytes"),
        Column::numbers("peak", "bytes"),
        Column::numbers("total peak", "bytes"),
        Column::numbers("host", "bytes"),
        Column::numbers("read", "bytes"),
        Column::numbers("received", "bytes"),
        Column::numbers("seconds", "s"),
        Column::numbers("GB/s", "GB/s"),
        Column::words("counted by"),
        Column::words("cell"),
    ];
    let mut table = Table::new("loading", columns).caption(
        "Host memory around the loading of weights, of the rank of the group that needed most: before it began, how much more \
         when it had ended (consumed) and at its most in between (peak), and all of it then (total peak); host is the sum of \
         total peaks over the ranks of the group's host. Counted by process: resident memory, shared memory that the rank has \
         touched included; by account, where ranks are threads of one process: what the loader holds beside the weights at \
         home that it has filled, of which there is none before. Bytes read and received are the group's together, seconds \
         its slowest rank's, and GB/s the one over the other.",
    );
    for cell in grid.measured() {
        let ranks: Vec<Loading> = cell.record().ranks.iter().filter_map(Loading::of).collect();
        for (words, group) in groups(&ranks) {
            let host = ranks.iter().filter(|rank| rank.host == group[0].host).map(|rank| rank.total_peak).sum();
            table.row(row(cell, words, &group, host));
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// What a rank says of its loading.
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

/// Rank 0 by itself, then the others by host, each with the numbers of its ranks in words.
fn groups<'g, 'r>(ranks: &'g [Loading<'r>]) -> Vec<(String, Vec<&'g Loading<'r>>)> {
    let mut groups: Vec<Vec<&Loading>> = Vec::new();
    for rank in ranks {
        let fits = |group: &&mut Vec<&Loading>| group[0].rank != 0 && rank.rank != 0 && group[0].host == rank.host;
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(rank),
            None => groups.push(vec![rank]),
        }
    }
    groups.into_iter().map(|group| (numbers(&group), group)).collect()
}

/// `0`, `1 to 3`, `1, 3, 5`.
fn numbers(group: &[&Loading]) -> String {
    let (first, last) = (group[0].rank, group[group.len() - 1].rank);
    let is_run = group.iter().zip(first..).all(|(rank, number)| rank.rank == number);
    match group.len() {
        1 => first.to_string(),
        _ if is_run => format!("{first} to {last}"),
        _ => group.iter().map(|rank| rank.rank.to_string()).collect::<Vec<_>>().join(", "),
    }
}

fn row(cell: &Cell, words: String, group: &[&Loading], host: u64) -> Vec<Entry> {
    let way = cell.record().setting("model.loading").and_then(Value::as_str).unwrap_or("sliced");
    let Some(most) = group.iter().max_by_key(|rank| rank.peak) else { return Vec::new() };
    let (read, received) = (group.iter().map(|r| r.read).sum::<u64>(), group.iter().map(|r| r.received).sum::<u64>());
    let seconds = group.iter().map(|rank| rank.ms).fold(0.0, f64::max) / 1e3;
    let rate = (seconds > 0.0).then(|| (read + received) as f64 / seconds / 1e9);
    vec![
        Entry::words(way),
        Entry::words(words),
        Entry::memory(Some(most.before)),
        Entry::memory(Some(most.consumed)),
        Entry::memory(Some(most.peak)),
        Entry::memory(Some(most.total_peak)),
        Entry::memory(Some(host)),
        Entry::memory(Some(read)),
        Entry::memory(Some(received)),
        Entry::number(seconds, units::number(seconds)),
        Entry::maybe(rate, units::number),
        Entry::words(most.source),
        Entry::words(&cell.label),
    ]
}
