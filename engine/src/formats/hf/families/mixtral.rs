//! Mixtral: Mistral with experts in every block, as wide as its MLP would be.

use super::{Family, TensorNames, llama, sizes};
use crate::config::Linear;
use crate::formats::hf::PartialModel;
use crate::formats::hf::reader::{CAUSAL, DROPOUT, NO_ROUTER_LOSS, PLAIN_WEIGHTS, SILU, is_zero, only};
use serde_json::json;

pub(super) const FAMILY: Family = Family {
    model_type: "mixtral",
    architecture: "MixtralForCausalLM",
    block_class: "MixtralDecoderLayer",
    presets: presets!["mixtral-8x7b" 46_702_792_704, "mixtral-8x22b" 140_620_634_112],
    keys: &[llama::KEYS, EXPERT_KEYS],
    restricted: &[
        SILU,
        DROPOUT,
        CAUSAL,
        PLAIN_WEIGHTS,
        NO_ROUTER_LOSS,
        only("router_jitter_noise", is_zero, "a router without noise; write 0 to train without it"),
    ],
    defaults: || PartialModel {
        num_key_value_heads: Some(8),
        rope_theta: Some(1e6),
        num_experts: Some(8),
        num_experts_per_tok: Some(2),
        norm_topk_prob: Some(true),
        ..sizes([4096, 14336, 32, 32, 32000, 131_072], 1e-5)
    },
    read: |read, model, _| {
        read.one_number_of_experts()?;
        model.sliding_window = read.window("sliding_window")?;
        Ok(())
    },
    write: |model| {
        let experts = model.experts.as_ref();
        let own = json!({
            "sliding_window": model.sliding_window,
            "output_router_logits": false,
            "num_experts_per_tok": experts.map_or(1, |experts| experts.num_experts_per_tok),
            "num_local_experts": experts.map_or(0, |experts| experts.num_experts),
            "router_jitter_noise": 0.0,
        });
        llama::with(model, own)
    },
    check_experts: |model| {
        let Some(experts) = &model.experts else {
            return Err(("num_experts", "is 0; a Mixtral has experts in every block, \"mistral\" has none".into()));
        };
        let other = [
            ("moe_intermediate_size", experts.moe_intermediate_size != model.intermediate_size),
            ("norm_topk_prob", !experts.norm_topk_prob),
            ("decoder_sparse_step", experts.decoder_sparse_step != 1),
            ("mlp_only_layers", !experts.mlp_only_layers.is_empty()),
        ];
        other.into_iter().find(|(_, other)| *other).map_or(Ok(()), |(key, _)| {
            let reason = "is not Mixtral's, whose experts are all as wide as intermediate_size, in every block, with weights \
                          that add up to one; family \"qwen3_moe\" can have others";
            Err((key, reason.into()))
        })
    },
    tensors: |_| &TENSORS,
    rounded_weights: false,
    // The third of PEFT's, w2, is no module of transformers 5, and PEFT passes over it.
    ia3_targets: &[Linear::KProj, Linear::VProj],
    ..llama::FAMILY
};

/// Transformers 4 and 5 have either name for the number of experts.
pub(super) const EXPERT_KEYS: &[(&str, &str)] = &[
    ("num_experts", "num_experts"),
    ("num_local_experts", "num_experts"),
    ("num_experts_per_tok", "num_experts_per_tok"),
];

const TENSORS: TensorNames = TensorNames {
    router: "block_sparse_moe.gate",
    experts: "block_sparse_moe.experts",
    expert_gate: "w1",
    expert_up: "w3",
    expert_down: "w2",
    ..llama::TENSORS
};
