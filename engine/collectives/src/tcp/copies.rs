//! Collectives that only move: straight from one rank's buffer into another's.

// As reduce.rs.
#![allow(unsafe_code)]

use super::exchange::{Exchange, frames};
use super::frame::CHUNK_BYTES;
use super::reduce::Slots;
use crate::Result;
use crate::raw::RawSlice;

/// Up to so many bytes a broadcast goes down a tree, few hops deep; beyond, through a chain that is always full.
pub(super) const TREE_BYTES: usize = 64 << 10;
/// Chunks on their way from each rank at a time where they have to wait in staging.
const WINDOW: usize = 4;

/// Copies a rank's own part, which may be there already.
fn keep(own: RawSlice, to: RawSlice) {
    // SAFETY: both are this call's; equal parts of a buffer are the same run or apart.
    unsafe { own.copy_to(to) };
}

/// What this rank gives to each, and what each gives to this rank, at its part of `recv`.
async fn each_to_each(exchange: &Exchange, given: impl Fn(usize) -> RawSlice, recv: RawSlice) -> Result<()> {
    let (rank, size) = (exchange.rank, exchange.size());
    let tag = exchange.tag();
    for other in exchange.others() {
        exchange.send_all(other, given(other), tag);
        exchange.recv_all(other, recv.part(other, size), tag);
    }
    exchange.progress().await;
    keep(given(rank), recv.part(rank, size));
    exchange.finish().await;
    Ok(())
}

pub(super) async fn all_gather(exchange: &Exchange, own: RawSlice, recv: RawSlice) -> Result<()> {
    each_to_each(exchange, move |_| own, recv).await
}

/// Every rank's part to the root. `recv` is the root's.
pub(super) async fn gather(exchange: &Exchange, root: usize, own: RawSlice, recv: RawSlice) -> Result<()> {
    let (rank, size) = (exchange.rank, exchange.size());
    let tag = exchange.tag();
    if rank == root {
        for other in exchange.others() {
            exchange.want(other);
            exchange.recv_all(other, recv.part(other, size), tag);
        }
        keep(own, recv.part(rank, size));
    } else {
        exchange.send_all(root, own, tag);
        exchange.await_want(root);
    }
    exchange.finish().await;
    Ok(())
}

/// The root's parts, one to each rank. `send` is the root's; in place its own part is empty and stays where it is.
pub(super) async fn scatter(exchange: &Exchange, root: usize, send: RawSlice, own: RawSlice) -> Result<()> {
    let (rank, size) = (exchange.rank, exchange.size());
    let tag = exchange.tag();
    if rank == root {
        for other in exchange.others() {
            exchange.send_all(other, send.part(other, size), tag);
            exchange.await_want(other);
        }
        exchange.progress().await;
        if own.len > 0 {
            keep(send.part(rank, size), own);
        }
    } else {
        exchange.want(root);
        exchange.recv_all(root, own, tag);
    }
    exchange.finish().await;
    Ok(())
}

pub(super) async fn broadcast(exchange: &Exchange, root: usize, send: RawSlice, recv: RawSlice) -> Result<()> {
    let (rank, size) = (exchange.rank, exchange.size());
    let tag = exchange.tag();
    // Places are counted from the root.
    let place = (rank + size - root) % size;
    let member = |place: usize| (place + root) % size;
    let from = if place == 0 { send } else { recv };
    let tree = recv.bytes() <= TREE_BYTES;
    let above = if tree { place - lowest_bit(place) } else { place.saturating_sub(1) };
    let below: Vec<usize> = if tree { children(place, size) } else { (place + 1..size).take(1).collect() };
    below.iter().for_each(|below| exchange.await_want(member(*below)));
    if place == 0 {
        for below in &below {
            exchange.send_all(member(*below), from, tag);
        }
        exchange.progress().await;
        keep(send, recv);
        exchange.finish().await;
        return Ok(());
    }
    exchange.want(member(above));
    let chunks: Vec<(u32, RawSlice)> = frames(recv).map(|chunk| (exchange.tag(), chunk)).collect();
    for (came, chunk) in &chunks {
        exchange.recv(member(above), *chunk, *came);
    }
    for (came, chunk) in chunks {
        exchange.wait(came).await;
        for below in &below {
            exchange.send(member(*below), chunk, tag);
        }
    }
    exchange.finish().await;
    Ok(())
}

fn lowest_bit(place: usize) -> usize {
    place & place.wrapping_neg()
}

/// Whom a place of the binomial tree gives to, the largest subtree first.
fn children(place: usize, size: usize) -> Vec<usize> {
    let below = if place == 0 { size.next_power_of_two() } else { lowest_bit(place) };
    let bits = std::iter::successors(Some(below / 2), |bit| Some(bit / 2)).take_while(|bit| *bit > 0);
    bits.map(|bit| place + bit).filter(|child| *child < size).collect()
}

/// Part `i` of every rank to rank `i`, from one buffer into another.
pub(super) async fn all_to_all(exchange: &Exchange, send: RawSlice, recv: RawSlice) -> Result<()> {
    let size = exchange.size();
    each_to_each(exchange, move |rank| send.part(rank, size), recv).await
}

/// As `all_to_all` in one buffer: a chunk that comes waits in staging until the chunk in its place has left. All ranks take
/// part in the same order, so that what one waits for the others have already sent for.
pub(super) async fn all_to_all_in_place(exchange: &Exchange, buffer: RawSlice) -> Result<()> {
    let size = exchange.size();
    let part = buffer.len / size;
    let step = (CHUNK_BYTES / buffer.dtype.size()).min(part.max(1));
    let slots = Slots::with(exchange, buffer, step, size * WINDOW);
    let tags: Vec<u32> = (0..WINDOW).map(|_| exchange.tag()).collect();
    let count = part.div_ceil(step).max(1);
    let chunk = move |other: usize, k: usize| buffer.part(other, size).slice(k * step..(k + 1) * step);
    for k in 0..count + WINDOW {
        let turn = k % WINDOW;
        if let Some(j) = k.checked_sub(WINDOW) {
            exchange.wait(tags[turn]).await;
            for other in exchange.others() {
                let to = chunk(other, j);
                // SAFETY: staging that has been received into, and a chunk of this call's buffer that has left.
                unsafe { slots.get(turn * size + other, to.len).copy_to(to) };
            }
        }
        if k < count {
            for other in exchange.others() {
                let from = chunk(other, k);
                exchange.send(other, from, tags[turn]);
                exchange.recv(other, slots.get(turn * size + other, from.len), tags[turn]);
            }
        }
    }
    exchange.finish().await;
    Ok(())
}

/// A frame without payload to and from every rank.
pub(super) async fn barrier(exchange: &Exchange, nothing: RawSlice) -> Result<()> {
    let tag = exchange.tag();
    for other in exchange.others() {
        exchange.send(other, nothing, tag);
        exchange.recv(other, nothing, tag);
    }
    exchange.finish().await;
    Ok(())
}

/// One buffer to a member, and one from a member, either of which may be absent. `heard`: the call ends only when the receiver
/// is in it too.
pub(super) async fn pair(
    exchange: &Exchange,
    to: Option<(usize, RawSlice)>,
    from: Option<(usize, RawSlice)>,
    heard: bool,
) -> Result<()> {
    let tag = exchange.tag();
    if let Some((from, recv)) = from {
        exchange.want(from);
        exchange.recv_all(from, recv, tag);
    }
    if let Some((to, send)) = to {
        exchange.send_all(to, send, tag);
        if heard {
            exchange.await_want(to);
        }
    }
    exchange.finish().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_the_tree_has_one_parent() {
        for size in 1..40 {
            let mut parents = vec![Vec::new(); size];
            (0..size).for_each(|place| children(place, size).iter().for_each(|child| parents[*child].push(place)));
            assert!(parents[0].is_empty());
            for (place, parents) in parents.iter().enumerate().skip(1) {
                assert_eq!(parents, &[place - lowest_bit(place)], "{place} of {size}");
            }
        }
    }
}
