//! The first step: rank 0 waits for the others, and the others look for rank 0.

use super::acceptor::{Acceptor, PendingConn};
use super::caller::{Missed, call};
use super::hello::{Answer, Hello, Proof, Purpose, Token, host_name, place, process_on};
use super::wire::{End, Wire};
use super::{MORE_PORTS, Meeting, RendezvousError, dismiss, is_set};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How often rank 0 looks for callers, and the shortest and longest time between a rank's calls.
const LOOK: Duration = Duration::from_millis(1);
const CALLS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// A rank says for whom it waits after this time, or half of its timeout where that is less.
const TELL: Duration = Duration::from_secs(5);

/// A rank's wait for the others.
struct Wait<'m> {
    meeting: &'m Meeting,
    deadline: Instant,
    /// When it says for whom it waits, unless it has.
    tells: Option<Instant>,
}

impl Wait<'_> {
    fn begin(meeting: &Meeting) -> Wait<'_> {
        let now = Instant::now();
        Wait { meeting, deadline: now + meeting.timeout, tells: Some(now + TELL.min(meeting.timeout / 2)) }
    }

    /// Whether the time is over.
    ///
    /// # Errors
    /// The stop flag is set.
    fn is_over(&mut self, awaited: impl FnOnce() -> String) -> Result<bool, RendezvousError> {
        let (rank, now) = (self.meeting.rank, Instant::now());
        if is_set(&self.meeting.stop) {
            return Err(RendezvousError::Stopped { rank, awaited: awaited() });
        }
        if self.tells.is_some_and(|at| now >= at) {
            self.tells = None;
            if let Some(tell) = self.meeting.tell {
                tell(&format!("rank {rank} waits for {}", awaited()));
            }
            return Ok(false);
        }
        Ok(now >= self.deadline)
    }
}

/// Lines, this host's address, and who else was there.
type Formed = (Vec<Wire>, IpAddr, Vec<String>);

/// What both sides know the meeting's place as. Addresses may be translated between the two, ports are not: rank 0 listens
/// where the others call.
fn known_as(port: u16) -> String {
    format!("port {port}")
}

/// A rank that has come: its connection, process and host.
type Seat = Option<(Wire, String)>;

/// Rank 0's side: returns when all others are here.
pub(super) fn gather(meeting: &Meeting, token: &Token) -> Result<Formed, RendezvousError> {
    let mut wait = Wait::begin(meeting);
    let (listeners, address, elsewhere) = listen(meeting, &mut wait)?;
    let failed = |error: io::Error| RendezvousError::Listen { address: address.clone(), reason: error.to_string() };
    let port = listeners[0].local_addr().map_err(failed)?.port();
    let mut acceptor = Acceptor::new(listeners, token.clone(), known_as(port)).map_err(failed)?;
    let mut seats: Vec<Seat> = (1..meeting.size).map(|_| None).collect();
    let mut left = Vec::new();
    let size = meeting.size;
    let mut all_come = || loop {
        if seats.iter().all(Option::is_some) && absent(&mut seats, &mut left).is_empty() {
            return Ok(());
        }
        let awaited = || {
            let missing = absent(&mut seats, &mut left);
            format!("rank(s) {missing:?} of {size} at {address}{}", note(elsewhere, acceptor.refusals(), &left))
        };
        if wait.is_over(awaited)? {
            let (missing, seconds) = (absent(&mut seats, &mut left), meeting.timeout.as_secs());
            let note = note(elsewhere, acceptor.refusals(), &left);
            return Err(RendezvousError::Missing { address: address.clone(), missing, size, seconds, note });
        }
        acceptor.arrivals().into_iter().try_for_each(|conn| admit(size, conn, token, &mut acceptor, &mut seats))?;
        std::thread::sleep(LOOK);
    };
    let formed = all_come();
    let mut lines: Vec<Wire> = seats.into_iter().flatten().map(|(line, _)| line).collect();
    if let Err(error) = formed {
        dismiss(&mut lines, &error);
        return Err(error);
    }
    // An address that ranks of other hosts reach, where there are any.
    let outward = lines.iter().map(local_address).find(|address| !address.is_loopback());
    let local = outward.unwrap_or_else(|| local_address(&lines[0]));
    Ok((lines, local, acceptor.into_refusals()))
}

fn local_address(line: &Wire) -> IpAddr {
    line.stream.local_addr().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip().to_canonical())
}

/// The ranks that are not here. Who has left again has not arrived.
fn absent(seats: &mut [Seat], left: &mut Vec<usize>) -> Vec<usize> {
    for (rank, seat) in (1..).zip(seats.iter_mut()) {
        if seat.as_ref().is_some_and(|(line, _)| closed(line)) {
            *seat = None;
            left.extend((!left.contains(&rank)).then_some(rank));
        }
    }
    let missing: Vec<usize> = (1..).zip(seats).filter(|(_, seat)| seat.is_none()).map(|(rank, _)| rank).collect();
    left.retain(|rank| missing.contains(rank));
    missing
}

/// Lets a rank in, or says why not. An error ends the run: the launch itself is wrong.
fn admit(
    size: usize,
    conn: PendingConn,
    token: &Token,
    acceptor: &mut Acceptor,
    seats: &mut [Seat],
) -> Result<(), RendezvousError> {
    let Hello { purpose, rank, size: theirs, .. } = conn.hello;
    let (rank, theirs) = (rank as usize, theirs as usize);
    if theirs != size {
        acceptor.refuse(conn, Answer::Size(size as u32));
        return Err(RendezvousError::WorldSize { rank, ours: size, theirs });
    }
    // Somebody who has left may come back, as a launcher's restarted process does.
    let here = || match rank {
        0 => Some(process_on(std::process::id(), &host_name())),
        _ => seats[rank - 1].as_ref().filter(|(line, _)| !closed(line)).map(|(_, who)| who.clone()),
    };
    let refusal = if purpose != Purpose::Meeting {
        Some("this is where ranks meet, not where they send data".into())
    } else if rank >= size {
        Some(format!("there is no rank {rank} of {size}"))
    } else {
        here().map(|who| {
            format!(
                "rank {rank} is here already, as {who}; two processes have the same rank: give each launch a MASTER_PORT or \
                 ZBENCH_TOKEN of its own"
            )
        })
    };
    if let Some(reason) = refusal {
        acceptor.refuse(conn, Answer::Refused(reason));
        return Ok(());
    }
    let who = conn.who.clone();
    // Who goes while it is let in counts as not arrived.
    let welcomed = acceptor.welcome(conn).ok();
    seats[rank - 1] = welcomed.map(|(stream, proof)| (Wire::new(stream, End::Acceptor, token, &proof), who));
    Ok(())
}

/// Whether the other side has closed the connection.
fn closed(line: &Wire) -> bool {
    let line = &line.stream;
    let peeked = line.set_nonblocking(true).and_then(|()| line.peek(&mut [0]));
    let open = line.set_nonblocking(false).is_ok();
    !open || peeked.map_or_else(|error| error.kind() != ErrorKind::WouldBlock, |count| count == 0)
}

/// What may explain that ranks did not come.
fn note(elsewhere: bool, refused: &[String], left: &[usize]) -> String {
    let mut note = String::new();
    if !left.is_empty() {
        note.push_str(&format!("; rank(s) {left:?} had come and went away"));
    }
    if elsewhere {
        note.push_str("; the address is none of this host's own, so rank 0 may be on another host than they call");
    }
    if let Some(last) = refused.last() {
        note.push_str(&format!("; refused {} connection(s), the last {last}", refused.len()));
    }
    note
}

/// Listens at the meeting's port or, where it is taken, at the next that is free. Also says where, and whether the
/// meeting's address is none of this host's own, as behind a network's translation.
fn listen(meeting: &Meeting, wait: &mut Wait<'_>) -> Result<(Vec<TcpListener>, String, bool), RendezvousError> {
    let (host, port) = (meeting.host.as_str(), meeting.port);
    let failed = |reason: String| RendezvousError::Listen { address: format!("{host}:{port}"), reason };
    let addresses = loop {
        let all = if meeting.everywhere { Ok(Vec::new()) } else { resolve(host, port) };
        match all {
            Ok(addresses) => break addresses,
            Err(error) if wait.is_over(|| format!("an address to listen at: {error}"))? => return Err(failed(error)),
            Err(_) => std::thread::sleep(CALLS.1),
        }
    };
    for port in ports(port) {
        match listen_at(&addresses, port) {
            Ok((listeners, elsewhere)) => {
                let address = match addresses.first() {
                    Some(first) => place(host, SocketAddr::new(first.ip(), port)),
                    None => format!("{host}:{port} (on all addresses of {})", host_name()),
                };
                return Ok((listeners, address, elsewhere && !meeting.everywhere));
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(failed(error.to_string())),
        }
    }
    Err(failed(format!("it and the {MORE_PORTS} ports above are taken")))
}

/// Listens at those of the addresses that are this host's own; where none is, everywhere (`true`).
fn listen_at(addresses: &[SocketAddr], port: u16) -> io::Result<(Vec<TcpListener>, bool)> {
    let bound = addresses.iter().map(|address| {
        let mut address = *address;
        address.set_port(port);
        TcpListener::bind(address)
    });
    let own = bound.filter(|bound| !matches!(bound, Err(error) if error.kind() == ErrorKind::AddrNotAvailable));
    let listeners: Vec<TcpListener> = own.collect::<io::Result<_>>()?;
    if listeners.is_empty() { Ok((listen_everywhere(port)?, true)) } else { Ok((listeners, false)) }
}

/// On all addresses of this host. A socket of version 6 serves version 4 too, unless the system is set otherwise.
fn listen_everywhere(port: u16) -> io::Result<Vec<TcpListener>> {
    let of_version_4 = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
        Ok(listener) => Ok([Some(listener), of_version_4().ok()].into_iter().flatten().collect()),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Err(error),
        Err(_) => Ok(vec![of_version_4()?]),
    }
}

/// The others' side: calls the meeting's port and those above it in turn, until rank 0 lets this rank in.
pub(super) fn arrive(meeting: &Meeting, token: &Token) -> Result<Formed, RendezvousError> {
    let Meeting { rank, size, ref host, port, timeout, .. } = *meeting;
    let mut wait = Wait::begin(meeting);
    let deadline = wait.deadline;
    let hello = Hello { purpose: Purpose::Meeting, lane: 0, rank: rank as u32, size: size as u32 };
    let mut last = String::new();
    let mut pause = CALLS.0;
    // Who spoke as rank 0 does and was not, once for each port.
    let mut impostors: Vec<(u16, String)> = Vec::new();
    loop {
        let mut silent = 0;
        for port in ports(port) {
            let address = format!("{host}:{port}");
            match call_host(host, port, hello, token, deadline) {
                Ok((stream, proof)) => {
                    let line = Wire::new(stream, End::Caller, token, &proof);
                    let local = local_address(&line);
                    return Ok((vec![line], local, impostors.into_iter().map(|(_, note)| note).collect()));
                }
                Err(Missed::Denied(reason)) => return Err(RendezvousError::Refused { rank, address, reason }),
                Err(Missed::Size(theirs)) => {
                    return Err(RendezvousError::WorldSize { rank: 0, ours: size, theirs: theirs as usize });
                }
                // That nobody listens at the ports above says nothing.
                Err(Missed::Refused(_)) if port != meeting.port => {}
                Err(missed) => {
                    last = format!("{address}: {missed}");
                    if matches!(missed, Missed::Impostor(_)) && impostors.iter().all(|(known, _)| *known != port) {
                        impostors.push((port, last.clone()));
                    }
                    silent += usize::from(matches!(missed, Missed::Silent(_)));
                    if silent == 2 {
                        break; // the host is silent, not one process on it
                    }
                }
            }
        }
        let address = || match resolve(host, port) {
            Ok(all) => all.first().map_or_else(String::new, |first| place(host, *first)),
            Err(_) => format!("{host}:{port}"),
        };
        if wait.is_over(|| format!("rank 0 at {}; last: {last}", address()))? || Instant::now() + pause >= deadline {
            let address = address();
            let before =
                impostors.iter().filter(|(_, note)| *note != last).map(|(_, note)| format!("; before: {note}"));
            let last = format!("{last}{}", before.collect::<String>());
            return Err(RendezvousError::Unreachable { rank, address, seconds: timeout.as_secs(), last });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(CALLS.1);
    }
}

/// Calls all addresses that a host's name stands for.
fn call_host(
    host: &str,
    port: u16,
    hello: Hello,
    token: &Token,
    deadline: Instant,
) -> Result<(TcpStream, Proof), Missed> {
    let mut missed = Missed::Refused("the name has no address".into());
    for address in resolve(host, port).map_err(Missed::Refused)? {
        match call(address, hello, token, &known_as(port), deadline) {
            decided @ (Ok(_) | Err(Missed::Denied(_) | Missed::Size(_))) => return decided,
            Err(undecided) => missed = undecided,
        }
    }
    Err(missed)
}

fn ports(first: u16) -> impl Iterator<Item = u16> {
    first..=first.saturating_add(MORE_PORTS)
}

/// A host's addresses, each once.
fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let found = (bare, port).to_socket_addrs().map_err(|error| format!("{host} is no known host ({error})"))?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() { Err(format!("{host} has no address")) } else { Ok(addresses) }
}
