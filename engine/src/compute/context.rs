//! What a rank computes with. The same code runs for real and dry: a dry run has kernels that compute nothing, an arena without
//! memory, and a recorder that notes every operation ([`Recorder`]).

use crate::compute::error::Result;
use crate::compute::recorder::Recorder;
use zbench_kernels::{Arena, Buffer, Category, DType, Gemm, Kernels, Op, Sum, View, ViewMut, no_scratch};

#[derive(Clone, Copy)]
pub struct ComputeContext<'a> {
    pub kernels: &'a dyn Kernels,
    pub arena: &'a Arena,
    /// Who notes operations; only in a dry run.
    pub recorder: Option<&'a Recorder>,
}

impl ComputeContext<'_> {
    /// A buffer with unspecified contents.
    pub fn alloc(&self, category: Category, dtype: DType, len: usize) -> Result<Buffer> {
        Ok(self.arena.alloc(category, dtype, len)?)
    }

    /// Performs an operation with the scratch that it needs. `term` is its name in the FLOP ledger.
    pub fn run(&self, term: &'static str, op: &Op, reads: &[View<'_>], writes: &mut [ViewMut<'_>]) -> Result<()> {
        if let Some(recorder) = self.recorder {
            recorder.record(term, op);
        }
        let len = self.kernels.workspace(op);
        if len == 0 {
            return Ok(self.kernels.run(op, reads, writes, no_scratch())?);
        }
        let mut scratch = self.alloc(Category::Workspace, DType::F32, len)?;
        Ok(self.kernels.run(op, reads, writes, scratch.view_mut())?)
    }

    pub fn gemm(&self, term: &'static str, op: Gemm, a: View<'_>, b: View<'_>, c: ViewMut<'_>) -> Result<()> {
        self.run(term, &Op::Gemm(op), &[a, b], &mut [c])
    }

    pub fn fill(&self, term: &'static str, dst: ViewMut<'_>, value: f64) -> Result<()> {
        self.run(term, &Op::fill(&dst, value), &[], &mut [dst])
    }

    pub fn cast(&self, term: &'static str, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        self.run(term, &Op::cast(&src, &dst), &[src], &mut [dst])
    }

    /// `dst += src`.
    pub fn accumulate(&self, term: &'static str, src: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        self.run(term, &Op::accumulate(1.0, &src, &dst), &[src], &mut [dst])
    }

    pub fn scale(&self, term: &'static str, alpha: f64, dst: ViewMut<'_>) -> Result<()> {
        self.run(term, &Op::scale(alpha, &dst), &[], &mut [dst])
    }

    /// The sum of elements, which the device may tell later.
    pub fn sum(&self, term: &'static str, x: View<'_>) -> Result<Sum> {
        self.sum_by(term, &Op::sum(x.len(), x.dtype()), x)
    }

    /// The sum of squares of elements.
    pub fn sum_squares(&self, term: &'static str, x: View<'_>) -> Result<Sum> {
        self.sum_by(term, &Op::sum_squares(x.len(), x.dtype()), x)
    }

    fn sum_by(&self, term: &'static str, op: &Op, x: View<'_>) -> Result<Sum> {
        if let Some(recorder) = self.recorder {
            recorder.record(term, op);
        }
        Ok(self.kernels.sum_async(op, x)?)
    }

    /// Work that makes again what an earlier part of the step has made.
    pub fn again<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.recorder {
            Some(recorder) => recorder.recompute(work),
            None => work(),
        }
    }

    /// The same work so many times, which leaves no buffer behind and depends on the number in its data alone. A dry run does it
    /// twice, since the first time may pack weights that the others find, and counts the rest.
    pub fn times(&self, count: usize, mut work: impl FnMut(usize) -> Result<()>) -> Result<()> {
        match self.recorder.filter(|recorder| count > 2 && !recorder.keeps_operations()) {
            None => (0..count).try_for_each(work),
            Some(recorder) => {
                work(0)?;
                recorder.times(count - 1, || work(1))
            }
        }
    }
}
