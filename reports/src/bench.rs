//! What the suites `gemm`, `attention`, `checkpoint`, `io` and `calibrate` write into records, and the documents made of it.

mod attention;
mod ceilings;
pub mod checkpoint;
mod device;
mod figure;
mod gemm;
pub mod io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::document::{Document, Entry, Tone};
use crate::gather::{counted, grouped};
use crate::record::Record;
use crate::stats;
use crate::units;

pub use ceilings::{Ceilings, DiskRates, Rate, Threads};
pub use device::{DeviceCeilings, DeviceRate, device_ceilings};

/// The suites that this module knows, by their names in records.
pub const SUITES: [&str; 5] = ["gemm", "attention", "calibrate", "checkpoint", "io"];

/// The suite of a record, if it is one of these.
pub fn suite(record: &Record) -> Option<&'static str> {
    let name = record.setting("suite").and_then(Value::as_str)?;
    SUITES.into_iter().find(|suite| *suite == name)
}

/// One kernel, timed: a part of a record, under `timings`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// `gemm`, `flash`, `naive`.
    pub kernel: String,
    /// `forward`, `backward`; empty for a matrix product.
    #[serde(default)]
    pub pass: String,
    /// Floating-point operations of a call, by the convention stated in the document.
    pub flops: u64,
    /// Calls in one sample.
    pub calls_per_sample: u64,
    /// Samples.
    pub samples: u64,
    /// Microseconds of a call: the median of the samples.
    pub median_us: f64,
    /// 10th percentile of the samples.
    pub p10_us: f64,
    /// 90th percentile of the samples.
    pub p90_us: f64,
    /// 10^9 operations per second at the median.
    pub gflops: f64,
    /// Share of the ceiling; absent where the ceiling is not known.
    pub share: Option<f64>,
    /// Bytes kept for backward, exact from the arena.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_bytes: Option<u64>,
    /// Bytes of scratch, exact from the arena.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_bytes: Option<u64>,
    /// Elements that were compared with f64.
    pub checked: u64,
    /// The largest distance from f64 as a share of the allowed one: above 1 is wrong.
    pub worst: f64,
    /// Why it was not timed, or what is wrong with it; else empty.
    #[serde(default)]
    pub trouble: String,
}

/// The ceiling that was measured beside the timings: a part of a record, under `ceiling`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// The data type.
    pub dtype: String,
    /// 10^9 operations per second of all threads together, the larger of the two measurements; absent with a reason.
    pub gflops: Option<f64>,
    /// As measured before the timings.
    pub before: Option<f64>,
    /// As measured after the timings.
    pub after: Option<f64>,
    /// Why it is not known; empty where it is.
    #[serde(default)]
    pub reason: String,
}

/// A short description of a record of these suites.
pub fn label(record: &Record) -> Option<String> {
    let number = |path: &str| count(record, path).to_string();
    let threads = computing_words(record);
    // A refused combination has what was written for it and no more.
    let is_refused = |key: &str| record.setting(key).is_none();
    Some(match suite(record)? {
        "gemm" if is_refused("gemm.layout") => return None,
        "attention" if is_refused("attention.pass") || is_refused("attention.batch") => return None,
        "gemm" => {
            let [shape, layout, dtype, output] =
                ["shape", "layout", "dtype", "output"].map(|key| text(record, &format!("gemm.{key}")));
            let output = match record.setting("gemm.accumulate").and_then(Value::as_bool) {
                Some(true) => format!(" += {output}"),
                _ if dtype == output || output.is_empty() => String::new(),
                _ => format!(" into {output}"),
            };
            format!("{shape} {layout} {dtype}{output}, {threads}")
        }
        "attention" => {
            let [batch, seq, heads, kv, dim] =
                ["batch", "seq_len", "heads", "kv_heads", "head_dim"].map(|key| number(&format!("attention.{key}")));
            let window = match count(record, "attention.window") {
                0 => String::new(),
                window => format!(" window {window}"),
            };
            let [dtype, pass] = ["dtype", "pass"].map(|key| text(record, &format!("attention.{key}")));
            format!("{batch} x {seq} tokens{window}, {heads}/{kv} heads of {dim}, {dtype} {pass}, {threads}")
        }
        "checkpoint" => checkpoint::label(record),
        "io" => return io::label(record),
        _ if record.extra.contains_key("device_ceilings") => "ceilings of a GPU".to_string(),
        _ => "ceilings of the machine".to_string(),
    })
}

/// The timings of a record.
pub fn timings(record: &Record) -> Vec<Timing> {
    part(record, "timings").unwrap_or_default()
}

/// The ceiling of a record.
pub fn ceiling(record: &Record) -> Ceiling {
    part(record, "ceiling").unwrap_or_default()
}

/// What a record has under this key beside its own fields, if it can be read.
fn part<T: DeserializeOwned>(record: &Record, key: &str) -> Option<T> {
    T::deserialize(record.extra.get(key)?).ok()
}

/// A document of these suites' records alone.
pub fn document(records: &[&Record]) -> Document {
    let mut document = Document::new(title(records));
    report(&mut document, records);
    document
}

/// The title of a document of these records.
pub fn title<'a>(records: &[&'a Record]) -> &'a str {
    records.iter().map(|record| record.name.as_str()).find(|name| !name.is_empty()).unwrap_or("kernels")
}

/// Adds the sections of these suites' records; other records are ignored.
pub fn report(document: &mut Document, records: &[&Record]) {
    let of =
        |name: &str| -> Vec<&Record> { records.iter().copied().filter(|record| suite(record) == Some(name)).collect() };
    gemm::report(document, &of("gemm"));
    attention::report(document, &of("attention"));
    checkpoint::report(document, &of("checkpoint"));
    io::report(document, &of("io"));
    let calibrated = of("calibrate");
    let of_gpus: Vec<_> = calibrated.iter().filter_map(|record| Some((*record, device_ceilings(record)?))).collect();
    let is_of_gpu = |record: &&Record| record.extra.contains_key("device_ceilings");
    ceilings::report(document, &calibrated.iter().copied().filter(|record| !is_of_gpu(record)).collect::<Vec<_>>());
    device::report(document, &of_gpus);
    let flagged: Vec<&&Record> =
        records.iter().filter(|record| suite(record).is_some() && !record.validity.is_empty()).collect();
    if !flagged.is_empty() {
        let mut flags: Vec<String> = flagged.iter().flat_map(|record| record.validity.clone()).collect();
        flags.sort_unstable();
        flags.dedup();
        document.paragraph(format!(
            "{} of {} of these records {} validity flags ({}): something else had a part in their times. zbench show ID says more.",
            flagged.len(),
            records.iter().filter(|record| suite(record).is_some()).count(),
            if flagged.len() == 1 { "has" } else { "have" },
            units::list(&flags)
        ));
    }
}

/// The trials of one cell, oldest first.
struct Trials<'a> {
    records: Vec<&'a Record>,
}

impl<'a> Trials<'a> {
    /// Records gathered by key, in the order in which the keys first occur. Trials that did not run are not shown where another
    /// trial of the cell did.
    fn gather(records: &[&'a Record]) -> Vec<Trials<'a>> {
        Trials::gather_by(records, |record| !timings(record).is_empty())
    }

    /// The same, where other records than those with timings are shown.
    fn gather_by(records: &[&'a Record], is_shown: impl Fn(&Record) -> bool) -> Vec<Trials<'a>> {
        let trials = |(_, mut records): (_, Vec<&'a Record>)| {
            if records.iter().any(|record| record.is_measured() && is_shown(record)) {
                records.retain(|record| is_shown(record));
            }
            Trials { records }
        };
        grouped(records.iter().map(|&record| (&record.key, record))).into_iter().map(trials).collect()
    }

    /// The newest trial.
    fn last(&self) -> &'a Record {
        self.records[self.records.len() - 1]
    }

    /// Whether a trial gave a wrong result. Then no number of the cell counts.
    fn is_wrong(&self) -> bool {
        self.records.iter().any(|record| timings(record).iter().any(|timing| timing.worst > 1.0))
    }

    /// The timing of this kernel and pass, medians over the trials, and the number of trials that have one.
    fn timing(&self, kernel: &str, pass: &str) -> Option<(Timing, u64)> {
        let is_it = |timing: &Timing| timing.kernel == kernel && timing.pass == pass && timing.samples > 0;
        let found: Vec<Timing> =
            self.records.iter().filter_map(|record| timings(record).into_iter().find(is_it)).collect();
        let median = |of: fn(&Timing) -> f64| stats::median(&found.iter().map(of).collect::<Vec<_>>());
        let shares: Vec<f64> = found.iter().filter_map(|timing| timing.share).collect();
        let last = found.last()?.clone();
        let middle = Timing {
            median_us: median(|timing| timing.median_us)?,
            p10_us: median(|timing| timing.p10_us)?,
            p90_us: median(|timing| timing.p90_us)?,
            gflops: median(|timing| timing.gflops)?,
            share: stats::median(&shares),
            worst: found.iter().map(|timing| timing.worst).fold(0.0, f64::max),
            ..last
        };
        Some((middle, found.len() as u64))
    }
}

/// A setting as a number, 0 where there is none.
fn count(record: &Record, path: &str) -> u64 {
    record.setting(path).and_then(Value::as_u64).unwrap_or(0)
}

/// The number of threads that computed, or `GPU`.
fn computing(record: &Record) -> String {
    match text(record, "hardware.device").as_str() {
        "cuda" => "GPU".into(),
        _ => count(record, "hardware.threads_per_rank").to_string(),
    }
}

/// `1 thread`, `4 threads` or `GPU`.
fn computing_words(record: &Record) -> String {
    match computing(record).as_str() {
        "1" => "1 thread".into(),
        "GPU" => "GPU".into(),
        many => format!("{many} threads"),
    }
}

/// A setting as text, empty where there is none.
fn text(record: &Record, path: &str) -> String {
    record.setting(path).and_then(Value::as_str).unwrap_or_default().to_string()
}

/// A count, with separators of thousands.
fn quantity(count: Option<u64>) -> Entry {
    Entry::maybe(count.map(|count| count as f64), units::quantity)
}

/// How to read a number of a timing.
fn tone(is_wrong: bool) -> Tone {
    if is_wrong { Tone::Struck } else { Tone::Plain }
}

/// The outcome of a cell in a word.
fn outcome(trials: &Trials) -> Entry {
    let record = trials.last();
    let tone = if record.is_measured() { Tone::Plain } else { Tone::Warning };
    Entry::words(record.outcome.status.name()).toned(tone)
}

/// The largest distance from f64 as a share of what is allowed.
fn checked(timing: &Timing) -> Entry {
    match timing.worst > 1.0 {
        true => Entry::number(timing.worst, "wrong").toned(Tone::Warning),
        false => Entry::number(timing.worst, units::percent(timing.worst)),
    }
}

/// Whether all cells were measured, so that a column of outcomes says nothing to people.
fn all_measured(all: &[Trials]) -> bool {
    all.iter().all(|trials| trials.last().is_measured())
}

/// Why cells were not measured, each reason once with its number of cells.
fn reasons(all: &[Trials]) -> Vec<String> {
    let failed = all.iter().map(Trials::last).filter(|record| !record.is_measured());
    let reasons = failed.map(|record| format!("{}: {}", record.outcome.status.words(), record.outcome.reason));
    let text = |(reason, cells): (String, usize)| match cells {
        1 => reason,
        _ => format!("{reason} ({cells} cells)"),
    };
    counted(reasons).into_iter().map(text).collect()
}
