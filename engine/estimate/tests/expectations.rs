//! Every prediction of a published row, as it was when it was last looked at: a change of the estimator shows which rows it
//! moves. `ZBENCH_BLESS=1 cargo test -p zbench-estimate expectations` stores them anew; what a change does to the
//! errors stands in tests/published_*.rs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use zbench_estimate::published::validate;

/// Predictions are sums of a few hundred numbers: this is above what another order of them does.
const TOLERANCE: f64 = 1e-6;

fn stored() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expected.txt")
}

/// By row: quantity and prediction, or why there is none.
fn predicted() -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/published");
    let mut found = BTreeMap::new();
    for (_, outcomes) in validate::folder(&folder).unwrap() {
        for outcome in outcomes {
            let value = match outcome.predicted {
                Some(value) => format!("{} {value:.9e}", outcome.quantity),
                None => format!("- {}", outcome.reason.replace('\n', " ")),
            };
            assert!(found.insert(outcome.id.clone(), value).is_none(), "{} stands twice", outcome.id);
        }
    }
    found
}

#[test]
fn predictions_are_those_that_were_stored() {
    let found = predicted();
    if std::env::var_os("ZBENCH_BLESS").is_some() {
        let mut text = String::new();
        for (id, value) in &found {
            writeln!(text, "{id} {value}").unwrap();
        }
        std::fs::write(stored(), text).unwrap();
        return;
    }
    let text = std::fs::read_to_string(stored()).unwrap();
    let expected: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once(' ')).collect();
    assert_eq!(expected.len(), found.len(), "rows came or went");
    let mut moved = Vec::new();
    for (id, value) in &found {
        let before = expected.get(id.as_str()).copied().unwrap_or("nothing");
        let number = |text: &str| text.split(' ').nth(1).and_then(|number| number.parse::<f64>().ok());
        let same = match (number(before), number(value)) {
            (Some(a), Some(b)) => (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()),
            _ => before == value,
        };
        if !same {
            moved.push(format!("{id}: {before} -> {value}"));
        }
    }
    assert!(moved.is_empty(), "{} rows are predicted otherwise:\n{}", moved.len(), moved.join("\n"));
}
