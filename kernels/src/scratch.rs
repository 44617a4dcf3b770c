//! Marks the time a thread spends inside a library.
//!
//! Our own kernels take scratch from the arena alone. A library may take some from the heap; a counting allocator asks
//! [`in_library`] to tell the two apart.

use std::cell::Cell;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread is inside a call of a library that may allocate for itself.
pub fn in_library() -> bool {
    // An allocator may ask while a thread is being torn down; then no library call is in progress.
    DEPTH.try_with(|depth| depth.get() > 0).unwrap_or(false)
}

/// Runs a library call, marked as such.
pub(crate) fn library<R>(call: impl FnOnce() -> R) -> R {
    let _mark = Mark::new();
    call()
}

/// Ends the mark also when the library panics.
struct Mark;

impl Mark {
    fn new() -> Mark {
        DEPTH.with(|depth| depth.set(depth.get() + 1));
        Mark
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_nests_and_ends_with_a_panic() {
        assert!(!in_library());
        library(|| {
            library(|| assert!(in_library()));
            assert!(in_library());
        });
        assert!(std::panic::catch_unwind(|| library(|| panic!("library"))).is_err());
        assert!(!in_library());
    }
}
