//! What ends a run ends it on all ranks, with the cause and not its echo.

use crate::training::support::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use zbench_engine::compute::error::StepError;
use zbench_engine::config::*;
use zbench_engine::observe::outcome::{Cause, Failure};
use zbench_engine::run::launch_ranks::{train, with_ranks};
use zbench_kernels::{Category, DType};

fn cell(strategy: Strategy) -> Cell {
    let mut cell = on(synthetic(), strategy, 4, 2);
    (cell.train.micro_batch, cell.train.steps) = (1, 4);
    cell
}

fn cause(result: Result<impl Sized, Failure>) -> Cause {
    match result {
        Ok(_) => panic!("the run should have failed"),
        Err(failure) => failure.cause,
    }
}

#[test]
fn a_rank_that_panics_is_named_and_the_others_end() {
    for strategy in [Strategy::Ddp, Strategy::Zero3, Strategy::Hsdp] {
        let cell = cell(strategy);
        let steps = AtomicUsize::new(0);
        let result = with_ranks(&cell, &plan(&cell), cpus(&cell), |rank| -> Result<(), StepError> {
            for i in 0..4 {
                assert!(!(rank.number() == 2 && i == 2), "a bug on purpose");
                rank.step()?;
                steps.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let Cause::Failed { rank, reason } = cause(result) else { panic!("not a failure") };
        assert_eq!(rank, 2);
        assert!(reason.contains("panicked") && reason.contains("a bug on purpose"), "{reason}");
        assert_eq!(steps.load(Ordering::Relaxed), 8, "no rank may finish a step without rank 2");
    }
}

#[test]
fn a_rank_that_fails_while_allocating_is_named() {
    let mut cell = cell(Strategy::Zero3);
    let plan = plan(&cell);
    let capacity = plan.stage_plan_of(0).estimate.memory().total_peak();
    cell.memory.capacity = Some(capacity);
    let result = with_ranks(&cell, &plan, cpus(&cell), |rank| -> Result<(), StepError> {
        rank.step()?;
        // One rank has less room than the plan asks for.
        let taken =
            (rank.number() == 1).then(|| rank.executor.context.arena().alloc(Category::Workspace, DType::F32, 4096));
        let _taken = taken.transpose()?;
        rank.step().map(|_| ())
    });
    let Cause::OutOfMemory { rank, error } = cause(result) else { panic!("not out of memory") };
    assert_eq!((rank, error.capacity), (1, capacity));
}

#[test]
fn divergence_is_an_outcome_with_its_step_and_keeps_the_steps_before() {
    let mut cell = cell(Strategy::Zero2);
    cell.train.lr = 1e30;
    let failure = train(&cell, &plan(&cell), &|_| {}).unwrap_err();
    let Cause::Diverged { step, what, value } = failure.cause else { panic!("{}", failure.cause) };
    assert!(step >= 2 && !value.is_finite() && (what == "loss" || what == "grad_norm"));
    assert_eq!(failure.steps.len() as u64, step - 1);
    assert!(failure.steps.iter().all(|s| s.loss.is_finite()));
}

#[test]
fn a_bad_token_in_the_middle_of_a_run_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.bin");
    let mut tokens: Vec<u32> = (0..33 * 16).map(|t| t % 200).collect();
    tokens[33 * 9 + 5] = 256;
    std::fs::write(&path, tokens.iter().flat_map(|t| t.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    let mut cell = cell(Strategy::Fsdp);
    cell.data = Data::Tokens { path, dtype: TokenType::U32, shuffle: false };
    let reason = cause(train(&cell, &plan(&cell), &|_| {})).to_string();
    assert!(reason.contains("256") && reason.contains("tokens.bin"), "{reason}");
}

#[test]
fn a_checkpoint_of_another_shape_names_the_tensors() {
    let mut cell = on(llama_fixture(), Strategy::Zero3, 2, 2);
    cell.model.intermediate_size = 180;
    let reason = cause(train(&cell, &plan(&cell), &|_| {})).to_string();
    assert!(reason.contains("mlp.gate_proj.weight") && reason.contains("180"), "{reason}");
}

#[test]
fn steps_are_told_as_they_end_and_the_same_cell_twice_is_the_same_run() {
    let cell = cell(Strategy::HsdpFullOptimizer);
    let told = Arc::new(AtomicUsize::new(0));
    let first = train(&cell, &plan(&cell), &|_| {
        told.fetch_add(1, Ordering::Relaxed);
    });
    let (first, second) = (first.unwrap(), train(&cell, &plan(&cell), &|_| {}).unwrap());
    assert_eq!(told.load(Ordering::Relaxed), 4);
    let bits = |steps: &[zbench_engine::observe::outcome::Step]| -> Vec<_> {
        steps.iter().map(|s| (s.loss.to_bits(), s.grad_norm.to_bits())).collect()
    };
    assert_eq!(bits(&first.steps), bits(&second.steps));
    for (a, b) in first.ranks.iter().zip(&second.ranks) {
        assert_eq!(a.ledgers, b.ledgers);
        let bytes = |r: &zbench_engine::observe::outcome::RankReport| -> Vec<_> {
            r.traffic.iter().map(|t| (t.axis, t.kind, t.calls, t.wire_bytes)).collect()
        };
        assert_eq!(bytes(a), bytes(b));
        let spans = a.spans_ms.sum();
        let steps: f64 = a.step_ms.iter().sum::<f64>() / a.step_ms.len() as f64;
        assert!((spans - steps).abs() <= 1e-6 * steps, "spans {spans} add up to the step {steps}");
    }
}
