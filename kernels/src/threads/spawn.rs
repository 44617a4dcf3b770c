//! Threads, which the system may refuse: a limit of processes and threads is an error to be told, and no reason to panic.

use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Starts a thread.
///
/// # Errors
/// The system starts no more, and what to do.
pub fn start<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(work).map_err(not_started)
}

/// Starts a thread that ends with `scope`.
///
/// # Errors
/// As [`start`].
pub fn start_scoped<'scope, 'env, T: Send + 'scope>(
    scope: &'scope Scope<'scope, 'env>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    Builder::new().name(name.into()).spawn_scoped(scope, work).map_err(not_started)
}

/// Why a thread or a process could not be started, with what to do where the system has a limit of them.
pub fn not_started(error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::WouldBlock {
        return error;
    }
    let advice = "the limit of processes and threads is reached: raise it (ulimit -u, or pids.max of the control group), \
                  or ask for fewer ranks and threads";
    io::Error::new(error.kind(), format!("{error}; {advice}"))
}
