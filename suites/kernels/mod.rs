//! The suites `gemm` and `attention`: kernels by themselves, over shapes, types and threads, against the ceiling of the
//! cores. Settings or flags ([`flags`]) become specifications ([`resolve`]), each of which is measured by itself.

pub mod args;
pub(crate) mod attention;
pub mod bound;
mod ceiling;
mod clock;
pub(crate) mod device;
pub mod flags;
pub(crate) mod gemm;
mod model;
pub(crate) mod numbers;
mod oracle;
pub(crate) mod resolve;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

/// How a kernel is timed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Method {
    /// Samples are taken for this long.
    pub seconds: f64,
    /// And there are this many at least.
    pub iterations: u64,
    /// Calls before them, for this long.
    pub warmup: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Device {
    /// `cpu`, or `cuda`.
    pub device: String,
    pub threads_per_rank: usize,
}

impl Device {
    pub fn label(&self) -> String {
        match (self.device.as_str(), self.threads_per_rank) {
            ("cuda", _) => "GPU".into(),
            (_, 1) => "1 thread".into(),
            (_, threads) => format!("{threads} threads"),
        }
    }
}
