//! The estimate: the plan's actions, performed on a device that computes nothing.

use super::flops;
use crate::actions::{Action, EvaluationActions};
use crate::comm::{Collective, CollectiveLog, Metered, Null};
use crate::config::{Backend, Cell, DeviceKind, Evaluation};
use crate::error::{Result, StepError};
use crate::executor::Executor;
use crate::layers::Saved;
use crate::mesh::Axis;
use crate::model::FlatKind;
use crate::outcome::{Estimate, Traffic};
use crate::plan::Plan;
use crate::recorder::{Flops, Recorded, Recorder};
use crate::shard::{Comms, Hybrid, home_dtype};
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use zbench_kernels::{Arena, Buffer, Category, Dry, Footprint, Kernels, Swing};

/// What an action of a plan will do.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedAction {
    /// Which.
    pub action: Action,
    /// Its operations, in order.
    pub operations: Vec<Recorded>,
    /// Its collectives, in order.
    pub collectives: Vec<Collective>,
}

/// One rank's step on a dry device.
pub struct DryRun<'a> {
    executor: Executor<'a>,
    recorder: Rc<Recorder>,
    log: CollectiveLog,
    blocks: Vec<RecordedBlock>,
    /// The stream, where it is counted and no buffer is there: a repeated action has made it.
    absent_stream: Option<Footprint>,
    /// By unit, likewise what is kept for backward.
    absent_saved: Vec<Option<Saved<Footprint>>>,
    /// Of micro-batches that were counted without being performed.
    repeated: Vec<Traffic>,
}

/// A micro-batch that was performed.
struct Performed<'a> {
    actions: &'a [Action],
    /// Bytes in use by category when it began.
    live: [u64; 6],
    flops: Flops,
    traffic: Vec<Traffic>,
}

/// What a block's action has done. Other blocks that are the same and begin in the same state do as much.
struct RecordedBlock {
    action: Action,
    /// The first block that it is like.
    same_as: usize,
    evaluates: bool,
    before: BlockState,
    after: BlockState,
    memory: Swing,
    flops: Flops,
}

/// What a block reads and leaves: the stream between blocks, and what is kept of it for backward.
type BlockState = (Option<Footprint>, Saved<Footprint>);

impl<'a> DryRun<'a> {
    /// A rank that has allocated its part of the model's state. Where operations are listed every one of them is performed; else
    /// what repeats is counted.
    ///
    /// # Errors
    /// The state does not fit an address space.
    pub fn new(
        cell: &'a Cell,
        kernels: &'a dyn Kernels,
        plan: &'a Plan,
        rank: usize,
        keeps_operations: bool,
    ) -> Result<DryRun<'a>> {
        let (recorder, log) = (Rc::new(Recorder::new(keeps_operations)), CollectiveLog::default());
        let (mesh, place) = (plan.mesh, plan.mesh.place(rank));
        // Only ranks whose buffers lie on hosts and that are not left to a library reduce small buffers in one round.
        let own = matches!(cell.parallel.backend, Backend::Local | Backend::Shm | Backend::Tcp);
        let in_one_round = own && cell.hardware.device == DeviceKind::Cpu;
        let group = |axis, rank, size| {
            let null = Null::new(rank, size);
            let null = if in_one_round { null.in_one_round() } else { null };
            let null = if keeps_operations { null.listed(axis, &log) } else { null };
            Metered::without_time(axis, Box::new(null))
        };
        let data = group(Axis::Data, rank, mesh.world());
        let comms = if mesh.hybrid {
            let hybrid = Hybrid { outer: group(Axis::Outer, place.outer, mesh.outer), data };
            Comms { inner: group(Axis::Inner, place.inner, mesh.inner), hybrid: Some(hybrid) }
        } else {
            Comms { inner: data, hybrid: None }
        };
        let arena = Arena::dry().map_err(|error| StepError::Input(error.to_string()))?;
        let kernels = Arc::new(Dry(kernels));
        let mut executor = Executor::new((cell, plan), rank, kernels, arena, comms, Some(recorder.clone()))?;
        executor.begin_step();
        let absent_saved = vec![None; plan.layout.units.len()];
        let (blocks, repeated, absent_stream) = (Vec::new(), Vec::new(), None);
        Ok(DryRun { executor, recorder, log, blocks, absent_stream, absent_saved, repeated })
    }

    /// Performs an action, and says all that it did.
    ///
    /// # Errors
    /// As of [`DryRun::act`].
    pub fn recorded(&mut self, action: Action) -> Result<RecordedAction> {
        self.act(action)?;
        let collectives = std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(RecordedAction { action, operations: self.recorder.take_operations(), collectives })
    }

    /// The actions of the plan's step. Micro-batches in the middle of a step that are alike are performed once and counted.
    ///
    /// # Errors
    /// As of [`DryRun::act`].
    pub fn step(&mut self) -> Result<()> {
        let actions = &self.executor.plan.actions;
        let starts = actions.iter().enumerate().filter(|(_, action)| matches!(action, Action::Load { .. }));
        let starts: Vec<usize> = starts.map(|(at, _)| at).collect();
        // Nothing stands before the first micro-batch today.
        actions[..starts.first().copied().unwrap_or(actions.len())].iter().try_for_each(|action| self.act(*action))?;
        let mut last: Option<Performed> = None;
        for (number, start) in starts.iter().enumerate() {
            let micro_batch = match starts.get(number + 1) {
                Some(next) => &actions[*start..*next],
                // What follows the last one belongs to the step.
                None => &actions[*start..],
            };
            // Equal actions leave equal memory in use today. It is compared so that an action that does not is seen.
            let live = self.live();
            if let Some(last) = &last
                && last.live == live
                && last.actions[1..] == micro_batch[1..]
                && !self.recorder.keeps_operations()
            {
                self.recorder.add(&last.flops, 1);
                self.repeated.extend_from_slice(&last.traffic);
                continue;
            }
            let (flops, traffic) = (self.recorder.flops(), self.traffic());
            micro_batch.iter().try_for_each(|action| self.act(*action))?;
            let (flops, traffic) = (self.recorder.since(&flops), less(self.traffic(), &traffic));
            last = Some(Performed { actions: micro_batch, live, flops, traffic });
        }
        Ok(())
    }

    /// What a step takes, and the operations where they are listed.
    ///
    /// # Errors
    /// As of [`DryRun::act`].
    pub fn finish(mut self) -> Result<(Estimate, Vec<Recorded>)> {
        let (cell, plan) = (self.executor.cell, self.executor.plan);
        let layout = &plan.layout;
        let flops = flops::flops(cell, layout, &self.recorder.by_term());
        let (traffic, operations) = (self.all_traffic(), self.recorder.take_operations());
        if let Some(evaluation) = cell.evaluation() {
            self.evaluate(evaluation)?;
        }
        let trainable_parameters = layout.parameters(FlatKind::Trainable);
        let parameters = trainable_parameters + layout.frozen_parameters();
        let active_parameters =
            parameters - FlatKind::ALL.iter().map(|part| layout.inactive_params(*part)).sum::<u64>();
        let kept = |part| layout.units.iter().map(|u| u.flat(part).len).sum::<usize>() * home_dtype(cell, part).size();
        let base_bytes = (kept(FlatKind::Frozen) + kept(FlatKind::Quantised)) as u64;
        let memory = self.executor.arena.ledger();
        let estimate =
            Estimate { memory, traffic, flops, trainable_parameters, parameters, active_parameters, base_bytes };
        Ok((estimate, operations))
    }

    /// The memory of an evaluation; nothing else of it is in an estimate, which is of a step.
    fn evaluate(&mut self, evaluation: Evaluation) -> Result<()> {
        let EvaluationActions { first, next, end } = &self.executor.plan.evaluation;
        let next = if evaluation.batches > 1 { &next[..] } else { &[] };
        self.executor.flow.evaluates = true;
        self.executor.prepacked.iter_mut().for_each(|forms| forms.forget());
        first.iter().chain(next).chain(end).try_for_each(|action| self.act(*action))?;
        self.executor.unload();
        self.executor.share_sums(2 * evaluation.batches, &[]).map(drop)
    }

    fn live(&self) -> [u64; 6] {
        let ledger = self.executor.arena.ledger();
        Category::ALL.map(|category| ledger.live(category))
    }

    fn traffic(&self) -> Vec<Traffic> {
        self.executor.comms.traffic()
    }

    /// By axis and kind, with what was counted without being performed.
    fn all_traffic(&mut self) -> Vec<Traffic> {
        let mut rows = self.traffic();
        for more in std::mem::take(&mut self.repeated) {
            let row = rows.iter_mut().find(|row| (row.axis, row.kind) == (more.axis, more.kind));
            if let Some(row) = row {
                row.calls += more.calls;
                row.payload_bytes += more.payload_bytes;
                row.wire_bytes += more.wire_bytes;
            }
        }
        rows.sort_by_key(|row| (row.axis, row.kind));
        rows
    }

    /// Performs an action.
    ///
    /// # Errors
    /// Memory does not fit an address space, or operands do not fit their operation: a bug.
    pub fn act(&mut self, action: Action) -> Result<()> {
        let unit = match action {
            Action::Forward { unit } | Action::Recompute { unit, .. } | Action::Backward { unit } => unit,
            _ => return self.executor.act(action, &mut (), &mut ()),
        };
        let plan = self.executor.plan;
        let is_block = unit > 0 && unit != plan.layout.head_unit();
        // A form of weights is made when it is first read, which a repeated action would not know of.
        if !is_block || self.recorder.keeps_operations() || !self.executor.prepacked.is_empty() {
            self.fetch(unit)?;
            return self.executor.act(action, &mut (), &mut ());
        }
        self.block(action, unit)
    }

    /// An action on one block. Most blocks of a model are alike and ask for the same operations, so what the first one did is counted again.
    fn block(&mut self, action: Action, unit: usize) -> Result<()> {
        let plan = self.executor.plan;
        let keeps = plan.policy.keeps_input(plan.layout.blocks[unit - 1].index);
        let key = match action {
            Action::Recompute { output, .. } => Action::Recompute { unit: 0, output },
            // The two kinds of forward differ in what they keep.
            Action::Forward { .. } => Action::Forward { unit: usize::from(keeps) },
            _ => Action::Backward { unit: usize::from(unit == 1) },
        };
        let (same_as, evaluates) = (plan.layout.same_as[unit - 1], self.executor.flow.evaluates);
        // What the action waits for and opens is the unit's own; only then is the rest alike.
        self.executor.prepare(action, unit)?;
        let before = self.held(unit);
        let is_known = |block: &&RecordedBlock| {
            block.action == key && block.same_as == same_as && block.evaluates == evaluates && block.before == before
        };
        let Some(block) = self.blocks.iter().find(is_known) else {
            return self.first_block(action, unit, (key, same_as, before));
        };
        self.recorder.add(&block.flops, 1);
        let (made, saved) = block.after.clone();
        let (arena, flow) = (&self.executor.context.arena, &mut self.executor.flow);
        let recomputes = matches!(action, Action::Recompute { .. });
        arena.replay_change(&block.memory, || {
            flow.saved[unit] = Saved::default();
            if !recomputes {
                flow.stream = None;
            }
        });
        self.absent_saved[unit] = Some(saved);
        match action {
            Action::Recompute { output: true, .. } => {
                self.fetch(unit + 1)?;
                let saved = self.executor.flow.saved[unit + 1].as_ref().map(Buffer::footprint);
                self.absent_saved[unit + 1] = Some(Saved { input: made, ..saved });
                let (arena, flow) = (&self.executor.context.arena, &mut self.executor.flow);
                arena.replay_change(&Swing::default(), || flow.saved[unit + 1] = Saved::default());
            }
            Action::Recompute { .. } => {}
            _ => self.absent_stream = made,
        }
        Ok(())
    }

    /// An action on a block that begins in a state in which none has begun.
    fn first_block(
        &mut self,
        action: Action,
        unit: usize,
        (key, same_as, before): (Action, usize, BlockState),
    ) -> Result<()> {
        self.fetch(unit)?;
        if let Action::Recompute { output: true, .. } = action {
            self.fetch(unit + 1)?;
        }
        let counted = self.recorder.flops();
        let arena = self.executor.context.arena.clone();
        let (done, memory) = arena.record_change(|| self.executor.act(action, &mut (), &mut ()));
        done?;
        let flops = self.recorder.since(&counted);
        let mut after = self.held(unit);
        if let Action::Recompute { output, .. } = action {
            let next = self.executor.flow.saved.get(unit + 1).filter(|_| output);
            after.0 = next.and_then(|next| next.input.as_ref()).map(Buffer::footprint);
        }
        let evaluates = self.executor.flow.evaluates;
        self.blocks.push(RecordedBlock { action: key, same_as, evaluates, before, after, memory, flops });
        Ok(())
    }

    /// What a block finds, be it there or only counted.
    fn held(&self, unit: usize) -> BlockState {
        let flow = &self.executor.flow;
        let stream = self.absent_stream.or(flow.stream.as_ref().map(Buffer::footprint));
        let there = || flow.saved[unit].as_ref().map(Buffer::footprint);
        (stream, self.absent_saved[unit].clone().unwrap_or_else(there))
    }

    /// Buffers for what has been counted of the stream and of a unit's saved tensors without being there.
    fn fetch(&mut self, unit: usize) -> Result<()> {
        let (stream, saved) = (self.absent_stream.take(), self.absent_saved[unit].take());
        let (arena, flow) = (&self.executor.context.arena, &mut self.executor.flow);
        arena.replay_change(&Swing::default(), || -> Result<()> {
            if let Some(stream) = stream {
                flow.stream = Some(stream.alloc(arena)?);
            }
            if let Some(saved) = saved {
                let mut failed = None;
                let made = saved.map(|footprint| footprint.alloc(arena).map_err(|error| failed = Some(error)));
                if let Some(error) = failed {
                    return Err(error.into());
                }
                flow.saved[unit] = made.map(|made| made.expect("a failure has ended this"));
            }
            Ok(())
        })
    }
}

/// What has been added to the account since `before`.
fn less(mut rows: Vec<Traffic>, before: &[Traffic]) -> Vec<Traffic> {
    for row in &mut rows {
        if let Some(was) = before.iter().find(|was| (was.axis, was.kind) == (row.axis, row.kind)) {
            row.calls -= was.calls;
            row.payload_bytes -= was.payload_bytes;
            row.wire_bytes -= was.wire_bytes;
        }
    }
    rows
}
