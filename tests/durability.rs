//! What is measured is not lost and not measured twice: kill -9 at any moment, several processes on one notebook, another machine
//! or build. tests/program/durability.rs has what needs the program itself.
//!
//! Where many trials are needed their cells only pretend: a second run of this test binary is the process that is killed.

use crate::support::{TINY, cells};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use zbench_engine::config::Cell;
use zbench_engine::planner::Planner;
use zbench_predict::planned::{Planned, plan};
use zbench_reports::record::{Outcome, Record, Step};
use zbench_reports::{Notebook, bundle};
use zbench_runner::protocol::{End, ProgressEvent};
use zbench_runner::{Execute, Execution, Header, Observe, Runner, Train, Trials, rescue};
use zbench_test_tiers as tiers;

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
    let kills =
        tiers::cases("durability::a_grid_killed_a_hundred_times_loses_and_repeats_nothing", [5, 15, 100]) as usize;
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
