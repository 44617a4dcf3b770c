//! What the team's protocol synchronises with. The race test (engine/tests/loom/pool.rs) compiles the protocol over
//! loom's types instead.

pub(crate) use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

/// A cell that hands out pointers, so that loom can watch who uses them.
#[derive(Default)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// A pointer for reading.
    pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// A pointer for writing.
    pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// How a thread waits before it sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Looks again and again for this long, on a core of its own.
    pub spin: Duration,
    /// Then gives the core away this many times.
    pub pauses: u32,
}

/// Looks a while; whether it became ready.
pub(crate) fn linger(patience: Patience, ready: impl Fn() -> bool) -> bool {
    /// Looks between two readings of the clock.
    const ROUNDS: u32 = 64;
    let mut begin = None;
    loop {
        for _ in 0..ROUNDS {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if begin.get_or_insert_with(Instant::now).elapsed() >= patience.spin {
            break;
        }
    }
    for _ in 0..patience.pauses {
        std::thread::yield_now();
        if ready() {
            return true;
        }
    }
    false
}

/// Sleeps until woken, if the word still shows `seen`. May end for no reason.
#[cfg(target_os = "linux")]
pub(crate) fn sleep(word: &AtomicU32, seen: u32) {
    // SAFETY: waits on a live word of this process; no time limit is given.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            seen,
            std::ptr::null::<libc::timespec>(),
        )
    };
}

/// Wakes all who sleep at the word.
#[cfg(target_os = "linux")]
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: names a word of this process by its address; nothing is written.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX) };
}

/// Elsewhere nobody sleeps for longer than this, so nobody needs waking.
#[cfg(not(target_os = "linux"))]
pub(crate) fn sleep(_: &AtomicU32, _: u32) {
    std::thread::sleep(Duration::from_micros(50));
}

/// As above.
#[cfg(not(target_os = "linux"))]
pub(crate) fn wake(_: &AtomicU32) {}
