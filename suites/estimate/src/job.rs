//! A training run as the estimator sees it: the model's shape, how it is split, what its numbers are kept in, and the
//! software that runs it. It names no machine; [`crate::machine`] does.

use crate::framework::Framework;
use std::ops::Range;
use std::sync::Arc;

/// One training run.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The model.
    pub model: Shape,
    /// Sequences, micro-batches.
    pub batch: Batch,
    /// Ranks along each axis.
    pub degrees: Degrees,
    /// What of the model's state is split over the data axes.
    pub sharding: Sharding,
    /// Types.
    pub precision: Precision,
    /// What backward makes again.
    pub recompute: Recompute,
    /// The attention kernel.
    pub attention: Attention,
    /// What lives outside the device.
    pub offload: Offload,
    /// Which weights train.
    pub peft: Peft,
    /// How the loss is made.
    pub loss: Loss,
    /// The software: what it keeps beside the model, and how it drives a device.
    pub framework: Arc<Framework>,
    /// Collectives that run beside compute because the run asks for it.
    pub overlap: Overlap,
    /// The first block of each part of a pipeline, from 0, in the model's order; empty = cut evenly.
    pub split: Vec<usize>,
}

impl Job {
    /// Bytes per element of a frozen expert at home: the base's, unless that is in few bits and the software leaves experts out.
    pub fn frozen_expert_bytes(&self) -> f64 {
        match self.peft {
            Peft::Adapters { base, .. } if base.bytes() >= 2.0 || self.framework.memory.quantised_experts => {
                base.bytes()
            }
            _ => self.precision.weights.bytes(),
        }
    }

    /// True where weights in f32 are cast for each product (autocast); the residual stream and softmax then stay in f32.
    pub fn autocasts(&self) -> bool {
        self.precision.weights.bytes() > self.precision.compute.bytes() && self.framework.drive.autocast
    }

    /// The blocks of a stage where the cut is stated: with chunks several runs.
    pub fn stated_blocks(&self, stage: usize) -> Option<Vec<Range<usize>>> {
        let all = match self.model.kind {
            Kind::EncoderDecoder { decoder_layers, .. } => self.model.layers + decoder_layers,
            _ => self.model.layers,
        };
        let part = |part: usize| self.split[part]..self.split.get(part + 1).copied().unwrap_or(all);
        let parts = (stage..self.split.len()).step_by(self.degrees.pipeline.max(1));
        (!self.split.is_empty()).then(|| parts.map(part).collect())
    }
}

/// Collectives of model parallelism that a run asks to hide, beside those that its software hides anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Those of tensor ranks, beside products (asynchronous tensor parallelism).
    pub tensor: bool,
    /// The experts' all-to-all, beside the compute of another micro-batch.
    pub expert: bool,
}

/// How the loss over the vocabulary is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loss {
    /// Logits whole, and what the software's loss keeps beside them.
    #[default]
    Logits,
    /// One kernel that writes the gradient over the logits.
    Fused,
    /// So many tokens at a time.
    Chunked(usize),
}

/// A model. The default has no blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    /// What the layers are.
    pub kind: Kind,
    /// Blocks (of the encoder, where there are two stacks).
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Width of the MLP of dense blocks.
    pub ffn: usize,
    /// Rows of the embedding, without padding.
    pub vocab: usize,
    /// A gated MLP (three matrices) or a plain one (two).
    pub gated: bool,
    /// Linear layers have biases.
    pub bias: bool,
    /// The head reads the embedding's matrix.
    pub tied: bool,
    /// Rows of a learned position table; 0 = none.
    pub positions: usize,
    /// Norms with a bias (layer norm) or without (RMS).
    pub norm_bias: bool,
    /// A token sees those before it alone.
    pub causal: bool,
    /// Tokens that one sees; 0 = all.
    pub window: usize,
    /// Dropout in the blocks (masks are kept, one byte an element).
    pub dropout: bool,
    /// Experts in place of the MLP.
    pub experts: Option<Experts>,
    /// Multi-latent attention.
    pub latent: Option<Latent>,
    /// Blocks more than `layers` that predict the tokens after the next (multi-token prediction).
    pub ahead: usize,
    /// Parameters as the source states them, where the shape is not known in full; else 0.
    pub stated_parameters: u64,
}

/// What a model's layers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// One stack that predicts the next token, or a masked one.
    #[default]
    Decoder,
    /// An encoder of `layers` blocks and a decoder with cross-attention.
    EncoderDecoder {
        /// Blocks of the decoder.
        decoder_layers: usize,
        /// Tokens of its sequence.
        decoder_seq: usize,
    },
    /// No shape: a count of parameters and that of the largest layer.
    Count {
        /// Parameters of the largest layer.
        largest_layer: u64,
    },
}

/// Experts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Experts {
    /// Experts of a block.
    pub count: usize,
    /// Experts that a token goes to.
    pub top: usize,
    /// Width of one.
    pub ffn: usize,
    /// Width of the shared expert; 0 = none.
    pub shared_ffn: usize,
    /// Blocks that have an MLP instead, the first ones.
    pub dense_layers: usize,
    /// Tokens of the busiest rank over the mean; 1 = balanced.
    pub imbalance: f64,
}

/// Multi-latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Rank of the query's bottleneck; 0 = none.
    pub q_rank: usize,
    /// Rank of the keys' and values' bottleneck.
    pub kv_rank: usize,
    /// Elements of a head without position.
    pub qk_dim: usize,
    /// Elements of a head with position.
    pub rope_dim: usize,
    /// Elements of a value head.
    pub v_dim: usize,
}

/// Sequences and micro-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    /// Tokens of a sequence.
    pub seq: usize,
    /// Sequences of a micro-batch on one data-parallel rank.
    pub micro: usize,
    /// Micro-batches of a step on one data-parallel rank.
    pub accumulation: usize,
}

/// Ranks along each axis. The world is data x tensor x pipeline x context; experts are split over data x context (and,
/// with `expert_tensor` below `tensor`, over tensor).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degrees {
    /// Replicas.
    pub data: usize,
    /// Ranks that share each matrix.
    pub tensor: usize,
    /// Whether what lies between the matrices is split over `tensor`, too.
    pub sequence: bool,
    /// Stages.
    pub pipeline: usize,
    /// Chunks of the model per stage (interleaved schedule); 1 = plain.
    pub chunks: usize,
    /// Order of micro-batches.
    pub schedule: Order,
    /// Ranks that share each sequence.
    pub context: usize,
    /// Ranks that share the experts.
    pub expert: usize,
    /// Ranks that share each expert's matrices.
    pub expert_tensor: usize,
    /// How ranks are numbered.
    pub placement: Placement,
}

impl Default for Degrees {
    /// One rank.
    fn default() -> Degrees {
        Degrees {
            data: 1,
            tensor: 1,
            sequence: false,
            pipeline: 1,
            chunks: 1,
            schedule: Order::OneFOneB,
            context: 1,
            expert: 1,
            expert_tensor: 1,
            placement: Placement::DataInside,
        }
    }
}

/// How ranks are numbered, from the innermost axis on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Tensor, context, data, pipeline (Megatron-Core's `tp-cp-ep-dp-pp`): stages are farthest apart.
    #[default]
    DataInside,
    /// Tensor, context, pipeline, data (Megatron-Core's `tp-cp-ep-pp-dp`, `--use-tp-pp-dp-mapping`).
    PipelineInside,
}

/// Order of micro-batches in a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// All forward, then all backward.
    GPipe,
    /// One forward, one backward.
    OneFOneB,
    /// One micro-batch at a time through all stages.
    Naive,
    /// ZB-H1: 1F1B whose gradients of weights are computed where a stage would wait.
    ZeroBubble,
}

/// What is split over the data axes, and in groups of how many. A group of 1 is whole on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sharding {
    /// Ranks over which parameters are split.
    pub parameters: usize,
    /// Ranks over which gradients are split.
    pub gradients: usize,
    /// Ranks over which optimizer state (and master copy) is split.
    pub optimizer: usize,
    /// Whether gathered parameters are given back after forward.
    pub reshard_after_forward: bool,
    /// Ranks over which a second copy waits for backward (hpZ); 1 = none.
    pub parked: usize,
    /// Bytes per element that a gather moves; 0 = those of the weights (qwZ: 1).
    pub gather_bytes: f64,
    /// Bytes per element that a reduction moves; 0 = those of the gradients (qgZ: 0.5).
    pub reduce_bytes: f64,
    /// Units gathered ahead.
    pub prefetch: usize,
}

impl Sharding {
    /// Everything whole.
    pub const fn whole() -> Sharding {
        Sharding {
            parameters: 1,
            gradients: 1,
            optimizer: 1,
            reshard_after_forward: false,
            parked: 1,
            gather_bytes: 0.0,
            reduce_bytes: 0.0,
            prefetch: 1,
        }
    }

    /// ZeRO's stages 0 to 3 over `ranks`.
    pub const fn zero(stage: u8, ranks: usize) -> Sharding {
        Sharding {
            parameters: if stage >= 3 { ranks } else { 1 },
            gradients: if stage >= 2 { ranks } else { 1 },
            optimizer: if stage >= 1 { ranks } else { 1 },
            reshard_after_forward: stage >= 3,
            ..Sharding::whole()
        }
    }
}

/// A number's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Number {
    /// 32 bits.
    F32,
    /// 32 bits in memory, 19 in products.
    Tf32,
    /// 16 bits.
    Bf16,
    /// 16 bits.
    F16,
    /// 8 bits.
    Fp8,
    /// 8 bits whole.
    Int8,
    /// 4 bits, with a scale per block of 64 in 8 bits and one per 256 of those in 32.
    Nf4,
}

impl Number {
    /// Bytes of an element, with its share of scales.
    pub const fn bytes(self) -> f64 {
        match self {
            Number::F32 | Number::Tf32 => 4.0,
            Number::Bf16 | Number::F16 => 2.0,
            Number::Fp8 | Number::Int8 => 1.0,
            Number::Nf4 => 0.5 + 1.0 / 64.0 + 4.0 / (64.0 * 256.0),
        }
    }

    /// The name in profiles and configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Number::F32 => "f32",
            Number::Tf32 => "tf32",
            Number::Bf16 => "bf16",
            Number::F16 => "f16",
            Number::Fp8 => "fp8",
            Number::Int8 => "int8",
            Number::Nf4 => "nf4",
        }
    }
}

/// Types of everything that has one; bytes per element of what is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Precision {
    /// Weights at home.
    pub weights: Number,
    /// Weights where they are read, activations.
    pub compute: Number,
    /// The form of matrix products, where it is another than `compute` (fp8 recipes).
    pub products: Number,
    /// Bytes per parameter of kept gradients; 0 = none are kept beside those in `compute`.
    pub gradients: f64,
    /// Bytes per element of gradients on the wire.
    pub reduce: f64,
    /// Bytes per parameter of the optimizer's own copy of the weights.
    pub master: f64,
    /// Bytes per parameter of both moments.
    pub moments: f64,
}

impl Precision {
    /// 16-bit weights and gradients, f32 master and moments: 16 bytes per parameter.
    pub const MIXED16: Precision = Precision {
        weights: Number::Bf16,
        compute: Number::Bf16,
        products: Number::Bf16,
        gradients: 2.0,
        reduce: 2.0,
        master: 4.0,
        moments: 8.0,
    };

    /// The same with gradients summed and kept in f32: 18 bytes per parameter.
    pub const MIXED18: Precision = Precision { gradients: 4.0, reduce: 4.0, ..Precision::MIXED16 };

    /// All in f32: 16 bytes per parameter.
    pub const F32: Precision = Precision {
        weights: Number::F32,
        compute: Number::F32,
        products: Number::F32,
        gradients: 4.0,
        reduce: 4.0,
        master: 0.0,
        moments: 8.0,
    };
}

/// What backward makes again.
#[derive(Clone, Debug, PartialEq)]
pub enum Recompute {
    /// Nothing.
    None,
    /// Every block from its input; blocks in groups of `every`, of which the first's input is kept.
    Full {
        /// Blocks per group.
        every: usize,
        /// Whether kept inputs are split over `tensor` (ZeRO-R's partitioned activations).
        partitioned: bool,
    },
    /// Blocks whose number is not a multiple of `of` keep everything, the others nothing (torchtitan's "every 2nd").
    SomeBlocks {
        /// Every so many.
        of: usize,
    },
    /// The attention's scores and their softmax (Megatron's selective).
    Core,
    /// Element-wise operations and every second product; attention's and the other products' results are kept (torchtitan's "op").
    PerOp,
    /// Named modules of a block, by Megatron's names: `core_attn`, `mlp`, `moe`, `moe_act`, `layernorm`, `mla_up_proj`.
    Modules(Vec<String>),
}

/// The attention kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// Tiles and no scores in memory; the generation of the kernel, 1 to 3.
    Flash(u8),
    /// Scores in memory.
    Naive,
}

impl Attention {
    /// The kernel of a name in framework profiles.
    pub fn named(name: &str) -> Option<Attention> {
        match name {
            "naive" => Some(Attention::Naive),
            _ => name.strip_prefix("flash")?.parse().ok().map(Attention::Flash),
        }
    }
}

/// What lives outside the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Master copy and moments, and the update.
    pub optimizer: Place,
    /// Weights at home.
    pub parameters: Place,
    /// What forward keeps.
    pub activations: Place,
}

/// A place for bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// The device's memory.
    #[default]
    Device,
    /// The host's.
    Host,
    /// NVMe.
    Disk,
}

/// Which weights train.
#[derive(Clone, Debug, PartialEq)]
pub enum Peft {
    /// All.
    None,
    /// Adapters of a stated number of parameters over a frozen base of weights of a type.
    Adapters {
        /// Trainable parameters; 0 = those of `rank` on the targets.
        trainable: u64,
        /// Rank; 0 where adapters are factors of what a matrix writes (IA3).
        rank: usize,
        /// The base.
        base: Number,
        /// Bytes per trainable parameter at home.
        weight_bytes: f64,
        /// The matrices that have them.
        targets: Targets,
    },
}

/// Which of a block's matrices have adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Queries.
    pub query: bool,
    /// Keys.
    pub key: bool,
    /// Values.
    pub value: bool,
    /// Attention's output.
    pub output: bool,
    /// The MLP's gate, in dense blocks and in experts.
    pub gate: bool,
    /// Its way up.
    pub up: bool,
    /// Its way down.
    pub down: bool,
    /// Queries, keys and values (gate and up) are one tensor with one adapter, which is there if any of them is a target.
    pub fused: bool,
}

impl Targets {
    /// All linear layers of a block, each by itself.
    pub const ALL: Targets =
        Targets { query: true, key: true, value: true, output: true, gate: true, up: true, down: true, fused: false };

    /// Whether any reads what attention's input norm writes.
    pub fn read_attention_input(self) -> bool {
        self.query || self.key || self.value
    }

    /// Whether any reads what the MLP's norm writes.
    pub fn read_mlp_input(self) -> bool {
        self.gate || self.up
    }
}
