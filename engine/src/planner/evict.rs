//! Dynamic tensor rematerialisation (DTR, Kirisame et al. 2021), decided when a plan is made.
//!
//! Forward keeps every tensor that backward reads. A dry run performs the list of actions while it is made. Where an action would pass
//! the capacity, the tensors that are worth least ([`held`]) are dropped before it, as many as it takes: what the action itself takes
//! does not depend on them, so that the bytes which they give back are exact. Before a block's backward the list makes again what that
//! block lacks, from the nearest block before it whose input is there. The list then says everything ahead, and a run carries it out
//! as any other.
//!
//! Inputs of blocks are dropped only where dropping everything else does not do: a block whose input is there is made again once.
//!
//! Where activations live elsewhere (`memory.offload_activations`), what takes products or attention to be made again is moved there
//! in place of being dropped, and comes back before its block's backward.

mod held;

use super::compressed::cycles;
use super::dry::{DryRun, alike};
use crate::action::{Action, Moved};
use crate::compute::error::{Result, StepError};
use crate::config::{Cell, Checkpointing, MemoryTier};
use crate::model::layers::eviction::{INPUT, OUTPUT, kept_at, tensor_at};
use crate::model::{FlatKind, Layout, Unit};
use crate::plan::placement::{StateTiers, shard_dtype};
use crate::plan::schedule::{Follower, followed_actions};
use crate::plan::{Plan, PlanError, StagePlan};
use held::{ALL, Held, Kind, TENSORS};
use zbench_kernels::{Kernels, footprint};

/// Blocks of the largest model for which evictions are planned: every one is a choice among all tensors.
const MOST_BLOCKS: usize = 512;
/// Blocks times micro-batches of the longest step for which they are.
const MOST_FORWARDS: usize = 1 << 18;
/// Actions of a micro-batch, and of a step, behind which nothing more is dropped. Where inputs are dropped under a small capacity, what is
/// made again grows with the square of the blocks.
const MOST_ACTIONS: [usize; 2] = [1 << 16, 1 << 23];
/// Micro-batches for which evictions are decided, where a step has more: those in the middle are alike.
const DECIDED: usize = 4;

/// The bytes that a cell's saved tensors must leave room in, where it evicts them.
///
/// # Errors
/// It states no capacity, or evictions are not planned for such a cell.
pub fn capacity(cell: &Cell) -> Result<Option<u64>, PlanError> {
    if cell.memory.checkpointing != Checkpointing::Evict {
        return Ok(None);
    }
    let fail = |reason: String| Err(PlanError { key: "memory.checkpointing", reason });
    let (blocks, micros) = (cell.model.num_hidden_layers, cell.train.accumulation);
    if blocks > MOST_BLOCKS || blocks.saturating_mul(micros) > MOST_FORWARDS {
        let reason = "is \"evict\", which is planned for up to";
        return fail(format!(
            "{reason} {MOST_BLOCKS} blocks and {MOST_FORWARDS} forwards of one in a step; write \"full\""
        ));
    }
    match cell.memory.capacity {
        None => fail(
            "is \"evict\", which drops tensors where a rank's memory would be passed, and nothing says how much that is; write \
             memory.capacity, as \"16GiB\""
                .into(),
        ),
        capacity => Ok(capacity),
    }
}

impl Plan {
    /// Bytes by which the largest rank passes the cell's capacity; of a cell that evicts, by the least that was found.
    pub fn above_capacity(&self, cell: &Cell) -> Option<u64> {
        let peak = self.stage_plans.iter().map(|stage_plan| stage_plan.estimate.memory().total_peak()).max()?;
        peak.checked_sub(cell.memory.capacity?).filter(|above| *above > 0)
    }

    /// The stage plan of a stage, which passes the capacity with everything kept, with evictions and its estimate.
    pub(super) fn evicted(
        &self,
        cell: &Cell,
        kernels: &dyn Kernels,
        (base, stage, first_rank): (StagePlan, usize, usize),
        capacity: u64,
    ) -> Result<StagePlan> {
        let [of_micro, of_step] = MOST_ACTIONS;
        let actions = of_micro.min(of_step / cell.train.accumulation);
        let mut best: Option<StagePlan> = None;
        let peak = |stage_plan: &StagePlan| stage_plan.estimate.memory().total_peak();
        // What is gathered ahead depends on what is made again, so that a list under a capacity may take a little more than one that
        // drops everything: where the first two do not fit, these are tried.
        // State that is fetched ahead of its use comes into the list when evictions are decided, and may pass the capacity by what is on
        // its way: then so much less is tried.
        let ahead = self.fetched_ahead(cell, &base);
        let less = capacity.checked_sub(ahead).filter(|less| ahead > 0 && *less > 0);
        let with = |inputs| [Some((capacity, inputs)), less.map(|less| (less, inputs))].into_iter().flatten();
        for (within, inputs) in with(false).chain(with(true)).chain([(0, false), (0, true)]) {
            let limits = Limits { capacity: within, inputs, actions };
            let mut stage_plan = self.decided(cell, kernels, (&base, stage, first_rank), limits)?;
            stage_plan.estimate = self.dry_run(cell, kernels, (&stage_plan, None), first_rank, false)?.0;
            if best.as_ref().is_none_or(|best| peak(&stage_plan) < peak(best)) {
                best = Some(stage_plan);
            }
            if best.as_ref().is_some_and(|best| peak(best) <= capacity) {
                break;
            }
        }
        best.ok_or(StepError::Bug("no evictions were planned"))
    }

    /// Bytes of the device that units on their way to it take at most, where weights live elsewhere: to be gathered, and with a delayed
    /// update to be updated, too.
    fn fetched_ahead(&self, cell: &Cell, stage_plan: &StagePlan) -> u64 {
        if cell.memory.offload_parameters == MemoryTier::Device {
            return 0;
        }
        let ranks = self.mesh.size(self.sharding.parameters);
        let part = |unit: &Unit| -> u64 {
            let bytes = |flat| footprint(shard_dtype(cell, flat), unit.flat(flat).padded / ranks).unwrap_or(0);
            FlatKind::ALL.into_iter().map(bytes).sum()
        };
        let largest = stage_plan.layout.units.iter().map(|unit| part(unit)).max().unwrap_or(0);
        let units = (1 + cell.memory.offload_prefetch as u64) * (1 + u64::from(cell.train.is_delayed()));
        largest.saturating_mul(units)
    }

    /// The stage plan with a list in which evictions are decided. Where a step has many micro-batches they are decided for a few.
    fn decided(
        &self,
        cell: &Cell,
        kernels: &dyn Kernels,
        of: (&StagePlan, usize, usize),
        limits: Limits,
    ) -> Result<StagePlan> {
        let micros = cell.train.accumulation;
        if of.0.in_flight == 1 && micros > DECIDED {
            let mut few = cell.clone();
            few.train.accumulation = DECIDED;
            let stage_plan = self.decided(&few, kernels, of, limits)?;
            if let Some(actions) = with_more_micros(&stage_plan.actions, micros - DECIDED) {
                return Ok(StagePlan { actions, ..stage_plan });
            }
        }
        let (base, stage, rank) = of;
        let run = DryRun::new(cell, kernels, (self, base, None), rank, false)?;
        let mut evictor = Evictor::new(run, base, Limits { actions: limits.actions * micros, ..limits });
        self.stage_plan_with(cell, base.layout.clone(), stage, |schedule| followed_actions(schedule, &mut evictor))
    }
}

/// The list of a step of [`DECIDED`] micro-batches, in which the third comes so many times more; nothing where that is not like the second.
fn with_more_micros(list: &[Action], more: usize) -> Option<Vec<Action>> {
    let cycles: Vec<&[Action]> = cycles(list, 1).collect();
    let [first, second, third, last] = cycles[..] else { return None };
    let later = |cycle: &'_ [Action], micros: usize| -> Vec<Action> {
        cycle.iter().map(|action| action.earlier(micros.wrapping_neg())).collect()
    };
    let middle = (0..=more).map(|micros| later(third, micros));
    let all = [first.to_vec(), second.to_vec()].into_iter().chain(middle).chain([later(last, more)]);
    alike(second, third).then(|| all.flatten().collect())
}

/// Up to where tensors are dropped.
#[derive(Clone, Copy)]
struct Limits {
    /// Bytes that a rank has.
    capacity: u64,
    /// Whether inputs of blocks are dropped, too.
    inputs: bool,
    /// Actions of a micro-batch behind which nothing more is; of a list as many times more as it has micro-batches.
    actions: usize,
}

/// Decides evictions while a list is made.
struct Evictor<'a> {
    /// Performs what is on the list.
    run: DryRun<'a>,
    layout: &'a Layout,
    limits: Limits,
    /// Actions of the list that have been performed.
    done: usize,
    kinds: Vec<Kind>,
    /// By layer that others are the same as: the number of its kind, once one of them has gone forward.
    kind_of: Vec<Option<usize>>,
    /// By number of the micro-batch, modulo how many are in flight: the number, and what is held of it.
    held: Vec<(usize, Held)>,
    tiers: StateTiers,
    /// The micro-batch and the layer of what goes to a disk.
    going: Option<[usize; 2]>,
}

impl<'a> Evictor<'a> {
    fn new(run: DryRun<'a>, stage_plan: &'a StagePlan, limits: Limits) -> Evictor<'a> {
        let layers = stage_plan.layout.layers.len();
        let (kind_of, held) = (vec![None; layers], vec![(0, Held::new(layers)); stage_plan.in_flight]);
        let tiers = run.tiers();
        Evictor {
            run,
            layout: &stage_plan.layout,
            limits,
            done: 0,
            kinds: Vec::new(),
            kind_of,
            held,
            tiers,
            going: None,
        }
    }

    fn held_of(&mut self, micro: usize) -> &mut Held {
        let in_flight = self.held.len();
        &mut self.held[micro % in_flight].1
    }

    fn is_block(&self, layer: usize) -> bool {
        self.layout.layers.get(layer).is_some_and(|layer| layer.block().is_some())
    }

    /// What goes next, of what `may_go` in a layer of a micro-batch: the micro-batch, the layer, and the place in it.
    fn next_to_go(&self, may_go: impl Fn(usize, usize) -> u16) -> Option<[usize; 3]> {
        let possible = if self.limits.inputs || self.tiers.activations != MemoryTier::Device { ALL } else { TENSORS };
        let candidates = self.held.iter().filter_map(|(micro, held)| {
            // The input of a chunk's first block comes from another stage.
            let of_layer = |layer| if self.layout.begins_chunk(layer) { possible & TENSORS } else { possible };
            let least = held.least(&self.kinds, self.done, |layer| may_go(*micro, layer) & of_layer(layer))?;
            Some((*micro, least))
        });
        let (micro, least) = candidates.reduce(|least, next| if next.1.is_before(&least.1) { next } else { least })?;
        Some([micro, least.layer, least.place])
    }

    /// Drops a tensor before the next action of the list.
    fn drop_tensor(&mut self, list: &mut Vec<Action>, [micro, layer, place]: [usize; 3]) -> Result<()> {
        self.held_of(micro).evict(layer, place);
        self.insert(list, Action::Evict { micro, layer, tensor: tensor_at(place) })
    }

    /// Makes room by a tensor before the next action of the list. Where activations live elsewhere it goes there, unless it costs nothing
    /// to make it again; else it is dropped.
    fn evict(&mut self, list: &mut Vec<Action>, [micro, layer, place]: [usize; 3]) -> Result<()> {
        let held = &self.held[micro % self.held.len()].1;
        let tier = self.tiers.activations;
        if tier == MemoryTier::Device || held.cost(&self.kinds, layer, place) == 0 {
            return self.drop_tensor(list, [micro, layer, place]);
        }
        if let Some([micro, layer]) = self.going.take_if(|going| *going != [micro, layer]) {
            self.insert(list, Action::WaitStoreSaved { micro, layer })?;
        }
        self.held_of(micro).offload(layer, place);
        self.insert(list, Action::StoreSaved { micro, layer, what: kept_at(place) })?;
        if tier == MemoryTier::Host {
            // Its memory is free when it has gone. What goes to a disk has left the device, and is on its way from the host's memory.
            return self.insert(list, Action::WaitStoreSaved { micro, layer });
        }
        self.going = Some([micro, layer]);
        Ok(())
    }

    /// Puts an action before the next one of the list.
    fn insert(&mut self, list: &mut Vec<Action>, action: Action) -> Result<()> {
        self.run.rise(action)?;
        list.insert(self.done, action);
        self.done += 1;
        Ok(())
    }

    /// Performs the next action of the list, which is there for `of`, behind evictions where it would pass the capacity without them.
    fn perform(&mut self, list: &mut Vec<Action>, of: Action) -> Result<()> {
        let action = list[self.done];
        if let Action::Gather { unit, slot: true, .. } = action
            && self.tiers.parameters != MemoryTier::Device
        {
            // Its fetch comes into the list later.
            self.run.rise(Action::Fetch { unit, what: Moved::Weights })?;
        }
        let before = self.run.in_use();
        let mut above = self.above(before, action)?;
        // What is dropped first takes part in the action in no way, so that it can be dropped behind it, too. A block that is about to be
        // made again needs its input alone.
        let in_work = match of {
            Action::Forward { micro, layer }
            | Action::Backward { micro, layer }
            | Action::BackwardInput { micro, layer } => Some([micro, layer]),
            Action::Recompute { micro, layer, .. } | Action::FetchSaved { micro, layer } => Some([micro, layer]),
            _ => None,
        };
        let comes_again = matches!(of, Action::Recompute { .. }) && list[self.done + 1..].contains(&of);
        let of_work = if comes_again { TENSORS } else { 0 };
        while above > 0 && list.len() < self.limits.actions {
            let others = |micro, layer| if in_work == Some([micro, layer]) { of_work } else { ALL };
            let Some(next) = self.next_to_go(others) else { break };
            let full = self.run.in_use();
            // What is in work is not moved away and back.
            match in_work == Some([next[0], next[1]]) {
                true => self.drop_tensor(list, next)?,
                false => self.evict(list, next)?,
            }
            above = above.saturating_sub(full - self.run.in_use());
        }
        // What is there already of a block that is made again lies beside the scratch of what is made first: without it the block is
        // made again in less.
        if let Action::Recompute { micro, layer, output } = action {
            while above > 0 && list.len() < self.limits.actions {
                let own = |of, other| if [of, other] == [micro, layer] { TENSORS } else { 0 };
                let Some(next) = self.next_to_go(own) else { break };
                self.drop_tensor(list, next)?;
                let there = self.held_of(micro).there(layer);
                let saved = self.run.saved(micro, layer);
                (INPUT + 1..OUTPUT)
                    .filter(|place| there & 1 << place == 0)
                    .for_each(|place| saved.evict(tensor_at(place)));
                if output {
                    self.run.saved(micro, layer + 1).evict(None);
                }
                above = self.above(self.run.in_use(), action)?;
            }
        }
        self.note(action)?;
        self.done += 1;
        Ok(())
    }

    /// Performs an action when so many bytes are in use: by how many more it passes the capacity.
    fn above(&mut self, in_use: u64, action: Action) -> Result<u64> {
        Ok(in_use.saturating_add(self.run.rise(action)?).saturating_sub(self.limits.capacity))
    }

    /// Notes what an action, the last one performed, has done to what is held.
    fn note(&mut self, action: Action) -> Result<()> {
        let at = self.done;
        match action {
            Action::Forward { micro, layer } if self.is_block(layer) => {
                let kind = self.kind(micro, layer)?;
                let there = self.run.saved(micro, layer).places();
                let in_flight = self.held.len();
                self.held[micro % in_flight].0 = micro;
                self.held_of(micro).forward(layer, kind, there, at);
            }
            Action::Recompute { micro, layer, output } => {
                let there = self.run.saved(micro, layer).places();
                self.held_of(micro).recompute(layer, there, at);
                if output {
                    self.held_of(micro).input(layer + 1, at);
                }
            }
            Action::FetchSaved { micro, layer } => self.held_of(micro).fetch(layer, at),
            Action::Backward { micro, layer } | Action::BackwardInput { micro, layer } if self.is_block(layer) => {
                self.held_of(micro).backward(layer);
            }
            _ => {}
        }
        Ok(())
    }

    /// The kind of a block that has just gone forward. Of the first of a kind each tensor is dropped and made again.
    fn kind(&mut self, micro: usize, layer: usize) -> Result<usize> {
        let same_as = self.layout.same_as[layer];
        if let Some(kind) = self.kind_of[same_as] {
            return Ok(kind);
        }
        let sources = self.layout.layers[layer].block().map_or([0; OUTPUT + 1], |block| block.sources());
        let (mut bytes, mut flops) = ([0; OUTPUT], [0; OUTPUT + 1]);
        let saved = self.run.saved(micro, layer);
        let there = saved.places();
        bytes[INPUT] = saved.input.as_ref().and_then(|input| footprint(input.dtype(), input.len())).unwrap_or(0);
        for place in (INPUT + 1..OUTPUT).filter(|place| there & 1 << place != 0) {
            (bytes[place], flops[place]) = self.made_again(micro, layer, place)?;
        }
        let next = layer + 1;
        if self.is_block(next) && !self.layout.begins_chunk(next) {
            let before = self.run.executed();
            self.run.rise(Action::Recompute { micro, layer, output: true })?;
            flops[OUTPUT] = self.run.executed() - before;
            self.run.saved(micro, next).evict(None);
            // The output may take what forward has not kept.
            let saved = self.run.saved(micro, layer);
            let more = saved.places() & !there;
            (0..OUTPUT).filter(|place| more & 1 << place != 0).for_each(|place| saved.evict(tensor_at(place)));
        }
        self.kinds.push(Kind { bytes, flops, sources });
        self.kind_of[same_as] = Some(self.kinds.len() - 1);
        Ok(self.kinds.len() - 1)
    }

    /// Drops a tensor and makes it again: its bytes, and the operations that it took.
    fn made_again(&mut self, micro: usize, layer: usize, place: usize) -> Result<(u64, u128)> {
        let full = self.run.in_use();
        self.run.saved(micro, layer).evict(tensor_at(place));
        let (bytes, before) = (full - self.run.in_use(), self.run.executed());
        self.run.rise(Action::Recompute { micro, layer, output: false })?;
        Ok((bytes, self.run.executed() - before))
    }
}

impl Follower for Evictor<'_> {
    fn needed(&self, action: Action) -> Option<Action> {
        let (Action::Backward { micro, layer } | Action::BackwardInput { micro, layer }) = action else { return None };
        let (_, held) = &self.held[micro % self.held.len()];
        if !self.is_block(layer) {
            return None;
        }
        if !held.has_input(layer) {
            let from = (0..layer).rev().find(|before| held.has_input(*before))?;
            return Some(match held.is_away(from) {
                true => Action::FetchSaved { micro, layer: from },
                false => Action::Recompute { micro, layer: from, output: true },
            });
        }
        if held.is_away(layer) {
            return Some(Action::FetchSaved { micro, layer });
        }
        held.lacks(layer).then_some(Action::Recompute { micro, layer, output: false })
    }

    fn follow(&mut self, list: &mut Vec<Action>, action: Action) -> Result<()> {
        while self.done < list.len() {
            self.perform(list, action)?;
        }
        Ok(())
    }
}
