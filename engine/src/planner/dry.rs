//! The estimate: the plan's actions, performed on a device that computes nothing.

use super::compressed::{CompressedPlan, Repeat, cycles};
use super::flops;
use crate::action::{Action, EvaluationActions};
use crate::compute::error::{Result, StepError};
use crate::compute::recorder::{Flops, Overlap, Recorded, Recorder};
use crate::config::{Backend, Cell, DeviceKind, Evaluation, MemoryTier};
use crate::exec::{Executor, allocate, prepacked};
use crate::memory::moves::MoveEvent;
use crate::memory::tiers::{ByTier, MemoryTiers};
use crate::mesh::comms::Comms;
use crate::model::layers::{Saved, TensorSplit};
use crate::model::{FlatKind, Tensor, Unit};
use crate::observe::outcome::{Estimate, Transfer};
use crate::plan::placement::{StateTiers, shard_dtype};
use crate::plan::{Plan, StagePlan};
use crate::state::{Delayed, State};
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use zbench_collectives::Traffic;
use zbench_collectives::{Collective, CollectiveLog, Metered, Null};
use zbench_kernels::{Category, Dry, Kernels};

/// What an action of a plan will do.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedAction {
    pub action: Action,
    pub operations: Vec<Recorded>,
    pub collectives: Vec<Collective>,
    /// Behind how many operations what happens to the collectives that travel beside them, in order. Those that were started without
    /// being in here are waited for by another action.
    pub overlaps: Vec<(usize, Overlap)>,
    /// Moves between tiers and waits for them, all of which come before the action's operations.
    pub moves: Vec<MoveEvent>,
    /// Seconds that it lasts at least, where the cell has a pace.
    pub least: f64,
}

/// One rank's step on a dry device.
pub struct DryRun<'a> {
    cell: &'a Cell,
    stage_plan: &'a StagePlan,
    /// What is performed of the stage plan, where that is not all of it.
    compressed: Option<&'a CompressedPlan>,
    executor: Executor<'a>,
    recorder: Rc<Recorder>,
    log: CollectiveLog,
    /// Collectives that were counted without being performed.
    repeated: Vec<Traffic>,
}

/// A cycle that was performed.
struct Performed<'a> {
    actions: &'a [Action],
    /// Bytes in use by tier and category when it began.
    live: ByTier<[u64; 6]>,
    before: Counts,
    after: Counts,
}

/// What has been counted so far.
struct Counts {
    flops: Flops,
    traffic: Vec<Traffic>,
    moves: Vec<Transfer>,
}

impl<'a> DryRun<'a> {
    /// A rank that has allocated its part of the model's state. Without `compressed`, every action of the plan is performed; else the
    /// actions of the compressed plan are. Where operations are listed all of them are performed, so there is no compressed plan.
    ///
    /// # Errors
    /// The state does not fit an address space.
    pub fn new(
        cell: &'a Cell,
        kernels: &'a dyn Kernels,
        (plan, stage_plan, compressed): (&'a Plan, &'a StagePlan, Option<&'a CompressedPlan>),
        rank: usize,
        keeps_operations: bool,
    ) -> Result<DryRun<'a>> {
        let layout = &compressed.map_or(stage_plan, |compressed| &compressed.stage_plan).layout;
        let state = State::new(cell, layout, plan.sharding, plan.mesh.place(rank));
        let (recorder, log) = (Rc::new(Recorder::new(keeps_operations)), CollectiveLog::default());
        let (mesh, place) = (plan.mesh, state.place);
        // Only ranks whose buffers lie on hosts and that are not left to a library reduce small buffers in one round.
        let own = matches!(cell.parallel.backend, Backend::Local | Backend::Shm | Backend::Tcp);
        let in_one_round = own && cell.hardware.device == DeviceKind::Cpu;
        let group = |axis, rank, size| {
            let null = Null::new(rank, size);
            let null = if in_one_round { null.in_one_round() } else { null };
            let null = if keeps_operations { null.listed(axis, &log) } else { null };
            Metered::without_time(axis, Box::new(null))
        };
        let smaller = |_: &Metered, axes, name| Ok(group(name, place.index(axes), mesh.size(axes)));
        let comms = Comms::new(mesh, |name| group(name, place.rank, mesh.world()), smaller);
        let comms = comms.map_err(|error: StepError| error)?;
        let tiers = MemoryTiers::dry(&state.tiers.all()).map_err(|error| StepError::Input(error.to_string()))?;
        if keeps_operations {
            tiers.moves().list_events();
        }
        let kernels = Arc::new(Dry(kernels));
        let performed = compressed.map_or(stage_plan, |compressed| &compressed.stage_plan);
        let mut executor =
            Executor::new((cell, plan, performed), state, kernels, tiers, comms, Some(recorder.clone()))?;
        open_all(&mut executor)?;
        if let Some(compressed) = compressed {
            allocate_omitted(&mut executor, compressed)?;
        }
        // A step behind the first one.
        executor.delayed = cell.train.is_delayed().then(Delayed::default);
        executor.begin_step();
        Ok(DryRun { cell, stage_plan, compressed, executor, recorder, log, repeated: Vec::new() })
    }

    /// Performs an action, and says all that it did.
    ///
    /// # Errors
    /// As of [`DryRun::step`].
    pub fn recorded(&mut self, action: Action) -> Result<RecordedAction> {
        self.act_all(&[action], 0)?;
        let collectives = std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner));
        let moves = self.executor.context.tiers.moves().take_events();
        let least = self.cell.pace.and_then(|pace| pace.share(&self.stage_plan.layout, action)).unwrap_or(0.0);
        let (operations, overlaps) = (self.recorder.take_operations(), self.recorder.take_overlaps());
        Ok(RecordedAction { action, operations, collectives, overlaps, moves, least })
    }

    /// Performs an action: how far the bytes in use on the device went above where they began.
    ///
    /// # Errors
    /// As of [`DryRun::step`].
    pub fn rise(&mut self, action: Action) -> Result<u64> {
        let tiers = self.executor.context.tiers.clone();
        let (performed, change) = tiers.record_change(|| self.act_all(&[action], 0));
        performed.map(|()| change[MemoryTier::Device].rise())
    }

    /// Where the parts of the rank's state live.
    pub fn tiers(&self) -> StateTiers {
        self.executor.state.tiers
    }

    /// Bytes in use on the device.
    pub fn in_use(&self) -> u64 {
        self.executor.context.tiers.ledgers()[MemoryTier::Device].live_total()
    }

    /// Floating-point operations so far.
    pub fn executed(&self) -> u128 {
        self.recorder.flops().iter().map(|(_, (_, executed))| *executed).sum()
    }

    /// What is kept of a layer of a micro-batch.
    pub fn saved(&mut self, micro: usize, layer: usize) -> &mut Saved {
        &mut self.executor.step_state.of_mut(micro).saved[layer]
    }

    /// The actions of a step. Cycles in the middle of a step that are alike are performed once and counted.
    ///
    /// # Errors
    /// Memory does not fit an address space, or operands do not fit their operation: a bug.
    pub fn step(&mut self) -> Result<()> {
        let mut last: Option<Performed> = None;
        let mut skipped = 0;
        // Chunks take turns with as many micro-batches as there are stages.
        let turn = if self.stage_plan.layout.chunks.len() > 1 { self.cell.parallel.degrees.pipeline } else { 1 };
        for actions in cycles(&self.executor.context.stage_plan.actions, turn) {
            // A cycle that gives back as much as it takes leaves the next one the same memory; others are seen by that.
            let live = self.live();
            if let Some(last) = &last
                && last.live == live
                && alike(last.actions, actions)
                && !self.recorder.keeps_operations()
            {
                self.count_again(&last.before, &last.after, 1);
                skipped += turn;
                continue;
            }
            let before = self.counts();
            // The micro-batches in flight are those of the last cycle that was performed.
            self.perform(actions, skipped)?;
            last = Some(Performed { actions, live, before, after: self.counts() });
        }
        Ok(())
    }

    /// Performs the actions of a cycle, of micro-batches so many earlier, and counts those again that stand for others.
    fn perform(&mut self, actions: &[Action], earlier: usize) -> Result<()> {
        let Some(compressed) = self.compressed else { return self.act_all(actions, earlier) };
        let tiers = self.executor.context.tiers.clone();
        for (part, times) in compressed.parts(actions) {
            if times == 1 {
                self.act_all(part, earlier)?;
                continue;
            }
            let before = self.counts();
            let (performed, change) = tiers.record_change(|| self.act_all(part, earlier));
            performed?;
            tiers.replay_change(&change, times - 1);
            self.count_again(&before, &self.counts(), times - 1);
        }
        Ok(())
    }

    fn act_all(&mut self, actions: &[Action], earlier: usize) -> Result<()> {
        actions.iter().try_for_each(|action| self.executor.act(action.earlier(earlier), &mut (), &mut ()))
    }

    /// What a step takes, and the operations where they are listed.
    ///
    /// # Errors
    /// As of [`DryRun::step`].
    pub fn finish(mut self) -> Result<(Estimate, Vec<Recorded>)> {
        let (cell, layout) = (self.cell, &self.stage_plan.layout);
        let flops = flops::flops(cell, layout, &self.recorder.by_term());
        let (mut traffic, operations) = (self.traffic(), self.recorder.take_operations());
        traffic.sort_by_key(|row| (row.axis, row.kind));
        let moves = self.executor.context.tiers.moves().counted();
        if let Some(evaluation) = cell.evaluation() {
            self.evaluate(evaluation)?;
        }
        let trainable_parameters = layout.parameters(FlatKind::Trainable);
        let parameters = trainable_parameters + layout.frozen_parameters();
        let active_parameters =
            parameters - FlatKind::ALL.iter().map(|part| layout.inactive_params(*part)).sum::<u64>();
        let own = |(number, unit)| (layout.copy() != Some(number)).then_some(unit);
        let units: Vec<&Unit> = layout.units.iter().map(|unit| &**unit).enumerate().filter_map(own).collect();
        // Of all tensor ranks together; what each of them has whole counts once.
        let kept = |part| {
            let tensors = units.iter().flat_map(|unit| unit.tensors_of(part));
            let times =
                |tensor: &Tensor| if tensor.cut == TensorSplit::Replicated { 1 } else { cell.parallel.degrees.tensor };
            tensors.map(|tensor| tensor.place.len * times(tensor)).sum::<usize>() * shard_dtype(cell, part).size()
        };
        let base_bytes = (kept(FlatKind::Frozen) + kept(FlatKind::Quantised)) as u64;
        let ledgers = self.executor.context.tiers.ledgers();
        let estimate = Estimate {
            stages: vec![ledgers.clone()],
            ledgers,
            traffic,
            moves,
            flops,
            trainable_parameters,
            parameters,
            active_parameters,
            base_bytes,
        };
        Ok((estimate, operations))
    }

    /// The memory of an evaluation; nothing else of it is in an estimate, which is of a step.
    fn evaluate(&mut self, evaluation: Evaluation) -> Result<()> {
        let EvaluationActions { first, next, end } = &self.executor.context.stage_plan.evaluation;
        let next = if evaluation.batches > 1 { &next[..] } else { &[] };
        self.executor.step_state.evaluates = true;
        self.executor.prepacked.iter_mut().for_each(|forms| forms.forget());
        [first, next, end].into_iter().try_for_each(|actions| self.perform(actions, 0))?;
        self.executor.wait_all(&mut ())?;
        self.executor.unload();
        self.executor.share_sums(2 * evaluation.batches, &[]).map(drop)
    }

    fn live(&self) -> ByTier<[u64; 6]> {
        let ledgers = self.executor.context.tiers.ledgers();
        ByTier::of(|tier| Category::ALL.map(|category| ledgers[tier].live(category)))
    }

    fn counts(&self) -> Counts {
        Counts {
            flops: self.recorder.flops(),
            traffic: self.traffic(),
            moves: self.executor.context.tiers.moves().counted(),
        }
    }

    /// Counts what was counted between two moments so many times again.
    fn count_again(&mut self, before: &Counts, after: &Counts, times: usize) {
        self.recorder.add_difference(&before.flops, &after.flops, times as u128);
        self.executor.context.tiers.moves().count_again(&before.moves, &after.moves, times);
        for row in &after.traffic {
            let was = before.traffic.iter().find(|was| (was.axis, was.kind) == (row.axis, row.kind));
            let more = |of: fn(&Traffic) -> f64| times as f64 * (of(row) - was.map_or(0.0, of));
            let more = Traffic {
                calls: more(|row| row.calls),
                payload_bytes: more(|row| row.payload_bytes),
                wire_bytes: more(|row| row.wire_bytes),
                ..row.clone()
            };
            match self.repeated.iter_mut().find(|sum| (sum.axis, sum.kind) == (row.axis, row.kind)) {
                Some(sum) => add(sum, &more),
                None => self.repeated.push(more),
            }
        }
    }

    /// By axis and kind, with what was counted without being performed.
    fn traffic(&self) -> Vec<Traffic> {
        let mut rows = self.executor.context.comms.traffic();
        for more in &self.repeated {
            if let Some(row) = rows.iter_mut().find(|row| (row.axis, row.kind) == (more.axis, more.kind)) {
                add(row, more);
            }
        }
        rows
    }
}

/// Whether two cycles do the same, each on its own micro-batches.
pub(super) fn alike(a: &[Action], b: &[Action]) -> bool {
    let base = |actions: &[Action]| actions.iter().find_map(|action| action.micro()).unwrap_or(0);
    let (of_a, of_b) = (base(a), base(b));
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.earlier(of_a) == b.earlier(of_b))
}

fn add(sum: &mut Traffic, more: &Traffic) {
    sum.calls += more.calls;
    sum.payload_bytes += more.payload_bytes;
    sum.wire_bytes += more.wire_bytes;
}

/// What filling the first weights takes of host memory: the state of a unit that lives on a disk is there while it is filled.
fn open_all(executor: &mut Executor<'_>) -> Result<()> {
    let Executor { context, state, params, optimizer, .. } = executor;
    let res = context.resources();
    for unit in 0..state.shards.len() {
        params.open(res, unit)?;
        optimizer.open(res, unit)?;
        params.close(res, unit, true)?;
        optimizer.close(res, unit, true)?;
    }
    Ok(())
}

/// Counts the state of the units that a compressed plan leaves out.
fn allocate_omitted(executor: &mut Executor<'_>, compressed: &CompressedPlan) -> Result<()> {
    let (res, layout) = (executor.context.resources(), &compressed.stage_plan.layout);
    for Repeat { layers: units, times } in &compressed.repeats {
        let state = executor.state.of_units(units.clone());
        let (made, change) = res.tiers.record_change(|| -> Result<_> {
            let forms = prepacked(executor.context.cell, layout, res.device, units.clone())?;
            Ok((allocate(&state, res)?, forms))
        });
        drop(made?);
        res.tiers.replay_change(&change, *times);
        executor.state.omitted += times * (0..units.len()).filter(|unit| state.trainable(*unit).is_some()).count();
    }
    Ok(())
}
