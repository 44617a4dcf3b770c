//! What a kernel is asked to do, as plain data. A layer states its operations as these values; the engine hands the
//! same values to a device; a plan prices them.
mod attention;
pub(crate) mod attention_mask;
mod experts;
mod vocabulary;

pub use attention::{AlibiHeads, Attention, alibi_slope};
pub use experts::{Combine, Grouped, GroupedGemm, Route, Slots};
pub use vocabulary::{CrossEntropy, Embedding, VocabParallelCrossEntropy, VocabParallelStats, VocabPart};

pub use crate::numerics::packed::{Pack, Unpack};
use crate::{DType, ReduceOp, View, ViewMut};
use serde::{Deserialize, Serialize};

/// `C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] (+ C)`, row-major, sums in f32 (f64 for f64).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// A is stored `[k,m]`.
    pub trans_a: bool,
    /// B is stored `[n,k]`.
    pub trans_b: bool,
    pub alpha: f32,
    /// Add to C instead of overwriting it.
    pub accumulate: bool,
    pub a: DType,
    pub b: DType,
    /// Type of C; a product into a narrower type is rounded once.
    pub c: DType,
    /// Elements from one row of A, as stored, to the next (BLAS's lda); 0: its rows follow each other.
    pub pitch_a: usize,
    /// The same of C (ldc). What lies between its rows stays as it is.
    pub pitch_c: usize,
}

impl Gemm {
    /// Of f32, nothing transposed, alpha 1, overwriting C, rows that follow each other: for literals that name what differs.
    pub const DENSE: Gemm = Gemm {
        m: 0,
        n: 0,
        k: 0,
        trans_a: false,
        trans_b: false,
        alpha: 1.0,
        accumulate: false,
        a: DType::F32,
        b: DType::F32,
        c: DType::F32,
        pitch_a: 0,
        pitch_c: 0,
    };

    /// Rows and columns of A as stored, and the distance of its rows.
    pub fn stored_a(&self) -> [usize; 3] {
        let [rows, columns] = if self.trans_a { [self.k, self.m] } else { [self.m, self.k] };
        [rows, columns, if self.pitch_a == 0 { columns } else { self.pitch_a }]
    }

    /// The same of C.
    pub fn stored_c(&self) -> [usize; 3] {
        [self.m, self.n, if self.pitch_c == 0 { self.n } else { self.pitch_c }]
    }

    /// Whether the rows of all operands follow each other.
    pub fn is_dense(&self) -> bool {
        [self.stored_a(), self.stored_c()].iter().all(|[_, columns, pitch]| columns == pitch)
    }
}

/// Root-mean-square normalisation of `rows` vectors of `cols`: `y = w * x / sqrt(mean(x^2) + eps)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    pub rows: usize,
    pub cols: usize,
    pub eps: f64,
    /// Type of x, w and y; the saved `rstd` is f32 (f64 for f64).
    pub dtype: DType,
    /// Type of the weight's gradient; backward only. `None` when the weight is frozen.
    pub gradient: Option<DType>,
}

/// Normalisation to mean 0 and variance 1 of `rows` vectors of `cols`: `y = w * (x - mean) / sqrt(variance + eps) (+ b)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    pub rows: usize,
    pub cols: usize,
    pub eps: f64,
    pub bias: bool,
    /// Type of x, w, b and y; the saved statistics are f32 (f64 for f64).
    pub dtype: DType,
    /// Type of the gradients of w and b; backward only. `None` when they are frozen.
    pub gradient: Option<DType>,
}

/// `x[r] += table[r % period]`: a bias (period 1), or learned positions (period of a sequence).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BiasAdd {
    pub rows: usize,
    /// Vectors of the table that are used; row `r` reads `r % period`.
    pub period: usize,
    pub cols: usize,
    /// Type of x and table (forward), of the incoming gradient (backward).
    pub dtype: DType,
}

/// `x[r] *= w`: a factor for every column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleColumns {
    pub rows: usize,
    /// Elements of a vector, and factors.
    pub cols: usize,
    /// Type of x and w (forward), of x and the incoming gradient (backward).
    pub dtype: DType,
}

/// `s[r] = 1 / |x[r]|`, the norm being the root of the sum of squares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowInvNorm {
    pub rows: usize,
    pub cols: usize,
    /// Type of x; s is f32 (f64 for f64).
    pub dtype: DType,
}

/// Rotary position embedding of `rows` tokens in place, Hugging Face's half-split pairing: element `i` with `i + head_dim/2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rope {
    /// Tokens; row `r` stands at position `r % seq`.
    pub rows: usize,
    pub seq: usize,
    /// Heads per token.
    pub heads: usize,
    /// Elements of a head; even.
    pub head_dim: usize,
    /// Rotate back (the backward of the rotation).
    pub inverse: bool,
    /// Type of the heads; the tables are f32 (f64 for f64).
    pub dtype: DType,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// `x * (1 + erf(x / sqrt 2)) / 2`.
    Gelu,
    /// `x * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2`, "gelu_new".
    GeluTanh,
}

/// `y = act(x)` over `len` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointwiseActivation {
    pub len: usize,
    pub act: Activation,
    pub dtype: DType,
}

/// `y = act(gate) * up` over `len` elements; the function is SiLU unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatedActivation {
    pub len: usize,
    pub act: Activation,
    pub dtype: DType,
}

/// One AdamW step with decoupled weight decay over `len` elements, in this order:
/// `g = grad * grad_scale * clip; p -= lr * weight_decay * p; m += (1-beta1)(g-m); v = beta2 v + (1-beta2) g^2;
/// p -= lr/(1-beta1^step) * m / (sqrt(v)/sqrt(1-beta2^step) + eps)`. Arithmetic in f32 (f64 for f64).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    pub len: usize,
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    pub weight_decay: f64,
    /// Steps done, this one included: 1 for the first.
    pub step: u64,
    /// Turns the sum of gradients into their mean.
    pub grad_scale: f64,
    /// Clip factor, 1 when the norm is below the limit.
    pub clip: f64,
    /// Type of the parameters, or of the master weights.
    pub parameters: DType,
    pub gradients: DType,
    pub moments: DType,
    /// How the updated parameters are rounded to their type.
    pub rounding: Rounding,
    /// Where the updated parameters are also written in another type, rounded to the nearest: that type. What layers read,
    /// where the parameters here are master weights.
    pub copy: Option<DType>,
}

/// How results are rounded to the type they are stored in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest, ties to even.
    #[default]
    Nearest,
    /// To one of the two neighbours, by chance, so that the mean is right; for 16-bit types only. The draw is a function of
    /// (seed, first + index, step) alone.
    Stochastic {
        /// Philox key.
        seed: u64,
        /// Index of the first element in the whole tensor.
        first: u64,
    },
}

/// Element-wise traffic: fill, cast, add, accumulate, scale, sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elementwise {
    /// Elements of the result (of the source for sums to a number).
    pub len: usize,
    pub sources: usize,
    pub from: DType,
    pub to: DType,
}

/// `dst = (dst +) s0 op s1 op ...`, element by element as a balanced tree in the order given: pairs, then pairs of pairs, the odd
/// one carried up.
///
/// Floats, whose types may differ, are joined in f32 (f64 when any of them is f64) and rounded once into `dst`; an average is the
/// sum times `1/n`, rounded to that type too. The smaller or larger of a number and a NaN is the number. Integers have one type,
/// wrap around, and their average is the quotient of the exact sum, cut off towards zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduce {
    pub len: usize,
    pub sources: usize,
    pub op: ReduceOp,
    /// Add to `dst`, for sums and averages of floats.
    pub accumulate: bool,
    /// Type of the first source.
    pub from: DType,
    pub to: DType,
}

/// `y = x * keep / (1-p)`, where `keep` is a function of (seed, first + index) alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    pub len: usize,
    /// Chance of a zero, `0 <= p < 1`.
    pub p: f64,
    /// Philox key.
    pub seed: u64,
    /// Index of the first element in the whole batch's tensor, so that ranks agree with one rank.
    pub first: u64,
    pub dtype: DType,
}

/// `dst[i] = std * normal(seed, first + i)`: the same value for an element whoever draws it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normal {
    pub len: usize,
    pub std: f64,
    /// Philox key.
    pub seed: u64,
    /// Index of the first element in the whole tensor.
    pub first: u64,
    /// Type of dst; drawn in f32, rounded once.
    pub dtype: DType,
}

/// The integers that block quantisation stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuantFormat {
    /// -127 to 127, a byte each.
    Int8,
    /// -7 to 7, two to a byte: of an even and the odd element after it, the even one in the low four bits.
    Int4,
}

impl QuantFormat {
    /// The name used in configurations and records.
    pub const fn name(self) -> &'static str {
        match self {
            QuantFormat::Int8 => "int8",
            QuantFormat::Int4 => "int4",
        }
    }

    /// The largest integer; the smallest is its negative.
    pub const fn limit(self) -> i32 {
        match self {
            QuantFormat::Int8 => 127,
            QuantFormat::Int4 => 7,
        }
    }
}

impl std::fmt::Display for QuantFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Symmetric quantisation of a flat buffer, block by block, as ZeRO++ sends weights and gradients. A block's scale is its
/// largest magnitude divided by [`QuantFormat::limit`], in f32 (the number below where the way back would overflow); a
/// value is `x * (1/scale)` in f32, rounded to the nearest integer, ties to even; it stands for `value * scale`.
///
/// A block of zeros, or of numbers so small that the scale would not be a normal f32 (below 1.5e-36 for int8), has scale 0
/// and values 0. A block that holds an infinity or a NaN has scale NaN and values 0: it comes back as NaN throughout, so
/// that a run which diverged is seen to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quantize {
    /// What a value is stored as.
    pub format: QuantFormat,
    /// Elements that share a scale; the last block of a buffer may be shorter. At least 1.
    pub block: usize,
}

impl Quantize {
    /// Elements of i8 that the values of `len` elements take.
    pub const fn values_len(&self, len: usize) -> usize {
        match self.format {
            QuantFormat::Int8 => len,
            QuantFormat::Int4 => len.div_ceil(2),
        }
    }

    /// Blocks, and so scales, of `len` elements. 0 where `block` is 0, which no kernel accepts.
    pub const fn scales_len(&self, len: usize) -> usize {
        if self.block == 0 { 0 } else { len.div_ceil(self.block) }
    }

    /// The scale of a block whose largest magnitude is given.
    pub fn scale(&self, largest: f32) -> f32 {
        if !largest.is_finite() {
            return f32::NAN;
        }
        let limit = self.format.limit() as f32;
        let scale = largest / limit;
        if scale < f32::MIN_POSITIVE {
            return 0.0;
        }
        if (scale * limit).is_finite() { scale } else { scale.next_down() }
    }
}

/// A flat buffer quantised by [`Quantize`], or the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizeBlocks {
    pub by: Quantize,
    pub len: usize,
    /// Type of the floats: f32, bf16 or f16. Arithmetic in f32, rounded once.
    pub dtype: DType,
    /// The way back adds to `dst` instead of overwriting it.
    pub accumulate: bool,
}

/// Elements from the first to the last of a matrix: its rows, its columns, and the distance of its rows.
pub(crate) fn spread([rows, columns, pitch]: [usize; 3]) -> usize {
    if columns == 0 {
        0
    } else {
        rows.checked_sub(1).map_or(0, |rows| rows.saturating_mul(pitch).saturating_add(columns))
    }
}

/// The product of a shape; one that overflows is longer than any buffer.
pub(crate) fn elements(shape: &[usize]) -> usize {
    if shape.contains(&0) { 0 } else { shape.iter().fold(1, |n, d| usize::saturating_mul(n, *d)) }
}

/// One call of a kernel, without its operands, which [`Op::operands`] lists.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    Gemm(Gemm),
    /// B of a product brought into the form that products read.
    Prepack(Gemm),
    /// Matrix product with such a B.
    GemmPrepacked(Gemm),
    RmsNorm(RmsNorm),
    RmsNormBackward(RmsNorm),
    LayerNorm(LayerNorm),
    LayerNormBackward(LayerNorm),
    BiasAdd(BiasAdd),
    BiasAddBackward(BiasAdd),
    ScaleColumns(ScaleColumns),
    /// The factors' gradient; that of x is the same product.
    ScaleColumnsBackward(ScaleColumns),
    RowInvNorm(RowInvNorm),
    Rope(Rope),
    /// Tiled attention with online softmax.
    Attention(Attention),
    /// Its backward by recomputation.
    AttentionBackward(Attention),
    /// Attention that stores its probabilities.
    NaiveAttention(Attention),
    NaiveAttentionBackward(Attention),
    GatedActivation(GatedActivation),
    GatedActivationBackward(GatedActivation),
    PointwiseActivation(PointwiseActivation),
    PointwiseActivationBackward(PointwiseActivation),
    Embedding(Embedding),
    /// Scatter-add into the table's gradient.
    EmbeddingBackward(Embedding),
    CrossEntropy(CrossEntropy),
    VocabParallelStats(VocabParallelStats),
    VocabParallelCrossEntropy(VocabParallelCrossEntropy),
    AdamW(AdamW),
    /// Dropout or its backward (the same mask).
    Dropout(Dropout),
    Normal(Normal),
    Fill(Elementwise, f64),
    /// Change of type, or copy.
    Cast(Elementwise),
    /// `dst = a + b`.
    Add(Elementwise),
    /// `dst += alpha * src`.
    Accumulate(Elementwise, f64),
    /// `dst *= alpha`.
    Scale(Elementwise, f64),
    Sum(Elementwise),
    /// Sum of squares to a number.
    SumSquares(Elementwise),
    Reduce(Reduce),
    Quantize(QuantizeBlocks),
    /// The way back.
    Dequantize(QuantizeBlocks),
    /// A part of a matrix in few bits.
    Pack(Pack),
    /// A matrix kept in few bits as floats.
    Unpack(Unpack),
    Route(Route),
    /// The gradient of the router's logits.
    RouteBackward(Route),
    /// Rows to their experts.
    Dispatch(Slots),
    /// Rows of experts back to their tokens.
    Combine(Combine),
    RouterWeightBackward(Slots),
    GroupedGemm(GroupedGemm),
}

impl Elementwise {
    /// The shape of an operation whose result is `dst`.
    pub(crate) fn new(sources: usize, from: DType, dst: &ViewMut<'_>) -> Elementwise {
        Elementwise { len: dst.len(), sources, from, to: dst.dtype() }
    }
}

impl Op {
    /// `dst[i] = value`.
    pub fn fill(dst: &ViewMut<'_>, value: f64) -> Op {
        Op::Fill(Elementwise::new(0, dst.dtype(), dst), value)
    }

    /// `dst = src`, in the type of `dst`.
    pub fn cast(src: &View<'_>, dst: &ViewMut<'_>) -> Op {
        Op::Cast(Elementwise::new(1, src.dtype(), dst))
    }

    /// `dst += alpha * src`.
    pub fn accumulate(alpha: f64, src: &View<'_>, dst: &ViewMut<'_>) -> Op {
        Op::Accumulate(Elementwise::new(1, src.dtype(), dst), alpha)
    }

    /// `dst *= alpha`.
    pub fn scale(alpha: f64, dst: &ViewMut<'_>) -> Op {
        Op::Scale(Elementwise::new(1, dst.dtype(), dst), alpha)
    }

    pub const fn sum(len: usize, from: DType) -> Op {
        Op::Sum(Elementwise { len, sources: 1, from, to: DType::F64 })
    }

    pub const fn sum_squares(len: usize, from: DType) -> Op {
        Op::SumSquares(Elementwise { len, sources: 1, from, to: DType::F64 })
    }

    /// Type of the floats that the operation quantises or makes of codes.
    pub(crate) fn quantised(&self) -> Option<DType> {
        match self {
            Op::Quantize(q) | Op::Dequantize(q) => Some(q.dtype),
            Op::Pack(p) => Some(p.dtype),
            Op::Unpack(u) => Some(u.dtype),
            _ => None,
        }
    }
}
