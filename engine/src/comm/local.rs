//! Ranks as threads of one process: each posts where its buffers lie, and reads its peers' memory itself.

use super::moves::{Kind, Mover, Posted, Raw, SCRATCH_WORDS};
use super::protocol::{Turn, World};
use super::slots::{Call, Line, POSTED, Seat};
use super::sync::Arc;
use super::{Abandon, Call as Asked, CommError, Communicator, Request, Result, Ticket};
use std::cell::{Cell, RefCell};
use std::time::Duration;
use zbench_kernels::{Buffer, Kernels, ViewMut};

/// One rank of a group of threads. All groups split from one group end together.
///
/// Memory that a rank has posted is read by its peers until the call returns, with an error too. While a rank waits in one
/// of a group's calls, the group's started collectives go on.
pub struct Local {
    chair: Arc<Chair>,
    size: usize,
    kernels: Arc<dyn Kernels>,
    desk: RefCell<Desk>,
    wire: Cell<u64>,
}

/// A rank's place in the world, shared with its tickets.
struct Chair {
    world: Arc<World<Posted>>,
    seat: Seat,
}

/// What a rank works with; everything is used again from call to call.
struct Desk {
    /// Calls under way, and what they have moved so far.
    open: Vec<Call>,
    moved: Vec<u64>,
    /// Started collectives that came to their end while the rank waited for another: number and bytes moved.
    finished: Vec<(u64, u64)>,
    /// The members' posts of the call being worked on.
    posts: Vec<Posted>,
    scratch: Box<[u64]>,
    /// The name that the split under way gives, and what it has made.
    split_name: String,
    formed: Option<Formed>,
}

struct Formed {
    group: u64,
    rank: usize,
    size: usize,
}

/// A group of as many ranks as there are `kernels`. A rank that waits longer than `stall` for others ends the group.
pub fn group(name: &str, kernels: Vec<std::sync::Arc<dyn Kernels>>, stall: Duration) -> Vec<Local> {
    let size = kernels.len();
    let world = Arc::new(World::new(name, size, stall));
    let seats = kernels.into_iter().enumerate();
    seats.map(|(rank, kernels)| Local::new(world.clone(), Seat { group: 0, rank }, size, kernels)).collect()
}

/// Borrowed memory that peers may read. Unless the call came to its end, dropping it ends the world and waits for the
/// readers, when unwinding too.
struct Lent<'a> {
    chair: &'a Chair,
    line: Line,
    sequence: u64,
    returned: bool,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if !self.returned {
            self.chair.give_up(self.line, self.sequence, "it could not finish a collective");
        }
    }
}

impl Chair {
    fn give_up(&self, line: Line, sequence: u64, reason: &str) {
        let reason = if std::thread::panicking() { "panicked" } else { reason };
        self.world.withdraw(self.seat, line, sequence, reason);
    }
}

impl Abandon for Chair {
    fn abandoned(&self, sequence: u64) {
        self.give_up(Line::All, sequence, "it did not wait for a collective it had started");
    }
}

impl Local {
    fn new(world: Arc<World<Posted>>, seat: Seat, size: usize, kernels: Arc<dyn Kernels>) -> Local {
        let desk = Desk {
            open: Vec::new(),
            moved: Vec::new(),
            finished: Vec::new(),
            posts: Vec::with_capacity(size),
            scratch: vec![0; SCRATCH_WORDS].into(),
            split_name: String::new(),
            formed: None,
        };
        Local { chair: Arc::new(Chair { world, seat }), size, kernels, desk: RefCell::new(desk), wire: Cell::new(0) }
    }

    /// Opens a call: the memory in `post` must stay until it is finished or given up.
    fn post(&self, line: Line, post: Posted) -> Result<u64> {
        let sequence = self.chair.world.post(self.chair.seat, line, post)?;
        let mut desk = self.desk.borrow_mut();
        desk.open.push(Call { line, sequence, stage: POSTED, last: post.kind.last_stage() });
        desk.moved.push(0);
        Ok(sequence)
    }

    /// A whole call over borrowed memory.
    fn whole(&self, line: Line, post: Posted) -> Result<()> {
        let sequence = self.post(line, post)?;
        let mut lent = Lent { chair: &self.chair, line, sequence, returned: false };
        self.finish(line, sequence)?;
        lent.returned = true;
        Ok(())
    }

    /// Works on all open calls until this one is complete.
    fn finish(&self, line: Line, sequence: u64) -> Result<()> {
        let mut desk = self.desk.borrow_mut();
        let desk = &mut *desk;
        if let Some(index) = desk.finished.iter().position(|(number, _)| line == Line::All && *number == sequence) {
            self.wire.set(self.wire.get() + desk.finished.swap_remove(index).1);
            return Ok(());
        }
        loop {
            let asked = desk.open.iter().position(|call| (call.line, call.sequence) == (line, sequence));
            let unknown =
                || CommError::Invalid { operation: "wait", reason: format!("number {sequence} is not under way") };
            let asked = asked.ok_or_else(unknown)?;
            let (index, reading) = match self.chair.world.turn(self.chair.seat, &desk.open, asked, &mut desk.posts)? {
                Turn::Work(index, reading) => (index, reading),
                Turn::Done(index) => {
                    let call = desk.open.swap_remove(index);
                    let moved = desk.moved.swap_remove(index);
                    if index != asked {
                        desk.finished.push((call.sequence, moved));
                        continue;
                    }
                    self.wire.set(self.wire.get() + moved);
                    return Ok(());
                }
            };
            if let Err(error) = self.work(index, desk) {
                drop(reading);
                self.chair.world.abort(self.chair.seat, &error.to_string());
                return Err(error);
            }
            reading.finish();
            desk.open[index].stage += 1;
        }
    }

    /// The next work of an open call, whose members' posts are on the desk.
    fn work(&self, index: usize, desk: &mut Desk) -> Result<()> {
        let world = &self.chair.world;
        let call = desk.open[index];
        let place = match call.line {
            Line::All => self.chair.seat.rank,
            Line::Pair { from, .. } => usize::from(self.chair.seat.rank != from),
        };
        if desk.posts[place].kind == Kind::Split {
            desk.formed = self.form(&call, &desk.posts, &desk.split_name);
            return Ok(());
        }
        let ended = || if world.has_ended() { world.cause() } else { None };
        let (kernels, scratch) = (&*self.kernels, &mut *desk.scratch);
        let mut mover = Mover { rank: place, kernels, scratch, ended: &ended, wire: 0 };
        // SAFETY: `turn` gave this work (the guard lives in `finish`): the posts agree, all members have reached this stage,
        // and each keeps its memory in place until the last stage or, giving up, until no guard is left (`Lent`, `Ticket`).
        let result = unsafe { mover.work(call.line, call.stage, &desk.posts) };
        desk.moved[index] += mover.wire;
        result
    }

    /// Finds this rank's new group from what all ranks gave to `split`, and its place in it.
    fn form(&self, call: &Call, posts: &[Posted], name: &str) -> Option<Formed> {
        let own = self.chair.seat.rank;
        let color = posts[own].color;
        let mut ranks: Vec<usize> = (0..posts.len()).filter(|rank| posts[*rank].color == color).collect();
        ranks.sort_by_key(|rank| (posts[*rank].key, *rank));
        let rank = ranks.iter().position(|rank| *rank == own)?;
        let group = self.chair.world.form(self.chair.seat, call, color, name, &ranks)?;
        Some(Formed { group, rank, size: ranks.len() })
    }

    fn pair(&self, operation: &'static str, from: usize, to: usize) -> Result<Line> {
        let peer = if operation == "send" { to } else { from };
        let _ = (operation, peer);
        Ok(Line::Pair { from, to })
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let Chair { world, seat } = &*self.chair;
        if std::thread::panicking() {
            world.abort(*seat, "panicked");
        }
        world.depart(*seat);
    }
}

/// A buffer that is both what is sent and what is received.
fn both(kind: Kind, buffer: &ViewMut<'_>) -> Posted {
    Posted::new(kind, Raw::of_mut(buffer), Raw::of_mut(buffer))
}

/// What a started collective posts. The buffers stay in the ticket, and their memory in its place.
fn posted(request: &mut Request) -> Posted {
    let of = |buffer: &Buffer| Raw::of(buffer.view());
    let of_mut = |buffer: &mut Buffer| Raw::of_mut(&buffer.view_mut());
    match request {
        Request::AllGather { send, recv } => Posted::new(Kind::AllGather, of(send), of_mut(recv)),
        Request::ReduceScatter { send, recv, accumulate } => {
            Posted::new(Kind::ReduceScatter { accumulate: *accumulate }, of(send), of_mut(recv))
        }
        Request::AllReduce { buffer } => both(Kind::AllReduce, &buffer.view_mut()),
    }
}

impl Communicator for Local {
    fn rank(&self) -> usize {
        self.chair.seat.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn backend(&self) -> &'static str {
        "local"
    }

    fn call(&self, call: Asked<'_>) -> Result<()> {
        call.check(self.rank(), self.size)?;
        let unsupported = || CommError::Invalid { operation: call.kind.name(), reason: "not yet".into() };
        let (rank, size) = (self.rank(), self.size);
        let send = call.send.map(Raw::of);
        let recv = call.recv.as_ref().map(Raw::of_mut);
        let none = Raw::none();
        let (line, kind, send, recv) = match (call.kind, send, recv) {
            (super::Kind::AllReduce { .. }, None, Some(b)) => (Line::All, Kind::AllReduce, b, b),
            (super::Kind::ReduceScatter { accumulate, .. }, Some(s), Some(r)) => {
                (Line::All, Kind::ReduceScatter { accumulate }, s, r)
            }
            (super::Kind::ReduceScatter { .. }, None, Some(b)) => {
                (Line::All, Kind::ReduceScatter { accumulate: false }, b, b.part(rank, size))
            }
            (super::Kind::AllGather, Some(s), Some(r)) => (Line::All, Kind::AllGather, s, r),
            (super::Kind::AllGather, None, Some(b)) => (Line::All, Kind::AllGather, b.part(rank, size), b),
            (super::Kind::Broadcast { root }, None, Some(b)) => (Line::All, Kind::Broadcast { root }, b, b),
            (super::Kind::AllToAll, Some(s), Some(r)) => (Line::All, Kind::AllToAll, s, r),
            (super::Kind::Send { to }, Some(s), _) => (self.pair("send", rank, to)?, Kind::Send, s, none),
            (super::Kind::Recv { from }, _, Some(r)) => (self.pair("recv", from, rank)?, Kind::Recv, none, r),
            (super::Kind::Barrier, ..) => (Line::All, Kind::Barrier, none, none),
            _ => return Err(unsupported()),
        };
        self.whole(line, Posted::new(kind, send, recv))
    }

    fn start(&self, mut request: Request) -> Result<Ticket> {
        request.as_call().check(self.rank(), self.size)?;
        let sequence = self.post(Line::All, posted(&mut request))?;
        Ok(Ticket { sequence, request: Some(request), owner: Some(self.chair.clone()) })
    }

    fn wait(&self, mut ticket: Ticket) -> Result<Request> {
        let invalid = |reason: &str| CommError::Invalid { operation: "wait", reason: reason.into() };
        let own: Arc<dyn Abandon> = self.chair.clone();
        if !ticket.owner.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, &own)) {
            return Err(invalid("the collective was started by another communicator"));
        }
        self.finish(Line::All, ticket.sequence)?;
        ticket.request.take().ok_or_else(|| invalid("the collective was waited for before"))
    }

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        name.clone_into(&mut self.desk.borrow_mut().split_name);
        let none = Raw::none();
        self.whole(Line::All, Posted { kind: Kind::Split, send: none, recv: none, color, key })?;
        let formed = self.desk.borrow_mut().formed.take();
        let ended = || CommError::Invalid { operation: "split", reason: "the group has ended".into() };
        let Formed { group, rank, size } = formed.ok_or_else(ended)?;
        let world = self.chair.world.clone();
        Ok(Box::new(Local::new(world, Seat { group, rank }, size, self.kernels.clone())))
    }

    fn abort(&self, reason: &str) {
        self.chair.world.abort(self.chair.seat, reason);
    }

    fn wire_bytes(&self) -> u64 {
        self.wire.get()
    }
}
