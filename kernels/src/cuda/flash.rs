//! Starting attention's kernels: on the tensor cores where types, head sizes and addresses suit them, else in f32 arithmetic.

#![allow(unsafe_code, reason = "kernels get addresses")]

use super::Cuda;
use super::launch::{Argument, DeviceSlice, arguments};
use crate::memory::device::Address;
use crate::op::*;
use crate::{DType, KernelError, Result};

/// Operands and shape as `attention.h` lays them out.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Attend {
    /// q, k and v.
    inputs: [DeviceSlice; 3],
    out: DeviceSlice,
    dout: DeviceSlice,
    /// dq, dk and dv.
    gradients: [DeviceSlice; 3],
    probs: DeviceSlice,
    lse: Address,
    delta: Address,
    starts: Address,
    batch: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    rows: u32,
    keys: u32,
    window: i32,
    alibi_first: u32,
    alibi_heads: u32,
    q_offset: i32,
    k_offset: i32,
    scale: f32,
    scale2: f32,
    section: u32,
}
// SAFETY: laid out alike in C.
unsafe impl Argument for Attend {}

/// Positions, and differences of any two, fit into an i32.
const MOST: usize = 1 << 30;
/// Bytes of keys and values, or of queries and gradients, that blocks at work at one time read: some of a GPU's second cache.
const CACHED: usize = 24 << 20;

/// The kernels of the tensor cores for a type and a head size: forward, gradients of keys, gradients of queries.
const TENSOR: [(DType, usize, [&str; 3]); 6] = [
    (DType::Bf16, 64, ["flash_bf16_64", "flash_dkv_bf16_64", "flash_dq_bf16_64"]),
    (DType::Bf16, 96, ["flash_bf16_96", "flash_dkv_bf16_96", "flash_dq_bf16_96"]),
    (DType::Bf16, 128, ["flash_bf16_128", "flash_dkv_bf16_128", "flash_dq_bf16_128"]),
    (DType::F16, 64, ["flash_f16_64", "flash_dkv_f16_64", "flash_dq_f16_64"]),
    (DType::F16, 96, ["flash_f16_96", "flash_dkv_f16_96", "flash_dq_f16_96"]),
    (DType::F16, 128, ["flash_f16_128", "flash_dkv_f16_128", "flash_dq_f16_128"]),
];
/// Queries of a block, and keys of one that owns keys.
pub(super) const TILE: usize = 128;
/// Rows and keys of a tile in the kernels for heads of any size, and columns of a head that a block sums up.
const PLAIN_TILE: usize = 64;
const PLAIN_COLUMNS: usize = 128;

/// Elements of f32 that an operation uses for each query of each head: a backward for the sum of `dout * out`, a forward
/// which stores its probabilities for each row's log-sum-exp.
pub(super) fn lines(op: &Attention) -> usize {
    op.batch.saturating_mul(op.heads).saturating_mul(op.seq)
}

/// Whether there is nothing to do. Else the shape is one that kernels can count in.
fn is_empty(name: &'static str, op: &Attention) -> Result<bool> {
    if lines(op) == 0 || op.head_dim == 0 {
        return Ok(true);
    }
    // Causal attention has one position for a query and its key; otherwise all queries come after all keys.
    let positions = if op.causal { op.seq } else { op.seq.saturating_add(op.kv_seq) };
    let heads = op.alibi.map_or(op.heads, |alibi| alibi.heads);
    if [positions, op.batch, heads, op.head_dim].iter().any(|x| *x >= MOST) {
        let reason =
            format!("sizes from {MOST} on are more than the kernels can count; split the batch or the sequence");
        return Err(KernelError::Invalid { op: name, reason });
    }
    Ok(false)
}

impl Attend {
    fn new(op: &Attention, inputs: [DeviceSlice; 3]) -> Attend {
        let none = DeviceSlice::none(op.dtype);
        Attend {
            inputs,
            out: none,
            dout: none,
            gradients: [none; 3],
            probs: none,
            lse: 0,
            delta: 0,
            starts: 0,
            batch: op.batch as u32,
            heads: op.heads as u32,
            kv_heads: op.kv_heads as u32,
            head_dim: op.head_dim as u32,
            rows: op.seq as u32,
            keys: op.kv_seq as u32,
            window: op.window.unwrap_or(MOST).min(MOST) as i32,
            alibi_first: op.alibi.map_or(0, |alibi| alibi.first as u32),
            alibi_heads: op.alibi.map_or(0, |alibi| alibi.heads as u32),
            // Without the causal mask even the first query comes after the last key, and the window is wider than all of them.
            q_offset: if op.causal { 0 } else { op.kv_seq as i32 - 1 },
            k_offset: 0,
            scale: op.scale as f32,
            scale2: (op.scale * std::f64::consts::LOG2_E) as f32,
            section: 1,
        }
    }

    /// With as many query heads side by side as share the cache with what they read of keys.
    fn by_queries(self, op: &Attention) -> Attend {
        let group = op.heads / op.kv_heads;
        let bytes = 2 * op.kv_seq * op.head_dim * op.dtype.size();
        let section = group * (CACHED / bytes).max(1);
        Attend { section: section.min(op.batch * op.heads) as u32, ..self }
    }

    /// With as many key heads side by side as share the cache with what they read of queries.
    fn by_keys(self, op: &Attention) -> Attend {
        let group = op.heads / op.kv_heads;
        let bytes = 2 * op.seq * op.head_dim * op.dtype.size() * group;
        Attend { section: (CACHED / bytes).max(1).min(op.batch * op.kv_heads) as u32, ..self }
    }
}

/// The tensor cores' kernels for this operation, where its operands lie at multiples of 16 bytes.
fn tensor(op: &Attention, addresses: &[Address]) -> Option<[&'static str; 3]> {
    let known = TENSOR.iter().find(|(dtype, dim, _)| *dtype == op.dtype && *dim == op.head_dim)?;
    addresses.iter().all(|address| address % 16 == 0).then_some(known.2)
}

impl Cuda {
    /// The kernels of [`tensor`], if this device's blocks may have as much shared memory.
    fn tensor(&self, op: &Attention, addresses: &[Address], shared: usize) -> Option<[&'static str; 3]> {
        tensor(op, addresses).filter(|_| shared <= self.device.props().shared_bytes as usize)
    }

    /// Says which documents cannot start where they are said to, once the host waits.
    fn check_starts(&self, op: &Attention, starts: DeviceSlice) -> Result<Address> {
        let (at, count, rows, faults) = (starts.address(), op.batch * op.seq, op.seq as u32, self.faults());
        if at != 0 {
            let grid = [self.blocks(count, 256), 1, 1];
            // SAFETY: the kernel's parameters; there is a start for every token.
            unsafe { self.launch("check_document_starts", grid, 256, 0, arguments![at, count, rows, faults])? };
        }
        Ok(at)
    }

    /// Blocks for tiles of `rows` of every head, and for its columns.
    fn plain_grid(op: &Attention, seq: usize, heads: usize) -> [usize; 3] {
        [seq.div_ceil(PLAIN_TILE) * op.batch * heads, op.head_dim.div_ceil(PLAIN_COLUMNS), 1]
    }

    pub(super) fn run_attention(
        &self,
        op: &Attention,
        inputs: [DeviceSlice; 3],
        starts: DeviceSlice,
        [out, lse]: [DeviceSlice; 2],
    ) -> Result<()> {
        if is_empty("attention", op)? {
            return Ok(());
        }
        let starts = self.check_starts(op, starts)?;
        let attend = Attend { out, lse: lse.address(), starts, ..Attend::new(op, inputs) }.by_queries(op);
        let shared = (TILE + 4 * 64) * op.head_dim * 2;
        let [q, k, v] = inputs;
        let addresses = [q, k, v, out].map(|run| run.address());
        if let Some(kernel) = self.hopper(op, starts, &addresses) {
            return self.run_hopper(kernel, op, attend, inputs);
        }
        if let Some([forward, ..]) = self.tensor(op, &addresses, shared) {
            let grid = [op.seq.div_ceil(TILE) * op.batch * op.heads, 1, 1];
            // SAFETY: the kernel's parameter, whose runs are as long as `op` wants them.
            return unsafe { self.launch(forward, grid, 128, shared, arguments![attend]) };
        }
        let (grid, outputs) = (Cuda::plain_grid(op, op.seq, op.heads), 1u32);
        // SAFETY: as above.
        unsafe { self.launch("plain_attention", grid, 256, 0, arguments![attend, outputs]) }
    }

    pub(super) fn run_attention_backward(
        &self,
        op: &Attention,
        inputs: [DeviceSlice; 3],
        [out, lse, dout, starts]: [DeviceSlice; 4],
        gradients: [DeviceSlice; 3],
        workspace: DeviceSlice,
    ) -> Result<()> {
        if is_empty("attention_backward", op)? {
            return Ok(());
        }
        let (lse, delta, starts) = (lse.address(), workspace.address(), self.check_starts(op, starts)?);
        let ([q, k, v], [dq, dk, dv]) = (inputs, gradients);
        let attend = Attend { out, dout, gradients, lse, delta, starts, ..Attend::new(op, inputs) };
        let grid = [self.blocks(lines(op), 8), 1, 1];
        // SAFETY: the kernel's parameter, whose runs are as long as `op` wants them.
        unsafe { self.launch("attention_delta", grid, 256, 0, arguments![attend])? };
        let (by_keys, by_queries) = (attend.by_keys(op), attend.by_queries(op));
        // Both kernels hold as much; the one that owns keys has three numbers for each of two tiles' queries besides.
        let shared = (2 * TILE + 4 * 64) * op.head_dim * 2;
        let of_keys = shared + 2 * 3 * 64 * 4;
        let addresses = [q, k, v, dout, dq, dk, dv].map(|run| run.address());
        let Some([_, keys, queries]) = self.tensor(op, &addresses, of_keys) else {
            let grids =
                [(op.kv_seq, op.kv_heads), (op.seq, op.heads)].map(|(seq, heads)| Cuda::plain_grid(op, seq, heads));
            // SAFETY: as above.
            unsafe {
                self.launch("plain_dkv", grids[0], 256, 0, arguments![by_keys])?;
                return self.launch("plain_dq", grids[1], 256, 0, arguments![by_queries]);
            }
        };
        // A warp has 32 rows of a small head and 16 of a larger one.
        let threads = if op.head_dim == 64 { 128 } else { 256 };
        let grid = |seq: usize, heads| [seq.div_ceil(TILE) * op.batch * heads, 1, 1];
        // SAFETY: as above.
        unsafe {
            self.launch(keys, grid(op.kv_seq, op.kv_heads), threads, of_keys, arguments![by_keys])?;
            self.launch(queries, grid(op.seq, op.heads), threads, shared, arguments![by_queries])
        }
    }

    pub(super) fn run_naive_attention(
        &self,
        op: &Attention,
        inputs: [DeviceSlice; 3],
        starts: DeviceSlice,
        [out, probs]: [DeviceSlice; 2],
        workspace: DeviceSlice,
    ) -> Result<()> {
        if is_empty("naive_attention", op)? {
            return Ok(());
        }
        let (lse, starts) = (workspace.address(), self.check_starts(op, starts)?);
        let attend = Attend { out, probs, lse, starts, ..Attend::new(op, inputs) };
        let (attend, grid, outputs) = (attend.by_queries(op), Cuda::plain_grid(op, op.seq, op.heads), 0u32);
        // SAFETY: the kernels' parameters, whose runs are as long as `op` wants them.
        unsafe {
            self.launch("plain_attention", [grid[0], 1, 1], 256, 0, arguments![attend, outputs])?;
            self.launch("naive_attention", grid, 256, 0, arguments![attend])
        }
    }

    pub(super) fn run_naive_attention_backward(
        &self,
        op: &Attention,
        inputs: [DeviceSlice; 3],
        [probs, dout]: [DeviceSlice; 2],
        gradients: [DeviceSlice; 3],
        workspace: DeviceSlice,
    ) -> Result<()> {
        if is_empty("naive_attention_backward", op)? {
            return Ok(());
        }
        let attend = Attend { probs, dout, gradients, delta: workspace.address(), ..Attend::new(op, inputs) };
        let (by_keys, by_queries) = (attend.by_keys(op), attend.by_queries(op));
        let keys = Cuda::plain_grid(op, op.kv_seq, op.kv_heads);
        let queries = Cuda::plain_grid(op, op.seq, op.heads);
        // SAFETY: the kernels' parameter, whose runs are as long as `op` wants them.
        unsafe {
            self.launch("naive_delta", [queries[0], 1, 1], 256, 0, arguments![by_queries])?;
            self.launch("naive_dkv", keys, 256, 0, arguments![by_keys])?;
            self.launch("naive_dq", queries, 256, 0, arguments![by_queries])
        }
    }
}

#[cfg(test)]
mod tests;
