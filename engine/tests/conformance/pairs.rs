//! send, recv and sendrecv around a ring, and between two.

use super::Options;
use super::case::{Case, Guarded};
use super::sample::{Sample, values};
use zbench_collectives::{Call, Communicator, Kind};

/// Every rank gives another length. Two messages in a row keep their order.
pub fn ring<T: Sample>(comm: &dyn Communicator, options: &Options, len: usize) {
    let (rank, size) = (comm.rank(), comm.size());
    if size == 1 {
        return; // Nobody to exchange with; that a rank refuses itself is in `refusals`.
    }
    let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);
    let mine = len + rank;
    let theirs = len + left;

    exchange::<T>(comm, options, right, left, mine, theirs);

    // Even ranks send first, so that nobody waits for itself; with an odd number, rank 0 starts.
    let send = |turn: u64| {
        let case = Case::new::<T>(comm, Kind::Send { to: right }, mine, false);
        let buffer = Guarded::new(values::<T>(ring_seed(len, turn), rank, mine, None));
        case.done(comm.call(Call::giving(case.kind, buffer.view())));
        buffer.untouched(&case, "send");
    };
    let recv = |turn: u64| {
        let case = Case::new::<T>(comm, Kind::Recv { from: left }, theirs, false);
        let mut buffer = Guarded::new(values::<T>(4, rank, theirs, None));
        case.done(comm.call(Call::in_place(case.kind, buffer.view_mut())));
        let wanted = values::<T>(ring_seed(len, turn), left, theirs, None);
        buffer.equals(&case, options.moves, 0..theirs, &wanted);
    };
    if rank % 2 == 0 {
        send(1);
        send(2);
    }
    recv(1);
    recv(2);
    if rank % 2 == 1 {
        send(1);
        send(2);
    }

    // Neighbours in twos, both ways at once; with an odd number the last one looks on.
    let partner = rank ^ 1;
    if partner < size {
        exchange::<T>(comm, options, partner, partner, mine, len + partner);
    }
}

fn ring_seed(len: usize, turn: u64) -> u64 {
    len as u64 ^ turn << 48
}

fn exchange<T: Sample>(comm: &dyn Communicator, options: &Options, to: usize, from: usize, mine: usize, theirs: usize) {
    let kind = Kind::SendRecv { to, from };
    let case = Case::new::<T>(comm, kind, mine, false);
    let send = Guarded::new(values::<T>(3, comm.rank(), mine, None));
    let mut recv = Guarded::new(values::<T>(4, comm.rank(), theirs, None));
    case.done(comm.call(Call::new(kind, send.view(), recv.view_mut())));
    send.untouched(&case, "send");
    recv.equals(&case, options.moves, 0..theirs, &values::<T>(3, from, theirs, None));
}
