//! The driver's functions, and its words.

#![allow(unsafe_code, reason = "functions of the CUDA driver")]

use super::library::{Absent, Found, Library, Returned, Search, string, table};
use crate::memory::device::DeviceError;
use cudarc::driver::sys::*;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};
use std::path::{Path, PathBuf};

impl Returned for CUresult {
    type As = c_int;
}

table! {
    Table;
    cudarc {
        init = cuInit(c_uint) -> CUresult;
        driver_version = cuDriverGetVersion(*mut c_int) -> CUresult;
        device_count = cuDeviceGetCount(*mut c_int) -> CUresult;
        device_get = cuDeviceGet(*mut CUdevice, c_int) -> CUresult;
        device_name = cuDeviceGetName(*mut c_char, c_int, CUdevice) -> CUresult;
        device_attribute = cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice) -> CUresult;
        device_memory = cuDeviceTotalMem_v2(*mut usize, CUdevice) -> CUresult;
        device_uuid = cuDeviceGetUuid_v2(*mut CUuuid, CUdevice) -> CUresult;
        device_pci = cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice) -> CUresult;
        context_retain = cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice) -> CUresult;
        context_release = cuDevicePrimaryCtxRelease_v2(CUdevice) -> CUresult;
        context_set = cuCtxSetCurrent(CUcontext) -> CUresult;
        context_synchronize = cuCtxSynchronize() -> CUresult;
        stream_create = cuStreamCreate(*mut CUstream, c_uint) -> CUresult;
        stream_create_with_priority = cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int) -> CUresult;
        stream_priorities = cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int) -> CUresult;
        stream_destroy = cuStreamDestroy_v2(CUstream) -> CUresult;
        stream_synchronize = cuStreamSynchronize(CUstream) -> CUresult;
        stream_wait = cuStreamWaitEvent(CUstream, CUevent, c_uint) -> CUresult;
        event_create = cuEventCreate(*mut CUevent, c_uint) -> CUresult;
        event_destroy = cuEventDestroy_v2(CUevent) -> CUresult;
        event_record = cuEventRecord(CUevent, CUstream) -> CUresult;
        event_query = cuEventQuery(CUevent) -> CUresult;
        event_synchronize = cuEventSynchronize(CUevent) -> CUresult;
        // The second form came late in CUDA 12 and asks for nothing else; every driver has the first.
        event_elapsed = cuEventElapsedTime_v2 as "cuEventElapsedTime"(*mut f32, CUevent, CUevent) -> CUresult;
        memory_allocate = cuMemAlloc_v2(*mut CUdeviceptr, usize) -> CUresult;
        memory_free = cuMemFree_v2(CUdeviceptr) -> CUresult;
        memory_info = cuMemGetInfo_v2(*mut usize, *mut usize) -> CUresult;
        host_allocate = cuMemHostAlloc(*mut *mut c_void, usize, c_uint) -> CUresult;
        host_free = cuMemFreeHost(*mut c_void) -> CUresult;
        copy_to_device = cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream) -> CUresult;
        copy_to_host = cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream) -> CUresult;
        copy_on_device = cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream) -> CUresult;
        set = cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream) -> CUresult;
        module_load = cuModuleLoadData(*mut CUmodule, *const c_void) -> CUresult;
        module_unload = cuModuleUnload(CUmodule) -> CUresult;
        module_function = cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char) -> CUresult;
        function_attribute = cuFuncGetAttribute(*mut c_int, CUfunction_attribute, CUfunction) -> CUresult;
        function_set = cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int) -> CUresult;
        launch = cuLaunchKernel(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void
        ) -> CUresult;
    }
    own {
        error_name = "cuGetErrorName"(c_int, *mut *const c_char) -> c_int;
        error_string = "cuGetErrorString"(c_int, *mut *const c_char) -> c_int;
    }
    lately {
        // Since CUDA 12.0; one kind of kernels for Hopper needs it.
        tensor_map = cuTensorMapEncodeTiled(
            *mut CUtensorMap, CUtensorMapDataType, cuuint32_t, *mut c_void, *const cuuint64_t, *const cuuint64_t,
            *const cuuint32_t, *const cuuint32_t, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
            CUtensorMapFloatOOBfill
        ) -> CUresult;
    }
}

const SUCCESS: c_int = CUresult::CUDA_SUCCESS as c_int;
/// What was asked for is not done yet.
pub const NOT_READY: c_int = CUresult::CUDA_ERROR_NOT_READY as c_int;
const OUT_OF_MEMORY: c_int = CUresult::CUDA_ERROR_OUT_OF_MEMORY as c_int;

#[derive(Debug)]
pub struct Driver {
    pub table: Table,
    path: PathBuf,
    version: i32,
}

/// A call of the driver's that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {words}")]
pub struct DriverError {
    pub call: &'static str,
    pub code: i32,
    /// The driver's name for it, its number, and its words.
    pub words: String,
}

impl DriverError {
    /// The same where it says that the driver cannot be used.
    pub(super) fn absent(&self) -> Absent {
        Absent::Failed { library: Library::Driver, reason: self.to_string() }
    }

    /// The same as a machine's error.
    pub(super) fn on(self, device: &str) -> DeviceError {
        let out_of_memory = self.code == OUT_OF_MEMORY;
        DeviceError { device: device.into(), call: self.call.into(), reason: self.words, out_of_memory }
    }
}

/// What helps, of faults that a user can do something about.
fn help(code: c_int) -> &'static str {
    match code {
        100 => "; no GPU is visible: see nvidia-smi, and the variable CUDA_VISIBLE_DEVICES",
        209 => {
            "; the driver may be older than the compiler of the kernels: see the versions that `zbench doctor` tells"
        }
        222 => "; the driver is older than the compiler of the kernels: update it, or install an older NVRTC",
        700 | 715 | 716 | 717 | 718 | 719 => {
            "; a kernel that was started earlier did this, and nothing works in this process any more: run it under \
             compute-sanitizer to find out which"
        }
        802 => "; the system's fabric is not ready: nvidia-fabricmanager has to run",
        803 | 804 => "; the driver's library and the kernel's module are of different versions: restart the machine",
        _ => "",
    }
}

impl Driver {
    /// Finds the library and all of its functions. It is not asked for anything but its version yet.
    ///
    /// # Errors
    /// [`Absent`] says what was tried, or what is missing.
    pub fn load(search: &Search) -> Result<Driver, Absent> {
        let found: Found = search.open(Library::Driver)?;
        let table = Table::resolve(&found)?;
        let driver = Driver { table, path: found.path, version: 0 };
        // SAFETY: a live output; the function needs no initialisation.
        let version = driver.output("cuDriverGetVersion", 0, |to| unsafe { (driver.table.driver_version)(to) });
        Ok(Driver { version: version.map_err(|error| error.absent())?, ..driver })
    }

    /// What a call writes to the output that it is given, which holds `value` before.
    pub(super) fn output<T>(
        &self,
        call: &'static str,
        mut value: T,
        ask: impl FnOnce(&mut T) -> c_int,
    ) -> Result<T, DriverError> {
        let code = ask(&mut value);
        self.check(call, code).map(|()| value)
    }

    /// The newest CUDA that it knows: 13000 is 13.0.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The file, or the name under which the system found it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A code in words.
    ///
    /// # Errors
    /// Any code but success.
    pub fn check(&self, call: &'static str, code: c_int) -> Result<(), DriverError> {
        if code == SUCCESS {
            return Ok(());
        }
        let ask = |function: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = std::ptr::null();
            // SAFETY: a live output, which gets a string of the library's own, or null.
            unsafe { if function(code, &mut text) == SUCCESS { string(text) } else { None } }
        };
        let name = ask(self.table.error_name).unwrap_or_else(|| "CUDA".into());
        let text = ask(self.table.error_string).unwrap_or_else(|| "an error that the driver has no words for".into());
        Err(DriverError { call, code, words: format!("{name} ({code}): {text}{}", help(code)) })
    }
}
