//! The `zbench` program.

fn main() -> std::process::ExitCode {
    zbench::cli::main()
}
