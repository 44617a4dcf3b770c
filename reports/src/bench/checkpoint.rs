//! Training checkpoints: what saving, loading and resharding take, beside the rates of the disk.

use serde::{Deserialize, Serialize};

use super::{Trials, all_measured, outcome, reasons};
use crate::document::{Document, Entry, Table, Tone};
use crate::gather::distinct;
use crate::record::Record;
use crate::stats;
use crate::units;

/// All that one trial measured: a part of a record, under `checkpoint`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Where the files were.
    pub folder: String,
    /// Why the disk's own rate is not known; empty where it is.
    #[serde(default)]
    pub no_disk: String,
    /// Whether files bypassed the page cache.
    pub direct: bool,
    /// Number of parameters that train.
    pub parameters: u64,
    /// Each measurement.
    pub repeats: Vec<Repeat>,
}

/// One measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Repeat {
    /// The disk's own rate around the save: written and synced with O_DIRECT into existing files.
    pub disk_write_gb_s: Option<f64>,
    /// The disk's own rate before the load: read with O_DIRECT.
    pub disk_read_gb_s: Option<f64>,
    /// A step of training between saves.
    pub step_ms: f64,
    /// A save for which training waits.
    pub save: Save,
    /// A save during which training goes on.
    #[serde(rename = "async")]
    pub asynchronous: Option<AsyncSave>,
    /// The load by the ranks and strategy that wrote.
    pub load: Load,
    /// Loads by other ranks and strategies; the last one is by those that wrote, of what the last others had written.
    pub reshard: Vec<Load>,
}

/// A save for which training waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Save {
    /// Bytes of all files with tensors.
    pub bytes: u64,
    /// From the request until all ranks go on.
    pub ms: f64,
    /// The time that training lost, as the saver states it.
    pub stall_ms: f64,
    /// Memory for copies, as the saver of rank 0 states it.
    pub copied_bytes: u64,
    /// Memory of the process beyond what it had before.
    pub peak_bytes: Option<u64>,
}

/// A save during which training goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct AsyncSave {
    /// From the request until it is complete.
    pub ms: f64,
    /// The time that training lost, as the saver states it.
    pub stall_ms: f64,
    /// The time that training lost by the clock: the time until the end of the step after which the save was complete, less that of
    /// as many steps without a save.
    pub excess_ms: f64,
    /// The number of these steps.
    pub steps: u64,
    /// A step of this run without a save.
    pub step_ms: f64,
    /// Memory for copies, as the saver of rank 0 states it.
    pub copied_bytes: u64,
    /// Memory of the process beyond what it had before.
    pub peak_bytes: Option<u64>,
}

/// A load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The strategy and ranks that load, as `ddp:1`.
    pub by: String,
    /// Time of the slowest rank.
    pub ms: f64,
    /// Bytes that all ranks read together.
    pub bytes: u64,
    /// Memory of the process beyond what the ranks keep.
    pub peak_bytes: Option<u64>,
    /// Whether weights and moments are those that were written.
    pub equal: bool,
}

impl Load {
    fn gb_s(&self) -> f64 {
        self.bytes as f64 / self.ms / 1e6
    }
}

impl Repeat {
    /// The load by those that wrote, then the loads by others.
    fn loads(&self) -> impl Iterator<Item = &Load> {
        std::iter::once(&self.load).chain(&self.reshard)
    }

    /// The rate of the save.
    pub fn save_gb_s(&self) -> f64 {
        self.save.bytes as f64 / self.save.ms / 1e6
    }

    /// The metrics of one measurement, by name.
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
            ("load_gb_s", Some(self.load.gb_s())),
            ("load_share_of_disk", share(self.load.gb_s(), self.disk_read_gb_s)),
            ("load_bytes", Some(self.load.bytes as f64)),
            ("load_peak_bytes", bytes(self.load.peak_bytes)),
            ("reshard_ms", self.reshard.iter().map(|load| load.ms).reduce(f64::max)),
        ]
    }

    /// Who loaded other tensors than those that were written.
    pub fn unequal(&self) -> impl Iterator<Item = &str> {
        self.loads().filter(|load| !load.equal).map(|load| load.by.as_str())
    }
}

/// What a record of this suite measured.
pub fn measured(record: &Record) -> Option<Measured> {
    super::part(record, "checkpoint")
}

/// A short description of a record of this suite.
pub(super) fn label(record: &Record) -> String {
    let is_async = record.setting("checkpoint.async").and_then(serde_json::Value::as_bool) == Some(true);
    let how = if is_async { "async" } else { "sync" };
    format!("{}, {}, {how}", writer(record), super::text(record, "checkpoint.layout"))
}

/// The strategy and ranks that write, as `hsdp:4/2`.
fn writer(record: &Record) -> String {
    let (strategy, ranks) = (super::text(record, "parallel.strategy"), super::count(record, "parallel.ranks"));
    match super::count(record, "parallel.shard") {
        shard if strategy.starts_with("hsdp") => format!("{strategy}:{ranks}/{shard}"),
        _ => format!("{strategy}:{ranks}"),
    }
}

/// The measurements of all trials of a cell.
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

/// Adds the section of these records.
pub(super) fn report(document: &mut Document, records: &[&Record]) {
    if records.is_empty() {
        return;
    }
    let trials = Trials::gather_by(records, |record| measured(record).is_some());
    let cells: Vec<Cell> = trials.iter().map(Cell::of).collect();
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
    document.table(saves(&cells, &trials));
    document.table(loads(&cells));
    document.list(reasons(&trials));
}

/// The results in words.
fn answers(cells: &[Cell]) -> Vec<String> {
    let mut sentences = Vec::new();
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
        sentences.push(format!("{text}."));
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
        sentences
            .push(format!("Training loses of a waited-for save while it goes on: least {}{rest}.", one(*least, best)));
    }
    let loads: Vec<&Load> = cells.iter().flat_map(|cell| &cell.repeats).flat_map(Repeat::loads).collect();
    match (loads.len(), loads.iter().filter(|load| !load.equal).count()) {
        (0, _) => {}
        (all, 0) => sentences.push(format!(
            "All {}, by the ranks that wrote and by others, gave the tensors that were written, to the bit.",
            units::plural(all, "load", "loads")
        )),
        (all, unequal) => sentences.push(format!("{unequal} of {all} loads gave other tensors than those written.")),
    }
    let bad = cells.iter().flat_map(|cell| &cell.trials.records).filter_map(|record| measured(record));
    if let Some(reason) = bad.map(|measured| measured.no_disk).find(|reason| !reason.is_empty()) {
        sentences.push(format!("The disk's own rate is not known: {reason}. Loads may come from memory."));
    }
    sentences
}

/// Whether the column of asynchronous saves says nothing to people: all cells are alike in it.
fn all_alike(cells: &[Cell]) -> bool {
    distinct(cells.iter().map(|cell| cell.trials.last().setting("checkpoint.async"))).len() < 2
}

fn saves(cells: &[Cell], trials: &[Trials]) -> Table {
    let bytes = |cell: &Cell, name: &str| Entry::maybe(cell.median(name), units::memory);
    let number = |cell: &Cell, name: &str| Entry::maybe(cell.median(name), units::number);
    let share = |cell: &Cell, name: &str| Entry::maybe(cell.median(name), units::percent);
    let per_parameter = |cell: &Cell| {
        let parameters = measured(cell.trials.last())?.parameters;
        (parameters > 0).then_some(cell.median("checkpoint_bytes")? / parameters as f64)
    };
    let mut table = Table::of("saves", cells);
    table.words("record", |cell| &cell.trials.last().id).for_machines = true;
    table.words("key", |cell| &cell.trials.last().key).for_machines = true;
    table.words("writes", |cell| writer(cell.trials.last()));
    table.words("layout", |cell| cell.trials.last().setting("checkpoint.layout"));
    table.words("async", |cell| cell.trials.last().setting("checkpoint.async")).for_machines = all_alike(cells);
    table.words("outcome", |cell| outcome(cell.trials)).for_machines = all_measured(trials);
    table.numbers("measurements", "", |cell| cell.repeats.len()).for_machines = true;
    table.numbers("size", "bytes", |cell| bytes(cell, "checkpoint_bytes"));
    table.numbers("per parameter", "bytes", |cell| Entry::maybe(per_parameter(cell), units::number)).for_machines =
        true;
    table.numbers("save", "ms", |cell| number(cell, "save_ms"));
    table.numbers("spread", "fraction", |cell| Entry::maybe(spread(&cell.all("save_ms")), units::percent));
    table.numbers("rate", "GB/s", |cell| number(cell, "save_gb_s"));
    table.numbers("disk", "GB/s", |cell| number(cell, "disk_write_gb_s"));
    table.numbers("share of disk", "fraction", |cell| share(cell, "save_share_of_disk"));
    table.numbers("peak memory", "bytes", |cell| bytes(cell, "save_peak_bytes"));
    table.numbers("step", "ms", |cell| number(cell, "step_ms"));
    table.numbers("async stall", "ms", |cell| number(cell, "async_stall_ms"));
    table.numbers("stall share", "fraction", |cell| share(cell, "async_stall_share"));
    table.numbers("async excess", "ms", |cell| number(cell, "async_excess_ms"));
    table.numbers("excess share", "fraction", |cell| share(cell, "async_excess_share"));
    table.numbers("async copies", "bytes", |cell| bytes(cell, "async_copied_bytes")).for_machines = true;
    table.numbers("async peak", "bytes", |cell| bytes(cell, "async_peak_bytes"));
    table.build().caption(
        "Peak: host memory of the process beyond what training had before. Spread: highest less lowest, of the median.",
    )
}

/// The loads of a cell by the same ranks, each with the rate of the disk beside it.
type Loads<'a> = (&'a Cell<'a>, Vec<(&'a Load, Option<f64>)>);

fn loads(cells: &[Cell]) -> Table {
    let mut rows: Vec<Loads> = Vec::new();
    for cell in cells {
        for place in 0..cell.repeats.first().map_or(0, |first| first.loads().count()) {
            let loads = cell.repeats.iter().filter_map(|of| Some((of.loads().nth(place)?, of.disk_read_gb_s)));
            rows.push((cell, loads.collect()));
        }
    }
    let median = |loads: &[(&Load, Option<f64>)], value: fn(&Load, Option<f64>) -> Option<f64>| {
        stats::median(&loads.iter().filter_map(|(load, disk)| value(load, *disk)).collect::<Vec<_>>())
    };
    let ms = |loads: &[(&Load, Option<f64>)]| -> Vec<f64> { loads.iter().map(|(load, _)| load.ms).collect() };
    let equal = |loads: &[(&Load, Option<f64>)]| match loads.iter().all(|(load, _)| load.equal) {
        true => Entry::words("yes"),
        false => Entry::words("no").toned(Tone::Warning),
    };
    let mut table = Table::of("loads", &rows);
    table.words("record", |(cell, _)| &cell.trials.last().id).for_machines = true;
    table.words("key", |(cell, _)| &cell.trials.last().key).for_machines = true;
    table.words("written by", |(cell, _)| writer(cell.trials.last()));
    table.words("layout", |(cell, _)| cell.trials.last().setting("checkpoint.layout"));
    table.words("async", |(cell, _)| cell.trials.last().setting("checkpoint.async")).for_machines = all_alike(cells);
    table.words("loaded by", |(_, loads)| &loads[0].0.by);
    table.numbers("load", "ms", |(_, loads)| Entry::maybe(stats::median(&ms(loads)), units::number));
    table.numbers("spread", "fraction", |(_, loads)| Entry::maybe(spread(&ms(loads)), units::percent));
    table.numbers("bytes read", "bytes", |(_, loads)| Entry::maybe(Some(loads[0].0.bytes as f64), units::memory));
    let rate = |loads: &[_]| median(loads, |load, _| Some(load.gb_s()));
    table.numbers("rate", "GB/s", |(_, loads)| Entry::maybe(rate(loads), units::number));
    table.numbers("disk", "GB/s", |(cell, _)| Entry::maybe(cell.median("disk_read_gb_s"), units::number));
    let share = |loads: &[_]| median(loads, |load, disk| Some(load.gb_s() / disk?));
    table.numbers("share of disk", "fraction", |(_, loads)| Entry::maybe(share(loads), units::percent));
    let peak = |loads: &[_]| median(loads, |load, _| Some(load.peak_bytes? as f64));
    table.numbers("peak memory", "bytes", |(_, loads)| Entry::maybe(peak(loads), units::memory));
    table.words("equal", |(_, loads)| equal(loads));
    table
        .build()
        .caption("Bytes read: by all ranks together. Peak: host memory of the process beyond what its ranks keep.")
}

/// The main metrics of a record in one line.
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
    let mut table = Table::of("before and again", records);
    table.words("record", |record| &record.id);
    for name in ["save_ms", "save_gb_s", "async_stall_ms", "load_ms", "load_gb_s", "reshard_ms"] {
        let title = name.trim_end_matches("_ms").replace("_gb_s", " rate").replace('_', " ");
        let metric = |record: &&Record| Entry::maybe(record.metrics.get(name).copied().flatten(), units::number);
        table.numbers(title, if name.ends_with("_ms") { "ms" } else { "GB/s" }, metric);
    }
    table.build()
}

/// The difference of the highest and the lowest value as a share of the median; `None` of fewer than two.
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
