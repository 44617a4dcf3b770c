//! What became of rows: predictions beside what was published, and how far they are apart.

use super::row::{Row, fits};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A row's outcome, in the row's unit and convention.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The row.
    pub id: String,
    /// Its family.
    pub family: String,
    /// What it states.
    pub quantity: String,
    /// In which unit.
    pub unit: String,
    /// Of which kind the bound is; empty = a plain value.
    pub bound: String,
    /// What was published.
    pub published: Option<f64>,
    /// What is predicted; none where the row cannot be expressed.
    pub predicted: Option<f64>,
    /// Whether it counts.
    pub scored: bool,
    /// Why it is not expressed, or does not count.
    pub reason: String,
    /// Whether the run fitted, and whether it is predicted to, where the row states it.
    #[serde(skip)]
    pub fits: Option<(bool, bool)>,
    /// Half a unit of the last digit that was published.
    #[serde(skip)]
    pub rounding: f64,
}

impl Outcome {
    /// That of a row with nothing predicted yet.
    pub fn of(row: &Row, quantity: &str, unit: &str, value: &str) -> Outcome {
        let published = value.replace(',', "").parse::<f64>().ok().filter(|n| n.is_finite());
        Outcome {
            id: row.id().into(),
            family: row.family().into(),
            quantity: quantity.into(),
            unit: unit.into(),
            bound: row.text("bound").into(),
            published,
            predicted: None,
            scored: false,
            reason: String::new(),
            fits: None,
            rounding: rounding(value),
        }
    }

    /// Predicted over published, less one.
    pub fn error(&self) -> Option<f64> {
        match (self.published, self.predicted) {
            (Some(published), Some(predicted)) if published != 0.0 => Some(predicted / published - 1.0),
            _ => None,
        }
    }

    /// Whether it is as exact as the published digits can say.
    pub fn exact(&self) -> bool {
        match (self.published, self.predicted) {
            (Some(published), Some(predicted)) => (published - predicted).abs() <= self.rounding * (1.0 + 1e-9),
            _ => false,
        }
    }
}

/// Half a unit of the last digit of a number's text; zeros before the point count as digits not given.
pub fn rounding(text: &str) -> f64 {
    let text = text.trim();
    if let Some((_, behind)) = text.split_once('.') {
        let digits = behind.chars().take_while(char::is_ascii_digit).count();
        return 0.5 * 10f64.powi(-(digits.min(300) as i32));
    }
    let zeros = text.chars().rev().take_while(|c| *c == '0').count();
    0.5 * 10f64.powi(zeros.min(300) as i32)
}

/// How far predictions are apart from what was published.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Rows.
    pub rows: usize,
    /// Of which something is predicted.
    pub expressed: usize,
    /// Which count.
    pub scored: usize,
    /// Median of the absolute error, as a share.
    pub median: f64,
    /// 90th percentile of it.
    pub p90: f64,
    /// Rows that count and are exact to the published digits.
    pub exact: usize,
}

/// A quantile by linear interpolation; 0 for nothing.
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return 0.0 };
    let place = share.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    values[low] + (values[high] - values[low]) * (place - low as f64)
}

/// The score of some outcomes.
pub fn score<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Score {
    let mut score = Score::default();
    let mut errors = Vec::new();
    for outcome in outcomes {
        score.rows += 1;
        score.expressed += usize::from(outcome.predicted.is_some());
        if !outcome.scored {
            continue;
        }
        if let Some(error) = outcome.error() {
            score.scored += 1;
            score.exact += usize::from(outcome.exact());
            errors.push(error.abs());
        }
    }
    score.median = quantile(&mut errors, 0.5);
    score.p90 = quantile(&mut errors, 0.9);
    score
}

/// Which rows a score is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Those that constants may be fitted on.
    Fit,
    /// The others.
    Test,
    /// All.
    All,
}

impl Half {
    /// Whether a row is among them.
    pub fn holds(self, outcome: &Outcome) -> bool {
        match self {
            Half::Fit => fits(&outcome.id),
            Half::Test => !fits(&outcome.id),
            Half::All => true,
        }
    }
}

/// What is predicted of runs that fitted and of runs that were out of memory. As most published runs fitted, the share that is
/// right says little by itself: [`Fits::always_right`] is that of whoever says of every run that it fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fits {
    /// Fitted, and predicted to.
    pub fitted: usize,
    /// Fitted, and predicted to be out of memory.
    pub false_alarms: usize,
    /// Were out of memory, and predicted to be.
    pub found: usize,
    /// Were out of memory, and predicted to fit.
    pub missed: usize,
}

impl Fits {
    /// Of the outcomes that state it.
    pub fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Fits {
        let mut all = Fits::default();
        for (did_fit, is_to) in outcomes.into_iter().filter_map(|outcome| outcome.fits) {
            *match (did_fit, is_to) {
                (true, true) => &mut all.fitted,
                (true, false) => &mut all.false_alarms,
                (false, false) => &mut all.found,
                (false, true) => &mut all.missed,
            } += 1;
        }
        all
    }

    /// Runs.
    pub fn runs(&self) -> usize {
        self.fitted + self.false_alarms + self.found + self.missed
    }

    /// Those predicted right.
    pub fn right(&self) -> usize {
        self.fitted + self.found
    }

    /// Those that a prediction of "fits" for every run has right.
    pub fn always_right(&self) -> usize {
        self.fitted + self.false_alarms
    }

    /// Share of the runs that were out of memory that are predicted to be.
    pub fn recall(&self) -> Option<f64> {
        share(self.found, self.found + self.missed)
    }

    /// Share of the runs predicted to be out of memory that were.
    pub fn precision(&self) -> Option<f64> {
        share(self.found, self.found + self.false_alarms)
    }
}

fn share(part: usize, of: usize) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

/// Ratios of published to predicted values by family, as logarithms of speeds or sizes.
#[derive(Clone, Debug, Default)]
pub struct Residuals(BTreeMap<String, Vec<f64>>);

impl Residuals {
    /// Of the scored outcomes; a time of a step is one over a speed.
    pub fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Residuals {
        let mut families: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for outcome in outcomes.into_iter().filter(|outcome| outcome.scored) {
            let (Some(published), Some(predicted)) = (outcome.published, outcome.predicted) else { continue };
            let log = (published / predicted).ln();
            let log = if outcome.quantity == "step_time_s" { -log } else { log };
            if log.is_finite() {
                families.entry(outcome.family.clone()).or_default().push(log);
            }
        }
        Residuals(families)
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Families.
    pub fn families(&self) -> usize {
        self.0.len()
    }

    /// The factors between which this share of the rows lies, as much left out below as above; each family counts once.
    pub fn band(&self, share: f64) -> Option<(f64, f64)> {
        let mut weighted: Vec<(f64, f64)> =
            self.0.values().flat_map(|logs| logs.iter().map(|log| (*log, 1.0 / logs.len() as f64))).collect();
        weighted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let edge = |share: f64| {
            let (mut below, wanted) = (0.0, share * self.families() as f64);
            let reaches = |(_, weight): &&(f64, f64)| {
                below += weight;
                below >= wanted - 1e-9
            };
            weighted.iter().find(reaches).or(weighted.last()).map(|(log, _)| log.exp())
        };
        edge((1.0 - share) / 2.0).zip(edge((1.0 + share) / 2.0))
    }

    /// Share of the rows between two factors, each family counted once.
    pub fn held(&self, low: f64, high: f64) -> f64 {
        let of = |logs: &Vec<f64>| held(logs, low, high);
        self.0.values().map(of).sum::<f64>() / self.families().max(1) as f64
    }

    /// Mean share of a family's rows in the band of all others; none where there is one family.
    pub fn left_out(&self, share: f64) -> Option<f64> {
        let mut sum = 0.0;
        for (family, logs) in &self.0 {
            let others = self.0.iter().filter(|(other, _)| *other != family).map(|(k, v)| (k.clone(), v.clone()));
            let (low, high) = Residuals(others.collect()).band(share)?;
            sum += held(logs, low, high);
        }
        (self.families() > 0).then(|| sum / self.families() as f64)
    }
}

fn held(logs: &[f64], low: f64, high: f64) -> f64 {
    let within = |log: &&f64| (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(&log.exp());
    logs.iter().filter(within).count() as f64 / logs.len().max(1) as f64
}

/// A report: per family, halves, worst rows, what is not expressed.
pub fn report(outcomes: &[Outcome], worst: usize) -> String {
    let mut text = String::new();
    let families: BTreeMap<&str, Vec<&Outcome>> = outcomes.iter().fold(BTreeMap::new(), |mut map, outcome| {
        map.entry(outcome.family.as_str()).or_insert_with(Vec::new).push(outcome);
        map
    });
    let _ = writeln!(
        text,
        "{:<18} {:>5} {:>5} {:>5} {:>5} {:>8} {:>8}",
        "family", "rows", "expr", "count", "exact", "median", "p90"
    );
    let line = |text: &mut String, name: &str, score: Score| {
        let (median, p90) = (100.0 * score.median, 100.0 * score.p90);
        let Score { rows, expressed, scored, exact, .. } = score;
        let _ = writeln!(text, "{name:<18} {rows:>5} {expressed:>5} {scored:>5} {exact:>5} {median:>7.1}% {p90:>7.1}%");
    };
    for (family, of) in &families {
        line(&mut text, family, score(of.iter().copied()));
    }
    for (name, half) in [("fit half", Half::Fit), ("test half", Half::Test), ("all", Half::All)] {
        line(&mut text, name, score(outcomes.iter().filter(|outcome| half.holds(outcome))));
    }
    let fits = Fits::of(outcomes);
    let _ = writeln!(
        text,
        "fits or not: {} of {} right, {} by saying \"fits\" of all; of {} out of memory {} found, {} false alarms",
        fits.right(),
        fits.runs(),
        fits.always_right(),
        fits.found + fits.missed,
        fits.found,
        fits.false_alarms
    );
    let mut far: Vec<&Outcome> =
        outcomes.iter().filter(|outcome| outcome.scored && outcome.error().is_some()).collect();
    far.sort_by(|a, b| b.error().unwrap_or(0.0).abs().total_cmp(&a.error().unwrap_or(0.0).abs()));
    for outcome in far.iter().take(worst) {
        let _ = writeln!(
            text,
            "  {:<28} {} {:+.1}% published {:.4e} predicted {:.4e} {}",
            outcome.id,
            outcome.quantity,
            100.0 * outcome.error().unwrap_or(0.0),
            outcome.published.unwrap_or(0.0),
            outcome.predicted.unwrap_or(0.0),
            outcome.unit
        );
    }
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.predicted.is_none()) {
        reasons.entry(&outcome.reason).or_default().push(&outcome.id);
    }
    for (reason, ids) in reasons {
        let _ = writeln!(text, "  not expressed: {reason}: {}", ids.join(" "));
    }
    text
}
