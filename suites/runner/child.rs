//! Runs a cell in a process of its own, with a time limit. Whatever happens there, panic, signal, silence, comes back as
//! an outcome with a reason.

use super::processes::tail_of;
use super::protocol::{End, Ended, Event, Job};
use super::{Execute, Execution, machine};
use crate::launch::signal_name;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use zbench_engine::config::Cell;
use zbench_reports::record::{Source, Status, Step};

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
}

/// How often the time limit and the wish to stop are looked at.
const TICK: Duration = Duration::from_millis(50);

impl Execute for Children {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    // The death signal follows the thread that starts the child, so start and wait are one call of one thread.
    fn execute(&mut self, cell: &Cell, on_step: &mut dyn FnMut(&Step)) -> Execution {
        let oom_kills = machine::oom_kills();
        let mut child = match self.start(cell) {
            Ok(child) => child,
            Err(error) => {
                return Execution::failed(Vec::new(), format!("the cell's process cannot be started: {error}"));
            }
        };
        let tail = child.stderr.take().map(tail_of);
        let events = events_of(child.stdout.take());
        let mut steps = Vec::new();
        let heard = self.listen(&events, &mut steps, on_step);
        if !matches!(heard, Heard::Silence) {
            // Nothing more is expected of it, and a result counts although its process may hang. Killing fails only when
            // it has ended already.
            let _ = child.kill();
        }
        let status = child.wait();
        let tail = tail.and_then(|tail| tail.join().ok()).unwrap_or_default();
        match (heard, status) {
            (Heard::StopAsked, _) => Execution { steps, ..Execution::default() },
            (Heard::TimedOut, _) => Execution::timed_out(steps, self.timeout),
            (Heard::End(mut end), _) => {
                let said = std::mem::take(&mut end.steps);
                Execution { steps: if said.is_empty() { steps } else { said }, end: Some(*end), last: false }
            }
            (Heard::Silence, Ok(status)) => Execution::ended(steps, died(status, oom_kills, &tail)),
            (Heard::Silence, Err(error)) => Execution::failed(steps, format!("the cell's process was lost: {error}")),
        }
    }
}

/// What ended the listening.
enum Heard {
    /// The cell said its result.
    End(Box<End>),
    /// The user wants to stop.
    StopAsked,
    /// No result within the time limit.
    TimedOut,
    /// The cell closed its output without a result.
    Silence,
}

impl Children {
    fn start(&self, cell: &Cell) -> std::io::Result<Child> {
        let job = Job { cell: cell.clone(), cores: machine::cores(), peak_seconds: self.peak_seconds };
        let job = serde_json::to_vec(&job)?;
        // A group of its own, so that Ctrl-C reaches this process alone, which then decides.
        let mut child = Command::new(&self.program)
            .arg("__cell")
            .env("ZBENCH_PARENT", std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A child that dies before it has read its job shows in its exit status.
            let _ = stdin.write_all(&job);
        }
        Ok(child)
    }

    fn listen(&self, events: &Receiver<Event>, steps: &mut Vec<Step>, on_step: &mut dyn FnMut(&Step)) -> Heard {
        let start = Instant::now();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Heard::StopAsked;
            }
            match events.recv_timeout(TICK) {
                Ok(Event::Step(step)) => {
                    on_step(&step);
                    steps.push(step);
                }
                Ok(Event::End(end)) => return Heard::End(end),
                Ok(Event::Between(_)) => {}
                // The cell merges what its ranks say; they do not speak here.
                Ok(Event::Rank(_)) => {}
                Err(RecvTimeoutError::Disconnected) => return Heard::Silence,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if start.elapsed() > self.timeout {
                return Heard::TimedOut;
            }
        }
    }
}

/// Reads lines of events on a thread; a line that is none is passed over.
fn events_of(stdout: Option<impl Read + Send + 'static>) -> Receiver<Event> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let Some(stdout) = stdout else { return };
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Ok(event) = serde_json::from_str(&line)
                && sender.send(event).is_err()
            {
                return;
            }
        }
    });
    receiver
}

/// What a process that said nothing more died of.
pub(crate) fn died(status: ExitStatus, oom_kills_before: u64, tail: &str) -> Ended {
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
