//! A comparison in sentences.

use indexmap::IndexSet;

use super::explain::{Explanation, SpanChange, UNEXPLAINED};
use super::metric::{Metric, Verdict, percent};
use super::metrics::Losses;
use super::{Comparison, Pair};
use crate::record::Verdict as ParityVerdict;
use crate::text::capital;
use crate::units;

/// The comparison of the losses.
pub fn losses(losses: &Losses) -> String {
    let between = match (&losses.reason, losses.identical, losses.max_relative_difference) {
        (Some(reason), _, _) => format!("losses not compared: {reason}"),
        (None, true, _) => format!("losses equal to the bit over {}", units::plural(losses.steps, "step", "steps")),
        (None, false, Some(largest)) => format!(
            "losses differ by {} at most (relative, over {})",
            units::number(largest),
            units::plural(losses.steps, "step", "steps")
        ),
        (None, false, None) => "losses differ beyond any number".to_string(),
    };
    let failed: Vec<&str> = [("A", losses.a), ("B", losses.b)]
        .into_iter()
        .filter(|(_, verdict)| *verdict == ParityVerdict::Failed)
        .map(|(side, _)| side)
        .collect();
    match failed[..] {
        [] => between,
        [one] => format!("{one} FAILS loss parity with its reference; {between}"),
        _ => format!("A and B FAIL loss parity with their references; {between}"),
    }
}

/// The answer for one pair: speed, then what else differs.
pub fn answer(pair: &Pair) -> Vec<String> {
    let mut items = Vec::new();
    let main = pair.main_metric();
    for metric in &pair.metrics {
        let is_shown = match metric.name.as_str() {
            "step_ms_p50" | "step_ms_p90" | "step_ms_p99" | "mfu" => false,
            _ => metric.verdict != Verdict::NotComparable || main.is_some_and(|main| main.name == metric.name),
        };
        if !is_shown {
            continue;
        }
        let between = match (metric.a, metric.b) {
            (Some(a), Some(b)) => format!(": {} in A, {} in B", metric.with_unit(a), metric.with_unit(b)),
            _ => String::new(),
        };
        let name = if metric.verdict.claims() { String::new() } else { format!("{}: ", metric.title()) };
        items.push(format!("{name}{}{between}.", metric.words));
    }
    // The tail may change where the median does not.
    let unlike_speed = |metric: &&Metric| metric.name.starts_with("step_ms_p9") && metric.verdict.claims();
    let speed_claims = pair.metric("tokens_per_second").is_some_and(|metric| metric.verdict.claims());
    if !speed_claims {
        items.extend(pair.metrics.iter().filter(unlike_speed).map(|metric| format!("{}.", metric.words)));
    }
    items.push(format!("{}.", capital(&losses(&pair.losses))));
    items
}

/// A sentence names at most so many spans.
const NAMED: usize = 4;
/// The smallest share of the change for which a span is named.
const WORTH_NAMING: f64 = 0.05;

/// Where the change of the step comes from, in words.
pub fn explanation(pair: &Pair) -> Vec<String> {
    let explanation = &pair.explanation;
    let mut sentences = Vec::new();
    if let Some(step) = &explanation.step {
        let discards = pair.warm_up.iter().any(|trial| trial.discarded > 0);
        let caution =
            if discards { " Records state spans over all timed steps, so warm-up is in these times." } else { "" };
        sentences.push(of_step(step, explanation) + caution);
    }
    if !explanation.communication.is_empty() {
        let entry = |entry: &super::CommunicationChange| {
            let mut parts = Vec::new();
            let [calls_a, calls_b] = entry.calls;
            if calls_a != calls_b {
                parts.push(format!("{} to {} calls", units::quantity(calls_a), units::quantity(calls_b)));
            }
            let [wire_a, wire_b] = entry.wire_bytes;
            if wire_a != wire_b && (wire_a - wire_b).is_finite() {
                parts.push(format!("{} to {} on the wire", units::traffic(wire_a), units::traffic(wire_b)));
            }
            if let [Some(ms_a), Some(ms_b)] = entry.ms {
                parts.push(format!("{} to {} ms", units::number(ms_a), units::number(ms_b)));
            }
            format!("{} on {} goes from {}", entry.kind, entry.axis, units::list(&parts))
        };
        let entries: Vec<String> = explanation.communication.iter().take(NAMED).map(entry).collect();
        sentences.push(format!("Communication in a step: {}.", entries.join("; ")));
    }
    if !explanation.memory.is_empty() {
        let entry = |change: &super::BytesChange| {
            let change_text = byte_change(change.a_bytes, change.b_bytes);
            format!("{} {change_text}", change.category)
        };
        let entries: Vec<String> = explanation.memory.iter().take(NAMED).map(entry).collect();
        sentences.push(format!("Peak memory by category: {}.", units::list(&entries)));
    }
    sentences
}

/// `+24.0 MiB`.
pub fn byte_change(a: u64, b: u64) -> String {
    format!("{}{}", if b >= a { "+" } else { "-" }, units::memory(a.abs_diff(b) as f64))
}

fn of_step(step: &SpanChange, explanation: &Explanation) -> String {
    let scaled = match explanation.per_tokens_of_a {
        Some(factor) => format!(
            " B's steps have {} times the tokens of A's; its times are of as many tokens as A's steps have.",
            units::number(1.0 / factor)
        ),
        None => String::new(),
    };
    let interval = match (step.low_ms, step.high_ms) {
        (Some(low), Some(high)) => format!(" ({} to {} ms)", plus(low), plus(high)),
        _ => String::new(),
    };
    if !step.is_shown() {
        let why =
            if interval.is_empty() { "with one trial on a side it may be noise" } else { "no change of it is shown" };
        return format!(
            "The mean step goes from {} to {} ms, {} ms{interval}: {why}, so that there is nothing to explain.{scaled}",
            units::number(step.a_ms),
            units::number(step.b_ms),
            plus(step.change_ms),
        );
    }
    let is_named = |span: &&SpanChange| {
        span.span != UNEXPLAINED && span.is_shown() && span.share.is_some_and(|share| share.abs() >= WORTH_NAMING)
    };
    let part = |span: &SpanChange| {
        let share = span.share.map_or(String::new(), |share| format!(" ({} %)", percent(share, 0)));
        format!("{} {} ms{share}", span.span, plus(span.change_ms))
    };
    let named: Vec<String> = explanation.spans.iter().filter(is_named).take(NAMED).map(part).collect();
    let rest = explanation.spans.iter().find(|span| span.span == UNEXPLAINED);
    let is_nothing = |span: &SpanChange| span.share.is_some_and(|share| share.abs() < 0.005);
    let rest = rest.map(|rest| if is_nothing(rest) { String::new() } else { format!("; {}", part(rest)) });
    let parts = match (named.is_empty(), rest) {
        (_, None) => "The records hold no spans that would say where it comes from.".to_string(),
        (true, Some(_)) => "No single span's change stands out from the noise between trials.".to_string(),
        (false, Some(rest)) => format!("Of that: {}{rest}.", named.join(", ")),
    };
    format!(
        "B's mean step is {} ms {} than A's{interval}. {parts}{scaled}",
        units::number(step.change_ms.abs()),
        if step.change_ms < 0.0 { "shorter" } else { "longer" },
    )
}

/// A number with its sign.
pub fn plus(value: f64) -> String {
    let text = units::number(value);
    if value > 0.0 { format!("+{text}") } else { text }
}

/// The answer for several pairs.
pub fn summary(comparison: &Comparison) -> Vec<String> {
    let speeds: Vec<&Metric> = comparison.pairs.iter().filter_map(Pair::main_metric).collect();
    let count = |verdict: Verdict| speeds.iter().filter(|metric| metric.verdict == verdict).count();
    let mut items = Vec::new();
    let (faster, slower) = (count(Verdict::BBetter), count(Verdict::BWorse));
    let mut parts = vec![format!("B is faster in {faster} and slower in {slower}")];
    for (verdict, words) in [
        (Verdict::Equal, "they are equal in"),
        (Verdict::Undecided, "it is undecided in"),
        (Verdict::NoDifference, "no difference is shown in"),
        (Verdict::TooFewTrials, "there are too few trials to say in"),
        (Verdict::NotComparable, "speed is not compared in"),
    ] {
        if count(verdict) > 0 {
            parts.push(format!("{words} {}", count(verdict)));
        }
    }
    if speeds.len() < comparison.pairs.len() {
        parts.push(format!("no speed is stated in {}", comparison.pairs.len() - speeds.len()));
    }
    items.push(format!("Of {} pairs, {}.", comparison.pairs.len(), parts.join("; ")));
    let by_trials = || speeds.iter().filter(|metric| metric.interval != Some("turns"));
    let unjudged = |metric: &&&&Metric| matches!(metric.verdict, Verdict::TooFewTrials | Verdict::NotComparable);
    let judged = by_trials().filter(|metric| !unjudged(&metric)).count();
    if judged > 1 {
        items.push(format!(
            "Each interval is one of 95 %: were A and B equal in all, about {:.1} of {judged} would be called different by \
             chance.",
            0.05 * judged as f64
        ));
    }
    let mut names: IndexSet<&str> = speeds.iter().map(|metric| metric.name.as_str()).collect();
    names.extend(["peak_memory_bytes", "wire_bytes"]);
    for name in names {
        let what = match name {
            "tokens_per_second" => "Speed",
            "peak_memory_bytes" => "Peak memory",
            "wire_bytes" => "Bytes on the wire",
            other => other,
        };
        let compared = comparison.pairs.iter().filter_map(|pair| pair.metric(name));
        let compared = compared.filter(|metric| metric.verdict != Verdict::TooFewTrials);
        let ratios: Vec<f64> = compared.filter_map(|metric| metric.ratio).filter(|ratio| *ratio > 0.0).collect();
        let (Some(least), Some(most)) =
            (ratios.iter().copied().reduce(f64::min), ratios.iter().copied().reduce(f64::max))
        else {
            continue;
        };
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        items.push(format!("{what}, B/A: {mean:.3} (geometric mean), {least:.3} to {most:.3}."));
    }
    items
}
