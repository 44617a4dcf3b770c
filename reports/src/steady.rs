//! Where a trial's steps become steady: warm-up found by change points, from the step times alone.
//!
//! The series of logarithms is cut into pieces of constant level by optimal segmentation: the cut that makes the sum of
//! squared distances from the pieces' means, plus a penalty for every piece, least. Three things keep it honest. Values
//! are first clamped to [`REACH`] noise levels around the second half's median, so that one or two outliers cannot pay
//! for a piece of their own. Pieces have at least [`SHORTEST`] steps. And the penalty grows with the noise and with how
//! much a step resembles the one before it, so that wandering is not taken for change.
//!
//! The last piece is the steady level. Warm-up ends where the first piece at that level begins. See docs/statistics.md.

use crate::record::Record;
use crate::stats::{mean, median};
use crate::units;

/// What a series of step times shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steady {
    /// Steady from the first step on: nothing is discarded.
    FromTheStart,
    /// The first steps differ from the rest: so many of them are warm-up, at most half.
    After(usize),
    /// The level changed too late, or too often, for any part to be called steady: nothing is discarded.
    Never,
    /// Too few steps to tell: nothing is discarded.
    TooShort,
}

impl Steady {
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

/// A series of fewer steps is not judged.
pub const FEWEST: usize = 12;
/// The shortest piece, steps.
pub const SHORTEST: usize = 3;
/// Levels closer than this are one, as a fraction: a smaller warm-up does no harm.
pub const RELEVANT: f64 = 0.02;
/// Values further from the centre count as if they were this many noise levels away.
const REACH: f64 = 4.0;
/// The price of a piece, in variances of the noise; above what two outliers are worth to a piece of three, 8 x 8 / 3.
const PRICE: f64 = 24.0;
/// The strongest resemblance of neighbouring steps that is believed.
const MOST_ALIKE: f64 = 0.6;
/// A longer series is averaged into this many blocks, as the work grows with the square.
const MOST_BLOCKS: usize = 512;
/// The share of what is kept that must be at the steady level.
const MOSTLY: f64 = 0.75;

/// Finds where a series of step times (any unit) becomes steady. Times that are not finite and above 0 are a reason not to
/// judge.
pub fn steady(times: &[f64]) -> Steady {
    if times.len() < FEWEST || !times.iter().all(|time| time.is_finite() && *time > 0.0) {
        return Steady::TooShort;
    }
    let logs: Vec<f64> = times.iter().map(|time| time.ln()).collect();
    let block = times.len().div_ceil(MOST_BLOCKS);
    let centre = Noise::of(&logs);
    let clamped: Vec<f64> = logs.iter().map(|log| centre.clamp(*log)).collect();
    let blocks: Vec<f64> = clamped.chunks(block).filter_map(mean).collect();
    let noise = if block == 1 { centre } else { Noise::of(&blocks) };
    let starts = segments(&blocks, PRICE * noise.variance());
    // Back from blocks to steps; levels are medians of the times themselves.
    let starts: Vec<usize> = starts.iter().map(|start| start * block).collect();
    judge(&logs, &starts, noise.variance() / block as f64)
}

/// From pieces to a verdict.
fn judge(logs: &[f64], starts: &[usize], variance: f64) -> Steady {
    let ends = starts.iter().skip(1).copied().chain([logs.len()]);
    let pieces: Vec<(usize, usize)> = starts.iter().copied().zip(ends).collect();
    let level = |(start, end): (usize, usize)| median(&logs[start..end]).unwrap_or(f64::NAN);
    let Some(&last) = pieces.last() else { return Steady::FromTheStart };
    let steady_level = level(last);
    let is_steady = |piece: &(usize, usize)| {
        let error = variance * (1.0 / (piece.1 - piece.0) as f64 + 1.0 / (last.1 - last.0) as f64);
        (level(*piece) - steady_level).abs() <= RELEVANT.ln_1p().max(2.0 * error.sqrt())
    };
    let Some(first) = pieces.iter().position(is_steady) else { return Steady::Never };
    let start = pieces[first].0;
    let kept = logs.len() - start;
    let at_level: usize = pieces[first..].iter().filter(|piece| is_steady(piece)).map(|(start, end)| end - start).sum();
    if start > logs.len() / 2 || (at_level as f64) < MOSTLY * kept as f64 {
        return Steady::Never;
    }
    if start == 0 { Steady::FromTheStart } else { Steady::After(start) }
}

/// The noise of a series, read from its second half, where it should be steady.
struct Noise {
    centre: f64,
    deviation: f64,
    /// How much a value resembles the one before it: first-order autocorrelation.
    alike: f64,
}

/// Step times are not believed to be steadier than this (relative).
const QUIETEST: f64 = 1e-3;

impl Noise {
    fn of(series: &[f64]) -> Self {
        let half = &series[series.len() / 2..];
        let centre = median(half).unwrap_or(0.0);
        // Differences of neighbours do not see a drift or a jump; 1.4826 makes a median deviation a standard deviation.
        let jumps: Vec<f64> = series.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
        let jump = (median(&jumps).unwrap_or(0.0) * 1.4826 / std::f64::consts::SQRT_2).max(QUIETEST);
        let reach = REACH * jump;
        let residues: Vec<f64> = half.iter().map(|value| (value - centre).clamp(-reach, reach)).collect();
        let product: f64 = residues.windows(2).map(|pair| pair[0] * pair[1]).sum();
        let squares: f64 = residues.iter().map(|residue| residue * residue).sum();
        let alike = if squares > 0.0 { (product / squares).clamp(0.0, MOST_ALIKE) } else { 0.0 };
        Self { centre, deviation: jump / (1.0 - alike).sqrt(), alike }
    }

    fn clamp(&self, value: f64) -> f64 {
        let reach = REACH * self.deviation;
        value.clamp(self.centre - reach, self.centre + reach)
    }

    /// The variance that a mean of many has, times their number: above the plain one where neighbours are alike.
    fn variance(&self) -> f64 {
        self.deviation.powi(2) * (1.0 + self.alike) / (1.0 - self.alike)
    }
}

/// Where the pieces of the best segmentation begin, the first at 0.
fn segments(values: &[f64], price: f64) -> Vec<usize> {
    let count = values.len();
    let mut sums = vec![(0.0, 0.0)];
    for value in values {
        let (sum, squares) = sums[sums.len() - 1];
        sums.push((sum + value, squares + value * value));
    }
    let cost = |start: usize, end: usize| {
        let (sum, squares) = (sums[end].0 - sums[start].0, sums[end].1 - sums[start].1);
        (squares - sum * sum / (end - start) as f64).max(0.0)
    };
    // best[end]: the least price of cutting what lies before `end`, and where its last piece begins.
    let mut best = vec![(f64::INFINITY, 0); count + 1];
    best[0] = (0.0, 0);
    for end in SHORTEST..=count {
        for start in (0..=end - SHORTEST).filter(|start| *start == 0 || *start >= SHORTEST) {
            let total = best[start].0 + cost(start, end) + price;
            if total < best[end].0 {
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

/// The times of a record's timed steps, and what they show.
pub fn of_record(record: &Record) -> Steady {
    let times: Vec<f64> = record.timed_steps().map(|step| step.ms).collect();
    steady(&times)
}

/// A sentence for a report that discards nothing: in which trials warm-up seems to last into the timed steps.
pub fn warning(records: &[&Record]) -> Option<String> {
    let judged: Vec<Steady> = records.iter().map(|record| of_record(record)).collect();
    let longest = judged.iter().map(|steady| steady.discarded()).max().filter(|steps| *steps > 0)?;
    let warming = judged.iter().filter(|steady| steady.discarded() > 0).count();
    Some(format!(
        "In {warming} of {} warm-up seems to last into the timed steps, to timed step {longest} at most. Nothing is \
         discarded here; zbench compare discards it, and a larger train.untimed_steps avoids it.",
        units::plural(judged.len(), "measured trial", "measured trials"),
    ))
}
