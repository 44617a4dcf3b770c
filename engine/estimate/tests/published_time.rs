//! Published speeds, collectives and kernels against what is predicted of them. Limits are those of issue 7, but for what
//! is said where they stand.

use zbench_estimate::published::row::{Row, read};
use zbench_estimate::published::throughput::{Prepared, prepare};
use zbench_estimate::published::{collectives, kernels};
use zbench_estimate::tuning::Tuning;

fn file(name: &str) -> Vec<Row> {
    let path = format!("{}/../../tests/published/{name}.csv", env!("CARGO_MANIFEST_DIR"));
    read(&std::fs::read_to_string(path).expect(name)).expect("CSV")
}

fn quantile(errors: &mut [f64], share: f64) -> f64 {
    errors.sort_by(f64::total_cmp);
    errors[((errors.len() - 1) as f64 * share).round() as usize]
}

fn scored() -> Vec<(Row, Prepared)> {
    file("throughput")
        .into_iter()
        .filter_map(|row| prepare(&row).ok().map(|prepared| (row, prepared)))
        .filter(|(row, prepared)| row.trusted() && row.text("bound").is_empty() && prepared.stated.is_some())
        .collect()
}

fn errors(cases: &[(Row, Prepared)], half: Option<bool>) -> Vec<f64> {
    let some = cases.iter().filter(|(row, _)| half.is_none_or(|half| row.fits() == half));
    some.map(|(_, prepared)| (prepared.value(&Tuning::DEFAULT) / prepared.stated.unwrap_or(1.0) - 1.0).abs()).collect()
}

#[test]
fn speeds() {
    let cases = scored();
    let rows = file("throughput").len();
    assert!(cases.len() > 380, "{} of {rows} rows are scored", cases.len());
    for half in [None, Some(false)] {
        let mut errors = errors(&cases, half);
        let (median, p90) = (quantile(&mut errors, 0.5), quantile(&mut errors, 0.9));
        assert!(median <= 0.08, "median {median} of {half:?}");
        assert!(p90 <= 0.20, "90th percentile {p90} of {half:?}");
    }
}

#[test]
fn rows_that_can_be_expressed() {
    let all = file("throughput");
    let expressed = all.iter().filter(|row| prepare(row).is_ok()).count();
    assert!(expressed as f64 >= 0.85 * all.len() as f64, "{expressed} of {}", all.len());
    let all = file("kernels");
    let expressed = all.iter().filter(|row| kernels::predict(row).is_ok()).count();
    assert!(expressed as f64 >= 0.85 * all.len() as f64, "{expressed} of {}", all.len());
    // Eleven of 81 rows of collectives name no hardware at all.
    let all = file("collectives");
    let expressed = all.iter().filter(|row| collectives::predict(row).is_ok()).count();
    assert!(expressed as f64 >= 0.85 * all.len() as f64, "{expressed} of {}", all.len());
}

#[test]
fn the_faster_of_two_configurations_is_known() {
    let cases = scored();
    let (mut right, mut all) = (0, 0);
    for (index, (row, a)) in cases.iter().enumerate() {
        for (other, b) in &cases[index + 1..] {
            if row.family() != other.family() || a.rate() != b.rate() {
                continue;
            }
            let (a, b, stated_a, stated_b) = (a.value(&Tuning::DEFAULT), b.value(&Tuning::DEFAULT), a.stated, b.stated);
            let stated = stated_a.unwrap_or(1.0) / stated_b.unwrap_or(1.0);
            if stated.ln().abs() > 1.05_f64.ln() {
                all += 1;
                right += usize::from((stated > 1.0) == (a > b));
            }
        }
    }
    assert!(right as f64 >= 0.9 * f64::from(all), "{right} of {all}");
}

#[test]
fn large_collectives() {
    let mut errors: Vec<f64> = file("collectives")
        .iter()
        .filter(|row| row.trusted() && row.number("size_bytes").is_none_or(|size| size >= 1_048_576.0))
        .filter_map(|row| collectives::predict(row).ok()?.error())
        .collect();
    assert!(errors.len() > 50);
    let median = quantile(&mut errors, 0.5);
    assert!(median <= 0.10, "{median}");
}

/// The shape of the curve below: never less than half nor more than twice, but for two messages of 64 and 128 KiB over
/// four nodes whose times (3.1 and 0.6 ms) are above those of larger ones.
#[test]
fn small_collectives_within_a_node() {
    for row in file("collectives") {
        let small = row.number("size_bytes").is_some_and(|size| size < 1_048_576.0);
        if !small || row.positive("n_nodes") != Some(1) || !row.trusted() {
            continue;
        }
        let guess = collectives::predict(&row).expect("a node of a known kind");
        let ratio = guess.predicted / guess.stated.expect("a stated bandwidth");
        assert!((0.5..2.0).contains(&ratio), "{}: {ratio}", row.id());
    }
}

#[test]
fn kernels_of_attention_and_products() {
    let mut errors: Vec<f64> = file("kernels")
        .iter()
        .filter(|row| row.trusted())
        .filter_map(|row| kernels::predict(row).ok()?.error())
        .collect();
    assert!(errors.len() > 150);
    let median = quantile(&mut errors, 0.5);
    assert!(median <= 0.10, "{median}");
}
