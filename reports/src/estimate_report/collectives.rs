//! Predicted collectives, for `plan` of a file whose suite measures them.

use crate::document::{Document, Entry, Table};
use crate::screen::{Room, Screen, fitting};
use crate::units;
use serde::{Deserialize, Serialize};

/// The predicted time of a collective.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CollectiveRow {
    /// Which.
    pub collective: String,
    /// `auto`: the faster of ring and tree; `ring`.
    pub algorithm: String,
    /// Ranks.
    pub ranks: u64,
    /// Nodes that they are on.
    pub nodes: u64,
    /// Bytes, as nccl-tests counts them.
    pub bytes: u64,
    /// Microseconds.
    pub microseconds: f64,
    /// Bytes over time, bytes per second.
    pub algorithm_bandwidth: f64,
    /// That times nccl-tests' factor, bytes per second.
    pub bus_bandwidth: f64,
    /// Ends of the band around the bus bandwidth in which published results lie.
    #[serde(default)]
    pub bus_bandwidth_band: Option<[f64; 2]>,
    /// Where the band comes from.
    #[serde(default)]
    pub band_source: String,
    /// Sentence that names what no published bandwidth has of the row; empty if nothing is missing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub not_compared: String,
    /// The machine's profile.
    pub machine: String,
}

impl CollectiveRow {
    /// Whether another row is of the same collective and ranks, so that they differ in size alone.
    fn is_like(&self, other: &CollectiveRow) -> bool {
        let of = |row: &CollectiveRow| {
            (row.collective.clone(), row.algorithm.clone(), row.ranks, row.nodes, row.machine.clone())
        };
        of(self) == of(other)
    }

    fn size(&self) -> String {
        units::exact_bytes(self.bytes as f64)
    }

    fn time(&self) -> String {
        units::duration(self.microseconds / 1e6)
    }

    fn bus(&self) -> String {
        units::traffic(self.bus_bandwidth) + "/s"
    }
}

/// The document of predicted collectives: a screen for this room, then every size.
pub fn collectives(rows: &[CollectiveRow], room: Room) -> Document {
    let mut document = Document::new("Predicted collectives");
    let groups: Vec<&[CollectiveRow]> = rows.chunk_by(CollectiveRow::is_like).collect();
    document.screen = Some(screen(&groups, room));
    document.table(sizes(rows));
    document
}

fn screen(groups: &[&[CollectiveRow]], room: Room) -> Screen {
    let most = if let [one] = groups { one.len() } else { groups.len() };
    fitting(room, most, 1, |shown| {
        let mut screen = Screen::default();
        screen.said("ANSWER", answer(groups), 3);
        match groups {
            [one] => screen.table(sizes(&one[..shown])),
            _ => screen.table(ends(&groups[..shown])),
        }
        let all = groups.iter().map(|group| group.len()).sum();
        let next = format!(
            "--full has {}. Predicted, not measured: `zbench grid FILE` without hardware.profile measures this machine.",
            units::plural(all, "size", "sizes")
        );
        screen.said("NEXT", next, 2);
        screen
    })
}

/// The group of the highest bus bandwidth, and what it takes.
fn answer(groups: &[&[CollectiveRow]]) -> String {
    let highest = |group: &&&[CollectiveRow]| group.iter().map(|row| row.bus_bandwidth).fold(0.0, f64::max);
    let Some(group) = groups.iter().max_by(|a, b| highest(a).total_cmp(&highest(b))) else { return String::new() };
    let most = group.iter().max_by(|a, b| a.bus_bandwidth.total_cmp(&b.bus_bandwidth));
    let (Some(least), Some(most)) = (group.first(), most) else {
        return String::new();
    };
    let fastest = match groups.len() {
        1 => "reaches".to_string(),
        count => format!("is the fastest of {count} collectives:"),
    };
    let rows = || groups.iter().copied().flatten();
    let like = match rows().filter(|row| !row.not_compared.is_empty()).count() {
        0 => String::new(),
        unlike if unlike == rows().count() => "Like no published result: ".into(),
        unlike => format!("{unlike} of {} sizes are like no published result. ", rows().count()),
    };
    format!(
        "{like}{} of {} on {} {fastest} {} of bus bandwidth at {}, and {} for {}.",
        most.collective,
        units::plural(most.ranks as usize, "rank", "ranks"),
        most.machine,
        most.bus(),
        most.size(),
        least.time(),
        least.size()
    )
}

/// A row per group: its smallest and its largest size.
fn ends(groups: &[&[CollectiveRow]]) -> Table {
    let ends: Vec<(&CollectiveRow, &CollectiveRow)> =
        groups.iter().filter_map(|group| Some((group.first()?, group.last()?))).collect();
    let mut table = Table::of("ends", &ends);
    table.words("collective", |(row, _)| &row.collective);
    table.words("algorithm", |(row, _)| &row.algorithm);
    table.numbers("ranks", "ranks", |(row, _)| row.ranks);
    table.numbers("nodes", "nodes", |(row, _)| row.nodes);
    table.words("machine", |(row, _)| &row.machine);
    table.words("smallest", |(row, _)| row.size());
    table.numbers("time", "us", |(row, _)| Entry::number(row.microseconds, row.time()));
    table.words("largest", |(_, row)| row.size());
    table.numbers("its time", "us", |(_, row)| Entry::number(row.microseconds, row.time()));
    table.numbers("busbw", "bytes/s", |(_, row)| Entry::number(row.bus_bandwidth, row.bus()));
    table.build()
}

fn sizes(rows: &[CollectiveRow]) -> Table {
    let mut table = Table::of("collectives", rows);
    table.words("collective", |row| &row.collective);
    table.words("algorithm", |row| &row.algorithm);
    table.numbers("ranks", "ranks", |row| row.ranks);
    table.numbers("nodes", "nodes", |row| row.nodes);
    table.numbers("size", "bytes", |row| Entry::number(row.bytes as f64, row.size()));
    table.numbers("time", "us", |row| Entry::number(row.microseconds, row.time()));
    table.numbers("algbw", "bytes/s", |row| {
        Entry::number(row.algorithm_bandwidth, units::traffic(row.algorithm_bandwidth) + "/s")
    });
    table.numbers("busbw", "bytes/s", |row| Entry::number(row.bus_bandwidth, row.bus()));
    if rows.iter().any(|row| row.bus_bandwidth_band.is_some()) {
        table.words("80 % band", |row| {
            row.bus_bandwidth_band
                .map_or(String::new(), |[low, high]| format!("{}/s to {}/s", units::traffic(low), units::traffic(high)))
        });
    }
    table.words("machine", |row| &row.machine);
    let source = rows.iter().map(|row| row.band_source.as_str()).find(|source| !source.is_empty());
    let source = source.map_or(String::new(), |source| format!(" {source}."));
    let words = "Predicted, not measured: `zbench grid FILE` without hardware.profile measures this machine.";
    table.build().caption(format!("{words}{source}"))
}
