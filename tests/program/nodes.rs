//! Cells on several GPUs of one host and of two, under launchers: with libraries that imitate the driver, NVRTC, NVML and NCCL,
//! whose kernels compute nothing and take the time they are told. A host is a name of its own (a UTS namespace).

use crate::support::{self, stderr, stdout};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use zbench_test_tiers as tiers;

#[path = "../../kernels/tests/kernels/gpu/fakes/libraries.rs"]
mod libraries;

/// Milliseconds of every kernel: the time of a step and the measured peak follow from them.
const KERNEL_MS: f64 = 0.01;
/// A look at a GPU's energy finds so many millijoules more.
const MILLIJOULES: u64 = 500;
/// The dense rate of bf16 in the data sheet of an H100.
const SHEET: f64 = 989.4e12;

/// configs/llama70b.toml, scaled down: grouped queries, bf16, fully sharded.
const CELL: &str = r#"
name = "nodes"
[model]
family = "llama"
hidden_size = 128
intermediate_size = 256
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
vocab_size = 128
[train]
seq_len = 64
steps = 3
untimed_steps = 1
clip_norm = 1.0
[precision]
preset = "bf16-mixed"
[hardware]
device = "cuda"
"#;

/// The libraries, compiled once for all tests.
static LIBRARIES: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nodes");
    std::fs::create_dir_all(&folder).unwrap();
    // Without cuBLASLt, whose imitation multiplies: the product that measures a GPU's peak would take hours.
    let files = libraries::SOURCES.iter().zip(&*libraries::COMPILED);
    for ((name, _), file) in files.filter(|((name, _), _)| !name.contains("cublasLt")) {
        let aside = folder.join(format!("{name}-{}", std::process::id()));
        std::fs::copy(file, &aside).unwrap();
        std::fs::rename(aside, folder.join(name)).unwrap();
    }
    folder
});

/// What a host shows of its GPUs.
#[derive(Clone, Copy)]
enum Shown {
    /// All to each process.
    All(usize),
    /// To each process its own.
    OneEach(usize),
    /// To each process the same.
    Same,
}

/// Who starts the processes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Launcher {
    Torchrun,
    Srun,
    Mpirun,
}

/// So many hosts with so many ranks each.
struct Launch<'a> {
    hosts: usize,
    each: usize,
    launcher: Launcher,
    shown: Shown,
    /// Further variables, by host.
    variables: &'a dyn Fn(usize) -> Vec<(&'static str, String)>,
}

/// A process on a host of this name; nothing where the system gives no names.
fn on_host(name: &str) -> Option<Command> {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.arg("--uts").args(["sh", "-c", &format!("hostname {name} && exec \"$@\""), "sh"]);
    let mut probe = Command::new("unshare");
    probe.args(command.get_args()).arg("true").stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success()).then_some(command)
}

/// Whether hosts can be named here; else a line on stderr that no test harness swallows.
fn has_hosts(test: &str) -> bool {
    let has = on_host("zbench-a").is_some();
    if !has {
        assert!(std::env::var_os("ZBENCH_REQUIRE_NETNS").is_none(), "{test} cannot run: unshare --uts is refused");
        let _ = writeln!(std::io::stderr(), "SKIPPED nodes::{test}: unshare --uts is refused");
    }
    has
}

/// The program on the imitated GPUs.
fn program(command: &mut Command, notebook: &Path, gpus: usize) {
    for (name, _) in std::env::vars() {
        let launchers = ["RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "OMPI_", "PMI", "MV2_", "TORCHELASTIC"];
        if launchers.iter().chain(&["ZBENCH_", "CUDA_", "NCCL_"]).any(|launcher| name.starts_with(launcher)) {
            command.env_remove(name);
        }
    }
    command.arg("--notebook").arg(notebook.join("nb"));
    command.env("ZBENCH_CUDA_LIBS", &*LIBRARIES).env("LD_LIBRARY_PATH", &*LIBRARIES);
    command.env("ZBENCH_CACHE", notebook.join("cache")).env("NO_COLOR", "1").env("COLUMNS", "140");
    command.env("FAKE_CUDA_DEVICES", gpus.to_string()).env("FAKE_KERNEL_MS", KERNEL_MS.to_string());
    command.env("FAKE_NVML_MILLIJOULES", MILLIJOULES.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
}

/// zbench alone on a host with so many GPUs.
fn alone(folder: &Path, gpus: usize) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zbench"));
    program(&mut command, folder, gpus);
    command
}

impl Launch<'_> {
    /// All processes until they end, in the order of ranks.
    fn run(&self, folder: &Path, arguments: &[&str]) -> Vec<Output> {
        let port = zbench_launch::free_port().unwrap();
        let children: Vec<_> = (0..self.hosts * self.each)
            .map(|rank| {
                let (host, local) = (rank / self.each, rank % self.each);
                let mut command = on_host(&format!("zbench-{}", ["a", "b"][host])).unwrap();
                command.arg(env!("CARGO_BIN_EXE_zbench"));
                let gpus = match self.shown {
                    Shown::All(gpus) | Shown::OneEach(gpus) => gpus,
                    Shown::Same => 1,
                };
                program(&mut command, folder, gpus);
                if let Shown::OneEach(_) = self.shown {
                    command.env("CUDA_VISIBLE_DEVICES", local.to_string());
                }
                command.args(["--format", "json"]).args(arguments);
                command.envs(self.of_rank(rank, host, local)).envs((self.variables)(host));
                command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
                command.spawn().unwrap()
            })
            .collect();
        children.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
    }

    fn of_rank(&self, rank: usize, host: usize, local: usize) -> Vec<(&'static str, String)> {
        let (size, each) = (self.hosts * self.each, self.each);
        let names = match self.launcher {
            Launcher::Torchrun => ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
            Launcher::Srun => ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"],
            Launcher::Mpirun => [
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            ],
        };
        let mut all: Vec<_> =
            names.into_iter().zip([rank, size, local, each].map(|number| number.to_string())).collect();
        if self.launcher == Launcher::Srun {
            all.extend([
                ("SLURM_JOB_ID", "7".into()),
                ("SLURM_STEP_ID", "0".into()),
                ("SLURM_NODEID", host.to_string()),
            ]);
        }
        all
    }
}

fn none(_: usize) -> Vec<(&'static str, String)> {
    Vec::new()
}

fn records(output: &Output) -> Vec<Value> {
    let text = stdout(output);
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!records.is_empty(), "no record: {}", stderr(output));
    records
}

fn measured(output: &Output) -> Value {
    let record = records(output).remove(0);
    assert_eq!(record["outcome"]["status"], "measured", "{}; {}", record["outcome"], stderr(output));
    record
}

fn number(record: &Value, path: &str) -> f64 {
    record.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} is no number: {record}"))
}

#[test]
fn a_grid_over_the_gpus_of_a_host_names_no_backend() {
    if tiers::cases("nodes::a_grid_over_the_gpus_of_a_host_names_no_backend", [0, 0, 1]) == 0 {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = support::write(
        folder.path(),
        &format!("{CELL}[parallel]\nranks = 2\n[grid]\n\"parallel.strategy\" = [\"ddp\", \"fsdp\"]\n"),
    );
    let grid = |gpus| {
        let mut command = alone(folder.path(), gpus);
        command.args(["--format", "json", "grid", file.to_str().unwrap(), "--trials", "1"]).output().unwrap()
    };
    // On one GPU the same cells are skipped, and told what else there is.
    for record in records(&grid(1)) {
        let reason = record["outcome"]["reason"].as_str().unwrap();
        assert!(reason.contains("needs 2 CUDA devices, and this machine has 1; "), "{reason}");
        assert!(reason.contains("parallel.backend = \"device\""), "{reason}");
    }
    let output = grid(2);
    let both = records(&output);
    assert_eq!(both.len(), 2);
    for record in both {
        assert_eq!(record["outcome"]["status"], "measured", "{}; {}", record["outcome"], stderr(&output));
        assert_eq!(record["cell"]["parallel"]["backend"], "nccl");
        assert_eq!(record["gpu"]["name"], "Fake H100");
    }
}

#[test]
fn launchers_show_each_process_all_gpus_or_one_of_its_own() {
    if !has_hosts("launchers_show_each_process_all_gpus_or_one_of_its_own") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = support::write(folder.path(), &format!("{CELL}[parallel]\nranks = 2\nstall = \"60s\"\n"));
    let run = ["grid", file.to_str().unwrap(), "--trials", "1", "--no-repeats", "--fresh"];
    let launchers = [
        (Launcher::Srun, Shown::OneEach(2)),
        (Launcher::Mpirun, Shown::All(2)),
        (Launcher::Torchrun, Shown::OneEach(2)),
    ];
    let test = "nodes::launchers_show_each_process_all_gpus_or_one_of_its_own (launchers)";
    for (launcher, shown) in launchers.into_iter().take(tiers::cases(test, [1, 1, 3]) as usize) {
        let launch = Launch { hosts: 1, each: 2, launcher, shown, variables: &none };
        let outputs = launch.run(folder.path(), &run);
        assert_eq!(measured(&outputs[0])["cell"]["parallel"]["backend"], "nccl", "{launcher:?}");
        assert!(outputs.iter().all(|output| output.status.success()), "{launcher:?}");
    }
    // The interconnect test takes the same GPUs, and its sums are right.
    let launch = Launch { hosts: 1, each: 2, launcher: Launcher::Srun, shown: Shown::OneEach(2), variables: &none };
    let test = "allreduce --backend nccl --buffers hot -b 1K -e 1K -n 1 -w 0 -I 1";
    let outputs = launch.run(folder.path(), &test.split(' ').collect::<Vec<_>>());
    assert!(outputs.iter().all(|output| output.status.success()), "{}", stderr(&outputs[0]));
    let document: Value = serde_json::from_str(stdout(&outputs[0]).trim()).unwrap();
    assert_eq!(document["results"][0]["in_place"]["nwrong"], 0, "{document}");
    // One GPU for both: NCCL would wait or fail in its own words.
    let launch = Launch { hosts: 1, each: 2, launcher: Launcher::Srun, shown: Shown::Same, variables: &none };
    let outputs = launch.run(folder.path(), &run);
    let record = records(&outputs[0]).remove(0);
    let reason = record["outcome"]["reason"].as_str().unwrap();
    assert_eq!(record["outcome"]["status"], "failed", "{reason}");
    assert!(reason.contains("ranks 0 and 1 are both on GPU-") && reason.contains("--gpus-per-task=1"), "{reason}");
}

/// What four ranks on two hosts measure is what was there: MFU by the data sheet, the peak of one GPU, the energy of all four.
#[test]
fn a_launch_over_two_hosts_keeps_the_facts_of_all_gpus() {
    if !has_hosts("a_launch_over_two_hosts_keeps_the_facts_of_all_gpus") {
        return;
    }
    if tiers::cases("nodes::a_launch_over_two_hosts_keeps_the_facts_of_all_gpus", [0, 0, 1]) == 0 {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let strategies = "[grid]\n\"parallel.strategy\" = [\"fsdp\", \"hsdp\"]\n\"parallel.ranks\" = [4, 8]\n";
    let file =
        support::write(folder.path(), &format!("{CELL}[parallel]\nranks_per_node = 2\nstall = \"60s\"\n{strategies}"));
    // GPUs of the second host are half as fast.
    let milliseconds = |host: usize| KERNEL_MS * (host + 1) as f64;
    // A communicator takes 2 GiB when it connects, and the arena all that is free but 1 GiB.
    let variables = |host: usize| {
        vec![("FAKE_KERNEL_MS", milliseconds(host).to_string()), ("FAKE_NCCL_BYTES", (2u64 << 30).to_string())]
    };
    let launch =
        Launch { hosts: 2, each: 2, launcher: Launcher::Torchrun, shown: Shown::All(2), variables: &variables };
    let outputs = launch.run(folder.path(), &["grid", file.to_str().unwrap(), "--trials", "1", "--no-repeats"]);
    let all = records(&outputs[0]);
    let (small, large): (Vec<_>, Vec<_>) = all.iter().partition(|record| record["cell"]["parallel"]["ranks"] == 4);
    assert_eq!((small.len(), large.len()), (2, 2));
    for record in large {
        let reason = record["outcome"]["reason"].as_str().unwrap();
        assert!(reason.contains("parallel.ranks = 8, and torchrun started 4 processes"), "{reason}");
    }
    // One product of 8192 x 8192 is one kernel.
    let rate = |host: usize| 2.0 * 8192f64.powi(3) / (milliseconds(host) / 1e3);
    for record in small {
        assert_eq!(record["outcome"]["status"], "measured", "{}; {}", record["outcome"], stderr(&outputs[0]));
        assert_eq!(
            (&record["gpu"]["name"], &record["cell"]["parallel"]["backend"]),
            (&"Fake H100".into(), &"nccl".into())
        );
        let of_rank = number(record, "/metrics/tflops_per_rank") * 1e12;
        let share = |metric: &str, peak: f64| {
            let (found, wanted) = (number(record, &format!("/metrics/{metric}")), of_rank / peak);
            assert!(wanted > 0.0 && (found / wanted - 1.0).abs() < 1e-3, "{metric}: {found}, and {wanted} are right");
        };
        share("mfu", SHEET);
        share("mfu_of_measured_peak", (rate(0) + rate(1)) / 2.0);
        assert!(number(record, "/metrics/hfu") >= number(record, "/metrics/mfu"));
        // Without cuBLASLt the products are zbench's own, which the record says.
        assert!(record["validity"].as_array().unwrap().contains(&"product_fallback".into()), "{}", record["validity"]);
        let fallback = record["gpu"]["fallbacks"][0].as_str().unwrap();
        assert!(fallback.ends_with(": there is no cuBLASLt"), "{fallback}");
        // Three timed steps, at whose ends each of four ranks looks once; 64 tokens of each in each.
        let joules = 3.0 * 4.0 * MILLIJOULES as f64 / 1e3;
        assert_eq!(number(record, "/metrics/joules_per_token"), joules / (3.0 * 4.0 * 64.0), "{}", record["sampled"]);
        let ranks = record["ranks"].as_array().unwrap();
        let hosts: Vec<&Value> = ranks.iter().map(|rank| &rank["host"]).collect();
        assert!(hosts.len() == 4 && hosts[0] == hosts[1] && hosts[2] == hosts[3] && hosts[1] != hosts[2], "{hosts:?}");
    }
}

/// Hopper's attention has no speed before its numbers were compared; where its kernel is not taken, nothing is measured.
#[test]
fn attention_for_hopper_is_asked_for_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("kernels.txt");
    let ask = |more: &[&str]| {
        let mut command = alone(folder.path(), 1);
        let words = "--format json attention --device cuda --kernel flash-hopper --heads 2 --kv-heads 1 --seq-len 128 --pass forward";
        command.env("FAKE_CUDA_LOG", &log).args(words.split(' ')).args(more).output().unwrap()
    };
    let output = ask(&["--dtype", "bf16", "--head-dim", "128"]);
    let record = records(&output).remove(0);
    let launched = std::fs::read_to_string(&log).unwrap();
    let count = |name: &str| launched.lines().filter(|line| line.split(' ').next() == Some(name)).count();
    assert!(count("flash_hopper_128") > 0, "{launched}");
    let kernels: Vec<&str> = launched.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(kernels.iter().any(|name| name.starts_with("flash_") && !name.starts_with("flash_hopper")), "{kernels:?}");
    // The imitated GPU computes nothing: that is found out, named, and said.
    let reason = record["outcome"]["reason"].as_str().unwrap();
    assert!(record["outcome"]["status"] == "failed" && reason.contains("of flash's output is 0, and "), "{reason}");
    let timings = record["timings"].as_array().unwrap();
    let names: Vec<&str> = timings.iter().map(|timing| timing["kernel"].as_str().unwrap()).collect();
    assert_eq!(names, ["flash", "flash-hopper"]);
    assert!(timings[1]["checked"].as_u64().unwrap() > timings[0]["checked"].as_u64().unwrap(), "beside flash's too");
    assert!(stderr(&output).contains("The check of flash-hopper beside flash failed: "), "{}", stderr(&output));
    // What it cannot do is refused, and never done by another kernel under its name.
    for (more, words) in [
        (["--dtype", "f16", "--head-dim", "128"], "it does bf16 with heads of 64 or 128"),
        (["--dtype", "bf16", "--head-dim", "96"], "it does bf16 with heads of 64 or 128"),
    ] {
        let record = records(&ask(&more)).remove(0);
        let reason = record["outcome"]["reason"].as_str().unwrap();
        assert!(record["outcome"]["status"] == "failed" && reason.contains(words), "{reason}");
    }
}
