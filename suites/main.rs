//! The `zbench` program.

use std::process::ExitCode;
use zbench_host::environment::BuildInfo;

fn main() -> ExitCode {
    zbench_cli::main(BuildInfo { commit: option_env!("ZBENCH_COMMIT"), rustc: option_env!("ZBENCH_RUSTC") })
}
