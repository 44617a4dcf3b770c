//! Blocks in time, in a lane for each of those who work at once.

use super::Axis;
use super::canvas::{Anchor, Canvas, Layout, breadth, two_lines};
use super::rows::{Rows, draw_rows};
use super::scale::Range;
use crate::units;
use serde::Serialize;

/// Lanes of blocks, one panel for each cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timelines {
    /// The axis; each panel has its own range.
    pub axis: Axis,
    /// Names of the kinds of blocks.
    pub kinds: Vec<String>,
    /// One for each cell.
    pub panels: Vec<TimelinePanel>,
}

/// The lanes of one cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimelinePanel {
    /// Name of the cell.
    pub label: String,
    /// The first is on top.
    pub lanes: Vec<Lane>,
    /// Id of a record of the cell.
    pub record: String,
}

impl TimelinePanel {
    /// Where its last block ends.
    pub fn end(&self) -> f64 {
        self.lanes.iter().flat_map(|lane| &lane.blocks).map(|block| block.until).fold(0.0, f64::max)
    }
}

/// Those who work one after the other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lane {
    /// Its name.
    pub label: String,
    /// In the order of their beginnings.
    pub blocks: Vec<Block>,
}

/// A stretch of time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Block {
    /// Its place in the names of kinds.
    pub kind: usize,
    /// Written into it where there is room.
    pub label: String,
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub until: f64,
}

/// Height of a block.
const HEIGHT: f64 = 16.0;
/// Colours of kinds that differ most.
const COLORS: [usize; 4] = [0, 1, 4, 2];

/// Draws the panels below each other.
pub(super) fn draw(canvas: &mut Canvas, plot: &Timelines) {
    let names: Vec<&str> = plot.kinds.iter().map(String::as_str).collect();
    let color = |kind: usize| format!("f{}", COLORS[kind % COLORS.len()]);
    let mut top =
        canvas.legend(4.0, &names, |canvas, kind, x, y| canvas.rect(x - 6.0, y - 6.0, 12.0, 12.0, &color(kind)));
    for panel in &plot.panels {
        for line in two_lines(&panel.label, canvas.width - 8.0) {
            canvas.text(4.0, top + 12.0, Anchor::Start, "b", &line);
            top += 16.0;
        }
        // Of the time until the last lane ends.
        let busy = |lane: &Lane| lane.blocks.iter().map(|block| block.until - block.from).sum::<f64>();
        let idle = |lane: &Lane| units::percent((1.0 - busy(lane) / panel.end().max(f64::MIN_POSITIVE)).max(0.0));
        let rows = Rows {
            axis: &plot.axis,
            labels: panel.lanes.iter().map(|lane| lane.label.as_str()).collect(),
            numbers: panel.lanes.iter().map(|lane| vec![format!("{} idle", idle(lane))]).collect(),
            values: vec![panel.end()],
            range: Range::FromZero,
        };
        // Names of lanes are short enough to stand left of them even on a phone.
        let (scale, middles) = draw_rows(canvas, &rows, Layout::Wide, top);
        for (lane, &y) in panel.lanes.iter().zip(&middles) {
            canvas.begin(&format!("{}, {}: {} idle, record {}", panel.label, lane.label, idle(lane), panel.record));
            for block in &lane.blocks {
                let (from, to) = (scale.place(block.from), scale.place(block.until));
                // A rim would hide what is thin.
                let rim = if to - from >= 4.0 { " e" } else { "" };
                let class = format!("{}{rim}", color(block.kind));
                canvas.rect(from, y - HEIGHT / 2.0, (to - from).max(0.5), HEIGHT, &class);
                if breadth(&block.label) + 2.0 <= to - from {
                    canvas.text((from + to) / 2.0, y + 4.0, Anchor::Middle, "p", &block.label);
                }
            }
            canvas.end();
        }
        top = canvas.height + 4.0;
    }
}

/// The blocks one by one.
pub(super) fn marks(plot: &Timelines) -> Vec<(&TimelinePanel, &Lane, &Block)> {
    let lanes = plot.panels.iter().flat_map(|panel| panel.lanes.iter().map(move |lane| (panel, lane)));
    lanes.flat_map(|(panel, lane)| lane.blocks.iter().map(move |block| (panel, lane, block))).collect()
}
