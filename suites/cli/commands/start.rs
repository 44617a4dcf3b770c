//! `zbench` by itself: what it is, and what to type first on this machine.

use super::notebook;
use crate::Global;
use anyhow::Result;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use zbench_host::exit;
use zbench_reports::units::plural;
use zbench_reports::{Notebook, Record};

const ABOUT: &str =
    "zbench is a lab notebook for LLM training. It trains every cell of a grid of configurations, compares their speed,
memory and traffic, and predicts what cells take on machines that you do not have.";

/// Prints to standard error and returns a usage error: a script that forgot its command gets no output.
pub fn start(global: &Global) -> Result<u8> {
    let held = match global.notebook.is_dir() {
        true => held(&Notebook::open(&global.notebook)?)?,
        false => None,
    };
    let quickstart = quickstart(Path::new("."), std::env::current_exe().ok().as_deref());
    zbench_host::say!("{}", text(&global.notebook, held.as_ref(), quickstart.as_deref()));
    Ok(exit::USAGE)
}

/// The quickstart file, in this folder or where a release was unpacked or installed.
fn quickstart(here: &Path, program: Option<&Path>) -> Option<PathBuf> {
    const FILE: &str = "configs/quickstart.toml";
    if here.join(FILE).is_file() {
        return Some(FILE.into());
    }
    let folder = program?.parent()?;
    [folder.join(FILE), folder.join("../share/zbench").join(FILE)].into_iter().find(|path| path.is_file())
}

/// The newest record of a notebook, and how many records and cells there are.
struct Held {
    last: Record,
    records: usize,
    cells: usize,
}

fn held(notebook: &Notebook) -> Result<Option<Held>> {
    let index = notebook::index(notebook)?;
    let Some(last) = index.records.last() else { return Ok(None) };
    let cells: BTreeSet<&str> = index.records.iter().map(|record| record.key.as_str()).collect();
    Ok(Some(Held { last: notebook.record(last)?, records: index.records.len(), cells: cells.len() }))
}

fn text(folder: &Path, held: Option<&Held>, quickstart: Option<&Path>) -> String {
    let is_default = folder == Path::new("notebook");
    let at = if is_default { String::new() } else { format!(" --notebook {}", folder.display()) };
    let grid = |file: &Path| format!("zbench grid {}{at}", file.display());
    let (state, mut steps) = match (held, quickstart) {
        (Some(held), _) => (words(folder, held), with_records(&at, &held.last)),
        (None, Some(file)) => (
            format!("There is no record in {} yet. To begin:", folder.display()),
            vec![
                ("zbench doctor".to_string(), "what this machine has, and what runs here"),
                (format!("{} --dry-run", grid(file)), "what every cell will take"),
                (grid(file), "train them and compare: cells take turns for two minutes"),
                (format!("zbench report --open{at}"), "the comparison with plots, in a browser"),
            ],
        ),
        (None, None) => (
            format!("There is no record in {} yet, and no configs/quickstart.toml here. To begin:", folder.display()),
            vec![
                ("zbench doctor".to_string(), "what this machine has, and what runs here"),
                (format!("zbench gemm{at}"), "matrix products against the ceiling of the cores; needs no file"),
                (format!("zbench allreduce{at}"), "the interconnect test; needs no file"),
                ("zbench grid FILE.toml".to_string(), "a grid of yours; `zbench doctor --keys` lists every key"),
            ],
        ),
    };
    steps.push(("zbench --help".to_string(), "every command"));
    let width = steps.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    let lines: String = steps.iter().map(|(command, what)| format!("\n  {command:width$}  {what}")).collect();
    format!("{ABOUT}\n\n{state}\n{lines}")
}

fn with_records(at: &str, last: &Record) -> Vec<(String, &'static str)> {
    let short: String = last.id.chars().take(6).collect();
    vec![
        (format!("zbench report --open{at}"), "the comparison of all records with plots, in a browser"),
        (format!("zbench list --last 10{at}"), "the newest records"),
        (format!("zbench show {short}{at}"), "everything that the newest holds"),
        (format!("zbench repro {short}{at}"), "run its cell again and compare"),
    ]
}

/// The number of records, and the newest record with its command.
fn words(folder: &Path, Held { last, records, cells }: &Held) -> String {
    let name = if last.name.is_empty() { String::new() } else { format!(" of {}", last.name) };
    let by = if last.command.is_empty() { String::new() } else { format!(",\nmade by `{}`", last.command) };
    let is_grid = last.command.split_whitespace().nth(1) == Some("grid");
    let goes_on = if is_grid { " The same command runs what is not there yet." } else { "" };
    format!(
        "{} holds {} of {}. The newest is {}{name}: {}, {}{by}.{goes_on}",
        folder.display(),
        plural(*records, "record", "records"),
        plural(*cells, "cell", "cells"),
        last.id,
        last.outcome.status.words(),
        last.started
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let mut record = Record::new("3f2a77c01234", "0123", "mine", zbench_reports::record::Outcome::measured());
        record.command = "zbench grid mine.toml".into();
        record.started = "2026-11-22T10:00:00Z".into();
        record
    }

    #[test]
    fn an_empty_place_is_told_to_begin() {
        let with = text(Path::new("notebook"), None, Some(Path::new("configs/quickstart.toml")));
        let order = ["zbench doctor", "--dry-run", "zbench grid configs/quickstart.toml  ", "report --open", "--help"];
        let places: Vec<usize> =
            order.iter().map(|word| with.find(word).unwrap_or_else(|| panic!("{word}: {with}"))).collect();
        assert!(places.is_sorted(), "{with}");
        let without = text(Path::new("nb"), None, None);
        assert!(without.contains("zbench allreduce --notebook nb") && !without.contains("grid configs"), "{without}");
    }

    #[test]
    fn a_notebook_is_told_what_to_ask_it() {
        let said = text(
            Path::new("notebook"),
            Some(&Held { last: record(), records: 2, cells: 1 }),
            Some(Path::new("configs/quickstart.toml")),
        );
        assert!(said.contains("notebook holds 2 records of 1 cell.") && said.contains("zbench show 3f2a77"), "{said}");
        assert!(said.contains("made by `zbench grid mine.toml`") && !said.contains("quickstart"), "{said}");
    }

    #[test]
    fn the_example_is_found_here_or_beside_the_program() {
        let (here, release) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let program = release.path().join("bin/zbench");
        assert_eq!(quickstart(here.path(), Some(&program)), None);
        let shared = release.path().join("share/zbench/configs");
        std::fs::create_dir_all(&shared).unwrap();
        std::fs::create_dir_all(release.path().join("bin")).unwrap();
        std::fs::write(shared.join("quickstart.toml"), "").unwrap();
        let found = quickstart(here.path(), Some(&program)).unwrap();
        assert!(found.is_file(), "{}", found.display());
        std::fs::create_dir(here.path().join("configs")).unwrap();
        std::fs::write(here.path().join("configs/quickstart.toml"), "").unwrap();
        assert_eq!(quickstart(here.path(), Some(&program)), Some("configs/quickstart.toml".into()));
    }
}
