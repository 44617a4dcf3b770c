//! What each precision policy holds and what it does to the losses: the table of a grid whose cells differ in precision.

use serde_json::Value;

use crate::document::{Column, Entry, Table, Tone};
use crate::grid::{Cell, Grid};
use crate::record::{Category, Record};
use crate::units;

const SECTION: &str = "precision";

/// One row for each measured cell, where cells differ in precision.
pub fn table(grid: &Grid) -> Option<Table> {
    let axes = grid.axes.telling.iter().chain(&grid.axes.following);
    let differs = axes.into_iter().any(|axis| axis.path.starts_with("precision."));
    let cells: Vec<(&Cell, Policy)> = grid.measured().filter_map(|cell| Some((cell, Policy::of(cell)?))).collect();
    if !differs || cells.is_empty() {
        return None;
    }
    let is_scaled = cells.iter().any(|(_, policy)| policy.scaled);
    let mut columns = vec![
        Column::words("policy"),
        Column::words("loading"),
        Column::words("mixed precision"),
        Column::words("preparation"),
        Column::words("training"),
        Column::words("optimizer"),
        Column::words("weights at home").for_machines(),
        Column::words("gradients").for_machines(),
        Column::words("reduction").for_machines(),
        Column::words("master").for_machines(),
        Column::numbers("bytes per parameter", "bytes"),
        Column::numbers("measured", "bytes"),
        Column::numbers("largest loss difference", "nats"),
        Column::numbers("last", "nats"),
        Column::numbers("band", "nats"),
        Column::words("within"),
    ];
    if is_scaled {
        columns.push(Column::numbers("skipped steps", ""));
        columns.push(Column::numbers("last loss scale", ""));
    }
    columns.push(Column::words("cell"));
    let mut table = Table::new("precision", columns).caption(
        "Types at each stage: loading, mixed precision (none: compute has the type of the updated weights), local preparation \
         (the weights that the optimizer updates), training (forward, backward and reduction), the optimizer's moments. Bytes \
         per parameter of weights, gradients and optimizer: as the types state it, and the measured peaks of these three, \
         added up over the ranks that share them, per parameter (padding, and copies of weights that are not split, are in \
         it). Loss differences are absolute, over the steps, to the cell that has f32 throughout and is alike otherwise; the \
         band is (√(8 L + 4) + 3.5) u times its first loss, and 4 u more where the updated weights have 16 bits, with u the \
         largest unit roundoff of the types and L the number of blocks (docs/mixed-precision.md).",
    );
    for (cell, policy) in &cells {
        let reference = cells.iter().find(|(other, types)| types.is_f32() && is_alike(cell, other));
        let compared = reference.and_then(|(reference, _)| compare(policy, cell.record(), reference.record()));
        table.row(row(cell, policy, compared, is_scaled));
    }
    Some(table)
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

    /// How far losses may be from those of f32, as a share of the first; see the table's caption.
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

/// Absent where the steps are not the same ones or a loss is not finite.
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
    let mut bytes = 0.0;
    for (category, share) in [Category::Parameters, Category::Gradients, Category::Optimizer].into_iter().zip(shares) {
        bytes += cell.category_peak(category)? as f64 * share;
    }
    Some(bytes / parameters)
}

fn row(cell: &Cell, policy: &Policy, compared: Option<Compared>, is_scaled: bool) -> Vec<Entry> {
    let mixed = if policy.compute == policy.updated() { "none" } else { policy.compute };
    let training = match policy.reduce {
        reduce if reduce == policy.compute => policy.compute.to_string(),
        reduce => format!("{}, reduction {reduce}", policy.compute),
    };
    let preparation =
        if policy.stochastic { format!("{}, stochastic", policy.updated()) } else { policy.updated().into() };
    // With adapters most parameters have no gradients and no optimizer state: the types alone do not say the bytes.
    let stated = (!cell.has_adapter()).then(|| policy.bytes() as f64);
    let nats = |value: fn(&Compared) -> f64| Entry::maybe(compared.as_ref().map(value), |nats| format!("{nats:.4}"));
    let within = match &compared {
        _ if policy.is_f32() => Entry::words("the reference"),
        None => Entry::words("no f32 cell of the same, finite steps"),
        Some(compared) if compared.largest <= compared.band => Entry::words("yes").toned(Tone::Good),
        Some(_) => {
            // Every skipped step leaves the weights one update behind, which is no rounding.
            let skipped = cell.metric("skipped_steps").filter(|count| *count > 0.0).map(|count| count as usize);
            let behind = skipped.map(|count| format!(": {} skipped", units::plural(count, "step", "steps")));
            Entry::words(format!("no{}", behind.unwrap_or_default())).toned(Tone::Warning)
        }
    };
    let mut row = vec![
        Entry::words(policy.name),
        Entry::words(policy.load.unwrap_or("as it comes")),
        Entry::words(mixed),
        Entry::words(preparation),
        Entry::words(training),
        Entry::words(policy.optimizer),
        Entry::words(policy.parameters),
        Entry::words(policy.gradients),
        Entry::words(policy.reduce),
        Entry::words(policy.master.unwrap_or("none")),
        Entry::maybe(stated, units::quantity),
        Entry::maybe(measured(cell), |bytes| format!("{bytes:.2}")),
        nats(|compared| compared.largest),
        nats(|compared| compared.last),
        nats(|compared| compared.band),
        within,
    ];
    if is_scaled {
        let of_scaled = |metric: &str| cell.metric(metric).filter(|_| policy.scaled);
        row.push(Entry::maybe(of_scaled("skipped_steps"), units::quantity));
        row.push(Entry::maybe(of_scaled("loss_scale_last"), units::quantity));
    }
    row.push(Entry::words(&cell.label));
    row
}
