//! What CUDA tests run on: the processor, or the GPU that ZBENCH_TEST_GPU=1 asks for.
//!
//! ci/gpu-check takes test programs to a machine that has no source tree where this one has it: ZBENCH_SOURCE names its own.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use zbench_kernels::cuda::gpu::{Gpu, Options, Probe, Search};
use zbench_kernels::cuda::host::{Host, Order};
use zbench_kernels::memory::device::Device;

/// Compiled kernels are kept beside the test program. All test programs of the workspace share `cache/kernels`, so that C++ is compiled once.
fn cache(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap_or(Path::new(".")).join(name)
}

/// The processor.
static HOST: LazyLock<Host> = LazyLock::new(|| {
    Host::new(&cache("cache/kernels"), "c++", &[], Order::Forward).unwrap_or_else(|error| panic!("{error}"))
});

/// The GPU that is asked for; a test fails where it is and there is none.
static GPU: LazyLock<Option<Arc<dyn Device>>> = LazyLock::new(|| {
    std::env::var_os("ZBENCH_TEST_GPU").filter(|value| value == "1")?;
    let probe = Probe::new(&Search::new(|name| std::env::var_os(name)));
    let options = Options { cache: Some(cache("cubins")), ..Options::default() };
    let gpu = Gpu::open(&probe, 0, options).unwrap_or_else(|error| panic!("ZBENCH_TEST_GPU is set: {error}\n{probe}"));
    Some(Arc::new(gpu))
});

/// Where kernels run: the GPU, or else what is made of the processor.
pub fn machine(host: impl FnOnce(&Host) -> Arc<dyn Device>) -> Arc<dyn Device> {
    GPU.clone().unwrap_or_else(|| host(&HOST))
}

/// A file of this repository.
#[allow(dead_code, reason = "not all test programs read files")]
pub fn source(path: &str) -> PathBuf {
    let tree = std::env::var_os("ZBENCH_SOURCE").map(PathBuf::from);
    tree.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).join(path)
}
