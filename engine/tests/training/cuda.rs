//! The engine on CUDA: its kernels run on the processor here, in queues that do their work as late as they may, so that an
//! order which is left to chance shows as other numbers.

use crate::training::accounting::{assert_as_planned, small};
use crate::training::identity::{assert_same, odd, strategies};
use crate::training::support::*;
use zbench_engine::config::*;
use zbench_kernels::DType;
use zbench_test_tiers::{self as tiers, Tier, tier};

/// Fewer tokens in the fast tier: every thread of a kernel is imitated.
pub fn shrunk(mut cell: Cell) -> Cell {
    if tier() == Tier::Fast {
        (cell.train.seq_len, cell.train.micro_batch) = (7, 1);
    }
    cell
}

/// [`odd`], in the fast tier with less to imitate.
pub fn few() -> Cell {
    let mut cell = shrunk(odd());
    if tier() == Tier::Fast {
        (cell.model.num_hidden_layers, cell.train.steps) = (2, 2);
    }
    cell
}

/// The cell on CUDA.
fn cuda(mut cell: Cell) -> Cell {
    cell.hardware.device = DeviceKind::Cuda;
    cell
}

/// Losses, the first step's gradients and the last weights, each no further from the other's than a share of it.
fn assert_near(cell: &Cell, what: &str, share: f64) {
    let (host, device) = (run(cell), run(&cuda(cell.clone())));
    for (x, y) in host.steps.iter().zip(&device.steps) {
        assert!((x.loss - y.loss).abs() <= share * x.loss, "{what}: step {}: loss {} and {}", x.step, x.loss, y.loss);
        let norms = (x.grad_norm, y.grad_norm);
        assert!((norms.0 - norms.1).abs() <= 2.0 * share * norms.0, "{what}: step {}: norms {norms:?}", x.step);
    }
    assert_eq!(host.gradients.len(), device.gradients.len());
    // What is nothing but rounding has no direction (a bias of keys adds the same to all scores of a query; a window of one key
    // leaves queries no choice), and AdamW makes whole steps of it.
    let mut noise = Vec::new();
    for ((name, x), (_, y)) in host.gradients.iter().zip(&device.gradients) {
        if x != y && x.iter().chain(y).all(|x| x.abs() < 1e-7) {
            noise.push(name);
            continue;
        }
        assert!(distance(y, x) <= 10.0 * share, "{what}: gradient of {name}: {}", distance(y, x));
    }
    assert!(2 * noise.len() < host.gradients.len(), "{what}: too little has a gradient: {noise:?} have none");
    for ((name, x), (_, y)) in host.weights.iter().zip(&device.weights).filter(|((name, _), _)| !noise.contains(&name))
    {
        assert!(distance(y, x) <= 10.0 * share, "{what}: {name}: {}", distance(y, x));
    }
}

#[test]
fn every_form_computes_what_the_processor_computes() {
    let forms = forms();
    let all = (0..forms.len()).flat_map(|form| [(form, form % 2), (form, 1 - form % 2)]);
    for (form, naive) in tiers::some("training::cuda::every_form_computes_what_the_processor_computes", all, [2, 9]) {
        let mut cell = formed(few(), forms[form]);
        (cell.train.clip_norm, cell.train.lr) = (0.05, 1e-3);
        cell.memory.attention = [AttentionKind::Flash, AttentionKind::Naive][naive];
        assert_near(&cell, &format!("{}, {:?}", forms[form].0, cell.memory.attention), 1e-4);
    }
}

/// Memory is full of NaN when it is handed out, where work is done as soon as it is asked for.
#[test]
fn what_was_never_written_is_never_read() {
    let formed = forms().into_iter().map(|form| (form.0.to_string(), cuda(formed(few(), form))));
    let sharded =
        strategies(2).into_iter().map(|(strategy, shard)| (strategy, shard, cuda(on(few(), strategy, 2, shard))));
    let sharded = sharded.map(|(strategy, shard, cell)| (format!("{} by {shard}", strategy.name()), cell));
    let test = "training::cuda::what_was_never_written_is_never_read";
    for (what, cell) in tiers::some(test, formed.chain(sharded), [2, 5]) {
        let (late, prompt) = (run(&cell), promptly(|| run(&cell)));
        let losses = |ran: &Ran| ran.steps.iter().map(|step| (step.loss, step.grad_norm)).collect::<Vec<_>>();
        assert!(prompt.steps.iter().all(|step| step.loss.is_finite()), "{what}: {:?}", losses(&prompt));
        assert_eq!(losses(&late), losses(&prompt), "{what}");
        assert!(late.weights == prompt.weights, "{what}: the weights differ");
    }
}

#[test]
fn experts_compute_what_the_processor_computes() {
    for (name, mut cell) in tiers::some("training::cuda::experts", expert_cells(few()), [1, 3]) {
        (cell.train.clip_norm, cell.train.lr) = (0.05, 1e-3);
        assert_near(&cell, name, 1e-4);
    }
}

#[test]
fn half_precision_is_as_near_as_it_can_be() {
    let test = "training::cuda::half_precision_is_as_near_as_it_can_be";
    for dtype in tiers::some(test, [DType::Bf16, DType::F16], [1, 2]) {
        let mut cell = shrunk(synthetic());
        cell.precision = Precision::mixed(dtype);
        cell.train.steps = tiers::cases(&format!("{test} (steps)"), [1, 4, 4]) as usize;
        cell.train.lr = 1e-3;
        assert_near(&cell, &format!("mixed {dtype}"), 1e-2);
    }
}

/// The 20 steps that PyTorch made too; fewer in the fast tier.
#[test]
fn a_whole_run_follows_the_processors() {
    let mut cell = llama_fixture();
    cell.train.steps = tiers::cases("training::cuda::a_whole_run_follows_the_processors (steps)", [2, 20, 20]) as usize;
    assert_near(&cell, "a whole run", 1e-4);
}

#[test]
fn every_strategy_gives_the_same_bits_on_one_device() {
    let test = "training::cuda::every_strategy_gives_the_same_bits_on_one_device";
    for ranks in tiers::some(&format!("{test} (ranks)"), [2, 3, 4, 1], [1, 1]) {
        let reference = run(&cuda(on(few(), Strategy::Ddp, ranks, 1)));
        for (strategy, shard) in tiers::some(test, strategies(ranks), [3, 12]) {
            let what = format!("{} on {ranks} ranks by {shard}", strategy.name());
            assert_same(&reference, &cuda(on(few(), strategy, ranks, shard)), &what);
        }
    }
}

#[test]
fn recomputing_and_accumulating_change_no_bits() {
    let test = "training::cuda::recomputing_and_accumulating_change_no_bits";
    for accumulation in tiers::some(test, [2, 1], [1, 2]) {
        let mut base = cuda(on(few(), Strategy::Zero3, 2, 1));
        base.train.accumulation = accumulation;
        let reference = run(&base);
        let policies = [Checkpointing::Full, Checkpointing::Selective, Checkpointing::Every(2)];
        for policy in tiers::some(&format!("{test} (policies)"), policies, [1, 3]) {
            let mut cell = base.clone();
            cell.memory.checkpointing = policy.clone();
            assert_same(&reference, &cell, &format!("{policy:?}, {accumulation} micro-batches"));
        }
    }
}

#[test]
fn memory_is_what_the_plan_says() {
    let all = Strategy::ALL.into_iter().flat_map(|strategy| [(strategy, 1, false), (strategy, 2, true)]);
    for (strategy, accumulation, naive) in tiers::some("training::cuda::memory_is_what_the_plan_says", all, [2, 6]) {
        let mut cell = cuda(on(shrunk(small()), strategy, 2, 1));
        cell.train.accumulation = accumulation;
        cell.memory.attention = if naive { AttentionKind::Naive } else { AttentionKind::Flash };
        assert_as_planned(&cell, &format!("{} on cuda, {accumulation}", strategy.name()));
    }
}
