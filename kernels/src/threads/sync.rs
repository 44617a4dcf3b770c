//! What threads and ranks wait with: a short spin, then a futex. The protocols over it, [`crate::threads::pool`]'s and the one of ranks
//! that share memory (engine/collectives/src/shared_memory/protocol.rs), are lock-free: tests/loom compiles them over
//! loom's types instead of these.

#![allow(unsafe_code, reason = "futex system calls, and a fence in assembly")]

pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// A cell that hands out pointers, so that loom can watch who uses them.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// A cell that holds `value`.
    pub fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// As [`fence`] with [`Ordering::SeqCst`]. On x86-64 compilers emit `mfence` for that one, which took 18 ns on a Zen 4 where a locked
/// instruction took 2.4. Both order the same memory, but for non-temporal stores, which need a fence of their own.
#[inline]
pub fn full_fence() {
    // SAFETY: the instruction leaves a word of this thread's own stack as it is. The compiler assumes that the block touches any
    // memory, so it moves no access across.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp - 8], 0");
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fence(Ordering::SeqCst);
}

/// How long a thread polls before it sleeps.
#[derive(Clone, Copy, Debug)]
pub struct SpinPolicy {
    /// Polls at least this often, and this often between two readings of the clock.
    pub rounds: u32,
    /// Polls for this long, on a core of its own.
    pub spin: Duration,
    /// Then gives the core away this many times, and polls after each.
    pub yields: u32,
}

/// Yields that take longer than this in all are no short wait any more: others want the core, and have it as long as they like.
const LONGEST_YIELDS: Duration = Duration::from_millis(10);

/// Polls as long as the policy says.
///
/// # Errors
/// It did not become ready: the time when the spinning ended.
pub fn spin_until(policy: SpinPolicy, ready: impl Fn() -> bool) -> Result<(), Instant> {
    let mut first = None;
    let since = loop {
        for _ in 0..policy.rounds {
            if ready() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let now = Instant::now();
        if now - *first.get_or_insert(now) >= policy.spin {
            break now;
        }
    };
    for _ in 0..policy.yields {
        if ready() {
            return Ok(());
        }
        std::thread::yield_now();
        if since.elapsed() > LONGEST_YIELDS {
            break;
        }
    }
    if ready() { Ok(()) } else { Err(since) }
}

/// Whose threads wait at a futex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FutexScope {
    /// This process's alone, which is cheaper.
    Private,
    /// Those of all processes that have mapped its memory.
    Shared,
}

/// Sleeps until woken or until the time is over, if the word still shows `seen`. May end for no reason.
#[cfg(target_os = "linux")]
pub fn sleep(word: &AtomicU32, seen: u32, limit: Option<Duration>, scope: FutexScope) {
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: limit.subsec_nanos() as _,
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: waits on a live word; the time limit is absent or live. Any end of the wait, an error too, makes the caller look.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | scope.flag(), seen, limit) };
}

/// Wakes all who sleep at the word.
#[cfg(target_os = "linux")]
pub fn wake(word: &AtomicU32, scope: FutexScope) {
    // SAFETY: names a word by its address; nothing is written.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | scope.flag(), i32::MAX) };
}

#[cfg(target_os = "linux")]
impl FutexScope {
    fn flag(self) -> i32 {
        if self == FutexScope::Private { libc::FUTEX_PRIVATE_FLAG } else { 0 }
    }
}

/// Elsewhere nobody sleeps for longer than this, so nobody needs waking.
#[cfg(not(target_os = "linux"))]
pub fn sleep(_: &AtomicU32, _: u32, _: Option<Duration>, _: FutexScope) {
    std::thread::sleep(Duration::from_micros(50));
}

#[cfg(not(target_os = "linux"))]
pub fn wake(_: &AtomicU32, _: FutexScope) {}
