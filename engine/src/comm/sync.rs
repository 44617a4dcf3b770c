//! What the protocol synchronises with. The race test (tests/comm_loom.rs) compiles the protocol over loom's types instead.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Looks at a counter before a rank goes to sleep: a few microseconds, so that short waits cost no system call.
pub(crate) const SPINS: u32 = 400;
