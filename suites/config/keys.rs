//! Every key of a configuration: its name, what it may hold, its default and its meaning. Checking, resolving, spelling
//! help and docs/configuration.md all read this one table.

mod io;
mod lookup;
mod memory;
mod priced;
mod training;

pub use lookup::{default_of, document, find, is_section, nearest, nearest_section};

use crate::kind::Kind::{self, *};
use std::sync::LazyLock;

/// One key.
pub struct Key {
    /// `section.name`.
    pub name: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// What it is when absent.
    pub default: Default,
    /// What it means, one sentence or two.
    pub meaning: &'static str,
}

/// What a key is when absent.
pub enum Default {
    /// This TOML value.
    Is(&'static str),
    /// Something that follows from other keys or the machine; the words say what.
    From(&'static str),
}

use Default::{From, Is};

const fn key(name: &'static str, kind: Kind, default: Default, meaning: &'static str) -> Key {
    Key { name, kind, default, meaning }
}

/// A size of something that exists: at least one, and small enough that products are caught by name instead of wrapping.
const SIZE: Kind = Count { min: 1, max: 1 << 31 };
/// A number of something that may be absent.
const NUMBER: Kind = Count { min: 0, max: 1 << 31 };
/// A degree of a mesh axis.
const DEGREE: Kind = Count { min: 1, max: 1 << 20 };
const DTYPE: Kind = Choice(&["f32", "bf16", "f16"]);
const PRESETS: Kind =
    Choice(&["f32", "bf16-mixed", "bf16", "f16-mixed", "fsdp-memory-constrained", "fsdp-mixed", "deepspeed"]);
const HF: Default = From("the preset's or the file's, else that of transformers for the family");
const PRESET: Default = From("precision.preset's");

/// "auto" and the names of the kernels' instructions.
const INSTRUCTIONS: &[&str] = &{
    let mut words = ["auto"; zbench_kernels::INSTRUCTIONS.len() + 1];
    let mut i = 0;
    while i < zbench_kernels::INSTRUCTIONS.len() {
        words[i + 1] = zbench_kernels::INSTRUCTIONS[i];
        i += 1;
    }
    words
};

/// The table.
pub static KEYS: LazyLock<Vec<&'static Key>> = LazyLock::new(|| {
    [FIRST, training::KEYS, REST, memory::KEYS, LATER, io::KEYS, priced::KEYS].into_iter().flatten().collect()
});

/// The keys before those of training.
const FIRST: &[Key] = &[
    key("name", Text, From("the file's name without .toml"), "Title of the notebook entry."),
    key("question", Text, Is("\"\""), "What the grid is to find out; stands at the head of its report."),
    key(
        "suite",
        Choice(&["train", "gemm", "attention", "collectives", "checkpoint", "io"]),
        Is("\"train\""),
        "What is measured: train; gemm and attention (docs/kernels.md), collectives (docs/interconnect.md), checkpoint (docs/training-checkpoints.md), io (docs/io.md).",
    ),
    key(
        "model.preset",
        Text,
        From("\"llama-32m\" when no other key of [model] is given"),
        "A model that comes with zbench; other keys of [model] override it.",
    ),
    key(
        "model.path",
        Path,
        From("absent: fresh weights from train.seed"),
        "Folder with config.json and *.safetensors.",
    ),
    key(
        "model.save",
        Path,
        From("absent: nothing is written"),
        "Folder into which the model is written after the last step, in f32, as transformers opens it; the last run's stays.",
    ),
    key(
        "model.loading",
        Choice(&["sliced", "broadcast", "everywhere"]),
        Is("\"sliced\""),
        "Who reads the weights of model.path: sliced: every rank the slices that it keeps; broadcast: rank 0 all of it into \
         its host memory, and hands out unit by unit; everywhere: every rank all of it.",
    ),
    key(
        "model.family",
        Text,
        From("the preset's or the file's, else \"llama\""),
        "Architecture: llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, gemma, gpt2, falcon, bloom or mpt (docs/families.md); custom (sizes of one's own), t5 and count \
         (a number of parameters) are priced and not run.",
    ),
    key("model.hidden_size", SIZE, HF, "Width of the residual stream."),
    key("model.intermediate_size", SIZE, HF, "Width of the MLP."),
    key("model.num_hidden_layers", SIZE, HF, "Blocks."),
    key("model.num_attention_heads", SIZE, HF, "Query heads."),
    key("model.num_key_value_heads", SIZE, HF, "Key and value heads; must divide the query heads."),
    key("model.head_dim", SIZE, HF, "Elements of a head; even where positions are rotary."),
    key("model.vocab_size", SIZE, HF, "Rows of the embedding."),
    key("model.max_position_embeddings", SIZE, HF, "Longest sequence the model is meant for."),
    key("model.rms_norm_eps", REAL_POSITIVE, HF, "Added to the mean square, or the variance, in every norm."),
    key("model.rope_theta", REAL_POSITIVE, HF, "Base of the rotary frequencies."),
    key(
        "model.rope_scaling",
        RopeScaling,
        HF,
        "Rotary scaling as in config.json: { rope_type = \"linear\" or \"llama3\", factor, … }.",
    ),
    key("model.tie_word_embeddings", Bool, HF, "Whether the head uses the embedding's matrix."),
    key("model.sliding_window", NUMBER, HF, "Tokens that one sees, itself the last; 0 = all before it."),
    key("model.max_window_layers", NUMBER, HF, "Blocks below this number see the whole sequence."),
    key("model.initializer_range", REAL_POSITIVE, HF, "Standard deviation of fresh matrices."),
    key("model.num_experts", NUMBER, HF, "Experts of a block, of families that have them; docs/moe.md."),
    key("model.num_experts_per_tok", SIZE, HF, "Experts that a token goes to."),
    key("model.moe_intermediate_size", SIZE, HF, "Width of one expert; Mixtral's is model.intermediate_size."),
    key("model.norm_topk_prob", Bool, HF, "Whether a token's weights are divided by their sum."),
    key("model.decoder_sparse_step", SIZE, HF, "Every so many blocks have experts; 1 = all."),
    key("model.mlp_only_layers", Counts, HF, "Blocks, from 0, that have an MLP in spite of that."),
    key(
        "model.pad_token_id",
        Count { min: -1, max: 1 << 31 },
        HF,
        "Token whose embedding has no gradient from look-ups, as torch's padding_idx; -1 = none.",
    ),
    key(
        "model.dropout",
        Real { min: 0.0, max: 0.999, positive: false },
        From("what config.json states; other than 0 is refused"),
        "0 = train without the dropout that config.json states: there is none here outside adapters. Above 0 it is priced and not run.",
    ),
    key(
        "model.form",
        Form,
        From("the preset's or the file's, else the family's"),
        "What a block is made of, where the family's may differ: { norm, norm_bias, qkv_bias, output_bias, mlp_bias, qk_norm, positions, mlp, order, … }; \
         what it does not state is Llama's.",
    ),
    key(
        "model.left_out",
        Texts,
        Is("[]"),
        "What the model has and zbench does not, as `zbench import` writes it of a config.json; such a model is priced and not run.",
    ),
];

/// The keys after those of training.
const REST: &[Key] = &[
    key("parallel.ranks", DEGREE, Is("1"), "Ranks in all."),
    key(
        "parallel.ranks_per_node",
        DEGREE,
        From("real hosts"),
        "Ranks of one (emulated) node; must divide parallel.ranks.",
    ),
    key(
        "parallel.strategy",
        Choice(&["ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op", "hsdp", "hsdp-full-optimizer", "zero++"]),
        Is("\"ddp\""),
        "Which state is split over the data-parallel ranks. zero++ (zero3 with compressed traffic and a second copy inside \
         a node) is priced and not run.",
    ),
    key(
        "parallel.shard",
        DEGREE,
        From("those of parallel.ranks_per_node, else half of an even number of data-parallel ranks, else an error"),
        "Data-parallel ranks of a shard group of the hybrid strategies (other strategies do not read it); must divide the \
         data-parallel ranks, which are parallel.ranks / (tensor × pipeline × context).",
    ),
    key(
        "parallel.tensor",
        DEGREE,
        Is("1"),
        "Ranks that share each matrix; must divide the heads of keys and values. Above 1 it is priced and not run on GPUs.",
    ),
    key(
        "parallel.sequence",
        DEGREE,
        Is("1"),
        "Ranks that share the tokens of what lies between the matrices (sequence parallelism): 1, or parallel.tensor.",
    ),
    key(
        "parallel.tensor_chunks",
        Count { min: 1, max: 1024 },
        Is("1"),
        "Chunks of a micro-batch's tokens: in forward the sum over tensor ranks of one travels while the next is multiplied, in backward \
         the sum of an input's gradient while gradients of weights are computed. 1 = sums are waited for.",
    ),
    key(
        "parallel.pipeline",
        DEGREE,
        Is("1"),
        "Pipeline stages; train.accumulation is the number of micro-batches. Above 1 it is priced and not run on GPUs.",
    ),
    key(
        "parallel.pipeline_split",
        Counts,
        From("cuts by cost: products of the blocks, attention and the head"),
        "The first block of each stage (with virtual stages: of each part of the model, in the model's order), from 0.",
    ),
    key(
        "parallel.virtual_stages",
        DEGREE,
        From("2 where parallel.pipeline_schedule is \"interleaved\", else 1"),
        "Chunks of the model on each stage of an interleaved pipeline.",
    ),
    key("parallel.context", DEGREE, Is("1"), "Ranks that share each sequence. Above 1 it is priced and not run."),
    key("parallel.expert", DEGREE, Is("1"), "Ranks that share the experts. Above 1 it is priced and not run."),
    key(
        "parallel.expert_imbalance",
        Real { min: 1.0, max: 1e6, positive: false },
        Is("1.0"),
        "Tokens of the busiest expert rank over the mean, as it is priced.",
    ),
    key("parallel.expert_tensor", DEGREE, Is("1"), "Ranks that share each expert's matrices. Priced and not run."),
    key(
        "parallel.pipeline_schedule",
        Choice(&["1f1b", "gpipe", "interleaved", "naive", "zb-h1"]),
        Is("\"1f1b\""),
        "Order of micro-batches in a pipeline. \"1f1b\" with several virtual stages is \"interleaved\"; \"naive\" has one micro-batch at \
         a time; \"zb-h1\" computes gradients of weights where a stage would wait.",
    ),
    key(
        "parallel.placement",
        Choice(&["data-inside", "pipeline-inside"]),
        Is("\"data-inside\""),
        "Which axis lies next to those of tensor and context when ranks are numbered, and so within a node as far as it fits: data-inside: \
         replicas and shards, and stages are farthest apart; pipeline-inside: stages (Megatron's --use-tp-pp-dp-mapping), which is priced \
         and not run.",
    ),
    key("parallel.prefetch", Count { min: 0, max: 1024 }, Is("1"), "Units gathered ahead of their use."),
    key("parallel.bucket_mb", REAL, Is("25.0"), "MiB of gradients in one call of ddp; 0 = each unit by itself."),
    key(
        "parallel.gather_wire",
        Choice(&["native", "bf16", "int8", "int4"]),
        From("\"native\"; \"int8\" under zero++"),
        "What gathered weights travel as. Others than native are priced and not run.",
    ),
    key(
        "parallel.reduce_wire",
        Choice(&["native", "bf16", "int8", "int4"]),
        From("\"native\"; \"int4\" under zero++"),
        "What reduced gradients travel as; native = precision.reduce. Others are priced and not run.",
    ),
    key(
        "parallel.backend",
        Choice(&["local", "shm", "tcp", "device", "mpi", "nccl"]),
        From("\"nccl\" on cuda with several ranks; under a launcher \"shm\" on one host, else \"tcp\"; else \"local\""),
        "How collectives travel: local: ranks are threads of one process; shm: processes of one host that share memory; \
         tcp: processes of any hosts; mpi: processes of mpirun (a build with the feature); device: threads of one process that \
         share a GPU; nccl: processes with a GPU each.",
    ),
    key(
        "parallel.stall",
        Patience,
        Is("\"300s\""),
        "How long a rank waits for others that do not come, before the run is given up.",
    ),
    key(
        "precision.preset",
        PRESETS,
        Is("\"f32\""),
        "f32: 16 bytes per parameter; bf16-mixed: weights and compute bf16, the rest f32, 18 bytes; bf16: all bf16, 8 \
         bytes; f16-mixed as bf16-mixed; the last three: docs/mixed-precision.md. The keys below override it one by one.",
    ),
    key("precision.parameters", DTYPE, PRESET, "Weights as ranks store them."),
    key("precision.compute", DTYPE, PRESET, "Weights in use, activations and their gradients."),
    key("precision.gradients", DTYPE, PRESET, "Accumulated gradients."),
    key("precision.reduce", DTYPE, PRESET, "Gradients on the wire; sums are in f32 whatever travels."),
    key(
        "precision.master",
        Choice(&["none", "f32", "bf16", "f16"]),
        PRESET,
        "The optimizer's own copy of the weights; \"none\" = it updates the parameters.",
    ),
    key("precision.optimizer", DTYPE, PRESET, "Both Adam moments."),
    key(
        "precision.load",
        DTYPE,
        From("the preset's, else as they come"),
        "Weights of the model that are read or drawn are rounded to this before anything else.",
    ),
    key(
        "precision.rounding",
        Choice(&["nearest", "stochastic"]),
        Is("\"nearest\""),
        "How the optimizer rounds 16-bit weights of which there is no wider master copy; stochastic: up or down by chance, \
         right in the mean.",
    ),
    key(
        "precision.loss_scale",
        REAL,
        Is("0.0"),
        "Factor on the loss where precision.compute is f16 (elsewhere this and the keys below are not read); 0 = dynamic, as \
         the keys below say, which are DeepSpeed's.",
    ),
    key("precision.initial_scale_power", Count { min: 0, max: 120 }, Is("16"), "The first dynamic scale is 2 to this."),
    key(
        "precision.loss_scale_window",
        Count { min: 1, max: 1 << 31 },
        Is("1000"),
        "Steps without overflow after which the scale doubles.",
    ),
    key(
        "precision.hysteresis",
        Count { min: 1, max: 1 << 20 },
        Is("2"),
        "The scale is halved from the overflow of this number on; a doubling starts the count anew.",
    ),
    key("precision.consecutive_hysteresis", Bool, Is("false"), "Every step without overflow starts that count anew."),
    key(
        "precision.min_loss_scale",
        REAL_POSITIVE,
        Is("1.0"),
        "The dynamic scale falls no lower; one more overflow there ends the run as diverged.",
    ),
];

const LATER: &[Key] = &[
    key(
        "lora.rank",
        Count { min: 0, max: 1 << 16 },
        Is("0"),
        "Rank of the adapters; 0 = none, everything trains. IA3 has no rank and does not read it.",
    ),
    key("lora.alpha", REAL_POSITIVE, Is("8.0"), "The adapter's output is scaled by alpha / rank."),
    key("lora.use_rslora", Bool, Is("false"), "Scale by alpha over the root of rank instead."),
    key("lora.dropout", Real { min: 0.0, max: 0.999, positive: false }, Is("0.0"), "Dropout on the adapter's input."),
    key(
        "lora.targets",
        Targets,
        From("those of lora.path, else PEFT's for family and method"),
        "The linear layers that get adapters, by the ends of the family's names of modules (c_attn, mlp.c_proj) or Llama's \
         names, or \"all-linear\".",
    ),
    key(
        "lora.feedforward",
        SomeTargets,
        From("those of lora.path, else the MLP's last layer where it is a target"),
        "IA3: the targets whose factors are on what they read, and not on what they give.",
    ),
    key(
        "lora.base",
        Choice(&["f32", "bf16", "f16", "nf4", "int8"]),
        From("precision.parameters"),
        "What the frozen weights are kept as. nf4 and int8 are for the blocks' matrices; the rest, and \
         experts, keep precision.parameters.",
    ),
    key(
        "lora.double_quant",
        Bool,
        Is("true"),
        "Whether the scales of an nf4 base are kept in 8 bits (bnb_4bit_use_double_quant); others do not read it.",
    ),
    key(
        "lora.method",
        Choice(&["lora", "ia3"]),
        Is("\"lora\""),
        "Kind of adapter: low-rank products beside layers, or factors on what they give or read.",
    ),
    key(
        "lora.use_dora",
        Bool,
        Is("false"),
        "DoRA: weights' magnitudes are learned apart from their directions, without weight decay (transformers' Trainer decays them). \
         Without lora.dropout, and not on fused tensors.",
    ),
    key(
        "lora.path",
        Path,
        From("absent: fresh adapters"),
        "Folder of adapters to start from, as PEFT writes it: adapter_config.json and adapter_model.safetensors. What it says \
         of them stands for the keys of this section that are left out.",
    ),
    key(
        "lora.save",
        Path,
        From("absent: nothing is written"),
        "Folder into which the adapters are written after the last step, in f32, as PEFT opens it; the last run's stay.",
    ),
    key(
        "lora.merge",
        Path,
        From("absent: nothing is written"),
        "Folder into which the model is written after the last step with the adapters merged, as transformers opens it.",
    ),
    key(
        "hardware.device",
        Choice(&["cpu", "cuda"]),
        From("hardware.profile's, else \"cpu\""),
        "What computes: cuda is an NVIDIA GPU (docs/cuda.md). Without enough of them such cells are planned and recorded as skipped.",
    ),
    key(
        "hardware.profile",
        Text,
        From("absent: this machine"),
        "A machine to plan for: machines/NAME.toml beside the configuration, or one that zbench comes with (docs/machines.md).",
    ),
    key(
        "hardware.software",
        Text,
        Is("\"zbench\""),
        "Whose memory and speed are predicted for a device of a profile: frameworks/NAME.toml beside the configuration, or one that zbench \
         comes with: zbench, megatron-core, megatron-lm, megatron-deepspeed, deepspeed, fsdp1, fsdp2, torch, the last three also as \
         NAME-compiled (docs/frameworks.md).",
    ),
    key(
        "hardware.gpu_hour_price",
        REAL_POSITIVE,
        From("absent: no cost is stated"),
        "Price of one device for an hour, in any currency: `zbench advise` states the cost of tokens. No part of a cell.",
    ),
    key(
        "hardware.threads_per_rank",
        Count { min: 1, max: 4096 },
        From(
            "the cores of this machine / parallel.ranks, at least 1; under a launcher the cores that a rank may use / the ranks that share them, the fewest of all",
        ),
        "Threads of one rank.",
    ),
    key(
        "hardware.instructions",
        Choice(INSTRUCTIONS),
        Is("\"auto\""),
        "Vector instructions that kernels are held to; auto is the best that the CPU has (zbench doctor lists them). A cell for others is skipped.",
    ),
    key(
        "hardware.pin",
        Choice(&["none", "cores"]),
        Is("\"none\""),
        "cores keeps every thread to a core of its own: ranks take the cores that zbench may use in order. Where there are too few the cell is skipped.",
    ),
    key(
        "link.node.bandwidth",
        Bandwidth,
        From("absent: no emulated link"),
        "Emulated link of every node of parallel.ranks_per_node ranks, each way, shared by its ranks (docs/communication.md).",
    ),
    key(
        "link.node.latency",
        Latency,
        From("0 where link.node.bandwidth is given"),
        "Time that every transfer between nodes takes beside its bytes, once for each step of its ring.",
    ),
    key(
        "link.host.bandwidth",
        Bandwidth,
        From("absent: no emulated link"),
        "Emulated link of every rank between its device and the host's memory, each way, for what is offloaded on a cpu (docs/offload.md).",
    ),
    key(
        "link.host.latency",
        Latency,
        From("0 where link.host.bandwidth is given"),
        "Time that every move between device and host takes beside its bytes.",
    ),
    key(
        "pace.forward",
        Pace,
        From("absent: as fast as the machine computes"),
        "Emulated: one micro-batch's forward over all blocks of a rank lasts at least so long, by sleeping; needs pace.backward (docs/pipelines.md).",
    ),
    key(
        "pace.backward",
        Pace,
        From("absent: as fast as the machine computes"),
        "The same of its backward; needs pace.forward.",
    ),
    key(
        "gemm.shape",
        Shape,
        From("absent: every matrix product of a training step of the model"),
        "Suite gemm: a matrix product, as \"2048x2048x512\": rows and columns of C, length of the sums.",
    ),
    key(
        "gemm.layout",
        Choice(&["nn", "nt", "tn", "tt"]),
        Is("\"nt\""),
        "How A and B are stored: n as the product reads it, t the other way.",
    ),
    key(
        "gemm.dtype",
        DTYPE,
        From("f32; of a model's products what [precision] says"),
        "Type of A and B. With a model it stands for the precision.preset f32, bf16-mixed or f16-mixed.",
    ),
    key("gemm.output", DTYPE, From("gemm.dtype"), "Type of C."),
    key("gemm.accumulate", Bool, Is("false"), "Whether the product is added to C."),
    key(
        "gemm.buffers",
        Choice(&["rotate", "hot"]),
        Is("\"rotate\""),
        "Buffers of successive calls: other memory each time, more than the caches hold, or always the same.",
    ),
    key("attention.batch", SIZE, Is("1"), "Suite attention: sequences."),
    key("attention.heads", SIZE, Is("8"), "Query heads."),
    key("attention.kv_heads", SIZE, From("attention.heads"), "Key and value heads; must divide the query heads."),
    key("attention.head_dim", Count { min: 1, max: 1 << 16 }, Is("64"), "Elements of a head."),
    key("attention.seq_len", SIZE, Is("512"), "Tokens of a sequence."),
    key("attention.window", NUMBER, Is("0"), "Tokens that one sees, itself the last; 0 = all before it."),
    key("attention.dtype", DTYPE, Is("\"f32\""), "Type of everything but sums."),
    key("attention.pass", Choice(&["forward", "backward", "both"]), Is("\"both\""), "What is timed, each by itself."),
    key(
        "attention.kernel",
        Choice(&["flash", "naive", "both", "flash-hopper"]),
        Is("\"both\""),
        "Which kernels; both are compared with each other too. flash-hopper: the forward for Hopper's own instructions beside flash and \
         compared with it (GPUs of compute capability 9.0, bf16, heads of 64 or 128; docs/cuda.md).",
    ),
    key(
        "collectives.collective",
        Choice(&[
            "all_reduce",
            "all_gather",
            "reduce_scatter",
            "broadcast",
            "reduce",
            "gather",
            "scatter",
            "all_to_all",
            "sendrecv",
        ]),
        Is("\"all_reduce\""),
        "Suite collectives: what is measured, over parallel.ranks (2 where absent) and parallel.backend (local where absent).",
    ),
    key("collectives.min_bytes", Bytes, Is("8"), "Smallest size."),
    key(
        "collectives.max_bytes",
        Bytes,
        From("\"128MiB\", or collectives.min_bytes where that is larger"),
        "Largest size.",
    ),
    key("collectives.step_factor", Count { min: 2, max: 1 << 20 }, Is("2"), "Factor between sizes."),
    key("collectives.iterations", Count { min: 1, max: 1_000_000 }, Is("20"), "Timed iterations of each size."),
    key("collectives.warmup", Count { min: 0, max: 1_000_000 }, Is("1"), "Iterations before them."),
    key(
        "collectives.type",
        Choice(&["int8", "int32", "half", "float", "double", "bfloat16"]),
        Is("\"float\""),
        "Type of the elements, as nccl-tests names it.",
    ),
    key(
        "collectives.redop",
        Choice(&["sum", "prod", "max", "min", "avg"]),
        Is("\"sum\""),
        "Reduction, where there is one.",
    ),
    key("collectives.check", NUMBER, Is("1"), "Rounds of the data check; 0 for none."),
    key(
        "collectives.algorithm",
        Choice(&["auto", "hierarchical", "q8", "q4", "ring"]),
        Is("\"auto\""),
        "auto: the backend chooses by size; hierarchical, q8 and q4 are composed in two levels or quantised, and need \
         parallel.ranks_per_node. ring (NCCL_ALGO) is priced and not measured.",
    ),
    key(
        "collectives.buffers",
        Choice(&["rotate", "hot"]),
        Is("\"rotate\""),
        "Buffers of successive iterations: other memory each time, or always the same.",
    ),
    key(
        "collectives.per_iteration",
        Bool,
        Is("false"),
        "Whether a barrier starts every iteration, which is then timed by itself; the time is the median.",
    ),
    key(
        "collectives.blocking",
        Count { min: 0, max: 3 },
        Is("0"),
        "What a call waits for, as nccl-tests' -z: 0 nothing, 1 the end of the one before and a barrier, 2 its end, 3 both after each \
         iteration, the barrier not timed.",
    ),
    key(
        "bench.seconds",
        Real { min: 0.0, max: 3600.0, positive: false },
        Is("0.5"),
        "Suites gemm and attention: samples of a kernel are taken for this long.",
    ),
    key("bench.iterations", Count { min: 1, max: 1_000_000 }, Is("10"), "And there are at least as many."),
    key("bench.warmup", Real { min: 0.0, max: 3600.0, positive: false }, Is("0.1"), "Seconds of calls before them."),
];

/// A number from 0.
const REAL: Kind = Real { min: 0.0, max: 1e30, positive: false };
/// A number above 0.
const REAL_POSITIVE: Kind = Real { min: 0.0, max: 1e30, positive: true };
