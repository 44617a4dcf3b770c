//! What a dry run notes: floating-point operations by term, and every operation where a list is wanted.

use crate::action::span::Span;
use crate::compute::error::Result;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use zbench_kernels::Op;

/// Which part of the step an operation belongs to, and whether a model needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Forward of the layers and of the loss.
    Forward,
    Backward,
    /// Forward again: counted for HFU, not for MFU.
    Recompute,
    Update,
}

impl From<Span> for Phase {
    fn from(span: Span) -> Phase {
        match span {
            Span::Forward => Phase::Forward,
            Span::Backward => Phase::Backward,
            Span::Recompute => Phase::Recompute,
            _ => Phase::Update,
        }
    }
}

/// An operation of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recorded {
    /// The part of the step.
    pub phase: Phase,
    /// The layer or part of the step that asked for it: a term of the FLOP ledger.
    pub term: &'static str,
    /// The operation without its operands.
    pub op: Op,
}

/// What happens between operations to a collective that travels beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// It starts.
    Starts,
    /// The one that started first of those under way is waited for.
    Waits,
}

/// Floating-point operations by phase and term: (the model's, executed), exact.
pub type Flops = Vec<((Phase, &'static str), (u128, u128))>;

/// What a dry run has noted so far.
pub struct Recorder {
    phase: Cell<Phase>,
    flops: RefCell<Flops>,
    /// Every operation, in order, if wanted.
    operations: Option<RefCell<Vec<Recorded>>>,
    /// Behind how many of these operations what happens to collectives that travel beside them.
    overlaps: RefCell<Vec<(usize, Overlap)>>,
}

impl Recorder {
    pub fn new(keeps_operations: bool) -> Recorder {
        let operations = keeps_operations.then(RefCell::default);
        Recorder {
            phase: Cell::new(Phase::Update),
            flops: RefCell::default(),
            operations,
            overlaps: RefCell::default(),
        }
    }

    /// Whether operations are listed, and so none may be counted without being performed.
    pub fn keeps_operations(&self) -> bool {
        self.operations.is_some()
    }

    /// What follows belongs to this phase.
    pub fn enter(&self, phase: Phase) {
        self.phase.set(phase);
    }

    pub fn record(&self, term: &'static str, op: &Op) {
        let phase = self.phase.get();
        let (model, executed) = (u128::from(op.model_flops()), u128::from(op.flops()));
        if executed > 0 {
            add(&mut self.flops.borrow_mut(), (phase, term), (model, executed));
        }
        if let Some(operations) = &self.operations {
            operations.borrow_mut().push(Recorded { phase, term, op: *op });
        }
    }

    /// Notes what happens to a collective behind the operations so far, where these are listed.
    pub fn note(&self, overlap: Overlap) {
        if let Some(operations) = &self.operations {
            self.overlaps.borrow_mut().push((operations.borrow().len(), overlap));
        }
    }

    /// What was noted of collectives since the operations were last taken.
    pub fn take_overlaps(&self) -> Vec<(usize, Overlap)> {
        self.overlaps.take()
    }

    /// Notes what `work` does as made again.
    pub fn recompute<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let phase = self.phase.replace(Phase::Recompute);
        let result = work();
        self.phase.set(phase);
        result
    }

    /// Performs `work` once and counts it so many times.
    pub fn times<T>(&self, count: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = self.flops.borrow().clone();
        let result = work()?;
        self.add_difference(&before, &self.flops(), count as u128 - 1);
        Ok(result)
    }

    /// What has been counted so far.
    pub fn flops(&self) -> Flops {
        self.flops.borrow().clone()
    }

    /// Counts what was counted between two moments so many times again.
    pub fn add_difference(&self, before: &Flops, after: &Flops, times: u128) {
        let mut flops = self.flops.borrow_mut();
        // Terms keep their places, since none is taken away.
        for (place, (term, now)) in after.iter().enumerate() {
            let was = before.get(place).map_or((0, 0), |(_, sum)| *sum);
            add(&mut flops, *term, ((now.0 - was.0) * times, (now.1 - was.1) * times));
        }
    }

    /// Floating-point operations by phase and term: (the model's, executed).
    pub fn by_term(&self) -> BTreeMap<(Phase, &'static str), (f64, f64)> {
        self.flops.borrow().iter().map(|(term, sum)| (*term, (sum.0 as f64, sum.1 as f64))).collect()
    }

    /// The operations since this was last asked, in order; none where they are not listed.
    pub fn take_operations(&self) -> Vec<Recorded> {
        self.operations.as_ref().map(RefCell::take).unwrap_or_default()
    }
}

fn add(flops: &mut Flops, term: (Phase, &'static str), (model, executed): (u128, u128)) {
    match flops.iter_mut().find(|(known, _)| *known == term) {
        Some((_, sum)) => *sum = (sum.0 + model, sum.1 + executed),
        None => flops.push((term, (model, executed))),
    }
}
