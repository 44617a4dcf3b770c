//! The kernels on the processor: their sources compiled as C++ with CUDA's names from host.h. Slow, and strict: for checks.

#![allow(unsafe_code, reason = "compiled kernels are called, and memory is an address")]

use super::folder;
use super::sources::{HEADERS, SOURCES, Source};
use crate::memory::device::{
    Address, Arguments, BLAS_WORKSPACE, Device, DeviceError, DeviceProps, Event, Launch, Result, Stream,
};
use crate::op::Gemm;
use libloading::Library;
use std::alloc::Layout;
use std::collections::HashMap;
use std::ffi::{OsString, c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How the sources are compiled, beside what the user adds.
const FLAGS: [&str; 9] =
    ["-std=c++17", "-O2", "-g1", "-shared", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-Wall", "-Werror"];
/// Bytes for what a kernel says when it fails.
const ERROR_BYTES: usize = 512;

/// As host.h lays it out.
#[repr(C)]
struct Start {
    grid: [u32; 3],
    threads: u32,
    shared: u32,
    order: u32,
    error: *mut c_char,
    error_bytes: u64,
}

type Entry = unsafe extern "C" fn(*const Start, *mut *mut c_void) -> c_int;

/// In which order the threads of a block take their turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// From the first on.
    #[default]
    Forward,
    /// From the last on. A result that differs from the other order's misses a barrier.
    Backward,
}

/// The processor as a machine that runs CUDA kernels.
#[derive(Clone)]
pub struct Host {
    inner: Arc<Inner>,
    scratch: usize,
}

struct Inner {
    facts: DeviceProps,
    order: Order,
    entries: HashMap<&'static str, Entry>,
    launches: Mutex<HashMap<&'static str, u64>>,
    _libraries: Vec<Library>,
}

/// Where libraries lie while they are loaded.
struct Kept {
    folder: PathBuf,
    /// No longer than that: it goes when this does.
    passing: bool,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.passing {
            // A folder that stays harms nobody.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

fn error(call: &str, reason: impl Into<String>) -> DeviceError {
    DeviceError { device: "cuda on the host".into(), call: call.into(), reason: reason.into(), out_of_memory: false }
}

impl Host {
    /// Compiles what is not in `cache` yet, with the C++ compiler of this name (`c++` will do) and flags of the user's. Where
    /// others can write to `cache` ([`folder::private`]), nothing is loaded from it and everything is compiled.
    ///
    /// # Errors
    /// There is no compiler, or it refuses a source: its words.
    pub fn new(cache: &Path, compiler: &str, flags: &[OsString], order: Order) -> Result<Host> {
        // Machines that are made at the same time do not compile the same.
        static COMPILING: Mutex<()> = Mutex::new(());
        let compiling = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = match folder::private(cache) {
            Ok(folder) => Kept { folder, passing: false },
            Err(_) => {
                let folder = folder::temporary().map_err(|error| self::error("making a folder", error.to_string()))?;
                Kept { folder, passing: true }
            }
        };
        let sources: Vec<&Source> = SOURCES.iter().filter(|source| !source.hopper).collect();
        // As many at a time as there are cores: a compiler takes half a GB.
        let (next, workers) = (AtomicUsize::new(0), std::thread::available_parallelism().map_or(2, usize::from));
        let compiled: Vec<Result<(usize, PathBuf)>> = std::thread::scope(|scope| {
            let work = || {
                let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < sources.len());
                let made = |i: usize| compile(sources[i], &cache.folder, compiler, flags).map(|path| (i, path));
                std::iter::from_fn(take).map(made).collect::<Vec<_>>()
            };
            // This thread is one of them; where the system starts no more, those that are there do the work.
            let start = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
            let threads: Vec<_> = (1..workers).filter_map(start).collect();
            let own = work();
            let ended = |thread: std::thread::ScopedJoinHandle<'_, Vec<_>>| {
                thread.join().unwrap_or_else(|_| vec![Err(error("compiling", "its thread panicked"))])
            };
            threads.into_iter().flat_map(ended).chain(own).collect()
        });
        drop(compiling);
        let (mut entries, mut libraries) = (HashMap::new(), Vec::new());
        for made in compiled {
            let (source, path) = made.map(|(i, path)| (sources[i], path))?;
            // SAFETY: a library made of our own source, whose initializers do nothing.
            let library =
                unsafe { Library::new(&path) }.map_err(|e| error("loading", format!("{}: {e}", source.name)))?;
            for kernel in source.kernels() {
                // SAFETY: EXPORT defines this function with this type.
                let entry = unsafe { library.get::<Entry>(format!("zb_{kernel}")) };
                let entry = entry.map_err(|e| error("loading", format!("{kernel}: {e}")))?;
                entries.insert(kernel, *entry);
            }
            libraries.push(library);
        }
        let facts = DeviceProps {
            name: "cuda on the host".into(),
            capability: (8, 0),
            multiprocessors: 4,
            shared_bytes: 227 << 10,
            memory_bytes: 4 << 30,
        };
        let launches = Mutex::new(HashMap::new());
        let inner = Arc::new(Inner { facts, order, entries, launches, _libraries: libraries });
        Ok(Host { inner, scratch: 0 })
    }

    /// The same with the scratch for products that a GPU has, so that plans hold.
    pub fn as_planned(&self) -> Host {
        Host { scratch: BLAS_WORKSPACE, ..self.clone() }
    }

    /// How often each kernel ran.
    pub fn launches(&self) -> HashMap<&'static str, u64> {
        self.inner.launches.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The compiled library of a source, whose name says what went into it.
fn compile(source: &Source, cache: &Path, compiler: &str, flags: &[OsString]) -> Result<PathBuf> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mut hasher = DefaultHasher::new();
    (source.text, HEADERS, compiler, flags, FLAGS).hash(&mut hasher);
    let path = cache.join(format!("{}-{:016x}.so", source.name, hasher.finish()));
    if is_intact(&path) {
        return Ok(path);
    }
    let failed = |e: std::io::Error| error("compiling", format!("{}: {e}", source.name));
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let dir = cache.join(format!("{}-{}-{number}", source.name, std::process::id()));
    std::fs::create_dir_all(&dir).map_err(failed)?;
    let made = make(source, &dir, compiler, flags).and_then(|made| std::fs::rename(&made, &path).map_err(failed));
    // What is left is of no use; a folder that stays harms nobody.
    let _ = std::fs::remove_dir_all(&dir);
    made.map(|()| path)
}

/// Whether a library is as it was made: loading a damaged one may end the process. Its last bytes are a sum of those before.
fn is_intact(path: &Path) -> bool {
    let Ok(bytes) = folder::read(path) else { return false };
    bytes.split_last_chunk().is_some_and(|(code, sum)| summed(code) == *sum)
}

fn summed(bytes: &[u8]) -> [u8; 8] {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish().to_le_bytes()
}

/// Compiles in a folder of its own.
fn make(source: &Source, dir: &Path, compiler: &str, flags: &[OsString]) -> Result<PathBuf> {
    let failed = |e: std::io::Error| error("compiling", format!("{}: {e}", source.name));
    for (name, text) in HEADERS {
        std::fs::write(dir.join(name), text).map_err(failed)?;
    }
    let file = dir.join(format!("{}.cu", source.name));
    std::fs::write(&file, source.text).map_err(failed)?;
    let made = dir.join("made.so");
    let mut command = Command::new(compiler);
    command.args(FLAGS).args(flags).args(["-x", "c++"]).arg(&file).arg("-o").arg(&made);
    // What watches this process need not watch the compiler.
    command.env_remove("LD_PRELOAD");
    let output =
        command.output().map_err(|e| error("compiling", format!("{compiler}: {e}; install a C++ compiler")))?;
    if !output.status.success() {
        return Err(error("compiling", format!("{}:\n{}", source.name, String::from_utf8_lossy(&output.stderr))));
    }
    // The loader reads what the header states, and not what stands behind it.
    let sum = summed(&std::fs::read(&made).map_err(failed)?);
    let append = |mut file: std::fs::File| std::io::Write::write_all(&mut file, &sum);
    std::fs::OpenOptions::new().append(true).open(&made).and_then(append).map_err(failed)?;
    Ok(made)
}

/// From so many bytes on memory comes from the system itself: pages that nobody touches are never made.
const LARGE: usize = 1 << 20;

fn layout(bytes: usize) -> Result<Layout> {
    Layout::from_size_align(bytes.max(1), 256).map_err(|_| error("allocating", format!("{bytes} bytes are too many")))
}

/// Zeros, at a multiple of 256 bytes; null where there is no room.
fn zeros(bytes: usize) -> Result<*mut u8> {
    let layout = layout(bytes)?;
    if bytes < LARGE {
        // SAFETY: the layout has at least one byte.
        return Ok(unsafe { std::alloc::alloc_zeroed(layout) });
    }
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping at an address of the system's choosing.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
    Ok(if at == libc::MAP_FAILED { std::ptr::null_mut() } else { at.cast() })
}

impl Device for Host {
    fn props(&self) -> &DeviceProps {
        &self.inner.facts
    }

    fn name(&self) -> String {
        "cuda on the host".into()
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        let at = zeros(bytes)?;
        if at.is_null() {
            let reason = format!("no room for {bytes} bytes");
            return Err(DeviceError { out_of_memory: true, ..error("allocating", reason) });
        }
        Ok(at as Address)
    }

    unsafe fn free(&self, address: Address, bytes: usize) {
        match layout(bytes) {
            // SAFETY: made by `allocate` with this layout.
            Ok(layout) if bytes < LARGE => unsafe { std::alloc::dealloc(address as *mut u8, layout) },
            // SAFETY: mapped by `allocate` with this length.
            _ => drop(unsafe { libc::munmap(address as *mut c_void, bytes) }),
        }
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Address> {
        // So many are mapped, and begin on a page.
        self.allocate(bytes.max(LARGE))
    }

    unsafe fn free_pinned(&self, address: Address, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.free(address, bytes.max(LARGE)) }
    }

    fn new_stream(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(self.clone()))
    }

    fn blas_workspace(&self) -> usize {
        self.scratch
    }

    fn reaches_host(&self) -> bool {
        true
    }

    fn load(&self, kernels: &[&'static str]) -> Result<()> {
        match kernels.iter().find(|kernel| !self.inner.entries.contains_key(**kernel)) {
            Some(kernel) => Err(error("loading", format!("there is no kernel {kernel}"))),
            None => Ok(()),
        }
    }
}

/// Everything is done where it is asked for.
impl Stream for Host {
    unsafe fn launch(&self, launch: &Launch, arguments: Arguments<'_>) -> Result<()> {
        let Some(entry) = self.inner.entries.get(launch.kernel) else {
            return Err(error(launch.kernel, "there is no such kernel"));
        };
        if launch.shared > self.inner.facts.shared_bytes {
            return Err(error(launch.kernel, format!("{} bytes of shared memory are too many", launch.shared)));
        }
        let mut said = [0u8; ERROR_BYTES];
        let start = Start {
            grid: launch.grid,
            threads: launch.threads,
            shared: launch.shared,
            order: u32::from(self.inner.order == Order::Backward),
            error: said.as_mut_ptr().cast(),
            error_bytes: ERROR_BYTES as u64,
        };
        // SAFETY: the caller's promise for the arguments; `start` is laid out as host.h has it.
        if unsafe { entry(&start, arguments.pointers.as_mut_ptr()) } != 0 {
            let end = said.iter().position(|byte| *byte == 0).unwrap_or(ERROR_BYTES);
            return Err(error(launch.kernel, String::from_utf8_lossy(&said[..end])));
        }
        *self.inner.launches.lock().unwrap_or_else(PoisonError::into_inner).entry(launch.kernel).or_default() += 1;
        Ok(())
    }

    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        Ok(())
    }

    unsafe fn upload(&self, from: &[u8], to: Address) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy(from.as_ptr() as Address, to, from.len()) }
    }

    unsafe fn download(&self, from: Address, to: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy(from, to.as_mut_ptr() as Address, to.len()) }
    }

    unsafe fn memset(&self, to: Address, value: u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::write_bytes(to as *mut u8, value, bytes) };
        Ok(())
    }

    unsafe fn blas_gemm(&self, _: &Gemm, _: Address, _: Address, _: Address, _: Address, _: usize) -> Result<bool> {
        Ok(false)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn record_event(&self) -> Result<Box<dyn Event>> {
        Ok(Box::new(Moment(Instant::now())))
    }

    fn wait_event(&self, _: &dyn Event) -> Result<()> {
        Ok(())
    }
}

/// What was asked for before it has been done.
struct Moment(Instant);

impl Event for Moment {
    fn wait(&self) -> Result<()> {
        Ok(())
    }

    fn query(&self) -> Result<bool> {
        Ok(true)
    }

    fn elapsed(&self, earlier: &dyn Event) -> Result<Duration> {
        let earlier = earlier.as_any().downcast_ref::<Moment>();
        let earlier = earlier.ok_or_else(|| error("timing", "the event is another device's"))?;
        Ok(self.0.saturating_duration_since(earlier.0))
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
