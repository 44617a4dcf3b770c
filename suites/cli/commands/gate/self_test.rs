//! `gate --self-test`: error rates of the gate on this machine.

use super::{Job, output};
use crate::Format;
use crate::commands::{command_line, print_document, print_json};
use anyhow::{Context, Result, bail};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use zbench_host::environment::binary_hash;
use zbench_host::exit;
use zbench_reports::gate::replay::{Measured, Rates, Replay, promises, replay};
use zbench_reports::gate::self_test::{SelfTest, TRIALS, TURNS};
use zbench_reports::gate::turns::is_speed;
use zbench_reports::gate::{GATE_SCHEMA, Kind, Rules};
use zbench_runner::turns::TurnsError;
use zbench_suites::gate::baseline;
use zbench_suites::gate::pool::{self, Header, OF_TRIALS, OF_TURNS, Pool};

/// Slow-downs that are injected into samples.
const INJECTED: [(&str, f64); 4] =
    [("the same program", 1.0), ("3 % slower", 1.03), ("5 % slower", 1.05), ("10 % slower", 1.10)];

pub fn self_test(job: &mut Job) -> Result<u8> {
    let arguments = job.arguments;
    let measured = if arguments.pool.is_none() { measured(job)? } else { None };
    let stopped = job.stop.load(Ordering::Relaxed);
    let Some(path) = arguments.pool.clone().or(measured) else {
        zbench_host::say!("nothing was measured, so there is nothing to replay");
        return Ok(if stopped { exit::INTERRUPTED } else { exit::NOT_MEASURED });
    };
    let pool = Pool::read(&path)?;
    let runs = arguments.runs.map_or(job.file.self_test.runs, |runs| runs as usize);
    let Some(result) = result(job, &path, &pool, runs) else {
        zbench_host::say!("{} holds no pair of the same program, so there is nothing to replay", path.display());
        return Ok(if stopped { exit::INTERRUPTED } else { exit::NOT_MEASURED });
    };
    if let Some(folder) = folder(job) {
        let file = folder.join("result.json");
        baseline::write(&file, &format!("{}\n", serde_json::to_string_pretty(&result)?))?;
        zbench_host::say!("the result is in {}", file.display());
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

/// Folder of the pool and the result. A replay has one only with `--into`.
fn folder(job: &Job) -> Option<PathBuf> {
    let default = || job.arguments.pool.is_none().then(|| job.global.notebook.join("gate-self-test"));
    job.arguments.into.clone().or_else(default)
}

/// Measures a pool and returns its file, or `None` if no pair was measured. A finished pool replaces an earlier one.
fn measured(job: &Job) -> Result<Option<PathBuf>> {
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
    let (mut file, begun) = begin(&path)?;
    // As the gate itself: speed by turns where the cell can take them. `--pairs` asks for trials.
    let by_turns = job.arguments.pairs.is_none() && target.takes_turns() && job.rules.metrics.iter().any(is_speed);
    let header = Header {
        gate_pool: if by_turns { OF_TURNS } else { OF_TRIALS },
        key: target.key.clone(),
        label: target.label.clone(),
        command: command_line(),
        program: binary_hash(&job.program),
        slow_set: settings.slow_set.clone(),
        started: job.started.to_string(),
        environment: job.environment.clone(),
    };
    writeln!(file, "{}", serde_json::to_string(&header)?)?;
    let progress = output::Progress::new(job.global);
    let tell = |words: &str| progress.tell(words);
    let seconds = 60.0 * job.arguments.minutes.unwrap_or(settings.minutes);
    let pairs = job.arguments.pairs.map_or(settings.pairs, |pairs| pairs as usize);
    // The slower cell has a third of the time, and of the pairs as many more as were asked for in proportion.
    let slow_seconds = if slow.is_empty() { 0.0 } else { seconds / 3.0 };
    let slow_pairs = settings.slow_pairs * pairs / settings.pairs.max(1);
    let arm = job.arm(target, &job.program);
    let of_aa = ("aa", arm.clone(), seconds - slow_seconds, pairs);
    let of_slow = slow.first().map(|slow| ("slow", job.arm(slow, &job.program), slow_seconds, slow_pairs));
    let mut ended = Ok(());
    for (place, (name, candidate, of_arm, pairs)) in [Some(of_aa), of_slow].into_iter().flatten().enumerate() {
        let mut programs = job.programs(arm.clone(), candidate, &target.key, None, &tell);
        programs.seed = job.seed.wrapping_add(place as u64);
        let goes_on = match by_turns {
            true => pool::measure_turns(&mut file, &mut programs, &job.rules, name, of_arm)
                .map_err(|error| in_minutes(error, of_arm, seconds)),
            false => pool::measure(&mut file, &mut programs, &job.rules, name, pairs).map(|done| done == pairs),
        };
        match goes_on {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                ended = Err(error);
                break;
            }
        }
    }
    progress.clear();
    let written = file.sync_all().with_context(|| format!("{} cannot be written", begun.display()));
    if Pool::read(&begun).is_ok_and(|pool| pool.arm("aa").is_none()) {
        // There is no pair to lose.
        let _ = std::fs::remove_file(&begun);
        return ended.map(|()| None);
    }
    let keep = || format!("what was measured until then is in {}; `--pool` replays it", begun.display());
    ended.and(written).with_context(keep)?;
    std::fs::rename(&begun, &path)
        .with_context(|| format!("{} cannot be named {}", begun.display(), path.display()))
        .with_context(keep)?;
    Ok(Some(path))
}

/// A new file beside the pool of that name, which stays as it is until the new one is done; so does what an earlier command left.
fn begin(path: &Path) -> Result<(std::fs::File, PathBuf)> {
    let names =
        std::iter::once("jsonl.new".to_string()).chain((2..=MOST_BEGUN).map(|number| format!("jsonl.new-{number}")));
    for name in names {
        let begun = path.with_extension(name);
        match std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&begun) {
            Ok(file) => return Ok((file, begun)),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("{} cannot be written", begun.display())),
        }
    }
    bail!(
        "{}.new and {} more are there from commands that did not end; remove those that you do not need",
        path.display(),
        MOST_BEGUN - 1
    )
}

/// Most unfinished pools of a folder.
const MOST_BEGUN: usize = 100;

/// Restates an error about too little time in the unit of `--minutes`: minutes of both arms together.
fn in_minutes(error: anyhow::Error, of_arm: f64, seconds: f64) -> anyhow::Error {
    match error.downcast_ref::<TurnsError>() {
        Some(TurnsError::TooShort { start, round, advice, .. }) => {
            let minutes = (10.0 * advice * seconds / of_arm / 60.0).ceil() / 10.0;
            anyhow::anyhow!(
                "the {of_arm:.3} s that the turns of an arm had are too short: starting both sides took {start:.2} s and one round \
                 takes {round:.2} s; use --minutes {minutes} or more"
            )
        }
        None => error,
    }
}

fn result(job: &Job, path: &Path, pool: &Pool, runs: usize) -> Option<SelfTest> {
    let rules = &job.rules;
    let (same, slow) = (pool.arm("aa"), pool.arm("slow"));
    let seed = job.arguments.seed.unwrap_or(1);
    let mut rates: Vec<Rates> = Vec::new();
    for (what, factor) in INJECTED {
        rates.extend(replay(rules, same.as_ref()?, &Replay { what, factor, is_aa: true, runs, seed }));
    }
    if let Some(slow) = &slow
        && let Some(factor) = slow.true_factor(rules)
        && let Some(rate) =
            replay(rules, slow, &Replay { what: "a slower cell", factor: 1.0, is_aa: false, runs, seed })
    {
        rates.push(Rates { factor: factor.mid, measured: true, ..rate });
    }
    if rates.is_empty() {
        return None;
    }
    let same = same?;
    let is_of_turns = matches!(same, Measured::Turns { .. });
    let noisy = rules.metrics.iter().filter(|rule| rule.metric.kind == Kind::Noisy);
    Some(SelfTest {
        gate_self_test: GATE_SCHEMA,
        cell: pool.header.label.clone(),
        key: pool.header.key.clone(),
        rules: job.file.path.display().to_string(),
        settings: settings(rules, is_of_turns),
        pool: path.display().to_string(),
        form: if is_of_turns { TURNS } else { TRIALS }.into(),
        pairs: same.pairs(),
        flagged: same.left_out(),
        generations: same.generations(),
        machine_seconds: same.seconds() + slow.as_ref().map_or(0.0, Measured::seconds),
        untested: noisy
            .filter(|rule| is_of_turns && !is_speed(rule))
            .map(|rule| rule.metric.name.to_string())
            .collect(),
        same: same.true_factor(rules),
        slow_set: pool.header.slow_set.clone(),
        slow_pairs: slow.as_ref().map_or(0, Measured::pairs),
        promises: promises(rules, &rates),
        rates,
        measured: pool.header.started.clone(),
        pool_command: pool.header.command.clone(),
        environment: pool.header.environment.clone(),
        command: command_line(),
    })
}

fn settings(rules: &Rules, is_of_turns: bool) -> String {
    let bands: Vec<String> = rules
        .metrics
        .iter()
        .filter(|rule| !is_of_turns || is_speed(rule))
        .filter_map(|rule| {
            Some(format!(
                "{} {}",
                rule.metric.name,
                zbench_reports::gate::words::limits(&zbench_reports::gate::report::Ratio::band(rule)?)
            ))
        })
        .collect();
    let bands = bands.join(", ");
    let (budget, confidence) = (rules.time_budget, rules.confidence);
    if is_of_turns {
        return format!("{bands}; turns, budget {budget} s, confidence {confidence}");
    }
    format!(
        "{bands}; {} as the speed of a trial, budget {budget} s, looks at {:?} pairs, confidence {confidence}, {} to confirm",
        rules.figure.name(),
        rules.looks(),
        zbench_reports::units::plural(rules.confirm, "rerun", "reruns")
    )
}
