//! Several processes on one notebook, a notebook that may not be written, a full disk. tests/durability.rs has what needs no program.

use crate::support::{TINY, records, run, stderr, stdout, write, zbench};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn two_grids_of_the_program_measure_each_trial_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let notebook = folder.path().join("nb");
    let start = || {
        let mut command = zbench(&notebook);
        command.args(["grid", path.to_str().unwrap(), "--trials", "2", "--no-repeats", "--format", "json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let processes = [start(), start()];
    for process in processes {
        let output = process.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(stdout(&output).lines().count(), 8, "each reports on all of them");
    }
    let all = records(&notebook);
    let trials: BTreeSet<(String, u64)> =
        all.iter().map(|record| (record["key"].to_string(), record["trial"].as_u64().unwrap())).collect();
    assert_eq!((all.len(), trials.len()), (8, 8));
}

#[test]
fn single_runs_at_once_get_trials_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let only = "parallel.strategy=zero3,memory.checkpointing=none";
    let start = || {
        let mut command = zbench(folder.path());
        command.args(["run", path.to_str().unwrap(), "--only", only, "-q"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for process in [start(), start()] {
        let output = process.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    let mut trials: Vec<u64> = records(folder.path()).iter().map(|record| record["trial"].as_u64().unwrap()).collect();
    trials.sort();
    assert_eq!(trials, [1, 2]);
}

/// Makes a folder that the program may read and not write. Root may write anywhere: there the program runs as nobody.
fn without_writing(folder: &Path, command: &mut Command) {
    const NOBODY: u32 = 65534;
    let is_root = std::fs::metadata("/proc/self").map(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0).unwrap();
    for path in [folder.to_path_buf(), folder.join("nb")] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o555)).unwrap();
    }
    if is_root {
        command.uid(NOBODY).gid(NOBODY);
    }
}

#[test]
fn a_notebook_that_may_not_be_written_is_read_and_nothing_is_measured_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let notebook = folder.path().join("nb");
    let first = run(&notebook, &["grid", path.to_str().unwrap(), "--trials", "1", "--only", "parallel.strategy=ddp"]);
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    let before = std::fs::read(notebook.join("records.jsonl")).unwrap();
    let id = records(&notebook)[0]["id"].as_str().unwrap().to_string();
    let said = |arguments: &[&str]| {
        let mut command = zbench(&notebook);
        without_writing(folder.path(), &mut command);
        let output = command.args(arguments).output().unwrap();
        (output.status.code(), stdout(&output), stderr(&output))
    };
    for arguments in [&["list"][..], &["show", &id], &["report"], &["list", "valid=yes", "--format", "csv"]] {
        let (code, out, err) = said(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {err}");
        assert!(out.contains(&id[..6]) || arguments[0] == "report", "{arguments:?}: {out}");
    }
    for arguments in [&["grid", path.to_str().unwrap(), "--trials", "1"][..], &["note", &id, "x"], &["repro", &id]] {
        let (code, out, err) = said(arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {err}");
        assert!(err.contains("nb") && err.contains("ermission denied"), "{err}");
        assert!(!err.contains("tokens/s") && out.is_empty(), "nothing was measured: {err}");
    }
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&notebook, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(std::fs::read(notebook.join("records.jsonl")).unwrap(), before);
}

/// Without a folder for temporary files the record is printed. tests/witnesses.rs has the usual case.
#[test]
fn a_record_without_room_anywhere_is_printed_and_can_be_imported() {
    let folder = tempfile::tempdir().unwrap();
    let (path, notebook) = (write(folder.path(), TINY), folder.path().join("nb"));
    let grid = ["grid", path.to_str().unwrap(), "--trials", "1"];
    assert_eq!(run(&notebook, &[&grid[..], &["--only", "parallel.strategy=ddp"]].concat()).status.code(), Some(0));
    let length = std::fs::metadata(notebook.join("records.jsonl")).unwrap().len();
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", length / 1024 + 1);
    let mut command = Command::new("bash");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_zbench"), "--notebook"]).arg(&notebook).args(grid);
    let output = command.arg("--no-repeats").env("TMPDIR", folder.path().join("none")).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with('{')).collect();
    let bundle = folder.path().join("from-the-screen.jsonl");
    std::fs::write(&bundle, format!("{}\n{}\n", lines[0], lines[1])).unwrap();
    let import = run(&notebook, &["import", "--bundle", bundle.to_str().unwrap()]);
    assert_eq!(import.status.code(), Some(0), "{}", stderr(&import));
    assert_eq!(records(&notebook).len(), 3);
}

/// A real file system that is full, where this test may mount one; the limit on file sizes above is for everybody.
#[test]
fn a_full_file_system_keeps_what_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let (mounted, kept, temporary) = (folder.path().join("nb"), folder.path().join("kept"), folder.path().join("tmp"));
    [&mounted, &kept, &temporary].iter().for_each(|path| std::fs::create_dir(path).unwrap());
    let script = "mount -t tmpfs -o size=24k none \"$1\" || exit 77; \"$0\" --notebook \"$1\" grid \"$3\" --trials 1; code=$?; \
                  cp \"$1\"/records* \"$2\"; exit $code";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_zbench")])
        .args([&mounted, &kept, &path])
        .env("TMPDIR", &temporary)
        .output()
        .expect("unshare is part of util-linux");
    let said = stderr(&output);
    if output.status.code() == Some(77) || said.contains("unshare failed") {
        eprintln!("NOT TESTED: nothing may be mounted here: {said}");
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("free some space") && said.contains("zbench import --bundle"), "{said}");
    let whole = records(&kept);
    assert!((1..4).contains(&whole.len()), "{}", whole.len());
    let reported = said.lines().filter(|line| line.contains("tokens/s")).count();
    assert_eq!(reported, whole.len(), "each trial that was told of is there: {said}");
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 1, "and the one that found no room is rescued");
}
