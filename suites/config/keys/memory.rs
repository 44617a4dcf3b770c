//! The keys of `[memory]`.

use super::{
    Default::{From, Is},
    Key,
    Kind::{Bool, Bytes, Checkpointing, Choice, Count, Path},
    SIZE, key,
};

pub(super) const KEYS: &[Key] = &[
    key(
        "memory.checkpointing",
        Checkpointing,
        Is("\"none\""),
        "What forward keeps for backward: \"none\" (everything), \"full\", \"selective\", \"sqrt\", { every = k }, a list of the \
         tensors kept of each block, or \"evict\" (everything that memory.capacity holds; then what costs least to make again is dropped).",
    ),
    key(
        "memory.prepack",
        Choice(&["none", "step"]),
        Is("\"none\""),
        "\"step\" keeps each matrix of weights in the two forms that products read, made once a step: as much memory again, \
         twice, for no packing in forward and backward. For whole weights in the compute type: ddp, zero1, zero2.",
    ),
    key(
        "memory.attention",
        Choice(&["flash", "naive", "flash1", "flash3"]),
        Is("\"flash\""),
        "The attention kernel: by tiles, or with all scores in memory. On GPUs flash is FlashAttention's second generation; the first \
         and the third are priced and not run. Left out under another hardware.software: the first kernel of that program's profile, and a wider band of the speed.",
    ),
    key(
        "memory.offload_optimizer",
        Choice(&["none", "host", "disk"]),
        Is("\"none\""),
        "Where optimizer state and, if it is split, each rank's part of the gradients live; none = on the device. The update is then computed on the host.",
    ),
    key(
        "memory.offload_parameters",
        Choice(&["none", "host", "disk"]),
        Is("\"none\""),
        "Where each rank's part of the weights lives, under zero3, fsdp and hsdp; none = on the device.",
    ),
    key(
        "memory.offload_activations",
        Choice(&["none", "host", "disk"]),
        Is("\"none\""),
        "Where what forward keeps for backward lives; none = on the device.",
    ),
    key(
        "memory.partition_activations",
        Bool,
        Is("false"),
        "Whether the inputs that checkpointing keeps are split over parallel.tensor (ZeRO-R).",
    ),
    key(
        "memory.loss",
        Choice(&["fused", "logits", "chunked"]),
        Is("\"fused\""),
        "How the loss is made: in one kernel over the logits (the engine's), from logits and f32 copies of them, or so many \
         tokens at a time. The last two are priced and not run.",
    ),
    key("memory.loss_chunk", SIZE, Is("1024"), "Tokens at a time of memory.loss = \"chunked\"."),
    key(
        "memory.offload_path",
        Path,
        From("the system's folder for temporary files"),
        "Folder of what is offloaded to disk; it must be there. One in memory (tmpfs) saves nothing. No price depends on it, and a cell with nothing on a disk does not look at it.",
    ),
    key(
        "memory.offload_prefetch",
        Count { min: 0, max: 64 },
        Is("1"),
        "Layers whose offloaded state is on its way before it is needed; 0 = each is waited for. Only where something is offloaded.",
    ),
    key(
        "memory.capacity",
        Bytes,
        From("hardware.profile's memory, else what the machine has"),
        "Bytes a rank may use, as \"80GiB\": the arena refuses more, as a card of that size would.",
    ),
];
