//! How ranks meet, and how little strangers, late and missing ranks change.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};
use zbench_collectives::{MAX_BLOB_BYTES, Meeting, Rendezvous, RendezvousError};
use zbench_test_tiers as tiers;

/// Longer than anything here takes on a loaded machine; only tests of time-outs wait for their own.
const PATIENCE: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(1);
/// The first words on a connection: magic, version and challenge, and then a rank's hello. What tests change lies at these
/// bytes.
const GREETING: usize = 44;
const HELLO: usize = 156;
const VERSION_AT: usize = 8;
const RANK_AT: usize = 16;

/// A meeting at a port of its own, with a token that no other test has.
pub fn meeting(size: usize, timeout: Duration) -> Meeting {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Below the ports that the system gives to whoever asks for any: such a one may be taken between here and rank 0's own bind.
    // Eight ports each, since ranks call the 7 above too: another meeting there would answer them.
    let port = loop {
        let next = u64::from(std::process::id()) * 251 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + (next * 8 % 12_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            break port;
        }
    };
    let token = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    Meeting { size, host: "127.0.0.1".into(), port, token, timeout, ..Meeting::default() }
}

/// Joins as `rank`, on a thread.
pub fn join(meeting: &Meeting, rank: usize) -> JoinHandle<Result<Rendezvous, RendezvousError>> {
    let meeting = Meeting { rank, ..meeting.clone() };
    spawn(move || Rendezvous::join(&meeting))
}

/// All ranks of a meeting that goes well.
pub fn all(meeting: &Meeting) -> Vec<Rendezvous> {
    let threads: Vec<_> = (0..meeting.size).map(|rank| join(meeting, rank)).collect();
    threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
}

/// Connects as soon as somebody listens.
fn connect(port: u16) -> TcpStream {
    let begin = Instant::now();
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
        }
        sleep(Duration::from_millis(5));
    }
}

/// What a rank of this meeting says, overheard by somebody who greets like rank 0.
fn overheard(meeting: &Meeting, rank: usize) -> Vec<u8> {
    let real = Meeting { timeout: PATIENCE, size: 2, ..self::meeting(2, PATIENCE) };
    let host = join(&real, 0);
    let mut greeting = [0; GREETING];
    connect(real.port).read_exact(&mut greeting).unwrap();
    join(&real, 1).join().unwrap().unwrap();
    host.join().unwrap().unwrap();

    let ear = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = ear.local_addr().unwrap().port();
    let speaker = join(&Meeting { port, timeout: SHORT, ..meeting.clone() }, rank);
    let (mut stream, _) = ear.accept().unwrap();
    stream.write_all(&greeting).unwrap();
    let mut hello = vec![0; HELLO];
    stream.read_exact(&mut hello).unwrap();
    drop((stream, ear));
    assert!(speaker.join().unwrap().is_err(), "nobody answered");
    hello
}

#[test]
fn ranks_meet_and_exchange() {
    for size in [1, 2, 3, 8] {
        let threads: Vec<_> = all(&meeting(size, PATIENCE))
            .into_iter()
            .map(|mut met| {
                spawn(move || {
                    assert_eq!((met.size(), met.hosts().len()), (size, size));
                    assert!(met.one_host() && met.pids().iter().all(|pid| *pid == std::process::id()));
                    assert!(met.hosts().iter().all(|host| host == &met.hosts()[0] && !host.is_empty()));
                    assert!(met.local_address().is_loopback());
                    for turn in 0..3 {
                        // Blobs of different lengths, none among them, and large ones.
                        let blob = |rank: usize| vec![rank as u8; (rank + turn) % 3 * 300_000];
                        let blobs = met.exchange(&blob(met.rank())).unwrap();
                        assert!(blobs.into_iter().eq((0..size).map(blob)), "turn {turn}");
                    }
                    met.rank()
                })
            })
            .collect();
        let ranks: Vec<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(ranks.into_iter().eq(0..size));
    }
}

#[test]
fn rank_0_may_come_last_and_hosts_have_names() {
    for host in ["localhost", "127.0.0.1"] {
        let meeting = Meeting { host: host.into(), ..meeting(3, PATIENCE) };
        let others = [join(&meeting, 1), join(&meeting, 2)];
        sleep(Duration::from_millis(100));
        let first = join(&meeting, 0).join().unwrap().unwrap();
        assert_eq!(first.refused(), [] as [String; 0]);
        others.into_iter().for_each(|rank| assert_eq!(rank.join().unwrap().unwrap().size(), 3));
    }
}

#[test]
fn addresses_of_version_6() {
    if let Err(error) = TcpListener::bind(("::1", 0)) {
        eprintln!("skipped: this machine has no IPv6 loopback ({error})");
        return;
    }
    for host in ["::1", "[::1]"] {
        let met = all(&Meeting { host: host.into(), ..meeting(2, PATIENCE) });
        assert!(met.iter().all(|met| met.local_address().is_ipv6()));
    }
}

pub fn a_taken_port_sends_all_to_the_next() {
    // One that says nothing, as a launcher's store does, and one that talks about something else.
    for talks in [false, true] {
        let store = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = store.local_addr().unwrap().port();
        let meeting = Meeting { port, ..meeting(3, PATIENCE) };
        let has_met = Arc::new(AtomicBool::new(false));
        let until = has_met.clone();
        let keeper = spawn(move || {
            let mut open = Vec::new();
            store.set_nonblocking(true).unwrap();
            while !until.load(Ordering::Relaxed) {
                if let Ok((mut stream, _)) = store.accept() {
                    if talks {
                        let _ = stream.write_all(b"220 welcome to another service\r\n");
                    }
                    open.push(stream);
                }
                sleep(Duration::from_millis(5));
            }
        });
        assert_eq!(all(&meeting).len(), 3);
        has_met.store(true, Ordering::Relaxed);
        keeper.join().unwrap();
    }
}

pub fn strangers_are_refused_and_hold_up_nobody() {
    let meeting = meeting(3, PATIENCE);
    let hello = overheard(&meeting, 1);
    assert_eq!(hello[RANK_AT..RANK_AT + 4], 1u32.to_le_bytes(), "the layout is as this test believes");
    let begin = Instant::now();
    let first = join(&meeting, 0);
    let mut slow: Vec<TcpStream> = (0..20).map(|_| connect(meeting.port)).collect();
    slow.iter_mut().enumerate().for_each(|(i, stream)| stream.write_all(&hello[..i]).unwrap());
    let says = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut words = hello.clone();
        change(&mut words);
        let mut stream = connect(meeting.port);
        stream.write_all(&words).unwrap();
        stream
    };
    let strangers = [
        says(&|words| *words = b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        says(&|words| words.truncate(9)),
        says(&|words| words[VERSION_AT] ^= 0x40),
        says(&|words| words[RANK_AT] = 2),
        says(&|words| words[40] ^= 1),
    ];
    connect(meeting.port).write_all(&[0xff; 100_000]).ok(); // and closes
    // The one that was cut off is never read: the others are answered or closed.
    for (index, mut stream) in strangers.into_iter().enumerate().filter(|(index, _)| *index != 1) {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut heard = Vec::new();
        let end = stream.read_to_end(&mut heard);
        assert!(end.is_ok() || heard.len() >= GREETING, "stranger {index}: {end:?}");
    }
    let wrong = Meeting { token: "wrong".into(), timeout: SHORT, ..meeting.clone() };
    let error = join(&wrong, 1).join().unwrap().unwrap_err();
    assert!(
        matches!(&error, RendezvousError::Unreachable { rank: 1, last, .. } if last.contains("wrong token")),
        "{error}"
    );

    let others = [join(&meeting, 1), join(&meeting, 2)];
    let met = first.join().unwrap().unwrap();
    others.into_iter().for_each(|rank| assert!(rank.join().unwrap().is_ok()));
    assert!(begin.elapsed() < PATIENCE / 2, "held up for {:?}", begin.elapsed());
    let notes = met.refused().join("\n");
    for wanted in ["does not speak", "GET / HTTP", "version", "wrong token"] {
        assert!(notes.contains(wanted), "{wanted}: {notes}");
    }
}

/// All that somebody says until it is silent for a while, or has gone.
fn heard(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let (mut all, mut block) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut block) {
        all.extend_from_slice(&block[..count]);
    }
    all
}

/// A rank calls a process that listens in rank 0's place and passes on what the real rank 0 says, then gives what it has
/// heard to rank 0: on the connection whose challenge it passed on, on another, and with the ranks' sides exchanged.
pub fn a_squatter_learns_nothing_that_it_can_use_and_is_named() {
    let meeting = meeting(2, PATIENCE);
    let first = join(&meeting, 0);
    let ear = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = ear.local_addr().unwrap().port();
    let misled = join(&Meeting { port, timeout: 3 * SHORT, ..meeting.clone() }, 1);

    let (mut victim, _) = ear.accept().unwrap();
    let mut spliced = connect(meeting.port);
    victim.write_all(&heard(&mut spliced)).unwrap();
    let hello = heard(&mut victim);
    assert!(!hello.is_empty(), "the rank speaks to it");
    let token = meeting.token.as_bytes();
    assert!(!hello.windows(token.len()).any(|bytes| bytes == token), "the token is on the wire");
    let mut replayed = connect(meeting.port);
    let challenge = heard(&mut replayed);
    for stream in [&mut spliced, &mut replayed] {
        stream.write_all(&hello).unwrap();
        let said = heard(stream);
        assert!(said.starts_with(b"zbAn") && said[4] == 1, "rank 0 takes it for {:?}", &said[..said.len().min(5)]);
    }
    let mut reflected = connect(meeting.port);
    let own = heard(&mut reflected);
    let mut back = [own, challenge].concat();
    back.resize(HELLO, 0);
    reflected.write_all(&back).unwrap();
    assert!(heard(&mut reflected).get(4).is_none_or(|kind| *kind == 1));
    // And gives the rank the same in answer, which it should not believe either.
    victim.write_all(&[&b"zbAn\0\0\0\0"[..], &hello, &[0; 300]].concat()).unwrap();
    drop((victim, ear, spliced, replayed, reflected));
    let error = misled.join().unwrap().unwrap_err().to_string();
    assert!(error.contains(&format!("127.0.0.1:{port}: ")) && error.contains("does not prove"), "{error}");

    join(&meeting, 1).join().unwrap().unwrap();
    let met = first.join().unwrap().unwrap();
    assert_eq!(met.refused().iter().filter(|note| note.contains("wrong token")).count(), 3, "{:?}", met.refused());
}

/// Listens at a port in rank 0's place, greets as the real one does, and then does `what`; until it is told to end.
fn squatter(what: fn(&mut TcpStream), until: Arc<AtomicBool>) -> (u16, JoinHandle<()>) {
    let real = meeting(2, PATIENCE);
    let host = join(&real, 0);
    let greeting = heard(&mut connect(real.port));
    join(&real, 1).join().unwrap().unwrap();
    host.join().unwrap().unwrap();
    let ear = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = ear.local_addr().unwrap().port();
    let keeper = spawn(move || {
        let mut open = Vec::new();
        ear.set_nonblocking(true).unwrap();
        while !until.load(Ordering::Relaxed) {
            if let Ok((mut stream, _)) = ear.accept() {
                // A rank that has gone again is no reason to end.
                let _ = stream.write_all(&greeting);
                what(&mut stream);
                open.push(stream);
            }
            sleep(Duration::from_millis(5));
        }
    });
    (port, keeper)
}

pub fn a_squatter_ends_no_launch_and_is_named() {
    // One that never answers, and one that says what rank 0 says to a rank that is not wanted.
    let refuses = |stream: &mut TcpStream| {
        let mut words = [0; 300];
        words[..12].copy_from_slice(b"zbAn\x02\0\x04\0\0\0\0\0");
        words[12..16].copy_from_slice(b"away");
        let _ = stream.write_all(&words);
    };
    let launch = |what: fn(&mut TcpStream)| {
        let has_met = Arc::new(AtomicBool::new(false));
        let (port, keeper) = squatter(what, has_met.clone());
        let meeting = Meeting { port, ..meeting(2, PATIENCE) };
        let begin = Instant::now();
        let [first, other] = [0, 1].map(|rank| join(&meeting, rank)).map(|rank| rank.join().unwrap());
        assert!(first.is_ok(), "{first:?}");
        let named = other.unwrap().refused().join("\n");
        assert!(begin.elapsed() < PATIENCE / 2, "held up for {:?}", begin.elapsed());
        assert!(named.contains(&format!("127.0.0.1:{port}: ")) && named.contains("does not prove"), "{named}");
        has_met.store(true, Ordering::Relaxed);
        keeper.join().unwrap();
    };
    // The limit of one that never answers is 5 s.
    let all = [refuses, |_: &mut TcpStream| ()];
    std::thread::scope(|scope| {
        for what in tiers::some("comm::rendezvous::a_squatter_ends_no_launch_and_is_named", all, [1, 2]) {
            scope.spawn(move || launch(what));
        }
    });
}

pub fn a_flood_of_strangers_ends_no_launch() {
    let meeting = meeting(4, PATIENCE);
    let first = join(&meeting, 0);
    let port = meeting.port;
    // One that leaves at once, many that are silent, and some that come and go all the time.
    drop(connect(port));
    let silent: Vec<TcpStream> = (0..300).map(|_| connect(port)).collect();
    let until = Instant::now() + SHORT;
    let restless = || {
        spawn(move || {
            while Instant::now() < until {
                drop(TcpStream::connect(("127.0.0.1", port)));
            }
        })
    };
    let restless: Vec<_> = (0..4).map(|_| restless()).collect();
    sleep(Duration::from_millis(200));
    let others: Vec<_> = (1..4).map(|rank| join(&meeting, rank)).collect();
    others.into_iter().for_each(|rank| drop(rank.join().unwrap().unwrap()));
    let met = first.join().unwrap().unwrap();
    restless.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(!met.refused().is_empty() && met.refused().len() <= 101, "{}", met.refused().len());
    drop(silent);
}

/// A process of another version is named as such, on both sides.
pub fn another_version_is_named() {
    let ear = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = ear.local_addr().unwrap().port();
    let misled = join(&Meeting { port, ..meeting(2, SHORT) }, 1);
    let (mut stream, _) = ear.accept().unwrap();
    stream.write_all(b"zbench\r\n\x01\0\0\0").unwrap();
    assert!(heard(&mut stream).is_empty(), "nothing is said to it");
    drop((stream, ear));
    let error = misled.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("speaks version 0x1") && error.contains("this is version 0x3"), "{error}");

    let meeting = meeting(2, PATIENCE);
    let first = join(&meeting, 0);
    let mut old = connect(meeting.port);
    let greeting = heard(&mut old);
    assert_eq!(greeting[..12], *b"zbench\r\n\x03\0\0\0", "the older one reads this, and says which version it is");
    old.write_all(&[&b"zbench\r\n\x01\0\0\0"[..], &[0; 270]].concat()).unwrap();
    drop(heard(&mut old));
    join(&meeting, 1).join().unwrap().unwrap();
    let notes = first.join().unwrap().unwrap().refused().join("\n");
    assert!(notes.contains("speaks version 0x1 of zbench's protocol"), "{notes}");
}

#[test]
fn another_world_size_stops_both_sides() {
    let meeting = meeting(3, PATIENCE);
    let first = join(&meeting, 0);
    let well = join(&meeting, 1);
    sleep(Duration::from_millis(100));
    let theirs = join(&Meeting { size: 4, ..meeting.clone() }, 3).join().unwrap().unwrap_err();
    assert_eq!(theirs, RendezvousError::WorldSize { rank: 0, ours: 4, theirs: 3 });
    let ours = first.join().unwrap().unwrap_err();
    assert_eq!(ours, RendezvousError::WorldSize { rank: 3, ours: 3, theirs: 4 });
    assert!(ours.to_string().contains("a formed world of another size than the launcher's"));
    let told = well.join().unwrap().unwrap_err();
    assert!(matches!(&told, RendezvousError::Ended { reason } if reason.contains("a formed world")), "{told}");
}

pub fn who_never_came_is_named_to_all_who_did() {
    let meeting = meeting(4, 3 * SHORT);
    let here = [join(&meeting, 0), join(&meeting, 2)];
    connect(meeting.port).write_all(b"hello?").unwrap();
    let [first, other] = here.map(|rank| rank.join().unwrap().unwrap_err());
    let text = first.to_string();
    assert!(matches!(&first, RendezvousError::Missing { missing, seconds: 3, .. } if missing == &[1, 3]), "{text}");
    assert!(text.contains(&format!("127.0.0.1:{}", meeting.port)) && text.contains("hello?"), "{text}");
    assert!(
        matches!(&other, RendezvousError::Ended { reason } if reason.contains("[1, 3] of 4 did not come")),
        "{other}"
    );
}

pub fn a_rank_that_does_not_find_rank_0_says_where_it_looked() {
    let nobody = meeting(2, SHORT);
    // An empty label: a resolver says so without asking anybody.
    let nowhere = Meeting { host: "no..host".into(), ..nobody.clone() };
    let [of_nobody, from_nowhere, at_nowhere] =
        [(&nobody, 1), (&nowhere, 1), (&nowhere, 0)].map(|(at, rank)| join(at, rank));
    let error = of_nobody.join().unwrap().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, RendezvousError::Unreachable { rank: 1, seconds: 1, .. }), "{text}");
    assert!(text.contains(&format!("127.0.0.1:{}", nobody.port)) && text.contains("refused"), "{text}");
    let error = from_nowhere.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("no..host is no known host"), "{error}");
    let error = at_nowhere.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("cannot listen at no..host"), "{error}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_sent() {
    let good = meeting(2, SHORT);
    let invalid = |meeting: Meeting| {
        let error = Rendezvous::join(&meeting).unwrap_err();
        assert!(matches!(error, RendezvousError::Invalid { .. }), "{error}");
    };
    invalid(Meeting { rank: 2, ..good.clone() });
    invalid(Meeting { size: 0, ..good.clone() });
    invalid(Meeting { port: 0, ..good.clone() });
    invalid(Meeting { token: "x".repeat(257), ..good.clone() });
}

#[test]
fn a_rank_that_leaves_an_exchange_is_named() {
    let mut met = all(&meeting(3, PATIENCE));
    let (last, mut other, mut first) = (met.pop().unwrap(), met.pop().unwrap(), met.pop().unwrap());
    let too_long = other.exchange(&vec![0; MAX_BLOB_BYTES + 1]).unwrap_err();
    assert_eq!(too_long, RendezvousError::TooLong { bytes: MAX_BLOB_BYTES + 1 });
    drop(last);
    let other = spawn(move || other.exchange(b"other").unwrap_err());
    let error = first.exchange(b"first").unwrap_err();
    assert!(matches!(&error, RendezvousError::Lost { rank: 2, .. }), "{error}");
    let told = other.join().unwrap();
    assert!(matches!(&told, RendezvousError::Ended { reason } if reason.contains("rank 2")), "{told}");
}
