//! A cell as accelerate's YAML: FSDP version 1, whose words say each way of splitting; version 2 where shard groups are no
//! machines, which its mesh alone says; DDP; or DeepSpeed for ZeRO 1 and 2.

use super::view::View;
use super::{ExportError, Like};
use crate::interop::one_line;
use serde_json::{Map, Value, json};
use zbench_engine::formats::hf;

/// The keys as a file; `name` is said in it.
pub(super) fn text(file: &Map<String, Value>, name: &str) -> String {
    let mut text = format!("# Made by `zbench export` from {}\n", one_line(name));
    lines(file, "", &mut text);
    text
}

/// A line for each key, those of a table under it.
fn lines(table: &Map<String, Value>, indent: &str, text: &mut String) {
    for (key, value) in table {
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                let key = scalar(&Value::from(key.as_str()));
                *text += &format!("{indent}{key}:\n");
                lines(inner, &format!("{indent}  "), text);
            }
            _ => *text += &format!("{indent}{}: {}\n", scalar(&Value::from(key.as_str())), scalar(value)),
        }
    }
}

/// A value as YAML. Words that every reader takes as text stand bare, the rest as JSON, which YAML holds.
fn scalar(value: &Value) -> String {
    let is_plain = |text: &str| {
        let word = text.to_lowercase();
        !["no", "yes", "on", "off", "true", "false", "null", "y", "n", ""].contains(&word.as_str())
            && text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        // YAML 1.1 takes a power for a number where there is a point in front of it and a sign in it.
        Value::Number(number) => match number.to_string().split_once('e') {
            Some((digits, power)) => {
                let point = if digits.contains('.') { "" } else { ".0" };
                let sign = if power.starts_with(['-', '+']) { "" } else { "+" };
                format!("{digits}{point}e{sign}{power}")
            }
            None => number.to_string(),
        },
        _ => value.to_string(),
    }
}

/// The text of the file.
///
/// # Errors
/// ZeRO++ is in DeepSpeed's own file alone.
pub fn write(view: &mut View, name: &str, like: Like) -> Result<String, ExportError> {
    let strategy = view.text("parallel.strategy").to_string();
    view.short_names = true;
    let [ranks, context] = ["parallel.ranks", "parallel.context"].map(|key| view.degree(key));
    let shard = shard(view);
    let kind = match strategy.as_str() {
        "zero++" => {
            return Err(ExportError::Cannot("accelerate's file has no keys for ZeRO++; write --to deepspeed, and name that file in deepspeed_config_file".into()));
        }
        "ddp" | "zero3" | "fsdp" if like == Like::DeepSpeed => "DEEPSPEED",
        "ddp" => "MULTI_GPU",
        "zero1" | "zero2" => "DEEPSPEED",
        _ if shard == 1 && context == 1 && ranks > 1 => "MULTI_GPU",
        _ if shard == 1 && context < ranks / view.degree("parallel.tensor") => {
            return Err(ExportError::Cannot("accelerate 1.15.0 refuses replicas of weights that only the ranks of a sequence split; write parallel.shard above 1".into()));
        }
        _ => "FSDP",
    };
    view.put("compute_environment", json!("LOCAL_MACHINE"));
    view.put("distributed_type", json!(kind));
    precision(view, kind);
    machines(view);
    match kind {
        "FSDP" => fsdp(view, &strategy, like),
        "DEEPSPEED" => deepspeed(view, &strategy),
        _ => {
            let reason = match strategy.as_str() {
                "ddp" => "Every rank has everything.",
                _ => "Shard groups of one rank split nothing, and accelerate refuses FSDP of them.",
            };
            view.used("parallel.strategy", &[("distributed_type", json!(kind))], reason);
            // Beside replicas accelerate refuses them.
            if ranks > 1 && view.degree("parallel.tensor").saturating_mul(context) == ranks {
                mesh(view);
            }
            view.default("parallel.prefetch", "Nothing is gathered ahead where weights are whole.");
            let in_script = "The training script says it: DistributedDataParallelKwargs(bucket_cap_mb=...).";
            match view.number("parallel.bucket_mb") {
                Some(25.0) => view.default("parallel.bucket_mb", "PyTorch's DDP has buckets of 25 MiB."),
                _ => view.without("parallel.bucket_mb", &[], in_script),
            }
        }
    }
    // A mesh has said some of these already.
    for key in ["parallel.tensor", "parallel.context", "parallel.pipeline", "parallel.expert", "parallel.sequence"] {
        if view.degree(key) > 1 && !view.is_settled(key) {
            view.without(key, &[], "The training script builds the mesh (parallelism_config is for FSDP 2).");
        }
    }
    for key in ["parallel.gather_wire", "parallel.reduce_wire"] {
        view.without(key, &[], "accelerate compresses no collectives.");
    }
    Ok(text(&view.file, name))
}

/// Ranks of a machine; all of them where the cell has one machine.
fn per_node(view: &View) -> u64 {
    let ranks = view.degree("parallel.ranks");
    view.count("parallel.ranks_per_node").filter(|per_node| *per_node > 0).unwrap_or(ranks)
}

fn machines(view: &mut View) {
    let ranks = view.degree("parallel.ranks");
    let machines = ranks.div_ceil(per_node(view)).max(1);
    let processes = view.put("num_processes", json!(ranks));
    let nodes = view.put("num_machines", json!(machines));
    view.put("machine_rank", json!(0));
    view.used("parallel.ranks", &[processes], "Processes of all machines together.");
    view.used("parallel.ranks_per_node", &[nodes], "num_processes / num_machines are the ranks of a node.");
}

/// One word says it all.
fn precision(view: &mut View, kind: &str) {
    let compute = view.text("precision.compute").to_string();
    let parameters = view.text("precision.parameters").to_string();
    let master = view.text("precision.master").to_string();
    let is_pure = parameters == compute && compute != "f32" && (master.is_empty() || master == "none");
    let word = match compute.as_str() {
        _ if is_pure => "no",
        "bf16" => "bf16",
        "f16" => "fp16",
        _ => "no",
    };
    let key = view.put("mixed_precision", json!(word));
    let of_kind = match kind {
        "FSDP" => "FSDP's policy: compute and what travels in it, f32 weights as the only copy.",
        "DEEPSPEED" => "DeepSpeed's casts, with f32 master weights.",
        _ => "Autocast, with f32 weights.",
    };
    let reason = if is_pure {
        "Without mixed precision all has the type that the script loads the model in (torch_dtype)."
    } else {
        of_kind
    };
    view.used("precision.compute", &[key], reason);
    // What the word makes of the types; without one a pure cell has the type of its weights everywhere.
    let of_word = match word {
        "bf16" => "bf16",
        "fp16" => "f16",
        _ => "f32",
    };
    let theirs = match kind {
        _ if is_pure => [compute.as_str(); 4],
        "DEEPSPEED" => [of_word, of_word, of_word, "f32"],
        "MULTI_GPU" => ["f32"; 4],
        _ => ["f32", "f32", of_word, "f32"],
    };
    for (name, theirs) in ["parameters", "gradients", "reduce", "optimizer"].into_iter().zip(theirs) {
        let key = format!("precision.{name}");
        match view.text(&key) == theirs {
            true => view.default(&key, "It follows from mixed_precision there."),
            false => view.without(&key, &[], &format!("There it is {theirs}, which follows from mixed_precision.")),
        }
    }
    let has_copy = !master.is_empty() && master != "none";
    match (has_copy, kind, is_pure) {
        (true, "DEEPSPEED", _) => view.default("precision.master", "DeepSpeed keeps one."),
        (true, _, _) => view.without("precision.master", &[], "f32 weights are the only copy there."),
        (false, ..) => view.default("precision.master", "There is none there either."),
    }
    scaler(view, &compute, kind);
}

fn scaler(view: &mut View, compute: &str, kind: &str) {
    if compute != "f16" {
        return;
    }
    // PyTorch's scaler; DeepSpeed's has zbench's defaults.
    let (window, hysteresis) = if kind == "DEEPSPEED" { (1000.0, 2.0) } else { (2000.0, 1.0) };
    let theirs = [
        ("loss_scale", 0.0),
        ("initial_scale_power", 16.0),
        ("loss_scale_window", window),
        ("hysteresis", hysteresis),
        ("min_loss_scale", 1.0),
    ];
    for (name, theirs) in theirs {
        let key = format!("precision.{name}");
        match view.number(&key) {
            Some(ours) if ours == theirs => view.default(&key, "The loss scaler there does so."),
            Some(_) => view.without(
                &key,
                &[],
                "The file has no key for the loss scaler; the training script may have (GradScalerKwargs).",
            ),
            None => {}
        }
    }
}

fn fsdp(view: &mut View, strategy: &str, like: Like) {
    // HYBRID_SHARD's groups are machines; other groups, and ranks that share more than weights, need the mesh of version 2.
    let is_hybrid = strategy.starts_with("hsdp");
    let has_groups = is_hybrid && view.degree("parallel.shard") != per_node(view);
    let is_priced_as_second = view.text("hardware.software").starts_with("fsdp2");
    let is_second = (like == Like::Fsdp2 || is_priced_as_second) && !is_hybrid;
    let has_mesh =
        is_second || has_groups || ["parallel.tensor", "parallel.context"].iter().any(|key| view.degree(key) > 1);
    view.put("fsdp_config.fsdp_version", json!(if has_mesh { 2 } else { 1 }));
    let word = match strategy {
        "fsdp-grad-op" => "SHARD_GRAD_OP",
        "hsdp" | "hsdp-full-optimizer" => "HYBRID_SHARD",
        _ => "FULL_SHARD",
    };
    let key = match has_mesh {
        true => view.put("fsdp_config.fsdp_reshard_after_forward", json!(strategy != "fsdp-grad-op")),
        false => view.put("fsdp_config.fsdp_sharding_strategy", json!(word)),
    };
    match strategy {
        "hsdp-full-optimizer" => {
            let reason = "Hybrid sharding is the nearest: it splits the optimizer's state inside a shard group alone.";
            view.without("parallel.strategy", &[key], reason);
        }
        _ => view.used("parallel.strategy", &[key], "The same state is split."),
    }
    if is_hybrid && !has_mesh {
        let machines = view.degree("parallel.ranks").div_ceil(per_node(view));
        view.used("parallel.shard", &[("num_machines", json!(machines))], "A machine is a shard group.");
    }
    view.put("fsdp_config.fsdp_auto_wrap_policy", json!("TRANSFORMER_BASED_WRAP"));
    let family = view.text("model.family");
    match hf::block_class(family).or((family == "t5").then_some("T5Block")) {
        Some(class) => {
            let key = view.put("fsdp_config.fsdp_transformer_layer_cls_to_wrap", json!(class));
            view.used("model.family", &[key], "A unit is a block; the training script makes the model.");
        }
        None => view
            .notes
            .push("the family's block has no class in transformers; state fsdp_transformer_layer_cls_to_wrap".into()),
    }
    prefetch(view, has_mesh);
    offload(view);
    activations(view);
    if let Some(key) = match view.text("checkpoint.layout") {
        "full" => Some(view.put("fsdp_config.fsdp_state_dict_type", json!("FULL_STATE_DICT"))),
        "sharded" => Some(view.put("fsdp_config.fsdp_state_dict_type", json!("SHARDED_STATE_DICT"))),
        _ => None,
    } {
        view.used("checkpoint.layout", &[key], "What the files of a checkpoint hold.");
    }
    if let Some(flag) = match view.text("model.loading") {
        "broadcast" => Some(true),
        "everywhere" => Some(false),
        _ => None,
    } {
        let key = view.put("fsdp_config.fsdp_cpu_ram_efficient_loading", json!(flag));
        if flag && !has_mesh {
            view.put("fsdp_config.fsdp_sync_module_states", json!(true));
        }
        view.used("model.loading", &[key], "Whether one rank reads the weights and hands them out.");
    }
    match has_mesh {
        true => mesh(view),
        false => drop(view.put("fsdp_config.fsdp_use_orig_params", json!(true))),
    }
}

/// Ranks of a shard group.
fn shard(view: &View) -> u64 {
    let is_hybrid = view.value("parallel.shard").is_some();
    if is_hybrid { view.degree("parallel.shard") } else { view.data_ranks() }
}

/// Version 2's mesh, whose sizes have the ranks as their product.
fn mesh(view: &mut View) {
    let [tensor, context] = ["parallel.tensor", "parallel.context"].map(|key| view.degree(key));
    let shard = shard(view);
    let taken = shard.saturating_mul(tensor).saturating_mul(context);
    let replicas = view.put(
        "parallelism_config.parallelism_config_dp_replicate_size",
        json!((view.degree("parallel.ranks") / taken.max(1)).max(1)),
    );
    let group = view.put("parallelism_config.parallelism_config_dp_shard_size", json!(shard));
    view.used("parallel.shard", &[replicas, group], "Groups that are no machines, which version 2 has.");
    for (name, key, size, reason) in [
        ("parallelism_config.parallelism_config_tp_size", "parallel.tensor", tensor, "Ranks that share each matrix."),
        (
            "parallelism_config.parallelism_config_cp_size",
            "parallel.context",
            context,
            "Ranks that share each sequence.",
        ),
    ] {
        let line = view.put(name, json!(size));
        if size > 1 {
            view.used(key, &[line], reason);
        }
    }
    if view.degree("parallel.pipeline") > 1 {
        view.without("parallel.pipeline", &[], "accelerate has no stages; their ranks are replicas there.");
    }
}

/// What is gathered ahead. Version 2 has no such setting.
fn prefetch(view: &mut View, is_second: bool) {
    let ahead = view.count("parallel.prefetch").unwrap_or(1);
    if is_second {
        return match ahead {
            1 => view.default("parallel.prefetch", "FSDP 2 gathers one unit ahead."),
            _ => view.without("parallel.prefetch", &[], "FSDP 2 gathers one unit ahead, and has no setting for it."),
        };
    }
    let backward =
        view.put("fsdp_config.fsdp_backward_prefetch", json!(if ahead > 0 { "BACKWARD_PRE" } else { "NO_PREFETCH" }));
    let forward = view.put("fsdp_config.fsdp_forward_prefetch", json!(ahead > 0));
    match ahead {
        0 | 1 => view.used("parallel.prefetch", &[backward, forward], "One unit ahead, or none."),
        _ => view.without("parallel.prefetch", &[backward, forward], "FSDP gathers one unit ahead at most."),
    }
}

fn offload(view: &mut View) {
    let (weights, state) =
        (view.text("memory.offload_parameters").to_string(), view.text("memory.offload_optimizer").to_string());
    let is_off = |home: &str| matches!(home, "host" | "disk");
    if !is_off(&weights) && !is_off(&state) {
        view.put("fsdp_config.fsdp_offload_params", json!(false));
        return;
    }
    let becomes = [("fsdp_config.fsdp_offload_params", json!(true))];
    for (name, home) in [("memory.offload_parameters", &weights), ("memory.offload_optimizer", &state)] {
        match (home.as_str(), weights == state) {
            ("host", true) => view.used(name, &becomes, "FSDP offloads weights and optimizer together."),
            _ => view.without(
                name,
                &becomes,
                "FSDP offloads weights and optimizer together, to the host's memory; that is the nearest.",
            ),
        }
    }
}

fn activations(view: &mut View) {
    let policy = view.value("memory.checkpointing").and_then(Value::as_str).unwrap_or("some").to_string();
    let key = view.put("fsdp_config.fsdp_activation_checkpointing", json!(policy != "none"));
    match policy.as_str() {
        "none" => view.default("memory.checkpointing", "Off unless asked for."),
        "full" => view.used("memory.checkpointing", &[key], "Every block is computed again for backward."),
        _ => view.without(
            "memory.checkpointing",
            &[key],
            "FSDP's switch computes every block again; that is the nearest.",
        ),
    }
}

fn deepspeed(view: &mut View, strategy: &str) {
    let stage = match strategy {
        "ddp" => 0,
        "zero1" => 1,
        "zero2" => 2,
        _ => 3,
    };
    let key = view.put("deepspeed_config.zero_stage", json!(stage));
    view.used("parallel.strategy", &[key], "The same state is split.");
    match stage {
        3 => view.without("parallel.prefetch", &[], "DeepSpeed counts elements, and accelerate has no key for them."),
        _ => view.default("parallel.prefetch", "Nothing is gathered ahead where weights are whole."),
    }
    view.used(
        "train.accumulation",
        &[("deepspeed_config.gradient_accumulation_steps", json!(view.degree("train.accumulation")))],
        "Micro-batches of a step.",
    );
    match view.number("train.clip_norm") {
        Some(norm) if norm > 0.0 => {
            let reason = "The largest global norm.";
            view.used("train.clip_norm", &[("deepspeed_config.gradient_clipping", json!(norm))], reason);
        }
        // A 0 written down would be left out by accelerate.
        _ => {
            view.without("train.clip_norm", &[], "accelerate leaves 0 out, and DeepSpeed then clips at 1.0.");
            view.notes.push(
                "the file cannot say that nothing is clipped: DeepSpeed clips at 1.0 where accelerate names no norm; write --to deepspeed, \
                 and name that file in deepspeed_config_file"
                    .into(),
            );
        }
    }
    let folder = view.text("memory.offload_path").to_string();
    for (setting, name) in [("memory.offload_optimizer", "optimizer"), ("memory.offload_parameters", "param")] {
        let (device, path) = match name {
            "optimizer" => {
                ("deepspeed_config.offload_optimizer_device", "deepspeed_config.offload_optimizer_nvme_path")
            }
            _ => ("deepspeed_config.offload_param_device", "deepspeed_config.offload_param_nvme_path"),
        };
        let home = match view.text(setting) {
            "host" => "cpu",
            "disk" => "nvme",
            _ => "none",
        };
        let device = view.put(device, json!(home));
        view.used(setting, &[device], "Where this state lives.");
        if home == "nvme" && !folder.is_empty() {
            let key = view.put(path, json!(folder));
            view.used("memory.offload_path", &[key], "The folder of what is on the disk.");
        }
    }
    view.put("deepspeed_config.zero3_init_flag", json!(stage == 3));
}
