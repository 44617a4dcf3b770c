//! What a cell may ask for that this version of the engine prices and does not run. A cell with any of it is planned by
//! `zbench-estimate` and skipped by a grid. What the engine learns moves out of here, together with its tests.

use super::{Cell, Degrees, DeviceKind, Loading, is_default};
use serde::{Deserialize, Serialize};
use zbench_kernels::DType;

/// Everything that is priced and not run. The default is none of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Priced {
    /// Tokens of the busiest expert rank over the mean.
    pub expert_imbalance: f64,
    /// What gathered weights travel as; absent = as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gather_wire: Option<Wire>,
    /// What reduced gradients travel as; absent = precision.reduce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduce_wire: Option<Wire>,
    /// Ranks over which a second copy of the weights waits for backward (hpZ); 1 = none.
    pub parked: usize,
    /// How the loss is made.
    pub loss: PricedLoss,
    /// Which axis lies within a node, beside those of tensor and context.
    #[serde(skip_serializing_if = "is_default")]
    pub placement: Placement,
    /// A model that the engine has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<PricedModel>,
    /// The model has dropout in its blocks.
    #[serde(skip_serializing_if = "is_default")]
    pub dropout: bool,
    /// The form of matrix products; absent = precision.compute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub products: Option<Products>,
    /// Gradients are summed in f32 beside those in precision.gradients.
    #[serde(skip_serializing_if = "is_default")]
    pub main_gradients: bool,
    /// The optimizer, where it is not AdamW.
    #[serde(skip_serializing_if = "is_default")]
    pub optimizer: PricedOptimizer,
    /// Each gradient is used by the optimizer and freed as soon as backward has made it.
    #[serde(skip_serializing_if = "is_default")]
    pub optimizer_in_backward: bool,
    /// Ranks over which optimizer state is split, where they are others than the strategy says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer_shard: Option<usize>,
    /// The generation of the flash attention kernel; absent = the second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flash_generation: Option<u8>,
    /// What backward recomputes, beside or instead of memory.checkpointing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recompute: Option<PricedRecompute>,
    /// Tensor parallel collectives run beside products (asynchronous tensor parallelism).
    #[serde(skip_serializing_if = "is_default")]
    pub tensor_overlap: bool,
    /// The experts' all-to-all of one micro-batch runs beside the compute of another.
    #[serde(skip_serializing_if = "is_default")]
    pub expert_overlap: bool,
    /// Trainable parameters of the adapters; absent = those of lora.targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trainable: Option<u64>,
    /// Type of the adapters' weights; absent = precision.parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter_dtype: Option<DType>,
    /// Who reads the weights of a model without model.path; absent = as the software does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loading: Option<Loading>,
    /// Parts of the model that the engine lacks and no size depends on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// `left_out` is of the config.json that `model.path` names, so that a refusal names that key. Records do not have it.
    #[serde(skip)]
    pub is_of_folder: bool,
}

impl Default for Priced {
    fn default() -> Priced {
        Priced {
            expert_imbalance: 1.0,
            gather_wire: None,
            reduce_wire: None,
            parked: 1,
            loss: PricedLoss::Fused,
            placement: Placement::DataInside,
            model: None,
            dropout: false,
            products: None,
            main_gradients: false,
            optimizer: PricedOptimizer::AdamW,
            optimizer_in_backward: false,
            optimizer_shard: None,
            flash_generation: None,
            recompute: None,
            tensor_overlap: false,
            expert_overlap: false,
            trainable: None,
            adapter_dtype: None,
            loading: None,
            left_out: Vec::new(),
            is_of_folder: false,
        }
    }
}

/// A key's value, where it is not the usual one.
fn unless<T: PartialEq + Serialize>(usual: T, value: T) -> Option<String> {
    (value != usual).then(|| serde_json::json!(value).to_string())
}

impl Cell {
    /// The first key that the engine would have to know, and what it says; `None` of a cell that the engine runs. Nothing else
    /// decides which cells are priced and not run: what the engine learns leaves this list.
    pub fn first_priced_key(&self) -> Option<(&'static str, String)> {
        let Degrees { tensor, pipeline, context, expert, expert_tensor, .. } = self.parallel.degrees;
        let degrees =
            [("parallel.context", context), ("parallel.expert", expert), ("parallel.expert_tensor", expert_tensor)];
        let degree = degrees.into_iter().find_map(|(key, ranks)| Some((key, unless(1, ranks)?)));
        // No such run has been seen on GPUs.
        let is_on_gpus = self.hardware.device == DeviceKind::Cuda;
        let unseen = [("parallel.tensor", tensor), ("parallel.pipeline", pipeline)];
        let unseen = unseen.into_iter().find(|(_, ranks)| is_on_gpus && *ranks > 1);
        let unseen = unseen.map(|(key, ranks)| (key, format!("{ranks} on GPUs")));
        degree.or(unseen).or_else(|| self.priced.as_ref()?.first_key())
    }

    /// Whether it is priced alone; see [`Cell::first_priced_key`].
    pub fn is_priced(&self) -> bool {
        self.first_priced_key().is_some()
    }
}

impl Priced {
    /// The first of its keys that is not as usual, and what it says.
    pub fn first_key(&self) -> Option<(&'static str, String)> {
        let quoted = |word: &str| Some(format!("{word:?}"));
        let loss = match self.loss {
            PricedLoss::Fused => None,
            PricedLoss::Logits => quoted("logits"),
            PricedLoss::Chunked(_) => quoted("chunked"),
        };
        let of_folder = self.is_of_folder.then(|| format!("a model with {}", self.left_out.join(", ")));
        let keys = [
            ("model.path", of_folder),
            ("parallel.gather_wire", unless(None, self.gather_wire)),
            ("parallel.reduce_wire", unless(None, self.reduce_wire)),
            ("memory.loss", loss),
            ("parallel.placement", unless(Placement::DataInside, self.placement)),
            ("model.family", self.model.as_ref().and_then(|model| quoted(model.name()))),
            ("parallel.strategy", if self.parked > 1 { quoted("zero++") } else { None }),
            ("model.dropout", self.dropout.then(|| "above 0".to_string())),
            ("precision.products", unless(None, self.products)),
            ("precision.main_gradients", unless(false, self.main_gradients)),
            ("train.optimizer", unless(PricedOptimizer::AdamW, self.optimizer)),
            ("train.optimizer_in_backward", unless(false, self.optimizer_in_backward)),
            ("parallel.optimizer_shard", unless(None, self.optimizer_shard)),
            ("memory.attention", self.flash_generation.and_then(|generation| quoted(&format!("flash{generation}")))),
            ("memory.recompute", unless(None, self.recompute.clone())),
            ("parallel.tensor_overlap", unless(false, self.tensor_overlap)),
            ("parallel.expert_overlap", unless(false, self.expert_overlap)),
            ("lora.trainable", unless(None, self.trainable)),
            ("lora.adapter_dtype", unless(None, self.adapter_dtype)),
            ("model.loading", unless(None, self.loading)),
            ("model.left_out", unless(Vec::new(), self.left_out.clone())),
        ];
        keys.into_iter().find_map(|(key, word)| Some((key, word?)))
    }

    /// What makes a model run that lacks nothing but what one change takes away.
    pub(crate) fn remedy(&self) -> Option<&'static str> {
        let all = |word: &str| !self.left_out.is_empty() && self.left_out.iter().all(|part| part.contains(word));
        let remedies = [
            ("drop", "model.dropout = 0.0 trains without dropout"),
            (
                "quantization_config",
                "a folder of its weights in f32, bf16 or f16 runs, with lora.rank and lora.base for adapters on quantised ones",
            ),
        ];
        remedies.into_iter().find_map(|(word, remedy)| all(word).then_some(remedy))
    }
}

/// What travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// Two bytes.
    Bf16,
    /// One byte, and a scale per block.
    Int8,
    /// Half a byte, and a scale per block.
    Int4,
}

/// How ranks are numbered, from the innermost axis on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Tensor, context, data, pipeline: the engine's own order.
    #[default]
    DataInside,
    /// Tensor, context, pipeline, data.
    PipelineInside,
}

impl Placement {
    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Placement::DataInside => "data-inside",
            Placement::PipelineInside => "pipeline-inside",
        }
    }
}

/// Where bytes live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryTier {
    /// On the device.
    #[default]
    Device,
    /// In the host's memory.
    Host,
    /// On disk.
    Disk,
}

impl MemoryTier {
    /// All of them.
    pub const ALL: [MemoryTier; 3] = [MemoryTier::Device, MemoryTier::Host, MemoryTier::Disk];
}

/// How the loss over the vocabulary is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PricedLoss {
    /// As the engine does: one kernel that writes the gradient over the logits.
    #[default]
    Fused,
    /// Logits whole, and f32 copies of them.
    Logits,
    /// So many tokens at a time.
    Chunked(usize),
}

/// The form of matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Products {
    /// 32 bits in memory, 19 in products.
    Tf32,
    /// 8 bits, scaled.
    Fp8,
    /// 16 bits.
    Bf16,
    /// 16 bits.
    F16,
}

/// An optimizer, by what it keeps of each parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PricedOptimizer {
    /// Two moments in precision.optimizer.
    #[default]
    #[serde(rename = "adamw")]
    AdamW,
    /// Two moments of 8 bits (bitsandbytes, torchao).
    #[serde(rename = "adamw-8bit")]
    AdamW8Bit,
    /// Two moments of 4 bits (torchao).
    #[serde(rename = "adamw-4bit")]
    AdamW4Bit,
    /// One moment in precision.optimizer: SGD with momentum, Lion.
    #[serde(rename = "momentum")]
    Momentum,
    /// One moment of matrices, which stay whole on every rank (Muon as Megatron-Core has it).
    #[serde(rename = "muon")]
    Muon,
    /// Nothing, or so little (Adafactor's rows and columns) that it does not count.
    #[serde(rename = "sgd")]
    Sgd,
}

/// What backward recomputes, in the words of the programs that do it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PricedRecompute {
    /// `"core"`: attention's scores and their softmax (Megatron-LM's selective recomputation). `"op"`: everything but the
    /// results of attention and of every second product (torchtitan's selective activation checkpointing by operation).
    Word(RecomputeWord),
    /// Named modules of a block (Megatron-Core's `--recompute-modules`).
    Modules(Vec<String>),
    /// Of so many blocks one, from its input (torchtitan's selective activation checkpointing by layer).
    Blocks {
        /// How many.
        one_in: usize,
    },
}

/// See [`PricedRecompute`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecomputeWord {
    /// Attention's scores.
    Core,
    /// By operation.
    Op,
}

/// What a model of family `custom` is beside its sizes, which stand in `Cell::model`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CustomModel {
    /// The MLP has three matrices.
    pub gated: bool,
    /// Linear layers have biases.
    pub bias: bool,
    /// Norms are layer norms, with a bias.
    pub layer_norm: bool,
    /// Rows of a table of learned positions; 0 = none.
    pub learned_positions: usize,
    /// Tokens see those before them alone.
    pub causal: bool,
    /// Width of the expert that every token goes to, beside those of `Cell::model`; 0 = none.
    pub shared_expert: usize,
    /// Blocks of a decoder behind an encoder of the model's; 0 = there is one stack.
    pub decoder_layers: usize,
    /// Tokens of that decoder's sequence.
    pub decoder_seq_len: usize,
    /// Multi-latent attention.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latent: Option<LatentAttention>,
    /// Blocks that predict the tokens after the next.
    pub next_token_layers: usize,
}

/// The sizes of multi-latent attention, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatentAttention {
    /// Rank of the query's bottleneck; 0 = none.
    pub q_rank: usize,
    /// Rank of the bottleneck of keys and values.
    pub kv_rank: usize,
    /// Of a head of queries and keys, without position.
    pub nope_dim: usize,
    /// Of a head of queries and keys, with position.
    pub rope_dim: usize,
    /// Of a head of values.
    pub value_dim: usize,
}

/// A model that the engine has not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PricedModel {
    /// A decoder, an encoder, or both, of stated sizes.
    Custom(CustomModel),
    /// T5 and its like; the sizes that both stacks share stand in `Cell::model`.
    EncoderDecoder {
        /// Blocks of the decoder.
        num_decoder_layers: usize,
        /// Tokens of its sequence.
        decoder_seq_len: usize,
        /// A gated MLP (T5 1.1).
        gated: bool,
    },
    /// A number of parameters and that of the largest layer.
    Count {
        /// All parameters.
        parameters: u64,
        /// Those of the largest layer.
        largest_layer: u64,
    },
}

impl PricedModel {
    /// The family in configurations.
    pub const fn name(&self) -> &'static str {
        match self {
            PricedModel::Custom(_) => "custom",
            PricedModel::EncoderDecoder { .. } => "t5",
            PricedModel::Count { .. } => "count",
        }
    }
}
