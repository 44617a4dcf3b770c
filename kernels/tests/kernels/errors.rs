use crate::harness::*;
use zbench_kernels::*;
use zbench_kernels_testing::{ByName, Reference};

const F: DType = DType::F32;

fn floats(len: usize) -> Tensor {
    Tensor::normal(F, len, 1)
}

fn both(check: impl Fn(&dyn Kernels)) {
    check(&CPUS[1]);
    check(&Reference);
}

fn is_short(result: Result<()>, op: &str, operand: &str, wanted: usize, given: usize) {
    match result {
        Err(KernelError::Shape { op: o, operand: p, wanted: w, given: g }) => {
            assert_eq!((o, p, w, g), (op, operand, wanted, given))
        }
        other => panic!("{op} {operand}: {other:?}"),
    }
}

fn is_invalid(result: Result<()>, op: &str, words: &[&str]) {
    match result {
        Err(KernelError::Invalid { op: o, reason }) => {
            assert_eq!(o, op);
            assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
        }
        other => panic!("{op}: {other:?}"),
    }
}

#[test]
fn the_cores_refuse_f64_by_name() {
    let x = Tensor::filled(DType::F64, 4, 1.0);
    let mut y = x.clone();
    let refused = |result: Result<()>, name: &str| {
        let error = result.unwrap_err();
        assert!(matches!(error, KernelError::Unsupported { device: "cpu", dtype: DType::F64, op } if op == name));
        assert!(error.to_string().contains(name));
    };
    let cpu = &CPUS[0];
    refused(cpu.fill(y.view_mut(), 0.0), "fill");
    refused(cpu.cast(x.view(), y.view_mut()), "cast");
    refused(cpu.add(x.view(), x.view(), y.view_mut()), "add");
    refused(cpu.accumulate(1.0, x.view(), y.view_mut()), "accumulate");
    refused(cpu.scale(1.0, y.view_mut()), "scale");
    refused(cpu.sum(x.view()).map(drop), "sum");
    refused(cpu.sum_squares(x.view()).map(drop), "sum_squares");
    let swiglu = GatedActivation { len: 4, act: Activation::Silu, dtype: DType::F64 };
    refused(cpu.swiglu(&swiglu, x.view(), x.view(), y.view_mut()), "swiglu");
    let normal = Normal { len: 4, std: 1.0, seed: 0, first: 0, dtype: DType::F64 };
    refused(cpu.normal(&normal, y.view_mut()), "normal");
    let half = CrossEntropy { rows: 1, vocab: 4, scale: 1.0, dtype: DType::Bf16, gradient: DType::Bf16, pitch: 0 };
    let mut logits = Tensor::filled(DType::Bf16, 4, 0.0);
    let mut losses = Tensor::filled(DType::Bf16, 1, 0.0);
    let error = cpu.cross_entropy(&half, logits.view_mut(), Tensor::ids(&[0]).view(), losses.view_mut()).unwrap_err();
    assert!(matches!(error, KernelError::Unsupported { dtype: DType::Bf16, .. }));
    let wide = CrossEntropy { dtype: DType::F32, gradient: DType::F64, ..half };
    let (mut logits, mut losses) = (Tensor::filled(DType::F32, 4, 0.0), Tensor::filled(DType::F32, 1, 0.0));
    let error = cpu.cross_entropy(&wide, logits.view_mut(), Tensor::ids(&[0]).view(), losses.view_mut()).unwrap_err();
    assert!(matches!(error, KernelError::Unsupported { dtype: DType::F64, .. }));
    let result = zbench_kernels_testing::Reference.cross_entropy(
        &wide,
        logits.view_mut(),
        Tensor::ids(&[0]).view(),
        losses.view_mut(),
    );
    is_invalid(result, "cross_entropy", &["gradient of f64", "f32"]);
}

#[test]
fn integers_are_no_numbers_to_train_with() {
    both(|k| {
        for ids in [Tensor::ids(&[1, 2]), Tensor::exactly(&[1i32, -2]), Tensor::exactly(&[1i8, -2])] {
            let error = k.sum(ids.view()).unwrap_err();
            assert!(matches!(error, KernelError::Unsupported { op: "sum", dtype, .. } if dtype == ids.dtype));
            let mut copy = ids.clone();
            let error = k.cast(ids.view(), copy.view_mut()).unwrap_err();
            assert!(matches!(error, KernelError::Unsupported { op: "cast", dtype, .. } if dtype == ids.dtype));
            let error = k.add(ids.view(), ids.view(), copy.view_mut()).unwrap_err();
            assert!(matches!(error, KernelError::Unsupported { op: "add", dtype, .. } if dtype == ids.dtype));
            let swiglu = GatedActivation { len: 2, act: Activation::Silu, dtype: ids.dtype };
            let error = k.swiglu(&swiglu, ids.view(), ids.view(), copy.view_mut()).unwrap_err();
            assert!(matches!(error, KernelError::Unsupported { op: "swiglu", dtype, .. } if dtype == ids.dtype));
        }
    });
}

#[test]
fn an_operand_of_another_type_or_too_short_is_named() {
    both(|k| {
        let op = Gemm {
            m: 2,
            n: 3,
            k: 4,
            trans_a: false,
            trans_b: false,
            alpha: 1.0,
            accumulate: false,
            a: F,
            b: F,
            c: F,
            ..Gemm::DENSE
        };
        let gemm = |op: &Gemm, a: &Tensor, b: &Tensor, mut c: Tensor| {
            let mut none = floats(0);
            k.gemm(op, a.view(), b.view(), c.view_mut(), none.view_mut())
        };
        is_short(gemm(&op, &floats(7), &floats(12), floats(6)), "gemm", "a", 8, 7);
        is_short(gemm(&op, &floats(8), &floats(11), floats(6)), "gemm", "b", 12, 11);
        is_short(gemm(&op, &floats(8), &floats(12), floats(5)), "gemm", "c", 6, 5);
        let half = Tensor::filled(DType::Bf16, 8, 0.0);
        let error = gemm(&op, &half, &floats(12), floats(6)).unwrap_err();
        assert_eq!(error, KernelError::DType { wanted: F, given: DType::Bf16 });
        // A product of sizes that no number holds is too long for any buffer.
        let huge = Gemm { m: usize::MAX / 2, k: 5, ..op };
        is_short(gemm(&huge, &floats(7), &floats(12), floats(6)), "gemm", "a", usize::MAX, 7);

        let norm = RmsNorm { rows: 2, cols: 3, eps: 1e-5, dtype: F, gradient: Some(F) };
        let (mut y, mut rstd) = (floats(6), floats(1));
        is_short(
            k.rms_norm(&norm, floats(6).view(), floats(3).view(), y.view_mut(), rstd.view_mut()),
            "rms_norm",
            "rstd",
            2,
            1,
        );
        let swiglu = GatedActivation { len: 6, act: Activation::Silu, dtype: F };
        is_short(k.swiglu(&swiglu, floats(6).view(), floats(5).view(), y.view_mut()), "swiglu", "up", 6, 5);
        is_short(k.cast(floats(5).view(), y.view_mut()), "cast", "src", 6, 5);
        is_short(k.cast(floats(7).view(), y.view_mut()), "cast", "src", 6, 7);
        is_short(k.add(floats(6).view(), floats(7).view(), y.view_mut()), "add", "b", 6, 7);
        is_short(k.accumulate(1.0, floats(3).view(), y.view_mut()), "accumulate", "src", 6, 3);
        is_short(
            k.reduce(ReduceOp::Sum, &[floats(6).view(), floats(5).view()], false, y.view_mut()),
            "reduce",
            "source",
            6,
            5,
        );
        is_invalid(k.reduce(ReduceOp::Max, &[], false, y.view_mut()), "reduce", &["no sources"]);
        let dropout = Dropout { len: 9, p: 0.5, seed: 0, first: 0, dtype: F };
        is_short(k.dropout(&dropout, floats(9).view(), y.view_mut()), "dropout", "y", 9, 6);
        let normal = Normal { len: 7, std: 1.0, seed: 0, first: 0, dtype: F };
        is_short(k.normal(&normal, y.view_mut()), "normal", "dst", 7, 6);
        let rope = Rope { rows: 3, seq: 2, heads: 1, head_dim: 2, inverse: false, dtype: F };
        is_short(k.rope(&rope, y.view_mut(), floats(1).view(), floats(2).view()), "rope", "cos", 2, 1);
    });
}

#[test]
fn the_workspace_is_checked() {
    for dtype in [DType::F16, DType::Bf16] {
        let given = |len| Tensor::normal(dtype, len, 1);
        let (a, b, c) = (dtype, dtype, dtype);
        let op = Gemm {
            m: 2,
            n: 3,
            k: 4,
            trans_a: false,
            trans_b: false,
            alpha: 1.0,
            accumulate: false,
            a,
            b,
            c,
            ..Gemm::DENSE
        };
        let wanted = CPUS[0].workspace(&Op::Gemm(op));
        // At least a packed panel of B.
        assert!(wanted >= 16 * 32, "{dtype}: {wanted}");
        let (mut c, mut short) = (given(6), floats(wanted - 1));
        let result = CPUS[0].gemm(&op, given(8).view(), given(12).view(), c.view_mut(), short.view_mut());
        is_short(result, "gemm", "workspace", wanted, wanted - 1);
    }
}

#[test]
fn weights_that_train_need_a_gradient_and_frozen_ones_have_none() {
    both(|k| {
        let (x, w, r) = (floats(6), floats(3), floats(2));
        let run = |gradient, with: bool| {
            let op = RmsNorm { rows: 2, cols: 3, eps: 1e-5, dtype: F, gradient };
            let (mut dx, mut dw) = (floats(6), floats(3));
            let dw = with.then(|| dw.view_mut());
            k.rms_norm_backward(&op, x.view(), w.view(), r.view(), x.view(), dx.view_mut(), dw)
        };
        run(Some(F), true).unwrap();
        run(None, false).unwrap();
        is_invalid(run(Some(F), false), "rms_norm_backward", &["dw"]);
        is_invalid(run(None, true), "rms_norm_backward", &["writes (dx)", "2 outputs"]);
    });
}

#[test]
fn values_that_cannot_be_are_named() {
    both(|k| {
        let op = Embedding { rows: 2, cols: 3, vocab: VocabPart::whole(4), padding: None, dtype: F };
        let ids = Tensor::ids(&[1, 4]);
        let mut out = floats(6);
        is_invalid(k.embedding(&op, ids.view(), floats(12).view(), out.view_mut()), "embedding", &["4", "row 1"]);
        let mut table = floats(12);
        let result = k.embedding_backward(&op, ids.view(), floats(6).view(), table.view_mut());
        is_invalid(result, "embedding_backward", &["id 4", "vocabulary of 4"]);
        let op = CrossEntropy { rows: 2, vocab: 3, scale: 1.0, dtype: F, gradient: F, pitch: 0 };
        let mut losses = floats(2);
        let result = k.cross_entropy(&op, out.view_mut(), Tensor::ids(&[0, 3]).view(), losses.view_mut());
        is_invalid(result, "cross_entropy", &["target 3", "vocabulary of 3"]);
        // Words of other ranks are no error; what is outside of the whole vocabulary is.
        let vocab = VocabPart { first: 2, len: 2, vocab_size: 3 };
        let op = Embedding { rows: 2, cols: 3, vocab, padding: None, dtype: F };
        let result = k.embedding(&op, Tensor::ids(&[0, 3]).view(), floats(6).view(), out.view_mut());
        is_invalid(result, "embedding", &["id 3", "row 1", "vocabulary of 3"]);
        let part = VocabParallelStats { rows: 2, vocab, dtype: F, pitch: 0 };
        let (targets, mut statistics) = (Tensor::ids(&[0, 3]), floats(6));
        let result = k.loss_parts(&part, targets.view(), floats(4).view(), statistics.view_mut());
        is_invalid(result, "loss_parts", &["target 3", "row 1", "vocabulary of 3"]);
        let mut of_parts = |op: VocabParallelCrossEntropy| {
            k.loss_of_parts(&op, targets.view(), statistics.view(), out.view_mut(), losses.view_mut())
        };
        let op = VocabParallelCrossEntropy { part, ranks: 1, scale: 1.0, gradient: F };
        is_invalid(of_parts(op), "loss_of_parts", &["target 3", "row 1", "vocabulary of 3"]);
        is_invalid(of_parts(VocabParallelCrossEntropy { ranks: 0, ..op }), "loss_of_parts", &["0 ranks"]);
        let narrow = VocabParallelStats { pitch: 1, ..part };
        is_invalid(
            of_parts(VocabParallelCrossEntropy { part: narrow, ..op }),
            "loss_of_parts",
            &["pitch of 1", "row of 2 logits"],
        );
        is_short(of_parts(VocabParallelCrossEntropy { ranks: 2, ..op }), "loss_of_parts", "statistics", 12, 6);
        for p in [1.0, -0.1, f64::NAN] {
            let op = Dropout { len: 1, p, seed: 0, first: 0, dtype: F };
            is_invalid(k.dropout(&op, floats(1).view(), out.view_mut()), "dropout", &["[0, 1)"]);
        }
        let rope = Rope { rows: 1, seq: 1, heads: 1, head_dim: 3, inverse: false, dtype: F };
        is_invalid(k.rope(&rope, out.view_mut(), floats(3).view(), floats(3).view()), "rope", &["even"]);
        let rope = Rope { seq: 0, head_dim: 2, ..rope };
        is_invalid(k.rope(&rope, out.view_mut(), floats(3).view(), floats(3).view()), "rope", &["length 0"]);
        for kv_heads in [0, 2] {
            let op = Attention {
                batch: 1,
                seq: 1,
                kv_seq: 1,
                causal: true,
                heads: 3,
                kv_heads,
                head_dim: 2,
                scale: 1.0,
                window: None,
                alibi: None,
                dtype: F,
            };
            let (q, mut lse, mut none) = (floats(6), floats(3), floats(0));
            let (o, l) = (out.view_mut(), lse.view_mut());
            let result = k.attention(&op, q.view(), q.view(), q.view(), o, l, none.view_mut());
            is_invalid(result, "attention", &["3 query heads"]);
            assert!(CPUS[1].workspace(&Op::AttentionBackward(op)) < 1 << 20);
        }
        let op = AdamW {
            len: 1,
            lr: 0.1,
            beta1: 0.9,
            beta2: 0.9,
            eps: 1e-8,
            weight_decay: 0.0,
            step: 0,
            grad_scale: 1.0,
            clip: 1.0,
            parameters: F,
            gradients: F,
            moments: F,
            rounding: Rounding::Nearest,
            copy: None,
        };
        let (mut p, mut m, mut v) = (floats(1), floats(1), floats(1));
        let result = k.adamw(&op, p.view_mut(), m.view_mut(), v.view_mut(), floats(1).view(), None);
        is_invalid(result, "adamw", &["step"]);
        let op = AdamW { step: 1, copy: Some(DType::Bf16), ..op };
        let result = k.adamw(&op, p.view_mut(), m.view_mut(), v.view_mut(), floats(1).view(), None);
        is_invalid(result, "adamw", &["(p, m, v, copy)", "3 outputs"]);
        let mut copy = Tensor::filled(DType::Bf16, 1, 0.0);
        let plain = AdamW { copy: None, ..op };
        let g = floats(1);
        let result = k.adamw(&plain, p.view_mut(), m.view_mut(), v.view_mut(), g.view(), Some(copy.view_mut()));
        is_invalid(result, "adamw", &["(p, m, v)", "4 outputs"]);
        let short = Some(copy.view_mut().into_slice(0..0));
        let error = k.adamw(&op, p.view_mut(), m.view_mut(), v.view_mut(), g.view(), short).unwrap_err();
        assert!(matches!(error, KernelError::Shape { operand: "copy", .. }), "{error}");
        assert_eq!(p.values(), floats(1).values(), "a refused step leaves the parameters");
    });
}

/// Which lengths and masks go together.
#[test]
fn masks_that_cannot_be_are_named() {
    both(|k| {
        let (heads, kv_heads, head_dim, scale) = (1, 1, 2, 1.0);
        let (window, alibi, dtype) = (None, None, F);
        let causal = Attention {
            batch: 1,
            seq: 3,
            kv_seq: 3,
            causal: true,
            heads,
            kv_heads,
            head_dim,
            scale,
            window,
            alibi,
            dtype,
        };
        let all = Attention { causal: false, ..causal };
        let part = |first| Attention { alibi: Some(AlibiHeads { first, heads: 2 }), ..causal };
        let cases: [(Attention, &[&str]); 8] = [
            (Attention { kv_seq: 2, ..causal }, &["causal", "2 and 3"]),
            (Attention { kv_seq: 4, ..causal }, &["causal", "4 and 3"]),
            (Attention { window: Some(2), ..all }, &["a window", "causal"]),
            (Attention { alibi: Some(AlibiHeads::whole(1)), ..all }, &["ALiBi", "causal"]),
            (part(2), &["ALiBi", "the 2 heads", "1 heads from 2"]),
            (part(usize::MAX), &["ALiBi", "the 2 heads"]),
            (Attention { kv_seq: 0, ..all }, &["3 queries", "0 keys"]),
            (Attention { seq: 0, ..all }, &["0 queries", "3 keys"]),
        ];
        let (read, scratch) = (floats(8), || floats(1 << 14));
        for (op, words) in cases {
            let (x, [mut a, mut b, mut c]) = (read.view(), [8, 12, 8].map(floats));
            let result = k.attention(&op, x, x, x, a.view_mut(), b.view_mut(), scratch().view_mut());
            is_invalid(result, "attention", words);
            let result = k.naive_attention(&op, x, x, x, a.view_mut(), b.view_mut(), scratch().view_mut());
            is_invalid(result, "naive_attention", words);
            let (dq, dk, dv, mut work) = (a.view_mut(), b.view_mut(), c.view_mut(), scratch());
            let result = k.attention_backward(&op, x, x, x, x, x, x, dq, dk, dv, work.view_mut());
            is_invalid(result, "attention_backward", words);
            let (dq, dk, dv, mut work) = (a.view_mut(), b.view_mut(), c.view_mut(), scratch());
            let result = k.naive_attention_backward(&op, x, x, x, x, x, dq, dk, dv, work.view_mut());
            is_invalid(result, "naive_attention_backward", words);
        }
        // Documents are no operand of attention that sees all keys.
        let (x, starts, [mut out, mut lse]) = (read.view(), Tensor::ids(&[0, 0, 0]), [6, 3].map(floats));
        let (out, lse, mut work) = (out.view_mut(), lse.view_mut(), scratch());
        let result = k.attention_in_documents(&all, starts.view(), x, x, x, out, lse, work.view_mut());
        is_invalid(result, "attention", &["(q, k, v)", "4 inputs"]);
    });
}

#[test]
fn absurd_shapes_ask_for_absurd_workspaces_without_overflow() {
    let most = usize::MAX;
    let op = Attention {
        batch: 1,
        seq: most,
        kv_seq: most,
        causal: true,
        heads: 2,
        kv_heads: 1,
        head_dim: most / 64,
        scale: 1.0,
        window: None,
        alibi: None,
        dtype: F,
    };
    for op in [Op::Attention(op), Op::AttentionBackward(op), Op::NaiveAttention(op), Op::NaiveAttentionBackward(op)] {
        CPUS[1].workspace(&op);
        assert_eq!(op.flops(), u64::MAX);
    }
    for (seq, kv_seq) in [(most, 3), (3, most), (most, most), (3, 0), (0, 3)] {
        let op = Attention { seq, kv_seq, causal: false, ..op };
        for dtype in [F, DType::Bf16, DType::F16] {
            let op = Attention { dtype, ..op };
            for kind in [Op::Attention, Op::AttentionBackward, Op::NaiveAttention, Op::NaiveAttentionBackward] {
                CPUS[1].workspace(&kind(op));
            }
        }
    }
    for (m, n, k) in [(most, most, 16), (most, 3, most), (3, most, most), (most, most, most)] {
        for dtype in [F, DType::Bf16, DType::F16] {
            let (trans_a, trans_b, alpha, accumulate, a, b, c) = (true, false, 1.0, false, dtype, dtype, F);
            CPUS[1].workspace(&Op::Gemm(Gemm { m, n, k, trans_a, trans_b, alpha, accumulate, a, b, c, ..Gemm::DENSE }));
        }
    }
}

#[test]
fn every_set_of_instructions_can_be_asked_for_by_name() {
    assert!(Cpu::with_instructions(1, "abacus").is_none());
    // AMX as well, where there is any.
    let best = zbench_kernels::cpu::peak::describe().pop().unwrap();
    assert_eq!(Cpu::with_instructions(1, best).unwrap().name(), Cpu::new(1).name());
    assert_eq!(Cpu::with_instructions(2, "portable").unwrap().name(), "cpu portable");
    assert_eq!(Cpu::new(0).threads(), 1);
}

#[test]
fn sizes_of_nothing_are_fine_however_large_the_other_side() {
    let most = usize::MAX;
    both(|k| {
        let mut none = [floats(0), floats(0)];
        let [a, b] = none.each_mut();
        let op = Gemm {
            m: most,
            n: 0,
            k: 0,
            trans_a: false,
            trans_b: false,
            alpha: 1.0,
            accumulate: false,
            a: F,
            b: F,
            c: F,
            ..Gemm::DENSE
        };
        let empty = floats(0);
        k.gemm(&op, empty.view(), empty.view(), a.view_mut(), b.view_mut()).unwrap();
        let rope = Rope { rows: most, seq: most, heads: 0, head_dim: 0, inverse: false, dtype: F };
        k.rope(&rope, a.view_mut(), empty.view(), empty.view()).unwrap();
        let op = Attention {
            batch: most,
            seq: most,
            kv_seq: most,
            causal: true,
            heads: 0,
            kv_heads: 0,
            head_dim: 8,
            scale: 1.0,
            window: None,
            alibi: None,
            dtype: F,
        };
        let mut scratch = floats(k.workspace(&Op::Attention(op)).min(1 << 20));
        k.attention(&op, empty.view(), empty.view(), empty.view(), a.view_mut(), b.view_mut(), scratch.view_mut())
            .unwrap();
    });
}

/// What only the device sees comes out of the next call that waits, once; the rest of the rows is computed.
#[test]
fn values_that_cannot_be_come_out_when_a_device_is_waited_for() {
    use zbench_kernels::cuda::host::Order;
    for order in [Order::Forward, Order::Backward] {
        let k = Cuda::new(std::sync::Arc::new(host(order))).unwrap();
        let op = Embedding { rows: 2, cols: 3, vocab: VocabPart::whole(4), padding: None, dtype: F };
        let (ids, mut out, table) = (Tensor::ids(&[1, 4]), floats(6), floats(12));
        k.embedding(&op, ids.view(), table.view(), out.view_mut()).unwrap();
        is_invalid(k.synchronize(), "embedding", &["token id 4", "row 1"]);
        k.synchronize().unwrap();
        assert_eq!(out.values()[..3], table.values()[3..6]);
        let mut grads = table.clone();
        k.embedding_backward(&op, ids.view(), floats(6).view(), grads.view_mut()).unwrap();
        let mut host = Tensor::filled(F, 6, 0.0);
        is_invalid(k.download(out.view(), host.view_mut()), "embedding", &["token id 4", "row 1"]);
        assert_eq!(grads.values()[6..], table.values()[6..], "an id outside has no gradient");
        let op = CrossEntropy { rows: 2, vocab: 3, scale: 1.0, dtype: F, gradient: F, pitch: 0 };
        let mut losses = floats(2);
        k.cross_entropy(&op, out.view_mut(), Tensor::ids(&[0, 3]).view(), losses.view_mut()).unwrap();
        is_invalid(k.synchronize(), "cross_entropy", &["target 3", "row 1"]);
        assert_eq!(losses.values()[1], 0.0);
        k.synchronize().unwrap();
        let part =
            VocabParallelStats { rows: 2, vocab: VocabPart { first: 2, len: 2, vocab_size: 3 }, dtype: F, pitch: 0 };
        let (targets, mut logits, mut statistics) = (Tensor::ids(&[0, 3]), floats(4), floats(6));
        k.loss_parts(&part, targets.view(), logits.view(), statistics.view_mut()).unwrap();
        is_invalid(k.synchronize(), "loss_parts", &["target 3", "row 1"]);
        let op = VocabParallelCrossEntropy { part, ranks: 1, scale: 1.0, gradient: F };
        k.loss_of_parts(&op, targets.view(), statistics.view(), logits.view_mut(), losses.view_mut()).unwrap();
        is_invalid(k.synchronize(), "loss_of_parts", &["target 3", "row 1"]);
        assert_eq!(losses.values()[1], 0.0);
        for (form, offsets) in [Grouped::Forward, Grouped::Weight]
            .into_iter()
            .flat_map(|form| [[1u32, 1, 2, 4], [0, 3, 2, 4], [0, 1, 2, 3], [0, 1, 2, 5]].map(|offsets| (form, offsets)))
        {
            let op = GroupedGemm { rows: 4, groups: 3, out: 2, input: 2, form, accumulate: false, a: F, b: F, c: F };
            let (a, b, mut none) = (floats(8), floats(12), floats(0));
            let mut c = guarded(floats(if form == Grouped::Weight { 12 } else { 8 }));
            let guard = c.len - GUARD;
            k.grouped_gemm(&op, Tensor::ids(&offsets).view(), a.view(), b.view(), c.view_mut(), none.view_mut())
                .unwrap();
            is_invalid(k.synchronize(), "grouped_gemm", &["do not cut"]);
            assert!(c.values()[guard..].iter().all(|x| *x == SENTINEL));
        }
    }
}

/// What is recorded and priced is what is done: numbers of the operation and lengths of its operands agree.
#[test]
fn operations_that_say_other_lengths_than_their_operands_have_are_refused() {
    both(|k| {
        let by = Quantize { format: QuantFormat::Int8, block: 32 };
        let (mut values, mut scales) = (vec![0i8; 200], vec![0f32; 7]);
        let op = Op::Quantize(QuantizeBlocks { by, len: 100, dtype: F, accumulate: false });
        let writes = &mut [ViewMut::of(&mut values), ViewMut::of(&mut scales)];
        is_short(k.run(&op, &[floats(200).view()], writes, no_scratch()), "quantize", "src", 100, 200);
        let mut dst = floats(200);
        let op = Op::Dequantize(QuantizeBlocks { by, len: 100, dtype: F, accumulate: false });
        let reads = [View::of(&values), View::of(&scales)];
        is_short(k.run(&op, &reads, &mut [dst.view_mut()], no_scratch()), "dequantize", "dst", 100, 200);
        let (source, mut dst) = (floats(8), floats(8));
        let reduce = Reduce { len: 8, sources: 2, op: ReduceOp::Sum, accumulate: false, from: F, to: F };
        for wrong in
            [Reduce { len: 3, ..reduce }, Reduce { sources: 7, ..reduce }, Reduce { from: DType::F64, ..reduce }]
        {
            let reads = [source.view(), source.view()];
            let result = k.run(&Op::Reduce(wrong), &reads, &mut [dst.view_mut()], no_scratch());
            is_invalid(result, "reduce", &["does not go with"]);
        }
    });
}
