//! Which units the stages of a pipeline hold.

use super::block::{Context, Unit};
use crate::job::{Kind, Shape};

/// Units of a rank's stage: (how many, what each costs). Fractions stand for kinds that are mixed over stages.
pub(super) type Stage = Vec<(f64, Unit)>;

/// A decoder of so many parameters where no more is known: 128 elements of width per layer, as models of that size have.
pub(super) fn stand_in(model: &Shape) -> Shape {
    let parameters = model.stated_parameters.max(1_000_000) as f64;
    let layers = (parameters / (12.0 * 128.0 * 128.0)).cbrt().round().max(2.0);
    let hidden = ((parameters / (12.0 * layers)).sqrt() / 64.0).round().max(1.0) * 64.0;
    let heads = (hidden / 128.0).max(1.0) as usize;
    Shape {
        kind: Kind::Decoder,
        layers: layers as usize,
        hidden: hidden as usize,
        heads,
        kv_heads: heads,
        head_dim: hidden as usize / heads,
        ffn: 4 * hidden as usize,
        gated: false,
        causal: true,
        experts: None,
        latent: None,
        ..model.clone()
    }
}

/// The first stage, one of the middle and the last.
pub(super) fn stages(context: &Context<'_>) -> [Stage; 3] {
    let d = &context.job.degrees;
    let stages = d.pipeline.max(1);
    let kinds = context.model.blocks();
    let total: usize = kinds.iter().map(|kind| kind.count).sum::<usize>() + context.model.ahead;
    let total = total.max(1) as f64;
    let p = stages as f64;
    // Blocks of the first, a middle and the last stage. Where they do not divide but would with embedding and head
    // counted as blocks, those stand for a block each.
    let (first, middle, last) = match (d.first_stage, d.last_stage) {
        _ if stages == 1 => (total, 0.0, 0.0),
        (0, 0) if total % p != 0.0 && (total + 2.0) % p == 0.0 => {
            let all = (total + 2.0) / p;
            (all - 1.0, all, all - 1.0)
        }
        (0, 0) => (total / p, (total / p).ceil(), (total / p).floor()),
        (first, last) => {
            let mean = total / p;
            let first = if first > 0 { first as f64 } else { mean };
            let last = if last > 0 { last as f64 } else { mean };
            (first, if stages > 2 { (total - first - last) / (p - 2.0) } else { 0.0 }, last)
        }
    };
    let units: Vec<(f64, Unit)> = kinds
        .iter()
        .map(|kind| {
            let more = if kind.sparse || kinds.len() == 1 { context.model.ahead } else { 0 };
            ((kind.count + more) as f64 / total, context.block(kind))
        })
        .collect();
    let blocks = |count: f64| units.iter().map(|(share, unit)| (share * count, *unit)).collect::<Stage>();
    let (embedding, head) = (context.embedding(), context.head());
    let mut list = [blocks(first), blocks(middle), blocks(last)];
    list[0].insert(0, (1.0, embedding));
    list[if stages == 1 { 0 } else { 2 }].push((1.0 + context.model.ahead as f64, head));
    if context.drive.copy_bytes(context.tuning) > 0.0 && context.job.sharding.parameters > 1 {
        for (_, unit) in list.iter_mut().flatten() {
            copy(context, unit);
        }
    }
    list
}

/// Between sharded parameters and the buffers that collectives work on.
fn copy(context: &Context<'_>, unit: &mut Unit) {
    let job = context.job;
    // Stages keep gathered weights over all micro-batches.
    let times = if job.degrees.pipeline > 1 { job.batch.accumulation.max(1) as f64 } else { 1.0 };
    let bytes = context.drive.copy_bytes(context.tuning) / times;
    let gathered = context.roof.pass((unit.dense + unit.sparse) * bytes);
    unit.forward.busy += gathered;
    unit.backward.busy += context.roof.pass(unit.trained * bytes);
    if context.job.sharding.reshard_after_forward {
        unit.backward.busy += gathered;
    }
}
