//! accelerate's own keys for DeepSpeed, where they stand in the file. The rest is in a file that they name, or in nothing.

use super::word;
use crate::interop::deepspeed::{Section, offload};
use crate::interop::draft::{Draft, whole};
use toml::Value as Toml;

/// The settings of a file whose distributed_type is DEEPSPEED.
pub fn deepspeed(draft: &mut Draft) {
    let at = |name: &str| format!("deepspeed_config.{name}");
    if let Some(file) = draft.text(&at("deepspeed_config_file")).map(str::to_string) {
        let shown = file.escape_debug().to_string();
        let ranks = draft.count("num_processes").map_or("N".to_string(), |ranks| ranks.to_string());
        return draft.refuse(
            &at("deepspeed_config_file"),
            format!(
                "has the settings in a file of its own; import that: zbench import {shown} --ranks {ranks} (accelerate looks for it where it is started)"
            ),
        );
    }
    let stage = draft.count(&at("zero_stage")).unwrap_or(2);
    let strategy = match stage {
        0 => "ddp",
        1 => "zero1",
        2 => "zero2",
        3 => "zero3",
        _ => return draft.refuse(&at("zero_stage"), format!("{stage} is no stage of ZeRO; write 0, 1, 2 or 3")),
    };
    draft.used("distributed_type", &[], "The stage is in deepspeed_config.");
    match draft.has(&at("zero_stage")) {
        true => draft.used(
            &at("zero_stage"),
            &[("parallel.strategy", word(strategy))],
            "The stages have the same names here.",
        ),
        false => draft.derived("parallel.strategy", word(strategy), "zero_stage is absent, and accelerate takes 2"),
    }
    let section = |name: &str| Section {
        device: at(&format!("offload_{name}_device")),
        folder: at(&format!("offload_{name}_nvme_path")),
        no_folder: "none",
    };
    offload(draft, stage, [section("optimizer"), section("param")]);
    if let Some(steps) = draft.count(&at("gradient_accumulation_steps")) {
        let reason = "Micro-batches of a step.";
        draft.used(&at("gradient_accumulation_steps"), &[("train.accumulation", whole(steps))], reason);
    }
    clipping(draft, &at("gradient_clipping"));
}

/// accelerate hands on a norm above 0. Else it leaves the key out, and DeepSpeed then clips at 1.0.
fn clipping(draft: &mut Draft, path: &str) {
    let theirs = [("train.clip_norm", Toml::Float(1.0))];
    match draft.number(path) {
        Some(norm) if norm > 0.0 => {
            draft.used(path, &[("train.clip_norm", Toml::Float(norm))], "The largest global norm.")
        }
        Some(_) => draft.used(path, &theirs, "accelerate leaves 0 out, and DeepSpeed then clips at 1.0."),
        None if draft.is_auto(path) => {
            let [(key, value)] = theirs;
            draft.derived(key, value, "gradient_clipping is auto, and accelerate fills in 1.0");
        }
        None if draft.has(path) => {
            draft.used(path, &theirs, "accelerate leaves the key out, and DeepSpeed then clips at 1.0.")
        }
        None => {
            let [(key, value)] = theirs;
            let reason = "gradient_clipping is absent, and DeepSpeed clips at 1.0 (old releases did not: 0.0)";
            draft.derived(key, value, reason);
        }
    }
}
