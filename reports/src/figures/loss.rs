//! Whether cells train the same model: their losses over each other.

use std::cmp::Reverse;

use super::figure;
use super::run_loss::{evaluations, thin};
use crate::gather::{distinct, grouped};
use crate::grid::labels::STRATEGY;
use crate::grid::{Cell, Grid};
use crate::plot::{Axis, Figure, Line, Lines, MOST_LINES, MOST_POINTS, Plot, STEP, Unit, drawable};
use crate::record::Verdict;
use crate::units;

/// Cells whose losses are equal to the bit, with their places in the grid.
type Group<'g, 'a> = Vec<(usize, &'g Cell<'a>)>;

/// The losses of all measured cells; cells of equal losses share a curve.
pub fn losses(grid: &Grid) -> Option<Figure> {
    let mut groups = groups(grid);
    // Those that fail first, then those of most cells: what is left out says least.
    let fails = |group: &Group| group.iter().any(|(_, cell)| cell.verdict == Verdict::Failed);
    groups.sort_by_key(|group| (!fails(group), Reverse(group.len())));
    let all = groups.len();
    let cells = groups.iter().map(Vec::len).sum::<usize>();
    groups.truncate(MOST_LINES);
    let longest = groups.iter().map(|group| points(group[0].1).len()).max()?;
    let line =
        |group: &Group| Line { label: label(grid, group), points: thin(points(group[0].1)), records: ids(group) };
    let mut lines: Vec<Line> = groups.iter().map(line).collect();
    add_strategies(&mut lines, &groups);
    if let [group] = &groups[..] {
        let points = thin(evaluations(group[0].1.record()));
        let held_out = Line { label: "on held-out data".into(), points, records: ids(group) };
        lines.extend((!held_out.points.is_empty()).then_some(held_out));
    }
    let shown: Vec<&Cell> = groups.iter().flatten().map(|(_, cell)| *cell).collect();
    let caption = caption(grid, (cells, all), groups.len(), longest);
    let (x, y) = (Axis::linear(STEP, Unit::Plain), Axis::linear("loss before the update", Unit::Nats));
    Some(figure("losses", "Losses over each other", caption, Plot::Lines(Lines { x, y, lines }), &shown))
}

fn caption(grid: &Grid, (cells, curves): (usize, usize), shown: usize, longest: usize) -> String {
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
    if longest > MOST_POINTS {
        text += &format!(
            " A curve of more than {MOST_POINTS} steps (here up to {longest}) is drawn by the least and the greatest loss of {} stretches of equal length.",
            MOST_POINTS / 2
        );
    }
    text
}

fn groups<'g, 'a>(grid: &'g Grid<'a>) -> Vec<Group<'g, 'a>> {
    let bits = |cell: &Cell| -> Vec<u64> {
        cell.record().steps.iter().flat_map(|step| [step.step, step.loss.to_bits()]).collect()
    };
    let cells = grid.cells.iter().enumerate().filter(|(_, cell)| !cell.used.is_empty() && points(cell).len() > 1);
    grouped(cells.map(|(place, cell)| (bits(cell), (place, cell)))).into_iter().map(|(_, group)| group).collect()
}

fn points(cell: &Cell) -> Vec<(f64, f64)> {
    let steps = cell.record().steps.iter();
    steps.filter_map(|step| Some((step.step as f64, drawable(step.loss)?))).collect()
}

fn ids(group: &Group) -> Vec<String> {
    group.iter().map(|(_, cell)| cell.record().id.clone()).collect()
}

/// What the cells of a group have in common and others have not; for one cell its label.
fn label(grid: &Grid, group: &Group) -> String {
    let (place, first) = group[0];
    if group.len() == 1 {
        return first.label.clone();
    }
    let common = grid.axes.main.iter().filter_map(|axis| {
        let value = &axis.values[place];
        let is_common = value != "unset" && group.iter().all(|(other, _)| axis.values[*other] == *value);
        is_common.then(|| if axis.path == STRATEGY { value.clone() } else { format!("{}={value}", axis.name) })
    });
    let common: Vec<String> = common.collect();
    match common.is_empty() {
        true => format!("{} and {} more", first.label, group.len() - 1),
        false => format!("{} ({} cells)", common.join(", "), group.len()),
    }
}

/// Curves of the same label get the strategies of their cells.
fn add_strategies(lines: &mut [Line], groups: &[Group]) {
    const NAMED: usize = 3;
    // The number of cells, in brackets, does not say which they are.
    let plain = |label: &str| label.split(" (").next().unwrap_or_default().to_string();
    let labels: Vec<String> = lines.iter().map(|line| plain(&line.label)).collect();
    for (line, group) in lines.iter_mut().zip(groups) {
        if labels.iter().filter(|label| **label == plain(&line.label)).count() < 2 {
            continue;
        }
        let mut names = distinct(group.iter().map(|(_, cell)| cell.strategy()));
        let more = names.len().saturating_sub(NAMED);
        names.truncate(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        line.label = format!("{}{more}, {}", names.join(", "), line.label);
    }
}
