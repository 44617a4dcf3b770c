//! Eviction under a capacity: the bits of keeping everything, within the capacity to the byte, as the plan says ahead.

use crate::stages::{described, drawn, encoder};
use crate::training::accounting::{assert_as_planned, small};
use crate::training::identity::{assert_same, odd, strategies};
use crate::training::offload::{
    assert_as_planned as assert_homes_as_planned, combinations, offloaded, with_activations,
};
use crate::training::support::*;
use std::collections::BTreeMap;
use zbench_engine::action::{Action, Kept};
use zbench_engine::config::*;
use zbench_engine::observe::outcome::Cause;
use zbench_engine::plan::{Plan, PlanError, StagePlan};
use zbench_kernels::Cpu;
use zbench_test_tiers as tiers;

fn evicting(cell: &Cell, capacity: u64) -> Cell {
    let mut cell = cell.clone();
    (cell.memory.checkpointing, cell.memory.capacity) = (Checkpointing::Evict, Some(capacity));
    cell
}

fn with(cell: &Cell, policy: Checkpointing) -> Cell {
    let mut cell = cell.clone();
    (cell.memory.checkpointing, cell.memory.capacity) = (policy, None);
    cell
}

fn peak(cell: &Cell) -> u64 {
    estimate(cell).memory().total_peak()
}

/// The smallest capacity that eviction holds.
fn least(cell: &Cell) -> u64 {
    let cell = evicting(cell, 1);
    1 + plan(&cell).above_capacity(&cell).unwrap()
}

/// So many capacities, from the least that eviction holds to one byte less than everything takes.
fn capacities(cell: &Cell, count: u64) -> Vec<u64> {
    let (least, most) = (least(cell), peak(&with(cell, Checkpointing::None)) - 1);
    (0..count).map(|place| least + (most - least) * place / (count - 1)).collect()
}

fn evictions(plan: &Plan) -> Vec<Action> {
    evictions_of(plan.stage_plan_of(0))
}

fn evictions_of(stage_plan: &StagePlan) -> Vec<Action> {
    stage_plan.actions.iter().copied().filter(|action| matches!(action, Action::Evict { .. })).collect()
}

/// Executed operations beyond those of keeping everything.
fn again(cell: &Cell) -> f64 {
    estimate(cell).flops.hardware - estimate(&with(cell, Checkpointing::None)).flops.hardware
}

/// Blocks of every kind: one after the other and side by side, with adapters that drop out, with experts, with probabilities kept.
fn cells(base: Cell) -> Vec<(String, Cell)> {
    let mut base = base;
    (base.model.num_hidden_layers, base.train.accumulation) = (5, 2);
    let mut naive = base.clone();
    naive.memory.attention = AttentionKind::Naive;
    let mut cells = vec![("llama".to_string(), base.clone()), ("llama with probabilities".into(), naive)];
    cells.extend(expert_cells(base.clone()).into_iter().map(|(name, cell)| (name.to_string(), cell)));
    let some = ["qwen3", "gpt2", "falcon", "falcon with gates", "new falcon"];
    let of_forms = forms().into_iter().filter(|(name, ..)| some.contains(name));
    cells.extend(of_forms.map(|form| (form.0.to_string(), formed(base.clone(), form))));
    for (name, change) in adapters().into_iter().filter(|(name, _)| name.contains("dropout")) {
        let mut cell = base.clone();
        change(&mut cell);
        cells.push((name.into(), cell));
    }
    cells
}

/// What is moved in place of being dropped: the same bits, no more recomputed, and bytes as planned in every home.
#[test]
fn evicted_tensors_may_go_to_another_home() {
    let mut base = odd();
    (base.train.clip_norm, base.train.lr, base.train.steps, base.train.untimed_steps) = (0.01, 1e-3, 2, 1);
    let (mut moved, mut tried) = (0, 0);
    let (cells, ways) = (cells(base), [(Strategy::Ddp, MemoryTier::Host), (Strategy::Zero3, MemoryTier::Disk)]);
    let mut references = BTreeMap::new();
    let sizes = [cells.len(), ways.len(), 3];
    for [at, way, place] in tiers::combinations("training::evict::evicted_tensors_may_go_to_another_home", sizes) {
        let ((name, base), (strategy, home)) = (&cells[at], ways[way]);
        let cell = on(base.clone(), strategy, 2, 1);
        let reference = references.entry((at, way)).or_insert_with(|| run(&cell));
        let capacity = capacities(&cell, 3)[place];
        let what = format!("{name}: {} in {capacity} bytes, {home:?}", strategy.name());
        let dropping = evicting(&cell, capacity);
        let moving = with_activations(dropping.clone(), home, at % 3);
        assert_same(reference, &moving, &what);
        assert_homes_as_planned(&moving, &what);
        assert!(peak(&moving) <= capacity, "{what}: {}", peak(&moving));
        assert!(again(&moving) <= again(&dropping), "{what}: {} of {}", again(&moving), again(&dropping));
        tried += 1;
        moved += estimate(&moving).moves.iter().map(|row| row.moves as usize).sum::<usize>();
    }
    assert!(moved > tried, "{moved} moves in {tried} cells");
}

/// With everything that costs something moved away, only what costs no product or attention is made again.
#[test]
fn what_costs_products_is_moved_and_what_costs_none_is_dropped() {
    let mut cell = on(small(), Strategy::Ddp, 1, 1);
    cell.model.num_hidden_layers = 6;
    for home in [MemoryTier::Host, MemoryTier::Disk] {
        for capacity in capacities(&cell, 4) {
            let cell = with_activations(evicting(&cell, capacity), home, 1);
            let plan = plan(&cell);
            let free = [SavedTensor::AttentionNorm, SavedTensor::MlpNorm, SavedTensor::Activation];
            for action in &plan.stage_plan_of(0).actions {
                match *action {
                    Action::Evict { tensor: Some(tensor), .. } => {
                        assert!(free.contains(&tensor), "{tensor:?} is dropped")
                    }
                    Action::Evict { tensor: None, .. } => panic!("an input is dropped"),
                    Action::StoreSaved { what: Kept::Tensor(tensor), .. } => assert!(!free.contains(&tensor)),
                    _ => {}
                }
            }
            assert_eq!(again(&cell), 0.0, "{home:?} in {capacity}: operations that count");
        }
    }
}

#[test]
fn evictions_leave_room_for_state_that_comes_and_goes() {
    let test = "training::evict::evictions_leave_room_for_state_that_comes_and_goes";
    let all = combinations(4).enumerate().filter(|(at, _)| at % 2 == 0);
    for (at, (strategy, shard, tiers)) in tiers::some(test, all, [6, 12]) {
        let mut cell = offloaded(on(odd(), strategy, 4, shard), tiers, at % 3);
        (cell.model.num_hidden_layers, cell.train.accumulation) = (5, 1 + at % 2);
        (cell.train.untimed_steps, cell.train.delayed_update) = (1, usize::from(at % 4 == 0));
        (cell.train.clip_norm, cell.train.lr) = (0.01, 1e-3);
        let what = format!("{} by {shard}, {tiers:?}", strategy.name());
        let reference = run(&cell);
        let full = peak(&with(&cell, Checkpointing::Full));
        let capacity = (full + peak(&cell)) / 2;
        let mut evicts = evicting(&cell, capacity);
        if at % 3 == 0 {
            evicts.memory.offload_activations = MemoryTier::Host;
        }
        assert!(peak(&evicts) <= capacity, "{what}: {} planned in {capacity}", peak(&evicts));
        // More room is used: all goes only where little is there.
        let gone = |cell: &Cell| {
            let list = plan(cell).stage_plan_of(0).actions.clone();
            let goes = |action: &&Action| matches!(action, Action::Evict { .. } | Action::StoreSaved { .. });
            list.iter().filter(goes).count()
        };
        let nearly_all =
            Cell { memory: Memory { capacity: Some(peak(&cell) - 1), ..evicts.memory.clone() }, ..evicts.clone() };
        let least =
            Cell { memory: Memory { capacity: Some(full + full / 8), ..evicts.memory.clone() }, ..evicts.clone() };
        let [few, some, most] = [&nearly_all, &evicts, &least].map(gone);
        assert!(few <= some && few < most, "{what}: {few}, {some} and {most} evictions");
        assert_same(&reference, &evicts, &what);
        assert_homes_as_planned(&evicts, &what);
    }
}

/// Every capacity is that of the arena, too: a byte more would be refused.
#[test]
fn evicting_gives_the_bits_of_keeping_everything() {
    let mut base = odd();
    (base.train.clip_norm, base.train.lr, base.train.steps) = (0.01, 1e-3, 2);
    let (cells, mut references) = (cells(base), BTreeMap::new());
    let sizes = [cells.len(), 2, 4];
    for [cell, strategy, place] in tiers::combinations("training::evict::evicting_gives_the_bits", sizes) {
        let ((name, base), number) = (&cells[cell], (cell, strategy));
        let strategy = [Strategy::Ddp, Strategy::Zero3][strategy];
        let cell = on(base.clone(), strategy, 2, 1);
        let reference = references.entry(number).or_insert_with(|| run(&cell));
        let capacity = capacities(&cell, 4)[place];
        let cell = evicting(&cell, capacity);
        assert!(!evictions(&plan(&cell)).is_empty(), "{name}: nothing is evicted");
        assert_same(reference, &cell, &format!("{name}: {} in {capacity} bytes", strategy.name()));
    }
}

#[test]
fn what_is_measured_is_what_is_planned_and_within_the_capacity() {
    let strategies = strategies(4);
    let test = "training::evict::what_is_measured_is_what_is_planned";
    for [strategy, accumulation, prefetch, place] in tiers::combinations(test, [strategies.len(), 3, 2, 3]) {
        let ((strategy, shard), accumulation, prefetch) =
            (strategies[strategy], [1, 3, 7][accumulation], [0, 2][prefetch]);
        let mut cell = on(small(), strategy, 4, shard);
        (cell.train.accumulation, cell.parallel.prefetch, cell.model.num_hidden_layers) = (accumulation, prefetch, 4);
        (cell.train.steps, cell.train.untimed_steps) = (1, 1);
        let capacity = capacities(&cell, 3)[place];
        let cell = evicting(&cell, capacity);
        let what = format!("{} by {shard}, {accumulation}, {prefetch}, {capacity}", strategy.name());
        assert!(peak(&cell) <= capacity, "{what}: {} planned", peak(&cell));
        assert_as_planned(&cell, &what);
    }
}

/// Also where many blocks and micro-batches are decided at once; and the plan is the same when it is made again.
#[test]
fn plans_are_within_the_capacity_and_repeat_themselves() {
    let (cells, ways) =
        (cells(small()), [(Strategy::Ddp, 1), (Strategy::Zero2, 4), (Strategy::Zero3, 4), (Strategy::FsdpGradOp, 4)]);
    let sizes = [cells.len(), ways.len(), 5];
    for [cell, way, place] in tiers::combinations("training::evict::plans_are_within_the_capacity", sizes) {
        let ((name, mut base), (strategy, ranks)) = (cells[cell].clone(), ways[way]);
        (base.model.num_hidden_layers, base.train.accumulation) = (12, 6);
        let cell = on(base, strategy, ranks, ranks);
        let capacity = capacities(&cell, 5)[place];
        let (cell, what) = (evicting(&cell, capacity), format!("{name}: {} in {capacity}", strategy.name()));
        let plan = plan(&cell);
        let stage_plan = plan.stage_plan_of(0);
        assert!(stage_plan.estimate.memory().total_peak() <= capacity, "{what}");
        assert_eq!(plan.above_capacity(&cell), None, "{what}");
        assert_eq!(stage_plan.estimate, plan.estimate_block_by_block(&cell, &Cpu::new(1), 0), "{what}");
        assert_eq!(stage_plan.actions, crate::training::support::plan(&cell).stage_plan_of(0).actions, "{what}");
        let of_micro = |wanted: usize| -> Vec<Action> {
            let own = evictions(&plan).into_iter().filter(|action| action.micro() == Some(wanted));
            own.map(|action| action.at(0)).collect()
        };
        assert_eq!(of_micro(2), of_micro(3), "{what}: micro-batches in the middle");
        assert_eq!(of_micro(2), of_micro(4), "{what}: micro-batches in the middle");
    }
}

#[test]
fn a_capacity_that_keeping_everything_passes_trains() {
    for strategy in [Strategy::Ddp, Strategy::Zero3] {
        let mut cell = on(odd(), strategy, 2, 1);
        cell.model.num_hidden_layers = 6;
        let capacity = capacities(&cell, 3)[1];
        let mut keeping = with(&cell, Checkpointing::None);
        keeping.memory.capacity = Some(capacity);
        let failure = try_run(&keeping).err().expect("everything does not fit");
        assert!(matches!(failure.cause, Cause::OutOfMemory { .. }), "{}", failure.cause);
        run(&evicting(&cell, capacity));
    }
}

#[test]
fn a_capacity_that_nothing_holds_is_told_with_what_is_missing() {
    for (name, base) in tiers::some("training::evict::a_capacity_that_nothing_holds", cells(small()), [5, 13]) {
        let cell = on(base, Strategy::Zero3, 2, 1);
        let least = least(&cell);
        assert_eq!(peak(&evicting(&cell, least)), least, "{name}: the smallest peak is reached");
        let below = evicting(&cell, least - 1);
        assert_eq!(plan(&below).above_capacity(&below), Some(1), "{name}");
        let failure = try_run(&below).err().expect("less than the least");
        assert!(matches!(failure.cause, Cause::OutOfMemory { .. }), "{name}: {}", failure.cause);
        // Nothing static takes less.
        for policy in [Checkpointing::Full, Checkpointing::Sqrt, Checkpointing::Every(2), Checkpointing::Every(5)] {
            assert!(peak(&with(&cell, policy.clone())) >= least, "{name}: {policy:?}");
        }
    }
}

#[test]
fn a_capacity_must_be_stated_and_models_have_a_size() {
    let refused = |cell: &Cell| -> PlanError { Plan::new(cell, &Cpu::new(1)).unwrap_err() };
    let mut cell = with(&small(), Checkpointing::Evict);
    let error = refused(&cell);
    assert_eq!(error.key, "memory.checkpointing");
    assert!(error.reason.contains("memory.capacity, as \"16GiB\""), "{error}");
    cell.memory.capacity = Some(1 << 30);
    cell.model.num_hidden_layers = 513;
    assert!(refused(&cell).reason.contains("up to 512 blocks"));
    (cell.model.num_hidden_layers, cell.train.accumulation) = (512, 513);
    assert!(refused(&cell).reason.contains("write \"full\""));
}

/// What everything takes is enough for nothing to be made again. Where the blocks' inputs fit, no block is made again twice: it is
/// never more than `full` makes again in as many bytes or more, nor than `selective`, which makes nothing again that counts.
#[test]
fn no_more_is_made_again_than_by_a_policy_that_fits() {
    let (cells, ways) = (cells(small()), [(Strategy::Ddp, 1), (Strategy::Zero3, 4)]);
    let sizes = [cells.len(), ways.len()];
    for [cell, way] in tiers::combinations("training::evict::no_more_is_made_again", sizes) {
        let ((name, mut base), (strategy, ranks)) = (cells[cell].clone(), ways[way]);
        base.model.num_hidden_layers = 12;
        let (cell, what) = (on(base.clone(), strategy, ranks, ranks), format!("{name}: {}", strategy.name()));
        let all = peak(&with(&cell, Checkpointing::None));
        let plan_of_all = plan(&evicting(&cell, all));
        assert_eq!(evictions(&plan_of_all), [], "{what}");
        assert_eq!(plan_of_all.stage_plan_of(0).estimate, estimate(&with(&cell, Checkpointing::None)), "{what}");
        for policy in [Checkpointing::Full, Checkpointing::Selective] {
            let fixed = with(&cell, policy.clone());
            let (bytes, most) = (peak(&fixed), again(&fixed));
            for capacity in [bytes, (bytes + all) / 2] {
                let more = again(&evicting(&cell, capacity));
                assert!(more <= most * (1.0 + 1e-12), "{what}: {policy:?}: {more} of {most} in {capacity}");
            }
        }
    }
}

/// Stages that hold several micro-batches, and decoders that read what an encoder made, which the engine plans and does not run.
#[test]
fn whatever_is_planned_on_paper_stays_within_the_capacity() {
    let encoders = [([6, 1], 1), ([1, 6], 3), ([4, 5], 2)].map(|(blocks, accumulation)| {
        let mut cell = on(encoder(blocks, |_| ()), Strategy::Zero3, 4, 1);
        cell.train.accumulation = accumulation;
        cell
    });
    let kernels = Cpu::new(1);
    let (mut planned, mut several) = (0, 0u64);
    let seeds = u64::from(tiers::cases("training::evict::whatever_is_planned_on_paper", [12, 30, 160]));
    for (seed, cell) in (0..seeds).map(|seed| (seed, drawn(seed, seed % 2 == 0))).chain((1000..).zip(encoders)) {
        let largest = |cell: &Cell| {
            let plan = Plan::unrunnable(cell, &kernels).ok()?;
            plan.stage_plans.iter().map(|stage_plan| stage_plan.estimate.memory().total_peak()).max()
        };
        let Some(most) = largest(&with(&cell, Checkpointing::None)) else { continue };
        let least = largest(&evicting(&cell, 1)).unwrap();
        for capacity in [least, (least + most) / 2, most] {
            let (cell, what) = (evicting(&cell, capacity), format!("{} in {capacity}", described(seed, &cell)));
            let plan = Plan::unrunnable(&cell, &kernels).unwrap();
            assert_eq!(plan.above_capacity(&cell), None, "{what}");
            for (stage, stage_plan) in plan.stage_plans.iter().enumerate() {
                let rank = stage * (cell.parallel.ranks / plan.stage_plans.len());
                assert_eq!(stage_plan.estimate, plan.estimate_block_by_block(&cell, &kernels, rank), "{what}");
                several += u64::from(stage_plan.in_flight > 1 && !evictions_of(stage_plan).is_empty());
            }
            planned += 1;
        }
    }
    assert!(
        planned > 15 * seeds / 8 && several > 5 * seeds / 8,
        "{planned} plans, {several} stages with several micro-batches"
    );
}
