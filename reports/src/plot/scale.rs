//! Axes: ranges, ticks and their texts, and where on the drawing a number is.

use super::{Axis, Unit};
use crate::gather::extent;
use crate::units;

/// Maps numbers to places along an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Scale {
    /// The number at the lower end.
    pub low: f64,
    /// The number at the upper end.
    pub high: f64,
    log: bool,
    from: f64,
    to: f64,
    /// Where ticks stand, with their texts.
    pub ticks: Vec<(f64, String)>,
    /// Title and unit, as drawn beside the axis.
    pub title: String,
}

/// How the range of an axis is made from its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Range {
    /// Begins at zero: lengths are compared.
    FromZero,
    /// Contains the values; begins at zero if they come near it.
    Around,
    /// Fits the values closely, whatever they are.
    Close,
}

impl Scale {
    /// A scale that contains these values, with about `most` ticks, between the places `from` and `to`.
    pub fn new(axis: &Axis, values: impl Iterator<Item = f64>, range: Range, most: usize, from: f64, to: f64) -> Self {
        let usable = values.filter(|value| value.is_finite() && (!axis.log || *value > 0.0));
        let (low, high) = extent(usable).unwrap_or(if axis.log { (1.0, 100.0) } else { (0.0, 1.0) });
        match axis.log {
            true => Self::logarithmic(axis, low.max(f64::MIN_POSITIVE), high.max(f64::MIN_POSITIVE), most, from, to),
            false => Self::linear(axis, low, high, range, most, from, to),
        }
    }

    fn linear(axis: &Axis, low: f64, high: f64, range: Range, most: usize, from: f64, to: f64) -> Self {
        let near_zero = range == Range::FromZero || (range == Range::Around && low >= 0.0 && low <= 0.5 * high);
        let low = if near_zero { low.min(0.0) } else { low };
        // One value, or equal ones, get room around them.
        let (low, high) = match high - low <= 1e-12 * high.abs().max(low.abs()) {
            true if low == 0.0 => (0.0, 1.0),
            true => (low - 0.1 * low.abs(), high + 0.1 * high.abs()),
            false => (low, high),
        };
        let (factor, suffix) = display_unit(axis.unit, high.abs().max(low.abs()));
        let step = step_for(low / factor, high / factor, most);
        let (first, last) = ((low / factor / step).floor(), (high / factor / step).ceil());
        let places = (0..=((last - first).round() as usize).min(4 * most)).map(|place| first + place as f64);
        let cuts = decimals(step);
        let ticks = places.map(|place| (place * step * factor, fixed(place * step, cuts))).collect();
        let (low, high) = (first * step * factor, last * step * factor);
        Self { low, high, log: false, from, to, ticks, title: titled(&axis.title, &suffix) }
    }

    /// Ticks are at powers of ten, or of two for bytes of memory; the ends are those of the values with some room.
    fn logarithmic(axis: &Axis, low: f64, high: f64, most: usize, from: f64, to: f64) -> Self {
        let base: f64 = if axis.unit == Unit::Memory { 2.0 } else { 10.0 };
        let (low, high) = (low / base.powf(0.25), high * base.powf(0.25));
        let (first, last) = (log(low, base).ceil() as i64, log(high, base).floor() as i64);
        let mut stride = ((last - first) as f64 / most.max(1) as f64).ceil().max(1.0) as i64;
        if base == 2.0 && stride > 2 {
            // Powers of 1024 have round names, and so has 32 times such a power.
            stride = if stride <= 5 { 5 } else { (stride as u64).div_ceil(10) as i64 * 10 };
        }
        let mut powers: Vec<i64> = (first..=last).filter(|power| power.rem_euclid(stride) == 0).collect();
        if powers.len() < 2 {
            powers = (first..=last).step_by(((last - first).max(0) as usize / most.max(1)).max(1)).collect();
        }
        let mut values: Vec<f64> = powers.into_iter().map(|power| base.powi(power as i32)).collect();
        if values.len() < 2 {
            // The axis covers less than one power: ticks as on a linear axis.
            let step = step_for(low, high, most.min(5));
            values = (0..=2 * most).map(|place| ((low / step).ceil() + place as f64) * step).collect();
            values.retain(|value| (low..=high).contains(value));
        }
        let (_, suffix) = display_unit(axis.unit, 1.0);
        let states_unit = matches!(axis.unit, Unit::Memory | Unit::Traffic);
        let ticks = values.into_iter().map(|value| (value, tick_text(axis.unit, value))).collect();
        let title = if states_unit { axis.title.clone() } else { titled(&axis.title, &suffix) };
        Self { low, high, log: true, from, to, ticks, title }
    }

    /// The place of a number; of one beyond the ends, the nearer end.
    pub fn place(&self, value: f64) -> f64 {
        let share = match self.log {
            true => (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        self.from + share * (self.to - self.from)
    }
}

fn log(value: f64, base: f64) -> f64 {
    if base == 2.0 { value.log2() } else { value.log10() }
}

fn titled(title: &str, suffix: &str) -> String {
    if suffix.is_empty() { title.to_string() } else { format!("{title} ({suffix})") }
}

/// The smallest step of 1, 2 or 5 times a power of ten with which at most `most` steps are needed.
pub fn step_for(low: f64, high: f64, most: usize) -> f64 {
    let rough = ((high - low) / most.max(1) as f64).max(f64::MIN_POSITIVE * 1e20);
    let power = 10f64.powi(rough.log10().floor() as i32);
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    // A thousandth more is no reason for a coarser step.
    steps.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(10.0 * power)
}

/// Digits after the point with which multiples of a step differ.
fn decimals(step: f64) -> usize {
    (-step.log10().floor()).clamp(0.0, 12.0) as usize
}

fn fixed(value: f64, decimals: usize) -> String {
    let value = if value.abs() < 0.5 * 10f64.powi(-(decimals as i32)) { 0.0 } else { value };
    match decimals {
        0 if (0.0..1e15).contains(&value) => units::count(value.round() as u64),
        0 if value.abs() >= 1e15 => format!("{value:.0e}"),
        _ => format!("{value:.decimals$}"),
    }
}

/// The factor between values and what ticks show of them, and its unit: bytes up to 20 million are shown in MiB.
fn display_unit(unit: Unit, largest: f64) -> (f64, String) {
    let scaled = |base: f64, names: &[&str]| {
        let mut factor = 1.0;
        let mut place = 0;
        while largest >= base * factor && place + 1 < names.len() {
            factor *= base;
            place += 1;
        }
        (factor, names[place].to_string())
    };
    match unit {
        Unit::Memory => scaled(1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"]),
        Unit::Traffic => scaled(1000.0, &["B", "kB", "MB", "GB", "TB", "PB"]),
        Unit::Fraction => (0.01, "%".to_string()),
        other => (1.0, other.name().to_string()),
    }
}

/// A number as ticks show it.
fn tick_text(unit: Unit, value: f64) -> String {
    if unit == Unit::Fraction { units::percent(value) } else { without_zeros(&brief(unit, value)) }
}

/// A number as in a column whose title has the unit, unless the number states its own.
pub fn brief(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Memory => units::memory(value),
        Unit::Traffic => units::traffic(value),
        Unit::Fraction => units::percent(value),
        _ => units::number(value),
    }
}

/// A number with its unit, as in a sentence.
pub fn with_unit(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Memory | Unit::Traffic | Unit::Fraction | Unit::Plain => brief(unit, value),
        other => format!("{} {}", brief(unit, value), other.name()),
    }
}

/// `1.00 KiB` becomes `1 KiB`.
fn without_zeros(text: &str) -> String {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let number = match number.contains('.') && !number.contains('e') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => number,
    };
    if unit.is_empty() { number.to_string() } else { format!("{number} {unit}") }
}
