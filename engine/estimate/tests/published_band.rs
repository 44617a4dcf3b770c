//! The bands of the program are those of the published rows, and hold what they say.

use std::path::Path;
use zbench_estimate::band::{Band, MEMORY, SPEED};
use zbench_estimate::published::score::{Outcome, Residuals};
use zbench_estimate::published::validate::{Kind, folder};

fn outcomes(wanted: Kind) -> Vec<Outcome> {
    let found =
        folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/published")).expect("the published rows");
    found.into_iter().filter(|(kind, _)| *kind == wanted).flat_map(|(_, outcomes)| outcomes).collect()
}

/// Three digits are written down.
const WRITTEN: f64 = 0.0006;

fn check(band: Band, residuals: &Residuals) {
    let (low, high) = residuals.band(0.8).expect("rows");
    assert!((low - band.low).abs() < WRITTEN && (high - band.high).abs() < WRITTEN, "{}: {low} to {high}", band.of);
    assert_eq!((residuals.rows(), residuals.families()), (band.rows, band.families), "{}", band.of);
    // An 80 % band of these rows holds 80 % of them, families counted once; one row of a family of one may lie on its edge.
    let held = residuals.held(low, high);
    assert!((0.8..0.9).contains(&held) && band.share == 0.8, "{}: {held}", band.of);
    // A family that the band has not seen: within a tenth of what the band says of those it has.
    let left_out = residuals.left_out(0.8).expect("several families");
    assert!((left_out - band.left_out).abs() < WRITTEN, "{}: {left_out}", band.of);
    assert!((left_out - 0.8).abs() <= 0.1, "{}: {left_out}", band.of);
}

#[test]
fn the_band_of_memory_is_that_of_measured_peaks() {
    let rows: Vec<Outcome> =
        outcomes(Kind::Memory).into_iter().filter(|outcome| outcome.quantity == "peak_memory_per_gpu").collect();
    check(MEMORY, &Residuals::of(&rows));
}

#[test]
fn the_band_of_speed_is_that_of_all_scored_rows() {
    check(SPEED, &Residuals::of(&outcomes(Kind::Throughput)));
}

/// By hand: two families, one of four rows and one of one. Each weighs one half, so the single row is beyond the band's edge
/// only where half of all weight may be.
#[test]
fn a_family_counts_once_however_many_rows_it_has() {
    let row = |family: &str, quantity: &str, published: f64, predicted: f64| Outcome {
        id: String::new(),
        family: family.into(),
        quantity: quantity.into(),
        unit: String::new(),
        bound: String::new(),
        published: Some(published),
        predicted: Some(predicted),
        scored: true,
        reason: String::new(),
        fits: None,
        rounding: 0.0,
    };
    let mut rows: Vec<Outcome> = [1.0, 1.1, 1.2, 1.3].map(|x| row("many", "tokens_per_s_per_gpu", x, 1.0)).into();
    // A step that took twice as long as predicted was half as fast.
    rows.push(row("one", "step_time_s", 2.0, 1.0));
    rows.push(Outcome { scored: false, ..row("one", "step_time_s", 9.0, 1.0) });
    let residuals = Residuals::of(&rows);
    assert_eq!((residuals.rows(), residuals.families()), (5, 2));
    let (low, high) = residuals.band(0.8).expect("rows");
    assert!((low - 0.5).abs() < 1e-12 && (high - 1.3).abs() < 1e-12, "{low} {high}");
    assert!((residuals.held(0.9, 1.15) - 0.25).abs() < 1e-12, "two of four rows of one of two families");
    // Each family outside the other's band.
    assert_eq!(residuals.left_out(0.8), Some(0.0));
    assert_eq!(Residuals::of(&[]).band(0.8), None);
}
