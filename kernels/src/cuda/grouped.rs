//! Matrix products of groups of rows, each with its own matrix. How many rows a group has stands on the device, and the host does
//! not wait for it: there are blocks for the most tiles that groups can have, and those that find no tile end.

#![allow(unsafe_code, reason = "kernels get addresses")]

use super::Cuda;
use super::gemm::{Groups, Product, Way};
use super::launch::{DeviceSlice, arguments};
use super::rows::small;
use crate::Result;
use crate::op::{Grouped, GroupedGemm};

impl Cuda {
    pub(super) fn run_grouped_gemm(
        &self,
        op: &GroupedGemm,
        offsets: DeviceSlice,
        operands: [DeviceSlice; 3],
    ) -> Result<()> {
        // The product of all rows in one group has the shape of every group's, but for the number of rows.
        let name = "grouped_gemm";
        let whole = op.product(op.rows);
        let product = Product::new(name, &whole, operands)?;
        let Way { kernel, shared, tile: [high, wide] } = product.way(&whole);
        let tiles = match op.form {
            Grouped::Weight => op.groups.saturating_mul(op.out.div_ceil(high)).saturating_mul(op.input.div_ceil(wide)),
            // A group's last tile may be short.
            _ if op.rows > 0 => (op.rows / high + op.groups).saturating_mul(whole.n.div_ceil(wide)),
            _ => 0,
        };
        let groups = Groups {
            offsets: offsets.address(),
            faults: self.faults(),
            rows: small(name, "the number of rows", op.rows)?,
            groups: small(name, "the number of groups", op.groups)?,
            inner: u32::from(op.form == Grouped::Weight),
            reserved: 0,
        };
        // SAFETY: the kernel's parameters; the operands were checked against the shape, and the kernel cuts what offsets say to
        // the rows that there are.
        unsafe { self.launch(kernel, [tiles, 1, 1], 256, shared, arguments![product, groups]) }
    }
}
