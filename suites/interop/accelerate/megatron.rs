//! Megatron-LM through accelerate: its degrees and switches, as accelerate 1.15.0 hands them on (utils/launch.py).

use super::word;
use crate::interop::draft::{Draft, whole};
use toml::Value as Toml;

/// The settings of a file whose distributed_type is MEGATRON_LM.
pub fn megatron(draft: &mut Draft, ranks: u64) {
    let at = |name: &str| format!("megatron_lm_config.megatron_lm_{name}");
    draft.used("distributed_type", &[], "How ranks share the work is in megatron_lm_config.");
    draft.derived("hardware.software", word("megatron-core"), "distributed_type is MEGATRON_LM");
    let mut product = 1u64;
    for (name, key, what) in [
        ("tp_degree", "parallel.tensor", "Ranks that share each matrix."),
        ("pp_degree", "parallel.pipeline", "Stages of the pipeline."),
        ("context_parallel_size", "parallel.context", "Ranks that share each sequence."),
        ("expert_model_parallel_size", "parallel.expert", "Ranks that share the experts."),
        ("expert_tensor_parallel_size", "parallel.expert_tensor", "Ranks that share each expert's matrices."),
    ] {
        match draft.count(&at(name)) {
            Some(degree) if degree > 1 => {
                draft.used(&at(name), &[(key, whole(degree))], what);
                if !name.starts_with("expert") {
                    product = product.saturating_mul(degree);
                }
            }
            _ => draft.default(&at(name), "1 splits nothing."),
        }
    }
    if !ranks.is_multiple_of(product) {
        let message =
            format!("and the other degrees make {product} ranks, which do not divide num_processes = {ranks}");
        draft.refuse(&at("tp_degree"), format!("{message}; change one of them, or --ranks N"));
    }
    match (draft.flag(&at("use_custom_fsdp")), draft.flag(&at("use_distributed_optimizer"))) {
        (Some(true), _) => {
            let reason = "Megatron-FSDP splits weights, gradients and the optimizer.";
            draft.used(&at("use_custom_fsdp"), &[("parallel.strategy", word("fsdp"))], reason);
        }
        (_, Some(true)) => {
            let reason = "The distributed optimizer splits master weights and moments.";
            draft.used(&at("use_distributed_optimizer"), &[("parallel.strategy", word("zero1"))], reason);
        }
        _ => draft.derived("parallel.strategy", word("ddp"), "no distributed optimizer is asked for"),
    }
    draft.default(&at("use_custom_fsdp"), "It is off.");
    draft.default(&at("use_distributed_optimizer"), "It is off, or Megatron-FSDP splits more.");
    let tensor = draft.count(&at("tp_degree")).unwrap_or(1).max(1);
    match draft.flag(&at("sequence_parallelism")) {
        Some(true) if tensor > 1 => {
            let settings = [("parallel.sequence", whole(tensor))];
            draft.used(&at("sequence_parallelism"), &settings, "Tensor ranks share the tokens between matrices, too.");
        }
        Some(true) => draft.ignored(&at("sequence_parallelism"), "One tensor rank shares tokens with nobody."),
        _ => draft.default(&at("sequence_parallelism"), "It is off."),
    }
    if let Some(count) = draft.count(&at("num_micro_batches")) {
        draft.used(&at("num_micro_batches"), &[("train.accumulation", whole(count))], "Micro-batches of a step.");
    }
    recompute(draft);
    match draft.flag(&at("optimizer_cpu_offload")) {
        Some(true) => {
            let settings = [("memory.offload_optimizer", word("host"))];
            draft.used(&at("optimizer_cpu_offload"), &settings, "Optimizer state lives in the host's memory.");
        }
        _ => draft.default(&at("optimizer_cpu_offload"), "It is off."),
    }
    match draft.number(&at("gradient_clipping")) {
        Some(norm) => {
            let settings = [("train.clip_norm", Toml::Float(norm))];
            draft.used(&at("gradient_clipping"), &settings, "The largest global norm.");
        }
        None => {
            let comment = "megatron_lm_gradient_clipping is absent, and accelerate clips at 1.0";
            draft.derived("train.clip_norm", Toml::Float(1.0), comment);
        }
    }
}

/// Megatron's selective recomputation is of attention's core.
fn recompute(draft: &mut Draft) {
    let at = |name: &str| format!("megatron_lm_config.megatron_lm_{name}");
    let (flag, granularity) = (at("recompute_activations"), at("recompute_granularity"));
    let core = [("memory.recompute", word("core"))];
    let reason = "Megatron recomputes attention's core: scores, their softmax and what they weigh.";
    match draft.word(&granularity) {
        Some("full") => {
            let reason = "Every block is computed again for backward.";
            draft.used(&granularity, &[("memory.checkpointing", word("full"))], reason);
            draft.default(&flag, "recompute_granularity says it.");
        }
        Some(_) => {
            draft.used(&granularity, &core, reason);
            draft.default(&flag, "recompute_granularity says it.");
        }
        None if draft.flag(&flag) == Some(true) => draft.used(&flag, &core, reason),
        None => draft.default(&flag, "Nothing is computed again."),
    }
}
