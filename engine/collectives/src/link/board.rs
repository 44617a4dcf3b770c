//! The memory that all ranks of emulated nodes share: when each link is free, and the transfers under way.
//!
//! One small mapping for threads and processes alike: a memory file of rank 0 that the others open through
//! `/proc/<pid>/fd`, so that nothing is left behind however a run ends. A spin lock guards everything in it; what it guards
//! takes well under a microsecond.

// Counters in memory that several processes map.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zbench_kernels::{ArenaError, Region};

/// Transfers that may be under way at once, over all groups.
const MOST_OPEN: usize = 4096;
/// Words before the links: token, lock, next group, open transfers.
const HEAD: usize = 4;
/// Words of a transfer: group, line, number, arrived, left, start, end.
const ENTRY: usize = 7;
/// How long a rank waits for the lock. Only a rank that was stopped while it held it takes so long.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tells a transfer from all others of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The group, by the number that the board gave it.
    pub group: u64,
    /// 0 for all members, else a number of the pair.
    pub line: u64,
    /// Number in the line's program order.
    pub sequence: u64,
}

/// When a transfer began and when the link has delivered it, in ns of the system's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    pub start: u64,
    pub end: u64,
}

/// What a transfer asks of one link: its number on the board, and for how many ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub link: usize,
    pub ns: u64,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum BoardError {
    #[error("{what}: {reason}")]
    System { what: String, reason: String },
    #[error("what process {pid} shares is not the link of this run; ranks in containers need one process namespace")]
    Stranger { pid: u32 },
    #[error("a rank was stopped while it held the lock of the emulated link")]
    Stuck,
    #[error("more than {MOST_OPEN} transfers are under way over the emulated link; wait for some before starting more")]
    Full,
    #[error("transfer {0:?} is unknown to the emulated link; all ranks of a group need the link")]
    Unknown(Key),
}

fn system(what: &str, reason: impl std::fmt::Display) -> BoardError {
    BoardError::System { what: what.into(), reason: reason.to_string() }
}

pub(super) struct Board {
    region: Region,
    links: usize,
}

impl Board {
    pub fn create(links: usize, token: u64) -> Result<Board, BoardError> {
        let region = Region::shared(bytes(links)).map_err(|error| system("the link's memory", error))?;
        let board = Board { region, links };
        board.word(0).store(token, Ordering::Release);
        Ok(board)
    }

    /// The board that process `pid` has as its file `fd`.
    pub fn open(pid: u32, fd: i32, links: usize, token: u64) -> Result<Board, BoardError> {
        let path = format!("/proc/{pid}/fd/{fd}");
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(|error| system(&path, error))?;
        if file.metadata().map_err(|error| system(&path, error))?.len() != bytes(links) {
            return Err(BoardError::Stranger { pid });
        }
        let region = match Region::open(file.into(), bytes(links)) {
            Ok(region) => region,
            // A mapping beyond the file's end could not be touched, now or later.
            Err(ArenaError::Unsealed { .. } | ArenaError::Short { .. }) => return Err(BoardError::Stranger { pid }),
            Err(error) => return Err(system(&path, error)),
        };
        let board = Board { region, links };
        if board.token() == token { Ok(board) } else { Err(BoardError::Stranger { pid }) }
    }

    /// The number of this process's file by which others open the board.
    pub fn fd(&self) -> i32 {
        self.region.fd().map_or(-1, |fd| fd.as_raw_fd())
    }

    /// What tells this run's board from another's.
    pub fn token(&self) -> u64 {
        self.word(0).load(Ordering::Acquire)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        let words = words(self.links);
        assert!(index < words, "word {index} of a board of {words}");
        // SAFETY: inside the mapping (checked above), aligned (a page begins it), zeroed by the kernel, and only used as
        // atomics by every process that maps it.
        unsafe { self.region.base().cast::<AtomicU64>().add(index).as_ref() }
    }

    /// A number from 1 that no other group split from the world has.
    pub fn new_group(&self) -> u64 {
        self.word(2).fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Says that a member is there with its part, at `now`. The last of `members` takes the links that the transfer claims:
    /// each is its own from when it is free, and the transfer ends `latency` ns after the last of them is through.
    pub fn arrive(&self, key: Key, members: u64, now: u64, claims: &[Claim], latency: u64) -> Result<(), BoardError> {
        let book = self.lock()?;
        let entry = match book.find(key) {
            Some(entry) => entry,
            None => book.add(key)?,
        };
        let [arrived, start, end] = [3, 5, 6].map(|field| book.field(entry, field));
        set(start, get(start).max(now));
        set(arrived, get(arrived) + 1);
        if get(arrived) == members {
            set(end, book.reserve(get(start), claims).saturating_add(latency));
        }
        Ok(())
    }

    /// Takes the links from `now` on without meeting anybody: what a sender does. `key` is for the receiver.
    pub fn send(&self, key: Key, now: u64, claims: &[Claim], latency: u64) -> Result<Times, BoardError> {
        let book = self.lock()?;
        let end = book.reserve(now, claims).saturating_add(latency);
        let entry = book.add(key)?;
        for (field, value) in [(3, 1), (5, now), (6, end)] {
            set(book.field(entry, field), value);
        }
        Ok(Times { start: now, end })
    }

    /// The times of a transfer, for one of `members` that asks for them and then leaves it. Nothing when not all members
    /// were there yet.
    pub fn leave(&self, key: Key, members: u64) -> Result<Option<Times>, BoardError> {
        let book = self.lock()?;
        let entry = book.find(key).ok_or(BoardError::Unknown(key))?;
        let [left, start, end] = [4, 5, 6].map(|field| book.field(entry, field));
        let times = (get(end) > 0).then(|| Times { start: get(start), end: get(end) });
        set(left, get(left) + 1);
        if get(left) == members {
            book.remove(entry);
        }
        Ok(times)
    }

    fn lock(&self) -> Result<Book<'_>, BoardError> {
        let lock = self.word(1);
        let mut begin = None;
        let mut tries = 0u32;
        while lock.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            tries += 1;
            if tries < 64 {
                std::hint::spin_loop();
                continue;
            }
            std::thread::yield_now();
            if begin.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(BoardError::Stuck);
            }
        }
        Ok(Book { board: self })
    }
}

fn words(links: usize) -> usize {
    HEAD + links + MOST_OPEN * ENTRY
}

fn bytes(links: usize) -> u64 {
    8 * words(links) as u64
}

/// The lock gives the order; the words themselves need none.
fn get(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn set(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

struct Book<'b> {
    board: &'b Board,
}

impl Drop for Book<'_> {
    fn drop(&mut self) {
        self.board.word(1).store(0, Ordering::Release);
    }
}

impl Book<'_> {
    fn field(&self, entry: usize, field: usize) -> &AtomicU64 {
        self.board.word(HEAD + self.board.links + entry * ENTRY + field)
    }

    fn open(&self) -> usize {
        get(self.board.word(3)) as usize
    }

    /// Open transfers stand one after the other and are few.
    fn find(&self, key: Key) -> Option<usize> {
        let wanted = [key.group, key.line, key.sequence];
        (0..self.open()).find(|entry| (0..3).all(|field| get(self.field(*entry, field)) == wanted[field]))
    }

    fn add(&self, key: Key) -> Result<usize, BoardError> {
        let entry = self.open();
        if entry == MOST_OPEN {
            return Err(BoardError::Full);
        }
        for (field, value) in [key.group, key.line, key.sequence, 0, 0, 0, 0].into_iter().enumerate() {
            set(self.field(entry, field), value);
        }
        set(self.board.word(3), entry as u64 + 1);
        Ok(entry)
    }

    fn remove(&self, entry: usize) {
        let last = self.open() - 1;
        for field in 0..ENTRY {
            set(self.field(entry, field), get(self.field(last, field)));
        }
        set(self.board.word(3), last as u64);
    }

    /// When the last of the claimed links is through; each is taken from `start` on or from when it is free.
    fn reserve(&self, start: u64, claims: &[Claim]) -> u64 {
        let mut end = start;
        for claim in claims.iter().filter(|claim| claim.ns > 0) {
            let free = self.board.word(HEAD + claim.link);
            let through = get(free).max(start).saturating_add(claim.ns);
            set(free, through);
            end = end.max(through);
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn open_transfers(board: &Board) -> u64 {
        get(board.word(3))
    }

    fn key(sequence: u64) -> Key {
        Key { group: 1, line: 0, sequence }
    }

    #[test]
    fn the_last_to_come_starts_the_transfer_and_links_are_first_come_first_served() {
        let board = Board::create(4, 7).unwrap();
        let claims = [Claim { link: 0, ns: 100 }, Claim { link: 3, ns: 150 }];
        board.arrive(key(0), 2, 1000, &claims, 20).unwrap();
        board.arrive(key(0), 2, 900, &claims, 20).unwrap();
        // The next transfer waits for link 0 (free at 1100) and for nothing on link 1.
        board.arrive(key(1), 1, 1010, &[Claim { link: 0, ns: 5 }, Claim { link: 1, ns: 10 }], 3).unwrap();
        assert_eq!(board.leave(key(0), 2).unwrap(), Some(Times { start: 1000, end: 1170 }));
        assert_eq!(board.leave(key(1), 1).unwrap(), Some(Times { start: 1010, end: 1108 }));
        assert_eq!(board.leave(key(0), 2).unwrap(), Some(Times { start: 1000, end: 1170 }));
        assert_eq!(open_transfers(&board), 0);
        assert!(matches!(board.leave(key(0), 2), Err(BoardError::Unknown(_))));
    }

    #[test]
    fn a_transfer_that_nobody_completed_has_no_times() {
        let board = Board::create(1, 7).unwrap();
        board.arrive(key(0), 2, 5, &[], 0).unwrap();
        assert_eq!(board.leave(key(0), 2).unwrap(), None);
    }

    #[test]
    fn too_many_transfers_are_an_error() {
        let board = Board::create(1, 7).unwrap();
        for i in 0..MOST_OPEN as u64 {
            board.arrive(key(i), 2, 5, &[], 0).unwrap();
        }
        assert!(matches!(board.arrive(key(u64::MAX), 2, 5, &[], 0), Err(BoardError::Full)));
    }

    #[test]
    fn others_open_it_and_strangers_are_found_out() {
        let board = Board::create(2, 7).unwrap();
        let (pid, fd) = (std::process::id(), board.fd());
        let same = Board::open(pid, fd, 2, 7).unwrap();
        board.arrive(key(0), 1, 10, &[Claim { link: 1, ns: 5 }], 0).unwrap();
        assert_eq!(same.leave(key(0), 1).unwrap(), Some(Times { start: 10, end: 15 }));
        assert!(matches!(Board::open(pid, fd, 2, 8), Err(BoardError::Stranger { .. })), "another run's token");
        assert!(matches!(Board::open(pid, fd, 3, 7), Err(BoardError::Stranger { .. })), "another size");
        assert!(matches!(Board::open(pid, -1, 2, 7), Err(BoardError::System { .. })));
    }

    #[test]
    fn nobody_can_cut_the_memory_off_under_a_mapping() {
        let board = Board::create(2, 7).unwrap();
        let (pid, fd) = (std::process::id(), board.fd());
        for bytes in [0, 4096, 8 * words(2) as u64 + 1] {
            assert_eq!(ftruncate(board.region.fd().unwrap(), bytes), Err(rustix::io::Errno::PERM), "{bytes} bytes");
        }
        board.arrive(key(0), 1, 10, &[Claim { link: 1, ns: 5 }], 0).unwrap();
        assert!(Board::open(pid, fd, 2, 7).is_ok());
        // A file of the right length that may be cut off later is not mapped.
        let unsealed = memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&unsealed, 8 * words(2) as u64).unwrap();
        let fd = unsealed.as_raw_fd();
        assert!(matches!(Board::open(pid, fd, 2, 0), Err(BoardError::Stranger { .. })));
    }

    #[test]
    fn under_contention_no_time_is_lost_or_given_twice() {
        let board = Board::create(1, 7).unwrap();
        let (threads, turns) = (4u64, 5000u64);
        let met = std::sync::Barrier::new(threads as usize);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (board, met) = (&board, &met);
                scope.spawn(move || {
                    for turn in 0..turns {
                        let own = Key { group: thread, line: 0, sequence: turn };
                        board.arrive(own, 1, 1, &[Claim { link: 0, ns: 3 }], 0).unwrap();
                        board.arrive(key(turn + 100_000), threads, 1, &[Claim { link: 0, ns: 3 }], 0).unwrap();
                        assert!(board.leave(own, 1).unwrap().is_some());
                        // A member that has not come yet leaves the times open, and the transfer is not forgotten.
                        board.leave(key(turn + 100_000), threads).unwrap();
                        if turn % 100 == 0 {
                            met.wait();
                        }
                    }
                });
            }
        });
        let all = threads * turns + turns;
        board.arrive(key(0), 1, 1, &[Claim { link: 0, ns: 3 }], 0).unwrap();
        assert_eq!(board.leave(key(0), 1).unwrap(), Some(Times { start: 1, end: 1 + 3 * (all + 1) }));
        assert_eq!(open_transfers(&board), 0);
    }
}
