//! Collectives that combine, by direct exchange: each rank gets one part from all others, combines it as the balanced tree in
//! rank order, and passes the result on while the next chunk comes in. Bit for bit what ranks in one process get.

#![allow(unsafe_code, reason = "a call's buffers have no lifetimes: one part is summed while another is sent")]

use super::copies::{Handshake, parts};
use super::exchange::{Exchange, Slots};
use super::frame::CHUNK_BYTES;
use crate::raw::{PART_ELEMENTS, RawSlice, reduce_range};
use crate::{ONE_ROUND_BYTES, ReduceOp, Result};
use std::ops::Range;
use zbench_kernels::{Kernels, View};

/// Chunks on their way from each rank at a time.
const WINDOW: usize = 4;
/// Up to so many bytes from all ranks together, a buffer goes whole to the root, or to the other one of two ranks: one round
/// instead of two.
const WHOLE_BYTES: usize = 64 << 10;

/// Who gets the result of a part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Deliver {
    /// All ranks, at the part's place in `recv`.
    All,
    /// A root, at the part's place in `recv`.
    Root(usize),
    /// The part's rank, as the whole of `recv`.
    Own,
}

/// What is to be combined, and where it goes.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub kernels: &'a dyn Kernels,
    pub op: ReduceOp,
    pub accumulate: bool,
    pub deliver: Deliver,
    pub send: RawSlice,
    /// `None` on ranks that get nothing.
    pub recv: Option<RawSlice>,
}

impl Job<'_> {
    /// The elements whose result `rank` computes.
    fn part(&self, rank: usize, size: usize) -> Range<usize> {
        let len = self.send.len;
        if self.deliver == Deliver::Own {
            return len / size * rank..len / size * (rank + 1);
        }
        reduce_range(len, rank, size)
    }

    /// Elements of a chunk: several to a part where it is large, so that combining and sending overlap.
    fn chunk(&self, size: usize) -> usize {
        let longest = self.part(0, size).len();
        let most = CHUNK_BYTES / self.send.dtype.size();
        (longest.div_ceil(2 * WINDOW)).clamp(most / 8, most).next_multiple_of(PART_ELEMENTS)
    }

    /// `dst` = (`dst` +) the sources, of which none may lie on `dst`.
    fn combine(&self, sources: &[View<'_>], accumulate: bool, dst: RawSlice) -> Result<()> {
        // SAFETY: `dst` is memory of this call which nothing else uses now; the algorithms see to it.
        let dst = unsafe { dst.view_mut() };
        Ok(self.kernels.reduce(self.op, sources, accumulate, dst)?)
    }

    /// Whether `rank` gets the results of other ranks' parts.
    fn goes_to(&self, rank: usize) -> bool {
        match self.deliver {
            Deliver::All => true,
            Deliver::Root(root) => rank == root,
            Deliver::Own => false,
        }
    }

    /// Whether the results of `rank` wait in staging until they are sent: where they go to a root that is another rank.
    fn waits_in_slot(&self, rank: usize) -> bool {
        matches!(self.deliver, Deliver::Root(root) if root != rank)
    }
}

pub(super) async fn direct(exchange: &Exchange, job: Job<'_>) -> Result<()> {
    let (size, bytes) = (exchange.size(), job.send.bytes());
    let all = bytes * (size - 1);
    match job.deliver {
        Deliver::All if bytes <= ONE_ROUND_BYTES || size == 2 && all <= WHOLE_BYTES => whole(exchange, job).await,
        Deliver::Root(_) if all <= WHOLE_BYTES => whole(exchange, job).await,
        _ => pipeline(exchange, job).await,
    }
}

/// Everybody sends all it has to those that get the result, which combine all.
async fn whole(exchange: &Exchange, job: Job<'_>) -> Result<()> {
    let (rank, len) = (exchange.rank, job.send.len);
    let slots = Slots::new(exchange, job.send, len, exchange.size());
    let handshake = if job.deliver == Deliver::All { Handshake::Data } else { Handshake::Confirmed };
    let give = move |to| job.goes_to(to).then_some(job.send);
    let take = move |from| (from != rank && job.goes_to(rank)).then(|| slots.get(from, len));
    parts(exchange, handshake, give, take).await?;
    job.recv.map_or(Ok(()), |recv| combine_slots(exchange, &job, &slots, 0, job.send, recv))
}

/// `dst` = the tree over the slots of all ranks, which begin at `base`, with `own` in place of this rank's: a
/// copy if the result goes where it lies.
fn combine_slots(
    exchange: &Exchange,
    job: &Job<'_>,
    slots: &Slots,
    base: usize,
    own: RawSlice,
    dst: RawSlice,
) -> Result<()> {
    let spare = slots.get(base + exchange.rank, own.len);
    let own = if own.ptr == dst.ptr {
        // SAFETY: the spare is staging of this rank that nothing is received into.
        unsafe { own.copy_to(spare) };
        spare
    } else {
        own
    };
    let slot = |rank| if rank == exchange.rank { own } else { slots.get(base + rank, own.len) };
    // SAFETY: what has been received, or is this rank's own; all of it stays while the kernel reads.
    let sources: Vec<View<'_>> = (0..exchange.size()).map(|rank| unsafe { slot(rank).view() }).collect();
    job.combine(&sources, job.accumulate, dst)
}

/// Chunk by chunk: receive from all, combine, pass on. In step `k` chunk `k` of every part goes to the part's rank, and the
/// results of chunk `k - WINDOW` go out; all ranks send and expect frames in this order. A buffer in place is safe: the
/// result of a chunk comes only after its rank has got this rank's summand.
async fn pipeline(exchange: &Exchange, job: Job<'_>) -> Result<()> {
    let (rank, size) = (exchange.rank, exchange.size());
    let step = job.chunk(size);
    let chunk = move |owner: usize, k: usize| {
        let part = job.part(owner, size);
        let start = part.start + k * step;
        start.min(part.end)..(start + step).min(part.end)
    };
    // One chunk at least, though it be empty: so that every two ranks hear of each other's call.
    let count = move |owner: usize| job.part(owner, size).len().div_ceil(step).max(1);
    let most = (0..size).map(count).max().unwrap_or(1);
    let slots = Slots::new(exchange, job.send, step, size * WINDOW);
    let arrived: Vec<u32> = (0..WINDOW).map(|_| exchange.tag()).collect();
    let passed: Vec<u32> = (0..WINDOW).map(|_| exchange.tag()).collect();
    let sent = exchange.tag();
    for k in 0..most + WINDOW {
        if let Some(j) = k.checked_sub(WINDOW) {
            if j < count(rank) {
                exchange.wait(arrived[j % WINDOW]).await;
                if job.waits_in_slot(rank) {
                    exchange.wait(passed[j % WINDOW]).await; // the result that was there has left
                }
                let result = combine_chunk(exchange, &job, &slots, j, chunk(rank, j))?;
                for to in exchange.others().filter(|to| job.goes_to(*to)) {
                    exchange.send(to, result, passed[j % WINDOW]);
                }
            }
            if let (Some(recv), true) = (job.recv, job.goes_to(rank)) {
                for from in exchange.others().filter(|from| j < count(*from)) {
                    exchange.recv(from, recv.slice(chunk(from, j)), passed[j % WINDOW]);
                }
            }
        }
        for other in exchange.others() {
            if k < count(other) {
                exchange.send(other, job.send.slice(chunk(other, k)), sent);
            }
            if k < count(rank) {
                let slot = slots.get(k % WINDOW * size + other, chunk(rank, k).len());
                exchange.recv(other, slot, arrived[k % WINDOW]);
            }
        }
        exchange.progress().await;
    }
    exchange.finish().await;
    Ok(())
}

/// Combines chunk `j` of this rank's part, which has come from all. Where the result lies.
fn combine_chunk(exchange: &Exchange, job: &Job<'_>, slots: &Slots, j: usize, at: Range<usize>) -> Result<RawSlice> {
    let (rank, size) = (exchange.rank, exchange.size());
    let base = j % WINDOW * size;
    let own = job.send.slice(at.clone());
    let spare = slots.get(base + rank, at.len());
    let begin = job.part(rank, size).start;
    let dst = match (job.deliver, job.recv) {
        (Deliver::Own, Some(recv)) => recv.slice(at.start - begin..at.end - begin),
        (_, Some(recv)) if !job.waits_in_slot(rank) => recv.slice(at),
        _ => spare,
    };
    // The sum of two is the same in either order, so that one of them may lie where the sum goes.
    let sum_in_place = size == 2 && own.ptr == dst.ptr && own.dtype == dst.dtype && !job.accumulate;
    if sum_in_place && job.op == ReduceOp::Sum && dst.dtype.is_float() {
        let other = slots.get(base + 1 - rank, own.len);
        // SAFETY: it has been received, and nothing writes it while the kernel reads.
        job.combine(&[unsafe { other.view() }], true, dst)?;
    } else {
        combine_slots(exchange, job, slots, base, own, dst)?;
    }
    Ok(dst)
}
