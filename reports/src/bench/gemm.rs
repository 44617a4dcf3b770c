//! Matrix products: one by one, and all of a model's step together.

use super::{Timing, Trials, all_measured, ceiling, checked, count, outcome, quantity, reasons, text, tone};
use crate::document::{Document, Entry, Table};
use crate::gather::grouped;
use crate::record::Record;
use crate::units;
use serde_json::Value;

/// Adds the section of these records.
pub(super) fn report(document: &mut Document, records: &[&Record]) {
    if records.is_empty() {
        return;
    }
    let all = Trials::gather(records);
    document.heading("Matrix products");
    document.paragraph(
        "C[m,n] = op(A)[m,k] op(B)[k,n]: 2 m n k operations. The first letter of the layout is A's, the second B's; n is as \
         the product reads it, t is stored the other way: nt is a layer forward, nn the gradient of its input, tn that of its \
         weights. The ceiling is what the same threads reach on registers alone in this type, measured before and after; of a \
         GPU the dense rate in its data sheet.",
    );
    document.figure(super::figure::share_over_size(&all));
    document.table(products(&all));
    if let Some(table) = steps(&all) {
        document.paragraph(
            "All matrix products of one training step of a rank, as the plan states them: the time of each times how often it \
             is done. What lies between them is not in it.",
        );
        document.table(table);
    }
    document.list(reasons(&all));
}

/// The trials of a cell, the newest, and the medians over them with their number.
type Row<'a> = (&'a Trials<'a>, &'a Record, Option<(Timing, u64)>);

fn products(all: &[Trials]) -> Table {
    let has_uses = all.iter().any(|trials| !uses(trials.last()).is_empty());
    let rows: Vec<Row> = all.iter().map(|trials| (trials, trials.last(), trials.timing("gemm", ""))).collect();
    let timing = |row: &'_ Row| row.2.as_ref().map(|(timing, _)| timing.clone());
    let number = |row: &Row, value: fn(Timing) -> f64| {
        Entry::maybe(timing(row).map(value), units::number).toned(tone(row.0.is_wrong()))
    };
    let mut table = Table::of("matrix products", &rows);
    table.words("record", |(_, record, _)| &record.id);
    table.words("key", |(_, record, _)| &record.key).for_machines = true;
    for side in ["m", "n", "k"] {
        table.numbers(side, "", |(_, record, _)| record.setting(&format!("gemm.{side}")));
    }
    table.words("layout", |(_, record, _)| record.setting("gemm.layout"));
    table.words("type", |(_, record, _)| record.setting("gemm.dtype"));
    table.words("into", |(_, record, _)| match record.setting("gemm.accumulate").and_then(Value::as_bool) {
        Some(true) => format!("{} +=", text(record, "gemm.output")),
        _ => text(record, "gemm.output"),
    });
    table.words("buffers", |(_, record, _)| record.setting("bench.buffers")).for_machines = true;
    table.numbers("threads", "", |(_, record, _)| super::computing(record));
    table.words("outcome", |(trials, ..)| outcome(trials)).for_machines = all_measured(all);
    table.numbers("trials", "", |(.., found)| quantity(found.as_ref().map(|(_, count)| *count))).for_machines = true;
    table.numbers("median", "us", |row| number(row, |timing| timing.median_us));
    table.numbers("p10", "us", |row| number(row, |timing| timing.p10_us));
    table.numbers("p90", "us", |row| number(row, |timing| timing.p90_us));
    table.numbers("rate", "GFLOP/s", |row| number(row, |timing| timing.gflops));
    table.numbers("ceiling", "GFLOP/s", |(_, record, _)| Entry::maybe(ceiling(record).gflops, units::number));
    let share = |row: &Row| timing(row).and_then(|timing| timing.share).filter(|_| !row.0.is_wrong());
    table.numbers("share", "fraction", |row| Entry::maybe(share(row), units::percent));
    table.numbers("error", "fraction of the bound", |row| timing(row).map(|timing| checked(&timing)));
    let elements = |row: &Row| timing(row).map(|timing| timing.checked);
    table.numbers("elements checked", "", |row| quantity(elements(row))).for_machines = true;
    table.words("reason", |(_, record, _)| &record.outcome.reason).for_machines = true;
    let title = if has_uses { "in a step" } else { "uses" };
    table.words(title, |(_, record, _)| uses_in_words(record)).for_machines = !has_uses;
    table.build().caption(
        "Time of a call; with several trials the median of theirs. Error: the largest distance of a sampled element from f64, as \
         a share of what rounding explains.",
    )
}

/// Where a model's step has this product: layer, pass and count.
fn uses(record: &Record) -> Vec<(String, String, u64)> {
    let one = |value: &Value| {
        let word = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_string();
        (word("layer"), word("pass"), value.get("count").and_then(Value::as_u64).unwrap_or(0))
    };
    record.setting("uses").and_then(Value::as_array).into_iter().flatten().map(one).collect()
}

fn uses_in_words(record: &Record) -> String {
    let one = |(layer, pass, count): (String, String, u64)| format!("{count} x {layer} {pass}");
    uses(record).into_iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The products of one step of a model, of one type and on one number of threads, together.
struct Step {
    products: usize,
    missing: usize,
    seconds: f64,
    flops: f64,
    /// Seconds at the ceiling; `None` where the ceiling of a product is not known.
    at_ceiling: Option<f64>,
}

impl Step {
    fn of(products: &[(&Trials, u64)]) -> Self {
        let mut step = Step { products: products.len(), missing: 0, seconds: 0.0, flops: 0.0, at_ceiling: Some(0.0) };
        for (trials, count) in products {
            let Some((timing, _)) = trials.timing("gemm", "").filter(|_| !trials.is_wrong()) else {
                step.missing += 1;
                continue;
            };
            let flops = timing.flops as f64 * *count as f64;
            step.seconds += timing.median_us / 1e6 * *count as f64;
            step.flops += flops;
            let peak = ceiling(trials.last()).gflops;
            step.at_ceiling = step.at_ceiling.zip(peak).map(|(sum, peak)| sum + flops / (peak * 1e9));
        }
        step
    }

    fn is_whole(&self) -> bool {
        self.missing == 0 && self.seconds > 0.0
    }
}

/// For each model, batch, type and number of threads: what all matrix products of a step take together.
fn steps(all: &[Trials]) -> Option<Table> {
    let name = |record: &Record| {
        let batch = format!("{} x {}", count(record, "step.micro_batch"), count(record, "step.seq_len"));
        [text(record, "model"), batch, text(record, "gemm.dtype"), super::computing(record)]
    };
    let used = all.iter().filter_map(|trials| {
        let count: u64 = uses(trials.last()).iter().map(|(.., count)| count).sum();
        (count > 0).then(|| (name(trials.last()), (trials, count)))
    });
    let steps = grouped(used).into_iter();
    let rows: Vec<([String; 4], Step, &Record)> =
        steps.map(|(name, products)| (name, Step::of(&products), products[0].0.last())).collect();
    let number =
        |step: &Step, value: f64, show: fn(f64) -> String| Entry::maybe(step.is_whole().then_some(value), show);
    let mut table = Table::of("products of a step", &rows);
    table.words("model", |([model, ..], ..)| model);
    table.words("sequences x tokens", |([_, batch, ..], ..)| batch);
    table.words("type", |([.., dtype, _], ..)| dtype);
    table.numbers("threads", "", |([.., threads], ..)| threads);
    table.numbers("distinct products", "", |(_, step, _)| step.products);
    table.numbers("not measured", "", |(_, step, _)| step.missing);
    table.numbers("operations", "FLOP", |(_, step, _)| number(step, step.flops, units::flops));
    table.numbers("time", "ms", |(_, step, _)| number(step, step.seconds * 1e3, units::number));
    table.numbers("rate", "GFLOP/s", |(_, step, _)| number(step, step.flops / step.seconds / 1e9, units::number));
    table.numbers("share", "fraction", |(_, step, _)| {
        step.at_ceiling.map(|best| number(step, best / step.seconds, units::percent))
    });
    table.words("first record", |(.., record)| &record.id).for_machines = true;
    table.build().non_empty()
}
