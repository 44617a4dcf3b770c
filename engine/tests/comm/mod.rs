//! One suite that every communicator has to pass: what it computes, what it moves, and how it ends when a rank fails.

mod collectives;
mod compose;
mod conformance_device;
mod conformance_local;
mod failures;
pub mod harness;
mod in_flight;
mod link;
mod meter;
mod program;
mod programs;
mod random;
mod rendezvous;
mod started;
mod tcp;
mod tcp_conformance;
mod tcp_faults;
mod tcp_kinds;
mod tcp_started;
mod tree;

macro_rules! at_once {
    ($($test:path),* $(,)?) => {
        [$((stringify!($test), $test as fn())),*]
    };
}

/// Tests that mostly wait for time limits run at the same time. The thread of a failed one has its name.
#[test]
fn what_waits_for_limits() {
    let tests = at_once![
        failures::a_stall_names_who_is_missing_on_all_ranks,
        tcp_faults::a_stall_names_who_is_missing_on_all_ranks,
        tcp_faults::a_sender_without_a_receiver_stalls,
        tcp_faults::a_process_that_is_stopped_stalls_the_others,
        rendezvous::a_taken_port_sends_all_to_the_next,
        rendezvous::strangers_are_refused_and_hold_up_nobody,
        rendezvous::a_squatter_learns_nothing_that_it_can_use_and_is_named,
        rendezvous::a_squatter_ends_no_launch_and_is_named,
        rendezvous::a_flood_of_strangers_ends_no_launch,
        rendezvous::another_version_is_named,
        rendezvous::who_never_came_is_named_to_all_who_did,
        rendezvous::a_rank_that_does_not_find_rank_0_says_where_it_looked,
    ];
    let started = tests.map(|(name, test)| std::thread::Builder::new().name(name.into()).spawn(test).unwrap());
    let ended = started.map(std::thread::JoinHandle::join);
    let failed: Vec<&str> =
        tests.iter().zip(ended).filter(|(_, end)| end.is_err()).map(|((name, _), _)| *name).collect();
    assert!(failed.is_empty(), "{failed:?}");
}
