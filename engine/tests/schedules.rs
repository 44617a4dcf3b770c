//! Plans of pipelines: what every schedule can be, what it refuses, and that what is counted is performed.

use crate::training::accounting::small;
use crate::training::support::*;
use zbench_engine::action::Action;
use zbench_engine::config::*;
use zbench_engine::observe::outcome::Flops;
use zbench_engine::plan::pipeline::{Pass, Pipeline};
use zbench_engine::plan::schedule::Policy;
use zbench_engine::plan::{Plan, PlanError};
use zbench_kernels::{Category, Cpu};

fn cell(schedule: PipelineSchedule, [stages, chunks, micros, blocks]: [usize; 4]) -> Cell {
    let mut cell = on(small(), Strategy::Ddp, stages, 1);
    (cell.model.num_hidden_layers, cell.train.accumulation) = (blocks, micros);
    (cell.parallel.degrees.pipeline, cell.parallel.degrees.virtual_stages) = (stages, chunks);
    cell.parallel.degrees.pipeline_schedule = schedule;
    cell
}

fn planned(cell: &Cell) -> Result<Plan, PlanError> {
    Plan::unrunnable(cell, &Cpu::new(1))
}

/// What torch.distributed.pipelining was seen to do: tests/interop/torch_pipeline.py.
fn of_pytorch() -> serde_json::Value {
    let path = crate::device::source("tests/fixtures/pipelines.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn orders_are_pytorchs() {
    let json = of_pytorch();
    let orders = json["orders"].as_array().unwrap();
    assert!(orders.len() >= 10);
    for order in orders {
        let number = |key: &str| order[key].as_u64().unwrap() as usize;
        let (stages, chunks, micros) = (number("p"), number("v"), number("m"));
        let schedule = serde_json::from_value(order["schedule"].clone()).unwrap();
        let pipeline = Pipeline { schedule, stages, chunks, micros };
        for (stage, seen) in order["ranks"].as_array().unwrap().iter().enumerate() {
            let word = |pass: Pass| {
                let kind = if matches!(pass, Pass::Forward { .. }) { "F" } else { "B" };
                format!("{kind}{}.{}", pass.chunk() * stages + stage, pass.micro())
            };
            let ours: Vec<String> = pipeline.passes(stage).into_iter().map(word).collect();
            assert_eq!(ours.join(" "), seen.as_str().unwrap(), "{pipeline:?}, stage {stage}");
        }
    }
}

/// The tolerance is the issue's.
#[test]
fn losses_of_two_stages_are_pytorchs() {
    let json = of_pytorch();
    for (schedule, losses) in json["losses"].as_object().unwrap() {
        let mut cell = on(llama_fixture(), Strategy::Ddp, 2, 1);
        (cell.train.micro_batch, cell.train.accumulation, cell.train.steps) = (1, 4, 5);
        (cell.parallel.degrees.pipeline, cell.parallel.shard) = (2, 1);
        cell.parallel.degrees.pipeline_schedule = serde_json::from_value(schedule.as_str().into()).unwrap();
        let (ran, losses) = (run(&cell), losses.as_array().unwrap());
        assert_eq!((ran.steps.len(), losses.len()), (5, 5));
        for (step, loss) in ran.steps.iter().zip(losses) {
            let loss = loss.as_f64().unwrap();
            assert!(
                (step.loss - loss).abs() <= 1e-5 * loss,
                "{schedule}, step {}: {} and {loss}",
                step.step,
                step.loss
            );
        }
    }
}

/// Virtual stages cross each pair of two ranks in both directions; a plan is made only if its messages meet.
#[test]
fn the_messages_of_chunks_and_of_zero_bubble_meet() {
    for stages in 2..=5 {
        for (chunks, groups) in [(2, 1), (2, 3), (3, 2), (4, 4)] {
            let sizes = [stages, chunks, groups * stages, stages * chunks];
            let plan = planned(&cell(PipelineSchedule::Interleaved, sizes));
            assert!(plan.is_ok(), "interleaved, {sizes:?}: {:?}", plan.err());
        }
        for micros in [1, 2, 5, 16] {
            let plan = planned(&cell(PipelineSchedule::ZbH1, [stages, 1, micros, stages]));
            assert!(plan.is_ok(), "zb-h1, {stages} stages, {micros} micro-batches: {:?}", plan.err());
        }
    }
}

/// With two stages values and gradients of both directions go between the same ranks.
#[test]
fn a_message_of_another_chunk_is_not_taken_for_the_expected_one() {
    let mut plan = planned(&cell(PipelineSchedule::Interleaved, [2, 2, 2, 4])).unwrap();
    for action in &mut plan.stage_plans[1].actions {
        if let Action::Receive { chunk, gradient: false, .. } = action {
            *chunk = 1 - *chunk;
        }
    }
    let error = plan.check_messages().unwrap_err();
    assert_eq!(error.key, "parallel.pipeline_schedule");
    assert!(error.reason.contains("rank 0") && error.reason.contains("rank 1"), "{error}");
}

/// Cycles that are alike are counted and not performed; where chunks take turns, a cycle is a turn of all of them.
#[test]
fn cycles_that_are_counted_are_those_that_are_performed() {
    let kernels = Cpu::new(1);
    let schedules = [(PipelineSchedule::Interleaved, 2), (PipelineSchedule::ZbH1, 1)];
    for (strategy, policy) in [
        (Strategy::Ddp, Checkpointing::None),
        (Strategy::Zero2, Checkpointing::Full),
        (Strategy::Fsdp, Checkpointing::None),
        (Strategy::FsdpGradOp, Checkpointing::Sqrt),
    ] {
        for (schedule, chunks) in schedules {
            let mut cell = cell(schedule, [3, chunks, 24, 12]);
            (cell.parallel.strategy, cell.parallel.ranks, cell.parallel.shard) = (strategy, 6, 2);
            cell.memory.checkpointing = policy.clone();
            cell.watch =
                Some(Watch { evaluation: Some(Evaluation { every: 1, batches: 2, share: 0.1 }), ..Watch::default() });
            let plan = planned(&cell).unwrap();
            for stage in 0..3 {
                let whole = plan.estimate_block_by_block(&cell, &kernels, 2 * stage);
                assert_eq!(plan.stage_plans[stage].estimate, whole, "{strategy:?}, {schedule:?}, stage {stage}");
            }
        }
    }
}

/// Products are those of the model, in two parts or in one, however it is cut.
#[test]
fn operations_of_all_stages_are_those_of_the_model() {
    let of = |cell: &Cell| {
        let plan = planned(cell).unwrap();
        let sum = |of: fn(&Flops) -> f64| {
            plan.stage_plans.iter().map(|stage_plan| of(&stage_plan.estimate.flops)).sum::<f64>()
        };
        [sum(|flops| flops.model), sum(|flops| flops.palm), sum(|flops| flops.hardware)]
    };
    let whole = of(&cell(PipelineSchedule::OneFOneB, [1, 1, 6, 6]));
    for (schedule, chunks) in [(PipelineSchedule::Interleaved, 2), (PipelineSchedule::ZbH1, 1)] {
        for (staged, whole) in of(&cell(schedule, [3, chunks, 6, 6])).into_iter().zip(whole) {
            assert!((staged / whole - 1.0).abs() < 1e-12, "{schedule:?}: {staged} and {whole}");
        }
    }
}

/// One activation of every block in flight, whole blocks recomputed: inputs of blocks are what grows with the micro-batches in flight.
#[test]
fn activations_in_flight_are_those_of_the_schedule() {
    let peaks = |schedule, chunks, blocks: usize| {
        let mut cell = cell(schedule, [4, chunks, 16, blocks]);
        cell.memory.checkpointing = Checkpointing::Full;
        let plan = planned(&cell).unwrap();
        let input = cell.train.micro_batch * cell.train.seq_len * cell.model.hidden_size * 4;
        (
            plan.stage_plans
                .iter()
                .map(|stage_plan| stage_plan.estimate.memory().peak(Category::Activations))
                .collect::<Vec<_>>(),
            input as u64,
        )
    };
    let (one, input) = peaks(PipelineSchedule::OneFOneB, 1, 16);
    // Four blocks on a stage, one micro-batch less on the next one.
    assert_eq!(one[1] - one[2], 4 * input);
    // Two blocks in a chunk: stages in the middle differ by two chunks in flight.
    let (interleaved, _) = peaks(PipelineSchedule::Interleaved, 2, 16);
    assert_eq!(interleaved[1] - interleaved[2], 2 * 2 * input);
    let (gpipe, _) = peaks(PipelineSchedule::GPipe, 1, 16);
    assert!(gpipe[1] > interleaved[1] && interleaved[1] > one[1], "{gpipe:?} {interleaved:?} {one:?}");
}

#[test]
fn what_a_schedule_cannot_do_is_refused_with_the_nearest_that_it_can() {
    use PipelineSchedule::*;
    let refused = |cell: &Cell| planned(cell).map(|_| ()).unwrap_err();
    let of = |schedule, sizes: [usize; 4]| refused(&cell(schedule, sizes));
    for (error, key, words) in [
        (of(GPipe, [2, 2, 4, 8]), "parallel.virtual_stages", ["\"gpipe\"", "write 1"]),
        (of(Naive, [2, 2, 4, 8]), "parallel.virtual_stages", ["\"naive\"", "\"interleaved\""]),
        (of(ZbH1, [2, 2, 4, 8]), "parallel.virtual_stages", ["\"zb-h1\"", "write 1"]),
        (of(Interleaved, [2, 1, 4, 8]), "parallel.virtual_stages", ["write 2", "\"1f1b\""]),
        (of(OneFOneB, [1, 2, 4, 8]), "parallel.virtual_stages", ["no pipeline", "write 1"]),
        (of(Interleaved, [2, 3, 4, 8]), "parallel.virtual_stages", ["8 blocks", "write 2 or 4"]),
        // A synonym.
        (of(OneFOneB, [2, 3, 4, 8]), "parallel.virtual_stages", ["8 blocks", "write 2 or 4"]),
        (of(Interleaved, [4, 2, 6, 8]), "train.accumulation", ["parallel.pipeline = 4", "write 4 or 8"]),
        (of(Interleaved, [4, 2, 3, 8]), "train.accumulation", ["3 is no multiple", "write 4"]),
        (of(OneFOneB, [9, 1, 4, 8]), "parallel.pipeline", ["9 stages", "write 8 or fewer"]),
    ] {
        assert_eq!(error.key, key, "{error}");
        assert!(words.iter().all(|word| error.reason.contains(word)), "{error}");
    }
    let mut adapted = cell(ZbH1, [2, 1, 4, 4]);
    adapters().swap_remove(0).1(&mut adapted);
    let mut experts = cell(ZbH1, [2, 1, 4, 4]);
    experts.model = expert_cells(experts.clone()).swap_remove(1).1.model;
    for (cell, word) in [(adapted, "adapters"), (experts, "experts")] {
        let error = refused(&cell);
        assert_eq!(error.key, "parallel.pipeline_schedule", "{error}");
        assert!(error.reason.contains(word) && error.reason.contains("write \"1f1b\""), "{error}");
    }
}

/// `sqrt` keeps the input of every k-th block, k the root of the number of blocks, rounded up.
#[test]
fn segments_of_sqrt_are_as_long_as_the_root() {
    for (blocks, every) in
        [(1, 1), (2, 2), (4, 2), (5, 3), (9, 3), (10, 4), (12, 4), (16, 4), (17, 5), (80, 9), (100, 10)]
    {
        assert_eq!(Policy::of(&Checkpointing::Sqrt, blocks).every, every, "{blocks} blocks");
    }
}
