//! What the protocol synchronises with. The race test (tests/loom/comm.rs) compiles the protocol over loom's types instead.

use rustix::thread::futex;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

/// A cell that hands out pointers, so that loom can watch who uses them.
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// A pointer for reading.
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// A pointer for writing.
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Sleeps until the bell no longer shows `seen`, it is rung, or the time is over. It may lie in memory of other processes.
pub(crate) fn sleep(bell: &AtomicU32, seen: u32, limit: Duration) {
    let limit = futex::Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    // Any end of the wait, an error too, makes the caller look again.
    let _ = futex::wait(bell, futex::Flags::empty(), seen, Some(&limit));
}

/// Wakes who sleeps at the bell.
pub(crate) fn wake(bell: &AtomicU32) {
    let _ = futex::wake(bell, futex::Flags::empty(), i32::MAX as u32);
}

/// Lets others have the core.
pub(crate) fn pause() {
    std::thread::yield_now();
}

/// Looks again at once.
pub(crate) fn spin() {
    std::hint::spin_loop();
}
