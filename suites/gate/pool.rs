//! The stored pool of a self-test: a header, then a round of turns or a pair of trials on each line.

use super::measure::Programs;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use zbench_reports::gate::random::Random;
use zbench_reports::gate::replay::{Measured, PoolPair};
use zbench_reports::gate::turns::{Round, generations};
use zbench_reports::gate::{Rules, Side, Trial, trial};
use zbench_runner::turns::Ending;
use zbench_runner::turns::load::Others;

/// Version of a pool of pairs of trials.
pub const OF_TRIALS: u32 = 1;
/// Version of a pool of turns.
pub const OF_TURNS: u32 = 2;

/// What a pool is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of this file, which says what its lines are.
    pub gate_pool: u32,
    /// Key of the cell.
    pub key: String,
    /// The cell, in words.
    pub label: String,
    /// The command that measured it.
    pub command: String,
    /// blake3 of the program.
    pub program: Option<String>,
    /// What made the second side of the arm `slow` slower.
    pub slow_set: Vec<String>,
    /// When it began.
    pub started: String,
    /// Machine and program.
    pub environment: Map<String, Value>,
}

/// A line of a pool of turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    /// A trial of each side, which a gate measures before its turns.
    Trials { arm: String, trials: Box<[Trial; 2]> },
    /// A round.
    Round {
        arm: String,
        #[serde(flatten)]
        round: Round,
    },
}

impl Line {
    /// The first time that is none.
    fn wrong(&self) -> Option<(&'static str, f64)> {
        match self {
            Self::Trials { trials, .. } => wrong_trial(&[&trials[0], &trials[1]]),
            Self::Round { round, .. } => wrong_time(&[
                ("baseline_seconds_per_token", round.baseline_seconds_per_token),
                ("candidate_seconds_per_token", round.candidate_seconds_per_token),
                ("seconds", round.seconds),
            ]),
        }
    }
}

fn wrong_trial(trials: &[&Trial]) -> Option<(&'static str, f64)> {
    let times = |trial: &&Trial| {
        let steps = trial.step_ms.iter().map(|ms| ("step_ms", *ms));
        wrong_time(&std::iter::once(("seconds", trial.seconds)).chain(steps).collect::<Vec<_>>())
    };
    trials.iter().find_map(times)
}

fn wrong_time(times: &[(&'static str, f64)]) -> Option<(&'static str, f64)> {
    times.iter().find(|(_, time)| !time.is_finite() || *time <= 0.0).copied()
}

/// A pool that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// What it is of.
    pub header: Header,
    /// Pairs of trials, in the order measured.
    pairs: Vec<PoolPair>,
    /// The lines of a pool of turns.
    lines: Vec<Line>,
}

impl Pool {
    /// What was measured of one arm; nothing where there is no pair of it.
    pub fn arm(&self, name: &str) -> Option<Measured> {
        if self.header.gate_pool == OF_TRIALS {
            let pairs: Vec<PoolPair> = self.pairs.iter().filter(|pair| pair.arm == name).cloned().collect();
            return (!pairs.is_empty()).then_some(Measured::Trials(pairs));
        }
        let (mut first, mut rounds) = (None, Vec::new());
        for line in &self.lines {
            match line {
                Line::Trials { arm, trials } if arm == name => first = Some(trials.clone()),
                Line::Round { arm, round } if arm == name => rounds.push(*round),
                _ => {}
            }
        }
        let generations: Vec<Vec<Round>> =
            rounds.chunk_by(|a, b| a.generation == b.generation).map(<[Round]>::to_vec).collect();
        Some(Measured::Turns { trials: first.filter(|_| !generations.is_empty())?, generations })
    }

    /// Reads a pool. A last line that was cut off is left out.
    ///
    /// # Errors
    /// It is absent or something else, or a time in it is none.
    pub fn read(path: &Path) -> Result<Pool> {
        let name = path.display();
        let file = std::fs::File::open(path).with_context(|| format!("the pool {name} cannot be opened"))?;
        let mut lines = BufReader::new(file).lines();
        let first =
            lines.next().transpose().with_context(|| format!("{name}, line 1, cannot be read"))?.unwrap_or_default();
        let header: Header = serde_json::from_str(&first)
            .with_context(|| format!("{name} is no pool; zbench gate RULES --self-test measures one"))?;
        let version = header.gate_pool;
        if ![OF_TRIALS, OF_TURNS].contains(&version) {
            bail!("{name}: its schema is {version} and this zbench reads {OF_TRIALS} and {OF_TURNS}; measure it anew");
        }
        let mut pool = Pool { header, pairs: Vec::new(), lines: Vec::new() };
        let mut broken = None;
        for (number, line) in lines.enumerate() {
            if let Some((number, error)) = broken {
                bail!("{name}, line {number}: {error}");
            }
            let line = line.with_context(|| format!("{name}, line {}, cannot be read", number + 2))?;
            let read = match version {
                OF_TRIALS => serde_json::from_str(&line).map(|pair: PoolPair| {
                    let wrong = wrong_trial(&[&pair.a, &pair.b]);
                    pool.pairs.push(pair);
                    wrong
                }),
                _ => serde_json::from_str(&line).map(|line: Line| {
                    let wrong = line.wrong();
                    pool.lines.push(line);
                    wrong
                }),
            };
            if let Ok(Some((field, value))) = read {
                bail!(
                    "{name}, line {}: {field} is {value}, and a time is more than 0; measure the pool anew, or remove that line",
                    number + 2
                );
            }
            broken = read.err().map(|error| (number + 2, error));
        }
        Ok(pool)
    }
}

/// Measures turns of an arm into a file for so many seconds, in generations as long as a gate's; false when it was stopped.
///
/// # Errors
/// The file cannot be written, a trial did not run to its end, a side ended in its turn, or the time is too short for one round.
pub fn measure_turns(
    file: &mut impl Write,
    programs: &mut Programs,
    rules: &Rules,
    arm: &str,
    seconds: f64,
) -> Result<bool> {
    let mut trials = Vec::new();
    for side in [Side::Baseline, Side::Candidate] {
        let Some((trial, _)) = programs.measure(side) else { return Ok(false) };
        trials.push(measured(trial, rules)?);
    }
    let Ok(trials) = <Box<[Trial; 2]>>::try_from(trials) else { return Ok(false) };
    writeln!(file, "{}", serde_json::to_string(&Line::Trials { arm: arm.into(), trials })?)?;
    let generation = rules.time_budget / f64::from(generations(rules.time_budget));
    let count = (seconds / generation).round().max(1.0) as u32;
    let mut written = Ok(());
    let mut spent = 0.0;
    let ending = programs.take_turns(seconds, count, &mut Others::default(), &mut |rounds| {
        for round in rounds {
            spent += round.seconds;
            let line = serde_json::to_string(&Line::Round { arm: arm.into(), round: *round });
            written = line.map_err(std::io::Error::from).and_then(|line| writeln!(file, "{line}"));
            if written.is_err() {
                return false;
            }
        }
        (programs.tell)(&format!("{arm}: {spent:.0} of {seconds:.0} s"));
        true
    })?;
    written?;
    match ending {
        Ending::Interrupted => Ok(false),
        Ending::Alone => bail!("a side of the arm {arm} ended in its turn; run the cell by itself to see why"),
        Ending::Decided | Ending::Budget => Ok(true),
    }
}

/// Measures pairs of an arm into a file; how many there are when it is done or stopped.
///
/// # Errors
/// The file cannot be written, or a trial did not run to its end.
pub fn measure(
    file: &mut impl Write,
    programs: &mut Programs,
    rules: &Rules,
    arm: &str,
    pairs: usize,
) -> Result<usize> {
    let mut random = Random::new(programs.seed);
    for done in 0..pairs {
        let a_first = random.coin();
        let order = if a_first { [Side::Baseline, Side::Candidate] } else { [Side::Candidate, Side::Baseline] };
        let (mut a, mut b) = (None, None);
        for side in order {
            let Some((trial, _)) = programs.measure(side) else { return Ok(done) };
            *(if side == Side::Baseline { &mut a } else { &mut b }) = Some(measured(trial, rules)?);
        }
        if let (Some(a), Some(b)) = (a, b) {
            writeln!(file, "{}", serde_json::to_string(&PoolPair { arm: arm.into(), a_first, a, b })?)?;
        }
        (programs.tell)(&format!("{arm}: pair {} of {pairs}", done + 1));
    }
    Ok(pairs)
}

/// What a replay reads of a trial that ran to its end: the steps and the metrics of the rules.
fn measured(mut trial: Trial, rules: &Rules) -> Result<Trial> {
    if !trial.is_measured() {
        bail!("a trial ended as {}: {}", trial.status.words(), trial.reason);
    }
    trial::compact(std::slice::from_mut(&mut trial));
    trial.losses.clear();
    trial.unstated = Default::default();
    let wanted = |name: &str| rules.metrics.iter().any(|rule| rule.metric.name == name);
    trial.values = trial.values.iter().filter(|(name, _)| wanted(name)).map(|(name, value)| (name, *value)).collect();
    Ok(trial)
}
