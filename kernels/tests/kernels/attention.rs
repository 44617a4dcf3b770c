use crate::harness::*;
use proptest::prelude::*;
use std::sync::Arc;
use zbench_kernels::cuda::host::Order;
use zbench_kernels::{AlibiHeads, Attention, Cuda, DType, Kernels, Op, View};
use zbench_kernels_testing::ByName;
use zbench_test_tiers as tiers;

/// For each element of dq, dk and dv the sum of its terms without their signs: a term is a probability, or the gradient of
/// its score, times an element of k, q or dout, and the first factor may be rounded to the operation's type. A row's
/// gradients of scores have both signs and sum up to 0.
pub fn sizes_of_sums(op: &Attention, starts: Option<&[u32]>, [q, k, v, dout]: [&Tensor; 4]) -> [Vec<f64>; 3] {
    let [q, k, v, dout] = [q, k, v, dout].map(Tensor::values);
    let (dim, mut sizes) = (op.head_dim, [vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; k.len()]]);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).take(dim).map(|(a, b)| a * b).sum::<f64>();
    for (b, h, row) in
        (0..op.batch).flat_map(|b| (0..op.heads).flat_map(move |h| (0..op.seq).map(move |row| (b, h, row))))
    {
        let query = ((b * op.seq + row) * op.heads + h) * dim;
        let key = |col: usize| ((b * op.kv_seq + col) * op.kv_heads + h / (op.heads / op.kv_heads)) * dim;
        let start = starts.map_or(0, |starts| starts[b * op.seq + row] as usize);
        let seen = op.seen(row);
        let seen = seen.start.max(start)..seen.end;
        let slope = op.slope(h);
        let score = |col: usize| op.scale * dot(&q[query..], &k[key(col)..]) - slope * (row as f64 - col as f64);
        let mut p: Vec<f64> = seen.clone().map(score).collect();
        let top = p.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        p.iter_mut().for_each(|p| *p = (*p - top).exp());
        let sum: f64 = p.iter().sum();
        p.iter_mut().for_each(|p| *p /= sum);
        let dp: Vec<f64> = seen.clone().map(|col| dot(&dout[query..], &v[key(col)..])).collect();
        let delta: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
        for (col, (p, dp)) in seen.zip(p.iter().zip(&dp)) {
            let ds = (op.scale * p * (dp - delta)).abs();
            for i in 0..dim {
                sizes[0][query + i] += ds * k[key(col) + i].abs();
                sizes[1][key(col) + i] += ds * q[query + i].abs();
                sizes[2][key(col) + i] += p * dout[query + i].abs();
            }
        }
    }
    sizes
}

/// Forward, then backward from what forward saved, of both kinds.
fn check(shape: Attention) {
    let (dtype, q, kv) = (shape.dtype, shape.queries(), shape.keys());
    let (lines, pairs) = (shape.rows(), shape.rows() * shape.kv_seq);
    let case = format!("{shape:?}");
    let inputs = || (Tensor::normal(dtype, q, 1), Tensor::normal(dtype, kv, 2), Tensor::normal(dtype, kv, 3));
    let (qs, ks, vs) = inputs();
    let tensors = [qs, ks, vs, output(dtype, q), output(DType::F32, lines)];
    compare(&case, tensors.clone(), &[3, 4], |kernels, of, [q, k, v, out, lse]| {
        let op = Attention { dtype: of(dtype), ..shape };
        let mut workspace = Tensor::workspace(kernels, &Op::Attention(op));
        let (out, lse) = (out.view_mut(), lse.view_mut());
        kernels.attention(&op, q.view(), k.view(), v.view(), out, lse, workspace.view_mut())
    });
    // What the cores' forward leaves is what backward is given; its guards are only too long.
    let [mut q_, mut k_, mut v_, mut out, mut lse] = tensors.clone();
    let mut workspace = Tensor::workspace(&CPUS[1], &Op::Attention(shape));
    let (o, l) = (out.view_mut(), lse.view_mut());
    CPUS[1].attention(&shape, q_.view(), k_.view(), v_.view(), o, l, workspace.view_mut()).unwrap();
    let grads = [output(dtype, q), output(dtype, kv), output(dtype, kv)];
    let [dq, dk, dv] = grads.clone();
    let dout = Tensor::normal(dtype, q, 4);
    let sizes = sizes_of_sums(&shape, None, [&q_, &k_, &v_, &dout]);
    let tensors = [q_, k_, v_, out, lse, dout, dq, dk, dv];
    compare_sums(
        &format!("{case} backward"),
        tensors,
        &[6, 7, 8],
        &sizes,
        |kernels, of, [q, k, v, out, lse, dout, dq, dk, dv]| {
            let op = Attention { dtype: of(dtype), ..shape };
            let mut workspace = Tensor::workspace(kernels, &Op::AttentionBackward(op));
            let (dq, dk, dv) = (dq.view_mut(), dk.view_mut(), dv.view_mut());
            let (q, k, v, out, lse) = (q.view(), k.view(), v.view(), out.view(), lse.view());
            kernels.attention_backward(&op, q, k, v, out, lse, dout.view(), dq, dk, dv, workspace.view_mut())
        },
    );

    (q_, k_, v_) = inputs();
    let tensors = [q_, k_, v_, output(dtype, q), output(dtype, pairs)];
    compare(&format!("{case} naive"), tensors.clone(), &[3, 4], |kernels, of, [q, k, v, out, probs]| {
        let op = Attention { dtype: of(dtype), ..shape };
        let mut workspace = Tensor::workspace(kernels, &Op::NaiveAttention(op));
        let (out, probs) = (out.view_mut(), probs.view_mut());
        kernels.naive_attention(&op, q.view(), k.view(), v.view(), out, probs, workspace.view_mut())
    });
    let [q_, k_, v_, mut out, mut probs] = tensors;
    let mut workspace = Tensor::workspace(&CPUS[1], &Op::NaiveAttention(shape));
    let (o, p) = (out.view_mut(), probs.view_mut());
    CPUS[1].naive_attention(&shape, q_.view(), k_.view(), v_.view(), o, p, workspace.view_mut()).unwrap();
    let [dq, dk, dv] = grads;
    let dout = Tensor::normal(dtype, q, 4);
    let tensors = [q_, k_, v_, probs, dout, dq, dk, dv];
    compare_sums(
        &format!("{case} naive backward"),
        tensors,
        &[5, 6, 7],
        &sizes,
        |kernels, of, [q, k, v, probs, dout, dq, dk, dv]| {
            let op = Attention { dtype: of(dtype), ..shape };
            let mut workspace = Tensor::workspace(kernels, &Op::NaiveAttentionBackward(op));
            let (dq, dk, dv) = (dq.view_mut(), dk.view_mut(), dv.view_mut());
            let (q, k, v, probs, dout) = (q.view(), k.view(), v.view(), probs.view(), dout.view());
            kernels.naive_attention_backward(&op, q, k, v, probs, dout, dq, dk, dv, workspace.view_mut())
        },
    );
}

fn shape(batch: usize, seq: usize, kv_heads: usize, group: usize, head_dim: usize, dtype: DType) -> Attention {
    let scale = 1.0 / (head_dim as f64).sqrt();
    Attention {
        batch,
        seq,
        kv_seq: seq,
        causal: true,
        heads: kv_heads * group,
        kv_heads,
        head_dim,
        scale,
        window: None,
        alibi: None,
        dtype,
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn any_shape(
        batch in 1usize..3,
        seq in prop::sample::select(vec![1, 2, 3, 17, 64, 127, 128, 129, 200]),
        kv_heads in 1usize..3,
        group in 1usize..4,
        head_dim in prop::sample::select(vec![1, 8, 16, 20, 64, 80, 96]),
        dtype in prop::sample::select(&FLOATS[..]),
    ) {
        check(shape(batch, seq, kv_heads, group, head_dim, dtype));
    }
}

proptest! {
    #![proptest_config(cases(24))]

    /// Windows within a tile, across tiles, of one key and wider than the sequence; ALiBi with it and without, of all heads of a model
    /// and of some.
    #[test]
    fn windows_and_slopes(
        batch in 1usize..3,
        seq in prop::sample::select(vec![1, 3, 17, 128, 129, 200, 300]),
        window in prop::option::of(prop::sample::select(vec![1, 2, 5, 100, 127, 128, 129, 150, 400, usize::MAX])),
        alibi in prop::option::of((0usize..4, 0usize..4)),
        kv_heads in 1usize..4,
        group in 1usize..4,
        head_dim in prop::sample::select(vec![7, 16, 20]),
        dtype in prop::sample::select(&FLOATS[..]),
    ) {
        let heads = kv_heads * group;
        let alibi = alibi.map(|(first, behind)| AlibiHeads { first, heads: first + heads + behind });
        check(Attention { window, alibi, ..shape(batch, seq, kv_heads, group, head_dim, dtype) });
    }
}

/// A strip of queries whose first rows see a tile of keys that its last rows do not.
#[test]
fn windows_that_end_within_a_strip() {
    const CASES: [(usize, usize); 4] = [(260, 3), (290, 2), (512, 100), (600, 250)];
    let all = [DType::Bf16, DType::F32].into_iter().flat_map(|dtype| CASES.map(|case| (case, dtype)));
    for ((seq, window), dtype) in tiers::some("attention::windows_that_end_within_a_strip", all, [2, 4]) {
        check(Attention { window: Some(window), ..shape(1, seq, 1, 2, 16, dtype) });
    }
}

/// Without the causal mask: the same of encoders, fewer keys than queries and more as in cross-attention.
fn cross(shape: Attention, kv_seq: usize) -> Attention {
    Attention { kv_seq, causal: false, ..shape }
}

proptest! {
    #![proptest_config(cases(32))]

    /// Lengths below a strip, at the edges of tiles, and of several tiles, on either side.
    #[test]
    fn all_keys_are_seen(
        batch in 1usize..3,
        seq in prop::sample::select(vec![1, 3, 31, 64, 127, 129, 200, 300]),
        kv_seq in prop::sample::select(vec![1, 2, 17, 32, 33, 128, 150, 257, 300]),
        kv_heads in 1usize..3,
        group in 1usize..4,
        head_dim in prop::sample::select(vec![1, 7, 16, 40, 64]),
        dtype in prop::sample::select(&FLOATS[..]),
    ) {
        check(cross(shape(batch, seq, kv_heads, group, head_dim, dtype), kv_seq));
    }
}

/// Several blocks of queries and of keys of a head, whose gradients of queries are sums over blocks of keys.
#[test]
fn all_keys_are_seen_across_blocks() {
    const LENGTHS: [(usize, usize); 6] = [(290, 290), (520, 130), (40, 700), (700, 40), (1, 300), (300, 1)];
    let of = |dtype| LENGTHS.map(move |(seq, kv_seq)| cross(shape(1, seq, 1, 2, 20, dtype), kv_seq));
    let bf16 = DType::Bf16;
    let others = [
        Attention { scale: -0.3, ..cross(shape(1, 150, 1, 1, 16, bf16), 70) },
        Attention { scale: 0.0, ..cross(shape(1, 70, 1, 1, 16, bf16), 150) },
        // Head sizes of the tensor cores.
        cross(shape(2, 130, 1, 2, 64, bf16), 70),
        cross(shape(1, 77, 1, 2, 96, DType::F16), 200),
        cross(shape(1, 150, 1, 1, 128, bf16), 150),
        Attention { scale: -0.3, ..cross(shape(1, 70, 1, 1, 64, bf16), 90) },
    ];
    let all = of(bf16).into_iter().chain(of(DType::F32)).chain(others);
    tiers::some("attention::all_keys_are_seen_across_blocks", all, [4, 9]).into_iter().for_each(check);
}

/// The last query of a causal sequence sees all keys, so it is a query without the causal mask: their outputs are the same.
#[test]
fn the_last_query_of_a_sequence_sees_all() {
    let (seq, dtype) = (150, DType::F32);
    let causal = shape(1, seq, 2, 2, 16, dtype);
    let width = causal.heads * causal.head_dim;
    let [q, k, v] = [(causal.queries(), 1), (causal.keys(), 2), (causal.keys(), 3)]
        .map(|(len, seed)| Tensor::normal(dtype, len, seed));
    let run = |op: &Attention, q: View| {
        let (mut out, mut lse) = (output(dtype, op.queries()), output(DType::F32, op.rows()));
        let mut work = Tensor::workspace(&CPUS[1], &Op::Attention(*op));
        CPUS[1].attention(op, q, k.view(), v.view(), out.view_mut(), lse.view_mut(), work.view_mut()).unwrap();
        out.values()[..op.queries()].to_vec()
    };
    let all = run(&causal, q.view());
    let last = run(&Attention { seq: 1, causal: false, ..causal }, q.view().slice((seq - 1) * width..seq * width));
    assert_close("the last query", &Tensor::of(dtype, &last), &all[(seq - 1) * width..]);
}

/// Head sizes that the tensor cores take: sequences that are no multiple of a tile, windows, groups, slopes.
#[test]
fn heads_of_tensor_cores() {
    let (bf16, f16) = (DType::Bf16, DType::F16);
    let all = [
        shape(1, 1, 1, 1, 64, bf16),
        shape(2, 130, 1, 2, 64, f16),
        shape(1, 77, 1, 1, 96, bf16),
        shape(1, 150, 1, 1, 128, bf16),
        shape(1, 65, 1, 3, 128, f16),
        Attention { window: Some(40), alibi: Some(AlibiHeads::whole(1)), ..shape(1, 200, 1, 1, 96, f16) },
        Attention { window: Some(130), ..shape(1, 290, 1, 1, 64, bf16) },
        Attention { window: Some(3), ..shape(1, 140, 1, 1, 128, f16) },
        Attention { alibi: Some(AlibiHeads { first: 2, heads: 6 }), ..shape(1, 129, 1, 3, 64, bf16) },
        Attention { scale: -0.3, ..shape(1, 70, 1, 1, 64, bf16) },
        Attention { scale: 0.0, ..shape(1, 70, 1, 1, 96, f16) },
    ];
    tiers::some("attention::heads_of_tensor_cores", all, [4, 11]).into_iter().for_each(check);
}

/// Which kernels ran, by whether the operands lie at multiples of 16 bytes.
fn launched(op: &Attention, skip: usize) -> Vec<&'static str> {
    let machine = host(Order::Forward);
    // What is only for Hopper is not taken elsewhere, even where it is preferred.
    let cuda = Cuda::new(Arc::new(machine.clone())).unwrap().prefer_hopper_attention(true);
    let (q, kv) = (op.queries(), op.keys());
    let new = |len: usize, seed: u64| Tensor::normal(op.dtype, len + skip, seed);
    let ([qs, dout], [ks, vs]) = ([new(q, 1), new(q, 4)], [new(kv, 2), new(kv, 3)]);
    let (mut out, mut lse) = (new(q, 0), Tensor::filled(DType::F32, op.heads * op.seq, 0.0));
    fn from(tensor: &Tensor, skip: usize) -> View<'_> {
        tensor.view().slice(skip..tensor.len)
    }
    let mut work = Tensor::workspace(&cuda, &Op::Attention(*op));
    let o = out.view_mut();
    cuda.attention(op, from(&qs, skip), from(&ks, skip), from(&vs, skip), o, lse.view_mut(), work.view_mut()).unwrap();
    let mut work = Tensor::workspace(&cuda, &Op::AttentionBackward(*op));
    let [mut dq, mut dk, mut dv] = [q, kv, kv].map(|len| Tensor::filled(op.dtype, len, 0.0));
    let (out, lse, dout) = (from(&out, skip), lse.view(), from(&dout, skip));
    let (dq, dk, dv, work) = (dq.view_mut(), dk.view_mut(), dv.view_mut(), work.view_mut());
    cuda.attention_backward(op, from(&qs, skip), from(&ks, skip), from(&vs, skip), out, lse, dout, dq, dk, dv, work)
        .unwrap();
    let mut names: Vec<_> = machine.launches().into_keys().collect();
    names.sort_unstable();
    names
}

#[test]
fn tensor_cores_are_taken_where_they_can_be() {
    for (dtype, name) in [(DType::Bf16, "bf16"), (DType::F16, "f16")] {
        for dim in [64, 96, 128] {
            let op = shape(1, 20, 1, 2, dim, dtype);
            let own = ["flash_", "flash_dkv_", "flash_dq_"].map(|kind| format!("{kind}{name}_{dim}"));
            let mut wanted = vec!["attention_delta"];
            wanted.extend(own.iter().map(String::as_str));
            wanted.sort_unstable();
            assert_eq!(launched(&op, 0), wanted);
            assert_eq!(launched(&op, 1), ["attention_delta", "plain_attention", "plain_dkv", "plain_dq"]);
        }
    }
    let plain = ["attention_delta", "plain_attention", "plain_dkv", "plain_dq"];
    assert_eq!(launched(&shape(1, 20, 1, 1, 64, DType::F32), 0), plain);
    let flash = ["attention_delta", "flash_bf16_64", "flash_dkv_bf16_64", "flash_dq_bf16_64"];
    assert_eq!(launched(&cross(shape(1, 20, 1, 1, 64, DType::Bf16), 30), 0), flash);
    assert_eq!(launched(&shape(1, 20, 1, 1, 80, DType::Bf16), 0), plain);
}

/// A window of one key gives back the values, whatever the scores.
#[test]
fn a_window_of_one_key_is_the_value() {
    let op = Attention { window: Some(1), alibi: Some(AlibiHeads::whole(2)), ..shape(1, 140, 2, 1, 16, DType::F32) };
    let len = 140 * 32;
    let [q, k, v] = [1, 2, 3].map(|seed| Tensor::normal(DType::F32, len, seed));
    for cpu in CPUS.iter() {
        let (mut out, mut lse) = (Tensor::filled(DType::F32, len, 0.0), Tensor::filled(DType::F32, 280, 0.0));
        let mut workspace = Tensor::workspace(cpu, &Op::Attention(op));
        let (o, l) = (out.view_mut(), lse.view_mut());
        cpu.attention(&op, q.view(), k.view(), v.view(), o, l, workspace.view_mut()).unwrap();
        assert_eq!(out, v);
    }
}

#[test]
fn three_tiles_and_wide_heads() {
    let all = [
        shape(1, 300, 1, 2, 32, DType::F32),
        shape(1, 150, 2, 1, 128, DType::F32),
        shape(1, 261, 1, 1, 128, DType::Bf16),
        shape(2, 200, 2, 3, 64, DType::Bf16),
        shape(1, 600, 1, 2, 40, DType::Bf16),
        shape(1, 140, 1, 1, 256, DType::Bf16),
        Attention { scale: -0.3, ..shape(1, 140, 1, 1, 16, DType::Bf16) },
        Attention { scale: 0.0, ..shape(1, 140, 1, 1, 16, DType::Bf16) },
    ];
    tiers::some("attention::three_tiles_and_wide_heads", all, [3, 5]).into_iter().for_each(check);
}

#[test]
fn nothing_to_attend_to_is_fine() {
    for (batch, seq, kv_heads, head_dim) in [(0, 5, 1, 8), (1, 0, 1, 8), (1, 5, 0, 8), (1, 5, 1, 0)] {
        let mut op = shape(batch, seq, kv_heads, 2, head_dim.max(1), DType::F32);
        op.head_dim = head_dim;
        let [q, kv] = [op.heads, kv_heads].map(|heads| Tensor::normal(DType::F32, batch * seq * heads * head_dim, 1));
        let (mut out, mut lse) = (q.clone(), Tensor::filled(DType::F32, batch * op.heads * seq, 0.0));
        let mut workspace = Tensor::workspace(&CPUS[2], &Op::Attention(op));
        let (o, l) = (out.view_mut(), lse.view_mut());
        CPUS[2].attention(&op, q.view(), kv.view(), kv.view(), o, l, workspace.view_mut()).unwrap();
    }
}

#[test]
fn large_scores_stay_finite() {
    let op = Attention { scale: 100.0, ..shape(1, 140, 1, 1, 16, DType::F32) };
    let len = 140 * 16;
    let [q, k, v] = [1, 2, 3].map(|seed| Tensor::normal(DType::F32, len, seed));
    let (mut out, mut lse) = (Tensor::filled(DType::F32, len, 0.0), Tensor::filled(DType::F32, 140, 0.0));
    let mut workspace = Tensor::workspace(&CPUS[0], &Op::Attention(op));
    let (o, l) = (out.view_mut(), lse.view_mut());
    CPUS[0].attention(&op, q.view(), k.view(), v.view(), o, l, workspace.view_mut()).unwrap();
    assert!(out.values().iter().chain(&lse.values()).all(|x| x.is_finite()));
}

#[test]
fn scratch_is_linear_in_the_sequence() {
    for dtype in FLOATS {
        for op in [Op::Attention as fn(Attention) -> Op, Op::AttentionBackward] {
            let size = |seq| CPUS[1].workspace(&op(shape(2, seq, 2, 2, 64, dtype)));
            assert!(size(8192) <= 2 * size(4096), "{dtype}");
            let size = |kv_seq| CPUS[1].workspace(&op(cross(shape(2, 1024, 2, 2, 64, dtype), kv_seq)));
            assert!(size(8192) <= 2 * size(4096), "{dtype}");
        }
    }
}
