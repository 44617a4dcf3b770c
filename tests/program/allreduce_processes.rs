//! `zbench allreduce` over processes: shared memory and sockets, launchers' variables, emulated links, and ranks that die,
//! stall or never come.

use crate::support::{records, run, signal, stderr, stdout, zbench};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Lines, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Output, Stdio};
use std::time::{Duration, Instant};

fn test(notebook: &Path, words: &str) -> Output {
    let words: Vec<&str> = ["allreduce", "--buffers", "hot"].into_iter().chain(words.split_whitespace()).collect();
    run(notebook, &words)
}

fn rows(text: &str) -> Vec<Vec<String>> {
    let is_row = |line: &&str| !line.starts_with('#') && !line.trim().is_empty();
    text.lines().filter(is_row).map(|line| line.split_whitespace().map(str::to_string).collect()).collect()
}

fn pids(text: &str) -> Vec<u32> {
    let pid = |line: &str| line.split_once("Pid")?.1.split_whitespace().next()?.parse().ok();
    text.lines().filter(|line| line.starts_with("#  Rank ")).filter_map(pid).collect()
}

/// The variables of torchrun make this process a rank; a backend that would measure alone in each process is refused.
#[test]
fn launchers_are_followed_and_contradictions_refused() {
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rank = |rank: usize, words: &str| {
        let mut command = zbench(folder.path());
        command.arg("allreduce").args(words.split_whitespace());
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2").env("LOCAL_RANK", rank.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let words = "--buffers hot -b 1K -e 1K -n 2 -T 60s";
    let ranks = [rank(1, words), rank(0, words)].map(|child| child.wait_with_output().unwrap());
    let [second, first] = &ranks;
    assert_eq!((first.status.code(), second.status.code()), (Some(0), Some(0)), "{}", stderr(first));
    assert!(stderr(first).contains("launched by torchrun: rank 0 of 2"), "{}", stderr(first));
    assert!(stdout(first).contains("started by torchrun") && stdout(second).is_empty());
    assert_eq!(records(folder.path()).len(), 1);
    for (words, told) in
        [("--backend local", "each would measure alone"), ("--ranks 4", "torchrun started 2"), ("-g 8", "started 2")]
    {
        let output = rank(0, words).wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words}");
        assert!(stderr(&output).contains(told), "{words}: {}", stderr(&output));
    }
}

#[test]
fn a_rank_that_never_comes_is_missed_within_the_time_given() {
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = zbench(folder.path());
    command.args(["allreduce", "-b", "1K", "-e", "1K", "-T", "2s"]).env("RANK", "0").env("WORLD_SIZE", "2");
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    let start = Instant::now();
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("rank(s) [1] of 2") && start.elapsed() < Duration::from_secs(30),
        "{}",
        stderr(&output)
    );
}

/// A launcher that is stopped sends this to ranks that wait for others.
#[test]
fn a_rank_that_waits_for_others_hears_signals() {
    for sent in [Signal::TERM, Signal::INT] {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = zbench(folder.path());
        command.args(["allreduce", "-b", "1K", "-e", "1K", "-T", "100s"]).env("RANK", "0").env("WORLD_SIZE", "2");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let start = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(60), "it does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        signal(child.id(), sent);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{sent:?}: {}", stderr(&output));
        assert!(start.elapsed() < Duration::from_secs(60), "{sent:?}: {:?}", start.elapsed());
        assert!(stderr(&output).contains("stopped while it waited for rank(s) [1] of 2"), "{}", stderr(&output));
    }
}

/// Ranks below a process with the name of Hydra's, with the variables of Hydra: nothing there names a job.
fn below_hydra(folder: &Path, script: &str, variables: &[(&str, &str)]) -> Child {
    let proxy = folder.join("hydra_pmi_proxy");
    if !proxy.exists() {
        std::fs::copy("/bin/sh", &proxy).unwrap();
    }
    let words = "allreduce --buffers hot -b 1K -e 1K -n 1 -T";
    // The shell that is a rank becomes zbench: it has the name of the launcher until then.
    let script = format!(
        "rank() {{ PMI_RANK=$1 PMI_SIZE=2 MPI_LOCALRANKID=$(($1 % MPI_LOCALNRANKS)) exec \"$ZB\" --notebook \"$NB.$1\" {words} $2; }}; {script}; exit $?"
    );
    let mut command = std::process::Command::new(proxy);
    command.args(["-c", &script]).env("ZB", env!("CARGO_BIN_EXE_zbench")).env("NB", folder.join("nb"));
    for (name, _) in std::env::vars() {
        if ["PMI", "OMPI_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_"].iter().any(|start| name.starts_with(start)) {
            command.env_remove(name);
        }
    }
    command.envs(variables.iter().copied()).env("NO_COLOR", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn two_launches_of_one_size_do_not_exchange_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let start = |script: &str, variables: &[(&str, &str)]| below_hydra(folder.path(), script, variables);
    let here = [("MPI_LOCALNRANKS", "2")];
    // One launch has lost its rank 1 and another its rank 0, beside one that is whole.
    let children = [
        start("rank 0 1s & wait $!", &here),
        start("rank 1 1s & wait $!", &here),
        start("rank 0 60s & rank 1 60s & wait $!", &here),
    ];
    let [first, other, whole] = children.map(|child| child.wait_with_output().unwrap());
    assert_eq!(whole.status.code(), Some(0), "{}", stderr(&whole));
    assert!(stderr(&whole).contains("; started by hydra_pmi_proxy (process "), "{}", stderr(&whole));
    assert_eq!((first.status.code(), other.status.code()), (Some(5), Some(5)), "{} {}", stderr(&first), stderr(&other));
    assert!(stderr(&first).contains("rank(s) [1] of 2 did not come"), "{}", stderr(&first));
    // Where each host has a process of its own, both ranks name the two that do not belong together.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let several = [("MPI_LOCALNRANKS", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)];
    for child in [start("rank 0 60s & wait $!", &several), start("rank 1 60s & wait $!", &several)] {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
        let said = stderr(&output);
        for word in
            ["ranks of two launches met: rank 1 (process ", " on ", ") was started by hydra_pmi_proxy (process "]
        {
            assert!(said.contains(word), "{said} lacks {word}");
        }
    }
}

/// Starts an endless test of processes and reads until three rows have come: child, rest of its output, text so far.
fn endless(notebook: &Path, words: &str) -> (Child, Lines<BufReader<ChildStdout>>, String) {
    let mut command = zbench(notebook);
    command
        .args(["allreduce", "--buffers", "hot", "-b", "1K", "-e", "1K", "-N", "0", "-n", "5"])
        .args(words.split_whitespace());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut text = String::new();
    while rows(&text).len() < 3 {
        text += &(lines.next().expect("rows come as they are measured").unwrap() + "\n");
    }
    (child, lines, text)
}

fn finish(mut child: Child, lines: Lines<BufReader<ChildStdout>>) -> (Option<i32>, String, String) {
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let mut complaints = String::new();
    child.stderr.take().unwrap().read_to_string(&mut complaints).unwrap();
    (child.wait().unwrap().code(), rest.join("\n"), complaints)
}

#[test]
fn a_killed_rank_ends_the_test_and_the_rows_are_kept() {
    for backend in ["shm", "tcp"] {
        let folder = tempfile::tempdir().unwrap();
        let (child, lines, text) = endless(folder.path(), &format!("--backend {backend} --ranks 3 -T 30s"));
        let start = Instant::now();
        signal(pids(&text)[1], Signal::KILL);
        let (code, rest, complaints) = finish(child, lines);
        assert_eq!(code, Some(5), "{backend}: {complaints}");
        assert!(start.elapsed() < Duration::from_secs(60), "{backend}: {:?}", start.elapsed());
        assert!(complaints.contains("rank 1 (pid") && complaints.contains("SIGKILL"), "{backend}: {complaints}");
        assert!(rest.contains("# error: ") && rest.contains("# Out of bounds values : 0 OK"), "{backend}: {rest}");
        let all = records(folder.path());
        assert_eq!(all[0]["outcome"]["status"], "failed", "{backend}");
        assert!(all[0]["section"]["rows"].as_array().unwrap().len() >= 3, "{backend}");
    }
}

#[test]
fn a_stopped_rank_is_named_with_its_host_and_process() {
    let folder = tempfile::tempdir().unwrap();
    let (child, lines, text) = endless(folder.path(), "--backend shm --ranks 2 -T 5s");
    let stopped = pids(&text)[1];
    signal(stopped, Signal::STOP);
    let (code, rest, complaints) = finish(child, lines);
    assert_eq!(code, Some(5), "{complaints}");
    let error = rest.lines().find(|line| line.starts_with("# error: ")).unwrap_or_else(|| panic!("{rest}"));
    for part in ["number ", "of world", "waited 5 s", "rank(s) [1]", &format!("(pid {stopped})"), "rank 1 is on "] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(records(folder.path())[0]["outcome"]["status"], "failed");
}

#[test]
fn ctrl_c_reaches_all_processes_and_keeps_the_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (child, lines, text) = endless(folder.path(), "--backend shm --ranks 2");
    signal(child.id(), Signal::INT);
    let (code, rest, complaints) = finish(child, lines);
    assert_eq!(code, Some(130), "{complaints}");
    let all = records(folder.path());
    let measured = rows(&text).len() + rows(&rest).len();
    assert_eq!(all[0]["section"]["rows"].as_array().unwrap().len(), measured);
    for pid in pids(&text) {
        assert!(!Path::new(&format!("/proc/{pid}/fd")).exists(), "{pid} is still there");
    }
}

/// 1 MiB between two emulated nodes at 100 MB/s and 2 ms: no all-reduce is faster than the link allows.
#[test]
fn emulated_links_and_compositions_are_in_the_same_table() {
    let folder = tempfile::tempdir().unwrap();
    let words = "--ranks 2 --ranks-per-node 1 --link-bandwidth 100MB/s --link-latency 2ms -b 1M -e 1M -n 2";
    let output = test(folder.path(), words);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("# EMULATED links: 0.1 GB/s each way and 2000 us"), "{}", stdout(&output));
    assert_eq!(records(folder.path())[0]["validity"], serde_json::json!(["emulated_link"]));
    for row in rows(&stdout(&output)) {
        for time in [&row[5], &row[9]] {
            // A ring sends each rank's half twice: 1 MiB each way, and two latencies.
            let us: f64 = time.parse().unwrap();
            assert!(us >= 10_485.0, "{row:?}");
        }
    }
    for algorithm in ["hierarchical", "q8", "q4"] {
        let words = format!(
            "--ranks 4 --ranks-per-node 2 --algorithm {algorithm} -b 4K -e 64K -f 16 -n 2 --collective all_reduce,all_gather,reduce_scatter"
        );
        let output = test(folder.path(), &words);
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(0), "{algorithm}: {text}{}", stderr(&output));
        assert!(text.lines().next().unwrap().ends_with(&format!("algorithm {algorithm}")), "{text}");
        assert!(rows(&text).len() == 6 && rows(&text).iter().all(|row| row[8] == "0" && row[12] == "0"), "{text}");
    }
    for (words, told) in [
        ("--link-bandwidth 1GB/s", "needs --ranks-per-node"),
        ("--link-latency 1us --ranks-per-node 1", "needs --link-bandwidth"),
        ("--algorithm q8 --ranks-per-node 1 -d double", "travel quantised"),
        ("--algorithm tree", "there are auto"),
        ("--ranks 4 --ranks-per-node 3 --algorithm hierarchical", "does not divide 4 ranks"),
    ] {
        let output = test(folder.path(), words);
        assert_eq!(output.status.code(), Some(1), "{words}");
        assert!(stderr(&output).contains(told), "{words}: {}", stderr(&output));
    }
}
