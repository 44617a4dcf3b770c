//! The meeting protocol of `local` and `shm` under loom: every interleaving of small groups (within a bound on
//! preemptions), with memory that tells when two ranks touch it at the same time. A wake-up that a sleeper misses shows as a
//! rank that waits for ever, which loom reports too.
//!
//! The protocol's own source is compiled here over loom's types, so that no build flag is needed:
//! `cargo test -p zbench-loom-tests --test loom comm`.

// What only the real world asks of it.
#[allow(dead_code)]
#[path = "../../engine/collectives/src/shared_memory/protocol.rs"]
mod protocol;

use crate::sync;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use protocol::{LEFT, LeftCalls, Line, POSTED, RankFlags, Slot, WorldState};
use std::mem::MaybeUninit;
use std::time::Duration;

/// What ranks share, and their memory: loom panics when a cell is written while another rank uses it.
struct World {
    flags: Vec<RankFlags>,
    ended: AtomicU32,
    slots: Vec<Slot<u64>>,
    left: Vec<LeftCalls>,
    memory: Vec<UnsafeCell<u64>>,
    ranks: usize,
}

// SAFETY: this is the question: loom reports any access that the protocol does not order.
unsafe impl Sync for World {}
// SAFETY: plain numbers.
unsafe impl Send for World {}

impl World {
    /// `depth` calls can be under way.
    fn new(ranks: usize, depth: usize) -> World {
        let flags = |_| RankFlags { wakeups: AtomicU32::new(0), asleep: AtomicU32::new(0), inside: AtomicU32::new(0) };
        let slot =
            |_| Slot { word: AtomicU64::new(0), note: AtomicU64::new(0), post: UnsafeCell::new(MaybeUninit::uninit()) };
        World {
            flags: (0..ranks).map(flags).collect(),
            ended: AtomicU32::new(0),
            slots: (0..depth * ranks).map(slot).collect(),
            left: (0..ranks).map(|_| LeftCalls { count: AtomicU64::new(0), ahead: AtomicU64::new(0) }).collect(),
            memory: (0..2 * ranks).map(|_| UnsafeCell::new(0)).collect(),
            ranks,
        }
    }

    fn world(&self) -> WorldState<'_> {
        WorldState { flags: &self.flags, ended: &self.ended }
    }

    fn line(&self) -> Line<'_, u64> {
        Line::new(&self.slots, &self.left, (self.slots.len() / self.ranks) as u64)
    }

    fn read(&self, at: usize) -> u64 {
        // SAFETY: loom checks that nobody writes.
        self.memory[at].with(|cell| unsafe { *cell })
    }

    fn write(&self, at: usize, value: u64) {
        // SAFETY: loom checks that nobody else reads or writes.
        self.memory[at].with_mut(|cell| unsafe { *cell = value });
    }

    fn others(&self, own: usize) -> impl Iterator<Item = usize> + Clone {
        (0..self.ranks).filter(move |rank| *rank != own)
    }

    /// Waits as `Shared` does; false when the world has ended instead.
    fn until(&self, own: usize, ready: impl Fn() -> bool) -> bool {
        while !ready() {
            if self.world().has_ended() {
                return false;
            }
            let _ = self.world().wait(own, sync::POLICY, Duration::MAX, || self.world().has_ended() || ready());
        }
        true
    }

    /// Posts where the slots are free; false when the world has ended instead.
    fn post(&self, own: usize, sequence: u64, post: u64) -> bool {
        self.post_at(own, sequence, post, POSTED)
    }

    /// As `post`, by a rank whose pieces of work before `stage` are none.
    fn post_at(&self, own: usize, sequence: u64, post: u64, stage: u8) -> bool {
        let line = self.line();
        if !self.until(own, || line.vacant(sequence, &mut 0)) {
            return false;
        }
        // SAFETY: `vacant` was seen, and every number is posted once.
        unsafe { line.post(sequence, own, post, stage) };
        self.world().tell(self.others(own), || line.reached(sequence, POSTED));
        true
    }

    fn posted(&self, sequence: u64) -> Vec<u64> {
        // SAFETY: called between the last post and this rank's leaving.
        (0..self.ranks).map(|rank| unsafe { self.line().posted(sequence, rank) }).collect()
    }

    fn advance(&self, own: usize, sequence: u64, stage: u8) {
        let line = self.line();
        line.advance(sequence, own, stage);
        self.world().tell(self.others(own), || line.reached(sequence, stage));
    }

    fn leave(&self, own: usize, sequence: u64) {
        let line = self.line();
        line.leave(sequence, own);
        self.world().tell(self.others(own), || line.reached(sequence, LEFT));
    }

    /// A call with one piece of work on others' memory: all come, work, and wait for all. False when the world ended.
    fn call(&self, own: usize, sequence: u64, work: impl FnOnce(Vec<u64>)) -> bool {
        let line = self.line();
        if !self.post(own, sequence, own as u64) || !self.until(own, || line.reached(sequence, POSTED)) {
            return false;
        }
        let Some(inside) = self.world().enter(own) else { return false };
        work(self.posted(sequence));
        drop(inside);
        self.advance(own, sequence, POSTED + 1);
        let all = self.until(own, || line.reached(sequence, POSTED + 1));
        self.leave(own, sequence);
        all
    }

    /// Ends the world and waits until nobody touches memory.
    fn give_up(&self, own: usize) {
        if self.world().close() {
            self.world().announce();
        }
        for rank in self.others(own) {
            while !self.world().outside(rank) {
                loom::thread::yield_now();
            }
        }
    }
}

fn model(ranks: usize, depth: usize, preemptions: usize, rank: impl Fn(&World, usize) + Send + Sync + Copy + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 20_000;
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let world = Arc::new(World::new(ranks, depth));
        let peer = |r| {
            let world = world.clone();
            loom::thread::spawn(move || rank(&world, r))
        };
        let peers: Vec<_> = (1..ranks).map(peer).collect();
        rank(&world, 0);
        peers.into_iter().for_each(|peer| peer.join().unwrap());
    });
}

/// Writes its own cell, reads everybody's, and writes its cell again as soon as the call returns.
fn gather(world: &World, own: usize, sequence: u64) {
    let size = world.ranks as u64;
    world.write(own, 10 * sequence + own as u64);
    let mut sum = 0;
    let whole = world.call(own, sequence, |posts| sum = posts.iter().map(|at| world.read(*at as usize)).sum());
    assert!(whole);
    assert_eq!(sum, 10 * sequence * size + size * (size - 1) / 2);
}

#[test]
fn memory_is_read_between_the_last_post_and_the_first_return() {
    model(2, 2, 2, |world, own| gather(world, own, 0));
}

#[test]
fn slots_are_used_again_when_all_have_left() {
    model(2, 1, 1, |world, own| (0..2).for_each(|sequence| gather(world, own, sequence)));
}

/// As an all-reduce: cell (owner, part); rank r sums part r of everybody and writes it to everybody.
#[test]
fn an_all_reduce_in_place_has_one_writer_for_each_part() {
    model(2, 2, 3, |world, own| {
        let cell = |owner: usize, part: usize| 2 * owner + part;
        (0..2).for_each(|part| world.write(cell(own, part), (10 * own + part) as u64));
        let whole = world.call(own, 0, |_| {
            let sum = world.read(cell(0, own)) + world.read(cell(1, own));
            (0..2).for_each(|owner| world.write(cell(owner, own), sum));
        });
        assert!(whole);
        assert_eq!((world.read(cell(own, 0)), world.read(cell(own, 1))), (10, 12));
    });
}

/// What is written beside a post (here the post itself) may be read after its owner has gone on.
#[test]
fn an_eager_call_does_not_wait_for_its_readers() {
    fn program(world: &World, own: usize) {
        let line = world.line();
        for sequence in 0..2 {
            assert!(world.post(own, sequence, 10 * sequence + own as u64));
            assert!(world.until(own, || line.reached(sequence, POSTED)));
            let wanted: Vec<u64> = (0..world.ranks as u64).map(|rank| 10 * sequence + rank).collect();
            assert_eq!(world.posted(sequence), wanted);
            world.leave(own, sequence);
        }
    }
    model(2, 1, 2, program);
    model(2, 2, 2, program);
}

/// Rank 0 gives up at any moment; whoever fails waits until nobody is inside and then writes its memory.
#[test]
fn a_rank_that_gives_up_is_not_touched_any_more() {
    fn program(world: &World, own: usize) {
        world.write(own, 1);
        if own == 0 {
            assert!(world.post(0, 0, 0));
            world.give_up(0);
        } else {
            let whole = world.call(own, 0, |posts| {
                posts.iter().for_each(|at| assert_eq!(world.read(*at as usize), 1));
            });
            assert!(!whole, "rank 0 never works");
            world.give_up(own);
        }
        world.write(own, 2);
    }
    model(2, 2, 3, program);
    model(3, 1, 1, program);
}

/// The end wakes whoever sleeps.
#[test]
fn an_end_wakes_those_who_wait() {
    model(2, 2, 4, |world, own| match own {
        0 => world.give_up(0),
        _ => assert!(!world.call(1, 0, |_| unreachable!("rank 0 never came"))),
    });
}

/// Two calls under way, finished in opposite orders.
#[test]
fn calls_under_way_do_not_disturb_each_other() {
    model(2, 2, 2, |world, own| {
        let line = world.line();
        for sequence in 0..2 {
            assert!(world.post(own, sequence, 7 + sequence));
        }
        for i in 0..2 {
            let sequence = if own == 0 { i } else { 1 - i };
            assert!(world.until(own, || line.reached(sequence, POSTED)));
            assert_eq!(world.posted(sequence), [7 + sequence; 2]);
            world.leave(own, sequence);
        }
    });
}

/// Calls are left in opposite orders, and their slots are used again by ranks that remember what they have seen to be left.
#[test]
fn slots_of_calls_that_are_left_in_any_order_are_used_again() {
    model(2, 2, 1, |world, own| {
        let (line, mut known) = (world.line(), 0);
        for first in [0, 2] {
            for sequence in first..first + 2 {
                assert!(world.until(own, || line.vacant(sequence, &mut { known })));
                assert!(line.vacant(sequence, &mut known));
                // SAFETY: `vacant` was seen, and every number is posted once.
                unsafe { line.post(sequence, own, 7 + sequence, POSTED) };
                world.world().tell(world.others(own), || line.reached(sequence, POSTED));
            }
            for i in 0..2 {
                let sequence = first + if own == 0 { i } else { 1 - i };
                assert!(world.until(own, || line.reached(sequence, POSTED)));
                assert_eq!(world.posted(sequence), [7 + sequence; 2]);
                world.leave(own, sequence);
            }
        }
    });
}

/// Members post calls that do not go together. Each of them finds out before it works, whenever the others post.
#[test]
fn nobody_works_on_posts_that_do_not_agree() {
    fn program(world: &World, own: usize) {
        assert!(world.post(own, 0, own as u64));
        let check = || if world.posted(0).iter().all(|post| *post == own as u64) { Ok(()) } else { Err("they differ") };
        let found = std::cell::Cell::new(Ok(false));
        let asked = || {
            found.set(world.line().may_work(0, POSTED, &mut false, check));
            found.get() != Ok(false)
        };
        assert!(world.until(own, asked));
        assert_eq!(found.get(), Err("they differ"));
    }
    model(2, 1, 3, program);
    model(3, 1, 2, program);
}

/// A sender posts at the stage behind the receiver's work. The receiver copies and leaves without the sender; the sender changes
/// its memory when it sees that the receiver has copied. The next call in the same slots waits for both.
#[test]
fn a_receiver_copies_while_its_sender_is_away() {
    model(2, 1, 2, |world, own| {
        let line = world.line();
        for sequence in 0..2 {
            if own == 0 {
                world.write(0, 5 + sequence);
                assert!(world.post_at(0, sequence, 0, POSTED + 1));
                assert!(world.until(0, || line.reached(sequence, POSTED + 1)));
                world.leave(0, sequence);
                world.write(0, 0);
            } else {
                assert!(world.post(1, sequence, 0));
                assert!(world.until(1, || line.reached(sequence, POSTED)));
                let inside = world.world().enter(1).expect("nobody ends the world");
                assert_eq!(world.read(0), 5 + sequence);
                drop(inside);
                world.advance(1, sequence, POSTED + 1);
                assert!(line.reached(sequence, POSTED + 1), "the sender has no work that it could owe");
                world.leave(1, sequence);
            }
        }
    });
}

/// The thread that carries on a rank's calls and a caller of the same rank may sleep at once; one change wakes both.
#[test]
fn all_threads_of_a_rank_are_woken() {
    model(3, 1, 3, |world, thread| {
        let line = world.line();
        if thread == 0 {
            // SAFETY: the first call, posted once.
            unsafe { line.post(0, 0, 0, POSTED) };
            world.world().tell([1].into_iter(), || line.has(0, 0, POSTED));
        } else {
            // Both are threads of rank 1.
            assert!(world.until(1, || line.has(0, 0, POSTED)));
        }
    });
}
