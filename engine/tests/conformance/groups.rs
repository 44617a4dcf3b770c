//! Groups of groups, several collectives under way, and a rank that comes late.

use super::Options;
use super::oracle::reduced;
use super::sample::{Sample, values};
use half::bf16;
use std::time::Duration;
use zbench_collectives::{Communicator, Kind, OwnedCall, ReduceOp, Ticket};
use zbench_kernels::{Arena, Buffer, Category, View, ViewMut};

/// A suite of its own goes wrong: which backend, which rank, what was wanted.
fn good<T>(comm: &dyn Communicator, what: &str, result: Result<T, zbench_collectives::CommError>) -> T {
    result.unwrap_or_else(|error| panic!("{} {what}, rank {} of {}: {error}", comm.backend(), comm.rank(), comm.size()))
}

/// Everyone's number in the outer group, in the order of the inner one.
fn members(group: &dyn Communicator, own: usize) -> Vec<usize> {
    let mut all = vec![u32::MAX; group.size()];
    good(group, "all_gather of ranks", group.all_gather(View::of(&[own as u32]), ViewMut::of(&mut all)));
    all.into_iter().map(|rank| rank as usize).collect()
}

/// Rows and columns of every mesh that the ranks make, at work out of step with each other; and groups of groups.
pub fn rows_and_columns(comm: &dyn Communicator) {
    let (rank, size, backend) = (comm.rank(), comm.size(), comm.backend());
    for columns in (1..=size).filter(|columns| size.is_multiple_of(*columns)) {
        let rows = size / columns;
        let (y, x) = (rank / columns, rank % columns);
        let row = good(comm, "split", comm.split(y, x, "row"));
        let column = good(comm, "split", comm.split(x, y, "column"));
        let places = (row.rank(), row.size(), column.rank(), column.size());
        assert_eq!(places, (x, columns, y, rows), "{backend}: rank {rank} in a mesh of {rows} x {columns}");
        for turn in 0..6 {
            // All members of a row agree on the turn at which they work, and so do those of a column; rows and columns do not.
            if turn % 3 != 0 {
                let wanted: Vec<usize> = (0..columns).map(|x| y * columns + x).collect();
                assert_eq!(members(&*row, rank), wanted, "{backend}: row {y} of {rows} x {columns}");
            }
            if turn % 2 == 0 {
                let wanted: Vec<usize> = (0..rows).map(|y| y * columns + x).collect();
                assert_eq!(members(&*column, rank), wanted, "{backend}: column {x} of {rows} x {columns}");
            }
        }
        let sum = |group: &dyn Communicator| {
            let mut buffer = vec![1i32 << rank; 1000];
            good(group, "all_reduce", group.all_reduce(ViewMut::of(&mut buffer)));
            assert!(buffer.iter().all(|x| *x == buffer[0]), "{backend}: one value everywhere");
            buffer[0]
        };
        let of = |ranks: &mut dyn Iterator<Item = usize>| ranks.map(|rank| 1i32 << rank).sum::<i32>();
        assert_eq!(sum(&*row), of(&mut (0..columns).map(|x| y * columns + x)), "{backend}: rank {rank}'s row");
        assert_eq!(sum(&*column), of(&mut (0..rows).map(|y| y * columns + x)), "{backend}: rank {rank}'s column");
        let alone = good(comm, "split", row.split(row.rank(), 0, "alone"));
        assert_eq!((alone.rank(), alone.size()), (0, 1), "{backend}: a group of one");
        assert_eq!(sum(&*alone), 1 << rank);
        assert_eq!(sum(comm), of(&mut (0..size)), "{backend}: the whole group goes on");
    }
}

/// Members stand in the order of the key, then of the rank; colors and keys may be any numbers.
pub fn orders_of_keys(comm: &dyn Communicator) {
    let (rank, size, backend) = (comm.rank(), comm.size(), comm.backend());
    let reversed = good(comm, "split", comm.split(7, size - rank, "reversed"));
    assert_eq!(members(&*reversed, rank), (0..size).rev().collect::<Vec<_>>(), "{backend}: keys backwards");
    let odd_first = good(comm, "split", comm.split(1_000_000 + rank / 3, (rank + 1) % 2, "uneven"));
    let mut wanted: Vec<usize> = (0..size).filter(|other| other / 3 == rank / 3).collect();
    wanted.sort_by_key(|other| ((other + 1) % 2, *other));
    assert_eq!(members(&*odd_first, rank), wanted, "{backend}: uneven groups, odd ranks first");
    assert_eq!(odd_first.rank(), wanted.iter().position(|other| *other == rank).unwrap());
}

fn filled<T: Sample>(arena: &Arena, values: &[T]) -> Buffer {
    let mut buffer = arena.alloc(Category::Communication, T::DTYPE, values.len()).unwrap();
    buffer.view_mut().as_slice_mut::<T>().unwrap().copy_from_slice(values);
    buffer
}

fn length(index: usize) -> usize {
    100 + 3737 * index
}

/// Three kinds in turn.
fn start<T: Sample>(comm: &dyn Communicator, arena: &Arena, index: usize) -> Ticket {
    let (rank, size, len, seed) = (comm.rank(), comm.size(), length(index), index as u64);
    let request = match index % 3 {
        0 => OwnedCall::all_gather(
            filled::<T>(arena, &values(seed, rank, len, None)),
            filled::<T>(arena, &values(!seed, rank, len * size, None)),
        ),
        1 => OwnedCall::reduce_scatter(
            filled::<T>(arena, &values(seed, rank, len * size, None)),
            filled::<T>(arena, &values(!seed, rank, len, None)),
            false,
        ),
        _ => OwnedCall::all_reduce(filled::<T>(arena, &values(seed, rank, len, None))),
    };
    good(comm, "start", comm.start(request))
}

fn finish<T: Sample>(comm: &dyn Communicator, options: &Options, index: usize, ticket: Ticket) {
    let (rank, size, len, seed) = (comm.rank(), comm.size(), length(index), index as u64);
    let name = |kind: &str| format!("{} {kind} of {} number {index}, rank {rank}", comm.backend(), T::DTYPE);
    let summed = |range| reduced::<T, T>(options, ReduceOp::Sum, seed, size, range, None);
    let done = good(comm, "wait", comm.wait(ticket));
    let range = match done.kind {
        Kind::AllGather => {
            let wanted: Vec<T> = (0..size).flat_map(|peer| values::<T>(seed, peer, len, None)).collect();
            let recv = done.recv.as_ref().unwrap().view().as_slice::<T>().unwrap();
            let wrong = (0..wanted.len()).find(|i| recv[*i].bits() != wanted[*i].bits());
            return assert_eq!(wrong, None, "{}: first index that differs", name("all_gather"));
        }
        Kind::ReduceScatter { .. } => rank * len..(rank + 1) * len,
        _ => 0..len,
    };
    let (wanted, got) = (summed(range), done.recv.as_ref().unwrap().view().as_slice::<T>().unwrap());
    let wrong = (0..wanted.len()).find(|i| !wanted[*i].accepts(got[*i]));
    assert_eq!(wrong, None, "{}: first index that differs", name("sum"));
}

/// Six collectives of two types under way, waited for in order, backwards, mixed, and in an order of each rank's own, with calls
/// that overtake them.
pub fn in_flight(comm: &dyn Communicator, options: &Options) {
    let arena = Arena::host(Some(64 << 20)).unwrap();
    let rank = comm.rank();
    let own = std::array::from_fn(|i| (i + rank) % 6);
    let other_ways = if rank.is_multiple_of(2) { [0, 1, 2, 3, 4, 5] } else { [5, 4, 3, 2, 1, 0] };
    for order in [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [3, 0, 5, 1, 4, 2], own, other_ways] {
        let begin = |index: usize| {
            if index.is_multiple_of(2) { start::<f32>(comm, &arena, index) } else { start::<bf16>(comm, &arena, index) }
        };
        let mut tickets: Vec<Option<Ticket>> = (0..6).map(|index| Some(begin(index))).collect();
        let mut buffer = vec![1i32 << rank; 33];
        good(comm, "an overtaking all_reduce", comm.all_reduce(ViewMut::of(&mut buffer)));
        assert_eq!(buffer, vec![(1 << comm.size()) - 1; 33], "{}: overtaking", comm.backend());
        for index in order {
            let ticket = tickets[index].take().unwrap();
            if index.is_multiple_of(2) {
                finish::<f32>(comm, options, index, ticket);
            } else {
                finish::<bf16>(comm, options, index, ticket);
            }
        }
        assert_eq!(arena.ledger().live_total(), 0, "{}: every buffer came back", comm.backend());
    }
}

/// Every rank is the last one once.
pub fn one_rank_late(comm: &dyn Communicator) {
    for late in 0..comm.size() {
        if comm.rank() == late {
            std::thread::sleep(Duration::from_millis(30));
        }
        let mut buffer = vec![1i32; 1000];
        good(comm, "all_reduce with a late rank", comm.all_reduce(ViewMut::of(&mut buffer)));
        assert!(buffer.iter().all(|x| *x == comm.size() as i32), "{}: rank {late} late", comm.backend());
    }
}
