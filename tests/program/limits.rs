//! A system that gives less than was asked for: fewer threads and processes, no loopback interface. Commands end soon, with
//! an outcome that says what to do, and without a panic. As root with util-linux; elsewhere each test says on stderr why it
//! did not run, and under `ZBENCH_REQUIRE_NETNS` it fails.

use crate::support::{self, stderr, stdout, write};
use serde_json::Value;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use zbench_test_tiers as tiers;

/// Whether another user and another network can be had, or a line on stderr that no test harness swallows.
fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        assert!(std::env::var_os("ZBENCH_REQUIRE_NETNS").is_none(), "{test} cannot run: it needs root");
        let _ = writeln!(std::io::stderr(), "SKIPPED limits::{test}: it needs root");
    }
    root
}

/// A folder that any user may write into, and a cell in it.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let four = support::TINY.replace("ranks = 2", "ranks = 4\nstall = \"20s\"");
    let file = write(folder.path(), &four[..four.find("[grid]").unwrap()]);
    (folder, file)
}

/// Batch systems limit address space (SGE's h_vmem, `ulimit -v`), and arenas reserve more than is used.
#[test]
fn limited_address_space_is_enough_for_what_fits_it() {
    let (folder, file) = folder();
    let file = file.to_str().unwrap();
    for (kib, arguments) in [
        (600_000, &["run", file, "--set", "parallel.ranks=2"][..]),
        (700_000, &["run", file, "--set", "parallel.ranks=2", "--set", "parallel.backend=shm"]),
        (
            1_000_000,
            &["gemm", "--shape", "17x3x5", "--threads", "1", "--seconds", "0.001", "--iters", "3", "--warmup", "0"],
        ),
    ] {
        let script = format!("ulimit -v {kib}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_zbench"), "--notebook"]).arg(folder.path().join("nb"));
        let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {} {}", stdout(&output), stderr(&output));
    }
}

/// zbench as a user of its own, whom the system gives so many processes and threads together. Root has no such limit.
fn with_threads(most: usize, folder: &Path, arguments: &[&str]) -> Output {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let user = (20_000 + std::process::id() % 400 * 100 + NEXT.fetch_add(1, Ordering::Relaxed)).to_string();
    let notebook = folder.join(format!("nb{user}"));
    let mut command = Command::new("prlimit");
    command.arg(format!("--nproc={most}:{most}")).args([
        "setpriv",
        "--reuid",
        &user,
        "--regid",
        &user,
        "--clear-groups",
    ]);
    // That user may not get at the folder where it was built.
    let program = folder.join("zbench");
    if !program.exists() {
        std::fs::copy(env!("CARGO_BIN_EXE_zbench"), &program).unwrap();
    }
    command.arg(program).arg("--notebook").arg(notebook).args(arguments);
    command.env("HOME", folder).env("NO_COLOR", "1").env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    command.output().expect("prlimit starts")
}

fn assert_no_panic(what: &str, output: &Output) {
    for text in [stdout(output), stderr(output)] {
        for word in ["panicked", "fatal runtime error"] {
            assert!(!text.contains(word), "{what}: {text}");
        }
    }
}

fn record_of(output: &Output) -> Value {
    let text = stdout(output);
    let line = text.lines().find(|line| line.starts_with('{'));
    line.map_or_else(|| panic!("no record: {text} {}", stderr(output)), |line| serde_json::from_str(line).unwrap())
}

fn reason(record: &Value) -> &str {
    record["outcome"]["reason"].as_str().unwrap_or_default()
}

#[test]
fn a_cell_that_gets_no_threads_fails_and_says_what_to_do() {
    if !is_root("a_cell_that_gets_no_threads_fails_and_says_what_to_do") {
        return;
    }
    let (folder, file) = folder();
    let (mut failed, mut runs) = (0, 0);
    for backend in ["local", "shm"] {
        let set = format!("parallel.backend={backend}");
        let arguments = ["--format", "json", "run", file.to_str().unwrap(), "--set", &set];
        let limits = (1..=12).chain([14, 17, 20]);
        for most in tiers::some("limits::a_cell_that_gets_no_threads_fails_and_says_what_to_do", limits, [5, 5]) {
            runs += 1;
            let output = with_threads(most, folder.path(), &arguments);
            let what = format!("{backend} with {most}");
            assert_no_panic(&what, &output);
            let record = record_of(&output);
            match output.status.code() {
                Some(0) => assert_eq!(record["outcome"]["status"], "measured", "{what}"),
                Some(5) => {
                    failed += 1;
                    assert_eq!(record["outcome"]["status"], "failed", "{what}: {record}");
                    assert!(reason(&record).contains("ulimit -u"), "{what}: {}", reason(&record));
                }
                code => panic!("{what}: {code:?} {}", stderr(&output)),
            }
        }
    }
    assert!(failed * 5 >= 2 * runs, "the limit was felt in {failed} of {runs} runs");
}

#[test]
fn allreduce_without_threads_for_its_ranks_fails_and_says_what_to_do() {
    if !is_root("allreduce_without_threads_for_its_ranks_fails_and_says_what_to_do") {
        return;
    }
    let (folder, _) = folder();
    for most in [1, 30, 60] {
        let arguments = [
            "allreduce",
            "--ranks",
            "100",
            "-b",
            "1K",
            "-e",
            "1K",
            "-n",
            "1",
            "-w",
            "1",
            "-T",
            "20s",
            "--buffers",
            "hot",
        ];
        let output = with_threads(most, folder.path(), &arguments);
        assert_no_panic(&format!("with {most}"), &output);
        assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains("the thread of rank") && said.contains("ulimit -u"), "{said}");
    }
    let arguments =
        ["allreduce", "--backend", "shm", "--ranks", "3", "-b", "1K", "-e", "1K", "-T", "20s", "--buffers", "hot"];
    let output = with_threads(2, folder.path(), &arguments);
    assert_no_panic("processes", &output);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let output = support::run(folder.path(), &["allreduce", "--threads", "99999999"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--threads 99999999"), "{}", stderr(&output));
}

/// A configuration's keys have limits; a record may hold anything, and more ranks have more threads together.
#[test]
fn more_threads_than_a_process_can_have_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &support::TINY[..support::TINY.find("[grid]").unwrap()]);
    let notebook = folder.path().join("nb");
    let set = ["--set", "hardware.threads_per_rank=4096", "--set", "parallel.ranks=8"];
    let output = support::run(&notebook, &[&["run", file.to_str().unwrap()], &set[..]].concat());
    assert_no_panic("4096 threads", &output);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stdout(&output).contains("hardware.threads_per_rank = 4096: 8 ranks"), "{}", stdout(&output));

    let notebook = folder.path().join("other");
    assert!(support::run(&notebook, &["run", file.to_str().unwrap()]).status.success());
    let path = notebook.join("records.jsonl");
    let record: Value = serde_json::from_str(std::fs::read_to_string(&path).unwrap().trim()).unwrap();
    for most in [u64::MAX, 1 << 40, 0] {
        let mut record = record.clone();
        record["cell"]["hardware"]["threads_per_rank"] = most.into();
        std::fs::write(&path, format!("{record}\n")).unwrap();
        let output = support::run(&notebook, &["repro", record["id"].as_str().unwrap()]);
        assert_no_panic("repro", &output);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains(&format!("hardware.threads_per_rank = {most}")), "{}", stderr(&output));
    }
    let mut deep = record.clone();
    deep["cell"]["model"]["num_hidden_layers"] = (1_u64 << 40).into();
    std::fs::write(&path, format!("{deep}\n")).unwrap();
    let output = support::run(&notebook, &["repro", record["id"].as_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("model.num_hidden_layers"), "{}", stderr(&output));
}

#[test]
fn ranks_that_cannot_reach_their_own_host_fail_at_once() {
    if !is_root("ranks_that_cannot_reach_their_own_host_fail_at_once") {
        return;
    }
    if !Command::new("unshare").args(["--net", "true"]).output().is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("ZBENCH_REQUIRE_NETNS").is_none(), "unshare --net is refused");
        eprintln!("SKIPPED limits::ranks_that_cannot_reach_their_own_host_fail_at_once: unshare --net is refused");
        return;
    }
    let (folder, file) = folder();
    // A network namespace begins with its loopback interface down.
    let lonely = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.arg("--net").arg(env!("CARGO_BIN_EXE_zbench")).arg("--notebook").arg(folder.path().join("nb"));
        command.args(arguments).env("NO_COLOR", "1").stdin(Stdio::null());
        let begin = Instant::now();
        let output = command.output().expect("unshare starts");
        assert!(begin.elapsed() < Duration::from_secs(45), "{arguments:?} took {:?}", begin.elapsed());
        assert_eq!(output.status.code(), Some(5), "{arguments:?}: {}", stderr(&output));
        output
    };
    for backend in ["shm", "tcp"] {
        let set = format!("parallel.backend={backend}");
        let file = file.to_str().unwrap();
        let output = lonely(&["--format", "json", "run", file, "--set", &set, "--set", "parallel.stall=60s"]);
        let record = record_of(&output);
        assert!(reason(&record).contains("does not reach its own address 127.0.0.1"), "{}", reason(&record));
        assert!(reason(&record).contains("ip link set lo up"), "{}", reason(&record));
        let output = lonely(&["allreduce", "--backend", backend, "-b", "8", "-e", "8", "-n", "1", "--buffers", "hot"]);
        assert!(stderr(&output).contains("does not reach its own address"), "{}", stderr(&output));
    }
}

/// Ranks over tcp have sockets to each other. Those that could not have them waited for the whole of parallel.stall.
#[test]
fn too_few_open_files_for_the_ranks_are_named_at_once() {
    let (folder, file) = folder();
    let set = "parallel.ranks=16 parallel.backend=tcp parallel.stall=100s train.micro_batch=1";
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_zbench"), "--notebook"]);
    command.arg(folder.path().join("nb")).args(["--format", "json", "run"]).arg(&file);
    for set in set.split(' ') {
        command.args(["--set", set]);
    }
    let begin = Instant::now();
    let output = command.env("NO_COLOR", "1").stdin(Stdio::null()).output().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(60), "they waited for {:?}", begin.elapsed());
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let record = record_of(&output);
    assert!(reason(&record).contains("64 are allowed; raise the limit with ulimit -n "), "{}", reason(&record));
}

#[test]
fn a_loopback_of_version_6_alone_is_enough() {
    if !is_root("a_loopback_of_version_6_alone_is_enough") {
        return;
    }
    let (folder, file) = folder();
    let alone = |variables: &[(&str, &str)], arguments: &[&str]| {
        let script = "ip link set lo up && ip address del 127.0.0.1/8 dev lo && exec \"$0\" \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", script, env!("CARGO_BIN_EXE_zbench"), "--notebook"]);
        command.arg(folder.path().join("nb")).args(arguments).envs(variables.iter().copied());
        command.env("NO_COLOR", "1").stdin(Stdio::null()).output().expect("unshare starts")
    };
    let file = file.to_str().unwrap();
    let output = alone(&[], &["run", file, "--set", "parallel.backend=tcp", "--set", "parallel.ranks=2"]);
    if stderr(&output).contains("unshare failed") || stderr(&output).contains("RTNETLINK") {
        assert!(std::env::var_os("ZBENCH_REQUIRE_NETNS").is_none(), "{}", stderr(&output));
        eprintln!("SKIPPED limits::a_loopback_of_version_6_alone_is_enough: {}", stderr(&output));
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{} {}", stdout(&output), stderr(&output));
    let stated = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")];
    let output = alone(&stated, &["allreduce", "-T", "20s"]);
    assert!(stderr(&output).contains("has ::1 instead: set MASTER_ADDR=::1 for all ranks"), "{}", stderr(&output));
}
