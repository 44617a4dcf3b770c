//! The suite of all backends over TCP.

use crate::comm::tcp::{attempt, cpu, patient, run};
use crate::conformance::{self, EXACT};
use crate::scope;
use std::time::Duration;
use zbench_engine::comm::{Communicator, Metered, Tcp, TcpOptions};
use zbench_engine::mesh::GroupName;

fn conforms(size: usize) {
    run(size, &patient(), |comm| conformance::all(comm, &EXACT));
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
fn three_ranks_conform_metered() {
    let metered = |comm: Tcp| conformance::all(&Metered::new(GroupName::Data, Box::new(comm)), &EXACT);
    attempt(3, &patient(), cpu, metered).into_iter().for_each(|rank| rank.unwrap());
}

#[test]
fn four_ranks_conform_with_checksums_over_one_socket() {
    let options = TcpOptions { checksum: true, sockets_per_peer: 1, ..patient() };
    run(4, &options, |comm| conformance::all(comm, &EXACT));
}

#[test]
fn eight_ranks_conform() {
    if scope::cases("comm::tcp_conformance::eight_ranks_conform", 0, 1) == 1 {
        conforms(8);
    }
}

#[test]
fn groups_of_six_and_eight_ranks_conform() {
    for size in [6, 8] {
        run(size, &patient(), |comm| conformance::of_groups(comm, &EXACT));
    }
}

#[test]
fn worlds_end_as_the_suite_says() {
    let stall = Duration::from_millis(600);
    let short = TcpOptions { stall, ..TcpOptions::default() };
    let well = |results: Vec<std::thread::Result<()>>| results.into_iter().for_each(|rank| rank.unwrap());
    let sizes = scope::cases("comm::tcp_conformance::worlds_end_as_the_suite_says (sizes)", 2, 3) as usize;
    for &size in &[2, 3, 8][..sizes] {
        well(attempt(size, &patient(), cpu, |comm| conformance::leaves(Box::new(comm), 1)));
        well(attempt(size, &patient(), cpu, |comm| conformance::aborts(&comm, 1)));
        well(attempt(size, &patient(), cpu, |comm| conformance::mismatches(&comm)));
        well(attempt(size, &short, cpu, |comm| conformance::stalls(&comm, comm.size() - 1, stall)));
    }
}
