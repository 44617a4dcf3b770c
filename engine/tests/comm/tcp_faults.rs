//! How a world of processes ends: every rank hears of it, and of the first cause.

use crate::comm::rendezvous::{join, meeting};
use crate::comm::tcp::{PATIENCE, attempt, cpu, patient};
use crate::comm::tree::{Mood, Tree};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use zbench_collectives::{
    Call, CommError, Communicator, Kind, Meeting, OwnedCall, ReduceOp, Rendezvous, Tcp, TcpOptions, tcp,
};
use zbench_kernels::{Arena, Category, DType, Kernels, View, ViewMut};

const SHORT: Duration = Duration::from_millis(400);
const SIZES: [usize; 3] = [2, 3, 8];

fn reduce(comm: &dyn Communicator) -> Result<(), CommError> {
    comm.all_reduce(ViewMut::of(&mut vec![1f32; 1000]))
}

/// What `rank` ends with on every rank, at several sizes at once; `None` for a panic.
fn ends(options: &TcpOptions, rank: impl Fn(Tcp) -> CommError + Sync) -> Vec<Vec<Option<CommError>>> {
    let of_size = |size| attempt(size, options, cpu, &rank).into_iter().map(Result::ok).collect();
    let of_size = &of_size;
    std::thread::scope(|scope| {
        let worlds = SIZES.map(|size| scope.spawn(move || of_size(size)));
        worlds.into_iter().map(|world| world.join().unwrap()).collect()
    })
}

#[test]
fn an_abort_is_heard_by_all_and_the_first_reason_stays() {
    for results in ends(&patient(), |comm| {
        reduce(&comm).unwrap();
        if comm.rank() == 1 {
            comm.abort("the disk is full");
            comm.abort("a second reason");
        }
        let error = comm.barrier().and_then(|()| reduce(&comm)).unwrap_err();
        assert_eq!(reduce(&comm).unwrap_err(), error, "and of every later call");
        assert_eq!(comm.split(0, 0, "late").map(|_| ()).unwrap_err(), error);
        error
    }) {
        let wanted = CommError::Aborted { group: "world".into(), rank: 1, reason: "the disk is full".into() };
        assert!(results.iter().all(|result| result.as_ref() == Some(&wanted)), "{results:?}");
    }
}

#[test]
fn an_abort_in_a_group_ends_its_siblings_and_its_parent() {
    let results = attempt(4, &patient(), cpu, |comm| {
        let row = comm.split(comm.rank() / 2, 0, "row").unwrap();
        match comm.rank() {
            3 => {
                row.abort("gave up");
                row.barrier().unwrap_err()
            }
            2 => row.barrier().unwrap_err(),
            _ => comm.barrier().unwrap_err(),
        }
    });
    let wanted = CommError::Aborted { group: "world".into(), rank: 3, reason: "gave up".into() };
    assert!(results.into_iter().all(|result| result.unwrap() == wanted));
}

#[test]
fn a_panic_and_a_kernel_that_refuses_are_heard_by_all() {
    for mood in [Mood::Refuses, Mood::Panics] {
        let kernels = |rank| -> Arc<dyn Kernels> { Arc::new(Tree(if rank == 2 { mood } else { Mood::Well })) };
        let results = attempt(4, &patient(), kernels, |comm| reduce(&comm).and_then(|()| reduce(&comm)).unwrap_err());
        for (rank, result) in results.into_iter().enumerate() {
            match (rank, mood, result) {
                (2, Mood::Refuses, Ok(error)) => assert!(matches!(error, CommError::Kernel(_)), "{error}"),
                (2, Mood::Panics, result) => assert!(result.is_err()),
                (_, _, Ok(CommError::Aborted { rank, reason, .. })) => {
                    assert_eq!(rank, 2);
                    assert!(reason == "panicked" || reason.contains("kernels cannot"), "{reason}");
                }
                (_, _, result) => panic!("rank {rank}: {result:?}"),
            }
        }
    }
}

#[test]
fn a_rank_that_leaves_is_named_and_one_that_is_done_may_go() {
    for results in ends(&patient(), |comm| {
        reduce(&comm).unwrap();
        if comm.rank() == 1 {
            return CommError::Invalid { operation: "none", reason: "left".into() };
        }
        reduce(&comm).unwrap_err()
    }) {
        for (rank, result) in results.iter().enumerate().filter(|(rank, _)| *rank != 1) {
            let Some(CommError::Aborted { rank: 1, reason, .. }) = result else { panic!("rank {rank}: {result:?}") };
            assert!(reason.contains("left") && reason.contains("all_reduce number 1"), "{reason}");
        }
    }
    for _ in 0..20 {
        for result in attempt(4, &patient(), cpu, |comm| reduce(&comm)) {
            result.unwrap().unwrap();
        }
    }
}

#[test]
fn a_ticket_that_is_dropped_ends_the_world() {
    let results = attempt(3, &patient(), cpu, |comm| {
        let arena = Arena::host(Some(1 << 20)).unwrap();
        let buffer = arena.alloc(Category::Gradients, DType::F32, 10).unwrap();
        let started = comm.start(OwnedCall::all_reduce(buffer));
        if comm.rank() == 0 {
            drop(started.unwrap());
            return comm.barrier().unwrap_err();
        }
        // The end may come before the start, or before all have given what this rank needs.
        started.and_then(|ticket| comm.wait(ticket)).and_then(|_| comm.barrier()).unwrap_err()
    });
    for result in results {
        let error = result.unwrap();
        assert!(
            matches!(&error, CommError::Aborted { rank: 0, reason, .. } if reason.contains("did not wait")),
            "{error}"
        );
    }
}

pub fn a_stall_names_who_is_missing_on_all_ranks() {
    let options = TcpOptions { stall: SHORT, ..TcpOptions::default() };
    for results in ends(&options, |comm| {
        reduce(&comm).unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(4 * SHORT); // comes when the others have given up
        }
        let mut all = vec![0u32; comm.size()];
        comm.all_gather(View::of(&[1u32]), ViewMut::of(&mut all)).unwrap_err()
    }) {
        for result in results {
            let Some(CommError::Stalled { group, operation, sequence, missing, seconds }) = &result else {
                panic!("{result:?}")
            };
            assert_eq!(
                (group.as_str(), *operation, *sequence, missing.as_slice(), *seconds),
                ("world", "all_gather", 1, &[1][..], 1)
            );
        }
    }
}

pub fn a_sender_without_a_receiver_stalls() {
    let options = TcpOptions { stall: SHORT, ..TcpOptions::default() };
    let results = attempt(2, &options, cpu, |comm| match comm.rank() {
        0 => comm.send(View::of(&[1f32; 5]), 1).unwrap_err(),
        _ => {
            std::thread::sleep(4 * SHORT);
            comm.barrier().unwrap_err()
        }
    });
    for result in results {
        let error = result.unwrap();
        assert!(matches!(&error, CommError::Stalled { operation: "send", missing, .. } if missing == &[1]), "{error}");
    }
}

#[test]
fn calls_that_do_not_match_name_both() {
    let results = attempt(3, &patient(), cpu, |comm| match comm.rank() {
        2 => comm.barrier().unwrap_err(),
        _ => reduce(&comm).unwrap_err(),
    });
    for (rank, result) in results.into_iter().enumerate() {
        let error = result.unwrap();
        let CommError::Mismatch { rank: other, ours, theirs, sequence: 0, .. } = &error else { panic!("{error}") };
        let (sum, barrier) = ("all_reduce of 1000 f32", "barrier");
        let wanted = if rank == 2 { (barrier, sum) } else { (sum, barrier) };
        assert_eq!((ours.as_str(), theirs.as_str()), wanted);
        assert!((*other == 2) == (rank != 2) && *other < 3, "{error}");
    }
}

/// Every way in which two ranks can disagree about a call ends it on both, whoever sees it.
#[test]
fn every_kind_of_mismatch_is_seen() {
    type Try = fn(&Tcp, bool) -> Result<(), CommError>;
    let root = |kind: fn(usize) -> Kind, c: &Tcp, odd: bool| {
        let mut recv = [0f32; 8];
        c.call(Call {
            kind: kind(usize::from(odd)),
            send: Some(View::of(&[0f32; 8])),
            recv: Some(ViewMut::of(&mut recv)),
        })
    };
    let calls: [(&str, Try); 12] = [
        ("length", |c, odd| c.all_reduce(ViewMut::of(&mut vec![0f32; if odd { 8 } else { 9 }]))),
        ("large length", |c, odd| c.all_reduce(ViewMut::of(&mut vec![0f32; if odd { 800_000 } else { 900_001 }]))),
        ("type", |c, odd| match odd {
            true => c.all_reduce(ViewMut::of(&mut [0f32; 8])),
            false => c.all_reduce(ViewMut::of(&mut [0f64; 8])),
        }),
        ("operation", |c, odd| {
            let op = if odd { ReduceOp::Min } else { ReduceOp::Max };
            c.call(Call::in_place(Kind::AllReduce { op }, ViewMut::of(&mut [0f32; 8])))
        }),
        ("root", |c, odd| c.broadcast(ViewMut::of(&mut [0f32; 8]), usize::from(odd))),
        ("accumulate", |c, odd| c.reduce_scatter(View::of(&[0f32; 8]), ViewMut::of(&mut [0f32; 4]), odd)),
        ("kind", |c, odd| match odd {
            true => c.all_gather(View::of(&[0f32; 4]), ViewMut::of(&mut [0f32; 8])),
            false => c.all_to_all(View::of(&[0f32; 8]), ViewMut::of(&mut [0f32; 8])),
        }),
        ("part", |c, odd| match odd {
            true => c.all_gather(View::of(&[0f32; 4]), ViewMut::of(&mut [0f32; 8])),
            false => c.all_gather(View::of(&[0f32; 5]), ViewMut::of(&mut [0f32; 10])),
        }),
        ("split", |c, odd| if odd { c.split(0, 0, "x").map(|_| ()) } else { c.barrier() }),
        ("pair's length", |c, _| match c.rank() {
            0 => c.send(View::of(&[0f32; 4]), 1),
            _ => c.recv(ViewMut::of(&mut [0f32; 5]), 0),
        }),
        ("pair's type", |c, _| match c.rank() {
            0 => c.send(View::of(&[0f32; 4]), 1),
            _ => c.recv(ViewMut::of(&mut [0u32; 4]), 0),
        }),
        ("pair and collective", |c, odd| if odd { c.send(View::of(&[0f32; 4]), 0) } else { c.barrier() }),
    ];
    let check = |what: &str, call: &(dyn Fn(&Tcp, bool) -> Result<(), CommError> + Sync)| {
        for result in attempt(2, &patient(), cpu, |comm| call(&comm, comm.rank() == 1).unwrap_err()) {
            let error = result.unwrap();
            assert!(matches!(error, CommError::Mismatch { .. }), "{what}: {error}");
        }
    };
    calls.iter().for_each(|(what, call)| check(what, call));
    check("reduce's root", &|c, odd| root(|root| Kind::Reduce { op: ReduceOp::Sum, root }, c, odd));
}

/// Another process, rank 1 of two or more, that this one can kill and stop.
struct Other(Child);

impl Other {
    fn start(meeting: &Meeting, stall: Duration) -> Other {
        let port = meeting.port.to_string();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "comm::tcp_faults::the_other_process", "--ignored", "--nocapture"])
            .env("ZBENCH_TEST_PORT", port)
            .env("ZBENCH_TEST_TOKEN", &meeting.token)
            .env("ZBENCH_TEST_SIZE", meeting.size.to_string())
            .env("ZBENCH_TEST_STALL_MS", stall.as_millis().to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Other(child)
    }

    fn signal(&self, name: &str) {
        let done = Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test of its own: rank 1 of the tests below, which reduces until it is stopped.
#[test]
#[ignore = "started by other tests as a process of its own"]
fn the_other_process() {
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let meeting = Meeting {
        rank: 1,
        size: number("ZBENCH_TEST_SIZE") as usize,
        host: "127.0.0.1".into(),
        port: number("ZBENCH_TEST_PORT") as u16,
        token: std::env::var("ZBENCH_TEST_TOKEN").unwrap(),
        timeout: PATIENCE,
        ..Meeting::default()
    };
    let stall = Duration::from_millis(number("ZBENCH_TEST_STALL_MS"));
    let comm = tcp(Rendezvous::join(&meeting).unwrap(), cpu(1), TcpOptions { stall, ..TcpOptions::default() }).unwrap();
    while comm.all_reduce(ViewMut::of(&mut vec![1f32; 100_000])).is_ok() {}
}

/// Ranks 0 and 2 as threads, which reduce until it ends, by blocking or by `started` calls; `harm` is done to rank 1 meanwhile.
fn until_the_end(stall: Duration, started: bool, harm: impl Fn(&mut Other)) -> (u32, Vec<CommError>, Duration) {
    let meeting = meeting(3, PATIENCE);
    let mut other = Other::start(&meeting, stall);
    let pid = other.0.id();
    let sums = Arc::new(AtomicUsize::new(0));
    let reduce_on = |rank: usize| {
        let (met, sums) = (join(&meeting, rank), sums.clone());
        std::thread::spawn(move || {
            let met: Rendezvous = met.join().unwrap().unwrap();
            assert_eq!(met.pids()[1], pid);
            let comm = tcp(met, cpu(rank), TcpOptions { stall, ..TcpOptions::default() }).unwrap();
            let arena = Arena::host(Some(1 << 20)).unwrap();
            let mut buffer = arena.alloc(Category::Gradients, DType::F32, 100_000).unwrap();
            for _ in 0.. {
                buffer.view_mut().as_slice_mut::<f32>().unwrap().fill(1.0);
                if started {
                    match comm.start(OwnedCall::all_reduce(buffer)).and_then(|ticket| comm.wait(ticket)) {
                        Ok(done) => buffer = done.recv.unwrap(),
                        Err(error) => return error,
                    }
                } else if let Err(error) = comm.all_reduce(buffer.view_mut()) {
                    return error;
                }
                sums.fetch_add(1, Ordering::Relaxed);
            }
            unreachable!("without an end")
        })
    };
    let threads = [reduce_on(0), reduce_on(2)];
    while sums.load(Ordering::Relaxed) < 6 && !threads.iter().any(|thread| thread.is_finished()) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let begin = Instant::now();
    harm(&mut other);
    let errors = threads.map(|thread| thread.join().unwrap()).to_vec();
    (pid, errors, begin.elapsed())
}

#[test]
fn a_process_that_is_killed_is_named_at_once() {
    let killed = |started| until_the_end(PATIENCE, started, |other| other.0.kill().unwrap());
    let both = std::thread::scope(|scope| {
        [false, true].map(|started| scope.spawn(move || killed(started))).map(|killed| killed.join().unwrap())
    });
    for (pid, errors, time) in both {
        for error in errors {
            let CommError::Aborted { rank: 1, reason, .. } = &error else { panic!("{error}") };
            assert!(reason.contains(&format!("pid {pid}, closed its connection")), "{reason}");
            assert!(reason.contains("host ") && reason.contains("in all_reduce number "), "{reason}");
        }
        assert!(time < PATIENCE / 2, "{time:?}");
    }
}

pub fn a_process_that_is_stopped_stalls_the_others() {
    let (_, errors, _) = until_the_end(2 * SHORT, false, |other| other.signal("-STOP"));
    for error in errors {
        let CommError::Stalled { operation: "all_reduce", missing, .. } = &error else { panic!("{error}") };
        assert_eq!(missing, &[1], "{error}");
    }
}
