//! The schedule: from a stage's layers and passes to the list of what its ranks do.

use crate::action::{Action, EvaluationActions};
use crate::compute::error::Result;
use crate::config::{Checkpointing, SavedTensor};
use crate::mesh::strategy::Reshard;
use crate::model::{Layer, LayerKind};
use crate::plan::pipeline::Pass;
use std::ops::Range;

/// What the schedule depends on.
#[derive(Clone, Debug)]
pub struct Schedule<'a> {
    pub layers: &'a [Layer],
    /// The layers of each chunk of the stage.
    pub chunks: &'a [Range<usize>],
    pub units: usize,
    /// The order of micro-batches.
    pub passes: &'a [Pass],
    /// When slots are given back.
    pub reshard: Reshard,
    /// Units gathered ahead.
    pub prefetch: usize,
    /// By unit: whether it has trainable weights.
    pub trainable: &'a [bool],
    /// By unit: whether its shard is stale after an update.
    pub stale: &'a [bool],
    /// The unit whose gradients the other end of the pipeline has, too.
    pub tied: Option<usize>,
    /// By unit: whether its weights are read from a slot.
    pub is_gathered: &'a [bool],
    pub policy: &'a Policy,
}

/// A checkpointing key, resolved for a number of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Inputs are kept of blocks whose number is a multiple of this.
    pub every: usize,
    /// The tensors of a block that forward keeps.
    pub keep: Vec<SavedTensor>,
}

impl Policy {
    /// Resolves the key.
    pub fn of(checkpointing: &Checkpointing, blocks: usize) -> Policy {
        let every = match checkpointing {
            Checkpointing::Every(k) => (*k).max(1),
            Checkpointing::Sqrt => (1..).find(|k| k * k >= blocks).unwrap_or(1),
            _ => 1,
        };
        let keep = match checkpointing {
            Checkpointing::None | Checkpointing::Evict => SavedTensor::ALL.to_vec(),
            Checkpointing::Full | Checkpointing::Every(_) | Checkpointing::Sqrt => Vec::new(),
            Checkpointing::Selective => {
                vec![SavedTensor::Qkv, SavedTensor::Attention, SavedTensor::Residual, SavedTensor::GateUp]
            }
            Checkpointing::Keep(list) => {
                let mut keep = list.clone();
                keep.sort();
                keep.dedup();
                keep
            }
        };
        Policy { every, keep }
    }

    /// Whether forward keeps the input of block `index`.
    pub fn keeps_input(&self, index: usize) -> bool {
        index.is_multiple_of(self.every)
    }

    /// Whether backward finds everything it needs.
    pub fn keeps_all(&self) -> bool {
        self.every == 1 && self.keep.len() == SavedTensor::ALL.len()
    }
}

/// Who follows a list while it is made, and decides what else is done.
pub trait Follower {
    /// What must be done before this action, the first thing; nothing where all is there that it reads.
    fn needed(&self, action: Action) -> Option<Action>;

    /// The list has grown by what it takes to do this action. Actions may be put between those that are new.
    ///
    /// # Errors
    /// An action cannot be done.
    fn follow(&mut self, list: &mut Vec<Action>, action: Action) -> Result<()>;
}

/// The list of a step.
pub fn actions(schedule: &Schedule<'_>) -> Vec<Action> {
    let mut planner = GatherPlanner::new(schedule);
    planner.run(&computes(schedule));
    planner.end();
    planner.list
}

/// As [`actions`], with what a follower puts into the list.
///
/// # Errors
/// Those of the follower.
pub fn followed_actions(schedule: &Schedule<'_>, follower: &mut dyn Follower) -> Result<Vec<Action>> {
    let computes = computes(schedule);
    let mut planner = GatherPlanner::new(schedule);
    for (i, next) in computes.iter().enumerate() {
        while let Some(action) = follower.needed(next.action) {
            planner.one(&schedule.compute(action), &computes[i..]);
            follower.follow(&mut planner.list, action)?;
        }
        planner.one(next, &computes[i + 1..]);
        follower.follow(&mut planner.list, next.action)?;
    }
    planner.end();
    follower.follow(&mut planner.list, Action::Update)?;
    Ok(planner.list)
}

/// What a stage computes in a step.
fn computes(schedule: &Schedule<'_>) -> Vec<Compute> {
    let last = schedule.passes.iter().map(|pass| pass.micro()).max().unwrap_or(0);
    // A layer takes at most recomputing, backward and a reduction in one pass; what moves is a few more.
    let of_chunk = schedule.layers.len().div_ceil(schedule.chunks.len());
    let mut computes = Vec::with_capacity(schedule.passes.len() * (2 * of_chunk + 3));
    // By chunk: where its cycle begins, and whether it goes forward.
    let mut cycles = vec![(0, true); schedule.chunks.len()];
    for pass in schedule.passes {
        let (chunk, of) = (pass.chunk(), (schedule, pass.micro(), last));
        let layers = schedule.chunks[chunk].clone();
        let (begin, goes_forward) = &mut cycles[chunk];
        let turns = matches!(pass, Pass::Forward { .. }) && !*goes_forward;
        if turns {
            schedule.mark_last(&mut computes[*begin..], &layers);
            *begin = computes.len();
        }
        *goes_forward = matches!(pass, Pass::Forward { .. });
        match pass {
            Pass::Forward { .. } => forward(of, chunk, &mut computes),
            Pass::Backward { .. } => backward(of, chunk, Backward::Whole, &mut computes),
            Pass::BackwardInput { .. } => backward(of, chunk, Backward::Input, &mut computes),
            Pass::BackwardWeight { .. } => backward_weight(of, layers, &mut computes),
        }
    }
    for ((begin, _), layers) in cycles.iter().zip(schedule.chunks) {
        schedule.mark_last(&mut computes[*begin..], layers);
    }
    computes
}

/// The lists of an evaluation. Where a step gives slots back after forward, every micro-batch ends with all of them given
/// back: the head's and the embedding's, the largest of most models, are then never there together, as they are not in
/// a step. Otherwise all units stay to the end.
pub fn evaluation_actions(schedule: &Schedule<'_>) -> EvaluationActions {
    let mut computes = Vec::new();
    (0..schedule.chunks.len()).for_each(|chunk| forward((schedule, 0, 0), chunk, &mut computes));
    computes.retain(|compute| !matches!(compute.action, Action::Reduce { .. }));
    let mut planner = GatherPlanner::new(schedule);
    let mut micro_batch = || {
        planner.run(&computes);
        if schedule.reshard == Reshard::AfterForward {
            planner.empty();
        }
        std::mem::take(&mut planner.list)
    };
    let (first, next) = (micro_batch(), micro_batch());
    planner.empty();
    EvaluationActions { first, next, end: planner.list }
}

/// An action that computes, and the units whose weights it reads.
struct Compute {
    action: Action,
    reads: Reads,
    /// Of the units, those that nothing later in the micro-batch reads.
    last: [bool; 2],
}

/// Units whose weights an action reads: the head's are two where it reads the embedding's table.
#[derive(Clone, Copy)]
enum Reads {
    None,
    One([usize; 1]),
    Two([usize; 2]),
}

impl Reads {
    fn units(&self) -> &[usize] {
        match self {
            Reads::None => &[],
            Reads::One(unit) => unit,
            Reads::Two(units) => units,
        }
    }
}

fn reduce(s: &Schedule<'_>, unit: usize, micro: usize, last: usize) -> Option<Compute> {
    let action = Action::Reduce { unit, first: micro == 0, last: micro == last };
    s.trainable[unit].then(|| s.compute(action))
}

/// A schedule, the number of a micro-batch, and that of the step's last one.
type OfMicro<'a> = (&'a Schedule<'a>, usize, usize);

/// What of backward comes with the gradient of the input.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backward {
    Whole,
    /// Of blocks nothing else: the gradients of their weights come later.
    Input,
}

/// What a chunk computes forward. The head goes backward, too, and its gradients are complete.
fn forward((s, micro, last): OfMicro<'_>, chunk: usize, list: &mut Vec<Compute>) {
    // All chunks read the same tokens.
    if chunk == 0 {
        list.push(s.compute(Action::Load { micro }));
    }
    let range = s.chunks[chunk].clone();
    let layers = &s.layers[range.clone()];
    if let Some(Layer { reads: stream, .. }) = layers.first().filter(|layer| layer.is_inner()) {
        list.push(s.compute(Action::Receive { micro, chunk, stream: *stream, gradient: false }));
    }
    for (number, layer) in range.zip(layers) {
        list.push(s.compute(Action::Forward { micro, layer: number }));
        if let LayerKind::Head(_) = layer.kind {
            list.extend(reduce(s, layer.unit, micro, last));
            // The embedding's backward completes what it shares, where that is here.
            let here = |table: &usize| s.layers.iter().any(|layer| layer.unit == *table);
            let copy = layer.shares.filter(|table| !here(table));
            list.extend(copy.and_then(|table| reduce(s, table, micro, last)));
        }
    }
    if let Some(Layer { writes: stream, .. }) = layers.last().filter(|layer| layer.is_inner()) {
        list.push(s.compute(Action::Send { micro, chunk, stream: *stream, gradient: false }));
    }
}

/// What a chunk computes backward, with the reductions that follow.
fn backward(of: OfMicro<'_>, chunk: usize, what: Backward, list: &mut Vec<Compute>) {
    let (s, micro, last) = of;
    let Range { start: begin, mut end } = s.chunks[chunk].clone();
    let layers = &s.layers[begin..end];
    if let Some(Layer { writes: stream, .. }) = layers.last().filter(|layer| layer.is_inner()) {
        list.push(s.compute(Action::Receive { micro, chunk, stream: *stream, gradient: true }));
    }
    while end > begin {
        let at = end - 1;
        let layer = &s.layers[at];
        match &layer.kind {
            LayerKind::Head(_) => end = at,
            LayerKind::Block(_) => {
                let before = s.layers[begin..end].iter().rposition(|layer| layer.block().is_none());
                let start = before.map_or(begin, |at| begin + at + 1);
                blocks_backward(of, start..end, what, list);
                end = start;
            }
            LayerKind::Embedding(_) => {
                if s.trainable[layer.unit] {
                    list.push(s.compute(Action::Backward { micro, layer: at }));
                    // The table may be another embedding's, too.
                    if s.layers[..at].iter().all(|other| other.unit != layer.unit) {
                        list.extend(reduce_layer(of, at));
                    }
                }
                end = at;
            }
            LayerKind::Norm(_) => {
                list.push(s.compute(Action::Backward { micro, layer: at }));
                list.extend(reduce(s, layer.unit, micro, last));
                end = at;
            }
        }
    }
    if let Some(Layer { reads: stream, .. }) = layers.first().filter(|layer| layer.is_inner()) {
        list.push(s.compute(Action::Send { micro, chunk, stream: *stream, gradient: true }));
    }
}

/// Backward of blocks that follow each other, in segments of those whose input is made again from one that was kept.
fn blocks_backward(of: OfMicro<'_>, blocks: Range<usize>, what: Backward, list: &mut Vec<Compute>) {
    let (s, micro, _) = of;
    let every = s.policy.every;
    let segments = blocks.clone().step_by(every).map(|start| start..(start + every).min(blocks.end));
    let recompute = |layer, output| s.compute(Action::Recompute { micro, layer, output });
    for segment in segments.rev() {
        if every > 1 {
            list.extend(segment.clone().map(|layer| recompute(layer, layer + 1 < segment.end)));
        }
        for layer in segment.rev() {
            if every == 1 && !s.policy.keeps_all() {
                list.push(recompute(layer, false));
            }
            if what == Backward::Input {
                list.push(s.compute(Action::BackwardInput { micro, layer }));
                continue;
            }
            list.push(s.compute(Action::Backward { micro, layer }));
            list.extend(reduce_layer(of, layer));
        }
    }
}

/// The gradients of the weights of a chunk's blocks, in the order of their backward.
fn backward_weight(of: OfMicro<'_>, layers: Range<usize>, list: &mut Vec<Compute>) {
    let (s, micro, _) = of;
    for layer in layers.rev().filter(|layer| s.layers[*layer].block().is_some()) {
        list.push(s.compute(Action::BackwardWeight { micro, layer }));
        list.extend(reduce_layer(of, layer));
    }
}

/// The reductions of a layer's gradients.
fn reduce_layer<'a>((s, micro, last): OfMicro<'a>, layer: usize) -> impl Iterator<Item = Compute> + 'a {
    let Layer { unit, second, .. } = s.layers[layer];
    [Some(unit), second].into_iter().flatten().filter_map(move |unit| reduce(s, unit, micro, last))
}

impl Schedule<'_> {
    fn compute(&self, action: Action) -> Compute {
        Compute { action, reads: self.reads(action), last: [false; 2] }
    }

    fn reads(&self, action: Action) -> Reads {
        let Some(layer) = action.layer_read().map(|layer| &self.layers[layer]) else { return Reads::None };
        match (action, &layer.kind) {
            (Action::Backward { .. }, LayerKind::Embedding(embedding)) if !embedding.reads_weights() => Reads::None,
            _ => {
                layer.shares.or(layer.second).map_or(Reads::One([layer.unit]), |other| Reads::Two([layer.unit, other]))
            }
        }
    }

    /// Marks what nothing later in a cycle of a chunk reads, where slots are given back by that.
    fn mark_last(&self, cycle: &mut [Compute], chunk: &Range<usize>) {
        if self.reshard != Reshard::AfterBackward {
            return;
        }
        let mut read = vec![false; self.units];
        let of_chunk = |compute: &&mut Compute| compute.action.place().is_some_and(|layer| chunk.contains(&layer));
        for compute in cycle.iter_mut().rev().filter(of_chunk) {
            for (last, unit) in compute.last.iter_mut().zip(compute.reads.units()) {
                *last = !std::mem::replace(&mut read[*unit], true);
            }
        }
    }
}

/// Which units' slots are filled while the list runs: a cache whose size and rule are the strategy's.
struct GatherPlanner<'a> {
    s: &'a Schedule<'a>,
    /// Whether a unit has a slot.
    slots: bool,
    /// Filled slots, the one used longest ago first.
    filled: Vec<usize>,
    stale: Vec<bool>,
    capacity: usize,
    list: Vec<Action>,
    /// Units that [`GatherPlanner::ahead`] looks for, and with those in use what it keeps: room that is used again.
    wanted: Vec<usize>,
    keep: Vec<usize>,
}

impl<'a> GatherPlanner<'a> {
    fn new(s: &'a Schedule<'a>) -> GatherPlanner<'a> {
        let most_read = if s.layers.iter().any(|layer| layer.shares.or(layer.second).is_some()) { 2 } else { 1 };
        let capacity = match s.reshard {
            Reshard::AfterForward => (1 + s.prefetch).max(most_read),
            Reshard::AfterBackward | Reshard::Never => usize::MAX,
        };
        let (filled, list, wanted, keep) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let slots = s.is_gathered.contains(&true);
        GatherPlanner { s, slots, filled, stale: s.stale.to_vec(), capacity, list, wanted, keep }
    }

    fn run(&mut self, computes: &[Compute]) {
        self.list.reserve(2 * computes.len());
        for (i, compute) in computes.iter().enumerate() {
            self.one(compute, &computes[i + 1..]);
        }
    }

    /// What it takes to do one thing, which `rest` follows.
    fn one(&mut self, compute: &Compute, rest: &[Compute]) {
        for &unit in compute.reads.units() {
            self.ensure(unit, compute.reads.units());
        }
        if !compute.reads.units().is_empty() && self.slots {
            self.ahead(compute.reads.units(), rest);
        }
        self.list.push(compute.action);
        if self.s.reshard == Reshard::AfterBackward {
            let done = compute.reads.units().iter().zip(compute.last).filter(|(_, last)| *last);
            done.for_each(|(&unit, _)| self.release(unit));
        }
    }

    /// The update makes every slot stale.
    fn end(&mut self) {
        self.empty();
        let tied = self.s.tied.filter(|unit| self.s.trainable[*unit]);
        self.list.extend(tied.map(|unit| Action::ReduceTied { unit }));
        self.list.push(Action::Update);
    }

    fn empty(&mut self) {
        while let Some(&unit) = self.filled.first() {
            self.release(unit);
        }
    }

    /// The unit's weights are current and, where they need one, in a slot.
    fn ensure(&mut self, unit: usize, in_use: &[usize]) {
        if let Some(at) = self.filled.iter().position(|&u| u == unit) {
            self.filled.remove(at);
            self.filled.push(unit);
            return;
        }
        let (refresh, slot) = (std::mem::take(&mut self.stale[unit]), self.s.is_gathered[unit]);
        if slot {
            while self.filled.len() >= self.capacity {
                let Some(&victim) = self.filled.iter().find(|u| !in_use.contains(u)) else { break };
                self.release(victim);
            }
            self.filled.push(unit);
        }
        if refresh || slot {
            self.list.push(Action::Gather { unit, refresh, slot });
        }
    }

    /// Starts the gathers of the next units, as far as slots go.
    fn ahead(&mut self, in_use: &[usize], rest: &[Compute]) {
        // Every unit is read within a micro-batch; looking further than that would find nothing new.
        let reach = 4 * self.s.is_gathered.len();
        let (mut wanted, mut keep) = (std::mem::take(&mut self.wanted), std::mem::take(&mut self.keep));
        wanted.clear();
        for &unit in rest.iter().take(reach).flat_map(|compute| compute.reads.units()) {
            if wanted.len() == self.s.prefetch {
                break;
            }
            if self.s.is_gathered[unit] && !in_use.contains(&unit) && !wanted.contains(&unit) {
                wanted.push(unit);
            }
        }
        keep.clear();
        keep.extend(in_use.iter().chain(&wanted));
        for &unit in &wanted {
            let room = self.filled.len() < self.capacity || self.filled.iter().any(|u| !keep.contains(u));
            if self.filled.contains(&unit) || !room {
                continue;
            }
            self.ensure(unit, &keep);
        }
        (self.wanted, self.keep) = (wanted, keep);
    }

    fn release(&mut self, unit: usize) {
        if let Some(at) = self.filled.iter().position(|&u| u == unit) {
            self.filled.remove(at);
            self.list.push(Action::Release { unit });
        }
    }
}
