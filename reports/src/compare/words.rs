//! What may be said of a pair, in sentences.

use super::explain::{Explanation, SpanChange, UNEXPLAINED};
use super::metrics::{Better, Losses, Metric, Verdict};
use super::{Comparison, Pair};
use crate::evidence;
use crate::record::Verdict as ParityVerdict;
use crate::text::capital;
use crate::units;

/// A metric's subject and the words for more and less of it.
fn vocabulary(name: &str) -> (&'static str, &'static str, &'static str) {
    match name {
        "tokens_per_second" => ("B is", "faster", "slower"),
        "step_ms_p50" => ("B's median step is", "longer", "shorter"),
        "step_ms_p90" => ("B's p90 step is", "longer", "shorter"),
        "step_ms_p99" => ("B's p99 step is", "longer", "shorter"),
        "mfu" => ("B's MFU is", "higher", "lower"),
        "exposed_communication_ms" => ("B's exposed communication is", "longer", "shorter"),
        "peak_memory_bytes" => ("B needs", "more memory", "less memory"),
        "wire_bytes" => ("B moves", "more bytes on the wire", "fewer bytes on the wire"),
        _ => ("B's is", "higher", "lower"),
    }
}

/// What a table calls a metric.
pub fn title(name: &str) -> &str {
    match name {
        "tokens_per_second" => "tokens/s",
        "step_ms_p50" => "step p50",
        "step_ms_p90" => "step p90",
        "step_ms_p99" => "step p99",
        "mfu" => "MFU",
        "exposed_communication_ms" => "exposed communication",
        "peak_memory_bytes" => "peak memory",
        "wire_bytes" => "wire per step",
        other => other,
    }
}

/// A metric's value with its unit.
pub fn value(metric: &Metric, value: f64) -> String {
    match metric.unit {
        "bytes" if metric.name == "wire_bytes" => units::traffic(value),
        "bytes" => units::memory(value),
        "fraction" => units::percent(value),
        unit => format!("{} {unit}", units::number(value)),
    }
}

/// Percent without a sign, and with as many digits as the smallest of a sentence's numbers wants.
fn percent(fraction: f64, digits: usize) -> String {
    let percent = fraction * 100.0;
    if percent.is_finite() { format!("{:.*}", digits, percent) } else { units::NOTHING.to_string() }
}

fn signed(fraction: f64) -> String {
    let text = units::change(fraction);
    text.trim_end_matches(" %").to_string()
}

/// From this ratio on an interval is given as multiples.
const MANY: f64 = 10.0;

/// `-2.1 to +3.4 %`: an interval of ratios as changes.
pub fn changes(low: f64, high: f64) -> String {
    if high >= MANY {
        return format!("{} to {} times", units::number(low), units::number(high));
    }
    format!("{} to {} %", signed(low - 1.0), signed(high - 1.0))
}

/// The metric in words; `trials` of A and of B.
pub fn metric(metric: &Metric, trials: (usize, usize)) -> String {
    if let Some(reason) = &metric.reason {
        return format!("not compared: {reason}");
    }
    let limits = metric.low.zip(metric.high);
    match (metric.verdict, limits) {
        (Verdict::TooFewTrials, _) => {
            format!("too few trials to say ({} and {}; two on each side are needed)", trials.0, trials.1)
        }
        (Verdict::NoDifference, Some((low, high))) => {
            let far = (high - 1.0).max(1.0 - low);
            let caution = match far {
                far if far < 0.1 => String::new(),
                far if far < 9.0 => format!("; up to {} % is not excluded", percent(far, 0)),
                _ => "; the trials exclude next to nothing".to_string(),
            };
            let nothing = if high >= MANY { "1" } else { "0" };
            format!("no difference shown: the interval {} holds {nothing}{caution}", changes(low, high))
        }
        (Verdict::Same, _) => "the same in every trial".into(),
        _ => difference(metric, limits),
    }
}

/// The speed by turns in words.
pub fn by_turns(metric: &Metric, pair: &evidence::Comparison, equal: f64) -> String {
    let rounds = units::plural(pair.rounds, "round", "rounds");
    let limits = metric.low.zip(metric.high);
    let ratio = match (metric.ratio, limits) {
        (Some(ratio), Some((low, high))) => format!(": {} ({})", units::change(ratio - 1.0), changes(low, high)),
        (Some(ratio), None) => format!(": {}, and no limits yet", units::change(ratio - 1.0)),
        _ => String::new(),
    };
    match metric.verdict {
        Verdict::Equal => format!("A and B are equally fast within {} %{ratio}, over {rounds}", percent(equal, 0)),
        Verdict::Undecided => format!("undecided which is faster{ratio}, over {rounds}"),
        _ => format!("{}, over {rounds}", difference(metric, limits)),
    }
}

/// What a verdict is called in a table.
pub fn short(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::BBetter => "faster",
        Verdict::BWorse => "slower",
        Verdict::Equal => "equal",
        Verdict::Undecided => "undecided",
        Verdict::NoDifference => "no difference shown",
        Verdict::Same => "same",
        Verdict::TooFewTrials => "too few trials",
        Verdict::NotComparable => "not compared",
    }
}

/// `B is 12 % faster (8 to 16 %)`.
fn difference(metric: &Metric, limits: Option<(f64, f64)>) -> String {
    let (subject, more, less) = vocabulary(&metric.name);
    let Some(ratio) = metric.ratio else {
        let is_more = (metric.verdict == Verdict::BBetter) == (metric.better == Better::Higher);
        return format!("{subject} {} (there is no ratio to 0)", if is_more { more } else { less });
    };
    let exactly = if limits.is_none() { ", exactly" } else { "" };
    if ratio >= 2.0 {
        let range = limits.map_or(String::new(), |(low, high)| format!(" ({low:.2} to {high:.2})"));
        return format!("{subject} {more}: {ratio:.2} times A's{range}{exactly}");
    }
    let (word, change) = if ratio > 1.0 { (more, ratio - 1.0) } else { (less, 1.0 - ratio) };
    let range = limits.map(|(low, high)| if ratio > 1.0 { (low - 1.0, high - 1.0) } else { (1.0 - high, 1.0 - low) });
    let smallest = range.map_or(change, |(low, _)| low.abs().min(change));
    // Small numbers have a digit more; a claim never reads 0 %.
    let digits = if smallest < 0.000_95 { 2 } else { usize::from(smallest < 0.0995) };
    let range = range
        .map_or(String::new(), |(low, high)| format!(" ({} to {} %)", percent(low, digits), percent(high, digits)));
    format!("{subject} {} % {word}{range}{exactly}", percent(change, digits))
}

/// How the losses stand.
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
    for metric in &pair.metrics {
        let is_said = match metric.name.as_str() {
            "tokens_per_second" => true,
            "step_ms_p50" | "step_ms_p90" | "step_ms_p99" | "mfu" => false,
            _ => !matches!(metric.verdict, Verdict::NotComparable),
        };
        if !is_said {
            continue;
        }
        let between = match (metric.a, metric.b) {
            (Some(a), Some(b)) => format!(": {} in A, {} in B", value(metric, a), value(metric, b)),
            _ => String::new(),
        };
        let name = if metric.verdict.claims() { String::new() } else { format!("{}: ", title(&metric.name)) };
        items.push(format!("{name}{}{between}.", metric.words));
    }
    // The tail may move where the middle does not.
    let unlike_speed = |metric: &&Metric| metric.name.starts_with("step_ms_p9") && metric.verdict.claims();
    let speed_claims = pair.metric("tokens_per_second").is_some_and(|metric| metric.verdict.claims());
    if !speed_claims {
        items.extend(pair.metrics.iter().filter(unlike_speed).map(|metric| format!("{}.", metric.words)));
    }
    items.push(format!("{}.", capital(&losses(&pair.losses))));
    items
}

impl Verdict {
    /// Whether something is claimed.
    pub fn claims(self) -> bool {
        matches!(self, Verdict::BBetter | Verdict::BWorse)
    }
}

/// How many spans are named in a sentence.
const NAMED: usize = 4;
/// A span of a smaller share of the change is not named.
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
    let speeds: Vec<&Metric> = comparison.pairs.iter().filter_map(|pair| pair.metric("tokens_per_second")).collect();
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
    for (name, what) in
        [("tokens_per_second", "Speed"), ("peak_memory_bytes", "Peak memory"), ("wire_bytes", "Bytes on the wire")]
    {
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
