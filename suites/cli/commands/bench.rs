//! `gemm`, `attention`, `checkpoint`, `io`, and `grid` of files with one of these suites.

use super::progress::Progress;
use super::signals::stop_flag;
use super::train;
use super::{header, header_named, narrow, open_for_records, print_document, print_lines, print_screen, room};
use crate::{Cells, Format, Global, GridArgs};
use anyhow::{Result, bail};
use std::path::Path;
use std::time::Duration;
use zbench_config::{Axis, ConfigError, Context, Document, grid};
use zbench_host::{exit, machine};
use zbench_predict::planned::Decision;
use zbench_predict::planned::gib;
use zbench_reports::bench;
use zbench_reports::collectives::comparison;
use zbench_reports::collectives::document::is_of_suite;
use zbench_reports::document::{Column, Document as Text, Entry, Table, Tone};
use zbench_reports::grid_report::labels_of;
use zbench_reports::record::Record;
use zbench_reports::{label, units};
use zbench_runner::{Header, Observe, Runner, Summary, Trials};
use zbench_suites::bench::args::RunFlags;
use zbench_suites::bench::{Bench, BenchCell};
use zbench_suites::checkpoint::args::CheckpointArgs;
use zbench_suites::io::args::IoArgs;
use zbench_suites::kernels;
use zbench_suites::kernels::args::{AttentionArgs, GemmArgs};
use zbench_suites::registry::{self, Expanded};

/// How to run the cells.
struct Wanted {
    only: Option<String>,
    trials: Trials,
    any_environment: bool,
    timeout: Duration,
    max_cells: usize,
    dry_run: bool,
    budget: Option<Duration>,
    /// `--set`, where flags made the document.
    set: Option<Vec<String>>,
}

impl Wanted {
    /// `usual`: default number of trials of a file's cells.
    fn of(flags: &RunFlags, is_file: bool, usual: u32) -> Wanted {
        let trials = match flags.trials {
            None if !is_file => Trials::OneMore,
            count => train::trials(count.unwrap_or(usual), flags.fresh),
        };
        Wanted {
            only: flags.only.clone(),
            trials,
            any_environment: flags.any_environment,
            timeout: flags.timeout,
            max_cells: flags.max_cells,
            dry_run: flags.dry_run,
            budget: None,
            set: (!is_file).then(|| flags.set.clone()),
        }
    }
}

/// `zbench gemm`.
pub fn gemm(global: &Global, arguments: &GemmArgs) -> Result<u8> {
    let of_flags = || kernels::flags::gemm(arguments);
    if arguments.bound {
        return super::bound::bound(global, &of_flags()?, &arguments.common.run);
    }
    command(global, "gemm", arguments.file.as_deref(), &arguments.common.run, train::TRIALS, of_flags)
}

/// `zbench attention`.
pub fn attention(global: &Global, arguments: &AttentionArgs) -> Result<u8> {
    let of_flags = || kernels::flags::attention(arguments);
    command(global, "attention", arguments.file.as_deref(), &arguments.common.run, train::TRIALS, of_flags)
}

/// `zbench checkpoint`. A trial measures several times: one is enough.
pub fn checkpoint(global: &Global, arguments: &CheckpointArgs) -> Result<u8> {
    let of_flags = || zbench_suites::checkpoint::flags::checkpoint(arguments);
    command(global, "checkpoint", arguments.file.as_deref(), &arguments.run, 1, of_flags)
}

/// `zbench io`.
pub fn io(global: &Global, arguments: &IoArgs) -> Result<u8> {
    let of_flags = || zbench_suites::io::flags::io(arguments);
    command(global, "io", arguments.file.as_deref(), &arguments.run, train::TRIALS, of_flags)
}

/// Runs the cells of a file, whose suite must be `suite`, or of the flags where there is no file.
fn command(
    global: &Global,
    suite: &str,
    file: Option<&Path>,
    flags: &RunFlags,
    usual_trials: u32,
    of_flags: impl FnOnce() -> Result<Document, ConfigError>,
) -> Result<u8> {
    let document = match file {
        None => of_flags()?,
        Some(file) => {
            let document = Document::read(file, &flags.set)?;
            if registry::suite(&document).is_none_or(|found| found.name != suite) {
                let found = document.base.get("suite").map_or("\"train\"".into(), |suite| suite.value.to_string());
                let message =
                    format!("its suite is {found}; write suite = \"{suite}\" at its top, or use `zbench grid`");
                return Err(ConfigError::about(file.display().to_string(), message).into());
            }
            document
        }
    };
    run(global, &document, &Wanted::of(flags, file.is_some(), usual_trials))
}

/// The document of a grid's file if its suite is one of these.
pub fn of_grid(cells: &Cells) -> Result<Option<Document>> {
    let document = Document::read(&cells.file, &cells.set)?;
    Ok(registry::suite(&document).is_some().then_some(document))
}

/// `zbench grid FILE` of such a file.
pub fn grid(global: &Global, arguments: &GridArgs, document: &Document) -> Result<u8> {
    if arguments.proxy {
        bail!("--proxy stands in for absent hardware in suite train; leave it out");
    }
    let wanted = Wanted {
        only: arguments.cells.only.clone(),
        trials: train::trials(arguments.trials.unwrap_or(train::TRIALS), arguments.fresh),
        any_environment: arguments.any_environment,
        timeout: arguments.timeout,
        max_cells: arguments.max_cells,
        dry_run: arguments.dry_run,
        budget: arguments.budget,
        set: None,
    };
    run(global, document, &wanted)
}

fn run(global: &Global, document: &Document, wanted: &Wanted) -> Result<u8> {
    let world = zbench_launch::detect(&|name: &str| std::env::var(name).ok())?;
    if let Some(world) = world.filter(|world| world.size > 1) {
        let source = world.source.name();
        bail!("{source} started {} processes, which would be in each other's way; start zbench by itself", world.size);
    }
    let context = Context::new(document.folder().to_path_buf(), machine::cores());
    let flag = |key: &str| wanted.set.as_ref().map_or("--set".into(), |set| kernels::flags::flag_of(key, set));
    let expand = |only: &[Axis]| registry::expand(document, only, wanted.max_cells, &context, &flag);
    let expand_all = || registry::expand(document, &[], grid::MOST_CELLS_EVER, &context, &flag);
    let text = wanted.only.as_deref().unwrap_or_default();
    let parsed = wanted.only.as_deref().map(|only| grid::parse_only(only, document)).transpose();
    let (only, Expanded { cells, remarks }) = match parsed {
        Ok(only) => {
            let only = only.unwrap_or_default();
            let mut expanded = expand(&only)?;
            if !only.is_empty() && expanded.cells.len() > 1 {
                let named = expand_all().map_or_else(|_| Vec::new(), |all| labelled(all, text.trim()).cells);
                let called = if let [cell] = &named[..] { Some(cell.key.clone()) } else { None };
                narrow(&mut expanded.cells, |cell| &cell.key, called, text);
            }
            (only, expanded)
        }
        // Tables label a cell as a record of it, as `64x64x64 nt f32, 2 threads`: such a label is no list of terms.
        Err(error) => match expand_all().map(|all| labelled(all, text.trim())) {
            Ok(expanded) if !expanded.cells.is_empty() => (Vec::new(), expanded),
            _ => return Err(error.into()),
        },
    };
    remarks.iter().for_each(|remark| zbench_host::say!("note: {remark}"));
    if cells.is_empty() {
        zbench_host::say!("{}", grid::none_left(document, &only));
        return Ok(if wanted.dry_run { exit::SUCCESS } else { exit::NOT_MEASURED });
    }
    if wanted.dry_run {
        return dry_run(global, &cells);
    }
    let header = Header { any_environment: wanted.any_environment, budget: wanted.budget, ..header(document) };
    let question = header.question.clone();
    let summary = carry_out(global, &cells, wanted.trials, header, wanted.timeout)?;
    train::note_left_out(&summary);
    if summary.interrupted && global.format != Format::Json {
        train::print_interrupted(global, cells.iter().map(|cell| cell.key.as_str()), &summary)?;
    } else {
        show(global, &summary.records, &question)?;
    }
    Ok(summary.exit_code())
}

/// The cells that tables call by this label, as the grid does or as records are.
fn labelled(all: Expanded, label: &str) -> Expanded {
    let blank =
        |cell: &BenchCell| Header::default().blank(&cell.key, cell.plain.clone(), 1, jiff::Timestamp::UNIX_EPOCH);
    let records: Vec<Record> = all.cells.iter().map(blank).collect();
    let labels = labels_of(&records.iter().collect::<Vec<_>>());
    let is_named = |cell: &BenchCell, of_record: &String| of_record == label || label::is_same(&cell.label, label);
    let cells = all.cells.into_iter().zip(labels).filter(|(cell, of_record)| is_named(cell, of_record));
    Expanded { cells: cells.map(|(cell, _)| cell).collect(), ..all }
}

fn show(global: &Global, records: &[Record], question: &str) -> Result<()> {
    if global.format == Format::Json {
        return print_lines(records);
    }
    if records.iter().any(is_of_suite) {
        return print_screen(global, &comparison(records, question, room(global)));
    }
    let all: Vec<&Record> = records.iter().collect();
    let mut document = bench::document(&all);
    if !question.is_empty() {
        let said = Text::new(document.title.clone());
        let rest = std::mem::replace(&mut document, said);
        document.paragraph(format!("Question: {question}"));
        document.blocks.extend(rest.blocks);
    }
    print_document(global, &document)
}

fn carry_out(
    global: &Global,
    cells: &[BenchCell],
    trials: Trials,
    header: Header,
    timeout: Duration,
) -> Result<Summary> {
    let notebook = open_for_records(global, &header.name)?;
    let mut lines = Lines { progress: Progress::new(global, None), label: String::new(), place: 0, all: 0 };
    let (folder, parts) = (notebook.directory().to_path_buf(), lines.progress.parts());
    let suite = Bench { stop: stop_flag()?, timeout, folder, parts };
    let header = Header { no_repeats: true, ..header };
    let summary = Runner { notebook: &notebook, suite, observe: &mut lines, header }.run(cells, trials)?;
    drop(lines);
    if summary.interrupted {
        zbench_host::say!("stopped; everything measured is in {}.", notebook.path().display());
    }
    Ok(summary)
}

/// Progress with a line for each record.
struct Lines {
    progress: Progress,
    label: String,
    place: usize,
    all: usize,
}

impl Observe<BenchCell> for Lines {
    fn begin(&mut self, cell: &BenchCell, _trial: u32, done: usize, all: usize) {
        self.label.clone_from(&cell.label);
        (self.place, self.all) = (done + 1, all);
        self.progress.trial_begins(cell.label.clone(), 0, done, all);
    }

    fn end(&mut self, record: &Record) {
        self.progress.trial_ends(&format!("{}/{} {}: {}", self.place, self.all, self.label, in_words(record)));
    }
}

/// A record in a line.
fn in_words(record: &Record) -> String {
    if !record.is_measured() {
        return format!("{}: {}", record.outcome.status.words(), record.outcome.reason);
    }
    if bench::suite(record) == Some("checkpoint") {
        return bench::checkpoint::in_words(record);
    }
    if bench::suite(record) == Some("io") {
        return bench::io::in_words(record);
    }
    if is_of_suite(record) {
        return collectives_in_words(record);
    }
    let one = |timing: &bench::Timing| {
        let name = match timing.pass.as_str() {
            "" => String::new(),
            pass => format!("{} {pass} ", timing.kernel),
        };
        if timing.samples == 0 {
            return format!("{name}{}", timing.trouble);
        }
        let share = timing.share.map_or(String::new(), |share| format!(", {} of the ceiling", units::percent(share)));
        let time = units::duration(timing.median_us / 1e6);
        format!("{name}{time}, {} GFLOP/s{share}", units::number(timing.gflops))
    };
    bench::timings(record).iter().map(one).collect::<Vec<_>>().join("; ")
}

fn collectives_in_words(record: &Record) -> String {
    let number = |name: &str| record.metrics.number(name);
    let collective = record.setting("collective").and_then(serde_json::Value::as_str).unwrap_or_default();
    let rate = number(&format!("{collective}_busbw_gb_s")).map_or("-".into(), units::number);
    let size = number("largest_bytes").map_or("-".into(), units::memory);
    let latency = number("latency_us").map_or("-".into(), units::number);
    format!("busbw {rate} GB/s at {size}, latency {latency} us")
}

/// Prints what would be measured.
fn dry_run(global: &Global, cells: &[BenchCell]) -> Result<u8> {
    let columns =
        vec![Column::words("cell"), Column::words("key"), Column::numbers("needs", "bytes"), Column::words("decision")];
    let mut table = Table::new("cells", columns);
    for cell in cells {
        let (needs, decision) = match reason(cell) {
            None => (cell.spec.as_ref().and_then(|spec| spec.needs()), Entry::words("to be measured")),
            Some(reason) => (None, Entry::words(format!("skipped: {reason}")).toned(Tone::Warning)),
        };
        table.row(vec![Entry::words(&cell.label), Entry::words(&cell.key), Entry::memory(needs), decision]);
    }
    if global.format == Format::Json {
        let line = |cell: &BenchCell| serde_json::json!({ "key": cell.key, "label": cell.label, "cell": cell.plain, "skipped": reason(cell) });
        print_lines(&cells.iter().map(line).collect::<Vec<_>>())?;
        return Ok(exit::SUCCESS);
    }
    let mut document = Text::new("Cells");
    document.table(table);
    print_document(global, &document)?;
    Ok(exit::SUCCESS)
}

/// Why a cell does not run, if it does not.
fn reason(cell: &BenchCell) -> Option<&str> {
    match &cell.decision {
        Decision::Run => None,
        Decision::Record { reason, .. } => Some(reason),
    }
}

/// `zbench repro ID` of such a record: repeats the measurement; times are only shown.
pub fn repro(global: &Global, record: &Record, timeout: Duration) -> Result<u8> {
    let Some(spec) = registry::of_plain(&record.cell) else {
        bail!(
            "the record {} holds no question that this version can ask; its command measures again: {}",
            record.id,
            record.command
        );
    };
    if let Some(needs) = spec.needs()
        && machine::memory_bytes("MemTotal").is_some_and(|memory| needs > memory)
    {
        bail!("the record {} cannot be repeated here: it needs {} of memory", record.id, gib(needs));
    }
    let header = header_named(&record.name);
    let summary = carry_out(global, &[BenchCell::new(spec)], Trials::OneMore, header, timeout)?;
    if global.format == Format::Json {
        print_lines(&summary.records)?;
    } else {
        let both: Vec<&Record> = std::iter::once(record).chain(&summary.records).collect();
        let mut document = bench::document(&both[1..]);
        document.heading("Before and again");
        document.table(match bench::suite(record) {
            Some("checkpoint") => bench::checkpoint::beside(&both),
            Some("io") => bench::io::beside(&both),
            _ => beside(&both),
        });
        print_document(global, &document)?;
    }
    Ok(summary.exit_code())
}

/// Medians of the records, one row each.
fn beside(records: &[&Record]) -> Table {
    let columns = vec![
        Column::words("record"),
        Column::words("kernel"),
        Column::words("pass"),
        Column::numbers("median", "us"),
        Column::numbers("rate", "GFLOP/s"),
        Column::numbers("share", "fraction"),
    ];
    let mut table = Table::new("before and again", columns);
    for record in records {
        for timing in bench::timings(record).iter().filter(|timing| timing.samples > 0) {
            table.row(vec![
                Entry::words(&record.id),
                Entry::words(&timing.kernel),
                Entry::words(&timing.pass),
                Entry::maybe(Some(timing.median_us), units::number),
                Entry::maybe(Some(timing.gflops), units::number),
                Entry::maybe(timing.share, units::percent),
            ]);
        }
    }
    table
}
