//! torchtitan's TOML, as its release 0.2.2 reads it and, where a key had another name, releases before it. Later ones are
//! configured in Python.

use super::Format;
use super::draft::{Draft, Options, whole};
use super::node::{Key, Node, Value};
use std::ops::Range;
use toml::Value as Toml;
use toml::de::{DeTable, DeValue};
use zbench_config::places::Places;
use zbench_config::{ConfigError, Place};
use zbench_engine::formats::hf;

/// The tables and keys of a TOML; `None` where it is none.
pub fn tree(text: &str) -> Option<Node> {
    let (table, places) = (DeTable::parse(text).ok()?, Places::of(text));
    let at = |span: Range<usize>| places.at(span.start);
    Some(Node { value: of_table(table.get_ref(), &at), place: Place { line: 1, column: 1 } })
}

fn of_table(table: &DeTable<'_>, at: &dyn Fn(Range<usize>) -> Place) -> Value {
    let entry = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
        let key: &toml::Spanned<std::borrow::Cow<'_, str>> = key;
        let node = Node { value: of_value(value.get_ref(), at), place: at(value.span()) };
        (Key { name: key.get_ref().to_string(), place: at(key.span()) }, node)
    };
    Value::Table(table.iter().map(entry).collect())
}

fn of_value(value: &DeValue<'_>, at: &dyn Fn(Range<usize>) -> Place) -> Value {
    match value {
        DeValue::Boolean(flag) => Value::Bool(*flag),
        DeValue::Array(list) => {
            let item = |item: &toml::Spanned<DeValue<'_>>| Node {
                value: of_value(item.get_ref(), at),
                place: at(item.span()),
            };
            Value::List(list.iter().map(item).collect())
        }
        DeValue::Table(table) => of_table(table, at),
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(whole) => match i64::from_str_radix(whole.as_str(), whole.radix()) {
            Ok(whole) => Value::Int(whole),
            Err(_) => Value::Text(whole.as_str().into()),
        },
        DeValue::Float(number) => match number.as_str().parse::<f64>() {
            Ok(number) if number.is_finite() => Value::Float(number),
            _ => Value::Text(number.as_str().into()),
        },
        DeValue::Datetime(date) => Value::Text(date.to_string()),
    }
}

/// Names that releases before 0.2.2 had, which it refuses.
const FORMER: [&str; 13] = [
    "model.use_flex_attn",
    "optimizer.fused",
    "lr_scheduler.lr_min",
    "training.batch_size",
    "training.compile",
    "training.seed",
    "training.deterministic",
    "parallelism.pipeline_parallel_split_points",
    "parallelism.enable_compiled_autograd",
    "checkpoint.enable_checkpoint",
    "checkpoint.model_weights_only",
    "float8",
    "mx",
];

/// Every key of a file, and the settings that come of them.
///
/// # Errors
/// Keys that are unknown, of a wrong type, or that contradict each other.
pub fn import(source: &str, root: &Node, options: &Options) -> Result<Draft, ConfigError> {
    let mut draft = Draft::new(Format::Torchtitan, source);
    draft.walk(root, "");
    if draft.is_sound() {
        map(&mut draft, options);
    }
    draft.finish(options)
}

fn map(draft: &mut Draft, options: &Options) {
    let former: Vec<&str> = FORMER.into_iter().filter(|key| draft.has(key) || draft.has_below(key)).collect();
    draft.notes.push(match former.is_empty() {
        true => "torchtitan 0.2.2 reads such a file; 0.3.0 is configured in Python".into(),
        false => format!(
            "releases of torchtitan before 0.2.2 read this file: 0.2.2 refuses {}, and 0.3.0 is configured in Python",
            former.join(", ")
        ),
    });
    model(draft, options);
    let Some(mesh) = mesh(draft, options) else { return };
    batch(draft, &mesh);
    precision(draft, &mesh);
    recompute(draft);
    training(draft, options);
    saving(draft);
    draft.derived("hardware.software", word("fsdp2"), "what torchtitan is priced as");
    for path in ["compile.enable", "training.compile"] {
        match draft.flag(path) {
            Some(true) => {
                used(draft, path, &[("hardware.software", word("fsdp2-compiled"))], "torch.compile makes the kernels.")
            }
            _ => draft.default(path, "It is off."),
        }
    }
}

/// A key becomes settings, where the file has it.
fn used(draft: &mut Draft, path: &str, settings: &[(&str, Toml)], reason: &str) {
    if draft.has(path) {
        draft.used(path, settings, reason);
    }
}

fn word(text: &str) -> Toml {
    Toml::String(text.into())
}

/// A flavor is a preset here, where there is one of its sizes.
fn model(draft: &mut Draft, options: &Options) {
    if !draft.has("model.name") && !draft.has("model.flavor") {
        return;
    }
    let [name, flavor] = ["model.name", "model.flavor"].map(|path| draft.text(path).unwrap_or_default().to_string());
    let family = if name == "llama3" { "llama3.1" } else { name.as_str() };
    let preset = format!("{family}-{}", flavor.to_lowercase());
    if hf::preset(&preset).is_ok() {
        let settings = [("model.preset", word(&preset))];
        used(draft, "model.name", &settings, "The preset of this flavor.");
        return used(draft, "model.flavor", &settings, "The preset of this flavor.");
    }
    for path in ["model.name", "model.flavor"] {
        draft.without(path, "No preset is this flavor; --model states the sizes.");
    }
    if options.model.is_none() && !options.set.iter().any(|set| set.trim_start().starts_with("model.")) {
        draft
            .notes
            .push(format!("there is no preset of {name:?} {flavor:?}: --model states a preset or a config.json"));
    }
}

/// How ranks share the work.
struct Mesh {
    strategy: &'static str,
    data: u64,
    pipeline: u64,
}

const REPLICAS: &str = "parallelism.data_parallel_replicate_degree";
const SHARD: &str = "parallelism.data_parallel_shard_degree";

fn mesh(draft: &mut Draft, options: &Options) -> Option<Mesh> {
    let at = |name: &str| format!("parallelism.{name}");
    let mut product = 1u64;
    let mut degree = |draft: &mut Draft, name: &str, key: &str, what: &str| {
        let path = format!("parallelism.{name}");
        let degree = draft.count(&path).unwrap_or(1).max(1);
        match degree {
            1 => draft.default(&path, "1 splits nothing."),
            _ => used(draft, &path, &[(key, whole(degree))], what),
        }
        if !name.starts_with("expert") {
            product = product.saturating_mul(degree);
        }
        degree
    };
    let tensor = degree(draft, "tensor_parallel_degree", "parallel.tensor", "Ranks that share each matrix.");
    let pipeline = degree(draft, "pipeline_parallel_degree", "parallel.pipeline", "Stages of the pipeline.");
    let context = degree(draft, "context_parallel_degree", "parallel.context", "Ranks that share each sequence.");
    degree(draft, "expert_parallel_degree", "parallel.expert", "Ranks that share the experts.");
    degree(
        draft,
        "expert_tensor_parallel_degree",
        "parallel.expert_tensor",
        "Ranks that share each expert's matrices.",
    );
    if tensor > 1 {
        draft.derived(
            "parallel.sequence",
            whole(tensor),
            "torchtitan's tensor ranks share the tokens between matrices, too",
        );
    }
    match draft.flag(&at("enable_async_tensor_parallel")) {
        Some(true) if tensor > 1 => {
            let settings = [("parallel.tensor_overlap", Toml::Boolean(true))];
            used(
                draft,
                &at("enable_async_tensor_parallel"),
                &settings,
                "Collectives of tensor ranks run beside products.",
            );
        }
        Some(true) => draft.ignored(&at("enable_async_tensor_parallel"), "One tensor rank has no such collectives."),
        _ => draft.default(&at("enable_async_tensor_parallel"), "It is off."),
    }
    let replicas = draft.count(REPLICAS).unwrap_or(1).max(1);
    let others = product.saturating_mul(replicas);
    let stated = draft.whole(SHARD).and_then(|shard| u64::try_from(shard).ok()).filter(|shard| *shard > 0);
    let shard = match (stated, options.ranks) {
        (Some(shard), Some(ranks)) if shard.checked_mul(others) != Some(ranks) => {
            let made = shard.saturating_mul(others);
            draft.refuse(
                SHARD,
                format!("{shard} x the other degrees are {made} ranks, and --ranks is {ranks}; change one of them"),
            );
            return None;
        }
        (Some(shard), _) => shard,
        (None, Some(ranks)) if ranks.is_multiple_of(others) => ranks / others,
        (None, Some(ranks)) => {
            draft.refuse(
                SHARD,
                format!(
                    "is what the other degrees leave, and {others} do not divide --ranks {ranks}; change one of them"
                ),
            );
            return None;
        }
        (None, None) => {
            draft.notes.push(format!(
                "{SHARD} is what the launcher's ranks leave; {others} ranks in all are the fewest: --ranks N states them"
            ));
            1
        }
    };
    let ranks = whole(shard.saturating_mul(others));
    match options.ranks {
        Some(_) => draft.flagged("parallel.ranks", ranks, "--ranks"),
        None => draft.derived("parallel.ranks", ranks, "the product of the degrees"),
    }
    let again = draft.word(&at("fsdp_reshard_after_forward")).unwrap_or("default");
    let strategy = match (replicas, shard, context) {
        // Weights are split over context ranks, too, so that groups of one data-parallel rank are shard groups with those.
        (2.., 2.., _) | (2.., _, 2..) => "hsdp",
        (_, 1, 1) if stated.is_some() || replicas > 1 => "ddp",
        _ if again == "never" => "fsdp-grad-op",
        _ => "fsdp",
    };
    let settings = [("parallel.strategy", word(strategy)), ("parallel.shard", whole(shard))];
    let settings = if strategy == "hsdp" { &settings[..] } else { &settings[..1] };
    used(draft, REPLICAS, settings, "Groups that are replicas of each other.");
    used(draft, SHARD, settings, "Ranks that split weights, gradients and optimizer state.");
    match again {
        "never" if strategy == "hsdp" => {
            draft.nearest(
                &at("fsdp_reshard_after_forward"),
                settings,
                "Hybrid sharding gathers weights again for backward in zbench.",
            );
        }
        "never" => used(
            draft,
            &at("fsdp_reshard_after_forward"),
            settings,
            "Gathered weights are kept from forward to backward.",
        ),
        _ => draft.default(&at("fsdp_reshard_after_forward"), "Weights are given back after forward."),
    }
    if !draft.has(REPLICAS) && !draft.has(SHARD) {
        draft.derived("parallel.strategy", word(strategy), "all ranks that nothing else takes split the weights");
    }
    schedule(draft, pipeline);
    Some(Mesh { strategy, data: replicas.saturating_mul(shard), pipeline })
}

fn schedule(draft: &mut Draft, pipeline: u64) {
    const NAME: &str = "parallelism.pipeline_parallel_schedule";
    if pipeline == 1 {
        return draft.ignored(NAME, "There is no pipeline.");
    }
    let name = draft.text(NAME).unwrap_or("1F1B").to_string();
    let set = |order: &str| vec![("parallel.pipeline_schedule", word(order))];
    match name.to_lowercase().as_str() {
        "1f1b" => used(draft, NAME, &set("1f1b"), "The same order."),
        "gpipe" => used(draft, NAME, &set("gpipe"), "The same order."),
        "interleaved1f1b" => {
            used(draft, NAME, &set("interleaved"), "Two stages on a rank, unless layers_per_stage says otherwise.")
        }
        _ => {
            draft.nearest(NAME, &set("zb-h1"), "Schedules that compute gradients of weights apart are priced as ZB-H1.")
        }
    }
}

/// A rank's sequences, which stages split, and all of a step.
fn batch(draft: &mut Draft, mesh: &Mesh) {
    const NOW: &str = "training.local_batch_size";
    const BEFORE: &str = "training.batch_size";
    const ALL: &str = "training.global_batch_size";
    const PART: &str = "parallelism.pipeline_parallel_microbatch_size";
    let stated = [NOW, BEFORE].into_iter().find(|path| draft.count(path).is_some());
    let local = stated.and_then(|path| draft.count(path)).unwrap_or(8).max(1);
    let part = if mesh.pipeline > 1 { draft.count(PART).unwrap_or(1).max(1) } else { local };
    let per_pass = local.saturating_mul(mesh.data);
    let all = draft.whole(ALL).and_then(|all| u64::try_from(all).ok()).filter(|all| *all > 0).unwrap_or(per_pass);
    if !local.is_multiple_of(part) {
        return draft
            .refuse(PART, format!("{part} does not divide {local} sequences of a rank; write a divisor of them"));
    }
    if !all.is_multiple_of(per_pass) {
        let message = format!(
            "{all} is not a multiple of {local} sequences x {} data-parallel ranks; change one of them",
            mesh.data
        );
        return draft.refuse(ALL, message);
    }
    let micro = ("train.micro_batch", whole(part));
    let passes = ("train.accumulation", whole(local / part * (all / per_pass)));
    match stated {
        Some(path) if mesh.pipeline > 1 => {
            used(draft, path, &[micro, passes.clone()], "Sequences of a rank, which the stages take in parts.")
        }
        Some(path) => used(draft, path, &[micro], "Sequences of a rank at a time."),
        None => draft.derived(micro.0, micro.1, "local_batch_size is absent, which is 8"),
    }
    match mesh.pipeline {
        1 => draft.ignored(PART, "There is no pipeline."),
        _ => used(draft, PART, &[("train.micro_batch", whole(part))], "Sequences of a micro-batch."),
    }
    if mesh.pipeline > 1 && all > per_pass {
        let reason = "torchtitan drains the pipeline after each pass of local_batch_size; here all micro-batches of a step are in one pass.";
        draft.nearest(ALL, std::slice::from_ref(&passes), reason);
    } else {
        used(draft, ALL, std::slice::from_ref(&passes), "What is above a pass of all ranks is accumulated.");
    }
    if draft.setting("train.accumulation").is_none() && passes.1 != whole(1) {
        draft.derived(passes.0, passes.1, "micro-batches of local_batch_size");
    }
    match draft.count("training.seq_len") {
        Some(tokens) => used(draft, "training.seq_len", &[("train.seq_len", whole(tokens))], "Tokens of a sequence."),
        None => draft.derived("train.seq_len", whole(2048), "seq_len is absent, which is 2048"),
    }
}

fn precision(draft: &mut Draft, mesh: &Mesh) {
    const MADE: &str = "training.dtype";
    const COMPUTE: &str = "training.mixed_precision_param";
    let is_half =
        |draft: &Draft, path: &str, default: bool| draft.word(path).map_or(default, |dtype| dtype == "bfloat16");
    let settings = match (is_half(draft, MADE, false), is_half(draft, COMPUTE, true)) {
        (true, _) => vec![("precision.preset", word("bf16"))],
        (false, false) => vec![("precision.preset", word("f32"))],
        // Without FSDP autocast casts what is computed.
        (false, true) if mesh.strategy == "ddp" => {
            vec![("precision.preset", word("f32")), ("precision.compute", word("bf16"))]
        }
        (false, true) => vec![("precision.preset", word("fsdp-mixed")), ("precision.reduce", word("f32"))],
    };
    for (key, value) in &settings {
        draft.derived(key, value.clone(), "torchtitan's types: f32 weights, computed with in bf16, unless told");
    }
    used(draft, MADE, &settings, "What the model is made in.");
    used(draft, COMPUTE, &settings, "What is gathered and computed with.");
    draft.default("training.mixed_precision_reduce", "Gradients are reduced in f32.");
    const NAME: &str = "model.converters";
    let named = draft.list(NAME);
    let has = |what: &str| named.iter().any(|name| name.contains(what));
    let fp8 = [("precision.products", word("fp8"))];
    match (has("float8"), has("mx")) {
        (true, _) => used(draft, NAME, &fp8, "Products of linear layers are in fp8."),
        (_, true) => draft.nearest(NAME, &fp8, "Products in blocks of 8 bits (MX) are priced as fp8."),
        _ if named.is_empty() => draft.default(NAME, "Nothing is converted."),
        _ => draft.without(NAME, "zbench knows float8 and mx alone."),
    }
}

fn recompute(draft: &mut Draft) {
    const MODE: &str = "activation_checkpoint.mode";
    const OPTION: &str = "activation_checkpoint.selective_ac_option";
    let mode = draft.word(MODE).unwrap_or("selective");
    let option = draft.text(OPTION).unwrap_or("2").to_string();
    let (setting, reason) = match (mode, option.parse::<i64>()) {
        ("none", _) => (("memory.checkpointing", word("none")), "Everything is kept."),
        ("full", _) => (("memory.checkpointing", word("full")), "Every block is computed again for backward."),
        ("memory_budget", _) => {
            return draft.without(MODE, "Its compiler chooses what is kept; memory.recompute = \"op\" is near.");
        }
        (_, Ok(blocks @ 1..)) => {
            let table = toml::Table::from_iter([("one_in".to_string(), Toml::Integer(blocks))]);
            (("memory.recompute", Toml::Table(table)), "Of so many blocks one is computed again.")
        }
        (_, Ok(_)) => {
            return draft
                .refuse(OPTION, format!("{option:?} is no number of blocks; write \"op\", or a number from 1"));
        }
        (_, Err(_)) => (("memory.recompute", word("op")), "What is cheap to compute is computed again."),
    };
    let is_selective = mode == "selective";
    if !draft.has(MODE) {
        draft.derived(setting.0, setting.1.clone(), "mode is absent, which is selective");
    }
    used(draft, MODE, std::slice::from_ref(&setting), reason);
    match is_selective {
        true => used(draft, OPTION, &[setting], reason),
        false => draft.ignored(OPTION, "It is read beside mode = \"selective\" alone."),
    }
}

/// The rate where optimizer.lr is absent.
const LR: f64 = 8e-4;

fn training(draft: &mut Draft, options: &Options) {
    match draft.number("training.max_norm") {
        Some(norm) if norm >= super::export::NEVER => {
            used(draft, "training.max_norm", &[("train.clip_norm", Toml::Float(0.0))], "No gradient has this norm.");
        }
        Some(norm) => {
            used(draft, "training.max_norm", &[("train.clip_norm", Toml::Float(norm))], "The largest global norm.")
        }
        None => draft.derived("train.clip_norm", Toml::Float(1.0), "max_norm is absent, which is 1.0"),
    }
    match draft.flag("training.enable_cpu_offload") {
        Some(true) => {
            let homes = [("memory.offload_parameters", word("host")), ("memory.offload_optimizer", word("host"))];
            used(
                draft,
                "training.enable_cpu_offload",
                &homes,
                "Weights, gradients and optimizer state live in the host's memory.",
            );
        }
        _ => draft.default("training.enable_cpu_offload", "It is off."),
    }
    if let Some(steps) = draft.count("training.steps").filter(|steps| *steps > 0) {
        let untimed = if steps > 2 { 2 } else { 0 };
        let settings = [("train.steps", whole(steps - untimed)), ("train.untimed_steps", whole(untimed))];
        used(draft, "training.steps", &settings, "All steps, untimed ones counted.");
    } else if !options.set.iter().any(|set| set.trim_start().starts_with("train.steps")) {
        let steps = zbench_config::keys::default_of("train.steps").and_then(Toml::as_integer).unwrap_or_default();
        draft.notes.push(format!(
            "training.steps is absent, which is 10000 in torchtitan; zbench's default of {steps} steps is assumed: --set train.steps=N"
        ));
    }
    for (path, key, default) in [
        ("optimizer.lr", "train.lr", LR),
        ("optimizer.eps", "train.eps", 1e-8),
        ("optimizer.weight_decay", "train.weight_decay", 0.1),
    ] {
        match draft.number(path) {
            Some(number) => used(draft, path, &[(key, Toml::Float(number))], "The same."),
            None => draft.derived(key, Toml::Float(default), format!("{path} is absent, which is {default}")),
        }
    }
    let betas = [("optimizer.beta1", 0.9), ("optimizer.beta2", 0.95)];
    let both = Toml::Array(betas.iter().map(|(path, default)| draft.number(path).unwrap_or(*default).into()).collect());
    draft.derived("train.betas", both.clone(), "beta1 and beta2 are absent, which are 0.9 and 0.95");
    for (path, _) in betas {
        used(draft, path, &[("train.betas", both.clone())], "Decay of both moments.");
    }
    match draft.text("optimizer.name").unwrap_or("AdamW").to_string().as_str() {
        "AdamW" => draft.default("optimizer.name", "zbench's optimizer."),
        "Adam" => draft.without("optimizer.name", "AdamW stands in: Adam couples its decay."),
        other => {
            draft.refuse("optimizer.name", format!("{other:?} is none of torchtitan's; write \"AdamW\" or \"Adam\""))
        }
    }
    match draft.flag("optimizer.early_step_in_backward") {
        Some(true) => used(
            draft,
            "optimizer.early_step_in_backward",
            &[("train.optimizer_in_backward", Toml::Boolean(true))],
            "Each gradient is used and freed as soon as it is made.",
        ),
        _ => draft.default("optimizer.early_step_in_backward", "It is off."),
    }
    course(draft);
    if let Some(seed) = draft.count("debug.seed") {
        used(draft, "debug.seed", &[("train.seed", whole(seed))], "Seed of initialisation.");
    }
}

fn course(draft: &mut Draft) {
    let at = |name: &str| format!("lr_scheduler.{name}");
    let stated = draft.count(&at("warmup_steps"));
    let asked = stated.unwrap_or(200);
    let all = [at("total_steps"), "training.steps".into()].iter().find_map(|path| draft.count(path));
    let warmup = all.map_or(asked, |all| asked.min(all));
    let is_cut = warmup < asked;
    if stated.is_some() {
        let reason = if is_cut { "torchtitan cuts the warm-up to all steps." } else { "Both count steps from 1." };
        used(draft, &at("warmup_steps"), &[("train.lr_warmup_steps", whole(warmup))], reason);
    } else {
        let cut = if is_cut { ", cut to all steps" } else { "" };
        let comment = format!("warmup_steps is absent, which is 200{cut}");
        draft.derived("train.lr_warmup_steps", whole(warmup), comment);
    }
    let kind = draft.word(&at("decay_type")).unwrap_or("linear");
    let set = |course: &str| vec![("train.lr_schedule", word(course))];
    match draft.number(&at("decay_ratio")) {
        Some(0.0) => {
            used(draft, &at("decay_ratio"), &set("constant"), "No share of the steps decays.");
            for name in ["decay_type", "min_lr_factor", "lr_min"] {
                draft.ignored(&at(name), "Nothing decays.");
            }
            return;
        }
        Some(_) => draft.without(&at("decay_ratio"), "zbench's rate decays in all steps behind the warm-up."),
        None => draft.default(&at("decay_ratio"), "All steps behind the warm-up decay."),
    }
    match kind {
        "sqrt" => draft.nearest(&at("decay_type"), &set("linear"), "A linear course is the nearest."),
        _ => used(draft, &at("decay_type"), &set(kind), "The same course, one step earlier."),
    }
    if !draft.has(&at("decay_type")) {
        draft.derived("train.lr_schedule", word("linear"), "decay_type is absent, which is linear");
    }
    let lr = draft.number("optimizer.lr").unwrap_or(LR);
    let least = ["min_lr_factor", "lr_min"].map(at);
    if least.iter().all(|path| draft.number(path).is_some()) {
        return draft
            .refuse(&least[1], "is the former name of min_lr_factor, which stands beside it; keep one of them");
    }
    for path in least {
        if let Some(factor) = draft.number(&path) {
            used(draft, &path, &[("train.lr_min", Toml::Float(lr * factor))], "A share of the rate.");
        }
    }
}

fn saving(draft: &mut Draft) {
    let on =
        ["checkpoint.enable", "checkpoint.enable_checkpoint"].into_iter().find(|path| draft.flag(path) == Some(true));
    let Some(on) = on else {
        for path in ["enable", "enable_checkpoint", "folder", "interval", "keep_latest_k", "async_mode"] {
            draft.ignored(&format!("checkpoint.{path}"), "Checkpoints are off.");
        }
        return;
    };
    let folder = draft.text("checkpoint.folder").unwrap_or("checkpoint").to_string();
    used(draft, on, &[("checkpoint.dir", word(&folder))], "Where checkpoints go.");
    used(draft, "checkpoint.folder", &[("checkpoint.dir", word(&folder))], "Where checkpoints go.");
    for (path, key, default) in [("interval", "checkpoint.every", 500), ("keep_latest_k", "checkpoint.keep", 10)] {
        let count = draft.count(&format!("checkpoint.{path}"));
        match count {
            Some(count) => used(draft, &format!("checkpoint.{path}"), &[(key, whole(count))], "The same."),
            None => draft.derived(key, whole(default), format!("{path} is absent, which is {default}")),
        }
    }
    let is_async = draft.word("checkpoint.async_mode").is_some_and(|mode| mode != "disabled");
    used(
        draft,
        "checkpoint.async_mode",
        &[("checkpoint.async", Toml::Boolean(is_async))],
        "Whether training goes on meanwhile.",
    );
}
