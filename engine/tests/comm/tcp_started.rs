//! Started calls over TCP: they move while their rank is elsewhere, in any order of several groups, and end with the world.

use crate::comm::program::filled;
use crate::comm::tcp::{PATIENCE, attempt, cpu, patient, run};
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex};
use zbench_collectives::{Call, CommError, Communicator, Kind, OwnedCall, Tcp, TcpOptions, Ticket};
use zbench_kernels::{Arena, Buffer, ViewMut};
use zbench_test_tiers as tiers;

/// 1 KiB and 16 MiB.
const LENGTHS: [usize; 2] = [256, 4 << 20];

fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7 + seed * 31) % 1009) as f32).collect()
}

fn slice(buffer: &Option<Buffer>) -> &[f32] {
    buffer.as_ref().unwrap().view().as_slice::<f32>().unwrap()
}

/// What happened, in order; and a word from rank 1 to rank 0 that does not go through its communicator.
#[derive(Default)]
struct Log(Mutex<Vec<&'static str>>);

impl Log {
    fn put(&self, what: &'static str) {
        self.0.lock().unwrap().push(what);
    }

    fn into(self) -> Vec<&'static str> {
        self.0.into_inner().unwrap()
    }
}

/// A line between two ranks beside the communicator: each end is taken by one of them.
struct Line(Mutex<Option<Sender<()>>>, Mutex<Option<Receiver<()>>>);

impl Line {
    fn new() -> Line {
        let (to, from) = channel();
        Line(Mutex::new(Some(to)), Mutex::new(Some(from)))
    }

    fn tell(&self) {
        self.0.lock().unwrap().take().unwrap().send(()).unwrap();
    }

    /// "Computes" until it is told.
    fn hear(&self) {
        self.1.lock().unwrap().take().unwrap().recv_timeout(PATIENCE).expect("nothing moves while the rank computes");
    }
}

#[test]
fn a_started_send_arrives_while_its_rank_computes() {
    for len in LENGTHS {
        let (log, awake, arrived) = (Log::default(), Line::new(), Line::new());
        run(2, &patient(), |comm| {
            let arena = Arena::host(Some(32 << 20)).unwrap();
            if comm.rank() == 0 {
                let ticket = comm.start(OwnedCall::send(filled(&arena, &numbers(len, 1)), 1)).unwrap();
                log.put("started");
                awake.tell();
                arrived.hear();
                log.put("computed");
                assert_eq!(slice(&comm.wait(ticket).unwrap().send), numbers(len, 1));
            } else {
                awake.hear();
                let mut buffer = vec![0f32; len];
                comm.recv(ViewMut::of(&mut buffer), 0).unwrap();
                log.put("received");
                arrived.tell();
                assert_eq!(buffer, numbers(len, 1));
            }
            comm.barrier().unwrap();
        });
        assert_eq!(log.into(), ["started", "received", "computed"], "{len}");
    }
}

#[test]
fn a_started_receive_takes_while_its_rank_computes() {
    for len in LENGTHS {
        let (log, ready, gone) = (Log::default(), Line::new(), Line::new());
        run(2, &patient(), |comm| {
            let arena = Arena::host(Some(32 << 20)).unwrap();
            if comm.rank() == 1 {
                let ticket = comm.start(OwnedCall::recv(filled(&arena, &vec![0f32; len]), 0)).unwrap();
                ready.tell();
                gone.hear();
                log.put("computed");
                let before = comm.wire_bytes();
                assert_eq!(slice(&comm.wait(ticket).unwrap().recv), numbers(len, 2));
                assert_eq!(comm.wire_bytes() - before, 4 * len as u64);
            } else {
                ready.hear();
                comm.call(Call::giving(Kind::Send { to: 1 }, zbench_kernels::View::of(&numbers(len, 2)))).unwrap();
                log.put("sent");
                gone.tell();
            }
            comm.barrier().unwrap();
        });
        assert_eq!(log.into(), ["sent", "computed"], "{len}");
    }
}

/// Every kind that can be started among all, with rank 0 elsewhere until the others have waited for theirs.
#[test]
fn started_collectives_are_complete_while_a_rank_computes() {
    for len in [30, 3 << 18] {
        let (done, waited) = (AtomicUsize::new(0), Line::new());
        run(3, &patient(), |comm| {
            let arena = Arena::host(Some(64 << 20)).unwrap();
            let (rank, size) = (comm.rank(), comm.size());
            let own = numbers(len, rank);
            let whole: Vec<f32> = (0..size).flat_map(|rank| numbers(len, rank)).collect();
            let zeros = || filled(&arena, &vec![0f32; len]);
            let tickets = [
                OwnedCall::all_reduce(filled(&arena, &own)),
                OwnedCall::all_gather(filled(&arena, &own), filled(&arena, &vec![0f32; 3 * len])),
                OwnedCall::reduce_scatter(filled(&arena, &whole), zeros(), false),
                OwnedCall::reduce_scatter_in_place(filled(&arena, &whole)),
            ]
            .map(|call| comm.start(call).unwrap());
            if rank == 0 {
                waited.hear();
            }
            let results = tickets.map(|ticket| comm.wait(ticket).unwrap().recv);
            if rank > 0 && done.fetch_add(1, Ordering::Relaxed) == 1 {
                waited.tell();
            }
            let sum = |i: usize| (0..size).map(|rank| numbers(len, rank)[i]).sum::<f32>();
            let tripled: Vec<f32> = own.iter().map(|one| 3.0 * one).collect();
            assert_eq!(slice(&results[0])[len - 1], sum(len - 1));
            assert_eq!(slice(&results[1]), whole);
            assert_eq!(slice(&results[2]), tripled);
            assert_eq!(slice(&results[3])[rank * len..(rank + 1) * len], tripled);
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn two_groups_may_be_used_in_opposite_orders() {
    for len in [10, 300_000] {
        run(2, &patient(), |comm| {
            let arena = Arena::host(Some(32 << 20)).unwrap();
            let groups = [comm.split(0, 0, "one").unwrap(), comm.split(0, 0, "two").unwrap()];
            let order = if comm.rank() == 0 { [0, 1] } else { [1, 0] };
            for turn in 0..3 {
                let start = |group: usize| {
                    let buffer = filled(&arena, &numbers(len, 10 * group + comm.rank() + turn));
                    (group, groups[group].start(OwnedCall::all_reduce(buffer)).unwrap())
                };
                let started = order.map(start);
                for (group, ticket) in started {
                    let result = groups[group].wait(ticket).unwrap().recv;
                    let terms = [0, 1].map(|rank| numbers(len, 10 * group + rank + turn));
                    assert!(slice(&result).iter().enumerate().all(|(i, sum)| *sum == terms[0][i] + terms[1][i]));
                }
            }
        });
    }
}

/// Calls that are under way when one rank ends: those that others wait for then end too, with the cause.
fn ends_of(end: impl Fn(Tcp, [Ticket; 2]) + Sync) -> Vec<CommError> {
    let all_started = Barrier::new(3);
    let results = attempt(3, &patient(), cpu, |comm| {
        let arena = Arena::host(Some(32 << 20)).unwrap();
        let len = 1 << 20;
        // A pair without a partner, so that there is something that cannot be complete.
        let sum = comm.start(OwnedCall::all_reduce(filled(&arena, &numbers(len, 1)))).unwrap();
        let other = 2 - comm.rank().min(1);
        let open = OwnedCall::recv(filled(&arena, &numbers(len, 1)), if comm.rank() == 1 { 2 } else { 1 });
        let open =
            comm.start(if comm.rank() == 0 { OwnedCall::send(filled(&arena, &numbers(len, 1)), other) } else { open });
        all_started.wait();
        if comm.rank() == 1 {
            end(comm, [sum, open.unwrap()]);
            return None;
        }
        let error = open.and_then(|ticket| comm.wait(ticket)).unwrap_err();
        // Dropping a ticket after the end is no other end.
        drop(sum);
        assert_eq!(comm.barrier().unwrap_err(), error);
        Some(error)
    });
    results.into_iter().filter_map(|result| result.unwrap_or(None)).collect()
}

#[test]
fn a_rank_that_ends_ends_what_others_have_started() {
    let errors = ends_of(|comm, tickets| {
        comm.abort("gave up");
        drop(tickets);
    });
    assert_eq!(errors.len(), 2);
    for error in errors {
        assert!(matches!(&error, CommError::Aborted { rank: 1, reason, .. } if reason == "gave up"), "{error}");
    }
    for error in ends_of(|_, _| panic!("of rank 1, as it should")) {
        assert!(matches!(&error, CommError::Aborted { rank: 1, reason, .. } if reason == "panicked"), "{error}");
    }
}

#[test]
fn started_pairs_that_differ_are_named_on_both_sides() {
    for len in [5, 200_000] {
        let results = attempt(2, &patient(), cpu, |comm| {
            let arena = Arena::host(Some(32 << 20)).unwrap();
            let call = match comm.rank() {
                0 => OwnedCall::send(filled(&arena, &numbers(len, 1)), 1),
                _ => OwnedCall::recv(filled(&arena, &numbers(len + 1, 1)), 0),
            };
            // The started send of one frame may be complete before the receiver looks at it.
            comm.start(call).and_then(|ticket| comm.wait(ticket)).and_then(|_| comm.barrier()).unwrap_err()
        });
        for (rank, result) in results.into_iter().enumerate() {
            let error = result.unwrap();
            let both = [len, len + 1].map(|len| error.to_string().contains(&format!("of {len} f32")));
            assert_eq!(both, [true; 2], "rank {rank}: {error}");
        }
    }
}

/// What a program does in one of its groups.
#[derive(Clone, Copy, Debug)]
struct Step {
    group: usize,
    kind: u8,
    len: usize,
    /// Else the rank is inside until it is complete.
    started: bool,
    /// Sender and receiver, by any number.
    places: (usize, usize),
}

fn line() -> impl Strategy<Value = Step> {
    let len = prop_oneof![4 => 0usize..70, 2 => 1500usize..3000, 1 => 60_000usize..200_000];
    let places = (0usize..6, 0usize..6);
    (0usize..4, 0u8..5, len, prop::bool::weighted(0.7), places).prop_map(|(group, kind, len, started, places)| Step {
        group,
        kind,
        len,
        started,
        places,
    })
}

fn element(at: usize, rank: usize, i: usize) -> f32 {
    ((at * 31 + rank * 7 + i * 3) % 101) as f32 - 50.0
}

fn give(at: usize, rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| element(at, rank, i)).collect()
}

/// The call of line `at` on one rank, and what it should give; none where the rank has no part in it.
fn request(arena: &Arena, at: usize, line: Step, rank: usize, size: usize) -> Option<(OwnedCall, Vec<f32>)> {
    let Step { kind, len, places, .. } = line;
    let sum = |i: usize| (0..size).map(|rank| element(at, rank, i)).sum::<f32>();
    let own = |len| filled(arena, &give(at, rank, len));
    let (from, to) = (places.0 % size, places.1 % size);
    Some(match kind {
        0 => (OwnedCall::all_reduce(own(len)), (0..len).map(sum).collect()),
        1 => {
            let wanted = (rank * len..(rank + 1) * len).map(sum).collect();
            (OwnedCall::reduce_scatter(own(len * size), own(len), false), wanted)
        }
        2 => {
            let wanted = (0..size).flat_map(|rank| give(at, rank, len)).collect();
            (OwnedCall::all_gather(own(len), own(len * size)), wanted)
        }
        _ if from == to => return None,
        _ if rank == from => (OwnedCall::send(own(len), to), Vec::new()),
        _ if rank == to => (OwnedCall::recv(own(len), from), give(at, from, len)),
        _ => return None,
    })
}

/// Numbers that differ by rank, for what each rank may choose.
struct Choice(u64);

impl Choice {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }
}

/// A line that this rank does next: any, as long as those of one group, and those that block, keep their order.
fn next(left: &[(usize, Step)], choice: &mut Choice) -> usize {
    let first_of_group = |i: &usize| left[..*i].iter().all(|(_, line)| line.group != left[*i].1.group);
    let may = |i: &usize| left[*i].1.started || left[..*i].iter().all(|(_, line)| line.started);
    let all: Vec<usize> = (0..left.len()).filter(|i| first_of_group(i) && may(i)).collect();
    all[choice.below(all.len())]
}

fn execute(comm: &Tcp, program: &[Vec<Step>], seed: u64) {
    let rank = comm.rank();
    let arena = Arena::host(Some(256 << 20)).unwrap();
    let split = |color, name| comm.split(color, 0, name).unwrap();
    let groups = [split(0, "all"), split(rank % 2, "odd"), split(rank / 2, "half"), split(rank.min(1), "rest")];
    let mut choice = Choice(seed ^ (rank as u64 + 1) << 20);
    let mut open: Vec<(usize, Ticket, Vec<f32>)> = Vec::new();
    let mut at = 0;
    let check = |done: OwnedCall, wanted: &[f32]| {
        assert!(done.recv.is_none() || slice(&done.recv) == wanted);
    };
    for round in program {
        let mut left: Vec<(usize, Step)> = round.iter().enumerate().map(|(i, line)| (at + i, *line)).collect();
        at += round.len();
        while !left.is_empty() {
            let (at, line) = left.remove(next(&left, &mut choice));
            let group = &groups[line.group];
            let Some((mut call, wanted)) = request(&arena, at, line, group.rank(), group.size()) else { continue };
            if line.started {
                open.push((line.group, group.start(call).unwrap(), wanted));
            } else {
                group.call(call.as_call()).unwrap();
                check(call, &wanted);
            }
        }
        // All ranks start these without waiting for what comes after them.
        while !open.is_empty() && choice.below(4) > 0 {
            let (group, ticket, wanted) = open.swap_remove(choice.below(open.len()));
            check(groups[group].wait(ticket).unwrap(), &wanted);
        }
    }
    while !open.is_empty() {
        let (group, ticket, wanted) = open.swap_remove(choice.below(open.len()));
        check(groups[group].wait(ticket).unwrap(), &wanted);
    }
    comm.barrier().unwrap();
    assert_eq!(arena.ledger().live_total(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(tiers::cases("comm::tcp_started::random_programs", [12, 12, 200])))]

    #[test]
    fn random_programs(
        size in 1usize..=6,
        sockets in 1usize..=3,
        checksum: bool,
        seed: u64,
        program in prop::collection::vec(prop::collection::vec(line(), 1..10), 1..4),
    ) {
        let options = TcpOptions { sockets_per_peer: sockets, checksum, ..patient() };
        run(size, &options, |comm| execute(comm, &program, seed));
    }
}
