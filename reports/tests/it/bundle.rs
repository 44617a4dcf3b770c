//! Bundles: what is written is read, and whatever is not a whole bundle is refused with its reason.

use proptest::prelude::*;
use serde_json::json;
use std::io::Cursor;
use zbench_reports::bundle::{Bundle, BundleError, Redaction, read, write};
use zbench_reports::record::{Outcome, Rank};
use zbench_reports::redact::{host_hash, without_secrets};
use zbench_reports::{Record, Remark};
use zbench_test_tiers as tiers;

use super::any;
use super::redact::{BEGINNINGS, FORMS};

fn record(id: &str) -> Record {
    let mut record = Record::new(id, "key", "name", Outcome::measured());
    record.state("tokens_per_second", 1234.5);
    record
}

fn remark(id: &str) -> Remark {
    Remark::new(id, "on battery", "2026-01-01T00:00:00Z")
}

fn written(records: &[Record], remarks: &[Remark]) -> Vec<u8> {
    write(records, remarks, &Redaction::of_secrets(), "0.1.0", "2026-01-01T00:00:00Z").unwrap()
}

fn taken(bytes: &[u8]) -> Result<Bundle, BundleError> {
    read(Cursor::new(bytes))
}

#[test]
fn a_bundle_is_lines_with_a_manifest_first() {
    let bytes = written(&[record("one"), record("two")], &[remark("one")]);
    let text = String::from_utf8(bytes.clone()).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(
        (&lines[0]["zbench_bundle"], &lines[0]["records"]["count"], &lines[0]["remarks"]["count"]),
        (&json!(1), &json!(2), &json!(1))
    );
    assert_eq!(lines[1]["id"], "one");
    let bundle = taken(&bytes).unwrap();
    assert_eq!((bundle.records, bundle.remarks), (vec![record("one"), record("two")], vec![remark("one")]));
    assert_eq!(taken(&written(&[], &[])).unwrap().records, []);
}

#[test]
fn hosts_and_secrets_stay_at_home() {
    let mut one = record("one");
    one.command = "zbench run x.toml --token=abc".into();
    one.notes.push("rank 1 on node9 waited for 10.0.0.7".into());
    one.cell = json!({"name": "node9", "data": {"path": "/data/node9"}});
    one.environment.insert("libraries".into(), json!({"cublaslt": "12.8.4.1"}));
    one.ranks.push(Rank {
        rank: 0,
        host: "node9".into(),
        step_ms_p50: None,
        peak_bytes: None,
        extra: Default::default(),
    });
    one.ranks.push(Rank {
        rank: 1,
        host: host_hash("node8"),
        step_ms_p50: None,
        peak_bytes: None,
        extra: Default::default(),
    });
    let said = Remark::new("one", "ask bob, http://bob:pw@wiki, about own7", "x");
    let redaction = Redaction::of_hosts("own7");
    let bundle = taken(&write(&[one.clone()], std::slice::from_ref(&said), &redaction, "0", "t").unwrap()).unwrap();
    let out = &bundle.records[0];
    assert_eq!(out.command, "zbench run x.toml --token=<redacted>");
    assert_eq!(out.notes, [format!("rank 1 on {} waited for {}", host_hash("node9"), host_hash("10.0.0.7"))]);
    assert_eq!(out.ranks[0].host, host_hash("node9"));
    assert_eq!(out.ranks[1].host, host_hash("node8"), "a hash is not hashed again");
    assert_eq!((&out.cell, &out.environment), (&one.cell, &one.environment), "the cell is still the cell");
    assert_eq!(bundle.remarks[0].text, format!("ask bob, http://<redacted>@wiki, about {}", host_hash("own7")));
    assert_eq!(bundle.manifest.redacted, ["secrets", "hosts"]);
    let kept = taken(&write(&[one], &[said], &Redaction::of_secrets(), "0", "t").unwrap()).unwrap();
    assert_eq!(kept.records[0].ranks[0].host, "node9");
    assert_eq!(kept.records[0].command, "zbench run x.toml --token=<redacted>");
    assert_eq!(kept.manifest.redacted, ["secrets"]);
}

/// A copy that ended after any byte is never taken for a whole one.
#[test]
fn cut_off_anywhere_is_refused() {
    let bytes = written(&[record("one"), record("two")], &[remark("one")]);
    let manifest = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for length in 0..bytes.len() {
        let error = taken(&bytes[..length]).unwrap_err();
        let is_right = match &error {
            BundleError::NotABundle { .. } => length < manifest,
            BundleError::CutOff { .. } => length >= manifest,
            _ => false,
        };
        assert!(is_right, "{length}: {error}");
    }
    let mut longer = bytes.clone();
    longer.push(b'\n');
    assert!(matches!(taken(&longer), Err(BundleError::Line { .. })));
}

#[test]
fn another_byte_is_another_hash() {
    let bytes = written(&[record("one")], &[remark("one")]);
    let manifest = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for place in manifest..bytes.len() {
        let mut changed = bytes.clone();
        changed[place] ^= 1;
        assert!(matches!(taken(&changed), Err(BundleError::Changed { .. })), "{place}");
    }
}

/// A bundle whose manifest is true and whose lines are `records`.
fn forged(records: &[serde_json::Value], schema: u64) -> Vec<u8> {
    let body: String = records.iter().map(|value| format!("{value}\n")).collect();
    let part = |text: &str, count: usize| json!({"count": count, "bytes": text.len(), "blake3": blake3_hex(text)});
    let manifest = json!({"zbench_bundle": 1, "schema": schema, "zbench": "9", "created": "", "redacted": [],
        "records": part(&body, records.len()), "remarks": part("", 0)});
    format!("{manifest}\n{body}").into_bytes()
}

fn blake3_hex(text: &str) -> String {
    // The hash of a part stands in a bundle that holds nothing else.
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

#[test]
fn what_no_notebook_can_hold_is_refused_by_line() {
    let good = serde_json::to_value(record("one")).unwrap();
    assert_eq!(taken(&forged(std::slice::from_ref(&good), 1)).unwrap().records.len(), 1);
    let mut nameless = good.clone();
    nameless["id"] = "".into();
    for (lines, wanted) in [
        (vec![good.clone(), good.clone()], 3),
        (vec![nameless], 2),
        (vec![json!({"schema": 1})], 2),
        (vec![good.clone(), json!([1])], 3),
    ] {
        let error = taken(&forged(&lines, 1)).unwrap_err();
        assert!(matches!(error, BundleError::Line { line, .. } if line == wanted), "{error}");
    }
    let mut newer = good;
    newer["schema"] = 99.into();
    for bundle in [forged(&[newer.clone()], 1), forged(&[newer], 99)] {
        let error = taken(&bundle).unwrap_err();
        assert!(matches!(error, BundleError::Newer { what: "schema", found: 99, .. }), "{error}");
        assert!(error.to_string().contains("update zbench"));
    }
    let form = b"{\"zbench_bundle\": 2, \"whatever\": 1}\n";
    assert!(matches!(taken(form), Err(BundleError::Newer { what: "form", found: 2, .. })));
}

#[test]
fn a_manifest_that_lies_about_sizes_costs_nothing() {
    let huge = json!({"zbench_bundle": 1, "schema": 1, "zbench": "", "created": "", "redacted": [],
        "records": {"count": u64::MAX, "bytes": u64::MAX, "blake3": ""}, "remarks": {"count": u64::MAX, "bytes": 0, "blake3": ""}});
    assert!(matches!(taken(format!("{huge}\nx").as_bytes()), Err(BundleError::CutOff { found: 1, .. })));
    let endless = vec![b'{'; 1 << 20];
    assert!(matches!(taken(&endless), Err(BundleError::NotABundle { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_records_come_back(records in proptest::collection::vec(any::record(), 0..4)) {
        let mut records = records;
        // Ids and keys of a notebook are there, and its ids are unique.
        for (place, record) in records.iter_mut().enumerate() {
            record.id = format!("{place}{}", record.id);
            record.schema = 1;
        }
        let bundle = taken(&write(&records, &[], &Redaction::of_hosts("h"), "0", "t").unwrap()).unwrap();
        prop_assert_eq!(bundle.records.len(), records.len());
        for (out, record) in bundle.records.iter().zip(&records) {
            // A name or id that chance made look like user:password@host comes back as the redaction leaves it.
            let json = |value: &Record| match serde_json::to_value(&value.metrics).unwrap() {
                serde_json::Value::Object(all) => all.into_iter().map(|(name, one)| (without_secrets(&name), one)).collect(),
                other => other,
            };
            prop_assert_eq!((&out.id, json(out)), (&without_secrets(&record.id), json(record)));
            prop_assert_eq!(out.steps.len(), record.steps.len());
        }
    }

    #[test]
    fn any_bytes_are_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(taken(&bytes).is_err());
    }

    /// A true bundle with any damage is refused, or is still the same.
    #[test]
    fn any_damage_is_refused_or_harmless(flips in proptest::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..5)) {
        let whole = written(&[record("one"), record("two")], &[remark("one")]);
        let mut bytes = whole.clone();
        for (index, flip) in &flips {
            bytes[index.index(whole.len())] ^= flip;
        }
        if let Ok(bundle) = taken(&bytes) {
            prop_assert_eq!(bundle.records, [record("one"), record("two")]);
            prop_assert_eq!(bundle.remarks, [remark("one")]);
        }
    }
}

/// A record with a text in every kind of field, and where each stands.
fn texts(text: &str) -> Vec<(&'static str, Record)> {
    let places = [
        "name",
        "question",
        "command",
        "notes",
        "reason",
        "cell",
        "deep",
        "list",
        "environment",
        "variable",
        "field",
        "unstated",
        "extra",
    ];
    let planted = |place: &&'static str| {
        let mut one = record("one");
        one.environment.insert("cpu".into(), "plain".into());
        match *place {
            "name" => one.name = text.into(),
            "question" => drop(one.extra.insert("question".into(), text.into())),
            "command" => one.command = text.into(),
            "notes" => one.notes.extend(["before".into(), text.into()]),
            "reason" => one.outcome = Outcome::ended(zbench_reports::record::Status::Failed, text, None),
            "cell" => one.cell = json!({"model": text}),
            "deep" => one.cell = json!({"a": [{"b": {"c": [1, text]}}]}),
            "list" => one.validity.push(text.into()),
            "environment" => drop(one.environment.insert("host".into(), text.into())),
            "variable" => drop(one.environment.insert("variables".into(), json!({"NCCL_X": text}))),
            "field" => one.cell = json!({"settings": {text: 1}}),
            "unstated" => one.unstated.insert("x", text.into()),
            _ => drop(one.extra.insert("more".into(), json!({"said": [text]}))),
        }
        (*place, one)
    };
    places.iter().map(planted).collect()
}

#[test]
fn secret_fields_lose_their_values() {
    let mut one = record("one");
    one.environment.insert("variables".into(), json!({"MY_API_KEY": "abc", "TOKENIZERS_PARALLELISM": "false"}));
    one.cell = json!({"client_secret": ["a", "b"], "password": "x", "key": "0123456789abcdef", "eos_token": "</s>", "lr": "1e-3"});
    let out = taken(&written(&[one.clone()], &[])).unwrap().records.remove(0);
    assert_eq!(out.environment["variables"], json!({"MY_API_KEY": "<redacted>", "TOKENIZERS_PARALLELISM": "false"}));
    assert_eq!(
        out.cell,
        json!({"client_secret": ["<redacted>", "<redacted>"], "password": "<redacted>", "key": "0123456789abcdef", "eos_token": "</s>", "lr": "1e-3"})
    );
    assert_eq!((out.id, out.key), (one.id, one.key));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(tiers::cases("planted secrets", [64, 128, 256])))]

    #[test]
    fn a_planted_secret_is_in_no_field(
        secret in "[A-Za-z][0-9][A-Za-z0-9!%*+.^~_-]{6,20}[A-Za-z0-9]",
        form in 0..FORMS.len(),
        body in "[A-Z0-9]{15}[0-9][A-Z0-9]{4,20}",
        begin in 0..BEGINNINGS.len(),
    ) {
        let cases = [(FORMS[form].replace("{}", &secret), &secret), (format!("{}{body}", BEGINNINGS[begin]), &body)];
        for (text, secret) in cases {
            for (place, one) in texts(&text) {
                for redaction in [Redaction::of_secrets(), Redaction::of_hosts("own7")] {
                    let said = Remark::new("one", &text, "t");
                    let bytes = write(std::slice::from_ref(&one), &[said], &redaction, "0", "t").unwrap();
                    let bundle = String::from_utf8(bytes).unwrap();
                    prop_assert!(!bundle.contains(secret.as_str()), "{}: {:?} is in {}", place, text, bundle);
                }
            }
        }
    }
}
