//! The gate in words: the answer, a sentence for each row, and what stands behind it.

use super::report::{CellReport, Class, LeftOut, Ratio, Report, Row};
use super::verdict::Verdict;
use crate::record::others;
use crate::text::capital;
use crate::units;

/// The answer in one sentence.
pub fn answer(report: &Report) -> String {
    let of = |verdict: Verdict| report.rows().filter(|row| row.verdict == verdict).count();
    let counts: Vec<String> = Verdict::ALL
        .into_iter()
        .rev()
        .filter(|verdict| of(*verdict) > 0)
        .map(|verdict| format!("{} {}", of(verdict), verdict.words()))
        .collect();
    let counts = if counts.is_empty() { "no metric".into() } else { units::list(&counts) };
    format!(
        "{}: {counts}, in {} s (exit code {}).",
        capital(report.headline()),
        units::number(report.seconds),
        report.exit_code
    )
}

/// `tokens_per_second: regression: 5.1 % worse, confirmed by 1 rerun; ratio 0.951 [0.948, 0.956], band 0.976 to 1.025`.
pub fn sentence(row: &Row) -> String {
    let mut parts = vec![format!("{}: {}", row.metric, row.verdict.words())];
    if !row.words.is_empty() {
        parts.push(format!(": {}", row.words));
    }
    if let Some(ratio) = &row.ratio {
        parts.push(format!("; candidate / baseline {}", interval(ratio)));
    }
    if let Some(band) = row.band.filter(|_| row.ratio.is_some()) {
        parts.push(format!(", band {}", limits(&band)));
    }
    if row.class == Class::Noisy && row.used > 0 {
        parts.push(format!(", {}", units::plural(row.used, "sample", "samples")));
    }
    parts.concat()
}

/// What stands behind a row: samples, reruns, noise floor, machine, command.
pub fn details(report: &Report, row: &Row) -> Vec<String> {
    let mut lines = vec![sentence(row)];
    for (place, set) in row.sets.iter().enumerate() {
        let ratio = set.ratio.map_or("no ratio".to_string(), |ratio| interval(&ratio));
        lines.push(format!(
            "set {}: {} from {}, ratio {ratio}",
            place + 1,
            set.verdict.words(),
            units::plural(set.used, "sample", "samples")
        ));
    }
    if let Some(floor) = row.noise_floor {
        lines.push(format!("noise floor: the baseline against itself strays by {}", units::percent(floor)));
    }
    if let Some(cell) = report.cells.iter().find(|cell| cell.key == row.key && cell.cell == row.cell) {
        lines.push(samples(cell));
    }
    lines.extend(facts(report).into_iter().map(|(name, value)| format!("{name}: {value}")));
    lines
}

/// `0.951 [0.948, 0.956]`; `0.951 (no interval)` where the samples are too few for one.
pub fn interval(ratio: &Ratio) -> String {
    let mid = share(ratio.mid);
    match (ratio.low, ratio.high) {
        (Some(low), Some(high)) if low == ratio.mid && high == ratio.mid => mid,
        (Some(low), Some(high)) => format!("{mid} [{}, {}]", share(low), share(high)),
        _ => format!("{mid} (no interval)"),
    }
}

/// `0.976 to 1.025`; one number where nothing may move.
pub fn limits(band: &Ratio) -> String {
    match (band.low, band.high) {
        (Some(low), Some(high)) if low == high => "equal".into(),
        (low, high) => {
            let limit = |value: Option<f64>| value.map_or(units::NOTHING.to_string(), share);
            format!("{} to {}", limit(low), limit(high))
        }
    }
}

fn share(value: f64) -> String {
    format!("{value:.4}")
}

/// How many trials there were, and which did not count.
pub fn samples(cell: &CellReport) -> String {
    let out: Vec<String> =
        cell.left_out.iter().map(|LeftOut { side, why, count }| format!("{count} of the {side} ({why})")).collect();
    let out = if out.is_empty() { "none left out".into() } else { format!("left out: {}", units::list(&out)) };
    let trials = units::plural(cell.baseline_trials, "trial", "trials");
    let busy = match &cell.busy[..] {
        [] => String::new(),
        busy => format!("; the cores were used by {}", others::names(busy)),
    };
    format!("{trials} of the baseline and {} of the candidate; {out}{busy}", cell.candidate_trials)
}

/// What is true of the whole gate, by name.
pub fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let of =
        |path: &str| report.environment.get(path).map(|value| value.as_str().map_or(value.to_string(), str::to_string));
    let machine: Vec<String> = ["cpu", "cores", "os", "kernel", "host"]
        .into_iter()
        .filter_map(|name| Some(format!("{name} {}", of(name)?)))
        .collect();
    let mut facts = vec![
        ("baseline", report.baseline.clone()),
        ("candidate", report.candidate.clone()),
        ("how", report.how.clone()),
        ("machine", machine.join(", ")),
        ("rules", report.rules.clone()),
        ("command", report.command.clone()),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    facts
}

/// A value with its unit, which is in the metric's name.
pub fn value(row: &Row, value: f64) -> String {
    match row.metric.as_str() {
        "peak_memory_bytes" | "wire_bytes" => format!("{} B", units::quantity(value)),
        "peak_rss_bytes" => units::memory(value),
        "tokens_per_second" => format!("{} tokens/s", units::number(value)),
        "loss" => format!("{value:.6}"),
        name if name.ends_with("_gb_s") => format!("{} GB/s", units::number(value)),
        name if name.ends_with("_us") => format!("{} us", units::number(value)),
        name if name.starts_with("step_ms") || name.ends_with("_ms") => format!("{} ms", units::number(value)),
        "mfu" => units::percent(value),
        _ => units::number(value),
    }
}
