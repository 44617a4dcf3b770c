//! ALiBi's slopes, and heads that ranks share: each rank computes what one rank with all heads computes of the same ones.

use crate::carried::all;
use crate::harness::*;
use std::ops::Range;
use zbench_kernels::{AlibiHeads, Attention, DType, Kernels, Op, alibi_slope};
use zbench_test_tiers as tiers;

#[test]
fn slopes_are_the_published_ones() {
    // Press et al. (2022): 8 heads 1/2 ... 1/256; BLOOM's closest power of two, then every other slope of the next.
    let slopes = |heads| (0..heads).map(|head| alibi_slope(head, heads).log2()).collect::<Vec<f64>>();
    assert_eq!(slopes(8), [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0]);
    assert_eq!(slopes(6), [-2.0, -4.0, -6.0, -8.0, -1.0, -3.0]);
    assert_eq!(slopes(3), [-4.0, -8.0, -2.0]);
    assert_eq!(slopes(1), [-8.0]);
    let bloom = slopes(112);
    assert!(
        (bloom[63] + 8.0).abs() < 1e-12 && (bloom[64] + 0.0625).abs() < 1e-12 && (bloom[111] + 5.9375).abs() < 1e-12
    );
}

/// The elements of some heads, in a tensor of this many elements of each head in a row.
fn cut(tensor: &Tensor, [heads, width]: [usize; 2], part: &Range<usize>) -> Tensor {
    let of_row = |row: &[f64]| row[part.start * width..part.end * width].to_vec();
    let values: Vec<f64> = tensor.values().chunks_exact(heads * width).flat_map(of_row).collect();
    Tensor::of(tensor.dtype, &values)
}

/// The output, what forward keeps for backward, and the gradients of queries, keys and values.
fn run(kernels: &dyn Kernels, op: Attention, naive: bool, [q, k, v, dout]: [&Tensor; 4]) -> [Tensor; 5] {
    let (forward, backward, kept, len) = match naive {
        true => (Op::NaiveAttention(op), Op::NaiveAttentionBackward(op), op.dtype, op.rows() * op.kv_seq),
        false => (Op::Attention(op), Op::AttentionBackward(op), DType::F32, op.rows()),
    };
    let empty = |len| Tensor::filled(op.dtype, len, f64::NAN);
    let (mut out, mut statistics) = (empty(op.queries()), Tensor::filled(kept, len, f64::NAN));
    let [mut dq, mut dk, mut dv] = [op.queries(), op.keys(), op.keys()].map(empty);
    let mut work = Tensor::workspace(kernels, &forward);
    let writes = &mut [out.view_mut(), statistics.view_mut()];
    kernels.run(&forward, &[q.view(), k.view(), v.view()], writes, work.view_mut()).unwrap();
    let mut reads = vec![q.view(), k.view(), v.view()];
    reads.extend((!naive).then_some(out.view()));
    reads.extend([statistics.view(), dout.view()]);
    let mut work = Tensor::workspace(kernels, &backward);
    let writes = &mut [dq.view_mut(), dk.view_mut(), dv.view_mut()];
    kernels.run(&backward, &reads, writes, work.view_mut()).unwrap();
    [out, statistics, dq, dk, dv]
}

/// The query heads of the first key head of three, and those of the two after it.
#[test]
fn parts_of_the_heads_have_the_bits_of_the_whole() {
    let (batch, kv_heads, group) = (2, 3, 2);
    let heads = kv_heads * group;
    let shapes = FLOATS.into_iter().flat_map(|dtype| [(70, 64, dtype), (150, 16, dtype)]);
    for (seq, head_dim, dtype) in tiers::some("alibi::parts_of_the_heads_have_the_bits_of_the_whole", shapes, [1, 2]) {
        let whole = Attention {
            batch,
            seq,
            kv_seq: seq,
            causal: true,
            heads,
            kv_heads,
            head_dim,
            scale: 0.2,
            window: Some(100),
            alibi: Some(AlibiHeads::whole(heads)),
            dtype,
        };
        let lens = [whole.queries(), whole.keys(), whole.keys(), whole.queries()];
        let given = [0, 1, 2, 3].map(|i| Tensor::normal(dtype, lens[i], i as u64));
        for (kernels, naive) in all().flat_map(|kernels| [(kernels, false), (kernels, true)]) {
            let of_whole = run(kernels, whole, naive, given.each_ref());
            for of_keys in [0..1, 1..3] {
                let of_queries = of_keys.start * group..of_keys.end * group;
                let queries = |tensor: &Tensor| cut(tensor, [heads, head_dim], &of_queries);
                let keys = |tensor: &Tensor| cut(tensor, [kv_heads, head_dim], &of_keys);
                let op = Attention {
                    heads: of_queries.len(),
                    kv_heads: of_keys.len(),
                    alibi: Some(AlibiHeads { first: of_queries.start, heads }),
                    ..whole
                };
                let [q, k, v, dout] = &given;
                let own = [&queries(q), &keys(k), &keys(v), &queries(dout)];
                let [out, statistics, dq, dk, dv] = &of_whole;
                let width = if naive { seq * seq } else { seq };
                let statistics = cut(statistics, [heads, width], &of_queries);
                let wanted = [queries(out), statistics, queries(dq), keys(dk), keys(dv)];
                let names = ["out", "what forward keeps", "dq", "dk", "dv"];
                for ((got, wanted), name) in run(kernels, op, naive, own).iter().zip(&wanted).zip(names) {
                    let case = format!("{name}, naive {naive}, {op:?}, {}", kernels.name());
                    assert!(got.values().iter().all(|x| x.is_finite()), "{case}");
                    assert!(got.bits() == wanted.bits(), "{case}");
                }
            }
        }
    }
}
