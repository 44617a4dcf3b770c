//! Plots without a format: data, axes with units, and the records behind them.
//!
//! [`svg`] draws a [`Figure`]; [`Figure::data`] has the same numbers as a table, for CSV and for readers who cannot see. The few kinds
//! of plots are named by the form of their data; the module `figures` makes them of what is measured.

mod canvas;
mod data;
mod plane;
mod rows;
pub mod scale;
pub mod svg;
mod timelines;

use serde::Serialize;

use crate::table::Tone;
use crate::units;
pub(crate) use rows::is_near;
pub use timelines::{Block, Lane, TimelinePanel, Timelines};

/// A plot with its title and caption.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Short name of lower-case letters and dashes, for machines and file names: `speed`, `memory`.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// The result in words, with units and conventions, for those who read nothing else.
    pub caption: String,
    /// The plot itself.
    pub plot: Plot,
    /// Ids of the records it is made from.
    pub records: Vec<String>,
}

impl Figure {
    /// A figure of these parts.
    pub fn new(name: &str, title: &str, caption: impl Into<String>, plot: Plot, records: Vec<String>) -> Self {
        Self { name: name.to_string(), title: title.to_string(), caption: caption.into(), plot, records }
    }

    /// `Made from records a, b.`, with their ids where they are few.
    pub fn made_from(&self) -> String {
        const SHOWN: usize = 8;
        match &self.records[..] {
            [] => String::new(),
            [id] => format!("Made from record {id}."),
            ids if ids.len() <= SHOWN => format!("Made from records {}.", ids.join(", ")),
            ids => format!("Made from {}, listed under Repeating this.", units::plural(ids.len(), "record", "records")),
        }
    }
}

/// The kinds of plots.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Plot {
    /// A value with its interval for each row.
    Intervals(Intervals),
    /// Parts that add up, for each row, against a limit.
    Stacks(Stacks),
    /// Spans that follow each other and add up, one panel for each cell.
    Waterfalls(Waterfalls),
    /// Curves.
    Lines(Lines),
    /// Points of two numbers.
    Scatter(Scatter),
    /// The distribution of values, for each row.
    Spreads(Spreads),
    /// What is done when, in lanes.
    Timelines(Timelines),
}

/// An axis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Axis {
    /// What it measures; the unit is added where it is drawn.
    pub title: String,
    /// Unit of the values.
    pub unit: Unit,
    /// Whether equal distances are equal ratios.
    pub log: bool,
}

impl Axis {
    /// An axis on which equal distances are equal differences.
    pub fn linear(title: impl Into<String>, unit: Unit) -> Self {
        Self { title: title.into(), unit, log: false }
    }

    /// An axis on which equal distances are equal ratios; values that are not positive are left out.
    pub fn logarithmic(title: impl Into<String>, unit: Unit) -> Self {
        Self { title: title.into(), unit, log: true }
    }
}

/// Units of axes; they decide how ticks are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes of memory, in powers of 1024.
    Memory,
    /// Bytes that travel, in powers of 1000.
    Traffic,
    /// A fraction, written in percent.
    Fraction,
    /// Milliseconds.
    Milliseconds,
    /// Tokens per second.
    TokensPerSecond,
    /// 10^9 bytes per second.
    GigabytesPerSecond,
    /// Natural logarithm's unit of information, of losses.
    Nats,
    /// A number without a unit.
    Plain,
}

impl Unit {
    /// The name in data: `bytes`, `ms`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory | Self::Traffic => "bytes",
            Self::Fraction => "fraction",
            Self::Milliseconds => "ms",
            Self::TokensPerSecond => "tokens/s",
            Self::GigabytesPerSecond => "GB/s",
            Self::Nats => "nats",
            Self::Plain => "",
        }
    }
}

/// A value with its interval for each row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Intervals {
    /// The axis of the values.
    pub axis: Axis,
    /// The rows, the first on top.
    pub rows: Vec<IntervalRow>,
}

/// One row of [`Intervals`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IntervalRow {
    /// Name of the cell.
    pub label: String,
    /// Lower end of the interval.
    pub low: f64,
    /// The value.
    pub mid: f64,
    /// Upper end.
    pub high: f64,
    /// How to read it: good ones stand out, warnings are hollow, struck ones crossed out.
    pub tone: Tone,
    /// Id of a record of the cell.
    pub record: String,
}

/// Parts that add up, for each row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stacks {
    /// The axis of the sums.
    pub axis: Axis,
    /// Names of the parts.
    pub series: Vec<String>,
    /// The limit's name in the legend; empty where there is none.
    pub limit: String,
    /// The name of rows that were not measured in the legend.
    pub planned: String,
    /// The rows, the first on top.
    pub rows: Vec<StackRow>,
}

/// One row of [`Stacks`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StackRow {
    /// Name of the cell.
    pub label: String,
    /// One value for each series, none negative.
    pub parts: Vec<f64>,
    /// What the sum must not exceed.
    pub limit: Option<f64>,
    /// Whether it is planned and not measured: drawn pale.
    pub is_plan: bool,
    /// Id of a record of the cell.
    pub record: String,
}

impl StackRow {
    /// The sum of its parts.
    pub fn sum(&self) -> f64 {
        self.parts.iter().sum()
    }
}

/// Spans that follow each other and add up.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Waterfalls {
    /// The axis, common to all panels.
    pub axis: Axis,
    /// One for each cell.
    pub panels: Vec<Panel>,
}

/// The spans of one cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Panel {
    /// Name of the cell.
    pub label: String,
    /// Names and lengths, in order; every panel has the same names.
    pub spans: Vec<(String, f64)>,
    /// Id of a record of the cell.
    pub record: String,
}

/// Curves over common axes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lines {
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The curves; the first is drawn below the others.
    pub lines: Vec<Line>,
}

/// One curve.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// Its name in the legend.
    pub label: String,
    /// Its points, x ascending.
    pub points: Vec<(f64, f64)>,
    /// Ids of the records it is made from.
    pub records: Vec<String>,
}

/// Points of two numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scatter {
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Points of one kind together.
    pub clouds: Vec<Cloud>,
    /// Whether the line of equal numbers is drawn.
    pub diagonal: bool,
    /// Whether the axes fit the points closely: intervals that reach much farther are cut at the edge.
    pub close: bool,
    /// Corners of a line drawn through the best points, x ascending; may be empty.
    pub front: Vec<(f64, f64)>,
    /// A capacity on the horizontal axis: drawn as a line unless it is far from all points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
}

impl Scatter {
    /// Points over these axes, without lines.
    pub fn new(x: Axis, y: Axis, clouds: Vec<Cloud>) -> Self {
        Self { x, y, clouds, diagonal: false, close: false, front: Vec::new(), limit: None }
    }
}

/// Points of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cloud {
    /// Its name in the legend.
    pub label: String,
    /// The points.
    pub dots: Vec<Dot>,
}

/// Adds a point to the cloud of this name. Beyond [`MOST_LINES`] clouds the last one, `others`, takes all further kinds.
pub(crate) fn add_dot(clouds: &mut Vec<Cloud>, name: &str, dot: Dot) {
    let is_full = clouds.len() >= MOST_LINES;
    match clouds.iter_mut().find(|cloud| cloud.label == name || (is_full && cloud.label == "others")) {
        Some(cloud) => cloud.dots.push(dot),
        None => {
            let label = if clouds.len() + 1 == MOST_LINES { "others" } else { name };
            clouds.push(Cloud { label: label.to_string(), dots: vec![dot] });
        }
    }
}

/// One point.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Dot {
    /// Horizontal place.
    pub x: f64,
    /// Vertical place.
    pub y: f64,
    /// The interval of `y`.
    pub limits: Option<(f64, f64)>,
    /// Name of the cell.
    pub label: String,
    /// Whether it is emphasized, with its name beside it.
    pub stands_out: bool,
    /// Id of a record of the cell.
    pub record: String,
}

/// The distribution of values, for each row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spreads {
    /// The axis of the values.
    pub axis: Axis,
    /// The rows, the first on top.
    pub rows: Vec<SpreadRow>,
}

/// One row of [`Spreads`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpreadRow {
    /// Name of the cell.
    pub label: String,
    /// Percentiles 5, 25, 50, 75 and 95.
    pub percentiles: [f64; 5],
    /// Number of values.
    pub count: usize,
    /// Values that are drawn one by one: all, or those that the caption says.
    pub values: Vec<f64>,
    /// Id of a record of the cell.
    pub record: String,
}

/// Rows of a plot at most: more cannot be read, and a report says which ones are shown.
pub const MOST_ROWS: usize = 32;
/// Points of a curve at most; of longer ones the caption says how points were chosen.
pub const MOST_POINTS: usize = 400;
/// Curves of a plot at most: so many can be distinguished by colour and shape.
pub const MOST_LINES: usize = 10;

/// The title of axes of steps.
pub(crate) const STEP: &str = "step";

/// The number if it can be drawn: finite, and small enough that differences and products are finite, too. Numbers closer to zero than
/// any measured one become zero.
pub fn drawable(value: f64) -> Option<f64> {
    let value = if value.abs() < 1e-24 { 0.0 } else { value };
    (value.is_finite() && value.abs() < 1e24).then_some(value)
}
