//! Started calls go on while their rank is elsewhere. What is claimed is proven by the order of events: a rank that is not in a call
//! waits for a word that comes only after the other rank's call is complete.

use crate::comm::harness::{Backend, PATIENCE, attempt, run};
use crate::comm::program::filled;
use crate::comm::tree::Mood;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use zbench_collectives::{CommError, Communicator, OwnedCall, all_to_all_v};
use zbench_kernels::{Arena, Buffer, Category, DType, View, ViewMut};
use zbench_test_tiers as tiers;

const BACKENDS: [Backend; 3] = [Backend::Local, Backend::MeteredLocal, Backend::Shm];
/// In f32: 1 KiB and 16 MiB.
const LENGTHS: [usize; 2] = [256, 4 << 20];

/// Words between ranks that are no calls. A word that does not come fails the test.
struct Words {
    to: [Sender<()>; 2],
    from: [Mutex<Receiver<()>>; 2],
}

impl Words {
    fn new() -> Words {
        let ((to_0, from_1), (to_1, from_0)) = (channel(), channel());
        Words { to: [to_0, to_1], from: [Mutex::new(from_1), Mutex::new(from_0)] }
    }

    fn say_to(&self, rank: usize) {
        self.to[rank].send(()).unwrap();
    }

    /// Sleeps or computes, in any case outside of every call, until the other rank says something.
    fn hear(&self, rank: usize) {
        self.from[rank]
            .lock()
            .unwrap()
            .recv_timeout(PATIENCE)
            .expect("the other rank's call was to be complete by now");
    }
}

fn room(arena: &Arena, len: usize) -> Buffer {
    arena.alloc(Category::Communication, DType::F32, len).unwrap()
}

fn given(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7 + rank * 13) % 1001) as f32).collect()
}

fn each(program: impl Fn(&dyn Communicator, &Arena, &Words, usize) + Sync) {
    for [backend, len] in tiers::combinations("comm::started", [BACKENDS.len(), LENGTHS.len()]) {
        let words = Words::new();
        run(BACKENDS[backend], 2, |comm| program(comm, &Arena::host(Some(256 << 20)).unwrap(), &words, LENGTHS[len]));
    }
}

#[test]
fn a_send_returns_before_its_receiver_wakes_and_is_received_while_the_sender_is_elsewhere() {
    each(|comm, arena, words, len| {
        if comm.rank() == 0 {
            let ticket = comm.start(OwnedCall::send(filled(arena, &given(0, len)), 1)).unwrap();
            words.say_to(1); // it sleeps until now
            words.hear(0); // it has received
            let buffer = comm.wait(ticket).unwrap().send.unwrap();
            assert_eq!(buffer.view().as_slice::<f32>().unwrap(), given(0, len));
        } else {
            words.hear(1);
            let mut buffer = vec![0f32; len];
            comm.recv(ViewMut::of(&mut buffer), 0).unwrap();
            words.say_to(0);
            assert_eq!(buffer, given(0, len));
        }
    });
}

#[test]
fn a_started_receive_takes_what_comes_while_its_rank_is_elsewhere() {
    each(|comm, arena, words, len| {
        if comm.rank() == 0 {
            let ticket = comm.start(OwnedCall::recv(room(arena, len), 1)).unwrap();
            words.hear(0); // the sender's blocking call has returned: the data were read
            let buffer = comm.wait(ticket).unwrap().recv.unwrap();
            assert_eq!(buffer.view().as_slice::<f32>().unwrap(), given(1, len));
        } else {
            comm.send(View::of(&given(1, len)), 0).unwrap();
            words.say_to(0);
        }
    });
}

#[test]
fn a_started_collective_is_carried_on_while_its_rank_is_elsewhere() {
    each(|comm, arena, words, len| {
        let sum: Vec<f32> = given(0, len).iter().zip(given(1, len)).map(|(a, b)| a + b).collect();
        if comm.rank() == 0 {
            let ticket = comm.start(OwnedCall::all_reduce(filled(arena, &given(0, len)))).unwrap();
            words.hear(0);
            assert_eq!(comm.wait(ticket).unwrap().recv.unwrap().view().as_slice::<f32>().unwrap(), sum);
        } else {
            let mut buffer = given(1, len);
            comm.all_reduce(ViewMut::of(&mut buffer)).unwrap();
            words.say_to(0);
            assert_eq!(buffer, sum);
        }
    });
}

/// More than can be under way between two ranks: the rest waits for its turn, and the sender for nothing.
#[test]
fn sends_to_a_rank_that_sleeps_all_return() {
    const COUNT: usize = 40;
    for backend in BACKENDS {
        let words = Words::new();
        run(backend, 2, |comm| {
            let arena = Arena::host(Some(16 << 20)).unwrap();
            if comm.rank() == 0 {
                let start = |i| comm.start(OwnedCall::send(filled(&arena, &given(i, 300 + i)), 1)).unwrap();
                let tickets: Vec<_> = (0..COUNT).map(start).collect();
                words.say_to(1);
                tickets.into_iter().rev().for_each(|ticket| drop(comm.wait(ticket).unwrap()));
            } else {
                words.hear(1);
                for i in 0..COUNT {
                    let mut buffer = vec![0f32; 300 + i];
                    comm.recv(ViewMut::of(&mut buffer), 0).unwrap();
                    assert_eq!(buffer, given(i, 300 + i), "message {i}");
                }
            }
        });
    }
}

/// While a rank waits in one group, what it has started in another goes on: rank 1 comes to the barrier only after the sum.
#[test]
fn calls_of_one_group_go_on_while_the_rank_waits_in_another() {
    for backend in BACKENDS {
        run(backend, 2, |comm| {
            let arena = Arena::host(Some(16 << 20)).unwrap();
            let (one, other) = (comm.split(0, 0, "one").unwrap(), comm.split(0, 0, "other").unwrap());
            let ticket = one.start(OwnedCall::all_reduce(filled(&arena, &given(comm.rank(), 5000)))).unwrap();
            if comm.rank() == 0 {
                other.barrier().unwrap();
                drop(one.wait(ticket).unwrap());
            } else {
                drop(one.wait(ticket).unwrap());
                other.barrier().unwrap();
            }
        });
    }
}

#[test]
fn a_send_that_is_not_what_its_receiver_expects_is_an_error_on_both() {
    for backend in [Backend::Local, Backend::Shm] {
        let results = attempt(backend, &[Mood::Well; 2], PATIENCE, |comm| {
            let arena = Arena::host(Some(16 << 20)).unwrap();
            let peer = 1 - comm.rank();
            let call = match comm.rank() {
                0 => OwnedCall::send(room(&arena, 10), peer),
                _ => OwnedCall::recv(room(&arena, 11), peer),
            };
            comm.start(call).and_then(|ticket| comm.wait(ticket)).map(drop).unwrap_err()
        });
        for result in results {
            let error = result.unwrap();
            let text = error.to_string();
            assert!(text.contains("send of 10 f32") && text.contains("recv of 11 f32"), "{text}");
        }
    }
}

/// A rank that dies while others have calls under way ends them, and their buffers are free.
#[test]
fn the_end_of_a_rank_ends_what_others_have_started() {
    for backend in BACKENDS {
        let results = attempt(backend, &[Mood::Well; 3], PATIENCE, |comm| {
            let arena = Arena::host(Some(16 << 20)).unwrap();
            if comm.rank() == 2 {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
            let reduce = comm.start(OwnedCall::all_reduce(filled(&arena, &given(0, 5000))));
            let pass = comm.start(match comm.rank() {
                0 => OwnedCall::send(filled(&arena, &given(0, 5000)), 2),
                _ => OwnedCall::recv(room(&arena, 10), 2),
            });
            let errors =
                [reduce, pass].map(|started| started.and_then(|ticket| comm.wait(ticket)).map(drop).unwrap_err());
            assert_eq!(arena.ledger().live_total(), 0);
            errors
        });
        for result in &results[..2] {
            for error in result.as_ref().unwrap() {
                let named = matches!(error, CommError::Aborted { rank: 2, reason, .. } if reason == "panicked");
                assert!(named, "{backend:?}: {error}");
            }
        }
    }
}

#[test]
fn parts_of_all_lengths_go_to_all() {
    for backend in BACKENDS {
        for size in [1, 2, 3, 6] {
            run(backend, size, |comm| {
                let rank = comm.rank();
                // Some give nothing, and rank 2 takes nothing.
                let count = |from: usize, to: usize| if to == 2 { 0 } else { (3 * from + 5 * to) % 7 };
                let part =
                    |from: usize, to: usize| (0..count(from, to)).map(move |i| (100 * from + 10 * to + i) as f32);
                let send: Vec<f32> = (0..size).flat_map(|to| part(rank, to)).collect();
                let wanted: Vec<f32> = (0..size).flat_map(|from| part(from, rank)).collect();
                let mut recv = vec![-1f32; wanted.len()];
                let send_counts: Vec<usize> = (0..size).map(|to| count(rank, to)).collect();
                let recv_counts: Vec<usize> = (0..size).map(|from| count(from, rank)).collect();
                let kernels = zbench_kernels::Cpu::new(1);
                let (give, take) = (View::of(&send), ViewMut::of(&mut recv));
                all_to_all_v(comm, &kernels, (give, &send_counts), (take, &recv_counts)).unwrap();
                assert_eq!(recv, wanted);
                let mut short = vec![0f32; wanted.len() + 1];
                let take = (ViewMut::of(&mut short), &recv_counts[..]);
                let error = all_to_all_v(comm, &kernels, (View::of(&send), &send_counts), take).unwrap_err();
                assert!(matches!(error, CommError::Invalid { operation: "all_to_all", .. }), "{error}");
            });
        }
    }
}
