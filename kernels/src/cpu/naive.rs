//! Attention that stores its probabilities, as textbooks write it: memory grows with the product of queries and keys.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]

use super::Cpu;
use super::attention::plain::{Head, TILE, copies, dense, lean, slope, take};
use super::attention::{Inputs, steps};
use super::gemm::multiply;
use super::level::{LANES, Level, exp, fma, fold, fold_rows, merge};
use super::stream::{Shared, narrow, widen};
use crate::op::Attention;
use crate::sight::Sight;
use crate::{View, ViewMut};
use std::ops::Range;

/// f32 elements of scratch per thread in forward: rows of scores, outputs, and copies of q, k and v.
pub(super) fn forward_scratch(op: &Attention) -> usize {
    let (tile, copies) = (TILE.min(op.seq), copies(op, 1));
    let rows = tile.saturating_mul(op.kv_seq.saturating_add(op.head_dim.saturating_mul(1 + copies)));
    rows.saturating_add(op.kv_seq.saturating_mul(op.head_dim.saturating_mul(2 * copies)))
}

/// f32 elements of scratch per thread in backward: rows of probabilities and gradients, dq, and copies of q and dout;
/// dk and dv of a whole head, and copies of k and v.
pub(super) fn backward_scratch(op: &Attention) -> usize {
    let (tile, copies) = (TILE.min(op.seq), copies(op, 1));
    let wide = op.kv_seq.saturating_mul(2).saturating_add(op.head_dim.saturating_mul(1 + 2 * copies));
    tile.saturating_mul(wide).saturating_add(op.kv_seq.saturating_mul(op.head_dim.saturating_mul(2 + 2 * copies)))
}

impl Cpu {
    pub(super) fn run_naive_attention(&self, op: &Attention, inputs: Inputs, outs: [ViewMut; 2], workspace: ViewMut) {
        let Inputs { q, k, v, starts } = inputs;
        let (level, dim, seq, kv_seq) = (self.level, op.head_dim, op.seq, op.kv_seq);
        let group = op.heads / op.kv_heads.max(1);
        let sight = Sight::of(op, starts);
        let (size, tile, copies) = (forward_scratch(op), TILE.min(seq), copies(op, 1));
        let ([out, probs], workspace) = (outs.map(Shared::new), Shared::new(workspace));
        if dim == 0 || seq == 0 {
            return;
        }
        self.pool.each(op.batch * op.heads, |thread, number| {
            let (batch, head) = (number / op.heads, number % op.heads);
            let (query, key) = (Head::query(op, batch, head), Head::key(op, batch, head / group));
            // SAFETY: each thread has its own scratch.
            let scratch = unsafe { &mut workspace.elements::<f32>(thread * size..(thread + 1) * size) };
            let (scores, sums) = (take(scratch, tile * kv_seq), take(scratch, tile * dim));
            let qs = take(scratch, copies * tile * dim);
            let k = key.load(level, k, 0..kv_seq, take(scratch, copies * kv_seq * dim));
            let v = key.load(level, v, 0..kv_seq, take(scratch, copies * kv_seq * dim));
            for rows in steps(0..seq, TILE) {
                // Later keys have no part in these rows; the softmax zeroes their scores.
                let (count, seen) = (rows.len(), sight.any(batch, &rows).end);
                let q = query.load(level, q, rows.clone(), qs);
                // SAFETY: parts of tensors whose lengths were checked; scores are this thread's.
                unsafe {
                    let shape = [count, seen, dim];
                    multiply(shape, op.scale as f32, q, k.transposed(), false, scores.as_mut_ptr(), kv_seq);
                }
                for (row, scores) in rows.clone().zip(scores.chunks_exact_mut(kv_seq)) {
                    softmax_row(level, scores, sight.seen(batch, row), slope(op, head));
                    let line = (number * seq + row) * kv_seq;
                    // SAFETY: this head's probabilities are this thread's.
                    let mut stored = unsafe { probs.part(line..line + kv_seq) };
                    narrow(level, scores, &mut stored);
                    // The output uses what was stored, as backward will.
                    widen(level, stored.as_view(), scores);
                }
                // SAFETY: as above.
                unsafe {
                    let shape = [count, dim, seen];
                    multiply(shape, 1.0, dense(scores, kv_seq), v, false, sums.as_mut_ptr(), dim);
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
        let (level, dim, seq, kv_seq) = (self.level, op.head_dim, op.seq, op.kv_seq);
        let (group, sight) = (op.heads / op.kv_heads.max(1), Sight::of(op, None));
        let (size, tile, copies) = (backward_scratch(op), TILE.min(seq), copies(op, 1));
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
            let [qs, douts] = [(); 2].map(|()| take(scratch, copies * tile * dim));
            let [ks, vs] = [(); 2].map(|()| take(scratch, copies * kv_seq * dim));
            let (dqs, dks, dvs) = (take(scratch, tile * dim), take(scratch, kv_seq * dim), take(scratch, kv_seq * dim));
            let (k, v) = (key.load(level, k, 0..kv_seq, ks), key.load(level, v, 0..kv_seq, vs));
            dks.fill(0.0);
            dvs.fill(0.0);
            for member in 0..group {
                let head = kv_head * group + member;
                let query = Head::query(op, batch, head);
                for rows in steps(0..seq, TILE) {
                    // Later keys have no part in these rows.
                    let (count, seen) = (rows.len(), sight.any(batch, &rows).end);
                    let q = query.load(level, q, rows.clone(), qs);
                    let dout = query.load(level, dout, rows.clone(), douts);
                    for (row, p) in rows.clone().zip(ps.chunks_exact_mut(seen)) {
                        let line = ((batch * op.heads + head) * seq + row) * kv_seq;
                        widen(level, probs.slice(line..line + seen), p);
                    }
                    // SAFETY: parts of tensors whose lengths were checked, or of this thread's scratch.
                    unsafe {
                        multiply([count, seen, dim], 1.0, dout, v.transposed(), false, grads.as_mut_ptr(), seen);
                        let p = dense(ps, seen);
                        multiply([seen, dim, count], 1.0, p.transposed(), dout, true, dvs.as_mut_ptr(), dim);
                    }
                    for (p, grads) in ps.chunks_exact(seen).zip(grads.chunks_exact_mut(seen)).take(count) {
                        softmax_gradient(level, p, grads, op.scale as f32);
                    }
                    let ds = dense(grads, seen);
                    // SAFETY: as above; this head's dq is this thread's.
                    unsafe {
                        multiply([seen, dim, count], 1.0, ds.transposed(), q, true, dks.as_mut_ptr(), dim);
                        multiply([count, dim, seen], 1.0, ds, k, false, dqs.as_mut_ptr(), dim);
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
                lean(fused, slope, far, scores);
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
