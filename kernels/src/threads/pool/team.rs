//! How the threads of a pool meet: one leads, the others follow. No locks, and no system call unless somebody sleeps.

#![allow(unsafe_code, reason = "the task's cell is shared without a lock; tests/loom checks the order")]

use super::sync::FutexScope::Private;
use super::sync::{AtomicU32, Ordering, SpinPolicy, UnsafeCell, full_fence, sleep, spin_until, wake};

/// An event count: something to wait for without a lock. A cache line of its own, so that who waits here disturbs nobody elsewhere.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct EventCount {
    epoch: AtomicU32,
    /// Threads that sleep, or are about to.
    sleepers: AtomicU32,
}

impl EventCount {
    /// How often it was notified.
    fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// What came before is seen by everybody whom this lets go.
    fn notify(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
        // Either this sees the sleeper, or the sleeper sees the new epoch and does not sleep.
        full_fence();
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            wake(&self.epoch, Private);
        }
    }

    /// Waits until it is notified after it showed `seen`.
    fn wait(&self, seen: u32, spin: SpinPolicy) {
        if spin_until(spin, || self.epoch() != seen).is_ok() {
            return;
        }
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        full_fence();
        while self.epoch() == seen {
            sleep(&self.epoch, seen, None, Private);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the threads of a pool share. `T` tells followers what to do.
pub(crate) struct Team<T> {
    /// Notified when there is a new task.
    begin: EventCount,
    /// Notified when all followers are done with it.
    end: EventCount,
    /// Notified when all have come to the end of a phase.
    gate: EventCount,
    busy: AtomicU32,
    /// Threads at the end of the present phase.
    arrived: AtomicU32,
    /// Whether a thread has left the task before its end.
    broken: AtomicU32,
    task: UnsafeCell<Option<T>>,
}

// SAFETY: the task is written by the leader while no follower is between `begin` and `done`, and read by followers there.
unsafe impl<T: Send> Sync for Team<T> {}

/// What a leader keeps between [`Team::start`] and [`Team::finish`].
pub(crate) struct Started(u32);

impl<T: Copy> Team<T> {
    pub fn new() -> Team<T> {
        Team {
            begin: EventCount::default(),
            end: EventCount::default(),
            gate: EventCount::default(),
            busy: AtomicU32::new(0),
            arrived: AtomicU32::new(0),
            broken: AtomicU32::new(0),
            task: UnsafeCell::new(None),
        }
    }

    /// Gives all `followers` a task; `None` sends them home.
    ///
    /// # Safety
    /// One leader at a time, which has finished the task before.
    pub unsafe fn start(&self, task: Option<T>, followers: u32) -> Started {
        let seen = self.end.epoch();
        // SAFETY: no follower looks before `begin` is notified: the task before is finished.
        self.task.with_mut(|cell| unsafe { *cell = task });
        self.arrived.store(0, Ordering::Relaxed);
        self.broken.store(0, Ordering::Relaxed);
        self.busy.store(followers, Ordering::Relaxed);
        self.begin.notify();
        Started(seen)
    }

    /// Waits until all followers are done. What they wrote is seen then.
    pub fn finish(&self, started: Started, spin: SpinPolicy) {
        self.end.wait(started.0, spin);
    }

    /// A follower's next task, after the one numbered `seen`; `None` when it is to go home.
    pub fn next(&self, seen: &mut u32, spin: SpinPolicy) -> Option<T> {
        self.begin.wait(*seen, spin);
        *seen = seen.wrapping_add(1);
        // SAFETY: the leader wrote it before it notified, and not again before this follower is done.
        self.task.with(|cell| unsafe { *cell })
    }

    /// A follower will not use its task any more.
    pub fn done(&self) {
        if self.busy.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end.notify();
        }
    }

    /// Ends a phase: waits for all `members`, the leader included, and sees what they wrote. False when one of them will
    /// never come.
    pub fn meet(&self, members: u32, spin: SpinPolicy) -> bool {
        let seen = self.gate.epoch();
        if self.is_broken() {
            return false;
        }
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == members {
            self.arrived.store(0, Ordering::Relaxed);
            self.gate.notify();
            return true;
        }
        self.gate.wait(seen, spin);
        !self.is_broken()
    }

    /// This thread leaves the task; nobody is to wait for it.
    pub fn leave(&self) {
        self.broken.store(1, Ordering::Release);
        self.gate.notify();
    }

    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire) != 0
    }
}
