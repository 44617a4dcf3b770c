//! Random programs of collectives: every rank runs the same list, and each result is what the rules say.

use crate::comm::harness::{Backend, run};
use proptest::prelude::*;
use zbench_collectives::{Communicator, Kind, OwnedCall, Ticket};
use zbench_kernels::{Arena, View, ViewMut};
use zbench_test_tiers as tiers;

/// One line of a program; lengths are of a part.
#[derive(Clone, Debug)]
enum Line {
    AllReduce(usize),
    ReduceScatter(usize, bool),
    AllGather(usize),
    AllToAll(usize),
    Broadcast(usize, usize),
    Pass(usize, usize, usize),
    Barrier,
    Start(usize, u8),
    /// Waits for one of those under way, each rank for another one.
    WaitAny(usize),
    /// Runs the next sum in a sub-group of this many colors.
    Sub(usize, usize),
}

fn line() -> impl Strategy<Value = Line> {
    let len = 0usize..70;
    prop_oneof![
        len.clone().prop_map(Line::AllReduce),
        (len.clone(), any::<bool>()).prop_map(|(n, acc)| Line::ReduceScatter(n, acc)),
        len.clone().prop_map(Line::AllGather),
        len.clone().prop_map(Line::AllToAll),
        (len.clone(), 0usize..8).prop_map(|(n, root)| Line::Broadcast(n, root)),
        (len.clone(), 0usize..8, 0usize..8).prop_map(|(n, from, to)| Line::Pass(n, from, to)),
        Just(Line::Barrier),
        (len.clone(), 0u8..3).prop_map(|(n, kind)| Line::Start(n, kind)),
        (0usize..8).prop_map(Line::WaitAny),
        (len, 1usize..4).prop_map(|(n, colors)| Line::Sub(n, colors)),
    ]
}

/// Element `i` of what `rank` gives in line `at`: small whole numbers, so that every order of sums gives the same.
fn element(at: usize, rank: usize, i: usize) -> f32 {
    ((at * 31 + rank * 7 + i * 3) % 101) as f32 - 50.0
}

fn give(at: usize, rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| element(at, rank, i)).collect()
}

fn sum(at: usize, ranks: &[usize], i: usize) -> f32 {
    ranks.iter().map(|rank| element(at, *rank, i)).sum()
}

struct Started {
    at: usize,
    len: usize,
    ticket: Ticket,
}

fn finish(comm: &dyn Communicator, started: Started) {
    let (rank, size) = (comm.rank(), comm.size());
    let (all, len): (Vec<usize>, usize) = ((0..size).collect(), started.len);
    let done = comm.wait(started.ticket).unwrap();
    let wanted: Vec<f32> = match done.kind {
        Kind::AllGather => all.iter().flat_map(|r| give(started.at, *r, len)).collect(),
        Kind::ReduceScatter { .. } => (rank * len..(rank + 1) * len).map(|i| sum(started.at, &all, i)).collect(),
        _ => (0..len).map(|i| sum(started.at, &all, i)).collect(),
    };
    assert_eq!(done.recv.as_ref().unwrap().view().as_slice::<f32>().unwrap(), wanted);
}

fn execute(comm: &dyn Communicator, arena: &Arena, program: &[Line]) {
    let (rank, size) = (comm.rank(), comm.size());
    let all: Vec<usize> = (0..size).collect();
    let mut open: Vec<Started> = Vec::new();
    for (at, line) in program.iter().enumerate() {
        match *line {
            Line::AllReduce(len) => {
                let mut buffer = give(at, rank, len);
                comm.all_reduce(ViewMut::of(&mut buffer)).unwrap();
                assert_eq!(buffer, (0..len).map(|i| sum(at, &all, i)).collect::<Vec<_>>());
            }
            Line::ReduceScatter(len, accumulate) => {
                let (send, mut recv) = (give(at, rank, len * size), vec![1000f32; len]);
                comm.reduce_scatter(View::of(&send), ViewMut::of(&mut recv), accumulate).unwrap();
                let onto = if accumulate { 1000.0 } else { 0.0 };
                let part = rank * len..(rank + 1) * len;
                assert_eq!(recv, part.map(|i| onto + sum(at, &all, i)).collect::<Vec<_>>());
            }
            Line::AllGather(len) => {
                let mut whole = vec![0f32; len * size];
                comm.all_gather(View::of(&give(at, rank, len)), ViewMut::of(&mut whole)).unwrap();
                assert_eq!(whole, all.iter().flat_map(|r| give(at, *r, len)).collect::<Vec<_>>());
            }
            Line::AllToAll(len) => {
                let mut recv = vec![0f32; len * size];
                comm.all_to_all(View::of(&give(at, rank, len * size)), ViewMut::of(&mut recv)).unwrap();
                let part = |r: usize| (rank * len..(rank + 1) * len).map(move |i| element(at, r, i));
                assert_eq!(recv, all.iter().flat_map(|r| part(*r)).collect::<Vec<_>>());
            }
            Line::Broadcast(len, root) => {
                let mut buffer = give(at, rank, len);
                comm.broadcast(ViewMut::of(&mut buffer), root % size).unwrap();
                assert_eq!(buffer, give(at, root % size, len));
            }
            Line::Pass(len, from, to) => {
                let (from, to) = (from % size, to % size);
                if from != to && rank == from {
                    comm.send(View::of(&give(at, rank, len)), to).unwrap();
                } else if from != to && rank == to {
                    let mut buffer = vec![0f32; len];
                    comm.recv(ViewMut::of(&mut buffer), from).unwrap();
                    assert_eq!(buffer, give(at, from, len));
                }
            }
            Line::Barrier => comm.barrier().unwrap(),
            Line::Start(len, kind) => {
                let filled = |len| crate::comm::program::filled(arena, &give(at, rank, len));
                let request = match kind {
                    0 => OwnedCall::all_reduce(filled(len)),
                    1 => OwnedCall::reduce_scatter(filled(len * size), filled(len), false),
                    _ => OwnedCall::all_gather(filled(len), filled(len * size)),
                };
                open.push(Started { at, len, ticket: comm.start(request).unwrap() });
            }
            Line::WaitAny(choice) if !open.is_empty() => {
                let index = (choice + rank) % open.len();
                finish(comm, open.swap_remove(index));
            }
            Line::WaitAny(_) => {}
            Line::Sub(len, colors) => {
                let group = comm.split(rank % colors, 0, "sub").unwrap();
                let mut buffer = give(at, rank, len);
                group.all_reduce(ViewMut::of(&mut buffer)).unwrap();
                let ranks: Vec<usize> = all.iter().copied().filter(|r| r % colors == rank % colors).collect();
                assert_eq!(buffer, (0..len).map(|i| sum(at, &ranks, i)).collect::<Vec<_>>());
            }
        }
    }
    open.into_iter().for_each(|started| finish(comm, started));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(tiers::cases("comm::random::random_programs", [40, 150, 150])))]

    #[test]
    fn random_programs(size in 1usize..=8, metered: bool, program in prop::collection::vec(line(), 1..25)) {
        let backend = if metered { Backend::MeteredLocal } else { Backend::Local };
        run(backend, size, |comm| {
            let arena = Arena::host(Some(16 << 20)).unwrap();
            execute(comm, &arena, &program);
            assert_eq!(arena.ledger().live_total(), 0);
        });
    }
}
