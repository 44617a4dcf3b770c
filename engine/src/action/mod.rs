//! What one rank does in one step, as a list.

pub mod span;
pub mod stream;

use crate::action::stream::Stream;
use crate::config::SavedTensor;
use serde::{Deserialize, Serialize};
use span::Span;

/// One thing a rank does. Layers and units are numbers in the rank's [`crate::model::Layout`]; `micro` counts micro-batches from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Load {
        micro: usize,
    },
    /// Bring a unit's weights here: first make this rank's own part current, then gather the whole.
    Gather {
        unit: usize,
        /// The shard is stale outside this rank's optimizer share: gather it from the ranks that updated it.
        refresh: bool,
        /// Gather the whole in the compute type.
        slot: bool,
    },
    /// Take a stream's values from the stage before, or their gradient from the stage behind.
    Receive {
        micro: usize,
        /// Of the stage's layers.
        chunk: usize,
        stream: Stream,
        gradient: bool,
    },
    /// Forward of a layer; of the head, forward, loss and backward.
    Forward {
        micro: usize,
        layer: usize,
    },
    /// Drop what forward keeps of a block: one tensor, or its input.
    Evict {
        micro: usize,
        layer: usize,
        /// `None` is the block's input.
        tensor: Option<SavedTensor>,
    },
    /// Make a block's dropped tensors again, and its output if the next block lacks its input.
    Recompute {
        micro: usize,
        layer: usize,
        output: bool,
    },
    /// Backward of a layer.
    Backward {
        micro: usize,
        layer: usize,
    },
    /// Backward of a block without the gradients of its weights.
    BackwardInput {
        micro: usize,
        layer: usize,
    },
    /// The gradients of a block's weights.
    BackwardWeight {
        micro: usize,
        layer: usize,
    },
    /// Give a stream's values to the stage behind, or their gradient to the stage before.
    Send {
        micro: usize,
        chunk: usize,
        stream: Stream,
        gradient: bool,
    },
    /// Give a unit's gathered weights back.
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
    /// Add the other end stage's gradients of tied embeddings, whose table both ends of a pipeline have, to this one's.
    ReduceTied {
        unit: usize,
    },
    /// Agree on loss and norm, clip, update. Where state is offloaded, [`Action::UpdateUnit`] updates.
    Update,
    /// Begin to bring a unit's offloaded state to where it is used.
    Fetch {
        unit: usize,
        what: Moved,
    },
    /// Begin to take what forward has kept of a layer to where it lives.
    StoreSaved {
        micro: usize,
        layer: usize,
        what: Kept,
    },
    /// Wait until it is there.
    WaitStoreSaved {
        micro: usize,
        layer: usize,
    },
    /// Begin to bring it back.
    FetchSaved {
        micro: usize,
        layer: usize,
    },
    /// Update a unit's weights, whose state has been fetched.
    UpdateUnit {
        unit: usize,
    },
    /// Begin to take what an update has changed of a unit back to where it lives.
    Store {
        unit: usize,
    },
    /// Wait until it is there.
    WaitStore {
        unit: usize,
    },
}

/// What of a layer that forward has kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    All,
    /// A block's input.
    Input,
    Tensor(SavedTensor),
}

/// What of a unit is brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moved {
    /// This rank's part of the weights, to be gathered.
    Weights,
    /// What its update reads: the optimizer's state, gradients, weights.
    State,
}

impl Action {
    /// The layer or the unit that it is about.
    pub fn place_mut(&mut self) -> Option<&mut usize> {
        match self {
            Action::Load { .. } | Action::Receive { .. } | Action::Send { .. } | Action::Update => None,
            Action::Forward { layer, .. }
            | Action::Evict { layer, .. }
            | Action::Recompute { layer, .. }
            | Action::Backward { layer, .. }
            | Action::BackwardInput { layer, .. }
            | Action::BackwardWeight { layer, .. }
            | Action::StoreSaved { layer, .. }
            | Action::WaitStoreSaved { layer, .. }
            | Action::FetchSaved { layer, .. } => Some(layer),
            Action::Gather { unit, .. }
            | Action::Release { unit }
            | Action::Reduce { unit, .. }
            | Action::ReduceTied { unit }
            | Action::Fetch { unit, .. }
            | Action::UpdateUnit { unit }
            | Action::Store { unit }
            | Action::WaitStore { unit } => Some(unit),
        }
    }

    /// The layer or the unit that it is about.
    pub fn place(mut self) -> Option<usize> {
        self.place_mut().copied()
    }

    fn micro_mut(&mut self) -> Option<&mut usize> {
        match self {
            Action::Load { micro }
            | Action::Receive { micro, .. }
            | Action::Forward { micro, .. }
            | Action::Evict { micro, .. }
            | Action::Recompute { micro, .. }
            | Action::Backward { micro, .. }
            | Action::BackwardInput { micro, .. }
            | Action::BackwardWeight { micro, .. }
            | Action::StoreSaved { micro, .. }
            | Action::WaitStoreSaved { micro, .. }
            | Action::FetchSaved { micro, .. }
            | Action::Send { micro, .. } => Some(micro),
            Action::Gather { .. }
            | Action::Release { .. }
            | Action::Reduce { .. }
            | Action::ReduceTied { .. }
            | Action::Update
            | Action::Fetch { .. }
            | Action::UpdateUnit { .. }
            | Action::Store { .. }
            | Action::WaitStore { .. } => None,
        }
    }

    /// The span that its own work is booked under. Waiting within it is booked apart: a layer's for weights and for tensor ranks, the
    /// update's for gradients, loss and norm, that of offloaded state for moves.
    pub fn span(self) -> Span {
        match self {
            Action::Load { .. } => Span::Data,
            Action::Gather { .. } => Span::ExposedGather,
            Action::Forward { .. } => Span::Forward,
            Action::Recompute { .. } => Span::Recompute,
            Action::Backward { .. } | Action::BackwardInput { .. } | Action::BackwardWeight { .. } => Span::Backward,
            Action::Reduce { .. } => Span::ExposedReduce,
            Action::Update | Action::UpdateUnit { .. } => Span::Optimizer,
            Action::Fetch { .. }
            | Action::Store { .. }
            | Action::WaitStore { .. }
            | Action::StoreSaved { .. }
            | Action::WaitStoreSaved { .. }
            | Action::FetchSaved { .. } => Span::Offload,
            Action::Receive { .. } | Action::Send { .. } | Action::ReduceTied { .. } => Span::ExposedPipeline,
            Action::Release { .. } | Action::Evict { .. } => Span::Other,
        }
    }

    /// The layer whose weights it reads.
    pub fn layer_read(self) -> Option<usize> {
        match self {
            Action::Forward { layer, .. }
            | Action::Recompute { layer, .. }
            | Action::Backward { layer, .. }
            | Action::BackwardInput { layer, .. } => Some(layer),
            _ => None,
        }
    }

    /// The micro-batch that it is about.
    pub fn micro(mut self) -> Option<usize> {
        self.micro_mut().copied()
    }

    /// The same of another micro-batch.
    #[must_use]
    pub fn at(mut self, number: usize) -> Action {
        if let Some(micro) = self.micro_mut() {
            *micro = number;
        }
        self
    }

    /// The same of a micro-batch so many before; numbers wrap.
    #[must_use]
    pub fn earlier(mut self, micros: usize) -> Action {
        if let Some(micro) = self.micro_mut() {
            *micro = micro.wrapping_sub(micros);
        }
        self
    }
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
