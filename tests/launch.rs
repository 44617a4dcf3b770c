//! Ranks as processes, through the real program: the losses of threads, deaths and stalls that are named, launches.

use crate::support::{stderr, stdout, write, zbench};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A cell of four ranks, so small that a step takes a moment; it clips, so that the norm of all ranks counts.
const CELL: &str = r#"
name = "processes"
[model]
family = "llama"
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
vocab_size = 64
max_position_embeddings = 64
[train]
seq_len = 16
steps = 4
untimed_steps = 1
accumulation = 2
clip_norm = 0.5
[parallel]
ranks = 4
stall = "60s"
[hardware]
threads_per_rank = 1
"#;

/// As many steps as no test waits for.
const ENDLESS: &str = "train.steps=100000000";

fn cell(folder: &Path) -> PathBuf {
    write(folder, CELL)
}

fn command(folder: &Path, file: &Path, set: &[&str]) -> Command {
    let mut command = zbench(&folder.join("nb"));
    command.arg("run").arg(file).args(["--format", "json"]);
    for term in set {
        command.arg("--set").arg(term);
    }
    // The tests may themselves run under some launcher.
    for (name, _) in std::env::vars() {
        let launchers =
            ["RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "OMPI_", "PMI", "MV2_", "TORCHELASTIC", "ZBENCH_"];
        if launchers.iter().any(|launcher| name.starts_with(launcher)) {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn record_of(output: &Output) -> Value {
    let text = stdout(output);
    let line = text.lines().next().unwrap_or_else(|| panic!("no record; {}", stderr(output)));
    serde_json::from_str(line).unwrap()
}

fn run(folder: &Path, file: &Path, set: &[&str]) -> Value {
    let output = command(folder, file, set).output().unwrap();
    let record = record_of(&output);
    assert_eq!(output.status.code(), Some(0), "{set:?}: {} {}", text(&record, "/outcome/reason"), stderr(&output));
    record
}

fn text<'r>(record: &'r Value, path: &str) -> &'r str {
    record.pointer(path).and_then(Value::as_str).unwrap_or_else(|| panic!("{path} is no text: {record}"))
}

/// Losses and norms, bit for bit.
fn course(record: &Value) -> Vec<(u64, u64)> {
    let bits = |step: &Value, key: &str| step[key].as_f64().expect("a number").to_bits();
    record["steps"].as_array().expect("steps").iter().map(|s| (bits(s, "loss"), bits(s, "grad_norm"))).collect()
}

#[test]
fn processes_train_as_threads_do() {
    let folder = tempfile::tempdir().unwrap();
    let file = cell(folder.path());
    for strategy in ["ddp", "zero3", "hsdp"] {
        let strategy = format!("parallel.strategy={strategy}");
        let threads = run(folder.path(), &file, &[&strategy]);
        assert_eq!(course(&threads).len(), 5);
        for backend in ["shm", "tcp"] {
            let processes = run(folder.path(), &file, &[&strategy, &format!("parallel.backend={backend}")]);
            assert_eq!(course(&processes), course(&threads), "{strategy} over {backend}");
            assert_eq!(processes.pointer("/memory/total/peak_bytes"), threads.pointer("/memory/total/peak_bytes"));
            let calls = |record: &Value| {
                let rows = record["communication"].as_array().unwrap().iter();
                rows.map(|row| (row["kind"].clone(), row["calls"].clone(), row["payload_bytes"].clone()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(calls(&processes), calls(&threads));
            let mut pids: Vec<_> =
                (0..4).map(|rank| processes["ranks"][rank]["pid"].as_u64().expect("a pid")).collect();
            pids.dedup();
            assert_eq!(pids.len(), 4, "each rank is a process");
            assert_eq!(processes["ranks"][3]["host"], processes["environment"]["host"]);
            for metric in ["mfu", "peak_rss_bytes", "tokens_per_second"] {
                assert!(processes["metrics"][metric].as_f64().is_some_and(|value| value > 0.0), "{metric}");
            }
            assert_eq!(text(&processes, "/cell/parallel/backend"), backend);
        }
    }
}

/// A ddp cell over threads is the reference of cells over processes.
#[test]
fn a_grid_over_backends_compares_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &format!("{CELL}[grid]\n\"parallel.backend\" = [\"local\", \"shm\", \"tcp\"]\n"));
    let mut command = zbench(&folder.path().join("nb"));
    let output =
        command.arg("grid").arg(&file).args(["--format", "json", "--trials", "1", "--no-repeats"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let verdicts: Vec<String> = stdout(&output)
        .lines()
        .map(|line| text(&serde_json::from_str(line).unwrap(), "/parity/verdict").to_string())
        .collect();
    assert_eq!(verdicts, ["reference", "identical", "identical"]);
}

/// Rank and process of the ranks that a process has started, itself or through the cell's process.
fn ranks_of(parent: u32) -> Vec<(usize, u32)> {
    let children = |of: u32| -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        lists
            .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
            .collect()
    };
    let below: Vec<u32> = children(parent).into_iter().flat_map(|pid| [vec![pid], children(pid)].concat()).collect();
    let rank = |pid: &u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let is_rank = command.split(|byte| *byte == 0).any(|word| word == b"__rank");
        let number = environment.split(|byte| *byte == 0).find_map(|pair| pair.strip_prefix(b"RANK="))?;
        is_rank.then(|| Some((std::str::from_utf8(number).ok()?.parse().ok()?, *pid))).flatten()
    };
    below.iter().filter_map(rank).collect()
}

/// Starts an endless cell and waits until its ranks train.
fn under_way(mut command: Command) -> (Child, Vec<(usize, u32)>) {
    use std::io::{BufRead, BufReader};
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("step    3/") {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended before its third step");
    }
    // Whoever prints must be read.
    std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    let ranks = ranks_of(child.id());
    (child, ranks)
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

fn assert_gone(ranks: &[(usize, u32)]) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while ranks.iter().any(|(_, pid)| is_alive(*pid)) {
        assert!(Instant::now() < deadline, "processes are left over: {ranks:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_rank_is_named_and_the_record_kept() {
    use rustix::process::Signal;
    let folder = tempfile::tempdir().unwrap();
    let file = cell(folder.path());
    for backend in ["shm", "tcp"] {
        let (child, ranks) =
            under_way(command(folder.path(), &file, &[&format!("parallel.backend={backend}"), ENDLESS]));
        assert_eq!(ranks.len(), 4);
        let victim = ranks.iter().find(|(rank, _)| *rank == 2).unwrap().1;
        let begin = Instant::now();
        signal(victim, Signal::KILL);
        let output = child.wait_with_output().unwrap();
        // The stall limit is 60 s and the grace 10 s; a death is noticed at once.
        assert!(begin.elapsed() < Duration::from_secs(40), "{backend}: {:?}", begin.elapsed());
        assert_eq!(output.status.code(), Some(5), "{backend}");
        let record = record_of(&output);
        let reason = text(&record, "/outcome/reason");
        for word in [&format!("rank 2 (process {victim} on "), "signal 9 (SIGKILL)", " number "] {
            assert!(reason.contains(word), "{backend}: {reason} lacks {word}");
        }
        assert!(record["steps"].as_array().unwrap().len() >= 3, "steps done before are kept");
        assert_gone(&ranks);
    }
    let notebook = std::fs::read_to_string(folder.path().join("nb/records.jsonl")).unwrap();
    assert_eq!(notebook.lines().count(), 2);
}

#[test]
fn a_stopped_rank_is_named_within_the_stall_limit() {
    let folder = tempfile::tempdir().unwrap();
    let file = cell(folder.path());
    for backend in ["shm", "tcp"] {
        let set = [&format!("parallel.backend={backend}"), ENDLESS, "parallel.stall=8s"];
        let (child, ranks) = under_way(command(folder.path(), &file, &set));
        let victim = ranks.iter().find(|(rank, _)| *rank == 1).unwrap().1;
        let begin = Instant::now();
        signal(victim, rustix::process::Signal::STOP);
        let output = child.wait_with_output().unwrap();
        // Eight seconds until the others give up, as many for it to notice, two for the polite signal, and a slow machine.
        assert!(begin.elapsed() < Duration::from_secs(60), "{backend}: {:?}", begin.elapsed());
        assert_eq!(output.status.code(), Some(5));
        let record = record_of(&output);
        let reason = text(&record, "/outcome/reason");
        for word in [" number ", "waited 8 s", "[1]", &format!("rank 1 is process {victim} on ")] {
            assert!(reason.contains(word), "{backend}: {reason} lacks {word}");
        }
        assert_gone(&ranks);
    }
}

#[test]
fn nothing_is_left_when_the_command_goes() {
    use rustix::process::Signal;
    let folder = tempfile::tempdir().unwrap();
    let file = cell(folder.path());
    for (sent, code) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        let (child, ranks) = under_way(command(folder.path(), &file, &["parallel.backend=shm", ENDLESS]));
        assert_eq!(ranks.len(), 4);
        signal(child.id(), sent);
        assert_eq!(child.wait_with_output().unwrap().status.code(), code);
        assert_gone(&ranks);
    }
}

/// What torchrun sets for rank `rank` of `size` on one host.
fn torchrun(command: &mut Command, rank: usize, size: usize, port: u16) {
    let (rank, size) = (rank.to_string(), size.to_string());
    for (name, value) in [
        ("RANK", &rank),
        ("LOCAL_RANK", &rank),
        ("WORLD_SIZE", &size),
        ("LOCAL_WORLD_SIZE", &size),
        ("MASTER_ADDR", &"127.0.0.1".to_string()),
        ("MASTER_PORT", &port.to_string()),
        ("TORCHELASTIC_RUN_ID", &"none".to_string()),
    ] {
        command.env(name, value);
    }
}

fn launch(folder: &Path, file: &Path, size: usize, set: &[&str]) -> Vec<Child> {
    let port = zbench_launch::free_port().unwrap();
    let start = |rank| {
        let mut command = command(folder, file, set);
        torchrun(&mut command, rank, size, port);
        command.spawn().unwrap()
    };
    (0..size).map(start).collect()
}

#[test]
fn torchrun_makes_one_record_with_the_losses_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let file = cell(folder.path());
    let threads = run(folder.path(), &file, &["parallel.strategy=zero3"]);
    for (trial, backend) in ["shm", "tcp"].into_iter().enumerate() {
        let set = ["parallel.strategy=zero3", &format!("parallel.backend={backend}")];
        let outputs: Vec<Output> =
            launch(folder.path(), &file, 4, &set).into_iter().map(|child| child.wait_with_output().unwrap()).collect();
        let record = record_of(&outputs[0]);
        assert_eq!(text(&record, "/outcome/status"), "measured", "{}", text(&record, "/outcome/reason"));
        assert_eq!(course(&record), course(&threads), "{backend}");
        assert_eq!(record["ranks"].as_array().unwrap().len(), 4);
        assert!(record["metrics"]["mfu"].as_f64().is_some_and(|mfu| mfu > 0.0));
        let said = stderr(&outputs[0]);
        assert!(
            said.starts_with("launched by torchrun: rank 0 of 4, local rank 0 of 4, meeting at 127.0.0.1:"),
            "{said}"
        );
        for output in &outputs {
            assert_eq!(output.status.code(), Some(0));
        }
        for other in &outputs[1..] {
            assert_eq!((stdout(other), stderr(other)), (String::new(), String::new()), "rank 0 alone speaks");
        }
        let notebook = std::fs::read_to_string(folder.path().join("nb/records.jsonl")).unwrap();
        assert_eq!(notebook.lines().count(), 2 + trial);
    }
}

/// Who starts the processes decides what moves their bytes: nobody has to name a backend.
#[test]
fn a_grid_under_any_launcher_names_no_backend() {
    let folder = tempfile::tempdir().unwrap();
    let file = cell(folder.path());
    let threads = run(folder.path(), &file, &[]);
    assert_eq!(text(&threads, "/cell/parallel/backend"), "local");
    for launcher in ["torchrun", "srun", "mpirun"] {
        let port = zbench_launch::free_port().unwrap().to_string();
        let start = |rank: usize| {
            let mut command = command(folder.path(), &file, &[]);
            let (rank, here) = (rank.to_string(), "4".to_string());
            let names = match launcher {
                "srun" => ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"],
                "mpirun" => ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
                _ => ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
            };
            command.envs(names.into_iter().zip([&rank, &here, &rank, &here]));
            if launcher == "srun" {
                command.env("SLURM_STEP_ID", "0").env("SLURM_JOB_ID", &port);
            }
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port).spawn().unwrap()
        };
        let children: Vec<Child> = (0..4).map(start).collect();
        let outputs: Vec<Output> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
        let record = record_of(&outputs[0]);
        assert_eq!(text(&record, "/outcome/status"), "measured", "{launcher}: {}", text(&record, "/outcome/reason"));
        assert_eq!(text(&record, "/cell/parallel/backend"), "shm", "{launcher}: all on one host");
        assert_eq!(course(&record), course(&threads), "{launcher}");
    }
}

#[test]
fn a_launch_is_traced_by_rank_0() {
    let folder = tempfile::tempdir().unwrap();
    let file = cell(folder.path());
    let port = zbench_launch::free_port().unwrap();
    let trace = folder.path().join("trace.json");
    let start = |rank| {
        let mut command = command(folder.path(), &file, &["parallel.strategy=zero3", "parallel.backend=tcp"]);
        torchrun(&mut command, rank, 4, port);
        // As torchrun does, every process is given the same.
        command.arg("--trace").arg(&trace).spawn().unwrap()
    };
    let children: Vec<Child> = (0..4).map(start).collect();
    let outputs: Vec<Output> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let trace = crate::trace::read(&trace);
    crate::trace::check(&trace);
    crate::trace::compare(&trace, &record_of(&outputs[0]));
}

#[test]
fn a_launched_process_that_dies_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = cell(folder.path());
    let mut children = launch(folder.path(), &file, 2, &["parallel.backend=tcp", "parallel.ranks=2", ENDLESS]);
    let deadline = Instant::now() + Duration::from_secs(60);
    // Both train: each has a rank.
    while children.iter().any(|child| ranks_of(child.id()).is_empty()) {
        assert!(Instant::now() < deadline, "the ranks do not start");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(500));
    let ranks: Vec<_> = children.iter().flat_map(|child| ranks_of(child.id())).collect();
    let mut victim = children.remove(1);
    victim.kill().unwrap();
    victim.wait().unwrap();
    let output = children.remove(0).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let record = record_of(&output);
    let reason = text(&record, "/outcome/reason");
    assert!(reason.starts_with("the launch has lost a process: rank 1 on "), "{reason}");
    assert_gone(&ranks);
}

#[test]
fn cells_that_do_not_fit_the_launch_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = cell(folder.path());
    for (set, words) in [
        (&["parallel.backend=shm"][..], &["parallel.ranks = 4", "torchrun started 2 processes"][..]),
        (&["parallel.ranks=2", "parallel.backend=local"], &["\"local\"", "leave it out", "torchrun started 2"]),
    ] {
        let outputs: Vec<Output> =
            launch(folder.path(), &file, 2, set).into_iter().map(|child| child.wait_with_output().unwrap()).collect();
        for output in &outputs {
            assert_eq!(output.status.code(), Some(1), "{}", stderr(output));
        }
        for word in words {
            assert!(stderr(&outputs[0]).contains(word), "{} lacks {word}", stderr(&outputs[0]));
        }
        assert_eq!(stderr(&outputs[1]), "");
    }
    let mut disagreeing = command(folder.path(), &file, &[]);
    torchrun(&mut disagreeing, 0, 2, 29500);
    let output = disagreeing.env("PMI_RANK", "1").env("PMI_SIZE", "2").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("RANK=0 of WORLD_SIZE=2") && said.contains("PMI_RANK=1 of PMI_SIZE=2"), "{said}");
    let notebook = std::fs::read_to_string(folder.path().join("nb/records.jsonl")).unwrap_or_default();
    assert_eq!(notebook, "", "nothing has run");
}

/// One of three is never started: the others name it, and end with 5 within the time limit.
#[test]
fn a_process_that_never_comes_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = cell(folder.path());
    let port = zbench_launch::free_port().unwrap();
    let start = |rank| {
        let mut command = command(folder.path(), &file, &["parallel.backend=tcp", "parallel.ranks=3"]);
        torchrun(&mut command, rank, 3, port);
        command.args(["--timeout", "10s"]).spawn().unwrap()
    };
    let begin = Instant::now();
    let outputs = [start(0), start(1)].map(|child| child.wait_with_output().unwrap());
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    for output in &outputs {
        assert_eq!(output.status.code(), Some(5), "{}", stderr(output));
        assert!(stderr(output).contains("[2]") || stderr(output).contains("rank 2"), "{}", stderr(output));
        assert_eq!(stdout(output), "");
    }
}

/// Ctrl-C at one of the processes of a launch stops all, as an interruption and no failure.
#[test]
fn a_launch_is_stopped_from_any_of_its_processes() {
    let folder = tempfile::tempdir().unwrap();
    let file = cell(folder.path());
    for interrupted in [0, 1] {
        let set = ["parallel.backend=shm", "parallel.ranks=2", ENDLESS];
        let children = launch(folder.path(), &file, 2, &set);
        let deadline = Instant::now() + Duration::from_secs(60);
        while children.iter().any(|child| ranks_of(child.id()).is_empty()) {
            assert!(Instant::now() < deadline, "the ranks do not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        let ranks: Vec<_> = children.iter().flat_map(|child| ranks_of(child.id())).collect();
        signal(children[interrupted].id(), rustix::process::Signal::INT);
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(130), "{interrupted}: {}", stderr(&output));
        }
        assert_gone(&ranks);
    }
    let notebook = std::fs::read_to_string(folder.path().join("nb/records.jsonl")).unwrap_or_default();
    assert_eq!(notebook, "", "what was stopped is no result");
}

#[test]
fn mpi_cells_need_the_feature() {
    let folder = tempfile::tempdir().unwrap();
    let file = cell(folder.path());
    let trace = folder.path().join("trace.json");
    let output = command(folder.path(), &file, &["parallel.backend=mpi"]).arg("--trace").arg(&trace).output().unwrap();
    let record = record_of(&output);
    if cfg!(feature = "mpi") {
        let trace = crate::trace::read(&trace);
        crate::trace::check(&trace);
        crate::trace::compare(&trace, &record);
        assert_eq!(text(&record, "/outcome/status"), "measured", "{}", text(&record, "/outcome/reason"));
        let threads = run(folder.path(), &file, &[]);
        // MPI sums in an order of its own: 1e-5 is the tolerance of f32 among orders of sums (runner/parity.rs).
        for (ours, theirs) in record["steps"].as_array().unwrap().iter().zip(threads["steps"].as_array().unwrap()) {
            for key in ["loss", "grad_norm"] {
                let (ours, theirs) = (ours[key].as_f64().unwrap(), theirs[key].as_f64().unwrap());
                assert!((ours - theirs).abs() <= 1e-5 * theirs.abs(), "{key}: {ours} for {theirs}");
            }
        }
        assert_eq!(record["steps"].as_array().unwrap().len(), 5);
        return;
    }
    assert_eq!(output.status.code(), Some(4), "nothing was measured");
    assert_eq!(text(&record, "/outcome/status"), "skipped");
    assert!(text(&record, "/outcome/reason").contains("--features mpi"), "{}", text(&record, "/outcome/reason"));
}

/// Garbage, half a job, a job of another version: no panic, an exit status and a sentence.
#[test]
fn jobs_that_cannot_be_read_are_refused() {
    use std::io::Write;
    for command in ["__rank", "__cell"] {
        for job in [&b""[..], b"\xff\xfe garbage \0", b"{\"cell\":{}", b"{\"cell\": 3}", b"[]"] {
            let mut child = Command::new(env!("CARGO_BIN_EXE_zbench"))
                .arg(command)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            // It may have ended before it has read all.
            let _ = child.stdin.take().unwrap().write_all(job);
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(70), "{command} {job:?}");
            assert!(stderr(&output).contains("the job cannot be read"), "{}", stderr(&output));
            assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
            // That it hears an order to stop is the first that a process says.
            assert_eq!(stdout(&output).replace("\"ready\"\n", ""), "");
        }
    }
}

/// Every rank fills its arena: the reason is the arena's, of one rank, as with threads.
#[test]
fn a_full_arena_of_a_process_is_an_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let file = cell(folder.path());
    let free = run(folder.path(), &file, &["parallel.strategy=zero3"]);
    let capacity = free.pointer("/memory/total/peak_bytes").and_then(Value::as_u64).unwrap() - 64;
    let set = ["parallel.strategy=zero3", "parallel.backend=tcp", &format!("memory.capacity={capacity}")];
    let output = command(folder.path(), &file, &set).output().unwrap();
    let record = record_of(&output);
    assert_eq!((text(&record, "/outcome/status"), text(&record, "/outcome/source")), ("out_of_memory", "arena"));
    assert_eq!(output.status.code(), Some(0), "out of memory under a stated capacity is a result");
}
