//! `ci/release`: what is in the archive, and what it refuses.

use crate::support::{is_full_tier, root, stderr, stdout};
use std::path::Path;
use std::process::{Command, Output};

fn release(out: &Path, program: &str, glibc: &str) -> Output {
    let mut command = Command::new(root().join("ci/release"));
    command.arg(out).env("ZBENCH", program).env("MAX_GLIBC", glibc).env("SOURCE_DATE_EPOCH", "1000000000");
    command.output().unwrap()
}

/// The program under test stands for a release build: the archive is the same but for how the program was compiled.
#[test]
fn the_archive_is_whole_and_the_same_twice() {
    if !is_full_tier() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_zbench");
    let output = release(folder.path(), program, "9.99");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("needs: ") && stdout(&output).contains("libc.so.6"), "{}", stdout(&output));
    let name = format!("zbench-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let sums = |folder: &Path| std::fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
    let check = Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(folder.path()).output().unwrap();
    assert!(check.status.success() && sums(folder.path()).contains(&format!("{name}.tar.gz")), "{}", stderr(&check));
    let listed = Command::new("tar").arg("-tzf").arg(folder.path().join(format!("{name}.tar.gz"))).output().unwrap();
    let listed = stdout(&listed);
    for file in [
        "zbench",
        "LICENSE",
        "README.md",
        "THIRD-PARTY-LICENCES.txt",
        "configs/quickstart.toml",
        "docs/install.md",
        "share/man/man1/zbench.1",
        "share/man/man1/zbench-grid.1",
        "share/bash-completion/completions/zbench",
        "share/zsh/site-functions/_zbench",
        "share/fish/vendor_completions.d/zbench.fish",
    ] {
        assert!(listed.lines().any(|line| line == format!("{name}/{file}")), "{file} is missing:\n{listed}");
    }
    let names: Vec<&str> = listed.lines().collect();
    assert!(names.is_sorted(), "in an order that no disk decides:\n{listed}");
    let unpacked = folder.path().join(&name);
    let size = |path: &Path| std::fs::metadata(path).unwrap().len();
    assert!(size(&unpacked.join("zbench")) < size(Path::new(program)), "the program is stripped");
    let licences = std::fs::read_to_string(unpacked.join("THIRD-PARTY-LICENCES.txt")).unwrap();
    assert!(licences.contains("\nclap 4.") && licences.contains("\nserde 1.") && !licences.contains("\nproptest "));
    // Stripped, it still runs, and knows its example.
    let first = Command::new(unpacked.join("zbench")).current_dir(&unpacked).output().unwrap();
    assert!(stderr(&first).contains("grid configs/quickstart.toml"), "{}", stderr(&first));
    let again = tempfile::tempdir().unwrap();
    assert!(release(again.path(), program, "9.99").status.success());
    assert_eq!(sums(again.path()), sums(folder.path()), "the same program makes the same archive");
}

#[test]
fn what_would_not_run_elsewhere_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = release(folder.path(), env!("CARGO_BIN_EXE_zbench"), "2.4");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("more than MAX_GLIBC=2.4") && stderr(&output).contains("@GLIBC_2."),
        "{}",
        stderr(&output)
    );
    // A program of that name that needs another library, or none at all.
    let source = "#include <stdio.h>\n#include <zb.h>\nint main(void) { printf(\"zbench VERSION\\n\"); return ZB; }\n";
    let source = source.replace("VERSION", env!("CARGO_PKG_VERSION"));
    std::fs::write(folder.path().join("main.c"), source).unwrap();
    let compile = |header: &str, arguments: &[&str]| {
        std::fs::write(folder.path().join("zb.h"), header).unwrap();
        let mut command = Command::new("cc");
        command.current_dir(folder.path()).args(["-I.", "-L.", "-o", "zbench", "main.c"]).args(arguments);
        let output = command.output().expect("a C compiler, which the build needs too");
        assert!(output.status.success(), "{}", stderr(&output));
    };
    std::fs::write(folder.path().join("other.c"), "int other(void) { return 0; }\n").unwrap();
    let library = Command::new("cc")
        .current_dir(folder.path())
        .args(["-shared", "-fPIC", "-o", "libother.so", "other.c"])
        .status();
    assert!(library.unwrap().success());
    let program = folder.path().join("zbench");
    compile("int other(void);\n#define ZB other()\n", &["-lother", "-Wl,-rpath,$ORIGIN"]);
    let output = release(&folder.path().join("out"), program.to_str().unwrap(), "9.99");
    assert!(stderr(&output).contains("needs more than glibc: libother.so"), "{}", stderr(&output));
    compile("#define ZB 0\n", &["-static"]);
    let output = release(&folder.path().join("out"), program.to_str().unwrap(), "9.99");
    assert!(stderr(&output).contains("is it linked statically"), "{}", stderr(&output));
    let output = release(&folder.path().join("out"), "/bin/true", "9.99");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}
