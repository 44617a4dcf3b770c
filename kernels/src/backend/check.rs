//! What a device whose data the host can read checks before it computes: ids, documents, and where tokens go. Types and lengths are
//! checked by [`operands`](crate::backend::operands).

use crate::op::*;
use crate::{KernelError, Result, View};

fn invalid<T>(op: &'static str, reason: String) -> Result<T> {
    Err(KernelError::Invalid { op, reason })
}

/// Where documents start, one place for every token: at or before it, and not before that of the token before it.
pub fn documents<'a>(name: &'static str, op: &Attention, starts: Option<&View<'a>>) -> Result<Option<&'a [u32]>> {
    let Some(starts) = starts else { return Ok(None) };
    let starts = &starts.as_slice::<u32>()?[..elements(&[op.batch, op.seq])];
    for (batch, starts) in starts.chunks(op.seq.max(1)).enumerate() {
        let mut least = 0;
        for (row, &start) in starts.iter().enumerate() {
            if start < least || start as usize > row {
                let reason = format!(
                    "token {row} of sequence {batch} is said to be in a document that starts at {start}, which must be from \
                     {least} (where the one before it starts) to {row}"
                );
                return invalid(name, reason);
            }
            least = start;
        }
    }
    Ok(Some(starts))
}

/// Every one of the first `rows` ids is inside the vocabulary.
pub fn ids<'a>(name: &'static str, op: &Embedding, ids: &View<'a>) -> Result<&'a [u32]> {
    let ids = &ids.as_slice::<u32>()?[..op.rows];
    let words = op.vocab.vocab_size;
    if let Some((row, id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= words) {
        return invalid(name, format!("token id {id} in row {row} is outside the vocabulary of {words}"));
    }
    Ok(ids)
}

/// Every one of the first `rows` targets is inside the vocabulary, or the one that is ignored.
pub fn targets<'a>(name: &'static str, rows: usize, vocab: usize, targets: &View<'a>) -> Result<&'a [u32]> {
    let targets = &targets.as_slice::<u32>()?[..rows];
    let outside = |t: u32| t != u32::MAX && t as usize >= vocab;
    if let Some((row, target)) = targets.iter().enumerate().find(|(_, t)| outside(**t)) {
        return invalid(name, format!("target {target} in row {row} is outside the vocabulary of {vocab}"));
    }
    Ok(targets)
}

/// Indices that have been looked at.
#[derive(Clone, Copy)]
pub struct Routing<'a> {
    /// Of each choice, its expert.
    pub ids: &'a [u32],
    /// Of each slot, its choice.
    pub order: &'a [u32],
    /// Of each choice, its slot.
    pub places: &'a [u32],
}

/// The indices of `rows x top` choices: every expert is one, and slots and choices name each other.
pub fn indices<'a>(name: &'static str, [rows, top, experts]: [usize; 3], view: &View<'a>) -> Result<Routing<'a>> {
    let slots = rows * top;
    let all = view.as_slice::<u32>()?;
    let (ids, rest) = all.split_at(slots);
    let (order, rest) = rest.split_at(slots);
    let places = &rest[..slots];
    if let Some((choice, id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= experts) {
        return invalid(name, format!("choice {choice} is expert {id} of {experts}"));
    }
    let lost = |(choice, place): (usize, &u32)| order.get(*place as usize).is_none_or(|back| *back as usize != choice);
    if let Some(choice) = places.iter().enumerate().position(lost) {
        return invalid(name, format!("choice {choice} is not in the slot {} that it names", places[choice]));
    }
    Ok(Routing { ids, order, places })
}

/// The bounds of the groups: from 0, never back, to the number of rows.
pub fn groups<'a>(op: &GroupedGemm, offsets: &View<'a>) -> Result<&'a [u32]> {
    let bounds = &offsets.as_slice::<u32>()?[..op.groups + 1];
    let whole = bounds[0] == 0 && bounds[op.groups] as usize == op.rows;
    if !whole || bounds.windows(2).any(|pair| pair[0] > pair[1]) {
        let reason = format!("the groups do not cut {} rows into {} parts in order", op.rows, op.groups);
        return invalid("grouped_gemm", reason);
    }
    Ok(bounds)
}
