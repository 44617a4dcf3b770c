//! What comes on the connections and is not what it should be.

use super::frame::{HEADER_BYTES, Header};
use super::*;
use crate::{CollectiveKind, CommError, Meeting, RendezvousError};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{JoinHandle, spawn};
use zbench_kernels::{Cpu, ViewMut};

const PATIENCE: Duration = Duration::from_secs(60);

fn meeting(size: usize) -> Meeting {
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (host, port) = ("127.0.0.1".to_owned(), free.local_addr().unwrap().port());
    Meeting { size, host, port, token: format!("unit {port}"), timeout: PATIENCE, ..Meeting::default() }
}

fn two(options: &TcpOptions) -> [Tcp; 2] {
    let meeting = meeting(2);
    let start = |rank: usize| -> JoinHandle<Tcp> {
        let (meeting, options) = (Meeting { rank, ..meeting.clone() }, options.clone());
        spawn(move || tcp(Rendezvous::join(&meeting).unwrap(), Arc::new(Cpu::new(1)), options).unwrap())
    };
    [start(0), start(1)].map(|thread| thread.join().unwrap())
}

/// What rank 0 ends with when rank 1 writes these bytes where it should send 1000 elements, and what rank 1 hears.
fn after(options: &TcpOptions, bytes: impl FnOnce(&Tcp) -> Vec<u8>) -> (CommError, CommError) {
    let [first, other] = two(options);
    let bytes = bytes(&first);
    (&*other.owner.lock().peers[0].lanes[0].stream).write_all(&bytes).unwrap();
    let receiver = spawn(move || first.recv(ViewMut::of(&mut [0f32; 1000]), 1).unwrap_err());
    let error = receiver.join().unwrap();
    (error, other.barrier().unwrap_err())
}

/// A frame as rank 1 should send it, changed.
fn frame(comm: &Tcp, change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let signature = Signature::pair(comm.group, 0, CollectiveKind::Send, (DType::F32, 1000));
    let mut header = Header { signature, index: 0, bytes: 4000, checksum: frame::checksum(&[7; 4000]) };
    change(&mut header);
    [&header.encode()[..], &[7; 4000]].concat()
}

#[test]
fn frames_that_cannot_be_are_errors_and_no_allocations() {
    let options = TcpOptions { stall: PATIENCE, checksum: true, ..TcpOptions::default() };
    type Change = fn(&mut Header);
    let changes: [(&str, Change); 3] = [
        ("18446744073709551615 bytes", |header| header.bytes = u64::MAX),
        ("frame 4294967295", |header| header.index = u32::MAX),
        ("bytes 0 to 4000 of its data with a wrong checksum", |header| header.checksum ^= 1 << 40),
    ];
    for (wanted, change) in changes {
        let (error, heard) = after(&options, |comm| frame(comm, change));
        let CommError::Aborted { rank: 1, reason, .. } = &error else { panic!("{error}") };
        assert!(reason.contains(wanted) && reason.contains("in recv number 0"), "{reason}");
        assert_eq!(heard, error);
    }
    let (error, _) = after(&options, |_| vec![0x5a; HEADER_BYTES]);
    assert!(
        matches!(&error, CommError::Aborted { rank: 1, reason, .. } if reason.contains("no frame (5a 5a")),
        "{error}"
    );
    let (error, _) = after(&options, |comm| frame(comm, |header| header.signature.group = 77));
    assert!(
        matches!(&error, CommError::Mismatch { theirs, .. } if theirs.contains("another group (number 77)")),
        "{error}"
    );
}

#[test]
fn a_payload_that_was_changed_on_the_way_is_found_at_its_place() {
    let options = TcpOptions { stall: PATIENCE, checksum: true, sockets_per_peer: 1 };
    let [first, other] = two(&options);
    // Two frames of a larger message: the second is changed.
    let len = frame::CHUNK_BYTES / 4 + 100;
    let signature = Signature::pair(0, 0, CollectiveKind::Send, (DType::F32, len));
    let (large, small) = (vec![3u8; frame::CHUNK_BYTES], vec![4u8; 400]);
    let header = |index, payload: &[u8]| {
        Header { signature, index, bytes: payload.len() as u64, checksum: frame::checksum(payload) }.encode()
    };
    let mut bytes = [&header(0, &large)[..], &large, &header(1, &small), &small].concat();
    *bytes.last_mut().unwrap() ^= 4;
    let receiver = spawn(move || first.recv(ViewMut::of(&mut vec![0f32; len]), 1).unwrap_err());
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let mesh = other.owner.lock();
        match (&*mesh.peers[0].lanes[0].stream).write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
    let error = receiver.join().unwrap();
    let wanted = format!("bytes {} to {} of its data", frame::CHUNK_BYTES, frame::CHUNK_BYTES + 400);
    assert!(matches!(&error, CommError::Aborted { rank: 1, reason, .. } if reason.contains(&wanted)), "{error}");
}

#[test]
fn nonsense_on_the_line_between_ranks_ends_the_world() {
    for words in [&[9u8, 0, 0][..], &[1, 2, 0, 5, 5], &[3, 3, 0, b'a', b'b', b'c']] {
        let [first, other] = two(&TcpOptions { stall: PATIENCE, ..TcpOptions::default() });
        other.owner.lock().peers[0].control.as_deref().unwrap().write_all(words).unwrap();
        let error = first.barrier().unwrap_err();
        assert!(matches!(error, CommError::Aborted { rank: 1, .. }), "{error}");
    }
}

#[test]
fn strangers_at_the_ports_for_data_are_refused() {
    let meeting = meeting(2);
    let listeners = [0, 1].map(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap());
    let addresses = [0, 1].map(|rank: usize| listeners[rank].local_addr().unwrap());
    let mut strangers: Vec<TcpStream> = (0..10).map(|_| TcpStream::connect(addresses[0]).unwrap()).collect();
    strangers.iter_mut().skip(5).for_each(|stranger| stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap());
    let start = |(rank, listener): (usize, TcpListener)| {
        let meeting = Meeting { rank, ..meeting.clone() };
        spawn(move || {
            let mut met = Rendezvous::join(&meeting).unwrap();
            mesh::connections(&mut met, listener, &addresses, 3).unwrap()
        })
    };
    let ends: Vec<_> = listeners.into_iter().enumerate().map(start).collect();
    let ends: Vec<_> = ends.into_iter().map(|end| end.join().unwrap()).collect();
    assert_eq!((ends[0].0[1].len(), ends[1].0[0].len()), (3, 3));
    assert_eq!(ends[0].1.len(), 5, "{:?}", ends[0].1);
    assert!(ends[0].1[0].contains("does not speak zbench's protocol"), "{:?}", ends[0].1);
    let mut heard = Vec::new();
    strangers[9].set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = strangers[9].read_to_end(&mut heard);
    assert!(heard.len() <= 44, "a stranger gets the greeting, a challenge and nothing else");
}

/// A rank that has met the others and dies before it is connected to them is missed at once, not at the end of the time.
#[test]
fn a_rank_that_goes_while_connections_are_made_is_named_at_once() {
    let meeting = meeting(3);
    let start = |rank: usize| {
        let meeting = Meeting { rank, ..meeting.clone() };
        spawn(move || {
            let mut met = Rendezvous::join(&meeting).unwrap();
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let own = listener.local_addr().unwrap().to_string();
            let cards = met.exchange(own.as_bytes()).unwrap();
            let addresses: Vec<_> =
                cards.iter().map(|card| std::str::from_utf8(card).unwrap().parse().unwrap()).collect();
            if rank == 2 {
                return None;
            }
            Some(mesh::connections(&mut met, listener, &addresses, 1).unwrap_err())
        })
    };
    let [first, other, gone] = [0, 1, 2].map(start).map(|rank| rank.join().unwrap());
    assert!(gone.is_none());
    assert!(matches!(&first, Some(RendezvousError::Lost { rank: 2, .. })), "{first:?}");
    assert!(matches!(&other, Some(RendezvousError::Ended { reason }) if reason.contains("rank 2")), "{other:?}");
}
