//! `zbench gate`: is this program, or this configuration, as good as that one?

mod output;
mod self_test;
mod update;

use super::session::Session;
use super::train::stop_flag;
use crate::cli::{GateArgs, Global, exit};
use crate::config::ConfigError;
use crate::gate::baseline::{self, Stored};
use crate::gate::cells::{self, Target, absolute};
use crate::gate::measure::Programs;
use crate::gate::rules::RulesFile;
use crate::runner::machine;
use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use zbench_reports::gate::baseline::{BaselineCell, configurations, machines};
use zbench_reports::gate::procedure::{judge, judge_records};
use zbench_reports::gate::report::{Class, figure_words};
use zbench_reports::gate::{CellReport, GATE_SCHEMA, Opponent, Question, Report, Row, Rules, Side, Verdict, verdict};
use zbench_reports::record::Record;

/// Judges, tests itself, or writes a baseline.
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
    Ok(if report.interrupted { exit::INTERRUPTED } else { report.exit_code })
}

/// One command and what it works with.
struct Job<'a> {
    global: &'a Global,
    arguments: &'a GateArgs,
    file: RulesFile,
    rules: Rules,
    seed: u64,
    stop: Arc<AtomicBool>,
    program: PathBuf,
    scratch: tempdir::Scratch,
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
        let seed = arguments.seed.unwrap_or_else(|| started.as_microsecond().unsigned_abs() % 1_000_000);
        Ok(Job {
            global,
            arguments,
            file,
            rules,
            seed,
            stop: stop_flag()?,
            program: std::env::current_exe().context("the path of zbench itself is needed to start trials")?,
            scratch: tempdir::Scratch::new()?,
            environment: machine::environment(),
            started,
            begun: Instant::now(),
            notes: Vec::new(),
        })
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.file.trial_timeout)
    }

    /// The cells of the rules' configuration, some keys set to other values.
    fn targets(&self, more: &[String]) -> Result<Option<Vec<Target>>, ConfigError> {
        let Some(config) = &self.file.config else { return Ok(None) };
        let set: Vec<String> = self.file.set.iter().chain(more).cloned().collect();
        cells::of_configuration(&absolute(config), &set, self.file.only.as_deref()).map(Some)
    }

    /// A bench for one cell.
    fn programs<'b>(
        &'b self,
        baseline: crate::gate::measure::Arm,
        candidate: crate::gate::measure::Arm,
        key: &str,
        samples: Option<&'b mut std::fs::File>,
        tell: &'b dyn Fn(&str),
    ) -> Programs<'b> {
        Programs {
            baseline,
            candidate,
            scratch: &self.scratch.0,
            timeout: self.timeout(),
            stop: self.stop.clone(),
            tell,
            samples,
            key: key.into(),
            begun: self.begun,
        }
    }

    /// The file of raw samples, so that whatever happens they are there.
    fn samples(&self) -> Result<(std::fs::File, PathBuf)> {
        let path = match &self.arguments.samples {
            Some(path) => path.clone(),
            None => {
                let folder = self.global.notebook.join("gate");
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

    /// Judges by what was named on the command line.
    fn judge(&mut self) -> Result<Report> {
        let GateArgs { baseline, against, candidate, candidate_set, .. } = self.arguments;
        match (baseline, against) {
            (Some(path), None) => {
                let stored = baseline::read(path, "baseline")?;
                match candidate {
                    Some(path) => {
                        let now = baseline::read(path, "candidate")?;
                        self.records_against_records(&stored, &now)
                    }
                    None => self.fresh_against_stored(&stored),
                }
            }
            (None, Some(other)) => self.against_program(other),
            (None, None) if !candidate_set.is_empty() => self.against_configuration(candidate_set),
            _ => bail!(
                "nothing to compare with; name one of --baseline FILE|NOTEBOOK, --against PROGRAM or --candidate-set KEY=VALUE"
            ),
        }
    }

    /// Two programs, the same cells.
    fn against_program(&mut self, other: &Path) -> Result<Report> {
        if !other.is_file() {
            bail!("--against {}: there is no such program", other.display());
        }
        let targets = self.targets(&[])?.with_context(|| self.no_config("--against"))?;
        let other = absolute(other);
        let pairs: Vec<_> =
            targets.iter().map(|target| (target, self.arm(target, &other), self.arm(target, &self.program))).collect();
        let cells = self.live(pairs, true)?;
        let hash = |path: &Path| baseline::hash(path).map_or(String::new(), |hash| format!(" (blake3 {hash})"));
        let baseline = format!("{}{}", other.display(), hash(&other));
        let candidate = format!("{}{}", self.program.display(), hash(&self.program));
        Ok(self.report(cells, baseline, candidate, "pairs of trials of both programs in one job, the order by chance"))
    }

    /// One program, two configurations.
    fn against_configuration(&mut self, set: &[String]) -> Result<Report> {
        let base = self.targets(&[])?.with_context(|| self.no_config("--candidate-set"))?;
        let now = self.targets(set)?.unwrap_or_default();
        if base.len() != now.len() {
            bail!(
                "the configuration has {} cells, and with --candidate-set {}; they must be pairs",
                base.len(),
                now.len()
            );
        }
        if let Some(same) = base.iter().zip(&now).find(|(base, now)| base.key == now.key) {
            bail!("--candidate-set changes nothing about the cell {} ({})", same.0.label, same.0.key);
        }
        let program = self.program.clone();
        let pairs =
            base.iter().zip(&now).map(|(base, now)| (now, self.arm(base, &program), self.arm(now, &program))).collect();
        let cells = self.live(pairs, false)?;
        let keys = |targets: &[Target]| targets.iter().map(|t| t.key.as_str()).collect::<Vec<_>>().join(", ");
        let baseline = format!("{} ({})", self.config_words(), keys(&base));
        let candidate = format!("the same with {} ({})", set.join(" "), keys(&now));
        Ok(self.report(
            cells,
            baseline,
            candidate,
            "pairs of trials of both configurations in one job, the order by chance",
        ))
    }

    fn arm(&self, target: &Target, program: &Path) -> crate::gate::measure::Arm {
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

    /// Pairs of live trials, cell by cell.
    fn live(
        &mut self,
        cells: Vec<(&Target, crate::gate::measure::Arm, crate::gate::measure::Arm)>,
        same_cell: bool,
    ) -> Result<Vec<CellReport>> {
        let (mut samples, path) = self.samples()?;
        let progress = output::Progress::new(self.global);
        let tell = |words: &str| progress.tell(words);
        let mut reports: Vec<CellReport> = Vec::new();
        let mut notes = Vec::new();
        let count = cells.len();
        for (place, (target, base, now)) in cells.into_iter().enumerate() {
            let mut programs = self.programs(base, now, &target.key, Some(&mut samples), &tell);
            // A first trial of each side, which does not count: it warms what both share, and shows whether they are
            // about the same thing.
            let mut first = Vec::new();
            for side in [Side::Baseline, Side::Candidate] {
                match programs.measure(side) {
                    Some((_, record)) => first.push(record),
                    None => break,
                }
            }
            if let ([Some(a), Some(b)], true) = (&first[..], same_cell) {
                notes.extend(same_configuration(a, b)?);
            }
            let question = self.question(target, Opponent::Live, place, count);
            let report = judge(&question, &mut programs);
            let stopped = report.interrupted;
            reports.push(report);
            if stopped {
                break;
            }
        }
        progress.clear();
        self.notes.extend(notes);
        self.notes.push(format!("The raw samples are in {}.", path.display()));
        Ok(reports)
    }

    /// The question about one cell; what is left of the budget is shared by the cells that are left.
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

    /// Trials that are measured now beside those of a baseline.
    fn fresh_against_stored(&mut self, stored: &Stored) -> Result<Report> {
        let targets = match self.targets(&[])? {
            Some(targets) => targets,
            None => cells::of_baseline(&stored.cells),
        };
        let mut bases: Vec<BaselineCell> = Vec::new();
        for target in &targets {
            let base = same_key(stored, &target.key, &target.cell)?;
            self.notes.extend(same_machine(&base.environment, &self.environment)?);
            bases.push(base.clone());
        }
        let (mut samples, path) = self.samples()?;
        let progress = output::Progress::new(self.global);
        let tell = |words: &str| progress.tell(words);
        let mut reports = Vec::new();
        for (place, (target, base)) in targets.iter().zip(bases).enumerate() {
            let arm = self.arm(target, &self.program);
            let mut programs = self.programs(arm.clone(), arm, &target.key, Some(&mut samples), &tell);
            // The first trial finds caches cold, and does not count.
            let _ = programs.measure(Side::Candidate);
            let question = self.question(target, Opponent::Stored(base.trials), place, targets.len());
            reports.push(judge(&question, &mut programs));
            if reports.iter().any(|report| report.interrupted) {
                break;
            }
        }
        progress.clear();
        self.notes.push(
            "The baseline was measured at another time: what the machine did in between is in the ratio. A control that is \
             measured beside (--against PROGRAM) is free of that."
                .into(),
        );
        self.notes.push(format!("The raw samples are in {}.", path.display()));
        let candidate = format!("{}, measured now", self.program.display());
        Ok(self.report(reports, stored.words.clone(), candidate, "fresh trials beside stored ones"))
    }

    /// Records beside records: nothing is measured.
    fn records_against_records(&mut self, stored: &Stored, now: &Stored) -> Result<Report> {
        let targets = match self.targets(&[])? {
            Some(targets) => targets,
            None => cells::of_baseline(&stored.cells),
        };
        if !targets.iter().any(|target| now.cell(&target.key).is_some())
            && let Some(target) = targets.first()
        {
            same_key(now, &target.key, &target.cell)?;
        }
        let mut reports = Vec::new();
        for target in &targets {
            let base = same_key(stored, &target.key, &target.cell)?;
            let found = now.cell(&target.key);
            if let Some(cell) = found {
                self.notes.extend(same_machine(&base.environment, &cell.environment)?);
            }
            let question = self.question(target, Opponent::Stored(base.trials.clone()), 0, targets.len());
            match found {
                Some(cell) => reports.push(judge_records(&question, cell.trials.clone())),
                None => reports.push(CellReport {
                    rows: vec![Row::of_cell(
                        &target.label,
                        &target.key,
                        Class::Run,
                        Verdict::NotMeasured,
                        "the candidate has no record of this cell",
                    )],
                    ..judge_records(&question, Vec::new())
                }),
            }
        }
        self.notes.dedup();
        self.notes.push(
            "Records are compared as they are: nothing was measured to confirm a change, and what the machine did between the \
             two is in the ratio."
                .into(),
        );
        Ok(self.report(reports, stored.words.clone(), now.words.clone(), "stored trials beside stored ones"))
    }

    fn report(&mut self, cells: Vec<CellReport>, baseline: String, candidate: String, how: &str) -> Report {
        let verdicts: Vec<Verdict> = cells.iter().flat_map(|cell| cell.rows.iter().map(|row| row.verdict)).collect();
        Report {
            schema: GATE_SCHEMA,
            rules: self.file.path.display().to_string(),
            baseline,
            candidate,
            how: how.into(),
            verdict: verdict::worst(verdicts.iter().copied()),
            exit_code: verdict::exit_code(&verdicts, &self.rules.fail_on),
            fail_on: self.rules.fail_on.clone(),
            confidence: self.rules.confidence,
            time_budget_seconds: self.rules.time_budget,
            seconds: self.begun.elapsed().as_secs_f64(),
            seed: self.seed,
            figure: figure_words(self.rules.figure).into(),
            interrupted: cells.iter().any(|cell| cell.interrupted),
            cells,
            notes: std::mem::take(&mut self.notes),
            environment: self.environment.clone(),
            command: super::command_line(),
            started: self.started.to_string(),
        }
    }
}

/// The cell of a side with that key; where there is none, the error names the difference.
fn same_key<'s>(stored: &'s Stored, key: &str, cell: &Value) -> Result<&'s BaselineCell> {
    if let Some(found) = stored.cell(key) {
        return Ok(found);
    }
    let difference = |other: &BaselineCell| {
        let (stated, alone) = configurations(&other.cell, cell);
        [stated, alone].concat()
    };
    let nearest = stored.cells.iter().map(difference).min_by_key(Vec::len).unwrap_or_default();
    let named = if nearest.is_empty() {
        "the files that the configuration names have changed".to_string()
    } else {
        nearest.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ")
    };
    bail!(
        "the configurations differ, so nothing is compared: {} has no cell of key {key}. The nearest differs in {named}. \
         Write the baseline anew (--update), or compare two configurations with --candidate-set",
        stored.words
    )
}

/// Differences named in an error.
const SHOWN: usize = 6;

/// Refuses two machines; what differs beside is a note.
fn same_machine(a: &Map<String, Value>, b: &Map<String, Value>) -> Result<Vec<String>> {
    let (forbids, told) = machines(a, b);
    if !forbids.is_empty() {
        bail!(
            "the machines differ, so nothing is compared: {}. Measure a baseline on this machine, or use --against PROGRAM",
            forbids.join("; ")
        );
    }
    Ok(if told.is_empty() {
        Vec::new()
    } else {
        vec![format!("Different about the environment: {}.", told.join("; "))]
    })
}

/// Refuses programs that make different cells of one file. A key that one of them does not know is a note.
fn same_configuration(a: &Record, b: &Record) -> Result<Option<String>> {
    if a.schema != b.schema {
        bail!(
            "the schemas differ, so nothing is compared: the records of the one program have {}, of the other {}",
            a.schema,
            b.schema
        );
    }
    if a.key == b.key {
        return Ok(None);
    }
    let (stated, alone) = configurations(&a.cell, &b.cell);
    if !stated.is_empty() || alone.is_empty() {
        let named = if stated.is_empty() { "their keys".into() } else { stated.join("; ") };
        bail!("the two programs make different cells of the configuration, so nothing is compared: {named}");
    }
    Ok(Some(format!("One of the programs does not state: {}.", alone.join("; "))))
}

/// A folder that goes when it is no longer needed.
mod tempdir {
    use anyhow::{Context, Result};

    /// The folder.
    pub struct Scratch(pub std::path::PathBuf);

    impl Scratch {
        /// Makes one among the system's.
        pub fn new() -> Result<Scratch> {
            let stamp = jiff::Timestamp::now().as_nanosecond();
            let path = std::env::temp_dir().join(format!("zbench-gate-{}-{stamp}", std::process::id()));
            std::fs::create_dir(&path).with_context(|| format!("{} cannot be made", path.display()))?;
            Ok(Scratch(path))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            // What cannot be deleted is the system's to clear away.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
