//! A label that is printed anywhere is accepted everywhere: by `--only`, list, show, compare, note, tag and report.

use crate::support::{TINY, cells, run, stderr, stdout, write, zbench};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use zbench_reports::record::{Outcome, Step};
use zbench_reports::{Notebook, Record};

/// Keys of every kind: without a name, one whose last part several keys share, one that records do not have, one in bytes.
const GRID: &str = r#"
"train.accumulation" = [1, 4]
"lora.rank" = [0, 4]
"precision.preset" = ["f32", "bf16-mixed"]
"memory.capacity" = ["1GiB", "2GiB"]
"#;

/// A notebook with two records of every cell, as a grid leaves it.
fn notebook(folder: &Path, text: &str) {
    let notebook = Notebook::open(folder).unwrap();
    for trial in 1..=2u32 {
        for (place, cell) in cells(text).unwrap().into_iter().enumerate() {
            let resolved = cell.resolved.expect("every combination can be");
            let id = format!("{trial}{place:03x}{}", &cell.key[..8]);
            let mut record = Record::new(id, &cell.key, "tiny", Outcome::measured());
            record.trial = trial;
            record.started = format!("2026-11-2{trial}T10:00:00Z");
            record.cell = zbench_config::grid::plain(&resolved.cell);
            record.estimate = json!({ "label": cell.label });
            let tokens = 64.0 * resolved.cell.train.accumulation as f64;
            for step in 1..=6u64 {
                record.steps.push(Step {
                    step,
                    timed: true,
                    loss: 5.0,
                    grad_norm: 1.0,
                    lr: 1e-3,
                    ms: tokens * (1.0 + place as f64 / 10.0) * (1.0 + 0.001 * (step + u64::from(trial)) as f64),
                    tokens: tokens as u64,
                    extra: Default::default(),
                });
            }
            record.metrics.set("tokens_per_second", 900.0 - place as f64);
            notebook.append(&record).unwrap();
        }
    }
}

fn said(folder: &Path, arguments: &[&str]) -> String {
    let output = zbench(folder).args(arguments).env("COLUMNS", "400").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    stdout(&output)
}

/// Titles of the column with labels; plans have a table for each kind of work.
const TITLES: [&str; 3] = ["cell", "full fine-tune", "adapter run"];

/// The labels of the first column named so, with or without frames around, and of tables below it.
fn labels(text: &str) -> BTreeSet<String> {
    let has_cell = |line: &&str| line.split("  ").any(|word| TITLES.contains(&word.trim_matches([' ', '│', '┆'])));
    let framed = |line: &&str| line.starts_with('│') && line.contains(" cell ");
    let lines: Vec<&str> = text.lines().skip_while(|line| !has_cell(line) && !framed(line)).collect();
    let head = *lines.first().unwrap_or_else(|| panic!("no table of cells: {text}"));
    let split = |line: &str| -> Vec<String> {
        let parts: Vec<&str> = match head.starts_with('│') {
            true => line.trim_matches('│').split('┆').collect(),
            false => line.split("  ").filter(|part| !part.trim().is_empty()).collect(),
        };
        parts.into_iter().map(|part| part.trim().to_string()).collect()
    };
    let place = split(head).iter().position(|title| TITLES.contains(&title.as_str())).unwrap();
    let is_row = |line: &&&str| match head.starts_with('│') {
        true => line.starts_with('│'),
        false => line.starts_with(' ') && !line.starts_with("         "),
    };
    let mut labels: Vec<String> = Vec::new();
    for line in lines[1..].iter().filter(is_row) {
        let entries = split(line);
        let Some(label) =
            entries.get(place).filter(|label| !label.starts_with(':') && !TITLES.contains(&label.as_str()))
        else {
            continue;
        };
        match labels.last_mut().filter(|_| entries[0].is_empty()) {
            // Words of a framed table go on below.
            Some(last) => *last = format!("{last} {label}").trim().to_string(),
            // Titles of two lines begin with nothing.
            None if label.is_empty() => {}
            None => labels.push(label.clone()),
        }
    }
    labels.into_iter().collect()
}

#[test]
fn a_label_that_is_printed_anywhere_is_accepted_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{TINY}{GRID}");
    let file = write(folder.path(), &text);
    let file = file.to_str().unwrap();
    let book = &folder.path().join("nb");
    notebook(book, &text);
    let printed = [
        labels(&said(book, &["report"])),
        labels(&said(book, &["plan", file])),
        labels(&said(book, &["plan", file, "--full", "--format", "markdown"]).replace(['|'], "  ")),
        labels(&said(book, &["list"])),
    ];
    assert!(printed.iter().all(|labels| labels.len() >= 8), "{printed:?}");
    assert!(printed[1].iter().any(|label| label.contains("precision.preset=")), "{printed:?}");
    // Some of each: every command is a process.
    for label in printed.iter().flat_map(|labels| labels.iter().step_by(labels.len() / 4)) {
        let label = label.as_str();
        let record: Value = serde_json::from_str(&said(book, &["show", label, "--format", "json"])).unwrap();
        // What the label names is so, and what it leaves out is off.
        let cell = &record["cell"];
        assert!(label.starts_with(cell["parallel"]["strategy"].as_str().unwrap()), "{label}: {record}");
        let checkpointing = if label.contains("checkpointing=full") { "full" } else { "none" };
        assert_eq!(cell["memory"]["checkpointing"], checkpointing, "{label}");
        assert_eq!(label.contains("lora.rank=4"), cell["lora"]["rank"] == 4, "{label}");
        assert_eq!(
            (&record["trial"], record["id"].as_str()),
            (&json!(2), record["id"].as_str()),
            "the newest: {label}"
        );
        let id = record["id"].as_str().unwrap();
        assert!(said(book, &["list", label]).contains(&id[..8]), "{label}");
        assert!(said(book, &["report", label]).starts_with("ANSWER"), "{label}");
        assert!(said(book, &["compare", label, id]).starts_with("ANSWER"), "{label}");
        said(book, &["note", label, "said by its label"]);
        said(book, &["tag", label, "named"]);
        let planned = said(book, &["plan", file, "--only", label, "--format", "json"]);
        let keys: Vec<Value> =
            planned.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["key"].clone()).collect();
        assert!(keys.contains(&record["key"]), "{label}: {planned}");
        let shown: Value = serde_json::from_str(&said(book, &["show", id, "--format", "json"])).unwrap();
        assert_eq!(shown["remarks"][0]["text"], "said by its label");
    }
    // A note on a cell is on all of its records.
    assert!(said(book, &["list", "tag=named"]).lines().count() > 16);
}

#[test]
fn a_whole_label_stands_for_one_cell_although_its_terms_are_true_of_more() {
    let folder = tempfile::tempdir().unwrap();
    let grid = "[parallel]\nranks = 4\nshard = 2\n[grid]\n\"parallel.strategy\" = [\"zero3\", \"zero++\"]\n\"memory.attention\" = \
                [\"flash\", \"flash1\"]\n[[grid.include]]\n\"parallel.strategy\" = [\"zero3\"]\n\"memory.checkpointing\" = [\"full\"]\n";
    let file = write(folder.path(), &format!("{}{grid}", TINY.split("[parallel]").next().unwrap()));
    let file = file.to_str().unwrap();
    let plan = |more: &[&str]| said(folder.path(), &[&["plan", file][..], more].concat());
    let printed = labels(&plan(&[]));
    assert_eq!(printed.len(), 5, "{printed:?}");
    // The cell of the include has flash attention, too.
    for label in printed.iter().filter(|label| label.starts_with("zero3")) {
        assert_eq!(plan(&["--only", label, "--format", "json"]).lines().count(), 1, "{label}");
    }
    let export = |only: &str| said(folder.path(), &["export", file, "--to", "deepspeed", "--only", only]);
    assert!(export("zero3, attention=flash").contains("\"stage\": 3"));
    assert_eq!(plan(&["--only", "parallel.strategy=zero3", "--format", "json"]).lines().count(), 3);
    let single =
        ["--set", "parallel.strategy=zero++", "--set", "memory.attention=flash", "--set", "memory.checkpointing=none"];
    assert!(plan(&[&single[..], &["--format", "json"]].concat()).starts_with("{\"label\":\"zero++\""));

    let book = &folder.path().join("nb");
    notebook(book, TINY);
    let pairs = said(book, &["compare", "ddp", "ddp, checkpointing=full", "--format", "json"]);
    let pair: Value = serde_json::from_str(pairs.trim()).unwrap_or_else(|_| panic!("one pair: {pairs}"));
    assert_eq!(pair["paired_by"], "only_cells");
}

#[test]
fn what_stands_for_several_cells_lists_them_and_short_keys_are_enough() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{TINY}\"train.accumulation\" = [1, 4]\n\"lora.rank\" = [0, 4]\n");
    let file = write(folder.path(), &text);
    let book = &folder.path().join("nb");
    notebook(book, &text);
    let refused = |arguments: &[&str], fragments: &[&str]| {
        let output = run(book, arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stdout(&output));
        for fragment in fragments {
            assert!(stderr(&output).contains(fragment), "{fragment}: {}", stderr(&output));
        }
    };
    // Both values of accumulation are left, and neither is off.
    let listed =
        ["`zero3` stands for 8 cells", "\"zero3, accumulation=1\"", "\"zero3, accumulation=4, checkpointing=full"];
    refused(&["show", "zero3"], &listed);
    refused(&["note", "accumulation=4", "x"], &["stands for 8 cells", "\"ddp"]);
    refused(&["tag", "ddp, accumulation=3", "x"], &["no record of", "accumulation=3; there are: 1, 4"]);
    refused(&["show", "dpd, accumulation=4"], &["has `dpd`"]);
    let count = |arguments: &[&str]| said(book, arguments).lines().count();
    let file = file.to_str().unwrap();
    for (terms, cells) in [
        ("zero3", 8),
        ("zero3, ddp", 16),
        ("rank=4", 8),
        ("ddp, rank=4, accumulation=1", 2),
        ("ddp, memory.checkpointing=full, accumulation=1, accumulation=4, rank=0", 2),
    ] {
        assert_eq!(count(&["plan", file, "--only", terms, "--format", "json"]), cells, "{terms}");
        assert_eq!(count(&["list", terms, "--format", "json"]), 2 * cells, "{terms}");
    }
    let key =
        said(book, &["plan", file, "--only", "ddp, rank=4, accumulation=1, checkpointing=full", "--format", "json"]);
    let key: Value = serde_json::from_str(key.trim()).unwrap();
    let key = &key["key"].as_str().unwrap()[..10];
    assert_eq!(count(&["plan", file, "--only", key, "--format", "json"]), 1);
    assert_eq!(count(&["list", key, "--format", "json"]), 2);
    refused(&["plan", file, "--only", "path=x"], &["path may be", "data.path", "lora.path", "in full"]);
    refused(&["plan", file, "--only", "zero4"], &["zero4", "no strategy"]);
}

#[test]
fn a_list_is_empty_where_other_terms_leave_nothing_and_names_keys_that_nothing_has() {
    let folder = tempfile::tempdir().unwrap();
    let book = &folder.path().join("nb");
    notebook(book, TINY);
    for empty in ["ddp,tag=paper", "tag=paper,ddp", "lora.rank=4", "status=skipped"] {
        assert_eq!(said(book, &["list", empty, "--format", "json"]), "", "{empty}");
    }
    assert!(said(book, &["list", "ddp", "--format", "json"]).lines().count() == 4);
    for (command, words, fragment) in [
        ("list", "a=b", "has a value of `a`; a filter's keys are name"),
        ("list", "=", "has a value of ``; a filter's keys are name"),
        ("list", "zero4,tag=paper", "zero4"),
        ("show", "", "the selector is empty; write the beginning of a record's id"),
    ] {
        let output = run(book, &[command, words]);
        assert_eq!(output.status.code(), Some(1), "{words}: {}", stdout(&output));
        assert!(stderr(&output).contains(fragment), "{words}: {}", stderr(&output));
    }
}

#[test]
fn list_and_report_say_that_turns_wait() {
    let folder = tempfile::tempdir().unwrap();
    let book = &folder.path().join("nb");
    notebook(book, TINY);
    let words = |command: &str| stderr(&run(book, &[command]));
    assert_eq!(words("list"), "");
    std::fs::create_dir(book.join("turns")).unwrap();
    std::fs::write(book.join("turns/notes.txt"), "mine").unwrap();
    assert_eq!(words("list"), "");
    std::fs::write(book.join("turns/a.jsonl"), "").unwrap();
    for command in ["list", "report"] {
        assert!(words(command).contains("has 1 file of turns that are not in the records yet"), "{}", words(command));
    }
}
