//! `zbench grid` of a file with `suite = "collectives"`, the program itself: cells, records, resumed notebooks, the report, faults.

use crate::support::{run, stderr, stdout, write, zbench};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

const GRID: &str = "
    name = \"links\"
    question = \"which backend?\"
    suite = \"collectives\"
    [collectives]
    min_bytes = \"1KiB\"
    max_bytes = \"64KiB\"
    step_factor = 8
    iterations = 3
    [grid]
    \"collectives.collective\" = [\"all_reduce\", \"all_gather\"]
    \"parallel.backend\" = [\"local\", \"shm\"]
    \"parallel.ranks\" = [2]
";

fn records(notebook: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(notebook.join("records.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn grid(notebook: &Path, file: &Path, more: &[&str]) -> Output {
    run(notebook, &[&["grid", file.to_str().unwrap()], more].concat())
}

#[test]
fn a_grid_over_collectives_measures_each_cell_once_and_compares() {
    let folder = tempfile::tempdir().unwrap();
    let (notebook, file) = (folder.path().join("notebook"), write(folder.path(), GRID));
    let first = grid(&notebook, &file, &["--trials", "1"]);
    assert_eq!(first.status.code(), Some(0), "{}{}", stdout(&first), stderr(&first));
    let made = records(&notebook);
    let keys: BTreeSet<&str> = made.iter().filter_map(|record| record["key"].as_str()).collect();
    assert_eq!((made.len(), keys.len()), (4, 4));
    for record in &made {
        assert_eq!(
            (&record["cell"]["suite"], &record["outcome"]["status"]),
            (&"collectives".into(), &"measured".into())
        );
        let collective = record["cell"]["collective"].as_str().unwrap();
        let busbw = record["metrics"][format!("{collective}_busbw_gb_s")].as_f64().unwrap();
        assert!(busbw > 0.0 && record["metrics"]["latency_us"].as_f64().unwrap() > 0.0, "{record}");
        assert_eq!(record["section"]["rows"].as_array().unwrap().len(), 3, "1 KiB, 8 KiB, 64 KiB");
        assert_eq!(record["metrics"]["wrong_elements"].as_f64(), Some(0.0));
        assert!(record["command"].as_str().unwrap().contains("allreduce"), "its command measures the same again");
    }
    let screen = stdout(&first);
    assert!(screen.lines().count() <= 40, "{screen}");
    for word in ["FASTEST", "LATENCY", "all_gather", "shm", "busbw"] {
        assert!(screen.contains(word), "{word}: {screen}");
    }
    // What is there is not measured again, and the report is of all of it.
    let again = grid(&notebook, &file, &["--trials", "1"]);
    assert_eq!((again.status.code(), records(&notebook).len()), (Some(0), 4));
    assert_eq!(stdout(&again), screen);
    let page = stdout(&grid(&notebook, &file, &["--trials", "1", "--format", "html"]));
    assert!(
        page.contains("which backend?") && page.contains("<svg") && page.contains("Bus bandwidth over size"),
        "a plot"
    );
    assert!(
        !std::fs::read_dir(&notebook)
            .unwrap()
            .any(|entry| { entry.unwrap().file_name().to_string_lossy().starts_with(".zbench") })
    );
}

/// `zbench allreduce` of the same is a trial of the same cell.
#[test]
fn the_flags_and_the_file_are_one_cell() {
    let folder = tempfile::tempdir().unwrap();
    let (notebook, file) = (folder.path().join("notebook"), write(folder.path(), GRID));
    let flags = "allreduce --backend shm --ranks 2 -b 1K -e 64K -f 8 -n 3";
    let by_flags = run(&notebook, &flags.split(' ').collect::<Vec<_>>());
    assert_eq!(by_flags.status.code(), Some(0), "{}", stderr(&by_flags));
    let rest = grid(&notebook, &file, &["--trials", "1", "--only", "collective=all_reduce,backend=shm"]);
    assert_eq!(rest.status.code(), Some(0), "{}", stderr(&rest));
    assert_eq!(records(&notebook).len(), 1, "the trial by flags is the one that was asked for");
}

#[test]
fn wrong_files_are_refused_with_key_and_place() {
    let folder = tempfile::tempdir().unwrap();
    for (text, words) in [
        ("suite = \"collectives\"\n[train]\nsteps = 2\n", ["train.steps", "has no effect"]),
        (
            "suite = \"collectives\"\n[collectives]\nmin_bytes = \"1MiB\"\nmax_bytes = \"1KiB\"\n",
            ["collectives.min_bytes", "above"],
        ),
        ("suite = \"collectives\"\n[parallel]\nbackend = \"mpi\"\n", ["parallel.backend", "mpirun"]),
        (
            "suite = \"collectives\"\n[collectives]\ncollective = \"allreduce\"\n",
            ["collectives.collective", "all_reduce"],
        ),
    ] {
        let file = write(folder.path(), text);
        let output = grid(&folder.path().join("notebook"), &file, &[]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{text}: {said}");
    }
}

/// Ctrl-C in the middle of a cell: what is measured stays, no process and no folder does.
#[test]
fn ctrl_c_keeps_what_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let text = GRID.replace("iterations = 3", "iterations = 1000000").replace("\"local\", \"shm\"", "\"shm\"");
    let (notebook, file) = (folder.path().join("notebook"), write(folder.path(), &text));
    let mut command = zbench(&notebook);
    let mut child =
        command.args(["grid", file.to_str().unwrap()]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let scratch = || {
        let entries = std::fs::read_dir(&notebook).into_iter().flatten().filter_map(Result::ok);
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(".zbench")).count()
    };
    let began = Instant::now();
    while scratch() == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "the first cell does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!((status.code(), scratch()), (Some(130), 0));
}
