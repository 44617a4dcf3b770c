//! A stand-in for a cell whose hardware is absent: the same strategies on a model and a mesh that fit here.

use zbench_engine::config::{Cell, Checkpointing, Data, Degrees, DeviceKind, PipelineSchedule, Placement, Priced};

/// The rule, for records and readers.
pub const RULE: &str = "ranks, ranks_per_node and shard divided so that at most 4 ranks are left; \
2 tensor ranks, stages and virtual stages for more, and none of context and experts; at most 4 layers of width \
128 with at most 4 heads of 32; as many query heads to a key-value head as the cell has, or the next number that divides the heads, and \
no more than there are heads, and one for each tensor rank; the same ratio of MLP to model width (rounded up to 32, at most 4096); at most 8 experts, no wider than \
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

    let data = degrees(&mut small, cell);
    small.parallel.shard = (1..=small.parallel.shard).rev().find(|shard| data.is_multiple_of(*shard)).unwrap_or(1);

    let (model, from) = (&mut small.model, &cell.model);
    let ratio = from.num_attention_heads / from.num_key_value_heads.max(1);
    model.hidden_size = from.hidden_size.min(128);
    model.head_dim = from.head_dim.min(32);
    model.num_attention_heads = from.num_attention_heads.min(4);
    let tensor = small.parallel.degrees.tensor;
    let splits = |kv: &usize| model.num_attention_heads.is_multiple_of(*kv) && kv.is_multiple_of(tensor);
    let shared = |kv: &usize| model.num_attention_heads / kv >= ratio.min(model.num_attention_heads);
    // Each tensor rank has a head of keys at least.
    model.num_key_value_heads =
        (1..=model.num_attention_heads).rev().find(|kv| splits(kv) && shared(kv)).unwrap_or(tensor);
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

/// The degrees that a cell has and its stand-in leaves out, by their keys: what they cost there, the stand-in does not show.
pub fn left_out(cell: &Cell, small: &Cell) -> Vec<&'static str> {
    let (of, now) = (cell.parallel.degrees, small.parallel.degrees);
    let degrees = [
        ("parallel.tensor", of.tensor, now.tensor),
        ("parallel.pipeline", of.pipeline, now.pipeline),
        ("parallel.context", of.context, now.context),
        ("parallel.expert", of.expert, now.expert),
    ];
    degrees.into_iter().filter(|(_, of, now)| *of > 1 && *now == 1).map(|(key, ..)| key).collect()
}

/// At most two ranks to a matrix and two stages, as far as ranks, heads and blocks go: the data-parallel ranks that are left. Ranks that
/// shared sequences or experts, which the engine does not run, are data-parallel ones.
fn degrees(small: &mut Cell, cell: &Cell) -> usize {
    let (ranks, of) = (small.parallel.ranks, cell.parallel.degrees);
    let two = |degree: usize, among: usize, parts: usize| {
        if degree > 1 && among.is_multiple_of(2) && parts.is_multiple_of(2) { 2 } else { 1 }
    };
    let tensor = two(of.tensor, ranks, cell.model.num_attention_heads.min(4));
    let blocks = cell.model.num_hidden_layers.min(4);
    let pipeline = two(of.pipeline, ranks / tensor, blocks);
    let rounds = cell.train.accumulation.is_multiple_of(pipeline);
    let virtual_stages = if pipeline > 1 && rounds { two(of.virtual_stages, 2, blocks / 2) } else { 1 };
    let sequence = if of.sequence > 1 { tensor } else { 1 };
    small.parallel.degrees =
        Degrees { tensor, sequence, pipeline, virtual_stages, context: 1, expert: 1, expert_tensor: 1, ..of };
    if virtual_stages == 1 && of.virtual_stages > 1 {
        small.parallel.degrees.pipeline_schedule = PipelineSchedule::OneFOneB;
    }
    if of.pipeline > 1 {
        small.parallel.pipeline_split = Vec::new();
    }
    if tensor == 1 {
        small.parallel.tensor_chunks = 1;
    }
    let priced = small.priced.take().map(|priced| Priced { placement: Placement::DataInside, ..*priced });
    small.priced = priced.filter(|priced| *priced != Priced::default()).map(Box::new);
    ranks / (tensor * pipeline)
}
