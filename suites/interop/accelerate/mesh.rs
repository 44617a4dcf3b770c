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
        (2.., 1, _) => "ddp",
        (2.., ..) => "hsdp",
        (_, _, Some(false)) => "fsdp-grad-op",
        _ => "fsdp",
    };
    let reason = match strategy {
        "ddp" => "Shard groups of one rank split nothing.",
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
    let settings = [("parallel.strategy", word(strategy)), ("parallel.shard", whole(shard))];
    let (settings, reasons) = match strategy {
        "hsdp" => (&settings[..], ["Groups that are replicas of each other.", "Ranks of a shard group."]),
        "ddp" => (&settings[..1], [reason; 2]),
        _ => return strategy,
    };
    draft.used(REPLICAS, settings, reasons[0]);
    // A size that follows from the others is not said to stand in the file.
    if draft.has(SHARD) {
        draft.used(SHARD, &settings[settings.len() - 1..], reasons[1]);
    }
    strategy
}

/// Replicas, and ranks of a shard group; none where the sizes do not make up the ranks, which accelerate refuses, too.
fn groups(draft: &mut Draft, ranks: u64) -> Option<(u64, u64)> {
    let [replicas, tensor, context] = [REPLICAS, TENSOR, CONTEXT].map(|path| draft.count(path).unwrap_or(1).max(1));
    let others = replicas.saturating_mul(tensor).saturating_mul(context);
    let sizes = format!("dp_replicate_size {replicas} x tp_size {tensor} x cp_size {context}");
    match draft.count(SHARD) {
        // Ones alone are no mesh: accelerate leaves all ranks to FSDP.
        Some(0 | 1) if others == 1 => Some((1, ranks)),
        Some(shard) => {
            let product = others.saturating_mul(shard);
            if product != ranks {
                let message = format!(
                    "{shard} x {sizes} are {product} ranks, and num_processes is {ranks}; change one of them, or --ranks {product}"
                );
                draft.refuse(SHARD, message);
                return None;
            }
            Some((replicas, shard))
        }
        None if ranks.is_multiple_of(others) => Some((replicas, ranks / others)),
        None => {
            let stated =
                [REPLICAS, TENSOR, CONTEXT].into_iter().find(|path| draft.count(path).is_some_and(|size| size > 1));
            let message = format!("{sizes} does not divide num_processes = {ranks}; change one of them, or --ranks N");
            draft.refuse(stated.unwrap_or(REPLICAS), message);
            None
        }
    }
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
