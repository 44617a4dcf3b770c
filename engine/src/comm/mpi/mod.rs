//! Ranks as MPI processes: `mpirun -n 4 zbench ...`, over any MPI 3 library (tried: Open MPI, MPICH).
//!
//! MPI carries out what it has a type and an operation for (*native*). What it lacks (bf16, f16, sums into another type or onto
//! what is there, averages of integers) is *staged*: every rank gets its part of all summands, joins them with our kernels
//! as the balanced tree in rank order, and passes the result on. So staged results are the same bits as on any other
//! backend, and native floats are in whatever order the library adds.
//!
//! Every call is a nonblocking one that is tested until it is complete, because a blocking MPI call cannot time out. When a rank
//! has waited for the stall limit it tells all others what it waits in, and learns from their answers who did not come
//! (`inquiry.rs`). MPI does not check that ranks call the same: lengths that differ may end as a truncation error, as a stall or
//! not be noticed; `Mismatch` is what the answers to a stall show.
//!
//! MPI counts with `int`: longer buffers go in pieces. What MPI sends it does not tell: [`Communicator::wire_bytes`] counts what
//! a ring would receive on this rank, `(n-1)/n` of the buffer per pass (two passes for all-reduce, and for reduce on the root).
//!
//! A group ends for itself: groups split from it, or that it was split from, hear of it when they wait for a rank that has gone.
//! After an error other than `Invalid` the group makes no progress any more, and neither do the peers that heard of it; but MPI
//! cannot take its hands off buffers of a collective that is under way. End the process soon.

mod flight;
mod inquiry;
mod native;
mod world;

use super::{
    Abandon, Call, CommError, Communicator, Kind, Member, OwnedCall, ReduceOp, Result, Ticket, invalid, why_abandoned,
};
use flight::{Flight, Tags};
use inquiry::Answer;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use world::World;
use zbench_kernels::{DType, Kernels, View, ViewMut};

/// How the backend works; [`mpi`] takes the usual ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A rank that waits longer for others ends the group.
    pub stall: Duration,
    /// Most elements in one MPI call; longer buffers go in pieces. At most `i32::MAX`; less is for tests.
    pub largest_count: usize,
    /// Use MPI_IN_PLACE where the library's is known; else a call in place makes a copy first.
    pub in_place: bool,
}

impl Settings {
    pub fn new(stall: Duration) -> Settings {
        Settings { stall, largest_count: i32::MAX as usize, in_place: true }
    }
}

/// One rank of an MPI group. The last one of a process to be dropped finalizes MPI, unless its group has failed.
pub struct Mpi {
    group: Arc<Group>,
}

/// What a rank shares with its tickets.
struct Group {
    world: Arc<World>,
    comm: world::Comm,
    name: String,
    rank: usize,
    size: usize,
    kernels: Arc<dyn Kernels>,
    settings: Settings,
    state: Mutex<State>,
}

struct State {
    /// Calls so far, and among them collectives and exchanges of two.
    calls: u64,
    collectives: u64,
    exchanges: u64,
    open: Vec<Flight>,
    wire: u64,
    failed: Option<CommError>,
    /// When this rank last came to the end of a call.
    last: Instant,
}

/// Waits this short a time without giving the core away, if there is one for every rank.
const SPIN: Duration = Duration::from_millis(1);
/// From here on a waiting rank sleeps between two looks.
const NAP_AFTER: Duration = Duration::from_millis(20);
const NAP: Duration = Duration::from_micros(100);
/// How often a waiting rank looks whether another one has given up.
const LISTEN: Duration = Duration::from_millis(10);

/// Starts MPI and gives this process's rank of all that `mpirun` started. Once per process.
///
/// # Errors
/// [`CommError::Invalid`] when MPI has been started before.
pub fn mpi(kernels: Arc<dyn Kernels>, stall: Duration) -> Result<Mpi> {
    mpi_with(kernels, Settings::new(stall))
}

/// As [`mpi`] with other settings.
///
/// # Errors
/// [`CommError::Invalid`] when MPI has been started before, or for settings that cannot be.
pub fn mpi_with(kernels: Arc<dyn Kernels>, settings: Settings) -> Result<Mpi> {
    if settings.largest_count == 0 || settings.largest_count > i32::MAX as usize {
        let reason = format!("largest_count is {}; it has to be 1 to {}", settings.largest_count, i32::MAX);
        return Err(CommError::Invalid { operation: "mpi", reason });
    }
    let world = Arc::new(World::new()?);
    let comm = world.all();
    Mpi::new(world, comm, "world".to_owned(), kernels, settings)
}

impl Mpi {
    fn new(
        world: Arc<World>,
        comm: world::Comm,
        name: String,
        kernels: Arc<dyn Kernels>,
        settings: Settings,
    ) -> Result<Mpi> {
        let (rank, size) = world.place(&comm)?;
        let last = Instant::now();
        let state = State { calls: 0, collectives: 0, exchanges: 0, open: Vec::new(), wire: 0, failed: None, last };
        let group = Group { world, comm, name, rank, size, kernels, settings, state: Mutex::new(state) };
        Ok(Mpi { group: Arc::new(group) })
    }

    /// The library's own words about its name and version.
    pub fn library(&self) -> &str {
        &self.group.world.library
    }

    pub fn host(&self) -> &str {
        &self.group.world.host
    }
}

impl Group {
    fn state(&self) -> MutexGuard<'_, State> {
        // What is behind the lock stays whole: a panic inside ends the process's group anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, call: &mut Call<'_>) -> Result<u64> {
        call.check(self.rank, self.size)?;
        self.world.check_thread(call.kind.name())?;
        let mut state = self.state();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        if state.open.len() >= Tags::IN_FLIGHT {
            let reason = format!("{} collectives are under way; wait for some of them first", Tags::IN_FLIGHT);
            return Err(CommError::Invalid { operation: call.kind.name(), reason });
        }
        let (id, collective) = (state.calls, call.kind.is_collective());
        let number = if collective { state.collectives } else { state.exchanges };
        let mut flight = Flight::new(id, number, call, self.size);
        // A rank that has been away for long may come to a group that has given it up: its peers' buffers are not there any more.
        if state.last.elapsed() > self.settings.stall / 2 && self.heard() {
            return Err(self.inquire(&mut state, &flight, true));
        }
        state.calls += 1;
        *(if collective { &mut state.collectives } else { &mut state.exchanges }) += 1;
        let posted = {
            let _mpi = self.world.lock();
            if flight::staged::wanted(self, call) {
                flight::staged::post(self, &mut flight, call)
            } else {
                native::post(self, &mut flight, call)
            }
        };
        state.open.push(flight);
        posted.map_err(|error| self.fail(&mut state, error))?;
        Ok(id)
    }

    /// Works on all open calls until this one is complete.
    fn finish(&self, id: u64) -> Result<()> {
        let begin = Instant::now();
        let mut listened = begin;
        loop {
            let mut state = self.state();
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            let Some(asked) = state.open.iter().position(|flight| flight.id == id) else {
                return Err(invalid("wait", format!("call {id} is not under way")));
            };
            self.advance(&mut state)?;
            if state.open[asked].done {
                let flight = state.open.swap_remove(asked);
                state.wire += flight.wire;
                state.last = Instant::now();
                return Ok(());
            }
            let now = Instant::now();
            let waited = now - begin;
            let listen = now - listened >= LISTEN;
            if waited > self.settings.stall || listen && self.heard() {
                let flight = state.open.swap_remove(asked);
                let error = self.inquire(&mut state, &flight, false);
                std::mem::forget(flight); // MPI may still use its staging.
                return Err(error);
            }
            if listen {
                listened = now;
            }
            drop(state);
            self.pause(waited);
        }
    }

    /// Moves every open call forward as far as it goes by itself.
    fn advance(&self, state: &mut State) -> Result<()> {
        let moved = {
            let _mpi = self.world.lock();
            state.open.iter_mut().try_for_each(|flight| flight.advance(self))
        };
        moved.map_err(|error| self.fail(state, error))
    }

    fn pause(&self, waited: Duration) {
        if waited < SPIN && !self.world.crowded {
            std::hint::spin_loop();
        } else if waited < NAP_AFTER {
            std::thread::yield_now();
        } else {
            std::thread::sleep(NAP);
        }
    }

    /// Ends the group on this rank with the cause, and tells the others.
    fn fail(&self, state: &mut State, error: CommError) -> CommError {
        self.tell(&Answer::failed(state.collectives, &error.to_string()));
        self.close(state, error)
    }

    /// Every later call gets this error. What MPI still uses is never freed.
    fn close(&self, state: &mut State, error: CommError) -> CommError {
        std::mem::forget(std::mem::take(&mut state.open));
        state.failed = Some(error.clone());
        self.world.has_failed();
        error
    }

    fn abort(&self, reason: &str) -> ! {
        let (rank, size, name, host) = (self.rank, self.size, &self.name, &self.world.host);
        self.world.abort(&format!("zbench: rank {rank} of {size} of {name} on {host} ends the run: {reason}"))
    }
}

impl Abandon for Group {
    /// MPI cannot take a collective back, so the run ends here.
    fn abandoned(&self, _id: u64) {
        let failed = self.state().failed.is_some();
        if !failed {
            self.abort(why_abandoned());
        }
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if std::thread::panicking() && self.group.size > 1 {
            self.group.abort("panicked");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.state().failed.is_none() {
            self.world.free(&self.comm);
        }
    }
}

impl Communicator for Mpi {
    fn member(&self) -> Member {
        Member { rank: self.group.rank, size: self.group.size, backend: "mpi" }
    }

    fn call(&self, mut call: Call<'_>) -> Result<()> {
        let sequence = self.group.begin(&mut call)?;
        self.group.finish(sequence)
    }

    fn start(&self, mut request: OwnedCall) -> Result<Ticket> {
        let sequence = match self.group.begin(&mut request.as_call()) {
            Ok(sequence) => sequence,
            Err(error) => {
                if !matches!(error, CommError::Invalid { .. }) {
                    std::mem::forget(request); // MPI may still write there.
                }
                return Err(error);
            }
        };
        Ok(Ticket::of(self.group.clone(), sequence, request))
    }

    fn wait(&self, mut ticket: Ticket) -> Result<OwnedCall> {
        ticket.check_owner(&self.group)?;
        let request = ticket.take()?;
        match self.group.finish(ticket.sequence) {
            Ok(()) => Ok(request),
            Err(error) => {
                std::mem::forget(request); // MPI may still write there.
                Err(error)
            }
        }
    }

    /// Colors and keys travel first, as a collective that can time out; MPI's own split is called when all ranks are there.
    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        let Group { world, rank, size, kernels, settings, .. } = &*self.group;
        // As pairs of u32, since no integers of 64 bits travel.
        let halves = |number: usize| [(number as u64 >> 32) as u32, number as u32];
        let own = [halves(color), halves(key)].concat();
        let mut all = vec![0u32; 4 * size];
        self.call(Call::new(Kind::AllGather, View::of(&own), ViewMut::of(&mut all)))?;
        let number = |at: &[u32]| u64::from(at[0]) << 32 | u64::from(at[1]);
        let asked: Vec<(u64, u64)> = all.chunks(4).map(|four| (number(&four[..2]), number(&four[2..]))).collect();
        let mut order: Vec<usize> = (0..*size).collect();
        order.sort_by_key(|other| (asked[*other].1, *other));
        let dense_key = order.iter().position(|other| other == rank).unwrap_or(0);
        let dense_color = asked.iter().position(|(other, _)| *other == color as u64).unwrap_or(0);
        let comm = world.split(&self.group.comm, dense_color, dense_key);
        let comm = comm.map_err(|error| self.group.fail(&mut self.group.state(), error))?;
        Ok(Box::new(Mpi::new(world.clone(), comm, name.to_owned(), kernels.clone(), *settings)?))
    }

    /// Prints the reason and ends all processes of the run: MPI has no way to tell them.
    fn abort(&self, reason: &str) {
        self.group.abort(reason);
    }

    fn wire_bytes(&self) -> u64 {
        self.group.state().wire
    }

    fn algorithm(&self, kind: Kind, _bytes: u64) -> &'static str {
        if kind.op().is_some() { "library, or staged" } else { "library" }
    }
}

/// Whether MPI can combine elements of a type, and gives what we promise: integers that wrap. Open MPI's vector code for 8 bits
/// saturates instead (4.1.4 did, for sums).
fn combines(op: ReduceOp, dtype: DType) -> bool {
    match dtype {
        DType::F64 | DType::F32 => true,
        DType::I32 | DType::U32 => op != ReduceOp::Avg,
        DType::I8 => matches!(op, ReduceOp::Min | ReduceOp::Max),
        DType::Bf16 | DType::F16 => false,
    }
}
