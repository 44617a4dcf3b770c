//! Activations: what a block keeps for backward, tensor by tensor, and the widest moment of a step.
//!
//! After Korthikanti et al. (2022), "Reducing Activation Recomputation in Large Transformer Models", section 4.1, which adds up a block's
//! tensors in the same way (34 s b h + 5 a s^2 b for GPT's, with dropout masks and 16 bits). zbench's blocks have no masks, flash attention
//! keeps a number for each row in place of the scores, and norms keep their statistics: the list of docs/activation-checkpointing.md.

use super::*;
use crate::training::accounting::small;
use std::sync::Arc;
use zbench_engine::plan::Plan;
use zbench_engine::run::launch_ranks::with_ranks;
use zbench_kernels::Category;
use zbench_kernels_testing::Reference;
use zbench_test_tiers as tiers;

/// The tensors of a block that backward reads, in the order in which forward makes them; bytes of each.
struct Block {
    input: u64,
    attention_norm: [u64; 2],
    qkv: u64,
    /// Queries and keys from before their norms, where they have such; they are kept with `qkv`.
    raw: u64,
    attention: u64,
    residual: u64,
    mlp_norm: [u64; 2],
    gate: u64,
    up: u64,
    /// Where tokens went, of experts; kept with `gate` and `up`.
    routing: u64,
    activation: u64,
}

impl Block {
    fn of(cell: &Cell) -> Block {
        let (sizes, form, c) = (Sizes::of(cell), cell.model.form, cell.precision.compute);
        let Sizes { h, f, a, q, kv, s, b, .. } = sizes;
        let (n, wide) = (sizes.n(), DType::F32);
        // One reciprocal deviation a row; LayerNorm (Ba et al., 2016) has the mean too.
        let each = if form.norm == NormKind::Layer { 2 } else { 1 };
        let norm = [bytes(c, n * h), bytes(wide, n * each)];
        let statistics = match cell.memory.attention {
            // Dao et al. (2022), section 3.1: the log-sum-exp of each row of scores.
            AttentionKind::Flash => bytes(wide, b * a * s),
            AttentionKind::Naive => bytes(c, b * a * s * s),
        };
        let parallel = form.order != Order::Sequential;
        let gated = matches!(form.mlp, Mlp::Swiglu | Mlp::GegluTanh);
        let experts = cell.model.experts.as_ref();
        // A token has a row at each of its experts.
        let rows = n * experts.map_or(1, |experts| experts.num_experts_per_tok);
        let width = experts.map_or(f, |experts| experts.moe_intermediate_size);
        let routing = experts.map_or(0, |experts| {
            let (count, top) = (experts.num_experts, experts.num_experts_per_tok);
            // Logits, weights; the expert of each choice, the choice of each row and the row of each choice, where experts begin.
            bytes(c, n * count) + bytes(wide, n * top) + bytes(DType::U32, 3 * n * top + count + 1)
        });
        let heads = |elements: usize| bytes(c, n * elements) + bytes(wide, n * elements / cell.model.head_dim * each);
        Block {
            input: bytes(c, n * h),
            attention_norm: norm,
            qkv: bytes(c, n * q) + 2 * bytes(c, n * kv),
            raw: if form.qk_norm { heads(q) + heads(kv) } else { 0 },
            attention: bytes(c, n * q) + statistics,
            residual: if parallel { 0 } else { bytes(c, n * h) },
            mlp_norm: if form.order == Order::Parallel { [0, 0] } else { norm },
            gate: if gated || experts.is_some() { bytes(c, rows * width) } else { 0 },
            up: bytes(c, rows * width),
            routing,
            // No gradient reads it where `down` is frozen and has no adapter.
            activation: match cell.lora.rank > 0 && !cell.lora.targets.contains(&Linear::DownProj) {
                true => 0,
                false => bytes(c, rows * width),
            },
        }
    }

    fn tensor(&self, which: SavedTensor) -> u64 {
        match which {
            SavedTensor::AttentionNorm => self.attention_norm.iter().sum(),
            SavedTensor::Qkv => self.qkv + self.raw,
            SavedTensor::Attention => self.attention,
            SavedTensor::Residual => self.residual,
            SavedTensor::MlpNorm => self.mlp_norm.iter().sum(),
            SavedTensor::GateUp => self.gate + self.up + self.routing,
            SavedTensor::Activation => self.activation,
        }
    }

    /// What a policy keeps of each block from forward to backward.
    fn kept(&self, policy: &Checkpointing) -> u64 {
        let all = [
            SavedTensor::AttentionNorm,
            SavedTensor::Qkv,
            SavedTensor::Attention,
            SavedTensor::Residual,
            SavedTensor::MlpNorm,
            SavedTensor::GateUp,
            SavedTensor::Activation,
        ];
        let named: &[SavedTensor] = match policy {
            Checkpointing::None => &all,
            Checkpointing::Selective => {
                &[SavedTensor::Qkv, SavedTensor::Attention, SavedTensor::Residual, SavedTensor::GateUp]
            }
            Checkpointing::Keep(list) => list,
            _ => &[],
        };
        self.input + named.iter().map(|which| self.tensor(*which)).sum::<u64>()
    }
}

fn policies() -> Vec<Checkpointing> {
    vec![
        Checkpointing::None,
        Checkpointing::Full,
        Checkpointing::Selective,
        Checkpointing::Keep(vec![SavedTensor::AttentionNorm]),
        Checkpointing::Keep(vec![SavedTensor::Qkv, SavedTensor::Residual]),
        Checkpointing::Keep(vec![SavedTensor::Attention, SavedTensor::MlpNorm]),
        Checkpointing::Keep(vec![SavedTensor::GateUp, SavedTensor::Activation]),
    ]
}

/// The peak of activations, by who says so.
fn peaks(cell: &Cell) -> Vec<(String, u64)> {
    accounts(cell).into_iter().map(|(who, ledger, _)| (who, ledger.peak(Category::Activations))).collect()
}

/// Each block more makes the peak larger by what a block keeps: the rest of the widest moment is one block's.
fn assert_slope(cell: &Cell, blocks: usize, expected: u64, what: &str) {
    let with = |layers: usize| {
        let mut cell = cell.clone();
        (cell.model.num_hidden_layers, cell.train.steps, cell.train.untimed_steps) = (layers, 1, 0);
        peaks(&cell)
    };
    for ((who, few), (_, more)) in with(2 * blocks).into_iter().zip(with(3 * blocks)) {
        assert_eq!(more - few, expected, "{what}: {who}");
    }
}

#[test]
fn a_block_keeps_its_list_of_tensors_under_every_policy() {
    let experts = expert_cells(small()).into_iter().filter(|(name, _)| !name.contains("a dense block"));
    let formed = forms().into_iter().map(|form| (form.0, formed(small(), form)));
    let cells: Vec<_> = [("llama", small())].into_iter().chain(formed).chain(experts).collect();
    let (policies, precisions) = (policies(), [Precision::F32, Precision::mixed(DType::Bf16)]);
    let sizes = [cells.len(), 2, precisions.len(), policies.len()];
    for [cell, naive, precision, policy] in tiers::combinations("training::formulas::a_block_keeps", sizes) {
        let ((name, mut cell), policy) = (cells[cell].clone(), &policies[policy]);
        cell.precision = precisions[precision];
        cell.memory.attention = [AttentionKind::Flash, AttentionKind::Naive][naive];
        cell.memory.checkpointing = policy.clone();
        let what = format!("{name} {:?} {} {policy:?}", cell.memory.attention, cell.precision.compute);
        assert_slope(&cell, 1, Block::of(&cell).kept(policy), &what);
    }
}

/// Of k blocks the first one's input.
#[test]
fn a_segment_keeps_one_input() {
    for k in [2, 3] {
        let mut cell = small();
        cell.memory.checkpointing = Checkpointing::Every(k);
        let input = bytes(DType::F32, 26 * 24);
        assert_slope(&cell, k, input, &format!("every {k}"));
    }
}

#[test]
fn frozen_blocks_keep_less() {
    for targets in [vec![Linear::QProj], vec![Linear::DownProj]] {
        let mut cell = small();
        cell.lora = Lora { rank: 2, alpha: 4.0, targets: targets.clone(), ..Lora::default() };
        assert_slope(&cell, 1, Block::of(&cell).kept(&Checkpointing::None), &format!("{targets:?}"));
    }
}

/// The sum of docs/activation-checkpointing.md per token, where no buffer needs rounding: 64 tokens, sizes of 16 elements and more.
#[test]
fn the_sums_of_the_documentation_are_those() {
    for (c, precision) in [(4, Precision::F32), (2, Precision::mixed(DType::Bf16))] {
        let mut cell = small();
        (cell.train.seq_len, cell.train.micro_batch, cell.precision) = (32, 2, precision);
        let (hidden, q, kv, intermediate, heads) = (24, 24, 8, 40, 3);
        for (policy, per_token) in [
            (Checkpointing::None, c * (4 * hidden + 2 * q + 2 * kv + 3 * intermediate) + 4 * (heads + 2)),
            (Checkpointing::Selective, c * (2 * hidden + 2 * q + 2 * kv + 2 * intermediate) + 4 * heads),
            (Checkpointing::Full, c * hidden),
        ] {
            cell.memory.checkpointing = policy.clone();
            assert_slope(&cell, 1, 64 * per_token, &format!("{policy:?}"));
        }
    }
}

/// The widest moment of a step, of blocks that follow norm, attention, norm and MLP, by hand: what all blocks but the last keep, and the
/// last one whole (kept, or made again), with what backward adds; or the head beside what all keep.
fn widest(cell: &Cell) -> u64 {
    let (sizes, c, policy) = (Sizes::of(cell), cell.precision.compute, &cell.memory.checkpointing);
    let Sizes { h, f, q, kv, v, layers, .. } = sizes;
    let (n, block) = (sizes.n(), Block::of(cell));
    let stream = bytes(c, n * h);
    let (before, whole) = (block.kept(policy) * (layers - 1) as u64, block.kept(&Checkpointing::None));
    // The head: its input, the normalised input with its statistics, that one's gradient; logits, which fit in one chunk, and losses.
    let logits = bytes(DType::F32, n * v) + bytes(DType::F32, n);
    let head = 3 * stream + block.attention_norm[1] + logits;
    // The MLP's backward: the gradients of `down`'s input, of gate and up beside what forward kept, less what `down` has read.
    let wide = bytes(c, n * f);
    let gates = if block.gate > 0 { 2 } else { 1 };
    let mlp = whole - block.activation + stream + (1 + gates) * wide;
    let after_mlp = whole - block.activation - block.gate - block.up + stream + gates * wide + stream;
    // Attention's: the gradient of its output, and those of queries, keys and values, when the MLP is done.
    let attention = block.input
        + block.attention_norm.iter().sum::<u64>()
        + block.qkv
        + block.attention
        + stream
        + 2 * bytes(c, n * q)
        + 2 * bytes(c, n * kv);
    // While the MLP's gradient still goes through its norm.
    let forward = whole + stream;
    let backward = mlp.max(after_mlp).max(attention).max(forward);
    (before + backward).max(before + block.kept(policy) + head)
}

#[test]
fn the_widest_moment_is_the_sum_by_hand() {
    let gpt2 = || *forms().iter().find(|(name, ..)| *name == "gpt2").unwrap();
    let bases = [("llama", small()), ("gpt2", formed(small(), gpt2()))];
    // The MLP's moment, the head's, attention's.
    let shapes = [("mlp", 8, 200, 61), ("head", 8, 40, 900), ("core", 64, 16, 61)];
    let policies: Vec<_> =
        policies().into_iter().zip([Precision::F32, Precision::mixed(DType::Bf16)].repeat(4)).collect();
    let sizes = [bases.len(), shapes.len(), 2, 2, policies.len()];
    for [base, shape, naive, layers, policy] in tiers::combinations("training::formulas::the_widest_moment", sizes) {
        let ((name, mut cell), (shape, head_dim, intermediate, vocab)) = (bases[base].clone(), shapes[shape]);
        let ((policy, precision), layers) = (&policies[policy], layers + 1);
        (cell.model.head_dim, cell.model.intermediate_size) = (head_dim, intermediate);
        (cell.model.vocab_size, cell.model.num_hidden_layers) = (vocab, layers);
        cell.memory.attention = [AttentionKind::Flash, AttentionKind::Naive][naive];
        (cell.memory.checkpointing, cell.precision) = (policy.clone(), *precision);
        (cell.train.steps, cell.train.untimed_steps) = (1, 0);
        let expected = widest(&cell);
        for (who, found) in peaks(&cell) {
            let what = format!("{name} {shape} {layers} {:?} {policy:?}", cell.memory.attention);
            assert_eq!(found, expected, "{what}: {who}");
        }
    }
}

/// One block on one rank, f32: every byte at the moment when most are in use, on kernels that need no scratch. Weights, gradients and
/// moments, the MLP's backward, tables and tokens.
#[test]
fn every_byte_of_the_largest_moment_is_known() {
    let mut cell = small();
    (cell.model.num_hidden_layers, cell.model.intermediate_size, cell.train.steps) = (1, 200, 1);
    let (h, f, q, kv, v, s, n) = (24, 200, 24, 8, 61, 13, 26);
    let up = |elements: usize| (4 * elements).next_multiple_of(64) as u64;
    let psi = [v * h, 2 * h + h * (2 * q + 2 * kv) + 3 * h * f, h + v * h].map(up).iter().sum::<u64>();
    // Input, norm, queries, keys, values, attention, residual, norm; gate, up; and gradients of the output, of gate, up and their product.
    let block = [n * h, n * h, n, n * q, n * kv, n * kv, n * q, n * 3, n * h, n * h, n, n * f, n * f].map(up);
    let gradients = [n * h, n * f, n * f, n * f].map(up);
    let activations = block.iter().chain(&gradients).sum::<u64>();
    let workspace = 2 * up(s * 4) + 2 * up(n);
    let plan = Plan::new(&cell, &Reference).unwrap();
    let ran = with_ranks(&cell, &plan, vec![Arc::new(Reference)], |rank| {
        rank.step()?;
        Ok(rank.executor.context.arena().ledger())
    });
    for (who, ledger) in [("the plan", plan.stage_plan_of(0).estimate.memory()), ("the rank", &ran.unwrap()[0])] {
        let at_peak = Category::ALL.map(|category| ledger.at_peak(category));
        assert_eq!(at_peak, [psi, psi, 2 * psi, activations, 0, workspace], "{who}");
        assert_eq!(ledger.total_peak(), 4 * psi + activations + workspace, "{who}");
    }
}
