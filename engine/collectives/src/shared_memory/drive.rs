//! How a rank of a world that shares memory goes on with its calls: it posts them, does its pieces of their work when all members
//! have come so far, and waits for those who have not.

// Buffers are lent to peers, which use them until the call has ended.
#![allow(unsafe_code)]

use super::board::{Board, CallGroup, Control};
use super::moves::{BufferRef, Mover, Posted, Seen, What};
use super::pending::{Group, Open, PendingCalls, Tools, Wait};
use super::protocol::{LEFT, POSTED, WorldState};
use super::space::{Place, Space};
use crate::call::Kind;
use crate::progress::Engine;
use crate::raw::RawSlice;
use crate::{CommError, Result, cause};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};
use zbench_kernels::Kernels;
use zbench_kernels::memory::device::Event;
use zbench_kernels::threads::sync::{SpinPolicy, spin_until};

/// How long a waiting rank sleeps before it looks whether its peers are alive.
const NAP: Duration = Duration::from_millis(50);

/// What came of an attempt to go on with a call.
pub(super) enum Step {
    /// Others have not come so far.
    Waits,
    Moved,
    /// It is at its end: behind these marks all members have done their part.
    Ended(Vec<Arc<dyn Event>>),
}

/// A rank's place in the world, the same for all of its groups.
pub(crate) struct RankHandle {
    /// Of the world's first group.
    pub(super) first: Board,
    pub(super) space: Arc<Space>,
    pub(super) root: usize,
    pub(super) spin: SpinPolicy,
    pub(super) stall: Duration,
    pub(super) kernels: Arc<dyn Kernels>,
    /// On a device, an order of its own for what moves.
    pub(super) side: Option<Arc<dyn Kernels>>,
}

impl Engine for RankHandle {
    type State = PendingCalls;

    /// On a device started calls are asked for when the rank is inside a call; the device carries them out.
    fn is_busy(&self, pending: &PendingCalls) -> bool {
        pending.open.iter().any(|open| open.started) && self.goes_on_alone() && !self.world().has_ended()
    }

    fn advance(&self, pending: &mut PendingCalls) -> bool {
        self.progress(pending).unwrap_or_else(|error| {
            self.end(&error);
            pending.failed.get_or_insert(error);
            false
        })
    }

    fn idle(&self, pending: MutexGuard<'_, PendingCalls>) {
        let world = self.world();
        world.nap(self.root, NAP, || {
            let news = world.has_ended() || pending.open.iter().any(Open::can_go_on);
            drop(pending);
            news
        });
    }

    fn wake(&self) {
        self.world().wake_rank(self.root);
    }

    fn panicked(&self) {
        self.abort(self.root, "panicked");
    }
}

/// The end of a world whose writer died in the middle of the cause.
fn unsaid() -> CommError {
    CommError::Aborted { group: cause::WORLD.into(), rank: 0, reason: "ended without saying why".into() }
}

impl RankHandle {
    pub(super) fn goes_on_alone(&self) -> bool {
        self.space.marks().is_none()
    }

    fn control(&self) -> &Control {
        self.first.control()
    }

    pub(super) fn world(&self) -> WorldState<'_> {
        self.control().world()
    }

    pub(super) fn end(&self, error: &CommError) {
        self.control().end(&cause::encode(error, self.root, None));
    }

    pub(super) fn abort(&self, rank: usize, reason: &str) {
        self.end(&CommError::Aborted { group: self.first.name(), rank, reason: reason.to_owned() });
    }

    pub(super) fn cause(&self) -> Option<CommError> {
        self.control().cause().map(|text| cause::decode(text.as_bytes(), self.root, None).unwrap_or_else(unsaid))
    }

    /// Ends the world, and returns when no other rank touches this rank's memory any more. The rank's own thread touches nothing
    /// while the caller holds the state.
    pub(super) fn give_up(&self, reason: &str) {
        self.abort(self.root, if std::thread::panicking() { "panicked" } else { reason });
        let world = self.world();
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

    /// Wakes the members of a call that sleep.
    fn tell(&self, group: &Group, line: CallGroup, members: usize, complete: impl Fn() -> bool) {
        let (own, roots) = (self.root, group.board.roots());
        let roots = (0..members).map(|place| roots[line.member(place)].load(Ordering::Relaxed) as usize);
        self.world().tell(roots.filter(|root| *root != own), complete);
    }

    /// Does one thing that can be done now; false when all calls wait for others.
    pub(super) fn progress(&self, pending: &mut PendingCalls) -> Result<bool> {
        for index in 0..pending.open.len() {
            if self.step(pending, index)? {
                return Ok(true);
            }
        }
        self.cause().map_or(Ok(false), Err)
    }

    /// The next thing of the call at `index`, if all members have come so far.
    pub(super) fn step(&self, pending: &mut PendingCalls, index: usize) -> Result<bool> {
        match self.go_on(&mut pending.open[index], &mut pending.tools)? {
            Step::Waits => return Ok(false),
            Step::Moved => {}
            Step::Ended(marks) => pending.close(index, marks),
        }
        Ok(true)
    }

    /// The next thing of one call.
    pub(super) fn go_on(&self, call: &mut Open, tools: &mut Tools) -> Result<Step> {
        let slots = call.group.board.line(call.line)?;
        let (line, sequence, place) = (call.line, call.sequence, call.line.place(call.group.rank));
        if call.stage == 0 {
            let vacant = slots.vacant(sequence, &mut tools.numbers[call.numbers].left);
            return if vacant { self.post(call).map(|()| Step::Moved) } else { Ok(Step::Waits) };
        }
        let mut agreed = call.agreed;
        let may_work = slots.may_work(sequence, call.stage, &mut agreed, || self.check_agreement(call))?;
        call.agreed = agreed;
        if !may_work {
            return Ok(Step::Waits);
        }
        if call.stage < call.last {
            call.moved += self.work(call, tools)?;
            call.stage += 1;
            if call.stage < call.last || call.eager.is_none() {
                slots.advance(sequence, place, call.stage);
                self.tell(&call.group, line, slots.members(), || slots.reached(sequence, call.stage));
                return Ok(Step::Moved);
            }
        }
        let inside = matches!(call.what, What::Call(kind) if kind != Kind::Barrier) && call.eager.is_none();
        let marks = if inside { self.marks(&call.group, line, sequence, true)? } else { Vec::new() };
        slots.leave(sequence, place);
        self.tell(&call.group, line, slots.members(), || slots.reached(sequence, LEFT));
        Ok(Step::Ended(marks))
    }

    /// Polls for the others a short while; false where they have not come, or the world has ended.
    pub(super) fn others_come(&self, call: &Open) -> bool {
        let (world, policy) = (self.world(), SpinPolicy { yields: 0, ..self.spin });
        spin_until(policy, || call.can_go_on() || world.has_ended()).is_ok() && !world.has_ended()
    }

    /// Posts a call whose slots are free: the memory of its buffers must stay until it is finished or given up.
    fn post(&self, call: &mut Open) -> Result<()> {
        let Open { ref group, line, sequence, what, send, recv, .. } = *call;
        let (slots, place) = (group.board.line(line)?, line.place(group.rank));
        let (send, recv) = match call.eager {
            Some(given) => {
                let to = group.board.eager(sequence, group.rank, given)?;
                // SAFETY: the slot is vacant, so nobody reads its eager bytes, and `given` is at most their number (checked).
                unsafe { std::ptr::copy_nonoverlapping(send.ptr.as_ptr(), to.as_ptr(), given) };
                (BufferRef::by_address(send), BufferRef::by_address(recv))
            }
            None => {
                if let (Some(marks), Some(mark)) = (self.space.marks(), call.before.take()) {
                    marks.put(self.place(group, line, sequence, place, false), mark);
                }
                let (send, recv, stand_in) = self.space.reachable(send, recv)?;
                call.bounce = stand_in;
                (send, recv)
            }
        };
        // The receiver copies, so a sender's own work is none.
        call.stage = if let What::Call(Kind::Send { .. }) = what { call.last } else { POSTED };
        // SAFETY: the slots were seen to be vacant, and numbers are given once.
        unsafe { slots.post(sequence, place, Posted { what, send, recv }, call.stage) };
        self.tell(group, line, slots.members(), || slots.reached(sequence, POSTED));
        Ok(())
    }

    /// Waits for news of the open calls, and finds out who will never come; `asked` is the call that the rank waits for.
    pub(super) fn wait_for_news(&self, pending: &PendingCalls, since: &mut Option<Instant>, asked: u64) {
        let world = self.world();
        let news = || world.has_ended() || pending.open.iter().any(Open::can_go_on);
        let Err(waiting) = world.wait(self.root, self.spin, NAP.min(self.stall), news) else { return };
        pending.waits().for_each(|wait| self.check_presence(wait));
        if since.get_or_insert(waiting).elapsed() < self.stall {
            return;
        }
        let Some(wait) = pending.waits().find(|wait| wait.id == asked) else { return };
        let Wait { group, line, sequence, stage, operation, .. } = wait;
        let missing: Vec<usize> = group.board.missing(line, sequence, stage).collect();
        if !missing.is_empty() {
            let seconds = self.stall.as_secs_f64().ceil() as u64;
            self.end(&CommError::Stalled { group: group.board.name(), operation, sequence, missing, seconds });
        }
    }

    fn check_agreement(&self, open: &Open) -> Result<()> {
        let slots = open.group.board.line(open.line)?;
        let (size, own) = (slots.members(), open.line.place(open.group.rank));
        // SAFETY: all have posted (`go_on`), and this rank has not left.
        let posted = |place: usize| unsafe { slots.posted(open.sequence, place) };
        let ours = posted(own);
        let Some(place) = (0..size).find(|place| !ours.agrees(&posted(*place), size)) else { return Ok(()) };
        let error = CommError::Mismatch {
            group: open.group.board.name(),
            sequence: open.sequence,
            rank: open.line.member(place),
            theirs: posted(place).describe(),
            ours: ours.describe(),
        };
        self.abort(self.root, &error.to_string());
        Err(error)
    }

    /// A rank that left and will never come ends the wait for it.
    fn check_presence(&self, wait: Wait<'_>) {
        let Wait { group: Group { board, .. }, line, sequence, stage, operation, .. } = wait;
        for rank in board.missing(line, sequence, stage) {
            let root = board.root(rank);
            // It may have come and left since it was looked for.
            let left = board.has_left(rank) && board.missing(line, sequence, stage).any(|missing| missing == rank);
            let how = if left { Some("it left".to_owned()) } else { self.space.death(root) };
            let Some(how) = how else { continue };
            let reason =
                format!("{how} while others waited for it in {operation} number {sequence} of {}", board.name());
            return self.abort(root, &reason);
        }
    }

    /// Where a member's mark of a call is found.
    fn place(&self, group: &Group, line: CallGroup, sequence: u64, place: usize, done: bool) -> Place {
        (group.board.offset(), line, sequence % Board::depth(line), place, done)
    }

    fn marks(&self, group: &Group, line: CallGroup, sequence: u64, done: bool) -> Result<Vec<Arc<dyn Event>>> {
        let Some(marks) = self.space.marks() else { return Ok(Vec::new()) };
        let members = 0..group.board.line(line)?.members();
        Ok(members.filter_map(|member| marks.get(&self.place(group, line, sequence, member, done))).collect())
    }

    /// A rank's piece of a call's work. Bytes read from others' memory and written to it.
    fn work(&self, call: &Open, tools: &mut Tools) -> Result<u64> {
        match call.what {
            What::Split(..) => self.form(call, tools).map(|()| 0),
            What::Call(kind) if call.eager.is_some() => self.work_beside(call, tools, kind),
            What::Call(kind) => self.work_inside(call, tools, kind),
        }
    }

    /// Work on what others have written beside their posts. It stays until all have left, so a world that ends does not
    /// keep a rank from finishing.
    fn work_beside(&self, call: &Open, tools: &mut Tools, kind: Kind) -> Result<u64> {
        let (sequence, group) = (call.sequence, &*call.group);
        let slots = group.board.line(CallGroup::All)?;
        tools.seen.clear();
        for rank in 0..slots.members() {
            // SAFETY: all have posted (`go_on`), and this rank has not left.
            let post = unsafe { slots.posted(sequence, rank) };
            let bytes = post.send.len.saturating_mul(post.send.dtype.size());
            let ptr = group.board.eager(sequence, rank, bytes)?;
            let send = RawSlice { ptr, len: post.send.len, dtype: post.send.dtype, on_host: true };
            // Its own result goes to an address of this process; others' are none of its business.
            let recv = if rank == group.rank { Space::own(post.recv) } else { RawSlice::empty() };
            tools.seen.push(Seen { send, recv });
        }
        self.move_all(call, tools, group.rank, kind, &|| None)
    }

    fn work_inside(&self, call: &Open, tools: &mut Tools, kind: Kind) -> Result<u64> {
        let world = self.world();
        let Some(inside) = world.enter(self.root) else {
            return Err(self.cause().unwrap_or_else(unsaid));
        };
        let (group, line, sequence) = (&*call.group, call.line, call.sequence);
        let slots = group.board.line(line)?;
        tools.seen.clear();
        for place in 0..slots.members() {
            // SAFETY: all have posted (`go_on`), and this rank has not left.
            let post = unsafe { slots.posted(sequence, place) };
            tools.seen.push(self.space.seen(group.board.root(line.member(place)), &post)?);
        }
        let ended = || if world.has_ended() { self.cause() } else { None };
        let result = self.move_in_turn(call, tools, kind, &ended);
        drop(inside);
        result
    }

    /// Moves, on a device behind all that members have asked for before they came, and says when it will be done.
    fn move_in_turn(
        &self,
        call: &Open,
        tools: &mut Tools,
        kind: Kind,
        ended: &dyn Fn() -> Option<CommError>,
    ) -> Result<u64> {
        let (group, line, sequence) = (&*call.group, call.line, call.sequence);
        let place = line.place(group.rank);
        let (Some(marks), Some(side)) = (self.space.marks(), &self.side) else {
            return self.move_all(call, tools, place, kind, ended);
        };
        for mark in self.marks(group, line, sequence, false)? {
            side.wait_event(&*mark)?;
        }
        let moved = self.move_all(call, tools, place, kind, ended)?;
        if let Some(mark) = side.record_event()? {
            marks.put(self.place(group, line, sequence, place, true), mark);
        }
        Ok(moved)
    }

    fn move_all(
        &self,
        call: &Open,
        tools: &mut Tools,
        rank: usize,
        kind: Kind,
        ended: &dyn Fn() -> Option<CommError>,
    ) -> Result<u64> {
        let (kernels, eager) = (self.side.as_deref().unwrap_or(&*self.kernels), call.eager.is_some());
        let mut mover = Mover { rank, kernels, scratch: &mut tools.scratch, ended, wire: 0 };
        // SAFETY: all members have posted and agree, each keeps its memory in place until it has seen all at the last stage
        // (or, eager, its slot until all have left) or, giving up, until nobody is inside (`Lent`, `Ticket`).
        let result = unsafe { mover.work(kind, eager, &tools.seen) };
        let moved = mover.wire;
        // What another rank's end has caused is no news.
        if let Err(error @ (CommError::Kernel(_) | CommError::Invalid { .. })) = &result {
            self.abort(self.root, &error.to_string());
        }
        result.map(|()| moved)
    }

    /// Splits: first the lowest rank of each color makes its group's board, then all look it up.
    fn form(&self, call: &Open, tools: &mut Tools) -> Result<()> {
        let (sequence, board, own) = (call.sequence, &call.group.board, call.group.rank);
        let slots = board.line(CallGroup::All)?;
        // SAFETY: all have posted (`go_on`), and this rank has not left.
        let asked = |rank: usize| match unsafe { slots.posted(sequence, rank) }.what {
            What::Split(color, key) => (color, key),
            What::Call(_) => (0, 0), // `check_agreement` has refused it
        };
        let (color, _) = asked(own);
        let mut ranks: Vec<usize> = (0..board.size()).filter(|rank| asked(*rank).0 == color).collect();
        let leader = ranks[0];
        ranks.sort_by_key(|rank| (asked(*rank).1, *rank));
        let note = &slots.slot(sequence, leader).note;
        if call.stage == POSTED {
            if leader == own {
                let roots: Vec<usize> = ranks.iter().map(|rank| board.root(*rank)).collect();
                let made = Board::make(board.control(), &tools.split_name, &roots);
                let made = made.inspect_err(|error| self.abort(self.root, &error.to_string()))?;
                note.store(made.offset(), Ordering::Release);
            }
            return Ok(());
        }
        let at = note.load(Ordering::Acquire);
        let place = ranks.iter().position(|rank| *rank == own).unwrap_or_default();
        tools.formed = Some((Board::at(board.control(), at)?, place));
        Ok(())
    }
}
