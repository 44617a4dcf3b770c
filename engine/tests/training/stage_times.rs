//! What the times of a pipeline's stages say.

use crate::training::accounting::measure;
use crate::training::identity::odd;
use crate::training::support::*;
use zbench_collectives::Collective;
use zbench_engine::action::Action;
use zbench_engine::action::span::Span;
use zbench_engine::config::*;
use zbench_engine::memory::moves::Move;
use zbench_engine::observe::outcome::{BySpan, PassKind, PipelineTime, RankReport};
use zbench_engine::plan::pipeline::{Pass, Pipeline};
use zbench_engine::planner::RecordedAction;
use zbench_engine::planner::clock::{Clock, DiskTime, Machine, Overheads};
use zbench_engine::planner::curves::Curves;
use zbench_kernels::DType;
use zbench_test_tiers as tiers;

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
    for stages in tiers::some("training::stage_times::a_pace_changes_times_and_no_bit", [2, 1], [1, 2]) {
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
        let kernels = zbench_engine::compute::hardware::planner(&cell).unwrap();
        for rank in 0..stages {
            let layers = &plan.stage_plan_of(rank).layout.layers;
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

/// A machine on which messages and collectives take no time.
struct Free;

impl Machine for Free {
    fn collective(&self, _: &Collective, _: DType) -> Result<f64, String> {
        Ok(0.0)
    }

    fn disk_move(&self, _: &Move) -> Result<DiskTime, String> {
        Ok(DiskTime::default())
    }
}

/// Four stages, eight micro-batches of 4 ms forward and 8 ms backward: what the schedules' papers say.
#[test]
fn the_clock_knows_the_bubble_of_every_schedule() {
    // By schedule and chunks of a stage: from the first forward to the last backward.
    let expected = [
        (PipelineSchedule::Naive, 1, 384.0),
        (PipelineSchedule::GPipe, 1, 132.0),
        (PipelineSchedule::OneFOneB, 1, 132.0),
        (PipelineSchedule::Interleaved, 2, 114.0),
        (PipelineSchedule::ZbH1, 1, 108.0),
    ];
    for (schedule, chunks, ms) in expected {
        let mut cell = Cell { pace: Some(Pace { forward: 4e-3, backward: 8e-3 }), ..staged(4) };
        (cell.model.num_hidden_layers, cell.train.accumulation) = (8, 8);
        cell.parallel.degrees.pipeline_schedule = schedule;
        cell.parallel.degrees.virtual_stages = chunks;
        let plan = plan(&cell);
        let kernels = zbench_engine::compute::hardware::planner(&cell).unwrap();
        // Layers so small that they compute in no time.
        let paced = |recorded: RecordedAction| RecordedAction { operations: Vec::new(), ..recorded };
        let stages = plan.recorded_stages(&cell, &*kernels).map(|stage| stage.map(paced));
        let (overheads, corrections) = (Overheads::default(), BySpan::all(1.0));
        let clock = Clock {
            curves: &Curves::default(),
            overheads,
            machine: &Free,
            crowd: 1.0,
            reduce: DType::F32,
            corrections,
        };
        let time = clock.time(stages).unwrap();
        let pipeline = time.pipeline.unwrap();
        assert!((pipeline.ms - ms).abs() < 0.01 * ms, "{schedule:?} in {chunks}: {pipeline:?}");
        assert!((pipeline.bubble - (1.0 - 8.0 * 12.0 / ms)).abs() < 0.01, "{schedule:?} in {chunks}: {pipeline:?}");
        // All stages compute as long, and wait for the rest.
        let waits = time.spans_ms[Span::ExposedPipeline] + time.spans_ms[Span::ExposedAgree];
        assert!((time.step_ms() - waits - 96.0).abs() < 1e-6, "{:?}", time.spans_ms);
    }
}

/// A step's critical path, each of whose actions is slept through.
#[test]
fn a_pipeline_takes_at_least_what_its_schedule_says() {
    let pace = Pace { forward: 2e-3, backward: 3e-3 };
    for (schedule, passes) in
        [(PipelineSchedule::Naive, 4 * 2), (PipelineSchedule::GPipe, 4 + 1), (PipelineSchedule::OneFOneB, 4 + 1)]
    {
        let mut cell = Cell { pace: Some(pace), ..staged(2) };
        cell.parallel.degrees.pipeline_schedule = schedule;
        let least = f64::from(passes) * (pace.forward + pace.backward) * 1e3;
        let reports = measure(&cell, &plan(&cell));
        assert_eq!(reports[0].pipeline_ms.len(), cell.train.steps);
        assert!(reports[0].pipeline_ms.iter().all(|ms| *ms >= least), "{schedule:?}: {:?}", reports[0].pipeline_ms);
        assert!(
            reports.iter().all(|report| report
                .pipeline_ms
                .iter()
                .zip(&report.step_ms)
                .all(|(part, step)| part <= step))
        );
        let PipelineTime { ms, bubble } = PipelineTime::of(reports.iter().map(RankReport::pipeline)).unwrap();
        assert!(ms >= least && bubble > 0.0 && bubble < 1.0, "{schedule:?}: {ms} ms, {bubble}");
    }
}

/// Every rank's passes are those of its stage's schedule, in its order, and none begins before what it is made of has ended.
#[test]
fn passes_are_measured_as_the_schedule_orders_them() {
    let all = [
        (PipelineSchedule::Naive, 1),
        (PipelineSchedule::GPipe, 1),
        (PipelineSchedule::OneFOneB, 1),
        (PipelineSchedule::Interleaved, 2),
        (PipelineSchedule::ZbH1, 1),
    ];
    for (schedule, chunks) in all {
        let mut cell = staged(2);
        cell.parallel.degrees.pipeline_schedule = schedule;
        cell.parallel.degrees.virtual_stages = chunks;
        let reports = measure(&cell, &plan(&cell));
        let pipeline = Pipeline::of(&cell.parallel.degrees, cell.train.accumulation);
        let named = |pass: Pass| match pass {
            Pass::Forward { micro, .. } => (PassKind::Forward, micro),
            Pass::Backward { micro, .. } => (PassKind::Backward, micro),
            Pass::BackwardInput { micro, .. } => (PassKind::BackwardInput, micro),
            Pass::BackwardWeight { micro, .. } => (PassKind::BackwardWeight, micro),
        };
        for (stage, report) in reports.iter().enumerate() {
            let expected: Vec<_> = pipeline.passes(stage).into_iter().map(named).collect();
            let measured: Vec<_> = report.passes.iter().map(|pass| (pass.kind, pass.micro)).collect();
            assert_eq!(measured, expected, "{schedule:?}, stage {stage}");
            assert!(report.passes.is_sorted_by_key(|pass| [pass.from, pass.until]), "{schedule:?}, stage {stage}");
        }
        let first =
            |stage: usize, kind: PassKind| *reports[stage].passes.iter().find(|pass| pass.kind == kind).unwrap();
        assert!(first(1, PassKind::Forward).from >= first(0, PassKind::Forward).until, "{schedule:?}");
    }
    assert!(measure(&staged(1), &plan(&staged(1)))[0].passes.is_empty());
}
