//! A GPU as a machine that runs CUDA.
//!
//! [`Probe`] says what this machine has, and [`Gpu::open`] takes one of its devices. Nothing here needs CUDA to build or to
//! start: libraries are loaded when they are asked for, and their absence is an error with the places that were tried.

mod cache;
mod cublaslt;
mod driver;
mod events;
mod library;
mod memory;
mod modules;
mod nccl;
mod nvml;
mod nvrtc;
mod nvtx;
mod plan;
mod probe;
mod product;
mod staging;
mod stream;
mod tensors;
mod usage;

pub use cache::{Obtained, obtain};
pub use cublaslt::CublasLt;
pub use driver::{Driver, DriverError, NOT_READY, Table as DriverTable};
pub use events::GpuEvent;
pub use library::{Absent, Attempt, Found, Library, Search, string};
pub use memory::{MemoryInfo, Pinned};
pub use modules::Built;
pub use nccl::NcclTable;
pub use nvml::{Nvml, Reading, Throttle, Watched};
pub use nvrtc::{CompileError, Compiled, Nvrtc, Target, TooOld, options};
pub use nvtx::Ranges;
pub use plan::Chosen;
pub use probe::{GpuInfo, Probe};
pub use product::Fallback;
pub use stream::GpuStream;
pub use usage::Usage;

use crate::memory::device::{
    Address, BLAS_WORKSPACE, Device, DeviceError, DeviceProps, Result, Stream, TensorBox, TensorMap,
};
use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUevent};
use std::collections::HashMap;
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// What is left to the driver, NCCL and cuBLASLt where nothing else is said: code, stacks of threads, their own buffers.
pub const RESERVE_BYTES: u64 = 1 << 30;

/// A version of CUDA's in words: 13020 is 13.2.
pub fn dotted(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Folder for compiled kernels; without one they are compiled at every start.
    pub cache: Option<PathBuf>,
    /// Bytes of memory that [`DeviceProps::memory_bytes`] leaves out of what is free.
    pub reserve_bytes: u64,
    /// Whether the first product of each shape times the algorithms that cuBLASLt proposes. What is chosen may then differ
    /// from run to run, and with it the last bits of a product; [`Gpu::products`] says what was.
    pub tune: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { cache: None, reserve_bytes: RESERVE_BYTES, tune: false }
    }
}

/// A device whose primary context is held. Clones are the same device; all threads may use it.
#[derive(Clone)]
pub struct Gpu(Arc<Inner>);

struct Inner {
    name: String,
    facts: DeviceProps,
    about: GpuInfo,
    options: Options,
    target: Target,
    driver: Arc<Driver>,
    nvrtc: Arc<Nvrtc>,
    device: CUdevice,
    context: CUcontext,
    modules: modules::Modules,
    /// Events for marks that are not in use.
    events: Mutex<Vec<CUevent>>,
    products: Option<plan::Products>,
    /// Products that our own kernels did instead.
    fallbacks: Mutex<HashMap<plan::Shape, Fallback>>,
    ranges: Option<Arc<Ranges>>,
}

// SAFETY: handles of the driver's, which any thread may use; what changes is behind locks.
#[allow(unsafe_code, reason = "handles of the driver's are addresses")]
unsafe impl Send for Inner {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "handles of the driver's are addresses")]
unsafe impl Sync for Inner {}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gpu({}, {})", self.0.about, self.0.target.name())
    }
}

/// An error of a device that could not be taken.
fn unopened(ordinal: usize, reason: impl Into<String>) -> DeviceError {
    let call = format!("opening GPU {ordinal}");
    DeviceError { device: "cuda".into(), call, reason: reason.into(), out_of_memory: false }
}

impl Gpu {
    /// Takes a device. Its primary context is shared with everything else in this process that uses it.
    ///
    /// # Errors
    /// The driver or NVRTC is missing, there is no such device, it is too old, or it cannot be taken.
    #[allow(unsafe_code, reason = "functions of the CUDA driver")]
    pub fn open(probe: &Probe, ordinal: usize, options: Options) -> Result<Gpu> {
        let absent = |absent: &Absent| unopened(ordinal, absent.to_string());
        let failed = |error: DriverError| error.on(&format!("cuda, GPU {ordinal}"));
        let driver = probe.driver.as_ref().map_err(absent)?.clone();
        let devices = probe.devices.as_ref().map_err(absent)?;
        let nvrtc = probe.nvrtc.as_ref().map_err(absent)?.clone();
        let about = devices.get(ordinal).cloned();
        let about = about.ok_or_else(|| unopened(ordinal, format!("the driver shows {} device(s)", devices.len())))?;
        let target = Target::of(about.capability).map_err(|old| unopened(ordinal, format!("{}: {old}", about.name)))?;

        let device = driver.device(ordinal as c_int).map_err(failed)?;
        let number = |which| Ok(driver.attribute(which, device).map_err(failed)?.unsigned_abs());
        let facts = DeviceProps {
            name: about.name.clone(),
            capability: about.capability,
            multiprocessors: number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_bytes: number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            memory_bytes: 0,
        };
        // SAFETY: a live output, and a device of the driver's.
        let retain = |context: &mut CUcontext| unsafe { (driver.table.context_retain)(context, device) };
        let context = driver.output("cuDevicePrimaryCtxRetain", std::ptr::null_mut(), retain).map_err(failed)?;
        // From here on the context is given back when this goes.
        let mut inner = Inner {
            name: format!("cuda {}", target.name()),
            facts,
            about,
            options,
            target,
            driver,
            nvrtc,
            device,
            context,
            modules: modules::Modules::default(),
            events: Mutex::default(),
            products: None,
            fallbacks: Mutex::default(),
            ranges: probe.nvtx.as_ref().ok().cloned(),
        };
        inner.facts.memory_bytes = inner.memory_info()?.free_bytes.saturating_sub(inner.options.reserve_bytes);
        if let Ok(library) = &probe.cublaslt {
            inner.products = Some(plan::Products::new(library.clone(), &inner)?);
        }
        Ok(Gpu(Arc::new(inner)))
    }

    /// Its number, id and place.
    pub fn about(&self) -> &GpuInfo {
        &self.0.about
    }

    /// What kernels are compiled for.
    pub fn target(&self) -> &Target {
        &self.0.target
    }

    /// What the driver says of its memory now, whoever uses it.
    ///
    /// # Errors
    /// The device has failed.
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        self.0.memory_info()
    }

    /// What was compiled or read from disk so far, and how long that took.
    pub fn built(&self) -> Vec<Built> {
        self.0.modules.built()
    }

    /// How products are done, of every shape that came so far: for records, since it is part of what is measured.
    pub fn products(&self) -> Vec<Chosen> {
        self.0.products.as_ref().map_or(Vec::new(), plan::Products::chosen)
    }

    /// The products that our own kernels did and not cuBLASLt since this was asked last, with the reasons: for records, which must not
    /// pass them for the library's.
    pub fn take_fallbacks(&self) -> Vec<Fallback> {
        let taken = std::mem::take(&mut *self.0.fallbacks.lock().unwrap_or_else(PoisonError::into_inner));
        let mut all: Vec<Fallback> = taken.into_values().collect();
        all.sort_by_key(|Fallback { op, .. }| (op.m, op.n, op.k, op.trans_a, op.trans_b));
        all
    }

    /// A queue, with more than [`Stream`] has.
    ///
    /// # Errors
    /// The device has no room for it, or has failed.
    pub fn stream(&self) -> Result<GpuStream> {
        GpuStream::new(self)
    }
}

impl Inner {
    /// Makes the device this thread's, as calls that name no object of it need it.
    #[allow(unsafe_code, reason = "functions of the CUDA driver")]
    fn enter(&self) -> Result<()> {
        // SAFETY: the context is held until this goes.
        self.check("cuCtxSetCurrent", unsafe { (self.driver.table.context_set)(self.context) })
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        self.driver.check(call, code).map_err(|error| error.on(&self.name))
    }

    /// A call that needs the device to be this thread's.
    fn call(&self, call: &'static str, ask: impl FnOnce(&DriverTable) -> c_int) -> Result<()> {
        self.enter()?;
        self.check(call, ask(&self.driver.table))
    }

    /// What a call writes to the output that it is given, which holds `value` before.
    fn output<T>(&self, call: &'static str, value: T, ask: impl FnOnce(&DriverTable, &mut T) -> c_int) -> Result<T> {
        let ask = |value: &mut T| ask(&self.driver.table, value);
        self.driver.output(call, value, ask).map_err(|error| error.on(&self.name))
    }

    fn error(&self, call: impl Into<String>, reason: impl Into<String>) -> DeviceError {
        DeviceError { device: self.name.clone(), call: call.into(), reason: reason.into(), out_of_memory: false }
    }
}

#[allow(unsafe_code, reason = "functions of the CUDA driver")]
impl Drop for Inner {
    fn drop(&mut self) {
        // What fails here fails because the device has, and nothing can be done about it.
        if self.enter().is_ok() {
            self.products = None;
            let events = std::mem::take(self.events.get_mut().unwrap_or_else(PoisonError::into_inner));
            for event in events {
                // SAFETY: an event that no mark uses any more.
                unsafe { (self.driver.table.event_destroy)(event) };
            }
            for module in self.modules.take() {
                // SAFETY: a module of this context; no queue that could run its kernels is left.
                unsafe { (self.driver.table.module_unload)(module) };
            }
        }
        // SAFETY: retained once by `open`.
        unsafe { (self.driver.table.context_release)(self.device) };
    }
}

#[allow(unsafe_code, reason = "functions of the CUDA driver")]
impl Device for Gpu {
    fn props(&self) -> &DeviceProps {
        &self.0.facts
    }

    fn name(&self) -> String {
        self.0.name.clone()
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(self.memory_info()?.free_bytes.saturating_sub(self.0.options.reserve_bytes))
    }

    fn profiler_range(&self, name: Option<&str>) {
        if let Some(ranges) = &self.0.ranges {
            ranges.profiler_range(name);
        }
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        self.0.enter()?;
        // SAFETY: a live output. The driver's addresses are multiples of 256.
        let at = self.0.output("cuMemAlloc", 0, |table, at| unsafe { (table.memory_allocate)(at, bytes.max(1)) });
        at.map_err(|error| DeviceError { reason: format!("{bytes} bytes: {}", error.reason), ..error })
    }

    unsafe fn free(&self, address: Address, _: usize) {
        // What fails here fails because the device has, and its memory is gone with it.
        if self.0.enter().is_ok() {
            // SAFETY: made by `allocate`; everything that may still use it is waited for.
            unsafe {
                (self.0.driver.table.context_synchronize)();
                (self.0.driver.table.memory_free)(address);
            }
        }
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Address> {
        self.0.allocate_pinned(bytes)
    }

    unsafe fn free_pinned(&self, address: Address, _: usize) {
        // What fails here fails because the device has, and its copies have ended with it.
        if self.0.enter().is_ok() {
            // SAFETY: copies that may still use it are waited for.
            unsafe { (self.0.driver.table.context_synchronize)() };
            self.0.free_pinned(address);
        }
    }

    fn new_stream(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(self.stream()?))
    }

    fn load(&self, kernels: &[&'static str]) -> Result<()> {
        self.0.load(kernels)
    }

    fn blas_workspace(&self) -> usize {
        BLAS_WORKSPACE
    }

    fn tensor_map(&self, part: &TensorBox) -> Result<TensorMap> {
        self.0.tensor_map(part)
    }
}
