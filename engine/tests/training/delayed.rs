//! Updates one step late: against PyTorch, against updates in time, and the same bits wherever and whenever they are computed.

use crate::training::identity::{assert_same, odd, strategies};
use crate::training::offload::{assert_as_planned, assert_scaled_alike, combinations, offloaded};
use crate::training::resume::{assert_goes_on, bits as bits_of, course, layouts, saved, saving, six_steps, try_course};
use crate::training::support::*;
use zbench_engine::action::{Action, Moved};
use zbench_engine::config::*;
use zbench_kernels::{Category, DType};
use zbench_test_tiers as tiers;

fn delayed(mut cell: Cell) -> Cell {
    cell.train.delayed_update = 1;
    cell
}

/// tests/fixtures/delayed.py; tolerances are those of parity.rs.
#[test]
fn losses_and_norms_are_pytorchs() {
    let text = std::fs::read_to_string(fixture("delayed.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let values =
        |key: &str| -> Vec<f64> { json[key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect() };
    let mut cell = delayed(llama_fixture());
    cell.train.clip_norm = json["clip_norm"].as_f64().unwrap();
    for (ranks, accumulation) in [(1, 1), (2, 2)] {
        (cell.train.micro_batch, cell.train.accumulation) = (4 / ranks / accumulation, accumulation);
        let ran = run(&on(cell.clone(), Strategy::Zero3, ranks, 1));
        assert_eq!(ran.steps.len(), 20);
        for (step, (loss, norm)) in ran.steps.iter().zip(values("loss").into_iter().zip(values("grad_norm"))) {
            assert!((step.loss - loss).abs() <= 1e-4 * loss, "step {}: loss {} for {loss}", step.step, step.loss);
            let off = (step.grad_norm - norm).abs();
            assert!(off <= 1e-3 * norm, "step {}: norm {} for {norm}", step.step, step.grad_norm);
        }
    }
}

#[test]
fn the_first_step_updates_nothing_and_the_second_does_what_the_first_would_have_done() {
    let of = |steps, delays: bool| {
        let mut cell = odd();
        (cell.train.steps, cell.train.delayed_update) = (steps, usize::from(delays));
        run(&cell)
    };
    let fresh = run(&{
        let mut cell = odd();
        (cell.train.steps, cell.train.lr) = (1, 0.0);
        cell
    });
    assert!(of(1, true).weights == fresh.weights);
    assert!(of(2, true).weights == of(1, false).weights);
    assert!(of(2, true).weights != fresh.weights);
}

#[test]
fn every_strategy_and_home_gives_the_bits_of_ddp_with_the_same_delay() {
    let mut cell = delayed(odd());
    cell.train.steps = 6;
    let test = "training::delayed::every_strategy_and_home";
    for ranks in tiers::some(&format!("{test} (ranks)"), [2, 4, 1], [1, 2]) {
        let reference = run(&on(cell.clone(), Strategy::Ddp, ranks, 1));
        let at_home = strategies(ranks).into_iter().map(|(strategy, shard)| (strategy, shard, [MemoryTier::Device; 2]));
        let all = at_home.chain(combinations(ranks)).enumerate();
        for (at, (strategy, shard, tiers)) in tiers::some(test, all, [11, 19]) {
            let what = format!("{} on {ranks} ranks by {shard}, {tiers:?}", strategy.name());
            assert_same(&reference, &offloaded(on(cell.clone(), strategy, ranks, shard), tiers, at % 3), &what);
        }
    }
}

#[test]
fn accumulated_gradients_and_scaled_losses_give_the_same_bits_wherever_state_lives() {
    let scaling = DynamicScaling { initial_scale_power: 20, loss_scale_window: 3, ..DynamicScaling::DEFAULT };
    let f16 = Precision { scaling: Some(LossScaling::Dynamic(scaling)), ..Precision::mixed(DType::F16) };
    let bf16 = Precision { gradients: DType::Bf16, ..Precision::mixed(DType::Bf16) };
    for precision in [Precision::F32, bf16, f16] {
        let mut cell = delayed(odd());
        (cell.precision, cell.train.accumulation, cell.train.steps) = (precision, 2, 8);
        let all = combinations(4).enumerate().filter(|(at, _)| at % 3 == 0);
        for (at, (strategy, shard, tiers)) in tiers::some("training::delayed::accumulated_and_scaled", all, [2, 4]) {
            let cell = on(cell.clone(), strategy, 4, shard);
            let (here, away) = (run(&cell), run(&offloaded(cell, tiers, at % 2)));
            let what = format!("{} by {shard}, {tiers:?}, {precision:?}", strategy.name());
            assert_scaled_alike(&here, &away, &precision, &what);
        }
    }
}

/// A skipped step leaves no gradients behind, so the next one updates nothing: with a scale so high that all but the last steps
/// overflow, weights stay as they were.
#[test]
fn gradients_that_overflow_are_not_applied_later() {
    let scaling = DynamicScaling { initial_scale_power: 24, hysteresis: 1, ..DynamicScaling::DEFAULT };
    let mut cell = delayed(odd());
    cell.precision = Precision { scaling: Some(LossScaling::Dynamic(scaling)), ..Precision::mixed(DType::F16) };
    let mut fresh = cell.clone();
    (fresh.train.steps, fresh.train.lr) = (1, 0.0);
    cell.train.steps = 12;
    let steps = run(&cell).steps;
    let skipped = steps.iter().take_while(|step| step.skipped).count();
    assert!((1..11).contains(&skipped), "{skipped} steps of 12 overflow");
    // One more step has gradients, and only the one behind it applies them.
    cell.train.steps = skipped + 1;
    assert!(run(&cell).weights == run(&fresh).weights);
    cell.train.steps = skipped + 2;
    assert!(run(&cell).weights != run(&fresh).weights);
}

#[test]
fn experts_adapters_and_tied_matrices_are_updated_late_too() {
    let mut cells: Vec<(String, Cell)> =
        expert_cells(odd()).into_iter().map(|(name, cell)| (name.to_string(), cell)).collect();
    cells.extend(adapters().into_iter().map(|(name, change)| {
        let mut cell = odd();
        change(&mut cell);
        (name.to_string(), cell)
    }));
    let mut tied = odd();
    tied.model.tie_word_embeddings = true;
    cells.push(("tied".into(), tied));
    for (name, mut cell) in cells {
        (cell.train.steps, cell.train.delayed_update) = (4, 1);
        let reference = run(&on(cell.clone(), Strategy::Ddp, 2, 1));
        let tiers =
            [[MemoryTier::Host, MemoryTier::Disk], [MemoryTier::Disk, MemoryTier::Host], [MemoryTier::Device; 2]];
        for tiers in tiers::some("training::delayed::experts_adapters_and_tied_matrices", tiers, [1, 3]) {
            let away = offloaded(on(cell.clone(), Strategy::Zero3, 2, 1), tiers, 1);
            let ran = run(&away);
            assert!(reference.weights == ran.weights, "{name}, {tiers:?}");
            let mut away = away;
            away.train.untimed_steps = 1;
            assert_as_planned(&away, &format!("{name}, {tiers:?}"));
        }
    }
}

#[test]
fn every_home_holds_what_the_plan_says() {
    for (accumulation, precision) in [(1, Precision::F32), (3, Precision::mixed(DType::Bf16))] {
        let test = "training::delayed::every_home_holds_what_the_plan_says";
        for (at, (strategy, shard, tiers)) in tiers::some(test, combinations(4).enumerate(), [7, 19]) {
            let mut cell = delayed(offloaded(on(odd(), strategy, 4, shard), tiers, at % 3));
            (cell.precision, cell.train.accumulation, cell.train.untimed_steps) = (precision, accumulation, 1);
            assert_as_planned(&cell, &format!("{} by {shard}, {tiers:?}, {accumulation}", strategy.name()));
        }
    }
}

/// By a closed formula: one copy more of the rank's part of the gradients.
#[test]
fn a_rank_keeps_its_part_of_the_gradients_once_more() {
    for (strategy, parts) in [(Strategy::Ddp, 1), (Strategy::Zero1, 2), (Strategy::Zero3, 2)] {
        let cell = on(odd(), strategy, 2, 1);
        let gradients = |cell: &Cell| estimate(cell).peak(Category::Gradients);
        let plan = plan(&cell);
        let part = plan
            .layout
            .units
            .iter()
            .map(|unit| zbench_kernels::footprint(DType::F32, unit.trainable().padded / parts).unwrap());
        assert_eq!(gradients(&delayed(cell.clone())) - gradients(&cell), part.sum::<u64>(), "{}", strategy.name());
    }
}

#[test]
fn checkpoints_hold_the_gradients_that_are_still_to_be_applied() {
    let precisions = [Precision::F32, Precision { gradients: DType::Bf16, ..Precision::mixed(DType::Bf16) }];
    let tiers = [[MemoryTier::Device; 2], [MemoryTier::Disk, MemoryTier::Host]];
    let test = "training::delayed::checkpoints_hold_the_gradients_that_are_still_to_be_applied";
    for [precision, layout, home] in tiers::combinations(test, [2, layouts().len(), 2]) {
        let (precision, (layout, asynchronous), tiers) = (precisions[precision], layouts()[layout], tiers[home]);
        let cell = || delayed(Cell { precision, ..on(six_steps(), Strategy::Zero3, 2, 1) });
        let reference = course(&cell());
        assert_ne!(reference.digest.delayed_gradient, 0);
        let dir = tempfile::tempdir().unwrap();
        let saving = Saving { layout, asynchronous, ..saving(dir.path()) };
        let away = offloaded(saved(cell(), saving), tiers, 1);
        let what = format!("{tiers:?}, {layout:?}, async {asynchronous}");
        let whole = course(&away);
        assert_eq!(bits_of(&whole.steps), bits_of(&reference.steps), "{what}");
        assert_eq!(whole.digest, reference.digest, "{what}");
        assert_goes_on(&whole, &away, dir.path(), 4, &what);
        let other = Cell { memory: cell().memory, ..on(away.clone(), Strategy::Ddp, 2, 1) };
        assert_goes_on(&whole, &other, dir.path(), 2, &what);
    }
}

/// Sums over ranks and micro-batches become means by the factor of the run that made them.
#[test]
fn another_division_of_the_batch_applies_the_same_gradients() {
    let dir = tempfile::tempdir().unwrap();
    let mut cell = delayed(saved(on(six_steps(), Strategy::Zero2, 2, 1), saving(dir.path())));
    (cell.train.micro_batch, cell.train.accumulation) = (1, 2);
    let whole = course(&cell);
    let mut other = on(cell.clone(), Strategy::Zero3, 4, 1);
    (other.train.micro_batch, other.train.accumulation) = (1, 1);
    let own = tempfile::tempdir().unwrap();
    let place = zbench_engine::checkpoint::training::step_dir(dir.path(), 4);
    other.checkpoint = Some(Box::new(Saving { resume: Resume::From(place), ..saving(own.path()) }));
    let rest = course(&other);
    for (ours, theirs) in rest.steps.iter().zip(&whole.steps[4..]) {
        assert!((ours.loss - theirs.loss).abs() <= 1e-5 * theirs.loss, "{} and {}", ours.loss, theirs.loss);
        assert!((ours.grad_norm - theirs.grad_norm).abs() <= 1e-5 * theirs.grad_norm);
    }
    assert_eq!(rest.steps.len(), 2);
}

#[test]
fn a_run_in_time_refuses_gradients_that_are_still_to_be_applied() {
    let dir = tempfile::tempdir().unwrap();
    let cell = delayed(saved(on(six_steps(), Strategy::Ddp, 1, 1), saving(dir.path())));
    course(&cell);
    let mut in_time = cell.clone();
    (in_time.train.delayed_update, in_time.train.steps) = (0, 8);
    let refused = zbench_engine::checkpoint::training::Resumable::find(&in_time, &plan(&in_time).layout).unwrap_err();
    assert!(refused.to_string().contains("train.delayed_update = 1"), "{refused}");
    // The other way round there is nothing to apply in the first step.
    let dir = tempfile::tempdir().unwrap();
    let cell = saved(on(six_steps(), Strategy::Ddp, 1, 1), saving(dir.path()));
    course(&cell);
    let mut late = delayed(cell);
    late.train.steps = 8;
    assert_eq!(try_course(&late, None).unwrap().steps.len(), 2);
}

#[test]
fn state_comes_and_goes_during_backward() {
    let cell = delayed(offloaded(on(odd(), Strategy::Zero3, 2, 1), [MemoryTier::Disk, MemoryTier::Device], 1));
    let actions = &plan(&cell).stage_plan_of(0).actions.clone();
    let at = |wanted: Action| actions.iter().position(|action| *action == wanted).unwrap();
    let units = plan(&cell).layout.units.len();
    let layers = units;
    for unit in 1..units {
        // A layer has the number of its unit here. The head's backward is in its forward.
        let layer = unit;
        let last = match unit + 1 == layers {
            true => at(Action::Forward { micro: 0, layer }),
            false => at(Action::Backward { micro: 0, layer }),
        };
        assert!(at(Action::Fetch { unit, what: Moved::State }) < last, "{unit}");
        assert_eq!(at(Action::UpdateUnit { unit }), last + 1, "{unit}");
        assert!(at(Action::WaitStore { unit }) > at(Action::Backward { micro: 0, layer: layer - 1 }), "{unit}");
    }
    assert!(at(Action::UpdateUnit { unit: 0 }) < at(Action::Update));
}
