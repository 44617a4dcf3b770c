//! Hands the commit and the compiler's version to the program, which states them in every record. Without git the
//! commit is absent, never invented.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for path in [".git/HEAD", ".git/index"] {
        if std::path::Path::new(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
        let text = String::from_utf8(output.stdout).ok()?;
        text.lines().next().map(str::to_string)
    };
    if let Some(commit) = said("git", &["rev-parse", "--short=12", "HEAD"]) {
        println!("cargo::rustc-env=ZBENCH_COMMIT={commit}");
    }
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    if let Some(version) = said(&rustc, &["--version"]) {
        println!("cargo::rustc-env=ZBENCH_RUSTC={version}");
    }
}
