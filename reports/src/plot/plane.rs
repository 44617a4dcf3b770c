//! Plots over two axes: curves and points.

use std::fmt::Write;

use super::canvas::{Anchor, Canvas, breadth, shortened};
use super::rows::of_record;
use super::scale::{Range, Scale, brief, with_unit};
use super::{Axis, Dot, Lines, Scatter, drawable};
use crate::gather::extent;

/// Two axes with their grid.
struct Plane {
    x: Scale,
    y: Scale,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

fn draw_axes(
    canvas: &mut Canvas,
    axes: (&Axis, &Axis),
    values: (Vec<f64>, Vec<f64>),
    ranges: (Range, Range),
    top: f64,
) -> Plane {
    let wide = canvas.width > 500.0;
    let height = if wide { 300.0 } else { 240.0 };
    let (top, bottom) = (top + 6.0, top + 6.0 + height);
    let y = Scale::new(axes.1, values.1.into_iter(), ranges.1, if wide { 6 } else { 5 }, bottom, top);
    let widest = y.ticks.iter().map(|(_, text)| breadth(text)).fold(0.0, f64::max);
    let (left, right) = (widest + 32.0, canvas.width - 14.0);
    let x = Scale::new(axes.0, values.0.into_iter(), ranges.0, if wide { 8 } else { 4 }, left, right);
    for (value, text) in &y.ticks {
        let place = y.place(*value);
        canvas.line((left, place), (right, place), "g");
        canvas.text(left - 6.0, place + 4.0, Anchor::End, "m", text);
    }
    let mut free_from = 0.0;
    for (value, text) in &x.ticks {
        let place = x.place(*value);
        canvas.line((place, top), (place, bottom), "g");
        let half = breadth(text) / 2.0;
        let middle = place.min(canvas.width - half - 2.0);
        // A text that would overlap the one before is left out; its line stays.
        if middle - half >= free_from {
            canvas.text(middle, bottom + 16.0, Anchor::Middle, "m", text);
            free_from = middle + half + 6.0;
        }
    }
    canvas.line((left, bottom), (right, bottom), "a");
    canvas.line((left, top), (left, bottom), "a");
    canvas.text((left + right) / 2.0, bottom + 34.0, Anchor::Middle, "m", &x.title);
    canvas.upward(13.0, (top + bottom) / 2.0, "m", &y.title);
    canvas.height = bottom + 42.0;
    Plane { x, y, left, right, top, bottom }
}

/// Curves; with marks if they have few points.
pub fn lines(canvas: &mut Canvas, plot: &Lines) {
    let names: Vec<&str> = plot.lines.iter().map(|line| line.label.as_str()).collect();
    let top = canvas.legend(4.0, &names, |canvas, place, x, y| {
        canvas.line((x - 8.0, y), (x + 8.0, y), &line_class(place));
        canvas.mark(x, y, place, &format!("f{}", place % 10));
    });
    let usable = |(x, y): &(f64, f64)| (!plot.x.log || *x > 0.0) && (!plot.y.log || *y > 0.0);
    let points = || plot.lines.iter().flat_map(|line| &line.points).filter(|point| usable(point));
    let values = (points().map(|point| point.0).collect(), points().map(|point| point.1).collect());
    let across = if plot.x.log { Range::Around } else { Range::Close };
    let plane = draw_axes(canvas, (&plot.x, &plot.y), values, (across, Range::Around), top);
    for (place, line) in plot.lines.iter().enumerate() {
        canvas.begin(&format!("{}; records {}", line.label, first_ids(&line.records)));
        let points = line.points.iter().filter(|point| usable(point));
        let shown: Vec<(f64, f64)> = points.map(|(x, y)| (plane.x.place(*x), plane.y.place(*y))).collect();
        let mut path = String::new();
        for (number, (x, y)) in shown.iter().enumerate() {
            let _ = write!(path, "{}{x:.1} {y:.1}", if number == 0 { 'M' } else { 'L' });
        }
        canvas.path(&line_class(place), &path);
        if shown.len() <= 40 {
            for (x, y) in shown {
                canvas.mark(x, y, place, &format!("f{} e", place % 10));
            }
        }
        canvas.end();
    }
}

/// The second half of the colours has dashes as well.
fn line_class(place: usize) -> String {
    format!("l s{}{}", place % 10, if place % 10 >= 5 { " d" } else { "" })
}

fn first_ids(ids: &[String]) -> String {
    const SHOWN: usize = 6;
    match ids.len().saturating_sub(SHOWN) {
        0 => ids.join(" "),
        more => format!("{} and {more} more", ids[..SHOWN].join(" ")),
    }
}

/// Points of several kinds, the best joined by a stepped line, names beside those that stand out.
pub fn scatter(canvas: &mut Canvas, plot: &Scatter) {
    let dots = || plot.clouds.iter().flat_map(|cloud| &cloud.dots);
    let mut names: Vec<&str> = plot.clouds.iter().map(|cloud| cloud.label.as_str()).collect();
    let clouds = names.len();
    names.extend((!plot.front.is_empty()).then_some(if plot.close { "frontier" } else { "best of both" }));
    names.extend(plot.diagonal.then_some("as predicted"));
    let most = dots().map(|dot| dot.x).fold(0.0, f64::max);
    let limit = plot.limit.filter(|limit| super::is_near(*limit, most) && drawable(*limit).is_some());
    names.extend(limit.map(|_| "capacity"));
    let limit_place = limit.map(|_| names.len() - 1);
    let top = canvas.legend(4.0, &names, |canvas, place, x, y| match place {
        place if place < clouds => canvas.mark(x, y, place, &format!("f{}", place % 10)),
        place if Some(place) == limit_place => canvas.line((x, y - 6.0), (x, y + 6.0), "k w"),
        _ => canvas.line((x - 8.0, y), (x + 8.0, y), "a d"),
    });
    let mut xs: Vec<f64> = dots().map(|dot| dot.x).chain(limit).collect();
    let mut ys: Vec<f64> = dots().map(|dot| dot.y).collect();
    ys.extend(dots().filter_map(|dot| dot.limits).flat_map(|(low, high)| [low, high]));
    if plot.diagonal {
        // Both axes have one range, so that the line of equal numbers is a diagonal.
        xs.extend(ys.clone());
        ys = xs.clone();
    }
    if let Some((low, high)) = extent(dots().map(|dot| dot.y)).filter(|_| plot.close) {
        // Beside the points, intervals get half of the points' own range.
        let room = ((high - low) / 2.0).max(0.05 * high.abs());
        ys.iter_mut().for_each(|y| *y = y.clamp(low - room, high + room));
    }
    let range = if plot.close { Range::Close } else { Range::Around };
    let plane = draw_axes(canvas, (&plot.x, &plot.y), (xs, ys), (range, range), top);
    if plot.diagonal {
        canvas.line((plane.left, plane.bottom), (plane.right, plane.top), "a d");
    }
    draw_front(canvas, plot, &plane);
    if let Some(limit) = limit {
        let x = plane.x.place(limit);
        canvas.line((x, plane.top), (x, plane.bottom), "k w");
    }
    for (place, cloud) in plot.clouds.iter().enumerate() {
        for dot in &cloud.dots {
            draw_dot(canvas, plot, &plane, place, dot);
        }
    }
    draw_names(canvas, plot, &plane);
}

fn draw_front(canvas: &mut Canvas, plot: &Scatter, plane: &Plane) {
    let mut path = String::new();
    for (x, y) in &plot.front {
        let (x, y) = (plane.x.place(*x), plane.y.place(*y));
        let _ = match path.is_empty() {
            true => write!(path, "M{x:.1} {y:.1}"),
            false => write!(path, "H{x:.1}V{y:.1}"),
        };
    }
    if !path.is_empty() {
        let _ = write!(path, "H{:.1}", plane.right);
        canvas.path("a d", &path);
    }
}

fn draw_dot(canvas: &mut Canvas, plot: &Scatter, plane: &Plane, place: usize, dot: &Dot) {
    let (x, y) = (plane.x.place(dot.x), plane.y.place(dot.y));
    let limits = dot
        .limits
        .map_or(String::new(), |(low, high)| format!(" ({} to {})", brief(plot.y.unit, low), brief(plot.y.unit, high)));
    canvas.begin(&format!(
        "{}: {} {}, {} {}{limits}{}",
        dot.label,
        plot.x.title,
        with_unit(plot.x.unit, dot.x),
        plot.y.title,
        with_unit(plot.y.unit, dot.y),
        of_record(", record ", &dot.record)
    ));
    if let Some((low, high)) = dot.limits {
        canvas.line((x, plane.y.place(low)), (x, plane.y.place(high)), &format!("s{} c", place % 10));
    }
    let class = match (dot.stands_out, plot.front.is_empty()) {
        (true, _) => format!("f{} k", place % 10),
        (false, true) => format!("f{} e", place % 10),
        (false, false) => format!("f{} q", place % 10),
    };
    canvas.mark(x, y, place, &class);
    canvas.end();
}

/// Names beside the points that stand out, each where no other name or point is. A name without room is left out; the caption has
/// it.
fn draw_names(canvas: &mut Canvas, plot: &Scatter, plane: &Plane) {
    let dots = || plot.clouds.iter().flat_map(|cloud| &cloud.dots);
    let around = |(x, y): (f64, f64)| (x - 6.0, y - 6.0, x + 6.0, y + 6.0);
    let mut taken: Vec<(f64, f64, f64, f64)> =
        dots().map(|dot| around((plane.x.place(dot.x), plane.y.place(dot.y)))).collect();
    for dot in dots().filter(|dot| dot.stands_out) {
        let name = shortened(&dot.label, (plane.right - plane.left) * 0.6);
        let width = breadth(&name);
        let (x, y) = (plane.x.place(dot.x), plane.y.place(dot.y));
        for (dx, dy) in
            [(10.0, 4.0), (-10.0 - width, 4.0), (-width / 2.0, -10.0), (-width / 2.0, 19.0), (8.0, -9.0), (8.0, 18.0)]
        {
            let place = (x + dx, y + dy - 10.0, x + dx + width, y + dy + 3.0);
            let inside =
                place.0 >= plane.left && place.2 <= plane.right && place.1 >= plane.top && place.3 <= plane.bottom;
            let apart = |other: &(f64, f64, f64, f64)| {
                place.2 < other.0 || other.2 < place.0 || place.3 < other.1 || other.3 < place.1
            };
            if inside && taken.iter().all(apart) {
                canvas.text(x + dx, y + dy, Anchor::Start, "h", &name);
                taken.push(place);
                break;
            }
        }
    }
}
