//! The first step: rank 0 waits for the others, and the others look for rank 0.

use super::acceptor::{Acceptor, PendingConn};
use super::caller::{Missed, call};
use super::hello::{Answer, Hello, Proof, Purpose, Token, place};
use super::wire::{End, Wire};
use super::{MORE_PORTS, Meeting, RendezvousError, dismiss};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How often rank 0 looks for callers, and the shortest and longest time between a rank's calls.
const LOOK: Duration = Duration::from_millis(1);
const CALLS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// Lines, this host's address, and who else was there.
type Formed = (Vec<Wire>, IpAddr, Vec<String>);

/// What both sides know the meeting's place as. Addresses may be translated between the two, ports are not: rank 0 listens
/// where the others call.
fn known_as(port: u16) -> String {
    format!("port {port}")
}

/// Rank 0's side: returns when all others are here.
pub(super) fn gather(meeting: &Meeting, token: &Token) -> Result<Formed, RendezvousError> {
    let deadline = Instant::now() + meeting.timeout;
    let (listeners, address, elsewhere) = listen(meeting, deadline)?;
    let failed = |error: io::Error| RendezvousError::Listen { address: address.clone(), reason: error.to_string() };
    let port = listeners[0].local_addr().map_err(failed)?.port();
    let mut acceptor = Acceptor::new(listeners, token.clone(), known_as(port)).map_err(failed)?;
    let mut lines: Vec<Option<Wire>> = (1..meeting.size).map(|_| None).collect();
    loop {
        if lines.iter().all(Option::is_some) {
            // Who has left again has not arrived.
            lines.iter_mut().filter(|line| line.as_ref().is_some_and(closed)).for_each(|line| *line = None);
            if lines.iter().all(Option::is_some) {
                break;
            }
        }
        if Instant::now() >= deadline {
            let missing = (1..meeting.size).filter(|rank| lines[rank - 1].is_none()).collect();
            let error = RendezvousError::Missing {
                address,
                missing,
                size: meeting.size,
                seconds: meeting.timeout.as_secs(),
                note: note(elsewhere, &acceptor.into_refusals()),
            };
            dismiss(lines.iter_mut().flatten(), &error.to_string());
            return Err(error);
        }
        for conn in acceptor.arrivals() {
            if let Err(error) = admit(meeting.size, conn, token, &mut acceptor, &mut lines) {
                dismiss(lines.iter_mut().flatten(), &error.to_string());
                return Err(error);
            }
        }
        std::thread::sleep(LOOK);
    }
    let lines: Vec<Wire> = lines.into_iter().flatten().collect();
    let local = lines[0].stream().local_addr().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip());
    Ok((lines, local, acceptor.into_refusals()))
}

/// Lets a rank in, or says why not. An error ends the run: the launch itself is wrong.
fn admit(
    size: usize,
    conn: PendingConn,
    token: &Token,
    acceptor: &mut Acceptor,
    lines: &mut [Option<Wire>],
) -> Result<(), RendezvousError> {
    let Hello { purpose, rank, size: theirs, .. } = conn.hello;
    let (rank, theirs) = (rank as usize, theirs as usize);
    if theirs != size {
        acceptor.refuse(conn, Answer::Size(size as u32));
        return Err(RendezvousError::WorldSize { rank, ours: size, theirs });
    }
    // Somebody who has left may come back, as a launcher's restarted process does.
    let is_here = |rank: usize| rank == 0 || lines[rank - 1].as_ref().is_some_and(|line| !closed(line));
    let refusal = if purpose != Purpose::Meeting {
        Some("this is where ranks meet, not where they send data".into())
    } else if rank >= size {
        Some(format!("there is no rank {rank} of {size}"))
    } else {
        is_here(rank).then(|| format!("rank {rank} is here already; two processes have the same rank"))
    };
    if let Some(reason) = refusal {
        acceptor.refuse(conn, Answer::Refused(reason));
        return Ok(());
    }
    // Who goes while it is let in counts as not arrived.
    lines[rank - 1] =
        acceptor.welcome(conn).ok().map(|(stream, proof)| Wire::new(stream, End::Acceptor, token, &proof));
    Ok(())
}

/// Whether the other side has closed the connection.
fn closed(line: &Wire) -> bool {
    let line = line.stream();
    let peeked = line.set_nonblocking(true).and_then(|()| line.peek(&mut [0]));
    let open = line.set_nonblocking(false).is_ok();
    !open || peeked.map_or_else(|error| error.kind() != ErrorKind::WouldBlock, |count| count == 0)
}

/// What may explain that ranks did not come.
fn note(elsewhere: bool, refused: &[String]) -> String {
    let mut note = String::new();
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
fn listen(meeting: &Meeting, deadline: Instant) -> Result<(Vec<TcpListener>, String, bool), RendezvousError> {
    let (host, port) = (meeting.host.as_str(), meeting.port);
    let failed = |reason: String| RendezvousError::Listen { address: format!("{host}:{port}"), reason };
    let addresses = loop {
        match resolve(host, port) {
            Ok(addresses) => break addresses,
            Err(error) if Instant::now() >= deadline => return Err(failed(error)),
            Err(_) => std::thread::sleep(CALLS.1),
        }
    };
    for port in ports(port) {
        match listen_at(&addresses, port) {
            Ok((listeners, elsewhere)) => {
                let at = SocketAddr::new(addresses[0].ip(), port);
                return Ok((listeners, place(host, at), elsewhere));
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(failed(error.to_string())),
        }
    }
    Err(failed(format!("it and the {MORE_PORTS} ports above are taken")))
}

fn listen_at(addresses: &[SocketAddr], port: u16) -> io::Result<(Vec<TcpListener>, bool)> {
    let mut listeners = Vec::new();
    for mut address in addresses.iter().copied() {
        address.set_port(port);
        match TcpListener::bind(address) {
            Ok(listener) => listeners.push(listener),
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {}
            Err(error) => return Err(error),
        }
    }
    if !listeners.is_empty() {
        return Ok((listeners, false));
    }
    let any = if addresses.iter().any(SocketAddr::is_ipv4) {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    };
    Ok((vec![TcpListener::bind(SocketAddr::new(any, port))?], true))
}

/// The others' side: calls the meeting's port and those above it in turn, until rank 0 lets this rank in.
pub(super) fn arrive(meeting: &Meeting, token: &Token) -> Result<Formed, RendezvousError> {
    let Meeting { rank, size, ref host, port, timeout, .. } = *meeting;
    let deadline = Instant::now() + timeout;
    let hello = Hello { purpose: Purpose::Meeting, lane: 0, rank: rank as u32, size: size as u32 };
    let mut last = String::new();
    let mut pause = CALLS.0;
    // Who spoke as rank 0 does and was not, once for each port.
    let mut impostors: Vec<(u16, String)> = Vec::new();
    loop {
        let mut silent = 0;
        for port in ports(port) {
            let missed = call_host(host, port, hello, token, deadline);
            let address = format!("{host}:{port}");
            match missed {
                Ok((stream, proof)) => {
                    let local = stream.local_addr().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip());
                    let notes = impostors.into_iter().map(|(_, note)| note).collect();
                    return Ok((vec![Wire::new(stream, End::Caller, token, &proof)], local, notes));
                }
                Err(Missed::Denied(reason)) => return Err(RendezvousError::Refused { rank, address, reason }),
                Err(Missed::Size(theirs)) => {
                    return Err(RendezvousError::WorldSize { rank: 0, ours: size, theirs: theirs as usize });
                }
                // That nobody listens at the ports above says nothing.
                Err(Missed::Refused(_)) if port != meeting.port => {}
                Err(Missed::Refused(reason) | Missed::Stranger(reason)) => last = format!("{address}: {reason}"),
                Err(Missed::Impostor(reason)) => {
                    last = format!("{address}: {reason}");
                    if impostors.iter().all(|(known, _)| *known != port) {
                        impostors.push((port, last.clone()));
                    }
                }
                Err(Missed::Silent(reason)) => {
                    last = format!("{address}: {reason}");
                    silent += 1;
                    if silent == 2 {
                        break; // the host is silent, not one process on it
                    }
                }
            }
        }
        if Instant::now() + pause >= deadline {
            let address = format!("{host}:{port}");
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
