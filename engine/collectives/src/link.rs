//! Emulated links: a wrapper over any communicator that makes bytes between emulated nodes pay a bandwidth and a latency.
//!
//! Every node has one link, with both directions of its own, shared by its ranks and by all groups. A transfer begins when
//! the last of its members has come to it; then it takes the links of its nodes, each from when it is free, and ends when
//! the last is through, plus the latencies on its critical path (docs/communication.md). Meanwhile the real transfer runs on the
//! wrapped communicator, and no member returns before the emulated end. A call of overlap (start, compute, wait) pays from
//! its start.

mod board;
mod price;

use super::{Call, CommError, Communicator, Kind, Member, OwnedCall, Result, Started, Ticket};
use board::{Board, BoardError, Claim, Key, Times};
use price::{Layout, Price};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use zbench_kernels::ViewMut;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// Bytes per second, each way.
    pub bandwidth: f64,
    /// Seconds that a byte is under way, whatever the size.
    pub latency: f64,
    /// Ranks of a node: rank `r` of the world is on node `r / ranks_per_node`.
    pub ranks_per_node: usize,
}

/// How one rank's calls fared on the emulated link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkUse {
    pub calls: u64,
    /// This rank's share of what its node's link carried, in the fuller direction.
    pub crossing_bytes: u64,
    /// Calls whose real transfer was later than the link by more than [`SLACK`] of the link's time. They show the speed of the
    /// machine and not of the link.
    pub over_budget: u64,
    /// By how much all of them were late, in ns.
    pub late_ns: u64,
}

/// How far a real transfer may be late before it counts, as a share of the emulated time.
pub const SLACK: f64 = 0.05;

impl LinkUse {
    #[must_use]
    pub fn plus(self, other: LinkUse) -> LinkUse {
        self.each(other, |one, other| one + other)
    }

    #[must_use]
    pub fn most(self, other: LinkUse) -> LinkUse {
        self.each(other, u64::max)
    }

    /// What has come since `before`.
    #[must_use]
    pub fn less(self, before: LinkUse) -> LinkUse {
        self.each(before, |now, before| now - before)
    }

    fn each(self, other: LinkUse, combine: impl Fn(u64, u64) -> u64) -> LinkUse {
        LinkUse {
            calls: combine(self.calls, other.calls),
            crossing_bytes: combine(self.crossing_bytes, other.crossing_bytes),
            over_budget: combine(self.over_budget, other.over_budget),
            late_ns: combine(self.late_ns, other.late_ns),
        }
    }
}

/// A communicator whose bytes pay for crossing nodes; see the module.
pub struct EmulatedLink {
    inner: Box<dyn Communicator>,
    shared: Arc<Shared>,
    /// Ranks of the world, in this group's order.
    ranks: Vec<usize>,
    layout: Layout,
    group: u64,
    state: RefCell<State>,
    /// What waiting for started collectives pays.
    started: Started<DueCall>,
}

struct Shared {
    board: Board,
    link: LinkSpec,
}

#[derive(Default)]
struct State {
    /// The next collective of the group, and the next transfer of each pair.
    next: u64,
    pairs: BTreeMap<u64, u64>,
    /// Wire bytes of the wrapper's own barriers, which are none of the caller's.
    own_wire: u64,
    usage: LinkUse,
}

/// A transfer that this rank has announced.
#[derive(Clone, Copy)]
struct Due {
    key: Key,
    share: u64,
}

/// The same of a send, a receive, or both.
struct DuePair {
    given: Option<Times>,
    taken: Option<Key>,
    share: u64,
}

/// What waiting for a started call pays.
enum DueCall {
    Collective(Due),
    Pair(DuePair),
}

/// `comm` with emulated links, or as it is where `link` is absent. A collective call of the world, before any split.
///
/// # Errors
/// [`CommError::Invalid`] when the ranks are not whole nodes, or not all on one machine.
pub fn wrap(comm: Box<dyn Communicator>, link: Option<&LinkSpec>) -> Result<Box<dyn Communicator>> {
    match link {
        None => Ok(comm),
        Some(link) => Ok(Box::new(EmulatedLink::new(comm, *link)?)),
    }
}

impl EmulatedLink {
    /// See [`wrap`].
    ///
    /// # Errors
    /// As [`wrap`].
    pub fn new(inner: Box<dyn Communicator>, link: LinkSpec) -> Result<EmulatedLink> {
        let size = inner.size();
        let LinkSpec { bandwidth, latency, ranks_per_node } = link;
        if ranks_per_node == 0 || !size.is_multiple_of(ranks_per_node) {
            return Err(invalid(format!(
                "{size} ranks are no whole nodes of {ranks_per_node}; write a divisor of the ranks"
            )));
        }
        let sound = bandwidth.is_finite() && bandwidth > 0.0 && latency.is_finite() && latency >= 0.0;
        if !sound {
            return Err(invalid(format!(
                "a link of {bandwidth} B/s and {latency} s cannot be; bandwidth is above 0, latency from 0"
            )));
        }
        let board = meet(&*inner, 2 * (size / ranks_per_node))?;
        let ranks: Vec<usize> = (0..size).collect();
        Ok(EmulatedLink::of(inner, Arc::new(Shared { board, link }), ranks, 0))
    }

    fn of(inner: Box<dyn Communicator>, shared: Arc<Shared>, ranks: Vec<usize>, group: u64) -> EmulatedLink {
        let layout = Layout::new(&ranks, shared.link.ranks_per_node);
        EmulatedLink { inner, shared, ranks, layout, group, state: RefCell::default(), started: Started::default() }
    }

    /// Says that this rank has come to a collective, if that costs anything.
    fn announce(&self, kind: Kind, bytes: u64) -> Result<Option<Due>> {
        let Some(price) = self.layout.collective(kind, bytes) else { return Ok(None) };
        let mut state = self.state.borrow_mut();
        let key = Key { group: self.group, line: 0, sequence: state.next };
        state.next += 1;
        let (claims, latency) = self.claims(&price);
        let members = self.ranks.len() as u64;
        self.shared.board.arrive(key, members, now(), &claims, latency).map_err(refused(kind.name()))?;
        Ok(Some(Due { key, share: self.layout.share(&price, self.inner.rank()) }))
    }

    fn claims(&self, price: &Price) -> (Vec<Claim>, u64) {
        let link = &self.shared.link;
        let claim = |direction: usize, bytes: &[u64]| -> Vec<Claim> {
            let nodes = self.layout.nodes.iter().zip(bytes);
            nodes
                .map(|(node, bytes)| Claim { link: 2 * node + direction, ns: ns(*bytes as f64 / link.bandwidth) })
                .collect()
        };
        let claims = [claim(0, &price.egress), claim(1, &price.ingress)].concat();
        (claims, ns(price.hops as f64 * link.latency))
    }

    fn collective(&self, call: Call<'_>) -> Result<()> {
        let (kind, bytes) = (call.kind, whole(&call, self.size()));
        let Some(due) = self.announce(kind, bytes)? else { return self.inner.call(call) };
        let mut done = self.inner.call(call);
        // Where the giver need not wait for the takers, it may be through before they have come.
        let one_way =
            matches!(kind, Kind::Broadcast { .. } | Kind::Reduce { .. } | Kind::Gather { .. } | Kind::Scatter { .. });
        if one_way && done.is_ok() {
            let before = self.inner.wire_bytes();
            done = self.inner.barrier();
            self.state.borrow_mut().own_wire += self.inner.wire_bytes() - before;
        }
        let times = self.leave(kind.name(), due, self.ranks.len() as u64);
        done?;
        self.pay(times?, 0, due.share);
        Ok(())
    }

    fn leave(&self, operation: &'static str, due: Due, members: u64) -> Result<Times> {
        let times = self.shared.board.leave(due.key, members).map_err(refused(operation))?;
        let early = || format!("{} completed it before all ranks had come to it", self.inner.backend());
        times.ok_or_else(|| super::invalid(operation, early()))
    }

    /// Sends and receives: what is given takes the link at once, what is taken has been paid for by its sender.
    fn exchange(&self, call: Call<'_>) -> Result<()> {
        let (kind, due) = (call.kind, self.announce_pair(&call)?);
        self.inner.call(call)?;
        if let Some(times) = self.leave_pair(kind, &due)? {
            self.pay(times, 0, due.share);
        }
        Ok(())
    }

    fn announce_pair(&self, call: &Call<'_>) -> Result<DuePair> {
        let (kind, bytes, rank) = (call.kind, whole(call, self.size()), self.inner.rank());
        let (to, from) = match kind {
            Kind::Send { to } => (Some(to), None),
            Kind::Recv { from } => (None, Some(from)),
            Kind::SendRecv { to, from } => (Some(to), Some(from)),
            _ => (None, None),
        };
        let crosses = |peer: &usize| self.layout.of[*peer] != self.layout.of[rank];
        // What a rank receives with SendRecv may be of another size than what it sends, so emptiness is asked one by one.
        let taken = call.recv_shape().is_some_and(|(_, len)| len > 0);
        let given = match to.filter(crosses).filter(|_| bytes > 0) {
            Some(to) => {
                let (from_node, to_node) =
                    (self.layout.nodes[self.layout.of[rank]], self.layout.nodes[self.layout.of[to]]);
                let time = ns(bytes as f64 / self.shared.link.bandwidth);
                let claims = [Claim { link: 2 * from_node, ns: time }, Claim { link: 2 * to_node + 1, ns: time }];
                let latency = ns(self.shared.link.latency);
                let sent = self.shared.board.send(self.pair(rank, to), now(), &claims, latency);
                Some(sent.map_err(refused(kind.name()))?)
            }
            None => None,
        };
        let share = if given.is_some() { bytes } else { 0 };
        Ok(DuePair { given, taken: from.filter(crosses).filter(|_| taken).map(|from| self.pair(from, rank)), share })
    }

    /// When the links are through with what was given and taken; `None` where nothing crosses nodes.
    fn leave_pair(&self, kind: Kind, due: &DuePair) -> Result<Option<Times>> {
        let leave = |key| self.leave(kind.name(), Due { key, share: 0 }, 1);
        let taken = due.taken.map(leave).transpose()?;
        let both = |a: Times, b: Times| Times { start: a.start.min(b.start), end: a.end.max(b.end) };
        Ok(due.given.into_iter().chain(taken).reduce(both))
    }

    /// The next transfer from one member to another.
    fn pair(&self, from: usize, to: usize) -> Key {
        let line = 1 + (from * self.ranks.len() + to) as u64;
        let mut state = self.state.borrow_mut();
        let next = state.pairs.entry(line).or_insert(0);
        let sequence = *next;
        *next += 1;
        Key { group: self.group, line, sequence }
    }

    /// Returns when the link has delivered. `asked` is when this rank began to wait: later than that is the machine's fault.
    fn pay(&self, times: Times, asked: u64, share: u64) {
        let late = now().saturating_sub(times.end.max(asked));
        {
            let usage = &mut self.state.borrow_mut().usage;
            usage.calls += 1;
            usage.crossing_bytes += share;
            if late as f64 > SLACK * (times.end - times.start) as f64 {
                usage.over_budget += 1;
                usage.late_ns += late;
            }
        }
        sleep_until(times.end);
    }
}

impl Communicator for EmulatedLink {
    fn member(&self) -> Member {
        self.inner.member()
    }

    fn algorithm(&self, kind: Kind, bytes: u64) -> &'static str {
        self.inner.algorithm(kind, bytes)
    }

    fn call(&self, call: Call<'_>) -> Result<()> {
        call.check(self.rank(), self.size())?;
        if call.kind.is_collective() { self.collective(call) } else { self.exchange(call) }
    }

    fn start(&self, mut request: OwnedCall) -> Result<Ticket> {
        let call = request.as_call();
        call.check(self.rank(), self.size())?;
        let due = match call.kind.is_collective() {
            true => self.announce(call.kind, whole(&call, self.size()))?.map(DueCall::Collective),
            false => Some(DueCall::Pair(self.announce_pair(&call)?)),
        };
        let ticket = self.inner.start(request)?;
        if let Some(due) = due {
            self.started.put(ticket.sequence, due);
        }
        Ok(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<OwnedCall> {
        let (sequence, asked) = (ticket.sequence, now());
        let mut request = self.inner.wait(ticket)?;
        let kind = request.as_call().kind;
        let (times, share) = match self.started.take(sequence) {
            None => return Ok(request),
            Some(DueCall::Pair(due)) => (self.leave_pair(kind, &due)?, due.share),
            Some(DueCall::Collective(due)) => (Some(self.leave(kind.name(), due, self.ranks.len() as u64)?), due.share),
        };
        if let Some(times) = times {
            self.pay(times, asked, share);
        }
        Ok(request)
    }

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        let inner = self.inner.split(color, key, name)?;
        let (rank, size) = (inner.rank(), inner.size());
        let group = if rank == 0 { self.shared.board.new_group() } else { 0 };
        let mut words = vec![[0u32; 3]; size];
        words[rank] = [self.ranks[self.inner.rank()] as u32, group as u32, (group >> 32) as u32];
        let mut words = words.concat();
        inner.all_gather_in_place(ViewMut::of(&mut words))?;
        let ranks = words.chunks_exact(3).map(|of| of[0] as usize).collect();
        let group = wide(words[1], words[2]);
        Ok(Box::new(EmulatedLink::of(inner, self.shared.clone(), ranks, group)))
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }

    fn wire_bytes(&self) -> u64 {
        self.inner.wire_bytes() - self.state.borrow().own_wire
    }

    fn link_use(&self) -> Option<LinkUse> {
        Some(self.state.borrow().usage)
    }
}

/// What a collective is about, in bytes: the whole buffer, once.
fn whole(call: &Call<'_>, size: usize) -> u64 {
    let twice = matches!(call.kind, Kind::AllReduce { .. });
    call.payload_bytes(size) / if twice { 2 } else { 1 }
}

fn invalid(reason: impl std::fmt::Display) -> CommError {
    super::invalid("link", reason)
}

fn refused(operation: &'static str) -> impl FnOnce(BoardError) -> CommError {
    move |error| super::invalid(operation, error)
}

fn wide(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Seconds in ns, rounded up: a link is never faster than stated.
pub fn ns(seconds: f64) -> u64 {
    (seconds * 1e9).ceil() as u64
}

/// The system's monotonic clock, one for all processes of a machine.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The system wakes a sleeper up to this much late, so the rest is waited for awake. To give the core away meanwhile could
/// cost a whole time slice where others are at work.
const AWAKE_NS: u64 = 80_000;

/// Returns when the clock of [`now`] shows `end`.
pub fn sleep_until(end: u64) {
    loop {
        match end.saturating_sub(now()) {
            0 => return,
            left if left > AWAKE_NS => std::thread::sleep(Duration::from_nanos(left - AWAKE_NS)),
            _ => std::hint::spin_loop(),
        }
    }
}

/// Words that ranks tell each other when they meet: process, file, machine (2), token (2).
const GREETING: usize = 6;

/// Rank 0 makes the board, and all others open it. Every rank ends with the board or with an error.
fn meet(comm: &dyn Communicator, links: usize) -> Result<Board> {
    let (rank, size) = (comm.rank(), comm.size());
    let machine = machine();
    let made = if rank == 0 { Some(Board::create(links, token())) } else { None };
    let mut words = vec![0u32; GREETING * size];
    let halves = |wide: u64| [wide as u32, (wide >> 32) as u32];
    let own = &mut words[rank * GREETING..][..GREETING];
    own[2..4].copy_from_slice(&halves(machine.unwrap_or(0)));
    if let Some(Ok(board)) = &made {
        own[0] = std::process::id();
        own[1] = board.fd() as u32;
        own[4..].copy_from_slice(&halves(board.token()));
    }
    comm.all_gather_in_place(ViewMut::of(&mut words))?;
    let of = |rank: usize| &words[rank * GREETING..][..GREETING];
    let first = of(0);
    let elsewhere = (0..size).find(|rank| of(*rank)[2..4] != first[2..4]);
    let board = match (elsewhere, &made) {
        _ if machine.is_none() => Err("the machine's boot_id cannot be read from /proc".into()),
        (Some(other), _) => Err(format!(
            "emulated links need all ranks on one machine; ranks 0 and {other} are on different ones, whose links are real: \
             leave link.node out"
        )),
        (None, Some(Ok(_))) => Ok(None),
        (None, Some(Err(error))) => Err(error.to_string()),
        (None, None) => Board::open(first[0], first[1] as i32, links, wide(first[4], first[5]))
            .map(Some)
            .map_err(|error| error.to_string()),
    };
    // Where one rank has no board, none goes on.
    let mut well = vec![0u32; size];
    well[rank] = u32::from(board.is_ok());
    comm.all_gather_in_place(ViewMut::of(&mut well))?;
    let opened = board.map_err(invalid)?;
    if let Some(rank) = well.iter().position(|well| *well == 0) {
        return Err(invalid(format!("rank {rank} could not reach the shared state of the emulated link")));
    }
    opened.or(made.and_then(Result::ok)).ok_or_else(|| invalid("the shared state of the emulated link is absent"))
}

/// A number for this boot of this machine.
fn machine() -> Option<u64> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let hash = id
        .trim()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    Some(hash.max(1))
}

/// Tells this run's board from another's.
fn token() -> u64 {
    now().rotate_left(20) ^ u64::from(std::process::id()) | 1
}
