//! The log: what -v, -vv and ZBENCH_LOG show, and the file that every grid and run keeps in its notebook.

use crate::support::{is_full_tier, stderr, stdout, write, zbench};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};
use zbench_reports::Notebook;

const CELL: &str = "
    name = \"logged\"
    [model]
    hidden_size = 32
    intermediate_size = 64
    num_hidden_layers = 1
    num_attention_heads = 2
    vocab_size = 64
    [train]
    seq_len = 16
    steps = 2
    untimed_steps = 1
    [parallel]
    ranks = 2
";

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempfile::tempdir().unwrap() }
    }

    fn notebook(&self) -> PathBuf {
        self.folder.path().join("notebook")
    }

    fn run(&self, command: &str, more: &[&str], filter: Option<&str>) -> Output {
        let file = write(self.folder.path(), CELL);
        let mut zbench = zbench(&self.notebook());
        zbench.args([command, file.to_str().unwrap()]).args(more);
        match filter {
            Some(filter) => zbench.env("ZBENCH_LOG", filter),
            None => zbench.env_remove("ZBENCH_LOG"),
        };
        zbench.output().unwrap()
    }

    fn logs(&self) -> Vec<String> {
        texts(&self.notebook().join("logs"))
    }
}

fn texts(folder: &Path) -> Vec<String> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// Lines of this level, by the word behind the time.
fn lines<'t>(text: &'t str, level: &str) -> Vec<&'t str> {
    text.lines().filter(|line| line.split_whitespace().nth(1) == Some(level)).collect()
}

fn in_order(text: &str, words: &[&str]) {
    let mut rest = text;
    for word in words {
        let at = rest.find(word).unwrap_or_else(|| panic!("no \"{word}\" behind the others in\n{text}"));
        rest = &rest[at + word.len()..];
    }
}

#[test]
fn v_shows_the_course_of_a_run_and_vv_its_details() {
    let place = Place::new();
    let (plain, v, vv) =
        (place.run("run", &[], None), place.run("run", &["-v"], None), place.run("run", &["-vv"], None));
    assert_eq!([&plain, &v, &vv].map(|output| output.status.code()), [Some(0); 3], "{}", stderr(&vv));
    assert!(lines(&stderr(&plain), "INFO").is_empty() && lines(&stderr(&v), "DEBUG").is_empty());
    in_order(&stderr(&v), &["grid begins", "trial begins", "record is appended", "trial ends", "grid ends"]);
    assert!(stderr(&v).contains("step    1/3"), "a line for each step, as ever");
    let details = stderr(&vv);
    in_order(&details, &["grid begins", "claim is taken", "process of the cell started", "grid ends"]);
    assert!(lines(&details, "DEBUG").len() >= 2, "{details}");
}

#[test]
fn a_filter_chooses_targets_and_a_wrong_one_is_refused() {
    let place = Place::new();
    let output = place.run("run", &["--quiet"], Some("zbench::comm=trace"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let logs = place.logs().concat();
    // Gradients are reduced in each of the three steps, by two ranks.
    let starts = logs.lines().filter(|line| line.contains("collective starts")).count();
    assert!(starts >= 6, "{starts} of\n{logs}");
    assert!(logs.contains("kind=") && logs.contains("bytes=") && !logs.contains("grid begins"), "{logs}");
    for wrong in ["loud", "zbench::runer=info", "zbench=shout", "a=b=c"] {
        let output = place.run("run", &[], Some(wrong));
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{wrong}: {said}");
        assert!(said.contains("ZBENCH_LOG") && said.contains(wrong) && said.contains("zbench::comm"), "{said}");
    }
}

#[test]
fn every_grid_keeps_a_log_with_a_line_for_each_trial() {
    let place = Place::new();
    // A busy machine would have trials repeated.
    let output = place.run("grid", &["--trials", "3", "--no-repeats"], None);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let logs = place.logs();
    assert_eq!(logs.len(), 1, "one file for one command");
    let ends: Vec<&str> = logs[0].lines().filter(|line| line.contains("trial ends")).collect();
    assert_eq!(ends.len(), 3, "{}", logs[0]);
    for (number, line) in ends.iter().enumerate() {
        assert!(line.contains(&format!("trial={}", number + 1)) && line.contains("outcome=\"measured\""), "{line}");
        assert!(!line.contains("<redacted>"), "what names the cell is no secret: {line}");
    }
}

/// What goes to standard output is the same with and without a log.
#[test]
fn standard_output_has_no_log() {
    let place = Place::new();
    let output = place.run("run", &["--format", "json", "-vv"], Some("trace"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.lines().count() >= 1);
    for line in text.lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
    }
}

/// A secret in what a user states is in no log.
#[test]
fn a_secret_is_redacted() {
    let place = Place::new();
    let text = CELL.replace("\"logged\"", "\"password=hunter2hunter2\"");
    let file = write(place.folder.path(), &text);
    let output = zbench(&place.notebook()).args(["run", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let logs = place.logs().concat();
    assert!(logs.contains("grid begins") && !logs.contains("hunter2"), "{logs}");
}

/// The last that a process said on standard error is in the reason of a failure; its log is not.
#[test]
fn the_reason_of_a_cell_that_died_has_no_lines_of_the_log() {
    if !is_full_tier() {
        return;
    }
    let place = Place::new();
    let file = write(place.folder.path(), CELL);
    let more = ["--set", "parallel.backend=tcp", "--set", "train.steps=1000000", "--quiet"];
    let mut run = zbench(&place.notebook());
    run.args(["run", file.to_str().unwrap()]).args(more).env("ZBENCH_LOG", "trace");
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    // The log says which process is rank 1; it dies once it trains.
    let rank = loop {
        let log = place.logs().concat();
        let started = log.lines().find_map(|line| line.split_once("rank started rank=1 process="));
        let process = started.map(|(_, process)| process.trim().to_string());
        match process.filter(|process| log.contains(&format!("pid={process} rank{{rank=1}} collective starts"))) {
            Some(process) => break process,
            None if begin.elapsed() < Duration::from_secs(120) => {}
            None => {
                run.kill().unwrap();
                panic!("rank 1 does not train:\n{log}");
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let pid = Pid::from_raw(rank.parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(5));
    let records = Notebook::open(place.notebook()).unwrap().records().unwrap();
    let reason = &records[0].outcome.reason;
    assert!(reason.contains(&rank) && reason.contains("SIGKILL"), "{reason}");
    assert!(["zbench::", "TRACE", "INFO", "pid="].iter().all(|word| !reason.contains(word)), "{reason}");
    let log = place.logs().concat();
    assert!(log.lines().any(|line| line.contains("trial ends") && line.contains("outcome=\"failed\"")), "how it ended");
}
