//! How much of the slow suites runs: a short form by default, everything where ZBENCH_TESTS=full.

use std::io::Write;

/// Whether everything was asked for.
pub fn is_full() -> bool {
    match std::env::var("ZBENCH_TESTS") {
        Ok(value) if value == "full" => true,
        Ok(value) if !value.is_empty() => panic!("ZBENCH_TESTS={value} is not known; set it to full, or not at all"),
        _ => false,
    }
}

/// How many cases of `test` to run: all `full` of them, or the `short` form. Where some are left out, a line says so. It is
/// written past the test harness, which shows nothing of tests that pass; .ci/run adds these lines up.
pub fn cases(test: &str, short: u32, full: u32) -> u32 {
    if is_full() || short >= full {
        return full;
    }
    // In one piece, on a line of its own: other tests write, too.
    let line = format!("\n{} of {full} cases of {test} are left to ZBENCH_TESTS=full\n", full - short);
    let _ = std::io::stderr().write_all(line.as_bytes());
    short
}
