//! A communicator of the right shapes that moves nothing: for dry runs, and for tests of one rank's program.

use super::{Call, CollectiveKind, Communicator, Kind, Member, ONE_ROUND_BYTES, OwnedCall, Result, Ticket, invalid};
use crate::GroupName;
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

/// One collective of a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collective {
    pub axis: GroupName,
    pub kind: CollectiveKind,
    pub ranks: usize,
    /// The larger buffer: nccl-tests' size.
    pub bytes: u64,
    /// One buffer is read and written.
    pub in_place: bool,
    /// It was started, and waited for later.
    pub is_started: bool,
}

/// The collectives of a dry run in order, for all groups of a rank.
pub type CollectiveLog = Arc<Mutex<Vec<Collective>>>;

/// Checks calls as any communicator does, leaves every buffer as it is, and counts the bytes that would cross.
#[derive(Debug)]
pub struct Null {
    rank: usize,
    size: usize,
    next: Cell<u64>,
    wire_bytes: Cell<u64>,
    /// All-reduces up to this size take one round.
    one_round_bytes: u64,
    log: Option<(GroupName, CollectiveLog)>,
}

impl Null {
    pub fn new(rank: usize, size: usize) -> Null {
        Null { rank, size, next: Cell::new(0), wire_bytes: Cell::new(0), one_round_bytes: 0, log: None }
    }

    /// As groups that reduce small buffers in one round.
    pub fn in_one_round(self) -> Null {
        Null { one_round_bytes: ONE_ROUND_BYTES as u64, ..self }
    }

    /// Lists its collectives, as those of a mesh axis.
    pub fn listed(self, axis: GroupName, log: &CollectiveLog) -> Null {
        Null { log: Some((axis, log.clone())), ..self }
    }

    fn bytes(&self, call: &Call<'_>) -> u64 {
        let payload = call.payload_bytes(self.size);
        if matches!(call.kind, Kind::AllReduce { .. }) { payload / 2 } else { payload }
    }

    fn list(&self, call: &Call<'_>, is_started: bool) {
        let Some((axis, log)) = &self.log else { return };
        let (kind, bytes, in_place) = (call.kind.collective(), self.bytes(call), call.send.is_none());
        let collective = Collective { axis: *axis, kind, ranks: self.size, bytes, in_place, is_started };
        log.lock().unwrap_or_else(PoisonError::into_inner).push(collective);
    }

    fn count(&self, call: &Call<'_>) {
        let (bytes, ranks) = (self.bytes(call), self.size as u64);
        let (part, others) = (bytes / ranks, ranks - 1);
        let wire = match call.kind {
            // Every rank reads every other's buffer, rather than passing parts twice.
            Kind::AllReduce { .. } if bytes <= self.one_round_bytes => others * bytes,
            Kind::AllReduce { .. } => 2 * part * others,
            Kind::AllGather | Kind::ReduceScatter { .. } | Kind::AllToAll => part * others,
            Kind::Recv { .. } => bytes,
            // What it takes may be of another size than what it gives.
            Kind::SendRecv { .. } => call.recv_shape().map_or(0, |(dtype, len)| (dtype.size() * len) as u64),
            _ => 0,
        };
        self.wire_bytes.set(self.wire_bytes.get() + wire);
    }
}

impl Communicator for Null {
    fn member(&self) -> Member {
        Member { rank: self.rank, size: self.size, backend: "null" }
    }

    fn call(&self, call: Call<'_>) -> Result<()> {
        call.check(self.rank, self.size)?;
        self.list(&call, false);
        self.count(&call);
        Ok(())
    }

    fn start(&self, mut request: OwnedCall) -> Result<Ticket> {
        let call = request.as_call();
        call.check(self.rank, self.size)?;
        self.list(&call, true);
        let sequence = self.next.replace(self.next.get() + 1);
        Ok(Ticket::complete(sequence, request))
    }

    fn wait(&self, mut ticket: Ticket) -> Result<OwnedCall> {
        let mut request = ticket.take()?;
        self.count(&request.as_call());
        Ok(request)
    }

    /// An error: what colors the other ranks give is not known here. Make the smaller group with [`Null::new`].
    fn split(&self, _color: usize, _key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        let reason =
            format!("a null group cannot know who else is in {name}; make it directly, with its rank and size");
        Err(invalid("split", reason))
    }

    /// Nobody else is there to be told.
    fn abort(&self, _reason: &str) {}

    fn wire_bytes(&self) -> u64 {
        self.wire_bytes.get()
    }
}
