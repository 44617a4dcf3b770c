//! The meeting protocol of `local` under loom: every interleaving of small groups (within a bound on preemptions), with
//! memory that tells when two ranks touch it at the same time.
//!
//! The protocol's own source is compiled here over loom's locks, so that no build flag is needed:
//! `cargo test -p zbench-engine --test comm_loom`.

// Memory shared without a lock is what is tested.
#![allow(unsafe_code)]

/// loom's types in place of those in `comm/sync.rs`.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
    /// loom would explore every spin.
    pub(crate) const SPINS: u32 = 0;
}
#[path = "../src/comm/protocol.rs"]
mod protocol;
#[path = "../src/comm/slots.rs"]
mod slots;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use protocol::{Turn, World};
use slots::{Call, Line, POSTED, Post, Seat};
use std::time::Duration;
use zbench_engine::comm::{CommError, Result};

/// One element of every rank's memory. loom panics when one is written while another rank uses it.
struct Memory(Vec<UnsafeCell<u64>>);

// SAFETY: this is the question: loom reports any access that the protocol does not order.
unsafe impl Sync for Memory {}
// SAFETY: plain numbers.
unsafe impl Send for Memory {}

impl Memory {
    fn new(cells: usize) -> Memory {
        Memory((0..cells).map(|_| UnsafeCell::new(0)).collect())
    }
    fn read(&self, at: usize) -> u64 {
        // SAFETY: loom checks that nobody writes.
        self.0[at].with(|p| unsafe { *p })
    }
    fn write(&self, at: usize, value: u64) {
        // SAFETY: loom checks that nobody else reads or writes.
        self.0[at].with_mut(|p| unsafe { *p = value });
    }
}

/// Where a rank's part lies, and what it calls.
#[derive(Clone, Debug, PartialEq)]
struct Note {
    at: usize,
    name: &'static str,
}

impl Post for Note {
    fn operation(&self) -> &'static str {
        self.name
    }
    fn agrees(&self, other: &Note) -> bool {
        self.name == other.name
    }
    fn describe(&self) -> String {
        self.name.into()
    }
}

fn model(
    threads: usize,
    preemptions: usize,
    rank: impl Fn(&World<Note>, &Memory, usize) + Send + Sync + Copy + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let world = Arc::new(World::new("world", threads, Duration::from_secs(3600)));
        let memory = Arc::new(Memory::new(2 * threads));
        let peers: Vec<_> = (1..threads)
            .map(|r| {
                let (world, memory) = (world.clone(), memory.clone());
                loom::thread::spawn(move || rank(&world, &memory, r))
            })
            .collect();
        rank(&world, &memory, 0);
        peers.into_iter().for_each(|peer| peer.join().unwrap());
    });
}

fn seat(rank: usize) -> Seat {
    Seat { group: 0, rank }
}

/// A call of `rounds` pieces of work, each told its round and the members' posts.
fn call(
    world: &World<Note>,
    rank: usize,
    line: Line,
    note: Note,
    rounds: u8,
    mut work: impl FnMut(u8, &[Note]),
) -> (u64, Result<()>) {
    let sequence = match world.post(seat(rank), line, note) {
        Ok(sequence) => sequence,
        Err(error) => return (u64::MAX, Err(error)),
    };
    let calls = &mut [Call { line, sequence, stage: POSTED, last: POSTED + rounds }];
    let mut posts = Vec::new();
    loop {
        match world.turn(seat(rank), calls, 0, &mut posts) {
            Ok(Turn::Done(_)) => return (sequence, Ok(())),
            Ok(Turn::Work(_, reading)) => {
                work(calls[0].stage - POSTED, &posts);
                reading.finish();
                calls[0].stage += 1;
            }
            Err(error) => return (sequence, Err(error)),
        }
    }
}

/// Writes its own cell, reads everybody's, and writes its cell again as soon as the call returns.
fn gather(world: &World<Note>, memory: &Memory, rank: usize, value: u64, size: u64) {
    memory.write(rank, value + rank as u64);
    let mut sum = 0;
    let note = Note { at: rank, name: "gather" };
    let (_, end) = call(world, rank, Line::All, note, 1, |_, posts| {
        sum = posts.iter().map(|post| memory.read(post.at)).sum();
    });
    end.unwrap();
    assert_eq!(sum, value * size + size * (size - 1) / 2);
}

#[test]
fn memory_is_read_between_the_last_post_and_the_first_return() {
    model(2, 4, |world, memory, rank| {
        gather(world, memory, rank, 10, 2);
        gather(world, memory, rank, 20, 2);
        world.depart(seat(rank));
    });
    model(3, 2, |world, memory, rank| {
        gather(world, memory, rank, 10, 3);
        world.depart(seat(rank));
    });
}

/// As an all-reduce: cell (owner, part); rank r sums part r of everybody into its own memory, then all copy.
#[test]
fn an_all_reduce_in_place_has_two_rounds() {
    model(2, 4, |world, memory, rank| {
        let cell = |owner: usize, part: usize| 2 * owner + part;
        (0..2).for_each(|part| memory.write(cell(rank, part), (10 * rank + part) as u64));
        let note = Note { at: rank, name: "reduce" };
        let (_, end) = call(world, rank, Line::All, note, 2, |round, _| match round {
            0 => memory.write(cell(rank, rank), memory.read(cell(0, rank)) + memory.read(cell(1, rank))),
            _ => memory.write(cell(rank, 1 - rank), memory.read(cell(1 - rank, 1 - rank))),
        });
        end.unwrap();
        assert_eq!((memory.read(cell(rank, 0)), memory.read(cell(rank, 1))), (10, 12));
        world.depart(seat(rank));
    });
}

/// Two calls under way, finished in opposite orders.
#[test]
fn calls_under_way_make_progress_for_each_other() {
    model(2, 3, |world, memory, rank| {
        memory.write(rank, 1 + rank as u64);
        let mut open: Vec<Call> = (0..2)
            .map(|_| {
                let sequence = world.post(seat(rank), Line::All, Note { at: rank, name: "gather" }).unwrap();
                Call { line: Line::All, sequence, stage: POSTED, last: POSTED + 1 }
            })
            .collect();
        let mut posts = Vec::new();
        while !open.is_empty() {
            let wanted = if rank == 0 { 0 } else { open.len() - 1 };
            match world.turn(seat(rank), &open, wanted, &mut posts).unwrap() {
                Turn::Done(index) => {
                    open.remove(index);
                }
                Turn::Work(index, reading) => {
                    assert_eq!(posts.iter().map(|post| memory.read(post.at)).sum::<u64>(), 3);
                    reading.finish();
                    open[index].stage += 1;
                }
            }
        }
        memory.write(rank, 0);
        world.depart(seat(rank));
    });
}

/// Rank 0 gives up at any moment; whoever fails waits for its readers and then writes its memory. Nobody departs, which
/// would ring a bell that the end forgot.
#[test]
fn a_rank_that_gives_up_is_not_read_any_more() {
    fn program(world: &World<Note>, memory: &Memory, rank: usize) {
        memory.write(rank, 1);
        if rank == 0 {
            let sequence = world.post(seat(0), Line::All, Note { at: 0, name: "gather" }).unwrap();
            world.withdraw(seat(0), Line::All, sequence, "gave up");
        } else {
            let note = Note { at: rank, name: "gather" };
            let (sequence, end) = call(world, rank, Line::All, note, 1, |_, posts| {
                posts.iter().for_each(|post| assert_eq!(memory.read(post.at), 1));
            });
            let wanted = CommError::Aborted { group: "world".into(), rank: 0, reason: "gave up".into() };
            assert_eq!(end.unwrap_err(), wanted);
            assert_eq!(world.cause(), Some(wanted));
            world.withdraw(seat(rank), Line::All, sequence, "another reason");
        }
        memory.write(rank, 2);
    }
    model(2, 4, program);
    model(3, 2, program);
}

/// An end wakes whoever sleeps, and is seen by readers in the middle of a block.
#[test]
fn an_abort_wakes_those_who_wait() {
    model(2, 4, |world, _, rank| match rank {
        0 => world.abort(seat(0), "full disk"),
        _ => {
            let (_, end) = call(world, 1, Line::All, Note { at: 1, name: "gather" }, 1, |_, _| unreachable!("alone"));
            assert!(matches!(end, Err(CommError::Aborted { rank: 0, .. })), "{end:?}");
            assert!(world.has_ended());
        }
    });
}

#[test]
fn all_hear_of_a_mismatch() {
    model(2, 4, |world, memory, rank| {
        let name = ["gather", "reduce"][rank];
        let (sequence, end) = call(world, rank, Line::All, Note { at: rank, name }, 1, |_, _| memory.write(0, 0));
        assert!(matches!(end, Err(CommError::Mismatch { rank: other, .. }) if other == 1 - rank), "{end:?}");
        world.withdraw(seat(rank), Line::All, sequence, "mismatch");
        memory.write(rank, 1);
        world.depart(seat(rank));
    });
}

#[test]
fn those_who_wait_hear_of_one_that_leaves() {
    model(3, 2, |world, _, rank| {
        if rank != 2 {
            let note = Note { at: rank, name: "gather" };
            let (_, end) = call(world, rank, Line::All, note, 1, |_, _| unreachable!("rank 2 never came"));
            assert!(matches!(end, Err(CommError::Aborted { rank: 2, .. })), "{end:?}");
        }
        world.depart(seat(rank));
    });
}

/// A pair's calls have numbers of their own, and a split makes one group per color, whoever comes first.
#[test]
fn pairs_and_splits() {
    model(2, 3, |world, memory, rank| {
        memory.write(rank, rank as u64);
        let line = Line::Pair { from: 1, to: 0 };
        let note = Note { at: rank, name: "pass" };
        let (sequence, end) = call(world, rank, line, note, 1, |_, posts| {
            if rank == 0 {
                assert_eq!(memory.read(posts[0].at), 1);
            }
        });
        end.unwrap();
        assert_eq!(sequence, 0);
        memory.write(rank, 7);

        let mut group = None;
        let sequence = world.post(seat(rank), Line::All, Note { at: rank, name: "split" }).unwrap();
        let mut open = [Call { line: Line::All, sequence, stage: POSTED, last: POSTED + 1 }];
        while let Turn::Work(_, reading) = world.turn(seat(rank), &open, 0, &mut Vec::new()).unwrap() {
            group = world.form(seat(rank), &open[0], 5, "sub", &[1, 0]);
            reading.finish();
            open[0].stage += 1;
        }
        assert_eq!(group, Some(1));
        let sub = Seat { group: 1, rank: 1 - rank };
        world.post(sub, Line::All, Note { at: rank, name: "barrier" }).unwrap();
        let meet = [Call { line: Line::All, sequence: 0, stage: POSTED, last: POSTED }];
        assert!(matches!(world.turn(sub, &meet, 0, &mut Vec::new()), Ok(Turn::Done(0))));
        world.depart(sub);
        world.depart(seat(rank));
    });
}
