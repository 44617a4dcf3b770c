//! The suite over threads that share a device, whose queues do their work as late as they may: what reads before it was
//! written, or is written over before it was read, shows.

use crate::comm::harness::PATIENCE;
use crate::conformance::{self, EXACT};
use crate::{device, scope};
use std::sync::Arc;
use std::time::Duration;
use zbench_engine::comm::{Communicator, HostStaged, Metered, group};
use zbench_engine::mesh::GroupName;
use zbench_kernels::{Arena, Cuda, Kernels};
use zbench_kernels_testing::Late;

fn run(late: bool, size: usize, stall: Duration, rank: impl Fn(Box<dyn Communicator>) + Sync) {
    let machine = device::machine(|host| if late { Arc::new(Late(host.clone())) } else { Arc::new(host.clone()) });
    let of = |_| Arc::new(Cuda::new(machine.clone()).unwrap()) as Arc<dyn Kernels>;
    let kernels: Vec<_> = (0..size).map(of).collect();
    std::thread::scope(|scope| {
        let ranks = group("world", kernels.clone(), stall).unwrap().into_iter().zip(kernels);
        let (rank, machine) = (&rank, &machine);
        let start = |(local, kernels)| {
            let arena = Arena::on(machine.clone(), None, 64 << 20).unwrap();
            scope.spawn(move || {
                let carried: Box<dyn Communicator> = Box::new(HostStaged::new(Box::new(local), kernels, arena));
                assert_eq!(carried.backend(), "device");
                rank(Box::new(Metered::new(GroupName::Data, carried)));
            })
        };
        let threads: Vec<_> = ranks.map(start).collect();
        // The first panic is the cause; the others only heard of it.
        let panics: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().err()).collect();
        if let Some(panic) = panics.into_iter().next() {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn ranks_on_a_device_conform() {
    let sizes = scope::cases("comm::conformance_device::ranks_on_a_device_conform (sizes)", 2, 4) as usize;
    for &size in &[2, 3, 1, 4][..sizes] {
        for late in [false, true] {
            run(late, size, PATIENCE, |comm| conformance::all(&*comm, &EXACT));
        }
    }
}

#[test]
fn groups_on_a_device_end_as_the_suite_says() {
    let stall = Duration::from_millis(500);
    let sizes =
        scope::cases("comm::conformance_device::groups_on_a_device_end_as_the_suite_says (sizes)", 1, 2) as usize;
    for &size in &[3, 2][..sizes] {
        run(true, size, PATIENCE, |comm| conformance::leaves(comm, 1));
        run(true, size, PATIENCE, |comm| conformance::aborts(&*comm, 1));
        run(true, size, PATIENCE, |comm| conformance::mismatches(&*comm));
        run(true, size, stall, |comm| conformance::stalls(&*comm, size - 1, stall));
    }
}
