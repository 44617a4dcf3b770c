//! All-to-all of parts that differ in length, as the experts of a mixture receive tokens.

use super::{Call, Communicator, Kind, Result, invalid};
use zbench_kernels::{Kernels, View, ViewMut};

/// Part `i` of `recv` = part `rank` of rank `i`'s `send`. Parts lie one after the other; `send_counts[i]` elements go to rank `i` and
/// `recv_counts[i]` come from it, so that `send_counts[j]` on rank `i` is `recv_counts[i]` on rank `j`. A count may be 0. All ranks
/// call it, also those that have nothing to give or to take.
///
/// # Errors
/// `Invalid` where counts do not fit the buffers; a mismatch where two ranks state different counts for one part.
pub fn all_to_all_v(
    comm: &dyn Communicator,
    kernels: &dyn Kernels,
    (send, send_counts): (View<'_>, &[usize]),
    (mut recv, recv_counts): (ViewMut<'_>, &[usize]),
) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let sent = ends("send", send_counts, send.len(), size)?;
    let taken = ends("recv", recv_counts, recv.len(), size)?;
    let part = |ends: &[usize], of: usize| if of == 0 { 0..ends[0] } else { ends[of - 1]..ends[of] };
    let (given, own) = (send_counts[rank], recv_counts[rank]);
    if given != own {
        return Err(invalid("all_to_all", format!("rank {rank} gives itself {given} elements and takes {own}")));
    }
    kernels.copy(send.slice(part(&sent, rank)), recv.slice_mut(part(&taken, rank)))?;
    for step in 1..size {
        let (to, from) = ((rank + step) % size, (rank + size - step) % size);
        let (give, take) = (send.slice(part(&sent, to)), recv.slice_mut(part(&taken, from)));
        comm.call(Call::new(Kind::SendRecv { to, from }, give, take))?;
    }
    Ok(())
}

/// Where each part ends.
fn ends(buffer: &str, counts: &[usize], len: usize, size: usize) -> Result<Vec<usize>> {
    let refused = |reason: String| Err(invalid("all_to_all", reason));
    if counts.len() != size {
        return refused(format!("{buffer} has {} counts, one for each of {size} ranks is needed", counts.len()));
    }
    let mut end = 0usize;
    let mut ends = Vec::with_capacity(size);
    for count in counts {
        let Some(next) = end.checked_add(*count).filter(|end| *end <= len) else {
            return refused(format!("{buffer} has {len} elements, fewer than its counts ask for"));
        };
        end = next;
        ends.push(end);
    }
    if end == len { Ok(ends) } else { refused(format!("{buffer} has {len} elements, {end} are counted")) }
}
