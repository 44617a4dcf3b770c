//! Ranks as GPUs, by NCCL. The library and the driver are looked for at run time; without them everything else works.
//!
//! **Run with one rank on one GPU so far**, where `engine/tests/comm_nccl.rs` runs the suite of all backends. Where there is none, the
//! tests load NCCL's own wheel, read its version, make an unique id and see that a communicator without a driver is a typed error.
//!
//! Buffers are device memory: a view's pointer is a device pointer. Communicators are nonblocking: a call is put on this
//! group's own stream and then polled, NCCL's asynchronous error with it, up to the stall limit. On an error or a stall the
//! communicator is aborted, which ends its kernels, and the group is at its end. NCCL does not say who is missing.
//!
//! NCCL adds in its own order and, for bf16 and f16, rounds partial sums to the type that travels. How it rounds averages of
//! integers is its own matter. Adding to what is there, and results of another type than what travels, are refused: a sum
//! and a kernel do the same.
//!
//! NCCL does not tell what it sends: [`Communicator::wire_bytes`] counts what a ring would receive on this rank, as for MPI.

// Memory of a device, and a communicator that threads take turns at.
#![allow(unsafe_code)]

mod api;
mod driver;
mod handle;
mod issue;
mod loader;
mod ordered;

pub use api::{Api, NcclError, OLDEST, UniqueId, dotted};
pub use driver::{Device, DriverError, Memory, Stream, load_driver};
pub use loader::Search;
pub use ordered::{InOrder, Ordered};

use super::{Abandon, Call, CommError, Communicator, Kind, Member, OwnedCall, Result, Ticket, invalid, why_abandoned};
use crate::GroupName;
use driver::Mark;
use handle::Handle;
use issue::Issue;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zbench_kernels::memory::device::Event;
use zbench_kernels::{DType, ReduceOp, ViewMut};

/// How long the end of a group may take before it is aborted.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of the collectives that connect a group: NCCL chooses its ways by size, and connects each at its first use.
const WARMING: [usize; 2] = [1 << 10, 16 << 20];

pub struct Nccl {
    group: Arc<Group>,
    /// Groups that were split off ahead of time, by color and key.
    prepared: Mutex<Vec<(usize, usize, Nccl)>>,
}

/// What a rank shares with its tickets. NCCL is called under the lock of `state` only.
struct Group {
    name: String,
    rank: usize,
    size: usize,
    stall: Duration,
    handle: Handle,
    stream: Stream,
    token: Memory,
    state: Mutex<State>,
}

// SAFETY: NCCL's communicator and the stream may be used by any thread, one at a time; the lock of `state` sees to that.
unsafe impl Send for Group {}
// SAFETY: as above.
unsafe impl Sync for Group {}

struct State {
    calls: u64,
    wire: u64,
    open: Vec<Started>,
    failed: Option<CommError>,
    /// The kernels that the next call follows.
    follows: Option<Arc<dyn Event>>,
}

struct Started {
    sequence: u64,
    operation: &'static str,
    /// The kernels that it follows.
    follows: Option<Arc<dyn Event>>,
    mark: Mark,
    /// What the call needs beside its buffers until it is done.
    _scratch: Option<Memory>,
}

/// Joins a group of `size` ranks as `rank`, on `device`. All ranks come with the `id` that one of them has made
/// ([`Api::unique_id`]) and carried over.
///
/// # Errors
/// [`CommError`]: what NCCL or the driver says, or that the others did not come within `stall`.
pub fn nccl(
    api: &Arc<Api>,
    device: &Arc<Device>,
    id: UniqueId,
    rank: usize,
    size: usize,
    stall: Duration,
) -> Result<Nccl> {
    if rank >= size {
        return Err(invalid("nccl", format!("rank {rank} is not one of {size}")));
    }
    device.enter().map_err(|error| invalid("nccl", error))?;
    let handle = Handle::init(api, id, rank, size).map_err(|error| invalid("nccl", error))?;
    Nccl::connect("world", handle, None, device, stall)
}

/// As [`nccl`], with another group of the same ranks to carry the id.
///
/// # Errors
/// As [`nccl`], and those of the other group.
pub fn nccl_over(base: &dyn Communicator, api: &Arc<Api>, device: &Arc<Device>, stall: Duration) -> Result<Nccl> {
    let id =
        if base.rank() == 0 { api.unique_id().map_err(|error| invalid("nccl", error)) } else { Ok(UniqueId([0; 128])) };
    // A rank 0 that has no id says so, so that nobody waits in vain.
    let mut carried: Vec<u32> = vec![u32::from(id.is_ok())];
    carried.extend(id.as_ref().map_or([0; 128], |id| id.0).map(u32::from));
    base.broadcast(ViewMut::of(&mut carried), 0)?;
    let id = id?;
    if carried[0] == 0 {
        return Err(invalid("nccl", "rank 0 could not make an id"));
    }
    let id = if base.rank() == 0 { id } else { UniqueId(std::array::from_fn(|i| carried[i + 1] as u8)) };
    nccl(api, device, id, base.rank(), base.size(), stall)
}

impl Nccl {
    /// Waits until NCCL has made the communicator; `parent` is what it was split from.
    fn connect(
        name: &str,
        handle: Handle,
        parent: Option<&Handle>,
        device: &Arc<Device>,
        stall: Duration,
    ) -> Result<Nccl> {
        let begin = Instant::now();
        let operation = if parent.is_some() { "split" } else { "nccl" };
        let made =
            || -> Result<bool, NcclError> { Ok(parent.map_or(Ok(true), Handle::is_settled)? && handle.is_settled()?) };
        loop {
            let reason = match made() {
                Ok(true) => break,
                Ok(false) if begin.elapsed() <= stall => {
                    pause(begin.elapsed());
                    continue;
                }
                Ok(false) => {
                    format!("{name} was not there after {} s; NCCL does not say who did not come", stall.as_secs())
                }
                Err(error) => error.to_string(),
            };
            handle.abort();
            return Err(invalid(operation, reason));
        }
        let numbers = || -> Result<(usize, usize), NcclError> { Ok((handle.rank()?, handle.size()?)) };
        let (rank, size) = numbers().map_err(|error| invalid(operation, error))?;
        let stream = Stream::new(device).map_err(|error| invalid(operation, error))?;
        let mut token = Memory::new(device, 4).map_err(|error| invalid(operation, error))?;
        stream.zero(&mut token).map_err(|error| invalid(operation, error))?;
        let state = Mutex::new(State { calls: 0, wire: 0, open: Vec::new(), failed: None, follows: None });
        let group = Group { name: name.to_owned(), rank, size, stall, handle, stream, token, state };
        Ok(Nccl { group: Arc::new(group), prepared: Mutex::default() })
    }

    /// Connects this group, and those that will be split off by these colors and keys, which all ranks state in the same order.
    /// NCCL takes gigabytes of the device's memory when it connects: whoever takes what is free does so afterwards.
    ///
    /// # Errors
    /// What NCCL or the driver says, as where there is no room.
    pub fn prepare(&self, groups: &[(usize, usize, GroupName)]) -> Result<()> {
        self.warm()?;
        for (color, key, axis) in groups {
            let child = self.make_child(*color, *key, axis.name())?;
            child.warm()?;
            self.prepared.lock().unwrap_or_else(PoisonError::into_inner).push((*color, *key, child));
        }
        Ok(())
    }

    /// A group of those ranks that state the same color, in the order of their keys. All ranks call it.
    fn make_child(&self, color: usize, key: usize, name: &str) -> Result<Nccl> {
        let mut state = self.group.state();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let (sequence, device) = (state.calls, self.group.stream.device());
        state.calls += 1;
        device.enter().map_err(|error| invalid("split", error))?;
        let child = match self.group.handle.split(color, key) {
            Ok(child) => child,
            Err(error @ NcclError::TooLarge { .. }) => return Err(invalid("split", error)),
            Err(error) => return Err(self.group.fail(&mut state, "split", sequence, &error)),
        };
        Nccl::connect(name, child, Some(&self.group.handle), device, self.group.stall)
            .map_err(|error| self.group.fail(&mut state, "split", sequence, &error))
    }

    /// One collective of each kind that training has, small and large, on memory that is given back.
    fn warm(&self) -> Result<()> {
        let size = self.group.size;
        for bytes in WARMING {
            let len = (bytes / 4).next_multiple_of(size);
            let memory = Memory::new(self.stream().device(), len * 4).map_err(|error| invalid("nccl", error))?;
            let at = std::ptr::NonNull::new(memory.address() as *mut u8).ok_or_else(|| invalid("nccl", "no memory"))?;
            let kinds = [
                Kind::AllReduce { op: ReduceOp::Sum },
                Kind::AllGather,
                Kind::ReduceScatter { op: ReduceOp::Sum, accumulate: false },
                Kind::Broadcast { root: 0 },
            ];
            for kind in kinds {
                // SAFETY: device memory of so many elements, which only the device looks at, until the call is done.
                let view = unsafe { ViewMut::from_raw(at, DType::F32, len) };
                self.call(Call::in_place(kind, view))?;
            }
        }
        let mut state = self.group.state();
        (state.calls, state.wire) = (0, 0);
        Ok(())
    }

    pub fn stream(&self) -> &Stream {
        &self.group.stream
    }
}

fn pause(waited: Duration) {
    if waited < Duration::from_millis(1) {
        std::hint::spin_loop();
    } else if waited < Duration::from_millis(20) {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// What NCCL cannot do; everything else that fits, it does.
fn refuse(call: &Call<'_>) -> Result<()> {
    let operation = call.kind.name();
    if matches!(call.kind, Kind::ReduceScatter { accumulate: true, .. }) {
        return Err(invalid(operation, "NCCL cannot add to what is there; receive into another buffer and add that"));
    }
    match (call.send_shape(), call.recv_shape()) {
        (Some((send, _)), Some((recv, _))) if call.kind.op().is_some() && send != recv => {
            Err(invalid(operation, format!("NCCL cannot reduce {send} into {recv}; receive {send} and convert it")))
        }
        _ => Ok(()),
    }
}

/// What a ring would receive on this rank.
fn ring_bytes(call: &Call<'_>, rank: usize, size: usize) -> u64 {
    let part = call.payload_bytes(size) / size as u64;
    let others = part * (size as u64 - 1);
    match call.kind {
        Kind::Reduce { root, .. } => others * if rank == root { 2 } else { 1 },
        Kind::Gather { root } if rank != root => 0,
        Kind::Scatter { root } | Kind::Broadcast { root } if rank == root => 0,
        Kind::Scatter { .. } => part,
        Kind::Broadcast { .. } => call.payload_bytes(size),
        Kind::Send { .. } => 0,
        Kind::Recv { .. } | Kind::SendRecv { .. } => {
            call.recv_shape().map_or(0, |(dtype, len)| (dtype.size() * len) as u64)
        }
        _ => others,
    }
}

impl Group {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a call on the stream, with a mark after it.
    fn begin(&self, state: &mut State, call: &mut Call<'_>) -> Result<Started> {
        call.check(self.rank, self.size)?;
        refuse(call)?;
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let (sequence, operation) = (state.calls, call.kind.name());
        state.calls += 1;
        let wire = ring_bytes(call, self.rank, self.size);
        let Group { handle, stream, rank, size, token, .. } = self;
        let issue = Issue { handle, stream, rank: *rank, size: *size, token };
        let begun = stream.device().enter().map_err(Into::into).and_then(|()| issue.issue(call));
        let scratch = begun.map_err(|error| self.fail(state, operation, sequence, &error))?;
        // In progress means not on the stream yet: a mark would come before it.
        self.until(state, operation, sequence, || Ok(true))?;
        let mark = stream.mark().map_err(|error| self.fail(state, operation, sequence, &error))?;
        state.wire += wire;
        Ok(Started { sequence, operation, follows: state.follows.take(), mark, _scratch: scratch })
    }

    /// Polls NCCL and `done` until both are; else ends the group.
    fn until(
        &self,
        state: &mut State,
        operation: &'static str,
        sequence: u64,
        done: impl Fn() -> Result<bool, DriverError>,
    ) -> Result<()> {
        let begin = Instant::now();
        loop {
            let settled = self.handle.is_settled().map_err(|error| self.fail(state, operation, sequence, &error))?;
            if settled && done().map_err(|error| self.fail(state, operation, sequence, &error))? {
                return Ok(());
            }
            let waited = begin.elapsed();
            if waited > self.stall {
                let reason =
                    format!("it was not done after {} s; NCCL does not say who did not come", self.stall.as_secs());
                return Err(self.fail(state, operation, sequence, &reason));
            }
            pause(waited);
        }
    }

    /// Afterwards the stream has come past the call, or the kernels have been aborted: its scratch may go.
    fn finish(&self, state: &mut State, started: &Started) -> Result<()> {
        let Started { sequence, operation, ref follows, ref mark, .. } = *started;
        // The stall limit is for the ranks, and not for this rank's kernels before the call.
        let begin = Instant::now();
        while let Some(follows) = follows
            && !follows.query().map_err(|error| self.fail(state, operation, sequence, &error))?
        {
            pause(begin.elapsed());
        }
        self.until(state, operation, sequence, || mark.is_done())
    }

    /// Aborts the communicator: its kernels end, and nobody uses the buffers any more.
    fn fail(&self, state: &mut State, operation: &str, sequence: u64, reason: &dyn std::fmt::Display) -> CommError {
        let (group, rank) = (self.name.clone(), self.rank);
        let error = CommError::Aborted { group, rank, reason: format!("{operation} number {sequence}: {reason}") };
        self.end(state, error.clone());
        error
    }

    fn end(&self, state: &mut State, error: CommError) {
        if state.failed.is_none() {
            state.failed = Some(error);
            let _ = self.stream.device().enter();
            self.handle.abort();
        }
        state.open.clear();
    }
}

impl Abandon for Group {
    fn abandoned(&self, sequence: u64) {
        let mut state = self.state();
        if state.failed.is_none() {
            self.fail(&mut state, "call", sequence, &why_abandoned());
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.stream.device().enter();
        let begin = Instant::now();
        let well = self.state().failed.is_none() && !std::thread::panicking() && self.handle.finalize().is_ok();
        while well && begin.elapsed() < SHUTDOWN_TIMEOUT {
            match self.handle.is_settled() {
                Ok(true) => return self.handle.destroy(),
                Ok(false) => pause(begin.elapsed()),
                Err(_) => break,
            }
        }
        self.handle.abort();
    }
}

impl Communicator for Nccl {
    fn member(&self) -> Member {
        Member { rank: self.group.rank, size: self.group.size, backend: "nccl" }
    }

    fn algorithm(&self, _kind: Kind, _bytes: u64) -> &'static str {
        "library"
    }

    fn call(&self, mut call: Call<'_>) -> Result<()> {
        let mut state = self.group.state();
        let started = self.group.begin(&mut state, &mut call)?;
        self.group.finish(&mut state, &started)
    }

    fn start(&self, mut request: OwnedCall) -> Result<Ticket> {
        let mut state = self.group.state();
        let started = self.group.begin(&mut state, &mut request.as_call())?;
        let sequence = started.sequence;
        state.open.push(started);
        Ok(Ticket::of(self.group.clone(), sequence, request))
    }

    fn wait(&self, mut ticket: Ticket) -> Result<OwnedCall> {
        ticket.check_owner(&self.group)?;
        let request = ticket.take()?;
        let mut state = self.group.state();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let started = state.open.iter().position(|started| started.sequence == ticket.sequence);
        let started = started.ok_or_else(|| invalid("wait", format!("number {} is not under way", ticket.sequence)))?;
        let started = state.open.swap_remove(started);
        self.group.finish(&mut state, &started)?;
        Ok(request)
    }

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        Ok(Box::new(self.split_off(color, key, name)?))
    }

    /// Ends this rank's part; the others see it as an error of NCCL or as a stall, since NCCL carries no reasons.
    fn abort(&self, reason: &str) {
        let (group, rank) = (self.group.name.clone(), self.group.rank);
        self.group.end(&mut self.group.state(), CommError::Aborted { group, rank, reason: reason.to_owned() });
    }

    fn wire_bytes(&self) -> u64 {
        self.group.state().wire
    }
}

impl InOrder for Nccl {
    fn follow(&self, event: Arc<dyn Event>) -> Result<()> {
        // The stream's user is whoever holds the state.
        let mut state = self.group.state();
        match self.group.stream.follow(&*event) {
            Ok(true) => {
                state.follows = Some(event);
                Ok(())
            }
            Ok(false) => Err(invalid("nccl", "the event that the call waits for is not an event of a GPU")),
            Err(error) => Err(invalid("nccl", error)),
        }
    }

    fn split_off(&self, color: usize, key: usize, name: &str) -> Result<Nccl> {
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = prepared.iter().position(|(of, at, _)| (*of, *at) == (color, key)) {
            return Ok(prepared.remove(at).2);
        }
        drop(prepared);
        self.make_child(color, key, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_kernels::View;

    #[test]
    fn what_nccl_cannot_do_is_refused_with_what_to_do() {
        let (send, mut recv, mut wide) = ([1f32; 4], [1f32; 2], [1f64; 2]);
        let kind = |accumulate| Kind::ReduceScatter { op: ReduceOp::Sum, accumulate };
        let said = |call: Call<'_>| refuse(&call).unwrap_err().to_string();
        assert!(said(Call::new(kind(true), View::of(&send), ViewMut::of(&mut recv))).contains("cannot add"));
        assert!(said(Call::new(kind(false), View::of(&send), ViewMut::of(&mut wide))).contains("f32 into f64"));
        refuse(&Call::new(kind(false), View::of(&send), ViewMut::of(&mut recv))).unwrap();
    }

    #[test]
    fn a_ring_receives_what_the_other_ranks_hold() {
        let mut whole = [0f32; 40];
        let kinds = [
            (Kind::AllReduce { op: ReduceOp::Sum }, 240),
            (Kind::AllGather, 120),
            (Kind::Broadcast { root: 1 }, 160),
            (Kind::Broadcast { root: 0 }, 0),
            (Kind::Recv { from: 2 }, 160),
            (Kind::Reduce { op: ReduceOp::Sum, root: 0 }, 240),
        ];
        for (kind, bytes) in kinds {
            assert_eq!(ring_bytes(&Call::in_place(kind, ViewMut::of(&mut whole)), 0, 4), bytes, "{kind:?}");
        }
        assert_eq!(ring_bytes(&Call::giving(Kind::Send { to: 1 }, View::of(&whole)), 0, 4), 0);
        assert_eq!(ring_bytes(&Call::giving(Kind::Scatter { root: 0 }, View::of(&whole)), 1, 4), 40);
    }
}
