//! Operations of which an operand may lie on the host: what fills weights, reads them out and moves checkpoints. A step has them
//! where state is offloaded: its update, and sums of its gradients.

#![allow(unsafe_code, reason = "scratch of words is seen as elements of a type")]

use super::Cuda;
use super::launch::DeviceSlice;
use crate::memory::view::Extent;
use crate::op::{Op, Unpack};
use crate::{DType, KernelError, Kernels, Result, View, ViewMut, no_scratch};

/// Elements that go over at a time.
const PIECE: usize = 1 << 20;

/// Elements on the host in words that fit every type.
pub(super) struct Staged {
    words: Vec<u64>,
    dtype: DType,
}

impl Staged {
    pub(super) fn new(dtype: DType, len: usize) -> Staged {
        Staged { words: vec![0; (len * dtype.size()).div_ceil(8)], dtype }
    }

    pub(super) fn view(&self, len: usize) -> View<'_> {
        assert!(len * self.dtype.size() <= self.words.len() * 8, "{len} elements of {} words", self.words.len());
        // SAFETY: the words hold `len` elements or more (checked), aligned for every type.
        unsafe { View::from_raw(std::ptr::NonNull::from(&self.words[..]).cast(), self.dtype, len) }
    }

    pub(super) fn view_mut(&mut self, len: usize) -> ViewMut<'_> {
        assert!(len * self.dtype.size() <= self.words.len() * 8, "{len} elements of {} words", self.words.len());
        // SAFETY: as above, lent for writing.
        unsafe { ViewMut::from_raw(std::ptr::NonNull::from(&mut self.words[..]).cast(), self.dtype, len) }
    }
}

impl Cuda {
    /// Whether something lies where only the host reaches it.
    pub(super) fn is_away(&self, on_host: bool) -> bool {
        on_host && !self.device.reaches_host()
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

    /// Whether the operands of what initialisation, communicators and the update of offloaded state ask for lie on the host, whose
    /// kernels do it then. Nothing else takes operands there but what goes from the one to the other.
    pub(super) fn is_for_host(&self, op: &Op, reads: &[View<'_>], writes: &[ViewMut<'_>]) -> Result<bool> {
        // What has no elements lies nowhere.
        let on_host = |extent: &Extent| self.is_away(extent.is_on_host() && !extent.is_empty());
        let away = reads.iter().map(|view| on_host(view)).chain(writes.iter().map(|view| on_host(view)));
        let (away, all) = (away.filter(|away| *away).count(), reads.len() + writes.len());
        match op {
            _ if away == 0 => Ok(false),
            Op::Fill(..) | Op::Normal(_) | Op::Reduce(_) | Op::Pack(_) | Op::AdamW(_) if away == all => Ok(true),
            Op::Cast(_) | Op::Unpack(_) => Ok(false),
            _ => Err(KernelError::NotOnHost),
        }
    }

    pub(super) fn unpack_anywhere(&self, op: &Unpack, record: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        if !self.is_away(dst.is_on_host()) {
            if self.is_away(record.is_on_host() && !record.is_empty()) {
                return Err(KernelError::NotOnHost);
            }
            return self.run_unpack(op, record, DeviceSlice::of(&dst));
        }
        let mut staged = Staged::new(DType::I8, record.len());
        self.download(record, staged.view_mut(record.len()))?;
        self.host.run(&Op::Unpack(*op), &[staged.view(record.len())], &mut [dst], no_scratch())
    }
}
