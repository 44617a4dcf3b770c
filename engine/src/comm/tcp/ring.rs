//! Ring and recursive halving: fewer partners for each rank, and sums in an order of their own (deterministic, but not that
//! of one process; partial sums are rounded to the type that travels at every hop).

// As reduce.rs.
#![allow(unsafe_code)]

use super::exchange::{CHUNK_BYTES, Exchange, frames};
use super::reduce::{Job, Slots};
use crate::comm::Result;
use crate::comm::raw::{PART_ELEMENTS, RawSlice};
use std::ops::Range;

/// Chunks on their way from the left neighbour at a time.
const WINDOW: usize = 4;

/// All-reduce: every part goes round once to be combined, and once to be known.
pub(super) fn all_reduce(exchange: &mut Exchange<'_>, job: &Job<'_>, recv: RawSlice) -> Result<()> {
    let (rank, size) = (exchange.rank, exchange.size());
    reduce_scatter(exchange, job, recv.slice(job.part(rank, size)))?;
    all_gather(exchange, &|owner| recv.slice(job.part(owner, size)))
}

/// Part `owner` begins at rank `owner + 1` and is combined at every hop until it comes home, into `recv`.
///
/// Parts go in blocks of [`WINDOW`] chunks. Item `i` of the program is a block, a hop and a chunk, in this order; what item
/// `i` brings is combined and sent on as the frame that the right neighbour expects as its item `i + WINDOW`. So nobody
/// waits for a neighbour that waits for it.
pub(super) fn reduce_scatter(exchange: &mut Exchange<'_>, job: &Job<'_>, recv: RawSlice) -> Result<()> {
    let (rank, size) = (exchange.rank, exchange.size());
    if size == 1 {
        return super::reduce::direct(exchange, job);
    }
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    let step = job.chunk(size);
    let longest = (0..size).map(|owner| job.part(owner, size).len()).max().unwrap_or(0);
    let blocks = longest.div_ceil(step).max(1).div_ceil(WINDOW);
    let (hops, items) = (size - 1, blocks * (size - 1) * WINDOW);
    // The part that arrives at a hop, and the chunk of it: past its end where parts are short.
    let at = |item: usize, away: usize| -> Range<usize> {
        let (block, hop, chunk) = (item / (hops * WINDOW), item / WINDOW % hops, item % WINDOW);
        let part = job.part((rank + 2 * size - hop - away) % size, size);
        let start = part.start + (block * WINDOW + chunk) * step;
        start.min(part.end)..(start + step).min(part.end)
    };
    let slots = Slots::with(exchange, job.send, step, 2 * WINDOW);
    let arrived: Vec<u32> = (0..WINDOW).map(|_| exchange.tag()).collect();
    let passed: Vec<u32> = (0..WINDOW).map(|_| exchange.tag()).collect();
    for item in 0..WINDOW {
        exchange.send(right, job.send.slice(at(item, 1)), passed[item]);
        exchange.recv(left, slots.get(item, at(item, 2).len()), arrived[item]);
    }
    let home = job.part(rank, size).start;
    for item in 0..items {
        let turn = item % WINDOW;
        exchange.wait(arrived[turn])?;
        let range = at(item, 2);
        let came = slots.get(turn, range.len());
        let own = job.send.slice(range.clone());
        let last = item / WINDOW % hops == hops - 1;
        // What was sent from the spare slot `WINDOW` items ago must have left, and so must what is about to be overwritten.
        exchange.wait(passed[turn])?;
        let spare = slots.get(WINDOW + turn, range.len());
        if last {
            let dst = recv.slice(range.start - home..range.end - home);
            let own = super::reduce::aside(own, dst, spare);
            // SAFETY: received, and this rank's own; `dst` is another run.
            job.combine(&[unsafe { came.view() }, unsafe { own.view() }], job.accumulate, dst)?;
        } else {
            // SAFETY: as above.
            job.combine(&[unsafe { came.view() }, unsafe { own.view() }], false, spare)?;
        }
        let next = item + WINDOW;
        if next < items {
            let first = (next / WINDOW).is_multiple_of(hops);
            exchange.send(right, if first { job.send.slice(at(next, 1)) } else { spare }, passed[turn]);
            exchange.recv(left, slots.get(turn, at(next, 2).len()), arrived[turn]);
        }
    }
    exchange.finish()
}

/// What each rank has goes round: hop `h` brings the part of the rank `h + 1` to the left.
pub(super) fn all_gather(exchange: &mut Exchange<'_>, part: &dyn Fn(usize) -> RawSlice) -> Result<()> {
    let (rank, size) = (exchange.rank, exchange.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    let sent = exchange.tag();
    let mut ready: Vec<(u32, RawSlice)> = Vec::new();
    for hop in 0..size - 1 {
        for chunk in frames(part((rank + size - hop - 1) % size)) {
            let tag = exchange.tag();
            exchange.recv(left, chunk, tag);
            if hop + 1 < size - 1 {
                ready.push((tag, chunk));
            }
        }
    }
    if size > 1 {
        exchange.send_all(right, part(rank), sent);
    }
    for (tag, chunk) in ready {
        exchange.wait(tag)?;
        exchange.send(right, chunk, sent);
    }
    exchange.finish()
}

/// All-reduce by halving, then doubling, over the largest power of two of ranks; each of the ranks beyond gives its summand
/// to a neighbour first and gets the result from it last.
pub(super) fn recursive(exchange: &mut Exchange<'_>, job: &Job<'_>, buffer: RawSlice) -> Result<()> {
    let (rank, size) = (exchange.rank, exchange.size());
    // SAFETY: both are this call's, and nothing is under way yet.
    unsafe { job.send.copy_to(buffer) };
    let even = 1 << size.ilog2();
    let beyond = size - even;
    let tag = exchange.tag();
    if rank < 2 * beyond && rank % 2 == 1 {
        exchange.send_all(rank - 1, buffer, tag);
        exchange.wait(tag)?;
        exchange.recv_all(rank - 1, buffer, tag);
        return exchange.finish();
    }
    if rank < 2 * beyond {
        absorb(exchange, job, rank + 1, buffer)?;
    }
    let own = if rank < 2 * beyond { rank / 2 } else { rank - beyond };
    let place = |new: usize| if new < beyond { 2 * new } else { new + beyond };
    let mut kept = Vec::new();
    kept.push(0..buffer.len); // what this rank still combines, the last the least
    let mut distance = even / 2;
    while distance > 0 {
        let range = kept[kept.len() - 1].clone();
        let middle = (range.start + (range.len() / 2).next_multiple_of(PART_ELEMENTS)).min(range.end);
        let (low, high) = (range.start..middle, middle..range.end);
        let (mine, theirs) = if own & distance == 0 { (low, high) } else { (high, low) };
        let partner = place(own ^ distance);
        exchange.send_all(partner, buffer.slice(theirs), tag);
        absorb(exchange, job, partner, buffer.slice(mine.clone()))?;
        exchange.wait(tag)?;
        kept.push(mine);
        distance /= 2;
    }
    let mut distance = 1;
    while distance < even {
        let mine = kept.pop().unwrap_or(0..0);
        let whole = kept[kept.len() - 1].clone();
        let theirs = if mine.start == whole.start { mine.end..whole.end } else { whole.start..mine.start };
        let partner = place(own ^ distance);
        exchange.send_all(partner, buffer.slice(mine), tag);
        exchange.recv_all(partner, buffer.slice(theirs), tag);
        exchange.wait(tag)?;
        distance *= 2;
    }
    if rank < 2 * beyond {
        exchange.send_all(rank + 1, buffer, tag);
    }
    exchange.finish()
}

/// `buffer` = `buffer` combined with what a member sends, chunk by chunk.
fn absorb(exchange: &mut Exchange<'_>, job: &Job<'_>, from: usize, buffer: RawSlice) -> Result<()> {
    let chunks: Vec<RawSlice> = frames(buffer).collect();
    let slots = Slots::with(exchange, buffer, CHUNK_BYTES / buffer.dtype.size(), WINDOW + 1);
    let arrived: Vec<u32> = (0..WINDOW).map(|_| exchange.tag()).collect();
    let expect = |exchange: &mut Exchange<'_>, index: usize| {
        if let Some(chunk) = chunks.get(index) {
            exchange.recv(from, slots.get(index % WINDOW, chunk.len), arrived[index % WINDOW]);
        }
    };
    (0..WINDOW).for_each(|index| expect(exchange, index));
    for (index, chunk) in chunks.iter().enumerate() {
        exchange.wait(arrived[index % WINDOW])?;
        let came = slots.get(index % WINDOW, chunk.len);
        // SAFETY: it has been received, and nothing is received there until it is used.
        let came = unsafe { came.view() };
        if job.adds(*chunk) {
            job.combine(&[came], true, *chunk)?;
        } else {
            let own = super::reduce::aside(*chunk, *chunk, slots.get(WINDOW, chunk.len));
            // SAFETY: a copy of this rank's own.
            job.combine(&[unsafe { own.view() }, came], false, *chunk)?;
        }
        expect(exchange, index + WINDOW);
    }
    Ok(())
}

/// All-gather by doubling, for a power of two of ranks.
pub(super) fn doubling(exchange: &mut Exchange<'_>, whole: RawSlice) -> Result<()> {
    let (rank, size) = (exchange.rank, exchange.size());
    let part = whole.len / size;
    let tag = exchange.tag();
    let mut known = 1;
    while known < size {
        let block = |rank: usize| {
            let first = rank / known * known;
            whole.slice(first * part..(first + known) * part)
        };
        let partner = rank ^ known;
        exchange.send_all(partner, block(rank), tag);
        exchange.recv_all(partner, block(partner), tag);
        exchange.wait(tag)?;
        known *= 2;
    }
    exchange.finish()
}
