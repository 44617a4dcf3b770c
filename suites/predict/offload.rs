//! Whether the folder of what lives on a disk holds it.

use zbench_engine::config::{Cell, MemoryTier};
use zbench_engine::observe::outcome::Estimate;
use zbench_host::machine;
use zbench_reports::units::memory;

/// Why the folder of what lives on a disk cannot hold the state of so many ranks.
pub fn folder_refused(cell: &Cell, estimate: &Estimate, ranks: u64) -> Option<String> {
    let folder = cell.memory.offload_folder()?;
    let refused = |reason: String| Some(format!("memory.offload_path: {}: {reason}", folder.display()));
    match std::fs::metadata(&folder) {
        Err(error) => return refused(format!("{error}; name a folder that is there")),
        Ok(found) if !found.is_dir() => return refused("is no folder; name one".into()),
        Ok(_) => {}
    }
    let needed = estimate.ledgers[MemoryTier::Disk].total_peak().saturating_mul(ranks);
    match machine::free_bytes(&folder) {
        Some(free) if free < needed => refused(format!(
            "{} of offloaded state need room, and {} are free; make room or name another",
            memory(needed as f64),
            memory(free as f64)
        )),
        _ => None,
    }
}

/// Why a host with so much memory cannot hold what so many ranks keep there, of so many bytes each.
pub fn host_refused(bytes: u64, ranks: u64, host: Option<u64>) -> Option<String> {
    let (all, has) = (bytes.saturating_mul(ranks), host?);
    (all > has).then(|| {
        format!(
            "what {ranks} ranks keep in the host's memory takes {}, this machine has {}; write \"disk\" for some of it \
             (memory.offload_optimizer, memory.offload_parameters, memory.offload_activations)",
            memory(all as f64),
            memory(has as f64)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_is_too_small_is_told_with_both_sizes() {
        assert_eq!(host_refused(1 << 30, 4, Some(4 << 30)), None);
        assert_eq!(host_refused(1 << 30, 4, None), None);
        let reason = host_refused((1 << 30) + 1, 4, Some(4 << 30)).unwrap();
        assert!(reason.contains("4 ranks") && reason.contains("\"disk\"") && reason.contains("GiB"), "{reason}");
        assert!(host_refused(u64::MAX, 2, Some(1 << 40)).is_some());
    }
}
