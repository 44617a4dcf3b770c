//! Ranks that share memory: `local` for threads of a process, `shm` for processes of a host. Each posts where its buffers
//! lie, and reads and writes its peers' memory itself.

use super::board::{Board, CallGroup, EAGER_BYTES};
use super::drive::{RankHandle, Step};
use super::moves::What;
use super::pending::{Buffers, Finished, Group, PendingCalls, buffers};
use super::space::Space;
use crate::call::{Call, Kind};
use crate::progress::{Driver, Inside};
use crate::raw::RawSlice;
use crate::{Abandon, Communicator, Member, OwnedCall, Result, Ticket, invalid, why_abandoned};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use zbench_kernels::Kernels;
use zbench_kernels::threads::sync::SpinPolicy;

/// One rank of a group that shares memory. All groups split from one group end together.
///
/// Memory that a rank has posted is used by its peers until the call returns, with an error too. The started calls of all of a rank's
/// groups go on while the rank waits in any call, and, where ranks compute on the host, while it computes.
pub struct Shared {
    handle: Arc<GroupHandle>,
    wire: Cell<u64>,
}

/// What a rank's group shares with its tickets.
struct GroupHandle {
    group: Arc<Group>,
    driver: Arc<Driver<RankHandle>>,
}

/// A call of borrowed memory that peers may use. Unless the call came to its end, dropping it ends the world and waits for those
/// who are inside, when unwinding too.
struct Lent<'a> {
    rank: &'a RankHandle,
    state: Inside<'a, RankHandle>,
    /// The calls; two for a rank that gives and takes at once.
    ids: [Option<u64>; 2],
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if self.ids.iter().any(Option::is_some) {
            self.rank.give_up("it could not finish a collective");
            self.ids.into_iter().flatten().for_each(|id| self.state.forget(id));
        }
    }
}

impl Abandon for GroupHandle {
    fn abandoned(&self, id: u64) {
        let engine = self.driver.engine();
        let mut state = self.driver.enter();
        if !state.is_finished(id) {
            engine.give_up(why_abandoned());
        }
        state.forget(id);
    }
}

impl Shared {
    /// A rank of the world whose first group has been made in `control`.
    pub(crate) fn new(
        board: Board,
        rank: usize,
        space: Arc<Space>,
        kernels: Arc<dyn Kernels>,
        spin: SpinPolicy,
        stall: Duration,
    ) -> Result<Shared> {
        let (root, side) = (board.root(rank), kernels.new_stream()?);
        let engine = RankHandle { first: board.clone(), space, root, spin, stall, kernels, side };
        Ok(Shared::of(board, rank, Arc::new(Driver::new(engine, PendingCalls::new()))))
    }

    fn of(board: Board, rank: usize, driver: Arc<Driver<RankHandle>>) -> Shared {
        let handle = GroupHandle { group: Arc::new(Group { board, rank }), driver };
        Shared { handle: Arc::new(handle), wire: Cell::new(0) }
    }

    fn engine(&self) -> &RankHandle {
        self.handle.driver.engine()
    }

    /// Opens a call: the memory in `send` and `recv` must stay until it is finished or given up.
    fn open(
        &self,
        state: &mut PendingCalls,
        line: CallGroup,
        what: What,
        (send, recv): (RawSlice, RawSlice),
        started: bool,
    ) -> Result<u64> {
        let buffers = self.lend(send, recv)?;
        Ok(state.open(&self.handle.group, line, what, buffers, started))
    }

    /// What a call is about, if there may be one.
    fn lend(&self, send: RawSlice, recv: RawSlice) -> Result<Buffers> {
        if let Some(cause) = self.engine().cause() {
            return Err(cause);
        }
        let on_device = self.engine().space.marks().is_some();
        let before = if on_device { self.engine().kernels.record_event()? } else { None };
        Ok(Buffers { send, recv, before })
    }

    /// A whole call. What ranks give in a small one lies beside their posts, so that nobody uses this rank's buffers: where
    /// nothing else is under way it is done here, without a place among the open calls, unless the others are long in coming.
    fn one(&self, line: CallGroup, what: What, send: RawSlice, recv: RawSlice) -> Result<()> {
        let engine = self.engine();
        let mut lent = Lent { rank: engine, state: self.handle.driver.enter(), ids: [None; 2] };
        let mut call = lent.state.next(&self.handle.group, line, what, self.lend(send, recv)?, false);
        lent.ids[0] = Some(call.id);
        let id = call.id;
        let mut goes_on = lent.state.open.is_empty() && (call.eager.is_some() || what == What::Call(Kind::Barrier));
        while goes_on {
            match engine.go_on(&mut call, &mut lent.state.tools)? {
                Step::Moved => {}
                Step::Waits => goes_on = engine.others_come(&call),
                Step::Ended(_) => {
                    self.wire.set(self.wire.get() + call.moved);
                    lent.ids[0] = None;
                    return Ok(());
                }
            }
        }
        lent.state.open.push(call);
        self.finish(&mut lent.state, id)?;
        lent.ids[0] = None;
        Ok(())
    }

    /// Whole calls, one or two at once.
    fn whole<const N: usize>(&self, calls: [(CallGroup, What, RawSlice, RawSlice); N]) -> Result<()> {
        let mut lent = Lent { rank: self.engine(), state: self.handle.driver.enter(), ids: [None; 2] };
        for (at, (line, what, send, recv)) in calls.into_iter().enumerate() {
            lent.ids[at] = Some(self.open(&mut lent.state, line, what, (send, recv), false)?);
        }
        for at in (0..N).rev() {
            if let Some(id) = lent.ids[at] {
                self.finish(&mut lent.state, id)?;
                lent.ids[at] = None;
            }
        }
        Ok(())
    }

    /// Works on all open calls until this one is complete.
    fn finish(&self, state: &mut PendingCalls, id: u64) -> Result<()> {
        let engine = self.engine();
        let mut since = None;
        loop {
            if let Some(Finished { moved, marks, .. }) = state.finished(id)? {
                self.wire.set(self.wire.get() + moved);
                // What this rank does from now on with its buffers begins when all have done their part.
                marks.iter().try_for_each(|mark| engine.kernels.wait_event(&**mark))?;
                return Ok(());
            }
            match engine.progress(state) {
                Ok(true) => since = None,
                Ok(false) => engine.wait_for_news(state, &mut since, id),
                // The thread may have found out first what this rank has to say of it.
                Err(error) => return Err(state.failed.clone().unwrap_or(error)),
            }
        }
    }

    /// Who takes part in a call.
    fn line(&self, kind: Kind) -> CallGroup {
        let rank = self.handle.group.rank;
        match kind {
            Kind::Send { to } => CallGroup::Pair { from: rank, to },
            Kind::Recv { from } => CallGroup::Pair { from, to: rank },
            _ => CallGroup::All,
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.engine().abort(self.engine().root, "panicked");
        }
    }
}

impl Drop for GroupHandle {
    /// The group and all of its tickets are gone.
    fn drop(&mut self) {
        let (engine, group) = (self.driver.engine(), &*self.group);
        group.board.leave(group.rank);
        let world = engine.world();
        world.tell((0..world.flags.len()).filter(|rank| *rank != engine.root), || true);
    }
}

impl Communicator for Shared {
    fn member(&self) -> Member {
        let Group { board, rank } = &*self.handle.group;
        Member { rank: *rank, size: board.size(), backend: self.engine().space.backend() }
    }

    fn algorithm(&self, kind: Kind, bytes: u64) -> &'static str {
        let on_device = self.engine().space.marks().is_some();
        let small = bytes <= EAGER_BYTES as u64 && kind.is_collective() && !on_device;
        if small { "eager" } else { "direct" }
    }

    fn call(&self, call: Call<'_>) -> Result<()> {
        let Member { rank, size, .. } = self.member();
        call.check(rank, size)?;
        let (send, recv) = buffers(&call, rank, size);
        let Kind::SendRecv { to, from } = call.kind else {
            return self.one(self.line(call.kind), What::Call(call.kind), send, recv);
        };
        let (give, take) = (Kind::Send { to }, Kind::Recv { from });
        let given = (self.line(give), What::Call(give), send, RawSlice::empty());
        self.whole([given, (self.line(take), What::Call(take), RawSlice::empty(), recv)])
    }

    fn start(&self, mut request: OwnedCall) -> Result<Ticket> {
        let Member { rank, size, .. } = self.member();
        let call = request.as_call();
        call.check(rank, size)?;
        let (kind, lent) = (call.kind, buffers(&call, rank, size));
        let driver = &self.handle.driver;
        let mut state = driver.enter();
        let id = self.open(&mut state, self.line(kind), What::Call(kind), lent, true)?;
        // It is posted at once where there is room; all else can wait.
        let last = state.open.len() - 1;
        let posted = self.engine().step(&mut state, last);
        if posted.is_err() {
            state.forget(id);
        }
        drop(state);
        posted.inspect_err(|error| self.engine().end(error))?;
        let ticket = Ticket::of(self.handle.clone(), id, request);
        if self.engine().goes_on_alone() && size > 1 {
            driver.carry_on();
        }
        Ok(ticket)
    }

    fn wait(&self, mut ticket: Ticket) -> Result<OwnedCall> {
        ticket.check_owner(&self.handle)?;
        self.finish(&mut self.handle.driver.enter(), ticket.sequence)?;
        ticket.take()
    }

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        name.clone_into(&mut self.handle.driver.enter().tools.split_name);
        let what = What::Split(color as u64, key as u64);
        self.whole([(CallGroup::All, what, RawSlice::empty(), RawSlice::empty())])?;
        let formed = self.handle.driver.enter().tools.formed.take();
        let (board, rank) = formed.ok_or_else(|| invalid("split", "the group has ended"))?;
        Ok(Box::new(Shared::of(board, rank, self.handle.driver.clone())))
    }

    fn abort(&self, reason: &str) {
        self.engine().abort(self.engine().root, reason);
    }

    fn wire_bytes(&self) -> u64 {
        self.wire.get()
    }
}
