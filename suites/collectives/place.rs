//! What every rank is told of where it runs: how much memory there is, how large caches are, what computes.

use super::plan::Plan;
use zbench_host::machine;
use zbench_kernels::memory::device::Device;

/// Assumed where the system does not state its last-level cache.
const CACHE_GUESS: u64 = 32 << 20;
/// Assumed of every GPU, since the driver is not asked: the second-level cache of an H100 or H200.
const GPU_CACHE_GUESS: u64 = 50 << 20;
/// The share of the available memory that buffers may take.
const MEMORY_SHARE: f64 = 0.8;
/// Beside the buffers on a device: those of pairs, words that ranks exchange, the gaps between slots.
const ROOM: u64 = 32 << 20;
/// Buffers of the largest size that compositions work with beside the two of a call, at most.
const COMPOSED: u64 = 3;

/// The cache that buffers are to be larger than.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    pub bytes: u64,
    /// In words, with where its size is from.
    pub words: String,
}

impl Cache {
    /// A host's last-level cache; its bytes where the system states them.
    pub fn of_host(bytes: Option<u64>) -> Cache {
        let mib = bytes.unwrap_or(CACHE_GUESS) >> 20;
        let words = match bytes {
            Some(_) => format!("a last-level cache of {mib} MiB"),
            None => format!("an assumed last-level cache of {mib} MiB (the system does not say)"),
        };
        Cache { bytes: bytes.unwrap_or(CACHE_GUESS), words }
    }

    /// A GPU's second-level cache.
    pub fn of_gpu() -> Cache {
        let mib = GPU_CACHE_GUESS >> 20;
        let words =
            format!("an assumed second-level cache of {mib} MiB (that of an H100; the GPU is not asked for its own)");
        Cache { bytes: GPU_CACHE_GUESS, words }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number on its host.
    pub number: usize,
    /// Where it is plugged in; its number where nobody says.
    pub bus: String,
}

/// Where a rank runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Bytes that buffers may take of the memory that they lie in, those of all ranks that share it together.
    pub memory_bytes: u64,
    /// What buffers are to be larger than.
    pub cache: Cache,
    pub host: String,
    /// Name of what computes.
    pub device: String,
    /// Where buffers lie, unless in the host's memory.
    pub gpu: Option<Gpu>,
}

impl Place {
    /// On this host's cores.
    pub fn here() -> Place {
        let available = machine::memory_bytes("MemAvailable").unwrap_or(1 << 30);
        Place {
            memory_bytes: (available as f64 * MEMORY_SHARE) as u64,
            cache: Cache::of_host(machine::last_level_cache_bytes()),
            host: machine::host_name(),
            device: machine::cpu_model().unwrap_or_else(|| "unknown processor".into()),
            gpu: None,
        }
    }

    /// On a GPU of this host. `bus` says where it is plugged in, if it is one; what is no GPU has the host's caches.
    pub fn on(number: usize, on: &dyn Device, bus: Option<String>) -> Place {
        let facts = on.props();
        let (cache, device) = match bus {
            Some(_) => (Cache::of_gpu(), facts.name.clone()),
            None => (Cache::of_host(machine::last_level_cache_bytes()), on.name()),
        };
        Place {
            memory_bytes: (facts.memory_bytes as f64 * MEMORY_SHARE) as u64,
            cache,
            host: machine::host_name(),
            device,
            gpu: Some(Gpu { number, bus: bus.unwrap_or_else(|| number.to_string()) }),
        }
    }

    /// Bytes of each of a rank's two regions: those of all ranks that share a memory are together twice its cache, at least.
    pub fn rotation_bytes(&self, plan: &Plan, sharers: u64) -> u64 {
        if plan.hot { 0 } else { (2 * self.cache.bytes).div_ceil(sharers) }
    }

    /// The largest size of which a rank's share of the memory holds two buffers, and what compositions need.
    pub fn holds(&self, plan: &Plan, sharers: u64) -> u64 {
        // A host has more memory than buffers may take, and no arena of its own ends there.
        let composed = if plan.is_composed() && self.gpu.is_some() { COMPOSED } else { 0 };
        // The unalignment, the guard and the stride of a slot come on top.
        (self.memory_bytes / sharers / (2 + composed)).saturating_sub(1 << 20)
    }

    /// Bytes of a device's memory that a rank takes for itself: what its share is, or what the plan can make use of.
    pub fn arena_bytes(&self, plan: &Plan, sharers: u64) -> u64 {
        let composed = if plan.is_composed() { COMPOSED * plan.max_bytes } else { 0 };
        let regions = 2 * plan.max_bytes.max(self.rotation_bytes(plan, sharers));
        let wanted = regions.saturating_add(composed).saturating_add(ROOM);
        wanted.min(self.memory_bytes / sharers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::tests::plan;

    fn gpu(memory_bytes: u64) -> Place {
        let gpu = Some(Gpu { number: 0, bus: "0000:19:00.0".into() });
        Place { memory_bytes, cache: Cache::of_gpu(), host: "h".into(), device: "d".into(), gpu }
    }

    #[test]
    fn a_rank_takes_of_a_gpu_what_it_needs_and_no_more_than_its_share() {
        let large = gpu(64 << 30);
        assert_eq!(large.arena_bytes(&plan("-e 1G"), 2), (2 << 30) + ROOM);
        assert_eq!(large.arena_bytes(&plan("-e 1K"), 2), (100 << 20) + ROOM, "regions beyond the cache");
        assert_eq!(large.arena_bytes(&plan("-e 1K --buffers hot"), 2), 2048 + ROOM);
        assert_eq!(large.arena_bytes(&plan("-e 64G"), 2), 32 << 30);
    }

    /// What `holds` allows has room in what `arena_bytes` takes.
    #[test]
    fn the_largest_size_fits_the_arena() {
        for words in ["-e 64G", "-e 64G --algorithm q8 --ranks-per-node 1"] {
            let (place, plan) = (gpu(64 << 30), plan(words));
            for sharers in [1, 3] {
                let buffers = if plan.is_composed() { 5 } else { 2 };
                let arena = place.arena_bytes(&plan, sharers);
                let held = buffers * place.holds(&plan, sharers);
                assert!(held < arena && held > arena / 10 * 9, "{held} of {arena}");
            }
        }
    }

    #[test]
    fn caches_say_where_their_sizes_are_from() {
        assert_eq!(Cache::of_host(Some(96 << 20)).words, "a last-level cache of 96 MiB");
        assert!(Cache::of_host(None).words.contains("assumed") && Cache::of_gpu().words.contains("assumed"));
    }
}
