//! `import` and `export`: configurations of other programs; with `--bundle` records, which `bundle` does.

use super::report::write_whole;
use super::{Expanded, bundle, document_text, existing, expand, filter, notebook, print, print_file, print_lines};
use crate::{Cells, ExportArgs, Format, Global, ImportArgs};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::Path;
use zbench_config::{ConfigError, grid};
use zbench_host::{exit, machine, terminal};
use zbench_reports::IndexEntry;
use zbench_reports::record::Record;
use zbench_reports::render::json::escaped;
use zbench_suites::interop::export::{Base, Target};
use zbench_suites::interop::table::{self, Sides};
use zbench_suites::interop::toml::{self, Written};
use zbench_suites::interop::{self, Options, export as out};

/// `zbench import FILE` and `zbench import --bundle FILE`.
pub fn import(global: &Global, arguments: &ImportArgs) -> Result<u8> {
    if arguments.keys {
        return print(interop::keys::DOCUMENT).map(|()| exit::SUCCESS);
    }
    match (&arguments.bundle, &arguments.file) {
        (Some(path), _) => bundle::import(global, path),
        (None, Some(file)) => configuration(global, arguments, file),
        // The arguments' group demands one of them.
        (None, None) => bail!("name a file, or a bundle with --bundle"),
    }
}

fn configuration(global: &Global, arguments: &ImportArgs, file: &Path) -> Result<u8> {
    refuse_existing(arguments.output.as_deref(), arguments.force)?;
    let place = arguments.output.as_deref().unwrap_or(Path::new("imported.toml"));
    let options = Options {
        model: arguments.model.clone(),
        ranks: arguments.ranks.or_else(|| set(arguments, "parallel.ranks")),
        ranks_per_node: arguments.ranks_per_node,
        set: arguments.set.clone(),
        folder: place.parent().unwrap_or(Path::new("")).to_path_buf(),
    };
    let mut draft = interop::read(file, &options)?;
    if !arguments.set.is_empty() {
        draft.notes.push(format!(
            "--set {} has the last word: what is said of these keys here and in the table is what the file says",
            arguments.set.join(", --set ")
        ));
    }
    let written = toml::written(&draft, place, machine::cores())?;
    if let Some(output) = &arguments.output {
        write_whole(output, written.text.as_bytes())?;
    }
    let says = |text: &str| {
        if !global.quiet {
            zbench_host::say!("{text}")
        }
    };
    if global.format == Format::Json {
        let mut lines: Vec<Value> = draft.rows.iter().map(table::line).collect();
        lines.push(
            json!({ "toml": written.text, "runs": written.runs, "reasons": written.reasons, "notes": draft.notes }),
        );
        print_lines(&lines)?;
    } else {
        let sides = Sides { title: format!("{}: {}", draft.format.name(), file.display()), from: "its", to: "zbench" };
        let document = table::document(&sides, &draft.rows, &draft.notes);
        match &arguments.output {
            Some(_) => print(&document_text(global, &document))?,
            None => {
                if !global.quiet {
                    terminal::say_rendered(document_text(global, &document).trim_end().to_string());
                }
                print_file(&written.text)?;
            }
        }
    }
    says(&verdict(&written, arguments.output.as_deref()));
    Ok(exit::SUCCESS)
}

/// The value that `--set` gives a key that counts ranks.
fn set(arguments: &ImportArgs, key: &str) -> Option<u64> {
    let value = |term: &String| term.split_once('=').filter(|(name, _)| name.trim() == key)?.1.trim().parse().ok();
    arguments.set.iter().rev().find_map(value)
}

/// Prints whether zbench runs it, and the next command.
fn verdict(written: &Written, output: Option<&Path>) -> String {
    let file = output.map_or("FILE.toml".to_string(), |path| path.display().to_string());
    let wrote = output.map(|path| format!("wrote {}; ", path.display())).unwrap_or_default();
    if written.runs {
        return format!("{wrote}it runs here: zbench run {file}");
    }
    let reasons = written.reasons.join("; ");
    format!("{wrote}it can be priced and not run, because {reasons}\nnext: zbench plan {file}")
}

/// Refuses to overwrite a file without `--force`.
fn refuse_existing(output: Option<&Path>, force: bool) -> Result<()> {
    match output {
        Some(path)
            if !force && std::fs::symlink_metadata(path).is_ok_and(|about| about.is_file() || about.is_dir()) =>
        {
            bail!("{} exists; name another file, or add --force", path.display())
        }
        _ => Ok(()),
    }
}

/// `zbench export WHAT --to PROGRAM` and `zbench export --bundle FILE [ID|FILTER]`.
pub fn export(global: &Global, arguments: &ExportArgs) -> Result<u8> {
    match (&arguments.bundle, arguments.to) {
        (Some(path), _) => bundle::export(global, arguments, path),
        (None, Some(target)) => cell(global, arguments, target),
        // The arguments' group demands one of them.
        (None, None) => bail!("name a bundle with --bundle, or a program with --to"),
    }
}

fn cell(global: &Global, arguments: &ExportArgs, target: Target) -> Result<u8> {
    refuse_existing(arguments.output.as_deref(), arguments.force)?;
    let Some((name, cell)) = chosen(global, arguments)? else { return Ok(exit::NOT_MEASURED) };
    let exported = match &arguments.base {
        Some(path) => {
            let source = path.display().to_string();
            let bytes = interop::file(path).map_err(|message| ConfigError::about(&source, message))?;
            out::onto(&cell, &name, target, &Base { source: &source, bytes: &bytes })
        }
        None => out::export(&cell, &name, target),
    };
    let exported = exported.with_context(|| format!("{name} cannot be written for {}", target.name()))?;
    match &arguments.output {
        Some(path) => write_whole(path, exported.text.as_bytes())?,
        None => print_file(&exported.text)?,
    }
    let table = if global.format == Format::Json {
        let lines: Vec<String> = exported.rows.iter().map(|row| table::line(row).to_string()).collect();
        escaped(&(lines.join("\n") + "\n"))
    } else {
        let sides = Sides { title: format!("{name} for {}", target.name()), from: "zbench", to: target.name() };
        document_text(global, &table::document(&sides, &exported.rows, &exported.notes))
    };
    match &arguments.output {
        Some(path) => {
            print(&table)?;
            zbench_host::say!("wrote {}", path.display());
        }
        None if !global.quiet => terminal::say_rendered(table.trim_end().to_string()),
        None => {}
    }
    Ok(exit::SUCCESS)
}

/// The requested cell as plain data, with a name for it. `None` if the notebook has no such record.
fn chosen(global: &Global, arguments: &ExportArgs) -> Result<Option<(String, Value)>> {
    let Some((first, rest)) = arguments.what.split_first() else {
        bail!("name what to export: a record's id, `best`, or a configuration");
    };
    let file = Path::new(first);
    let is_file = file.is_file() || file.extension().is_some_and(|ending| ending == "toml");
    if is_file {
        if !rest.is_empty() {
            bail!(
                "a configuration is exported alone; leave out {}, or narrow it with --set and --only",
                rest.join(" ")
            );
        }
        return of_file(arguments, file).map(Some);
    }
    if !arguments.set.is_empty() || arguments.only.is_some() {
        bail!("--set and --only change a configuration, and {first} is none; name the file, or leave them out");
    }
    let notebook = existing(global)?;
    if first == "best" {
        let index = notebook::index(&notebook)?;
        let records = filter::choose(&notebook, &index, rest, jiff::Timestamp::now())?;
        let Some(record) = best(&records) else {
            zbench_host::say!(
                "no record is measured, valid and within tolerance of its reference; `zbench list` shows what there is"
            );
            return Ok(None);
        };
        return Ok(Some(named(&notebook.record(record)?)));
    }
    if !rest.is_empty() {
        bail!("one record is exported at a time; `best` takes the fastest of those that terms of `list` leave");
    }
    let record = notebook.find(first)?;
    Ok(Some(named(&record)))
}

fn named(record: &Record) -> (String, Value) {
    (format!("record {}", record.id), record.cell.clone())
}

/// The fastest valid record whose losses match its reference.
fn best<'i>(records: &[&'i IndexEntry]) -> Option<&'i IndexEntry> {
    let trained = |record: &IndexEntry| !matches!(record.parity, zbench_reports::record::Verdict::Failed);
    let candidates = records.iter().copied().filter(|record| filter::is_valid(record) && trained(record));
    candidates
        .filter_map(|record| Some((record.tokens_per_second?, record)))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, record)| record)
}

fn of_file(arguments: &ExportArgs, file: &Path) -> Result<(String, Value)> {
    let cells = Cells { file: file.to_path_buf(), set: arguments.set.clone(), only: arguments.only.clone() };
    let expanded: Expanded = expand(&cells, grid::MOST_CELLS, None)?;
    expanded.refuse_search("makes several cells, and one is exported")?;
    let [cell] = &expanded.cells[..] else {
        bail!(
            "{} has {} cells, and one is exported; narrow it with --set or --only: {}",
            file.display(),
            expanded.cells.len(),
            grid::differences(&expanded.cells).into_iter().take(3).collect::<Vec<_>>().join(" | ")
        );
    };
    let resolved = cell.resolved.as_ref().map_err(|refusal| anyhow::anyhow!("{}: {refusal}", file.display()))?;
    Ok((file.display().to_string(), grid::plain(&resolved.cell)))
}
