//! In what two places differ.

use serde_json::{Map, Value, json};
use zbench_reports::environment::{Aspect, aspect, differences, differences_of_sets, known_aspect, why_not_the_same};
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

#[test]
fn known_names_have_an_aspect_and_others_are_software() {
    for (path, expected) in [
        ("limits.cpu_quota_cores", Aspect::Hardware),
        ("virtualisation", Aspect::Hardware),
        ("container", Aspect::Software),
        ("state.governor", Aspect::State),
    ] {
        assert_eq!((known_aspect(path), aspect(path)), (Some(expected), expected), "{path}");
    }
    assert_eq!((known_aspect("tomorrow.x"), aspect("tomorrow.x")), (None, Aspect::Software));
}

#[test]
fn records_of_another_place_say_why() {
    let now = json!({"cpu": "a", "cores": 2, "profile": "release", "commit": "c1", "zbench": "1", "kernel": "6", "state": {"governor": "x"}});
    let why = |change: Value| {
        let mut then = map(now.clone());
        then.extend(map(change));
        why_not_the_same(&then, &map(now.clone()))
    };
    assert_eq!(why(json!({})), None);
    assert_eq!(
        why(json!({"kernel": "7", "state": {"governor": "y"}, "host": "z"})),
        None,
        "system and moment do not count"
    );
    assert_eq!(why(json!({"cores": 4, "profile": "debug"})).unwrap(), "another machine (cores: 4, then 2)");
    assert_eq!(why(json!({"profile": "debug"})).unwrap(), "another build profile (profile: debug, then release)");
    assert_eq!(why(json!({"commit": "c1-dirty-1"})).unwrap(), "another build (commit: c1-dirty-1, then c1)");
    assert_eq!(why(json!({"zbench": "2"})), None, "the commit says it better");
    assert_eq!(why(json!({"zbench": "2", "commit": null})).unwrap(), "another build (zbench: 2, then 1)");
    assert_eq!(why(json!({"cpu": null, "caches": {"l3": 1}})), None, "what is not stated contradicts nothing");
    assert_eq!(why_not_the_same(&Map::new(), &map(now)), None);
}
