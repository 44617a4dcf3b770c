//! Finds the end of warm-up in a trial's step times by change-point detection.
//!
//! Optimal segmentation cuts the series of logarithms into segments of constant level: it minimises the sum of squared distances
//! from the means of the segments plus a penalty for every segment. Three rules prevent false change points. Values
//! are first clamped to [`REACH`] noise levels around the second half's median, so that one or two outliers do not become a
//! segment of their own. Segments have at least [`SHORTEST`] steps. The penalty grows with the noise and with the autocorrelation
//! of neighbouring steps, so that slow drift is not taken for a change.
//!
//! The last segment has the steady level. Warm-up ends where the first segment at that level begins. See docs/statistics.md.

use crate::record::Record;
use crate::stats::{mean, median};
use crate::units;

/// Where a series of step times becomes steady.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WarmUpFinding {
    /// WarmUpFinding from the first step on: nothing is discarded.
    FromTheStart,
    /// Warm-up takes this many steps, at most half of them; they are discarded.
    After(usize),
    /// The level changed too late or too often to call any part steady: nothing is discarded.
    Never,
    /// Too few steps to decide: nothing is discarded.
    TooShort,
}

impl WarmUpFinding {
    /// How many steps to discard.
    pub fn discarded(self) -> usize {
        match self {
            Self::After(steps) => steps,
            _ => 0,
        }
    }

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::FromTheStart => "from_the_start",
            Self::After(_) => "after",
            Self::Never => "never",
            Self::TooShort => "too_short",
        }
    }
}

/// The fewest steps of a series that is judged.
pub const FEWEST: usize = 12;
/// The shortest segment, steps.
pub const SHORTEST: usize = 3;
/// Levels closer than this fraction count as equal: a smaller warm-up does no harm.
pub const RELEVANT: f64 = 0.02;
/// Values are clamped to this many noise levels around the centre.
const REACH: f64 = 4.0;
/// The penalty of a segment, in variances of the noise. Two outliers gain a segment of three at most 8 x 8 / 3, which is less.
const PENALTY: f64 = 24.0;
/// The largest autocorrelation that is assumed.
const LARGEST_AUTOCORRELATION: f64 = 0.6;
/// A longer series is averaged into this many blocks, since the work grows with the square of the length.
const MOST_BLOCKS: usize = 512;
/// The share of the steps after warm-up that must be at the steady level.
const LEAST_SHARE_AT_LEVEL: f64 = 0.75;

/// Finds where a series of step times (in any unit) becomes steady. A series with a time that is not finite or not above 0 is not
/// judged.
pub fn find(times: &[f64]) -> WarmUpFinding {
    if times.len() < FEWEST || !times.iter().all(|time| time.is_finite() && *time > 0.0) {
        return WarmUpFinding::TooShort;
    }
    let logs: Vec<f64> = times.iter().map(|time| time.ln()).collect();
    let block = times.len().div_ceil(MOST_BLOCKS);
    let centre = Noise::of(&logs);
    let clamped: Vec<f64> = logs.iter().map(|log| centre.clamp(*log)).collect();
    let blocks: Vec<f64> = clamped.chunks(block).filter_map(mean).collect();
    let noise = if block == 1 { centre } else { Noise::of(&blocks) };
    let starts = segments(&blocks, PENALTY * noise.variance());
    // From blocks back to steps; levels are medians of the step times themselves.
    let starts: Vec<usize> = starts.iter().map(|start| start * block).collect();
    judge(&logs, &starts, noise.variance() / block as f64)
}

/// The verdict from the segments.
fn judge(logs: &[f64], starts: &[usize], variance: f64) -> WarmUpFinding {
    let ends = starts.iter().skip(1).copied().chain([logs.len()]);
    let pieces: Vec<(usize, usize)> = starts.iter().copied().zip(ends).collect();
    let level = |(start, end): (usize, usize)| median(&logs[start..end]).unwrap_or(f64::NAN);
    let Some(&last) = pieces.last() else { return WarmUpFinding::FromTheStart };
    let steady_level = level(last);
    let is_steady = |piece: &(usize, usize)| {
        let error = variance * (1.0 / (piece.1 - piece.0) as f64 + 1.0 / (last.1 - last.0) as f64);
        (level(*piece) - steady_level).abs() <= RELEVANT.ln_1p().max(2.0 * error.sqrt())
    };
    let Some(first) = pieces.iter().position(is_steady) else { return WarmUpFinding::Never };
    let start = pieces[first].0;
    let kept = logs.len() - start;
    let at_level: usize = pieces[first..].iter().filter(|piece| is_steady(piece)).map(|(start, end)| end - start).sum();
    if start > logs.len() / 2 || (at_level as f64) < LEAST_SHARE_AT_LEVEL * kept as f64 {
        return WarmUpFinding::Never;
    }
    if start == 0 { WarmUpFinding::FromTheStart } else { WarmUpFinding::After(start) }
}

/// The noise of a series, estimated from its second half, which should be steady.
struct Noise {
    centre: f64,
    deviation: f64,
    /// First-order autocorrelation.
    autocorrelation: f64,
}

/// The smallest relative noise of step times that is assumed.
const QUIETEST: f64 = 1e-3;

impl Noise {
    fn of(series: &[f64]) -> Self {
        let half = &series[series.len() / 2..];
        let centre = median(half).unwrap_or(0.0);
        // Differences of neighbours are insensitive to a drift or a jump; 1.4826 scales a median deviation to a standard deviation.
        let jumps: Vec<f64> = series.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
        let jump = (median(&jumps).unwrap_or(0.0) * 1.4826 / std::f64::consts::SQRT_2).max(QUIETEST);
        let reach = REACH * jump;
        let residues: Vec<f64> = half.iter().map(|value| (value - centre).clamp(-reach, reach)).collect();
        let product: f64 = residues.windows(2).map(|pair| pair[0] * pair[1]).sum();
        let squares: f64 = residues.iter().map(|residue| residue * residue).sum();
        let autocorrelation = if squares > 0.0 { (product / squares).clamp(0.0, LARGEST_AUTOCORRELATION) } else { 0.0 };
        Self { centre, deviation: jump / (1.0 - autocorrelation).sqrt(), autocorrelation }
    }

    fn clamp(&self, value: f64) -> f64 {
        let reach = REACH * self.deviation;
        value.clamp(self.centre - reach, self.centre + reach)
    }

    /// The long-run variance: the variance of a mean times the number of values. It is larger where neighbours are correlated.
    fn variance(&self) -> f64 {
        self.deviation.powi(2) * (1.0 + self.autocorrelation) / (1.0 - self.autocorrelation)
    }
}

/// The starts of the segments of the best segmentation, the first at 0.
fn segments(values: &[f64], penalty: f64) -> Vec<usize> {
    let (count, centre) = (values.len(), mean(values).unwrap_or(0.0));
    let mut sums = vec![(0.0, 0.0)];
    for value in values.iter().map(|value| value - centre) {
        let (sum, squares) = sums[sums.len() - 1];
        sums.push((sum + value, squares + value * value));
    }
    // Of segmentations that cost the same but for rounding, the first one, so that the unit of the times decides nothing.
    let rounding = 1e-12 * sums[count].1 + 1e-9 * penalty;
    let cost = |start: usize, end: usize| {
        let (sum, squares) = (sums[end].0 - sums[start].0, sums[end].1 - sums[start].1);
        (squares - sum * sum / (end - start) as f64).max(0.0)
    };
    // best[end]: the least cost of segmenting the values before `end`, and the start of its last segment.
    let mut best = vec![(f64::INFINITY, 0); count + 1];
    best[0] = (0.0, 0);
    for end in SHORTEST..=count {
        for start in (0..=end - SHORTEST).filter(|start| *start == 0 || *start >= SHORTEST) {
            let total = best[start].0 + cost(start, end) + penalty;
            if total < best[end].0 - rounding {
                best[end] = (total, start);
            }
        }
    }
    let mut starts = Vec::new();
    let mut end = count;
    while end > 0 {
        end = best[end].1;
        starts.push(end);
    }
    starts.reverse();
    starts
}

/// Where a record's timed steps become steady.
pub fn of_record(record: &Record) -> WarmUpFinding {
    let times: Vec<f64> = record.timed_steps().map(|step| step.ms).collect();
    find(&times)
}

/// A warning for a report that discards nothing: in how many trials warm-up seems to last into the timed steps.
pub fn warning(records: &[&Record]) -> Option<String> {
    let judged: Vec<WarmUpFinding> = records.iter().map(|record| of_record(record)).collect();
    let longest = judged.iter().map(|steady| steady.discarded()).max().filter(|steps| *steps > 0)?;
    let warming = judged.iter().filter(|steady| steady.discarded() > 0).count();
    Some(format!(
        "In {warming} of {} warm-up seems to last into the timed steps, to timed step {longest} at most. Nothing is \
         discarded here; zbench compare discards it, and a larger train.untimed_steps avoids it.",
        units::plural(judged.len(), "measured trial", "measured trials"),
    ))
}
