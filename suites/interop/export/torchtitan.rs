//! A cell as torchtitan's TOML, in the form of its release 0.2.2; newer ones are configured in Python.

use super::view::View;
use crate::interop::one_line;
use serde_json::{Map, Value, json};

/// The keys as a file; `name` is said in it.
fn text(file: &Map<String, Value>, name: &str) -> String {
    let mut text = format!("# Made by `zbench export` from {}, for torchtitan 0.2.2.\n", one_line(name));
    for (section, keys) in file {
        text += &format!("\n[{section}]\n");
        for (key, value) in keys.as_object().into_iter().flatten() {
            // Values are numbers, words and flags, which TOML writes as JSON does but for texts, which toml quotes.
            let value =
                value.as_str().map_or_else(|| value.to_string(), |text| toml::Value::String(text.into()).to_string());
            text += &format!("{key} = {value}\n");
        }
    }
    text
}

/// The text of the file.
pub fn write(view: &mut View, name: &str) -> String {
    view.put("job.description", json!(name));
    model(view);
    optimizer(view);
    schedule(view);
    training(view);
    parallelism(view);
    compile(view);
    activations(view);
    checkpoint(view);
    if let Some(seed) = view.count("train.seed") {
        view.used("train.seed", &[("debug.seed", json!(seed))], "Seed of initialisation.");
    }
    text(&view.file, name)
}

/// torchtitan's flavors: name, flavor, width, blocks, heads, heads of keys, MLP.
const FLAVORS: [(&str, &str, [u64; 5]); 11] = [
    ("llama3", "8B", [4096, 32, 32, 8, 14336]),
    ("llama3", "70B", [8192, 80, 64, 8, 28672]),
    ("llama3", "405B", [16384, 126, 128, 8, 53248]),
    ("qwen3", "0.6B", [1024, 28, 16, 8, 3072]),
    ("qwen3", "1.7B", [2048, 28, 16, 8, 6144]),
    ("qwen3", "4B", [2560, 36, 32, 8, 9728]),
    ("qwen3", "8B", [4096, 36, 32, 8, 12288]),
    ("qwen3", "14B", [5120, 40, 40, 8, 17408]),
    ("qwen3", "32B", [5120, 64, 64, 8, 25600]),
    ("qwen3_moe", "30B-A3B", [2048, 48, 32, 4, 6144]),
    ("qwen3_moe", "235B-A22B", [4096, 94, 64, 4, 12288]),
];
const SIZES: [&str; 5] =
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"];

fn model(view: &mut View) {
    let family = view.text("model.family").to_string();
    let sizes = SIZES.map(|name| view.count(&format!("model.{name}")).unwrap_or(0));
    let found = FLAVORS.iter().find(|(name, _, theirs)| {
        let of_family = if family == "llama" { "llama3" } else { family.as_str() };
        *name == of_family && *theirs == sizes
    });
    match found {
        Some((name, flavor, _)) => {
            // Experts are flavors of the same name there.
            let name = json!(name.trim_end_matches("_moe"));
            view.used("model.family", &[("model.name", name)], "torchtitan's name of it.");
            let flavor = [("model.flavor", json!(flavor))];
            for size in SIZES {
                let reason = "A flavor has all sizes; the vocabulary is the tokenizer's.";
                view.used(&format!("model.{size}"), &flavor, reason);
            }
        }
        None => {
            let known: Vec<String> =
                FLAVORS.iter().map(|(name, flavor, _)| format!("{} {flavor}", name.trim_end_matches("_moe"))).collect();
            view.without("model.family", &[], "No flavor of torchtitan 0.2.2 has these sizes.");
            view.notes.push(format!(
                "no flavor of torchtitan has this model's sizes, so [model] has no name and flavor, and its debugmodel would train; there are {}, \
                 and a new one is a line in its models/*/__init__.py",
                known.join(", ")
            ));
        }
    }
    view.put("model.hf_assets_path", json!("./assets/hf"));
    view.notes.push(
        "model.hf_assets_path and training.dataset are for you to change: zbench's cell does not have them".into(),
    );
}

fn optimizer(view: &mut View) {
    view.used("train.optimizer", &[("optimizer.name", json!("AdamW"))], "The same update.");
    for (key, theirs) in
        [("train.lr", "optimizer.lr"), ("train.eps", "optimizer.eps"), ("train.weight_decay", "optimizer.weight_decay")]
    {
        if let Some(value) = view.number(key) {
            view.used(key, &[(theirs, json!(value))], "The same.");
        }
    }
    let beta = |view: &View, at: usize| view.value("train.betas")?.get(at)?.as_f64();
    if let (Some(first), Some(second)) = (beta(view, 0), beta(view, 1)) {
        let betas = [("optimizer.beta1", json!(first)), ("optimizer.beta2", json!(second))];
        view.used("train.betas", &betas, "Decay of both moments.");
    }
}

fn schedule(view: &mut View) {
    view.used(
        "train.lr_warmup_steps",
        &[("lr_scheduler.warmup_steps", json!(view.count("train.lr_warmup_steps").unwrap_or(0)))],
        "The same number of steps.",
    );
    let course = view.text("train.lr_schedule").to_string();
    let (warms_up, decays) = (view.count("train.lr_warmup_steps") != Some(0), course == "linear" || course == "cosine");
    match view.text("train.lr_steps") {
        "transformers" if !warms_up => view.default("train.lr_steps", "torchtitan's decay has these steps."),
        "from-one" if !decays => view.default("train.lr_steps", "torchtitan's warm-up has these steps."),
        _ => {
            let reason = "Update k has step k of the warm-up there, as by from-one, and step k - 1 of the decay, as in transformers.";
            view.without("train.lr_steps", &[], reason);
        }
    }
    if !decays {
        return view.used(
            "train.lr_schedule",
            &[("lr_scheduler.decay_ratio", json!(0.0))],
            "No share of the steps decays.",
        );
    }
    view.used("train.lr_schedule", &[("lr_scheduler.decay_type", json!(course))], "The same course.");
    let (lr, least) = (view.number("train.lr").unwrap_or(0.0), view.number("train.lr_min").unwrap_or(0.0));
    view.used(
        "train.lr_min",
        &[("lr_scheduler.min_lr_factor", json!(if lr > 0.0 { least / lr } else { 0.0 }))],
        "torchtitan states it as a share of the rate.",
    );
}

/// A norm that no gradient has: torchtitan always clips.
pub(crate) const NEVER: f64 = 1e9;

fn training(view: &mut View) {
    let micro = view.degree("train.micro_batch");
    let passes = micro.saturating_mul(view.degree("train.accumulation"));
    let all = passes.saturating_mul(view.data_ranks());
    // Stages take a rank's sequences in parts.
    let has_stages = view.degree("parallel.pipeline") > 1;
    let local = ("training.local_batch_size", json!(if has_stages { passes } else { micro }));
    view.used("train.micro_batch", std::slice::from_ref(&local), "Sequences of a rank at a time.");
    let mut reason = "What is above local_batch_size x ranks is accumulated.";
    if has_stages {
        let part = ("parallelism.pipeline_parallel_microbatch_size", json!(micro));
        reason = "All micro-batches of a rank are in the pipeline at once.";
        view.used("train.micro_batch", &[part, local], reason);
    }
    view.used("train.accumulation", &[("training.global_batch_size", json!(all))], reason);
    view.used("train.seq_len", &[("training.seq_len", json!(view.degree("train.seq_len")))], "The same.");
    let norm = view.number("train.clip_norm").unwrap_or(0.0);
    view.used(
        "train.clip_norm",
        &[("training.max_norm", json!(if norm > 0.0 { norm } else { NEVER }))],
        if norm > 0.0 { "The same." } else { "torchtitan always clips; no gradient has this norm." },
    );
    let steps = view.steps();
    let steps = [("training.steps", json!(steps))];
    view.used("train.steps", &steps, "All steps, untimed ones too.");
    view.used("train.untimed_steps", &steps, "They are steps like the others there.");
    precision(view);
    let homes = [view.text("memory.offload_parameters"), view.text("memory.offload_optimizer")].map(str::to_string);
    if homes.iter().any(|home| home == "host" || home == "disk") {
        let becomes = [("training.enable_cpu_offload", json!(true))];
        for key in ["memory.offload_parameters", "memory.offload_optimizer"] {
            match homes.iter().all(|home| home == "host") {
                true => view.used(key, &becomes, "Weights, gradients and optimizer go together."),
                false => view.without(
                    key,
                    &becomes,
                    "Weights, gradients and optimizer go together, to the host's memory; that is the nearest.",
                ),
            }
        }
    }
}

fn precision(view: &mut View) {
    let name = |dtype: &str| if dtype == "bf16" { "bfloat16" } else { "float32" };
    let [parameters, compute, master] =
        ["parameters", "compute", "master"].map(|key| view.text(&format!("precision.{key}")).to_string());
    // f32 weights are the only copy; a master copy here is what those are.
    let kept = if master == "f32" { "f32" } else { parameters.as_str() };
    let dtype = view.put("training.dtype", json!(name(kept)));
    let param = view.put("training.mixed_precision_param", json!(name(&compute)));
    let reduce = view.put("training.mixed_precision_reduce", json!("float32"));
    if compute == "f16" || parameters == "f16" {
        view.without("precision.compute", &[param], "torchtitan has no f16, and no loss scale.");
        view.without("precision.parameters", &[dtype], "torchtitan has no f16.");
    } else {
        view.used("precision.compute", &[param], "What is gathered and computed with.");
        match master == "f32" && parameters != "f32" {
            true => view.without(
                "precision.parameters",
                &[dtype],
                "FSDP keeps f32 weights as the only copy, where this has them beside weights in few bits.",
            ),
            false => view.used("precision.parameters", &[dtype], "What the model is made in."),
        }
    }
    if view.text("precision.products") == "fp8" {
        let converters = [("model.converters", json!(["quantize.linear.float8"]))];
        view.used("precision.products", &converters, "Products of linear layers are in fp8.");
    }
    match view.text("precision.reduce") {
        "f32" => view.used("precision.reduce", &[reduce], "The same."),
        _ => view.without("precision.reduce", &[reduce], "torchtitan reduces in f32 alone."),
    }
    for key in ["precision.gradients", "precision.optimizer"] {
        match view.text(key) == kept {
            true => view.default(key, "It has the type of the weights."),
            false => view.without(key, &[], "It has the type of the weights."),
        }
    }
    match master.as_str() {
        "" | "none" => view.default("precision.master", "There is none."),
        _ => view.without("precision.master", &[], "f32 weights are the only copy."),
    }
}

fn parallelism(view: &mut View) {
    let strategy = view.text("parallel.strategy").to_string();
    let ranks = view.data_ranks();
    let shard = match strategy.as_str() {
        "ddp" => 1,
        "hsdp" | "hsdp-full-optimizer" => view.degree("parallel.shard"),
        _ => ranks,
    };
    let replicate = view.put("parallelism.data_parallel_replicate_degree", json!(ranks / shard.max(1)));
    let group = view.put("parallelism.data_parallel_shard_degree", json!(shard));
    let again = match strategy.as_str() {
        "fsdp-grad-op" | "zero1" | "zero2" => "never",
        // With stages its own default keeps weights gathered from micro-batch to micro-batch.
        _ if view.degree("parallel.pipeline") > 1 => "default",
        _ => "always",
    };
    let reshard = view.put("parallelism.fsdp_reshard_after_forward", json!(again));
    let all = [replicate.clone(), group.clone(), reshard];
    let why = match strategy.as_str() {
        "zero1" | "zero2" => Some(
            "torchtitan always splits weights: FSDP that keeps them from forward to backward is the nearest, with as much traffic as stage 2.",
        ),
        "hsdp-full-optimizer" => Some("HSDP is the nearest: it splits the optimizer's state inside a group alone."),
        "zero++" => Some("FSDP is the nearest: torchtitan compresses no collectives and keeps no second copy."),
        _ => None,
    };
    match why {
        Some(why) => view.without("parallel.strategy", &all, why),
        None => view.used("parallel.strategy", &all, "The same state is split."),
    }
    let reason = "The launcher states the ranks; the degrees are right for these.";
    view.used("parallel.ranks", &[replicate, group.clone()], reason);
    match strategy.starts_with("hsdp") {
        true => view.used("parallel.shard", &[group], "Ranks of a shard group."),
        false => view.without("parallel.shard", &[], "There is no second copy."),
    }
    for (key, theirs) in [
        ("parallel.tensor", "parallelism.tensor_parallel_degree"),
        ("parallel.pipeline", "parallelism.pipeline_parallel_degree"),
        ("parallel.context", "parallelism.context_parallel_degree"),
        ("parallel.expert", "parallelism.expert_parallel_degree"),
        ("parallel.expert_tensor", "parallelism.expert_tensor_parallel_degree"),
    ] {
        view.used(key, &[(theirs, json!(view.degree(key)))], "The same degree.");
    }
    if view.degree("parallel.pipeline") > 1 {
        let is_interleaved = view.degree("parallel.virtual_stages") > 1;
        let name = match (view.text("parallel.pipeline_schedule"), is_interleaved) {
            ("gpipe", _) => Some("GPipe"),
            ("naive" | "zb-h1", _) => None,
            (_, true) => Some("Interleaved1F1B"),
            _ => Some("1F1B"),
        };
        if let Some(name) = name {
            let schedule = [("parallelism.pipeline_parallel_schedule", json!(name))];
            view.used("parallel.pipeline_schedule", &schedule, "The same order.");
            view.used("parallel.virtual_stages", &schedule, "More than one stage on a rank is interleaved.");
        } else {
            let reason = "torchtitan has no such order; it takes its own default, 1F1B.";
            view.without("parallel.pipeline_schedule", &[], reason);
        }
    }
    if view.flag("parallel.tensor_overlap") {
        let overlap = [("parallelism.enable_async_tensor_parallel", json!(true)), ("compile.enable", json!(true))];
        let reason =
            "Collectives of tensor ranks overlap with products; torchtitan refuses that without torch.compile.";
        view.used("parallel.tensor_overlap", &overlap, reason);
    }
    if view.degree("parallel.sequence") > 1 {
        let reason = "torchtitan's tensor parallelism always splits sequences between the matrices.";
        view.default("parallel.sequence", reason);
    }
    match view.count("parallel.prefetch") {
        Some(1) => view.default("parallel.prefetch", "FSDP 2 gathers one unit ahead."),
        _ => view.without("parallel.prefetch", &[], "FSDP 2 gathers one unit ahead."),
    }
    if view.text("parallel.strategy") == "ddp" {
        let theirs = "torchtitan's DDP has buckets of 100 MiB.";
        match view.number("parallel.bucket_mb") {
            Some(100.0) => view.default("parallel.bucket_mb", theirs),
            _ => view.without("parallel.bucket_mb", &[], theirs),
        }
    }
    for key in ["parallel.gather_wire", "parallel.reduce_wire"] {
        view.without(key, &[], "torchtitan compresses no collectives.");
    }
}

/// torchtitan is FSDP 2, with torch.compile or without. Its asynchronous tensor parallelism needs torch.compile.
fn compile(view: &mut View) {
    const KEY: &str = "hardware.software";
    let is_compiled = view.flag("parallel.tensor_overlap");
    let made = ("compile.enable", json!(true));
    match view.text(KEY) {
        "" => {}
        "fsdp2-compiled" => view.used(KEY, &[made], "torch.compile makes the kernels."),
        "fsdp2" if is_compiled => {
            view.without(KEY, &[made], "Asynchronous tensor parallelism needs torch.compile in torchtitan.");
        }
        "fsdp2" => view.default(KEY, "torchtitan is FSDP 2; torch.compile is off unless told."),
        _ => view.without(KEY, &[], "torchtitan is FSDP 2; the cell is priced as another program."),
    }
}

fn activations(view: &mut View) {
    const KEY: &str = "memory.checkpointing";
    let recomputed = view.value("memory.recompute").cloned().unwrap_or(Value::Null);
    let option = recomputed.get("one_in").and_then(Value::as_u64).map(|blocks| blocks.to_string());
    if let Some(option) = option.or_else(|| (recomputed == "op").then(|| "op".to_string())) {
        let mode = view.put("activation_checkpoint.mode", json!("selective"));
        let option = view.put("activation_checkpoint.selective_ac_option", json!(option));
        return view.used("memory.recompute", &[mode, option], "torchtitan's selective recomputation.");
    }
    let policy = view.value(KEY).cloned().unwrap_or(Value::Null);
    let every = policy.get("every").and_then(Value::as_u64);
    let mode = match (policy.as_str(), every) {
        (Some("none"), _) => "none",
        (Some("full"), _) => "full",
        _ => "selective",
    };
    let made = view.put("activation_checkpoint.mode", json!(mode));
    match (mode, policy.as_str()) {
        ("selective", Some("selective")) => {
            let option = view.put("activation_checkpoint.selective_ac_option", json!("op"));
            view.without(KEY, &[made, option], "Both keep matrix products, but not the same ones.");
        }
        ("selective", Some("evict")) => {
            let option = view.put("activation_checkpoint.selective_ac_option", json!("op"));
            view.without(KEY, &[made, option], "torchtitan keeps the same of every block; nothing follows the memory.");
        }
        ("selective", _) => {
            let option = view.put("activation_checkpoint.selective_ac_option", json!(every.unwrap_or(2).to_string()));
            let reason = "torchtitan computes every k-th block again, where this keeps the input of every k-th.";
            view.without(KEY, &[made, option], reason);
        }
        _ => view.used(KEY, &[made], "The same."),
    }
}

fn checkpoint(view: &mut View) {
    let dir = view.text("checkpoint.dir").to_string();
    let enable = view.put("checkpoint.enable", json!(!dir.is_empty()));
    if dir.is_empty() {
        return;
    }
    let folder = view.put("checkpoint.folder", json!(dir));
    view.used("checkpoint.dir", &[enable, folder], "It is below job.dump_folder there.");
    let every = view.count("checkpoint.every").filter(|every| *every > 0);
    let steps = view.steps();
    let made = view.put("checkpoint.interval", json!(every.unwrap_or(steps)));
    view.used("checkpoint.every", &[made], "Steps from one to the next.");
    // One is the fewest that torchtitan keeps beside the one that it writes.
    let keep = view.count("checkpoint.keep").unwrap_or(0);
    let reason = "0 is all, there too; 1 is not allowed.";
    view.used("checkpoint.keep", &[("checkpoint.keep_latest_k", json!(if keep == 1 { 2 } else { keep }))], reason);
    view.used(
        "checkpoint.async",
        &[("checkpoint.async_mode", json!(if view.flag("checkpoint.async") { "async" } else { "disabled" }))],
        "Whether training goes on meanwhile.",
    );
    match view.text("checkpoint.layout") {
        "full" => {
            let reason = "torchtitan's checkpoints are sharded; the last one may be Hugging Face's.";
            view.without("checkpoint.layout", &[("checkpoint.last_save_in_hf", json!(true))], reason);
        }
        _ => view.default("checkpoint.layout", "torchtitan's checkpoints are sharded."),
    }
}
