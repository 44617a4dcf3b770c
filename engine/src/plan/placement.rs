//! Which type a flat has where, and over which axes it is split.

use crate::config::{Base, Cell, MemoryTier};
use crate::mesh::Axes;
use crate::mesh::strategy::{Reshard, Sharding};
use crate::model::FlatKind;
use zbench_kernels::{Category, DType};

/// Where the parts of a rank's state live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateTiers {
    pub parameters: MemoryTier,
    /// Accumulated gradients.
    pub gradients: MemoryTier,
    pub optimizer: MemoryTier,
    /// What forward keeps for backward.
    pub activations: MemoryTier,
}

impl StateTiers {
    /// As the cell says. A rank's part of the gradients lives in the host's memory where the optimizer's state is offloaded, since the
    /// update waits for the norm of all of them; whole gradients are added up where layers make them.
    pub fn of(cell: &Cell, sharding: &Sharding) -> StateTiers {
        let (parameters, optimizer) = (cell.memory.offload_parameters, cell.memory.offload_optimizer);
        let is_whole = sharding.gradients == Axes::NONE;
        let gradients = if optimizer == MemoryTier::Device || is_whole { MemoryTier::Device } else { MemoryTier::Host };
        StateTiers { parameters, gradients, optimizer, activations: cell.memory.offload_activations }
    }

    pub fn all(&self) -> [MemoryTier; 4] {
        [self.parameters, self.gradients, self.optimizer, self.activations]
    }

    /// Where the update of a unit is computed: on the host if the optimizer's state does not live on the device.
    pub fn update(&self) -> MemoryTier {
        match self.optimizer {
            MemoryTier::Device => MemoryTier::Device,
            MemoryTier::Host | MemoryTier::Disk => MemoryTier::Host,
        }
    }

    /// Whether the update finds all that it reads on the device.
    pub fn updates_in_place(&self) -> bool {
        [self.parameters, self.gradients, self.optimizer] == [MemoryTier::Device; 3]
    }
}

/// The type of a flat's shard.
pub fn shard_dtype(cell: &Cell, part: FlatKind) -> DType {
    match part {
        FlatKind::Trainable => cell.precision.parameters,
        FlatKind::Frozen => cell.lora.base.and_then(Base::float).unwrap_or(cell.precision.parameters),
        FlatKind::Quantised => DType::I8,
    }
}

/// The type of a flat's weights where layers read them.
pub fn gathered_dtype(cell: &Cell, part: FlatKind) -> DType {
    match part {
        FlatKind::Trainable | FlatKind::Frozen => cell.precision.compute,
        FlatKind::Quantised => DType::I8,
    }
}

/// Whether a flat is read from gathered weights: its shard is a part, or of another type than the compute.
pub fn is_gathered(cell: &Cell, sharding: &Sharding, part: FlatKind) -> bool {
    sharding.parameters != Axes::NONE || shard_dtype(cell, part) != gathered_dtype(cell, part)
}

/// Over which axes a flat's shard is split. Frozen weights are split as the parameters are.
pub fn share(sharding: &Sharding, part: FlatKind) -> Axes {
    match part {
        FlatKind::Trainable => sharding.optimizer,
        FlatKind::Frozen | FlatKind::Quantised => sharding.parameters,
    }
}

/// Slots of unsplit weights stay as long as the weights do; the others are on their way.
pub(crate) fn gathered_category(sharding: &Sharding) -> Category {
    match sharding.reshard {
        Reshard::Never => Category::Parameters,
        Reshard::AfterForward | Reshard::AfterBackward => Category::Communication,
    }
}
