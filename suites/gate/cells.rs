//! Which cells a gate is about, and the arguments that run each of them.

use super::measure::Arm;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zbench_config::files::Files;
use zbench_config::grid::{self, GridCell};
use zbench_config::{Axis, ConfigError, Context, Document, Problem};
use zbench_host::machine;
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

/// The cells of a configuration with the values of `set` and then of `more`, narrowed by `only` where `more` does not say otherwise.
///
/// # Errors
/// It is wrong, stands for no cell, for one that cannot be, or for cells that no `--only` tells apart.
pub fn of_configuration(
    file: &Path,
    set: &[String],
    more: &[String],
    only: Option<&str>,
) -> Result<Vec<Target>, ConfigError> {
    let mut axes = only.map(|only| asked(file, set, only)).transpose()?.unwrap_or_default();
    // What is set to another value is no longer narrowed to the old one.
    axes.retain(|axis| more.iter().all(|set| set.split('=').next().map(str::trim) != Some(axis.key)));
    let set = &[set, more].concat();
    let document = Document::read(file, set)?;
    let source = document.path.display().to_string();
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
                let arguments = arguments(file, set, &merged(&axes, terms));
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

/// What `only` asks for. The key of a cell stands for what tells the cell apart: a program of another version, or a cell with a value
/// set to another, has another key.
fn asked(file: &Path, set: &[String], only: &str) -> Result<Vec<Axis>, ConfigError> {
    let document = Document::read(file, set)?;
    let axes = grid::parse_only(only, &document)?;
    let Some(wanted) = axes.iter().find(|axis| axis.key == grid::CELL_KEY) else { return Ok(axes) };
    let context = Context::new(document.folder().to_path_buf(), machine::cores());
    let cells = grid::expand(&document, &[], grid::MOST_CELLS, &context, &mut Files::default())?;
    let is_wanted = |cell: &GridCell| {
        wanted.values.iter().any(|set| set.value.as_str().is_some_and(|wanted| cell.key.starts_with(wanted)))
    };
    let terms = grid::differences(&cells);
    let named: Vec<&String> =
        cells.iter().zip(&terms).filter(|(cell, _)| is_wanted(cell)).map(|(_, terms)| terms).collect();
    let others: Vec<Axis> = axes.iter().filter(|axis| axis.key != grid::CELL_KEY).cloned().collect();
    match &named[..] {
        [] => Err(ConfigError::about(document.path.display().to_string(), grid::none_left(&document, &axes))),
        // The only cell needs no narrowing.
        [terms] if terms.is_empty() => Ok(others),
        [terms] => Ok(others.into_iter().chain(grid::parse_only(terms, &document)?).collect()),
        several => {
            let message = format!(
                "only = \"{only}\" names {} cells by their keys; name one, or write terms as zero3, checkpointing=full",
                several.len()
            );
            Err(ConfigError::about(document.path.display().to_string(), message))
        }
    }
}

/// The terms of `only` in words that every `--only` reads, those of one cell in place of what they narrow.
fn merged(only: &[Axis], terms: &str) -> String {
    let is_narrower = |key: &str| terms.split(',').any(|term| term.split('=').next() == Some(key));
    let term = |axis: &Axis| {
        let text = |value: &toml::Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
        let key = axis.key;
        axis.values.iter().map(|set| format!("{key}={}", text(&set.value))).collect::<Vec<_>>()
    };
    let mut all: Vec<String> = only.iter().filter(|axis| !is_narrower(axis.key)).flat_map(term).collect();
    all.extend(Some(terms.to_string()).filter(|terms| !terms.is_empty()));
    all.join(",")
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
    use super::of_configuration;
    use std::path::Path;

    /// The words of `--only` for each cell.
    fn only(more: &[&str], only: &str) -> Vec<String> {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("configs/quickstart.toml"));
        let file = file.into_iter().find(|file| file.exists()).unwrap();
        let more: Vec<String> = more.iter().map(|set| set.to_string()).collect();
        let targets = of_configuration(&file, &[], &more, Some(only)).unwrap();
        let words = |target: &super::Target| {
            let place = target.arguments.iter().position(|word| word == "--only");
            place.map_or(String::new(), |place| target.arguments[place + 1].to_string_lossy().into_owned())
        };
        targets.iter().map(words).collect()
    }

    #[test]
    fn a_cell_is_run_by_terms_that_stand_for_it_alone() {
        let zero3 = "parallel.strategy=zero3,memory.checkpointing=full,train.accumulation=4";
        assert_eq!(only(&[], "zero3, checkpointing=full, accumulation=4"), [zero3]);
        let both = only(&[], "zero3, zero2, checkpointing=full, accumulation=4");
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(both[1].contains("parallel.strategy=zero3") && !both[1].contains("zero2"), "{both:?}");
        // What the candidate sets is not narrowed to what the baseline has.
        let set = only(&["parallel.strategy=zero1"], "zero3, checkpointing=full, accumulation=4");
        assert!(set.len() == 1 && !set[0].contains("zero3") && set[0].contains("memory.checkpointing=full"), "{set:?}");
    }

    #[test]
    fn the_key_of_a_cell_stands_for_what_tells_it_apart() {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("configs/quickstart.toml"));
        let file = file.into_iter().find(|file| file.exists()).unwrap();
        let targets = of_configuration(&file, &[], &[], Some("zero3, checkpointing=full, accumulation=4")).unwrap();
        let [words] = &only(&[], &targets[0].key)[..] else { panic!("one cell") };
        assert!(words.contains("parallel.strategy=zero3") && !words.contains("key="), "{words}");
        assert_eq!(of_configuration(&file, &[], &[], Some(words)).unwrap()[0].key, targets[0].key);
    }
}
