//! Collectives that only move: straight from one rank's buffer into another's.

#![allow(unsafe_code, reason = "a call's buffers have no lifetimes: one part is sent while another is written")]

use super::exchange::{Exchange, Slots, frames};
use super::frame::CHUNK_BYTES;
use crate::Result;
use crate::raw::RawSlice;

/// Up to so many bytes a broadcast goes down a tree, few hops deep; beyond, through a chain that is always full.
pub(super) const TREE_BYTES: usize = 64 << 10;
/// Chunks on their way from each rank at a time where they have to wait in staging.
const WINDOW: usize = 4;

/// How the ranks of a transfer learn that the other one is in the call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Handshake {
    /// By the data, which go both ways.
    Data,
    /// Data go one way, and the taker announces itself.
    Announced,
    /// As `Announced`, and the giver's call ends only when it has heard the announcement.
    Confirmed,
}

/// Gives each rank `give(rank)` and takes from it what goes to `take(rank)`. A rank's own part is copied.
pub(super) async fn parts(
    exchange: &Exchange,
    handshake: Handshake,
    give: impl Fn(usize) -> Option<RawSlice>,
    take: impl Fn(usize) -> Option<RawSlice>,
) -> Result<()> {
    let tag = exchange.tag();
    for other in exchange.others() {
        if let Some(given) = give(other) {
            frames(given).for_each(|chunk| exchange.send(other, chunk, tag));
            if handshake == Handshake::Confirmed {
                exchange.await_want(other);
            }
        }
        if let Some(taken) = take(other) {
            if handshake != Handshake::Data {
                exchange.want(other);
            }
            frames(taken).for_each(|chunk| exchange.recv(other, chunk, tag));
        }
    }
    exchange.progress().await;
    // The root of a scatter in place takes nothing: its part stays where it is.
    if let (Some(own), Some(to)) = (give(exchange.rank), take(exchange.rank).filter(|to| to.len > 0)) {
        // SAFETY: both are this call's; equal parts of a buffer are the same run or apart.
        unsafe { own.copy_to(to) };
    }
    exchange.finish().await;
    Ok(())
}

pub(super) async fn broadcast(exchange: &Exchange, root: usize, send: RawSlice, recv: RawSlice) -> Result<()> {
    let (rank, size) = (exchange.rank, exchange.size());
    // Places are counted from the root.
    let place = (rank + size - root) % size;
    let member = |place: usize| (place + root) % size;
    let tree = recv.bytes() <= TREE_BYTES;
    let above = if tree { place - lowest_bit(place) } else { place.saturating_sub(1) };
    let below: Vec<usize> = if tree { children(place, size) } else { (place + 1..size).take(1).collect() };
    below.iter().for_each(|below| exchange.await_want(member(*below)));
    let from = if place == 0 { send } else { recv };
    let chunks: Vec<(u32, RawSlice)> = frames(from).map(|chunk| (exchange.tag(), chunk)).collect();
    if place > 0 {
        exchange.want(member(above));
        chunks.iter().for_each(|(came, chunk)| exchange.recv(member(above), *chunk, *came));
    }
    let passed = exchange.tag();
    for (came, chunk) in chunks {
        exchange.wait(came).await;
        for below in &below {
            exchange.send(member(*below), chunk, passed);
        }
    }
    exchange.progress().await;
    if place == 0 {
        // SAFETY: both are this call's, the same or apart.
        unsafe { send.copy_to(recv) };
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

/// Part `i` of every rank's buffer to rank `i`, in place: a chunk that comes waits in staging until the chunk in its place has left. All ranks take
/// part in the same order, so that what one waits for the others have already sent for.
pub(super) async fn all_to_all_in_place(exchange: &Exchange, buffer: RawSlice) -> Result<()> {
    let size = exchange.size();
    let part = buffer.len / size;
    let step = (CHUNK_BYTES / buffer.dtype.size()).min(part.max(1));
    let slots = Slots::new(exchange, buffer, step, size * WINDOW);
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
