//! What is priced and not run: parallelism beside the data axes, compressed traffic, offload, models of another kind.

use super::{Refusal, Values, choice};
use zbench_engine::config::{Home, Model, PipelineSchedule, Priced, PricedLoss, PricedModel, Strategy, Wire};

/// Model families that `zbench plan` prices and the engine does not have.
pub(super) const FAMILIES: [&str; 2] = ["t5", "count"];

/// Keys of [model] that are read here and not by the engine's families.
pub(super) const MODEL_KEYS: [&str; 4] =
    ["model.num_decoder_layers", "model.feed_forward_proj", "model.parameters", "model.largest_layer"];

/// The priced options of a cell; `None` if it has none.
pub(super) fn priced(values: &Values, ranks: usize, strategy: Strategy, of: &Model) -> Result<Option<Priced>, Refusal> {
    let zeropp = values.text("parallel.strategy") == "zero++";
    // The engine has no name for "native", no compression.
    let wire = |key: &str, default: Wire| match values.given(key) {
        Some(name) => choice(name),
        None => zeropp.then_some(default),
    };
    // "none" is the device.
    let home = |key: &str| values.choice(key).unwrap_or(Home::Device);
    let is_interleaved = values.text("parallel.pipeline_schedule") == "interleaved";
    let chunks = values.given_count("parallel.virtual_stages").unwrap_or(if is_interleaved { 2 } else { 1 });
    let priced = Priced {
        tensor: values.count("parallel.tensor"),
        sequence: values.count("parallel.sequence"),
        pipeline: values.count("parallel.pipeline"),
        virtual_stages: chunks,
        pipeline_schedule: values.choice("parallel.pipeline_schedule").unwrap_or(PipelineSchedule::OneFOneB),
        context: values.count("parallel.context"),
        expert: values.count("parallel.expert"),
        expert_imbalance: values.real("parallel.expert_imbalance"),
        gather_wire: wire("parallel.gather_wire", Wire::Int8),
        reduce_wire: wire("parallel.reduce_wire", Wire::Int4),
        parked: if zeropp { parked(values, ranks)? } else { 1 },
        offload_optimizer: home("memory.offload_optimizer"),
        offload_parameters: home("memory.offload_parameters"),
        offload_activations: home("memory.offload_activations"),
        offload_path: values.given_text("memory.offload_path"),
        partition_activations: values.is("memory.partition_activations"),
        expert_tensor: values.count("parallel.expert_tensor"),
        loss: match values.text("memory.loss").as_str() {
            "logits" => PricedLoss::Logits,
            "chunked" => PricedLoss::Chunked(values.count("memory.loss_chunk")),
            _ => PricedLoss::Fused,
        },
        model: model(values)?,
    };
    check(values, &priced, ranks, strategy)?;
    path_without_disk(values, &priced)?;
    divides(values, &priced, of)?;
    Ok(Some(priced).filter(|priced| priced.first_key().is_some()))
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
        _ => match MODEL_KEYS.iter().chain(&["train.decoder_seq_len"]).find(|key| values.given(key).is_some()) {
            Some(key) => {
                let message = "has a meaning for family = \"t5\" or \"count\" alone; leave it out";
                Err(values.refuse(key, &["model.family"], message))
            }
            None => Ok(None),
        },
    }
}

/// Refuses a folder for offload to disk if nothing is offloaded to disk.
fn path_without_disk(values: &Values, priced: &Priced) -> Result<(), Refusal> {
    let homes = [priced.offload_optimizer, priced.offload_parameters, priced.offload_activations];
    if priced.offload_path.is_none() || homes.contains(&Home::Disk) {
        return Ok(());
    }
    let message =
        "is a folder for what lives on a disk, and nothing does; leave it out, or write \"disk\" for what is to";
    Err(values.refuse("memory.offload_path", &["memory.offload_optimizer", "memory.offload_parameters"], message))
}

/// Refuses values that exclude each other.
fn check(values: &Values, priced: &Priced, ranks: usize, strategy: Strategy) -> Result<(), Refusal> {
    let degrees = ["parallel.tensor", "parallel.pipeline", "parallel.context", "parallel.ranks"];
    let refuse = |key: &str, message: String| Err(values.refuse(key, &degrees, message));
    let replica = priced.ranks_per_replica();
    if replica == 0 || !ranks.is_multiple_of(replica) {
        let message = format!("{ranks} is not a multiple of tensor × pipeline × context = {replica}; write one");
        return refuse("parallel.ranks", message);
    }
    if priced.sequence != 1 && priced.sequence != priced.tensor {
        let message = format!(
            "{} is neither 1 nor parallel.tensor = {}: sequence parallelism splits over the same ranks",
            priced.sequence, priced.tensor
        );
        return Err(values.refuse("parallel.sequence", &["parallel.tensor"], message));
    }
    let data = ranks / replica;
    if !(data * priced.context * priced.tensor).is_multiple_of(priced.expert) {
        let message = format!(
            "{} does not divide the {} ranks of a stage; write a divisor of it",
            priced.expert,
            data * priced.context * priced.tensor
        );
        return Err(values.refuse("parallel.expert", &degrees, message));
    }
    if priced.virtual_stages > 1 && priced.pipeline == 1 {
        let message = "is above 1 without a pipeline; write parallel.pipeline, or leave it out";
        return Err(values.refuse("parallel.virtual_stages", &["parallel.pipeline_schedule"], message));
    }
    if priced.virtual_stages > 1 && priced.pipeline_schedule == PipelineSchedule::GPipe {
        let message = "is \"gpipe\" beside virtual stages, which are interleaved; write \"interleaved\"";
        return Err(values.refuse("parallel.pipeline_schedule", &["parallel.virtual_stages"], message.to_string()));
    }
    if priced.offload_parameters != Home::Device && !matches!(strategy, Strategy::Zero3 | Strategy::Fsdp) {
        let message = "needs weights that are gathered when they are read: parallel.strategy = \"zero3\" or \"fsdp\"";
        return Err(values.refuse("memory.offload_parameters", &["parallel.strategy"], message));
    }
    Ok(())
}

/// Refuses degrees that do not divide the model's sizes. A count of parameters has no sizes.
fn divides(values: &Values, priced: &Priced, model: &Model) -> Result<(), Refusal> {
    if matches!(priced.model, Some(PricedModel::Count { .. })) {
        return Ok(());
    }
    let refuse = |key: &str, other: &str, message: String| Err(values.refuse(key, &[other], message));
    let (heads, kv) = (model.num_attention_heads, model.num_key_value_heads);
    let tensor = priced.tensor;
    if !heads.is_multiple_of(tensor) || !(kv.is_multiple_of(tensor) || tensor.is_multiple_of(kv)) {
        let message =
            format!("{tensor} does not divide the {heads} heads ({kv} of keys and values); write a divisor of them");
        return refuse("parallel.tensor", "model.num_attention_heads", message);
    }
    let (blocks, chunks) = (model.num_hidden_layers, priced.pipeline.saturating_mul(priced.virtual_stages));
    // The embedding and the head may be stages of their own.
    if chunks > blocks + 2 {
        let message = format!("and virtual stages make {chunks} parts of {blocks} blocks; write fewer");
        return refuse("parallel.pipeline", "parallel.virtual_stages", message);
    }
    if !values.count("train.seq_len").is_multiple_of(priced.context) {
        let message = format!("{} does not divide train.seq_len; write a divisor of it", priced.context);
        return refuse("parallel.context", "train.seq_len", message);
    }
    let experts = if model.sparse_blocks() > 0 { model.experts.as_ref().map_or(1, |e| e.num_experts) } else { 1 };
    if !experts.is_multiple_of(priced.expert) {
        let message = match experts {
            1 => format!("is {} and the model has no experts; leave it out", priced.expert),
            _ => format!("{} does not divide the {experts} experts; write a divisor of them", priced.expert),
        };
        return refuse("parallel.expert", "model.num_experts", message);
    }
    Ok(())
}
