//! The results of a grid in sentences. All of it follows from the records.

use std::collections::{HashMap, HashSet};

use crate::evidence;
use crate::gather::{counted, distinct};
use crate::grid::labels::{Axis, STRATEGY, first_labels};
use crate::grid::{Cell, Grid, cell};
use crate::label::is_off;
use crate::phrase::range;
use crate::record::{Category, Verdict};
use crate::units;

/// The speed, memory and communication of each strategy, one item for each; against ddp where pairs of cells differ in nothing
/// else. Where there are full fine-tunes, only these: adapter runs do other work and would widen every range.
pub fn strategies(grid: &Grid) -> Vec<String> {
    let mut names = distinct(costed(grid).map(Cell::strategy));
    // ddp first, the others in the order of the table.
    names.sort_by_key(|name| *name != "ddp");
    let axis = grid.axes.main.iter().find(|axis| axis.path == STRATEGY);
    names.iter().filter_map(|name| strategy(grid, axis, name)).collect()
}

/// The title of [`strategies`].
pub fn strategies_title(grid: &Grid) -> String {
    let skips_adapters = grid.measured().any(Cell::has_adapter) && costed(grid).any(|cell| !cell.has_adapter());
    let what = if skips_adapters { " in full fine-tuning" } else { "" };
    let has = |is_ddp: bool| costed(grid).any(|cell| (cell.strategy() == "ddp") == is_ddp);
    let against = match has(true) && has(false) {
        true => format!(" (× ddp: against cells of ddp that differ in nothing else{})", except_searched(grid)),
        false => String::new(),
    };
    format!("What each strategy costs{what}; memory and wire of the largest rank, per step{against}:")
}

/// The searched keys, which differ between compared cells as well.
fn except_searched(grid: &Grid) -> String {
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

/// The effect of every other key on memory and speed, from pairs of cells that differ in nothing else.
pub fn effects(grid: &Grid) -> Vec<String> {
    let mut items = Vec::new();
    for axis in grid.axes.main.iter().filter(|axis| axis.path != STRATEGY) {
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

/// Values of one key that are compared with its first value, at most.
const MOST_VALUES: usize = 20;

/// Numbers by size; a value that means "off" before all others, the rest as they came.
pub fn sort_values(values: &mut [&str]) {
    values.sort_by(|a, b| match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a.total_cmp(&b),
        (a_number, b_number) => is_off(b).cmp(&is_off(a)).then(b_number.is_ok().cmp(&a_number.is_ok())),
    });
}

fn effect(grid: &Grid, axis: &Axis, base: &str, other: &str) -> Option<String> {
    let pairs = pairs(grid, axis, base, other);
    let relative = |base: u64, other: u64| (base > 0).then_some(other as f64 / base as f64 - 1.0);
    let peaks = pairs.iter().filter_map(|(a, b)| relative(a.peak_bytes()?, b.peak_bytes()?));
    let memory = range(peaks, units::change);
    let fast: Vec<_> = pairs.iter().filter(|(a, b)| a.place.is_some() && b.place.is_some()).collect();
    let speed = match &grid.turned {
        Some(turned) => {
            let keys: Vec<(&str, &str)> = fast.iter().map(|(a, b)| (a.key, b.key)).collect();
            turned.effect(&keys).map(|effect| super::screen::change(effect.ratio, Some((effect.low, effect.high))))
        }
        None => range(fast.iter().filter_map(|(a, b)| grid.ratio(a, b)).map(|ratio| ratio - 1.0), units::change),
    };
    let parts = [memory.map(|memory| format!("peak memory {memory}")), speed.map(|speed| format!("tokens/s {speed}"))];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        return None;
    }
    let count = units::plural(pairs.len(), "pair", "pairs");
    let equal = format!("all else equal{}", except_searched(grid));
    let mut text =
        format!("{} = {other} instead of {base}: {} ({count} of cells, {equal}).", axis.path, parts.join(", "));
    let is_open = |(a, b): &&&(&Cell, &Cell)| grid.verdict(a, b) == evidence::Verdict::Undecided;
    let open = fast.iter().filter(is_open).count();
    text += &match (open, fast.len()) {
        (0, _) => String::new(),
        (_, all) if grid.turned.is_some() => format!(" {open} of {all} pairs are undecided by themselves."),
        (1, 1) => " The speed intervals of the pair overlap: no difference in speed is shown.".to_string(),
        (same, all) if same == all => {
            " The speed intervals overlap in every pair: no difference in speed is shown.".to_string()
        }
        (same, all) => format!(" In {same} of {all} pairs the speed intervals overlap."),
    };
    Some(text)
}

/// Measured cells without a parity failure that have these two values of an axis and agree in all other main axes.
pub fn pairs<'g, 'a>(grid: &'g Grid<'a>, axis: &Axis, base: &str, other: &str) -> Vec<(&'g Cell<'a>, &'g Cell<'a>)> {
    let usable = |place: &usize| !grid.cells[*place].used.is_empty() && grid.cells[*place].verdict != Verdict::Failed;
    let of = |value: &str| -> Vec<usize> {
        (0..grid.cells.len()).filter(|&place| axis.values[place] == value).filter(usable).collect()
    };
    let rest: Vec<&Axis> = grid.axes.main.iter().filter(|other| other.path != axis.path).collect();
    let values = |place: usize| rest.iter().map(|axis| axis.values[place].as_str()).collect::<Vec<&str>>();
    let mut partners: HashMap<Vec<&str>, usize> = HashMap::new();
    for place in of(other) {
        partners.entry(values(place)).or_insert(place);
    }
    let pair = |a: usize| Some((&grid.cells[a], &grid.cells[*partners.get(&values(a))?]));
    of(base).into_iter().filter_map(pair).collect()
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
    let verb = |count: usize, one: &'static str, many: &'static str| if count == 1 { one } else { many };
    let mut parts = Vec::new();
    if same > 0 {
        parts.push(format!("{same} {} identical to the bit", verb(same, "is", "are")));
    }
    if close > 0 {
        let largest = of(Verdict::WithinTolerance).filter_map(largest_difference).reduce(f64::max);
        let largest = largest.map_or(String::new(), |difference| {
            format!(" (largest relative difference {})", units::number(difference))
        });
        parts.push(format!("{close} {} within the tolerance{largest}", verb(close, "is", "are")));
    }
    if failed > 0 {
        let (fail, are) = (verb(failed, "fails", "fail"), verb(failed, "is", "are"));
        parts.push(format!("{failed} {fail} and {are} not ranked ({})", first_labels(of(Verdict::Failed))));
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
        text += &format!(" {} not compared with anything.", units::plural(unchecked, "cell was", "cells were"));
    }
    text
}

/// The largest difference that a used trial of the cell states.
pub fn largest_difference(cell: &Cell) -> Option<f64> {
    cell.used.iter().filter_map(|record| record.parity.max_loss_difference).reduce(f64::max)
}

/// Whether the plan's bytes are the measured ones.
pub fn plan(grid: &Grid) -> Vec<String> {
    let mut memory = Agreement::default();
    let mut wire = Agreement::default();
    let mut planned = 0;
    for cell in grid.measured() {
        let categories =
            Category::ALL.map(|category| (cell.category_prediction(category), cell.category_peak(category)));
        let peaks = categories.into_iter().chain([(cell.predicted_peak_bytes(), cell.peak_bytes())]);
        memory.add(cell, peaks.filter_map(|(predicted, measured)| Some((predicted? as f64, measured? as f64))));
        let communication = &cell.record().communication;
        if cell.record().wire_is_planned() {
            planned += usize::from(!communication.is_empty());
        } else {
            wire.add(
                cell,
                communication.iter().filter_map(|entry| Some((entry.predicted_wire_bytes?, entry.wire_bytes))),
            );
        }
    }
    let unmeasured = (planned > 0).then(|| {
        let cells = units::plural(planned, "cell", "cells");
        format!("Bytes on the wire of {cells} are planned and not measured: MPI and NCCL do not tell what they move.")
    });
    let sentences = [memory.sentence("peak memory", units::memory), wire.sentence("bytes on the wire", units::traffic)];
    sentences.into_iter().flatten().chain(unmeasured).collect()
}

/// Whether the numbers of cells are those of their plans.
#[derive(Default)]
struct Agreement<'g, 'a> {
    equal: usize,
    different: Vec<&'g Cell<'a>>,
    largest: f64,
}

impl<'g, 'a> Agreement<'g, 'a> {
    /// Adds the planned and measured numbers of a cell, if it has any.
    fn add(&mut self, cell: &'g Cell<'a>, pairs: impl Iterator<Item = (f64, f64)>) {
        let pairs: Vec<(f64, f64)> = pairs.collect();
        if pairs.iter().any(|(planned, measured)| planned != measured) {
            self.different.push(cell);
            self.largest =
                pairs.iter().map(|(planned, measured)| (planned - measured).abs()).fold(self.largest, f64::max);
        } else if !pairs.is_empty() {
            self.equal += 1;
        }
    }

    fn sentence(&self, what: &str, show: impl Fn(f64) -> String) -> Option<String> {
        let all = self.equal + self.different.len();
        let agreement = match (all, self.different.len()) {
            (0, _) => return None,
            (1, 0) => "equal to the byte in the one cell that states both".to_string(),
            (_, 0) => format!("equal to the byte in {} that state both", units::all(all, "cells")),
            (_, different) => format!(
                "differ in {different} of {all} cells that state both, by up to {} ({})",
                show(self.largest),
                first_labels(self.different.iter().copied())
            ),
        };
        Some(format!("Plan and measurement: {what} {agreement}."))
    }
}

/// Warnings on stand-ins and on what is emulated, which come before anything else.
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
    let mut paces: Vec<String> =
        grid.cells.iter().filter_map(|cell| cell::emulated_pace(cell.record())).map(units::pace).collect();
    if !paces.is_empty() {
        let count = paces.len();
        paces.sort();
        paces.dedup();
        items.push(format!(
            "EMULATED PACE: in {count} of {} the blocks of a rank last at least a stated time for each micro-batch, marked [emulated \
             pace]: {}. Their times are made by that pace, not by hardware.{}",
            units::plural(all, "cell", "cells"),
            paces.join("; "),
            if count < all || paces.len() > 1 { " Cells are ranked among those of the same pace." } else { "" }
        ));
    }
    items
}

/// How many cells were not measured, by status.
pub fn unmeasured(grid: &Grid) -> Option<String> {
    let unmeasured = grid.cells.iter().filter(|cell| cell.used.is_empty());
    let counts = counted(unmeasured.map(|cell| cell.record().outcome.status));
    let total: usize = counts.iter().map(|(_, count)| count).sum();
    if total == 0 {
        return None;
    }
    let parts: Vec<String> = counts.iter().map(|(status, count)| format!("{count} {}", status.words())).collect();
    Some(format!(
        "{total} of {} {} not measured: {}; the reasons are listed below.",
        units::plural(grid.cells.len(), "cell", "cells"),
        if total == 1 { "was" } else { "were" },
        units::list(&parts)
    ))
}
