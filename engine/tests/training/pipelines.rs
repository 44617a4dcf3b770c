//! Pipelines train: the bits of the same strategy without one, in every schedule, and bytes as planned on every stage.

use crate::training::accounting::measure;
use crate::training::identity::{odd, strategies};
use crate::training::resume::{Course, assert_goes_on, bits as bits_of, course, layouts, saved, saving, six_steps};
use crate::training::support::*;
use zbench_engine::config::*;
use zbench_engine::outcome::{Happening, Traffic};
use zbench_kernels::{Category, DType};

const SCHEDULES: [PipelineSchedule; 3] = [PipelineSchedule::Naive, PipelineSchedule::GPipe, PipelineSchedule::OneFOneB];

/// Blocks that stages do not divide; matrices are not tied.
fn base(accumulation: usize) -> Cell {
    let mut cell = odd();
    (cell.model.num_hidden_layers, cell.model.tie_word_embeddings) = (6, false);
    (cell.train.accumulation, cell.train.micro_batch) = (accumulation, 1);
    cell
}

/// A cell over so many data ranks with stages.
fn staged(
    cell: &Cell,
    strategy: Strategy,
    [data, stages]: [usize; 2],
    shard: usize,
    schedule: PipelineSchedule,
) -> Cell {
    let mut cell = on(cell.clone(), strategy, data * stages, shard);
    cell.parallel.shard = if strategy.is_hybrid() { shard } else { data };
    cell.parallel.degrees.pipeline = stages;
    cell.parallel.degrees.pipeline_schedule = schedule;
    cell
}

fn bits(ran: &Ran) -> Vec<(u64, u64)> {
    ran.steps.iter().map(|s| (s.loss.to_bits(), s.grad_norm.to_bits())).collect()
}

#[test]
fn every_schedule_gives_the_bits_of_no_pipeline() {
    for (stages, micros) in [(2, 4), (4, 8)] {
        let base = base(micros);
        for data in [1, 2] {
            for (strategy, shard) in strategies(data) {
                let reference = run(&on(base.clone(), strategy, data, shard));
                for schedule in SCHEDULES {
                    let ran = run(&staged(&base, strategy, [data, stages], shard, schedule));
                    let what = format!("{} on {data} by {shard}, {stages} stages, {schedule:?}", strategy.name());
                    assert_eq!(bits(&reference), bits(&ran), "{what}");
                    assert!(reference.weights == ran.weights, "{what}: weights");
                }
            }
        }
    }
}

#[test]
fn every_stage_takes_what_is_planned() {
    for (at, schedule) in SCHEDULES.into_iter().enumerate() {
        for (strategy, shard) in strategies(2) {
            for policy in [Checkpointing::None, Checkpointing::Full, Checkpointing::Sqrt] {
                let mut cell = staged(&base(3 + at), strategy, [2, 3], shard, schedule);
                (cell.memory.checkpointing, cell.train.untimed_steps, cell.parallel.prefetch) = (policy.clone(), 1, at);
                let what = format!("{} by {shard}, {schedule:?}, {policy:?}", strategy.name());
                let plan = plan(&cell);
                for report in measure(&cell, &plan) {
                    let estimate = &plan.role_of(report.rank).estimate;
                    for home in Home::ALL {
                        let (planned, measured) = (&estimate.ledgers[home], &report.ledgers[home]);
                        for c in Category::ALL {
                            assert_eq!(planned.peak(c), measured.peak(c), "{what}: rank {}: {c}", report.rank);
                        }
                        assert_eq!(planned.total_peak(), measured.total_peak(), "{what}: rank {}", report.rank);
                    }
                    let row = |t: &Traffic| (t.axis, t.kind, t.calls, t.payload_bytes, t.wire_bytes);
                    let (planned, measured): (Vec<_>, Vec<_>) =
                        (estimate.traffic.iter().map(row).collect(), report.traffic.iter().map(row).collect());
                    assert_eq!(planned, measured, "{what}: rank {}", report.rank);
                }
            }
        }
    }
}

#[test]
fn checkpoints_go_on_over_other_stages() {
    let cell = || Cell { train: Train { accumulation: 4, micro_batch: 1, ..six_steps().train }, ..base(4) };
    for (layout, asynchronous) in layouts() {
        for (strategy, stages) in [(Strategy::Ddp, 2), (Strategy::Zero3, 2), (Strategy::Zero1, 3)] {
            let dir = tempfile::tempdir().unwrap();
            let saving = Saving { layout, asynchronous, ..saving(dir.path()) };
            let of = |strategy, stages| {
                let cell = staged(&cell(), strategy, [2, stages], 1, PipelineSchedule::OneFOneB);
                saved(cell, saving.clone())
            };
            let reference = course(&on(cell(), strategy, 2, 1));
            let whole = course(&of(strategy, stages));
            let what = format!("{}, {stages} stages, {layout:?}, async {asynchronous}", strategy.name());
            assert_eq!(bits_of(&whole.steps), bits_of(&reference.steps), "{what}");
            assert_eq!(whole.digest, reference.digest, "{what}");
            assert_goes_on(&whole, &of(strategy, stages), dir.path(), 4, &what);
            assert_goes_on(&whole, &of(strategy, 6), dir.path(), 2, &what);
            assert_goes_on(&whole, &of(strategy, 1), dir.path(), 2, &what);
        }
    }
}

#[test]
fn precisions_adapters_experts_and_evaluations_come_out_as_without_stages() {
    let scaling = DynamicScaling { initial_scale_power: 20, loss_scale_window: 3, ..DynamicScaling::DEFAULT };
    let f16 = Precision { scaling: Some(LossScaling::Dynamic(scaling)), ..Precision::mixed(DType::F16) };
    let mut cells: Vec<(String, Cell)> = vec![
        ("bf16".into(), Cell { precision: Precision::mixed(DType::Bf16), ..base(4) }),
        ("f16".into(), Cell { precision: f16, train: Train { steps: 8, ..base(4).train }, ..base(4) }),
    ];
    cells.extend(expert_cells(base(3)).into_iter().map(|(name, cell)| (name.to_string(), cell)));
    cells.extend(forms().into_iter().map(|form| (form.0.to_string(), formed(base(3), form))));
    cells.extend(adapters().into_iter().chain([dora()]).map(|(name, change)| {
        let mut cell = base(3);
        change(&mut cell);
        (name.to_string(), cell)
    }));
    for (at, (name, mut cell)) in cells.into_iter().enumerate() {
        cell.model.tie_word_embeddings = false;
        let evaluation = Some(Evaluation { every: 1, batches: 2, share: 0.1 });
        cell.watch = Some(Watch { evaluation, ..Watch::default() });
        let strategy = Strategy::ALL[at % Strategy::ALL.len()];
        let (reference, staged) = (
            course(&on(cell.clone(), strategy, 2, 1)),
            course(&staged(&cell, strategy, [2, 2 + at % 2], 1, SCHEDULES[at % 3])),
        );
        assert_eq!(bits_of(&reference.steps), bits_of(&staged.steps), "{name}");
        assert_eq!(reference.digest, staged.digest, "{name}");
        let evaluated = |course: &Course| -> Vec<(u64, u64)> {
            let of = |what: &Happening| {
                if let Happening::Evaluated(e) = what { Some((e.loss.to_bits(), e.tokens)) } else { None }
            };
            course.said.iter().filter_map(of).collect()
        };
        assert!(evaluated(&reference).len() > 1);
        assert_eq!(evaluated(&reference), evaluated(&staged), "{name}");
    }
}
