//! Cells that no other beats both in speed and in memory or traffic, and the plot of them.

use crate::evidence::{self, Verdict};
use crate::grid::{Cell, Grid, groups};
use crate::phrase::first_names;
use crate::plot::{Axis, Cloud, Dot, Figure, Plot, Scatter, Unit, drawable};
use crate::units;

/// Cells in a sentence at most.
const NAMED: usize = 4;

/// What a cell needs beside time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// Measured peak of the largest rank.
    Memory,
    /// Bytes on the wire per step of the largest rank.
    Traffic,
}

/// A cell with its cost.
pub struct Point<'g, 'a> {
    /// The cell.
    pub cell: &'g Cell<'a>,
    /// Bytes.
    pub cost: f64,
}

/// The ranked cells of the first kind, the fastest first: full fine-tunes, or where there are none, adapter runs.
pub fn points<'g, 'a>(grid: &'g Grid<'a>, cost: Cost) -> Vec<Point<'g, 'a>> {
    let first = groups(grid.ranked()).first().copied();
    let point = |cell: &'g Cell<'a>| {
        let cost = match cost {
            Cost::Memory => cell.peak_bytes().map(|bytes| bytes as f64).filter(|bytes| *bytes > 0.0),
            Cost::Traffic => cell.wire_bytes(),
        };
        Some(Point { cell, cost: drawable(cost?)? })
    };
    grid.ranked().filter(|cell| Some(cell.kind()) == first).filter_map(point).collect()
}

/// The places of the points on the frontier: cheaper than all that are measured to be faster, and not equal to a cheaper one. And the
/// number of others that are not shown to be beaten.
pub fn best(grid: &Grid, points: &[Point]) -> (Vec<usize>, usize) {
    let numbers: Vec<(f64, f64)> =
        points.iter().enumerate().map(|(place, point)| (-(place as f64), point.cost)).collect();
    let unbeaten = evidence::frontier(&numbers, |a, b| grid.verdict(points[a].cell, points[b].cell));
    // Cheaper than every point before it, in the order of the table.
    let mut least = f64::INFINITY;
    let mut front: Vec<usize> = Vec::new();
    for (place, point) in points.iter().enumerate() {
        if point.cost < least {
            least = point.cost;
            front.extend(Some(place).filter(|place| unbeaten.contains(place)));
        }
    }
    // And not measured to be slower than a cheaper one.
    let mut fastest = f64::NEG_INFINITY;
    front.reverse();
    front.retain(|&place| {
        let ratio = grid.base().and_then(|base| grid.ratio(base, points[place].cell)).unwrap_or(0.0);
        let keeps = ratio >= fastest;
        fastest = fastest.max(ratio);
        keeps
    });
    front.reverse();
    let more = unbeaten.iter().filter(|place| !front.contains(place)).count();
    (front, more)
}

/// The cells of the frontier, the fastest first.
pub fn front<'g, 'a>(grid: &'g Grid<'a>, cost: Cost) -> Vec<&'g Cell<'a>> {
    let points = points(grid, cost);
    best(grid, &points).0.into_iter().map(|place| points[place].cell).collect()
}

/// One sentence for each cost in which cells differ.
pub fn sentences(grid: &Grid) -> Vec<String> {
    let parts = [(Cost::Memory, "smaller"), (Cost::Traffic, "lighter on the wire")];
    parts.into_iter().filter_map(|(cost, word)| sentence(grid, cost, word)).collect()
}

fn sentence(grid: &Grid, cost: Cost, word: &str) -> Option<String> {
    let points = points(grid, cost);
    let is_same = points.windows(2).all(|pair| pair[0].cost == pair[1].cost);
    if points.len() < 2 || is_same {
        return None;
    }
    let (front, more) = best(grid, &points);
    let show = |bytes: f64| if cost == Cost::Memory { units::memory(bytes) } else { units::traffic(bytes) };
    let name = |&place: &usize| format!("{} ({})", points[place].cell.short, show(points[place].cost));
    let names = first_names(&front.iter().map(name).collect::<Vec<_>>(), NAMED);
    let more = match more {
        0 => String::new(),
        more => format!(" {} not shown to be beaten.", units::plural(more, "more is", "more are")),
    };
    Some(format!("nothing is both faster and {word} than: {names}.{more}"))
}

/// Cells that differ by less than this in memory, and about equal in speed, are one mark.
const ALIKE: f64 = 0.02;
/// A cell whose interval has ends that differ by more than this factor is not drawn.
const UNCERTAIN: f64 = 1.6;

/// A mark: its cells, of which the first is named.
struct Mark<'g, 'a> {
    cells: Vec<&'g Cell<'a>>,
    bytes: f64,
    ratio: f64,
    limits: Option<(f64, f64)>,
    on_front: bool,
    is_base: bool,
}

/// The speed against the reference over the peak memory: one plot with the answer.
pub fn figure(grid: &Grid) -> Option<Figure> {
    let points = points(grid, Cost::Memory);
    let base = grid.base().or_else(|| grid.ranked().next())?;
    if points.len() < 2 {
        return None;
    }
    let front = best(grid, &points).0;
    let by_turns = grid.turned.is_some();
    let limits = |cell: &Cell| match &grid.turned {
        Some(turned) => turned.against_reference(cell.key).and_then(|pair| pair.low.zip(pair.high)),
        None => {
            let mid = base.speed.map(|speed| speed.mid).filter(|mid| *mid > 0.0)?;
            cell.interval().map(|limits| (limits.low / mid, limits.high / mid))
        }
    };
    let mut marks: Vec<Mark> = Vec::new();
    let mut unknown: Vec<&str> = Vec::new();
    for (place, point) in points.iter().enumerate() {
        let is_base = point.cell.key == base.key;
        let ratio = if is_base { Some(1.0) } else { grid.ratio(base, point.cell) };
        let own = limits(point.cell).filter(|_| !(is_base && by_turns));
        let is_uncertain = match own {
            Some((low, high)) => high > low * UNCERTAIN || low <= 0.0,
            None => by_turns && !is_base,
        };
        let Some(ratio) = ratio.and_then(drawable).filter(|_| !is_uncertain) else {
            unknown.push(&point.cell.short);
            continue;
        };
        let on_front = front.contains(&place);
        let alike = |mark: &&mut Mark| {
            let near = (mark.bytes - point.cost).abs() <= ALIKE * mark.bytes.max(point.cost);
            let verdict = grid.verdict(mark.cells[0], point.cell);
            near && (verdict == Verdict::Equal || (ratio / mark.ratio).ln().abs() < ALIKE / 2.0)
        };
        match marks.iter_mut().find(alike) {
            Some(mark) => {
                mark.cells.push(point.cell);
                mark.on_front |= on_front;
                mark.is_base |= is_base;
            }
            None => {
                marks.push(Mark { cells: vec![point.cell], bytes: point.cost, ratio, limits: own, on_front, is_base })
            }
        }
    }
    if marks.is_empty() {
        return None;
    }
    let dot = |mark: &Mark| {
        let first = &mark.cells[0].short;
        let others = mark.cells.len() - 1;
        Dot {
            x: mark.bytes,
            y: mark.ratio,
            limits: mark.limits,
            label: if others == 0 { first.clone() } else { format!("{first} and {others} like it") },
            stands_out: mark.on_front || mark.is_base,
            record: mark.cells[0].record().id.clone(),
        }
    };
    let cloud = |label: &str, wanted: &dyn Fn(&Mark) -> bool| Cloud {
        label: label.to_string(),
        dots: marks.iter().filter(|mark| wanted(mark)).map(dot).collect(),
    };
    let mut clouds = vec![
        cloud("on the frontier", &|mark| mark.on_front && !mark.is_base),
        cloud("reference", &|mark| mark.is_base),
        cloud("others", &|mark| !mark.on_front && !mark.is_base),
    ];
    clouds.retain(|cloud| !cloud.dots.is_empty());
    let mut corners: Vec<(f64, f64)> =
        marks.iter().filter(|mark| mark.on_front).map(|mark| (mark.bytes, mark.ratio)).collect();
    corners.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let merged = marks.iter().filter(|mark| mark.cells.len() > 1).count();
    let mut caption = sentence(grid, Cost::Memory, "smaller").map_or(String::new(), |text| {
        let mut letters = text.chars();
        letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
    });
    let how = match by_turns {
        true => format!("the reference {}, with 98 % intervals over common rounds", base.short),
        false => format!("{}: medians over trials, lines are the cell's 95 % interval", base.short),
    };
    caption += &format!(" Speed as a multiple of {how}; measured peak of the largest rank.");
    if merged > 0 {
        caption += " Cells of equal speed and memory are one mark.";
    }
    if !unknown.is_empty() {
        caption += &format!(" Too uncertain to be drawn: {}.", first_names(&unknown, NAMED));
    }
    let x = Axis::linear("peak memory of the largest rank", Unit::Memory);
    let y = Axis::linear("speed, times the reference", Unit::Plain);
    let plot = Plot::Scatter(Scatter { close: true, front: corners, ..Scatter::new(x, y, clouds) });
    let records = points.iter().flat_map(|point| point.cell.used.iter().map(|record| record.id.clone())).collect();
    Some(Figure::new("answer", "Speed against memory", caption.trim(), plot, records))
}
