//! `export --bundle` and `import --bundle`: records in one file, from notebook to notebook.

use super::{existing, filter, notebook};
use crate::{ExportArgs, Global};
use anyhow::{Context, Result, anyhow};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Write};
use std::path::Path;
use zbench_host::{exit, machine};
use zbench_reports::Notebook;
use zbench_reports::bundle::Redaction;
use zbench_reports::units::plural;

/// `zbench export --bundle FILE [ID|FILTER]`.
pub fn export(global: &Global, arguments: &ExportArgs, bundle: &Path) -> Result<u8> {
    let notebook = existing(global)?;
    let index = notebook.index()?;
    notebook::print_warnings(&index);
    let now = jiff::Timestamp::now();
    let records = filter::choose(&notebook, &index, &arguments.what, now)?;
    if records.is_empty() {
        zbench_host::say!("no record is left to export; `zbench list` shows what there is");
        return Ok(exit::NOT_MEASURED);
    }
    let ids: BTreeSet<&str> = records.iter().map(|record| record.id.as_str()).collect();
    let remarks = notebook.remarks_on(&index, |id| ids.contains(id))?;
    let records = notebook.whole(records)?;
    let redaction =
        if arguments.keep_hosts { Redaction::of_secrets() } else { Redaction::of_hosts(&machine::host_name()) };
    let bytes =
        zbench_reports::bundle::write(&records, &remarks, &redaction, env!("CARGO_PKG_VERSION"), &now.to_string())?;
    let path = bundle.display();
    let mut file = OpenOptions::new().write(true).create_new(true).open(bundle).with_context(|| {
        format!("the bundle {path} cannot be made; name a file that does not exist, in a folder that you may write to")
    })?;
    if let Err(error) = file.write_all(&bytes).and_then(|()| file.sync_all()) {
        // Half a bundle is useless, and would block the next attempt.
        let _ = std::fs::remove_file(bundle);
        return Err(anyhow!("the bundle {path} cannot be written: {error}"));
    }
    zbench_host::say!(
        "wrote {} and {} into {path}; {}",
        plural(records.len(), "record", "records"),
        plural(remarks.len(), "remark", "remarks"),
        redaction.words()
    );
    Ok(exit::SUCCESS)
}

/// `zbench import --bundle FILE`.
pub fn import(global: &Global, bundle: &Path) -> Result<u8> {
    let path = bundle.display();
    let file = File::open(bundle).with_context(|| format!("the bundle {path} cannot be opened"))?;
    let bundle =
        zbench_reports::bundle::read(BufReader::new(file)).with_context(|| format!("nothing was taken of {path}"))?;
    let notebook = Notebook::open(&global.notebook)?;
    let merged = notebook.merge(&bundle.records, &bundle.remarks)?;
    zbench_host::say!(
        "{} and {} added to {}; {} and {} were there already",
        plural(merged.added, "record", "records"),
        plural(merged.remarks_added, "remark", "remarks"),
        notebook.directory().display(),
        merged.known,
        merged.remarks_known
    );
    for id in &merged.conflicts {
        zbench_host::say!(
            "warning: {id} was not taken: the notebook holds another record of that id, which stays; {path} still has this one"
        );
    }
    Ok(exit::SUCCESS)
}
