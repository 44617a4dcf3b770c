//! Sizes, rates and durations as people write them, and the durations of command line options.

use std::time::Duration;
pub use zbench_estimate::units::{bytes, flops, rate, seconds};

/// A duration of a command line option: above 0, as `90s` or `10min`.
///
/// # Errors
/// What to write instead.
pub fn duration(text: &str) -> Result<Duration, String> {
    let seconds = seconds(text).filter(|seconds| *seconds > 0.0);
    let seconds = seconds.ok_or_else(|| "write a time above 0, as 90s or 10min".to_string())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "is too long; write at most some years".to_string())
}
