//! Environment variables that influence how fast something runs, without secrets and with hosts hashed.

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use zbench_reports::redact;

/// Names with these prefixes are recorded.
const PREFIXES: [&str; 17] = [
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
/// Names that are recorded: the shape of a job, and what influences every program.
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
/// Variables that one process of this program sets for another; they say nothing about the machine, and differ every time.
const INTERNAL: [&str; 7] = [
    "ZBENCH_PARENT",
    "ZBENCH_TOKEN",
    "ZBENCH_LAUNCHED",
    "ZBENCH_FOLLOW",
    "ZBENCH_LINE",
    "ZBENCH_LINE_TOKEN",
    "ZBENCH_LOG_FILE",
];
/// A longer value is cut off.
const MAX_CHARACTERS: usize = 300;

/// Whether a variable is recorded.
pub fn is_recorded(name: &str) -> bool {
    let has = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let is_left_out = INTERNAL.contains(&name) || has(&["ZBENCH_TEST_", "RUST_TEST_"]);
    !is_left_out && (NAMES.contains(&name) || has(&PREFIXES))
}

/// The variables that are recorded, sorted by name. `host` is this host's name.
pub fn recorded(variables: impl IntoIterator<Item = (String, String)>, host: &str) -> Map<String, Value> {
    let chosen: BTreeMap<String, String> = variables.into_iter().filter(|(name, _)| is_recorded(name)).collect();
    let redacted = chosen.into_iter().map(|(name, value)| {
        let mut value = redact::variable(&name, &value, host);
        if let Some((end, _)) = value.char_indices().nth(MAX_CHARACTERS) {
            value.replace_range(end.., "…");
        }
        (name, value.into())
    });
    redacted.collect()
}
