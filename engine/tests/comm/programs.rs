//! Random programs over the backends whose ranks are threads here.

use crate::comm::harness::{Backend, run};
use crate::comm::program::{Program, execute};
use zbench_kernels::Arena;

fn all(backend: Backend, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let program = Program::new(seed);
        run(backend, program.ranks, |comm| execute(comm, &Arena::host(Some(64 << 20)).unwrap(), &program));
    }
}

#[test]
fn five_hundred_programs_of_threads() {
    all(Backend::Local, 0..500);
}

#[test]
fn five_hundred_programs_of_processes() {
    all(Backend::Shm, 500..1000);
}
