//! The numbers of a figure as a table.

use super::{Figure, Intervals, Lines, Plot, Scatter, Spreads, Stacks, Unit, Waterfalls};
use crate::table::{Column, Entry, Table};

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
        };
        table.name = format!("figure {}", self.name);
        table.caption = self.caption.clone();
        table
    }
}

fn number(value: f64) -> Entry {
    Entry::maybe(Some(value), crate::units::number)
}

fn numbers(title: &str, unit: Unit) -> Column {
    Column::numbers(title, unit.name())
}

fn intervals(plot: &Intervals) -> Table {
    let unit = plot.axis.unit;
    let columns = vec![
        Column::words("cell"),
        numbers(&plot.axis.title, unit),
        numbers("low", unit),
        numbers("high", unit),
        Column::words("record"),
    ];
    let mut table = Table::new("", columns);
    for row in &plot.rows {
        table.row(vec![
            Entry::words(&row.label),
            number(row.mid),
            number(row.low),
            number(row.high),
            Entry::words(&row.record),
        ]);
    }
    table
}

fn stacks(plot: &Stacks) -> Table {
    let unit = plot.axis.unit;
    let mut columns = vec![Column::words("cell")];
    columns.extend(plot.series.iter().map(|name| numbers(name, unit)));
    columns.extend([numbers("limit", unit), Column::words("source"), Column::words("record")]);
    let mut table = Table::new("", columns);
    for row in &plot.rows {
        let mut entries = vec![Entry::words(&row.label)];
        entries.extend(row.parts.iter().map(|part| number(*part)));
        entries.push(row.limit.map_or_else(Entry::nothing, number));
        entries.push(Entry::words(if row.is_plan { "plan" } else { "measured" }));
        entries.push(Entry::words(&row.record));
        table.row(entries);
    }
    table
}

fn waterfalls(plot: &Waterfalls) -> Table {
    let columns = vec![
        Column::words("cell"),
        Column::words("span"),
        numbers("begins", plot.axis.unit),
        numbers("takes", plot.axis.unit),
        Column::words("record"),
    ];
    let mut table = Table::new("", columns);
    for panel in &plot.panels {
        let mut begun = 0.0;
        for (span, length) in &panel.spans {
            table.row(vec![
                Entry::words(&panel.label),
                Entry::words(span),
                number(begun),
                number(*length),
                Entry::words(&panel.record),
            ]);
            begun += length;
        }
    }
    table
}

fn lines(plot: &Lines) -> Table {
    let columns = vec![
        Column::words("curve"),
        numbers(&plot.x.title, plot.x.unit),
        numbers(&plot.y.title, plot.y.unit),
        Column::words("records"),
    ];
    let mut table = Table::new("", columns);
    for line in &plot.lines {
        // Ids once for each curve: a long curve of many records would repeat them thousands of times.
        for (place, (x, y)) in line.points.iter().enumerate() {
            let ids = if place == 0 { Entry::words(line.records.join(" ")) } else { Entry::nothing() };
            table.row(vec![Entry::words(&line.label), number(*x), number(*y), ids]);
        }
    }
    table
}

fn scatter(plot: &Scatter) -> Table {
    let columns = vec![
        Column::words("kind"),
        Column::words("cell"),
        numbers(&plot.x.title, plot.x.unit),
        numbers(&plot.y.title, plot.y.unit),
        numbers("low", plot.y.unit),
        numbers("high", plot.y.unit),
        Column::words("stands out"),
        Column::words("record"),
    ];
    let mut table = Table::new("", columns);
    for (cloud, dot) in plot.clouds.iter().flat_map(|cloud| cloud.dots.iter().map(move |dot| (cloud, dot))) {
        let limit = |value: Option<f64>| value.map_or_else(Entry::nothing, number);
        table.row(vec![
            Entry::words(&cloud.label),
            Entry::words(&dot.label),
            number(dot.x),
            number(dot.y),
            limit(dot.limits.map(|limits| limits.0)),
            limit(dot.limits.map(|limits| limits.1)),
            Entry::words(if dot.stands_out { "yes" } else { "no" }),
            Entry::words(&dot.record),
        ]);
    }
    table
}

fn spreads(plot: &Spreads) -> Table {
    let mut columns = vec![Column::words("cell"), Column::numbers("values", "")];
    columns.extend(["p5", "p25", "median", "p75", "p95"].map(|name| numbers(name, plot.axis.unit)));
    columns.push(Column::words("record"));
    let mut table = Table::new("", columns);
    for row in &plot.rows {
        let mut entries = vec![Entry::words(&row.label), Entry::whole(row.count as u64, row.count.to_string())];
        entries.extend(row.percentiles.iter().map(|value| number(*value)));
        entries.push(Entry::words(&row.record));
        table.row(entries);
    }
    table
}
