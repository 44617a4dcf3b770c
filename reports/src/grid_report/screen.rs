//! The comparison of cells on one screen: the answer, the evidence, what is open and the time spent.

mod answer;
mod exceptions;
mod frontier;
mod open;
mod planned;
mod table;

pub use answer::{by_turns as answer_by_turns, nothing_counts};
pub use table::rank;

use super::{machine, ranking, words};
use crate::gather::extent;
use crate::grid::labels::{Axis, STRATEGY};
use crate::grid::{Cell, Grid};
use crate::record::{Record, Verdict, others};
use crate::screen::{Room, Screen, fitting};
use crate::units;

/// Rows of the table at most, where there is room.
const MOST_ROWS: usize = 24;
/// Rows of the table in any case.
const LEAST_ROWS: usize = 4;

/// The screen of these cells for this room. `apart` is a remark on records of other suites; `limits` are the results of searches.
pub fn screen(grid: &Grid, records: &[&Record], apart: &str, limits: &str, room: Room) -> Screen {
    let is_measured = grid.measured().next().is_some();
    let answer = if is_measured { answer::sentences(grid) } else { planned::answer(grid) };
    let caution = caution(grid);
    let (effects, frontiers) = (effects(grid), frontier::sentences(grid));
    let exceptions = exceptions::all(grid);
    let (open, spent, machine) = (open::sentence(grid), spent(grid), machine(grid, records));
    let compose = |rows: usize| {
        let mut screen = Screen::default();
        screen.said("ANSWER", &answer, 7);
        screen.said("LIMITS", limits, 3);
        screen.said("CAUTION", &caution, 3);
        screen.said("MACHINE", &machine, 3);
        let (table, more) = if is_measured { table::of_cells(grid, rows) } else { planned::table(grid, rows) };
        screen.table(table);
        screen.said("", more, 1);
        screen.said("EFFECTS", &effects, 5);
        for (place, text) in frontiers.iter().enumerate() {
            screen.said(if place == 0 { "FRONTIER" } else { "" }, text, 3);
        }
        if is_measured {
            screen.said("SAME MODEL", same_model(grid), 2);
            screen.said("PLAN = MEASURED", plan(grid), 2);
        }
        for (label, text) in &exceptions {
            screen.said(label, text, 2);
        }
        screen.said("OPEN", &open, 2);
        screen.said("SPENT", &spent, 2);
        screen.said("ALSO", apart, 1);
        screen.said(
            "MORE",
            "zbench report --full has every table, zbench report -o report.html the plots, zbench show ID a record.",
            1,
        );
        screen
    };
    let mut screen = fitting(room, MOST_ROWS.min(grid.cells.len()), LEAST_ROWS, compose);
    screen.figures.extend(frontier::figure(grid));
    screen
}

/// Warnings that a reader must know before using a number.
fn caution(grid: &Grid) -> String {
    let crowded = ranking::crowded(grid).map(|(ranks, threads, cores, _)| {
        format!(
            "Up to {} threads share {cores} cores: waiting for a core counts as communication.",
            ranks.saturating_mul(threads)
        )
    });
    let differing = ranking::differing_work(grid);
    let work = (!differing.is_empty()).then(|| {
        let differ = if differing.len() == 1 { "differs" } else { "differ" };
        format!("{} {differ} between cells: a token is not the same work in all.", units::list(&differing))
    });
    // The advice after the first sentence is among the details.
    let first_sentence = |text: String| Some(format!("{}.", text.split(". ").next()?.trim_end_matches('.')));
    let batches = ranking::batches(grid).and_then(first_sentence);
    let others = [crowded, work, batches];
    words::caveats(grid).into_iter().chain(others.into_iter().flatten()).collect::<Vec<_>>().join(" ")
}

/// `-18`, for an interval with one percent sign.
pub(super) fn signed(ratio: f64) -> String {
    units::change(ratio - 1.0).trim_end_matches(" %").to_string()
}

/// `-18 % (-19 to -17)`.
pub(super) fn change(ratio: f64, limits: Option<(f64, f64)>) -> String {
    let limits = limits.map_or(String::new(), |(low, high)| format!(" ({} to {})", signed(low), signed(high)));
    format!("{}{limits}", units::change(ratio - 1.0))
}

fn machine(grid: &Grid, records: &[&Record]) -> String {
    let mut text = machine::short(records);
    let Some(turned) = &grid.turned else { return text };
    let speeds = &turned.course.speeds;
    let at = |share: f64| speeds.get((speeds.len().saturating_sub(1) as f64 * share).round() as usize);
    if let (true, Some(low), Some(high)) = (speeds.len() > 1, at(0.05), at(0.95)) {
        text += &format!(
            " Its speed went from {low:.2} to {high:.2} of its median while measuring; comparing turns of one round cancels that."
        );
    }
    if turned.course.stolen >= 0.005 {
        text += &format!(" The hypervisor took {} of the cores.", units::percent(turned.course.stolen));
    }
    if let Some((ratio, twin)) = turned.twin.as_ref().and_then(|twin| Some((twin.ratio?, twin))) {
        text += &format!(" The reference against its twin: {}.", change(ratio, twin.low.zip(twin.high)));
        let usual = crate::evidence::Rules::default().least.exp() - 1.0;
        if turned.least() > usual * 1.01 {
            text += &format!(" So differences below {} are not claimed.", units::percent(turned.least()));
        }
    }
    text.trim().to_string()
}

/// The effect of each key, over pairs of cells that differ in nothing else.
fn effects(grid: &Grid) -> String {
    let (strategies, others): (Vec<&Axis>, Vec<&Axis>) = grid.axes.main.iter().partition(|axis| axis.path == STRATEGY);
    let mut items = Vec::new();
    for axis in others.into_iter().chain(strategies) {
        let mut values = axis.distinct();
        words::sort_values(&mut values);
        if axis.path == STRATEGY {
            values.sort_by_key(|value| *value != "ddp");
        }
        if let Some((base, others)) = values.split_first() {
            items.extend(others.iter().filter_map(|other| effect(grid, axis, base, other)));
        }
    }
    if items.is_empty() {
        return match &grid.turned {
            Some(turned) if turned.stray().is_none() && grid.ranked().count() > 1 => {
                "none is stated: the rounds do not bound how far the reference strays from its twin.".to_string()
            }
            _ => String::new(),
        };
    }
    let limits = if grid.turned.is_some() { "98 % interval" } else { "range" };
    format!("on tokens/s ({limits}), all else equal: {}.", items.join("; "))
}

fn effect(grid: &Grid, axis: &Axis, base: &str, other: &str) -> Option<String> {
    let pairs = words::pairs(grid, axis, base, other);
    let fast: Vec<(&Cell, &Cell)> =
        pairs.iter().copied().filter(|(a, b)| a.place.is_some() && b.place.is_some()).collect();
    let (count, ratio, limits) = match &grid.turned {
        Some(turned) => {
            let keys: Vec<(&str, &str)> = fast.iter().map(|(a, b)| (a.key, b.key)).collect();
            let effect = turned.effect(&keys)?;
            (effect.pairs, effect.ratio, (effect.low, effect.high))
        }
        None => {
            let ratios: Vec<f64> = fast.iter().filter_map(|(a, b)| grid.ratio(a, b)).collect();
            let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
            (ratios.len(), mean, extent(ratios)?)
        }
    };
    let limits = (count > 1 || grid.turned.is_some()).then_some(limits);
    let name = if axis.path == STRATEGY { String::new() } else { format!("{} ", axis.name) };
    let mut text = format!("{name}{base} to {other} {}", change(ratio, limits));
    if count > 1 && text.ends_with(')') {
        text.pop();
        text += &format!("; {count} pairs)");
    }
    Some(text)
}

/// Whether all cells trained the same model.
fn same_model(grid: &Grid) -> String {
    let of = |verdict: Verdict| grid.measured().filter(move |cell| cell.verdict == verdict);
    let count = |verdict| of(verdict).count();
    let (same, close, failed) = (count(Verdict::Identical), count(Verdict::WithinTolerance), count(Verdict::Failed));
    let compared = same + close + failed;
    if compared == 0 {
        return "not checked: no cell was compared with a reference.".to_string();
    }
    let mut parts = Vec::new();
    if same > 0 {
        parts.push(format!("{same} of {compared} have the losses of their reference to the bit"));
    }
    if close > 0 {
        let largest = of(Verdict::WithinTolerance).filter_map(words::largest_difference).fold(0.0, f64::max);
        parts.push(format!("{close} of {compared} within the tolerance, {} at most", units::number(largest)));
    }
    if failed > 0 {
        parts.push(format!("{failed} of {compared} FAIL"));
    }
    let unchecked = count(Verdict::None);
    if unchecked > 0 {
        parts.push(format!("{unchecked} not compared"));
    }
    let mut text = parts.join("; ") + ".";
    if let Some(broken) = super::bits::expected(grid).filter(|text| text.contains("an error of the program")) {
        text = format!("{broken} {text}");
    }
    text
}

/// Whether the plan's bytes are the measured ones.
fn plan(grid: &Grid) -> String {
    let sentences = words::plan(grid);
    let text = sentences.join(" ").replace("Plan and measurement: ", "");
    // Where both agree everywhere, one sentence is enough.
    match text.split_once(". bytes on the wire ") {
        Some((memory, wire)) if memory.strip_prefix("peak memory ") == wire.strip_suffix('.') => {
            format!("peak memory and bytes on the wire {wire}")
        }
        _ => text,
    }
}

/// The time that the comparison took.
fn spent(grid: &Grid) -> String {
    let Some(turned) = &grid.turned else {
        let trials: Vec<&Record> = grid.measured().flat_map(|cell| cell.used.iter().copied()).collect();
        let ms = trials.iter().flat_map(|record| &record.steps).map(|step| step.ms).filter(|ms| ms.is_finite());
        let cells = units::plural(grid.measured().count(), "cell", "cells");
        return match trials.len() {
            0 => String::new(),
            count => {
                format!("{} in {} of {cells}.", time(ms.sum::<f64>() / 1e3), units::plural(count, "trial", "trials"))
            }
        };
    };
    let course = &turned.course;
    let (rounds, more) = match course.rounds {
        0 => ("no round that counts".to_string(), ""),
        count => (units::plural(count, "round", "rounds"), "more "),
    };
    let mut parts = vec![rounds];
    if course.discarded > 0 {
        let who = others::names(&course.busy);
        // Where no round counts the answer has them.
        let who = if course.busy.is_empty() || course.rounds == 0 { String::new() } else { format!(": {who}") };
        parts.push(format!("{} {more}left out, since others used the cores{who}", course.discarded));
    }
    if course.unfinished > 0 {
        parts.push(format!("{} unfinished", course.unfinished));
    }
    if course.batches > 1 {
        parts.push(format!("{} batches that share the reference", course.batches));
    }
    parts.push(units::plural(course.generations, "generation of processes", "generations of processes"));
    let seeds: Vec<String> = course.seeds.iter().take(3).map(u64::to_string).collect();
    parts.push(format!("seed {}{}", seeds.join(" "), if course.seeds.len() > 3 { " …" } else { "" }));
    let ended: String = course.stopped.iter().map(|stopped| format!(" {}.", ended(stopped))).collect();
    format!("{}: {}.{ended}", time(course.seconds), parts.join(", "))
}

/// Seconds, or minutes from ten minutes on.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        long if long >= 600.0 => format!("{:.0} min", long / 60.0),
        short if short < 10.0 => format!("{short:.1} s"),
        other => format!("{other:.0} s"),
    }
}

fn ended(stopped: &str) -> &str {
    match stopped {
        "decided" => "It ended when all was decided",
        "budget" => "The budget ended it",
        "interrupted" => "It was interrupted; the same command goes on",
        "alone" => "It ended when fewer than two cells were left",
        other => other,
    }
}
