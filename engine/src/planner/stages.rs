//! What a plan says of all stages of a pipeline together.

use crate::memory::moves::Transfer;
use crate::memory::tiers::ByTier;
use crate::observe::outcome::{Estimate, Flops};
use crate::plan::Plan;
use zbench_collectives::Traffic;
use zbench_kernels::Ledger;

impl Plan {
    /// The estimate of a cell: of the largest rank what a rank takes, and of all stages what a step computes. Rows of traffic and of
    /// moves are each those of the stage that has most, as records have them of the ranks that were measured.
    pub fn estimate(&self) -> Estimate {
        let mut stages = self.stage_plans.iter().map(|stage_plan| &stage_plan.estimate);
        let Some(mut whole) = stages.next().cloned() else { return Estimate::default() };
        for Estimate {
            ledgers,
            stages,
            traffic,
            moves,
            flops,
            trainable_parameters,
            parameters,
            active_parameters,
            base_bytes,
        } in stages
        {
            whole.ledgers = ByTier::of(|tier| Ledger::of_the_largest(&whole.ledgers[tier], &ledgers[tier]));
            whole.stages.extend(stages.iter().cloned());
            traffic.iter().for_each(|row| add_traffic(&mut whole.traffic, row));
            moves.iter().for_each(|row| add_moves(&mut whole.moves, row));
            add_flops(&mut whole.flops, flops);
            whole.trainable_parameters += trainable_parameters;
            whole.parameters += parameters;
            whole.active_parameters += active_parameters;
            whole.base_bytes += base_bytes;
        }
        whole.traffic.sort_by_key(|row| (row.axis, row.kind));
        whole
    }
}

fn add_traffic(rows: &mut Vec<Traffic>, other: &Traffic) {
    match rows.iter_mut().find(|row| (row.axis, row.kind) == (other.axis, other.kind)) {
        None => rows.push(other.clone()),
        Some(row) => {
            row.calls = row.calls.max(other.calls);
            row.payload_bytes = row.payload_bytes.max(other.payload_bytes);
            row.wire_bytes = row.wire_bytes.max(other.wire_bytes);
        }
    }
}

fn add_moves(rows: &mut Vec<Transfer>, other: &Transfer) {
    match rows.iter_mut().find(|row| (row.what, row.from, row.to) == (other.what, other.from, other.to)) {
        None => rows.push(other.clone()),
        Some(row) => {
            row.moves = row.moves.max(other.moves);
            row.bytes = row.bytes.max(other.bytes);
        }
    }
}

/// The tokens of a step are the same on all stages.
fn add_flops(sum: &mut Flops, of_stage: &Flops) {
    sum.model += of_stage.model;
    sum.palm += of_stage.palm;
    sum.hardware += of_stage.hardware;
    for (term, flops) in &of_stage.ledger {
        match sum.ledger.iter_mut().find(|(known, _)| known == term) {
            None => sum.ledger.push((term.clone(), *flops)),
            Some((_, known)) => *known += flops,
        }
    }
}
