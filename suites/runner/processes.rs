//! Ranks of a cell as processes of this host: each is told its job and says how it ended. A rank that dies without
//! a result gets one made for it.

use crate::merge::{dead, merge};
use crate::protocol::{End, Event, Job, RankFailure, RankJob, RankResult};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zbench_config::Hosts;
use zbench_engine::config::Cell;
use zbench_engine::run::launch_ranks::Standing;
use zbench_host::machine;
use zbench_kernels::threads::spawn;
use zbench_launch::{Exit, Io, LaunchError, RankExit, Ranks, Start, signal_name, spawn};
use zbench_reports::record::{Source, Status};

/// How often who has ended is looked at.
const TICK: Duration = Duration::from_millis(20);
/// The same while its ranks wait for turns: a cell that waits should use no CPU.
pub(super) const CALM_TICK: Duration = Duration::from_millis(500);
/// How long ranks have to notice that one of them has ended, at most.
const MOST_GRACE: Duration = Duration::from_secs(10);
/// The same while ranks still look for one another: they cannot notice it, and have nothing to say.
const MEETING_GRACE: Duration = Duration::from_millis(500);
/// What is kept of a process's standard error.
const TAIL_BYTES: usize = 4096;

/// How long the others have to notice that a rank has ended.
pub fn grace(cell: &Cell) -> Duration {
    cell.parallel.stall.min(MOST_GRACE)
}

/// Processes of ranks under way.
pub struct Processes {
    ranks: Ranks,
    events: Receiver<(usize, Option<Event>)>,
    tails: BTreeMap<usize, JoinHandle<String>>,
    results: BTreeMap<usize, RankResult>,
    /// Ranks whose results were taken.
    taken: Vec<usize>,
    /// Ranks whose output has ended.
    silent: Vec<usize>,
    oom_kills: u64,
    waits: Duration,
    /// Ranks that hear an order to stop and have not been given one.
    hears: Vec<usize>,
    /// They are to stop after their step.
    ordered: bool,
    /// Ranks that are connected to the others.
    met: usize,
}

/// Runs a cell whose ranks are all processes of this host.
pub fn run(job: &Job, say: &(dyn Fn(&Event) + Sync)) -> End {
    let failed = |error: LaunchError| End::failed(error.to_string());
    let cell = &job.cell;
    let ranks = cell.parallel.ranks;
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(source) => return failed(LaunchError::System { what: "zbench's own path cannot be found".into(), source }),
    };
    let start = match Start::here(program, vec!["__rank".into()], ranks, Io::Piped) {
        Ok(start) => start,
        Err(error) => return failed(error),
    };
    let hosts = Hosts::of_names((0..ranks).map(|_| ""));
    let mut jobs = job.rank_jobs(&hosts, Some((start.host.clone(), start.port, start.token.clone())));
    if let Some(first) = jobs.first_mut() {
        first.peak_threads = first.peak_threads.min(job.cores).max(1);
    }
    let mut processes = match Processes::start(&start, &jobs) {
        Ok(processes) => processes,
        Err(error) => return failed(error),
    };
    let tick = if job.turns.is_some() { CALM_TICK } else { TICK };
    let mut steps = Vec::new();
    let mut deadline = None;
    while !processes.all_reported() {
        if super::child_process::stop_order().load(Ordering::Relaxed) {
            processes.order_stop();
        }
        processes.listen(tick, &mut |event| {
            say(event);
            if let Event::Step(step) = event {
                steps.push(step.clone());
            }
        });
        if deadline.is_none() && processes.any_failed() {
            deadline = Some(Instant::now() + processes.grace(cell));
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            processes.end();
        }
    }
    merge(processes.take_results().into_values().collect(), steps)
}

impl Processes {
    /// Starts the ranks of `start` and tells each its job, which are in their order.
    ///
    /// # Errors
    /// A process cannot be started.
    pub fn start(start: &Start, jobs: &[RankJob]) -> Result<Processes, LaunchError> {
        let oom_kills = machine::oom_kills();
        let mut ranks = spawn(start)?;
        let (sender, events) = channel();
        let mut tails = BTreeMap::new();
        let mut waits = Duration::ZERO;
        for (job, mut streams) in jobs.iter().zip(ranks.streams()) {
            let rank = job.rank;
            waits = job.cell.parallel.stall;
            let text = serde_json::to_vec(job).map_err(|error| LaunchError::System {
                what: "a rank's job cannot be written down".into(),
                source: error.into(),
            })?;
            // A process that dies before it has read its job shows in its exit status.
            let _ = streams.stdin.write_all(&text);
            drop(streams.stdin);
            let deaf = || LaunchError::system(format!("what rank {rank} says cannot be heard"));
            let event = move |line: &str| serde_json::from_str(line).ok().map(|event| (rank, Some(event)));
            read_lines("rank's events", Some(streams.stdout), sender.clone(), event, Some((rank, None)))
                .map_err(deaf())?;
            tails.insert(rank, tail_of(Some(streams.stderr)).map_err(deaf())?);
        }
        Ok(Processes {
            ranks,
            events,
            tails,
            results: BTreeMap::new(),
            taken: Vec::new(),
            silent: Vec::new(),
            oom_kills,
            waits,
            hears: Vec::new(),
            ordered: false,
            met: 0,
        })
    }

    /// How long ranks that live have to notice that one has ended.
    pub fn grace(&self, cell: &Cell) -> Duration {
        if self.met < self.ranks.pids().len() { MEETING_GRACE } else { grace(cell) }
    }

    /// Takes in what the ranks say, and who has died; returns after `wait` at the latest if nothing comes. Is told of steps,
    /// of what happens between them and in them.
    pub fn listen(&mut self, wait: Duration, on_event: &mut dyn FnMut(&Event)) {
        let begin = Instant::now();
        let mut next = self.events.recv_timeout(wait);
        loop {
            match next {
                Ok((_, Some(event @ (Event::Step(_) | Event::LifecycleEvent(_) | Event::Traced(_))))) => {
                    on_event(&event)
                }
                Ok((rank, Some(Event::Ready))) => self.hears.push(rank),
                Ok((_, Some(Event::Met))) => self.met += 1,
                Ok((rank, Some(Event::Rank(said)))) => drop(self.results.insert(rank, *said)),
                Ok((_, Some(Event::End(_)))) => {}
                Ok((rank, None)) => self.silent.push(rank),
                Err(RecvTimeoutError::Timeout) => break,
                // Every rank has ended: nothing more comes, and only their exit, or other processes' ranks, are waited for.
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(TICK.min(wait));
                    break;
                }
            }
            // Whoever says much keeps nobody from looking at time and death.
            if begin.elapsed() > wait.max(TICK) {
                break;
            }
            next = self.events.recv_timeout(Duration::ZERO);
        }
        if self.ordered {
            self.hears.drain(..).for_each(|rank| self.ranks.tell(rank, Signal::USR1));
        }
        self.record_deaths();
    }

    /// Tells all ranks to stop after their step, each as soon as it hears that.
    pub fn order_stop(&mut self) {
        self.ordered = true;
    }

    /// Makes the results of those that ended without one.
    fn record_deaths(&mut self) {
        self.ranks.poll();
        for exit in self.ranks.exits() {
            let known = self.results.contains_key(&exit.rank) || self.taken.contains(&exit.rank);
            if known || !self.silent.contains(&exit.rank) {
                continue;
            }
            let tail = self.tails.remove(&exit.rank).and_then(|tail| tail.join().ok()).unwrap_or_default();
            let failure = self.death(exit, &tail);
            self.results.insert(exit.rank, dead(exit.rank, exit.pid, failure));
        }
    }

    fn death(&self, exit: RankExit, tail: &str) -> RankFailure {
        const KILL: i32 = 9;
        let RankExit { rank, pid, exit } = exit;
        let name = format!("rank {rank} (process {pid} on {})", machine::host_name());
        let said = if tail.is_empty() { String::new() } else { format!("; its last words: {tail}") };
        let found = |source, reason| RankFailure::new(Standing::Found, source, reason);
        match exit {
            Exit::Signal(KILL) if machine::oom_kills() > self.oom_kills => {
                let advice = "lower train.micro_batch or parallel.ranks";
                let reason = format!("the system ended {name} for lack of memory; {advice}");
                RankFailure { status: Status::OutOfMemory, ..found(Some(Source::Host), reason) }
            }
            Exit::Signal(signal) => {
                found(Some(Source::Host), format!("{name} was ended by {}{said}", signal_name(signal)))
            }
            Exit::Code(code) => found(None, format!("{name} ended with exit status {code} and no result{said}")),
            Exit::Ended(signal) => {
                let seconds = self.waits.min(MOST_GRACE).as_secs_f64();
                let reason = format!(
                    "{name} did not end within {seconds} s after the others had, and was ended with {}{said}",
                    signal_name(signal)
                );
                RankFailure::new(Standing::Heard, Some(Source::Host), reason)
            }
        }
    }

    /// Whether every rank has a result, its own or one that was made for it.
    pub fn all_reported(&self) -> bool {
        self.results.len() + self.taken.len() == self.ranks.pids().len()
    }

    /// Whether one of them ended otherwise than well.
    pub fn any_failed(&self) -> bool {
        self.results.values().any(|said| said.failure.is_some())
    }

    /// Ends those that still run.
    pub fn end(&mut self) {
        self.ranks.end();
        // What they had said before comes first.
        self.listen(TICK, &mut |_| ());
    }

    /// The results so far, by rank. Once all are there, what still runs has nothing more to do and ends with this value.
    pub fn take_results(&mut self) -> BTreeMap<usize, RankResult> {
        self.taken.extend(self.results.keys());
        std::mem::take(&mut self.results)
    }
}

/// Reads lines on a thread and sends what `parse` makes of them, until nobody listens. A line of which it makes nothing is passed
/// over. `end` is sent at the end of the stream.
///
/// # Errors
/// The system starts no more threads.
pub fn read_lines<T: Send + 'static>(
    thread: &str,
    stream: Option<impl Read + Send + 'static>,
    sender: Sender<T>,
    parse: impl Fn(&str) -> Option<T> + Send + 'static,
    end: Option<T>,
) -> std::io::Result<()> {
    let read = move || {
        let lines = stream.into_iter().flat_map(|stream| BufReader::new(stream).lines().map_while(Result::ok));
        // Fails when nobody listens.
        let _ = lines.filter_map(|line| parse(&line)).chain(end).try_for_each(|parsed| sender.send(parsed));
    };
    spawn::start(thread, read).map(drop)
}

/// Reads to the end on a thread, keeping the last of it.
///
/// # Errors
/// The system starts no more threads.
pub fn tail_of(stderr: Option<impl Read + Send + 'static>) -> std::io::Result<JoinHandle<String>> {
    spawn::start("last words", move || {
        let Some(mut stderr) = stderr else { return String::new() };
        let mut kept = Vec::new();
        let mut block = [0u8; 4096];
        while let Ok(count @ 1..) = stderr.read(&mut block) {
            kept.extend_from_slice(&block[..count]);
            let excess = kept.len().saturating_sub(TAIL_BYTES);
            kept.drain(..excess);
        }
        String::from_utf8_lossy(&kept).trim().to_string()
    })
}
