//! What the plan says of cells that did not run: which fit, which do not, why, and what would make them fit.

use super::words::named;
use crate::document::{Document, Entry, Table, Tone};
use crate::estimate_report::{EstimateRow, of_bands};
use crate::grid::labels::{Axis, STRATEGY};
use crate::grid::{Cell, Grid};
use crate::record::{Category, Status};
use crate::units;

/// Above this share of the capacity a cell fits only barely.
const BARELY: f64 = 0.95;
/// So many cells that do not fit are told one by one.
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
    /// What is predicted of it.
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

    /// Bytes that are too much.
    pub fn excess(&self) -> u64 {
        self.total.saturating_sub(self.capacity)
    }

    fn part(&self, category: Category) -> u64 {
        self.cell.category_prediction(category).unwrap_or(0)
    }

    /// Parameters, gradients and optimizer together, bytes; `None` where the plan does not state all three.
    fn model_state(&self) -> Option<u64> {
        let parts = MODEL_STATE.map(|category| self.cell.category_prediction(category));
        parts.into_iter().try_fold(0u64, |sum, part| sum.checked_add(part?))
    }

    /// Over how many ranks all of the model state is sharded; `None` where only parts of it are.
    fn shards(&self) -> Option<u64> {
        let number = |path: &str| self.cell.record().setting(path).and_then(serde_json::Value::as_u64);
        match self.cell.strategy() {
            "ddp" => Some(1),
            "fsdp" | "zero3" => number("parallel.ranks"),
            "hsdp" => number("parallel.shard"),
            _ => None,
        }
    }

    /// Bytes of model state for each parameter; `None` where some parameters are frozen.
    fn bytes_per_parameter(&self) -> Option<f64> {
        let number = |name: &str| self.cell.record().extra.get(name).and_then(serde_json::Value::as_u64);
        let parameters = number("parameters").filter(|&all| all > 0 && number("trainable_parameters") == Some(all))?;
        Some(self.model_state()? as f64 * self.shards()? as f64 / parameters as f64)
    }
}

/// The cells that were not run for want of hardware or memory and whose plan and capacity are known.
pub fn plans<'g, 'a>(grid: &'g Grid<'a>) -> Vec<Plan<'g, 'a>> {
    let plan = |(place, cell): (usize, &'g Cell<'a>)| {
        let record = cell.record();
        let did_not_run = matches!(record.outcome.status, Status::Skipped | Status::OutOfMemory);
        if !cell.used.is_empty() || !did_not_run {
            return None;
        }
        let estimate: Option<EstimateRow> = serde_json::from_value(record.estimate.clone()).ok();
        let setting = || record.setting("memory.capacity").and_then(serde_json::Value::as_u64);
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

/// Whether a note of this cell is said in the answer already.
pub fn says(cell: &Cell, note: &str) -> bool {
    let advice = cell.record().estimate.get("advice").and_then(serde_json::Value::as_str).unwrap_or_default();
    let is_listed = cell.used.is_empty() && cell.predicted_peak_bytes().is_some();
    is_listed && !advice.is_empty() && note.contains(advice)
}

/// Adds what the plan says; nothing when no cell has one. True when something was said.
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
    let count = plans.iter().filter(|plan| !plan.fits()).count();
    let mut misfits: Vec<String> =
        plans.iter().filter(|plan| !plan.fits()).take(MOST_MISFITS).map(|plan| misfit(grid, &plans, plan)).collect();
    if count > MOST_MISFITS {
        misfits.push(format!("And {} more; the table has all.", count - MOST_MISFITS));
    }
    if !misfits.is_empty() {
        document.paragraph("What does not fit, why, and the cheapest change that makes it fit:");
        document.list(misfits);
    }
    document.table(table(grid, &plans));
    if let Some(table) = speeds(&plans) {
        document.table(table);
    }
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
    let capacity = match plans.windows(2).all(|pair| pair[0].capacity == pair[1].capacity) {
        true => format!("into the {} of a rank", units::memory(plans[0].capacity as f64)),
        false => "into what its ranks may use".to_string(),
    };
    text += &match fitting.len() {
        0 => format!("none of {} fits {capacity}.", units::plural(plans.len(), "cell", "cells")),
        count => format!(
            "{count} of {} {} {capacity}: {}.",
            units::plural(plans.len(), "cell", "cells"),
            if count == 1 { "fits" } else { "fit" },
            named(&fitting.iter().map(|plan| of_capacity(plan)).collect::<Vec<_>>())
        ),
    };
    if !barely.is_empty() {
        text += &format!(
            " Only barely, above {:.0} %: {}.",
            BARELY * 100.0,
            named(&barely.iter().map(|plan| plan.cell.label.clone()).collect::<Vec<_>>())
        );
    }
    if grid.axes.telling.iter().any(|axis| axis.path == STRATEGY) {
        text += &by_strategy(plans);
    }
    text
}

/// ` fsdp fits in 1 of 4 cells, hsdp in none of 4.`
fn by_strategy(plans: &[Plan]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for plan in plans {
        if !names.contains(&plan.cell.strategy()) {
            names.push(plan.cell.strategy());
        }
    }
    let parts: Vec<String> = names
        .iter()
        .map(|name| {
            let all = plans.iter().filter(|plan| plan.cell.strategy() == *name);
            let (fit, all) = (all.clone().filter(|plan| plan.fits()).count(), all.count());
            let fit = if fit == 0 { "none".to_string() } else { fit.to_string() };
            format!("{name} fits in {fit} of {}", units::plural(all, "cell", "cells"))
        })
        .collect();
    format!(" {}.", units::list(&parts))
}

/// Model state by strategy, cells of equal state together.
fn model_state(grid: &Grid, plans: &[Plan]) -> Vec<String> {
    let mut strategies: Vec<(&str, Vec<&Plan>)> = Vec::new();
    for plan in plans.iter().filter(|plan| plan.model_state().is_some()) {
        match strategies.iter_mut().find(|(name, _)| *name == plan.cell.strategy()) {
            Some((_, plans)) => plans.push(plan),
            None => strategies.push((plan.cell.strategy(), vec![plan])),
        }
    }
    strategies.iter().map(|(name, plans)| state_of_strategy(grid, name, plans)).collect()
}

fn state_of_strategy(grid: &Grid, name: &str, plans: &[&Plan]) -> String {
    let mut groups: Vec<Vec<&Plan>> = Vec::new();
    for plan in plans {
        match groups.iter_mut().find(|group| group[0].model_state() == plan.model_state()) {
            Some(group) => group.push(plan),
            None => groups.push(vec![plan]),
        }
    }
    let parts: Vec<String> = groups.iter().map(|group| state_of_group(grid, plans, group)).collect();
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
    // Keys with one value in the group, those first that set it apart from most cells, until it is apart from all.
    let differs = |axis: &Axis, other: &Plan| axis.values[other.place] != axis.values[plan.place];
    let mut others: Vec<&&Plan> =
        strategy.iter().filter(|other| !group.iter().any(|own| own.place == other.place)).collect();
    let mut axes: Vec<&Axis> =
        grid.axes.telling.iter().filter(|axis| !group.iter().any(|own| differs(axis, own))).collect();
    axes.sort_by_key(|axis| std::cmp::Reverse(others.iter().filter(|other| differs(axis, other)).count()));
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

/// Why one cell does not fit, and what would make it.
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

/// The category at fault: one that is too large alone, else model state that is, else what has grown most against the
/// most alike cell that fits, else the largest.
fn cause(grid: &Grid, plans: &[Plan], plan: &Plan) -> String {
    let show = |bytes: u64| units::memory(bytes as f64);
    // Of equal ones the first.
    let largest =
        Category::ALL.into_iter().rev().max_by_key(|category| plan.part(*category)).unwrap_or(Category::Parameters);
    if plan.part(largest) > plan.capacity {
        return format!("Its {} alone takes {}", largest.name(), show(plan.part(largest)));
    }
    if let Some(state) = plan.model_state().filter(|&state| state > plan.capacity) {
        return format!(
            "Model state alone takes {}, {} of it {}",
            show(state),
            show(plan.part(largest)),
            largest.name()
        );
    }
    let distance = |other: &Plan| {
        grid.axes.telling.iter().filter(|axis| axis.values[other.place] != axis.values[plan.place]).count()
    };
    if let Some(like) = plans.iter().filter(|other| other.fits()).min_by_key(|other| distance(other)) {
        let mut grown: Vec<(Category, u64)> = Category::ALL
            .into_iter()
            .map(|category| (category, plan.part(category).saturating_sub(like.part(category))))
            .filter(|(_, more)| *more > 0)
            .collect();
        grown.sort_by_key(|(_, more)| std::cmp::Reverse(*more));
        // Those that matter: until what they take more covers what is too much.
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
