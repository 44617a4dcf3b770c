//! Calls that do not fit are refused on the rank that makes them, nothing is posted, and the group goes on.

use super::Options;
use super::case::{Case, Guarded};
use super::sample::values;
use zbench_collectives::{Call, CommError, Communicator, Kind, OwnedCall, ReduceOp};
use zbench_kernels::{Arena, Category, DType};

const OP: ReduceOp = ReduceOp::Sum;

/// First every rank makes all the bad calls, then one rank alone makes them; after each round the group must work.
pub fn all(comm: &dyn Communicator, options: &Options) {
    for culprit in [None, Some(0), Some(comm.size() - 1)] {
        if culprit.is_none_or(|rank| rank == comm.rank()) {
            shapes(comm);
            roots_and_peers(comm);
            missing(comm);
            requests(comm);
        }
        if options.moves {
            super::reductions::all_reduce::<i32>(comm, options, OP, 17);
        }
        let case = Case::new::<f32>(comm, Kind::Barrier, 0, false);
        case.done(comm.barrier());
    }
}

/// A call with a `send` of one length and a `recv` of another is refused, and changes neither.
fn refused(comm: &dyn Communicator, kind: Kind, send: Option<usize>, recv: Option<usize>) {
    let case = Case::new::<f32>(comm, kind, send.or(recv).unwrap_or(0), send.is_none());
    let given = send.map(|len| Guarded::new(values::<f32>(1, 0, len, None)));
    let mut taken = recv.map(|len| Guarded::new(values::<f32>(2, 0, len, None)));
    let call = Call {
        kind,
        send: given.as_ref().map(|buffer| buffer.view()),
        recv: taken.as_mut().map(|buffer| buffer.view_mut()),
    };
    case.refused(comm.call(call));
    given.iter().for_each(|buffer| buffer.untouched(&case, "send"));
    taken.iter().for_each(|buffer| buffer.untouched(&case, "recv"));
}

fn shapes(comm: &dyn Communicator) {
    let (rank, size) = (comm.rank(), comm.size());
    refused(comm, Kind::AllReduce { op: OP }, Some(10), Some(11));
    refused(comm, Kind::Reduce { op: OP, root: rank }, Some(10), Some(11));
    refused(comm, Kind::ReduceScatter { op: OP, accumulate: false }, Some(3 * size + 1), Some(3));
    refused(comm, Kind::AllGather, Some(3), Some(3 * size + 1));
    refused(comm, Kind::Gather { root: rank }, Some(3), Some(3 * size + 1));
    refused(comm, Kind::Scatter { root: rank }, Some(3 * size + 1), Some(3));
    refused(comm, Kind::Broadcast { root: rank }, Some(3), Some(4));
    refused(comm, Kind::AllToAll, Some(size), Some(2 * size));
    if size > 1 {
        refused(comm, Kind::ReduceScatter { op: OP, accumulate: false }, None, Some(3 * size + 1));
        refused(comm, Kind::AllGather, None, Some(3 * size + 1));
        refused(comm, Kind::AllToAll, None, Some(3 * size + 1));
    }
    refused(comm, Kind::ReduceScatter { op: ReduceOp::Max, accumulate: true }, Some(3 * size), Some(3));
    let (send, mut recv) = (vec![1i32; size], vec![1i8; size]);
    let case = Case::new::<i32>(comm, Kind::AllToAll, size, false);
    case.refused(comm.call(Call::new(
        case.kind,
        zbench_kernels::View::of(&send),
        zbench_kernels::ViewMut::of(&mut recv),
    )));
}

fn roots_and_peers(comm: &dyn Communicator) {
    let (rank, size) = (comm.rank(), comm.size());
    for root in [size, usize::MAX] {
        refused(comm, Kind::Broadcast { root }, None, Some(3));
        refused(comm, Kind::Reduce { op: OP, root }, Some(3), None);
        refused(comm, Kind::Gather { root }, Some(3), None);
        refused(comm, Kind::Scatter { root }, None, Some(3));
    }
    for peer in [rank, size] {
        refused(comm, Kind::Send { to: peer }, Some(3), None);
        refused(comm, Kind::Recv { from: peer }, None, Some(3));
        refused(comm, Kind::SendRecv { to: peer, from: peer }, Some(3), Some(3));
    }
}

fn missing(comm: &dyn Communicator) {
    let (rank, size) = (comm.rank(), comm.size());
    for kind in [
        Kind::AllReduce { op: OP },
        Kind::ReduceScatter { op: OP, accumulate: false },
        Kind::AllGather,
        Kind::Broadcast { root: rank },
        Kind::Reduce { op: OP, root: rank },
        Kind::Gather { root: rank },
        Kind::AllToAll,
    ] {
        refused(comm, kind, Some(size), None);
    }
    refused(comm, Kind::Scatter { root: rank }, None, Some(size));
    if size > 1 {
        let other = (rank + 1) % size;
        refused(comm, Kind::Reduce { op: OP, root: other }, None, None);
        refused(comm, Kind::Gather { root: other }, None, None);
        refused(comm, Kind::Scatter { root: other }, None, None);
        refused(comm, Kind::Send { to: other }, None, None);
        refused(comm, Kind::Recv { from: other }, None, None);
        refused(comm, Kind::SendRecv { to: other, from: other }, Some(3), None);
    }
}

fn requests(comm: &dyn Communicator) {
    let arena = Arena::host(Some(1 << 20)).unwrap();
    let buffer = |dtype, len| arena.alloc(Category::Communication, dtype, len).unwrap();
    let size = comm.size();
    for request in [
        OwnedCall::all_gather(buffer(DType::F32, 3), buffer(DType::F32, 3 * size + 1)),
        OwnedCall::all_gather(buffer(DType::F32, 3), buffer(DType::Bf16, 3 * size)),
        OwnedCall::reduce_scatter(buffer(DType::I32, 3 * size), buffer(DType::I32, 3), true),
    ] {
        match comm.start(request) {
            Err(CommError::Invalid { .. }) => {}
            other => panic!("{}: a request that does not fit gave {other:?}", comm.backend()),
        }
    }
    assert_eq!(arena.ledger().live_total(), 0, "{}: a refused request frees its buffers", comm.backend());
}
