//! Matrix products. The `gemm-f32` crate multiplies f32; we split C over threads and convert other types block by block,
//! except bf16 and f32, which have kernels of their own ([`super::matmul`]).

#![allow(unsafe_code, reason = "the gemm crate takes addresses; threads write parts of one buffer that do not overlap")]

use super::Cpu;
use super::matmul::{self, Right, steps};
use super::stream::{CHUNK, Shared, chunks, load, narrow, widen};
use crate::op::Gemm;
use crate::scratch::library;
use crate::{DType, View, ViewMut};
use std::ops::Range;

/// Largest block of the copies in f32, which bounds the workspace to 32 MiB whatever the matrices.
const ROWS: usize = 1024;
const COLS: usize = 2048;
const DEPTH: usize = 2048;

/// Elements of the copies that `op` needs.
fn workspace(op: &Gemm) -> usize {
    Blocks::of(op).sizes().iter().sum()
}

/// What of a product is copied, and how large a block is.
struct Blocks {
    rows: usize,
    cols: usize,
    depth: usize,
    /// Whether A, B and C are copied.
    copied: [bool; 3],
}

impl Blocks {
    /// f32 operands are used where they are; without copies nothing needs blocks.
    fn of(op: &Gemm) -> Blocks {
        let copied @ [a, b, c] = [op.a, op.b, op.c].map(|dtype| dtype != DType::F32);
        let cut = |size: usize, most: usize, needed: bool| if needed { size.min(most) } else { size };
        Blocks { rows: cut(op.m, ROWS, a || c), cols: cut(op.n, COLS, b || c), depth: cut(op.k, DEPTH, a || b), copied }
    }

    fn sizes(&self) -> [usize; 3] {
        let Blocks { rows, cols, depth, copied: [a, b, c] } = *self;
        [(a, rows * depth), (b, depth * cols), (c, rows * cols)].map(|(copied, size)| if copied { size } else { 0 })
    }
}

/// A matrix in f32 with its strides.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub ptr: *const f32,
    pub row: usize,
    pub col: usize,
}

// SAFETY: an address and strides; whoever reads or writes through it vouches for the memory.
unsafe impl Sync for Matrix {}

impl Matrix {
    /// The matrix that starts at row `i`, column `j`.
    pub fn at(self, i: usize, j: usize) -> Matrix {
        Matrix { ptr: self.ptr.wrapping_add(i * self.row + j * self.col), ..self }
    }

    pub fn transposed(self) -> Matrix {
        Matrix { row: self.col, col: self.row, ..self }
    }
}

/// `C = (C +) alpha A B` on this thread, where C has rows of stride `c_row`.
///
/// # Safety
/// A, B and C must be matrices of these shapes in memory, and C apart from both and in use here alone.
pub(super) unsafe fn multiply(
    [m, n, k]: [usize; 3],
    alpha: f32,
    a: Matrix,
    b: Matrix,
    accumulate: bool,
    c: *mut f32,
    c_row: usize,
) {
    let stride = |s: usize| s as isize;
    // The micro-kernel wants the elements of a column of its output next to each other. C has its rows like that, so the
    // output is its transpose, and Cᵀ = Bᵀ Aᵀ. A C of one column stays as it is.
    let (m, n, a, b, c_column) =
        if c_row > 1 { (n, m, b.transposed(), a.transposed(), c_row) } else { (m, n, a, b, 1) };
    library(|| {
        // SAFETY: the caller vouches for the shapes; strides of matrices in memory fit an isize.
        unsafe {
            gemm_f32::gemm::f32::get_gemm_fn()(
                m,
                n,
                k,
                c,
                stride(c_column),
                1,
                accumulate,
                a.ptr,
                stride(a.col),
                stride(a.row),
                b.ptr,
                stride(b.col),
                stride(b.row),
                1.0f32,
                alpha,
                false,
                false,
                false,
                gemm_common::Parallelism::None,
            )
        }
    });
}

impl Cpu {
    /// `C = (C +) alpha A B` on all threads. Each takes whole elements of C, so the order of every sum depends on the
    /// shape alone.
    ///
    /// # Safety
    /// As [`multiply`].
    unsafe fn multiply_shared(
        &self,
        [m, n, k]: [usize; 3],
        alpha: f32,
        [a, b]: [Matrix; 2],
        accumulate: bool,
        (c, c_row): (*mut f32, usize),
    ) {
        /// Rows of C per call of the library, which packs as many columns of its transpose at a time.
        const MOST_ROWS: usize = 4096;
        // A smaller part could take the library's paths for small matrices and vectors, which sum in another order.
        let least = if m.min(n) < 4 { 1024 } else { 96 };
        let target = Matrix { ptr: c, row: c_row, col: 1 };
        let part = |rows: Range<usize>, cols: Range<usize>| {
            let calls = rows.len().div_ceil(MOST_ROWS);
            for call in 0..calls {
                let rows = share(rows.clone(), call, calls);
                let corner = target.at(rows.start, cols.start).ptr.cast_mut();
                let (a, b) = (a.at(rows.start, 0), b.at(0, cols.start));
                // SAFETY: a block inside the matrices the caller vouches for; blocks of C are disjoint.
                unsafe { multiply([rows.len(), cols.len(), k], alpha, a, b, accumulate, corner, c_row) };
            }
        };
        let parts = (m.max(n) / least).clamp(1, self.pool.threads());
        self.pool.each(parts, |_, number| match m >= n {
            true => part(share(0..m, number, parts), 0..n),
            false => part(0..m, share(0..n, number, parts)),
        });
    }

    /// Converts the block `slow` x `fast` of a matrix stored with `stride` to f32, rows of `fast.len()`.
    fn convert(&self, view: View, stride: usize, slow: Range<usize>, fast: Range<usize>, into: &Shared) {
        let width = fast.len();
        let rows_worth_a_thread = (16 * CHUNK).div_ceil(width.max(1));
        self.pool.split(slow.len(), rows_worth_a_thread, |_, rows| {
            for row in rows {
                let start = (slow.start + row) * stride;
                // SAFETY: each row belongs to one thread.
                let to = unsafe { into.elements::<f32>(row * width..(row + 1) * width) };
                widen(self.level, view.slice(start + fast.start..start + fast.end), to);
            }
        });
    }

    /// Block `rows` x `cols` of an operand: in place when it holds f32, else converted.
    fn block(
        &self,
        view: View,
        [all_rows, all_cols]: [usize; 2],
        trans: bool,
        rows: Range<usize>,
        cols: Range<usize>,
        copy: Option<&Shared>,
    ) -> Matrix {
        let (stride, slow, fast) = if trans { (all_rows, cols, rows) } else { (all_cols, rows, cols) };
        let stored = match copy {
            None => Matrix { ptr: view.ptr().as_ptr().cast(), row: stride, col: 1 }.at(slow.start, fast.start),
            Some(copy) => {
                let width = fast.len();
                self.convert(view, stride, slow, fast, copy);
                Matrix { ptr: copy.address(), row: width, col: 1 }
            }
        };
        if trans { stored.transposed() } else { stored }
    }

    /// Elements of scratch that `op` needs.
    pub(super) fn product_workspace(&self, op: &Gemm) -> usize {
        match matmul::takes(op) {
            true => matmul::workspace(op, self.path, self.pool.threads(), false),
            false => workspace(op),
        }
    }

    /// Elements of scratch that suffice for any group of the rows of `op`.
    pub(super) fn grouped_workspace(&self, op: &Gemm) -> usize {
        match matmul::takes(op) {
            true => matmul::workspace_of_parts(op, self.path, self.pool.threads()),
            false => workspace(op),
        }
    }

    pub(super) fn run_gemm(&self, op: &Gemm, a: View, b: View, c: ViewMut, workspace: ViewMut) {
        match matmul::takes(op) {
            true => self.run_matmul(op, a, Right::Plain(b), c, workspace),
            false => self.run_widened(op, a, b, c, workspace),
        }
    }

    /// Products whose operands are f32 or are made f32 first.
    fn run_widened(&self, op: &Gemm, a: View, b: View, c: ViewMut, workspace: ViewMut) {
        let Gemm { m, n, k, alpha, accumulate, .. } = *op;
        if m == 0 || n == 0 {
            return;
        }
        let blocks = Blocks::of(op);
        let [a_size, b_size, c_size] = blocks.sizes();
        let (copy_a, rest) = workspace.split_at(a_size);
        let (copy_b, rest) = rest.split_at(b_size);
        let (copy_c, _) = rest.split_at(c_size);
        let [c, copy_a, copy_b, copy_c] = [c, copy_a, copy_b, copy_c].map(Shared::new);
        let [copies_a, copies_b, copies_c] = blocks.copied;
        let (copy_a, copy_b) = (copies_a.then_some(&copy_a), copies_b.then_some(&copy_b));
        for cols in steps(n, blocks.cols) {
            // With one block of depth, b is converted once for all rows.
            let mut converted: Option<(usize, Matrix)> = None;
            for rows in steps(m, blocks.rows) {
                let (target, width) = match copies_c {
                    true => (copy_c.address(), cols.len()),
                    false => (c.address().wrapping_add(rows.start * n + cols.start), n),
                };
                for depth in steps(k, blocks.depth) {
                    let a = self.block(a, [m, k], op.trans_a, rows.clone(), depth.clone(), copy_a);
                    let b = match converted {
                        Some((start, b)) if start == depth.start => b,
                        _ => self.block(b, [k, n], op.trans_b, depth.clone(), cols.clone(), copy_b),
                    };
                    converted = Some((depth.start, b));
                    let onto = depth.start > 0 || accumulate && !copies_c;
                    let shape = [rows.len(), cols.len(), depth.len()];
                    // SAFETY: lengths were checked against the shapes, copies hold a block each, and c is lent to us.
                    unsafe { self.multiply_shared(shape, alpha, [a, b], onto, (target, width)) };
                }
                if copies_c {
                    self.round_block(&copy_c, &c, n, rows, cols.clone(), accumulate);
                }
            }
        }
    }

    /// Rounds a finished block of sums into C, onto what is there when asked.
    fn round_block(
        &self,
        sums: &Shared,
        c: &Shared,
        stride: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        accumulate: bool,
    ) {
        let width = cols.len();
        self.pool.split(rows.len(), (16 * CHUNK).div_ceil(width), |_, part| {
            let mut buffer = [0.0; CHUNK];
            for row in part {
                for chunk in chunks(0..width) {
                    let start = (rows.start + row) * stride + cols.start;
                    // SAFETY: each row belongs to one thread.
                    let (sums, mut to) = unsafe {
                        let sums = sums.elements::<f32>(row * width + chunk.start..row * width + chunk.end);
                        (sums, c.part(start + chunk.start..start + chunk.end))
                    };
                    if accumulate {
                        let old = load(self.level, to.as_view(), &mut buffer);
                        sums.iter_mut().zip(old).for_each(|(sum, old)| *sum += old);
                    }
                    narrow(self.level, sums, &mut to);
                }
            }
        });
    }
}

/// Part `number` of `parts` nearly equal ones, cut at multiples of 16.
fn share(range: Range<usize>, number: usize, parts: usize) -> Range<usize> {
    let cut = |i: usize| if i == parts { range.len() } else { range.len() * i / parts / 16 * 16 };
    range.start + cut(number)..range.start + cut(number + 1)
}
