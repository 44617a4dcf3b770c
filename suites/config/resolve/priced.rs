//! What is priced and not run: parallelism beside the data axes, compressed traffic, offload, models of another kind.

use super::{Refusal, Values, choice};
use crate::foreign::LEFT_OUT;
use toml::Value;
use zbench_engine::config::{
    CustomModel, Degrees, Experts, LatentAttention, Model, Parallel, PipelineSchedule, Priced, PricedLoss, PricedModel,
    Wire,
};
use zbench_engine::mesh::strategy;
use zbench_engine::mesh::strategy::MeshError;

/// Model families that `zbench plan` prices and the engine does not have.
pub(super) const FAMILIES: [&str; 3] = ["t5", "count", "custom"];

/// Keys of [model] that are read here and not by the engine's families, with the families that have them.
const OWN_KEYS: [(&str, &[&str]); 17] = [
    ("model.num_decoder_layers", &["t5", "custom"]),
    ("model.feed_forward_proj", &["t5"]),
    ("model.parameters", &["count"]),
    ("model.largest_layer", &["count"]),
    ("model.mlp", &["custom"]),
    ("model.bias", &["custom"]),
    ("model.norm", &["custom"]),
    ("model.learned_positions", &["custom"]),
    ("model.causal", &["custom"]),
    ("model.shared_expert_intermediate_size", &["custom"]),
    ("model.first_k_dense_replace", &["custom"]),
    ("model.kv_lora_rank", &["custom"]),
    ("model.q_lora_rank", &["custom"]),
    ("model.qk_nope_head_dim", &["custom"]),
    ("model.qk_rope_head_dim", &["custom"]),
    ("model.v_head_dim", &["custom"]),
    ("model.num_nextn_predict_layers", &["custom"]),
];

/// Keys of latent attention beside the rank of its keys and values, which they need.
const LATENT_KEYS: [&str; 4] =
    ["model.q_lora_rank", "model.qk_nope_head_dim", "model.qk_rope_head_dim", "model.v_head_dim"];

/// Keys of experts, which families of the engine have, too.
const EXPERT_KEYS: [&str; 5] = [
    "model.num_experts",
    "model.num_experts_per_tok",
    "model.moe_intermediate_size",
    "model.decoder_sparse_step",
    "model.mlp_only_layers",
];

/// Whether a key of [model] is read here in a model of this family.
pub(super) fn is_own_key(key: &str, family: Option<&str>) -> bool {
    OWN_KEYS.iter().any(|(own, _)| *own == key) || (family == Some("custom") && EXPERT_KEYS.contains(&key))
}

/// The priced options of a cell; `None` if it has none.
pub(super) fn priced(values: &Values, parallel: &Parallel, of: &Model) -> Result<Option<Priced>, Refusal> {
    let zeropp = values.text("parallel.strategy") == "zero++";
    // The engine has no name for "native", no compression.
    let wire = |key: &str, default: Wire| match values.given(key) {
        Some(name) => choice(name),
        None => zeropp.then_some(default),
    };
    let priced = Priced {
        expert_imbalance: values.real("parallel.expert_imbalance"),
        gather_wire: wire("parallel.gather_wire", Wire::Int8),
        reduce_wire: wire("parallel.reduce_wire", Wire::Int4),
        parked: if zeropp { parked(values, parallel.ranks)? } else { 1 },
        loss: match values.text("memory.loss").as_str() {
            "logits" => PricedLoss::Logits,
            "chunked" => PricedLoss::Chunked(values.count("memory.loss_chunk")),
            _ => PricedLoss::Fused,
        },
        placement: values.choice("parallel.placement").unwrap_or_default(),
        model: model(values)?,
        dropout: values.real("model.dropout") > 0.0,
        products: choice(&values.value("precision.products")),
        main_gradients: values.is("precision.main_gradients"),
        optimizer: values.choice("train.optimizer").unwrap_or_default(),
        optimizer_in_backward: values.is("train.optimizer_in_backward"),
        optimizer_shard: values.given_count("parallel.optimizer_shard"),
        flash_generation: match values.text("memory.attention").as_str() {
            "flash1" => Some(1),
            "flash3" => Some(3),
            _ => None,
        },
        recompute: values.choice("memory.recompute"),
        tensor_overlap: values.is("parallel.tensor_overlap"),
        expert_overlap: values.is("parallel.expert_overlap"),
        trainable: values.given_count("lora.trainable").map(|count| count as u64),
        adapter_dtype: values.choice("lora.adapter_dtype"),
        loading: values.given("model.loading").filter(|_| of.weights.is_none()).and_then(choice),
        left_out: values.choice(LEFT_OUT).unwrap_or_default(),
        is_of_folder: false,
    };
    if priced.recompute.is_some() && values.text("memory.checkpointing") != "none" {
        let message = "stands beside memory.checkpointing; keep one of them";
        return Err(values.refuse("memory.recompute", &["memory.checkpointing"], message));
    }
    let replicas = parallel.ranks / (parallel.degrees.tensor * parallel.degrees.pipeline).max(1);
    if let Some(shard) = priced.optimizer_shard.filter(|shard| !replicas.is_multiple_of(*shard)) {
        let message =
            format!("{shard} does not divide the {replicas} ranks that have the same weights; write a divisor of them");
        return Err(values.refuse("parallel.optimizer_shard", &["parallel.ranks"], message));
    }
    if let Some(PricedModel::Custom(CustomModel { learned_positions: rows @ 1.., .. })) = &priced.model
        && values.count("train.seq_len") > *rows
    {
        let message = format!(
            "{} is more than model.learned_positions = {rows}; write at most that",
            values.count("train.seq_len")
        );
        return Err(values.refuse("train.seq_len", &["model.learned_positions"], message));
    }
    if priced.trainable.is_some() && values.count("lora.rank") == 0 && values.text("lora.method") != "ia3" {
        let message = "is of adapters, and lora.rank is 0; write lora.rank, or leave it out";
        return Err(values.refuse("lora.trainable", &["lora.rank"], message));
    }
    fits(values, &priced, parallel, of)?;
    Ok(Some(priced).filter(|priced| *priced != Priced::default()))
}

/// Ranks that share the second copy of zero++: those of a node.
fn parked(values: &Values, ranks: usize) -> Result<usize, Refusal> {
    let given = values.given_count("parallel.shard").or(values.given_count("parallel.ranks_per_node"));
    match given {
        Some(shard) if ranks.is_multiple_of(shard) => Ok(shard),
        Some(shard) => {
            let message = format!("{shard} does not divide parallel.ranks = {ranks}; write a divisor of it");
            Err(values.refuse("parallel.shard", &["parallel.strategy", "parallel.ranks"], message))
        }
        None => {
            let message = "is absent, and zero++ keeps a second copy on the ranks of a node; write it, or \
                           parallel.ranks_per_node";
            Err(values.refuse("parallel.shard", &["parallel.strategy"], message))
        }
    }
}

fn model(values: &Values) -> Result<Option<PricedModel>, Refusal> {
    let family = values.given_text("model.family").unwrap_or_default();
    let needed = |key: &str| {
        values
            .given_count(key)
            .ok_or_else(|| values.refuse(key, &["model.family"], format!("is missing; family = \"{family}\" needs it")))
    };
    match family.as_str() {
        "t5" => Ok(Some(PricedModel::EncoderDecoder {
            num_decoder_layers: match values.given_count("model.num_decoder_layers") {
                Some(layers) => layers,
                None => needed("model.num_hidden_layers")?,
            },
            decoder_seq_len: values.given_count("train.decoder_seq_len").unwrap_or(values.count("train.seq_len")),
            gated: values.text("model.feed_forward_proj").starts_with("gated"),
        })),
        "count" => Ok(Some(PricedModel::Count {
            parameters: needed("model.parameters")? as u64,
            largest_layer: needed("model.largest_layer")? as u64,
        })),
        "custom" => Ok(Some(PricedModel::Custom(custom(values)?))),
        _ => Ok(None),
    }
    .and_then(|model| {
        // Of other families' keys none is there.
        let of_decoders = [("train.decoder_seq_len", &["t5", "custom"][..])];
        let other = OWN_KEYS
            .iter()
            .chain(&of_decoders)
            .find(|(key, of)| values.given(key).is_some() && !of.contains(&family.as_str()));
        let Some((key, of)) = other else { return Ok(model) };
        let families: Vec<String> = of.iter().map(|family| format!("\"{family}\"")).collect();
        let message = format!("has a meaning for family = {} alone; leave it out", families.join(" or "));
        Err(values.refuse(key, &["model.family"], message))
    })
}

/// What a custom model is beside its sizes.
fn custom(values: &Values) -> Result<CustomModel, Refusal> {
    let needed = |key: &str, why: &str| {
        let missing = || values.refuse(key, &["model.family"], format!("is missing; {why} needs it"));
        values.given_count(key).ok_or_else(missing)
    };
    let latent = match values.count("model.kv_lora_rank") {
        0 => match LATENT_KEYS.into_iter().find(|key| values.given(key).is_some()) {
            None => None,
            Some(key) => {
                let message =
                    "belongs to latent attention, which needs model.kv_lora_rank; write that too, or leave this out";
                return Err(values.refuse(key, &["model.kv_lora_rank"], message));
            }
        },
        kv_rank => Some(LatentAttention {
            q_rank: values.count("model.q_lora_rank"),
            kv_rank,
            nope_dim: needed("model.qk_nope_head_dim", "model.kv_lora_rank")?,
            rope_dim: needed("model.qk_rope_head_dim", "model.kv_lora_rank")?,
            value_dim: needed("model.v_head_dim", "model.kv_lora_rank")?,
        }),
    };
    let gated = values.text("model.mlp") == "gated";
    let names_gate = |list: &Vec<Value>| list.iter().any(|name| name.as_str() == Some("gate_proj"));
    if !gated
        && values.given_count("lora.rank") != Some(0)
        && values.given("lora.targets").and_then(Value::as_array).is_some_and(names_gate)
    {
        let message = "has gate_proj, and model.mlp = \"plain\" has no gate; leave it out";
        return Err(values.refuse("lora.targets", &["model.mlp"], message));
    }
    Ok(CustomModel {
        gated,
        bias: values.is("model.bias"),
        layer_norm: values.text("model.norm") == "layer",
        learned_positions: values.count("model.learned_positions"),
        causal: values.is("model.causal"),
        shared_expert: values.count("model.shared_expert_intermediate_size"),
        decoder_layers: values.given_count("model.num_decoder_layers").unwrap_or(0),
        decoder_seq_len: values.given_count("train.decoder_seq_len").unwrap_or(values.count("train.seq_len")),
        latent,
        next_token_layers: values.count("model.num_nextn_predict_layers"),
    })
}

/// Most blocks of a custom model that are told apart.
const MOST_BLOCKS: usize = 1 << 16;

/// Experts of a custom model; `None` where it states none.
pub(super) fn experts(values: &Values) -> Result<Option<Experts>, Refusal> {
    let missing = |key: &str| values.refuse(key, &["model.num_experts"], "is missing; model.num_experts needs it");
    let needed = |key: &str| values.given_count(key).ok_or_else(|| missing(key));
    let Some(num_experts) = values.given_count("model.num_experts").filter(|count| *count > 0) else { return Ok(None) };
    let num_experts_per_tok = needed("model.num_experts_per_tok")?;
    if num_experts_per_tok > num_experts {
        let message =
            format!("{num_experts_per_tok} are more than model.num_experts = {num_experts}; write at most that");
        return Err(values.refuse("model.num_experts_per_tok", &["model.num_experts"], message));
    }
    let (dense, blocks) = (values.count("model.first_k_dense_replace"), values.given_count("model.num_hidden_layers"));
    if let Some(blocks) = blocks.filter(|blocks| dense > *blocks) {
        let message = format!("{dense} are more than model.num_hidden_layers = {blocks}; write at most that");
        return Err(values.refuse("model.first_k_dense_replace", &["model.num_hidden_layers"], message));
    }
    let mut mlp_only_layers: Vec<usize> = (0..dense.min(blocks.unwrap_or(dense).min(MOST_BLOCKS))).collect();
    mlp_only_layers.extend(values.choice::<Vec<usize>>("model.mlp_only_layers").unwrap_or_default());
    mlp_only_layers.sort_unstable();
    mlp_only_layers.dedup();
    Ok(Some(Experts {
        num_experts,
        num_experts_per_tok,
        moe_intermediate_size: needed("model.moe_intermediate_size")?,
        norm_topk_prob: true,
        decoder_sparse_step: values.given_count("model.decoder_sparse_step").unwrap_or(1),
        mlp_only_layers,
    }))
}

/// The degrees of model parallelism, as they are written.
pub(super) fn degrees(values: &Values) -> Result<Degrees, Refusal> {
    let is_interleaved =
        values.text("parallel.pipeline_schedule") == "interleaved" && values.count("parallel.pipeline") > 1;
    let chunks = values.given_count("parallel.virtual_stages").unwrap_or(if is_interleaved { 2 } else { 1 });
    let degrees = Degrees {
        tensor: values.count("parallel.tensor"),
        sequence: values.count("parallel.sequence"),
        pipeline: values.count("parallel.pipeline"),
        virtual_stages: chunks,
        pipeline_schedule: values.choice("parallel.pipeline_schedule").unwrap_or(PipelineSchedule::OneFOneB),
        context: values.count("parallel.context"),
        expert: values.count("parallel.expert"),
        expert_tensor: values.count("parallel.expert_tensor"),
    };
    if chunks > 1 && degrees.pipeline == 1 {
        let message = "is above 1 without a pipeline; write parallel.pipeline, or leave it out";
        return Err(values.refuse("parallel.virtual_stages", &["parallel.pipeline_schedule"], message));
    }
    if chunks > 1 && degrees.schedule() != PipelineSchedule::Interleaved {
        let message =
            "has one chunk of layers on each stage, and parallel.virtual_stages are several; write \"interleaved\"";
        return Err(values.refuse("parallel.pipeline_schedule", &["parallel.virtual_stages"], message));
    }
    Ok(degrees)
}

/// Refuses degrees that do not multiply to the ranks, or that do not divide the model's sizes. A count of parameters has no
/// sizes.
fn fits(values: &Values, priced: &Priced, parallel: &Parallel, model: &Model) -> Result<(), Refusal> {
    let degrees = [
        "parallel.tensor",
        "parallel.pipeline",
        "parallel.context",
        "parallel.expert",
        "parallel.expert_tensor",
        "parallel.ranks",
    ];
    let refuse = |MeshError { key, other, reason }| {
        values.refuse(key, &degrees.into_iter().chain([other]).collect::<Vec<_>>(), reason)
    };
    strategy::mesh(parallel).map_err(refuse)?;
    let decoder = match priced.model {
        Some(PricedModel::Count { .. }) if !parallel.pipeline_split.is_empty() => {
            let message = "is of blocks, and family = \"count\" has none; leave it out";
            return Err(values.refuse("parallel.pipeline_split", &["model.family"], message));
        }
        Some(PricedModel::Count { .. }) => return Ok(()),
        Some(PricedModel::EncoderDecoder { num_decoder_layers, .. }) => num_decoder_layers,
        Some(PricedModel::Custom(CustomModel { decoder_layers, .. })) => decoder_layers,
        None => 0,
    };
    let blocks = model.num_hidden_layers.saturating_add(decoder);
    strategy::divides(parallel, model, blocks, values.count("train.seq_len")).map_err(refuse)
}
