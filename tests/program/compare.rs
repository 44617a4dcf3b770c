//! `zbench compare`: selectors, formats, exit codes, on notebooks written by hand and on one that was run.

use crate::support::{run, stderr, stdout, zbench};
use serde_json::{Value, json};
use std::path::Path;
use zbench_reports::record::{Outcome, Step};
use zbench_reports::{Notebook, Record};

/// A trial whose steps take about so many ms.
fn trial(id: &str, strategy: &str, commit: &str, number: u32, ms: f64) -> Record {
    let mut record = Record::new(id, format!("key-{strategy}"), "by-hand", Outcome::measured());
    record.trial = number;
    record.cell = json!({"parallel": {"strategy": strategy, "ranks": 2}});
    record.environment = json!({"cpu": "A", "commit": commit}).as_object().unwrap().clone();
    for step in 1..=8u64 {
        let step = Step {
            step,
            timed: step > 2,
            loss: 5.0 - step as f64 / 10.0,
            grad_norm: 1.0,
            lr: 1e-3,
            ms: ms * (1.0 + 0.01 * (step % 3) as f64),
            tokens: 1000,
            extra: Default::default(),
        };
        record.steps.push(step);
    }
    record.time.set("forward", ms * 0.4);
    record.time.set("backward", ms * 0.6);
    record
}

fn notebook(folder: &Path, records: &[Record]) {
    let notebook = Notebook::open(folder).unwrap();
    records.iter().for_each(|record| notebook.append(record).unwrap());
}

/// ddp and zero3 of two commits, three trials each; the second commit is 10 % faster.
fn history() -> Vec<Record> {
    let mut records = Vec::new();
    for (commit, factor) in [("aaaa11112222", 1.0), ("bbbb33334444", 0.9)] {
        for (strategy, ms) in [("ddp", 100.0), ("zero3", 150.0)] {
            for number in 1..=3u32 {
                let id = format!("{}{strategy}{number}", &commit[..1]);
                records.push(trial(&id, strategy, commit, number, ms * factor * (1.0 + 0.001 * f64::from(number))));
            }
        }
    }
    records
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn commits_records_cells_and_notebooks_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let book = folder.path().join("nb");
    notebook(&book, &history());
    let said = |arguments: &[&str]| {
        let output = run(&book, &[&["compare"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        stdout(&output)
    };
    // Two commits: each cell with itself.
    let text = said(&["commit=aaaa", "commit=bbbb"]);
    assert!(text.starts_with("ANSWER") && text.lines().count() <= 40, "{text}");
    assert!(text.contains("Of 2 pairs, B is faster in 2"), "{text}");
    let text = said(&["commit=aaaa", "commit=bbbb", "--full"]);
    assert!(text.contains("Of 2 pairs, B is faster in 2"), "{text}");
    assert!(
        text.find("Environment").unwrap() < text.find("Answer").unwrap() && text.contains("bbbb33334444"),
        "{text}"
    );
    let pairs = lines(&said(&["commit=aaaa", "commit=bbbb", "--format", "json"]));
    assert_eq!(pairs.len(), 2);
    for pair in &pairs {
        assert_eq!((&pair["kind"], &pair["paired_by"]), (&json!("pair"), &json!("key")));
        let speed = &pair["metrics"][0];
        assert_eq!((&speed["name"], &speed["verdict"]), (&json!("tokens_per_second"), &json!("b_better")));
        let ratio = speed["ratio"].as_f64().unwrap();
        assert!((ratio - 1.0 / 0.9).abs() < 1e-9, "{ratio}");
        assert_eq!(pair["a"]["records"].as_array().unwrap().len(), 3);
        let spans: f64 =
            pair["explanation"]["spans"].as_array().unwrap().iter().map(|s| s["change_ms"].as_f64().unwrap()).sum();
        assert!((spans - pair["explanation"]["step"]["change_ms"].as_f64().unwrap()).abs() < 1e-9);
    }
    // Two strategies of one commit, by the other axes; then cells by key, records by the beginnings of their ids.
    let filter = |strategy: &str| format!("commit=aaaa1111222233334444,parallel.strategy={strategy}");
    let text = said(&[&filter("ddp"), &filter("zero3"), "--format", "markdown"]);
    assert!(text.contains("| parallel.strategy | ddp | zero3 |") && text.contains("B is 33 % slower"), "{text}");
    assert!(said(&["key-ddp", "key-z", "--format", "csv"]).contains("metrics,tokens/s,"));
    let text = said(&["addp1", "bddp1"]);
    assert!(text.contains("too few trials to say (1 and 1;"), "{text}");
    // Notebooks, and one narrowed.
    let other = folder.path().join("other");
    notebook(&other, &history()[6..]);
    let (narrow, other) = (format!("{}:commit=aaaa", book.display()), other.display().to_string());
    let text = said(&[&narrow, &other]);
    assert!(text.contains("Of 2 pairs, B is faster in 2"), "{text}");
    assert!(said(&["--help"]).contains("zbench compare 3f2a 77c0"));
}

#[test]
fn selectors_that_are_nothing_or_several_things_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let book = folder.path().join("nb");
    let mut records = history();
    records.push(trial("key-x", "ddp", "aaaa99998888", 4, 100.0));
    notebook(&book, &records);
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let empty = format!("{}/empty", folder.path().display());
    for (selector, fragments) in [
        (
            "zzz",
            &[
                "`zzz` matches nothing",
                "an id of the 13 records",
                "a key of the 2 cells",
                "not the folder of a notebook",
                "name=TITLE",
            ][..],
        ),
        ("a", &["stands for 6 records", "give more letters"]),
        ("key-", &["stands for 1 record (key-x) and for 2 cells (key-ddp, key-zero3)"]),
        ("parallel.strategy=zero2", &["parallel.strategy=zero2; there are: ddp, zero3"]),
        ("stratgey=ddp", &["no record of", "has a value of `stratgey`", "parallel.strategy"]),
        ("name=by-hand,dpd", &["has `dpd` of `name=by-hand,dpd`", "no strategy, name, id or key"]),
        ("commit=aaaa", &["stands for 2 commits (aaaa11112222, aaaa99998888)"]),
        ("commit=bbbb,id=addp1", &["each term alone has some"]),
        (&empty, &["without records.jsonl"]),
        ("", &["a selector is empty"]),
        (&format!("{}:", book.display()), &["ends with a colon"]),
    ] {
        for arguments in [[selector, "commit=bbbb"], ["commit=bbbb", selector]] {
            let output = run(&book, &["compare", arguments[0], arguments[1]]);
            assert_eq!(output.status.code(), Some(1), "{selector}: {}", stdout(&output));
            for fragment in fragments {
                assert!(stderr(&output).contains(fragment), "{selector}: {fragment}: {}", stderr(&output));
            }
        }
    }
    // A folder's name that an id begins with, too.
    let output = zbench(&book).current_dir(&folder).args(["compare", "addp", "commit=bbbb"]).output().unwrap();
    assert!(stderr(&output).contains("stands for 3 records"), "{}", stderr(&output));
    notebook(&folder.path().join("addp"), &history());
    let output = zbench(&book).current_dir(&folder).args(["compare", "addp", "commit=bbbb"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("also the beginning of addp1; write ./addp"), "{}", stderr(&output));
    let output = zbench(&book).current_dir(&folder).args(["compare", "./addp", "commit=bbbb"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let nowhere = folder.path().join("nowhere");
    let output = run(&nowhere, &["compare", "aaaa", "bbbb"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no notebook in") && !nowhere.exists(), "{}", stderr(&output));
}

#[test]
fn where_nothing_can_be_compared_the_exit_code_is_4() {
    let folder = tempfile::tempdir().unwrap();
    let mut records = history();
    records.iter_mut().for_each(|record| record.validity.push("busy_machine".into()));
    notebook(folder.path(), &records);
    let output = run(folder.path(), &["compare", "commit=aaaa", "commit=bbbb"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(stdout(&output).contains("flagged busy_machine"), "{}", stdout(&output));
    let output = run(folder.path(), &["compare", "commit=aaaa", "commit=bbbb", "--include-flagged"]);
    assert_eq!(output.status.code(), Some(0));
}
