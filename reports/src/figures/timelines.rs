//! What the stages of a pipeline do when, for each schedule.

use super::{figure, id};
use crate::grid::{Cell, Grid};
use crate::plot::{Axis, Block, Figure, Lane, Plot, TimelinePanel, Timelines, Unit, drawable};
use crate::record::{PassKind, Stage};
use crate::units;

/// Timelines that are drawn at most.
const PANELS: usize = 8;
/// Stages of a timeline at most.
const LANES: usize = 32;

/// The passes of each stage, for the fastest cell of each schedule.
pub fn timelines(grid: &Grid) -> Option<Figure> {
    let mut cells: Vec<&Cell> = Vec::new();
    for cell in grid.measured().filter(|cell| cell.record().stages.iter().any(|stage| !stage.passes.is_empty())) {
        if !cells.iter().any(|other| other.schedule() == cell.schedule()) {
            cells.push(cell);
        }
    }
    cells.truncate(PANELS);
    let kinds: Vec<PassKind> = PassKind::ALL.into_iter().filter(|kind| has(&cells, *kind)).collect();
    let panels: Vec<TimelinePanel> = cells.iter().map(|cell| panel(cell, &kinds)).collect();
    let ends: Vec<(&Cell, f64)> = cells.iter().zip(&panels).map(|(cell, panel)| (*cell, panel.end())).collect();
    let caption = format!(
        "{}Each lane is a stage, each block a pass of the micro-batch whose number it has, and what is white is the bubble: \
         milliseconds since the first stage began, each on its own scale, of the first rank of each stage, in the mean over the timed steps.",
        shortest(&ends)
    );
    let plot = Plot::Timelines(Timelines {
        axis: Axis::linear("since the first forward began", Unit::Milliseconds),
        kinds: kinds.iter().map(|kind| kind.words().to_string()).collect(),
        panels,
    });
    (!cells.is_empty()).then(|| figure("timelines", "The stages of a pipeline", caption, plot, &cells))
}

fn has(cells: &[&Cell], kind: PassKind) -> bool {
    let mut passes = cells.iter().flat_map(|cell| &cell.record().stages).flat_map(|stage| &stage.passes);
    passes.any(|pass| pass.0 == kind)
}

/// Which schedule is done first and which last.
fn shortest(ends: &[(&Cell, f64)]) -> String {
    let by_end = |a: &&(&Cell, f64), b: &&(&Cell, f64)| a.1.total_cmp(&b.1);
    let ms = |ms: f64| units::duration(ms / 1e3);
    match (ends.iter().min_by(by_end), ends.iter().max_by(by_end)) {
        (Some((first, least)), Some((last, most))) if ends.len() > 1 => {
            format!("{} is done after {}, {} after {}. ", first.schedule(), ms(*least), last.schedule(), ms(*most))
        }
        _ => String::new(),
    }
}

fn panel(cell: &Cell, kinds: &[PassKind]) -> TimelinePanel {
    let lane = |stage: &Stage| Lane {
        label: format!("stage {}", stage.stage),
        blocks: stage.passes.iter().filter_map(|pass| block(pass.0, pass.1, [pass.2, pass.3], kinds)).collect(),
    };
    TimelinePanel {
        label: cell.label.clone(),
        lanes: cell.record().stages.iter().take(LANES).map(lane).collect(),
        record: id(cell),
    }
}

fn block(kind: PassKind, micro: u64, [from, until]: [f64; 2], kinds: &[PassKind]) -> Option<Block> {
    let kind = kinds.iter().position(|known| *known == kind)?;
    let (from, until) = (drawable(from)?, drawable(until)?);
    (until >= from).then(|| Block { kind, label: micro.to_string(), from, until })
}
