//! Predictions beside what others published: `plan --validate`.

use crate::document::{Column, Document, Entry, Table, Tone};
use crate::units;
use serde::{Deserialize, Serialize};

/// One quantity of one published row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PublishedRow {
    /// The row's.
    pub id: String,
    /// The row's.
    pub family: String,
    /// What is compared.
    pub quantity: String,
    /// The row's unit, in which both numbers are.
    pub unit: String,
    /// As published: empty, `OOM`, `<`, `>`, …
    pub bound: String,
    /// As published; `None` where the row states an outcome alone.
    pub published: Option<f64>,
    /// What is predicted; `None` where the row cannot be expressed.
    pub predicted: Option<f64>,
    /// Whether its error counts.
    pub scored: bool,
    /// Why it is not predicted, or not scored; else empty.
    pub reason: String,
}

impl PublishedRow {
    /// Prediction over publication, less one.
    pub fn error(&self) -> Option<f64> {
        let (published, predicted) = (self.published?, self.predicted?);
        if published == predicted {
            return Some(0.0);
        }
        Some(predicted / published - 1.0).filter(|error| error.is_finite())
    }
}

/// Errors of a family's rows of one kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Family {
    /// `memory`, `throughput`, `collectives`, `kernels`.
    pub kind: String,
    /// The family; `all` for all of a kind.
    pub name: String,
    /// Rows.
    pub rows: usize,
    /// Those that could be expressed.
    pub expressed: usize,
    /// Those that are scored.
    pub scored: usize,
    /// Median of absolute relative errors.
    pub median: Option<f64>,
    /// Their 90th percentile.
    pub p90: Option<f64>,
}

/// Rows that could not be expressed, by reason.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Unexpressed {
    /// Why.
    pub reason: String,
    /// How many.
    pub rows: usize,
    /// One of them.
    pub example: String,
}

/// Runs that fitted and runs that were out of memory, by what is predicted of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FitsOrNot {
    /// Of which rows.
    pub kind: String,
    /// Fitted, and predicted to.
    pub fitted: usize,
    /// Fitted, and predicted to be out of memory.
    pub false_alarms: usize,
    /// Were out of memory, and predicted to be.
    pub found: usize,
    /// Were out of memory, and predicted to fit.
    pub missed: usize,
}

/// What validation found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Where the rows are from.
    pub folder: String,
    /// Every row.
    pub rows: Vec<PublishedRow>,
    /// Errors by family.
    pub families: Vec<Family>,
    /// What is predicted of runs that fitted and of runs that did not.
    pub fits: Vec<FitsOrNot>,
    /// Statements beside errors: directions; name, right, of.
    pub shares: Vec<(String, usize, usize)>,
    /// What could not be expressed.
    pub unexpressed: Vec<Unexpressed>,
}

/// So many of the worst rows are shown.
const WORST: usize = 20;

/// The document of a validation.
pub fn validation(found: &Validation) -> Document {
    let mut document = Document::new("Predictions beside published results");
    let (all, expressed) = (found.rows.len(), found.rows.iter().filter(|row| row.predicted.is_some()).count());
    let scored = found.rows.iter().filter(|row| row.scored).count();
    document.paragraph(format!(
        "{} of {}: {expressed} could be expressed ({}), {scored} are scored. Suspect rows, rows cited from memory and \
         one-sided ones are predicted and not scored.",
        units::plural(all, "row", "rows"),
        found.folder,
        units::percent(expressed as f64 / all.max(1) as f64)
    ));
    document.table(families(&found.families));
    if !found.shares.is_empty() {
        let share = |(name, right, of): &(String, usize, usize)| {
            format!("{name}: {right} of {of} right ({})", units::percent(*right as f64 / (*of).max(1) as f64))
        };
        document.list(found.shares.iter().map(share).collect());
    }
    if !found.fits.is_empty() {
        document.heading("Fits or out of memory");
        document.table(fits(&found.fits));
    }
    worst(&mut document, &found.rows);
    if !found.unexpressed.is_empty() {
        document.heading("Not expressed");
        let columns = vec![Column::words("reason"), Column::numbers("rows", "rows"), Column::words("for example")];
        let mut table = Table::new("unexpressed", columns);
        for entry in &found.unexpressed {
            table.row(vec![
                Entry::words(&entry.reason),
                Entry::whole(entry.rows as u64, entry.rows.to_string()),
                Entry::words(&entry.example),
            ]);
        }
        document.table(table);
    }
    document
}

fn families(families: &[Family]) -> Table {
    let columns = vec![
        Column::words("kind"),
        Column::words("family"),
        Column::numbers("rows", "rows"),
        Column::numbers("expressed", "rows"),
        Column::numbers("scored", "rows"),
        Column::numbers("median error", "fraction"),
        Column::numbers("90th percentile", "fraction"),
    ];
    let mut table = Table::new("families", columns).caption("Absolute relative errors of the scored rows.");
    for family in families {
        let whole = |count: usize| Entry::whole(count as u64, count.to_string());
        table.row(vec![
            Entry::words(&family.kind),
            Entry::words(&family.name),
            whole(family.rows),
            whole(family.expressed),
            whole(family.scored),
            Entry::maybe(family.median, units::percent),
            Entry::maybe(family.p90, units::percent),
        ]);
    }
    table
}

/// Whether runs fit, as a decision: most published runs fitted, so whoever always says "fits" is right of nearly all of them and
/// finds no run that was out of memory.
fn fits(list: &[FitsOrNot]) -> Table {
    let columns = vec![
        Column::words("kind"),
        Column::numbers("runs", "runs"),
        Column::numbers("right", "fraction"),
        Column::numbers("right by always saying fits", "fraction"),
        Column::numbers("out of memory", "runs"),
        Column::numbers("found", "runs"),
        Column::numbers("recall", "fraction"),
        Column::numbers("false alarms", "runs"),
        Column::numbers("precision", "fraction"),
    ];
    let mut table = Table::new("fits", columns).caption(
        "Runs that are known to have fitted or to have been out of memory. Recall: of those out of memory, how many are predicted \
         to be; precision: of those predicted to be out of memory, how many were.",
    );
    for of in list {
        let whole = |count: usize| Entry::whole(count as u64, count.to_string());
        let share = |part: usize, of: usize| Entry::maybe((of > 0).then(|| part as f64 / of as f64), units::percent);
        let runs = of.fitted + of.false_alarms + of.found + of.missed;
        table.row(vec![
            Entry::words(&of.kind),
            whole(runs),
            share(of.fitted + of.found, runs),
            share(of.fitted + of.false_alarms, runs),
            whole(of.found + of.missed),
            whole(of.found),
            share(of.found, of.found + of.missed),
            whole(of.false_alarms),
            share(of.found, of.found + of.false_alarms),
        ]);
    }
    table
}

fn worst(document: &mut Document, rows: &[PublishedRow]) {
    let mut scored: Vec<(&PublishedRow, f64)> =
        rows.iter().filter(|row| row.scored).filter_map(|row| Some((row, row.error()?))).collect();
    scored.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    scored.truncate(WORST);
    if scored.is_empty() {
        return;
    }
    document.heading("The worst rows");
    let columns = vec![
        Column::words("row"),
        Column::words("quantity"),
        Column::numbers("published", ""),
        Column::numbers("predicted", ""),
        Column::words("unit"),
        Column::numbers("error", "fraction"),
        Column::words("remark"),
    ];
    let mut table = Table::new("worst", columns);
    for (row, error) in scored {
        table.row(vec![
            Entry::words(&row.id),
            Entry::words(&row.quantity),
            Entry::maybe(row.published, units::number),
            Entry::maybe(row.predicted, units::number),
            Entry::words(&row.unit),
            Entry::number(error, units::change(error)).toned(Tone::Warning),
            Entry::words(&row.reason),
        ]);
    }
    document.table(table);
}
