//! Offload on CUDA: the same bits as without, on queues that do their work as late as they may. Copies have queues of their own, so a
//! move that nobody waits for brings nothing, and memory that is given back too early is overwritten.

use crate::training::accounting::{policies, small};
use crate::training::cuda::{few, shrunk};
use crate::training::identity::assert_same;
use crate::training::offload::{
    HOMES, adapters_alike, assert_as_planned, assert_scaled_alike, combinations, offloaded, with_activations,
};
use crate::training::resume::{assert_goes_on, bits as bits_of, course, layouts, saved, saving, six_steps};
use crate::training::support::*;
use zbench_engine::config::*;
use zbench_kernels::{Category, DType};
use zbench_test_tiers as tiers;

fn cuda(cell: Cell) -> Cell {
    let mut cell = shrunk(cell);
    cell.hardware.device = DeviceKind::Cuda;
    cell
}

/// All, the one at `first` in front, so that the fast tier has it.
fn from<T>(first: usize, all: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.collect();
    all.rotate_left(first);
    all
}

#[test]
fn offload_on_cuda_changes_no_bit() {
    let test = "training::offload_cuda::offload_on_cuda_changes_no_bit";
    for ranks in tiers::some(&format!("{test} (ranks)"), [2, 1], [1, 2]) {
        let reference = run(&cuda(on(few(), Strategy::Ddp, ranks, 1)));
        for (at, (strategy, shard, tiers)) in tiers::some(test, combinations(ranks).enumerate(), [3, 5]) {
            let what = format!("{} on {ranks} ranks by {shard}, {tiers:?}", strategy.name());
            assert_same(&reference, &offloaded(cuda(on(few(), strategy, ranks, shard)), tiers, at % 3), &what);
        }
    }
}

/// The update is computed by the processor's kernels where the optimizer's state is offloaded, and there is more than one of its
/// threads.
#[test]
fn replicas_and_threads_change_no_bit() {
    let reference = run(&cuda(on(few(), Strategy::Ddp, 4, 1)));
    let hybrid = combinations(4).filter(|(strategy, shard, _)| strategy.is_hybrid() && *shard == 2);
    let test = "training::offload_cuda::replicas_and_threads_change_no_bit";
    for (strategy, shard, tiers) in tiers::some(test, hybrid, [1, 4]) {
        let mut cell = offloaded(cuda(on(few(), strategy, 4, shard)), tiers, 1);
        cell.hardware.threads_per_rank = 2;
        assert_same(&reference, &cell, &format!("{} by {shard}, {tiers:?}", strategy.name()));
    }
}

#[test]
fn activations_elsewhere_change_no_bit_on_cuda() {
    let (policies, tiers) = (policies(), [MemoryTier::Host, MemoryTier::Disk]);
    let all = (0..policies.len()).flat_map(|at| tiers.map(|home| (at, home)));
    for (at, home) in tiers::some("training::offload_cuda::activations_elsewhere", all, [1, 2]) {
        let policy = &policies[at];
        let mut cell = cuda(on(few(), Strategy::ALL[at % Strategy::ALL.len()], 2, 1));
        (cell.memory.checkpointing, cell.train.accumulation) = (policy.clone(), 1 + at % 2);
        let away = with_activations(cell.clone(), home, at % 3);
        let what = format!("{policy:?} in {home:?}");
        assert_same(&run(&cell), &away, &what);
        assert_as_planned(&away, &what);
    }
}

#[test]
fn accumulated_gradients_and_scaled_losses_are_the_same_on_cuda() {
    let scaling = DynamicScaling { initial_scale_power: 20, loss_scale_window: 3, ..DynamicScaling::DEFAULT };
    let precisions = [
        Precision { gradients: DType::Bf16, rounding: WeightRounding::Nearest, ..Precision::mixed(DType::Bf16) },
        Precision { scaling: Some(LossScaling::Dynamic(scaling)), ..Precision::mixed(DType::F16) },
        Precision::mixed(DType::Bf16),
    ];
    let test = "training::offload_cuda::accumulated_gradients_and_scaled_losses_are_the_same_on_cuda";
    for (turn, precision) in tiers::some(&format!("{test} (precisions)"), precisions.into_iter().enumerate(), [1, 2]) {
        let mut cell = cuda(few());
        (cell.precision, cell.train.accumulation) = (precision, 2);
        // Enough for a scaled loss to overflow first and then not.
        cell.train.steps = if precision.scaling.is_some() { 6 } else { 2 };
        cell.memory.checkpointing = Checkpointing::Full;
        let all = from(turn + 9, combinations(2));
        for (strategy, shard, tiers) in tiers::some(test, all, [1, 2]) {
            let cell = on(cell.clone(), strategy, 2, shard);
            let (here, away) = (run(&cell), run(&offloaded(cell, tiers, 1)));
            let what = format!("{} by {shard}, {tiers:?}, {precision:?}", strategy.name());
            assert_scaled_alike(&here, &away, &precision, &what);
        }
    }
}

/// Memory is full of NaN when it is handed out, where work is done as soon as it is asked for.
#[test]
fn what_was_never_moved_is_never_read() {
    let test = "training::offload_cuda::what_was_never_moved_is_never_read";
    for (at, tiers) in tiers::some(test, from(2, HOMES.into_iter().enumerate()), [1, 4]) {
        let saved = [MemoryTier::Host, MemoryTier::Disk][at % 2];
        let cell = with_activations(offloaded(cuda(on(few(), Strategy::Zero3, 2, 1)), tiers, 1), saved, 1);
        let (late, prompt) = (run(&cell), promptly(|| run(&cell)));
        assert!(prompt.steps.iter().all(|step| step.loss.is_finite()), "{tiers:?}, {saved:?}");
        assert!(late.weights == prompt.weights, "{tiers:?}, {saved:?}: the weights differ");
    }
}

#[test]
fn every_home_holds_what_the_plan_says_on_cuda() {
    let test = "training::offload_cuda::every_home_holds_what_the_plan_says";
    for (at, (strategy, shard, tiers)) in tiers::some(test, from(8, combinations(2).enumerate()), [2, 5]) {
        let mut cell = offloaded(cuda(on(small(), strategy, 2, shard)), tiers, at % 3);
        cell.train.accumulation = 1 + at % 2;
        assert_as_planned(&cell, &format!("{} by {shard}, {tiers:?}", strategy.name()));
    }
}

/// What the device holds does not depend on who computes: it is what the processor's plan says of it.
#[test]
fn the_device_holds_what_the_processors_plan_says() {
    for tiers in HOMES {
        let cell = offloaded(on(small(), Strategy::Zero3, 2, 1), tiers, 1);
        let (host, device) = (estimate(&cell), estimate(&cuda(cell)));
        assert_eq!(host.moves, device.moves, "{tiers:?}");
        for category in [Category::Parameters, Category::Gradients, Category::Optimizer] {
            for home in MemoryTier::ALL {
                let peaks = [&host, &device].map(|estimate| estimate.ledgers[home].peak(category));
                assert_eq!(peaks[0], peaks[1], "{tiers:?}: {category} of {home:?}");
            }
        }
    }
}

#[test]
fn adapters_train_alike_beside_an_offloaded_base_on_cuda() {
    adapters_alike(
        "training::offload_cuda",
        cuda,
        &[[MemoryTier::Host, MemoryTier::Host], [MemoryTier::Disk, MemoryTier::Disk]],
        [1, 3],
    );
}

#[test]
fn checkpoints_on_cuda_hold_what_lives_elsewhere() {
    let cell = || Cell { precision: Precision::mixed(DType::Bf16), ..cuda(on(six_steps(), Strategy::Zero3, 2, 1)) };
    let reference = course(&cell());
    let tiers = [[MemoryTier::Host, MemoryTier::Host], [MemoryTier::Disk, MemoryTier::Device]];
    let all = tiers.into_iter().flat_map(|tiers| layouts().map(|layout| (tiers, layout)));
    for (tiers, (layout, asynchronous)) in tiers::some("training::offload_cuda::checkpoints", all, [1, 2]) {
        let dir = tempfile::tempdir().unwrap();
        let saving = Saving { layout, asynchronous, ..saving(dir.path()) };
        let away = with_activations(offloaded(saved(cell(), saving), tiers, 1), tiers[0], 1);
        let what = format!("{tiers:?}, {layout:?}, async {asynchronous}");
        let whole = course(&away);
        assert_eq!(bits_of(&whole.steps), bits_of(&reference.steps), "{what}");
        assert_eq!(whole.digest, reference.digest, "{what}");
        // Whoever goes on may keep it elsewhere.
        let here = Cell { memory: cell().memory, ..away.clone() };
        let both = [(here, 2), (away, 4)];
        for (cell, from) in tiers::some("training::offload_cuda::checkpoints (where)", both, [1, 2]) {
            assert_goes_on(&whole, &cell, dir.path(), from, &what);
        }
    }
}

/// Units are updated while the device goes backward.
#[test]
fn delayed_updates_change_no_bit_on_cuda() {
    let delayed = |mut cell: Cell| {
        cell.train.delayed_update = 1;
        cuda(cell)
    };
    let reference = run(&delayed(on(few(), Strategy::Ddp, 2, 1)));
    let test = "training::offload_cuda::delayed_updates_change_no_bit";
    for (at, (strategy, shard, tiers)) in tiers::some(test, from(8, combinations(2).enumerate()), [2, 5]) {
        let cell = offloaded(delayed(on(few(), strategy, 2, shard)), tiers, at % 3);
        assert_same(&reference, &cell, &format!("{} by {shard}, {tiers:?}", strategy.name()));
    }
}

#[test]
fn evicted_tensors_go_and_come_on_cuda() {
    let tiers = [MemoryTier::Host, MemoryTier::Disk].into_iter().enumerate();
    for (at, home) in tiers::some("training::offload_cuda::evicted_tensors", tiers, [1, 2]) {
        let mut cell = cuda(on(few(), [Strategy::Zero3, Strategy::Ddp][at], 2, 1));
        (cell.model.num_hidden_layers, cell.train.accumulation) = (5, 2);
        (cell.train.clip_norm, cell.train.lr) = (0.01, 1e-3);
        let reference = run(&cell);
        let mut full = cell.clone();
        full.memory.checkpointing = Checkpointing::Full;
        let peak = |cell: &Cell| estimate(cell).memory().total_peak();
        let capacity = (peak(&cell) + peak(&full)) / 2;
        (cell.memory.checkpointing, cell.memory.capacity) = (Checkpointing::Evict, Some(capacity));
        let away = with_activations(cell, home, 1);
        assert!(peak(&away) <= capacity && !estimate(&away).moves.is_empty(), "{home:?}");
        assert_same(&reference, &away, &format!("{home:?}"));
        assert_as_planned(&away, &format!("{home:?}"));
    }
}
