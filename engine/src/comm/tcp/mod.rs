//! Ranks as processes, on one host or many: every two are connected by TCP, and each call moves its bytes over these
//! connections itself.
//!
//! | kind | how |
//! | --- | --- |
//! | all_reduce | up to [`super::ONE_ROUND_BYTES`], and up to 64 KiB between two ranks: everything to everybody; else each rank combines one part, chunk by chunk, and passes it on |
//! | reduce | up to 64 KiB from all: everything to the root; else as all_reduce |
//! | reduce_scatter, all_gather, all_to_all, gather, scatter | straight from buffer to buffer |
//! | broadcast | up to 64 KiB a binomial tree, beyond a chain of chunks |
//!
//! Sums are then the balanced tree in rank order, bit for bit those of `local`.
//!
//! The connections are shared by all groups split from one, and frames between two ranks come in the order in which they
//! were sent. So two ranks that share several groups have to use these in the same order, which is stricter than `local`;
//! `start` performs the collective at once. Calls that disagree are noticed by the ranks that exchange frames, and end the
//! world on all.

mod control;
mod copies;
mod exchange;
mod frame;
mod lane;
mod mesh;
mod options;
mod reduce;
#[cfg(test)]
mod tests;

pub use options::TcpOptions;

use super::cause::WORLD;
use super::pending::buffers;
use super::raw::RawSlice;
use super::{Abandon, Call, Communicator, Kind, Member, OwnedCall, Rendezvous, Result, Started, Ticket, why_abandoned};
use exchange::Exchange;
use frame::Signature;
use mesh::Mesh;
use reduce::{Deliver, Job};
use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zbench_kernels::{DType, Kernels, View, ViewMut};

/// How long a rank looks for bytes before it sleeps, where it has a core for itself.
const SPIN: Duration = Duration::from_micros(50);
/// A rank that was in no call for longer first hears what has happened meanwhile.
const AWAY: Duration = Duration::from_millis(1);

/// One rank of a group of processes. All groups split from one end together.
pub struct Tcp {
    owner: Arc<Owner>,
    name: String,
    group: u32,
    members: Vec<usize>,
    rank: usize,
    kernels: Arc<dyn Kernels>,
    next: Cell<u64>,
    /// What has been sent to and received from each member, in calls.
    pairs: RefCell<Vec<(u64, u64)>>,
    wire: Cell<u64>,
    /// Bytes of started collectives that nobody has waited for.
    started: Started<u64>,
}

/// Connects the ranks of a meeting with each other.
///
/// # Errors
/// As [`super::RendezvousError`] says; and [`CommError::Invalid`] where the options cannot be, or differ between ranks.
pub fn tcp(meeting: Rendezvous, kernels: Arc<dyn Kernels>, options: TcpOptions) -> Result<Tcp> {
    let (rank, members) = (meeting.rank(), (0..meeting.size()).collect());
    let mesh = Mesh::connect(meeting, options)?;
    Ok(Tcp::new(Arc::new(Mutex::new(mesh)), WORLD, 0, members, rank, kernels))
}

/// What tickets and groups have of their rank's connections.
struct Owner {
    mesh: Arc<Mutex<Mesh>>,
}

impl Owner {
    fn lock(&self) -> MutexGuard<'_, Mesh> {
        // After a panic in the middle of a call the world is ended, so nobody uses what the call left.
        self.mesh.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Abandon for Owner {
    fn abandoned(&self, _sequence: u64) {
        self.lock().abort(why_abandoned());
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.owner.lock().abort("panicked");
        }
    }
}

impl Tcp {
    fn new(
        mesh: Arc<Mutex<Mesh>>,
        name: &str,
        group: u32,
        members: Vec<usize>,
        rank: usize,
        kernels: Arc<dyn Kernels>,
    ) -> Tcp {
        let pairs = RefCell::new(vec![(0, 0); members.len()]);
        let (owner, name) = (Arc::new(Owner { mesh }), name.to_owned());
        let (next, wire, started) = (Cell::new(0), Cell::new(0), Started::default());
        Tcp { owner, name, group, members, rank, kernels, next, pairs, wire, started }
    }

    /// A whole call: its number, and the bytes that came.
    fn perform(&self, call: &mut Call<'_>) -> Result<(u64, u64)> {
        call.check(self.rank, self.size())?;
        let (sequence, give, take) = self.signatures(call);
        let received = self.within(give, take, |exchange| self.carry(exchange, call))?;
        Ok((sequence, received))
    }

    /// Runs the work of one call over the connections; an error of its own ends the world.
    fn within(
        &self,
        give: Signature,
        take: Signature,
        work: impl FnOnce(&mut Exchange<'_>) -> Result<()>,
    ) -> Result<u64> {
        let mut mesh = self.owner.lock();
        if let Some(cause) = &mesh.ended {
            return Err(cause.clone());
        }
        if mesh.last.elapsed() > AWAY {
            mesh.news(&|| exchange::during(&take))?;
        }
        let mut exchange = Exchange::new(&mut mesh, &self.members, self.rank, &self.name, give, take);
        let result = work(&mut exchange);
        let received = exchange.received;
        drop(exchange);
        mesh.last = Instant::now();
        if let (Err(error), None) = (&result, &mesh.ended) {
            mesh.abort(&error.to_string());
        }
        result.map(|()| received)
    }

    /// The number of this call, and what the frames of both directions say.
    fn signatures(&self, call: &Call<'_>) -> (u64, Signature, Signature) {
        let (send, recv) = (call.send_shape(), call.recv_shape());
        let (side, nothing) = (call.kind.collective(), (DType::I8, 0));
        let mut pairs = self.pairs.borrow_mut();
        let mut pair = |to: Option<usize>, from: Option<usize>| {
            let count = |number: &mut u64| std::mem::replace(number, *number + 1);
            let give = to.map(|to| Signature::pair(self.group, count(&mut pairs[to].0), side, send.unwrap_or(nothing)));
            let take =
                from.map(|from| Signature::pair(self.group, count(&mut pairs[from].1), side, recv.unwrap_or(nothing)));
            let none = Signature::pair(self.group, 0, side, nothing);
            let (give, take) = (give.or(take).unwrap_or(none), take.or(give).unwrap_or(none));
            (take.sequence, give, take)
        };
        match call.kind {
            Kind::Send { to } => pair(Some(to), None),
            Kind::Recv { from } => pair(None, Some(from)),
            Kind::SendRecv { to, from } => pair(Some(to), Some(from)),
            kind => {
                let sequence = self.next.replace(self.next.get() + 1);
                let all = Signature::of(kind, self.size(), self.group, sequence, send, recv);
                (sequence, all, all)
            }
        }
    }

    fn carry(&self, exchange: &mut Exchange<'_>, call: &Call<'_>) -> Result<()> {
        let kernels = &*self.kernels;
        let (send, recv) = buffers(call, self.rank, self.size());
        let job = |op, accumulate, deliver, recv| Job { kernels, op, accumulate, deliver, send, recv };
        match call.kind {
            Kind::AllReduce { op } => reduce::direct(exchange, &job(op, false, Deliver::All, Some(recv))),
            Kind::ReduceScatter { op, accumulate } => {
                reduce::direct(exchange, &job(op, accumulate, Deliver::Own, Some(recv)))
            }
            Kind::Reduce { op, root } => {
                let recv = (self.rank == root).then_some(recv);
                reduce::direct(exchange, &job(op, false, Deliver::Root(root), recv))
            }
            Kind::AllGather => copies::all_gather(exchange, send, recv),
            Kind::Broadcast { root } => copies::broadcast(exchange, root, send, recv),
            Kind::Gather { root } => copies::gather(exchange, root, send, recv),
            Kind::Scatter { root } => copies::scatter(exchange, root, send, recv),
            Kind::AllToAll if send.ptr == recv.ptr => copies::all_to_all_in_place(exchange, recv),
            Kind::AllToAll => copies::all_to_all(exchange, send, recv),
            Kind::Send { to } => copies::pair(exchange, Some((to, send)), None),
            Kind::Recv { from } => copies::pair(exchange, None, Some((from, recv))),
            Kind::SendRecv { to, from } => copies::pair(exchange, Some((to, send)), Some((from, recv))),
            Kind::Barrier => copies::barrier(exchange, RawSlice::empty()),
        }
    }

    fn count(&self, bytes: u64) {
        self.wire.set(self.wire.get() + bytes);
    }
}

impl Communicator for Tcp {
    fn member(&self) -> Member {
        Member { rank: self.rank, size: self.members.len(), backend: "tcp" }
    }

    fn algorithm(&self, kind: Kind, bytes: u64) -> &'static str {
        match kind {
            Kind::Broadcast { .. } if self.size() > 2 && bytes <= copies::TREE_BYTES as u64 => "tree",
            Kind::Broadcast { .. } if self.size() > 2 => "chain",
            _ => "direct",
        }
    }

    fn call(&self, mut call: Call<'_>) -> Result<()> {
        let (_, received) = self.perform(&mut call)?;
        self.count(received);
        Ok(())
    }

    /// Performs the collective before it returns: bytes move only while the rank is in a call.
    fn start(&self, mut request: OwnedCall) -> Result<Ticket> {
        let (sequence, received) = self.perform(&mut request.as_call())?;
        self.started.put(sequence, received);
        Ok(Ticket::of(self.owner.clone(), sequence, request))
    }

    /// The bytes of a started collective count from here on.
    fn wait(&self, mut ticket: Ticket) -> Result<OwnedCall> {
        ticket.check_owner(&self.owner)?;
        if let Some(received) = self.started.take(ticket.sequence) {
            self.count(received);
        }
        ticket.take()
    }

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        let (rank, size) = (self.rank, self.size());
        let sequence = self.next.replace(self.next.get() + 1);
        let signature = Signature::bare(self.group, sequence, None);
        // Color, key, and the least number that this rank's next group may have, in halves of 32 bits.
        let next = self.owner.lock().next_group;
        let halves = |word: usize| [word as u32, (word as u64 >> 32) as u32];
        let own = [halves(color), halves(key), [next, 0]].concat();
        let mut all = vec![0u32; own.len() * size];
        let (send, recv) = (RawSlice::of(View::of(&own)), RawSlice::of_mut(&ViewMut::of(&mut all)));
        self.within(signature, signature, |exchange| copies::all_gather(exchange, send, recv))?;
        let word = |rank: usize, at: usize| u64::from(all[6 * rank + at]) | u64::from(all[6 * rank + at + 1]) << 32;
        let mut places: Vec<usize> = (0..size).filter(|rank| word(*rank, 0) == color as u64).collect();
        places.sort_by_key(|rank| (word(*rank, 2), *rank));
        // Greater than the number of any group that two of these ranks share.
        let group = (0..size).map(|rank| all[6 * rank + 4]).max().unwrap_or(next);
        self.owner.lock().next_group = group + 1;
        let own_place = places.iter().position(|place| *place == rank).unwrap_or(0);
        let members = places.into_iter().map(|place| self.members[place]).collect();
        let mesh = self.owner.mesh.clone();
        Ok(Box::new(Tcp::new(mesh, name, group, members, own_place, self.kernels.clone())))
    }

    fn abort(&self, reason: &str) {
        self.owner.lock().abort(reason);
    }

    fn wire_bytes(&self) -> u64 {
        self.wire.get()
    }
}
