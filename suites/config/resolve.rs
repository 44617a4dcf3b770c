//! A set of settings becomes a resolved cell: defaults filled in, combinations checked, what this version cannot do
//! refused by name.

use crate::document::Settings;
use crate::kind::{number, quantity};
use crate::places::Place;
use crate::{Hosts, keys, software, units};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use toml::Value;
use zbench_engine::config::*;
use zbench_estimate::framework::Framework;
use zbench_estimate::profile::Profile as MachineProfile;

mod adapters;
mod frameworks;
mod precision;
mod priced;
mod running;
mod sources;

use precision::precision;
pub use precision::{policy, precision_name};
use sources::{data, known_model, profile};

/// Inputs of resolving beside the settings.
#[derive(Clone, Debug)]
pub struct Context {
    /// Where relative paths start.
    pub folder: PathBuf,
    /// Cores that this process may use.
    pub cores: usize,
    /// Machine profiles that were read: the cells of a grid mostly name the same one.
    profiles: Arc<Mutex<BTreeMap<String, Arc<MachineProfile>>>>,
    /// Framework profiles that were read.
    frameworks: Arc<Mutex<BTreeMap<String, Arc<Framework>>>>,
    /// Models that were read, by the keys of [model].
    models: Arc<Mutex<Vec<sources::ReadModel>>>,
    /// Changes of the machine, as `--what-if` states them.
    what_if: Vec<(String, Value)>,
    /// Where the processes of a launch are, if this one is part of a launch.
    launched: Option<Arc<Hosts>>,
    /// Cells are priced and none is run.
    pub(crate) is_priced: bool,
}

impl Context {
    /// A context with this folder and number of cores.
    pub fn new(folder: PathBuf, cores: usize) -> Context {
        Context {
            folder,
            cores,
            profiles: Arc::default(),
            frameworks: Arc::default(),
            models: Arc::default(),
            what_if: Vec::new(),
            launched: None,
            is_priced: false,
        }
    }

    /// The same for prices alone: a folder may lack weights beside its config.json.
    #[must_use]
    pub fn priced(self) -> Context {
        Context { is_priced: true, ..self }
    }

    /// The same as part of a launch on these hosts; `None` if zbench was started by itself.
    #[must_use]
    pub fn launched(self, launched: Option<Arc<Hosts>>) -> Context {
        Context { launched, ..self }
    }

    /// `hardware.threads_per_rank` of a configuration with so many ranks that does not state it.
    pub fn threads(&self, ranks: usize) -> usize {
        self.launched.as_ref().map_or((self.cores / ranks).max(1), |hosts| hosts.threads_per_rank())
    }

    /// `parallel.backend` of a configuration that does not state it. It depends on the configuration and the launch alone, not on
    /// the GPUs of this machine: the same file is the same cell everywhere.
    pub fn backend(&self, device: DeviceKind, ranks: usize) -> Backend {
        match (device, &self.launched) {
            (DeviceKind::Cuda, None) if ranks == 1 => Backend::Local,
            (DeviceKind::Cuda, _) => Backend::Nccl,
            (DeviceKind::Cpu, None) => Backend::Local,
            (DeviceKind::Cpu, Some(hosts)) if hosts.share_memory() => Backend::Shm,
            (DeviceKind::Cpu, Some(_)) => Backend::Tcp,
        }
    }

    /// The same with a changed machine.
    #[must_use]
    pub fn with_what_if(self, what_if: Vec<(String, Value)>) -> Context {
        Context { what_if, profiles: Arc::default(), ..self }
    }
}

/// The machine that settings name, whatever their suite; `None` where they name none.
///
/// # Errors
/// There is no such machine, or a change of it is wrong.
pub fn machine_profile(settings: &Settings, context: &Context) -> Result<Option<Arc<MachineProfile>>, Refusal> {
    profile(&Values { settings }, context)
}

/// A configuration with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// What runs.
    pub cell: Cell,
    /// `hardware.profile`, when the cell is for another machine.
    pub profile: Option<Arc<MachineProfile>>,
    /// `hardware.software`: what the cell is priced as, in memory and time alike; zbench's own engine where none is named.
    pub framework: Arc<Framework>,
    /// True where memory.attention is stated; else the kernel is one of those that the framework has.
    pub names_attention: bool,
}

impl Resolved {
    /// Another cell on the same machine, as the same framework.
    #[must_use]
    pub fn with_cell(&self, cell: Cell) -> Resolved {
        Resolved {
            cell,
            profile: self.profile.clone(),
            framework: self.framework.clone(),
            names_attention: self.names_attention,
        }
    }

    /// The same cell as a framework.
    #[must_use]
    pub fn with_framework(mut self, framework: Arc<Framework>) -> Resolved {
        self.cell.hardware.software = Some(framework.name.clone());
        Resolved { framework, ..self }
    }
}

/// Values that exclude each other, or that this version does not support.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct Refusal {
    /// The key to change.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
    /// Where the key stands, when the file has it.
    pub place: Option<Place>,
    /// Whether an axis or an include of the grid took part in it: then a cell is skipped, else the file is refused.
    pub from_grid: bool,
}

/// More rank threads than this on one processor is a typing error.
const MOST_RANKS: usize = 1024;

/// What was assumed of a model that `model.path` names and the engine cannot train, in sentences without their points.
pub fn assumed(settings: &Settings, context: &Context) -> Vec<String> {
    sources::described(settings, context).map(|described| described.assumed).unwrap_or_default()
}

/// Resolves one combination. A folder's model that the engine cannot train is priced by its sizes.
pub fn resolve(settings: &Settings, context: &Context) -> Result<Resolved, Refusal> {
    let described = sources::described(settings, context);
    let values = Values { settings: described.as_ref().map_or(settings, |described| &described.settings) };
    unsupported(&values)?;
    let profile = profile(&values, context)?;
    let model = known_model(&values, context)?;
    let mut parallel = parallel(&values)?;
    let mut priced = priced::priced(&values, &parallel, &model)?;
    if let Some(priced) = &mut priced {
        priced.is_of_folder = described.is_some();
    }
    let replicas = parallel.ranks / parallel.degrees.ranks_per_replica();
    let train = train(&values, replicas)?;
    let precision = precision(&values)?;
    let lora = lora(&values, context, &model)?;
    let device = match values.given_text("hardware.device").or_else(|| profile.as_ref().map(|p| p.device.clone())) {
        Some(device) if device == "cuda" => DeviceKind::Cuda,
        _ => DeviceKind::Cpu,
    };
    if values.given("parallel.backend").is_none() {
        parallel.backend = context.backend(device, parallel.ranks);
    }
    if device == DeviceKind::Cpu && matches!(parallel.backend, Backend::Device | Backend::Nccl) {
        let message = format!(
            "{} moves what lies in the memory of GPUs; write hardware.device = \"cuda\", or \"local\", \"shm\", \"tcp\" or \"mpi\"",
            parallel.backend.name()
        );
        return Err(values.refuse("parallel.backend", &["hardware.device"], message));
    }
    let framework = frameworks::framework(&values, context)?;
    let compressed = values.given_text("parallel.strategy").as_deref() == Some("zero++");
    let clash = || match compressed {
        true => software::no_zero_plus_plus(&framework),
        false => software::no_such_pair(&framework, parallel.strategy),
    };
    if let Some(why) = (device == DeviceKind::Cuda).then(clash).flatten() {
        return Err(values.refuse("parallel.strategy", &["hardware.software"], why));
    }
    if device == DeviceKind::Cpu && parallel.ranks > MOST_RANKS {
        let message = format!("{} ranks on one processor; write {MOST_RANKS} or fewer", parallel.ranks);
        return Err(values.refuse("parallel.ranks", &["hardware.device"], message));
    }
    let capacity = values
        .given("memory.capacity")
        .and_then(|value| quantity(value, units::bytes))
        .or(profile.as_ref().and_then(|p| p.memory));
    let memory = memory(&values, &parallel, capacity)?;
    let cell = Cell {
        data: data(&values, context)?,
        read_ahead: values.count("data.prefetch"),
        hardware: Hardware {
            device,
            threads_per_rank: values
                .given_count("hardware.threads_per_rank")
                .unwrap_or_else(|| context.threads(parallel.ranks)),
            instructions: Some(values.text("hardware.instructions")).filter(|name| name != "auto"),
            pin: values.choice("hardware.pin").unwrap_or_default(),
            software: values.given_text("hardware.software"),
            profile: profile.as_ref().filter(|_| device == DeviceKind::Cuda).map(|profile| profile.name.clone()),
        },
        model,
        train,
        link: link(&values, &parallel, &memory)?,
        pace: pace(&values)?,
        memory,
        checkpoint: running::saving(&values, context)?.map(Box::new),
        watch: running::watch(&values)?,
        parallel,
        precision,
        lora,
        priced: priced.map(Box::new),
    };
    batch_fits(&values, &cell)?;
    if cell.parallel.tensor_chunks > 1
        && let Some((key, word)) = cell.first_priced_key()
    {
        let message = format!(
            "is known to the engine's plan alone, and this cell is priced and not run ({key} = {word}); leave it out"
        );
        return Err(values.refuse("parallel.tensor_chunks", &[key], message));
    }
    Ok(Resolved { cell, profile, framework, names_attention: values.given("memory.attention").is_some() })
}

/// What is kept, recomputed, limited and offloaded.
fn memory(values: &Values, parallel: &Parallel, capacity: Option<u64>) -> Result<Memory, Refusal> {
    // "none" is the device.
    let home = |key: &str| values.choice(key).unwrap_or(MemoryTier::Device);
    let mut memory = Memory {
        checkpointing: checkpointing(&values.value("memory.checkpointing")),
        attention: values.choice("memory.attention").unwrap_or(AttentionKind::Flash),
        capacity,
        prepack: values.text("memory.prepack") == "step",
        partition_activations: values.is("memory.partition_activations"),
        offload_optimizer: home("memory.offload_optimizer"),
        offload_parameters: home("memory.offload_parameters"),
        offload_activations: home("memory.offload_activations"),
        offload_path: values.given_text("memory.offload_path").map(Into::into),
        offload_prefetch: values.count("memory.offload_prefetch"),
    };
    let tiers = [memory.offload_optimizer, memory.offload_parameters, memory.offload_activations];
    if !tiers.contains(&MemoryTier::Disk) {
        // One folder may be stated for a grid of which some cells use it.
        memory.offload_path = None;
    }
    use Strategy::{Fsdp, FsdpGradOp, Hsdp, Zero3};
    if memory.offload_parameters != MemoryTier::Device && !matches!(parallel.strategy, Zero3 | Fsdp | FsdpGradOp | Hsdp)
    {
        let message = "needs weights that are gathered when they are read: parallel.strategy = \"zero3\", \"fsdp\", \"fsdp-grad-op\" or \"hsdp\"";
        return Err(values.refuse("memory.offload_parameters", &["parallel.strategy"], message));
    }
    if values.given("memory.offload_prefetch").is_some() && !memory.offloads() {
        let message =
            "is of what is offloaded, and nothing is; leave it out, or write \"host\" or \"disk\" for what is to be";
        return Err(values.refuse("memory.offload_prefetch", &["memory.offload_optimizer"], message));
    }
    Ok(memory)
}

/// Typed access to checked settings; absent ones have the default of the table.
pub struct Values<'a> {
    /// What the document, the grid and `--set` state.
    pub settings: &'a Settings,
}

impl Values<'_> {
    /// The value that is stated for a key.
    pub fn given(&self, key: &str) -> Option<&Value> {
        self.settings.get(key).map(|setting| &setting.value)
    }

    /// The value that is stated, else the default of the table.
    fn stated(&self, key: &str) -> Option<&Value> {
        self.given(key).or_else(|| keys::default_of(key))
    }

    /// The value that is stated, else the default; an empty text where there is neither.
    pub fn value(&self, key: &str) -> Value {
        self.stated(key).cloned().unwrap_or_else(|| Value::String(String::new()))
    }

    /// The whole number that is stated.
    pub fn given_count(&self, key: &str) -> Option<usize> {
        self.given(key).and_then(Value::as_integer).and_then(|n| usize::try_from(n).ok())
    }

    /// A whole number; its kind has refused anything else.
    pub fn count(&self, key: &str) -> usize {
        self.stated(key).and_then(Value::as_integer).and_then(|n| usize::try_from(n).ok()).unwrap_or_default()
    }

    /// A number, or its default.
    pub fn real(&self, key: &str) -> f64 {
        self.stated(key).and_then(number).unwrap_or_default()
    }

    /// The text that is stated.
    pub fn given_text(&self, key: &str) -> Option<String> {
        self.given(key).and_then(Value::as_str).map(str::to_string)
    }

    /// A text, or its default.
    pub fn text(&self, key: &str) -> String {
        self.stated(key).and_then(Value::as_str).unwrap_or_default().to_string()
    }

    /// Whether it is true, as stated or by default.
    pub fn is(&self, key: &str) -> bool {
        self.stated(key).and_then(Value::as_bool).unwrap_or_default()
    }

    /// A name that is stated, or the default, as the engine's value of that name; nothing where the engine has no such name.
    fn choice<'a, T: Deserialize<'a>>(&self, key: &str) -> Option<T> {
        self.stated(key).and_then(choice)
    }

    /// A refusal of a key; `others` are the keys that it clashes with.
    pub fn refuse(&self, key: &str, others: &[&str], message: impl Into<String>) -> Refusal {
        let grid = |key: &str| self.settings.get(key).is_some_and(|setting| setting.from_grid);
        // A key that the file leaves out stands where the first of those it clashes with does.
        let written = std::iter::once(&key).chain(others).find_map(|key| self.settings.get(*key));
        Refusal {
            key: key.into(),
            message: message.into(),
            place: written.and_then(|setting| setting.place),
            from_grid: grid(key) || others.iter().any(|key| grid(key)),
        }
    }
}

/// The engine's value of a name, if it has one.
fn choice<'a, T: Deserialize<'a>>(name: &Value) -> Option<T> {
    name.clone().try_into().ok()
}

/// Refuses other suites than train, and keys that are theirs alone.
fn unsupported(values: &Values) -> Result<(), Refusal> {
    let suite = values.text("suite");
    if suite != "train" {
        let command = if suite == "collectives" { String::new() } else { format!(" and `zbench {suite} FILE`") };
        let message =
            format!("\"{suite}\" is measured by `zbench grid FILE`{command}, where the file states it outside [grid]");
        return Err(values.refuse("suite", &[], message));
    }
    let of_kernels = |key: &&&str| ["gemm.", "attention.", "bench."].iter().any(|section| key.starts_with(section));
    if let Some(key) = values.settings.keys().find(of_kernels) {
        let message = "has no effect when suite is \"train\"; leave it out, or write suite = \"gemm\" or \"attention\"";
        return Err(values.refuse(key, &["suite"], message));
    }
    if let Some(key) = values.settings.keys().find(|key| key.starts_with("io.")) {
        let message = "has no effect when suite is \"train\"; leave it out, or write suite = \"io\"";
        return Err(values.refuse(key, &["suite"], message));
    }
    let of_checkpoint = ["checkpoint.load_as", "checkpoint.repeats"];
    if let Some(key) = of_checkpoint.into_iter().find(|key| values.given(key).is_some()) {
        let message = "has no effect when suite is \"train\"; leave it out, or write suite = \"checkpoint\"";
        return Err(values.refuse(key, &["suite"], message));
    }
    Ok(())
}

fn train(values: &Values, replicas: usize) -> Result<Train, Refusal> {
    let (micro_batch, mut accumulation) = (values.count("train.micro_batch"), values.count("train.accumulation"));
    if let Some(global) = values.given_count("train.global_batch") {
        let others = ["train.micro_batch", "parallel.ranks", "train.accumulation"];
        if values.given("train.accumulation").is_some() {
            let message = "stands beside train.accumulation; keep one of them";
            return Err(values.refuse("train.global_batch", &others, message));
        }
        // Both are below 2^31.
        let per_pass = micro_batch * replicas;
        if global % per_pass != 0 {
            let above = global.div_ceil(per_pass) * per_pass;
            let message = format!(
                "{global} is not a multiple of data-parallel ranks × train.micro_batch = {replicas} × {micro_batch} = {per_pass}; \
                 write {above}, or change one of them"
            );
            return Err(values.refuse("train.global_batch", &others, message));
        }
        accumulation = global / per_pass;
    }
    let (lr, lr_min) = (values.real("train.lr"), values.real("train.lr_min"));
    if lr_min > lr {
        let message = format!("{lr_min} is above train.lr = {lr}; write at most that");
        return Err(values.refuse("train.lr_min", &["train.lr"], message));
    }
    let betas = values.value("train.betas");
    let beta = |i: usize| betas.get(i).and_then(number).unwrap_or_default();
    let mut train = Train {
        seq_len: values.count("train.seq_len"),
        micro_batch,
        accumulation,
        steps: values.count("train.steps"),
        untimed_steps: values.count("train.untimed_steps"),
        seed: values.count("train.seed") as u64,
        optimizer: Optimizer::AdamW,
        lr,
        betas: [beta(0), beta(1)],
        eps: values.real("train.eps"),
        weight_decay: values.real("train.weight_decay"),
        clip_norm: values.real("train.clip_norm"),
        lr_schedule: values.choice("train.lr_schedule").unwrap_or(Schedule::Constant),
        lr_warmup_steps: values.count("train.lr_warmup_steps"),
        lr_min,
        lr_steps: CourseSteps::default(),
        delayed_update: values.count("train.delayed_update"),
    };
    // A rate that stays has no steps, and cells with one have the keys of versions before them.
    if train.is_rate_varied() {
        train.lr_steps = values.choice("train.lr_steps").unwrap_or(CourseSteps::Transformers);
    }
    Ok(train)
}

fn parallel(values: &Values) -> Result<Parallel, Refusal> {
    let ranks = values.count("parallel.ranks");
    let name = values.text("parallel.strategy");
    // The kind admits these names and zero++, which splits what zero3 splits (`priced` has the rest).
    let strategy = values.choice("parallel.strategy").unwrap_or(Strategy::Zero3);
    let ranks_per_node = values.given_count("parallel.ranks_per_node");
    if let Some(per_node) = ranks_per_node.filter(|per_node| !ranks.is_multiple_of(*per_node)) {
        let message = format!("{per_node} does not divide parallel.ranks = {ranks}; write a divisor of it");
        return Err(values.refuse("parallel.ranks_per_node", &["parallel.ranks"], message));
    }
    let others = ["parallel.strategy", "parallel.ranks", "parallel.ranks_per_node"];
    let degrees = priced::degrees(values)?;
    let data = (ranks / degrees.ranks_per_replica().max(1)).max(1);
    let shard = if !strategy.is_hybrid() {
        ranks
    } else if let Some(shard) = values.given_count("parallel.shard") {
        shard
    } else if let Some(per_node) = ranks_per_node {
        degrees.shard_in_node(per_node, data)
    } else if data.is_multiple_of(2) {
        data / 2
    } else {
        let message =
            format!("has no default for {name} on {data} ranks, which do not halve; state a divisor of {data}");
        return Err(values.refuse("parallel.shard", &others, message));
    };
    Ok(Parallel {
        ranks,
        ranks_per_node,
        strategy,
        shard,
        degrees,
        pipeline_split: values.choice("parallel.pipeline_split").unwrap_or_default(),
        tensor_chunks: values.count("parallel.tensor_chunks"),
        prefetch: values.count("parallel.prefetch"),
        bucket_mb: if strategy == Strategy::Ddp { values.real("parallel.bucket_mb") } else { BUCKET_MB },
        backend: values.choice("parallel.backend").unwrap_or(Backend::Local),
        // The key's kind has refused invalid times.
        stall: quantity(&values.value("parallel.stall"), units::seconds)
            .map_or(STALL, std::time::Duration::from_secs_f64),
    })
}

/// Emulated links. Those between nodes need the ranks of a node, those between device and host something that is offloaded.
fn link(values: &Values, parallel: &Parallel, memory: &Memory) -> Result<Option<Link>, Refusal> {
    let node = rate_of_link(values, ["link.node.bandwidth", "link.node.latency"])?;
    if node.is_some() && parallel.ranks_per_node.is_none() {
        let message = "is an emulated link between nodes; write parallel.ranks_per_node, the ranks of one";
        return Err(values.refuse("link.node.bandwidth", &["parallel.ranks_per_node"], message));
    }
    let host = rate_of_link(values, ["link.host.bandwidth", "link.host.latency"])?;
    if host.is_some() && !memory.offloads() {
        let message = "is an emulated link for what is offloaded, and nothing is; leave it out, or write \"host\" or \"disk\" for what \
                       is to be";
        return Err(values.refuse("link.host.bandwidth", &["memory.offload_optimizer"], message));
    }
    Ok((node.is_some() || host.is_some()).then_some(Link { node, host }))
}

/// What an emulated link carries; `None` where neither key is given.
fn rate_of_link(values: &Values, [bandwidth, latency]: [&'static str; 2]) -> Result<Option<LinkRate>, Refusal> {
    let of = |key: &str, read: fn(&str) -> Option<f64>| values.given(key).and_then(|value| quantity(value, read));
    let seconds = of(latency, units::seconds);
    match of(bandwidth, units::rate) {
        Some(bandwidth) => Ok(Some(LinkRate { bandwidth, latency: seconds.unwrap_or(0.0) })),
        None if values.given(latency).is_some() => {
            let message = format!("is absent; write it beside {latency}, as \"12.5GB/s\"");
            Err(values.refuse(bandwidth, &[latency], message))
        }
        None => Ok(None),
    }
}

/// An emulated speed of blocks; `None` where neither key is given.
fn pace(values: &Values) -> Result<Option<Pace>, Refusal> {
    let of = |key: &'static str| values.given(key).and_then(|value| quantity(value, units::seconds));
    let absent = |key: &'static str, other: &'static str| {
        Err(values.refuse(key, &[other], format!("is absent; write it beside {other}, as \"4ms\"")))
    };
    match (of("pace.forward"), of("pace.backward")) {
        (Some(forward), Some(backward)) => Ok(Some(Pace { forward, backward })),
        (None, None) => Ok(None),
        (None, Some(_)) => absent("pace.forward", "pace.backward"),
        (Some(_), None) => absent("pace.backward", "pace.forward"),
    }
}

fn lora(values: &Values, context: &Context, model: &Model) -> Result<Lora, Refusal> {
    let adapters = adapters::adapters(values, context, model)?;
    let base = base(values).filter(|_| adapters.on());
    Ok(Lora { base, ..adapters })
}

/// The format of the frozen weights, including whether scales are quantized too.
fn base(values: &Values) -> Option<Base> {
    match values.given("lora.base").and_then(choice)? {
        Base::Nf4 if !values.is("lora.double_quant") => Some(Base::Nf4Single),
        base => Some(base),
    }
}

fn checkpointing(value: &Value) -> Checkpointing {
    match value {
        Value::Array(list) => {
            let listed: Vec<SavedTensor> = list.iter().filter_map(choice).collect();
            Checkpointing::Keep(SavedTensor::ALL.into_iter().filter(|kept| listed.contains(kept)).collect())
        }
        other => choice(other).unwrap_or(Checkpointing::None),
    }
}

/// The largest single tensors of a step, in bytes of f64, must fit 62 bits: products beyond it would wrap.
fn batch_fits(values: &Values, cell: &Cell) -> Result<(), Refusal> {
    let Train { seq_len, micro_batch, accumulation, .. } = cell.train;
    let (model, limit) = (&cell.model, 1u128 << 62);
    let widest =
        model.vocab_size.max(model.intermediate_size).max(model.num_attention_heads.saturating_mul(model.head_dim));
    let slots = model.experts.as_ref().map_or(0, |experts| {
        let wide = experts.moe_intermediate_size.max(model.hidden_size);
        experts.num_experts_per_tok.saturating_mul(wide).max(experts.num_experts)
    });
    let widest = widest.max(slots);
    let rows = seq_len as u128 * micro_batch as u128;
    let keys = ["train.seq_len", "train.micro_batch", "memory.attention", "train.accumulation", "parallel.ranks"];
    let over = |factors: &[usize]| {
        factors
            .iter()
            .try_fold(rows * 8, |product, factor| product.checked_mul(*factor as u128))
            .is_none_or(|p| p > limit)
    };
    let layers = model.num_hidden_layers;
    let refuse = |key: &str, what: &str| {
        let message = format!("{} makes {what} of more than 2^62 bytes; write a smaller number", values.value(key));
        Err(values.refuse(key, &keys, message))
    };
    let largest = if seq_len >= micro_batch { "train.seq_len" } else { "train.micro_batch" };
    if over(&[widest, layers]) {
        return refuse(largest, "activations");
    }
    if cell.memory.attention == AttentionKind::Naive && over(&[seq_len, model.num_attention_heads, layers]) {
        return refuse("train.seq_len", "attention probabilities");
    }
    if over(&[accumulation, cell.parallel.ranks]) {
        return refuse("train.accumulation", "a global batch");
    }
    Ok(())
}
