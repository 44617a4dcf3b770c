//! The speed of cells: tokens per second, model FLOPs utilisation, and the distribution of step times.

use super::{NAMED, chosen, figure, id, tone};
use crate::document::Tone;
use crate::gather::extent;
use crate::grid::{Cell, Grid};
use crate::phrase::names_or_count;
use crate::plot::{Axis, Figure, IntervalRow, Intervals, Plot, SpreadRow, Spreads, Unit, drawable};
use crate::record::Record;
use crate::stats::{self, Interval, percentile_of_sorted};
use crate::units;

/// Single values that are drawn in all rows of a plot together.
const VALUES: usize = 640;

fn row(cell: &Cell, value: Interval) -> Option<IntervalRow> {
    // One trial has no limits, so its mark has no line.
    let (low, high) = if value.is_bounded() { (value.low, value.high) } else { (value.mid, value.mid) };
    Some(IntervalRow {
        label: cell.label.clone(),
        low: drawable(low)?,
        mid: drawable(value.mid)?,
        high: drawable(high)?,
        tone: tone(cell),
        record: id(cell),
    })
}

/// The meaning of intervals, and of hollow and crossed-out marks.
fn how_to_read(rows: &[IntervalRow]) -> String {
    let mut text = " Lines are 95 % intervals over trials; one trial has none.".to_string();
    if rows.iter().any(|row| row.tone == Tone::Warning) {
        text += " Hollow: not ranked, for the reason in the table.";
    }
    if rows.iter().any(|row| row.tone == Tone::Struck) {
        text += " Crossed out: loss parity failed, so the speed does not count.";
    }
    text
}

/// Tokens per second by cell.
pub fn tokens_per_second(grid: &Grid) -> Option<Figure> {
    let (cells, selection) = chosen(grid, |cell| cell.speed.is_some());
    let rows: Vec<IntervalRow> = cells.iter().filter_map(|cell| row(cell, cell.speed?)).collect();
    let first = rows.first()?;
    let said = match rows.len() {
        1 => format!("{}: {} tokens/s.", first.label, units::number(first.mid)),
        count => {
            let is_first = |cell: &&Cell| cell.place.is_some_and(|place| place.rank == 1);
            let fastest: Vec<&str> = grid.ranked().filter(is_first).map(|cell| cell.label.as_str()).collect();
            let who = match &fastest[..] {
                [] => "No cell is ranked".to_string(),
                [only] => format!("Fastest: {only}"),
                several => format!("May be the fastest: {}", names_or_count(several, NAMED)),
            };
            let (low, high) = extent(rows.iter().map(|row| row.mid))?;
            let [low, high] = [low, high].map(units::number);
            format!("{who}; medians of {count} cells go from {low} to {high} tokens/s.")
        }
    };
    let caption =
        format!("{said} Tokens of the global batch per second, all ranks together.{}{selection}", how_to_read(&rows));
    let plot =
        Plot::Intervals(Intervals { axis: Axis::linear("tokens per second, all ranks", Unit::TokensPerSecond), rows });
    Some(figure("speed", "Tokens per second", caption, plot, &cells))
}

/// Model FLOPs utilisation by cell, with the interval that its step times give.
pub fn mfu(grid: &Grid) -> Option<Figure> {
    let has =
        |cell: &Cell| cell.speed.is_some() && cell.used.iter().any(|record| record.metrics.number("mfu").is_some());
    let (cells, selection) = chosen(grid, has);
    let rows: Vec<IntervalRow> = cells.iter().filter_map(|cell| row(cell, utilisation(cell)?)).collect();
    let best = rows.iter().max_by(|a, b| a.mid.total_cmp(&b.mid))?;
    let on_cpu = cells.iter().all(|cell| cell.record().setting("hardware.device").is_none_or(|device| device == "cpu"));
    let peak = match on_cpu {
        true => "the peak of the cores at the compute type, measured beside the cell",
        false => "the peak that the record states",
    };
    let above = rows.iter().filter(|row| row.mid > 1.0).count();
    let impossible = match above {
        0 => String::new(),
        count => format!(
            " {} above 100 %: the peak or the operations are wrong there.",
            units::plural(count, "cell is", "cells are")
        ),
    };
    let caption = format!(
        "Highest: {} with {}.{impossible} MFU: model FLOPs of a step (exact matrix products, the causal half of attention, nothing for \
         recomputation) over step time and {peak}; docs/flops.md has the other conventions, and the table of cells PaLM's and \
         HFU beside it.{}{selection}",
        best.label,
        units::percent(best.mid),
        how_to_read(&rows)
    );
    let plot = Plot::Intervals(Intervals { axis: Axis::linear("model FLOPs utilisation", Unit::Fraction), rows });
    Some(figure("mfu", "Model FLOPs utilisation", caption, plot, &cells))
}

/// A trial states its mean. Its step times then give the work of a step, and the interval is made as that of the speed.
fn utilisation(cell: &Cell) -> Option<Interval> {
    if cell.used.iter().any(|record| record.taken_turns().is_some()) {
        // Generations are not independent trials: the speed of the machine differs between them.
        return cell.metric("mfu").map(|mid| Interval { low: 0.0, mid, high: f64::INFINITY });
    }
    let trial = |record: &&Record| {
        let mfu = record.metrics.number("mfu")?;
        let times: Vec<f64> = record.timed_steps().map(|step| step.ms).collect();
        Some(match stats::mean(&times) {
            Some(mean) => times.iter().map(|ms| (mfu * mean, *ms)).collect(),
            None => vec![(mfu, 1.0)],
        })
    };
    stats::rate(&cell.used.iter().filter_map(trial).collect::<Vec<_>>())
}

/// The distribution of the times of timed steps.
pub fn spread(grid: &Grid) -> Option<Figure> {
    let times = |cell: &Cell| -> Vec<f64> {
        let all = cell.used.iter().flat_map(|record| record.timed_steps()).filter_map(|step| drawable(step.ms));
        let mut times: Vec<f64> = all.collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let has_some = |cell: &Cell| cell.used.iter().flat_map(|record| record.timed_steps()).nth(4).is_some();
    let (cells, selection) = chosen(grid, has_some);
    let each = (VALUES / cells.len().max(1)).clamp(20, 200);
    let mut thinned = false;
    let mut rows = Vec::new();
    for cell in &cells {
        let times = times(cell);
        if times.is_empty() {
            continue;
        }
        thinned |= times.len() > each;
        rows.push(SpreadRow {
            label: cell.label.clone(),
            percentiles: [5.0, 25.0, 50.0, 75.0, 95.0]
                .map(|percent| percentile_of_sorted(&times, percent).unwrap_or(f64::NAN)),
            count: times.len(),
            values: thin(&times, each),
            record: id(cell),
        });
    }
    let width = |row: &&SpreadRow| row.percentiles[4] / row.percentiles[0].max(f64::MIN_POSITIVE);
    let widest = rows.iter().max_by(|a, b| width(a).total_cmp(&width(b)))?;
    let drawn = match thinned {
        true => format!(
            " Of a row with more than {each} steps, {each} are drawn: equally far apart in the order of their times, ends included."
        ),
        false => String::new(),
    };
    let caption = format!(
        "Time of each timed step of the trials that are used, of the slowest rank. Widest: {}, where the step of percentile 95 takes {:.1} times \
         that of percentile 5 ({} against {} ms).{drawn}{selection}",
        widest.label,
        width(&widest),
        units::number(widest.percentiles[4]),
        units::number(widest.percentiles[0]),
    );
    let plot = Plot::Spreads(Spreads { axis: Axis::linear("time of a step", Unit::Milliseconds), rows });
    Some(figure("steps", "How step times are spread", caption, plot, &cells))
}

/// At most so many of these values, at equal distances in their order, the first and the last among them.
fn thin(sorted: &[f64], most: usize) -> Vec<f64> {
    match sorted.len() <= most || most < 2 {
        true => sorted.to_vec(),
        false => (0..most).map(|place| sorted[place * (sorted.len() - 1) / (most - 1)]).collect(),
    }
}
