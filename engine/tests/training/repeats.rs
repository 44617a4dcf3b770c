//! A plan states one block of each kind and repeats what it did for the others: the same as stating them all.

use crate::training::accounting::{policies, small};
use crate::training::recording::Recording;
use crate::training::support::*;
use std::sync::atomic::Ordering;
use zbench_engine::config::*;
use zbench_engine::hardware;
use zbench_engine::model::{self, FlatKind, Layout};
use zbench_engine::plan::Plan;
use zbench_kernels::Cpu;

/// Cells of every form, with adapters of every kind, with experts in all blocks and in some.
fn cells() -> Vec<(String, Cell)> {
    let mut base = small();
    base.model.num_hidden_layers = 7;
    let mut cells: Vec<(String, Cell)> = expert_cells(base.clone()).into_iter().map(|(n, c)| (n.into(), c)).collect();
    cells.extend(forms().into_iter().map(|form| (form.0.to_string(), formed(base.clone(), form))));
    for (name, change) in adapters().into_iter().chain([dora()]) {
        let mut cell = base.clone();
        change(&mut cell);
        cells.push((name.into(), cell));
    }
    // Blocks of two kinds, by what they see.
    let mut windows = base.clone();
    (windows.model.sliding_window, windows.model.max_window_layers) = (Some(4), 3);
    windows.memory.attention = AttentionKind::Naive;
    cells.push(("windows".into(), windows));
    let mut kept = base.clone();
    kept.memory.prepack = true;
    cells.push(("prepacked".into(), kept));
    cells.push(("plain".into(), base));
    cells
}

#[test]
fn blocks_repeated_are_blocks_stated() {
    for (name, cell) in cells() {
        for policy in policies().into_iter().chain([Checkpointing::Sqrt]) {
            for (strategy, ranks, shard) in [(Strategy::Ddp, 1, 1), (Strategy::Zero3, 4, 4), (Strategy::Hsdp, 4, 2)] {
                let mut cell = on(cell.clone(), strategy, ranks, shard);
                cell.train.accumulation = 3;
                cell.memory.checkpointing = policy.clone();
                let kernels = hardware::planner(&cell).unwrap();
                // What is prepacked is whole at home.
                let plan = match Plan::new(&cell, &*kernels) {
                    Err(error) if error.key == "memory.prepack" && strategy != Strategy::Ddp => continue,
                    plan => plan.unwrap(),
                };
                let what = format!("{name}: {} {policy:?}", strategy.name());
                assert_eq!(plan.estimate, plan.estimate_block_by_block(&cell, &*kernels), "{what}");
            }
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
        assert!(kinds <= 2, "{name}: {kinds} kinds of 7 blocks");
        for part in FlatKind::ALL {
            assert_eq!(model::parameters(&cell, part), Layout::new(&cell, 1).parameters(part), "{name}: {part:?}");
        }
    }
}
