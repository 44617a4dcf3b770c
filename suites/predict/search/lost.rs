//! Why one way is slower than another: where its step is longer, in shares of the faster one's step.

use crate::Timing;
use zbench_reports::units;

/// Differences that are named at most.
const NAMED: usize = 3;
/// A smaller share of the step explains nothing.
const LEAST: f64 = 0.0005;

/// How much of the first one's step the second one spends more (above 0) or less in each span, the largest difference first.
pub fn differences(first: &Timing, second: &Timing) -> Vec<(String, f64)> {
    let of = |timing: &Timing, name: &str| timing.spans.get(name).copied().unwrap_or(0.0);
    let mut names: Vec<&str> = first.spans.names().chain(second.spans.names()).collect();
    names.sort_unstable();
    names.dedup();
    let share = |name: &str| (of(second, name) - of(first, name)) / first.step_ms;
    let mut list: Vec<(String, f64)> = names.into_iter().map(|name| (name.to_string(), share(name))).collect();
    list.retain(|(_, share)| share.is_finite());
    list.sort_by(|one, other| other.1.abs().total_cmp(&one.1.abs()));
    list
}

/// The same in words: "bubble +9.0 %, tensor collectives -3.0 %", and what of the difference they leave.
pub fn words(differences: &[(String, f64)]) -> String {
    let large: Vec<&(String, f64)> = differences.iter().filter(|(_, share)| share.abs() >= LEAST).collect();
    let mut words: Vec<String> =
        large.iter().take(NAMED).map(|(name, share)| format!("{} {}", called(name), units::change(*share))).collect();
    let rest: f64 = large.iter().skip(NAMED).map(|(_, share)| share).sum();
    if rest.abs() >= LEAST {
        words.push(format!("all else {}", units::change(rest)));
    }
    if words.is_empty() { "no span differs by 0.05 % of the step".into() } else { words.join(", ") }
}

/// A span as people call it.
fn called(span: &str) -> String {
    match span {
        "recompute" => "recomputation".into(),
        "exposed_tensor" => "tensor collectives".into(),
        "exposed_data" => "data collectives".into(),
        "exposed_pipeline" => "messages of stages".into(),
        "exposed_context" => "context exchange".into(),
        "exposed_expert" => "expert exchange".into(),
        other => other.replace('_', " "),
    }
}
