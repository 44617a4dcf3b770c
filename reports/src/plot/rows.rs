//! Plots with a row for each cell: intervals, stacks, spreads and waterfalls.

use super::canvas::{Anchor, Canvas, Layout, breadth, shortened, two_lines};
use super::scale::{Range, Scale, brief, with_unit};
use super::{Axis, Intervals, Spreads, StackRow, Stacks, Unit, Waterfalls};
use crate::table::Tone;

/// Height of the band in which a row's marks are.
const BAND: f64 = 16.0;
const LINE: f64 = 14.0;
/// Wider names take two lines.
const WIDEST_NAME: f64 = 320.0;
/// Numbers are never wider than this, unless a record is wrong.
const WIDEST_NUMBER: f64 = 110.0;

/// Rows and their common axis.
pub struct Rows<'p> {
    pub axis: &'p Axis,
    pub labels: Vec<&'p str>,
    /// Columns of numbers to the right of the marks, for each row.
    pub numbers: Vec<Vec<String>>,
    /// What the axis must contain.
    pub values: Vec<f64>,
    pub range: Range,
}

/// Draws names, numbers, axis and grid of rows below `top`. Returns the scale and the middle of each row's band.
pub fn draw_rows(canvas: &mut Canvas, rows: &Rows, layout: Layout, top: f64) -> (Scale, Vec<f64>) {
    let width = canvas.width;
    let columns = rows.numbers.iter().map(Vec::len).max().unwrap_or(0);
    let column = |place: usize| {
        let texts = rows.numbers.iter().filter_map(|numbers| numbers.get(place));
        texts.map(|text| breadth(text)).fold(0.0, f64::max).min(WIDEST_NUMBER) + 8.0
    };
    let columns: Vec<f64> = (0..columns).map(column).collect();
    let numbers: f64 = columns.iter().sum();
    let room = match layout {
        Layout::Wide => rows.labels.iter().map(|label| breadth(label)).fold(0.0, f64::max).min(WIDEST_NAME),
        Layout::Narrow => width - 12.0,
    };
    let left = if layout == Layout::Wide { room + 18.0 } else { 10.0 };
    let right = width - numbers - 8.0;

    let names: Vec<Vec<String>> = rows.labels.iter().map(|label| two_lines(label, room)).collect();
    let mut y = top;
    let mut middles = Vec::with_capacity(names.len());
    for lines in &names {
        let words = lines.len() as f64 * LINE;
        match layout {
            Layout::Wide => {
                let height = (words + 6.0).max(BAND + 5.0);
                middles.push(y + height / 2.0);
                y += height;
            }
            Layout::Narrow => {
                middles.push(y + words + 3.0 + BAND / 2.0);
                y += words + 3.0 + BAND + 7.0;
            }
        }
    }
    let bottom = y + 2.0;
    let most = if layout == Layout::Wide { 7 } else { 4 };
    let scale = Scale::new(rows.axis, rows.values.iter().copied(), rows.range, most, left, right);
    grid(canvas, &scale, top, bottom);
    for ((lines, middle), numbers) in names.iter().zip(&middles).zip(&rows.numbers) {
        for (place, line) in lines.iter().enumerate() {
            let shift = place as f64 * LINE;
            match layout {
                Layout::Wide => {
                    let first = middle + 4.0 - (lines.len() as f64 - 1.0) * LINE / 2.0;
                    canvas.text(left - 10.0, first + shift, Anchor::End, "", line);
                }
                Layout::Narrow => {
                    let first = middle - BAND / 2.0 - 6.0 - (lines.len() as f64 - 1.0) * LINE;
                    canvas.text(4.0, first + shift, Anchor::Start, "h", line);
                }
            }
        }
        for (place, number) in numbers.iter().enumerate() {
            let end = width - 4.0 - columns[place + 1..].iter().sum::<f64>();
            canvas.text(end, middle + 4.0, Anchor::End, "", &shortened(number, WIDEST_NUMBER));
        }
    }
    canvas.height = bottom + 42.0;
    (scale, middles)
}

/// Lines at the ticks, their texts and the title of the axis below.
fn grid(canvas: &mut Canvas, scale: &Scale, top: f64, bottom: f64) {
    let ends = (scale.place(scale.low), scale.place(scale.high));
    for (value, text) in &scale.ticks {
        let x = scale.place(*value);
        canvas.line((x, top), (x, bottom), "g");
        let half = breadth(text) / 2.0;
        // Texts at the ends stay inside the drawing.
        let x = x.clamp(half + 2.0, (canvas.width - half - 2.0).max(half + 2.0));
        canvas.text(x, bottom + 16.0, Anchor::Middle, "m", text);
    }
    canvas.line((ends.0, bottom), (ends.1, bottom), "a");
    let half = breadth(&scale.title) / 2.0;
    let middle =
        ((ends.0 + ends.1) / 2.0).clamp(half.min(canvas.width / 2.0), (canvas.width - half).max(canvas.width / 2.0));
    canvas.text(middle, bottom + 34.0, Anchor::Middle, "m", &scale.title);
}

/// A dot with a line from end to end of its interval.
pub fn intervals(canvas: &mut Canvas, plot: &Intervals, layout: Layout) {
    let legend = [
        (Tone::Good, "first rank"),
        (Tone::Plain, "ranked"),
        (Tone::Warning, "not ranked"),
        (Tone::Struck, "not comparable"),
    ];
    let occurs = |(tone, _): &(Tone, &str)| plot.rows.iter().any(|row| row.tone == *tone);
    let (tones, names): (Vec<Tone>, Vec<&str>) = legend.into_iter().filter(occurs).unzip();
    let top = match tones[..] {
        [] | [Tone::Plain] => 4.0,
        _ => canvas.legend(4.0, &names, |canvas, place, x, y| dot(canvas, x, y, tones[place])),
    };
    let rows = Rows {
        axis: &plot.axis,
        labels: plot.rows.iter().map(|row| row.label.as_str()).collect(),
        numbers: plot.rows.iter().map(|row| vec![brief(plot.axis.unit, row.mid)]).collect(),
        values: plot.rows.iter().flat_map(|row| [row.low, row.mid, row.high]).collect(),
        range: Range::Around,
    };
    let unit = plot.axis.unit;
    let (scale, middles) = draw_rows(canvas, &rows, layout, top);
    for (row, &y) in plot.rows.iter().zip(&middles) {
        canvas.begin(&format!(
            "{}: {} (95 % interval {} to {}), record {}",
            row.label,
            with_unit(unit, row.mid),
            brief(unit, row.low),
            brief(unit, row.high),
            row.record
        ));
        let stroke = match row.tone {
            Tone::Good => "s2 w",
            Tone::Plain => "s0 w",
            Tone::Warning | Tone::Struck => "s8 w",
        };
        let (low, high) = (scale.place(row.low), scale.place(row.high));
        canvas.line((low, y), (high, y), stroke);
        for end in [low, high] {
            canvas.line((end, y - 4.0), (end, y + 4.0), stroke);
        }
        dot(canvas, scale.place(row.mid), y, row.tone);
        canvas.end();
    }
}

fn dot(canvas: &mut Canvas, x: f64, y: f64, tone: Tone) {
    match tone {
        Tone::Good => canvas.mark(x, y, 3, "f2"),
        Tone::Plain => canvas.circle(x, y, 4.5, "f0"),
        Tone::Warning => canvas.circle(x, y, 4.0, "p s8 w"),
        Tone::Struck => {
            canvas.circle(x, y, 4.0, "p s8 w");
            canvas.line((x - 5.0, y - 5.0), (x + 5.0, y + 5.0), "s1 w");
        }
    }
}

/// Bars of parts end to end, and a line at each row's limit.
pub fn stacks(canvas: &mut Canvas, plot: &Stacks, layout: Layout) {
    let largest = plot.rows.iter().map(StackRow::sum).fold(0.0, f64::max);
    let limit = |row: &StackRow| row.limit.filter(|limit| is_near(*limit, largest));
    let mut names: Vec<&str> = plot.series.iter().map(String::as_str).collect();
    let has_limit = plot.rows.iter().any(|row| limit(row).is_some());
    let has_plan = plot.rows.iter().any(|row| row.is_plan);
    let series = names.len();
    names.extend(has_limit.then_some(plot.limit.as_str()));
    names.extend(Some(plot.planned.as_str()).filter(|planned| has_plan && !planned.is_empty()));
    let top = canvas.legend(4.0, &names, |canvas, place, x, y| {
        if place < series {
            canvas.rect(x - 6.0, y - 6.0, 12.0, 12.0, &format!("f{}", place % 10));
        } else if has_limit && place == series {
            canvas.line((x, y - 7.0), (x, y + 7.0), "k w");
        } else {
            canvas.rect(x - 6.0, y - 6.0, 12.0, 12.0, "f0 o");
        }
    });
    let rows = Rows {
        axis: &plot.axis,
        labels: plot.rows.iter().map(|row| row.label.as_str()).collect(),
        numbers: plot.rows.iter().map(|row| vec![brief(plot.axis.unit, row.sum())]).collect(),
        values: plot.rows.iter().map(StackRow::sum).chain(plot.rows.iter().filter_map(limit)).collect(),
        range: Range::FromZero,
    };
    let (scale, middles) = draw_rows(canvas, &rows, layout, top + 2.0);
    for (row, &y) in plot.rows.iter().zip(&middles) {
        let parts: Vec<String> = plot
            .series
            .iter()
            .zip(&row.parts)
            .filter(|(_, part)| **part > 0.0)
            .map(|(name, part)| format!("{name} {}", with_unit(plot.axis.unit, *part)))
            .collect();
        let all = with_unit(plot.axis.unit, row.sum());
        let record = of_record("; record ", &row.record);
        canvas.begin(&format!("{}: {all}: {}{record}", row.label, parts.join(", ")));
        let mut sum = 0.0;
        for (place, part) in row.parts.iter().enumerate() {
            let (from, to) = (scale.place(sum), scale.place(sum + part));
            sum += part;
            // What is thinner than a tenth of a pixel cannot be seen.
            if to - from >= 0.1 {
                let pale = if row.is_plan { " o" } else { "" };
                canvas.rect(from, y - BAND / 2.0 + 1.0, to - from, BAND - 2.0, &format!("f{}{pale}", place % 10));
            }
        }
        if let Some(limit) = limit(row) {
            let x = scale.place(limit);
            canvas.line((x, y - BAND / 2.0 - 2.0), (x, y + BAND / 2.0 + 2.0), "k w");
        }
        canvas.end();
    }
}

/// A record after these words; empty where there is none, as for planned cells.
pub fn of_record(words: &str, record: &str) -> String {
    if record.is_empty() { String::new() } else { format!("{words}{record}") }
}

/// Whether a limit can be drawn beside bars of that length: one far beyond would leave them no room.
pub fn is_near(limit: f64, largest: f64) -> bool {
    limit > 0.0 && limit <= 2.5 * largest
}

/// Whiskers from percentile 5 to 95, a box over the middle half, the median, and single values.
pub fn spreads(canvas: &mut Canvas, plot: &Spreads, layout: Layout) {
    let rows = Rows {
        axis: &plot.axis,
        labels: plot.rows.iter().map(|row| row.label.as_str()).collect(),
        numbers: plot.rows.iter().map(|row| vec![brief(plot.axis.unit, row.percentiles[2])]).collect(),
        values: plot.rows.iter().flat_map(|row| row.percentiles.iter().chain(&row.values).copied()).collect(),
        range: Range::Around,
    };
    let top = canvas.legend(4.0, &["a step", "p25 to p75", "p5 to p95", "median"], |canvas, place, x, y| match place {
        0 => canvas.circle(x, y, 2.2, "f1 q"),
        1 => canvas.rect(x - 7.0, y - 6.0, 14.0, 12.0, "f0 o"),
        2 => canvas.line((x - 7.0, y), (x + 7.0, y), "s0 w"),
        _ => canvas.line((x, y - 7.0), (x, y + 7.0), "k w"),
    });
    let unit = plot.axis.unit;
    let (scale, middles) = draw_rows(canvas, &rows, layout, top + 2.0);
    for (row, &y) in plot.rows.iter().zip(&middles) {
        let [p5, p25, p50, p75, p95] = row.percentiles.map(|value| brief(unit, value));
        canvas.begin(&format!(
            "{}: {} values, p5 {p5}, p25 {p25}, median {p50}, p75 {p75}, p95 {p95} {}, record {}",
            row.label,
            row.count,
            unit.name(),
            row.record
        ));
        let [p5, p25, p50, p75, p95] = row.percentiles.map(|value| scale.place(value));
        canvas.line((p5, y), (p95, y), "s0 w");
        canvas.rect(p25, y - 6.0, (p75 - p25).max(1.0), 12.0, "f0 o");
        for (place, value) in row.values.iter().enumerate() {
            // Fixed small shifts separate equal values.
            let shift = [0.0, -3.0, 3.0, -1.5, 1.5][place % 5];
            canvas.circle(scale.place(*value), y + shift, 2.0, "f1 q");
        }
        canvas.line((p50, y - 7.0), (p50, y + 7.0), "k w");
        canvas.end();
    }
}

/// Bars that each begin where the one before ended.
pub fn waterfalls(canvas: &mut Canvas, plot: &Waterfalls) {
    let sum = |spans: &[(String, f64)]| spans.iter().map(|(_, length)| length.max(0.0)).sum::<f64>();
    let mut top = 4.0;
    for panel in &plot.panels {
        let all = sum(&panel.spans);
        for line in two_lines(&panel.label, canvas.width - 8.0) {
            canvas.text(4.0, top + 12.0, Anchor::Start, "b", &line);
            top += 16.0;
        }
        let mut labels: Vec<&str> = panel.spans.iter().map(|(name, _)| name.as_str()).collect();
        labels.push("step");
        let number = |length: f64| {
            let share = if all > 0.0 { length / all * 100.0 } else { 0.0 };
            let share = if share > 0.0 && share < 1.0 { "<1".to_string() } else { format!("{share:.0}") };
            let text = match plot.axis.unit {
                Unit::Milliseconds => crate::units::duration(length / 1e3),
                unit => with_unit(unit, length),
            };
            vec![text, format!("{share} %")]
        };
        let mut numbers: Vec<Vec<String>> = panel.spans.iter().map(|(_, length)| number(*length)).collect();
        numbers.push(number(all));
        let values = plot.panels.iter().map(|panel| sum(&panel.spans)).collect();
        let rows = Rows { axis: &plot.axis, labels, numbers, values, range: Range::FromZero };
        // Names of spans are short enough to stand left of their row even on a phone.
        let (scale, middles) = draw_rows(canvas, &rows, Layout::Wide, top + 4.0);
        canvas.begin(&format!("{}: step of {}, record {}", panel.label, with_unit(plot.axis.unit, all), panel.record));
        let mut begins = 0.0;
        for (place, ((_, length), &y)) in panel.spans.iter().zip(&middles).enumerate() {
            let (from, to) = (scale.place(begins), scale.place(begins + length.max(0.0)));
            begins += length.max(0.0);
            canvas.rect(from, y - 6.0, (to - from).max(1.0), 12.0, &format!("f{}", place % 10));
            if let Some(below) = middles.get(place + 1) {
                canvas.line((to, y), (to, *below), "a d");
            }
        }
        if let Some(&y) = middles.last() {
            canvas.rect(scale.place(0.0), y - 6.0, scale.place(all) - scale.place(0.0), 12.0, "f8");
        }
        canvas.end();
        top = canvas.height + 8.0;
    }
}
