//! `zbench grid` of a file with `suite = "collectives"`, the program itself: cells, records, resumed notebooks, the report, faults.

use crate::support::{records, run, signal, stderr, stdout, wait_for, write, zbench};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::Duration;

const GRID: &str = "
    name = \"links\"
    question = \"which backend?\"
    suite = \"collectives\"
    [collectives]
    min_bytes = \"1KiB\"
    max_bytes = \"64KiB\"
    step_factor = 8
    iterations = 3
    buffers = \"hot\"
    [grid]
    \"collectives.collective\" = [\"all_reduce\", \"all_gather\"]
    \"parallel.backend\" = [\"local\", \"shm\"]
    \"parallel.ranks\" = [2]
";

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
        let command = record["command"].as_str().unwrap();
        assert!(command.starts_with("zbench allreduce --collective"), "it measures the same again: {command}");
        assert!(!command.contains(notebook.to_str().unwrap()), "and names no folder that is gone: {command}");
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
    let flags = "allreduce --backend shm --ranks 2 -b 1K -e 64K -f 8 -n 3 --buffers hot";
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

/// A grid whose first cell is short and whose second one never ends by itself, in the middle of the second.
fn in_a_long_cell(folder: &Path) -> (PathBuf, Child) {
    let text = GRID.replace("iterations = 3", "").replace("\"local\", \"shm\"", "\"shm\"").replace(
        "\"collectives.collective\" = [\"all_reduce\", \"all_gather\"]",
        "\"collectives.iterations\" = [3, 1000000]",
    );
    let (notebook, file) = (folder.join("notebook"), write(folder, &text));
    let mut command = zbench(&notebook);
    let stderr = std::fs::File::create(folder.join("stderr")).unwrap();
    command.args(["grid", file.to_str().unwrap(), "--trials", "1"]).stdout(Stdio::null()).stderr(stderr);
    let child = command.spawn().unwrap();
    wait_for("the second cell begins", || records(&notebook).len() == 1 && processes(&notebook) >= 3);
    (notebook, child)
}

/// Processes with this notebook in their arguments, or a folder inside it: the grid, its cell and the cell's ranks.
fn processes(notebook: &Path) -> usize {
    let named = |pid: &std::ffi::OsStr| {
        let arguments = std::fs::read(Path::new("/proc").join(pid).join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(notebook.to_str().unwrap())
    };
    std::fs::read_dir("/proc").unwrap().filter(|entry| named(&entry.as_ref().unwrap().file_name())).count()
}

fn scratch_folders(notebook: &Path) -> usize {
    let entries = std::fs::read_dir(notebook).unwrap().map(Result::unwrap);
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(".zbench")).count()
}

/// Ctrl-C in the middle of a cell: what is measured stays, no process and no folder does.
#[test]
fn ctrl_c_keeps_what_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let (notebook, mut child) = in_a_long_cell(folder.path());
    signal(child.id(), Signal::INT);
    let code = child.wait().unwrap().code();
    let said = std::fs::read_to_string(folder.path().join("stderr")).unwrap();
    assert_eq!((code, records(&notebook).len(), scratch_folders(&notebook)), (Some(130), 1, 0), "{said}");
    wait_for("the processes end", || processes(&notebook) == 0);
}

/// A grid that is killed takes its cell and the cell's ranks along; the next command removes the folder.
#[test]
fn a_killed_grid_leaves_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let (notebook, mut child) = in_a_long_cell(folder.path());
    signal(child.id(), Signal::KILL);
    child.wait().unwrap();
    wait_for("the processes end", || processes(&notebook) == 0);
    assert_eq!(records(&notebook).len(), 1);
    // A folder of the last minute might be one that somebody is just making.
    for entry in std::fs::read_dir(&notebook).unwrap().map(Result::unwrap) {
        let old = std::time::SystemTime::now() - Duration::from_secs(120);
        std::fs::File::open(entry.path()).unwrap().set_modified(old).unwrap();
    }
    let other = write(folder.path(), &GRID.replace("\"local\", \"shm\"", "\"local\""));
    assert_eq!(grid(&notebook, &other, &["--trials", "1"]).status.code(), Some(0));
    assert_eq!(scratch_folders(&notebook), 0);
}

/// What a dry run and the report call a cell, `--only`, `show` and `compare` take.
#[test]
fn printed_labels_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let (notebook, file) = (folder.path().join("notebook"), write(folder.path(), GRID));
    let dry = stdout(&grid(&notebook, &file, &["--dry-run", "--format", "json"]));
    let labels: Vec<String> = dry
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["label"].as_str().unwrap().to_string())
        .collect();
    assert_eq!(labels.iter().collect::<BTreeSet<_>>().len(), 4, "{labels:?}");
    for label in &labels {
        let one = stdout(&grid(&notebook, &file, &["--dry-run", "--format", "json", "--only", label]));
        assert_eq!(one.lines().count(), 1, "{label}: {one}");
    }
    assert_eq!(grid(&notebook, &file, &["--trials", "1"]).status.code(), Some(0));
    let report = stdout(&grid(&notebook, &file, &["--trials", "1", "--format", "csv"]));
    let cell = |line: &str| {
        let quoted = line.strip_prefix("comparison,\"")?;
        Some(quoted.split('"').next()?.to_string())
    };
    let cells: Vec<String> = report.lines().filter_map(cell).collect();
    assert_eq!(cells.len(), 4, "{report}");
    for label in &cells {
        let output = run(&notebook, &["show", label]);
        assert_eq!(output.status.code(), Some(0), "{label}: {}", stderr(&output));
        let one = stdout(&grid(&notebook, &file, &["--dry-run", "--format", "json", "--only", label]));
        assert_eq!(one.lines().count(), 1, "{label}: {one}");
    }
}

/// One rank over shared memory or sockets is a group, too, and starts no further one.
#[test]
fn a_single_rank_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let text = GRID.replace("\"parallel.ranks\" = [2]", "\"parallel.ranks\" = [1]");
    let (notebook, file) = (folder.path().join("notebook"), write(folder.path(), &text));
    let output = grid(&notebook, &file, &["--trials", "1", "--timeout", "60s"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!((records(&notebook).len(), processes(&notebook)), (4, 0));
}
