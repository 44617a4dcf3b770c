//! Records that earlier versions wrote still read, show, list, report; those of a newer schema are refused by line and kept.
//! The files in tests/fixtures/records were written by the commit that their records name, and never change.

use crate::support::{root, run, stderr, stdout};
use serde_json::Value;
use std::path::Path;

fn fixtures() -> Vec<(String, String)> {
    let folder = root().join("tests/fixtures/records");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "jsonl"));
    files.sort();
    files
        .iter()
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read_to_string(path).unwrap()))
        .collect()
}

fn notebook(folder: &Path, text: &str) {
    std::fs::write(folder.join("records.jsonl"), text).unwrap();
}

#[test]
fn old_records_read_show_list_and_report() {
    let fixtures = fixtures();
    assert_eq!(fixtures.len(), 5, "measured, skipped, out of memory, diverged, collectives");
    let folder = tempfile::tempdir().unwrap();
    let all: String = fixtures.iter().map(|(_, text)| text.as_str()).collect();
    notebook(folder.path(), &all);
    let said = |arguments: &[&str]| {
        let output = run(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("warning"), "{}", stderr(&output));
        stdout(&output)
    };
    let listed = said(&["list", "--format", "csv"]);
    for line in all.lines() {
        let old: Value = serde_json::from_str(line).unwrap();
        let id = old["id"].as_str().unwrap();
        assert!(listed.contains(id), "{id}");
        let shown = said(&["show", id, "--format", "json"]);
        let mut shown: Value = serde_json::from_str(&shown).unwrap();
        shown.as_object_mut().unwrap().remove("remarks");
        assert_eq!(shown, old, "nothing that was written is lost or changed");
        for format in ["table", "markdown"] {
            assert!(said(&["show", id, "--format", format]).contains(id));
            said(&["report", id, "--format", format]);
        }
    }
    let report = said(&["report", "name=tiny", "--format", "markdown"]);
    for words in ["does it work?", "ddp", "zero3", "identical", "skipped", "out of memory", "diverged"] {
        assert!(report.contains(words), "{words}: {report}");
    }
}

#[test]
fn a_newer_schema_is_refused_by_line_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (_, measured) = fixtures().into_iter().find(|(name, _)| name.contains("measured")).unwrap();
    let mut newer: Value = serde_json::from_str(measured.lines().next().unwrap()).unwrap();
    newer["schema"] = 99.into();
    newer["id"] = "feedfeedfeed".into();
    newer["outcome"] = "of another form".into();
    let text = format!("{newer}\n{measured}");
    notebook(folder.path(), &text);
    let output = run(folder.path(), &["list", "--format", "csv"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(!stdout(&output).contains("feedfeedfeed"));
    let said = stderr(&output);
    assert!(said.contains("line 1") && said.contains("schema 99") && said.contains("reads up to 2"), "{said}");
    for command in ["show", "repro", "note"] {
        let arguments = if command == "note" { vec![command, "feedfeed", "x"] } else { vec![command, "feedfeed"] };
        let output = run(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(1), "{command}");
        let said = stderr(&output);
        assert!(said.contains("line 1") && said.contains("schema 99"), "{command}: {said}");
    }
    let id =
        serde_json::from_str::<Value>(measured.lines().next().unwrap()).unwrap()["id"].as_str().unwrap().to_string();
    assert_eq!(run(folder.path(), &["note", &id, "still there?"]).status.code(), Some(0));
    let after = std::fs::read_to_string(folder.path().join("records.jsonl")).unwrap();
    assert!(after.starts_with(&text), "the newer line stays where it was");
}
