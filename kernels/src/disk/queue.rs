//! Transfers that are asked for, cut into pieces, and what has become of them: what callers and the engine's threads share.

use super::{DiskError, Traffic};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Error;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a piece: enough for a disk's full rate, few enough that one large transfer keeps several under way.
pub const PIECE: u64 = 1 << 20;

/// How often a piece may be tried again without progress, a moment apart, before that is an error.
const TRIES: u32 = 2000;

/// Memory that a transfer reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub ptr: NonNull<u8>,
    /// Where in the file.
    pub offset: u64,
    pub bytes: u64,
    pub is_write: bool,
}

// SAFETY: an address and numbers. The buffer that lies there belongs to the transfer until all of its pieces have ended.
unsafe impl Send for Span {}

/// A part of a transfer that goes to the disk by itself.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    job: usize,
    /// What is left of it.
    pub span: Span,
    tries: u32,
}

/// What to do after the system's answer about a piece.
pub enum Next {
    Done,
    /// What is left is to be asked for, at once or after a moment.
    Again {
        after_a_moment: bool,
    },
    Failed(Error),
}

impl Piece {
    /// Counts the bytes that the system says were transferred.
    pub fn advance(&mut self, result: Result<u64, Error>, is_direct: bool) -> Next {
        let bytes = match result {
            Ok(0) if self.span.is_write => return Next::Failed(std::io::ErrorKind::WriteZero.into()),
            Ok(0) => return Next::Failed(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => bytes.min(self.span.bytes),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => 0,
            Err(error) => return Next::Failed(error),
        };
        // A direct transfer goes on at a page.
        let unit = if is_direct && bytes < self.span.bytes { crate::PAGE_BYTES } else { 1 };
        let bytes = bytes - bytes % unit;
        if bytes == self.span.bytes {
            return Next::Done;
        }
        if bytes == 0 {
            self.tries += 1;
            if self.tries > TRIES {
                return Next::Failed(Error::other("the system transfers nothing, however often it is asked"));
            }
            return Next::Again { after_a_moment: true };
        }
        // SAFETY: fewer bytes than the piece has, so the address stays inside of its buffer.
        self.span.ptr = unsafe { self.span.ptr.add(bytes as usize) };
        (self.span.offset, self.span.bytes, self.tries) = (self.span.offset + bytes, self.span.bytes - bytes, 0);
        Next::Again { after_a_moment: false }
    }
}

/// A transfer.
#[derive(Debug)]
struct Job {
    span: Span,
    /// Bytes that pieces were made of.
    cut: u64,
    /// Pieces that have not ended.
    flying: usize,
    error: Option<DiskError>,
}

impl Job {
    fn is_done(&self) -> bool {
        self.flying == 0 && self.cut == self.span.bytes
    }
}

#[derive(Debug, Default)]
struct State {
    /// By number; those of transfers that are over are used again.
    jobs: Vec<Option<Job>>,
    /// Transfers that have bytes of which no piece is made yet.
    waiting: VecDeque<usize>,
    active: usize,
    /// Since when there are any under way.
    since: Option<Instant>,
    traffic: Traffic,
    is_closing: bool,
    /// Why the engine has failed.
    broken: Option<String>,
}

/// A file and its transfers.
#[derive(Debug)]
pub struct Queue {
    pub file: File,
    pub folder: PathBuf,
    pub is_direct: bool,
    state: Mutex<State>,
    /// There is work for a thread.
    work: Condvar,
    /// A transfer is over.
    done: Condvar,
}

/// How a wait ended.
pub enum Waited {
    /// The system is done with the buffer.
    Over(Result<(), DiskError>),
    /// The engine failed with the transfer under way: the system may still use the buffer, whose memory nobody may have again.
    Lost(String),
}

impl Queue {
    pub fn new(file: File, folder: PathBuf, is_direct: bool) -> Queue {
        Queue { file, folder, is_direct, state: Mutex::default(), work: Condvar::new(), done: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a transfer in; its number. `Err` is why the engine has failed.
    pub fn push(&self, span: Span) -> Result<usize, String> {
        let mut state = self.state();
        if let Some(reason) = &state.broken {
            return Err(reason.clone());
        }
        let free = state.jobs.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            state.jobs.push(None);
            state.jobs.len() - 1
        });
        state.jobs[number] = Some(Job { span, cut: 0, flying: 0, error: None });
        if span.bytes > 0 {
            state.waiting.push_back(number);
            state.active += 1;
            state.since.get_or_insert_with(Instant::now);
            drop(state);
            // A thread carries one piece at a time: as many as there are pieces have something to do.
            match span.bytes <= PIECE {
                true => self.work.notify_one(),
                false => self.work.notify_all(),
            }
        }
        Ok(number)
    }

    /// The next piece, if there is one.
    pub fn take(&self) -> Option<Piece> {
        self.state().take()
    }

    /// The same for a thread that has nothing else to do; `None` is its end.
    pub fn wait_for_piece(&self) -> Option<Piece> {
        let mut state = self.state();
        loop {
            if let Some(piece) = state.take() {
                return Some(piece);
            }
            if state.is_closing {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A piece has ended.
    pub fn end(&self, piece: &Piece, error: Option<Error>) {
        let mut state = self.state();
        let job = state.jobs.get_mut(piece.job).and_then(Option::as_mut);
        let Some(job) = job else { return };
        job.flying -= 1;
        if let Some(source) = error {
            let (span, folder) = (piece.span, self.folder.clone());
            let failed =
                DiskError::Transfer { folder, is_write: span.is_write, offset: span.offset, bytes: span.bytes, source };
            job.error.get_or_insert(failed);
            // Pieces that were not made are not.
            job.cut = job.span.bytes;
            state.waiting.retain(|number| *number != piece.job);
        }
        let job = state.jobs[piece.job].as_ref();
        if let Some((span, is_whole)) = job.filter(|job| job.is_done()).map(|job| (job.span, job.error.is_none())) {
            state.active -= 1;
            if is_whole {
                let counter =
                    if span.is_write { &mut state.traffic.written_bytes } else { &mut state.traffic.read_bytes };
                *counter += span.bytes;
            }
            if state.active == 0 {
                let busy = state.since.take().map_or(Duration::ZERO, |since| since.elapsed());
                state.traffic.busy += busy;
            }
            drop(state);
            self.done.notify_all();
        }
    }

    /// Whether a transfer is over.
    pub fn is_done(&self, number: usize) -> bool {
        let state = self.state();
        state.broken.is_some() || state.jobs[number].as_ref().is_none_or(Job::is_done)
    }

    /// Waits for a transfer, whose number is free then.
    pub fn wait(&self, number: usize) -> Waited {
        let mut state = self.state();
        loop {
            let Some(job) = &state.jobs[number] else { return Waited::Over(Ok(())) };
            if job.is_done() {
                let error = state.jobs[number].take().and_then(|job| job.error);
                return Waited::Over(error.map_or(Ok(()), Err));
            }
            if let Some(reason) = state.broken.clone() {
                state.jobs[number] = None;
                return Waited::Lost(reason);
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until nothing is under way, and lets the threads end.
    pub fn close(&self) {
        let mut state = self.state();
        while state.active > 0 && state.broken.is_none() {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_closing = true;
        drop(state);
        self.work.notify_all();
    }

    pub fn is_closing(&self) -> bool {
        self.state().is_closing
    }

    /// Nothing is transferred any more.
    pub fn break_down(&self, reason: String) {
        self.state().broken.get_or_insert(reason);
        self.done.notify_all();
    }

    /// A thread that carries pieces out holds this: were it to panic, nobody would wait for its pieces for ever.
    pub fn guarded(self: Arc<Queue>) -> Guard {
        Guard(self)
    }

    pub fn traffic(&self) -> Traffic {
        let state = self.state();
        let now = state.since.map_or(Duration::ZERO, |since| since.elapsed());
        Traffic { busy: state.traffic.busy + now, ..state.traffic }
    }
}

/// See [`Queue::guarded`].
pub struct Guard(Arc<Queue>);

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.break_down("one of its threads has panicked".into());
        }
    }
}

impl State {
    fn take(&mut self) -> Option<Piece> {
        let number = *self.waiting.front()?;
        let job = self.jobs[number].as_mut()?;
        let bytes = (job.span.bytes - job.cut).min(PIECE);
        // SAFETY: bytes that the transfer has beyond those cut before, so the address stays inside of its buffer.
        let ptr = unsafe { job.span.ptr.add(job.cut as usize) };
        let span = Span { ptr, offset: job.span.offset + job.cut, bytes, is_write: job.span.is_write };
        job.cut += bytes;
        job.flying += 1;
        if job.cut == job.span.bytes {
            self.waiting.pop_front();
        }
        Some(Piece { job: number, span, tries: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(bytes: u64, is_write: bool) -> Piece {
        Piece { job: 0, span: Span { ptr: NonNull::<u64>::dangling().cast(), offset: 8192, bytes, is_write }, tries: 0 }
    }

    #[test]
    fn a_short_transfer_goes_on_where_it_stopped() {
        for (is_direct, transferred, left, offset) in [(false, 5000, 7288, 13192), (true, 5000, 8192, 12288)] {
            let mut piece = piece(12288, true);
            assert!(matches!(piece.advance(Ok(transferred), is_direct), Next::Again { after_a_moment: false }));
            assert_eq!((piece.span.bytes, piece.span.offset), (left, offset));
            assert!(matches!(piece.advance(Ok(left), is_direct), Next::Done));
        }
    }

    #[test]
    fn an_interrupted_transfer_is_tried_again_but_not_for_ever() {
        for number in [libc::EINTR, libc::EAGAIN] {
            let mut piece = piece(4096, false);
            for _ in 0..TRIES {
                let next = piece.advance(Err(Error::from_raw_os_error(number)), true);
                assert!(matches!(next, Next::Again { after_a_moment: true }));
            }
            assert!(matches!(piece.advance(Err(Error::from_raw_os_error(number)), true), Next::Failed(_)));
        }
        // Less than a page of a direct transfer is no progress either.
        let mut piece = piece(8192, true);
        (0..TRIES).for_each(|_| assert!(matches!(piece.advance(Ok(100), true), Next::Again { .. })));
        assert!(matches!(piece.advance(Ok(100), true), Next::Failed(_)));
    }

    #[test]
    fn what_ends_early_is_an_error() {
        let end = |is_write| match piece(4096, is_write).advance(Ok(0), true) {
            Next::Failed(error) => error.kind(),
            _ => panic!("a transfer of nothing is no end"),
        };
        assert_eq!((end(true), end(false)), (std::io::ErrorKind::WriteZero, std::io::ErrorKind::UnexpectedEof));
        let next = piece(4096, true).advance(Err(Error::from_raw_os_error(libc::EIO)), false);
        assert!(matches!(next, Next::Failed(error) if error.raw_os_error() == Some(libc::EIO)));
    }
}
