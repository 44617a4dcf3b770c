//! `list`, `show`, `note` and `tag`: what the notebook holds.

use super::{existing, filter, print_document, print_lines, select};
use crate::{Format, Global, ListArgs, TagArgs};
use anyhow::{Result, bail};
use zbench_host::exit;
use zbench_reports::record::Record;
use zbench_reports::{Contents, Notebook, Remark, notebook_report};

/// Reads the notebook and warns of unreadable lines and of turns that are not in the records yet.
pub fn contents(notebook: &Notebook) -> Result<Contents> {
    let contents = notebook.read()?;
    print_warnings(&contents);
    if let Some(words) = waiting(notebook) {
        zbench_host::say!("{words}");
    }
    Ok(contents)
}

/// Prints a warning for each line that could not be read.
pub fn print_warnings(contents: &Contents) {
    for warning in contents.warnings() {
        zbench_host::say!("warning: {warning}");
    }
}

/// A warning if turns are not in the records yet because their grid still runs or was killed.
fn waiting(notebook: &Notebook) -> Option<String> {
    let folder = notebook.directory().join("turns");
    let is_of_turns = |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|ending| ending == "jsonl");
    let count = std::fs::read_dir(&folder).ok()?.flatten().filter(is_of_turns).count();
    let files = zbench_reports::units::plural(count, "file", "files");
    (count > 0).then(|| {
        format!(
            "{} has {files} of turns that are not in the records yet: their grid still runs, or it was killed; the next `zbench \
             grid` into this notebook adds those of killed grids",
            folder.display()
        )
    })
}

/// `zbench list [ID|FILTER]`.
pub fn list(global: &Global, arguments: &ListArgs) -> Result<u8> {
    let notebook = existing(global)?;
    let contents = contents(&notebook)?;
    let mut records = filter::choose(&notebook, &contents, &arguments.what, jiff::Timestamp::now())?;
    sort(&mut records, &arguments.sort)?;
    if let Some(last) = arguments.last {
        records.drain(..records.len().saturating_sub(last));
    }
    match global.format {
        Format::Json => {
            // The notebook keeps tags and remarks beside the record; here they stand in it.
            let tags = contents.tags();
            for record in &mut records {
                if let Some(of) = tags.get(record.id.as_str()) {
                    record.extra.insert("tags".into(), serde_json::to_value(of)?);
                }
            }
            print_lines(&records)?;
        }
        _ => {
            let is_all = arguments.what.is_empty() && arguments.last.is_none();
            let all = (!is_all).then_some(contents.records.len());
            print_document(global, &notebook_report::list_with(&records, &contents.remarks, all))?;
        }
    }
    Ok(exit::SUCCESS)
}

/// Sorts records. Records without the value come first.
fn sort(records: &mut [Record], by: &str) -> Result<()> {
    let metric = |record: &Record| record.metrics.number(by).unwrap_or(f64::NEG_INFINITY);
    match by {
        "started" => records.sort_by(|a, b| a.started.cmp(&b.started)),
        "name" => records.sort_by(|a, b| a.name.cmp(&b.name)),
        "key" => records.sort_by(|a, b| a.key.cmp(&b.key)),
        "status" => records.sort_by_key(|record| record.outcome.status),
        "trial" => records.sort_by_key(|record| record.trial),
        _ if records.is_empty() || records.iter().any(|record| record.metrics.get(by).is_some()) => {
            records.sort_by(|a, b| metric(a).total_cmp(&metric(b)));
        }
        _ => bail!(
            "--sort {by}: no record has such a metric; write started, name, key, status, trial or a metric that `zbench show ID` names"
        ),
    }
    Ok(())
}

/// `zbench tag ID TAG`; of a cell on all of its records.
pub fn tag(global: &Global, arguments: &TagArgs) -> Result<u8> {
    const MOST: usize = 64;
    let is_tag = |tag: &String| {
        !tag.is_empty()
            && tag.len() <= MOST
            && tag.chars().all(|c| !c.is_whitespace() && !c.is_control() && !",=".contains(c))
    };
    if let Some(wrong) = arguments.tags.iter().find(|tag| !is_tag(tag)) {
        bail!(
            "`{}` is no tag; write a word of at most {MOST} bytes without blanks, commas and equals signs",
            wrong.escape_debug()
        );
    }
    let notebook = existing(global)?;
    let records = select::one(&notebook, &arguments.id)?;
    let (added, removed) =
        if arguments.remove { (&[][..], &arguments.tags[..]) } else { (&arguments.tags[..], &[][..]) };
    for record in &records {
        notebook.note(&Remark::tagging(&record.id, added, removed, jiff::Timestamp::now().to_string()))?;
    }
    let contents = notebook.read()?;
    let tags = contents.tags();
    for record in &records {
        let words = tags.get(record.id.as_str()).map(|tags| tags.iter().copied().collect::<Vec<_>>().join(", "));
        zbench_host::say!("tags of {}: {}", record.id, words.as_deref().unwrap_or("none"));
    }
    Ok(exit::SUCCESS)
}

/// Most other records of a cell that are named.
const OTHERS: usize = 8;

/// `zbench show ID`; of a cell the newest record.
pub fn show(global: &Global, id: &str) -> Result<u8> {
    let notebook = existing(global)?;
    let mut records = select::one(&notebook, id)?;
    let Some(mut record) = records.pop() else { bail!("`{id}` stands for no record") };
    if !records.is_empty() {
        let others: Vec<&str> = records.iter().rev().map(|record| record.id.as_str()).collect();
        let more = if others.len() > OTHERS { ", …" } else { "" };
        let others = &others[..others.len().min(OTHERS)];
        zbench_host::say!("the newest record of the cell; the others are {}{more}", others.join(", "));
    }
    let remarks: Vec<Remark> = notebook.read()?.remarks_on(&record.id).cloned().collect();
    match global.format {
        Format::Json => {
            // The notebook keeps remarks beside the record; here they stand in it.
            record.extra.insert("remarks".into(), serde_json::to_value(remarks)?);
            print_lines(&[record])?;
        }
        _ => print_document(global, &notebook_report::show(&record, &remarks))?,
    }
    Ok(exit::SUCCESS)
}

/// `zbench note ID TEXT`; of a cell on all of its records.
pub fn note(global: &Global, id: &str, text: &str) -> Result<u8> {
    if text.trim().is_empty() {
        bail!("the note is empty; write what there is to say in quotes");
    }
    let notebook = existing(global)?;
    for record in select::one(&notebook, id)? {
        notebook.note(&Remark::new(&record.id, text, jiff::Timestamp::now().to_string()))?;
        zbench_host::say!("noted on {}", record.id);
    }
    Ok(exit::SUCCESS)
}
