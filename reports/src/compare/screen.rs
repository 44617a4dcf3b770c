//! A comparison on one screen: the answer, what differs, the numbers, what explains them.

use indexmap::IndexMap;

use super::metric::Metric;
use super::{Comparison, Pair, Summary, main_unit, main_value, words};
use crate::document::{Column, Document, Entry, Table};
use crate::environment::{Aspect, Difference};
use crate::screen::{Room, Screen, fitting};
use crate::units;

/// The most and the fewest rows of the table.
const ROWS: (usize, usize) = (24, 3);
/// At most so many differences are listed.
const DIFFERENCES: usize = 5;

/// The short form of a comparison, for this room.
pub fn short(comparison: &Comparison, room: Room) -> Document {
    let mut document = Document::new(format!("{} against {}", comparison.b.selector, comparison.a.selector));
    document.screen = Some(fitting(room, ROWS.0, ROWS.1, |rows| compose(comparison, rows)));
    document
}

fn compose(comparison: &Comparison, rows: usize) -> Screen {
    let mut screen = Screen::default();
    let several = || words::summary(comparison).join(" ");
    let answer = match &comparison.pairs[..] {
        [] => "No two cells can be compared; the reasons are below.".to_string(),
        [only] => words::answer(only).join(" "),
        _ => several(),
    };
    screen.said("ANSWER", answer, 7);
    screen.said("A", side(&comparison.a), 2);
    screen.said("B", side(&comparison.b), 2);
    let hardware = comparison.environment.iter().any(|difference| difference.aspect == Aspect::Hardware);
    let warning = if hardware { "The hardware differs, so that times compare machines. " } else { "" };
    screen.said("DIFFERENT", format!("{warning}{}", differing(comparison)), 3);
    match &comparison.pairs[..] {
        [] => {}
        [only] => screen.table(metrics(only)),
        pairs => {
            let (table, more) = table(pairs, rows);
            screen.table(table);
            screen.said("", more, 1);
        }
    }
    if let [only] = &comparison.pairs[..] {
        screen.said("EXPLAINED", words::explanation(only).join(" "), 6);
        screen.said("NOTES", only.notes.join(" "), 3);
    }
    screen.said("NOT COMPARED", unpaired(comparison), 3);
    screen.said("MORE", "the same command with --full has every table; --format json an object for each pair.", 1);
    screen
}

fn side(side: &Summary) -> String {
    let left_out = match side.left_out.len() {
        0 => String::new(),
        count => {
            let mut reasons: Vec<&str> = side.left_out.iter().map(|one| one.reason.as_str()).collect();
            reasons.sort_unstable();
            reasons.dedup();
            let more = if reasons.len() > 2 { ", …" } else { "" };
            reasons.truncate(2);
            format!("; {count} left out ({}{more})", reasons.join(", "))
        }
    };
    format!(
        "{}: {} of {}, {} used{left_out}.",
        side.selector,
        units::plural(side.records, "record", "records"),
        units::plural(side.cells, "cell", "cells"),
        units::plural(side.used, "trial", "trials"),
    )
}

/// Settings that differ in every pair, then places.
fn differing(comparison: &Comparison) -> String {
    let value = |value: &serde_json::Value| Entry::json(value).text;
    let item =
        |difference: &Difference| format!("{} {} to {}", difference.path, value(&difference.a), value(&difference.b));
    let stable = comparison.environment.iter().filter(|difference| difference.aspect != Aspect::State);
    let all: Vec<&Difference> = comparison.configuration.iter().chain(stable).collect();
    let own = comparison.pairs.iter().any(|pair| pair.configuration.len() > comparison.configuration.len());
    let mut items: Vec<String> = all.iter().take(DIFFERENCES).map(|difference| item(difference)).collect();
    if all.len() > items.len() {
        items.push(format!("and {} more", all.len() - items.len()));
    }
    if own {
        items.push("each pair has differences of its own".to_string());
    }
    match items.is_empty() {
        true if comparison.pairs.is_empty() => String::new(),
        true => "nothing: the same settings in the same environment.".to_string(),
        false => format!("{}.", items.join("; ")),
    }
}

fn ratio(metric: &Metric) -> Entry {
    let limits = match (metric.low.zip(metric.high), metric.interval) {
        (Some((low, high)), _) if high < 100.0 => format!(" ({low:.3}-{high:.3})"),
        (Some(_), _) => " (unbounded)".to_string(),
        (None, Some("counted")) => " exactly".to_string(),
        _ => String::new(),
    };
    Entry::maybe(metric.ratio, |ratio| format!("{ratio:.3}{limits}"))
}

fn metrics(pair: &Pair) -> Table {
    let columns =
        vec![Column::words("metric"), Column::numbers("A", ""), Column::numbers("B", ""), Column::numbers("B/A", "")];
    let mut table = Table::new("answer", columns);
    for metric in pair.metrics.iter().take(10) {
        let value = |value: Option<f64>| Entry::maybe(value, |value| metric.with_unit(value));
        table.row(vec![Entry::words(metric.title()), value(metric.a), value(metric.b), ratio(metric)]);
    }
    table
}

/// The pairs, the largest change of speed first.
fn table(pairs: &[Pair], rows: usize) -> (Table, String) {
    let unit = main_unit(pairs);
    let columns = vec![
        Column::words("pair"),
        Column::numbers(format!("A {unit}").trim_end(), unit),
        Column::numbers(format!("B {unit}").trim_end(), unit),
        Column::numbers("B/A", ""),
        Column::words("verdict"),
        Column::numbers("memory B/A", ""),
        Column::numbers("wire B/A", ""),
    ];
    let mut table = Table::new("answer", columns);
    let mut order: Vec<&Pair> = pairs.iter().collect();
    order.sort_by(|a, b| b.speed_change().total_cmp(&a.speed_change()));
    for pair in order.iter().take(rows) {
        let speed = pair.main_metric();
        let of = |name: &str| {
            let ratio = pair.metric(name).and_then(|metric| metric.ratio);
            Entry::maybe(ratio, |ratio| format!("{ratio:.3}"))
        };
        table.row(vec![
            Entry::words(&pair.pair),
            main_value(speed, |speed| speed.a, unit),
            main_value(speed, |speed| speed.b, unit),
            speed.map_or_else(Entry::nothing, ratio),
            speed.map_or_else(Entry::nothing, |speed| Entry::words(speed.verdict.in_table())),
            of("peak_memory_bytes"),
            of("wire_bytes"),
        ]);
    }
    let more = match pairs.len() - table.rows.len() {
        0 => String::new(),
        count => format!("{count} more, whose speeds differ less; --full has all {}.", pairs.len()),
    };
    (table, more)
}

fn unpaired(comparison: &Comparison) -> String {
    let mut reasons: IndexMap<&str, Vec<&str>> = IndexMap::new();
    for cell in &comparison.unpaired {
        reasons.entry(&cell.reason).or_default().push(&cell.label);
    }
    let item = |(reason, cells): (&&str, &Vec<&str>)| {
        let more = if cells.len() > 1 { format!("; and {} more", cells.len() - 1) } else { String::new() };
        format!("{} ({}{more}): {reason}.", units::plural(cells.len(), "cell", "cells"), cells[0])
    };
    let mut items: Vec<String> = reasons.iter().take(2).map(item).collect();
    if reasons.len() > 2 {
        items.push(format!("{} other reasons.", reasons.len() - 2));
    }
    items.join(" ")
}
