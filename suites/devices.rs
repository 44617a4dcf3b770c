//! The GPUs that cells run on, opened once.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use zbench_kernels::cuda::gpu::{Gpu, Options, Probe, Search};
use zbench_kernels::cuda::host::{Host, Order};
use zbench_kernels::cuda::machine::Machine;

/// Runs CUDA kernels on the processor instead of a GPU, compiled by the C++ compiler `c++`: slow, for checks.
pub const ON_HOST: &str = "ZBENCH_CUDA_ON_HOST";

/// A machine that runs CUDA by its number; the reason where there is none.
///
/// # Errors
/// There is no such GPU, no driver, or a library is missing.
pub fn machine(number: usize) -> Result<Arc<dyn Machine>, String> {
    if on_host() {
        return host();
    }
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, gpu)) = open.iter().find(|(known, _)| *known == number) {
        return Ok(gpu.clone());
    }
    let options = Options { cache: Some(cache()), ..Options::default() };
    let gpu = Arc::new(Gpu::open(probe(), number, options).map_err(|error| error.to_string())?);
    open.push((number, gpu.clone()));
    Ok(gpu)
}

/// GPUs that were opened, by their numbers.
static OPEN: Mutex<Vec<(usize, Arc<Gpu>)>> = Mutex::new(Vec::new());

/// A GPU that was opened: what is known of it beyond a machine's facts.
pub fn gpu(number: usize) -> Option<Arc<Gpu>> {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.iter().find(|(known, _)| *known == number).map(|(_, gpu)| gpu.clone())
}

/// What this machine has for CUDA; looked for once, where ZBENCH_CUDA_LIBS, CUDA_HOME and VIRTUAL_ENV say, and where the system
/// does.
pub fn probe() -> &'static Probe {
    static PROBE: OnceLock<Probe> = OnceLock::new();
    PROBE.get_or_init(|| Probe::new(&Search::new(|name| std::env::var_os(name))))
}

/// How many GPUs there are; why none can be used, in a few words.
///
/// # Errors
/// There is no driver, or it finds no device.
pub fn count() -> Result<usize, String> {
    if on_host() {
        return host().map(|_| 1);
    }
    let why = "zbench doctor says why";
    let probe = probe();
    match (&probe.devices, &probe.nvrtc) {
        (Ok(devices), Ok(_)) => Ok(devices.len()),
        (Ok(_), Err(_)) => Err(format!("their kernels cannot be compiled here, since NVRTC is missing ({why})")),
        (Err(_), _) => Err(format!("this machine has none that can be used ({why})")),
    }
}

/// Whether CUDA kernels are to run on the processor.
pub fn on_host() -> bool {
    std::env::var_os(ON_HOST).is_some_and(|value| value == "1")
}

/// The processor, which all ranks share as they would a GPU.
fn host() -> Result<Arc<dyn Machine>, String> {
    static HOST: OnceLock<Result<Arc<Host>, String>> = OnceLock::new();
    let open = || Host::new(&cache(), "c++", &[], Order::Forward).map(Arc::new).map_err(|error| error.to_string());
    HOST.get_or_init(open).clone().map(|host| host as Arc<dyn Machine>)
}

/// Where compiled kernels are kept: ZBENCH_CACHE, else the user's cache folder, else the system's folder for passing files.
fn cache() -> PathBuf {
    let given = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || Some(given("XDG_CACHE_HOME").unwrap_or(given("HOME")?.join(".cache")).join("zbench"));
    let folder = given("ZBENCH_CACHE").or_else(home).unwrap_or_else(|| std::env::temp_dir().join("zbench-cache"));
    folder.join(Path::new("kernels"))
}
