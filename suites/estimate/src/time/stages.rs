//! Which units the stages of a pipeline hold.

use super::block::{Context, Unit};
use crate::job::{Job, Kind, Shape};

/// Stages that hold the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Stage {
    /// How many there are of them.
    pub of: f64,
    /// Units of a rank's stage: how many, what each costs. Fractions stand for kinds that are mixed over stages.
    pub units: Vec<(f64, Unit)>,
}

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

/// The first stage, those of the middle and the last; all of them one by one where the cut is stated.
pub(super) fn stages(context: &Context<'_>) -> Vec<Stage> {
    let stages = context.job.degrees.pipeline.max(1);
    let kinds = context.model.blocks();
    let units: Vec<(usize, Unit)> = kinds
        .iter()
        .map(|kind| {
            let more = if kind.sparse || kinds.len() == 1 { context.model.ahead } else { 0 };
            (kind.count + more, context.block(kind))
        })
        .collect();
    let mut list: Vec<Stage> = match context.job.split.is_empty() {
        true => even(context, &units),
        false => (0..stages).map(|stage| stated(context.job, &units, stage)).collect(),
    };
    let (embedding, head) = (context.embedding(), context.head());
    list[0].units.insert(0, (1.0, embedding));
    if let Some(last) = list.last_mut() {
        last.units.push((1.0 + context.model.ahead as f64, head));
    }
    // With stages, gathered weights stay over all micro-batches: their copies are no part of one (`Plan::data`).
    if stages == 1 && context.drive.copy_bytes > 0.0 && context.job.sharding.parameters > 1 {
        for (_, unit) in list.iter_mut().flat_map(|stage| &mut stage.units) {
            copy(context, unit);
        }
    }
    list
}

/// Blocks as they are dealt where nothing is stated.
fn even(context: &Context<'_>, units: &[(usize, Unit)]) -> Vec<Stage> {
    let d = &context.job.degrees;
    let total = units.iter().map(|(count, _)| *count).sum::<usize>().max(1) as f64;
    let p = d.pipeline.max(1) as f64;
    // Blocks of the first, a middle and the last stage. Where they do not divide but would with embedding and head
    // counted as blocks, those stand for a block each.
    let (first, middle, last) = match () {
        () if p == 1.0 => (total, 0.0, 0.0),
        () if total % p != 0.0 && (total + 2.0) % p == 0.0 => {
            let all = (total + 2.0) / p;
            (all - 1.0, all, all - 1.0)
        }
        () => (total / p, (total / p).ceil(), (total / p).floor()),
    };
    let stage = |of: f64, blocks: f64| Stage {
        of,
        units: units.iter().map(|(count, unit)| (*count as f64 / total * blocks, *unit)).collect(),
    };
    let mut list = vec![stage(1.0, first)];
    if p > 1.0 {
        // Of two stages none is in the middle: there it is the one that has a block more.
        list.extend([stage(p - 2.0, middle), stage(1.0, last)]);
    }
    list
}

/// The blocks that a stage has by the stated cut. Kinds stand in the model one behind the other.
fn stated(job: &Job, units: &[(usize, Unit)], stage: usize) -> Stage {
    let runs = job.stated_blocks(stage).unwrap_or_default();
    let mut begin = 0;
    let of_kind = |(count, unit): &(usize, Unit)| {
        let (from, until) = (begin, begin + count);
        begin = until;
        let blocks: usize = runs.iter().map(|run| run.end.min(until).saturating_sub(run.start.max(from))).sum();
        (blocks as f64, *unit)
    };
    Stage { of: 1.0, units: units.iter().map(of_kind).collect() }
}

/// Between sharded parameters and the buffers that collectives work on.
fn copy(context: &Context<'_>, unit: &mut Unit) {
    let bytes = context.drive.copy_bytes;
    let gathered = context.roof.pass((unit.dense + unit.sparse) * bytes);
    unit.forward.busy += gathered;
    unit.backward.busy += context.roof.pass(unit.trained * bytes);
    if context.job.sharding.reshard_after_forward {
        unit.backward.busy += gathered;
    }
}
