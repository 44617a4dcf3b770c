//! `plan`: what cells take, without running them.

use super::train::{estimates, say_crossings};
use super::{expand, expand_document, expand_with, planned, print_document, print_lines, print_screen, quoted, room};
use crate::{Cells, Format, Global, PlanArgs};
use anyhow::{Result, bail};
use std::path::Path;
use toml::Value;
use zbench_config::{Context, Document, Resolved, grid};
use zbench_engine::planner::Planner;
use zbench_estimate::deepspeed::Formula;
use zbench_host::exit;
use zbench_predict::planned::Planned;
use zbench_predict::{explain, search, validate};
use zbench_reports::estimate_report::{self, EstimateRow, Sum};
use zbench_reports::screen::Room;

/// `zbench plan`.
pub fn plan(global: &Global, arguments: &PlanArgs) -> Result<u8> {
    if let Some(folder) = &arguments.validate {
        return validated(global, folder);
    }
    // clap requires the file without --validate.
    let Some(file) = arguments.file.clone() else { bail!("name a configuration") };
    let cells = Cells { file, set: arguments.set.clone(), only: arguments.only.clone() };
    if arguments.search {
        return searched(global, &cells, arguments.max_cells, arguments.headroom.unwrap_or(search::HEADROOM));
    }
    let document = Document::read(&cells.file, &cells.set)?;
    if document.base.get("suite").and_then(|suite| suite.value.as_str()) == Some("collectives") {
        return collectives(global, &document, &cells, arguments.max_cells);
    }
    let mut expanded = expand_document(document, &cells, arguments.max_cells, |context| context)?;
    let as_stated = planned(&mut expanded, arguments.proxy)?;
    say_crossings(&as_stated);
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
    let mut expanded = expand_with(&cells, arguments.max_cells, |context| context.with_what_if(changes))?;
    let changed = planned(&mut expanded, arguments.proxy)?;
    what_if(global, &as_stated, &changed, &arguments.what_if)
}

/// Prints the predicted collectives of a file whose suite measures them.
fn collectives(global: &Global, document: &Document, cells: &Cells, max_cells: usize) -> Result<u8> {
    let only = cells.only.as_deref().map(|text| grid::parse_only(text, document)).transpose()?.unwrap_or_default();
    let context = Context::new(document.folder().into(), 1);
    let mut rows = Vec::new();
    for (label, settings) in grid::combinations(document, &only, max_cells)? {
        let of = if label.is_empty() { String::new() } else { format!("{label}: ") };
        let priced = zbench_predict::collectives::prices(&settings, &context);
        rows.extend(priced.map_err(|reason| anyhow::anyhow!("{}: {of}{reason}", cells.file.display()))?);
    }
    match global.format {
        Format::Json => print_lines(&rows)?,
        _ => print_document(global, &estimate_report::collectives(&rows))?,
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

/// Most searches on one screen.
const MOST_SEARCHES: usize = 2;

fn searched(global: &Global, cells: &Cells, max_cells: usize, headroom: f64) -> Result<u8> {
    let expanded = expand(cells, max_cells, None)?;
    expanded
        .refuse_search("looks for the largest value that fits, and --search for the fastest way to split the work")?;
    if expanded.cells.is_empty() {
        zbench_host::say!("{}", grid::none_left(&expanded.document, &expanded.only));
        return Ok(exit::SUCCESS);
    }
    let (planner, mut found) = (Planner::default(), Vec::new());
    let mut seen = Vec::new();
    for cell in &expanded.cells {
        let resolved = cell.resolved.as_ref().map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
        // Cells that differ in nothing but what is searched over are one question.
        let question = search::question(resolved);
        if seen.contains(&question) {
            continue;
        }
        seen.push(question);
        let one = search::search(&planner, resolved, &cell.label, headroom)?;
        let next = one.best.first().map(|best| taken(&cells.file, search::changes(resolved, best)));
        found.push((one, next));
    }
    if let ([(one, _)], true) = (&mut found[..], expanded.cells.len() > 1) {
        // What the cells differ in is searched over: the first one's values would name nothing.
        one.label.clear();
    }
    if global.format == Format::Json {
        print_lines(&found.iter().map(|(one, _)| one).collect::<Vec<_>>())?;
        return Ok(exit::SUCCESS);
    }
    // All searches share the screen.
    let is_short = global.format == Format::Table && !global.full;
    let shown = if is_short { found.len().min(MOST_SEARCHES) } else { found.len() };
    let room = room(global);
    let room = Room { lines: room.lines / shown.max(1), ..room };
    for (one, next) in &found[..shown] {
        let next: Vec<(&str, String)> = next.iter().map(|next| ("NEXT", next.clone())).collect();
        print_screen(global, &estimate_report::searched(one, room, &next))?;
    }
    if shown < found.len() {
        zbench_host::say!("{} more searches: --full prints all", found.len() - shown);
    }
    Ok(exit::SUCCESS)
}

/// The command that plans the result of a search: the changes of the file.
fn taken(file: &Path, changes: Vec<(&str, &str)>) -> String {
    let set = changes.into_iter().map(|(key, value)| format!(" --set {}", quoted(&format!("{key}={value}"))));
    format!("zbench plan {}{}; --full has all settings.", quoted(&file.to_string_lossy()), set.collect::<String>())
}

fn validated(global: &Global, folder: &Path) -> Result<u8> {
    let found = validate::validate(folder)?;
    match global.format {
        Format::Json => print_lines(&found.rows)?,
        _ => print_screen(global, &estimate_report::validation(&found))?,
    }
    Ok(exit::SUCCESS)
}
