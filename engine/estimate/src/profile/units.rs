//! Quantities as people write them: `"1.5TiB"`, `"300GB/s"`, `"400Gb/s"`, `"2us"`, `"312TFLOP/s"`, or plain numbers in
//! bytes, bytes per second, seconds and FLOP/s.

const DECIMAL: &[(&str, f64)] = &[("", 1.0), ("k", 1e3), ("m", 1e6), ("g", 1e9), ("t", 1e12), ("p", 1e15)];
const BINARY: &[(&str, f64)] =
    &[("ki", 1024.0), ("mi", 1048576.0), ("gi", 1073741824.0), ("ti", 1099511627776.0), ("pi", 1125899906842624.0)];
const SECONDS: &[(&str, f64)] = &[("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("", 1.0)];

/// A number and the unit behind it.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let of_number = |(at, c): (usize, char)| {
        let exponent = matches!(c, 'e' | 'E') && text[at + 1..].starts_with(|d: char| d.is_ascii_digit() || d == '-');
        c.is_ascii_digit() || matches!(c, '.' | '_' | '+' | '-') || exponent
    };
    let end = text.char_indices().find(|pair| !of_number(*pair)).map_or(text.len(), |(at, _)| at);
    let value: f64 = text[..end].replace('_', "").parse().ok()?;
    (value.is_finite() && value >= 0.0).then(|| (value, text[end..].trim()))
}

fn prefix(word: &str) -> Option<f64> {
    let word = word.to_ascii_lowercase();
    DECIMAL.iter().chain(BINARY).find(|(name, _)| *name == word).map(|(_, factor)| *factor)
}

/// Bytes.
pub(super) fn bytes(text: &str) -> Option<f64> {
    let (value, unit) = split(text)?;
    if unit.is_empty() {
        return Some(value);
    }
    let word = unit.strip_suffix(['B', 'b'])?;
    Some(value * prefix(word)?).filter(|bytes| *bytes <= (1u64 << 62) as f64)
}

/// Bytes per second: `GB/s` counts bytes, `Gb/s`, `Gbit/s` and `Gbps` bits.
pub(super) fn rate(text: &str) -> Option<f64> {
    let (value, unit) = split(text)?;
    if unit.is_empty() {
        return Some(value);
    }
    let per_second = unit.strip_suffix("/s").or_else(|| unit.strip_suffix("ps"))?;
    let (word, share) = match (per_second.strip_suffix("bit"), per_second.strip_suffix('b')) {
        (Some(word), _) | (None, Some(word)) => (word, 0.125),
        (None, None) => (per_second.strip_suffix('B')?, 1.0),
    };
    Some(value * prefix(word)? * share)
}

/// Seconds.
pub(super) fn seconds(text: &str) -> Option<f64> {
    let (value, unit) = split(text)?;
    SECONDS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| value * factor)
}

/// FLOP/s (or integer operations): `312TFLOP/s`, `312TFLOPS`, `624TOPS`.
pub(super) fn flops(text: &str) -> Option<f64> {
    let (value, unit) = split(text)?;
    if unit.is_empty() {
        return Some(value);
    }
    let upper = unit.to_ascii_uppercase();
    let word = ["FLOP/S", "FLOPS", "OP/S", "OPS"].iter().find_map(|suffix| upper.strip_suffix(suffix))?;
    Some(value * prefix(word)?)
}
