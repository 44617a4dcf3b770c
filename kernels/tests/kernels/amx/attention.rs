//! Attention on kernels that multiply by AMX, through the trait: it counts whatever of it takes that way.

use super::{devices, hold};
use crate::harness::{Tensor, output};
use zbench_kernels::{AlibiHeads, Attention, DType, Kernels, Op};
use zbench_kernels_testing::ByName;

/// Forward, then backward from what forward saved, of both kinds.
fn check(shape: Attention) {
    let Some(devices) = devices() else { return };
    let (dtype, q, kv) = (shape.dtype, shape.queries(), shape.keys());
    let (lines, pairs) = (shape.rows(), shape.rows() * shape.kv_seq);
    let case = format!("{shape:?}");
    let inputs = [Tensor::normal(dtype, q, 1), Tensor::normal(dtype, kv, 2), Tensor::normal(dtype, kv, 3)];
    let dout = Tensor::normal(dtype, q, 4);
    let gradients = [output(dtype, q), output(dtype, kv), output(dtype, kv)];

    let forward = |kernels: &dyn Kernels, of: &dyn Fn(DType) -> DType, [q, k, v, out, lse]: &mut [Tensor; 5]| {
        let op = Attention { dtype: of(dtype), ..shape };
        let mut workspace = Tensor::workspace(kernels, &Op::Attention(op));
        let (out, lse) = (out.view_mut(), lse.view_mut());
        kernels.attention(&op, q.view(), k.view(), v.view(), out, lse, workspace.view_mut())
    };
    let [qs, ks, vs] = inputs.clone();
    let mut tensors = [qs, ks, vs, output(dtype, q), output(DType::F32, lines)];
    hold(&case, tensors.clone(), &[3, 4], forward);
    forward(&devices[1], &|dtype| dtype, &mut tensors).unwrap();
    let ([qs, ks, vs, out, lse], [dq, dk, dv]) = (tensors, gradients.clone());
    let tensors = [qs, ks, vs, out, lse, dout.clone(), dq, dk, dv];
    hold(&format!("{case} backward"), tensors, &[6, 7, 8], |kernels, of, [q, k, v, out, lse, dout, dq, dk, dv]| {
        let op = Attention { dtype: of(dtype), ..shape };
        let mut workspace = Tensor::workspace(kernels, &Op::AttentionBackward(op));
        let (dq, dk, dv) = (dq.view_mut(), dk.view_mut(), dv.view_mut());
        let (q, k, v, out, lse) = (q.view(), k.view(), v.view(), out.view(), lse.view());
        kernels.attention_backward(&op, q, k, v, out, lse, dout.view(), dq, dk, dv, workspace.view_mut())
    });

    let forward = |kernels: &dyn Kernels, of: &dyn Fn(DType) -> DType, [q, k, v, out, probs]: &mut [Tensor; 5]| {
        let op = Attention { dtype: of(dtype), ..shape };
        let mut workspace = Tensor::workspace(kernels, &Op::NaiveAttention(op));
        let (out, probs) = (out.view_mut(), probs.view_mut());
        kernels.naive_attention(&op, q.view(), k.view(), v.view(), out, probs, workspace.view_mut())
    };
    let [qs, ks, vs] = inputs;
    let mut tensors = [qs, ks, vs, output(dtype, q), output(dtype, pairs)];
    hold(&format!("{case} naive"), tensors.clone(), &[3, 4], forward);
    forward(&devices[1], &|dtype| dtype, &mut tensors).unwrap();
    let ([qs, ks, vs, _, probs], [dq, dk, dv]) = (tensors, gradients);
    let tensors = [qs, ks, vs, probs, dout, dq, dk, dv];
    hold(&format!("{case} naive backward"), tensors, &[5, 6, 7], |kernels, of, [q, k, v, probs, dout, dq, dk, dv]| {
        let op = Attention { dtype: of(dtype), ..shape };
        let mut workspace = Tensor::workspace(kernels, &Op::NaiveAttentionBackward(op));
        let (dq, dk, dv) = (dq.view_mut(), dk.view_mut(), dv.view_mut());
        let (q, k, v, probs, dout) = (q.view(), k.view(), v.view(), probs.view(), dout.view());
        kernels.naive_attention_backward(&op, q, k, v, probs, dout, dq, dk, dv, workspace.view_mut())
    });
}

fn shape(batch: usize, seq: usize, kv_heads: usize, group: usize, head_dim: usize) -> Attention {
    let scale = 1.0 / (head_dim as f64).sqrt();
    let heads = kv_heads * group;
    Attention {
        batch,
        seq,
        kv_seq: seq,
        causal: true,
        heads,
        kv_heads,
        head_dim,
        scale,
        window: None,
        alibi: None,
        dtype: DType::Bf16,
    }
}

#[test]
fn shapes_at_the_edges_of_tiles() {
    for (seq, head_dim) in [(1, 8), (3, 20), (17, 16), (64, 64), (128, 32), (129, 20), (150, 128)] {
        check(shape(1, seq, 1, 2, head_dim));
    }
    check(shape(2, 200, 2, 1, 64));
}

#[test]
fn windows_and_slopes() {
    for (seq, window, alibi) in
        [(140, Some(1), false), (200, Some(100), true), (129, Some(400), false), (140, None, true)]
    {
        let alibi = alibi.then_some(AlibiHeads::whole(3));
        check(Attention { window, alibi, ..shape(1, seq, 1, 3, 16) });
    }
}

#[test]
fn all_keys_are_seen() {
    for (seq, kv_seq) in [(1, 70), (140, 33), (70, 150), (150, 150)] {
        check(Attention { kv_seq, causal: false, ..shape(1, seq, 1, 2, 20) });
    }
}

#[test]
fn halves_and_floats_take_their_own_way() {
    check(Attention { dtype: DType::F32, ..shape(1, 70, 1, 2, 16) });
    check(Attention { dtype: DType::F16, ..shape(1, 70, 1, 2, 16) });
}
