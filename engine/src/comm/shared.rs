//! Ranks that share memory: `local` for threads of a process, `shm` for processes of a host. Each posts where its buffers
//! lie, and reads and writes its peers' memory itself.

// Buffers are lent to peers, which use them until the call has ended.
#![allow(unsafe_code)]

use super::board::{Board, CallGroup, Control, EAGER_BYTES};
use super::call::{Call, Kind};
use super::moves::{BufferRef, Mover, Posted, Seen, What};
use super::pending::{Finished, Open, PendingCalls, Wait, buffers, eager_bytes};
use super::protocol::{LEFT, POSTED};
use super::raw::RawSlice;
use super::space::{Place, Space};
use super::sync::SpinPolicy;
use super::{Abandon, CommError, Communicator, Member, OwnedCall, Result, Ticket, cause, invalid, why_abandoned};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zbench_kernels::Kernels;
use zbench_kernels::device::Event;

/// How long a waiting rank sleeps before it looks whether its peers are alive.
const NAP: Duration = Duration::from_millis(50);

/// One rank of a group that shares memory. All groups split from one group end together.
///
/// Memory that a rank has posted is used by its peers until the call returns, with an error too. While a rank waits in one
/// of a group's calls, the group's started collectives go on.
pub struct Shared {
    handle: Arc<RankHandle>,
    rank: usize,
    kernels: Arc<dyn Kernels>,
    /// On a device, an order of its own for what moves.
    side: Option<Arc<dyn Kernels>>,
    pending: RefCell<PendingCalls>,
    wire: Cell<u64>,
}

/// A rank's place in the world, shared with its tickets.
pub(crate) struct RankHandle {
    board: Board,
    space: Arc<Space>,
    root: usize,
    spin: SpinPolicy,
    stall: Duration,
}

/// Borrowed memory that peers may use. Unless the call came to its end, dropping it ends the world and waits for those
/// who are inside, when unwinding too.
struct Lent<'a> {
    handle: &'a RankHandle,
    returned: bool,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if !self.returned {
            self.handle.give_up("it could not finish a collective");
        }
    }
}

impl RankHandle {
    fn control(&self) -> &Control {
        self.board.control()
    }

    fn root_group(&self) -> String {
        Board::first(self.board.control()).map_or_else(|_| "world".into(), |board| board.name())
    }

    fn end(&self, error: &CommError) {
        self.control().end(&cause::encode(error, self.root, None));
    }

    fn abort(&self, rank: usize, reason: &str) {
        self.end(&CommError::Aborted { group: self.root_group(), rank, reason: reason.to_owned() });
    }

    fn cause(&self) -> Option<CommError> {
        self.control().cause().map(|text| cause::decode(text.as_bytes(), self.root, None).unwrap_or_else(unsaid))
    }

    /// Ends the world, and returns when nobody touches this rank's memory any more.
    fn give_up(&self, reason: &str) {
        self.abort(self.root, if std::thread::panicking() { "panicked" } else { reason });
        let world = self.control().world();
        for rank in (0..world.flags.len()).filter(|rank| *rank != self.root) {
            // A process that died inside touches nothing any more, and one that was stopped there may never come out: what it
            // then writes spoils numbers of a run that has ended, but no address, since all is mapped. Threads are waited for.
            let begin = Instant::now();
            let bounded = |limit| self.space.is_of_processes() && begin.elapsed() > limit;
            while !world.outside(rank) && self.space.death(rank).is_none() && !bounded(self.stall) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Wakes the members of a call group that sleep.
    fn tell(&self, group: CallGroup, members: usize, complete: impl Fn() -> bool) {
        let own = self.root;
        let roots = (0..members).map(|place| self.board.root(group.member(place))).filter(|root| *root != own);
        self.control().world().tell(roots, complete);
    }
}

/// The end of a world whose writer died in the middle of the cause.
fn unsaid() -> CommError {
    CommError::Aborted { group: cause::WORLD.into(), rank: 0, reason: "ended without saying why".into() }
}

impl Abandon for RankHandle {
    fn abandoned(&self, _sequence: u64) {
        self.give_up(why_abandoned());
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
        let root = board.root(rank);
        let side = kernels.new_stream()?;
        let handle = RankHandle { board, space, root, spin, stall };
        Ok(Shared {
            handle: Arc::new(handle),
            rank,
            kernels,
            side,
            pending: RefCell::new(PendingCalls::new()),
            wire: Cell::new(0),
        })
    }

    /// Where a member's mark of a call is found.
    fn place(&self, group: CallGroup, sequence: u64, place: usize, done: bool) -> Result<Place> {
        let depth = self.board().line(group)?.depth();
        Ok((self.board().offset(), group, sequence % depth, place, done))
    }

    fn marks(&self, group: CallGroup, sequence: u64, done: bool) -> Result<Vec<Arc<dyn Event>>> {
        let Some(marks) = self.handle.space.marks() else { return Ok(Vec::new()) };
        let members = 0..self.board().line(group)?.members();
        let places: Result<Vec<Place>> = members.map(|place| self.place(group, sequence, place, done)).collect();
        Ok(places?.iter().filter_map(|place| marks.get(place)).collect())
    }

    fn board(&self) -> &Board {
        &self.handle.board
    }

    /// Opens a call: the memory in `send` and `recv` must stay until it is finished or given up.
    fn post(&self, group: CallGroup, what: What, send: RawSlice, recv: RawSlice) -> Result<u64> {
        if let Some(cause) = self.handle.cause() {
            return Err(cause);
        }
        let mut pending = self.pending.borrow_mut();
        let at = pending.numbers.iter().position(|(known, _)| *known == group);
        let at = at.unwrap_or_else(|| {
            pending.numbers.push((group, 0));
            pending.numbers.len() - 1
        });
        let sequence = pending.numbers[at].1;
        self.make_room(&mut pending, group, sequence)?;
        let line = self.board().line(group)?;
        let size = self.board().size();
        let eager = match what {
            What::Call(kind) => eager_bytes(kind, self.rank, size, send, recv),
            What::Split(..) => None,
        };
        let mut bounce = None;
        let (send_spot, recv_spot) = match eager {
            Some(given) => {
                let to = self.board().eager(sequence, self.rank, given)?;
                // SAFETY: the slot is vacant, so nobody reads its eager bytes, and `given` is at most their number (checked).
                unsafe { std::ptr::copy_nonoverlapping(send.ptr.as_ptr(), to.as_ptr(), given) };
                (BufferRef::by_address(send), BufferRef::by_address(recv))
            }
            None => {
                if let (Some(marks), Some(mark)) = (self.handle.space.marks(), self.kernels.record_event()?) {
                    marks.put(self.place(group, sequence, group.place(self.rank), false)?, mark);
                }
                let (send, recv, stand_in) = self.handle.space.reachable(send, recv)?;
                bounce = stand_in;
                (send, recv)
            }
        };
        let works = match what {
            What::Split(..) => 2,
            What::Call(Kind::Barrier) => 0,
            What::Call(_) => 1,
        };
        let eager = eager.is_some();
        let post = Posted { what, send: send_spot, recv: recv_spot };
        // SAFETY: `vacant` was seen, and numbers are given once.
        unsafe { line.post(sequence, group.place(self.rank), post) };
        pending.numbers[at].1 += 1;
        pending.open.push(Open { group, sequence, stage: POSTED, last: POSTED + works, eager, what, moved: 0, bounce });
        self.handle.tell(group, line.members(), || line.reached(sequence, POSTED));
        Ok(sequence)
    }

    fn whole(&self, group: CallGroup, what: What, send: RawSlice, recv: RawSlice) -> Result<()> {
        let sequence = self.post(group, what, send, recv)?;
        let mut lent = Lent { handle: &self.handle, returned: false };
        self.finish(group, sequence)?;
        lent.returned = true;
        Ok(())
    }

    /// Works on all open calls until this one is complete.
    fn finish(&self, group: CallGroup, sequence: u64) -> Result<()> {
        let mut pending = self.pending.borrow_mut();
        let open = pending.open.iter().any(|open| (open.group, open.sequence) == (group, sequence));
        let over = |pending: &PendingCalls| {
            pending.finished.iter().position(|done| (done.group, done.sequence) == (group, sequence))
        };
        if !open && over(&pending).is_none() {
            return Err(invalid("wait", format!("number {sequence} is not under way")));
        }
        let mut since = None;
        loop {
            if let Some(at) = over(&pending) {
                let Finished { moved, marks, .. } = pending.finished.swap_remove(at);
                self.wire.set(self.wire.get() + moved);
                // What this rank does from now on with its buffers begins when all have done their part.
                marks.iter().try_for_each(|mark| self.kernels.wait_event(&**mark))?;
                return Ok(());
            }
            self.progress_or_wait(&mut pending, &mut since, None, Some((group, sequence)))?;
        }
    }

    /// Works on open calls until the slots for a new one are free.
    fn make_room(&self, pending: &mut PendingCalls, group: CallGroup, sequence: u64) -> Result<()> {
        let line = self.board().line(group)?;
        let mut since = None;
        while !line.vacant(sequence) {
            let earlier = Wait { group, sequence: sequence - line.depth(), stage: LEFT, operation: "a collective" };
            self.progress_or_wait(pending, &mut since, Some(earlier), None)?;
        }
        Ok(())
    }

    /// Does something, or waits until something can be done: an open call goes on, or `room` has come.
    fn progress_or_wait(
        &self,
        pending: &mut PendingCalls,
        since: &mut Option<Instant>,
        room: Option<Wait>,
        asked: Option<(CallGroup, u64)>,
    ) -> Result<()> {
        if self.progress(pending)? {
            *since = None;
            return Ok(());
        }
        self.wait_for_news(pending, since, room, asked)
    }

    /// Does one thing that can be done now; false when all calls wait for others.
    fn progress(&self, pending: &mut PendingCalls) -> Result<bool> {
        for index in 0..pending.open.len() {
            let open = &pending.open[index];
            let (group, sequence, stage) = (open.group, open.sequence, open.stage);
            let line = self.board().line(group)?;
            if !line.reached(sequence, stage) {
                continue;
            }
            if stage == POSTED {
                self.check_agreement(open)?;
            }
            if stage < open.last {
                self.work(pending, index)?;
                let open = &mut pending.open[index];
                open.stage += 1;
                if open.stage < open.last || !open.eager {
                    let stage = open.stage;
                    line.advance(sequence, group.place(self.rank), stage);
                    self.handle.tell(group, line.members(), || line.reached(sequence, stage));
                    return Ok(true);
                }
            }
            let inside = matches!(pending.open[index].what, What::Call(kind) if kind != Kind::Barrier)
                && !pending.open[index].eager;
            let marks = if inside { self.marks(group, sequence, true)? } else { Vec::new() };
            line.advance(sequence, group.place(self.rank), LEFT);
            self.handle.tell(group, line.members(), || line.reached(sequence, LEFT));
            let mut open = pending.open.swap_remove(index);
            if let Some(bounce) = open.bounce.take() {
                bounce.give_back();
            }
            pending.finished.push(Finished { group, sequence, moved: open.moved, marks });
            return Ok(true);
        }
        self.handle.cause().map_or(Ok(false), Err)
    }

    /// Waits for news of the open calls, and for `room`; finds out who will never come.
    fn wait_for_news(
        &self,
        pending: &PendingCalls,
        since: &mut Option<Instant>,
        room: Option<Wait>,
        asked: Option<(CallGroup, u64)>,
    ) -> Result<()> {
        let (board, world) = (self.board(), self.handle.control().world());
        let reached = |wait: Wait| board.line(wait.group).is_ok_and(|line| line.reached(wait.sequence, wait.stage));
        let news = || world.has_ended() || pending.waits().chain(room).any(reached);
        let nap = NAP.min(self.handle.stall);
        let Err(waiting) = world.wait(self.handle.root, self.handle.spin, nap, news) else { return Ok(()) };
        pending.waits().chain(room).for_each(|wait| self.check_presence(wait));
        if since.get_or_insert(waiting).elapsed() < self.handle.stall {
            return Ok(());
        }
        let wanted = |wait: &Wait| asked.is_none_or(|asked| (wait.group, wait.sequence) == asked);
        let Some(wait) = room.or_else(|| pending.waits().find(wanted)) else { return Ok(()) };
        let missing: Vec<usize> = board.missing(wait.group, wait.sequence, wait.stage).collect();
        if !missing.is_empty() {
            let seconds = self.handle.stall.as_secs_f64().ceil() as u64;
            let Wait { sequence, operation, .. } = wait;
            self.handle.end(&CommError::Stalled { group: board.name(), operation, sequence, missing, seconds });
        }
        Ok(())
    }

    fn check_agreement(&self, open: &Open) -> Result<()> {
        let line = self.board().line(open.group)?;
        let (size, own) = (line.members(), open.group.place(self.rank));
        // SAFETY: all have posted (`progress`), and this rank has not left.
        let posted = |place: usize| unsafe { line.posted(open.sequence, place) };
        let ours = posted(own);
        let Some(place) = (0..size).find(|place| !ours.agrees(&posted(*place), size)) else { return Ok(()) };
        let error = CommError::Mismatch {
            group: self.board().name(),
            sequence: open.sequence,
            rank: open.group.member(place),
            theirs: posted(place).describe(),
            ours: ours.describe(),
        };
        self.handle.abort(self.handle.root, &error.to_string());
        Err(error)
    }

    /// A rank that left and will never come ends the wait for it.
    fn check_presence(&self, wait: Wait) {
        let board = self.board();
        for rank in board.missing(wait.group, wait.sequence, wait.stage) {
            let root = board.root(rank);
            let how = if board.has_left(rank) { Some("it left".to_owned()) } else { self.handle.space.death(root) };
            let Some(how) = how else { continue };
            let Wait { operation, sequence, .. } = wait;
            let reason =
                format!("{how} while others waited for it in {operation} number {sequence} of {}", board.name());
            return self.handle.abort(root, &reason);
        }
    }

    fn work(&self, pending: &mut PendingCalls, index: usize) -> Result<()> {
        let What::Call(kind) = pending.open[index].what else {
            return self.form(pending, index);
        };
        if pending.open[index].eager {
            self.work_beside(pending, index, kind)
        } else {
            self.work_inside(pending, index, kind)
        }
    }

    /// Work on what others have written beside their posts. It stays until all have left, so a world that ends does not
    /// keep a rank from finishing.
    fn work_beside(&self, pending: &mut PendingCalls, index: usize, kind: Kind) -> Result<()> {
        let (sequence, board) = (pending.open[index].sequence, self.board());
        let line = board.line(CallGroup::All)?;
        pending.seen.clear();
        for rank in 0..line.members() {
            // SAFETY: all have posted (`progress`), and this rank has not left.
            let post = unsafe { line.posted(sequence, rank) };
            let bytes = post.send.len.saturating_mul(post.send.dtype.size());
            let ptr = board.eager(sequence, rank, bytes)?;
            let send = RawSlice { ptr, len: post.send.len, dtype: post.send.dtype, on_host: true };
            // Its own result goes to an address of this process; others' are none of its business.
            let recv = if rank == self.rank { Space::own(post.recv) } else { RawSlice::empty() };
            pending.seen.push(Seen { send, recv });
        }
        self.move_all(pending, index, self.rank, kind, true, &|| None)
    }

    fn work_inside(&self, pending: &mut PendingCalls, index: usize, kind: Kind) -> Result<()> {
        let (handle, world) = (&*self.handle, self.handle.control().world());
        let Some(inside) = world.enter(handle.root) else {
            return Err(handle.cause().unwrap_or_else(unsaid));
        };
        let (group, sequence) = (pending.open[index].group, pending.open[index].sequence);
        let line = self.board().line(group)?;
        pending.seen.clear();
        for place in 0..line.members() {
            // SAFETY: all have posted (`progress`), and this rank has not left.
            let post = unsafe { line.posted(sequence, place) };
            pending.seen.push(handle.space.seen(self.board().root(group.member(place)), &post)?);
        }
        let ended = || if world.has_ended() { handle.cause() } else { None };
        let result = self.move_in_turn(pending, index, kind, &ended);
        drop(inside);
        result
    }

    /// Moves, on a device behind all that members have asked for before they came, and says when it will be done.
    fn move_in_turn(
        &self,
        pending: &mut PendingCalls,
        index: usize,
        kind: Kind,
        ended: &dyn Fn() -> Option<CommError>,
    ) -> Result<()> {
        let (group, sequence) = (pending.open[index].group, pending.open[index].sequence);
        let place = group.place(self.rank);
        let (Some(marks), Some(side)) = (self.handle.space.marks(), &self.side) else {
            return self.move_all(pending, index, place, kind, false, ended);
        };
        for mark in self.marks(group, sequence, false)? {
            side.wait_event(&*mark)?;
        }
        self.move_all(pending, index, place, kind, false, ended)?;
        if let Some(mark) = side.record_event()? {
            marks.put(self.place(group, sequence, place, true)?, mark);
        }
        Ok(())
    }

    fn move_all(
        &self,
        pending: &mut PendingCalls,
        index: usize,
        rank: usize,
        kind: Kind,
        eager: bool,
        ended: &dyn Fn() -> Option<CommError>,
    ) -> Result<()> {
        let kernels = self.side.as_deref().unwrap_or(&*self.kernels);
        let mut mover = Mover { rank, kernels, scratch: &mut pending.scratch, ended, wire: 0 };
        // SAFETY: all members have posted and agree, each keeps its memory in place until it has seen all at the last stage
        // (or, eager, its slot until all have left) or, giving up, until nobody is inside (`Lent`, `Ticket`).
        let result = unsafe { mover.work(kind, eager, &pending.seen) };
        pending.open[index].moved += mover.wire;
        // What another rank's end has caused is no news.
        if let Err(error @ (CommError::Kernel(_) | CommError::Invalid { .. })) = &result {
            self.handle.abort(self.handle.root, &error.to_string());
        }
        result
    }

    /// Splits: first the lowest rank of each color makes its group's board, then all look it up.
    fn form(&self, pending: &mut PendingCalls, index: usize) -> Result<()> {
        let (sequence, stage) = (pending.open[index].sequence, pending.open[index].stage);
        let line = self.board().line(CallGroup::All)?;
        // SAFETY: all have posted (`progress`), and this rank has not left.
        let asked = |rank: usize| match unsafe { line.posted(sequence, rank) }.what {
            What::Split(color, key) => (color, key),
            What::Call(_) => (0, 0), // `check_agreement` has refused it
        };
        let (color, _) = asked(self.rank);
        let mut ranks: Vec<usize> = (0..self.board().size()).filter(|rank| asked(*rank).0 == color).collect();
        let leader = ranks[0];
        ranks.sort_by_key(|rank| (asked(*rank).1, *rank));
        let note = &line.slot(sequence, leader).note;
        if stage == POSTED {
            if leader == self.rank {
                let roots: Vec<usize> = ranks.iter().map(|rank| self.board().root(*rank)).collect();
                let made = Board::make(self.board().control(), &pending.split_name, &roots);
                let board = made.inspect_err(|error| self.handle.abort(self.handle.root, &error.to_string()))?;
                note.store(board.offset(), std::sync::atomic::Ordering::Release);
            }
            return Ok(());
        }
        let at = note.load(std::sync::atomic::Ordering::Acquire);
        let place = ranks.iter().position(|rank| *rank == self.rank).unwrap_or_default();
        pending.formed = Some((Board::at(self.board().control(), at)?, place));
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let handle = &*self.handle;
        if std::thread::panicking() {
            handle.abort(handle.root, "panicked");
        }
        handle.board.leave(self.rank);
        let world = handle.control().world();
        world.tell((0..world.flags.len()).filter(|rank| *rank != handle.root), || true);
    }
}

impl Communicator for Shared {
    fn member(&self) -> Member {
        Member { rank: self.rank, size: self.board().size(), backend: self.handle.space.backend() }
    }

    fn algorithm(&self, kind: Kind, bytes: u64) -> &'static str {
        let on_device = self.handle.space.marks().is_some();
        let small = bytes <= EAGER_BYTES as u64 && kind.is_collective() && !on_device;
        if small { "eager" } else { "direct" }
    }

    fn call(&self, call: Call<'_>) -> Result<()> {
        let (rank, size) = (self.rank, self.size());
        call.check(rank, size)?;
        let (send, recv) = buffers(&call, rank, size);
        match call.kind {
            Kind::Send { to } => {
                self.whole(CallGroup::Pair { from: rank, to }, What::Call(call.kind), send, RawSlice::empty())
            }
            Kind::Recv { from } => {
                self.whole(CallGroup::Pair { from, to: rank }, What::Call(call.kind), RawSlice::empty(), recv)
            }
            Kind::SendRecv { to, from } => {
                let (giving, taking) = (CallGroup::Pair { from: rank, to }, CallGroup::Pair { from, to: rank });
                let given = self.post(giving, What::Call(Kind::Send { to }), send, RawSlice::empty())?;
                let mut lent = Lent { handle: &self.handle, returned: false };
                let taken = self.post(taking, What::Call(Kind::Recv { from }), RawSlice::empty(), recv)?;
                self.finish(taking, taken)?;
                self.finish(giving, given)?;
                lent.returned = true;
                Ok(())
            }
            _ => self.whole(CallGroup::All, What::Call(call.kind), send, recv),
        }
    }

    fn start(&self, mut request: OwnedCall) -> Result<Ticket> {
        let (rank, size) = (self.rank, self.size());
        let call = request.as_call();
        call.check(rank, size)?;
        let (kind, (send, recv)) = (call.kind, buffers(&call, rank, size));
        let sequence = self.post(CallGroup::All, What::Call(kind), send, recv)?;
        Ok(Ticket::of(self.handle.clone(), sequence, request))
    }

    fn wait(&self, mut ticket: Ticket) -> Result<OwnedCall> {
        ticket.check_owner(&self.handle)?;
        self.finish(CallGroup::All, ticket.sequence)?;
        ticket.take()
    }

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        name.clone_into(&mut self.pending.borrow_mut().split_name);
        let what = What::Split(color as u64, key as u64);
        self.whole(CallGroup::All, what, RawSlice::empty(), RawSlice::empty())?;
        let formed = self.pending.borrow_mut().formed.take();
        let (board, rank) = formed.ok_or_else(|| invalid("split", "the group has ended"))?;
        let RankHandle { space, spin, stall, .. } = &*self.handle;
        Ok(Box::new(Shared::new(board, rank, space.clone(), self.kernels.clone(), *spin, *stall)?))
    }

    fn abort(&self, reason: &str) {
        self.handle.abort(self.handle.root, reason);
    }

    fn wire_bytes(&self) -> u64 {
        self.wire.get()
    }
}
