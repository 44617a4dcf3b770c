//! Floating-point operations of a step, term by term, and how many matrix products a step asks the kernels for.
//!
//! Narayanan et al. (2021), section 5.1 and appendix: 2 m n k a product, backward twice forward, attention's scores by their causal half
//! (Megatron-LM's `num_floating_point_operations`). Chowdhery et al. (2022), appendix B: 6 N + 12 L H Q T a token.

use super::*;
use crate::training::accounting::small;
use crate::training::recording::Recording;
use std::collections::BTreeMap;
use std::sync::Arc;
use zbench_engine::run::launch_ranks::with_ranks;
use zbench_kernels::{Cpu, Kernels, Op};
use zbench_test_tiers as tiers;

/// Products of one token with a block's matrices, forward: 2 in out each.
fn products(sizes: Sizes) -> Vec<(&'static str, usize)> {
    let Sizes { h, f, q, kv, .. } = sizes;
    vec![
        ("q_proj", 2 * h * q),
        ("k_proj", 2 * h * kv),
        ("v_proj", 2 * h * kv),
        ("o_proj", 2 * q * h),
        ("gate_proj", 2 * h * f),
        ("up_proj", 2 * h * f),
        ("down_proj", 2 * f * h),
    ]
}

/// What a policy makes again of a block's products, and of attention.
fn again(policy: &Checkpointing) -> &'static [&'static str] {
    match policy {
        Checkpointing::None | Checkpointing::Selective => &[],
        // All but the last one, whose result is the next block's input.
        _ => &["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "attention core"],
    }
}

fn cells() -> Vec<(String, Cell)> {
    let mut cells = Vec::new();
    for (strategy, ranks) in [(Strategy::Ddp, 1), (Strategy::Zero3, 4), (Strategy::HsdpFullOptimizer, 4)] {
        for policy in [Checkpointing::None, Checkpointing::Selective, Checkpointing::Full] {
            for attention in [AttentionKind::Flash, AttentionKind::Naive] {
                let mut cell = on(small(), strategy, ranks, ranks.min(2));
                (cell.memory.checkpointing, cell.memory.attention) = (policy.clone(), attention);
                (cell.train.accumulation, cell.train.steps) = (3, 1);
                cells.push((format!("{} {policy:?} {attention:?}", strategy.name()), cell));
            }
        }
    }
    cells
}

#[test]
fn every_term_is_its_product() {
    for (what, cell) in cells() {
        let sizes = Sizes::of(&cell);
        let Sizes { h, q, v, layers, s, .. } = sizes;
        let tokens = sizes.n() * cell.train.accumulation * cell.parallel.ranks;
        // Two products of the scores' square in forward, half of it: 2 * 2 q s / 2 a token.
        let core = ("attention core", 2 * q * s);
        let forward: Vec<_> = products(sizes).into_iter().chain([core]).collect();
        let again = again(&cell.memory.checkpointing);
        let mut expected = BTreeMap::new();
        for (name, each) in &forward {
            let all = (each * tokens * layers) as f64;
            expected.insert(format!("forward {name}"), all);
            expected.insert(format!("backward {name}"), 2.0 * all);
            if again.contains(name) {
                expected.insert(format!("recompute {name} (hardware only)"), all);
            }
        }
        // Forward and both products of backward are one action.
        expected.insert("forward lm_head".into(), (6 * h * v * tokens) as f64);
        // Dao et al. (2022): backward makes the scores again, one product of five.
        if cell.memory.attention == AttentionKind::Flash {
            let scores = (q * s * tokens * layers) as f64;
            expected.insert("attention scores again in backward (hardware only)".into(), scores);
        }
        let flops = estimate(&cell).flops;
        let found: BTreeMap<String, f64> = flops.ledger.iter().cloned().collect();
        assert_eq!(found, expected, "{what}");
        let of = |hardware: bool| expected.iter().filter(move |(name, _)| name.contains("(hardware only)") == hardware);
        let [model, more] = [false, true].map(|hardware| of(hardware).map(|(_, flops)| flops).sum::<f64>());
        assert_eq!([flops.model, flops.hardware], [model, model + more], "{what}");
        // 6 for each parameter of a matrix, the embedding's table and the norms aside, and attention's.
        let matrices = layers * products(sizes).iter().map(|(_, each)| each / 2).sum::<usize>() + h * v;
        assert_eq!(flops.model, (tokens * (6 * matrices + 6 * layers * q * s)) as f64, "{what}");
        let all = matrices + v * h + (2 * layers + 1) * h;
        assert_eq!(flops.palm, (tokens * (6 * all + 12 * layers * q * s)) as f64, "{what}");
        assert_eq!(flops.tokens, tokens as u64, "{what}");
    }
}

/// The products that kernels were asked for in a real step, and their multiply-adds: three for each matrix and micro-batch, and what a
/// policy makes again.
#[test]
fn a_step_asks_for_so_many_products() {
    for (what, cell) in tiers::some("training::formulas::a_step_asks_for_so_many_products", cells(), [7, 18]) {
        let sizes = Sizes::of(&cell);
        let (n, Sizes { h, v, layers, .. }) = (sizes.n(), sizes);
        let (again, micro_batches) = (again(&cell.memory.checkpointing), cell.train.accumulation);
        let repeated = products(sizes).into_iter().filter(|(name, _)| again.contains(name));
        let (mut count, mut flops) = (3, 6 * h * v * n);
        for (_, each) in products(sizes) {
            (count, flops) = (count + 3 * layers, flops + 3 * layers * each * n);
        }
        for (_, each) in repeated {
            (count, flops) = (count + layers, flops + layers * each * n);
        }
        let forwards = layers * if again.contains(&"attention core") { 2 } else { 1 };

        let ranks = cell.parallel.ranks;
        let recorders: Vec<_> = (0..ranks).map(|_| Arc::new(Recording::new(Cpu::new(1)))).collect();
        let kernels = recorders.iter().map(|recorder| recorder.clone() as Arc<dyn Kernels>).collect();
        with_ranks(&cell, &plan(&cell), kernels, |rank| {
            recorders[rank.number()].clear();
            rank.step().map(|_| ())
        })
        .unwrap();
        for recorder in recorders {
            let (mut products, mut multiplied, mut attention) = (0, 0, [0, 0]);
            for op in recorder.take() {
                match op {
                    Op::Gemm(g) => (products, multiplied) = (products + 1, multiplied + 2 * g.m * g.n * g.k),
                    Op::Attention(_) | Op::NaiveAttention(_) => attention[0] += 1,
                    Op::AttentionBackward(_) | Op::NaiveAttentionBackward(_) => attention[1] += 1,
                    _ => {}
                }
            }
            assert_eq!((products, multiplied), (micro_batches * count, micro_batches * flops), "{what}");
            assert_eq!(attention, [micro_batches * forwards, micro_batches * layers], "{what}");
        }
    }
}

/// Of experts a token multiplies with those it goes to; a frozen matrix has no gradient.
#[test]
fn experts_and_frozen_matrices_have_their_share() {
    for (name, cell) in expert_cells(small()).into_iter().filter(|(name, _)| !name.contains("a dense block")) {
        let sizes = Sizes::of(&cell);
        let Sizes { h, q, kv, v, layers, s, .. } = sizes;
        let experts = cell.model.experts.as_ref().unwrap();
        let (count, top, width) = (experts.num_experts, experts.num_experts_per_tok, experts.moe_intermediate_size);
        let matrices = layers * (h * (2 * q + 2 * kv) + h * count + top * 3 * h * width) + h * v;
        let flops = estimate(&cell).flops;
        assert_eq!(flops.model, (sizes.n() * (6 * matrices + 6 * layers * q * s)) as f64, "{name}");
    }
    let mut cell = small();
    adapted(&mut cell);
    let sizes = Sizes::of(&cell);
    let Sizes { h, f, q, kv, v, layers, s, .. } = sizes;
    let frozen = layers * (h * (2 * q + 2 * kv) + 3 * h * f) + h * v;
    let trained = layers * 2 * (h + q + f + h);
    let flops = estimate(&cell).flops;
    assert_eq!(flops.model, (sizes.n() * (4 * frozen + 6 * trained + 6 * layers * q * s)) as f64);
}
