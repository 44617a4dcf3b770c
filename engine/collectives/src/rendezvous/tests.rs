//! What processes do that know the token and should not be let in, and those that stand between two that do.

use super::caller::{Missed, call};
use super::hello::{Hello, Proof, Purpose, Token, nonce};
use super::wire::{End, Kind, Wire};
use super::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread::{JoinHandle, sleep, spawn};

const PATIENCE: Duration = Duration::from_secs(30);

fn meeting(size: usize) -> Meeting {
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    let (host, token) = ("127.0.0.1".into(), format!("unit {port}"));
    Meeting { size, host, port, token, timeout: PATIENCE, ..Meeting::default() }
}

fn join(meeting: &Meeting, rank: usize) -> JoinHandle<Result<Rendezvous, RendezvousError>> {
    let meeting = Meeting { rank, ..meeting.clone() };
    spawn(move || Rendezvous::join(&meeting))
}

/// Calls rank 0 until it listens.
fn calls(meeting: &Meeting, rank: u32, purpose: Purpose) -> Result<(TcpStream, Proof), Missed> {
    let hello = Hello { purpose, lane: 0, rank, size: meeting.size as u32 };
    let (token, deadline) = (Token::new(&meeting.token).unwrap(), Instant::now() + PATIENCE);
    let address: SocketAddr = ([127, 0, 0, 1], meeting.port).into();
    loop {
        match call(address, hello, &token, &format!("port {}", meeting.port), deadline) {
            Err(Missed::Refused(reason)) => assert!(Instant::now() < deadline, "{reason}"),
            said => return said,
        }
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn ranks_that_cannot_be_are_refused_although_they_know_the_token() {
    let meeting = meeting(2);
    let first = join(&meeting, 0);
    for (rank, purpose, wanted) in [
        (7, Purpose::Meeting, "no rank 7 of 2"),
        (0, Purpose::Meeting, "rank 0 is here already"),
        (1, Purpose::Data, "where ranks meet"),
    ] {
        let said = calls(&meeting, rank, purpose).unwrap_err();
        assert!(matches!(&said, Missed::Denied(reason) if reason.contains(wanted)), "{said:?}");
    }
    join(&meeting, 1).join().unwrap().unwrap();
    assert_eq!(first.join().unwrap().unwrap().refused().len(), 3);
}

#[test]
fn a_rank_twice_is_refused_unless_the_first_is_gone() {
    let meeting = meeting(3);
    let first = join(&meeting, 0);
    // A rank 1 that comes and dies, then one that stays, then one too many.
    drop(calls(&meeting, 1, Purpose::Meeting).unwrap());
    sleep(Duration::from_millis(50));
    // One that leaves before all are there has not arrived.
    drop(calls(&meeting, 2, Purpose::Meeting).unwrap());
    sleep(Duration::from_millis(50));
    let stays = join(&meeting, 1);
    sleep(Duration::from_millis(500));
    let error = join(&meeting, 1).join().unwrap().unwrap_err();
    assert!(matches!(&error, RendezvousError::Refused { rank: 1, .. }), "{error}");
    assert!(error.to_string().contains("two processes have the same rank"), "{error}");
    let who = process_on(std::process::id(), &host_name());
    assert!(error.to_string().contains(&format!("rank 1 is here already, as {who}")), "{error}");
    join(&meeting, 2).join().unwrap().unwrap();
    stays.join().unwrap().unwrap();
    let first = first.join().unwrap().unwrap();
    assert!(matches!(first.refused(), [one] if one.contains(&format!("rank 1 ({who}): "))), "{:?}", first.refused());
}

#[test]
fn secrets_are_shared_and_of_one_meeting() {
    let both = || {
        let meeting = Meeting { token: "the same".into(), ..meeting(2) };
        [join(&meeting, 0), join(&meeting, 1)].map(|rank| rank.join().unwrap().unwrap())
    };
    let ([a, b], [later, _]) = (both(), both());
    assert_eq!((a.secret("x"), a.secret("x").len()), (b.secret("x"), 64));
    assert_ne!(a.secret("x"), a.secret("y"));
    assert_ne!(a.secret("x"), later.secret("x"), "the token alone does not give it");
}

/// The two ends of a connection.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

#[test]
fn messages_are_taken_once_in_order_unchanged_and_from_the_other_side() {
    let token = Token::new("wire").unwrap();
    let hello = Hello { purpose: Purpose::Meeting, lane: 0, rank: 1, size: 2 };
    let proof = || hello.encode(&token, "port 1", &nonce().unwrap(), &nonce().unwrap()).1;
    let own = proof();
    // What a caller writes: two messages.
    let (stream, mut overheard) = pair();
    let mut caller = Wire::new(stream, End::Caller, &token, &own);
    caller.write(Kind::Blob, b"first").unwrap();
    caller.write(Kind::Dismissal, b"other").unwrap();
    let mut messages = [[0; 5 + 5 + 32]; 2];
    messages.iter_mut().for_each(|message| overheard.read_exact(message).unwrap());
    let [first, other] = messages;

    let hears = |end: End, proof: &Proof, words: &[&[u8]]| {
        let (mut line, stream) = pair();
        words.iter().for_each(|words| line.write_all(words).unwrap());
        drop(line);
        let mut wire = Wire::new(stream, end, &token, proof);
        words.iter().map(|_| wire.read(100, Instant::now() + PATIENCE)).collect::<io::Result<Vec<_>>>()
    };
    let both = vec![(Kind::Blob, b"first".to_vec()), (Kind::Dismissal, b"other".to_vec())];
    assert_eq!(hears(End::Acceptor, &own, &[&first, &other]).unwrap(), both);
    assert!(hears(End::Acceptor, &own, &[&first, &first]).is_err(), "said again");
    assert!(hears(End::Acceptor, &own, &[&other, &first]).is_err(), "in another order");
    assert!(hears(End::Caller, &own, &[&first]).is_err(), "sent back");
    assert!(hears(End::Acceptor, &proof(), &[&first]).is_err(), "of another connection");
    for at in 0..first.len() {
        let mut changed = first;
        changed[at] ^= 1;
        assert!(hears(End::Acceptor, &own, &[&changed]).is_err(), "byte {at}");
    }
    let error = hears(End::Acceptor, &own, &[&[0, 0xff, 0xff, 0xff, 0xff]]).unwrap_err();
    assert!(error.to_string().contains("announced 4294967295 bytes"), "{error}");
}

#[test]
fn ranks_of_two_launches_are_refused_by_name() {
    let meeting = meeting(3);
    let of = |launcher: &str| Meeting { launcher: launcher.into(), ..meeting.clone() };
    // One that does not know its launcher is no contradiction.
    let ranks = [join(&of("mpiexec 7"), 0), join(&of(""), 1), join(&of("mpiexec 8"), 2)];
    for rank in ranks {
        let error = rank.join().unwrap().unwrap_err();
        let who = process_on(std::process::id(), &host_name());
        let said = format!("rank 2 ({who}) was started by mpiexec 8, rank 0 ({who}) was started by mpiexec 7");
        assert!(matches!(error, RendezvousError::Foreign { .. }) && error.to_string().contains(&said), "{error}");
    }
    let ranks = [join(&of("mpiexec 7"), 0), join(&of(""), 1), join(&of("mpiexec 7"), 2)];
    ranks.into_iter().for_each(|rank| drop(rank.join().unwrap().unwrap()));
}

#[test]
fn every_wait_ends_when_the_stop_flag_is_set() {
    let stop = Arc::new(AtomicBool::new(false));
    let meeting = Meeting { stop: Some(stop.clone()), ..meeting(3) };
    let nobody = Meeting { port: self::meeting(2).port, ..meeting.clone() };
    let waits = [join(&nobody, 1), join(&Meeting { host: "no..host".into(), ..nobody.clone() }, 0)];
    let mut met = [0, 1, 2].map(|rank| join(&meeting, rank)).map(|rank| rank.join().unwrap().unwrap()).into_iter();
    let (mut first, mut other, _silent) = (met.next().unwrap(), met.next().unwrap(), met.next().unwrap());
    let exchange = spawn(move || first.exchange(b"first").unwrap_err());
    let alone = join(&Meeting { port: self::meeting(2).port, ..meeting.clone() }, 0);
    stop.store(true, Ordering::Relaxed);
    for wait in waits.into_iter().chain([alone]) {
        let error = wait.join().unwrap().unwrap_err();
        assert!(matches!(error, RendezvousError::Stopped { .. }), "{error}");
    }
    let error = exchange.join().unwrap();
    assert_eq!(error.to_string(), "rank 0 was stopped while it waited for rank 1");
    let error = other.exchange(b"other").unwrap_err();
    assert!(matches!(error, RendezvousError::Stopped { rank: 1, .. } | RendezvousError::Ended { .. }), "{error}");
}

/// Rank 1 is there and has nothing to say yet, so that its turn never comes to an end.
#[test]
fn a_rank_that_goes_is_missed_while_another_is_waited_for() {
    let meeting = meeting(3);
    let ranks = [0, 1, 2].map(|rank| join(&meeting, rank)).map(|rank| rank.join().unwrap().unwrap());
    let [mut first, _silent, gone] = ranks;
    drop(gone);
    let error = first.exchange(b"first").unwrap_err();
    assert!(matches!(error, RendezvousError::Lost { rank: 2, .. }), "{error}");
}

#[test]
fn who_waits_for_long_says_for_whom_and_where() {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let tell: fn(&str) = |words| SAID.lock().unwrap().push(words.into());
    let meeting = Meeting { tell: Some(tell), timeout: Duration::from_millis(600), ..meeting(3) };
    let first = join(&Meeting { everywhere: true, ..meeting.clone() }, 0);
    drop(calls(&meeting, 2, Purpose::Meeting).unwrap());
    let nobody = Meeting { port: self::meeting(2).port, ..meeting.clone() };
    for rank in [first, join(&nobody, 1)] {
        assert!(rank.join().unwrap().is_err());
    }
    let mut said = SAID.lock().unwrap().clone();
    said.sort();
    let [of_first, of_other] = &said[..] else { panic!("one line each: {said:?}") };
    let place = format!("127.0.0.1:{} (on all addresses of {})", meeting.port, host_name());
    let wanted = format!("rank 0 waits for rank(s) [1, 2] of 3 at {place}; rank(s) [2] had come and went away");
    assert_eq!(*of_first, wanted);
    let place = format!("127.0.0.1:{}", nobody.port);
    assert!(of_other.starts_with(&format!("rank 1 waits for rank 0 at {place}; last: {place}: ")), "{of_other}");
}

/// Rank 0 of a launch on several hosts whose own name is a loopback address: found at every address of its host, and known
/// to the others by one that is no loopback address where it has such.
#[test]
fn rank_0_listens_on_all_addresses_where_it_should() {
    let meeting = Meeting { everywhere: true, host: "no..host".into(), ..meeting(3) };
    let at = |host: &str| Meeting { host: host.into(), ..meeting.clone() };
    let ranks = [join(&meeting, 0), join(&at("127.0.0.2"), 1), join(&at("127.0.0.1"), 2)];
    let ranks = ranks.map(|rank| rank.join().unwrap().unwrap());
    assert!(ranks.iter().all(|met| met.local_address().is_ipv4()), "no mapped address of version 6");
    let cards = |address: &str| {
        let of = |address: &str| format!("n1\n7\nkernel\nrandom\n\n{address}").into_bytes();
        Peers::read(&[of(address), of("127.0.0.1")]).unwrap().address_of_first.map(|address| address.to_string())
    };
    assert_eq!((cards("127.0.1.1"), cards("10.9.0.1")), (None, Some("10.9.0.1".into())));
}

#[test]
fn limits_of_open_files_are_raised_or_named() {
    let limit = |current, maximum| Rlimit { current: Some(current), maximum };
    assert_eq!(raised_limit(limit(100, Some(100)), 100), Ok(None));
    assert_eq!(raised_limit(Rlimit { current: None, maximum: None }, 1 << 40), Ok(None));
    assert_eq!(raised_limit(limit(64, Some(4096)), 100), Ok(Some(limit(4096, Some(4096)))));
    assert_eq!(raised_limit(limit(64, None), 100_000), Ok(Some(limit(100_000, None))));
    let said = raised_limit(limit(64, Some(99)), 100).unwrap_err();
    assert!(said.contains("need 100 open files and 64 are allowed") && said.contains("ulimit -n 100"), "{said}");
}

#[test]
fn a_loopback_of_another_version_is_no_loopback_that_is_down() {
    let (ip, other) = (IpAddr::from([127, 0, 0, 1]), IpAddr::V6(Ipv6Addr::LOCALHOST));
    let error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let said = unreachable(ip, &error, Some(&other));
    assert!(said.contains("has ::1 instead: set MASTER_ADDR=::1") && !said.contains("down"), "{said}");
    assert!(unreachable(ip, &error, None).contains("ip link set lo up"));
}
