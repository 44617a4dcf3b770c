//! The host memory that a loader uses, as it counts it itself: exact, and the same in every run.

use crate::observe::outcome::Loaded;
use std::cell::Cell;
use std::time::Instant;

pub(super) struct Account {
    since: Instant,
    /// Bytes held beside what is kept, at the moment.
    held: Cell<u64>,
    loaded: Cell<Loaded>,
}

/// Bytes that are held until this is dropped.
pub(super) struct Held<'a> {
    account: &'a Account,
    bytes: u64,
}

impl Account {
    pub(super) fn new() -> Account {
        Account { since: Instant::now(), held: Cell::new(0), loaded: Cell::default() }
    }

    /// Counts as many elements of `T` as held.
    pub(super) fn holds<T>(&self, elements: usize) -> Held<'_> {
        let bytes = (elements * size_of::<T>()) as u64;
        self.takes(bytes);
        Held { account: self, bytes }
    }

    pub(super) fn takes(&self, bytes: u64) {
        self.held.set(self.held.get() + bytes);
        self.count(|_| ());
    }

    pub(super) fn gives(&self, bytes: u64) {
        self.held.set(self.held.get() - bytes);
    }

    pub(super) fn keeps(&self, bytes: usize) {
        self.count(|loaded| loaded.kept_bytes += bytes as u64);
    }

    pub(super) fn reads(&self, bytes: usize) {
        self.count(|loaded| loaded.read_bytes += bytes as u64);
    }

    pub(super) fn receives(&self, bytes: usize) {
        self.count(|loaded| loaded.received_bytes += bytes as u64);
    }

    fn count(&self, change: impl FnOnce(&mut Loaded)) {
        let mut loaded = self.loaded.get();
        change(&mut loaded);
        loaded.peak_bytes = loaded.peak_bytes.max(loaded.kept_bytes + self.held.get());
        self.loaded.set(loaded);
    }

    pub(super) fn close(&self) -> Loaded {
        Loaded { ms: self.since.elapsed().as_secs_f64() * 1e3, ..self.loaded.get() }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.account.gives(self.bytes);
    }
}
