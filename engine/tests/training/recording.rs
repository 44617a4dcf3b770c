//! Kernels that note what they are asked for, and kernels that do something else than what they are asked for.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use zbench_kernels::*;

pub struct Recording {
    inner: Cpu,
    log: Mutex<Vec<Op>>,
    /// How often it was asked for the scratch of an operation: once for each that a plan states.
    pub asked: AtomicUsize,
    fault: Option<Fault>,
}

/// A mistake that an implementation of training may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Of each sum over ranks, one element in this many (the first ones) is rank 0's alone: a tensor that is not reduced.
    NotReduced(usize),
    /// Sums over ranks are this many times as large: a mean over the wrong number.
    Sum(f64),
    /// The gradient of the loss is this many times as large.
    Loss(f64),
    /// The learning rate is.
    Rate(f64),
    /// Adam's moments are taken for those of a later step: no correction of their bias.
    NoCorrection,
    /// Every second update is lost.
    LostUpdate,
    /// Layers read weights of the step before in every second step; only where there are master weights.
    Stale,
}

impl Recording {
    pub fn new(inner: Cpu) -> Recording {
        Recording { inner, log: Mutex::default(), asked: AtomicUsize::new(0), fault: None }
    }

    pub fn with(inner: Cpu, fault: Fault) -> Recording {
        Recording { fault: Some(fault), ..Recording::new(inner) }
    }

    pub fn clear(&self) {
        self.log.lock().unwrap().clear();
    }

    pub fn take(&self) -> Vec<Op> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    /// Without what changes from step to step and rank to rank.
    pub fn plain(op: Op) -> Op {
        match op {
            Op::AdamW(a) => Op::AdamW(AdamW { lr: 0.0, step: 0, clip: 0.0, ..a }),
            Op::Dropout(d) => Op::Dropout(Dropout { first: 0, ..d }),
            Op::Fill(m, _) => Op::Fill(m, 0.0),
            Op::Scale(m, _) => Op::Scale(m, 0.0),
            Op::Accumulate(m, _) => Op::Accumulate(m, 0.0),
            other => other,
        }
    }

    fn note(&self, op: Op) {
        self.log.lock().unwrap().push(Recording::plain(op));
    }
}

impl Kernels for Recording {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn threads(&self) -> usize {
        self.inner.threads()
    }

    fn workspace(&self, op: &Op) -> usize {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.inner.workspace(op)
    }

    fn prepacked_len(&self, op: &Gemm) -> Option<usize> {
        self.inner.prepacked_len(op)
    }

    fn run(&self, op: &Op, reads: &[View<'_>], writes: &mut [ViewMut<'_>], scratch: ViewMut<'_>) -> Result<()> {
        // Communicators and initialisation ask on their own account.
        if !matches!(op, Op::Reduce(_) | Op::Quantize(_) | Op::Dequantize(_) | Op::Pack(_)) {
            self.note(*op);
        }
        let (mut op, mut written) = (*op, writes.len());
        match (&mut op, self.fault) {
            (Op::CrossEntropy(op), Some(Fault::Loss(factor))) => op.scale *= factor,
            (Op::AdamW(op), Some(Fault::Rate(factor))) => op.lr *= factor,
            (Op::AdamW(op), Some(Fault::NoCorrection)) => op.step += 100_000,
            (Op::AdamW(op), Some(Fault::LostUpdate)) if op.step.is_multiple_of(2) => return Ok(()),
            (Op::AdamW(op), Some(Fault::Stale)) if op.step % 2 == 1 && op.copy.is_some() => {
                (written, op.copy) = (written - 1, None);
            }
            (Op::Reduce(op), Some(Fault::NotReduced(of))) if op.to != DType::F64 => {
                let [dst] = writes else { unreachable!("a reduction has one result") };
                let (cut, end) = (dst.len() / of, dst.len());
                let own = Reduce { len: cut, sources: 1, ..*op };
                self.inner.run(
                    &Op::Reduce(own),
                    &[reads[0].slice(0..cut)],
                    &mut [dst.slice_mut(0..cut)],
                    no_scratch(),
                )?;
                let rest: Vec<_> = reads.iter().map(|source| source.slice(cut..end)).collect();
                let others = Reduce { len: end - cut, ..*op };
                return self.inner.run(&Op::Reduce(others), &rest, &mut [dst.slice_mut(cut..end)], scratch);
            }
            (Op::Reduce(op), Some(Fault::Sum(factor))) if op.to != DType::F64 => {
                self.inner.run(&Op::Reduce(*op), reads, writes, scratch)?;
                return self.inner.scale(factor, writes[0].reborrow());
            }
            _ => {}
        }
        self.inner.run(&op, reads, &mut writes[..written], scratch)
    }

    fn sum_async(&self, op: &Op, x: View<'_>) -> Result<Sum> {
        self.note(*op);
        self.inner.sum_async(op, x)
    }
}
