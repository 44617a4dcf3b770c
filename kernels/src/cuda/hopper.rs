//! Starting attention's kernel for Hopper, which is taken only where somebody asked for it.

#![allow(unsafe_code, reason = "kernels get addresses")]

use super::Cuda;
use super::flash::{Attend, TILE};
use super::launch::{Argument, DeviceSlice, arguments};
use crate::memory::device::{Address, TensorBox, TensorMap};
use crate::op::Attention;
use crate::{DType, Result};

// SAFETY: laid out alike in C.
unsafe impl Argument for TensorMap {}

/// The kernel of a head size.
const KERNELS: [(usize, &str); 2] = [(64, "flash_hopper_64"), (128, "flash_hopper_128")];
/// Elements of a row of a part: 128 bytes.
const HALF: usize = 64;
/// Queries of one of the two groups of warps that multiply.
const QUERIES: usize = 64;
/// Keys of a tile, and how many tiles there is room for.
const KEYS: usize = 128;
const STAGES: usize = 2;
/// Four warps that bring, and twice as many that multiply.
const THREADS: u32 = 384;

/// The kernel for an operation without documents, where there is one.
fn kernel(op: &Attention) -> Option<&'static str> {
    let sees_all = op.window.is_none_or(|window| window >= op.seq);
    if op.dtype != DType::Bf16 || op.scale <= 0.0 || op.alibi.is_some() || !sees_all || !op.causal {
        return None;
    }
    KERNELS.iter().find(|(dim, _)| *dim == op.head_dim).map(|(_, name)| *name)
}

/// Bytes of shared memory: to align, for queries, and for the stages of keys and values.
fn shared(op: &Attention) -> usize {
    1024 + (TILE + STAGES * 2 * KEYS) * op.head_dim * 2
}

/// What copies bring of `[batch, seq, heads * head_dim]` from an address on: so many rows of half a head, or of a whole one
/// of 64.
fn part(op: &Attention, address: Address, heads: usize, rows: usize) -> TensorBox {
    let row = heads * op.head_dim;
    TensorBox {
        address,
        dtype: op.dtype,
        sizes: [row, op.seq, op.batch].map(|x| x as u64),
        strides: [row * 2, op.seq * row * 2].map(|x| x as u64),
        part: [HALF, rows, 1].map(|x| x as u32),
    }
}

impl Cuda {
    /// Hopper's kernel, if it is wanted and does this operation.
    pub(super) fn hopper(&self, op: &Attention, starts: Address, addresses: &[Address]) -> Option<&'static str> {
        let suits = self.hopper_attention && starts == 0 && addresses.iter().all(|address| address % 16 == 0);
        self.hopper_kernel(op).ok().filter(|_| suits)
    }

    /// The name of Hopper's kernel for the forward of this operation, without documents and with operands at multiples of 16 bytes.
    ///
    /// # Errors
    /// Why there is none: the device, or the operation.
    pub fn hopper_kernel(&self, op: &Attention) -> std::result::Result<&'static str, String> {
        let facts = self.device.props();
        if facts.capability != (9, 0) {
            let (major, minor) = facts.capability;
            return Err(format!("it is for GPUs of compute capability 9.0, and {} has {major}.{minor}", facts.name));
        }
        let (wanted, most) = (shared(op), facts.shared_bytes);
        if wanted + 128 > most as usize {
            return Err(format!("it takes {wanted} bytes of shared memory, and a block has {most}"));
        }
        kernel(op).ok_or_else(|| {
            "it does bf16 with heads of 64 or 128 elements, a causal mask, a positive scale, no ALiBi and no window shorter than the sequence".into()
        })
    }

    /// Starts it, of operands at multiples of 16 bytes: q, k, v.
    pub(super) fn run_hopper(
        &self,
        kernel: &'static str,
        op: &Attention,
        attend: Attend,
        [q, k, v]: [DeviceSlice; 3],
    ) -> Result<()> {
        let q = self.device.tensor_map(&part(op, q.address(), op.heads, QUERIES))?;
        let k = self.device.tensor_map(&part(op, k.address(), op.kv_heads, KEYS))?;
        let v = self.device.tensor_map(&part(op, v.address(), op.kv_heads, KEYS))?;
        let grid = [op.seq.div_ceil(TILE) * op.batch * op.heads, 1, 1];
        // SAFETY: the kernel's parameters; the maps describe operands as long as `op` wants them.
        unsafe { self.launch(kernel, grid, THREADS, shared(op), arguments![q, k, v, attend]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::AlibiHeads;

    fn op(head_dim: usize) -> Attention {
        let (heads, kv_heads, dtype) = (4, 2, DType::Bf16);
        Attention {
            batch: 3,
            seq: 200,
            kv_seq: 200,
            causal: true,
            heads,
            kv_heads,
            head_dim,
            scale: 0.1,
            window: None,
            alibi: None,
            dtype,
        }
    }

    #[test]
    fn only_what_it_can_do() {
        assert_eq!(kernel(&op(64)), Some("flash_hopper_64"));
        assert_eq!(kernel(&Attention { window: Some(200), ..op(128) }), Some("flash_hopper_128"));
        let others = [
            op(96),
            Attention { dtype: DType::F16, ..op(64) },
            Attention { window: Some(199), ..op(64) },
            Attention { alibi: Some(AlibiHeads::whole(4)), ..op(64) },
            Attention { scale: -0.1, ..op(64) },
            Attention { causal: false, ..op(64) },
        ];
        assert!(others.iter().all(|op| kernel(op).is_none()));
        assert!(shared(&op(128)) + 128 <= 227 << 10);
    }

    #[test]
    fn parts_are_rows_of_a_sequence() {
        let wanted = TensorBox {
            address: 4096,
            dtype: DType::Bf16,
            sizes: [256, 200, 3],
            strides: [512, 200 * 512],
            part: [64, 128, 1],
        };
        assert_eq!(part(&op(128), 4096, 2, KEYS), wanted);
    }
}
