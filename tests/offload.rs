//! Offload as a user has it: what records say, folders that cannot be used, a run that is killed.

use crate::support::{TINY, run, stderr, stdout, write, zbench};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One cell of two ranks.
fn cell(more: &str) -> String {
    let grid = TINY.find("[grid]").unwrap();
    TINY[..grid].replace("ranks = 2", "ranks = 2\nstrategy = \"zero3\"") + more
}

fn records(notebook: &Path) -> Vec<Value> {
    let file = std::fs::read_to_string(notebook.join("records.jsonl")).unwrap_or_default();
    file.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn losses(record: &Value) -> Vec<u64> {
    let steps = record["steps"].as_array().unwrap();
    steps.iter().map(|step| step["loss"].as_f64().unwrap().to_bits()).collect()
}

#[test]
fn records_say_what_lived_where_and_losses_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("nb");
    let axes = "[grid]\n\"memory.offload_optimizer\" = [\"none\", \"host\", \"disk\"]\n\
                \"memory.offload_parameters\" = [\"none\", \"disk\"]\n\"memory.offload_activations\" = [\"none\", \"host\"]\n";
    let file = write(folder.path(), &cell(axes));
    let output = run(&notebook, &["grid", file.to_str().unwrap(), "--trials", "1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let all = records(&notebook);
    assert_eq!(all.len(), 12);
    for record in &all {
        assert_eq!(record["outcome"]["status"], "measured", "{}", record["outcome"]);
        assert_eq!(losses(record), losses(&all[0]));
        let total = &record["memory"]["total"];
        assert_eq!(total["predicted_bytes"], total["peak_bytes"]);
        let home = |key: &str| record["cell"]["memory"][key].as_str().unwrap_or("device").to_string();
        let homes = ["offload_optimizer", "offload_parameters", "offload_activations"].map(home);
        let offload = &record["offload"];
        if homes.iter().all(|home| home == "device") {
            assert!(offload.is_null(), "{offload}");
            continue;
        }
        assert!(record["time"]["offload"].as_f64().unwrap() > 0.0);
        for (category, home) in ["optimizer", "parameters", "activations"].iter().zip(&homes) {
            let there = &offload[home][category];
            assert_eq!(there["peak_bytes"], there["predicted_bytes"], "{offload}");
            let is_elsewhere = home != "device";
            assert_eq!(there["peak_bytes"].as_u64().unwrap_or(0) > 0, is_elsewhere, "{category}: {offload}");
        }
        for row in offload["moves"].as_array().unwrap() {
            assert!(row["bytes"].as_f64().unwrap() > 0.0 && row["bytes"] == row["predicted_bytes"], "{row}");
        }
        let drive = &offload["drive"];
        assert_eq!(drive.is_object(), homes.iter().any(|home| home == "disk"));
        if drive.is_object() {
            assert!(["io_uring", "threads"].contains(&drive["engine"].as_str().unwrap()));
            assert!(drive["read_bytes"].as_f64().unwrap() > 0.0 && drive["gb_s"].as_f64().unwrap() > 0.0, "{drive}");
        }
    }
}

#[test]
fn folders_that_cannot_be_used_are_told_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let is_file = folder.path().join("file");
    std::fs::write(&is_file, "").unwrap();
    let missing = folder.path().join("missing");
    let disk = "[memory]\noffload_optimizer = \"disk\"\noffload_path = ";
    for (path, words) in [(&missing, "No such file"), (&is_file, "is no folder")] {
        let file = write(folder.path(), &cell(&format!("{disk}\"{}\"\n", path.display())));
        let output = run(&folder.path().join("nb"), &["run", file.to_str().unwrap()]);
        let said = format!("{}{}", stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains(words) && said.contains("memory.offload_path"), "{said}");
    }
    // A disk that is too small: a limit on the length of files stands for it.
    let file = write(folder.path(), &cell(&format!("{disk}\"{}\"\n", folder.path().display())));
    let program = env!("CARGO_BIN_EXE_zbench");
    let notebook = folder.path().join("nb");
    let script = format!("ulimit -f 40; exec {program} --notebook {} run {}", notebook.display(), file.display());
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    let said = format!("{}{}", stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("bytes") && !said.contains("step 1 "), "{said}");
    // A grid may state one folder for the cells that use it: one with nothing on a disk does not look at it.
    let file = write(folder.path(), &cell("[memory]\noffload_path = \"/nowhere\"\n"));
    let output = run(&notebook, &["run", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn memory_that_is_called_a_disk_is_warned_of() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let disk = format!("[memory]\noffload_optimizer = \"disk\"\noffload_path = \"{}\"\n", folder.path().display());
    let file = write(folder.path(), &cell(&disk));
    let output = run(&folder.path().join("nb"), &["run", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("tmpfs"), "{}", stderr(&output));
}

#[test]
fn a_killed_run_leaves_nothing_on_the_disk_and_its_checkpoint_goes_on_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let [disk, saved] = ["disk", "saved"].map(|name| folder.path().join(name));
    std::fs::create_dir(&disk).unwrap();
    let text = cell(&format!(
        "[memory]\noffload_optimizer = \"disk\"\noffload_parameters = \"disk\"\noffload_path = \"{}\"\n[checkpoint]\ndir = \"{}\"\nevery = 5\n",
        disk.display(),
        saved.display()
    ));
    let file = write(folder.path(), &text.replace("steps = 2", "steps = 4000"));
    let notebook = folder.path().join("nb");
    let start = || {
        let mut command = zbench(&notebook);
        command.args(["run", file.to_str().unwrap()]).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let mut killed = start();
    let begin = Instant::now();
    let has_checkpoint = || {
        std::fs::read_dir(&saved).is_ok_and(|mut all| {
            all.any(|entry| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("step-")))
        })
    };
    while !has_checkpoint() {
        assert!(begin.elapsed() < Duration::from_secs(60), "no checkpoint comes");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The cell is a child of the program, and ends with it.
    kill_process(Pid::from_raw(killed.id() as i32).unwrap(), Signal::KILL).unwrap();
    killed.wait().unwrap();
    assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 0, "the file has no name");
    let newest = std::fs::read_dir(&saved).unwrap().filter_map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.strip_prefix("step-")?.parse::<u64>().ok()
    });
    let newest = newest.max().unwrap();
    // One step is untimed.
    let steps = format!("steps = {}", newest + 2);
    let trained = |text: &str, name: &str| {
        let file = write(folder.path(), &text.replace("steps = 2", &steps));
        let notebook = folder.path().join(name);
        let output = run(&notebook, &["run", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        losses(&records(&notebook)[0])
    };
    let resumed = trained(&text, "resumed");
    assert_eq!(resumed, trained(&cell(""), "whole"));
    assert_eq!(resumed.len() as u64, newest + 3);
    assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 0);
}
