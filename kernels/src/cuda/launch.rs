//! Starting kernels: arguments, grids, and what the device found wrong.

use super::Cuda;
use super::machine::{Address, Launch, Machine, MachineError, Queue};
use crate::{DType, KernelError, Result, View, ViewMut};
use std::ffi::c_void;
use std::sync::Arc;

/// A run of elements as the prelude's `Run` has it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
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

impl Run {
    pub(super) fn of(view: &View) -> Run {
        Run { at: view.ptr().as_ptr() as Address, dtype: number(view.dtype()), reserved: 0 }
    }

    pub(super) fn of_mut(view: &ViewMut) -> Run {
        Run { at: view.ptr().as_ptr() as Address, dtype: number(view.dtype()), reserved: 0 }
    }

    /// No elements: where an operation has none of an operand, with the type that the kernel wants to see.
    pub(super) fn none(dtype: DType) -> Run {
        Run { at: 0, dtype: number(dtype), reserved: 0 }
    }
}

/// What may be a kernel's parameter: plain values laid out as C has them.
///
/// # Safety
/// The type is `repr(C)` or a primitive, and the kernel's parameter is of the same layout.
pub(super) unsafe trait Argument: Copy {}
// SAFETY: laid out alike in C.
unsafe impl Argument for Run {}
// SAFETY: laid out alike in C.
unsafe impl Argument for u32 {}
// SAFETY: laid out alike in C.
unsafe impl Argument for i32 {}
// SAFETY: laid out alike in C.
unsafe impl Argument for u64 {}
// SAFETY: laid out alike in C.
unsafe impl Argument for f32 {}
// SAFETY: laid out alike in C.
unsafe impl Argument for f64 {}

/// Parameters on their way to a kernel: `arguments![a, b]`, each a local value that is an [`Argument`].
macro_rules! arguments {
    ($($value:expr),* $(,)?) => {
        &mut [$($crate::cuda::launch::pointer(&$value)),*]
    };
}
pub(super) use arguments;

/// Where a parameter lies; only read.
pub(super) fn pointer<T: Argument>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

/// What a device found wrong, as the kernels write it: which check, then two numbers.
pub(super) const FAULT_WORDS: usize = 4;
/// Room for sums on their way to the host.
pub(super) const SUM_WORDS: usize = 1024;

/// Memory that a queue's kernels keep for themselves.
pub(super) struct Own {
    machine: Arc<dyn Machine>,
    /// A fault's words.
    pub faults: Address,
    /// [`SUM_WORDS`] of f64.
    pub sums: Address,
}

const OWN_BYTES: usize = 256 + SUM_WORDS * 8;

impl Own {
    pub(super) fn new(machine: &Arc<dyn Machine>, queue: &dyn Queue) -> Result<Own, MachineError> {
        let at = machine.allocate(OWN_BYTES)?;
        let own = Own { machine: machine.clone(), faults: at, sums: at + 256 };
        // SAFETY: memory just made, of as many bytes.
        unsafe { queue.set(at, 0, OWN_BYTES)? };
        Ok(own)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: made with as many bytes. The machine waits for work that still uses it.
        unsafe { self.machine.free(self.faults, OWN_BYTES) };
    }
}

/// Checks that kernels make, by the number they write: the operation, and what its two numbers mean.
const FAULTS: [(&str, fn(u32, u32) -> String); 4] = [
    ("embedding", |row, id| format!("token id {id} in row {row} is outside the vocabulary")),
    ("cross_entropy", |row, target| format!("target {target} in row {row} is outside the vocabulary")),
    ("attention", |token, start| {
        format!(
            "token {token} is said to be in a document that starts at {start}, which is behind it or before the last one"
        )
    }),
    ("experts", |choice, id| format!("choice {choice} names {id}, which is no expert or no slot of its own")),
];

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
        arguments: &mut [*mut c_void],
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
        Ok(unsafe { self.queue.launch(&launch, arguments) }?)
    }

    /// Blocks for `work` pieces that a kernel goes through in strides: enough to fill the machine, and no more than there is
    /// work for.
    pub(super) fn blocks(&self, work: usize, of_a_block: usize) -> usize {
        let most = self.machine.facts().multiprocessors as usize * 8;
        work.div_ceil(of_a_block.max(1)).min(most)
    }

    /// Where kernels write what they find wrong.
    pub(super) fn faults(&self) -> Address {
        self.own.faults
    }

    /// Waits for the queue, and says what kernels have found wrong since the last time.
    pub(super) fn settled(&self) -> Result<()> {
        let mut words = [0u8; FAULT_WORDS * 4];
        // SAFETY: the fault's words are this queue's own.
        unsafe { self.queue.download(self.own.faults, &mut words)? };
        self.found(&words)
    }

    /// What the fault's words say, which are no fault's from here on.
    pub(super) fn found(&self, words: &[u8]) -> Result<()> {
        let word = |i: usize| u32::from_le_bytes([words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]]);
        if word(0) == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { self.queue.set(self.own.faults, 0, words.len())? };
        let known = FAULTS.get(word(0) as usize - 1);
        let (op, reason) =
            known.map_or(("a kernel", format!("fault {}", word(0))), |(op, say)| (*op, say(word(1), word(2))));
        Err(KernelError::Invalid { op, reason })
    }
}
