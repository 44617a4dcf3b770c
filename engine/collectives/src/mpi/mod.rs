//! Ranks as MPI processes: `mpirun -n 4 zbench ...`, over any MPI 3 library (tried: Open MPI, MPICH).
//!
//! MPI carries out what it has a type and an operation for (*native*). What it lacks (bf16, f16, sums into another type or onto
//! what is there, averages of integers) is *staged*: every rank gets its part of all summands, joins them with our kernels
//! as the balanced tree in rank order, and passes the result on. So staged results are the same bits as on any other
//! backend, and native floats are in whatever order the library adds.
//!
//! Every call is a nonblocking one that is tested until it is complete, because a blocking MPI call cannot time out. The calls under
//! way of all groups of a process are one list (`flights.rs`), and the lock of this list is held by whoever calls MPI. A rank that is
//! inside a call works on the whole list. From the first [`Communicator::start`] on a thread does so while the rank computes
//! (`../progress.rs`), if MPI gave `MPI_THREAD_SERIALIZED` or better. If it gave less there is no thread: a started call then goes on
//! while its rank is inside a call of any group. MPI wakes nobody when a message comes, so the thread sleeps for 100 us between two
//! looks, and for 1 ms when nothing has been complete for 30 ms. It ends before MPI is finalized.
//!
//! A started send needs nothing from its receiver but a receive that matches: sends and receives are matched by peer, group and order.
//! At most 4096 calls of a group are under way at a time.
//!
//! When a rank has waited for the stall limit it tells all others what it waits in, and learns from their answers who did not come
//! (`inquiry.rs`); calls of other groups go on meanwhile. MPI does not check that ranks call the same: lengths that differ may end
//! as a truncation error, as a stall or not be noticed; `Mismatch` is what the answers to a stall show.
//!
//! MPI counts with `int`: longer buffers go in pieces. What MPI sends it does not tell: [`Communicator::wire_bytes`] counts what
//! a ring would receive on this rank, `(n-1)/n` of the buffer per pass (two passes for all-reduce, and for reduce on the root).
//!
//! A group ends for itself: its calls under way fail, and groups split from it, or that it was split from, hear of it when they wait
//! for a rank that has gone. After an error other than `Invalid` the group makes no progress any more, and neither do the peers that
//! heard of it; but MPI cannot take its hands off buffers of a collective that is under way. Buffers of started calls are never freed
//! then. A blocking call gives its buffers back with the error. So after it no group of the process may call MPI any more, and after any
//! failure the thread stops: other groups go on inside their calls only. End the process soon.

mod flight;
mod flights;
mod group;
mod inquiry;
mod native;
mod world;

use super::progress::{Driver, Engine, Inside};
use super::{
    Abandon, Call, CommError, Communicator, Kind, Member, OwnedCall, ReduceOp, Result, Ticket, invalid, why_abandoned,
};
use flight::{Flight, Tags};
use flights::Flights;
use group::Group;
use inquiry::Inquiry;
use std::sync::Arc;
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
    /// Carry on what was started while the rank computes, if MPI allows it; else started calls go on inside other calls.
    pub thread: bool,
}

impl Settings {
    pub fn new(stall: Duration) -> Settings {
        Settings { stall, largest_count: i32::MAX as usize, in_place: true, thread: true }
    }
}

/// One rank of an MPI group. The last one of a process to be dropped finalizes MPI, unless its group has failed.
pub struct Mpi {
    owner: Arc<Owner>,
}

/// What a rank shares with its tickets.
struct Owner {
    /// The last owner ends its thread, and then MPI.
    process: Arc<Driver<World>>,
    group: Arc<Group>,
}

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
    let world = World::new()?;
    let group = Group::new(&world, world.all(), "world".to_owned(), kernels, settings)?;
    let process = Arc::new(Driver::new(world, Flights::new()));
    Ok(Mpi::new(process, group))
}

impl Mpi {
    fn new(process: Arc<Driver<World>>, group: Group) -> Mpi {
        Mpi { owner: Arc::new(Owner { process, group: Arc::new(group) }) }
    }

    /// The library's own words about its name and version.
    pub fn library(&self) -> &str {
        &self.owner.world().library
    }

    pub fn host(&self) -> &str {
        &self.owner.world().host
    }
}

impl Owner {
    fn world(&self) -> &World {
        self.process.engine()
    }

    /// The calls of the process, for a rank that comes to a call which this rank and thread may make.
    fn enter(&self, call: &Call<'_>) -> Result<Inside<'_, World>> {
        call.check(self.group.rank, self.group.size)?;
        self.world().check_thread(call.kind.name())?;
        Ok(self.process.enter())
    }

    /// The group's error, or why no group of the process may call MPI any more.
    fn check_usable(&self) -> Result<()> {
        let Group { name, rank, .. } = &*self.group;
        match self.group.failure() {
            Some(error) => Err(error),
            None if self.world().forbids_calls() => {
                let reason =
                    "a blocking call of another group failed, and MPI may still write to its buffers; end the process";
                Err(CommError::Aborted { group: name.clone(), rank: *rank, reason: reason.into() })
            }
            None => Ok(()),
        }
    }

    fn begin(&self, flights: &mut Inside<'_, World>, call: &mut Call<'_>) -> Result<u64> {
        let group = &self.group;
        self.check_usable()?;
        if flights.of(group) >= Tags::IN_FLIGHT {
            let reason =
                format!("{} calls of {} are under way; wait for some of them first", Tags::IN_FLIGHT, group.name);
            return Err(CommError::Invalid { operation: call.kind.name(), reason });
        }
        let number = group.state().number(call.kind);
        let mut flight = Flight::new(number, call, group.size);
        // A rank that has been away for long may come to a group that has given it up: its peers' buffers are not there any more.
        if group.was_away() && group.heard() {
            return Err(self.give_up(flights, flight, true));
        }
        let posted = if flight::staged::wanted(group, call) {
            flight::staged::post(group, &mut flight, call)
        } else {
            native::post(group, &mut flight, call)
        };
        let id = flights.add(group, flight);
        posted.map_err(|error| self.world().fail(flights, group, error))?;
        Ok(id)
    }

    /// Works on all calls of the process until this one is complete.
    fn finish(&self, flights: &mut Inside<'_, World>, id: u64) -> Result<()> {
        let group = &self.group;
        let begin = Instant::now();
        let mut listened = begin;
        loop {
            self.check_usable()?;
            self.world().advance(flights);
            let Some(flight) = flights.get(id) else {
                let unknown = || invalid("wait", format!("call {id} is not under way"));
                return Err(group.failure().unwrap_or_else(unknown));
            };
            if flight.done {
                let mut state = group.state();
                state.wire += flight.wire;
                state.last = Instant::now();
                flights.remove(id);
                return Ok(());
            }
            let now = Instant::now();
            let waited = now - begin;
            let listen = now - listened >= LISTEN;
            if (waited > group.settings.stall || listen && group.heard())
                && let Some(flight) = flights.remove(id)
            {
                return Err(self.give_up(flights, flight, false));
            }
            if listen {
                listened = now;
            }
            flights.unlocked(|| self.world().pause(waited));
        }
    }

    /// Gives up in a call: tells the others of the group, hears them, and ends the group with what is known. `late` is a rank that
    /// comes when the others have given up. Calls of other groups go on meanwhile.
    fn give_up(&self, flights: &mut Inside<'_, World>, flight: Flight, late: bool) -> CommError {
        let (group, world) = (&*self.group, self.world());
        let mut inquiry = Inquiry::begin(group, &flight, late);
        // Before others have the lock: the group is at its end, whatever its ranks answer.
        world.close(flights, group, inquiry.conclude());
        let begin = Instant::now();
        while !inquiry.is_complete() && begin.elapsed() < inquiry.patience() {
            if !inquiry.listen() {
                world.advance(flights);
                flights.unlocked(|| std::thread::sleep(Duration::from_millis(1)));
            }
        }
        let error = inquiry.conclude();
        std::mem::forget(flight); // MPI may still use its staging.
        world.close(flights, group, error)
    }

    fn abort(&self, reason: &str) -> ! {
        // The thread is not in MPI then.
        let _flights = self.process.enter();
        let (Group { rank, size, name, .. }, host) = (&*self.group, &self.world().host);
        self.world().abort(&format!("zbench: rank {rank} of {size} of {name} on {host} ends the run: {reason}"))
    }
}

impl Abandon for Owner {
    /// MPI cannot take a collective back, so the run ends here.
    fn abandoned(&self, _id: u64) {
        if self.group.failure().is_none() {
            self.abort(why_abandoned());
        }
    }

    /// The group has failed, and MPI may still write there.
    fn keeps_buffers(&self) -> bool {
        true
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if std::thread::panicking() && self.owner.group.size > 1 {
            self.owner.abort("panicked");
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.group.failure().is_none() {
            let _flights = self.process.enter();
            self.world().free(&self.group.comm);
        }
    }
}

impl Communicator for Mpi {
    fn member(&self) -> Member {
        Member { rank: self.owner.group.rank, size: self.owner.group.size, backend: "mpi" }
    }

    fn call(&self, mut call: Call<'_>) -> Result<()> {
        let mut flights = self.owner.enter(&call)?;
        // What is refused here has not been given to MPI.
        self.owner.check_usable()?;
        let begun = self.owner.begin(&mut flights, &mut call);
        let done = begun.and_then(|id| self.owner.finish(&mut flights, id));
        let has_buffers = call.send.is_some() || call.recv.is_some();
        done.inspect_err(|error| {
            if has_buffers && !matches!(error, CommError::Invalid { .. }) {
                self.owner.world().forbid_calls();
            }
        })
    }

    fn start(&self, mut request: OwnedCall) -> Result<Ticket> {
        let mut call = request.as_call();
        let mut flights = self.owner.enter(&call)?;
        let begun = self.owner.begin(&mut flights, &mut call);
        drop(flights);
        match begun {
            Ok(id) => {
                if self.owner.group.settings.thread && self.owner.world().allows_threads() {
                    self.owner.process.carry_on();
                }
                Ok(Ticket::of(self.owner.clone(), id, request))
            }
            Err(error) => {
                if !matches!(error, CommError::Invalid { .. }) {
                    std::mem::forget(request); // MPI may still write there.
                }
                Err(error)
            }
        }
    }

    fn wait(&self, mut ticket: Ticket) -> Result<OwnedCall> {
        ticket.check_owner(&self.owner)?;
        let request = ticket.take()?;
        let mut flights = self.owner.process.enter();
        match self.owner.finish(&mut flights, ticket.sequence) {
            Ok(()) => Ok(request),
            Err(error) => {
                std::mem::forget(request); // MPI may still write there.
                Err(error)
            }
        }
    }

    /// Colors and keys travel first, as a collective that can time out; MPI's own split is called when all ranks are there.
    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        let (Owner { process, group }, world) = (&*self.owner, self.owner.world());
        let Group { rank, size, kernels, settings, .. } = &**group;
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
        let mut flights = process.enter();
        let comm = world.split(&group.comm, dense_color, dense_key);
        let comm = comm.map_err(|error| world.fail(&mut flights, group, error))?;
        let new = Group::new(world, comm, name.to_owned(), kernels.clone(), *settings)?;
        Ok(Box::new(Mpi::new(process.clone(), new)))
    }

    /// Prints the reason and ends all processes of the run: MPI has no way to tell them.
    fn abort(&self, reason: &str) {
        self.owner.abort(reason);
    }

    fn wire_bytes(&self) -> u64 {
        self.owner.group.state().wire
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
