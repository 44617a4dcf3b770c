//! Attention of types that are widened to f32, tile by tile.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]

use super::{Inputs, Kept, steps};
use crate::cpu::Cpu;
use crate::cpu::gemm::{Matrix, multiply};
use crate::cpu::level::{LANES, Level, exp, fma, fold, fold_rows, merge};
use crate::cpu::stream::{CHUNK, Shared, chunks, load, narrow, widen};
use crate::op::{Attention, alibi_slope};
use crate::sight::Sight;
use crate::{DType, View, ViewMut};
use std::ops::Range;

/// Queries, and keys, of a tile.
pub(in crate::cpu) const TILE: usize = 128;

/// The same where sequences may be shorter.
fn tile(op: &Attention) -> [usize; 2] {
    [op.seq, op.kv_seq].map(|len| TILE.min(len))
}

/// f32 elements of scratch per thread in forward: two tiles of scores and outputs, and copies of q, k and v.
pub(in crate::cpu) fn forward_scratch(op: &Attention) -> usize {
    let [rows, cols] = tile(op);
    let heads = rows * (copies(op, 1) + 1) + cols * copies(op, 2);
    op.head_dim.saturating_mul(heads).saturating_add(rows * (cols + 2))
}

/// f32 elements of scratch per thread in backward: tiles of probabilities and their gradients, of dk and dv, copies of
/// q, k, v and dout; and, linear in the sequence, sums of dq and the row sums of `dout * out`.
pub(in crate::cpu) fn backward_scratch(op: &Attention) -> usize {
    let [rows, cols] = tile(op);
    let group = op.heads / op.kv_heads.max(1);
    let heads = rows * copies(op, 2) + cols * (copies(op, 2) + 2);
    let lines = op.seq.saturating_mul(group).saturating_mul(op.head_dim.saturating_add(1));
    op.head_dim.saturating_mul(heads).saturating_add(2 * rows * cols).saturating_add(lines)
}

/// Tiles that must be copied because they do not hold f32.
pub(in crate::cpu) fn copies(op: &Attention, tiles: usize) -> usize {
    if op.dtype == DType::F32 { 0 } else { tiles }
}

/// Takes the first `len` elements off a thread's scratch.
pub(in crate::cpu) fn take<'a>(scratch: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (taken, rest) = std::mem::take(scratch).split_at_mut(len);
    *scratch = rest;
    taken
}

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

    /// Tokens `rows` as an f32 matrix: in place, or copied to `buffer`.
    pub fn load(&self, level: Level, view: View, rows: Range<usize>, buffer: &mut [f32]) -> Matrix {
        if view.dtype() == DType::F32 {
            let ptr = view.slice(self.token(rows.start)).ptr();
            return Matrix { ptr: ptr.as_ptr().cast(), row: self.stride, col: 1 };
        }
        for (row, to) in rows.zip(buffer.chunks_exact_mut(self.dim)) {
            widen(level, view.slice(self.token(row)), to);
        }
        Matrix { ptr: buffer.as_ptr(), row: self.dim, col: 1 }
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

pub(in crate::cpu) fn dense(slice: &[f32], cols: usize) -> Matrix {
    Matrix { ptr: slice.as_ptr(), row: cols, col: 1 }
}

/// Where a tile of queries and one of keys meet: what is seen of it, and ALiBi's slope.
#[derive(Clone, Copy)]
struct Meeting<'a> {
    /// First query and first key.
    query: usize,
    key: usize,
    width: usize,
    sight: Sight<'a>,
    batch: usize,
    /// 0 without ALiBi.
    slope: f32,
}

impl Meeting<'_> {
    /// The keys of the tile that its query `row` sees, as columns of the tile.
    #[inline(always)]
    fn seen(&self, row: usize) -> Range<usize> {
        let end = self.sight.end(self.query + row).saturating_sub(self.key);
        let start = self.sight.first(self.batch, self.query + row).saturating_sub(self.key);
        start.min(self.width)..end.min(self.width)
    }

    /// Adds ALiBi to the scores of query `row` from column `start` on. Distances are whole numbers that f32 holds.
    #[inline(always)]
    fn lean(&self, fused: bool, row: usize, start: usize, scores: &mut [f32]) {
        if self.slope != 0.0 {
            let far = self.query as f32 + row as f32 - (self.key + start) as f32;
            lean(fused, self.slope, far, scores);
        }
    }
}

/// ALiBi's slope of a query head; 0 without.
pub(in crate::cpu) fn slope(op: &Attention, head: usize) -> f32 {
    if op.alibi { alibi_slope(head, op.heads) as f32 } else { 0.0 }
}

/// `scores[i] -= slope * (far - i)`.
#[inline(always)]
pub(in crate::cpu) fn lean(fused: bool, slope: f32, far: f32, scores: &mut [f32]) {
    for (i, score) in scores.iter_mut().enumerate() {
        *score = fma(fused, -slope, far - i as f32, *score);
    }
}

/// Whether any query of `rows` sees any key of `cols`.
fn meets(sight: Sight, batch: usize, rows: &Range<usize>, cols: &Range<usize>) -> bool {
    let seen = sight.any(batch, rows);
    seen.start < cols.end && cols.start < seen.end
}

impl Cpu {
    pub(super) fn run_plain_attention(&self, op: &Attention, inputs: Inputs, outs: [ViewMut; 2], workspace: ViewMut) {
        let Inputs { q, k, v, starts } = inputs;
        let (level, dim, group) = (self.level, op.head_dim, op.heads / op.kv_heads.max(1));
        let sight = Sight::of(op, starts);
        let size = forward_scratch(op);
        let [tall, wide] = tile(op);
        let copy = copies(op, 1) * dim;
        let ([out, lse], workspace) = (outs.map(Shared::new), Shared::new(workspace));
        if dim == 0 || op.seq == 0 {
            return;
        }
        self.pool.each(op.batch * op.heads, |thread, number| {
            let (batch, head) = (number / op.heads, number % op.heads);
            let (query, key) = (Head::query(op, batch, head), Head::key(op, batch, head / group));
            // SAFETY: each thread has its own scratch, and each head of a sequence is one thread's.
            let (scratch, lse) = unsafe {
                let lse = lse.elements::<f32>(number * op.seq..(number + 1) * op.seq);
                (&mut workspace.elements::<f32>(thread * size..(thread + 1) * size), lse)
            };
            let [qs, ks, vs] = [tall, wide, wide].map(|tokens| take(scratch, tokens * copy));
            let (scores, sums) = (take(scratch, tall * wide), take(scratch, tall * dim));
            let (tops, totals) = (take(scratch, tall), take(scratch, tall));
            for rows in steps(0..op.seq, TILE) {
                let q = query.load(level, q, rows.clone(), qs);
                let count = rows.len();
                tops.fill(f32::NEG_INFINITY);
                totals.fill(0.0);
                let mut first = true;
                for cols in steps(0..op.kv_seq, TILE).filter(|cols| meets(sight, batch, &rows, cols)) {
                    let k = key.load(level, k, cols.clone(), ks);
                    let v = key.load(level, v, cols.clone(), vs);
                    let width = cols.len();
                    // SAFETY: tiles of tensors whose lengths were checked; scores and sums are this thread's.
                    unsafe {
                        let shape = [count, width, dim];
                        multiply(shape, op.scale as f32, q, k.transposed(), false, scores.as_mut_ptr(), width);
                    }
                    let slope = slope(op, head);
                    let meeting = Meeting { query: rows.start, key: cols.start, width, sight, batch, slope };
                    softmax_tile(level, &mut scores[..count * width], meeting, [tops, totals, sums], dim, first);
                    // SAFETY: as above.
                    unsafe {
                        let shape = [count, dim, width];
                        multiply(shape, 1.0, dense(scores, width), v, !first, sums.as_mut_ptr(), dim);
                    }
                    first = false;
                }
                for (row, sums) in sums[..count * dim].chunks_exact_mut(dim).enumerate() {
                    let share = 1.0 / totals[row];
                    sums.iter_mut().for_each(|sum| *sum *= share);
                    lse[rows.start + row] = (f64::from(tops[row]) + f64::from(totals[row]).ln()) as f32;
                }
                // SAFETY: this head is this thread's.
                unsafe { query.store(level, rows, &sums[..count * dim], &out) };
            }
        });
    }

    pub(super) fn run_plain_attention_backward(
        &self,
        op: &Attention,
        Inputs { q, k, v, starts }: Inputs,
        Kept { out, lse, dout }: Kept,
        [dq, dk, dv]: [ViewMut; 3],
        workspace: ViewMut,
    ) {
        let (level, dim, seq) = (self.level, op.head_dim, op.seq);
        let sight = Sight::of(op, starts);
        let group = op.heads / op.kv_heads.max(1);
        let size = backward_scratch(op);
        let [tall, wide] = tile(op);
        let copy = copies(op, 1) * dim;
        let [dq, dk, dv, workspace] = [dq, dk, dv, workspace].map(Shared::new);
        if dim == 0 || seq == 0 {
            return;
        }
        // One thread has all that reads a key head, so dk and dv have one writer and one order.
        self.pool.each(op.batch * op.kv_heads, |thread, number| {
            let (batch, kv_head) = (number / op.kv_heads, number % op.kv_heads);
            let key = Head::key(op, batch, kv_head);
            // SAFETY: each thread has its own scratch.
            let scratch = unsafe { &mut workspace.elements::<f32>(thread * size..(thread + 1) * size) };
            let [qs, ks, vs, douts] = [tall, wide, wide, tall].map(|tokens| take(scratch, tokens * copy));
            let [probs, grads] = [(); 2].map(|()| take(scratch, tall * wide));
            let [dks, dvs] = [(); 2].map(|()| take(scratch, wide * dim));
            let (dqs, deltas) = (take(scratch, group * seq * dim), take(scratch, group * seq));
            for member in 0..group {
                let query = Head::query(op, batch, kv_head * group + member);
                deltas_of(level, query, out, dout, 0, &mut deltas[member * seq..(member + 1) * seq]);
            }
            dqs.fill(0.0);
            for cols in steps(0..op.kv_seq, TILE) {
                let width = cols.len();
                let k = key.load(level, k, cols.clone(), ks);
                let v = key.load(level, v, cols.clone(), vs);
                let mut first = true;
                for member in 0..group {
                    let head = kv_head * group + member;
                    let query = Head::query(op, batch, head);
                    let lse = &lse[(batch * op.heads + head) * seq..][..seq];
                    for rows in steps(0..seq, TILE).filter(|rows| meets(sight, batch, rows, &cols)) {
                        let count = rows.len();
                        let q = query.load(level, q, rows.clone(), qs);
                        let dout = query.load(level, dout, rows.clone(), douts);
                        let line = member * seq + rows.start;
                        let scale = op.scale as f32;
                        // SAFETY: tiles of tensors whose lengths were checked, or of this thread's scratch.
                        unsafe {
                            multiply([count, width, dim], scale, q, k.transposed(), false, probs.as_mut_ptr(), width);
                            multiply([count, width, dim], 1.0, dout, v.transposed(), false, grads.as_mut_ptr(), width);
                        }
                        let slope = slope(op, head);
                        let meeting = Meeting { query: rows.start, key: cols.start, width, sight, batch, slope };
                        let (lse, deltas) = (&lse[rows.clone()], &deltas[line..line + count]);
                        score_gradients(level, &mut probs[..count * width], grads, meeting, lse, deltas, scale);
                        let (p, ds) = (dense(probs, width), dense(grads, width));
                        let dq_tile = &mut dqs[line * dim..(line + count) * dim];
                        // SAFETY: as above.
                        unsafe {
                            multiply([width, dim, count], 1.0, p.transposed(), dout, !first, dvs.as_mut_ptr(), dim);
                            multiply([width, dim, count], 1.0, ds.transposed(), q, !first, dks.as_mut_ptr(), dim);
                            multiply([count, dim, width], 1.0, ds, k, true, dq_tile.as_mut_ptr(), dim);
                        }
                        first = false;
                    }
                }
                // SAFETY: this key head is this thread's.
                unsafe {
                    key.store(level, cols.clone(), &dks[..width * dim], &dk);
                    key.store(level, cols, &dvs[..width * dim], &dv);
                }
            }
            for (member, dqs) in dqs.chunks_exact(seq * dim).enumerate() {
                let query = Head::query(op, batch, kv_head * group + member);
                // SAFETY: the query heads of this key head are this thread's.
                unsafe { query.store(level, 0..seq, dqs, &dq) };
            }
        });
    }
}

/// Turns a tile of scores into numerators `exp(score - top)`, with the running maxima and sums of its rows; the output
/// sums so far are scaled to the new maxima.
#[inline]
fn softmax_tile(
    level: Level,
    scores: &mut [f32],
    meeting: Meeting,
    [tops, totals, sums]: [&mut [f32]; 3],
    dim: usize,
    first: bool,
) {
    level.run(
        #[inline(always)]
        |fused| {
            for (row, scores) in scores.chunks_exact_mut(meeting.width).enumerate() {
                let seen = meeting.seen(row);
                scores[..seen.start].fill(0.0);
                scores[seen.end..].fill(0.0);
                let scores = &mut scores[seen.clone()];
                if scores.is_empty() {
                    // The sums so far stay; a first product of zeros makes them zero.
                    continue;
                }
                meeting.lean(fused, row, seen.start, scores);
                let mut lanes = [tops[row]; LANES];
                fold(&mut lanes, scores, |a, b| if b > a { b } else { a });
                let top = merge(lanes, |a, b| if b > a { b } else { a });
                scores.iter_mut().for_each(|s| *s = exp(fused, *s - top));
                let mut lanes = [0.0; LANES];
                fold(&mut lanes, scores, |sum, p| sum + p);
                let shrink = exp(fused, tops[row] - top);
                totals[row] = fma(fused, totals[row], shrink, merge(lanes, |a, b| a + b));
                tops[row] = top;
                if !first {
                    sums[row * dim..(row + 1) * dim].iter_mut().for_each(|sum| *sum *= shrink);
                }
            }
        },
    );
}

/// Turns scores into probabilities, and gradients of probabilities into gradients of scores.
#[inline]
fn score_gradients(
    level: Level,
    probs: &mut [f32],
    grads: &mut [f32],
    meeting: Meeting,
    lse: &[f32],
    deltas: &[f32],
    scale: f32,
) {
    level.run(
        #[inline(always)]
        |fused| {
            let rows = probs.chunks_exact_mut(meeting.width).zip(grads.chunks_exact_mut(meeting.width));
            for (row, (probs, grads)) in rows.enumerate() {
                let seen = meeting.seen(row);
                for masked in [0..seen.start, seen.end..meeting.width] {
                    probs[masked.clone()].fill(0.0);
                    grads[masked].fill(0.0);
                }
                let (probs, grads) = (&mut probs[seen.clone()], &mut grads[seen.clone()]);
                meeting.lean(fused, row, seen.start, probs);
                let (lse, delta) = (lse[row], deltas[row]);
                for (p, g) in probs.iter_mut().zip(grads) {
                    *p = exp(fused, *p - lse);
                    *g = *p * (*g - delta) * scale;
                }
            }
        },
    );
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
