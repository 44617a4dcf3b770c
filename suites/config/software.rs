//! Which strategies a training framework has.

use zbench_engine::config::Strategy;
use zbench_estimate::job::Stack;

/// Whether a software has a strategy under any name. PyTorch: DDP and `replicate` are `ddp`, ZeroRedundancyOptimizer is `zero1`,
/// FULL_SHARD is `fsdp`, SHARD_GRAD_OP (weights stay gathered until backward is over) is `fsdp-grad-op`, HYBRID_SHARD is `hsdp`.
/// DeepSpeed: stages 0 to 3, MiCS and hpZ. Megatron-Core: the distributed optimizer and Megatron-FSDP, which splits the
/// optimizer, gradients too, or weights too.
fn has(stack: Stack, strategy: Strategy) -> bool {
    use Strategy::{Ddp, Fsdp, FsdpGradOp, Hsdp, Zero1, Zero3};
    match stack {
        Stack::Zbench => true,
        Stack::MegatronLm | Stack::Torch | Stack::TorchCompiled => matches!(strategy, Ddp | Zero1),
        Stack::MegatronCore | Stack::MegatronDeepspeed | Stack::Deepspeed => strategy != FsdpGradOp,
        Stack::Fsdp1 | Stack::Fsdp1Compiled | Stack::Fsdp2 | Stack::Fsdp2Compiled => {
            matches!(strategy, Ddp | Zero3 | Fsdp | FsdpGradOp | Hsdp)
        }
    }
}

/// Why the software that a cell names cannot be priced under ZeRO++, which is DeepSpeed's.
pub fn no_zero_plus_plus(software: &str) -> Option<String> {
    let lacks = Stack::named(software).is_some_and(|stack| !matches!(stack, Stack::Zbench | Stack::Deepspeed));
    lacks.then(|| format!("\"zero++\" is DeepSpeed's, and hardware.software = \"{software}\" does not have it"))
}

/// Why the software that a cell names does not have its strategy, and what it has instead.
pub fn no_such_pair(software: &str, strategy: Strategy) -> Option<String> {
    let stack = Stack::named(software).filter(|stack| !has(*stack, strategy))?;
    let all = Strategy::ALL.into_iter().filter(|other| has(stack, *other)).map(|other| format!("\"{}\"", other.name()));
    let near = match (strategy, has(stack, Strategy::FsdpGradOp), has(stack, Strategy::Zero2)) {
        (Strategy::Zero1 | Strategy::Zero2, true, _) => {
            "; the nearest is \"fsdp-grad-op\", which FSDP calls SHARD_GRAD_OP"
        }
        (Strategy::FsdpGradOp, _, true) => "; the nearest is \"zero2\"",
        _ => "",
    };
    Some(format!(
        "\"{}\" is nothing that hardware.software = \"{software}\" has: it has {}{near}",
        strategy.name(),
        all.collect::<Vec<_>>().join(", ")
    ))
}
