//! One metric of a pair and its verdict, as data and in words.

use serde::Serialize;

use crate::evidence;
use crate::units;

/// Which way a metric is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

/// The result of comparing B with A on a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// B is better: the interval excludes 1.
    BBetter,
    /// B is worse: the interval excludes 1.
    BWorse,
    /// The interval contains 1.
    NoDifference,
    /// By turns: the two differ by less than the requested share.
    Equal,
    /// By turns: the data do not decide.
    Undecided,
    /// Counted, and equal in every trial of both sides.
    Same,
    /// A side has one trial: nothing is claimed.
    TooFewTrials,
    /// A side does not state it, or its value is invalid; `reason` says which.
    NotComparable,
}

/// One metric of a pair.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Metric {
    /// Its name in records; `wire_bytes` is the sum over `communication`.
    pub name: String,
    /// Its unit.
    pub unit: &'static str,
    /// Which way it is better.
    pub better: Better,
    /// Median over A's trials.
    pub a: Option<f64>,
    /// Median over B's trials.
    pub b: Option<f64>,
    /// B / A.
    pub ratio: Option<f64>,
    /// Lower limit of the 95 % interval of the ratio; by turns of the 98 % interval.
    pub low: Option<f64>,
    /// Upper limit.
    pub high: Option<f64>,
    /// What the interval covers: `trials_and_steps`, `trials`, `turns` (98 %, over common rounds), or `counted` if all trials agree and
    /// no interval is needed.
    pub interval: Option<&'static str>,
    /// The result.
    pub verdict: Verdict,
    /// The result in words.
    pub words: String,
    /// Why it is not comparable.
    pub reason: Option<String>,
}

impl Verdict {
    /// Whether B is claimed to be better or worse.
    pub fn claims(self) -> bool {
        matches!(self, Self::BBetter | Self::BWorse)
    }

    /// What a verdict is called in a table.
    pub fn in_table(self) -> &'static str {
        match self {
            Self::BBetter => "faster",
            Self::BWorse => "slower",
            Self::Equal => "equal",
            Self::Undecided => "undecided",
            Self::NoDifference => "no difference shown",
            Self::Same => "same",
            Self::TooFewTrials => "too few trials",
            Self::NotComparable => "not compared",
        }
    }
}

impl Metric {
    /// A metric without a value: neither side states it.
    pub fn new(name: &str, unit: &'static str, better: Better) -> Self {
        Self {
            name: name.to_string(),
            unit,
            better,
            a: None,
            b: None,
            ratio: None,
            low: None,
            high: None,
            interval: None,
            verdict: Verdict::NotComparable,
            words: String::new(),
            reason: None,
        }
    }

    /// Its name in tables.
    pub fn title(&self) -> &str {
        match self.name.as_str() {
            "tokens_per_second" => "tokens/s",
            "step_ms_p50" => "step p50",
            "step_ms_p90" => "step p90",
            "step_ms_p99" => "step p99",
            "mfu" => "MFU",
            "exposed_communication_ms" => "exposed communication",
            "peak_memory_bytes" => "peak memory",
            "wire_bytes" => "wire per step",
            other => other,
        }
    }

    /// A value of this metric with its unit.
    pub fn with_unit(&self, value: f64) -> String {
        match self.unit {
            "bytes" if self.name == "wire_bytes" => units::traffic(value),
            "bytes" => units::memory(value),
            "fraction" => units::percent(value),
            unit => format!("{} {unit}", units::number(value)),
        }
    }

    /// The subject of a sentence about B, and the words for more and less of the metric.
    fn vocabulary(&self) -> (String, &'static str, &'static str) {
        let (subject, more, less) = match self.name.as_str() {
            "tokens_per_second" => ("B is", "faster", "slower"),
            "step_ms_p50" => ("B's median step is", "longer", "shorter"),
            "step_ms_p90" => ("B's p90 step is", "longer", "shorter"),
            "step_ms_p99" => ("B's p99 step is", "longer", "shorter"),
            "exposed_communication_ms" => ("B's exposed communication is", "longer", "shorter"),
            "peak_memory_bytes" => ("B needs", "more memory", "less memory"),
            "wire_bytes" => ("B moves", "more bytes on the wire", "fewer bytes on the wire"),
            _ => return (format!("B's {} is", self.title()), "higher", "lower"),
        };
        (subject.to_string(), more, less)
    }

    /// The verdict in words; `trials` of A and of B.
    pub fn in_words(&self, trials: (usize, usize)) -> String {
        if let Some(reason) = &self.reason {
            return format!("not compared: {reason}");
        }
        let limits = self.low.zip(self.high);
        match (self.verdict, limits) {
            (Verdict::TooFewTrials, _) => {
                format!("too few trials to say ({} and {}; two on each side are needed)", trials.0, trials.1)
            }
            (Verdict::NoDifference, Some((low, high))) => {
                let far = (high - 1.0).max(1.0 - low);
                let caution = match far {
                    far if far < 0.1 => String::new(),
                    far if far < 9.0 => format!("; up to {} % is not excluded", percent(far, 0)),
                    _ => "; the trials exclude next to nothing".to_string(),
                };
                let nothing = if high >= MANY { "1" } else { "0" };
                format!("no difference shown: the interval {} holds {nothing}{caution}", changes(low, high))
            }
            (Verdict::Same, _) => "the same in every trial".into(),
            _ => self.difference(limits),
        }
    }

    /// The speed by turns in words.
    pub fn by_turns_in_words(&self, pair: &evidence::Comparison, equal: f64) -> String {
        let rounds = units::plural(pair.rounds, "round", "rounds");
        let limits = self.low.zip(self.high);
        let ratio = match (self.ratio, limits) {
            (Some(ratio), Some((low, high))) => format!(": {} ({})", units::change(ratio - 1.0), changes(low, high)),
            (Some(ratio), None) => format!(": {}, and no limits yet", units::change(ratio - 1.0)),
            _ => String::new(),
        };
        match self.verdict {
            Verdict::Equal => format!("A and B are equally fast within {} %{ratio}, over {rounds}", percent(equal, 0)),
            Verdict::Undecided => format!("undecided which is faster{ratio}, over {rounds}"),
            _ => format!("{}, over {rounds}", self.difference(limits)),
        }
    }

    /// `B is 12 % faster (8 to 16 %)`.
    fn difference(&self, limits: Option<(f64, f64)>) -> String {
        let (subject, more, less) = self.vocabulary();
        let Some(ratio) = self.ratio else {
            let is_more = (self.verdict == Verdict::BBetter) == (self.better == Better::Higher);
            return format!("{subject} {} (there is no ratio to 0)", if is_more { more } else { less });
        };
        let exactly = if limits.is_none() { ", exactly" } else { "" };
        if ratio >= 2.0 {
            let range = limits.map_or(String::new(), |(low, high)| format!(" ({low:.2} to {high:.2})"));
            return format!("{subject} {more}: {ratio:.2} times A's{range}{exactly}");
        }
        let (word, change) = if ratio > 1.0 { (more, ratio - 1.0) } else { (less, 1.0 - ratio) };
        let range =
            limits.map(|(low, high)| if ratio > 1.0 { (low - 1.0, high - 1.0) } else { (1.0 - high, 1.0 - low) });
        let smallest = range.map_or(change, |(low, _)| low.abs().min(change));
        // Small numbers have a digit more; a claim never reads 0 %.
        let digits = if smallest < 0.000_95 { 2 } else { usize::from(smallest < 0.0995) };
        let range = range
            .map_or(String::new(), |(low, high)| format!(" ({} to {} %)", percent(low, digits), percent(high, digits)));
        format!("{subject} {} % {word}{range}{exactly}", percent(change, digits))
    }
}

/// Percent without a sign, with so many digits behind the point.
pub fn percent(fraction: f64, digits: usize) -> String {
    let percent = fraction * 100.0;
    if percent.is_finite() { format!("{:.*}", digits, percent) } else { units::NOTHING.to_string() }
}

fn signed(fraction: f64) -> String {
    let text = units::change(fraction);
    text.trim_end_matches(" %").to_string()
}

/// Intervals that reach this ratio are given as multiples.
const MANY: f64 = 10.0;

/// `-2.1 to +3.4 %`: an interval of ratios as changes.
fn changes(low: f64, high: f64) -> String {
    if high >= MANY {
        return format!("{} to {} times", units::number(low), units::number(high));
    }
    format!("{} to {} %", signed(low - 1.0), signed(high - 1.0))
}
