//! Which models tensor ranks can share.

use crate::config::{Cell, Checkpointing, Degrees, Linear, Lora, Method};
use crate::mesh::strategy::divisors_near;
use crate::model::Layout;
use crate::model::layers::TensorSplit;
use crate::plan::{PlanError, seq};
use zbench_kernels::Packed;

/// Refuses what tensor ranks cannot share, with the nearest that they can.
pub fn check(cell: &Cell, layout: &Layout) -> Result<(), PlanError> {
    let Degrees { tensor, sequence, .. } = cell.parallel.degrees;
    let (model, lora, train) = (&cell.model, &cell.lora, &cell.train);
    let fail = |key, reason: String| Err(PlanError { key, reason });
    if cell.memory.partition_activations {
        partitioned(cell)?;
    }
    if tensor == 1 {
        return chunks(cell, layout);
    }
    let kv = model.num_key_value_heads;
    if !kv.is_multiple_of(tensor) {
        let ways = divisors_near(tensor, kv, |_| true);
        let reason = format!(
            "{tensor} does not divide model.num_key_value_heads = {kv}: ranks would hold copies of the same keys and values, which \
             zbench does not have; write {ways}"
        );
        return fail("parallel.tensor", reason);
    }
    let tokens = train.micro_batch * train.seq_len;
    if sequence > 1 && !tokens.is_multiple_of(sequence) {
        let reason = format!(
            "{sequence} does not divide the {tokens} tokens of a micro-batch (train.micro_batch × train.seq_len), of which each rank has \
             as many; write 1, or a train.micro_batch or train.seq_len that it divides"
        );
        return fail("parallel.sequence", reason);
    }
    chunks(cell, layout)?;
    if lora.on() {
        adapters(lora)?;
    }
    quantised(layout)
}

/// Refuses chunks of tokens where there is no sum to split, and those that are not equally long.
fn chunks(cell: &Cell, layout: &Layout) -> Result<(), PlanError> {
    let (chunks, Degrees { tensor, sequence, .. }) = (cell.parallel.tensor_chunks, cell.parallel.degrees);
    let fail = |reason: String| Err(PlanError { key: "parallel.tensor_chunks", reason });
    if chunks == 1 {
        return Ok(());
    }
    if chunks == 0 {
        return fail("is 0, and a micro-batch's tokens are at least one chunk; write 1".into());
    }
    if tensor == 1 {
        return fail(format!("is {chunks}, and parallel.tensor = 1 has no sums over ranks to split; write 1"));
    }
    // Each rank has as many of its own tokens in every chunk.
    let tokens = layout.layers.iter().map(|layer| cell.train.micro_batch * seq(cell, layer.writes) / sequence);
    let together = tokens.reduce(gcd).unwrap_or(1);
    if !together.is_multiple_of(chunks) {
        let whose = if sequence > 1 { "that each rank has of a micro-batch" } else { "of a micro-batch" };
        let ways = divisors_near(chunks, together, |_| true);
        return fail(format!("{chunks} does not divide the {together} tokens {whose}; write {ways}"));
    }
    Ok(())
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Refuses shared inputs of blocks where nobody shares them.
fn partitioned(cell: &Cell) -> Result<(), PlanError> {
    let Degrees { tensor, sequence, .. } = cell.parallel.degrees;
    let fail = |reason: String| Err(PlanError { key: "memory.partition_activations", reason });
    let tokens = cell.train.micro_batch * cell.train.seq_len;
    match cell.memory.checkpointing {
        _ if tensor == 1 => fail("is true, and parallel.tensor = 1 has no ranks to share inputs of blocks; write false".into()),
        _ if sequence > 1 => {
            fail("is true, and parallel.sequence already gives each rank its own tokens of every input; write false".into())
        }
        _ if !tokens.is_multiple_of(tensor) => fail(format!(
            "is true, and parallel.tensor = {tensor} does not divide the {tokens} tokens of a micro-batch; write false"
        )),
        Checkpointing::Evict => fail(
            "is true, and memory.checkpointing = \"evict\" decides by what inputs take whole; write another policy, or false".into(),
        ),
        _ => Ok(()),
    }
}

/// Refuses adapters that need whole rows or columns of what ranks share.
fn adapters(lora: &Lora) -> Result<(), PlanError> {
    let fail = |key, reason: &str| Err(PlanError { key, reason: reason.into() });
    if lora.use_dora {
        let reason =
            "needs the norms of whole rows of weights, of which parallel.tensor gives each rank a part; write false";
        return fail("lora.use_dora", reason);
    }
    let on_output = |linear: &&Linear| linear.is_row_parallel() && !lora.feedforward.contains(linear);
    if lora.method == Method::Ia3
        && let Some(layer) = lora.targets.iter().find(on_output)
    {
        let reason = format!(
            "name {}, on whose output IA3's factors are; parallel.tensor gives each rank a term of the sum that it is; leave it out, \
             or name it in lora.feedforward",
            layer.name()
        );
        return fail("lora.targets", &reason);
    }
    Ok(())
}

/// Refuses matrices in few bits whose blocks, which share a scale, would lie on several ranks.
fn quantised(layout: &Layout) -> Result<(), PlanError> {
    for tensor in layout.units.iter().flat_map(|unit| &unit.tensors) {
        let Some(packed) = tensor.packed else { continue };
        let together = match tensor.cut {
            TensorSplit::Replicated => continue,
            TensorSplit::ColumnParallel(_) => tensor.elements(),
            TensorSplit::RowParallel(_) => tensor.shape[1],
        };
        // Blocks of the whole matrix, of which a row of int8 is one.
        let block = Packed { cols: tensor.whole[1], ..packed }.block();
        let is_between = matches!(tensor.cut, TensorSplit::RowParallel(_)) && !tensor.whole[1].is_multiple_of(block);
        if !together.is_multiple_of(block) || is_between {
            let reason = format!(
                "cuts {} {:?} into parts of {together} elements that lie together, and {block} that are quantised together share a scale; \
                 write 1, a degree whose parts are multiples of {block}, or lora.base = \"bf16\"",
                tensor.name, tensor.whole
            );
            return Err(PlanError { key: "parallel.tensor", reason });
        }
    }
    Ok(())
}
