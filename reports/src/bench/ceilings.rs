//! The ceilings of a machine, which `zbench calibrate` measures and writes into records and machine profiles.

use serde::{Deserialize, Serialize};

use super::quantity;
use crate::document::{Document, Entry, Table, Tone};
use crate::record::Record;
use crate::stats;
use crate::units;

/// A rate over several rounds of measuring.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Operations or bytes per second: the median of the rounds.
    pub median: f64,
    /// The lowest round.
    pub low: f64,
    /// The highest round.
    pub high: f64,
    /// Number of rounds.
    pub rounds: u64,
}

impl Rate {
    /// From the values of the rounds; `None` without any.
    pub fn of(values: &[f64]) -> Option<Rate> {
        Some(Rate {
            median: stats::median(values)?,
            low: stats::percentile(values, 0.0)?,
            high: stats::percentile(values, 100.0)?,
            rounds: values.len() as u64,
        })
    }

    /// The difference of the highest and the lowest round as a share of the median.
    pub fn spread(&self) -> f64 {
        (self.high - self.low) / self.median
    }
}

/// The rates of a disk with O_DIRECT.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskRates {
    /// Bytes per second read.
    pub read: Option<Rate>,
    /// Bytes per second written and synced.
    pub write: Option<Rate>,
}

/// The ceilings of several threads together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Threads {
    /// Number of threads.
    pub threads: u64,
    /// Floating-point operations per second on registers, by type.
    pub matrix: Vec<(String, Option<Rate>)>,
    /// Bytes per second of memory, by operation: read, write, copy, triad.
    pub memory: Vec<(String, Option<Rate>)>,
    /// Rates of the disk.
    pub disk: DiskRates,
}

impl Threads {
    /// Every rate with its name, as `matrix.f32`, also those that are absent.
    pub fn rates(&self) -> Vec<(String, Option<&Rate>)> {
        let matrix = self.matrix.iter().map(|(name, rate)| (format!("matrix.{name}"), rate.as_ref()));
        let memory = self.memory.iter().map(|(name, rate)| (format!("memory.{name}"), rate.as_ref()));
        let disk = [("disk.read", &self.disk.read), ("disk.write", &self.disk.write)];
        matrix.chain(memory).chain(disk.map(|(name, rate)| (name.to_string(), rate.as_ref()))).collect()
    }
}

/// All that was measured: a part of a record, under `ceilings`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// One for each number of threads.
    pub threads: Vec<Threads>,
    /// Why a rate is absent, by its name.
    pub unstated: Vec<(String, String)>,
}

/// Adds the section of these records.
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
        let ceilings: Ceilings = super::part(record, "ceilings").unwrap_or_default();
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
    let tone = if record.is_measured() { Tone::Plain } else { Tone::Warning };
    let rates = |of: &'_ Threads| -> Vec<(u64, String, Option<Rate>)> {
        of.rates().into_iter().map(|(name, rate)| (of.threads, name, rate.cloned())).collect()
    };
    let rows: Vec<_> = ceilings.threads.iter().flat_map(rates).collect();
    let number = |(_, name, rate): &(u64, String, Option<Rate>), value: fn(&Rate) -> f64| {
        let show = if name.starts_with("matrix") { units::flops } else { units::traffic };
        Entry::maybe(rate.as_ref().map(value), |value| format!("{}/s", show(value)))
    };
    let mut table = Table::of("ceilings", &rows);
    table.words("record", |_| &record.id).for_machines = true;
    table.numbers("threads", "", |(threads, ..)| *threads);
    table.words("ceiling", |(_, name, _)| name);
    table.numbers("median", "per s", |row| number(row, |rate| rate.median).toned(tone));
    table.numbers("lowest", "per s", |row| number(row, |rate| rate.low));
    table.numbers("highest", "per s", |row| number(row, |rate| rate.high));
    table.numbers("spread", "fraction", |(.., rate)| Entry::maybe(rate.as_ref().map(Rate::spread), units::percent));
    table.numbers("rounds", "", |(.., rate)| quantity(rate.as_ref().map(|rate| rate.rounds))).for_machines = true;
    table.build()
}
