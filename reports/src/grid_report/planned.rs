//! The plans of cells that did not run: which fit, which do not, why, and what would make them fit.

use std::cmp::Reverse;

use crate::document::{Document, Entry, Table, Tone};
use crate::estimate_report::{EstimateRow, of_bands};
use crate::gather::grouped;
use crate::grid::labels::{Axis, MOST_NAMES, STRATEGY, first_labels};
use crate::grid::{Cell, Grid};
use crate::phrase::first_names;
use crate::record::{Category, Status};
use crate::units;
use serde_json::Value;

/// Above this share of the capacity a cell fits only barely.
const BARELY: f64 = 0.95;
/// Cells that do not fit and are listed one by one, at most.
const MOST_MISFITS: usize = 200;
const MODEL_STATE: [Category; 3] = [Category::Parameters, Category::Gradients, Category::Optimizer];

/// The plan of one cell that did not run, per rank.
pub struct Plan<'g, 'a> {
    /// The cell.
    pub cell: &'g Cell<'a>,
    /// Its place among the grid's cells.
    place: usize,
    /// Predicted peak over all categories, bytes.
    pub total: u64,
    /// What a rank may use, bytes; not zero.
    pub capacity: u64,
    /// The cheapest change that makes it fit; may be empty.
    advice: String,
    /// The predictions for it.
    pub estimate: EstimateRow,
}

impl Plan<'_, '_> {
    /// Whether it fits.
    pub fn fits(&self) -> bool {
        self.total <= self.capacity
    }

    /// The share of the capacity that it needs.
    pub fn share(&self) -> f64 {
        self.total as f64 / self.capacity as f64
    }

    /// Bytes by which it exceeds the capacity.
    pub fn excess(&self) -> u64 {
        self.total.saturating_sub(self.capacity)
    }

    fn part(&self, category: Category) -> u64 {
        self.cell.category_prediction(category).unwrap_or(0)
    }

    /// Parameters, gradients and optimizer together, bytes; `None` where the plan does not state all three.
    fn model_state(&self) -> Option<u64> {
        MODEL_STATE.iter().try_fold(0u64, |sum, category| sum.checked_add(self.cell.category_prediction(*category)?))
    }

    /// The number of ranks over which all of the model state is sharded; `None` where only parts of it are.
    fn shards(&self) -> Option<u64> {
        let number = |path: &str| self.cell.record().setting(path).and_then(Value::as_u64);
        match self.cell.strategy() {
            "ddp" => Some(1),
            "fsdp" | "zero3" => number("parallel.ranks"),
            "hsdp" => number("parallel.shard"),
            _ => None,
        }
    }

    /// Bytes of model state for each parameter; `None` where some parameters are frozen.
    fn bytes_per_parameter(&self) -> Option<f64> {
        let number = |name: &str| self.cell.record().extra.get(name).and_then(Value::as_u64);
        let parameters = number("parameters").filter(|&all| all > 0 && number("trainable_parameters") == Some(all))?;
        Some(self.model_state()? as f64 * self.shards()? as f64 / parameters as f64)
    }
}

/// The cells that did not run because hardware or memory is missing, if their plan and capacity are known.
pub fn plans<'g, 'a>(grid: &'g Grid<'a>) -> Vec<Plan<'g, 'a>> {
    let plan = |(place, cell): (usize, &'g Cell<'a>)| {
        let record = cell.record();
        let did_not_run = matches!(record.outcome.status, Status::Skipped | Status::OutOfMemory);
        if !cell.used.is_empty() || !did_not_run {
            return None;
        }
        let estimate: Option<EstimateRow> = serde_json::from_value(record.estimate.clone()).ok();
        let estimate = estimate.map(|estimate| EstimateRow { has_adapter: cell.has_adapter(), ..estimate });
        let setting = || record.setting("memory.capacity").and_then(Value::as_u64);
        let capacity = estimate.as_ref().and_then(|estimate| estimate.capacity_bytes).or_else(setting);
        Some(Plan {
            cell,
            place,
            total: cell.predicted_peak_bytes()?,
            capacity: capacity.filter(|&capacity| capacity > 0)?,
            advice: estimate.as_ref().map(|estimate| estimate.advice.clone()).unwrap_or_default(),
            estimate: estimate.unwrap_or_default(),
        })
    };
    grid.cells.iter().enumerate().filter_map(plan).collect()
}

/// Whether the answer already has a note of this cell.
pub fn says(cell: &Cell, note: &str) -> bool {
    let advice = cell.record().estimate.get("advice").and_then(Value::as_str).unwrap_or_default();
    let is_listed = cell.used.is_empty() && cell.predicted_peak_bytes().is_some();
    is_listed && !advice.is_empty() && note.contains(advice)
}

/// Adds what the plans say. False where no cell has one.
pub fn answer(document: &mut Document, grid: &Grid) -> bool {
    let plans = plans(grid);
    if plans.is_empty() {
        return false;
    }
    document.paragraph(summary(grid, &plans));
    let state = model_state(grid, &plans);
    if !state.is_empty() {
        document
            .paragraph("Model state of a rank (parameters, gradients and optimizer), before activations and buffers:");
        document.list(state);
    }
    let misfits: Vec<&Plan> = plans.iter().filter(|plan| !plan.fits()).collect();
    if !misfits.is_empty() {
        document.paragraph("What does not fit, why, and the cheapest change that makes it fit:");
        let more = misfits.len().saturating_sub(MOST_MISFITS);
        let more = (more > 0).then(|| format!("And {more} more; the table has all."));
        let shown = misfits.iter().take(MOST_MISFITS).map(|plan| misfit(grid, &plans, plan));
        document.list(shown.chain(more).collect());
    }
    document.table(table(grid, &plans));
    document.table(speeds(&plans));
    true
}

fn of_capacity(plan: &Plan) -> String {
    format!("{} ({}, {} of it)", plan.cell.label, units::memory(plan.total as f64), units::percent(plan.share()))
}

fn summary(grid: &Grid, plans: &[Plan]) -> String {
    let mut text = match grid.measured().next() {
        None => "Nothing was measured. By the plan, ".to_string(),
        Some(_) => "By the plan of the cells that did not run, ".to_string(),
    };
    let fitting: Vec<&Plan> = plans.iter().filter(|plan| plan.fits()).collect();
    let barely: Vec<&&Plan> = fitting.iter().filter(|plan| plan.share() > BARELY).collect();
    let (all, capacity) = (units::plural(plans.len(), "cell", "cells"), capacity(plans));
    text += &match fitting.len() {
        0 => format!("none of {all} fits into {capacity}."),
        count => format!(
            "{count} of {all} {} into {capacity}: {}.",
            if count == 1 { "fits" } else { "fit" },
            first_names(&fitting.iter().map(|plan| of_capacity(plan)).collect::<Vec<_>>(), MOST_NAMES)
        ),
    };
    if !barely.is_empty() {
        let labels = first_labels(barely.iter().map(|plan| plan.cell));
        text += &format!(" Only barely, above {:.0} %: {labels}.", BARELY * 100.0);
    }
    if grid.axes.main.iter().any(|axis| axis.path == STRATEGY) {
        text += &by_strategy(plans);
    }
    text
}

/// The memory that a rank may use, in words.
pub fn capacity(plans: &[Plan]) -> String {
    match plans.windows(2).all(|pair| pair[0].capacity == pair[1].capacity) {
        true => format!("the {} of a rank", units::memory(plans[0].capacity as f64)),
        false => "what its ranks may use".to_string(),
    }
}

/// ` fsdp fits in 1 of 4 cells, hsdp in none of 4.`
fn by_strategy(plans: &[Plan]) -> String {
    let part = |(name, plans): (&str, Vec<&Plan>)| {
        let fit = match plans.iter().filter(|plan| plan.fits()).count() {
            0 => "none".to_string(),
            count => count.to_string(),
        };
        format!("{name} fits in {fit} of {}", units::plural(plans.len(), "cell", "cells"))
    };
    let strategies = grouped(plans.iter().map(|plan| (plan.cell.strategy(), plan)));
    format!(" {}.", units::list(&strategies.into_iter().map(part).collect::<Vec<_>>()))
}

/// Model state by strategy, cells of equal state together.
fn model_state(grid: &Grid, plans: &[Plan]) -> Vec<String> {
    let stated = plans.iter().filter(|plan| plan.model_state().is_some());
    let strategies = grouped(stated.map(|plan| (plan.cell.strategy(), plan)));
    strategies.iter().map(|(name, plans)| state_of_strategy(grid, name, plans)).collect()
}

fn state_of_strategy(grid: &Grid, name: &str, plans: &[&Plan]) -> String {
    let groups = grouped(plans.iter().map(|plan| (plan.model_state(), *plan)));
    let parts: Vec<String> = groups.iter().map(|(_, group)| state_of_group(grid, plans, group)).collect();
    let shards = plans[0].shards().filter(|&shards| plans.iter().all(|plan| plan.shards() == Some(shards)));
    let over = match shards {
        Some(1) | None => String::new(),
        Some(shards) => format!(", sharded over {shards} ranks"),
    };
    let name = if name.is_empty() { "all cells" } else { name };
    format!("{name}{over}: {}.", parts.join("; "))
}

/// `64.2 GiB with gradients=bf16 (16.0 bytes for each parameter)`.
fn state_of_group(grid: &Grid, strategy: &[&Plan], group: &[&Plan]) -> String {
    let plan = group[0];
    // Keys with one value in the group, those that differ from most other cells first, until the group differs from all.
    let differs = |axis: &Axis, other: &Plan| axis.values[other.place] != axis.values[plan.place];
    let mut others: Vec<&&Plan> =
        strategy.iter().filter(|other| !group.iter().any(|own| own.place == other.place)).collect();
    let mut axes: Vec<&Axis> =
        grid.axes.main.iter().filter(|axis| !group.iter().any(|own| differs(axis, own))).collect();
    axes.sort_by_key(|axis| Reverse(others.iter().filter(|other| differs(axis, other)).count()));
    let mut keys = Vec::new();
    for axis in axes {
        let before = others.len();
        others.retain(|other| !differs(axis, other));
        if others.len() < before {
            keys.push(format!("{}={}", axis.name, axis.values[plan.place]));
        }
    }
    let state = plan.model_state().unwrap_or(0);
    let mut text = units::memory(state as f64);
    if !keys.is_empty() {
        text += &format!(" with {}", units::list(&keys));
    }
    if let Some(bytes) = plan.bytes_per_parameter() {
        text += &format!(" ({} bytes for each parameter)", units::number(bytes));
    }
    if state > plan.capacity {
        text += ", more than a rank has";
    }
    text
}

/// Why a cell does not fit, and what would make it fit.
fn misfit(grid: &Grid, plans: &[Plan], plan: &Plan) -> String {
    let mut text = format!(
        "{}: {} too much ({} of {}). {}.",
        plan.cell.label,
        units::memory(plan.excess() as f64),
        units::memory(plan.total as f64),
        units::memory(plan.capacity as f64),
        cause(grid, plans, plan)
    );
    if !plan.advice.is_empty() {
        text += &format!(" Cheapest change: {}.", plan.advice);
    }
    text
}

/// The cause: a category that is too large alone, else model state that is, else the categories that are larger than in the most
/// similar cell that fits, else the largest category.
fn cause(grid: &Grid, plans: &[Plan], plan: &Plan) -> String {
    let show = |bytes: u64| units::memory(bytes as f64);
    // Of equal ones the first.
    let largest =
        Category::ALL.into_iter().rev().max_by_key(|category| plan.part(*category)).unwrap_or(Category::Parameters);
    if plan.part(largest) > plan.capacity {
        return format!("Its {} alone takes {}", largest.name(), show(plan.part(largest)));
    }
    if let Some(state) = plan.model_state().filter(|&state| state > plan.capacity) {
        let largest = format!("{} of it {}", show(plan.part(largest)), largest.name());
        return format!("Model state alone takes {}, {largest}", show(state));
    }
    let distance =
        |other: &Plan| grid.axes.main.iter().filter(|axis| axis.values[other.place] != axis.values[plan.place]).count();
    if let Some(like) = plans.iter().filter(|other| other.fits()).min_by_key(|other| distance(other)) {
        let mut grown: Vec<(Category, u64)> = Category::ALL
            .into_iter()
            .map(|category| (category, plan.part(category).saturating_sub(like.part(category))))
            .filter(|(_, more)| *more > 0)
            .collect();
        grown.sort_by_key(|(_, more)| Reverse(*more));
        // The largest differences that together explain the excess.
        let mut covered = 0u64;
        let mut parts = Vec::new();
        for (category, more) in grown {
            if covered >= plan.excess() {
                break;
            }
            covered = covered.saturating_add(more);
            parts.push(format!("{} {} (+{})", category.name(), show(plan.part(category)), show(more)));
        }
        if !parts.is_empty() {
            return format!("Against {}: {}", like.cell.label, units::list(&parts));
        }
    }
    format!("Its largest part is {}, {}", largest.name(), show(plan.part(largest)))
}

fn table(grid: &Grid, plans: &[Plan]) -> Table {
    let fits = |plan: &Plan| match (plan.fits(), plan.share() > BARELY) {
        (true, false) => Entry::words("yes").toned(Tone::Good),
        (true, true) => Entry::words("barely").toned(Tone::Warning),
        (false, _) => Entry::words("no").toned(Tone::Warning),
    };
    let room = |plan: &Plan| match plan.fits() {
        true => format!("{} to spare", units::memory((plan.capacity - plan.total) as f64)),
        false => format!("{} too much", units::memory(plan.excess() as f64)),
    };
    let has_bands = plans.iter().any(|plan| plan.estimate.total_bytes_band.is_some());
    let mut table = Table::of("plan", plans);
    table.words("cell", |plan| &plan.cell.label);
    table.words("fits", fits);
    table.memory("plan", |plan| Some(plan.total));
    table.words("80 % band", |plan| plan.estimate.memory_band().unwrap_or_default()).for_machines = !has_bands;
    table.memory("capacity", |plan| Some(plan.capacity));
    table.numbers("of capacity", "fraction", |plan| Entry::number(plan.share(), units::percent(plan.share())));
    table.words("spare or too much", room);
    table.memory("model state", Plan::model_state);
    table.words("record", |plan| grid.short_id(&plan.cell.record().id));
    table.words("cheapest change", |plan| &plan.advice).for_machines = true;
    table.build().caption(format!(
        "Planned peak of the largest rank against what it may use.{}",
        of_bands(plans.iter().map(|plan| &plan.estimate))
    ))
}

/// The predicted steps, where there are any.
fn speeds(plans: &[Plan]) -> Option<Table> {
    let timed: Vec<&Plan> = plans.iter().filter(|plan| plan.estimate.step_ms.is_some()).collect();
    let number = |plan: &Plan, value: Option<f64>, show: fn(f64) -> String| {
        Entry::maybe(value, show).toned(if plan.fits() { Tone::Plain } else { Tone::Struck })
    };
    let band = |plan: &Plan| {
        let tone = if plan.fits() { Tone::Plain } else { Tone::Struck };
        Entry::words(plan.estimate.step_band().unwrap_or_default()).toned(tone)
    };
    let longest = |estimate: &EstimateRow| {
        let mut spans: Vec<(&str, f64)> = estimate.time.iter().map(|(name, ms)| (name, *ms)).collect();
        spans.sort_by(|a, b| b.1.total_cmp(&a.1));
        let whole = estimate.step_ms.unwrap_or(1.0);
        let share = |(name, ms): &(&str, f64)| format!("{} {}", name.replace('_', " "), units::percent(ms / whole));
        spans.iter().take(3).map(share).collect::<Vec<_>>().join(", ")
    };
    let has_bands = timed.iter().any(|plan| plan.estimate.step_ms_band.is_some());
    let mut table = Table::of("predicted steps", &timed);
    table.words("cell", |plan| &plan.cell.label);
    table.numbers("predicted step", "ms", |plan| number(plan, plan.estimate.step_ms, |ms| units::duration(ms / 1e3)));
    table.words("80 % band of the step", |plan| band(plan)).for_machines = !has_bands;
    table.numbers("tokens/s", "tokens/s", |plan| number(plan, plan.estimate.tokens_per_second, units::quantity));
    table.numbers("tokens/s per rank", "tokens/s", |plan| {
        number(plan, plan.estimate.tokens_per_second_per_rank, units::quantity)
    });
    table.numbers("MFU", "fraction", |plan| number(plan, plan.estimate.mfu, units::percent));
    table.numbers("HFU", "fraction", |plan| number(plan, plan.estimate.hfu, units::percent));
    table.words("most of it", |plan| longest(&plan.estimate));
    table.words("by", |plan| &plan.estimate.time_source);
    table
        .build()
        .caption("Predicted, not measured; what does not fit is struck out. MFU and HFU of the device's dense peak.")
        .non_empty()
}
