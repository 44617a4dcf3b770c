//! loom's types in place of `zbench_kernels::threads::sync`, for protocols that loom tests compile over them.

pub use loom::cell::UnsafeCell;
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};
pub use zbench_kernels::threads::sync::{FutexScope, SpinPolicy};

/// Of no consequence here: no time passes under loom.
pub const POLICY: SpinPolicy = SpinPolicy { rounds: 0, spin: Duration::ZERO, yields: 0 };

/// Everybody sleeps at once.
pub fn spin_until(_: SpinPolicy, ready: impl Fn() -> bool) -> Result<(), Instant> {
    if ready() { Ok(()) } else { Err(Instant::now()) }
}

loom::lazy_static! {
    /// The kernel's lock on sleepers, and where they lie. One bed for all words: some are woken for nothing.
    static ref BED: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
}

/// As a futex: looks at the word and lies down in one go, and is woken by [`wake`] alone.
pub fn sleep(word: &AtomicU32, seen: u32, _: Option<Duration>, _: FutexScope) {
    let bed = BED.0.lock().unwrap();
    if word.load(Ordering::Relaxed) == seen {
        drop(BED.1.wait(bed).unwrap());
    }
}

pub fn wake(_: &AtomicU32, _: FutexScope) {
    let _bed = BED.0.lock().unwrap();
    BED.1.notify_all();
}

/// The fence that loom models.
pub fn full_fence() {
    fence(Ordering::SeqCst);
}
