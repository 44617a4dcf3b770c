//! The time of one operation on a device: the slower of what its units compute and what its memory moves, with what
//! tiles, waves and short sums cost.

use crate::job::Number;
use crate::machine::Device;
use crate::tuning::Tuning;

mod attention;
#[cfg(test)]
mod tests;

pub use attention::Heads;

/// A device with the constants that its operations are priced by.
#[derive(Clone, Copy, Debug)]
pub struct Roofline<'a> {
    /// The device.
    pub device: &'a Device,
    /// The constants.
    pub tuning: &'a Tuning,
}

/// A product of `m` by `k` and `k` by `n`, `count` times side by side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// Rows of the result.
    pub m: f64,
    /// Columns of the result.
    pub n: f64,
    /// Length of the sums.
    pub k: f64,
    /// Independent products of one kernel.
    pub count: f64,
    /// Bytes of an element of the result, with what is read to be added to.
    pub out_bytes: f64,
}

/// Tiles that libraries choose from, and the share of the best rate that each can reach: smaller ones read their
/// operands more often.
const TILES: [(f64, f64, f64); 5] =
    [(256.0, 128.0, 1.0), (128.0, 256.0, 1.0), (128.0, 128.0, 0.94), (128.0, 64.0, 0.78), (64.0, 64.0, 0.55)];

/// Ways to split a sum over units when the result has too few tiles.
const SPLITS: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];

impl Roofline<'_> {
    /// Whether the device is of the generations that meet their power limit in products (Hopper and later): more than
    /// 4 TFLOP/s of 16-bit products per unit.
    pub fn hot(&self) -> bool {
        self.peak(Number::Bf16) > 4e12 * self.device.units.max(1) as f64
    }

    /// The rate by which a form of numbers is computed: its own, or of the form that a device without it falls back to.
    fn rate(&self, form: Number) -> (f64, f64) {
        let order: &[Number] = match form {
            Number::Fp8 | Number::Int8 => &[Number::Fp8, Number::Bf16, Number::F16, Number::F32],
            Number::Bf16 | Number::Nf4 => &[Number::Bf16, Number::F16, Number::F32],
            Number::F16 => &[Number::F16, Number::Bf16, Number::F32],
            Number::Tf32 => &[Number::Tf32, Number::F32, Number::Bf16],
            Number::F32 => &[Number::F32, Number::Tf32, Number::Bf16],
        };
        let found = order.iter().find_map(|number| self.device.compute.get(number));
        found.map_or((1e12, 0.8), |rate| (rate.peak, rate.reached))
    }

    /// The rated peak of a form.
    pub fn peak(&self, form: Number) -> f64 {
        self.rate(form).0
    }

    /// What products of training reach of a form, large and even.
    pub fn sustained(&self, form: Number) -> f64 {
        let (peak, reached) = self.rate(form);
        let t = self.tuning;
        let share = match () {
            () if self.peak(Number::Bf16) > 10e12 * self.device.units.max(1) as f64 => t.sustained_hotter,
            () if self.hot() => t.sustained_hot,
            () => t.sustained,
        };
        peak * reached * share
    }

    /// Bytes per second of element-wise work.
    pub fn bandwidth(&self) -> f64 {
        self.device.bandwidth * self.device.bandwidth_reached * self.tuning.pass_reached
    }

    /// Seconds of an element-wise kernel that moves so many bytes.
    pub fn pass(&self, bytes: f64) -> f64 {
        (bytes / self.bandwidth()).max(self.device.launch)
    }

    /// Seconds of a product.
    pub fn product(&self, product: Product, form: Number) -> f64 {
        let Product { m, n, k, count, out_bytes } = product;
        if m <= 0.0 || n <= 0.0 || k <= 0.0 || count <= 0.0 {
            return 0.0;
        }
        let units = self.device.units.max(1) as f64;
        let per_unit = self.sustained(form) / units;
        let mut best = f64::INFINITY;
        for (rows, columns, share) in TILES {
            let tiles = (m / rows).ceil() * (n / columns).ceil() * count;
            let work = 2.0 * rows * columns / (per_unit * share);
            for split in SPLITS {
                let waves = (tiles * split / units).ceil();
                // Units that finish early lend a hand in part (stream-k, overlapping tails): half of the last wave.
                let waves = 0.5 * waves + 0.5 * (tiles * split / units).max(1.0);
                best = best.min(waves * work * (k / split + self.tuning.k_fill));
                if tiles >= units || k < 512.0 * split {
                    break;
                }
            }
        }
        let aligned = |x: f64| (x * form.bytes()) % 16.0 == 0.0;
        if form.bytes() < 4.0 && !(aligned(n) && aligned(k)) {
            best /= self.tuning.unaligned;
        }
        let bytes = count * ((m * k + k * n) * form.bytes() + m * n * out_bytes);
        let memory = bytes / (self.device.bandwidth * self.device.bandwidth_reached);
        best.max(memory).max(self.device.launch)
    }
}
