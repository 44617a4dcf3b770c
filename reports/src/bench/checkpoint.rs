//! Training checkpoints: what saving, loading and loading otherwise take, beside what the disk can do.

use serde::{Deserialize, Serialize};

use super::{Trials, outcome, outcomes, troubles};
use crate::document::{Column, Document, Entry, Table, Tone};
use crate::record::Record;
use crate::stats;
use crate::units;

/// Everything that one trial measured: a part of a record, under `checkpoint`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Where the files were.
    pub folder: String,
    /// Why the disk's own rate is not known; empty where it is.
    #[serde(default)]
    pub no_disk: String,
    /// Files went past the page cache.
    pub direct: bool,
    /// Parameters that train.
    pub parameters: u64,
    /// Each measurement.
    pub repeats: Vec<Repeat>,
}

/// One measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Repeat {
    /// Written and synced with O_DIRECT into files that were there, around the save.
    pub disk_write_gb_s: Option<f64>,
    /// Read with O_DIRECT, before the load.
    pub disk_read_gb_s: Option<f64>,
    /// A step of training between saves.
    pub step_ms: f64,
    /// Training waits.
    pub save: Save,
    /// Training goes on.
    #[serde(rename = "async")]
    pub asynchronous: Option<AsyncSave>,
    /// By the ranks and strategy that wrote.
    pub load: Load,
    /// By others, and at last by those that wrote from what the last others had written.
    pub reshard: Vec<Load>,
}

/// A save while training waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Save {
    /// Bytes of all files with tensors.
    pub bytes: u64,
    /// From the wish until all ranks go on.
    pub ms: f64,
    /// What the saver says of it.
    pub stall_ms: f64,
    /// Memory for copies that the saver of rank 0 states.
    pub copied_bytes: u64,
    /// Memory of the process beyond what it had before.
    pub peak_bytes: Option<u64>,
}

/// A save while training goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct AsyncSave {
    /// From the wish until it is complete.
    pub ms: f64,
    /// What the saver says that training lost.
    pub stall_ms: f64,
    /// What it lost by the clock: the time until the end of the step after which it was complete, less that of as many steps.
    pub excess_ms: f64,
    /// So many.
    pub steps: u64,
    /// A step of this run without a save.
    pub step_ms: f64,
    /// Memory for copies that the saver of rank 0 states.
    pub copied_bytes: u64,
    /// Memory of the process beyond what it had before.
    pub peak_bytes: Option<u64>,
}

/// A load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// By whom, as `ddp:1`.
    pub by: String,
    /// Of the slowest rank.
    pub ms: f64,
    /// That all ranks read together.
    pub bytes: u64,
    /// Memory of the process beyond what the ranks keep.
    pub peak_bytes: Option<u64>,
    /// Weights and moments are those that were written.
    pub equal: bool,
}

impl Repeat {
    fn gb_s(bytes: u64, ms: f64) -> f64 {
        bytes as f64 / ms / 1e6
    }

    /// Of the save.
    pub fn save_gb_s(&self) -> f64 {
        Repeat::gb_s(self.save.bytes, self.save.ms)
    }

    /// Of the load by those that wrote.
    pub fn load_gb_s(&self) -> f64 {
        Repeat::gb_s(self.load.bytes, self.load.ms)
    }

    /// Of all loads by others.
    pub fn reshard_ms(&self) -> Option<f64> {
        self.reshard.iter().map(|load| load.ms).reduce(f64::max)
    }

    /// All numbers of one measurement that are one number, by the name of their metric.
    pub fn numbers(&self) -> Vec<(&'static str, Option<f64>)> {
        let asynchronous = |of: fn(&AsyncSave) -> f64| self.asynchronous.as_ref().map(of);
        let share = |rate: f64, of: Option<f64>| of.map(|of| rate / of);
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        vec![
            ("disk_write_gb_s", self.disk_write_gb_s),
            ("disk_read_gb_s", self.disk_read_gb_s),
            ("step_ms", Some(self.step_ms)),
            ("checkpoint_bytes", Some(self.save.bytes as f64)),
            ("save_ms", Some(self.save.ms)),
            ("save_gb_s", Some(self.save_gb_s())),
            ("save_share_of_disk", share(self.save_gb_s(), self.disk_write_gb_s)),
            ("save_copied_bytes", Some(self.save.copied_bytes as f64)),
            ("save_peak_bytes", bytes(self.save.peak_bytes)),
            ("async_ms", asynchronous(|save| save.ms)),
            ("async_stall_ms", asynchronous(|save| save.stall_ms)),
            ("async_stall_share", asynchronous(|save| save.stall_ms).map(|ms| ms / self.save.stall_ms)),
            ("async_excess_ms", asynchronous(|save| save.excess_ms)),
            ("async_excess_share", asynchronous(|save| save.excess_ms).map(|ms| ms / self.save.ms)),
            ("async_copied_bytes", asynchronous(|save| save.copied_bytes as f64)),
            ("async_peak_bytes", self.asynchronous.and_then(|save| bytes(save.peak_bytes))),
            ("load_ms", Some(self.load.ms)),
            ("load_gb_s", Some(self.load_gb_s())),
            ("load_share_of_disk", share(self.load_gb_s(), self.disk_read_gb_s)),
            ("load_bytes", Some(self.load.bytes as f64)),
            ("load_peak_bytes", bytes(self.load.peak_bytes)),
            ("reshard_ms", self.reshard_ms()),
        ]
    }

    /// Those whose tensors were others than those written.
    pub fn unequal(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.load).chain(&self.reshard).filter(|load| !load.equal).map(|load| load.by.as_str())
    }
}

/// What a record of this suite measured.
pub fn measured(record: &Record) -> Option<Measured> {
    record.extra.get("checkpoint").cloned().and_then(|value| serde_json::from_value(value).ok())
}

/// What such a record is about, in few words.
pub(super) fn label(record: &Record) -> String {
    let is_async = record.setting("checkpoint.async").and_then(serde_json::Value::as_bool) == Some(true);
    let how = if is_async { "async" } else { "sync" };
    format!("{}, {}, {how}", way(record), super::text(record, "checkpoint.layout"))
}

/// Who writes, as `hsdp:4/2`.
fn way(record: &Record) -> String {
    let (strategy, ranks) = (super::text(record, "parallel.strategy"), super::count(record, "parallel.ranks"));
    match super::count(record, "parallel.shard") {
        shard if strategy.starts_with("hsdp") => format!("{strategy}:{ranks}/{shard}"),
        _ => format!("{strategy}:{ranks}"),
    }
}

/// A cell's measurements of all its trials.
struct Cell<'a> {
    trials: &'a Trials<'a>,
    repeats: Vec<Repeat>,
}

impl Cell<'_> {
    fn of<'a>(trials: &'a Trials<'a>) -> Cell<'a> {
        let used = trials.records.iter().filter(|record| record.is_measured());
        let repeats = used.filter_map(|record| measured(record)).flat_map(|measured| measured.repeats).collect();
        Cell { trials, repeats }
    }

    fn all(&self, name: &str) -> Vec<f64> {
        let one =
            |repeat: &Repeat| repeat.numbers().into_iter().find(|(of, _)| *of == name).and_then(|(_, value)| value);
        self.repeats.iter().filter_map(one).filter(|value| value.is_finite()).collect()
    }

    fn median(&self, name: &str) -> Option<f64> {
        stats::median(&self.all(name))
    }

    fn label(&self) -> String {
        label(self.trials.last())
    }
}

/// The section of these records.
pub(super) fn report(document: &mut Document, records: &[&Record]) {
    if records.is_empty() {
        return;
    }
    let gathered = Trials::gather_by(records, |record| measured(record).is_some());
    let cells: Vec<Cell> = gathered.iter().map(Cell::of).collect();
    document.heading("Training checkpoints");
    document.paragraph(
        "Medians over the measurements of all trials. Share of the disk: of what the same folder's disk writes and reads with \
         O_DIRECT in transfers of 4 MiB, a file for each rank, measured beside each save and load. A save ends when its last \
         byte and its name are on the disk and all ranks go on. Async: a save during which training goes on; stall is what \
         the saver says that training lost, excess what the clock says: the time until the end of the step after which the \
         save was complete, less that of as many steps without one. Shares of stall and excess are of the time that a save \
         with waiting takes. Loads are of the slowest rank, by those that wrote; reshard is the slowest load by others.",
    );
    document.list(answers(&cells));
    document.table(saves(&cells, &gathered));
    document.table(loads(&cells));
    document.list(troubles(&gathered));
}

/// What comes out of it, in words.
fn answers(cells: &[Cell]) -> Vec<String> {
    let mut said = Vec::new();
    let ranked = |name: &str| {
        let mut all: Vec<(f64, &Cell)> = cells.iter().filter_map(|cell| Some((cell.median(name)?, cell))).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all
    };
    for (what, rate, share, disk) in [
        ("save", "save_gb_s", "save_share_of_disk", "disk_write_gb_s"),
        ("load", "load_gb_s", "load_share_of_disk", "disk_read_gb_s"),
    ] {
        let all = ranked(rate);
        let Some((best, cell)) = all.first() else { continue };
        let of_disk = |cell: &Cell| match (cell.median(share), cell.median(disk)) {
            (Some(share), Some(rate)) => {
                format!(", {} of the disk's {} GB/s", units::percent(share), units::number(rate))
            }
            _ => String::new(),
        };
        let mut text = format!("Fastest {what}: {} with {} GB/s{}", cell.label(), units::number(*best), of_disk(cell));
        if let Some((worst, cell)) = all.last().filter(|_| all.len() > 1) {
            text += &format!("; slowest: {} with {} GB/s{}", cell.label(), units::number(*worst), of_disk(cell));
        }
        said.push(format!("{text}."));
    }
    let stalls = ranked("async_stall_share");
    if let (Some((most, worst)), Some((least, best))) = (stalls.first(), stalls.last()) {
        let ms = |cell: &Cell, name: &str| cell.median(name).map_or("-".into(), |ms| units::duration(ms / 1e3));
        let one = |share: f64, cell: &Cell| {
            let excess = cell.median("async_excess_share").map_or(String::new(), |share| {
                format!("; by the clock {} ({})", units::percent(share), ms(cell, "async_excess_ms"))
            });
            format!("{}: {} ({}){excess}", cell.label(), units::percent(share), ms(cell, "async_stall_ms"))
        };
        let rest = if stalls.len() > 1 { format!(", most {}", one(*most, worst)) } else { String::new() };
        said.push(format!("Training loses of a waited-for save while it goes on: least {}{rest}.", one(*least, best)));
    }
    let loads = || {
        cells
            .iter()
            .flat_map(|cell| &cell.repeats)
            .flat_map(|repeat| std::iter::once(&repeat.load).chain(&repeat.reshard))
    };
    if loads().next().is_some() {
        let unequal = loads().filter(|load| !load.equal).count();
        said.push(match unequal {
            0 => format!(
                "All {}, by the ranks that wrote and by others, gave the tensors that were written, to the bit.",
                units::plural(loads().count(), "load", "loads")
            ),
            _ => format!("{unequal} of {} loads gave other tensors than those written.", loads().count()),
        });
    }
    let bad = cells.iter().flat_map(|cell| &cell.trials.records).filter_map(|record| measured(record));
    if let Some(reason) = bad.map(|measured| measured.no_disk).find(|reason| !reason.is_empty()) {
        said.push(format!("The disk's own rate is not known: {reason}. Loads may come from memory."));
    }
    said
}

/// Whether training goes on meanwhile: people see it where cells differ in it.
fn async_column(cells: &[Cell]) -> Column {
    let of = |cell: &Cell| cell.trials.last().setting("checkpoint.async").cloned();
    let differs = cells.windows(2).any(|pair| of(&pair[0]) != of(&pair[1]));
    let column = Column::words("async");
    if differs { column } else { column.for_machines() }
}

fn saves(cells: &[Cell], gathered: &[Trials]) -> Table {
    let columns = vec![
        Column::words("record").for_machines(),
        Column::words("key").for_machines(),
        Column::words("writes"),
        Column::words("layout"),
        async_column(cells),
        outcomes(gathered),
        Column::numbers("measurements", "").for_machines(),
        Column::numbers("size", "bytes"),
        Column::numbers("per parameter", "bytes").for_machines(),
        Column::numbers("save", "ms"),
        Column::numbers("spread", "fraction"),
        Column::numbers("rate", "GB/s"),
        Column::numbers("disk", "GB/s"),
        Column::numbers("share of disk", "fraction"),
        Column::numbers("peak memory", "bytes"),
        Column::numbers("step", "ms"),
        Column::numbers("async stall", "ms"),
        Column::numbers("stall share", "fraction"),
        Column::numbers("async excess", "ms"),
        Column::numbers("excess share", "fraction"),
        Column::numbers("async copies", "bytes").for_machines(),
        Column::numbers("async peak", "bytes"),
    ];
    let mut table = Table::new("saves", columns).caption(
        "Peak: host memory of the process beyond what training had before. Spread: highest less lowest, of the median.",
    );
    for cell in cells {
        let record = cell.trials.last();
        let bytes = |name: &str| Entry::maybe(cell.median(name), units::memory);
        let number = |name: &str| Entry::maybe(cell.median(name), units::number);
        let share = |name: &str| Entry::maybe(cell.median(name), units::percent);
        let parameters = measured(record).map(|measured| measured.parameters as f64).filter(|count| *count > 0.0);
        let per = cell.median("checkpoint_bytes").zip(parameters).map(|(bytes, count)| bytes / count);
        table.row(vec![
            Entry::words(&record.id),
            Entry::words(&record.key),
            Entry::words(way(record)),
            super::word(record, "checkpoint.layout"),
            super::word(record, "checkpoint.async"),
            outcome(cell.trials),
            Entry::whole(cell.repeats.len() as u64, cell.repeats.len().to_string()),
            bytes("checkpoint_bytes"),
            Entry::maybe(per, units::number),
            number("save_ms"),
            Entry::maybe(spread(&cell.all("save_ms")), units::percent),
            number("save_gb_s"),
            number("disk_write_gb_s"),
            share("save_share_of_disk"),
            bytes("save_peak_bytes"),
            number("step_ms"),
            number("async_stall_ms"),
            share("async_stall_share"),
            number("async_excess_ms"),
            share("async_excess_share"),
            bytes("async_copied_bytes"),
            bytes("async_peak_bytes"),
        ]);
    }
    table
}

fn loads(cells: &[Cell]) -> Table {
    let columns = vec![
        Column::words("record").for_machines(),
        Column::words("key").for_machines(),
        Column::words("written by"),
        Column::words("layout"),
        async_column(cells),
        Column::words("loaded by"),
        Column::numbers("load", "ms"),
        Column::numbers("spread", "fraction"),
        Column::numbers("bytes read", "bytes"),
        Column::numbers("rate", "GB/s"),
        Column::numbers("disk", "GB/s"),
        Column::numbers("share of disk", "fraction"),
        Column::numbers("peak memory", "bytes"),
        Column::words("equal"),
    ];
    let mut table = Table::new("loads", columns)
        .caption("Bytes read: by all ranks together. Peak: host memory of the process beyond what its ranks keep.");
    for cell in cells {
        let record = cell.trials.last();
        let Some(first) = cell.repeats.first() else { continue };
        let places = 1 + first.reshard.len();
        for place in 0..places {
            let at = |repeat: &Repeat| -> Option<Load> {
                if place == 0 { Some(repeat.load.clone()) } else { repeat.reshard.get(place - 1).cloned() }
            };
            let all: Vec<Load> = cell.repeats.iter().filter_map(at).collect();
            let Some(load) = all.first() else { continue };
            let ms: Vec<f64> = all.iter().map(|load| load.ms).collect();
            let rates: Vec<f64> = all.iter().map(|load| Repeat::gb_s(load.bytes, load.ms)).collect();
            let share = |repeat: &Repeat| {
                let load = at(repeat)?;
                Some(Repeat::gb_s(load.bytes, load.ms) / repeat.disk_read_gb_s?)
            };
            let shares: Vec<f64> = cell.repeats.iter().filter_map(share).collect();
            let peaks: Vec<f64> = all.iter().filter_map(|load| load.peak_bytes).map(|bytes| bytes as f64).collect();
            let unequal = all.iter().any(|load| !load.equal);
            let equal = if unequal { Entry::words("no").toned(Tone::Warning) } else { Entry::words("yes") };
            table.row(vec![
                Entry::words(&record.id),
                Entry::words(&record.key),
                Entry::words(way(record)),
                super::word(record, "checkpoint.layout"),
                super::word(record, "checkpoint.async"),
                Entry::words(&load.by),
                Entry::maybe(stats::median(&ms), units::number),
                Entry::maybe(spread(&ms), units::percent),
                Entry::maybe(Some(load.bytes as f64), units::memory),
                Entry::maybe(stats::median(&rates), units::number),
                Entry::maybe(cell.median("disk_read_gb_s"), units::number),
                Entry::maybe(stats::median(&shares), units::percent),
                Entry::maybe(stats::median(&peaks), units::memory),
                equal,
            ]);
        }
    }
    table
}

/// A record's metrics in a line.
pub fn in_words(record: &Record) -> String {
    let metric = |name: &str| record.metrics.get(name).copied().flatten();
    let rate = |what: &str| {
        let rate = metric(&format!("{what}_gb_s")).map_or(units::NOTHING.into(), units::number);
        let share = metric(&format!("{what}_share_of_disk"))
            .map_or(String::new(), |share| format!(" ({} of the disk)", units::percent(share)));
        format!("{what} {rate} GB/s{share}")
    };
    let stall = metric("async_stall_share")
        .map_or(String::new(), |share| format!(", stall of an asynchronous save {} of that", units::percent(share)));
    format!("{}{stall}; {}", rate("save"), rate("load"))
}

/// Metrics of the records, one row each.
pub fn beside(records: &[&Record]) -> Table {
    let names = ["save_ms", "save_gb_s", "async_stall_ms", "load_ms", "load_gb_s", "reshard_ms"];
    let unit = |name: &str| if name.ends_with("_ms") { "ms" } else { "GB/s" };
    let titles = names.map(|name| {
        Column::numbers(name.trim_end_matches("_ms").replace("_gb_s", " rate").replace('_', " "), unit(name))
    });
    let columns = std::iter::once(Column::words("record")).chain(titles).collect();
    let mut table = Table::new("before and again", columns);
    for record in records {
        let metric = |name: &&str| Entry::maybe(record.metrics.get(name).copied().flatten(), units::number);
        table.row(std::iter::once(Entry::words(&record.id)).chain(names.iter().map(metric)).collect());
    }
    table
}

/// Highest less lowest as a share of the median, of two at least.
pub fn spread(values: &[f64]) -> Option<f64> {
    values.get(1)?;
    let (low, high) = (stats::percentile(values, 0.0)?, stats::percentile(values, 100.0)?);
    Some((high - low) / stats::median(values)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Outcome;
    use serde_json::json;

    fn record(key: &str, scale: f64, equal: bool) -> Record {
        let load = |by: &str, ms: f64| Load { by: by.into(), ms, bytes: 400_000_000, peak_bytes: Some(1 << 24), equal };
        let repeat = |by: f64| Repeat {
            disk_write_gb_s: Some(0.5),
            disk_read_gb_s: Some(0.8),
            step_ms: 100.0,
            save: Save {
                bytes: 400_000_000,
                ms: 1000.0 * scale * by,
                stall_ms: 1000.0 * scale * by,
                ..Save::default()
            },
            asynchronous: Some(AsyncSave {
                ms: 1200.0,
                stall_ms: 30.0,
                excess_ms: 50.0,
                steps: 11,
                ..AsyncSave::default()
            }),
            load: load("zero3:4", 625.0),
            reshard: vec![load("ddp:1", 700.0), load("zero3:4 again", 650.0)],
        };
        let measured = Measured {
            folder: "/d".into(),
            direct: true,
            parameters: 33_000_000,
            repeats: [0.9, 1.0, 1.2].map(repeat).to_vec(),
            ..Measured::default()
        };
        let mut record = Record::new(format!("id-{key}"), key, "checkpoints", Outcome::measured());
        record.cell = json!({
            "suite": "checkpoint",
            "parallel": { "strategy": "zero3", "ranks": 4, "shard": 4 },
            "checkpoint": { "layout": key, "async": true },
        });
        record.extra.insert("checkpoint".into(), serde_json::to_value(measured).unwrap());
        record
    }

    #[test]
    fn medians_shares_and_words_follow_from_the_measurements() {
        let all = [record("sharded", 1.0, true), record("full", 2.0, true)];
        let document = super::super::document(&all.iter().collect::<Vec<_>>());
        let text = crate::render::markdown::render(&document);
        for words in [
            "Fastest save: zero3:4, sharded, async with 0.400 GB/s, 80.0 % of the disk's 0.500 GB/s",
            "slowest: zero3:4, full, async with 0.200 GB/s, 40.0 % of",
            "Fastest load: zero3:4, sharded, async with 0.640 GB/s, 80.0 % of the disk's 0.800 GB/s",
            "least zero3:4, full, async: 1.5 % (30.0 ms); by the clock 2.5 % (50.0 ms)",
            "All 18 loads",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let tables: Vec<_> = document.tables().collect();
        assert_eq!((tables[0].rows.len(), tables[1].rows.len()), (2, 6));
        assert_eq!(spread(&[900.0, 1000.0, 1200.0]), Some(0.3));
        assert_eq!(super::super::label(&all[0]).as_deref(), Some("zero3:4, sharded, async"));
    }

    #[test]
    fn other_tensors_are_said_and_a_record_without_measurements_is_no_panic() {
        let mut failed = record("sharded", 1.0, false);
        let text = crate::render::markdown::render(&super::super::document(&[&failed]));
        assert!(text.contains("9 of 9 loads gave other tensors"), "{text}");
        failed.outcome = Outcome::ended(crate::record::Status::Failed, "the disk is full", None);
        failed.extra.clear();
        let text = crate::render::markdown::render(&super::super::document(&[&failed]));
        assert!(text.contains("the disk is full"), "{text}");
    }

    #[test]
    fn what_is_kept_reads_back() {
        let found = measured(&record("full", 1.0, true)).unwrap();
        let again: Measured = serde_json::from_value(serde_json::to_value(&found).unwrap()).unwrap();
        assert_eq!(found, again);
        assert_eq!(found.repeats[0].unequal().count(), 0);
        let numbers = found.repeats[1].numbers();
        let number = |name: &str| numbers.iter().find(|(of, _)| *of == name).and_then(|(_, number)| *number);
        for (name, wanted) in [("save_share_of_disk", 0.8), ("reshard_ms", 700.0)] {
            let found = number(name).unwrap_or(f64::NAN);
            assert!((found - wanted).abs() < 1e-9 * wanted, "{name}: {found}, not {wanted}");
        }
    }
}
