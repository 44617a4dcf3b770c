//! A thread that reads a rank's micro-batches before they are wanted.
//!
//! A rank's micro-batches have numbers one stride apart, so after the first has been asked for the thread knows the next.
//! Whoever asks for another number (a run that goes on elsewhere) has what was read thrown away. Buffers are made once.

use super::{DataError, Row, Source};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Reads ahead until it is dropped; dropping waits for the micro-batch in work.
#[derive(Debug)]
pub struct Prefetcher {
    source: Source,
    shared: Arc<Shared>,
    rows: usize,
    stride: u64,
    starts: bool,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What is read next; nothing before the first was asked for.
    next: Option<u64>,
    /// What comes next out of here.
    wanted: Option<u64>,
    ready: VecDeque<Filled>,
    free: Vec<Filled>,
    /// Counts how often the thread was sent elsewhere.
    turns: u64,
    failed: Option<DataError>,
    /// The rank has ended.
    stop: bool,
    /// The thread has.
    ended: bool,
}

/// The buffers of a micro-batch.
#[derive(Debug, Default)]
struct Filled {
    inputs: Vec<u32>,
    targets: Vec<u32>,
    starts: Option<Vec<u32>>,
}

impl Filled {
    fn row(&mut self) -> Row<'_> {
        Row { inputs: &mut self.inputs, targets: &mut self.targets, starts: self.starts.as_deref_mut() }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that the thread has ended, however it does.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl Prefetcher {
    /// Starts a thread that keeps `depth` micro-batches of `rows` sequences ready, with where documents start if `starts`.
    /// The first samples of two micro-batches that follow each other are `stride` apart.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(
        source: &Source,
        rows: usize,
        stride: u64,
        depth: usize,
        starts: bool,
    ) -> Result<Prefetcher, DataError> {
        let tokens = rows * source.seq_len();
        let buffer =
            || Filled { inputs: vec![0; tokens], targets: vec![0; tokens], starts: starts.then(|| vec![0; tokens]) };
        let free = (0..depth.max(1)).map(|_| buffer()).collect();
        let state = State { ready: VecDeque::with_capacity(depth.max(1)), free, ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let (reads, to) = (source.clone(), shared.clone());
        let builder = std::thread::Builder::new().name("read ahead".into()).stack_size(256 << 10);
        let thread = builder.spawn(move || {
            let _ending = Ending(&to);
            read(&reads, &to, rows, stride);
        });
        let thread = thread.map_err(|source| DataError::Thread { source: crate::threads::not_started(source) })?;
        Ok(Prefetcher { source: source.clone(), shared, rows, stride, starts, thread: Some(thread) })
    }

    /// The micro-batch whose first sample is given: as [`Source::fill_rows`] writes it, errors too.
    ///
    /// # Errors
    /// As there.
    pub fn take(&self, first: u64, to: Row<'_>) -> Result<(), DataError> {
        let tokens = self.rows * self.source.seq_len();
        let starts_fit = to.starts.as_ref().is_none_or(|starts| self.starts && starts.len() == tokens);
        if to.inputs.len() != tokens || to.targets.len() != tokens || !starts_fit {
            let (rows, seq_len) = (self.rows, self.source.seq_len());
            return Err(DataError::Buffers { rows, seq_len, inputs: to.inputs.len(), targets: to.targets.len() });
        }
        let mut state = self.shared.lock();
        if state.wanted != Some(first) {
            let State { ready, free, .. } = &mut *state;
            free.extend(ready.drain(..));
            (state.next, state.failed) = (Some(first), None);
            state.turns += 1;
            self.shared.changed.notify_all();
        }
        state.wanted = Some(first.wrapping_add(self.stride));
        while state.ready.is_empty() && state.failed.is_none() && !state.ended {
            state = self.shared.wait(state);
        }
        if let Some(filled) = state.ready.pop_front() {
            drop(state);
            to.inputs.copy_from_slice(&filled.inputs);
            to.targets.copy_from_slice(&filled.targets);
            if let (Some(from), Some(to)) = (&filled.starts, to.starts) {
                to.copy_from_slice(from);
            }
            self.shared.lock().free.push(filled);
            self.shared.changed.notify_all();
            return Ok(());
        }
        match state.failed.take() {
            Some(error) => {
                // Whoever asks again is read for again.
                (state.next, state.wanted) = (None, None);
                Err(error)
            }
            None => {
                drop(state);
                self.source.fill_rows(false, first, self.rows, to)
            }
        }
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so; whoever waited for it has read by itself.
            let _ = thread.join();
        }
    }
}

/// The thread: reads until it is told to stop.
fn read(source: &Source, shared: &Shared, rows: usize, stride: u64) {
    let mut state = shared.lock();
    loop {
        while !state.stop && (state.next.is_none() || state.failed.is_some() || state.free.is_empty()) {
            state = shared.wait(state);
        }
        if state.stop {
            return;
        }
        let (Some(first), Some(mut filled)) = (state.next, state.free.pop()) else { continue };
        state.next = Some(first.wrapping_add(stride));
        let turns = state.turns;
        drop(state);
        let read = source.fill_rows(false, first, rows, filled.row());
        state = shared.lock();
        match read {
            Ok(()) if turns == state.turns => state.ready.push_back(filled),
            Err(error) if turns == state.turns => {
                state.failed = Some(error);
                state.free.push(filled);
            }
            _ => state.free.push(filled),
        }
        shared.changed.notify_all();
    }
}
