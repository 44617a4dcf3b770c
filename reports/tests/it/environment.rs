//! In what two places differ.

use serde_json::{Map, Value, json};
use zbench_reports::environment::{Aspect, differences, differences_of_sets};
use zbench_reports::record::{Outcome, Record};

fn map(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap()
}

#[test]
fn hardware_comes_first_and_absence_is_a_difference() {
    let a = map(json!({"zbench": "1", "cores": 2, "state": {"governor": "powersave"}, "caches": {"l2": 1, "l3": 2}}));
    let b = map(json!({"zbench": "2", "cores": 2, "caches": {"l2": 1, "l3": 4}, "rustc": "x"}));
    let found: Vec<_> = differences(&a, &b).into_iter().map(|d| (d.path, d.aspect, d.a, d.b)).collect();
    assert_eq!(
        found,
        [
            ("caches.l3".to_string(), Aspect::Hardware, json!(2), json!(4)),
            ("zbench".to_string(), Aspect::Software, json!("1"), json!("2")),
            ("rustc".to_string(), Aspect::Software, Value::Null, json!("x")),
            ("state.governor".to_string(), Aspect::State, json!("powersave"), Value::Null),
        ]
    );
    assert!(differences(&a, &a).is_empty());
}

#[test]
fn sets_differ_when_their_values_do() {
    let record = |cores: u32| {
        let mut record = Record::new("i", "k", "n", Outcome::measured());
        record.environment = map(json!({"cores": cores}));
        record
    };
    let (two, four) = (record(2), record(4));
    assert!(differences_of_sets(&[&two, &four], &[&four, &two, &two]).is_empty());
    let found = differences_of_sets(&[&two, &four], &[&two]);
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0].a, &found[0].b), (&json!([2, 4]), &json!(2)));
    assert_eq!(found[0].words(), "cores: [2,4], then 2");
}
