//! One side's records gathered into cells, and which trials are used.

use std::collections::HashMap;

use serde_json::Value;

use super::{LeftOut, Options};
use crate::grid::labels;
use crate::record::Record;

/// All trials of one configuration on one side.
#[derive(Debug)]
pub struct Cell<'a> {
    /// Hash of the configuration.
    pub key: &'a str,
    /// Its name among the cells of its side.
    pub label: String,
    /// Every trial, used or not.
    pub trials: Vec<&'a Record>,
    /// The trials whose numbers are used.
    pub used: Vec<&'a Record>,
    /// The others, with the reason.
    pub left_out: Vec<LeftOut>,
}

impl<'a> Cell<'a> {
    /// The resolved configuration.
    pub fn settings(&self) -> &'a Value {
        &self.trials[0].cell
    }

    /// Why there is nothing to compare; `None` where there is.
    pub fn why_unused(&self) -> Option<String> {
        let last = self.left_out.last().filter(|_| self.used.is_empty())?;
        Some(format!("no valid trial ({})", last.reason))
    }
}

fn why_left_out(record: &Record, options: Options) -> Option<String> {
    if !record.is_measured() {
        return Some(record.outcome.status.words().to_string());
    }
    if record.is_twin() {
        return Some("of the reference's second set of processes".to_string());
    }
    let flags: Vec<&str> = record.excluding_flags().collect();
    (!options.include_flagged && !flags.is_empty()).then(|| format!("flagged {}", flags.join(", ")))
}

/// The cells of a side, in the order in which their keys first occur.
pub fn gather<'a>(records: &[&'a Record], options: Options) -> Vec<Cell<'a>> {
    let mut index: HashMap<&str, usize> = HashMap::new();
    let mut cells: Vec<Cell> = Vec::new();
    for &record in records {
        let place = *index.entry(&record.key).or_insert(cells.len());
        if place == cells.len() {
            let key = record.key.as_str();
            cells.push(Cell { key, label: String::new(), trials: vec![], used: vec![], left_out: vec![] });
        }
        let cell = &mut cells[place];
        cell.trials.push(record);
        match why_left_out(record, options) {
            None => cell.used.push(record),
            Some(reason) => cell.left_out.push(LeftOut { record: record.id.clone(), reason }),
        }
    }
    label(&mut cells);
    cells
}

fn label(cells: &mut [Cell]) {
    let records: Vec<&Record> = cells.iter().map(|cell| cell.trials[0]).collect();
    let (_, labels) = labels::of_cells(&records);
    for (cell, label) in cells.iter_mut().zip(labels) {
        cell.label = label;
    }
}
