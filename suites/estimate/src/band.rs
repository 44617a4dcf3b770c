//! How far predictions of a kind were from what others published: a band around a prediction in which most results lie.
//!
//! Derived from tests/published by `zbench_predict::published::score::Residuals`, which a test there repeats: of all scored rows the
//! ratio of the published to the predicted value; each family of rows counts once, however many rows it has, since the next
//! job is one of a new family; the band runs from the 10th to the 90th percentile. Rows that formulas state (model state, a
//! block's activations) are not in it: they are exact.

/// A band, as factors of a prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// What it is of.
    pub of: &'static str,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// Share of the rows, each family counted once, that lie in it.
    pub share: f64,
    /// Mean share of a family's rows that lie in the band of all other families.
    pub left_out: f64,
    /// Rows it is derived from.
    pub rows: usize,
    /// Families of them.
    pub families: usize,
}

/// Of measured peaks of memory on a device.
pub const MEMORY: Band =
    Band { of: "peaks of memory", low: 0.944, high: 1.148, share: 0.8, left_out: 0.786, rows: 121, families: 8 };

/// Of speeds: tokens per second, FLOP/s, one over the time of a step.
pub const SPEED: Band =
    Band { of: "speeds", low: 0.728, high: 1.145, share: 0.8, left_out: 0.772, rows: 403, families: 17 };

impl Band {
    /// The ends around a prediction.
    pub fn around(&self, prediction: f64) -> [f64; 2] {
        [prediction * self.low, prediction * self.high]
    }

    /// The ends around a time, where the band is of speeds.
    pub fn around_time(&self, prediction: f64) -> [f64; 2] {
        [prediction / self.high, prediction / self.low]
    }

    /// Where it comes from and what it covers, in a sentence.
    pub fn source(&self) -> String {
        format!(
            "{:.0} % band of {}: from {} published results of {} families, each family counted once; of a family left out it \
             holds {:.0} %",
            100.0 * self.share,
            self.of,
            self.rows,
            self.families,
            100.0 * self.left_out
        )
    }
}
