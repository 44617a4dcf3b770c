//! The numbers of a figure as a table.

use super::{Figure, Intervals, Lines, Plot, Scatter, Spreads, Stacks, Timelines, Waterfalls, timelines};
use crate::table::{Entry, Table};

impl Figure {
    /// The numbers that are drawn, one row for each mark; the table's name is that of the figure.
    pub fn data(&self) -> Table {
        let mut table = match &self.plot {
            Plot::Intervals(plot) => intervals(plot),
            Plot::Stacks(plot) => stacks(plot),
            Plot::Waterfalls(plot) => waterfalls(plot),
            Plot::Lines(plot) => lines(plot),
            Plot::Scatter(plot) => scatter(plot),
            Plot::Spreads(plot) => spreads(plot),
            Plot::Timelines(plot) => blocks(plot),
        };
        table.name = format!("figure {}", self.name);
        table.caption = self.caption.clone();
        table
    }
}

fn number(value: f64) -> Entry {
    Entry::maybe(Some(value), crate::units::number)
}

fn intervals(plot: &Intervals) -> Table {
    let unit = plot.axis.unit.name();
    let mut table = Table::of("", &plot.rows);
    table.words("cell", |row| &row.label);
    table.numbers(&plot.axis.title, unit, |row| number(row.mid));
    table.numbers("low", unit, |row| number(row.low));
    table.numbers("high", unit, |row| number(row.high));
    table.words("record", |row| &row.record);
    table.build()
}

fn stacks(plot: &Stacks) -> Table {
    let unit = plot.axis.unit.name();
    let mut table = Table::of("", &plot.rows);
    table.words("cell", |row| &row.label);
    for (place, name) in plot.series.iter().enumerate() {
        table.numbers(name, unit, |row| row.parts.get(place).copied().map(number));
    }
    table.numbers("limit", unit, |row| row.limit.map(number));
    table.words("source", |row| match (row.is_plan, row.record.is_empty()) {
        (true, _) => "plan",
        (false, true) => "predicted",
        (false, false) => "measured",
    });
    table.words("record", |row| &row.record);
    table.build()
}

fn waterfalls(plot: &Waterfalls) -> Table {
    let mut rows = Vec::new();
    for panel in &plot.panels {
        let mut begins = 0.0;
        for (span, length) in &panel.spans {
            rows.push((panel, span, begins, *length));
            begins += length;
        }
    }
    let unit = plot.axis.unit.name();
    let mut table = Table::of("", &rows);
    table.words("cell", |(panel, ..)| &panel.label);
    table.words("span", |(_, span, ..)| *span);
    table.numbers("begins", unit, |(.., begins, _)| number(*begins));
    table.numbers("takes", unit, |(.., length)| number(*length));
    table.words("record", |(panel, ..)| &panel.record);
    table.build()
}

fn lines(plot: &Lines) -> Table {
    let points = plot.lines.iter().flat_map(|line| line.points.iter().enumerate().map(move |point| (line, point)));
    let points: Vec<_> = points.collect();
    let mut table = Table::of("", &points);
    table.words("curve", |(line, _)| &line.label);
    table.numbers(&plot.x.title, plot.x.unit.name(), |(_, (_, (x, _)))| number(*x));
    table.numbers(&plot.y.title, plot.y.unit.name(), |(_, (_, (_, y)))| number(*y));
    // Ids once for each curve: a long curve of many records would repeat them thousands of times.
    table.words("records", |(line, (place, _))| (*place == 0).then(|| line.records.join(" ")));
    table.build()
}

fn scatter(plot: &Scatter) -> Table {
    let dots: Vec<_> =
        plot.clouds.iter().flat_map(|cloud| cloud.dots.iter().map(move |dot| (&cloud.label, dot))).collect();
    let unit = plot.y.unit.name();
    let mut table = Table::of("", &dots);
    table.words("kind", |(cloud, _)| *cloud);
    table.words("cell", |(_, dot)| &dot.label);
    table.numbers(&plot.x.title, plot.x.unit.name(), |(_, dot)| number(dot.x));
    table.numbers(&plot.y.title, unit, |(_, dot)| number(dot.y));
    table.numbers("low", unit, |(_, dot)| dot.limits.map(|limits| number(limits.0)));
    table.numbers("high", unit, |(_, dot)| dot.limits.map(|limits| number(limits.1)));
    table.words("stands out", |(_, dot)| if dot.stands_out { "yes" } else { "no" });
    table.words("record", |(_, dot)| &dot.record);
    table.build()
}

fn spreads(plot: &Spreads) -> Table {
    let mut table = Table::of("", &plot.rows);
    table.words("cell", |row| &row.label);
    table.numbers("values", "", |row| row.count);
    for (place, name) in ["p5", "p25", "median", "p75", "p95"].into_iter().enumerate() {
        table.numbers(name, plot.axis.unit.name(), |row| number(row.percentiles[place]));
    }
    table.words("record", |row| &row.record);
    table.build()
}

fn blocks(plot: &Timelines) -> Table {
    let unit = plot.axis.unit.name();
    let blocks = timelines::marks(plot);
    let mut table = Table::of("", &blocks);
    table.words("cell", |(panel, ..)| &panel.label);
    table.words("lane", |(_, lane, _)| &lane.label);
    table.words("kind", |(.., block)| plot.kinds.get(block.kind));
    table.words("block", |(.., block)| &block.label);
    table.numbers("begins", unit, |(.., block)| number(block.from));
    table.numbers("takes", unit, |(.., block)| number(block.until - block.from));
    table.words("record", |(panel, ..)| &panel.record);
    table.build()
}
