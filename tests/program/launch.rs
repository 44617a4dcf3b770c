//! Ranks as processes, through the real program: the losses of threads, deaths and stalls that are named, launches.

use crate::launched::*;
use crate::support::{assert_gone, signal, stderr, stdout, write, zbench};
use serde_json::Value;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

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

/// Both at once, since each waits for its limit.
#[test]
fn a_stopped_rank_is_named_within_the_stall_limit() {
    let stopped = |backend: &str| {
        let folder = tempfile::tempdir().unwrap();
        let file = cell(folder.path());
        let set = [&format!("parallel.backend={backend}"), ENDLESS, "parallel.stall=6s"];
        let (child, ranks) = under_way(command(folder.path(), &file, &set));
        let victim = ranks.iter().find(|(rank, _)| *rank == 1).unwrap().1;
        signal(victim, rustix::process::Signal::STOP);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(5));
        let record = record_of(&output);
        let reason = text(&record, "/outcome/reason");
        for word in [" number ", "waited 6 s", "[1]", &format!("rank 1 is process {victim} on ")] {
            assert!(reason.contains(word), "{backend}: {reason} lacks {word}");
        }
        assert_gone(&processes(&ranks));
    };
    std::thread::scope(|scope| {
        for backend in ["shm", "tcp"] {
            scope.spawn(move || stopped(backend));
        }
    });
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
        assert_gone(&processes(&ranks));
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
    let trace = crate::timeline::read(&trace);
    crate::timeline::check(&trace);
    crate::timeline::compare(&trace, &record_of(&outputs[0]));
}

/// The others cannot notice it: they are connected to nobody yet.
#[test]
fn a_rank_that_dies_while_ranks_meet_ends_the_cell_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = cell(folder.path());
    let child = command(folder.path(), &file, &["parallel.backend=tcp", ENDLESS]).spawn().unwrap();
    let begin = Instant::now();
    // Rank 0 still measures the peak of its host.
    let victim = loop {
        if let Some((_, process)) = ranks_of(child.id()).into_iter().find(|(rank, _)| *rank == 1) {
            break process;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "the ranks do not start");
    };
    signal(victim, rustix::process::Signal::KILL);
    let killed = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    let record = record_of(&output);
    let reason = text(&record, "/outcome/reason");
    assert!(reason.starts_with(&format!("rank 1 (process {victim} on ")) && reason.contains("SIGKILL"), "{reason}");
    assert!(killed.elapsed() < Duration::from_secs(9), "others had 10 s to notice: {:?}", killed.elapsed());
}

#[test]
fn a_launched_process_that_dies_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = cell(folder.path());
    let mut children = launch(folder.path(), &file, 2, &["parallel.backend=tcp", "parallel.ranks=2", ENDLESS]);
    let ranks = ranks_of_launch(&children);
    std::thread::sleep(Duration::from_millis(500));
    let mut victim = children.remove(1);
    victim.kill().unwrap();
    victim.wait().unwrap();
    let output = children.remove(0).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let record = record_of(&output);
    let reason = text(&record, "/outcome/reason");
    assert!(reason.starts_with("the launch has lost a process: rank 1 on "), "{reason}");
    assert_gone(&processes(&ranks));
}

/// torchrun and Hydra end the others with SIGTERM when a process has died.
#[test]
fn a_death_that_the_launcher_answers_with_sigterm_is_kept_by_whoever_lives() {
    use rustix::process::Signal;
    for (dead, alive) in [(1, 0), (0, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let children = launch(folder.path(), &cell(folder.path()), 2, &["parallel.ranks=2", ENDLESS]);
        let ranks = ranks_of_launch(&children);
        signal(children[dead].id(), Signal::KILL);
        signal(children[alive].id(), Signal::TERM);
        let outputs: Vec<Output> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
        assert_eq!(outputs[alive].status.code(), Some(5), "rank {dead} died: {}", stderr(&outputs[alive]));
        let notebook = std::fs::read_to_string(folder.path().join("nb/records.jsonl")).unwrap_or_default();
        let records: Vec<Value> = notebook.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(records.len(), 1, "rank {dead} died: {}", stderr(&outputs[alive]));
        let (status, reason) = (text(&records[0], "/outcome/status"), text(&records[0], "/outcome/reason"));
        assert!(
            status == "failed" && reason.contains(&format!("lost a process: rank {dead} on ")),
            "{status}: {reason}"
        );
        assert_gone(&processes(&ranks));
    }
}

/// As mpirun and srun bind ranks by default, each to a core; and all to one core.
#[test]
fn the_cores_of_a_launch_are_those_of_all_its_ranks() {
    let cores = zbench_kernels::threads::affinity::available();
    let Some(other) = cores.get(1) else { return };
    for (places, pin, count, words) in [
        ([cores[0], *other], "hardware.pin=cores", 2, "each rank has 1, which no other rank uses"),
        ([cores[0]; 2], "hardware.pin=none", 1, "each rank has 1, which 2 ranks share"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = cell(folder.path());
        let port = zbench_launch::free_port().unwrap();
        let start = |rank: usize| {
            let mut command = command(folder.path(), &file, &["parallel.ranks=2", pin]);
            torchrun(&mut command, rank, 2, port);
            bound(&command, places[rank]).spawn().unwrap()
        };
        let children = [start(0), start(1)];
        let outputs = children.map(|child| child.wait_with_output().unwrap());
        let record = record_of(&outputs[0]);
        assert_eq!(text(&record, "/outcome/status"), "measured", "{}", text(&record, "/outcome/reason"));
        assert_eq!(record["environment"]["cores"], count);
        let notes = record["notes"].as_array().unwrap();
        assert!(notes.iter().filter_map(Value::as_str).any(|note| note.contains(words)), "{notes:?}");
        assert!(record["sampled"]["peers_seconds"].as_f64() > Some(0.0), "{}", record["sampled"]);
        let peak = notes.iter().filter_map(Value::as_str).find(|note| note.starts_with("The peak is that of"));
        let threads = format!("The peak is that of {count} threads");
        assert!(peak.is_none_or(|peak| peak.starts_with(&threads)), "{peak:?}");
    }
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
        let ranks = ranks_of_launch(&children);
        signal(children[interrupted].id(), rustix::process::Signal::INT);
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(130), "{interrupted}: {}", stderr(&output));
        }
        assert_gone(&processes(&ranks));
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
        let trace = crate::timeline::read(&trace);
        crate::timeline::check(&trace);
        crate::timeline::compare(&trace, &record);
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
