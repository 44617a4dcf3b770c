//! A cell as the estimator sees it.

use std::sync::Arc;
use zbench_config::Resolved;
use zbench_engine::config as cell;
use zbench_engine::config::{
    Cell, Checkpointing, Linear, MemoryTier, Mlp, NormKind, PipelineSchedule, Positions, Priced, SavedTensor, Strategy,
};
use zbench_engine::formats::hf::fused_in;
use zbench_engine::model::{self, FlatKind};
use zbench_estimate::framework::{Framework, Loading};
use zbench_estimate::job::*;
use zbench_estimate::memory::memory;
use zbench_kernels::DType;

/// The job of a cell. Cells that the engine runs and cells that are priced alone go the same way.
pub fn job(resolved: &Resolved) -> Job {
    let cell = &resolved.cell;
    let priced = cell.priced.as_deref().cloned().unwrap_or_default();
    let degrees = degrees(cell);
    let blocks = cell.model.num_hidden_layers;
    let recompute_of = |policy: &Checkpointing| recompute(policy, blocks, cell.memory.partition_activations);
    let mut job = Job {
        model: shape(cell, &priced),
        batch: Batch { seq: cell.train.seq_len, micro: cell.train.micro_batch, accumulation: cell.train.accumulation },
        sharding: sharding(cell, &priced, degrees.data * degrees.context),
        precision: precision(cell, &priced),
        recompute: match &priced.recompute {
            Some(recompute) => of_recompute(recompute),
            None => recompute_of(&cell.memory.checkpointing),
        },
        attention: attention(resolved, &priced),
        offload: Offload {
            optimizer: place(cell.memory.offload_optimizer),
            parameters: place(cell.memory.offload_parameters),
            activations: place(cell.memory.offload_activations),
        },
        peft: peft(resolved, &priced),
        loss: match priced.loss {
            cell::PricedLoss::Fused => Loss::Fused,
            cell::PricedLoss::Logits => Loss::Logits,
            cell::PricedLoss::Chunked(tokens) => Loss::Chunked(tokens),
        },
        framework: framework(resolved, &priced),
        overlap: Overlap { tensor: priced.tensor_overlap, expert: priced.expert_overlap },
        split: cell.parallel.pipeline_split.clone(),
        degrees,
    };
    if cell.memory.checkpointing == Checkpointing::Evict {
        // The estimator drops no single tensors: the first of these policies that the capacity holds stands for what eviction does.
        for policy in [Checkpointing::Selective, Checkpointing::Full] {
            if cell.memory.capacity.is_none_or(|capacity| memory(&job).needs() <= capacity as f64) {
                break;
            }
            job.recompute = recompute_of(&policy);
        }
    }
    job
}

/// Whether a cell is priced as zbench's own engine, in memory and in time alike: what names no other software is.
pub fn is_own_engine(cell: &Cell) -> bool {
    cell.hardware.software.as_deref().is_none_or(|name| name == "zbench")
}

/// The kernel that a cell names, else the first that its software has.
fn attention(resolved: &Resolved, priced: &Priced) -> Attention {
    match resolved.cell.memory.attention {
        cell::AttentionKind::Naive => Attention::Naive,
        cell::AttentionKind::Flash => priced
            .flash_generation
            .map(Attention::Flash)
            .or_else(|| possible_attention(resolved).next())
            .unwrap_or(Attention::Flash(2)),
    }
}

/// Kernels that a cell which names none may run with, as its software has them; nothing of one that names its kernel.
pub(crate) fn possible_attention(resolved: &Resolved) -> impl Iterator<Item = Attention> {
    let unknown = !resolved.names_attention;
    resolved.framework.attention.iter().filter(move |_| unknown).filter_map(|name| Attention::named(name))
}

/// The cell's software, which reads weights as the cell says.
fn framework(resolved: &Resolved, priced: &Priced) -> Arc<Framework> {
    let mut framework = resolved.framework.clone();
    if let Some(loading) = priced.loading.map(loading).filter(|loading| *loading != framework.memory.loading) {
        Arc::make_mut(&mut framework).memory.loading = loading;
    }
    framework
}

fn loading(way: cell::Loading) -> Loading {
    match way {
        cell::Loading::Sliced => Loading::Sliced,
        cell::Loading::Broadcast => Loading::Broadcast,
        cell::Loading::Everywhere => Loading::Everywhere,
    }
}

fn place(home: MemoryTier) -> Place {
    match home {
        MemoryTier::Device => Place::Device,
        MemoryTier::Host => Place::Host,
        MemoryTier::Disk => Place::Disk,
    }
}

fn shape(cell: &Cell, priced: &Priced) -> Shape {
    let (model, form) = (&cell.model, &cell.model.form);
    let gated = matches!(form.mlp, Mlp::Swiglu | Mlp::GegluTanh);
    let experts = model.experts.as_ref().filter(|_| model.sparse_blocks() > 0).map(|experts| Experts {
        count: experts.num_experts,
        top: experts.num_experts_per_tok,
        ffn: experts.moe_intermediate_size,
        shared_ffn: 0,
        dense_layers: model.num_hidden_layers - model.sparse_blocks(),
        imbalance: if cell.is_priced() { priced.expert_imbalance } else { 1.0 },
    });
    let mut shape = Shape {
        kind: Kind::Decoder,
        layers: model.num_hidden_layers,
        hidden: model.hidden_size,
        heads: model.num_attention_heads,
        kv_heads: model.num_key_value_heads,
        head_dim: model.head_dim,
        ffn: model.intermediate_size,
        vocab: model.vocab_size,
        gated,
        bias: form.mlp_bias,
        tied: model.tie_word_embeddings,
        positions: if form.positions == Positions::Learned { model.max_position_embeddings } else { 0 },
        norm_bias: form.norm == NormKind::Layer && form.norm_bias,
        causal: true,
        window: model.sliding_window.unwrap_or(0),
        dropout: priced.dropout,
        experts,
        latent: None,
        ahead: 0,
        stated_parameters: 0,
    };
    match &priced.model {
        Some(cell::PricedModel::Custom(custom)) => {
            (shape.gated, shape.bias, shape.norm_bias) = (custom.gated, custom.bias, custom.layer_norm);
            (shape.positions, shape.causal) = (custom.learned_positions, custom.causal);
            shape.ahead = custom.next_token_layers;
            if let Some(experts) = &mut shape.experts {
                experts.shared_ffn = custom.shared_expert;
            }
            if custom.decoder_layers > 0 {
                let (decoder_layers, decoder_seq) = (custom.decoder_layers, custom.decoder_seq_len);
                shape.kind = Kind::EncoderDecoder { decoder_layers, decoder_seq };
            }
            shape.latent = custom.latent.map(|latent| Latent {
                q_rank: latent.q_rank,
                kv_rank: latent.kv_rank,
                qk_dim: latent.nope_dim,
                rope_dim: latent.rope_dim,
                v_dim: latent.value_dim,
            });
        }
        Some(cell::PricedModel::EncoderDecoder { num_decoder_layers, decoder_seq_len, gated }) => {
            shape.kind = Kind::EncoderDecoder { decoder_layers: *num_decoder_layers, decoder_seq: *decoder_seq_len };
            (shape.gated, shape.bias) = (*gated, false);
        }
        Some(cell::PricedModel::Count { parameters, largest_layer }) => {
            shape.kind = Kind::Count { largest_layer: *largest_layer };
            shape.stated_parameters = *parameters;
        }
        None => {}
    }
    shape
}

fn model_has_experts(cell: &Cell) -> bool {
    cell.model.sparse_blocks() > 0
}

fn degrees(cell: &Cell) -> Degrees {
    let cut = &cell.parallel.degrees;
    Degrees {
        data: (cell.parallel.ranks / cut.ranks_per_replica().max(1)).max(1),
        tensor: cut.tensor,
        sequence: cut.sequence > 1,
        pipeline: cut.pipeline,
        chunks: cut.virtual_stages,
        schedule: match cut.pipeline_schedule {
            PipelineSchedule::OneFOneB | PipelineSchedule::Interleaved => Order::OneFOneB,
            PipelineSchedule::ZbH1 => Order::ZeroBubble,
            PipelineSchedule::GPipe => Order::GPipe,
            PipelineSchedule::Naive => Order::Naive,
        },
        context: cut.context,
        expert: cut.expert,
        expert_tensor: if model_has_experts(cell) { cut.expert_tensor } else { cut.tensor },
        placement: match cell.priced.as_ref().map(|priced| priced.placement).unwrap_or_default() {
            cell::Placement::DataInside => Placement::DataInside,
            cell::Placement::PipelineInside => Placement::PipelineInside,
        },
    }
}

/// Groups of the data and context axes, over which state is split as one.
fn sharding(cell: &Cell, priced: &Priced, data: usize) -> Sharding {
    let groups = cell.parallel.shard.saturating_mul(cell.parallel.degrees.context);
    let shard = if cell.parallel.strategy.is_hybrid() { groups.min(data) } else { data };
    let prefetch = cell.parallel.prefetch;
    let base = match cell.parallel.strategy {
        Strategy::Ddp => Sharding::whole(),
        Strategy::Zero1 => Sharding::zero(1, data),
        Strategy::Zero2 => Sharding::zero(2, data),
        Strategy::Zero3 | Strategy::Fsdp => Sharding::zero(3, data),
        Strategy::FsdpGradOp => Sharding { reshard_after_forward: false, ..Sharding::zero(3, data) },
        Strategy::Hsdp => Sharding::zero(3, shard),
        Strategy::HsdpFullOptimizer => Sharding { optimizer: data, ..Sharding::zero(3, shard) },
    };
    let bytes = |wire: Option<cell::Wire>| match wire {
        None => 0.0,
        Some(cell::Wire::Bf16) => 2.0,
        Some(cell::Wire::Int8) => 1.0,
        Some(cell::Wire::Int4) => 0.5,
    };
    Sharding {
        prefetch,
        optimizer: match (priced.optimizer, priced.optimizer_shard) {
            (_, Some(ranks)) => ranks,
            // Matrices are updated whole.
            (cell::PricedOptimizer::Muon, None) => 1,
            (_, None) => base.optimizer,
        },
        parked: priced.parked,
        gather_bytes: bytes(priced.gather_wire),
        reduce_bytes: bytes(priced.reduce_wire),
        ..base
    }
}

fn number(dtype: DType) -> Number {
    match dtype {
        DType::Bf16 => Number::Bf16,
        DType::F16 => Number::F16,
        _ => Number::F32,
    }
}

fn precision(cell: &Cell, priced: &Priced) -> Precision {
    let p = &cell.precision;
    let moment = p.optimizer.size() as f64;
    let main = if priced.main_gradients { 4.0 } else { 0.0 };
    Precision {
        weights: number(p.parameters),
        compute: number(p.compute),
        products: match priced.products {
            None => number(p.compute),
            Some(cell::Products::Tf32) => Number::Tf32,
            Some(cell::Products::Fp8) => Number::Fp8,
            Some(cell::Products::Bf16) => Number::Bf16,
            Some(cell::Products::F16) => Number::F16,
        },
        gradients: if priced.optimizer_in_backward { 0.0 } else { p.gradients.size() as f64 + main },
        reduce: p.reduce.size() as f64,
        master: p.master.map_or(0, DType::size) as f64,
        moments: match priced.optimizer {
            cell::PricedOptimizer::AdamW => 2.0 * moment,
            cell::PricedOptimizer::AdamW8Bit => 2.0,
            cell::PricedOptimizer::AdamW4Bit => 1.0,
            cell::PricedOptimizer::Momentum | cell::PricedOptimizer::Muon => moment,
            cell::PricedOptimizer::Sgd => 0.0,
        },
    }
}

fn of_recompute(recompute: &cell::PricedRecompute) -> Recompute {
    match recompute {
        cell::PricedRecompute::Word(cell::RecomputeWord::Core) => Recompute::Core,
        cell::PricedRecompute::Word(cell::RecomputeWord::Op) => Recompute::PerOp,
        cell::PricedRecompute::Modules(names) => Recompute::Modules(names.clone()),
        cell::PricedRecompute::Blocks { one_in } => Recompute::SomeBlocks { of: *one_in },
    }
}

fn recompute(policy: &Checkpointing, blocks: usize, partitioned: bool) -> Recompute {
    let full = |every: usize| Recompute::Full { every: every.max(1), partitioned };
    match policy {
        Checkpointing::None | Checkpointing::Evict => Recompute::None,
        Checkpointing::Full => full(1),
        Checkpointing::Every(every) => full(*every),
        Checkpointing::Sqrt => full((blocks as f64).sqrt().ceil() as usize),
        // What costs no matrix product: the norms and the activation.
        Checkpointing::Selective => Recompute::Modules(vec!["layernorm".into(), "mlp_act".into()]),
        Checkpointing::Keep(kept) => {
            let has = |tensor: SavedTensor| kept.contains(&tensor);
            if has(SavedTensor::Attention) && has(SavedTensor::GateUp) {
                Recompute::Modules(vec!["layernorm".into(), "mlp_act".into()])
            } else if has(SavedTensor::Attention) && has(SavedTensor::Qkv) {
                Recompute::Modules(vec!["mlp".into()])
            } else if has(SavedTensor::GateUp) {
                Recompute::Core
            } else {
                full(1)
            }
        }
    }
}

fn targets(names: &[Linear]) -> Targets {
    let has = |target| names.contains(&target);
    Targets {
        query: has(Linear::QProj),
        key: has(Linear::KProj),
        value: has(Linear::VProj),
        output: has(Linear::OProj),
        gate: has(Linear::GateProj),
        up: has(Linear::UpProj),
        down: has(Linear::DownProj),
        fused: false,
    }
}

/// Adapters with the exact number of their parameters, which the engine's layout knows.
fn peft(resolved: &Resolved, priced: &Priced) -> Peft {
    let cell = &resolved.cell;
    if !cell.lora.on() {
        return Peft::None;
    }
    let base = match cell.lora.base {
        Some(cell::Base::Nf4 | cell::Base::Nf4Single) => Number::Nf4,
        Some(cell::Base::Int8) => Number::Int8,
        Some(cell::Base::F32) => Number::F32,
        Some(cell::Base::F16) => Number::F16,
        Some(cell::Base::Bf16) => Number::Bf16,
        None => number(cell.precision.parameters),
    };
    Peft::Adapters {
        trainable: match (priced.trainable, &priced.model) {
            (Some(trainable), _) => trainable,
            // Of a model that the engine has not, the estimator counts those of the rank.
            (None, Some(_)) => 0,
            (None, None) => model::parameters(cell, FlatKind::Trainable),
        },
        rank: cell.lora.rank,
        base,
        targets: Targets {
            fused: resolved.framework.drive.fused_adapters || fused_in(&cell.model, Linear::QProj).is_some(),
            ..targets(&cell.lora.targets)
        },
        weight_bytes: priced.adapter_dtype.unwrap_or(cell.precision.parameters).size() as f64,
    }
}
