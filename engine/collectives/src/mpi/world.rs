//! The MPI library of this process: started once, used by one thread at a time (whoever holds the lock of `Flights`), finalized when
//! nobody needs it any more.

// Calls of MPI's.
#![allow(unsafe_code)]

use crate::{CommError, Result};
use mpi::environment::{initialize_with_threading, library_version, processor_name};
use mpi::{Threading, ffi};
use std::os::raw::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

/// Waits this short a time without giving the core away, if there is one for every rank.
const SPIN: Duration = Duration::from_millis(1);
/// From here on a waiting rank sleeps between two looks.
const NAP_AFTER: Duration = Duration::from_millis(20);
const NAP: Duration = Duration::from_micros(100);

pub(super) struct World {
    /// Finalizes MPI when it is dropped.
    universe: Option<mpi::environment::Universe>,
    pub library: String,
    pub host: String,
    /// What the library takes for "in place", where it is known.
    pub in_place: Option<usize>,
    /// Whether this machine has fewer cores than ranks of the run.
    crowded: bool,
    /// The only thread that may call MPI, if the library wants it so.
    home: Option<ThreadId>,
    failed: AtomicBool,
    /// A blocking call has failed and given its buffers back, and MPI may still write there.
    unsafe_to_call: AtomicBool,
}

pub(super) struct Comm(pub ffi::MPI_Comm);

// SAFETY: a handle is a number or an address that only MPI looks at, and only under the lock of `Flights`.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

fn invalid(reason: impl std::fmt::Display) -> CommError {
    crate::invalid("mpi", reason)
}

impl World {
    pub(super) fn new() -> Result<World> {
        let started = initialize_with_threading(Threading::Serialized);
        let again = "MPI has been started in this process before; it can be started once".to_owned();
        let (universe, threading) = started.ok_or_else(|| invalid(again))?;
        let library = library_version().unwrap_or_default().trim_end_matches(['\0', '\n']).to_owned();
        let host = processor_name().unwrap_or_default();
        let home = (threading < Threading::Serialized).then(|| std::thread::current().id());
        let mut world = World {
            universe: Some(universe),
            in_place: in_place(&library),
            library,
            host,
            crowded: false,
            home,
            failed: AtomicBool::new(false),
            unsafe_to_call: AtomicBool::new(false),
        };
        // SAFETY: MPI is up, and the world communicator lives as long as it.
        let result = unsafe { ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN) };
        check("MPI_Comm_set_errhandler", result)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        world.crowded = world.ranks_here()? > cores;
        Ok(world)
    }

    /// Ranks of the run on this machine. All ranks call it, as the first thing.
    fn ranks_here(&self) -> Result<usize> {
        let (mut here, mut count) = (self.all(), 0);
        // SAFETY: all ranks come here while they start, and the outputs are live.
        let result = unsafe {
            let kind = ffi::RSMPI_COMM_TYPE_SHARED;
            ffi::MPI_Comm_split_type(ffi::RSMPI_COMM_WORLD, kind, 0, ffi::RSMPI_INFO_NULL, &mut here.0)
        };
        check("MPI_Comm_split_type", result)?;
        // SAFETY: the communicator was just made.
        let result = unsafe { ffi::MPI_Comm_size(here.0, &mut count) };
        self.free(&here);
        check("MPI_Comm_size", result)?;
        Ok(count as usize)
    }

    pub(super) fn all(&self) -> Comm {
        // SAFETY: a constant of the library.
        Comm(unsafe { ffi::RSMPI_COMM_WORLD })
    }

    /// An error where this thread may not call MPI.
    pub(super) fn check_thread(&self, operation: &'static str) -> Result<()> {
        if self.home.is_none_or(|home| home == std::thread::current().id()) {
            return Ok(());
        }
        Err(crate::invalid(operation, "this MPI library may only be called by the thread that started it"))
    }

    /// Whether a thread of our own may call MPI.
    pub(super) fn allows_threads(&self) -> bool {
        self.home.is_none()
    }

    pub(super) fn place(&self, comm: &Comm) -> Result<(usize, usize)> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: a live communicator, and live outputs.
        let results = unsafe { [ffi::MPI_Comm_rank(comm.0, &mut rank), ffi::MPI_Comm_size(comm.0, &mut size)] };
        results.into_iter().try_for_each(|result| check("MPI_Comm_rank", result))?;
        Ok((rank as usize, size as usize))
    }

    /// MPI's own split; blocks until all ranks of `comm` have called it.
    pub(super) fn split(&self, comm: &Comm, color: usize, key: usize) -> Result<Comm> {
        let mut new = self.all();
        // SAFETY: all ranks have arrived (the caller saw to it), colors and keys are ranks, and the output is live.
        let result = unsafe { ffi::MPI_Comm_split(comm.0, color as c_int, key as c_int, &mut new.0) };
        check("MPI_Comm_split", result)?;
        Ok(new)
    }

    /// Gives a communicator back, unless it is the world's own. The standard calls this collective and expects it to be local.
    pub(super) fn free(&self, comm: &Comm) {
        // SAFETY: nobody uses the handle after this, and MPI is up as long as the universe is.
        unsafe {
            if comm.0 != ffi::RSMPI_COMM_WORLD && !self.has_failed() {
                let mut gone = comm.0;
                ffi::MPI_Comm_free(&mut gone);
            }
        }
    }

    /// From now on nothing is freed or finalized, since that would wait for others.
    pub(super) fn set_failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// From now on no group may call MPI, since MPI would write to buffers that a blocking call has given back.
    pub(super) fn forbid_calls(&self) {
        self.unsafe_to_call.store(true, Ordering::Relaxed);
    }

    pub(super) fn forbids_calls(&self) -> bool {
        self.unsafe_to_call.load(Ordering::Relaxed)
    }

    /// Whether a group of this process has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Between two looks of a rank that has waited for so long.
    pub(super) fn pause(&self, waited: Duration) {
        if waited < SPIN && !self.crowded {
            std::hint::spin_loop();
        } else if waited < NAP_AFTER {
            std::thread::yield_now();
        } else {
            std::thread::sleep(NAP);
        }
    }

    /// Ends all processes of the run.
    pub(super) fn abort(&self, words: &str) -> ! {
        // Names in it are from files: what acts on a terminal is shown by its number.
        let shown = |symbol: char| {
            let acts = symbol.is_control() && symbol != '\n' || ('\u{202a}'..='\u{202e}').contains(&symbol);
            if acts { symbol.escape_unicode().to_string() } else { symbol.to_string() }
        };
        eprintln!("{}", words.chars().map(shown).collect::<String>());
        // A launcher that hears of the abort first (MPICH's does) throws away what it has not forwarded yet.
        std::thread::sleep(Duration::from_millis(200));
        // SAFETY: MPI is up. It may be called from a thread that MPI does not expect, in a process that ends here.
        unsafe { ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, 1) };
        std::process::abort()
    }
}

/// MPI's word for what a call of this name returned.
pub(super) fn check(call: &str, result: c_int) -> Result<()> {
    if result == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0u8; 4096]; // no library's messages are longer
    let mut len: c_int = 0;
    // SAFETY: the text has room for more than MPI_MAX_ERROR_STRING (256 to 1024) bytes.
    unsafe { ffi::MPI_Error_string(result, text.as_mut_ptr().cast(), &mut len) };
    let text = String::from_utf8_lossy(&text[..(len.max(0) as usize).min(4096)]).into_owned();
    Err(invalid(format!("{call}: {text}")))
}

impl Drop for World {
    fn drop(&mut self) {
        // Finalizing waits for all ranks; after a failure some of them will not come.
        if self.has_failed() || std::thread::panicking() {
            std::mem::forget(self.universe.take());
        }
    }
}

/// MPI_IN_PLACE is a macro that bindings cannot see. Its value is part of each library's binary interface.
fn in_place(library: &str) -> Option<usize> {
    let has = |name: &str| library.contains(name);
    if has("Open MPI") {
        Some(1)
    } else if ["MPICH", "Intel(R) MPI", "MVAPICH"].into_iter().any(has) {
        Some(usize::MAX)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::in_place;

    #[test]
    fn in_place_is_known_for_known_libraries_only() {
        assert_eq!(in_place("Open MPI v4.1.4, package: Debian OpenMPI"), Some(1));
        assert_eq!(in_place("MPICH Version:\t4.0.2"), Some(usize::MAX));
        assert_eq!(in_place("MVAPICH2 Version : 2.3"), Some(usize::MAX));
        assert_eq!(in_place("HPE MPT 2.25"), None);
        assert_eq!(in_place(""), None);
    }
}
