//! Work on a hostile or mistaken file is bounded: in processor time and in memory of the process, not by a clock.

use crate::support::*;
use std::path::Path;
use std::process::{Command, Output};
use zbench_config::grid::{self, MOST_CELLS_EVER};

/// Runs the program with 20 s of processor time and 3 GB of address space.
fn limited(arguments: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -t 20; ulimit -v 3000000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_zbench")]);
    command.args(arguments).env("NO_COLOR", "1").output().expect("sh starts")
}

fn refused(arguments: &[&str]) -> String {
    let output = limited(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {:?}: {}", output.status, stderr(&output));
    stderr(&output)
}

#[test]
fn every_command_counts_combinations_before_it_expands_them() {
    let file = root().join("tests/bad/axis_too_long.toml");
    let file = file.to_str().unwrap();
    let most = MOST_CELLS_EVER.to_string();
    for line in [
        &["run", file][..],
        &["export", file, "--to", "deepspeed"],
        &["grid", file, "--max-cells", &most],
        &["plan", file, "--max-cells", &most],
    ] {
        let said = refused(line);
        assert!(said.contains("has 1000000000 combinations"), "{line:?}: {said}");
    }
    for command in ["grid", "plan", "checkpoint"] {
        let said = refused(&[command, file, "--max-cells", "99999999999"]);
        assert!(said.contains(&format!("write a whole number up to {most}")), "{command}: {said}");
    }
}

#[test]
fn no_number_of_cells_asks_for_more_than_the_most() {
    let document = zbench_config::Document::read(&root().join("tests/bad/axis_too_long.toml"), &[]).unwrap();
    let context = zbench_config::Context::new(Path::new("").into(), 2);
    let expanded = grid::expand(&document, &[], usize::MAX, &context, &mut Default::default());
    let error = expanded.unwrap_err().to_string();
    assert!(error.contains(&format!("at most {MOST_CELLS_EVER} are expanded")), "{error}");
    let error = grid::combinations(&document, &[], usize::MAX).unwrap_err().to_string();
    assert!(error.contains(&format!("at most {MOST_CELLS_EVER} are expanded")), "{error}");
}

#[test]
fn excludes_are_counted_before_they_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let values: Vec<String> = (0..10_000).map(|value| value.to_string()).collect();
    let excludes = "[[grid.exclude]]\n\"train.seed\" = 1\n".repeat(10_000);
    let file = write(folder.path(), &format!("[grid]\n\"train.seed\" = [{}]\n{excludes}", values.join(", ")));
    let said = refused(&["plan", file.to_str().unwrap()]);
    assert!(said.contains("10000 combinations and 10000 [[grid.exclude]] are too many to compare"), "{said}");
}

#[test]
fn long_files_are_read_in_time_in_proportion() {
    let folder = tempfile::tempdir().unwrap();
    // Longer ones show a time that grows with the square of the length more clearly.
    let long = if is_full_tier() { 100_000 } else { 20_000 };
    let values: Vec<String> = (0..3 * long).map(|value| value.to_string()).collect();
    let axis = write(folder.path(), &format!("[grid]\n\"train.seed\" = [{}]\n", values.join(", ")));
    let said = refused(&["plan", axis.to_str().unwrap()]);
    assert!(said.contains(&format!("the grid has {} combinations", 3 * long)), "{said}");

    let keys: String = (0..long).map(|number| format!("unknown_key_{number} = 1\n")).collect();
    let keys = write(folder.path(), &keys);
    let said = refused(&["plan", keys.to_str().unwrap()]);
    assert_eq!(said.lines().count(), 101, "a hundred problems, and how many more");
    assert!(said.contains("tiny.toml:100:1: unknown_key_99: unknown key"), "{said}");
    assert!(said.contains(&format!("{} more problems are left out", long - 100)), "{said}");

    let name = write(folder.path(), &format!("{} = 1\n", "k".repeat(20 * long)));
    assert!(refused(&["plan", name.to_str().unwrap()]).contains("unknown key"));

    let rules: String = (0..long).map(|number| format!("unknown_key_{number} = 1\n")).collect();
    let rules = write(folder.path(), &rules);
    assert!(refused(&["gate", rules.to_str().unwrap()]).contains("unknown_key_9"));
}

#[test]
fn a_batch_of_any_size_is_planned_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &TINY.replace("seq_len = 16", "seq_len = 16\nmicro_batch = 2147483648"));
    let output = limited(&["plan", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{:?}: {}", output.status, stderr(&output));
}
