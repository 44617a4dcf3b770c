//! Attention: by tiles, at the rate that its kernels' generation reaches; or with scores in memory.

use super::{Product, Roofline};
use crate::job::{Attention, Number};

/// One attention call on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    /// Sequences.
    pub batch: f64,
    /// Query heads.
    pub heads: f64,
    /// Elements of a query head.
    pub width: f64,
    /// Elements of a value head.
    pub value_width: f64,
    /// Tokens that ask.
    pub queries: f64,
    /// Tokens that each of them may see (all, or the window).
    pub keys: f64,
    /// A token sees those before it alone.
    pub causal: bool,
    /// Scores pass through dropout.
    pub dropout: bool,
    /// Scale, mask and softmax are one kernel where scores are in memory.
    pub fused_softmax: bool,
}

impl Heads {
    /// FLOPs of forward that need be done: half of the square where attention is causal.
    pub fn flops(&self) -> f64 {
        let square = 2.0 * self.batch * self.heads * self.queries * self.keys * (self.width + self.value_width);
        if self.causal { square / 2.0 } else { square }
    }
}

/// What products reach of the peak on the devices of kernels.csv: A100, and H100.
const USUAL: f64 = 0.869;
const USUAL_HOT: f64 = 0.803;

/// Between the shares of head 64 and 128 in log2; flat outside 32 and 256, and a head of 256 gains half as much again.
fn by_width(width: f64, at_64: f64, at_128: f64) -> f64 {
    let position = (width.clamp(32.0, 256.0) / 64.0).log2();
    let slope = at_128 / at_64;
    at_64 * if position <= 1.0 { slope.powf(position) } else { slope * slope.powf(0.5 * (position - 1.0)) }
}

impl Roofline<'_> {
    /// Seconds of forward and of backward.
    pub fn attention(&self, call: Heads, kernel: Attention, form: Number) -> (f64, f64) {
        match kernel {
            Attention::Flash(generation) => self.tiled(call, generation, form),
            Attention::Naive => self.scores(call, form),
        }
    }

    fn tiled(&self, call: Heads, generation: u8, form: Number) -> (f64, f64) {
        let t = self.tuning;
        let peak = self.peak(form);
        let units = self.device.units.max(1) as f64;
        // The shares were measured on devices whose products reach so much of the peak: attention's cannot reach more on
        // a device where they reach less.
        let (_, reached) = self.rate(form);
        let usual = if self.hot() { USUAL_HOT } else { USUAL };
        let peak = peak * (reached / usual).min(1.0);
        let legacy = peak.min(units * t.legacy_unit);
        let top = match generation {
            0 | 1 => legacy * by_width(call.width, t.flash1_64, t.flash1_128),
            2 => legacy * by_width(call.width, t.flash2_64, t.flash2_128).min(t.flash2_128),
            _ if self.hot() => peak * by_width(call.width, t.flash3_64, t.flash3_128),
            // A third generation needs Hopper; before it the second one runs.
            _ => legacy * by_width(call.width, t.flash2_64, t.flash2_128).min(t.flash2_128),
        };
        let half = if call.causal { t.flash_length_causal } else { t.flash_length };
        let tiles = (call.batch * call.heads * (call.queries / 128.0).ceil()).max(1.0);
        let waves = tiles / units;
        let filled = waves / (0.5 * waves.ceil() + 0.5 * waves.max(1.0));
        let rate = top * call.keys / (call.keys + half) * filled;
        let moved = 2.0 * form.bytes() * call.batch * call.heads * call.queries * (call.width + call.value_width);
        let forward = (call.flops() / rate).max(moved / self.bandwidth()).max(self.device.launch);
        let backward = (2.5 * call.flops() / (rate * t.flash_backward)).max(2.5 * moved / self.bandwidth());
        (forward, backward.max(2.0 * self.device.launch))
    }

    /// Scores in memory: the whole square is computed whatever the mask.
    fn scores(&self, call: Heads, form: Number) -> (f64, f64) {
        let count = call.batch * call.heads;
        let bytes = form.bytes();
        let product = |m, n, k| {
            let all = Product { m, n, k, count, out_bytes: bytes };
            self.product(all, form) / self.tuning.batched
        };
        let elements = count * call.queries * call.keys;
        // Forward beside both products: one kernel reads and writes, or scale, mask and softmax do so each; dropout reads,
        // writes and keeps a byte.
        let softmax = if call.fused_softmax { 2.0 * bytes } else { (if call.causal { 6.0 } else { 4.0 }) * bytes };
        let drop = if call.dropout { 2.0 * bytes + 1.0 } else { 0.0 };
        let forward = product(call.queries, call.keys, call.width)
            + self.pass(elements * (softmax + drop))
            + product(call.queries, call.value_width, call.keys);
        let softmax_back = softmax + bytes;
        let backward = product(call.queries, call.keys, call.value_width)
            + product(call.keys, call.value_width, call.queries)
            + self.pass(elements * (softmax_back + drop))
            + product(call.queries, call.width, call.keys)
            + product(call.keys, call.width, call.queries);
        (forward, backward)
    }
}
