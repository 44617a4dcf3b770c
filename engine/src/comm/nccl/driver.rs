//! The few calls of the CUDA driver that a communicator needs: a device's context, streams, events, memory. Loaded at run time
//! like NCCL itself. No cudarc here: it would bring its own loader, which panics where a library is missing, for twenty
//! functions.

use super::loader::{Attempt, Search, symbol};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Why the GPU cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// No driver was found.
    #[error("the CUDA driver was not found: {}", tried.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    NotFound {
        /// All places, in order.
        tried: Vec<Attempt>,
    },
    /// The driver lacks a function.
    #[error("the CUDA driver has no function {symbol}; it is too old: {reason}")]
    MissingSymbol {
        /// The function.
        symbol: &'static str,
        /// What the loader says.
        reason: String,
    },
    /// A call failed.
    #[error("{call}: {text} (code {code})")]
    Call {
        /// The function.
        call: &'static str,
        /// CUresult.
        code: i32,
        /// Its name and meaning.
        text: String,
    },
}

type Result<T, E = DriverError> = std::result::Result<T, E>;
type Code = c_int;
type Handle = *mut c_void;
/// CUdeviceptr.
type Address = u64;

/// CUDA_ERROR_NOT_READY: work is still going on.
const NOT_READY: Code = 600;
/// CU_STREAM_NON_BLOCKING: does not wait for the legacy stream.
const NON_BLOCKING: c_uint = 1;
/// CU_EVENT_DISABLE_TIMING.
const NO_TIMING: c_uint = 2;

macro_rules! table {
    ($($field:ident = $symbol:literal ( $($argument:ty),* );)*) => {
        struct Table {
            $($field: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Table {
            fn resolve(library: &Library, path: &std::path::Path) -> Result<Table> {
                let missing = |symbol, attempt: Attempt| DriverError::MissingSymbol { symbol, reason: attempt.reason };
                // SAFETY: the types are those of cuda.h for these names, which a driver keeps for ever.
                Ok(unsafe { Table { $($field: symbol(library, path, $symbol).map_err(|error| missing($symbol, error))?,)* } })
            }
        }
    };
}

table! {
    init = "cuInit" (c_uint);
    get_error_name = "cuGetErrorName" (Code, *mut *const c_char);
    get_error_string = "cuGetErrorString" (Code, *mut *const c_char);
    device_get_count = "cuDeviceGetCount" (*mut c_int);
    device_get = "cuDeviceGet" (*mut c_int, c_int);
    primary_retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    primary_release = "cuDevicePrimaryCtxRelease_v2" (c_int);
    set_current = "cuCtxSetCurrent" (Handle);
    stream_create = "cuStreamCreate" (*mut Handle, c_uint);
    stream_query = "cuStreamQuery" (Handle);
    stream_synchronize = "cuStreamSynchronize" (Handle);
    stream_destroy = "cuStreamDestroy_v2" (Handle);
    event_create = "cuEventCreate" (*mut Handle, c_uint);
    event_record = "cuEventRecord" (Handle, Handle);
    event_query = "cuEventQuery" (Handle);
    event_destroy = "cuEventDestroy_v2" (Handle);
    mem_alloc = "cuMemAlloc_v2" (*mut Address, usize);
    mem_free = "cuMemFree_v2" (Address);
    copy_in = "cuMemcpyHtoD_v2" (Address, *const c_void, usize);
    copy_out = "cuMemcpyDtoH_v2" (*mut c_void, Address, usize);
    copy_async = "cuMemcpyDtoDAsync_v2" (Address, Address, usize, Handle);
}

/// A loaded driver.
pub struct Driver {
    table: Table,
    _library: ManuallyDrop<Library>,
}

impl Driver {
    /// Loads and starts the driver.
    ///
    /// # Errors
    /// [`DriverError`]: no driver, or one that finds no device.
    pub fn load() -> Result<Arc<Driver>> {
        let found = Search::default().open(&["libcuda.so.1", "libcuda.so"]);
        let (library, path) = found.map_err(|tried| DriverError::NotFound { tried })?;
        let library = ManuallyDrop::new(library);
        let driver = Driver { table: Table::resolve(&library, &path)?, _library: library };
        // SAFETY: the first call, as the driver wants it.
        driver.check("cuInit", unsafe { (driver.table.init)(0) })?;
        Ok(Arc::new(driver))
    }

    /// How many GPUs there are.
    ///
    /// # Errors
    /// What the driver says.
    pub fn devices(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: a live output.
        self.check("cuDeviceGetCount", unsafe { (self.table.device_get_count)(&mut count) })?;
        Ok(count.max(0) as usize)
    }

    fn check(&self, call: &'static str, code: Code) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let words = |get: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
            let mut text = std::ptr::null();
            // SAFETY: a live output; what it points to is a constant of the driver.
            unsafe {
                if get(code, &mut text) != 0 || text.is_null() {
                    return "unknown".to_owned();
                }
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        };
        let text = format!("{}, {}", words(self.table.get_error_name), words(self.table.get_error_string));
        Err(DriverError::Call { call, code, text })
    }

    /// Whether a query found everything done.
    fn done(&self, call: &'static str, code: Code) -> Result<bool> {
        if code == NOT_READY { Ok(false) } else { self.check(call, code).map(|()| true) }
    }
}

/// A GPU and its primary context, which all users of the process share.
pub struct Device {
    driver: Arc<Driver>,
    device: c_int,
    context: Handle,
}

// SAFETY: driver handles may be used from any thread that has set the context, as every method does.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// GPU number `ordinal`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(driver: Arc<Driver>, ordinal: usize) -> Result<Arc<Device>> {
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: live outputs.
        driver.check("cuDeviceGet", unsafe { (driver.table.device_get)(&mut device, ordinal as c_int) })?;
        // SAFETY: a device that the driver has just named.
        driver.check("cuDevicePrimaryCtxRetain", unsafe { (driver.table.primary_retain)(&mut context, device) })?;
        Ok(Arc::new(Device { driver, device, context }))
    }

    /// Makes this thread's calls go to this device, NCCL's too.
    ///
    /// # Errors
    /// What the driver says.
    pub fn enter(&self) -> Result<()> {
        // SAFETY: a context that is held until this is dropped.
        self.driver.check("cuCtxSetCurrent", unsafe { (self.driver.table.set_current)(self.context) })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: released once, when no stream, event or memory holds the device any more.
        unsafe { (self.driver.table.primary_release)(self.device) };
    }
}

/// Work in order.
pub struct Stream {
    device: Arc<Device>,
    handle: Handle,
}

// SAFETY: as for `Device`.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream of its own.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &Arc<Device>) -> Result<Stream> {
        device.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live output.
        let code = unsafe { (device.driver.table.stream_create)(&mut handle, NON_BLOCKING) };
        device.driver.check("cuStreamCreate", code)?;
        Ok(Stream { device: device.clone(), handle })
    }

    /// The device it works on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// Whether everything is done.
    ///
    /// # Errors
    /// A failure of earlier work.
    pub fn is_done(&self) -> Result<bool> {
        self.device.enter()?;
        // SAFETY: a live stream.
        self.device.driver.done("cuStreamQuery", unsafe { (self.device.driver.table.stream_query)(self.handle) })
    }

    /// Waits until everything is done, however long that takes.
    ///
    /// # Errors
    /// A failure of earlier work.
    pub fn synchronize(&self) -> Result<()> {
        self.device.enter()?;
        // SAFETY: a live stream.
        let code = unsafe { (self.device.driver.table.stream_synchronize)(self.handle) };
        self.device.driver.check("cuStreamSynchronize", code)
    }

    /// A mark after what has been asked for so far.
    pub(super) fn mark(&self) -> Result<Event> {
        self.device.enter()?;
        let (table, mut handle) = (&self.device.driver.table, std::ptr::null_mut());
        // SAFETY: a live output.
        self.device.driver.check("cuEventCreate", unsafe { (table.event_create)(&mut handle, NO_TIMING) })?;
        let event = Event { device: self.device.clone(), handle };
        // SAFETY: a live event and a live stream of one context.
        self.device.driver.check("cuEventRecord", unsafe { (table.event_record)(event.handle, self.handle) })?;
        Ok(event)
    }

    /// Copies `bytes` from one device address to another, in order.
    ///
    /// # Safety
    /// Both hold `bytes` until the stream is done, and nobody else uses `to` meanwhile.
    pub(super) unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        self.device.enter()?;
        // SAFETY: the caller's promise.
        let code = unsafe { (self.device.driver.table.copy_async)(to, from, bytes, self.handle) };
        self.device.driver.check("cuMemcpyDtoDAsync", code)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the last use of the handle; the driver finishes what is under way.
        unsafe { (self.device.driver.table.stream_destroy)(self.handle) };
    }
}

/// A mark in a stream.
pub(super) struct Event {
    device: Arc<Device>,
    handle: Handle,
}

// SAFETY: as for `Device`.
unsafe impl Send for Event {}

impl Event {
    /// Whether the stream has come so far.
    pub(super) fn is_done(&self) -> Result<bool> {
        self.device.enter()?;
        // SAFETY: a live event.
        self.device.driver.done("cuEventQuery", unsafe { (self.device.driver.table.event_query)(self.handle) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the last use of the handle.
        unsafe { (self.device.driver.table.event_destroy)(self.handle) };
    }
}

/// Memory on a device.
pub struct Memory {
    device: Arc<Device>,
    address: Address,
    bytes: usize,
}

impl Memory {
    /// At least one byte, so that every memory has an address.
    ///
    /// # Errors
    /// What the driver says, as when there is no room.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Memory> {
        device.enter()?;
        let mut address = 0;
        // SAFETY: a live output.
        device.driver.check("cuMemAlloc", unsafe { (device.driver.table.mem_alloc)(&mut address, bytes.max(1)) })?;
        Ok(Memory { device: device.clone(), address, bytes })
    }

    /// Where it lies, in the device's memory.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Copies host bytes to its beginning; they have arrived when this returns. Panics when they are more than it has.
    ///
    /// # Errors
    /// What the driver says.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= self.bytes, "{} bytes into {}", bytes.len(), self.bytes);
        self.device.enter()?;
        // SAFETY: as many bytes are there on both sides.
        let code = unsafe { (self.device.driver.table.copy_in)(self.address, bytes.as_ptr().cast(), bytes.len()) };
        self.device.driver.check("cuMemcpyHtoD", code)?;
        // The call returns when the bytes have been taken, which may be before they have arrived; and streams that do not wait for
        // the default one, as all of ours, would begin before that.
        // SAFETY: null is the default stream of the context that was just entered.
        let code = unsafe { (self.device.driver.table.stream_synchronize)(std::ptr::null_mut()) };
        self.device.driver.check("cuStreamSynchronize", code)
    }

    /// Copies from its beginning to host bytes. Panics when they are more than it has.
    ///
    /// # Errors
    /// What the driver says.
    pub fn read(&self, bytes: &mut [u8]) -> Result<()> {
        assert!(bytes.len() <= self.bytes, "{} bytes out of {}", bytes.len(), self.bytes);
        self.device.enter()?;
        // SAFETY: as many bytes are there on both sides.
        let code = unsafe { (self.device.driver.table.copy_out)(bytes.as_mut_ptr().cast(), self.address, bytes.len()) };
        self.device.driver.check("cuMemcpyDtoH", code)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.device.enter().is_ok() {
            // SAFETY: the last use of the address; the driver waits for work that uses it.
            unsafe { (self.device.driver.table.mem_free)(self.address) };
        }
    }
}
