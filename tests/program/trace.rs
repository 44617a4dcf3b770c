//! `--trace`: a file that is what the form wants, and says what the record says.

use crate::support::{TINY, json_lines, root, signal, stderr, stdout, write, zbench};
use crate::timeline::{
    ZERO3, check, compare, events, ns, number, ranks, read, record, sums, text, traced, without_launcher,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

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
    let arguments = [
        "grid",
        file.to_str().unwrap(),
        "--trials",
        "2",
        "--no-repeats",
        "--trace-steps",
        "2",
        "--only",
        "memory.checkpointing=none",
    ];
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
    let estimates: Vec<Value> = json_lines(&stdout(&output));
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
    signal(child.id(), rustix::process::Signal::INT);
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
