//! Predictions beside published results, for `plan --validate`.

use crate::document::{Document, Entry, Table, Tone};
use crate::screen::Screen;
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

/// Errors of the rows of a kind, on all devices or on some.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KindScore {
    /// `memory`, `speed`, `collectives`.
    pub kind: String,
    /// Number of rows that are scored.
    pub scored: usize,
    /// Median of absolute relative errors, each row once.
    pub median: f64,
    /// 90th percentile of them.
    pub p90: f64,
    /// Number of families with scored rows.
    pub families: usize,
    /// Median over families of each family's median.
    pub family_median: f64,
    /// 90th percentile over families of each family's median.
    pub family_p90: f64,
}

/// Bands around predictions of a kind, or of a kind on some devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BandScore {
    /// Kind, and devices if there are several groups of them.
    pub of: String,
    /// Ends of the band of a job that the rows are like, as factors of a prediction; `None` if there are too few rows, or several groups
    /// of devices.
    pub like: Option<(f64, f64)>,
    /// Ends of the band of a job that no row is like.
    pub unlike: Option<(f64, f64)>,
    /// Mean share of a family's rows in the bands from all other families.
    pub left_out: Option<f64>,
    /// Median width of those bands, as a share of the prediction.
    pub width: Option<f64>,
    /// Mean share of a family's rows in the bands that `plan` prints.
    pub in_plan: f64,
}

/// Errors of a family's rows of one kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Family {
    /// `memory`, `speed`, `collectives`.
    pub kind: String,
    /// The family; `all rows` for all of a kind.
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
    /// The predictor: `zbench`, or a rule to compare it with.
    pub by: String,
    /// Runs that fitted and are predicted to fit.
    pub fitted: usize,
    /// Runs that fitted and are predicted to be out of memory.
    pub false_alarms: usize,
    /// Runs that were out of memory and are predicted to be.
    pub found: usize,
    /// Runs that were out of memory and are predicted to fit.
    pub missed: usize,
}

impl FitsOrNot {
    /// All runs.
    pub fn runs(&self) -> usize {
        self.fitted + self.false_alarms + self.found + self.missed
    }

    /// Runs that are predicted right.
    pub fn right(&self) -> usize {
        self.fitted + self.found
    }

    /// Share of the runs out of memory that are predicted to be.
    pub fn recall(&self) -> Option<f64> {
        share(self.found, self.found + self.missed)
    }

    /// Share of the runs predicted to be out of memory that were.
    pub fn precision(&self) -> Option<f64> {
        share(self.found, self.found + self.false_alarms)
    }
}

fn share(part: usize, of: usize) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

/// The result of a validation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// The folder of the rows.
    pub folder: String,
    /// All rows.
    pub rows: Vec<PublishedRow>,
    /// Errors by kind.
    pub kinds: Vec<KindScore>,
    /// Bands by kind and group of devices.
    pub bands: Vec<BandScore>,
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
    document.screen = Some(screen(found));
    document.heading("By kind");
    document.table(kinds(&found.kinds));
    document.headed_table("Bands", bands(&found.bands));
    document.headed_table("By family", families(&found.families));
    document.headed_table("Fits or out of memory", fits(&found.fits));
    document.headed_table("The worst rows", worst(&found.rows, WORST));
    let mut table = Table::of("unexpressed", &found.unexpressed);
    table.words("reason", |entry| &entry.reason);
    table.numbers("rows", "rows", |entry| entry.rows);
    table.words("for example", |entry| &entry.example);
    document.headed_table("Not expressed", table.build());
    document
}

/// Rows among the worst that are on the screen.
const WORST_ON_SCREEN: usize = 5;

fn screen(found: &Validation) -> Screen {
    let mut screen = Screen::default();
    let kinds_in_words: Vec<String> = found
        .kinds
        .iter()
        .map(|kind| {
            format!("{} {} (90 % of rows within {})", kind.kind, units::percent(kind.median), units::percent(kind.p90))
        })
        .collect();
    let answer = match kinds_in_words.is_empty() {
        true => "Nothing could be scored.".to_string(),
        false => format!("Median errors: {}.", units::list(&kinds_in_words)),
    };
    screen.said("ANSWER", answer, 3);
    let expressed = found.rows.iter().filter(|row| row.predicted.is_some()).count();
    let scored = found.rows.iter().filter(|row| row.scored).count();
    let rows = format!(
        "{} of {}; {expressed} are priced, {scored} scored. Results that bound a value, that are cited from memory or whose source \
         contradicts itself or leaves out what decides them are not scored.",
        units::plural(found.rows.len(), "result", "results"),
        found.folder
    );
    screen.said("ROWS", rows, 4);
    screen.table(kinds(&found.kinds));
    screen.table(bands(&found.bands));
    let share = |(name, right, of): &(String, usize, usize)| {
        format!("{name} is right for {right} of {of} pairs ({})", units::percent(*right as f64 / (*of).max(1) as f64))
    };
    screen.said("ORDER", found.shares.iter().map(share).collect::<Vec<_>>().join("; "), 2);
    screen.table(fits(&found.fits));
    screen.table(worst(&found.rows, WORST_ON_SCREEN));
    screen.said(
        "NEXT",
        "--full has errors by family, more of the worst rows and what is not priced; --format json has every row.",
        2,
    );
    screen
}

fn kinds(kinds: &[KindScore]) -> Table {
    let mut table = Table::of("kinds", kinds);
    table.words("kind", |kind| &kind.kind);
    table.numbers("rows", "rows", |kind| kind.scored);
    table.numbers("median", "fraction", |kind| Entry::number(kind.median, units::percent(kind.median)));
    table.numbers("90 %", "fraction", |kind| Entry::number(kind.p90, units::percent(kind.p90)));
    table.numbers("families", "families", |kind| kind.families);
    table.numbers("median of families", "fraction", |kind| {
        Entry::number(kind.family_median, units::percent(kind.family_median))
    });
    table.numbers("90 % of families", "fraction", |kind| {
        Entry::number(kind.family_p90, units::percent(kind.family_p90))
    });
    table
        .build()
        .caption("Absolute relative errors of the scored rows: each row once, then each family once by its median.")
}

fn bands(bands: &[BandScore]) -> Table {
    let factors = |ends: Option<(f64, f64)>| ends.map(|(low, high)| format!("x {low:.2} to x {high:.2}"));
    let mut table = Table::of("bands", bands);
    table.words("80 % band of", |of| &of.of);
    table.numbers("holds of families left out", "fraction", |of| Entry::maybe(of.left_out, units::percent));
    table.numbers("median width", "fraction", |of| Entry::maybe(of.width, units::percent));
    table.words("like these", |of| factors(of.like));
    table.words("like none", |of| factors(of.unlike));
    table.numbers("plan's holds", "fraction", |of| Entry::maybe(Some(of.in_plan), units::percent));
    table.build().caption(
        "Coverage of families left out: mean share of a family's results in the bands from all other families; median width of these \
         bands as a share of the prediction. Bands from all results, as factors of a prediction, for jobs like them and for jobs that none \
         of them is like. Last, the share of the results in the bands of `plan`. Each family counts once.",
    )
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
    table.build().caption("Absolute relative errors of the scored rows.").detail()
}

/// The decision whether runs fit. Most published runs fitted, so "always fits" is right for nearly all of them and finds no run that was
/// out of memory.
fn fits(list: &[FitsOrNot]) -> Table {
    let mut table = Table::of("fits", list);
    table.words("predictor", |of| &of.by);
    table.numbers("runs", "runs", FitsOrNot::runs);
    table.numbers("right", "fraction", |of| Entry::maybe(share(of.right(), of.runs()), units::percent));
    table.numbers("out of memory", "runs", |of| of.found + of.missed);
    table.numbers("found", "runs", |of| of.found);
    table.numbers("recall", "fraction", |of| Entry::maybe(of.recall(), units::percent));
    table.numbers("false alarms", "runs", |of| of.false_alarms);
    table.numbers("precision", "fraction", |of| Entry::maybe(of.precision(), units::percent));
    table.build().caption(
        "Runs that are known to have fitted or to have been out of memory. Recall: of those out of memory, how many are predicted \
         to be; precision: of those predicted to be out of memory, how many were.",
    )
}

fn worst(rows: &[PublishedRow], most: usize) -> Table {
    let mut scored: Vec<(&PublishedRow, f64)> =
        rows.iter().filter(|row| row.scored).filter_map(|row| Some((row, row.error()?))).collect();
    scored.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    scored.truncate(most);
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
