//! The numeric policy of a cell: what it rounds, and to which types.
//!
//! A technique that changes arithmetic has its choices here, so that they hold under ddp, too. A distributed run is then
//! compared with a ddp run of the same policy, and what is left between the two is the order of sums.
//! docs/mixed-precision.md ("The twin rule") names what has to join.

use crate::config::{Base, Cell, Linear, Precision, Wire};
use serde::Serialize;

/// Everything of a cell that changes arithmetic. It depends on no strategy, no number of ranks but `of_tensor_ranks`, and no place of
/// storage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Numerics {
    /// The types, the loss scale and the rounding of weights.
    pub precision: Precision,
    /// What the frozen weights of an adapter run are kept as; absent = `precision.parameters`.
    pub frozen: Option<Base>,
    /// What gathered weights travel as; absent = as they are.
    pub gather_wire: Option<Wire>,
    /// What reduced gradients travel as; absent = `precision.reduce`.
    pub reduce_wire: Option<Wire>,
    /// The number of tensor ranks, where that changes more than the order of sums: each drops its own columns of adapters' inputs at
    /// random, and has second scales of its own part of a matrix in NF4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_tensor_ranks: Option<usize>,
}

impl Numerics {
    /// The numeric policy of a cell.
    pub fn of(cell: &Cell) -> Numerics {
        let wires = cell.priced.as_ref().map(|priced| (priced.gather_wire, priced.reduce_wire));
        let (gather_wire, reduce_wire) = wires.unwrap_or_default();
        let (lora, tensor) = (&cell.lora, cell.parallel.degrees.tensor);
        let drops = lora.on() && lora.dropout > 0.0 && lora.targets.iter().copied().any(Linear::is_row_parallel);
        let is_packed = lora.on() && lora.base == Some(Base::Nf4);
        let of_tensor_ranks = Some(tensor).filter(|tensor| *tensor > 1 && (drops || is_packed));
        Numerics { precision: cell.precision, frozen: lora.base, gather_wire, reduce_wire, of_tensor_ranks }
    }
}
