//! `zbench calibrate`, the program itself. Whether this machine is quiet enough is not ours to say: both ends are tested
//! for what they must leave behind, and the decision itself beside its code.

use crate::support::{TINY, run, stderr, stdout, write};
use serde_json::Value;
use std::path::Path;

/// The ceilings alone: operations are timed in suites/calibrate's own tests.
const QUICK: [&str; 10] =
    ["calibrate", "--rounds", "3", "--seconds", "0.002", "--memory", "1MiB", "--disk-size", "1MiB", "--no-operations"];

fn records(notebook: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(notebook.join("records.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn it_saves_what_plans_can_read_or_says_why_not() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    std::fs::create_dir(folder.path().join("machines")).unwrap();
    let profile = folder.path().join("machines/mine.toml");
    let before = "about = \"mine\" # a remark\ndevice = \"cpu\"\n";
    std::fs::write(&profile, before).unwrap();
    let output = run(folder.path(), &[&QUICK[..], &["--threads", "1", "--save", profile.to_str().unwrap()]].concat());
    let (text, said) = (stdout(&output), stderr(&output));
    for name in ["matrix.f32", "matrix.f64", "memory.read", "memory.write", "memory.triad", "disk.read", "disk.write"] {
        assert!(text.contains(name), "no {name} in {text}");
    }
    let all = records(folder.path());
    assert_eq!(all.len(), 1, "{said}");
    let record = &all[0];
    assert_eq!((&record["cell"]["suite"], &record["outcome"]["status"]), (&"calibrate".into(), &"measured".into()));
    let of = &record["ceilings"]["threads"][0];
    let triad = of["memory"].as_array().unwrap().iter().find(|pair| pair[0] == "triad").unwrap();
    assert!(triad[1]["median"].as_f64().unwrap() > 0.0 && triad[1]["rounds"] == 3);
    // No loop is in f64: null with its reason.
    assert!(record["metrics"]["threads_1_matrix_f64_flops"].is_null());
    assert!(record["unstated"]["threads_1_matrix_f64_flops"].as_str().unwrap().contains("no loop for f64"));
    let after = std::fs::read_to_string(&profile).unwrap();
    let flags: Vec<&str> = record["validity"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    match output.status.code() {
        Some(0) => {
            assert!(after.starts_with(before) && after.contains("[ceilings.threads-1]"), "{after}");
            assert!(!flags.contains(&"too_noisy") && said.contains("saved the ceilings into"), "{said}");
        }
        Some(3) => {
            assert_eq!(after, before, "a refused profile is left as it was");
            assert!(flags.contains(&"too_noisy") && said.contains("too noisy: ") && said.contains("limit"), "{said}");
        }
        other => panic!("{other:?}: {said}"),
    }
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        2,
        "machines and records.jsonl: no file of the disk's"
    );
    for command in
        [&["list"][..], &["report"], &["show", record["id"].as_str().unwrap()], &["report", "--format", "html"]]
    {
        let output = run(folder.path(), command);
        assert!(output.status.success() && stdout(&output).contains("calibrate"), "{command:?}: {}", stderr(&output));
    }
    // Either way a plan reads the profile.
    let exclude = "[[grid.exclude]]\n\"parallel.strategy\" = \"ddp\"\n";
    let path =
        write(folder.path(), &format!("{TINY}{exclude}").replace("[hardware]", "[hardware]\nprofile = \"mine\""));
    let output = run(folder.path(), &["plan", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn a_disk_can_be_left_out_or_refuse() {
    let folder = tempfile::tempdir().unwrap();
    let without = [
        "calibrate",
        "--rounds",
        "3",
        "--seconds",
        "0.001",
        "--memory",
        "64KiB",
        "--no-disk",
        "--no-save",
        "--no-operations",
    ];
    let output = run(folder.path(), &[&without[..], &["--threads", "1", "-q"]].concat());
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", stderr(&output));
    let record = records(folder.path()).pop().unwrap();
    assert!(record["metrics"]["threads_1_disk_read_gb_s"].is_null());
    assert!(record["unstated"]["threads_1_disk_read_gb_s"].as_str().unwrap().contains("--no-disk"));
    if Path::new("/dev/shm").is_dir() {
        let words = [&QUICK[..], &["--threads", "1", "--no-save", "--disk", "/dev/shm"]].concat();
        let output = run(folder.path(), &words);
        assert!(stderr(&output).contains("/dev/shm"), "{}", stderr(&output));
        let record = records(folder.path()).pop().unwrap();
        let why = record["unstated"]["threads_1_disk_write_gb_s"].as_str().unwrap();
        assert!(why.contains("tmpfs") || why.contains("O_DIRECT"), "{why}");
    }
}

#[test]
fn what_is_wrong_is_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.toml");
    std::fs::write(&broken, "ceilings = 3\n").unwrap();
    for (words, told) in [
        (&["--rounds", "2"][..], "2 is not in 3"),
        (&["--threads", "0"], "0 is not in 1"),
        (&["--threads", "4096"], "this process may use"),
        (&["--seconds", "0"], "no time above 0"),
        (&["--seconds", "nan"], "no time"),
        (&["--memory", "1"], "no size from 4KiB"),
        (&["--memory", "900TiB"], "three such arrays"),
        (&["--disk-size", "much"], "no size"),
        (&["--force"], "unexpected argument"),
        (&["--save", broken.to_str().unwrap()], "ceilings must be a table"),
    ] {
        let output = run(folder.path(), &[&["calibrate"], words].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(told), "{words:?}: {}", stderr(&output));
    }
    assert_eq!(records(folder.path()).len(), 0);
}

#[test]
fn corrections_are_made_on_request_and_only_of_records() {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("mine.toml");
    let words = ["calibrate", "--from-notebook", "--save", profile.to_str().unwrap()];
    let output = run(folder.path(), &words);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("mine.toml") && stderr(&output).contains("zbench calibrate"),
        "{}",
        stderr(&output)
    );
    let before = "device = \"cpu\"\n\n[operations]\ncores = 1\n\n[operations.ranks-1.threads-1]\ncrowded = false\n\
                  spread = 0.0\noperation_us = 1.0\nload_us = 1.0\nstep_us = 1.0\ncall_us = 1.0\nall_reduce_us = 1.0\ncurves = []\n";
    std::fs::write(&profile, before).unwrap();
    // A notebook without records corrects nothing.
    let output = run(folder.path(), &words);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("nothing is corrected"), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(&profile).unwrap(), before);
}
