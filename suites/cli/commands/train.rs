//! `grid` and `run`.

use super::progress::Progress;
use super::session::Session;
use super::signals::{stop_flag, stop_flags};
use super::{
    Expanded, command_line, expand, header, open_for_records, own_program, planned, print, print_lines, print_screen,
    printable, quoted, room, seed_of_clock,
};
use crate::{Format, Global, GridArgs, RunArgs};
use anyhow::Result;
use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use zbench_collectives::GroupName;
use zbench_config::foreign::has_weights;
use zbench_config::grid::{self, GridCell};
use zbench_config::profile::drives;
use zbench_config::{ConfigError, Context, resolve};
use zbench_engine::checkpoint::weights::note_of_untied_head;
use zbench_engine::config::{Cell, Model, RopeScaling};
use zbench_host::terminal::Stream;
use zbench_host::{exit, machine};
use zbench_predict::planned::{Decision, Planned};
use zbench_predict::residuals;
use zbench_reports::batch::{self, Batch};
use zbench_reports::estimate_report::EstimateRow;
use zbench_reports::record::{Source, Status};
use zbench_reports::screen::Room;
use zbench_reports::units;
use zbench_reports::{Document as Text, IndexEntry, Notebook, estimate_report, grid_report, notebook_report};
use zbench_runner::by_turns::ByTurns;
use zbench_runner::child::Children;
use zbench_runner::folders::Folders;
use zbench_runner::launched::{Launched, StopFlags};
use zbench_runner::trace::Both;
use zbench_runner::{Execute, Header, Observe, Runner, Summary, Train, Trials};
use zbench_suites::max_batch;

/// Trials of a cell where cells cannot take turns.
pub(super) const TRIALS: u32 = 3;
/// Wall time of a grid by turns. README.md, the tutorial, the quickstart, the start screen and --help state it.
pub(super) const BUDGET: Duration = Duration::from_secs(120);

/// `zbench grid FILE`.
pub fn grid(global: &Global, session: &mut Session, arguments: &GridArgs) -> Result<u8> {
    let mut expanded = expand(&arguments.cells, arguments.max_cells, session.hosts.clone())?;
    let mut cells = planned(&mut expanded, arguments.proxy, usize::MAX)?;
    session.judge(&mut cells);
    if cells.is_empty() {
        zbench_host::say!("{}", grid::none_left(&expanded.document, &expanded.only));
        return Ok(if arguments.dry_run { exit::SUCCESS } else { exit::NOT_MEASURED });
    }
    say_batches(global, &cells);
    say_adapters(&cells);
    say_heads(&cells);
    say_offload(&cells);
    say_crossings(&cells);
    say_longer(&cells);
    if arguments.dry_run {
        say_assumed(cells.iter().map(|cell| &cell.grid), &expanded.context);
        if let Some(trace) = session.timelines(global)? {
            trace.predicted(&cells);
        }
        return estimates(global, &cells, &arguments.cells.file, arguments.proxy);
    }
    find_drives(global, &mut cells)?;
    let mut limits = expanded.limits.take();
    if let Some(limits) = &mut limits {
        let mut next = limits.next(&cells);
        session.judge(&mut next);
        cells.extend(next);
    }
    let seed = arguments.seed.unwrap_or_else(seed_of_clock);
    let how = match (arguments.trials, &limits) {
        (None, None) => by_turns(session, &cells, &Turns::of(arguments, seed))?,
        _ => Err(String::new()),
    };
    let trials = trials(arguments.trials.unwrap_or(TRIALS), arguments.fresh);
    let mut header = header(&expanded.document);
    if arguments.proxy {
        header.name = format!("{} (proxy)", header.name);
    }
    header.any_environment = arguments.any_environment;
    header.no_repeats = arguments.no_repeats;
    header.folders = Folders::Trial { fresh: arguments.fresh };
    let question = header.question.clone();
    header.why_not_turns = how.as_ref().err().cloned().filter(|why| !why.is_empty());
    header.seed = seed;
    header.budget = arguments.budget;
    let mut run = |cells: &[Planned]| {
        let how = how.as_ref().map_or(How::Trials(trials), How::Turns);
        carry_out(global, session, cells, how, header.clone(), arguments.timeout, None)
    };
    let summary = match &mut limits {
        Some(limits) => max_batch::carry_out(limits, &cells, &mut run)?,
        None => run(&cells)?,
    };
    note_left_out(&summary);
    if global.format == Format::Json {
        print_lines(&summary.records)?;
    } else if summary.interrupted {
        let of_grid = cells.iter().filter(|cell| !zbench_runner::is_next(cell));
        print_interrupted(global, of_grid.map(|cell| cell.grid.key.as_str()), &summary)?;
    } else if is_short(global) && summary.records.iter().all(|record| record.outcome.status == Status::Skipped) {
        print_screen(global, &none_here(&cells, arguments))?;
    } else {
        print_screen(global, &grid_report::comparison_in(&summary.records, Some(question.as_str()), room(global)))?;
    }
    Ok(summary.exit_code())
}

/// Up to `count` trials of each cell, or `count` new ones with `fresh`.
pub(super) const fn trials(count: u32, fresh: bool) -> Trials {
    if fresh { Trials::Fresh(count) } else { Trials::UpTo(count) }
}

/// How cells are measured.
#[derive(Clone, Copy)]
pub enum How<'a> {
    /// One after another.
    Trials(Trials),
    /// All of them resident.
    Turns(&'a ByTurns),
}

/// Limit of a cell's time where none is stated, as of `grid`.
pub(super) const TIMEOUT: Duration = Duration::from_secs(600);

/// How cells are to take turns.
pub(super) struct Turns {
    resident_memory: Option<u64>,
    budget: Option<Duration>,
    decide: f64,
    timeout: Duration,
    allow_load: bool,
    fresh: bool,
    seed: u64,
}

impl Turns {
    /// As a grid asks for them.
    fn of(arguments: &GridArgs, seed: u64) -> Turns {
        let GridArgs { resident_memory, budget, decide, timeout, allow_load, fresh, .. } = *arguments;
        Turns { resident_memory, budget, decide, timeout, allow_load, fresh, seed }
    }

    /// As a grid asks for them that states no more than this.
    pub fn usual(budget: Option<Duration>, allow_load: bool) -> Turns {
        let seed = seed_of_clock();
        Turns { resident_memory: None, budget, decide: 0.05, timeout: TIMEOUT, allow_load, fresh: false, seed }
    }
}

/// Measures cells by turns, else by trials where they cannot take turns. Their records are in the notebook.
pub(super) fn measure(
    global: &Global,
    session: &mut Session,
    cells: &[Planned],
    mut header: Header,
    turns: &Turns,
) -> Result<Summary> {
    let how = by_turns(session, cells, turns)?;
    header.folders = Folders::Trial { fresh: turns.fresh };
    header.why_not_turns = how.as_ref().err().cloned();
    (header.seed, header.budget) = (turns.seed, turns.budget);
    let how = how.as_ref().map_or(How::Trials(trials(TRIALS, turns.fresh)), How::Turns);
    carry_out(global, session, cells, how, header, turns.timeout, None)
}

/// How the cells take turns, or why they cannot.
fn by_turns(session: &Session, cells: &[Planned], asked: &Turns) -> Result<std::result::Result<ByTurns, String>> {
    if session.leader.is_some() {
        return Ok(Err("ranks that a launcher started are there for one cell after another".into()));
    }
    if session.trace.is_some() {
        return Ok(Err("a timeline is written of one cell after another".into()));
    }
    let available = asked.resident_memory.or_else(|| machine::memory_bytes("MemAvailable")).unwrap_or(u64::MAX);
    if let Some(why) = zbench_runner::by_turns::why_not(cells, available) {
        return Ok(Err(why));
    }
    Ok(Ok(ByTurns {
        program: own_program()?,
        budget: asked.budget.unwrap_or(BUDGET),
        equal: asked.decide,
        seed: asked.seed,
        timeout: asked.timeout,
        allow_load: asked.allow_load,
        stop: stop_flag()?,
        fresh: asked.fresh,
        available,
    }))
}

fn is_short(global: &Global) -> bool {
    global.format == Format::Table && !global.full
}

/// Lines of the screen where nothing can run.
const NONE_LINES: usize = 25;

/// The estimates of cells that cannot run here, and what to do instead.
fn none_here(cells: &[Planned], arguments: &GridArgs) -> Text {
    let rows: Vec<EstimateRow> = cells.iter().map(Planned::row).collect();
    let file = quoted(&arguments.cells.file.to_string_lossy());
    let next = [
        (
            "HERE",
            format!("nothing of it can run: zbench grid {file} --proxy runs scaled-down stand-ins of these cells."),
        ),
        ("PLAN", format!("zbench plan {file} has all of this, --search looks for a faster way to split the work.")),
    ];
    estimate_report::estimates(&rows, Room { lines: NONE_LINES, ..Room::wide(Stream::Out.width()) }, &next)
}

/// Printed in place of the report of a stopped grid, as a report of some cells would look complete.
pub(super) fn print_interrupted<'k>(
    global: &Global,
    keys: impl Iterator<Item = &'k str>,
    summary: &Summary,
) -> Result<()> {
    let measured: HashSet<&str> =
        summary.records.iter().filter(|record| record.is_measured()).map(|record| record.key.as_str()).collect();
    let (mut count, mut all) = (0, 0);
    for key in keys {
        all += 1;
        count += usize::from(measured.contains(key));
    }
    print(&printable(&format!(
        "interrupted: {count} of {} measured\nTo go on, run the same command again: {}\nTo see what is measured so far: zbench \
         --notebook {} report\n",
        zbench_reports::units::plural(all, "cell", "cells"),
        command_line(),
        quoted(&global.notebook.to_string_lossy())
    )))
}

/// `zbench run FILE`.
pub fn run(global: &Global, session: &mut Session, arguments: &RunArgs) -> Result<u8> {
    let mut expanded = expand(&arguments.cells, grid::MOST_CELLS, session.hosts.clone())?;
    expanded.refuse_search("runs several cells and `run` runs one; use `grid`")?;
    if expanded.cells.len() != 1 {
        let file = expanded.document.path.display().to_string();
        let why = match expanded.cells.is_empty() {
            true => grid::none_left(&expanded.document, &expanded.only),
            false => not_one(&expanded.cells),
        };
        return Err(ConfigError::about(file, why).into());
    }
    refuse_all(&expanded)?;
    let mut cells = planned(&mut expanded, false, usize::MAX)?;
    session.judge(&mut cells);
    // One went in.
    let [cell] = &cells[..] else { return Ok(exit::NOT_MEASURED) };
    if let Decision::Record { status: Status::Skipped, reason, source: Source::Plan } = &cell.decision {
        return Err(ConfigError::about(expanded.document.path.display().to_string(), reason.clone()).into());
    }
    say_batches(global, &cells);
    say_adapters(&cells);
    say_heads(&cells);
    say_offload(&cells);
    say_crossings(&cells);
    say_longer(&cells);
    find_drives(global, &mut cells)?;
    let header = header(&expanded.document);
    let summary = carry_out(
        global,
        session,
        &cells,
        How::Trials(Trials::OneMore),
        header,
        arguments.timeout,
        Some(arguments.log_every),
    )?;
    match global.format {
        Format::Json => print_lines(&summary.records)?,
        _ => {
            for record in &summary.records {
                print_screen(global, &notebook_report::run(record, room(global)))?;
            }
        }
    }
    Ok(summary.exit_code())
}

/// A warning where keys of adapters are stated and no cell has adapters.
fn say_adapters(cells: &[Planned]) {
    let stated = cells.iter().flat_map(|cell| cell.grid.settings.keys()).find(|key| {
        let switch = ["lora.rank", "lora.method"].contains(*key);
        key.starts_with("lora.") && !switch
    });
    let none = cells.iter().filter_map(Planned::cell).all(|cell| !cell.lora.on());
    if let (Some(key), true) = (stated, none) {
        zbench_host::say!(
            "warning: {key} is stated and has no effect: there are no adapters, so everything trains; state lora.rank, or \
             lora.method = \"ia3\""
        );
    }
}

/// Warns of heads that train apart from the embedding although their config.json ties the two.
pub(super) fn say_heads(cells: &[Planned]) {
    let mut models: Vec<&Model> = cells.iter().filter_map(Planned::cell).map(|cell| &cell.model).collect();
    models.dedup_by_key(|model| (&model.weights, model.tie_word_embeddings));
    let said: BTreeSet<String> = models.into_iter().filter_map(note_of_untied_head).collect();
    said.iter().for_each(|text| zbench_host::say!("warning: {text}"));
}

/// A warning where the folder of what lives on a disk is in memory.
fn say_offload(cells: &[Planned]) {
    let running = cells.iter().filter(|cell| cell.decision == Decision::Run).filter_map(Planned::cell);
    let mut folders: Vec<PathBuf> = running.filter_map(|cell| cell.memory.offload_folder()).collect();
    folders.sort();
    folders.dedup();
    for folder in folders.iter().filter(|folder| zbench_kernels::disk::is_memory(folder).is_ok_and(|is| is)) {
        zbench_host::say!(
            "warning: memory.offload_path: {} is on a file system in memory (tmpfs), so what is offloaded there stays in memory; name a \
             folder on a disk",
            folder.display()
        );
    }
}

/// Warns of ranks that share matrices over an emulated link between nodes, with what that costs at least in the worst cell.
pub(super) fn say_crossings(cells: &[Planned]) {
    let cost = |planned: &Planned| {
        let (cell, estimate) = (planned.cell()?, planned.estimate.as_ref()?);
        let (link, tensor) = (cell.link_spec()?, cell.parallel.degrees.tensor);
        let crosses = tensor > 1 && !link.ranks_per_node.is_multiple_of(tensor);
        let rows = estimate.traffic.iter().filter(|row| crosses && row.axis == GroupName::Tensor);
        let (calls, bytes) = rows.fold((0.0, 0.0), |(calls, bytes), row| (calls + row.calls, bytes + row.wire_bytes));
        crosses.then_some((calls * link.latency + bytes / link.bandwidth, calls, bytes, tensor, link.ranks_per_node))
    };
    let worst = cells.iter().filter_map(cost).max_by(|one, other| one.0.total_cmp(&other.0));
    if let Some((seconds, calls, bytes, tensor, per_node)) = worst {
        zbench_host::say!(
            "warning: parallel.tensor = {tensor} has ranks on several nodes of parallel.ranks_per_node = {per_node}: {calls} calls and {} of \
             each rank cross the link in a step, {} of it at least; matrices are best shared within a node",
            units::traffic(bytes),
            units::duration(seconds)
        );
    }
}

/// Tells of sequences that are longer than the model was made for, where rotary positions take them all the same.
pub(super) fn say_longer(cells: &[Planned]) {
    let longer = |planned: &Planned| {
        let cell = planned.cell()?;
        let model = &cell.model;
        let (tokens, most) = (cell.train.seq_len, model.max_position_embeddings);
        // A length that nothing stated is the default.
        let is_stated =
            most != DEFAULT_POSITIONS || planned.grid.settings.contains_key("model.max_position_embeddings");
        if model.family == "custom" && !is_stated {
            return None;
        }
        let stretched = model.rope_scaling.map_or(0.0, |scaling| match scaling {
            RopeScaling::Linear { factor } => factor * most as f64,
            RopeScaling::Llama3 { factor, original_max_position_embeddings: original, .. } => factor * original as f64,
        });
        let is_longer = model.most_tokens().is_none() && tokens > most && tokens as f64 > stretched;
        is_longer.then_some((tokens, most, model.rope_scaling.is_some()))
    };
    if let Some((tokens, most, is_scaled)) = cells.iter().filter_map(longer).max() {
        let remedy = if is_scaled { "a larger factor of model.rope_scaling" } else { "model.rope_scaling" };
        zbench_host::say!(
            "note: train.seq_len = {tokens} is beyond max_position_embeddings = {most} of the model, whose rotary positions go on; \
             {remedy} stretches them"
        );
    }
}

/// `max_position_embeddings` of a model that states none.
const DEFAULT_POSITIONS: usize = 2048;

/// Notes what was assumed of models that `model.path` names and the engine cannot train, each assumption once.
pub(super) fn say_assumed<'c>(cells: impl Iterator<Item = &'c GridCell>, context: &Context) {
    let key = |cell: &GridCell| {
        let of_model = ["model.path", "model.dropout", "lora.rank"];
        of_model.map(|name| cell.settings.get(name).map(|setting| setting.value.to_string()))
    };
    let (mut read, mut said) = (BTreeSet::new(), BTreeSet::new());
    for cell in cells.filter(|cell| cell.resolved.is_ok()) {
        if read.insert(key(cell)) {
            for text in resolve::assumed(&cell.settings, context) {
                if said.insert(text.clone()) {
                    zbench_host::say!("note: {text}");
                }
            }
        }
    }
}

/// Skips cells whose `model.path` has no weights: a plan reads sizes alone, and a run refuses such a folder.
pub(super) fn skip_without_weights(cells: &mut [Planned]) {
    for planned in cells.iter_mut().filter(|planned| planned.decision == Decision::Run) {
        let folder = planned.cell().and_then(|cell| cell.model.weights.clone());
        if let Some(folder) = folder.filter(|folder| !has_weights(folder)) {
            let reason = format!("model.path: {} has no weights to load", folder.display());
            planned.decision = Decision::Record { status: Status::Skipped, reason, source: Source::Plan };
        }
    }
}

/// What the drives of offloaded state give, by the notebook's records of `zbench io`, or measured before the first cell runs.
fn find_drives(global: &Global, cells: &mut [Planned]) -> Result<()> {
    let offloads = |cell: &Planned| cell.cell().is_some_and(|cell| cell.memory.offload_folder().is_some());
    if cells.iter().any(offloads) {
        let rates = drive_rates(&Notebook::open(&global.notebook)?)?;
        cells.iter_mut().for_each(|cell| cell.find_drive(&rates));
    }
    Ok(())
}

/// The rates of drives that the notebook's records of this machine hold.
pub(super) fn drive_rates(notebook: &Notebook) -> Result<Vec<drives::DriveRates>> {
    let (host, index) = (residuals::this_host(), notebook.index()?);
    let is_of_drives = |record: &&IndexEntry| record.setting("suite").is_some_and(|suite| suite == "io");
    let records = notebook.whole(residuals::of_host(&index, &host).filter(is_of_drives))?;
    Ok(drives::of_records(&records, &host))
}

/// The effective batch, and a warning where it changes under one learning rate.
fn say_batches(global: &Global, cells: &[Planned]) {
    let of = |cell: &Cell| Batch {
        ranks: cell.parallel.ranks as u64,
        tensor: cell.parallel.degrees.tensor as u64,
        stages: cell.parallel.degrees.pipeline as u64,
        micro_batch: cell.train.micro_batch as u64,
        accumulation: cell.train.accumulation as u64,
        seq_len: cell.train.seq_len as u64,
        lr: cell.train.lr,
    };
    let batches: Vec<Batch> = cells.iter().filter_map(Planned::cell).map(of).collect();
    if let Some(text) = batch::effective(&batches).filter(|_| !global.quiet) {
        zbench_host::say!("{text}");
    }
    if let Some(text) = batch::advice(&batches) {
        zbench_host::say!("warning: {text}");
    }
}

/// The error of `run` for several cells, with an `--only` for each of them.
fn not_one(cells: &[GridCell]) -> String {
    const SHOWN: usize = 8;
    // Cells may differ in nothing but a list, which --only does not take; the label then tells them apart.
    let line = |(terms, cell): (String, &GridCell)| match terms.as_str() {
        "" => format!("\n  {}", cell.label),
        terms => format!("\n  --only {terms}"),
    };
    let mut lines: Vec<String> = grid::differences(cells).into_iter().zip(cells).take(SHOWN).map(line).collect();
    if cells.len() > SHOWN {
        lines.push(format!("\n  and {} more", cells.len() - SHOWN));
    }
    let count = cells.len();
    format!(
        "the file has {count} cells, and `run` runs one; add the option that selects one of them, or run all with `grid`:{}",
        lines.concat()
    )
}

/// An impossible combination is an error if it is the only one.
pub(super) fn refuse_all(expanded: &Expanded) -> Result<()> {
    if let [cell] = &expanded.cells[..]
        && let Err(refusal) = &cell.resolved
    {
        return Err(ConfigError::about(expanded.document.path.display().to_string(), refusal.to_string()).into());
    }
    Ok(())
}

/// The estimates of cells.
pub(super) fn estimates(global: &Global, cells: &[Planned], file: &Path, proxy: bool) -> Result<u8> {
    let mut rows: Vec<EstimateRow> = cells.iter().map(Planned::row).collect();
    // A plan must not create a notebook.
    if let Some(Ok(notebook)) = global.notebook.is_dir().then(|| Notebook::open(&global.notebook)) {
        residuals::with_errors(&mut rows, &notebook);
    }
    match global.format {
        Format::Json => print_lines(&rows)?,
        _ => {
            let runs = |cell: &Planned| matches!(cell.decision, Decision::Run) && cell.fits() != Some(false);
            let file = quoted(&file.to_string_lossy());
            let stand_ins = if proxy { " --proxy" } else { "" };
            let next = match cells.iter().any(runs) {
                true => format!(
                    "zbench grid {file}{stand_ins} measures them; zbench plan {file}{stand_ins} --full has memory by category, spans of time and traffic."
                ),
                false => format!(
                    "zbench plan {file} --search looks for a faster way to split the work; --full has memory by category, spans of time and traffic."
                ),
            };
            print_screen(global, &estimate_report::estimates(&rows, room(global), &[("NEXT", next)]))?
        }
    }
    Ok(exit::SUCCESS)
}

/// Runs cells in child processes, with progress, until done or stopped. `log_every`: steps between lines of steps.
pub fn carry_out(
    global: &Global,
    session: &mut Session,
    cells: &[Planned],
    how: How<'_>,
    header: Header,
    timeout: Duration,
    log_every: Option<u64>,
) -> Result<Summary> {
    let notebook = open_for_records(global, &header.name)?;
    let stop = match how {
        How::Turns(how) => StopFlags { any: how.stop.clone(), ..StopFlags::default() },
        How::Trials(_) => stop_flags()?,
    };
    let program = own_program()?;
    let peak_seconds = zbench_runner::PEAK_SECONDS;
    let trace_steps = session.timelines(global)?.map_or(0, |trace| trace.steps());
    let mut execute: Box<dyn Execute + '_> = match &mut session.leader {
        None => Box::new(Children { program, stop: stop.any, timeout, peak_seconds, trace_steps }),
        Some(leader) => Box::new(Launched { leader, program, stop, timeout, peak_seconds, trace_steps }),
    };
    let mut progress = Progress::new(global, log_every);
    let mut both;
    let observe: &mut dyn Observe = match &mut session.trace {
        Some(trace) => {
            both = Both(&mut progress, trace);
            &mut both
        }
        None => &mut progress,
    };
    let header = Header { notes: session.hosts.iter().map(|hosts| hosts.words()).collect(), ..header };
    let mut runner = Runner { notebook: &notebook, suite: Train { execute: &mut *execute }, observe, header };
    let result = match how {
        How::Trials(trials) => runner.run(cells, trials).map_err(anyhow::Error::from),
        How::Turns(how) => runner.take_turns(cells, how).map_err(anyhow::Error::from),
    };
    progress.clear();
    let summary = result?;
    if !global.quiet {
        summary.said.iter().for_each(|said| zbench_host::say!("{said}"));
    }
    if summary.interrupted {
        zbench_host::say!("{}", stopped(&summary, cells, &notebook.path().display().to_string()));
    }
    Ok(summary)
}

/// Where the command was stopped, and how to continue.
fn stopped(summary: &Summary, cells: &[Planned], notebook: &str) -> String {
    use zbench_engine::config::Resume;
    let all = format!("everything measured is in {notebook}");
    let Some(under_way) = summary.stopped.as_ref().filter(|stopped| stopped.saved.is_some() || stopped.step > 0) else {
        return format!("stopped; {all}. The same command goes on from here.");
    };
    let at = format!("stopped after step {} of {}", under_way.step, under_way.of);
    let Some(dir) = &under_way.saved else {
        return match cells {
            [_] => format!(
                "{at}; {all}. This run is not: without checkpoints it begins anew. State checkpoint.dir, and the same command \
                 goes on from here."
            ),
            _ => format!("{at} of a trial, which begins anew; {all}. The same command goes on from here."),
        };
    };
    let resumes = |cell: &Planned| {
        let saving = cell.cell().and_then(|cell| cell.checkpoint.as_ref());
        saving.is_some_and(|saving| saving.resume == Resume::Auto)
    };
    let dir = dir.display();
    match cells.iter().all(resumes) {
        true => format!("{at}; its checkpoint is {dir}, {all}. The same command goes on from here."),
        false => format!(
            "{at}; its checkpoint is {dir}, {all}. With --set checkpoint.resume={dir} the command goes on from it."
        ),
    }
}

/// Says how many trials the budget left no time for.
pub fn note_left_out(summary: &Summary) {
    if summary.left_out > 0 {
        let trials = zbench_reports::units::plural(summary.left_out, "trial", "trials");
        zbench_host::say!(
            "the budget left no time for {trials}; the same command with a larger --budget measures them"
        );
    }
}
