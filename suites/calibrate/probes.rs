//! The training cells that `zbench calibrate` times operations in.

use std::path::Path;
use zbench_config::files::Files;
use zbench_config::profile::operations::RankLayout;
use zbench_config::{ConfigError, Context, Document, grid};
use zbench_engine::config::Cell;

const FILE: &str = include_str!("probes.toml");

/// The rank layouts that are measured: for each number of threads as many ranks as have cores of their own, and for single threads
/// twice as many.
pub fn rank_layouts(threads: &[usize], cores: usize) -> Vec<RankLayout> {
    let mut all: Vec<RankLayout> = Vec::new();
    for &threads in threads {
        all.push(RankLayout { ranks: (cores / threads.max(1)).max(1), threads, crowded: false });
        if threads == 1 {
            all.push(RankLayout { ranks: 2 * cores, threads, crowded: true });
        }
    }
    all
}

/// A training cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// In what it differs from the others.
    pub label: String,
    /// The cell.
    pub cell: Cell,
}

/// Blocks of at most this width are small: their operations are shorter than a turn on a shared core.
const SMALL: usize = 256;

/// The probes with this layout; crowded ones have the small ones alone.
///
/// # Errors
/// They are wrong, which tests exclude.
pub fn probes(layout: RankLayout) -> Result<Vec<Probe>, ConfigError> {
    let set = [format!("parallel.ranks={}", layout.ranks), format!("hardware.threads_per_rank={}", layout.threads)];
    let document = Document::parse(Path::new("probes.toml"), FILE, &set)?;
    let context = Context::new(".".into(), layout.threads.saturating_mul(layout.ranks));
    let cells = grid::expand(&document, &[], grid::MOST_CELLS, &context, &mut Files::default())?;
    let mut probes = Vec::with_capacity(cells.len());
    for cell in cells {
        // One rank, or an odd number of them, has no pairs of tensor ranks.
        let tensor = cell.settings.get("parallel.tensor").and_then(|setting| setting.value.as_integer());
        if tensor.is_some_and(|tensor| layout.ranks as i64 % tensor != 0) {
            continue;
        }
        let resolved = cell.resolved.map_err(|refusal| ConfigError::about("probes.toml", refusal.to_string()))?;
        if !layout.crowded || resolved.cell.model.hidden_size <= SMALL {
            probes.push(Probe { label: cell.label, cell: resolved.cell });
        }
    }
    Ok(probes)
}
