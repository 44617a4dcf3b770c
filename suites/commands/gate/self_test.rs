//! `gate --self-test`: how often the gate errs on this machine.

use super::{Job, output};
use crate::cli::{Format, exit};
use crate::commands::{command_line, print_document, print_json};
use crate::gate::baseline;
use crate::gate::pool::{self, Header, Pool};
use anyhow::{Context, Result, bail};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use zbench_reports::gate::replay::{PoolPair, Rates, Replay, promises, replay, true_factor};
use zbench_reports::gate::self_test::SelfTest;
use zbench_reports::gate::{GATE_SCHEMA, Rules};

/// Slow-downs that are put into samples.
const INJECTED: [(&str, f64); 4] =
    [("the same program", 1.0), ("3 % slower", 1.03), ("5 % slower", 1.05), ("10 % slower", 1.10)];

pub fn self_test(job: &mut Job) -> Result<u8> {
    let arguments = job.arguments;
    let path = match &arguments.pool {
        Some(path) => path.clone(),
        None => measured(job)?,
    };
    let stopped = job.stop.load(Ordering::Relaxed);
    let pool = Pool::read(&path)?;
    let runs = arguments.runs.map_or(job.file.self_test.runs, |runs| runs as usize);
    let Some(result) = result(job, &path, &pool, runs) else {
        crate::say!("{} holds no pair of the same program, so there is nothing to replay", path.display());
        return Ok(if stopped { exit::INTERRUPTED } else { exit::NOT_MEASURED });
    };
    if let Some(folder) = folder(job) {
        let file = folder.join("result.json");
        baseline::write(&file, &format!("{}\n", serde_json::to_string_pretty(&result)?))?;
        crate::say!("the result is in {}", file.display());
    }
    match job.global.format {
        Format::Json => print_json(&format!("{}\n", serde_json::to_string(&result)?))?,
        _ => print_document(job.global, &result.document())?,
    }
    Ok(match (stopped, result.is_kept()) {
        (true, _) => exit::INTERRUPTED,
        (_, true) => exit::SUCCESS,
        (_, false) => exit::INCONCLUSIVE,
    })
}

/// Where pool and result are kept: always when it measures, when it replays only if it was asked for.
fn folder(job: &Job) -> Option<PathBuf> {
    let default = || job.arguments.pool.is_none().then(|| job.global.notebook.join("gate-self-test"));
    job.arguments.into.clone().or_else(default)
}

/// Measures a pool; its file.
fn measured(job: &Job) -> Result<PathBuf> {
    let targets = job.targets(&[])?.with_context(|| job.no_config("--self-test"))?;
    let [target] = &targets[..] else {
        bail!(
            "{}: its configuration has {} cells, and a self-test is about one; narrow it with set or only",
            job.file.path.display(),
            targets.len()
        );
    };
    let settings = &job.file.self_test;
    let slow = if settings.slow_set.is_empty() { None } else { job.targets(&settings.slow_set)? };
    let slow = slow.unwrap_or_default();
    if slow.first().is_some_and(|slow| slow.key == target.key) {
        bail!("{}: self_test.slow_set changes nothing about the cell", job.file.path.display());
    }
    let folder = folder(job).unwrap_or_default();
    std::fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let path = folder.join("pool.jsonl");
    let mut file = std::fs::File::create(&path).with_context(|| format!("{} cannot be written", path.display()))?;
    let header = Header {
        gate_pool: GATE_SCHEMA,
        key: target.key.clone(),
        label: target.label.clone(),
        command: command_line(),
        program: baseline::hash(&job.program),
        slow_set: settings.slow_set.clone(),
        started: job.started.to_string(),
        environment: job.environment.clone(),
    };
    writeln!(file, "{}", serde_json::to_string(&header)?)?;
    let progress = output::Progress::new(job.global);
    let tell = |words: &str| progress.tell(words);
    let arm = job.arm(target, &job.program);
    let pairs = job.arguments.pairs.map_or(settings.pairs, |pairs| pairs as usize);
    let mut programs = job.programs(arm.clone(), arm.clone(), &target.key, None, &tell);
    let done = pool::measure(&mut file, &mut programs, &job.rules, "aa", pairs, job.seed)?;
    if let (Some(slow), true) = (slow.first(), done == pairs) {
        let mut programs = job.programs(arm, job.arm(slow, &job.program), &target.key, None, &tell);
        // As many more as were asked for in proportion.
        let count = settings.slow_pairs * pairs / settings.pairs.max(1);
        pool::measure(&mut file, &mut programs, &job.rules, "slow", count, job.seed.wrapping_add(1))?;
    }
    file.sync_all()?;
    progress.clear();
    Ok(path)
}

fn result(job: &Job, path: &Path, pool: &Pool, runs: usize) -> Option<SelfTest> {
    let rules = &job.rules;
    let (same, slow) = (pool.arm("aa"), pool.arm("slow"));
    let seed = job.arguments.seed.unwrap_or(1);
    let of = |what: &str, factor: f64, pairs: &[PoolPair]| replay(rules, pairs, &Replay { what, factor, runs, seed });
    let mut rates: Vec<Rates> = INJECTED.iter().filter_map(|(what, factor)| of(what, *factor, &same)).collect();
    let true_slow = true_factor(rules, &slow);
    if let (Some(factor), Some(mut measured)) = (true_slow, of("a slower cell", 1.0, &slow)) {
        (measured.factor, measured.measured) = (factor.mid, true);
        rates.push(measured);
    }
    if rates.is_empty() {
        return None;
    }
    Some(SelfTest {
        gate_self_test: GATE_SCHEMA,
        cell: pool.header.label.clone(),
        key: pool.header.key.clone(),
        rules: job.file.path.display().to_string(),
        settings: settings(rules),
        pool: path.display().to_string(),
        pairs: same.len(),
        flagged: same.iter().filter(|pair| !pair.a.is_clean() || !pair.b.is_clean()).count(),
        same: true_factor(rules, &same),
        slow_set: pool.header.slow_set.clone(),
        slow_pairs: slow.len(),
        promises: promises(rules, &rates),
        rates,
        measured: pool.header.started.clone(),
        pool_command: pool.header.command.clone(),
        environment: pool.header.environment.clone(),
        command: command_line(),
    })
}

fn settings(rules: &Rules) -> String {
    let bands: Vec<String> = rules
        .metrics
        .iter()
        .filter_map(|rule| {
            Some(format!(
                "{} {}",
                rule.metric.name,
                zbench_reports::gate::words::limits(&zbench_reports::gate::report::Ratio::band(rule)?)
            ))
        })
        .collect();
    format!(
        "{}; {} as the speed of a trial, budget {} s, looks at {:?} pairs, confidence {}, {} to confirm",
        bands.join(", "),
        rules.figure.name(),
        rules.time_budget,
        rules.looks(),
        rules.confidence,
        zbench_reports::units::plural(rules.confirm, "rerun", "reruns")
    )
}
