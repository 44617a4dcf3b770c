//! Sizes and numbers that a model cannot have.

use super::{HfError, Refused, experts, family_of, fused_in, parameter_count};
use crate::config::{Linear, Model, NormKind, Positions, RopeScaling};

/// More blocks than any model; a typing error beyond it would fill memory with plans.
pub const MAX_LAYERS: usize = 65_536;

/// Elements whose bytes, at the 18 bytes per parameter of mixed-precision training, fit in 64 signed bits.
const MAX_ELEMENTS: u128 = (i64::MAX / 18) as u128;

/// Refuses sizes that cannot be or whose bytes overflow, naming the key.
pub fn validate(model: &Model) -> Result<(), HfError> {
    check(model).map_err(|(field, reason)| HfError::field("model", field, reason))
}

pub(super) fn check(model: &Model) -> Result<(), Refused> {
    sizes(model)?;
    experts::check(model)?;
    numbers(model)?;
    model.rope_scaling.as_ref().map_or(Ok(()), rope_scaling)
}

fn sizes(model: &Model) -> Result<(), Refused> {
    let hidden = ("hidden_size", model.hidden_size);
    let ffn = ("intermediate_size", model.intermediate_size);
    let layers = ("num_hidden_layers", model.num_hidden_layers);
    let heads = ("num_attention_heads", model.num_attention_heads);
    let kv_heads = ("num_key_value_heads", model.num_key_value_heads);
    let head_dim = ("head_dim", model.head_dim);
    let vocab = ("vocab_size", model.vocab_size);
    let positions = ("max_position_embeddings", model.max_position_embeddings);
    for (field, size) in [hidden, ffn, layers, heads, kv_heads, head_dim, vocab, positions] {
        if size == 0 {
            return Err((field, "is 0; it must be at least 1".into()));
        }
    }
    if !heads.1.is_multiple_of(kv_heads.1) {
        let reason = format!(
            "{} key and value heads do not divide {} query heads (num_attention_heads); every group of query heads \
             shares one",
            kv_heads.1, heads.1
        );
        return Err(("num_key_value_heads", reason));
    }
    if model.form.positions == Positions::Rotary && !head_dim.1.is_multiple_of(2) {
        return Err(("head_dim", format!("is {}; the rotary embedding turns pairs, so it must be even", head_dim.1)));
    }
    if fused_in(model, Linear::QProj).is_some() {
        whole_heads(model)?;
    }
    if model.sliding_window == Some(0) {
        return Err(("sliding_window", "is 0; a token sees at least itself".into()));
    }
    if model.form.norm_bias && model.form.norm == NormKind::Rms {
        return Err(("form", "has norm_bias with norm = \"rms\"; only norm = \"layer\" has a bias".into()));
    }
    if layers.1 > MAX_LAYERS {
        return Err(("num_hidden_layers", format!("is {}; zbench takes at most {MAX_LAYERS}", layers.1)));
    }
    if let Some(token) = model.pad_token_id {
        if token >= vocab.1 {
            let reason = format!("is {token}; the vocabulary has {}; name a token of it, or -1 for none", vocab.1);
            return Err(("pad_token_id", reason));
        }
        if !family_of(model).has_padding {
            let reason = format!("is stated; transformers' embeddings of the family {:?} have none", model.family);
            return Err(("pad_token_id", reason));
        }
    }
    if vocab.1 as u64 > u64::from(u32::MAX) {
        return Err(("vocab_size", format!("is {}; a token is 32 bits, so at most {}", vocab.1, u32::MAX)));
    }
    for factors in
        [&[vocab, hidden][..], &[heads, head_dim, hidden], &[ffn, hidden], &[positions, head_dim], &[positions, hidden]]
    {
        fits(factors)?;
    }
    if let Some(experts) = &model.experts {
        fits(&[
            ("num_experts", experts.num_experts),
            ("moe_intermediate_size", experts.moe_intermediate_size),
            hidden,
        ])?;
    }
    let parameters = parameter_count(model);
    if u128::from(parameters) > MAX_ELEMENTS {
        return Err(("num_hidden_layers", format!("makes {parameters} parameters, whose bytes overflow 64 bits")));
    }
    Ok(())
}

/// Families that store queries, keys and values as one split the hidden size into heads, as their checkpoints do.
fn whole_heads(model: &Model) -> Result<(), Refused> {
    let (heads, dim, hidden) = (model.num_attention_heads, model.head_dim, model.hidden_size);
    if heads.checked_mul(dim) != Some(hidden) {
        let reason = format!("is {dim}; the family {:?} has hidden_size = {hidden} / {heads} heads", model.family);
        return Err(("head_dim", reason));
    }
    if !family_of(model).has_grouped_heads && model.num_key_value_heads != heads {
        let reason =
            format!("is {}; the family {:?} has one for each query head", model.num_key_value_heads, model.family);
        return Err(("num_key_value_heads", reason));
    }
    Ok(())
}

/// Refuses a product of sizes whose bytes overflow, naming the largest factor.
fn fits(factors: &[(&'static str, usize)]) -> Result<(), Refused> {
    let product = factors.iter().try_fold(1u128, |all, (_, size)| all.checked_mul(*size as u128));
    if product.is_some_and(|elements| elements <= MAX_ELEMENTS) {
        return Ok(());
    }
    let largest = factors.iter().max_by_key(|(_, size)| *size).map_or("model", |(name, _)| *name);
    let all: Vec<String> = factors.iter().map(|(name, size)| format!("{name} {size}")).collect();
    Err((largest, format!("is too large: the bytes of {} overflow 64 bits", all.join(" x "))))
}

fn numbers(model: &Model) -> Result<(), Refused> {
    let refuse = |field, value: f64, want: &str| Err((field, format!("is {value}; it must be a finite number {want}")));
    if !(model.rms_norm_eps.is_finite() && model.rms_norm_eps >= 0.0) {
        return refuse("rms_norm_eps", model.rms_norm_eps, "of 0 or more");
    }
    if !(model.rope_theta.is_finite() && model.rope_theta > 0.0) {
        return refuse("rope_theta", model.rope_theta, "above 0");
    }
    if !(model.initializer_range.is_finite() && model.initializer_range >= 0.0) {
        return refuse("initializer_range", model.initializer_range, "of 0 or more");
    }
    Ok(())
}

fn rope_scaling(scaling: &RopeScaling) -> Result<(), Refused> {
    let (RopeScaling::Linear { factor } | RopeScaling::Llama3 { factor, .. }) = *scaling;
    if !(factor.is_finite() && factor >= 1.0) {
        return Err(("rope_scaling.factor", format!("is {factor}; it must be a finite number of 1 or more")));
    }
    if let RopeScaling::Llama3 {
        low_freq_factor: low, high_freq_factor: high, original_max_position_embeddings, ..
    } = *scaling
    {
        if !(low.is_finite() && high.is_finite() && 0.0 < low && low < high) {
            let reason = format!("is {high} and low_freq_factor is {low}; both must be above 0, and high above low");
            return Err(("rope_scaling.high_freq_factor", reason));
        }
        if original_max_position_embeddings == 0 {
            return Err(("rope_scaling.original_max_position_embeddings", "is 0; it must be at least 1".into()));
        }
    }
    Ok(())
}
