//! Every operation writes all of what its table of operands says it writes, and changes nothing that it only reads.

use crate::harness::{CPUS, CUDAS, FLOATS, PLAINER, Tensor, cases};
use proptest::prelude::*;
use zbench_kernels::*;

/// Sizes of small shapes.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    rows: usize,
    cols: usize,
    inner: usize,
    seq: usize,
    experts: usize,
    top: usize,
    dtype: DType,
    accumulate: bool,
}

fn sizes() -> impl Strategy<Value = Sizes> {
    let shape = (1usize..9, 1usize..70, 1usize..40, 1usize..20, 1usize..6, 1usize..4);
    (shape, prop::sample::select(&FLOATS), any::<bool>()).prop_map(|(shape, dtype, accumulate)| {
        let (rows, cols, inner, seq, experts, top) = shape;
        Sizes { rows, cols, inner, seq, experts, top: top.min(experts), dtype, accumulate }
    })
}

/// Variants of [`Op`].
const VARIANTS: usize = 47;

/// The number of a variant. Whoever adds one has to give it the next number, and an operation in [`operations`].
fn variant(op: &Op) -> usize {
    match op {
        Op::Gemm(_) => 0,
        Op::Prepack(_) => 1,
        Op::GemmPrepacked(_) => 2,
        Op::RmsNorm(_) => 3,
        Op::RmsNormBackward(_) => 4,
        Op::LayerNorm(_) => 5,
        Op::LayerNormBackward(_) => 6,
        Op::BiasAdd(_) => 7,
        Op::BiasAddBackward(_) => 8,
        Op::ScaleColumns(_) => 9,
        Op::ScaleColumnsBackward(_) => 10,
        Op::RowInvNorm(_) => 11,
        Op::Rope(_) => 12,
        Op::Attention(_) => 13,
        Op::AttentionBackward(_) => 14,
        Op::NaiveAttention(_) => 15,
        Op::NaiveAttentionBackward(_) => 16,
        Op::GatedActivation(_) => 17,
        Op::GatedActivationBackward(_) => 18,
        Op::PointwiseActivation(_) => 19,
        Op::PointwiseActivationBackward(_) => 20,
        Op::Embedding(_) => 21,
        Op::EmbeddingBackward(_) => 22,
        Op::CrossEntropy(_) => 23,
        Op::AdamW(_) => 24,
        Op::Dropout(_) => 25,
        Op::Normal(_) => 26,
        Op::Fill(..) => 27,
        Op::Cast(_) => 28,
        Op::Add(_) => 29,
        Op::Accumulate(..) => 30,
        Op::Scale(..) => 31,
        Op::Sum(_) => 32,
        Op::SumSquares(_) => 33,
        Op::Reduce(_) => 34,
        Op::Quantize(_) => 35,
        Op::Dequantize(_) => 36,
        Op::Pack(_) => 37,
        Op::Unpack(_) => 38,
        Op::Route(_) => 39,
        Op::RouteBackward(_) => 40,
        Op::Dispatch(_) => 41,
        Op::Combine(_) => 42,
        Op::RouterWeightBackward(_) => 43,
        Op::GroupedGemm(_) => 44,
        Op::VocabParallelStats(_) => 45,
        Op::VocabParallelCrossEntropy(_) => 46,
    }
}

/// At least one operation of every variant.
fn operations(sizes: Sizes) -> Vec<Op> {
    let Sizes { rows, cols, inner, seq, experts, top, dtype, accumulate } = sizes;
    let (len, f) = (rows * cols, DType::F32);
    let (trans_a, trans_b) = (rows % 2 == 1, cols % 2 == 1);
    let gemm =
        |a, b, c| Gemm { m: rows, n: cols, k: inner, trans_a, trans_b, alpha: 0.5, accumulate, a, b, c, ..Gemm::DENSE };
    // Products read B prepacked in the types that tiles are made of.
    let packed = if dtype == DType::F16 { f } else { dtype };
    let gradient = accumulate.then_some(f);
    let rms = RmsNorm { rows, cols, eps: 1e-5, dtype, gradient };
    let layer = LayerNorm { rows, cols, eps: 1e-5, bias: trans_a, dtype, gradient };
    let bias = BiasAdd { rows, period: 1 + seq % 3, cols, dtype };
    let columns = ScaleColumns { rows, cols, dtype };
    let (heads, kv_heads, head_dim) = (2 * top, top, 2 * (1 + inner));
    let (window, alibi) =
        (trans_a.then_some(1 + seq / 2), trans_b.then_some(AlibiHeads { first: top, heads: 4 * top }));
    let attention = Attention {
        batch: 2,
        seq,
        kv_seq: seq,
        causal: true,
        heads,
        kv_heads,
        head_dim,
        scale: 0.2,
        window,
        alibi,
        dtype,
    };
    let cross = Attention { kv_seq: 1 + (3 * seq + rows) % 20, causal: false, window: None, alibi: None, ..attention };
    let act = [Activation::Silu, Activation::Gelu, Activation::GeluTanh][rows % 3];
    let (gated, pointwise) = (GatedActivation { len, act, dtype }, PointwiseActivation { len, act, dtype });
    let embedding = Embedding { rows, cols, vocab: VocabPart::whole(inner), padding: trans_a.then_some(0), dtype };
    // The last of three ranks, which may have padding.
    let part = VocabPart { first: 2 * inner, len: inner, vocab_size: 2 * inner + cols.min(inner) };
    let loss = VocabParallelStats { rows, vocab: part, dtype: f, pitch: inner + seq % 3 };
    let gradient = if trans_a { f } else { dtype };
    let adamw = AdamW {
        len,
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        step: 3,
        grad_scale: 0.5,
        clip: 1.0,
        parameters: f,
        gradients: dtype,
        moments: f,
        rounding: Rounding::Nearest,
        copy: Some(dtype),
    };
    let one = |from, to| Elementwise { len, sources: 1, from, to };
    let reduce = |op, sources| Op::Reduce(Reduce { len, sources, op, accumulate: false, from: dtype, to: dtype });
    let quantize = |format| {
        let by = Quantize { format, block: inner };
        QuantizeBlocks { by, len, dtype, accumulate }
    };
    let matrix = |packing| Packed { packing, rows, cols };
    let route = Route { rows, experts, top, normalised: trans_a, rounded: trans_b, dtype };
    let slots = Slots { rows, top, experts, cols, dtype };
    let combine = |weighted| Combine { slots, weighted, accumulate };
    let grouped = |form| {
        let (a, b, c) = (dtype, dtype, dtype);
        Op::GroupedGemm(GroupedGemm { rows, groups: experts, out: cols, input: inner, form, accumulate, a, b, c })
    };
    let mut all = vec![
        Op::Gemm(gemm(dtype, dtype, dtype)),
        Op::Gemm(gemm(dtype, dtype, f)),
        Op::Prepack(gemm(packed, packed, f)),
        Op::GemmPrepacked(gemm(packed, packed, f)),
        Op::RmsNorm(rms),
        Op::RmsNormBackward(rms),
        Op::LayerNorm(layer),
        Op::LayerNormBackward(layer),
        Op::BiasAdd(bias),
        Op::BiasAddBackward(bias),
        Op::ScaleColumns(columns),
        Op::ScaleColumnsBackward(columns),
        Op::RowInvNorm(RowInvNorm { rows, cols, dtype }),
        Op::Rope(Rope { rows, seq, heads, head_dim, inverse: trans_a, dtype }),
        Op::Attention(attention),
        Op::AttentionBackward(attention),
        Op::NaiveAttention(attention),
        Op::NaiveAttentionBackward(attention),
        Op::Attention(cross),
        Op::AttentionBackward(cross),
        Op::NaiveAttention(cross),
        Op::NaiveAttentionBackward(cross),
        Op::GatedActivation(gated),
        Op::GatedActivationBackward(gated),
        Op::PointwiseActivation(pointwise),
        Op::PointwiseActivationBackward(pointwise),
        Op::Embedding(embedding),
        Op::EmbeddingBackward(embedding),
        Op::CrossEntropy(CrossEntropy { rows, vocab: inner, scale: 0.5, dtype: f, gradient, pitch: 0 }),
        Op::Embedding(Embedding { vocab: part, ..embedding }),
        Op::EmbeddingBackward(Embedding { vocab: part, ..embedding }),
        Op::VocabParallelStats(loss),
        Op::VocabParallelCrossEntropy(VocabParallelCrossEntropy { part: loss, ranks: 3, scale: 0.5, gradient }),
        Op::AdamW(adamw),
        Op::AdamW(AdamW { copy: None, ..adamw }),
        Op::Dropout(Dropout { len, p: 0.3, seed: 5, first: 7, dtype }),
        Op::Normal(Normal { len, std: 0.02, seed: 5, first: 7, dtype }),
        Op::Fill(Elementwise { sources: 0, ..one(dtype, dtype) }, 1.5),
        Op::Cast(one(dtype, f)),
        Op::Cast(one(f, dtype)),
        Op::Cast(one(dtype, dtype)),
        Op::Add(Elementwise { sources: 2, ..one(dtype, dtype) }),
        Op::Accumulate(one(dtype, f), 0.5),
        Op::Scale(one(dtype, dtype), 0.5),
        Op::Sum(one(dtype, DType::F64)),
        Op::SumSquares(one(dtype, DType::F64)),
        Op::Reduce(Reduce { len, sources: 3, op: ReduceOp::Avg, accumulate: true, from: dtype, to: f }),
        Op::Route(route),
        Op::RouteBackward(route),
        Op::Dispatch(slots),
        Op::Combine(combine(true)),
        Op::Combine(combine(false)),
        Op::RouterWeightBackward(slots),
    ];
    all.extend(ReduceOp::ALL.iter().zip([1, 2, 3, 5, 14]).map(|(op, sources)| reduce(*op, sources)));
    for format in [QuantFormat::Int8, QuantFormat::Int4] {
        all.extend([Op::Quantize(quantize(format)), Op::Dequantize(quantize(format))]);
    }
    for packing in [Packing::Nf4, Packing::Nf4Double, Packing::Int8] {
        let matrix = matrix(packing);
        all.extend([Op::Pack(Pack { matrix, len, dtype }), Op::Unpack(Unpack { matrix, dtype })]);
    }
    all.extend([Grouped::Forward, Grouped::Input, Grouped::Weight].map(grouped));
    all
}

/// Numbers of which a root can be taken, or with which other numbers are scaled.
fn positive(dtype: DType, len: usize, seed: u64) -> Tensor {
    let values: Vec<f64> = Tensor::normal(dtype, len, seed).values().iter().map(|x| x.abs() + 0.1).collect();
    Tensor::of(dtype, &values)
}

/// Bytes that stand for codes, and f32 scales behind them, as the record of a packed matrix has them.
fn record(matrix: &Packed) -> Tensor {
    let fields = matrix.fields();
    let mut bytes: Vec<i8> = (0..fields.bytes).map(|i| (i * 37 % 251) as u8 as i8).collect();
    let floats = if matrix.packing == Packing::Nf4Double { fields.second } else { fields.scales };
    for four in bytes[floats].chunks_exact_mut(4) {
        four.copy_from_slice(&0.25f32.to_ne_bytes().map(|byte| byte as i8));
    }
    Tensor::exactly(&bytes)
}

/// Where the tokens of a route go.
fn indices(rows: usize, experts: usize, top: usize) -> Tensor {
    let route = Route { rows, experts, top, normalised: true, rounded: false, dtype: DType::F32 };
    let logits = Tensor::normal(DType::F32, rows * experts, 3);
    let mut weights = Tensor::filled(DType::F32, route.slots(), 0.0);
    let mut indices = Tensor::ids(&vec![0; route.indices_len()]);
    let writes = &mut [weights.view_mut(), indices.view_mut()];
    CPUS[0].run(&Op::Route(route), &[logits.view()], writes, no_scratch()).unwrap();
    indices
}

/// What an operation is given in the place of an operand that it reads.
fn given(op: &Op, operand: &Operand, seed: u64) -> Tensor {
    let below = |count: usize| Tensor::ids(&(0..operand.len).map(|i| (i * 7 % count) as u32).collect::<Vec<_>>());
    match (op, operand.name, operand.elements) {
        (Op::Embedding(e) | Op::EmbeddingBackward(e), "ids", _) => below(e.vocab.vocab_size),
        (Op::CrossEntropy(c), "targets", _) => below(c.vocab),
        (
            Op::VocabParallelStats(l) | Op::VocabParallelCrossEntropy(VocabParallelCrossEntropy { part: l, .. }),
            "targets",
            _,
        ) => below(l.vocab.vocab_size),
        // Of the sums a logarithm is taken.
        (Op::VocabParallelCrossEntropy(l), "statistics", _) => positive(l.part.dtype, operand.len, seed),
        // Every sequence is one document.
        (_, "starts", _) => Tensor::ids(&vec![0; operand.len]),
        (Op::RouteBackward(r), "indices", _) => indices(r.rows, r.experts, r.top),
        (Op::Dispatch(s) | Op::RouterWeightBackward(s) | Op::Combine(Combine { slots: s, .. }), "indices", _) => {
            indices(s.rows, s.experts, s.top)
        }
        (Op::GroupedGemm(g), "offsets", _) => {
            // Groups of all sizes; one at least has no row where they are more than the rows.
            Tensor::ids(&(0..=g.groups).map(|i| (g.rows * i / g.groups) as u32).collect::<Vec<_>>())
        }
        (Op::Unpack(u), "record", _) => record(&u.matrix),
        (Op::GemmPrepacked(gemm), "b", _) => {
            let b = Tensor::normal(gemm.b, gemm.k * gemm.n, seed);
            let mut to = Tensor::filled(DType::F32, CPUS[0].prepacked_len(gemm).unwrap(), f64::NAN);
            CPUS[0].run(&Op::Prepack(*gemm), &[b.view()], &mut [to.view_mut()], no_scratch()).unwrap();
            to
        }
        (_, _, Elements::Exactly(DType::I8)) => {
            Tensor::exactly(&(0..operand.len).map(|i| (i * 37 % 251) as u8 as i8).collect::<Vec<_>>())
        }
        (_, _, Elements::Exactly(dtype)) => positive(dtype, operand.len, seed),
        (Op::AdamW(_), "v", Elements::Floats(dtype)) => positive(dtype, operand.len, seed),
        (_, _, Elements::Floats(dtype)) => Tensor::normal(dtype, operand.len, seed),
        (Op::Reduce(r), _, Elements::AnyFloats) => Tensor::normal(r.from, operand.len, seed),
        (_, _, Elements::AnyFloats) => Tensor::normal(DType::F32, operand.len, seed),
    }
}

/// What an operand that is written holds before: random data if it is updated, else what no kernel leaves there.
fn before(op: &Op, operand: &Operand, seed: u64, pattern: u8) -> Tensor {
    let len = match op {
        Op::Prepack(gemm) => CPUS[0].prepacked_len(gemm).unwrap(),
        _ => operand.len,
    };
    match operand.elements {
        _ if operand.access == Access::Update => given(op, operand, seed),
        Elements::Exactly(DType::I8) => Tensor::exactly(&vec![pattern as i8; len]),
        Elements::Exactly(DType::U32) => Tensor::ids(&vec![u32::from(pattern) * 0x0101_0101; len]),
        Elements::Exactly(dtype) | Elements::Floats(dtype) => Tensor::filled(dtype, len, f64::NAN),
        Elements::AnyFloats => Tensor::filled(DType::F32, len, f64::NAN),
    }
}

/// Runs the operation once, with `pattern` in what it writes of integers; the operands that it wrote.
fn written(kernels: &dyn Kernels, op: &Op, optional: bool, pattern: u8) -> Vec<Tensor> {
    let (case, operands) = (format!("{op:?} on {}", kernels.name()), op.operands());
    let count = if let Op::Reduce(r) = op { r.sources } else { 1 };
    let read = operands.reads().iter().filter(|operand| optional || !operand.is_optional);
    let reads: Vec<Tensor> = read
        .flat_map(|operand| (0..count).map(move |i| (operand, i)))
        .enumerate()
        .map(|(seed, (operand, _))| given(op, operand, seed as u64))
        .collect();
    let seeds = 100..;
    let mut writes: Vec<Tensor> =
        operands.writes().iter().zip(seeds).map(|(operand, seed)| before(op, operand, seed, pattern)).collect();
    let kept = reads.clone();
    let views: Vec<View<'_>> = reads.iter().map(Tensor::view).collect();
    let result = match op {
        Op::Sum(_) | Op::SumSquares(_) => kernels.sum_async(op, views[0]).and_then(|sum| {
            let mut value = [f64::NAN];
            kernels.read_scalars(&[sum], &mut value)?;
            assert!(value[0].is_finite(), "{case}: the sum is {}", value[0]);
            Ok(())
        }),
        _ => {
            let mut scratch = Tensor::workspace(kernels, op);
            let mut targets: Vec<ViewMut<'_>> = writes.iter_mut().map(Tensor::view_mut).collect();
            kernels.run(op, &views, &mut targets, scratch.view_mut())
        }
    };
    result.and_then(|()| kernels.synchronize()).unwrap_or_else(|error| panic!("{case}: {error}"));
    for ((kept, after), number) in kept.iter().zip(&reads).zip(0..) {
        assert_eq!(kept.bits(), after.bits(), "{case}: operand {number} that it reads has changed");
    }
    for (operand, tensor) in operands.writes().iter().zip(&writes) {
        if tensor.dtype.is_float() {
            let missing = tensor.values().iter().position(|x| x.is_nan());
            assert_eq!(missing, None, "{case}: {} is not written there", operand.name);
        }
    }
    writes
}

/// Integers are any number before and after: what does not depend on what was there before has been written.
fn check(kernels: &dyn Kernels, op: &Op) {
    let optional = op.operands().reads().iter().any(|operand| operand.is_optional);
    for optional in [false, true].into_iter().take(if optional { 2 } else { 1 }) {
        let [one, other] = [0x55, 0xaa].map(|pattern| written(kernels, op, optional, pattern));
        for ((operand, one), other) in op.operands().writes().iter().zip(one).zip(other) {
            let name = operand.name;
            assert_eq!(one.bits(), other.bits(), "{op:?} on {}: {name} is not all written", kernels.name());
        }
    }
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn operations_write_all_of_their_results_and_no_inputs(sizes in sizes()) {
        let operations = operations(sizes);
        let mut seen = [false; VARIANTS];
        for op in &operations {
            seen[variant(op)] = true;
            CPUS.iter().chain(PLAINER.iter()).for_each(|cpu| check(cpu, op));
            // CUDA's kernels read no prepacked matrices: `prepacked_len` says that making them does not pay.
            if !matches!(op, Op::Prepack(_) | Op::GemmPrepacked(_)) {
                CUDAS.iter().for_each(|cuda| check(cuda, op));
            }
        }
        prop_assert_eq!(seen.iter().position(|seen| !seen), None, "a variant without an operation");
    }
}
