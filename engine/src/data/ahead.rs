//! A thread that reads a rank's micro-batches before they are wanted.
//!
//! The first samples of a rank's micro-batches are one stride apart, so the numbers of the next ones are known. Each buffer
//! travels to the thread with the number of a micro-batch, and comes back filled, in order. Whoever asks for another number
//! (a run that continues elsewhere) has what was read thrown away. Buffers are made once.

use super::{DataError, Row, Source};
use std::cell::RefCell;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Reads ahead until it is dropped; dropping waits for the micro-batch that is being read.
#[derive(Debug)]
pub struct Prefetcher {
    source: Source,
    rows: usize,
    stride: u64,
    starts: bool,
    depth: usize,
    queue: RefCell<Queue>,
    // Dropped after the queue, whose channels end the thread.
    _thread: Reading,
}

#[derive(Debug)]
struct Queue {
    /// The first sample that comes next out of here; `None` before the first was asked for, and after an error.
    next: Option<u64>,
    /// Buffers that are not with the thread.
    free: Vec<Filled>,
    orders: SyncSender<(u64, Filled)>,
    ready: Receiver<(Filled, Result<(), DataError>)>,
}

#[derive(Debug)]
struct Filled {
    inputs: Vec<u32>,
    targets: Vec<u32>,
    starts: Option<Vec<u32>>,
}

/// The thread, which is waited for.
#[derive(Debug)]
struct Reading(Option<JoinHandle<()>>);

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A thread that panicked has said so, and its micro-batches were read without it.
            let _ = thread.join();
        }
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
        let (orders, ordered) = sync_channel::<(u64, Filled)>(depth);
        let (done, ready) = sync_channel(depth);
        let reads = source.clone();
        let builder = std::thread::Builder::new().name("read ahead".into()).stack_size(256 << 10);
        let thread = builder.spawn(move || {
            for (first, mut filled) in ordered {
                let Filled { inputs, targets, starts } = &mut filled;
                let read = reads.fill_rows(false, first, rows, Row { inputs, targets, starts: starts.as_deref_mut() });
                if done.send((filled, read)).is_err() {
                    return;
                }
            }
        });
        let thread = thread.map_err(|source| DataError::Thread { source: crate::threads::not_started(source) })?;
        let queue = RefCell::new(Queue { next: None, free, orders, ready });
        Ok(Prefetcher { source: source.clone(), rows, stride, starts, depth, queue, _thread: Reading(Some(thread)) })
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
        let mut queue = self.queue.borrow_mut();
        if queue.next != Some(first) {
            self.restart(&mut queue, first);
        }
        let Ok((filled, read)) = queue.ready.recv() else {
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
        // Whoever asks again after an error is read for again.
        queue.next = read.is_ok().then(|| first.wrapping_add(self.stride));
        queue.order(first.wrapping_add(self.stride.wrapping_mul(self.depth as u64)), filled);
        read
    }

    /// Takes all buffers back, and has them filled from `first` on.
    fn restart(&self, queue: &mut Queue, first: u64) {
        while queue.free.len() < self.depth
            && let Ok((filled, _)) = queue.ready.recv()
        {
            queue.free.push(filled);
        }
        for place in 0..queue.free.len() as u64 {
            let Some(filled) = queue.free.pop() else { break };
            queue.order(first.wrapping_add(self.stride.wrapping_mul(place)), filled);
        }
    }
}

impl Queue {
    fn order(&self, first: u64, filled: Filled) {
        // Where the thread has panicked nobody receives it.
        let _ = self.orders.send((first, filled));
    }
}
