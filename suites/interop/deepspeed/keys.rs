//! DeepSpeed's keys, with the defaults of its code at commit edaa7221 (August 2026).

use crate::interop::keys::Kind::*;
use crate::interop::keys::{Spec, becomes, gone, holds, ignored, without};

/// Types by any of the names that DeepSpeed takes.
const DTYPES: super::super::keys::Kind = Word(&[
    "fp32",
    "fp16",
    "bf16",
    "bfp16",
    "float32",
    "float16",
    "bfloat16",
    "half",
    "float",
    "torch.float32",
    "torch.float16",
    "torch.bfloat16",
]);
const DEVICE: super::super::keys::Kind = Word(&["none", "cpu", "nvme"]);
const SIGNED: super::super::keys::Kind = Whole(i64::MIN);
const FIRST: super::super::keys::Kind = Whole(0);

const LOGS: &str = "It only changes what is logged; zbench has its own records.";
const UNITS: &str = "It counts elements; zbench gathers whole units (a block, the embedding, the head) and counts those in parallel.prefetch.";
const BUCKETS: &str =
    "It counts elements; zbench reduces and gathers one unit (a block, the embedding, the head) at a time.";
const OFFLOAD: &str = "Offload is priced by the rates of the machine's profile, whatever the buffers.";
const DISK: &str = "The disk is priced by the rate of the machine's profile (zbench calibrate, zbench io).";
const MODULES: &str = "It concerns PyTorch's modules and hooks, which zbench's engine does not have.";
const METHOD: &str = "It is another method of training, which zbench does not have.";

/// What stands at the top.
pub const TOP: &[Spec] = &[
    becomes(
        "train_batch_size",
        Whole(1),
        "",
        "checked against train.micro_batch x train.accumulation x data-parallel ranks; parallel.ranks where --ranks is absent",
    ),
    becomes("train_micro_batch_size_per_gpu", Whole(1), "", "train.micro_batch"),
    becomes("gradient_accumulation_steps", Whole(1), "", "train.accumulation"),
    holds("zero_optimization", ZERO),
    holds("optimizer", OPTIMIZER),
    holds("scheduler", SCHEDULER),
    holds("fp16", FP16),
    holds("bf16", BF16),
    gone("bfloat16", "write bf16 instead"),
    holds("torch_autocast", AUTOCAST),
    holds("amp", AMP),
    holds("data_types", DATA_TYPES),
    becomes("gradient_clipping", Number(0.0), "1.0", "train.clip_norm"),
    becomes("communication_data_type", DTYPES, "", "precision.reduce"),
    without(
        "seq_parallel_communication_data_type",
        DTYPES,
        "\"fp32\"",
        "zbench's sequence parallelism has no wire type of its own.",
    ),
    becomes("sequence_parallel_size", Whole(1), "1", "parallel.context, the nearest"),
    without("prescale_gradients", Bool, "false", "zbench adds gradients up in f32 and divides once, in the update."),
    without(
        "gradient_predivide_factor",
        Number(0.0),
        "1.0",
        "zbench adds gradients up in f32 and divides once, in the update.",
    ),
    without(
        "gradient_allreduce_op",
        Word(&["mean", "sum"]),
        "\"mean\"",
        "The loss of a step is a mean over its tokens.",
    ),
    without("sparse_gradients", Bool, "false", "An embedding's gradient travels whole in zbench."),
    without("disable_allgather", Bool, "false", "Weights are always gathered."),
    holds("activation_checkpointing", ACTIVATIONS),
    holds("aio", AIO),
    holds("tensor_parallel", TENSOR),
    holds("expert_parallel", EXPERT),
    without("use_data_before_expert_parallelism", Bool, "false", "The order of the mesh's axes is fixed."),
    holds("flops_profiler", FLOPS),
    holds("comms_logger", COMMS),
    holds("checkpoint", CHECKPOINT),
    becomes("seed", FIRST, "", "train.seed"),
    ignored("steps_per_print", Whole(1), "", LOGS),
    ignored("wall_clock_breakdown", Bool, "false", "Every record of zbench has the time of each span."),
    ignored("memory_breakdown", Bool, "false", "Every record of zbench has memory by category."),
    ignored("disable_python_gc", Bool, "false", "It is about Python's collector of garbage; zbench has no Python."),
    ignored("dump_state", Bool, "false", LOGS),
    ignored("log_level", Text, "", LOGS),
    ignored("tensorboard", Table, "", LOGS),
    ignored("wandb", Table, "", LOGS),
    ignored("csv_monitor", Table, "", LOGS),
    ignored("comet", Table, "", LOGS),
    ignored("monitor_config", Table, "", LOGS),
    ignored("timers", Table, "", LOGS),
    ignored("autotuning", Table, "", "`zbench plan --search` and grids look for the best settings."),
    ignored("nebula", Table, "", "It says where checkpoints go; [checkpoint] does here."),
    ignored("dataloader_drop_last", Bool, "false", "zbench's batches are always whole."),
    ignored("zero_allow_untested_optimizer", Bool, "false", "It only permits; nothing is done otherwise."),
    ignored("zero_force_ds_cpu_optimizer", Bool, "true", "It only refuses other optimizers on the host."),
    ignored("managed_gradient_accumulation", Bool, "true", "It says who counts the micro-batches; zbench does."),
    without("graph_harvesting", Bool, "false", "zbench records no CUDA graphs."),
    without(
        "compile",
        Table,
        "",
        "zbench's kernels are not compiled from a graph; hardware.software = \"torch-compiled\" prices compiled PyTorch.",
    ),
    without("elasticity", Table, "", "The ranks of a cell are fixed."),
    without("pipeline", Table, "", "Stages are stated by the training script there, and by parallel.pipeline here."),
    without("progressive_layer_drop", Table, "", METHOD),
    without("sparse_attention", Table, "", METHOD),
    without("eigenvalue", Table, "", METHOD),
    without("curriculum_learning", Table, "", METHOD),
    without("data_efficiency", Table, "", METHOD),
    without("compression_training", Table, "", METHOD),
    without("hybrid_engine", Table, "", METHOD),
    without("weight_quantization", Table, "", METHOD),
    without("quantize_training", Table, "", METHOD),
    without("vocabulary_size", Any, "", "The model says it here."),
];

const ZERO: &[Spec] = &[
    becomes(
        "stage",
        FIRST,
        "0",
        "parallel.strategy: ddp, zero1, zero2, zero3; stage 3 is zero++ with hpZ and hsdp with MiCS",
    ),
    without("contiguous_gradients", Bool, "true", "zbench's gradients are always one buffer for each unit."),
    without("reduce_scatter", Bool, "true", "zbench reduce-scatters wherever gradients are split."),
    without("reduce_bucket_size", FIRST, "500000000", BUCKETS),
    without("use_multi_rank_bucket_allreduce", Bool, "true", BUCKETS),
    without("allgather_partitions", Bool, "true", "zbench gathers, and never broadcasts part by part."),
    without("allgather_bucket_size", FIRST, "500000000", BUCKETS),
    becomes(
        "overlap_comm",
        Bool,
        "",
        "nothing: true in stage 3 and false below are the default, others have no equivalent",
    ),
    ignored(
        "load_from_fp32_weights",
        Bool,
        "true",
        "It concerns resuming; zbench's checkpoints hold the master weights.",
    ),
    ignored("elastic_checkpoint", Bool, "false", "zbench's checkpoints are read by any ranks and strategy."),
    without("sub_group_size", FIRST, "1000000000", "zbench updates unit by unit."),
    without("round_robin_gradients", Bool, "false", "It orders copies to the host, which are priced as a whole."),
    ignored("ignore_unused_parameters", Bool, "true", "Every parameter of zbench's models is used."),
    without("legacy_stage1", Bool, "false", "There is one implementation of zero1."),
    without("stage3_max_live_parameters", FIRST, "1000000000", UNITS),
    without("stage3_max_reuse_distance", FIRST, "1000000000", UNITS),
    without("stage3_prefetch_bucket_size", FIRST, "50000000", UNITS),
    without(
        "stage3_param_persistence_threshold",
        FIRST,
        "100000",
        "Small tensors are split with the unit they are in.",
    ),
    without(
        "stage3_model_persistence_threshold",
        FIRST,
        "9223372036854775807",
        "Small tensors are split with the unit they are in.",
    ),
    ignored(
        "stage3_gather_16bit_weights_on_model_save",
        Bool,
        "false",
        "It concerns saving; checkpoint.layout = \"full\" writes whole weights.",
    ),
    gone("stage3_gather_fp16_weights_on_model_save", "write stage3_gather_16bit_weights_on_model_save instead"),
    without("stage3_module_granularity_threshold", FIRST, "0", UNITS),
    without("stage3_use_all_reduce_for_fetch_params", Bool, "false", "Weights are gathered, not all-reduced."),
    without("stage3_allgather_sequential", Bool, "false", UNITS),
    without("memory_efficient_linear", Bool, "true", MODULES),
    ignored("pipeline_loading_checkpoint", Bool, "false", "It concerns loading; see model.loading."),
    ignored("override_module_apply", Bool, "true", MODULES),
    ignored("log_trace_cache_warnings", Bool, "false", LOGS),
    ignored("enable_sanity_checks", Bool, "false", "zbench always checks."),
    holds("offload_param", OFFLOAD_PARAM),
    holds("offload_optimizer", OFFLOAD_OPTIMIZER),
    without("zenflow", Table, "", METHOD),
    gone("cpu_offload", "write \"offload_optimizer\": { \"device\": \"cpu\" } instead"),
    gone("cpu_offload_param", "write \"offload_param\": { \"device\": \"cpu\" } instead"),
    gone("cpu_offload_use_pin_memory", "write \"pin_memory\": true in offload_param or offload_optimizer instead"),
    becomes("zero_hpz_partition_size", FIRST, "1", "parallel.strategy = \"zero++\" and parallel.shard"),
    becomes("zero_quantized_weights", Bool, "false", "parallel.gather_wire = \"int8\""),
    without("zero_quantized_nontrainable_weights", Bool, "false", "Frozen weights of few bits are lora.base here."),
    becomes("zero_quantized_gradients", Bool, "false", "parallel.reduce_wire = \"int4\""),
    holds("zeropp_loco_param", LOCO),
    becomes("mics_shard_size", SIGNED, "-1", "parallel.strategy = \"hsdp\" and parallel.shard"),
    without("mics_hierarchical_params_gather", Bool, "false", "A gather goes over the shard group in one step."),
    without("leaf_module", Table, "", "Units are the embedding, each block and the head."),
    without("save_muon_momentum_buffer_in_memory", Bool, "false", "zbench has no Muon."),
    without("allgather_size", Any, "", BUCKETS),
];

const LOCO: &[Spec] = &[
    without("err_beta", Number(0.0), "0.8", "Errors of quantised gradients are not fed back."),
    without("reset_T", FIRST, "1024", "Errors of quantised gradients are not fed back."),
];

const OFFLOAD_PARAM: &[Spec] = &[
    becomes("device", DEVICE, "\"none\"", "memory.offload_parameters: cpu is host, nvme is disk"),
    becomes("nvme_path", Text, "", "memory.offload_path"),
    without("buffer_count", FIRST, "5", OFFLOAD),
    without("buffer_size", FIRST, "100000000", OFFLOAD),
    without("max_in_cpu", FIRST, "1000000000", OFFLOAD),
    without("pin_memory", Bool, "true", OFFLOAD),
];

const OFFLOAD_OPTIMIZER: &[Spec] = &[
    becomes("device", DEVICE, "\"none\"", "memory.offload_optimizer: cpu is host, nvme is disk"),
    becomes("nvme_path", Text, "", "memory.offload_path"),
    without("buffer_count", FIRST, "4", OFFLOAD),
    without("pin_memory", Bool, "true", OFFLOAD),
    without("pipeline_read", Bool, "false", OFFLOAD),
    without("pipeline_write", Bool, "false", OFFLOAD),
    without("fast_init", Bool, "false", "It concerns the start alone."),
    without("ratio", Number(0.0), "1.0", "All of the optimizer's state is offloaded, or none."),
    without("super_offload", Bool, "false", OFFLOAD),
    without("cpuadam_cores_perc", Number(0.0), "0.8", OFFLOAD),
];

const OPTIMIZER: &[Spec] = &[
    becomes("type", Text, "", "train.optimizer = \"adamw\"; others than Adam and AdamW have no equivalent"),
    holds("params", OPTIMIZER_PARAMS),
    ignored("legacy_fusion", Bool, "false", "It concerns how PyTorch's kernels are fused."),
];

const FUSED: &str = "It chooses among implementations of one update.";
const ONE_BIT: &str = "It belongs to an optimizer that zbench does not have.";
const UPDATE: &str = "It changes the update, and zbench's AdamW has no such thing.";

const OPTIMIZER_PARAMS: &[Spec] = &[
    becomes("lr", Number(0.0), "0.001", "train.lr"),
    becomes("betas", Pair, "[0.9, 0.999]", "train.betas"),
    becomes("eps", Number(0.0), "1e-8", "train.eps"),
    becomes("weight_decay", Number(0.0), "0.0", "train.weight_decay"),
    becomes("adam_w_mode", Bool, "true", "false with a decay has no equivalent"),
    ignored("torch_adam", Bool, "false", FUSED),
    ignored("fused", Bool, "", FUSED),
    ignored("set_grad_none", Bool, "true", FUSED),
    ignored("foreach", Bool, "", FUSED),
    ignored("capturable", Bool, "false", FUSED),
    ignored("differentiable", Bool, "false", FUSED),
    without("maximize", Bool, "false", UPDATE),
    without("decoupled_weight_decay", Bool, "", UPDATE),
    without("bias_correction", Bool, "true", "zbench's AdamW always corrects the bias."),
    without("amsgrad", Bool, "false", "zbench's AdamW has no maximum of moments."),
    without("fp32_optimizer_states", Bool, "true", "precision.optimizer states the moments' type; set it there."),
    gone("max_grad_norm", "write gradient_clipping at the top instead"),
    without("momentum", Number(0.0), "", ONE_BIT),
    without("dampening", Number(0.0), "", ONE_BIT),
    without("nesterov", Bool, "", ONE_BIT),
    without("alpha", Number(0.0), "", ONE_BIT),
    without("centered", Bool, "", ONE_BIT),
    without("lr_decay", Number(0.0), "", ONE_BIT),
    without("initial_accumulator_value", Number(0.0), "", ONE_BIT),
    without("max_coeff", Number(0.0), "", ONE_BIT),
    without("min_coeff", Number(0.0), "", ONE_BIT),
    without("freeze_step", FIRST, "", ONE_BIT),
    without("cuda_aware", Bool, "", ONE_BIT),
    without("comm_backend_name", Text, "", ONE_BIT),
    without("var_freeze_step", FIRST, "", ONE_BIT),
    without("var_update_scaler", FIRST, "", ONE_BIT),
    without("local_step_scaler", FIRST, "", ONE_BIT),
    without("local_step_clipper", FIRST, "", ONE_BIT),
    without("coeff_beta", Number(0.0), "", ONE_BIT),
    without("factor_max", Number(0.0), "", ONE_BIT),
    without("factor_min", Number(0.0), "", ONE_BIT),
    without("factor_threshold", Number(0.0), "", ONE_BIT),
    without("muon_lr", Number(0.0), "", ONE_BIT),
    without("adam_lr", Number(0.0), "", ONE_BIT),
    without("ns_method", Text, "", ONE_BIT),
];

const SCHEDULER: &[Spec] = &[
    becomes(
        "type",
        Word(&["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest", "OneCycle"]),
        "",
        "train.lr_schedule: constant, linear, cosine; LRRangeTest and OneCycle have no equivalent",
    ),
    holds("params", SCHEDULER_PARAMS),
];

const CYCLE: &str = "zbench has neither a range test nor cycles.";

const SCHEDULER_PARAMS: &[Spec] = &[
    becomes("warmup_min_lr", Number(0.0), "0.0", "0, as zbench's warm-up begins; others have no equivalent"),
    becomes("warmup_min_ratio", Number(0.0), "0.0", "0, as zbench's warm-up begins; others have no equivalent"),
    becomes("warmup_max_lr", Number(0.0), "0.001", "train.lr"),
    becomes("warmup_num_steps", Whole(1), "1000", "train.lr_warmup_steps"),
    becomes("warmup_type", Word(&["log", "linear"]), "\"log\"", "linear, as zbench's is; log has no equivalent"),
    becomes("total_num_steps", Whole(1), "", "train.steps + train.untimed_steps"),
    becomes("cos_min_ratio", Number(0.0), "0.0001", "train.lr_min = optimizer.params.lr x this"),
    ignored("last_batch_iteration", SIGNED, "-1", "A cell begins at its beginning, or where a checkpoint says."),
    without("lr_range_test_min_lr", Number(0.0), "", CYCLE),
    without("lr_range_test_step_size", FIRST, "", CYCLE),
    without("lr_range_test_step_rate", Number(0.0), "", CYCLE),
    without("lr_range_test_staircase", Bool, "", CYCLE),
    without("cycle_min_lr", Number(0.0), "", CYCLE),
    without("cycle_max_lr", Number(0.0), "", CYCLE),
    without("cycle_first_step_size", FIRST, "", CYCLE),
    without("cycle_second_step_size", FIRST, "", CYCLE),
    without("cycle_first_stair_count", FIRST, "", CYCLE),
    without("cycle_second_stair_count", FIRST, "", CYCLE),
    without("decay_lr_rate", Number(0.0), "", CYCLE),
    without("decay_step_size", FIRST, "", CYCLE),
    without("cycle_momentum", Bool, "", CYCLE),
    without("cycle_min_mom", Number(0.0), "", CYCLE),
    without("cycle_max_mom", Number(0.0), "", CYCLE),
    without("decay_mom_rate", Number(0.0), "", CYCLE),
];

const FP16: &[Spec] = &[
    becomes("enabled", Bool, "false", "precision.preset = \"f16-mixed\" with gradients, reduce and load in f16"),
    without("auto_cast", Bool, "false", "Inputs are tokens; all that is computed has precision.compute."),
    becomes("loss_scale", Number(0.0), "0", "precision.loss_scale; 0 is dynamic"),
    becomes("initial_scale_power", FIRST, "16", "precision.initial_scale_power"),
    becomes("loss_scale_window", Whole(1), "1000", "precision.loss_scale_window"),
    becomes("hysteresis", Whole(1), "2", "precision.hysteresis"),
    becomes("consecutive_hysteresis", Bool, "false", "precision.consecutive_hysteresis"),
    becomes("min_loss_scale", Number(0.0), "1", "precision.min_loss_scale"),
    becomes("fp16_master_weights_and_grads", Bool, "false", "precision.master = \"f16\""),
];

const BF16: &[Spec] = &[
    becomes("enabled", Bool, "false", "precision.preset = \"deepspeed\""),
    without("immediate_grad_update", Bool, "false", "Gradients add up where they are kept."),
    without("check_grad_overflow", Bool, "true", "A gradient that is not finite ends a run in bf16."),
    becomes("bf16_master_weights_and_grads", Bool, "false", "precision.master = \"bf16\""),
    becomes("bf16_optimizer_states", Bool, "false", "precision.optimizer = \"bf16\""),
];

const AUTOCAST: &[Spec] = &[
    becomes("enabled", Bool, "false", "precision.preset = \"f32\" with compute and reduce in its dtype"),
    becomes("dtype", DTYPES, "\"bfloat16\"", "precision.compute, precision.reduce"),
    without("lower_precision_safe_modules", List, "", "All products of a cell are computed in precision.compute."),
];

const AMP: &[Spec] = &[
    becomes("enabled", Bool, "false", "nothing; true has no equivalent"),
    without("opt_level", Text, "", "Apex has no likeness here."),
    without("loss_scale", Any, "", "Apex has no likeness here."),
    without("keep_batchnorm_fp32", Any, "", "Apex has no likeness here."),
];

const DATA_TYPES: &[Spec] = &[
    becomes("grad_accum_dtype", DTYPES, "", "precision.gradients"),
    without("param_dtype", DTYPES, "", "The model's weights are cast by fp16 and bf16 alone."),
    without("buffer_dtype", DTYPES, "", "Models have no buffers beside their weights."),
];

const ACTIVATIONS: &[Spec] = &[
    becomes(
        "partition_activations",
        Bool,
        "false",
        "memory.checkpointing = \"full\"; memory.partition_activations with tensor parallelism",
    ),
    becomes(
        "cpu_checkpointing",
        Bool,
        "false",
        "memory.offload_activations = \"host\", memory.checkpointing = \"full\"",
    ),
    without("contiguous_memory_optimization", Bool, "false", "An arena holds what is kept, without fragments."),
    without(
        "number_checkpoints",
        Whole(1),
        "",
        "It sizes contiguous buffers; memory.checkpointing = { every = k } sets how many inputs are kept.",
    ),
    without("synchronize_checkpoint_boundary", Bool, "false", "Nothing waits at a block's boundary."),
    ignored("profile", Bool, "false", LOGS),
];

const AIO: &[Spec] = &[
    without("block_size", Whole(1), "1048576", DISK),
    without("queue_depth", Whole(1), "8", DISK),
    without("thread_count", Whole(1), "1", DISK),
    without("intra_op_parallelism", Whole(1), "1", DISK),
    without("single_submit", Bool, "false", DISK),
    without("overlap_events", Bool, "true", DISK),
    without("use_gds", Bool, "false", DISK),
];

const TP: &str = "zbench splits heads and MLPs evenly by the model's own sizes.";

const TENSOR: &[Spec] = &[
    becomes("autotp_size", FIRST, "0", "parallel.tensor"),
    without("dtype", DTYPES, "\"fp16\"", "The types are those of [precision]."),
    without("tp_overlap_comm", Bool, "false", "Whether transfers overlap compute follows from the machine's profile."),
    without("tp", Table, "", TP),
    without("tensor_parallel", Table, "", TP),
    without("tp_grain_size", Whole(1), "1", TP),
    without("injection_policy_tuple", Any, "", TP),
    without("partition_config", Table, "", TP),
    without("preset_model", Text, "", TP),
    without("keep_module_on_host", Bool, "false", "It concerns the start alone."),
    without("replace_with_kernel_inject", Bool, "false", "zbench has its own kernels."),
];

const ROUTER: &str = "How a router works is the model's family here (docs/moe.md).";

const EXPERT: &[Spec] = &[
    becomes("enabled", Bool, "false", "parallel.expert, with autoep_size"),
    becomes("autoep_size", Whole(1), "1", "parallel.expert"),
    becomes("expert_tensor_parallel_size", Whole(1), "1", "parallel.expert_tensor"),
    ignored("validate_folding_routing", Bool, "false", "zbench always checks."),
    without("preset_model", Text, "", ROUTER),
    without("moe_layer_pattern", Text, "", ROUTER),
    without("expert_pattern", Text, "", ROUTER),
    without("router_pattern", Text, "", ROUTER),
    without("use_grouped_mm", Bool, "true", "Experts are always one grouped product."),
    without("disable_triton_grouped_mm", Bool, "false", "zbench has its own kernels."),
    without("route_norm", Bool, "", ROUTER),
    without("route_scale", Number(0.0), "1.0", ROUTER),
    without("score_apply", Text, "\"auto\"", ROUTER),
    without("combine_impl", Text, "\"auto\"", ROUTER),
    without("num_expert_groups", Whole(1), "", ROUTER),
    without("num_limited_groups", Whole(1), "", ROUTER),
    without("score_func", Text, "\"auto\"", ROUTER),
    without("top_k", Any, "\"auto\"", ROUTER),
    without("load_balance_coeff", Number(0.0), "", "A router's auxiliary loss is off."),
    without("routed_scaling_factor", Any, "\"auto\"", ROUTER),
    without("expert_w1", Text, "", ROUTER),
    without("expert_w2", Text, "", ROUTER),
    without("expert_w3", Any, "", ROUTER),
    without("num_experts_attr", Text, "", ROUTER),
    without("top_k_attr", Text, "", ROUTER),
    without("has_shared_experts", Bool, "", ROUTER),
    without("shared_experts_pattern", Text, "", ROUTER),
    without("shared_experts_gate_pattern", Text, "", ROUTER),
];

const COUNTED: &str = "Every record of zbench counts FLOPs by several conventions (docs/flops.md).";

const FLOPS: &[Spec] = &[
    ignored("enabled", Bool, "false", COUNTED),
    ignored("recompute_fwd_factor", Number(0.0), "0.0", COUNTED),
    ignored("profile_step", FIRST, "1", COUNTED),
    ignored("module_depth", SIGNED, "-1", COUNTED),
    ignored("top_modules", FIRST, "1", COUNTED),
    ignored("detailed", Bool, "true", COUNTED),
    ignored("output_file", Text, "", COUNTED),
];

const CALLS: &str = "Every record of zbench has calls, bytes and times of each collective.";

const COMMS: &[Spec] = &[
    ignored("enabled", Bool, "false", CALLS),
    ignored("verbose", Bool, "false", CALLS),
    ignored("prof_all", Bool, "true", CALLS),
    ignored("debug", Bool, "false", CALLS),
    ignored("prof_ops", List, "[]", CALLS),
];

const CHECKPOINT: &[Spec] = &[
    ignored("tag_validation", Text, "\"Warn\"", "zbench's checkpoints have one step for all ranks."),
    ignored("load_universal", Bool, "false", "zbench's checkpoints are read by any ranks and strategy."),
    without("use_node_local_storage", Bool, "false", "checkpoint.dir is one folder that all ranks reach."),
    without("parallel_write", Table, "", "Every rank writes its own part (checkpoint.layout = \"sharded\")."),
    without("writer", Any, "", "checkpoint.async writes while training goes on."),
    without("checkpoint_serialization", Any, "", "zbench's files are safetensors."),
];
