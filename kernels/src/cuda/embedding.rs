//! The embedding and its gradient.

#![allow(unsafe_code, reason = "kernels get addresses")]

use super::Cuda;
use super::launch::{DeviceSlice, SCRATCH_BYTES, arguments};
use super::rows::teams;
use crate::memory::device::Address;
use crate::op::{Embedding, VocabPart};
use crate::{DType, Result};

/// Rows of the sorted order that a block sums, as embedding.cu has it.
const WINDOW: usize = 32;
/// Most keys that a block sorts, and most rows that are sorted together.
const TILE: usize = 2048;
const SORTED: usize = 1 << 16;
/// What their keys take: twice, since merging goes from one place to another.
const KEY_BYTES: usize = 2 * 8 * SORTED;

impl Cuda {
    pub(super) fn run_embedding(&self, op: &Embedding, [ids, from, to]: [DeviceSlice; 3]) -> Result<()> {
        let bytes = op.cols * op.dtype.size();
        let fits = |word: usize| [bytes as Address, from.address(), to.address()].iter().all(|n| n % word as u64 == 0);
        let word = [16, 4].into_iter().find(|word| fits(*word)).unwrap_or(2);
        let words = bytes / word;
        let teams = teams(words * 8);
        let grid = [op.rows.div_ceil(teams.rows), 1, 1];
        let (word, team, faults) = (word as u32, teams.team, self.faults());
        let VocabPart { first, len, vocab_size: vocab } = op.vocab;
        let arguments = arguments![ids, from, to, op.rows, words, word, first, len, vocab, team, faults];
        // SAFETY: the kernel's parameters; the operands were checked against the shape, and words are aligned.
        unsafe { self.launch("embedding", grid, teams.threads, 0, arguments) }
    }

    /// Rows are sorted by id, a run of up to 65536 of them at a time, and each id's are summed in order: see embedding.cu. So
    /// every row of dy is read once, every row of the table that has tokens is changed once (or twice) by one block, and the
    /// order of the sums depends on the ids alone.
    pub(super) fn run_embedding_backward(&self, op: &Embedding, operands: [DeviceSlice; 3]) -> Result<()> {
        if op.cols == 0 {
            return Ok(());
        }
        // Of all windows there is room for the sums that they carry; a single window carries none.
        let windows = (SCRATCH_BYTES - KEY_BYTES) / op.cols.saturating_mul(4);
        let most = windows.saturating_mul(WINDOW).clamp(WINDOW, SORTED);
        for first in (0..op.rows).step_by(most) {
            self.add_tokens(op, operands, first, most.min(op.rows - first))?;
        }
        Ok(())
    }

    fn add_tokens(&self, op: &Embedding, [ids, dy, table]: [DeviceSlice; 3], first: usize, rows: usize) -> Result<()> {
        let tile = rows.next_power_of_two().clamp(2 * WINDOW, TILE);
        let keys = rows.next_multiple_of(tile);
        let scratch = self.scratch();
        let (mut from, mut to) = (*scratch, *scratch + (KEY_BYTES / 2) as Address);
        let carried = DeviceSlice::at(*scratch + KEY_BYTES as Address, DType::F32);
        let (count, of_tile, faults) = (rows as u32, tile as u32, self.faults());
        let (has_padding, padding) = (u32::from(op.padding.is_some()), op.padding.unwrap_or(0));
        let threads = (of_tile / 2).clamp(32, 512);
        let arguments = arguments![ids, from, first, count, of_tile, op.vocab.vocab_size, has_padding, padding, faults];
        // SAFETY: the kernel's parameters; there are `rows` ids from `first` on, and the scratch holds all keys.
        unsafe { self.launch("embedding_sort", [keys / tile, 1, 1], threads, tile * 8, arguments)? };
        let all = keys as u32;
        let mut width = of_tile;
        while width < all {
            // SAFETY: the kernel's parameters; both places hold all keys.
            unsafe {
                let arguments = arguments![from, to, all, width];
                self.launch("embedding_merge", [keys.div_ceil(256), 1, 1], 256, 0, arguments)?;
            }
            (from, to) = (to, from);
            width *= 2;
        }
        let (windows, tiles) = (rows.div_ceil(WINDOW), op.cols.div_ceil(1024));
        let VocabPart { first: start, len, .. } = op.vocab;
        let arguments = arguments![from, dy, table, carried, first, op.cols, start, len];
        // SAFETY: the kernel's parameters; keys name rows of dy and of the table that were checked to be there, and the
        // scratch holds what every window but the first carries.
        unsafe { self.launch("embedding_sum", [windows, tiles, 1], 128, 0, arguments)? };
        let arguments = arguments![from, table, carried, windows, op.cols, start, len];
        // SAFETY: as above.
        unsafe { self.launch("embedding_carry", [windows - 1, tiles, 1], 128, 0, arguments) }
    }
}
