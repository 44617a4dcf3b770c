//! Rows of the published files. Columns are found by name; any may be missing, and in any order.

use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;

/// Why a file cannot be read.
#[derive(Debug, Error)]
pub enum RowError {
    /// No CSV.
    #[error("line {line}: {why}; a published file is CSV with a header line")]
    Form {
        /// Where.
        line: u64,
        /// What the reader says.
        why: String,
    },
    /// No names in the first line.
    #[error("the header names no column `id`; the first line of a published file names its columns")]
    NoId,
}

/// A row.
#[derive(Clone, Debug)]
pub struct Row {
    columns: Arc<BTreeMap<String, usize>>,
    cells: Vec<String>,
}

/// All rows of a file's text.
pub fn read(text: &str) -> Result<Vec<Row>, RowError> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_bytes());
    let form = |error: csv::Error| RowError::Form {
        line: error.position().map_or(0, csv::Position::line),
        why: error.to_string(),
    };
    let header = reader.headers().map_err(form)?;
    let named = |(place, name): (usize, &str)| (name.trim().trim_start_matches('\u{feff}').to_lowercase(), place);
    let columns: Arc<BTreeMap<String, usize>> = Arc::new(header.iter().enumerate().map(named).collect());
    if !columns.contains_key("id") {
        return Err(RowError::NoId);
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(form)?;
        let cells = record.iter().map(|cell| cell.trim().to_string()).collect();
        rows.push(Row { columns: Arc::clone(&columns), cells });
    }
    Ok(rows)
}

impl Row {
    /// Whether the file has a column.
    pub fn has(&self, column: &str) -> bool {
        self.columns.contains_key(column)
    }

    /// A cell's text; empty where there is none.
    pub fn text(&self, column: &str) -> &str {
        let place = self.columns.get(column);
        place.and_then(|place| self.cells.get(*place)).map_or("", String::as_str)
    }

    /// A cell's text in lower case.
    pub fn words(&self, column: &str) -> String {
        self.text(column).to_lowercase()
    }

    /// A cell's number.
    pub fn number(&self, column: &str) -> Option<f64> {
        self.text(column).replace(',', "").parse().ok().filter(|n: &f64| n.is_finite())
    }

    /// A cell's whole number, not negative and not above 1e9; `n/a` and the like are none.
    pub fn count(&self, column: &str) -> Option<usize> {
        self.number(column).filter(|n| (0.0..=1e9).contains(n)).map(|n| n as usize)
    }

    /// A whole number of at least one.
    pub fn positive(&self, column: &str) -> Option<usize> {
        self.count(column).filter(|n| *n > 0)
    }

    /// The numbers of the form `24+24` (encoder and decoder); one where there is no plus. What follows a space is a remark.
    pub fn pair(&self, column: &str) -> Option<(usize, Option<usize>)> {
        let text = self.text(column).split(' ').next().unwrap_or("").replace(',', "");
        let mut parts = text.split('+').map(|part| part.trim().parse::<f64>().ok());
        let whole = |n: f64| (1.0..=1e9).contains(&n).then_some(n as usize);
        let first = parts.next().flatten().and_then(whole)?;
        Some((first, parts.next().flatten().and_then(whole)))
    }

    /// The row's name.
    pub fn id(&self) -> &str {
        self.text("id")
    }

    /// The family it belongs to.
    pub fn family(&self) -> &str {
        self.text("family")
    }

    /// Whether it may be scored at all: neither suspect nor recalled from memory.
    pub fn trusted(&self) -> bool {
        !self.words("suspect").starts_with('y') && !self.words("provenance").contains("memory")
    }

    /// Whether constants may be fitted on it: half of the rows are, by a hash of their names (FNV-1a).
    pub fn fits(&self) -> bool {
        fits(self.id())
    }
}

/// See [`Row::fits`].
pub fn fits(id: &str) -> bool {
    let hash = id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    // FNV's last bytes hardly reach its upper bits: rows of a family would all fall into one half without mixing.
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed ^ (mixed >> 33)) & 1 == 0
}
