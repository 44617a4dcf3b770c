//! Which strategies a training framework has.

use zbench_engine::config::Strategy;
use zbench_estimate::framework::{Framework, framework};

/// Why the software that a cell names cannot be priced under ZeRO++, which is DeepSpeed's.
pub fn no_zero_plus_plus(software: &str) -> Option<String> {
    let lacks = framework(software).is_ok_and(|framework| !framework.has("zero++"));
    lacks.then(|| format!("\"zero++\" is DeepSpeed's, and hardware.software = \"{software}\" does not have it"))
}

/// Why the software that a cell names does not have its strategy, and what it has instead.
pub fn no_such_pair(software: &str, strategy: Strategy) -> Option<String> {
    let framework = framework(software).ok()?;
    let has = |strategy: Strategy| framework.has(strategy.name());
    if has(strategy) {
        return None;
    }
    let near = match (strategy, has(Strategy::FsdpGradOp), has(Strategy::Zero2)) {
        (Strategy::Zero1 | Strategy::Zero2, true, _) => {
            "; the nearest is \"fsdp-grad-op\", which FSDP calls SHARD_GRAD_OP"
        }
        (Strategy::FsdpGradOp, _, true) => "; the nearest is \"zero2\"",
        _ => "",
    };
    Some(format!(
        "\"{}\" is nothing that hardware.software = \"{software}\" has: it has {}{near}",
        strategy.name(),
        list(&framework)
    ))
}

/// The strategies of a framework, in the order of the key's words.
fn list(framework: &Framework) -> String {
    let own = Strategy::ALL.into_iter().map(Strategy::name).filter(|name| framework.has(name));
    own.map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_know_every_strategy() {
        let mut words: Vec<&str> = Strategy::ALL.into_iter().map(Strategy::name).collect();
        words.push("zero++");
        assert_eq!(words, zbench_estimate::framework::STRATEGIES);
        assert_eq!(no_such_pair("fsdp2", Strategy::Fsdp), None);
        let refused = no_such_pair("fsdp2", Strategy::Zero2).unwrap();
        assert!(refused.contains("it has \"ddp\", \"zero3\", \"fsdp\", \"fsdp-grad-op\", \"hsdp\";"), "{refused}");
        assert!(no_zero_plus_plus("megatron-core").is_some() && no_zero_plus_plus("deepspeed").is_none());
    }
}
