//! Environment variables that have a say in how fast something runs, secrets left out and hosts hashed.

use serde_json::{Map, Value};
use zbench_reports::redact;

/// Beginnings of names that are recorded.
const BEGIN: [&str; 17] = [
    "ZBENCH_",
    "NCCL_",
    "CUDA_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "BLIS_",
    "OMPI_MCA_",
    "PMIX_MCA_",
    "UCX_",
    "FI_",
    "MPICH_",
    "I_MPI_",
    "MALLOC_",
    "RUST_",
];
/// Names that are recorded: the shape of a job, and what changes every program.
const NAMES: [&str; 20] = [
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS_ON_NODE",
    "SLURM_MEM_PER_NODE",
    "SLURM_CPU_BIND",
    "LD_PRELOAD",
    "GLIBC_TUNABLES",
    "GOMAXPROCS",
];
/// What one process of this program tells another; it says nothing about the machine, and differs every time.
const OURS: [&str; 6] =
    ["ZBENCH_PARENT", "ZBENCH_TOKEN", "ZBENCH_LAUNCHED", "ZBENCH_FOLLOW", "ZBENCH_LINE", "ZBENCH_LINE_TOKEN"];
/// What follows from how the tests are run.
const TESTS: &str = "ZBENCH_TEST_";
/// A longer value is cut off.
const MOST_CHARACTERS: usize = 300;

/// Whether a variable is recorded.
pub fn is_recorded(name: &str) -> bool {
    let is_ours = OURS.contains(&name) || name.starts_with(TESTS) || name.starts_with("RUST_TEST_");
    !is_ours && (NAMES.contains(&name) || BEGIN.iter().any(|begin| name.starts_with(begin)))
}

/// Of these variables those that are recorded, in the order of their names. `host` is this host's name.
pub fn recorded(variables: impl IntoIterator<Item = (String, String)>, host: &str) -> Map<String, Value> {
    let mut chosen: Vec<(String, String)> = variables.into_iter().filter(|(name, _)| is_recorded(name)).collect();
    chosen.sort();
    let value = |name: &str, value: &str| {
        let whole = redact::variable(name, value, host);
        match whole.char_indices().nth(MOST_CHARACTERS) {
            Some((end, _)) => format!("{}…", &whole[..end]),
            None => whole,
        }
    };
    chosen
        .into_iter()
        .map(|(name, text)| {
            let value = value(&name, &text);
            (name, value.into())
        })
        .collect()
}
