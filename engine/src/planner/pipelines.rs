//! Which pipelines can be planned.

use crate::config::{Cell, Degrees, PipelineSchedule};
use crate::mesh::strategy::{divisors_near, multiples};
use crate::model::Layout;
use crate::model::layers::Block;
use crate::plan::PlanError;

/// Refuses what a schedule cannot do, with the nearest that it can.
pub fn check(cell: &Cell, layout: &Layout) -> Result<(), PlanError> {
    let degrees = &cell.parallel.degrees;
    let Degrees { pipeline: stages, virtual_stages: chunks, .. } = *degrees;
    let (schedule, blocks, micros) = (degrees.schedule(), layout.blocks().count(), cell.train.accumulation);
    let fail = |key, reason: String| Err(PlanError { key, reason });
    if chunks == 0 {
        return fail("parallel.virtual_stages", "is 0; at least 1 is needed".into());
    }
    if stages == 1 {
        return match chunks {
            1 => Ok(()),
            _ => fail(
                "parallel.virtual_stages",
                format!("is {chunks} and there is no pipeline; write 1, or parallel.pipeline"),
            ),
        };
    }
    match (schedule, chunks) {
        (PipelineSchedule::Interleaved, 1) => {
            let reason = "is 1, and \"interleaved\" is of several chunks of layers on each stage; write 2, or the schedule \"1f1b\"";
            return fail("parallel.virtual_stages", reason.into());
        }
        (PipelineSchedule::Interleaved, _) => {
            let parts = stages.saturating_mul(chunks);
            if !blocks.is_multiple_of(parts) {
                let divides = |chunks: usize| blocks.is_multiple_of(stages.saturating_mul(chunks));
                let way = match (2..=blocks / stages).any(divides) {
                    true => format!("write {}", divisors_near(chunks, blocks, |chunks| chunks > 1 && divides(chunks))),
                    false => "write parallel.pipeline_schedule = \"1f1b\", as no number above 1 does".into(),
                };
                let reason = format!(
                    "{chunks} chunks on each of parallel.pipeline = {stages} stages do not divide the model's {blocks} blocks; {way}"
                );
                return fail("parallel.virtual_stages", reason);
            }
            if !micros.is_multiple_of(stages) {
                let reason = format!(
                    "{micros} is no multiple of parallel.pipeline = {stages}, and \"interleaved\" takes as many micro-batches at a \
                     time as there are stages; write {}",
                    multiples(micros / stages, stages)
                );
                return fail("train.accumulation", reason);
            }
        }
        (_, 1) => {}
        _ => {
            let reason = format!(
                "is {chunks}, and \"{}\" has one chunk of layers on each stage; write 1, or the schedule \"interleaved\"",
                schedule.name()
            );
            return fail("parallel.virtual_stages", reason);
        }
    }
    let whole = if schedule == PipelineSchedule::ZbH1 {
        layout.blocks().find_map(|block| not_split(cell, block))
    } else {
        None
    };
    whole.map_or(Ok(()), |what| {
        let reason = format!("is \"zb-h1\", which computes gradients of weights later, and {what}; write \"1f1b\"");
        fail("parallel.pipeline_schedule", reason)
    })
}

/// Why the backward of a block is not computed in two parts.
fn not_split(cell: &Cell, block: &Block) -> Option<&'static str> {
    if cell.lora.on() {
        return Some("beside adapters the matrices are frozen and have none");
    }
    if block.experts.is_some() {
        return Some("the backward of experts is not split");
    }
    block.cross.is_some().then_some("the backward of cross-attention is not split")
}
