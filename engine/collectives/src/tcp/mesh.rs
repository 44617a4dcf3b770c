//! The connections of one rank to all others: lanes for data, and a line on which ranks say what happens to them.

use super::TcpOptions;
use super::calls::Open;
use super::exchange::Staging;
use super::frame::Signature;
use super::lane::{Early, Lane, Socket};
use crate::rendezvous::acceptor::Acceptor;
use crate::rendezvous::allow_files;
use crate::rendezvous::caller::call;
use crate::rendezvous::hello::{Answer, Hello, Purpose};
use crate::{CommError, Rendezvous, RendezvousError, Result};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// More would only cost descriptors.
const MAX_SOCKETS: usize = 16;
/// How often a rank looks for callers.
const LOOK: Duration = Duration::from_micros(200);

pub(super) struct Mesh {
    pub rank: usize,
    /// By world rank. This rank's own has no connections.
    pub peers: Vec<Peer>,
    pub options: TcpOptions,
    pub ended: Option<CommError>,
    /// When this rank was last in a call.
    pub last: Instant,
    /// The call that the rank is inside, and waits for.
    pub current: Option<Signature>,
    /// All calls under way, of all groups.
    pub calls: Vec<Open>,
    /// What the next call is called on this rank.
    pub next_call: u64,
    /// The thread sleeps, watching what was of interest when it fell asleep.
    pub asleep: bool,
    /// The number that this rank's next group must at least have.
    pub next_group: u32,
    /// How long to look for bytes before sleeping; none where ranks have to share cores.
    pub spin: Duration,
    /// Staging of calls that are done, for calls to come.
    pub spare: Vec<Staging>,
}

pub(super) struct Peer {
    pub rank: usize,
    pub host: String,
    pub pid: u32,
    pub lanes: Vec<Lane>,
    /// `None` for this rank itself.
    pub control: Option<Socket>,
    /// What has come on `control` and is no whole message yet.
    pub heard: Vec<u8>,
    /// It has said that it wants nothing more.
    pub departed: bool,
    /// `control` is at its end.
    pub closed: bool,
    /// What it has said it is ready to take, in calls that this rank has not begun.
    pub wants: Vec<Signature>,
    /// What it will still say so about though it has been sent.
    pub owed: Vec<Signature>,
    /// Frames whose place is not known yet.
    pub early: Vec<Early>,
    /// It has answered that it waits in a call, since it was asked last.
    pub waits: bool,
}

impl Mesh {
    pub(super) fn connect(mut meeting: Rendezvous, options: TcpOptions) -> Result<Mesh> {
        let invalid = |reason: String| crate::invalid("tcp", reason);
        let sockets = options.sockets_per_peer;
        if !(1..=MAX_SOCKETS).contains(&sockets) {
            return Err(invalid(format!("{sockets} sockets per peer; 1 to {MAX_SOCKETS} are possible")));
        }
        let (rank, size) = (meeting.rank(), meeting.size());
        allow_files((size - 1) * (sockets + 1) + 1).map_err(invalid)?;
        let local = meeting.local_address();
        let failed = |error: std::io::Error| invalid(format!("cannot listen at {local}: {error}"));
        let listener = TcpListener::bind((local, 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let terms = format!("{sockets} sockets per peer, checksum {}", options.checksum);
        let cards = meeting.exchange(format!("{address}\n{terms}").as_bytes())?;
        let mut addresses = Vec::with_capacity(size);
        for (other, card) in cards.iter().enumerate() {
            let card = String::from_utf8_lossy(card);
            let (address, theirs) = card.split_once('\n').unwrap_or((&card, ""));
            if theirs != terms {
                return Err(invalid(format!("rank {other} was started with {theirs}, this rank with {terms}")));
            }
            let unreadable = |_| invalid(format!("rank {other} gives `{address}`, which is no address"));
            addresses.push(address.parse::<SocketAddr>().map_err(unreadable)?);
        }
        let (streams, _) = connections(&mut meeting, listener, &addresses, sockets + 1)?;
        meeting.exchange(&[])?; // all have come so far, or nobody goes on
        let mut peers = Vec::with_capacity(size);
        for (other, lanes) in streams.into_iter().enumerate() {
            let mut lanes = lanes.into_iter();
            peers.push(Peer {
                rank: other,
                host: meeting.hosts()[other].clone(),
                pid: meeting.pids()[other],
                control: lanes.next().map(Arc::new),
                lanes: lanes.map(Lane::new).collect(),
                heard: Vec::new(),
                departed: other == rank,
                closed: other == rank,
                wants: Vec::new(),
                owed: Vec::new(),
                early: Vec::new(),
                waits: false,
            });
        }
        let here = meeting.hosts().iter().filter(|host| **host == meeting.hosts()[rank]).count();
        let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
        let spin = if here <= cores { super::SPIN } else { Duration::ZERO };
        let (last, ended, current, next_group) = (Instant::now(), None, None, 1);
        let (calls, next_call, asleep, spare) = (Vec::new(), 0, false, Vec::new());
        Ok(Mesh { rank, peers, options, ended, last, current, calls, next_call, asleep, next_group, spin, spare })
    }
}

impl Peer {
    /// The process as errors name it.
    pub(super) fn process(&self) -> String {
        format!("host {}, pid {}", self.host, self.pid)
    }
}

/// By rank, all connections to it; and who was refused meanwhile.
pub(super) type Connections = (Vec<Vec<TcpStream>>, Vec<String>);

/// Calls all ranks below this one, then lets in those above: so every pair has one side that calls.
pub(super) fn connections(
    meeting: &mut Rendezvous,
    listener: TcpListener,
    addresses: &[SocketAddr],
    count: usize,
) -> Result<Connections, RendezvousError> {
    let (rank, size) = (meeting.rank(), meeting.size());
    let deadline = Instant::now() + meeting.timeout();
    let mut streams: Vec<Vec<Option<TcpStream>>> =
        (0..size).map(|other| (0..if other == rank { 0 } else { count }).map(|_| None).collect()).collect();
    for (other, lanes) in streams.iter_mut().enumerate().take(rank) {
        for (lane, stream) in lanes.iter_mut().enumerate() {
            let hello = Hello { purpose: Purpose::Data, lane: lane as u8, rank: rank as u32, size: size as u32 };
            *stream = Some(reach(meeting, addresses[other], other, hello, deadline)?);
        }
    }
    let listening = |error: std::io::Error| RendezvousError::Listen {
        address: addresses[rank].to_string(),
        reason: error.to_string(),
    };
    let at = addresses[rank].to_string();
    let mut acceptor = Acceptor::new(vec![listener], meeting.token().clone(), at).map_err(listening)?;
    loop {
        let absent = |other: &usize| streams[*other].iter().any(Option::is_none);
        let missing: Vec<usize> = (0..size).filter(absent).collect();
        if missing.is_empty() {
            break;
        }
        if Instant::now() >= deadline {
            let (address, seconds) = (addresses[rank].to_string(), meeting.timeout().as_secs());
            let note = " for data".to_owned();
            return Err(RendezvousError::Missing { address, missing, size, seconds, note });
        }
        meeting.check(LOOK)?;
        for conn in acceptor.arrivals() {
            let Hello { purpose, lane, rank: other, size: theirs } = conn.hello;
            let (other, lane) = (other as usize, usize::from(lane));
            let fits =
                purpose == Purpose::Data && theirs as usize == size && other > rank && other < size && lane < count;
            if fits {
                streams[other][lane] = acceptor.welcome(conn).ok().map(|(stream, _)| stream);
            } else {
                acceptor.refuse(conn, Answer::Refused(format!("rank {rank} expects no such connection")));
            }
        }
    }
    let streams: Vec<Vec<TcpStream>> = streams.into_iter().map(|lanes| lanes.into_iter().flatten().collect()).collect();
    for stream in streams.iter().flatten() {
        let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
        ready.map_err(listening)?;
    }
    Ok((streams, acceptor.into_refusals()))
}

/// Calls a rank that is known to listen, until it answers.
fn reach(
    meeting: &mut Rendezvous,
    address: SocketAddr,
    other: usize,
    hello: Hello,
    deadline: Instant,
) -> Result<TcpStream, RendezvousError> {
    loop {
        let last = match call(address, hello, meeting.token(), &address.to_string(), deadline) {
            Ok((stream, _)) => return Ok(stream),
            Err(missed) => missed,
        };
        if Instant::now() >= deadline {
            let reason = format!("rank {} could not connect to {address} for data: {last}", meeting.rank());
            return Err(RendezvousError::Lost { rank: other, host: meeting.hosts()[other].clone(), reason });
        }
        meeting.check(Duration::from_millis(20))?;
    }
}
