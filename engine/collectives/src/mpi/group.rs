//! One group, as a rank of it knows it.

use super::Settings;
use super::world::{Comm, World};
use crate::{CommError, Kind, Result};
use std::os::raw::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use zbench_kernels::Kernels;

pub(super) struct Group {
    pub comm: Comm,
    pub name: String,
    pub rank: usize,
    pub size: usize,
    pub kernels: Arc<dyn Kernels>,
    pub settings: Settings,
    /// What the library takes for "in place", where it is known and wanted.
    in_place: Option<usize>,
    /// Taken after the lock of the process's calls where both are needed.
    state: Mutex<State>,
}

pub(super) struct State {
    /// Collectives and exchanges of two so far.
    collectives: u64,
    exchanges: u64,
    pub wire: u64,
    pub failed: Option<CommError>,
    /// When this rank last came to the end of a call.
    pub last: Instant,
}

impl Group {
    pub(super) fn new(
        world: &World,
        comm: Comm,
        name: String,
        kernels: Arc<dyn Kernels>,
        settings: Settings,
    ) -> Result<Group> {
        let (rank, size) = world.place(&comm)?;
        let in_place = world.in_place.filter(|_| settings.in_place);
        let state = State { collectives: 0, exchanges: 0, wire: 0, failed: None, last: Instant::now() };
        Ok(Group { comm, name, rank, size, kernels, settings, in_place, state: Mutex::new(state) })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Numbers, which are whole after a panic, too.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address that means "in place", if the library's is known and wanted.
    pub(super) fn in_place(&self) -> Option<*const c_void> {
        self.in_place.map(|address| address as *const c_void)
    }

    /// Why the group is at its end, if it is.
    pub(super) fn failure(&self) -> Option<CommError> {
        self.state().failed.clone()
    }

    /// Whether this rank was in no call for so long that the others may have given it up.
    pub(super) fn was_away(&self) -> bool {
        self.state().last.elapsed() > self.settings.stall / 2
    }
}

impl State {
    /// Collectives so far.
    pub(super) fn collectives(&self) -> u64 {
        self.collectives
    }

    /// The next call's number among the collectives, or among the exchanges of two.
    pub(super) fn number(&mut self, kind: Kind) -> u64 {
        let next = if kind.is_collective() { &mut self.collectives } else { &mut self.exchanges };
        std::mem::replace(next, *next + 1)
    }
}
