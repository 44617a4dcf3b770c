//! What a run took against what its plan says.

use super::sections::{Measured, Planned, Taken};
use super::words;
use zbench_collectives::Traffic;
use zbench_engine::config::MemoryTier;
use zbench_kernels::Category;

/// The first rank, and what of it, that took something else than the plan of its stage says: bytes by home and category, traffic, moves.
pub fn difference(taken: &Taken) -> Option<String> {
    let of_stage = taken.measured.len() / taken.stage_plans.len();
    let of_rank = |(rank, measured): (usize, &Measured)| {
        Some(format!("rank {rank}: {}", of(&taken.stage_plans[rank / of_stage], measured)?))
    };
    taken.measured.iter().enumerate().find_map(of_rank)
}

fn of(Planned { estimate, .. }: &Planned, measured: &Measured) -> Option<String> {
    for home in MemoryTier::ALL {
        let (planned, took) = (&estimate.ledgers[home], &measured.ledgers[home]);
        let peaks =
            Category::ALL.map(|category| (words::category(category), planned.peak(category), took.peak(category)));
        let total = ("total", planned.total_peak(), took.total_peak());
        if let Some((what, planned, took)) = peaks.into_iter().chain([total]).find(|(_, planned, took)| planned != took)
        {
            return Some(format!("{what} peaks at {took} bytes on {}, planned {planned}", words::home(home)));
        }
    }
    let row = |t: &Traffic| (t.axis, t.kind, t.ranks, t.calls, t.payload_bytes, t.wire_bytes);
    let [planned, took] = [&estimate.traffic, &measured.traffic].map(|rows| rows.iter().map(row).collect::<Vec<_>>());
    if planned != took {
        return Some(format!("traffic is {took:?}, planned {planned:?}"));
    }
    (estimate.moves != measured.moves).then(|| format!("moves are {:?}, planned {:?}", measured.moves, estimate.moves))
}
