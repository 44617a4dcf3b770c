//! The notebook under kills, damage, full disks and company.

use std::fs;
use std::process::Command;
use std::sync::Barrier;

use proptest::prelude::*;
use serde_json::json;
use zbench_reports::record::{Outcome, TurnRow};
use zbench_reports::{Notebook, Record, Remark, SCHEMA, StoreError};

use super::any;

fn record(id: &str) -> Record {
    let mut record = Record::new(id, "key", "naïve \"name\"\nof two lines", Outcome::measured());
    record.state("tokens_per_second", 1234.5);
    record
}

fn ids(notebook: &Notebook) -> Vec<String> {
    notebook.records().unwrap().into_iter().map(|record| record.id).collect()
}

fn notebook() -> (tempfile::TempDir, Notebook) {
    let dir = tempfile::tempdir().unwrap();
    let notebook = Notebook::open(dir.path().join("a/b")).unwrap();
    (dir, notebook)
}

#[test]
fn what_is_appended_is_read_in_order_with_its_remarks() {
    let (_dir, notebook) = notebook();
    assert_eq!(notebook.read().unwrap(), Default::default());
    notebook.append(&record("one")).unwrap();
    notebook.note(&Remark::new("one", "fan was\noff", "2026-01-01T00:00:00Z")).unwrap();
    notebook.append(&record("two")).unwrap();
    let contents = notebook.read().unwrap();
    assert_eq!(contents.records, [record("one"), record("two")]);
    assert_eq!(contents.remarks_on("one").map(|remark| remark.text.as_str()).collect::<Vec<_>>(), ["fan was\noff"]);
    assert_eq!(contents.of_key("key").count(), 2);
    assert!(contents.warnings().is_empty());
}

#[test]
fn tags_are_what_remarks_left_of_them() {
    let (_dir, notebook) = notebook();
    notebook.append(&record("one")).unwrap();
    let tag = |added: &[&str], removed: &[&str]| {
        let words = |tags: &[&str]| tags.iter().map(|tag| tag.to_string()).collect::<Vec<_>>();
        notebook.note(&Remark::tagging("one", &words(added), &words(removed), "t")).unwrap();
    };
    tag(&["b", "a"], &[]);
    tag(&["c"], &["a", "never"]);
    notebook.note(&Remark::new("two", "tags: +d", "t")).unwrap();
    let contents = notebook.read().unwrap();
    assert_eq!(contents.tags().into_iter().collect::<Vec<_>>(), [("one", ["b", "c"].into())], "words are no tags");
    assert!(contents.remarks[0].is_tagging() && !contents.remarks[2].is_tagging());
    tag(&[], &["b", "c"]);
    assert!(notebook.read().unwrap().tags().is_empty());
    // Whatever stands there in place of a list gives no tag.
    let mut odd = Remark::new("one", "", "t");
    odd.extra.insert("tags_added".into(), json!({"x": 1}));
    notebook.note(&odd).unwrap();
    assert!(notebook.read().unwrap().tags().is_empty());
}

/// A reader that follows sees every record once, whole, whatever is cut off or moved aside in between.
#[test]
fn a_tail_sees_each_record_once() {
    let (_dir, notebook) = notebook();
    let mut tail = notebook.tail(&notebook.index().unwrap());
    let mut news = || tail.news().unwrap().into_iter().map(|record| record.id).collect::<Vec<_>>();
    assert_eq!(news(), Vec::<String>::new());
    notebook.append(&record("one")).unwrap();
    notebook.note(&Remark::new("one", "x", "t")).unwrap();
    assert_eq!(news(), ["one"]);
    let whole = fs::read(notebook.path()).unwrap();
    let line = serde_json::to_vec(&record("two")).unwrap();
    for cut in [1, line.len() / 2, line.len() - 1, line.len()] {
        fs::write(notebook.path(), [&whole[..], &line[..cut]].concat()).unwrap();
        assert_eq!(news(), Vec::<String>::new(), "the line has no end yet");
    }
    // The last one was whole but for its end, and gets it.
    notebook.append(&record("three")).unwrap();
    assert_eq!(news(), ["two", "three"]);
    fs::write(notebook.path(), "").unwrap();
    assert_eq!(news(), Vec::<String>::new());
    notebook.append(&record("four")).unwrap();
    assert_eq!(news(), ["four"], "another file begins at its beginning");
}

#[test]
fn what_is_taken_in_is_new_or_known_or_a_conflict() {
    let (_dir, notebook) = notebook();
    notebook.append(&record("one")).unwrap();
    let remark = Remark::new("one", "said", "2026");
    notebook.note(&remark).unwrap();
    let mut redacted = record("one");
    redacted.command = "<redacted>".into();
    let mut other = record("one");
    other.state("tokens_per_second", 1.0);
    let mut said_again = remark.clone();
    said_again.text = "s***".into();
    let merged = notebook.merge(&[redacted, record("two")], &[said_again, Remark::new("two", "new", "2027")]).unwrap();
    assert_eq!((merged.added, merged.known, merged.remarks_added, merged.remarks_known), (1, 1, 1, 1));
    let merged = notebook.merge(&[other], &[]).unwrap();
    assert_eq!(merged.conflicts, ["one"]);
    let contents = notebook.read().unwrap();
    assert_eq!(contents.records, [record("one"), record("two")], "what was there stays as it was");
    assert_eq!(contents.remarks.len(), 2);
    assert!(contents.warnings().is_empty());
}

#[test]
fn a_record_that_cannot_be_read_is_named_when_it_is_asked_for() {
    let (_dir, notebook) = notebook();
    notebook.append(&record("one")).unwrap();
    let mut newer = serde_json::to_value(record("feed1")).unwrap();
    newer["schema"] = json!(SCHEMA + 1);
    let text = fs::read_to_string(notebook.path()).unwrap();
    fs::write(notebook.path(), format!("{text}{newer}\n")).unwrap();
    let error = notebook.find("fee").unwrap_err();
    assert!(matches!(&error, StoreError::Unreadable { id, line: 2, .. } if id == "feed1"), "{error}");
    assert!(matches!(notebook.find("x"), Err(StoreError::NotFound { .. })));
    let merged = notebook.merge(&[record("feed1")], &[]).unwrap();
    assert_eq!(merged.conflicts, ["feed1"], "a line that this version cannot read has its id");
}

#[test]
fn a_record_is_found_by_the_beginning_of_its_id() {
    let (_dir, notebook) = notebook();
    for id in ["abc1", "abc2", "abc", "x"] {
        notebook.append(&record(id)).unwrap();
    }
    assert_eq!(notebook.find("abc1").unwrap().id, "abc1");
    assert_eq!(notebook.find("abc").unwrap().id, "abc", "a whole id wins over longer ones");
    assert_eq!(notebook.find("x").unwrap().id, "x");
    assert!(matches!(notebook.find("ab"), Err(StoreError::Ambiguous { ids, .. }) if ids.len() == 3));
    assert!(matches!(notebook.find("q"), Err(StoreError::NotFound { count: 4, .. })));
    assert!(matches!(notebook.find(""), Err(StoreError::Ambiguous { .. })));
}

/// A kill can cut the file after any byte: all whole lines before it are read, and the next append starts a line.
#[test]
fn a_file_cut_at_any_byte_keeps_its_whole_records() {
    let (_dir, notebook) = notebook();
    for id in ["one", "two", "three"] {
        notebook.append(&record(id)).unwrap();
    }
    let whole = fs::read(notebook.path()).unwrap();
    for cut in 0..=whole.len() {
        let _ = fs::remove_file(notebook.directory().join("records.torn"));
        fs::write(notebook.path(), &whole[..cut]).unwrap();
        // A last record that lacks only its line end is whole too.
        let ends: Vec<usize> = (0..whole.len()).filter(|&at| whole[at] == b'\n').collect();
        let expected = ends.iter().filter(|&&end| end <= cut).count();
        let contents = notebook.read().unwrap();
        assert_eq!(contents.records.len(), expected, "cut at {cut}");
        let is_torn = cut > 0 && !ends.contains(&(cut - 1)) && !ends.contains(&cut);
        assert_eq!(contents.torn_bytes > 0, is_torn, "cut at {cut}");
        assert_eq!(contents.warnings().len(), usize::from(is_torn));

        notebook.append(&record("after")).unwrap();
        let after = notebook.read().unwrap();
        assert_eq!(after.records.len(), expected + 1, "cut at {cut}");
        assert_eq!(after.records.last().unwrap(), &record("after"));
        assert!(after.warnings().is_empty());
        let aside = fs::read(notebook.directory().join("records.torn")).unwrap_or_default();
        assert_eq!(aside.len() as u64, contents.torn_bytes + u64::from(is_torn), "what was cut off is kept");
    }
}

#[test]
fn lines_of_a_newer_schema_are_listed_and_kept() {
    let (_dir, notebook) = notebook();
    notebook.append(&record("one")).unwrap();
    let mut newer = serde_json::to_value(record("two")).unwrap();
    newer["schema"] = json!(SCHEMA + 1);
    newer["outcome"] = json!(7);
    let mut bytes = fs::read(notebook.path()).unwrap();
    bytes.extend_from_slice(format!("{newer}\nnot json\n{{}}\n\n[1]\n").as_bytes());
    // The newer record at the end lacks its line end: it is whole, and must not be cut off.
    bytes.extend_from_slice(newer.to_string().as_bytes());
    fs::write(notebook.path(), &bytes).unwrap();

    let contents = notebook.read().unwrap();
    assert_eq!(contents.records.len(), 1);
    let lines: Vec<usize> = contents.unreadable.iter().map(|unreadable| unreadable.line).collect();
    assert_eq!(lines, [2, 3, 4, 6, 7]);
    assert!(contents.unreadable[0].reason.contains("newer zbench (schema 3"), "{:?}", contents.unreadable[0]);
    assert!(contents.unreadable[2].reason.contains("states no schema"));
    notebook.append(&record("three")).unwrap();
    assert_eq!(ids(&notebook), ["one", "three"]);
    assert_eq!(notebook.read().unwrap().unreadable.len(), 5);
    assert!(fs::read(notebook.path()).unwrap().starts_with(&bytes), "nothing was dropped");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_records_are_read_as_written(records in proptest::collection::vec(any::record(), 0..4)) {
        let (_dir, notebook) = notebook();
        for record in &records {
            notebook.append(record).unwrap();
        }
        let back = notebook.read().unwrap();
        prop_assert_eq!(back.warnings(), Vec::<String>::new());
        let json = |records: &[Record]| serde_json::to_value(records).unwrap();
        prop_assert_eq!(json(&back.records), json(&records));
    }

    /// Damage anywhere: no panic, and every record whose line was not touched is read.
    #[test]
    fn flipped_bytes_hurt_only_their_own_line(flips in proptest::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..6)) {
        let (_dir, notebook) = notebook();
        for id in ["one", "two", "three", "four"] {
            notebook.append(&record(id)).unwrap();
        }
        let clean = fs::read(notebook.path()).unwrap();
        let mut bytes = clean.clone();
        for (index, flip) in &flips {
            bytes[index.index(clean.len())] ^= flip;
        }
        fs::write(notebook.path(), &bytes).unwrap();
        let read = notebook.records().unwrap();
        let mut start = 0;
        for line in clean.split_inclusive(|&byte| byte == b'\n') {
            let end = start + line.len();
            // The line end before it matters too: without it this line is the tail of another.
            let from = start.saturating_sub(1);
            if bytes[from..end] == clean[from..end] {
                let record: Record = serde_json::from_slice(line).unwrap();
                prop_assert!(read.contains(&record));
            }
            start = end;
        }
        notebook.append(&record("after")).unwrap();
        prop_assert_eq!(ids(&notebook).pop(), Some("after".to_string()));
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let (_dir, notebook) = notebook();
        fs::write(notebook.path(), &bytes).unwrap();
        notebook.read().unwrap();
        notebook.append(&record("after")).unwrap();
        prop_assert_eq!(ids(&notebook), ["after"]);
    }
}

#[test]
fn several_writers_do_not_mix_their_lines() {
    let (_dir, notebook) = notebook();
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (notebook, barrier) = (&notebook, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for number in 0..25 {
                    let mut record = record(&format!("{writer}-{number}"));
                    record.notes.push("x".repeat(20_000 * (writer + 1)));
                    notebook.append(&record).unwrap();
                    notebook.read().unwrap();
                }
            });
        }
    });
    let contents = notebook.read().unwrap();
    assert!(contents.warnings().is_empty());
    for writer in 0..4 {
        let prefix = format!("{writer}-");
        let own: Vec<&str> = contents.records.iter().filter_map(|record| record.id.strip_prefix(&prefix)).collect();
        assert_eq!(own, (0..25).map(|number| number.to_string()).collect::<Vec<_>>());
    }
}

/// A process killed at any moment while it writes: what it finished is there, and the next one goes on.
#[test]
fn a_killed_writer_loses_nothing_that_it_finished() {
    const CHILD: &str = "ZBENCH_TEST_KILLED";
    if let Some(directory) = std::env::var_os(CHILD) {
        let notebook = Notebook::open(directory).unwrap();
        for number in 0u32.. {
            let mut record = record(&number.to_string());
            record.notes.push("x".repeat(100_000));
            notebook.append(&record).unwrap();
        }
    }
    let (_dir, notebook) = notebook();
    for round in 1..=3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "it::store::a_killed_writer_loses_nothing_that_it_finished"])
            .env(CHILD, notebook.directory())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let finished = loop {
            let ids = ids(&notebook);
            if ids.len() >= 5 * round {
                break ids;
            }
            assert!(child.try_wait().unwrap().is_none(), "the writer ended by itself");
        };
        child.kill().unwrap();
        child.wait().unwrap();
        let after = notebook.read().unwrap();
        let after_ids: Vec<String> = after.records.iter().map(|record| record.id.clone()).collect();
        assert!(after_ids.starts_with(&finished));
        let index = Notebook::open(notebook.directory()).unwrap().index().unwrap();
        assert!(index.records.iter().map(|record| &record.id).eq(&after_ids), "the index has them, too");
        assert!(after.unreadable.is_empty());
        notebook.append(&record("after")).unwrap();
        assert_eq!(ids(&notebook).len(), after_ids.len() + 1);
    }
}

/// A write that fails midway, as on a full disk: the limit on file sizes is the kernel's own, set by a shell around a
/// second run of this test.
#[test]
fn a_write_that_fails_midway_damages_nothing() {
    const CHILD: &str = "ZBENCH_TEST_NOTEBOOK";
    if let Some(directory) = std::env::var_os(CHILD) {
        let notebook = Notebook::open(directory).unwrap();
        let mut large = record("large");
        large.notes.push("x".repeat(1 << 20));
        let error = notebook.append(&large).unwrap_err();
        assert!(matches!(error, StoreError::Full { .. }), "{error}");
        assert!(error.to_string().contains("earlier records are safe"), "{error}");
        return;
    }
    let (_dir, notebook) = notebook();
    notebook.append(&record("one")).unwrap();
    let before = fs::read(notebook.path()).unwrap();
    let child = Command::new("sh")
        .args([
            "-c",
            "trap '' XFSZ; ulimit -f 64; exec \"$0\" --exact it::store::a_write_that_fails_midway_damages_nothing",
        ])
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, notebook.directory())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(fs::read(notebook.path()).unwrap(), before);
    notebook.append(&record("two")).unwrap();
    assert_eq!(ids(&notebook), ["one", "two"]);
}

#[test]
fn errors_name_the_path_and_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Notebook::open(&file).unwrap_err().to_string();
    assert!(error.contains("file cannot be opened") && error.contains("--notebook"), "{error}");
    let notebook = Notebook::open(dir.path()).unwrap();
    fs::create_dir(notebook.path()).unwrap();
    assert!(matches!(notebook.read(), Err(StoreError::Read { .. })));
    assert!(matches!(notebook.append(&record("one")), Err(StoreError::Append { .. })));
}

/// A record that can have turns.
fn with_turns(id: &str) -> Record {
    Record { turns: Some(Default::default()), ..record(id) }
}

fn turn(round: u32) -> TurnRow {
    let turn = json!({ "round": round, "order": 0, "at": 1.0, "tokens": 8, "ms": [1.0], "others": 0.0, "stolen": 0.0, "counted": true });
    serde_json::from_value(turn).unwrap()
}

/// What a process that was killed leaves: two records with two turns each.
fn left_by_the_dead(notebook: &Notebook, name: &str) -> std::path::PathBuf {
    let mut file = notebook.unfinished(name, &[with_turns("a"), with_turns("b")]).unwrap();
    for round in 1..=2 {
        let row = turn(round);
        file.add(["a", "b"].map(|id| (id, vec![row.clone()])).into_iter()).unwrap();
    }
    drop(file);
    notebook.directory().join(format!("turns/{name}.jsonl"))
}

#[test]
fn turns_of_the_dead_become_records_and_what_cannot_be_read_is_kept_and_named() {
    let replaced = |text: &str, from: &str, to: &str| text.replacen(from, to, 1);
    // What is done to the file, which records come of it, and what is said of it.
    type Damage<'a> = (&'a dyn Fn(&str) -> String, &'a [&'a str], Option<&'a str>);
    let newer = format!("\"schema\":{}", SCHEMA + 1);
    let now = format!("\"schema\":{SCHEMA}");
    let cases: [Damage; 5] = [
        (&|text| text.to_string(), &["a", "b"], None),
        (&|text| text[..text.len() - 5].to_string(), &["a", "b"], None),
        (&|text| replaced(text, "{", "#"), &["b"], Some("line 1: it is not a record")),
        (&|text| text.replace(&now, &newer), &[], Some("newer zbench")),
        (&|text| format!("{}\n{text}", "\0".repeat(99)), &["a", "b"], Some("line 1:")),
    ];
    for (damage, expected, said) in cases {
        let (_dir, notebook) = notebook();
        let path = left_by_the_dead(&notebook, "x");
        let text = damage(&fs::read_to_string(&path).unwrap());
        fs::write(&path, &text).unwrap();
        fs::write(path.with_file_name("notes.txt"), "mine").unwrap();
        let recovered = notebook.recover().unwrap();
        assert_eq!(
            (recovered.added, ids(&notebook)),
            (expected.len(), expected.iter().map(|id| id.to_string()).collect())
        );
        assert_eq!(recovered.warnings.len(), usize::from(said.is_some()), "{recovered:?}");
        assert!(said.is_none_or(|said| recovered.warnings[0].contains(said)), "{recovered:?}");
        let aside = path.with_file_name("x.jsonl.damaged");
        assert_eq!(fs::read_to_string(&aside).ok(), said.map(|_| text), "{recovered:?}");
        assert!(!path.exists());
        assert_eq!(fs::read_to_string(path.with_file_name("notes.txt")).unwrap(), "mine");
        // Once it is repaired it is taken in; here it is as it was, and nothing is there twice.
        assert_eq!(notebook.recover().unwrap().added, 0);
    }
}

#[test]
fn turns_that_the_notebook_lacks_are_not_removed() {
    let (_dir, notebook) = notebook();
    let path = left_by_the_dead(&notebook, "x");
    // A record of the same id with other numbers and no turns.
    notebook.append(&with_turns("a")).unwrap();
    let recovered = notebook.recover().unwrap();
    assert!(recovered.added == 1 && recovered.warnings[0].contains("record a "), "{recovered:?}");
    assert!(path.with_file_name("x.jsonl.damaged").exists());
    // A second file of the same name does not take the place of the first.
    let first = left_by_the_dead(&notebook, "y");
    let text = fs::read_to_string(&first).unwrap();
    notebook.unfinished("y", &[with_turns("c")]).unwrap();
    assert_eq!(fs::read_to_string(&first).unwrap(), text);
}

#[test]
fn files_of_turns_are_begun_while_others_recover() {
    let (_dir, notebook) = notebook();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let recovered = notebook.recover().unwrap();
                assert!(recovered.added == 0 && recovered.warnings.is_empty(), "{recovered:?}");
            }
        });
        let begin = |round: usize| -> Result<(), StoreError> {
            let mut file = notebook.unfinished(&format!("x-{round}"), &[with_turns("a")])?;
            file.add([("a", vec![turn(1)])].into_iter())?;
            file.remove();
            Ok(())
        };
        let all: Vec<Result<(), StoreError>> = (0..200).map(begin).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(all.iter().all(Result::is_ok), "{all:?}");
    });
}
