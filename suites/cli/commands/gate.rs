//! `zbench gate`: is this program, or this configuration, as good as that one?

mod compare;
mod output;
mod self_test;
mod update;

use super::session::Session;
use crate::{GateArgs, Global};
use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use zbench_config::ConfigError;
use zbench_host::{exit, machine};
use zbench_reports::gate::next;
use zbench_reports::gate::report::figure_words;
use zbench_reports::gate::{CellReport, GATE_SCHEMA, Opponent, Question, Report, Rules, Verdict, verdict};
use zbench_reports::store::nofollow;
use zbench_runner::turns::load::Others;
use zbench_suites::gate::cells::{self, Target, absolute};
use zbench_suites::gate::measure::{Arm, Programs, Running};
use zbench_suites::gate::rules::RulesFile;
use zbench_suites::gate::scratch::{Scratch, stop_flag};

/// Runs a comparison, the self-test, or an update of the baseline.
pub fn gate(global: &Global, session: &Session, arguments: &GateArgs) -> Result<u8> {
    if session.leader.is_some() {
        bail!("zbench gate measures in processes of its own; start it by itself, not under torchrun, srun or mpirun");
    }
    let file = RulesFile::read(&arguments.rules)?;
    let mut job = Job::new(global, arguments, file)?;
    if arguments.self_test {
        return self_test::self_test(&mut job);
    }
    if arguments.update {
        return update::update(&mut job);
    }
    let report = job.judge()?;
    output::write(global, arguments, &report)?;
    Ok(report.exit_code)
}

/// The state of one command.
struct Job<'a> {
    global: &'a Global,
    arguments: &'a GateArgs,
    file: RulesFile,
    rules: Rules,
    seed: u64,
    stop: Arc<AtomicBool>,
    program: PathBuf,
    scratch: Scratch,
    running: Running,
    environment: Map<String, Value>,
    started: jiff::Timestamp,
    begun: Instant,
    notes: Vec<String>,
}

impl<'a> Job<'a> {
    fn new(global: &'a Global, arguments: &'a GateArgs, file: RulesFile) -> Result<Job<'a>> {
        let mut rules = file.rules.clone();
        for name in &arguments.fail_on {
            // clap has let only known names through.
            if let Some(verdict) = Verdict::policy(name).filter(|verdict| !rules.fail_on.contains(verdict)) {
                rules.fail_on.push(verdict);
            }
        }
        if let Some(budget) = arguments.time_budget {
            rules.time_budget = budget.as_secs_f64();
        }
        let started = jiff::Timestamp::now();
        let seed = arguments.seed.unwrap_or_else(super::seed_of_clock);
        let (scratch, running) = (Scratch::new()?, Running::default());
        Ok(Job {
            global,
            arguments,
            file,
            rules,
            seed,
            stop: stop_flag(&scratch, &running)?,
            program: super::own_program()?,
            scratch,
            running,
            environment: machine::environment(),
            started,
            begun: Instant::now(),
            notes: Vec::new(),
        })
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.file.trial_timeout)
    }

    /// The cells of the rules' configuration, with the keys of `more` changed.
    fn targets(&self, more: &[String]) -> Result<Option<Vec<Target>>, ConfigError> {
        let Some(config) = &self.file.config else { return Ok(None) };
        cells::of_configuration(&absolute(config), &self.file.set, more, self.file.only.as_deref()).map(Some)
    }

    /// A bench for one cell.
    fn programs<'b>(
        &'b self,
        baseline: Arm,
        candidate: Arm,
        key: &str,
        samples: Option<&'b mut std::fs::File>,
        tell: &'b dyn Fn(&str),
    ) -> Programs<'b> {
        Programs {
            baseline,
            candidate,
            scratch: self.scratch.path(),
            running: self.running.clone(),
            timeout: self.timeout(),
            stop: self.stop.clone(),
            tell,
            samples,
            key: key.into(),
            begun: self.begun,
            tokens: [0; 2],
            takes_turns: false,
            seed: self.seed,
            allow_load: self.arguments.allow_load,
            others: Others::default(),
        }
    }

    /// Creates the file of raw samples, which is written during the measurement.
    fn samples(&self) -> Result<(std::fs::File, PathBuf)> {
        let path = match &self.arguments.samples {
            Some(path) => path.clone(),
            None => {
                let folder = self.global.notebook.join("gate");
                nofollow::refuse_link(&folder)?;
                let stamp = self.started.strftime("%Y%m%dT%H%M%SZ");
                folder.join(format!("samples-{stamp}-{}.jsonl", std::process::id()))
            }
        };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
        }
        let file = std::fs::File::create(&path).with_context(|| format!("{} cannot be written", path.display()))?;
        Ok((file, path))
    }

    fn arm(&self, target: &Target, program: &Path) -> Arm {
        target.arm(program, self.timeout())
    }

    fn no_config(&self, option: &str) -> String {
        format!(
            "{}: config is absent, and {option} needs a configuration to run; add config = \"FILE.toml\"",
            self.file.path.display()
        )
    }

    fn config_words(&self) -> String {
        let config = self.file.config.as_ref().map_or(String::new(), |config| config.display().to_string());
        std::iter::once(config).chain(self.file.set.iter().cloned()).collect::<Vec<_>>().join(" ")
    }

    /// The arguments of `zbench run` for the rules' configuration, quoted for a shell.
    fn config_arguments(&self) -> String {
        let config = self.file.config.as_ref().map_or(String::new(), |config| config.display().to_string());
        let sets = self.file.set.iter().flat_map(|set| ["--set".to_string(), set.clone()]);
        let only = self.file.only.iter().flat_map(|only| ["--only".to_string(), only.clone()]);
        std::iter::once(config).chain(sets).chain(only).map(|word| super::quoted(&word)).collect::<Vec<_>>().join(" ")
    }

    /// The question about one cell. The remaining cells share the remaining budget.
    fn question(&self, target: &Target, opponent: Opponent, place: usize, count: usize) -> Question<'_> {
        let left = (self.rules.time_budget - self.begun.elapsed().as_secs_f64()).max(0.0);
        Question {
            rules: &self.rules,
            cell: target.label.clone(),
            key: target.key.clone(),
            opponent,
            noisy_rows: self.rules.noisy() * count,
            seconds: left / (count - place) as f64,
            seed: self.seed.wrapping_add(place as u64),
        }
    }

    /// The report. `explain` says how to find the cause of a regression.
    fn report(
        &mut self,
        cells: Vec<CellReport>,
        (baseline, candidate): (String, String),
        how: &str,
        explain: &str,
    ) -> Report {
        let verdicts: Vec<Verdict> = cells.iter().flat_map(|cell| cell.rows.iter().map(|row| row.verdict)).collect();
        let interrupted = cells.iter().any(|cell| cell.interrupted);
        let mut report = Report {
            schema: GATE_SCHEMA,
            rules: self.file.path.display().to_string(),
            baseline,
            candidate,
            how: how.into(),
            // What was not measured might have failed.
            verdict: verdict::worst(verdicts.iter().copied().chain(interrupted.then_some(Verdict::NotMeasured))),
            exit_code: match interrupted {
                true => exit::INTERRUPTED,
                false => verdict::exit_code(&verdicts, &self.rules.fail_on),
            },
            fail_on: self.rules.fail_on.clone(),
            confidence: self.rules.confidence,
            time_budget_seconds: self.rules.time_budget,
            seconds: self.begun.elapsed().as_secs_f64(),
            seed: self.seed,
            figure: figure_words(self.rules.figure).into(),
            interrupted,
            cells,
            notes: std::mem::take(&mut self.notes),
            environment: self.environment.clone(),
            next: String::new(),
            command: super::command_line(),
            started: self.started.to_string(),
        };
        report.next = next::next(&report, explain);
        report
    }
}
