//! Players of an experiment: processes that stay and run only in their turns. A cell of this program waits on its line
//! ([`super::token`]); any other program is stopped and continued by signals, and its lines of steps are the clock.

use super::load::descendants;
use super::token::{RankEvent, StepTime, TurnServer, answer};
use crate::Execution;
use crate::child::{died, start_cell};
use crate::processes::{read_lines, tail_of};
use crate::protocol::{Event, Job, ProgressEvent};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zbench_engine::config::Cell;
use zbench_host::machine;
use zbench_kernels::threads::spawn::not_started;

/// How often the wish to stop and time limits are looked at.
const TICK: Duration = Duration::from_millis(50);

/// Steps of a zbench that takes turns as a foreign program, which has to go on until it is ended.
pub const ENDLESS: &str = "train.steps=1000000";

/// What takes turns.
#[derive(Clone, Debug)]
pub enum Program {
    /// A cell, trained by this program.
    Cell(Box<Cell>),
    /// Any other: it prints a line for each step.
    Command(ExternalCommand),
}

/// A program that is not told of turns.
#[derive(Clone, Debug, PartialEq)]
pub struct ExternalCommand {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Tokens of a step.
    pub tokens: u64,
    /// A line whose first word is this ends a step.
    pub word: String,
}

/// What a turn came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn {
    /// These steps, each with the time of its slowest rank.
    Done(Vec<StepTime>),
    /// The program has ended, or never began.
    Ended,
    /// The user wants to stop.
    Stopped,
}

/// The processes of one generation.
pub struct Residents {
    program: PathBuf,
    stop: Arc<AtomicBool>,
    timeout: Duration,
    sender: Sender<(usize, Message)>,
    messages: Receiver<(usize, Message)>,
    all: Vec<Resident>,
}

/// What comes from a process.
enum Message {
    Rank(RankEvent),
    Event(Box<Event>),
    /// A line that ends a step of another program.
    Line(Instant),
    /// Its output has ended.
    OutputEnded,
}

struct Resident {
    child: Option<Child>,
    tail: Option<JoinHandle<String>>,
    foreign: Option<ExternalCommand>,
    ranks: Vec<Rank>,
    said: Execution,
    /// Lines of another program.
    lines: Vec<Instant>,
    /// Processes of another program, its own and those that it started.
    tree: BTreeSet<u32>,
    oom_kills: u64,
    over: bool,
}

#[derive(Default)]
struct Rank {
    line: Option<UnixStream>,
    waits: bool,
    steps: Vec<StepTime>,
}

impl Residents {
    /// Nobody yet. `program` is this one; a turn and a start may take as long as `timeout`.
    pub fn new(program: PathBuf, stop: Arc<AtomicBool>, timeout: Duration) -> Residents {
        let (sender, messages) = channel();
        Residents { program, stop, timeout, sender, messages, all: Vec::new() }
    }

    /// Starts one more, and returns its number. It runs up to its first step and waits there.
    pub fn start(&mut self, program: &Program) -> usize {
        let number = self.all.len();
        let ranks = match program {
            Program::Cell(cell) => (0..cell.parallel.ranks).map(|_| Rank::default()).collect(),
            Program::Command(_) => Vec::new(),
        };
        let foreign = match program {
            Program::Cell(_) => None,
            Program::Command(foreign) => Some(foreign.clone()),
        };
        self.all.push(Resident {
            child: None,
            tail: None,
            foreign,
            ranks,
            said: Execution::default(),
            lines: Vec::new(),
            tree: BTreeSet::new(),
            oom_kills: machine::oom_kills(),
            over: false,
        });
        let started = match program {
            Program::Cell(cell) => self.start_cell(number, cell),
            Program::Command(foreign) => self.start_command(number, foreign),
        };
        if let Err(error) = started {
            let resident = &mut self.all[number];
            resident.over = true;
            resident.said = Execution::failed(format!("its process cannot be started: {}", not_started(error)));
        }
        number
    }

    fn start_cell(&mut self, number: usize, cell: &Cell) -> std::io::Result<()> {
        let server = TurnServer::open()?;
        let job = Job {
            cell: cell.clone(),
            cores: machine::core_numbers().len(),
            // Whoever steers the turns measures peaks, while no cell runs.
            peak_seconds: 0.0,
            trace_steps: 0,
            turns: Some(server.place().clone()),
        };
        let sender = self.sender.clone();
        server.listen(cell.parallel.ranks, self.timeout, move |event| {
            let _ = sender.send((number, Message::Rank(event)));
        })?;
        let mut child = start_cell(&self.program, &job)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        self.all[number].child = Some(child);
        self.all[number].tail = Some(tail_of(stderr)?);
        let event = |line: &str| serde_json::from_str(line).ok().map(|event| Message::Event(Box::new(event)));
        self.listen(number, stdout, event)
    }

    fn start_command(&mut self, number: usize, foreign: &ExternalCommand) -> std::io::Result<()> {
        let Some((program, arguments)) = foreign.command.split_first() else {
            return Err(std::io::Error::other("the command is empty"));
        };
        let mut child = Command::new(program)
            .args(arguments)
            .env("ZBENCH_PARENT", std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        self.all[number].child = Some(child);
        // Either stream may have the lines of steps; zbench's own are on standard error.
        for stream in [stdout.map(|s| Box::new(s) as Box<dyn Read + Send>), stderr.map(|s| Box::new(s) as _)] {
            let word = foreign.word.clone();
            self.listen(number, stream, move |line| {
                (line.split_whitespace().next() == Some(word.as_str())).then(|| Message::Line(Instant::now()))
            })?;
        }
        Ok(())
    }

    /// Takes in what a process prints.
    fn listen(
        &self,
        number: usize,
        stream: Option<impl Read + Send + 'static>,
        parse: impl Fn(&str) -> Option<Message> + Send + 'static,
    ) -> std::io::Result<()> {
        let numbered = move |line: &str| parse(line).map(|message| (number, message));
        read_lines("words", stream, self.sender.clone(), numbered, Some((number, Message::OutputEnded)))
    }

    /// Whether it has ended.
    pub fn is_over(&self, number: usize) -> bool {
        self.all[number].over
    }

    /// Waits until it can take a turn: all ranks of a cell wait, another program has printed its first line.
    pub fn ready(&mut self, number: usize) -> Turn {
        self.ready_while(number, &mut || ())
    }

    /// The same; calls `idle` again and again meanwhile.
    pub fn ready_while(&mut self, number: usize, idle: &mut dyn FnMut()) -> Turn {
        let is_foreign = self.all[number].foreign.is_some();
        let ready = move |resident: &Resident| match is_foreign {
            true => !resident.lines.is_empty(),
            false => resident.ranks.iter().all(|rank| rank.waits),
        };
        let turn = self.until(number, &ready, idle);
        if is_foreign {
            self.pause(number);
        }
        turn
    }

    /// Gives it a turn of so many steps, while all others wait.
    pub fn turn(&mut self, number: usize, steps: usize) -> Turn {
        self.turn_while(number, steps, &mut || ())
    }

    /// The same; calls `idle` again and again meanwhile.
    pub fn turn_while(&mut self, number: usize, steps: usize, idle: &mut dyn FnMut()) -> Turn {
        if self.all[number].over {
            return Turn::Ended;
        }
        if self.all[number].foreign.is_some() {
            return self.turn_of_command(number, steps, idle);
        }
        // A turn is for all ranks of a cell or for none: were it for some, they would miss the others when the cell is told to end.
        match self.ready_while(number, idle) {
            Turn::Done(_) => {}
            other => return other,
        }
        for rank in &mut self.all[number].ranks {
            rank.waits = false;
            rank.steps.clear();
            // A rank that is gone is heard of.
            let _ = rank.line.as_mut().map(|line| answer(line, steps as u64));
        }
        match self.until(number, &|resident| resident.ranks.iter().all(|rank| rank.waits), idle) {
            Turn::Done(_) => Turn::Done(slowest(&self.all[number].ranks)),
            other => other,
        }
    }

    /// It is stopped somewhere in a step: what is left of that one counts for nothing.
    fn turn_of_command(&mut self, number: usize, steps: usize, idle: &mut dyn FnMut()) -> Turn {
        self.all[number].lines.clear();
        self.signal(number, Signal::CONT);
        let turn = self.until(number, &|resident| resident.lines.len() > steps, idle);
        self.pause(number);
        let resident = &self.all[number];
        let tokens = resident.foreign.as_ref().map_or(0, |foreign| foreign.tokens);
        match turn {
            Turn::Done(_) => {
                let step = |pair: &[Instant]| StepTime { ms: (pair[1] - pair[0]).as_secs_f64() * 1e3, tokens };
                Turn::Done(resident.lines.windows(2).take(steps).map(step).collect())
            }
            other => other,
        }
    }

    /// Takes in what is said until this one is as it should be, has ended, or takes too long.
    fn until(&mut self, number: usize, is_so: &dyn Fn(&Resident) -> bool, idle: &mut dyn FnMut()) -> Turn {
        let begin = Instant::now();
        loop {
            if self.all[number].over {
                return Turn::Ended;
            }
            if is_so(&self.all[number]) {
                return Turn::Done(Vec::new());
            }
            if self.stop.load(Ordering::Relaxed) {
                return Turn::Stopped;
            }
            if begin.elapsed() > self.timeout {
                let said = std::mem::take(&mut self.all[number].said);
                self.all[number].said = said.timed_out(self.timeout);
                self.kill(number);
                return Turn::Ended;
            }
            self.hear(TICK);
            idle();
        }
    }

    /// Takes in one message, if one comes in time.
    fn hear(&mut self, wait: Duration) {
        let (number, message) = match self.messages.recv_timeout(wait) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
        };
        let resident = &mut self.all[number];
        match message {
            Message::Rank(RankEvent::Waits(report, line)) => {
                if let Some(rank) = resident.ranks.get_mut(report.rank) {
                    rank.line = line.or(rank.line.take());
                    (rank.waits, rank.steps) = (true, report.steps);
                }
            }
            // Its process says why.
            Message::Rank(RankEvent::Left(_)) => {}
            Message::Event(event) => match *event {
                Event::End(end) => {
                    resident.said.close(*end);
                    resident.over = true;
                }
                event => resident.said.take(&event, &mut |_: ProgressEvent<'_>| ()),
            },
            Message::Line(at) => resident.lines.push(at),
            Message::OutputEnded if !resident.over => self.record_death(number),
            Message::OutputEnded => {}
        }
    }

    /// It has ended without a result.
    fn record_death(&mut self, number: usize) {
        let resident = &mut self.all[number];
        let Some(mut child) = resident.child.take() else { return };
        let status = child.wait();
        let tail = resident.tail.take().and_then(|tail| tail.join().ok()).unwrap_or_default();
        let said = std::mem::take(&mut resident.said);
        resident.over = true;
        resident.said = match status {
            Ok(status) => said.ended(died(status, resident.oom_kills, &tail)),
            Err(error) => Execution::failed(format!("its process was lost: {error}")),
        };
    }

    /// Stops all processes of a player. What is stopped starts no more, so that it is looked again until there is nobody new.
    fn pause(&mut self, number: usize) {
        let Some(child) = self.pid(number) else { return };
        loop {
            self.signal(number, Signal::STOP);
            let known = std::mem::replace(&mut self.all[number].tree, descendants(child));
            if self.all[number].tree.is_subset(&known) {
                return;
            }
        }
    }

    /// The process that was started, while it is there.
    pub fn pid(&self, number: usize) -> Option<u32> {
        self.all[number].child.as_ref().map(Child::id)
    }

    /// To all processes of a player: those that it started may be in process groups of their own.
    fn signal(&self, number: usize, signal: Signal) {
        for pid in self.all[number].tree.iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
            // Fails only when it has ended.
            let _ = kill_process(pid, signal);
        }
    }

    fn kill(&mut self, number: usize) {
        let resident = &mut self.all[number];
        // Ranks end with the process that started them; a stopped process of another program does not.
        if resident.foreign.is_some()
            && let Some(child) = &resident.child
        {
            resident.tree = descendants(child.id());
            self.signal(number, Signal::KILL);
        }
        let resident = &mut self.all[number];
        if let Some(mut child) = resident.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        resident.over = true;
    }

    /// Ends all, each after its step, and returns what they had to say, by number. Who takes longer than `grace` is ended.
    pub fn end(mut self, grace: Duration) -> Vec<Execution> {
        for number in 0..self.all.len() {
            // A cell with a rank that has not come to its first step yet cannot be told to end.
            let starts = self.all[number].ranks.iter().any(|rank| rank.line.is_none());
            if !starts && self.all[number].foreign.is_none() {
                // One after another: the end of a cell measures the peak.
                self.all[number].ranks.iter_mut().filter_map(|rank| rank.line.as_mut()).for_each(|line| {
                    let _ = answer(line, 0);
                });
                let until = Instant::now() + grace;
                while !self.all[number].over && Instant::now() < until {
                    self.hear(TICK);
                }
            }
            self.kill(number);
        }
        std::mem::take(&mut self.all).into_iter().map(|resident| resident.said).collect()
    }
}

impl Drop for Residents {
    fn drop(&mut self) {
        (0..self.all.len()).for_each(|number| self.kill(number));
    }
}

/// The time of the slowest rank, step by step.
fn slowest(ranks: &[Rank]) -> Vec<StepTime> {
    let steps = ranks.iter().map(|rank| rank.steps.len()).min().unwrap_or(0);
    let slowest = |step: usize| {
        let of_rank = |rank: &Rank| rank.steps[step];
        let first = ranks.iter().map(of_rank).next();
        first.map(|first| StepTime { ms: ranks.iter().map(of_rank).fold(0.0, |most, step| most.max(step.ms)), ..first })
    };
    (0..steps).filter_map(slowest).collect()
}
