//! How the threads of a pool meet (kernels/src/threads/pool/team.rs), under loom: every interleaving of small teams within a bound
//! on preemptions, with memory that tells when two threads touch it at the same time. A thread that sleeps through its
//! wake-up shows as a deadlock, which loom reports.
//!
//! The protocol's own source is compiled here over loom's types, so that no build flag is needed:
//! `cargo test -p zbench-loom-tests --test loom pool`.

#[path = "../../kernels/src/threads/pool/team.rs"]
mod team;

use crate::sync;
use crate::sync::POLICY;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use team::Team;

/// A team and memory that loom watches.
struct World {
    team: Team<usize>,
    cells: Vec<UnsafeCell<usize>>,
}

// SAFETY: this is the question: loom reports any access that the protocol does not order.
unsafe impl Sync for World {}
// SAFETY: plain numbers.
unsafe impl Send for World {}

impl World {
    fn read(&self, at: usize) -> usize {
        // SAFETY: loom checks that nobody writes.
        self.cells[at].with(|cell| unsafe { *cell })
    }

    fn write(&self, at: usize, value: usize) {
        // SAFETY: loom checks that nobody else reads or writes.
        self.cells[at].with_mut(|cell| unsafe { *cell = value });
    }
}

/// What a thread of an index does in a task of a number.
type Part = fn(&World, usize, usize);

/// A leader gives the tasks 1 to `tasks` to a team of `threads` and looks at their memory after each.
fn model(threads: usize, tasks: usize, preemptions: usize, part: Part, after: fn(&World, usize)) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 20_000;
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let cells = (0..2 * threads).map(|_| UnsafeCell::new(0)).collect();
        let world = Arc::new(World { team: Team::new(), cells });
        let follow = |index| {
            let world = world.clone();
            loom::thread::spawn(move || {
                let mut seen = 0;
                while let Some(task) = world.team.next(&mut seen, POLICY) {
                    part(&world, index, task);
                    world.team.done();
                }
            })
        };
        let followers: Vec<_> = (1..threads).map(follow).collect();
        for task in 1..=tasks {
            // SAFETY: the only leader, and the task before is finished.
            let started = unsafe { world.team.start(Some(task), threads as u32 - 1) };
            part(&world, 0, task);
            world.team.finish(started, POLICY);
            after(&world, task);
        }
        // SAFETY: as above.
        unsafe { world.team.start(None, 0) };
        followers.into_iter().for_each(|follower| follower.join().unwrap());
    });
}

/// The leader writes every cell between two tasks, so a thread that began early or stayed too long is seen.
fn one_phase(threads: usize, tasks: usize, preemptions: usize) {
    let part: Part = |world, index, task| {
        let own = world.read(index);
        world.write(index, own + task);
    };
    model(threads, tasks, preemptions, part, |world, task| {
        for at in 0..world.cells.len() / 2 {
            assert_eq!(world.read(at), (1..=task).sum::<usize>());
            world.write(at, (1..=task).sum());
        }
    });
}

#[test]
fn a_task_runs_between_its_start_and_its_finish() {
    one_phase(2, 2, 3);
    one_phase(3, 1, 2);
}

/// Each thread writes a cell, and in the next phase reads everybody's; then all write the first cells again.
fn three_phases(threads: usize, tasks: usize, preemptions: usize) {
    let part: Part = |world, index, task| {
        let threads = world.cells.len() / 2;
        let meet = || assert!(world.team.meet(threads as u32, POLICY));
        world.write(index, 10 * task + index);
        meet();
        let sum = (0..threads).map(|at| world.read(at)).sum();
        world.write(threads + index, sum);
        meet();
        world.write((index + 1) % threads, 0);
    };
    model(threads, tasks, preemptions, part, |world, task| {
        let threads = world.cells.len() / 2;
        let sum = 10 * task * threads + threads * (threads - 1) / 2;
        (0..threads).for_each(|index| assert_eq!((world.read(index), world.read(threads + index)), (0, sum)));
    });
}

#[test]
fn no_phase_begins_before_all_have_ended_the_one_before() {
    three_phases(2, 2, 2);
    three_phases(3, 1, 1);
}

/// One thread leaves before the first or the second meeting: nobody waits for it, and the next task is whole.
fn one_leaves<const LEAVER: usize, const MEETINGS: usize>(threads: usize, preemptions: usize) {
    let part: Part = |world, index, task| {
        let threads = world.cells.len() / 2;
        for meeting in 0..2 {
            if task == 1 && (index, meeting) == (LEAVER, MEETINGS) {
                return world.team.leave();
            }
            let whole = world.team.meet(threads as u32, POLICY);
            assert!(whole || task == 1);
            if !whole {
                return;
            }
        }
        assert_eq!(task, 2, "the leaver never came to the second meeting");
        let own = world.read(index);
        world.write(index, own + 1);
    };
    model(threads, 2, preemptions, part, |world, task| {
        assert_eq!(world.team.is_broken(), task == 1);
        (0..world.cells.len() / 2).for_each(|at| assert_eq!(world.read(at), task - 1));
    });
}

#[test]
fn a_thread_that_leaves_keeps_nobody_waiting() {
    one_leaves::<0, 0>(2, 2);
    one_leaves::<1, 0>(2, 2);
    one_leaves::<0, 1>(2, 2);
    one_leaves::<1, 1>(2, 2);
    one_leaves::<2, 1>(3, 1);
}
