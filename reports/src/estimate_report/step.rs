//! Predicted steps: their time, spans and traffic.

use super::{EstimateRow, EstimateTraffic};
use crate::document::{Document, Entry, Table, Tone};
use crate::gather::distinct;
use crate::label;
use crate::plot::{Axis, Figure, Panel, Plot, Unit, Waterfalls};
use crate::screen::{Room, Screen, fitting};
use crate::units;

/// Waterfalls that are drawn at most.
const PANELS: usize = 4;

/// Adds speeds and spans, or the reasons why there are none.
pub(super) fn add_speed(document: &mut Document, rows: &[EstimateRow]) {
    let (timed, untimed): (Vec<&EstimateRow>, Vec<&EstimateRow>) = rows.iter().partition(|row| row.step_ms.is_some());
    let mut reasons: Vec<String> = untimed.iter().map(|row| row.time_source.clone()).collect();
    reasons.retain(|reason| !reason.is_empty());
    reasons.dedup();
    if timed.is_empty() && reasons.is_empty() {
        return;
    }
    document.heading("Predicted time of a step");
    document.table(steps(&timed).non_empty());
    document.table(spans(&timed));
    document.figure(waterfalls(&timed));
    if !reasons.is_empty() {
        document.paragraph("No time is predicted where:");
        document.list(reasons);
    }
}

fn speed(row: &EstimateRow) -> f64 {
    row.tokens_per_second.unwrap_or(0.0)
}

/// Groups of rows that are ranked, and the name of each if there are two: adapter runs do other work than full fine-tunes.
pub(super) fn kinds<'r>(rows: impl Iterator<Item = &'r EstimateRow>) -> Vec<(Vec<&'r EstimateRow>, &'static str)> {
    let (adapters, full): (Vec<_>, Vec<_>) = rows.partition(|row| row.has_adapter);
    match (full.is_empty(), adapters.is_empty()) {
        (true, _) => vec![(adapters, "")],
        (_, true) => vec![(full, "")],
        _ => vec![(full, "full fine-tune"), (adapters, "adapter run")],
    }
}

/// The fastest cell of each kind, as [`fastest`] says it; `None` where there is no choice.
pub(crate) fn answer(rows: &[EstimateRow]) -> Option<String> {
    if rows.len() < 2 {
        return None;
    }
    let said: Vec<String> = kinds(rows.iter()).into_iter().filter_map(|(cells, kind)| fastest(&cells, kind)).collect();
    (!said.is_empty()).then(|| said.join(" "))
}

/// The fastest cell of those that fit, the next ones, and a faster one that does not fit.
fn fastest(rows: &[&EstimateRow], kind: &str) -> Option<String> {
    let mut timed: Vec<&EstimateRow> = rows.iter().copied().filter(|row| row.step_ms.is_some()).collect();
    timed.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
    let (fitting, not): (Vec<&EstimateRow>, Vec<&EstimateRow>) =
        timed.into_iter().partition(|row| row.fits != Some(false));
    let [best, behind @ ..] = &fitting[..] else { return None };
    let memory = |row: &EstimateRow| row.total_bytes.map(|bytes| units::memory(bytes as f64));
    let of = |row: &EstimateRow| memory(row).map_or(String::new(), |memory| format!(", {memory} a rank"));
    let mfu = best.mfu.map_or(String::new(), |mfu| format!(", MFU {}", units::percent(mfu)));
    let mut text = format!(
        "Predicted to be the fastest{}{kind} that {}: {}, {} a step, {} tokens/s{mfu}{}.",
        if kind.is_empty() { "" } else { " " },
        if best.uncertain { "may fit" } else { "fits" },
        best.marked_label(),
        units::duration(best.step_ms? / 1e3),
        units::quantity(speed(best)),
        of(best)
    );
    let slower = |row: &&EstimateRow| {
        let share = 1.0 - speed(row) / speed(best);
        format!("{} ({} slower{})", row.marked_label(), units::percent(share), of(row))
    };
    let next: Vec<String> = behind.iter().take(3).map(slower).collect();
    if !next.is_empty() {
        text += &format!(" Behind it: {}.", units::list(&next));
    }
    if let Some(out) = not.first().filter(|row| speed(row) > speed(best)) {
        text += &format!(
            " With more memory {} would be {} faster{}.",
            out.marked_label(),
            units::percent(speed(out) / speed(best) - 1.0),
            of(out)
        );
    }
    Some(text)
}

fn steps(rows: &[&EstimateRow]) -> Table {
    // What is the same in every row is in the caption.
    let same = rows.len() > 1 && rows.iter().all(|row| row.time_source == rows[0].time_source);
    let by = if same { format!(" Every time is {}.", rows[0].time_source) } else { String::new() };
    let fitting = || rows.iter().copied().filter(|row| row.fits != Some(false));
    let best = kinds(fitting()).into_iter().map(|(cells, _)| cells.into_iter().map(speed).fold(0.0, f64::max));
    let best: Vec<f64> = best.collect();
    // What does not fit is struck out: nobody will see that speed.
    let tone = |row: &EstimateRow| match (row.fits, row.tokens_per_second) {
        (Some(false), _) => Tone::Struck,
        (_, Some(speed)) if best.contains(&speed) && rows.len() > 1 => Tone::Good,
        _ => Tone::Plain,
    };
    let number =
        |row: &EstimateRow, value: Option<f64>, show: fn(f64) -> String| Entry::maybe(value, show).toned(tone(row));
    let has_bands = rows.iter().any(|row| row.step_ms_band.is_some());
    let mut table = Table::of("predicted steps", rows);
    table.words("cell", |row| row.marked_label());
    table.numbers("step", "ms", |row| {
        let error = row.step_error.map_or(String::new(), |error| format!(" ± {}", units::percent(error)));
        Entry::maybe(row.step_ms, |ms| format!("{}{error}", units::duration(ms / 1e3))).toned(tone(row))
    });
    let band = |row: &EstimateRow| Entry::words(row.step_band().unwrap_or_default()).toned(tone(row));
    table.words("80 % band of the step", |row| band(row)).for_machines = !has_bands;
    table.numbers("tokens/s", "tokens/s", |row| number(row, row.tokens_per_second, units::quantity));
    table.numbers("tokens/s per rank", "tokens/s", |row| number(row, row.tokens_per_second_per_rank, units::quantity));
    table.numbers("TFLOP/s per rank", "TFLOP/s", |row| number(row, row.tflops_per_rank, units::number));
    table.numbers("MFU", "fraction", |row| number(row, row.mfu, units::percent));
    table.numbers("HFU", "fraction", |row| number(row, row.hfu, units::percent));
    table.words("by", |row| &row.time_source).for_machines = same;
    table
        .build()
        .caption(format!("MFU and HFU of the device's dense peak; model FLOPs with the causal half of attention.{by}"))
}

/// Names of spans in which some row spends time, in the order of the rows.
fn names<'a>(rows: &[&'a EstimateRow]) -> Vec<&'a str> {
    distinct(rows.iter().flat_map(|row| row.time.iter()).filter(|(_, ms)| **ms > 0.0).map(|(name, _)| name))
}

fn spans(rows: &[&EstimateRow]) -> Option<Table> {
    let names = names(rows);
    let mut table = Table::of("predicted spans", rows);
    table.words("cell", |row| row.marked_label());
    for name in &names {
        table.numbers(name.replace('_', " "), "ms", |row| {
            let ms = row.span_ms(name);
            Entry::number(ms, if ms > 0.0 { units::duration(ms / 1e3) } else { "0".into() })
        });
    }
    let caption = "Where a step's time goes; exposed communication is what computing does not hide. The spans add up to the step.";
    (!names.is_empty()).then(|| table.build().caption(caption).detail())
}

/// The fastest cells that fit, span by span.
fn waterfalls(rows: &[&EstimateRow]) -> Option<Figure> {
    let fits = |row: &&EstimateRow| row.fits != Some(false) && !row.time.is_empty();
    let mut rows: Vec<&EstimateRow> = rows.iter().copied().filter(fits).collect();
    rows.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
    let all = rows.len();
    rows.truncate(PANELS);
    let names = names(&rows);
    if names.is_empty() {
        return None;
    }
    let panel = |row: &&EstimateRow| Panel {
        label: row.marked_label(),
        spans: names.iter().map(|name| (name.replace('_', " "), row.span_ms(name))).collect(),
        record: String::new(),
    };
    let shown = if all > PANELS { format!(" The fastest {PANELS} of {all} that fit.") } else { String::new() };
    let caption = format!("Milliseconds of a predicted step, span by span.{shown}");
    let axis = Axis::linear("since the step began", Unit::Milliseconds);
    let plot = Plot::Waterfalls(Waterfalls { axis, panels: rows.iter().map(panel).collect() });
    Some(Figure::new("predicted-waterfall", "Where a predicted step goes", caption, plot, Vec::new()))
}

/// The traffic of a step by axis and kind.
pub(super) fn traffic(rows: &[EstimateRow]) -> Table {
    let rows: Vec<(&EstimateRow, &EstimateTraffic)> =
        rows.iter().flat_map(|row| row.traffic.iter().map(move |entry| (row, entry))).collect();
    let mut table = Table::of("predicted traffic", &rows);
    table.words("cell", |(row, _)| row.marked_label());
    table.words("axis", |(_, entry)| &entry.axis);
    table.words("collective", |(_, entry)| &entry.kind);
    table.numbers("calls", "calls", |(_, entry)| Entry::number(entry.calls, units::number(entry.calls)));
    let bytes = |bytes: f64| Entry::number(bytes, units::traffic(bytes));
    table.numbers("payload", "bytes", |(_, entry)| bytes(entry.payload_bytes));
    table.numbers("on the wire", "bytes", |(_, entry)| bytes(entry.wire_bytes));
    table.build().caption("Per step, of the largest rank, by mesh axis and collective.").detail()
}

/// Rows of the screen's table at most, and at least.
const ROWS: (usize, usize) = (30, 4);

/// The same cells on a machine and on a changed one: a screen for this room, then all cells.
pub fn what_if(before: &[EstimateRow], after: &[EstimateRow], changes: &[String], room: Room) -> Document {
    let mut document = Document::new("What if");
    let table = changed(before, after);
    let subject = super::subject(after).map_or(String::new(), |words| format!("{words} "));
    let changes = format!("{subject}The machine with {}. Nothing was run.", changes.join(", "));
    let count = table.rows.len();
    let compose = |rows: usize| {
        let mut screen = Screen::default();
        screen.said("WHAT IF", &changes, 3);
        screen.table(Table { rows: table.rows.iter().take(rows).cloned().collect(), ..table.clone() });
        if rows < count {
            screen.said("", format!("{} more of {count}; --full shows all.", count - rows), 1);
        }
        screen
    };
    document.screen = Some(fitting(room, count.min(ROWS.0), count.min(ROWS.1), compose));
    document.heading("Every cell");
    document.table(table);
    document
}

fn changed(before: &[EstimateRow], after: &[EstimateRow]) -> Table {
    let labels: Vec<String> = after.iter().map(EstimateRow::marked_label).collect();
    let labels = label::shortened(&labels.iter().map(String::as_str).collect::<Vec<_>>());
    let mut rows: Vec<(&EstimateRow, &EstimateRow, String)> =
        before.iter().zip(after).zip(labels).map(|((old, new), label)| (old, new, label)).collect();
    let faster = |(old, new, _): &(&EstimateRow, &EstimateRow, String)| Some(old.step_ms? / new.step_ms? - 1.0);
    // The largest change first.
    let change = |row: &_| faster(row).map_or(-1.0, f64::abs);
    rows.sort_by(|a, b| change(b).total_cmp(&change(a)));
    let duration = |ms: f64| units::duration(ms / 1e3);
    let mut table = Table::of("what if", &rows);
    table.words("cell", |(.., label)| label);
    table.numbers("change of speed", "fraction", |row| Entry::maybe(faster(row), units::change));
    table.numbers("step as it is", "ms", |(old, ..)| Entry::maybe(old.step_ms, duration));
    table.numbers("step then", "ms", |(_, new, _)| Entry::maybe(new.step_ms, duration));
    table.numbers("tokens/s then", "tokens/s", |(_, new, _)| Entry::maybe(new.tokens_per_second, units::quantity));
    table.numbers("MFU then", "fraction", |(_, new, _)| Entry::maybe(new.mfu, units::percent));
    table.words("fits", |(old, new, _)| match (old.fits, new.fits) {
        (Some(true), Some(false)) => "no longer",
        (Some(false), Some(true)) => "now",
        (_, Some(true)) => "yes",
        (_, Some(false)) => "no",
        _ => "not known",
    });
    table.words("largest difference", |(old, new, _)| largest_difference(old, new));
    table.build()
}

/// The span whose time changes most.
fn largest_difference(old: &EstimateRow, new: &EstimateRow) -> String {
    let names = old.time.names().chain(new.time.names());
    let differences = names.map(|name| (name, new.span_ms(name) - old.span_ms(name)));
    match differences.max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())) {
        Some((name, ms)) if ms.abs() > 1e-6 => {
            let sign = if ms > 0.0 { "+" } else { "-" };
            format!("{} {sign}{}", name.replace('_', " "), units::duration(ms.abs() / 1e3))
        }
        _ => "none".into(),
    }
}
