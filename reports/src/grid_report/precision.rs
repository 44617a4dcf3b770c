//! The types of each precision policy, and its effect on the losses: the table of a grid whose cells differ in precision.

use serde_json::Value;

use crate::document::{Entry, Table, Tone};
use crate::grid::{Cell, Grid};
use crate::record::{Category, Record};
use crate::units;

const SECTION: &str = "precision";

/// One row for each measured cell, where cells differ in precision.
pub fn table(grid: &Grid) -> Option<Table> {
    let mut axes = grid.axes.main.iter().chain(&grid.axes.dependent);
    let differs = axes.any(|axis| axis.path.starts_with("precision."));
    let cells: Vec<(&Cell, Policy)> = grid.measured().filter_map(|cell| Some((cell, Policy::of(cell)?))).collect();
    if !differs || cells.is_empty() {
        return None;
    }
    let compared = |cell: &Cell, policy: &Policy| {
        let (reference, _) = cells.iter().find(|(other, types)| types.is_f32() && is_alike(cell, other))?;
        compare(policy, cell.record(), reference.record())
    };
    let rows: Vec<Row> = cells.iter().map(|(cell, policy)| (*cell, policy, compared(cell, policy))).collect();
    let mut table = Table::of("precision", &rows);
    table.words("policy", |(_, policy, _)| policy.name);
    table.words("loading", |(_, policy, _)| policy.load.unwrap_or("as it comes"));
    table.words("mixed precision", |(_, policy, _)| match policy.compute == policy.updated() {
        true => "none",
        false => policy.compute,
    });
    table.words("preparation", |(_, policy, _)| match policy.stochastic {
        true => format!("{}, stochastic", policy.updated()),
        false => policy.updated().to_string(),
    });
    table.words("training", |(_, policy, _)| match policy.reduce {
        reduce if reduce == policy.compute => policy.compute.to_string(),
        reduce => format!("{}, reduction {reduce}", policy.compute),
    });
    table.words("optimizer", |(_, policy, _)| policy.optimizer);
    table.words("weights at home", |(_, policy, _)| policy.parameters).for_machines = true;
    table.words("gradients", |(_, policy, _)| policy.gradients).for_machines = true;
    table.words("reduction", |(_, policy, _)| policy.reduce).for_machines = true;
    table.words("master", |(_, policy, _)| policy.master.unwrap_or("none")).for_machines = true;
    // With adapters most parameters have no gradients and no optimizer state: the types alone do not give the bytes.
    let stated = |cell: &Cell, policy: &Policy| (!cell.has_adapter()).then(|| policy.bytes() as f64);
    table.numbers("bytes per parameter", "bytes", |(cell, policy, _)| {
        Entry::maybe(stated(cell, policy), units::quantity)
    });
    table.numbers("measured", "bytes", |(cell, ..)| Entry::maybe(measured(cell), |bytes| format!("{bytes:.2}")));
    let nats = |(.., compared): &Row, value: fn(&Compared) -> f64| {
        Entry::maybe(compared.as_ref().map(value), |nats| format!("{nats:.4}"))
    };
    table.numbers("largest loss difference", "nats", |row| nats(row, |compared| compared.largest));
    table.numbers("last", "nats", |row| nats(row, |compared| compared.last));
    table.numbers("band", "nats", |row| nats(row, |compared| compared.band));
    table.words("within", within);
    if cells.iter().any(|(_, policy)| policy.scaled) {
        let metric = |(cell, policy, _): &Row, name: &str| {
            Entry::maybe(cell.metric(name).filter(|_| policy.scaled), units::quantity)
        };
        table.numbers("skipped steps", "", |row| metric(row, "skipped_steps"));
        table.numbers("last loss scale", "", |row| metric(row, "loss_scale_last"));
    }
    table.words("cell", |(cell, ..)| &cell.label);
    Some(table.build().caption(
        "Types at each stage: loading, mixed precision (none: compute has the type of the updated weights), local preparation \
         (the weights that the optimizer updates), training (forward, backward and reduction), the optimizer's moments. Bytes \
         per parameter of weights, gradients and optimizer: as the types state it, and the measured peaks of these three, \
         added up over the ranks that share them, per parameter (padding, and copies of weights that are not split, are in \
         it). Loss differences are absolute, over the steps, to the cell that has f32 throughout and is alike otherwise; the \
         band is (√(8 L + 4) + 3.5) u times its first loss, and 4 u more where the updated weights have 16 bits, with u the \
         largest unit roundoff of the types and L the number of blocks (docs/mixed-precision.md).",
    ))
}

/// A cell, its types, and its losses against those of f32.
type Row<'r> = (&'r Cell<'r>, &'r Policy<'r>, Option<Compared>);

/// Whether the losses are within the band around those of f32.
fn within((cell, policy, compared): &Row) -> Entry {
    match compared {
        _ if policy.is_f32() => Entry::words("the reference"),
        None => Entry::words("no f32 cell of the same, finite steps"),
        Some(compared) if compared.largest <= compared.band => Entry::words("yes").toned(Tone::Good),
        Some(_) => {
            // Every skipped step leaves the weights one update behind, which is no rounding.
            let skipped = cell.metric("skipped_steps").filter(|count| *count > 0.0).map(|count| count as usize);
            let behind = skipped.map(|count| format!(": {} skipped", units::plural(count, "step", "steps")));
            Entry::words(format!("no{}", behind.unwrap_or_default())).toned(Tone::Warning)
        }
    }
}

/// The types of a cell.
struct Policy<'r> {
    name: &'r str,
    parameters: &'r str,
    compute: &'r str,
    gradients: &'r str,
    reduce: &'r str,
    master: Option<&'r str>,
    optimizer: &'r str,
    load: Option<&'r str>,
    stochastic: bool,
    scaled: bool,
}

impl<'r> Policy<'r> {
    fn of(cell: &Cell<'r>) -> Option<Policy<'r>> {
        let record = cell.record();
        let precision = record.cell.get(SECTION)?;
        let text = |key: &str| precision.get(key).and_then(Value::as_str);
        let parameters = text("parameters")?;
        let compute = text("compute")?;
        let name = record.extra.get("precision_policy").and_then(Value::as_str);
        Some(Policy {
            name: name.unwrap_or(if parameters == compute { compute } else { "mixed" }),
            parameters,
            compute,
            gradients: text("gradients")?,
            reduce: text("reduce")?,
            master: text("master"),
            optimizer: text("optimizer")?,
            load: text("load"),
            stochastic: text("rounding") == Some("stochastic"),
            scaled: precision.get("scaling").is_some(),
        })
    }

    /// The type of the weights that the optimizer updates.
    fn updated(&self) -> &'r str {
        self.master.unwrap_or(self.parameters)
    }

    fn is_f32(&self) -> bool {
        self.types().all(|dtype| dtype == "f32") && self.optimizer == "f32" && self.master.is_none()
    }

    fn types(&self) -> impl Iterator<Item = &'r str> {
        [self.parameters, self.compute, self.gradients, self.reduce].into_iter().chain(self.master).chain(self.load)
    }

    fn bytes(&self) -> u64 {
        let master = self.master.map_or(0, size);
        size(self.parameters) + size(self.gradients) + master + 2 * size(self.optimizer)
    }

    /// The allowed difference of losses from those of f32, as a share of the first loss; see the table's caption.
    fn band(&self, blocks: u64) -> f64 {
        let roundoff = self.types().map(roundoff).fold(0.0, f64::max);
        let pure = if size(self.updated()) == 2 { 4.0 } else { 0.0 };
        ((8.0 * blocks as f64 + 4.0).sqrt() + 3.5 + pure) * roundoff
    }
}

fn size(dtype: &str) -> u64 {
    match dtype {
        "bf16" | "f16" => 2,
        "f64" => 8,
        _ => 4,
    }
}

fn roundoff(dtype: &str) -> f64 {
    match dtype {
        "bf16" => 2f64.powi(-8),
        "f16" => 2f64.powi(-11),
        "f64" => 2f64.powi(-53),
        _ => 2f64.powi(-24),
    }
}

/// Whether two cells differ in precision alone.
fn is_alike(a: &Cell, b: &Cell) -> bool {
    let rest = |cell: &Cell| {
        let mut settings = cell.record().cell.clone();
        if let Value::Object(sections) = &mut settings {
            sections.remove(SECTION);
        }
        settings
    };
    rest(a) == rest(b)
}

struct Compared {
    largest: f64,
    last: f64,
    band: f64,
}

/// `None` where the steps are not the same or a loss is not finite.
fn compare(policy: &Policy, record: &Record, reference: &Record) -> Option<Compared> {
    if record.id == reference.id || record.steps.len() != reference.steps.len() {
        return None;
    }
    let pairs = record.steps.iter().zip(&reference.steps);
    let differences: Vec<f64> = pairs.map(|(a, b)| (a.loss - b.loss).abs()).collect();
    let blocks = record.setting("model.num_hidden_layers").and_then(Value::as_u64)?;
    let (first, last) = (reference.steps.first()?.loss, *differences.last()?);
    let largest = differences.iter().copied().fold(0.0, f64::max);
    let is_finite = differences.iter().all(|difference| difference.is_finite());
    is_finite.then(|| Compared { largest, last, band: policy.band(blocks) * first })
}

/// Bytes of weights, gradients and optimizer state over the ranks that share them, per parameter.
fn measured(cell: &Cell) -> Option<f64> {
    let record = cell.record();
    let parallel = record.cell.get("parallel")?;
    let number = |key: &str| parallel.get(key).and_then(Value::as_u64).unwrap_or(1) as f64;
    let (ranks, shard) = (number("ranks"), number("shard"));
    // Ranks that share weights, gradients, optimizer state.
    let shares = match cell.strategy() {
        "ddp" => [1.0, 1.0, 1.0],
        "zero1" => [1.0, 1.0, ranks],
        "zero2" => [1.0, ranks, ranks],
        "hsdp" => [shard, shard, shard],
        "hsdp-full-optimizer" => [shard, shard, ranks],
        _ => [ranks, ranks, ranks],
    };
    let parameters = record.extra.get("parameters").and_then(Value::as_f64).filter(|count| *count > 0.0)?;
    let categories = [Category::Parameters, Category::Gradients, Category::Optimizer].into_iter().zip(shares);
    let bytes = categories.map(|(category, share)| Some(cell.category_peak(category)? as f64 * share));
    Some(bytes.sum::<Option<f64>>()? / parameters)
}
