//! A plan performs some of the blocks that are alike and counts the others: the same as performing all.

use crate::training::accounting::{policies, small};
use crate::training::recording::Recording;
use crate::training::support::*;
use std::sync::atomic::Ordering;
use zbench_engine::config::*;
use zbench_engine::hardware;
use zbench_engine::model::{self, FlatKind, Layout};
use zbench_engine::plan::Plan;
use zbench_kernels::{Cpu, DType};

/// Cells of every form, with adapters of every kind, with experts in all blocks and in some.
fn cells() -> Vec<(String, Cell)> {
    let mut base = small();
    base.model.num_hidden_layers = 24;
    let mut cells: Vec<(String, Cell)> = expert_cells(base.clone()).into_iter().map(|(n, c)| (n.into(), c)).collect();
    cells.extend(forms().into_iter().map(|form| (form.0.to_string(), formed(base.clone(), form))));
    for (name, change) in adapters().into_iter().chain([dora()]) {
        let mut cell = base.clone();
        change(&mut cell);
        cells.push((name.into(), cell));
    }
    // Blocks of two kinds, by what they see.
    let mut windows = base.clone();
    (windows.model.sliding_window, windows.model.max_window_layers) = (Some(4), 9);
    windows.memory.attention = AttentionKind::Naive;
    cells.push(("windows".into(), windows));
    let mut kept = base.clone();
    kept.memory.prepack = true;
    cells.push(("prepacked".into(), kept));
    cells.push(("plain".into(), base));
    cells
}

#[test]
fn blocks_that_are_counted_are_blocks_that_are_performed() {
    for (name, cell) in cells() {
        for policy in policies().into_iter().chain([Checkpointing::Sqrt]) {
            for (strategy, ranks, shard) in [(Strategy::Ddp, 1, 1), (Strategy::Zero3, 4, 4), (Strategy::Hsdp, 4, 2)] {
                let mut cell = on(cell.clone(), strategy, ranks, shard);
                cell.train.accumulation = 3;
                cell.memory.checkpointing = policy.clone();
                same_block_by_block(&cell, &format!("{name}: {} {policy:?}", strategy.name()));
            }
        }
    }
}

/// With any number of blocks, and of units that are gathered ahead: also where too few are alike for any to be left out.
#[test]
fn whatever_the_number_of_blocks_those_that_are_counted_are_performed() {
    for strategy in Strategy::ALL {
        for prefetch in [0, 1, 2, 5] {
            for blocks in (1..16).chain([33]) {
                let mut cell = on(small(), strategy, 4, if strategy.is_hybrid() { 2 } else { 1 });
                cell.model.num_hidden_layers = blocks;
                cell.parallel.prefetch = prefetch;
                cell.precision = Precision::mixed(DType::Bf16);
                let evaluation = Some(Evaluation { every: 1, batches: 2, share: 0.1 });
                cell.watch = Some(Watch { evaluation, ..Watch::default() });
                for policy in [Checkpointing::Full, Checkpointing::None, Checkpointing::Every(3)] {
                    cell.memory.checkpointing = policy.clone();
                    let what = format!("{} of {blocks} blocks, prefetch {prefetch}, {policy:?}", strategy.name());
                    same_block_by_block(&cell, &what);
                }
            }
        }
    }
}

fn same_block_by_block(cell: &Cell, what: &str) {
    let kernels = hardware::planner(cell).unwrap();
    match Plan::new(cell, &*kernels) {
        // What is prepacked is whole at home.
        Err(error) if error.key == "memory.prepack" && cell.parallel.strategy != Strategy::Ddp => {}
        plan => {
            let plan = plan.unwrap();
            assert_eq!(plan.estimate, plan.estimate_block_by_block(cell, &*kernels), "{what}");
        }
    }
}

/// The head works in chunks of tokens: a plan states two of those that are alike, however many there are.
#[test]
fn a_batch_of_any_size_is_planned_in_the_same_number_of_statements() {
    let planned = |micro_batch: usize, listed: bool| {
        let mut cell = small();
        cell.train.micro_batch = micro_batch;
        let kernels = Recording::new(Cpu::new(1));
        let plan = Plan::new(&cell, &kernels).unwrap();
        let asked = kernels.asked.load(Ordering::Relaxed);
        if listed {
            assert_eq!(plan.estimate, plan.estimate_block_by_block(&cell, &kernels), "micro_batch {micro_batch}");
        }
        asked
    };
    // A chunk is 2^23 / 61 tokens, so these are 12, 12, 99 and 203,008 whole chunks and a rest.
    let few = planned(1 << 17, true);
    for (micro_batch, listed) in [((1 << 17) + 1, true), (1 << 20, true), (1 << 31, false)] {
        assert_eq!(planned(micro_batch, listed), few, "micro_batch {micro_batch}");
    }
}

/// Of alike blocks a plan performs so many, however deep the model is.
#[test]
fn a_model_of_any_depth_is_planned_in_the_same_number_of_operations() {
    for strategy in Strategy::ALL {
        let policies = [Checkpointing::Full, Checkpointing::None, Checkpointing::Every(2)];
        for (prefetch, policy) in [0, 1, 2, 3].into_iter().flat_map(|ahead| policies.clone().map(|p| (ahead, p))) {
            let planned = |blocks: usize| {
                let mut cell = on(small(), strategy, 4, if strategy.is_hybrid() { 2 } else { 1 });
                cell.model.num_hidden_layers = blocks;
                cell.parallel.prefetch = prefetch;
                cell.memory.checkpointing = policy.clone();
                let kernels = Recording::new(Cpu::new(1));
                Plan::new(&cell, &kernels).unwrap();
                kernels.asked.load(Ordering::Relaxed)
            };
            let what = format!("{}, prefetch {prefetch}, {policy:?}", strategy.name());
            let few = planned(30);
            assert!(few > planned(1), "{what}");
            assert_eq!([planned(40), planned(500)], [few; 2], "{what}");
        }
    }
}

/// Every block is like the first of its kind, in the tensors that plans and products know.
#[test]
fn blocks_are_like_where_only_their_place_in_the_model_differs() {
    for (name, cell) in cells() {
        let layout = Layout::new(&cell, 2);
        for (index, like) in layout.same_as.iter().enumerate() {
            let (one, other) = (&layout.units[index + 1], &layout.units[like + 1]);
            assert!(*like <= index && layout.same_as[*like] == *like, "{name}: {:?}", layout.same_as);
            let places =
                |unit: &model::Unit| unit.tensors.iter().map(|t| (t.place, t.shape.clone())).collect::<Vec<_>>();
            assert_eq!(places(one), places(other), "{name}: {index} and {like}");
        }
        let kinds = layout.same_as.iter().enumerate().filter(|(index, like)| index == *like).count();
        assert!(kinds <= 2, "{name}: {kinds} kinds of blocks");
        for part in FlatKind::ALL {
            assert_eq!(model::parameters(&cell, part), Layout::new(&cell, 1).parameters(part), "{name}: {part:?}");
        }
    }
}
