//! The suite of all backends over TCP.

use crate::comm::tcp::{attempt, cpu, patient, run};
use crate::conformance::{self, EXACT};
use std::time::Duration;
use zbench_collectives::GroupName;
use zbench_collectives::{Communicator, Metered, Tcp, TcpOptions};
use zbench_test_tiers as tiers;

/// Three ranks are metered, four have checksums over one socket.
#[test]
fn worlds_of_one_to_four_ranks_conform() {
    let sizes = [2, 1, 3, 4, 8];
    let count = tiers::cases("comm::tcp_conformance::worlds_of_one_to_four_ranks_conform", [1, 4, 5]);
    for &size in &sizes[..count as usize] {
        let options = match size {
            4 => TcpOptions { checksum: true, sockets_per_peer: 1, ..patient() },
            _ => patient(),
        };
        let conforms = |comm: Tcp| match size {
            3 => conformance::all(&Metered::new(GroupName::Data, Box::new(comm)), &EXACT),
            _ => conformance::all(&comm, &EXACT),
        };
        attempt(size, &options, cpu, conforms).into_iter().for_each(|rank| rank.unwrap());
    }
}

#[test]
fn groups_of_six_and_eight_ranks_conform() {
    for size in tiers::some("comm::tcp_conformance::groups_of_six_and_eight_ranks_conform", [6, 8], [1, 2]) {
        run(size, &patient(), |comm| conformance::of_groups(comm, &EXACT));
    }
}

#[test]
fn worlds_end_as_the_suite_says() {
    let stall = Duration::from_millis(600);
    let short = TcpOptions { stall, ..TcpOptions::default() };
    let well = |results: Vec<std::thread::Result<()>>| results.into_iter().for_each(|rank| rank.unwrap());
    let sizes = tiers::cases("comm::tcp_conformance::worlds_end_as_the_suite_says (sizes)", [2, 2, 3]) as usize;
    // Most of it is waiting for limits, so all wait at once.
    std::thread::scope(|scope| {
        for &size in &[2, 3, 8][..sizes] {
            let short = &short;
            scope.spawn(move || {
                well(attempt(size, &patient(), cpu, |comm| conformance::leaves(Box::new(comm), 1)));
                well(attempt(size, &patient(), cpu, |comm| conformance::aborts(&comm, 1)));
                well(attempt(size, &patient(), cpu, |comm| conformance::mismatches(&comm)));
                well(attempt(size, short, cpu, |comm| conformance::stalls(&comm, comm.size() - 1, stall)));
            });
        }
    });
}
