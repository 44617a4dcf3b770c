//! Share of the ceiling over the size of a product.

use super::{Trials, ceiling, text};
use crate::plot::{Axis, Cloud, Dot, Figure, MOST_LINES, Plot, Scatter, Unit, drawable};
use crate::units;

/// So many points are drawn at most.
const MOST_DOTS: usize = 400;

/// A point for each measured product; nothing where fewer than three have a share.
pub(super) fn share_over_size(all: &[Trials]) -> Option<Figure> {
    let mut clouds: Vec<Cloud> = Vec::new();
    let mut records = Vec::new();
    let mut best: Option<(f64, String, f64)> = None;
    let mut left_out = 0;
    for trials in all.iter().filter(|trials| !trials.is_wrong()) {
        let record = trials.last();
        let Some((timing, _)) = trials.timing("gemm", "") else { continue };
        let sizes = (drawable(timing.flops as f64 / 1e9), timing.share.and_then(drawable));
        let (Some(x), Some(y), Some(_)) = (sizes.0.filter(|x| *x > 0.0), sizes.1, ceiling(record).gflops) else {
            continue;
        };
        let threads = super::computing_words(record);
        let name = format!("{} {}, {threads}", text(record, "gemm.dtype"), text(record, "gemm.layout"));
        let label = format!("{} {name}", text(record, "gemm.shape"));
        if records.len() == MOST_DOTS {
            left_out += 1;
            continue;
        }
        records.push(record.id.clone());
        let dot = Dot { x, y, limits: None, label: label.clone(), stands_out: false, record: record.id.clone() };
        if best.as_ref().is_none_or(|(share, ..)| y > *share) {
            best = Some((y, label, timing.gflops));
        }
        let full = clouds.len() >= MOST_LINES;
        match clouds.iter_mut().find(|cloud| cloud.label == name || (full && cloud.label == "others")) {
            Some(cloud) => cloud.dots.push(dot),
            None => {
                let label = if clouds.len() + 1 == MOST_LINES { "others".to_string() } else { name };
                clouds.push(Cloud { label, dots: vec![dot] });
            }
        }
    }
    let (share, label, gflops) = best.filter(|_| records.len() >= 3)?;
    let mut caption = format!(
        "Highest: {label} with {} of its ceiling, {} GFLOP/s. A point for each product, placed by its operations, 2 m n k, \
         on a logarithmic axis. The ceiling is that of its type and threads, measured beside it.",
        units::percent(share),
        units::number(gflops)
    );
    if left_out > 0 {
        caption += &format!(" {left_out} more are in the table only.");
    }
    let plot = Plot::Scatter(Scatter {
        x: Axis::logarithmic("operations, GFLOP", Unit::Plain),
        y: Axis::linear("share of the ceiling", Unit::Fraction),
        clouds,
        diagonal: false,
        close: false,
        front: Vec::new(),
        limit: None,
    });
    Some(Figure { name: "products".into(), title: "Share of the ceiling over size".into(), caption, plot, records })
}
