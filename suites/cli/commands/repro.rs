//! `zbench repro ID`: runs a record's cell again, from the record alone.

use super::session::Session;
use super::train::{How, carry_out};
use super::{existing, header_named, print_document, print_lines, select};
use crate::{Cli, Command, Format, Global};
use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zbench_config::files::Files;
use zbench_config::grid::{self, GridCell};
use zbench_config::{Resolved, Settings};
use zbench_engine::config::Cell;
use zbench_engine::planner::Planner;
use zbench_estimate::framework;
use zbench_host::exit;
use zbench_predict::planned::{self, Decision};
use zbench_reports::collectives::document::is_of_suite;
use zbench_reports::document::{Column, Document, Entry, Table};
use zbench_reports::environment::{self, Difference};
use zbench_reports::record::Record;
use zbench_reports::units;
use zbench_reports::{IndexEntry, Notebook};
use zbench_runner::folders::Folders;
use zbench_runner::{Header, Trials, parity};
use zbench_suites::collectives::world_spec::{LaunchMode, WorldSpec};

/// Runs the cell and compares: losses, norms, bytes and calls must be the same; speeds are only shown.
pub fn repro(global: &Global, session: &mut Session, id: &str, timeout: Duration) -> Result<u8> {
    let notebook = existing(global)?;
    let index = notebook.index()?;
    let Some(newest) = select::one(&notebook, &index, id)?.pop() else { bail!("`{id}` stands for no record") };
    let record = notebook.record(newest)?;
    drop(index);
    if is_of_suite(&record) {
        return collectives(global, session, &notebook, &record);
    }
    if zbench_reports::bench::suite(&record).is_some() {
        return super::bench::repro(global, &record, timeout);
    }
    let cell = grid::of_plain(&record.cell)
        .with_context(|| format!("the record {} holds no configuration that this version can run", record.id))?;
    let changed = record.extra.get("resumed").and_then(|from| from.get("changed")).and_then(Value::as_array);
    if changed.is_some_and(|changed| !changed.is_empty()) {
        bail!(
            "the record {} went on from a checkpoint that was made with other settings (its notes name them), so that it cannot \
             be repeated from itself; train from the beginning with one set of settings to have one that can",
            record.id
        );
    }
    let mut files = Files::default();
    if let Err((key, message)) = files.check(&cell) {
        bail!("{key}: {message}");
    }
    let key = grid::cell_key(&cell, &mut files);
    if key != record.key && !cell_names_no_file(&cell) {
        zbench_host::say!(
            "warning: the files that the record names have changed since: the key is {key}, it was {}",
            record.key
        );
    }
    let named = cell.hardware.software.as_deref().and_then(|name| framework::framework(name).ok());
    let resolved =
        Ok(Resolved { cell, profile: None, framework: named.unwrap_or_else(framework::zbench), names_attention: true });
    let grid = GridCell { key, label: format!("again {}", record.id), resolved, settings: Settings::new() };
    let proxy_of = record.extra.get("proxy").and_then(|p| p.get("of")).and_then(Value::as_str).map(str::to_string);
    let mut planned = planned::plan(&Planner::default(), grid, proxy_of);
    session.judge(std::slice::from_mut(&mut planned));
    if let Decision::Record { reason, .. } = &planned.decision {
        bail!("the record {} cannot be run here: {reason}", record.id);
    }
    let temporary = Temporary::new(&std::path::absolute(&global.notebook)?)?;
    let header = Header { folders: Folders::Passing(temporary.0.clone()), ..header_named(&record.name) };
    let summary = carry_out(global, session, &[planned], How::Trials(Trials::OneMore), header, timeout, Some(1))?;
    let [again] = &summary.records[..] else { return Ok(summary.exit_code()) };
    let (document, same) = compare(&record, again);
    match global.format {
        Format::Json => print_lines(&[again])?,
        _ => print_document(global, &document)?,
    }
    Ok(match summary.exit_code() {
        exit::SUCCESS if !same => exit::FAILED,
        code => code,
    })
}

/// A new folder, removed when dropped: what the record's cell writes goes there, wherever the record says it went.
struct Temporary(PathBuf);

impl Temporary {
    fn new(notebook: &Path) -> Result<Temporary> {
        for number in 0u32.. {
            let path = notebook.join(format!("repro-{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => {
                    made.with_context(|| format!("the temporary folder {} cannot be made", path.display()))?;
                    return Ok(Temporary(path));
                }
            }
        }
        bail!("{} holds too many folders repro-…; delete those that no process uses", notebook.display())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // The trial has removed it already; this is for a trial that was stopped. What cannot be removed harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn cell_names_no_file(cell: &Cell) -> bool {
    let files = [&cell.model.weights, &cell.lora.path];
    matches!(cell.data, zbench_engine::config::Data::Synthetic {}) && files.iter().all(|file| file.is_none())
}

/// A record of the interconnect test: its command measures again, and times are only shown.
fn collectives(global: &Global, session: &Session, notebook: &Notebook, record: &Record) -> Result<u8> {
    let refused = |why: &str| {
        anyhow!(
            "the record {} is of the interconnect test, and {why}; its command measures again: {}",
            record.id,
            record.command
        )
    };
    if session.world.is_some() {
        return Err(refused("is not repeated under a launcher"));
    }
    let words = shlex::split(&record.command).ok_or_else(|| refused("its command cannot be taken apart"))?;
    let parsed = Cli::try_parse_from(words).map_err(|_| refused("this version does not know its command"))?;
    let Some(Command::Allreduce(mut arguments)) = parsed.command else { return Err(refused("its command is another")) };
    let wanted =
        WorldSpec::new(&arguments, None, true).map_err(|why| refused(&format!("cannot be repeated here: {why}")))?;
    if !matches!(wanted.way, LaunchMode::Threads) {
        return Err(refused("its ranks were processes, which repeat whole commands only"));
    }
    // Outputs beside the measurement are not requested again, and only this collective is measured.
    (arguments.save, arguments.nccl.output_file) = (None, None);
    arguments.collective = record.setting("collective").and_then(Value::as_str).map(str::to_string);
    let before = notebook.index()?;
    let before: BTreeSet<&str> = before.records.iter().map(|record| record.id.as_str()).collect();
    let code = super::allreduce::allreduce_with(global, &arguments, false)?;
    let is_it = |other: &IndexEntry| other.setting("collective") == record.setting("collective");
    let after = notebook.index()?;
    let new = after.records.iter().find(|other| !before.contains(other.id.as_str()) && is_it(other));
    let Some(new) = new else { return Ok(code) };
    let again = notebook.record(new)?;
    if global.format == Format::Json {
        print_lines(&[again])?;
        return Ok(code);
    }
    let mut document = Document::new(format!("{} again, as {}", record.id, again.id));
    environments(&mut document, record, &again);
    let columns = [
        Column::words("metric"),
        Column::numbers("before", ""),
        Column::numbers("again", ""),
        Column::numbers("ratio", ""),
    ];
    let mut table = Table::new("repeated", columns.to_vec());
    for name in record.metrics.names() {
        let (a, b) = (record.metrics.number(name), again.metrics.number(name));
        let ratio = a.zip(b).filter(|(a, _)| *a > 0.0).map(|(a, b)| b / a);
        table.row(vec![
            Entry::words(name),
            Entry::maybe(a, units::number),
            Entry::maybe(b, units::number),
            Entry::maybe(ratio, |ratio| format!("{ratio:.2}")),
        ]);
    }
    document.table(table);
    if again.key != record.key {
        document.paragraph("The question is not quite the same: this machine shares its cores out otherwise, or a default has changed.");
    }
    print_document(global, &document)?;
    Ok(code)
}

/// Differences of the environments: the machine first, then system and build, then the time.
fn environments(document: &mut Document, before: &Record, after: &Record) {
    let columns = ["what", "kind", "before", "again"].map(Column::words);
    let mut table = Table::new("environment", columns.to_vec());
    for Difference { path, aspect, a, b } in environment::differences(&before.environment, &after.environment) {
        table.row(vec![Entry::words(path), Entry::words(aspect.name()), Entry::json(&a), Entry::json(&b)]);
    }
    if table.rows.is_empty() {
        document.paragraph("The environment is that of the record.");
        return;
    }
    document.heading("What is different about the environment");
    document.table(table);
    if let Some(why) = environment::why_not_the_same(&before.environment, &after.environment) {
        document.paragraph(format!("This is {why}: what the two took says nothing about the program."));
    }
}

fn compare(before: &Record, after: &Record) -> (Document, bool) {
    let mut document = Document::new(format!("{} again, as {}", before.id, after.id));
    environments(&mut document, before, after);
    let columns = vec![Column::words("what"), Column::words("before"), Column::words("again"), Column::words("same")];
    let mut table = Table::new("repeated", columns);
    let mut same = true;
    let mut row = |what: &str, a: String, b: String| {
        let equal = a == b;
        same &= equal;
        table.row(vec![
            Entry::words(what),
            Entry::words(a),
            Entry::words(b),
            Entry::words(if equal { "yes" } else { "no" }),
        ]);
    };
    row("outcome", before.outcome.status.name().into(), after.outcome.status.name().into());
    for (what, value) in [
        ("largest difference of a loss", (|s| s.loss) as fn(&zbench_reports::record::Step) -> f64),
        ("largest difference of a gradient norm", parity::norm),
    ] {
        let difference = parity::difference(&after.steps, &before.steps, value);
        row(what, "0".into(), difference.map_or("not comparable".into(), |difference| difference.to_string()));
    }
    let peak = |record: &Record| {
        let total = record.memory.total.as_ref().and_then(|total| total.peak_bytes);
        total.map_or("not stated".into(), |bytes| bytes.to_string())
    };
    row("peak bytes of a rank", peak(before), peak(after));
    let calls = |record: &Record| {
        let calls: f64 = record.communication.iter().map(|entry| entry.calls).sum();
        match record.wire_is_planned() {
            true => format!("{calls} calls, whose bytes are planned and not measured"),
            false => format!("{} bytes in {calls} calls", record.wire_bytes()),
        }
    };
    row("wire bytes of a step", calls(before), calls(after));
    document.table(table);
    let rate = |record: &Record| record.metrics.number("tokens_per_second").filter(|rate| *rate > 0.0);
    let speed = match (rate(before), rate(after)) {
        (Some(a), Some(b)) => format!("Speed: {a:.0} tokens/s before, {b:.0} again, {:.2} times as fast.", b / a),
        _ => "Speed: not measured in both.".to_string(),
    };
    document.paragraph(format!(
        "{} {speed}",
        if same { "Losses, norms, bytes and calls are the same." } else { "The record was NOT repeated." },
    ));
    let flags = [before, after].map(|record| record.validity.join(", "));
    if flags.iter().any(|flags| !flags.is_empty()) {
        let words = flags.map(|flags| if flags.is_empty() { "none".to_string() } else { flags });
        document.paragraph(format!("Validity flags: {} before, {} again.", words[0], words[1]));
    }
    (document, same)
}

#[cfg(test)]
mod tests {
    use super::super::quoted;

    #[test]
    fn command_lines_become_words_again() {
        let words = ["zbench", "--set", "train.steps=20", "b c", "d'e", "", "#1", "\\", "$HOME \"x\"", "grün\n*"];
        let line = words.map(quoted).join(" ");
        assert_eq!(shlex::split(&line).unwrap(), words, "{line}");
        assert!(line.starts_with("zbench --set train.steps=20 'b c' 'd'\\''e' '' '#1' "), "{line}");
        assert_eq!(shlex::split("a 'b"), None);
        assert_eq!(shlex::split("a \\"), None);
    }
}
