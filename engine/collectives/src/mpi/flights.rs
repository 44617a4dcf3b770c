//! The calls under way of a process: one list for all of its groups, which goes on as a whole.

use super::flight::Flight;
use super::group::Group;
use super::inquiry::Answer;
use super::world::World;
use crate::CommError;
use crate::progress::Engine;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// The thread's sleep between two looks. MPI has nothing to sleep on until a message comes, and every look costs the rank that
/// computes about 8 us.
const NAP: Duration = Duration::from_micros(100);
/// The same when nothing has been complete for [`STILL_AFTER`]: calls that wait for a rank that computes wait for long.
const LONG_NAP: Duration = Duration::from_millis(1);
/// Longer than a message of 16 MiB takes inside a host.
const STILL_AFTER: Duration = Duration::from_millis(30);

/// Whoever calls MPI holds the lock of this list.
pub(super) struct Flights {
    open: Vec<Open>,
    /// Calls so far.
    calls: u64,
    /// When a call was last begun, or went on.
    changed: Instant,
}

struct Open {
    id: u64,
    group: Arc<Group>,
    flight: Flight,
}

impl Flights {
    pub(super) fn new() -> Flights {
        Flights { open: Vec::new(), calls: 0, changed: Instant::now() }
    }

    pub(super) fn of(&self, group: &Group) -> usize {
        self.open.iter().filter(|open| std::ptr::eq(&*open.group, group)).count()
    }

    /// Adds a call. Its number in the process.
    pub(super) fn add(&mut self, group: &Arc<Group>, flight: Flight) -> u64 {
        let id = self.calls;
        self.calls += 1;
        self.changed = Instant::now();
        self.open.push(Open { id, group: group.clone(), flight });
        id
    }

    pub(super) fn get(&self, id: u64) -> Option<&Flight> {
        self.open.iter().find(|open| open.id == id).map(|open| &open.flight)
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Flight> {
        let at = self.open.iter().position(|open| open.id == id)?;
        Some(self.open.swap_remove(at).flight)
    }

    /// Moves every call forward as far as it goes by itself, until one fails. Whether any went on.
    fn go_on(&mut self) -> Result<bool, (Arc<Group>, CommError)> {
        let mut any = false;
        for Open { group, flight, .. } in &mut self.open {
            any |= flight.advance(group).map_err(|error| (group.clone(), error))?;
        }
        if any {
            self.changed = Instant::now();
        }
        Ok(any)
    }
}

impl Engine for World {
    type State = Flights;

    /// After a failure the thread does nothing. Blocking calls have given the failed group's buffers back, and whoever calls MPI lets
    /// it write there, for whatever group. A rank decides for itself whether it calls other groups then.
    fn is_busy(&self, flights: &Flights) -> bool {
        !self.has_failed() && flights.open.iter().any(|open| !open.flight.done)
    }

    /// A failure ends the calls of its group; the others go on.
    fn advance(&self, flights: &mut Flights) -> bool {
        loop {
            match flights.go_on() {
                Ok(any) => return any,
                Err((group, error)) => drop(self.fail(flights, &group, error)),
            }
        }
    }

    fn idle(&self, flights: MutexGuard<'_, Flights>) {
        let nap = if flights.changed.elapsed() < STILL_AFTER { NAP } else { LONG_NAP };
        drop(flights);
        std::thread::sleep(nap);
    }

    /// A nap is short enough.
    fn wake(&self) {}

    fn panicked(&self) {
        self.abort("the thread of the started calls panicked");
    }
}

impl World {
    /// Ends a group on this rank with the cause, and tells its others.
    pub(super) fn fail(&self, flights: &mut Flights, group: &Group, error: CommError) -> CommError {
        let collectives = group.state().collectives();
        group.tell(&Answer::failed(collectives, &error.to_string()));
        self.close(flights, group, error)
    }

    /// Every later call of the group gets this error. What MPI still uses is never freed.
    pub(super) fn close(&self, flights: &mut Flights, group: &Group, error: CommError) -> CommError {
        let ended = flights.open.extract_if(.., |open| std::ptr::eq(&*open.group, group));
        ended.for_each(std::mem::forget);
        group.state().failed = Some(error.clone());
        self.set_failed();
        error
    }
}
