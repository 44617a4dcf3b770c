//! Ranks on GPUs: whether they can be here, and the memory and kernels of each.
//!
//! **Not run on a GPU so far**: the tests let the kernels run on the processor, where there is no NCCL.

use super::CollectiveError;
use super::place::Place;
use super::plan::Plan;
use super::world_spec::{LaunchMode, MemoryKind, WorldSpec};
use std::sync::Arc;
use std::time::Duration;
use zbench_collectives::nccl::{Api, Device, Ordered, Search, load_driver, nccl_over};
use zbench_collectives::{CommError, Communicator};
use zbench_host::devices;
use zbench_kernels::cuda::gpu::Driver;
use zbench_kernels::memory::device::Device as CudaDevice;
use zbench_kernels::{Arena, Cuda, KernelError, Kernels};

/// What computes for a rank, where its buffers lie, and what it is told of that.
pub struct RankDevice {
    /// What writes its buffers.
    pub kernels: Arc<dyn Kernels>,
    /// Where they lie.
    pub arena: Arena,
    /// Memory of its host.
    pub host_arena: Arena,
    /// What it is told.
    pub place: Place,
}

/// Whether the ranks of this process find what they need; NCCL's version where it moves the bytes. Nothing is started, and
/// nothing is taken of a GPU.
///
/// # Errors
/// What is missing, and what helps.
pub fn ready(wanted: &WorldSpec) -> Result<Option<u32>, String> {
    if wanted.on == MemoryKind::Host {
        return Ok(None);
    }
    let name = wanted.on.name();
    let failed = |reason: String| format!("--backend {name}: {reason}");
    let found = count().map_err(failed)?;
    let needed = match &wanted.way {
        _ if wanted.on == MemoryKind::Device => 1,
        LaunchMode::Member(world, _) => world.local_size.unwrap_or(world.local_rank.unwrap_or(world.rank) + 1),
        LaunchMode::Threads | LaunchMode::Start => wanted.ranks,
    };
    enough(needed, found, matches!(wanted.way, LaunchMode::Member(..))).map_err(failed)?;
    if wanted.on == MemoryKind::Device {
        return Ok(None);
    }
    if devices::on_host() {
        let on_host = devices::ON_HOST;
        return Err(failed(format!("NCCL needs a GPU, and {on_host}=1 puts kernels on the processor; unset it")));
    }
    let api = library().map_err(|error| failed(error.to_string()))?;
    Ok(u32::try_from(api.version()).ok())
}

/// How many GPUs there are.
fn count() -> Result<usize, String> {
    if devices::on_host() {
        return devices::count();
    }
    let probe = devices::probe();
    let devices = probe.devices.as_ref().map_err(ToString::to_string)?;
    probe.nvrtc.as_ref().map_err(|absent| format!("its kernels cannot be compiled: {absent}"))?;
    Ok(devices.len())
}

fn enough(needed: usize, found: usize, launched: bool) -> Result<(), String> {
    let plural = |count: usize| if count == 1 { "GPU" } else { "GPUs" };
    devices::enough(needed, found, launched).map_err(|why| match launched {
        true => why,
        false => format!(
            "{needed} ranks of this host need a GPU each, and it shows {found} {}; give --ranks {found}, or --backend device, whose \
             ranks share one",
            plural(found)
        ),
    })
}

fn library() -> Result<Arc<Api>, zbench_collectives::nccl::NcclError> {
    Api::load(&Search::new(|name| std::env::var_os(name)))
}

/// What a rank needs on GPU `number`, which so many ranks share.
///
/// # Errors
/// The GPU cannot be opened, or has no room.
pub fn rank_device(plan: &Plan, number: usize, sharers: usize) -> Result<RankDevice, CollectiveError> {
    let machine = devices::machine(number).map_err(CollectiveError::Gpu)?;
    rank_device_on(plan, machine, number, devices::gpu(number).map(|gpu| gpu.about().pci.clone()), sharers)
}

/// The same on a machine that runs CUDA.
pub fn rank_device_on(
    plan: &Plan,
    machine: Arc<dyn CudaDevice>,
    number: usize,
    bus: Option<String>,
    sharers: usize,
) -> Result<RankDevice, CollectiveError> {
    let place = Place::on(number, &*machine, bus);
    let kernels = Arc::new(Cuda::new(machine.clone()).map_err(KernelError::from)?);
    let arena = Arena::on(machine, None, place.arena_bytes(plan, sharers as u64))?;
    Ok(RankDevice { kernels, arena, host_arena: Arena::host(None)?, place })
}

/// NCCL as it was loaded for the ranks of this process.
pub struct Nccl {
    api: Arc<Api>,
    driver: Arc<Driver>,
}

impl Nccl {
    /// Loads it.
    ///
    /// # Errors
    /// It is not there.
    pub fn load() -> Result<Nccl, CollectiveError> {
        let failed = |reason: String| CollectiveError::Gpu(format!("--backend nccl: {reason}"));
        let api = library().map_err(|error| failed(error.to_string()))?;
        let driver = load_driver().map_err(|error| failed(error.to_string()))?;
        Ok(Nccl { api, driver })
    }

    /// A rank of the world of `control`, on GPU `number`.
    ///
    /// # Errors
    /// What NCCL or the driver says.
    pub fn join(
        &self,
        control: &dyn Communicator,
        number: usize,
        kernels: Arc<dyn Kernels>,
        stall: Duration,
    ) -> Result<Box<dyn Communicator>, CommError> {
        let failed = |error: zbench_collectives::nccl::DriverError| CommError::Invalid {
            operation: "nccl",
            reason: error.to_string(),
        };
        let device = Device::new(self.driver.clone(), number).map_err(failed)?;
        let comm = nccl_over(control, &self.api, &device, stall)?;
        Ok(Box::new(Ordered::new(comm, kernels)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_for_each_rank_or_a_word_of_what_to_do() {
        assert_eq!(enough(1, 1, false), Ok(()));
        assert_eq!(enough(4, 8, false), Ok(()));
        assert_eq!(enough(4, 1, true), Ok(()), "one for each process");
        let said = enough(8, 1, false).unwrap_err();
        assert!(said.contains("8 ranks") && said.contains("it shows 1 GPU;"), "{said}");
        assert!(said.contains("--ranks 1") && said.contains("--backend device"), "{said}");
        assert!(enough(3, 2, false).unwrap_err().contains("it shows 2 GPUs;"));
    }
}
