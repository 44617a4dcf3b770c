//! What processes do that know the token and should not be let in, and those that stand between two that do.

use super::caller::{Missed, call};
use super::hello::{Hello, Proof, Purpose, Token, nonce};
use super::wire::{End, Kind, Wire};
use super::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{JoinHandle, sleep, spawn};

const PATIENCE: Duration = Duration::from_secs(30);

fn meeting(size: usize) -> Meeting {
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    Meeting { rank: 0, size, host: "127.0.0.1".into(), port, token: format!("unit {port}"), timeout: PATIENCE }
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
    let stays = join(&meeting, 1);
    sleep(Duration::from_millis(500));
    let error = join(&meeting, 1).join().unwrap().unwrap_err();
    assert!(matches!(&error, RendezvousError::Refused { rank: 1, .. }), "{error}");
    assert!(error.to_string().contains("two processes have the same rank"), "{error}");
    // One that leaves before all are there has not arrived.
    drop(calls(&meeting, 2, Purpose::Meeting).unwrap());
    sleep(Duration::from_millis(50));
    join(&meeting, 2).join().unwrap().unwrap();
    stays.join().unwrap().unwrap();
    assert_eq!(first.join().unwrap().unwrap().refused().len(), 1);
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
