//! Matrix products: a row for each, and the sum over a model's step.

use super::{Trials, ceiling, checked, count, outcome, outcomes, text, tone, troubles, word};
use crate::document::{Column, Document, Entry, Table};
use crate::record::Record;
use crate::units;
use serde_json::Value;

/// The section of these records.
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
    document.list(troubles(&all));
}

fn products(all: &[Trials]) -> Table {
    let has_uses = all.iter().any(|trials| !uses(trials.last()).is_empty());
    let columns = vec![
        Column::words("record"),
        Column::words("key").for_machines(),
        Column::numbers("m", ""),
        Column::numbers("n", ""),
        Column::numbers("k", ""),
        Column::words("layout"),
        Column::words("type"),
        Column::words("into"),
        Column::words("buffers").for_machines(),
        Column::numbers("threads", ""),
        outcomes(all),
        Column::numbers("trials", "").for_machines(),
        Column::numbers("median", "us"),
        Column::numbers("p10", "us"),
        Column::numbers("p90", "us"),
        Column::numbers("rate", "GFLOP/s"),
        Column::numbers("ceiling", "GFLOP/s"),
        Column::numbers("share", "fraction"),
        Column::numbers("error", "fraction of the bound"),
        Column::numbers("elements checked", "").for_machines(),
        Column::words("reason").for_machines(),
        Column::words(if has_uses { "in a step" } else { "uses" }),
    ];
    let mut table = Table::new("matrix products", columns).caption(
        "Time of a call; with several trials the median of theirs. Error: the largest distance of a sampled element from f64, as \
         a share of what rounding explains.",
    );
    if !has_uses {
        // Nothing to say: a column of dashes helps nobody.
        if let Some(last) = table.columns.last_mut() {
            last.for_machines = true;
        }
    }
    for trials in all {
        let record = trials.last();
        let found = trials.timing("gemm", "");
        let timing = found.as_ref().map(|(timing, _)| timing);
        let number = |of: fn(&super::Timing) -> f64| Entry::maybe(timing.map(of), units::number);
        let into = match record.setting("gemm.accumulate").and_then(Value::as_bool) {
            Some(true) => format!("{} +=", text(record, "gemm.output")),
            _ => text(record, "gemm.output"),
        };
        let wrong = trials.is_wrong();
        table.row(vec![
            Entry::words(&record.id),
            Entry::words(&record.key),
            word(record, "gemm.m"),
            word(record, "gemm.n"),
            word(record, "gemm.k"),
            word(record, "gemm.layout"),
            word(record, "gemm.dtype"),
            Entry::words(into),
            word(record, "bench.buffers"),
            Entry::words(super::computing(record)),
            outcome(trials),
            Entry::maybe(found.as_ref().map(|(_, count)| *count as f64), units::quantity),
            number(|timing| timing.median_us).toned(tone(wrong)),
            number(|timing| timing.p10_us).toned(tone(wrong)),
            number(|timing| timing.p90_us).toned(tone(wrong)),
            number(|timing| timing.gflops).toned(tone(wrong)),
            Entry::maybe(ceiling(record).gflops, units::number),
            Entry::maybe(timing.and_then(|timing| timing.share).filter(|_| !wrong), units::percent),
            timing.map_or_else(Entry::nothing, checked),
            Entry::maybe(timing.map(|timing| timing.checked as f64), units::quantity),
            Entry::words(&record.outcome.reason),
            Entry::words(in_words(record)),
        ]);
    }
    table
}

/// Where a model's step has this product: layer, pass, how often.
fn uses(record: &Record) -> Vec<(String, String, u64)> {
    let list = record.setting("uses").and_then(Value::as_array).cloned().unwrap_or_default();
    let one = |value: &Value| {
        let word = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_string();
        (word("layer"), word("pass"), value.get("count").and_then(Value::as_u64).unwrap_or(0))
    };
    list.iter().map(one).collect()
}

fn in_words(record: &Record) -> String {
    let one = |(layer, pass, count): (String, String, u64)| format!("{count} x {layer} {pass}");
    uses(record).into_iter().map(one).collect::<Vec<_>>().join(", ")
}

/// For each model, type and number of threads whose products were all measured: what they take together.
fn steps(all: &[Trials]) -> Option<Table> {
    struct Sum<'a> {
        question: [String; 4],
        record: &'a Record,
        products: usize,
        missing: usize,
        seconds: f64,
        flops: f64,
        at_ceiling: Option<f64>,
    }
    let mut sums: Vec<Sum> = Vec::new();
    for trials in all {
        let record = trials.last();
        let count: u64 = uses(record).iter().map(|(.., count)| count).sum();
        if count == 0 {
            continue;
        }
        let question = [
            text(record, "model"),
            format!("{} x {}", count_of(record, "step.micro_batch"), count_of(record, "step.seq_len")),
            text(record, "gemm.dtype"),
            super::computing(record),
        ];
        let sum = match sums.iter_mut().position(|sum| sum.question == question) {
            Some(place) => &mut sums[place],
            None => {
                let at_ceiling = Some(0.0);
                sums.push(Sum { question, record, products: 0, missing: 0, seconds: 0.0, flops: 0.0, at_ceiling });
                sums.last_mut()?
            }
        };
        sum.products += 1;
        match trials.timing("gemm", "").filter(|_| !trials.is_wrong()) {
            None => sum.missing += 1,
            Some((timing, _)) => {
                let flops = timing.flops as f64 * count as f64;
                sum.seconds += timing.median_us / 1e6 * count as f64;
                sum.flops += flops;
                let peak = ceiling(record).gflops;
                sum.at_ceiling = sum.at_ceiling.zip(peak).map(|(sum, peak)| sum + flops / (peak * 1e9));
            }
        }
    }
    let columns = vec![
        Column::words("model"),
        Column::words("sequences x tokens"),
        Column::words("type"),
        Column::numbers("threads", ""),
        Column::numbers("distinct products", ""),
        Column::numbers("not measured", ""),
        Column::numbers("operations", "FLOP"),
        Column::numbers("time", "ms"),
        Column::numbers("rate", "GFLOP/s"),
        Column::numbers("share", "fraction"),
        Column::words("first record").for_machines(),
    ];
    let mut table = Table::new("products of a step", columns);
    for sum in &sums {
        let is_whole = sum.missing == 0 && sum.seconds > 0.0;
        let [model, batch, dtype, threads] = &sum.question;
        table.row(vec![
            Entry::words(model),
            Entry::words(batch),
            Entry::words(dtype),
            Entry::words(threads),
            Entry::whole(sum.products as u64, sum.products.to_string()),
            Entry::whole(sum.missing as u64, sum.missing.to_string()),
            Entry::maybe(is_whole.then_some(sum.flops), units::flops),
            Entry::maybe(is_whole.then_some(sum.seconds * 1e3), units::number),
            Entry::maybe(is_whole.then(|| sum.flops / sum.seconds / 1e9), units::number),
            Entry::maybe(sum.at_ceiling.filter(|_| is_whole).map(|best| best / sum.seconds), units::percent),
            Entry::words(&sum.record.id),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

fn count_of(record: &Record, path: &str) -> String {
    count(record, path).to_string()
}
