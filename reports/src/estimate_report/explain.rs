//! Sums term by term: `plan --explain`.

use crate::document::{Column, Document, Entry, Table};
use serde::{Deserialize, Serialize};

/// One term of a sum.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Term {
    /// What it is.
    pub name: String,
    /// How it is made, in words or a formula.
    pub formula: String,
    /// Its value, in the sum's unit.
    pub value: f64,
    /// The value for a reader.
    pub text: String,
}

/// A sum and its terms.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sum {
    /// What is summed.
    pub title: String,
    /// Its unit, for machines.
    pub unit: String,
    /// The terms.
    pub terms: Vec<Term>,
    /// What they come to, where they are a sum.
    pub total: Option<Term>,
    /// Where the formula is from; may be empty.
    pub source: String,
}

/// The sums of one cell.
pub fn explain(label: &str, sums: &[Sum]) -> Document {
    let title = if label.is_empty() { "Term by term".to_string() } else { format!("Term by term: {label}") };
    let mut document = Document::new(title);
    for sum in sums {
        document.heading(sum.title.clone());
        let columns = vec![Column::words("term"), Column::numbers("value", sum.unit.clone()), Column::words("how")];
        let mut table = Table::new(sum.title.clone(), columns).caption(sum.source.clone());
        for term in sum.terms.iter().chain(&sum.total) {
            table.row(vec![
                Entry::words(&term.name),
                Entry::number(term.value, term.text.clone()),
                Entry::words(&term.formula),
            ]);
        }
        document.table(table);
    }
    document
}
