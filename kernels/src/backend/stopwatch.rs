//! Kernels with a stopwatch: what each operation takes where it is really called, among the others of a step.

use crate::memory::device::Event;
use crate::threads::affinity::Pinned;
use crate::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// An operation that was carried out, and how long it took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timed {
    pub op: Op,
    /// Nanoseconds, those of reading the clock once included.
    pub ns: u64,
}

/// A copy within memory, or between host and device, and how long it took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedCopy {
    pub bytes: u64,
    /// Nanoseconds, those of reading the clock once included.
    pub ns: u64,
}

/// Other kernels, timed operation by operation. What communicators and initialisation ask for is passed on and not timed.
pub struct Stopwatch {
    inner: Arc<dyn Kernels>,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    operations: Vec<Timed>,
    copies: Vec<TimedCopy>,
}

impl Stopwatch {
    pub fn new(inner: Arc<dyn Kernels>) -> Stopwatch {
        // Room for a step of a small model, so that few operations wait for memory.
        Stopwatch { inner, log: Mutex::new(Log { operations: Vec::with_capacity(1 << 14), copies: Vec::new() }) }
    }

    /// The operations that were timed since the start or the last call, in order.
    pub fn take(&self) -> Vec<Timed> {
        let log = &mut self.log().operations;
        let empty = Vec::with_capacity(log.capacity());
        std::mem::replace(log, empty)
    }

    /// The same of copies.
    pub fn take_copies(&self) -> Vec<TimedCopy> {
        std::mem::take(&mut self.log().copies)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn time<T>(&self, op: &Op, call: impl FnOnce() -> T) -> T {
        let (result, ns) = self.timed(call);
        self.log().operations.push(Timed { op: *op, ns });
        result
    }

    fn time_copy<T>(&self, src: &View<'_>, call: impl FnOnce() -> T) -> T {
        let bytes = (src.len() * src.dtype().size()) as u64;
        let (result, ns) = self.timed(call);
        self.log().copies.push(TimedCopy { bytes, ns });
        result
    }

    /// The result of a call, and its nanoseconds.
    fn timed<T>(&self, call: impl FnOnce() -> T) -> (T, u64) {
        let begin = Instant::now();
        let result = call();
        if !self.inner.is_host() {
            // The call only asked for it. A failure comes out again where the result is wanted.
            let _ = self.inner.synchronize();
        }
        (result, begin.elapsed().as_nanos() as u64)
    }
}

impl Kernels for Stopwatch {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn threads(&self) -> usize {
        self.inner.threads()
    }

    fn pin_thread(&self) -> Option<Pinned> {
        self.inner.pin_thread()
    }

    fn arena(&self, capacity: Option<u64>, sharers: usize) -> Result<Arena, ArenaError> {
        self.inner.arena(capacity, sharers)
    }

    fn is_host(&self) -> bool {
        self.inner.is_host()
    }

    fn upload(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        self.time_copy(&src, || self.inner.upload(src, dst))
    }

    fn download(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        self.time_copy(&src, || self.inner.download(src, dst))
    }

    fn copy(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        self.time_copy(&src, || self.inner.copy(src, dst))
    }

    fn synchronize(&self) -> Result<()> {
        self.inner.synchronize()
    }

    fn new_stream(&self) -> Result<Option<Arc<dyn Kernels>>> {
        self.inner.new_stream()
    }

    fn record_event(&self) -> Result<Option<Arc<dyn Event>>> {
        self.inner.record_event()
    }

    fn wait_event(&self, mark: &dyn Event) -> Result<()> {
        self.inner.wait_event(mark)
    }

    fn logits_pitch(&self, columns: usize) -> usize {
        self.inner.logits_pitch(columns)
    }

    fn logits_chunk_len(&self) -> usize {
        self.inner.logits_chunk_len()
    }

    fn workspace(&self, op: &Op) -> usize {
        self.inner.workspace(op)
    }

    fn prepacked_len(&self, op: &Gemm) -> Option<usize> {
        self.inner.prepacked_len(op)
    }

    fn run(&self, op: &Op, reads: &[View<'_>], writes: &mut [ViewMut<'_>], scratch: ViewMut<'_>) -> Result<()> {
        match op {
            // Communicators and initialisation, on their own account.
            Op::Reduce(_) | Op::Quantize(_) | Op::Dequantize(_) | Op::Pack(_) => {
                self.inner.run(op, reads, writes, scratch)
            }
            _ => self.time(op, || self.inner.run(op, reads, writes, scratch)),
        }
    }

    /// The time includes that of telling the sum.
    fn sum_async(&self, op: &Op, x: View<'_>) -> Result<Sum> {
        self.time(op, || {
            let (sum, mut value) = (self.inner.sum_async(op, x)?, [0.0]);
            self.inner.read_scalars(&[sum], &mut value)?;
            Ok(Sum::Known(value[0]))
        })
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
        let squares = Elementwise { len: 1000, sources: 1, from: DType::F32, to: DType::F64 };
        let later = watch.sum_async(&Op::SumSquares(squares), View::of(&sum)).unwrap();
        let mut squares = [0.0];
        watch.read_scalars(&[later], &mut squares).unwrap();
        let expected: f64 = x.iter().map(|x| (3.0 * f64::from(*x)).powi(2)).sum();
        assert!((squares[0] / expected - 1.0).abs() < 1e-6);
        assert!(halves.iter().zip(&x).all(|(h, x)| *h == half::bf16::from_f32(*x)));
        let f = DType::F32;
        let of = |sources, from, to| Elementwise { len: 1000, sources, from, to };
        let ops: Vec<Op> = watch.take().into_iter().map(|timed| timed.op).collect();
        let expected =
            [Op::Cast(of(1, f, DType::Bf16)), Op::Accumulate(of(1, f, f), 2.0), Op::SumSquares(of(1, f, DType::F64))];
        assert_eq!((ops, watch.take().len()), (expected.to_vec(), 0));
    }

    #[test]
    fn copies_are_timed_by_their_bytes_and_are_no_operations() {
        let watch = Stopwatch::new(Arc::new(Cpu::new(1)));
        let (x, mut y) = (vec![1.5f32; 1000], vec![0f32; 1000]);
        watch.copy(View::of(&x), ViewMut::of(&mut y)).unwrap();
        watch.download(View::of(&x[..10]), ViewMut::of(&mut y[..10])).unwrap();
        watch.upload(View::of(&x[..1]), ViewMut::of(&mut y[..1])).unwrap();
        let bytes: Vec<u64> = watch.take_copies().iter().map(|copy| copy.bytes).collect();
        assert_eq!((bytes, x, watch.take(), watch.take_copies()), (vec![4000, 40, 4], y, vec![], vec![]));
    }

    /// 64 million multiply-adds take more than ten microseconds on any core.
    #[test]
    fn time_is_that_of_the_operation() {
        let watch = Stopwatch::new(Arc::new(Cpu::new(1)));
        let (n, f) = (400, DType::F32);
        let a: Vec<f32> = (0..n * n).map(|i| (i % 17) as f32).collect();
        let mut c = vec![0f32; n * n];
        let (m, k, trans_a, trans_b) = (n, n, false, false);
        let op = Gemm { m, n, k, trans_a, trans_b, alpha: 1.0, accumulate: false, a: f, b: f, c: f, ..Gemm::DENSE };
        let mut scratch = vec![0f32; watch.workspace(&Op::Gemm(op))];
        let (a, c) = (View::of(&a), ViewMut::of(&mut c));
        watch.run(&Op::Gemm(op), &[a, a], &mut [c], ViewMut::of(&mut scratch)).unwrap();
        let timed = watch.take();
        assert_eq!((timed.len(), timed[0].op), (1, Op::Gemm(op)));
        assert!(timed[0].ns > 10_000, "{timed:?}");
    }
}
