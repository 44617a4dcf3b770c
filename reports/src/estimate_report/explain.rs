//! Sums term by term, for `plan --explain`.

use crate::document::{Document, Entry, Table};
use serde::{Deserialize, Serialize};

/// One term of a sum.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Term {
    /// Its name.
    pub name: String,
    /// How it is computed, in words or a formula.
    pub formula: String,
    /// Its value, in the sum's unit.
    pub value: f64,
    /// The value as people read it.
    pub text: String,
}

/// A sum and its terms.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sum {
    /// What is summed.
    pub title: String,
    /// The unit of the values.
    pub unit: String,
    /// The terms.
    pub terms: Vec<Term>,
    /// Their total, if they are a sum.
    pub total: Option<Term>,
    /// The source of the formula; may be empty.
    pub source: String,
}

/// The sums of one cell.
pub fn explain(label: &str, sums: &[Sum]) -> Document {
    let title = if label.is_empty() { "Term by term".to_string() } else { format!("Term by term: {label}") };
    let mut document = Document::new(title);
    for sum in sums {
        document.heading(&sum.title);
        let terms: Vec<&Term> = sum.terms.iter().chain(&sum.total).collect();
        let mut table = Table::of(&sum.title, &terms);
        table.words("term", |term| &term.name);
        table.numbers("value", &sum.unit, |term| Entry::number(term.value, &term.text));
        table.words("how", |term| &term.formula);
        document.table(table.build().caption(&sum.source));
    }
    document
}
