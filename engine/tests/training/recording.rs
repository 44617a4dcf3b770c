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
            other => other,
        }
    }

    fn note(&self, op: Op) {
        self.log.lock().unwrap().push(Recording::plain(op));
    }

    fn note_move(&self, make: fn(Move) -> Op, sources: usize, from: DType, to: DType, len: usize) {
        self.note(make(Move { len, sources, from, to }));
    }
}

macro_rules! noted {
    ($(fn $name:ident($op:ident: &$t:ty, $($arg:ident: $ty:ty),*) as $variant:ident;)*) => {
        $(fn $name(&self, op: &$t, $($arg: $ty),*) -> Result<()> {
            self.note(Op::$variant(*op));
            self.inner.$name(op, $($arg),*)
        })*
    };
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

    noted! {
        fn gemm(op: &Gemm, a: View<'_>, b: View<'_>, c: ViewMut<'_>, w: ViewMut<'_>) as Gemm;
        fn prepack(op: &Gemm, b: View<'_>, to: ViewMut<'_>) as Prepack;
        fn gemm_prepacked(op: &Gemm, a: View<'_>, b: View<'_>, c: ViewMut<'_>, w: ViewMut<'_>) as GemmPrepacked;
        fn rms_norm(op: &RmsNorm, x: View<'_>, w: View<'_>, y: ViewMut<'_>, rstd: ViewMut<'_>) as RmsNorm;
        fn rms_norm_backward(op: &RmsNorm, x: View<'_>, w: View<'_>, rstd: View<'_>, dy: View<'_>, dx: ViewMut<'_>, dw: Option<ViewMut<'_>>) as RmsNormBackward;
        fn layer_norm(op: &LayerNorm, x: View<'_>, w: View<'_>, b: Option<View<'_>>, y: ViewMut<'_>, s: ViewMut<'_>) as LayerNorm;
        fn layer_norm_backward(op: &LayerNorm, x: View<'_>, w: View<'_>, s: View<'_>, dy: View<'_>, dx: ViewMut<'_>, dw: Option<ViewMut<'_>>, db: Option<ViewMut<'_>>) as LayerNormBackward;
        fn add_rows(op: &AddRows, table: View<'_>, x: ViewMut<'_>) as AddRows;
        fn add_rows_backward(op: &AddRows, dy: View<'_>, dtable: ViewMut<'_>) as AddRowsBackward;
        fn inverse_norms(op: &InverseNorms, x: View<'_>, s: ViewMut<'_>) as InverseNorms;
        fn mul_rows(op: &MulRows, w: View<'_>, x: ViewMut<'_>) as MulRows;
        fn mul_rows_backward(op: &MulRows, x: View<'_>, dy: View<'_>, dw: ViewMut<'_>) as MulRowsBackward;
        fn activate(op: &Activate, x: View<'_>, y: ViewMut<'_>) as Activate;
        fn activate_backward(op: &Activate, x: View<'_>, dy: View<'_>, dx: ViewMut<'_>) as ActivateBackward;
        fn rope(op: &Rope, x: ViewMut<'_>, cos: View<'_>, sin: View<'_>) as Rope;
        fn attention(op: &Attention, q: View<'_>, k: View<'_>, v: View<'_>, out: ViewMut<'_>, lse: ViewMut<'_>, w: ViewMut<'_>) as Attention;
        fn attention_backward(op: &Attention, q: View<'_>, k: View<'_>, v: View<'_>, out: View<'_>, lse: View<'_>, dout: View<'_>, dq: ViewMut<'_>, dk: ViewMut<'_>, dv: ViewMut<'_>, w: ViewMut<'_>) as AttentionBackward;
        fn naive_attention(op: &Attention, q: View<'_>, k: View<'_>, v: View<'_>, out: ViewMut<'_>, probs: ViewMut<'_>, w: ViewMut<'_>) as NaiveAttention;
        fn naive_attention_backward(op: &Attention, q: View<'_>, k: View<'_>, v: View<'_>, probs: View<'_>, dout: View<'_>, dq: ViewMut<'_>, dk: ViewMut<'_>, dv: ViewMut<'_>, w: ViewMut<'_>) as NaiveAttentionBackward;
        fn swiglu(op: &Swiglu, gate: View<'_>, up: View<'_>, act: ViewMut<'_>) as Swiglu;
        fn swiglu_backward(op: &Swiglu, gate: View<'_>, up: View<'_>, dact: View<'_>, dgate: ViewMut<'_>, dup: ViewMut<'_>) as SwigluBackward;
        fn embedding(op: &Embedding, ids: View<'_>, table: View<'_>, out: ViewMut<'_>) as Embedding;
        fn embedding_backward(op: &Embedding, ids: View<'_>, dy: View<'_>, dtable: ViewMut<'_>) as EmbeddingBackward;
        fn dropout(op: &Dropout, x: View<'_>, y: ViewMut<'_>) as Dropout;
        fn normal(op: &Normal, dst: ViewMut<'_>) as Normal;
        fn unpack(op: &Unpack, record: View<'_>, dst: ViewMut<'_>) as Unpack;
    }

    fn cross_entropy(
        &self,
        op: &CrossEntropy,
        logits: ViewMut<'_>,
        targets: View<'_>,
        losses: ViewMut<'_>,
    ) -> Result<()> {
        self.note(Op::CrossEntropy(*op));
        let Some(Fault::Loss(factor)) = self.fault else {
            return self.inner.cross_entropy(op, logits, targets, losses);
        };
        self.inner.cross_entropy(&CrossEntropy { scale: op.scale * factor, ..*op }, logits, targets, losses)
    }

    fn adamw(
        &self,
        op: &AdamW,
        p: ViewMut<'_>,
        m: ViewMut<'_>,
        v: ViewMut<'_>,
        g: View<'_>,
        mut copy: Option<ViewMut<'_>>,
    ) -> Result<()> {
        self.note(Op::AdamW(*op));
        let mut op = *op;
        match self.fault {
            Some(Fault::Rate(factor)) => op.lr *= factor,
            Some(Fault::NoCorrection) => op.step += 100_000,
            Some(Fault::LostUpdate) if op.step.is_multiple_of(2) => return Ok(()),
            Some(Fault::Stale) if op.step % 2 == 1 => (copy, op.copy) = (None, None),
            _ => {}
        }
        self.inner.adamw(&op, p, m, v, g, copy)
    }

    fn fill(&self, dst: ViewMut<'_>, value: f64) -> Result<()> {
        self.note_move(Op::Fill, 0, dst.dtype(), dst.dtype(), dst.len());
        self.inner.fill(dst, value)
    }

    fn cast(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        self.note_move(Op::Cast, 1, src.dtype(), dst.dtype(), dst.len());
        self.inner.cast(src, dst)
    }

    fn add(&self, a: View<'_>, b: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        self.note_move(Op::Add, 2, a.dtype(), dst.dtype(), dst.len());
        self.inner.add(a, b, dst)
    }

    fn accumulate(&self, alpha: f64, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        self.note_move(Op::Accumulate, 1, src.dtype(), dst.dtype(), dst.len());
        self.inner.accumulate(alpha, src, dst)
    }

    fn scale(&self, alpha: f64, dst: ViewMut<'_>) -> Result<()> {
        self.note_move(Op::Scale, 1, dst.dtype(), dst.dtype(), dst.len());
        self.inner.scale(alpha, dst)
    }

    fn sum(&self, x: View<'_>) -> Result<f64> {
        self.note_move(Op::Sum, 1, x.dtype(), DType::F64, x.len());
        self.inner.sum(x)
    }

    fn sum_squares(&self, x: View<'_>) -> Result<f64> {
        self.note_move(Op::SumSquares, 1, x.dtype(), DType::F64, x.len());
        self.inner.sum_squares(x)
    }

    /// Only communicators call it, on their own account.
    fn reduce(&self, op: ReduceOp, sources: &[View<'_>], accumulate: bool, mut dst: ViewMut<'_>) -> Result<()> {
        match self.fault {
            Some(Fault::NotReduced(of)) if dst.dtype() != DType::F64 => {
                let cut = dst.len() / of;
                self.inner.reduce(op, &[sources[0].slice(0..cut)], accumulate, dst.slice_mut(0..cut))?;
                let rest: Vec<_> = sources.iter().map(|source| source.slice(cut..dst.len())).collect();
                let end = dst.len();
                self.inner.reduce(op, &rest, accumulate, dst.slice_mut(cut..end))
            }
            Some(Fault::Sum(factor)) if dst.dtype() != DType::F64 => {
                self.inner.reduce(op, sources, accumulate, dst.reborrow())?;
                self.inner.scale(factor, dst)
            }
            _ => self.inner.reduce(op, sources, accumulate, dst),
        }
    }
    fn quantize(&self, op: &Quantize, src: View<'_>, values: ViewMut<'_>, scales: ViewMut<'_>) -> Result<()> {
        self.inner.quantize(op, src, values, scales)
    }
    fn dequantize(
        &self,
        op: &Quantize,
        values: View<'_>,
        scales: View<'_>,
        dst: ViewMut<'_>,
        accumulate: bool,
    ) -> Result<()> {
        self.inner.dequantize(op, values, scales, dst, accumulate)
    }

    /// Only initialisation calls it.
    fn pack(&self, matrix: &Packed, src: View<'_>, codes: ViewMut<'_>, scales: ViewMut<'_>) -> Result<()> {
        self.inner.pack(matrix, src, codes, scales)
    }
}

impl DocumentKernels for Recording {
    noted! {
        fn attention_in_documents(op: &Attention, s: View<'_>, q: View<'_>, k: View<'_>, v: View<'_>, out: ViewMut<'_>, lse: ViewMut<'_>, w: ViewMut<'_>) as Attention;
        fn attention_in_documents_backward(op: &Attention, s: View<'_>, q: View<'_>, k: View<'_>, v: View<'_>, out: View<'_>, lse: View<'_>, dout: View<'_>, dq: ViewMut<'_>, dk: ViewMut<'_>, dv: ViewMut<'_>, w: ViewMut<'_>) as AttentionBackward;
        fn naive_attention_in_documents(op: &Attention, s: View<'_>, q: View<'_>, k: View<'_>, v: View<'_>, out: ViewMut<'_>, probs: ViewMut<'_>, w: ViewMut<'_>) as NaiveAttention;
    }
}

impl ExpertKernels for Recording {
    noted! {
        fn route(op: &Route, logits: View<'_>, weights: ViewMut<'_>, indices: ViewMut<'_>) as Route;
        fn route_backward(op: &Route, logits: View<'_>, indices: View<'_>, dweights: View<'_>, dlogits: ViewMut<'_>) as RouteBackward;
        fn dispatch(op: &Slots, indices: View<'_>, x: View<'_>, y: ViewMut<'_>) as Dispatch;
        fn combine(op: &Combine, indices: View<'_>, x: View<'_>, weights: Option<View<'_>>, y: ViewMut<'_>) as Combine;
        fn weigh(op: &Slots, indices: View<'_>, weights: View<'_>, x: ViewMut<'_>, dx: ViewMut<'_>, dweights: ViewMut<'_>) as Weigh;
        fn grouped_gemm(op: &GroupedGemm, offsets: View<'_>, a: View<'_>, b: View<'_>, c: ViewMut<'_>, w: ViewMut<'_>) as GroupedGemm;
    }
}
