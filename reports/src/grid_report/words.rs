//! What a grid shows, in sentences. Nothing is said that the records do not hold.

use std::collections::{HashMap, HashSet};

use crate::evidence;
use crate::grid::labels::{Axis, STRATEGY};
use crate::grid::{Cell, Grid, cell, unmeasured_counts};
use crate::record::{Category, Verdict};
use crate::text::counted_names;
use crate::units;

/// What each strategy costs in speed, memory and communication, one item each; against ddp where pairs differ in nothing
/// else. Where there are full fine-tunes, of them alone: adapter runs do other work, and would blur every range.
pub fn strategies(grid: &Grid) -> Vec<String> {
    let mut names: Vec<&str> = Vec::new();
    for cell in costed(grid) {
        if !names.contains(&cell.strategy()) {
            names.push(cell.strategy());
        }
    }
    // ddp first, the others in the order of the table.
    names.sort_by_key(|name| *name != "ddp");
    let axis = grid.axes.telling.iter().find(|axis| axis.path == STRATEGY);
    names.iter().filter_map(|name| strategy(grid, axis, name)).collect()
}

/// What stands above [`strategies`].
pub fn strategies_title(grid: &Grid) -> String {
    let skips_adapters = grid.measured().any(Cell::has_adapter) && costed(grid).any(|cell| !cell.has_adapter());
    let what = if skips_adapters { " in full fine-tuning" } else { "" };
    let has = |is_ddp: bool| costed(grid).any(|cell| (cell.strategy() == "ddp") == is_ddp);
    let compares = has(true) && has(false);
    let against = match compares {
        true => format!(" (× ddp: against cells of ddp that differ in nothing else{})", but_found(grid)),
        false => String::new(),
    };
    format!("What each strategy costs{what}; memory and wire of the largest rank, per step{against}:")
}

/// What a search has found differs between cells that are compared, too.
fn but_found(grid: &Grid) -> String {
    match &grid.searched[..] {
        [] => String::new(),
        keys => format!(" but {}, which the search found", units::list(keys)),
    }
}

fn costed<'g, 'a>(grid: &'g Grid<'a>) -> impl Iterator<Item = &'g Cell<'a>> {
    let usable = || grid.measured().filter(|cell| cell.verdict != Verdict::Failed);
    let has_full = usable().any(|cell| !cell.has_adapter());
    usable().filter(move |cell| !(has_full && cell.has_adapter()))
}

fn strategy(grid: &Grid, axis: Option<&Axis>, name: &str) -> Option<String> {
    let cells: Vec<&Cell> = costed(grid).filter(|cell| cell.strategy() == name).collect();
    let mut pairs = axis.filter(|_| name != "ddp").map(|axis| pairs(grid, axis, "ddp", name)).unwrap_or_default();
    let keys: HashSet<&str> = cells.iter().map(|cell| cell.key).collect();
    pairs.retain(|(_, other)| keys.contains(other.key));
    let against_ddp = |ratio: &dyn Fn(&Cell, &Cell) -> Option<f64>| {
        let ratios = range(pairs.iter().filter_map(|(ddp, other)| ratio(ddp, other)), |ratio| format!("{ratio:.2}"));
        ratios.map_or(String::new(), |ratios| format!(" ({ratios} × ddp)"))
    };
    let speed = |cell: &Cell| cell.place.and(cell.speed).map(|speed| speed.mid);
    let peak = |cell: &Cell| cell.peak_bytes().map(|bytes| bytes as f64);
    let mut parts = Vec::new();
    if let Some(speeds) = range(cells.iter().filter_map(|cell| speed(cell)), units::number) {
        parts.push(format!("{speeds} tokens/s{}", against_ddp(&|ddp, other| grid.ratio(ddp, other))));
    }
    if let Some(peaks) = range(cells.iter().filter_map(|cell| peak(cell)), units::memory) {
        let ratio = |ddp: &Cell, other: &Cell| Some(peak(other)? / peak(ddp).filter(|&base| base > 0.0)?);
        parts.push(format!("peak memory {peaks}{}", against_ddp(&ratio)));
    }
    if let Some(wire) = range(cells.iter().filter_map(|cell| cell.wire_bytes()), units::traffic) {
        parts.push(format!("{wire} on the wire"));
    }
    if let Some(share) = range(cells.iter().filter_map(|cell| cell.exposed_share()), units::percent) {
        parts.push(format!("exposed communication {share} of the step"));
    }
    let name = if name.is_empty() { "all cells" } else { name };
    (!parts.is_empty()).then(|| format!("{name}: {}.", parts.join("; ")))
}

/// What every other key does to memory and speed, from pairs of cells that differ in it and in nothing else.
pub fn effects(grid: &Grid) -> Vec<String> {
    let mut items = Vec::new();
    for axis in grid.axes.telling.iter().filter(|axis| axis.path != STRATEGY) {
        let mut values = axis.distinct();
        sort_values(&mut values);
        let Some((base, others)) = values.split_first() else { continue };
        items.extend(others.iter().take(MOST_VALUES).filter_map(|other| effect(grid, axis, base, other)));
        if let Some(more) = others.len().checked_sub(MOST_VALUES).filter(|&more| more > 0) {
            items.push(format!("{}: {more} more values are not told here; the table of cells has them.", axis.path));
        }
    }
    items
}

/// So many values of one key are each compared with its first: more say nothing to a reader.
const MOST_VALUES: usize = 20;

/// Numbers by size; a value that means "off" before all others, the rest as they came.
pub fn sort_values(values: &mut [&str]) {
    let is_off = |value: &str| matches!(value, "none" | "unset" | "false" | "off");
    values.sort_by(|a, b| match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a.total_cmp(&b),
        (a_number, b_number) => is_off(b).cmp(&is_off(a)).then(b_number.is_ok().cmp(&a_number.is_ok())),
    });
}

fn effect(grid: &Grid, axis: &Axis, base: &str, other: &str) -> Option<String> {
    let pairs = pairs(grid, axis, base, other);
    let memory = range(
        pairs.iter().filter_map(|(a, b)| relative(a.peak_bytes()? as f64, b.peak_bytes()? as f64)),
        units::change,
    );
    let fast: Vec<_> = pairs.iter().filter(|(a, b)| a.place.is_some() && b.place.is_some()).collect();
    let ratios = fast.iter().filter_map(|(a, b)| grid.ratio(a, b));
    let speed = range(ratios.map(|ratio| ratio - 1.0), units::change);
    let mut parts = Vec::new();
    parts.extend(memory.map(|memory| format!("peak memory {memory}")));
    parts.extend(speed.map(|speed| format!("tokens/s {speed}")));
    if parts.is_empty() {
        return None;
    }
    let count = units::plural(pairs.len(), "pair", "pairs");
    let equal = format!("all else equal{}", but_found(grid));
    let mut text =
        format!("{} = {other} instead of {base}: {} ({count} of cells, {equal}).", axis.path, parts.join(", "));
    let is_open = |(a, b): &&&(&Cell, &Cell)| grid.verdict(a, b) == evidence::Verdict::Undecided;
    let open = fast.iter().filter(is_open).count();
    if grid.turned.is_some() {
        return Some(if open == 0 {
            text
        } else {
            format!("{text} {open} of {} pairs are undecided by themselves.", fast.len())
        });
    }
    text += &match (open, fast.len()) {
        (0, _) => String::new(),
        (1, 1) => " The speed intervals of the pair overlap: no difference in speed is shown.".to_string(),
        (same, all) if same == all => {
            " The speed intervals overlap in every pair: no difference in speed is shown.".to_string()
        }
        (same, all) => format!(" In {same} of {all} pairs the speed intervals overlap."),
    };
    Some(text)
}

/// Measured cells without a parity failure that have these two values of an axis and agree in all other telling ones.
pub fn pairs<'g, 'a>(grid: &'g Grid<'a>, axis: &Axis, base: &str, other: &str) -> Vec<(&'g Cell<'a>, &'g Cell<'a>)> {
    let usable = |place: &usize| !grid.cells[*place].used.is_empty() && grid.cells[*place].verdict != Verdict::Failed;
    let of = |value: &str| -> Vec<usize> {
        (0..grid.cells.len()).filter(|&place| axis.values[place] == value).filter(usable).collect()
    };
    let rest: Vec<&Axis> = grid.axes.telling.iter().filter(|other| other.path != axis.path).collect();
    let values = |place: usize| rest.iter().map(|axis| axis.values[place].as_str()).collect::<Vec<&str>>();
    let mut partners: HashMap<Vec<&str>, usize> = HashMap::new();
    for place in of(other) {
        partners.entry(values(place)).or_insert(place);
    }
    let pair = |a: usize| Some((&grid.cells[a], &grid.cells[*partners.get(&values(a))?]));
    of(base).into_iter().filter_map(pair).collect()
}

fn relative(base: f64, other: f64) -> Option<f64> {
    (base > 0.0).then_some(other / base - 1.0)
}

/// `12 MiB`, or `12 MiB to 20 MiB`; nothing of nothing.
fn range(values: impl Iterator<Item = f64>, show: impl Fn(f64) -> String) -> Option<String> {
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    if low > high {
        return None;
    }
    let (low, high) = (show(low), show(high));
    Some(if low == high { low } else { format!("{low} to {high}") })
}

/// Whether the losses are those of the references.
pub fn parity(grid: &Grid) -> String {
    let of = |verdict: Verdict| grid.measured().filter(move |cell| cell.verdict == verdict);
    let count = |verdict| of(verdict).count();
    let (same, close, failed) = (count(Verdict::Identical), count(Verdict::WithinTolerance), count(Verdict::Failed));
    let compared = same + close + failed;
    if grid.measured().next().is_none() {
        return "Loss parity: nothing was measured.".to_string();
    }
    if compared == 0 {
        let why = match &grid.searched[..] {
            [] => String::new(),
            keys => format!(" ({} differ, and cells with other values are other trainings)", units::list(keys)),
        };
        return format!("Loss parity: no cell was compared with a reference{why}, so speeds rest on unchecked losses.");
    }
    let verb = |count: usize, one: &str, many: &str| if count == 1 { one.to_string() } else { many.to_string() };
    let mut parts = Vec::new();
    if same > 0 {
        parts.push(format!("{same} {} identical to the bit", verb(same, "is", "are")));
    }
    if close > 0 {
        let largest = of(Verdict::WithinTolerance).filter_map(largest_difference).fold(None, larger);
        let largest = largest.map_or(String::new(), |difference| {
            format!(" (largest relative difference {})", units::number(difference))
        });
        parts.push(format!("{close} {} within the tolerance{largest}", verb(close, "is", "are")));
    }
    if failed > 0 {
        let names: Vec<String> = of(Verdict::Failed).map(|cell| cell.label.clone()).collect();
        parts.push(format!(
            "{failed} {} and {} not ranked ({})",
            verb(failed, "fails", "fail"),
            verb(failed, "is", "are"),
            counted_names(&names)
        ));
    }
    let mut text = format!(
        "Loss parity: of {} compared with {} reference, {}.",
        units::plural(compared, "cell", "cells"),
        verb(compared, "its", "their"),
        units::list(&parts)
    );
    if let Some(sentences) = super::bits::expected(grid) {
        text += &format!(" {sentences}");
    }
    let unchecked = count(Verdict::None);
    if unchecked > 0 {
        text += &format!(" {} not compared with anything.", verb_cells(unchecked));
    }
    text
}

fn verb_cells(count: usize) -> String {
    if count == 1 { "1 cell was".to_string() } else { format!("{count} cells were") }
}

/// The largest difference that a used trial of the cell states.
pub fn largest_difference(cell: &Cell) -> Option<f64> {
    cell.used.iter().filter_map(|record| record.parity.max_loss_difference).fold(None, larger)
}

fn larger(largest: Option<f64>, value: f64) -> Option<f64> {
    Some(largest.map_or(value, |largest| largest.max(value)))
}

/// Whether the plan's bytes are the measured ones.
pub fn plan(grid: &Grid) -> Vec<String> {
    let mut memory = Agreement::default();
    let mut wire = Agreement::default();
    let mut planned = 0;
    for cell in grid.measured() {
        let categories = Category::ALL.into_iter().filter_map(|category| {
            Some((cell.category_prediction(category)? as f64, cell.category_peak(category)? as f64))
        });
        let mut parts: Vec<(f64, f64)> = categories.collect();
        if let (Some(predicted), Some(measured)) = (cell.predicted_peak_bytes(), cell.peak_bytes()) {
            parts.push((predicted as f64, measured as f64));
        }
        memory.add(cell, &parts);
        let record = cell.record();
        let parts =
            record.communication.iter().filter_map(|entry| Some((entry.predicted_wire_bytes?, entry.wire_bytes)));
        if record.wire_is_planned() {
            planned += usize::from(!record.communication.is_empty());
        } else {
            wire.add(cell, &parts.collect::<Vec<_>>());
        }
    }
    let untold = (planned > 0).then(|| {
        let cells = units::plural(planned, "cell", "cells");
        format!("Bytes on the wire of {cells} are planned and not measured: MPI and NCCL do not tell what they move.")
    });
    let sentences = [memory.sentence("peak memory", units::memory), wire.sentence("bytes on the wire", units::traffic)];
    sentences.into_iter().flatten().chain(untold).collect()
}

#[derive(Default)]
struct Agreement {
    equal: usize,
    different: Vec<String>,
    largest: f64,
}

impl Agreement {
    fn add(&mut self, cell: &Cell, parts: &[(f64, f64)]) {
        if parts.is_empty() {
            return;
        }
        if parts.iter().all(|(predicted, measured)| predicted == measured) {
            self.equal += 1;
            return;
        }
        self.different.push(cell.label.clone());
        self.largest = parts.iter().fold(self.largest, |largest, (plan, real)| largest.max((plan - real).abs()));
    }

    fn sentence(&self, what: &str, show: impl Fn(f64) -> String) -> Option<String> {
        let all = self.equal + self.different.len();
        match (all, self.different.len()) {
            (0, _) => None,
            (1, 0) => Some(format!("Plan and measurement: {what} equal to the byte in the one cell that states both.")),
            (_, 0) => {
                let cells = units::all(all, "cells");
                Some(format!("Plan and measurement: {what} equal to the byte in {cells} that state both."))
            }
            (_, different) => Some(format!(
                "Plan and measurement: {what} differ in {different} of {all} cells that state both, by up to {} ({}).",
                show(self.largest),
                counted_names(&self.different)
            )),
        }
    }
}

/// Stand-ins and emulated links, said before anything else.
pub fn caveats(grid: &Grid) -> Vec<String> {
    let mut items = Vec::new();
    let all = grid.cells.len();
    let proxies = grid.cells.iter().filter(|cell| cell::is_proxy(cell.record())).count();
    if proxies > 0 {
        let what = match (proxies, all) {
            (_, 1) => "the one cell is a scaled-down stand-in".to_string(),
            (1, _) => format!("1 of {all} cells is a scaled-down stand-in"),
            (some, _) if some == all => format!("{} are scaled-down stand-ins", units::all(all, "cells")),
            (some, _) => format!("{some} of {all} cells are scaled-down stand-ins"),
        };
        // Where all are stand-ins the table does not say so of each.
        let marked = if proxies < all { ", marked [proxy]" } else { "" };
        items.push(format!("PROXY: {what} of the target{marked}; speeds and sizes are not the target's."));
    }
    let mut links: Vec<String> = grid.cells.iter().filter_map(|cell| cell::emulated_link(cell.record())).collect();
    if !links.is_empty() {
        let count = links.len();
        links.sort();
        links.dedup();
        items.push(format!(
            "EMULATED LINK: {count} of {} ran over an emulated link, marked [emulated link]: {}. Communication times are made by \
             that link, not by hardware.{}",
            units::plural(all, "cell", "cells"),
            links.join("; "),
            if count < all || links.len() > 1 {
                " Ranks are over all cells; what a strategy is worth on one network is seen among the cells of one link."
            } else {
                ""
            }
        ));
    }
    items
}

/// How many cells were not measured, by status.
pub fn unmeasured(grid: &Grid) -> Option<String> {
    let counts = unmeasured_counts(grid);
    let total: usize = counts.iter().map(|(_, count)| count).sum();
    if total == 0 {
        return None;
    }
    let parts: Vec<String> = counts.iter().map(|(status, count)| format!("{count} {}", status.words())).collect();
    let was = if total == 1 { "was" } else { "were" };
    Some(format!(
        "{total} of {} {was} not measured: {}; the reasons are listed below.",
        units::plural(grid.cells.len(), "cell", "cells"),
        units::list(&parts)
    ))
}
