//! Which strategies a training framework has.

use zbench_engine::config::Strategy;
use zbench_estimate::framework::Framework;

/// Why a framework cannot be priced under ZeRO++, which is DeepSpeed's.
pub fn no_zero_plus_plus(framework: &Framework) -> Option<String> {
    let name = &framework.name;
    let why = || format!("\"zero++\" is DeepSpeed's, and hardware.software = \"{name}\" does not have it");
    (!framework.has("zero++")).then(why)
}

/// What splits everything, by the name that the users of a framework write.
pub fn full_shard(framework: &Framework) -> Strategy {
    if framework.name.ends_with("deepspeed") { Strategy::Zero3 } else { Strategy::Fsdp }
}

/// Why a framework does not have a strategy, and what it has instead.
pub fn no_such_pair(framework: &Framework, strategy: Strategy) -> Option<String> {
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
    let own: Vec<String> =
        Strategy::ALL.into_iter().filter(|own| has(*own)).map(|own| format!("\"{}\"", own.name())).collect();
    Some(format!(
        "\"{}\" is nothing that hardware.software = \"{}\" has: it has {}{near}",
        strategy.name(),
        framework.name,
        own.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_estimate::framework;

    #[test]
    fn profiles_know_every_strategy() {
        let mut words: Vec<&str> = Strategy::ALL.into_iter().map(Strategy::name).collect();
        words.push("zero++");
        assert_eq!(words, framework::STRATEGIES);
        let fsdp2 = framework::framework("fsdp2").unwrap();
        assert_eq!(no_such_pair(&fsdp2, Strategy::Fsdp), None);
        let refused = no_such_pair(&fsdp2, Strategy::Zero2).unwrap();
        assert!(refused.contains("it has \"ddp\", \"zero3\", \"fsdp\", \"fsdp-grad-op\", \"hsdp\";"), "{refused}");
        assert!(no_zero_plus_plus(&fsdp2).is_some() && no_zero_plus_plus(&framework::zbench()).is_none());
    }
}
