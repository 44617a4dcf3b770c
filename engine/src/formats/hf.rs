//! Hugging Face's description of a model, read into [`Model`]: `config.json` as transformers 4 and 5 write it, the same
//! keys in TOML, and the presets that come with zbench.
//!
//! A `config.json` is a foreign file: keys that do not change the mathematics are ignored, and whatever would change it
//! and is not implemented here is refused by name. A TOML section is ours: there an unknown key is an error.

mod experts;
mod families;
mod foreign;
mod reader;
mod validate;
mod write;

pub use families::{ConfigKeys, block_class, config_keys, fused_in, known_targets, preset, preset_names};
pub(crate) use families::{Family, Qkv, TensorNames, modules, of as family_of};
pub use foreign::{model_from_hf, model_from_hf_without_dropout};
pub(crate) use reader::{Restricted, only};
pub use validate::{MAX_LAYERS, validate};
pub use write::config_json;
pub(crate) use write::{config_text, weights_file, weights_index};

use crate::config::{Form, Loading, Mlp, Model, Order, Positions, RopeScaling};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HfError {
    #[error("{what}: not a Hugging Face config.json: {reason}; fetch the file again")]
    Json {
        what: String,
        /// What the parser met, with line and column.
        reason: String,
    },
    #[error("{what}: {field}: {reason}")]
    Field {
        /// The file, or `model`.
        what: String,
        field: String,
        reason: String,
    },
    #[error("{what}: this model needs what zbench does not have: {}", .missing.join("; "))]
    Unsupported {
        what: String,
        /// Each key with its value, and what is there instead.
        missing: Vec<String>,
    },
    #[error("model.preset: there is no preset {name:?}; there are {}", preset_names().collect::<Vec<_>>().join(", "))]
    UnknownPreset { name: String },
}

/// A refused field, and why.
type Refused = (&'static str, String);

impl HfError {
    fn field(what: &str, field: &str, reason: impl Into<String>) -> HfError {
        HfError::Field { what: what.into(), field: field.into(), reason: reason.into() }
    }
}

/// A model's keys as people write them, each optional. [`PartialModel::resolve`] fills in transformers' defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartialModel {
    /// `model_type`; default "llama". The defaults of the other keys are those of transformers for the family; below,
    /// Llama's.
    pub family: Option<String>,
    /// Default 4096.
    pub hidden_size: Option<usize>,
    /// Default 11008; 4 hidden_size where a family's MLP has no gate.
    pub intermediate_size: Option<usize>,
    /// Default 32.
    pub num_hidden_layers: Option<usize>,
    /// Default 32.
    pub num_attention_heads: Option<usize>,
    pub num_key_value_heads: Option<usize>,
    /// Default hidden_size / num_attention_heads.
    pub head_dim: Option<usize>,
    /// Default 32000.
    pub vocab_size: Option<usize>,
    /// Default 2048.
    pub max_position_embeddings: Option<usize>,
    /// Default 1e-6. Of every norm, whatever its kind.
    pub rms_norm_eps: Option<f64>,
    /// Default 10000.
    pub rope_theta: Option<f64>,
    /// Default none. `rope_parameters` is transformers 5's name of it.
    #[serde(alias = "rope_parameters")]
    pub rope_scaling: Option<PartialRope>,
    pub tie_word_embeddings: Option<bool>,
    /// Default 0.02.
    pub initializer_range: Option<f64>,
    /// Tokens that one sees, itself the last; 0 = all before it, the default of all families but Mistral.
    pub sliding_window: Option<usize>,
    /// Blocks below this number see the whole sequence; default 0.
    pub max_window_layers: Option<usize>,
    /// Token whose embedding has no gradient from look-ups; -1 = none, the default of all families but Gemma, where it is 0.
    pub pad_token_id: Option<i64>,
    /// Experts of a block; default the family's, of most none.
    pub num_experts: Option<usize>,
    /// Experts that a token goes to; default the family's.
    pub num_experts_per_tok: Option<usize>,
    /// Width of one expert; default the family's, of Mixtral intermediate_size.
    pub moe_intermediate_size: Option<usize>,
    /// Whether a token's weights are divided by their sum; default the family's.
    pub norm_topk_prob: Option<bool>,
    /// Every so many blocks have experts; default 1, all.
    pub decoder_sparse_step: Option<usize>,
    /// Blocks that have none in spite of that; default none of them.
    pub mlp_only_layers: Option<Vec<usize>>,
    /// What a block is made of; default the family's.
    pub form: Option<Form>,
}

/// `rope_scaling` of transformers 4, `rope_parameters` of transformers 5: the keys of [`RopeScaling`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartialRope {
    /// `default`, `linear` or `llama3`; older files call it `type`.
    #[serde(alias = "type")]
    pub rope_type: Option<String>,
    /// Transformers 5 has it here.
    pub rope_theta: Option<f64>,
    pub factor: Option<f64>,
    pub low_freq_factor: Option<f64>,
    pub high_freq_factor: Option<f64>,
    pub original_max_position_embeddings: Option<usize>,
}

impl PartialModel {
    /// These keys, and those of `base` where these are absent: overrides over a preset or a file.
    /// The form and the experts of `base` are its family's: where these keys name another family, they go.
    pub fn or(self, mut base: PartialModel) -> PartialModel {
        if self.family.is_some() && base.family.is_some() && self.family != base.family {
            (base.form, base.num_experts, base.num_experts_per_tok) = (None, None, None);
            (base.moe_intermediate_size, base.norm_topk_prob) = (None, None);
            (base.decoder_sparse_step, base.mlp_only_layers) = (None, None);
        }
        macro_rules! first_of_both {
            ($($key:ident)*) => { PartialModel { $($key: self.$key.or(base.$key)),* } };
        }
        first_of_both!(
            family hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
            vocab_size max_position_embeddings rms_norm_eps rope_theta rope_scaling tie_word_embeddings
            initializer_range sliding_window max_window_layers pad_token_id num_experts num_experts_per_tok
            moe_intermediate_size norm_topk_prob decoder_sparse_step mlp_only_layers form
        )
    }

    /// The model these keys describe, absent ones at the defaults of transformers for the family, and validated.
    /// `what` names the source in errors: a file, or a section.
    pub fn resolve(self, what: &str) -> Result<Model, HfError> {
        let name = self.family.clone().unwrap_or_else(|| "llama".into());
        let family = families::family(&name).ok_or_else(|| families::unknown(&format!("{name:?}"), what))?;
        // Key heads by default are of the default's size; other sizes have as many as query heads.
        let stated_heads = self.num_attention_heads.is_some();
        let kv_heads = self.num_key_value_heads;
        // A base frequency is stated beside the scaling or in it; the default is neither.
        let mut defaults = (family.defaults)();
        let usual_theta = defaults.rope_theta.take().unwrap_or(10000.0);
        let sizes = self.or(defaults);
        let num_attention_heads = sizes.num_attention_heads.unwrap_or(32);
        let hidden_size = sizes.hidden_size.unwrap_or(4096);
        let head_dim = match sizes.head_dim {
            Some(head_dim) => head_dim,
            None => head_dim(what, hidden_size, num_attention_heads)?,
        };
        let default_kv =
            sizes.num_key_value_heads.filter(|kv| !stated_heads || num_attention_heads.is_multiple_of(*kv));
        let intermediate_size = sizes.intermediate_size.unwrap_or(hidden_size.saturating_mul(4));
        let num_hidden_layers = sizes.num_hidden_layers.unwrap_or(32);
        let experts = experts::resolve(&sizes, &name, intermediate_size, num_hidden_layers, what)?;
        let rope = sizes.rope_scaling.unwrap_or_default();
        let window = sizes.sliding_window.filter(|window| *window > 0);
        let model = Model {
            family: name,
            hidden_size,
            intermediate_size,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads: kv_heads.or(default_kv).unwrap_or(num_attention_heads),
            head_dim,
            vocab_size: sizes.vocab_size.unwrap_or(32000),
            max_position_embeddings: sizes.max_position_embeddings.unwrap_or(2048),
            rms_norm_eps: sizes.rms_norm_eps.unwrap_or(1e-6),
            rope_theta: rope.theta(sizes.rope_theta, what)?.unwrap_or(usual_theta),
            rope_scaling: rope.scaling(what)?,
            tie_word_embeddings: sizes.tie_word_embeddings.unwrap_or(false),
            initializer_range: sizes.initializer_range.unwrap_or(0.02),
            sliding_window: window,
            max_window_layers: sizes.max_window_layers.filter(|_| window.is_some()).unwrap_or(0),
            pad_token_id: sizes.pad_token_id.and_then(|token| usize::try_from(token).ok()),
            form: sizes.form.unwrap_or_else(family.form),
            experts,
            weights: None,
            loading: Loading::default(),
            save: None,
        };
        validate::check(&model).map_err(|(field, reason)| HfError::field(what, field, reason))?;
        Ok(model)
    }
}

/// `hidden_size / num_attention_heads`, which must come out whole.
fn head_dim(what: &str, hidden_size: usize, heads: usize) -> Result<usize, HfError> {
    if heads == 0 {
        return Err(HfError::field(what, "num_attention_heads", "is 0; a model has at least one head"));
    }
    if !hidden_size.is_multiple_of(heads) {
        let reason = format!(
            "does not divide hidden_size: {hidden_size} / {heads} is not whole; change one of them, or state head_dim"
        );
        return Err(HfError::field(what, "num_attention_heads", reason));
    }
    Ok(hidden_size / heads)
}

impl PartialRope {
    /// The base frequency, stated here (transformers 5), beside (transformers 4), or nowhere.
    fn theta(&self, beside: Option<f64>, what: &str) -> Result<Option<f64>, HfError> {
        match (self.rope_theta, beside) {
            (Some(here), Some(beside)) if here != beside => {
                let reason = format!("is {beside} beside rope_parameters and {here} in it; keep one of them");
                Err(HfError::field(what, "rope_theta", reason))
            }
            (here, beside) => Ok(here.or(beside)),
        }
    }

    fn scaling(&self, what: &str) -> Result<Option<RopeScaling>, HfError> {
        let need = |name: &str, value: Option<f64>| {
            value.ok_or_else(|| HfError::field(what, &format!("rope_scaling.{name}"), "is missing for this rope_type"))
        };
        match self.rope_type.as_deref() {
            Some("default") => Ok(None),
            None if PartialRope { rope_theta: None, ..self.clone() } != PartialRope::default() => {
                let reason = "is missing beside the scaling's factors; state \"linear\" or \"llama3\"";
                Err(HfError::field(what, "rope_scaling.rope_type", reason))
            }
            None => Ok(None),
            Some("linear") => Ok(Some(RopeScaling::Linear { factor: need("factor", self.factor)? })),
            Some("llama3") => Ok(Some(RopeScaling::Llama3 {
                factor: need("factor", self.factor)?,
                low_freq_factor: need("low_freq_factor", self.low_freq_factor)?,
                high_freq_factor: need("high_freq_factor", self.high_freq_factor)?,
                original_max_position_embeddings: self.original_max_position_embeddings.ok_or_else(|| {
                    let field = "rope_scaling.original_max_position_embeddings";
                    HfError::field(what, field, "is missing for rope_type \"llama3\"")
                })?,
            })),
            Some(other) => {
                let missing = vec![format!("rope_type {other:?} (zbench has \"default\", \"linear\", \"llama3\")")];
                Err(HfError::Unsupported { what: what.into(), missing })
            }
        }
    }
}

impl From<&Model> for PartialModel {
    /// All keys stated, so that a file's model can be the base of overrides. Where its files are is no key.
    fn from(model: &Model) -> PartialModel {
        let (experts, defaults) = (model.experts.as_ref(), (family_of(model).defaults)());
        let plain = Model { experts: None, weights: None, loading: Loading::default(), save: None, ..model.clone() };
        let keys = serde_json::from_value(json!(plain)).expect("every other key of a model is one of a partial one");
        PartialModel {
            // A model leaves these out where they are the default; a family's default would take their place.
            sliding_window: Some(model.sliding_window.unwrap_or(0)),
            max_window_layers: Some(model.max_window_layers),
            pad_token_id: Some(model.pad_token_id.map_or(-1, |token| token as i64)),
            form: Some(model.form),
            num_experts: experts.map(|experts| experts.num_experts).or(defaults.num_experts.map(|_| 0)),
            num_experts_per_tok: experts.map(|experts| experts.num_experts_per_tok),
            // Where there is no default they are as wide as the MLP, whatever that becomes.
            moe_intermediate_size: experts
                .filter(|_| defaults.moe_intermediate_size.is_some())
                .map(|experts| experts.moe_intermediate_size),
            norm_topk_prob: experts.map(|experts| experts.norm_topk_prob),
            decoder_sparse_step: experts.map(|experts| experts.decoder_sparse_step),
            mlp_only_layers: experts.map(|experts| experts.mlp_only_layers.clone()),
            ..keys
        }
    }
}

pub fn default_model(family: &str) -> Result<Model, HfError> {
    PartialModel { family: Some(family.into()), ..Default::default() }.resolve("model")
}

/// Parameters of a model, a tied head counted once: embeddings, per block norms, attention's four and the MLP's two or
/// three projections with their biases or a router and its experts, a last norm, a head. Saturates where [`validate`] would
/// have refused.
pub fn parameter_count(model: &Model) -> u64 {
    let [hidden, ffn, heads, kv, dim, vocab, layers, positions] = [
        model.hidden_size,
        model.intermediate_size,
        model.num_attention_heads,
        model.num_key_value_heads,
        model.head_dim,
        model.vocab_size,
        model.num_hidden_layers,
        model.max_position_embeddings,
    ]
    .map(|size| size as u128);
    let form = model.form;
    // Saturating u128 keeps absurd sizes from wrapping round to plausible ones.
    let product = |factors: &[u128]| factors.iter().fold(1u128, |all, factor| all.saturating_mul(*factor));
    let sum = |terms: &[u128]| terms.iter().fold(0u128, |all, term| all.saturating_add(*term));
    let when = |there: bool, count: u128| if there { count } else { 0 };
    let vectors = 1 + when(form.norm_bias, 1);
    let gates = when(matches!(form.mlp, Mlp::Swiglu | Mlp::GegluTanh), 1);
    let queries = product(&[heads, dim]);
    let block = sum(&[
        product(&[2, hidden, dim, heads.saturating_add(kv)]),
        when(form.qkv_bias, queries.saturating_add(product(&[2, kv, dim]))),
        when(form.output_bias, hidden),
        product(&[1 + when(form.order != Order::Parallel, 1), vectors, hidden]),
        when(form.qk_norm, product(&[2, vectors, dim])),
    ]);
    let mlp = sum(&[
        product(&[2 + gates, hidden, ffn]),
        when(form.mlp_bias, product(&[1 + gates, ffn]).saturating_add(hidden)),
    ]);
    let sparse = model.sparse_blocks() as u128;
    // A router's row and three matrices for each expert.
    let experts = model.experts.as_ref().map_or(0, |experts| {
        let each = product(&[3, hidden, experts.moe_intermediate_size as u128]).saturating_add(hidden);
        product(&[experts.num_experts as u128, each])
    });
    let vocabularies = if model.tie_word_embeddings { 1 } else { 2 };
    let all = sum(&[
        product(&[layers, block]),
        product(&[layers - sparse, mlp]),
        product(&[sparse, experts]),
        product(&[vocabularies, vocab, hidden]),
        when(form.positions == Positions::Learned, product(&[positions, hidden])),
        product(&[1 + when(form.embedding_norm, 1), vectors, hidden]),
    ]);
    u64::try_from(all).unwrap_or(u64::MAX)
}
