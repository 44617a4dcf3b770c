//! Attention over all heads of a model, or over those that a rank has.

use super::elements;
use crate::DType;

/// Scaled dot-product attention. `q`, `out` are `[batch*seq, heads*head_dim]`, `k`, `v` are `[batch*kv_seq, kv_heads*head_dim]`;
/// query head `h` reads key head `h / (heads/kv_heads)`.
///
/// Decoders use it causally: a query sees the keys up to its own, optionally of a sliding window, of its document and with ALiBi.
/// Encoders and cross-attention use it without: a query sees every key of its sequence, and there may be more or fewer keys
/// than queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    pub batch: usize,
    /// Queries of a sequence.
    pub seq: usize,
    /// Keys and values of a sequence; as many as queries where it is causal.
    pub kv_seq: usize,
    /// A query sees no key after its own; else it sees all. A window, ALiBi and documents need it.
    pub causal: bool,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Factor on the scores before the softmax.
    pub scale: f64,
    /// A query sees this many keys, its own the last; `None` = all up to its own.
    pub window: Option<usize>,
    /// Adds `slope * (key - query)` to the scaled scores, with the slope of [`alibi_slope`] for each head.
    pub alibi: Option<AlibiHeads>,
    /// Type of q, k, v, out; log-sum-exp is f32 (f64 for f64).
    pub dtype: DType,
}

impl Attention {
    /// Elements of q and of the output.
    pub fn queries(&self) -> usize {
        elements(&[self.batch, self.seq, self.heads, self.head_dim])
    }

    /// Elements of k and of v.
    pub fn keys(&self) -> usize {
        elements(&[self.batch, self.kv_seq, self.kv_heads, self.head_dim])
    }

    /// Rows of all matrices of scores, and elements of the log-sum-exp.
    pub fn rows(&self) -> usize {
        elements(&[self.batch, self.heads, self.seq])
    }

    /// The keys that the query at `row` sees.
    pub fn seen(&self, row: usize) -> std::ops::Range<usize> {
        if !self.causal {
            return 0..self.kv_seq;
        }
        (row + 1).saturating_sub(self.window.unwrap_or(usize::MAX))..row + 1
    }

    /// ALiBi's slope of a query head; 0 without ALiBi.
    pub fn slope(&self, head: usize) -> f64 {
        self.alibi.map_or(0.0, |alibi| alibi_slope(alibi.first + head, alibi.heads))
    }
}

/// Which of a model's heads an operation has: all, or a rank's part where ranks share them (tensor parallelism). ALiBi's slope of a
/// head depends on its number in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlibiHeads {
    /// Number of the operation's first query head in the model.
    pub first: usize,
    /// Query heads of the whole model.
    pub heads: usize,
}

impl AlibiHeads {
    pub const fn whole(heads: usize) -> AlibiHeads {
        AlibiHeads { first: 0, heads }
    }
}

/// ALiBi's slope of a head: the geometric sequence `2^(-8 i / n)` where the number of heads `n` is a power of two; else
/// that of the power below, then every other slope of the power above (Press et al. 2022, as BLOOM and MPT have it).
pub fn alibi_slope(head: usize, heads: usize) -> f64 {
    let below = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    match head.checked_sub(below) {
        None => (-8.0 * (head + 1) as f64 / below as f64).exp2(),
        Some(extra) => (-4.0 * (2 * extra + 1) as f64 / below as f64).exp2(),
    }
}
