//! One run on one screen.

use crate::bench;
use crate::collectives;
use crate::document::{Entry, Table};
use crate::grid_report::flag_words;
use crate::record::{Communication, Record, Verdict};
use crate::screen::{Room, Screen, fitting};
use crate::{stats, units, warm_up};

/// The results of a run: its speed, its memory and where its time goes.
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

fn answer(record: &Record) -> String {
    let name = match (record.name.as_str(), bench::label(record)) {
        ("", None) => "the run".to_string(),
        (name, None) => name.to_string(),
        (name, Some(label)) => format!("{name} {label}"),
    };
    if !record.is_measured() {
        return format!("{name} {}: {}", record.outcome.status.words(), record.outcome.reason);
    }
    let number = |name: &str| record.metrics.number(name);
    let peak = record.memory.total.as_ref().and_then(|total| total.peak_bytes).map(|bytes| bytes as f64);
    let peak = peak.or(number("peak_memory_bytes"));
    let wire = Some(record.wire_bytes()).filter(|bytes| !record.communication.is_empty() && bytes.is_finite());
    let losses = number("loss_first").zip(number("loss_last"));
    let parts = [
        number("tokens_per_second").map(|rate| format!("{} tokens/s", units::number(rate))),
        number("step_ms_p50").map(|ms| format!("{} a step (median)", units::duration(ms / 1e3))),
        number("mfu").map(|mfu| format!("MFU {}", units::percent(mfu))),
        peak.map(|bytes| format!("peak memory of a rank {}", units::memory(bytes))),
        wire.map(|bytes| format!("{} on the wire in a step", units::traffic(bytes))),
        losses.map(|(first, last)| format!("loss {first:.4} to {last:.4}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
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
    if let Some(warning) = warm_up::warning(&[record]) {
        text += &format!(" {warning}");
    }
    text
}

fn time(record: &Record) -> String {
    let ms = |name| record.time.number(name).filter(|ms| *ms > 0.0);
    let mut spans: Vec<(&str, f64)> = record.time.names().filter_map(|name| Some((name, ms(name)?))).collect();
    let sum: f64 = spans.iter().map(|(_, ms)| ms).sum();
    spans.sort_by(|a, b| b.1.total_cmp(&a.1));
    let part = |(name, ms): &(&str, f64)| format!("{} {}", name.replace('_', " "), units::percent(ms / sum));
    let parts: Vec<String> = spans.iter().map(part).collect();
    if parts.is_empty() { String::new() } else { format!("of a step of the slowest rank: {}.", parts.join(", ")) }
}

fn memory(record: &Record) -> Table {
    let mut rows = super::categories(record);
    rows.retain(|(_, bytes)| bytes.peak_bytes != Some(0) || bytes.predicted_bytes != Some(0));
    let mut table = Table::of("memory", &rows);
    table.words("memory", |(name, _)| *name);
    table.memory("peak", |(_, bytes)| bytes.peak_bytes);
    table.memory("plan", |(_, bytes)| bytes.predicted_bytes);
    table.memory("at the peak of all", |(_, bytes)| bytes.at_peak_bytes);
    table.build()
}

/// Collectives in the table at most.
const COLLECTIVES: usize = 6;

fn communication(record: &Record) -> Table {
    let is_test = collectives::document::is_of_suite(record);
    let mut rows: Vec<&Communication> = record.communication.iter().filter(|_| !is_test).collect();
    rows.sort_by(|a, b| b.wire_bytes.total_cmp(&a.wire_bytes));
    rows.truncate(COLLECTIVES);
    let wire = |bytes: f64| Entry::measured(Some(bytes), record.wire_is_planned(), units::traffic);
    let mut table = Table::of("communication", &rows);
    table.words("communication", |entry| format!("{} on {}", entry.kind, entry.axis));
    table.numbers("calls", "per step", |entry| Entry::maybe(Some(entry.calls), units::quantity));
    table.numbers("wire", "bytes", |entry| wire(entry.wire_bytes));
    table.numbers("plan", "bytes", |entry| Entry::maybe(entry.predicted_wire_bytes, units::traffic));
    table.numbers("time", "ms", |entry| Entry::maybe(Some(entry.ms), super::ms));
    table.numbers("exposed", "ms", |entry| Entry::maybe(Some(entry.exposed_ms), super::ms));
    table.build()
}
