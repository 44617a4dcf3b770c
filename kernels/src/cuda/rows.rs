//! What goes row by row: norms, biases, rotary embedding. The loss is in loss.rs, the embedding in embedding.rs.

#![allow(unsafe_code, reason = "kernels get addresses")]

use super::Cuda;
use super::launch::{DeviceSlice, SCRATCH_BYTES, arguments, runs};
use crate::op::*;
use crate::{DType, KernelError, Result, View, ViewMut};

/// Threads of most kernels' blocks.
const THREADS: u32 = 256;
/// Blocks that fill any device; what sums are cut into follows from it, so it is not asked of the device.
const MANY: usize = 1024;
/// Shared memory that every device gives a block.
const SHARED: usize = 96 << 10;

/// How threads share rows of so many columns: threads of a block, of them those that have a row together, and so rows that a
/// block has at a time. A warp waits for nobody; wide rows want more threads than that.
pub(super) struct Teams {
    pub threads: u32,
    pub team: u32,
    pub rows: usize,
}

pub(super) fn teams(cols: usize) -> Teams {
    match cols {
        0..=1024 => Teams { threads: 128, team: 32, rows: 4 },
        _ => Teams { threads: THREADS, team: THREADS, rows: 1 },
    }
}

/// A number that a kernel counts in 32 bits.
pub(super) fn small(op: &'static str, what: &str, number: usize) -> Result<u32> {
    let fits = u32::try_from(number).ok().filter(|number| *number <= i32::MAX as u32);
    fits.ok_or_else(|| KernelError::Invalid { op, reason: format!("{what} is {number}, more than a kernel can count") })
}

/// What a norm keeps of its forward, and whether it subtracts the mean.
struct Statistics {
    means: DeviceSlice,
    rstds: DeviceSlice,
}

impl Statistics {
    fn of(all: DeviceSlice, rows: usize, centred: bool) -> Statistics {
        let behind = |elements: usize| DeviceSlice::at(all.address() + 4 * elements as u64, DType::F32);
        match centred {
            true => Statistics { means: behind(0), rstds: behind(rows) },
            false => Statistics { means: DeviceSlice::none(DType::F32), rstds: behind(0) },
        }
    }
}

/// Rows, summed over: dy, dy times x, or dy times the normalised x.
struct Sums {
    dy: DeviceSlice,
    x: DeviceSlice,
    statistics: Statistics,
    rows: usize,
    period: usize,
    cols: usize,
}

impl Cuda {
    /// The operations on whole rows; `None` if `op` is not one of them.
    pub(super) fn run_rows(&self, op: &Op, reads: &[View<'_>], writes: &[ViewMut<'_>]) -> Option<Result<()>> {
        let ([a, b, c, d], [x, y, _]) = runs(reads, writes);
        let gradient = |number: usize| writes.get(number).map(|view| DeviceSlice::of(view));
        let nothing = || Statistics { means: DeviceSlice::none(DType::F32), rstds: DeviceSlice::none(DType::F32) };
        Some(match op {
            Op::RmsNorm(op) => {
                let statistics = Statistics::of(y, op.rows, false);
                self.norm([a, b, DeviceSlice::none(op.dtype), x], statistics, op.rows, op.cols, op.eps)
            }
            Op::LayerNorm(op) => {
                let bias = if op.bias { c } else { DeviceSlice::none(op.dtype) };
                self.norm([a, b, bias, x], Statistics::of(y, op.rows, true), op.rows, op.cols, op.eps)
            }
            Op::RmsNormBackward(op) => {
                self.norm_backward([a, b, d, x], c, false, op.rows, op.cols, [gradient(1), None])
            }
            Op::LayerNormBackward(op) => {
                self.norm_backward([a, b, d, x], c, true, op.rows, op.cols, [gradient(1), gradient(2)])
            }
            Op::BiasAdd(op) => self.change_rows(a, x, op.rows, op.period, op.cols, false),
            Op::BiasAddBackward(op) => {
                let none = DeviceSlice::none(op.dtype);
                let BiasAdd { rows, period, cols, .. } = *op;
                self.column_sums(Sums { dy: a, x: none, statistics: nothing(), rows, period, cols }, x)
            }
            Op::ScaleColumns(op) => self.change_rows(a, x, op.rows, 1, op.cols, true),
            Op::ScaleColumnsBackward(op) => {
                let ScaleColumns { rows, cols, .. } = *op;
                self.column_sums(Sums { dy: b, x: a, statistics: nothing(), rows, period: 1, cols }, x)
            }
            Op::RowInvNorm(op) => self.row_inv_norm(op, a, x),
            Op::Rope(op) => self.rope(op, x, a, b),
            _ => return None,
        })
    }

    fn norm(&self, [x, w, b, y]: [DeviceSlice; 4], kept: Statistics, rows: usize, cols: usize, eps: f64) -> Result<()> {
        let teams = teams(cols);
        let (grid, team, eps) = ([rows.div_ceil(teams.rows), 1, 1], teams.team, eps as f32);
        let arguments = arguments![x, w, b, y, kept.means, kept.rstds, rows, cols, team, eps];
        // SAFETY: the kernel's parameters; the operands were checked against rows and columns.
        unsafe { self.launch("norm_forward", grid, teams.threads, 0, arguments) }
    }

    /// The gradients of weights come out of the same pass over x and dy, as sums of some rows each, where a block can keep them;
    /// else they are summed in a pass of their own.
    fn norm_backward(
        &self,
        [x, w, dy, dx]: [DeviceSlice; 4],
        statistics: DeviceSlice,
        centred: bool,
        rows: usize,
        cols: usize,
        targets: [Option<DeviceSlice>; 2],
    ) -> Result<()> {
        let Teams { threads, team, rows: at_once } = teams(cols);
        let kept = Statistics::of(statistics, rows, centred);
        let sums = targets.iter().flatten().count();
        let slots = cols.next_multiple_of(8 * team as usize);
        let shared = at_once * sums * slots * 4;
        let most = SCRATCH_BYTES / (sums * cols * 4).max(1);
        let together = sums > 0 && shared <= SHARED && most > 0;
        let blocks = match together {
            true => (rows / (4 * at_once)).clamp(1, most.min(MANY)),
            false => rows.div_ceil(at_once),
        };
        let of_block = rows.div_ceil(blocks.max(1)).next_multiple_of(at_once);
        let blocks = rows.div_ceil(of_block.max(1));
        let scratch = self.scratch();
        let partials = if together { DeviceSlice::at(*scratch, DType::F32) } else { DeviceSlice::none(DType::F32) };
        let shared = if together { shared } else { 0 };
        let count = sums as u32;
        let arguments = arguments![x, w, kept.means, kept.rstds, dy, dx, partials, rows, cols, of_block, team, count];
        // SAFETY: the kernel's parameters; the operands were checked against rows and columns, and the partial sums of all
        // blocks fit the scratch.
        unsafe { self.launch("norm_backward", [blocks, 1, 1], threads, shared, arguments)? };
        if together {
            for (number, target) in targets.into_iter().flatten().enumerate() {
                let from = *scratch + (number * blocks * cols * 4) as u64;
                self.sum_parts(DeviceSlice::at(from, DType::F32), target, blocks, cols)?;
            }
            return Ok(());
        }
        drop(scratch);
        // The first is the weight's, the second the bias's.
        for (target, x) in targets.into_iter().zip([x, DeviceSlice::none(DType::F32)]) {
            let Some(target) = target else { continue };
            let statistics = Statistics::of(statistics, rows, centred);
            self.column_sums(Sums { dy, x, statistics, rows, period: 1, cols }, target)?;
        }
        Ok(())
    }

    fn sum_parts(&self, partials: DeviceSlice, into: DeviceSlice, parts: usize, len: usize) -> Result<()> {
        let grid = [if parts == 0 { 0 } else { len.div_ceil(32) }, 1, 1];
        // SAFETY: the kernel's parameters; `parts` times `len` sums were written before, and `into` holds `len` elements.
        unsafe { self.launch("sum_parts", grid, 512, 0, arguments![partials, into, parts, len]) }
    }

    /// `into[r % period] += row r`, in an order that follows from the shape.
    fn column_sums(&self, sums: Sums, into: DeviceSlice) -> Result<()> {
        let Sums { dy, x, statistics: Statistics { means, rstds }, rows, period, cols } = sums;
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let (firsts, tiles) = (period.min(rows), cols.div_ceil(256));
        let deep = rows.div_ceil(period);
        // A part is worth a block: eight rows for each of its warps.
        let most = (SCRATCH_BYTES / 4 / (firsts * cols)).min(deep / 64).max(1);
        let parts = (MANY / (tiles * firsts)).clamp(1, most);
        let of_part = deep.div_ceil(parts);
        let parts = deep.div_ceil(of_part);
        let scratch = self.scratch();
        let target = if parts == 1 { into } else { DeviceSlice::at(*scratch, DType::F32) };
        let grid = [tiles * firsts * parts, 1, 1];
        let arguments = arguments![dy, x, means, rstds, target, rows, period, cols, parts, of_part];
        // SAFETY: the kernel's parameters; the operands were checked against rows and columns, and the sums of all parts
        // fit the scratch.
        unsafe { self.launch("column_sums", grid, THREADS, 0, arguments)? };
        if parts == 1 { Ok(()) } else { self.sum_parts(target, into, parts, firsts * cols) }
    }

    fn change_rows(
        &self,
        table: DeviceSlice,
        x: DeviceSlice,
        rows: usize,
        period: usize,
        cols: usize,
        times: bool,
    ) -> Result<()> {
        let teams = teams(cols);
        let grid = [if cols == 0 { 0 } else { rows.div_ceil(teams.rows) }, 1, 1];
        let times = u32::from(times);
        let arguments = arguments![table, x, rows, period, cols, teams.team, times];
        // SAFETY: the kernel's parameters; the operands were checked against rows and columns.
        unsafe { self.launch("broadcast_rows", grid, teams.threads, 0, arguments) }
    }

    fn row_inv_norm(&self, op: &RowInvNorm, x: DeviceSlice, s: DeviceSlice) -> Result<()> {
        let teams = teams(op.cols);
        let grid = [op.rows.div_ceil(teams.rows), 1, 1];
        let arguments = arguments![x, s, op.rows, op.cols, teams.team];
        // SAFETY: the kernel's parameters; the operands were checked against rows and columns.
        unsafe { self.launch("inverse_norms", grid, teams.threads, 0, arguments) }
    }

    fn rope(&self, op: &Rope, x: DeviceSlice, cos: DeviceSlice, sin: DeviceSlice) -> Result<()> {
        let half = op.head_dim / 2;
        if op.rows == 0 || op.heads == 0 || half == 0 {
            return Ok(());
        }
        let width = op.heads.saturating_mul(half.next_multiple_of(8));
        small("rope", "half the width of a token", width)?;
        let teams = teams(width);
        let grid = [op.rows.div_ceil(teams.rows), 1, 1];
        let (heads, half, sign) = (op.heads as u32, half as u32, if op.inverse { -1f32 } else { 1.0 });
        let arguments = arguments![x, cos, sin, op.rows, op.seq, heads, half, teams.team, sign];
        // SAFETY: the kernel's parameters; the operands were checked against the shape.
        unsafe { self.launch("rope", grid, teams.threads, 0, arguments) }
    }
}
