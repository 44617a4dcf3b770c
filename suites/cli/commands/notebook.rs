//! `list`, `show`, `note` and `tag`: what the notebook holds.

use super::{document_text, existing, filter, json_lines, print_document, print_lines, select, the_terminal};
use crate::{Format, Global, ListArgs, TagArgs};
use anyhow::{Result, bail};
use std::io::{BufWriter, Write};
use std::sync::Arc;
use zbench_host::exit;
use zbench_reports::notebook_report::{self, List};
use zbench_reports::render::{csv, json, long, terminal};
use zbench_reports::{Index, IndexEntry, Notebook, Remark};

/// Reads the index, and warns of unreadable lines and of turns that are not in the records yet.
pub fn index(notebook: &Notebook) -> Result<Arc<Index>> {
    let index = notebook.index()?;
    print_warnings(&index);
    if let Some(words) = waiting(notebook) {
        zbench_host::say!("{words}");
    }
    Ok(index)
}

/// Prints a warning for each line that could not be read.
pub fn print_warnings(index: &Index) {
    for warning in index.warnings() {
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
    let index = index(&notebook)?;
    let mut records = filter::choose(&notebook, &index, &arguments.what, jiff::Timestamp::now())?;
    sort(&notebook, &mut records, &arguments.sort)?;
    if let Some(last) = arguments.last {
        records.drain(..records.len().saturating_sub(last));
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    if global.format == Format::Json {
        // The notebook keeps tags and remarks beside the record; here they stand in it.
        let tags = index.tags();
        for record in notebook.each(records) {
            let mut record = record?;
            if let Some(of) = tags.get(record.id.as_str()) {
                record.extra.insert("tags".into(), serde_json::to_value(of)?);
            }
            out.write_all(json::escaped(&json_lines(&[record])?).as_bytes())?;
        }
    } else {
        let is_all = arguments.what.is_empty() && arguments.last.is_none();
        let list = List::new(&records, &index, (!is_all).then_some(index.records.len()));
        write_list(global, &list, records.len(), &mut out)?;
    }
    out.flush()?;
    Ok(exit::SUCCESS)
}

/// Writes a list: a long one in parts, so that not all of its rows are in memory, where the format has it so.
fn write_list(global: &Global, list: &List, rows: usize, out: &mut dyn Write) -> Result<()> {
    match global.format {
        Format::Table if rows > long::ROWS_AT_ONCE => {
            let terminal = the_terminal(global);
            writeln!(out, "{}\n", terminal::heading(list.title(), terminal))?;
            long::write(out, rows, &|places| list.table(places), terminal)?;
            writeln!(out, "\n{}", list.last_line())?;
        }
        Format::Csv if rows > 0 => {
            for places in long::parts(rows) {
                let text = csv::render_table(&list.table(places.clone()));
                // Only the first part has the header.
                let begin = if places.start == 0 { 0 } else { text.find('\n').map_or(0, |end| end + 1) };
                out.write_all(&text.as_bytes()[begin..])?;
            }
        }
        _ => out.write_all(document_text(global, &list.document()).as_bytes())?,
    }
    Ok(())
}

/// Sorts records. Records without the value come first. Of most metrics the records have to be read.
fn sort(notebook: &Notebook, records: &mut Vec<&IndexEntry>, by: &str) -> Result<()> {
    match by {
        "started" => records.sort_by(|a, b| a.started.cmp(&b.started)),
        "name" => records.sort_by(|a, b| a.name.cmp(&b.name)),
        "key" => records.sort_by(|a, b| a.key.cmp(&b.key)),
        "status" => records.sort_by_key(|record| record.status),
        "trial" => records.sort_by_key(|record| record.trial),
        metric => {
            let (mut values, mut is_known) = (Vec::new(), records.is_empty());
            for record in notebook.each(records.iter().copied()) {
                let metrics = record?.metrics;
                is_known |= metrics.get(metric).is_some();
                values.push(metrics.number(metric).unwrap_or(f64::NEG_INFINITY));
            }
            if !is_known {
                bail!(
                    "--sort {by}: no record has such a metric; write started, name, key, status, trial or a metric that `zbench show ID` names"
                );
            }
            let mut places: Vec<usize> = (0..records.len()).collect();
            places.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
            *records = places.into_iter().map(|place| records[place]).collect();
        }
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
    let ids = ids(&notebook, &arguments.id)?;
    let (added, removed) =
        if arguments.remove { (&[][..], &arguments.tags[..]) } else { (&arguments.tags[..], &[][..]) };
    for id in &ids {
        notebook.note(&Remark::tagging(id, added, removed, jiff::Timestamp::now().to_string()))?;
    }
    let index = notebook.index()?;
    let tags = index.tags();
    for id in &ids {
        let words = tags.get(id.as_str()).map(|tags| tags.iter().copied().collect::<Vec<_>>().join(", "));
        zbench_host::say!("tags of {id}: {}", words.as_deref().unwrap_or("none"));
    }
    Ok(exit::SUCCESS)
}

/// The ids of the selected record, or of all records of the selected cell.
fn ids(notebook: &Notebook, text: &str) -> Result<Vec<String>> {
    let index = notebook.index()?;
    Ok(select::one(notebook, &index, text)?.into_iter().map(|record| record.id.clone()).collect())
}

/// Most other records of a cell that are named.
const OTHERS: usize = 8;

/// `zbench show ID`; of a cell the newest record.
pub fn show(global: &Global, id: &str) -> Result<u8> {
    let notebook = existing(global)?;
    let index = notebook.index()?;
    let mut records = select::one(&notebook, &index, id)?;
    let Some(newest) = records.pop() else { bail!("`{id}` stands for no record") };
    if !records.is_empty() {
        let others: Vec<&str> = records.iter().rev().map(|record| record.id.as_str()).collect();
        let more = if others.len() > OTHERS { ", …" } else { "" };
        let others = &others[..others.len().min(OTHERS)];
        zbench_host::say!("the newest record of the cell; the others are {}{more}", others.join(", "));
    }
    let mut record = notebook.record(newest)?;
    let remarks = notebook.remarks_on(&index, |of| of == record.id)?;
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
    for id in ids(&notebook, id)? {
        notebook.note(&Remark::new(&id, text, jiff::Timestamp::now().to_string()))?;
        zbench_host::say!("noted on {id}");
    }
    Ok(exit::SUCCESS)
}
