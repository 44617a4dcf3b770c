//! The parts that a cell on a GPU needs, as they were loaded.

use super::Finding;
use zbench_collectives::nccl;
use zbench_collectives::nccl::{Api, NcclError};
use zbench_kernels::cuda::gpu::Absent;

/// Why a library was not loaded. Failures in the system's own search path are left out.
fn why_absent(absent: &Absent) -> String {
    let Absent::NotFound { tried, .. } = absent else { return absent.to_string() };
    let named = tried.iter().filter(|attempt| attempt.place.components().count() > 1);
    let reasons: Vec<String> = named.map(ToString::to_string).collect();
    if reasons.is_empty() { "no".into() } else { format!("no: {}", reasons.join("; ")) }
}

/// The same for NCCL, which is tried under every name in every folder: only existing files are named.
fn why_no_nccl(error: &NcclError) -> String {
    let NcclError::Absent(Absent::NotFound { tried, .. }) = error else { return error.to_string() };
    let found: Vec<String> = tried.iter().filter(|attempt| attempt.place.is_file()).map(ToString::to_string).collect();
    if found.is_empty() { "no".into() } else { format!("no: {}", found.join("; ")) }
}

/// Whether the driver shows a GPU.
pub(super) fn has_gpus() -> bool {
    !zbench_host::devices::on_host()
        && zbench_host::devices::probe().devices.as_ref().is_ok_and(|devices| !devices.is_empty())
}

/// The parts that a cell on a GPU needs, as they were loaded.
pub(super) fn findings() -> Vec<Finding> {
    use zbench_kernels::cuda::gpu::{Nvml, Search, dotted};
    let probe = zbench_host::devices::probe();
    let row = Finding::result;
    let gpus = probe.devices.as_ref().map_or(0, Vec::len);
    let driver = probe.driver.as_ref().map_err(why_absent);
    let driver = driver.map(|driver| format!("CUDA {}, {}", dotted(driver.version()), driver.path().display()));
    let nvrtc = probe.nvrtc.as_ref().map_err(why_absent);
    let nvrtc = nvrtc.map(|nvrtc| format!("{}, {}", dotted(nvrtc.version()), nvrtc.path().display()));
    let cublaslt = probe.cublaslt.as_ref().map_err(why_absent);
    let cublaslt = cublaslt.map(|library| format!("{}, {}", library.dotted(), library.path().display()));
    let nvtx = probe.nvtx.as_ref().map_err(why_absent).map(|nvtx| nvtx.path().display().to_string());
    let nvml = Nvml::load(&Search::new(|name| std::env::var_os(name)));
    let nvml = nvml.as_ref().map_err(why_absent).map(|nvml| nvml.path().display().to_string());
    let nccl = Api::load(&nccl::Search::new(|name| std::env::var_os(name)));
    let nccl = nccl.map(|api| format!("{}, {}", nccl::dotted(api.version()), api.path().display()));
    let mut rows = vec![
        row("CUDA driver", driver, "no GPU can be used; install NVIDIA's driver for your distribution"),
        row(
            "NVRTC",
            nvrtc,
            "compiles the kernels of GPUs; pip install nvidia-cuda-nvrtc, and name the folder in ZBENCH_CUDA_LIBS",
        )
        .needed(gpus > 0),
        row(
            "cuBLASLt",
            cublaslt,
            "without it products on GPUs are our own, and slower; pip install nvidia-cublas, as above",
        ),
        row(
            "NCCL",
            nccl.map_err(|error| why_no_nccl(&error)),
            "for parallel.backend = \"nccl\"; pip install nvidia-nccl-cu13, as above, or install NVIDIA's package libnccl2",
        )
        .needed(gpus > 1),
        row("NVML", nvml, "clocks, power and energy of GPUs; it comes with the driver"),
        row("NVTX", nvtx, "names of spans for profilers, which nothing else needs; pip install nvidia-nvtx, as above"),
    ];
    if zbench_host::devices::on_host() {
        let found = format!("{}=1: cells for GPUs run on this processor", zbench_host::devices::ON_HOST);
        rows.push(row("CUDA on the host", Ok(found), ""));
    }
    match &probe.devices {
        Ok(devices) => rows.extend(devices.iter().map(|device| row("GPU", Ok(device.to_string()), ""))),
        Err(absent) if probe.driver.is_ok() => {
            rows.push(row("GPU", Err(absent.to_string()), "see what nvidia-smi says, and CUDA_VISIBLE_DEVICES"));
        }
        Err(_) => {}
    }
    rows
}
