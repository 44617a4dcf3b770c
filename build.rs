//! Hands the commit and the compiler's version to the program, which states them in every record. Without git the
//! commit is absent, never invented. A tree that differs from its commit is marked, and the mark says whether two such
//! trees are the same.

use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::process::Command;

/// What the program is made of.
const SOURCES: [&str; 7] = ["suites", "engine", "kernels", "reports", "Cargo.toml", "Cargo.lock", "build.rs"];

fn main() {
    for path in SOURCES {
        println!("cargo::rerun-if-changed={path}");
    }
    // In a linked work tree .git is a file, and git says where its state is. The log changes with every commit.
    for name in ["HEAD", "logs/HEAD"] {
        let place = output("git", &["rev-parse", "--git-path", name]).and_then(|text| String::from_utf8(text).ok());
        if let Some(path) = place.as_deref().map(str::trim).filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    if let Some(commit) = first_line("git", &["rev-parse", "--short=12", "HEAD"]) {
        let mark = changes().map_or(String::new(), |mark| format!("-dirty-{mark}"));
        println!("cargo::rustc-env=ZBENCH_COMMIT={commit}{mark}");
    }
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    if let Some(version) = first_line(&rustc, &["--version"]) {
        println!("cargo::rustc-env=ZBENCH_RUSTC={version}");
    }
}

fn output(program: &str, arguments: &[&str]) -> Option<Vec<u8>> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then_some(output.stdout)
}

fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let text = String::from_utf8(output(program, arguments)?).ok()?;
    text.lines().next().map(str::to_string)
}

/// Eight hex digits of how the sources differ from the commit; nothing where they do not.
fn changes() -> Option<String> {
    let with_sources = |arguments: &[&'static str]| [arguments, &["--"], &SOURCES].concat();
    let diff = output("git", &with_sources(&["diff", "HEAD", "--binary"])).unwrap_or_default();
    let new = output("git", &with_sources(&["ls-files", "--others", "--exclude-standard", "-z"])).unwrap_or_default();
    if diff.is_empty() && new.is_empty() {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(&diff);
    hasher.write(&new);
    for path in new.split(|byte| *byte == 0).filter_map(|path| std::str::from_utf8(path).ok()).filter(|p| !p.is_empty())
    {
        hasher.write(&std::fs::read(path).unwrap_or_default());
    }
    Some(format!("{:08x}", hasher.finish() as u32))
}
