//! Collectives that were started and not waited for yet.

use super::{OwnedCall, Result, invalid};
use std::cell::RefCell;
use std::sync::Arc;

/// A collective under way. Not waiting for it ends the group: dropping it aborts, and returns when no peer reads its
/// buffers any more.
#[must_use = "a started collective must be waited for"]
pub struct Ticket {
    pub(crate) sequence: u64,
    /// Taken by `wait`.
    request: Option<OwnedCall>,
    /// Who must be told when the ticket is dropped instead.
    owner: Option<Arc<dyn Abandon>>,
}

/// Told of tickets that nobody waited for.
pub(crate) trait Abandon: Send + Sync {
    /// Returns when nobody uses the ticket's buffers any more, or when they are in use for ever.
    fn abandoned(&self, sequence: u64);

    /// Whether the buffers of abandoned tickets may still be in use, so that they must not be freed.
    fn keeps_buffers(&self) -> bool {
        false
    }
}

/// The reason that the others are given for an abandoned ticket.
pub(crate) fn why_abandoned() -> &'static str {
    if std::thread::panicking() { "panicked" } else { "it did not wait for a collective it had started" }
}

impl Ticket {
    /// A collective that goes on until `owner` is asked to finish it.
    pub(crate) fn of(owner: Arc<dyn Abandon>, sequence: u64, request: OwnedCall) -> Ticket {
        Ticket { sequence, request: Some(request), owner: Some(owner) }
    }

    /// A collective that is complete: the ticket only carries its buffers.
    pub(crate) fn complete(sequence: u64, request: OwnedCall) -> Ticket {
        Ticket { sequence, request: Some(request), owner: None }
    }

    /// An error where another communicator has started the collective.
    pub(crate) fn check_owner(&self, owner: &Arc<impl Abandon>) -> Result<()> {
        let is_own = |of: &Arc<dyn Abandon>| std::ptr::addr_eq(Arc::as_ptr(of), Arc::as_ptr(owner));
        if self.owner.as_ref().is_some_and(is_own) {
            return Ok(());
        }
        Err(invalid("wait", "the collective was started by another communicator"))
    }

    /// The call. From here on the ticket may be dropped.
    pub(crate) fn take(&mut self) -> Result<OwnedCall> {
        self.request.take().ok_or_else(|| invalid("wait", "the collective was waited for before"))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let (Some(_), Some(owner)) = (&self.request, &self.owner) {
            owner.abandoned(self.sequence);
            if owner.keeps_buffers() {
                std::mem::forget(self.request.take());
            }
        }
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket")
            .field("sequence", &self.sequence)
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

/// What a communicator remembers of its started collectives, by their sequence numbers. Few are under way at a time, and a
/// list keeps its memory from step to step.
pub(crate) struct Started<T>(RefCell<Vec<(u64, T)>>);

impl<T> Default for Started<T> {
    fn default() -> Started<T> {
        Started(RefCell::default())
    }
}

impl<T> Started<T> {
    pub(crate) fn put(&self, sequence: u64, what: T) {
        self.0.borrow_mut().push((sequence, what));
    }

    pub(crate) fn take(&self, sequence: u64) -> Option<T> {
        let mut started = self.0.borrow_mut();
        let at = started.iter().position(|(number, _)| *number == sequence)?;
        Some(started.swap_remove(at).1)
    }
}
