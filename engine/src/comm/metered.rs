//! Counts what a communicator does: calls, bytes and time by kind.

use super::{Communicator, Request, Result, Ticket};
use crate::outcome::Traffic;
use std::cell::RefCell;
use std::time::{Duration, Instant};
use zbench_kernels::{Buffer, View, ViewMut};

/// A communicator that keeps an account of itself, for one mesh axis.
///
/// Payload is what a collective is about, in bytes: the whole buffer for all-gather and reduce-scatter, twice the buffer
/// for all-reduce (which is both), the buffer for broadcast, send, recv and all-to-all, nothing for a barrier. Calls that
/// fail are not counted. `split` gives a bare communicator, to be metered as its own axis.
pub struct Metered {
    inner: Box<dyn Communicator>,
    axis: &'static str,
    account: RefCell<Account>,
}

#[derive(Default)]
struct Account {
    totals: Vec<(&'static str, Total)>,
    /// Started collectives: number, since when, and the time spent in `start`.
    open: Vec<(u64, Instant, Duration)>,
}

#[derive(Clone, Copy, Default)]
struct Total {
    calls: u64,
    payload_bytes: u64,
    wire_bytes: u64,
    time: Duration,
    exposed: Duration,
}

impl Metered {
    /// Meters `inner` under the name of its axis.
    pub fn new(axis: &'static str, inner: Box<dyn Communicator>) -> Metered {
        Metered { inner, axis, account: RefCell::default() }
    }

    /// The axis it counts for.
    pub fn axis(&self) -> &'static str {
        self.axis
    }

    /// Totals since the start or the last reset, one row per kind in order of first use; divide by the steps for a step's.
    /// Started collectives count when they are waited for.
    pub fn snapshot(&self) -> Vec<Traffic> {
        let ms = |time: Duration| time.as_nanos() as f64 / 1e6;
        let row = |(kind, total): &(&'static str, Total)| Traffic {
            axis: self.axis,
            kind,
            calls: total.calls as f64,
            payload_bytes: total.payload_bytes as f64,
            wire_bytes: total.wire_bytes as f64,
            ms: ms(total.time),
            exposed_ms: ms(total.exposed),
            ranks: self.inner.size(),
        };
        self.account.borrow().totals.iter().map(row).collect()
    }

    /// Starts the account anew. Collectives under way count for the new one.
    pub fn reset(&self) {
        self.account.borrow_mut().totals.clear();
    }

    /// The account, which starts anew.
    pub fn take(&self) -> Vec<Traffic> {
        let rows = self.snapshot();
        self.reset();
        rows
    }

    fn count(&self, kind: &'static str, total: Total) {
        let mut account = self.account.borrow_mut();
        let known = account.totals.iter().position(|(name, _)| *name == kind);
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
    }

    /// A call that returns when it is complete: all its time is exposed.
    fn meter(&self, kind: &'static str, payload_bytes: u64, call: impl FnOnce() -> Result<()>) -> Result<()> {
        let (begin, wire) = (Instant::now(), self.inner.wire_bytes());
        call()?;
        let time = begin.elapsed();
        let wire_bytes = self.inner.wire_bytes() - wire;
        self.count(kind, Total { calls: 1, payload_bytes, wire_bytes, time, exposed: time });
        Ok(())
    }
}

fn bytes(view: View<'_>) -> u64 {
    (view.dtype().size() * view.len()) as u64
}

fn of_request(request: &Request) -> (&'static str, u64) {
    let bytes = |buffer: &Buffer| bytes(buffer.view());
    match request {
        Request::AllGather { recv, .. } => ("all_gather", bytes(recv)),
        Request::ReduceScatter { send, .. } => ("reduce_scatter", bytes(send)),
        Request::AllReduce { buffer } => ("all_reduce", 2 * bytes(buffer)),
    }
}

impl Communicator for Metered {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn all_reduce(&self, buffer: ViewMut<'_>) -> Result<()> {
        self.meter("all_reduce", 2 * bytes(buffer.as_view()), || self.inner.all_reduce(buffer))
    }

    fn reduce_scatter(&self, send: View<'_>, recv: ViewMut<'_>, accumulate: bool) -> Result<()> {
        self.meter("reduce_scatter", bytes(send), || self.inner.reduce_scatter(send, recv, accumulate))
    }

    fn reduce_scatter_in_place(&self, buffer: ViewMut<'_>) -> Result<()> {
        self.meter("reduce_scatter", bytes(buffer.as_view()), || self.inner.reduce_scatter_in_place(buffer))
    }

    fn all_gather(&self, send: View<'_>, recv: ViewMut<'_>) -> Result<()> {
        self.meter("all_gather", bytes(recv.as_view()), || self.inner.all_gather(send, recv))
    }

    fn all_gather_in_place(&self, buffer: ViewMut<'_>) -> Result<()> {
        self.meter("all_gather", bytes(buffer.as_view()), || self.inner.all_gather_in_place(buffer))
    }

    fn broadcast(&self, buffer: ViewMut<'_>, root: usize) -> Result<()> {
        self.meter("broadcast", bytes(buffer.as_view()), || self.inner.broadcast(buffer, root))
    }

    fn all_to_all(&self, send: View<'_>, recv: ViewMut<'_>) -> Result<()> {
        self.meter("all_to_all", bytes(send), || self.inner.all_to_all(send, recv))
    }

    fn send(&self, buffer: View<'_>, to: usize) -> Result<()> {
        self.meter("send", bytes(buffer), || self.inner.send(buffer, to))
    }

    fn recv(&self, buffer: ViewMut<'_>, from: usize) -> Result<()> {
        self.meter("recv", bytes(buffer.as_view()), || self.inner.recv(buffer, from))
    }

    fn barrier(&self) -> Result<()> {
        self.meter("barrier", 0, || self.inner.barrier())
    }

    fn start(&self, request: Request) -> Result<Ticket> {
        let begin = Instant::now();
        let ticket = self.inner.start(request)?;
        self.account.borrow_mut().open.push((ticket.sequence, begin, begin.elapsed()));
        Ok(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<Request> {
        let (begin, wire) = (Instant::now(), self.inner.wire_bytes());
        let sequence = ticket.sequence;
        let request = self.inner.wait(ticket)?;
        let mut account = self.account.borrow_mut();
        let started = account.open.iter().position(|(number, ..)| *number == sequence);
        let (_, since, start) = started.map_or((0, begin, Duration::ZERO), |index| account.open.swap_remove(index));
        drop(account);
        let wire_bytes = self.inner.wire_bytes() - wire;
        let (kind, payload_bytes) = of_request(&request);
        let (time, exposed) = (since.elapsed(), start + begin.elapsed());
        self.count(kind, Total { calls: 1, payload_bytes, wire_bytes, time, exposed });
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
}
