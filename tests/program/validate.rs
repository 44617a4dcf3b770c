//! `zbench plan --validate`, and collectives that are predicted.

use crate::support::{close, json_lines, number, plan, root, run, stderr, stdout};
use serde_json::Value;

#[test]
fn published_rows_come_back_one_by_one_in_the_contracts_form() {
    let published = root().join("tests/published");
    let rows = plan(&["--validate", published.to_str().unwrap()]);
    let files =
        std::fs::read_dir(&published).unwrap().map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
    let all: usize = files.map(|text| text.matches("published.id = ").count()).sum();
    assert_eq!(rows.len(), all);
    for row in &rows {
        let names: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
        let fixed = ["id", "family", "quantity", "unit", "bound", "published", "predicted", "scored", "reason"];
        assert_eq!(names, fixed);
        if row["predicted"].is_null() || row["scored"] == false {
            assert!(!row["reason"].as_str().unwrap().is_empty(), "{row}: why it is not predicted or not scored");
        }
    }
}

/// Fits or not stands beside what saying "fits" of every run would give, with recall and precision.
#[test]
fn validation_states_recall_of_out_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let published = root().join("tests/published");
    let text = stdout(&run(folder.path(), &["plan", "--validate", published.to_str().unwrap(), "--format", "csv"]));
    let of = |by: &str| -> Vec<f64> {
        let start = format!("fits,{by},");
        let line =
            text.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_else(|| panic!("no {start} in {text}"));
        line.split(',').map(|cell| cell.parse().unwrap_or(f64::NAN)).collect()
    };
    let [runs, right, misfits, found, recall, alarms, precision] = of("zbench")[..] else { panic!("{text}") };
    assert!(runs > 400.0 && misfits >= found && found > 0.0, "{text}");
    assert!(close(recall, found / misfits, 1e-9) && close(precision, found / (found + alarms), 1e-9), "{text}");
    let always = of("always fits");
    assert!(close(always[1], 1.0 - misfits / runs, 1e-9) && always[4] == 0.0, "{text}");
    // A rule of thumb that finds as many cries wolf more often, or it finds fewer.
    let twenty = of("20 bytes a parameter");
    assert!(twenty[1] < right || twenty[4] < recall, "{text}");
}

#[test]
fn odd_folders_of_rows_are_refused_or_read() {
    let folder = tempfile::tempdir().unwrap();
    let validate = || run(folder.path(), &["plan", "--validate", folder.path().to_str().unwrap(), "--format", "json"]);
    let nothing = validate();
    assert_eq!(nothing.status.code(), Some(1));
    assert!(stderr(&nothing).contains("no grid file with published results"), "{}", stderr(&nothing));
    let write = |text: &str| std::fs::write(folder.path().join("mine.toml"), text).unwrap();
    // A machine and a framework that nobody knows, a key that there is none of, a combination that is no cell, a size beyond all memory.
    write(
        "published.quantity = \"memory\"\nhardware.device = \"cuda\"\npublished.value = 3\n[grid]\ninclude = [\n\
         { published.id = \"a\", hardware.profile = \"abacus\" },\n\
         { published.id = \"b\", hardware.softwear = \"abacus\" },\n\
         { published.id = \"c\", parallel.ranks = 4, parallel.tensor = 3 },\n\
         { published.id = \"d\", train.seq_len = 2000000000, train.micro_batch = 2000000000 }]\n",
    );
    let output = validate();
    let said = stderr(&output);
    // What no file may say is said of the file, with its place; what is no cell is a row without a prediction.
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("mine.toml:") && said.contains("hardware.softwear") && said.contains("hardware.software"),
        "{said}"
    );
    write(
        "published.quantity = \"memory\"\nhardware.device = \"cuda\"\npublished.value = 3\n[grid]\ninclude = [\n\
         { published.id = \"a\", hardware.profile = \"abacus\" },\n\
         { published.id = \"b\", hardware.software = \"abacus\" },\n\
         { published.id = \"c\", parallel.ranks = 4, parallel.tensor = 3 },\n\
         { published.id = \"d\", train.seq_len = 2000000000, train.micro_batch = 2000000000 }]\n",
    );
    let output = validate();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rows: Vec<Value> = json_lines(&stdout(&output));
    let reasons: Vec<&str> = rows.iter().map(|row| row["reason"].as_str().unwrap()).collect();
    assert!(rows.iter().all(|row| row["predicted"].is_null()), "{rows:?}");
    for (reason, words) in reasons.iter().zip([
        "there is no machine \"abacus\"",
        "there is no framework \"abacus\"",
        "parallel.tensor",
        "2^62",
    ]) {
        assert!(reason.contains(words), "{reason}");
    }
}

/// A collective's cells are predicted for a machine by the command that predicts all cells, and without one the error says what to state.
#[test]
fn collectives_are_predicted_for_a_machine() {
    let file = root().join("configs/collectives.toml");
    let path = file.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let without = run(folder.path(), &["plan", path]);
    assert_eq!(without.status.code(), Some(1));
    assert!(stderr(&without).contains("hardware.profile"), "{}", stderr(&without));
    let of = |more: &[&str]| {
        plan(&[&[path, "--set", "hardware.profile=dgx-h100", "--set", "parallel.ranks=16"], more].concat())
    };
    let (plain, slow) = (of(&[]), of(&["--set", "hardware.changes=[\"network.rate=100Gb/s\"]"]));
    assert!(plain.len() > 10 && plain.len() == slow.len());
    for (plain, slow) in plain.iter().zip(&slow) {
        assert!(number(plain, "microseconds") <= number(slow, "microseconds"), "{plain} {slow}");
        assert_eq!(plain["nodes"], 2);
    }
    let largest = |rows: &[Value]| number(rows.last().unwrap(), "bus_bandwidth");
    assert!(largest(&slow) < largest(&plain), "{} {}", largest(&slow), largest(&plain));
}

/// The prediction of a grid of collectives is one screen with the answer first; each prediction is one row however it would be measured.
#[test]
fn predicted_collectives_answer_on_one_screen() {
    let file = root().join("configs/collectives.toml");
    let file = file.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["plan", file, "--set", "hardware.profile=dgx-h100", "--set", "collectives.step_factor=2"];
    let screen = stdout(&run(folder.path(), &arguments));
    assert!(
        screen.starts_with(
            "ANSWER   Like no published result: all_reduce of 2 ranks on dgx-h100 is the fastest of 3 collectives:"
        ),
        "{screen}"
    );
    assert!(screen.lines().count() <= 40 && screen.contains("--full has 45 sizes"), "{screen}");
    // Each backend would be measured, and there is one prediction.
    assert_eq!(screen.matches("all_gather").count(), 1, "{screen}");
    let one = stdout(&run(folder.path(), &[&arguments[..], &["--only", "collective=all_gather"]].concat()));
    assert!(one.contains("reaches") && one.contains("64KiB") && one.lines().count() <= 40, "{one}");
}
