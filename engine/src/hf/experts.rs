//! Experts in a model's description: which keys there are, their defaults, sizes that cannot be, and parameters.

use super::family::{
    CAUSAL, DROPOUT, Family, KEYS, PLAIN_WEIGHTS, Restricted, SILU, WHOLE_HEADS, is_false, is_zero, only,
    sizes as plain,
};
use super::{HfError, PartialModel};
use crate::config::{Experts, Form, Mlp, Model};

/// Those of families with experts; transformers 4 and 5 have either name for their number.
const EXPERT_KEYS: &[(&str, &str)] = &[
    KEYS[0],
    KEYS[1],
    KEYS[2],
    KEYS[3],
    KEYS[4],
    KEYS[5],
    KEYS[6],
    KEYS[7],
    KEYS[8],
    KEYS[9],
    KEYS[10],
    KEYS[11],
    ("num_experts", "num_experts"),
    ("num_local_experts", "num_experts"),
    ("num_experts_per_tok", "num_experts_per_tok"),
    ("moe_intermediate_size", "moe_intermediate_size"),
    ("norm_topk_prob", "norm_topk_prob"),
    ("decoder_sparse_step", "decoder_sparse_step"),
    ("mlp_only_layers", "mlp_only_layers"),
];
/// How many of them Mixtral has: all its blocks have experts, which are as wide as intermediate_size.
const MIXTRAL_KEYS: usize = 15;

const NO_ROUTER_LOSS: Restricted =
    only("output_router_logits", is_false, "training without the router's auxiliary loss");

/// Experts in every block.
pub(super) const MIXTRAL: Family = Family {
    model_type: "mixtral",
    architecture: "MixtralForCausalLM",
    keys: EXPERT_KEYS.split_at(MIXTRAL_KEYS).0,
    restricted: &[
        SILU,
        DROPOUT,
        WHOLE_HEADS,
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
        ..plain([4096, 14336, 32, 32, 32000, 131_072], 1e-5)
    },
    read: |read, model| {
        read.padding(model)?;
        read.one_number_of_experts()?;
        model.sliding_window = read.window("sliding_window")?;
        Ok(Form::default())
    },
};

/// Experts in every so many blocks, of a width of their own.
pub(super) const QWEN3_MOE: Family = Family {
    model_type: "qwen3_moe",
    architecture: "Qwen3MoeForCausalLM",
    keys: EXPERT_KEYS,
    restricted: &[SILU, DROPOUT, WHOLE_HEADS, CAUSAL, PLAIN_WEIGHTS, NO_ROUTER_LOSS],
    defaults: || PartialModel {
        num_key_value_heads: Some(4),
        num_experts: Some(128),
        num_experts_per_tok: Some(8),
        moe_intermediate_size: Some(768),
        norm_topk_prob: Some(false),
        ..plain([2048, 6144, 24, 32, 151_936, 32768], 1e-6)
    },
    read: |read, model| {
        read.padding(model)?;
        read.one_number_of_experts()?;
        read.window_in_every_block(model)?;
        let bias = read.flag("attention_bias", false)?;
        Ok(Form { qkv_bias: bias, output_bias: bias, qk_norm: true, ..Form::default() })
    },
};

/// Experts of all blocks together: each is three tensors of a plan.
const MOST_EXPERTS: usize = 1 << 18;

/// The experts that the keys describe, of a model of this family, width and depth; none where there are none.
pub(super) fn resolve(
    sizes: &PartialModel,
    family: &str,
    intermediate_size: usize,
    layers: usize,
    what: &str,
) -> Result<Option<Experts>, HfError> {
    let Some(num_experts) = sizes.num_experts else {
        let stated = [
            ("num_experts_per_tok", sizes.num_experts_per_tok.is_some()),
            ("moe_intermediate_size", sizes.moe_intermediate_size.is_some()),
            ("norm_topk_prob", sizes.norm_topk_prob.is_some()),
            ("decoder_sparse_step", sizes.decoder_sparse_step.is_some()),
            ("mlp_only_layers", sizes.mlp_only_layers.is_some()),
        ];
        return match stated.into_iter().find(|(_, stated)| *stated) {
            Some((key, _)) => {
                let reason = format!("is for experts, and the family {family:?} has none; leave it out");
                Err(HfError::field(what, key, reason))
            }
            None => Ok(None),
        };
    };
    if num_experts == 0 {
        return Ok(None);
    }
    let step = sizes.decoder_sparse_step.unwrap_or(1);
    if step == 0 {
        return Err(HfError::field(what, "decoder_sparse_step", "is 0; 1 is experts in every block"));
    }
    // Ascending, without what names no block.
    let mut dense = sizes.mlp_only_layers.clone().unwrap_or_default();
    dense.retain(|index| *index < layers);
    dense.sort_unstable();
    dense.dedup();
    Ok(Some(Experts {
        num_experts,
        num_experts_per_tok: sizes.num_experts_per_tok.unwrap_or(2),
        moe_intermediate_size: sizes.moe_intermediate_size.unwrap_or(intermediate_size),
        norm_topk_prob: sizes.norm_topk_prob.unwrap_or(true),
        decoder_sparse_step: step,
        mlp_only_layers: dense,
    }))
}

/// Refuses experts that cannot be, or that the family's checkpoints have no place for.
pub(super) fn check(model: &Model) -> Result<(), (&'static str, String)> {
    let family = model.family.as_str();
    let Some(experts) = &model.experts else {
        if family == "mixtral" {
            return Err(("num_experts", "is 0; a Mixtral has experts in every block, \"mistral\" has none".into()));
        }
        return Ok(());
    };
    if !["mixtral", "qwen3_moe"].contains(&family) {
        let reason = format!("are there, and the family {family:?} has none; \"mixtral\" and \"qwen3_moe\" have");
        return Err(("num_experts", reason));
    }
    let Experts { num_experts, num_experts_per_tok: top, moe_intermediate_size: wide, .. } = *experts;
    for (key, size) in [
        ("num_experts", num_experts),
        ("num_experts_per_tok", top),
        ("moe_intermediate_size", wide),
        ("decoder_sparse_step", experts.decoder_sparse_step),
    ] {
        if size == 0 {
            return Err((key, "is 0; it must be at least 1".into()));
        }
    }
    if top > num_experts {
        return Err(("num_experts_per_tok", format!("is {top}; there are {num_experts} experts")));
    }
    if !experts.mlp_only_layers.is_sorted_by(|a, b| a < b) {
        return Err(("mlp_only_layers", "does not name each block once, in ascending order".into()));
    }
    if num_experts.saturating_mul(model.num_hidden_layers) > MOST_EXPERTS {
        let reason = format!("is {num_experts}; zbench takes at most {MOST_EXPERTS} in all blocks together");
        return Err(("num_experts", reason));
    }
    if model.form.mlp != Mlp::Swiglu || model.form.mlp_bias {
        return Err(("form", "has another MLP than SwiGLU without biases, which is what experts are".into()));
    }
    if model.max_window_layers > 0 {
        let reason = format!("is {}; the family {family:?} has its window in every block", model.max_window_layers);
        return Err(("max_window_layers", reason));
    }
    if family == "mixtral" {
        let plain = Experts {
            moe_intermediate_size: model.intermediate_size,
            norm_topk_prob: true,
            decoder_sparse_step: 1,
            mlp_only_layers: Vec::new(),
            ..experts.clone()
        };
        let other = [
            ("moe_intermediate_size", experts.moe_intermediate_size != plain.moe_intermediate_size),
            ("norm_topk_prob", experts.norm_topk_prob != plain.norm_topk_prob),
            ("decoder_sparse_step", experts.decoder_sparse_step != plain.decoder_sparse_step),
            ("mlp_only_layers", experts.mlp_only_layers != plain.mlp_only_layers),
        ];
        if let Some((key, _)) = other.into_iter().find(|(_, other)| *other) {
            let reason = "is not Mixtral's, whose experts are all as wide as intermediate_size, in every block, with weights \
                          that add up to one; family \"qwen3_moe\" can have others";
            return Err((key, reason.into()));
        }
    }
    Ok(())
}

/// Experts, how many of them a token goes to, parameters of a block's router, and of one expert.
pub(super) fn sizes(model: &Model) -> Option<[u128; 4]> {
    let experts = model.experts.as_ref()?;
    let (hidden, count) = (model.hidden_size as u128, experts.num_experts as u128);
    let each = 3u128.saturating_mul(hidden).saturating_mul(experts.moe_intermediate_size as u128);
    Some([count, experts.num_experts_per_tok as u128, count.saturating_mul(hidden), each])
}
