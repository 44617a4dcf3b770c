//! Which cells a gate is about, and the arguments that run each of them.

use super::measure::Arm;
use crate::config::files::Files;
use crate::config::{ConfigError, Context, Document, Problem};
use crate::grid::{self, GridCell};
use crate::runner::machine;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zbench_reports::gate::baseline::BaselineCell;
use zbench_reports::record::{Outcome, Record};

/// One cell and how it is run.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its key.
    pub key: String,
    /// In words.
    pub label: String,
    /// The resolved configuration.
    pub cell: Value,
    /// What a program is told to run it, without notebook and time limit.
    pub arguments: Vec<OsString>,
    /// The record to repeat, where it has no configuration file.
    pub seed: Option<Box<Record>>,
}

impl Target {
    /// Whether two of this cell can be resident at once: not on a GPU, whose memory one may fill.
    pub fn takes_turns(&self) -> bool {
        self.seed.is_none() && self.cell.pointer("/hardware/device").is_none_or(|device| device == "cpu")
    }

    /// This cell on a program.
    pub fn arm(&self, program: &Path, timeout: Duration) -> Arm {
        let mut arguments = self.arguments.clone();
        let limit = format!("{}s", timeout.as_secs_f64());
        arguments.extend(["--format", "json", "--quiet", "--timeout"].map(OsString::from));
        arguments.push(limit.into());
        Arm { program: program.into(), arguments, seed: self.seed.clone() }
    }
}

/// The cells of a configuration.
///
/// # Errors
/// It is wrong, stands for no cell, for one that cannot be, or for cells that no `--only` tells apart.
pub fn of_configuration(file: &Path, set: &[String], only: Option<&str>) -> Result<Vec<Target>, ConfigError> {
    let document = Document::read(file, set)?;
    let source = document.path.display().to_string();
    let axes = only.map(|only| grid::parse_only(only, &document)).transpose()?.unwrap_or_default();
    let context = Context::new(document.folder().to_path_buf(), machine::cores());
    let cells = grid::expand(&document, &axes, MOST_CELLS, &context, &mut Files::default())?;
    if cells.is_empty() {
        return Err(ConfigError::about(source, grid::none_left(&document, &axes)));
    }
    if cells.iter().any(|cell| cell.resolved.as_ref().is_ok_and(|resolved| resolved.cell.checkpoint.is_some())) {
        let message = "states checkpoint.dir: pairs of runs would go on from each other's checkpoints there, and a gate compares \
                       runs from their beginning; leave [checkpoint] out";
        return Err(ConfigError::about(source, message));
    }
    let terms = grid::differences(&cells);
    let distinct: BTreeSet<&String> = terms.iter().collect();
    if distinct.len() < cells.len() {
        let message = "its cells differ in values that --only does not take (lists); narrow it with set or only";
        return Err(ConfigError::about(source, message));
    }
    let mut targets = Vec::new();
    let mut problems = Vec::new();
    for (cell, terms) in cells.iter().zip(&terms) {
        match &cell.resolved {
            Ok(resolved) => {
                let arguments = arguments(file, set, &merged(only.unwrap_or_default(), terms));
                let label = label(cell, &document);
                let plain = grid::plain(&resolved.cell);
                targets.push(Target { key: cell.key.clone(), label, cell: plain, arguments, seed: None });
            }
            Err(refusal) => problems.push(Problem {
                source: source.clone(),
                place: refusal.place,
                key: refusal.key.clone(),
                message: refusal.message.clone(),
            }),
        }
    }
    if problems.is_empty() { Ok(targets) } else { Err(ConfigError(problems)) }
}

/// A gate of more cells would take hours.
const MOST_CELLS: usize = 200;

fn label(cell: &GridCell, document: &Document) -> String {
    let name = document.base.get("name").and_then(|setting| setting.value.as_str()).map(str::to_string);
    let stem = || document.path.file_stem().map_or(String::new(), |stem| stem.to_string_lossy().into_owned());
    format!("{} {}", name.unwrap_or_else(stem), cell.label).trim().to_string()
}

fn arguments(file: &Path, set: &[String], only: &str) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["run".into(), file.into()];
    for set in set {
        arguments.extend(["--set".into(), set.into()]);
    }
    if !only.is_empty() {
        arguments.extend(["--only".into(), only.into()]);
    }
    arguments
}

/// The terms of `only`, those of one cell in place of what they narrow.
fn merged(only: &str, terms: &str) -> String {
    let split = |text: &str| -> Vec<(String, String)> {
        let pairs = text.split(',').filter_map(|term| term.split_once('='));
        pairs.map(|(key, value)| (key.trim().to_string(), value.trim().to_string())).collect()
    };
    let narrow = split(terms);
    let mut all: Vec<(String, String)> = split(only);
    all.retain(|(key, _)| narrow.iter().all(|(known, _)| known != key));
    all.extend(narrow);
    all.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// The cells of a baseline, run from their records.
pub fn of_baseline(cells: &[BaselineCell]) -> Vec<Target> {
    let target = |cell: &BaselineCell| {
        let mut record = Record::new("gate", &cell.key, &cell.label, Outcome::measured());
        record.cell = cell.cell.clone();
        Target {
            key: cell.key.clone(),
            label: if cell.label.is_empty() { cell.key.clone() } else { cell.label.clone() },
            cell: cell.cell.clone(),
            arguments: vec!["repro".into(), "gate".into()],
            seed: Some(Box::new(record)),
        }
    };
    cells.iter().map(target).collect()
}

/// A path as other programs find it too.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

#[cfg(test)]
mod tests {
    #[test]
    fn terms_of_a_cell_replace_what_they_narrow() {
        assert_eq!(super::merged("a=1,a=2,b=3", "a=1"), "b=3,a=1");
        assert_eq!(super::merged("", "a=1,c=x"), "a=1,c=x");
        assert_eq!(super::merged("b=3", ""), "b=3");
    }
}
