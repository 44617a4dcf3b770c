//! A thread that reads a rank's micro-batches before they are wanted.
//!
//! The first samples of a rank's micro-batches are one stride apart, so the numbers of the next ones are known. Each buffer
//! travels to the thread with the number of a micro-batch, and comes back filled, in order. If another number is
//! asked for (because a run continues elsewhere), what was read ahead is thrown away. Buffers are made once.

use super::{DataError, Row, Source};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Reads ahead until it is dropped; dropping waits for the micro-batch that is being read.
#[derive(Debug)]
pub struct Prefetcher {
    source: Source,
    rows: usize,
    stride: u64,
    starts: bool,
    depth: usize,
    state: RefCell<State>,
    orders: Arc<Queue<(u64, Filled)>>,
    ready: Arc<Queue<(Filled, Result<(), DataError>)>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    /// The first sample that comes next out of here; `None` before the first was asked for, and after an error.
    next: Option<u64>,
    /// Buffers that are not with the thread.
    free: Vec<Filled>,
}

/// A queue that allocates nothing after it is made. The channels of the standard library allocate when a thread first waits, which may
/// happen in a timed step.
#[derive(Debug)]
struct Queue<T> {
    /// The items, and whether more will come.
    state: Mutex<(VecDeque<T>, bool)>,
    changed: Condvar,
}

impl<T> Queue<T> {
    fn new(depth: usize) -> Arc<Queue<T>> {
        Arc::new(Queue { state: Mutex::new((VecDeque::with_capacity(depth), true)), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, (VecDeque<T>, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, item: T) {
        self.state().0.push_back(item);
        self.changed.notify_one();
    }

    /// Waits for an item; `None` when the queue is closed and empty.
    fn pop(&self) -> Option<T> {
        let waits = |state: &mut (VecDeque<T>, bool)| state.0.is_empty() && state.1;
        let mut state = self.changed.wait_while(self.state(), waits).unwrap_or_else(PoisonError::into_inner);
        state.0.pop_front()
    }

    fn close(&self) {
        self.state().1 = false;
        self.changed.notify_all();
    }
}

/// Closes a queue when its writer ends, also by a panic.
struct Writes<T>(Arc<Queue<T>>);

impl<T> Drop for Writes<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[derive(Debug)]
struct Filled {
    inputs: Vec<u32>,
    targets: Vec<u32>,
    starts: Option<Vec<u32>>,
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.orders.close();
        // Orders that the thread has not begun are not needed any more.
        self.orders.state().0.clear();
        // A thread that panicked has said so, and its micro-batches were read without it.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Prefetcher {
    /// Starts a thread that keeps `depth` micro-batches of `rows` sequences ready, with where documents start if `starts`.
    /// The first samples of two micro-batches that follow each other are `stride` apart.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn start(
        source: &Source,
        rows: usize,
        stride: u64,
        depth: usize,
        starts: bool,
    ) -> Result<Prefetcher, DataError> {
        let (depth, tokens) = (depth.max(1), rows * source.seq_len());
        let buffer =
            || Filled { inputs: vec![0; tokens], targets: vec![0; tokens], starts: starts.then(|| vec![0; tokens]) };
        let free = (0..depth).map(|_| buffer()).collect();
        let (orders, ready) = (Queue::<(u64, Filled)>::new(depth), Queue::new(depth));
        let (ordered, done, reads) = (orders.clone(), Writes(ready.clone()), source.clone());
        let builder = std::thread::Builder::new().name("read ahead".into()).stack_size(256 << 10);
        let thread = builder.spawn(move || {
            while let Some((first, mut filled)) = ordered.pop() {
                let Filled { inputs, targets, starts } = &mut filled;
                let read = reads.fill_rows(false, first, rows, Row { inputs, targets, starts: starts.as_deref_mut() });
                done.0.push((filled, read));
            }
        });
        let thread = thread
            .map_err(|source| DataError::Thread { source: zbench_kernels::threads::spawn::not_started(source) })?;
        let state = RefCell::new(State { next: None, free });
        Ok(Prefetcher {
            source: source.clone(),
            rows,
            stride,
            starts,
            depth,
            state,
            orders,
            ready,
            thread: Some(thread),
        })
    }

    /// The micro-batch whose first sample is given: as [`Source::fill_rows`] writes it, errors too.
    ///
    /// # Errors
    /// Those of [`Source::fill_rows`].
    pub fn take(&self, first: u64, to: Row<'_>) -> Result<(), DataError> {
        let tokens = self.rows * self.source.seq_len();
        let starts_fit = to.starts.as_ref().is_none_or(|starts| self.starts && starts.len() == tokens);
        if to.inputs.len() != tokens || to.targets.len() != tokens || !starts_fit {
            let (rows, seq_len) = (self.rows, self.source.seq_len());
            return Err(DataError::Buffers { rows, seq_len, inputs: to.inputs.len(), targets: to.targets.len() });
        }
        let mut state = self.state.borrow_mut();
        if state.next != Some(first) {
            self.restart(&mut state, first);
        }
        let Some((filled, read)) = self.ready.pop() else {
            // The thread has panicked.
            return self.source.fill_rows(false, first, self.rows, to);
        };
        if read.is_ok() {
            to.inputs.copy_from_slice(&filled.inputs);
            to.targets.copy_from_slice(&filled.targets);
            if let (Some(from), Some(to)) = (&filled.starts, to.starts) {
                to.copy_from_slice(from);
            }
        }
        // After an error the next call reads again.
        state.next = read.is_ok().then(|| first.wrapping_add(self.stride));
        self.orders.push((first.wrapping_add(self.stride.wrapping_mul(self.depth as u64)), filled));
        read
    }

    /// Takes all buffers back, and has them filled from `first` on.
    fn restart(&self, state: &mut State, first: u64) {
        // Orders that the thread has not begun are not needed any more.
        state.free.extend(self.orders.state().0.drain(..).map(|(_, filled)| filled));
        while state.free.len() < self.depth
            && let Some((filled, _)) = self.ready.pop()
        {
            state.free.push(filled);
        }
        for (place, filled) in (0..).zip(state.free.drain(..)) {
            self.orders.push((first.wrapping_add(self.stride.wrapping_mul(place)), filled));
        }
    }
}
