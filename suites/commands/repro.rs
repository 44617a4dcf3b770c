//! `zbench repro ID`: a record's cell again, from the record alone.

use super::session::Session;
use super::train::{carry_out, code, header_of};
use super::{print_document, print_lines};
use crate::cli::{Format, Global, exit};
use crate::config::files::Files;
use crate::config::{Resolved, Settings};
use crate::grid::{self, GridCell};
use crate::runner::plan::{self, Decision};
use crate::runner::{Trials, parity};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::time::Duration;
use zbench_engine::config::Cell;
use zbench_reports::Notebook;
use zbench_reports::document::{Column, Document, Entry, Table};
use zbench_reports::environment::{self, Aspect, Difference};
use zbench_reports::record::Record;

/// Runs it and compares: losses, norms, bytes and calls must be the same; speed is shown beside.
pub fn repro(global: &Global, session: &mut Session, id: &str, timeout: Duration) -> Result<u8> {
    if !global.notebook.is_dir() {
        bail!("there is no notebook in {}; name it with --notebook DIR", global.notebook.display());
    }
    let record = Notebook::open(&global.notebook)?.find(id)?;
    if zbench_reports::collectives::document::is_of_suite(&record) {
        bail!("the record {} is of the interconnect test; its command measures again: {}", record.id, record.command);
    }
    let cell: Cell = serde_json::from_value(record.cell.clone())
        .with_context(|| format!("the record {} holds no configuration that this version can run", record.id))?;
    let mut files = Files::default();
    if let Err((key, message)) = files.check(&cell) {
        bail!("{key}: {message}");
    }
    let key = grid::cell_key(&cell, &mut files);
    if key != record.key && !cell_names_no_file(&cell) {
        crate::say!(
            "warning: the files that the record names have changed since: the key is {key}, it was {}",
            record.key
        );
    }
    let resolved = Ok(Resolved { cell, profile: None });
    let grid = GridCell { key, label: format!("again {}", record.id), resolved, settings: Settings::new() };
    let proxy_of = record.extra.get("proxy").and_then(|p| p.get("of")).and_then(Value::as_str).map(str::to_string);
    let mut planned = plan::plan(grid, proxy_of);
    session.judge(std::slice::from_mut(&mut planned));
    if let Decision::Record { reason, .. } = &planned.decision {
        bail!("the record {} cannot be run here: {reason}", record.id);
    }
    let summary = carry_out(global, session, &[planned], Trials::OneMore, header_of(&record), timeout, true)?;
    let [again] = &summary.records[..] else { return Ok(code(&summary)) };
    let (document, same) = compare(&record, again);
    match global.format {
        Format::Json => print_lines(&[again])?,
        _ => print_document(global, &document)?,
    }
    Ok(match code(&summary) {
        exit::SUCCESS if !same => exit::FAILED,
        code => code,
    })
}

fn cell_names_no_file(cell: &Cell) -> bool {
    matches!(cell.data, zbench_engine::config::Data::Synthetic {}) && cell.model.weights.is_none()
}

fn compare(before: &Record, after: &Record) -> (Document, bool) {
    let mut document = Document::new(format!("{} again, as {}", before.id, after.id));
    let columns = vec![Column::words("what"), Column::words("before"), Column::words("again"), Column::words("same")];
    let mut differs = Table::new("environment", columns.clone());
    for Difference { path, a, b, .. } in environment::differences(&before.environment, &after.environment) {
        if environment::aspect(&path) != Aspect::State {
            differs.row(vec![Entry::words(path), Entry::json(&a), Entry::json(&b), Entry::words("no")]);
        }
    }
    if differs.rows.is_empty() {
        document.paragraph("The environment is that of the record.");
    } else {
        document.heading("What is different about the environment");
        document.table(differs);
    }
    let mut table = Table::new("repeated", columns);
    let mut same = true;
    let mut row = |what: &str, a: String, b: String| {
        let equal = a == b;
        same &= equal;
        table.row(vec![
            Entry::words(what),
            Entry::words(a),
            Entry::words(b),
            Entry::words(if equal { "yes" } else { "no" }),
        ]);
    };
    row("outcome", before.outcome.status.name().into(), after.outcome.status.name().into());
    for (what, value) in [
        ("largest difference of a loss", (|s| s.loss) as fn(&zbench_reports::record::Step) -> f64),
        ("largest difference of a gradient norm", |s| s.grad_norm),
    ] {
        let difference = parity::difference(&after.steps, &before.steps, value);
        row(what, "0".into(), difference.map_or("not comparable".into(), |difference| difference.to_string()));
    }
    let peak = |record: &Record| {
        let total = record.memory.total.as_ref().and_then(|total| total.peak_bytes);
        total.map_or("not stated".into(), |bytes| bytes.to_string())
    };
    row("peak bytes of a rank", peak(before), peak(after));
    let calls = |record: &Record| {
        let calls: f64 = record.communication.iter().map(|entry| entry.calls).sum();
        format!("{} bytes in {calls} calls", record.wire_bytes())
    };
    row("wire bytes of a step", calls(before), calls(after));
    document.table(table);
    let rate = |record: &Record| record.metrics.number("tokens_per_second").unwrap_or(f64::NAN);
    document.paragraph(format!(
        "{} Speed: {:.0} tokens/s before, {:.0} again.",
        if same { "Losses, norms, bytes and calls are the same." } else { "The record was NOT repeated." },
        rate(before),
        rate(after)
    ));
    (document, same)
}
