//! How the processes of a run find each other: all call rank 0, which tells each who the others are.
//!
//! Nothing but a connection that speaks our protocol and proves that it knows the run's token counts. Everybody else is
//! refused, noted ([`Rendezvous::refused`]) and holds up nobody. Both sides prove it ([`hello`]), and the token does not
//! travel: who listens at the port, or reads the network, learns nothing that lets it in. What is exchanged afterwards is
//! authenticated message by message; it is not encrypted.

pub(crate) mod acceptor;
pub(crate) mod caller;
mod forming;
pub(crate) mod hello;
#[cfg(test)]
mod tests;
mod wire;

use forming::{arrive, gather};
use hello::{Nonce, TOKEN_BYTES, Token, host_name, nonce, printable, process_on};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use wire::{Kind, Wire};

/// Most that one rank may give to an exchange.
pub const MAX_BLOB_BYTES: usize = 1 << 20;
/// Ports beyond the given one that rank 0 tries when it is taken: a launcher's own store may sit on it.
const MORE_PORTS: u16 = 7;
/// What the others wait longer than rank 0, so that they hear from it what went wrong.
const GRACE: Duration = Duration::from_secs(5);
/// How often a rank that waits looks at the stop flag.
const TICK: Duration = Duration::from_millis(50);
/// Open files that a process needs besides its connections to ranks.
const OTHER_FILES: usize = 8;
/// A soft limit of open files that is too low becomes this, where the hard one allows it.
const MANY_FILES: u64 = 65_536;

/// Where and how the ranks of a run meet. `size`, `host`, `port` and `token` must be the same on all of them.
#[derive(Clone, Debug, Default)]
pub struct Meeting {
    pub rank: usize,
    pub size: usize,
    /// Name or address of rank 0's host.
    pub host: String,
    /// Where rank 0 listens; the seven ports above it if it is taken.
    pub port: u16,
    /// Keeps this run apart from others; at most 256 bytes.
    pub token: String,
    /// How long a rank waits for the others.
    pub timeout: Duration,
    /// Whether rank 0 listens on all addresses of its host and not on those of `host` alone.
    pub everywhere: bool,
    /// The launcher's process on this host, in words; empty where it is unknown. Ranks of one launch on one host have the same.
    pub launcher: String,
    /// Ends the wait for other ranks when it is set.
    pub stop: Option<Arc<AtomicBool>>,
    /// Prints the line of a rank that has waited for some seconds.
    pub tell: Option<fn(&str)>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RendezvousError {
    #[error("cannot meet as rank {rank} of {size}: {reason}")]
    Invalid { rank: usize, size: usize, reason: String },
    #[error("rank 0 cannot listen at {address}: {reason}; give another address or port to the launcher")]
    Listen { address: String, reason: String },
    /// Ranks that never came.
    #[error("rank(s) {missing:?} of {size} did not come to {address} within {seconds} s{note}")]
    Missing { address: String, missing: Vec<usize>, size: usize, seconds: u64, note: String },
    #[error("rank {rank} did not find rank 0 at {address} within {seconds} s; last: {last}")]
    Unreachable { rank: usize, address: String, seconds: u64, last: String },
    /// Ranks of runs of different size met.
    #[error(
        "a formed world of another size than the launcher's: rank {rank} comes from a launch of {theirs} ranks, this is \
         one of {ours}; two launchers' variables may be mixed"
    )]
    WorldSize { rank: usize, ours: usize, theirs: usize },
    /// Rank 0 does not let this rank in.
    #[error("rank 0 at {address} refused rank {rank}: {reason}")]
    Refused { rank: usize, address: String, reason: String },
    /// A rank left, or was not heard of any more, before all was said.
    #[error("rank {rank} on {host} left the rendezvous: {reason}")]
    Lost { rank: usize, host: String, reason: String },
    /// Ranks of two launches met that know the same port and token.
    #[error("ranks of two launches met: {one}, {other}; give each launch a MASTER_PORT or ZBENCH_TOKEN of its own")]
    Foreign { one: String, other: String },
    /// The stop flag was set.
    #[error("rank {rank} was stopped while it waited for {awaited}")]
    Stopped { rank: usize, awaited: String },
    /// Rank 0 says that the run has ended.
    #[error("rank 0 ended the rendezvous: {reason}")]
    Ended { reason: String },
    /// A rank's message is larger than a rendezvous takes.
    #[error("a message of {bytes} bytes is too long for a rendezvous, which takes {MAX_BLOB_BYTES}")]
    TooLong { bytes: usize },
}

/// The ranks of a run, who know each other.
#[derive(Debug)]
pub struct Rendezvous {
    rank: usize,
    size: usize,
    timeout: Duration,
    stop: Option<Arc<AtomicBool>>,
    /// Of this meeting alone, for what follows from it.
    token: Token,
    /// Rank 0's connections to ranks 1.., or the others' one to rank 0.
    lines: Vec<Wire>,
    /// The address of this host that faces the others.
    local: IpAddr,
    peers: Peers,
    refused: Vec<String>,
}

#[derive(Debug, Default)]
struct Peers {
    hosts: Vec<String>,
    pids: Vec<u32>,
    one_host: bool,
    /// Where ranks of other hosts reach rank 0.
    address_of_first: Option<IpAddr>,
}

impl Rendezvous {
    /// Meets the other ranks: rank 0 listens, the others call it until it answers. Rank 0 of one does nothing.
    ///
    /// # Errors
    /// [`RendezvousError`] says what went wrong; all ranks that have met get one.
    pub fn join(meeting: &Meeting) -> Result<Rendezvous, RendezvousError> {
        let Meeting { rank, size, timeout, .. } = *meeting;
        let invalid = |reason: &str| RendezvousError::Invalid { rank, size, reason: reason.into() };
        if rank >= size || u32::try_from(size).is_err() {
            return Err(invalid("ranks count from 0 to one less than the size"));
        }
        let token = Token::new(&meeting.token).ok_or_else(|| invalid(&format!("a token has {TOKEN_BYTES} bytes")))?;
        if size > 1 && meeting.port == 0 {
            return Err(invalid("a port is needed, since the other ranks could not know which one the system chose"));
        }
        if size > 1 {
            reach_loopback(&meeting.host).map_err(|reason| invalid(&reason))?;
            allow_files(if rank == 0 { size } else { 1 }).map_err(|reason| invalid(&reason))?;
        }
        let (lines, local, refused) = match (size, rank) {
            (1, _) => (Vec::new(), IpAddr::V4(Ipv4Addr::LOCALHOST), Vec::new()),
            (_, 0) => gather(meeting, &token)?,
            _ => arrive(meeting, &token)?,
        };
        for line in &lines {
            // A rank that reads nothing must not hold up an exchange for ever.
            let _ = line.stream.set_write_timeout(Some(timeout.max(Duration::from_millis(1))));
        }
        let (peers, stop) = (Peers::default(), meeting.stop.clone());
        let fresh = nonce().map_err(|error| invalid(&format!("/dev/urandom cannot be read ({error})")))?;
        let mut met = Rendezvous { rank, size, timeout, stop, token, lines, local, peers, refused };
        let cards = met.exchange(card(&fresh, &meeting.launcher, local).as_bytes())?;
        // Every rank's card has a random part, so no two meetings with one token have the same keys.
        met.token = met.token.derive("zbench world", &pack(&cards));
        met.peers = Peers::read(&cards)?;
        // A rank on the host of rank 0 may have reached it over the loopback, where ranks of other hosts find nobody.
        if let (true, Some(outward)) = (local.is_loopback(), met.peers.address_of_first) {
            met.local = outward;
        }
        Ok(met)
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn hosts(&self) -> &[String] {
        &self.peers.hosts
    }

    /// The process number of each rank, as it sees itself.
    pub fn pids(&self) -> &[u32] {
        &self.peers.pids
    }

    /// Whether all ranks run under one kernel and see the same processes and network, so that they can share memory.
    pub fn one_host(&self) -> bool {
        self.peers.one_host
    }

    /// On rank 0, who came to its port and was not let in, and why. On the others, who was at the meeting's ports and spoke as
    /// rank 0 does without knowing the token.
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// This host's address on the way to the other ranks.
    pub fn local_address(&self) -> IpAddr {
        self.local
    }

    pub(crate) fn token(&self) -> &Token {
        &self.token
    }

    /// A secret of the ranks that have met, which they have without sending it: the same on all, another for each name and
    /// in each meeting.
    pub fn secret(&self, name: &str) -> String {
        self.token.derive("zbench secret", name.as_bytes()).to_hex()
    }

    /// How long a rank waits for the others.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What each rank gives, in rank order. All ranks call it the same number of times.
    ///
    /// # Errors
    /// A rank that does not take part within the timeout is named on all.
    pub fn exchange(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
        if own.len() > MAX_BLOB_BYTES {
            return Err(RendezvousError::TooLong { bytes: own.len() });
        }
        if self.rank > 0 {
            return self.hand_in(own);
        }
        let blobs = self.collect(own);
        if let Err(error) = &blobs {
            dismiss(&mut self.lines, error);
        }
        blobs
    }

    fn collect(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
        let deadline = Instant::now() + self.timeout;
        let mut blobs = vec![own.to_vec()];
        for rank in 1..self.size {
            self.await_words(rank, deadline)?;
            let heard = self.lines[rank - 1].read(MAX_BLOB_BYTES, deadline);
            let blob = heard.and_then(|(kind, blob)| if kind == Kind::Blob { Ok(blob) } else { Err(unclear()) });
            blobs.push(blob.map_err(|error| self.lost(rank, &error))?);
        }
        let all = pack(&blobs);
        for rank in 1..self.size {
            self.lines[rank - 1].write(Kind::Blob, &all).map_err(|error| self.lost(rank, &error))?;
        }
        Ok(blobs)
    }

    fn hand_in(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
        let deadline = Instant::now() + self.timeout + GRACE;
        // Where rank 0 has ended the run, its reason can still be read after a failed write.
        let sent = self.lines[0].write(Kind::Blob, own);
        self.await_words(0, deadline)?;
        let all = self.hear_first(deadline, sent.err())?;
        let blobs = split(&all).filter(|blobs| blobs.len() == self.size);
        blobs.ok_or_else(|| self.lost(0, &unclear()))
    }

    /// The next message of rank 0.
    fn hear_first(&mut self, deadline: Instant, earlier: Option<io::Error>) -> Result<Vec<u8>, RendezvousError> {
        let heard = self.lines[0].read(self.size * (MAX_BLOB_BYTES + 4), deadline);
        match heard.map_err(|error| self.lost(0, &earlier.unwrap_or(error)))? {
            (Kind::Dismissal, reason) => Err(RendezvousError::Ended { reason: printable(&reason) }),
            (Kind::Blob, all) => Ok(all),
        }
    }

    /// Waits until a rank has sent something or has gone. Rank 0 notices meanwhile that another rank goes: none does before an
    /// exchange is complete.
    fn await_words(&self, rank: usize, deadline: Instant) -> Result<(), RendezvousError> {
        loop {
            self.check_stop(|| format!("rank {rank}"))?;
            let left = deadline.saturating_duration_since(Instant::now());
            match self.stirred(Some(rank), if self.stop.is_some() { left.min(TICK) } else { left }) {
                Some(stirred) if stirred == rank => return Ok(()),
                Some(gone) => return Err(self.lost(gone, &closed_by_peer())),
                None if left.is_zero() => return Err(self.lost(rank, &io::Error::other("nothing came in time"))),
                None => {}
            }
        }
    }

    /// Waits for up to `wait` for bad news: a rank has gone, rank 0 has ended the run, the stop flag is set. For times when no
    /// rank has anything else to say.
    pub(crate) fn check(&mut self, wait: Duration) -> Result<(), RendezvousError> {
        self.check_stop(|| "the connections of the others".into())?;
        match self.stirred((self.rank > 0).then_some(0), wait) {
            None => Ok(()),
            Some(0) => {
                self.hear_first(Instant::now() + self.timeout, None)?;
                Err(self.lost(0, &unclear()))
            }
            Some(gone) => {
                let lost = self.lost(gone, &closed_by_peer());
                dismiss(&mut self.lines, &lost);
                Err(lost)
            }
        }
    }

    fn check_stop(&self, awaited: impl FnOnce() -> String) -> Result<(), RendezvousError> {
        let stopped = || RendezvousError::Stopped { rank: self.rank, awaited: awaited() };
        if is_set(&self.stop) { Err(stopped()) } else { Ok(()) }
    }

    /// A rank whose connection is closed, or `wanted` when it has sent something, within `wait`.
    fn stirred(&self, wanted: Option<usize>, wait: Duration) -> Option<usize> {
        let ranks = if self.rank == 0 { 1..self.size } else { 0..1 };
        let flags = |rank| if Some(rank) == wanted { PollFlags::IN | PollFlags::RDHUP } else { PollFlags::RDHUP };
        let lines = ranks.clone().zip(&self.lines);
        let mut fds: Vec<PollFd<'_>> = lines.map(|(rank, line)| PollFd::new(&line.stream, flags(rank))).collect();
        // A signal interrupts it, and the caller looks again.
        poll(&mut fds, Some(&Timespec::try_from(wait).ok()?)).ok()?;
        let stirred = |rank: &usize| !fds[rank.saturating_sub(1)].revents().is_empty();
        wanted.filter(stirred).or_else(|| ranks.clone().find(stirred))
    }

    fn lost(&self, rank: usize, error: &io::Error) -> RendezvousError {
        let address = self.lines[rank.saturating_sub(1)].stream.peer_addr();
        let host = match (self.peers.hosts.get(rank), address) {
            (Some(host), _) => host.clone(),
            (None, Ok(address)) => address.ip().to_string(),
            (None, Err(_)) => "an unknown host".into(),
        };
        RendezvousError::Lost { rank, host, reason: error.to_string() }
    }
}

fn is_set(stop: &Option<Arc<AtomicBool>>) -> bool {
    stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
}

fn closed_by_peer() -> io::Error {
    io::Error::other("the connection was closed")
}

fn unclear() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it said what no rank says")
}

/// Whether this process may open `more` files besides those that are open. The soft limit is raised as far as the hard one
/// allows.
pub(crate) fn allow_files(more: usize) -> Result<(), String> {
    // The listing opens one itself.
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1));
    let limit = getrlimit(Resource::Nofile);
    let raised = raised_limit(limit, (open + more + OTHER_FILES) as u64)?;
    raised.map_or(Ok(()), |raised| {
        setrlimit(Resource::Nofile, raised).map_err(|error| format!("ulimit -n cannot be raised ({error})"))
    })
}

/// The limit that allows so many open files, where the present one does not.
fn raised_limit(limit: Rlimit, needed: u64) -> Result<Option<Rlimit>, String> {
    let most = limit.maximum.unwrap_or(u64::MAX);
    match limit.current {
        Some(current) if current < needed && most < needed => Err(format!(
            "its connections to the other ranks need {needed} open files and {current} are allowed; raise the limit with \
             ulimit -n {needed}, or ask for fewer ranks"
        )),
        Some(current) if current < needed => {
            Ok(Some(Rlimit { current: Some(needed.max(MANY_FILES).min(most)), ..limit }))
        }
        _ => Ok(None),
    }
}

/// Where ranks meet at an address of their own host's loopback: whether the host reaches it, as it does not where that
/// interface is down or has no such address. Nobody would come, and all would wait.
fn reach_loopback(host: &str) -> Result<(), String> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let both = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let wanted = match bare.parse::<IpAddr>() {
        Ok(ip) if ip.is_loopback() => vec![ip],
        Err(_) if bare == "localhost" => both.to_vec(),
        _ => return Ok(()),
    };
    let reach = |ip: &IpAddr| {
        let reached = TcpListener::bind((*ip, 0))
            .and_then(|listener| TcpStream::connect_timeout(&listener.local_addr()?, Duration::from_secs(1)).map(drop));
        use io::ErrorKind::{AddrNotAvailable, HostUnreachable, NetworkUnreachable};
        match reached {
            // Other errors may pass, and the meeting tells of them.
            Err(error) if matches!(error.kind(), AddrNotAvailable | HostUnreachable | NetworkUnreachable) => Err(error),
            _ => Ok(()),
        }
    };
    let failed: Vec<io::Error> = wanted.iter().filter_map(|ip| reach(ip).err()).collect();
    if failed.len() < wanted.len() {
        return Ok(());
    }
    let other = both.iter().find(|ip| !wanted.contains(ip) && reach(ip).is_ok());
    Err(unreachable(wanted[0], &failed[0], other))
}

/// Why ranks cannot meet at an address of the loopback; `other` is one that this host reaches.
fn unreachable(ip: IpAddr, error: &io::Error, other: Option<&IpAddr>) -> String {
    let advice = match other {
        Some(other) => format!(
            "its loopback interface has {other} instead: set MASTER_ADDR={other} for all ranks, or add the address with \
             `ip address add {ip} dev lo`"
        ),
        None => "its loopback interface may be down, which `ip link set lo up` mends".into(),
    };
    format!("this host does not reach its own address {ip} ({error}); {advice}")
}

/// Tells all that are here why nothing comes of it, without waiting long for anyone who does not read.
fn dismiss(lines: &mut [Wire], reason: &RendezvousError) {
    for line in lines {
        let _ = line.stream.set_write_timeout(Some(Duration::from_secs(1)));
        // Who is gone already does not hear it.
        let _ = line.write(Kind::Dismissal, reason.to_string().as_bytes());
    }
}

/// Blobs behind each other, each after its length.
fn pack(blobs: &[Vec<u8>]) -> Vec<u8> {
    let mut all = Vec::new();
    for blob in blobs {
        all.extend_from_slice(&(blob.len() as u32).to_le_bytes());
        all.extend_from_slice(blob);
    }
    all
}

/// The blobs that [`pack`] has put together.
fn split(mut all: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut blobs = Vec::new();
    while !all.is_empty() {
        let (len, rest) = all.split_first_chunk::<4>()?;
        let (blob, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        blobs.push(blob.to_vec());
        all = rest;
    }
    Some(blobs)
}

/// What a rank says of itself: host name, process, the views that must be shared to share memory, something random, its
/// launcher and its address.
fn card(fresh: &Nonce, launcher: &str, local: IpAddr) -> String {
    let space = |name: &str| {
        std::fs::read_link(format!("/proc/self/ns/{name}"))
            .map_or_else(|_| String::new(), |to| to.display().to_string())
    };
    let mut card = format!("{}\n{}\n", host_name(), std::process::id());
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if !boot.trim().is_empty() {
        let _ = write!(card, "{} {} {}", boot.trim(), space("pid"), space("net"));
    }
    let _ = write!(card, "\n{}\n{launcher}\n{local}", blake3::Hash::from_bytes(*fresh).to_hex());
    card
}

impl Peers {
    /// # Errors
    /// Two ranks of one host have different launchers.
    fn read(cards: &[Vec<u8>]) -> Result<Peers, RendezvousError> {
        let text: Vec<String> = cards.iter().map(|card| String::from_utf8_lossy(card).into_owned()).collect();
        let line = |card: &String, index: usize| printable(card.lines().nth(index).unwrap_or_default().as_bytes());
        let kernel = line(&text[0], 2);
        let peers = Peers {
            hosts: text.iter().map(|card| line(card, 0)).collect(),
            pids: text.iter().map(|card| line(card, 1).parse().unwrap_or(0)).collect(),
            one_host: text.len() == 1 || !kernel.is_empty() && text.iter().all(|card| line(card, 2) == kernel),
            address_of_first: line(&text[0], 5).parse().ok().filter(|address: &IpAddr| !address.is_loopback()),
        };
        let mut launchers = BTreeMap::new();
        for (rank, card) in text.iter().enumerate() {
            let (kernel, launcher) = (line(card, 2), line(card, 4));
            if kernel.is_empty() || launcher.is_empty() {
                continue;
            }
            let (first, expected) = launchers.entry(kernel).or_insert_with(|| (rank, launcher.clone()));
            if *expected != launcher {
                let started = |rank: usize, by: &str| {
                    format!("rank {rank} ({}) was started by {by}", process_on(peers.pids[rank], &peers.hosts[rank]))
                };
                return Err(RendezvousError::Foreign {
                    one: started(rank, &launcher),
                    other: started(*first, expected),
                });
            }
        }
        Ok(peers)
    }
}
