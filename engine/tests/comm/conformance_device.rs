//! The suite over threads that share a device, whose queues do their work as late as they may: what reads before it was
//! written, or is written over before it was read, shows.

use crate::comm::harness::PATIENCE;
use crate::conformance::{self, EXACT};
use crate::device;
use std::sync::Arc;
use std::time::Duration;
use zbench_collectives::GroupName;
use zbench_collectives::nccl::{InOrder, Ordered};
use zbench_collectives::{Call, Communicator, HostStaged, Kind, Member, Metered, OwnedCall, Result, Ticket, group};
use zbench_kernels::memory::device::Event;
use zbench_kernels::{Arena, Cuda, Kernels};
use zbench_kernels_testing::Late;
use zbench_test_tiers as tiers;

fn run(late: bool, size: usize, stall: Duration, rank: impl Fn(Box<dyn Communicator>) + Sync) {
    run_over(late, size, stall, |local, _| local, rank);
}

/// `rank` over what is made of each rank's group and kernels.
fn run_over(
    late: bool,
    size: usize,
    stall: Duration,
    over: impl Fn(Box<dyn Communicator>, Arc<dyn Kernels>) -> Box<dyn Communicator> + Sync,
    rank: impl Fn(Box<dyn Communicator>) + Sync,
) {
    let machine = device::machine(|host| if late { Arc::new(Late(host.clone())) } else { Arc::new(host.clone()) });
    let of = |_| Arc::new(Cuda::new(machine.clone()).unwrap()) as Arc<dyn Kernels>;
    let kernels: Vec<_> = (0..size).map(of).collect();
    std::thread::scope(|scope| {
        let ranks = group("world", kernels.clone(), stall).unwrap().into_iter().zip(kernels);
        let (rank, over, machine) = (&rank, &over, &machine);
        let start = |(local, kernels): (_, Arc<dyn Kernels>)| {
            let arena = Arena::on(machine.clone(), None, 64 << 20).unwrap();
            scope.spawn(move || {
                let local = over(Box::new(local), kernels.clone());
                let carried: Box<dyn Communicator> = Box::new(HostStaged::new(local, kernels, arena));
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
    let cases = [2, 3, 1, 4].into_iter().flat_map(|size| [(size, true), (size, false)]);
    let cases: Vec<_> = cases.collect();
    let count = tiers::cases("comm::conformance_device::ranks_on_a_device_conform", [1, 2, 8]) as usize;
    for (size, late) in &cases[..count] {
        run(*late, *size, PATIENCE, |comm| conformance::all(&*comm, &EXACT));
    }
}

#[test]
fn groups_on_a_device_end_as_the_suite_says() {
    let stall = Duration::from_millis(500);
    let sizes =
        tiers::cases("comm::conformance_device::groups_on_a_device_end_as_the_suite_says (sizes)", [1, 1, 2]) as usize;
    for &size in &[3, 2][..sizes] {
        run(true, size, PATIENCE, |comm| conformance::leaves(comm, 1));
        run(true, size, PATIENCE, |comm| conformance::aborts(&*comm, 1));
        run(true, size, PATIENCE, |comm| conformance::mismatches(&*comm));
        run(true, size, stall, |comm| conformance::stalls(&*comm, size - 1, stall));
    }
}

/// A group in NCCL's place: its calls do not look at what the kernels were asked for, but at the event that they follow, and it
/// neither adds sums to what is there nor converts them.
struct Following(Box<dyn Communicator>);

impl InOrder for Following {
    fn follow(&self, event: Arc<dyn Event>) -> Result<()> {
        event.wait().map_err(|error| panic!("{error}"))
    }

    fn split_off(&self, color: usize, key: usize, name: &str) -> Result<Following> {
        Ok(Following(self.0.split(color, key, name)?))
    }
}

impl Communicator for Following {
    fn member(&self) -> Member {
        self.0.member()
    }

    fn algorithm(&self, kind: Kind, bytes: u64) -> &'static str {
        self.0.algorithm(kind, bytes)
    }

    fn call(&self, call: Call<'_>) -> Result<()> {
        self.0.call(call)
    }

    fn start(&self, request: OwnedCall) -> Result<Ticket> {
        assert!(!matches!(request.kind, Kind::ReduceScatter { accumulate: true, .. }));
        if let (Some(send), Some(recv)) = (&request.send, &request.recv) {
            assert_eq!(send.dtype(), recv.dtype());
        }
        self.0.start(request)
    }

    fn wait(&self, ticket: Ticket) -> Result<OwnedCall> {
        self.0.wait(ticket)
    }

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        self.0.split(color, key, name)
    }

    fn abort(&self, reason: &str) {
        self.0.abort(reason);
    }

    fn wire_bytes(&self) -> u64 {
        self.0.wire_bytes()
    }
}

#[test]
fn calls_in_the_order_of_kernels_conform() {
    let ordered = |local, kernels| Box::new(Ordered::new(Following(local), kernels)) as Box<dyn Communicator>;
    let cases = [(true, 2), (true, 3), (false, 3)];
    let count = tiers::cases("comm::conformance_device::calls_in_the_order_of_kernels_conform", [1, 2, 3]) as usize;
    for (late, size) in &cases[..count] {
        run_over(*late, *size, PATIENCE, ordered, |comm| conformance::all(&*comm, &EXACT));
    }
}
