//! Whether cells train the same model: their losses over each other.

use std::collections::HashMap;

use super::course::evaluations;
use super::figure;
use crate::grid::labels::STRATEGY;
use crate::grid::{Cell, Grid};
use crate::plot::{Axis, Figure, Line, Lines, MOST_LINES, MOST_POINTS, Plot, STEP, Unit, drawable};
use crate::record::Verdict;
use crate::units;

/// Cells whose losses are equal to the bit.
struct Group<'g, 'a> {
    cells: Vec<&'g Cell<'a>>,
    /// Places of the cells in the grid.
    places: Vec<usize>,
}

/// The losses of all measured cells, cells of equal losses as one curve.
pub fn losses(grid: &Grid) -> Option<Figure> {
    let mut groups = grouped(grid);
    // Those that fail first, then those of most cells: what is left out is the least telling.
    let fails = |group: &Group| group.cells.iter().any(|cell| cell.verdict == Verdict::Failed);
    groups.sort_by_key(|group| (!fails(group), std::cmp::Reverse(group.cells.len())));
    let all = groups.len();
    let cells = groups.iter().map(|group| group.cells.len()).sum::<usize>();
    groups.truncate(MOST_LINES);
    let mut thinned = 0;
    let mut lines: Vec<Line> = groups
        .iter()
        .map(|group| {
            let points = points(group.cells[0]);
            thinned = thinned.max(if points.len() > MOST_POINTS { points.len() } else { 0 });
            Line { label: label(grid, group), points: thin(points), records: ids(group) }
        })
        .collect();
    tell_apart(&mut lines, &groups);
    if let [group] = &groups[..] {
        let points = evaluations(group.cells[0].record());
        let held_out = Line { label: "on held-out data".into(), points: thin(points), records: ids(group) };
        lines.extend((!held_out.points.is_empty()).then_some(held_out));
    }
    let shown: Vec<&Cell> = groups.iter().flat_map(|group| group.cells.iter().copied()).collect();
    let caption = caption(grid, (cells, all), groups.len(), thinned);
    let plot = Plot::Lines(Lines {
        x: Axis::linear(STEP, Unit::Plain),
        y: Axis::linear("loss before the update", Unit::Nats),
        lines,
    });
    (!groups.is_empty()).then(|| figure("losses", "Losses over each other", caption, plot, &shown))
}

fn caption(grid: &Grid, (cells, curves): (usize, usize), shown: usize, thinned: usize) -> String {
    let mut text = match (cells, curves) {
        (1, _) => "The losses of the one measured cell.".to_string(),
        (2, 1) => "Both cells have the same losses, to the bit: one curve.".to_string(),
        (cells, 1) => format!("All {cells} cells have the same losses, to the bit: one curve."),
        (cells, curves) => format!(
            "{cells} cells give {curves} different curves; cells whose losses are equal to the bit share one. Cells that differ in batch, data or trained \
             weights are not meant to agree: parity is judged against each cell's reference."
        ),
    };
    let failed = grid.measured().filter(|cell| cell.verdict == Verdict::Failed).count();
    text += &match failed {
        0 => String::new(),
        count => format!(" {} parity with the reference.", units::plural(count, "cell fails", "cells fail")),
    };
    let differences =
        grid.measured().flat_map(|cell| &cell.used).filter_map(|record| record.parity.max_loss_difference);
    let largest = differences.fold(f64::NEG_INFINITY, f64::max);
    if largest > 0.0 && failed == 0 {
        text += &format!(
            " Curves over each other differ by less than is seen: no loss is farther than {} (relative) from its reference's.",
            units::number(largest)
        );
    }
    text += " Mean cross-entropy over the tokens of the global batch, in nats; untimed steps included.";
    if shown < curves {
        text += &format!(" Shown are {shown} of {curves} curves: those that fail, then those of most cells.");
    }
    if thinned > 0 {
        text += &format!(
            " A curve of more than {MOST_POINTS} steps (here up to {thinned}) is drawn by the least and the greatest loss of {} stretches of equal length.",
            MOST_POINTS / 2
        );
    }
    text
}

fn grouped<'g, 'a>(grid: &'g Grid<'a>) -> Vec<Group<'g, 'a>> {
    let mut index: HashMap<Vec<u64>, usize> = HashMap::new();
    let mut groups: Vec<Group> = Vec::new();
    for (place, cell) in grid.cells.iter().enumerate().filter(|(_, cell)| !cell.used.is_empty()) {
        if points(cell).len() < 2 {
            continue;
        }
        let bits = cell.record().steps.iter().flat_map(|step| [step.step, step.loss.to_bits()]).collect();
        let next = groups.len();
        let group = *index.entry(bits).or_insert(next);
        if group == next {
            groups.push(Group { cells: Vec::new(), places: Vec::new() });
        }
        groups[group].cells.push(cell);
        groups[group].places.push(place);
    }
    groups
}

fn points(cell: &Cell) -> Vec<(f64, f64)> {
    let steps = cell.record().steps.iter();
    steps.filter_map(|step| Some((step.step as f64, drawable(step.loss)?))).collect()
}

fn ids(group: &Group) -> Vec<String> {
    group.cells.iter().map(|cell| cell.record().id.clone()).collect()
}

/// What the cells of a group have in common and others have not; of one cell its name.
fn label(grid: &Grid, group: &Group) -> String {
    if let [only] = &group.cells[..] {
        return only.label.clone();
    }
    let common = grid.axes.telling.iter().filter_map(|axis| {
        let first = &axis.values[group.places[0]];
        let same = group.places.iter().all(|&place| axis.values[place] == *first);
        let says = same && first != "unset";
        says.then(|| if axis.path == STRATEGY { first.clone() } else { format!("{}={first}", axis.name) })
    });
    let common: Vec<String> = common.collect();
    match common.is_empty() {
        true => format!("{} and {} more", group.cells[0].label, group.cells.len() - 1),
        false => format!("{} ({} cells)", common.join(", "), group.cells.len()),
    }
}

/// Groups that have the same in common are told apart by their strategies.
fn tell_apart(lines: &mut [Line], groups: &[Group]) {
    const NAMED: usize = 3;
    // The count of cells, in brackets, says nothing of which they are.
    let plain = |label: &str| label.split(" (").next().unwrap_or_default().to_string();
    let labels: Vec<String> = lines.iter().map(|line| plain(&line.label)).collect();
    for (line, group) in lines.iter_mut().zip(groups) {
        if labels.iter().filter(|label| **label == plain(&line.label)).count() < 2 {
            continue;
        }
        let mut names: Vec<&str> = Vec::new();
        for cell in &group.cells {
            if !names.contains(&cell.strategy()) {
                names.push(cell.strategy());
            }
        }
        let more = names.len().saturating_sub(NAMED);
        names.truncate(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        line.label = format!("{}{more}, {}", names.join(", "), line.label);
    }
}

/// The least and the greatest of each stretch, in their order: peaks stay.
pub(super) fn thin(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    if points.len() <= MOST_POINTS {
        return points;
    }
    let stretch = points.len().div_ceil(MOST_POINTS / 2);
    let ends = |part: &[(f64, f64)]| {
        let least = part.iter().enumerate().min_by(|a, b| a.1.1.total_cmp(&b.1.1)).map_or(0, |(place, _)| place);
        let most = part.iter().enumerate().max_by(|a, b| a.1.1.total_cmp(&b.1.1)).map_or(0, |(place, _)| place);
        let (first, second) = (least.min(most), least.max(most));
        if first == second { vec![part[first]] } else { vec![part[first], part[second]] }
    };
    points.chunks(stretch).flat_map(ends).collect()
}
