//! What the times of a pipeline's stages say.

use crate::training::accounting::measure;
use crate::training::identity::odd;
use crate::training::support::*;
use zbench_engine::actions::Action;
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

#[test]
fn a_pace_changes_times_and_no_bit() {
    let pace = Pace { forward: 3e-3, backward: 5e-3 };
    for stages in [1, 2] {
        let bare = staged(stages);
        let paced = Cell { pace: Some(pace), ..bare.clone() };
        let bits = |cell: &Cell| {
            let ran = run(cell);
            let steps: Vec<_> = ran.steps.iter().map(|s| (s.loss.to_bits(), s.grad_norm.to_bits())).collect();
            (steps, ran.weights)
        };
        assert!(bits(&bare) == bits(&paced), "{stages} stages");
        let micros = paced.train.accumulation as f64;
        for report in measure(&paced, &plan(&paced)) {
            // However many blocks a rank has.
            for (span, seconds) in [(Span::Forward, pace.forward), (Span::Backward, pace.backward)] {
                let (ms, least) = (report.spans_ms[span], micros * seconds * 1e3);
                assert!(
                    ms >= least,
                    "{stages} stages, rank {}: {} {ms} ms, {least} at least",
                    report.rank,
                    span.name()
                );
            }
        }
    }
}

#[test]
fn a_pace_is_shared_by_the_blocks_of_a_rank() {
    let pace = Pace { forward: 4e-3, backward: 8e-3 };
    for (stages, blocks) in [(1, 4.0), (2, 2.0)] {
        let cell = Cell {
            pace: Some(pace),
            memory: Memory { checkpointing: Checkpointing::Full, ..Memory::default() },
            ..staged(stages)
        };
        let plan = plan(&cell);
        let kernels = zbench_engine::hardware::planner(&cell).unwrap();
        for rank in 0..stages {
            let layers = &plan.role_of(rank).layout.layers;
            let mut sums = [0.0; 2];
            for recorded in plan.recorded_actions(&cell, &*kernels, rank) {
                let (at, all, layer) = match recorded.action {
                    Action::Forward { layer, .. } => (0, pace.forward, layer),
                    Action::Backward { layer, .. } => (1, pace.backward, layer),
                    _ => {
                        assert_eq!(recorded.least, 0.0, "{:?}", recorded.action);
                        continue;
                    }
                };
                let share = if layers[layer].block().is_some() { all / blocks } else { 0.0 };
                assert_eq!(recorded.least, share, "{:?}", recorded.action);
                sums[at] += recorded.least;
            }
            let micros = cell.train.accumulation as f64;
            assert!(
                (sums[0] - micros * pace.forward).abs() < 1e-12 && (sums[1] - micros * pace.backward).abs() < 1e-12
            );
        }
    }
}
