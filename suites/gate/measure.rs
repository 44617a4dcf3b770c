//! Measures trials through the public command of a program, `run` or `repro`, each in a process and a notebook of its
//! own: whatever a program is, both sides are run alike.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zbench_kernels::threads::spawn;
use zbench_reports::gate::turns::{Score, Turns, generations};
use zbench_reports::gate::{Bench, Side, Trial};
use zbench_reports::record::{Record, Status};
use zbench_runner::processes::tail_of;
use zbench_runner::turns::load::{Load, Others, Watch};
use zbench_runner::turns::{Ending, TurnsError};

/// How one side is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Arm {
    /// The program.
    pub program: PathBuf,
    /// What it is told, without the notebook.
    pub arguments: Vec<OsString>,
    /// A record that must be in the notebook before, for `repro`.
    pub seed: Option<Box<Record>>,
}

/// How often the wish to stop is looked at.
const TICK: Duration = Duration::from_millis(50);
/// A program that was asked to end may take this long.
const GRACE: Duration = Duration::from_secs(5);
/// A program ends its trial in time by itself; this much later it is ended.
const MARGIN: Duration = Duration::from_secs(30);

/// How one trial ended.
enum TrialOutcome {
    Record(Box<Record>),
    Failed(String),
    TimedOut,
    Stopped,
}

/// The program that runs now, shared with whoever may have to end it.
#[derive(Clone, Default)]
pub struct Running(Arc<Mutex<Option<Child>>>);

impl Running {
    fn held(&self) -> MutexGuard<'_, Option<Child>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a program, and takes its output.
    fn start(&self, arm: &Arm, notebook: &Path) -> std::io::Result<(Option<ChildStdout>, Option<ChildStderr>)> {
        let mut held = self.held();
        let mut child = start(arm, notebook)?;
        let output = (child.stdout.take(), child.stderr.take());
        *held = Some(child);
        Ok(output)
    }

    /// How it ended, if it has.
    fn ended(&self) -> Option<std::io::Result<ExitStatus>> {
        let mut held = self.held();
        let ended = match held.as_mut()?.try_wait() {
            Ok(None) => return None,
            Ok(Some(status)) => Ok(status),
            Err(error) => Err(error),
        };
        *held = None;
        Some(ended)
    }

    /// Waits for its end.
    fn wait(&self) -> std::io::Result<ExitStatus> {
        loop {
            if let Some(ended) = self.ended() {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Asks it to end, and ends it if it does not. It ends the processes that it started.
    fn end(&self) {
        let pid = self.held().as_ref().and_then(|child| Pid::from_raw(i32::try_from(child.id()).ok()?));
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
        let asked = Instant::now();
        while asked.elapsed() < GRACE {
            if self.ended().is_some() {
                return;
            }
            std::thread::sleep(TICK);
        }
        drop(self.kill());
    }

    /// Ends it at once. No program is started as long as what is returned is held.
    pub(super) fn kill(&self) -> MutexGuard<'_, Option<Child>> {
        let mut held = self.held();
        if let Some(mut child) = held.take() {
            // Fails only where it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
        held
    }
}

/// Measures both sides, and keeps every trial in a file as soon as it has ended.
pub struct Programs<'a> {
    /// The side that is compared with.
    pub baseline: Arm,
    /// The side that is judged.
    pub candidate: Arm,
    /// Folder in which each trial has a notebook for its time.
    pub scratch: &'a Path,
    /// The program of the trial under way.
    pub running: Running,
    /// A trial may take this long.
    pub timeout: Duration,
    /// Set when the user wants to stop.
    pub stop: Arc<AtomicBool>,
    /// Is told how far it is.
    pub tell: &'a dyn Fn(&str),
    /// Where raw samples are kept.
    pub samples: Option<&'a mut std::fs::File>,
    /// Names the cell in that file.
    pub key: String,
    /// When it began.
    pub begun: Instant,
    /// Tokens of a step of either side, as its newest record has them.
    pub tokens: [u64; 2],
    /// Whether the cell can be resident beside itself.
    pub takes_turns: bool,
    /// Decides the order of turns.
    pub seed: u64,
    /// Rounds and trials count however much other processes use the cores.
    pub allow_load: bool,
    /// What others used in rounds and trials that do not count.
    pub others: Others,
}

impl Programs<'_> {
    /// A trial with its record, which is absent when the program said none; nothing when it was stopped.
    pub fn measure(&mut self, side: Side) -> Option<(Trial, Option<Box<Record>>)> {
        let arm = if side == Side::Baseline { &self.baseline } else { &self.candidate };
        let mut load = Load::begin();
        let start = Instant::now();
        let outcome = match scratch_notebook(self.scratch, arm) {
            Ok(notebook) => {
                let outcome = self.run(arm, &notebook);
                // What cannot be deleted now goes with the folder.
                let _ = std::fs::remove_dir_all(&notebook);
                outcome
            }
            Err(reason) => TrialOutcome::Failed(reason),
        };
        let seconds = start.elapsed().as_secs_f64();
        if let TrialOutcome::Record(record) = &outcome {
            self.tokens[usize::from(side == Side::Candidate)] = record.steps.last().map_or(0, |step| step.tokens);
        }
        let (trial, record) = match outcome {
            TrialOutcome::Stopped => return None,
            TrialOutcome::Record(record) => (Trial::of(&record, seconds), Some(record)),
            TrialOutcome::Failed(reason) => (Trial::ended(Status::Failed, reason, seconds), None),
            TrialOutcome::TimedOut => {
                let reason = format!("it took longer than {} s and did not end by itself", self.timeout.as_secs_f64());
                (Trial::ended(Status::TimedOut, reason, seconds), None)
            }
        };
        if trial.has_load()
            && !self.allow_load
            && let Some(seen) = load.look()
        {
            self.others.add(&seen);
            (self.tell)(&format!("this trial does not count: {}", self.others.words()));
        }
        if let Some(file) = &mut self.samples {
            let line = json!({ "key": self.key, "side": side.name(), "trial": trial });
            // Samples that cannot be kept are no reason to stop measuring; the verdict does not need them.
            let _ = writeln!(file, "{line}");
        }
        Some((trial, record))
    }

    fn run(&self, arm: &Arm, notebook: &Path) -> TrialOutcome {
        let (stdout, stderr) = match self.running.start(arm, notebook) {
            Ok(output) => output,
            Err(error) => {
                let error = spawn::not_started(error);
                return TrialOutcome::Failed(format!("{} cannot be started: {error}", arm.program.display()));
            }
        };
        let (sender, said) = channel();
        let read = move || {
            let mut text = String::new();
            let _ = stdout.map(|mut stdout| stdout.read_to_string(&mut text));
            let _ = sender.send(text);
        };
        let tail = tail_of(stderr).and_then(|tail| spawn::start("record", read).map(|_| tail));
        let tail = match tail {
            Ok(tail) => tail,
            Err(error) => {
                self.running.end();
                return TrialOutcome::Failed(format!("what {} says cannot be heard: {error}", arm.program.display()));
            }
        };
        let begun = Instant::now();
        let text = loop {
            match said.recv_timeout(TICK) {
                Ok(text) => break text,
                Err(RecvTimeoutError::Disconnected) => break String::new(),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let stopped = self.stop.load(Ordering::Relaxed);
            if stopped || begun.elapsed() > self.timeout + MARGIN {
                self.running.end();
                return if stopped { TrialOutcome::Stopped } else { TrialOutcome::TimedOut };
            }
        };
        let status = self.running.wait();
        let tail = tail.join().unwrap_or_default();
        let record = text.lines().filter_map(|line| serde_json::from_str::<Record>(line).ok()).next_back();
        match record {
            Some(record) => TrialOutcome::Record(Box::new(record)),
            None if self.stop.load(Ordering::Relaxed) => TrialOutcome::Stopped,
            None => {
                let ended = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                TrialOutcome::Failed(format!("{} said no record ({ended}): {tail}", arm.program.display()))
            }
        }
    }
}

/// A fresh notebook; with the record that is to be repeated.
fn scratch_notebook(scratch: &Path, arm: &Arm) -> Result<PathBuf, String> {
    let notebook = scratch.join("notebook");
    let _ = std::fs::remove_dir_all(&notebook);
    std::fs::create_dir_all(&notebook).map_err(|error| format!("{} cannot be made: {error}", notebook.display()))?;
    if let Some(record) = &arm.seed {
        let opened = zbench_reports::Notebook::open(&notebook).and_then(|opened| opened.append(record));
        opened.map_err(|error| error.to_string())?;
    }
    Ok(notebook)
}

fn start(arm: &Arm, notebook: &Path) -> std::io::Result<Child> {
    // A group of its own, so that Ctrl-C reaches this process alone, which then decides.
    Command::new(&arm.program)
        .args(&arm.arguments)
        .arg("--notebook")
        .arg(notebook)
        .env("ZBENCH_PARENT", std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
}

impl Bench for Programs<'_> {
    fn takes_turns(&self) -> bool {
        self.takes_turns
    }

    fn turns(&mut self, alpha: f64, seconds: f64, is_decided: &dyn Fn(&Score) -> bool) -> Result<Turns, String> {
        let mut score = Score::new(alpha);
        let mut samples = self.samples.take();
        let mut others = std::mem::take(&mut self.others);
        let ending = self.take_turns(seconds, generations(seconds), &mut others, &mut |rounds| {
            for round in rounds {
                if let (Some(file), Ok(mut line)) = (&mut samples, serde_json::to_value(round)) {
                    line["key"] = self.key.as_str().into();
                    // The verdict does not need them.
                    let _ = writeln!(file, "{line}");
                }
                score.push(round);
            }
            let comparison = score.comparison();
            if let (Some(ratio), Some(low), Some(high)) = (comparison.ratio, comparison.low, comparison.high) {
                let rounds = comparison.rounds;
                (self.tell)(&format!("round {rounds}: candidate/baseline {ratio:.3} ({low:.3} to {high:.3})"));
            }
            !is_decided(&score)
        });
        (self.samples, self.others) = (samples, others);
        match ending {
            Ok(Ending::Alone) => Err(format!(
                "a side ended by itself in its turns, after {} rounds; run the cell alone for longer to see why",
                score.comparison().rounds
            )),
            Ok(ending) => Ok(score.turns(ending == Ending::Interrupted)),
            Err(TurnsError::TooShort { budget, start, round, advice }) => Err(format!(
                "no round fits into the {budget:.1} s that the turns had: starting both sides took {start:.1} s and a round takes \
                 {round:.1} s; give it {:.0} s more with --time-budget",
                (advice - budget).max(1.0)
            )),
        }
    }

    fn trial(&mut self, side: Side) -> Option<Trial> {
        let (trial, _) = self.measure(side)?;
        Some(if self.allow_load { trial.allowing_load() } else { trial })
    }

    fn seconds(&mut self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    fn progress(&mut self, words: &str) {
        (self.tell)(words);
    }
}
