//! Results bit for bit, whatever kernels sum, and bytes exactly. What every backend has to give is in the suite of all.

use crate::comm::harness::{BACKENDS, Backend, PATIENCE, SIZES, run, values};
use crate::comm::tree::{Sample, rounded, tree_sum};
use half::{bf16, f16};
use std::ops::Range;
use std::sync::Arc;
use zbench_collectives::{Communicator, ONE_ROUND_BYTES, group};
use zbench_kernels::{Cpu, DType, Kernels, View, ViewMut};
use zbench_test_tiers as tiers;

/// Lengths of a part: none, one, odd ones, and enough for several blocks.
const LENGTHS: [usize; 6] = [0, 1, 3, 17, 1000, 9001];

/// All of them in the full tier, else the short ones: `buffers_of_many_blocks` is long.
fn lengths() -> &'static [usize] {
    &LENGTHS[..tiers::cases("comm::collectives (lengths)", [5, 5, 6]) as usize]
}

/// The elements of `range` of the sum of what every rank made from `seed`, by the rule.
fn summed<T: Sample, U: Sample>(
    seed: usize,
    size: usize,
    len: usize,
    range: Range<usize>,
    onto: Option<&[U]>,
) -> Vec<U> {
    let double = T::DTYPE == DType::F64 || U::DTYPE == DType::F64;
    let ranks: Vec<Vec<T>> = (0..size).map(|rank| values(seed + rank, len)).collect();
    let mut terms = vec![0.0; size];
    let sum = |i: usize| {
        terms.iter_mut().zip(&ranks).for_each(|(term, rank)| *term = rank[i].get());
        let total = tree_sum(&mut terms, double);
        rounded(onto.map_or(total, |old| tree_sum(&mut [old[i - range.start].get(), total], double)))
    };
    range.clone().map(sum).collect()
}

fn wire(comm: &dyn Communicator, call: impl FnOnce()) -> u64 {
    let before = comm.wire_bytes();
    call();
    comm.wire_bytes() - before
}

fn sums<T: Sample>(comm: &dyn Communicator, len: usize) {
    let (rank, size, bytes) = (comm.rank(), comm.size(), size_of::<T>());
    let part = rank * len..(rank + 1) * len;

    let mut recv = vec![T::of(0.0); len];
    let send: Vec<T> = values(rank, len * size);
    let moved = wire(comm, || comm.reduce_scatter(View::of(&send), ViewMut::of(&mut recv), false).unwrap());
    let own: Vec<T> = summed::<T, T>(0, size, len * size, part.clone(), None);
    assert_eq!(recv, own, "reduce_scatter of {} x {len} over {size}", T::DTYPE);
    assert_eq!(moved, ((size - 1) * len * bytes) as u64);
    assert_eq!(send, values::<T>(rank, len * size), "send is only read");

    let mut again: Vec<T> = values(1000 + rank, len);
    comm.reduce_scatter(View::of(&send), ViewMut::of(&mut again), true).unwrap();
    let old: Vec<T> = values(1000 + rank, len);
    assert_eq!(again, summed::<T, T>(0, size, len * size, part.clone(), Some(&old)), "accumulating");

    let mut wide = vec![0f32; len];
    comm.reduce_scatter(View::of(&send), ViewMut::of(&mut wide), false).unwrap();
    assert_eq!(wide, summed::<T, f32>(0, size, len * size, part.clone(), None), "into f32");

    let mut buffer = send.clone();
    let moved = wire(comm, || comm.reduce_scatter_in_place(ViewMut::of(&mut buffer)).unwrap());
    assert_eq!(buffer[part.clone()], own, "in place");
    assert_eq!(moved, ((size - 1) * len * bytes) as u64);
    buffer[part.clone()].copy_from_slice(&send[part.clone()]);
    assert_eq!(buffer, send, "the other parts stay");

    // All-reduce takes any length, so one that no size divides.
    let odd = (len * size).saturating_sub(usize::from(len > 1));
    let mut buffer: Vec<T> = values(rank, odd);
    let moved = wire(comm, || comm.all_reduce(ViewMut::of(&mut buffer)).unwrap());
    assert_eq!(buffer, summed::<T, T>(0, size, odd, 0..odd, None), "all_reduce of {} x {odd} over {size}", T::DTYPE);
    // Small ones in one round, in which a rank reads all others' buffers; else equal parts in multiples of 16: a rank reads
    // its own part from all others, and writes the sum to all others.
    let step = odd.div_ceil(size).next_multiple_of(16);
    let own = ((rank + 1) * step).min(odd) - (rank * step).min(odd);
    let crossed = if odd * bytes <= ONE_ROUND_BYTES { odd } else { 2 * own };
    assert_eq!(moved, ((size - 1) * crossed * bytes) as u64);
}

fn copies<T: Sample>(comm: &dyn Communicator, len: usize) {
    let (rank, size, bytes) = (comm.rank(), comm.size(), size_of::<T>());
    let others = ((size - 1) * len * bytes) as u64;
    let all: Vec<T> = (0..size).flat_map(|r| values::<T>(r, len)).collect();

    let send: Vec<T> = values(rank, len);
    let mut recv = vec![T::of(0.0); len * size];
    assert_eq!(wire(comm, || comm.all_gather(View::of(&send), ViewMut::of(&mut recv)).unwrap()), others);
    assert_eq!(recv, all, "all_gather of {} x {len} over {size}", T::DTYPE);

    let mut recv = vec![T::of(1.0); len * size];
    recv[rank * len..(rank + 1) * len].copy_from_slice(&send);
    assert_eq!(wire(comm, || comm.all_gather_in_place(ViewMut::of(&mut recv)).unwrap()), others);
    assert_eq!(recv, all, "in place");

    for root in 0..size {
        let mut buffer: Vec<T> = values(10 * root + rank, len);
        let moved = wire(comm, || comm.broadcast(ViewMut::of(&mut buffer), root).unwrap());
        assert_eq!(buffer, values::<T>(11 * root, len), "broadcast from {root} of {size}");
        assert_eq!(moved, if rank == root { 0 } else { (len * bytes) as u64 });
    }

    let send: Vec<T> = values(rank, len * size);
    let mut recv = vec![T::of(0.0); len * size];
    assert_eq!(wire(comm, || comm.all_to_all(View::of(&send), ViewMut::of(&mut recv)).unwrap()), others);
    let from = |r: usize| values::<T>(r, len * size)[rank * len..(rank + 1) * len].to_vec();
    assert_eq!(recv, (0..size).flat_map(from).collect::<Vec<T>>(), "all_to_all");

    // A ring: even ranks send first, so that nobody waits for itself; with an odd number, rank 0 starts.
    if size > 1 {
        let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);
        let send: Vec<T> = values(rank, len);
        let mut recv = vec![T::of(0.0); len];
        let give = || comm.send(View::of(&send), right).unwrap();
        if rank % 2 == 0 {
            give();
        }
        comm.recv(ViewMut::of(&mut recv), left).unwrap();
        if rank % 2 == 1 {
            give();
        }
        assert_eq!(recv, values::<T>(left, len), "from {left} to {rank}");
    }
    comm.barrier().unwrap();
}

fn everywhere(test: &str, suite: impl Fn(&dyn Communicator, usize) + Sync) {
    for [backend, size] in tiers::combinations(test, [BACKENDS.len(), SIZES.len()]) {
        run(BACKENDS[backend], SIZES[size], |comm| {
            assert_eq!(comm.size(), SIZES[size]);
            lengths().iter().for_each(|len| suite(comm, *len));
        });
    }
}

#[test]
fn sums_of_every_float_type_are_the_balanced_tree_bit_for_bit() {
    everywhere("comm::collectives::sums::<f32>", sums::<f32>);
    everywhere("comm::collectives::sums::<bf16>", sums::<bf16>);
    everywhere("comm::collectives::sums::<f16>", sums::<f16>);
}

#[test]
fn copies_of_every_type() {
    everywhere("comm::collectives::copies::<f32>", copies::<f32>);
    everywhere("comm::collectives::copies::<bf16>", copies::<bf16>);
    everywhere("comm::collectives::copies::<f16>", copies::<f16>);
    everywhere("comm::collectives::copies::<f64>", copies::<f64>);
    everywhere("comm::collectives::copies::<u32>", copies::<u32>);
}

#[test]
fn the_oracle_tells_orders_apart() {
    // Otherwise "bit for bit" would say nothing about the order.
    let len = 1000;
    let terms: Vec<Vec<f32>> = (0..4).map(|rank| values(rank, len)).collect();
    let in_a_row = |i: usize| terms.iter().fold(0f32, |sum, term| sum + term[i]);
    let tree: Vec<f32> = summed::<f32, f32>(0, 4, len, 0..len, None);
    assert!((0..len).any(|i| in_a_row(i) != tree[i]));
}

#[test]
fn inner_then_outer_equals_flat_for_powers_of_two() {
    for backend in BACKENDS {
        for (inner, outer) in [(2, 2), (2, 4), (4, 2)] {
            run(backend, inner * outer, |comm| {
                let rank = comm.rank();
                let row = comm.split(rank / inner, rank, "inner").unwrap();
                let column = comm.split(rank % inner, rank, "outer").unwrap();
                let len = 37 * inner * outer;
                let mut flat: Vec<f32> = values(rank, len);
                let mut nested = flat.clone();
                comm.all_reduce(ViewMut::of(&mut flat)).unwrap();
                row.reduce_scatter_in_place(ViewMut::of(&mut nested)).unwrap();
                let part = len / inner * row.rank()..len / inner * (row.rank() + 1);
                column.all_reduce(ViewMut::of(&mut nested[part])).unwrap();
                row.all_gather_in_place(ViewMut::of(&mut nested)).unwrap();
                assert_eq!(nested, flat);
            });
        }
    }
}

#[test]
fn buffers_of_many_blocks() {
    large(Backend::Local, 3, 150_001);
}

#[test]
fn buffers_that_go_past_the_caches() {
    if tiers::cases("comm::collectives::buffers_that_go_past_the_caches", [0, 1, 1]) == 0 {
        return;
    }
    // 8 MiB a part and more are written with streaming stores, at any alignment.
    large(Backend::Local, 2, (8 << 18) + 3);
}

fn large(backend: Backend, size: usize, len: usize) {
    run(backend, size, |comm| {
        let (rank, part) = (comm.rank(), comm.rank() * len..(comm.rank() + 1) * len);
        let send: Vec<f32> = values(rank, size * len);
        let own: Vec<f32> = summed::<f32, f32>(0, size, size * len, part.clone(), None);
        let mut recv = vec![0f32; len];
        comm.reduce_scatter(View::of(&send), ViewMut::of(&mut recv), false).unwrap();
        assert!(recv == own);
        let before = recv.clone();
        comm.reduce_scatter(View::of(&send), ViewMut::of(&mut recv), true).unwrap();
        let twice: Vec<f32> = summed::<f32, f32>(0, size, size * len, part.clone(), Some(&before));
        assert!(recv == twice);
        let mut buffer = send.clone();
        comm.all_reduce(ViewMut::of(&mut buffer)).unwrap();
        assert!(buffer[part] == own);
        let mut gathered = vec![0f32; size * len];
        comm.all_gather(View::of(&own), ViewMut::of(&mut gathered)).unwrap();
        assert!(gathered == buffer);
    });
}

#[test]
fn the_cpu_kernels_give_the_same_bits() {
    for size in tiers::some("comm::collectives::the_cpu_kernels_give_the_same_bits", SIZES, [3, 6]) {
        let kernels = (0..size).map(|_| Arc::new(Cpu::new(1)) as Arc<dyn Kernels>).collect();
        std::thread::scope(|scope| {
            for comm in group("cpu", kernels, PATIENCE).unwrap() {
                scope.spawn(move || {
                    lengths().iter().for_each(|len| {
                        sums::<f32>(&comm, *len);
                        sums::<bf16>(&comm, *len);
                    })
                });
            }
        });
    }
}
