//! `--trace`: a file that is what the form wants, and says what the record says.

use crate::support::{TINY, root, stderr, stdout, write, zbench};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const ZERO3: &str = r#"
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

fn traced(folder: &Path, arguments: &[&str]) -> (Output, Value) {
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
fn without_launcher(command: &mut Command) {
    for (name, _) in std::env::vars() {
        let launchers = ["RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "OMPI_", "PMI", "MV2_", "TORCHELASTIC"];
        if launchers.iter().any(|launcher| name.starts_with(launcher)) {
            command.env_remove(name);
        }
    }
}

fn record(output: &Output) -> Value {
    let text = stdout(output);
    serde_json::from_str(text.lines().next().unwrap_or_else(|| panic!("{}", stderr(output)))).unwrap()
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path}"))
}

fn text<'v>(value: &'v Value, path: &str) -> &'v str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn events(trace: &Value) -> &[Value] {
    trace["traceEvents"].as_array().unwrap()
}

/// Nanoseconds: times are microseconds with three digits behind the point.
fn ns(event: &Value, field: &str) -> i64 {
    let us = event[field].as_f64().unwrap_or_else(|| panic!("{field} of {event}"));
    (us * 1e3).round() as i64
}

fn lane(event: &Value) -> (u64, u64) {
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
fn ranks(trace: &Value) -> BTreeMap<usize, u64> {
    let named = events(trace).iter().filter(|event| event["name"] == "process_name");
    let rank = |event: &Value| {
        let (rank, _) = text(event, "/args/name").strip_prefix("rank ")?.split_once(" · ")?;
        Some((rank.parse().ok()?, event["pid"].as_u64()?))
    };
    named.filter_map(rank).collect()
}

/// Slices of a category on the lanes of a process that lie in timed steps.
fn timed<'t>(trace: &'t Value, pid: u64, category: &str) -> Vec<&'t Value> {
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

fn sums(slices: &[&Value]) -> BTreeMap<String, f64> {
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
fn peak(trace: &Value, pid: u64) -> u64 {
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

#[test]
fn a_trace_of_four_ranks_of_zero3_is_their_record() {
    for backend in ["local", "shm", "tcp"] {
        let folder = tempfile::tempdir().unwrap();
        let file = write(folder.path(), ZERO3);
        let set = format!("parallel.backend={backend}");
        let (output, trace) =
            traced(folder.path(), &["run", file.to_str().unwrap(), "--set", &set, "--format", "json"]);
        assert_eq!(output.status.code(), Some(0), "{backend}: {}", stderr(&output));
        let record = record(&output);
        check(&trace);
        compare(&trace, &record);
        assert_eq!(record["trace"]["steps"], 5, "{backend}");
        assert!(number(&record, "/trace/recording_share") > 0.0);
        let notes = record["notes"].as_array().unwrap();
        assert!(notes.iter().any(|note| note.as_str().unwrap().starts_with("Traced: 5 steps")), "{notes:?}");
        // Gathers are started ahead and waited for where they are used.
        let arrows = events(&trace).iter().filter(|event| event["ph"] == "s").count();
        let started = events(&trace).iter().filter(|event| event["args"]["is_started"] == true).count();
        assert!(arrows > 0 && arrows == started, "{backend}");
        let summary = &trace["otherData"]["cells"][0];
        assert_eq!((&summary["record"], &summary["status"]), (&record["id"], &"measured".into()));
    }
}

#[test]
fn hybrid_meshes_evaluations_and_checkpoints_have_their_places() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), ZERO3);
    let dir = format!("checkpoint.dir={}", folder.path().join("saved").display());
    let sets = [
        "parallel.strategy=hsdp",
        "parallel.shard=2",
        "train.eval_every=2",
        "train.eval_share=0.1",
        &dir,
        "checkpoint.every=2",
    ];
    let mut arguments = vec!["run", file.to_str().unwrap(), "--format", "json"];
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    let (output, trace) = traced(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    check(&trace);
    compare(&trace, &record(&output));
    let axes: BTreeSet<&str> = events(&trace)
        .iter()
        .filter(|event| event["ph"] == "X" && event["cat"] == "collective")
        .map(|event| text(event, "/args/axis"))
        .collect();
    assert_eq!(axes.into_iter().collect::<Vec<_>>(), ["data", "inner", "outer"]);
    let named = |what: &str| events(&trace).iter().filter(|event| text(event, "/name").starts_with(what)).count();
    assert_eq!(named("evaluation after step "), 4 * 4, "before the first step, after 2, 4 and 5, on four ranks");
    assert!(named("checkpoint of step ") >= 2);
}

#[test]
fn a_grid_has_every_trial_in_one_file_and_only_so_many_steps() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), TINY);
    let arguments =
        ["grid", file.to_str().unwrap(), "--trials", "2", "--trace-steps", "2", "--only", "memory.checkpointing=none"];
    let (output, trace) = traced(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    check(&trace);
    let cells = trace["otherData"]["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4);
    assert!(cells.iter().all(|cell| cell["traced_steps"] == 2 && cell["steps"] == 3));
    let names: Vec<&str> = cells.iter().map(|cell| text(cell, "/cell")).collect();
    assert!(names[0].contains("ddp") && names[0].ends_with("trial 1") && names[3].ends_with("trial 2"), "{names:?}");
    // This folder has no profile of this machine, and that is said.
    assert!(cells.iter().all(|cell| text(cell, "/not_predicted").contains("calibrate")));
    // What is there is not run again, and its timeline stays.
    let (output, again) = traced(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("there is no timeline"), "{}", stderr(&output));
    assert_eq!(again, trace);
}

#[test]
fn plan_writes_what_is_predicted() {
    let folder = tempfile::tempdir().unwrap();
    let file = root().join("configs/llama70b.toml");
    let (output, trace) = traced(folder.path(), &["plan", file.to_str().unwrap(), "--format", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    check(&trace);
    let estimates: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let predicted = |event: &&Value| event["ph"] == "X" && event["cat"] == "predicted";
    let steps: Vec<f64> = events(&trace).iter().filter(predicted).map(|step| ns(step, "dur") as f64 / 1e6).collect();
    let wanted: Vec<f64> = estimates.iter().filter_map(|row| row["step_ms"].as_f64()).collect();
    assert!(!steps.is_empty() && steps.len() == wanted.len(), "{} and {}", steps.len(), wanted.len());
    for (step, wanted) in steps.iter().zip(&wanted) {
        assert!((step / wanted - 1.0).abs() < 1e-6, "{step} and {wanted}");
    }
}

#[test]
fn where_it_does_not_belong_or_cannot_be_written_nothing_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), ZERO3);
    let nowhere = folder.path().join("absent/trace.json");
    for (arguments, trace, words) in [
        (vec!["run", file.to_str().unwrap()], nowhere.to_str().unwrap(), "cannot be made"),
        (vec!["run", file.to_str().unwrap()], "/dev/full", "cannot be made"),
        (vec!["list"], "trace.json", "run, grid, repro and plan"),
        (vec!["gemm"], "trace.json", "run, grid, repro and plan"),
        (vec!["plan", "--validate", "tests/published"], "trace.json", "run, grid, repro and plan"),
    ] {
        let notebook = folder.path().join("nb");
        let output = zbench(&notebook).args(&arguments).args(["--trace", trace]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stdout(&output));
        assert!(stderr(&output).contains(words), "{arguments:?}: {}", stderr(&output));
        assert!(!notebook.join("records.jsonl").exists(), "{arguments:?}");
    }
    let gemm = folder.path().join("gemm.toml");
    std::fs::write(&gemm, "suite = \"gemm\"\n[gemm]\nshape = \"8x8x8\"\n").unwrap();
    let (nb, trace) = (folder.path().join("nb"), folder.path().join("trace.json"));
    let output = zbench(&nb).arg("grid").arg(&gemm).arg("--trace").arg(&trace).output().unwrap();
    assert!(output.status.code() == Some(1) && stderr(&output).contains("trains nothing"), "{}", stderr(&output));
    assert!(!trace.exists());
}

#[test]
fn what_is_stopped_leaves_a_file_that_opens() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &ZERO3.replace("steps = 4", "steps = 100000000"));
    let trace = folder.path().join("trace.json");
    let mut command = zbench(&folder.path().join("nb"));
    without_launcher(&mut command);
    command.arg("run").arg(&file).arg("--trace").arg(&trace).args(["--trace-steps", "256"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    while std::fs::metadata(&trace).map_or(0, |file| file.len()) < 100_000 {
        assert!(begin.elapsed() < Duration::from_secs(120), "no trace after two minutes");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let trace = read(&trace);
    check(&trace);
    assert!(!ranks(&trace).is_empty());
    assert_eq!(trace["otherData"]["cells"][0]["status"], "stopped");
}

/// A profile of this machine in which every operation of these cells has a time, and every collective.
fn profile(folder: &Path, text: &str) {
    use zbench_config::profile::operations::{Operations, RankLayout};
    use zbench_engine::planner::clock::Overheads;
    use zbench_engine::planner::curves::{Class, Curves, Point};
    let mut points = BTreeMap::new();
    for cell in crate::support::cells(text).unwrap() {
        let cell = cell.resolved.unwrap().cell;
        let kernels = zbench_kernels::Cpu::new(1);
        let plan = zbench_engine::plan::Plan::new(&cell, &kernels).unwrap();
        for stated in plan.operations(&cell, &kernels, 0) {
            let class = Class::of(&stated.op);
            points.insert(class.name, vec![1.0; class.sizes.len()]);
        }
    }
    let mut curves = Curves::default();
    points.into_iter().for_each(|(name, sizes)| curves.add(&name, Point { sizes, seconds: 1e-11 }));
    let overheads = Overheads { operation: 1e-6, load: 2e-6, step: 3e-6, call: 4e-6, all_reduce: 4e-6, tensor: 4e-6 };
    let layout = RankLayout { ranks: 4, threads: 1, crowded: true };
    let operations = [Operations { layout, curves, overheads, spread: 0.0 }];
    let host = std::process::Command::new("hostname").output().unwrap();
    let path = folder.join("machines").join(format!("{}.toml", String::from_utf8_lossy(&host.stdout).trim()));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let fits: String = ["all_reduce", "all_gather", "reduce_scatter"]
        .map(|kind| {
            format!(
                "[collectives.local.ranks-4.{kind}]\nfits = [{{ of = \"x\", type = \"float\", redop = \"sum\", factor = 1.0, in_place = true, \
                 segments = [{{ from_bytes = 8, to_bytes = 1024, latency_us = 50.0, points = 4, median_error = 0.0, worst_error = 0.0 }}] }}]\n"
            )
        })
        .concat();
    std::fs::write(&path, format!("device = \"cpu\"\n{fits}")).unwrap();
    zbench_config::profile::operations::save(&path, &operations, "today", 2).unwrap();
}

/// A run of zero3 with its prediction: what it said as JSON, and the file of its trace.
pub fn predicted(folder: &Path) -> (Output, PathBuf) {
    profile(folder, ZERO3);
    let file = write(folder, ZERO3);
    let trace = folder.join("trace.json");
    let mut command = zbench(&folder.join("nb"));
    without_launcher(&mut command);
    command.current_dir(folder).arg("run").arg(&file).args(["--format", "json", "--trace"]).arg(&trace);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    (output, trace)
}

#[test]
fn the_prediction_stands_beside_the_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let (output, trace) = predicted(folder.path());
    let (record, trace) = (record(&output), read(&trace));
    check(&trace);
    compare(&trace, &record);
    let named =
        |event: &&Value| event["name"] == "process_name" && text(event, "/args/name").starts_with("predicted · ");
    let pid = events(&trace).iter().find(named).unwrap()["pid"].as_u64().unwrap();
    let of = |category: &str| -> Vec<&Value> {
        events(&trace).iter().filter(|e| e["ph"] == "X" && e["pid"] == pid && e["cat"] == category).collect()
    };
    let steps = of("predicted");
    assert!(!steps.is_empty() && steps.len() <= 5);
    let predicted = number(&record, "/estimate/step_ms");
    for step in &steps {
        assert!((ns(step, "dur") as f64 / 1e6 / predicted - 1.0).abs() < 1e-3, "{step} and {predicted}");
        assert_eq!(step["args"]["order_is_predicted"], true);
    }
    // Every predicted step begins where a measured one of rank 0 does.
    let rank_0 = ranks(&trace)[&0];
    let begins: Vec<i64> = events(&trace)
        .iter()
        .filter(|event| event["pid"] == rank_0 && event["cat"] == "step")
        .map(|step| ns(step, "ts"))
        .collect();
    assert!(steps.iter().all(|step| begins.contains(&ns(step, "ts"))));
    let spans = sums(&of("span"));
    for (span, ms) in record["estimate"]["time"].as_object().unwrap() {
        let traced = spans.get(span).copied().unwrap_or(0.0) / steps.len() as f64;
        // Each slice is rounded to an eighth of a microsecond, and what is shorter is left out.
        assert!((traced - ms.as_f64().unwrap()).abs() < 0.02 * predicted, "{span}: {traced} and {ms}");
    }
    let names: BTreeSet<&str> = of("action").iter().map(|action| text(action, "/name")).collect();
    assert!(names.contains("forward layers.1") && names.contains("update"), "{names:?}");
    let counters = events(&trace).iter().filter(|event| event["ph"] == "C" && event["pid"] == pid).count();
    assert_eq!(counters, 6);
}

#[test]
fn a_run_that_goes_on_is_traced_from_where_it_does() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), ZERO3);
    let dir = format!("checkpoint.dir={}", folder.path().join("saved").display());
    let arguments =
        |steps| ["run", file.to_str().unwrap(), "--set", &dir, "--set", steps, "--trace-steps", "2"].map(String::from);
    for (steps, first) in [("train.steps=4", 1), ("train.steps=8", 6)] {
        let arguments = arguments(steps);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (output, trace) = traced(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        check(&trace);
        let steps: BTreeSet<u64> = events(&trace)
            .iter()
            .filter(|event| event["cat"] == "step")
            .map(|step| step["args"]["step"].as_u64().unwrap())
            .collect();
        assert_eq!(steps, BTreeSet::from([first, first + 1]));
    }
}
