//! What is measured is not lost and not measured twice: kill -9 at any moment, several processes on one notebook, a full
//! disk, a notebook that may not be written, another machine or build.
//!
//! Where many trials are needed their cells only pretend: a second run of this test binary is the process that is killed.

use crate::scope;
use crate::support::{TINY, cells, run, stderr, stdout, write, zbench};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use zbench_engine::config::Cell;
use zbench_engine::planner::Planner;
use zbench_predict::planned::{Planned, plan};
use zbench_reports::record::{Outcome, Record, Step};
use zbench_reports::{Notebook, bundle};
use zbench_runner::protocol::{End, ProgressEvent};
use zbench_runner::{Execute, Execution, Header, Observe, Runner, Train, Trials, rescue};

/// Folder of the notebook, number of trials, milliseconds of a trial: what a child of these tests is told.
const CHILD: &str = "ZBENCH_TEST_GRID";

/// A cell that takes some milliseconds.
struct Pretend(Duration);

impl Execute for Pretend {
    fn execute(&mut self, _: &Cell, tell: &mut dyn FnMut(ProgressEvent<'_>)) -> Execution {
        std::thread::sleep(self.0);
        let step = |i: u64| Step {
            step: i,
            timed: i > 1,
            loss: 5.0 - i as f64 / 100.0,
            grad_norm: 1.0,
            lr: 0.1,
            ms: 10.0,
            tokens: 1000,
            extra: Default::default(),
        };
        let steps: Vec<Step> = (1..=20).map(step).collect();
        steps.iter().for_each(|step| tell(ProgressEvent::Step(step)));
        Execution { steps, end: Some(End { peak_flops: vec![Some(1e9); 2], ..End::default() }), ..Execution::default() }
    }
}

/// Says on standard output what is on disk, each word on a line of its own: the harness has begun one.
#[derive(Default)]
struct Loud {
    set_aside: Vec<String>,
}

impl Observe for Loud {
    fn set_aside(&mut self, count: usize, reason: &str) {
        self.set_aside.push(format!("{count} {reason}"));
    }
    fn wait(&mut self) {
        println!("\nwaits");
    }
    fn begin(&mut self, _: &Planned, trial: u32, _: usize, _: usize) {
        println!("\nbegins {trial}");
    }
    fn end(&mut self, record: &Record) {
        println!("\nappended {}", record.id);
    }
}

fn planned(text: &str) -> Vec<Planned> {
    cells(text).unwrap().into_iter().map(|cell| plan(&Planner::default(), cell, None)).collect()
}

/// The test that is a child's whole life; without its variable there is nothing to do.
#[test]
fn child() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let told: Value = serde_json::from_str(&told).unwrap();
    let notebook = Notebook::open(told["notebook"].as_str().unwrap()).unwrap();
    let mut execute = Pretend(Duration::from_millis(told["ms"].as_u64().unwrap()));
    let mut observe = Loud::default();
    let header = Header::default();
    let mut runner =
        Runner { notebook: &notebook, suite: Train { execute: &mut execute }, observe: &mut observe, header };
    let trials = Trials::UpTo(told["trials"].as_u64().unwrap() as u32);
    runner.run(&planned(TINY), trials).unwrap();
    println!("\nfinished");
}

fn start(notebook: &Path, trials: u32, ms: u64) -> (Child, BufReader<std::process::ChildStdout>) {
    let told = json!({ "notebook": notebook, "trials": trials, "ms": ms });
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "durability::child", "--nocapture", "--test-threads=1"])
        .env(CHILD, told.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    (child, said)
}

/// Reads lines until one begins with this; those before it, and whether it came.
fn until(said: &mut impl BufRead, begin: &str, lines: &mut Vec<String>) -> bool {
    let mut line = String::new();
    while said.read_line(&mut line).unwrap() > 0 {
        lines.push(line.trim().to_string());
        if line.starts_with(begin) {
            return true;
        }
        line.clear();
    }
    false
}

fn appended(lines: &[String]) -> Vec<String> {
    lines.iter().filter_map(|line| line.strip_prefix("appended ").map(str::to_string)).collect()
}

/// How often each trial of each cell stands there.
fn trials_of(records: &[Record]) -> BTreeMap<(String, u32), usize> {
    let mut trials = BTreeMap::new();
    records.iter().for_each(|record| *trials.entry((record.key.clone(), record.trial)).or_default() += 1);
    trials
}

/// The next of a row of numbers that looks random and is always the same.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *seed >> 33
}

#[test]
fn a_grid_killed_a_hundred_times_loses_and_repeats_nothing() {
    let kills = scope::cases("durability::a_grid_killed_a_hundred_times_loses_and_repeats_nothing", 15, 100) as usize;
    let folder = tempfile::tempdir().unwrap();
    let notebook = Notebook::open(folder.path().join("nb")).unwrap();
    let mut seed = 20260101;
    let mut on_disk: Vec<String> = Vec::new();
    let (mut torn, mut during) = (0, 0);
    for kill in 0..kills {
        let (mut child, mut said) = start(notebook.directory(), 100_000, 2);
        let mut lines = Vec::new();
        // In the first trial or a later one, and there anywhere from its start over its append into the next.
        for _ in 0..=next(&mut seed) % 6 {
            assert!(until(&mut said, "begins", &mut lines), "kill {kill}: the grid ended by itself: {lines:?}");
        }
        std::thread::sleep(Duration::from_micros(next(&mut seed) % 12_000));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!until(&mut said, "finished", &mut lines), "it was killed while it ran");
        during += usize::from(!appended(&lines).is_empty());

        let contents = notebook.read().unwrap();
        assert_eq!(contents.unreadable, [], "kill {kill}");
        torn += usize::from(contents.torn_bytes > 0);
        let ids: Vec<String> = contents.records.iter().map(|record| record.id.clone()).collect();
        assert!(ids.starts_with(&on_disk), "kill {kill}: a record that was there is gone");
        for id in appended(&lines) {
            assert!(ids.contains(&id), "kill {kill}: {id} was said to be on disk");
        }
        assert!(contents.records.iter().all(|record| record.steps.len() == 20), "every record is whole");
        on_disk = ids;
    }
    assert!(during > kills / 2, "most were killed after a record, {during} of {kills}");
    let largest = notebook.records().unwrap().iter().map(|record| record.trial).max().unwrap();
    let trials = largest + 2;
    let (mut child, mut said) = start(notebook.directory(), trials, 0);
    let mut lines = Vec::new();
    assert!(until(&mut said, "finished", &mut lines), "{lines:?}");
    assert!(child.wait().unwrap().success());
    let contents = notebook.read().unwrap();
    assert_eq!(contents.warnings(), Vec::<String>::new());
    let found = trials_of(&contents.records);
    assert_eq!(found.len(), 4 * trials as usize, "each wanted trial ({torn} lines were torn)");
    assert!(found.values().all(|count| *count == 1), "and none twice: {found:?}");
    assert!(found.keys().all(|(_, trial)| (1..=trials).contains(trial)));
}

#[test]
fn three_grids_on_one_notebook_share_the_trials() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = Notebook::open(folder.path().join("nb")).unwrap();
    const TRIALS: u32 = 10;
    let children: Vec<_> = (0..3).map(|_| start(notebook.directory(), TRIALS, 5)).collect();
    let mut by_child = Vec::new();
    for (mut child, mut said) in children {
        let mut lines = Vec::new();
        assert!(until(&mut said, "finished", &mut lines), "{lines:?}");
        assert!(child.wait().unwrap().success());
        by_child.push(appended(&lines));
    }
    let records = notebook.records().unwrap();
    let found = trials_of(&records);
    assert_eq!((found.len(), records.len()), (4 * TRIALS as usize, 4 * TRIALS as usize), "{by_child:?}");
    let said: BTreeSet<String> = by_child.concat().into_iter().collect();
    assert_eq!(said, records.iter().map(|record| record.id.clone()).collect(), "each was made by one of them");
    for record in &records {
        assert!(record.parity.reference.is_some(), "none went ahead of its reference: {:?}", record.parity);
    }
    assert!(!notebook.directory().join("claims").exists(), "nothing is left over");
}

#[test]
fn the_claim_of_a_dead_process_is_void() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = Notebook::open(folder.path().join("nb")).unwrap();
    let (mut first, mut said) = start(notebook.directory(), 1, 600_000);
    assert!(until(&mut said, "begins", &mut Vec::new()));
    let (mut second, mut heard) = start(notebook.directory(), 1, 0);
    let mut lines = Vec::new();
    assert!(until(&mut heard, "waits", &mut lines), "the second has nothing to do without the reference: {lines:?}");
    assert_eq!(notebook.records().unwrap().len(), 0);
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(until(&mut heard, "finished", &mut lines));
    assert!(second.wait().unwrap().success());
    assert_eq!(trials_of(&notebook.records().unwrap()).len(), 4);
}

/// Ctrl-C while others have everything that is left.
#[test]
fn waiting_ends_when_the_user_wants_it() {
    struct Stopped;
    impl Execute for Stopped {
        fn execute(&mut self, _: &Cell, _: &mut dyn FnMut(ProgressEvent<'_>)) -> Execution {
            panic!("there is nothing to execute")
        }
        fn is_stopped(&self) -> bool {
            true
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let notebook = Notebook::open(folder.path()).unwrap();
    let planned = planned(TINY);
    let claims: Vec<_> = planned.iter().map(|cell| notebook.claim(&cell.grid.key, 1).unwrap().unwrap()).collect();
    let mut runner = Runner {
        notebook: &notebook,
        suite: Train { execute: &mut Stopped },
        observe: &mut Loud::default(),
        header: Header::default(),
    };
    let summary = runner.run(&planned, Trials::UpTo(1)).unwrap();
    assert!(summary.interrupted && summary.records.is_empty());
    drop(claims);
}

#[test]
fn claims_are_one_at_a_time_and_end_with_their_owner() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = Notebook::open(folder.path()).unwrap();
    let first = notebook.claim("k", 1).unwrap().expect("free");
    assert!(notebook.claim("k", 1).unwrap().is_none(), "taken, by this very process too");
    assert!(notebook.claim("k", 2).unwrap().is_some() && notebook.claim("../../x", 1).unwrap().is_some());
    drop(first);
    assert!(notebook.claim("k", 1).unwrap().is_some());
    // A file that a killed process left is no claim.
    std::fs::create_dir_all(folder.path().join("claims")).unwrap();
    std::fs::write(folder.path().join("claims/k-3"), "999999\n").unwrap();
    assert!(notebook.claim("k", 3).unwrap().is_some());
    std::fs::write(folder.path().join("claims"), "in the way").unwrap();
    let error = notebook.claim("k", 3).unwrap_err().to_string();
    assert!(error.contains("nothing can be written"), "{error}");
}

/// Threads that take and give back one claim: never two at once.
#[test]
fn claims_under_a_crowd() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let folder = tempfile::tempdir().unwrap();
    let notebook = Notebook::open(folder.path()).unwrap();
    let (inside, turns) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while turns.load(Ordering::SeqCst) < 300 {
                    let Some(claim) = notebook.claim("k", 1).unwrap() else { continue };
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two owners");
                    turns.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    drop(claim);
                }
            });
        }
    });
}

fn records(notebook: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(notebook.join("records.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

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

/// Runs a grid in a shell in which files may not grow beyond what is there: the next record finds no room.
fn grid_without_room(notebook: &Path, config: &Path, temporary: &Path) -> std::process::Output {
    let length = std::fs::metadata(notebook.join("records.jsonl")).unwrap().len();
    let command = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", length / 1024 + 1);
    Command::new("bash")
        .args(["-c", &command, env!("CARGO_BIN_EXE_zbench"), "--notebook"])
        .arg(notebook)
        .arg("grid")
        .arg(config)
        .args(["--trials", "1", "--no-repeats"])
        .env("TMPDIR", temporary)
        .output()
        .unwrap()
}

#[test]
fn a_record_without_room_is_rescued_and_taken_in_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    for (case, is_there) in [("with", true), ("without", false)] {
        let notebook = folder.path().join(case);
        let temporary = folder.path().join(format!("{case}-tmp"));
        if is_there {
            std::fs::create_dir(&temporary).unwrap();
        }
        let ddp = ["grid", path.to_str().unwrap(), "--trials", "1", "--only", "parallel.strategy=ddp"];
        assert_eq!(run(&notebook, &ddp).status.code(), Some(0));
        let output = grid_without_room(&notebook, &path, &temporary);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("free some space") && said.contains("zbench import --bundle"), "{said}");
        assert_eq!(records(&notebook).len(), 2, "what was there is there");
        let rescued: PathBuf = if is_there {
            let files: Vec<PathBuf> =
                std::fs::read_dir(&temporary).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert_eq!(files.len(), 1, "{said}");
            assert!(said.contains(files[0].to_str().unwrap()), "{said}");
            files[0].clone()
        } else {
            let lines: Vec<&str> = said.lines().filter(|line| line.starts_with('{')).collect();
            let file = folder.path().join("from-the-screen.jsonl");
            std::fs::write(&file, format!("{}\n{}\n", lines[0], lines[1])).unwrap();
            file
        };
        let import = run(&notebook, &["import", "--bundle", rescued.to_str().unwrap()]);
        assert_eq!(import.status.code(), Some(0), "{}", stderr(&import));
        let ids: Vec<String> = records(&notebook).iter().map(|record| record["id"].to_string()).collect();
        assert_eq!(ids.len(), 3);
        let output = run(&notebook, &["grid", path.to_str().unwrap(), "--trials", "1"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let after: Vec<String> = records(&notebook).iter().map(|record| record["id"].to_string()).collect();
        assert_eq!((after.len(), &after[..3]), (4, &ids[..]), "the rescued trial is not measured again");
    }
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

#[test]
fn a_rescued_record_is_a_bundle() {
    let folder = tempfile::tempdir().unwrap();
    let record = Record::new("abc", "key", "name", Outcome::measured());
    let path = rescue::keep(&record, folder.path()).unwrap();
    let read = |text: &[u8]| bundle::read(text).unwrap().records;
    assert_eq!(read(&std::fs::read(&path).unwrap()), std::slice::from_ref(&record));
    let text = rescue::keep(&record, folder.path()).unwrap_err();
    assert_eq!(read(text.as_bytes()), [record], "a file that is there is not written over");
}

#[test]
fn records_of_another_machine_or_build_do_not_settle_a_trial() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = Notebook::open(folder.path()).unwrap();
    let here = json!({"cpu": "x", "cores": 2, "profile": "release", "commit": "aaa", "kernel": "6.1"});
    let run = |change: Value, any_environment: bool| {
        let mut environment = here.as_object().cloned().unwrap();
        environment.extend(change.as_object().cloned().unwrap());
        let (mut execute, mut observe) = (Pretend(Duration::ZERO), Loud::default());
        let header = Header { environment, any_environment, ..Header::default() };
        let mut runner =
            Runner { notebook: &notebook, suite: Train { execute: &mut execute }, observe: &mut observe, header };
        let summary = runner.run(&planned(TINY), Trials::UpTo(1)).unwrap();
        (summary.appended, summary.records.len(), observe.set_aside)
    };
    assert_eq!(run(json!({}), false), (4, 4, vec![]));
    assert_eq!(run(json!({"kernel": "6.2"}), false), (0, 4, vec![]), "another kernel is the same machine");
    let words = |text: &str| vec![format!("4 {text}")];
    assert_eq!(run(json!({"commit": "bbb"}), true), (0, 4, vec![]));
    assert_eq!(run(json!({"commit": "bbb"}), false), (4, 4, words("another build (commit: aaa, then bbb)")));
    assert_eq!(
        run(json!({"cores": 4, "commit": "bbb"}), false),
        (4, 4, vec!["8 another machine (cores: 2, then 4)".into()])
    );
    // Dirty trees are the same when their marks are.
    assert_eq!(run(json!({"commit": "aaa-dirty-1"}), false).0, 4);
    assert_eq!(run(json!({"commit": "aaa-dirty-1"}), false).0, 0);
    assert_eq!(run(json!({"commit": "aaa-dirty-2"}), false).0, 4);
}
