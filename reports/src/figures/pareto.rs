//! Speed against memory: which cells are worse than another in both.

use super::{NAMED, figure, id};
use crate::document::{Entry, Table};
use crate::grid::{Cell, Grid};
use crate::phrase::names_or_count;
use crate::plot::{Axis, Cloud, Dot, Figure, Plot, Scatter, Unit, add_dot, drawable};
use crate::units;

/// Points that are drawn at most; the best are always among them.
const MOST_DOTS: usize = 200;

/// A cell with both numbers.
struct Point<'g, 'a> {
    cell: &'g Cell<'a>,
    speed: f64,
    bytes: f64,
}

/// The ranked cells that do the same kind of work: full fine-tunes, or where there are none, adapter runs.
fn points<'g, 'a>(grid: &'g Grid<'a>) -> Vec<Point<'g, 'a>> {
    let point = |cell: &'g Cell<'a>| {
        let (speed, bytes) = (drawable(cell.speed?.mid)?, cell.peak_bytes()? as f64);
        (bytes > 0.0).then_some(Point { cell, speed, bytes })
    };
    let all: Vec<Point> = grid.ranked().filter_map(point).collect();
    let has_full = all.iter().any(|point| !point.cell.has_adapter());
    all.into_iter().filter(|point| !(has_full && point.cell.has_adapter())).collect()
}

/// The points that no other beats: their places, memory ascending. Of equal points the first.
fn best(points: &[Point]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|&a, &b| {
        points[a].bytes.total_cmp(&points[b].bytes).then(points[b].speed.total_cmp(&points[a].speed)).then(a.cmp(&b))
    });
    let mut front: Vec<usize> = Vec::new();
    for place in order {
        if front.last().is_none_or(|&last| points[place].speed > points[last].speed) {
            front.push(place);
        }
    }
    front
}

/// For a point that is beaten: the fastest of the best points that need no more memory.
fn beaten_by<'p, 'g, 'a>(points: &'p [Point<'g, 'a>], front: &[usize], point: &Point) -> Option<&'p Point<'g, 'a>> {
    // Memory ascends along the front, and so does speed: the last that needs no more is the fastest such.
    let count = front.partition_point(|&place| points[place].bytes <= point.bytes);
    let better = &points[front[count.checked_sub(1)?]];
    (better.cell.key != point.cell.key).then_some(better)
}

fn left_out(grid: &Grid, points: &[Point]) -> String {
    let adapters =
        grid.ranked().filter(|cell| cell.has_adapter() && !points.iter().any(|p| p.cell.key == cell.key)).count();
    match (adapters, points.first().is_some_and(|point| point.cell.has_adapter())) {
        (0, _) | (_, true) => String::new(),
        (count, false) => {
            format!(" {} left out: other work.", units::plural(count, "adapter run is", "adapter runs are"))
        }
    }
}

/// Tokens per second against peak memory.
pub fn pareto(grid: &Grid) -> Option<Figure> {
    let points = points(grid);
    if points.len() < 3 {
        return None;
    }
    let front = best(&points);
    let mut is_best = vec![false; points.len()];
    front.iter().for_each(|&place| is_best[place] = true);
    let shown = points.len().min(MOST_DOTS);
    let mut clouds: Vec<Cloud> = Vec::new();
    let drawn = |place: &usize| *place < shown || is_best[*place];
    for (place, point) in (0..points.len()).filter(drawn).map(|place| (place, &points[place])) {
        let dot = Dot {
            x: point.bytes,
            y: point.speed,
            limits: point.cell.speed.filter(|_| points.len() <= 60).map(|speed| (speed.low, speed.high)),
            label: point.cell.label.clone(),
            stands_out: is_best[place],
            record: id(point.cell),
        };
        let strategy = point.cell.strategy();
        add_dot(&mut clouds, if strategy.is_empty() { "cells" } else { strategy }, dot);
    }
    let corners = front.iter().map(|&place| (points[place].bytes, points[place].speed)).collect();
    let names = |place: &usize| {
        let point = &points[*place];
        format!("{} ({} tokens/s, {})", point.cell.label, units::number(point.speed), units::memory(point.bytes))
    };
    let names: Vec<String> = front.iter().map(names).collect();
    let beaten = points.len() - front.len();
    let mut caption = format!(
        "{}: {}.",
        match names.len() {
            1 => "One cell is beaten by no other in speed and memory together".to_string(),
            count => format!("{count} cells are beaten by no other in speed and memory together"),
        },
        names_or_count(&names, NAMED)
    );
    caption += &match beaten {
        0 => String::new(),
        1 => " The other is no faster than one of them that needs no more memory.".to_string(),
        count => format!(
            " Each of the other {count} is no faster than one of them that needs no more memory; the table says which."
        ),
    };
    caption += " Medians of tokens per second of all ranks, with 95 % intervals where points are few; measured peak of the largest rank.";
    caption += &left_out(grid, &points);
    if shown < points.len() {
        caption += &format!(" Drawn are the best and the {shown} fastest of {} cells.", points.len());
    }
    let x = Axis::linear("peak memory of the largest rank", Unit::Memory);
    let y = Axis::linear("tokens per second, all ranks", Unit::TokensPerSecond);
    let plot = Plot::Scatter(Scatter { front: corners, ..Scatter::new(x, y, clouds) });
    let cells: Vec<&Cell> = points.iter().map(|point| point.cell).collect();
    Some(figure("pareto", "Speed against memory", caption, plot, &cells))
}

/// The cells that are not among the best, and which other cell beats each.
pub fn dominated(grid: &Grid) -> Option<Table> {
    let points = points(grid);
    if points.len() < 3 {
        return None;
    }
    let front = best(&points);
    let beaten: Vec<_> = points.iter().filter_map(|point| Some((point, beaten_by(&points, &front, point)?))).collect();
    let relative = |own: f64, other: f64| Entry::maybe(Some(own / other - 1.0), units::change);
    let mut table = Table::of("beaten in speed and memory", &beaten);
    table.words("cell", |(point, _)| &point.cell.label);
    table.words("beaten by", |(_, better)| &better.cell.label);
    table.numbers("tokens/s against it", "relative", |(point, better)| relative(point.speed, better.speed));
    table.numbers("memory against it", "relative", |(point, better)| relative(point.bytes, better.bytes));
    table.words("so", |(point, better)| {
        let intervals = point.cell.speed.zip(better.cell.speed);
        let overlap = intervals.is_none_or(|(own, other)| own.overlaps(&other));
        match (overlap, point.bytes > better.bytes) {
            (true, true) => "more memory; no difference in speed is shown",
            (true, false) => "same memory; no difference in speed is shown",
            (false, true) => "slower and more memory",
            (false, false) => "slower with the same memory",
        }
    });
    table.words("record", |(point, _)| grid.short_id(&point.cell.record().id));
    table.words("beaten by record", |(_, better)| &better.cell.record().id).for_machines = true;
    table
        .build()
        .caption("Cells that are no faster than another that needs no more memory. Medians; where the 95 % intervals overlap the data do not say that the other is faster.")
        .non_empty()
}
