//! The other reader of a layer: where `Exec` does, a `Sketch` notes what would be done.

use super::Batch;
use std::collections::BTreeMap;
use zbench_kernels::{Category, DType, Kernels, Ledger, Op, footprint};

/// Which part of the step an operation belongs to, and whether a model needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Forward of the layers and of the loss.
    Forward,
    /// Backward.
    Backward,
    /// Forward again: counted for HFU, not for MFU.
    Recompute,
    /// Everything else.
    Update,
}

/// An operation that will be issued.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stated {
    /// When.
    pub phase: Phase,
    /// For what: a term of the FLOP ledger.
    pub term: &'static str,
    /// What.
    pub op: Op,
}

/// A buffer that will be asked for. It is freed by telling the sketch.
#[must_use = "a stated buffer must be freed or kept"]
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    category: Category,
    bytes: u64,
}

/// Memory and operations as they are stated, in order.
pub struct Sketch<'a> {
    /// What is in use, and was.
    pub ledger: Ledger,
    /// Every operation, in order, if wanted.
    pub ops: Option<Vec<Stated>>,
    /// Floating-point operations by phase and term: (model's, executed).
    pub flops: BTreeMap<(Phase, &'static str), (f64, f64)>,
    /// The phase that operations are stated under.
    pub phase: Phase,
    /// The micro-batch's shape.
    pub batch: Batch,
    /// Type of activations.
    pub compute: DType,
    /// Type of accumulated gradients.
    pub gradients: DType,
    /// The unit whose weights layers read.
    pub unit: usize,
    /// Forms of matrices that are kept, by unit, flat, first element and transposition; and whether they have been made.
    pub prepacked: BTreeMap<(usize, usize, usize, bool), bool>,
    kernels: &'a dyn Kernels,
}

impl<'a> Sketch<'a> {
    /// An empty sketch for kernels whose scratch sizes count.
    pub fn new(kernels: &'a dyn Kernels, batch: Batch, compute: DType, gradients: DType) -> Sketch<'a> {
        let ledger = Ledger::default();
        let (unit, prepacked) = (0, BTreeMap::new());
        let flops = BTreeMap::new();
        Sketch { ledger, ops: None, flops, phase: Phase::Forward, batch, compute, gradients, unit, prepacked, kernels }
    }

    /// The kernels whose scratch sizes count.
    pub fn kernels(&self) -> &'a dyn Kernels {
        self.kernels
    }

    /// A buffer is asked for.
    pub fn alloc(&mut self, category: Category, dtype: DType, len: usize) -> Piece {
        let bytes = footprint(dtype, len).unwrap_or(u64::MAX);
        self.ledger.add(category, bytes);
        Piece { category, bytes }
    }

    /// A buffer of the flow between layers.
    pub fn activation(&mut self, len: usize) -> Piece {
        self.alloc(Category::Activations, self.compute, len)
    }

    /// A small buffer in the accumulator type.
    pub fn statistic(&mut self, len: usize) -> Piece {
        self.alloc(Category::Activations, self.compute.accumulator(), len)
    }

    /// A buffer is given back.
    pub fn free(&mut self, piece: Piece) {
        self.ledger.sub(piece.category, piece.bytes);
    }

    /// Buffers are given back.
    pub fn free_all(&mut self, pieces: impl IntoIterator<Item = Piece>) {
        pieces.into_iter().for_each(|piece| self.free(piece));
    }

    /// States operations that repeat earlier ones.
    pub fn again<T>(&mut self, state: impl FnOnce(&mut Self) -> T) -> T {
        let phase = std::mem::replace(&mut self.phase, Phase::Recompute);
        let result = state(self);
        self.phase = phase;
        result
    }

    /// An operation is issued, with its scratch.
    pub fn op(&mut self, term: &'static str, op: Op) {
        let scratch = self.kernels.workspace(&op);
        let scratch = self.alloc(Category::Workspace, self.compute.accumulator(), scratch);
        self.free(scratch);
        let (model, executed) = (op.model_flops() as f64, op.flops() as f64);
        if executed > 0.0 {
            let sum = self.flops.entry((self.phase, term)).or_default();
            *sum = (sum.0 + model, sum.1 + executed);
        }
        if let Some(ops) = &mut self.ops {
            ops.push(Stated { phase: self.phase, term, op });
        }
    }
}
