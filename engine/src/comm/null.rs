//! A communicator of the right shapes that moves nothing: for plans, and for tests of one rank's program.

use super::{Call, CommError, Communicator, OwnedCall, Result, Ticket};
use std::cell::Cell;

/// Checks what it is given as any communicator would, and leaves every buffer as it was.
#[derive(Debug)]
pub struct Null {
    rank: usize,
    size: usize,
    next: Cell<u64>,
}

impl Null {
    /// Rank `rank` of `size`.
    pub fn new(rank: usize, size: usize) -> Null {
        Null { rank, size, next: Cell::new(0) }
    }
}

impl Communicator for Null {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn backend(&self) -> &'static str {
        "null"
    }

    fn call(&self, call: Call<'_>) -> Result<()> {
        call.check(self.rank, self.size)
    }

    fn start(&self, mut request: OwnedCall) -> Result<Ticket> {
        request.as_call().check(self.rank, self.size)?;
        let sequence = self.next.replace(self.next.get() + 1);
        Ok(Ticket { sequence, request: Some(request), owner: None })
    }

    fn wait(&self, mut ticket: Ticket) -> Result<OwnedCall> {
        let reason = "the collective was waited for before".to_owned();
        ticket.request.take().ok_or(CommError::Invalid { operation: "wait", reason })
    }

    /// An error: what colors the other ranks give is not known here. Make the smaller group with [`Null::new`].
    fn split(&self, _color: usize, _key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        let reason =
            format!("a null group cannot know who else is in {name}; make it directly, with its rank and size");
        Err(CommError::Invalid { operation: "split", reason })
    }

    /// Nobody else is there to be told.
    fn abort(&self, _reason: &str) {}

    fn wire_bytes(&self) -> u64 {
        0
    }
}
