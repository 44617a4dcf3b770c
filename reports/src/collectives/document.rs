//! A run of the interconnect test as a document, and the records of earlier runs as a section of a report.

use super::{Fit, Iterations, Row, Run, Section, Segment, Side};
use crate::document::{Block, Document, Entry, Table, Tone};
use crate::record::Record;
use crate::table::TableBuilder;
use crate::units;
use serde_json::Value;

/// The suite's name in records.
pub const SUITE: &str = "collectives";

/// Whether a record is of this suite.
pub fn is_of_suite(record: &Record) -> bool {
    record.setting("suite").and_then(Value::as_str) == Some(SUITE)
}

/// The document of a run.
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
        document.table(fits(&section.collective, &section.fits).non_empty());
        document.list(section.notes.clone());
    }
    if let Some(pairs) = &run.pairs {
        pairs.add_to(&mut document);
    }
    document.list(run.errors.clone());
    document
}

fn rows(section: &Section) -> Table {
    let mut table = Table::of("collectives", &section.rows);
    table.words("collective", |_| &section.collective).for_machines = true;
    table.numbers("size", "B", |row| Entry::whole(row.size, units::memory(row.size as f64)));
    table.numbers("count", "elements", |row| row.count);
    table.words("type", |row| &row.dtype);
    table.words("redop", |row| &row.redop);
    table.numbers("root", "", |row| Entry { value: row.root.into(), ..Entry::words(row.root.to_string()) });
    add_side(&mut table, "out-of-place", |row| row.out_of_place.as_ref());
    add_side(&mut table, "in-place", |row| row.in_place.as_ref());
    let wire = |bytes: f64| Entry::measured(Some(bytes), bytes.is_nan(), units::traffic);
    table.numbers("wire per rank", "B", |row| wire(row.wire_bytes_rank));
    table.numbers("wire per link", "B", |row| wire(row.wire_bytes_link));
    table.words("algorithm", |row| &row.algorithm);
    table.build()
}

/// Adds the columns of one side.
fn add_side<'r>(table: &mut TableBuilder<'r, Row>, name: &str, side: impl Fn(&'r Row) -> Option<&'r Side>) {
    let number = |row, value: fn(&Side) -> Option<f64>| Entry::maybe(side(row).and_then(value), units::number);
    table.numbers(format!("{name} time"), "us", |row| number(row, |side| Some(side.time_us)));
    table.numbers(format!("{name} algbw"), "GB/s", |row| number(row, |side| Some(side.algbw)));
    table.numbers(format!("{name} busbw"), "GB/s", |row| number(row, |side| Some(side.busbw)));
    table.numbers(format!("{name} #wrong"), "", |row| {
        let wrong = side(row).and_then(|side| side.wrong);
        let tone = if wrong.is_some_and(|count| count > 0) { Tone::Warning } else { Tone::Plain };
        Entry::from(wrong.map(|count| Entry::whole(count, units::count(count)))).toned(tone)
    });
    type Statistic = (&'static str, &'static str, fn(&Iterations) -> f64);
    let spread: [Statistic; 7] = [
        ("min", "us", |all| all.min_us),
        ("max", "us", |all| all.max_us),
        ("mean", "us", |all| all.mean_us),
        ("p50", "us", |all| all.p50_us),
        ("p95", "us", |all| all.p95_us),
        ("p99", "us", |all| all.p99_us),
        ("cv", "%", |all| all.cv_percent),
    ];
    for (title, unit, value) in spread {
        let value = |row| side(row).and_then(|side| side.iterations.as_ref()).map(value);
        table.numbers(format!("{name} {title}"), unit, |row| Entry::maybe(value(row), units::number)).for_machines =
            true;
    }
    table.numbers(format!("{name} cpu time"), "us", |row| number(row, |side| side.cpu_us)).for_machines = true;
}

fn fits(collective: &str, fits: &[Fit]) -> Table {
    let rows: Vec<(&Fit, &Segment)> =
        fits.iter().flat_map(|fit| fit.segments.iter().map(move |segment| (fit, segment))).collect();
    let mut table = Table::of("fits", &rows);
    table.words("collective", |_| collective);
    table.words("of", |(fit, _)| &fit.of);
    table.numbers("from", "B", |(_, segment)| Entry::memory(Some(segment.from_bytes)));
    table.numbers("to", "B", |(_, segment)| Entry::memory(Some(segment.to_bytes)));
    let us = |us: f64| format!("{} us", units::number(us));
    table.numbers("latency", "us", |(_, segment)| Entry::maybe(Some(segment.latency_us), us));
    table.numbers("bandwidth", "GB/s", |(_, segment)| Entry::maybe(segment.bandwidth_gb_s, units::number));
    let busbw = |(fit, segment): &(&Fit, &Segment)| segment.bandwidth_gb_s.map(|rate| rate * fit.factor);
    table.numbers("busbw", "GB/s", |row| Entry::maybe(busbw(row), units::number));
    table.numbers("median error", "fraction", |(_, line)| Entry::maybe(Some(line.median_error), units::percent));
    table.numbers("worst error", "fraction", |(_, line)| Entry::maybe(Some(line.worst_error), units::percent));
    table.numbers("sizes", "", |(_, segment)| segment.points);
    table.build().caption("Fitted: time = latency + size / bandwidth.")
}

fn collective_of(record: &Record) -> &str {
    record.setting("collective").and_then(Value::as_str).unwrap_or_default()
}

/// Adds the section of this suite's records: one row for each, and its fits.
pub fn report(document: &mut Document, records: &[&Record]) {
    if records.is_empty() {
        return;
    }
    document.heading("Collectives");
    document.blocks.extend(super::figure::bandwidth(records).into_iter().map(Block::Figure));
    let number = |record: &Record, name: &str| Entry::maybe(record.metrics.number(name), units::number);
    let mut table = Table::of("collectives", records);
    table.words("record", |record| &record.id);
    table.words("started", |record| &record.started);
    table.words("collective", |record| collective_of(record));
    table.words("backend", |record| record.setting("backend"));
    table.numbers("ranks", "", |record| record.setting("parallel.ranks"));
    table.words("type", |record| record.setting("type"));
    table.words("redop", |record| record.setting("redop"));
    table.words("outcome", |record| {
        let tone = if record.is_measured() { Tone::Plain } else { Tone::Warning };
        Entry::words(record.outcome.status.name()).toned(tone)
    });
    table.numbers("latency", "us", |record| number(record, "latency_us"));
    table.memory("largest size", |record| record.metrics.number("largest_bytes").map(|bytes| bytes as u64));
    table.numbers("busbw there", "GB/s", |record| number(record, &format!("{}_busbw_gb_s", collective_of(record))));
    table.numbers("average busbw", "GB/s", |record| number(record, "average_busbw_gb_s"));
    table.numbers("#wrong", "", |record| number(record, "wrong_elements"));
    document.table(table.build().caption(
        "Latency is the time of the smallest size that is not empty, busbw that of the largest, in place where there is such a call.",
    ));
    for record in records {
        if let Some(section) = Section::of(record).filter(|section| !section.fits.is_empty()) {
            document.paragraph(format!("Record {}:", record.id));
            document.table(fits(&section.collective, &section.fits));
        }
    }
}
