//! How ranks that share memory wait for each other: one lock, one bell per group, and a flag that readers look at.
//!
//! Memory is only read between [`World::turn`] returning work and the [`Reading`] guard ending. A rank that gives up
//! first ends the world, so that no new read begins, and then waits in [`World::withdraw`] until the last reader is out:
//! only then may its memory be used for something else.

use super::slots::{Book, Call, Line, Post, Seat, Step};
use super::sync::{Arc, AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, SPINS};
use super::{CommError, Result};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// The groups of one run, which end together.
pub(crate) struct World<P: Post> {
    book: Mutex<Book<P>>,
    /// Set once, after the cause: lets a reader leave between blocks without the lock.
    ended: AtomicBool,
    /// Counts bells, so that a waiting rank can look for news without the lock.
    rings: AtomicU64,
    stall: Duration,
    spins: u32,
}

/// What a rank may do next.
pub(crate) enum Turn<'w, P: Post> {
    /// Work on the call with this index, while the guard lives.
    Work(usize, Reading<'w, P>),
    /// The call with this index is complete.
    Done(usize),
}

/// Permission to read what the members of a call have posted.
pub(crate) struct Reading<'w, P: Post> {
    world: &'w World<P>,
    seat: Seat,
    call: Call,
    done: bool,
}

impl<P: Post> Reading<'_, P> {
    /// The work is done: this rank is at the next stage.
    pub(crate) fn finish(mut self) {
        self.done = true;
    }
}

impl<P: Post> Drop for Reading<'_, P> {
    fn drop(&mut self) {
        let mut book = self.world.book();
        if book.worked(self.seat, &self.call, self.done) {
            self.world.ring(book, self.seat.group);
        }
    }
}

impl<P: Post> World<P> {
    /// A world with one group, number 0. `stall` is how long a rank waits for others before it gives up.
    pub(crate) fn new(name: &str, size: usize, stall: Duration) -> World<P> {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        World {
            book: Mutex::new(Book::new(name, size)),
            ended: AtomicBool::new(false),
            rings: AtomicU64::new(0),
            stall,
            // A rank that spins on a core which another rank needs only makes it later.
            spins: if size <= cores { SPINS } else { 0 },
        }
    }

    /// Says what this rank wants, and returns its number on the line. Does not wait.
    pub(crate) fn post(&self, seat: Seat, line: Line, post: P) -> Result<u64> {
        let mut book = self.book();
        let (sequence, complete) = book.post(seat, line, post)?;
        if complete {
            self.ring(book, seat.group);
        }
        Ok(sequence)
    }

    /// Waits until one of the rank's calls can go on; `calls[first]` is the one it was asked to finish. For work, `posts`
    /// is what the members posted.
    pub(crate) fn turn(&self, seat: Seat, calls: &[Call], first: usize, posts: &mut Vec<P>) -> Result<Turn<'_, P>> {
        let begin = Instant::now();
        let mut spins = self.spins;
        let mut book = self.book();
        loop {
            match book.step(seat, calls, posts) {
                Ok(Some(Step::Done(index))) => return Ok(Turn::Done(index)),
                Ok(Some(Step::Work(index))) => {
                    return Ok(Turn::Work(index, Reading { world: self, seat, call: calls[index], done: false }));
                }
                Ok(None) => {}
                Err(error) => {
                    self.announce_end(book);
                    return Err(error);
                }
            }
            let news = self.rings.load(Ordering::Acquire);
            if spins > 0 {
                drop(book);
                while spins > 0 && self.rings.load(Ordering::Acquire) == news {
                    std::hint::spin_loop();
                    spins -= 1;
                }
                book = self.book();
                continue;
            }
            let left = self.stall.saturating_sub(begin.elapsed());
            if left.is_zero() {
                let seconds = self.stall.as_secs_f64().ceil() as u64;
                if let Some(error) = book.stalled(seat, &calls[first], seconds) {
                    book.cause.get_or_insert(error);
                    self.announce_end(book);
                    book = self.book();
                    continue; // to learn the cause, which may be another's
                }
            }
            book = sleep(book, seat.group, left.max(Duration::from_millis(1)));
        }
    }

    /// The group made by the ranks that gave `color` in this split; `ranks` are theirs in the parent, in the new order.
    pub(crate) fn form(&self, seat: Seat, call: &Call, color: usize, name: &str, ranks: &[usize]) -> Option<u64> {
        self.book().form(seat, call, color, name, ranks)
    }

    /// Whether the world has ended: a reader that sees it leaves.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Why it has ended.
    pub(crate) fn cause(&self) -> Option<CommError> {
        self.book().cause.clone()
    }

    /// Ends the world: every rank that waits or comes gets the first reason.
    pub(crate) fn abort(&self, seat: Seat, reason: &str) {
        let mut book = self.book();
        book.end(seat, reason);
        self.announce_end(book);
    }

    /// For a rank that gives up on a call: ends the world, and returns when nobody reads what was posted for the call.
    pub(crate) fn withdraw(&self, seat: Seat, line: Line, sequence: u64, reason: &str) {
        self.abort(seat, reason);
        let mut book = self.book();
        while book.being_read(seat, line, sequence) {
            book = sleep(book, seat.group, Duration::from_millis(100));
        }
    }

    /// A rank takes part no more; those who wait for it are told.
    pub(crate) fn depart(&self, seat: Seat) {
        let mut book = self.book();
        book.depart(seat);
        self.ring(book, seat.group);
    }

    fn ring(&self, book: MutexGuard<'_, Book<P>>, group: u64) {
        let bell = bell(&book, group);
        self.rings.fetch_add(1, Ordering::Release);
        drop(book); // so that those who wake find the lock free
        if let Some(bell) = bell {
            bell.notify_all();
        }
    }

    fn announce_end(&self, book: MutexGuard<'_, Book<P>>) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        self.rings.fetch_add(1, Ordering::Release);
        let bells: Vec<Arc<Condvar>> = book.groups.values().map(|group| group.bell.clone()).collect();
        drop(book);
        bells.iter().for_each(|bell| bell.notify_all());
    }

    fn book(&self) -> MutexGuard<'_, Book<P>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bell<P: Post>(book: &Book<P>, group: u64) -> Option<Arc<Condvar>> {
    book.groups.get(&group).map(|group| group.bell.clone())
}

/// Waits for the group's bell, `limit` at most.
fn sleep<'b, P: Post>(book: MutexGuard<'b, Book<P>>, group: u64, limit: Duration) -> MutexGuard<'b, Book<P>> {
    match bell(&book, group) {
        Some(bell) => bell.wait_timeout(book, limit).unwrap_or_else(PoisonError::into_inner).0,
        None => book, // the group is gone, and with it every reader
    }
}
