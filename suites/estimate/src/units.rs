//! Quantities as people write them: `"80GiB"`, `"12.5GB/s"`, `"400Gb/s"`, `"20us"`, `"312TFLOP/s"`, or plain numbers of bytes,
//! bytes per second, seconds and FLOP/s. Configurations, machine profiles and flags all read quantities here.

const PREFIXES: &[(&str, f64)] = &[
    ("", 1.0),
    ("k", 1e3),
    ("m", 1e6),
    ("g", 1e9),
    ("t", 1e12),
    ("p", 1e15),
    ("ki", 1024.0),
    ("mi", 1048576.0),
    ("gi", 1073741824.0),
    ("ti", 1099511627776.0),
    ("pi", 1125899906842624.0),
];

const SECONDS: &[(&str, f64)] = &[
    ("", 1.0),
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("min", 60.0),
    ("h", 3600.0),
    ("d", 86400.0),
    ("w", 7.0 * 86400.0),
];

/// The number at the start of a text and the unit behind it.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| c.is_alphabetic() && c != 'e' && c != 'E').unwrap_or(text.len());
    let number: f64 = text[..end].trim().replace('_', "").parse().ok()?;
    (number.is_finite() && number >= 0.0).then(|| (number, text[end..].trim()))
}

/// The factor of a prefix or unit, in letters of any size.
fn factor(table: &[(&str, f64)], word: &str) -> Option<f64> {
    let word = word.to_lowercase();
    table.iter().find(|(name, _)| *name == word).map(|(_, factor)| *factor)
}

/// Bytes; at most 2^62, so that sums of a few do not overflow.
pub fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let prefix = if unit.is_empty() { "" } else { unit.strip_suffix(['B', 'b'])? };
    let bytes = number * factor(PREFIXES, prefix)?;
    (bytes <= (1u64 << 62) as f64).then(|| bytes.round() as u64)
}

/// Bytes per second. `Gbit/s`, `Gb/s` and `Gbps` count bits, as rates of links are written; `GB/s` and `gb/s` count bytes.
pub fn rate(text: &str) -> Option<f64> {
    let (number, unit) = split(text)?;
    if unit.is_empty() {
        return Some(number);
    }
    let amount = unit.strip_suffix("/s").or_else(|| unit.strip_suffix("ps"))?;
    let has_capital_prefix = amount.starts_with(|c: char| c.is_ascii_uppercase());
    let (prefix, share) = match (amount.strip_suffix("bit"), amount.strip_suffix('b')) {
        (Some(prefix), _) => (prefix, 0.125),
        (None, Some(prefix)) if has_capital_prefix => (prefix, 0.125),
        _ => (amount.strip_suffix(['B', 'b'])?, 1.0),
    };
    Some(number * factor(PREFIXES, prefix)? * share).filter(|rate| rate.is_finite())
}

/// Seconds.
pub fn seconds(text: &str) -> Option<f64> {
    let (number, unit) = split(text)?;
    Some(number * factor(SECONDS, unit)?).filter(|seconds| seconds.is_finite())
}

/// FLOP/s or integer operations per second: `312TFLOP/s`, `312TFLOPS`, `624TOPS`.
pub fn flops(text: &str) -> Option<f64> {
    let (number, unit) = split(text)?;
    if unit.is_empty() {
        return Some(number);
    }
    let upper = unit.to_ascii_uppercase();
    let prefix = ["FLOP/S", "FLOPS", "OP/S", "OPS"].iter().find_map(|suffix| upper.strip_suffix(suffix))?;
    Some(number * factor(PREFIXES, prefix)?).filter(|flops| flops.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_with_their_units() {
        assert_eq!(bytes("80GiB"), Some(80 << 30));
        assert_eq!(bytes("80 GB"), Some(80_000_000_000));
        assert_eq!(bytes("1.5kib"), Some(1536));
        assert_eq!(bytes("1.5TiB"), Some(3 << 39));
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("1e3"), Some(1000));
        assert_eq!(rate("12.5GB/s"), Some(12.5e9));
        assert_eq!(rate("100Gbit/s"), Some(12.5e9));
        assert_eq!(rate("100Gb/s"), Some(12.5e9));
        assert_eq!(rate("400 Gbps"), Some(50e9));
        assert_eq!(rate("100GB/s"), Some(100e9));
        assert_eq!(rate("100gb/s"), Some(100e9));
        assert_eq!(rate("3.35TB/s"), Some(3.35e12));
        assert_eq!(rate("1e9"), Some(1e9));
        assert!(seconds("20us").is_some_and(|s| (s - 20e-6).abs() < 1e-18));
        assert_eq!(seconds("2min"), Some(120.0));
        assert_eq!(seconds("4m"), Some(240.0), "as the screen of a grid advises");
        assert_eq!(seconds("4ms"), Some(0.004));
        assert_eq!(seconds("2d"), Some(172_800.0));
        assert_eq!(flops("312TFLOP/s"), Some(312e12));
        assert_eq!(flops("1.3e15"), Some(1.3e15));
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", "GiB", "80 GiB/s", "-1GB", "nan", "inf", "1e30GB", "80 gigs", "1..5GB", "∞"] {
            assert_eq!(bytes(text), None, "{text}");
        }
        for text in ["", "GB/s", "-1GB/s", "12.5GB", "1GB", "fast", "1 XB/s", "∞", "1e", "e5", "1..2GB/s", "nan"] {
            assert_eq!(rate(text), None, "{text}");
        }
        assert_eq!(seconds("20 parsecs"), None);
        for text in ["12 GFLOP", "TFLOP/s", "3us"] {
            assert_eq!(flops(text), None, "{text}");
        }
    }
}
