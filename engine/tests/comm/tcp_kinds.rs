//! What the suite of all backends leaves out: buffers of more than a mebibyte, and sums in the order of `local`.

use crate::comm::tcp::{patient, run};
use crate::conformance::{self, EXACT};
use half::bf16;
use zbench_collectives::{Call, Communicator, Kind, ReduceOp, Tcp, TcpOptions};
use zbench_kernels::{Cpu, Element, Kernels, View, ViewMut};
use zbench_test_tiers::{self as tiers, Tier, tier};

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
fn reductions<T: Value>(comm: &Tcp, op: ReduceOp, len: usize) {
    let (rank, size) = (comm.rank(), comm.size());
    let give = wild::<T>;
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

fn everything(sizes: &[usize], checksum: bool) {
    // The fast tier has long copies over two ranks; tcp_started.rs has long sums.
    for size in sizes {
        run(*size, &TcpOptions { checksum, ..patient() }, |comm| {
            for len in [3, 1009] {
                for op in ReduceOp::ALL {
                    reductions::<f32>(comm, op, len);
                    reductions::<bf16>(comm, op, len);
                    reductions::<i8>(comm, op, len);
                }
            }
            if tier() > Tier::Fast {
                reductions::<f32>(comm, ReduceOp::Sum, LONG);
                reductions::<bf16>(comm, ReduceOp::Max, LONG);
            }
            copies(comm, if tier() > Tier::Fast || *size == 2 { LONG } else { 1009 });
        });
    }
}

#[test]
fn large_and_exact_by_direct_exchange() {
    everything(&[2, 1, 4][..tiers::cases("comm::tcp_kinds::large_and_exact", [1, 2, 3]) as usize], false);
}

#[test]
fn large_and_exact_with_checksums() {
    everything(&[3], true);
}

/// Otherwise "bit for bit" would say nothing about the order of sums.
#[test]
fn the_orders_of_sums_differ() {
    let terms: Vec<Vec<f32>> = (0..4).map(|rank| wild(rank, 5000)).collect();
    let reversed: Vec<Vec<f32>> = terms[1..].iter().chain(&terms[..1]).cloned().collect();
    assert!(oracle::<f32, f32>(ReduceOp::Sum, &reversed, None) != oracle::<f32, f32>(ReduceOp::Sum, &terms, None));
    let all = run(4, &patient(), |comm| {
        let mut buffer: Vec<f32> = wild(comm.rank(), 5000);
        comm.all_reduce(ViewMut::of(&mut buffer)).unwrap();
        buffer
    });
    assert!(all.iter().all(|result| *result == all[0]), "all ranks have the same bits");
    assert!(all[0] == oracle::<f32, f32>(ReduceOp::Sum, &terms, None));
}

#[test]
fn reports_name_what_is_done() {
    run(3, &patient(), |comm| {
        let reduce = |op| comm.algorithm(Kind::AllReduce { op }, 1 << 20);
        assert_eq!((reduce(ReduceOp::Sum), reduce(ReduceOp::Avg)), ("direct", "direct"));
        let broadcast = |bytes| comm.algorithm(Kind::Broadcast { root: 0 }, bytes);
        assert_eq!((broadcast(100), broadcast(1 << 20)), ("tree", "chain"));
    });
}
