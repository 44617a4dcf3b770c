//! The place of a head in its tensor, and what is computed of one head.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]

use crate::View;
use crate::cpu::level::{LANES, Level, fma, fold_rows, merge};
use crate::cpu::stream::{CHUNK, Shared, chunks, load, narrow};
use crate::op::Attention;
use std::ops::Range;

/// One head of queries or keys.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Head {
    /// Index of the head's first element at token 0 of the sequence.
    pub start: usize,
    /// Elements from one token to the next.
    pub stride: usize,
    dim: usize,
}

impl Head {
    /// Of a tensor `[batch*seq, heads*dim]`.
    pub fn query(op: &Attention, batch: usize, head: usize) -> Head {
        Head::of(op.head_dim, op.seq, op.heads, batch, head)
    }

    /// Of a tensor `[batch*kv_seq, kv_heads*dim]`.
    pub fn key(op: &Attention, batch: usize, head: usize) -> Head {
        Head::of(op.head_dim, op.kv_seq, op.kv_heads, batch, head)
    }

    fn of(dim: usize, seq: usize, heads: usize, batch: usize, head: usize) -> Head {
        let stride = heads * dim;
        Head { start: batch * seq * stride + head * dim, stride, dim }
    }

    fn token(&self, row: usize) -> Range<usize> {
        let start = self.start + row * self.stride;
        start..start + self.dim
    }

    /// Rounds elements from `first` on of a token.
    ///
    /// # Safety
    /// Nobody else may use them.
    pub unsafe fn store_part(&self, level: Level, row: usize, first: usize, from: &[f32], to: &Shared) {
        let start = self.token(row).start + first;
        // SAFETY: the caller's promise.
        narrow(level, from, &mut unsafe { to.part(start..start + from.len()) });
    }

    /// Rounds rows of `dim` into tokens `rows`.
    ///
    /// # Safety
    /// Nobody else may use these tokens of this head.
    pub unsafe fn store(&self, level: Level, rows: Range<usize>, from: &[f32], to: &Shared) {
        for (row, from) in rows.zip(from.chunks_exact(self.dim)) {
            // SAFETY: the caller's promise.
            narrow(level, from, &mut unsafe { to.part(self.token(row)) });
        }
    }
}

/// The sum of `dout * out` of each token of a head, from `start` on.
pub(super) fn deltas_of(level: Level, head: Head, out: View, dout: View, start: usize, deltas: &mut [f32]) {
    let (mut outs, mut douts) = ([0.0; CHUNK], [0.0; CHUNK]);
    for (row, delta) in deltas.iter_mut().enumerate() {
        let token = head.token(start + row);
        let mut lanes = [0.0; LANES];
        for chunk in chunks(token) {
            let (out, dout) =
                (load(level, out.slice(chunk.clone()), &mut outs), load(level, dout.slice(chunk), &mut douts));
            level.run(
                #[inline(always)]
                |fused| fold_rows(&mut lanes, [out, dout], |sum, [a, b]| fma(fused, a, b, sum)),
            );
        }
        *delta = merge(lanes, |a, b| a + b);
    }
}
