//! A mixture of experts: routing, moving rows to their experts and back, and products in groups.

#![allow(unsafe_code, reason = "kernels get addresses")]

use super::Cuda;
use super::launch::{Argument, DeviceSlice, arguments, number};
use crate::memory::device::Address;
use crate::op::{Combine, Route, Slots};
use crate::{DType, KernelError, Result};

const THREADS: u32 = 256;
const WARP: usize = 32;
/// Choices that a warp sorts, at least.
const CHUNK: usize = 2048;

/// What `route` wrote, as kernels/cuda/experts.cu has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Indices {
    ids: Address,
    order: Address,
    places: Address,
    slots: u64,
    experts: u32,
    top: u32,
    faults: Address,
}

// SAFETY: laid out alike in C.
unsafe impl Argument for Indices {}

impl Cuda {
    /// The parts of the indices of `rows x top` choices.
    fn parts(&self, indices: DeviceSlice, [rows, top, experts]: [usize; 3]) -> Indices {
        let slots = (rows * top) as u64;
        let part = |number: u64| indices.address() + number * slots * size_of::<u32>() as u64;
        let (ids, order, places) = (part(0), part(1), part(2));
        Indices { ids, order, places, slots, experts: experts as u32, top: top as u32, faults: self.faults() }
    }

    /// Blocks for work of which a warp takes a piece at a time.
    fn warps(&self, pieces: usize) -> [usize; 3] {
        [self.blocks(pieces, THREADS as usize / WARP), 1, 1]
    }

    pub(super) fn run_route(
        &self,
        op: &Route,
        logits: DeviceSlice,
        weights: DeviceSlice,
        indices: DeviceSlice,
    ) -> Result<()> {
        let Route { rows, experts, top, .. } = *op;
        let all = self.parts(indices, [rows, top, experts]);
        let Indices { ids, order, places, slots, .. } = all;
        let offsets = places + slots * size_of::<u32>() as u64;
        if slots == 0 {
            // SAFETY: the indices end with the offsets (checked).
            return Ok(unsafe { self.stream.memset(offsets, 0, (experts + 1) * size_of::<u32>()) }?);
        }
        let shared = experts.saturating_mul(size_of::<u32>());
        let most = self.device.props().shared_bytes as usize;
        if shared > most {
            let reason = format!("{experts} experts are too many to be counted in {most} bytes of shared memory");
            return Err(KernelError::Invalid { op: "route", reason });
        }
        let round_to = if op.rounded { number(op.dtype) } else { number(DType::F32) };
        let (each, normalised, weights) = (all.top, u32::from(op.normalised), weights.address());
        // SAFETY: the kernel's parameters; shapes were checked.
        unsafe {
            let arguments = arguments![logits, rows, all.experts, each, normalised, round_to, weights, ids];
            self.launch("route_topk", self.warps(rows), THREADS, 0, arguments)?;
        }
        let chunk = CHUNK.max((2 * experts).next_multiple_of(WARP));
        let chunks = op.slots().div_ceil(chunk);
        // Counts of many chunks lie where places will: no more than half of the choices and one expert's count each, while
        // a chunk is twice the experts long. Those of a single chunk become the offsets where they lie.
        let counts = if chunks > 1 { places } else { offsets };
        let (grid, size, number_of, experts) = ([chunks, 1, 1], chunk as u32, chunks as u32, all.experts);
        // SAFETY: the kernels' parameters, in memory that the indices have (checked); ids are those just chosen.
        unsafe {
            self.launch("route_histogram", grid, WARP as u32, shared, arguments![ids, slots, size, experts, counts])?;
            self.launch("route_scan", [1; 3], THREADS, 0, arguments![counts, offsets, number_of, experts])?;
            let arguments = arguments![ids, slots, size, experts, counts, order];
            self.launch("route_scatter", grid, WARP as u32, shared, arguments)?;
            let grid = [self.blocks(op.slots(), THREADS as usize), 1, 1];
            self.launch("route_invert", grid, THREADS, 0, arguments![order, places, slots])
        }
    }

    pub(super) fn run_route_backward(
        &self,
        op: &Route,
        [logits, indices, dweights, dlogits]: [DeviceSlice; 4],
    ) -> Result<()> {
        let all = self.parts(indices, [op.rows, op.top, op.experts]);
        let (dweights, normalised) = (dweights.address(), u32::from(op.normalised));
        let arguments = arguments![all, logits, dweights, dlogits, op.rows, normalised];
        // SAFETY: the kernel's parameters; shapes were checked, and the kernel checks the experts.
        unsafe { self.launch("route_backward", self.warps(op.rows), THREADS, 0, arguments) }
    }

    pub(super) fn run_dispatch(&self, op: &Slots, [indices, x, y]: [DeviceSlice; 3]) -> Result<()> {
        let all = self.parts(indices, [op.rows, op.top, op.experts]);
        // SAFETY: the kernel's parameters; shapes were checked, and the kernel checks the indices.
        unsafe { self.launch("dispatch", self.warps(op.slots()), THREADS, 0, arguments![all, x, y, op.cols]) }
    }

    pub(super) fn run_combine(&self, op: &Combine, [indices, x, weights, y]: [DeviceSlice; 4]) -> Result<()> {
        let Slots { rows, top, experts, cols, .. } = op.slots;
        let all = self.parts(indices, [rows, top, experts]);
        let (weights, accumulate) = (weights.address(), u32::from(op.accumulate));
        let grid = self.warps(rows * cols.div_ceil(256));
        // SAFETY: the kernel's parameters; shapes were checked, and the kernel checks the indices.
        unsafe { self.launch("combine", grid, THREADS, 0, arguments![all, x, weights, accumulate, y, rows, cols]) }
    }

    pub(super) fn run_router_weight_backward(
        &self,
        op: &Slots,
        [indices, weights, x, dx, dweights]: [DeviceSlice; 5],
    ) -> Result<()> {
        let all = self.parts(indices, [op.rows, op.top, op.experts]);
        let (weights, dweights) = (weights.address(), dweights.address());
        let arguments = arguments![all, weights, x, dx, dweights, op.cols];
        // SAFETY: the kernel's parameters; shapes were checked, and the kernel checks the indices.
        unsafe { self.launch("weigh", self.warps(op.slots()), THREADS, 0, arguments) }
    }
}
