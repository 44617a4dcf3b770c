//! Operations of which an operand may lie on the host: what fills weights, reads them out and moves checkpoints. No step has any.

use super::Cuda;
use crate::op::Normal;
use crate::packed::{Packed, Unpack};
use crate::{DType, KernelError, Kernels, ReduceOp, Result, View, ViewMut};

/// Elements that go over at a time.
const PIECE: usize = 1 << 20;

/// Elements on the host in words that fit every type.
struct Staged {
    words: Vec<u64>,
    dtype: DType,
}

impl Staged {
    fn new(dtype: DType, len: usize) -> Staged {
        Staged { words: vec![0; (len * dtype.size()).div_ceil(8)], dtype }
    }

    fn view(&self, len: usize) -> View<'_> {
        assert!(len * self.dtype.size() <= self.words.len() * 8, "{len} elements of {} words", self.words.len());
        // SAFETY: the words hold `len` elements or more (checked), aligned for every type.
        unsafe { View::from_raw(std::ptr::NonNull::from(&self.words[..]).cast(), self.dtype, len) }
    }

    fn view_mut(&mut self, len: usize) -> ViewMut<'_> {
        assert!(len * self.dtype.size() <= self.words.len() * 8, "{len} elements of {} words", self.words.len());
        // SAFETY: as above, lent for writing.
        unsafe { ViewMut::from_raw(std::ptr::NonNull::from(&mut self.words[..]).cast(), self.dtype, len) }
    }
}

impl Cuda {
    /// Whether something lies where only the host reaches it.
    fn is_away(&self, on_host: bool) -> bool {
        on_host && !self.machine.reaches_host()
    }

    /// Rounded on the host where one of the two lies there.
    pub(super) fn cast_anywhere(&self, src: View<'_>, mut dst: ViewMut<'_>) -> Result<()> {
        let (from_host, to_host, len) = (self.is_away(src.is_on_host()), self.is_away(dst.is_on_host()), src.len());
        if from_host == to_host {
            return if from_host { self.host.cast(src, dst) } else { self.run_cast(src, dst) };
        }
        let mut staged = Staged::new(if from_host { dst.dtype() } else { src.dtype() }, len.min(PIECE));
        for start in (0..len).step_by(PIECE) {
            let end = len.min(start + PIECE);
            let (src, dst, len) = (src.slice(start..end), dst.slice_mut(start..end), end - start);
            if from_host {
                self.host.cast(src, staged.view_mut(len))?;
                self.upload(staged.view(len), dst)?;
            } else {
                self.download(src, staged.view_mut(len))?;
                self.host.cast(staged.view(len), dst)?;
            }
        }
        Ok(())
    }

    pub(super) fn fill_anywhere(&self, dst: ViewMut<'_>, value: f64) -> Result<()> {
        if self.is_away(dst.is_on_host()) { self.host.fill(dst, value) } else { self.run_fill(dst, value) }
    }

    pub(super) fn normal_anywhere(&self, op: &Normal, dst: ViewMut<'_>) -> Result<()> {
        if self.is_away(dst.is_on_host()) { self.host.normal(op, dst) } else { self.run_normal(op, dst) }
    }

    pub(super) fn reduce_anywhere(
        &self,
        op: ReduceOp,
        sources: &[View<'_>],
        accumulate: bool,
        dst: ViewMut<'_>,
    ) -> Result<()> {
        let on_host = self.is_away(dst.is_on_host());
        if sources.iter().any(|source| self.is_away(source.is_on_host()) != on_host) {
            return Err(KernelError::NotOnHost);
        }
        if on_host {
            self.host.reduce(op, sources, accumulate, dst)
        } else {
            self.run_reduce(op, sources, accumulate, dst)
        }
    }

    pub(super) fn pack_anywhere(
        &self,
        matrix: &Packed,
        src: View<'_>,
        codes: ViewMut<'_>,
        scales: ViewMut<'_>,
    ) -> Result<()> {
        if self.is_away(src.is_on_host()) {
            self.host.pack(matrix, src, codes, scales)
        } else {
            self.run_pack(matrix, src, codes, scales)
        }
    }

    pub(super) fn unpack_anywhere(&self, op: &Unpack, record: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        if !self.is_away(dst.is_on_host()) {
            return self.run_unpack(op, record, dst);
        }
        let mut staged = Staged::new(DType::I8, record.len());
        self.download(record, staged.view_mut(record.len()))?;
        self.host.unpack(op, staged.view(record.len()), dst)
    }
}
