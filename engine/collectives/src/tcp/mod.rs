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
//! The connections are shared by all groups split from one. A frame says which call it belongs to by group, sequence and
//! number, so calls of several groups and pairs may be under way at once, begun in another order on each rank; whoever drives
//! one call drives all of its rank. A rank inside a call drives by itself; while it computes, a thread drives what it has
//! started (`../progress.rs`), which sleeps unless a socket has news or room.
//!
//! A rank sends another at most one frame of a call before that one has said that it is in the call (`WANT`). So a rank keeps
//! at most one frame per rank of each call that it has not begun, and, where several calls are under way, the few frames by
//! which a rank is ahead of it in a call of many chunks. Ranks that call what does not match are noticed by those that exchange
//! frames, and end the world on all; so do two ranks that block in calls of which each waits for the other's.

mod calls;
mod control;
mod copies;
mod drive;
mod exchange;
mod faults;
mod frame;
mod lane;
mod mesh;
mod reduce;
#[cfg(test)]
mod tests;
mod wire;

use super::call::Shape;
use super::cause::WORLD;
use super::progress::{Driver, Inside};
use super::raw::RawSlice;
use super::shared_memory::buffers;
use super::{Abandon, Call, Communicator, Kind, Member, OwnedCall, Rendezvous, Result, Ticket, why_abandoned};
use calls::Terms;
use copies::Handshake::{Announced, Confirmed, Data};
use copies::parts;
use exchange::{Exchange, Group};
use frame::Signature;
use mesh::Mesh;
use reduce::{Deliver, Job};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use wire::Wire;
use zbench_kernels::{DType, Kernels};

/// How long a rank looks for bytes before it sleeps, where it has a core for itself.
const SPIN: Duration = Duration::from_micros(50);
/// A rank that was in no call for longer first hears what has happened meanwhile.
const AWAY: Duration = Duration::from_millis(1);

/// How ranks are connected. All ranks give the same.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// Connections that carry the data of two ranks, 1 to 16.
    pub sockets_per_peer: usize,
    /// How long nothing may move in a call before the world ends.
    pub stall: Duration,
    /// Sum up every frame and check it: the price is one more pass over the data on both sides.
    pub checksum: bool,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions { sockets_per_peer: 2, stall: Duration::from_secs(300), checksum: false }
    }
}

/// One rank of a group of processes. All groups split from one end together.
pub struct Tcp {
    owner: Arc<Owner>,
    members: Arc<Group>,
    /// The group's number, the same on all its ranks.
    group: u32,
    kernels: Arc<dyn Kernels>,
    next: Cell<u64>,
    /// What has been sent to and received from each member, in calls.
    pairs: RefCell<Vec<(u64, u64)>>,
    /// Bytes of calls that are done, and waited for.
    wire: Cell<u64>,
}

/// Connects the ranks of a meeting with each other.
///
/// # Errors
/// As [`super::RendezvousError`] says; and [`CommError::Invalid`] where the options cannot be, or differ between ranks.
pub fn tcp(meeting: Rendezvous, kernels: Arc<dyn Kernels>, options: TcpOptions) -> Result<Tcp> {
    let (rank, members) = (meeting.rank(), (0..meeting.size()).collect());
    let mesh = Mesh::connect(meeting, options)?;
    let driver = Arc::new(Driver::new(Wire::new(), mesh));
    Ok(Tcp::new(driver, Group { name: WORLD.to_owned(), members, rank }, 0, kernels))
}

/// What tickets and groups have of their rank's connections.
struct Owner {
    driver: Arc<Driver<Wire>>,
}

impl Owner {
    fn lock(&self) -> Inside<'_, Wire> {
        let mut mesh = self.driver.enter();
        if self.driver.engine().broken.load(Ordering::Relaxed) {
            mesh.abort("panicked");
        }
        mesh
    }
}

impl Abandon for Owner {
    fn abandoned(&self, call: u64) {
        let mut mesh = self.lock();
        mesh.abort(why_abandoned());
        mesh.close(call);
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
    fn new(driver: Arc<Driver<Wire>>, members: Group, group: u32, kernels: Arc<dyn Kernels>) -> Tcp {
        let pairs = RefCell::new(vec![(0, 0); members.members.len()]);
        let (owner, members) = (Arc::new(Owner { driver }), Arc::new(members));
        Tcp { owner, members, group, kernels, next: Cell::new(0), pairs, wire: Cell::new(0) }
    }

    /// What the frames of both directions of this call say.
    fn terms(&self, call: &Call<'_>) -> Terms {
        let (send, recv) = (call.send_shape(), call.recv_shape());
        let (to, from) = match call.kind {
            Kind::Send { to } => (Some(to), None),
            Kind::Recv { from } => (None, Some(from)),
            Kind::SendRecv { to, from } => (Some(to), Some(from)),
            kind => {
                let sequence = self.next.replace(self.next.get() + 1);
                let all = Signature::of(kind, self.size(), self.group, sequence, send, recv);
                return Terms { give: all, take: all, to: None, from: None };
            }
        };
        let mut pairs = self.pairs.borrow_mut();
        let side = |sequence: &mut u64, shape: Option<Shape>| {
            let shape = shape.unwrap_or((DType::I8, 0));
            *sequence += 1;
            Signature::pair(self.group, *sequence - 1, call.kind.collective(), shape)
        };
        let give = to.map(|to| side(&mut pairs[to].0, send));
        let take = from.map(|from| side(&mut pairs[from].1, recv));
        let none = Signature::bare(self.group, 0, None); // of neither: there is no such call
        let world = |place: usize| self.members.members[place];
        Terms {
            give: give.or(take).unwrap_or(none),
            take: take.or(give).unwrap_or(none),
            to: to.map(world),
            from: from.map(world),
        }
    }

    /// Begins a call. Its buffers must stay until it is closed. A `blocking` rank does nothing else meanwhile.
    fn begin(&self, mesh: &mut Mesh, call: &Call<'_>, blocking: bool) -> Result<u64> {
        let (kind, kernels) = (call.kind, self.kernels.clone());
        let (send, recv) = buffers(call, self.rank(), self.size());
        mesh.begin(&self.members, self.terms(call), blocking, |exchange| {
            Box::pin(async move { carry(&exchange, &*kernels, kind, send, recv, blocking).await })
        })
    }
}

/// The algorithm of a call.
async fn carry(
    exchange: &Exchange,
    kernels: &dyn Kernels,
    kind: Kind,
    send: RawSlice,
    recv: RawSlice,
    blocking: bool,
) -> Result<()> {
    let (rank, size) = (exchange.rank, exchange.size());
    let job = move |op, accumulate, deliver, recv| Job { kernels, op, accumulate, deliver, send, recv };
    let part_of = |buffer: RawSlice| move |rank| Some(buffer.part(rank, size));
    let only = |member, buffer: RawSlice| move |rank| (rank == member).then_some(buffer);
    let pair = if blocking { Confirmed } else { Announced };
    match kind {
        Kind::AllReduce { op } => reduce::direct(exchange, job(op, false, Deliver::All, Some(recv))).await,
        Kind::ReduceScatter { op, accumulate } => {
            reduce::direct(exchange, job(op, accumulate, Deliver::Own, Some(recv))).await
        }
        Kind::Reduce { op, root } => {
            let recv = (rank == root).then_some(recv);
            reduce::direct(exchange, job(op, false, Deliver::Root(root), recv)).await
        }
        Kind::AllGather => parts(exchange, Data, move |_| Some(send), part_of(recv)).await,
        Kind::AllToAll if send.ptr == recv.ptr => copies::all_to_all_in_place(exchange, recv).await,
        Kind::AllToAll => parts(exchange, Data, part_of(send), part_of(recv)).await,
        Kind::Barrier => parts(exchange, Data, move |_| Some(send), move |_| Some(recv)).await,
        Kind::Broadcast { root } => copies::broadcast(exchange, root, send, recv).await,
        Kind::Gather { root } => {
            let take = move |from| (rank == root).then(|| recv.part(from, size));
            parts(exchange, Confirmed, only(root, send), take).await
        }
        Kind::Scatter { root } => {
            let give = move |to| (rank == root).then(|| send.part(to, size));
            parts(exchange, Confirmed, give, only(root, recv)).await
        }
        Kind::Send { to } => parts(exchange, pair, only(to, send), |_| None).await,
        Kind::Recv { from } => parts(exchange, pair, |_| None, only(from, recv)).await,
        Kind::SendRecv { to, from } => parts(exchange, pair, only(to, send), only(from, recv)).await,
    }
}

impl Communicator for Tcp {
    fn member(&self) -> Member {
        Member { rank: self.members.rank, size: self.members.members.len(), backend: "tcp" }
    }

    fn algorithm(&self, kind: Kind, bytes: u64) -> &'static str {
        match kind {
            Kind::Broadcast { .. } if self.size() > 2 && bytes <= copies::TREE_BYTES as u64 => "tree",
            Kind::Broadcast { .. } if self.size() > 2 => "chain",
            _ => "direct",
        }
    }

    fn call(&self, call: Call<'_>) -> Result<()> {
        call.check(self.rank(), self.size())?;
        let mut mesh = self.owner.lock();
        let id = self.begin(&mut mesh, &call, true)?;
        let received = mesh.complete(id)?;
        self.wire.set(self.wire.get() + received);
        Ok(())
    }

    fn start(&self, mut request: OwnedCall) -> Result<Ticket> {
        let call = request.as_call();
        call.check(self.rank(), self.size())?;
        let mut mesh = self.owner.lock();
        let id = self.begin(&mut mesh, &call, false)?;
        mesh.turn();
        drop(mesh);
        self.owner.driver.carry_on();
        Ok(Ticket::of(self.owner.clone(), id, request))
    }

    /// The bytes of a started call count from here on.
    fn wait(&self, mut ticket: Ticket) -> Result<OwnedCall> {
        ticket.check_owner(&self.owner)?;
        let received = self.owner.lock().complete(ticket.sequence)?;
        self.wire.set(self.wire.get() + received);
        ticket.take()
    }

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        let (rank, size) = (self.rank(), self.size());
        let sequence = self.next.replace(self.next.get() + 1);
        let signature = Signature::bare(self.group, sequence, None);
        let terms = Terms { give: signature, take: signature, to: None, from: None };
        let mut mesh = self.owner.lock();
        // Color, key, and the least number that this rank's next group may have.
        let own = [color as u64, key as u64, u64::from(mesh.next_group)];
        let mut all = vec![own; size];
        let bytes = |ptr, count| RawSlice { ptr, len: count * size_of_val(&own), dtype: DType::I8, on_host: true };
        let send = bytes(NonNull::from(&own).cast(), 1);
        let recv = bytes(NonNull::from(all.as_mut_slice()).cast(), size);
        let id = mesh.begin(&self.members, terms, true, |exchange| {
            let part = move |rank| Some(recv.part(rank, size));
            Box::pin(async move { parts(&exchange, Data, move |_| Some(send), part).await })
        })?;
        mesh.complete(id)?;
        let mut places: Vec<usize> = (0..size).filter(|rank| all[*rank][0] == own[0]).collect();
        places.sort_by_key(|rank| (all[*rank][1], *rank));
        // Greater than the number of any group that two of these ranks share.
        let group = all.iter().map(|theirs| theirs[2] as u32).max().unwrap_or(mesh.next_group);
        mesh.next_group = group + 1;
        drop(mesh);
        let own_place = places.iter().position(|place| *place == rank).unwrap_or(0);
        let members = places.into_iter().map(|place| self.members.members[place]).collect();
        let members = Group { name: name.to_owned(), members, rank: own_place };
        Ok(Box::new(Tcp::new(self.owner.driver.clone(), members, group, self.kernels.clone())))
    }

    fn abort(&self, reason: &str) {
        self.owner.lock().abort(reason);
    }

    fn wire_bytes(&self) -> u64 {
        self.wire.get()
    }
}
