//! Reads a file of `--trace`: its form, and that it agrees with the record.

#![allow(dead_code)] // each of the two test programs uses a part

use crate::support::{stderr, stdout, zbench};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};

pub const ZERO3: &str = r#"
name = "traced"
[model]
family = "llama"
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 3
num_attention_heads = 4
vocab_size = 256
max_position_embeddings = 64
[train]
seq_len = 64
steps = 4
untimed_steps = 1
accumulation = 2
[parallel]
ranks = 4
strategy = "zero3"
stall = "60s"
[hardware]
threads_per_rank = 1
"#;

pub fn traced(folder: &Path, arguments: &[&str]) -> (Output, Value) {
    let trace = folder.join("trace.json");
    let mut command = zbench(&folder.join("nb"));
    without_launcher(&mut command);
    let output = command.args(arguments).arg("--trace").arg(&trace).output().unwrap();
    (output, read(&trace))
}

pub fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The tests may themselves run under some launcher.
pub fn without_launcher(command: &mut Command) {
    for (name, _) in std::env::vars() {
        let launchers = ["RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "OMPI_", "PMI", "MV2_", "TORCHELASTIC"];
        if launchers.iter().any(|launcher| name.starts_with(launcher)) {
            command.env_remove(name);
        }
    }
}

pub fn record(output: &Output) -> Value {
    let text = stdout(output);
    serde_json::from_str(text.lines().next().unwrap_or_else(|| panic!("{}", stderr(output)))).unwrap()
}

pub fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path}"))
}

pub fn text<'v>(value: &'v Value, path: &str) -> &'v str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

pub fn events(trace: &Value) -> &[Value] {
    trace["traceEvents"].as_array().unwrap()
}

/// Nanoseconds: times are microseconds with three digits behind the point.
pub fn ns(event: &Value, field: &str) -> i64 {
    let us = event[field].as_f64().unwrap_or_else(|| panic!("{field} of {event}"));
    (us * 1e3).round() as i64
}

pub fn lane(event: &Value) -> (u64, u64) {
    (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap())
}

/// What Chrome's trace event format and Perfetto's reader of it ask for: fields and their types by kind of event, slices of
/// a lane that lie in one another or apart, arrows with both ends and each in a slice, and names for what there is.
pub fn check(trace: &Value) {
    let mut slices: BTreeMap<(u64, u64), Vec<(i64, i64)>> = BTreeMap::new();
    let (mut processes, mut threads) = (BTreeSet::new(), BTreeSet::new());
    let mut arrows: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    let mut counters = BTreeSet::new();
    for event in events(trace) {
        assert!(event["name"].is_string() && event["pid"].is_u64(), "{event}");
        match event["ph"].as_str().unwrap() {
            "M" => {
                match event["name"].as_str().unwrap() {
                    "process_name" => assert!(processes.insert(event["pid"].as_u64().unwrap()), "named twice: {event}"),
                    "thread_name" => assert!(threads.insert(lane(event)), "named twice: {event}"),
                    "process_sort_index" | "process_labels" => {}
                    other => panic!("metadata {other}"),
                }
                assert!(event["args"].is_object());
            }
            "X" => {
                assert!(ns(event, "dur") >= 0 && event["args"].is_object() && event["cat"].is_string(), "{event}");
                let (from, lasts) = (ns(event, "ts"), ns(event, "dur"));
                slices.entry(lane(event)).or_default().push((from, from + lasts));
            }
            "C" => {
                assert!(event["ts"].is_f64() && event["args"]["bytes"].is_u64(), "{event}");
                counters.insert((event["pid"].as_u64().unwrap(), event["name"].as_str().unwrap()));
            }
            "s" | "f" => arrows.entry(event["id"].as_u64().unwrap()).or_default().push(event),
            "i" => assert!(event["s"] == "p" && event["ts"].is_f64(), "{event}"),
            other => panic!("{other} is none of ours"),
        }
    }
    for (lane, slices) in &mut slices {
        assert!(processes.contains(&lane.0) && threads.contains(lane), "{lane:?} has no name");
        slices.sort_by_key(|(from, until)| (*from, -until));
        let mut open: Vec<(i64, i64)> = Vec::new();
        for slice in slices.iter() {
            while open.last().is_some_and(|(_, until)| *until <= slice.0) {
                open.pop();
            }
            assert!(open.last().is_none_or(|outer| slice.1 <= outer.1), "{lane:?}: {slice:?} crosses {open:?}");
            open.push(*slice);
        }
    }
    for (id, ends) in &arrows {
        let [start, end] = ends[..] else { panic!("arrow {id} has {} ends", ends.len()) };
        assert!(start["ph"] == "s" && end["ph"] == "f" && end["bp"] == "e", "{start} {end}");
        assert!(ns(start, "ts") <= ns(end, "ts") && start["name"] == end["name"] && start["cat"] == end["cat"]);
        for end in [start, end] {
            let at = ns(end, "ts");
            let holds = |(from, until): &(i64, i64)| *from <= at && at <= *until;
            assert!(slices[&lane(end)].iter().any(holds), "an arrow's end in no slice: {end}");
        }
    }
    assert!(counters.iter().all(|(pid, _)| processes.contains(pid)));
}

/// The number of the process of each rank, and of the prediction's.
pub fn ranks(trace: &Value) -> BTreeMap<usize, u64> {
    let named = events(trace).iter().filter(|event| event["name"] == "process_name");
    let rank = |event: &Value| {
        let (rank, _) = text(event, "/args/name").strip_prefix("rank ")?.split_once(" · ")?;
        Some((rank.parse().ok()?, event["pid"].as_u64()?))
    };
    named.filter_map(rank).collect()
}

/// Slices of a category on the lanes of a process that lie in timed steps.
pub fn timed<'t>(trace: &'t Value, pid: u64, category: &str) -> Vec<&'t Value> {
    let of = |event: &&Value| event["ph"] == "X" && event["pid"] == pid;
    let steps: Vec<(i64, i64)> = events(trace)
        .iter()
        .filter(of)
        .filter(|event| event["cat"] == "step" && event["args"]["timed"] == true)
        .map(|step| (ns(step, "ts"), ns(step, "ts") + ns(step, "dur")))
        .collect();
    let within = |event: &&Value| {
        let (from, until) = (ns(event, "ts"), ns(event, "ts") + ns(event, "dur"));
        steps.iter().any(|step| step.0 <= from && until <= step.1)
    };
    events(trace).iter().filter(of).filter(|event| event["cat"] == category).filter(within).collect()
}

pub fn sums(slices: &[&Value]) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for slice in slices {
        *sums.entry(text(slice, "/name").to_string()).or_default() += ns(slice, "dur") as f64 / 1e6;
    }
    sums
}

/// Its spans, collectives and memory are those of the record, within 1 %.
pub fn compare(trace: &Value, record: &Value) {
    let steps = record["steps"].as_array().unwrap().iter().filter(|step| step["timed"] == true).count() as f64;
    let ranks = ranks(trace);
    assert_eq!(ranks.len() as u64, record.pointer("/cell/parallel/ranks").unwrap().as_u64().unwrap());
    let spans: Vec<BTreeMap<String, f64>> = ranks.values().map(|pid| sums(&timed(trace, *pid, "span"))).collect();
    let total = |sums: &BTreeMap<String, f64>| sums.values().sum::<f64>();
    for (pid, spans) in ranks.values().zip(&spans) {
        let whole = total(&sums(&timed(trace, *pid, "step")));
        assert!((total(spans) / whole - 1.0).abs() < 0.01, "spans of {pid} take {} of {whole} ms", total(spans));
    }
    // The record's is of the rank whose spans add up to most.
    let slowest = spans.iter().max_by(|a, b| total(a).total_cmp(&total(b))).unwrap();
    let time = record["time"].as_object().unwrap();
    let step: f64 = time.values().filter_map(Value::as_f64).sum();
    assert!((total(slowest) / steps / step - 1.0).abs() < 0.01, "{} and {step}", total(slowest) / steps);
    for (span, ms) in time {
        let traced = slowest.get(span).copied().unwrap_or(0.0) / steps;
        assert!((traced - ms.as_f64().unwrap()).abs() < 0.01 * step, "{span}: {traced} and {ms}");
    }
    for row in record["communication"].as_array().unwrap() {
        let kind = text(row, "/kind");
        let of = |pid: &u64| {
            let flights = timed(trace, *pid, "collective");
            let own = |event: &&&Value| event["name"] == kind && event["args"]["axis"] == row["axis"];
            let flights: Vec<&Value> = flights.iter().filter(own).copied().collect();
            let wire: f64 = flights.iter().map(|flight| number(flight, "/args/wire_bytes")).sum();
            (total(&sums(&flights)) / steps, wire / steps, flights.len() as f64 / steps)
        };
        let all: Vec<(f64, f64, f64)> = ranks.values().map(of).collect();
        let most = |of: fn(&(f64, f64, f64)) -> f64| all.iter().map(of).fold(0.0, f64::max);
        assert!((most(|a| a.0) / number(row, "/ms") - 1.0).abs() < 0.01, "{kind}: {} and {row}", most(|a| a.0));
        // What MPI moves is not counted.
        match row["wire_bytes"].is_null() {
            true => assert_eq!(row["source"], "planned", "{row}"),
            false => assert_eq!(most(|a| a.1), number(row, "/wire_bytes"), "{kind}"),
        }
        assert_eq!(most(|a| a.2), number(row, "/calls"), "{kind}");
    }
    let peak = ranks.values().map(|pid| peak(trace, *pid)).max().unwrap();
    assert_eq!(peak as f64, number(record, "/metrics/peak_memory_bytes"));
}

/// The most memory that the counters of a rank add up to.
pub fn peak(trace: &Value, pid: u64) -> u64 {
    let of = |event: &&Value| event["ph"] == "C" && event["pid"] == pid && text(event, "/name").starts_with("memory ");
    let (mut live, mut most): (BTreeMap<&str, u64>, u64) = (BTreeMap::new(), 0);
    for counter in events(trace).iter().filter(of) {
        live.insert(text(counter, "/name"), counter["args"]["bytes"].as_u64().unwrap());
        if live.len() == 6 {
            most = most.max(live.values().sum());
        }
    }
    most
}
