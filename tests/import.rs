//! Configurations of other programs: every key, broken files, round trips, and that nothing panics.

mod broken;
mod fuzz;
mod keys;
mod models;
mod onto;
mod round;
mod titan;

use crate::support::root;
use std::path::{Path, PathBuf};
use zbench_suites::interop::{self, Draft, Options, Row};

fn options(set: &[&str]) -> Options {
    Options { set: set.iter().map(|set| set.to_string()).collect(), ..Options::default() }
}

fn draft(text: &str, options: &Options) -> Draft {
    interop::parse("file", text.as_bytes(), options).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn row<'d>(draft: &'d Draft, key: &str) -> &'d Row {
    draft.rows.iter().find(|row| row.key == key).unwrap_or_else(|| panic!("no row {key}"))
}

fn fixture(name: &str) -> PathBuf {
    root().join("tests/foreign").join(name)
}

fn text_of(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
