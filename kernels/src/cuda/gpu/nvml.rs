//! How a device is: clocks, temperature, power, memory.

#![allow(unsafe_code, reason = "functions of NVML")]

use super::GpuInfo;
use super::library::{Absent, Library, Search, string, table};
use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::path::{Path, PathBuf};

type Handle = *mut c_void;

table! {
    Table;
    cudarc {}
    own {
        init = "nvmlInit_v2"() -> c_int;
        error_string = "nvmlErrorString"(c_int) -> *const c_char;
        driver_version = "nvmlSystemGetDriverVersion"(*mut c_char, c_uint) -> c_int;
        by_uuid = "nvmlDeviceGetHandleByUUID"(*const c_char, *mut Handle) -> c_int;
        by_pci = "nvmlDeviceGetHandleByPciBusId_v2"(*const c_char, *mut Handle) -> c_int;
        clock = "nvmlDeviceGetClockInfo"(Handle, c_uint, *mut c_uint) -> c_int;
        temperature = "nvmlDeviceGetTemperature"(Handle, c_uint, *mut c_uint) -> c_int;
        power = "nvmlDeviceGetPowerUsage"(Handle, *mut c_uint) -> c_int;
        power_limit = "nvmlDeviceGetEnforcedPowerLimit"(Handle, *mut c_uint) -> c_int;
        energy = "nvmlDeviceGetTotalEnergyConsumption"(Handle, *mut c_ulonglong) -> c_int;
        throttle = "nvmlDeviceGetCurrentClocksThrottleReasons"(Handle, *mut c_ulonglong) -> c_int;
        memory = "nvmlDeviceGetMemoryInfo_v2"(Handle, *mut Memory) -> c_int;
    }
}

/// nvmlMemory_v2_t.
#[repr(C)]
pub(super) struct Memory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

impl Memory {
    /// Its size, and the number of its form.
    const VERSION: c_uint = size_of::<Memory>() as c_uint | 2 << 24;
}

const CLOCK_SM: c_uint = 1;
const CLOCK_MEMORY: c_uint = 2;
const TEMPERATURE_GPU: c_uint = 0;

/// Why clocks are lower than they might be. `REASONS` has each in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Throttle {
    Idle,
    ApplicationClocks,
    PowerCap,
    /// The hardware halves the clocks: too hot, or too much power.
    HardwareSlowdown,
    /// A group of devices runs as the slowest of them.
    SyncBoost,
    SoftwareThermal,
    HardwareThermal,
    PowerBrake,
    Display,
    /// A bit that this program does not know.
    Other(u8),
}

/// Reasons by their bits, and their words.
const REASONS: [(Throttle, &str); 9] = [
    (Throttle::Idle, "idle"),
    (Throttle::ApplicationClocks, "clocks were set"),
    (Throttle::PowerCap, "power at its limit"),
    (Throttle::HardwareSlowdown, "hardware slowdown"),
    (Throttle::SyncBoost, "sync boost"),
    (Throttle::SoftwareThermal, "near the highest temperature"),
    (Throttle::HardwareThermal, "too hot"),
    (Throttle::PowerBrake, "the power supply asks for less"),
    (Throttle::Display, "a display's clocks"),
];

impl Throttle {
    fn of(bits: u64) -> Vec<Throttle> {
        let set = (0..64u8).filter(|bit| bits >> bit & 1 == 1);
        let known = |bit: u8| REASONS.get(usize::from(bit)).map_or(Throttle::Other(bit), |(reason, _)| *reason);
        set.map(known).collect()
    }
}

impl fmt::Display for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, REASONS.iter().find(|(reason, _)| reason == self)) {
            (Throttle::Other(bit), _) => write!(f, "reason {bit}"),
            (_, known) => f.write_str(known.map_or("", |(_, words)| words)),
        }
    }
}

/// How a device is at a moment. What it does not tell is an error in NVML's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    pub sm_mhz: Result<u32, String>,
    pub memory_mhz: Result<u32, String>,
    pub celsius: Result<u32, String>,
    pub power_mw: Result<u32, String>,
    /// Power that it may draw, milliwatts.
    pub power_limit_mw: Result<u32, String>,
    /// Energy since the driver was loaded, millijoules.
    pub energy_mj: Result<u64, String>,
    /// Why clocks are lower than they might be; empty when they are not.
    pub throttle: Result<Vec<Throttle>, String>,
    pub used_bytes: Result<u64, String>,
    /// Bytes that the driver keeps for itself.
    pub reserved_bytes: Result<u64, String>,
}

/// A loaded NVML. Readings take some tens of microseconds each.
#[derive(Debug)]
pub struct Nvml {
    table: Table,
    path: PathBuf,
}

/// A device as NVML knows it.
pub struct Watched<'a> {
    nvml: &'a Nvml,
    handle: Handle,
}

// SAFETY: a handle that any thread may use: NVML is safe for threads.
unsafe impl Send for Watched<'_> {}
// SAFETY: as above.
unsafe impl Sync for Watched<'_> {}

impl Nvml {
    /// Finds the library and starts it. It stays started until the process ends.
    ///
    /// # Errors
    /// [`Absent`] says what was tried, or what is missing, or what the library says: often that there is no driver.
    pub fn load(search: &Search) -> Result<Nvml, Absent> {
        let found = search.open(Library::Nvml)?;
        let nvml = Nvml { table: Table::resolve(&found)?, path: found.path };
        // SAFETY: a function without arguments, which may be called any number of times.
        let code = unsafe { (nvml.table.init)() };
        nvml.check(code)
            .map_err(|words| Absent::Failed { library: Library::Nvml, reason: format!("nvmlInit: {words}") })?;
        Ok(nvml)
    }

    /// The file, or the name under which the system found it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The driver's version as its vendor numbers it: `580.65.06`.
    ///
    /// # Errors
    /// NVML's words.
    pub fn driver_version(&self) -> Result<String, String> {
        // The last byte stays zero in any case.
        let mut text = [0 as c_char; 97];
        // SAFETY: a live output of more than so many bytes.
        self.check(unsafe { (self.table.driver_version)(text.as_mut_ptr(), 96) })?;
        // SAFETY: it ends in a zero.
        Ok(unsafe { string(text.as_ptr()) }.unwrap_or_default())
    }

    /// A device of the driver's, found by its id, else by its place: NVML shows all devices, whatever a process is given.
    ///
    /// # Errors
    /// NVML does not know it: its words.
    pub fn watch(&self, device: &GpuInfo) -> Result<Watched<'_>, String> {
        let ask = |find: unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int, name: &str| {
            let text = CString::new(name).map_err(|error| error.to_string())?;
            let mut handle = std::ptr::null_mut();
            // SAFETY: a string that ends in a zero, and a live output.
            self.check(unsafe { find(text.as_ptr(), &mut handle) }).map_err(|words| format!("{name}: {words}"))?;
            Ok(Watched { nvml: self, handle })
        };
        ask(self.table.by_uuid, &device.uuid)
            .or_else(|id: String| ask(self.table.by_pci, &device.pci).map_err(|place: String| format!("{id}; {place}")))
    }

    fn check(&self, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the library's own string, or null.
        let text = unsafe { string((self.table.error_string)(code)) };
        Err(format!("{} (code {code})", text.as_deref().unwrap_or("NVML has no words for it")))
    }
}

impl Watched<'_> {
    pub fn read(&self) -> Reading {
        let table = &self.nvml.table;
        let memory = Memory { version: Memory::VERSION, total: 0, reserved: 0, free: 0, used: 0 };
        // SAFETY: of all calls: a live output; that of the memory says its own size.
        unsafe {
            let memory = self.ask(memory, |of, to| (table.memory)(of, to));
            Reading {
                sm_mhz: self.ask(0, |of, to| (table.clock)(of, CLOCK_SM, to)),
                memory_mhz: self.ask(0, |of, to| (table.clock)(of, CLOCK_MEMORY, to)),
                celsius: self.ask(0, |of, to| (table.temperature)(of, TEMPERATURE_GPU, to)),
                power_mw: self.ask(0, |of, to| (table.power)(of, to)),
                power_limit_mw: self.ask(0, |of, to| (table.power_limit)(of, to)),
                energy_mj: self.ask(0, |of, to| (table.energy)(of, to)),
                throttle: self.ask(0, |of, to| (table.throttle)(of, to)).map(Throttle::of),
                used_bytes: memory.as_ref().map(|memory| memory.used).map_err(String::clone),
                reserved_bytes: memory.map(|memory| memory.reserved),
            }
        }
    }

    /// What a function writes to the output that it is given, which holds `value` before.
    fn ask<T>(&self, mut value: T, ask: impl FnOnce(Handle, &mut T) -> c_int) -> Result<T, String> {
        let code = ask(self.handle, &mut value);
        self.nvml.check(code).map(|()| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_laid_out_as_in_nvml_h() {
        assert_eq!((size_of::<Memory>(), std::mem::offset_of!(Memory, used)), (40, 32));
        assert_eq!(Memory::VERSION, 0x0200_0028);
    }

    #[test]
    fn reasons_are_read_bit_by_bit() {
        assert_eq!(Throttle::of(0), []);
        assert_eq!(Throttle::of(0x4 | 0x20), [Throttle::PowerCap, Throttle::SoftwareThermal]);
        assert_eq!(Throttle::of(1 << 40), [Throttle::Other(40)]);
        let words: Vec<String> = Throttle::of(0x108).iter().map(Throttle::to_string).collect();
        assert_eq!(words, ["hardware slowdown", "a display's clocks"]);
    }
}
