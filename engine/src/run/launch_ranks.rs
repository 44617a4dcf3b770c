//! Runs a cell: one rank over any communicator, or all of them as threads of this process; and what comes of it when all
//! have ended.

use crate::checkpoint::inputs::Inputs;
use crate::checkpoint::training::Resumable;
use crate::checkpoint::weights::{Checkpoint, CheckpointError};
use crate::compute::error::StepError;
use crate::compute::hardware;
use crate::compute::hardware::{HardwareError, Machines, Seat};
use crate::config::Cell;
use crate::data::Source;
use crate::memory::host_link::HostLink;
use crate::memory::tiers::{ByTier, MemoryTiers};
use crate::mesh::Mesh;
use crate::mesh::comms::Comms;
use crate::observe::outcome::{Cause, Failure, Happening, Probe, Report, Run, Step};
use crate::plan::Plan;
use crate::plan::placement::StateTiers;
use crate::run::rank::Rank;
use crate::run::train_loop;
use crate::run::train_loop::{Control, Pace};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::info_span;
use zbench_collectives::GroupName;
use zbench_collectives::{CommError, Communicator, Metered, group, link};
use zbench_kernels::{Arena, Kernels, Ledger};

/// Runs a cell on all ranks, which are threads. `on_step` is called by rank 0 after each step.
pub fn train(cell: &Cell, plan: &Plan, on_step: &(dyn Fn(&Step) + Sync)) -> Result<Run, Failure> {
    let tell = |happening: &Happening| {
        if let Happening::Step(step) = happening {
            on_step(step);
        }
    };
    let control = Control { stop: &AtomicBool::new(false), tell: &tell, trace: None, pace: None };
    train_on(cell, plan, &hardware::no_machines, control)
}

/// Runs a cell on all ranks, which are threads, as `control` says; on these machines where the cell asks for CUDA.
pub fn train_on(cell: &Cell, plan: &Plan, machines: Machines<'_>, control: Control<'_>) -> Result<Run, Failure> {
    let kernels =
        kernels(cell, machines).map_err(|error| failure(Cause::Failed { rank: 0, reason: error.to_string() }))?;
    let done = Mutex::new(Vec::new());
    let tell = |happening: &Happening| {
        (control.tell)(happening);
        if let Happening::Step(step) = happening {
            lock(&done).push(step.clone());
        }
    };
    let work = |rank: &mut Rank<'_>| train_loop::run(rank, Control { tell: &tell, ..control });
    let finished = on_threads(cell, plan, kernels, control.pace, work);
    let steps = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    match finished {
        Ok(reports) => {
            let kernels = reports.first().map(|r| r.1.clone()).unwrap_or_default();
            let ranks: Vec<_> = reports.into_iter().map(|r| r.0).collect();
            let slowest = slowest(ranks.iter().map(|rank| &rank.step_ms[..]));
            Ok(Run { steps: with_slowest(steps, &slowest), ranks, kernels })
        }
        Err(failure) => Err(Failure { steps, ..failure }),
    }
}

/// Runs one rank of a cell by itself: this one of `comm`, which all ranks of the cell share. The others are told when this
/// rank fails. `probe` is told when weights begin to be loaded and when they are, so that it can measure the process.
pub fn train_rank(
    cell: &Cell,
    plan: &Plan,
    comm: Box<dyn Communicator>,
    kernels: Arc<dyn Kernels>,
    arena: Arena,
    control: Control<'_>,
    probe: Probe<'_>,
) -> Ended<Report> {
    let opened = match open(cell, plan) {
        Ok(opened) => opened,
        Err(reason) => {
            comm.abort(&reason);
            return Ended::broken(&reason);
        }
    };
    let inputs = Inputs { probe, ..opened.inputs(cell, plan) };
    one_rank(&inputs, kernels, arena, comm, plan.mesh, |rank| train_loop::run(rank, control))
}

/// The kernels of every rank of a cell, all of them threads of this process.
pub fn kernels(cell: &Cell, machines: Machines<'_>) -> Result<Vec<Arc<dyn Kernels>>, HardwareError> {
    let ranks = cell.parallel.ranks;
    (0..ranks).map(|index| hardware::kernels(cell, Seat::of(index, ranks, false), machines)).collect()
}

/// Starts every rank of a cell on its own thread, runs `work` on it, and returns what they return, in rank order.
pub fn with_ranks<T: Send>(
    cell: &Cell,
    plan: &Plan,
    kernels: Vec<Arc<dyn Kernels>>,
    work: impl Fn(&mut Rank<'_>) -> Result<T, StepError> + Sync,
) -> Result<Vec<T>, Failure> {
    on_threads(cell, plan, kernels, None, work)
}

fn on_threads<T: Send>(
    cell: &Cell,
    plan: &Plan,
    kernels: Vec<Arc<dyn Kernels>>,
    pace: Option<&dyn Pace>,
    work: impl Fn(&mut Rank<'_>) -> Result<T, StepError> + Sync,
) -> Result<Vec<T>, Failure> {
    let input = |reason: String| failure(Cause::Failed { rank: 0, reason });
    let opened = open(cell, plan).map_err(input)?;
    let inputs = opened.inputs(cell, plan);
    let mut arenas = Vec::with_capacity(kernels.len());
    for (rank, own) in kernels.iter().enumerate() {
        let arena = own.arena_for(cell.memory.capacity, plan.device_peak(rank), kernels.len());
        arenas.push(arena.map_err(|error| input(error.to_string()))?);
    }
    // Held until every rank has ended: a rank that fails takes no memory away under those that still read it.
    let regions: Vec<_> = arenas.iter().map(Arena::region).collect();
    let locals = group(GroupName::Data.name(), kernels.clone(), cell.parallel.stall)
        .map_err(|error| input(error.to_string()))?;
    let (inputs, work, mesh) = (&inputs, &work, plan.mesh);
    let ended: Vec<Ended<T>> = std::thread::scope(|scope| {
        let start = |((kernels, arena), comm): ((Arc<dyn Kernels>, Arena), Box<dyn Communicator>)| {
            let builder = std::thread::Builder::new().name(format!("rank {}", comm.rank())).stack_size(8 << 20);
            builder.spawn_scoped(scope, move || {
                let _rank = info_span!(target: "zbench::span", "rank", rank = comm.rank()).entered();
                let ended = one_rank(inputs, kernels, arena, comm, mesh, work);
                // The others may wait for their turn, where they do not hear of it.
                pace.filter(|_| ended.result.is_err()).into_iter().for_each(Pace::abandon);
                ended
            })
        };
        let locals = locals.into_iter().map(|local| Box::new(local) as Box<dyn Communicator>);
        let threads: Vec<_> = kernels.into_iter().zip(arenas).zip(locals).map(start).collect();
        threads
            .into_iter()
            .map(|thread| match thread.map(|t| t.join()) {
                Ok(Ok(ended)) => ended,
                Ok(Err(_)) => Ended::broken("panicked outside its step"),
                // Its place in the group went with it, so that the others do not wait for it.
                Err(error) => {
                    let error = zbench_kernels::threads::spawn::not_started(error);
                    Ended::broken(&format!("its thread could not be started: {error}"))
                }
            })
            .collect()
    });
    drop(regions);
    collect(ended)
}

/// What all ranks of a process read.
struct Opened {
    source: Source,
    checkpoint: Option<Checkpoint>,
    adapters: Option<Checkpoint>,
    resume: Option<Resumable>,
}

impl Opened {
    fn inputs<'a>(&'a self, cell: &'a Cell, plan: &'a Plan) -> Inputs<'a> {
        let Opened { source, checkpoint, adapters, resume } = self;
        let (checkpoint, adapters) = (checkpoint.as_ref(), adapters.as_ref());
        Inputs { cell, plan, source, checkpoint, adapters, resume: resume.as_ref(), probe: None }
    }
}

fn open(cell: &Cell, plan: &Plan) -> Result<Opened, String> {
    let (model, train) = (&cell.model, &cell.train);
    let source = Source::open(&cell.data, model.vocab_size, train.seq_len, train.seed);
    let source = source.and_then(|source| match cell.watch.and_then(|watch| watch.evaluation) {
        Some(evaluation) => source.hold_out(evaluation.share),
        None => Ok(source),
    });
    let source = source.map_err(|error| error.to_string())?;
    let checkpoint =
        model.weights.as_ref().map(|dir| Checkpoint::of_model(dir, model, &plan.layout.checkpoint_tensors()));
    let adapters = cell.lora.path.as_ref().filter(|_| cell.lora.on()).map(|dir| {
        let adapters = Checkpoint::open_adapters(dir)?;
        adapters.check(&plan.layout.adapter_tensors())?;
        Ok(adapters)
    });
    let said = |error: CheckpointError| error.to_string();
    let (checkpoint, adapters) = (checkpoint.transpose().map_err(said)?, adapters.transpose().map_err(said)?);
    let resume = Resumable::find(cell, &plan.layout).map_err(|error| error.to_string())?;
    Ok(Opened { source, checkpoint, adapters, resume })
}

#[derive(Debug)]
pub struct Ended<T> {
    pub result: Result<T, RankError>,
    pub ledgers: ByTier<Ledger>,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum RankError {
    #[error(transparent)]
    Step(StepError),
    #[error("{0}")]
    Other(String),
}

/// How near a rank's error is to the cause: what it found itself before what it waited for in vain, and that before what it
/// heard from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    Found,
    Stalled,
    Heard,
}

impl RankError {
    pub fn standing(&self) -> Standing {
        match self {
            RankError::Step(StepError::Comm(CommError::Aborted { .. })) => Standing::Heard,
            RankError::Step(StepError::Comm(CommError::Stalled { .. })) => Standing::Stalled,
            _ => Standing::Found,
        }
    }

    pub fn cause(self, rank: usize) -> Cause {
        match self {
            RankError::Step(StepError::OutOfMemory(error)) => Cause::OutOfMemory { rank, error },
            RankError::Step(StepError::Diverged { step, what, value }) => Cause::Diverged { step, what, value },
            RankError::Step(StepError::Worse(worse)) => Cause::Worse(worse),
            RankError::Step(error) => Cause::Failed { rank, reason: error.to_string() },
            RankError::Other(reason) => Cause::Failed { rank, reason },
        }
    }
}

/// Which rank's error is the cause: the first of those nearest to it.
pub fn cause_of(standings: impl IntoIterator<Item = Option<Standing>>) -> Option<usize> {
    let errors = standings.into_iter().enumerate().filter_map(|(rank, standing)| Some((standing?, rank)));
    errors.min().map(|(_, rank)| rank)
}

impl<T> Ended<T> {
    fn broken(reason: &str) -> Ended<T> {
        Ended { result: Err(RankError::Other(reason.into())), ledgers: ByTier::default() }
    }
}

fn one_rank<T>(
    inputs: &Inputs<'_>,
    kernels: Arc<dyn Kernels>,
    arena: Arena,
    comm: Box<dyn Communicator>,
    mesh: Mesh,
    work: impl FnOnce(&mut Rank<'_>) -> Result<T, StepError>,
) -> Ended<T> {
    let number = comm.rank();
    let used = StateTiers::of(inputs.cell, &inputs.plan.sharding).all();
    let folder = inputs.cell.memory.offload_folder().unwrap_or_default();
    let planned = &inputs.plan.stage_plan_of(number).estimate.ledgers;
    let link = inputs.cell.link.and_then(|link| link.host).map(HostLink::new);
    let tiers = match MemoryTiers::new(&*kernels, arena, &used, &folder, planned) {
        Ok(tiers) => tiers.with_link(link),
        Err(error) => {
            comm.abort(&error.to_string());
            return Ended { result: Err(RankError::Step(error.into())), ledgers: ByTier::default() };
        }
    };
    let account = tiers.clone();
    let settled = kernels.clone();
    // This thread is the first of its kernels' threads until the rank has ended.
    let _settled = settled.pin_thread();
    let run = || -> Result<T, RankError> {
        let world = link::wrap(comm, inputs.cell.link_spec().as_ref());
        let comms = world.and_then(|world| comms(world, mesh)).map_err(|error| RankError::Step(error.into()))?;
        let rank = Rank::new(inputs, number, kernels, tiers, comms);
        let result = rank.and_then(|mut rank| {
            let result = work(&mut rank);
            if let Err(error) = &result {
                rank.executor.context.comms.world().abort(&error.to_string());
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
    Ended { result, ledgers: account.ledgers() }
}

/// How a rank splits the world into its groups, in this order: color, key and name of each.
pub fn groups(mesh: Mesh, rank: usize) -> Vec<(usize, usize, GroupName)> {
    let place = mesh.place(rank);
    let mut groups = mesh.groups();
    // The last one is the world itself.
    groups.pop();
    groups.into_iter().map(|(axes, name)| (place.color(axes), place.index(axes), name)).collect()
}

/// The groups of a rank. A collective call where there is more than one.
fn comms(world: Box<dyn Communicator>, mesh: Mesh) -> Result<Comms, CommError> {
    let place = mesh.place(world.rank());
    let group = |world: &Metered, axes, name: GroupName| {
        Ok(Metered::new(name, world.split(place.color(axes), place.index(axes), name.name())?))
    };
    Comms::new(mesh, |name| Metered::new(name, world), group)
}

/// All results, or the cause.
pub fn collect<T>(ended: Vec<Ended<T>>) -> Result<Vec<T>, Failure> {
    let ledgers = ended.iter().map(|e| e.ledgers.clone()).collect();
    let cause = cause_of(ended.iter().map(|e| e.result.as_ref().err().map(RankError::standing)));
    let (mut results, mut failed) = (Vec::new(), None);
    for (rank, ended) in ended.into_iter().enumerate() {
        match ended.result {
            Ok(result) => results.push(result),
            Err(error) if Some(rank) == cause => failed = Some(error.cause(rank)),
            Err(_) => {}
        }
    }
    match failed {
        None => Ok(results),
        Some(cause) => Err(Failure { cause, steps: Vec::new(), ledgers }),
    }
}

fn failure(cause: Cause) -> Failure {
    Failure { cause, steps: Vec::new(), ledgers: Vec::new() }
}

/// The time of the slowest rank, timed step by timed step.
pub fn slowest<'a>(step_ms: impl Iterator<Item = &'a [f64]>) -> Vec<f64> {
    step_ms.fold(Vec::new(), |mut most, ms| {
        most.resize(most.len().max(ms.len()), 0.0);
        most.iter_mut().zip(ms).for_each(|(most, ms)| *most = most.max(*ms));
        most
    })
}

/// A step lasts as long as its slowest rank takes.
fn with_slowest(mut steps: Vec<Step>, slowest: &[f64]) -> Vec<Step> {
    steps.iter_mut().filter(|step| step.timed).zip(slowest).for_each(|(step, ms)| step.ms = step.ms.max(*ms));
    steps
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
