//! What carries out kernels written in CUDA: a GPU through its driver, or the processor through the prelude's other half.

#![allow(unsafe_code, reason = "methods of machines that take addresses")]

use crate::DType;
use crate::op::Gemm;
use std::ffi::c_void;
use std::time::Duration;

/// An error of a device or its driver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{device}: {call}: {reason}")]
pub struct DeviceError {
    pub device: String,
    pub call: String,
    /// What it said, and what helps.
    pub reason: String,
    /// Whether the cause was a lack of memory.
    pub out_of_memory: bool,
}

pub type Result<T, E = DeviceError> = std::result::Result<T, E>;

/// An address in a device's memory.
pub type Address = u64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceProps {
    pub name: String,
    /// Major and minor compute capability: (9, 0) for Hopper.
    pub capability: (u32, u32),
    pub multiprocessors: u32,
    /// Bytes of shared memory that a block may use.
    pub shared_bytes: u32,
    pub memory_bytes: u64,
}

/// The launch configuration of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// As [`EXPORT`](crate::sources::SOURCES) names it.
    pub kernel: &'static str,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block: whole warps.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// Kernel parameters: pointers to their values, and their sizes in bytes.
#[derive(Debug)]
pub struct Arguments<'a> {
    pub pointers: &'a mut [*mut c_void],
    pub sizes: &'a [usize],
}

/// Bytes of scratch with which products of a vendor's library are at their best: cuBLAS's own advice for Hopper, and what it takes
/// to begin at a multiple of 256 bytes. All GPUs have as much, so that a plan need not know which it is for.
pub const BLAS_WORKSPACE: usize = (32 << 20) + 256;
/// Part of a tensor of three dimensions that one copy of Hopper's brings into shared memory, innermost dimension first. What
/// lies outside of the tensor arrives as zeros. Rows of a part are 128 bytes, whose chunks of 16 change places as the tensor
/// cores want them: `CU_TENSOR_MAP_SWIZZLE_128B`, no interleaving, element strides of 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorBox {
    /// Where the tensor begins: a multiple of 16 bytes.
    pub address: Address,
    pub dtype: DType,
    pub sizes: [u64; 3],
    /// Bytes from one to the next along the second and the third: multiples of 16.
    pub strides: [u64; 2],
    /// Elements of a part along each dimension.
    pub part: [u32; 3],
}

/// A [`TensorBox`] as the driver encodes it (`CUtensorMap`), a parameter of kernels.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorMap(pub [u64; 16]);

/// A device that runs CUDA kernels. Ranks may share one, and with it its memory.
pub trait Device: Send + Sync {
    fn props(&self) -> &DeviceProps;

    /// For records: `cuda sm_90a`.
    fn name(&self) -> String;

    /// Bytes of memory that are free now; [`DeviceProps::memory_bytes`] was read when the device was opened.
    ///
    /// # Errors
    /// The device has failed.
    fn free_bytes(&self) -> Result<u64> {
        Ok(self.props().memory_bytes)
    }

    /// Starts a profiler range for this thread; `None` ends it.
    fn profiler_range(&self, _name: Option<&str>) {}

    /// Allocates memory, aligned to 256 bytes.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// # Safety
    /// It came from `allocate` with as many bytes, and nothing uses it any more.
    unsafe fn free(&self, address: Address, bytes: usize);

    /// Allocates host memory that the device copies from and to while the host goes on (pinned memory), aligned to a page.
    ///
    /// # Errors
    /// The device has no such memory, or the host has none left.
    fn allocate_pinned(&self, bytes: usize) -> Result<Address> {
        let reason = format!("no {bytes} bytes of pinned host memory: this device has none");
        Err(DeviceError { device: self.name(), call: "allocate_pinned".into(), reason, out_of_memory: false })
    }

    /// # Safety
    /// It came from `allocate_pinned` with as many bytes, and nothing uses it any more.
    unsafe fn free_pinned(&self, _address: Address, _bytes: usize) {}

    fn new_stream(&self) -> Result<Box<dyn Stream>>;

    /// Bytes of workspace for [`Stream::blas_gemm`]; 0 where there is no library.
    fn blas_workspace(&self) -> usize {
        0
    }

    /// Whether its kernels can access host memory and calls return when the work is done: host views are then valid operands.
    fn reaches_host(&self) -> bool {
        false
    }

    /// Compiles and loads these kernels, so that no launch waits for it.
    fn load(&self, kernels: &[&'static str]) -> Result<()>;

    /// Encodes a tensor map for Hopper's TMA (`cuTensorMapEncodeTiled`).
    ///
    /// # Errors
    /// The device has no TMA, or refuses the tensor.
    fn tensor_map(&self, _: &TensorBox) -> Result<TensorMap> {
        let reason = "it has no copies of parts of tensors; take kernels that do without".into();
        Err(DeviceError { device: self.name(), call: "tensor_map".into(), reason, out_of_memory: false })
    }
}

/// A CUDA stream: its work is done in order, and calls return when the work is queued.
pub trait Stream: Send + Sync {
    /// # Safety
    /// `arguments` are the kernel's parameters, in order; what those point to stays until the work is done.
    unsafe fn launch(&self, launch: &Launch, arguments: Arguments<'_>) -> Result<()>;

    /// Copies within the device's memory.
    ///
    /// # Safety
    /// Both runs are the device's, do not overlap, and stay until the work is done.
    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()>;

    /// Copies from the host; returns when `from` may be changed.
    ///
    /// # Safety
    /// `to` is the device's, of as many bytes.
    unsafe fn upload(&self, from: &[u8], to: Address) -> Result<()>;

    /// Copies to the host, and waits until that is done.
    ///
    /// # Safety
    /// `from` is the device's, of as many bytes.
    unsafe fn download(&self, from: Address, to: &mut [u8]) -> Result<()>;

    /// Copies from pinned memory of the host; returns when the copy is queued.
    ///
    /// # Safety
    /// `from` is pinned memory, `to` is the device's. Both hold as many bytes and stay until the work is done, and the host does
    /// not write `from` meanwhile.
    unsafe fn upload_pinned(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise. A device that is the processor copies all memory alike.
        unsafe { self.copy(from, to, bytes) }
    }

    /// Copies to pinned memory of the host; returns when the copy is queued.
    ///
    /// # Safety
    /// As for `upload_pinned`, the other way; the host does not read `to` meanwhile either.
    unsafe fn download_pinned(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.copy(from, to, bytes) }
    }

    /// # Safety
    /// As for `copy`.
    unsafe fn memset(&self, to: Address, value: u8, bytes: usize) -> Result<()>;

    /// A matrix product by the vendor's library. `false` if it has none for these types or this device; nothing was done then.
    ///
    /// # Safety
    /// Addresses are those of operands that `op` describes, and of `workspace_bytes` of scratch.
    unsafe fn blas_gemm(
        &self,
        op: &Gemm,
        a: Address,
        b: Address,
        c: Address,
        workspace: Address,
        workspace_bytes: usize,
    ) -> Result<bool>;

    /// Waits for all work. Returns errors of earlier work.
    fn synchronize(&self) -> Result<()>;

    /// Records an event behind the work so far.
    fn record_event(&self) -> Result<Box<dyn Event>>;

    /// Later work waits for that event, which may be of another stream of this device.
    fn wait_event(&self, event: &dyn Event) -> Result<()>;
}

/// A recorded point in a stream.
pub trait Event: Send + Sync {
    fn wait(&self) -> Result<()>;

    /// Whether it has come.
    fn query(&self) -> Result<bool>;

    /// Time from an earlier event to this one; both must have been reached.
    fn elapsed(&self, earlier: &dyn Event) -> Result<Duration>;

    /// For the device that made it.
    fn as_any(&self) -> &dyn std::any::Any;
}
