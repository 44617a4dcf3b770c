//! `zbench io` and grids with suite = "io", the program itself: what records hold, fio beside it, folders, refusals. No test
//! looks at a speed.

use crate::support::{records, run, signal, stderr, stdout, succeeds, test, zbench};
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A small file and short passes.
const SMALL: &str = "--file-size 2MiB --seconds 0.01 --size 64KiB";

/// What is in a folder beside the notebook's own files.
fn left(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(".zbench")).collect()
}

/// A folder on the disk that the build is on: the system's own for temporary files may be in memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn a_disk_is_measured_and_nothing_is_left_there() {
    let folder = folder();
    let (notebook, disk) = (folder.path().join("notebook"), folder.path().join("deep/disk"));
    let words = format!("io {SMALL} --depth 1,4 --engine auto --direct false --no-fio -q --dir {}", disk.display());
    let text = succeeds(&notebook, &words);
    assert!(text.contains("Through the page cache: up to") && text.contains("no link"), "{text}");
    assert!(!text.contains("Fastest"), "{text}");
    let all = records(&notebook);
    assert_eq!(all.len(), 3, "two depths, and the copies once");
    for record in all.iter().filter(|record| record["cell"]["io"]["link"] == "disk") {
        let found = &record["io"];
        for (pattern, direction) in
            [("sequential", "write"), ("sequential", "read"), ("random", "write"), ("random", "read")]
        {
            let rate = record["metrics"][format!("{pattern}_{direction}_gb_s")].as_f64().unwrap();
            assert!(rate > 0.0);
            assert!(record["metrics"].get(format!("fio_{pattern}_{direction}_gb_s")).is_some_and(Value::is_null));
            let passes = found["passes"].as_array().unwrap();
            let pass = passes.iter().find(|p| p["pattern"] == pattern && p["direction"] == direction).unwrap();
            assert_eq!(pass["bytes"].as_u64().unwrap() % 65536, 0, "whole tensors");
        }
        assert_eq!((&found["direct"], &found["folder"]), (&false.into(), &disk.to_str().unwrap().into()));
        assert!(["io_uring", "threads"].contains(&found["engine"].as_str().unwrap()));
        let notes = record["notes"].to_string();
        assert!(notes.contains("reads may have come from memory"), "{notes}");
    }
    let copies = all.iter().find(|record| record["cell"]["io"]["link"] == "device").unwrap();
    assert!(copies["metrics"]["to_device_gb_s"].as_f64().unwrap() > 0.0);
    assert_eq!((&copies["io"]["is_host"], &copies["cell"]["hardware"]["device"]), (&true.into(), &"cpu".into()));
    // The folder was not there before.
    assert!(!folder.path().join("deep").exists() && left(&notebook).is_empty());
    let again = succeeds(&notebook, &format!("repro {} --format json", all[0]["id"].as_str().unwrap()));
    assert_eq!(serde_json::from_str::<Value>(&again).unwrap()["key"], all[0]["key"]);
    let label = "64.0 KiB x 4, auto, cached";
    assert!(succeeds(&notebook, &format!("{words} --dry-run")).contains(label));
    let narrowed = run(&notebook, &[&words.split_whitespace().collect::<Vec<_>>()[..], &["--only", label]].concat());
    assert_eq!(narrowed.status.code(), Some(0), "{}", stderr(&narrowed));
    assert_eq!(records(&notebook).len(), 5, "a label of a table names its cell");
}

#[test]
fn fio_stands_beside_where_it_is_installed() {
    let folder = folder();
    let notebook = folder.path().join("notebook");
    let words = format!("io {SMALL} --depth 2 --engine threads --direct false --link disk -q");
    // Where there is none, that is said once.
    let without = zbench(&notebook).args(words.split_whitespace()).env("PATH", "/nowhere").output().unwrap();
    assert_eq!(without.status.code(), Some(0), "{}", stderr(&without));
    assert_eq!(stdout(&without).matches("fio is not installed").count(), 1, "{}", stdout(&without));
    assert!(records(&notebook)[0]["metrics"]["fio_random_read_gb_s"].is_null());
    if std::process::Command::new("fio").arg("--version").output().is_err() {
        assert!(std::env::var_os("ZBENCH_REQUIRE_FIO").is_none(), "fio is missing");
        eprintln!("NOT TESTED: fio is not installed");
        return;
    }
    // Whoever transfers, fio has an engine that does the same. A colon in a path is not the end of a name to it.
    let disk = folder.path().join("a:b");
    for (engine, direct) in [("threads", false), ("threads", true), ("io_uring", true)] {
        let notebook = folder.path().join(format!("{engine}-{direct}"));
        let words =
            format!("io {SMALL} --depth 2 --engine {engine} --direct {direct} --link disk -q --dir {}", disk.display());
        let output = test(&notebook, &words);
        let record = &records(&notebook)[0];
        if record["outcome"]["status"] == "skipped" {
            assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
            eprintln!("NOT TESTED: {}", record["outcome"]["reason"]);
            continue;
        }
        let found = &record["io"];
        assert_eq!(found["no_fio"], "", "{found}");
        assert!(found["fio"].as_str().unwrap().starts_with("fio-"), "{found}");
        for pass in found["passes"].as_array().unwrap() {
            assert!(pass["fio_gb_s"].as_f64().unwrap() > 0.0, "{pass}");
            let name = format!("{}_{}_gb_s", pass["pattern"].as_str().unwrap(), pass["direction"].as_str().unwrap());
            assert_eq!(record["metrics"][format!("fio_{name}")], pass["fio_gb_s"]);
        }
        let text = stdout(&output);
        assert!(text.contains("fio"), "{text}");
    }
    assert!(!disk.exists());
}

#[test]
fn a_grid_is_measured_once_and_refusals_say_what_to_write() {
    let folder = folder();
    let notebook = folder.path().join("notebook");
    let path = folder.path().join("grid.toml");
    let text = "suite = \"io\"\nname = \"disk\"\n[io]\nlink = \"disk\"\nfile = \"2MiB\"\nseconds = 0.01\nfio = false\ndirect = false\n\
                dir = \"here\"\n[grid]\n\"io.pattern\" = [\"random\", \"sequential\"]\n\"io.size\" = [\"64KiB\", \"4KiB\"]\n";
    std::fs::write(&path, text).unwrap();
    for command in ["grid", "io"] {
        let text = succeeds(&notebook, &format!("{command} {} --trials 1", path.display()));
        assert!(text.contains("random") && text.contains("sequential"), "{text}");
        assert_eq!(records(&notebook).len(), 4, "what the notebook holds is not measured again");
    }
    // A path of a file begins at its folder.
    let dir = folder.path().join("here");
    assert_eq!(records(&notebook)[0]["io"]["folder"], dir.to_str().unwrap());
    for (words, told) in [
        ("io --size 1000", "write 4096"),
        ("io --depth 300", "--depth: 300 is too large; write 256"),
        ("io --engine aio", "\"aio\" is none of"),
        ("io --file-size 1MiB --depth 8", "write 8.00 MiB or more"),
        ("io --set train.steps=3", "has no effect where suite is \"io\""),
        ("io tests/golden/tiny.toml", "suite = \"io\""),
    ] {
        let output = test(&notebook, words);
        assert_eq!(output.status.code(), Some(1), "{words}: {}", stderr(&output));
        assert!(stderr(&output).contains(told), "{words}: {}", stderr(&output));
    }
    // A folder that cannot be is the outcome of its cells.
    std::fs::write(folder.path().join("plain"), "a file").unwrap();
    let words = format!("io {SMALL} --link disk -q --direct false --dir {}/plain/in-it", folder.path().display());
    let output = test(&folder.path().join("other"), &words);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stdout(&output).contains("plain/in-it") && stdout(&output).contains("--dir"), "{}", stdout(&output));
}

#[test]
fn a_disk_without_room_is_said_before_anything_is_written() {
    let folder = folder();
    let notebook = folder.path().join("notebook");
    let output = test(&notebook, "io --link disk --engine threads --direct false --depth 1 --file-size 1024TiB -q");
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let reason = records(&notebook)[0]["outcome"]["reason"].as_str().unwrap().to_string();
    assert!(reason.contains(&(1u64 << 50).to_string()) && reason.contains("another"), "{reason}");
    assert!(left(&notebook).is_empty());
}

#[test]
fn a_stop_leaves_neither_files_nor_a_record() {
    let folder = folder();
    let notebook = folder.path().join("notebook");
    let mut child = zbench(&notebook)
        .args("io --link disk --direct false --depth 1 --file-size 2MiB --seconds 600 -q".split(' '))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while !notebook.is_dir() || left(&notebook).is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(120), "the trial has begun");
        std::thread::sleep(Duration::from_millis(20));
    }
    signal(child.id(), Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(left(&notebook), [""; 0]);
    assert_eq!(records(&notebook), Vec::<Value>::new());
}
