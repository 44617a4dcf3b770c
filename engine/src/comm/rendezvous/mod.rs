//! How the processes of a run find each other: all call rank 0, which tells each who the others are.
//!
//! Nothing but a connection that speaks our protocol and knows the run's token counts. Everybody else is refused, noted
//! ([`Rendezvous::refused`]) and holds up nobody. The token keeps runs apart that share hosts and ports; it travels in the
//! clear, so it is no defence against somebody who can read the network.

pub(crate) mod caller;
pub(crate) mod door;
mod forming;
pub(crate) mod hello;

use caller::read_until;
use forming::{arrive, gather};
use hello::{TOKEN_BYTES, Token, printable};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

/// Most that one rank may give to an exchange.
pub const MAX_BLOB_BYTES: usize = 1 << 20;
/// Ports beyond the given one that rank 0 tries when it is taken: a launcher's own store may sit on it.
const MORE_PORTS: u16 = 7;
/// What the others wait longer than rank 0, so that they hear from it what went wrong.
const GRACE: Duration = Duration::from_secs(5);

/// Where and how the ranks of a run meet. All but `rank` must be the same on all of them.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// This process.
    pub rank: usize,
    /// How many there are.
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

/// Why the ranks did not meet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RendezvousError {
    /// What the launcher says cannot be.
    #[error("cannot meet as rank {rank} of {size}: {reason}")]
    Invalid {
        /// This rank.
        rank: usize,
        /// The world's size.
        size: usize,
        /// What is wrong.
        reason: String,
    },
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen at {address}: {reason}; give another address or port to the launcher")]
    Listen {
        /// Where it tried.
        address: String,
        /// Why not.
        reason: String,
    },
    /// Ranks that never came.
    #[error("rank(s) {missing:?} of {size} did not come to {address} within {seconds} s{note}")]
    Missing {
        /// Where rank 0 listened.
        address: String,
        /// Who did not come.
        missing: Vec<usize>,
        /// How many ranks there should be.
        size: usize,
        /// How long it waited.
        seconds: u64,
        /// What else happened at the port, if anything.
        note: String,
    },
    /// Rank 0 was not found.
    #[error("rank {rank} did not find rank 0 at {address} within {seconds} s; last: {last}")]
    Unreachable {
        /// This rank.
        rank: usize,
        /// Where it looked.
        address: String,
        /// How long.
        seconds: u64,
        /// What happened last.
        last: String,
    },
    /// Ranks of runs of different size met.
    #[error(
        "a formed world of another size than the launcher's: rank {rank} comes from a launch of {theirs} ranks, this is \
         one of {ours}; two launchers' variables may be mixed"
    )]
    WorldSize {
        /// The rank that has another size.
        rank: usize,
        /// This side's size.
        ours: usize,
        /// The other side's.
        theirs: usize,
    },
    /// Rank 0 does not let this rank in.
    #[error("rank 0 at {address} refused rank {rank}: {reason}")]
    Refused {
        /// This rank.
        rank: usize,
        /// Where rank 0 listens.
        address: String,
        /// Why.
        reason: String,
    },
    /// A rank left, or was not heard of any more, before all was said.
    #[error("rank {rank} on {host} left the rendezvous: {reason}")]
    Lost {
        /// Who.
        rank: usize,
        /// Its host, as far as known.
        host: String,
        /// How it was noticed.
        reason: String,
    },
    /// Rank 0 says that the run has ended.
    #[error("rank 0 ended the rendezvous: {reason}")]
    Ended {
        /// Why.
        reason: String,
    },
    /// A rank's message is larger than a rendezvous takes.
    #[error("a message of {bytes} bytes is too long for a rendezvous, which takes {MAX_BLOB_BYTES}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

/// The ranks of a run, who know each other.
#[derive(Debug)]
pub struct Rendezvous {
    rank: usize,
    size: usize,
    timeout: Duration,
    token: Token,
    /// Rank 0's connections to ranks 1.., or the others' one to rank 0.
    lines: Vec<TcpStream>,
    /// The address of this host that faces the others.
    local: IpAddr,
    people: People,
    refused: Vec<String>,
}

/// Who the ranks are.
#[derive(Debug, Default)]
struct People {
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
        let alone = (Vec::new(), IpAddr::V4(Ipv4Addr::LOCALHOST), Vec::new());
        let (lines, local, refused) = match (size, rank) {
            (1, _) => alone,
            (_, 0) => gather(meeting, &token)?,
            _ => arrive(meeting, &token)?,
        };
        for line in &lines {
            // A rank that reads nothing must not hold up an exchange for ever.
            let _ = line.set_write_timeout(Some(timeout.max(Duration::from_millis(1))));
        }
        let people = People::default();
        let mut met = Rendezvous { rank, size, timeout, token, lines, local, people, refused };
        let cards = met.exchange(card().as_bytes())?;
        met.people = People::read(&cards);
        Ok(met)
    }

    /// This process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The host name of each rank.
    pub fn hosts(&self) -> &[String] {
        &self.people.hosts
    }

    /// The process number of each rank, as it sees itself.
    pub fn pids(&self) -> &[u32] {
        &self.people.pids
    }

    /// Whether all ranks run under one kernel and see the same processes and network, so that they can share memory.
    pub fn one_host(&self) -> bool {
        self.people.one_host
    }

    /// Who came to rank 0's port and was not let in, and why. Empty on other ranks.
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

    /// Rank 0's side of an exchange.
    fn collect(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
        let deadline = Instant::now() + self.timeout;
        let mut blobs = vec![own.to_vec()];
        for rank in 1..self.size {
            let line = &mut self.lines[rank - 1];
            match read_blob(line, MAX_BLOB_BYTES, deadline) {
                Ok(blob) => blobs.push(blob),
                Err(error) => {
                    let host = self.people.hosts.get(rank).cloned().unwrap_or_else(|| peer(&self.lines[rank - 1]));
                    let lost = RendezvousError::Lost { rank, host, reason: error.to_string() };
                    dismiss(&mut self.lines, &lost.to_string());
                    return Err(lost);
                }
            }
        }
        let mut all = Vec::new();
        blobs.iter().for_each(|blob| append(&mut all, blob));
        for rank in 1..self.size {
            let sent = self.lines[rank - 1].write_all(&[0]).and_then(|()| write_blob(&mut self.lines[rank - 1], &all));
            if let Err(error) = sent {
                let lost = RendezvousError::Lost { rank, host: peer(&self.lines[rank - 1]), reason: error.to_string() };
                dismiss(&mut self.lines, &lost.to_string());
                return Err(lost);
            }
        }
        Ok(blobs)
    }

    /// The others' side of an exchange.
    fn hand_in(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
        let (size, deadline) = (self.size, Instant::now() + self.timeout + GRACE);
        let line = &mut self.lines[0];
        let host = peer(line);
        let lost = |error: io::Error| RendezvousError::Lost { rank: 0, host: host.clone(), reason: error.to_string() };
        // Where rank 0 has ended the run, its reason can still be read after a failed write.
        let sent = write_blob(line, own);
        let mut status = [0];
        read_until(line, &mut status, deadline).map_err(|error| lost(sent.err().unwrap_or(error)))?;
        let most = size * (MAX_BLOB_BYTES + 4);
        let all = read_blob(line, most, deadline).map_err(lost)?;
        if status != [0] {
            return Err(RendezvousError::Ended { reason: printable(&all) });
        }
        let blobs = split(&all).filter(|blobs| blobs.len() == size);
        blobs.ok_or_else(|| lost(io::Error::new(io::ErrorKind::InvalidData, "its list of ranks is no list")))
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// Tells all that are here why nothing comes of it. Who is gone already does not hear it.
fn dismiss<'a>(lines: impl IntoIterator<Item = &'a mut TcpStream>, reason: &str) {
    for line in lines {
        let _ = line.set_write_timeout(Some(Duration::from_secs(1)));
        let _ = line.write_all(&[1]).and_then(|()| write_blob(line, reason.as_bytes()));
    }
}

fn peer(line: &TcpStream) -> String {
    line.peer_addr().map_or_else(|_| "an unknown host".into(), |address| address.ip().to_string())
}

fn append(all: &mut Vec<u8>, blob: &[u8]) {
    all.extend_from_slice(&(blob.len() as u32).to_le_bytes());
    all.extend_from_slice(blob);
}

fn write_blob(line: &mut TcpStream, blob: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(4 + blob.len());
    append(&mut bytes, blob);
    line.write_all(&bytes)
}

fn read_blob(line: &mut TcpStream, most: usize, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    read_until(line, &mut len, deadline)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > most {
        let reason = format!("it announced {len} bytes, and {most} are the most");
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    let mut blob = vec![0; len];
    read_until(line, &mut blob, deadline)?;
    Ok(blob)
}

/// The blobs that `append` has put together.
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

/// What a rank says of itself: host name, process, and the views that must be shared to share memory.
fn card() -> String {
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
    card
}

impl People {
    fn read(cards: &[Vec<u8>]) -> People {
        let text: Vec<String> = cards.iter().map(|card| String::from_utf8_lossy(card).into_owned()).collect();
        let line = |card: &String, index: usize| printable(card.lines().nth(index).unwrap_or_default().as_bytes());
        let kernel = line(&text[0], 2);
        People {
            hosts: text.iter().map(|card| line(card, 0)).collect(),
            pids: text.iter().map(|card| line(card, 1).parse().unwrap_or(0)).collect(),
            one_host: text.len() == 1 || !kernel.is_empty() && text.iter().all(|card| line(card, 2) == kernel),
        }
    }
}
