use super::*;
use zbench_engine::action::span::Span;

fn residual(name: &str, factor: f64, records: usize) -> Residual {
    Residual { name: name.into(), factor, low: factor * 0.9, high: factor * 1.1, records }
}

#[test]
fn spans_with_enough_records_are_corrected_and_no_others() {
    let spans = vec![residual("forward", 1.2, FEWEST), residual("data", 9.0, FEWEST - 1)];
    let corrections = Residuals { spans, ..Residuals::default() }.corrections("today");
    let factors = corrections.factors();
    assert_eq!(factors[Span::Forward], 1.2);
    assert!(factors.iter().all(|(span, factor)| span == Span::Forward || factor == 1.0));
    let said = corrections.to_string();
    assert!(said.contains("forward x1.20 (1.08 to 1.32, 3 records)") && !said.contains("data"), "{said}");
}
