//! Kernels on their way to the device: compiled, loaded, and found by name.

#![allow(unsafe_code, reason = "functions of the CUDA driver")]

use super::cache::{Obtained, obtain};
use super::{DriverTable, Inner, Usage};
use crate::cuda::sources::Source;
use crate::memory::device::{Launch, Result};
use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUmodule};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// A source that was made ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    pub source: &'static str,
    /// Whether its code was on disk.
    pub cached: bool,
    /// Why its code could not be kept for the next start, if so.
    pub not_kept: Option<String>,
    /// Time of compiling, or of reading.
    pub time: Duration,
    pub usage: Vec<Usage>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel {
    pub function: CUfunction,
    /// Threads that a block may have.
    pub most_threads: u32,
    /// Bytes of shared memory of its own.
    pub shared: u32,
}

#[derive(Default)]
pub(super) struct Modules {
    kernels: RwLock<HashMap<&'static str, Kernel>>,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    modules: Vec<CUmodule>,
    built: Vec<Built>,
}

impl Modules {
    pub(super) fn built(&self) -> Vec<Built> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).built.clone()
    }

    /// All modules, which are to be unloaded.
    pub(super) fn take(&mut self) -> Vec<CUmodule> {
        std::mem::take(&mut self.loaded.get_mut().unwrap_or_else(PoisonError::into_inner).modules)
    }

    fn find(&self, name: &str) -> Option<Kernel> {
        self.kernels.read().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }
}

impl Inner {
    /// A kernel, which is compiled and loaded if it is not yet.
    pub(super) fn kernel(&self, name: &'static str) -> Result<Kernel> {
        if let Some(kernel) = self.modules.find(name) {
            return Ok(kernel);
        }
        self.load(&[name])?;
        self.modules.find(name).ok_or_else(|| self.error(name, "its source does not hold it"))
    }

    /// Compiles and loads the sources of these kernels, those that are missing all at once.
    pub(super) fn load(&self, kernels: &[&'static str]) -> Result<()> {
        let mut sources: Vec<&'static Source> = Vec::new();
        for &name in kernels.iter().filter(|name| self.modules.find(name).is_none()) {
            let source = Source::of(name).ok_or_else(|| self.error(name, "there is no such kernel"))?;
            if !self.target.takes(source) {
                let reason = format!("it uses Hopper's instructions, which {} has not", self.target.name());
                return Err(self.error(name, reason));
            }
            if !sources.contains(&source) {
                sources.push(source);
            }
        }
        let mut loaded = self.modules.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have loaded some meanwhile.
        sources.retain(|source| !loaded.built.iter().any(|built| built.source == source.name));
        let obtained: Vec<_> = std::thread::scope(|scope| {
            let work = |source: &&'static Source| {
                let source = *source;
                let compile = move || {
                    let start = Instant::now();
                    let obtained = obtain(&self.nvrtc, self.options.cache.as_deref(), source, &self.target);
                    (obtained, start.elapsed())
                };
                // Where the system starts no more threads, this one does it.
                std::thread::Builder::new().spawn_scoped(scope, compile).map_err(|_| compile())
            };
            let threads: Vec<_> = sources.iter().map(work).collect();
            threads.into_iter().map(|thread| thread.map_or_else(Ok, std::thread::ScopedJoinHandle::join)).collect()
        });
        for (source, obtained) in sources.iter().zip(obtained) {
            let call = || format!("compiling {}.cu", source.name);
            let (obtained, time) = obtained.map_err(|_| self.error(call(), "its thread panicked"))?;
            let obtained = obtained.map_err(|error| self.error(call(), error.to_string()))?;
            loaded.modules.push(self.load_module(source, &obtained)?);
            let Obtained { compiled, cached, not_kept } = obtained;
            loaded.built.push(Built { source: source.name, cached, not_kept, time, usage: compiled.usage() });
        }
        Ok(())
    }

    /// Loads a source's code, and notes its kernels.
    fn load_module(&self, source: &Source, obtained: &Obtained) -> Result<CUmodule> {
        self.enter()?;
        let table = &self.driver.table;
        let mut module = std::ptr::null_mut();
        // SAFETY: a live output, and code as the compiler made it: its own header says how long it is.
        let code = unsafe { (table.module_load)(&mut module, obtained.compiled.cubin.as_ptr().cast()) };
        self.check("cuModuleLoadData", code).map_err(|error| {
            let call = format!("loading {}.cu for {}", source.name, self.target.name());
            self.error(call, error.reason)
        })?;
        let mut kernels = HashMap::new();
        for name in source.kernels() {
            match self.find_in(module, name) {
                Ok(kernel) => kernels.insert(name, kernel),
                Err(error) => {
                    // SAFETY: a module of which nobody knows yet.
                    unsafe { (table.module_unload)(module) };
                    return Err(self.error(name, error.to_string()));
                }
            };
        }
        self.modules.kernels.write().unwrap_or_else(PoisonError::into_inner).extend(kernels);
        Ok(module)
    }

    /// A kernel of a module, which may from now on ask for all the shared memory that there is.
    fn find_in(&self, module: CUmodule, name: &str) -> Result<Kernel> {
        use CUfunction_attribute::*;
        let table = &self.driver.table;
        let text = CString::new(name).map_err(|error| self.error(name, error.to_string()))?;
        // SAFETY: a live output and module, and a string that ends in a zero.
        let find = |_: &DriverTable, to: &mut CUfunction| unsafe { (table.module_function)(to, module, text.as_ptr()) };
        let function = self.output("cuModuleGetFunction", std::ptr::null_mut(), find)?;
        let number = |which| {
            // SAFETY: a live output and function.
            let ask = |_: &DriverTable, to: &mut i32| unsafe { (table.function_attribute)(to, which, function) };
            Ok(self.output("cuFuncGetAttribute", 0, ask)?.unsigned_abs())
        };
        let shared = number(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let most_threads = number(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        let dynamic = self.facts.shared_bytes.saturating_sub(shared) as i32;
        let which = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a live function.
        self.check("cuFuncSetAttribute", unsafe { (table.function_set)(function, which, dynamic) })?;
        Ok(Kernel { function, most_threads, shared })
    }

    /// What is wrong with a launch. The driver would only say that a value is invalid.
    pub(super) fn refusal(launch: &Launch, kernel: &Kernel, shared_bytes: u32) -> Option<String> {
        let Launch { grid: [x, y, z], threads, shared, .. } = *launch;
        if [x, y, z].contains(&0) || x > i32::MAX as u32 || y > 65_535 || z > 65_535 {
            return Some(format!("a grid of {x} x {y} x {z} blocks is none that a device can run"));
        }
        if threads == 0 || !threads.is_multiple_of(32) || threads > kernel.most_threads {
            let most = kernel.most_threads;
            return Some(format!(
                "{threads} threads are not whole warps, or more than its {most} (KERNEL names the most)"
            ));
        }
        if u64::from(shared) + u64::from(kernel.shared) > u64::from(shared_bytes) {
            let own = kernel.shared;
            return Some(format!("{shared} bytes of shared memory with {own} of its own are more than {shared_bytes}"));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_that_no_device_can_do_are_refused() {
        let kernel = Kernel { function: std::ptr::null_mut(), most_threads: 256, shared: 1024 };
        let good = Launch { kernel: "k", grid: [i32::MAX as u32, 65_535, 65_535], threads: 256, shared: 231_424 };
        let refusal = |launch| Inner::refusal(&launch, &kernel, 232_448);
        assert_eq!(refusal(good), None);
        for grid in [[0, 1, 1], [1, 0, 1], [1, 1, 0], [1 << 31, 1, 1], [1, 65_536, 1], [1, 1, 65_536]] {
            assert!(refusal(Launch { grid, ..good }).unwrap().contains("grid"), "{grid:?}");
        }
        for threads in [0, 16, 100, 288] {
            assert!(refusal(Launch { threads, ..good }).unwrap().contains("warps"), "{threads}");
        }
        for shared in [231_425, u32::MAX] {
            assert!(refusal(Launch { shared, ..good }).unwrap().contains("shared"), "{shared}");
        }
    }
}
