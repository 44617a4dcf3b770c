//! Matrix products with sums in f32: of two matrices of bf16 in pairs, of others as f32. B is packed into tiles ([`tiles`]),
//! which all threads share. Where A does not lie right by itself, each thread packs the rows of its block of C just before
//! it multiplies them ([`micro`]), so that they are in its own cache.
//!
//! An element of C is the sum of its products in an order that depends on the length of the sum and on the instructions
//! alone: neither the other sizes nor the number of threads nor where the element lies change its bits.

#![allow(unsafe_code, reason = "packed panels are read and written by address")]

pub(crate) mod alone;
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
pub(crate) mod micro;
pub(crate) mod path;
pub(crate) mod tiles;

use super::Cpu;
use super::level::Level;
use super::map::typed;
use super::stream::Shared;
use crate::numerics::round::Float32;
use crate::op::Gemm;
use crate::{DType, View, ViewMut};
use micro::{Block, Held};
use path::Path;
use std::ops::Range;
use tiles::{COLS, Element, Form, ROWS, Source, WORDS};

/// Bytes that packed B may take at a time, whatever the matrices.
const B_BYTES: usize = 16 << 20;
/// Words of the sum that are packed at a time: as many as leave room for 256 rows of A and 512 columns of B.
const DEPTH_WORDS: usize = 8192;
/// Sides of a thread's block of C, at most.
const SIDE: usize = 256;
/// Bytes of A that the rows of a block take, if 32 rows take no more: half of a second cache, whose other half is B's.
const BLOCK_BYTES: usize = 512 << 10;
/// Elements from one row of a thread's sums to the next, which are those of one panel of B: not a power of two, so that rows
/// do not crowd into a few sets of the nearest cache.
const SUMS_ROW: usize = COLS + WORDS;

/// What tiles of both operands hold.
fn element(op: &Gemm) -> Element {
    if [op.a, op.b] == [DType::Bf16; 2] { Element::Pair } else { Element::Single }
}

/// f32 elements of scratch that `op` needs, with B as it is or prepacked.
pub(super) fn workspace(op: &Gemm, path: Path, threads: usize, prepacked: bool) -> usize {
    let [a, b, sums, kept] = Layout::of(op, path, threads).sizes();
    a + if prepacked { 0 } else { b } + sums + kept
}

/// f32 elements of B prepacked; `None` where no product reads it so.
pub(super) fn prepacked_len(op: &Gemm) -> Option<usize> {
    let prepacks = op.a == op.b && matches!(op.b, DType::Bf16 | DType::F32);
    prepacks.then(|| op.n.div_ceil(COLS).saturating_mul(element(op).tiles(op.k)).saturating_mul(WORDS * COLS))
}

/// The right operand of a product.
pub(super) enum Right<'a> {
    Plain(View<'a>),
    /// What [`Cpu::run_prepack`] made of it.
    Prepacked(View<'a>),
}

/// f32 elements of scratch that suffice for `op` and for any product with a smaller side in its place.
pub(super) fn workspace_of_parts(op: &Gemm, path: Path, threads: usize) -> usize {
    let layout = Layout { direct: false, ..Layout::of(op, path, threads) };
    let [a, b, sums, kept] = layout.sizes();
    let sums = sums.max(layout.sums(op.m.min(SIDE).next_multiple_of(COLS)));
    // Fewer terms can leave room for more rows or columns, up to the limit.
    let most_b = op.n.div_ceil(COLS).saturating_mul(layout.element.tiles(op.k)).saturating_mul(WORDS * COLS);
    let rows = op.m.min(SIDE).next_multiple_of(COLS) / ROWS;
    let block = rows.saturating_mul(layout.element.tiles(layout.terms)).saturating_mul(path.tile_bytes(layout.element));
    let most_a = threads.saturating_mul(block.min(BLOCK_BYTES) / 4);
    a.max(most_a) + b.max(most_b.min(B_BYTES / 4)) + sums + kept
}

#[derive(Clone, Copy, Debug)]
struct Layout {
    path: Path,
    element: Element,
    /// Rows, columns and terms between two packings of B.
    rows: usize,
    cols: usize,
    terms: usize,
    /// Sides of a thread's block.
    task_rows: usize,
    task_cols: usize,
    threads: usize,
    /// Whether the sum takes several packings, so that sums must be kept between them.
    deep: bool,
    /// Whether A is read where it lies: its terms adjoin and fill whole tiles.
    direct: bool,
}

impl Layout {
    fn of(op: &Gemm, path: Path, threads: usize) -> Layout {
        let element = element(op);
        let depth = DEPTH_WORDS * element.terms();
        let terms = op.k.min(depth);
        let tiles = element.tiles(terms).max(1);
        let deep = op.k > depth;
        let most_cols = (B_BYTES / (tiles * WORDS * COLS * 4)).max(1) * COLS;
        // Sums that are kept between packings are as many as rows times columns.
        let rows = if deep { op.m.min(SIDE) } else { op.m };
        let cols = op.n.min(most_cols);
        // Blocks are halved until every thread has some to choose from; none is smaller than a tile of sums.
        let round = |side: usize| side.next_multiple_of(COLS);
        let most_task_rows = (BLOCK_BYTES / (tiles * path.tile_bytes(element)) * ROWS / COLS * COLS).clamp(COLS, SIDE);
        let (mut task_rows, mut task_cols) = (round(rows.min(most_task_rows)), round(cols.min(SIDE)));
        let wanted = if threads == 1 { 1 } else { 3 * threads };
        while rows.div_ceil(task_rows.max(1)).saturating_mul(cols.div_ceil(task_cols.max(1))) < wanted {
            match task_rows >= task_cols {
                _ if task_rows.max(task_cols) <= COLS => break,
                true => task_rows = round(task_rows / 2),
                false => task_cols = round(task_cols / 2),
            }
        }
        let is_there = op.a == DType::F32 || element == Element::Pair && !path.widens(element);
        let direct = is_there && !op.trans_a && op.m.is_multiple_of(ROWS) && op.k.is_multiple_of(element.tile());
        Layout { path, element, rows, cols, terms, task_rows, task_cols, threads, deep, direct }
    }

    /// f32 elements of the threads' sums, with blocks of so many rows.
    fn sums(&self, task_rows: usize) -> usize {
        if self.task_cols == 0 { 0 } else { self.threads * task_rows * SUMS_ROW }
    }

    fn source(&self, view: View, stride: usize, terms_adjoin: bool) -> Source {
        Source {
            ptr: view.ptr().as_ptr().cast_const(),
            stored: view.dtype(),
            element: self.element,
            stride,
            terms_adjoin,
        }
    }

    fn right(&self, op: &Gemm, b: View) -> Source {
        self.source(b, if op.trans_b { op.k } else { op.n }, op.trans_b)
    }

    /// f32 elements of a thread's packed block of A, of so many tiles along the sum.
    fn packed(&self, tiles: usize) -> usize {
        if self.direct { 0 } else { self.task_rows / ROWS * tiles * self.path.tile_bytes(self.element) / 4 }
    }

    /// f32 elements of the threads' packed blocks of A, of packed B, of the threads' sums, and of the sums kept between packings.
    fn sizes(&self) -> [usize; 4] {
        let tiles = self.element.tiles(self.terms);
        let a = self.threads * self.packed(tiles);
        let b = self.cols.div_ceil(COLS) * tiles * WORDS * COLS;
        let kept = if self.deep { self.rows * self.cols } else { 0 };
        [a, b, self.sums(self.task_rows), kept]
    }
}

/// What a finished block of sums becomes.
struct Target<'a> {
    c: Shared<'a>,
    dtype: DType,
    /// Elements of a row of C.
    stride: usize,
    alpha: f32,
    accumulate: bool,
}

impl Target<'_> {
    /// Whether sums are elements of C as they are. What is there is added to a complete sum, so that the order does not depend on
    /// where sums are kept; `adds_last` says whether a path does so.
    fn takes_sums(&self, adds_last: bool) -> bool {
        self.dtype == DType::F32 && self.alpha == 1.0 && (adds_last || !self.accumulate)
    }
}

impl Cpu {
    /// Packs all of B, so that products with it need not.
    pub(super) fn run_prepack(&self, op: &Gemm, b: View, to: ViewMut) {
        // Only B is packed, and in one piece.
        let layout = Layout { direct: true, ..Layout::of(op, self.path, self.pool.threads()) };
        let (b, to) = (layout.right(op, b), Shared::new(to));
        self.pack(layout, b, [op.n, op.k], &to);
    }

    /// `C = (C +) alpha A B`.
    pub(super) fn run_matmul(&self, op: &Gemm, a: View, right: Right, c: ViewMut, workspace: ViewMut) {
        let Gemm { m, n, k, .. } = *op;
        if m == 0 || n == 0 {
            return;
        }
        let layout = Layout::of(op, self.path, self.pool.threads());
        let [a_size, mut b_size, sums_size, _] = layout.sizes();
        let (b, prepacked) = match right {
            Right::Plain(b) => (layout.right(op, b), None),
            Right::Prepacked(b) => {
                b_size = 0;
                (layout.right(op, b), Some(b.ptr().as_ptr().cast_const()))
            }
        };
        let (packed_a, rest) = workspace.split_at(a_size);
        let (packed_b, rest) = rest.split_at(b_size);
        let (sums, kept) = rest.split_at(sums_size);
        let [packed_a, packed_b, sums, kept] = [packed_a, packed_b, sums, kept].map(Shared::new);
        let dtype = c.dtype();
        let target = Target { c: Shared::new(c), dtype, stride: n, alpha: op.alpha, accumulate: op.accumulate };
        let a = layout.source(a, if op.trans_a { m } else { k }, !op.trans_a);
        for cols in steps(n, layout.cols) {
            for rows in steps(m, layout.rows) {
                for terms in steps(k, layout.terms) {
                    // With one packing of the sum, B's stays for all rows.
                    let b = b.at(cols.start, terms.start);
                    if prepacked.is_none() && (rows.start == 0 || layout.deep) {
                        self.pack(layout, b, [cols.len(), terms.len()], &packed_b);
                    }
                    let operands = (
                        a.at(rows.start, terms.start),
                        match prepacked {
                            None => Panels::of(layout, packed_b.address().cast(), terms.len()),
                            Some(all) => Panels::of(layout, all, k).from(layout, cols.start, terms.start),
                        },
                    );
                    let ends = (terms.start > 0, terms.end == k);
                    let scratch = [&packed_a, &sums, &kept];
                    self.blocks(layout, [&rows, &cols], (terms.len(), ends), operands, scratch, &target);
                }
            }
        }
    }

    /// Packs a block of B. Threads take runs of tiles of neighbouring panels: a line of memory that panels share is then read
    /// once.
    fn pack(&self, layout: Layout, b: Source, [cols, terms]: [usize; 2], to: &Shared) {
        /// Tiles of a run, and columns side by side.
        const RUN: usize = 16;
        const WIDTH: usize = 128;
        let (tiles, width, tile) = (layout.element.tiles(terms), layout.element.tile(), WORDS * COLS);
        let runs = tiles.div_ceil(RUN);
        self.pool.split(cols.div_ceil(WIDTH) * runs, 1, |_, pieces| {
            for piece in pieces {
                let (first, run) = (piece / runs * WIDTH, piece % runs * RUN);
                let panels = (first..(first + WIDTH).min(cols)).step_by(COLS);
                b.along(panels, run..(run + RUN).min(tiles), |col, number| {
                    let (term, start) = (number * width, (col / COLS * tiles + number) * tile);
                    let sides = [COLS.min(cols - col), width.min(terms - term)];
                    // SAFETY: inside the matrix and the buffer; each tile belongs to one thread.
                    unsafe {
                        let to = to.elements::<f32>(start..start + tile).as_mut_ptr().cast();
                        tiles::pack_cols(self.level, b.at(col, term), sides[0], sides[1], to);
                    }
                });
            }
        });
    }

    /// Multiplies what is packed, block by block. In a block, all rows meet one panel of B, then the next. `ends` says whether
    /// there are sums of earlier terms, and whether these terms are the last.
    fn blocks(
        &self,
        layout: Layout,
        [rows, cols]: [&Range<usize>; 2],
        (terms, ends): (usize, (bool, bool)),
        (a, right): (Source, Panels),
        [packed, sums, kept]: [&Shared; 3],
        target: &Target,
    ) {
        let (path, element) = (layout.path, layout.element);
        let (tiles, depth) = (element.tiles(terms), path.depth(element));
        let (down, across) = (rows.len().div_ceil(layout.task_rows), cols.len().div_ceil(layout.task_cols));
        let worker = |thread: usize| {
            let (sums_size, packed_size) = (layout.task_rows * SUMS_ROW, layout.packed(tiles));
            // SAFETY: each thread has its own sums, and its own packed rows.
            let (sums, packed) = unsafe {
                (
                    sums.elements::<f32>(thread * sums_size..(thread + 1) * sums_size),
                    packed.elements::<f32>(thread * packed_size..(thread + 1) * packed_size),
                )
            };
            let held = (element == Element::Pair).then(|| path.hold());
            Worker { sums, left: Left::of(layout, a, tiles, packed), packed: None, _held: held }
        };
        // A thread's blocks lie side by side: their rows of A are packed once, and stay in its cache.
        self.pool.each_in_runs(down * across, worker, |worker, number| {
            let (row, col) = (number / across * layout.task_rows, number % across * layout.task_cols);
            let height = layout.task_rows.min(rows.len() - row);
            let end = cols.len().min(col + layout.task_cols);
            let left = &worker.left;
            let at = if layout.direct {
                left.at.wrapping_add(row / ROWS * left.panel)
            } else {
                if worker.packed.replace(row) != Some(row) {
                    // SAFETY: inside A, and the thread's packed rows are as many as a block has.
                    unsafe { left.pack(self.level, a.at(row, 0), [height, terms]) };
                }
                left.at
            };
            let sums = &mut *worker.sums;
            for col in (col..end).step_by(COLS) {
                let width = COLS.min(end - col);
                let start = (rows.start + row) * target.stride + cols.start + col;
                // Sums go to C at once where they are its elements. Those of earlier terms stay in scratch meanwhile, or in C where
                // the path cannot add them at the end.
                let is_whole = height.is_multiple_of(ROWS) && width == COLS && tiles > 0;
                let at_once = is_whole && !layout.deep && target.takes_sums(path.adds_last(element));
                let there = (target.c.address().wrapping_add(start), target.stride);
                for first in (0..tiles).step_by(depth) {
                    let goes_on = first + depth < tiles;
                    let ends_there = at_once && !(goes_on && path.adds_last(element));
                    let keeps = ends_there && first > 0 && path.adds_last(element);
                    let (c, c_row) = if ends_there { there } else { (sums.as_mut_ptr(), SUMS_ROW) };
                    let block = Block {
                        a: at.wrapping_add(first * left.tile),
                        element,
                        form: left.form,
                        a_row: left.row,
                        a_tile: left.tile,
                        a_panel: left.panel,
                        rows: height.div_ceil(ROWS),
                        b: right.at.at((col / COLS * right.panel + first * WORDS * COLS) * 4).cast(),
                        b_panel: right.panel,
                        cols: 1,
                        tiles: depth.min(tiles - first),
                        c,
                        c_row,
                        add: if ends_there && !goes_on { target.accumulate || first > 0 && !keeps } else { first > 0 },
                        kept: if keeps { sums.as_ptr() } else { std::ptr::null() },
                        kept_row: SUMS_ROW,
                    };
                    // SAFETY: panels are packed in full; sums have whole panels on both sides, and so has this part of C, which
                    // belongs to this thread.
                    unsafe { path.multiply(block) };
                }
                if at_once {
                    continue;
                }
                if tiles == 0 {
                    sums.fill(0.0);
                }
                if layout.deep && self.keep(kept, layout.cols, [row, col], sums, [height, width], ends) {
                    continue;
                }
                // SAFETY: each block of C belongs to one thread.
                unsafe { self.finish(target, sums, [height, width], start) };
            }
        });
    }

    /// Adds the sums of earlier terms to those of a panel. Where later terms follow it keeps the sums for them and gives true: C is
    /// not written yet.
    fn keep(
        &self,
        kept: &Shared,
        kept_row: usize,
        [row, col]: [usize; 2],
        sums: &mut [f32],
        [height, width]: [usize; 2],
        (later, last): (bool, bool),
    ) -> bool {
        for (line, sums) in sums.chunks_exact_mut(SUMS_ROW).take(height).enumerate() {
            let (start, sums) = ((row + line) * kept_row + col, &mut sums[..width]);
            // SAFETY: each block of C belongs to one thread.
            let kept = unsafe { kept.elements::<f32>(start..start + width) };
            if later {
                sums.iter_mut().zip(&*kept).for_each(|(sum, kept)| *sum += kept);
            }
            if !last {
                kept.copy_from_slice(sums);
            }
        }
        !last
    }

    /// Turns the sums of a panel into elements of C, whose rows begin at `start`.
    ///
    /// # Safety
    /// Nobody else may use these elements.
    unsafe fn finish(&self, target: &Target, sums: &[f32], [height, width]: [usize; 2], start: usize) {
        /// A row. Of a whole one the compiler knows the length.
        #[inline(always)]
        fn row<T: Float32>(sums: &[f32], to: &mut [T], alpha: f32, accumulate: bool) {
            for (sum, to) in sums.iter().zip(to) {
                let sum = alpha * sum;
                *to = T::narrow(if accumulate { sum + to.widen() } else { sum });
            }
        }
        let Target { stride, alpha, accumulate, .. } = *target;
        typed!(target.dtype, T => self.level.run(
            #[inline(always)]
            |_| {
                for line in 0..height {
                    let (start, sums) = (start + line * stride, &sums[line * SUMS_ROW..][..COLS]);
                    // SAFETY: the caller's promise.
                    let to = unsafe { target.c.elements::<T>(start..start + width) };
                    match <&mut [T; COLS]>::try_from(&mut *to) {
                        Ok(to) => row(sums, to, alpha, accumulate),
                        Err(_) => row(&sums[..width], to, alpha, accumulate),
                    }
                }
            },
        ));
    }
}

/// An address that threads share.
struct Bytes(*const u8);

// SAFETY: an address of packed panels, which are only read while it is shared.
unsafe impl Sync for Bytes {}

impl Bytes {
    fn at(&self, offset: usize) -> *const u8 {
        self.0.wrapping_add(offset)
    }
}

/// Where the packed panels of B lie, and how many words apart.
struct Panels {
    at: Bytes,
    panel: usize,
}

impl Panels {
    /// Panels of `terms`.
    fn of(layout: Layout, at: *const u8, terms: usize) -> Panels {
        Panels { at: Bytes(at), panel: layout.element.tiles(terms) * WORDS * COLS }
    }

    /// From a column and a term on that begin a tile.
    fn from(self, layout: Layout, col: usize, term: usize) -> Panels {
        let words = col / COLS * self.panel + term / layout.element.tile() * WORDS * COLS;
        Panels { at: Bytes(self.at.at(words * 4)), ..self }
    }
}

/// Where the tiles of A lie, or those of a thread's block once they are packed, and how far apart, in bytes.
struct Left {
    at: *const u8,
    form: Form,
    row: usize,
    tile: usize,
    panel: usize,
}

impl Left {
    fn of(layout: Layout, a: Source, tiles: usize, packed: &mut [f32]) -> Left {
        if layout.direct {
            let row = a.stride * a.stored.size();
            return Left { at: a.ptr, form: Form::Rows, row, tile: WORDS * 4, panel: ROWS * row };
        }
        let tile = layout.path.tile_bytes(layout.element);
        let form = layout.path.form(layout.element, a.terms_adjoin);
        Left { at: packed.as_mut_ptr().cast(), form, row: tile / ROWS, tile, panel: tiles * tile }
    }

    /// Packs the first rows and terms of `a`.
    ///
    /// # Safety
    /// `a` has so many, and what this was made of has room for them.
    unsafe fn pack(&self, level: Level, a: Source, [rows, terms]: [usize; 2]) {
        let width = a.element.tile();
        a.along((0..rows).step_by(ROWS), 0..a.element.tiles(terms), |row, number| {
            let to = self.at.wrapping_add(row / ROWS * self.panel + number * self.tile).cast_mut().cast();
            let (term, rows) = (number * width, ROWS.min(rows - row));
            // SAFETY: the caller's promise.
            unsafe { tiles::pack_rows(level, self.form, a.at(row, term), rows, width.min(terms - term), to) };
        });
    }
}

/// What a thread has while it multiplies.
struct Worker<'a> {
    sums: &'a mut [f32],
    left: Left,
    /// The first row of the block of A that is packed.
    packed: Option<usize>,
    _held: Option<Held>,
}

/// Ranges of `step` that cover `0..len`: one at least, which is empty when there is nothing.
pub(super) fn steps(len: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len.div_ceil(step.max(1)).max(1)).map(move |i| i * step..((i + 1) * step).min(len))
}
