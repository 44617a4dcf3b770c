//! The suite of all backends over threads, bare and metered, over what processes have, and over the communicator that moves nothing.

use crate::comm::harness::{BACKENDS, Backend, PATIENCE, rank_of};
use crate::conformance::{self, EXACT, SHAPES};
use crate::scope;
use std::sync::Arc;
use std::time::Duration;
use zbench_engine::comm::{Communicator, Metered, Null, group};
use zbench_engine::mesh::GroupName;
use zbench_kernels::{Cpu, Kernels};

/// Runs `rank` on one thread per rank, with the kernels that training uses.
fn run(backend: Backend, size: usize, stall: Duration, rank: impl Fn(Box<dyn Communicator>) + Sync) {
    let kernels: Vec<_> = (0..size).map(|_| Arc::new(Cpu::new(1)) as Arc<dyn Kernels>).collect();
    std::thread::scope(|scope| {
        let ranks = group("world", kernels.clone(), stall).unwrap().into_iter().zip(kernels);
        let rank = &rank;
        let threads: Vec<_> =
            ranks.map(|(local, kernels)| scope.spawn(move || rank(rank_of(backend, local, kernels, stall)))).collect();
        // The first panic is the cause; the others only heard of it.
        let panics: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().err()).collect();
        if let Some(panic) = panics.into_iter().next() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn conforms(size: usize) {
    for backend in BACKENDS {
        run(backend, size, PATIENCE, |comm| conformance::all(&*comm, &EXACT));
    }
}

#[test]
fn one_rank_conforms() {
    conforms(1);
}

#[test]
fn two_ranks_conform() {
    conforms(2);
}

#[test]
fn three_ranks_conform() {
    conforms(3);
}

#[test]
fn four_ranks_conform() {
    conforms(4);
}

#[test]
fn eight_ranks_conform() {
    if scope::cases("comm::conformance_local::eight_ranks_conform", 0, 1) == 1 {
        conforms(8);
    }
}

#[test]
fn groups_of_six_and_eight_ranks_conform() {
    for backend in BACKENDS {
        for size in [6, 8] {
            run(backend, size, PATIENCE, |comm| conformance::of_groups(&*comm, &EXACT));
        }
    }
}

#[test]
fn null_has_the_shapes_of_any_other() {
    for (rank, size) in [(0, 1), (0, 3), (2, 3), (5, 8)] {
        conformance::calls(&Null::new(rank, size), &SHAPES);
    }
    conformance::calls(&Metered::new(GroupName::Data, Box::new(Null::new(1, 4))), &SHAPES);
}

#[test]
fn groups_end_as_the_suite_says() {
    let stall = Duration::from_millis(500);
    let sizes = scope::cases("comm::conformance_local::groups_end_as_the_suite_says (sizes)", 2, 3) as usize;
    for &size in &[2, 3, 8][..sizes] {
        for backend in BACKENDS {
            run(backend, size, PATIENCE, |comm| conformance::leaves(comm, 1));
            run(backend, size, PATIENCE, |comm| conformance::aborts(&*comm, 1));
            run(backend, size, PATIENCE, |comm| conformance::mismatches(&*comm));
            run(backend, size, stall, |comm| conformance::stalls(&*comm, size - 1, stall));
        }
    }
}
