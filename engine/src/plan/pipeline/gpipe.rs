//! All micro-batches go forward, then all go backward (Huang et al. 2019, "GPipe").

use super::{Pass, Pipeline};

pub(super) fn passes(pipeline: &Pipeline) -> Vec<Pass> {
    pipeline.in_turn(pipeline.micros)
}
