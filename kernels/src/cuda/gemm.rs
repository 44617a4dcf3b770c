//! Matrix products: the vendor's library, and kernels of our own where it has none.

#![allow(unsafe_code, reason = "kernels get addresses")]

use super::Cuda;
use super::launch::{Argument, DeviceSlice, arguments};
use super::rows::small;
use crate::memory::device::Address;
use crate::op::Gemm;
use crate::{DType, Result, ViewMut};

/// Elements of f32 that a product may use, where the device's library wants so many bytes.
pub(super) fn workspace(op: &Gemm, bytes: usize) -> usize {
    if op.m == 0 || op.n == 0 || op.k == 0 { 0 } else { bytes.div_ceil(4) }
}

/// As product.h has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Product {
    a: DeviceSlice,
    b: DeviceSlice,
    c: DeviceSlice,
    m: u32,
    n: u32,
    k: u32,
    trans: u32,
    accumulate: u32,
    alpha: f32,
    pitch_a: u32,
    pitch_c: u32,
    reserved: [u32; 2],
}

/// As product.h has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Groups {
    pub offsets: Address,
    pub faults: Address,
    pub rows: u32,
    pub groups: u32,
    pub inner: u32,
    pub reserved: u32,
}

// SAFETY: laid out alike in C.
unsafe impl Argument for Product {}
// SAFETY: laid out alike in C.
unsafe impl Argument for Groups {}

#[derive(Clone, Copy)]
pub(super) struct Way {
    pub kernel: &'static str,
    pub shared: usize,
    /// Rows and columns of C that a block has.
    pub tile: [usize; 2],
}

impl Product {
    pub(super) fn new(name: &'static str, op: &Gemm, [a, b, c]: [DeviceSlice; 3]) -> Result<Product> {
        let (m, n, k) = (small(name, "m", op.m)?, small(name, "n", op.n)?, small(name, "k", op.k)?);
        let trans = u32::from(op.trans_a) | u32::from(op.trans_b) << 1;
        let pitch_a = small(name, "the pitch of A", op.stored_a()[2])?;
        let pitch_c = small(name, "the pitch of C", op.stored_c()[2])?;
        let (accumulate, alpha) = (u32::from(op.accumulate), op.alpha);
        Ok(Product { a, b, c, m, n, k, trans, accumulate, alpha, pitch_a, pitch_c, reserved: [0; 2] })
    }

    /// Tensor cores take operands of one type of two bytes, in words of 16 bytes.
    pub(super) fn way(&self, op: &Gemm) -> Way {
        let whole = |run: &DeviceSlice, row: usize| run.address().is_multiple_of(16) && row.is_multiple_of(8);
        let [_, columns, pitch] = op.stored_a();
        let rows = [if columns.is_multiple_of(8) { pitch } else { columns }, if op.trans_b { op.k } else { op.n }];
        let tensor = |kernel| Way { kernel, shared: 64 << 10, tile: [128, 128] };
        match (op.a, op.b, whole(&self.a, rows[0]) && whole(&self.b, rows[1])) {
            (DType::Bf16, DType::Bf16, true) => tensor("gemm_bf16"),
            (DType::F16, DType::F16, true) => tensor("gemm_f16"),
            _ => Way { kernel: "gemm_any", shared: 0, tile: [128, 64] },
        }
    }
}

impl Cuda {
    pub(super) fn run_gemm(&self, op: &Gemm, operands: [DeviceSlice; 3], workspace: &ViewMut) -> Result<()> {
        if op.m == 0 || op.n == 0 {
            return Ok(());
        }
        if op.k > 0 {
            let [a, b, c] = operands.map(|run| run.address());
            let (scratch, bytes) = (DeviceSlice::of(workspace).address(), workspace.len() * 4);
            // SAFETY: the operands were checked against `op`, and the workspace holds so many bytes.
            if unsafe { self.stream.blas_gemm(op, a, b, c, scratch, bytes)? } {
                return Ok(());
            }
        }
        let product = Product::new("gemm", op, operands)?;
        let Way { kernel, shared, tile } = product.way(op);
        let grid = [op.m.div_ceil(tile[0]) * op.n.div_ceil(tile[1]), 1, 1];
        let one = Groups { offsets: 0, faults: self.faults(), rows: 0, groups: 0, inner: 0, reserved: 0 };
        // SAFETY: the kernel's parameters; the operands were checked against `op`.
        unsafe { self.launch(kernel, grid, 256, shared, arguments![product, one]) }
    }
}
