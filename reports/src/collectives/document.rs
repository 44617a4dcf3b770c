//! The test's rows as a document, for Markdown and CSV, and the records of earlier runs as a part of a report.

use super::{Fit, Row, Run, Section, Side};
use crate::document::{Column, Document, Entry, Table, Tone};
use crate::record::Record;
use crate::units;

/// The suite's name in records.
pub const SUITE: &str = "collectives";

/// Whether a record is of this suite.
pub fn is_of_suite(record: &Record) -> bool {
    record.setting("suite").and_then(serde_json::Value::as_str) == Some(SUITE)
}

/// A whole run.
pub fn document(run: &Run) -> Document {
    let s = &run.settings;
    let mut document = Document::new(format!("Collectives over {}, {} ranks", s.backend, s.ranks));
    document.paragraph(format!(
        "Backend {}, {} on {} ({}). Timing: {}. Buffers: {}.",
        s.backend,
        units::plural(s.ranks, "rank", "ranks"),
        units::plural(s.hosts, "host", "hosts"),
        s.formed,
        s.timing,
        s.buffers
    ));
    document.paragraph(
        "GB/s are 10^9 bytes per second, one way. algbw = size / time; busbw = algbw x nccl-tests' factor, ring convention.",
    );
    for section in &run.sections {
        document.heading(section.collective.clone());
        document.table(rows(section));
        if !section.fits.is_empty() {
            document.table(fits(&section.collective, &section.fits));
        }
        document.list(section.notes.clone());
    }
    if let Some(pairs) = &run.pairs {
        pairs.add_to(&mut document);
    }
    document.list(run.errors.clone());
    document
}

fn rows(section: &Section) -> Table {
    let mut columns = vec![
        Column::words("collective").for_machines(),
        Column::numbers("size", "B"),
        Column::numbers("count", "elements"),
        Column::words("type"),
        Column::words("redop"),
        Column::numbers("root", ""),
    ];
    for side in ["out-of-place", "in-place"] {
        columns.push(Column::numbers(format!("{side} time"), "us"));
        columns.push(Column::numbers(format!("{side} algbw"), "GB/s"));
        columns.push(Column::numbers(format!("{side} busbw"), "GB/s"));
        columns.push(Column::numbers(format!("{side} #wrong"), ""));
        for name in ["min", "max", "mean", "p50", "p95", "p99"] {
            columns.push(Column::numbers(format!("{side} {name}"), "us").for_machines());
        }
        columns.push(Column::numbers(format!("{side} cv"), "%").for_machines());
        columns.push(Column::numbers(format!("{side} cpu time"), "us").for_machines());
    }
    columns.push(Column::numbers("wire per rank", "B"));
    columns.push(Column::numbers("wire per link", "B"));
    columns.push(Column::words("algorithm"));
    let mut table = Table::new("collectives", columns);
    for row in &section.rows {
        table.row(entries(section, row));
    }
    table
}

fn entries(section: &Section, row: &Row) -> Vec<Entry> {
    let mut entries = vec![
        Entry::words(section.collective.clone()),
        Entry::whole(row.size, units::memory(row.size as f64)),
        Entry::whole(row.count, row.count.to_string()),
        Entry::words(row.dtype.clone()),
        Entry::words(row.redop.clone()),
        Entry { value: row.root.into(), ..Entry::words(row.root.to_string()) },
    ];
    for side in [&row.out_of_place, &row.in_place] {
        entries.extend(half(side.as_ref()));
    }
    for bytes in [row.wire_bytes_rank, row.wire_bytes_link] {
        entries.push(Entry::measured(Some(bytes), bytes.is_nan(), units::traffic));
    }
    entries.push(Entry::words(row.algorithm.clone()));
    entries
}

fn half(side: Option<&Side>) -> Vec<Entry> {
    let number = |value: fn(&Side) -> f64| Entry::maybe(side.map(value), units::number);
    let wrong = side.and_then(|side| side.wrong);
    let tone = if wrong.is_some_and(|count| count > 0) { Tone::Warning } else { Tone::Plain };
    let all = side.and_then(|side| side.iterations.as_ref());
    let spread =
        all.map(|all| [all.min_us, all.max_us, all.mean_us, all.p50_us, all.p95_us, all.p99_us, all.cv_percent]);
    let mut entries = vec![
        number(|side| side.time_us),
        number(|side| side.algbw),
        number(|side| side.busbw),
        wrong.map_or_else(Entry::nothing, |count| Entry::whole(count, units::count(count))).toned(tone),
    ];
    entries.extend((0..7).map(|place| Entry::maybe(spread.map(|spread| spread[place]), units::number)));
    entries.push(Entry::maybe(side.and_then(|side| side.cpu_us), units::number));
    entries
}

fn fits(collective: &str, fits: &[Fit]) -> Table {
    let columns = vec![
        Column::words("collective"),
        Column::words("of"),
        Column::numbers("from", "B"),
        Column::numbers("to", "B"),
        Column::numbers("latency", "us"),
        Column::numbers("bandwidth", "GB/s"),
        Column::numbers("busbw", "GB/s"),
        Column::numbers("median error", "fraction"),
        Column::numbers("worst error", "fraction"),
        Column::numbers("sizes", ""),
    ];
    let mut table = Table::new("fits", columns).caption("Fitted: time = latency + size / bandwidth.");
    for fit in fits {
        for segment in &fit.segments {
            table.row(vec![
                Entry::words(collective),
                Entry::words(fit.of.clone()),
                Entry::memory(Some(segment.from_bytes)),
                Entry::memory(Some(segment.to_bytes)),
                Entry::maybe(Some(segment.latency_us), |us| format!("{} us", units::number(us))),
                Entry::maybe(segment.bandwidth_gb_s, units::number),
                Entry::maybe(segment.bandwidth_gb_s.map(|rate| rate * fit.factor), units::number),
                Entry::maybe(Some(segment.median_error), units::percent),
                Entry::maybe(Some(segment.worst_error), units::percent),
                Entry::whole(segment.points as u64, segment.points.to_string()),
            ]);
        }
    }
    table
}

/// The records of this suite, one row each, with the fit that each of them holds.
pub fn report(document: &mut Document, records: &[&Record]) {
    if records.is_empty() {
        return;
    }
    document.heading("Collectives");
    for figure in super::figure::bandwidth(records) {
        document.figure(Some(figure));
    }
    let columns = vec![
        Column::words("record"),
        Column::words("started"),
        Column::words("collective"),
        Column::words("backend"),
        Column::numbers("ranks", ""),
        Column::words("type"),
        Column::words("redop"),
        Column::words("outcome"),
        Column::numbers("latency", "us"),
        Column::numbers("largest size", "bytes"),
        Column::numbers("busbw there", "GB/s"),
        Column::numbers("average busbw", "GB/s"),
        Column::numbers("#wrong", ""),
    ];
    let mut table = Table::new("collectives", columns)
        .caption("Latency is the time of the smallest size that is not empty, busbw that of the largest, in place where there is such a call.");
    for record in records {
        let word = |path: &str| record.setting(path).map_or_else(Entry::nothing, Entry::json);
        let collective = record.setting("collective").and_then(serde_json::Value::as_str).unwrap_or_default();
        let metric = |name: &str| Entry::maybe(record.metrics.number(name), units::number);
        let tone = if record.is_measured() { Tone::Plain } else { Tone::Warning };
        table.row(vec![
            Entry::words(record.id.clone()),
            Entry::words(record.started.clone()),
            Entry::words(collective),
            word("backend"),
            word("parallel.ranks"),
            word("type"),
            word("redop"),
            Entry::words(record.outcome.status.name()).toned(tone),
            metric("latency_us"),
            Entry::memory(record.metrics.number("largest_bytes").map(|bytes| bytes as u64)),
            metric(&format!("{collective}_busbw_gb_s")),
            metric("average_busbw_gb_s"),
            metric("wrong_elements"),
        ]);
    }
    document.table(table);
    for record in records {
        let stored =
            record.extra.get("section").cloned().and_then(|value| serde_json::from_value::<Section>(value).ok());
        if let Some(section) = stored.filter(|section| !section.fits.is_empty()) {
            document.paragraph(format!("Record {}:", record.id));
            document.table(fits(&section.collective, &section.fits));
        }
    }
}
