//! Which type a flat has where, and over which axes it is split.

use crate::config::{Base, Cell};
use crate::mesh::Split;
use crate::model::Part;
use crate::strategy::{Reshard, Sharding};
use zbench_kernels::{Category, DType};

/// The type of a flat's weights at home.
pub fn home_dtype(cell: &Cell, part: Part) -> DType {
    match part {
        Part::Trainable => cell.precision.parameters,
        Part::Frozen => cell.lora.base.and_then(Base::float).unwrap_or(cell.precision.parameters),
        Part::Quantised => DType::I8,
    }
}

/// The type of a flat's weights where layers read them.
pub fn slot_dtype(cell: &Cell, part: Part) -> DType {
    match part {
        Part::Trainable | Part::Frozen => cell.precision.compute,
        Part::Quantised => DType::I8,
    }
}

/// Whether a flat is read from a slot: its home is a part, or of another type than the compute.
pub fn slotted(cell: &Cell, sharding: &Sharding, part: Part) -> bool {
    sharding.parameters != Split::Whole || home_dtype(cell, part) != slot_dtype(cell, part)
}

/// Over which axes a flat's home is split. Frozen weights are split as the parameters are.
pub fn share(sharding: &Sharding, part: Part) -> Split {
    match part {
        Part::Trainable => sharding.optimizer,
        Part::Frozen | Part::Quantised => sharding.parameters,
    }
}

/// Slots of unsplit weights stay as long as the weights do; the others are on their way.
pub(crate) fn slot_category(sharding: &Sharding) -> Category {
    match sharding.reshard {
        Reshard::Never => Category::Parameters,
        Reshard::AfterForward | Reshard::AfterBackward => Category::Communication,
    }
}
