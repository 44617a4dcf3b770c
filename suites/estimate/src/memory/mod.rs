//! Memory of a job, per rank: what each pipeline stage holds at the moment of its peak, by category and term by term, and
//! what it holds after a step.

mod blocks;
mod habits;
mod moments;
mod parameters;
mod stages;

pub use blocks::{Kept, formula_bytes};
pub use habits::{Habits, habits};
pub use parameters::Counts;

use crate::framework::Loading;
use crate::job::{Job, Peft, Place};

/// What bytes are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// Weights at home and their copies in the compute type.
    Parameters,
    /// Gradients that outlive their layer's backward.
    Gradients,
    /// Master copy and moments.
    Optimizer,
    /// What forward keeps for backward, and what one layer makes while it runs.
    Activations,
    /// Gathered units, buckets and what waits for a message.
    Communication,
    /// What libraries hold.
    Workspace,
}

/// A part of a sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    /// What it is for.
    pub category: Category,
    /// What it is.
    pub name: &'static str,
    /// How it is computed, in words.
    pub formula: &'static str,
    /// Bytes on one rank.
    pub bytes: f64,
}

/// When a stage holds most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The last block's backward has begun, or the loss is made: most micro-batches are in flight.
    Loss,
    /// A block's backward with what it makes again.
    Backward,
    /// The update: where gradients are given back after it, its start can be the peak.
    Update,
}

/// A pipeline stage, and those that hold the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Its number, from 0.
    pub index: usize,
    /// Blocks it has.
    pub blocks: usize,
    /// Parameters on one of its ranks, whole over the data axes.
    pub parameters: f64,
    /// When it holds most.
    pub moment: Moment,
    /// What it holds then.
    pub terms: Vec<Term>,
    /// Bytes of weights, gradients and optimizer state alone.
    pub states: f64,
    /// Bytes it holds between steps.
    pub after_step: f64,
    /// Bytes of its forward's tensors for one micro-batch, all blocks.
    pub kept: f64,
}

/// Memory of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// First, second (which stands for those in the middle) and last stage, as far as there are so many.
    pub stages: Vec<Stage>,
    /// Bytes of host memory per rank.
    pub host: f64,
    /// Bytes on disk per rank.
    pub disk: f64,
    /// What the software adds to what its allocator hands out.
    pub habits: Habits,
    /// While weights are read, before the first step.
    pub load: Load,
}

/// What weights take while they are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Bytes on a device: its own weights, and a block as it was read.
    pub device: f64,
    /// Bytes of one whole copy of the weights, as they are read.
    pub whole: f64,
    /// Who reads them.
    pub loading: Loading,
}

impl Load {
    /// Bytes in the memory of a node's host, the fullest one's.
    pub fn host(&self, ranks_per_node: usize) -> f64 {
        match self.loading {
            Loading::Sliced => 0.0,
            Loading::Broadcast => self.whole,
            Loading::Everywhere => self.whole * ranks_per_node as f64,
        }
    }
}

impl Stage {
    /// Bytes at the peak.
    pub fn peak(&self) -> f64 {
        self.terms.iter().map(|term| term.bytes).sum()
    }

    /// Bytes of a category at the peak.
    pub fn by(&self, category: Category) -> f64 {
        self.terms.iter().filter(|term| term.category == category).map(|term| term.bytes).sum()
    }
}

impl Memory {
    /// The stage that holds most.
    pub fn worst(&self) -> &Stage {
        worst(&self.stages)
    }

    /// The last stage.
    pub fn last(&self) -> &Stage {
        self.stages.last().expect("a job has a stage")
    }

    /// Bytes that tensors hold at the worst stage's peak (`torch.cuda.max_memory_allocated`).
    pub fn allocated(&self) -> f64 {
        self.worst().peak()
    }

    /// Bytes that the allocator holds (`max_memory_reserved`): it keeps what does not fit again.
    pub fn reserved(&self) -> f64 {
        self.habits.reserved(self.worst())
    }

    /// Bytes that a device has to have: an allocator that runs full gives back what it holds and does not use, but not what
    /// is too much in pieces; half of its slack is taken to be that.
    pub fn needs(&self) -> f64 {
        0.5 * (self.allocated() + self.reserved()) + self.habits.context
    }

    /// Bytes that the device shows (nvidia-smi): with the context and what the communication library holds.
    pub fn device(&self) -> f64 {
        self.reserved() + self.habits.context
    }
}

/// The memory of a job. Every stage that differs from the others is computed once; nothing loops over blocks or ranks.
pub fn memory(job: &Job) -> Memory {
    let habits = habits(job);
    let counts = Counts::of(job);
    let stages: Vec<Stage> =
        stages::kinds(job).iter().map(|stage| moments::stage(job, &counts, &habits, stage)).collect();
    let (host, disk) = moments::elsewhere(job, &counts, &habits);
    let load = load(job, &counts, worst(&stages));
    Memory { stages, host, disk, habits, load }
}

/// The stage that holds most.
fn worst(stages: &[Stage]) -> &Stage {
    stages.iter().max_by(|a, b| a.peak().total_cmp(&b.peak())).expect("a job has a stage")
}

/// While a stage's rank reads its weights.
fn load(job: &Job, counts: &Counts, stage: &Stage) -> Load {
    // What is kept in few bits is read in 16.
    let read = match job.peft {
        Peft::Adapters { base, .. } => base.bytes().max(2.0),
        Peft::None => job.precision.weights.bytes(),
    };
    let is_weight = |term: &&Term| ["weights", "frozen base", "adapters"].contains(&term.name);
    let own: f64 = stage.terms.iter().filter(is_weight).map(|term| term.bytes).sum();
    let unit = if job.offload.parameters == Place::Device { read * counts.unit } else { 0.0 };
    Load { device: own + unit, whole: read * job.model.parameters() as f64, loading: job.framework.memory.loading }
}
