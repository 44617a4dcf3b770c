//! `plan --search`: the fastest way to split the work, and with `--measure` whether the best ways have that order here.

use super::session::{self, Session};
use super::train::{self, Turns};
use super::{Expanded, expand_document, header, print_lines, print_screen, quoted, room, stand_in};
use crate::{Cells, Format, Global, PlanArgs};
use anyhow::{Result, bail};
use std::collections::BTreeSet;
use std::path::Path;
use zbench_config::files::Files;
use zbench_config::grid::{self, GridCell};
use zbench_config::{Document, Setting, Settings, bare, keys};
use zbench_engine::planner::Planner;
use zbench_host::exit;
use zbench_predict::planned::{self, Decision, Planned};
use zbench_predict::proxy;
use zbench_predict::search::{self, HEADROOM, SHOWN, Wanted, changes};
use zbench_reports::estimate_report::{self, Candidate, Searched, name};
use zbench_reports::order_report::{Order, PredictedWay};
use zbench_reports::screen::Room;
use zbench_reports::units;

/// Most searches on one screen.
const MOST_SEARCHES: usize = 2;
/// Ways that are looked through for those to be trained: many have the same stand-in.
const LISTED: usize = 1000;
/// Cells that cannot be, and are named.
const MOST_REFUSALS: usize = 3;
/// Lines of the screen that the measured order takes beside the search.
const ORDER_LINES: usize = 16;

/// `zbench plan FILE --search`.
pub fn search(global: &Global, cells: &Cells, arguments: &PlanArgs) -> Result<u8> {
    let document = Document::read(&cells.file, &cells.set)?;
    let mut asked = Questions::of(document, cells.only.as_deref(), arguments.max_cells)?;
    if asked.cells.is_empty() {
        zbench_host::say!("{}", grid::none_left(&asked.expanded.document, &asked.expanded.only));
        return Ok(exit::SUCCESS);
    }
    let wanted = Wanted {
        headroom: arguments.headroom.unwrap_or(HEADROOM),
        listed: if arguments.measure.is_some() { LISTED } else { 0 },
        global_batch: asked.global_batch,
        keep: keeps(&arguments.keep)?,
        tie: 0.0,
    };
    let mut found = asked.search(&wanted)?;
    let nexts: Vec<Option<String>> = found.iter().map(|(cell, one)| asked.next(&cells.file, *cell, one)).collect();
    let Some(most) = arguments.measure else {
        return print_searches(global, found.into_iter().map(|(_, one)| one).zip(nexts).collect()).map(|()| 0);
    };
    let [(cell, one)] = &mut found[..] else {
        bail!(
            "--measure trains the best ways of one search, and {} has {}; narrow it with --only",
            cells.file.display(),
            found.len()
        )
    };
    if one.best.is_empty() {
        print_searches(global, found.into_iter().map(|(_, one)| one).zip(nexts).collect())?;
        return Ok(exit::NOT_MEASURED);
    }
    let cell = *cell;
    let best = one.best.clone();
    one.best.truncate(SHOWN.max(most as usize));
    let mut code = exit::SUCCESS;
    let measured = session::with(global, train::TIMEOUT, |session| {
        let (order, of_cells) = asked.measure(global, session, (cell, &best), most as usize, arguments)?;
        one.measured = Some(order);
        code = of_cells;
        Ok(of_cells)
    })?;
    print_searches(global, found.into_iter().map(|(_, one)| one).zip(nexts).collect())?;
    Ok(measured.max(code))
}

/// `KEY=VALUE` of `--keep`.
pub(super) fn keeps(words: &[String]) -> Result<Vec<(String, String)>> {
    let one = |text: &String| match text.split_once('=') {
        Some((key, value)) if keys::find(key.trim()).is_some() && !value.trim().is_empty() => {
            Ok((key.trim().to_string(), value.trim().to_string()))
        }
        _ => bail!("--keep {text}: write a key that is searched and its value, as parallel.pipeline=1"),
    };
    words.iter().map(one).collect()
}

/// The cells of a document that are different questions to a search.
pub(super) struct Questions {
    /// The document and all of its cells.
    pub expanded: Expanded,
    /// Places of those cells of which no other is the same question.
    pub cells: Vec<usize>,
    /// Sequences of a step, where the document states them. Ways divide them as they can, so the cells themselves need not.
    pub global_batch: Option<usize>,
}

impl Questions {
    /// Of a document.
    pub fn of(mut document: Document, only: Option<&str>, max_cells: usize) -> Result<Questions> {
        let varies =
            |key: &str| document.axes.iter().chain(document.includes.iter().flatten()).any(|axis| axis.key == key);
        let is_free = !varies("train.accumulation") && !document.base.contains_key("train.accumulation");
        let stated = if is_free { document.base.remove("train.global_batch") } else { None };
        let global_batch =
            stated.and_then(|setting| setting.value.as_integer()).and_then(|of| usize::try_from(of).ok());
        let expanded = expand_document(document, only, max_cells, zbench_config::Context::priced)?;
        expanded.refuse_search(
            "looks for the largest value that fits, and --search for the fastest way to split the work",
        )?;
        // A cell that cannot be keeps no other from being asked for.
        let refusals = expanded.cells.iter().filter_map(|cell| Some((&cell.label, cell.resolved.as_ref().err()?)));
        let refusals: Vec<_> = refusals.collect();
        if let (true, Some((_, refusal))) = (refusals.len() == expanded.cells.len(), refusals.first()) {
            bail!("{refusal}");
        }
        for (label, refusal) in refusals.iter().take(MOST_REFUSALS) {
            zbench_host::say!("not searched: {label}: {refusal}");
        }
        if refusals.len() > MOST_REFUSALS {
            zbench_host::say!("not searched: {} more; zbench plan has the reasons", refusals.len() - MOST_REFUSALS);
        }
        train::say_assumed(expanded.cells.iter(), &expanded.context);
        let mut seen = Vec::new();
        let mut cells = Vec::new();
        for (place, cell) in expanded.cells.iter().enumerate() {
            let Ok(resolved) = &cell.resolved else { continue };
            // Cells that differ in nothing but what is searched over are one question.
            let mut question = search::question(resolved);
            if global_batch.is_some() {
                question.train.accumulation = 1;
            }
            if !seen.contains(&question) {
                seen.push(question);
                cells.push(place);
            }
        }
        Ok(Questions { expanded, cells, global_batch })
    }

    /// Searches around each.
    pub fn search(&self, wanted: &Wanted) -> Result<Vec<(usize, Searched)>> {
        let planner = Planner::default();
        let mut found = Vec::new();
        for place in &self.cells {
            let cell = &self.expanded.cells[*place];
            let resolved = cell.resolved.as_ref().map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
            // What the cells of one question differ in is searched over: the first one's values would name nothing.
            let is_all = self.cells.len() == 1 && self.expanded.cells.len() > 1;
            let label = if is_all { "" } else { cell.label.as_str() };
            let mut one = search::search(&planner, resolved, label, wanted)?;
            let mut subject = planned::subject(resolved, &cell.settings);
            subject.step_tokens = one.global_batch.saturating_mul(resolved.cell.train.seq_len as u64);
            if let Some(framework) = search::software(resolved) {
                subject.software.clone_from(&framework.name);
            }
            one.subject = Some(subject);
            found.push((*place, one));
        }
        Ok(found)
    }

    /// The settings of a way, as a file would have to state them.
    pub fn settings(&self, cell: usize, way: &Candidate) -> Settings {
        let mut settings = self.expanded.cells[cell].settings.clone();
        for (key, value) in way.settings.iter() {
            if let Some(key) = keys::find(key) {
                settings.insert(key.name, Setting { value: bare(value), place: None, from_grid: false });
            }
        }
        settings
    }

    /// A way as a cell of the document.
    pub fn cell(&self, cell: usize, way: &Candidate, files: &mut Files) -> Result<GridCell> {
        let settings = self.settings(cell, way);
        let resolved = grid::resolve_with_files(&settings, &self.expanded.context, files);
        let resolved =
            resolved.map_err(|refusal| anyhow::anyhow!("a way of the search is refused; this is a bug: {refusal}"))?;
        let key = grid::cell_key(&resolved.cell, files);
        Ok(GridCell { key, label: name(way, None), resolved: Ok(resolved), settings })
    }

    /// The command that plans the result of a search: the changes of the file.
    fn next(&self, file: &Path, cell: usize, found: &Searched) -> Option<String> {
        let (best, resolved) = (found.best.first()?, self.expanded.cells[cell].resolved.as_ref().ok()?);
        // The file's own sequences of a step say how many micro-batches there are.
        let is_said = |key: &str| key == "train.accumulation" && self.global_batch.is_some();
        let set = changes(resolved, best).into_iter().filter(|(key, _)| !is_said(key));
        let set: String = set.map(|(key, value)| format!(" --set {}", quoted(&format!("{key}={value}")))).collect();
        Some(format!("zbench plan {}{set}; --full has all settings.", quoted(&file.to_string_lossy())))
    }

    /// Trains the best ways by turns, or stand-ins of the best, and puts the measured order beside the predicted one.
    fn measure(
        &mut self,
        global: &Global,
        session: &mut Session,
        (cell, ways): (usize, &[Candidate]),
        most: usize,
        arguments: &PlanArgs,
    ) -> Result<(Order, u8)> {
        let (planner, mut files) = (Planner::default(), Files::default());
        let mut header = header(&self.expanded.document);
        let mut chosen: Vec<(&Candidate, Planned)> = Vec::new();
        let mut stand_ins = String::new();
        for way in ways.iter().take(most) {
            let planned = planned::plan(&planner, self.cell(cell, way, &mut files)?, None);
            if let (Decision::Record { reason, .. }, true) = (&planned.decision, stand_ins.is_empty()) {
                stand_ins = of_stand_ins(reason);
            }
            chosen.push((way, planned));
        }
        if !stand_ins.is_empty() {
            header.name = format!("{} (proxy)", header.name);
            chosen.clear();
            let (mut left_out, mut lacking, mut alike) = (0, BTreeSet::new(), BTreeSet::new());
            for way in ways {
                let mut cell = self.cell(cell, way, &mut files)?;
                let whole = cell.resolved.clone();
                let of = stand_in(&mut cell, &self.expanded.context, &mut files);
                let lost = match (&whole, &cell.resolved) {
                    (Ok(whole), Ok(small)) => proxy::left_out(&whole.cell, &small.cell),
                    _ => Vec::new(),
                };
                if !lost.is_empty() {
                    (left_out, lacking) = (left_out + 1, lost.into_iter().chain(lacking).collect());
                    continue;
                }
                // The fastest way speaks for those that have the same stand-in.
                match chosen.iter().find(|(_, other)| other.grid.key == cell.key) {
                    Some((first, _)) => alike.extend(first.differing(way)),
                    None => chosen.push((way, planned::plan(&planner, cell, of))),
                }
                if chosen.len() == most {
                    break;
                }
            }
            if left_out > 0 {
                let ways = units::plural(left_out, "way is", "ways are");
                let keys = units::list(&lacking.into_iter().map(str::to_string).collect::<Vec<_>>());
                stand_ins += &format!(" {ways} left out, since their stand-ins would have 1 in {keys}.");
            }
            if !alike.is_empty() {
                let keys = units::list(&alike.into_iter().collect::<Vec<_>>());
                stand_ins += &format!(" Ways that differ in {keys} alone may have one stand-in, named by the fastest.");
            }
            if chosen.is_empty() {
                bail!("--measure trains no way of this search: {stand_ins} --keep KEY=1 keeps such a degree out of it");
            }
        }
        let predicted = |(way, planned): &(&Candidate, Planned)| PredictedWay {
            name: name(way, None),
            key: planned.grid.key.clone(),
            step_ms: way.step_ms,
            tokens_per_second: way.tokens_per_second,
        };
        let predicted: Vec<PredictedWay> = chosen.iter().map(predicted).collect();
        let mut planned: Vec<Planned> = chosen.into_iter().map(|(_, planned)| planned).collect();
        session.judge(&mut planned);
        let turns = Turns::usual(arguments.budget, arguments.allow_load);
        let summary = train::measure(global, session, &planned, header, &turns)?;
        train::note_left_out(&summary);
        Ok((Order::of(predicted, &summary.records, &stand_ins), summary.exit_code()))
    }
}

/// Why stand-ins were trained, and what their order says.
fn of_stand_ins(reason: &str) -> String {
    format!(
        "PROXY: the ways do not run on this machine ({reason}). Scaled-down stand-ins of them were trained on its CPU, with the same \
         strategies and policies and at most 4 ranks. Their order says what the ways cost here, and little of the target's speed."
    )
}

/// Prints searches. All share the screen.
fn print_searches(global: &Global, found: Vec<(Searched, Option<String>)>) -> Result<()> {
    if global.format == Format::Json {
        return print_lines(&found.iter().map(|(one, _)| one).collect::<Vec<_>>());
    }
    let is_short = global.format == Format::Table && !global.full;
    let shown = if is_short { found.len().min(MOST_SEARCHES) } else { found.len() };
    let whole = room(global);
    for (one, next) in &found[..shown] {
        let lines = if one.measured.is_some() { whole.lines.saturating_sub(ORDER_LINES) } else { whole.lines };
        let next: Vec<(&str, String)> = next.iter().map(|next| ("NEXT", next.clone())).collect();
        let share = Room { lines: lines / shown.max(1), ..whole };
        print_screen(global, &estimate_report::searched(one, share, &next))?;
        if let Some(order) = &one.measured {
            print_screen(global, &order.document(Room { lines: ORDER_LINES, ..whole }))?;
        }
    }
    if shown < found.len() {
        zbench_host::say!("{} more searches: --full prints all", found.len() - shown);
    }
    Ok(())
}
