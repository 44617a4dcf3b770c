//! The model: its sizes, and what its blocks are made of.

use super::is_default;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A decoder in Hugging Face's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// `model_type` of config.json. It names the tensors of a checkpoint; what is computed is in `form`.
    pub family: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Elements of a head; even where it is rotated. Need not be hidden_size / num_attention_heads.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Longest sequence the model is meant for.
    pub max_position_embeddings: usize,
    /// Added to the mean square, or the variance, in every norm.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Change of the rotary frequencies for longer contexts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<RopeScaling>,
    /// The head uses the embedding's matrix.
    pub tie_word_embeddings: bool,
    /// Standard deviation of fresh matrices; norms start at one.
    pub initializer_range: f64,
    /// A token sees this many tokens, itself the last; absent = all before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<usize>,
    /// Blocks below this number see the whole sequence in spite of `sliding_window`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_window_layers: usize,
    /// Token whose embedding has no gradient from look-ups; absent = none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad_token_id: Option<usize>,
    /// What a block is made of; absent = Llama's.
    #[serde(default, skip_serializing_if = "is_default")]
    pub form: Form,
    /// Experts in place of the MLP; absent = every block has one MLP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<Experts>,
    /// Folder with `*.safetensors` to start from; absent = seeded initialisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
    /// Who reads the folder.
    #[serde(default, skip_serializing_if = "is_default")]
    pub loading: Loading,
    /// Folder into which the model is written after the last step, as transformers opens it; absent = nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save: Option<PathBuf>,
}

impl Model {
    /// Tokens that one sees in block `index`; `None` = all before it.
    pub fn window(&self, index: usize) -> Option<usize> {
        self.sliding_window.filter(|_| index >= self.max_window_layers)
    }

    /// The longest sequence that its positions allow; `None` where they are rotary, whose angles go on, as transformers has it.
    pub fn most_tokens(&self) -> Option<usize> {
        (self.form.positions != Positions::Rotary).then_some(self.max_position_embeddings)
    }

    /// The experts of block `index`, if it has any.
    pub fn experts_of(&self, index: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| experts.are_in(index))
    }

    /// Blocks with experts.
    pub fn sparse_blocks(&self) -> usize {
        (0..self.num_hidden_layers).filter(|index| self.experts_of(*index).is_some()).count()
    }
}

/// Experts in place of the MLP, in all blocks or some.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Experts of a block.
    pub num_experts: usize,
    /// Experts that a token goes to.
    pub num_experts_per_tok: usize,
    /// Width of one expert.
    pub moe_intermediate_size: usize,
    /// A token's weights are divided by their sum.
    pub norm_topk_prob: bool,
    /// Blocks have experts at every so many, counted from 1; 1 = all.
    pub decoder_sparse_step: usize,
    /// Blocks that have an MLP in spite of that, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mlp_only_layers: Vec<usize>,
}

impl Experts {
    /// Whether block `index` has experts.
    pub fn are_in(&self, index: usize) -> bool {
        (index + 1).is_multiple_of(self.decoder_sparse_step) && self.mlp_only_layers.binary_search(&index).is_err()
    }
}

/// What a block is made of, beside its sizes. The default is Llama's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Form {
    /// Every norm's kind.
    pub norm: NormKind,
    /// Norms have a bias (of kind `layer` alone).
    pub norm_bias: bool,
    /// Checkpoints store a norm's weight less one (Gemma).
    pub norm_less_one: bool,
    /// Query, key and value projections have a bias.
    pub qkv_bias: bool,
    /// The attention's output projection has a bias.
    pub output_bias: bool,
    /// The MLP's projections have a bias.
    pub mlp_bias: bool,
    /// Queries and keys are normalised, head by head, before the rotation.
    pub qk_norm: bool,
    /// How a token knows its place.
    pub positions: Positions,
    /// The MLP.
    pub mlp: Mlp,
    /// How attention and MLP follow each other.
    pub order: Order,
    /// The embeddings are normalised before the first block (BLOOM).
    pub embedding_norm: bool,
    /// The embeddings are multiplied by the root of the hidden size (Gemma).
    pub embedding_scale: bool,
}

/// The kind of a norm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NormKind {
    /// By the root of the mean square.
    #[default]
    Rms,
    /// To mean 0 and variance 1.
    Layer,
}

/// How a token knows its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Positions {
    /// Queries and keys are rotated.
    #[default]
    Rotary,
    /// A table added to the embeddings.
    Learned,
    /// A penalty on distance in every score.
    Alibi,
}

/// The MLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mlp {
    /// `down(silu(gate(x)) * up(x))`.
    #[default]
    Swiglu,
    /// The same with the tanh form of GELU.
    GegluTanh,
    /// `down(gelu(up(x)))`, exact.
    Gelu,
    /// The same with the tanh form of GELU.
    GeluTanh,
}

/// How attention and MLP follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The MLP reads what attention has added to the stream, through a norm of its own.
    #[default]
    Sequential,
    /// Both read the block's input through one norm.
    Parallel,
    /// Both read the block's input, each through a norm of its own.
    ParallelTwoNorms,
}

/// `rope_scaling` (transformers 4) or `rope_parameters` (transformers 5) other than the default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "lowercase", deny_unknown_fields)]
pub enum RopeScaling {
    /// Positions divided by `factor`.
    Linear {
        /// Divisor of all frequencies.
        factor: f64,
    },
    /// Llama 3: long wavelengths divided by `factor`, short ones kept, a smooth passage between.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are scaled.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of the original training.
        original_max_position_embeddings: usize,
    },
}

/// Who reads a model's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Loading {
    /// Every rank the slices that it keeps.
    #[default]
    Sliced,
    /// Rank 0 all of it into its host memory; it hands units out one by one.
    Broadcast,
    /// Every rank all of it into its host memory.
    Everywhere,
}

impl Loading {
    /// All of them, in the order of reports.
    pub const ALL: [Loading; 3] = [Loading::Sliced, Loading::Broadcast, Loading::Everywhere];

    /// The name in configurations and records.
    pub const fn name(self) -> &'static str {
        match self {
            Loading::Sliced => "sliced",
            Loading::Broadcast => "broadcast",
            Loading::Everywhere => "everywhere",
        }
    }
}
