//! Sizes, rates and durations as people write them, and the durations of command line options.

use std::time::Duration;
pub use zbench_estimate::units::{bytes, flops, rate, seconds};

/// The longest duration of an option, in seconds: 100 years, which added to any point in time give another.
const LONGEST: f64 = 100.0 * 365.25 * 86_400.0;

/// A duration of a command line option: above 0, as `90s` or `10min`.
///
/// # Errors
/// What to write instead.
pub fn duration(text: &str) -> Result<Duration, String> {
    let seconds = seconds(text).filter(|seconds| *seconds > 0.0 && *seconds <= LONGEST);
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "write a time above 0 and below 100 years, as 90s or 10min".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_can_be_added_to_any_time() {
        for text in ["9223372036854775807s", "3155760001s", "1e300", "0s", "-1s", "NaN", "inf"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!(duration("3155760000s").map(|time| std::time::Instant::now().checked_add(time).is_some()), Ok(true));
        assert_eq!(duration("1.5min"), Ok(Duration::from_secs(90)));
    }
}
