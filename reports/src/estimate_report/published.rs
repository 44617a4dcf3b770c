//! Predictions beside published results, for `plan --validate`.

use crate::document::{Document, Entry, Table, Tone};
use crate::units;
use serde::{Deserialize, Serialize};

/// One quantity of one published row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PublishedRow {
    /// The id of the row.
    pub id: String,
    /// The family of the row.
    pub family: String,
    /// The quantity that is compared.
    pub quantity: String,
    /// The unit of both numbers.
    pub unit: String,
    /// The published bound: empty, `OOM`, `<`, `>`, …
    pub bound: String,
    /// The published number; `None` where the row states an outcome only.
    pub published: Option<f64>,
    /// The prediction; `None` where the row cannot be expressed.
    pub predicted: Option<f64>,
    /// Whether its error counts.
    pub scored: bool,
    /// Why it is not predicted or not scored; else empty.
    pub reason: String,
}

impl PublishedRow {
    /// Relative error of the prediction.
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
    /// Number of rows.
    pub rows: usize,
    /// Number of rows that could be expressed.
    pub expressed: usize,
    /// Number of rows that are scored.
    pub scored: usize,
    /// Median of absolute relative errors.
    pub median: Option<f64>,
    /// 90th percentile of absolute relative errors.
    pub p90: Option<f64>,
}

/// Rows that could not be expressed, by reason.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Unexpressed {
    /// The reason.
    pub reason: String,
    /// Number of rows.
    pub rows: usize,
    /// The id of one of them.
    pub example: String,
}

/// Runs that fitted and runs that were out of memory, by their predictions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FitsOrNot {
    /// The kind of rows.
    pub kind: String,
    /// Runs that fitted and are predicted to fit.
    pub fitted: usize,
    /// Runs that fitted and are predicted to be out of memory.
    pub false_alarms: usize,
    /// Runs that were out of memory and are predicted to be.
    pub found: usize,
    /// Runs that were out of memory and are predicted to fit.
    pub missed: usize,
}

/// The result of a validation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// The folder of the rows.
    pub folder: String,
    /// All rows.
    pub rows: Vec<PublishedRow>,
    /// Errors by family.
    pub families: Vec<Family>,
    /// Predictions of whether runs fit.
    pub fits: Vec<FitsOrNot>,
    /// How often the direction of a difference is predicted right: name, right ones, all.
    pub shares: Vec<(String, usize, usize)>,
    /// Rows that could not be expressed.
    pub unexpressed: Vec<Unexpressed>,
}

/// Rows among the worst that are shown.
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
    let share = |(name, right, of): &(String, usize, usize)| {
        format!("{name}: {right} of {of} right ({})", units::percent(*right as f64 / (*of).max(1) as f64))
    };
    document.list(found.shares.iter().map(share).collect());
    document.headed_table("Fits or out of memory", fits(&found.fits));
    document.headed_table("The worst rows", worst(&found.rows));
    let mut table = Table::of("unexpressed", &found.unexpressed);
    table.words("reason", |entry| &entry.reason);
    table.numbers("rows", "rows", |entry| entry.rows);
    table.words("for example", |entry| &entry.example);
    document.headed_table("Not expressed", table.build());
    document
}

fn families(families: &[Family]) -> Table {
    let mut table = Table::of("families", families);
    table.words("kind", |family| &family.kind);
    table.words("family", |family| &family.name);
    table.numbers("rows", "rows", |family| family.rows);
    table.numbers("expressed", "rows", |family| family.expressed);
    table.numbers("scored", "rows", |family| family.scored);
    table.numbers("median error", "fraction", |family| Entry::maybe(family.median, units::percent));
    table.numbers("90th percentile", "fraction", |family| Entry::maybe(family.p90, units::percent));
    table.build().caption("Absolute relative errors of the scored rows.")
}

/// The decision whether runs fit. Most published runs fitted, so always saying "fits" is right for nearly all of them and finds no run
/// that was out of memory.
fn fits(list: &[FitsOrNot]) -> Table {
    let share = |part: usize, of: usize| Entry::maybe((of > 0).then(|| part as f64 / of as f64), units::percent);
    let runs = |of: &FitsOrNot| of.fitted + of.false_alarms + of.found + of.missed;
    let mut table = Table::of("fits", list);
    table.words("kind", |of| &of.kind);
    table.numbers("runs", "runs", runs);
    table.numbers("right", "fraction", |of| share(of.fitted + of.found, runs(of)));
    table.numbers("right by always saying fits", "fraction", |of| share(of.fitted + of.false_alarms, runs(of)));
    table.numbers("out of memory", "runs", |of| of.found + of.missed);
    table.numbers("found", "runs", |of| of.found);
    table.numbers("recall", "fraction", |of| share(of.found, of.found + of.missed));
    table.numbers("false alarms", "runs", |of| of.false_alarms);
    table.numbers("precision", "fraction", |of| share(of.found, of.found + of.false_alarms));
    table.build().caption(
        "Runs that are known to have fitted or to have been out of memory. Recall: of those out of memory, how many are predicted \
         to be; precision: of those predicted to be out of memory, how many were.",
    )
}

fn worst(rows: &[PublishedRow]) -> Table {
    let mut scored: Vec<(&PublishedRow, f64)> =
        rows.iter().filter(|row| row.scored).filter_map(|row| Some((row, row.error()?))).collect();
    scored.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    scored.truncate(WORST);
    let mut table = Table::of("worst", &scored);
    table.words("row", |(row, _)| &row.id);
    table.words("quantity", |(row, _)| &row.quantity);
    table.numbers("published", "", |(row, _)| Entry::maybe(row.published, units::number));
    table.numbers("predicted", "", |(row, _)| Entry::maybe(row.predicted, units::number));
    table.words("unit", |(row, _)| &row.unit);
    table.numbers("error", "fraction", |(_, error)| Entry::number(*error, units::change(*error)).toned(Tone::Warning));
    table.words("remark", |(row, _)| &row.reason);
    table.build()
}
