//! Offload: the same bits as without, bytes of every home and of every move as planned, and room on the device.

use crate::training::accounting::{measure, policies, small};
use crate::training::identity::{assert_same, odd, strategies};
use crate::training::resume::{assert_goes_on, bits as bits_of, course, layouts, saved, saving, six_steps};
use crate::training::support::*;
use std::collections::BTreeMap;
use zbench_engine::config::*;
use zbench_engine::observe::outcome::{Cause, Transfer};
use zbench_kernels::{Category, DType, footprint};
use zbench_test_tiers as tiers;

/// MemoryTiers of the optimizer's state and of the weights.
pub const HOMES: [[MemoryTier; 2]; 8] = [
    [MemoryTier::Host, MemoryTier::Device],
    [MemoryTier::Device, MemoryTier::Host],
    [MemoryTier::Host, MemoryTier::Host],
    [MemoryTier::Disk, MemoryTier::Device],
    [MemoryTier::Device, MemoryTier::Disk],
    [MemoryTier::Disk, MemoryTier::Disk],
    [MemoryTier::Disk, MemoryTier::Host],
    [MemoryTier::Host, MemoryTier::Disk],
];

/// As [`offloaded`], with what forward keeps.
pub fn with_activations(mut cell: Cell, home: MemoryTier, prefetch: usize) -> Cell {
    (cell.memory.offload_activations, cell.memory.offload_prefetch) = (home, prefetch);
    cell
}

#[test]
fn activations_elsewhere_change_no_bit_and_are_planned_to_the_byte() {
    let cells: Vec<_> = std::iter::once(("llama", odd())).chain(expert_cells(odd())).collect();
    let (policies, test) = (policies(), "training::offload::activations_elsewhere");
    for [cell, at, home] in tiers::combinations(test, [cells.len(), policies.len(), 2]) {
        let ((name, cell), policy, home) = (&cells[cell], &policies[at], [MemoryTier::Host, MemoryTier::Disk][home]);
        let strategy = Strategy::ALL[at % Strategy::ALL.len()];
        let mut cell = on(cell.clone(), strategy, 4, 2);
        cell.memory.checkpointing = policy.clone();
        cell.train.accumulation = 1 + at % 3;
        let away = with_activations(cell.clone(), home, at % 3);
        let what = format!("{name}, {policy:?}, {} in {home:?}", strategy.name());
        assert_same(&run(&cell), &away, &what);
        assert_as_planned(&away, &what);
        let peak = |cell: &Cell| estimate(cell).peak(Category::Activations);
        if *policy == Checkpointing::None {
            assert!(peak(&away) < peak(&cell), "{what}: {} of {}", peak(&away), peak(&cell));
        }
    }
}

#[test]
fn all_that_can_lives_on_the_disk() {
    let cell = on(odd(), Strategy::Zero3, 2, 1);
    let away = with_activations(offloaded(cell.clone(), [MemoryTier::Disk; 2], 2), MemoryTier::Disk, 2);
    assert_same(&run(&cell), &away, "all on the disk");
    assert_as_planned(&away, "all on the disk");
}

/// By a closed formula: what a full checkpointing policy keeps is one residual stream a block.
#[test]
fn a_kept_input_goes_once_and_comes_once() {
    let mut cell = on(small(), Strategy::Ddp, 1, 1);
    (cell.memory.checkpointing, cell.train.accumulation) = (Checkpointing::Full, 2);
    let moves = estimate(&with_activations(cell.clone(), MemoryTier::Host, 1)).moves;
    let input = cell.train.micro_batch * cell.train.seq_len * cell.model.hidden_size * 4;
    let all = (2 * cell.model.num_hidden_layers * input) as f64;
    let of = |from, to| moves.iter().filter(|row| (row.from, row.to) == (from, to)).map(|row| row.bytes).sum::<f64>();
    assert_eq!((of(MemoryTier::Device, MemoryTier::Host), of(MemoryTier::Host, MemoryTier::Device)), (all, all));
}

#[test]
fn checkpoints_hold_what_lives_elsewhere() {
    let (precisions, tiers) = (
        [Precision::F32, Precision::mixed(DType::Bf16)],
        [
            [MemoryTier::Host, MemoryTier::Host],
            [MemoryTier::Disk, MemoryTier::Disk],
            [MemoryTier::Disk, MemoryTier::Device],
        ],
    );
    let sizes = [precisions.len(), tiers.len(), layouts().len()];
    for [precision, home, layout] in tiers::combinations("training::offload::checkpoints_hold", sizes) {
        let (precision, tiers, (layout, asynchronous)) = (precisions[precision], tiers[home], layouts()[layout]);
        let cell = || Cell { precision, ..on(six_steps(), Strategy::Zero3, 2, 1) };
        let reference = course(&cell());
        let dir = tempfile::tempdir().unwrap();
        let saving = Saving { layout, asynchronous, ..saving(dir.path()) };
        let away = with_activations(offloaded(saved(cell(), saving), tiers, 1), tiers[0], 1);
        let what = format!("{tiers:?}, {layout:?}, async {asynchronous}");
        let whole = course(&away);
        assert_eq!(bits_of(&whole.steps), bits_of(&reference.steps), "{what}");
        assert_eq!(whole.digest, reference.digest, "{what}");
        assert_goes_on(&whole, &away, dir.path(), 4, &what);
        // Whoever goes on may keep it elsewhere.
        let here = Cell { memory: cell().memory, ..away };
        assert_goes_on(&whole, &here, dir.path(), 2, &what);
    }
}

/// Whether weights may live elsewhere.
fn splits_weights(strategy: Strategy) -> bool {
    matches!(strategy, Strategy::Zero3 | Strategy::Fsdp | Strategy::FsdpGradOp | Strategy::Hsdp)
}

pub fn offloaded(mut cell: Cell, [optimizer, parameters]: [MemoryTier; 2], prefetch: usize) -> Cell {
    cell.memory.offload_optimizer = optimizer;
    cell.memory.offload_parameters = parameters;
    cell.memory.offload_prefetch = prefetch;
    cell
}

/// Two runs of one precision are the same to the bit; where the loss is scaled, some of their steps overflow and others do not.
pub fn assert_scaled_alike(here: &Ran, away: &Ran, precision: &Precision, what: &str) {
    if precision.scaling.is_some() {
        assert!(here.steps.iter().any(|step| step.skipped), "{what}: nothing overflows");
        assert!(here.steps.iter().any(|step| !step.skipped), "{what}: all overflows");
    }
    let bits = |ran: &Ran| -> Vec<_> {
        ran.steps.iter().map(|s| (s.loss.to_bits(), s.grad_norm.to_bits(), s.skipped)).collect()
    };
    assert_eq!(bits(here), bits(away), "{what}");
    assert!(here.weights == away.weights, "{what}: weights");
}

/// Every strategy with the tiers that it can have.
pub fn combinations(ranks: usize) -> impl Iterator<Item = (Strategy, usize, [MemoryTier; 2])> {
    let all = strategies(ranks).into_iter();
    let with_homes = all.flat_map(|(strategy, shard)| HOMES.map(|tiers| (strategy, shard, tiers)));
    with_homes.filter(|(strategy, _, [_, parameters])| *parameters == MemoryTier::Device || splits_weights(*strategy))
}

#[test]
fn offload_changes_no_bit() {
    let mut cell = odd();
    let test = "training::offload::offload_changes_no_bit";
    cell.train.steps = tiers::cases(&format!("{test} (steps)"), [4, 6, 20]) as usize;
    for ranks in tiers::some(&format!("{test} (ranks)"), [2, 4, 1], [1, 2]) {
        let reference = run(&on(cell.clone(), Strategy::Ddp, ranks, 1));
        for (at, (strategy, shard, tiers)) in tiers::some(test, combinations(ranks).enumerate(), [13, 29]) {
            let what = format!("{} on {ranks} ranks by {shard}, {tiers:?}", strategy.name());
            assert_same(&reference, &offloaded(on(cell.clone(), strategy, ranks, shard), tiers, at % 3), &what);
        }
    }
}

#[test]
fn offload_changes_no_bit_of_accumulated_gradients_and_of_scaled_losses() {
    let scaling = DynamicScaling { initial_scale_power: 20, loss_scale_window: 3, ..DynamicScaling::DEFAULT };
    let mixed = |dtype| Precision { gradients: DType::Bf16, ..Precision::mixed(dtype) };
    let precisions = [
        Precision::F32,
        Precision::mixed(DType::Bf16),
        mixed(DType::Bf16),
        Precision { scaling: Some(LossScaling::Dynamic(scaling)), ..Precision::mixed(DType::F16) },
    ];
    for (turn, precision) in precisions.into_iter().enumerate() {
        let mut cell = odd();
        (cell.precision, cell.train.accumulation, cell.train.steps) = (precision, 2, 8);
        cell.memory.checkpointing = Checkpointing::Full;
        // Each strategy has some of the tiers with each type.
        let all = combinations(4).enumerate().filter(|(at, _)| at % 3 == turn % 3);
        for (_, (strategy, shard, tiers)) in tiers::some("training::offload::accumulated_and_scaled", all, [1, 4]) {
            let cell = on(cell.clone(), strategy, 4, shard);
            let (here, away) = (run(&cell), run(&offloaded(cell, tiers, 1)));
            let what = format!("{} by {shard}, {tiers:?}, {precision:?}", strategy.name());
            assert!(here.steps.iter().any(|step| step.grad_norm > 0.5), "{what}: clipping is not active");
            assert_scaled_alike(&here, &away, &precision, &what);
        }
    }
}

#[test]
fn adapters_train_alike_beside_an_offloaded_base() {
    adapters_alike("training::offload", |cell| cell, &HOMES, [6, 6]);
}

/// On the device that `on_device` puts a cell on.
/// With `few` of the adapters in the fast tier and in CI.
pub fn adapters_alike(module: &str, on_device: fn(Cell) -> Cell, tiers: &[[MemoryTier; 2]], few: [usize; 2]) {
    let test = format!("{module}::adapters_train_alike_beside_an_offloaded_base");
    let (adapters, mut references) = (tiers::some(&test, adapters(), few), BTreeMap::new());
    for [adapter, home] in tiers::combinations(&test, [adapters.len(), tiers.len()]) {
        let ((name, change), mut cell) = (adapters[adapter], on_device(odd()));
        change(&mut cell);
        let cell = on(cell, Strategy::Zero3, 2, 1);
        let reference = references.entry(adapter).or_insert_with(|| run(&cell));
        let away = run(&offloaded(cell, tiers[home], 1));
        assert!(reference.weights == away.weights, "{name}, {:?}", tiers[home]);
    }
}

/// Equal to the byte in every home, and to the move.
pub fn assert_as_planned(cell: &Cell, what: &str) {
    let plan = plan(cell);
    let estimate = &plan.stage_plan_of(0).estimate;
    for report in measure(cell, &plan) {
        for home in MemoryTier::ALL {
            let (planned, measured) = (&estimate.ledgers[home], &report.ledgers[home]);
            for c in Category::ALL {
                assert_eq!(planned.peak(c), measured.peak(c), "{what}: rank {}: peak of {c}, {home:?}", report.rank);
            }
            assert_eq!(planned.total_peak(), measured.total_peak(), "{what}: {home:?}");
        }
        assert_eq!(estimate.moves, report.moves, "{what}: rank {}", report.rank);
    }
}

#[test]
fn every_home_holds_what_the_plan_says() {
    let test = "training::offload::every_home_holds_what_the_plan_says";
    for precision in [Precision::F32, Precision::mixed(DType::Bf16)] {
        for accumulation in [1, 3] {
            for (at, (strategy, shard, tiers)) in tiers::some(test, combinations(4).enumerate(), [7, 13]) {
                let mut cell = offloaded(on(small(), strategy, 4, shard), tiers, at % 3);
                (cell.precision, cell.train.accumulation) = (precision, accumulation);
                assert_as_planned(&cell, &format!("{} by {shard}, {tiers:?}, {accumulation}", strategy.name()));
            }
        }
    }
}

#[test]
fn host_pages_of_a_frozen_base_are_planned_too() {
    for (name, change) in adapters() {
        let mut cell = odd();
        change(&mut cell);
        cell.train.untimed_steps = 1;
        let away = offloaded(on(cell, Strategy::Zero3, 2, 1), [MemoryTier::Disk, MemoryTier::Disk], 0);
        assert_as_planned(&away, name);
    }
}

/// By closed formulas, which know nothing of plans: bytes of a step that go up and down.
#[test]
fn moves_are_those_of_the_formulas() {
    for (ranks, accumulation) in [(1, 1), (2, 1), (4, 3)] {
        let mut cell = offloaded(on(small(), Strategy::Zero3, ranks, 1), [MemoryTier::Host, MemoryTier::Host], 1);
        (cell.precision, cell.train.accumulation) = (Precision::mixed(DType::Bf16), accumulation);
        let plan = plan(&cell);
        let parts = plan.layout.units.iter().map(|unit| (unit.trainable().padded / ranks) as f64);
        let all: f64 = parts.clone().sum();
        let of = |what, from, to| {
            let row = |row: &&Transfer| (row.what, row.from, row.to) == (what, from, to);
            plan.stage_plan_of(0).estimate.moves.iter().find(row).map_or(0.0, |row| row.bytes)
        };
        // Each micro-batch's sum goes down; those before come up to be added to.
        let micros = accumulation as f64;
        assert_eq!(of(Category::Gradients, MemoryTier::Device, MemoryTier::Host), micros * 4.0 * all);
        assert_eq!(of(Category::Gradients, MemoryTier::Host, MemoryTier::Device), (micros - 1.0) * 4.0 * all);
        // Weights come up for forward and for backward; the head's once, as nothing lies between.
        let gathered: f64 = 2.0 * parts.clone().sum::<f64>() - parts.clone().next_back().unwrap();
        let least = of(Category::Parameters, MemoryTier::Host, MemoryTier::Device);
        assert!(least <= micros * 2.0 * gathered && least >= 2.0 * all, "{least} of {gathered}");
        // They are updated where they live.
        assert_eq!(of(Category::Parameters, MemoryTier::Device, MemoryTier::Host), 0.0);
        assert_eq!(of(Category::Optimizer, MemoryTier::Host, MemoryTier::Device), 0.0);
    }
}

#[test]
fn the_device_holds_less_by_what_lives_elsewhere() {
    let cell = on(small(), Strategy::Zero2, 2, 1);
    let (here, away) = (estimate(&cell), estimate(&offloaded(cell.clone(), [MemoryTier::Host, MemoryTier::Device], 1)));
    let units = &plan(&cell).layout.units;
    let mut parts = units.iter().map(|unit| footprint(DType::F32, unit.trainable().padded / 2).unwrap());
    let part: u64 = parts.clone().sum();
    let optimizer = |estimate: &zbench_engine::observe::outcome::Estimate, home: MemoryTier| {
        estimate.ledgers[home].peak(Category::Optimizer)
    };
    assert_eq!((optimizer(&here, MemoryTier::Device), optimizer(&away, MemoryTier::Device)), (2 * part, 0));
    assert_eq!((optimizer(&here, MemoryTier::Host), optimizer(&away, MemoryTier::Host)), (0, 2 * part));
    let gradients = |home: MemoryTier| away.ledgers[home].peak(Category::Gradients);
    assert_eq!((gradients(MemoryTier::Device), gradients(MemoryTier::Host)), (0, part));
    // At the peak, in backward of the last block, the sum of the head's gradients is on its way.
    let head = parts.next_back().unwrap();
    assert_eq!(away.memory().total_peak(), here.memory().total_peak() - 3 * part + head);
}

#[test]
fn a_card_too_small_for_zero3_trains_it_with_offload() {
    let cell = on(small(), Strategy::Zero3, 2, 1);
    let away = offloaded(cell.clone(), [MemoryTier::Host, MemoryTier::Host], 0);
    let limit = estimate(&away).memory().total_peak();
    let limited = |mut cell: Cell| {
        cell.memory.capacity = Some(limit);
        cell
    };
    let failed = try_run(&limited(cell)).err().expect("it takes more than the card has");
    assert!(matches!(failed.cause, Cause::OutOfMemory { .. }), "{}", failed.cause);
    assert!(run(&limited(away)).steps.iter().all(|step| step.loss.is_finite()));
}

#[test]
fn weights_that_are_whole_stay_on_the_device() {
    for (strategy, shard) in strategies(4).into_iter().filter(|(strategy, _)| !splits_weights(*strategy)) {
        let cell = offloaded(on(small(), strategy, 4, shard), [MemoryTier::Device, MemoryTier::Host], 1);
        let error = zbench_engine::plan::Plan::new(&cell, &zbench_kernels::Cpu::new(1)).unwrap_err();
        assert_eq!(error.key, "memory.offload_parameters");
        assert!(error.reason.contains(strategy.name()) && error.reason.contains("zero3"), "{error}");
    }
}
