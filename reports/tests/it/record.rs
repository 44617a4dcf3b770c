//! Round trips of records.

use proptest::prelude::*;
use serde_json::{Value, json};
use zbench_reports::record::*;
use zbench_reports::{OrderedMap, Record};

use super::any;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// NaN differs from itself, so the JSON is compared: writing, reading and writing again changes nothing.
    #[test]
    fn a_record_survives_the_round_trip(record in any::record()) {
        let value = serde_json::to_value(&record).unwrap();
        let line = serde_json::to_string(&record).unwrap();
        prop_assert!(!line.contains('\n'));
        let back: Record = serde_json::from_str(&line).unwrap();
        prop_assert_eq!(&serde_json::to_value(&back).unwrap(), &value);
        prop_assert_eq!(serde_json::to_string(&back).unwrap(), line);
    }

    #[test]
    fn every_finite_number_keeps_its_bits(value in proptest::num::f64::ANY) {
        let mut record = Record::new("id", "key", "", Outcome::measured());
        record.state("loss_last", value);
        let back: Record = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
        let expected = value.is_finite().then(|| value.to_bits());
        prop_assert_eq!(back.metrics.number("loss_last").map(f64::to_bits), expected);
        prop_assert_eq!(back.unstated.get("loss_last").is_some(), !value.is_finite());
    }

    #[test]
    fn reading_any_json_never_panics(value in any::json_value(), key in "[a-z]{1,8}") {
        let mut object = serde_json::to_value(Record::new("id", "key", "", Outcome::measured())).unwrap();
        object[key] = value.clone();
        let _ = serde_json::from_value::<Record>(object);
        let _ = serde_json::from_value::<Record>(value);
    }
}

#[test]
fn numbers_that_are_not_finite_are_null_and_come_back() {
    let mut record = Record::new("id", "key", "", Outcome::ended(Status::Diverged, "loss is NaN at step 3", None));
    record.steps.push(Step {
        step: 3,
        timed: true,
        loss: f64::NAN,
        grad_norm: f64::INFINITY,
        lr: 1e-3,
        ms: 2.5,
        tokens: 64,
        extra: Extra::new(),
    });
    let value = serde_json::to_value(&record).unwrap();
    assert_eq!(
        value["steps"][0],
        json!({"step": 3, "timed": true, "loss": null, "grad_norm": null, "lr": 1e-3, "ms": 2.5, "tokens": 64})
    );
    assert_eq!(value["outcome"], json!({"status": "diverged", "reason": "loss is NaN at step 3"}));
    let back: Record = serde_json::from_value(value).unwrap();
    assert!(back.steps[0].loss.is_nan() && back.steps[0].grad_norm.is_nan());
}

#[test]
fn the_names_are_those_of_the_contract() {
    let mut record = Record::new("id", "key", "name", Outcome::ended(Status::OutOfMemory, "r", Some(Source::Arena)));
    record.memory.set(
        Category::Optimizer,
        Bytes { predicted_bytes: Some(8), peak_bytes: Some(8), at_peak_bytes: Some(4), extra: Extra::new() },
    );
    record.parity.verdict = Verdict::WithinTolerance;
    let value = serde_json::to_value(&record).unwrap();
    let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "schema",
            "id",
            "key",
            "name",
            "trial",
            "cell",
            "environment",
            "command",
            "started",
            "outcome",
            "metrics",
            "unstated",
            "steps",
            "memory",
            "ranks",
            "communication",
            "time",
            "flops",
            "parity",
            "estimate",
            "validity",
            "notes"
        ]
    );
    assert_eq!(value["outcome"], json!({"status": "out_of_memory", "reason": "r", "source": "arena"}));
    assert_eq!(value["memory"], json!({"optimizer": {"predicted_bytes": 8, "peak_bytes": 8, "at_peak_bytes": 4}}));
    assert_eq!(value["parity"], json!({"reference": null, "max_loss_difference": null, "verdict": "within_tolerance"}));
}

#[test]
fn names_keep_their_order_and_the_last_value_wins() {
    let named: OrderedMap<Option<f64>> = serde_json::from_str(r#"{"z": 1, "a": null, "z": 3}"#).unwrap();
    assert_eq!(named.names().collect::<Vec<_>>(), ["z", "a"]);
    assert_eq!(named.number("z"), Some(3.0));
    assert_eq!(named.number("a"), None);
    assert_eq!(serde_json::to_string(&named).unwrap(), r#"{"z":3.0,"a":null}"#);
}

#[test]
fn a_setting_is_found_by_its_dotted_path() {
    let mut record = Record::new("id", "key", "", Outcome::measured());
    record.cell = json!({"parallel": {"strategy": "zero3"}, "train": 3});
    assert_eq!(record.setting("parallel.strategy"), Some(&Value::from("zero3")));
    assert_eq!(record.setting("train.steps"), None);
    assert_eq!(record.setting("absent"), None);
}
