//! Runs a cell in a process of its own, with a time limit. Whatever happens there, panic, signal, silence, comes back as
//! an outcome with a reason.

use crate::processes::{read_lines, tail_of};
use crate::protocol::{End, Ended, Event, Job, ProgressEvent};
use crate::{Execute, Execution};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tracing::debug;
use zbench_engine::config::Cell;
use zbench_host::logging::pass_on;
use zbench_host::machine;
use zbench_kernels::threads::spawn::not_started;
use zbench_launch::signal_name;
use zbench_reports::record::{Source, Status};

/// Starts `zbench __cell` for each cell.
pub struct Children {
    /// The program: this one.
    pub program: std::path::PathBuf,
    /// Set when the user wants to stop.
    pub stop: Arc<AtomicBool>,
    /// A cell may take this long.
    pub timeout: Duration,
    /// Seconds of each measurement of the peak.
    pub peak_seconds: f64,
    /// So many steps of each cell are traced.
    pub trace_steps: u64,
}

/// How often the time limit and the wish to stop are looked at.
const TICK: Duration = Duration::from_millis(50);

impl Execute for Children {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    // The death signal follows the thread that starts the child, so start and wait are one call of one thread.
    fn execute(&mut self, cell: &Cell, tell: &mut dyn FnMut(ProgressEvent<'_>)) -> Execution {
        if self.is_stopped() {
            return Execution::default();
        }
        let oom_kills = machine::oom_kills();
        let mut child = match self.start(cell) {
            Ok(child) => child,
            Err(error) => {
                return Execution::failed(format!("the cell's process cannot be started: {}", not_started(error)));
            }
        };
        let (sender, events) = channel();
        let event = |line: &str| serde_json::from_str(line).ok();
        let read = tail_of(child.stderr.take())
            .and_then(|tail| read_lines("events", child.stdout.take(), sender, event, None).map(|()| tail));
        let tail = match read {
            Ok(tail) => tail,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Execution::failed(format!("what the cell says cannot be heard: {error}"));
            }
        };
        let mut execution = Execution::default();
        let wait_end = self.wait_for_end(cell, &child, &events, &mut execution, tell);
        if !matches!(wait_end, WaitEnd::OutputClosed) {
            // Nothing more is expected of it, and a result counts although its process may hang. Killing fails only when
            // it has ended already.
            let _ = child.kill();
        }
        let status = child.wait();
        let tail = tail.join().unwrap_or_default();
        match (wait_end, status) {
            (WaitEnd::StopAsked, _) => execution,
            (WaitEnd::TimedOut, _) => execution.timed_out(self.timeout),
            (WaitEnd::Result(end), _) => execution.with(*end),
            (WaitEnd::OutputClosed, Ok(status)) => execution.ended(died(status, oom_kills, &tail)),
            (WaitEnd::OutputClosed, Err(error)) => {
                let reason = format!("the cell's process was lost: {error}");
                execution.ended(Ended { status: Status::Failed, reason, source: None })
            }
        }
    }
}

/// Starts a cell's process and tells it its job. It ends with the thread that called this.
///
/// # Errors
/// The system starts no process.
pub fn start_cell(program: &Path, job: &Job) -> std::io::Result<Child> {
    let job = serde_json::to_vec(job)?;
    // A group of its own, so that Ctrl-C reaches this process alone, which then decides.
    let mut child = pass_on(&mut Command::new(program))
        .arg("__cell")
        .env("ZBENCH_PARENT", std::process::id().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    debug!(target: "zbench::launch", process = child.id(), "process of the cell started");
    if let Some(mut stdin) = child.stdin.take() {
        // A child that dies before it has read its job shows in its exit status.
        let _ = stdin.write_all(&job);
    }
    Ok(child)
}

/// What ended the wait for a result.
enum WaitEnd {
    /// The cell sent its result.
    Result(Box<End>),
    /// The user wants to stop.
    StopAsked,
    /// No result within the time limit.
    TimedOut,
    /// The cell closed its output without a result.
    OutputClosed,
}

impl Children {
    fn start(&self, cell: &Cell) -> std::io::Result<Child> {
        let Children { peak_seconds, trace_steps, .. } = *self;
        let job =
            Job { cell: cell.clone(), cores: machine::core_numbers().len(), peak_seconds, trace_steps, turns: None };
        start_cell(&self.program, &job)
    }

    fn wait_for_end(
        &self,
        cell: &Cell,
        child: &Child,
        events: &Receiver<Event>,
        execution: &mut Execution,
        tell: &mut dyn FnMut(ProgressEvent<'_>),
    ) -> WaitEnd {
        let start = Instant::now();
        // A cell with checkpoints is told once, as soon as it hears that, and then waited for.
        let (mut hears, mut asked, mut told) = (false, false, false);
        loop {
            if self.is_stopped() && cell.checkpoint.is_none() {
                return WaitEnd::StopAsked;
            }
            if self.is_stopped() && !asked {
                asked = true;
                tell(ProgressEvent::Stopping);
            }
            if asked && hears && !told {
                told = true;
                order_stop(child);
            }
            match events.recv_timeout(TICK) {
                Ok(Event::End(end)) => return WaitEnd::Result(end),
                Ok(Event::Ready) => hears = true,
                // The cell merges what its ranks say; they do not speak here.
                Ok(event) => execution.take(&event, tell),
                Err(RecvTimeoutError::Disconnected) => return WaitEnd::OutputClosed,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if start.elapsed() > self.timeout {
                return WaitEnd::TimedOut;
            }
        }
    }
}

/// Tells a cell to end after the step under way, with a checkpoint.
fn order_stop(child: &Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        // Fails only when it has ended.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::USR1);
    }
}

/// What a process that said nothing more died of.
pub fn died(status: ExitStatus, oom_kills_before: u64, tail: &str) -> Ended {
    const KILL: i32 = 9;
    let said = if tail.is_empty() { String::new() } else { format!("; its last words: {tail}") };
    match status.signal() {
        Some(KILL) if machine::oom_kills() > oom_kills_before => Ended {
            status: Status::OutOfMemory,
            reason: "the system ended the process for lack of memory; lower train.micro_batch or parallel.ranks".into(),
            source: Some(Source::Host),
        },
        Some(signal) => {
            let reason = format!("the cell's process was ended by {}{said}", signal_name(signal));
            Ended { status: Status::Failed, reason, source: Some(Source::Host) }
        }
        None => {
            let code = status.code().unwrap_or_default();
            let reason = format!("the cell's process ended with exit status {code} and no result{said}");
            Ended { status: Status::Failed, reason, source: None }
        }
    }
}
