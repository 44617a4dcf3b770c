//! Keys of what other programs do and this engine does not: such cells are priced and not run. And those of `[published]`.

use super::Default::{From, Is};
use super::Kind::*;
use super::lookup::is_key;
use super::{Key, NUMBER, REAL_POSITIVE, SIZE, key};

pub(super) const KEYS: &[Key] = &[
    key(
        "model.num_decoder_layers",
        SIZE,
        From("model.num_hidden_layers"),
        "Blocks of the decoder behind the encoder of family t5, or custom; custom: absent = there is one stack.",
    ),
    key(
        "model.feed_forward_proj",
        Choice(&["relu", "gated-gelu"]),
        Is("\"relu\""),
        "The MLP of family t5: two matrices or three.",
    ),
    key("model.parameters", Count { min: 1, max: 1 << 53 }, From("absent"), "All parameters, of family count."),
    key(
        "model.largest_layer",
        Count { min: 1, max: 1 << 53 },
        From("absent"),
        "Parameters of the largest layer, of family count.",
    ),
    key(
        "model.mlp",
        Choice(&["plain", "gated"]),
        Is("\"gated\""),
        "Of family custom: an MLP of two matrices or of three.",
    ),
    key("model.bias", Bool, Is("false"), "Of family custom: whether linear layers have biases."),
    key(
        "model.norm",
        Choice(&["rms", "layer"]),
        Is("\"rms\""),
        "Of family custom: RMS norms, or layer norms with a bias.",
    ),
    key(
        "model.learned_positions",
        NUMBER,
        Is("0"),
        "Of family custom: rows of a table of learned positions; 0 = none.",
    ),
    key("model.causal", Bool, Is("true"), "Of family custom: false = an encoder, whose tokens see all others."),
    key(
        "model.shared_expert_intermediate_size",
        NUMBER,
        Is("0"),
        "Of family custom with experts: width of the expert that every token goes to; 0 = none.",
    ),
    key(
        "model.first_k_dense_replace",
        NUMBER,
        Is("0"),
        "Of family custom with experts: first blocks that have an MLP instead.",
    ),
    key(
        "model.kv_lora_rank",
        NUMBER,
        Is("0"),
        "Of family custom: rank of keys and values in multi-latent attention; 0 = plain attention.",
    ),
    key("model.q_lora_rank", NUMBER, Is("0"), "Its rank of queries; 0 = whole."),
    key("model.qk_nope_head_dim", NUMBER, Is("0"), "Its elements of a head of queries and keys without position."),
    key("model.qk_rope_head_dim", NUMBER, Is("0"), "Its elements of a head of queries and keys with position."),
    key("model.v_head_dim", NUMBER, Is("0"), "Its elements of a head of values."),
    key(
        "model.num_nextn_predict_layers",
        NUMBER,
        Is("0"),
        "Of family custom: blocks that predict the tokens after the next (multi-token prediction).",
    ),
    key(
        "train.optimizer_in_backward",
        Bool,
        Is("false"),
        "Whether each gradient is used by the optimizer and freed as soon as backward has made it. Priced and not run.",
    ),
    key(
        "parallel.optimizer_shard",
        SIZE,
        From("those of parallel.strategy"),
        "Ranks over which optimizer state is split, where they are fewer or more than the strategy says. Priced and not run.",
    ),
    key(
        "parallel.tensor_overlap",
        Bool,
        Is("false"),
        "Whether collectives of tensor ranks run beside products because the run asks for it (asynchronous tensor \
         parallelism), as it is priced.",
    ),
    key(
        "parallel.expert_overlap",
        Bool,
        Is("false"),
        "Whether the experts' all-to-all of one micro-batch runs beside the compute of another, as it is priced.",
    ),
    key(
        "precision.products",
        Choice(&["native", "tf32", "bf16", "f16", "fp8"]),
        Is("\"native\""),
        "The form of matrix products; native = precision.compute. Others are priced and not run.",
    ),
    key(
        "precision.main_gradients",
        Bool,
        Is("false"),
        "Whether gradients are summed in f32 beside those in precision.gradients, as DeepSpeed's bf16 optimizer does. Priced \
         and not run.",
    ),
    key(
        "lora.trainable",
        Count { min: 1, max: 1 << 53 },
        From("those of the adapters on lora.targets"),
        "Trainable parameters of the adapters, where they are stated instead. Priced and not run.",
    ),
    key(
        "lora.adapter_dtype",
        Choice(&["f32", "bf16", "f16"]),
        From("precision.parameters"),
        "Type of the adapters' weights, where it is not that of the others. Priced and not run.",
    ),
    key(
        "memory.recompute",
        Recompute,
        From("absent: what memory.checkpointing says"),
        "What backward recomputes, as other programs do it: \"core\" (attention's scores and softmax, Megatron-LM's selective), \
         \"op\" (torchtitan's selective by operation), { one_in = k } (every k-th block whole, torchtitan's by layer), or a list of \
         Megatron-Core's modules: core_attn, mlp, mlp_act, moe, moe_act, layernorm, mla_up_proj, shared_experts. Priced and not run.",
    ),
    key(
        "hardware.changes",
        Changes,
        Is("[]"),
        "Figures in which the machine differs from hardware.profile, by their places in it, as \"network.rate=400Gb/s\" (docs/machines.md).",
    ),
    key(
        "published.id",
        Text,
        From("absent: the cell is no published result"),
        "Name of a published result of this cell, for `zbench plan --validate DIR`.",
    ),
    key("published.family", Text, From("the file's name without .toml"), "Results that one source published together."),
    key(
        "published.quantity",
        Choice(&[
            "memory",
            "tokens_per_s_per_gpu",
            "step_time_s",
            "tflops_per_gpu",
            "mfu_pct",
            "fits",
            "busbw_gbs",
            "algbw_gbs",
            "time_us",
        ]),
        From("needed with published.id"),
        "What was measured: bytes of a rank, tokens per second of a rank, seconds of a step, FLOP/s of a rank in units of 1e12, \
         their share of published.peak, or whether it ran within its memory; of a collective its bandwidth in GB/s or its microseconds.",
    ),
    key(
        "published.value",
        Real { min: 0.0, max: 1e30, positive: false },
        From("absent: no number is stated"),
        "The measured value, in published.unit; of fits 1 = it ran, 0 = it was out of memory.",
    ),
    key("published.unit", Choice(&["B", "MB", "MiB", "GB", "GiB"]), Is("\"GB\""), "The unit of memory."),
    key(
        "published.bound",
        Text,
        From("absent: it is the value itself"),
        "How the value bounds the result, as \"<\"; such a row is predicted and not scored.",
    ),
    key(
        "published.size",
        Choice(&["allocated", "reserved", "device", "after_step"]),
        Is("\"allocated\""),
        "Which memory: the peak of what the allocator handed out, of what it held, of the device (nvidia-smi), or what is \
         allocated between steps.",
    ),
    key("published.stage", Choice(&["largest", "last"]), Is("\"largest\""), "The pipeline stage whose memory it is."),
    key(
        "published.convention",
        Choice(&["full", "megatron", "megatron-recomputed", "6n", "8n", "hardware"]),
        Is("\"full\""),
        "How FLOPs are counted: 6 N + 12 L h s per token; Megatron's formula; the same with a recomputed forward; 6 N; 8 N; what is computed (docs/flops.md).",
    ),
    key(
        "published.peak",
        REAL_POSITIVE,
        From("hardware.profile's"),
        "FLOP/s of a rank, in units of 1e12, of which mfu_pct is a share.",
    ),
    key(
        "published.fits",
        Bool,
        From("absent: it says nothing"),
        "Whether this run is known to have been within its memory, or to have been out of it.",
    ),
    key("published.source", Text, From("absent"), "Where it was published."),
    key(
        "published.unknown",
        Names(is_key),
        Is("[]"),
        "Keys that the source does not state and the result depends on: such a row is predicted and not scored, but of a speed \
         the fastest train.micro_batch and parallel.virtual_stages that fit are looked for, and such a row is scored.",
    ),
    key(
        "published.excluded",
        Text,
        From("absent: the row is scored"),
        "Why the row is not scored: its source contradicts itself, or it is cited from memory.",
    ),
];
