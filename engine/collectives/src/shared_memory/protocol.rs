//! How ranks that share memory meet: without locks, in memory that may belong to several processes.
//!
//! Each member of a line (all ranks of a group, or a sender and its receiver) has one slot per call under way, and only it
//! writes there: first what it posts, then how far it has come. A call goes through stages. Stage 1: posted. Each piece of
//! work raises a rank's stage by one and may begin when all members have reached the stage before it. What members have
//! posted may be read from then until the rank says that it has left; a slot is used again when all have left its call. A rank
//! without work of its own, as a sender, whose receiver copies, posts at the stage after it.
//!
//! Memory of other ranks is only touched between [`WorldState::enter`] and the end of its guard. A rank that gives up ends the
//! world first, so that nobody enters any more, and then waits until nobody is inside: only then may its memory be used
//! for something else.

// The order in which ranks may use each other's memory is made here; tests/loom checks it.
#![allow(unsafe_code)]

use super::sync::FutexScope::Shared;
use super::sync::{AtomicU32, AtomicU64, Ordering, SpinPolicy, UnsafeCell, full_fence, sleep, spin_until, wake};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// The stage of a rank that has posted and done no work yet.
pub(crate) const POSTED: u8 = 1;
/// The stage of a rank that needs the call no more, nor any before it.
pub(crate) const LEFT: u8 = u8::MAX;

/// What others see of a rank, and where it sleeps.
#[repr(C, align(128))]
pub(crate) struct RankFlags {
    /// Counts wake-ups; the futex that the rank sleeps on.
    pub(crate) wakeups: AtomicU32,
    /// How many of the rank's threads sleep, or are about to.
    pub(crate) asleep: AtomicU32,
    /// Pieces of work in which the rank may touch others' memory.
    pub(crate) inside: AtomicU32,
}

#[repr(C, align(128))]
pub(crate) struct Slot<P> {
    /// The call's number and the stage reached; grows for ever.
    pub(crate) word: AtomicU64,
    /// Something that a piece of work leaves for the others.
    pub(crate) note: AtomicU64,
    pub(crate) post: UnsafeCell<MaybeUninit<P>>,
}

// SAFETY: `post` is written by its one owner when nobody reads it, and read by others after an acquire of `word`.
unsafe impl<P: Send + Sync> Sync for Slot<P> {}

/// Which calls a member has left. Only the member writes this. The others read it seldom: once one of them has seen the count, it
/// knows of all calls below it that the member needs their slots no more.
#[repr(C, align(128))]
pub(crate) struct LeftCalls {
    /// The member has left this many calls, counted from the first.
    pub(crate) count: AtomicU64,
    /// One bit for each later call says whether the member has left it. Only the member reads this.
    pub(crate) ahead: AtomicU64,
}

/// The slots of those who take part in a call, one of each member for each of the calls that can be under way.
pub(crate) struct Line<'a, P> {
    slots: &'a [Slot<P>],
    /// By member.
    left: &'a [LeftCalls],
    /// Calls that can be under way: a power of two, since a division takes as long as a look at a slot.
    depth: u64,
}

impl<P> Clone for Line<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<P> Copy for Line<'_, P> {}

fn word(sequence: u64, stage: u8) -> u64 {
    sequence << 8 | u64::from(stage)
}

impl<'a, P: Copy> Line<'a, P> {
    /// `slots` holds one for each member for each of `depth` calls.
    pub(crate) fn new(slots: &'a [Slot<P>], left: &'a [LeftCalls], depth: u64) -> Line<'a, P> {
        debug_assert!(depth.is_power_of_two() && depth <= 64 && slots.len() as u64 == depth * left.len() as u64);
        Line { slots, left, depth }
    }

    pub(crate) fn members(&self) -> usize {
        self.left.len()
    }

    /// The slots of a call, by member.
    fn slots(&self, sequence: u64) -> &'a [Slot<P>] {
        let first = (sequence & (self.depth - 1)) as usize * self.members();
        &self.slots[first..first + self.members()]
    }

    pub(crate) fn slot(&self, sequence: u64, place: usize) -> &'a Slot<P> {
        &self.slots(sequence)[place]
    }

    /// Whether the slots that this call needs are free. `known` is how many calls the asking member has seen all to have left,
    /// and is brought up to date when it does not suffice.
    pub(crate) fn vacant(&self, sequence: u64, known: &mut u64) -> bool {
        let Some(before) = sequence.checked_sub(self.depth) else { return true };
        if *known <= before {
            *known = self.left_by_all();
        }
        *known > before
    }

    /// Puts a post into the member's own slot, at a stage: [`POSTED`], or one later for each piece of work that is not its own.
    ///
    /// # Safety
    /// `vacant` has said yes to this member, which is at `place` and posts this number for the first time.
    pub(crate) unsafe fn post(&self, sequence: u64, place: usize, post: P, stage: u8) {
        let slot = self.slot(sequence, place);
        // SAFETY: all members have left the call that used the slot before, so nobody reads it.
        slot.post.with_mut(|cell| unsafe { (*cell).write(post) });
        slot.word.store(word(sequence, stage), Ordering::Release);
    }

    fn left_by_all(&self) -> u64 {
        self.left.iter().map(|left| left.count.load(Ordering::Acquire)).min().unwrap_or(0)
    }

    /// Whether a member has come to this stage of this call.
    pub(crate) fn has(&self, place: usize, sequence: u64, stage: u8) -> bool {
        match stage {
            LEFT => self.left[place].count.load(Ordering::Acquire) > sequence,
            _ => self.slot(sequence, place).word.load(Ordering::Acquire) >= word(sequence, stage),
        }
    }

    /// Whether all members have.
    pub(crate) fn reached(&self, sequence: u64, stage: u8) -> bool {
        if stage == LEFT {
            return self.left_by_all() > sequence;
        }
        self.slots(sequence).iter().all(|slot| slot.word.load(Ordering::Acquire) >= word(sequence, stage))
    }

    /// Whether a member at this stage may go on: all members have come so far and have posted what goes together. `check` looks at
    /// the posts once, when all are there; `agreed` remembers that it found nothing.
    ///
    /// # Errors
    /// What `check` finds. The member must not work on the call then.
    pub(crate) fn may_work<E>(
        &self,
        sequence: u64,
        stage: u8,
        agreed: &mut bool,
        check: impl FnOnce() -> Result<(), E>,
    ) -> Result<bool, E> {
        // The last member may post between two looks at the slots, so nobody looks further before the check is done.
        if !*agreed {
            if !self.reached(sequence, POSTED) {
                return Ok(false);
            }
            check()?;
            *agreed = true;
        }
        Ok(self.reached(sequence, stage))
    }

    /// What a member has posted.
    ///
    /// # Safety
    /// All members have posted this call, and the one that asks has not left it.
    pub(crate) unsafe fn posted(&self, sequence: u64, place: usize) -> P {
        // SAFETY: written before the word that was seen, and not again before the asking member leaves.
        self.slot(sequence, place).post.with(|cell| unsafe { (*cell).assume_init() })
    }

    pub(crate) fn advance(&self, sequence: u64, place: usize, stage: u8) {
        self.slot(sequence, place).word.store(word(sequence, stage), Ordering::Release);
    }

    /// Says that a member needs a call no more. Calls may be left in any order; one counts when all before it are left.
    pub(crate) fn leave(&self, sequence: u64, place: usize) {
        let LeftCalls { count, ahead } = &self.left[place];
        let (first, known) = (count.load(Ordering::Relaxed), ahead.load(Ordering::Relaxed));
        // Fewer than 64 calls of a member are under way. Another process may have damaged the count.
        let all = known | 1 << (sequence.wrapping_sub(first) & 63);
        let more = all.trailing_ones();
        ahead.store(all.checked_shr(more).unwrap_or(0), Ordering::Relaxed);
        count.store(first.wrapping_add(u64::from(more)), Ordering::Release);
    }
}

/// The flags of all ranks of a world, and whether it has ended.
#[derive(Clone, Copy)]
pub(crate) struct WorldState<'a> {
    pub(crate) flags: &'a [RankFlags],
    /// 0 while the world lives.
    pub(crate) ended: &'a AtomicU32,
}

/// Permission to touch what others have posted.
pub(crate) struct Inside<'a>(&'a RankFlags);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Release);
    }
}

impl<'a> WorldState<'a> {
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire) != 0
    }

    /// Wakes those who sleep, after a change they may wait for. `complete` is asked only when somebody sleeps.
    pub(crate) fn tell(&self, others: impl Iterator<Item = usize> + Clone, complete: impl Fn() -> bool) {
        // Either the sleeper's last look sees the change, or this sees the sleeper.
        full_fence();
        // A number of a rank that another process has damaged belongs to nobody.
        let sleeps = |rank: usize| self.flags.get(rank).is_some_and(|flags| flags.asleep.load(Ordering::Relaxed) != 0);
        if others.clone().any(sleeps) && complete() {
            others.filter(|rank| sleeps(*rank)).for_each(|rank| self.wake_rank(rank));
        }
    }

    /// Wakes all threads of a rank that sleep.
    pub(crate) fn wake_rank(&self, rank: usize) {
        let flags = &self.flags[rank];
        flags.wakeups.fetch_add(1, Ordering::Release);
        wake(&flags.wakeups, Shared);
    }

    /// Waits for `ready`, which looks at the end of the world too; at most `limit` of it asleep. An error says since when
    /// it waits: it is time to look for something worse.
    pub(crate) fn wait(
        &self,
        own: usize,
        policy: SpinPolicy,
        limit: Duration,
        ready: impl Fn() -> bool,
    ) -> Result<(), Instant> {
        let Err(since) = spin_until(policy, &ready) else { return Ok(()) };
        self.nap(own, limit, &ready);
        if ready() { Ok(()) } else { Err(since) }
    }

    /// Sleeps until there is news for this rank, at most `limit`; not at all where `ready` says so.
    pub(crate) fn nap(&self, own: usize, limit: Duration, ready: impl FnOnce() -> bool) {
        let flags = &self.flags[own];
        let seen = flags.wakeups.load(Ordering::Acquire);
        flags.asleep.fetch_add(1, Ordering::Relaxed);
        full_fence();
        if !ready() {
            sleep(&flags.wakeups, seen, Some(limit), Shared);
        }
        flags.asleep.fetch_sub(1, Ordering::Relaxed);
    }

    /// Permission to touch others' memory; none when the world has ended.
    #[inline]
    pub(crate) fn enter(&self, own: usize) -> Option<Inside<'a>> {
        let flags = &self.flags[own];
        flags.inside.fetch_add(1, Ordering::Relaxed);
        // Either this sees the end, or who has made it sees this rank inside.
        full_fence();
        let inside = Inside(flags);
        (!self.has_ended()).then_some(inside)
    }

    /// Ends the world for the first time; false when it has ended before. Nothing is told yet.
    pub(crate) fn close(&self) -> bool {
        self.ended.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Says that what ended the world can be read, and wakes all.
    pub(crate) fn announce(&self) {
        self.ended.store(2, Ordering::Release);
        full_fence();
        (0..self.flags.len()).for_each(|rank| self.wake_rank(rank));
    }

    /// Whether a rank touches nobody's memory. Asked after the end of the world, a yes is for ever.
    pub(crate) fn outside(&self, rank: usize) -> bool {
        full_fence();
        self.flags[rank].inside.load(Ordering::Acquire) == 0
    }
}
