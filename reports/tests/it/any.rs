//! Arbitrary records, for property tests.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use zbench_reports::record::*;
use zbench_reports::{OrderedMap, Record};

/// Text with everything that breaks tables and lines: pipes, quotes, line ends, tabs, escapes, wide characters.
pub fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9_]{0,12}",
        any::<String>(),
        "[|\\\\`*<>&\"',;\r\n\t\u{1b}\u{0}\u{202e}\u{200b}漢字🚀é#~_\\[\\]-]{0,12}",
    ]
}

/// Numbers with those JSON does not have.
pub fn number() -> impl Strategy<Value = f64> {
    prop_oneof![any::<f64>(), Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY), 0.0..1e6f64]
}

fn finite() -> impl Strategy<Value = f64> {
    any::<f64>().prop_filter("finite", |value| value.is_finite())
}

/// JSON of a few levels, numbers finite.
pub fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        finite().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((text(), inner), 0..4).prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

/// Turns with any numbers, of few experiments, so that records come to share rounds.
fn turns() -> impl Strategy<Value = Turns> {
    let row = (0..5u32, any::<u32>(), number(), 0..3000u64, vec(number(), 0..3), any::<bool>()).prop_map(
        |(round, order, at, tokens, ms, counted)| TurnRow {
            round,
            order,
            at,
            tokens,
            ms,
            others: 0.0,
            stolen: 0.0,
            machine: None,
            counted,
            extra: Map::new(),
        },
    );
    let names = ("[xy]", 0..2u32, any::<u64>(), 0..3u32, proptest::option::of(text()), proptest::option::of(text()));
    let stated = (proptest::option::of(number()), proptest::option::of(number()));
    (names, any::<(bool, bool)>(), vec(row, 0..6), stated).prop_map(
        |((experiment, batch, seed, generation, stopped, why_not), (twin, reference), rows, (equal, seconds))| Turns {
            experiment,
            batch,
            seed,
            generation,
            twin,
            reference,
            stopped,
            equal: equal.filter(|share| share.is_finite()),
            budget: None,
            seconds: seconds.filter(|seconds| seconds.is_finite()),
            lost: None,
            busy: Vec::new(),
            rows,
            why_not,
            extra: Map::new(),
        },
    )
}

/// Keys that no version knows.
pub fn extra() -> impl Strategy<Value = Map<String, Value>> {
    vec(("future_[a-z]{1,6}", json_value()), 0..3).prop_map(|pairs| pairs.into_iter().collect())
}

fn numbers() -> impl Strategy<Value = OrderedMap<Option<f64>>> {
    vec((text(), proptest::option::of(finite())), 0..5).prop_map(|pairs| pairs.into_iter().collect())
}

pub fn status() -> impl Strategy<Value = Status> {
    proptest::sample::select(vec![
        Status::Measured,
        Status::Skipped,
        Status::OutOfMemory,
        Status::TimedOut,
        Status::Diverged,
        Status::Failed,
    ])
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let source = proptest::option::of(proptest::sample::select(vec![Source::Plan, Source::Arena, Source::Host]));
    (status(), text(), source).prop_map(|(status, reason, source)| Outcome { status, reason, source })
}

fn step() -> impl Strategy<Value = Step> {
    ((any::<u64>(), any::<bool>(), any::<u64>()), (number(), number(), number(), number()), extra()).prop_map(
        |((step, timed, tokens), (loss, grad_norm, lr, ms), extra)| Step {
            step,
            timed,
            loss,
            grad_norm,
            lr,
            ms,
            tokens,
            extra,
        },
    )
}

fn bytes() -> impl Strategy<Value = Bytes> {
    let any_bytes = || proptest::option::of(any::<u64>());
    (any_bytes(), any_bytes(), any_bytes(), extra()).prop_map(|(predicted_bytes, peak_bytes, at_peak_bytes, extra)| {
        Bytes { predicted_bytes, peak_bytes, at_peak_bytes, extra }
    })
}

fn memory() -> impl Strategy<Value = Memory> {
    (vec(proptest::option::of(bytes()), 6), proptest::option::of(bytes()), extra()).prop_map(|(parts, total, extra)| {
        let mut memory = Memory { total, extra, ..Memory::default() };
        for (category, part) in Category::ALL.into_iter().zip(parts) {
            if let Some(part) = part {
                memory.set(category, part);
            }
        }
        memory
    })
}

fn communication() -> impl Strategy<Value = Communication> {
    let maybe = || proptest::option::of(finite());
    (
        (text(), text(), number(), number(), any::<u32>().prop_map(f64::from)),
        (maybe(), number(), number(), maybe(), maybe()),
        extra(),
    )
        .prop_map(
            |(
                (axis, kind, calls, payload_bytes, wire_bytes),
                (predicted_wire_bytes, ms, exposed_ms, algbw_gb_s, busbw_gb_s),
                extra,
            )| Communication {
                axis,
                kind,
                calls,
                payload_bytes,
                wire_bytes,
                predicted_wire_bytes,
                ms,
                exposed_ms,
                algbw_gb_s,
                busbw_gb_s,
                extra,
            },
        )
}

fn parity() -> impl Strategy<Value = Parity> {
    let verdict = proptest::sample::select(vec![
        Verdict::Reference,
        Verdict::Identical,
        Verdict::WithinTolerance,
        Verdict::Failed,
        Verdict::None,
    ]);
    (proptest::option::of(text()), proptest::option::of(finite()), verdict, extra()).prop_map(
        |(reference, max_loss_difference, verdict, extra)| Parity { reference, max_loss_difference, verdict, extra },
    )
}

/// A record with anything in every field.
pub fn record() -> impl Strategy<Value = Record> {
    let names = (text(), "[ab]", text(), any::<u32>(), text(), text());
    let plain = (json_value(), extra(), json_value(), extra());
    let tables = (numbers(), vec((text(), text()), 0..3), numbers());
    let parts = (vec(step(), 0..5), memory(), vec(communication(), 0..3), parity());
    let rest = (outcome(), vec(text(), 0..3), vec(text(), 0..3), finite(), proptest::option::of(turns()));
    (names, plain, tables, parts, rest).prop_map(
        |((id, key, name, trial, command, started), plain, tables, parts, (outcome, validity, notes, flops, turns))| {
            let mut record = Record::new(id, key, name, outcome);
            record.trial = trial;
            record.command = command;
            record.started = started;
            (record.cell, record.environment, record.estimate, record.extra) = plain;
            record.metrics = tables.0;
            record.unstated = tables.1.into_iter().collect();
            record.time = tables.2;
            (record.steps, record.memory, record.communication, record.parity) = parts;
            record.validity = validity;
            record.turns = turns;
            record.notes = notes;
            record.flops.set("exact_causal", flops);
            record.flops.ledger.push(LedgerTerm {
                term: "head".into(),
                flops,
                formula: "2·T·d·V".into(),
                extra: Map::new(),
            });
            record.ranks.push(Rank {
                rank: 0,
                host: "a".into(),
                step_ms_p50: None,
                peak_bytes: Some(1),
                extra: json!({"clock_mhz": 1}).as_object().cloned().unwrap_or_default(),
            });
            record
        },
    )
}
