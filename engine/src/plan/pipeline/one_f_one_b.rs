//! One forward, one backward (Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", section
//! 2.2.1).

use super::{Pass, Pipeline};

pub(super) fn passes(pipeline: &Pipeline, stage: usize) -> Vec<Pass> {
    pipeline.in_turn(pipeline.micros.min(pipeline.stages - stage))
}
