//! The loss, whole and over a vocabulary that ranks share.

#![allow(unsafe_code, reason = "kernels get addresses")]

use super::Cuda;
use super::launch::{DeviceSlice, arguments};
use super::rows::small;
use crate::op::{CrossEntropy, VocabParallelCrossEntropy, VocabParallelStats};
use crate::{DType, Result};

/// Threads of a block, which has a row of so many columns.
fn threads(columns: usize) -> u32 {
    match columns {
        0..=2048 => 128,
        2049..=8192 => 256,
        8193..=16_384 => 512,
        _ => 1024,
    }
}

/// Calls `launch(first, count)` for runs of rows whose logits become their gradient, one behind the other.
///
/// Where the gradient is narrower than the logits, row `r` of it lies where row `r / 2` of the logits lay. So rows go in
/// waves: of the rows below `2 n` those from `n` on, whose gradients take the place of rows that are done with. Row 0 is a wave of
/// its own, and the kernel takes care of it.
fn waves(rows: usize, gradient: DType, mut launch: impl FnMut(usize, usize) -> Result<()>) -> Result<()> {
    let mut done = 0;
    while done < rows {
        let end = match gradient {
            DType::F32 => rows,
            _ => (2 * done).clamp(1, rows),
        };
        launch(done, end - done)?;
        done = end;
    }
    Ok(())
}

impl Cuda {
    pub(super) fn run_cross_entropy(&self, op: &CrossEntropy, [targets, x, losses]: [DeviceSlice; 3]) -> Result<()> {
        let gradient = DeviceSlice::at(x.address(), op.gradient);
        let (pitch, scale, faults) = (op.row_pitch(), op.scale as f32, self.faults());
        waves(op.rows, op.gradient, |first, count| {
            let arguments = arguments![x, gradient, targets, losses, first, op.vocab, pitch, scale, faults];
            // SAFETY: the kernel's parameters; the operands were checked against rows and vocabulary, and no block of a wave
            // writes what another one reads.
            unsafe { self.launch("cross_entropy", [count, 1, 1], threads(op.vocab), 0, arguments) }
        })
    }

    pub(super) fn run_loss_parts(
        &self,
        op: &VocabParallelStats,
        [targets, x, statistics]: [DeviceSlice; 3],
    ) -> Result<()> {
        let (start, valid, words) = (op.vocab.first, op.vocab.valid(), op.vocab.vocab_size);
        let (pitch, faults) = (op.row_pitch(), self.faults());
        let arguments = arguments![x, targets, statistics, start, valid, words, pitch, faults];
        // SAFETY: the kernel's parameters; the operands were checked against rows and columns.
        unsafe { self.launch("loss_parts", [op.rows, 1, 1], threads(op.vocab.len), 0, arguments) }
    }

    pub(super) fn run_loss_of_parts(
        &self,
        op: &VocabParallelCrossEntropy,
        [targets, statistics, x, losses]: [DeviceSlice; 4],
    ) -> Result<()> {
        let VocabParallelStats { rows, vocab, .. } = op.part;
        let gradient = DeviceSlice::at(x.address(), op.gradient);
        let (start, valid, words, pitch) = (vocab.first, vocab.valid(), vocab.vocab_size, op.part.row_pitch());
        let (ranks, scale, faults) = (small("loss_of_parts", "ranks", op.ranks)?, op.scale as f32, self.faults());
        waves(rows, op.gradient, |first, count| {
            let arguments = arguments![
                x, gradient, targets, statistics, losses, first, rows, ranks, start, valid, words, pitch, scale, faults
            ];
            // SAFETY: the kernel's parameters; the operands were checked against rows, columns and ranks, and no block of a
            // wave writes what another one reads.
            unsafe { self.launch("loss_of_parts", [count, 1, 1], threads(vocab.len), 0, arguments) }
        })
    }
}
