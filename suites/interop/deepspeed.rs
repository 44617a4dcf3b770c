//! DeepSpeed's JSON, read as DeepSpeed's `runtime/config.py` and `runtime/zero/config.py` do.

mod precision;
mod training;

use super::draft::{Draft, Options, whole};
use super::node::Node;
use super::{Format, Verdict};
use toml::Value as Toml;
use zbench_config::ConfigError;

/// Every key of a file, and the settings that come of them.
///
/// # Errors
/// Keys that are unknown, deprecated, of a wrong type, or that contradict each other.
pub fn import(source: &str, root: &Node, options: &Options) -> Result<Draft, ConfigError> {
    let mut draft = Draft::new(Format::DeepSpeed, source);
    if let Some(node) = root.get("zero_optimization")
        && matches!(node.value, super::node::Value::Bool(_))
    {
        let message = "is deprecated as true or false; write { \"stage\": 1 }, with the stage from 0 to 3".to_string();
        draft.problem(Some(node.place), "zero_optimization", message);
        return draft.finish(options);
    }
    draft.walk(root, "");
    removed(&mut draft);
    if draft.is_sound() {
        map(&mut draft, options);
    }
    draft.finish(options)
}

/// Keys that DeepSpeed 0.19.8 refuses by name, whatever they hold, and that releases before it read.
const REMOVED: [&str; 13] = [
    "amp",
    "compression_training",
    "curriculum_learning",
    "eigenvalue",
    "elasticity",
    "graph_harvesting",
    "nebula",
    "progressive_layer_drop",
    "quantize_training",
    "sparse_attention",
    "sparse_gradients",
    "zero_optimization.mics_shard_size",
    "zero_optimization.mics_hierarchical_params_gather",
];

/// Tells of them, as errors where there are others.
fn removed(draft: &mut Draft) {
    let found: Vec<&str> = REMOVED.into_iter().filter(|key| draft.has(key) || draft.has_below(key)).collect();
    if found.is_empty() {
        return;
    }
    if draft.is_sound() {
        draft
            .notes
            .push(format!("DeepSpeed 0.19.8 refuses a file with {}; releases before it read that", found.join(", ")));
        return;
    }
    for key in found {
        draft.refuse(key, "is refused by DeepSpeed 0.19.8, whose releases before read it; take it out");
    }
}

fn map(draft: &mut Draft, options: &Options) {
    let groups = zero(draft);
    let section = |name: &str| Section {
        device: format!("zero_optimization.{name}.device"),
        folder: format!("zero_optimization.{name}.nvme_path"),
        no_folder: "",
    };
    let stage = draft.count("zero_optimization.stage").unwrap_or(0);
    offload(draft, stage, [section("offload_optimizer"), section("offload_param")]);
    let (tensor, expert) = degrees(draft);
    let sequence = sequence(draft);
    training::batch(draft, options, tensor.saturating_mul(sequence), groups.max(expert));
    precision::precision(draft, options);
    training::optimizer(draft);
    training::schedule(draft);
    training::rest(draft);
    activations(draft, tensor);
}

fn word(text: &str) -> Toml {
    Toml::String(text.into())
}

/// The stage, and what modifies stage 3. Ranks must be a multiple of what is returned.
fn zero(draft: &mut Draft) -> u64 {
    const AT: &str = "zero_optimization";
    let at = |name: &str| format!("{AT}.{name}");
    let stage = draft.count(&at("stage")).unwrap_or(0);
    let hpz = draft.count(&at("zero_hpz_partition_size")).unwrap_or(1);
    let mics = draft.whole(&at("mics_shard_size")).unwrap_or(-1);
    let (weights, gradients) = (draft.flag(&at("zero_quantized_weights")), draft.flag(&at("zero_quantized_gradients")));
    if stage > 3 {
        draft.refuse(&at("stage"), format!("{stage} is no stage of ZeRO; write 0, 1, 2 or 3"));
        return 1;
    }
    let is_third = stage == 3;
    if is_third && hpz > 1 && mics > 0 {
        let reason = "stands beside zero_hpz_partition_size, and MiCS keeps no second copy; keep one of them";
        draft.refuse(&at("mics_shard_size"), reason);
        return 1;
    }
    let strategy = match stage {
        0 => "ddp",
        1 => "zero1",
        2 => "zero2",
        _ if hpz > 1 => "zero++",
        _ if mics > 0 => "hsdp",
        _ => "zero3",
    };
    if draft.has(&at("stage")) {
        let reason = match strategy {
            "zero++" => "Stage 3 with hpZ keeps a second copy of the weights inside a node, which is ZeRO++.",
            "hsdp" => {
                "Stage 3 with MiCS splits inside groups that are replicas of each other, which is hybrid sharding."
            }
            "ddp" => "Stage 0 splits nothing.",
            _ => "The stages have the same names here.",
        };
        draft.used(&at("stage"), &[("parallel.strategy", word(strategy))], reason);
    } else {
        draft.derived("parallel.strategy", word(strategy), "no stage is stated, and DeepSpeed's default is 0");
    }
    let third_alone = "It works in stage 3 alone.";
    let mut groups = 1;
    match hpz {
        0 | 1 => draft.default(&at("zero_hpz_partition_size"), "1 is no second copy."),
        _ if is_third => {
            groups = hpz;
            let reason = "Ranks that share the second copy; ideally those of a node.";
            draft.used(&at("zero_hpz_partition_size"), &[("parallel.shard", whole(hpz))], reason);
        }
        _ => draft.ignored(&at("zero_hpz_partition_size"), third_alone),
    }
    match u64::try_from(mics) {
        Ok(size) if size > 0 && is_third => {
            groups = size;
            let sequence = draft.count(SEQUENCE).unwrap_or(1).max(1);
            if size.is_multiple_of(sequence) {
                let reason = match sequence {
                    1 => "MiCS's shard group is the shard group of hybrid sharding.",
                    _ => "Of the ranks of a shard group as many share each sequence as sequence_parallel_size says.",
                };
                draft.used(&at("mics_shard_size"), &[("parallel.shard", whole(size / sequence))], reason);
            } else {
                let message = format!("is {size}, and {SEQUENCE} = {sequence} does not divide it; write a multiple");
                draft.refuse(&at("mics_shard_size"), message);
            }
        }
        Ok(size) if size > 0 => draft.ignored(&at("mics_shard_size"), third_alone),
        _ => draft.default(&at("mics_shard_size"), "-1 is no MiCS."),
    }
    wires(draft, [weights, gradients], is_third, strategy == "zero++");
    match draft.flag(&at("overlap_comm")) {
        Some(overlaps) if overlaps != is_third => draft.without(&at("overlap_comm"), OVERLAP),
        _ => draft.default(&at("overlap_comm"), format!("It is on in stage 3 and off below anyway. {OVERLAP}")),
    }
    groups
}

const OVERLAP: &str =
    "Whether transfers overlap compute follows from backend and device here; a record states what was exposed.";

/// qwZ and qgZ. Under zero++ the wires are compressed unless the file says otherwise, so there they are always written.
fn wires(draft: &mut Draft, given: [Option<bool>; 2], is_third: bool, is_zeropp: bool) {
    let wires = [
        ("zero_quantized_weights", "parallel.gather_wire", "int8", "Weights are gathered as blocks of 8 bits (qwZ)."),
        (
            "zero_quantized_gradients",
            "parallel.reduce_wire",
            "int4",
            "Gradients are reduced as blocks of 4 bits by all-to-all (qgZ).",
        ),
    ];
    for ((name, key, wire, reason), given) in wires.into_iter().zip(given) {
        let path = format!("zero_optimization.{name}");
        match given {
            Some(true) if is_third => draft.used(&path, &[(key, word(wire))], reason),
            Some(true) => draft.ignored(&path, "It works in stage 3 alone."),
            Some(false) if is_zeropp => {
                draft.used(&path, &[(key, word("native"))], "It is off, and zero++ has it on unless told.")
            }
            _ => draft.default(&path, "It is off anyway."),
        }
        if is_zeropp && draft.setting(key).is_none() {
            draft.derived(key, word("native"), format!("{name} is absent, which is off"));
        }
    }
}

/// The keys of what may be offloaded.
pub struct Section {
    /// Where it lives.
    pub device: String,
    /// The folder, where that is a disk.
    pub folder: String,
    /// What stands for no folder.
    pub no_folder: &'static str,
}

/// Where state lives: the optimizer's, and the weights. accelerate's file has the same keys under other names.
pub fn offload(draft: &mut Draft, stage: u64, sections: [Section; 2]) {
    let mut paths: Vec<(String, String)> = Vec::new();
    let ours = [("memory.offload_optimizer", 1), ("memory.offload_parameters", 3)];
    for (Section { device, folder, no_folder }, (key, least)) in sections.into_iter().zip(ours) {
        let home = match draft.word(&device) {
            Some("cpu") => "host",
            Some("nvme") => "disk",
            _ => "none",
        };
        let home = match stage < least && key == "memory.offload_parameters" {
            true => "none",
            false => home,
        };
        if home == "none" && draft.word(&device).is_some_and(|device| device != "none") {
            let reason = "Weights are split, and so offloaded, in stage 3 alone: below it nothing reads this key.";
            draft.ignored(&device, reason);
        } else if home == "none" {
            draft.default(&device, "Nothing is offloaded.");
        } else if stage < least {
            let message =
                format!("needs stage {least} or above, and stage is {stage}; write \"none\", or another stage");
            draft.refuse(&device, message);
        } else {
            let reason = match home {
                "host" => "DeepSpeed's cpu is the host's memory.",
                _ => "DeepSpeed's nvme is a disk.",
            };
            draft.used(&device, &[(key, word(home))], reason);
        }
        match draft.text(&folder).map(str::to_string).filter(|path| !path.is_empty() && path != no_folder) {
            Some(path) if home == "disk" => paths.push((folder, path)),
            Some(_) => draft.ignored(&folder, "Nothing of this section is on a disk."),
            None if home == "disk" => {
                let name = folder.rsplit('.').next().unwrap_or_default();
                draft.refuse(&device, format!("is \"nvme\" without {name}; write the folder beside it"));
            }
            None => draft.default(&folder, "It names no folder, and nothing of this section is on a disk."),
        }
    }
    let Some((first, folder)) = paths.first().cloned() else { return };
    draft.used(&first, &[("memory.offload_path", word(&folder))], "The folder of what is on the disk.");
    for (path, other) in paths.iter().skip(1) {
        if *other == folder {
            draft.used(path, &[("memory.offload_path", word(other))], "The folder of what is on the disk.");
        } else {
            draft.without(path, "There is one folder for all that is on the disk: the optimizer's stands.");
        }
    }
}

/// Ranks that share each sequence.
const SEQUENCE: &str = "sequence_parallel_size";

fn sequence(draft: &mut Draft) -> u64 {
    let path = SEQUENCE;
    let size = draft.count(path).unwrap_or(1).max(1);
    if size > 1 {
        let reason =
            "The nearest: ranks that share each sequence here pass keys and values on, and do not exchange heads.";
        draft.nearest(path, &[("parallel.context", whole(size))], reason);
    } else {
        draft.default(path, "1 is no sequence parallelism.");
    }
    size
}

/// Tensor and expert parallelism: their degrees.
fn degrees(draft: &mut Draft) -> (u64, u64) {
    let path = "tensor_parallel.autotp_size";
    let tensor = draft.count(path).unwrap_or(0).max(1);
    match tensor {
        1 => draft.default(path, "0 and 1 are no tensor parallelism."),
        _ => draft.used(path, &[("parallel.tensor", whole(tensor))], "Ranks that share each matrix."),
    }
    let is_off = draft.flag("expert_parallel.enabled") != Some(true);
    let mut expert = 1;
    for (name, key, what) in [
        ("autoep_size", "parallel.expert", "Ranks that share the experts."),
        ("expert_tensor_parallel_size", "parallel.expert_tensor", "Ranks that share each expert's matrices."),
    ] {
        let path = format!("expert_parallel.{name}");
        match draft.count(&path) {
            Some(size) if size > 1 && is_off => draft.ignored(&path, "expert_parallel is off."),
            Some(size) if size > 1 => {
                expert = expert.max(size);
                draft.used(&path, &[(key, whole(size))], what);
            }
            _ => draft.default(&path, "1 splits nothing."),
        }
    }
    let on = draft.flag("expert_parallel.enabled");
    match on {
        Some(true) if expert > 1 => draft.used("expert_parallel.enabled", &[], "Its degree says the rest."),
        Some(true) => draft.without("expert_parallel.enabled", "Without a degree there is nothing to split."),
        _ => draft.default("expert_parallel.enabled", "It is off."),
    }
    (tensor, expert)
}

/// The section configures checkpointing that the model's code asks for: only what needs it says that it is on.
fn activations(draft: &mut Draft, tensor: u64) {
    let at = |name: &str| format!("activation_checkpointing.{name}");
    let full = ("memory.checkpointing", word("full"));
    if draft.flag(&at("cpu_checkpointing")) == Some(true) {
        let settings = [("memory.offload_activations", word("host")), full.clone()];
        let reason = "The inputs that checkpointing keeps wait in the host's memory.";
        draft.used(&at("cpu_checkpointing"), &settings, reason);
    } else {
        draft.default(&at("cpu_checkpointing"), "What is kept stays on the device.");
    }
    match draft.flag(&at("partition_activations")) {
        Some(true) if tensor > 1 => {
            let settings = [("memory.partition_activations", Toml::Boolean(true)), full];
            let reason = "The inputs that checkpointing keeps are split over the tensor ranks.";
            draft.used(&at("partition_activations"), &settings, reason);
        }
        Some(true) => {
            let reason =
                "It says that the model checkpoints its activations; there is one tensor rank, so nothing is split.";
            draft.used(&at("partition_activations"), &[full], reason);
        }
        _ => draft.default(&at("partition_activations"), "Nothing is split."),
    }
    if draft.has_below("activation_checkpointing") && draft.setting("memory.checkpointing").is_none() {
        draft.notes.push(
            "activation_checkpointing says how, and the model's code whether: zbench keeps everything; --set memory.checkpointing=full \
             where the code checkpoints"
                .into(),
        );
    }
}
