//! Cells over MPI: mpirun starts the ranks, as MPI wants it, and cannot be asked twice in one process; so each cell has a
//! mpirun of its own. The ranks get their job and say how it ended over a line of ours, on which this process is rank 0.

use crate::child_process::{BROKEN, stop_order};
use crate::merge::merge;
use crate::processes::{CALM_TICK, grace, read_lines, tail_of};
use crate::protocol::{End, Ended, Event, Job, LifecycleEvent, RankFailure, RankJob, RankResult};
use crate::rank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::ToSocketAddrs;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tracing::info;
use zbench_collectives::{Communicator, Meeting, Rendezvous};
use zbench_config::Hosts;
use zbench_engine::compute::hardware;
use zbench_engine::observe::trace::StepTrace;
use zbench_engine::run::launch_ranks::Standing;
use zbench_host::logging::{self, pass_on};
use zbench_kernels::threads::spawn;
use zbench_kernels::threads::spawn::not_started;
use zbench_launch::{
    Choice, ControlChannel, LaunchError, Options, Silence, Source as Launcher, World, detect, free_port, fresh_token,
    loopback,
};
use zbench_reports::record::{Source, Status};

const TICK: Duration = Duration::from_millis(20);
/// How long mpirun has to end its ranks when it is told to.
const POLITE: Duration = Duration::from_secs(3);
/// Where the line begins, and what its ends know.
const PLACE: &str = "ZBENCH_LINE";
const TOKEN: &str = "ZBENCH_LINE_TOKEN";
/// What a mpirun must not take for its ranks'.
const NOT_FOR_RANKS: [&str; 9] = [
    "ZBENCH_TOKEN_FILE",
    "ZBENCH_LAUNCHED",
    "ZBENCH_PARENT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
];

/// What this process sends to the ranks.
#[derive(Serialize, Deserialize)]
enum Order {
    Job(Box<RankJob>),
    /// Stop after the step under way.
    Halt,
    Bye,
}

/// What the ranks send to this process.
#[derive(Serialize, Deserialize)]
enum Reply {
    /// What a rank did in a step. Lines of standard output would be cut where mpirun passes on those of several ranks.
    Traced(Box<StepTrace>),
    /// How it ended.
    Said(Box<RankResult>),
}

/// The implementations of mpirun: they differ in what they must be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MpirunKind {
    OpenMpi,
    Hydra,
}

/// Runs a cell whose ranks mpirun starts.
pub fn run(job: &Job, say: &(dyn Fn(&Event) + Sync)) -> End {
    match attempt(job, say) {
        Ok(end) => end,
        Err(reason) => End::failed(reason),
    }
}

fn attempt(job: &Job, say: &(dyn Fn(&Event) + Sync)) -> Result<End, String> {
    let words = |error: LaunchError| error.to_string();
    let cell = &job.cell;
    let (size, stall) = (cell.parallel.ranks, cell.parallel.stall);
    let kind = mpirun_kind()?;
    let (host, port, token) = (own_address(), free_port().map_err(words)?, fresh_token().map_err(words)?);
    let mut mpirun = Mpirun::start(kind, job, &format!("{host}:{port}"), &token)?;
    // The token is secret, and the name of this host may be a loopback address here.
    let (size, timeout, everywhere) = (size + 1, stall, host != loopback());
    let meeting = Meeting { size, host, port, token, timeout, everywhere, ..Meeting::default() };
    let (sender, met) = channel();
    // On a thread, so that a mpirun that starts nothing is not waited for.
    let join = move || {
        // Nobody listens any more when mpirun has ended meanwhile.
        let _ = sender.send(Rendezvous::join(&meeting).map_err(|error| error.to_string()));
    };
    spawn::start("meeting", join).map_err(|error| format!("the ranks cannot be met: {error}"))?;
    let line = loop {
        match met.recv_timeout(TICK) {
            Ok(met) => break ControlChannel::open(met?).map_err(words)?,
            Err(_) if mpirun.has_ended() => return Err(mpirun.last_words("did not start the ranks")),
            Err(_) => {}
        }
    };
    let hosts = &line.hosts()[1..];
    for job in job.rank_jobs(&Hosts::of_names(hosts.iter().map(String::as_str)), None) {
        line.say(&Order::Job(Box::new(job)));
    }
    let mut steps = Vec::new();
    let mut on_event = |event: Event| {
        say(&event);
        if let Event::Step(step) = event {
            steps.push(step);
        }
    };
    let tick = if job.turns.is_some() { CALM_TICK } else { TICK };
    let said = listen(&line, &mut mpirun, hosts, (tick, grace(cell)), &mut on_event);
    line.say(&Order::Bye);
    // They come through mpirun, which may be slower than the line.
    mpirun.rest().into_iter().for_each(on_event);
    let mut end = merge(said.into_values().collect(), steps);
    if let Some(Ended { reason, .. }) = end.failure.as_mut().filter(|ended| ended.status == Status::Failed) {
        let tail = mpirun.tail();
        if !tail.is_empty() {
            reason.push_str(&format!("; mpirun's last words: {tail}"));
        }
    }
    Ok(end)
}

/// Takes in how the ranks end, until all have said it, or have it said for them.
fn listen(
    line: &ControlChannel,
    mpirun: &mut Mpirun,
    hosts: &[String],
    (tick, grace): (Duration, Duration),
    on_event: &mut dyn FnMut(Event),
) -> BTreeMap<usize, RankResult> {
    let mut said = BTreeMap::new();
    let mut deadline = None;
    let mut halts = false;
    while said.len() < hosts.len() {
        if !halts && stop_order().load(Ordering::Relaxed) {
            halts = true;
            line.say(&Order::Halt);
        }
        let mut lost = None;
        match line.hear(tick) {
            Ok((_, Reply::Traced(traced))) => on_event(Event::Traced(traced)),
            Ok((rank, Reply::Said(what))) => drop(said.insert(rank - 1, *what)),
            Err(Silence::Yet) => {}
            // The line's rank 0 is this process.
            Err(Silence::Lost(rank, _)) => lost = Some(rank.and_then(|rank| rank.checked_sub(1))),
        }
        mpirun.events.try_iter().for_each(&mut *on_event);
        let failed = said.values().any(|rank: &RankResult| rank.failure.is_some());
        if deadline.is_none() && failed {
            deadline = Some(Instant::now() + grace);
        }
        let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if lost.is_some() || late || mpirun.has_ended() {
            if lost.is_some() {
                // It says more of a rank that has died than we know.
                mpirun.wait(POLITE);
            }
            mpirun.end();
            for (rank, host) in hosts.iter().enumerate() {
                let cause = lost.flatten() == Some(rank);
                said.entry(rank).or_insert_with(|| silent(rank, host, cause));
            }
        }
    }
    said
}

/// The result of a rank that sent none, as it has died or was ended with the others.
fn silent(rank: usize, host: &str, is_cause: bool) -> RankResult {
    let (standing, how) = if is_cause {
        (Standing::Found, "has ended without a word")
    } else {
        (Standing::Heard, "was ended with the others")
    };
    let reason = format!("rank {rank} on {host} {how}");
    let failure = Some(RankFailure::new(standing, Some(Source::Host), reason));
    let mut said = RankResult { host: host.into(), failure, ..RankResult::default() };
    said.end.rank = rank;
    said
}

/// A mpirun under way.
struct Mpirun {
    child: Child,
    /// Steps, and what happened between them.
    events: Receiver<Event>,
    tail: Option<std::thread::JoinHandle<String>>,
}

impl Mpirun {
    fn start(kind: MpirunKind, job: &Job, place: &str, token: &str) -> Result<Mpirun, String> {
        let zbench = std::env::current_exe().map_err(|error| format!("zbench's own path cannot be found: {error}"))?;
        let size = job.cell.parallel.ranks;
        // Through ourselves, so that mpirun ends when this process does.
        let mut command = Command::new(&zbench);
        command.arg("__follow").arg("mpirun").arg("-n").arg(size.to_string());
        if kind == MpirunKind::OpenMpi {
            // One core a rank is its default, and ranks have threads.
            command.args(["--bind-to", "none", "-x", PLACE, "-x", TOKEN]);
            if rustix::process::geteuid().is_root() {
                command.arg("--allow-run-as-root");
            }
            if size > job.cores {
                command.arg("--oversubscribe");
            }
            for name in [logging::FILTER, logging::FILE].into_iter().filter(|name| std::env::var_os(name).is_some()) {
                command.args(["-x", name]);
            }
        }
        command.arg(&zbench).arg("__rank");
        pass_on(&mut command);
        for name in NOT_FOR_RANKS {
            command.env_remove(name);
        }
        let child = command
            .env(PLACE, place)
            .env(TOKEN, token)
            .env("ZBENCH_FOLLOW", std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let child = child.map_err(|error| format!("mpirun cannot be started: {}", not_started(error)))?;
        info!(target: "zbench::launch", process = child.id(), ranks = size, "mpirun started");
        let (sender, events) = channel();
        // Ended when it is dropped, should it not be heard.
        let mut mpirun = Mpirun { child, events, tail: None };
        let deaf = |error: std::io::Error| format!("what mpirun says cannot be heard: {error}");
        let event = |line: &str| {
            let event = serde_json::from_str(line).ok();
            event.filter(|event| matches!(event, Event::Step(_) | Event::LifecycleEvent(_)))
        };
        read_lines("mpirun's events", mpirun.child.stdout.take(), sender, event, None).map_err(deaf)?;
        mpirun.tail = Some(tail_of(mpirun.child.stderr.take()).map_err(deaf)?);
        Ok(mpirun)
    }

    fn has_ended(&mut self) -> bool {
        // One that cannot be asked is none of ours any more.
        self.child.try_wait().map_or(true, |status| status.is_some())
    }

    /// What rank 0 said until its end, for which it has a moment.
    fn rest(&mut self) -> Vec<Event> {
        self.wait(POLITE);
        self.end();
        // Its output ends with it, and the thread that reads it then.
        self.events.iter().collect()
    }

    /// Waits for its own end, so long.
    fn wait(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while !self.has_ended() && Instant::now() < deadline {
            std::thread::sleep(TICK);
        }
    }

    /// Ends it, first politely: then it ends its ranks, on other hosts too.
    fn end(&mut self) {
        if let (false, Some(pid)) = (self.has_ended(), rustix::process::Pid::from_raw(self.child.id() as i32)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        self.wait(POLITE);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The last it said on standard error, in one line. Waits for its end.
    fn tail(&mut self) -> String {
        self.end();
        let tail = self.tail.take().and_then(|tail| tail.join().ok()).unwrap_or_default();
        one_line(&tail)
    }

    fn last_words(&mut self, what: &str) -> String {
        let tail = self.tail();
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        format!("mpirun {what} ({status}); its last words: {tail}")
    }
}

impl Drop for Mpirun {
    fn drop(&mut self) {
        // Its ranks have said all they had to say, and were told good bye.
        self.wait(POLITE);
        self.end();
    }
}

/// Without the rules that mpirun draws, and of a length to be read.
fn one_line(text: &str) -> String {
    const LONGEST: usize = 600;
    let says = |line: &&str| !line.trim_matches(['-', '=', ' ']).is_empty();
    let words: Vec<&str> = text.lines().map(str::trim).filter(says).collect();
    let line = words.join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Which mpirun is found on the path.
fn mpirun_kind() -> Result<MpirunKind, String> {
    let absent = |error: std::io::Error| {
        format!("mpirun cannot be started ({error}); install Open MPI or MPICH, or write parallel.backend = \"tcp\"")
    };
    let output = Command::new("mpirun").arg("--version").stdin(Stdio::null()).output().map_err(absent)?;
    kind_of_version(&String::from_utf8_lossy(&output.stdout))
}

fn kind_of_version(version: &str) -> Result<MpirunKind, String> {
    let has = |word: &str| version.to_lowercase().contains(word);
    match () {
        () if has("open mpi") || has("openrte") || has("prte") => Ok(MpirunKind::OpenMpi),
        () if has("hydra") || has("mpich") || has("intel(r) mpi") || has("mvapich") => Ok(MpirunKind::Hydra),
        () => {
            let line = version.lines().next().unwrap_or_default();
            Err(format!(
                "mpirun --version says {line:?}, which is neither Open MPI nor Hydra (MPICH, Intel MPI, MVAPICH)"
            ))
        }
    }
}

/// This host as its ranks find it: by its name where that is known, as ranks of other hosts need it.
fn own_address() -> String {
    let name = zbench_host::machine::host_name();
    let known = !name.is_empty() && (name.as_str(), 0).to_socket_addrs().is_ok_and(|mut all| all.next().is_some());
    if known { name } else { loopback().into() }
}

/// Whether this process is a rank that a mpirun of ours has started.
pub fn is_rank() -> bool {
    std::env::var_os(PLACE).is_some()
}

/// The life of such a rank; its exit status.
pub fn rank_main() -> u8 {
    match serve() {
        Ok(()) => 0,
        Err(reason) => {
            zbench_host::say!("{reason}");
            BROKEN
        }
    }
}

fn serve() -> Result<(), String> {
    let words = |error: LaunchError| error.to_string();
    let env = |name: &str| std::env::var(name).ok();
    let world =
        detect(&env).map_err(words)?.ok_or("mpirun has set none of the variables that say which rank this is")?;
    let place = env(PLACE).unwrap_or_default();
    let token = env(TOKEN).unwrap_or_default();
    let split = place.rsplit_once(':').and_then(|(host, port)| Some((host.to_string(), port.parse::<u16>().ok()?)));
    let (host, port) = split.ok_or_else(|| format!("{PLACE}={place} is no host:port"))?;
    let timeout = zbench_engine::config::STALL;
    let (rank, size) = (world.rank + 1, world.size + 1);
    let meeting = Meeting { rank, size, host, port, token, timeout, ..Meeting::default() };
    let line = ControlChannel::open(Rendezvous::join(&meeting).map_err(|error| error.to_string())?).map_err(words)?;
    let job = loop {
        match line.hear(Duration::from_secs(1)) {
            Ok((_, Order::Job(job))) if job.rank == world.rank => break job,
            // The step under way is its first.
            Ok((_, Order::Halt)) => stop_order().store(true, Ordering::Relaxed),
            Ok((_, Order::Job(_))) | Err(Silence::Yet) => {}
            Ok((_, Order::Bye)) => return Err("the cell ended before it began".into()),
            Err(Silence::Lost(_, reason)) => return Err(reason),
        }
    };
    let comm = connect(&world, &job)?;
    // Standard output is one stream for all ranks; rank 0 alone speaks there.
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (sender, traces) = channel();
        let ear = spawn::start_scoped(scope, "orders", || listen_to_orders(line, traces, &is_done))
            .map_err(|error| format!("orders cannot be heard: {error}"))?;
        let said = rank::run(&job, Some(comm), &|event| match event {
            // Whoever listens goes on until this is done.
            Event::Traced(traced) => drop(sender.send(traced.clone())),
            Event::LifecycleEvent(LifecycleEvent::Peak(_)) if job.rank != 0 => {}
            event => crate::child_process::say(event),
        });
        is_done.store(true, Ordering::Release);
        // The line comes back with nothing on it lost, as a thread that listens has no reason to panic.
        let (line, mut is_over) = ear.join().map_err(|_| "the thread that listens to orders has ended")?;
        line.say(&Reply::Said(Box::new(said)));
        while !is_over {
            let heard = line.hear::<Order>(Duration::from_secs(1));
            is_over = matches!(heard, Ok((_, Order::Bye)) | Err(Silence::Lost(..)));
        }
        Ok(())
    })
}

/// Hears an order to stop while the rank trains, and passes on what it traces. Gives the line back, and whether nobody is there
/// any more.
fn listen_to_orders(
    line: ControlChannel,
    traces: Receiver<Box<StepTrace>>,
    is_done: &AtomicBool,
) -> (ControlChannel, bool) {
    loop {
        // Asked before what is left is passed on: nothing comes after it.
        let is_done = is_done.load(Ordering::Acquire);
        traces.try_iter().for_each(|traced| line.say(&Reply::Traced(traced)));
        if is_done {
            return (line, false);
        }
        match line.hear::<Order>(10 * TICK) {
            Ok((_, Order::Halt)) => stop_order().store(true, Ordering::Relaxed),
            Ok((_, Order::Bye)) | Err(Silence::Lost(..)) => return (line, true),
            Ok((_, Order::Job(_))) | Err(Silence::Yet) => {}
        }
    }
}

fn connect(world: &World, job: &RankJob) -> Result<Box<dyn Communicator>, String> {
    let parallel = &job.cell.parallel;
    let kernels =
        hardware::kernels(&job.cell, job.seat, &zbench_host::devices::machine).map_err(|error| error.to_string())?;
    let arena = zbench_kernels::Arena::host(Some(0)).map_err(|error| error.to_string())?;
    let options = Options { timeout: parallel.stall, stall: parallel.stall, quiet: true, stop: None };
    let world = World { source: if world.size == 1 { Launcher::Ours } else { world.source }, ..world.clone() };
    zbench_launch::connect(&world, Choice::Mpi, kernels, &arena, &options).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_mpirun_are_told_by_their_version() {
        for (text, kind) in [
            ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/", MpirunKind::OpenMpi),
            ("mpirun.real (OpenRTE) 4.0.3", MpirunKind::OpenMpi),
            ("HYDRA build details:\n    Version:                                 4.0.2", MpirunKind::Hydra),
            ("Intel(R) MPI Library for Linux* OS, Version 2021.9", MpirunKind::Hydra),
        ] {
            assert_eq!(kind_of_version(text), Ok(kind), "{text}");
        }
        assert_eq!(one_line("----\n a \n\n  ====\nb\n"), "a b");
        assert_eq!(one_line(&"é".repeat(1000)).chars().count(), 601);
        assert!(kind_of_version("srun 23.02").unwrap_err().contains("srun 23.02"));
    }
}
