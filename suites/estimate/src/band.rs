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
    Band { of: "peaks of memory", low: 0.944, high: 1.149, share: 0.8, left_out: 0.806, rows: 130, families: 8 };

/// Of speeds on devices of data centres from Volta to Hopper: tokens per second, FLOP/s, one over the time of a step.
pub const SPEED: Band =
    Band { of: "speeds", low: 0.804, high: 1.142, share: 0.8, left_out: 0.801, rows: 360, families: 17 };

/// Of speeds on other devices.
pub const SPEED_ELSEWHERE: Band = Band {
    of: "speeds on newer and other devices",
    low: 0.643,
    high: 1.513,
    share: 0.8,
    left_out: 0.467,
    rows: 52,
    families: 4,
};

/// Of bandwidths of collectives.
pub const COLLECTIVES: Band = Band {
    of: "bandwidths of collectives",
    low: 0.946,
    high: 1.068,
    share: 0.8,
    left_out: 0.726,
    rows: 54,
    families: 4,
};

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
