//! FSDP 2: a flag says whether gathered weights are given back, and parallelism_config says who shares them.

use super::word;
use crate::interop::draft::{Draft, whole};

const REPLICAS: &str = "parallelism_config.parallelism_config_dp_replicate_size";
const SHARD: &str = "parallelism_config.parallelism_config_dp_shard_size";
const TENSOR: &str = "parallelism_config.parallelism_config_tp_size";
const CONTEXT: &str = "parallelism_config.parallelism_config_cp_size";
const SEQUENCE: &str = "parallelism_config.parallelism_config_sp_size";

/// Version 2: a flag, and the mesh of parallelism_config.
pub fn second(draft: &mut Draft, ranks: u64) -> &'static str {
    let path = "fsdp_config.fsdp_reshard_after_forward";
    let flag = draft.flag(path);
    if draft.has(path) && flag.is_none() {
        let reason = "is no flag, which version 2 reads; write true or false (version 1 has fsdp_sharding_strategy)";
        draft.refuse(path, reason);
    }
    draft.ignored("fsdp_config.fsdp_sharding_strategy", "Version 2 reads fsdp_reshard_after_forward.");
    let Some((replicas, shard)) = groups(draft, ranks) else { return "fsdp" };
    let strategy = match (replicas, shard, flag) {
        (2.., ..) => "hsdp",
        (_, _, Some(false)) => "fsdp-grad-op",
        _ => "fsdp",
    };
    let reason = match strategy {
        "hsdp" => "Weights are split inside a group and replicated over groups.",
        "fsdp-grad-op" => "Gathered weights are kept from forward to backward.",
        _ => "Weights are given back after forward, and gathered again.",
    };
    let settings = [("parallel.strategy", word(strategy))];
    match flag {
        Some(false) if strategy == "hsdp" => {
            let reason = "Hybrid sharding gathers weights again for backward in zbench, where this keeps them.";
            draft.nearest(path, &settings, reason);
        }
        Some(_) => draft.used(path, &settings, reason),
        None => draft.derived("parallel.strategy", word(strategy), "version 2 splits everything unless told"),
    }
    if strategy == "hsdp" {
        let settings = [("parallel.strategy", word(strategy)), ("parallel.shard", whole(shard))];
        draft.used(REPLICAS, &settings, "Groups that are replicas of each other.");
        draft.used(SHARD, &settings[1..], "Ranks of a shard group.");
    }
    strategy
}

/// Replicas, and ranks of a shard group; none where accelerate 1.15.0 refuses the sizes, of which absent ones are 1.
fn groups(draft: &mut Draft, ranks: u64) -> Option<(u64, u64)> {
    // Without the section all ranks are FSDP's.
    if !draft.has_below("parallelism_config") || ranks == 1 {
        return Some((1, ranks));
    }
    let sizes = [REPLICAS, SHARD, TENSOR, CONTEXT].map(|path| draft.count(path).unwrap_or(1).max(1));
    let [replicas, shard, tensor, context] = sizes;
    let stated = [REPLICAS, TENSOR, CONTEXT].into_iter().find(|path| draft.count(path).is_some_and(|size| size > 1));
    let at = if draft.has(SHARD) { SHARD } else { stated.unwrap_or(REPLICAS) };
    let others = replicas.saturating_mul(tensor).saturating_mul(context);
    let product = others.saturating_mul(shard);
    let absent = if draft.has(SHARD) { "" } else { " (absent, which is 1)" };
    let said =
        format!("dp_replicate_size {replicas} x dp_shard_size {shard}{absent} x tp_size {tensor} x cp_size {context}");
    let instead = match ranks.is_multiple_of(others) && ranks > others {
        true => format!("write dp_shard_size {}", ranks / others),
        false => "change one of them".to_string(),
    };
    let problem = if product > 1 && product != ranks {
        format!("{said} are {product} ranks, and num_processes is {ranks}; {instead}, or --ranks {product}")
    } else if shard == 1 && context == 1 {
        format!("{said} leave FSDP no ranks to split weights over; {instead}, or distributed_type MULTI_GPU")
    } else if shard == 1 && replicas > 1 {
        format!("{said} replicate what ranks of a sequence split, which accelerate refuses; {instead}")
    } else {
        return Some((replicas, shard));
    };
    draft.refuse(at, problem);
    None
}

/// The mesh beside plain data parallelism: ranks that share matrices or sequences.
pub fn of_ddp(draft: &mut Draft, ranks: u64) {
    if !draft.has_below("parallelism_config") {
        return;
    }
    let sizes = [REPLICAS, SHARD, TENSOR, CONTEXT].map(|path| draft.count(path).unwrap_or(1).max(1));
    let product = sizes.into_iter().fold(1, u64::saturating_mul);
    if product > 1 && product != ranks {
        let stated =
            [REPLICAS, SHARD, TENSOR, CONTEXT].into_iter().find(|path| draft.count(path).is_some_and(|size| size > 1));
        let message =
            format!("makes {product} ranks with the other sizes, and num_processes is {ranks}; change one of them");
        draft.refuse(stated.unwrap_or(REPLICAS), message);
    } else if sizes[0] > 1 && sizes[1] == 1 && sizes[2].max(sizes[3]) > 1 {
        draft.refuse(
            REPLICAS,
            "stands beside tp_size or cp_size without shard groups, which accelerate refuses; write 1",
        );
    }
    if sizes[1] > 1 {
        draft.without(SHARD, "Nothing splits weights without FSDP.");
    }
    degrees(draft, 2);
}

/// The axes of the mesh that are settings of their own, and what says nothing of the rest.
pub fn degrees(draft: &mut Draft, version: u64) {
    if version == 1 {
        for path in [REPLICAS, SHARD, TENSOR, CONTEXT] {
            if let Some(size) = draft.count(path).filter(|size| *size > 1) {
                let message =
                    format!("is {size}, and accelerate has parallelism_config for FSDP 2 alone; write fsdp_version: 2");
                draft.refuse(path, message);
            }
        }
    }
    for (path, key, what) in [
        (TENSOR, "parallel.tensor", "Ranks that share each matrix."),
        (CONTEXT, "parallel.context", "Ranks that share each sequence."),
    ] {
        match draft.count(path) {
            Some(size) if size > 1 => draft.used(path, &[(key, whole(size))], what),
            _ => draft.default(path, "1 splits nothing."),
        }
    }
    match draft.count(SEQUENCE) {
        Some(size) if size > 1 => draft.without(SEQUENCE, "accelerate has it for DeepSpeed alone."),
        _ => draft.default(SEQUENCE, "1 splits nothing."),
    }
    draft.default(REPLICAS, "1 is no replication.");
    draft.default(SHARD, "All ranks that nothing else takes share the weights.");
}

/// Ranks that share a sequence by exchanging heads (DeepSpeed's Ulysses).
pub fn sequence(draft: &mut Draft) {
    match draft.count(SEQUENCE) {
        Some(size) if size > 1 => {
            let reason =
                "The nearest: ranks that share each sequence here pass keys and values on, and do not exchange heads.";
            draft.nearest(SEQUENCE, &[("parallel.context", whole(size))], reason);
        }
        _ => draft.default(SEQUENCE, "1 splits nothing."),
    }
}

/// The mesh of a file for DeepSpeed, of which accelerate 1.15.0 checks the product only where no ranks share a sequence.
pub fn of_deepspeed(draft: &mut Draft, ranks: u64) {
    let axes = [REPLICAS, SHARD, TENSOR, CONTEXT, SEQUENCE];
    let sizes = axes.map(|path| draft.count(path).unwrap_or(1).max(1));
    let product = sizes.into_iter().fold(1, u64::saturating_mul);
    let sequences = sizes[4];
    if sequences > 1 && !ranks.is_multiple_of(sequences) {
        draft.refuse(SEQUENCE, format!("{sequences} does not divide num_processes = {ranks}; change one of them"));
    } else if sequences == 1 && product > 1 && product != ranks {
        let stated = axes.into_iter().find(|path| draft.count(path).is_some_and(|size| size > 1));
        let message =
            format!("makes {product} ranks with the other sizes, and num_processes is {ranks}; change one of them");
        draft.refuse(stated.unwrap_or(SHARD), message);
    }
    if sequences > 1 && sizes[3] > 1 {
        draft.refuse(
            SEQUENCE,
            format!("is {sequences} beside cp_size {}, and accelerate takes one of them; write 1", sizes[3]),
        );
    }
    sequence(draft);
    draft.default(SHARD, "The ranks that share no sequence; the stage says what they split.");
    for path in [REPLICAS, TENSOR, CONTEXT].into_iter().filter(|path| draft.count(path) == Some(1)).collect::<Vec<_>>()
    {
        draft.default(path, "1 splits nothing.");
    }
}
