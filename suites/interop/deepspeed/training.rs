//! Batch sizes, optimizer, learning rate, clipping, seed.

use super::word;
use crate::interop::draft::{Draft, Options, whole};
use crate::interop::keys::hint;
use toml::Value as Toml;

const MICRO: &str = "train_micro_batch_size_per_gpu";
const STEPS: &str = "gradient_accumulation_steps";
const BATCH: &str = "train_batch_size";

/// train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel ranks: what is absent follows
/// from the rest, as in DeepSpeed. Ranks that nothing states are the smallest multiple of `tensor` x `groups`.
pub fn batch(draft: &mut Draft, options: &Options, tensor: u64, groups: u64) {
    let (batch, micro, steps) = (draft.count(BATCH), draft.count(MICRO), draft.count(STEPS));
    if let Some(ranks) = options.ranks.filter(|ranks| !ranks.is_multiple_of(tensor)) {
        let message = format!("{tensor} does not divide --ranks {ranks}; write a multiple of it");
        let key = match draft.count("sequence_parallel_size").unwrap_or(1) {
            0 | 1 => "tensor_parallel.autotp_size",
            _ => "sequence_parallel_size",
        };
        return draft.refuse(key, message);
    }
    let stated = options.ranks.map(|ranks| ranks / tensor);
    let per_rank = micro.unwrap_or(1).saturating_mul(steps.unwrap_or(1));
    let implied = match (batch, micro, steps) {
        (Some(batch), Some(_), Some(_)) if batch.is_multiple_of(per_rank) => Some(batch / per_rank),
        _ => None,
    };
    let data = stated.or(implied).unwrap_or(groups.max(1));
    let product = per_rank.saturating_mul(data);
    let parts = format!(
        "{MICRO} {} x {STEPS} {} x {data} data-parallel ranks",
        micro.map_or("1".into(), |n| n.to_string()),
        steps.map_or("1".into(), |n| n.to_string())
    );
    let (micro, steps) = match (batch, micro, steps) {
        (Some(batch), Some(_), Some(_)) if batch != product => {
            let message = format!(
                "{batch} is not {parts} = {product}; change {BATCH}, {MICRO} or {STEPS}, or the ranks: --ranks N"
            );
            return draft.refuse(BATCH, message);
        }
        (Some(batch), micro, steps) if !batch.is_multiple_of(product) => {
            let given = if micro.is_some() { MICRO } else { STEPS };
            let missing = if micro.is_some() || steps.is_none() { STEPS } else { MICRO };
            let message = format!(
                "{batch} is not a multiple of {parts} = {product}, so {missing} beside {given} is not whole; change one of them, or --ranks N"
            );
            return draft.refuse(BATCH, message);
        }
        (Some(batch), Some(micro), None) => (micro, batch / product),
        (Some(batch), None, Some(steps)) => (batch / product, steps),
        (Some(batch), None, None) => (batch / data, 1),
        (_, micro, steps) => (micro.unwrap_or(1), steps.unwrap_or(1)),
    };
    batch_settings(draft, micro, steps);
    let ranks = whole(data.saturating_mul(tensor));
    match (options.ranks, implied) {
        (Some(_), _) => draft.flagged("parallel.ranks", ranks, "--ranks"),
        (None, Some(_)) => {
            let comment = format!(
                "{BATCH} / ({MICRO} x {STEPS}){}",
                if tensor > 1 { " x autotp_size x sequence_parallel_size" } else { "" }
            );
            draft.derived("parallel.ranks", ranks, comment);
        }
        (None, None) => {
            let comment = "the file does not say on how many ranks it runs; the fewest that it can: --ranks N";
            draft.derived("parallel.ranks", ranks, comment);
            draft.notes.push(format!(
                "the file does not say on how many ranks it runs; {} is the fewest that it can: --ranks N states them",
                data.saturating_mul(tensor)
            ));
        }
    }
}

fn batch_settings(draft: &mut Draft, micro: u64, steps: u64) {
    if draft.count(MICRO).is_some() {
        draft.used(MICRO, &[("train.micro_batch", whole(micro))], "Sequences of a rank at a time.");
    } else if micro != 1 {
        draft.derived("train.micro_batch", whole(micro), format!("follows from {BATCH}"));
    }
    if draft.count(STEPS).is_some() {
        draft.used(STEPS, &[("train.accumulation", whole(steps))], "Micro-batches of a step.");
    } else if steps != 1 {
        draft.derived("train.accumulation", whole(steps), format!("follows from {BATCH}"));
    }
    if draft.count(BATCH).is_some() {
        let settings = [("train.micro_batch", whole(micro)), ("train.accumulation", whole(steps))];
        draft.used(BATCH, &[], "It is micro-batch x accumulation x data-parallel ranks, and was checked to be.");
        let row = draft.rows.iter_mut().find(|row| row.key == BATCH);
        if let Some(row) = row {
            row.becomes = settings.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        }
    }
    if draft.count(MICRO).is_none() && draft.count(BATCH).is_none() {
        draft.notes.push(format!(
            "neither {BATCH} nor {MICRO} is a number; zbench takes one sequence to a micro-batch: --set train.micro_batch=N"
        ));
    }
}

/// Optimizers whose update is Adam's.
const ADAMS: [&str; 5] = ["Adam", "AdamW", "CPUAdam", "FusedAdam", "DeepSpeedCPUAdam"];
/// The other ones that DeepSpeed knows by name.
const OTHERS: [&str; 14] = [
    "Lamb",
    "OneBitAdam",
    "ZeroOneAdam",
    "OneBitLamb",
    "Lion",
    "Muon",
    "MuAdam",
    "MuAdamW",
    "MuSGD",
    "Adagrad",
    "SGD",
    "CPULion",
    "CPUAdagrad",
    "RMSprop",
];

/// AdamW, or the nearest to what is asked for.
pub fn optimizer(draft: &mut Draft) {
    const TYPE: &str = "optimizer.type";
    let at = |name: &str| format!("optimizer.params.{name}");
    let Some(name) = draft.text(TYPE).map(str::to_string) else {
        if draft.has_below("optimizer.params") {
            let reason = "has no optimizer.type beside it; write { \"type\": \"AdamW\", \"params\": … }";
            draft.refuse(&first_below(draft, "optimizer.params"), reason);
        } else if draft.setting("precision.preset").is_none() && draft.setting("memory.offload_parameters").is_some() {
            draft.notes.push(
                "the file states no optimizer and no type, so it may be one of inference (ZeRO-Inference), which takes less: here the \
                 cell trains with AdamW in f32"
                    .into(),
            );
        }
        return;
    };
    let is = |known: &str| known.eq_ignore_ascii_case(&name);
    let adam = ADAMS.iter().find(|known| is(known));
    if adam.is_none() && !OTHERS.iter().any(|known| is(known)) {
        let all: Vec<&str> = ADAMS.iter().chain(&OTHERS).copied().collect();
        let near = hint(&name, &all);
        if !near.is_empty() {
            return draft.refuse(TYPE, format!("\"{}\" is no optimizer of DeepSpeed{near}", name.escape_debug()));
        }
    }
    let is_adamw = is("AdamW");
    let is_torch = draft.flag(&at("torch_adam")) == Some(true);
    // torch's AdamW decays by 0.01 where the file is silent, its Adam and DeepSpeed's own optimizers by nothing.
    let silent = match is_torch && (is_adamw || draft.flag(&at("adam_w_mode")) != Some(false)) {
        true => ("PyTorch's AdamW", 0.01),
        false => ("DeepSpeed's Adam", 0.0),
    };
    let has_no_decay = draft.number(&at("weight_decay")).unwrap_or(silent.1) == 0.0;
    const ONE_BIT: [&str; 3] = ["OneBitAdam", "ZeroOneAdam", "OneBitLamb"];
    if ONE_BIT.iter().any(|known| is(known)) && draft.count("zero_optimization.stage").unwrap_or(0) > 0 {
        return draft.refuse(TYPE, format!("{name} does not work with ZeRO in DeepSpeed; write \"AdamW\", or stage 0"));
    }
    let decoupled = is_adamw || draft.flag(&at("adam_w_mode")) != Some(false) || has_no_decay;
    let adamw = ("train.optimizer", word("adamw"));
    match adam {
        Some(_) if is_adamw => draft.used(TYPE, &[adamw], "The same update."),
        Some(_) if decoupled => {
            draft.used(TYPE, &[adamw], "DeepSpeed's Adam decays as AdamW does unless adam_w_mode is false.")
        }
        Some(_) => {
            let reason =
                "Decay that is added to the gradient has no likeness here; AdamW decays the weights themselves.";
            draft.nearest(TYPE, &[adamw], reason);
        }
        None => other(draft, &name),
    }
    match draft.flag(&at("adam_w_mode")) {
        Some(false) if is_adamw => draft.ignored(&at("adam_w_mode"), "DeepSpeed reads it for type Adam alone."),
        Some(false) if decoupled => draft.default(&at("adam_w_mode"), "Without decay both modes are one."),
        Some(false) => draft.without(&at("adam_w_mode"), "Decay that is added to the gradient has no likeness here."),
        _ => draft.default(&at("adam_w_mode"), "zbench's decay is decoupled, too."),
    }
    params(draft, adam.is_some(), silent);
}

/// Optimizers that are priced and not run: by the state that they keep.
fn other(draft: &mut Draft, name: &str) {
    const TYPE: &str = "optimizer.type";
    let has_momentum = draft.number("optimizer.params.momentum").is_some_and(|momentum| momentum > 0.0);
    let set = |name: &str| [("train.optimizer", word(name))];
    match name.to_lowercase().as_str() {
        "sgd" | "musgd" if !has_momentum => draft.used(TYPE, &set("sgd"), "No state beside the weights."),
        "sgd" | "musgd" | "lion" | "cpulion" | "adagrad" | "cpuadagrad" | "rmsprop" => {
            draft.used(TYPE, &set("momentum"), "One moment a weight.")
        }
        "muon" => draft.used(TYPE, &set("muon"), "One moment a weight; matrices are orthogonalised whole."),
        _ => {
            let reason = "AdamW, which keeps as much state, stands in for it; losses differ.";
            draft.nearest(TYPE, &set("adamw"), reason);
            draft.notes.push(format!("the optimizer {name} is not in zbench; AdamW stands in for it"));
            return;
        }
    }
    draft.notes.push(format!("{name} is priced and not run: `zbench plan` has it, and `zbench run` AdamW alone"));
}

fn first_below(draft: &Draft, prefix: &str) -> String {
    let below = |key: &&str| key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'));
    draft.rows.iter().map(|row| row.key.as_str()).find(below).unwrap_or(prefix).to_string()
}

fn params(draft: &mut Draft, is_adam: bool, (of, decay): (&str, f64)) {
    let at = |name: &str| format!("optimizer.params.{name}");
    // What DeepSpeed's Adam does where the file is silent differs from what zbench does.
    for (name, key, silent) in [("lr", "train.lr", 1e-3), ("weight_decay", "train.weight_decay", decay)] {
        match draft.number(&at(name)) {
            Some(value) => draft.used(&at(name), &[(key, Toml::Float(value))], format!("The same meaning as {key}.")),
            None if is_adam && !draft.is_auto(&at(name)) => {
                draft.derived(key, Toml::Float(silent), format!("{} is absent, and {of} takes {silent}", at(name)));
            }
            None => {}
        }
    }
    if let Some([first, second]) = draft.pair(&at("betas")) {
        let betas = Toml::Array(vec![Toml::Float(first), Toml::Float(second)]);
        draft.used(&at("betas"), &[("train.betas", betas)], "Decay of both moments.");
    }
    if let Some(eps) = draft.number(&at("eps")) {
        draft.used(&at("eps"), &[("train.eps", Toml::Float(eps))], "Added to the denominator.");
    }
    if draft.number(&at("weight_decay")).is_some_and(|decay| decay > 0.0) {
        draft.notes.push("zbench decays tensors of two or more dimensions, DeepSpeed all that the training script puts into a group with decay".into());
    }
}

/// Warm-up and decay.
pub fn schedule(draft: &mut Draft) {
    const TYPE: &str = "scheduler.type";
    let Some(name) = draft.word(TYPE) else {
        if draft.has_below("scheduler.params") {
            let reason = "has no scheduler.type beside it; write { \"type\": \"WarmupLR\", \"params\": … }";
            draft.refuse(&first_below(draft, "scheduler.params"), reason);
        }
        return;
    };
    let at = |name: &str| format!("scheduler.params.{name}");
    let course = match name {
        "WarmupLR" => "constant",
        "WarmupDecayLR" => "linear",
        "WarmupCosineLR" => "cosine",
        _ => {
            let reason = "zbench has warm-up and constant, linear or cosine decay; the rate stays constant here.";
            draft.nearest(TYPE, &[("train.lr_schedule", word("constant"))], reason);
            let keys: Vec<String> = draft
                .rows
                .iter()
                .map(|row| row.key.clone())
                .filter(|key| key.starts_with("scheduler.params."))
                .collect();
            for key in keys {
                draft.without(&key, format!("{name} has no likeness here."));
            }
            return;
        }
    };
    let settings = [("train.lr_schedule", word(course)), ("train.lr_steps", word("deepspeed"))];
    let kind = at("warmup_type");
    if draft.word(&kind) == Some("linear") || draft.is_auto(&kind) {
        draft.used(TYPE, &settings, "The same course, update by update: linear warm-up, then this.");
    } else {
        let reason = "The same course but for warm-up, which is along a logarithm there and linear here; both end at the same rate after \
                      the same steps.";
        draft.nearest(TYPE, &settings, reason);
    }
    warmup(draft, name);
    decay(draft, name);
    if name != "WarmupCosineLR" {
        peak(draft, name);
    } else {
        draft.ignored(&at("warmup_max_lr"), "WarmupCosineLR takes the optimizer's rate.");
        draft.ignored(&at("warmup_min_lr"), "WarmupCosineLR takes warmup_min_ratio.");
    }
}

fn warmup(draft: &mut Draft, name: &str) {
    let at = |name: &str| format!("scheduler.params.{name}");
    match draft.count(&at("warmup_num_steps")) {
        Some(steps) => {
            let settings = [("train.lr_warmup_steps", whole(steps))];
            draft.used(&at("warmup_num_steps"), &settings, "Steps of warm-up; one is two in DeepSpeed and here.");
        }
        None if draft.is_auto(&at("warmup_num_steps")) => {}
        None => draft.derived(
            "train.lr_warmup_steps",
            whole(1000),
            format!("warmup_num_steps is absent, and {name} takes 1000"),
        ),
    }
    match draft.word(&at("warmup_type")) {
        Some("linear") => draft.used(&at("warmup_type"), &[], "Warm-up is linear in zbench."),
        Some(_) => draft
            .without(&at("warmup_type"), "Warm-up is linear in zbench; it ends at the same rate after the same steps."),
        None if draft.is_auto(&at("warmup_type")) => {}
        None => draft.notes.push(format!(
            "{name} warms up along a logarithm unless warmup_type is \"linear\"; zbench's warm-up is linear"
        )),
    }
    for least in ["warmup_min_lr", "warmup_min_ratio"] {
        match draft.number(&at(least)) {
            Some(0.0) | None => draft.default(&at(least), "Warm-up starts at 0."),
            Some(_) => draft.without(&at(least), "Warm-up starts at 0 in zbench."),
        }
    }
}

/// The steps of the whole course, and where it ends.
fn decay(draft: &mut Draft, name: &str) {
    let at = |name: &str| format!("scheduler.params.{name}");
    let total = draft.count(&at("total_num_steps"));
    if name == "WarmupLR" {
        draft.ignored(&at("total_num_steps"), "WarmupLR does not decay.");
        return draft.ignored(&at("cos_min_ratio"), "WarmupLR does not decay.");
    }
    match total {
        Some(total) => {
            // zbench's course ends with the last step, untimed ones counted.
            let untimed = if total > 2 { 2 } else { 0 };
            let settings = [("train.steps", whole(total - untimed)), ("train.untimed_steps", whole(untimed))];
            let reason = "The course ends with the last step here, and untimed steps count.";
            draft.used(&at("total_num_steps"), &settings, reason);
            if total > 100 {
                draft.notes.push(format!("train.steps is the whole course, {total} steps with the untimed; --set train.steps=20 measures a short one, whose decay is as short; state train.lr_warmup_steps with it, or it is all warm-up"));
            }
        }
        None if draft.is_auto(&at("total_num_steps")) => {}
        None => draft.refuse(
            "scheduler.type",
            format!("is {name}, and params.total_num_steps is absent or null, which it needs; write a number, or \"WarmupLR\""),
        ),
    }
    if name == "WarmupCosineLR" {
        let ratio = draft.number(&at("cos_min_ratio"));
        let lr = draft.number("optimizer.params.lr");
        match (ratio, lr) {
            (Some(ratio), Some(lr)) => {
                let settings = [("train.lr_min", Toml::Float(lr * ratio))];
                draft.used(&at("cos_min_ratio"), &settings, "The last rate, as a share of optimizer.params.lr.");
            }
            (Some(_), None) => draft.without(
                &at("cos_min_ratio"),
                "It is a share of a rate that the file does not state; zbench's course ends at 0.",
            ),
            (None, Some(lr)) => draft.derived(
                "train.lr_min",
                Toml::Float(lr * 1e-4),
                "cos_min_ratio is absent, and DeepSpeed takes 0.0001",
            ),
            (None, None) => {}
        }
    } else {
        draft.ignored(&at("cos_min_ratio"), "WarmupDecayLR falls to 0.");
    }
}

/// The rate at the end of warm-up: the scheduler's, which wins over the optimizer's.
fn peak(draft: &mut Draft, name: &str) {
    const OF_OPTIMIZER: &str = "optimizer.params.lr";
    let path = "scheduler.params.warmup_max_lr";
    let stated = draft.number(OF_OPTIMIZER);
    match draft.number(path) {
        Some(peak) => {
            draft.used(path, &[("train.lr", Toml::Float(peak))], "The rate after warm-up.");
            if stated.is_some_and(|lr| lr != peak)
                && let Some(row) = draft.rows.iter_mut().find(|row| row.key == OF_OPTIMIZER)
            {
                row.verdict = super::Verdict::Ignored;
                row.becomes.clear();
                row.reason = format!("{name} sets the rate in every step, to warmup_max_lr = {peak} at most.");
            }
        }
        None if name == "WarmupDecayLR" && !draft.has(path) => {
            draft.derived("train.lr", Toml::Float(1e-3), "warmup_max_lr is absent, and WarmupDecayLR takes 0.001");
            if let Some(row) =
                draft.rows.iter_mut().find(|row| row.key == OF_OPTIMIZER && row.verdict == super::Verdict::Used)
            {
                row.verdict = super::Verdict::Ignored;
                row.becomes.clear();
                row.reason =
                    "WarmupDecayLR sets the rate in every step, and takes 0.001 where warmup_max_lr is absent.".into();
            }
        }
        None => {}
    }
}

/// Clipping and seed.
pub fn rest(draft: &mut Draft) {
    const CLIP: &str = "gradient_clipping";
    match draft.number(CLIP) {
        Some(norm) => {
            let reason = if norm == 0.0 { "0 is no clipping there and here." } else { "The largest global norm." };
            draft.used(CLIP, &[("train.clip_norm", Toml::Float(norm))], reason);
        }
        None if draft.is_auto(CLIP) => {}
        None => {
            let comment = "gradient_clipping is absent, and DeepSpeed clips at 1.0 (old releases did not: 0.0)";
            draft.derived("train.clip_norm", Toml::Float(1.0), comment);
        }
    }
    if let Some(seed) = draft.count("seed") {
        draft.used("seed", &[("train.seed", whole(seed))], "Seed of initialisation and data.");
    }
}
