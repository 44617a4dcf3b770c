//! `list`, `show` and `note`: what the notebook holds.

use super::{print_document, print_lines};
use crate::cli::{Format, Global, exit};
use anyhow::{Result, bail};
use zbench_reports::record::Record;
use zbench_reports::{Notebook, Remark, notebook_report};

/// The notebook, which must be there: asking a folder that does not exist makes none.
pub fn existing(global: &Global) -> Result<Notebook> {
    if !global.notebook.is_dir() {
        bail!(
            "there is no notebook in {}; run a grid first, or name it with --notebook DIR",
            global.notebook.display()
        );
    }
    Ok(Notebook::open(&global.notebook)?)
}

/// All records, unreadable lines told of.
pub fn records(global: &Global) -> Result<Vec<Record>> {
    let contents = existing(global)?.read()?;
    for warning in contents.warnings() {
        crate::say!("warning: {warning}");
    }
    Ok(contents.records)
}

/// `zbench list`.
pub fn list(global: &Global) -> Result<u8> {
    let records = records(global)?;
    match global.format {
        Format::Json => print_lines(&records)?,
        _ => print_document(global, &notebook_report::list(&records))?,
    }
    Ok(exit::SUCCESS)
}

/// `zbench show ID`.
pub fn show(global: &Global, id: &str) -> Result<u8> {
    let notebook = existing(global)?;
    let record = notebook.find(id)?;
    match global.format {
        Format::Json => {
            // The notebook keeps remarks beside the record; here they stand in it.
            let mut record = record;
            let remarks: Vec<Remark> = notebook.read()?.remarks_on(&record.id).cloned().collect();
            record.extra.insert("remarks".into(), serde_json::to_value(remarks)?);
            print_lines(&[record])?;
        }
        _ => {
            let contents = notebook.read()?;
            let remarks: Vec<Remark> = contents.remarks_on(&record.id).cloned().collect();
            print_document(global, &notebook_report::show(&record, &remarks))?;
        }
    }
    Ok(exit::SUCCESS)
}

/// `zbench note ID TEXT`.
pub fn note(global: &Global, id: &str, text: &str) -> Result<u8> {
    if text.trim().is_empty() {
        bail!("the note is empty; write what there is to say in quotes");
    }
    let notebook = existing(global)?;
    let record = notebook.find(id)?;
    notebook.note(&Remark::new(&record.id, text, jiff::Timestamp::now().to_string()))?;
    crate::say!("noted on {}", record.id);
    Ok(exit::SUCCESS)
}
