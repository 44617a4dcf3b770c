//! One micro-batch goes through all stages, forward and backward, before the next one comes.

use super::{Pass, Pipeline};

pub(super) fn passes(pipeline: &Pipeline) -> Vec<Pass> {
    pipeline.in_turn(pipeline.micros.min(1))
}
