//! The suite of all backends over threads, bare and metered, over what processes have, and over the communicator that moves nothing.

use crate::comm::harness::{BACKENDS, Backend, PATIENCE, rank_of};
use crate::conformance::{self, EXACT, SHAPES};
use std::sync::Arc;
use std::time::Duration;
use zbench_collectives::GroupName;
use zbench_collectives::{Communicator, Metered, Null, group};
use zbench_kernels::{Cpu, Kernels};
use zbench_test_tiers as tiers;

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

/// Of more ranks, in the full tier, eight.
#[test]
fn one_to_four_ranks_conform() {
    let test = "comm::conformance_local::one_to_four_ranks_conform";
    let sizes = [2, 3, 4, 1, 8];
    let sizes = &sizes[..tiers::cases(&format!("{test} (sizes)"), [2, 3, 5]) as usize];
    for [size, backend] in tiers::combinations(test, [sizes.len(), BACKENDS.len()]) {
        run(BACKENDS[backend], sizes[size], PATIENCE, |comm| conformance::all(&*comm, &EXACT));
    }
}

#[test]
fn groups_of_six_and_eight_ranks_conform() {
    let test = "comm::conformance_local::groups_of_six_and_eight_ranks_conform";
    let all = BACKENDS.into_iter().rev().flat_map(|backend| [(backend, 6), (backend, 8)]);
    for (backend, size) in tiers::some(test, all, [1, 3]) {
        run(backend, size, PATIENCE, |comm| conformance::of_groups(&*comm, &EXACT));
    }
}

#[test]
fn null_has_the_shapes_of_any_other() {
    let places = [(2, 3), (0, 1), (0, 3), (5, 8)];
    for (rank, size) in tiers::some("comm::conformance_local::null_has_the_shapes_of_any_other", places, [1, 4]) {
        conformance::calls(&Null::new(rank, size), &SHAPES);
    }
    if tiers::cases("comm::conformance_local::null_has_the_shapes_of_any_other (metered)", [0, 1, 1]) == 1 {
        conformance::calls(&Metered::new(GroupName::Data, Box::new(Null::new(1, 4))), &SHAPES);
    }
}

#[test]
fn groups_end_as_the_suite_says() {
    let stall = Duration::from_millis(500);
    let sizes = tiers::cases("comm::conformance_local::groups_end_as_the_suite_says (sizes)", [2, 2, 3]) as usize;
    let cases = [2, 3, 8][..sizes].iter().flat_map(|size| BACKENDS.map(|backend| (*size, backend)));
    // Most of it is waiting for limits, so all wait at once.
    std::thread::scope(|scope| {
        for (size, backend) in cases {
            scope.spawn(move || {
                run(backend, size, PATIENCE, |comm| conformance::leaves(comm, 1));
                run(backend, size, PATIENCE, |comm| conformance::aborts(&*comm, 1));
                run(backend, size, PATIENCE, |comm| conformance::mismatches(&*comm));
                run(backend, size, stall, |comm| conformance::stalls(&*comm, size - 1, stall));
            });
        }
    });
}
