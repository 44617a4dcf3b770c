//! Attention: flash and naive side by side.

use super::{Timing, Trials, ceiling, checked, outcome, outcomes, timings, tone, troubles, word};
use crate::document::{Column, Document, Entry, Table, Tone};
use crate::record::Record;
use crate::units;

/// The section of these records.
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
    document.list(troubles(&all));
}

fn kernels(all: &[Trials]) -> Table {
    let is_troubled = |trials: &Trials| {
        let all = timings(trials.last());
        all.is_empty() || all.iter().any(|timing| !timing.trouble.is_empty())
    };
    let (has_trouble, why) = (all.iter().any(is_troubled), Column::words("why not"));
    let columns = vec![
        Column::words("record"),
        Column::words("key").for_machines(),
        Column::words("of"),
        Column::numbers("batch", "").for_machines(),
        Column::numbers("heads", "").for_machines(),
        Column::numbers("kv heads", "").for_machines(),
        Column::numbers("head dim", "").for_machines(),
        Column::numbers("tokens", "").for_machines(),
        Column::words("window").for_machines(),
        Column::words("type").for_machines(),
        Column::numbers("threads", "").for_machines(),
        Column::words("kernel"),
        Column::words("pass"),
        outcomes(all),
        Column::numbers("trials", "").for_machines(),
        Column::numbers("median", "ms"),
        Column::numbers("p10", "ms"),
        Column::numbers("p90", "ms"),
        Column::numbers("rate", "GFLOP/s"),
        Column::numbers("ceiling", "GFLOP/s"),
        Column::numbers("share", "fraction"),
        Column::numbers("saved", "bytes"),
        Column::numbers("workspace", "bytes"),
        Column::numbers("error", "fraction of the bound"),
        Column::numbers("elements checked", "").for_machines(),
        if has_trouble { why } else { why.for_machines() },
    ];
    let mut table = Table::new("attention", columns).caption(
        "Error: the largest distance of a sampled row from f64, and from the other kernel, as a share of the bound.",
    );
    for trials in all {
        let record = trials.last();
        let list = timings(record);
        if list.is_empty() {
            let nothing = Timing { trouble: record.outcome.reason.clone(), ..Timing::default() };
            table.row(row(trials, record, &nothing));
        }
        for own in &list {
            table.row(row(trials, record, own));
        }
    }
    table
}

fn row(trials: &Trials, record: &Record, own: &Timing) -> Vec<Entry> {
    let found = trials.timing(&own.kernel, &own.pass);
    let timing = found.as_ref().map(|(timing, _)| timing);
    let wrong = timing.is_some_and(|timing| timing.worst > 1.0);
    let ms =
        |of: fn(&Timing) -> f64| Entry::maybe(timing.map(|timing| of(timing) / 1e3), units::number).toned(tone(wrong));
    let window = match super::count(record, "attention.window") {
        0 => Entry::words("all"),
        _ => word(record, "attention.window"),
    };
    let why = if own.trouble.is_empty() { Tone::Plain } else { Tone::Warning };
    vec![
        Entry::words(&record.id),
        Entry::words(&record.key),
        super::label(record).map_or_else(Entry::nothing, Entry::words),
        word(record, "attention.batch"),
        word(record, "attention.heads"),
        word(record, "attention.kv_heads"),
        word(record, "attention.head_dim"),
        word(record, "attention.seq_len"),
        window,
        word(record, "attention.dtype"),
        Entry::words(super::computing(record)),
        Entry::words(&own.kernel),
        Entry::words(&own.pass),
        outcome(trials),
        Entry::maybe(found.as_ref().map(|(_, count)| *count as f64), units::quantity),
        ms(|timing| timing.median_us),
        ms(|timing| timing.p10_us),
        ms(|timing| timing.p90_us),
        Entry::maybe(timing.map(|timing| timing.gflops), units::number).toned(tone(wrong)),
        Entry::maybe(ceiling(record).gflops, units::number),
        Entry::maybe(timing.and_then(|timing| timing.share).filter(|_| !wrong), units::percent),
        Entry::memory(own.saved_bytes),
        Entry::memory(own.workspace_bytes),
        timing.map_or_else(Entry::nothing, checked),
        Entry::maybe(timing.map(|timing| timing.checked as f64), units::quantity),
        Entry::words(&own.trouble).toned(why),
    ]
}
