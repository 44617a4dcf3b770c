//! The four comparisons: two programs, two configurations, new trials and a baseline, records and records.

use super::{Job, output};
use crate::GateArgs;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use zbench_host::environment::binary_hash;
use zbench_reports::gate::baseline::BaselineCell;
use zbench_reports::gate::next;
use zbench_reports::gate::procedure::{judge, judge_records};
use zbench_reports::gate::report::Class;
use zbench_reports::gate::{CellReport, Opponent, Report, Row, Side, Verdict};
use zbench_suites::gate::baseline::{self, Stored};
use zbench_suites::gate::cells::{self, Target, absolute};
use zbench_suites::gate::measure::Arm;
use zbench_suites::gate::refuse::{same_configuration, same_key, same_machine};

impl Job<'_> {
    /// Runs the comparison that the command line asks for.
    pub(super) fn judge(&mut self) -> Result<Report> {
        let GateArgs { baseline, against, candidate, candidate_set, allow_load, .. } = self.arguments;
        let read = |path: &Path, side: &str| {
            let stored = baseline::read(path, side)?;
            anyhow::Ok(if *allow_load { stored.allowing_load() } else { stored })
        };
        match (baseline, against) {
            (Some(path), None) => {
                let stored = read(path, "baseline")?;
                match candidate {
                    Some(path) => {
                        let now = read(path, "candidate")?;
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

    /// Compares two programs on the same cells.
    fn against_program(&mut self, other: &Path) -> Result<Report> {
        if !other.is_file() {
            bail!("--against {}: there is no such program", other.display());
        }
        let targets = self.targets(&[])?.with_context(|| self.no_config("--against"))?;
        let other = absolute(other);
        let pairs: Vec<_> =
            targets.iter().map(|target| (target, self.arm(target, &other), self.arm(target, &self.program))).collect();
        let (cells, samples) = self.live(pairs, true)?;
        let hash = |path: &Path| binary_hash(path).map_or(String::new(), |hash| format!(" (blake3 {hash})"));
        let baseline = format!("{}{}", other.display(), hash(&other));
        let candidate = format!("{}{}", self.program.display(), hash(&self.program));
        let how = next::how(&cells, "programs");
        let run = |program: &Path, notebook: &str| {
            format!("`{} run {} --notebook {notebook}`", program.display(), self.config_arguments())
        };
        let explain = format!(
            "{} and {}, then `zbench compare before after` shows which part of a step it is; the raw samples are in {}",
            run(&other, "before"),
            run(&self.program, "after"),
            samples.display()
        );
        Ok(self.report(cells, (baseline, candidate), &how, &explain))
    }

    /// Compares two configurations with one program.
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
        let (cells, samples) = self.live(pairs, false)?;
        let keys = |targets: &[Target]| targets.iter().map(|t| t.key.as_str()).collect::<Vec<_>>().join(", ");
        let baseline = format!("{} ({})", self.config_words(), keys(&base));
        let candidate = format!("the same with {} ({})", set.join(" "), keys(&now));
        let how = next::how(&cells, "configurations");
        let sets: String = set.iter().map(|set| format!(" --set {}", crate::commands::quoted(set))).collect();
        let explain = format!(
            "`zbench run {0} --notebook before` and `zbench run {0}{sets} --notebook after`, then `zbench compare before after` shows \
             which part of a step it is; the raw samples are in {1}",
            self.config_arguments(),
            samples.display()
        );
        Ok(self.report(cells, (baseline, candidate), &how, &explain))
    }

    /// Measures both sides, cell by cell. Returns the reports and the file of raw samples.
    fn live(&mut self, cells: Vec<(&Target, Arm, Arm)>, same_cell: bool) -> Result<(Vec<CellReport>, PathBuf)> {
        let (mut samples, path) = self.samples()?;
        let progress = output::Progress::new(self.global);
        let tell = |words: &str| progress.tell(words);
        let mut reports: Vec<CellReport> = Vec::new();
        let mut notes = Vec::new();
        let count = cells.len();
        let mut stopped = false;
        for (place, (target, base, now)) in cells.into_iter().enumerate() {
            if stopped {
                reports.push(CellReport::not_begun(&target.label, &target.key));
                continue;
            }
            let mut programs = self.programs(base, now, &target.key, Some(&mut samples), &tell);
            programs.takes_turns = target.takes_turns();
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
            let report = CellReport { busy: programs.others.programs(), ..report };
            stopped = report.interrupted;
            reports.push(report);
        }
        progress.clear();
        self.notes.extend(notes);
        self.notes.push(format!("The raw samples are in {}.", path.display()));
        Ok((reports, path))
    }

    /// Compares new trials with those of a baseline.
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
        let mut reports: Vec<CellReport> = Vec::new();
        for (place, (target, base)) in targets.iter().zip(bases).enumerate() {
            if reports.iter().any(|report| report.interrupted) {
                reports.push(CellReport::not_begun(&target.label, &target.key));
                continue;
            }
            let arm = self.arm(target, &self.program);
            let mut programs = self.programs(arm.clone(), arm, &target.key, Some(&mut samples), &tell);
            // The first trial runs with cold caches and does not count.
            let _ = programs.measure(Side::Candidate);
            let question = self.question(target, Opponent::Stored(base.trials), place, targets.len());
            let report = judge(&question, &mut programs);
            reports.push(CellReport { busy: programs.others.programs(), ..report });
        }
        progress.clear();
        self.notes.push(
            "The baseline was measured at another time: what the machine did in between is in the ratio. A control that is \
             measured beside (--against PROGRAM) is free of that."
                .into(),
        );
        self.notes.push(format!("The raw samples are in {}.", path.display()));
        let candidate = format!("{}, measured now", self.program.display());
        let explain = format!(
            "`--against PROGRAM` with the program of the baseline measures both in one job, free of what the machine did in between; \
             the raw samples are in {}",
            path.display()
        );
        Ok(self.report(reports, (stored.words.clone(), candidate), "fresh trials beside stored ones", &explain))
    }

    /// Compares records with records. Nothing is measured.
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
        let path = |path: &Option<PathBuf>| path.as_deref().map_or(String::new(), |path| path.display().to_string());
        let (a, b) = (path(&self.arguments.baseline), path(&self.arguments.candidate));
        let explain = format!("`zbench compare {a} {b}` shows which part of a step it is");
        let sides = (stored.words.clone(), now.words.clone());
        Ok(self.report(reports, sides, "stored trials beside stored ones", &explain))
    }
}
