//! The schedule: what one rank does in one step, as a list.

use crate::config::{Checkpointing, SavedTensor};
use crate::strategy::Reshard;
use serde::{Deserialize, Serialize};

/// One thing a rank does. Units are numbers in [`crate::model::Layout::units`]; `micro` counts micro-batches from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Load {
        micro: usize,
    },
    /// Bring a unit's weights here: first make this rank's own part current, then fill a slot.
    Gather {
        unit: usize,
        /// The home is stale outside this rank's optimizer share: gather it from the ranks that updated it.
        refresh: bool,
        /// Fill a slot in the compute type.
        slot: bool,
    },
    /// Forward of a unit; of the head, forward, loss and backward.
    Forward {
        unit: usize,
    },
    /// Make a block's dropped tensors again, and its output if the next block lacks its input.
    #[serde(rename = "restore")]
    Recompute {
        unit: usize,
        output: bool,
    },
    /// Backward of a unit.
    Backward {
        unit: usize,
    },
    /// Give a unit's slot back.
    Release {
        unit: usize,
    },
    /// A unit's gradients of this micro-batch are complete: bring them to where they live.
    Reduce {
        unit: usize,
        /// First micro-batch of the step: overwrite rather than add.
        first: bool,
        /// Last micro-batch of the step: sum over the axes that wait for it.
        last: bool,
    },
    /// Agree on loss and norm, clip, update.
    Update,
}

impl Action {
    /// The unit that it is about.
    pub fn unit_mut(&mut self) -> Option<&mut usize> {
        match self {
            Action::Load { .. } | Action::Update => None,
            Action::Gather { unit, .. }
            | Action::Forward { unit }
            | Action::Recompute { unit, .. }
            | Action::Backward { unit }
            | Action::Release { unit }
            | Action::Reduce { unit, .. } => Some(unit),
        }
    }
}

/// What the schedule depends on.
#[derive(Clone, Debug)]
pub struct Schedule<'a> {
    pub blocks: usize,
    pub accumulation: usize,
    /// When slots are given back.
    pub reshard: Reshard,
    /// Units gathered ahead.
    pub prefetch: usize,
    /// Whether the head reads the embedding's table.
    pub tied: bool,
    /// Whether the embedding's backward reads its weights.
    pub embedding_reads: bool,
    /// By unit: whether it has trainable weights.
    pub trainable: &'a [bool],
    /// By unit: whether its home is stale after an update.
    pub stale: &'a [bool],
    /// By unit: whether its weights are read from a slot.
    pub slotted: &'a [bool],
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
            Checkpointing::None => SavedTensor::ALL.to_vec(),
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

/// The list of a step.
pub fn actions(schedule: &Schedule<'_>) -> Vec<Action> {
    let mut computes = Vec::new();
    for micro in 0..schedule.accumulation {
        let begin = computes.len();
        micro_batch(schedule, micro, &mut computes);
        mark_last(schedule.slotted.len(), &mut computes[begin..]);
    }
    let mut residency = Residency::new(schedule);
    residency.run(&computes);
    // The update makes every slot stale.
    residency.empty();
    residency.list.push(Action::Update);
    residency.list
}

/// What a rank does in an evaluation: forward alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvaluationActions {
    /// For the first micro-batch.
    pub first: Vec<Action>,
    /// For every other one.
    pub next: Vec<Action>,
    /// After the last.
    pub end: Vec<Action>,
}

/// The lists of an evaluation. Where a step gives slots back after forward, every micro-batch ends with all of them given
/// back: the head's and the embedding's, the largest of most models, are then never there together, as they are not in
/// a step. Otherwise all units stay to the end.
pub fn evaluation_actions(schedule: &Schedule<'_>) -> EvaluationActions {
    let head = schedule.blocks + 1;
    let compute = |action, reads| Compute { action, reads, last: [false; 2] };
    let mut computes = vec![compute(Action::Load { micro: 0 }, Reads::None)];
    computes.extend((0..head).map(|unit| compute(Action::Forward { unit }, Reads::One([unit]))));
    let reads = if schedule.tied { Reads::Two([head, 0]) } else { Reads::One([head]) };
    computes.push(compute(Action::Forward { unit: head }, reads));
    let mut residency = Residency::new(schedule);
    let mut micro_batch = || {
        residency.run(&computes);
        if schedule.reshard == Reshard::AfterForward {
            residency.empty();
        }
        std::mem::take(&mut residency.list)
    };
    let (first, next) = (micro_batch(), micro_batch());
    residency.empty();
    EvaluationActions { first, next, end: residency.list }
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

impl std::ops::Deref for Reads {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        match self {
            Reads::None => &[],
            Reads::One(unit) => unit,
            Reads::Two(units) => units,
        }
    }
}

/// What a micro-batch computes, with the reductions that follow.
fn micro_batch(s: &Schedule<'_>, micro: usize, list: &mut Vec<Compute>) {
    let head = s.blocks + 1;
    let mut push = |action, reads| list.push(Compute { action, reads, last: [false; 2] });
    let reduce = |unit| Action::Reduce { unit, first: micro == 0, last: micro + 1 == s.accumulation };
    push(Action::Load { micro }, Reads::None);
    for unit in 0..head {
        push(Action::Forward { unit }, Reads::One([unit]));
    }
    let reads = if s.tied { Reads::Two([head, 0]) } else { Reads::One([head]) };
    push(Action::Forward { unit: head }, reads);
    if s.trainable[head] {
        push(reduce(head), Reads::None);
    }
    let segments = (0..s.blocks).step_by(s.policy.every).map(|start| start..(start + s.policy.every).min(s.blocks));
    for segment in segments.rev() {
        if s.policy.every > 1 {
            for block in segment.clone() {
                push(Action::Recompute { unit: block + 1, output: block + 1 < segment.end }, Reads::One([block + 1]));
            }
        }
        for block in segment.rev() {
            if s.policy.every == 1 && !s.policy.keeps_all() {
                push(Action::Recompute { unit: block + 1, output: false }, Reads::One([block + 1]));
            }
            push(Action::Backward { unit: block + 1 }, Reads::One([block + 1]));
            if s.trainable[block + 1] {
                push(reduce(block + 1), Reads::None);
            }
        }
    }
    if s.trainable[0] {
        push(Action::Backward { unit: 0 }, if s.embedding_reads { Reads::One([0]) } else { Reads::None });
        push(reduce(0), Reads::None);
    }
}

/// Marks what nothing later in a micro-batch reads.
fn mark_last(units: usize, micro_batch: &mut [Compute]) {
    let mut read = vec![false; units];
    for compute in micro_batch.iter_mut().rev() {
        for (last, unit) in compute.last.iter_mut().zip(&*compute.reads) {
            *last = !std::mem::replace(&mut read[*unit], true);
        }
    }
}

/// Which units' slots are filled while the list runs: a cache whose size and rule are the strategy's.
struct Residency<'a> {
    s: &'a Schedule<'a>,
    /// Filled slots, the one used longest ago first.
    filled: Vec<usize>,
    stale: Vec<bool>,
    capacity: usize,
    list: Vec<Action>,
    /// Units that [`Residency::ahead`] looks for, and with those in use what it keeps: room that is used again.
    wanted: Vec<usize>,
    keep: Vec<usize>,
}

impl<'a> Residency<'a> {
    fn new(s: &'a Schedule<'a>) -> Residency<'a> {
        let most_read = if s.tied { 2 } else { 1 };
        let capacity = match s.reshard {
            Reshard::AfterForward => (1 + s.prefetch).max(most_read),
            Reshard::AfterBackward | Reshard::Never => usize::MAX,
        };
        let (filled, list, wanted, keep) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Residency { s, filled, stale: s.stale.to_vec(), capacity, list, wanted, keep }
    }

    fn run(&mut self, computes: &[Compute]) {
        let slots = self.s.slotted.contains(&true);
        self.list.reserve(computes.len());
        for (i, compute) in computes.iter().enumerate() {
            for &unit in &*compute.reads {
                self.ensure(unit, &compute.reads);
            }
            if !compute.reads.is_empty() && slots {
                self.ahead(&compute.reads, &computes[i + 1..]);
            }
            self.list.push(compute.action);
            if self.s.reshard == Reshard::AfterBackward {
                let done = compute.reads.iter().zip(compute.last).filter(|(_, last)| *last);
                done.for_each(|(&unit, _)| self.release(unit));
            }
        }
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
        let (refresh, slot) = (std::mem::take(&mut self.stale[unit]), self.s.slotted[unit]);
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
        let reach = 4 * self.s.slotted.len();
        let (mut wanted, mut keep) = (std::mem::take(&mut self.wanted), std::mem::take(&mut self.keep));
        wanted.clear();
        for &unit in rest.iter().take(reach).flat_map(|c| &*c.reads) {
            if wanted.len() == self.s.prefetch {
                break;
            }
            if self.s.slotted[unit] && !in_use.contains(&unit) && !wanted.contains(&unit) {
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
