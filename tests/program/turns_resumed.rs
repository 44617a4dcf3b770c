//! Grids by turns that are stopped, killed and gone on with: nothing measured is lost, and nothing counts twice.

use crate::support::{TINY, is_full_tier, records, run, signal, stderr, stdout, write, zbench};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

/// The text after a label of a screen, with the label, in one line: where the text wraps depends on the numbers in it.
fn part(screen: &str, label: &str) -> String {
    let mut lines = screen.lines().skip_while(|line| !line.starts_with(label));
    let first = lines.next().unwrap_or_else(|| panic!("no {label} in\n{screen}"));
    let rest = lines.take_while(|line| line.starts_with("         "));
    std::iter::once(first).chain(rest).map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Every row of every record, named by where it stands. None of them twice, all of one experiment.
fn rows(records: &[Value]) -> BTreeSet<String> {
    let mut rows = BTreeSet::new();
    for record in records {
        let turns = &record["turns"];
        assert_eq!(turns["experiment"], records[0]["turns"]["experiment"], "the same command goes on");
        for row in turns["rows"].as_array().unwrap() {
            let name = format!("{} {} {} {row}", turns["batch"], record["key"], turns["twin"]);
            assert!(rows.insert(name), "twice: {row}");
        }
    }
    let places: BTreeSet<String> = records
        .iter()
        .map(|record| {
            format!("{} {} {} {}", record["turns"]["batch"], record["trial"], record["key"], record["turns"]["twin"])
        })
        .collect();
    assert_eq!(places.len(), records.len(), "one record of each process");
    rows
}

fn grid(notebook: &Path, file: &Path, arguments: &[&str]) -> std::process::Command {
    let mut command = zbench(notebook);
    command.args(["grid", file.to_str().unwrap(), "--allow-load", "--seed", "1"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn whole(notebook: &Path, file: &Path, arguments: &[&str]) -> Output {
    let output = grid(notebook, file, arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    output
}

/// Waits until a block of turns is on disk, and returns its file.
fn first_block(notebook: &Path, child: &mut Child) -> PathBuf {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < Duration::from_secs(60), "no turn in a minute");
        assert_eq!(child.try_wait().unwrap(), None, "it has ended");
        let files = std::fs::read_dir(notebook.join("turns")).into_iter().flatten().flatten();
        for path in files.map(|entry| entry.path()) {
            if std::fs::read_to_string(&path).unwrap_or_default().contains(r#"{"of":"#) {
                return path;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_budget_is_of_the_experiment_and_a_larger_one_measures_more() {
    if !is_full_tier() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (notebook, file) = (folder.path().join("nb"), write(folder.path(), TINY));
    let of = |budget: &str| whole(&notebook, &file, &["--decide", "0.01%", "--budget", budget]);
    of("5s");
    let first = rows(&records(&notebook));
    let again = of("5s");
    assert_eq!(rows(&records(&notebook)), first, "the time is spent");
    assert!(stderr(&again).contains("nothing was measured"), "{}", stderr(&again));
    assert!(stderr(&again).contains("--budget 10s") && stderr(&again).contains("--fresh"), "{}", stderr(&again));
    assert!(stdout(&again).starts_with("ANSWER"), "the report is there all the same: {}", stdout(&again));
    let output = of("12s");
    let more = rows(&records(&notebook));
    assert!(more.len() > first.len() && more.is_superset(&first), "{} after {}", more.len(), first.len());
    assert!(!stderr(&output).contains("nothing was measured"), "{}", stderr(&output));
}

#[test]
fn a_stricter_question_goes_on_where_an_easier_one_was_decided() {
    if !is_full_tier() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (notebook, file) = (folder.path().join("nb"), write(folder.path(), TINY));
    let of = |decide: &str, budget: &str| whole(&notebook, &file, &["--budget", budget, "--decide", decide]);
    of("90%", "6s");
    // Whether all is decided in six seconds depends on what else the machine does; here it was.
    let path = notebook.join("records.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace(r#""stopped":"budget""#, r#""stopped":"decided""#)).unwrap();
    let first = rows(&records(&notebook));
    let again = of("90%", "14s");
    assert_eq!(rows(&records(&notebook)), first, "it is decided, however much time there is");
    let said = stderr(&again);
    assert!(said.contains("nothing was measured: all that --decide 90% asks is decided"), "{said}");
    assert!(said.contains("a smaller --decide") && said.contains("--fresh"), "{said}");
    of("0.01%", "14s");
    let more = rows(&records(&notebook));
    assert!(more.len() > first.len() && more.is_superset(&first), "{} after {}", more.len(), first.len());
}

#[test]
fn the_same_command_goes_on_after_ctrl_c() {
    let folder = tempfile::tempdir().unwrap();
    let (notebook, file) = (folder.path().join("nb"), write(folder.path(), TINY));
    let arguments = ["--decide", "0.01%", "--budget", "12s"];
    let mut child = grid(&notebook, &file, &arguments).spawn().unwrap();
    first_block(&notebook, &mut child);
    signal(child.id(), Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!notebook.join("turns").exists(), "the records have the turns");
    let first = rows(&records(&notebook));
    assert!(!first.is_empty());
    let output = whole(&notebook, &file, &arguments);
    let more = rows(&records(&notebook));
    assert!(more.len() > first.len() && more.is_superset(&first), "{} after {}", more.len(), first.len());
    let spent = part(&stdout(&output), "SPENT");
    assert!(spent.contains("The budget ended it.") && !spent.contains("interrupted"), "{spent}");
}

#[test]
fn turns_survive_a_kill_and_count_once() {
    let folder = tempfile::tempdir().unwrap();
    let (notebook, file) = (folder.path().join("nb"), write(folder.path(), TINY));
    let of = |budget: &'static str| ["--decide", "0.01%", "--budget", budget];
    // A generation takes twenty seconds, so that it does not end before the kill, also on a slow machine.
    let mut child = grid(&notebook, &file, &of("60s")).spawn().unwrap();
    let path = first_block(&notebook, &mut child);
    signal(child.id(), Signal::KILL);
    child.wait().unwrap();
    assert_eq!(records(&notebook), Vec::<Value>::new(), "its generation has not ended");
    let lines = std::fs::read_to_string(&path).unwrap();
    let blocks: Vec<Value> = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let measured: Vec<&Value> = blocks.iter().filter_map(|block| block["rows"].as_array()).flatten().collect();
    assert!(measured.len() >= 5, "four cells and a twin have had a turn: {}", measured.len());
    // The machine may lose power in the middle of a line, too.
    std::fs::write(&path, format!("{lines}{{\"of\":\"")).unwrap();
    let output = whole(&notebook, &file, &of("12s"));
    assert!(stderr(&output).contains("5 records were made of turns"), "{}", stderr(&output));
    let all = records(&notebook);
    let more = rows(&all);
    for row in &measured {
        assert_eq!(more.iter().filter(|name| name.ends_with(&row.to_string())).count(), 1, "{row}");
    }
    assert!(more.len() > measured.len(), "it goes on");
    assert!(!notebook.join("turns").exists());
    let killed: Vec<&Value> = all.iter().filter(|record| record["trial"] == 1).collect();
    assert_eq!(killed.len(), 5);
    for record in killed {
        assert_eq!(record["turns"]["stopped"], "interrupted");
        assert!(record["notes"].to_string().contains("was killed"), "{}", record["notes"]);
    }
    assert!(all.iter().any(|record| record["steps"].as_array().unwrap().len() == 3), "losses are measured by the next");
}

#[test]
fn cells_that_do_not_fit_together_are_measured_in_batches() {
    if !is_full_tier() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (notebook, file) = (folder.path().join("nb"), write(folder.path(), TINY));
    // A cell's three processes take 96 MiB, its arenas next to nothing: at 60 %, four cells fit, of which two are the reference.
    let of = |memory: &str, budget: &str| {
        whole(&notebook, &file, &["--decide", "0.01%", "--budget", budget, "--resident-memory", memory])
    };
    let output = of("700MiB", "12s");
    let batches = |records: &[Value]| {
        let of = |record: &Value| (record["turns"]["batch"].as_u64().unwrap(), record["key"].to_string());
        records.iter().map(of).collect::<BTreeSet<(u64, String)>>()
    };
    let all = records(&notebook);
    let first = rows(&all);
    let found = batches(&all);
    let keys: BTreeSet<&String> = found.iter().map(|(_, key)| key).collect();
    assert_eq!(keys.len(), 4, "every cell has turns");
    assert_eq!(found.iter().filter(|(batch, _)| *batch == 0).count(), 3);
    assert_eq!(found.iter().filter(|(batch, _)| *batch == 1).count(), 2, "the reference and the last");
    let spent = part(&stdout(&output), "SPENT");
    assert!(spent.contains("2 batches that share the reference"), "{spent}");
    // With more memory the cells stay with those that they were compared with.
    of("8GiB", "24s");
    let all = records(&notebook);
    assert!(rows(&all).len() > first.len());
    assert_eq!(batches(&all), found);
    // Where no cell fits beside the reference and its twin, trials are the only way, and records say so.
    let small = folder.path().join("small");
    let output = run(&small, &["grid", file.to_str().unwrap(), "--resident-memory", "300MiB"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let all = records(&small);
    assert_eq!(all.len(), 12, "three trials of each cell");
    for record in &all {
        let why = record["turns"]["why_not"].as_str().unwrap();
        assert!(why.contains("the reference, its twin and the cell") && why.contains("300.00 MiB"), "{why}");
    }
}
