//! all_reduce, reduce and reduce_scatter.

use super::case::{Case, Guarded};
use super::oracle::reduced;
use super::sample::{Sample, values};
use super::{Options, roots};
use half::{bf16, f16};
use zbench_collectives::{Call, Communicator, Kind, ReduceOp};
use zbench_test_tiers::{Tier, tier};

pub const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];

pub fn all_reduce<T: Sample>(comm: &dyn Communicator, options: &Options, op: ReduceOp, len: usize) {
    let (rank, size, kind) = (comm.rank(), comm.size(), Kind::AllReduce { op });
    let case = Case::new::<T>(comm, kind, len, false);
    let seed = case.seed();
    let wanted = reduced::<T, T>(options, op, seed, size, 0..len, None);
    let own = values::<T>(seed, rank, len, Some(op));

    let send = Guarded::new(own.clone());
    let mut recv = Guarded::new(values::<T>(!seed, rank, len, None));
    case.done(comm.call(Call::new(kind, send.view(), recv.view_mut())));
    send.untouched(&case, "send");
    recv.holds(&case, options.moves, 0..len, &wanted);

    let case = Case { in_place: true, ..case };
    let mut recv = Guarded::new(own);
    case.done(comm.call(Call::in_place(kind, recv.view_mut())));
    recv.holds(&case, options.moves, 0..len, &wanted);
}

pub fn reduce<T: Sample>(comm: &dyn Communicator, options: &Options, op: ReduceOp, len: usize) {
    let (rank, size) = (comm.rank(), comm.size());
    let mut wanted = None;
    for root in roots(size, len) {
        let kind = Kind::Reduce { op, root };
        for in_place in [false, true] {
            let case = Case::new::<T>(comm, kind, len, in_place);
            let seed = case.seed();
            let send = Guarded::new(values::<T>(seed, rank, len, Some(op)));
            if rank != root {
                case.done(comm.call(Call::giving(kind, send.view())));
                send.untouched(&case, "send");
                continue;
            }
            let wanted = wanted.get_or_insert_with(|| reduced::<T, T>(options, op, seed, size, 0..len, None));
            if in_place {
                let mut recv = send;
                case.done(comm.call(Call::in_place(kind, recv.view_mut())));
                recv.holds(&case, options.moves, 0..len, wanted);
            } else {
                let mut recv = Guarded::new(values::<T>(!seed, rank, len, None));
                case.done(comm.call(Call::new(kind, send.view(), recv.view_mut())));
                send.untouched(&case, "send");
                recv.holds(&case, options.moves, 0..len, wanted);
            }
        }
    }
}

pub fn reduce_scatter<T: Sample>(comm: &dyn Communicator, options: &Options, op: ReduceOp, len: usize) {
    let (rank, size, kind) = (comm.rank(), comm.size(), Kind::ReduceScatter { op, accumulate: false });
    let case = Case::new::<T>(comm, kind, len, false);
    let seed = case.seed();
    let part = rank * len..(rank + 1) * len;
    let wanted = reduced::<T, T>(options, op, seed, size, part.clone(), None);
    let own = values::<T>(seed, rank, len * size, Some(op));

    let send = Guarded::new(own.clone());
    let mut recv = Guarded::new(values::<T>(!seed, rank, len, None));
    case.done(comm.call(Call::new(kind, send.view(), recv.view_mut())));
    send.untouched(&case, "send");
    recv.holds(&case, options.moves, 0..len, &wanted);

    let case = Case { in_place: true, ..case };
    let mut recv = Guarded::new(own);
    case.done(comm.call(Call::in_place(kind, recv.view_mut())));
    recv.holds(&case, options.moves, part, &wanted);
}

/// Sums and averages that are added to what is there, and results of another type than what travels.
pub fn mixed(comm: &dyn Communicator, options: &Options) {
    for op in [ReduceOp::Sum, ReduceOp::Avg] {
        for len in [0, 1, 17, 1000, 9001].into_iter().filter(|len| *len <= 1000 || tier() == Tier::Full) {
            scatter_into::<f32, f32>(comm, options, op, len, true);
            scatter_into::<f64, f64>(comm, options, op, len, true);
            for accumulate in [false, true] {
                scatter_into::<bf16, f32>(comm, options, op, len, accumulate);
                scatter_into::<f16, f32>(comm, options, op, len, accumulate);
                scatter_into::<f32, bf16>(comm, options, op, len, accumulate);
                scatter_into::<f64, f32>(comm, options, op, len, accumulate);
            }
        }
    }
}

fn scatter_into<T: Sample, U: Sample>(
    comm: &dyn Communicator,
    options: &Options,
    op: ReduceOp,
    len: usize,
    accumulate: bool,
) {
    let (rank, size, kind) = (comm.rank(), comm.size(), Kind::ReduceScatter { op, accumulate });
    let case = Case::new::<T>(comm, kind, len, false);
    let seed = case.seed();
    let send = Guarded::new(values::<T>(seed, rank, len * size, Some(op)));
    let old = values::<U>(!seed, rank, len, None);
    let mut recv = Guarded::new(old.clone());
    let result = comm.call(Call::new(kind, send.view(), recv.view_mut()));
    if !options.mixed {
        case.refused(result);
        return recv.untouched(&case, "recv");
    }
    case.done(result);
    send.untouched(&case, "send");
    let part = rank * len..(rank + 1) * len;
    let wanted = reduced::<T, U>(options, op, seed, size, part, accumulate.then_some(&*old));
    recv.holds(&case, options.moves, 0..len, &wanted);
}
