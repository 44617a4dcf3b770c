//! Libraries that only imitate NVIDIA's. Each test has copies of its own, and with them a state of its own.

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_longlong, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use zbench_kernels::cuda::gpu::{Gpu, Options, Probe, Search};

mod libraries;

pub use libraries::beside;
use libraries::{COMPILED, OLD_DRIVER, SOURCES};

/// A folder of libraries.
pub struct Fakes {
    pub folder: PathBuf,
}

impl Drop for Fakes {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Fakes {
    /// All of them.
    pub fn all() -> Fakes {
        Fakes::without(&[])
    }

    /// All of them, the driver from before CUDA 12.
    pub fn of_old() -> Fakes {
        Fakes::made(&[], &OLD_DRIVER)
    }

    /// All but these.
    pub fn without(missing: &[&str]) -> Fakes {
        Fakes::made(missing, &COMPILED[0])
    }

    fn made(missing: &[&str], driver: &Path) -> Fakes {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("zbench-fakes-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let others = COMPILED[1..].iter().map(PathBuf::as_path);
        for ((name, _), compiled) in SOURCES.iter().zip(std::iter::once(driver).chain(others)) {
            if !missing.contains(name) {
                std::fs::copy(compiled, folder.join(name)).unwrap();
            }
        }
        let fakes = Fakes { folder };
        if fakes.has("libcuda.so.1") && fakes.has("libcublasLt.so.13") {
            type Enqueue = unsafe extern "C" fn(*mut c_void, f64, *const c_void, *mut c_void) -> c_int;
            let (driver, products) = (fakes.library("libcuda.so.1"), fakes.library("libcublasLt.so.13"));
            // SAFETY: the fakes' own functions.
            unsafe {
                let enqueue: Enqueue = *driver.get("fake_enqueue").unwrap();
                products.get::<unsafe extern "C" fn(Enqueue)>("fake_attach").unwrap()(enqueue);
            }
        }
        fakes
    }

    fn has(&self, name: &str) -> bool {
        self.folder.join(name).exists()
    }

    /// A library, the same copy that the machine uses. It stays loaded.
    fn library(&self, name: &str) -> &'static Library {
        // SAFETY: one of the fakes.
        Box::leak(Box::new(unsafe { Library::new(self.folder.join(name)) }.unwrap()))
    }

    fn driver<T: Copy>(&self, function: &str) -> T {
        // SAFETY: callers name the fake's functions with their types.
        *unsafe { self.library("libcuda.so.1").get::<T>(function) }.unwrap()
    }

    pub fn search(&self) -> Search {
        Search { folders: vec![self.folder.clone()] }
    }

    pub fn probe(&self) -> Probe {
        Probe::new(&self.search())
    }

    pub fn gpu(&self) -> Gpu {
        self.open(Options::default())
    }

    pub fn open(&self, options: Options) -> Gpu {
        Gpu::open(&self.probe(), 0, options).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Sets a number of the driver's.
    pub fn set(&self, name: &str, value: i64) {
        let name = CString::new(name).unwrap();
        // SAFETY: the fake's own function.
        unsafe { self.driver::<unsafe extern "C" fn(*const c_char, c_longlong)>("fake_set")(name.as_ptr(), value) }
    }

    /// Makes a function of the driver's fail, or work again.
    pub fn fail(&self, call: &str, code: i32) {
        let call = CString::new(call).unwrap();
        // SAFETY: the fake's own function.
        unsafe { self.driver::<unsafe extern "C" fn(*const c_char, c_int)>("fake_fail")(call.as_ptr(), code) }
    }

    /// Things of the driver's that were not given back.
    pub fn live(&self) -> i64 {
        // SAFETY: the fake's own function.
        unsafe { self.driver::<unsafe extern "C" fn() -> c_longlong>("fake_live")() }
    }

    /// Pieces of work that a stream has not done.
    pub fn pending(&self, stream: *mut c_void) -> i64 {
        // SAFETY: the fake's own function, and a live stream.
        unsafe { self.driver::<unsafe extern "C" fn(*mut c_void) -> c_longlong>("fake_pending")(stream) }
    }

    /// Kernels that were started.
    pub fn log(&self) -> Vec<String> {
        // SAFETY: the fake's own function, whose string stays until the next kernel.
        let text = unsafe { CStr::from_ptr(self.driver::<unsafe extern "C" fn() -> *const c_char>("fake_log")()) };
        text.to_str().unwrap().lines().map(String::from).collect()
    }

    /// A number that one of the libraries tells.
    pub fn number(&self, library: &str, function: &str) -> i32 {
        // SAFETY: the fakes' own functions.
        unsafe { self.library(library).get::<unsafe extern "C" fn() -> c_int>(function).unwrap()() }
    }

    /// Tells one of the libraries a number.
    pub fn tell(&self, library: &str, function: &str, number: i32) {
        // SAFETY: the fakes' own functions.
        unsafe { self.library(library).get::<unsafe extern "C" fn(c_int)>(function).unwrap()(number) }
    }

    /// A string that one of the libraries tells.
    pub fn text(&self, library: &str, function: &str) -> String {
        // SAFETY: the fakes' own functions, whose strings stay until they change.
        unsafe {
            let ask = self.library(library).get::<unsafe extern "C" fn() -> *const c_char>(function).unwrap();
            CStr::from_ptr(ask()).to_str().unwrap().into()
        }
    }
}
