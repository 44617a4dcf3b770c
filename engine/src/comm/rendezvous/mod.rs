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
use hello::{Nonce, TOKEN_BYTES, Token, nonce, printable};
use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use wire::{Kind, Wire};

/// Most that one rank may give to an exchange.
pub const MAX_BLOB_BYTES: usize = 1 << 20;
/// Ports beyond the given one that rank 0 tries when it is taken: a launcher's own store may sit on it.
const MORE_PORTS: u16 = 7;
/// What the others wait longer than rank 0, so that they hear from it what went wrong.
const GRACE: Duration = Duration::from_secs(5);

/// Where and how the ranks of a run meet. All but `rank` must be the same on all of them.
#[derive(Clone, Debug)]
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
        }
        let alone = (Vec::new(), IpAddr::V4(Ipv4Addr::LOCALHOST), Vec::new());
        let (lines, local, refused) = match (size, rank) {
            (1, _) => alone,
            (_, 0) => gather(meeting, &token)?,
            _ => arrive(meeting, &token)?,
        };
        for line in &lines {
            // A rank that reads nothing must not hold up an exchange for ever.
            let _ = line.stream().set_write_timeout(Some(timeout.max(Duration::from_millis(1))));
        }
        let peers = Peers::default();
        let fresh = nonce().map_err(|error| invalid(&format!("/dev/urandom cannot be read ({error})")))?;
        let mut met = Rendezvous { rank, size, timeout, token, lines, local, peers, refused };
        let cards = met.exchange(card(&fresh).as_bytes())?;
        // Every rank's card has a random part, so no two meetings with one token have the same keys.
        met.token = met.token.derive("zbench world", &pack(&cards));
        met.peers = Peers::read(&cards);
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
        match self.rank {
            0 => self.collect(own),
            _ => self.hand_in(own),
        }
    }

    fn collect(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
        let deadline = Instant::now() + self.timeout;
        let mut blobs = vec![own.to_vec()];
        for rank in 1..self.size {
            let heard = self.lines[rank - 1].read(MAX_BLOB_BYTES, deadline);
            match heard.and_then(|(kind, blob)| if kind == Kind::Blob { Ok(blob) } else { Err(unclear()) }) {
                Ok(blob) => blobs.push(blob),
                Err(error) => {
                    let host = self.peers.hosts.get(rank).cloned().unwrap_or_else(|| peer(&self.lines[rank - 1]));
                    let lost = RendezvousError::Lost { rank, host, reason: error.to_string() };
                    dismiss(&mut self.lines, &lost.to_string());
                    return Err(lost);
                }
            }
        }
        let all = pack(&blobs);
        for rank in 1..self.size {
            if let Err(error) = self.lines[rank - 1].write(Kind::Blob, &all) {
                let lost = RendezvousError::Lost { rank, host: peer(&self.lines[rank - 1]), reason: error.to_string() };
                dismiss(&mut self.lines, &lost.to_string());
                return Err(lost);
            }
        }
        Ok(blobs)
    }

    fn hand_in(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
        let (size, deadline) = (self.size, Instant::now() + self.timeout + GRACE);
        let line = &mut self.lines[0];
        let host = peer(line);
        let lost = |error: io::Error| RendezvousError::Lost { rank: 0, host: host.clone(), reason: error.to_string() };
        // Where rank 0 has ended the run, its reason can still be read after a failed write.
        let sent = line.write(Kind::Blob, own);
        let heard = line.read(size * (MAX_BLOB_BYTES + 4), deadline);
        let (kind, all) = heard.map_err(|error| lost(sent.err().unwrap_or(error)))?;
        if kind == Kind::Dismissal {
            return Err(RendezvousError::Ended { reason: printable(&all) });
        }
        let blobs = split(&all).filter(|blobs| blobs.len() == size);
        blobs.ok_or_else(|| lost(unclear()))
    }
}

fn unclear() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it said what no rank says")
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// Where ranks meet at an address of their own host's loopback: whether the host reaches it, as it does not where that
/// interface is down. Nobody would come, and all would wait.
fn reach_loopback(host: &str) -> Result<(), String> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let ip = if bare == "localhost" { Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)) } else { bare.parse::<IpAddr>() };
    let Some(ip) = ip.ok().filter(IpAddr::is_loopback) else { return Ok(()) };
    let reached = TcpListener::bind((ip, 0))
        .and_then(|listener| TcpStream::connect_timeout(&listener.local_addr()?, Duration::from_secs(1)).map(drop));
    use io::ErrorKind::{AddrNotAvailable, HostUnreachable, NetworkUnreachable};
    match reached {
        // Other errors may pass, and the meeting tells of them.
        Err(error) if matches!(error.kind(), AddrNotAvailable | HostUnreachable | NetworkUnreachable) => Err(format!(
            "this host does not reach its own address {ip} ({error}); its loopback interface may be down, which \
             `ip link set lo up` mends"
        )),
        _ => Ok(()),
    }
}

/// Tells all that are here why nothing comes of it.
fn dismiss<'a>(lines: impl IntoIterator<Item = &'a mut Wire>, reason: &str) {
    lines.into_iter().for_each(|line| line.dismiss(reason));
}

fn peer(line: &Wire) -> String {
    line.stream().peer_addr().map_or_else(|_| "an unknown host".into(), |address| address.ip().to_string())
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

/// What a rank says of itself: host name, process, the views that must be shared to share memory, and something random.
fn card(fresh: &Nonce) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let space = |name: &str| {
        std::fs::read_link(format!("/proc/self/ns/{name}"))
            .map_or_else(|_| String::new(), |to| to.display().to_string())
    };
    let host = read("/proc/sys/kernel/hostname");
    let host = if host.is_empty() { "an unnamed host".to_owned() } else { host };
    let mut card = format!("{host}\n{}\n", std::process::id());
    let boot = read("/proc/sys/kernel/random/boot_id");
    if !boot.is_empty() {
        let _ = write!(card, "{boot} {} {}", space("pid"), space("net"));
    }
    let _ = write!(card, "\n{}", blake3::Hash::from_bytes(*fresh).to_hex());
    card
}

impl Peers {
    fn read(cards: &[Vec<u8>]) -> Peers {
        let text: Vec<String> = cards.iter().map(|card| String::from_utf8_lossy(card).into_owned()).collect();
        let line = |card: &String, index: usize| printable(card.lines().nth(index).unwrap_or_default().as_bytes());
        let kernel = line(&text[0], 2);
        Peers {
            hosts: text.iter().map(|card| line(card, 0)).collect(),
            pids: text.iter().map(|card| line(card, 1).parse().unwrap_or(0)).collect(),
            one_host: text.len() == 1 || !kernel.is_empty() && text.iter().all(|card| line(card, 2) == kernel),
        }
    }
}
