//! What is in the notebook: the list of records, and one record in full.

mod screen;

use std::collections::{BTreeMap, BTreeSet};

use crate::document::{Column, Document, Entry, Table, Tone};
use crate::environment::flatten;
use crate::grid::labels::{first_letters, labels_of, telling_length};
use crate::record::{Category, Record, Remark};
use crate::screen::Room;
use crate::stats;
use crate::store::Contents;
use crate::units;

/// Steps shown at the beginning and at the end of a long run.
const STEPS_SHOWN: usize = 20;

/// One row for each record, in the order given.
pub fn list(records: &[Record]) -> Document {
    list_with(records, &[], None)
}

/// One row for each record, in the order given, with the tags and remarks made on it. `of`: how many there are in all, where
/// these are some of them.
pub fn list_with(records: &[Record], remarks: &[Remark], of: Option<usize>) -> Document {
    let mut document = Document::new("Records");
    match of {
        None | Some(0) if records.is_empty() => {
            document.paragraph("The notebook is empty; zbench grid FILE or zbench run FILE fills it.");
            return document;
        }
        Some(all) if records.is_empty() => {
            document.paragraph(format!("None of {}.", units::plural(all, "record", "records")));
            return document;
        }
        _ => {}
    }
    let contents = Contents { remarks: remarks.to_vec(), ..Contents::default() };
    let tags = contents.tags();
    let mut said: BTreeMap<&str, u64> = BTreeMap::new();
    remarks
        .iter()
        .filter(|remark| !remark.is_tagging())
        .for_each(|remark| *said.entry(&remark.note_for).or_default() += 1);
    let labels = labels_of(&records.iter().collect::<Vec<_>>());
    let columns = vec![
        Column::words("record"),
        Column::words("started"),
        Column::words("name"),
        Column::words("cell"),
        Column::words("strategy").for_machines(),
        Column::numbers("ranks", ""),
        Column::words("key"),
        Column::numbers("trial", ""),
        Column::words("outcome"),
        Column::numbers("tokens/s", "tokens/s"),
        Column::numbers("peak memory", "bytes"),
        Column::words("loss parity"),
        Column::words("flags"),
        Column::words("tags"),
        Column::numbers("remarks", ""),
        Column::words("reason").for_machines(),
    ];
    let mut table = Table::new("records", columns);
    let id_length = telling_length(records.iter().map(|record| record.id.as_str()));
    let key_length = telling_length(records.iter().map(|record| record.key.as_str()));
    for (record, label) in records.iter().zip(&labels) {
        let setting = |path: &str| record.setting(path).map_or_else(Entry::nothing, Entry::json);
        let tone = if record.is_measured() { Tone::Plain } else { Tone::Warning };
        table.row(vec![
            Entry { text: first_letters(&record.id, id_length).to_string(), ..Entry::words(&record.id) },
            Entry::words(&record.started),
            Entry::words(&record.name),
            Entry::words(label),
            setting("parallel.strategy"),
            setting("parallel.ranks"),
            Entry { text: first_letters(&record.key, key_length).to_string(), ..Entry::words(&record.key) },
            Entry::whole(u64::from(record.trial), record.trial.to_string()),
            Entry::words(record.outcome.status.name()).toned(tone),
            Entry::maybe(record.metrics.number("tokens_per_second"), units::number),
            Entry::maybe(record.metrics.number("peak_memory_bytes"), units::memory),
            Entry::words(record.parity.verdict.words()),
            Entry::words(record.validity.join(", ")),
            Entry::words(tags.get(record.id.as_str()).map_or(String::new(), |of| joined(of))),
            said.get(record.id.as_str()).map_or_else(Entry::nothing, |count| Entry::whole(*count, count.to_string())),
            Entry::words(&record.outcome.reason),
        ]);
    }
    document.table(table);
    let of = of.map_or(String::new(), |all| format!(" of {all}"));
    document.paragraph(format!("{}{of}.", units::plural(records.len(), "record", "records")));
    document
}

fn joined(tags: &BTreeSet<&str>) -> String {
    tags.iter().copied().collect::<Vec<_>>().join(", ")
}

/// One run: a screen for this room, and behind it everything that its record holds.
pub fn run(record: &Record, room: Room) -> Document {
    Document { screen: Some(screen::of(record, room)), ..show(record, &[]) }
}

/// Everything that a record holds, and the remarks made on it.
pub fn show(record: &Record, remarks: &[Remark]) -> Document {
    let title = if record.name.is_empty() { &record.id } else { &record.name };
    let mut document = Document::new(title);
    let contents = Contents { remarks: remarks.to_vec(), ..Contents::default() };
    let tags = contents.tags();
    document.table(head(record, tags.get(record.id.as_str()).map_or(String::new(), |of| joined(of))));
    if !record.outcome.reason.is_empty() {
        document.paragraph(format!("{}: {}", record.outcome.status.words(), record.outcome.reason));
    }
    let is_own = |remark: &&Remark| remark.note_for == record.id && !remark.is_tagging();
    let own: Vec<&Remark> = remarks.iter().filter(is_own).collect();
    if !own.is_empty() {
        document.heading("Remarks");
        document.list(own.iter().map(|remark| format!("{}: {}", remark.when, remark.text)).collect());
    }
    if !record.notes.is_empty() {
        document.heading("Notes");
        document.list(record.notes.clone());
    }
    if let Some(figure) = crate::figures::run_loss(record) {
        document.heading("Course of the run");
        document.figure(Some(figure));
    }
    let tables = [
        ("Metrics", metrics(record)),
        ("Memory of the largest rank", memory(record)),
        ("Time of a step", time(record)),
        ("Communication per step", communication(record)),
        ("Ranks", ranks(record)),
        ("Floating-point operations", flops(record)),
        ("Steps", steps(record)),
        ("Environment", environment(record)),
    ];
    for (heading, table) in tables {
        if !table.rows.is_empty() {
            document.heading(heading);
            document.table(table);
        }
    }
    if !record.estimate.is_null() {
        document.heading("Estimate made before the run");
        document.code(format!("{:#}", record.estimate));
    }
    document.heading("Resolved configuration");
    document.code(format!("{:#}", record.cell));
    if !record.extra.is_empty() {
        document.heading("Other keys");
        document.code(format!("{:#}", serde_json::Value::Object(record.extra.clone())));
    }
    document.heading("Repeat it");
    document.code(format!("zbench repro {}", record.id));
    if !record.command.is_empty() {
        document.paragraph("It was made by:");
        document.code(&record.command);
    }
    document
}

fn head(record: &Record, tags: String) -> Table {
    let mut table = Table::new("record", vec![Column::words("what"), Column::words("value")]);
    let parity = &record.parity;
    let against = parity.reference.as_deref().map_or(String::new(), |id| format!(", reference {}", id));
    let difference = parity.max_loss_difference.map_or(String::new(), |difference| {
        format!(", largest relative loss difference {}", units::number(difference))
    });
    let source = record.outcome.source.map_or(String::new(), |source| format!(" (found by {})", source.name()));
    let flags = if record.validity.is_empty() { "none".to_string() } else { record.validity.join(", ") };
    for (what, value) in [
        ("id", record.id.clone()),
        ("configuration key", record.key.clone()),
        ("trial", record.trial.to_string()),
        ("started", record.started.clone()),
        ("outcome", format!("{}{source}", record.outcome.status.name())),
        ("loss parity", format!("{}{against}{difference}", parity.verdict.words())),
        ("validity flags", flags),
        ("tags", tags),
        ("schema", record.schema.to_string()),
    ] {
        if what == "tags" && value.is_empty() {
            continue;
        }
        table.row(vec![Entry::words(what), Entry::words(value)]);
    }
    table
}

fn metrics(record: &Record) -> Table {
    let columns = vec![Column::words("metric"), Column::numbers("value", ""), Column::words("why there is no value")];
    let mut table = Table::new("metrics", columns);
    for (name, value) in record.metrics.iter() {
        let reason = record.unstated.get(name).map_or("", String::as_str);
        table.row(vec![
            Entry::words(name),
            Entry::maybe(*value, |value| metric_text(name, value)),
            Entry::words(reason),
        ]);
    }
    for (name, reason) in record.unstated.iter().filter(|(name, _)| record.metrics.get(name).is_none()) {
        table.row(vec![Entry::words(name), Entry::nothing(), Entry::words(reason)]);
    }
    table
}

/// A metric's unit is in its name.
fn metric_text(name: &str, value: f64) -> String {
    if name.ends_with("_bytes") {
        units::memory(value)
    } else if name.ends_with("_gb_s") {
        format!("{} GB/s", units::number(value))
    } else if name.ends_with("_ms") || name.starts_with("step_ms") {
        format!("{} ms", units::number(value))
    } else if name.contains("mfu") || name == "hfu" || name.ends_with("_share") {
        units::percent(value)
    } else if name.starts_with("tflops") {
        format!("{} TFLOP/s", units::number(value))
    } else if name.contains("tokens_per_second") {
        format!("{} tokens/s", units::number(value))
    } else if ["skipped_steps", "loss_scale_last"].contains(&name) {
        units::quantity(value)
    } else if name.starts_with("loss") || name.starts_with("eval_loss") {
        format!("{value:.6}")
    } else {
        units::number(value)
    }
}

fn memory(record: &Record) -> Table {
    let columns = vec![
        Column::words("category"),
        Column::numbers("plan", "bytes"),
        Column::numbers("peak", "bytes"),
        Column::numbers("at the peak of all", "bytes"),
    ];
    let mut table = Table::new("memory", columns);
    let categories = Category::ALL.into_iter().map(|category| (category.name(), record.memory.get(category)));
    for (name, bytes) in categories.chain([("all together", record.memory.total.as_ref())]) {
        if let Some(bytes) = bytes {
            table.row(vec![
                Entry::words(name),
                Entry::memory(bytes.predicted_bytes),
                Entry::memory(bytes.peak_bytes),
                Entry::memory(bytes.at_peak_bytes),
            ]);
        }
    }
    table
}

fn time(record: &Record) -> Table {
    let columns = vec![Column::words("span"), Column::numbers("time", "ms"), Column::numbers("share", "fraction")];
    let mut table = Table::new("time", columns).caption("Slowest rank, mean of the timed steps.");
    let sum: f64 = record.time.iter().filter_map(|(name, _)| record.time.number(name)).sum();
    for name in record.time.names() {
        let ms = record.time.number(name);
        let share = ms.filter(|_| sum > 0.0).map(|ms| ms / sum);
        table.row(vec![
            Entry::words(name),
            Entry::maybe(ms, |ms| format!("{} ms", units::number(ms))),
            Entry::maybe(share, units::percent),
        ]);
    }
    table
}

fn communication(record: &Record) -> Table {
    let columns = vec![
        Column::words("axis"),
        Column::words("collective"),
        Column::numbers("calls", "per step"),
        Column::numbers("payload", "bytes"),
        Column::numbers("wire", "bytes"),
        Column::numbers("wire, plan", "bytes"),
        Column::numbers("time", "ms"),
        Column::numbers("exposed", "ms"),
        Column::numbers("algbw", "GB/s"),
        Column::numbers("busbw", "GB/s"),
    ];
    let mut table = Table::new("communication", columns);
    for entry in &record.communication {
        let ms = |ms: f64| format!("{} ms", units::number(ms));
        let bandwidth = |rate: f64| format!("{} GB/s", units::number(rate));
        table.row(vec![
            Entry::words(&entry.axis),
            Entry::words(&entry.kind),
            Entry::maybe(Some(entry.calls), units::quantity),
            Entry::maybe(Some(entry.payload_bytes), units::traffic),
            Entry::measured(Some(entry.wire_bytes), record.wire_is_planned(), units::traffic),
            Entry::maybe(entry.predicted_wire_bytes, units::traffic),
            Entry::maybe(Some(entry.ms), ms),
            Entry::maybe(Some(entry.exposed_ms), ms),
            Entry::maybe(entry.algbw_gb_s, bandwidth),
            Entry::maybe(entry.busbw_gb_s, bandwidth),
        ]);
    }
    table
}

fn ranks(record: &Record) -> Table {
    let columns = vec![
        Column::numbers("rank", ""),
        Column::words("host"),
        Column::numbers("step p50", "ms"),
        Column::numbers("peak memory", "bytes"),
    ];
    let mut table = Table::new("ranks", columns);
    for rank in &record.ranks {
        table.row(vec![
            Entry::whole(rank.rank, rank.rank.to_string()),
            Entry::words(&rank.host),
            Entry::maybe(rank.step_ms_p50, |ms| format!("{} ms", units::number(ms))),
            Entry::memory(rank.peak_bytes),
        ]);
    }
    table
}

fn flops(record: &Record) -> Table {
    let columns =
        vec![Column::words("convention or term"), Column::numbers("operations", "FLOP"), Column::words("formula")];
    let mut table = Table::new("flops", columns);
    for (name, value) in record.flops.conventions.iter().filter(|(name, _)| *name != "source") {
        let entry = value.as_f64().map_or_else(|| Entry::json(value), |value| Entry::maybe(Some(value), units::flops));
        table.row(vec![Entry::words(name), entry, Entry::words("")]);
    }
    for term in &record.flops.ledger {
        table.row(vec![
            Entry::words(format!("ledger: {}", term.term)),
            Entry::maybe(Some(term.flops), units::flops),
            Entry::words(&term.formula),
        ]);
    }
    table
}

/// The steps, the middle of a long run left out; the caption says how much their times vary.
fn steps(record: &Record) -> Table {
    let mut columns = vec![
        Column::numbers("step", ""),
        Column::words("timed"),
        Column::numbers("loss", "nats"),
        Column::numbers("gradient norm", ""),
        Column::numbers("learning rate", ""),
        Column::numbers("time", "ms"),
        Column::numbers("tokens", ""),
    ];
    let is_scaled = record.steps.iter().any(|step| step.loss_scale().is_some());
    if is_scaled {
        columns.push(Column::numbers("loss scale", ""));
        columns.push(Column::words("updated"));
    }
    let mut table = Table::new("steps", columns);
    let count = record.steps.len();
    let is_shown = |place: usize| count <= 2 * STEPS_SHOWN || place < STEPS_SHOWN || place >= count - STEPS_SHOWN;
    for (_, step) in record.steps.iter().enumerate().filter(|(place, _)| is_shown(*place)) {
        let mut row = vec![
            Entry::whole(step.step, step.step.to_string()),
            Entry::words(if step.timed { "yes" } else { "no" }),
            Entry::maybe(Some(step.loss), |loss| format!("{loss:.6}")),
            Entry::maybe(Some(step.grad_norm), |norm| format!("{norm:.4}")),
            Entry::maybe(Some(step.lr), units::number),
            Entry::maybe(Some(step.ms), |ms| format!("{} ms", units::number(ms))),
            Entry::whole(step.tokens, units::count(step.tokens)),
        ];
        if is_scaled {
            row.push(Entry::maybe(step.loss_scale(), units::quantity));
            row.push(Entry::words(if step.is_skipped() { "no: gradients overflowed" } else { "yes" }));
        }
        table.row(row);
    }
    let times: Vec<f64> = record.timed_steps().map(|step| step.ms).collect();
    let mut caption = Vec::new();
    if let (Some(median), Some(variation)) = (stats::median(&times), stats::coefficient_of_variation(&times)) {
        caption.push(format!(
            "{}: median {} ms, coefficient of variation {}.",
            units::plural(times.len(), "timed step", "timed steps"),
            units::number(median),
            units::percent(variation)
        ));
    }
    if table.rows.len() < count {
        let id = &record.id;
        caption.push(format!("The first and last {STEPS_SHOWN} of {count}; zbench show {id} --format json has all."));
    }
    table.caption(caption.join(" "))
}

fn environment(record: &Record) -> Table {
    let mut table = Table::new("environment", vec![Column::words("what"), Column::words("value")]);
    for (path, value) in flatten(&record.environment) {
        table.row(vec![Entry::words(path), Entry::json(&value)]);
    }
    table
}
