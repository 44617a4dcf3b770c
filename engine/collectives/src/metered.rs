//! Counts what a communicator does: calls, bytes and time by kind.

use super::link::LinkUse;
use super::{Call, CollectiveKind, Communicator, Kind, Member, OwnedCall, Result, Started, Ticket};
use crate::GroupName;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::time::{Duration, Instant};
use tracing::{Level, debug, enabled, trace};

/// Collectives of one kind on one mesh axis, per step and rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    pub axis: GroupName,
    pub kind: CollectiveKind,
    pub calls: f64,
    /// What the collective is about: the whole buffer for gather and scatter, twice the buffer for all-reduce.
    pub payload_bytes: f64,
    /// Bytes this rank reads or writes in another rank's memory.
    pub wire_bytes: f64,
    /// Time from start to end, waiting for late ranks included; 0 in a plan.
    pub ms: f64,
    /// The part of it in which the rank did nothing else; 0 in a plan.
    pub exposed_ms: f64,
    pub ranks: usize,
    /// How the calls fared on emulated links, over all timed steps; zeros in a plan and where links are real.
    #[serde(default)]
    pub link: LinkUse,
}

#[derive(Clone, Copy, Debug)]
/// A recorded collective.
pub struct Seen {
    pub axis: GroupName,
    pub kind: CollectiveKind,
    pub ranks: usize,
    pub payload_bytes: u64,
    pub wire_bytes: u64,
    /// Asked for, that returned, awaited, there.
    pub moments: [Instant; 4],
    pub is_started: bool,
}

/// A communicator that counts its calls, for one mesh axis.
///
/// Payload is [`Call::payload_bytes`]. Calls that fail are not counted. `split` gives a bare communicator, to be metered
/// as its own axis.
pub struct Metered {
    inner: Box<dyn Communicator>,
    /// The only time there is in a dry run, which reads no clock.
    still: Option<Instant>,
    axis: GroupName,
    account: RefCell<Account>,
    /// When each started collective was asked for, and the time spent in `start`.
    started: Started<(Instant, Duration)>,
}

#[derive(Default)]
struct Account {
    totals: Vec<(CollectiveKind, Total)>,
    /// The recorded collectives that have ended; `None` where none are recorded.
    seen: Option<Vec<Seen>>,
}

/// What has been counted up to a moment.
pub struct Totals(Vec<(CollectiveKind, Total)>);

#[derive(Clone, Copy, Default)]
struct Total {
    calls: u64,
    payload_bytes: u64,
    wire_bytes: u64,
    time: Duration,
    exposed: Duration,
    link: LinkUse,
}

impl Metered {
    /// Meters `inner` under the name of its axis.
    pub fn new(axis: GroupName, inner: Box<dyn Communicator>) -> Metered {
        let (rank, size, backend) = (inner.rank(), inner.size(), inner.backend());
        debug!(target: "zbench::comm", axis = axis.name(), rank, size, backend, "group is formed");
        Metered::over(axis, inner, None)
    }

    /// Meters a communicator of a dry run: calls and bytes alone.
    pub fn without_time(axis: GroupName, inner: Box<dyn Communicator>) -> Metered {
        Metered::over(axis, inner, Some(Instant::now()))
    }

    fn over(axis: GroupName, inner: Box<dyn Communicator>, still: Option<Instant>) -> Metered {
        Metered { inner, still, axis, account: RefCell::default(), started: Started::default() }
    }

    fn now(&self) -> Instant {
        self.still.unwrap_or_else(Instant::now)
    }

    /// The communicator itself, for calls that are no part of training.
    pub fn unmetered(&self) -> &dyn Communicator {
        &*self.inner
    }

    /// Totals since the start or the last reset, one row per kind in order of first use; divide by the steps for a step's.
    /// Started collectives count when they are waited for.
    pub fn snapshot(&self) -> Vec<Traffic> {
        let ms = |time: Duration| time.as_nanos() as f64 / 1e6;
        let row = |(kind, total): &(CollectiveKind, Total)| Traffic {
            axis: self.axis,
            kind: *kind,
            calls: total.calls as f64,
            payload_bytes: total.payload_bytes as f64,
            wire_bytes: total.wire_bytes as f64,
            ms: ms(total.time),
            exposed_ms: ms(total.exposed),
            ranks: self.inner.size(),
            link: total.link,
        };
        self.account.borrow().totals.iter().map(row).collect()
    }

    /// Starts the account anew. Collectives under way count for the new one.
    pub fn reset(&self) {
        self.account.borrow_mut().totals.clear();
    }

    /// The account, to be restored when what follows is not to be counted.
    pub fn totals(&self) -> Totals {
        Totals(self.account.borrow().totals.clone())
    }

    pub fn restore(&self, totals: Totals) {
        self.account.borrow_mut().totals = totals.0;
    }

    /// Whether collectives are recorded from now on.
    pub fn watch(&self, wanted: bool) {
        self.account.borrow_mut().seen = wanted.then(|| Vec::with_capacity(64));
    }

    /// Drains the recorded collectives.
    pub fn seen(&self) -> Vec<Seen> {
        self.account.borrow_mut().seen.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Tells the log of a collective that starts. Off, this is a load and a compare: benches/logging.rs.
    fn log(&self, about: impl FnOnce() -> (Kind, u64)) {
        if enabled!(target: "zbench::comm", Level::TRACE) {
            let (kind, bytes) = about();
            trace!(target: "zbench::comm", kind = kind.name(), axis = self.axis.name(), bytes, "collective starts");
        }
    }

    fn note(&self, seen: impl FnOnce() -> Seen) {
        if let Some(all) = &mut self.account.borrow_mut().seen {
            all.push(seen());
        }
    }

    fn link(&self) -> LinkUse {
        self.inner.link_use().unwrap_or_default()
    }

    /// What is measured when a rank begins to call or to wait.
    fn before(&self) -> (Instant, u64, LinkUse) {
        (self.now(), self.inner.wire_bytes(), self.link())
    }

    /// Books a collective of this kind and payload that is complete. It was asked for at `since`, and asking took `start`.
    fn book(
        &self,
        (kind, payload_bytes): (CollectiveKind, u64),
        (begin, wire, link): (Instant, u64, LinkUse),
        since: Instant,
        start: Duration,
        is_started: bool,
    ) {
        let until = self.now();
        let (wire_bytes, link) = (self.inner.wire_bytes() - wire, self.link().less(link));
        let (time, exposed) = (until.duration_since(since), start + until.duration_since(begin));
        self.count(kind, Total { calls: 1, payload_bytes, wire_bytes, time, exposed, link });
        let (axis, ranks, moments) = (self.axis, self.inner.size(), [since, since + start, begin, until]);
        self.note(|| Seen { axis, kind, ranks, payload_bytes, wire_bytes, moments, is_started });
    }

    fn count(&self, kind: CollectiveKind, total: Total) {
        let mut account = self.account.borrow_mut();
        let known = account.totals.iter().position(|(known, _)| *known == kind);
        let index = known.unwrap_or_else(|| {
            account.totals.push((kind, Total::default()));
            account.totals.len() - 1
        });
        let sum = &mut account.totals[index].1;
        sum.calls += total.calls;
        sum.payload_bytes += total.payload_bytes;
        sum.wire_bytes += total.wire_bytes;
        sum.time += total.time;
        sum.exposed += total.exposed;
        sum.link = sum.link.plus(total.link);
    }
}

impl Communicator for Metered {
    fn member(&self) -> Member {
        self.inner.member()
    }

    fn algorithm(&self, kind: Kind, bytes: u64) -> &'static str {
        self.inner.algorithm(kind, bytes)
    }

    /// All of its time is exposed.
    fn call(&self, call: Call<'_>) -> Result<()> {
        self.log(|| (call.kind, call.payload_bytes(self.size())));
        let of = (call.kind.collective(), call.payload_bytes(self.size()));
        let before = self.before();
        self.inner.call(call)?;
        self.book(of, before, before.0, Duration::ZERO, false);
        Ok(())
    }

    fn start(&self, mut request: OwnedCall) -> Result<Ticket> {
        self.log(|| {
            let call = request.as_call();
            (call.kind, call.payload_bytes(self.size()))
        });
        let begin = self.now();
        let ticket = self.inner.start(request)?;
        self.started.put(ticket.sequence, (begin, self.now().duration_since(begin)));
        Ok(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<OwnedCall> {
        let (before, sequence) = (self.before(), ticket.sequence);
        let mut request = self.inner.wait(ticket)?;
        let (since, start) = self.started.take(sequence).unwrap_or((before.0, Duration::ZERO));
        let call = request.as_call();
        self.book((call.kind.collective(), call.payload_bytes(self.size())), before, since, start, true);
        Ok(request)
    }

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        self.inner.split(color, key, name)
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }

    fn wire_bytes(&self) -> u64 {
        self.inner.wire_bytes()
    }

    fn link_use(&self) -> Option<LinkUse> {
        self.inner.link_use()
    }
}
