//! Experts in a model's description: what its keys mean, and sizes that cannot be.

use super::families::{Family, quoted};
use super::{HfError, PartialModel, Refused, family_of};
use crate::config::{Experts, Mlp, Model};

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
pub(super) fn check(model: &Model) -> Result<(), Refused> {
    let (family, name) = (family_of(model), &model.family);
    let Some(experts) = &model.experts else { return (family.check_experts)(model) };
    if !family.has_experts() {
        let others = quoted(Family::has_experts, " and ");
        return Err(("num_experts", format!("are there, and the family {name:?} has none; {others} have")));
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
        let reason = format!("is {}; the family {name:?} has its window in every block", model.max_window_layers);
        return Err(("max_window_layers", reason));
    }
    (family.check_experts)(model)
}
