//! Several collectives under way: what the suite of all backends leaves out.

use crate::comm::harness::{Backend, PATIENCE, attempt, run, values};
use crate::comm::program::filled;
use crate::comm::tree::{Mood, tree_sum};
use std::sync::atomic::{AtomicBool, Ordering};
use zbench_collectives::{CommError, Communicator, Kind, OwnedCall, Ticket};
use zbench_kernels::{Arena, Buffer, ViewMut};

fn zeros(arena: &Arena, len: usize) -> Buffer {
    filled(arena, &vec![0f32; len])
}

fn slice(buffer: &Buffer) -> Vec<f32> {
    buffer.view().as_slice::<f32>().unwrap().to_vec()
}

fn sum(size: usize, seed: usize, len: usize) -> Vec<f32> {
    let ranks: Vec<Vec<f32>> = (0..size).map(|rank| values(seed + rank, len)).collect();
    (0..len).map(|i| tree_sum(&mut ranks.iter().map(|r| f64::from(r[i])).collect::<Vec<_>>(), false) as f32).collect()
}

/// Starts three kinds; `check` tells whether what comes back is right.
fn start(comm: &dyn Communicator, arena: &Arena, index: usize) -> Ticket {
    try_start(comm, arena, index).unwrap()
}

fn try_start(comm: &dyn Communicator, arena: &Arena, index: usize) -> Result<Ticket, CommError> {
    let (rank, size, len, seed) = (comm.rank(), comm.size(), 100 + 37 * index, 100 * index);
    let request = match index % 3 {
        0 => OwnedCall::all_gather(filled::<f32>(arena, &values(seed + rank, len)), zeros(arena, len * size)),
        1 => {
            let send = filled::<f32>(arena, &values(seed + rank, len * size));
            OwnedCall::reduce_scatter(send, zeros(arena, len), false)
        }
        _ => OwnedCall::all_reduce(filled::<f32>(arena, &values(seed + rank, len))),
    };
    comm.start(request)
}

fn check(comm: &dyn Communicator, index: usize, ticket: Ticket) {
    let (rank, size, len, seed) = (comm.rank(), comm.size(), 100 + 37 * index, 100 * index);
    let done = comm.wait(ticket).unwrap();
    match done.kind {
        Kind::AllGather => {
            assert_eq!(
                slice(done.recv.as_ref().unwrap()),
                (0..size).flat_map(|r| values::<f32>(seed + r, len)).collect::<Vec<_>>()
            );
        }
        Kind::ReduceScatter { .. } => {
            assert_eq!(slice(done.recv.as_ref().unwrap()), sum(size, seed, len * size)[rank * len..(rank + 1) * len]);
        }
        _ => assert_eq!(slice(done.recv.as_ref().unwrap()), sum(size, seed, len)),
    }
}

#[test]
fn blocking_calls_overtake_started_ones() {
    run(Backend::MeteredLocal, 4, |comm| {
        let arena = Arena::host(Some(1 << 20)).unwrap();
        let first = start(comm, &arena, 0);
        let mut buffer: Vec<f32> = values(comm.rank(), 33);
        comm.all_reduce(ViewMut::of(&mut buffer)).unwrap();
        assert_eq!(buffer, sum(4, 0, 33));
        let second = start(comm, &arena, 1);
        comm.barrier().unwrap();
        check(comm, 1, second);
        check(comm, 0, first);
    });
}

#[test]
fn wire_bytes_belong_to_the_collective_that_is_waited_for() {
    run(Backend::Local, 4, |comm| {
        let arena = Arena::host(Some(1 << 20)).unwrap();
        for turn in 0..50 {
            let (gather, scatter) = (start(comm, &arena, 0), start(comm, &arena, 1));
            let before = comm.wire_bytes();
            // Odd ranks wait the other way round, so that some make progress on the one they did not ask for.
            let mut moved = [0, 0];
            let mut tickets = [Some(gather), Some(scatter)];
            for i in 0..2 {
                let index = (i + comm.rank() + turn) % 2;
                let start = comm.wire_bytes();
                check(comm, index, tickets[index].take().unwrap());
                moved[index] = comm.wire_bytes() - start;
            }
            assert_eq!(moved, [3 * 100 * 4, 3 * 137 * 4]);
            assert_eq!(comm.wire_bytes() - before, moved[0] + moved[1]);
        }
    });
}

#[test]
fn a_ticket_that_is_dropped_ends_the_group() {
    // A small call of the last rank to come is complete when it starts, and nothing is owed by its ticket. So rank 1 comes first.
    let has_begun = AtomicBool::new(false);
    let results = attempt(Backend::MeteredLocal, &[Mood::Well; 3], PATIENCE, |comm| {
        let arena = Arena::host(Some(1 << 20)).unwrap();
        if comm.rank() == 1 {
            let started = try_start(&*comm, &arena, 0);
            has_begun.store(true, Ordering::Release);
            drop(started.unwrap());
            return comm.barrier().unwrap_err();
        }
        while !has_begun.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let started = try_start(&*comm, &arena, 0);
        // The end may come before the start; and a rank that has all it needs may complete before it: what rank 1 owed
        // to this operation is posted. It has no part in the next one.
        started.and_then(|ticket| comm.wait(ticket)).and_then(|_| comm.barrier()).unwrap_err()
    });
    for result in results {
        let error = result.unwrap();
        assert!(
            matches!(&error, CommError::Aborted { rank: 1, reason, .. } if reason.contains("did not wait")),
            "{error}"
        );
    }
}

#[test]
fn a_ticket_belongs_to_its_communicator() {
    run(Backend::Local, 1, |comm| {
        let arena = Arena::host(Some(1 << 20)).unwrap();
        let other = comm.split(0, 0, "other").unwrap();
        let ticket = start(&*other, &arena, 0);
        assert!(matches!(comm.wait(ticket).unwrap_err(), CommError::Invalid { operation: "wait", .. }));
    });
}
