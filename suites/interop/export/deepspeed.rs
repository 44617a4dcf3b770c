//! A cell as DeepSpeed's JSON.

use super::view::View;
use crate::interop::Verdict;
use serde_json::{Map, Value, json};

/// The text of the file.
pub fn write(view: &mut View) -> String {
    batch(view);
    strategy(view);
    wires(view);
    offload(view);
    degrees(view);
    precision(view);
    optimizer(view);
    schedule(view);
    activations(view);
    text(&view.file)
}

/// The keys as a file.
pub(super) fn text(file: &Map<String, Value>) -> String {
    serde_json::to_string_pretty(file).unwrap_or_default() + "\n"
}

fn batch(view: &mut View) {
    let micro = view.degree("train.micro_batch");
    let steps = view.degree("train.accumulation");
    let ranks = view.data_ranks();
    let all = micro.saturating_mul(steps).saturating_mul(ranks);
    view.put("train_batch_size", json!(all));
    let reason = "Sequences of a rank at a time.";
    view.used("train.micro_batch", &[("train_micro_batch_size_per_gpu", json!(micro))], reason);
    view.used("train.accumulation", &[("gradient_accumulation_steps", json!(steps))], "Micro-batches of a step.");
    let reason = "The launcher states the ranks; train_batch_size is right for these.";
    view.used("parallel.ranks", &[("train_batch_size", json!(all))], reason);
    if let Some(norm) = view.number("train.clip_norm") {
        let reason = "The largest global norm; 0 is no clipping there, too.";
        view.used("train.clip_norm", &[("gradient_clipping", json!(norm))], reason);
    }
    if let Some(seed) = view.count("train.seed").filter(|seed| *seed != 0) {
        view.used("train.seed", &[("seed", json!(seed))], "Seed of initialisation and data.");
    }
}

fn strategy(view: &mut View) {
    const STAGE: &str = "zero_optimization.stage";
    let strategy = view.text("parallel.strategy").to_string();
    let shard = view.degree("parallel.shard");
    // A group also has the ranks that share each of its sequences.
    let group = shard.saturating_mul(view.degree("parallel.context"));
    let key = "parallel.strategy";
    match strategy.as_str() {
        "ddp" => view.used(key, &[(STAGE, json!(0))], "Stage 0 splits nothing."),
        "zero1" => view.used(key, &[(STAGE, json!(1))], "The same."),
        "zero2" => view.used(key, &[(STAGE, json!(2))], "The same."),
        "zero3" | "fsdp" => view.used(key, &[(STAGE, json!(3))], "The same."),
        "zero++" => {
            view.used(key, &[(STAGE, json!(3))], "Stage 3, with the keys of ZeRO++.");
            let becomes = [("zero_optimization.zero_hpz_partition_size", json!(shard))];
            view.used("parallel.shard", &becomes, "Ranks that share the second copy.");
        }
        "hsdp" => {
            view.used(key, &[(STAGE, json!(3))], "Stage 3 with MiCS is hybrid sharding.");
            let reason = "MiCS's shard group (DeepSpeed before 0.19.8).";
            view.used("parallel.shard", &[("zero_optimization.mics_shard_size", json!(group))], reason);
        }
        "hsdp-full-optimizer" => {
            view.without(key, &[(STAGE, json!(3))], "MiCS is the nearest: it splits the optimizer's state over the shard group alone, so it takes more memory.");
            let reason = "MiCS's shard group (DeepSpeed before 0.19.8).";
            view.used("parallel.shard", &[("zero_optimization.mics_shard_size", json!(group))], reason);
        }
        _ => view.without(
            key,
            &[(STAGE, json!(2))],
            "Stage 2 is the nearest: as much traffic, but whole weights stay in memory.",
        ),
    }
    let ahead = "stage3_prefetch_bucket_size counts elements, and this units; DeepSpeed's default stands.";
    if matches!(strategy.as_str(), "zero3" | "fsdp" | "zero++" | "hsdp" | "hsdp-full-optimizer" | "fsdp-grad-op") {
        view.without("parallel.prefetch", &[], ahead);
    } else {
        view.default("parallel.prefetch", "Nothing is gathered ahead where weights are whole.");
    }
}

fn wires(view: &mut View) {
    for (key, wire, theirs) in [
        ("parallel.gather_wire", "int8", "zero_optimization.zero_quantized_weights"),
        ("parallel.reduce_wire", "int4", "zero_optimization.zero_quantized_gradients"),
    ] {
        let given = view.text(key).to_string();
        match given.as_str() {
            "" => {}
            given if given == wire => view.used(key, &[(theirs, json!(true))], "The same blocks of few bits."),
            _ => view.without(key, &[], &format!("DeepSpeed has {wire} here and nothing else.")),
        }
    }
}

fn offload(view: &mut View) {
    let path = view.text("memory.offload_path").to_string();
    let mut has_disk = false;
    for (key, section) in
        [("memory.offload_optimizer", "offload_optimizer"), ("memory.offload_parameters", "offload_param")]
    {
        let at = |name: &str| format!("zero_optimization.{section}.{name}");
        match view.text(key) {
            "host" => view.used(key, &[(&at("device"), json!("cpu"))], "The host's memory."),
            "disk" => {
                has_disk = true;
                let folder = if path.is_empty() { "/local_nvme" } else { path.as_str() };
                view.used(key, &[(&at("device"), json!("nvme")), (&at("nvme_path"), json!(folder))], "A disk.");
            }
            _ => {}
        }
    }
    if has_disk && path.is_empty() {
        view.notes.push("memory.offload_path is not stated; nvme_path is /local_nvme, which is to be changed".into());
    }
    if !path.is_empty() {
        let becomes = [("nvme_path", json!(path))];
        view.settle("memory.offload_path", Verdict::Used, &becomes, "The folder of what is on the disk.");
    }
}

fn degrees(view: &mut View) {
    let tensor = view.degree("parallel.tensor");
    if tensor > 1 {
        view.used("parallel.tensor", &[("tensor_parallel.autotp_size", json!(tensor))], "AutoTP.");
    }
    let expert = view.degree("parallel.expert");
    if expert > 1 {
        let becomes = [("expert_parallel.enabled", json!(true)), ("expert_parallel.autoep_size", json!(expert))];
        view.used("parallel.expert", &becomes, "AutoEP.");
    }
    let within = view.degree("parallel.expert_tensor");
    if within > 1 {
        let reason = "AutoEP.";
        view.used("parallel.expert_tensor", &[("expert_parallel.expert_tensor_parallel_size", json!(within))], reason);
    }
    let sequence = view.degree("parallel.context");
    if sequence > 1 {
        let reason = "The nearest: its ranks exchange heads, and do not pass keys and values on.";
        view.without("parallel.context", &[("sequence_parallel_size", json!(sequence))], reason);
    }
    for key in ["parallel.pipeline", "parallel.virtual_stages", "parallel.sequence"] {
        if view.degree(key) > 1 {
            view.without(key, &[], "The training script makes stages and splits sequences (PipelineModule, Ulysses).");
        }
    }
}

fn precision(view: &mut View) {
    let of = |view: &View, name: &str| view.text(&format!("precision.{name}")).to_string();
    let [parameters, compute, gradients, reduce, master, optimizer] =
        ["parameters", "compute", "gradients", "reduce", "master", "optimizer"].map(|name| of(view, name));
    // DeepSpeed casts the module, or leaves it to autocast.
    let base = match (parameters.as_str(), compute.as_str()) {
        ("f16", "f16") | ("bf16", "bf16") => {
            let section = if compute == "f16" { "fp16" } else { "bf16" };
            let becomes = [(&*format!("{section}.enabled"), json!(true))];
            view.used("precision.compute", &becomes, "The module is cast.");
            view.used("precision.parameters", &becomes, "The module is cast.");
            compute.clone()
        }
        ("f32", "f32") => {
            view.default("precision.compute", "f32 unless told otherwise.");
            view.default("precision.parameters", "f32 unless told otherwise.");
            "f32".into()
        }
        ("f32", lower) => {
            let dtype = if lower == "f16" { "float16" } else { "bfloat16" };
            let becomes = [("torch_autocast.enabled", json!(true)), ("torch_autocast.dtype", json!(dtype))];
            view.used("precision.compute", &becomes, "f32 weights computed with in a lower type are autocast.");
            view.default("precision.parameters", "Under autocast weights stay f32.");
            "f32".into()
        }
        _ => {
            let reason = "DeepSpeed computes in the type of the weights, or lower by autocast.";
            view.without("precision.compute", &[], reason);
            let reason = "DeepSpeed computes in the type of the weights, or lower by autocast.";
            view.without("precision.parameters", &[], reason);
            "f32".into()
        }
    };
    let name = |dtype: &str| match dtype {
        "f16" => "fp16",
        "bf16" => "bf16",
        _ => "fp32",
    };
    let travels = if base == "f32" && compute != "f32" { compute.clone() } else { base.clone() };
    for (key, dtype, usual, theirs) in [
        ("precision.gradients", &gradients, &base, "data_types.grad_accum_dtype"),
        ("precision.reduce", &reduce, &travels, "communication_data_type"),
    ] {
        match dtype == usual {
            _ if dtype.is_empty() => {}
            true => view.default(key, "It is that of the weights, or of autocast, anyway."),
            false => view.used(key, &[(theirs, json!(name(dtype)))], "Stated, since it is not that of the weights."),
        }
    }
    masters(view, &base, &master, &optimizer);
    scaling(view, &compute);
    if !view.text("precision.load").is_empty() {
        match view.text("precision.load") == base {
            true => view.default("precision.load", "The module is cast before the master copy is made."),
            false => view.without("precision.load", &[], "The training script loads the weights."),
        }
    }
}

fn masters(view: &mut View, base: &str, master: &str, optimizer: &str) {
    let section = if base == "f16" { "fp16" } else { "bf16" };
    let is_staged = view.text("parallel.strategy") != "ddp";
    let is_offloaded = matches!(view.text("memory.offload_optimizer"), "host" | "disk");
    // DeepSpeed has no copy in few bits but these (deepspeed/runtime/base_optimizer.py, _configure_master_weights).
    let has_low = is_staged && (is_offloaded || (base, optimizer) == ("bf16", "bf16"));
    match (base, master) {
        ("f32", _) => view.default("precision.master", "f32 weights are their own master."),
        (_, "f32") => view.default("precision.master", "f32 unless told otherwise."),
        _ if !has_low => {
            let reason = "DeepSpeed keeps an f32 copy unless ZeRO's optimizer is offloaded, or bf16 throughout.";
            view.without("precision.master", &[], reason);
        }
        (base, master) if base == master => {
            let key = format!("{section}.{section}_master_weights_and_grads");
            view.used("precision.master", &[(&key, json!(true))], "The copy has the type of the weights.");
        }
        _ => {
            let key = format!("{section}.{section}_master_weights_and_grads");
            let reason = "DeepSpeed always keeps a copy; one in few bits is the nearest.";
            view.without("precision.master", &[(&key, json!(true))], reason);
        }
    }
    match (base, optimizer) {
        (_, "f32" | "") => view.default("precision.optimizer", "f32 unless told otherwise."),
        ("bf16", "bf16") if has_low && master != "f32" => {
            view.used("precision.optimizer", &[("bf16.bf16_optimizer_states", json!(true))], "Both moments are bf16.");
        }
        _ => view.without("precision.optimizer", &[], "DeepSpeed's moments are f32 here."),
    }
    if view.text("precision.rounding") == "stochastic" {
        view.without("precision.rounding", &[], "DeepSpeed rounds to the nearest.");
    }
}

/// A scale for f16, whose names are the same.
fn scaling(view: &mut View, compute: &str) {
    if compute != "f16" {
        return;
    }
    for name in [
        "loss_scale",
        "initial_scale_power",
        "loss_scale_window",
        "hysteresis",
        "consecutive_hysteresis",
        "min_loss_scale",
    ] {
        let key = format!("precision.{name}");
        let Some(value) = view.value(&key).cloned() else { continue };
        // DeepSpeed wants whole numbers where it has them.
        let value = match value.as_f64() {
            Some(number) if number.fract() == 0.0 && number.abs() < 9e15 => json!(number as i64),
            _ => value,
        };
        view.used(&key, &[(&format!("fp16.{name}"), value)], "The same name and rule.");
    }
}

fn optimizer(view: &mut View) {
    view.used("train.optimizer", &[("optimizer.type", json!("AdamW"))], "The same update.");
    for (key, name, reason) in [
        ("train.lr", "lr", "The same."),
        ("train.betas", "betas", "The same."),
        ("train.eps", "eps", "The same."),
        (
            "train.weight_decay",
            "weight_decay",
            "The same rate; zbench decays tensors of two or more dimensions, DeepSpeed all of the group.",
        ),
    ] {
        if let Some(value) = view.value(key).cloned() {
            view.used(key, &[(&format!("optimizer.params.{name}"), value)], reason);
        }
    }
}

fn schedule(view: &mut View) {
    let at = |name: &str| format!("scheduler.params.{name}");
    let course = view.text("train.lr_schedule").to_string();
    let (lr, least) = (view.number("train.lr").unwrap_or(0.0), view.number("train.lr_min").unwrap_or(0.0));
    let warmup = view.count("train.lr_warmup_steps").unwrap_or(0);
    let total = view.steps();
    let name = match course.as_str() {
        "linear" => "WarmupDecayLR",
        "cosine" => "WarmupCosineLR",
        _ if warmup == 0 => return view.default("train.lr_schedule", "Without a scheduler the rate stays."),
        _ => "WarmupLR",
    };
    view.used("train.lr_schedule", &[("scheduler.type", json!(name))], "The same course.");
    let steps = view.text("train.lr_steps").to_string();
    let becomes = [(&*at("warmup_num_steps"), json!(warmup.max(1))), (&*at("warmup_type"), json!("linear"))];
    if warmup > 1 || (warmup == 1 && steps == "deepspeed") {
        view.used("train.lr_warmup_steps", &becomes, "The same number of steps.");
    } else {
        view.without("train.lr_warmup_steps", &becomes, "DeepSpeed's shortest warm-up has two steps.");
    }
    match steps.as_str() {
        "deepspeed" => view.default("train.lr_steps", "DeepSpeed's schedulers have these steps."),
        "transformers" => view.without("train.lr_steps", &[], "DeepSpeed's warm-up comes one update later."),
        _ => view.without("train.lr_steps", &[], "DeepSpeed's warm-up comes two updates later."),
    }
    if name != "WarmupLR" {
        let reason = "The course ends with the last step, untimed ones counted.";
        view.used("train.steps", &[(&at("total_num_steps"), json!(total))], reason);
        view.used("train.untimed_steps", &[(&at("total_num_steps"), json!(total))], "They are steps of the course.");
    }
    if name == "WarmupCosineLR" {
        // The share that gives the rate back, so far as numbers do.
        let ratio = if lr > 0.0 { least / lr } else { 0.0 };
        let becomes = [(&*at("warmup_min_ratio"), json!(0.0)), (&*at("cos_min_ratio"), json!(ratio))];
        view.used("train.lr_min", &becomes, "DeepSpeed states it as a share of the rate.");
        return;
    }
    view.put(&at("warmup_min_lr"), json!(0.0));
    view.put(&at("warmup_max_lr"), json!(lr));
    if least > 0.0 {
        view.without("train.lr_min", &[], "WarmupDecayLR falls to 0.");
    }
}

fn activations(view: &mut View) {
    let at = |name: &str| format!("activation_checkpointing.{name}");
    if view.text("memory.offload_activations") == "host" {
        let reason = "The kept inputs wait in the host's memory.";
        view.used("memory.offload_activations", &[(&at("cpu_checkpointing"), json!(true))], reason);
    } else if view.text("memory.offload_activations") == "disk" {
        let reason = "DeepSpeed has the host's memory for them, no disk.";
        view.without("memory.offload_activations", &[(&at("cpu_checkpointing"), json!(true))], reason);
    }
    if view.flag("memory.partition_activations") {
        let reason = "The kept inputs are split over tensor ranks.";
        view.used("memory.partition_activations", &[(&at("partition_activations"), json!(true))], reason);
    }
    match view.value("memory.checkpointing").and_then(Value::as_str) {
        Some("none") => {
            view.default("memory.checkpointing", "Nothing is computed again unless the model's code asks for it.")
        }
        Some("full") => {
            let reason = "The section says how; the model's code says that (gradient_checkpointing_enable, or deepspeed.checkpointing).";
            let is_split = view.flag("memory.partition_activations");
            let section = (&*at("partition_activations"), json!(is_split));
            // What is split is kept as inputs of blocks, so that the file tells it; else nothing in it does.
            if is_split {
                view.used("memory.checkpointing", &[section], reason);
            } else {
                view.without("memory.checkpointing", &[section], reason);
            }
        }
        _ => view.without("memory.checkpointing", &[], "The model's code says what is computed again."),
    }
}
