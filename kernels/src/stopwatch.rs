//! Kernels with a stopwatch: what each operation takes where it is really called, among the others of a step.

use crate::affinity::Pinned;
use crate::cuda::machine::Mark;
use crate::*;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// An operation that was carried out, and how long it took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timed {
    /// What.
    pub op: Op,
    /// Nanoseconds, those of reading the clock once included.
    pub ns: u64,
}

/// Other kernels, timed operation by operation. What communicators and initialisation ask for is passed on and not timed.
pub struct Stopwatch {
    inner: Arc<dyn Kernels>,
    log: Mutex<Vec<Timed>>,
}

impl Stopwatch {
    /// Times `inner`.
    pub fn new(inner: Arc<dyn Kernels>) -> Stopwatch {
        // Room for a step of a small model, so that few operations wait for memory.
        Stopwatch { inner, log: Mutex::new(Vec::with_capacity(1 << 14)) }
    }

    /// What was timed since the start or the last call, in order.
    pub fn take(&self) -> Vec<Timed> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let empty = Vec::with_capacity(log.capacity());
        std::mem::replace(&mut *log, empty)
    }

    fn time<T>(&self, op: Op, call: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = call();
        if !self.inner.is_host() {
            // The call only asked for it. A failure comes out again where the result is wanted.
            let _ = self.inner.synchronize();
        }
        let ns = begin.elapsed().as_nanos() as u64;
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(Timed { op, ns });
        result
    }
}

fn moved(make: fn(Move) -> Op, sources: usize, from: DType, to: DType, len: usize) -> Op {
    make(Move { len, sources, from, to })
}

macro_rules! timed {
    ($(fn $name:ident($op:ident: &$t:ty, $($arg:ident: $ty:ty),*) as $variant:ident;)*) => {
        $(fn $name(&self, op: &$t, $($arg: $ty),*) -> Result<()> {
            self.time(Op::$variant(*op), || self.inner.$name(op, $($arg),*))
        })*
    };
}

impl Kernels for Stopwatch {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn threads(&self) -> usize {
        self.inner.threads()
    }

    fn settle(&self) -> Option<Pinned> {
        self.inner.settle()
    }

    fn arena(&self, capacity: Option<u64>, sharers: usize) -> Result<Arena, ArenaError> {
        self.inner.arena(capacity, sharers)
    }

    fn is_host(&self) -> bool {
        self.inner.is_host()
    }

    fn upload(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        self.inner.upload(src, dst)
    }

    fn download(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        self.inner.download(src, dst)
    }

    fn copy(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        self.inner.copy(src, dst)
    }

    fn synchronize(&self) -> Result<()> {
        self.inner.synchronize()
    }

    fn beside(&self) -> Result<Option<Arc<dyn Kernels>>> {
        self.inner.beside()
    }

    fn mark(&self) -> Result<Option<Arc<dyn Mark>>> {
        self.inner.mark()
    }

    fn follow(&self, mark: &dyn Mark) -> Result<()> {
        self.inner.follow(mark)
    }

    fn passing_elements(&self) -> usize {
        self.inner.passing_elements()
    }

    fn workspace(&self, op: &Op) -> usize {
        self.inner.workspace(op)
    }

    fn prepacked_len(&self, op: &Gemm) -> Option<usize> {
        self.inner.prepacked_len(op)
    }

    timed! {
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
        fn cross_entropy(op: &CrossEntropy, logits: ViewMut<'_>, targets: View<'_>, losses: ViewMut<'_>) as CrossEntropy;
        fn adamw(op: &AdamW, p: ViewMut<'_>, m: ViewMut<'_>, v: ViewMut<'_>, g: View<'_>, copy: Option<ViewMut<'_>>) as AdamW;
        fn dropout(op: &Dropout, x: View<'_>, y: ViewMut<'_>) as Dropout;
        fn normal(op: &Normal, dst: ViewMut<'_>) as Normal;
        fn unpack(op: &Unpack, record: View<'_>, dst: ViewMut<'_>) as Unpack;
    }

    fn fill(&self, dst: ViewMut<'_>, value: f64) -> Result<()> {
        let op = moved(Op::Fill, 0, dst.dtype(), dst.dtype(), dst.len());
        self.time(op, || self.inner.fill(dst, value))
    }

    fn cast(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        let op = moved(Op::Cast, 1, src.dtype(), dst.dtype(), dst.len());
        self.time(op, || self.inner.cast(src, dst))
    }

    fn add(&self, a: View<'_>, b: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        let op = moved(Op::Add, 2, a.dtype(), dst.dtype(), dst.len());
        self.time(op, || self.inner.add(a, b, dst))
    }

    fn accumulate(&self, alpha: f64, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        let op = moved(Op::Accumulate, 1, src.dtype(), dst.dtype(), dst.len());
        self.time(op, || self.inner.accumulate(alpha, src, dst))
    }

    fn scale(&self, alpha: f64, dst: ViewMut<'_>) -> Result<()> {
        let op = moved(Op::Scale, 1, dst.dtype(), dst.dtype(), dst.len());
        self.time(op, || self.inner.scale(alpha, dst))
    }

    fn sum(&self, x: View<'_>) -> Result<f64> {
        let op = moved(Op::Sum, 1, x.dtype(), DType::F64, x.len());
        self.time(op, || self.inner.sum(x))
    }

    fn sum_squares(&self, x: View<'_>) -> Result<f64> {
        let op = moved(Op::SumSquares, 1, x.dtype(), DType::F64, x.len());
        self.time(op, || self.inner.sum_squares(x))
    }

    /// Only communicators call it, on their own account.
    fn reduce(&self, op: ReduceOp, sources: &[View<'_>], accumulate: bool, dst: ViewMut<'_>) -> Result<()> {
        self.inner.reduce(op, sources, accumulate, dst)
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

impl DocumentKernels for Stopwatch {
    timed! {
        fn attention_in_documents(op: &Attention, s: View<'_>, q: View<'_>, k: View<'_>, v: View<'_>, out: ViewMut<'_>, lse: ViewMut<'_>, w: ViewMut<'_>) as Attention;
        fn attention_in_documents_backward(op: &Attention, s: View<'_>, q: View<'_>, k: View<'_>, v: View<'_>, out: View<'_>, lse: View<'_>, dout: View<'_>, dq: ViewMut<'_>, dk: ViewMut<'_>, dv: ViewMut<'_>, w: ViewMut<'_>) as AttentionBackward;
        fn naive_attention_in_documents(op: &Attention, s: View<'_>, q: View<'_>, k: View<'_>, v: View<'_>, out: ViewMut<'_>, probs: ViewMut<'_>, w: ViewMut<'_>) as NaiveAttention;
    }
}

impl ExpertKernels for Stopwatch {
    timed! {
        fn route(op: &Route, logits: View<'_>, weights: ViewMut<'_>, indices: ViewMut<'_>) as Route;
        fn route_backward(op: &Route, logits: View<'_>, indices: View<'_>, dweights: View<'_>, dlogits: ViewMut<'_>) as RouteBackward;
        fn dispatch(op: &Slots, indices: View<'_>, x: View<'_>, y: ViewMut<'_>) as Dispatch;
        fn combine(op: &Combine, indices: View<'_>, x: View<'_>, weights: Option<View<'_>>, y: ViewMut<'_>) as Combine;
        fn weigh(op: &Slots, indices: View<'_>, weights: View<'_>, x: ViewMut<'_>, dx: ViewMut<'_>, dweights: ViewMut<'_>) as Weigh;
        fn grouped_gemm(op: &GroupedGemm, offsets: View<'_>, a: View<'_>, b: View<'_>, c: ViewMut<'_>, w: ViewMut<'_>) as GroupedGemm;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_timed_in_order_and_do_what_they_do() {
        let watch = Stopwatch::new(Arc::new(Cpu::new(1)));
        let x: Vec<f32> = (0..1000).map(|i| i as f32 * 0.25 - 3.0).collect();
        let (mut halves, mut sum) = (vec![half::bf16::ZERO; 1000], x.clone());
        watch.cast(View::of(&x), ViewMut::of(&mut halves)).unwrap();
        watch.accumulate(2.0, View::of(&x), ViewMut::of(&mut sum)).unwrap();
        let squares = watch.sum_squares(View::of(&sum)).unwrap();
        let expected: f64 = x.iter().map(|x| (3.0 * f64::from(*x)).powi(2)).sum();
        assert!((squares / expected - 1.0).abs() < 1e-6);
        assert!(halves.iter().zip(&x).all(|(h, x)| *h == half::bf16::from_f32(*x)));
        let f = DType::F32;
        let of = |sources, from, to| Move { len: 1000, sources, from, to };
        let ops: Vec<Op> = watch.take().into_iter().map(|timed| timed.op).collect();
        let expected =
            [Op::Cast(of(1, f, DType::Bf16)), Op::Accumulate(of(1, f, f)), Op::SumSquares(of(1, f, DType::F64))];
        assert_eq!((ops, watch.take().len()), (expected.to_vec(), 0));
    }

    /// 64 million multiply-adds take more than ten microseconds on any core.
    #[test]
    fn time_is_that_of_the_operation() {
        let watch = Stopwatch::new(Arc::new(Cpu::new(1)));
        let (n, f) = (400, DType::F32);
        let a: Vec<f32> = (0..n * n).map(|i| (i % 17) as f32).collect();
        let mut c = vec![0f32; n * n];
        let (m, k, trans_a, trans_b) = (n, n, false, false);
        let op = Gemm { m, n, k, trans_a, trans_b, alpha: 1.0, accumulate: false, a: f, b: f, c: f };
        let mut scratch = vec![0f32; watch.workspace(&Op::Gemm(op))];
        watch.gemm(&op, View::of(&a), View::of(&a), ViewMut::of(&mut c), ViewMut::of(&mut scratch)).unwrap();
        let timed = watch.take();
        assert_eq!((timed.len(), timed[0].op), (1, Op::Gemm(op)));
        assert!(timed[0].ns > 10_000, "{timed:?}");
    }
}
