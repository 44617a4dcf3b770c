//! Random programs over the backends whose ranks are threads here.

use crate::comm::harness::{Backend, run};
use crate::comm::program::{Program, execute};
use zbench_kernels::Arena;
use zbench_test_tiers as tiers;

fn all(test: &str, backend: Backend, first: u64) {
    for seed in first..first + u64::from(tiers::cases(test, [12, 100, 500])) {
        let program = Program::new(seed);
        run(backend, program.ranks, |comm| execute(comm, &Arena::host(Some(64 << 20)).unwrap(), &program));
    }
}

#[test]
fn random_programs_of_threads() {
    all("comm::programs::random_programs_of_threads", Backend::Local, 0);
}

#[test]
fn random_programs_of_processes() {
    all("comm::programs::random_programs_of_processes", Backend::Shm, 500);
}
