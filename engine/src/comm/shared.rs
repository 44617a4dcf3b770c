//! Ranks that share memory: `local` for threads of a process, `shm` for processes of a host. Each posts where its buffers
//! lie, and reads and writes its peers' memory itself.

use super::board::{Board, Control, EAGER_BYTES, Party};
use super::call::{Call, Kind};
use super::desk::{Desk, Finished, Open, Wait, buffers, by_address, eager_bytes};
use super::moves::{Mover, Posted, Seen, What};
use super::protocol::{LEFT, POSTED};
use super::raw::RawSlice;
use super::space::{Place, Space};
use super::sync::SpinPolicy;
use super::{Abandon, CommError, Communicator, Request, Result, Ticket, cause};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zbench_kernels::Kernels;
use zbench_kernels::cuda::machine::Mark;

/// How long a waiting rank sleeps before it looks whether its peers are alive.
const NAP: Duration = Duration::from_millis(50);

/// One rank of a group that shares memory. All groups split from one group end together.
///
/// Memory that a rank has posted is used by its peers until the call returns, with an error too. While a rank waits in one
/// of a group's calls, the group's started collectives go on.
pub struct Shared {
    chair: Arc<Chair>,
    rank: usize,
    kernels: Arc<dyn Kernels>,
    /// On a device, an order of its own for what moves.
    side: Option<Arc<dyn Kernels>>,
    desk: RefCell<Desk>,
    wire: Cell<u64>,
}

/// A rank's place in the world, shared with its tickets.
pub(crate) struct Chair {
    board: Board,
    space: Arc<Space>,
    /// Its number in the world.
    root: usize,
    spin: SpinPolicy,
    stall: Duration,
}

/// Borrowed memory that peers may use. Unless the call came to its end, dropping it ends the world and waits for those
/// who are inside, when unwinding too.
struct Lent<'a> {
    chair: &'a Chair,
    returned: bool,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if !self.returned {
            self.chair.give_up("it could not finish a collective");
        }
    }
}

impl Chair {
    fn control(&self) -> &Control {
        self.board.control()
    }

    fn root_group(&self) -> String {
        Board::first(self.board.control()).map_or_else(|_| "world".into(), |board| board.name())
    }

    fn end(&self, error: &CommError) {
        self.control().end(&cause::encode(error, &self.root_group(), self.root));
    }

    fn abort(&self, rank: usize, reason: &str) {
        self.end(&CommError::Aborted { group: self.root_group(), rank, reason: reason.to_owned() });
    }

    fn cause(&self) -> Option<CommError> {
        self.control().cause().map(|text| cause::decode(&text))
    }

    /// Ends the world, and returns when nobody touches this rank's memory any more.
    fn give_up(&self, reason: &str) {
        self.abort(self.root, if std::thread::panicking() { "panicked" } else { reason });
        let hall = self.control().hall();
        for rank in (0..hall.seats.len()).filter(|rank| *rank != self.root) {
            // A process that died inside touches nothing any more, and one that was stopped there may never come out: what it
            // then writes spoils numbers of a run that has ended, but no address, since all is mapped. Threads are waited for.
            let begin = Instant::now();
            let bounded = |limit| self.space.is_of_processes() && begin.elapsed() > limit;
            while !hall.outside(rank) && self.space.death(rank).is_none() && !bounded(self.stall) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Rings for the members of a party.
    fn tell(&self, party: Party, members: usize, complete: impl Fn() -> bool) {
        let own = self.root;
        let roots = (0..members).map(|place| self.board.root(party.member(place))).filter(|root| *root != own);
        self.control().hall().tell(roots, complete);
    }
}

impl Abandon for Chair {
    fn abandoned(&self, _sequence: u64) {
        self.give_up("it did not wait for a collective it had started");
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
        let side = kernels.beside()?;
        let chair = Chair { board, space, root, spin, stall };
        Ok(Shared { chair: Arc::new(chair), rank, kernels, side, desk: RefCell::new(Desk::new()), wire: Cell::new(0) })
    }

    /// Where a member's mark of a call is found.
    fn place(&self, party: Party, sequence: u64, place: usize, done: bool) -> Result<Place> {
        let depth = self.board().line(party)?.depth();
        Ok((self.board().offset(), party, sequence % depth, place, done))
    }

    /// The marks of all members of a call.
    fn marks(&self, party: Party, sequence: u64, done: bool) -> Result<Vec<Arc<dyn Mark>>> {
        let Some(marks) = self.chair.space.marks() else { return Ok(Vec::new()) };
        let members = 0..self.board().line(party)?.members();
        let places: Result<Vec<Place>> = members.map(|place| self.place(party, sequence, place, done)).collect();
        Ok(places?.iter().filter_map(|place| marks.get(place)).collect())
    }

    fn board(&self) -> &Board {
        &self.chair.board
    }

    /// Opens a call: the memory in `send` and `recv` must stay until it is finished or given up.
    fn post(&self, party: Party, what: What, send: RawSlice, recv: RawSlice, split: (u64, u64)) -> Result<u64> {
        if let Some(cause) = self.chair.cause() {
            return Err(cause);
        }
        let mut desk = self.desk.borrow_mut();
        let at = desk.numbers.iter().position(|(known, _)| *known == party);
        let at = at.unwrap_or_else(|| {
            desk.numbers.push((party, 0));
            desk.numbers.len() - 1
        });
        let sequence = desk.numbers[at].1;
        self.make_room(&mut desk, party, sequence)?;
        let line = self.board().line(party)?;
        let size = self.board().size();
        let eager = match what {
            What::Call(kind) => eager_bytes(kind, self.rank, size, send, recv),
            What::Split => None,
        };
        let mut bounce = None;
        let (send_spot, recv_spot) = match eager {
            Some(given) => {
                let to = self.board().eager(sequence, self.rank, given)?;
                // SAFETY: the slot is vacant, so nobody reads its eager bytes, and `given` is at most their number (checked).
                unsafe { std::ptr::copy_nonoverlapping(send.ptr.as_ptr(), to.as_ptr(), given) };
                (by_address(send), by_address(recv))
            }
            None => {
                if let (Some(marks), Some(mark)) = (self.chair.space.marks(), self.kernels.mark()?) {
                    marks.put(self.place(party, sequence, party.place(self.rank), false)?, mark);
                }
                let (send, recv, stand_in) = self.chair.space.reachable(send, recv)?;
                bounce = stand_in;
                (send, recv)
            }
        };
        let works = match what {
            What::Split => 2,
            What::Call(Kind::Barrier) => 0,
            What::Call(_) => 1,
        };
        let eager = eager.is_some();
        let (color, key) = split;
        let post = Posted { what, send: send_spot, recv: recv_spot, color, key };
        // SAFETY: `vacant` was seen, and numbers are given once.
        unsafe { line.post(sequence, party.place(self.rank), post) };
        desk.numbers[at].1 += 1;
        desk.open.push(Open { party, sequence, stage: POSTED, last: POSTED + works, eager, what, moved: 0, bounce });
        self.chair.tell(party, line.members(), || line.reached(sequence, POSTED));
        Ok(sequence)
    }

    /// A whole call over borrowed memory.
    fn whole(&self, party: Party, what: What, send: RawSlice, recv: RawSlice, split: (u64, u64)) -> Result<()> {
        let sequence = self.post(party, what, send, recv, split)?;
        let mut lent = Lent { chair: &self.chair, returned: false };
        self.finish(party, sequence)?;
        lent.returned = true;
        Ok(())
    }

    /// Works on all open calls until this one is complete.
    fn finish(&self, party: Party, sequence: u64) -> Result<()> {
        let mut desk = self.desk.borrow_mut();
        let open = desk.open.iter().any(|open| (open.party, open.sequence) == (party, sequence));
        let over = |desk: &Desk| desk.finished.iter().position(|done| (done.party, done.sequence) == (party, sequence));
        if !open && over(&desk).is_none() {
            let reason = format!("number {sequence} is not under way");
            return Err(CommError::Invalid { operation: "wait", reason });
        }
        let mut since = None;
        loop {
            if let Some(at) = over(&desk) {
                let Finished { moved, marks, .. } = desk.finished.swap_remove(at);
                self.wire.set(self.wire.get() + moved);
                // What this rank does from now on with its buffers begins when all have done their part.
                marks.iter().try_for_each(|mark| self.kernels.follow(&**mark))?;
                return Ok(());
            }
            self.go_on_or_rest(&mut desk, &mut since, None, Some((party, sequence)))?;
        }
    }

    /// Works on open calls until the slots for a new one are free.
    fn make_room(&self, desk: &mut Desk, party: Party, sequence: u64) -> Result<()> {
        let line = self.board().line(party)?;
        let mut since = None;
        while !line.vacant(sequence) {
            let earlier = Wait { party, sequence: sequence - line.depth(), stage: LEFT, operation: "a collective" };
            self.go_on_or_rest(desk, &mut since, Some(earlier), None)?;
        }
        Ok(())
    }

    /// Does something, or waits until something can be done: an open call goes on, or `room` has come.
    fn go_on_or_rest(
        &self,
        desk: &mut Desk,
        since: &mut Option<Instant>,
        room: Option<Wait>,
        asked: Option<(Party, u64)>,
    ) -> Result<()> {
        if self.go_on(desk)? {
            *since = None;
            return Ok(());
        }
        self.rest(desk, since, room, asked)
    }

    /// Does one thing that can be done now; false when all calls wait for others.
    fn go_on(&self, desk: &mut Desk) -> Result<bool> {
        for index in 0..desk.open.len() {
            let open = &desk.open[index];
            let (party, sequence, stage) = (open.party, open.sequence, open.stage);
            let line = self.board().line(party)?;
            if !line.reached(sequence, stage) {
                continue;
            }
            if stage == POSTED {
                self.check_agreement(open)?;
            }
            if stage < open.last {
                self.work(desk, index)?;
                let open = &mut desk.open[index];
                open.stage += 1;
                if open.stage < open.last || !open.eager {
                    let stage = open.stage;
                    line.advance(sequence, party.place(self.rank), stage);
                    self.chair.tell(party, line.members(), || line.reached(sequence, stage));
                    return Ok(true);
                }
            }
            let inside =
                matches!(desk.open[index].what, What::Call(kind) if kind != Kind::Barrier) && !desk.open[index].eager;
            let marks = if inside { self.marks(party, sequence, true)? } else { Vec::new() };
            line.advance(sequence, party.place(self.rank), LEFT);
            self.chair.tell(party, line.members(), || line.reached(sequence, LEFT));
            let mut open = desk.open.swap_remove(index);
            if let Some(bounce) = open.bounce.take() {
                bounce.give_back();
            }
            desk.finished.push(Finished { party, sequence, moved: open.moved, marks });
            return Ok(true);
        }
        self.chair.cause().map_or(Ok(false), Err)
    }

    /// Waits for news of the open calls, and for `room`; finds out who will never come.
    fn rest(
        &self,
        desk: &Desk,
        since: &mut Option<Instant>,
        room: Option<Wait>,
        asked: Option<(Party, u64)>,
    ) -> Result<()> {
        let (board, hall) = (self.board(), self.chair.control().hall());
        let reached = |wait: Wait| board.line(wait.party).is_ok_and(|line| line.reached(wait.sequence, wait.stage));
        let news = || hall.has_ended() || desk.waits().chain(room).any(reached);
        let nap = NAP.min(self.chair.stall);
        let Err(waiting) = hall.rest(self.chair.root, self.chair.spin, nap, news) else { return Ok(()) };
        desk.waits().chain(room).for_each(|wait| self.check_presence(wait));
        if since.get_or_insert(waiting).elapsed() < self.chair.stall {
            return Ok(());
        }
        let wanted = |wait: &Wait| asked.is_none_or(|asked| (wait.party, wait.sequence) == asked);
        let Some(wait) = room.or_else(|| desk.waits().find(wanted)) else { return Ok(()) };
        let missing: Vec<usize> = board.missing(wait.party, wait.sequence, wait.stage).collect();
        if !missing.is_empty() {
            let seconds = self.chair.stall.as_secs_f64().ceil() as u64;
            let Wait { sequence, operation, .. } = wait;
            self.chair.end(&CommError::Stalled { group: board.name(), operation, sequence, missing, seconds });
        }
        Ok(())
    }

    fn check_agreement(&self, open: &Open) -> Result<()> {
        let line = self.board().line(open.party)?;
        let (size, own) = (line.members(), open.party.place(self.rank));
        // SAFETY: all have posted (`go_on`), and this rank has not left.
        let posted = |place: usize| unsafe { line.posted(open.sequence, place) };
        let ours = posted(own);
        let Some(place) = (0..size).find(|place| !ours.agrees(&posted(*place), size)) else { return Ok(()) };
        let error = CommError::Mismatch {
            group: self.board().name(),
            sequence: open.sequence,
            rank: open.party.member(place),
            theirs: posted(place).describe(),
            ours: ours.describe(),
        };
        self.chair.abort(self.chair.root, &error.to_string());
        Err(error)
    }

    /// A rank that left and will never come ends the wait for it.
    fn check_presence(&self, wait: Wait) {
        let board = self.board();
        for rank in board.missing(wait.party, wait.sequence, wait.stage) {
            let root = board.root(rank);
            let how = if board.has_left(rank) { Some("it left".to_owned()) } else { self.chair.space.death(root) };
            let Some(how) = how else { continue };
            let Wait { operation, sequence, .. } = wait;
            let reason =
                format!("{how} while others waited for it in {operation} number {sequence} of {}", board.name());
            return self.chair.abort(root, &reason);
        }
    }

    /// The next work of an open call.
    fn work(&self, desk: &mut Desk, index: usize) -> Result<()> {
        let What::Call(kind) = desk.open[index].what else {
            return self.form(desk, index);
        };
        if desk.open[index].eager { self.work_beside(desk, index, kind) } else { self.work_inside(desk, index, kind) }
    }

    /// Work on what others have written beside their posts. It stays until all have left, so a world that ends does not
    /// keep a rank from finishing.
    fn work_beside(&self, desk: &mut Desk, index: usize, kind: Kind) -> Result<()> {
        let (sequence, board) = (desk.open[index].sequence, self.board());
        let line = board.line(Party::All)?;
        desk.seen.clear();
        for rank in 0..line.members() {
            // SAFETY: all have posted (`go_on`), and this rank has not left.
            let post = unsafe { line.posted(sequence, rank) };
            let bytes = post.send.len.saturating_mul(post.send.dtype.size());
            let ptr = board.eager(sequence, rank, bytes)?;
            let send = RawSlice { ptr, len: post.send.len, dtype: post.send.dtype, on_host: true };
            // Its own result goes to an address of this process; others' are none of its business.
            let recv = if rank == self.rank { Space::own(post.recv) } else { RawSlice::empty() };
            desk.seen.push(Seen { send, recv });
        }
        self.move_all(desk, index, self.rank, kind, true, &|| None)
    }

    /// Work on the members' own memory.
    fn work_inside(&self, desk: &mut Desk, index: usize, kind: Kind) -> Result<()> {
        let (chair, hall) = (&*self.chair, self.chair.control().hall());
        let Some(inside) = hall.enter(chair.root) else {
            return Err(chair.cause().unwrap_or_else(|| cause::decode("")));
        };
        let (party, sequence) = (desk.open[index].party, desk.open[index].sequence);
        let line = self.board().line(party)?;
        desk.seen.clear();
        for place in 0..line.members() {
            // SAFETY: all have posted (`go_on`), and this rank has not left.
            let post = unsafe { line.posted(sequence, place) };
            desk.seen.push(chair.space.seen(self.board().root(party.member(place)), &post)?);
        }
        let ended = || if hall.has_ended() { chair.cause() } else { None };
        let result = self.move_in_turn(desk, index, kind, &ended);
        drop(inside);
        result
    }

    /// Moves, on a device behind all that members have asked for before they came, and says when it will be done.
    fn move_in_turn(
        &self,
        desk: &mut Desk,
        index: usize,
        kind: Kind,
        ended: &dyn Fn() -> Option<CommError>,
    ) -> Result<()> {
        let (party, sequence) = (desk.open[index].party, desk.open[index].sequence);
        let place = party.place(self.rank);
        let (Some(marks), Some(side)) = (self.chair.space.marks(), &self.side) else {
            return self.move_all(desk, index, place, kind, false, ended);
        };
        for mark in self.marks(party, sequence, false)? {
            side.follow(&*mark)?;
        }
        self.move_all(desk, index, place, kind, false, ended)?;
        if let Some(mark) = side.mark()? {
            marks.put(self.place(party, sequence, place, true)?, mark);
        }
        Ok(())
    }

    fn move_all(
        &self,
        desk: &mut Desk,
        index: usize,
        rank: usize,
        kind: Kind,
        eager: bool,
        ended: &dyn Fn() -> Option<CommError>,
    ) -> Result<()> {
        let kernels = self.side.as_deref().unwrap_or(&*self.kernels);
        let mut mover = Mover { rank, kernels, scratch: &mut desk.scratch, ended, wire: 0 };
        // SAFETY: all members have posted and agree, each keeps its memory in place until it has seen all at the last stage
        // (or, eager, its slot until all have left) or, giving up, until nobody is inside (`Lent`, `Ticket`).
        let result = unsafe { mover.work(kind, eager, &desk.seen) };
        desk.open[index].moved += mover.wire;
        // What another rank's end has caused is no news.
        if let Err(error @ (CommError::Kernel(_) | CommError::Invalid { .. })) = &result {
            self.chair.abort(self.chair.root, &error.to_string());
        }
        result
    }

    /// Splits: first the lowest rank of each color makes its group's board, then all look it up.
    fn form(&self, desk: &mut Desk, index: usize) -> Result<()> {
        let (sequence, stage) = (desk.open[index].sequence, desk.open[index].stage);
        let line = self.board().line(Party::All)?;
        // SAFETY: all have posted (`go_on`), and this rank has not left.
        let posted = |rank: usize| unsafe { line.posted(sequence, rank) };
        let color = posted(self.rank).color;
        let mut ranks: Vec<usize> = (0..self.board().size()).filter(|rank| posted(*rank).color == color).collect();
        let leader = ranks[0];
        ranks.sort_by_key(|rank| (posted(*rank).key, *rank));
        let note = &line.slot(sequence, leader).note;
        if stage == POSTED {
            if leader == self.rank {
                let roots: Vec<usize> = ranks.iter().map(|rank| self.board().root(*rank)).collect();
                let made = Board::make(self.board().control(), &desk.split_name, &roots);
                let board = made.inspect_err(|error| self.chair.abort(self.chair.root, &error.to_string()))?;
                note.store(board.offset(), std::sync::atomic::Ordering::Release);
            }
            return Ok(());
        }
        let at = note.load(std::sync::atomic::Ordering::Acquire);
        let place = ranks.iter().position(|rank| *rank == self.rank).unwrap_or_default();
        desk.formed = Some((Board::at(self.board().control(), at)?, place));
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let chair = &*self.chair;
        if std::thread::panicking() {
            chair.abort(chair.root, "panicked");
        }
        chair.board.leave(self.rank);
        let hall = chair.control().hall();
        hall.tell((0..hall.seats.len()).filter(|rank| *rank != chair.root), || true);
    }
}

impl Communicator for Shared {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.board().size()
    }

    fn backend(&self) -> &'static str {
        self.chair.space.backend()
    }

    fn algorithm(&self, kind: Kind, bytes: u64) -> &'static str {
        let on_device = self.chair.space.marks().is_some();
        let small = bytes <= EAGER_BYTES as u64 && kind.is_collective() && !on_device;
        if small { "eager" } else { "direct" }
    }

    fn call(&self, call: Call<'_>) -> Result<()> {
        let (rank, size) = (self.rank, self.size());
        call.check(rank, size)?;
        let (send, recv) = buffers(&call, rank, size);
        let no_split = (0, 0);
        match call.kind {
            Kind::Send { to } => {
                self.whole(Party::Pair { from: rank, to }, What::Call(call.kind), send, RawSlice::empty(), no_split)
            }
            Kind::Recv { from } => {
                self.whole(Party::Pair { from, to: rank }, What::Call(call.kind), RawSlice::empty(), recv, no_split)
            }
            Kind::SendRecv { to, from } => {
                let (giving, taking) = (Party::Pair { from: rank, to }, Party::Pair { from, to: rank });
                let given = self.post(giving, What::Call(Kind::Send { to }), send, RawSlice::empty(), no_split)?;
                let mut lent = Lent { chair: &self.chair, returned: false };
                let taken = self.post(taking, What::Call(Kind::Recv { from }), RawSlice::empty(), recv, no_split)?;
                self.finish(taking, taken)?;
                self.finish(giving, given)?;
                lent.returned = true;
                Ok(())
            }
            _ => self.whole(Party::All, What::Call(call.kind), send, recv, no_split),
        }
    }

    fn start(&self, mut request: Request) -> Result<Ticket> {
        let (rank, size) = (self.rank, self.size());
        let call = request.as_call();
        call.check(rank, size)?;
        let (kind, (send, recv)) = (call.kind, buffers(&call, rank, size));
        let sequence = self.post(Party::All, What::Call(kind), send, recv, (0, 0))?;
        Ok(Ticket { sequence, request: Some(request), owner: Some(self.chair.clone()) })
    }

    fn wait(&self, mut ticket: Ticket) -> Result<Request> {
        let invalid = |reason: &str| CommError::Invalid { operation: "wait", reason: reason.into() };
        let own: Arc<dyn Abandon> = self.chair.clone();
        if !ticket.owner.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, &own)) {
            return Err(invalid("the collective was started by another communicator"));
        }
        self.finish(Party::All, ticket.sequence)?;
        ticket.request.take().ok_or_else(|| invalid("the collective was waited for before"))
    }

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        name.clone_into(&mut self.desk.borrow_mut().split_name);
        self.whole(Party::All, What::Split, RawSlice::empty(), RawSlice::empty(), (color as u64, key as u64))?;
        let formed = self.desk.borrow_mut().formed.take();
        let ended = || CommError::Invalid { operation: "split", reason: "the group has ended".into() };
        let (board, rank) = formed.ok_or_else(ended)?;
        let Chair { space, spin, stall, .. } = &*self.chair;
        Ok(Box::new(Shared::new(board, rank, space.clone(), self.kernels.clone(), *spin, *stall)?))
    }

    fn abort(&self, reason: &str) {
        self.chair.abort(self.chair.root, reason);
    }

    fn wire_bytes(&self) -> u64 {
        self.wire.get()
    }
}
