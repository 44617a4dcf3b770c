//! The GPUs that cells run on, opened once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use zbench_estimate::job::Number;
use zbench_estimate::profile;
use zbench_kernels::cuda::folder::{self, NotPrivate};
use zbench_kernels::cuda::gpu::{Fallback, Gpu, Nvml, Options, Probe, Reading, Search, Watched};
use zbench_kernels::cuda::host::{Host, Order};
use zbench_kernels::memory::device::Device;
use zbench_kernels::{Arena, Category, Cuda, DType, Gemm, KernelError, Kernels, Normal, Op, no_scratch};

/// Runs CUDA kernels on the processor instead of a GPU, compiled by the C++ compiler `c++`: slow, for checks.
pub const ON_HOST: &str = "ZBENCH_CUDA_ON_HOST";

/// The GPU with this number, or the processor where CUDA kernels run on it.
///
/// # Errors
/// There is no such GPU, no driver, or a library is missing.
pub fn machine(number: usize) -> Result<Arc<dyn Device>, String> {
    if on_host() {
        return host();
    }
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(gpu) = open.get(&number) {
        return Ok(gpu.clone());
    }
    let cache = folder::private(&cache()).map_err(|why| say_not_kept(&why)).ok();
    let options = Options { cache, ..Options::default() };
    let gpu = Arc::new(Gpu::open(probe(), number, options).map_err(|error| error.to_string())?);
    open.insert(number, gpu.clone());
    Ok(gpu)
}

/// GPUs that were opened, by their numbers.
static OPEN: Mutex<BTreeMap<usize, Arc<Gpu>>> = Mutex::new(BTreeMap::new());

/// A GPU that was opened before.
pub fn gpu(number: usize) -> Option<Arc<Gpu>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
}

/// A product that the vendor's library did not compute, in words.
pub fn fallback(fallback: &Fallback) -> String {
    let Fallback { op, why } = fallback;
    let [a, b] = [op.trans_a, op.trans_b].map(|transposed| if transposed { "T" } else { "N" });
    format!("{}x{}x{} {a}{b}, {} by {} into {}: {why}", op.m, op.n, op.k, op.a, op.b, op.c)
}

/// Dense floating-point operations per second of a GPU in a type, by its vendor's data sheet.
///
/// # Errors
/// There is no such GPU, or no profile of a machine with it has that rate.
pub fn data_sheet_flops(number: usize, dtype: DType) -> Result<f64, String> {
    refuse_on_host()?;
    let machine = machine(number)?;
    let name = &machine.props().name;
    let profile =
        profile::of_product(name).ok_or_else(|| format!("no profile has the product {name} (docs/machines.md)"))?;
    let rates = profile::machine(profile).map_err(|error| error.to_string())?;
    let wanted = match dtype {
        DType::Bf16 => Number::Bf16,
        DType::F16 => Number::F16,
        _ => Number::F32,
    };
    let rate = rates.device.compute.get(&wanted).map(|rate| rate.peak);
    rate.ok_or_else(|| format!("the profile {profile} has no rate of {dtype}"))
}

/// Rows and columns of the product that a GPU's peak is measured with.
const PEAK_SIDE: usize = 8192;
/// Calls to warm up, and calls that are timed; the fastest of these counts.
const PEAK_CALLS: (usize, usize) = (3, 10);

fn refuse_on_host() -> Result<(), String> {
    if on_host() { Err("CUDA kernels ran on the processor: their speed says nothing".into()) } else { Ok(()) }
}

/// Floating-point operations per second that a GPU reaches now in a large product of random numbers of a type.
///
/// # Errors
/// There is no such GPU, or it has no room for the product.
pub fn measured_flops(number: usize, dtype: DType) -> Result<f64, String> {
    refuse_on_host()?;
    product_flops(machine(number)?, dtype, PEAK_SIDE)
}

/// As [`measured_flops`], for a machine and a product with `side` rows and columns.
///
/// # Errors
/// The machine has no room for it, or failed.
pub fn product_flops(machine: Arc<dyn Device>, dtype: DType, side: usize) -> Result<f64, String> {
    let kernels = Cuda::new(machine.clone()).map_err(|error| error.to_string())?;
    let len = side * side;
    let op = Gemm {
        m: side,
        n: side,
        k: side,
        trans_a: false,
        trans_b: true,
        alpha: 1.0,
        accumulate: false,
        a: dtype,
        b: dtype,
        c: dtype,
        ..Gemm::DENSE
    };
    let scratch = kernels.workspace(&Op::Gemm(op));
    let bytes = (3 * len * dtype.size() + scratch * 4 + 4096) as u64;
    let arena = Arena::on(machine, None, bytes).map_err(|error| error.to_string())?;
    let alloc = |dtype, len| arena.alloc(Category::Workspace, dtype, len).map_err(|error| error.to_string());
    let (mut a, mut b, mut c) = (alloc(dtype, len)?, alloc(dtype, len)?, alloc(dtype, len)?);
    let mut scratch = alloc(DType::F32, scratch)?;
    let mut timed = || -> Result<f64, KernelError> {
        for (seed, buffer) in [&mut a, &mut b].into_iter().enumerate() {
            let normal = Normal { len, std: 1.0, seed: seed as u64 + 1, first: 0, dtype };
            kernels.run(&Op::Normal(normal), &[], &mut [buffer.view_mut()], no_scratch())?;
        }
        let mut best = f64::INFINITY;
        for call in 0..PEAK_CALLS.0 + PEAK_CALLS.1 {
            let mut product =
                || kernels.run(&Op::Gemm(op), &[a.view(), b.view()], &mut [c.view_mut()], scratch.view_mut());
            let seconds = seconds_of(&kernels, &mut product)?;
            if call >= PEAK_CALLS.0 {
                best = best.min(seconds);
            }
        }
        Ok(2.0 * (side as f64).powi(3) / best)
    };
    timed().map_err(|error| error.to_string())
}

/// Seconds that a device takes for `work`, by its own clock.
///
/// # Errors
/// The work's own, or the device has no clock.
pub fn seconds_of(kernels: &Cuda, work: &mut dyn FnMut() -> Result<(), KernelError>) -> Result<f64, KernelError> {
    let none = || KernelError::Invalid { op: "mark", reason: "the device has no clock".into() };
    let begin = kernels.record_event()?.ok_or_else(none)?;
    work()?;
    let end = kernels.record_event()?.ok_or_else(none)?;
    kernels.synchronize()?;
    Ok(end.elapsed(&*begin)?.as_secs_f64())
}

/// What NVML reads of a GPU at this moment; nothing where NVML does not know it.
pub fn reading(number: usize) -> Option<Reading> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    static WATCHED: OnceLock<Vec<Option<Watched<'static>>>> = OnceLock::new();
    let open = || Nvml::load(&Search::new(|name| std::env::var_os(name))).ok();
    let nvml = NVML.get_or_init(open).as_ref()?;
    let devices = probe().devices.as_ref().ok()?;
    let watched = WATCHED.get_or_init(|| devices.iter().map(|device| nvml.watch(device).ok()).collect());
    watched.get(number)?.as_ref().map(Watched::read)
}

/// What this machine has for CUDA. It is looked for once: in ZBENCH_CUDA_LIBS, CUDA_HOME, VIRTUAL_ENV and the system's folders.
pub fn probe() -> &'static Probe {
    static PROBE: OnceLock<Probe> = OnceLock::new();
    PROBE.get_or_init(|| Probe::new(&Search::new(|name| std::env::var_os(name))))
}

/// How many GPUs there are.
///
/// # Errors
/// Why none can be used, in a few words: there is no driver, or it finds no device.
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

/// The number of the GPU that a rank uses, by its local rank. A launcher shows each process either all GPUs of the host, of which
/// a rank uses the one of its own number, or one GPU each (`srun --gpus-per-task=1`), which is number 0 in every process.
pub fn of_rank(local_rank: usize) -> usize {
    of_shown(local_rank, count().ok())
}

fn of_shown(local_rank: usize, shown: Option<usize>) -> usize {
    if shown == Some(1) { 0 } else { local_rank }
}

/// Whether each of `ranks` ranks of this host has a GPU, where a process is shown `shown` of them. A launcher may show each process
/// one GPU: whether these are different ones is checked when the ranks meet.
///
/// # Errors
/// There are too few, and what to do.
pub fn enough(ranks: usize, shown: usize, launched: bool) -> Result<(), String> {
    if ranks <= shown || launched && shown == 1 {
        return Ok(());
    }
    if !launched {
        return Err(format!("this machine has {shown}"));
    }
    Err(format!(
        "this host has {ranks} ranks, and each process is shown {shown} GPUs; show each process one of its own (srun \
         --gpus-per-task=1) or all of the host's (srun --gpus-per-node={ranks})"
    ))
}

/// Whether CUDA kernels are to run on the processor.
pub fn on_host() -> bool {
    std::env::var_os(ON_HOST).is_some_and(|value| value == "1")
}

/// The processor, which all ranks share as they would share a GPU.
fn host() -> Result<Arc<dyn Device>, String> {
    static HOST: OnceLock<Result<Arc<Host>, String>> = OnceLock::new();
    let open = || {
        let cache = cache();
        if let Err(why) = folder::private(&cache) {
            say_not_kept(&why);
        }
        Host::new(&cache, "c++", &[], Order::Forward)
            .map(|host| Arc::new(host.as_planned()))
            .map_err(|error| error.to_string())
    };
    HOST.get_or_init(open).clone().map(|host| host as Arc<dyn Device>)
}

/// The folder of compiled kernels: in ZBENCH_CACHE, else in the user's cache folder, else in a folder of the user among the
/// temporary files. Before kernels are loaded from it, [`folder::private`] checks that nobody else can write to it.
pub fn cache() -> PathBuf {
    let given = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || given("XDG_CACHE_HOME").or_else(|| Some(given("HOME")?.join(".cache"))).map(|own| own.join("zbench"));
    let temporary = || std::env::temp_dir().join(format!("zbench-cache-{}", folder::user()));
    given("ZBENCH_CACHE").or_else(home).unwrap_or_else(temporary).join("kernels")
}

/// Says once why kernels are compiled at every start.
fn say_not_kept(why: &NotPrivate) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        crate::say!(
            "warning: {why}; they are compiled at every start. Set ZBENCH_CACHE to a folder that only you can write to"
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_shown_one_gpu_takes_that_one() {
        let taken = |shown| [0, 1, 7].map(|local_rank| of_shown(local_rank, shown));
        assert_eq!((taken(Some(1)), taken(Some(8)), taken(None)), ([0, 0, 0], [0, 1, 7], [0, 1, 7]));
        assert_eq!((enough(8, 8, false), enough(8, 1, true), enough(1, 1, false)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(enough(2, 1, false).unwrap_err(), "this machine has 1");
        let some = enough(4, 2, true).unwrap_err();
        assert!(some.contains("shown 2 GPUs") && some.contains("--gpus-per-task=1"), "{some}");
    }

    #[test]
    fn a_product_on_the_host_has_a_rate() {
        let kept = std::env::current_exe().unwrap().with_file_name("cache/kernels");
        let host = Host::new(&kept, "c++", &[], Order::Forward).unwrap_or_else(|error| panic!("{error}"));
        let rate = product_flops(Arc::new(host), DType::F32, 64).unwrap();
        assert!(rate.is_finite() && rate > 0.0, "{rate}");
    }
}
