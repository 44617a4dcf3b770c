//! Predicted steps: how long, of what they consist, what travels.

use super::{EstimateRow, band_column};
use crate::document::{Column, Document, Entry, Table, Tone};
use crate::label;
use crate::plot::{Axis, Figure, Panel, Plot, Unit, Waterfalls};
use crate::screen::{Room, Screen, fitting};
use crate::units;

/// So many waterfalls are drawn.
const PANELS: usize = 4;

/// Adds speeds and spans, or why there are none.
pub(super) fn speed(document: &mut Document, rows: &[EstimateRow]) {
    let timed: Vec<&EstimateRow> = rows.iter().filter(|row| row.step_ms.is_some()).collect();
    let mut reasons: Vec<&str> =
        rows.iter().filter(|row| row.step_ms.is_none()).map(|row| row.time_source.as_str()).collect();
    reasons.retain(|reason| !reason.is_empty());
    reasons.dedup();
    if timed.is_empty() && reasons.is_empty() {
        return;
    }
    document.heading("Predicted time of a step");
    if !timed.is_empty() {
        document.table(steps(&timed));
        if let Some(table) = spans(&timed) {
            document.table(table);
        }
        document.blocks.extend(waterfalls(&timed).map(crate::document::Block::Figure));
    }
    if !reasons.is_empty() {
        document.paragraph("No time is predicted where:");
        document.list(reasons.into_iter().map(str::to_string).collect());
    }
}

/// Which cell is the fastest of those that fit, which are next to it, and what memory keeps from being so; nothing where there is
/// no choice.
pub(crate) fn answer(rows: &[EstimateRow]) -> Option<String> {
    let speed = |row: &EstimateRow| row.tokens_per_second.unwrap_or(0.0);
    let mut timed: Vec<&EstimateRow> = rows.iter().filter(|row| row.step_ms.is_some()).collect();
    timed.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
    let (fitting, not): (Vec<&EstimateRow>, Vec<&EstimateRow>) =
        timed.into_iter().partition(|row| row.fits != Some(false));
    let [best, behind @ ..] = &fitting[..] else { return None };
    if rows.len() < 2 {
        return None;
    }
    let memory = |row: &EstimateRow| row.total_bytes.map(|bytes| units::memory(bytes as f64));
    let of = |row: &EstimateRow| memory(row).map_or(String::new(), |memory| format!(", {memory} a rank"));
    let mfu = best.mfu.map_or(String::new(), |mfu| format!(", MFU {}", units::percent(mfu)));
    let mut text = format!(
        "Predicted to be the fastest that fits: {}, {} a step, {} tokens/s{mfu}{}.",
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
    // What is the same in every row is said once.
    let same = rows.len() > 1 && rows.iter().all(|row| row.time_source == rows[0].time_source);
    let columns = vec![
        Column::words("cell"),
        Column::numbers("step", "ms"),
        band_column("80 % band of the step", rows.iter().any(|row| row.step_ms_band.is_some())),
        Column::numbers("tokens/s", "tokens/s"),
        Column::numbers("tokens/s per rank", "tokens/s"),
        Column::numbers("TFLOP/s per rank", "TFLOP/s"),
        Column::numbers("MFU", "fraction"),
        Column::numbers("HFU", "fraction"),
        if same { Column::words("by").for_machines() } else { Column::words("by") },
    ];
    let by = if same { format!(" Every time is {}.", rows[0].time_source) } else { String::new() };
    let mut table = Table::new("predicted steps", columns)
        .caption(format!("MFU and HFU of the device's dense peak; model FLOPs with the causal half of attention.{by}"));
    // What does not fit is struck out: nobody will see that speed.
    let best = rows.iter().filter(|row| row.fits != Some(false)).filter_map(|row| row.tokens_per_second);
    let best = best.fold(0.0, f64::max);
    for row in rows {
        let tone = match (row.fits, row.tokens_per_second) {
            (Some(false), _) => Tone::Struck,
            (_, Some(speed)) if speed == best && rows.len() > 1 => Tone::Good,
            _ => Tone::Plain,
        };
        let step = |ms: f64| match row.step_error {
            Some(error) => format!("{} ± {}", units::duration(ms / 1e3), units::percent(error)),
            None => units::duration(ms / 1e3),
        };
        table.row(vec![
            Entry::words(row.marked_label()),
            Entry::maybe(row.step_ms, step).toned(tone),
            Entry::words(row.step_band().unwrap_or_default()).toned(tone),
            Entry::maybe(row.tokens_per_second, units::quantity).toned(tone),
            Entry::maybe(row.tokens_per_second_per_rank, units::quantity).toned(tone),
            Entry::maybe(row.tflops_per_rank, units::number).toned(tone),
            Entry::maybe(row.mfu, units::percent).toned(tone),
            Entry::maybe(row.hfu, units::percent).toned(tone),
            Entry::words(&row.time_source),
        ]);
    }
    table
}

/// Names of spans in which some row spends time, in the order of the rows.
fn names<'a>(rows: &[&'a EstimateRow]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for (name, ms) in rows.iter().flat_map(|row| row.time.iter()) {
        if *ms > 0.0 && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn spans(rows: &[&EstimateRow]) -> Option<Table> {
    let names = names(rows);
    if names.is_empty() {
        return None;
    }
    let mut columns = vec![Column::words("cell")];
    columns.extend(names.iter().map(|name| Column::numbers(name.replace('_', " "), "ms")));
    let mut table = Table::new("predicted spans", columns)
        .caption("Where a step's time goes; exposed communication is what computing does not hide. The spans add up to the step.")
        .detail();
    for row in rows {
        let mut entries = vec![Entry::words(row.marked_label())];
        entries.extend(names.iter().map(|name| {
            let ms = row.time.get(name).copied().unwrap_or(0.0);
            Entry::number(ms, if ms > 0.0 { units::duration(ms / 1e3) } else { "0".into() })
        }));
        table.row(entries);
    }
    Some(table)
}

/// The fastest cells that fit, span by span.
fn waterfalls(rows: &[&EstimateRow]) -> Option<Figure> {
    let mut rows: Vec<&EstimateRow> =
        rows.iter().copied().filter(|row| row.fits != Some(false) && !row.time.is_empty()).collect();
    rows.sort_by(|a, b| b.tokens_per_second.unwrap_or(0.0).total_cmp(&a.tokens_per_second.unwrap_or(0.0)));
    let all = rows.len();
    rows.truncate(PANELS);
    let names = names(&rows);
    if rows.is_empty() || names.is_empty() {
        return None;
    }
    let panel = |row: &&EstimateRow| Panel {
        label: row.marked_label(),
        spans: names.iter().map(|name| (name.replace('_', " "), row.time.get(name).copied().unwrap_or(0.0))).collect(),
        record: String::new(),
    };
    let shown = if all > PANELS { format!(" The fastest {PANELS} of {all} that fit.") } else { String::new() };
    let panels = rows.iter().map(panel).collect();
    Some(Figure {
        name: "predicted-waterfall".into(),
        title: "Where a predicted step goes".into(),
        caption: format!("Milliseconds of a predicted step, span by span.{shown}"),
        plot: Plot::Waterfalls(Waterfalls { axis: Axis::linear("since the step began", Unit::Milliseconds), panels }),
        records: Vec::new(),
    })
}

/// Adds the traffic of a step by axis and kind.
pub(super) fn traffic(document: &mut Document, rows: &[EstimateRow]) {
    if rows.iter().all(|row| row.traffic.is_empty()) {
        return;
    }
    let columns = vec![
        Column::words("cell"),
        Column::words("axis"),
        Column::words("collective"),
        Column::numbers("calls", "calls"),
        Column::numbers("payload", "bytes"),
        Column::numbers("on the wire", "bytes"),
    ];
    let mut table = Table::new("predicted traffic", columns)
        .caption("Per step, of the largest rank, by mesh axis and collective.")
        .detail();
    for row in rows {
        for entry in &row.traffic {
            table.row(vec![
                Entry::words(row.marked_label()),
                Entry::words(&entry.axis),
                Entry::words(&entry.kind),
                Entry::number(entry.calls, units::number(entry.calls)),
                Entry::number(entry.payload_bytes, units::traffic(entry.payload_bytes)),
                Entry::number(entry.wire_bytes, units::traffic(entry.wire_bytes)),
            ]);
        }
    }
    document.heading("Predicted traffic");
    document.table(table);
}

/// Rows of the screen's table at most, and at least.
const ROWS: (usize, usize) = (30, 4);

/// The same cells on a machine and on a changed one: a screen for this room, and behind it all cells.
pub fn what_if(before: &[EstimateRow], after: &[EstimateRow], changes: &[String], room: Room) -> Document {
    let mut document = Document::new("What if");
    let table = changed(before, after);
    let said = format!("The machine with {}. Nothing was run.", changes.join(", "));
    let count = table.rows.len();
    let compose = |rows: usize| {
        let mut screen = Screen::default();
        screen.said("WHAT IF", &said, 2);
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
    let columns = vec![
        Column::words("cell"),
        Column::numbers("change of speed", "fraction"),
        Column::numbers("step as it is", "ms"),
        Column::numbers("step then", "ms"),
        Column::numbers("tokens/s then", "tokens/s"),
        Column::numbers("MFU then", "fraction"),
        Column::words("fits"),
        Column::words("largest difference"),
    ];
    let mut table = Table::new("what if", columns);
    let labels: Vec<String> = after.iter().map(EstimateRow::marked_label).collect();
    let labels = label::shortened(&labels.iter().map(String::as_str).collect::<Vec<_>>());
    let faster = |old: &EstimateRow, new: &EstimateRow| old.step_ms.zip(new.step_ms).map(|(old, new)| old / new - 1.0);
    let mut cells: Vec<(&EstimateRow, &EstimateRow, String)> =
        before.iter().zip(after).zip(labels).map(|((old, new), label)| (old, new, label)).collect();
    // The largest change first.
    let change = |(old, new, _): &(&EstimateRow, &EstimateRow, String)| faster(old, new).map_or(-1.0, f64::abs);
    cells.sort_by(|a, b| change(b).total_cmp(&change(a)));
    for (old, new, label) in cells {
        let faster = faster(old, new);
        let ms = |ms: f64| units::duration(ms / 1e3);
        let fits = match (old.fits, new.fits) {
            (Some(true), Some(false)) => "no longer",
            (Some(false), Some(true)) => "now",
            (_, Some(true)) => "yes",
            (_, Some(false)) => "no",
            _ => "not known",
        };
        table.row(vec![
            Entry::words(label),
            Entry::maybe(faster, units::change),
            Entry::maybe(old.step_ms, ms),
            Entry::maybe(new.step_ms, ms),
            Entry::maybe(new.tokens_per_second, units::quantity),
            Entry::maybe(new.mfu, units::percent),
            Entry::words(fits),
            Entry::words(largest_difference(old, new)),
        ]);
    }
    table
}

/// The span that changes most.
fn largest_difference(old: &EstimateRow, new: &EstimateRow) -> String {
    let names = old.time.names().chain(new.time.names());
    let of = |row: &EstimateRow, name: &str| row.time.get(name).copied().unwrap_or(0.0);
    let most = names.map(|name| (name, of(new, name) - of(old, name))).max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()));
    match most {
        Some((name, ms)) if ms.abs() > 1e-6 => {
            let sign = if ms > 0.0 { "+" } else { "-" };
            format!("{} {sign}{}", name.replace('_', " "), units::duration(ms.abs() / 1e3))
        }
        _ => "none".into(),
    }
}
