//! What an operation costs, for plans and for shares of a ceiling: functions of its shape alone.

use crate::DType;
use crate::backend::operands::{Access, Operands};
use crate::op::*;

impl Op {
    /// The kernel's name, as in errors and records.
    pub const fn name(&self) -> &'static str {
        match self {
            Op::Gemm(_) => "gemm",
            Op::Prepack(_) => "prepack",
            Op::GemmPrepacked(_) => "gemm_prepacked",
            Op::RmsNorm(_) => "rms_norm",
            Op::RmsNormBackward(_) => "rms_norm_backward",
            Op::LayerNorm(_) => "layer_norm",
            Op::LayerNormBackward(_) => "layer_norm_backward",
            Op::BiasAdd(_) => "add_rows",
            Op::BiasAddBackward(_) => "add_rows_backward",
            Op::ScaleColumns(_) => "mul_rows",
            Op::ScaleColumnsBackward(_) => "mul_rows_backward",
            Op::RowInvNorm(_) => "inverse_norms",
            Op::Rope(_) => "rope",
            Op::Attention(_) => "attention",
            Op::AttentionBackward(_) => "attention_backward",
            Op::NaiveAttention(_) => "naive_attention",
            Op::NaiveAttentionBackward(_) => "naive_attention_backward",
            Op::GatedActivation(_) => "swiglu",
            Op::GatedActivationBackward(_) => "swiglu_backward",
            Op::PointwiseActivation(_) => "activate",
            Op::PointwiseActivationBackward(_) => "activate_backward",
            Op::Embedding(_) => "embedding",
            Op::EmbeddingBackward(_) => "embedding_backward",
            Op::CrossEntropy(_) => "cross_entropy",
            Op::VocabParallelStats(_) => "loss_parts",
            Op::VocabParallelCrossEntropy(_) => "loss_of_parts",
            Op::AdamW(_) => "adamw",
            Op::Dropout(_) => "dropout",
            Op::Normal(_) => "normal",
            Op::Fill(..) => "fill",
            Op::Cast(_) => "cast",
            Op::Add(_) => "add",
            Op::Accumulate(..) => "accumulate",
            Op::Scale(..) => "scale",
            Op::Sum(_) => "sum",
            Op::SumSquares(_) => "sum_squares",
            Op::Reduce(_) => "reduce",
            Op::Quantize(_) => "quantize",
            Op::Dequantize(_) => "dequantize",
            Op::Pack(_) => "pack",
            Op::Unpack(_) => "unpack",
            Op::Route(_) => "route",
            Op::RouteBackward(_) => "route_backward",
            Op::Dispatch(_) => "dispatch",
            Op::Combine(_) => "combine",
            Op::RouterWeightBackward(_) => "weigh",
            Op::GroupedGemm(_) => "grouped_gemm",
        }
    }

    /// Floating-point operations of the matrix products: two for each multiply-add, `2 m n k` for a product. Causal
    /// attention counts half of the scores' square, `2 B H D S^2` for the two products of forward (Megatron-LM's
    /// convention), other attention every pair of a query and a key; a backward which computes the scores again counts 2.5
    /// times as much as forward. Element-wise work counts 0.
    pub fn flops(&self) -> u64 {
        match self {
            Op::AttentionBackward(a) => product(&[5, attention(a)]),
            _ => self.model_flops(),
        }
    }

    /// As [`Op::flops`] without what is computed a second time: backward is twice forward.
    pub fn model_flops(&self) -> u64 {
        match self {
            Op::Gemm(g) | Op::GemmPrepacked(g) => product(&[2, g.m as u64, g.n as u64, g.k as u64]),
            Op::GroupedGemm(g) => product(&[2, g.rows as u64, g.out as u64, g.input as u64]),
            Op::Attention(a) | Op::NaiveAttention(a) => product(&[2, attention(a)]),
            Op::AttentionBackward(a) | Op::NaiveAttentionBackward(a) => product(&[4, attention(a)]),
            _ => 0,
        }
    }

    /// Bytes that must move between memory and the device at least once: every operand read, every result written.
    pub fn bytes(&self) -> u64 {
        let sizes: &[(DType, u64)] = match self {
            // What B is packed into takes as much as B.
            Op::Prepack(g) => &[(g.b, product(&[2, g.n as u64, g.k as u64]))],
            Op::GemmPrepacked(g) => return Op::Gemm(*g).bytes(),
            // Of a table the rows where a token stands.
            Op::Embedding(e) => &[(e.dtype, product(&[2, e.rows as u64, e.cols as u64])), (DType::U32, e.rows as u64)],
            Op::EmbeddingBackward(e) => {
                &[(e.dtype, product(&[3, e.rows as u64, e.cols as u64])), (DType::U32, e.rows as u64)]
            }
            // The gradient takes the place of the logits in its own type.
            Op::CrossEntropy(c) => {
                let (logits, rows) = (product(&[c.rows as u64, c.vocab as u64]), c.rows as u64);
                &[(c.dtype, logits), (c.gradient, logits), (c.dtype, rows), (DType::U32, rows)]
            }
            // Padding is not read, and has a gradient all the same.
            Op::VocabParallelStats(l) => {
                let (rows, numbers) = (l.rows as u64, product(&[VocabParallelStats::NUMBERS as u64, l.rows as u64]));
                let logits = product(&[rows, l.vocab.valid() as u64]);
                &[(l.dtype, logits), (l.dtype.accumulator(), numbers), (DType::U32, rows)]
            }
            Op::VocabParallelCrossEntropy(VocabParallelCrossEntropy { part: l, ranks, gradient, .. }) => {
                let rows = l.rows as u64;
                let logits = (l.dtype, product(&[rows, l.vocab.valid() as u64]));
                let numbers = product(&[*ranks as u64, VocabParallelStats::NUMBERS as u64, rows]);
                let gradients = (*gradient, product(&[rows, l.vocab.len as u64]));
                &[logits, gradients, (l.dtype.accumulator(), numbers), (l.dtype, rows), (DType::U32, rows)]
            }
            Op::Reduce(r) => {
                let passes = 1 + u64::from(r.accumulate);
                &[(r.from, product(&[r.sources as u64, r.len as u64])), (r.to, product(&[passes, r.len as u64]))]
            }
            Op::Dequantize(q) => return Op::Quantize(*q).bytes(),
            // Of the indices each expert operation reads one number for a slot.
            Op::RouteBackward(r) => {
                let logits = (r.dtype, product(&[2, r.rows as u64, r.experts as u64]));
                &[logits, (r.dtype.accumulator(), r.slots() as u64), (DType::U32, r.slots() as u64)]
            }
            // A token's row is read once, however many slots it goes to.
            Op::Dispatch(s) => {
                let rows = product(&[s.rows as u64, s.top as u64 + 1, s.cols as u64]);
                &[(s.dtype, rows), (DType::U32, s.slots() as u64)]
            }
            Op::Combine(Combine { slots: s, weighted, accumulate }) => {
                let passes = (s.top as u64).saturating_add(1 + u64::from(*accumulate));
                let weights = if *weighted { s.slots() as u64 } else { 0 };
                let rows = (s.dtype, product(&[s.rows as u64, passes, s.cols as u64]));
                &[rows, (s.dtype.accumulator(), weights), (DType::U32, s.slots() as u64)]
            }
            Op::RouterWeightBackward(s) => {
                let rows = (s.dtype, product(&[4, s.slots() as u64, s.cols as u64]));
                &[rows, (s.dtype.accumulator(), product(&[2, s.slots() as u64])), (DType::U32, s.slots() as u64)]
            }
            _ => return self.operands().bytes(),
        };
        sizes.iter().fold(0, |sum, (dtype, len)| sum.saturating_add(product(&[dtype.size() as u64, *len])))
    }
}

impl Operands {
    /// Bytes of all operands that the caller must give; those that are updated count twice, read and written. A gradient
    /// whose type the operation does not say counts as one of the first operand's.
    fn bytes(&self) -> u64 {
        let all = self.reads().iter().chain(self.writes()).filter(|operand| !operand.is_optional);
        let mut first = None;
        let bytes = all.map(|operand| {
            let dtype = operand.elements.dtype().or(first).unwrap_or(DType::F32);
            first = first.or(Some(dtype));
            let passes = if operand.access == Access::Update { 2 } else { 1 };
            product(&[passes, dtype.size() as u64, operand.len as u64])
        });
        bytes.fold(0, u64::saturating_add)
    }
}

/// A product that stops at the largest number instead of wrapping.
fn product(factors: &[u64]) -> u64 {
    if factors.contains(&0) { 0 } else { factors.iter().fold(1, |p, f| u64::saturating_mul(p, *f)) }
}

/// Operations of one product of queries and keys, two for each multiply-add. A causal mask leaves half of them, and a window
/// of W keys a band: `W S - W^2/2` in place of `S^2/2`.
fn attention(a: &Attention) -> u64 {
    if !a.causal {
        return product(&[2, a.batch as u64, a.heads as u64, a.head_dim as u64, a.seq as u64, a.kv_seq as u64]);
    }
    let (seq, window) = (a.seq as u64, a.window.unwrap_or(a.seq).min(a.seq) as u64);
    let twice = seq.saturating_add(seq - window);
    product(&[a.batch as u64, a.heads as u64, a.head_dim as u64, window, twice])
}
