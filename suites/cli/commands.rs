//! One module per command, and what the commands share.

mod advise;
mod allreduce;
mod bench;
mod bound;
mod bundle;
mod calibrate;
mod compare;
mod doctor;
mod exchange;
mod filter;
mod gate;
mod generate;
mod measure;
mod notebook;
mod open;
mod plan;
mod progress;
mod report;
mod repro;
mod rule;
mod search;
mod select;
mod session;
mod signals;
mod start;
mod train;

use crate::{Cells, Cli, Command, Format, Global};
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use zbench_config::files::Files;
use zbench_config::grid::{self, GridCell};
use zbench_config::{Axis, ConfigError, Context, Document, Hosts, Problem};
use zbench_engine::config::DeviceKind;
use zbench_engine::planner::Planner;
use zbench_host::terminal::Stream;
use zbench_host::{exit, logging, machine};
use zbench_predict::planned::{self, Decision, Planned};
use zbench_predict::proxy;
use zbench_reports::render::cut::cut;
use zbench_reports::render::{csv, html, json, markdown, printable, terminal};
use zbench_reports::screen::Room;
use zbench_reports::{Notebook, Record, document};
use zbench_runner::trace::Timelines;
use zbench_runner::{Header, mpirun, rescue};
use zbench_suites::max_batch::MaxBatchSearch;

/// Runs a command; its exit code.
pub fn run(cli: &Cli) -> Result<u8> {
    let global = &cli.global;
    let Some(command) = &cli.command else { return start::start(global) };
    refuse_trace(global, command)?;
    match command {
        Command::Grid(arguments) => {
            session::with(global, arguments.timeout, |session| match bench::of_grid(&arguments.cells)? {
                Some(_) if global.trace.is_some() => {
                    bail!("--trace writes the timeline of steps that train, and this file's suite trains nothing")
                }
                Some(document) => bench::grid(global, arguments, &document),
                None => train::grid(global, session, arguments),
            })
        }
        Command::Run(arguments) => {
            session::with(global, arguments.timeout, |session| train::run(global, session, arguments))
        }
        Command::Plan(arguments) => plan::plan(global, arguments),
        Command::Advise(arguments) => advise::advise(global, arguments),
        Command::Rule(arguments) => rule::rule(global, arguments),
        Command::Allreduce(arguments) => allreduce::allreduce(global, arguments),
        Command::Gemm(arguments) => bench::gemm(global, arguments),
        Command::Attention(arguments) => bench::attention(global, arguments),
        Command::Checkpoint(arguments) => bench::checkpoint(global, arguments),
        Command::Io(arguments) => bench::io(global, arguments),
        Command::CheckpointTrial => Ok(zbench_suites::checkpoint::child::main()),
        Command::Calibrate(arguments) => calibrate::calibrate(global, arguments),
        Command::List(arguments) => notebook::list(global, arguments),
        Command::Show { id } => notebook::show(global, id),
        Command::Note { id, text } => notebook::note(global, id, text),
        Command::Tag(arguments) => notebook::tag(global, arguments),
        Command::Export(arguments) => exchange::export(global, arguments),
        Command::Import(arguments) => exchange::import(global, arguments),
        Command::Report(arguments) => report::report(global, arguments),
        Command::Repro { id, timeout } => {
            session::with(global, *timeout, |session| repro::repro(global, session, id, *timeout))
        }
        Command::Compare(arguments) if arguments.measure => measure::measure(global, arguments),
        Command::Compare(arguments) => compare::compare(global, arguments),
        Command::Gate(arguments) => {
            let timeout = std::time::Duration::from_secs(60);
            session::with(global, timeout, |session| gate::gate(global, session, arguments))
        }
        Command::Doctor { keys: true } => print(&zbench_config::keys::document()).map(|()| exit::SUCCESS),
        Command::Doctor { keys: false } => doctor::doctor(global),
        Command::Completions { shell } => generate::completions(*shell),
        Command::Man { folder } => generate::man(global, folder),
        Command::Cell => Ok(zbench_runner::cell::main()),
        Command::Rank if mpirun::is_rank() => Ok(mpirun::rank_main()),
        Command::Rank => Ok(zbench_runner::rank::main()),
        Command::Follow { command } => Err(zbench_launch::become_follower(command).into()),
    }
}

/// The file of `--trace`, where one was asked for.
fn timelines(global: &Global) -> Result<Option<Timelines>> {
    let Some(path) = &global.trace else { return Ok(None) };
    let made = Timelines::create(path, global.trace_steps, &command_line());
    Ok(Some(made.with_context(|| format!("--trace: the file {} cannot be made", path.display()))?))
}

/// Refuses `--trace` where no cell trains, as the option would have no effect.
fn refuse_trace(global: &Global, command: &Command) -> Result<()> {
    let traces = matches!(command, Command::Grid(_) | Command::Run(_) | Command::Repro { .. })
        || matches!(command, Command::Plan(plan) if plan.validate.is_none() && !plan.search);
    if global.trace.is_some() && !traces {
        bail!("--trace writes the timeline of steps that train: it belongs to run, grid, repro and plan");
    }
    Ok(())
}

/// A seed of the time, short enough to be typed again.
fn seed_of_clock() -> u64 {
    jiff::Timestamp::now().as_microsecond().unsigned_abs() % 1_000_000
}

/// Path of this program, which starts itself again for ranks and cells in processes of their own.
fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("the path of zbench itself is needed to start cells")
}

/// Opens the notebook for new records, prints its warnings, and opens a log file of this name.
fn open_for_records(global: &Global, name: &str) -> Result<Notebook> {
    let notebook = Notebook::open(&global.notebook)?;
    notebook::print_warnings(&*notebook.index()?);
    open_log(&notebook, name);
    Ok(notebook)
}

/// Appends a record as the next trial of its cell. A record that cannot be written is kept elsewhere.
fn append(notebook: &Notebook, record: &mut Record) -> Result<()> {
    record.trial = 1 + notebook.index()?.records.iter().filter(|other| other.key == record.key).count() as u32;
    Ok(notebook.append(record).inspect_err(|_| rescue::keep_and_say(record))?)
}

/// Opens the log file of a grid or a run. If records cannot be written either, their error is reported instead.
fn open_log(notebook: &Notebook, name: &str) {
    use std::io::ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let reported = [FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull];
    if let Err(error) = logging::open(notebook.directory(), name)
        && !reported.contains(&error.kind())
    {
        let folder = notebook.directory().join(logging::FOLDER);
        zbench_host::say!("warning: no log of this run: {} cannot be written ({error})", folder.display());
    }
}

/// Opens the notebook, which must exist: a query must not create one.
fn existing(global: &Global) -> Result<Notebook> {
    if !global.notebook.is_dir() {
        bail!(
            "there is no notebook in {}; run a grid first, or name it with --notebook DIR",
            global.notebook.display()
        );
    }
    Ok(Notebook::open(&global.notebook)?)
}

/// Prints to standard output. A closed pipe is an error, not a panic.
fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

fn print_bytes(text: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text)?;
    out.flush()?;
    Ok(())
}

/// Prints a document in the format of `--format`.
fn print_document(global: &Global, document: &document::Document) -> Result<()> {
    print(&document_text(global, document))
}

/// Prints a document: one screen of it in a terminal, all of it with `--full`.
fn print_screen(global: &Global, document: &document::Document) -> Result<()> {
    if global.format != Format::Table || global.full {
        return print_document(global, document);
    }
    print_document(global, &shortened(document))
}

/// The room on the terminal, or a screen of the usual width for other formats.
fn room(global: &Global) -> Room {
    match global.format {
        Format::Table => Room::wide(Stream::Out.width()),
        _ => Room::SCREEN,
    }
}

/// The short form of a document, or its beginning if it has none.
fn shortened(document: &document::Document) -> document::Document {
    match document.screen {
        Some(_) => document.clone().short(),
        None => cut(document, Room::wide(Stream::Out.width()), "MORE     the same command with --full has the rest"),
    }
}

fn document_text(global: &Global, document: &document::Document) -> String {
    match global.format {
        Format::Table => terminal::render(document, the_terminal(global)),
        Format::Markdown => markdown::render(document),
        Format::Csv => csv::render(document),
        Format::Json => json::render(document),
        Format::Html => html::render(document),
    }
}

/// One object per line.
fn json_lines(values: &[impl serde::Serialize]) -> Result<String> {
    values.iter().map(|value| Ok(serde_json::to_string(value)? + "\n")).collect()
}

fn print_lines(values: &[impl serde::Serialize]) -> Result<()> {
    print_json(&json_lines(values)?)
}

/// Prints JSON with control characters escaped, so that nothing acts on a terminal.
fn print_json(text: &str) -> Result<()> {
    print(&json::escaped(text))
}

/// Prints the text of a file unchanged, or without control characters if standard output is a terminal.
fn print_file(text: &str) -> Result<()> {
    if Stream::Out.is_terminal() { print(&printable(text)) } else { print(text) }
}

fn the_terminal(global: &Global) -> terminal::Terminal {
    terminal::Terminal { width: Stream::Out.width(), color: Stream::Out.color(global.color) }
}

/// The cells of a configuration file.
struct Expanded {
    document: Document,
    /// The terms of `--only`.
    only: Vec<Axis>,
    cells: Vec<GridCell>,
    files: Files,
    context: Context,
    /// The searches of the document. They are set when its cells are planned.
    limits: Option<MaxBatchSearch>,
}

fn expand(arguments: &Cells, max_cells: usize, launched: Option<Arc<Hosts>>) -> Result<Expanded> {
    expand_with(arguments, max_cells, |context| context.launched(launched))
}

/// The same on a changed machine.
fn expand_with(arguments: &Cells, max_cells: usize, change: impl FnOnce(Context) -> Context) -> Result<Expanded> {
    let document = Document::read(&arguments.file, &arguments.set)?;
    expand_document(document, arguments.only.as_deref(), max_cells, change)
}

/// The same of a document that was read: a pipe is read once.
fn expand_document(
    document: Document,
    only: Option<&str>,
    max_cells: usize,
    change: impl FnOnce(Context) -> Context,
) -> Result<Expanded> {
    let text = only.unwrap_or_default();
    let only = only.map(|only| grid::parse_only(only, &document)).transpose()?.unwrap_or_default();
    let context = change(Context::new(document.folder().to_path_buf(), machine::cores()));
    let mut files = Files::default();
    let mut cells = grid::expand_to_search(&document, &only, max_cells, &context, &mut files)?;
    if !only.is_empty() && cells.len() > 1 {
        let all = grid::expand_to_search(&document, &[], grid::MOST_CELLS_EVER, &context, &mut files);
        narrow(&mut cells, |cell| &cell.key, all.ok().and_then(|all| grid::called(&all, text)), text);
    }
    Ok(Expanded { document, only, cells, files, context, limits: None })
}

/// Keeps the cell that `--only` names by its whole label, where the label's terms leave several.
fn narrow<C>(cells: &mut Vec<C>, key: impl Fn(&C) -> &str, called: Option<String>, only: &str) {
    let Some(called) = called.filter(|called| cells.iter().any(|cell| key(cell) == called)) else { return };
    let others = cells.len() - 1;
    cells.retain(|cell| key(cell) == called);
    let others = zbench_reports::units::plural(others, "other cell has", "other cells have");
    zbench_host::say!(
        "note: --only {only} is the label of one cell, and {others} its values, too; with its keys in full, as \
         parallel.strategy=zero3, it stands for all"
    );
}

impl Expanded {
    /// Refuses a document with a search. `why` says why the command cannot search.
    fn refuse_search(&self, why: &str) -> Result<()> {
        let Some(search) = &self.document.search else { return Ok(()) };
        let (source, key) = (self.document.path.display().to_string(), "grid.search".to_string());
        let message = format!("{why}; state one value instead: --set {}=N", search.key);
        Err(ConfigError(vec![Problem { source, place: search.place, key, message }]).into())
    }
}

/// Plans every cell or its stand-in, and looks for what would make the first `advised` of those fit that do not. A search yields the
/// cells with the largest value that fits.
fn planned(expanded: &mut Expanded, stand_ins: bool, advised: usize) -> Result<Vec<Planned>> {
    if stand_ins {
        expanded.refuse_search("asks what fits the memory of a machine, and --proxy runs stand-ins on this one")?;
    }
    if let Some(search) = expanded.document.search {
        let (cells, files) = (std::mem::take(&mut expanded.cells), std::mem::take(&mut expanded.files));
        let (planned, limits) =
            MaxBatchSearch::find(&expanded.document, search, cells, expanded.context.clone(), files);
        expanded.limits = Some(limits);
        return refuse_the_impossible(&expanded.document, planned);
    }
    let cells = std::mem::take(&mut expanded.cells);
    let planner = Planner::default();
    if !stand_ins {
        let mut planned: Vec<Planned> =
            cells.into_iter().map(|cell| planned::without_advice(&planner, cell, None)).collect();
        planned::advise(&planner, &mut planned, advised);
        return refuse_the_impossible(&expanded.document, planned);
    }
    let absent = |cell: &GridCell| cell.resolved.as_ref().is_ok_and(|r| r.cell.hardware.device != DeviceKind::Cpu);
    if !cells.iter().any(absent) {
        let file = expanded.document.path.display().to_string();
        let message = "--proxy stands in for absent hardware, and no cell of this grid needs any; leave --proxy out";
        return Err(ConfigError::about(file, message).into());
    }
    let mut seen = BTreeSet::new();
    let mut planned = Vec::new();
    for mut cell in cells {
        let of = if absent(&cell) { stand_in(&mut cell, &expanded.context, &mut expanded.files) } else { None };
        if seen.insert(cell.key.clone()) {
            planned.push(planned::plan(&planner, cell, of));
        }
    }
    Ok(planned)
}

/// Puts the scaled-down stand-in of a cell in its place; the key that the cell had.
fn stand_in(cell: &mut GridCell, context: &Context, files: &mut Files) -> Option<String> {
    let resolved = cell.resolved.as_mut().ok()?;
    resolved.cell = proxy::scaled(&resolved.cell, machine::cores());
    resolved.cell.hardware.threads_per_rank = context.threads(resolved.cell.parallel.ranks);
    resolved.cell.parallel.backend = context.backend(DeviceKind::Cpu, resolved.cell.parallel.ranks);
    resolved.profile = None;
    let key = grid::cell_key(&resolved.cell, files);
    cell.label = format!("{} [proxy]", cell.label).trim().to_string();
    Some(std::mem::replace(&mut cell.key, key))
}

/// A cell that the plan refuses is skipped if it comes from a grid. Otherwise it is an error of the file.
fn refuse_the_impossible(document: &Document, planned: Vec<Planned>) -> Result<Vec<Planned>> {
    for cell in &planned {
        let from_grid = cell.grid.settings.values().any(|setting| setting.from_grid);
        if let (None, Decision::Record { reason, .. }, false) = (&cell.footprint, &cell.decision, from_grid) {
            return Err(ConfigError::about(document.path.display().to_string(), reason.clone()).into());
        }
    }
    Ok(planned)
}

/// The common fields of all records of this command.
fn header(document: &Document) -> Header {
    let text = |key: &str| document.base.get(key).and_then(|setting| setting.value.as_str()).map(str::to_string);
    let stem = document.path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let name = text("name").unwrap_or(stem);
    Header { question: text("question").unwrap_or_default(), ..header_named(&name) }
}

/// The same without a document.
fn header_named(name: &str) -> Header {
    Header { name: name.into(), command: command_line(), environment: machine::environment(), ..Header::default() }
}

/// The command line as it was typed, with `zbench` as the program.
fn command_line() -> String {
    let arguments = std::env::args_os().skip(1).map(|word| quoted(&word.to_string_lossy()));
    std::iter::once("zbench".to_string()).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// Quotes a word for a shell where needed.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,+:@%".contains(c);
    let is_plain = !word.is_empty() && word.chars().all(plain);
    if is_plain { word.to_string() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}
