//! `zbench compare A B`.

use super::select::NotebookSet;
use super::{print_document, print_lines, room};
use crate::{CompareArgs, Format, Global};
use anyhow::{Result, bail};
use serde_json::Value;
use zbench_host::exit;
use zbench_reports::compare::{self, Options, Side, document};

/// Compares two selections of records and prints the result.
pub fn compare(global: &Global, arguments: &CompareArgs) -> Result<u8> {
    let Some(b) = &arguments.b else { bail!("compare needs a B") };
    let mut books = NotebookSet::new(&global.notebook);
    books.read(&arguments.a)?;
    books.read(b)?;
    let records = (books.side(&arguments.a)?, books.side(b)?);
    let a = Side { selector: arguments.a.trim().into(), records: records.0.iter().collect() };
    let b = Side { selector: b.trim().into(), records: records.1.iter().collect() };
    let options = Options { include_flagged: arguments.include_flagged, all_steps: arguments.all_steps };
    let comparison = compare::compare(&a, &b, options);
    match global.format {
        Format::Json => {
            let pairs = comparison.pairs.iter().map(serde_json::to_value);
            let unpaired = comparison.unpaired.iter().map(serde_json::to_value);
            print_lines(&pairs.chain(unpaired).collect::<Result<Vec<Value>, _>>()?)?;
        }
        // Formats for machines leave nothing out.
        Format::Table if !global.full => print_document(global, &compare::short(&comparison, room(global)))?,
        Format::Csv => print_document(global, &document::document(&comparison, usize::MAX))?,
        _ => print_document(global, &document::document(&comparison, document::PAIRS_IN_FULL))?,
    }
    if comparison.pairs.is_empty() {
        zbench_host::say!("no two cells could be compared; the reasons are above");
        return Ok(exit::NOT_MEASURED);
    }
    Ok(exit::SUCCESS)
}
