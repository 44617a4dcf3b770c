//! What the suite of all backends leaves out: buffers of more than a mebibyte by each algorithm, sums and products that have to
//! be exact in every order, and how the algorithms differ.

use crate::comm::tcp::{patient, run};
use crate::conformance::{self, EXACT};
use half::bf16;
use zbench_engine::comm::{Algorithm, Call, Communicator, Kind, ReduceOp, Tcp, TcpOptions};
use zbench_kernels::{Cpu, Element, Kernels, View, ViewMut};

/// More than a mebibyte, and no multiple of anything.
const LONG: usize = 300_007;

trait Value: Element + PartialEq + std::fmt::Debug + Send + Sync {
    fn of(value: f64) -> Self;
}

macro_rules! values {
    ($($t:ty: $of:expr;)*) => { $(impl Value for $t { fn of(value: f64) -> Self { $of(value) } })* };
}
values! {
    f32: |v| v as f32;
    bf16: bf16::from_f64;
    i8: |v: f64| v as i64 as i8;
}

/// Numbers of very different size and both signs, so that another order of sums gives other bits.
fn wild<T: Value>(seed: usize, len: usize) -> Vec<T> {
    crate::comm::harness::values::<f64>(seed, len).into_iter().map(T::of).collect()
}

/// Numbers whose sums and products are exact in every type, whatever their order.
fn exact<T: Value>(op: ReduceOp, seed: usize, len: usize) -> Vec<T> {
    let few = |i: usize| ((i * 7 + seed * 13 + i * i % 11) % 17) as f64 - 8.0;
    let factor = |i: usize| [1.0, -1.0, 2.0][(i + seed * 5 + i / 3) % 3];
    (0..len).map(|i| T::of(if op == ReduceOp::Prod { factor(i) } else { few(i) })).collect()
}

/// What the kernels make of all ranks' summands in rank order.
fn oracle<T: Value, U: Value>(op: ReduceOp, terms: &[Vec<T>], onto: Option<&[U]>) -> Vec<U> {
    let mut out = onto.map_or_else(|| vec![U::of(0.0); terms[0].len()], <[U]>::to_vec);
    let sources: Vec<View<'_>> = terms.iter().map(|term| View::of(term)).collect();
    Cpu::new(1).reduce(op, &sources, onto.is_some(), ViewMut::of(&mut out)).unwrap();
    out
}

fn call(comm: &Tcp, kind: Kind, send: Option<View<'_>>, recv: Option<ViewMut<'_>>) {
    comm.call(Call { kind, send, recv }).unwrap();
}

/// Reductions of one type and operation, where a part has `len` elements.
fn reductions<T: Value>(comm: &Tcp, direct: bool, op: ReduceOp, len: usize) {
    let (rank, size) = (comm.rank(), comm.size());
    let give = |seed: usize, len: usize| if direct { wild::<T>(seed, len) } else { exact(op, seed, len) };
    let what = format!("{op} of {} {} over {size} ranks", len, T::DTYPE);

    // All-reduce and reduce take any length.
    for len in [len, len * size] {
        let terms: Vec<Vec<T>> = (0..size).map(|rank| give(rank, len)).collect();
        let wanted: Vec<T> = oracle(op, &terms, None);
        let mut buffer = terms[rank].clone();
        call(comm, Kind::AllReduce { op }, None, Some(ViewMut::of(&mut buffer)));
        assert!(buffer == wanted, "all_reduce in place: {what}");
        let mut buffer = vec![T::of(5.0); len];
        call(comm, Kind::AllReduce { op }, Some(View::of(&terms[rank])), Some(ViewMut::of(&mut buffer)));
        assert!(buffer == wanted, "all_reduce: {what}");
        let root = len % size;
        let kind = Kind::Reduce { op, root };
        if rank == root {
            let mut own = terms[rank].clone();
            call(comm, kind, None, Some(ViewMut::of(&mut own)));
            assert!(own == wanted, "reduce in place: {what}");
            call(comm, kind, Some(View::of(&terms[rank])), Some(ViewMut::of(&mut buffer)));
            assert!(buffer == wanted, "reduce: {what}");
        } else {
            call(comm, kind, Some(View::of(&terms[rank])), None);
            call(comm, kind, Some(View::of(&terms[rank])), None);
        }
        assert!(terms[rank] == give(rank, len), "send is only read: {what}");
    }

    let terms: Vec<Vec<T>> = (0..size).map(|rank| give(rank + 50, len * size)).collect();
    let part = rank * len..(rank + 1) * len;
    let parts: Vec<Vec<T>> = terms.iter().map(|term| term[part.clone()].to_vec()).collect();
    let wanted: Vec<T> = oracle(op, &parts, None);
    let kind = |accumulate| Kind::ReduceScatter { op, accumulate };
    let mut buffer = terms[rank].clone();
    call(comm, kind(false), None, Some(ViewMut::of(&mut buffer)));
    assert!(buffer[part.clone()] == wanted, "reduce_scatter in place: {what}");
    buffer[part.clone()].copy_from_slice(&terms[rank][part]);
    assert!(buffer == terms[rank], "the other parts stay: {what}");
    let mut recv = vec![T::of(3.0); len];
    call(comm, kind(false), Some(View::of(&terms[rank])), Some(ViewMut::of(&mut recv)));
    assert!(recv == wanted, "reduce_scatter: {what}");
    if T::DTYPE.is_float() && matches!(op, ReduceOp::Sum | ReduceOp::Avg) {
        let old = give(90 + rank, len);
        let mut recv = old.clone();
        call(comm, kind(true), Some(View::of(&terms[rank])), Some(ViewMut::of(&mut recv)));
        assert!(recv == oracle(op, &parts, Some(&old)), "accumulating: {what}");
        let mut wide = vec![0f32; len];
        call(comm, kind(false), Some(View::of(&terms[rank])), Some(ViewMut::of(&mut wide)));
        assert!(wide == oracle::<T, f32>(op, &parts, None), "into f32: {what}");
    }
}

/// What only moves, where a part has `len` elements; and that each byte of another rank crosses once.
fn copies(comm: &Tcp, len: usize) {
    let size = comm.size();
    conformance::moves_of_parts::<f32>(comm, &EXACT, len);
    conformance::moves_of_wholes::<f32>(comm, &EXACT, len * size);
    let (send, mut recv) = (wild::<f32>(comm.rank(), len), vec![0f32; len * size]);
    let gathers = comm.wire_bytes();
    call(comm, Kind::AllGather, Some(View::of(&send)), Some(ViewMut::of(&mut recv)));
    call(comm, Kind::AllGather, None, Some(ViewMut::of(&mut recv)));
    assert_eq!(comm.wire_bytes() - gathers, (2 * (size - 1) * len * size_of::<f32>()) as u64, "over {size}");
    comm.barrier().unwrap();
}

fn everything(algorithm: Option<Algorithm>, sizes: &[usize], checksum: bool) {
    let direct = algorithm.is_none_or(|algorithm| algorithm == Algorithm::Direct);
    for size in sizes {
        run(*size, &TcpOptions { algorithm, checksum, ..patient() }, |comm| {
            for len in [3, 1009] {
                for op in ReduceOp::ALL {
                    // Averages are direct whatever is asked for.
                    let direct = direct || op == ReduceOp::Avg;
                    reductions::<f32>(comm, direct, op, len);
                    reductions::<bf16>(comm, direct, op, len);
                    reductions::<i8>(comm, direct, op, len);
                }
            }
            reductions::<f32>(comm, direct, ReduceOp::Sum, LONG);
            reductions::<bf16>(comm, direct, ReduceOp::Max, LONG);
            copies(comm, LONG);
        });
    }
}

#[test]
fn large_and_exact_by_direct_exchange() {
    everything(None, &[1, 2, 4], false);
}

#[test]
fn large_and_exact_by_rings() {
    everything(Some(Algorithm::Ring), &[1, 2, 3, 8], false);
}

#[test]
fn large_and_exact_by_halving_and_doubling() {
    everything(Some(Algorithm::Recursive), &[2, 4, 5], false);
}

#[test]
fn large_and_exact_with_checksums() {
    everything(None, &[3], true);
}

/// Otherwise "bit for bit" would say nothing about the order of sums, nor the other algorithms be any different.
#[test]
fn the_orders_of_sums_differ() {
    let sum = |algorithm| {
        let all = run(4, &TcpOptions { algorithm: Some(algorithm), ..patient() }, |comm| {
            let mut buffer: Vec<f32> = wild(comm.rank(), 5000);
            comm.all_reduce(ViewMut::of(&mut buffer)).unwrap();
            buffer
        });
        assert!(all.iter().all(|result| *result == all[0]), "all ranks have the same bits");
        all[0].clone()
    };
    let terms: Vec<Vec<f32>> = (0..4).map(|rank| wild(rank, 5000)).collect();
    assert!(sum(Algorithm::Direct) == oracle::<f32, f32>(ReduceOp::Sum, &terms, None));
    assert!(sum(Algorithm::Direct) != sum(Algorithm::Ring));
}

#[test]
fn reports_name_what_is_done() {
    run(3, &TcpOptions { algorithm: Some(Algorithm::Recursive), ..patient() }, |comm| {
        let reduce = |op| comm.algorithm(Kind::AllReduce { op }, 1 << 20);
        assert_eq!((reduce(ReduceOp::Sum), reduce(ReduceOp::Avg)), ("recursive", "direct"));
        assert_eq!(comm.algorithm(Kind::AllGather, 1 << 20), "direct", "three ranks cannot double");
        let broadcast = |bytes| comm.algorithm(Kind::Broadcast { root: 0 }, bytes);
        assert_eq!((broadcast(100), broadcast(1 << 20)), ("tree", "chain"));
    });
}
