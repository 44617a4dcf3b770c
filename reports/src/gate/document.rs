//! The gate as a document: for the terminal, Markdown and CSV.

use super::report::{CellReport, Report, Row};
use super::verdict::Verdict;
use super::words;
use crate::document::{Column, Document, Entry, Table, Tone};
use crate::units;

/// The whole of it.
pub fn document(report: &Report) -> Document {
    let mut document = Document::new(format!("Gate: {}", report.headline()));
    document.paragraph(words::answer(report));
    // Before the tables, so that a screen that is cut has it.
    if !report.next.is_empty() {
        document.paragraph(format!("NEXT    {}", report.next));
    }
    for cell in &report.cells {
        document.heading(format!("{} ({})", cell.cell, cell.key));
        document.table(rows(report, cell));
        document.paragraph(format!("{}. It took {} s.", words::samples(cell), units::number(cell.seconds)));
        document.list(floors(cell));
    }
    if !report.notes.is_empty() {
        document.heading("Notes");
        document.list(report.notes.clone());
    }
    document.heading("What was compared");
    document.list(
        words::facts(report)
            .into_iter()
            .filter(|(name, _)| *name != "command")
            .map(|(name, value)| format!("{name}: {value}"))
            .collect(),
    );
    document.paragraph(format!(
        "A noisy metric has its verdict when its whole interval lies beyond the band, or within it. The intervals hold at \
         {} over all looks and metrics together. Speed of a trial: {}. Order of the sides: seed {}.",
        units::percent(report.confidence),
        report.figure,
        report.seed
    ));
    document.paragraph("Repeat it:");
    document.code(&report.command);
    document
}

fn tone(report: &Report, verdict: Verdict) -> Tone {
    match verdict {
        Verdict::Pass => Tone::Plain,
        Verdict::Improvement if !report.fail_on.contains(&verdict) => Tone::Good,
        _ => Tone::Warning,
    }
}

fn rows(report: &Report, cell: &CellReport) -> Table {
    let columns = vec![
        Column::words("metric"),
        Column::words("verdict"),
        Column::numbers("baseline", ""),
        Column::numbers("candidate", ""),
        Column::numbers("ratio", ""),
        Column::numbers("low", "").for_machines(),
        Column::numbers("high", "").for_machines(),
        Column::words("band"),
        Column::numbers("samples", ""),
        Column::numbers("reruns", ""),
        Column::words("what was found"),
    ];
    let mut table = Table::new("gate", columns);
    for row in &cell.rows {
        let value = |value: Option<f64>| Entry::maybe(value, |value| words::value(row, value));
        let ratio = row.ratio.as_ref();
        // The figures of turns are a pair: neither is a speed by itself.
        let paired = |value: f64| match row.turns {
            Some(_) => format!("{} (paired)", words::value(row, value)),
            None => words::value(row, value),
        };
        table.row(vec![
            Entry::words(&row.metric),
            Entry { value: row.verdict.name().into(), ..Entry::words(row.verdict.words()) }
                .toned(tone(report, row.verdict)),
            value(row.baseline),
            Entry::maybe(row.candidate, paired),
            ratio.map_or_else(Entry::nothing, |ratio| Entry::number(ratio.mid, words::interval(ratio))),
            Entry::maybe(ratio.and_then(|ratio| ratio.low), |low| low.to_string()),
            Entry::maybe(ratio.and_then(|ratio| ratio.high), |high| high.to_string()),
            row.band.as_ref().map_or_else(Entry::nothing, |band| Entry::words(words::limits(band))),
            Entry::whole(row.used as u64, row.used.to_string()),
            Entry::whole(row.reruns as u64, row.reruns.to_string()),
            Entry::words(&row.words),
        ]);
    }
    let caption = "Ratio: candidate to baseline, with its interval.";
    match cell.rows.iter().any(|row| row.turns.is_some()) {
        true => table.caption(format!(
            "{caption} Paired: the baseline is the median of its turns, and the candidate that times the ratio of neighbouring turns."
        )),
        false => table.caption(caption),
    }
}

/// How far the machine itself strays, where that could be told.
fn floors(cell: &CellReport) -> Vec<String> {
    let line = |row: &Row| {
        let floor = row.noise_floor?;
        let widened = if row.widened > 0.0 {
            format!("; the interval was widened by {} because of it", units::percent(row.widened))
        } else {
            String::new()
        };
        Some(format!(
            "noise floor of {}: the same program against itself strays by {}{widened}",
            row.metric,
            units::percent(floor)
        ))
    };
    cell.rows.iter().filter_map(line).collect()
}

/// Lines of JSON: an object for each row, then the whole without its rows.
///
/// # Errors
/// Never for reports of this crate: all their keys are text.
pub fn json_lines(report: &Report) -> Result<String, serde_json::Error> {
    let mut lines = String::new();
    for row in report.rows() {
        lines.push_str(&serde_json::to_string(row)?);
        lines.push('\n');
    }
    let mut whole = report.clone();
    whole.cells.iter_mut().for_each(|cell| cell.rows.clear());
    lines.push_str(&serde_json::to_string(&whole)?);
    lines.push('\n');
    Ok(lines)
}
