//! A cell as DeepSpeed's JSON.

use super::paths::put;
use super::view::View;
use serde_json::{Map, Value, json};

/// Settings of a cell on their way into the file.
struct Writer<'v> {
    view: &'v mut View,
    file: Map<String, Value>,
}

impl Writer<'_> {
    /// A setting becomes keys of the file.
    fn used(&mut self, key: &str, becomes: &[(&str, Value)], reason: &str) {
        self.view.used(key, becomes, reason);
        self.put(becomes);
    }

    /// The nearest there is.
    fn nearest(&mut self, key: &str, becomes: &[(&str, Value)], reason: &str) {
        self.view.without(key, becomes, reason);
        self.put(becomes);
    }

    fn put(&mut self, becomes: &[(&str, Value)]) {
        for (path, value) in becomes {
            put(&mut self.file, path, value.clone());
        }
    }
}

/// The text of the file.
pub fn write(view: &mut View) -> String {
    let mut writer = Writer { view, file: Map::new() };
    batch(&mut writer);
    strategy(&mut writer);
    wires(&mut writer);
    offload(&mut writer);
    degrees(&mut writer);
    precision(&mut writer);
    optimizer(&mut writer);
    schedule(&mut writer);
    activations(&mut writer);
    text(&writer.file)
}

/// The keys as a file.
pub(super) fn text(file: &Map<String, Value>) -> String {
    serde_json::to_string_pretty(file).unwrap_or_default() + "\n"
}

fn batch(writer: &mut Writer<'_>) {
    let micro = writer.view.degree("train.micro_batch");
    let steps = writer.view.degree("train.accumulation");
    let ranks = writer.view.data_ranks();
    let all = micro.saturating_mul(steps).saturating_mul(ranks);
    writer.put(&[("train_batch_size", json!(all))]);
    writer.used(
        "train.micro_batch",
        &[("train_micro_batch_size_per_gpu", json!(micro))],
        "Sequences of a rank at a time.",
    );
    writer.used("train.accumulation", &[("gradient_accumulation_steps", json!(steps))], "Micro-batches of a step.");
    writer.view.used(
        "parallel.ranks",
        &[("train_batch_size", json!(all))],
        "The launcher states the ranks; train_batch_size is right for these.",
    );
    if let Some(norm) = writer.view.number("train.clip_norm") {
        writer.used(
            "train.clip_norm",
            &[("gradient_clipping", json!(norm))],
            "The largest global norm; 0 is no clipping there, too.",
        );
    }
    if let Some(seed) = writer.view.count("train.seed").filter(|seed| *seed != 0) {
        writer.used("train.seed", &[("seed", json!(seed))], "Seed of initialisation and data.");
    }
}

fn strategy(writer: &mut Writer<'_>) {
    const STAGE: &str = "zero_optimization.stage";
    let strategy = writer.view.text("parallel.strategy").to_string();
    let shard = writer.view.degree("parallel.shard");
    let key = "parallel.strategy";
    match strategy.as_str() {
        "ddp" => writer.used(key, &[(STAGE, json!(0))], "Stage 0 splits nothing."),
        "zero1" => writer.used(key, &[(STAGE, json!(1))], "The same."),
        "zero2" => writer.used(key, &[(STAGE, json!(2))], "The same."),
        "zero3" | "fsdp" => writer.used(key, &[(STAGE, json!(3))], "The same."),
        "zero++" => {
            writer.used(key, &[(STAGE, json!(3))], "Stage 3, with the keys of ZeRO++.");
            let becomes = [("zero_optimization.zero_hpz_partition_size", json!(shard))];
            writer.used("parallel.shard", &becomes, "Ranks that share the second copy.");
        }
        "hsdp" => {
            writer.used(key, &[(STAGE, json!(3))], "Stage 3 with MiCS is hybrid sharding.");
            writer.used(
                "parallel.shard",
                &[("zero_optimization.mics_shard_size", json!(shard))],
                "MiCS's shard group (DeepSpeed before 0.19.8).",
            );
        }
        "hsdp-full-optimizer" => {
            writer.nearest(key, &[(STAGE, json!(3))], "MiCS is the nearest: it splits the optimizer's state over the shard group alone, so it takes more memory.");
            writer.used(
                "parallel.shard",
                &[("zero_optimization.mics_shard_size", json!(shard))],
                "MiCS's shard group (DeepSpeed before 0.19.8).",
            );
        }
        _ => writer.nearest(
            key,
            &[(STAGE, json!(2))],
            "Stage 2 is the nearest: as much traffic, but whole weights stay in memory.",
        ),
    }
    let ahead = "stage3_prefetch_bucket_size counts elements, and this units; DeepSpeed's default stands.";
    if matches!(strategy.as_str(), "zero3" | "fsdp" | "zero++" | "hsdp" | "hsdp-full-optimizer" | "fsdp-grad-op") {
        writer.view.without("parallel.prefetch", &[], ahead);
    } else {
        writer.view.default("parallel.prefetch", "Nothing is gathered ahead where weights are whole.");
    }
}

fn wires(writer: &mut Writer<'_>) {
    for (key, wire, theirs) in [
        ("parallel.gather_wire", "int8", "zero_optimization.zero_quantized_weights"),
        ("parallel.reduce_wire", "int4", "zero_optimization.zero_quantized_gradients"),
    ] {
        let given = writer.view.text(key).to_string();
        match given.as_str() {
            "" => {}
            given if given == wire => writer.used(key, &[(theirs, json!(true))], "The same blocks of few bits."),
            _ => writer.nearest(key, &[], &format!("DeepSpeed has {wire} here and nothing else.")),
        }
    }
}

fn offload(writer: &mut Writer<'_>) {
    let path = writer.view.text("memory.offload_path").to_string();
    let mut has_disk = false;
    for (key, section) in
        [("memory.offload_optimizer", "offload_optimizer"), ("memory.offload_parameters", "offload_param")]
    {
        let at = |name: &str| format!("zero_optimization.{section}.{name}");
        match writer.view.text(key) {
            "host" => writer.used(key, &[(&at("device"), json!("cpu"))], "The host's memory."),
            "disk" => {
                has_disk = true;
                let folder = if path.is_empty() { "/local_nvme" } else { path.as_str() };
                writer.used(key, &[(&at("device"), json!("nvme")), (&at("nvme_path"), json!(folder))], "A disk.");
            }
            _ => {}
        }
    }
    if has_disk && path.is_empty() {
        writer
            .view
            .notes
            .push("memory.offload_path is not stated; nvme_path is /local_nvme, which is to be changed".into());
    }
    if !path.is_empty() {
        writer.view.used("memory.offload_path", &[("nvme_path", json!(path))], "The folder of what is on the disk.");
    }
}

fn degrees(writer: &mut Writer<'_>) {
    let tensor = writer.view.degree("parallel.tensor");
    if tensor > 1 {
        writer.used("parallel.tensor", &[("tensor_parallel.autotp_size", json!(tensor))], "AutoTP.");
    }
    let expert = writer.view.degree("parallel.expert");
    if expert > 1 {
        let becomes = [("expert_parallel.enabled", json!(true)), ("expert_parallel.autoep_size", json!(expert))];
        writer.used("parallel.expert", &becomes, "AutoEP.");
    }
    let within = writer.view.degree("parallel.expert_tensor");
    if within > 1 {
        writer.used(
            "parallel.expert_tensor",
            &[("expert_parallel.expert_tensor_parallel_size", json!(within))],
            "AutoEP.",
        );
    }
    let sequence = writer.view.degree("parallel.context");
    if sequence > 1 {
        let reason = "The nearest: its ranks exchange heads, and do not pass keys and values on.";
        writer.nearest("parallel.context", &[("sequence_parallel_size", json!(sequence))], reason);
    }
    for key in ["parallel.pipeline", "parallel.virtual_stages", "parallel.sequence"] {
        if writer.view.degree(key) > 1 {
            writer.nearest(
                key,
                &[],
                "The training script makes stages and splits sequences (PipelineModule, Ulysses).",
            );
        }
    }
}

fn precision(writer: &mut Writer<'_>) {
    let of = |writer: &Writer<'_>, name: &str| writer.view.text(&format!("precision.{name}")).to_string();
    let [parameters, compute, gradients, reduce, master, optimizer] =
        ["parameters", "compute", "gradients", "reduce", "master", "optimizer"].map(|name| of(writer, name));
    // DeepSpeed casts the module, or leaves it to autocast.
    let base = match (parameters.as_str(), compute.as_str()) {
        ("f16", "f16") | ("bf16", "bf16") => {
            let section = if compute == "f16" { "fp16" } else { "bf16" };
            let becomes = [(&*format!("{section}.enabled"), json!(true))];
            writer.used("precision.compute", &becomes, "The module is cast.");
            writer.view.used("precision.parameters", &becomes, "The module is cast.");
            compute.clone()
        }
        ("f32", "f32") => {
            writer.view.default("precision.compute", "f32 unless told otherwise.");
            writer.view.default("precision.parameters", "f32 unless told otherwise.");
            "f32".into()
        }
        ("f32", lower) => {
            let dtype = if lower == "f16" { "float16" } else { "bfloat16" };
            let becomes = [("torch_autocast.enabled", json!(true)), ("torch_autocast.dtype", json!(dtype))];
            writer.used("precision.compute", &becomes, "f32 weights computed with in a lower type are autocast.");
            writer.view.default("precision.parameters", "Under autocast weights stay f32.");
            "f32".into()
        }
        _ => {
            writer.nearest(
                "precision.compute",
                &[],
                "DeepSpeed computes in the type of the weights, or lower by autocast.",
            );
            writer.nearest(
                "precision.parameters",
                &[],
                "DeepSpeed computes in the type of the weights, or lower by autocast.",
            );
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
            true => writer.view.default(key, "It is that of the weights, or of autocast, anyway."),
            false => writer.used(key, &[(theirs, json!(name(dtype)))], "Stated, since it is not that of the weights."),
        }
    }
    masters(writer, &base, &master, &optimizer);
    scaling(writer, &compute);
    if !writer.view.text("precision.load").is_empty() {
        match writer.view.text("precision.load") == base {
            true => writer.view.default("precision.load", "The module is cast before the master copy is made."),
            false => writer.view.without("precision.load", &[], "The training script loads the weights."),
        }
    }
}

fn masters(writer: &mut Writer<'_>, base: &str, master: &str, optimizer: &str) {
    let section = if base == "f16" { "fp16" } else { "bf16" };
    let is_staged = writer.view.text("parallel.strategy") != "ddp";
    let is_offloaded = matches!(writer.view.text("memory.offload_optimizer"), "host" | "disk");
    // DeepSpeed has no copy in few bits but these (deepspeed/runtime/base_optimizer.py, _configure_master_weights).
    let has_low = is_staged && (is_offloaded || (base, optimizer) == ("bf16", "bf16"));
    match (base, master) {
        ("f32", _) => writer.view.default("precision.master", "f32 weights are their own master."),
        (_, "f32") => writer.view.default("precision.master", "f32 unless told otherwise."),
        _ if !has_low => {
            let reason = "DeepSpeed keeps an f32 copy unless ZeRO's optimizer is offloaded, or bf16 throughout.";
            writer.nearest("precision.master", &[], reason);
        }
        (base, master) if base == master => {
            let key = format!("{section}.{section}_master_weights_and_grads");
            writer.used("precision.master", &[(&key, json!(true))], "The copy has the type of the weights.");
        }
        _ => {
            let key = format!("{section}.{section}_master_weights_and_grads");
            writer.nearest(
                "precision.master",
                &[(&key, json!(true))],
                "DeepSpeed always keeps a copy; one in few bits is the nearest.",
            );
        }
    }
    match (base, optimizer) {
        (_, "f32" | "") => writer.view.default("precision.optimizer", "f32 unless told otherwise."),
        ("bf16", "bf16") if has_low && master != "f32" => {
            writer.used(
                "precision.optimizer",
                &[("bf16.bf16_optimizer_states", json!(true))],
                "Both moments are bf16.",
            );
        }
        _ => writer.nearest("precision.optimizer", &[], "DeepSpeed's moments are f32 here."),
    }
    if writer.view.text("precision.rounding") == "stochastic" {
        writer.nearest("precision.rounding", &[], "DeepSpeed rounds to the nearest.");
    }
}

/// A scale for f16, whose names are the same.
fn scaling(writer: &mut Writer<'_>, compute: &str) {
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
        let Some(value) = writer.view.value(&key).cloned() else { continue };
        // DeepSpeed wants whole numbers where it has them.
        let value = match value.as_f64() {
            Some(number) if number.fract() == 0.0 && number.abs() < 9e15 => json!(number as i64),
            _ => value,
        };
        writer.used(&key, &[(&format!("fp16.{name}"), value)], "The same name and rule.");
    }
}

fn optimizer(writer: &mut Writer<'_>) {
    writer.used("train.optimizer", &[("optimizer.type", json!("AdamW"))], "The same update.");
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
        if let Some(value) = writer.view.value(key).cloned() {
            writer.used(key, &[(&format!("optimizer.params.{name}"), value)], reason);
        }
    }
}

fn schedule(writer: &mut Writer<'_>) {
    let at = |name: &str| format!("scheduler.params.{name}");
    let course = writer.view.text("train.lr_schedule").to_string();
    let (lr, least) =
        (writer.view.number("train.lr").unwrap_or(0.0), writer.view.number("train.lr_min").unwrap_or(0.0));
    let warmup = writer.view.count("train.lr_warmup_steps").unwrap_or(0);
    let total = writer.view.count("train.steps").unwrap_or(0) + writer.view.count("train.untimed_steps").unwrap_or(0);
    let name = match course.as_str() {
        "linear" => "WarmupDecayLR",
        "cosine" => "WarmupCosineLR",
        _ if warmup == 0 => return writer.view.default("train.lr_schedule", "Without a scheduler the rate stays."),
        _ => "WarmupLR",
    };
    writer.used("train.lr_schedule", &[("scheduler.type", json!(name))], "The same course.");
    if warmup > 0 {
        let becomes = [(&*at("warmup_num_steps"), json!(warmup)), (&*at("warmup_type"), json!("linear"))];
        writer.used("train.lr_warmup_steps", &becomes, "DeepSpeed counts steps from 0, zbench from 1.");
    } else {
        let becomes = [(&*at("warmup_num_steps"), json!(1)), (&*at("warmup_type"), json!("linear"))];
        writer.nearest(
            "train.lr_warmup_steps",
            &becomes,
            "DeepSpeed's schedulers have a warm-up; the shortest is the nearest.",
        );
    }
    if name != "WarmupLR" {
        writer.used(
            "train.steps",
            &[(&at("total_num_steps"), json!(total))],
            "The course ends with the last step, untimed ones counted.",
        );
        writer.view.used(
            "train.untimed_steps",
            &[(&at("total_num_steps"), json!(total))],
            "They are steps of the course.",
        );
    }
    if name == "WarmupCosineLR" {
        // The share that gives the rate back, so far as numbers do.
        let ratio = if lr > 0.0 { least / lr } else { 0.0 };
        let becomes = [(&*at("warmup_min_ratio"), json!(0.0)), (&*at("cos_min_ratio"), json!(ratio))];
        writer.used("train.lr_min", &becomes, "DeepSpeed states it as a share of the rate.");
        return;
    }
    writer.put(&[(&at("warmup_min_lr"), json!(0.0)), (&at("warmup_max_lr"), json!(lr))]);
    if least > 0.0 {
        writer.nearest("train.lr_min", &[], "WarmupDecayLR falls to 0.");
    }
}

fn activations(writer: &mut Writer<'_>) {
    let at = |name: &str| format!("activation_checkpointing.{name}");
    if writer.view.text("memory.offload_activations") == "host" {
        writer.used(
            "memory.offload_activations",
            &[(&at("cpu_checkpointing"), json!(true))],
            "The kept inputs wait in the host's memory.",
        );
    } else if writer.view.text("memory.offload_activations") == "disk" {
        writer.nearest(
            "memory.offload_activations",
            &[(&at("cpu_checkpointing"), json!(true))],
            "DeepSpeed has the host's memory for them, no disk.",
        );
    }
    if writer.view.flag("memory.partition_activations") {
        writer.used(
            "memory.partition_activations",
            &[(&at("partition_activations"), json!(true))],
            "The kept inputs are split over tensor ranks.",
        );
    }
    match writer.view.value("memory.checkpointing").and_then(Value::as_str) {
        Some("none") => writer
            .view
            .default("memory.checkpointing", "Nothing is computed again unless the model's code asks for it."),
        Some("full") => {
            let reason = "The section says how; the model's code says that (gradient_checkpointing_enable, or deepspeed.checkpointing).";
            let is_split = writer.view.flag("memory.partition_activations");
            let section = (&*at("partition_activations"), json!(is_split));
            // What is split is kept as inputs of blocks, so that the file tells it; else nothing in it does.
            if is_split {
                writer.used("memory.checkpointing", &[section], reason);
            } else {
                writer.nearest("memory.checkpointing", &[section], reason);
            }
        }
        _ => writer.view.without("memory.checkpointing", &[], "The model's code says what is computed again."),
    }
}
