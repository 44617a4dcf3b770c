//! The notebook's own tools through the program: tags, filters, bundles from notebook to notebook, repetition.

use crate::support::{TINY, root, run, stderr, stdout, write};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn records(notebook: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(notebook.join("records.jsonl")).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .filter(|line: &Value| line.get("id").is_some())
        .collect()
}

/// A notebook with what earlier versions wrote: six records of five kinds.
fn old(folder: &Path) -> std::path::PathBuf {
    let notebook = folder.join("old");
    std::fs::create_dir(&notebook).unwrap();
    let mut text = String::new();
    for kind in ["measured", "skipped", "out-of-memory", "diverged", "collectives"] {
        let file = root().join(format!("tests/fixtures/records/v1-{kind}.jsonl"));
        text += &std::fs::read_to_string(file).unwrap();
    }
    // Buffers larger than the caches take seconds to fill in a program that is not optimised.
    let text = text.replace("-b 1K -e 4K -n 3\"", "-b 1K -e 4K -n 3 --buffers hot\"");
    std::fs::write(notebook.join("records.jsonl"), text).unwrap();
    notebook
}

fn said(notebook: &Path, arguments: &[&str]) -> String {
    let output = run(notebook, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    stdout(&output)
}

/// Ids that a list names.
fn listed(notebook: &Path, terms: &[&str]) -> Vec<String> {
    let text = said(notebook, &[&["list", "--format", "json"], terms].concat());
    text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_string()).collect()
}

/// Long lists are written in parts.
#[test]
fn a_long_list_has_every_record_once() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("nb");
    std::fs::create_dir(&notebook).unwrap();
    let line = |number: u32| {
        format!("{{\"schema\":2,\"id\":\"id{number:06}\",\"key\":\"k\",\"outcome\":{{\"status\":\"failed\"}}}}\n")
    };
    std::fs::write(notebook.join("records.jsonl"), (0..2100).map(line).collect::<String>()).unwrap();
    for format in ["csv", "markdown"] {
        let text = said(&notebook, &["list", "--format", format]);
        assert_eq!(text.matches("id00").count(), 2100, "{format}");
        assert_eq!(text.lines().filter(|line| line.contains("outcome")).count(), 1, "{format}: one header");
    }
    let text = said(&notebook, &["list", "--sort", "trial"]);
    let rows: Vec<&str> = text.lines().filter(|line| line.contains("│ id") && line.contains("failed")).collect();
    assert!(rows.len() == 2100 && rows[2099].contains("id002099"), "{}", rows.len());
    assert!(text.starts_with("Records\n\n┌") && text.ends_with("┘\n\n2100 records.\n"), "{text}");
}

#[test]
fn lists_are_filtered_sorted_and_cut() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = old(folder.path());
    let all: Vec<String> = records(&notebook).iter().map(|record| record["id"].as_str().unwrap().to_string()).collect();
    assert_eq!(listed(&notebook, &[]).len(), 6);
    for (terms, expected) in [
        (&["status=measured"][..], vec![0, 1, 5]),
        (&["parallel.strategy=zero3"], vec![1]),
        (&["valid=no"], vec![2, 3, 4]),
        (&["valid=yes,name=tiny"], vec![0, 1]),
        (&["commit=547f8ab"], vec![0, 1, 2, 3, 4, 5]),
        (&["commit=ffff"], vec![]),
        (&["since=2026-11-21T16:24:26.06Z"], vec![5]),
        (&["since=2126-01-01"], vec![]),
        (&["since=1w", "status=nothing"], vec![]),
        (&["--last", "2"], vec![4, 5]),
        (&["name=tiny", "--sort", "tokens_per_second", "--last", "1"], vec![0]),
        (&["valid=yes", "name=tiny", "--sort", "loss_last", "--last", "9"], vec![0, 1]),
    ] {
        let expected: Vec<&String> = expected.into_iter().map(|place: usize| &all[place]).collect();
        assert_eq!(listed(&notebook, terms).iter().collect::<Vec<_>>(), expected, "{terms:?}");
    }
    assert!(said(&notebook, &["list", "status=measured"]).contains("3 records of 6"));
    for wrong in [&["valid=maybe"][..], &["since=soon"], &["--sort", "beauty"], &["zzzz"]] {
        let output = run(&notebook, &[&["list"], wrong].concat());
        assert_eq!(output.status.code(), Some(1), "{wrong:?}");
        assert!(stderr(&output).contains("error: "), "{}", stderr(&output));
    }
}

#[test]
fn tags_are_given_found_taken_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = old(folder.path());
    let id = listed(&notebook, &["parallel.strategy=zero3"]).remove(0);
    said(&notebook, &["tag", &id[..6], "paper", "figure-2"]);
    said(&notebook, &["note", &id, "the fan was loud"]);
    assert_eq!(listed(&notebook, &["tag=paper"]), std::slice::from_ref(&id));
    assert_eq!(listed(&notebook, &["tag=paper,parallel.strategy=ddp"]), Vec::<String>::new());
    let json = said(&notebook, &["list", "tag=figure-2", "--format", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["tags"], serde_json::json!(["figure-2", "paper"]));
    let csv = said(&notebook, &["list", "tag=figure-2", "--format", "csv"]);
    assert!(csv.contains("figure-2, paper"), "{csv}");
    let shown = said(&notebook, &["show", &id]);
    assert!(shown.contains("figure-2, paper") && shown.contains("the fan was loud"), "{shown}");
    assert!(!shown.contains("tags: +"), "tags are not shown as remarks too");
    said(&notebook, &["tag", &id, "paper", "--remove"]);
    assert_eq!(listed(&notebook, &["tag=paper"]), Vec::<String>::new());
    assert_eq!(listed(&notebook, &["tag=figure-2"]).len(), 1);
    for wrong in ["", "two words", "a,b", "a=b", "bell\u{7}", &"x".repeat(65)] {
        assert_eq!(run(&notebook, &["tag", &id, wrong]).status.code(), Some(1), "{wrong:?}");
    }
    // What an older reader sees of a tag: a remark whose text says it.
    let text = std::fs::read_to_string(notebook.join("records.jsonl")).unwrap();
    let remark: Value = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .find(|line| line.get("note_for").is_some())
        .unwrap();
    assert_eq!((&remark["schema"], &remark["text"]), (&Value::from(2), &Value::from("tags: +paper +figure-2")));
}

#[test]
fn a_bundle_that_is_not_whole_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (old(folder.path()), folder.path().join("to"));
    let file = folder.path().join("all.jsonl");
    said(&from, &["export", "--bundle", file.to_str().unwrap()]);
    let whole = std::fs::read(&file).unwrap();
    let mut changed = whole.clone();
    let place = whole.len() / 2;
    changed[place] ^= 1;
    let newer = String::from_utf8(whole.clone()).unwrap().replacen("\"schema\":1", "\"schema\":99", 1).into_bytes();
    for (bytes, words) in [
        (whole[..whole.len() - 100].to_vec(), "cut off"),
        (changed, "hash"),
        (newer, "schema 99"),
        (b"hello".to_vec(), "no bundle"),
        (Vec::new(), "no bundle"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        let output = run(&to, &["import", "--bundle", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{words}");
        assert!(
            stderr(&output).contains(words) && stderr(&output).contains("nothing was taken"),
            "{}",
            stderr(&output)
        );
        assert!(!to.join("records.jsonl").exists());
    }
    let absent = run(&to, &["import", "--bundle", "/nowhere/x"]);
    assert_eq!(absent.status.code(), Some(1));
}

#[test]
fn an_id_with_other_numbers_is_told_and_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let from = old(folder.path());
    let file = folder.path().join("all.jsonl");
    said(&from, &["export", "--bundle", file.to_str().unwrap()]);
    let text = std::fs::read_to_string(from.join("records.jsonl")).unwrap();
    let other = text.replacen("\"trial\":1", "\"trial\":7", 1);
    std::fs::write(from.join("records.jsonl"), &other).unwrap();
    let output = run(&from, &["import", "--bundle", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("was not taken"), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(from.join("records.jsonl")).unwrap(), other);
}

#[test]
fn a_record_of_another_build_is_repeated_and_its_differences_come_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let notebook = folder.path().join("nb");
    said(&notebook, &["run", path.to_str().unwrap(), "--only", "parallel.strategy=zero3,memory.checkpointing=none"]);
    let mut record = records(&notebook).remove(0);
    record["environment"]["commit"] = "000000000000".into();
    record["environment"]["topology"] = serde_json::json!({"threads": 640});
    std::fs::write(notebook.join("records.jsonl"), format!("{record}\n")).unwrap();
    let output = run(&notebook, &["repro", record["id"].as_str().unwrap()]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}{text}", stderr(&output));
    let place = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}: {text}"));
    assert!(place("What is different about the environment") < place("topology.threads"), "{text}");
    assert!(place("hardware") < place("software") && place("commit") < place("largest difference of a loss"), "{text}");
    assert!(place("This is another machine") < place("are the same"), "{text}");
    assert!(text.contains(" times as fast"), "the ratio stands beside: {text}");
    assert_eq!(records(&notebook)[1]["trial"], 2);
}

#[test]
fn a_record_of_the_interconnect_test_is_repeated_by_its_command() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = old(folder.path());
    let id = listed(&notebook, &["suite=collectives"]).remove(0);
    let output = run(&notebook, &["repro", &id]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}{text}", stderr(&output));
    assert!(text.contains("all_reduce_busbw_gb_s") && text.contains("wrong_elements"), "{text}");
    let all = records(&notebook);
    assert_eq!(all.len(), 7, "the new record is in the notebook that was named, not in the command's");
    for setting in ["collective", "minimum_bytes", "maximum_bytes", "iterations", "backend"] {
        assert_eq!(all[6]["cell"][setting], all[5]["cell"][setting], "{setting}");
    }
    assert_eq!(
        all[6]["environment"]["cores"],
        std::thread::available_parallelism().unwrap().get(),
        "as before it bound its ranks"
    );
    // Ranks that were processes are not started from here.
    let mut processes = all[5].clone();
    processes["id"] = "abababababab".into();
    processes["command"] = "zbench allreduce --processes -b 1K -e 1K".into();
    let mut text = std::fs::read_to_string(notebook.join("records.jsonl")).unwrap();
    text += &format!("{processes}\n");
    std::fs::write(notebook.join("records.jsonl"), text).unwrap();
    let refused = run(&notebook, &["repro", "abab"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("zbench allreduce --processes -b 1K -e 1K"), "{}", stderr(&refused));
}

#[test]
fn a_new_record_states_where_it_comes_from() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &TINY.replace("steps = 2\n", "steps = 2\nseed = 17\n"));
    let notebook = folder.path().join("nb");
    said(&notebook, &["run", path.to_str().unwrap(), "--only", "parallel.strategy=ddp,memory.checkpointing=none"]);
    let record = records(&notebook).remove(0);
    assert_eq!(record["seeds"]["train"], 17);
    let binary = record["environment"]["binary"].as_str().unwrap();
    let own = zbench_host::environment::binary_hash(Path::new(env!("CARGO_BIN_EXE_zbench"))).unwrap();
    assert_eq!(binary, own);
    assert!(record["sampled"]["samples"].as_u64().unwrap() >= 2, "{}", record["sampled"]);
    assert!(record["sampled"]["seconds"].as_f64().unwrap() > 0.0);
    let stated = record["metrics"]["joules_per_token"].as_f64();
    let reason = record["unstated"]["joules_per_token"].as_str();
    assert!(
        stated.is_some_and(|joules| joules > 0.0) != reason.is_some_and(|reason| !reason.is_empty()),
        "{stated:?} {reason:?}"
    );
    for (name, value) in record["environment"].as_object().unwrap() {
        assert!(zbench_reports::environment::known_aspect(name).is_some() && !value.is_null(), "{name}");
    }
}

/// Every file below a folder with its bytes, and every folder.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => {
                found.extend(tree(&path));
                found.insert(path, Vec::new());
            }
            false => drop(found.insert(path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    found
}

#[test]
fn a_repetition_writes_nothing_where_the_record_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let base = TINY.split("[grid]").next().unwrap();
    // All keys of a configuration that name what is written.
    let with = [
        (
            "full",
            "[model]\n",
            "[model]\nsave = \"out/model\"\n",
            "[checkpoint]\ndir = \"out/checkpoints\"\nevery = 1\n",
        ),
        ("lora", "", "", "[lora]\nrank = 2\nsave = \"out/adapters\"\nmerge = \"out/merged\"\n"),
    ];
    for (name, place, put, more) in with {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let path = write(&folder, &format!("{}{more}", base.replacen(place, put, usize::from(!place.is_empty()))));
        let (here, there) = (folder.join("here"), folder.join("there"));
        said(&here, &["run", path.to_str().unwrap()]);
        let bundle = folder.join("all.jsonl");
        said(&here, &["export", "--bundle", bundle.to_str().unwrap()]);
        said(&there, &["import", "--bundle", bundle.to_str().unwrap()]);
        let (out, id) = (folder.join("out"), records(&here)[0]["id"].as_str().unwrap().to_string());
        let written = tree(&out);
        assert!(written.keys().any(|path| path.to_str().unwrap().ends_with(".safetensors")), "{written:?}");
        // A file of the user's own has the place of one that was written.
        for path in written.keys().filter(|path| path.is_file()) {
            std::fs::write(path, "the user's own").unwrap();
        }
        let (before, kept) = (tree(&out), folder.join("kept"));
        for notebook in [&here, &there] {
            let output = run(notebook, &["repro", &id]);
            assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
            assert!(stdout(&output).contains("Losses, norms, bytes and calls are the same"), "{}", stdout(&output));
            assert!(tree(&out) == before, "{name}: repro wrote into {}", out.display());
        }
        // Nor is a folder that is gone made again.
        std::fs::rename(&out, &kept).unwrap();
        let output = run(&there, &["repro", &id]);
        assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
        assert!(!out.exists(), "{name}: repro made {}", out.display());
        for notebook in [&here, &there] {
            let all = std::fs::read_dir(notebook).unwrap().map(|entry| entry.unwrap().file_name());
            let left: Vec<_> = all.filter(|name| name != "logs").collect();
            assert_eq!(left, ["records.jsonl"], "the temporary folder is gone");
        }
    }
}
