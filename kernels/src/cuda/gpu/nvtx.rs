//! Ranges that a profiler shows beside a device's work, such as Nsight Systems: NVTX's, which belong to a thread and nest.

#![allow(unsafe_code, reason = "functions of NVTX")]

use super::library::{Absent, Library, Search, table};
use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};

table! {
    Table;
    cudarc {}
    own {
        push = "nvtxRangePushA"(*const c_char) -> c_int;
        pop = "nvtxRangePop"() -> c_int;
    }
}

/// Bytes of a name, the zero at its end included; longer names are cut off.
const NAME_BYTES: usize = 64;

thread_local! {
    /// Whether this thread has a range open.
    static OPEN: Cell<bool> = const { Cell::new(false) };
}

/// The functions of NVTX's library. Where no profiler listens they return at once.
#[derive(Debug)]
pub struct Ranges {
    table: Table,
    path: PathBuf,
}

impl Ranges {
    /// # Errors
    /// It is not there, or is another one.
    pub fn load(search: &Search) -> Result<Ranges, Absent> {
        let found = search.open(Library::Nvtx)?;
        Ok(Ranges { table: Table::resolve(&found)?, path: found.path })
    }

    /// The file, or the name under which the system found it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// This thread does something else from here on: its range ends, and another one begins where it has a name.
    pub fn profiler_range(&self, name: Option<&str>) {
        if OPEN.replace(false) {
            // SAFETY: a function without arguments.
            unsafe { (self.table.pop)() };
        }
        let Some(name) = name else { return };
        let mut text = [0 as c_char; NAME_BYTES];
        for (to, byte) in text[..NAME_BYTES - 1].iter_mut().zip(name.bytes()) {
            *to = byte as c_char;
        }
        // SAFETY: it ends in a zero, and is copied before the call returns.
        unsafe { (self.table.push)(text.as_ptr()) };
        OPEN.set(true);
    }
}
