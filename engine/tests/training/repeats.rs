//! A plan performs some of the blocks that are alike and counts the others: the same as performing all.

use crate::training::accounting::{policies, small};
use crate::training::recording::Recording;
use crate::training::support::*;
use std::sync::atomic::Ordering;
use zbench_engine::compute::hardware;
use zbench_engine::config::*;
use zbench_engine::model::{self, FlatKind, Layout};
use zbench_engine::plan::Plan;
use zbench_kernels::{Cpu, DType};
use zbench_test_tiers as tiers;

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
    let policies: Vec<_> = policies().into_iter().chain([Checkpointing::Sqrt]).collect();
    let (cells, ways) = (cells(), [(Strategy::Ddp, 1, 1), (Strategy::Zero3, 4, 4), (Strategy::Hsdp, 4, 2)]);
    let sizes = [cells.len(), policies.len(), ways.len()];
    for [cell, policy, way] in tiers::combinations("training::repeats::blocks_that_are_counted", sizes) {
        let ((name, cell), (strategy, ranks, shard)) = (&cells[cell], ways[way]);
        let mut cell = on(cell.clone(), strategy, ranks, shard);
        cell.train.accumulation = 3;
        cell.memory.checkpointing = policies[policy].clone();
        same_block_by_block(&cell, &format!("{name}: {} {:?}", strategy.name(), policies[policy]));
    }
}

/// With any number of blocks, and of units that are gathered ahead: also where too few are alike for any to be left out.
#[test]
fn whatever_the_number_of_blocks_those_that_are_counted_are_performed() {
    let (blocks, prefetch) = ((1..16).chain([33]).collect::<Vec<_>>(), [0, 1, 2, 5]);
    let policies = [Checkpointing::Full, Checkpointing::None, Checkpointing::Every(3)];
    let sizes = [Strategy::ALL.len(), prefetch.len(), blocks.len(), policies.len()];
    for [strategy, ahead, count, policy] in tiers::combinations("training::repeats::whatever_the_number", sizes) {
        let (strategy, prefetch, blocks) = (Strategy::ALL[strategy], prefetch[ahead], blocks[count]);
        let mut cell = on(small(), strategy, 4, if strategy.is_hybrid() { 2 } else { 1 });
        cell.model.num_hidden_layers = blocks;
        cell.parallel.prefetch = prefetch;
        cell.precision = Precision::mixed(DType::Bf16);
        let evaluation = Some(Evaluation { every: 1, batches: 2, share: 0.1 });
        cell.watch = Some(Watch { evaluation, ..Watch::default() });
        let policy = &policies[policy];
        cell.memory.checkpointing = policy.clone();
        let what = format!("{} of {blocks} blocks, prefetch {prefetch}, {policy:?}", strategy.name());
        same_block_by_block(&cell, &what);
    }
}

fn same_block_by_block(cell: &Cell, what: &str) {
    let kernels = hardware::planner(cell).unwrap();
    match Plan::new(cell, &*kernels) {
        // What is prepacked is whole at home.
        Err(error) if error.key == "memory.prepack" && cell.parallel.strategy != Strategy::Ddp => {}
        plan => {
            let plan = plan.unwrap();
            assert_eq!(plan.stage_plan_of(0).estimate, plan.estimate_block_by_block(cell, &*kernels, 0), "{what}");
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
            assert_eq!(
                plan.stage_plan_of(0).estimate,
                plan.estimate_block_by_block(&cell, &kernels, 0),
                "micro_batch {micro_batch}"
            );
        }
        asked
    };
    // A chunk is 2^23 / 61 tokens, so these are 12, 12, 99 and 203,008 whole chunks and a rest.
    let few = planned(1 << 17, true);
    for (micro_batch, listed) in [((1 << 17) + 1, true), (1 << 20, true), (1 << 31, false)] {
        assert_eq!(planned(micro_batch, listed), few, "micro_batch {micro_batch}");
    }
}

/// Cells drawn at random: kinds of blocks in any order, with everything else that a schedule depends on.
#[test]
fn whatever_the_cell_blocks_that_are_counted_are_performed() {
    for seed in 0..u64::from(tiers::cases("training::repeats::whatever_the_cell", [150, 500, 1500])) {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let strategy = Strategy::ALL[below(Strategy::ALL.len())];
        let mut base = small();
        let layers = 1 + below(44);
        base.model.num_hidden_layers = layers;
        match below(5) {
            0 => {
                let mut all = expert_cells(base);
                base = all.swap_remove(below(all.len())).1;
                let is_mixtral = base.model.family == "mixtral";
                let experts = base.model.experts.as_mut().unwrap();
                if !is_mixtral {
                    experts.decoder_sparse_step = 1 + below(7);
                    experts.mlp_only_layers = (0..below(4)).map(|_| below(layers)).collect();
                    experts.mlp_only_layers.sort_unstable();
                    experts.mlp_only_layers.dedup();
                }
            }
            1 => {
                (base.model.sliding_window, base.model.max_window_layers) = (Some(4), below(layers + 1));
                base.memory.attention = AttentionKind::Naive;
            }
            2 => base = formed(base, forms().swap_remove(below(forms().len()))),
            3 => {
                let mut all: Vec<_> = adapters().into_iter().chain([dora()]).collect();
                all.swap_remove(below(all.len())).1(&mut base);
            }
            _ => {}
        }
        let mut cell = on(base, strategy, 4, if strategy.is_hybrid() { 2 } else { 1 });
        cell.parallel.prefetch = below(5);
        cell.train.accumulation = 1 + below(4);
        cell.model.tie_word_embeddings = below(2) == 0;
        cell.memory.checkpointing = match below(6) {
            0 => Checkpointing::None,
            1 => Checkpointing::Full,
            2 => Checkpointing::Selective,
            3 => Checkpointing::Sqrt,
            4 => Checkpointing::Every(1 + below(6)),
            _ => Checkpointing::Keep(vec![SavedTensor::Attention, SavedTensor::MlpNorm]),
        };
        if below(2) == 0 {
            cell.precision = Precision::mixed(DType::Bf16);
        }
        if below(3) == 0 {
            cell.precision.compute = DType::Bf16;
        }
        if below(2) == 0 {
            let evaluation = Some(Evaluation { every: 1, batches: 1 + below(3), share: 0.1 });
            cell.watch = Some(Watch { evaluation, ..Watch::default() });
        }
        cell.memory.prepack = below(4) == 0;
        let what = format!("seed {seed}: {} of {layers} blocks, {:?}", strategy.name(), cell.memory.checkpointing);
        let kernels = hardware::planner(&cell).unwrap();
        match Plan::new(&cell, &*kernels) {
            Err(error) => assert_eq!(error.key, "memory.prepack", "{what}: {error}"),
            Ok(plan) => {
                assert_eq!(plan.stage_plan_of(0).estimate, plan.estimate_block_by_block(&cell, &*kernels, 0), "{what}")
            }
        }
    }
}

/// Of alike blocks a plan performs so many, however deep the model is.
#[test]
fn a_model_of_any_depth_is_planned_in_the_same_number_of_operations() {
    let policies = [Checkpointing::Full, Checkpointing::None, Checkpointing::Every(2)];
    let sizes = [Strategy::ALL.len(), policies.len(), 4];
    for [strategy, policy, prefetch] in tiers::combinations("training::repeats::a_model_of_any_depth", sizes) {
        let (strategy, policy) = (Strategy::ALL[strategy], &policies[policy]);
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

/// The same where blocks are of two kinds, by turns or one after the other.
#[test]
fn patterns_of_blocks_are_left_out_too() {
    let planned = |change: &dyn Fn(&mut Cell)| {
        [24, 48, 96].map(|blocks| {
            let mut cell = on(small(), Strategy::Ddp, 4, 1);
            cell.model.num_hidden_layers = blocks;
            change(&mut cell);
            let kernels = Recording::new(Cpu::new(1));
            Plan::new(&cell, &kernels).unwrap();
            kernels.asked.load(Ordering::Relaxed)
        })
    };
    let halves = planned(&|cell| {
        (cell.model.sliding_window, cell.model.max_window_layers) = (Some(4), cell.model.num_hidden_layers / 2);
        cell.memory.attention = AttentionKind::Naive;
    });
    assert_eq!(halves, [halves[0]; 3], "windows in half of the blocks");
    for step in [2, 3, 4] {
        let experts = planned(&|cell| {
            let blocks = cell.model.num_hidden_layers;
            *cell = expert_cells(cell.clone()).swap_remove(1).1;
            cell.model.num_hidden_layers = blocks;
            let experts = cell.model.experts.as_mut().unwrap();
            (experts.mlp_only_layers, experts.decoder_sparse_step) = (vec![], step);
        });
        assert_eq!(experts, [experts[0]; 3], "experts in one of {step} blocks");
    }
}

/// Every block is like the first of its kind, in the tensors that plans and products know.
#[test]
fn blocks_are_like_where_only_their_place_in_the_model_differs() {
    for (name, cell) in cells() {
        let layout = Layout::new(&cell, 2);
        for (index, like) in layout.same_as.iter().enumerate() {
            let (one, other) = (&layout.units[index], &layout.units[*like]);
            assert!(*like <= index && layout.same_as[*like] == *like, "{name}: {:?}", layout.same_as);
            let places =
                |unit: &model::Unit| unit.tensors.iter().map(|t| (t.place, t.shape.clone())).collect::<Vec<_>>();
            assert_eq!(places(one), places(other), "{name}: {index} and {like}");
        }
        let kinds = layout.same_as.iter().enumerate().filter(|(index, like)| index == *like).count();
        assert!(kinds <= 4, "{name}: {kinds} kinds of layers, of which two are the embedding and the head");
        for part in FlatKind::ALL {
            assert_eq!(model::parameters(&cell, part), Layout::new(&cell, 1).parameters(part), "{name}: {part:?}");
        }
    }
}
