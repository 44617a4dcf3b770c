//! What the times of a pipeline's stages say.

use crate::training::accounting::measure;
use crate::training::identity::odd;
use crate::training::support::*;
use zbench_engine::config::*;
use zbench_engine::outcome::Span;

/// Four blocks over so many stages.
fn staged(stages: usize) -> Cell {
    let mut cell = on(odd(), Strategy::Ddp, stages, 1);
    (cell.model.num_hidden_layers, cell.model.tie_word_embeddings) = (4, false);
    (cell.train.accumulation, cell.train.micro_batch) = (4, 1);
    cell.parallel.shard = 1;
    cell.parallel.degrees.pipeline = stages;
    cell
}

#[test]
fn waiting_for_another_stage_has_a_span_of_its_own() {
    for stages in [1, 2] {
        let cell = staged(stages);
        for report in measure(&cell, &plan(&cell)) {
            let waited = report.spans_ms[Span::ExposedPipeline];
            assert_eq!(waited > 0.0, stages > 1, "{stages} stages, rank {}: {waited}", report.rank);
            assert_eq!(report.spans_ms.stated().any(|(span, _)| span == Span::ExposedPipeline), stages > 1);
        }
    }
}
