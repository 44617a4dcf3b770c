//! A stand-in for a cell whose hardware is absent: the same strategies on a model and a mesh that fit here.

use zbench_engine::config::{Cell, Checkpointing, Data, DeviceKind};

/// The rule, for records and readers.
pub const RULE: &str = "ranks, ranks_per_node and shard divided so that at most 4 ranks are left; at most 4 layers of width \
128 with at most 4 heads of 32; as many query heads to a key-value head as the cell has, or the next number that divides the heads, and \
no more than there are heads; the same ratio of MLP to model width (rounded up to 32, at most 4096); at most 8 experts, no wider than \
that; at most 1024 tokens of \
vocabulary, 128 tokens of sequence, micro-batch 2, 12 steps, LoRA rank 8; synthetic data, fresh weights and adapters; no capacity, \
and everything kept where tensors would be evicted under one";

/// The stand-in of a cell; `cores` are shared by its ranks.
pub fn scaled(cell: &Cell, cores: usize) -> Cell {
    let mut small = cell.clone();
    let factor =
        (1..=cell.parallel.ranks).find(|f| cell.parallel.ranks.is_multiple_of(*f) && cell.parallel.ranks / f <= 4);
    let factor = factor.unwrap_or(cell.parallel.ranks);
    let parallel = &mut small.parallel;
    parallel.ranks = cell.parallel.ranks / factor;
    // Dividing may not come out whole; a divisor of the ranks that is at most that does.
    let divide = |count: usize| {
        let target = (count / factor).max(1);
        (1..=target).rev().find(|d| parallel.ranks.is_multiple_of(*d)).unwrap_or(1)
    };
    let (shard, per_node) = (divide(cell.parallel.shard), cell.parallel.ranks_per_node.map(divide));
    (small.parallel.shard, small.parallel.ranks_per_node) = (shard, per_node);

    let (model, from) = (&mut small.model, &cell.model);
    let ratio = from.num_attention_heads / from.num_key_value_heads.max(1);
    model.hidden_size = from.hidden_size.min(128);
    model.head_dim = from.head_dim.min(32);
    model.num_attention_heads = from.num_attention_heads.min(4);
    model.num_key_value_heads = (1..=model.num_attention_heads)
        .rev()
        .find(|kv| {
            model.num_attention_heads.is_multiple_of(*kv)
                && model.num_attention_heads / kv >= ratio.min(model.num_attention_heads)
        })
        .unwrap_or(1);
    let mlp = from.intermediate_size as f64 / from.hidden_size.max(1) as f64 * model.hidden_size as f64;
    model.intermediate_size = ((mlp / 32.0).ceil() as usize * 32).clamp(32, 4096).min(from.intermediate_size.max(32));
    model.num_hidden_layers = from.num_hidden_layers.min(4);
    if let (Some(experts), Some(of)) = (&mut model.experts, &from.experts) {
        experts.num_experts = of.num_experts.min(8);
        experts.num_experts_per_tok = of.num_experts_per_tok.min(experts.num_experts);
        experts.moe_intermediate_size = of.moe_intermediate_size.min(model.intermediate_size);
        if of.moe_intermediate_size == from.intermediate_size {
            experts.moe_intermediate_size = model.intermediate_size;
        }
        experts.mlp_only_layers.retain(|index| *index < model.num_hidden_layers);
    }
    model.vocab_size = from.vocab_size.min(1024);
    (model.weights, model.save) = (None, None);
    small.data = Data::Synthetic {};
    small.train.seq_len = cell.train.seq_len.min(128);
    small.train.micro_batch = cell.train.micro_batch.min(2);
    small.train.steps = cell.train.steps.min(12);
    small.train.untimed_steps = cell.train.untimed_steps.min(2);
    let lora = &mut small.lora;
    lora.rank = cell.lora.rank.min(8);
    (lora.path, lora.save, lora.merge) = (None, None, None);
    small.memory.capacity = None;
    if small.memory.checkpointing == Checkpointing::Evict {
        small.memory.checkpointing = Checkpointing::None;
    }
    small.hardware.device = DeviceKind::Cpu;
    small.hardware.threads_per_rank = (cores / small.parallel.ranks).max(1);
    small
}
