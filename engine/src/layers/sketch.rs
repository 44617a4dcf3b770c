//! The other reader of a layer: where `Exec` does, a `Sketch` notes what would be done.

use super::Batch;
use std::collections::BTreeMap;
use zbench_kernels::{Category, DType, Kernels, Ledger, Op, Swing, footprint};

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

/// A buffer that will be asked for. It is freed by telling the sketch. Only what repeats a run of statements
/// ([`Sketch::repeat`]) clones it.
#[must_use = "a stated buffer must be freed or kept"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    category: Category,
    bytes: u64,
}

/// A term of the FLOP ledger: when, and for what.
type Term = (Phase, &'static str);

/// What a run of statements did, so that an equal run need not be stated again.
#[derive(Clone, Debug, Default)]
pub struct Effect {
    memory: Swing,
    /// Floating-point operations by the number of their term: (model's, executed).
    flops: Vec<(usize, u128, u128)>,
}

/// Memory and operations as they are stated, in order.
pub struct Sketch<'a> {
    /// What is in use, and was.
    pub ledger: Ledger,
    /// Every operation, in order, if wanted.
    pub ops: Option<Vec<Stated>>,
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
    /// Nothing is dropped at random: the model is looked at, not trained.
    pub evaluates: bool,
    /// Forms of matrices that are kept, by unit, flat, first element and transposition; and whether they have been made.
    pub prepacked: BTreeMap<(usize, usize, usize, bool), bool>,
    kernels: &'a dyn Kernels,
    /// Floating-point operations by term: (model's, executed), exact.
    flops: Vec<(Term, (u128, u128))>,
    /// What is done since [`Sketch::noted`] began.
    effect: Option<Effect>,
}

impl<'a> Sketch<'a> {
    /// An empty sketch for kernels whose scratch sizes count.
    pub fn new(kernels: &'a dyn Kernels, batch: Batch, compute: DType, gradients: DType) -> Sketch<'a> {
        let ledger = Ledger::default();
        let (unit, prepacked) = (0, BTreeMap::new());
        let (ops, flops, effect, phase) = (None, Vec::new(), None, Phase::Forward);
        let evaluates = false;
        Sketch { ledger, ops, phase, batch, compute, gradients, unit, evaluates, prepacked, kernels, flops, effect }
    }

    /// The kernels whose scratch sizes count.
    pub fn kernels(&self) -> &'a dyn Kernels {
        self.kernels
    }

    /// A buffer is asked for.
    pub fn alloc(&mut self, category: Category, dtype: DType, len: usize) -> Piece {
        let bytes = footprint(dtype, len).unwrap_or(u64::MAX);
        self.ledger.add(category, bytes);
        if let Some(effect) = &mut self.effect {
            effect.memory.add(category, bytes);
        }
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
        if let Some(effect) = &mut self.effect {
            effect.memory.sub(piece.category, piece.bytes);
        }
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
        let (model, executed) = (u128::from(op.model_flops()), u128::from(op.flops()));
        if executed > 0 {
            let term = self.count((self.phase, term), model, executed);
            if let Some(effect) = &mut self.effect {
                effect.flops.push((term, model, executed));
            }
        }
        if let Some(ops) = &mut self.ops {
            ops.push(Stated { phase: self.phase, term, op });
        }
    }

    /// Adds to a term; its number.
    fn count(&mut self, term: Term, model: u128, executed: u128) -> usize {
        let place = self.flops.iter().position(|(known, _)| *known == term).unwrap_or_else(|| {
            self.flops.push((term, (0, 0)));
            self.flops.len() - 1
        });
        let sum = &mut self.flops[place].1;
        *sum = (sum.0 + model, sum.1 + executed);
        place
    }

    /// Floating-point operations by phase and term: (model's, executed).
    pub fn flops(&self) -> BTreeMap<(Phase, &'static str), (f64, f64)> {
        self.flops.iter().map(|(term, (model, executed))| (*term, (*model as f64, *executed as f64))).collect()
    }

    /// States, and notes what that did to memory and counts.
    pub fn noted<T>(&mut self, state: impl FnOnce(&mut Self) -> T) -> (T, Effect) {
        debug_assert!(self.effect.is_none(), "a run within a run would be counted in the inner one alone");
        self.effect = Some(Effect::default());
        let result = state(self);
        let mut effect = self.effect.take().unwrap_or_default();
        effect.flops.sort_unstable_by_key(|(term, ..)| *term);
        effect.flops.dedup_by(|next, sum| {
            let same = next.0 == sum.0;
            if same {
                (sum.1, sum.2) = (sum.1 + next.1, sum.2 + next.2);
            }
            same
        });
        (result, effect)
    }

    /// Does what an equal run of statements did. Operations that are listed are not among it.
    pub fn repeat(&mut self, effect: &Effect) {
        self.ledger.swing(&effect.memory);
        self.count_again(effect, 1);
    }

    /// States the same so many times, in which every buffer is freed that is asked for: a first time, which may make a form of
    /// weights that the others find, and a second one that stands for the rest, unless operations are listed.
    pub fn times(&mut self, times: usize, mut state: impl FnMut(&mut Self)) {
        if self.ops.is_some() || times < 3 {
            (0..times).for_each(|_| state(self));
            return;
        }
        state(self);
        let before = self.ledger.live_total();
        let ((), effect) = self.noted(state);
        debug_assert_eq!(self.ledger.live_total(), before, "what is in use would grow with every time");
        self.count_again(&effect, times as u128 - 2);
    }

    fn count_again(&mut self, effect: &Effect, times: u128) {
        for (term, model, executed) in &effect.flops {
            let sum = &mut self.flops[*term].1;
            *sum = (sum.0 + model * times, sum.1 + executed * times);
        }
    }
}
