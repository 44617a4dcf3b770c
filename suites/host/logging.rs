//! The log: spans and events of `tracing` as lines. They go to standard error where the user asks for them, and to a file in the
//! notebook where a grid runs. The process of a cell or a rank writes to that file alone: its standard output is a protocol, and
//! the end of its standard error becomes a failure's reason.

use crate::terminal::say_rendered;
use rustix::fs::OFlags;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormattedFields};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;
use zbench_reports::redact::without_secrets;
use zbench_reports::render::printable;
use zbench_reports::store::nofollow;

/// The variable that holds a filter.
pub const FILTER: &str = "ZBENCH_LOG";
/// The variable that names the file for the processes of cells and ranks.
pub const FILE: &str = "ZBENCH_LOG_FILE";
/// Folder of the log files inside a notebook's directory.
pub const FOLDER: &str = "logs";

/// The targets of events.
const TARGETS: [&str; 6] =
    ["zbench", "zbench::runner", "zbench::launch", "zbench::comm", "zbench::loading", "zbench::checkpoint"];
/// The target of the spans that name the trial and the rank. Every filter lets them through.
const SPANS: &str = "zbench::span";
/// At most this many bytes are kept until the file is open.
const MAX_PENDING: usize = 64 << 10;

/// Which events are logged.
#[derive(Clone, Debug)]
pub struct Filter {
    text: String,
    targets: Targets,
}

impl Filter {
    /// The filter of `-v` (1) and `-vv` (2), and that of a log file without either (0).
    pub fn of_verbosity(count: u8) -> Filter {
        let (text, level) = if count > 1 { ("debug", LevelFilter::DEBUG) } else { ("info", LevelFilter::INFO) };
        Filter { text: text.into(), targets: Targets::new().with_default(level) }
    }

    /// Parses levels, and targets with a level, between commas.
    ///
    /// # Errors
    /// It is something else; the message says what may be written.
    pub fn parse(text: &str) -> Result<Filter, String> {
        let parsed = text.trim().parse::<Targets>().ok().filter(|_| text.split(',').all(is_directive));
        let targets = parsed.ok_or_else(|| {
            format!(
                "{FILTER}={text} is no filter: write off, error, warn, info, debug or trace, or TARGET=LEVEL, several of them \
                 between commas, as zbench::comm=trace,info; the targets are {}",
                TARGETS.join(", ")
            )
        })?;
        Ok(Filter { text: text.trim().into(), targets })
    }
}

/// Whether this is a level, a target or both. `Targets` takes any other word for a target that has no events.
fn is_directive(text: &str) -> bool {
    let is_level = |text: &str| {
        ["off", "error", "warn", "info", "debug", "trace"].iter().any(|level| level.eq_ignore_ascii_case(text))
    };
    match text.trim().split_once('=') {
        Some((target, level)) => TARGETS.contains(&target) && is_level(level),
        None => is_level(text.trim()) || TARGETS.contains(&text.trim()),
    }
}

/// The log of this process.
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    filter: String,
    on_stderr: bool,
    file: Mutex<LogFile>,
}

/// The file that the lines go to.
#[derive(Debug)]
enum LogFile {
    None,
    /// It is opened when the notebook is known; these are the lines until then.
    Pending(Vec<u8>),
    Open(PathBuf, File),
}

/// Starts the log of a command. `has_file`: [`open`] follows if the command runs cells.
pub fn start(filter: Filter, on_stderr: bool, has_file: bool) {
    if on_stderr || has_file {
        let file = if has_file { LogFile::Pending(Vec::new()) } else { LogFile::None };
        install(filter, on_stderr, file);
    }
}

/// Starts the log in the process of a cell or a rank, if the process that started it has one.
pub fn start_in_child() {
    let Some(path) = std::env::var_os(FILE).map(PathBuf::from) else { return };
    let filter = std::env::var(FILTER).ok().and_then(|text| Filter::parse(&text).ok());
    // The file of another host may be out of reach; a log is no reason to end.
    if let (Some(filter), Ok(file)) = (filter, append_to(&path)) {
        install(filter, false, LogFile::Open(path, file));
    }
}

fn install(Filter { text, targets }: Filter, on_stderr: bool, file: LogFile) {
    let is_first = LOG.set(Log { filter: text, on_stderr, file: Mutex::new(file) }).is_ok();
    if is_first {
        let layer = tracing_subscriber::fmt::layer().event_format(Line).with_writer(|| Sink).with_ansi(false);
        let filter = targets.with_target(SPANS, LevelFilter::INFO);
        // The process has no other subscriber.
        let _ = tracing_subscriber::registry().with(layer).with(filter).try_init();
    }
}

/// Opens the log file of the command `name` in a notebook, unless one is open already or none is wanted.
///
/// # Errors
/// The folder or the file cannot be created. Then nothing is written.
pub fn open(notebook: &Path, name: &str) -> io::Result<()> {
    let Some(log) = LOG.get() else { return Ok(()) };
    let mut file = log.file.lock().unwrap_or_else(PoisonError::into_inner);
    let LogFile::Pending(lines) = std::mem::replace(&mut *file, LogFile::None) else { return Ok(()) };
    let folder = std::path::absolute(notebook)?.join(FOLDER);
    std::fs::create_dir_all(&folder)?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let name: String = name.chars().map(|c| if is_plain(c) { c } else { '-' }).take(64).collect();
    let path = folder.join(format!("{}-{name}.log", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S%.3fZ")));
    let opened = nofollow::open_in(&folder, &path, OFlags::RDWR | OFlags::APPEND | OFlags::CREATE)?;
    (&opened).write_all(&lines)?;
    *file = LogFile::Open(path, opened);
    Ok(())
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Whether lines of the log are on standard error.
pub fn is_on_stderr() -> bool {
    LOG.get().is_some_and(|log| log.on_stderr)
}

/// Passes the filter and the log file on to the process of a cell or a rank.
pub fn pass_on(command: &mut Command) -> &mut Command {
    let log = LOG.get();
    let file = log.map(|log| log.file.lock().unwrap_or_else(PoisonError::into_inner));
    match (log, file.as_deref()) {
        (Some(log), Some(LogFile::Open(path, _))) => command.env(FILTER, &log.filter).env(FILE, path),
        _ => command.env_remove(FILE),
    }
}

/// Writes lines to standard error and to the file.
struct Sink;

impl Write for Sink {
    /// Writes a whole line: the layer calls it once per line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let Some(log) = LOG.get() else { return Ok(line.len()) };
        if log.on_stderr {
            say_rendered(String::from_utf8_lossy(line).trim_end().to_string());
        }
        match &mut *log.file.lock().unwrap_or_else(PoisonError::into_inner) {
            LogFile::Pending(lines) if lines.len() + line.len() <= MAX_PENDING => lines.extend_from_slice(line),
            LogFile::None | LogFile::Pending(_) => {}
            // One write per line, so that the lines of several processes stay whole. A full disk is no reason to end.
            LogFile::Open(_, file) => drop(file.write(line)),
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Formats an event as a line: time, level, target, process, its spans and its fields. Secrets are taken out.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let (time, about, pid) = (jiff::Timestamp::now(), event.metadata(), std::process::id());
        let mut line = format!("{time:.6} {:5} {} pid={pid} ", about.level(), about.target());
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>().map(|fields| fields.fields.as_str());
            write!(line, "{}{{{}}} ", span.name(), fields.unwrap_or_default())?;
        }
        context.field_format().format_fields(Writer::new(&mut line), event)?;
        writeln!(writer, "{}", printable(&without_secrets(&line)).replace('\n', "\\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn filters_are_levels_and_targets_of_ours() {
        for text in ["info", "DEBUG", "off", "zbench=warn", "zbench::comm=trace,info", " info , zbench::runner=debug "]
        {
            assert!(Filter::parse(text).is_ok(), "{text}");
        }
        for text in [
            "",
            "loud",
            "info,",
            "zbench::nothing=info",
            "zbench::comm=loud",
            "comm",
            "zbench::comm[x]=info",
            "=info",
            "4",
        ] {
            let refused = Filter::parse(text).unwrap_err();
            assert!(refused.starts_with(&format!("ZBENCH_LOG={text} is no filter")), "{refused}");
            assert!(refused.contains("zbench::checkpoint") && refused.contains("trace"), "{refused}");
        }
        let both = Filter::parse("zbench::comm=trace,info").unwrap().targets;
        assert!(
            both.would_enable("zbench::comm", &Level::TRACE) && !both.would_enable("zbench::runner", &Level::DEBUG)
        );
    }

    /// What is below the level of a grid's file is turned away by the facade's own check, before anything is made of it.
    #[test]
    fn a_log_at_level_info_turns_the_rest_off() {
        start(Filter::of_verbosity(0), false, true);
        assert_eq!(tracing::level_filters::LevelFilter::current(), LevelFilter::INFO);
        assert!(tracing::enabled!(target: "zbench::runner", Level::INFO));
        assert!(!tracing::enabled!(target: "zbench::comm", Level::TRACE));
    }

    #[test]
    fn levels_follow_how_often_v_is_given() {
        let enables = |count, level| Filter::of_verbosity(count).targets.would_enable("zbench::runner", &level);
        assert!(
            enables(0, Level::INFO) && enables(1, Level::INFO) && enables(2, Level::DEBUG) && enables(9, Level::DEBUG)
        );
        assert!(!enables(1, Level::DEBUG) && !enables(2, Level::TRACE));
    }
}
