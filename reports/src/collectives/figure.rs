//! Bus bandwidth over size, from records of the interconnect test.

use super::{Row, Section};
use crate::gather::{distinct, grouped};
use crate::plot::{Axis, Figure, Line, Lines, MOST_LINES, Plot, Unit, drawable};
use crate::record::Record;
use crate::units;

/// Figures that are made at most; each has curves of one backend and number of ranks.
const MOST_FIGURES: usize = 4;

/// A curve and what it shows.
struct Curve {
    /// Collective, backend, ranks, type, reduction, place of the data, record.
    parts: [String; 7],
    line: Line,
}

/// Curves of all sections in these records, in one figure if it has room for them, else in one for each backend and number of ranks.
pub fn bandwidth(records: &[&Record]) -> Vec<Figure> {
    let curves: Vec<Curve> = records.iter().flat_map(|record| of_record(record)).collect();
    if curves.is_empty() {
        return Vec::new();
    }
    if curves.len() <= MOST_LINES {
        return vec![figure("bandwidth", curves, "")];
    }
    let groups = grouped(curves.into_iter().map(|curve| (format!("{}, {}", curve.parts[1], curve.parts[2]), curve)));
    let all = groups.len();
    let made = groups.into_iter().take(MOST_FIGURES).enumerate().map(|(place, (name, mut group))| {
        let count = group.len();
        // The latest are the last.
        let group = group.split_off(count.saturating_sub(MOST_LINES));
        let mut more = String::new();
        if group.len() < count {
            more += &format!(" Shown are the last {} of {count} curves of {name}.", group.len());
        }
        if all > MOST_FIGURES && place == 0 {
            more += &format!(" Of {all} pairs of backend and ranks, {MOST_FIGURES} have a figure.");
        }
        figure(&format!("bandwidth-{}", place + 1), group, &more)
    });
    made.collect()
}

fn of_record(record: &Record) -> Vec<Curve> {
    let Some(section) = Section::of(record) else { return Vec::new() };
    let text = |path: &str| {
        record.setting(path).map_or(String::new(), |value| value.as_str().map_or(value.to_string(), String::from))
    };
    let mut curves = Vec::new();
    for (dtype, redop) in distinct(section.rows.iter().map(|row| (&row.dtype, &row.redop))) {
        let rows = || section.rows.iter().filter(move |row| row.dtype == *dtype && row.redop == *redop && row.size > 0);
        let in_place = rows().all(|row| row.in_place.is_some());
        let busbw = |row: &Row| {
            let side = if in_place { row.in_place.as_ref() } else { row.out_of_place.as_ref() };
            Some((row.size as f64, drawable(side.or(row.in_place.as_ref())?.busbw)?))
        };
        let mut points: Vec<(f64, f64)> = rows().filter_map(busbw).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        if points.len() < 2 {
            continue;
        }
        let parts = [
            section.collective.clone(),
            text("backend"),
            format!("{} ranks", text("parallel.ranks")),
            dtype.clone(),
            if redop == "none" { String::new() } else { redop.clone() },
            if in_place { "in place" } else { "out of place" }.to_string(),
            record.id.clone(),
        ];
        curves.push(Curve { parts, line: Line { label: String::new(), points, records: vec![record.id.clone()] } });
    }
    curves
}

fn figure(name: &str, mut curves: Vec<Curve>, more: &str) -> Figure {
    // A curve is named by its collective and by what differs between curves; by its record only where nothing else differs.
    let last = curves[0].parts.len() - 1;
    let differs: Vec<bool> =
        (0..last).map(|part| curves.iter().any(|curve| curve.parts[part] != curves[0].parts[part])).collect();
    for curve in &mut curves {
        let parts = (0..last).filter(|&part| (part == 0 || differs[part]) && !curve.parts[part].is_empty());
        curve.line.label = parts.map(|part| curve.parts[part].clone()).collect::<Vec<_>>().join(", ");
    }
    let labels: Vec<String> = curves.iter().map(|curve| curve.line.label.clone()).collect();
    for curve in &mut curves {
        if labels.iter().filter(|label| **label == curve.line.label).count() > 1 {
            curve.line.label = format!("{} ({})", curve.line.label, curve.parts[last]);
        }
    }
    let common: Vec<&str> = (1..last)
        .filter(|&part| !differs[part])
        .map(|part| curves[0].parts[part].as_str())
        .filter(|part| !part.is_empty())
        .collect();
    let points = curves.iter().flat_map(|curve| curve.line.points.iter().map(move |point| (&curve.line.label, point)));
    // Of equal points the first.
    let best = points.reduce(|best, other| if other.1.1 > best.1.1 { other } else { best });
    let highest = best.map_or(String::new(), |(label, (size, rate))| {
        format!("Highest: {label} with {} GB/s at {}.", units::number(*rate), units::memory(*size))
    });
    let of = if common.is_empty() { String::new() } else { format!(" All curves: {}.", common.join(", ")) };
    let caption = format!(
        "{highest}{of} busbw: size over time times nccl-tests' factor (ring convention), one way, GB = 10^9 bytes; size is the larger of what a rank \
         gives and gets. Sizes on a logarithmic axis.{more}"
    );
    let records = curves.iter().flat_map(|curve| curve.line.records.clone()).collect();
    let plot = Plot::Lines(Lines {
        x: Axis::logarithmic("size", Unit::Memory),
        y: Axis::linear("bus bandwidth", Unit::GigabytesPerSecond),
        lines: curves.into_iter().map(|curve| curve.line).collect(),
    });
    Figure::new(name, "Bus bandwidth over size", caption, plot, records)
}
