//! Types: fp16, bf16, torch_autocast, amp, data_types and communication_data_type.

use super::word;
use crate::interop::Verdict;
use crate::interop::draft::{Draft, Options, whole};
use toml::Value as Toml;

/// What the weights are trained in.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    F32,
    Bf16,
    F16,
    Autocast(&'static str),
}

/// The [precision] of a file. DeepSpeed casts the module when it starts, keeps f32 master weights, and accumulates and reduces
/// gradients in the type of the weights unless data_types or communication_data_type say otherwise.
pub fn precision(draft: &mut Draft, options: &Options) {
    let mode = mode(draft, options);
    let base = match mode {
        Mode::F32 => "f32",
        Mode::Bf16 => "bf16",
        Mode::F16 => "f16",
        Mode::Autocast(_) => "f32",
    };
    gradients(draft, mode, base);
    masters(draft, mode);
    loss_scale(draft, mode, options);
}

fn mode(draft: &mut Draft, options: &Options) -> Mode {
    let on = |draft: &Draft, section: &str| draft.flag(&format!("{section}.enabled")) == Some(true);
    let (fp16, bf16, autocast) = (on(draft, "fp16"), on(draft, "bf16"), on(draft, "torch_autocast"));
    if fp16 && bf16 {
        draft.refuse("bf16.enabled", "is true, and fp16.enabled too; keep one of them");
    }
    if autocast && (fp16 || bf16) {
        let reason = "Weights are cast already, so that autocast changes no type of a product.";
        draft.default("torch_autocast.enabled", reason);
        draft.default("torch_autocast.dtype", reason);
    }
    if on(draft, "amp") && draft.count("zero_optimization.stage").unwrap_or(0) > 0 {
        let reason = "is true, which does not work with ZeRO in DeepSpeed; write fp16 or bf16, or stage 0";
        draft.refuse("amp.enabled", reason);
    } else if on(draft, "amp") {
        draft.without("amp.enabled", "Apex has no likeness here; fp16 trains alike: --set precision.preset=f16-mixed.");
    } else {
        draft.default("amp.enabled", "It is off.");
    }
    for section in ["fp16", "bf16", "torch_autocast"] {
        draft_off(draft, section);
    }
    if fp16 {
        let settings = F16.map(|(key, dtype)| (key, word(dtype)));
        let reason = "Weights, gradients and what travels are f16, master weights and moments f32; the model is cast before the \
                      master copy is made.";
        draft.used("fp16.enabled", &settings, reason);
        return Mode::F16;
    }
    if bf16 {
        let reason = "The preset is DeepSpeed's way: weights, gradients and what travels are bf16, master weights and moments f32.";
        draft.used("bf16.enabled", &BF16.map(|(key, dtype)| (key, word(dtype))), reason);
        return Mode::Bf16;
    }
    if autocast {
        let dtype = dtype_of(draft.word("torch_autocast.dtype").unwrap_or("bfloat16"));
        let settings =
            [("precision.preset", word("f32")), ("precision.compute", word(dtype)), ("precision.reduce", word(dtype))];
        let reason = "Weights stay f32; what autocast computes, and its gradients on the wire, have the lower type.";
        draft.used("torch_autocast.enabled", &settings, reason);
        if draft.has("torch_autocast.dtype") {
            let reason = "The type that autocast computes in.";
            draft.used("torch_autocast.dtype", &[("precision.compute", word(dtype))], reason);
        }
        return Mode::Autocast(dtype);
    }
    draft.ignored("torch_autocast.dtype", "torch_autocast is off.");
    open(draft, options)
}

/// The type of a file that leaves it to the training script: that of an option, else bf16, or f16 where fp16 alone is "auto".
fn open(draft: &mut Draft, options: &Options) -> Mode {
    let auto: Vec<&str> =
        ["bf16", "fp16"].into_iter().filter(|section| draft.is_auto(&format!("{section}.enabled"))).collect();
    let Some(first) = auto.first() else { return Mode::F32 };
    let is_preset = |set: &String| set.split('=').next().is_some_and(|key| key.trim() == "precision.preset");
    if options.set.iter().any(is_preset) {
        for section in &auto {
            let reason =
                "\"auto\" is filled in by the training script there; --set precision.preset states the types here.";
            draft.settle_auto(&format!("{section}.enabled"), Verdict::Default, &[], reason);
        }
        return Mode::F32;
    }
    let (mode, settings) = match *first {
        "bf16" => (Mode::Bf16, BF16.map(|(key, dtype)| (key, word(dtype))).to_vec()),
        _ => (Mode::F16, F16.map(|(key, dtype)| (key, word(dtype))).to_vec()),
    };
    let theirs = auto.iter().map(|section| format!("{section}.enabled")).collect::<Vec<_>>().join(" and ");
    let verb = if auto.len() == 1 { "is" } else { "are" };
    for (key, value) in &settings {
        draft.derived(key, value.clone(), format!("{theirs} {verb} \"auto\": assumed"));
    }
    for section in &auto {
        let path = format!("{section}.enabled");
        if section == first {
            let reason = format!("\"auto\" is filled in by the training script there; {first} is assumed here.");
            draft.settle_auto(&path, Verdict::Used, &settings, &reason);
        } else {
            let reason =
                format!("\"auto\" is filled in by the training script there; {first} is assumed here instead.");
            draft.settle_auto(&path, Verdict::Default, &[], &reason);
        }
    }
    draft.notes.push(format!(
        "CAUTION: {theirs} {verb} \"auto\", so the training script says what it trains in; {first} is assumed: --set \
         precision.preset=deepspeed is DeepSpeed's bf16, f16-mixed nearly its fp16, f32 neither"
    ));
    mode
}

/// Settings of DeepSpeed's bf16.
const BF16: [(&str, &str); 1] = [("precision.preset", "deepspeed")];
/// Settings of its fp16.
const F16: [(&str, &str); 4] = [
    ("precision.preset", "f16-mixed"),
    ("precision.gradients", "f16"),
    ("precision.reduce", "f16"),
    ("precision.load", "f16"),
];

fn draft_off(draft: &mut Draft, section: &str) {
    let path = format!("{section}.enabled");
    if draft.flag(&path) == Some(false) {
        draft.default(&path, "It is off.");
    }
}

/// A type by any of DeepSpeed's names for it.
fn dtype_of(name: &str) -> &'static str {
    match name {
        "fp16" | "float16" | "half" | "torch.float16" => "f16",
        "bf16" | "bfp16" | "bfloat16" | "torch.bfloat16" => "bf16",
        _ => "f32",
    }
}

fn gradients(draft: &mut Draft, mode: Mode, base: &str) {
    for (path, key, what) in [
        ("data_types.grad_accum_dtype", "precision.gradients", "The type in which gradients add up."),
        ("communication_data_type", "precision.reduce", "The type in which gradients travel."),
    ] {
        let Some(name) = draft.word(path) else { continue };
        let dtype = dtype_of(name);
        if dtype == base && !matches!(mode, Mode::Autocast(_)) {
            draft.used(path, &[(key, word(dtype))], format!("{what} It is that of the weights anyway."));
        } else {
            draft.used(path, &[(key, word(dtype))], what);
        }
    }
}

/// What is kept beside the weights in fewer bits.
fn masters(draft: &mut Draft, mode: Mode) {
    let flags = [
        (
            "bf16.bf16_master_weights_and_grads",
            "precision.master",
            "bf16",
            Mode::Bf16,
            "The optimizer's copy of the weights is bf16.",
        ),
        ("bf16.bf16_optimizer_states", "precision.optimizer", "bf16", Mode::Bf16, "Both moments are bf16."),
        (
            "fp16.fp16_master_weights_and_grads",
            "precision.master",
            "f16",
            Mode::F16,
            "The optimizer's copy of the weights is f16.",
        ),
    ];
    for (path, key, dtype, wanted, reason) in flags {
        match draft.flag(path) {
            Some(true) if mode == wanted => {
                draft.used(path, &[(key, word(dtype))], reason);
                is_possible(draft, path);
            }
            Some(true) => draft.ignored(path, "Its section is off."),
            _ => draft.default(path, "The copy is f32."),
        }
    }
    if draft.flag("bf16.bf16_optimizer_states") == Some(true)
        && draft.flag("bf16.bf16_master_weights_and_grads") != Some(true)
    {
        let reason = "needs bf16_master_weights_and_grads, as DeepSpeed does; write that, too";
        draft.refuse("bf16.bf16_optimizer_states", reason);
    }
}

/// DeepSpeed keeps such a copy only where ZeRO does, and on the device only beside moments that are bf16, too
/// (deepspeed/runtime/base_optimizer.py, _configure_master_weights).
fn is_possible(draft: &mut Draft, path: &str) {
    if draft.count("zero_optimization.stage").unwrap_or(0) == 0 {
        return draft.refuse(path, "is for ZeRO alone, as in DeepSpeed; write zero_optimization.stage 1, 2 or 3");
    }
    let is_offloaded =
        matches!(draft.word("zero_optimization.offload_optimizer.device"), Some(device) if device != "none");
    let is_bf16 = path.starts_with("bf16.");
    let has_low_moments = is_bf16 && draft.flag("bf16.bf16_optimizer_states") == Some(true);
    if !(is_offloaded || has_low_moments) {
        let instead = if is_bf16 { ", or bf16_optimizer_states" } else { "" };
        let message = format!(
            "needs an offloaded optimizer, as DeepSpeed does; write zero_optimization.offload_optimizer {{ \"device\": \"cpu\" }}{instead}"
        );
        draft.refuse(path, message);
    }
}

/// The scale's keys have the same names and rules here. Where it is left open whether f16 is on, a flag may say that it is.
fn loss_scale(draft: &mut Draft, mode: Mode, options: &Options) {
    const PLAIN: [(&str, &str); 4] = [
        ("initial_scale_power", "The first dynamic scale is 2 to this."),
        ("loss_scale_window", "Steps without overflow after which the scale doubles."),
        ("hysteresis", "Overflows until one halves the scale."),
        ("min_loss_scale", "The scale falls no lower."),
    ];
    let path = |name: &str| format!("fp16.{name}");
    let is_open = draft.is_auto("fp16.enabled");
    let is_f16 = |set: &String| {
        let (key, value) = set.split_once('=').unwrap_or_default();
        matches!(key.trim(), "precision.preset" | "precision.compute")
            && value.trim().trim_matches(['"', '\'']).starts_with("f16")
    };
    let is_flagged = options.set.iter().any(is_f16);
    if mode != Mode::F16 && !(is_open && is_flagged) {
        let reason = match is_open {
            true => "It is left open whether fp16 is on; beside --set precision.preset=f16-mixed it is read.",
            false => "fp16 is off, and other types need no scale.",
        };
        for name in ["loss_scale", "consecutive_hysteresis"].into_iter().chain(PLAIN.map(|(name, _)| name)) {
            draft.ignored(&path(name), reason);
        }
        return;
    }
    if let Some(scale) = draft.number(&path("loss_scale")) {
        let reason = if scale == 0.0 { "0 is a dynamic scale there and here." } else { "A scale that stays." };
        draft.used(&path("loss_scale"), &[("precision.loss_scale", Toml::Float(scale))], reason);
    }
    for (name, reason) in PLAIN {
        let key = format!("precision.{name}");
        let value = match (name, draft.number(&path(name)), draft.count(&path(name))) {
            ("min_loss_scale", Some(scale), _) => Toml::Float(scale),
            (_, _, Some(count)) => whole(count),
            _ => continue,
        };
        draft.used(&path(name), &[(&key, value)], reason);
    }
    if let Some(flag) = draft.flag(&path("consecutive_hysteresis")) {
        let settings = [("precision.consecutive_hysteresis", Toml::Boolean(flag))];
        let reason = "Whether a step without overflow starts the count anew.";
        draft.used(&path("consecutive_hysteresis"), &settings, reason);
    }
}
