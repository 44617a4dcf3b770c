//! The index of a notebook: damage to it never changes the records that are read with it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use zbench_reports::record::Outcome;
use zbench_reports::store::INDEX;
use zbench_reports::{IndexEntry, Notebook, Record, Remark, SCHEMA};

/// A record of which four are enough for an index.
fn record(number: u32) -> Record {
    let mut record = Record::new(format!("id-{number}"), format!("key-{}", number % 2), "name", Outcome::measured());
    record.cell = json!({ "parallel": { "strategy": "ddp", "ranks": number % 2 }, "train": { "lr": 0.1 + 0.2 } });
    if number == 3 {
        // A record of kernels, whose label is made of its configuration.
        record.cell = json!({ "suite": "calibrate" });
    }
    record.environment.insert("cores".into(), json!(2));
    record.environment.insert("load_average".into(), json!(f64::from(number)));
    record.state("tokens_per_second", 1.0 / 3.0 + f64::from(number));
    record.validity.push("busy_machine".into());
    record.notes.push("x".repeat(300_000));
    record
}

fn notebook() -> (tempfile::TempDir, Notebook) {
    let dir = tempfile::tempdir().unwrap();
    let notebook = Notebook::open(dir.path().join("nb")).unwrap();
    for number in 0..4 {
        notebook.append(&record(number)).unwrap();
    }
    let tags = ["a".to_string(), "b".into()];
    notebook.note(&Remark::tagging("id-1", &tags, &[], "2026")).unwrap();
    notebook.note(&Remark::new("id-2", "the fan was off", "")).unwrap();
    let newer = json!({ "schema": SCHEMA + 1, "id": "newer" });
    add(&notebook, &format!("{newer}\n\nno record\n"));
    notebook.note(&Remark::tagging("id-1", &[], &tags[..1], "2027")).unwrap();
    (dir, notebook)
}

/// Adds text to the records, as a zbench without indexes does.
fn add(notebook: &Notebook, text: &str) {
    let mut bytes = fs::read(notebook.path()).unwrap();
    bytes.extend_from_slice(text.as_bytes());
    fs::write(notebook.path(), bytes).unwrap();
}

/// Sets the time of the records' modification: two changes within a tick of the clock have the same.
fn touch(path: &Path, seconds: u64) {
    let moment = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    File::options().write(true).open(path).unwrap().set_modified(moment).unwrap();
}

fn entry(entry: &IndexEntry) -> Value {
    json!([entry, *entry.cell, *entry.environment])
}

/// Compares what another process finds through the index with all that the records say.
fn check(notebook: &Notebook, what: &str) {
    let (truth, other) = (notebook.read().unwrap(), Notebook::open(notebook.directory()).unwrap());
    let index = other.index().unwrap();
    let entries: Vec<Value> = index.records.iter().map(entry).collect();
    let expected: Vec<Value> = truth.records.iter().map(|record| entry(&IndexEntry::of(record))).collect();
    assert_eq!(entries, expected, "{what}");
    assert_eq!((index.tags(), &index.unreadable), (truth.tags(), &truth.unreadable), "{what}");
    assert_eq!((index.warnings(), index.torn_bytes), (truth.warnings(), truth.torn_bytes), "{what}");
    assert!(other.whole(&index.records).unwrap() == truth.records, "{what}");
    assert!(other.remarks_on(&index, |_| true).unwrap() == truth.remarks, "{what}");
}

fn index_of(notebook: &Notebook) -> PathBuf {
    notebook.directory().join(INDEX)
}

#[test]
fn the_index_grows_with_the_records_and_is_used() {
    let (_dir, notebook) = notebook();
    check(&notebook, "as made");
    let text = fs::read_to_string(index_of(&notebook)).unwrap();
    assert!(!text.contains("xxx") && text.matches("\"value\"").count() == 4, "settings stand there once: {text}");
    // Where this changes, so does the version in the first line: an older index would be read as a new one.
    let line = text.lines().find(|line| line.contains("id-1") && line.contains("record")).unwrap();
    let expected = json!({
        "id": "id-1", "key": "key-1", "name": "name", "trial": 0, "started": "", "status": "measured",
        "tokens_per_second": 1.0 / 3.0 + 1.0, "parity": "none", "flags": ["busy_machine"], "steps": 0
    });
    assert_eq!(serde_json::from_str::<Value>(line).unwrap()["record"], expected);
    check(&notebook, "again");
    assert_eq!(fs::read_to_string(index_of(&notebook)).unwrap(), text, "nothing was to be done");
    notebook.append(&record(5)).unwrap();
    let longer = fs::read_to_string(index_of(&notebook)).unwrap();
    assert!(longer.starts_with(&text) && longer.contains("id-5"), "the writer adds to it: {longer}");
    check(&notebook, "longer");
    assert_eq!(fs::read_to_string(index_of(&notebook)).unwrap(), longer);
}

#[test]
fn small_notebooks_have_none() {
    let dir = tempfile::tempdir().unwrap();
    let notebook = Notebook::open(dir.path()).unwrap();
    notebook.append(&record(1)).unwrap();
    check(&notebook, "small");
    assert!(!index_of(&notebook).exists());
    // It has one as soon as it is large.
    for number in 2..6 {
        notebook.append(&record(number)).unwrap();
    }
    assert!(index_of(&notebook).is_file());
    check(&notebook, "large");
}

#[test]
fn a_damaged_or_foreign_index_changes_nothing() {
    let (_dir, notebook) = notebook();
    let clean = fs::read(index_of(&notebook)).unwrap();
    let foreign = {
        let (_dir, other) = self::notebook();
        other.append(&record(9)).unwrap();
        fs::read(index_of(&other)).unwrap()
    };
    let ends: Vec<usize> = (0..clean.len()).filter(|&place| clean[place] == b'\n').collect();
    let mut damaged: Vec<(String, Vec<u8>)> = vec![
        ("foreign".into(), foreign),
        ("empty".into(), Vec::new()),
        ("no index".into(), b"{\"zbench_index\":999}\n".to_vec()),
        ("without an end".into(), vec![b'x'; clean.len()]),
        ("longer".into(), [&clean[..], b"{\"bytes\":1"].concat()),
        ("a line too many".into(), [&clean[..], &clean[ends[0] + 1..=ends[1]]].concat()),
    ];
    for step in 0..5 {
        let place = clean.len() * step / 5;
        damaged.push((format!("cut at {place}"), clean[..place].to_vec()));
        let mut flipped = clean.clone();
        flipped[place] ^= 1;
        damaged.push((format!("flipped at {place}"), flipped));
    }
    for (line, end) in ends.iter().enumerate() {
        damaged.push((format!("cut behind line {line}"), clean[..=*end].to_vec()));
    }
    for (what, bytes) in damaged {
        fs::write(index_of(&notebook), &bytes).unwrap();
        check(&notebook, &what);
        check(&notebook, &format!("{what}, once more"));
    }
    notebook.append(&record(7)).unwrap();
    check(&notebook, "after all");
}

#[test]
fn records_that_were_changed_are_read_again() {
    type Change<'a> = (&'a str, &'a dyn Fn(&str) -> String);
    let changes: [Change; 6] = [
        ("in its place", &|text| text.replace("id-1", "id-x")),
        ("a line less", &|text| text.split_inclusive('\n').skip(1).collect()),
        ("shorter", &|text| text.split_inclusive('\n').take(2).collect()),
        ("longer", &|text| format!("{text}{}", serde_json::to_string(&record(8)).unwrap() + "\n")),
        ("a last line without its end", &|text| format!("{text}{}", serde_json::to_string(&record(8)).unwrap())),
        ("a last line cut off", &|text| format!("{text}{{\"schema\":")),
    ];
    for (what, change) in changes {
        let (_dir, notebook) = notebook();
        let text = fs::read_to_string(notebook.path()).unwrap();
        fs::write(notebook.path(), change(&text)).unwrap();
        touch(&notebook.path(), 1);
        check(&notebook, what);
        notebook.append(&record(6)).unwrap();
        check(&notebook, &format!("{what}, then one more"));
    }
}

/// The record is on disk, and the index does not have it yet: as after a kill between both writes.
#[test]
fn an_index_that_lags_behind_is_completed() {
    let (_dir, notebook) = notebook();
    let before = fs::read(index_of(&notebook)).unwrap();
    notebook.append(&record(4)).unwrap();
    let after = fs::read(index_of(&notebook)).unwrap();
    for cut in [before.len(), before.len() + 1, (before.len() + after.len()) / 2, after.len() - 1] {
        fs::write(index_of(&notebook), &after[..cut]).unwrap();
        check(&notebook, &format!("{cut} of {}", after.len()));
        fs::write(index_of(&notebook), &after[..cut]).unwrap();
        let other = Notebook::open(notebook.directory()).unwrap();
        other.note(&Remark::new("id-4", "after the kill", "2028")).unwrap();
        check(&notebook, "and the next one wrote");
    }
}

/// An index whose checks fit, and that leads to other records than it says.
#[test]
fn an_index_that_lies_is_found_out_by_the_record() {
    let (_dir, notebook) = notebook();
    let text = fs::read_to_string(index_of(&notebook)).unwrap();
    let swapped = text.replace("\"id-0\"", "\"id-y\"").replace("\"id-3\"", "\"id-0\"").replace("\"id-y\"", "\"id-3\"");
    let mut forged = String::new();
    for line in swapped.split_inclusive('\n') {
        let mut value: Value = serde_json::from_str(line).unwrap();
        if value.get("end").is_some() {
            value["end"]["check"] = json!(blake3::hash(forged.as_bytes()).to_hex()[..32]);
        }
        let line = if forged.is_empty() { line.to_string() } else { format!("{value}\n") };
        forged.push_str(&line);
    }
    fs::write(index_of(&notebook), forged).unwrap();
    let other = Notebook::open(notebook.directory()).unwrap();
    assert_eq!(other.find("id-0").unwrap().id, "id-0");
    check(&notebook, "it was removed");
}

/// Neither a link nor anything else in the place of the index is followed, waited for or changed.
#[test]
fn without_an_index_all_is_read() {
    let (dir, notebook) = notebook();
    let target = dir.path().join("target");
    fs::write(&target, "precious").unwrap();
    let path = index_of(&notebook);
    let put: [&dyn Fn(); 3] =
        [&|| std::os::unix::fs::symlink(&target, &path).unwrap(), &|| fs::create_dir(&path).unwrap(), &|| {
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap()
        }];
    for (number, put) in put.iter().enumerate() {
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
        put();
        check(&notebook, &format!("case {number}"));
        let other = Notebook::open(notebook.directory()).unwrap();
        other.append(&record(10 + number as u32)).unwrap();
        check(&notebook, &format!("case {number}, one more"));
    }
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
}

/// Several processes append and search at the same time, each with an own copy of the index in memory.
#[test]
fn several_use_one_index() {
    let (_dir, first) = notebook();
    std::thread::scope(|scope| {
        for writer in 1..4u32 {
            let notebook = Notebook::open(first.directory()).unwrap();
            scope.spawn(move || {
                for number in 0..5 {
                    notebook.append(&record(100 * writer + number)).unwrap();
                    let id = format!("id-{}", 100 * writer + number);
                    assert_eq!(notebook.find(&id).unwrap().id, id);
                }
            });
        }
    });
    check(&first, "together");
    assert_eq!(first.index().unwrap().records.len(), 4 + 15);
}
