//! Operations and bytes of kernels, counted by hand.

use zbench_kernels::*;

#[test]
fn counts_by_hand() {
    let f = DType::F32;
    let gemm = |m, n, k| {
        Op::Gemm(Gemm {
            m,
            n,
            k,
            trans_a: false,
            trans_b: true,
            alpha: 1.0,
            accumulate: true,
            a: f,
            b: f,
            c: f,
            ..Gemm::DENSE
        })
    };
    assert_eq!(gemm(3, 5, 7).flops(), 2 * 3 * 5 * 7);
    assert_eq!(gemm(3, 5, 7).bytes(), 4 * (21 + 35 + 2 * 15));
    assert_eq!(gemm(usize::MAX, 2, 2).flops(), u64::MAX);
    assert_eq!(gemm(usize::MAX, 2, 0).flops(), 0);
    let a = Attention {
        batch: 2,
        seq: 8,
        kv_seq: 8,
        causal: true,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        scale: 0.25,
        window: None,
        alibi: None,
        dtype: DType::Bf16,
    };
    // Q K^T and P V: two products of 2 S S D, halved, for each of 8 heads.
    assert_eq!(Op::Attention(a).flops(), 2 * (2 * 8 * 8 * 16) / 2 * 8);
    assert_eq!(Op::AttentionBackward(a).flops() * 2, Op::Attention(a).flops() * 5);
    assert_eq!(Op::AttentionBackward(a).model_flops(), Op::Attention(a).flops() * 2);
    assert_eq!(Op::Attention(a).bytes(), 2 * (2 * 16 * 64 + 2 * 16 * 32) + 4 * 64);
    let windowed = |w| Op::Attention(Attention { window: Some(w), ..a }).flops();
    assert_eq!((windowed(8), windowed(100)), (Op::Attention(a).flops(), Op::Attention(a).flops()));
    assert_eq!(windowed(3), 2 * 2 * 4 * 16 * (3 * (16 - 3)));
    // Without the mask every pair of 8 queries and 5 keys counts. Keys and values have the length of their own, and the
    // probabilities are those of all pairs.
    let cross = Attention { kv_seq: 5, causal: false, ..a };
    assert_eq!(Op::Attention(cross).flops(), 2 * (2 * 8 * 5 * 16) * 8);
    assert_eq!(Op::AttentionBackward(cross).flops() * 2, Op::Attention(cross).flops() * 5);
    assert_eq!(Op::Attention(cross).bytes(), 2 * (2 * 16 * 64 + 2 * 10 * 32) + 4 * 64);
    assert_eq!(Op::NaiveAttention(cross).bytes(), 2 * (2 * 16 * 64 + 2 * 10 * 32 + 8 * 8 * 5));
    // One product for every row, whoever has it; all matrices are read.
    let form = Grouped::Forward;
    let grouped = Op::GroupedGemm(GroupedGemm {
        rows: 6,
        groups: 3,
        out: 5,
        input: 7,
        form,
        accumulate: false,
        a: f,
        b: f,
        c: f,
    });
    assert_eq!((grouped.flops(), grouped.bytes()), (2 * 6 * 5 * 7, 4 * (6 * 7 + 3 * 5 * 7 + 6 * 5) + 4 * 4));
    // x, w and dy are read in bf16, dx is read and written; the statistics and dw, which is added to, are f32.
    let norm = RmsNorm { rows: 3, cols: 4, eps: 1e-5, dtype: DType::Bf16, gradient: Some(f) };
    assert_eq!(Op::RmsNormBackward(norm).bytes(), 2 * (12 + 4 + 12 + 2 * 12) + 4 * 3 + 4 * 2 * 4);
    let adamw = AdamW {
        len: 10,
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        step: 1,
        grad_scale: 1.0,
        clip: 1.0,
        parameters: f,
        gradients: DType::Bf16,
        moments: f,
        rounding: Rounding::Nearest,
        copy: Some(DType::Bf16),
    };
    assert_eq!(Op::AdamW(adamw).bytes(), 2 * 10 + 3 * 2 * 4 * 10 + 2 * 10);
    // Two of five columns are padding: they are not read, and written all the same.
    let vocab = VocabPart { first: 5, len: 5, vocab_size: 8 };
    let part = VocabParallelStats { rows: 4, vocab, dtype: f, pitch: 8 };
    assert_eq!(Op::VocabParallelStats(part).bytes(), 4 * (4 * 3 + 4 * 3) + 4 * 4);
    let op = VocabParallelCrossEntropy { part, ranks: 2, scale: 1.0, gradient: DType::Bf16 };
    assert_eq!(Op::VocabParallelCrossEntropy(op).bytes(), 4 * (4 * 3 + 2 * 4 * 3 + 4) + 2 * 4 * 5 + 4 * 4);
    let op = ReduceOp::Sum;
    let reduce = Reduce { len: 10, sources: 3, op, accumulate: false, from: DType::Bf16, to: f };
    assert_eq!(Op::Reduce(reduce).bytes(), 3 * 20 + 40);
    assert_eq!(Op::Reduce(reduce).flops(), 0);
}
