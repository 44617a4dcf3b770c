//! Matrix products of bf16 with sums in f32: both operands are packed into tiles ([`tiles`]), which all threads share,
//! and blocks of C are multiplied out of them ([`micro`]).
//!
//! An element of C is the sum of its products in an order that depends on the length of the sum and on the instructions
//! alone: neither the other sizes nor the number of threads nor where the element lies change its bits.

#[cfg(target_arch = "x86_64")]
mod amx;
mod micro;
pub(crate) mod path;
mod tiles;

use super::Cpu;
use super::stream::{CHUNK, Shared, load, narrow};
use crate::op::Gemm;
use crate::{DType, View, ViewMut};
use micro::Block;
use path::Path;
use std::ops::Range;
use tiles::{COLS, PAIRS, ROWS, Source, TERMS};

/// Bytes that packed A, and packed B, may take at a time, whatever the matrices.
const A_BYTES: usize = 8 << 20;
const B_BYTES: usize = 16 << 20;
/// Terms of the sum that are packed at a time: as many as leave room for 256 rows of A and 512 columns of B.
const DEPTH: usize = 16_384;
/// Sides of a thread's block of C, at most: its sums and its rows of A share the second cache.
const SIDE: usize = 256;

/// Whether [`Cpu::run_matmul`] does this product.
pub(super) fn takes(op: &Gemm) -> bool {
    op.a == DType::Bf16 && op.b == DType::Bf16
}

/// f32 elements of scratch that `op` needs.
pub(super) fn workspace(op: &Gemm, path: Path, threads: usize) -> usize {
    Layout::of(op, path, threads).sizes().iter().sum()
}

/// How a product is cut.
#[derive(Clone, Copy, Debug)]
struct Layout {
    path: Path,
    /// Rows, columns and terms that are packed at a time.
    rows: usize,
    cols: usize,
    terms: usize,
    /// Sides of a thread's block.
    task_rows: usize,
    task_cols: usize,
    threads: usize,
    /// Whether the sum takes several packings, so that sums must be kept between them.
    deep: bool,
}

impl Layout {
    fn of(op: &Gemm, path: Path, threads: usize) -> Layout {
        let terms = op.k.min(DEPTH);
        let tiles = tiles::tiles(terms).max(1);
        let most_rows = (A_BYTES / (tiles * path.tile_bytes())).max(1) * ROWS;
        let most_cols = (B_BYTES / (tiles * PAIRS * COLS * 4)).max(1) * COLS;
        let rows = op.m.min(most_rows);
        let cols = op.n.min(most_cols);
        // Blocks are halved until every thread has some to choose from; none is smaller than a tile of sums.
        let round = |side: usize| side.next_multiple_of(COLS);
        let (mut task_rows, mut task_cols) = (round(rows.min(SIDE)), round(cols.min(SIDE)));
        let wanted = if threads == 1 { 1 } else { 3 * threads };
        while rows.div_ceil(task_rows.max(1)) * cols.div_ceil(task_cols.max(1)) < wanted {
            match task_rows >= task_cols {
                _ if task_rows.max(task_cols) <= COLS => break,
                true => task_rows = round(task_rows / 2),
                false => task_cols = round(task_cols / 2),
            }
        }
        Layout { path, rows, cols, terms, task_rows, task_cols, threads, deep: op.k > DEPTH }
    }

    /// f32 elements of packed A, of packed B, of the threads' sums, and of the sums kept between packings.
    fn sizes(&self) -> [usize; 4] {
        let tiles = tiles::tiles(self.terms);
        let a = self.rows.div_ceil(ROWS) * tiles * self.path.tile_bytes() / 4;
        let b = self.cols.div_ceil(COLS) * tiles * PAIRS * COLS;
        let kept = if self.deep { self.rows * self.cols } else { 0 };
        [a, b, self.threads * self.task_rows * self.task_cols, kept]
    }
}

/// What a finished block of sums becomes.
struct Target<'a> {
    c: Shared<'a>,
    /// Elements of a row of C.
    stride: usize,
    alpha: f32,
    accumulate: bool,
}

impl Cpu {
    /// `C = (C +) alpha A B` of two matrices of bf16.
    pub(super) fn run_matmul(&self, op: &Gemm, a: View, b: View, c: ViewMut, workspace: ViewMut) {
        let Gemm { m, n, k, .. } = *op;
        if m == 0 || n == 0 {
            return;
        }
        let layout = Layout::of(op, self.path, self.pool.threads());
        let [a_size, b_size, sums_size, _] = layout.sizes();
        let (packed_a, rest) = workspace.split_at(a_size);
        let (packed_b, rest) = rest.split_at(b_size);
        let (sums, kept) = rest.split_at(sums_size);
        let [packed_a, packed_b, sums, kept] = [packed_a, packed_b, sums, kept].map(Shared::new);
        let target = Target { c: Shared::new(c), stride: n, alpha: op.alpha, accumulate: op.accumulate };
        let a = source(a, if op.trans_a { m } else { k }, !op.trans_a);
        let b = source(b, if op.trans_b { k } else { n }, op.trans_b);
        for cols in steps(n, layout.cols) {
            for rows in steps(m, layout.rows) {
                for terms in steps(k, layout.terms) {
                    // With one packing of the sum, B's stays for all rows.
                    let again = rows.start == 0 || layout.deep;
                    let from_b = again.then(|| b.at(cols.start, terms.start));
                    let from_a = a.at(rows.start, terms.start);
                    self.pack(layout, [from_a, from_b.unwrap_or(b)], [rows.len(), cols.len(), terms.len()], again, [
                        &packed_a, &packed_b,
                    ]);
                    let ends = (terms.start > 0, terms.end == k);
                    self.blocks(layout, &rows, &cols, terms.len(), ends, [&packed_a, &packed_b, &sums, &kept], &target);
                }
            }
        }
    }

    /// Packs a block of A, and one of B if `both`; every panel by one thread.
    fn pack(
        &self,
        layout: Layout,
        [a, b]: [Source; 2],
        [rows, cols, terms]: [usize; 3],
        both: bool,
        [to_a, to_b]: [&Shared; 2],
    ) {
        let tiles = tiles::tiles(terms);
        let (a_panels, b_panels) = (rows.div_ceil(ROWS), if both { cols.div_ceil(COLS) } else { 0 });
        let (a_panel, b_panel) = (tiles * layout.path.tile_bytes() / 4, tiles * PAIRS * COLS);
        // Panels of B are twice as wide.
        let grain = (1usize << 15).div_ceil(tiles.max(1) * TERMS * COLS);
        self.pool.split(a_panels.div_ceil(2) + b_panels, grain, |_, panels| {
            for panel in panels {
                if let Some(panel) = panel.checked_sub(a_panels.div_ceil(2)) {
                    let first = panel * COLS;
                    // SAFETY: inside the matrix and the buffer; each panel belongs to one thread.
                    unsafe {
                        let to = to_b.floats(panel * b_panel..(panel + 1) * b_panel).as_mut_ptr().cast();
                        tiles::pack_cols(self.level, b.at(first, 0), COLS.min(cols - first), terms, to);
                    }
                    continue;
                }
                for panel in 2 * panel..(2 * panel + 2).min(a_panels) {
                    let first = panel * ROWS;
                    let (from, rows) = (a.at(first, 0), ROWS.min(rows - first));
                    // SAFETY: as above.
                    unsafe {
                        let to = to_a.floats(panel * a_panel..(panel + 1) * a_panel).as_mut_ptr();
                        match layout.path.widens() {
                            true => tiles::pack_rows_wide(self.level, from, rows, terms, to),
                            false => tiles::pack_rows(self.level, from, rows, terms, to.cast()),
                        }
                    }
                }
            }
        });
    }

    /// Multiplies what is packed, block by block. `ends` says whether there are sums of earlier terms, and whether these
    /// terms are the last.
    fn blocks(
        &self,
        layout: Layout,
        rows: &Range<usize>,
        cols: &Range<usize>,
        terms: usize,
        (later, last): (bool, bool),
        [a, b, sums, kept]: [&Shared; 4],
        target: &Target,
    ) {
        let (path, tiles) = (layout.path, tiles::tiles(terms));
        let (a_panel, b_panel) = (tiles * path.tile_bytes(), tiles * PAIRS * COLS);
        let size = layout.task_rows * layout.task_cols;
        let down = rows.len().div_ceil(layout.task_rows);
        let (a, b) = (Bytes(a.address().cast()), Bytes(b.address().cast()));
        self.pool.each(down * cols.len().div_ceil(layout.task_cols), |thread, number| {
            let (row, col) = (number % down * layout.task_rows, number / down * layout.task_cols);
            let (height, width) = (layout.task_rows.min(rows.len() - row), layout.task_cols.min(cols.len() - col));
            // SAFETY: each thread has its own sums.
            let sums = unsafe { sums.floats(thread * size..(thread + 1) * size) };
            for first in (0..tiles).step_by(path.depth()) {
                let block = Block {
                    a: a.at(row / ROWS * a_panel + first * path.tile_bytes()),
                    a_panel,
                    rows: height.div_ceil(ROWS),
                    b: b.at((col / COLS * b_panel + first * PAIRS * COLS) * 4).cast(),
                    b_panel,
                    cols: width.div_ceil(COLS),
                    tiles: path.depth().min(tiles - first),
                    c: sums.as_mut_ptr(),
                    c_row: layout.task_cols,
                    add: first > 0,
                };
                // SAFETY: panels are packed in full; a block of sums has whole panels on both sides.
                unsafe { path.multiply(block) };
            }
            if tiles == 0 {
                sums.fill(0.0);
            }
            for (line, sums) in sums.chunks_exact_mut(layout.task_cols).take(height).enumerate() {
                let sums = &mut sums[..width];
                if layout.deep {
                    let start = (row + line) * layout.cols + col;
                    // SAFETY: each block of C belongs to one thread.
                    let kept = unsafe { kept.floats(start..start + width) };
                    if later {
                        sums.iter_mut().zip(&*kept).for_each(|(sum, kept)| *sum += kept);
                    }
                    if !last {
                        kept.copy_from_slice(sums);
                        continue;
                    }
                }
                let start = (rows.start + row + line) * target.stride + cols.start + col;
                // SAFETY: as above.
                unsafe { self.finish(target, sums, start) };
            }
        });
    }

    /// Turns sums into elements of C from `start` on.
    ///
    /// # Safety
    /// Nobody else may use these elements.
    unsafe fn finish(&self, target: &Target, sums: &mut [f32], start: usize) {
        let mut buffer = [0.0; CHUNK];
        // SAFETY: the caller's promise.
        let mut to = unsafe { target.c.part(start..start + sums.len()) };
        let old = target.accumulate.then(|| load(self.level, to.as_view(), &mut buffer));
        self.level.run(
            #[inline(always)]
            |_| match old {
                _ if target.alpha != 1.0 => sums.iter_mut().for_each(|sum| *sum *= target.alpha),
                _ => {}
            },
        );
        if let Some(old) = old {
            self.level.run(
                #[inline(always)]
                |_| sums.iter_mut().zip(old).for_each(|(sum, old)| *sum += old),
            );
        }
        narrow(self.level, sums, &mut to);
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

fn source(view: View, stride: usize, terms_adjoin: bool) -> Source {
    Source { ptr: view.ptr().as_ptr().cast::<u16>().cast_const(), stride, terms_adjoin }
}

/// Ranges of `step` that cover `0..len`: one at least, which is empty when there is nothing.
fn steps(len: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len.div_ceil(step.max(1)).max(1)).map(move |i| i * step..((i + 1) * step).min(len))
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
pub(crate) mod emulator;
