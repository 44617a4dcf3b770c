//! Ranks as processes of our own: started together, watched together, ended together.

use crate::{LaunchError, launcher};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tracing::info;
use zbench_host::environment::Root;
use zbench_host::logging::pass_on;
use zbench_kernels::threads::spawn::not_started;

/// How often the processes are looked at.
const TICK: Duration = Duration::from_millis(20);
/// From the polite signal to the one that nobody can ignore.
const POLITE: Duration = Duration::from_secs(2);

/// Where a rank's standard streams go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// To those of this process; nothing is to be read.
    Inherit,
    /// To this process, which takes them with [`Ranks::streams`].
    Piped,
}

/// What to start.
#[derive(Clone, Debug)]
pub struct Start {
    /// The program: this one.
    pub program: PathBuf,
    /// Its arguments, the same for every rank.
    pub arguments: Vec<OsString>,
    /// The ranks to start here.
    pub ranks: std::ops::Range<usize>,
    /// Ranks in all.
    pub size: usize,
    /// Where they meet.
    pub host: String,
    /// The port there.
    pub port: u16,
    /// What they know and others do not.
    pub token: String,
    /// Their streams.
    pub io: Io,
}

impl Start {
    /// All of `size` ranks on this host, with a free port and a fresh token.
    ///
    /// # Errors
    /// No port or no random number is to be had.
    pub fn here(program: PathBuf, arguments: Vec<OsString>, size: usize, io: Io) -> Result<Start, LaunchError> {
        let (host, port, token) = (loopback().to_string(), free_port()?, fresh_token()?);
        Ok(Start { program, arguments, ranks: 0..size, size, host, port, token, io })
    }
}

/// The address of this host's loopback: 127.0.0.1, or that of version 6 where it has no other.
pub fn loopback() -> &'static str {
    let has = |address: IpAddr| TcpListener::bind((address, 0)).is_ok();
    let is_of_version_6 = !has(Ipv4Addr::LOCALHOST.into()) && has(Ipv6Addr::LOCALHOST.into());
    if is_of_version_6 { "[::1]" } else { "127.0.0.1" }
}

/// A port of this host that nobody uses now.
///
/// # Errors
/// The system gives none.
pub fn free_port() -> Result<u16, LaunchError> {
    let mut last = None;
    let (own, all) = if loopback() == "[::1]" { ("[::1]", "[::]") } else { ("127.0.0.1", "0.0.0.0") };
    for _ in 0..8 {
        let port = TcpListener::bind(format!("{own}:0")).and_then(|socket| socket.local_addr()).map(|at| at.port());
        // Free on every address, not on the loopback alone.
        match port.and_then(|port| TcpListener::bind(format!("{all}:{port}")).map(|_| port)) {
            Ok(port) => return Ok(port),
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into());
    Err(LaunchError::system("no free port on this host")(error))
}

/// 128 random bits, in hexadecimal.
pub fn fresh_token() -> Result<String, LaunchError> {
    let mut bytes = [0u8; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(LaunchError::system("/dev/urandom cannot be read"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Asks the system to end this process when the one that started it ends, where that one said so (ZBENCH_PARENT). Between them there
/// may be others, as `timeout` or a script: then this process ends with the nearest. False when the one that said so has ended already.
pub fn follow_parent() -> bool {
    let parent = std::env::var("ZBENCH_PARENT").ok().and_then(|parent| parent.parse().ok());
    parent.is_none_or(die_with)
}

/// Whether whoever started this process wants it to ignore a signal, as nohup does SIGHUP.
pub fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

/// Becomes another program, which is asked to end when the process ZBENCH_FOLLOW, its parent, does: the wish outlives the
/// change of program. Returns only what went wrong.
pub fn become_follower(command: &[OsString]) -> LaunchError {
    use rustix::process::set_parent_process_death_signal;
    let parent = std::env::var("ZBENCH_FOLLOW").ok().and_then(|parent| parent.parse().ok());
    // A polite signal: a mpirun then ends its ranks, wherever they are.
    let asked = set_parent_process_death_signal(Some(Signal::TERM)).is_ok();
    let name = command.first().cloned().unwrap_or_default();
    let what = format!("{} cannot be started", name.to_string_lossy());
    if !asked || parent.is_some_and(|parent: u32| !is_parent(parent)) {
        return LaunchError::system(what)(std::io::Error::other("the process that started this one is gone"));
    }
    let error = Command::new(name).args(command.iter().skip(1)).env_remove("ZBENCH_FOLLOW").exec();
    LaunchError::system(what)(error)
}

fn is_parent(pid: u32) -> bool {
    rustix::process::getppid().is_some_and(|parent| parent.as_raw_nonzero().get() as u32 == pid)
}

/// Asks the system to end this process when its parent ends; false when `starter` is no ancestor any more.
fn die_with(starter: u32) -> bool {
    let asked = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    asked && is_ancestor(starter)
}

fn is_ancestor(pid: u32) -> bool {
    let root = Root::system();
    let parent_of = |pid: u32| launcher::stat(&root, pid).map(|stat| stat.parent).filter(|parent| *parent > 0);
    let parent = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get() as u32);
    std::iter::successors(parent, |pid| parent_of(*pid)).any(|ancestor| ancestor == pid)
}

/// Ranks that run here.
#[derive(Debug)]
pub struct Ranks {
    running: Vec<Running>,
}

#[derive(Debug)]
struct Running {
    rank: usize,
    child: Child,
    exit: Option<Exit>,
    /// The last signal that this process sent it.
    sent: Option<Signal>,
}

/// A rank's streams, where they are piped.
#[derive(Debug)]
pub struct Streams {
    /// What it reads.
    pub stdin: ChildStdin,
    /// What it says.
    pub stdout: ChildStdout,
    /// What it complains of.
    pub stderr: ChildStderr,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself.
    Code(i32),
    /// By a signal from somewhere.
    Signal(i32),
    /// By a signal of this process, because another rank had ended or the user wanted it.
    Ended(i32),
}

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankExit {
    /// Which.
    pub rank: usize,
    /// Its process.
    pub pid: u32,
    /// How.
    pub exit: Exit,
}

impl std::fmt::Display for RankExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RankExit { rank, pid, exit } = self;
        match exit {
            Exit::Code(code) => write!(f, "rank {rank} (pid {pid}) ended with exit status {code}"),
            Exit::Signal(signal) => write!(f, "rank {rank} (pid {pid}) was ended by {}", signal_name(*signal)),
            Exit::Ended(signal) => write!(f, "rank {rank} (pid {pid}) was ended with {}", signal_name(*signal)),
        }
    }
}

/// `signal 9 (SIGKILL)`.
pub fn signal_name(signal: i32) -> String {
    const NAMES: &[(i32, &str)] = &[
        (1, "SIGHUP"),
        (2, "SIGINT"),
        (3, "SIGQUIT"),
        (4, "SIGILL"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (10, "SIGUSR1"),
        (11, "SIGSEGV"),
        (12, "SIGUSR2"),
        (13, "SIGPIPE"),
        (14, "SIGALRM"),
        (15, "SIGTERM"),
        (24, "SIGXCPU"),
        (25, "SIGXFSZ"),
        (31, "SIGSYS"),
    ];
    let name = NAMES.iter().find(|(number, _)| *number == signal);
    name.map_or_else(|| format!("signal {signal}"), |(_, name)| format!("signal {signal} ({name})"))
}

/// Starts ranks. The thread that does must live as long as they do: their death signal follows it.
///
/// # Errors
/// A process cannot be started; those that were are ended.
pub fn spawn(start: &Start) -> Result<Ranks, LaunchError> {
    let mut ranks = Ranks { running: Vec::with_capacity(start.ranks.len()) };
    for rank in start.ranks.clone() {
        let what = format!("the process of rank {rank} cannot be started");
        let child = command(start, rank).spawn().map_err(not_started).map_err(LaunchError::system(what))?;
        info!(target: "zbench::launch", rank, process = child.id(), "rank started");
        ranks.running.push(Running { rank, child, exit: None, sent: None });
    }
    Ok(ranks)
}

fn command(start: &Start, rank: usize) -> Command {
    let stdio = || if start.io == Io::Piped { Stdio::piped() } else { Stdio::inherit() };
    let mut command = Command::new(&start.program);
    command
        .args(&start.arguments)
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", start.size.to_string())
        .env("LOCAL_RANK", (rank - start.ranks.start).to_string())
        .env("LOCAL_WORLD_SIZE", start.ranks.len().to_string())
        .env("MASTER_ADDR", &start.host)
        .env("MASTER_PORT", start.port.to_string())
        .env("ZBENCH_TOKEN", &start.token)
        .env_remove("ZBENCH_TOKEN_FILE")
        .env("ZBENCH_LAUNCHED", "1")
        .env("ZBENCH_PARENT", std::process::id().to_string())
        .stdin(if start.io == Io::Piped { Stdio::piped() } else { Stdio::null() })
        .stdout(stdio())
        .stderr(stdio())
        // A group of its own, so that Ctrl-C reaches the starting process alone, which then decides.
        .process_group(0);
    pass_on(&mut command);
    command
}

impl Ranks {
    /// The streams of the ranks, once, in the order of the ranks; nothing where they are inherited.
    pub fn streams(&mut self) -> Vec<Streams> {
        let take = |running: &mut Running| {
            let Child { stdin, stdout, stderr, .. } = &mut running.child;
            Some(Streams { stdin: stdin.take()?, stdout: stdout.take()?, stderr: stderr.take()? })
        };
        self.running.iter_mut().filter_map(take).collect()
    }

    /// Rank and process of each.
    pub fn pids(&self) -> Vec<(usize, u32)> {
        self.running.iter().map(|running| (running.rank, running.child.id())).collect()
    }

    /// Waits until all have ended. When one ends otherwise than well, the others have `grace` to notice; when `stop` is set
    /// they are interrupted. Who does not end then is ended.
    pub fn supervise(mut self, grace: Duration, stop: &AtomicBool) -> Vec<RankExit> {
        let mut deadline = None;
        let mut interrupted = false;
        while !self.poll() {
            if stop.load(Ordering::Relaxed) && !interrupted {
                interrupted = true;
                self.signal(Signal::INT);
                deadline = Some(Instant::now() + POLITE);
            }
            if deadline.is_none() && self.running.iter().any(Running::ended_badly) {
                deadline = Some(Instant::now() + grace);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.end();
                break;
            }
            std::thread::sleep(TICK);
        }
        self.exits()
    }

    /// Looks who has ended; true when all have.
    pub fn poll(&mut self) -> bool {
        self.running.iter_mut().for_each(Running::look);
        self.running.iter().all(|running| running.exit.is_some())
    }

    /// Those that have ended so far.
    pub fn exits(&self) -> Vec<RankExit> {
        let exit =
            |running: &Running| Some(RankExit { rank: running.rank, pid: running.child.id(), exit: running.exit? });
        self.running.iter().filter_map(exit).collect()
    }

    /// Sends one of them a signal that does not mean its end.
    pub fn tell(&self, rank: usize, signal: Signal) {
        let running = self.running.iter().find(|running| running.rank == rank && running.exit.is_none());
        if let Some(pid) = running.and_then(|running| Pid::from_raw(running.child.id() as i32)) {
            // Fails only when it is gone.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Ends whoever still runs, first politely. A stopped process hears only the last word.
    pub fn end(&mut self) {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + POLITE;
        while !self.poll() && Instant::now() < deadline {
            std::thread::sleep(TICK);
        }
        self.signal(Signal::KILL);
        for running in self.running.iter_mut().filter(|running| running.exit.is_none()) {
            // It cannot be ignored, so this wait is short.
            if let Ok(status) = running.child.wait() {
                running.note(status);
            }
        }
    }

    fn signal(&mut self, signal: Signal) {
        self.poll();
        for running in self.running.iter_mut().filter(|running| running.exit.is_none()) {
            if let Some(pid) = Pid::from_raw(running.child.id() as i32) {
                // Fails only when the group is gone.
                let _ = kill_process_group(pid, signal);
                running.sent = Some(signal);
            }
        }
    }
}

impl Running {
    fn look(&mut self) {
        if self.exit.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.note(status);
        }
    }

    fn note(&mut self, status: ExitStatus) {
        self.exit = Some(match (status.signal(), self.sent) {
            (Some(signal), Some(sent)) if sent.as_raw() == signal => Exit::Ended(signal),
            (Some(signal), _) => Exit::Signal(signal),
            (None, _) => Exit::Code(status.code().unwrap_or_default()),
        });
        info!(target: "zbench::launch", rank = self.rank, process = self.child.id(), exit = ?self.exit, "rank has ended");
    }

    fn ended_badly(&self) -> bool {
        self.exit.is_some_and(|exit| exit != Exit::Code(0))
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        if !self.poll() {
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three ranks that run a script of the shell.
    fn ranks(script: &str, io: Io) -> Ranks {
        let start = Start::here("/bin/sh".into(), vec!["-c".into(), script.into()], 3, io).unwrap();
        spawn(&start).unwrap()
    }

    fn exits(script: &str, grace: Duration, stop: &AtomicBool) -> Vec<Exit> {
        ranks(script, Io::Piped).supervise(grace, stop).iter().map(|exit| exit.exit).collect()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn each_rank_knows_who_it_is() {
        let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $ZBENCH_LAUNCHED $MASTER_ADDR $ZBENCH_TOKEN; \
                      test $MASTER_PORT -gt 0";
        let mut ranks = ranks(script, Io::Piped);
        let mut tokens = Vec::new();
        for (rank, mut streams) in ranks.streams().into_iter().enumerate() {
            let mut said = String::new();
            streams.stdout.read_to_string(&mut said).unwrap();
            let (who, token) = said.trim().rsplit_once(' ').unwrap();
            assert_eq!(who, format!("{rank}/3 {rank}/3 1 127.0.0.1"));
            tokens.push(token.to_string());
        }
        assert!(tokens[0].len() == 32 && tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
        assert!(ranks.streams().is_empty(), "they are there once");
        let exits = ranks.supervise(LONG, &AtomicBool::new(false));
        assert!(exits.iter().all(|exit| exit.exit == Exit::Code(0)), "{exits:?}");
        assert_ne!(fresh_token().unwrap(), fresh_token().unwrap());
    }

    #[test]
    fn others_are_ended_when_one_ends_badly() {
        let stop = AtomicBool::new(false);
        let grace = Duration::from_millis(100);
        let script = "test $RANK = 1 && exit 3; exec sleep 600";
        assert_eq!(exits(script, grace, &stop), [Exit::Ended(15), Exit::Code(3), Exit::Ended(15)]);
        let script = "test $RANK = 1 && kill -9 $$; trap '' TERM; while true; do sleep 0.05; done";
        assert_eq!(exits(script, grace, &stop), [Exit::Ended(9), Exit::Signal(9), Exit::Ended(9)]);
        // Who ends within the grace time ends by himself.
        let script = "test $RANK = 1 && exit 3; sleep 0.2";
        assert_eq!(exits(script, LONG, &stop), [Exit::Code(0), Exit::Code(3), Exit::Code(0)]);
    }

    #[test]
    fn ctrl_c_is_passed_on() {
        let stop = AtomicBool::new(true);
        let begin = Instant::now();
        // A job in the background of a shell ignores Ctrl-C, and so do its children: then the next signal ends them.
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim().to_string();
        let ignores = u64::from_str_radix(&ignored, 16).unwrap() & (1 << (2 - 1)) != 0;
        assert_eq!(exits("exec sleep 600", LONG, &stop), [Exit::Ended(if ignores { 15 } else { 2 }); 3]);
        assert!(begin.elapsed() < LONG);
    }

    #[test]
    fn what_is_dropped_is_ended() {
        let dropped = ranks("exec sleep 600", Io::Inherit);
        let pids = dropped.pids();
        drop(dropped);
        for (_, pid) in pids {
            assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is left over");
        }
    }

    #[test]
    fn what_cannot_be_started_is_named() {
        let start = Start::here("/nowhere/zbench".into(), Vec::new(), 2, Io::Inherit).unwrap();
        let said = spawn(&start).unwrap_err().to_string();
        assert!(said.contains("rank 0 cannot be started"), "{said}");
    }

    #[test]
    fn a_process_has_its_parent_and_those_above_it_as_ancestors() {
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get() as u32;
        assert!(is_ancestor(parent) && !is_ancestor(std::process::id()) && !is_ancestor(0));
    }

    #[test]
    fn exits_in_words() {
        let words = |exit| RankExit { rank: 2, pid: 77, exit }.to_string();
        assert_eq!(words(Exit::Signal(9)), "rank 2 (pid 77) was ended by signal 9 (SIGKILL)");
        assert_eq!(words(Exit::Code(1)), "rank 2 (pid 77) ended with exit status 1");
        assert_eq!(words(Exit::Ended(64)), "rank 2 (pid 77) was ended with signal 64");
    }
}
