//! Cells whose ranks are processes: started here or by a launcher, watched and killed.

#![allow(dead_code)] // each of the two test programs uses a part

use crate::support::{stderr, stdout, write, zbench};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A cell of four ranks, so small that a step takes a moment; it clips, so that the norm of all ranks counts.
pub const CELL: &str = r#"
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
pub const ENDLESS: &str = "train.steps=100000000";

pub fn cell(folder: &Path) -> PathBuf {
    write(folder, CELL)
}

/// The program under test, piped and without the variables of a launcher under which the tests themselves run.
pub fn unlaunched(notebook: &Path) -> Command {
    let mut command = zbench(notebook);
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

pub fn command(folder: &Path, file: &Path, set: &[&str]) -> Command {
    let mut command = unlaunched(&folder.join("nb"));
    command.arg("run").arg(file).args(["--format", "json"]);
    for term in set {
        command.arg("--set").arg(term);
    }
    command
}

pub fn record_of(output: &Output) -> Value {
    let text = stdout(output);
    let line = text.lines().next().unwrap_or_else(|| panic!("no record; {}", stderr(output)));
    serde_json::from_str(line).unwrap()
}

pub fn run(folder: &Path, file: &Path, set: &[&str]) -> Value {
    let output = command(folder, file, set).output().unwrap();
    let record = record_of(&output);
    assert_eq!(output.status.code(), Some(0), "{set:?}: {} {}", text(&record, "/outcome/reason"), stderr(&output));
    record
}

pub fn text<'r>(record: &'r Value, path: &str) -> &'r str {
    record.pointer(path).and_then(Value::as_str).unwrap_or_else(|| panic!("{path} is no text: {record}"))
}

/// Losses and norms, bit for bit.
pub fn course(record: &Value) -> Vec<(u64, u64)> {
    let bits = |step: &Value, key: &str| step[key].as_f64().expect("a number").to_bits();
    record["steps"].as_array().expect("steps").iter().map(|s| (bits(s, "loss"), bits(s, "grad_norm"))).collect()
}

/// Rank and process of the ranks that a process has started, itself or through the cell's process.
pub fn ranks_of(parent: u32) -> Vec<(usize, u32)> {
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
pub fn under_way(mut command: Command) -> (Child, Vec<(usize, u32)>) {
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

/// What torchrun sets for rank `rank` of `size` on one host.
pub fn torchrun(command: &mut Command, rank: usize, size: usize, port: u16) {
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

pub fn launch(folder: &Path, file: &Path, size: usize, set: &[&str]) -> Vec<Child> {
    let port = zbench_launch::free_port().unwrap();
    let start = |rank| {
        let mut command = command(folder, file, set);
        torchrun(&mut command, rank, size, port);
        command.spawn().unwrap()
    };
    (0..size).map(start).collect()
}

/// Waits until all processes of a launch have started their ranks.
pub fn ranks_of_launch(children: &[Child]) -> Vec<(usize, u32)> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while children.iter().any(|child| ranks_of(child.id()).is_empty()) {
        assert!(Instant::now() < deadline, "the ranks do not start");
        std::thread::sleep(Duration::from_millis(50));
    }
    children.iter().flat_map(|child| ranks_of(child.id())).collect()
}

/// The same command on one core.
pub fn bound(command: &Command, core: usize) -> Command {
    let mut bound = Command::new("taskset");
    bound.arg("-c").arg(core.to_string()).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(name, value),
            None => bound.env_remove(name),
        };
    }
    bound.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    bound
}

/// The processes of these ranks.
pub fn processes(ranks: &[(usize, u32)]) -> Vec<u32> {
    ranks.iter().map(|(_, process)| *process).collect()
}
