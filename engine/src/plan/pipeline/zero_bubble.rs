//! ZB-H1 (Qi et al. 2023, "Zero bubble pipeline parallelism"): 1F1B in which backward is in two parts. The stage before waits for the
//! gradient of the input alone; the gradients of weights fill what would be a bubble.

use super::{Pass, Pipeline};

/// Stage `stage` computes the gradients of weights so many micro-batches behind those of inputs as there are stages before it.
pub(super) fn passes(pipeline: &Pipeline, stage: usize) -> Vec<Pass> {
    let weight = |micro| Pass::BackwardWeight { chunk: 0, micro };
    let mut list = Vec::with_capacity(3 * pipeline.micros);
    for pass in super::one_f_one_b::passes(pipeline, stage) {
        let Pass::Backward { chunk, micro } = pass else {
            list.push(pass);
            continue;
        };
        list.push(Pass::BackwardInput { chunk, micro });
        list.extend(micro.checked_sub(stage).map(weight));
    }
    list.extend((pipeline.micros.saturating_sub(stage)..pipeline.micros).map(weight));
    list
}
