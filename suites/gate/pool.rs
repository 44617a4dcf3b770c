//! The stored pool of a self-test: a header, then a pair on each line.

use super::measure::Programs;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use zbench_reports::gate::random::Random;
use zbench_reports::gate::replay::PoolPair;
use zbench_reports::gate::{GATE_SCHEMA, Rules, Side, Trial, trial};

/// What a pool is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of this file.
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

/// A pool that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// What it is of.
    pub header: Header,
    /// The pairs, in the order measured.
    pub pairs: Vec<PoolPair>,
}

impl Pool {
    /// The pairs of one arm.
    pub fn arm(&self, arm: &str) -> Vec<PoolPair> {
        self.pairs.iter().filter(|pair| pair.arm == arm).cloned().collect()
    }

    /// Reads a pool. A last line that was cut off is left out.
    ///
    /// # Errors
    /// It is absent or something else.
    pub fn read(path: &Path) -> Result<Pool> {
        let name = path.display();
        let file = std::fs::File::open(path).with_context(|| format!("the pool {name} cannot be opened"))?;
        let mut lines = BufReader::new(file).lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        let header: Header = serde_json::from_str(&first)
            .with_context(|| format!("{name} is no pool; zbench gate RULES --self-test measures one"))?;
        if header.gate_pool != GATE_SCHEMA {
            bail!("{name}: its schema is {} and this zbench reads {GATE_SCHEMA}; measure it anew", header.gate_pool);
        }
        let mut pairs = Vec::new();
        let mut broken = None;
        for (number, line) in lines.enumerate() {
            if let Some((number, error)) = broken {
                bail!("{name}, line {number}: {error}");
            }
            match serde_json::from_str(&line?) {
                Ok(pair) => pairs.push(pair),
                Err(error) => broken = Some((number + 2, error)),
            }
        }
        Ok(Pool { header, pairs })
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
    seed: u64,
) -> Result<usize> {
    let mut random = Random::new(seed);
    let mut a_first = false;
    for done in 0..pairs {
        // As in a gate: chance decides, and the next pair is the other way round.
        a_first = if done % 2 == 0 { random.coin() } else { !a_first };
        let order = if a_first { [Side::Baseline, Side::Candidate] } else { [Side::Candidate, Side::Baseline] };
        let (mut a, mut b) = (None, None);
        for side in order {
            let Some((trial, _)) = programs.measure(side) else { return Ok(done) };
            if !trial.is_measured() {
                bail!("a trial ended as {}: {}", trial.status.words(), trial.reason);
            }
            *(if side == Side::Baseline { &mut a } else { &mut b }) = Some(lean(trial, rules));
        }
        if let (Some(a), Some(b)) = (a, b) {
            writeln!(file, "{}", serde_json::to_string(&PoolPair { arm: arm.into(), a_first, a, b })?)?;
        }
        (programs.tell)(&format!("{arm}: pair {} of {pairs}", done + 1));
    }
    Ok(pairs)
}

/// What a replay reads: the steps and the metrics of the rules.
fn lean(mut trial: Trial, rules: &Rules) -> Trial {
    trial::compact(std::slice::from_mut(&mut trial));
    trial.losses.clear();
    trial.unstated = Default::default();
    let wanted = |name: &str| rules.metrics.iter().any(|rule| rule.metric.name == name);
    trial.values = trial.values.iter().filter(|(name, _)| wanted(name)).map(|(name, value)| (name, *value)).collect();
    trial
}
