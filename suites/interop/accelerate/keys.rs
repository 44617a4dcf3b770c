//! accelerate's keys, with the defaults of its code at commit 16cb6eb8 (July 2026).

use crate::interop::keys::Kind::*;
use crate::interop::keys::{Spec, becomes, gone, holds, ignored, without};

const LAUNCH: &str = "It says how processes find each other; zbench's launchers do that (docs/launch.md).";
const TPU: &str = "zbench has no TPUs.";
const DEEPSPEED: &str = "It concerns DeepSpeed's launcher.";

/// Sharding strategies, in PyTorch's order.
pub const STRATEGIES: &[&str] = &["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"];

/// Keys of deepspeed_config whose value may be left to the training script.
pub const AUTO: &[&str] = &["deepspeed_config.gradient_accumulation_steps", "deepspeed_config.gradient_clipping"];

/// What stands at the top.
pub const TOP: &[Spec] = &[
    becomes(
        "compute_environment",
        Word(&["LOCAL_MACHINE", "AMAZON_SAGEMAKER"]),
        "\"LOCAL_MACHINE\"",
        "nothing; SageMaker is an error",
    ),
    becomes(
        "distributed_type",
        Word(&[
            "FSDP",
            "DEEPSPEED",
            "MULTI_GPU",
            "MULTI_CPU",
            "MULTI_XPU",
            "MULTI_NPU",
            "MULTI_MLU",
            "MULTI_MUSA",
            "MULTI_SDAA",
            "MULTI_HPU",
            "NO",
            "XLA",
            "TPU",
            "MEGATRON_LM",
        ]),
        "",
        "parallel.strategy, with fsdp_config or deepspeed_config; MULTI_* and NO are ddp, others an error",
    ),
    becomes(
        "mixed_precision",
        Word(&["no", "fp16", "bf16", "fp8"]),
        "\"no\"",
        "precision.preset and the keys beside it",
    ),
    becomes("num_processes", Whole(1), "", "parallel.ranks"),
    becomes("num_machines", Whole(1), "1", "parallel.ranks_per_node = num_processes / num_machines"),
    holds("fsdp_config", FSDP),
    holds("deepspeed_config", DEEPSPEED_CONFIG),
    holds("parallelism_config", PARALLELISM),
    ignored("machine_rank", Whole(0), "0", LAUNCH),
    ignored("main_process_ip", Any, "", LAUNCH),
    ignored("main_process_port", Whole(0), "", LAUNCH),
    ignored("rdzv_backend", Text, "\"static\"", LAUNCH),
    ignored("same_network", Bool, "false", LAUNCH),
    ignored("gpu_ids", Any, "\"all\"", LAUNCH),
    ignored("main_training_function", Text, "\"main\"", LAUNCH),
    ignored("enable_cpu_affinity", Bool, "false", "hardware.pin keeps threads to cores here."),
    ignored("use_cpu", Bool, "false", "hardware.device says what computes."),
    ignored("debug", Bool, "false", "zbench always checks its collectives."),
    ignored("mpirun_config", Table, "", LAUNCH),
    without(
        "dynamo_config",
        Table,
        "",
        "zbench's kernels are not compiled from a graph; hardware.software = \"fsdp2-compiled\" prices compiled PyTorch.",
    ),
    without("dynamo_backend", Text, "\"NO\"", "zbench's kernels are not compiled from a graph."),
    without("fp8_config", Table, "", "zbench has no fp8."),
    without("megatron_lm_config", Table, "", "State parallel.tensor and parallel.pipeline instead."),
    without("downcast_bf16", Bool, "false", TPU),
    without("tpu_name", Any, "", TPU),
    without("tpu_zone", Any, "", TPU),
    without("tpu_use_cluster", Bool, "false", TPU),
    without("tpu_use_sudo", Bool, "false", TPU),
    without("tpu_vm", Any, "", TPU),
    without("tpu_env", Any, "[]", TPU),
    ignored("command_file", Any, "", LAUNCH),
    ignored("commands", Any, "", LAUNCH),
    gone("fp16", "write mixed_precision: fp16 instead"),
];

const FSDP: &[Spec] = &[
    becomes("fsdp_version", Whole(1), "1", "which keys say how weights are split"),
    becomes(
        "fsdp_sharding_strategy",
        Word(STRATEGIES),
        "\"FULL_SHARD\"",
        "parallel.strategy: fsdp, fsdp-grad-op, ddp, hsdp; HYBRID_SHARD_ZERO2 has no equivalent",
    ),
    becomes(
        "fsdp_reshard_after_forward",
        Any,
        "true",
        "version 2: parallel.strategy = \"fsdp\", or \"fsdp-grad-op\" where it is false",
    ),
    becomes(
        "fsdp_auto_wrap_policy",
        Word(&["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"]),
        "\"NO_WRAP\"",
        "TRANSFORMER_BASED_WRAP is what zbench does; others have no equivalent",
    ),
    becomes("fsdp_transformer_layer_cls_to_wrap", List, "", "nothing: a unit is always a block"),
    without(
        "fsdp_min_num_params",
        Whole(0),
        "100000000",
        "A unit is a block, the embedding or the head, whatever its size.",
    ),
    becomes(
        "fsdp_backward_prefetch",
        Word(&["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"]),
        "\"NO_PREFETCH\"",
        "parallel.prefetch: 1, 0; BACKWARD_POST has no equivalent",
    ),
    ignored(
        "fsdp_backward_prefetch_policy",
        Text,
        "",
        "accelerate reads fsdp_backward_prefetch and no longer this old name of it: nothing is gathered ahead there.",
    ),
    becomes("fsdp_forward_prefetch", Bool, "false", "parallel.prefetch, which is for both directions"),
    becomes("fsdp_offload_params", Bool, "false", "memory.offload_parameters and memory.offload_optimizer = \"host\""),
    becomes(
        "fsdp_state_dict_type",
        Word(&["FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"]),
        "",
        "checkpoint.layout, where checkpoint.dir is set",
    ),
    ignored("fsdp_sync_module_states", Bool, "true", "All ranks of zbench begin with the same weights."),
    ignored(
        "fsdp_use_orig_params",
        Bool,
        "true",
        "Flat buffers keep each tensor's place; adapters and frozen weights need no setting.",
    ),
    becomes(
        "fsdp_cpu_ram_efficient_loading",
        Bool,
        "true",
        "model.loading: broadcast or everywhere, where model.path is set",
    ),
    becomes("fsdp_activation_checkpointing", Bool, "false", "memory.checkpointing = \"full\""),
    without("fsdp_ignored_modules", Any, "", "All of a model is split."),
];

const DEEPSPEED_CONFIG: &[Spec] = &[
    becomes("deepspeed_config_file", Text, "", "an error: name that file instead"),
    becomes("zero_stage", Whole(0), "2", "parallel.strategy: ddp, zero1, zero2, zero3"),
    becomes("offload_optimizer_device", Word(&["none", "cpu", "nvme"]), "\"none\"", "memory.offload_optimizer"),
    becomes("offload_param_device", Word(&["none", "cpu", "nvme"]), "\"none\"", "memory.offload_parameters"),
    becomes("offload_optimizer_nvme_path", Text, "", "memory.offload_path"),
    becomes("offload_param_nvme_path", Text, "", "memory.offload_path"),
    becomes("gradient_accumulation_steps", Whole(1), "1", "train.accumulation"),
    becomes(
        "gradient_clipping",
        NumberOrNone(0.0),
        "",
        "train.clip_norm; absent, none and 0: 1.0, at which DeepSpeed then clips",
    ),
    ignored("zero3_init_flag", Bool, "false", "zbench makes every rank's part where it lies."),
    ignored(
        "zero3_save_16bit_model",
        Bool,
        "false",
        "It concerns saving; checkpoint.layout = \"full\" writes whole weights.",
    ),
    ignored("deepspeed_hostfile", Any, "", DEEPSPEED),
    ignored("deepspeed_multinode_launcher", Any, "", DEEPSPEED),
    ignored("deepspeed_exclusion_filter", Any, "", DEEPSPEED),
    ignored("deepspeed_inclusion_filter", Any, "", DEEPSPEED),
    ignored("deepspeed_moe_layer_cls_names", Any, "", "Units are blocks, with experts or without."),
];

const PARALLELISM: &[Spec] = &[
    becomes("parallelism_config_dp_replicate_size", Whole(1), "1", "parallel.strategy = \"hsdp\" above 1"),
    becomes(
        "parallelism_config_dp_shard_size",
        Whole(1),
        "1",
        "parallel.shard, where weights are replicated too; absent: what replicas, tp and cp leave of the ranks",
    ),
    becomes("parallelism_config_tp_size", Whole(1), "1", "parallel.tensor"),
    becomes("parallelism_config_cp_size", Whole(1), "1", "parallel.context"),
    without("parallelism_config_cp_backend", Any, "\"torch\"", "Context parallelism is priced as a ring."),
    without("parallelism_config_cp_comm_strategy", Any, "", "Context parallelism is priced as a ring."),
    without(
        "parallelism_config_sp_size",
        Whole(1),
        "1",
        "zbench's sequence parallelism is that of parallel.tensor's ranks.",
    ),
    without(
        "parallelism_config_sp_backend",
        Any,
        "",
        "zbench's sequence parallelism is that of parallel.tensor's ranks.",
    ),
    without("parallelism_config_sp_seq_length", Any, "", "train.seq_len states it."),
    without("parallelism_config_sp_seq_length_is_variable", Any, "", "train.seq_len states it."),
    without("parallelism_config_sp_attn_implementation", Any, "", "memory.attention states it."),
];
