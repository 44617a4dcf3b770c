//! Every key of both formats: what it becomes, and that none passes without a word.

use super::{draft, options, row};
use crate::support::{root, run, stdout};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use zbench_suites::interop::keys::{self, Fate, Kind, Spec};
use zbench_suites::interop::{Draft, Verdict};

/// `a.b=1 c="x"`: nested JSON.
fn nested(pairs: &[(&str, Value)]) -> String {
    fn put(into: &mut Map<String, Value>, path: &str, value: Value) {
        match path.split_once('.') {
            None => drop(into.insert(path.into(), value)),
            Some((first, rest)) => {
                let inner = into.entry(first).or_insert_with(|| json!({}));
                put(inner.as_object_mut().expect("a table"), rest, value);
            }
        }
    }
    let mut all = Map::new();
    for (path, value) in pairs {
        put(&mut all, path, value.clone());
    }
    Value::Object(all).to_string()
}

fn pairs(text: &str) -> Vec<(&str, Value)> {
    text.split(' ')
        .filter(|term| !term.is_empty())
        .map(|term| {
            let (key, value) = term.split_once('=').expect("key=value");
            (key, serde_json::from_str(value).unwrap_or_else(|error| panic!("{term}: {error}")))
        })
        .collect()
}

/// Key and value; other keys of the file; verdict; the setting that comes of it.
type Case = (&'static str, &'static str, &'static str, Verdict, &'static str);

use Verdict::{Default as D, Ignored as I, NoEquivalent as N, Used as U};

const STAGE3: &str = "zero_optimization.stage=3";
const LINEAR: &str = "scheduler.params.warmup_type=\"linear\" scheduler.params.total_num_steps=50";
const FP16: &str = "fp16.enabled=true";
const FP16_OFFLOADED: &str =
    "fp16.enabled=true zero_optimization.stage=2 zero_optimization.offload_optimizer.device=\"cpu\"";
const BF16_STATES: &str = "zero_optimization.stage=2 bf16.enabled=true bf16.bf16_optimizer_states=true";
const DECAY: &str = "optimizer.type=\"AdamW\" optimizer.params.lr=0.01 scheduler.type=\"WarmupDecayLR\" scheduler.params.total_num_steps=50";
const COSINE: &str = "optimizer.type=\"AdamW\" optimizer.params.lr=0.01 scheduler.type=\"WarmupCosineLR\" scheduler.params.total_num_steps=50";

/// Every key of DeepSpeed that may become a setting.
const DEEPSPEED: &[Case] = &[
    ("train_batch_size", "24", "train_micro_batch_size_per_gpu=3 gradient_accumulation_steps=2", U, "parallel.ranks=4"),
    ("train_batch_size", "24", "train_micro_batch_size_per_gpu=3", U, "train.accumulation=8"),
    ("train_batch_size", "\"auto\"", "", D, ""),
    ("train_micro_batch_size_per_gpu", "3", "", U, "train.micro_batch=3"),
    ("gradient_accumulation_steps", "5", "", U, "train.accumulation=5"),
    ("zero_optimization.stage", "0", "", U, "parallel.strategy=\"ddp\""),
    ("zero_optimization.stage", "1", "", U, "parallel.strategy=\"zero1\""),
    ("zero_optimization.stage", "2", "", U, "parallel.strategy=\"zero2\""),
    ("zero_optimization.stage", "3", "", U, "parallel.strategy=\"zero3\""),
    ("zero_optimization.stage", "3", "zero_optimization.zero_hpz_partition_size=4", U, "parallel.strategy=\"zero++\""),
    ("zero_optimization.stage", "3", "zero_optimization.mics_shard_size=4", U, "parallel.strategy=\"hsdp\""),
    ("zero_optimization.zero_hpz_partition_size", "4", STAGE3, U, "parallel.shard=4"),
    ("zero_optimization.zero_hpz_partition_size", "4", "zero_optimization.stage=2", I, ""),
    ("zero_optimization.zero_hpz_partition_size", "1", STAGE3, D, ""),
    ("zero_optimization.zero_quantized_weights", "true", STAGE3, U, "parallel.gather_wire=\"int8\""),
    ("zero_optimization.zero_quantized_weights", "true", "zero_optimization.stage=1", I, ""),
    ("zero_optimization.zero_quantized_weights", "false", STAGE3, D, ""),
    ("zero_optimization.zero_quantized_gradients", "true", STAGE3, U, "parallel.reduce_wire=\"int4\""),
    (
        "zero_optimization.zero_quantized_gradients",
        "false",
        "zero_optimization.stage=3 zero_optimization.zero_hpz_partition_size=2",
        U,
        "parallel.reduce_wire=\"native\"",
    ),
    ("zero_optimization.mics_shard_size", "4", STAGE3, U, "parallel.shard=4"),
    ("zero_optimization.mics_shard_size", "-1", STAGE3, D, ""),
    ("zero_optimization.mics_shard_size", "4", "zero_optimization.stage=2", I, ""),
    (
        "zero_optimization.offload_optimizer.device",
        "\"cpu\"",
        "zero_optimization.stage=2",
        U,
        "memory.offload_optimizer=\"host\"",
    ),
    ("zero_optimization.offload_optimizer.device", "\"none\"", STAGE3, D, ""),
    (
        "zero_optimization.offload_optimizer.nvme_path",
        "\"/n\"",
        "zero_optimization.stage=3 zero_optimization.offload_optimizer.device=\"nvme\"",
        U,
        "memory.offload_path=\"/n\"",
    ),
    ("zero_optimization.offload_param.device", "\"cpu\"", STAGE3, U, "memory.offload_parameters=\"host\""),
    (
        "zero_optimization.offload_param.nvme_path",
        "\"/n\"",
        "zero_optimization.stage=3 zero_optimization.offload_param.device=\"nvme\"",
        U,
        "memory.offload_path=\"/n\"",
    ),
    (
        "zero_optimization.offload_param.nvme_path",
        "\"/n\"",
        "zero_optimization.stage=3 zero_optimization.offload_param.device=\"cpu\"",
        I,
        "",
    ),
    ("optimizer.type", "\"Adam\"", "", U, "train.optimizer=\"adamw\""),
    ("optimizer.type", "\"Lamb\"", "", N, "train.optimizer=\"adamw\""),
    ("optimizer.type", "\"SGD\"", "", U, "train.optimizer=\"sgd\""),
    ("optimizer.type", "\"SGD\"", "optimizer.params.momentum=0.9", U, "train.optimizer=\"momentum\""),
    ("optimizer.type", "\"Lion\"", "", U, "train.optimizer=\"momentum\""),
    ("optimizer.type", "\"Muon\"", "", U, "train.optimizer=\"muon\""),
    ("zero_optimization.stage", "\"2\"", "", U, "parallel.strategy=\"zero2\""),
    ("torch_autocast.enabled", "true", "bf16.enabled=true", D, ""),
    ("optimizer.params.lr", "0.002", "optimizer.type=\"AdamW\"", U, "train.lr=0.002"),
    (
        "optimizer.params.lr",
        "0.002",
        "optimizer.type=\"AdamW\" scheduler.type=\"WarmupLR\" scheduler.params.warmup_max_lr=0.1",
        I,
        "",
    ),
    ("optimizer.params.betas", "[0.8,0.9]", "optimizer.type=\"AdamW\"", U, "train.betas=[0.8, 0.9]"),
    ("optimizer.params.eps", "0.01", "optimizer.type=\"AdamW\"", U, "train.eps=0.01"),
    ("optimizer.params.weight_decay", "0.3", "optimizer.type=\"AdamW\"", U, "train.weight_decay=0.3"),
    ("optimizer.params.weight_decay", "\"auto\"", "optimizer.type=\"AdamW\"", D, ""),
    ("optimizer.params.adam_w_mode", "false", "optimizer.type=\"Adam\" optimizer.params.weight_decay=0.3", N, ""),
    ("optimizer.params.adam_w_mode", "false", "optimizer.type=\"Adam\" optimizer.params.weight_decay=0.0", D, ""),
    ("optimizer.params.adam_w_mode", "true", "optimizer.type=\"Adam\"", D, ""),
    ("optimizer.params.adam_w_mode", "false", "optimizer.type=\"AdamW\" optimizer.params.weight_decay=0.3", I, ""),
    ("optimizer.params.torch_adam", "true", "optimizer.type=\"AdamW\"", I, ""),
    ("optimizer.params.torch_adam", "true", "optimizer.type=\"Adam\" optimizer.params.adam_w_mode=false", I, ""),
    ("optimizer.params.torch_adam", "false", "optimizer.type=\"AdamW\"", D, ""),
    ("zero_optimization.overlap_comm", "true", STAGE3, D, ""),
    ("zero_optimization.overlap_comm", "false", STAGE3, N, ""),
    ("zero_optimization.overlap_comm", "true", "zero_optimization.stage=2", N, ""),
    ("zero_optimization.overlap_comm", "false", "zero_optimization.stage=2", D, ""),
    // A field of DeepSpeed's model goes by its own name, too.
    ("zero_optimization.max_live_parameters", "5", STAGE3, N, ""),
    ("zero_optimization.prefetch_bucket_size", "\"auto\"", STAGE3, N, ""),
    ("zero_optimization.offload_param.device", "\"cpu\"", "zero_optimization.stage=2", I, ""),
    ("sequence_parallel_size", "2", "", N, "parallel.context=2"),
    ("sequence_parallel_size", "1", "", D, ""),
    ("_comment", "\"of mine\"", "zero_optimization.stage=2", I, ""),
    ("scheduler.type", "\"WarmupLR\"", LINEAR, U, "train.lr_schedule=\"constant\""),
    ("scheduler.type", "\"WarmupLR\"", LINEAR, U, "train.lr_steps=\"deepspeed\""),
    ("scheduler.type", "\"WarmupLR\"", "scheduler.params.warmup_type=\"auto\"", U, "train.lr_schedule=\"constant\""),
    ("scheduler.type", "\"WarmupLR\"", "scheduler.params.warmup_type=\"log\"", N, "train.lr_schedule=\"constant\""),
    ("scheduler.type", "\"WarmupLR\"", "", N, "train.lr_schedule=\"constant\""),
    ("scheduler.type", "\"WarmupLR\"", "", N, "train.lr_steps=\"deepspeed\""),
    ("scheduler.type", "\"WarmupDecayLR\"", LINEAR, U, "train.lr_schedule=\"linear\""),
    ("scheduler.type", "\"WarmupCosineLR\"", LINEAR, U, "train.lr_schedule=\"cosine\""),
    ("scheduler.type", "\"OneCycle\"", "", N, "train.lr_schedule=\"constant\""),
    ("scheduler.params.warmup_min_lr", "0", DECAY, D, ""),
    ("scheduler.params.warmup_min_lr", "0.1", DECAY, N, ""),
    ("scheduler.params.warmup_min_ratio", "0.1", COSINE, N, ""),
    ("scheduler.params.warmup_max_lr", "0.02", DECAY, U, "train.lr=0.02"),
    ("scheduler.params.warmup_num_steps", "7", DECAY, U, "train.lr_warmup_steps=7"),
    ("scheduler.params.warmup_type", "\"linear\"", DECAY, U, ""),
    ("scheduler.params.warmup_type", "\"log\"", DECAY, N, ""),
    ("scheduler.params.total_num_steps", "80", "scheduler.type=\"WarmupDecayLR\"", U, "train.steps=78"),
    ("scheduler.params.total_num_steps", "80", "scheduler.type=\"WarmupLR\"", I, ""),
    ("scheduler.params.cos_min_ratio", "0.5", COSINE, U, "train.lr_min=0.005"),
    ("scheduler.params.cos_min_ratio", "0.5", DECAY, I, ""),
    ("fp16.enabled", "true", "", U, "precision.preset=\"f16-mixed\""),
    ("fp16.enabled", "true", "", U, "precision.gradients=\"f16\""),
    ("fp16.enabled", "false", "", D, ""),
    ("fp16.enabled", "\"auto\"", "", U, "precision.preset=\"f16-mixed\""),
    ("fp16.enabled", "\"auto\"", "bf16.enabled=\"auto\"", D, ""),
    ("bf16.enabled", "\"auto\"", "fp16.enabled=\"auto\"", U, "precision.preset=\"deepspeed\""),
    ("fp16.loss_scale", "128", FP16, U, "precision.loss_scale=128.0"),
    ("fp16.loss_scale", "128", "fp16.enabled=false", I, ""),
    ("fp16.initial_scale_power", "9", FP16, U, "precision.initial_scale_power=9"),
    // Of a file that leaves fp16 alone open it is assumed; bf16 where it leaves both.
    ("fp16.initial_scale_power", "9", "fp16.enabled=\"auto\"", U, "precision.initial_scale_power=9"),
    ("fp16.initial_scale_power", "9", "fp16.enabled=\"auto\" bf16.enabled=\"auto\"", I, ""),
    ("fp16.loss_scale_window", "9", FP16, U, "precision.loss_scale_window=9"),
    ("fp16.hysteresis", "9", FP16, U, "precision.hysteresis=9"),
    ("fp16.consecutive_hysteresis", "true", FP16, U, "precision.consecutive_hysteresis=true"),
    ("fp16.min_loss_scale", "4", FP16, U, "precision.min_loss_scale=4.0"),
    ("fp16.fp16_master_weights_and_grads", "true", FP16_OFFLOADED, U, "precision.master=\"f16\""),
    ("fp16.fp16_master_weights_and_grads", "true", "", I, ""),
    ("bf16.enabled", "true", "", U, "precision.preset=\"deepspeed\""),
    ("bf16.bf16_master_weights_and_grads", "true", BF16_STATES, U, "precision.master=\"bf16\""),
    (
        "bf16.bf16_optimizer_states",
        "true",
        "zero_optimization.stage=2 bf16.enabled=true bf16.bf16_master_weights_and_grads=true",
        U,
        "precision.optimizer=\"bf16\"",
    ),
    ("torch_autocast.enabled", "true", "", U, "precision.compute=\"bf16\""),
    ("torch_autocast.dtype", "\"float16\"", "torch_autocast.enabled=true", U, "precision.compute=\"f16\""),
    ("torch_autocast.dtype", "\"float16\"", "", I, ""),
    ("amp.enabled", "true", "", N, ""),
    ("amp.enabled", "false", "", D, ""),
    ("data_types.grad_accum_dtype", "\"fp32\"", "bf16.enabled=true", U, "precision.gradients=\"f32\""),
    ("communication_data_type", "\"fp32\"", "bf16.enabled=true", U, "precision.reduce=\"f32\""),
    ("communication_data_type", "\"bfp16\"", "", U, "precision.reduce=\"bf16\""),
    ("gradient_clipping", "0.7", "", U, "train.clip_norm=0.7"),
    ("seed", "7", "", U, "train.seed=7"),
    ("activation_checkpointing.partition_activations", "true", "", U, "memory.checkpointing=\"full\""),
    (
        "activation_checkpointing.partition_activations",
        "true",
        "tensor_parallel.autotp_size=2",
        U,
        "memory.partition_activations=true",
    ),
    ("activation_checkpointing.partition_activations", "false", "", D, ""),
    ("activation_checkpointing.cpu_checkpointing", "true", "", U, "memory.offload_activations=\"host\""),
    ("tensor_parallel.autotp_size", "2", "", U, "parallel.tensor=2"),
    ("tensor_parallel.autotp_size", "0", "", D, ""),
    ("expert_parallel.enabled", "true", "expert_parallel.autoep_size=2", U, ""),
    ("expert_parallel.enabled", "true", "", N, ""),
    ("expert_parallel.autoep_size", "2", "expert_parallel.enabled=true", U, "parallel.expert=2"),
    ("expert_parallel.autoep_size", "2", "", I, ""),
    ("expert_parallel.expert_tensor_parallel_size", "2", "expert_parallel.enabled=true", U, "parallel.expert_tensor=2"),
];

const FSDP: &str = "distributed_type=\"FSDP\" num_processes=8";
const FSDP2: &str = "distributed_type=\"FSDP\" num_processes=8 fsdp_config.fsdp_version=2";
const MEGATRON: &str = "distributed_type=\"MEGATRON_LM\" num_processes=8";
const STAGED: &str = "distributed_type=\"DEEPSPEED\" num_processes=8 deepspeed_config.zero_stage=3";

/// Every key of accelerate that may become a setting.
const ACCELERATE: &[Case] = &[
    ("compute_environment", "\"LOCAL_MACHINE\"", FSDP, D, ""),
    ("distributed_type", "\"FSDP\"", "num_processes=8", U, ""),
    ("distributed_type", "\"MULTI_GPU\"", "num_processes=8", U, "parallel.strategy=\"ddp\""),
    ("distributed_type", "\"NO\"", "", U, "parallel.strategy=\"ddp\""),
    ("mixed_precision", "\"no\"", FSDP, U, "precision.preset=\"f32\""),
    ("mixed_precision", "\"bf16\"", FSDP, U, "precision.preset=\"fsdp-mixed\""),
    ("mixed_precision", "\"fp16\"", FSDP, U, "precision.loss_scale_window=2000"),
    ("mixed_precision", "\"fp16\"", FSDP, U, "precision.compute=\"f16\""),
    ("mixed_precision", "\"fp8\"", FSDP, U, "precision.preset=\"fsdp-mixed\""),
    ("mixed_precision", "\"fp8\"", STAGED, U, "precision.products=\"fp8\""),
    ("mixed_precision", "\"bf16\"", "distributed_type=\"MULTI_GPU\" num_processes=2", U, "precision.compute=\"bf16\""),
    ("mixed_precision", "\"bf16\"", STAGED, U, "precision.preset=\"deepspeed\""),
    ("num_processes", "6", "distributed_type=\"FSDP\"", U, "parallel.ranks=6"),
    ("num_machines", "2", FSDP, U, "parallel.ranks_per_node=4"),
    ("num_machines", "1", FSDP, D, ""),
    ("fsdp_config.fsdp_version", "2", FSDP, U, ""),
    ("fsdp_config.fsdp_sharding_strategy", "\"FULL_SHARD\"", FSDP, U, "parallel.strategy=\"fsdp\""),
    ("fsdp_config.fsdp_sharding_strategy", "1", FSDP, U, "parallel.strategy=\"fsdp\""),
    ("fsdp_config.fsdp_sharding_strategy", "\"SHARD_GRAD_OP\"", FSDP, U, "parallel.strategy=\"fsdp-grad-op\""),
    ("fsdp_config.fsdp_sharding_strategy", "\"NO_SHARD\"", FSDP, U, "parallel.strategy=\"ddp\""),
    (
        "fsdp_config.fsdp_sharding_strategy",
        "\"HYBRID_SHARD\"",
        "distributed_type=\"FSDP\" num_processes=8 num_machines=2",
        U,
        "parallel.shard=4",
    ),
    ("fsdp_config.fsdp_sharding_strategy", "\"HYBRID_SHARD_ZERO2\"", FSDP, N, "parallel.strategy=\"hsdp\""),
    ("fsdp_config.fsdp_sharding_strategy", "\"FULL_SHARD\"", FSDP2, I, ""),
    ("fsdp_config.sharding_strategy", "\"FULL_SHARD\"", FSDP, U, "parallel.strategy=\"fsdp\""),
    ("fsdp_config.fsdp_reshard_after_forward", "true", FSDP2, U, "parallel.strategy=\"fsdp\""),
    ("fsdp_config.fsdp_reshard_after_forward", "false", FSDP2, U, "parallel.strategy=\"fsdp-grad-op\""),
    ("fsdp_config.fsdp_reshard_after_forward", "false", FSDP, I, ""),
    ("fsdp_config.fsdp_auto_wrap_policy", "\"TRANSFORMER_BASED_WRAP\"", FSDP, D, ""),
    ("fsdp_config.fsdp_auto_wrap_policy", "\"SIZE_BASED_WRAP\"", FSDP, N, ""),
    ("fsdp_config.fsdp_auto_wrap_policy", "\"NO_WRAP\"", FSDP, N, ""),
    ("fsdp_config.fsdp_transformer_layer_cls_to_wrap", "\"LlamaDecoderLayer\"", FSDP, D, ""),
    ("fsdp_config.fsdp_backward_prefetch", "\"BACKWARD_PRE\"", FSDP, U, "parallel.prefetch=1"),
    ("fsdp_config.fsdp_backward_prefetch", "\"NO_PREFETCH\"", FSDP, U, "parallel.prefetch=0"),
    ("fsdp_config.fsdp_backward_prefetch", "\"BACKWARD_POST\"", FSDP, N, ""),
    ("fsdp_config.fsdp_backward_prefetch", "\"BACKWARD_PRE\"", FSDP2, I, ""),
    (
        "fsdp_config.fsdp_forward_prefetch",
        "true",
        "distributed_type=\"FSDP\" num_processes=8 fsdp_config.fsdp_backward_prefetch=\"BACKWARD_PRE\"",
        U,
        "parallel.prefetch=1",
    ),
    ("fsdp_config.fsdp_forward_prefetch", "true", FSDP, N, ""),
    ("fsdp_config.fsdp_forward_prefetch", "false", FSDP, D, ""),
    ("fsdp_config.fsdp_offload_params", "true", FSDP, U, "memory.offload_parameters=\"host\""),
    ("fsdp_config.fsdp_offload_params", "true", FSDP, U, "memory.offload_optimizer=\"host\""),
    ("fsdp_config.fsdp_offload_params", "false", FSDP, D, ""),
    ("fsdp_config.fsdp_state_dict_type", "\"SHARDED_STATE_DICT\"", FSDP, I, ""),
    ("fsdp_config.fsdp_state_dict_type", "\"LOCAL_STATE_DICT\"", FSDP, N, ""),
    ("fsdp_config.fsdp_cpu_ram_efficient_loading", "true", FSDP, I, ""),
    ("fsdp_config.fsdp_activation_checkpointing", "true", FSDP, U, "memory.checkpointing=\"full\""),
    ("fsdp_config.fsdp_activation_checkpointing", "false", FSDP, D, ""),
    (
        "fsdp_config.fsdp_activation_checkpointing_offload",
        "true",
        "distributed_type=\"FSDP\" num_processes=8 fsdp_config.fsdp_activation_checkpointing=true",
        U,
        "memory.offload_activations=\"host\"",
    ),
    ("fsdp_config.fsdp_activation_checkpointing_offload", "true", FSDP, I, ""),
    ("megatron_lm_config.megatron_lm_tp_degree", "2", MEGATRON, U, "parallel.tensor=2"),
    ("megatron_lm_config.megatron_lm_pp_degree", "2", MEGATRON, U, "parallel.pipeline=2"),
    ("megatron_lm_config.megatron_lm_num_micro_batches", "4", MEGATRON, U, "train.accumulation=4"),
    ("megatron_lm_config.megatron_lm_gradient_clipping", "0.5", MEGATRON, U, "train.clip_norm=0.5"),
    (
        "megatron_lm_config.megatron_lm_sequence_parallelism",
        "true",
        "distributed_type=\"MEGATRON_LM\" num_processes=8 megatron_lm_config.megatron_lm_tp_degree=4",
        U,
        "parallel.sequence=4",
    ),
    ("megatron_lm_config.megatron_lm_sequence_parallelism", "true", MEGATRON, I, ""),
    ("megatron_lm_config.megatron_lm_recompute_activations", "true", MEGATRON, U, "memory.recompute=\"core\""),
    ("megatron_lm_config.megatron_lm_recompute_granularity", "\"full\"", MEGATRON, U, "memory.checkpointing=\"full\""),
    ("megatron_lm_config.megatron_lm_recompute_granularity", "\"selective\"", MEGATRON, U, "memory.recompute=\"core\""),
    ("megatron_lm_config.megatron_lm_use_distributed_optimizer", "true", MEGATRON, U, "parallel.strategy=\"zero1\""),
    ("megatron_lm_config.megatron_lm_use_custom_fsdp", "true", MEGATRON, U, "parallel.strategy=\"fsdp\""),
    ("megatron_lm_config.megatron_lm_optimizer_cpu_offload", "true", MEGATRON, U, "memory.offload_optimizer=\"host\""),
    ("megatron_lm_config.megatron_lm_context_parallel_size", "2", MEGATRON, U, "parallel.context=2"),
    ("megatron_lm_config.megatron_lm_expert_model_parallel_size", "2", MEGATRON, U, "parallel.expert=2"),
    ("megatron_lm_config.megatron_lm_expert_tensor_parallel_size", "2", MEGATRON, U, "parallel.expert_tensor=2"),
    ("megatron_lm_config.megatron_lm_tp_degree", "2", FSDP, I, ""),
    ("parallelism_config.parallelism_config_sp_size", "2", STAGED, N, "parallel.context=2"),
    (
        "parallelism_config.parallelism_config_sp_size",
        "2",
        "distributed_type=\"FSDP\" num_processes=8 fsdp_config.fsdp_version=2 parallelism_config.parallelism_config_dp_shard_size=8",
        N,
        "",
    ),
    (
        "deepspeed_config.zero_stage",
        "3",
        "distributed_type=\"DEEPSPEED\" num_processes=8",
        U,
        "parallel.strategy=\"zero3\"",
    ),
    ("deepspeed_config.zero_stage", "3", FSDP, I, ""),
    ("deepspeed_config.offload_optimizer_device", "\"cpu\"", STAGED, U, "memory.offload_optimizer=\"host\""),
    ("fsdp_config.fsdp_backward_prefetch_policy", "\"BACKWARD_PRE\"", FSDP, I, ""),
    (
        "deepspeed_config.offload_param_device",
        "\"cpu\"",
        "distributed_type=\"DEEPSPEED\" deepspeed_config.zero_stage=2",
        I,
        "",
    ),
    ("deepspeed_config.offload_param_device", "\"cpu\"", STAGED, U, "memory.offload_parameters=\"host\""),
    (
        "deepspeed_config.offload_optimizer_nvme_path",
        "\"/n\"",
        "distributed_type=\"DEEPSPEED\" num_processes=8 deepspeed_config.offload_optimizer_device=\"nvme\"",
        U,
        "memory.offload_path=\"/n\"",
    ),
    ("deepspeed_config.offload_param_nvme_path", "\"/n\"", STAGED, I, ""),
    ("deepspeed_config.gradient_accumulation_steps", "4", STAGED, U, "train.accumulation=4"),
    ("deepspeed_config.offload_param_nvme_path", "\"none\"", STAGED, D, ""),
    ("deepspeed_config.gradient_accumulation_steps", "\"auto\"", STAGED, D, ""),
    ("deepspeed_config.gradient_clipping", "0.5", STAGED, U, "train.clip_norm=0.5"),
    ("deepspeed_config.gradient_clipping", "0.0", STAGED, U, "train.clip_norm=1.0"),
    ("deepspeed_config.gradient_clipping", "\"none\"", STAGED, U, "train.clip_norm=1.0"),
    ("deepspeed_config.gradient_clipping", "\"auto\"", STAGED, D, ""),
    (
        "parallelism_config.parallelism_config_dp_replicate_size",
        "2",
        "distributed_type=\"FSDP\" num_processes=8 fsdp_config.fsdp_version=2 parallelism_config.parallelism_config_dp_shard_size=4",
        U,
        "parallel.shard=4",
    ),
    (
        "parallelism_config.parallelism_config_dp_shard_size",
        "4",
        "distributed_type=\"FSDP\" num_processes=8 fsdp_config.fsdp_version=2 parallelism_config.parallelism_config_dp_replicate_size=2",
        U,
        "parallel.shard=4",
    ),
    ("parallelism_config.parallelism_config_dp_shard_size", "8", FSDP2, D, ""),
    (
        "parallelism_config.parallelism_config_tp_size",
        "2",
        "distributed_type=\"FSDP\" num_processes=8 fsdp_config.fsdp_version=2 parallelism_config.parallelism_config_dp_shard_size=4",
        U,
        "parallel.tensor=2",
    ),
    (
        "parallelism_config.parallelism_config_cp_size",
        "2",
        "distributed_type=\"FSDP\" num_processes=8 fsdp_config.fsdp_version=2 parallelism_config.parallelism_config_dp_shard_size=4",
        U,
        "parallel.context=2",
    ),
];

/// engine.py, _configure_basic_optimizer: which class it is says what is so where the file is silent.
#[test]
fn a_silent_file_decays_as_its_optimizer_does() {
    for (params, kind, decay) in [
        ("{}", "AdamW", 0.0),
        ("{\"torch_adam\": true}", "AdamW", 0.01),
        ("{\"torch_adam\": true}", "Adam", 0.01),
        ("{\"torch_adam\": true, \"adam_w_mode\": false}", "Adam", 0.0),
        ("{\"torch_adam\": true, \"adam_w_mode\": false}", "AdamW", 0.01),
    ] {
        let file = format!("{{\"optimizer\": {{\"type\": \"{kind}\", \"params\": {params}}}}}");
        let draft = draft(&file, &options(&[]));
        assert_eq!(draft.setting("train.weight_decay").and_then(toml::Value::as_float), Some(decay), "{file}");
    }
}

fn check(cases: &[Case]) {
    for (key, value, others, verdict, setting) in cases {
        let mut all = pairs(others);
        all.push((key, serde_json::from_str(value).unwrap()));
        let draft = draft(&nested(&all), &options(&[]));
        let full = key.replace("fsdp_config.sharding", "fsdp_config.fsdp_sharding");
        let row = row(&draft, &full);
        assert_eq!(row.verdict, *verdict, "{key} = {value} beside {others:?}: {}", row.reason);
        assert!(row.reason.ends_with('.') && row.reason.len() > 8, "{key}: no sentence: {:?}", row.reason);
        if !setting.is_empty() {
            let (ours, wanted) = setting.split_once('=').unwrap();
            let made = draft.made.iter().find(|made| made.key == ours).unwrap_or_else(|| panic!("{key}: no {ours}"));
            assert_eq!(made.value.to_string(), wanted, "{key} = {value}");
            let names: Vec<&str> = row.becomes.iter().map(|(key, _)| key.as_str()).collect();
            assert!(names.contains(&ours) || *key == "train_batch_size", "{key}: the row has {names:?}");
        }
    }
}

#[test]
fn every_mapped_key_becomes_what_the_table_says() {
    check(DEEPSPEED);
    check(ACCELERATE);
}

#[test]
fn the_flag_for_nodes_is_the_shard_group_of_hybrid_sharding() {
    let text =
        nested(&pairs("distributed_type=\"FSDP\" num_processes=8 fsdp_config.fsdp_sharding_strategy=\"HYBRID_SHARD\""));
    let by_nodes = zbench_suites::interop::Options { ranks_per_node: Some(2), ..options(&[]) };
    for (options, shard) in [(by_nodes, 2), (options(&[]), 8)] {
        assert_eq!(draft(&text, &options).setting_count("parallel.shard"), Some(shard));
    }
}

/// What is written in deepspeed_config and what DeepSpeed makes of it.
#[test]
fn deepspeed_clips_at_one_where_accelerate_names_no_norm() {
    for (clipping, norm) in [("", 1.0), ("\"auto\"", 1.0), ("\"none\"", 1.0), ("0.0", 1.0), ("0.25", 0.25)] {
        let mut all = pairs(STAGED);
        if !clipping.is_empty() {
            all.push(("deepspeed_config.gradient_clipping", serde_json::from_str(clipping).unwrap()));
        }
        let made = draft(&nested(&all), &options(&[]));
        assert_eq!(made.setting("train.clip_norm").and_then(|value| value.as_float()), Some(norm), "{clipping:?}");
    }
}

#[test]
fn of_two_folders_the_optimizers_stands_and_the_other_is_told() {
    let path = |name: &str| format!("deepspeed_config.offload_{name}");
    let of = |weights: &str| {
        let keys = ["optimizer_device", "optimizer_nvme_path", "param_device", "param_nvme_path"].map(path);
        let mut all = pairs(STAGED);
        all.extend(keys.iter().map(String::as_str).zip(["nvme", "/a", "nvme", weights].map(Value::from)));
        draft(&nested(&all), &options(&[]))
    };
    for (weights, verdict) in [("/a", U), ("/b", N)] {
        let made = of(weights);
        assert_eq!(made.setting("memory.offload_path").and_then(|path| path.as_str()), Some("/a"));
        assert_eq!(row(&made, &path("optimizer_nvme_path")).verdict, U);
        assert_eq!(row(&made, &path("param_nvme_path")).verdict, verdict, "{weights}");
    }
}

/// The sizes of a mesh, ranks, and the strategy and shard group of it, where ParallelismConfig of accelerate 1.15.0 takes them.
#[test]
fn a_mesh_makes_up_the_ranks() {
    let cases = [
        (16, "dp_replicate=2 dp_shard=8", "hsdp", Some(8)),
        (16, "dp_replicate=4 dp_shard=4", "hsdp", Some(4)),
        // Tensor and context ranks are in no shard group.
        (16, "dp_replicate=2 dp_shard=2 tp=2 cp=2", "hsdp", Some(2)),
        (16, "dp_replicate=2 dp_shard=4 tp=2", "hsdp", Some(4)),
        (16, "dp_shard=4 cp=4", "fsdp", None),
        (16, "dp_shard=16", "fsdp", None),
        (16, "", "fsdp", None),
        (16, "cp=16", "fsdp", None),
    ];
    for (ranks, sizes, strategy, shard) in cases {
        let made = draft(&mesh(ranks, sizes), &options(&[]));
        assert_eq!(made.setting("parallel.strategy").and_then(|value| value.as_str()), Some(strategy), "{sizes}");
        assert_eq!(made.setting_count("parallel.shard"), shard, "{sizes}");
        // A setting names a key that the file has.
        for setting in made.made.iter().filter(|setting| !setting.from.is_empty()) {
            assert!(made.rows.iter().any(|row| row.key == setting.from), "{sizes}: {setting:?}");
        }
    }
}

fn mesh(ranks: u64, sizes: &str) -> String {
    let at = |name: &str| format!("parallelism_config.parallelism_config_{name}_size");
    let sizes: Vec<(String, Value)> = pairs(sizes).into_iter().map(|(name, size)| (at(name), size)).collect();
    let mut all = pairs("distributed_type=\"FSDP\" fsdp_config.fsdp_version=2");
    all.push(("num_processes", ranks.into()));
    all.extend(sizes.iter().map(|(name, size)| (name.as_str(), size.clone())));
    nested(&all)
}

/// accelerate 1.15.0 refuses FSDP without ranks to split weights over, and takes the same ranks under MULTI_GPU.
#[test]
fn ranks_that_share_matrices_alone_are_exported_without_fsdp() {
    for (sizes, kind, tensor) in [
        ("ranks = 2\ntensor = 2", "MULTI_GPU", Some(2)),
        ("ranks = 4\ntensor = 2", "FSDP", Some(2)),
        ("ranks = 1", "FSDP", None),
    ] {
        let text = format!("model.preset = \"llama-tiny\"\n[parallel]\nstrategy = \"fsdp\"\n{sizes}\n");
        let document = zbench_config::Document::parse(std::path::Path::new("file.toml"), &text, &[]).unwrap();
        let context = zbench_config::Context::new("".into(), 1);
        let cell = zbench_config::grid::plain(&zbench_config::resolve(&document.base, &context).unwrap().cell);
        let written =
            zbench_suites::interop::export::export(&cell, "here", zbench_suites::interop::export::Target::Accelerate)
                .unwrap()
                .text;
        assert!(written.contains(&format!("distributed_type: {kind}\n")), "{written}");
        assert_eq!(draft(&written, &options(&[])).setting_count("parallel.tensor"), tensor, "{written}");
    }
}

#[test]
fn a_mesh_that_does_not_make_up_the_ranks_is_refused() {
    let cases = [
        (16, "dp_replicate=2 dp_shard=4", "dp_shard_size", "are 8 ranks, and num_processes is 16"),
        (16, "dp_replicate=1 dp_shard=4", "dp_shard_size", "are 4 ranks"),
        (16, "dp_shard=1 tp=2", "dp_shard_size", "are 2 ranks"),
        // An absent size is 1.
        (16, "dp_replicate=2", "dp_replicate_size", "are 2 ranks, and num_processes is 16; write dp_shard_size 8"),
        (16, "dp_replicate=3", "dp_replicate_size", "are 3 ranks"),
        (16, "cp=5", "cp_size", "are 5 ranks"),
        // FSDP wants ranks to split weights over, and replicas shard groups.
        (16, "tp=16", "tp_size", "leave FSDP no ranks"),
        (16, "dp_shard=1", "dp_shard_size", "leave FSDP no ranks"),
        (16, "dp_replicate=16", "dp_replicate_size", "leave FSDP no ranks"),
        (16, "dp_replicate=4 cp=4", "dp_replicate_size", "accelerate refuses"),
        (16, "dp_replicate=9000000000000000000 dp_shard=9000000000000000000", "dp_shard_size", "num_processes is 16"),
    ];
    for (ranks, sizes, key, message) in cases {
        let text = mesh(ranks, sizes);
        let error = zbench_suites::interop::parse("file", text.as_bytes(), &options(&[])).unwrap_err().to_string();
        assert!(error.contains(&format!("parallelism_config_{key}")) && error.contains(message), "{sizes}: {error}");
    }
    let first = mesh(16, "dp_replicate=2").replace("\"fsdp_version\":2", "\"fsdp_version\":1");
    let error = zbench_suites::interop::parse("file", first.as_bytes(), &options(&[])).unwrap_err().to_string();
    assert!(error.contains("dp_replicate_size") && error.contains("fsdp_version: 2"), "{error}");
}

/// A value that a key may hold and that is not its default.
fn other_than_default(spec: &Spec) -> Value {
    let default: Value = serde_json::from_str(spec.default).unwrap_or(Value::Null);
    match spec.kind {
        Kind::Bool => json!(default != json!(true)),
        Kind::Whole(least) => json!(default.as_i64().unwrap_or(0).max(least).saturating_sub(2).max(least.max(3))),
        Kind::Number(least) | Kind::NumberOrNone(least) => json!(least.max(0.0) + 0.25),
        Kind::Pair => json!([0.25, 0.5]),
        Kind::Text => json!("some words"),
        Kind::Word(words) => json!(words.iter().find(|word| json!(word) != default)),
        Kind::List => json!(["one"]),
        Kind::Table => json!({ "enabled": true }),
        Kind::Any => json!("some words"),
    }
}

/// Of keys that no code maps: their own default is one, anything else has the verdict of the table.
#[test]
fn every_other_key_has_its_verdict_and_reason() {
    for (specs, others) in [(&keys::DEEPSPEED, ""), (&keys::ACCELERATE, FSDP)] {
        let mut count = 0;
        for spec in specs.iter() {
            let path = spec.key;
            let wanted = match spec.fate {
                Fate::Ignored(_) => Verdict::Ignored,
                Fate::Without(_) => Verdict::NoEquivalent,
                _ => continue,
            };
            // What needs a partner to be read has one.
            let partner = match path.split('.').next() {
                Some("optimizer") => "optimizer.type=\"AdamW\"",
                Some("scheduler") => "scheduler.type=\"WarmupLR\"",
                _ => others,
            };
            let others = if path.starts_with("deepspeed_config") { STAGED } else { partner };
            let of = |value: Value| -> Draft {
                let mut all = pairs(others);
                all.push((path, value));
                draft(&nested(&all), &options(&[]))
            };
            let draft = of(other_than_default(spec));
            let found = row(&draft, path);
            assert_eq!(found.verdict, wanted, "{path} = {}", found.value);
            assert!(found.reason.ends_with('.'), "{path}: {}", found.reason);
            if let Ok(default) = serde_json::from_str::<Value>(spec.default) {
                let draft = of(default);
                assert_eq!(row(&draft, path).verdict, Verdict::Default, "{path} at its default");
            }
            count += 1;
        }
        assert!(count > 20, "{count} keys");
    }
}

/// What DeepSpeed 0.19.8 (DeepSpeedConfig) and accelerate 1.15.0 (load_config_from_file) read without a word is no error.
#[test]
fn what_a_program_does_not_read_is_ignored_by_name() {
    const LOCAL: &str = "distributed_type: MULTI_GPU\nnum_processes: 2\n";
    for (text, key, reason) in [
        ("{\"seed\": 1, \"comms_config\": {\"verbose\": false}}".to_string(), "comms_config", "at the top."),
        ("{\"seed\": 1, \"stage\": 2}".into(), "stage", "what it does read is zero_optimization.stage."),
        (
            "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  some_other_key: 1\n".into(),
            "deepspeed_config.some_other_key",
            "in deepspeed_config.",
        ),
        (format!("{LOCAL}tpu_name: some\n"), "tpu_name", "for TPUs alone"),
        (
            "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_reshard_after_forward: SHARD_GRAD_OP\n"
                .into(),
            "fsdp_config.fsdp_reshard_after_forward",
            "reads fsdp_sharding_strategy alone",
        ),
    ] {
        let draft = draft(&text, &options(&[]));
        let found = row(&draft, key);
        assert_eq!(found.verdict, Verdict::Ignored, "{text}: {}", found.reason);
        assert!(found.reason.contains(reason), "{}", found.reason);
        // What accelerate launch trains where the word stands under the key of version 2.
        if key.ends_with("after_forward") {
            assert!(draft.made.iter().all(|made| made.value.as_str() != Some("fsdp-grad-op")));
            assert!(draft.notes.iter().any(|note| note.contains("accelerate launch trains FULL_SHARD")));
        }
    }
    // What names another program in a remark or below the top is no file of that program.
    let remark = draft(&format!("{LOCAL}# pipe_parallel_size: 2\n"), &options(&[]));
    assert_eq!(remark.setting_count("parallel.ranks"), Some(2));
    let below = draft("{\"seed\": 1, \"elasticity\": {\"model_parallel_size\": 1}}", &options(&[]));
    assert_eq!(row(&below, "seed").verdict, Verdict::Used);
    let megatron = draft("distributed_type: MEGATRON_LM\nnum_processes: 2\n", &options(&[]));
    assert!(
        megatron.setting("train.clip_norm").is_some_and(|norm| norm.as_float() == Some(1.0)),
        "accelerate's default"
    );
    let twice = draft(&format!("{LOCAL}debug: false\nnum_processes: 4\n"), &options(&[]));
    assert_eq!(twice.setting_count("parallel.ranks"), Some(4));
    assert!(twice.notes.iter().any(|note| note == "num_processes stands in lines 2 and 4 and counts as in the last"));
}

/// The keys that DeepSpeed's runtime/zero/config.py and its configuration page have, and those of accelerate's FSDP files.
const OF_DEEPSPEED: &str = "stage contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce allgather_partitions \
    allgather_bucket_size overlap_comm load_from_fp32_weights elastic_checkpoint sub_group_size round_robin_gradients ignore_unused_parameters \
    legacy_stage1 stage3_max_live_parameters stage3_max_reuse_distance stage3_prefetch_bucket_size stage3_param_persistence_threshold \
    stage3_model_persistence_threshold stage3_gather_16bit_weights_on_model_save stage3_module_granularity_threshold \
    stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential memory_efficient_linear pipeline_loading_checkpoint override_module_apply \
    log_trace_cache_warnings enable_sanity_checks offload_param.device offload_param.nvme_path offload_param.buffer_count offload_param.buffer_size \
    offload_param.max_in_cpu offload_param.pin_memory offload_optimizer.device offload_optimizer.nvme_path offload_optimizer.buffer_count \
    offload_optimizer.pin_memory offload_optimizer.pipeline_read offload_optimizer.pipeline_write offload_optimizer.fast_init offload_optimizer.ratio \
    offload_optimizer.super_offload offload_optimizer.cpuadam_cores_perc zenflow cpu_offload cpu_offload_param cpu_offload_use_pin_memory \
    zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients zeropp_loco_param.err_beta \
    zeropp_loco_param.reset_T mics_shard_size mics_hierarchical_params_gather leaf_module save_muon_momentum_buffer_in_memory";
const OF_DEEPSPEED_TOP: &str = "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps optimizer.type optimizer.params.lr \
    scheduler.type scheduler.params.warmup_num_steps fp16.enabled fp16.auto_cast fp16.loss_scale fp16.initial_scale_power fp16.loss_scale_window \
    fp16.hysteresis fp16.consecutive_hysteresis fp16.min_loss_scale fp16.fp16_master_weights_and_grads bf16.enabled \
    bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states torch_autocast.enabled amp.enabled gradient_clipping communication_data_type \
    prescale_gradients gradient_predivide_factor sparse_gradients data_types.grad_accum_dtype activation_checkpointing.partition_activations \
    activation_checkpointing.cpu_checkpointing activation_checkpointing.contiguous_memory_optimization activation_checkpointing.number_checkpoints \
    activation_checkpointing.synchronize_checkpoint_boundary activation_checkpointing.profile aio.block_size aio.queue_depth aio.thread_count \
    aio.single_submit aio.overlap_events tensor_parallel.autotp_size expert_parallel.autoep_size flops_profiler.enabled flops_profiler.profile_step \
    flops_profiler.module_depth flops_profiler.top_modules flops_profiler.detailed flops_profiler.output_file comms_logger.enabled comms_logger.verbose \
    comms_logger.prof_all comms_logger.debug comms_logger.prof_ops checkpoint.tag_validation checkpoint.load_universal \
    checkpoint.use_node_local_storage checkpoint.parallel_write wall_clock_breakdown memory_breakdown steps_per_print dump_state autotuning compile \
    elasticity tensorboard wandb csv_monitor comet zero_allow_untested_optimizer zero_force_ds_cpu_optimizer seed";
const OF_ACCELERATE: &str = "distributed_type mixed_precision num_processes num_machines machine_rank main_process_ip main_process_port rdzv_backend \
    fsdp_config.fsdp_version fsdp_config.fsdp_sharding_strategy fsdp_config.fsdp_reshard_after_forward fsdp_config.fsdp_auto_wrap_policy \
    fsdp_config.fsdp_transformer_layer_cls_to_wrap fsdp_config.fsdp_min_num_params fsdp_config.fsdp_backward_prefetch fsdp_config.fsdp_forward_prefetch \
    fsdp_config.fsdp_offload_params fsdp_config.fsdp_state_dict_type fsdp_config.fsdp_sync_module_states fsdp_config.fsdp_use_orig_params \
    fsdp_config.fsdp_cpu_ram_efficient_loading fsdp_config.fsdp_activation_checkpointing fsdp_config.fsdp_ignored_modules";

#[test]
fn the_tables_have_every_key_of_the_conventions_and_the_cases_every_mapped_one() {
    let names = |specs: &'static [Spec]| -> BTreeSet<&str> { specs.iter().map(|spec| spec.key).collect() };
    let (theirs, of_accelerate) = (names(&keys::DEEPSPEED), names(&keys::ACCELERATE));
    for key in OF_DEEPSPEED.split_whitespace() {
        assert!(theirs.contains(&*format!("zero_optimization.{key}")), "{key}");
    }
    OF_DEEPSPEED_TOP.split_whitespace().for_each(|key| assert!(theirs.contains(key), "{key}"));
    OF_ACCELERATE.split_whitespace().for_each(|key| assert!(of_accelerate.contains(key), "{key}"));
    for (specs, cases) in [(&keys::DEEPSPEED, DEEPSPEED), (&keys::ACCELERATE, ACCELERATE)] {
        for Spec { key: path, fate, .. } in specs.iter() {
            let is_mapped = *fate == Fate::Becomes && *path != "deepspeed_config.deepspeed_config_file";
            assert!(!is_mapped || cases.iter().any(|(key, ..)| key == path), "no case for {path}");
        }
    }
}

#[test]
fn deprecated_keys_name_what_replaced_them() {
    for Spec { key: path, fate, .. } in keys::DEEPSPEED.iter().chain(keys::ACCELERATE.iter()) {
        let Fate::Gone(instead) = *fate else { continue };
        let mut all = if *path == "fp16" { pairs(FSDP) } else { Vec::new() };
        all.push((path, json!(true)));
        let error =
            zbench_suites::interop::parse("file", nested(&all).as_bytes(), &options(&[])).unwrap_err().to_string();
        assert!(error.contains(path) && error.contains("deprecated") && error.contains(instead), "{error}");
    }
}

#[test]
fn the_page_of_keys_is_true() {
    let folder = tempfile::tempdir().unwrap();
    let page = stdout(&run(folder.path(), &["import", "--keys"]));
    let written = super::text_of(&root().join("docs/import-keys.md"));
    assert!(page == written, "import --keys prints docs/import-keys.md");
}

/// Where the training script chooses the type an option does, else bf16, with a caution; the length of sequences is told, too.
#[test]
fn what_auto_leaves_open_is_assumed_and_told() {
    let both =
        r#"{"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto"}"#;
    for (text, set, preset, caution) in [
        (both, &[][..], Some("deepspeed"), true),
        (both, &["precision.preset=f32"], Some("f32"), false),
        (both, &["precision.products=fp8"], Some("deepspeed"), true),
        (r#"{"fp16": {"enabled": "auto"}, "seed": 1}"#, &[], Some("f16-mixed"), true),
        (r#"{"bf16": {"enabled": false}, "seed": 1}"#, &[], None, false),
    ] {
        let made = draft(text, &options(set));
        assert_eq!(made.setting("precision.preset").and_then(|preset| preset.as_str()), preset, "{text} {set:?}");
        assert_eq!(made.notes.iter().any(|note| note.starts_with("CAUTION")), caution, "{:?}", made.notes);
        assert!(made.notes.iter().any(|note| note.contains("512 tokens")), "{:?}", made.notes);
    }
    let flagged = draft(both, &options(&["precision.preset=f32"]));
    assert!(row(&flagged, "bf16.enabled").reason.contains("--set precision.preset"), "{:?}", flagged.rows);
    let stated = draft(both, &options(&["train.seq_len=4096"]));
    assert!(!stated.notes.iter().any(|note| note.contains("512 tokens")), "{:?}", stated.notes);
}

/// The rank of adapters that quantised weights imply is PEFT's default, unless a flag states another.
#[test]
fn a_note_has_the_rank_that_a_flag_states() {
    let file =
        r#"{"model_type": "llama", "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}}"#;
    for (set, rank) in [(&[][..], 8), (&["lora.rank=32"], 32)] {
        let made = draft(file, &options(set));
        let told: Vec<&String> = made.notes.iter().filter(|note| note.contains("adapters of lora.rank")).collect();
        assert!(matches!(&told[..], [note] if note.contains(&format!("lora.rank = {rank}"))), "{:?}", made.notes);
    }
}

/// What DeepSpeed 0.19.8 refuses by name, and what its releases before it read, is imported with a note, and told with other errors.
#[test]
fn keys_that_deepspeed_removed_are_told() {
    for key in ["amp", "elasticity", "nebula", "sparse_attention", "curriculum_learning", "compression_training"] {
        let made = draft(&format!(r#"{{"seed": 1, "{key}": {{"enabled": false}}}}"#), &options(&[]));
        assert!(made.notes[0].contains(&format!("DeepSpeed 0.19.8 refuses a file with {key}")), "{:?}", made.notes);
    }
    let scale = draft(r#"{"bf16": {"enabled": true, "loss_scale": 0}}"#, &options(&[]));
    assert!(row(&scale, "bf16.loss_scale").reason.contains("0.19.8 refuses it here"));
    let inference = r#"{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}, "train_batch_size": 1}"#;
    let trained = inference.replace("\"train_batch", "\"optimizer\": {\"type\": \"AdamW\"}, \"train_batch");
    for (text, told) in [(inference, true), (&trained, false)] {
        assert_eq!(draft(text, &options(&[])).notes.iter().any(|note| note.contains("inference")), told, "{text}");
    }
}
