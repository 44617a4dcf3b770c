//! What is priced and not run: parallelism beside the data axes, compressed traffic, offload, models of another kind.

use super::{Refusal, Values, choice};
use zbench_engine::config::{Degrees, Model, Parallel, PipelineSchedule, Priced, PricedLoss, PricedModel, Wire};
use zbench_engine::strategy::{self, MeshError};

/// Model families that `zbench plan` prices and the engine does not have.
pub(super) const FAMILIES: [&str; 2] = ["t5", "count"];

/// Keys of [model] that are read here and not by the engine's families.
pub(super) const MODEL_KEYS: [&str; 4] =
    ["model.num_decoder_layers", "model.feed_forward_proj", "model.parameters", "model.largest_layer"];

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
    };
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
        _ => match MODEL_KEYS.iter().chain(&["train.decoder_seq_len"]).find(|key| values.given(key).is_some()) {
            Some(key) => {
                let message = "has a meaning for family = \"t5\" or \"count\" alone; leave it out";
                Err(values.refuse(key, &["model.family"], message))
            }
            None => Ok(None),
        },
    }
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
        None => 0,
    };
    let blocks = model.num_hidden_layers.saturating_add(decoder);
    strategy::divides(parallel, model, blocks, values.count("train.seq_len")).map_err(refuse)
}
