//! Whether the folder of what lives on a disk holds it.

use zbench_engine::config::{Cell, Home};
use zbench_engine::outcome::Estimate;
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
    let needed = estimate.ledgers[Home::Disk].total_peak().saturating_mul(ranks);
    match machine::free_bytes(&folder) {
        Some(free) if free < needed => refused(format!(
            "{} of offloaded state need room, and {} are free; make room or name another",
            memory(needed as f64),
            memory(free as f64)
        )),
        _ => None,
    }
}
