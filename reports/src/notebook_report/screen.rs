//! One run on one screen.

use crate::bench;
use crate::collectives;
use crate::document::{Column, Entry, Table};
use crate::grid_report::flag_words;
use crate::record::{Category, Record, Verdict};
use crate::screen::{Room, Screen, fitting};
use crate::{stats, steady, units};

/// What a run says: how fast, how much memory, where its time went.
pub fn of(record: &Record, room: Room) -> Screen {
    fitting(room, 0, 0, |_| compose(record))
}

fn compose(record: &Record) -> Screen {
    let mut screen = Screen::default();
    screen.said("ANSWER", answer(record), 4);
    let flags: Vec<String> = record.excluding_flags().map(flag_words).collect();
    if !flags.is_empty() {
        screen.said("FLAGGED", format!("{}: the trial does not count in comparisons.", units::list(&flags)), 2);
    }
    screen.said("LOSS", loss(record), 3);
    screen.said("STEPS", steps(record), 3);
    screen.said("TIME", time(record), 3);
    screen.table(memory(record));
    screen.table(communication(record));
    screen.said("NOTES", record.notes.join(" "), 4);
    let unstated: Vec<String> = record.unstated.names().map(str::to_string).collect();
    if record.is_measured() && !unstated.is_empty() {
        screen.said("NOT STATED", format!("{}; zbench show says why.", units::list(&unstated)), 2);
    }
    let id = &record.id;
    screen.said(
        "MORE",
        format!("zbench show {id} has everything, zbench repro {id} runs it again, zbench report compares it."),
        2,
    );
    screen
}

fn number(record: &Record, name: &str) -> Option<f64> {
    record.metrics.number(name)
}

fn answer(record: &Record) -> String {
    let name = match (record.name.as_str(), bench::label(record)) {
        ("", None) => "the run".to_string(),
        (name, None) => name.to_string(),
        (name, Some(label)) => format!("{name} {label}"),
    };
    if !record.is_measured() {
        return format!("{name} {}: {}", record.outcome.status.words(), record.outcome.reason);
    }
    let mut parts = Vec::new();
    if let Some(rate) = number(record, "tokens_per_second") {
        parts.push(format!("{} tokens/s", units::number(rate)));
    }
    if let Some(ms) = number(record, "step_ms_p50") {
        parts.push(format!("{} a step (median)", units::duration(ms / 1e3)));
    }
    if let Some(mfu) = number(record, "mfu") {
        parts.push(format!("MFU {}", units::percent(mfu)));
    }
    let peak = record.memory.total.as_ref().and_then(|total| total.peak_bytes).map(|bytes| bytes as f64);
    if let Some(peak) = peak.or(number(record, "peak_memory_bytes")) {
        parts.push(format!("peak memory of a rank {}", units::memory(peak)));
    }
    if !record.communication.is_empty() && record.wire_bytes().is_finite() {
        parts.push(format!("{} on the wire in a step", units::traffic(record.wire_bytes())));
    }
    if let (Some(first), Some(last)) = (number(record, "loss_first"), number(record, "loss_last")) {
        parts.push(format!("loss {first:.4} to {last:.4}"));
    }
    match parts.is_empty() {
        true => format!("{name} was measured."),
        false => format!("{name}: {}.", parts.join("; ")),
    }
}

fn loss(record: &Record) -> String {
    let losses: Vec<f64> = record.steps.iter().map(|step| step.loss).filter(|loss| loss.is_finite()).collect();
    let (Some(first), Some(last)) = (losses.first(), losses.last()) else { return String::new() };
    let mut text = format!("{first:.4} {} {last:.4}", crate::render::bars(&losses));
    let parity = &record.parity;
    if parity.verdict != Verdict::None {
        text += &format!(", {}", parity.verdict.words());
    }
    let caption = crate::figures::run_loss(record).map(|figure| figure.caption).unwrap_or_default();
    if let Some(place) = caption.find("On held-out data") {
        text += &format!(". {}", &caption[place..]);
    }
    text
}

fn steps(record: &Record) -> String {
    let times: Vec<f64> = record.timed_steps().map(|step| step.ms).collect();
    let at = |percent: f64| stats::percentile(&times, percent).map(|ms| units::duration(ms / 1e3));
    let (Some(low), Some(mid), Some(high)) = (at(5.0), at(50.0), at(95.0)) else { return String::new() };
    let mut text = format!(
        "{} timed of {}: median {mid}, 5 to 95 % of them {low} to {high}.",
        times.len(),
        units::plural(record.steps.len(), "step", "steps")
    );
    if let Some(variation) = stats::coefficient_of_variation(&times) {
        text += &format!(" Coefficient of variation {}.", units::percent(variation));
    }
    if let Some(warning) = steady::warning(&[record]) {
        text += &format!(" {warning}");
    }
    text
}

fn time(record: &Record) -> String {
    let spans: Vec<(&str, f64)> =
        record.time.names().filter_map(|name| Some((name, record.time.number(name).filter(|ms| *ms > 0.0)?))).collect();
    let sum: f64 = spans.iter().map(|(_, ms)| ms).sum();
    let mut sorted = spans;
    sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
    let part = |(name, ms): &(&str, f64)| format!("{} {}", name.replace('_', " "), units::percent(ms / sum));
    let parts: Vec<String> = sorted.iter().map(part).collect();
    if parts.is_empty() { String::new() } else { format!("of a step of the slowest rank: {}.", parts.join(", ")) }
}

fn memory(record: &Record) -> Table {
    let columns = vec![
        Column::words("memory"),
        Column::numbers("peak", "bytes"),
        Column::numbers("plan", "bytes"),
        Column::numbers("at the peak of all", "bytes"),
    ];
    let mut table = Table::new("memory", columns);
    let categories = Category::ALL.into_iter().map(|category| (category.name(), record.memory.get(category)));
    for (name, bytes) in categories.chain([("all together", record.memory.total.as_ref())]) {
        let Some(bytes) = bytes.filter(|bytes| bytes.peak_bytes != Some(0) || bytes.predicted_bytes != Some(0)) else {
            continue;
        };
        table.row(vec![
            Entry::words(name),
            Entry::memory(bytes.peak_bytes),
            Entry::memory(bytes.predicted_bytes),
            Entry::memory(bytes.at_peak_bytes),
        ]);
    }
    table
}

/// So many collectives are told.
const COLLECTIVES: usize = 6;

fn communication(record: &Record) -> Table {
    let columns = vec![
        Column::words("communication"),
        Column::numbers("calls", "per step"),
        Column::numbers("wire", "bytes"),
        Column::numbers("plan", "bytes"),
        Column::numbers("time", "ms"),
        Column::numbers("exposed", "ms"),
    ];
    let mut table = Table::new("communication", columns);
    if collectives::document::is_of_suite(record) {
        return table;
    }
    let ms = |ms: f64| format!("{} ms", units::number(ms));
    let mut entries: Vec<_> = record.communication.iter().collect();
    entries.sort_by(|a, b| b.wire_bytes.total_cmp(&a.wire_bytes));
    for entry in entries.into_iter().take(COLLECTIVES) {
        table.row(vec![
            Entry::words(format!("{} on {}", entry.kind, entry.axis)),
            Entry::maybe(Some(entry.calls), units::quantity),
            Entry::measured(Some(entry.wire_bytes), record.wire_is_planned(), units::traffic),
            Entry::maybe(entry.predicted_wire_bytes, units::traffic),
            Entry::maybe(Some(entry.ms), ms),
            Entry::maybe(Some(entry.exposed_ms), ms),
        ]);
    }
    table
}
