//! Share of the ceiling over the size of a product.

use super::{Trials, ceiling, text};
use crate::plot::{Axis, Cloud, Dot, Figure, Plot, Scatter, Unit, add_dot, drawable};
use crate::units;

/// Points that are drawn at most.
const MOST_DOTS: usize = 400;

/// A point for each measured product; `None` where fewer than three have a share.
pub(super) fn share_over_size(all: &[Trials]) -> Option<Figure> {
    let mut clouds: Vec<Cloud> = Vec::new();
    let mut records = Vec::new();
    let mut best: Option<(f64, String, f64)> = None;
    let mut left_out = 0;
    for trials in all.iter().filter(|trials| !trials.is_wrong()) {
        let record = trials.last();
        let Some((timing, _)) = trials.timing("gemm", "") else { continue };
        let x = drawable(timing.flops as f64 / 1e9).filter(|x| *x > 0.0);
        let y = timing.share.and_then(drawable).filter(|_| ceiling(record).gflops.is_some());
        let (Some(x), Some(y)) = (x, y) else { continue };
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
        add_dot(&mut clouds, &name, dot);
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
    let x = Axis::logarithmic("operations, GFLOP", Unit::Plain);
    let y = Axis::linear("share of the ceiling", Unit::Fraction);
    let plot = Plot::Scatter(Scatter::new(x, y, clouds));
    Some(Figure::new("products", "Share of the ceiling over size", caption, plot, records))
}
