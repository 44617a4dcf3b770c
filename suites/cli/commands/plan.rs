//! `plan`: what cells take, without running them.

use super::train::{estimates, say_assumed, say_crossings, say_heads, say_longer, skip_without_weights};
use super::{advise, expand_document, expand_with, planned, print_lines, print_screen, room, search};
use crate::{Cells, Format, Global, PlanArgs};
use anyhow::{Result, bail};
use std::path::Path;
use toml::Value;
use zbench_config::{Context, Document, Resolved, grid};
use zbench_estimate::deepspeed::Formula;
use zbench_host::exit;
use zbench_predict::planned::Planned;
use zbench_predict::{explain, validate};
use zbench_reports::estimate_report::{self, EstimateRow, Sum};

/// `zbench plan`.
pub fn plan(global: &Global, arguments: &PlanArgs) -> Result<u8> {
    if let Some(folder) = &arguments.validate {
        return validated(global, folder);
    }
    // clap requires the file without --validate.
    let Some(file) = arguments.file.clone() else { bail!("name a configuration") };
    if arguments.advise {
        return advise::of_plan(global, file, arguments);
    }
    let cells = Cells { file, set: arguments.set.clone(), only: arguments.only.clone() };
    if arguments.search {
        return search::search(global, &cells, arguments);
    }
    let document = Document::read(&cells.file, &cells.set)?;
    if document.base.get("suite").and_then(|suite| suite.value.as_str()) == Some("collectives") {
        return collectives(global, &document, &cells, arguments);
    }
    let mut expanded = expand_document(document, cells.only.as_deref(), arguments.max_cells, Context::priced)?;
    // A screen has one piece of advice, and looking for it is most of the work.
    let is_screen = global.format == Format::Table && !global.full;
    let mut as_stated = planned(&mut expanded, arguments.proxy, if is_screen { 1 } else { usize::MAX })?;
    skip_without_weights(&mut as_stated);
    say_crossings(&as_stated);
    say_heads(&as_stated);
    say_longer(&as_stated);
    say_assumed(as_stated.iter().map(|cell| &cell.grid), &expanded.context);
    if as_stated.is_empty() {
        zbench_host::say!("{}", grid::none_left(&expanded.document, &expanded.only));
        return Ok(exit::SUCCESS);
    }
    if let Some(mut trace) = super::timelines(global)? {
        trace.predicted(&as_stated);
        trace.complaint().iter().for_each(|complaint| zbench_host::say!("warning: {complaint}"));
    }
    if let Some(formula) = &arguments.deepspeed_estimator {
        let formula = if formula == "documented" { Formula::Documented } else { Formula::Current };
        return summed(global, &as_stated, &|resolved, _| explain::deepspeed(resolved, formula));
    }
    if arguments.explain {
        return summed(global, &as_stated, &|resolved, planned| explain::sums(resolved, planned.estimate.as_ref()));
    }
    if arguments.what_if.is_empty() {
        return estimates(global, &as_stated, &cells.file, arguments.proxy);
    }
    let changes = arguments.what_if.iter().map(|text| change(text)).collect::<Result<Vec<_>>>()?;
    let has_profile = |cell: &Planned| cell.grid.resolved.as_ref().is_ok_and(|resolved| resolved.profile.is_some());
    if !as_stated.iter().any(has_profile) {
        bail!("--what-if changes a machine's profile, and no cell states one; add --set hardware.profile=NAME");
    }
    let mut expanded = expand_with(&cells, arguments.max_cells, |context| context.priced().with_what_if(changes))?;
    let changed = planned(&mut expanded, arguments.proxy, 0)?;
    what_if(global, &as_stated, &changed, &arguments.what_if)
}

/// Prints the predicted collectives of a file whose suite measures them.
fn collectives(global: &Global, document: &Document, cells: &Cells, arguments: &PlanArgs) -> Result<u8> {
    for (option, is_given) in [
        ("--what-if", !arguments.what_if.is_empty()),
        ("--explain", arguments.explain),
        ("--proxy", arguments.proxy),
        ("--deepspeed-estimator", arguments.deepspeed_estimator.is_some()),
        ("--trace", global.trace.is_some()),
    ] {
        if is_given {
            bail!(
                "{option} is for cells that train, and this file's suite is collectives; state hardware.changes for another machine"
            )
        }
    }
    let only = cells.only.as_deref().map(|text| grid::parse_only(text, document)).transpose()?.unwrap_or_default();
    let context = Context::new(document.folder().into(), 1);
    let mut rows = Vec::new();
    let mut reasons = Vec::new();
    for (label, settings) in grid::combinations(document, &only, arguments.max_cells)? {
        let of = if label.is_empty() { String::new() } else { format!("{label}: ") };
        match zbench_predict::collectives::prices(&settings, &context) {
            // Cells that differ in what is measured alone, as in parallel.backend, are one prediction.
            Ok(priced) => priced.into_iter().for_each(|row| {
                if !rows.contains(&row) {
                    rows.push(row);
                }
            }),
            Err(reason) => reasons.push(format!("{}: {of}{reason}", cells.file.display())),
        }
    }
    // A cell that cannot be priced keeps no other from being.
    if let (true, Some(reason)) = (rows.is_empty(), reasons.first()) {
        bail!("{reason}");
    }
    reasons.iter().for_each(|reason| zbench_host::say!("not predicted: {reason}"));
    match global.format {
        Format::Json => print_lines(&rows)?,
        _ => print_screen(global, &estimate_report::collectives(&rows, room(global)))?,
    }
    Ok(exit::SUCCESS)
}

/// A change of the machine: a place in its profile and a value, with a unit or plain.
fn change(text: &str) -> Result<(String, Value)> {
    let wrong = || {
        anyhow::anyhow!("--what-if {text}: write a key of the machine's profile and its value, as network.rate=800Gb/s")
    };
    zbench_config::change(text).ok_or_else(wrong)
}

/// Prints sums of every cell, term by term.
fn summed(global: &Global, cells: &[Planned], of: &dyn Fn(&Resolved, &Planned) -> Vec<Sum>) -> Result<u8> {
    #[derive(serde::Serialize)]
    struct Line<'a> {
        label: &'a str,
        key: &'a str,
        sums: Vec<Sum>,
    }
    let lines = cells.iter().filter_map(|cell| {
        let resolved = cell.grid.resolved.as_ref().ok()?;
        Some(Line { label: &cell.grid.label, key: &cell.grid.key, sums: of(resolved, cell) })
    });
    let lines: Vec<Line> = lines.collect();
    match global.format {
        Format::Json => print_lines(&lines)?,
        _ => {
            for line in &lines {
                print_screen(global, &estimate_report::explain(line.label, &line.sums))?;
            }
        }
    }
    Ok(exit::SUCCESS)
}

/// Prints the same cells on the machine and on the changed one.
fn what_if(global: &Global, before: &[Planned], after: &[Planned], changes: &[String]) -> Result<u8> {
    let rows = |cells: &[Planned]| -> Vec<EstimateRow> { cells.iter().map(Planned::row).collect() };
    let (before, after) = (rows(before), rows(after));
    match global.format {
        Format::Json => print_lines(&after)?,
        _ => print_screen(global, &estimate_report::what_if(&before, &after, changes, room(global)))?,
    }
    Ok(exit::SUCCESS)
}

fn validated(global: &Global, folder: &Path) -> Result<u8> {
    let found = validate::validate(folder)?;
    match global.format {
        Format::Json => print_lines(&found.rows)?,
        _ => print_screen(global, &estimate_report::validation(&found))?,
    }
    Ok(exit::SUCCESS)
}
