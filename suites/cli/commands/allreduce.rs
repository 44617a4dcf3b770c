//! `zbench allreduce`: runs the interconnect test, prints rows as they come, and keeps them whatever happens.

use super::signals::stop_flag;
use super::{append, command_line, print, print_document, print_json};
use crate::{Format, Global};
use anyhow::{Result, anyhow};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zbench_collectives::CommError;
use zbench_config::profile;
use zbench_host::{exit, machine};
use zbench_launch::LaunchError;
use zbench_reports::collectives::{Device, Pairs, Row, Run, Section, Settings, document, table, v3};
use zbench_reports::render::printable;
use zbench_reports::{Notebook, Record};
use zbench_suites::collectives::args::AllreduceArgs;
use zbench_suites::collectives::bench::Finish;
use zbench_suites::collectives::plan::Plan;
use zbench_suites::collectives::record::{self, End};
use zbench_suites::collectives::world;
use zbench_suites::collectives::world_spec::{LaunchMode, WorldSpec};
use zbench_suites::collectives::{CollectiveError, Watch, expect, fit, gpus};

/// `zbench allreduce`.
pub fn allreduce(global: &Global, arguments: &AllreduceArgs) -> Result<u8> {
    allreduce_with(global, arguments, true)
}

/// The same. Without `shows` it only writes records.
pub fn allreduce_with(global: &Global, arguments: &AllreduceArgs, shows: bool) -> Result<u8> {
    // Read before threads are bound to cores: a bound thread sees fewer.
    let _ = machine::environment();
    if arguments.expect.as_deref() == Some("list") {
        print_document(global, &expect::list(&expect::machines().map_err(|error| anyhow!(error))?))?;
        return Ok(exit::SUCCESS);
    }
    let expected = arguments.expect.as_deref().map(expect::machine).transpose().map_err(|error| anyhow!(error))?;
    let variable = |name: &str| std::env::var(name).ok();
    let plan = Plan::new(arguments, variable).map_err(|error| anyhow!(error))?;
    let launched = zbench_launch::detect(&variable)?;
    let mut wanted = WorldSpec::new(arguments, launched, global.quiet).map_err(|error| anyhow!(error))?;
    check_before_work(arguments, &plan, wanted.ranks)?;
    let nccl_version = match gpus::ready(&wanted) {
        Ok(version) => version,
        Err(reason) => {
            zbench_host::say!("error: {reason}");
            return Ok(exit::NOT_MEASURED);
        }
    };
    let stop = stop_flag()?;
    wanted.stop = stop.clone();
    if matches!(&wanted.way, LaunchMode::Member(world, _) if world.rank > 0) {
        return follow(&wanted, &plan, &stop);
    }
    let notebook = Notebook::open(&global.notebook)?;
    // Checked before any rank starts or joins.
    notebook.check_writable()?;
    match &wanted.way {
        LaunchMode::Start => return start(arguments, &wanted, &stop),
        // The process that started the ranks has already said so.
        LaunchMode::Member(world, _) if world.source == zbench_launch::Source::Ours => {}
        LaunchMode::Member(..) | LaunchMode::Threads => say_ignored(arguments),
    }
    let run = Run {
        version: env!("CARGO_PKG_VERSION").into(),
        args: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        env: environment(),
        start_time: now(),
        nccl_version,
        ..Run::default()
    };
    let screen = Screen {
        plan: &plan,
        expected,
        notebook,
        prints: shows && global.format == Format::Table,
        // Rows go to standard error, so that standard output holds only the document.
        verbose: shows && global.format != Format::Table && global.verbose > 0,
        started: jiff::Timestamp::now(),
        command: command_line(),
        stop,
        state: Mutex::new(State { run, open: false, trouble: None }),
    };
    let result = world::test(&wanted, &plan, &screen);
    let mut state = screen.close(&result);
    if let Some(trouble) = state.trouble.take() {
        return Err(trouble);
    }
    let mut run = state.run;
    run.end_time = now();
    match global.format {
        _ if !shows => {}
        Format::Table => {}
        Format::Json => print_json(&format!("{}\n", v3::document(&run)))?,
        _ => print_document(global, &document::document(&run))?,
    }
    if let Some(path) = &arguments.nccl.output_file {
        let path = write_beside(path, &format!("{}\n", v3::document(&run)))?;
        zbench_host::say!("wrote {}", path.display());
    }
    if let Some(path) = &arguments.save {
        save(path, &run)?;
    }
    Ok(code(&run, &plan, &result, wanted.stop.load(Ordering::Relaxed)))
}

/// Checks what would only fail after the measurement.
fn check_before_work(arguments: &AllreduceArgs, plan: &Plan, ranks: usize) -> Result<()> {
    if let Some(root) = plan.root.filter(|root| *root >= ranks) {
        return Err(anyhow!(
            "-r {root} is not one of the {ranks} ranks; write 0 to {}, or -1 for every one in turn",
            ranks - 1
        ));
    }
    let folder = arguments.nccl.output_file.as_deref().and_then(Path::parent);
    match folder.filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        Some(folder) => Err(anyhow!("-J: there is no folder {}; make it first", folder.display())),
        None => Ok(()),
    }
}

/// Names the flags of nccl-tests that have no effect here.
fn say_ignored(arguments: &AllreduceArgs) {
    let backend = arguments.backend.as_deref().unwrap_or("local");
    for (flag, what) in arguments.nccl.ignored() {
        zbench_host::say!("{flag} ({what}) has no meaning for backend {backend}; ignored");
    }
    if std::env::var_os("NCCL_TESTS_DEVICE").is_some() {
        let advice = if matches!(backend, "nccl" | "device") { " (CUDA_VISIBLE_DEVICES chooses GPUs)" } else { "" };
        zbench_host::say!("NCCL_TESTS_DEVICE (first GPU) has no meaning for backend {backend}; ignored{advice}");
    }
}

/// Starts ranks as processes. Rank 0 prints, records and decides the exit code.
fn start(arguments: &AllreduceArgs, wanted: &WorldSpec, stop: &AtomicBool) -> Result<u8> {
    say_ignored(arguments);
    let (code, died) = match world::start(wanted, stop) {
        Ok(ended) => ended,
        Err(error) => {
            zbench_host::say!("error: {error}");
            return Ok(exit::FAILED);
        }
    };
    if stop.load(Ordering::Relaxed) {
        return Ok(exit::INTERRUPTED);
    }
    died.iter().for_each(|what| zbench_host::say!("error: {what}"));
    Ok(match code {
        Some(exit::SUCCESS) | None if !died.is_empty() => exit::FAILED,
        code => code.unwrap_or(exit::FAILED),
    })
}

/// Runs a rank other than 0 of a launch. It prints only its own errors.
fn follow(wanted: &WorldSpec, plan: &Plan, stop: &Arc<AtomicBool>) -> Result<u8> {
    struct Silent<'a>(&'a AtomicBool);
    impl Watch for Silent<'_> {
        fn stop(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }
    match world::test(wanted, plan, &Silent(stop)) {
        Ok(ranks) if ranks.iter().any(|finish| finish.interrupted) => Ok(exit::INTERRUPTED),
        Ok(_) => Ok(exit::SUCCESS),
        Err(error) => {
            let rank = if let LaunchMode::Member(world, _) = &wanted.way { world.rank } else { 0 };
            // A failure of NCCL is reported as an abort by this rank.
            let is_own = matches!(&error, CollectiveError::Comm(CommError::Aborted { rank: by, .. }) if *by == rank);
            if is_own || !world::is_consequence(&error) {
                zbench_host::say!(
                    "error: rank {rank} on {} (pid {}): {error}",
                    machine::host_name(),
                    std::process::id()
                );
            }
            Ok(code_of(&error, stop.load(Ordering::Relaxed)))
        }
    }
}

/// The exit code of an error: usage for impossible requests, an interruption where ranks were to stop while they met, else
/// failure.
fn code_of(error: &CollectiveError, stopped: bool) -> u8 {
    match error {
        CollectiveError::Unsupported(_) => exit::USAGE,
        CollectiveError::Launch(LaunchError::Rendezvous(_) | LaunchError::Comm(_)) if stopped => exit::INTERRUPTED,
        CollectiveError::Launch(LaunchError::Rendezvous(_) | LaunchError::Comm(_) | LaunchError::Formed { .. }) => {
            exit::FAILED
        }
        CollectiveError::Launch(_) => exit::USAGE,
        _ => exit::FAILED,
    }
}

/// Environment variables that affect the run. nccl-tests records all of them, but an environment may hold secrets.
fn environment() -> Vec<String> {
    let mut all = zbench_launch::consulted(&|name| std::env::var(name).ok());
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
    };
    let has_say = |name: &str| name.starts_with("NCCL_") || name == "CUDA_VISIBLE_DEVICES";
    all.extend(std::env::vars_os().map(text).filter(|(name, _)| has_say(name)));
    all.sort();
    all.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

fn now() -> String {
    jiff::Zoned::now().strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Receives the results of rank 0, prints them and records them.
struct Screen<'a> {
    plan: &'a Plan,
    expected: Option<expect::Machine>,
    notebook: Notebook,
    prints: bool,
    verbose: bool,
    started: jiff::Timestamp,
    command: String,
    stop: Arc<AtomicBool>,
    state: Mutex<State>,
}

struct State {
    run: Run,
    /// Whether the last section is still growing.
    open: bool,
    /// An error of standard output or of the notebook, which ends the run.
    trouble: Option<anyhow::Error>,
}

impl Screen<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, state: &mut State, text: &str) {
        if self.verbose {
            zbench_host::say!("{}", text.trim_end());
        }
        if self.prints
            && state.trouble.is_none()
            && let Err(error) = print(&printable(text))
        {
            state.trouble = Some(error);
        }
    }

    /// Ends the open section: fits, footer, record.
    fn finish_section(&self, state: &mut State, end: &End) {
        if !std::mem::take(&mut state.open) {
            return;
        }
        let Some(mut section) = state.run.sections.pop() else { return };
        section.fits = fit::of_section(&section, state.run.settings.group_ranks);
        if let Some(machine) = &self.expected {
            section.notes.extend(expect::compare(machine, &section, &state.run.settings));
        }
        let mut text = table::footer(&state.run, &section);
        text.push_str(&table::details(&section));
        text.push_str(&table::fits(&section));
        section.notes.iter().for_each(|note| text.push_str(&format!("# Note: {note}\n")));
        text.push_str("#\n");
        self.say(state, &text);
        if section.out_of_bounds() > 0 {
            let wrong = record::first_wrong(&section);
            zbench_host::say!("error: wrong data: {wrong}");
            state.run.errors.push(wrong);
        }
        let record = record::of_section(&state.run, &section, self.plan, end, self.started, &self.command);
        self.append(state, record);
        state.run.sections.push(section);
    }

    /// Writes a record. A failure ends the run, as further results would be lost.
    fn append(&self, state: &mut State, mut record: Record) {
        if let Err(error) = append(&self.notebook, &mut record) {
            state.trouble.get_or_insert(error);
        }
    }

    /// Ends the run after success or failure.
    fn close(self, result: &Result<Vec<Finish>, CollectiveError>) -> State {
        let mut state = self.state();
        if let Err(error) = result {
            let message = with_hosts(error, &state.run.devices);
            state.run.errors.push(message.clone());
            self.finish_section(&mut state, &End::Failed(message.clone()));
            self.say(&mut state, &format!("# error: {message}\n"));
            zbench_host::say!("error: {message}");
        }
        drop(state);
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error with the hosts of the ranks that it names.
fn with_hosts(error: &CollectiveError, devices: &[Device]) -> String {
    let ranks = match error {
        CollectiveError::Comm(CommError::Aborted { rank, .. } | CommError::Mismatch { rank, .. }) => vec![*rank],
        CollectiveError::Comm(CommError::Stalled { missing, .. }) => missing.clone(),
        _ => Vec::new(),
    };
    let place = |rank: &usize| devices.get(*rank).map(|d| format!("rank {rank} is on {} (pid {})", d.hostname, d.pid));
    let places: Vec<String> = ranks.iter().filter_map(place).collect();
    if places.is_empty() { error.to_string() } else { format!("{error}; {}", places.join(", ")) }
}

impl Watch for Screen<'_> {
    fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.state().trouble.is_some()
    }

    fn begin(&self, settings: &Settings, devices: &[Device]) {
        let mut state = self.state();
        state.run.settings = settings.clone();
        state.run.devices = devices.to_vec();
    }

    fn section(&self, collective: &str) {
        let mut state = self.state();
        let section = Section { collective: collective.into(), ..Section::default() };
        let text = table::header(&state.run, collective);
        state.run.sections.push(section);
        state.open = true;
        self.say(&mut state, &text);
    }

    fn row(&self, row: Row) {
        let mut state = self.state();
        let text = table::row(&state.run, &row);
        if let Some(section) = state.run.sections.last_mut() {
            section.rows.push(row);
        }
        self.say(&mut state, &text);
    }

    fn note(&self, note: String) {
        if let Some(section) = self.state().run.sections.last_mut()
            && !section.notes.contains(&note)
        {
            section.notes.push(note);
        }
    }

    fn end_section(&self, stopped: bool) {
        let end = if stopped { End::Interrupted } else { End::Whole };
        self.finish_section(&mut self.state(), &end);
    }

    fn pairs(&self, pairs: Pairs) {
        let mut state = self.state();
        if state.run.sections.is_empty() {
            let text = table::preamble(&state.run, "pairs");
            self.say(&mut state, &text);
        }
        self.say(&mut state, &pairs.text());
        let record = record::of_pairs(&state.run, &pairs, self.plan, self.started, &self.command);
        self.append(&mut state, record);
        state.run.pairs = Some(pairs);
    }
}

/// Writes a new file. A number is added to the name if the file exists.
fn write_beside(path: &Path, text: &str) -> Result<PathBuf> {
    use std::io::Write;
    let numbered = |number: usize| PathBuf::from(format!("{}.{number}", path.display()));
    for candidate in std::iter::once(path.to_path_buf()).chain((0..1000).map(numbered)) {
        match std::fs::OpenOptions::new().write(true).create_new(true).open(&candidate) {
            Ok(mut file) => {
                file.write_all(text.as_bytes())?;
                return Ok(candidate);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(anyhow!("-J {}: {error}", candidate.display())),
        }
    }
    Err(anyhow!("-J {}: it and a thousand numbered names of it exist", path.display()))
}

fn save(path: &Path, run: &Run) -> Result<()> {
    let path = if path.as_os_str().is_empty() { profile::default_path(&machine::host_name()) } else { path.into() };
    match profile::save(&path, &run.settings, &run.sections, &run.start_time)? {
        0 => zbench_host::say!("nothing to save: a fit needs four sizes or more of a collective"),
        count => zbench_host::say!("saved the fits of {count} collective(s) into {}", path.display()),
    }
    Ok(())
}

/// The exit code of a run.
fn code(run: &Run, plan: &Plan, result: &Result<Vec<Finish>, CollectiveError>, stopped: bool) -> u8 {
    let too_slow = |section: &Section| match (plan.min_bandwidth, section.average_busbw()) {
        (Some(expected), Some(average)) => average < expected * v3::ACCEPTED,
        _ => false,
    };
    for section in run.sections.iter().filter(|section| too_slow(section)) {
        let (average, expected) = (section.average_busbw().unwrap_or(0.0), plan.min_bandwidth.unwrap_or(0.0));
        let share = v3::ACCEPTED;
        zbench_host::say!(
            "error: an average busbw of {average:.3} GB/s is below {share} x NCCL_TESTS_MIN_BW={expected} GB/s"
        );
    }
    let has_sides = run.sections.iter().flat_map(|section| &section.rows).any(|row| row.sides().next().is_some());
    match result {
        Err(error) => code_of(error, stopped),
        Ok(_) if run.out_of_bounds() > 0 => exit::FAILED,
        Ok(ranks) if ranks.iter().any(|finish| finish.interrupted) => exit::INTERRUPTED,
        Ok(_) if !has_sides && run.pairs.is_none() => exit::NOT_MEASURED,
        Ok(_) if run.sections.iter().any(too_slow) => exit::REGRESSION,
        Ok(_) if plan.bisect && run.pairs.as_ref().is_some_and(|pairs| !pairs.is_clean()) => exit::REGRESSION,
        Ok(_) => exit::SUCCESS,
    }
}
