//! One resolved configuration: what a cell of a grid is. Every value is stated here, whatever default it came from, so
//! that a cell can be repeated from its record alone. The TOML that people write is resolved into this by `suites`.

mod adapters;
mod batch;
mod data;
mod degrees;
mod memory;
mod model;
pub mod numerics;
mod priced;
mod saving;
mod scaling;
mod seconds;
mod watch;

pub use adapters::{Base, Method};
pub use batch::BatchDivision;
pub use data::{Answers, Data, DocumentFile, DocumentForm, DocumentPacking, Documents, Template, TokenType};
pub use degrees::{Degrees, PipelineSchedule};
pub use memory::{AttentionKind, Checkpointing, Memory, OFFLOAD_PREFETCH, SavedTensor};
pub use model::{Experts, Form, Loading, Mlp, Model, NormKind, Order, Positions, RopeScaling};
pub use priced::{
    CustomModel, LatentAttention, MemoryTier, Placement, Priced, PricedLoss, PricedModel, PricedOptimizer,
    PricedRecompute, Products, RecomputeWord, Wire,
};
pub use saving::{Layout as SaveLayout, Resume, Saving};
pub use scaling::{DynamicScaling, LossScaling, WeightRounding};
pub use watch::{Divergence, Evaluation, Watch};

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use zbench_collectives::link::LinkSpec;
use zbench_kernels::DType;

/// Everything that determines a training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// The model's shape and where its weights come from.
    pub model: Model,
    /// Where tokens come from.
    pub data: Data,
    /// Micro-batches that a thread of each rank reads ahead; 0 = none.
    #[serde(default = "read_ahead", skip_serializing_if = "is_read_ahead")]
    pub read_ahead: usize,
    /// Batch, steps, optimizer.
    pub train: Train,
    /// Ranks and how the model's state is split over them.
    pub parallel: Parallel,
    /// The type of everything that has one.
    pub precision: Precision,
    /// What is kept, recomputed, limited.
    pub memory: Memory,
    /// Adapters.
    pub lora: Lora,
    /// The machine.
    pub hardware: Hardware,
    /// Emulated links; absent = what the machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// Emulated speed of blocks; absent = what the machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<Pace>,
    /// Training checkpoints; absent = none are written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Box<Saving>>,
    /// What is looked at while it trains; absent = the loss of the steps alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<Watch>,
    /// What is priced and not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priced: Option<Box<Priced>>,
}

/// Micro-batches that are read ahead where nobody says otherwise.
pub const READ_AHEAD: usize = 2;

fn read_ahead() -> usize {
    READ_AHEAD
}

// Left out of a cell's text, so that the keys of cells stay those they had before there was reading ahead.
fn is_read_ahead(count: &usize) -> bool {
    *count == READ_AHEAD
}

// Left out of a cell's text, so that the keys of cells stay those they had before there was a choice.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Cell {
    /// What emulated links charge, if there are any. Without stated nodes there are none.
    pub fn link_spec(&self) -> Option<LinkSpec> {
        let (node, ranks_per_node) = (self.link?.node?, self.parallel.ranks_per_node?);
        Some(LinkSpec { bandwidth: node.bandwidth, latency: node.latency, ranks_per_node })
    }

    /// Its evaluations, if it has any.
    pub fn evaluation(&self) -> Option<Evaluation> {
        self.watch.and_then(|watch| watch.evaluation)
    }
}

/// Emulated links.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Between nodes of `parallel.ranks_per_node` ranks: one link per node, each way, shared by its ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<LinkRate>,
    /// Between the device of each rank and the host's memory, each way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<LinkRate>,
}

/// What a link carries.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkRate {
    /// Bytes per second, each way.
    pub bandwidth: f64,
    /// Seconds.
    pub latency: f64,
}

/// The least time of a micro-batch, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pace {
    /// Of its forward over all blocks of a rank.
    pub forward: f64,
    /// Of its backward over them.
    pub backward: f64,
}

/// Batch, steps, optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Train {
    /// Tokens of a sequence.
    pub seq_len: usize,
    /// Sequences per rank and micro-batch.
    pub micro_batch: usize,
    /// Micro-batches per step.
    pub accumulation: usize,
    /// Timed steps.
    pub steps: usize,
    /// Steps before them; they train too, and are not timed.
    pub untimed_steps: usize,
    /// Of initialisation, data and dropout.
    pub seed: u64,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Peak learning rate.
    pub lr: f64,
    /// Decay of the first and second moment.
    pub betas: [f64; 2],
    /// Added to the optimizer's denominator.
    pub eps: f64,
    /// Decoupled, on tensors of two or more dimensions.
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 = no clipping.
    pub clip_norm: f64,
    /// Course of the learning rate.
    pub lr_schedule: Schedule,
    /// Steps of linear warm-up.
    pub lr_warmup_steps: usize,
    /// Learning rate at the end of a decaying schedule.
    pub lr_min: f64,
    /// The step of the course that an update takes its rate from. The default is left out of a cell: earlier versions had no other.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lr_steps: CourseSteps,
    /// Steps by which an update lags behind its gradients, 0 or 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub delayed_update: usize,
}

impl Train {
    /// Whether a step updates with the gradients of the step before (ZeRO-Offload, Ren et al. 2021, section 5.2).
    pub fn is_delayed(&self) -> bool {
        self.delayed_update > 0
    }

    /// True unless all updates have the same learning rate; then `lr_steps` has no effect.
    pub fn is_rate_varied(&self) -> bool {
        self.lr_schedule != Schedule::Constant || self.lr_warmup_steps > 0
    }
}

/// The optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Optimizer {
    /// Adam with decoupled weight decay.
    AdamW,
}

/// Course of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Stays at lr.
    Constant,
    /// Falls linearly to lr_min at the last step.
    Linear,
    /// Falls along half a cosine to lr_min at the last step.
    Cosine,
}

/// The step of the learning rate's course that an update takes its rate from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CourseSteps {
    /// Update k has step k, so that the last update has the course's last rate.
    #[default]
    #[serde(rename = "from-one")]
    FromOne,
    /// Update k has step k - 1, as in PyTorch's LambdaLR and with it transformers.
    Transformers,
    /// Update k has step k - 2, and the first two have step 0. Warm-up takes at least 2 steps, and a cosine begins one step early.
    DeepSpeed,
}

impl CourseSteps {
    /// As configurations write it.
    pub const fn name(self) -> &'static str {
        match self {
            CourseSteps::FromOne => "from-one",
            CourseSteps::Transformers => "transformers",
            CourseSteps::DeepSpeed => "deepspeed",
        }
    }
}

/// Ranks and how the model's state is split over them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parallel {
    /// Ranks in all.
    pub ranks: usize,
    /// Ranks of one (emulated) node; absent = real hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks_per_node: Option<usize>,
    /// Which state is split over which axes.
    pub strategy: Strategy,
    /// Ranks per shard group of the hybrid strategies; `ranks` for the others.
    pub shard: usize,
    /// How many ranks share what of the model.
    #[serde(default, skip_serializing_if = "is_default")]
    pub degrees: Degrees,
    /// The first block of each part of a pipeline, from 0; empty = parts are cut by their cost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pipeline_split: Vec<usize>,
    /// Chunks of a micro-batch's tokens: in forward the sum over tensor ranks of one travels while the next is multiplied, in backward that
    /// of the gradient of an input while gradients of weights are computed. 1 = sums are waited for.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub tensor_chunks: usize,
    /// Units gathered ahead of their use.
    pub prefetch: usize,
    /// MiB of gradients that ddp reduces in one call; 0 = each unit in a call of its own. Other strategies reduce each unit by itself.
    #[serde(default = "default_bucket", skip_serializing_if = "is_default_bucket")]
    pub bucket_mb: f64,
    /// How collectives travel.
    pub backend: Backend,
    /// How long a rank waits for the others before it gives the run up.
    #[serde(default = "default_stall", with = "seconds", skip_serializing_if = "is_default_stall")]
    pub stall: Duration,
}

fn one() -> usize {
    1
}

// Left out of a cell's text, so that the keys of cells stay those they had before there were chunks.
fn is_one(count: &usize) -> bool {
    *count == 1
}

/// Longer than any step, shorter than a night.
pub const STALL: Duration = Duration::from_secs(300);

fn default_stall() -> Duration {
    STALL
}

// Left out of a cell's text, so that the keys of cells do not depend on how long ranks would have waited.
fn is_default_stall(stall: &Duration) -> bool {
    *stall == STALL
}

/// PyTorch's `bucket_cap_mb`.
pub const BUCKET_MB: f64 = 25.0;

fn default_bucket() -> f64 {
    BUCKET_MB
}

fn is_default_bucket(mib: &f64) -> bool {
    *mib == BUCKET_MB
}

/// The sharding strategies; `engine::strategy` holds the table of what they split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Everything whole on every rank.
    Ddp,
    /// Optimizer state split.
    Zero1,
    /// Optimizer state and gradients split.
    Zero2,
    /// Everything split.
    Zero3,
    /// Everything split (FSDP full shard).
    Fsdp,
    /// As fsdp, parameters stay gathered from forward to backward (FSDP shard-grad-op).
    FsdpGradOp,
    /// Everything split inside a shard group, replicated over groups (FSDP hybrid shard, MiCS).
    Hsdp,
    /// As hsdp, with the optimizer state split over all ranks.
    HsdpFullOptimizer,
}

impl Strategy {
    /// All of them, in the order of reports.
    pub const ALL: [Strategy; 8] = [
        Strategy::Ddp,
        Strategy::Zero1,
        Strategy::Zero2,
        Strategy::Zero3,
        Strategy::Fsdp,
        Strategy::FsdpGradOp,
        Strategy::Hsdp,
        Strategy::HsdpFullOptimizer,
    ];

    /// The name in configurations and records.
    pub const fn name(self) -> &'static str {
        match self {
            Strategy::Ddp => "ddp",
            Strategy::Zero1 => "zero1",
            Strategy::Zero2 => "zero2",
            Strategy::Zero3 => "zero3",
            Strategy::Fsdp => "fsdp",
            Strategy::FsdpGradOp => "fsdp-grad-op",
            Strategy::Hsdp => "hsdp",
            Strategy::HsdpFullOptimizer => "hsdp-full-optimizer",
        }
    }

    /// Whether ranks form shard groups smaller than the world.
    pub const fn is_hybrid(self) -> bool {
        matches!(self, Strategy::Hsdp | Strategy::HsdpFullOptimizer)
    }
}

/// How collectives travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Ranks are threads of one process.
    Local,
    /// Ranks are processes of one host that share memory.
    Shm,
    /// Ranks are processes, of any hosts, with sockets between them.
    Tcp,
    /// Ranks are processes that mpirun starts.
    Mpi,
    /// Ranks are threads of one process that share a GPU.
    Device,
    /// Ranks are processes with a GPU each.
    Nccl,
}

impl Backend {
    /// The name in configurations and records.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Local => "local",
            Backend::Shm => "shm",
            Backend::Tcp => "tcp",
            Backend::Mpi => "mpi",
            Backend::Device => "device",
            Backend::Nccl => "nccl",
        }
    }
}

/// The type of everything that has one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Precision {
    /// The shards of weights.
    pub parameters: DType,
    /// Weights in use, activations, their gradients.
    pub compute: DType,
    /// Accumulated gradients.
    pub gradients: DType,
    /// Gradients on the wire; sums are in f32 whatever travels.
    pub reduce: DType,
    /// The optimizer's own copy of the weights; absent = it updates the parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<DType>,
    /// Both Adam moments.
    pub optimizer: DType,
    /// Weights that are read or drawn are rounded to this first; absent = they come as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<DType>,
    /// How updated weights are rounded.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rounding: WeightRounding,
    /// The factor on the loss; absent = none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<LossScaling>,
}

impl Precision {
    /// All f32: 16 bytes per parameter.
    pub const F32: Precision = Precision::all(DType::F32);

    /// One type for everything, no master copy.
    pub const fn all(dtype: DType) -> Precision {
        Precision {
            parameters: dtype,
            compute: dtype,
            gradients: dtype,
            reduce: dtype,
            master: None,
            optimizer: dtype,
            load: None,
            rounding: WeightRounding::Nearest,
            scaling: None,
        }
    }

    /// Parameters and compute in `low`; gradients, reduction, master and moments in f32: 18 bytes per parameter.
    pub const fn mixed(low: DType) -> Precision {
        let f32 = DType::F32;
        Precision { parameters: low, compute: low, master: Some(f32), ..Precision::all(f32) }
    }

    /// Bytes of model state per trainable parameter, whole: parameters + gradients + master + two moments.
    pub fn bytes_per_parameter(&self) -> usize {
        let master = self.master.map_or(0, DType::size);
        self.parameters.size() + self.gradients.size() + master + 2 * self.optimizer.size()
    }
}

/// Adapters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// What kind of adapters.
    #[serde(default, skip_serializing_if = "is_default")]
    pub method: Method,
    /// Rank of the adapters; 0 = none, everything trains. IA3 has no rank.
    pub rank: usize,
    /// The adapter's output is scaled by alpha / rank.
    pub alpha: f64,
    /// By alpha over the root of rank instead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub use_rslora: bool,
    /// Magnitudes apart from directions (DoRA).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub use_dora: bool,
    /// Dropout on the adapter's input.
    pub dropout: f64,
    /// Which linear layers: `q_proj`, `k_proj`, `v_proj`, `o_proj`, `gate_proj`, `up_proj`, `down_proj`.
    pub targets: Vec<Linear>,
    /// IA3: those of them whose factors are on what they read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feedforward: Vec<Linear>,
    /// What the frozen weights are kept as; absent = precision.parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
    /// Folder in PEFT's layout to start from; absent = fresh adapters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Folder into which the adapters are written after the last step, in PEFT's layout; absent = nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save: Option<PathBuf>,
    /// Folder into which the model is written after the last step with the adapters merged; absent = nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge: Option<PathBuf>,
}

/// The linear layers of a block, by the last part of their Hugging Face name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Linear {
    /// Query.
    QProj,
    /// Key.
    KProj,
    /// Value.
    VProj,
    /// Attention output.
    OProj,
    /// Gate of the MLP.
    GateProj,
    /// Up projection of the MLP.
    UpProj,
    /// Down projection of the MLP.
    DownProj,
}

impl Linear {
    /// All of them, in the order of a block.
    pub const ALL: [Linear; 7] = [
        Linear::QProj,
        Linear::KProj,
        Linear::VProj,
        Linear::OProj,
        Linear::GateProj,
        Linear::UpProj,
        Linear::DownProj,
    ];
    /// Those that some families keep in one tensor.
    pub const QKV: [Linear; 3] = [Linear::QProj, Linear::KProj, Linear::VProj];

    /// Whether tensor ranks share its columns, and each reads a part of its input: Megatron-LM's RowParallelLinear, which is named after
    /// the transposed matrix.
    pub const fn is_row_parallel(self) -> bool {
        matches!(self, Linear::OProj | Linear::DownProj)
    }

    /// The part of the tensor's name, `q_proj`.
    pub const fn name(self) -> &'static str {
        match self {
            Linear::QProj => "q_proj",
            Linear::KProj => "k_proj",
            Linear::VProj => "v_proj",
            Linear::OProj => "o_proj",
            Linear::GateProj => "gate_proj",
            Linear::UpProj => "up_proj",
            Linear::DownProj => "down_proj",
        }
    }
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// What computes.
    pub device: DeviceKind,
    /// Threads of one rank.
    pub threads_per_rank: usize,
    /// The instructions that kernels are held to, a name of [`zbench_kernels::INSTRUCTIONS`]; absent = the best there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Whether threads keep to cores.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pin: Pin,
    /// The software whose times are predicted, by its name in `zbench-estimate`; absent = what suits the cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub software: Option<String>,
    /// The machine that a cell on another device is for; absent = this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
}

impl Hardware {
    /// This machine's processor with its best instructions; threads go where the system puts them.
    pub fn cpu(threads_per_rank: usize) -> Hardware {
        Hardware {
            device: DeviceKind::Cpu,
            threads_per_rank,
            instructions: None,
            pin: Pin::None,
            software: None,
            profile: None,
        }
    }
}

/// Where threads run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pin {
    /// Wherever the system puts them.
    #[default]
    None,
    /// Each on a core of its own.
    Cores,
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// This machine's processor.
    Cpu,
    /// An NVIDIA GPU per rank.
    Cuda,
}
