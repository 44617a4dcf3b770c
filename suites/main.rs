//! The `zbench` program.

use std::process::ExitCode;
use zbench_suites::environment::BuildInfo;

fn main() -> ExitCode {
    zbench_suites::cli::main(BuildInfo { commit: option_env!("ZBENCH_COMMIT"), rustc: option_env!("ZBENCH_RUSTC") })
}
