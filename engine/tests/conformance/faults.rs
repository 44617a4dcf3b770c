//! How a group ends. A backend takes the pieces that it can promise; each of them leaves the group at its end.

use std::time::{Duration, Instant};
use zbench_collectives::{CommError, Communicator};
use zbench_kernels::ViewMut;

fn sum(comm: &dyn Communicator, len: usize) -> Result<(), CommError> {
    comm.all_reduce(ViewMut::of(&mut vec![1f32; len]))
}

fn fails(comm: &dyn Communicator, what: &str, error: &dyn std::fmt::Debug) -> ! {
    panic!("{} {what}, rank {} of {}: {error:?}", comm.backend(), comm.rank(), comm.size())
}

/// The error of a call that cannot end well.
fn failed(comm: &dyn Communicator, what: &str, call: impl FnOnce() -> Result<(), CommError>) -> CommError {
    match call() {
        Err(error) => error,
        Ok(()) => fails(comm, what, &"the call came to its end"),
    }
}

/// Rank `who` gives its communicator back while the others wait; they hear of it, and its number.
pub fn leaves(comm: Box<dyn Communicator>, who: usize) {
    sum(&*comm, 1000).unwrap_or_else(|error| fails(&*comm, "before a rank leaves", &error));
    if comm.rank() == who {
        return;
    }
    match failed(&*comm, "after a rank left", || sum(&*comm, 1000)) {
        CommError::Aborted { rank, .. } if rank == who => {}
        CommError::Stalled { missing, .. } if missing == [who] => {}
        error => fails(&*comm, "after a rank left", &error),
    }
}

/// Rank `who` ends the group with a reason; every rank gets the reason, then and later.
pub fn aborts(comm: &dyn Communicator, who: usize) {
    if comm.rank() == who {
        comm.abort("the disk is full");
        comm.abort("a second reason");
    }
    for _ in 0..2 {
        match failed(comm, "after an abort", || comm.barrier()) {
            CommError::Aborted { rank, reason, .. } if rank == who && reason.contains("the disk is full") => {}
            error => fails(comm, "after an abort", &error),
        }
    }
}

/// Rank 0 sums another length than the rest. Every rank hears of a mismatch, or of the rank that saw it.
pub fn mismatches(comm: &dyn Communicator) {
    let len = if comm.rank() == 0 { 1000 } else { 1001 };
    match failed(comm, "with lengths that differ", || sum(comm, len)) {
        CommError::Mismatch { theirs, ours, .. } => {
            let both = format!("{theirs} {ours}");
            assert!(both.contains("1000") && both.contains("1001"), "{}: {both}", comm.backend());
        }
        CommError::Aborted { reason, .. } if reason.contains("does not match") => {}
        error => fails(comm, "with lengths that differ", &error),
    }
}

/// Rank `who` does not come for longer than `stall`, the group's limit; the others name it in time, and itself hears of it.
pub fn stalls(comm: &dyn Communicator, who: usize, stall: Duration) {
    // A rank may be through with the first call, and wait in the second, before another of them reads a clock.
    let begin = Instant::now();
    sum(comm, 1000).unwrap_or_else(|error| fails(comm, "before a stall", &error));
    if comm.rank() == who {
        std::thread::sleep(4 * stall);
    }
    let error = failed(comm, "after a stall", || sum(comm, 1000));
    if comm.rank() == who {
        return;
    }
    // There is no upper limit of the time: after four times the limit rank `who` comes, and the call would succeed.
    let waited = begin.elapsed();
    assert!(waited >= stall, "{}: waited {waited:?} for {stall:?}", comm.backend());
    match error {
        CommError::Stalled { missing, operation: "all_reduce", .. } if missing == [who] => {}
        error => fails(comm, "after a stall", &error),
    }
}
