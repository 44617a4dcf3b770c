//! Baselines on disk: a baseline file, a file of records, a notebook; and writing the first of them so that nobody ever
//! sees half of it.

use anyhow::{Context, Result, bail};
use std::io::Write;
use std::path::Path;
use zbench_reports::gate::baseline::{Baseline, BaselineCell, BaselineError, Provenance, cells_of};
use zbench_reports::record::{Record, SCHEMA};
use zbench_reports::{Notebook, gate::Trial};

/// A side that is not measured now.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// Its cells.
    pub cells: Vec<BaselineCell>,
    /// What it is, in words.
    pub words: String,
    /// Where it comes from, where it says so.
    pub provenance: Option<Provenance>,
}

impl Stored {
    /// Counts trials that ran beside other processes.
    pub fn allowing_load(mut self) -> Stored {
        for cell in &mut self.cells {
            cell.trials = std::mem::take(&mut cell.trials).into_iter().map(Trial::allowing_load).collect();
        }
        self
    }

    /// The cell of that key.
    pub fn cell(&self, key: &str) -> Option<&BaselineCell> {
        self.cells.iter().find(|cell| cell.key == key)
    }
}

/// Reads what a path names. `side` says in errors what it is read for.
///
/// # Errors
/// It is absent, something else, empty, or of another schema.
pub fn read(path: &Path, side: &str) -> Result<Stored> {
    let name = path.display();
    if !path.exists() {
        bail!(
            "the {side} {name} does not exist; name a baseline file or a notebook, or write one with zbench gate RULES --update --baseline {name}"
        );
    }
    let stored = if path.is_dir() { of_notebook(path)? } else { of_file(path, side)? };
    let trials: usize = stored.cells.iter().map(|cell| cell.trials.len()).sum();
    if trials == 0 {
        bail!("the {side} {name} holds no trial; run something into it first");
    }
    Ok(stored)
}

fn of_notebook(path: &Path) -> Result<Stored> {
    let contents = Notebook::open(path)?.read()?;
    for warning in contents.warnings() {
        // What cannot be read may be the very records that matter.
        if warning.contains("schema") {
            bail!("{}: {warning}; the schemas differ, so nothing is compared", path.display());
        }
        zbench_host::say!("warning: {warning}");
    }
    Ok(of_records(&contents.records, format!("notebook {}", path.display())))
}

fn of_file(path: &Path, side: &str) -> Result<Stored> {
    let name = path.display();
    let text =
        zbench_engine::formats::files::named_text(path).with_context(|| format!("the {side} {name} cannot be read"))?;
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    if serde_json::from_str::<Record>(first).is_ok() || has_schema(first).is_some() {
        return of_lines(path, &text);
    }
    let baseline = Baseline::parse(&text).map_err(|error: BaselineError| anyhow::anyhow!("{name}: {error}"))?;
    let trials: usize = baseline.cells.iter().map(|cell| cell.trials.len()).sum();
    let from = &baseline.provenance;
    let commit = from.commit.as_deref().map_or(String::new(), |commit| format!(", commit {commit}"));
    let words = format!("{name}: {trials} trials of {}{commit}", from.written);
    Ok(Stored { cells: baseline.cells, words, provenance: Some(baseline.provenance) })
}

fn has_schema(line: &str) -> Option<u64> {
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    value.get("id")?;
    value.get("schema")?.as_u64()
}

/// A file with a record on each line, as `--format json` prints them.
fn of_lines(path: &Path, text: &str) -> Result<Stored> {
    let mut records = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = format!("{}, line {}", path.display(), number + 1);
        if let Some(schema) = has_schema(line).filter(|schema| *schema > u64::from(SCHEMA)) {
            bail!(
                "{place}: its schema is {schema} and this zbench reads up to {SCHEMA}: the schemas differ, so nothing is compared"
            );
        }
        records.push(serde_json::from_str::<Record>(line).with_context(|| format!("{place}: it is no record"))?);
    }
    Ok(of_records(&records, format!("records of {}", path.display())))
}

fn of_records(records: &[Record], what: String) -> Stored {
    let cells = cells_of(records);
    let mut commits: Vec<&str> = Vec::new();
    for commit in records.iter().filter_map(|record| record.environment.get("commit")?.as_str()) {
        if !commits.contains(&commit) {
            commits.push(commit);
        }
    }
    let commits = if commits.is_empty() { String::new() } else { format!(", commit {}", commits.join(" and ")) };
    Stored { cells, words: format!("{what}: {} records{commits}", records.len()), provenance: None }
}

/// Why trials make no baseline. A baseline that counts trials beside other processes has them without these flags here.
pub fn unfit(trials: &[Trial], least: usize) -> Option<String> {
    if let Some(trial) = trials.iter().find(|trial| !trial.is_measured()) {
        return Some(format!("a trial ended as {}: {}", trial.status.words(), trial.reason));
    }
    let clean = trials.iter().filter(|trial| trial.is_clean()).count();
    let flags = trials.iter().flat_map(|trial| &trial.flags).next();
    (clean < least).then(|| {
        let why = flags.map_or(String::new(), |flag| format!(" (the others have flags, as {flag})"));
        format!("{clean} of {} trials count{why}, and at least {least} are needed", trials.len())
    })
}

/// Writes a file whole or not at all: beside it first, on disk, then in its place.
///
/// # Errors
/// The folder cannot be written.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let name = path.display().to_string();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let file_name = path.file_name().map_or("baseline".into(), |name| name.to_string_lossy().into_owned());
    let beside = folder.join(format!(".{file_name}.{}", std::process::id()));
    let written = std::fs::File::create(&beside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let placed = written.and_then(|()| std::fs::rename(&beside, path));
    if placed.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    placed.with_context(|| format!("{name} cannot be written; what was there before is untouched"))
}
