//! The tables of a comparison. Columns for machines hold the pair and whole ids, so that CSV tables can be joined.

use indexmap::IndexSet;

use super::explain::{Explanation, SpanChange, UNEXPLAINED};
use super::metric::{Metric, Verdict};
use super::{Comparison, Pair, main_unit, main_value, words};
use crate::document::{Column, Entry, Table, Tone};
use crate::environment::Difference;
use crate::units;

/// Differences of settings or of the environment.
pub fn differences(name: &str, first: &str, differences: &[Difference]) -> Table {
    let columns =
        vec![Column::words(first), Column::words("kind").for_machines(), Column::words("A"), Column::words("B")];
    let mut table = Table::new(name, columns);
    for difference in differences {
        table.row(vec![
            Entry::words(&difference.path),
            Entry::words(difference.aspect.name()),
            Entry::json(&difference.a),
            Entry::json(&difference.b),
        ]);
    }
    table
}

fn tone(verdict: Verdict) -> Tone {
    match verdict {
        Verdict::BBetter => Tone::Good,
        Verdict::BWorse | Verdict::NotComparable => Tone::Warning,
        _ => Tone::Plain,
    }
}

fn ratio(metric: &Metric) -> Entry {
    Entry::maybe(metric.ratio, |ratio| format!("{ratio:.3}"))
}

fn interval(metric: &Metric) -> Entry {
    let limits = metric.low.zip(metric.high);
    let numbers = |limit: f64| if limit < 100.0 { format!("{limit:.3}") } else { units::number(limit) };
    match (limits, metric.interval) {
        (Some((low, high)), _) => Entry::words(format!("{}–{}", numbers(low), numbers(high))),
        (None, Some("counted")) => Entry::words("exact"),
        _ => Entry::nothing(),
    }
}

/// One row for each pair, with its main metric.
pub fn pairs(comparison: &Comparison) -> Table {
    let unit = main_unit(&comparison.pairs);
    let names: IndexSet<String> =
        comparison.pairs.iter().filter_map(Pair::main_metric).map(|metric| metric.title().to_string()).collect();
    let names: Vec<String> = names.into_iter().collect();
    let mut columns = vec![
        Column::words("pair"),
        Column::numbers(format!("A {unit}").trim_end(), unit),
        Column::numbers(format!("B {unit}").trim_end(), unit),
        Column::numbers("B/A", ""),
        Column::words("95 % interval"),
        Column::numbers("low", "").for_machines(),
        Column::numbers("high", "").for_machines(),
        Column::words("verdict"),
        Column::numbers("memory B/A", ""),
        Column::numbers("wire B/A", ""),
        Column::words("trials").for_machines(),
        Column::words("A key").for_machines(),
        Column::words("B key").for_machines(),
        Column::words("A record ids").for_machines(),
        Column::words("B record ids").for_machines(),
    ];
    // Where all pairs are of train, the titles say it.
    let has_others = names.iter().any(|name| name != "tokens/s");
    if has_others {
        let column = Column::words("metric");
        columns.insert(1, if names.len() > 1 { column } else { column.for_machines() });
    }
    let steps = if names.iter().any(|name| name == "tokens/s") { " and steps" } else { "" };
    let mut table = Table::new("pairs", columns).caption(format!(
        "Medians over trials; the interval is of B/A of {}, over trials{steps}. Memory and wire of the largest rank.",
        if names.is_empty() { "speed".to_string() } else { units::list(&names) }
    ));
    for pair in &comparison.pairs {
        let speed = pair.main_metric();
        let number = |value: Option<f64>| Entry::maybe(value, units::number);
        let of = |name: &str| pair.metric(name).map_or_else(Entry::nothing, ratio);
        let mut row = vec![
            Entry::words(&pair.pair),
            main_value(speed, |speed| speed.a, unit),
            main_value(speed, |speed| speed.b, unit),
            speed.map_or_else(Entry::nothing, ratio),
            speed.map_or_else(Entry::nothing, interval),
            number(speed.and_then(|speed| speed.low)),
            number(speed.and_then(|speed| speed.high)),
            speed
                .map_or_else(Entry::nothing, |speed| Entry::words(speed.verdict.in_table()).toned(tone(speed.verdict))),
            of("peak_memory_bytes"),
            of("wire_bytes"),
            Entry::words(format!("{} and {}", pair.a.records.len(), pair.b.records.len())),
            Entry::words(&pair.a.key),
            Entry::words(&pair.b.key),
            Entry::words(pair.a.records.join(" ")),
            Entry::words(pair.b.records.join(" ")),
        ];
        if has_others {
            row.insert(1, speed.map_or_else(Entry::nothing, |speed| Entry::words(speed.title())));
        }
        table.row(row);
    }
    table
}

/// The metrics of a pair.
pub fn metrics(pair: &Pair) -> Table {
    let columns = vec![
        Column::words("metric"),
        Column::words("A"),
        Column::words("B"),
        Column::numbers("B/A", ""),
        Column::words("95 % interval"),
        Column::words("in words"),
        Column::numbers("A value", "").for_machines(),
        Column::numbers("B value", "").for_machines(),
        Column::words("unit").for_machines(),
        Column::numbers("low", "").for_machines(),
        Column::numbers("high", "").for_machines(),
        Column::words("verdict").for_machines(),
        Column::words("pair").for_machines(),
    ];
    let mut table = Table::new("metrics", columns).caption(
        "Medians over trials. The interval is of B/A over trials and steps; exact where every trial counts the same.",
    );
    for metric in &pair.metrics {
        let value =
            |value: Option<f64>| value.map_or_else(Entry::nothing, |value| Entry::words(metric.with_unit(value)));
        let verdict = serde_json::to_value(metric.verdict).unwrap_or_default();
        table.row(vec![
            Entry::words(metric.title()),
            value(metric.a),
            value(metric.b),
            ratio(metric),
            interval(metric),
            Entry::words(&metric.words).toned(tone(metric.verdict)),
            Entry::maybe(metric.a, units::number),
            Entry::maybe(metric.b, units::number),
            Entry::words(metric.unit),
            Entry::maybe(metric.low, units::number),
            Entry::maybe(metric.high, units::number),
            Entry::json(&verdict),
            Entry::words(&pair.pair),
        ]);
    }
    table.row(vec![
        Entry::words("loss parity"),
        Entry::words(pair.losses.a.words()),
        Entry::words(pair.losses.b.words()),
        Entry::nothing(),
        Entry::nothing(),
        Entry::words(words::losses(&pair.losses)),
    ]);
    table
}

/// Spans of the step: they add up to its change.
pub fn spans(pair: &Pair) -> Option<Table> {
    let Explanation { step, spans, .. } = &pair.explanation;
    let step = step.as_ref().filter(|_| !spans.is_empty())?;
    let columns = vec![
        Column::words("span"),
        Column::numbers("A", "ms"),
        Column::numbers("B", "ms"),
        Column::numbers("change", "ms"),
        Column::words("95 % interval"),
        Column::numbers("share of the change", "fraction"),
        Column::numbers("low", "ms").for_machines(),
        Column::numbers("high", "ms").for_machines(),
        Column::words("pair").for_machines(),
    ];
    let caption = "Time of a step, mean over trials and all timed steps, ms: the spans of the rank whose spans add up to most. \
                   Unexplained is what they leave of the mean step of the slowest rank.";
    let mut table = Table::new("spans", columns).caption(caption);
    let total = SpanChange { span: "mean step".into(), share: None, ..step.clone() };
    for span in spans.iter().chain([&total]) {
        let ms = |ms: f64| format!("{} ms", units::number(ms));
        let interval = span.low_ms.zip(span.high_ms);
        let interval = interval.filter(|_| span.span != UNEXPLAINED).map_or_else(Entry::nothing, |(low, high)| {
            Entry::words(format!("{} to {} ms", words::plus(low), words::plus(high)))
        });
        table.row(vec![
            Entry::words(&span.span),
            Entry::maybe(Some(span.a_ms), ms),
            Entry::maybe(Some(span.b_ms), ms),
            Entry::maybe(Some(span.change_ms), |ms| format!("{} ms", words::plus(ms))),
            interval,
            Entry::maybe(span.share, units::percent),
            Entry::maybe(span.low_ms, units::number),
            Entry::maybe(span.high_ms, units::number),
            Entry::words(&pair.pair),
        ]);
    }
    Some(table)
}

/// Collectives that changed.
pub fn communication(pair: &Pair) -> Option<Table> {
    let columns = ["calls", "wire", "time", "exposed"].into_iter().flat_map(|what| {
        let unit = match what {
            "calls" => "per step",
            "wire" => "bytes",
            _ => "ms",
        };
        ["A", "B"].map(|side| Column::numbers(format!("{what} {side}"), unit))
    });
    let columns = [Column::words("collective")].into_iter().chain(columns);
    let mut table = Table::new("communication", columns.chain([Column::words("pair").for_machines()]).collect())
        .caption("Collectives that changed: per step, bytes of the largest rank, times of the slowest.");
    for entry in &pair.explanation.communication {
        let ms = |ms: Option<f64>| Entry::maybe(ms, |ms| format!("{} ms", units::number(ms)));
        let mut row = vec![Entry::words(format!("{} on {}", entry.kind, entry.axis))];
        row.extend(entry.calls.map(|calls| Entry::maybe(Some(calls), units::quantity)));
        row.extend(entry.wire_bytes.map(|bytes| Entry::measured(Some(bytes), bytes.is_nan(), units::traffic)));
        row.extend(entry.ms.into_iter().chain(entry.exposed_ms).map(ms));
        row.push(Entry::words(&pair.pair));
        table.row(row);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Memory categories that changed.
pub fn memory(pair: &Pair) -> Option<Table> {
    let columns = vec![
        Column::words("category"),
        Column::numbers("A", "bytes"),
        Column::numbers("B", "bytes"),
        Column::words("change"),
        Column::words("pair").for_machines(),
    ];
    let mut table = Table::new("memory", columns).caption("Memory categories whose peak changed, of the largest rank.");
    for change in &pair.explanation.memory {
        table.row(vec![
            Entry::words(change.category),
            Entry::memory(Some(change.a_bytes)),
            Entry::memory(Some(change.b_bytes)),
            Entry::words(words::byte_change(change.a_bytes, change.b_bytes)),
            Entry::words(&pair.pair),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Operations that changed.
pub fn flops(pair: &Pair) -> Option<Table> {
    let columns = vec![
        Column::words("convention or term"),
        Column::numbers("A", "FLOP"),
        Column::numbers("B", "FLOP"),
        Column::words("pair").for_machines(),
    ];
    let mut table = Table::new("flops", columns).caption("Floating-point operations of a step that changed.");
    for change in &pair.explanation.flops {
        table.row(vec![
            Entry::words(&change.what),
            Entry::maybe(Some(change.a), units::flops),
            Entry::maybe(Some(change.b), units::flops),
            Entry::words(&pair.pair),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Trials in which warm-up or no steady part was found.
pub fn warm_up(pair: &Pair, short_id: &dyn Fn(&str) -> String) -> Option<Table> {
    let columns = vec![
        Column::words("side"),
        Column::words("record"),
        Column::words("record id").for_machines(),
        Column::numbers("timed steps", ""),
        Column::words("warm-up"),
        Column::numbers("discarded", ""),
        Column::numbers("tokens/s", "tokens/s"),
        Column::numbers("tokens/s of all steps", "tokens/s"),
        Column::words("pair").for_machines(),
    ];
    let mut table = Table::new("warm-up", columns);
    for trial in pair.warm_up.iter().filter(|trial| matches!(trial.steady, "after" | "never")) {
        let words = match trial.steady {
            "after" => format!("timed steps 1 to {}", trial.warm_up_steps),
            _ => "never steady".to_string(),
        };
        table.row(vec![
            Entry::words(trial.side.to_uppercase()),
            Entry::words(short_id(&trial.record)),
            Entry::words(&trial.record),
            Entry::whole(trial.timed_steps as u64, trial.timed_steps.to_string()),
            Entry::words(words),
            Entry::whole(trial.discarded as u64, trial.discarded.to_string()),
            Entry::maybe(trial.tokens_per_second, units::number),
            Entry::maybe(trial.tokens_per_second_of_all_steps, units::number),
            Entry::words(&pair.pair),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Cells that are not compared.
pub fn unpaired(comparison: &Comparison, short_id: &dyn Fn(&str) -> String) -> Table {
    let columns = vec![
        Column::words("cell"),
        Column::words("side"),
        Column::words("why it is not compared"),
        Column::words("records"),
        Column::words("key").for_machines(),
    ];
    let mut table = Table::new("unpaired", columns);
    for cell in &comparison.unpaired {
        let ids: Vec<String> = cell.records.iter().map(|id| short_id(id)).collect();
        let side = if cell.side == "both" { "A and B".to_string() } else { cell.side.to_uppercase() };
        table.row(vec![
            Entry::words(&cell.label),
            Entry::words(side),
            Entry::words(&cell.reason),
            Entry::words(ids.join(" ")),
            Entry::words(&cell.key),
        ]);
    }
    table
}
