//! Reports on the notebook: the list of its records, and one record in full.

mod list;
mod screen;

pub use self::list::List;
use self::list::joined;
use crate::document::{Document, Entry, Table};
use crate::environment::flatten;
use crate::record::{Bytes, Category, Rank, Record, Remark, Step};
use crate::screen::Room;
use crate::stats;
use crate::store::tags_of;
use crate::units;
use serde_json::Value;

/// Steps shown at the beginning and at the end of a long run.
const STEPS_SHOWN: usize = 20;

/// One run: a screen for this room, and all of its record.
pub fn run(record: &Record, room: Room) -> Document {
    Document { screen: Some(screen::of(record, room)), ..show(record, &[]) }
}

/// All of a record, and the remarks on it.
pub fn show(record: &Record, remarks: &[Remark]) -> Document {
    let title = if record.name.is_empty() { &record.id } else { &record.name };
    let mut document = Document::new(title);
    let tags = tags_of(remarks);
    document.table(head(record, tags.get(record.id.as_str()).map_or(String::new(), joined)));
    if !record.outcome.reason.is_empty() {
        document.paragraph(format!("{}: {}", record.outcome.status.words(), record.outcome.reason));
    }
    let is_own = |remark: &&Remark| remark.note_for == record.id && !remark.is_tagging();
    let text = |remark: &Remark| format!("{}: {}", remark.when, remark.text);
    document.headed_list("Remarks", remarks.iter().filter(is_own).map(text).collect());
    document.headed_list("Notes", record.notes.clone());
    if let Some(figure) = crate::figures::run_loss(record) {
        document.heading("Course of the run");
        document.figure(Some(figure));
    }
    document.headed_table("Metrics", metrics(record));
    document.headed_table("Memory of the largest rank", memory(record));
    document.headed_table("Time of a step", time(record));
    document.headed_table("Communication per step", communication(record));
    document.headed_table("Ranks", ranks(record));
    document.headed_table("Stages of the pipeline", stages(record));
    document.headed_table("Floating-point operations", flops(record));
    document.headed_table("Steps", steps(record));
    document.headed_table("Environment", environment(record));
    if !record.estimate.is_null() {
        document.heading("Estimate made before the run");
        document.code(format!("{:#}", record.estimate));
    }
    document.heading("Resolved configuration");
    document.code(format!("{:#}", record.cell));
    if !record.extra.is_empty() {
        document.heading("Other keys");
        document.code(format!("{:#}", Value::Object(record.extra.clone())));
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
    let parity = &record.parity;
    let against = parity.reference.as_deref().map_or(String::new(), |id| format!(", reference {id}"));
    let difference = parity.max_loss_difference.map_or(String::new(), |difference| {
        format!(", largest relative loss difference {}", units::number(difference))
    });
    let source = record.outcome.source.map_or(String::new(), |source| format!(" (found by {})", source.name()));
    let flags = if record.validity.is_empty() { "none".to_string() } else { record.validity.join(", ") };
    let mut rows = vec![
        ("id", record.id.clone()),
        ("configuration key", record.key.clone()),
        ("trial", record.trial.to_string()),
        ("started", record.started.clone()),
        ("outcome", format!("{}{source}", record.outcome.status.name())),
        ("loss parity", format!("{}{against}{difference}", parity.verdict.words())),
        ("validity flags", flags),
        ("tags", tags),
        ("schema", record.schema.to_string()),
    ];
    rows.retain(|(what, value)| *what != "tags" || !value.is_empty());
    let mut table = Table::of("record", &rows);
    table.words("what", |(what, _)| *what);
    table.words("value", |(_, value)| value);
    table.build()
}

fn metrics(record: &Record) -> Table {
    let stated = record.metrics.iter().map(|(name, value)| (name, *value));
    let unstated = record.unstated.names().filter(|name| record.metrics.get(name).is_none());
    let rows: Vec<(&str, Option<f64>)> = stated.chain(unstated.map(|name| (name, None))).collect();
    let mut table = Table::of("metrics", &rows);
    table.words("metric", |(name, _)| *name);
    table.numbers("value", "", |(name, value)| Entry::maybe(*value, |value| metric_text(name, value)));
    table.words("why there is no value", |(name, _)| record.unstated.get(name).map_or("", String::as_str));
    table.build()
}

/// A metric's unit is in its name.
fn metric_text(name: &str, value: f64) -> String {
    if name.ends_with("_bytes") {
        units::memory(value)
    } else if name.ends_with("_gb_s") {
        format!("{} GB/s", units::number(value))
    } else if name.ends_with("_ms") || name.starts_with("step_ms") {
        format!("{} ms", units::number(value))
    } else if name.contains("mfu") || name == "hfu" || name == "bubble" || name.ends_with("_share") {
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

/// The memory of each category, then of all together.
fn categories(record: &Record) -> Vec<(&'static str, &Bytes)> {
    let categories = Category::ALL.into_iter().map(|category| (category.name(), record.memory.get(category)));
    let all = categories.chain([("all together", record.memory.total.as_ref())]);
    all.filter_map(|(name, bytes)| Some((name, bytes?))).collect()
}

fn memory(record: &Record) -> Table {
    let rows = categories(record);
    let mut table = Table::of("memory", &rows);
    table.words("category", |(name, _)| *name);
    table.memory("plan", |(_, bytes)| bytes.predicted_bytes);
    table.memory("peak", |(_, bytes)| bytes.peak_bytes);
    table.memory("at the peak of all", |(_, bytes)| bytes.at_peak_bytes);
    table.build()
}

fn ms(ms: f64) -> String {
    format!("{} ms", units::number(ms))
}

fn time(record: &Record) -> Table {
    let spans: Vec<(&str, Option<f64>)> = record.time.names().map(|name| (name, record.time.number(name))).collect();
    let sum: f64 = spans.iter().filter_map(|(_, ms)| *ms).sum();
    let share = |ms: Option<f64>| ms.filter(|_| sum > 0.0).map(|ms| ms / sum);
    let mut table = Table::of("time", &spans);
    table.words("span", |(name, _)| *name);
    table.numbers("time", "ms", |(_, time)| Entry::maybe(*time, ms));
    table.numbers("share", "fraction", |(_, time)| Entry::maybe(share(*time), units::percent));
    table.build().caption("Slowest rank, mean of the timed steps.")
}

fn communication(record: &Record) -> Table {
    let bandwidth = |rate: f64| format!("{} GB/s", units::number(rate));
    let wire = |bytes: f64| Entry::measured(Some(bytes), record.wire_is_planned(), units::traffic);
    let mut table = Table::of("communication", &record.communication);
    table.words("axis", |entry| &entry.axis);
    table.words("collective", |entry| &entry.kind);
    table.numbers("calls", "per step", |entry| Entry::maybe(Some(entry.calls), units::quantity));
    table.numbers("payload", "bytes", |entry| Entry::maybe(Some(entry.payload_bytes), units::traffic));
    table.numbers("wire", "bytes", |entry| wire(entry.wire_bytes));
    table.numbers("wire, plan", "bytes", |entry| Entry::maybe(entry.predicted_wire_bytes, units::traffic));
    table.numbers("time", "ms", |entry| Entry::maybe(Some(entry.ms), ms));
    table.numbers("exposed", "ms", |entry| Entry::maybe(Some(entry.exposed_ms), ms));
    table.numbers("algbw", "GB/s", |entry| Entry::maybe(entry.algbw_gb_s, bandwidth));
    table.numbers("busbw", "GB/s", |entry| Entry::maybe(entry.busbw_gb_s, bandwidth));
    table.build()
}

fn ranks(record: &Record) -> Table {
    let mut table = Table::of("ranks", &record.ranks);
    table.numbers("rank", "", |rank| rank.rank);
    if record.ranks.iter().any(|rank| stage_of(rank).is_some()) {
        table.numbers("stage", "", stage_of);
    }
    table.words("host", |rank| &rank.host);
    table.numbers("step p50", "ms", |rank| Entry::maybe(rank.step_ms_p50, ms));
    table.memory("peak memory", |rank| rank.peak_bytes);
    table.build()
}

/// The stage of a pipeline that a rank is in, from 0.
fn stage_of(rank: &Rank) -> Option<u64> {
    rank.extra.get("stage").and_then(Value::as_u64)
}

fn stages(record: &Record) -> Table {
    let mut table = Table::of("stages", &record.stages);
    table.numbers("stage", "", |stage| stage.stage);
    table.memory("activations, plan", |stage| stage.activations.predicted_bytes);
    table.memory("activations, peak", |stage| stage.activations.peak_bytes);
    table.numbers("passes", "per step", |stage| stage.passes.len());
    table.build()
}

fn flops(record: &Record) -> Table {
    let value = |value: &Value| match value.as_f64() {
        Some(value) => Entry::maybe(Some(value), units::flops),
        None => Entry::json(value),
    };
    let conventions = record.flops.conventions.iter().filter(|(name, _)| *name != "source");
    let conventions = conventions.map(|(name, number)| (name.clone(), value(number), ""));
    let ledger = record.flops.ledger.iter().map(|term| {
        let flops = Entry::maybe(Some(term.flops), units::flops);
        (format!("ledger: {}", term.term), flops, term.formula.as_str())
    });
    let rows: Vec<(String, Entry, &str)> = conventions.chain(ledger).collect();
    let mut table = Table::of("flops", &rows);
    table.words("convention or term", |(name, ..)| name);
    table.numbers("operations", "FLOP", |(_, flops, _)| flops.clone());
    table.words("formula", |(.., formula)| *formula);
    table.build()
}

/// The steps without the middle of a long run. The caption says how much their times vary.
fn steps(record: &Record) -> Table {
    let count = record.steps.len();
    let is_shown = |place: usize| count <= 2 * STEPS_SHOWN || place < STEPS_SHOWN || place >= count - STEPS_SHOWN;
    let shown: Vec<&Step> =
        record.steps.iter().enumerate().filter(|(place, _)| is_shown(*place)).map(|(_, step)| step).collect();
    let mut table = Table::of("steps", &shown);
    table.numbers("step", "", |step| step.step);
    table.words("timed", |step| if step.timed { "yes" } else { "no" });
    table.numbers("loss", "nats", |step| Entry::maybe(Some(step.loss), |loss| format!("{loss:.6}")));
    table.numbers("gradient norm", "", |step| Entry::maybe(Some(step.grad_norm), |norm| format!("{norm:.4}")));
    table.numbers("learning rate", "", |step| Entry::maybe(Some(step.lr), units::number));
    table.numbers("time", "ms", |step| Entry::maybe(Some(step.ms), ms));
    table.numbers("tokens", "", |step| Entry::whole(step.tokens, units::count(step.tokens)));
    if record.steps.iter().any(|step| step.loss_scale().is_some()) {
        table.numbers("loss scale", "", |step| Entry::maybe(step.loss_scale(), units::quantity));
        table.words("updated", |step| if step.is_skipped() { "no: gradients overflowed" } else { "yes" });
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
    if shown.len() < count {
        let id = &record.id;
        caption.push(format!("The first and last {STEPS_SHOWN} of {count}; zbench show {id} --format json has all."));
    }
    table.build().caption(caption.join(" "))
}

fn environment(record: &Record) -> Table {
    let rows = flatten(&record.environment);
    let mut table = Table::of("environment", &rows);
    table.words("what", |(path, _)| path);
    table.words("value", |(_, value)| value);
    table.build()
}
