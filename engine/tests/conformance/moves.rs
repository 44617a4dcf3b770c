//! all_gather, gather, scatter, all_to_all and broadcast: what arrives is what was sent, bit for bit.

use super::case::{Case, Guarded};
use super::sample::{Sample, value, values};
use super::{Options, roots};
use zbench_collectives::{Call, Communicator, Kind};

/// All ranks' parts, in rank order.
fn gathered<T: Sample>(seed: u64, size: usize, len: usize) -> Vec<T> {
    (0..size).flat_map(|rank| values::<T>(seed, rank, len, None)).collect()
}

/// Part `index` of what `rank` gives.
fn part<T: Sample>(seed: u64, rank: usize, index: usize, len: usize) -> Vec<T> {
    (index * len..(index + 1) * len).map(|i| value(seed, rank, i, None)).collect()
}

/// Something else, with this rank's part in its place.
fn prepared<T: Sample>(seed: u64, rank: usize, size: usize, len: usize) -> Vec<T> {
    let mut whole = values::<T>(!seed, rank, len * size, None);
    whole[rank * len..(rank + 1) * len].copy_from_slice(&values::<T>(seed, rank, len, None));
    whole
}

pub fn all_gather<T: Sample>(comm: &dyn Communicator, options: &Options, len: usize) {
    let (rank, size, kind) = (comm.rank(), comm.size(), Kind::AllGather);
    let case = Case::new::<T>(comm, kind, len, false);
    let seed = case.seed();
    let wanted = gathered::<T>(seed, size, len);

    let send = Guarded::new(values::<T>(seed, rank, len, None));
    let mut recv = Guarded::new(values::<T>(!seed, rank, len * size, None));
    case.done(comm.call(Call::new(kind, send.view(), recv.view_mut())));
    send.untouched(&case, "send");
    recv.equals(&case, options.moves, 0..len * size, &wanted);

    let case = Case { in_place: true, ..case };
    let mut recv = Guarded::new(prepared::<T>(seed, rank, size, len));
    case.done(comm.call(Call::in_place(kind, recv.view_mut())));
    recv.equals(&case, options.moves, 0..len * size, &wanted);
}

pub fn gather<T: Sample>(comm: &dyn Communicator, options: &Options, len: usize) {
    let (rank, size) = (comm.rank(), comm.size());
    for root in roots(size, len) {
        let kind = Kind::Gather { root };
        for in_place in [false, true] {
            let case = Case::new::<T>(comm, kind, len, in_place);
            let seed = case.seed();
            let send = Guarded::new(values::<T>(seed, rank, len, None));
            if rank != root {
                case.done(comm.call(Call::giving(kind, send.view())));
                send.untouched(&case, "send");
                continue;
            }
            let mut recv = Guarded::new(prepared::<T>(seed, rank, size, len));
            if in_place {
                case.done(comm.call(Call::in_place(kind, recv.view_mut())));
            } else {
                recv = Guarded::new(values::<T>(!seed, rank, len * size, None));
                case.done(comm.call(Call::new(kind, send.view(), recv.view_mut())));
                send.untouched(&case, "send");
            }
            recv.equals(&case, options.moves, 0..len * size, &gathered::<T>(seed, size, len));
        }
    }
}

pub fn scatter<T: Sample>(comm: &dyn Communicator, options: &Options, len: usize) {
    let (rank, size) = (comm.rank(), comm.size());
    for root in roots(size, len) {
        let kind = Kind::Scatter { root };
        for in_place in [false, true] {
            let case = Case::new::<T>(comm, kind, len, in_place);
            let seed = case.seed();
            let send = Guarded::new(values::<T>(seed, root, len * size, None));
            if rank == root && in_place {
                case.done(comm.call(Call::giving(kind, send.view())));
                send.untouched(&case, "send");
                continue;
            }
            let mut recv = Guarded::new(values::<T>(!seed, rank, len, None));
            if rank == root {
                case.done(comm.call(Call::new(kind, send.view(), recv.view_mut())));
            } else {
                case.done(comm.call(Call::in_place(kind, recv.view_mut())));
            }
            send.untouched(&case, "send");
            recv.equals(&case, options.moves, 0..len, &part::<T>(seed, root, rank, len));
        }
    }
}

pub fn all_to_all<T: Sample>(comm: &dyn Communicator, options: &Options, len: usize) {
    let (rank, size, kind) = (comm.rank(), comm.size(), Kind::AllToAll);
    let case = Case::new::<T>(comm, kind, len, false);
    let seed = case.seed();
    let own = values::<T>(seed, rank, len * size, None);
    let wanted: Vec<T> = (0..size).flat_map(|peer| part::<T>(seed, peer, rank, len)).collect();

    let send = Guarded::new(own.clone());
    let mut recv = Guarded::new(values::<T>(!seed, rank, len * size, None));
    case.done(comm.call(Call::new(kind, send.view(), recv.view_mut())));
    send.untouched(&case, "send");
    recv.equals(&case, options.moves, 0..len * size, &wanted);

    let case = Case { in_place: true, ..case };
    let mut recv = Guarded::new(own);
    case.done(comm.call(Call::in_place(kind, recv.view_mut())));
    recv.equals(&case, options.moves, 0..len * size, &wanted);
}

/// Out of place, those that are not the root give a send buffer too, of another length: it is ignored.
pub fn broadcast<T: Sample>(comm: &dyn Communicator, options: &Options, len: usize) {
    let (rank, size) = (comm.rank(), comm.size());
    for root in roots(size, len) {
        let kind = Kind::Broadcast { root };
        let case = Case::new::<T>(comm, kind, len, false);
        let seed = case.seed();
        let wanted = values::<T>(seed, root, len, None);

        let send = Guarded::new(values::<T>(seed, rank, if rank == root { len } else { len + 3 }, None));
        let mut recv = Guarded::new(values::<T>(!seed, rank, len, None));
        case.done(comm.call(Call::new(kind, send.view(), recv.view_mut())));
        send.untouched(&case, "send");
        recv.equals(&case, options.moves, 0..len, &wanted);

        let case = Case { in_place: true, ..case };
        let mut recv = Guarded::new(values::<T>(seed, rank, len, None));
        case.done(comm.call(Call::in_place(kind, recv.view_mut())));
        recv.equals(&case, options.moves, 0..len, &wanted);
    }
}
