//! The Python of ci/: what reads and divides the numbers of the comparison with PyTorch and of benchmarks, on outputs that were
//! recorded. The programs themselves need PyTorch or an idle machine, and are run by hand.

use crate::support::root;
use std::process::Command;

#[test]
fn scripts_read_what_programs_print() {
    // tomllib came with 3.11.
    let has =
        Command::new("python3").args(["-c", "import sys, tomllib; sys.exit(sys.version_info < (3, 11))"]).output();
    if !has.as_ref().is_ok_and(|has| has.status.success()) {
        assert!(std::env::var_os("ZBENCH_REQUIRE_PYTHON").is_none(), "python3 of 3.11 or later is missing");
        eprintln!("ci/: its Python is NOT TESTED, there is no python3 of 3.11 or later here");
        return;
    }
    for (folder, least) in [("ci/peers", 9), ("ci", 2)] {
        let mut tests = Command::new("python3");
        tests.args(["-B", "-m", "unittest", "discover", "-s", folder]).current_dir(root());
        let done = tests.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{folder}: {said}");
        let count = said.split("Ran ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
        assert!(count.is_some_and(|count| count >= least), "{folder}: no tests were found:\n{said}");
    }
}
