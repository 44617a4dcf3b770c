//! Attention that stores its probabilities, as textbooks write it: memory grows with the product of queries and keys.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]

use super::Cpu;
use super::attention::head::Head;
use super::attention::{Inputs, Strand, steps};
use super::level::{LANES, Level, exp, fma, fold, fold_rows, merge};
use super::matmul::alone;
use super::stream::{Shared, narrow, widen};
use crate::op::Attention;
use crate::op::attention_mask::AttentionMask;
use crate::{View, ViewMut};
use std::ops::Range;

/// Queries that are worked on at a time.
const TILE: usize = 128;

/// f32 elements of scratch per thread in forward: rows of scores and of outputs, and that of products.
pub(super) fn forward_scratch(op: &Attention) -> usize {
    let (tile, kv_seq, dim) = (TILE.min(op.seq), op.kv_seq, op.head_dim);
    tile.saturating_mul(kv_seq.saturating_add(dim))
        .saturating_add(alone::scratch([tile, kv_seq, dim]).max(alone::scratch([tile, dim, kv_seq])))
}

/// f32 elements of scratch per thread in backward: rows of probabilities, of gradients and of dq, dk and dv of a whole head, and
/// that of products.
pub(super) fn backward_scratch(op: &Attention) -> usize {
    let (tile, kv_seq, dim) = (TILE.min(op.seq), op.kv_seq, op.head_dim);
    let products = [[tile, kv_seq, dim], [kv_seq, dim, tile], [tile, dim, kv_seq]].map(alone::scratch);
    tile.saturating_mul(kv_seq.saturating_mul(2).saturating_add(dim))
        .saturating_add(kv_seq.saturating_mul(dim).saturating_mul(2))
        .saturating_add(products.into_iter().max().unwrap_or(0))
}

/// Takes the first `len` elements off a thread's scratch.
fn take<'a>(scratch: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (taken, rest) = std::mem::take(scratch).split_at_mut(len);
    *scratch = rest;
    taken
}

impl Cpu {
    pub(super) fn run_naive_attention(&self, op: &Attention, inputs: Inputs, outs: [ViewMut; 2], workspace: ViewMut) {
        let Inputs { q, k, v, starts } = inputs;
        let (path, level, dim, seq, kv_seq) = (self.path, self.level, op.head_dim, op.seq, op.kv_seq);
        let group = op.heads / op.kv_heads.max(1);
        let sight = AttentionMask::of(op, starts);
        let (size, tile) = (forward_scratch(op), TILE.min(seq));
        let ([out, probs], workspace) = (outs.map(Shared::new), Shared::new(workspace));
        if dim == 0 || seq == 0 {
            return;
        }
        self.pool.each(op.batch * op.heads, |thread, number| {
            let (batch, head) = (number / op.heads, number % op.heads);
            let (query, key) = (Head::query(op, batch, head), Head::key(op, batch, head / group));
            let (q, [k, v]) = (Strand::of(&q, query), [&k, &v].map(|x| Strand::of(x, key)));
            // SAFETY: each thread has its own scratch.
            let scratch = unsafe { &mut workspace.elements::<f32>(thread * size..(thread + 1) * size) };
            let (scores, sums) = (take(scratch, tile * kv_seq), take(scratch, tile * dim));
            for rows in steps(0..seq, TILE) {
                // Later keys have no part in these rows; the softmax zeroes their scores.
                let (count, seen) = (rows.len(), sight.any(batch, &rows).end);
                // SAFETY: parts of tensors whose lengths were checked; scores are this thread's.
                unsafe {
                    let (shape, operands) = ([count, seen, dim], [q.tokens(rows.start), k.tokens(0)]);
                    let to = (scores.as_mut_ptr(), kv_seq);
                    alone::multiply(path, shape, op.scale as f32, operands, false, to, scratch);
                }
                for (row, scores) in rows.clone().zip(scores.chunks_exact_mut(kv_seq)) {
                    softmax_row(level, scores, sight.seen(batch, row), op.slope(head) as f32);
                    let line = (number * seq + row) * kv_seq;
                    // SAFETY: this head's probabilities are this thread's.
                    let mut stored = unsafe { probs.part(line..line + kv_seq) };
                    narrow(level, scores, &mut stored);
                    // The output uses what was stored, as backward will.
                    widen(level, stored.as_view(), scores);
                }
                // SAFETY: as above.
                unsafe {
                    let operands = [Strand::of_rows(scores, kv_seq).tokens(0), v.elements(0)];
                    alone::multiply(path, [count, dim, seen], 1.0, operands, false, (sums.as_mut_ptr(), dim), scratch);
                    query.store(level, rows, &sums[..count * dim], &out);
                }
            }
        });
    }

    pub(super) fn run_naive_attention_backward(
        &self,
        op: &Attention,
        [q, k, v]: [View; 3],
        [probs, dout]: [View; 2],
        [dq, dk, dv]: [ViewMut; 3],
        workspace: ViewMut,
    ) {
        let (path, level, dim, seq, kv_seq) = (self.path, self.level, op.head_dim, op.seq, op.kv_seq);
        let (group, sight) = (op.heads / op.kv_heads.max(1), AttentionMask::of(op, None));
        let (size, tile) = (backward_scratch(op), TILE.min(seq));
        let [dq, dk, dv, workspace] = [dq, dk, dv, workspace].map(Shared::new);
        if dim == 0 || seq == 0 {
            return;
        }
        self.pool.each(op.batch * op.kv_heads, |thread, number| {
            let (batch, kv_head) = (number / op.kv_heads, number % op.kv_heads);
            let key = Head::key(op, batch, kv_head);
            // SAFETY: each thread has its own scratch.
            let scratch = unsafe { &mut workspace.elements::<f32>(thread * size..(thread + 1) * size) };
            let [ps, grads] = [(); 2].map(|()| take(scratch, tile * kv_seq));
            let (dqs, dks, dvs) = (take(scratch, tile * dim), take(scratch, kv_seq * dim), take(scratch, kv_seq * dim));
            let [k, v] = [&k, &v].map(|x| Strand::of(x, key));
            dks.fill(0.0);
            dvs.fill(0.0);
            for member in 0..group {
                let head = kv_head * group + member;
                let query = Head::query(op, batch, head);
                let [q, dout] = [&q, &dout].map(|x| Strand::of(x, query));
                for rows in steps(0..seq, TILE) {
                    // Later keys have no part in these rows.
                    let (count, seen) = (rows.len(), sight.any(batch, &rows).end);
                    for (row, p) in rows.clone().zip(ps.chunks_exact_mut(seen)) {
                        let line = ((batch * op.heads + head) * seq + row) * kv_seq;
                        widen(level, probs.slice(line..line + seen), p);
                    }
                    let (p, tall) = (Strand::of_rows(ps, seen), [seen, dim, count]);
                    // SAFETY: parts of tensors whose lengths were checked, or of this thread's scratch.
                    unsafe {
                        let operands = [dout.tokens(rows.start), v.tokens(0)];
                        let to = (grads.as_mut_ptr(), seen);
                        alone::multiply(path, [count, seen, dim], 1.0, operands, false, to, scratch);
                        let operands = [p.elements(0), dout.elements(rows.start)];
                        alone::multiply(path, tall, 1.0, operands, true, (dvs.as_mut_ptr(), dim), scratch);
                    }
                    for (p, grads) in ps.chunks_exact(seen).zip(grads.chunks_exact_mut(seen)).take(count) {
                        softmax_gradient(level, p, grads, op.scale as f32);
                    }
                    let ds = Strand::of_rows(grads, seen);
                    // SAFETY: as above; this head's dq is this thread's.
                    unsafe {
                        let operands = [ds.elements(0), q.elements(rows.start)];
                        alone::multiply(path, tall, 1.0, operands, true, (dks.as_mut_ptr(), dim), scratch);
                        let (to, operands) = ((dqs.as_mut_ptr(), dim), [ds.tokens(0), k.elements(0)]);
                        alone::multiply(path, [count, dim, seen], 1.0, operands, false, to, scratch);
                        query.store(level, rows, &dqs[..count * dim], &dq);
                    }
                }
            }
            // SAFETY: this key head is this thread's.
            unsafe {
                key.store(level, 0..kv_seq, dks, &dk);
                key.store(level, 0..kv_seq, dvs, &dv);
            }
        });
    }
}

/// Softmax of the `seen` scores, ALiBi added; the rest are zero.
fn softmax_row(level: Level, scores: &mut [f32], seen: Range<usize>, slope: f32) {
    scores[..seen.start].fill(0.0);
    scores[seen.end..].fill(0.0);
    let scores = &mut scores[seen];
    let far = scores.len() as f32 - 1.0;
    level.run(
        #[inline(always)]
        |fused| {
            if slope != 0.0 {
                for (i, score) in scores.iter_mut().enumerate() {
                    // Distances are whole numbers that f32 holds.
                    *score = fma(fused, -slope, far - i as f32, *score);
                }
            }
            let mut lanes = [f32::NEG_INFINITY; LANES];
            fold(&mut lanes, scores, |a, b| if b > a { b } else { a });
            let top = merge(lanes, |a, b| if b > a { b } else { a });
            scores.iter_mut().for_each(|s| *s = exp(fused, *s - top));
            let mut lanes = [0.0; LANES];
            fold(&mut lanes, scores, |sum, p| sum + p);
            let share = 1.0 / merge(lanes, |a, b| a + b);
            scores.iter_mut().for_each(|s| *s *= share);
        },
    );
}

/// `scale * p * (dp - sum(p * dp))` in place of `dp`.
fn softmax_gradient(level: Level, p: &[f32], dp: &mut [f32], scale: f32) {
    level.run(
        #[inline(always)]
        |fused| {
            let mut lanes = [0.0; LANES];
            fold_rows(&mut lanes, [p, dp], |sum, [p, dp]| fma(fused, p, dp, sum));
            let delta = merge(lanes, |a, b| a + b);
            dp.iter_mut().zip(p).for_each(|(dp, p)| *dp = p * (*dp - delta) * scale);
        },
    );
}
