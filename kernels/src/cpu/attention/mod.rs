//! Attention in tiles: the online softmax of Milakov and Gimelshein (2018), tiled as in FlashAttention (Dao et
//! al., 2022), so that no score matrix is ever stored. Backward computes the probabilities again from the saved
//! log-sum-exp.
//!
//! All types run on packed tiles ([`forward`], [`backward`]): bf16 in pairs, f32 and f16 as f32.

#![allow(unsafe_code, reason = "packed panels are read and written by address")]

mod backward;
mod forward;
pub(super) mod head;
mod lanes;

use super::Cpu;
use super::level::Level;
use super::matmul::path::Path;
use super::matmul::tiles::{self, COLS, Element, ROWS, Source, WORDS};
use super::stream::Shared;
use crate::op::Attention;
use crate::op::elements;
use crate::{DType, View, ViewMut};
use head::Head;
use std::ops::Range;

/// Tokens that are packed at a time.
const TILE: usize = 128;
/// Queries that pass through the softmax at a time, and the grain at which tiles that are seen in part are cut.
const STRIP: usize = 32;
/// f32 elements that the packed heads of a round may take for each thread: 4 MiB. One head may take more.
const ROUND: usize = 1 << 20;

/// f32 elements of scratch that forward needs.
pub(super) fn forward_workspace(op: &Attention, path: Path, threads: usize) -> usize {
    if is_empty(op) { 0 } else { forward::Layout::of(op, path, threads).workspace(threads) }
}

/// f32 elements of scratch that backward needs.
pub(super) fn backward_workspace(op: &Attention, path: Path, threads: usize) -> usize {
    let nothing = op.kv_heads > op.heads || is_empty(op);
    if nothing { 0 } else { backward::Layout::of(op, path, threads).workspace(threads) }
}

fn is_empty(op: &Attention) -> bool {
    elements(&[op.batch, op.kv_heads, op.seq, op.kv_seq, op.head_dim]) == 0
}

/// What is there of forward.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub q: View<'a>,
    pub k: View<'a>,
    pub v: View<'a>,
    /// Where the documents of all tokens start.
    pub starts: Option<&'a [u32]>,
}

/// What backward is given beside the inputs.
#[derive(Clone, Copy)]
pub(super) struct Kept<'a> {
    pub out: View<'a>,
    pub lse: &'a [f32],
    pub dout: View<'a>,
}

/// Sizes of packed operands of one shape on one path. Sides are padded to whole panels, and terms to groups of 32: one tile of
/// bf16, two of f32.
#[derive(Clone, Copy)]
struct Panels {
    path: Path,
    level: Level,
    element: Element,
    dim: usize,
    /// The same in groups.
    tiles: usize,
}

impl Panels {
    fn of(op: &Attention, path: Path) -> Panels {
        let element = element(op.dtype);
        Panels { path, level: path.level(), element, dim: op.head_dim, tiles: op.head_dim.div_ceil(COLS) }
    }

    /// Elements of a head, padded.
    fn wide(&self) -> usize {
        self.tiles.saturating_mul(COLS)
    }

    /// Tiles of so many groups.
    fn deep(&self, groups: usize) -> usize {
        groups.saturating_mul(COLS / self.element.tile())
    }

    /// f32 elements of `rows` rows (a multiple of 16) of A with `groups` of terms.
    fn a(&self, rows: usize, groups: usize) -> usize {
        elements(&[rows / ROWS, self.deep(groups), self.path.tile_bytes(self.element) / 4])
    }

    /// f32 elements of `cols` columns (a multiple of 32) of B with `groups` of terms.
    fn b(&self, cols: usize, groups: usize) -> usize {
        elements(&[cols / COLS, self.deep(groups), WORDS * COLS])
    }

    /// Packs `rows` rows of A by `terms`, panel after panel.
    ///
    /// # Safety
    /// The source holds so much, and `to` has room for [`Panels::a`] of whole panels.
    unsafe fn pack_a(&self, from: Source, rows: usize, terms: usize, to: *mut f32) {
        let (form, width) = (self.path.form(self.element, true), self.element.tile());
        let (panel, tile) = (self.a(ROWS, terms.div_ceil(COLS)), self.path.tile_bytes(self.element) / 4);
        for (i, first) in (0..rows).step_by(ROWS).enumerate() {
            for (j, term) in (0..terms.next_multiple_of(COLS)).step_by(width).enumerate() {
                let (from, to) = (from.at(first, term), to.wrapping_add(i * panel + j * tile));
                // SAFETY: the caller's promise; a tile beyond all terms reads nothing.
                unsafe {
                    let sides = [ROWS.min(rows - first), width.min(terms.saturating_sub(term))];
                    tiles::pack_rows(self.level, form, from, sides[0], sides[1], to.cast());
                }
            }
        }
    }

    /// Packs `cols` columns of B by `terms`; from one panel to the next it is `panel` words.
    ///
    /// # Safety
    /// As for A.
    unsafe fn pack_b(&self, from: Source, cols: usize, terms: usize, to: *mut f32, panel: usize) {
        let width = self.element.tile();
        for (i, first) in (0..cols).step_by(COLS).enumerate() {
            for (j, term) in (0..terms.next_multiple_of(COLS)).step_by(width).enumerate() {
                let (from, to) = (from.at(first, term), to.wrapping_add(i * panel + j * WORDS * COLS));
                // SAFETY: as above.
                unsafe {
                    let sides = [COLS.min(cols - first), width.min(terms.saturating_sub(term))];
                    tiles::pack_cols(self.level, from, sides[0], sides[1], to.cast());
                }
            }
        }
    }
}

/// One head of queries or keys in memory, or any rows of elements.
#[derive(Clone, Copy)]
pub(super) struct Strand {
    ptr: *const u8,
    stored: DType,
    /// Elements from one token to the next.
    stride: usize,
}

// SAFETY: an address and a stride; whoever reads through it vouches for the memory.
unsafe impl Sync for Strand {}

impl Strand {
    pub fn of(view: &View, head: Head) -> Strand {
        let (ptr, stored) = (view.ptr().as_ptr().cast_const(), view.dtype());
        Strand { ptr: ptr.wrapping_add(head.start * stored.size()), stored, stride: head.stride }
    }

    /// Rows of f32.
    pub fn of_rows(rows: &[f32], stride: usize) -> Strand {
        Strand { ptr: rows.as_ptr().cast(), stored: DType::F32, stride }
    }

    /// From `token` on, tokens as rows or columns and the head's elements as terms.
    pub fn tokens(self, token: usize) -> Source {
        let Strand { ptr, stored, stride } = self;
        let element = element(stored);
        Source { ptr: ptr.wrapping_add(token * stride * stored.size()), stored, element, stride, terms_adjoin: true }
    }

    /// From `token` on, the head's elements as rows or columns and tokens as terms.
    pub fn elements(self, token: usize) -> Source {
        Source { terms_adjoin: false, ..self.tokens(token) }
    }
}

/// What tiles hold of a type.
fn element(dtype: DType) -> Element {
    if dtype == DType::Bf16 { Element::Pair } else { Element::Single }
}

/// Ranges of `step` that cover `range`.
pub(super) fn steps(range: Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(step).map(move |start| start..(start + step).min(range.end))
}

/// Rounds `range` outwards to multiples of `grain`.
fn outwards(range: Range<usize>, grain: usize) -> Range<usize> {
    range.start / grain * grain..range.end.next_multiple_of(grain)
}

/// The part of two ranges that they share; empty where there is none.
fn both(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

/// Takes `len` f32 off the front of a thread's scratch, so that what follows begins at a whole vector.
fn take(scratch: &mut *mut f32, len: usize) -> *mut f32 {
    let taken = *scratch;
    *scratch = taken.wrapping_add(len.next_multiple_of(lanes::LANES));
    taken
}

/// As many f32 as [`take`] takes.
fn taken(lens: &[usize]) -> usize {
    lens.iter().fold(0, |sum, len| sum.saturating_add(len.checked_next_multiple_of(lanes::LANES).unwrap_or(usize::MAX)))
}

/// A thread's own part of what is shared: element `start` on.
fn own(shared: &Shared, start: usize) -> *mut f32 {
    shared.address().wrapping_add(start)
}

/// Multiplies all by one factor.
fn scale_all(level: Level, all: &mut [f32], factor: f32) {
    level.run(
        #[inline(always)]
        |_| all.iter_mut().for_each(|x| *x *= factor),
    );
}

/// Scales rows of scores and adds ALiBi, both in powers of two. `far` is how far the query of a row and column lies behind the key.
///
/// # Safety
/// There are as many scores, used here alone.
#[cold]
unsafe fn bias(scores: *mut f32, [rows, cols]: [usize; 2], factor: f32, slope: f32, far: impl Fn(usize, usize) -> f32) {
    for row in 0..rows {
        // SAFETY: the caller's promise.
        let scores = unsafe { std::slice::from_raw_parts_mut(scores.add(row * cols), cols) };
        for (col, score) in scores.iter_mut().enumerate() {
            // Distances are whole numbers that f32 holds; what lies ahead is hidden later.
            *score = *score * factor - slope * far(row, col);
        }
    }
}
