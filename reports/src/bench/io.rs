//! The links of offload: what a file and a device's link move.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Trials, all_measured, outcome, reasons};
use crate::document::{Document, Entry, Table};
use crate::gather::distinct;
use crate::record::Record;
use crate::stats;
use crate::units;

/// The orders of transfers in a file.
pub const PATTERNS: [&str; 2] = ["sequential", "random"];
/// The directions of transfers between memory and a file.
pub const DIRECTIONS: [&str; 2] = ["write", "read"];

/// Why fio measured nothing where nobody wanted it to, which is nothing to remark.
pub const NOT_ASKED: &str = "it was not asked for (io.fio)";

/// All that one trial measured: a part of a record, under `io`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Where the file was; empty where a device's link was measured.
    #[serde(default)]
    pub folder: String,
    /// Who transferred: `io_uring` or `threads`; empty of a device.
    #[serde(default)]
    pub engine: String,
    /// Whether past the page cache.
    #[serde(default)]
    pub direct: bool,
    /// Whether the folder is in memory.
    #[serde(default)]
    pub is_memory: bool,
    /// Why transfers were not made in the better way, as `with no O_DIRECT: …`.
    #[serde(default)]
    pub why: Vec<String>,
    /// What computes on the device, as kernels call it; empty of a disk.
    #[serde(default)]
    pub device: String,
    /// Whether that is the host itself, and no link was crossed.
    #[serde(default)]
    pub is_host: bool,
    /// fio's version; empty where it measured nothing.
    #[serde(default)]
    pub fio: String,
    /// The engine of fio that does the same.
    #[serde(default)]
    pub fio_engine: String,
    /// Why fio measured nothing, or not all; empty where it did, and of a device.
    #[serde(default)]
    pub no_fio: String,
    /// What was measured, in order.
    pub passes: Vec<Pass>,
}

/// Transfers in one order and direction.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    /// `sequential` or `random`; empty of a device.
    #[serde(default)]
    pub pattern: String,
    /// `write` or `read`; `to_device` or `from_device`.
    pub direction: String,
    /// Bytes of all transfers.
    pub bytes: u64,
    /// From the first to the end of the last; of writes to the end of the sync behind them.
    pub seconds: f64,
    /// fio's rate, 10^9 bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fio_gb_s: Option<f64>,
}

impl Pass {
    /// 10^9 bytes per second.
    pub fn gb_s(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }

    /// The name of its metric.
    pub fn metric(&self) -> String {
        match self.pattern.as_str() {
            "" => format!("{}_gb_s", self.direction),
            pattern => format!("{pattern}_{}_gb_s", self.direction),
        }
    }
}

/// A short description of transfers of a disk, as `1.00 MiB x 8, io_uring, direct`.
pub fn disk_label(size: u64, depth: u64, engine: &str, direct: Option<bool>, pattern: &str) -> String {
    let direct = match direct {
        Some(true) => ", direct",
        Some(false) => ", cached",
        None => "",
    };
    let pattern = if pattern == "both" { String::new() } else { format!(", {pattern}") };
    format!("{} x {depth}, {engine}{direct}{pattern}", units::memory(size as f64))
}

/// A short description of copies to a device and back.
pub fn copy_label(size: u64, device: &str) -> String {
    format!("{}, host and {device}", units::memory(size as f64))
}

/// A short description of a record of this suite; none of a refused combination.
pub(super) fn label(record: &Record) -> Option<String> {
    let (text, count) = (|key: &str| super::text(record, key), |key: &str| super::count(record, key));
    Some(match text("io.link").as_str() {
        "disk" => {
            let direct = record.setting("io.direct").and_then(Value::as_bool);
            disk_label(count("io.size"), count("io.depth"), &text("io.engine"), direct, &text("io.pattern"))
        }
        "device" => copy_label(count("io.size"), &text("hardware.device")),
        _ => return None,
    })
}

/// What a record of this suite measured.
pub fn measured(record: &Record) -> Option<Measured> {
    super::part(record, "io")
}

/// One cell in one pattern: the medians of its trials.
struct Row<'a> {
    trials: &'a Trials<'a>,
    measured: Option<Measured>,
    /// Empty where nothing was measured.
    pattern: &'static str,
}

impl Row<'_> {
    fn metric(&self, direction: &str, fio: bool) -> Option<f64> {
        let name = format!("{}{}_{direction}_gb_s", if fio { "fio_" } else { "" }, self.pattern);
        median(self.trials, &name)
    }

    /// fio's figure and the share of it that ours is, in words.
    fn beside(&self, direction: &str, ours: f64) -> String {
        let share = |fio: f64| format!("; fio {} ({} of it)", units::number(fio), units::percent(ours / fio));
        self.metric(direction, true).map_or(String::new(), share)
    }

    /// Whether its rates are those of a disk: past the page cache, and not of a folder in memory.
    fn is_direct(&self) -> bool {
        self.measured.as_ref().is_some_and(|measured| measured.direct && !measured.is_memory)
    }

    fn in_words(&self) -> String {
        let record = self.trials.last();
        let (size, depth) = (super::count(record, "io.size"), super::count(record, "io.depth"));
        let size = units::memory(size as f64);
        let engine = self.measured.as_ref().map_or("", |measured| &measured.engine);
        format!("{} tensors of {size}, depth {depth}, {engine}, O_DIRECT", self.pattern)
    }
}

fn median(trials: &Trials, name: &str) -> Option<f64> {
    let values: Vec<f64> = trials.records.iter().filter_map(|record| record.metrics.number(name)).collect();
    stats::median(&values)
}

/// Adds the section of these records.
pub(super) fn report(document: &mut Document, records: &[&Record]) {
    if records.is_empty() {
        return;
    }
    let trials = Trials::gather_by(records, |record| measured(record).is_some());
    let of_device = |trials: &&Trials| super::text(trials.last(), "io.link") == "device";
    let (copies, disks): (Vec<&Trials>, Vec<&Trials>) = trials.iter().partition(of_device);
    let rows: Vec<Row> = disks.iter().flat_map(|trials| rows(trials)).collect();
    document.heading("Links of offload");
    document.list(answers(&rows, &copies));
    document.list(remarks(&trials));
    if !rows.is_empty() {
        document.table(table(&rows, &trials));
    }
    if copies.len() > 1 {
        document.table(copies_table(&copies));
    }
    document.list(reasons(&trials));
}

fn rows<'a>(trials: &'a Trials<'a>) -> Vec<Row<'a>> {
    let found = measured(trials.last());
    let has = |pattern: &&str| found.iter().flat_map(|found| &found.passes).any(|pass| pass.pattern == **pattern);
    let mut patterns: Vec<&'static str> = PATTERNS.into_iter().filter(|pattern| has(pattern)).collect();
    if patterns.is_empty() {
        patterns.push("");
    }
    patterns.into_iter().map(|pattern| Row { trials, measured: found.clone(), pattern }).collect()
}

/// The results in words.
fn answers(rows: &[Row], copies: &[&Trials]) -> Vec<String> {
    let mut sentences = Vec::new();
    let best = |direction: &str, direct: bool| {
        let rates = rows.iter().filter(|row| row.is_direct() == direct);
        rates.filter_map(|row| Some((row.metric(direction, false)?, row))).max_by(|a, b| a.0.total_cmp(&b.0))
    };
    for direction in DIRECTIONS {
        if let Some((rate, row)) = best(direction, true) {
            let (number, beside) = (units::number(rate), row.beside(direction, rate));
            sentences.push(format!("Fastest {direction}: {number} GB/s, {}{beside}.", row.in_words()));
        }
    }
    // What the cache answers says nothing of the disk: it is never the answer.
    let cached = DIRECTIONS.map(|direction| best(direction, false).map_or("-".into(), |(rate, _)| units::number(rate)));
    if let ([write, read], true) = (&cached, cached.iter().any(|rate| rate != "-")) {
        sentences.push(format!(
            "Through the page cache: up to {write} GB/s written and {read} GB/s read, which memory may have taken and served: no \
             rates of the disk."
        ));
    }
    for trials in copies {
        let rates = ["to_device_gb_s", "from_device_gb_s"].map(|name| median(trials, name).map(units::number));
        let ([Some(to), Some(from)], Some(found)) = (rates, measured(trials.last())) else { continue };
        let size = units::memory(super::count(trials.last(), "io.size") as f64);
        sentences.push(match found.is_host {
            true => format!(
                "Host to device and back: {to} and {from} GB/s, tensors of {size}; device is host here, so this is one thread's \
                 copy from memory to memory and no link."
            ),
            false => format!("Host to device and back: {to} and {from} GB/s, tensors of {size} ({}).", found.device),
        });
    }
    sentences
}

/// What is to be known of the figures, each once.
fn remarks(trials: &[Trials]) -> Vec<String> {
    let all: Vec<Measured> = trials.iter().filter_map(|trials| measured(trials.last())).collect();
    let of_disks = || all.iter().filter(|found| found.device.is_empty());
    let mut remarks = Vec::new();
    for folder in distinct(of_disks().filter(|found| found.is_memory).map(|found| found.folder.as_str())) {
        remarks.push(format!(
            "{folder} is in memory (tmpfs): these are rates of memory and not of a disk; name another folder (--dir)."
        ));
    }
    for why in distinct(of_disks().flat_map(|found| &found.why)) {
        remarks.push(format!("Transfers were made {why}."));
    }
    for why in
        distinct(of_disks().map(|found| found.no_fio.as_str()).filter(|why| !why.is_empty() && *why != NOT_ASKED))
    {
        let help = if why.ends_with("not installed") { "; a package of that name is in most systems" } else { "" };
        remarks.push(format!("No figure of fio stands beside some of these: {why}{help}."));
    }
    remarks
}

fn table(rows: &[Row], trials: &[Trials]) -> Table {
    let setting = |row: &Row, key: &str| super::count(row.trials.last(), key);
    let engine = |row: &Row| match &row.measured {
        Some(measured) => measured.engine.clone(),
        None => super::text(row.trials.last(), "io.engine"),
    };
    let direct = |row: &Row| match (&row.measured, row.is_direct()) {
        (None, _) => "",
        (_, true) => "yes",
        (_, false) => "no",
    };
    let number = |rate: Option<f64>| Entry::maybe(rate, units::number);
    let has_fio = DIRECTIONS.iter().any(|direction| rows.iter().any(|row| row.metric(direction, true).is_some()));
    let mut table = Table::of("disk", rows);
    table.words("record", |row| &row.trials.last().id).for_machines = true;
    table.words("key", |row| &row.trials.last().key).for_machines = true;
    table.words("pattern", |row| row.pattern);
    table.numbers("tensor", "bytes", |row| Entry::memory(Some(setting(row, "io.size"))));
    table.numbers("depth", "", |row| setting(row, "io.depth"));
    table.words("engine", engine);
    table.words("O_DIRECT", direct);
    table.words("outcome", |row| outcome(row.trials)).for_machines = all_measured(trials);
    table.numbers("write", "GB/s", |row| number(row.metric("write", false)));
    table.numbers("fio write", "GB/s", |row| number(row.metric("write", true))).for_machines = !has_fio;
    table.numbers("read", "GB/s", |row| number(row.metric("read", false)));
    table.numbers("fio read", "GB/s", |row| number(row.metric("read", true))).for_machines = !has_fio;
    table.words("fio engine", |row| row.measured.as_ref().map_or("", |of| &of.fio_engine).to_string()).for_machines =
        true;
    table
        .build()
        .caption("Writes include the sync at their end. Depth: requests of up to 1 MiB that the system has at a time.")
}

fn copies_table(copies: &[&Trials]) -> Table {
    let number = |trials: &Trials, name: &str| Entry::maybe(median(trials, name), units::number);
    let mut table = Table::of("device", copies);
    table.words("record", |trials| &trials.last().id).for_machines = true;
    table.words("key", |trials| &trials.last().key).for_machines = true;
    table.words("device", |trials| super::text(trials.last(), "hardware.device"));
    table.numbers("tensor", "bytes", |trials| Entry::memory(Some(super::count(trials.last(), "io.size"))));
    table.words("outcome", |trials| outcome(trials));
    table.numbers("to device", "GB/s", |trials| number(trials, "to_device_gb_s"));
    table.numbers("from device", "GB/s", |trials| number(trials, "from_device_gb_s"));
    table.build()
}

/// The rates of a record in one line.
pub fn in_words(record: &Record) -> String {
    let rate = |pass: &Pass| {
        let fio = pass.fio_gb_s.map_or(String::new(), |fio| format!(" (fio {})", units::number(fio)));
        let name = format!("{} {}", pass.pattern, pass.direction.replace('_', " "));
        format!("{} {}{fio}", name.trim(), units::number(pass.gb_s()))
    };
    let passes = measured(record).map(|found| found.passes).unwrap_or_default();
    format!("{} GB/s", passes.iter().map(rate).collect::<Vec<_>>().join(", "))
}

/// Rates of the records, one row each.
pub fn beside(records: &[&Record]) -> Table {
    let mut table = Table::of("before and again", records);
    table.words("record", |record| &record.id);
    let names = distinct(records.iter().flat_map(|record| record.metrics.names()));
    for name in names.into_iter().filter(|name| name.ends_with("_gb_s")) {
        let metric = |record: &&Record| Entry::maybe(record.metrics.number(name), units::number);
        table.numbers(name.trim_end_matches("_gb_s").replace('_', " "), "GB/s", metric);
    }
    table.build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Outcome;
    use serde_json::json;

    fn pass(pattern: &str, direction: &str, gb_s: f64, fio: Option<f64>) -> Pass {
        let bytes = (gb_s * 1e9) as u64;
        Pass { pattern: pattern.into(), direction: direction.into(), bytes, seconds: 1.0, fio_gb_s: fio }
    }

    fn record(key: &str, cell: Value, measured: &Measured) -> Record {
        let mut record = Record::new(format!("id-{key}"), key, "io", Outcome::measured());
        record.cell = cell;
        for pass in &measured.passes {
            record.state(&pass.metric(), pass.gb_s());
            if let Some(fio) = pass.fio_gb_s {
                record.state(&format!("fio_{}", pass.metric()), fio);
            }
        }
        record.extra.insert("io".into(), serde_json::to_value(measured).unwrap());
        record
    }

    fn disk(key: &str, direct: bool, write: f64, read: f64, fio: Option<f64>) -> Record {
        let passes = PATTERNS
            .into_iter()
            .zip([1.0, 0.5])
            .flat_map(|(pattern, by)| [pass(pattern, "write", by * write, fio), pass(pattern, "read", by * read, fio)]);
        let no_fio = if fio.is_some() { "" } else { "fio is not installed" };
        let measured = Measured {
            folder: "/d".into(),
            engine: "io_uring".into(),
            direct,
            no_fio: no_fio.into(),
            passes: passes.collect(),
            ..Measured::default()
        };
        let io = json!({ "link": "disk", "size": 1 << 20, "depth": 8, "engine": "auto", "direct": direct, "pattern": "both" });
        record(key, json!({ "suite": "io", "io": io }), &measured)
    }

    fn text(records: &[Record]) -> String {
        let document = super::super::document(&records.iter().collect::<Vec<_>>());
        format!("{document:?}")
    }

    #[test]
    fn the_fastest_is_the_answer_and_what_a_cache_answered_is_not() {
        let all = [disk("a", true, 2.0, 3.0, Some(2.5)), disk("b", false, 1.0, 50.0, Some(2.5))];
        let said = text(&all);
        assert!(said.contains("Fastest write: 2.00 GB/s, sequential tensors of 1.00 MiB, depth 8, io_uring, O_DIRECT; fio 2.50 (80.0 % of it)."), "{said}");
        assert!(said.contains("Fastest read: 3.00 GB/s"), "{said}");
        assert!(said.contains("Through the page cache: up to 1.00 GB/s written and 50.0 GB/s read"), "{said}");
        assert!(said.contains("no rates of the disk") && !text(&all[..1]).contains("page cache"), "{said}");
        let said = text(&all[1..]);
        assert!(said.contains("and 50.0 GB/s read") && !said.contains("Fastest"), "{said}");
    }

    #[test]
    fn what_is_missing_is_said_once() {
        let mut all = vec![disk("a", true, 2.0, 3.0, None), disk("b", true, 1.0, 4.0, None)];
        let said = text(&all);
        assert_eq!(said.matches("fio is not installed").count(), 1, "{said}");
        let memory =
            Measured { is_memory: true, why: vec!["with no O_DIRECT: x".into()], ..measured(&all[0]).unwrap() };
        all[0].extra.insert("io".into(), serde_json::to_value(memory).unwrap());
        let said = text(&all);
        assert!(said.contains("/d is in memory (tmpfs)") && said.contains("Transfers were made with no O_DIRECT: x."));
        assert_eq!(label(&all[0]).as_deref(), Some("1.00 MiB x 8, auto, direct"));
        assert!(in_words(&all[1]).contains("sequential read 4.00"), "{}", in_words(&all[1]));
    }

    #[test]
    fn copies_without_a_link_are_called_so() {
        let passes = vec![pass("", "to_device", 8.0, None), pass("", "from_device", 9.0, None)];
        let measured = Measured { device: "cpu avx2".into(), is_host: true, passes, ..Measured::default() };
        let cell = json!({ "suite": "io", "io": { "link": "device", "size": 4096 }, "hardware": { "device": "cpu" } });
        let mut all = vec![record("c", cell, &measured)];
        assert!(text(&all).contains("8.00 and 9.00 GB/s, tensors of 4.00 KiB; device is host here"), "{}", text(&all));
        assert_eq!(label(&all[0]).as_deref(), Some("4.00 KiB, host and cpu"));
        let gpu = Measured { device: "cuda sm_90a".into(), is_host: false, ..measured };
        all[0].extra.insert("io".into(), serde_json::to_value(gpu).unwrap());
        let said = text(&all);
        assert!(said.contains("(cuda sm_90a)") && !said.contains("no link"), "{said}");
        let both = beside(&all.iter().collect::<Vec<_>>());
        assert_eq!(both.columns.len(), 3);
    }
}
