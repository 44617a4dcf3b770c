//! Cells of a launch: torchrun, srun or mpirun has started this process beside others. Rank 0 decides what runs, keeps the
//! notebook and speaks; for each cell every one of them starts the process of its rank.

use crate::merge::{dead, merge};
use crate::processes::Processes;
use crate::protocol::{End, Event, Job, ProgressEvent, RankFailure, RankJob, RankResult};
use crate::record::unmeasured;
use crate::{Execute, Execution};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zbench_config::Hosts;
use zbench_engine::config::Cell;
use zbench_engine::observe::trace::StepTrace;
use zbench_engine::run::launch_ranks::Standing;
use zbench_host::machine;
use zbench_launch::{ControlChannel, Io, Silence, Start, World, free_port};
use zbench_reports::record::{Outcome, Record, Source, Status};

const TICK: Duration = Duration::from_millis(20);
/// How long others have to answer when they were told to end their rank.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a stop by SIGTERM may be a launcher's answer to the death of a process that has not been noticed yet.
const MOMENT: Duration = Duration::from_secs(1);
/// How long the user's signals may take to reach all processes.
const SIGNALS: Duration = Duration::from_millis(300);

/// What rank 0 says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Start your rank of this cell.
    Run {
        /// Number of the cell in this launch.
        number: u64,
        /// The jobs of all ranks, in their order.
        jobs: Vec<RankJob>,
        /// The cell's record so far, for the case that rank 0 is lost.
        record: Box<Record>,
    },
    /// Have your rank of the cell stop after its step.
    Halt,
    /// End your rank of the cell, if it still runs.
    Stop,
    /// The command is at its end.
    Bye {
        /// Its exit code.
        code: u8,
    },
}

/// What the others say.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// What the rank of a cell did in a step.
    Traced(u64, Box<StepTrace>),
    /// How the rank of a cell ended.
    Said(u64, Box<RankResult>),
    /// This process was told to stop.
    Stopped,
}

/// Why a launch is to stop.
#[derive(Clone, Default)]
pub struct StopFlags {
    /// Set by every signal that means it.
    pub any: Arc<AtomicBool>,
    /// Set by those that only the user or a batch system sends: all but SIGTERM, with which launchers also end what is left when a
    /// process has died.
    pub user: Arc<AtomicBool>,
}

impl StopFlags {
    fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    fn is_users(&self) -> bool {
        self.user.load(Ordering::Relaxed)
    }
}

/// Rank 0 of a launch.
pub struct Leader {
    line: ControlChannel,
    world: World,
    hosts: Arc<Hosts>,
    number: u64,
    /// The record of the cell that is next or under way.
    record: Box<Record>,
    /// Ranks that were told to stop, and said so.
    stopped: BTreeSet<usize>,
    /// Who has gone, after which nothing can run.
    lost: Option<String>,
    /// The command's exit code, when it is known.
    code: u8,
}

/// What rank 0 needs to run cells.
pub struct Launched<'a> {
    /// The launch.
    pub leader: &'a mut Leader,
    /// The program: this one.
    pub program: PathBuf,
    /// Set when it is to stop.
    pub stop: StopFlags,
    /// A cell may take this long.
    pub timeout: Duration,
    /// Seconds of each measurement of the peak.
    pub peak_seconds: f64,
    /// So many steps of each cell are traced.
    pub trace_steps: u64,
}

impl Leader {
    /// Rank 0 of `world`, whose ranks are on the line, at these hosts.
    pub fn new(world: World, line: ControlChannel, hosts: Arc<Hosts>) -> Leader {
        let (record, stopped) = (Box::default(), BTreeSet::new());
        // Until the command has come to its end.
        Leader { line, world, hosts, number: 0, record, stopped, lost: None, code: zbench_host::exit::FAILED }
    }

    /// The command has come to its end.
    pub fn finish(mut self, code: u8) {
        self.code = code;
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.line.say(&Order::Bye { code: self.code });
    }
}

/// Why a cell under way is given up.
enum Stop {
    User,
    Time,
    Failure,
}

impl Execute for Launched<'_> {
    fn is_stopped(&self) -> bool {
        self.stop.any()
    }

    fn begin(&mut self, record: &Record) {
        *self.leader.record = record.clone();
    }

    fn execute(&mut self, cell: &Cell, tell: &mut dyn FnMut(ProgressEvent<'_>)) -> Execution {
        if self.is_stopped() {
            return Execution::default();
        }
        if let Some(lost) = &self.leader.lost {
            return Execution { last: true, ..Execution::default().with(End::failed(lost.clone())) };
        }
        let (jobs, mut own) = match self.start(cell) {
            Ok(started) => started,
            Err(reason) => return Execution::failed(reason),
        };
        let mut heard = Execution::default();
        let mut said: BTreeMap<usize, RankResult> = BTreeMap::new();
        let (begin, mut stop, mut deadline, mut since) = (Instant::now(), None, None, None);
        let mut halts = false;
        loop {
            own.listen(TICK, &mut |event| heard.take(event, tell));
            if own.all_reported() {
                said.extend(own.take_results());
            }
            if let Err(lost) = self.hear(&mut said, &mut stop, &mut |event| heard.take(event, tell)) {
                own.end();
                said.extend(own.take_results());
                self.leader.lost = Some(lost.clone());
                return self.without(lost, said, heard, &stop);
            }
            let now = Instant::now();
            if deadline.is_none() && said.values().any(|rank| rank.failure.is_some()) {
                deadline = Some(now + own.grace(cell));
            }
            let asked = self.is_stopped();
            if asked && cell.checkpoint.is_some() && !halts {
                halts = true;
                self.leader.line.say(&Order::Halt);
                own.order_stop();
                tell(ProgressEvent::Stopping);
            }
            let wanted = if asked && !halts {
                self.is_decided(*since.get_or_insert(now)).then_some(Stop::User)
            } else if begin.elapsed() > self.timeout {
                Some(Stop::Time)
            } else {
                deadline.filter(|deadline| now >= *deadline).map(|_| Stop::Failure)
            };
            if let (None, Some(wanted)) = (&stop, wanted) {
                self.leader.line.say(&Order::Stop);
                own.end();
                (stop, deadline) = (Some(wanted), Some(now + ANSWER));
            } else if stop.is_some() && deadline.is_some_and(|deadline| now >= deadline) {
                let silent: Vec<usize> = (0..jobs).filter(|rank| !said.contains_key(rank)).collect();
                let lost = format!("rank(s) {silent:?} of the launch do not answer any more");
                self.leader.lost = Some(lost.clone());
                return self.without(lost, said, heard, &stop);
            }
            // A launcher's signals may have ended ranks before it is known whose wish that was.
            let is_open = asked && !halts && stop.is_none() && said.values().any(|rank| rank.failure.is_some());
            if said.len() >= jobs && !is_open {
                break;
            }
        }
        match stop {
            Some(Stop::User) => heard,
            Some(Stop::Time) => heard.timed_out(self.timeout),
            Some(Stop::Failure) | None => {
                heard.peers_seconds = peers_seconds(&said);
                let end = merge(said.into_values().collect(), std::mem::take(&mut heard.steps));
                heard.with(end)
            }
        }
    }
}

impl Launched<'_> {
    /// Tells all of a cell, and starts rank 0's own process.
    fn start(&mut self, cell: &Cell) -> Result<(usize, Processes), String> {
        let words = |error: zbench_launch::LaunchError| error.to_string();
        let (host, _) = self.leader.world.meeting().map_err(words)?;
        // Without the token, which the others have already and nobody else should hear.
        let meeting = (host.to_string(), free_port().map_err(words)?, String::new());
        let Launched { peak_seconds, trace_steps, .. } = *self;
        let job =
            Job { cell: cell.clone(), cores: machine::core_numbers().len(), peak_seconds, trace_steps, turns: None };
        let jobs = job.rank_jobs(&self.leader.hosts, Some(meeting));
        self.leader.number += 1;
        let own = start_one(&self.program, &jobs, 0, self.leader.line.secret(self.leader.number))?;
        self.leader.line.say(&Order::Run { number: self.leader.number, jobs, record: self.leader.record.clone() });
        Ok((cell.parallel.ranks, own))
    }

    /// Whether a wish to stop is one: at once where the user's signal or all other processes say so, else when nobody was lost for a
    /// moment.
    fn is_decided(&self, since: Instant) -> bool {
        let all = self.leader.stopped.len() + 1 >= self.leader.world.size;
        self.stop.is_users() || all || since.elapsed() >= MOMENT
    }

    /// Takes in what the others have said.
    fn hear(
        &mut self,
        said: &mut BTreeMap<usize, RankResult>,
        stop: &mut Option<Stop>,
        on_event: &mut dyn FnMut(&Event),
    ) -> Result<(), String> {
        let begin = Instant::now();
        // Whoever says much keeps nobody from looking at time and stop.
        while begin.elapsed() <= TICK {
            match self.leader.line.hear(Duration::ZERO) {
                Ok((rank, Answer::Said(number, what))) if number == self.leader.number => {
                    said.insert(rank, *what);
                }
                Ok((_, Answer::Traced(number, traced))) if number == self.leader.number => {
                    on_event(&Event::Traced(traced));
                }
                // Of an earlier cell that was given up.
                Ok((_, Answer::Said(..) | Answer::Traced(..))) => {}
                Ok((rank, Answer::Stopped)) => {
                    self.leader.stopped.insert(rank);
                    self.stop.any.store(true, Ordering::Relaxed);
                }
                Err(Silence::Yet) => return Ok(()),
                Err(Silence::Lost(rank, reason)) => {
                    std::thread::sleep(SIGNALS);
                    if self.stop.is_users() || rank.is_some_and(|rank| self.leader.stopped.contains(&rank)) {
                        *stop = Some(Stop::User);
                    }
                    return Err(reason);
                }
            }
        }
        Ok(())
    }

    /// The end of a cell in which a process of the launch was lost.
    fn without(
        &self,
        lost: String,
        said: BTreeMap<usize, RankResult>,
        mut heard: Execution,
        stop: &Option<Stop>,
    ) -> Execution {
        if matches!(stop, Some(Stop::User)) {
            return heard;
        }
        let mut end = merge(said.into_values().collect(), std::mem::take(&mut heard.steps));
        let seen = end.failure.take().map(|ended| format!("; {}", ended.reason)).unwrap_or_default();
        let reason = format!("{LOST}: {lost}{seen}");
        end.failure = Some(super::protocol::Ended { status: Status::Failed, reason, source: Some(Source::Host) });
        Execution { last: true, ..heard.with(end) }
    }
}

/// How the reason begins when a process of the launch has gone.
const LOST: &str = "the launch has lost a process";

/// Processor time of the ranks on the host of rank 0 that other processes have started.
fn peers_seconds(said: &BTreeMap<usize, RankResult>) -> f64 {
    let host = said.get(&0).map(|own| own.host.as_str());
    let peers = said.iter().filter(|(rank, said)| **rank > 0 && Some(said.host.as_str()) == host);
    peers.map(|(_, said)| said.own_seconds).sum()
}

/// The record of a cell whose rank 0, which keeps the notebook, was lost; rank 1 keeps it then.
fn without_leader(mut record: Box<Record>, lost: &str) -> Box<Record> {
    let reason = format!("{LOST}: {lost}; rank 1 wrote this record, as rank 0 could not");
    unmeasured(&mut record, &format!("the cell ended early: {reason}"));
    record.outcome = Outcome::ended(Status::Failed, reason, Some(Source::Host));
    record
}

/// Starts the process of one rank, whose job is among `jobs`.
fn start_one(program: &std::path::Path, jobs: &[RankJob], rank: usize, token: String) -> Result<Processes, String> {
    let mut job = jobs.get(rank).cloned().ok_or_else(|| format!("there is no job for rank {rank}"))?;
    let (host, port, _) = job.meeting.take().ok_or("the job says no place to meet")?;
    job.meeting = Some((host.clone(), port, token.clone()));
    let start = Start {
        program: program.to_path_buf(),
        arguments: vec!["__rank".into()],
        ranks: rank..rank + 1,
        size: jobs.len(),
        host,
        port,
        token,
        io: Io::Piped,
    };
    Processes::start(&start, &[job]).map_err(|error| error.to_string())
}

/// The life of the other ranks of a launch: they start what they are told, and say how it ended. The exit code is rank 0's. Where
/// rank 0 is lost while a cell is under way, rank 1 also returns the cell's record.
pub fn follow(line: &ControlChannel, stop: &StopFlags) -> (u8, Option<Box<Record>>) {
    let rank = line.rank();
    let mut under_way: Option<(u64, Processes)> = None;
    let mut record = None;
    let mut asked = false;
    loop {
        if stop.any() && !asked {
            asked = true;
            line.say(&Answer::Stopped);
        }
        match line.hear(TICK) {
            Ok((_, Order::Run { number, jobs, record: so_far })) => {
                record = Some(so_far);
                let program = std::env::current_exe().map_err(|error| format!("zbench's own path: {error}"));
                match program.and_then(|program| start_one(&program, &jobs, rank, line.secret(number))) {
                    Ok(processes) => under_way = Some((number, processes)),
                    Err(reason) => line.say(&Answer::Said(number, Box::new(not_started(rank, reason)))),
                }
            }
            Ok((_, Order::Halt)) => {
                if let Some((_, processes)) = &mut under_way {
                    processes.order_stop();
                }
            }
            Ok((_, Order::Stop)) => {
                if let Some((_, processes)) = &mut under_way {
                    processes.end();
                }
            }
            Ok((_, Order::Bye { code })) => return (code, None),
            Err(Silence::Yet) => {}
            Err(Silence::Lost(lost, reason)) => {
                zbench_host::say!("rank {rank}: {reason}");
                std::thread::sleep(SIGNALS);
                if stop.is_users() {
                    return (zbench_host::exit::INTERRUPTED, None);
                }
                let record = record.filter(|_| lost == Some(0) && rank == 1);
                return (zbench_host::exit::FAILED, record.map(|record| without_leader(record, &reason)));
            }
        }
        if let Some((number, processes)) = &mut under_way {
            // Steps are told by rank 0.
            processes.listen(Duration::ZERO, &mut |event| {
                if let Event::Traced(traced) = event {
                    line.say(&Answer::Traced(*number, traced.clone()));
                }
            });
            if processes.all_reported() {
                for said in processes.take_results().into_values() {
                    // What ended well is rank 0's to keep.
                    record = record.filter(|_| said.failure.is_some());
                    line.say(&Answer::Said(*number, Box::new(said)));
                }
                under_way = None;
            }
        }
    }
}

fn not_started(rank: usize, reason: String) -> RankResult {
    let reason = format!("rank {rank} on {}: {reason}", machine::host_name());
    let failure = RankFailure::new(Standing::Found, Some(Source::Host), reason);
    dead(rank, std::process::id(), failure)
}
