//! Starting kernels: arguments, grids, and what the device found wrong.

#![allow(unsafe_code, reason = "kernels get their parameters by address")]

use super::Cuda;
use super::readback::{SUM_WORDS, ScalarReadback};
use crate::memory::device::{Address, Arguments, Device, DeviceError, Launch, Stream};
use crate::memory::view::Extent;
use crate::{DType, KernelError, Result, View, ViewMut};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Elements on the device, as the prelude's `Run` has them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceSlice {
    at: Address,
    dtype: u32,
    reserved: u32,
}

/// A type's number in the prelude.
pub(super) const fn number(dtype: DType) -> u32 {
    match dtype {
        DType::F64 => 0,
        DType::F32 => 1,
        DType::Bf16 => 2,
        DType::F16 => 3,
        DType::U32 => 4,
        DType::I32 => 5,
        DType::I8 => 6,
    }
}

impl DeviceSlice {
    pub(super) fn of(extent: &Extent) -> DeviceSlice {
        DeviceSlice::at(extent.ptr().as_ptr() as Address, extent.dtype())
    }

    /// Elements that lie in memory of the stream's own.
    pub(super) fn at(at: Address, dtype: DType) -> DeviceSlice {
        DeviceSlice { at, dtype: number(dtype), reserved: 0 }
    }

    pub(super) fn address(&self) -> Address {
        self.at
    }

    /// No elements: where an operation has none of an operand, with the type that the kernel wants to see.
    pub(super) fn none(dtype: DType) -> DeviceSlice {
        DeviceSlice::at(0, dtype)
    }
}

/// Operands of an operation. One that is left out has no elements.
pub(super) fn runs<const R: usize, const W: usize>(
    reads: &[View],
    writes: &[ViewMut],
) -> ([DeviceSlice; R], [DeviceSlice; W]) {
    let (mut read, mut written) = ([DeviceSlice::none(DType::F32); R], [DeviceSlice::none(DType::F32); W]);
    read.iter_mut().zip(reads).for_each(|(run, view)| *run = DeviceSlice::of(view));
    written.iter_mut().zip(writes).for_each(|(run, view)| *run = DeviceSlice::of(view));
    (read, written)
}

/// What may be a kernel's parameter: plain values laid out as C has them.
///
/// # Safety
/// The type is `repr(C)` or a primitive, and the kernel's parameter is of the same layout.
pub(super) unsafe trait Argument: Copy {}
// SAFETY: laid out alike in C.
unsafe impl Argument for DeviceSlice {}
// SAFETY: laid out alike in C.
unsafe impl Argument for u32 {}
// SAFETY: laid out alike in C.
unsafe impl Argument for i32 {}
// SAFETY: laid out alike in C.
unsafe impl Argument for u64 {}
// SAFETY: the kernel's parameter is of 64 bits, and so are addresses where CUDA runs.
#[cfg(target_pointer_width = "64")]
unsafe impl Argument for usize {}
// SAFETY: laid out alike in C.
unsafe impl Argument for f32 {}
// SAFETY: laid out alike in C.
unsafe impl Argument for f64 {}

/// Parameters on their way to a kernel: `arguments![a, b]`, each a local value that is an [`Argument`]. What is computed in the
/// brackets ends with the statement: only where it is the launch itself may they hold more than names.
macro_rules! arguments {
    ($($value:expr),* $(,)?) => {
        $crate::memory::device::Arguments {
            pointers: &mut [$($crate::cuda::launch::pointer(&$value)),*],
            sizes: &[$($crate::cuda::launch::size(&$value)),*],
        }
    };
}
pub(super) use arguments;

/// Where a parameter lies; only read.
pub(super) fn pointer<T: Argument>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

pub(super) fn size<T: Argument>(_: &T) -> usize {
    size_of::<T>()
}

/// What a device found wrong, as the kernels write it: which check, then two numbers.
pub(super) const FAULT_WORDS: usize = 4;

/// Memory that a stream's kernels keep for themselves.
pub(super) struct StreamScratch {
    device: Arc<dyn Device>,
    /// Where it begins: a fault's words.
    at: Address,
    /// What the host is told.
    readback: Mutex<ScalarReadback>,
    /// [`SCRATCH_BYTES`] for what one operation leaves for its next kernel, where the trait gives it no workspace.
    /// Lent for as long as an operation asks for kernels that use it, so that threads which share a stream do not mix theirs.
    scratch: Mutex<Address>,
}

/// How much that is. The order of sums follows from it, so it is the same on every device.
pub(super) const SCRATCH_BYTES: usize = 16 << 20;

const SET_BYTES: usize = 256 + 2 * SUM_WORDS * 8;
const OWN_BYTES: usize = SET_BYTES + SCRATCH_BYTES;

impl StreamScratch {
    pub(super) fn new(device: &Arc<dyn Device>, stream: &dyn Stream) -> Result<StreamScratch, DeviceError> {
        let at = device.allocate(OWN_BYTES)?;
        let (sums, slots) = (at + 256, at + 256 + SUM_WORDS as Address * 8);
        let own = StreamScratch {
            device: device.clone(),
            at,
            readback: Mutex::new(ScalarReadback::new(at, sums, slots)),
            scratch: Mutex::new(at + SET_BYTES as Address),
        };
        // SAFETY: memory just made, of more bytes.
        unsafe { stream.memset(at, 0, SET_BYTES)? };
        Ok(own)
    }
}

impl Drop for StreamScratch {
    fn drop(&mut self) {
        // SAFETY: made with as many bytes. The device waits for work that still uses it.
        unsafe { self.device.free(self.at, OWN_BYTES) };
    }
}

/// A check that kernels make: the operation, and what the two numbers mean that they leave.
type Check = (&'static str, fn(u32, u32) -> String);

/// All of them, by the number that kernels write.
const FAULTS: [Check; 7] = [
    ("embedding", |row, id| format!("token id {id} in row {row} is outside the vocabulary")),
    ("cross_entropy", target_outside),
    ("attention", |token, start| {
        format!(
            "token {token} is said to be in a document that starts at {start}, which is behind it or before the last one"
        )
    }),
    ("experts", |choice, id| format!("choice {choice} names {id}, which is no expert or no slot of its own")),
    ("grouped_gemm", |group, end| {
        format!("group {group} ends at {end}: the groups do not cut the rows into parts in order")
    }),
    ("loss_parts", target_outside),
    ("loss_of_parts", target_outside),
];

fn target_outside(row: u32, target: u32) -> String {
    format!("target {target} in row {row} is outside the vocabulary")
}

impl Cuda {
    /// Starts a kernel of `threads` threads a block. Nothing is started for an empty grid.
    ///
    /// # Safety
    /// The arguments are those of the kernel's parameters, and their runs hold what the kernel reads and writes.
    pub(super) unsafe fn launch(
        &self,
        kernel: &'static str,
        grid: [usize; 3],
        threads: u32,
        shared: usize,
        arguments: Arguments<'_>,
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        // Along x a grid may be longer than along the others.
        let most = [i32::MAX as usize, 65_535, 65_535];
        if grid.iter().zip(most).any(|(blocks, most)| *blocks > most) || shared > u32::MAX as usize {
            let reason = format!("{grid:?} blocks are more than a grid can have; use smaller shapes");
            return Err(KernelError::Invalid { op: kernel, reason });
        }
        let launch = Launch { kernel, grid: grid.map(|blocks| blocks as u32), threads, shared: shared as u32 };
        // SAFETY: the caller's promise.
        Ok(unsafe { self.stream.launch(&launch, arguments) }?)
    }

    /// Blocks for `work` pieces that a kernel goes through in strides: enough to fill the device, and no more than there is
    /// work for.
    pub(super) fn blocks(&self, work: usize, of_a_block: usize) -> usize {
        let most = self.device.props().multiprocessors as usize * 8;
        work.div_ceil(of_a_block.max(1)).min(most)
    }

    /// Scratch of the operation that is being asked for.
    pub(super) fn scratch(&self) -> MutexGuard<'_, Address> {
        self.stream_scratch.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where kernels write what they find wrong.
    pub(super) fn faults(&self) -> Address {
        self.stream_scratch.at
    }

    /// What the host is told of, for one thread alone.
    pub(super) fn readback(&self) -> MutexGuard<'_, ScalarReadback> {
        self.stream_scratch.readback.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the stream, and says what kernels have found wrong since the last time.
    pub(super) fn settled(&self) -> Result<()> {
        let readback = self.readback();
        let mut words = [0u8; FAULT_WORDS * 4];
        // SAFETY: the fault's words are this stream's own.
        unsafe { self.stream.download(readback.faults, &mut words)? };
        self.found(&readback, &words)
    }

    /// What the fault's words say, which are no fault's from here on.
    pub(super) fn found(&self, readback: &ScalarReadback, words: &[u8]) -> Result<()> {
        let word = |i: usize| u32::from_le_bytes([words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]]);
        if word(0) == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { self.stream.memset(readback.faults, 0, words.len())? };
        let known = FAULTS.get(word(0) as usize - 1);
        let (op, reason) =
            known.map_or(("a kernel", format!("fault {}", word(0))), |(op, say)| (*op, say(word(1), word(2))));
        Err(KernelError::Invalid { op, reason })
    }
}
