//! Latency and bandwidth from times of several sizes: `time = latency + size / bandwidth`, piecewise where one line misses.
//!
//! What is made small is the sum of absolute *relative* distances, so that a microsecond counts as much for a small message
//! as a millisecond for a large one, and one odd size does not pull the line (least absolute deviations, by reweighted
//! least squares). Backends change their algorithm with size; where one line misses a size by more than [`GOOD`], the
//! sizes are cut in two where that helps most, and both parts are looked at in the same way.

use super::collective::Collective;
use zbench_reports::collectives::{Fit, Row, Section, Segment, Side};
use zbench_reports::stats;

/// A worst relative distance that needs no further cut.
const GOOD: f64 = 0.10;
/// A cut must leave at most this share of the sum of distances.
const WORTH: f64 = 0.6;
/// A line has two numbers of its own: through fewer sizes than this its errors would say nothing.
const FEWEST: usize = 4;
/// A part of a cut has this many at least.
const PART: usize = 3;
/// Cuts of cuts.
const DEPTH: usize = 2;

/// Times of one type, reduction, root and placement: its first row, whether in place, and (bytes, microseconds).
type Series<'a> = (&'a Row, bool, Vec<(f64, f64)>);

/// The fits of a collective: one for each type, reduction, root and placement with four sizes or more.
pub fn of_section(section: &Section, ranks: usize) -> Vec<Fit> {
    let Some(collective) = Collective::ALL.into_iter().find(|c| c.name() == section.collective) else {
        return Vec::new();
    };
    let mut series: Vec<Series> = Vec::new();
    for row in &section.rows {
        for (in_place, side) in [(false, &row.out_of_place), (true, &row.in_place)] {
            let Some(point) = point(row, side.as_ref()) else { continue };
            let same = |(first, place, _): &&mut Series| {
                *place == in_place && (&first.dtype, &first.redop, first.root) == (&row.dtype, &row.redop, row.root)
            };
            match series.iter_mut().find(same) {
                Some((.., points)) => points.push(point),
                None => series.push((row, in_place, vec![point])),
            }
        }
    }
    let fit = |(row, in_place, points): Series| {
        let segments = piecewise(&points);
        let root = if row.root >= 0 { format!(" root {}", row.root) } else { String::new() };
        let place = if in_place { "in place" } else { "out of place" };
        (!segments.is_empty()).then(|| Fit {
            of: format!("{} {}{root} {place}", row.dtype, row.redop),
            dtype: row.dtype.clone(),
            redop: row.redop.clone(),
            in_place,
            factor: collective.factor(ranks),
            segments,
        })
    };
    series.into_iter().filter_map(fit).collect()
}

fn point(row: &Row, side: Option<&Side>) -> Option<(f64, f64)> {
    let time = side?.time_us;
    (row.size > 0 && time > 0.0 && time.is_finite()).then_some((row.size as f64, time))
}

/// Lines over ascending ranges of sizes; none for fewer than four sizes. Points are (bytes, microseconds).
pub fn piecewise(points: &[(f64, f64)]) -> Vec<Segment> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let distinct = sorted.windows(2).filter(|pair| pair[0].0 < pair[1].0).count() + 1;
    if sorted.is_empty() || distinct < FEWEST {
        return Vec::new();
    }
    cut(&sorted, DEPTH)
}

fn cut(points: &[(f64, f64)], depth: usize) -> Vec<Segment> {
    let whole = line(points);
    let total = |segment: &Segment, points: &[(f64, f64)]| distances(segment, points).iter().sum::<f64>();
    if depth == 0 || whole.worst_error <= GOOD || points.len() < 2 * PART {
        return vec![whole];
    }
    let cuts = (PART..=points.len() - PART).filter(|at| points[at - 1].0 < points[*at].0);
    let cost = |at: usize| {
        let (low, high) = points.split_at(at);
        total(&line(low), low) + total(&line(high), high)
    };
    let best = cuts.map(|at| (cost(at), at)).min_by(|a, b| a.0.total_cmp(&b.0));
    match best {
        Some((cost, at)) if cost <= WORTH * total(&whole, points) => {
            let (low, high) = points.split_at(at);
            [cut(low, depth - 1), cut(high, depth - 1)].concat()
        }
        _ => vec![whole],
    }
}

fn distances(segment: &Segment, points: &[(f64, f64)]) -> Vec<f64> {
    points.iter().map(|(size, time)| (segment.time_us(*size) - time).abs() / time).collect()
}

/// The best line through points with positive times; neither latency nor slope is negative.
fn line(points: &[(f64, f64)]) -> Segment {
    let mut weights: Vec<f64> = points.iter().map(|_| 1.0).collect();
    let (mut latency, mut slope) = (0.0, 0.0);
    for _ in 0..50 {
        (latency, slope) = weighted(points, &weights);
        for (weight, (size, time)) in weights.iter_mut().zip(points) {
            let distance = ((latency + slope * size) / time - 1.0).abs();
            *weight = 1.0 / distance.max(1e-6);
        }
    }
    let mut segment = Segment {
        from_bytes: points.first().map_or(0, |point| point.0 as u64),
        to_bytes: points.last().map_or(0, |point| point.0 as u64),
        latency_us: latency,
        // Microseconds per byte to 10^9 bytes per second.
        bandwidth_gb_s: (slope > 0.0).then(|| 1e-3 / slope),
        points: points.len(),
        ..Segment::default()
    };
    let errors = distances(&segment, points);
    segment.median_error = stats::median(&errors).unwrap_or(0.0);
    segment.worst_error = errors.into_iter().fold(0.0, f64::max);
    segment
}

/// Weighted least squares of the relative distances; where a coefficient would be negative it is 0, and the other one is
/// the best without it.
fn weighted(points: &[(f64, f64)], weights: &[f64]) -> (f64, f64) {
    // Of a/t + b s/t = 1: sums over u = 1/t and v = s/t.
    let (mut uu, mut uv, mut vv, mut u1, mut v1) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for ((size, time), weight) in points.iter().zip(weights) {
        let (u, v) = (1.0 / time, size / time);
        uu += weight * u * u;
        uv += weight * u * v;
        vv += weight * v * v;
        u1 += weight * u;
        v1 += weight * v;
    }
    let determinant = uu * vv - uv * uv;
    let only_latency = (u1 / uu, 0.0);
    let only_slope = (0.0, if vv > 0.0 { v1 / vv } else { 0.0 });
    if determinant <= f64::EPSILON * uu * vv {
        return only_latency;
    }
    match ((u1 * vv - v1 * uv) / determinant, (uu * v1 - uv * u1) / determinant) {
        (latency, slope) if latency >= 0.0 && slope >= 0.0 => (latency, slope),
        (latency, _) if latency < 0.0 => only_slope,
        _ => only_latency,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes() -> impl Iterator<Item = f64> {
        (3..=28).map(|power| 2f64.powi(power))
    }

    fn near(found: f64, wanted: f64, relative: f64) -> bool {
        (found - wanted).abs() <= relative * wanted
    }

    #[test]
    fn a_known_line_is_found_through_noise_and_one_bad_size() {
        // 5 us and 12.5 GB/s; noise of 3 % by a fixed rule, and one time that is ten times too long.
        let noise = |i: usize| 1.0 + 0.03 * ((i * 7919 % 13) as f64 / 6.0 - 1.0);
        let mut points: Vec<(f64, f64)> =
            sizes().enumerate().map(|(i, size)| (size, (5.0 + size / 12.5e3) * noise(i))).collect();
        let [line] = &piecewise(&points)[..] else { panic!("one line explains it: {:?}", piecewise(&points)) };
        assert!(near(line.latency_us, 5.0, 0.03) && near(line.bandwidth_gb_s.unwrap(), 12.5, 0.03), "{line:?}");
        assert!(line.median_error < 0.03 && line.worst_error < 0.07 && line.points == 26, "{line:?}");
        points[12].1 *= 10.0;
        let found = piecewise(&points);
        assert!(near(found[0].latency_us, 5.0, 0.03), "{found:?}");
        assert!(near(found.last().unwrap().bandwidth_gb_s.unwrap(), 12.5, 0.03), "{found:?}");
    }

    #[test]
    fn a_change_of_protocol_makes_two_lines() {
        let time = |size: f64| if size <= 65536.0 { 2.0 + size / 2e3 } else { 20.0 + size / 20e3 };
        let points: Vec<(f64, f64)> = sizes().map(|size| (size, time(size))).collect();
        let found = piecewise(&points);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(near(found[0].latency_us, 2.0, 0.01) && near(found[0].bandwidth_gb_s.unwrap(), 2.0, 0.01), "{found:?}");
        assert!(
            near(found[1].latency_us, 20.0, 0.01) && near(found[1].bandwidth_gb_s.unwrap(), 20.0, 0.01),
            "{found:?}"
        );
        assert_eq!((found[0].to_bytes, found[1].from_bytes), (65536, 131072));
        assert!(found.iter().all(|line| line.worst_error < 0.01));
    }

    #[test]
    fn what_a_line_cannot_say_is_not_said() {
        assert!(piecewise(&[]).is_empty());
        assert!(piecewise(&[(8.0, 1.0), (16.0, 1.0), (32.0, 1.0)]).is_empty());
        assert!(piecewise(&[(8.0, 1.0), (8.0, 1.1), (8.0, 0.9), (16.0, 1.0)]).is_empty());
        let falling = piecewise(&[(8.0, 3.0), (16.0, 2.9), (32.0, 2.9), (64.0, 2.8)]);
        assert!(falling[0].bandwidth_gb_s.is_none() && near(falling[0].latency_us, 2.9, 0.05), "{falling:?}");
        let through_zero = piecewise(&[(1e6, 99.0), (2e6, 201.0), (4e6, 402.0), (8e6, 801.0)]);
        assert!(through_zero[0].latency_us >= 0.0 && near(through_zero[0].bandwidth_gb_s.unwrap(), 10.0, 0.02));
    }
}
