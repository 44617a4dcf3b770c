//! What this machine has: the libraries, and the devices.

#![allow(unsafe_code, reason = "functions of the CUDA driver")]

use super::driver::{Driver, DriverError};
use super::library::{Absent, Library, Search};
use super::nvrtc::Nvrtc;
use super::{CublasLt, Ranges, dotted};
use cudarc::driver::sys::{CUdevice, CUdevice_attribute, CUuuid};
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::Arc;

/// What was found, and why not. Each part stands by itself: the absence of one says nothing of the others.
#[derive(Debug, Clone)]
pub struct Probe {
    pub driver: Result<Arc<Driver>, Absent>,
    pub nvrtc: Result<Arc<Nvrtc>, Absent>,
    pub cublaslt: Result<Arc<CublasLt>, Absent>,
    pub nvtx: Result<Arc<Ranges>, Absent>,
    /// The GPUs that the driver shows, at least one.
    pub devices: Result<Vec<GpuInfo>, Absent>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInfo {
    /// Its number among those that the driver shows.
    pub ordinal: usize,
    pub name: String,
    /// Major and minor compute capability: (9, 0) for Hopper.
    pub capability: (u32, u32),
    pub memory_bytes: u64,
    /// As nvidia-smi writes it: `GPU-` and five groups of hexadecimal digits.
    pub uuid: String,
    /// Where it is plugged in: `0000:3B:00.0`.
    pub pci: String,
}

impl Probe {
    /// Looks for everything, and asks the driver for its devices.
    pub fn new(search: &Search) -> Probe {
        let driver = Driver::load(search).map(Arc::new);
        let devices = driver.clone().and_then(|driver| {
            let devices = driver.devices().map_err(|error| error.absent())?;
            if devices.is_empty() {
                let reason = "it shows no device: see nvidia-smi, and the variable CUDA_VISIBLE_DEVICES".into();
                return Err(Absent::Failed { library: Library::Driver, reason });
            }
            Ok(devices)
        });
        let version = driver.as_ref().ok().map(|driver| driver.version());
        Probe {
            driver,
            nvrtc: Nvrtc::load(search, version).map(Arc::new),
            cublaslt: CublasLt::load(search, version).map(Arc::new),
            nvtx: Ranges::load(search).map(Arc::new),
            devices,
        }
    }
}

impl fmt::Display for Probe {
    /// A line for each thing that was found, and some for what was not.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |library: Library, found: Result<(String, &std::path::Path), &Absent>| match found {
            Ok((version, path)) => writeln!(f, "{library}: {version}, {}", path.display()),
            Err(absent) => writeln!(f, "{absent}"),
        };
        line(Library::Driver, self.driver.as_ref().map(|d| (format!("CUDA {}", dotted(d.version())), d.path())))?;
        line(Library::Nvrtc, self.nvrtc.as_ref().map(|n| (dotted(n.version()), n.path())))?;
        line(Library::CublasLt, self.cublaslt.as_ref().map(|c| (c.dotted(), c.path())))?;
        match &self.devices {
            Ok(devices) => devices.iter().try_for_each(|device| writeln!(f, "{device}")),
            // Said already.
            Err(_) if self.driver.is_err() => Ok(()),
            Err(absent) => writeln!(f, "{absent}"),
        }
    }
}

impl fmt::Display for GpuInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GpuInfo { ordinal, name, capability: (major, minor), memory_bytes, uuid, pci } = self;
        let gib = *memory_bytes as f64 / f64::from(1 << 30);
        write!(f, "GPU {ordinal}: {name}, capability {major}.{minor}, {gib:.1} GiB, {uuid}, {pci}")
    }
}

impl Driver {
    /// The devices that it shows; starts the driver.
    ///
    /// # Errors
    /// The driver does not start, as where it finds no device at all, or cannot describe one.
    pub fn devices(&self) -> Result<Vec<GpuInfo>, DriverError> {
        // SAFETY: may be called any number of times.
        self.check("cuInit", unsafe { (self.table.init)(0) })?;
        // SAFETY: a live output.
        let count = self.output("cuDeviceGetCount", 0, |count| unsafe { (self.table.device_count)(count) })?;
        (0..count).map(|ordinal| self.describe(ordinal)).collect()
    }

    fn describe(&self, ordinal: c_int) -> Result<GpuInfo, DriverError> {
        let device = self.device(ordinal)?;
        // SAFETY: a live output.
        let memory = self.output("cuDeviceTotalMem", 0, |to| unsafe { (self.table.device_memory)(to, device) })?;
        let uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: as above.
        let uuid = self.output("cuDeviceGetUuid", uuid, |to| unsafe { (self.table.device_uuid)(to, device) })?;
        let attribute = |which| Ok(self.attribute(which, device)?.unsigned_abs());
        Ok(GpuInfo {
            ordinal: ordinal as usize,
            name: self.text("cuDeviceGetName", self.table.device_name, device)?,
            capability: (
                attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            memory_bytes: memory as u64,
            uuid: written(uuid.bytes.map(|byte| byte as u8)),
            pci: self.text("cuDeviceGetPCIBusId", self.table.device_pci, device)?,
        })
    }

    /// The handle of a device.
    ///
    /// # Errors
    /// There is none of this number.
    pub fn device(&self, ordinal: c_int) -> Result<CUdevice, DriverError> {
        // SAFETY: a live output.
        self.output("cuDeviceGet", 0, |device| unsafe { (self.table.device_get)(device, ordinal) })
    }

    /// A number that the driver knows of a device.
    pub(super) fn attribute(&self, which: CUdevice_attribute, device: CUdevice) -> Result<i32, DriverError> {
        // SAFETY: a live output.
        self.output("cuDeviceGetAttribute", 0, |value| unsafe { (self.table.device_attribute)(value, which, device) })
    }

    fn text(
        &self,
        call: &'static str,
        ask: unsafe extern "C" fn(*mut c_char, c_int, CUdevice) -> c_int,
        device: CUdevice,
    ) -> Result<String, DriverError> {
        // One byte more than the driver is told of stays zero, so that there is an end in any case.
        let mut text = [0 as c_char; 257];
        // SAFETY: a live output of more than so many bytes.
        self.check(call, unsafe { ask(text.as_mut_ptr(), 256, device) })?;
        // SAFETY: it ends in a zero.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }
}

/// A device's id as people know it.
fn written(bytes: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (i, byte) in bytes.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&i) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_as_nvidia_smi_does() {
        let bytes = std::array::from_fn(|i| 16 * i as u8 + 1);
        assert_eq!(written(bytes), "GPU-01112131-4151-6171-8191-a1b1c1d1e1f1");
    }
}
