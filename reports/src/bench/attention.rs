//! Attention: flash and naive side by side.

use super::{Timing, Trials, all_measured, ceiling, checked, outcome, quantity, reasons, timings, tone};
use crate::document::{Document, Entry, Table, Tone};
use crate::record::Record;
use crate::units;

/// Adds the section of these records.
pub(super) fn report(document: &mut Document, records: &[&Record]) {
    if records.is_empty() {
        return;
    }
    let all = Trials::gather(records);
    document.heading("Attention");
    document.paragraph(
        "Causal attention. Operations by Megatron-LM's convention: of B sequences, H heads of D elements and S tokens, forward \
         2 B H D S^2 (half of the square for each of two products; of a window of W tokens W (2 S - W) in place of S^2), \
         backward twice that, and flash's backward 2.5 times, as it computes the scores again. Saved is what forward keeps for \
         backward beside q, k and v: the output and a sum for each row (flash), or the output and all probabilities (naive). \
         Both numbers of bytes are what an arena was asked for.",
    );
    document.table(kernels(&all));
    document.list(reasons(&all));
}

/// A row for each timing of a cell's newest trial, with the medians over its trials and their number.
struct Row<'a> {
    trials: &'a Trials<'a>,
    record: &'a Record,
    own: Timing,
    medians: Option<(Timing, u64)>,
}

impl<'a> Row<'a> {
    fn of(trials: &'a Trials<'a>) -> Vec<Self> {
        let record = trials.last();
        let mut timings = timings(record);
        if timings.is_empty() {
            timings.push(Timing { trouble: record.outcome.reason.clone(), ..Timing::default() });
        }
        let row = |own: Timing| Row { trials, record, medians: trials.timing(&own.kernel, &own.pass), own };
        timings.into_iter().map(row).collect()
    }

    fn timing(&self) -> Option<&Timing> {
        self.medians.as_ref().map(|(timing, _)| timing)
    }

    fn is_wrong(&self) -> bool {
        self.timing().is_some_and(|timing| timing.worst > 1.0)
    }

    fn number(&self, value: impl Fn(&Timing) -> f64) -> Entry {
        Entry::maybe(self.timing().map(value), units::number).toned(tone(self.is_wrong()))
    }
}

fn kernels(all: &[Trials]) -> Table {
    let is_troubled = |trials: &Trials| {
        let all = timings(trials.last());
        all.is_empty() || all.iter().any(|timing| !timing.trouble.is_empty())
    };
    let rows: Vec<Row> = all.iter().flat_map(Row::of).collect();
    let mut table = Table::of("attention", &rows);
    table.words("record", |row| &row.record.id);
    table.words("key", |row| &row.record.key).for_machines = true;
    table.words("of", |row| super::label(row.record));
    for (title, key) in [
        ("batch", "batch"),
        ("heads", "heads"),
        ("kv heads", "kv_heads"),
        ("head dim", "head_dim"),
        ("tokens", "seq_len"),
    ] {
        table.numbers(title, "", |row| row.record.setting(&format!("attention.{key}"))).for_machines = true;
    }
    let window = |record: &'_ Record| match super::count(record, "attention.window") {
        0 => Entry::words("all"),
        _ => record.setting("attention.window").into(),
    };
    table.words("window", |row| window(row.record)).for_machines = true;
    table.words("type", |row| row.record.setting("attention.dtype")).for_machines = true;
    table.numbers("threads", "", |row| super::computing(row.record)).for_machines = true;
    table.words("kernel", |row| &row.own.kernel);
    table.words("pass", |row| &row.own.pass);
    table.words("outcome", |row| outcome(row.trials)).for_machines = all_measured(all);
    let trials = |row: &Row| row.medians.as_ref().map(|(_, count)| *count);
    table.numbers("trials", "", |row| quantity(trials(row))).for_machines = true;
    table.numbers("median", "ms", |row| row.number(|timing| timing.median_us / 1e3));
    table.numbers("p10", "ms", |row| row.number(|timing| timing.p10_us / 1e3));
    table.numbers("p90", "ms", |row| row.number(|timing| timing.p90_us / 1e3));
    table.numbers("rate", "GFLOP/s", |row| row.number(|timing| timing.gflops));
    table.numbers("ceiling", "GFLOP/s", |row| Entry::maybe(ceiling(row.record).gflops, units::number));
    let share = |row: &Row| row.timing().and_then(|timing| timing.share).filter(|_| !row.is_wrong());
    table.numbers("share", "fraction", |row| Entry::maybe(share(row), units::percent));
    table.memory("saved", |row| row.own.saved_bytes);
    table.memory("workspace", |row| row.own.workspace_bytes);
    table.numbers("error", "fraction of the bound", |row| row.timing().map(checked));
    let elements = |row: &Row| row.timing().map(|timing| timing.checked);
    table.numbers("elements checked", "", |row| quantity(elements(row))).for_machines = true;
    let why = |row: &Row| {
        let tone = if row.own.trouble.is_empty() { Tone::Plain } else { Tone::Warning };
        Entry::words(&row.own.trouble).toned(tone)
    };
    table.words("why not", why).for_machines = !all.iter().any(is_troubled);
    table.build().caption(
        "Error: the largest distance of a sampled row from f64, and from the other kernel, as a share of the bound.",
    )
}
