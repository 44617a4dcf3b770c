//! Byte sizes, bandwidths and durations as people write them: `"80GiB"`, `"12.5GB/s"`, `"20us"`, or plain numbers.

use std::time::Duration;

const BYTES: &[(&str, f64)] = &[
    ("b", 1.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("tb", 1e12),
    ("kib", 1024.0),
    ("mib", 1048576.0),
    ("gib", 1073741824.0),
    ("tib", 1099511627776.0),
];

const SECONDS: &[(&str, f64)] =
    &[("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("min", 60.0), ("h", 3600.0)];

/// A number and its unit's factor; a bare number has factor 1.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let end = text.find(|c: char| c.is_alphabetic() && c != 'e' && c != 'E').unwrap_or(text.len());
    let number: f64 = text[..end].trim().replace('_', "").parse().ok()?;
    let unit = text[end..].trim();
    let factor = match unit {
        "" => 1.0,
        _ => units.iter().find(|(name, _)| *name == unit.to_lowercase())?.1,
    };
    let value = number * factor;
    (value.is_finite() && value >= 0.0).then_some(value)
}

/// Bytes; at most 2^62, so that sums of a few do not overflow.
pub fn bytes(text: &str) -> Option<u64> {
    scaled(text, BYTES).filter(|bytes| *bytes <= (1u64 << 62) as f64).map(|bytes| bytes.round() as u64)
}

/// Bytes per second; `Gbit/s`, `Gb/s` and their kin count bits.
pub fn bandwidth(text: &str) -> Option<f64> {
    let text = text.trim();
    let Some(amount) = text.strip_suffix("/s") else {
        return text.parse().ok().filter(|value: &f64| value.is_finite() && *value > 0.0);
    };
    // A capital prefix before a small b is how rates of links are written.
    let bits =
        ["Kb", "Mb", "Gb", "Tb"].into_iter().find(|unit| amount.ends_with(unit)).map(|_| &amount[..amount.len() - 1]);
    match amount.strip_suffix("bit").or(bits) {
        Some(bits) => scaled(&format!("{bits}b"), BYTES).map(|bits| bits / 8.0),
        None => scaled(amount, BYTES),
    }
    .filter(|value| *value > 0.0)
}

/// Seconds.
pub fn seconds(text: &str) -> Option<f64> {
    scaled(text, SECONDS)
}

/// A duration of a command line option: above 0, as `90s` or `10min`.
///
/// # Errors
/// What to write instead.
pub fn duration(text: &str) -> Result<Duration, String> {
    let seconds = seconds(text).filter(|seconds| *seconds > 0.0);
    let seconds = seconds.ok_or_else(|| "write a time above 0, as 90s or 10min".to_string())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "is too long; write at most some years".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read() {
        assert_eq!(bytes("80GiB"), Some(80 << 30));
        assert_eq!(bytes("80 GB"), Some(80_000_000_000));
        assert_eq!(bytes("1.5kib"), Some(1536));
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("1e3"), Some(1000));
        assert_eq!(bandwidth("12.5GB/s"), Some(12.5e9));
        assert_eq!(bandwidth("100Gbit/s"), Some(12.5e9));
        assert_eq!(bandwidth("100Gb/s"), Some(12.5e9));
        assert_eq!(bandwidth("100GB/s"), Some(100e9));
        assert!(seconds("20us").is_some_and(|s| (s - 20e-6).abs() < 1e-18));
        assert_eq!(seconds("2min"), Some(120.0));
        assert_eq!(seconds("4m"), Some(240.0), "as the screen of a grid advises");
        assert_eq!(seconds("4ms"), Some(0.004));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "GiB", "80 GiB/s", "-1GB", "nan", "inf", "1e30GB", "80 gigs", "1..5GB", "∞"] {
            assert_eq!(bytes(text), None, "{text}");
        }
        for text in ["12.5GB", "0GB/s", "-1GB/s", "fast"] {
            assert_eq!(bandwidth(text), None, "{text}");
        }
        assert_eq!(seconds("20 parsecs"), None);
    }
}
