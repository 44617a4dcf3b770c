//! accelerate's YAML: distributed_type FSDP, plain data parallelism, and DEEPSPEED where its keys stand in the file.

mod megatron;
mod mesh;
mod staged;

use super::draft::{Draft, Options, whole};
use super::node::{Key, Node, Value};
use super::yaml::last_of_each;
use super::{Format, keys};
use toml::Value as Toml;
use zbench_config::ConfigError;

const PREFIX: &str = "fsdp_";

/// Every key of a file, and the settings that come of them.
///
/// # Errors
/// Keys that are unknown, of a wrong type, or that contradict each other; a kind of run that zbench does not know.
pub fn import(source: &str, root: &Node, options: &Options) -> Result<Draft, ConfigError> {
    let mut draft = Draft::new(Format::Accelerate, source);
    let mut root = root.clone();
    last_of_each(&mut root, &mut draft.notes);
    let root = prefixed(&root, &mut draft);
    draft.walk(&root, "");
    if draft.is_sound() {
        map(&mut draft, options);
    }
    draft.finish(options)
}

fn word(text: &str) -> Toml {
    Toml::String(text.into())
}

/// axolotl and transformers have the keys of fsdp_config without their prefix.
fn prefixed(root: &Node, draft: &mut Draft) -> Node {
    let mut root = root.clone();
    let Value::Table(entries) = &mut root.value else { return root };
    let Some((_, inner)) = entries.iter_mut().find(|(key, _)| key.name == "fsdp_config") else { return root };
    let Value::Table(inner) = &mut inner.value else { return root };
    for at in 0..inner.len() {
        let Key { name, place } = inner[at].0.clone();
        let full = format!("{PREFIX}{name}");
        let path = format!("fsdp_config.{full}");
        if name.starts_with(PREFIX) || keys::ACCELERATE.iter().all(|spec| spec.key != path) {
            continue;
        }
        if inner.iter().any(|(key, _)| key.name == full) {
            let message = format!("stands beside {full}, which is the same; keep one of them");
            draft.problem(Some(place), &format!("fsdp_config.{name}"), message);
            continue;
        }
        inner[at].0.name = full;
    }
    root
}

fn map(draft: &mut Draft, options: &Options) {
    match draft.word("compute_environment") {
        Some("AMAZON_SAGEMAKER") => {
            return draft.refuse("compute_environment", "is AMAZON_SAGEMAKER, whose file does not say how a model is split; write LOCAL_MACHINE and distributed_type");
        }
        _ => draft.default("compute_environment", "Where it runs is for the launcher."),
    }
    let kind = match draft.word("distributed_type") {
        Some(kind) => kind,
        None if draft.has_below("fsdp_config") => "FSDP",
        None if draft.has_below("deepspeed_config") => "DEEPSPEED",
        None => {
            return draft.problem(None, "distributed_type", "is missing; write FSDP, MULTI_GPU or DEEPSPEED".into());
        }
    };
    let ranks = ranks(draft, options);
    match kind {
        "FSDP" => fsdp(draft, ranks),
        "DEEPSPEED" => {
            staged::deepspeed(draft);
            mesh::of_deepspeed(draft, ranks);
        }
        "MEGATRON_LM" => megatron::megatron(draft, ranks),
        "XLA" | "TPU" => {
            let message =
                format!("is {kind}, which zbench does not read; write FSDP, MULTI_GPU, DEEPSPEED or MEGATRON_LM");
            return draft.refuse("distributed_type", message);
        }
        _ => {
            let reason = "Every rank has everything, and gradients are all-reduced.";
            draft.used("distributed_type", &[("parallel.strategy", word("ddp"))], reason);
            mesh::of_ddp(draft, ranks);
        }
    }
    // A section that the kind does not read says nothing.
    let others: Vec<String> = draft.rows.iter().map(|row| row.key.clone()).collect();
    for key in others {
        if (key.starts_with("fsdp_config.") && kind != "FSDP")
            || (key.starts_with("deepspeed_config.") && kind != "DEEPSPEED")
            || (key.starts_with("megatron_lm_config.") && kind != "MEGATRON_LM")
        {
            draft.ignored(&key, format!("distributed_type is {kind}, which does not read it."));
        }
    }
    precision(draft, kind);
    if draft.is_sound() {
        draft.notes.push(
            "an accelerate file has no batch, learning rate or schedule: the training script states them; here [train] has zbench's \
             defaults: --set train.micro_batch=N, --set train.lr=X"
                .into(),
        );
    }
}

/// Ranks, and those of a machine.
fn ranks(draft: &mut Draft, options: &Options) -> u64 {
    let stated = draft.count("num_processes");
    let machines = draft.count("num_machines").unwrap_or(1);
    let ranks = options.ranks.or(stated).unwrap_or(machines);
    // Hybrid sharding looks for it below.
    if let Some(per_node) = options.ranks_per_node {
        draft.flagged("parallel.ranks_per_node", whole(per_node), "--ranks-per-node");
    }
    match (options.ranks, stated) {
        (Some(_), _) => {
            draft.flagged("parallel.ranks", whole(ranks), "--ranks");
            draft.ignored("num_processes", format!("--ranks {ranks} stands for it."));
        }
        (None, Some(_)) => {
            draft.used("num_processes", &[("parallel.ranks", whole(ranks))], "Processes of all machines together.")
        }
        (None, None) => {
            draft.derived("parallel.ranks", whole(ranks), "num_processes is absent: one for each machine; --ranks N");
            draft.notes.push(format!("num_processes is absent; zbench takes {ranks}: --ranks N states them"));
        }
    }
    if machines <= 1 || options.ranks_per_node.is_some() {
        draft.default("num_machines", "One machine, or what --ranks-per-node says, needs no nodes.");
    } else if !ranks.is_multiple_of(machines) {
        let message =
            format!("{machines} machines do not divide num_processes = {ranks}; change one of them, or --ranks N");
        draft.refuse("num_machines", message);
    } else {
        let settings = [("parallel.ranks_per_node", whole(ranks / machines))];
        draft.used("num_machines", &settings, "num_processes / num_machines are the ranks of a node.");
    }
    ranks
}

fn fsdp(draft: &mut Draft, ranks: u64) {
    let at = |name: &str| format!("fsdp_config.{PREFIX}{name}");
    let version = draft.count(&at("version")).unwrap_or(1);
    if version > 2 {
        return draft.refuse(&at("version"), format!("{version} is no version of FSDP; write 1 or 2"));
    }
    let strategy = match version {
        2 => mesh::second(draft, ranks),
        _ => first(draft, ranks),
    };
    draft.used("distributed_type", &[], "How weights are split is in fsdp_config.");
    if draft.has(&at("version")) {
        draft.used(&at("version"), &[], "It says which of the other keys are read.");
    }
    if draft.setting("parallel.strategy").is_none() {
        draft.derived("parallel.strategy", word(strategy), "FSDP splits everything unless told");
    }
    mesh::degrees(draft, version);
    wrapping(draft);
    prefetch(draft, version);
    switches(draft);
}

/// Version 1: a word says it all.
fn first(draft: &mut Draft, ranks: u64) -> &'static str {
    let path = "fsdp_config.fsdp_sharding_strategy";
    let second = "fsdp_config.fsdp_reshard_after_forward";
    // `accelerate config` of 1.15.0 asks for the word and writes it under this key, which `accelerate launch` hands to version 2 alone.
    if let Some(word) = draft.text(second).filter(|_| !draft.has(path)).map(str::to_string) {
        draft.notes.push(format!(
            "fsdp_reshard_after_forward: {word} is not read by version 1, so accelerate launch trains FULL_SHARD; write \
             fsdp_sharding_strategy: {word} where that is meant"
        ));
    }
    draft.ignored(second, "Version 1 reads fsdp_sharding_strategy alone.");
    let given = draft.word(path).unwrap_or("FULL_SHARD").to_string();
    let per_node = draft.setting_count("parallel.ranks_per_node").unwrap_or(ranks);
    let shard = ("parallel.shard", whole(per_node));
    let (strategy, settings, reason) = match given.as_str() {
        "SHARD_GRAD_OP" => ("fsdp-grad-op", Vec::new(), "Gathered weights are kept from forward to backward."),
        "NO_SHARD" => ("ddp", Vec::new(), "Nothing is split."),
        "HYBRID_SHARD" => ("hsdp", vec![shard], "Everything is split inside a machine; machines are replicas."),
        "HYBRID_SHARD_ZERO2" => {
            let reason = "hsdp is the nearest: it splits inside a machine, too, but gathers weights again for backward where this keeps them, \
                          so it takes less memory and one gather more.";
            draft.nearest(path, &[("parallel.strategy", word("hsdp")), shard], reason);
            draft.notes.push("HYBRID_SHARD_ZERO2 has no equivalent; hsdp stands in for it, with less memory and one gather more inside a machine".into());
            return "hsdp";
        }
        _ => ("fsdp", Vec::new(), "Weights, gradients and optimizer state are split over all ranks."),
    };
    let mut all = vec![("parallel.strategy", word(strategy))];
    all.extend(settings);
    if draft.has(path) {
        draft.used(path, &all, reason);
    }
    strategy
}

/// What is gathered together.
fn wrapping(draft: &mut Draft) {
    let path = "fsdp_config.fsdp_auto_wrap_policy";
    match draft.word(path) {
        Some("TRANSFORMER_BASED_WRAP") => {
            draft.default(path, "zbench's units are the blocks, the embedding and the head.")
        }
        Some("NO_WRAP") => draft
            .without(path, "The whole model as one unit is not there: a unit is a block, the embedding or the head."),
        _ => draft.without(path, "A unit is a block, the embedding or the head, whatever its size."),
    }
    draft
        .default("fsdp_config.fsdp_transformer_layer_cls_to_wrap", "A unit is a block of the model, by whatever name.");
}

/// What is gathered ahead. One key here is for both directions.
fn prefetch(draft: &mut Draft, version: u64) {
    let (backward, forward) = ("fsdp_config.fsdp_backward_prefetch", "fsdp_config.fsdp_forward_prefetch");
    if version == 2 {
        draft.ignored(backward, "FSDP 2 has no such setting: it gathers one unit ahead, as zbench does by default.");
        if draft.flag(forward) == Some(true) {
            draft.refuse(forward, "is true, which FSDP 2 does not have; take it out, or write fsdp_version: 1");
        }
        return draft.default(forward, "FSDP 2 has no such setting.");
    }
    let ahead = match draft.word(backward) {
        Some("BACKWARD_PRE") => {
            let reason = "The next unit is gathered before this one's backward; here forward gathers ahead, too.";
            draft.used(backward, &[("parallel.prefetch", whole(1))], reason);
            true
        }
        Some("BACKWARD_POST") => {
            draft.without(backward, "zbench gathers the next unit before this one's backward, or not ahead at all; parallel.prefetch stays at 1.");
            true
        }
        Some(_) => {
            draft.used(backward, &[("parallel.prefetch", whole(0))], "Nothing is gathered ahead.");
            false
        }
        None => {
            let reason = "fsdp_backward_prefetch is absent, and accelerate takes NO_PREFETCH";
            draft.derived("parallel.prefetch", whole(0), reason);
            false
        }
    };
    match (draft.flag(forward), ahead) {
        (Some(true), true) => {
            draft.used(forward, &[("parallel.prefetch", whole(1))], "One key is for both directions.")
        }
        (Some(true), false) => {
            draft.without(forward, "One key is for both directions, and backward gathers nothing ahead.")
        }
        _ => draft.default(forward, "Off, as accelerate's default is; zbench's one key follows backward's."),
    }
}

/// Offload, checkpoints, loading, recompute.
fn switches(draft: &mut Draft) {
    let at = |name: &str| format!("fsdp_config.{PREFIX}{name}");
    if draft.flag(&at("offload_params")) == Some(true) {
        let settings = [("memory.offload_parameters", word("host")), ("memory.offload_optimizer", word("host"))];
        let reason = "Weights and gradients live in the host's memory, and the update is done there.";
        draft.used(&at("offload_params"), &settings, reason);
    } else {
        draft.default(&at("offload_params"), "Nothing is offloaded.");
    }
    if draft.flag(&at("activation_checkpointing")) == Some(true) {
        let settings = [("memory.checkpointing", word("full"))];
        draft.used(&at("activation_checkpointing"), &settings, "Every block is computed again for backward.");
    } else {
        let reason = "Off; where the script turns it on: --set memory.checkpointing=full.";
        draft.default(&at("activation_checkpointing"), reason);
    }
    let offload = at("activation_checkpointing_offload");
    match (draft.flag(&offload), draft.flag(&at("activation_checkpointing"))) {
        (Some(true), Some(true)) => {
            let settings = [("memory.offload_activations", word("host"))];
            draft.used(&offload, &settings, "The inputs that checkpointing keeps wait in the host's memory.");
        }
        (Some(true), _) => {
            draft.ignored(&offload, "It is about what fsdp_activation_checkpointing keeps, which is off.")
        }
        _ => draft.default(&offload, "What is kept stays on the device."),
    }
    state_dict(draft);
    loading(draft);
}

fn state_dict(draft: &mut Draft) {
    let path = "fsdp_config.fsdp_state_dict_type";
    let layout = match draft.word(path) {
        Some("FULL_STATE_DICT") => "full",
        Some("SHARDED_STATE_DICT") => "sharded",
        Some(_) => return draft.without(
            path,
            "What FSDP calls local is nearly sharded, and no release of accelerate after 1.0 writes it under FSDP 2.",
        ),
        None => return,
    };
    // Whether checkpoints are written is a matter of the script; the layout waits for their folder.
    draft.used(path, &[("checkpoint.layout", word(layout))], "What the files of a checkpoint hold.");
}

fn loading(draft: &mut Draft) {
    let path = "fsdp_config.fsdp_cpu_ram_efficient_loading";
    let way = match draft.flag(path) {
        Some(true) => "broadcast",
        Some(false) => "everywhere",
        None => return,
    };
    let reason = "Whether one rank reads the weights and hands them out, or each reads all.";
    draft.used(path, &[("model.loading", word(way))], reason);
}

/// What accelerate makes of one word: autocast for plain data parallelism, FSDP's own policy, DeepSpeed's casts.
fn precision(draft: &mut Draft, kind: &str) {
    let path = "mixed_precision";
    let given = draft.word(path).unwrap_or("no");
    let set = |pairs: &[(&'static str, &str)]| -> Vec<(&'static str, Toml)> {
        pairs.iter().map(|(key, value)| (*key, word(value))).collect()
    };
    let scaler: [(&str, Toml); 2] = [("precision.loss_scale_window", whole(2000)), ("precision.hysteresis", whole(1))];
    let (mut settings, reason) = match (given, kind) {
        ("no", _) => (
            set(&[("precision.preset", "f32")]),
            "Weights and compute have the type that they are loaded in, f32 unless the script says otherwise.",
        ),
        ("bf16", "FSDP") => (
            set(&[("precision.preset", "fsdp-mixed")]),
            "FSDP keeps f32 weights as the only copy; compute and what travels are bf16.",
        ),
        ("bf16", "DEEPSPEED") => (
            set(&[("precision.preset", "deepspeed")]),
            "Weights, gradients and what travels are bf16, master weights f32.",
        ),
        ("bf16", "MEGATRON_LM") => (
            set(&[("precision.preset", "bf16-mixed")]),
            "Weights are bf16; gradients, what travels of them, master weights and moments f32.",
        ),
        ("fp16", "MEGATRON_LM") => (
            set(&[("precision.preset", "f16-mixed")]),
            "Weights are f16; gradients, what travels of them, master weights and moments f32.",
        ),
        ("bf16", _) => (
            set(&[("precision.preset", "f32"), ("precision.compute", "bf16")]),
            "Autocast: f32 weights and gradients, products in bf16.",
        ),
        ("fp16", "FSDP") => {
            let types = set(&[("precision.preset", "f32"), ("precision.compute", "f16"), ("precision.reduce", "f16")]);
            (
                types,
                "FSDP keeps f32 weights as the only copy; compute and what travels are f16, with PyTorch's loss scaler.",
            )
        }
        ("fp16", "DEEPSPEED") => {
            let types = [
                ("precision.preset", "f16-mixed"),
                ("precision.gradients", "f16"),
                ("precision.reduce", "f16"),
                ("precision.load", "f16"),
            ];
            (set(&types), "Weights, gradients and what travels are f16, master weights f32.")
        }
        ("fp16", _) => (
            set(&[("precision.preset", "f32"), ("precision.compute", "f16")]),
            "Autocast: f32 weights and gradients, products in f16, with PyTorch's loss scaler.",
        ),
        _ => {
            draft.notes.push("products in fp8 are priced and not run: `zbench plan` has them".into());
            let mut types = match kind {
                "FSDP" => set(&[("precision.preset", "fsdp-mixed")]),
                "DEEPSPEED" => set(&[("precision.preset", "deepspeed")]),
                "MEGATRON_LM" => set(&[("precision.preset", "bf16-mixed")]),
                _ => set(&[("precision.preset", "f32"), ("precision.compute", "bf16")]),
            };
            types.extend(set(&[("precision.products", "fp8")]));
            (types, "Products are in fp8; the rest is bf16.")
        }
    };
    if given == "fp16" && !["DEEPSPEED", "MEGATRON_LM"].contains(&kind) {
        // PyTorch's scaler doubles after 2000 steps and halves at the first overflow.
        settings.extend(scaler);
    }
    match draft.has(path) {
        true => draft.used(path, &settings, reason),
        false => settings.into_iter().for_each(|(key, value)| draft.derived(key, value, "mixed_precision is absent")),
    }
}
