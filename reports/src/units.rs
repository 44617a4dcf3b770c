//! Numbers as people read them, always with their unit. GB is 10^9 bytes (wire, bandwidth), GiB 2^30 (memory).

/// Shown where there is no number.
pub const NOTHING: &str = "-";

/// A number with three or more significant digits: `12,345`, `123`, `12.3`, `1.23`, `0.0123`, `1.23e-7`.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return NOTHING.to_string();
    }
    if size == 0.0 {
        return "0".to_string();
    }
    if !(1e-4..1e15).contains(&size) {
        return format!("{value:.2e}");
    }
    // A number that rounds up to the next power of ten has its digits there: 9.999 is 10.0.
    let decimals = (0..=6).find(|&decimals| size >= 99.95 / 10f64.powi(decimals)).unwrap_or(6);
    let text = format!("{value:.*}", decimals as usize);
    if decimals == 0 { grouped(&text) } else { text }
}

/// A count that may be a mean: `12` when whole, else as [`number`].
pub fn quantity(value: f64) -> String {
    if value.fract() == 0.0 && (0.0..1e15).contains(&value) { count(value as u64) } else { number(value) }
}

/// A whole number with thousands apart: `1,234,567`.
pub fn count(value: u64) -> String {
    grouped(&value.to_string())
}

fn grouped(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    let mut text = String::from(sign);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn scaled(value: f64, base: f64, units: &[&str]) -> String {
    if !value.is_finite() {
        return NOTHING.to_string();
    }
    let mut scaled = value;
    let mut unit = 0;
    while scaled.abs() >= base && unit + 1 < units.len() {
        scaled /= base;
        unit += 1;
    }
    format!("{} {}", number(scaled), units[unit])
}

/// Memory, in powers of 1024: `1.50 GiB`.
pub fn memory(bytes: f64) -> String {
    scaled(bytes, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// A whole number of bytes, as a configuration states it: `64KiB`, or `1000` where no power of 1024 divides it.
pub fn exact_bytes(bytes: f64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let bytes = bytes as u64;
    match units.iter().find(|(size, _)| bytes >= *size && bytes.is_multiple_of(*size)) {
        Some((size, unit)) => format!("{}{unit}", bytes / size),
        None => bytes.to_string(),
    }
}

/// Bytes that travel, in powers of 1000: `1.50 GB`.
pub fn traffic(bytes: f64) -> String {
    scaled(bytes, 1000.0, &["B", "kB", "MB", "GB", "TB", "PB"])
}

/// A time, in the unit that reads best: `20.0 us`.
pub fn duration(seconds: f64) -> String {
    match seconds.abs() {
        s if s >= 1.0 || s == 0.0 => format!("{} s", number(seconds)),
        s if s >= 1e-3 => format!("{} ms", number(seconds * 1e3)),
        s if s >= 1e-6 => format!("{} us", number(seconds * 1e6)),
        _ => format!("{} ns", number(seconds * 1e9)),
    }
}

/// A link's bandwidth and latency: `1.00 GB/s and 20.0 us each way`.
pub fn link(bytes_per_second: f64, seconds: f64) -> String {
    format!("{}/s and {} each way", traffic(bytes_per_second), duration(seconds))
}

/// An emulated pace: `forward 4.00 ms and backward 8.00 ms`.
pub fn pace([forward, backward]: [f64; 2]) -> String {
    format!("forward {} and backward {}", duration(forward), duration(backward))
}

/// Floating-point operations: `1.50 TFLOP`.
pub fn flops(operations: f64) -> String {
    scaled(operations, 1000.0, &["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP"])
}

/// A fraction as percent: `12.3 %`.
pub fn percent(fraction: f64) -> String {
    // The percentage of a finite fraction may be too large for a number.
    let percent = fraction * 100.0;
    if percent.is_finite() { format!("{percent:.1} %") } else { NOTHING.to_string() }
}

/// A relative change with its sign: `+12 %`, `-3.4 %`.
pub fn change(fraction: f64) -> String {
    let percent = fraction * 100.0;
    if !percent.is_finite() {
        return NOTHING.to_string();
    }
    let text = if percent.abs() < 9.95 { format!("{percent:+.1}") } else { format!("{percent:+.0}") };
    // What rounds to nothing has no direction.
    if text == "-0.0" || text == "+0.0" { "0.0 %".to_string() } else { format!("{text} %") }
}

/// `1 cell`, `2 cells`.
pub fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// `both cells`, `all 3 cells`: the whole of several.
pub fn all(count: usize, many: &str) -> String {
    if count == 2 { format!("both {many}") } else { format!("all {count} {many}") }
}

/// `a`, `a and b`, `a, b and c`.
pub fn list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [only] => only.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}
