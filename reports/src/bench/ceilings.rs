//! The ceilings of a machine: what `zbench calibrate` measures, keeps in records and writes into machine profiles.

use serde::{Deserialize, Serialize};

use crate::document::{Column, Document, Entry, Table, Tone};
use crate::record::Record;
use crate::stats;
use crate::units;

/// A rate, over the rounds in which it was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Operations or bytes per second: the median of the rounds.
    pub median: f64,
    /// The lowest round.
    pub low: f64,
    /// The highest round.
    pub high: f64,
    /// Rounds.
    pub rounds: u64,
}

impl Rate {
    /// Of the rounds' values; `None` of nothing.
    pub fn of(values: &[f64]) -> Option<Rate> {
        Some(Rate {
            median: stats::median(values)?,
            low: stats::percentile(values, 0.0)?,
            high: stats::percentile(values, 100.0)?,
            rounds: values.len() as u64,
        })
    }

    /// How far the rounds lie apart, as a share of the median.
    pub fn spread(&self) -> f64 {
        (self.high - self.low) / self.median
    }
}

/// What a disk does with O_DIRECT.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskRates {
    /// Bytes per second read.
    pub read: Option<Rate>,
    /// Bytes per second written and synced.
    pub write: Option<Rate>,
}

/// The ceilings of some threads together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Threads {
    /// How many.
    pub threads: u64,
    /// Floating-point operations per second on registers, by type.
    pub matrix: Vec<(String, Option<Rate>)>,
    /// Bytes per second of memory, by what is done: read, write, copy, triad.
    pub memory: Vec<(String, Option<Rate>)>,
    /// Of the disk.
    pub disk: DiskRates,
}

impl Threads {
    /// Every rate with its name, as `matrix.f32`; absent ones too.
    pub fn rates(&self) -> Vec<(String, Option<&Rate>)> {
        let matrix = self.matrix.iter().map(|(name, rate)| (format!("matrix.{name}"), rate.as_ref()));
        let memory = self.memory.iter().map(|(name, rate)| (format!("memory.{name}"), rate.as_ref()));
        let disk = [("disk.read", &self.disk.read), ("disk.write", &self.disk.write)];
        matrix.chain(memory).chain(disk.map(|(name, rate)| (name.to_string(), rate.as_ref()))).collect()
    }
}

/// Everything that was measured: a part of a record, under `ceilings`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// For each number of threads.
    pub threads: Vec<Threads>,
    /// Why a rate is absent, by its name.
    pub unstated: Vec<(String, String)>,
}

/// The section of these records.
pub(super) fn report(document: &mut Document, records: &[&Record]) {
    if records.is_empty() {
        return;
    }
    document.heading("Ceilings of the machine");
    document.paragraph(
        "Rates of all threads together. matrix: multiply-adds on registers alone; memory: streams over arrays larger than the \
         caches, write, copy and triad past them; disk: a file with O_DIRECT. Spread: highest less lowest round, as a share of \
         the median.",
    );
    for record in records {
        let stored = record.extra.get("ceilings").cloned().and_then(|value| serde_json::from_value(value).ok());
        let ceilings: Ceilings = stored.unwrap_or_default();
        let state = match record.is_measured() {
            true => String::new(),
            false => format!(" {}: {}", record.outcome.status.words(), record.outcome.reason),
        };
        document.paragraph(format!("Record {} of {}.{state}", record.id, record.started));
        document.table(table(record, &ceilings));
        document.list(ceilings.unstated.iter().map(|(name, why)| format!("{name} is not stated: {why}.")).collect());
        document.list(record.notes.clone());
    }
}

fn table(record: &Record, ceilings: &Ceilings) -> Table {
    let columns = vec![
        Column::words("record").for_machines(),
        Column::numbers("threads", ""),
        Column::words("ceiling"),
        Column::numbers("median", "per s"),
        Column::numbers("lowest", "per s"),
        Column::numbers("highest", "per s"),
        Column::numbers("spread", "fraction"),
        Column::numbers("rounds", "").for_machines(),
    ];
    let mut table = Table::new("ceilings", columns);
    for of in &ceilings.threads {
        for (name, rate) in of.rates() {
            let shown = |value: f64| match name.starts_with("matrix") {
                true => format!("{}/s", units::flops(value)),
                false => format!("{}/s", units::traffic(value)),
            };
            let number = |of: fn(&Rate) -> f64| Entry::maybe(rate.map(of), shown);
            let tone = if record.is_measured() { Tone::Plain } else { Tone::Warning };
            table.row(vec![
                Entry::words(&record.id),
                Entry::whole(of.threads, of.threads.to_string()),
                Entry::words(&name),
                number(|rate| rate.median).toned(tone),
                number(|rate| rate.low),
                number(|rate| rate.high),
                Entry::maybe(rate.map(Rate::spread), units::percent),
                Entry::maybe(rate.map(|rate| rate.rounds as f64), units::quantity),
            ]);
        }
    }
    table
}
