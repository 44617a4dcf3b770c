//! Ranks as threads of this process: starts them, watches them, gathers what they report.

use crate::checkpoint::Checkpoint;
use crate::comm::{CommError, Communicator, Metered, Shared, group, link};
use crate::config::{Cell, DeviceKind};
use crate::data::Source;
use crate::layers::StepError;
use crate::mesh::Mesh;
use crate::outcome::{Cause, Failure, RankReport, Run, Step};
use crate::plan::Plan;
use crate::rank::{Inputs, Rank};
use crate::shard::{Comms, DATA, Hybrid, INNER, OUTER};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zbench_kernels::{Arena, Cpu, Kernels, Ledger};

/// How long a rank waits for the others before it gives the run up.
pub const STALL: Duration = Duration::from_secs(300);

/// Runs a cell: `untimed_steps + steps` steps on all ranks. `on_step` is called by rank 0 after each step.
pub fn train(cell: &Cell, plan: &Plan, on_step: &(dyn Fn(&Step) + Sync)) -> Result<Run, Failure> {
    let kernels = kernels(cell).map_err(|reason| failure(Cause::Failed { rank: 0, reason }))?;
    let done = Mutex::new(Vec::new());
    let finished = with_ranks(cell, plan, kernels, |rank| {
        for _ in 0..cell.train.untimed_steps + cell.train.steps {
            let step = rank.step()?;
            if rank.number() == 0 {
                on_step(&step);
                lock(&done).push(step);
            }
        }
        Ok((rank.report(), rank.kernels.name()))
    });
    let steps = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    match finished {
        Ok(reports) => {
            let kernels = reports.first().map(|r| r.1.clone()).unwrap_or_default();
            let ranks: Vec<_> = reports.into_iter().map(|r| r.0).collect();
            Ok(Run { steps: with_slowest(steps, &ranks), ranks, kernels })
        }
        Err(failure) => Err(Failure { steps, ..failure }),
    }
}

/// The kernels of every rank of a cell on this machine.
pub fn kernels(cell: &Cell) -> Result<Vec<Arc<dyn Kernels>>, String> {
    if cell.hardware.device == DeviceKind::Cuda {
        return Err("hardware.device = \"cuda\" is not built yet; use \"cpu\"".into());
    }
    let threads = cell.hardware.threads_per_rank;
    Ok((0..cell.parallel.ranks).map(|_| Arc::new(Cpu::new(threads)) as Arc<dyn Kernels>).collect())
}

/// Starts every rank of a cell on its own thread, runs `work` on it, and returns what they return, in rank order.
pub fn with_ranks<T: Send>(
    cell: &Cell,
    plan: &Plan,
    kernels: Vec<Arc<dyn Kernels>>,
    work: impl Fn(&mut Rank<'_>) -> Result<T, StepError> + Sync,
) -> Result<Vec<T>, Failure> {
    let input = |reason: String| failure(Cause::Failed { rank: 0, reason });
    let (model, train) = (&cell.model, &cell.train);
    let source = Source::open(&cell.data, model.vocab_size, train.seq_len, train.seed);
    let source = source.map_err(|error| input(error.to_string()))?;
    let checkpoint = match &model.weights {
        Some(dir) => {
            let checkpoint = Checkpoint::open(dir).map_err(|error| input(error.to_string()))?;
            checkpoint.check(&plan.layout.checkpoint_tensors()).map_err(|error| input(error.to_string()))?;
            Some(checkpoint)
        }
        None => None,
    };
    let inputs = Inputs { cell, plan, source: &source, checkpoint: checkpoint.as_ref() };
    let mut arenas = Vec::with_capacity(kernels.len());
    for _ in 0..kernels.len() {
        arenas.push(Arena::host(cell.memory.capacity).map_err(|error| input(error.to_string()))?);
    }
    // Held until every rank has ended: a rank that fails takes no memory away under those that still read it.
    let regions: Vec<_> = arenas.iter().map(Arena::region).collect();
    let locals = group(DATA, kernels.clone(), STALL).map_err(|error| input(error.to_string()))?;
    let (inputs, work, mesh) = (&inputs, &work, plan.mesh);
    let ended: Vec<Ended<T>> = std::thread::scope(|scope| {
        let start = |((kernels, arena), comm): ((Arc<dyn Kernels>, Arena), Shared)| {
            let builder = std::thread::Builder::new().name(format!("rank {}", comm.rank())).stack_size(8 << 20);
            builder.spawn_scoped(scope, move || one_rank(inputs, kernels, arena, comm, mesh, work))
        };
        let threads: Vec<_> = kernels.into_iter().zip(arenas).zip(locals).map(start).collect();
        threads
            .into_iter()
            .map(|thread| match thread.map(|t| t.join()) {
                Ok(Ok(ended)) => ended,
                Ok(Err(_)) => Ended::broken("panicked outside its step"),
                Err(error) => Ended::broken(&format!("could not start a thread: {error}")),
            })
            .collect()
    });
    drop(regions);
    collect(ended)
}

/// How a rank ended.
struct Ended<T> {
    result: Result<T, RankError>,
    ledger: Ledger,
}

enum RankError {
    Step(StepError),
    Other(String),
}

impl<T> Ended<T> {
    fn broken(reason: &str) -> Ended<T> {
        Ended { result: Err(RankError::Other(reason.into())), ledger: Ledger::default() }
    }
}

fn one_rank<T>(
    inputs: &Inputs<'_>,
    kernels: Arc<dyn Kernels>,
    arena: Arena,
    comm: Shared,
    mesh: Mesh,
    work: &(impl Fn(&mut Rank<'_>) -> Result<T, StepError> + Sync),
) -> Ended<T> {
    let account = arena.clone();
    let number = comm.rank();
    let run = || -> Result<T, RankError> {
        let world = link::wrap(Box::new(comm), inputs.cell.link_spec().as_ref());
        let comms = world.and_then(|world| comms(world, mesh)).map_err(|error| RankError::Step(error.into()))?;
        let rank = Rank::new(inputs, number, kernels, arena, comms);
        let result = rank.and_then(|mut rank| {
            let result = work(&mut rank);
            if let Err(error) = &result {
                rank.comms.data().abort(&error.to_string());
            }
            result
        });
        result.map_err(RankError::Step)
    };
    let result = std::panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().map(|s| s.to_string());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(RankError::Other(format!("panicked: {said}")))
    });
    Ended { result, ledger: account.ledger() }
}

/// The groups of a rank. A collective call in a hybrid mesh.
fn comms(world: Box<dyn Communicator>, mesh: Mesh) -> Result<Comms, CommError> {
    if !mesh.hybrid {
        return Ok(Comms { inner: Metered::new(DATA, world), hybrid: None });
    }
    let place = mesh.place(world.rank());
    let inner = world.split(place.outer, place.inner, INNER)?;
    let outer = world.split(place.inner, place.outer, OUTER)?;
    let hybrid = Hybrid { outer: Metered::new(OUTER, outer), data: Metered::new(DATA, world) };
    Ok(Comms { inner: Metered::new(INNER, inner), hybrid: Some(hybrid) })
}

/// All results, or the cause: what a rank found itself rather than what it heard from another.
fn collect<T>(ended: Vec<Ended<T>>) -> Result<Vec<T>, Failure> {
    let ledgers = ended.iter().map(|e| e.ledger.clone()).collect();
    let heard = |error: &RankError| matches!(error, RankError::Step(StepError::Comm(CommError::Aborted { .. })));
    let (mut results, mut first, mut echo) = (Vec::new(), None, None);
    for (rank, ended) in ended.into_iter().enumerate() {
        match ended.result {
            Ok(result) => results.push(result),
            Err(error) if heard(&error) => echo = echo.or(Some((rank, error))),
            Err(error) => first = first.or(Some((rank, error))),
        }
    }
    let Some((rank, error)) = first.or(echo) else { return Ok(results) };
    let cause = match error {
        RankError::Step(StepError::OutOfMemory(error)) => Cause::OutOfMemory { rank, error },
        RankError::Step(StepError::Diverged { step, what, value }) => Cause::Diverged { step, what, value },
        RankError::Step(error) => Cause::Failed { rank, reason: error.to_string() },
        RankError::Other(reason) => Cause::Failed { rank, reason },
    };
    Err(Failure { cause, steps: Vec::new(), ledgers })
}

fn failure(cause: Cause) -> Failure {
    Failure { cause, steps: Vec::new(), ledgers: Vec::new() }
}

/// A step lasts as long as its slowest rank takes.
fn with_slowest(mut steps: Vec<Step>, ranks: &[RankReport]) -> Vec<Step> {
    for (i, step) in steps.iter_mut().filter(|s| s.timed).enumerate() {
        step.ms = ranks.iter().filter_map(|r| r.step_ms.get(i)).fold(step.ms, |most, ms| most.max(*ms));
    }
    steps
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
