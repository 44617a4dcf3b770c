//! The host memory that a loader uses, as it counts it itself: exact, and the same in every run.

use crate::observe::outcome::Loaded;
use std::cell::Cell;
use std::time::Instant;

pub(super) struct Account {
    since: Instant,
    /// Bytes written into shards and master weights.
    kept: Cell<u64>,
    /// Bytes held beside them at the moment.
    held: Cell<u64>,
    peak: Cell<u64>,
    read: Cell<u64>,
    received: Cell<u64>,
}

/// Bytes that are held until this is dropped.
pub(super) struct Held<'a> {
    account: &'a Account,
    bytes: u64,
}

impl Account {
    pub(super) fn new() -> Account {
        let [kept, held, peak, read, received] = [(); 5].map(|()| Cell::new(0));
        Account { since: Instant::now(), kept, held, peak, read, received }
    }

    /// Counts as many elements of `T` as held.
    pub(super) fn holds<T>(&self, elements: usize) -> Held<'_> {
        let bytes = (elements * size_of::<T>()) as u64;
        self.takes(bytes);
        Held { account: self, bytes }
    }

    pub(super) fn takes(&self, bytes: u64) {
        self.held.set(self.held.get() + bytes);
        self.see();
    }

    pub(super) fn gives(&self, bytes: u64) {
        self.held.set(self.held.get() - bytes);
    }

    pub(super) fn keeps(&self, bytes: usize) {
        self.kept.set(self.kept.get() + bytes as u64);
        self.see();
    }

    pub(super) fn reads(&self, bytes: usize) {
        self.read.set(self.read.get() + bytes as u64);
    }

    pub(super) fn receives(&self, bytes: usize) {
        self.received.set(self.received.get() + bytes as u64);
    }

    fn see(&self) {
        self.peak.set(self.peak.get().max(self.kept.get() + self.held.get()));
    }

    pub(super) fn close(&self) -> Loaded {
        Loaded {
            kept_bytes: self.kept.get(),
            peak_bytes: self.peak.get(),
            read_bytes: self.read.get(),
            received_bytes: self.received.get(),
            ms: self.since.elapsed().as_secs_f64() * 1e3,
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.account.gives(self.bytes);
    }
}
