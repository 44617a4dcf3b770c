//! Real launchers, by ci/launchers: a SLURM of two nodes in network namespaces, Open MPI, MPICH, torchrun. As root, with the packages
//! that `.ci/run` installs; elsewhere a test states on standard error why it did not run, and under `ZBENCH_REQUIRE_NETNS` it fails.

use crate::support::{is_full_tier, root, stderr, stdout};
use std::io::Write;
use std::process::Command;

/// What keeps launchers from running here.
fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces need root".into());
    }
    if !Command::new("unshare").args(["--net", "true"]).output().is_ok_and(|output| output.status.success()) {
        return Some("unshare --net is refused".into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_absent = |tool: &&str| !std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    let absent = ["ip", "munged", "slurmd", "srun", "mpirun.openmpi", "mpiexec.hydra"].into_iter().find(is_absent);
    absent.map(|tool| format!("{tool} is not in PATH"))
}

/// The cells of ci/launchers/matrix.py that the arguments select are all as they should be.
fn matrix(test: &str, arguments: &[&str]) {
    if let Some(reason) = obstacle() {
        assert!(std::env::var_os("ZBENCH_REQUIRE_NETNS").is_none(), "{test} cannot run: {reason}");
        let _ = writeln!(std::io::stderr(), "SKIPPED launchers::{test}: {reason}");
        return;
    }
    let mut command = Command::new("python3");
    command.arg(root().join("ci/launchers/matrix.py")).args(["--zbench", env!("CARGO_BIN_EXE_zbench")]).args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
}

#[test]
fn a_cell_runs_under_srun_open_mpi_and_hydra() {
    let test = "a_cell_runs_under_srun_open_mpi_and_hydra";
    matrix(test, &["--launchers", "srun,mpirun,Hydra", "--commands", "run", "--situations", "normal", "--pairs", "0"]);
}

#[test]
fn every_command_runs_under_every_launcher_in_every_situation() {
    if is_full_tier() {
        matrix("every_command_runs_under_every_launcher_in_every_situation", &["--pairs", "3"]);
    }
}
